"""A run and a run of the same images under attack: what is lost, and what certificates hold.

Objects and their certificates are those of the clean run, boxes those of either: the ground truth of the attacked run
is not used. Images are matched by id, else by file name.

A certificate is a statement about single images, so it is checked image by image. `certified and lost` counts objects
that are certified on the clean image and that no output box finds on the attacked one, where the attacked image is one
that the certificate covers: the pixels that differ fit into one patch of the threat at an allowed position. It must
be 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa, iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import Patch, PatchPositions, ThreatModel, patch_sizes
from objectseeker.datasets.dataset import IndexedSequence
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.metrics import metric
from objectseeker.metrics.average_precision import MIN_IOU
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.evaluation import (
    ROWS,
    Evaluation,
    evaluate_images,
    evaluation_metrics,
    interval_cell,
    settings_for,
)
from objectseeker.metrics.image_set import OnImage
from objectseeker.metrics.metric import difference_interval
from objectseeker.metrics.tally import MAX_TALLIED_IMAGES
from objectseeker.runs.run import Run
from objectseeker.text import to_html

SYSTEMS = ("undefended", "defended")
UNDER_ATTACK = {  # metrics of both runs, and their names under attack
    "ap50": "AP50",
    "output_ap50": "AP50 of output boxes",
    "ranked_ap50": "AP50 by certified score",
    "clean_recall": "recall",
    "fppi": "FPPI",
}


@dataclass(frozen=True, slots=True, eq=False)
class AttackedEvaluation:
    """A defense on clean images and on the same images under attack.

    Attributes:
        clean: The metrics of the clean images.
        attacked: Those of the attacked ones, by the same rule.
        fabricated: Per system the boxes per image that match no object and that the clean image does not have.
        certified: Per location the objects that are certified against the patch that was drawn,
        lost: and those of them that were lost.
        outside_threat: Images whose changed pixels fit into no patch of the threat.
        differences: Metrics of the attacked images minus those of the clean ones, with paired intervals.
    """

    clean: Evaluation
    attacked: Evaluation
    fabricated: Mapping[str, ConfidenceInterval]
    certified: Mapping[str, int]
    lost: Mapping[str, int]
    outside_threat: int
    differences: Mapping[str, ConfidenceInterval]

    def rows(self) -> list[dict[str, str]]:
        """Return a table: one row per metric, clean and under attack, undefended and defended."""
        sides = {"": self.clean.intervals, ", attacked": self.attacked.intervals}
        columns = {f"{system}{side}": (system, of) for system in SYSTEMS for side, of in sides.items()}
        rows = [
            {"": name}
            | {column: interval_cell(key, of.get(f"{system}.{key}")) for column, (system, of) in columns.items()}
            for key, name in UNDER_ATTACK.items()
        ]
        fabricated = {f"{system}, attacked": interval_cell("fppi", one) for system, one in self.fabricated.items()}
        rows.append(dict.fromkeys(rows[0], "") | {"": "fabricated boxes per image"} | fabricated)
        for label, key in ROWS.items():
            known = self.clean.intervals.get(f"defended.{key}")
            if key.startswith("certified_recall.") and known is not None:
                rows.append(dict.fromkeys(rows[0], "") | {"": label, "defended": interval_cell(key, known)})
        return rows

    def sentences(self) -> list[str]:
        """Say what was lost, and which images the certificates cover."""
        images = self.clean.images
        lines = [
            f"certified and lost: {sum(self.lost.values())} of {sum(self.certified.values())} "
            f"({', '.join(f'{location} {count}' for location, count in self.certified.items())})"
        ]
        if self.outside_threat:
            lines.append(
                f"in {self.outside_threat} of {images} images other pixels differ than one patch of the threat covers: "
                "the certificates do not cover them"
            )
        return lines

    def _repr_html_(self) -> str:
        return to_html(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {
            "images": self.clean.images,
            "clean": self.clean.to_dict(),
            "attacked": self.attacked.to_dict(),
            "fabricated_per_image": {system: one.to_dict() for system, one in self.fabricated.items()},
            "differences": {name: one.to_dict() for name, one in self.differences.items()},
            "certified_under_attack": dict(self.certified),
            "certified_and_lost": dict(self.lost),
            "outside_threat": self.outside_threat,
        }


def evaluate_attacked(
    run: Run,
    attacked: Run,
    defense: Defense | None = None,
    *,
    threat: ThreatModel | None = None,
    intervals: bool = True,
    on_image: OnImage = lambda: None,
    **operating_point: Any,
) -> AttackedEvaluation:
    """Measure a defense on clean images and on the same images under attack.

    The operating point is found on the clean images; the attacked ones are measured with the same rule.

    Args:
        run: The clean images.
        attacked: The same images, or some of them, attacked; observed with the same detector and masks.
        defense: The defense to measure. Default: the run's own.
        threat: The patch to certify against. Default: one square patch of 1 % of the image.
        intervals: Whether to compute confidence intervals, differences and fabricated boxes.
        on_image: Called whenever an image is done.
        operating_point: clean_recall, base_threshold or fppi, on the clean images, as in `evaluate`.

    Raises:
        ObjectSeekerError: An attacked image has no clean one, or the runs have different detectors or masks.
    """
    defense = run.bind_defense(run.defense() if defense is None else defense)
    attacked.bind_defense(defense)
    model = ThreatModel() if threat is None else threat
    pairs = match_images(run, attacked)
    if len(pairs) > MAX_TALLIED_IMAGES:
        raise ObjectSeekerError(
            f"at most {MAX_TALLIED_IMAGES:,} attacked images are measured: got {len(pairs):,}. Attack fewer."
        )
    clean_images, attacked_images = (
        ImagePairs(run.images(), attacked.images(), pairs, of_attacked=each) for each in (False, True)
    )
    options: dict[str, Any] = {"fabrication": True, "intervals": intervals, "on_image": on_image}
    settings = settings_for(run, defense, threat=model, **operating_point)
    clean = evaluate_images(clean_images, run.label_map, settings, defense=defense, **options)
    if clean.defended.rule is None or clean.deployed is None:
        raise ObjectSeekerError(clean.defended.caveat() or "the clean images have no such operating point")
    settings = settings_for(run, clean.deployed, threat=model)
    under_attack = evaluate_images(attacked_images, run.label_map, settings, defense=clean.deployed, **options)
    counts, certified, lost, outside_threat = _compare_images(clean_images, attacked_images, run.label_map, clean)
    if not intervals:
        return AttackedEvaluation(clean, under_attack, {}, certified, lost, outside_threat, {})
    known, compared = evaluation_metrics(clean), evaluation_metrics(under_attack)
    differences = {
        f"{system}.{key}": difference_interval(
            (compared[f"{system}.{key}"], under_attack.tally), (known[f"{system}.{key}"], clean.tally)
        )
        for system in SYSTEMS
        for key in UNDER_ATTACK
        if f"{system}.{key}" in known
    }
    fabricated = {
        system: metric.boxes_per_image(partial(lambda counts, _: counts, of_system)).interval(under_attack.tally)
        for system, of_system in counts.items()
    }
    return AttackedEvaluation(clean, under_attack, fabricated, certified, lost, outside_threat, differences)


def match_images(run: Run, attacked: Run) -> list[tuple[int, int]]:
    """Return the positions of each clean image and its attacked image, in the clean run's order."""
    entries, others = (
        [(one.manifest.images[index].id, Path(str(one.manifest.images[index].path)).stem) for index in one.indices]
        for one in (run, attacked)
    )
    by_id = {key: n for n, (key, _) in enumerate(entries)}
    stems = [stem for _, stem in entries]
    by_stem = {stem: n for n, stem in enumerate(stems) if stems.count(stem) == 1}
    pairs: dict[int, int] = {}
    for position, (key, stem) in enumerate(others):
        n = by_id.get(key, by_stem.get(stem))
        if n is None:
            raise ObjectSeekerError(
                f"{attacked.folder} has the image {key!r}, {run.folder} has none of that id or file name: observe the "
                "clean images of the attacked ones"
            )
        if n in pairs:
            raise ObjectSeekerError(f"{attacked.folder} has the image {key!r} twice. Give one attacked image of each.")
        pairs[n] = position
    return sorted(pairs.items())


