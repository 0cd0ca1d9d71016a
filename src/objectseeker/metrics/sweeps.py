"""The data of the paper's figures: one row per setting.

A row says which setting it was (k is the number of lines per axis), what it cost (ap50, clean_recall) and what it
brought (certified_far, certified_close, certified_over, certified_anywhere), all in percent. `to_row` returns plain
values, ready for CSV. Where the requested clean recall is not reached, what depends on it is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from objectseeker.core.certification import visible_area
from objectseeker.core.observation import keep_lines
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import undefended_curve, unpruned_curve
from objectseeker.metrics.certified import joint_certificates
from objectseeker.metrics.defended_images import DefendedImageSet, DefendedOutcome, counted, shares
from objectseeker.metrics.image_set import ImageSet, split_images
from objectseeker.metrics.settings import EvaluationSettings

PATCH_AREAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PATCH_ASPECTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
THRESHOLDS = tuple(t / 10 for t in range(10))
FPPI_LEVELS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SIZE_BINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class SweepPoint:
    """One value of what a sweep varies, and what it gave.

    Attributes:
        name: The column of what is varied.
        columns: The columns before those of the outcome.
        outcome: What it gave.
        reference: The columns after those of the outcome.
    """

    name: str
    columns: Mapping[str, Any]
    outcome: DefendedOutcome
    reference: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return float(self.columns[self.name])

    def to_row(self) -> dict[str, Any]:
        return {**self.columns, **self.outcome.to_row(), **self.reference}


def by_clean_recall(image_set: ImageSet, settings: EvaluationSettings, recalls: Iterable[float]) -> list[SweepPoint]:
    """Certified recall against the clean recall it is measured at."""
    tried = {100 * recall: settings.at_clean_recall(recall) for recall in recalls}
    return _on_one_curve(image_set, settings, "asked_clean_recall", tried)


def by_fppi(image_set: ImageSet, settings: EvaluationSettings, most: Iterable[float] = FPPI_LEVELS) -> list[SweepPoint]:
    """Certified recall against false positives per image, and the undefended recall at as many."""
    undefended, steps = undefended_curve(image_set), []
    for step in _on_one_curve(image_set, settings, "asked_fppi", {one: settings.at_fppi(one) for one in most}):
        row = undefended.row_at_fppi(step.value, settings.base_floor)
        recall = None if row is None else float(undefended.clean_recall[row])
        steps.append(replace(step, reference={"undefended_clean_recall": recall}))
    return steps


def by_threshold(
    image_set: ImageSet, settings: EvaluationSettings, thresholds: Iterable[float] = THRESHOLDS
) -> list[SweepPoint]:
    """Certified recall against T, what must stay covered of the object; the detector is the same for all."""
    tried = {t: replace(settings, threat=replace(settings.threat, certification_threshold=t)) for t in thresholds}
    return _on_one_curve(image_set, settings, "certification_threshold", tried)


def mean_over_thresholds(steps: Sequence[SweepPoint]) -> dict[PatchLocation, float | None]:
    """The mean certified recall over the rows of `by_threshold`."""
    certified = [step.outcome.certified_recall() for step in steps]
    means: dict[PatchLocation, float | None] = {}
    for where in PATCH_LOCATIONS:
        known = [share for recall in certified if (share := recall[where]) is not None]
        means[where] = float(np.mean(known)) if known and len(known) == len(certified) else None
    return means


def by_lines(image_set: ImageSet, settings: EvaluationSettings, ks: Iterable[int]) -> list[SweepPoint]:
    """The effect, and with `forward_passes` the cost, of the number of lines per axis.

    The lines are every n-th of the stored ones. They are not those of Halves(k), so no detector can be deployed with
    them: these rows are for looking at the trend.
    """
    steps = []
    for k in ks:
        of_k = with_lines(image_set, k)
        masks = max(len(image.observation.masks) for image in of_k.images)  # an image of few pixels has fewer
        steps.append(SweepPoint("k", {"k": k, "forward_passes": 1 + masks}, measured(of_k, settings)))
    return steps


def by_schedule(
    image_set: ImageSet, settings: EvaluationSettings, name: str, values: Iterable[float]
) -> list[SweepPoint]:
    """The effect of alpha, the lowest mask_threshold, or of beta, how far it rises above base_threshold."""
    tried = [(value, settings.with_schedule(**{name: value})) for value in values]
    floor = min((one.min_mask_score for _, one in tried), default=None)
    defended = DefendedImageSet.from_settings(image_set, settings, floor=floor)
    return [
        SweepPoint(name, {name: value}, defended.at_operating_point(one, defended.curve(one))) for value, one in tried
    ]


def by_filter_ioa(image_set: ImageSet, settings: EvaluationSettings, filter_ioas: Iterable[float]) -> list[SweepPoint]:
    """The effect of how much of a masked box a base box must cover to filter it."""
    return [
        SweepPoint("filter_ioa", {"filter_ioa": ioa}, measured(image_set, settings.with_rule(filter_ioa=ioa)))
        for ioa in filter_ioas
    ]


def by_patch_area(
    image_set: ImageSet, settings: EvaluationSettings, areas: Sequence[float] = PATCH_AREAS, *, ks: Sequence[int] = ()
) -> list[SweepPoint]:
    """Certified recall against patch area, for several numbers of lines (see `by_lines`).

    Of the most lines also the joint certificate: the share of objects guaranteed to remain under any single patch.
    """
    shapes = [(one, settings.threat.aspect) for one in areas]
    steps = []
    for k in ks or (None,):
        jointly = k is None or k == max(ks)
        outcomes = _by_patch(image_set if k is None else with_lines(image_set, k), settings, shapes, jointly=jointly)
        for one, outcome in zip(areas, outcomes, strict=True):
            reference = {"joint_certified_recall": outcome.joint_certified_recall}
            columns = {"patch_area": one} if k is None else {"k": k, "patch_area": one}
            steps.append(SweepPoint("patch_area", columns, outcome, reference))
    return steps


def by_patch_aspect(
    image_set: ImageSet, settings: EvaluationSettings, aspects: Sequence[float] = PATCH_ASPECTS
) -> list[SweepPoint]:
    """Certified recall against the patch's width divided by its height, at equal area."""
    outcomes = _by_patch(image_set, settings, [(settings.threat.area, aspect) for aspect in aspects])
    return [
        SweepPoint("patch_aspect", {"patch_aspect": aspect}, outcome)
        for aspect, outcome in zip(aspects, outcomes, strict=True)
    ]


