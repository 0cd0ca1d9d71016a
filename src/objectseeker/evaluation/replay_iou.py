"""The IoU variant's inference from stored boxes, at many base_scores, for all images at once.

As in `replay`, what does not depend on the base_score is found once: which boxes are clear, which base boxes repeat
them and which of them suppress each other. The outcome is that of `IouRule.prune`, bit for bit, in the detector's
labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.iou_variant import IouRule, clear_of_mask, only
from objectseeker.core.observation import Observation
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.replay import NO_BASE, Candidates, find_candidates, replay
from objectseeker.evaluation.scene import Boxes


@dataclass(frozen=True, slots=True, eq=False)
class IouCandidates:
    """The masked boxes that can be output at some base_score, image by image: clear ones here, `others` apart."""

    boxes: Boxes
    repeated: Floats  # the highest score of a base box that repeats the box: it is dropped up to that base_score
    by_score: list[Ints]  # for every image its boxes, best first
    same: list[list[int]]  # in that order, which boxes each one suppresses: bit i stands for the i-th best
    first: list[int]  # each image's first box, and the end of the last image
    others: Candidates
    tau_iou: float

    def unsuppressed(self, image: int, alive: Bools) -> Ints:
        """`iou_variant.unsuppressed` among the boxes alive of one image."""
        order, same = self.by_score[image], self.same[image]
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
    """`find_candidates` for the IoU variant; clear boxes count from `mask_floor`, the lowest mask_score, on."""
    clear = [clear_of_mask(seen.boxes.xyxy, seen.mask_of, seen.masks) for seen in observations]
    rest = [only(seen, ~flags) for seen, flags in zip(observations, clear, strict=True)]
    parts, repeated, by_score, same = [], [], [], []
    for seen, flags in zip(observations, clear, strict=True):
        boxes = seen.boxes[flags].at_least(mask_floor)
        best = np.where(rule.same(boxes, seen.base), seen.base.score[None], NO_BASE).max(axis=1, initial=NO_BASE)
        kept = best < np.maximum(boxes.score, reach)  # as in `Candidates`
        boxes = boxes[kept]
        order = np.argsort(-boxes.score, kind="stable")
        rows = np.packbits(rule.same(boxes[order], boxes[order]), axis=1, bitorder="little")
        parts.append(boxes)
        repeated.append(best[kept])
        by_score.append(order)
        same.append([int.from_bytes(row.tobytes(), "little") for row in rows])
    return IouCandidates(
        boxes=Boxes.gather(parts),
        repeated=np.concatenate(repeated),
        by_score=by_score,
        same=same,
        first=[0, *np.cumsum([len(boxes) for boxes in parts]).tolist()],
        others=find_candidates(rest, rule.ioa, floor, reach=reach),
        tau_iou=rule.tau_iou,
    )


def replay_iou(candidates: IouCandidates, rules: Iterable[IouRule]) -> Iterator[Boxes]:
    """What each rule adds to the base boxes of all images: clear boxes, then hulls of the others."""
    rules = list(rules)
    boxes, score = candidates.boxes, candidates.boxes.detections.score
    before, output = np.zeros((2, len(boxes)), dtype=np.bool_)
    for rule, hulls in zip(rules, replay(candidates.others, [rule.ioa for rule in rules]), strict=True):
        if rule.tau_iou != candidates.tau_iou:
            raise ObjectSeekerError(f"the candidates were found for tau_iou={candidates.tau_iou!r}, not {rule!r}")
        alive = (score >= rule.ioa.mask_score) & (candidates.repeated < rule.base_score)
        for image in np.unique(boxes.image[alive != before]).tolist():
            start, end = candidates.first[image : image + 2]
            output[start:end] = False
            output[start + candidates.unsuppressed(image, alive[start:end])] = True
        before = alive
        yield boxes.select(output).followed_by(hulls)