class ImagePairs(IndexedSequence[ObservedImage]):
    """The clean or the attacked images of two runs, with the clean run's objects."""

    def __init__(
        self,
        clean: Sequence[ObservedImage],
        attacked: Sequence[ObservedImage],
        pairs: Sequence[tuple[int, int]],
        *,
        of_attacked: bool,
    ) -> None:
        self._images, self._pairs, self._of_attacked = (clean, attacked), pairs, of_attacked

    def __len__(self) -> int:
        return len(self._pairs)

    def _item(self, position: int) -> ObservedImage:
        n, other = self._pairs[position]
        clean = self._images[0][n]
        if not self._of_attacked:
            return clean
        attacked = self._images[1][other]
        sizes = [(one.observation.width, one.observation.height) for one in (clean, attacked)]
        if sizes[0] != sizes[1]:
            raise ObjectSeekerError(
                f"the attacked image of {clean.id!r} must have its size {sizes[0][0]} x {sizes[0][1]}: "
                f"got {sizes[1][0]} x {sizes[1][1]}"
            )
        return replace(clean, path=attacked.path, observation=attacked.observation)


def _compare_images(
    clean_images: Sequence[ObservedImage],
    attacked_images: Sequence[ObservedImage],
    label_map: LabelMap,
    clean: Evaluation,
) -> tuple[dict[str, Ints], dict[str, int], dict[str, int], int]:
    """Return fabricated boxes per image, certified and lost objects, and images that no patch explains."""
    rule, tally, threat = clean.defended.rule, clean.tally, clean.settings.threat
    assert rule is not None  # `evaluate_attacked` rejects the others
    threshold = rule.resolve_threshold(threat.certification_threshold)
    measure = iou if rule.overlap == "iou" else ioa
    fabricated: dict[str, list[int]] = {system: [] for system in SYSTEMS}
    certified: dict[str, int] = dict.fromkeys(threat.locations, 0)
    lost: dict[str, int] = dict.fromkeys(threat.locations, 0)
    outside = 0
    for n, (before, after) in enumerate(zip(clean_images, attacked_images, strict=True)):
        outputs = [
            {
                "undefended": one.observation.base.with_min_score(rule.base_threshold),
                "defended": rule.prune(one.observation),
            }
            for one in (before, after)
        ]
        for system in SYSTEMS:
            fabricated[system].append(count_fabricated(outputs[1][system], outputs[0][system], before, label_map))
        objects = tally.objects.select(tally.objects.image == n)
        boxes, labels = objects.box, objects.label
        output = outputs[1]["defended"]
        finds = measure(boxes, output.xyxy) > threshold
        if rule.classwise:
            finds &= label_map.dataset_labels[output.label][None] == labels[:, None]
        found = finds.any(axis=1)
        changed = changed_rectangle(load_image(before.path), load_image(after.path))
        size = before.observation.width, before.observation.height
        explained = False
        for row, patch in enumerate(threat.at_all_locations(has_windows=False).patches()):
            fits = patch_explains(changed, patch, boxes, *size)
            holds = objects.certified[threat][:, row] & fits
            certified[patch.location] += int(holds.sum())
            lost[patch.location] += int((holds & ~found).sum())
            explained |= bool(fits.any())
        outside += not explained and len(boxes) > 0
    counts = {system: np.array(numbers, np.int64) for system, numbers in fabricated.items()}
    return counts, certified, lost, outside


