"""Every metric, defined once: a function of a `Tally` and of weights over its images.

| metric | definition |
|---|---|
| `certified_recall(threat, location)` | certified objects / objects, in percent |
| `joint_certified_recall(threat)` | objects guaranteed to remain under any single patch / objects, in percent |
| `guaranteed_boxes(threat)` | output boxes that cover these at least / images |
| `clean_recall` | mean over classes of detected objects / objects, in percent |
| `fppi` | false positives / images |
| `false_alert_rate` | images to whose base boxes masks add a box / images, in percent |
| `ap50`, `undefended_ap50` | AP at IoU 0.5 by the paper's protocol, mean over classes, in percent |
| `ap50_loss` | `undefended_ap50` - `ap50`, in points |
| `boxes_per_image(counts)` | boxes that were counted image by image / images |
| `spurious_per_image` | boxes that masks add to clean images and that overlap no object of their class / images |
| `certified_true_positives(threat, location)` | true positives certified not fabricated / true positives, in percent |
| `certified_false_positives(threat, location)` | the same of false positives |
| `output_ap50`, `ranked_ap50` | AP at IoU 0.5 of the output boxes, by score and by certified score, in percent |
| `undefended_clean_recall(row)`, `undefended_fppi(row)` | the undefended detector at one base threshold of its curve |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.threats import PatchLocation, ThreatModel
from objectseeker.metrics.average_precision import macro_mean, percent, ratio
from objectseeker.metrics.confidence_intervals import ConfidenceInterval, bootstrap_interval, exact_interval
from objectseeker.metrics.output_boxes import FALSE_POSITIVE, TRUE_POSITIVE, BoxRows
from objectseeker.metrics.tally import Detector, Tally

SAMPLES = 2000  # of the bootstrap
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run: its values for samples of the images, and what bounds it.

    Attributes:
        values: Maps a tally and weights (samples, images) to one value per sample, NaN where it is undefined.
        upper: The largest possible value for the images of a tally.
        lower: The smallest possible value.
        needs_objects: Images without objects have no part in it.
        trials: For a share of images that each succeed or fail: successes and trials, for an exact interval.
        with_unseen: Maps a tally, a share of all images that is unlike the tally's, and how many boxes each of these
            has at most, to the worst value of all images. None where nothing bounds it.
    """

    values: Callable[[Tally, Floats], Floats]
    upper: Callable[[Tally], float] = lambda _: 100.0
    lower: float = 0.0
    needs_objects: bool = False
    trials: Callable[[Tally], tuple[int, int]] | None = None
    with_unseen: Callable[[Tally, float, int], float] | None = None

    def value(self, tally: Tally) -> float:
        """Return the metric of all images; NaN if it is undefined."""
        if not len(tally.ids):
            return float("nan")
        return float(self.values(tally, np.ones((1, len(tally.ids))))[0])

    def interval(
        self, tally: Tally, *, confidence: float = CONFIDENCE, samples: int = SAMPLES, seed: int = 0
    ) -> ConfidenceInterval:
        """Return the metric with its two-sided confidence interval over images."""
        tally = tally.of_images_with_objects() if self.needs_objects else tally
        if self.trials is not None:
            return exact_interval(*self.trials(tally), confidence)
        return bootstrap_interval(
            lambda weights: self.values(tally, weights),
            len(tally.ids),
            confidence=confidence,
            samples=samples,
            seed=seed,
            bounds=(self.lower, self.upper(tally)),
        )


