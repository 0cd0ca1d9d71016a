"""Right and wrong boxes at every base_threshold: what AP, clean recall and precision-recall curves are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Detections, Floats, Ints
from objectseeker.core.rule import Rule
from objectseeker.metrics.average_precision import envelope_area
from objectseeker.metrics.image_set import BoxTable, ImageSet, ObjectCensus
from objectseeker.metrics.matching import Overlaps, candidate_pairs, count_matches, greedy_match
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings, ioa_of

RECALL_ROUNDING = 1e-9  # a mean of percentages that is 80 exactly may come out a little below
NO_BOXES = BoxTable(Detections.empty(), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One detector at one base_threshold per row; classes are columns. All values are percentages but the counts."""

    scene: ImageSet | ObjectCensus
    base_thresholds: Floats
    right: Ints  # objects found
    wrong: Ints  # boxes that found nothing

    @property
    def recall(self) -> Floats:
        """Per class; NaN for a class without objects."""
        objects = self.scene.objects_per_class
        return np.asarray(100 * self.right / np.where(objects > 0, objects, np.nan))

    @property
    def clean_recall(self) -> Floats:
        """The mean recall over classes, at every base_threshold."""
        return self.scene.macro(self.recall)

    @property
    def ap50(self) -> Floats:
        """The paper's AP at IoU 0.5, per class: the area under the precision envelope of all settings."""
        boxes = self.right + self.wrong
        precision = np.divide(self.right, boxes, out=np.zeros(boxes.shape), where=boxes > 0)  # no boxes: recall is 0
        return envelope_area(self.recall, precision)

    @property
    def mean_ap50(self) -> float:
        return float(self.scene.macro(self.ap50))

    @property
    def highest_clean_recall(self) -> float:
        return float(self.clean_recall.max())

    @property
    def fppi(self) -> Floats:
        """Wrong boxes an image, of all classes, at every base_threshold."""
        return np.asarray(self.wrong.sum(axis=1) / self.scene.image_count)

    def row_at_recall(self, clean_recall: float) -> int | None:
        """The row of the highest base_threshold whose clean recall is at least the fraction `clean_recall`, if any."""
        rows = np.flatnonzero(self.clean_recall >= 100 * clean_recall - RECALL_ROUNDING)
        return int(rows[np.argmax(self.base_thresholds[rows])]) if len(rows) else None

    def row_at_fppi(self, most: float, floor: float = 0.0) -> int | None:
        """The row of the smallest base_threshold from which on there are at most so many wrong boxes an image, if any.

        There and at every larger base_threshold: where base boxes go, masked ones that they explained may come, so
        fewer
        wrong boxes at one score do not mean fewer at the next. None is taken below `floor`.
        """
        order = np.argsort(self.base_thresholds, kind="stable")
        not_fine = np.flatnonzero((self.fppi > most)[order] | (self.base_thresholds[order] < floor))
        first = int(not_fine[-1]) + 1 if len(not_fine) else 0
        return int(order[first]) if first < len(order) else None


def undefended_curve(scene: ImageSet, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
    """The undefended detector."""
    return defended_curve(scene, base_thresholds, (NO_BOXES for _ in base_thresholds))


def unpruned_curve(scene: ImageSet, settings: EvaluationSettings, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
    """What pruning is for: base boxes and every masked box of at least mask_threshold, as they are."""
    return defended_curve(
        scene, base_thresholds, _unpruned(scene, [ioa_of(settings.on_curve(float(score))) for score in base_thresholds])
    )


def _unpruned(scene: ImageSet, rules: Iterable[Rule]) -> Iterator[BoxTable]:
    everything = BoxTable.concatenate_boxes([image.observation.boxes for image in scene.images])
    score = {}
    for rule in rules:
        if rule.edge_factor not in score:
            score[rule.edge_factor] = np.concatenate([rule.scores(image.observation) for image in scene.images])
        yield everything.select(score[rule.edge_factor] >= rule.mask_threshold).in_dataset(scene.vocabulary)


def defended_curve(scene: ImageSet, base_thresholds: Floats, additions: Iterable[BoxTable]) -> Curve:
    """Base boxes, and what the defense adds to them at each base_threshold, in the dataset's labels."""
    base, known = scene.base, candidate_pairs(scene.base, scene)
    right, wrong = [], []
    for base_threshold, added in zip(base_thresholds, additions, strict=True):
        kept = base.detections.score >= base_threshold
        place = np.cumsum(kept) - 1
        rows = kept[known.box]
        new = candidate_pairs(added, scene)
        pairs = Overlaps(
            box=np.concatenate([place[known.box[rows]], new.box + kept.sum()]),
            object=np.concatenate([known.object[rows], new.object]),
            overlap=np.concatenate([known.overlap[rows], new.overlap]),
        )
        boxes = base.select(kept).followed_by(added).detections
        found, missed = count_matches(boxes.label, greedy_match(boxes.score, pairs, scene), scene)
        right.append(found)
        wrong.append(missed)
    return Curve(scene, base_thresholds, np.array(right), np.array(wrong))