def by_object_size(
    image_set: ImageSet, settings: EvaluationSettings, bins: Sequence[float] = SIZE_BINS
) -> list[dict[str, Any]]:
    """Certified recall and number of objects by object size, the visible share of the image.

    An object is in the row that its share is greater than `from` of, and at most `to`.
    """
    if len(bins) < 2 or list(bins) != sorted(set(bins)):
        raise ObjectSeekerError(f"size bins must be at least two ascending limits: got {list(bins)}")
    defended = DefendedImageSet.from_settings(image_set, settings)
    rule = defended.at_operating_point(settings, defended.curve(settings)).rule
    verdicts = None if rule is None else defended.certified(rule, settings.threat)
    image = image_set.ground_truth.image[image_set.counted]
    width, height = image_set.width[image], image_set.height[image]
    share = visible_area(image_set.ground_truth.detections.xyxy[image_set.counted], width, height) / (width * height)
    rows = []
    for low, high in pairwise(bins):
        mine = (share > low) & (share <= high)
        objects, certified, vacuous = int(mine.sum()), dict.fromkeys(PATCH_LOCATIONS), None
        if verdicts is not None:
            certified = shares(verdicts[0][:, mine].sum(axis=1), objects)
            vacuous = int(verdicts[1][PATCH_LOCATIONS.index("far"), mine].sum())
        rows.append(
            {"from": low, "to": high, "objects": objects, "objects_share": 100 * float(mine.mean())}
            | {f"certified_{where}": certified[where] for where in PATCH_LOCATIONS}
            | {"vacuous_far": vacuous}
        )
    return rows


