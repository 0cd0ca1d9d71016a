"""`objectseeker demo`: the embedded detector, defended and certified, on the bundled photographs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker import detectors
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area, iou

from objectseeker.core.image import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch, Where
from objectseeker.detectors.embedded.loading import RECOMMENDED
from objectseeker.evaluation import Settings
from objectseeker.files.images import load_image
from objectseeker.jobs import Defended, defend
from objectseeker.results.drawing import CERTIFIED, ORANGE, VULNERABLE, Layer, annotate
from objectseeker.results.report import write_report
from objectseeker.demo.samples import Sample, samples

LOCATIONS: tuple[Where, ...] = ("far", "close", "over")
FOUND_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """A photograph with what was found and proven for each of its objects (crowds left out)."""

    sample: Sample
    found: Defended
    names: tuple[str, ...]
    label: Ints
    share: Floats  # of the image area
    found_vanilla: Bools
    found_defended: Bools
    certified: Bools  # (location, object)
    largest_square: Ints
    picture: PIL.Image.Image

    def rows(self) -> Iterator[dict[str, Any]]:
        height, width = self.found.image.shape[:2]
        for n in range(len(self.label)):
            side = int(self.largest_square[n])
            yield {
                "photo": self.sample.name,
                "object": self.names[self.label[n]],
                "share_of_image": float(self.share[n]),
                "found_vanilla": bool(self.found_vanilla[n]),
                "found_defended": bool(self.found_defended[n]),
                "certified": {where: bool(self.certified[p, n]) for p, where in enumerate(LOCATIONS)},
                "largest_certified_square": side,
                "largest_certified_area": side * side / (width * height),
            }


def run(*, lines: int = 30, patch_area: float = 0.01) -> Iterator[Verdicts]:
    """The embedded detector with its recommended settings, photograph by photograph."""
    detector = detectors.load("embedded")
    seeker = ObjectSeeker.with_rule(detector, RECOMMENDED, lines=lines)
    for sample in samples():
        yield judge(seeker, detector.names, sample, patch_area)


def judge(seeker: ObjectSeeker, names: tuple[str, ...], sample: Sample, patch_area: float) -> Verdicts:
    """Detect, certify against a square patch of `patch_area`, and draw."""
    image = load_image(sample.path)
    found = defend(seeker, image)
    truth = sample.truth[~sample.crowd]
    height, width = image.shape[:2]
    patches = [Patch(patch_area, 1.0, where) for where in LOCATIONS]
    certificates = seeker.rule.certify(found.observation, truth, patches)

    vanilla, recovered = _matched(truth, found.base), _matched(truth, found.recovered)
    return Verdicts(
        sample=sample,
        found=found,
        names=names,
        label=truth.label,
        share=area(truth.xyxy) / (width * height),
        found_vanilla=vanilla,
        found_defended=vanilla | recovered,
        certified=certificates.certified,
        largest_square=certificates.largest_square,
        picture=draw_verdicts(image, truth.xyxy, truth.label, names, certificates.certified),
    )


def draw_verdicts(
    image: Image, boxes: Floats, label: Ints, names: tuple[str, ...], certified: Bools
) -> PIL.Image.Image:
    """Objects in the colour of their certificate: over (green), only away from the object (orange), none (red).

    Objects without a certificate are often tiny and many, so they go without a caption.
    """
    over = certified[LOCATIONS.index("over")]
    away = certified.any(axis=0) & ~over
    layers = []
    for chosen, colour, dashed in ((~over & ~away, VULNERABLE, True), (away, ORANGE, False), (over, CERTIFIED, False)):
        captions = [names[c] for c in label[chosen]] if colour != VULNERABLE else []
        layers.append(Layer(boxes[chosen], captions, colour=colour, dashed=dashed))
    return annotate(image, layers)


def _matched(truth: Detections, found: Detections) -> Bools:
    """Which objects a box of their label overlaps well."""
    match = (iou(truth.xyxy, found.xyxy) >= FOUND_IOU) & (truth.label[:, None] == found.label[None])
    return np.asarray(match.any(axis=1))


def save(out: Path, verdicts: Verdicts) -> Path:
    """Write the annotated photograph; its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{verdicts.sample.name}.jpg"
    verdicts.picture.save(path, quality=90)
    return path


def save_report(path: Path, results: Sequence[Verdicts], *, lines: int, patch_area: float) -> None:
    """Write the interactive report on the photographs, at the recommended settings."""
    images = [
        ObservedImage(v.sample.name, v.sample.path, v.found.observation, v.sample.truth, v.sample.crowd, v.sample.crowd)
        for v in results
    ]
    write_report(
        path,
        images,
        results[0].names,
        recommended_settings(patch_area),
        base_score=RECOMMENDED.base_score,
        title="objectseeker demo",
        provenance={
            "detector": "embedded",
            "dataset": f"{len(results)} photographs that come with objectseeker (COCO val2017, CC BY 2.0)",
            "lines per axis": str(lines),
        },
        remarks=[
            f"A demonstration: {len(results)} photographs show how things work, they measure nothing. For figures, run "
            "objectseeker observe on a dataset, and then evaluate and report."
        ],
    )


def recommended_settings(patch_area: float) -> Settings:
    """Settings whose rule at RECOMMENDED's base_score is RECOMMENDED itself; scores follow base_score from there."""
    rule = RECOMMENDED
    return Settings(
        alpha=rule.mask_score,
        beta=_follows(rule.mask_score, rule.base_score),
        low_alpha=rule.low_score,
        low_beta=None if rule.low_score is None else _follows(rule.low_score, rule.base_score),
        power=rule.power,
        filter_ioa=rule.filter_ioa,
        edge_factor=rule.edge_factor,
        cluster_distance=rule.cluster_distance,
        patch_area=patch_area,
    )


def _follows(score: float, base_score: float) -> float:
    """The beta with which `score` belongs to `base_score`, a hair less: rounding must not lift it above `score`."""
    return max((score - base_score) / (1 - base_score) - 1e-12, 0.0)
