"""The IoU variant on a scene: inference from stored boxes at many base_scores, and certificates at one of them.

As in `replay`, what does not depend on the base_score is found once: which boxes are clear, which base boxes repeat
them and which of them suppress each other. The outcome is that of `IouRule.prune`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.iou_variant import IOU_THRESHOLD, IouRule, clear_of_mask, only
from objectseeker.core.rule import Rule
from objectseeker.evaluation.curves import Curve, curve_of
from objectseeker.evaluation.defence import OperatingPoint
from objectseeker.evaluation.replay import NOTHING, Candidates, find_candidates, replay
from objectseeker.evaluation.scene import Boxes, Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings


@dataclass(frozen=True, slots=True, eq=False)
class ClearBoxes:
    """The clear masked boxes that can be output at some base_score, image by image."""

    boxes: Boxes
    repeated: Floats  # the highest score of a base box that repeats the box: it is dropped up to that base_score
    by_score: list[Ints]  # for every image its boxes, best first
    same: list[list[int]]  # in that order, which boxes each one suppresses: bit i stands for the i-th best
    first: list[int]  # each image's first box, and the end of the last image


@dataclass(frozen=True, slots=True, eq=False)
class IouDefence:
    """What all base_scores share; the IoU variant's counterpart of `Defence`."""

    scene: Scene
    rule: IouRule  # at base_score 0: its tau_iou and classwise hold
    clear: ClearBoxes
    others: Candidates

    @classmethod
    def prepare(cls, scene: Scene, settings: Settings, *, classwise: bool = True) -> IouDefence:
        rule = IouRule(ioa=settings.rule(0.0, classwise=classwise))
        observed = [image.observation for image in scene.images]
        clear = [clear_of_mask(one.boxes.xyxy, one.mask_of, one.masks) for one in observed]
        rest = [
            replace(image, observation=only(one, ~flags))
            for image, one, flags in zip(scene.images, observed, clear, strict=True)
        ]
        others = find_candidates(Scene.part(rest, scene.names), rule.ioa, settings.floor)
        parts, repeated, by_score, same = [], [], [], []
        for one, flags in zip(observed, clear, strict=True):
            boxes = one.boxes[flags].at_least(rule.ioa.mask_score)
            best = np.where(rule.same(boxes, one.base), one.base.score[None], NOTHING).max(axis=1, initial=NOTHING)
            # mask_score is never below base_score, so a box that a base box of its own score repeats is never output.
            alive = best < boxes.score
            boxes = boxes[alive]
            order = np.argsort(-boxes.score, kind="stable")
            rows = np.packbits(rule.same(boxes[order], boxes[order]), axis=1, bitorder="little")
            parts.append(boxes)
            repeated.append(best[alive])
            by_score.append(order)
            same.append([int.from_bytes(row.tobytes(), "little") for row in rows])
        first = [0, *np.cumsum([len(boxes) for boxes in parts]).tolist()]
        return cls(
            scene, rule, ClearBoxes(Boxes.gather(parts), np.concatenate(repeated), by_score, same, first), others
        )

    def curve(self, settings: Settings, base_scores: Floats = BASE_SCORES) -> Curve:
        return curve_of(self.scene, base_scores, self.additions(settings, base_scores.tolist()))

    def additions(self, settings: Settings, base_scores: Iterable[float]) -> Iterator[Boxes]:
        """What is added to the base boxes of all images at each base_score: clear boxes, then hulls of the others."""
        rules = [settings.rule(base_score, classwise=self.rule.classwise) for base_score in base_scores]
        boxes, score = self.clear.boxes, self.clear.boxes.detections.score
        before, kept = np.zeros((2, len(boxes)), dtype=np.bool_)
        for rule, hulls in zip(rules, replay(self.others, rules), strict=True):
            alive = (score >= rule.mask_score) & (self.clear.repeated < rule.base_score)
            for image in np.unique(boxes.image[alive != before]).tolist():
                start, end = self.clear.first[image : image + 2]
                kept[start:end] = False
                kept[start + self._unsuppressed(image, alive[start:end])] = True
            before = alive
            yield boxes.select(kept).followed_by(hulls)

    def at(self, settings: Settings, curve: Curve, row: int, threshold: float = IOU_THRESHOLD) -> OperatingPoint:
        """Certify at one row of the curve of these settings; `threshold` is the IoU to exceed."""
        ioa = settings.rule(float(curve.base_scores[row]), classwise=self.rule.classwise)
        certified, vacuous = iou_certified(self.scene, ioa, settings, threshold)
        return OperatingPoint(ioa, float(curve.clean_recall[row]), curve.recall[row], certified, vacuous)

    def at_recall(self, settings: Settings, curve: Curve, threshold: float = IOU_THRESHOLD) -> OperatingPoint | None:
        """Certify at the highest base_score that reaches `settings.clean_recall`; None if none does."""
        row = curve.row_at_recall(settings.clean_recall)
        return None if row is None else self.at(settings, curve, row, threshold)

    def _unsuppressed(self, image: int, alive: Bools) -> Ints:
        """`unsuppressed` among the boxes alive of one image."""
        order, same = self.clear.by_score[image], self.clear.same[image]
        left = int.from_bytes(np.packbits(alive[order], bitorder="little").tobytes(), "little")
        best = []
        while left:
            lowest = left & -left
            best.append(lowest.bit_length() - 1)
            left &= ~(same[best[-1]] | lowest)
        return np.asarray(order[best])


def iou_certified(scene: Scene, ioa: Rule, settings: Settings, threshold: float = IOU_THRESHOLD) -> tuple[Bools, Bools]:
    """`certified` and `vacuous` (patches, counted objects) by the IoU variant around the rule `ioa`."""
    found = [
        iou_certify_with(
            IouRule(ioa=ioa),
            image.observation,
            image.truth[~image.ignore],
            settings.patches(),
            threshold=threshold,
            bound=settings.bound,
        )
        for image in scene.images
    ]
    certified, vacuous = zip(*((one.certified, one.vacuous) for one in found), strict=True)
    return np.concatenate(certified, axis=1), np.concatenate(vacuous, axis=1)
