"""The certificates of a run, object by object.

Without annotations the objects are the output boxes of the defended detector: what would remain of each under an attack
on the unmodified image. That is not a recall. An image that is already attacked may hide objects that are not among
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import has_windows
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation, ThreatModel
from objectseeker.defense import Defense
from objectseeker.metrics.image_set import with_objects
from objectseeker.runs.run import Run

ObjectSource = Literal["labeled", "output"]  # by the dataset, or by the defended detector

SAFE_LINE_COLUMNS = ("safe_left", "safe_top", "safe_right", "safe_bottom")
ATTACKED_ALREADY = "an image that is already attacked may hide objects that are not among its boxes"


@dataclass(frozen=True, slots=True)
class ObjectCertificate:
    """One object of one image and its certificates.

    It is certified if it is certified as one of the detector's classes that map to its own; `certified_as` says as
    which. `safe_lines` and `largest_square` (see `Certificates`) are those of the class that stands up to most,
    `detector_class`; it is None where the detector knows no such class. An object that the defended detector outputs
    has the detector's class and its `score`.
    """

    image: str
    number: int  # within the image
    class_name: str
    box: tuple[float, ...]
    ignored: bool
    certified_as: Mapping[PatchLocation, str | None]
    vacuous_far: bool
    detector_class: str | None
    largest_square: int
    safe_lines: tuple[int, ...]
    object_source: ObjectSource = "labeled"
    score: float | None = None

    @property
    def certified(self) -> dict[PatchLocation, bool]:
        return {where: name is not None for where, name in self.certified_as.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "image": self.image,
            "object": self.number,
            "object_source": self.object_source,
            "class": self.class_name,
            "box": list(self.box),
            "score": self.score,
            "ignored": self.ignored,
            **{str(where): holds for where, holds in self.certified.items()},
            "vacuous_far": self.vacuous_far,
            "largest_square": self.largest_square,
            "safe_lines": list(self.safe_lines),
            "detector_class": self.detector_class,
            "certified_as": dict(self.certified_as),
        }

    def to_csv_row(self) -> dict[str, str]:
        """The same as a row of a table: one column for every number."""
        values = self.to_dict()
        box, lines, certified_as = values.pop("box"), values.pop("safe_lines"), values.pop("certified_as")
        values |= dict(zip(("x1", "y1", "x2", "y2"), box, strict=True))
        values |= dict(zip(SAFE_LINE_COLUMNS, lines, strict=True))
        values |= {f"{where}_certified_as": name for where, name in certified_as.items()}
        return {key: "" if value is None else str(value) for key, value in values.items()}


def certify_images(
    images: Iterable[ObservedImage], label_map: LabelMap, rule: PruningRule, threat: ThreatModel
) -> Iterator[list[ObjectCertificate]]:
    """For every image, one row per object: its verdicts, safe lines and largest certified square.

    Args:
        images: The observations.
        label_map: Maps the detector's labels to those of the dataset.
        rule: The rule that is deployed.
        threat: What to certify against.

    Returns:
        An iterator over the certificates of each image.

    Raises:
        ObjectSeekerError: The certification threshold or a patch is invalid.

    Example:
        >>> rows = next(certify_images(run.images(), run.label_map, defense.rule, ThreatModel()))  # doctest: +SKIP
    """
    for image in images:
        targets, object_of = label_map.map_to_detector(image.ground_truth, classwise=rule.classwise)
        yield _rows(image, label_map, targets, object_of, rule, threat)


def certify_run(
    run: Run, defense: Defense, threat: ThreatModel, *, on_image: Callable[[], None] = lambda: None
) -> list[ObjectCertificate]:
    """Certify every object of a run; without annotations every box that the defended detector outputs.

    Args:
        run: What `open_run` returned.
        defense: The defense, bound to the run's detector and masks.
        threat: What to certify against.
        on_image: Called whenever an image is done.
    """
    certify = certify_images if run.has_labels else certify_output_boxes
    threat = threat.at_all_locations(has_windows(defense.masks))
    rows: list[ObjectCertificate] = []
    for of_image in certify(run.images(), run.label_map, defense.rule, threat):
        rows += of_image
        on_image()
    return rows


def certify_output_boxes(
    images: Iterable[ObservedImage], label_map: LabelMap, rule: PruningRule, threat: ThreatModel
) -> Iterator[list[ObjectCertificate]]:
    """Certify images without annotations: one row per output box of the defended detector."""
    for image in (with_outputs_as_objects(one, rule) for one in images):
        rows = _rows(image, label_map, image.ground_truth, np.arange(len(image.ground_truth)), rule, threat)
        scores = image.ground_truth.score.tolist()
        yield [replace(row, object_source="output", score=score) for row, score in zip(rows, scores, strict=True)]


def with_outputs_as_objects(image: ObservedImage, rule: PruningRule) -> ObservedImage:
    """Return the image with the defended detector's output boxes as objects, in the detector's labels."""
    return with_objects(image, rule.prune(image.observation))


def _rows(
    image: ObservedImage,
    label_map: LabelMap,
    targets: Detections,
    object_of: Ints,
    rule: PruningRule,
    threat: ThreatModel,
) -> list[ObjectCertificate]:
    """Certify objects; `targets` have the detector's labels, and `object_of`, ascending, their objects."""
    observation = image.observation
    threshold = rule.resolve_threshold(threat.certification_threshold)
    proven = rule.certify(observation, targets, threat.patches(), certification_threshold=threshold, bound=threat.bound)
    far = PATCH_LOCATIONS.index("far")
    nothing_safe = (0, 0, observation.width, observation.height)
    first = np.searchsorted(object_of, np.arange(len(image.ground_truth) + 1)).tolist()

    def name_of(target: int) -> str:
        label = int(targets.label[target])  # -1 where labels are ignored and none maps to the class
        return name_of_label(label_map.detector_names, label) if label >= 0 else "any class"

    def row_of(n: int) -> ObjectCertificate:
        mine = range(first[n], first[n + 1])
        ranked = sorted(mine, key=lambda t: (-proven.largest_square[t], -proven.certified[:, t].sum()))
        best = ranked[0] if ranked else None
        certified_as = {
            where: next((name_of(t) for t in ranked if proven.certified[p, t]), None)
            for p, where in enumerate(threat.locations)
        }
        return ObjectCertificate(
            image=image.id,
            number=n,
            class_name=name_of_label(label_map.dataset_names, int(image.ground_truth.label[n])),
            box=tuple(image.ground_truth.xyxy[n].tolist()),
            ignored=bool(image.ignore[n]),
            certified_as=certified_as,
            vacuous_far=bool(proven.vacuous[far, first[n] : first[n + 1]].any()),
            detector_class=None if best is None else name_of(best),
            largest_square=0 if best is None else int(proven.largest_square[best]),
            safe_lines=nothing_safe if best is None else tuple(proven.safe_lines[best].tolist()),
        )

    return [row_of(n) for n in range(len(image.ground_truth))]


def name_of_label(names: tuple[str, ...], label: int) -> str:
    """A detector without class names may use any label: its number is its name."""
    return names[label] if label < len(names) else str(label)