def difference_interval(
    first: tuple[Metric, Tally],
    second: tuple[Metric, Tally],
    *,
    confidence: float = CONFIDENCE,
    samples: int = SAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Return the difference of two metrics of the same images, with a paired interval.

    What the images contribute to both cancels out. The tallies must have the same images in the same order.
    """
    one, other = first[0], second[0]
    tallies = [first[1], second[1]]
    if one.needs_objects:
        tallies = [tally.of_images_with_objects() for tally in tallies]
    span = max(each.upper(tally) - each.lower for each, tally in zip((one, other), tallies, strict=True))
    return bootstrap_interval(
        lambda weights: one.values(tallies[0], weights) - other.values(tallies[1], weights),
        len(tallies[0].ids),
        confidence=confidence,
        samples=samples,
        seed=seed,
        bounds=(-span, span),
    )


def with_unseen_objects(value: float, per_image: float, share: float, boxes: int) -> float:
    """Return a share of objects after some images are replaced by ones with `boxes` failed objects.

    Args:
        value: The share of the objects of the images at hand that succeed.
        per_image: How many objects these images have on average.
        share: Of all images, those that are unlike them.
        boxes: How many objects each of those has.

    Example:
        >>> with_unseen_objects(90.0, per_image=2, share=0.01, boxes=60)
        69.06976744186046
    """
    seen = (1 - share) * per_image
    return value * seen / (seen + share * boxes)


Counts = Callable[[Tally], Floats | Ints]  # per image


def _share(part: Counts, whole: Counts, *, unseen: float = 0.0, needs_objects: bool = False) -> Metric:
    """Return the share of a whole; in unseen images it is `unseen`, 0 or 100: whichever is worse."""

    def values(tally: Tally, weights: Floats) -> Floats:
        return percent(weights @ part(tally), weights @ whole(tally))

    def worst(tally: Tally, share: float, boxes: int) -> float:
        images = len(tally.ids)
        value = float(values(tally, np.ones((1, images)))[0])
        per_image = float(whole(tally).sum()) / images
        return abs(unseen - with_unseen_objects(abs(unseen - value), per_image, share, boxes))

    return Metric(values, needs_objects=needs_objects, with_unseen=worst)


def boxes_per_image(counts: Counts, **bounds: Any) -> Metric:
    """Boxes that are counted image by image, per image."""
    return Metric(
        lambda tally, weights: ratio(weights @ counts(tally), weights @ tally.images.count),
        upper=lambda tally: max(float(counts(tally).max(initial=0)), 1.0),
        **bounds,
    )


def certified_recall(threat: ThreatModel, location: PatchLocation) -> Metric:
    """Of all objects, those that no patch at this location can hide."""

    def part(tally: Tally) -> Floats:
        return tally.objects.per_image(len(tally.ids), tally.objects.certified_at(threat, location))

    return _share(part, Tally.objects_per_image, needs_objects=True)


def joint_certified_recall(threat: ThreatModel) -> Metric:
    """Return the share of objects guaranteed to remain under any single patch, by joint certificates."""
    return _share(lambda tally: tally.images.guaranteed[threat], Tally.objects_per_image, needs_objects=True)


def guaranteed_boxes(threat: ThreatModel) -> Metric:
    """Of all boxes, those that cover at least the objects that are guaranteed to remain, per image."""
    return boxes_per_image(lambda tally: tally.images.guaranteed_boxes[threat])


def _clean_recall(tally: Tally, weights: Floats) -> Floats:
    counts = [tally.objects_per_class(holds) for holds in (None, tally.objects.found)]
    objects, found = (weights @ each[:, counts[0].any(axis=0)] for each in counts)
    return macro_mean(percent(found, objects), objects)


def _clean_recall_with_unseen(tally: Tally, share: float, boxes: int) -> float:
    """Give the unseen images the objects of those classes that lower the mean over classes most.

    A class with recall r and m objects per image drops to r·m / (m + x) if x further objects per image fail. The
    loss is concave in x, so the worst division of the objects has equal slopes r·m / (m + x)² wherever x > 0; the
    slope is found by bisection, and its lower end divides at least as many objects as there are.
    """
    objects, found = (tally.objects_per_class(holds).sum(axis=0) for holds in (None, tally.objects.found))
    there = objects > 0
    mean = (1 - share) * objects[there] / len(tally.ids)
    recall = 100 * found[there] / objects[there]

    def added(slope: float) -> Floats:
        return np.asarray(np.maximum(np.sqrt(recall * mean / slope) - mean, 0.0))

    low, high = 0.0, float((recall / mean).max())
    for _ in range(100 if high > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if added(middle).sum() >= share * boxes else (low, middle)
    return float((recall * mean / (mean + added(low))).mean()) if low > 0 else 0.0


def _ap50(detector: Detector) -> Metric:
    return Metric(
        lambda tally, weights: np.concatenate([one.ap50_of_samples() for one in tally.curves(detector, weights)])
    )


clean_recall = Metric(_clean_recall, needs_objects=True, with_unseen=_clean_recall_with_unseen)
fppi = boxes_per_image(
    lambda tally: tally.images.false_positives,
    with_unseen=lambda tally, share, boxes: (1 - share) * float(tally.images.false_positives.mean()) + share * boxes,
)
spurious_per_image = boxes_per_image(lambda tally: tally.images.spurious)
false_alert_rate = Metric(
    lambda tally, weights: percent(weights @ tally.images.flagged, weights @ tally.images.count),
    trials=lambda tally: (int(tally.images.flagged.sum()), int(tally.images.count.sum())),
)
ap50, undefended_ap50 = _ap50("defended"), _ap50("undefended")
ap50_loss = Metric(
    lambda tally, weights: undefended_ap50.values(tally, weights) - ap50.values(tally, weights), lower=-100.0
)


def certified_true_positives(threat: ThreatModel, location: PatchLocation) -> Metric:
    """Of the output boxes that match an object, those that no patch at this location can have made."""
    return _certified_boxes(threat, location, TRUE_POSITIVE, unseen=0.0)


def certified_false_positives(threat: ThreatModel, location: PatchLocation) -> Metric:
    """Of the output boxes that match no object, those that no patch at this location can have made."""
    return _certified_boxes(threat, location, FALSE_POSITIVE, unseen=100.0)


def _certified_boxes(threat: ThreatModel, location: PatchLocation, outcome: int, *, unseen: float) -> Metric:
    def count(tally: Tally, *, certified: bool) -> Floats:
        boxes = _boxes(tally)
        chosen = boxes.outcome == outcome
        return boxes.per_image(len(tally.ids), chosen & boxes.certified_at(threat, location) if certified else chosen)

    return _share(partial(count, certified=True), partial(count, certified=False), unseen=unseen)


def _boxes(tally: Tally) -> BoxRows:
    assert tally.boxes is not None  # fabrication certificates were requested
    return tally.boxes


def _output_ap50(*, ranked: bool) -> Metric:
    return Metric(
        lambda tally, weights: _boxes(tally).ap50(weights @ tally.objects_per_class(), weights, ranked=ranked)
    )


output_ap50, ranked_ap50 = _output_ap50(ranked=False), _output_ap50(ranked=True)


def undefended_clean_recall(row: int) -> Metric:
    """The clean recall of the undefended detector at one base threshold of its curve."""
    return Metric(
        lambda tally, weights: np.concatenate(
            [curve.clean_recall[0] for curve in tally.curves("undefended", weights, row)]
        )
    )


def undefended_fppi(row: int) -> Metric:
    """The FPPI of the undefended detector at one base threshold of its curve."""

    def wrong(tally: Tally) -> Floats:
        assert tally.undefended is not None  # curves were requested
        rows = tally.undefended.at_row(row)
        return np.asarray(np.bincount(rows.image, rows.false_positives, len(tally.ids)), np.float64)

    return boxes_per_image(wrong)
