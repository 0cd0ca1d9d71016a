"""AP, clean recall and certified recall of many samples of the images at once: what confidence intervals are made of.

A sample is one row of weights: how often each image is in it. Everything is counted image by image first, so a sample
costs a few sums, and every figure of a sample is what the full protocol gives on it: the base_threshold at which a
clean
recall is reached is found anew for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectseeker.core.boxes import Detections, Floats, Ints, row_blocks
from objectseeker.core.label_map import LabelMap
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import envelope_area
from objectseeker.metrics.curves import RECALL_ROUNDING, defended_curve
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.matching import candidate_pairs
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings

NO_ROW = -1  # instead of the row of a base_threshold
MOST_SAMPLES = 10_000  # an interval is no better for more, and all of them go into files


def resamples(images: int, count: int, seed: int) -> Floats:
    """The images as they are, then `count` samples of as many images, drawn with replacement: one row of weights each.

    Equal arguments give equal samples, so two detectors on the same images are compared image by image.
    """
    require_samples(count)
    drawn = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=count)
    return np.concatenate([np.ones((1, images)), drawn])


def require_samples(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_SAMPLES:
        raise ObjectSeekerError(f"bootstrap samples must be a number from 0 to {MOST_SAMPLES}, got {count!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """One detector at one base_threshold per row, counted image by image. Results have one entry per sample."""

    base_thresholds: Floats
    objects: Floats  # (images, classes)
    right: Floats  # (images, rows, classes): objects found
    wrong: Floats  # likewise: boxes that found nothing

    @classmethod
    def of(cls, scene: ImageSet, additions: Sequence[BoxTable], base_thresholds: Floats = BASE_THRESHOLDS) -> Tally:
        """Of base boxes and what is added to them at each base_threshold, in the dataset's labels."""
        images, classes = len(scene.images), len(scene.names)
        apart = replace(
            scene,
            vocabulary=LabelMap.same(tuple(f"{image}/{name}" for image in range(images) for name in scene.names)),
            base=_label_by_image(scene.base, classes),
            truth=_label_by_image(scene.truth, classes),
        )
        curve = defended_curve(apart, base_thresholds, (_label_by_image(added, classes) for added in additions))
        shape = len(base_thresholds), images, classes
        return cls(
            base_thresholds=base_thresholds,
            objects=apart.objects_per_class.reshape(images, classes).astype(np.float64),
            right=curve.right.reshape(shape).swapaxes(0, 1).astype(np.float64),
            wrong=curve.wrong.reshape(shape).swapaxes(0, 1).astype(np.float64),
        )

    def ap50(self, weights: Floats) -> Floats:
        """The mean over the classes that have objects in the sample, in percent."""
        return np.concatenate([self._ap50(weights[some]) for some in self._a_few(weights)])

    def _ap50(self, weights: Floats) -> Floats:
        right, wrong = self._sums(self.right, weights), self._sums(self.wrong, weights)
        boxes = right + wrong
        precision = np.divide(right, boxes, out=np.zeros_like(boxes), where=boxes > 0)
        per_class = envelope_area(self._recall(right, weights), precision)
        return np.asarray(np.nanmean(per_class, axis=1))

    def clean_recall(self, weights: Floats) -> Floats:
        """The mean recall over classes, in percent: (rows, samples)."""
        parts = [self._recall(self._sums(self.right, weights[some]), weights[some]) for some in self._a_few(weights)]
        return np.concatenate([np.nanmean(part, axis=2) for part in parts], axis=1)

    def _a_few(self, weights: Floats) -> Iterator[slice]:
        """The samples, so many at a time as memory allows."""
        _, rows, classes = self.right.shape
        return row_blocks(len(weights), rows * classes)

    def rows_at_recall(self, clean_recall: float, weights: Floats) -> Ints:
        """The row of the highest base_threshold whose clean recall is at least this fraction, or NO_ROW."""
        reached = self.clean_recall(weights) >= 100 * clean_recall - RECALL_ROUNDING
        best = np.where(reached, self.base_thresholds[:, None], -np.inf).argmax(axis=0)
        return np.where(reached.any(axis=0), best, NO_ROW)

    def rows_at_fppi(self, most: float, weights: Floats) -> Ints:
        """The row of the smallest base_threshold from which on at most so many wrong boxes an image are left, or
        NO_ROW."""
        order = np.argsort(self.base_thresholds, kind="stable")
        wrong = (weights @ self.wrong.sum(axis=2)[:, order]).T / weights.sum(axis=1)  # (rows, samples)
        too_many_from = np.logical_or.accumulate((wrong > most)[::-1], axis=0)[::-1]
        return np.where(too_many_from[-1], NO_ROW, order[np.argmin(too_many_from, axis=0)])

    def rows_asked_for(self, settings: EvaluationSettings, weights: Floats) -> Ints:
        """Where each sample has the operating point of settings that have no fixed rule, or NO_ROW."""
        if settings.fppi is not None:
            return self.rows_at_fppi(settings.fppi, weights)
        assert settings.clean_recall is not None
        return self.rows_at_recall(settings.clean_recall, weights)

    def _sums(self, counts: Floats, weights: Floats) -> Floats:
        """(rows, samples, classes), by one large product: of many small ones each would wait for all cores."""
        images, rows, classes = counts.shape
        return np.asarray((weights @ counts.reshape(images, -1)).reshape(-1, rows, classes).swapaxes(0, 1))

    def _recall(self, right: Floats, weights: Floats) -> Floats:
        objects = weights @ self.objects
        return np.asarray(100 * right / np.where(objects > 0, objects, np.nan))


def _label_by_image(boxes: BoxTable, classes: int) -> BoxTable:
    """With (image, class) as the label. Boxes find objects of their image and label only, so nothing changes but that
    right and wrong boxes are counted for every image apart."""
    found = boxes.detections
    return BoxTable(Detections(found.xyxy, found.score, boxes.image * classes + found.label), boxes.image)


def spurious(added: BoxTable, scene: ImageSet) -> Floats:
    """How many of the added boxes of each image overlap no object of their label with an IoU of 0.5 or more.

    Ignored objects are objects here, and what lies inside a crowd overlaps it.
    """
    nothing_there = np.ones(len(added), np.bool_)
    nothing_there[candidate_pairs(added, scene).box] = False
    return np.bincount(added.image[nothing_there], minlength=len(scene.images)).astype(np.float64)


def ratios_at_rows(counts: Callable[[int], Floats], per: Floats, rows: Ints, weights: Floats) -> Floats:
    """Sums of `counts` by sums of `per` over the images of each sample, at its own row: (kinds, samples).

    `counts` gives (kinds, images) for a row and is only asked for rows that occur. NaN where a sample has no row.
    """
    found = {row: counts(row) for row in np.unique(rows[rows != NO_ROW]).tolist()}
    kinds = max((len(of_row) for of_row in found.values()), default=1)
    result = np.full((kinds, len(weights)), np.nan)
    for row, of_row in found.items():
        mine = rows == row
        result[:, mine] = (of_row @ weights[mine].T) / (weights[mine] @ per)
    return result