def count_fabricated(boxes: Detections, clean: Detections, image: ObservedImage, label_map: LabelMap) -> int:
    """Count boxes that fit no object of their class, ignored ones included, and no box of the clean image."""
    known = (iou(boxes.xyxy, clean.xyxy) >= MIN_IOU) & (boxes.label[:, None] == clean.label[None])
    fits = iou(boxes.xyxy, image.ground_truth.xyxy) >= MIN_IOU
    fits &= label_map.dataset_labels[boxes.label][:, None] == image.ground_truth.label[None]
    return int(np.count_nonzero(~(known.any(axis=1) | fits.any(axis=1))))


def changed_rectangle(clean: Image, attacked: Image) -> Ints | None:
    """Return the smallest rectangle with all pixels that differ, None if none does."""
    ys, xs = np.nonzero((clean != attacked).any(axis=2))
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) if len(xs) else None


def patch_explains(rectangle: Ints | None, patch: Patch, boxes: Floats, width: int, height: int) -> Bools:
    """Return for which objects the changed pixels fit into a patch at a position that the threat allows.

    An equal image is one with any patch; but a vacuous certificate, of an object that no position is allowed for, is
    about no image. Patches anywhere outside an object are not counted: the result is then False.
    """
    if patch.owns_outside:
        return np.zeros(len(boxes), np.bool_)
    sizes = patch_sizes(patch, width, height, len(boxes))
    allowed = PatchPositions.of(boxes, width, height).allowed(patch.location, sizes)  # (N, R, 4)
    first, last = allowed[..., :2], allowed[..., 2:]
    if rectangle is not None:
        first, last = np.maximum(first, (rectangle[2:] - sizes)[:, None]), np.minimum(last, rectangle[:2])
    return np.asarray((first <= last).all(axis=-1).any(axis=-1))
