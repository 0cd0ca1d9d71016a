"""Match output boxes to objects: true and false positives, curves, average precision, FPPI.

Within one image and class, boxes are matched in descending order of score (earlier boxes first among equals); each
takes the free object it overlaps best, if the IoU is at least 0.5. Ignored objects are taken only by boxes that no
counted object is left for, and such a box is neither a true nor a false positive. A crowd is measured by the share of
the box inside it and can be taken any number of times. All of this is what pycocotools does.

A `Curve` holds counts and states each metric by its formula; APs are percentages. `CurveRows` hold the same counts
image by image, so that any sample of the images has its curve: whole numbers, so sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area, row_blocks
from objectseeker.metrics.image_set import BoxTable, ImageSet, Rows
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings

MIN_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Boxes and objects of one image and class that overlap enough, one row per pair."""

    box: Ints
    object: Ints
    overlap: Floats


def candidate_pairs(boxes: BoxTable, image_set: ImageSet) -> Overlaps:
    """All pairs of a box and an object that could be matched."""
    classes = len(image_set.names)
    objects = image_set.ground_truth
    of_box, of_object = (
        each.image * classes + each.detections.label for each in (boxes, objects)
    )  # boxes find objects of their image and class only
    most = int(np.unique(of_object, return_counts=True)[1].max(initial=0))  # objects that a box is held against
    several = list(row_blocks(len(boxes), most)) or [slice(0, 0)]
    parts = [_overlapping(boxes, image_set, some.start, *equal_keys(of_box[some], of_object)) for some in several]
    box, n, overlap = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Overlaps(box, n, overlap)


def _overlapping(boxes: BoxTable, image_set: ImageSet, start: int, box: Ints, n: Ints) -> tuple[Ints, Ints, Floats]:
    """The pairs of box start + box[i] and object n[i] that overlap enough, and by how much."""
    box = start + box
    a, b = boxes.detections.xyxy[box], image_set.ground_truth.detections.xyxy[n]
    width = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    whole = np.where(image_set.crowd[n], area(a), area(a) + area(b) - shared)
    overlap = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    enough = overlap >= MIN_IOU
    return box[enough], n[enough], overlap[enough]


def greedy_match(score: Floats, pairs: Overlaps, image_set: ImageSet) -> Ints:
    """Return the object each box takes, or -1: greedily, best box first, its best object first.

    Among objects that overlap a box equally the last one is taken, as in pycocotools.
    """
    order = np.lexsort((-pairs.object, -pairs.overlap, image_set.ignore[pairs.object], pairs.box, -score[pairs.box]))
    taken_by: list[int] = [-1] * len(score)
    free = [True] * len(image_set.ground_truth)
    crowd = image_set.crowd.tolist()
    for box, n in zip(pairs.box[order].tolist(), pairs.object[order].tolist(), strict=True):
        if taken_by[box] < 0 and free[n]:
            taken_by[box] = n
            free[n] = crowd[n]
    return np.array(taken_by, dtype=np.int64)


def false_positives(taken: Ints) -> Bools:
    """Return the false positives: boxes that took nothing. One that took an ignored object is neither."""
    return np.asarray(taken < 0)