def by_split(image_set: ImageSet, settings: EvaluationSettings, *, seed: int = 0) -> list[SweepPoint]:
    """The same measurement on two disjoint random halves of the images: the difference is chance."""
    steps = []
    for number, part in enumerate(map(image_set.subset, split_images(len(image_set.images), 2, seed))):
        columns = {"split": number, "images": len(part.images), "objects": len(part.counted)}
        undefended = {"undefended_ap50": undefended_curve(part).mean_ap50}
        steps.append(SweepPoint("split", columns | undefended, measured(part, settings)))
    return steps


def precision_recall(image_set: ImageSet, settings: EvaluationSettings) -> list[dict[str, Any]]:
    """Precision and recall over all boxes at every base_threshold: undefended, defended, without pruning."""
    rows = []
    for detector, curve in (
        ("undefended", undefended_curve(image_set)),
        ("defended", DefendedImageSet.from_settings(image_set, settings).curve(settings)),
        ("without pruning", unpruned_curve(image_set, settings)),
    ):
        right, boxes = curve.true_positives.sum(axis=1), (curve.true_positives + curve.false_positives).sum(axis=1)
        rows += [
            {
                "detector": detector,
                "base_threshold": float(curve.base_thresholds[i]),
                "precision": 100 * float(right[i] / boxes[i]) if boxes[i] else None,
                "recall": 100 * float(right[i] / len(image_set.counted)),
                "clean_recall": float(curve.clean_recall[i]),
            }
            for i in range(len(curve.base_thresholds))
        ]
    return rows


def measured(image_set: ImageSet, settings: EvaluationSettings) -> DefendedOutcome:
    defended = DefendedImageSet.from_settings(image_set, settings)
    return defended.at_operating_point(settings, defended.curve(settings))


def with_lines(image_set: ImageSet, k: int) -> ImageSet:
    """The image_set as observed under `k` of the stored lines per axis."""
    images = [replace(image, observation=keep_lines(image.observation, k)) for image in image_set.images]
    return ImageSet.from_images(images, image_set.label_map)


def _on_one_curve(
    image_set: ImageSet, settings: EvaluationSettings, name: str, tried: Mapping[float, EvaluationSettings]
) -> list[SweepPoint]:
    """Measure settings that differ only in their operating point and threat."""
    defended = DefendedImageSet.from_settings(image_set, settings)
    curve = defended.curve(settings)
    return [SweepPoint(name, {name: value}, defended.at_operating_point(one, curve)) for value, one in tried.items()]


def _by_patch(
    image_set: ImageSet, settings: EvaluationSettings, shapes: Sequence[tuple[float, float]], *, jointly: bool = False
) -> list[DefendedOutcome]:
    """One operating point, many patches (area, aspect), all certified in one go."""
    defended, threat = DefendedImageSet.from_settings(image_set, settings), settings.threat
    outcome = defended.at_operating_point(settings, defended.curve(settings))
    rule = outcome.rule
    if rule is None:
        return [outcome] * len(shapes)
    patches = [Patch(one, aspect, where, threat.count) for one, aspect in shapes for where in PATCH_LOCATIONS]
    certified, vacuous = (counted(image_set, verdicts) for verdicts in defended.certified(rule, threat, patches))
    each = [slice(i, i + len(PATCH_LOCATIONS)) for i in range(0, len(patches), len(PATCH_LOCATIONS))]
    outcomes = [replace(outcome, certified=certified[i], vacuous=vacuous[i]) for i in each]
    if jointly and threat.count == 1:
        anywhere = [Patch(one, aspect, "anywhere") for one, aspect in shapes]
        found = joint_certificates(
            defended.proofs, rule, anywhere, certification_threshold=threat.certification_threshold
        )
        counts = [sum(image.count for image in of_patch) for of_patch in found]
        outcomes = [replace(one, remaining=count) for one, count in zip(outcomes, counts, strict=True)]
    return outcomes
