"""The IoU variant's inference from stored boxes, at many base_thresholds, for all images at once.

As in `replay`, what does not depend on the base_threshold is found once: which boxes are clear, which base boxes repeat
them and which of them suppress each other. The outcome is that of `IouRule.prune`, bit for bit, in the detector's
labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, row_blocks
from objectseeker.core.observation import Observation
from objectseeker.core.rules import PruningRule
from objectseeker.core.rules.iou import IouRule, nms_survivors, non_overlapping
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.image_set import BoxTable
from objectseeker.metrics.replay import NO_BASE, PruningCandidates, as_bits, find_candidates, replay_pruning

MOST_LINKS = 2**31  # as in `replay`


@dataclass(frozen=True, slots=True, eq=False)
class IouCandidates:
    """The masked boxes that can be output at some base_threshold, per image: clear ones, and `others`."""

    boxes: BoxTable
    repeated: Floats  # the highest score of a base box that repeats the box: it is dropped up to that base_threshold
    by_score: list[Ints]  # for every image its boxes, best first
    same: list[list[int] | None]  # in that order, which boxes each one suppresses: bit i is the i-th best; if kept
    first: list[int]  # each image's first box, and the end of the last image
    others: PruningCandidates
    rule: IouRule  # its filter_iou and classwise hold for the candidates

    def replay(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        return replay_iou(self, cast("Iterable[IouRule]", rules))

    def unsuppressed(self, image: int, alive: Bools) -> Ints:
        """`iou_variant.unsuppressed` among the boxes alive of one image."""
        order, same = self.by_score[image], self.same[image]
        if same is None:
            members = np.flatnonzero(alive)
            boxes = self.boxes.detections[self.first[image] + members]
            return np.asarray(
                members[nms_survivors(boxes.score, lambda i: self.rule.are_duplicates(boxes[i], boxes)[0])]
            )
        left = int.from_bytes(np.packbits(alive[order], bitorder="little").tobytes(), "little")
        best = []
        while left:
            lowest = left & -left
            best.append(lowest.bit_length() - 1)
            left &= ~(same[best[-1]] | lowest)
        return np.asarray(order[best])


def find_iou_candidates(
    observations: Sequence[Observation], rule: IouRule, floor: float, *, mask_floor: float, reach: float = 0.0
) -> IouCandidates:
    """Find the candidates of the IoU variant; clear boxes with scores of at least `mask_floor` count."""
    clear = [non_overlapping(seen.all_masked.xyxy, seen.mask_index, seen.masks) for seen in observations]
    parts: list[Detections] = []
    repeated: list[Floats] = []
    by_score: list[Ints] = []
    same: list[list[int] | None] = []
    room = MOST_LINKS
    for seen, flags in zip(observations, clear, strict=True):
        boxes = seen.all_masked[flags].with_min_score(mask_floor)
        best = _repeating_score(rule, boxes, seen.base)
        kept = best < np.maximum(boxes.score, reach)  # as in `Candidates`
        boxes = boxes[kept]
        order = np.argsort(-boxes.score, kind="stable")
        parts.append(boxes)
        repeated.append(best[kept])
        by_score.append(order)
        links = len(boxes) ** 2
        same.append(_suppressing(rule, boxes[order]) if links <= room else None)
        room -= links if links <= room else 0
    return IouCandidates(
        boxes=BoxTable.concatenate(parts),
        repeated=np.concatenate(repeated),
        by_score=by_score,
        same=same,
        first=[0, *np.cumsum([len(boxes) for boxes in parts]).tolist()],
        others=find_candidates(observations, rule.ioa_rule, floor, reach=reach, among=[~flags for flags in clear]),
        rule=rule,
    )


def _repeating_score(rule: IouRule, boxes: Detections, base: Detections) -> Floats:
    """For every box the highest score of a base box that repeats it."""
    best = np.full(len(boxes), NO_BASE)
    for some in row_blocks(len(boxes), len(base)):
        same = rule.are_duplicates(boxes[some], base)
        best[some] = np.where(same, base.score[None], NO_BASE).max(axis=1, initial=NO_BASE)
    return best


def _suppressing(rule: IouRule, boxes: Detections) -> list[int]:
    """Return the boxes that each one suppresses, as the bits of one number."""
    return [
        row for some in row_blocks(len(boxes), len(boxes)) for row in as_bits(rule.are_duplicates(boxes[some], boxes))
    ]


def replay_iou(candidates: IouCandidates, rules: Iterable[IouRule]) -> Iterator[BoxTable]:
    """Return each rule's additions to the base boxes of all images: clear boxes, then hulls of others."""
    rules = list(rules)
    boxes, score = candidates.boxes, candidates.boxes.detections.score
    before, output = np.zeros((2, len(boxes)), dtype=np.bool_)
    for rule, hulls in zip(rules, replay_pruning(candidates.others, [rule.ioa_rule for rule in rules]), strict=True):
        if rule.filter_iou != candidates.rule.filter_iou:
            raise ObjectSeekerError(
                f"the candidates were found for filter_iou={candidates.rule.filter_iou!r}, not {rule!r}"
            )
        alive = (score >= rule.ioa_rule.mask_threshold) & (candidates.repeated < rule.base_threshold)
        for image in np.unique(boxes.image[alive != before]).tolist():
            start, end = candidates.first[image : image + 2]
            output[start:end] = False
            output[start + candidates.unsuppressed(image, alive[start:end])] = True
        before = alive
        yield boxes.select(output).followed_by(hulls)