def equal_keys(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """All index pairs i, j with left[i] == right[j], in ascending order of i."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, "left")
    many = np.searchsorted(ordered, left, "right") - first
    i = np.repeat(np.arange(len(left)), many)
    within = np.arange(len(i)) - np.repeat(np.cumsum(many) - many, many)
    return i, order[np.repeat(first, many) + within]


COCO_MAX_DETS = 100  # of one image and class that COCO looks at
RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredBoxes:
    """The boxes of the undefended detector that count, image by image and best first within each.

    Six bytes a box where scores fit single precision, as those of most detectors do: this is all that evaluation keeps
    of every image, because AP sorts the boxes of all of them.
    """

    score: npt.NDArray[np.floating[Any]]  # negative for a box that found nothing
    label: npt.NDArray[np.int16]

    @classmethod
    def of(cls, image_set: ImageSet) -> ScoredBoxes:
        boxes = _best_of_each_class(image_set.base, len(image_set.names))
        score = boxes.detections.score
        taken = greedy_match(score, candidate_pairs(boxes, image_set), image_set)
        counts = np.ones(len(taken), np.bool_)  # all but those that took an ignored object
        counts[taken >= 0] = ~image_set.ignore[taken[taken >= 0]]
        signed = np.where(taken >= 0, score, -score)[counts]
        short = signed.astype(np.float32)
        return cls(short if np.array_equal(short, signed) else signed, boxes.detections.label[counts].astype(np.int16))

    @classmethod
    def join(cls, parts: Sequence[ScoredBoxes]) -> ScoredBoxes:
        """Those of several image_sets, in the order of their images."""
        return cls(np.concatenate([part.score for part in parts]), np.concatenate([part.label for part in parts]))

    def ap50(self, objects: Ints) -> Floats:
        """COCO's AP50 for every class (NaN for a class without objects), of which there are `objects`."""
        result = np.full(len(objects), np.nan)
        for c in np.flatnonzero(objects):
            signed = self.score[self.label == c]
            found = ~np.signbit(signed[np.argsort(-np.abs(signed), kind="stable")])
            right = np.cumsum(found)
            recall = right / objects[c]
            precision = right / (np.arange(1, len(found) + 1) + np.spacing(1))
            envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
            result[c] = 100 * envelope[np.searchsorted(recall, RECALLS)].mean()
        return result


def coco_ap50(image_set: ImageSet) -> Floats:
    """COCO's AP50 of the undefended detector for every class (NaN for a class without objects).

    The same as pycocotools with area "all" and 100 detections; VOC's difficult objects are ignored.
    """
    return ScoredBoxes.of(image_set).ap50(image_set.objects_per_class)


def envelope_area(recall: Floats, precision: Floats) -> Floats:
    """Return the area under the precision envelope of points, per column; both are (points, classes).

    The envelope at recall r is the best precision of any point with a recall of at least r, and 0 beyond the highest
    recall: a staircase from recall 0, so it promises nothing between two points that one of them does not give.
    """
    order = np.argsort(recall, axis=0, kind="stable")
    recall, precision = (np.take_along_axis(values, order, axis=0) for values in (recall, precision))
    envelope = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    return np.asarray((np.diff(recall, axis=0, prepend=0.0) * envelope).sum(axis=0))


def _best_of_each_class(boxes: BoxTable, classes: int) -> BoxTable:
    """Return the COCO_MAX_DETS best boxes of every image and class, by descending score in each image."""
    found = boxes.detections
    order = np.lexsort((-found.score, found.label, boxes.image))
    group = (boxes.image * classes + found.label)[order]
    start = np.flatnonzero(np.diff(group, prepend=-1))
    rank = np.arange(len(group)) - np.repeat(start, np.diff(start, append=len(group)))
    return boxes.select(order[rank < COCO_MAX_DETS])


RECALL_ROUNDING = 1e-9  # a mean of percentages that is 80 exactly may be computed as slightly less
NO_BOXES = BoxTable(Detections.empty(), np.empty(0, np.int64))


def ratio(part: Floats | Ints, whole: Floats | Ints | int) -> Floats:
    """Return part / whole, NaN where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    quotient = np.full(np.broadcast_shapes(np.shape(part), whole.shape), np.nan)
    return np.asarray(np.divide(part, whole, out=quotient, where=whole > 0))


def percent(part: Floats | Ints, whole: Floats | Ints) -> Floats:
    """Return 100 * (part / whole), NaN where the whole is 0."""
    return np.asarray(100 * ratio(part, whole))


def macro_mean(per_class: Floats, objects: Floats | Ints) -> Floats:
    """Average over the classes (last axis) that have objects; NaN where no class has any."""
    has_objects = np.broadcast_to(np.asarray(objects) > 0, per_class.shape)
    occurring = has_objects.any(axis=tuple(range(has_objects.ndim - 1)))
    per_class, has_objects = per_class[..., occurring], has_objects[..., occurring]
    if has_objects.size and has_objects.all():
        return np.asarray(per_class.mean(axis=-1))
    total, count = np.where(has_objects, per_class, 0.0).sum(axis=-1), has_objects.sum(axis=-1)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Counts of one detector: axes are base thresholds, samples of the images, and classes.

    All values but counts and thresholds are percentages.
    """

    base_thresholds: Floats
    true_positives: Floats | Ints  # (thresholds, ..., classes): objects found
    false_positives: Floats | Ints  # likewise: boxes that match no object
    objects: Floats | Ints  # (..., classes)
    images: Floats | int  # (...)

    @property
    def recall(self) -> Floats:
        """Recall per class; NaN for a class without objects."""
        return np.asarray(100 * self.true_positives / np.where(self.objects > 0, self.objects, np.nan))

    @property
    def clean_recall(self) -> Floats:
        """The mean recall over classes at every base threshold."""
        return macro_mean(self.recall, self.objects)

    @property
    def ap50(self) -> Floats:
        """Return AP at IoU 0.5 per class by the paper's protocol: the area under the precision envelope."""
        boxes = self.true_positives + self.false_positives
        precision = np.divide(self.true_positives, boxes, out=np.zeros(boxes.shape), where=boxes > 0)
        return envelope_area(self.recall, precision)

    def ap50_of_samples(self) -> Floats:
        """Return the mean AP over the classes that have objects, sample by sample."""
        return macro_mean(self.ap50, self.objects)

    @property
    def mean_ap50(self) -> float:
        """The mean AP over the classes that have objects."""
        return float(self.ap50_of_samples())

    @property
    def max_clean_recall(self) -> float:
        return float(self.clean_recall.max())

    @property
    def fppi(self) -> Floats:
        """False positives per image (FPPI), over all classes, at every base threshold."""
        return ratio(self.false_positives.sum(axis=-1), self.images)

    def row_at_recall(self, clean_recall: float) -> int | None:
        """Return the row of the highest base threshold whose clean recall is at least this fraction, if any."""
        rows = np.flatnonzero(self.clean_recall >= 100 * clean_recall - RECALL_ROUNDING)
        return int(rows[np.argmax(self.base_thresholds[rows])]) if len(rows) else None

    def row_at_fppi(self, max_fppi: float, floor: float = 0.0) -> int | None:
        """Return the row of the lowest base threshold at and above which FPPI is at most `max_fppi`, if any.

        The limit must hold at every larger base threshold, too: a base box that disappears no longer filters masked
        boxes, so fewer false positives at one threshold do not mean fewer at the next. No threshold below `floor` is
        taken.
        """
        order = np.argsort(self.base_thresholds, kind="stable")
        excluded = np.flatnonzero((self.fppi > max_fppi)[order] | (self.base_thresholds[order] < floor))
        first = int(excluded[-1]) + 1 if len(excluded) else 0
        return int(order[first]) if first < len(order) else None

    def rows(self, chosen: slice) -> Curve:
        """Return the curve at some of its base thresholds."""
        return replace(
            self,
            base_thresholds=self.base_thresholds[chosen],
            true_positives=self.true_positives[chosen],
            false_positives=self.false_positives[chosen],
        )


@dataclass(frozen=True, slots=True, eq=False)
class CurveRows(Rows):
    """True and false positives of one detector at every base threshold, image by image.

    Counts change only where a box comes or goes, so only changes are kept: a row is the change of one image and class
    from the base threshold before (from zero at the first one).
    """

    label: Ints
    row: Ints  # of the base thresholds
    true_positives: Ints
    false_positives: Ints

    def total(self, base_thresholds: Floats, objects: Ints, images: int) -> Curve:
        """Return the curve of all images, which hold these objects per class."""
        shape = len(base_thresholds), len(objects)
        cell = self.row.astype(np.int64) * shape[1] + self.label

        def counts(change: Ints) -> Ints:
            summed = np.bincount(cell, weights=change, minlength=shape[0] * shape[1]).reshape(shape)
            return np.asarray(np.cumsum(summed, axis=0).round().astype(np.int64))

        return Curve(base_thresholds, counts(self.true_positives), counts(self.false_positives), objects, images)

    def sampled(self, base_thresholds: Floats, objects: Ints, images: Ints, weights: Floats) -> Iterator[Curve]:
        """Yield the curves of samples of the images, as many samples at a time as memory allows.

        Only classes that have objects or boxes are in it.

        Args:
            base_thresholds: Of the rows.
            objects: (images, classes).
            images: How many images each one counts.
            weights: (samples, images), how often each image is in each sample.
        """
        labels = np.union1d(np.flatnonzero(objects.any(axis=0)), self.label)
        shape = len(base_thresholds), len(labels)
        entries_of = [np.flatnonzero(self.label == label) for label in labels]
        for some in row_blocks(len(weights), 16 * shape[0] * shape[1]):
            counts = np.zeros((2, shape[0], len(weights[some]), shape[1]))
            for place, entries in enumerate(entries_of):
                seen, column = np.unique(self.image[entries], return_inverse=True)
                changes = np.zeros((2, shape[0], len(seen)))
                for counted, change in enumerate((self.true_positives, self.false_positives)):
                    np.add.at(changes[counted], (self.row[entries], column), change[entries])
                counts[..., place] = changes.cumsum(axis=1) @ weights[some][:, seen].T
            seen_objects = weights[some] @ objects[:, labels]
            yield Curve(base_thresholds, counts[0], counts[1], seen_objects, weights[some] @ images)

    def at_row(self, row: int) -> CurveRows:
        """Return the counts at one base threshold only, as row 0."""
        part = self.select(self.row <= row)
        return replace(part, row=np.zeros_like(part.row))


Matched = tuple[Ints, Ints, Ints]  # objects found; the images and the labels of false positives


def match_rows(
    images: ImageSet, base_thresholds: Floats, additions: Iterable[BoxTable], first_alert: Ints | None = None
) -> Iterator[Matched]:
    """Match the base boxes and what a defense adds with the objects, at each base threshold.

    `first_alert` is the first row at which each image has no base boxes, because there is an alert instead.
    """
    base, known = images.base, candidate_pairs(images.base, images)
    for row, (base_threshold, added) in enumerate(zip(base_thresholds, additions, strict=True)):
        kept = base.detections.score >= base_threshold
        if first_alert is not None:
            kept &= (first_alert > row)[base.image]
        place = np.cumsum(kept) - 1
        pairs_kept = kept[known.box]
        new = candidate_pairs(added, images)
        pairs = Overlaps(
            box=np.concatenate([place[known.box[pairs_kept]], new.box + kept.sum()]),
            object=np.concatenate([known.object[pairs_kept], new.object]),
            overlap=np.concatenate([known.overlap[pairs_kept], new.overlap]),
        )
        boxes = base.select(kept).followed_by(added)
        taken = greedy_match(boxes.detections.score, pairs, images)
        found, wrong = taken[taken >= 0], taken < 0
        yield found[~images.ignore[found]], boxes.image[wrong], boxes.detections.label[wrong]


def tally_curve(images: ImageSet, base_thresholds: Floats, additions: Iterable[BoxTable]) -> CurveRows:
    """Count true and false positives of base boxes with a defense's additions per base threshold.

    Args:
        images: The images with their base boxes and objects.
        base_thresholds: One per row; the changes of a row are against the row before it.
        additions: What the defense adds to the base boxes at each base threshold, in the dataset's labels.
    """
    classes, cells = len(images.names), len(images.images) * len(images.names)
    cell_of_object = images.ground_truth.image * classes + images.ground_truth.detections.label
    before = np.zeros((2, cells), np.int64)
    entries: list[tuple[Ints, Ints, Ints, Ints]] = []
    for row, (found, image, label) in enumerate(match_rows(images, base_thresholds, additions)):
        counted = cell_of_object[found], image * classes + label
        counts = np.stack([np.bincount(cell, minlength=cells) for cell in counted])
        change = counts - before
        cell = np.flatnonzero(change.any(axis=0))
        entries.append((cell, np.full(len(cell), row), change[0, cell], change[1, cell]))
        before = counts
    cell, row_of, tp, fp = (np.concatenate(column) for column in zip(*entries, strict=True))
    image, label = np.divmod(cell, max(classes, 1))
    small: Any = [array.astype(np.int32) for array in (image, label, row_of, tp, fp)]  # half the memory
    return CurveRows(*small)


def undefended_curve(images: ImageSet, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
    """Return the curve of the undefended detector."""
    return defended_curve(images, base_thresholds, (NO_BOXES for _ in base_thresholds))


def defended_curve(
    images: ImageSet, base_thresholds: Floats, additions: Iterable[BoxTable], first_alert: Ints | None = None
) -> Curve:
    """Return the curve of base boxes together with what a defense adds, as for `match_rows`."""
    classes, label_of = len(images.names), images.ground_truth.detections.label
    tp, fp = np.zeros((2, len(base_thresholds), classes), np.int64)
    for row, (found, _, label) in enumerate(match_rows(images, base_thresholds, additions, first_alert)):
        tp[row] = np.bincount(label_of[found], minlength=classes)
        fp[row] = np.bincount(label, minlength=classes)
    return Curve(np.asarray(base_thresholds), tp, fp, images.objects_per_class, len(images.images))


def unpruned_curve(images: ImageSet, settings: EvaluationSettings, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
    """Return the curve without pruning: base boxes and every masked box of at least the mask threshold."""
    masked = BoxTable.concatenate([image.observation.all_masked for image in images.images])
    score = np.concatenate([settings.rule.discounted_scores(image.observation) for image in images.images])
    lowest = [settings.on_curve(float(threshold)).mask_threshold for threshold in base_thresholds]
    unpruned = (masked.select(score >= one).map_to_dataset(images.label_map) for one in lowest)
    return defended_curve(images, base_thresholds, unpruned)
