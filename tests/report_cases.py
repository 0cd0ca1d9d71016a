"""Runs to report on: images on disk, and observations that put every kind of certificate into the page."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import evaluation_cases
import numpy as np
import PIL.Image

from objectseeker import Bands, Certificates, Detections, Halves, Observation, Patch, Rule, Windows
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Masks
from objectseeker.core.observation import NO_TRACK, FrameIndex, ObservedImage
from objectseeker.core.recipes import Recipe, recipe_for_frame
from objectseeker.core.rules import PruningRule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings
from objectseeker.report import Report, ReportSource, write_page

DONE = "body:not(.certifying)"  # the page has all its verdicts
BASE_THRESHOLD = 0.1
VOCABULARY = evaluation_cases.VOCABULARY
TWO_CATS = LabelMap(("cat", "kitten", "dog", "cow"), evaluation_cases.NAMES, np.array([0, 0, 1, -1]))
TYPES = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "i4": np.int32, "f4": np.float32, "f8": np.float64}


def settings_of(follow: ThresholdSchedule, **rule: Any) -> EvaluationSettings:
    """The rule whose scores follow BASE_THRESHOLD, and its curve."""
    return EvaluationSettings(rule=follow.rule(Rule(**rule), BASE_THRESHOLD), threshold_schedule=follow)


PAPER = settings_of(ThresholdSchedule(alpha=0.65, beta=0.2))
EVIDENCE = settings_of(
    ThresholdSchedule(alpha=0.85, beta=0.5, evidence_alpha=0.1, evidence_beta=0.0), evidence_power=0.8, edge_factor=0.9
)
LABEL_FREE = EVIDENCE.class_agnostic()
IOU = PAPER.iou_variant()


@dataclass(frozen=True)
class Run:
    """What a report is written of. If it is not `is_labeled`, the objects of `images` are what is output on them."""

    images: list[ObservedImage]
    settings: EvaluationSettings
    label_map: LabelMap = VOCABULARY
    is_labeled: bool = True

    def report(self, out: Path) -> Path:
        images = self.images if self.is_labeled else [without_objects(image) for image in self.images]
        write_images(out, images, self.label_map, self.settings, is_labeled=self.is_labeled)
        return out

    @property
    def rule(self) -> PruningRule:
        return self.settings.rule

    def certify(self, image: ObservedImage, patches: list[Patch], threshold: float) -> tuple[Certificates, np.ndarray]:
        """The certificates of every target, and whose targets they are."""
        targets, owner = self.label_map.map_to_detector(image.ground_truth, classwise=self.rule.classwise)
        return self.rule.certify(image.observation, targets, patches, certification_threshold=threshold), owner


def write_images(
    out: Path,
    images: list[ObservedImage],
    label_map: LabelMap = VOCABULARY,
    settings: EvaluationSettings = PAPER,
    **options: Any,
) -> Report:
    """Write the report of images that are in no run."""
    names = ("baseline", "embed_images", "on_progress")
    of_page = {name: options.pop(name) for name in names if name in options}
    source = ReportSource(options.pop("title", "report"), images, label_map, settings, **options)
    return write_page(source, out, **of_page)


def run_of(name: str) -> Run:
    """Awkward images and larger ones: half masks under each rule, bands, a sum, labels that share a class, and none."""

    def halves() -> list[ObservedImage]:
        return awkward() + evaluation_cases.noisy(4, 12)

    make = {
        "paper": lambda: Run(halves(), PAPER),
        "evidence": lambda: Run(halves(), EVIDENCE),
        "iou": lambda: Run(halves(), IOU),
        "class_agnostic": lambda: Run(halves(), LABEL_FREE),
        "bands": lambda: Run(seen_under(Bands(0.04, aspect=2.0, spacing=0.7)), EVIDENCE),
        "bands_paper": lambda: Run(seen_under(Bands(0.02)), PAPER),
        "sum": lambda: Run(seen_under(Halves(4) + Bands(0.03)), EVIDENCE),
        "windows": lambda: Run(seen_under(Halves(3) + Windows(2 / 3)), EVIDENCE),
        "windows_paper": lambda: Run(seen_under(Windows(1 / 2) + Bands(0.02)), PAPER),
        "unlabeled": lambda: Run(
            [output_on(image, EVIDENCE.rule) for image in awkward(count=8) + evaluation_cases.noisy(4, 3)],
            EVIDENCE,
            is_labeled=False,
        ),
        "labels": lambda: Run([hesitating(image) for image in halves()], EVIDENCE, TWO_CATS),
    }
    return make[name]()


def awkward(seed: int = 5, count: int = 32) -> list[ObservedImage]:
    """Tiny images with ties, fractions of pixels, boxes over the border and outside; ignored objects too.

    The last one has an object that no position is far from.
    """
    generous = evaluation_cases.run(seed, count // 2, generous=0.95, lines=9, crowd=0.95, largest=30)
    box = (0.5, 0, 99.5, 100)
    large = evaluation_cases.image([(*box, 0.9, 0)], [(*box, 0)], [[(*box, 0.9, 0)]] * 4)
    return [*generous, *evaluation_cases.run(seed + 1, count - count // 2), large]


def seen_under(recipe: Recipe, seed: int = 7) -> list[ObservedImage]:
    """Images under the masks of a recipe, tiny ones first: most masks see their objects well, some see half of them."""

    def make(width: int, height: int, lines: int) -> Masks:
        return recipe.masks(width, height)

    how: dict[str, Any] = {"make": make, "generous": 0.6, "crowd": 0.95, "sure": 0.9, "torn": 0.2}
    tiny = evaluation_cases.run(seed, 16, smallest=15, largest=30, **how)
    return tiny + evaluation_cases.run(seed + 1, 16, smallest=40, largest=80, **how)


def hesitating(image: ObservedImage) -> ObservedImage:
    """As a detector of TWO_CATS sees it: a cat is as likely a kitten, and now and then a dog is a cow."""
    rng = np.random.default_rng(len(image.observation.all_masked))

    def relabeled(boxes: Detections) -> Detections:
        other = rng.random(len(boxes)) < np.where(boxes.label == 0, 0.4, 0.05)
        return Detections(boxes.xyxy, boxes.score, 2 * boxes.label + other)

    seen = image.observation
    masked = [relabeled(boxes) for boxes in seen.masked]
    return replace(image, observation=Observation(seen.width, seen.height, seen.masks, relabeled(seen.base), masked))


def output_on(image: ObservedImage, rule: PruningRule) -> ObservedImage:
    """The image, and as its objects what the defended detector outputs."""
    boxes = rule.prune(image.observation)
    return replace(image, ground_truth=boxes, ignore=np.zeros(len(boxes), bool), crowd=np.zeros(len(boxes), bool))


def without_objects(image: ObservedImage) -> ObservedImage:
    return replace(image, ground_truth=Detections.empty(), ignore=np.zeros(0, bool), crowd=np.zeros(0, bool))


def observed_images(folder: Path, count: int, seed: int = 3) -> list[ObservedImage]:
    """Images of 100 x 100 pixels whose images lie in `folder`."""
    rng = np.random.default_rng(seed)
    images = []
    for number, image in enumerate(evaluation_cases.noisy(seed, count)):
        path = folder / f"image {number}.png"
        small = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        PIL.Image.fromarray(small).resize((100, 100)).save(path)
        images.append(replace(image, id=f"{number:03d}", path=path))
    return images


def filmed(folder: Path, recipe: Recipe, *, count: int = 24, fps: float | None = 8.0) -> list[ObservedImage]:
    """A sequence of 48 x 36 pixels with its images in `folder`: two tracks, seen now better, now worse.

    Frame 5 is missing, track 9 has no box in frames 9 to 11 and is ignored in frame 14, and a third box has no track.
    """
    rng = np.random.default_rng(8)
    images = []
    for number in [n for n in range(count) if n != 5]:
        masks = recipe_for_frame(recipe, number).masks(48, 36)
        boxes = np.array([[6, 8, 16, 30], [30, 6 + number / 8, 40, 26], [20, 20, 25, 25]])
        kept = [0, 2] if 9 <= number <= 11 else [0, 1, 2]
        sure = 0.97 if number % 12 < 7 else 0.2  # share of views that see an object

        shown = [(*boxes[n], 0.9, 0) for n in kept[:-1]]
        views = [[box for box in shown if rng.random() < sure] for _ in range(1 + len(masks))]
        truth = evaluation_cases.boxes([(*boxes[n], 1.0, 0) for n in kept])
        ignore = np.array([n == 1 and number == 14 for n in kept])
        base, *masked = map(evaluation_cases.boxes, views)
        seen = Observation(48, 36, masks, base, masked)
        path = folder / f"{number:03d}.png"
        PIL.Image.new("RGB", (48, 36), (10 * number, 90, 120)).save(path)
        frame, track = FrameIndex("street", number, fps), np.array([4, 9, NO_TRACK])[kept]
        images.append(ObservedImage(f"street/{number}", path, seen, truth, ignore, ignore, frame, track))
    return images


def data_of(page: str) -> dict[str, Any]:
    """What the page computes from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def columns_of(page: str) -> dict[str, np.ndarray]:
    columns = dict(re.findall(r'<script type="text/plain" id="column-(\w+)">(.*?)</script>', page))
    return {
        name: np.frombuffer(base64.b64decode(columns[name]), TYPES[kind])
        for name, kind in data_of(page)["columns"].items()
    }


def details_of(page: str, number: int) -> dict[str, Any]:
    found = re.search(rf'<script type="text/plain" id="details-{number}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]
