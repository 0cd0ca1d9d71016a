"""The output boxes of a defended detector: true or false, certified, and ranked by certified score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, row_blocks
from objectseeker.core.fabrication import SupportFit, ranking_scores
from objectseeker.core.observation import Observation
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import ALL_LOCATIONS, Patch, PatchLocation, ThreatModel
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import (
    candidate_pairs,
    envelope_area,
    false_positives,
    greedy_match,
    ratio,
)
from objectseeker.metrics.image_set import BoxTable, CountedRows, ImageSet

TRUE_POSITIVE, FALSE_POSITIVE, IGNORED = 1, 0, -1


@dataclass(frozen=True, slots=True, eq=False)
class BoxRows(CountedRows):
    """The output boxes of some images at one operating point, one row per box.

    Attributes:
        label: Class of the dataset.
        outcome: TRUE_POSITIVE, FALSE_POSITIVE, or IGNORED: the box took an ignored object.
        score: NaN once summed: AP needs every box.
        ranking_score: The mean of the base score and the certified score; where that is equal, the score decides.
        ranked_outcome: The outcome where boxes are matched in the order of the ranking score.
        certified: Per threat (boxes, locations): certified not fabricated.
    """

    label: Ints
    outcome: npt.NDArray[np.int8]
    score: Floats
    ranking_score: Floats
    ranked_outcome: npt.NDArray[np.int8]
    certified: Mapping[ThreatModel, Bools]

    def certified_at(self, threat: ThreatModel, location: PatchLocation) -> Bools:
        return np.asarray(self.certified[threat][:, ALL_LOCATIONS.index(location)])

    def ap50(self, objects: Floats, weights: Floats, *, ranked: bool = False) -> Floats:
        """Return AP at IoU 0.5 of samples, mean over classes: the area under the precision envelope.

        Every rank is a point of the curve; boxes of equal rank are one point, so that no order among them decides.
        `objects` (samples, classes) are the objects of each sample. NaN where no class has any, and of summed tallies.
        """
        score, outcome = (self.ranking_score, self.ranked_outcome) if ranked else (self.score, self.outcome)
        total, classes = np.zeros(len(weights)), (objects > 0).sum(axis=1)
        if np.isnan(score).any():
            return np.full(len(weights), np.nan)
        for label in np.flatnonzero((objects > 0).any(axis=0)).tolist():
            mine = np.flatnonzero((self.label == label) & (outcome != IGNORED))
            mine = mine[np.lexsort((-self.score[mine], -score[mine]))]  # the score decides between equal ranks
            right = outcome[mine] == TRUE_POSITIVE
            ranks = np.stack([score[mine], self.score[mine]])
            last = np.append((ranks[:, 1:] != ranks[:, :-1]).any(axis=0), True)[: len(mine)]  # of equal ranks
            for some in row_blocks(len(weights), len(mine)):
                seen = weights[some][:, self.image[mine]].T  # (boxes, samples)
                true = np.cumsum(seen * right[:, None], axis=0)[last]
                boxes = np.cumsum(seen, axis=0)[last]
                recall = np.divide(true, objects[some, label], out=np.zeros_like(true), where=objects[some, label] > 0)
                precision = np.divide(true, boxes, out=np.zeros_like(true), where=boxes > 0)
                if len(mine):
                    total[some] += 100 * envelope_area(recall, precision)
        return ratio(total, classes)


def tally_boxes(image_set: ImageSet, rule: PruningRule, recovered: BoxTable, threats: Sequence[ThreatModel]) -> BoxRows:
    """Count the output boxes of a rule: base boxes, then those `recovered`, in the detector's labels.

    The certified score is about the first threat's patch anywhere.
    """
    first = np.searchsorted(recovered.image, np.arange(len(image_set.images) + 1))
    tables: list[Detections] = []
    lists: dict[ThreatModel, list[Bools]] = {threat: [] for threat in threats}
    ranks = []
    for number, image in enumerate(image_set.images):
        observation = image.observation
        base = observation.base.with_min_score(rule.base_threshold)
        boxes = Detections.concatenate([base, recovered.detections[first[number] : first[number + 1]]])
        known = image_set.label_map.dataset_labels[boxes.label] >= 0 if len(boxes) else np.zeros(0, np.bool_)
        boxes, base_scores = boxes[known], np.where(np.arange(len(boxes)) < len(base), boxes.score, 0.0)[known]
        tables.append(image_set.label_map.map_to_dataset(boxes))
        for threat, certified in lists.items():
            certified.append(rule.certify_not_fabricated(observation, boxes, threat.patches()).certified)
        patch = threats[0].patches()[ALL_LOCATIONS.index("anywhere")]
        scores = rule.certified_scores(observation, boxes, patch)
        ranks.append(ranking_scores(base_scores, boxes.score, scores))
    table, ranking_score = BoxTable.concatenate(tables), np.concatenate(ranks)
    return BoxRows(
        image=table.image,
        label=table.detections.label,
        count=np.ones(len(table), np.int64),
        outcome=_outcomes(table, table.detections.score, image_set),
        score=table.detections.score,
        ranking_score=ranking_score,
        ranked_outcome=_outcomes(table, _order(ranking_score, table.detections.score), image_set),
        certified={threat: np.concatenate(certified, axis=1).T for threat, certified in lists.items()},
    )


def _order(ranking_score: Floats, score: Floats) -> Floats:
    """Return numbers that order boxes by ranking score, then by score; earlier boxes first."""
    order = np.lexsort((-np.arange(len(score)), score, ranking_score))
    return np.argsort(order).astype(np.float64)


def _outcomes(table: BoxTable, score: Floats, image_set: ImageSet) -> npt.NDArray[np.int8]:
    """Match boxes to objects in the order of these scores."""
    taken = greedy_match(score, candidate_pairs(table, image_set), image_set)
    ignored = np.zeros(len(taken), np.bool_)
    ignored[taken >= 0] = image_set.ignore[taken[taken >= 0]]
    return np.select([ignored, false_positives(taken)], [IGNORED, FALSE_POSITIVE], TRUE_POSITIVE).astype(np.int8)


SUPPORT_FITS: tuple[tuple[SupportFit, float], ...] = (("iou", 0.5), ("iou", 0.3), ("ioa", 0.3), ("ioa", 0.15))
SUPPORT_THRESHOLDS = (0.4, 0.3, 0.2, 0.15, 0.1)
MAX_FOREIGN = 0.02  # share of boxes of other images


def tune_support(
    observations: Sequence[Observation],
    rule: PruningRule,
    *,
    floor: float = 0.0,
    max_foreign: float = MAX_FOREIGN,
    patch: Patch = Patch(0.01, location="anywhere"),  # noqa: B008  (frozen)
) -> PruningRule:
    """Choose the settings of fabrication certificates without annotations.

    Of the settings that certify at most `max_foreign` of the foreign boxes, those that certify most own boxes are
    taken. Own boxes are the output of the rule. Foreign boxes are those of the previous image, moved to this one: what
    supports them does so by chance. Any setting is sound; this one is not lax.

    Args:
        observations: The images; annotations are not used.
        rule: The rule whose output is certified, and whose other settings stay.
        floor: The lowest score of masked boxes that were kept: no lower support_threshold is tried.
        max_foreign: Largest share of foreign boxes that may be certified.
        patch: The patch to certify against.
    """
    outputs = [rule.prune(observation) for observation in observations]
    best: tuple[bool, float, PruningRule] | None = None
    for fit, overlap in SUPPORT_FITS:
        fitting = rule.with_settings(support_fit=fit, support_overlap=overlap)
        own, foreign = [], []
        for number, observation in enumerate(observations):
            own.append(fitting.certified_scores(observation, outputs[number], patch))
            moved = _moved(outputs[number - 1], observations[number - 1], observation)
            foreign.append(fitting.certified_scores(observation, moved, patch))
        for threshold in (one for one in SUPPORT_THRESHOLDS if one >= floor):
            shares = [_share(scores, threshold) for scores in (own, foreign)]
            allowed = shares[1] <= max_foreign
            rank = (allowed, shares[0] if allowed else -shares[1])
            if best is None or rank > best[:2]:
                best = (*rank, fitting.with_settings(support_threshold=threshold))
    if best is None:
        raise ObjectSeekerError(f"no support_threshold is at least the floor of the run: got {floor}. Observe lower.")
    return best[2]


def _share(scores: Sequence[Floats], threshold: float) -> float:
    joined = np.concatenate([np.empty(0), *scores])
    return float((joined >= threshold).mean()) if len(joined) else 0.0


def _moved(boxes: Detections, source: Observation, target: Observation) -> Detections:
    """Return boxes of one image at the same place in another, as shares of its sides."""
    scale = np.array([target.width / source.width, target.height / source.height])
    return Detections(boxes.xyxy * np.tile(scale, 2), boxes.score, boxes.label)
