"""What the gradient follows: losses on the raw outputs of a network, one number per view.

A box gives the object away if it covers more than T of it (or has an IoU above T with it, under an `IouRule`), scores
at least what counts in its view, has one of the object's labels, and has it as best class or lies in a view in which
every class counts. What counts in a masked view is the rule's lowest score; near a line of the mask, where
`edge_factor` lowers scores, accordingly more. `hide` is zero exactly if no box does, with a margin. It pulls the
label's score below the threshold or, where that helps, below another class, whichever is nearer. `relabel` also pushes
another class up: pointless against our defense, deadly for one that lets boxes of one view suppress those of another.
`plant` raises base boxes that explain masked boxes away without giving the object away themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.core.boxes import Bools, Detections, Floats, ioa
from objectseeker.core.iou_rule import IouRule

Tensor = Any

LOGIT_MARGIN = 0.7  # rounding differs a little between here and the judge
NEAR = 0.3  # share of the object from which a box is pushed towards another class
RIVAL_SCORE = 0.9
MOST_PLANTS = 4
PLANT_ANCHORS = 10
SLIGHTLY = 1.03  # how much more than pruning asks for a planted box shall explain


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Goals:
    """One row per view: the object in network pixels, its classes, what a box must score to count, and the tactic.

    `lines` are those of the view's mask along x and y, infinity where there is none; a box within `edge` of one has its
    score multiplied by `edge_factor` before it counts.
    """

    box: Tensor  # (N, 4)
    wanted: Tensor  # (N, C) bool
    score: Tensor  # (N,)
    every_class: Tensor  # (N,) bool: a box counts for each of its classes, not for the best one alone
    relabel: Tensor  # (N,) bool
    lines: Tensor  # (N, 2, 2)
    edge: Tensor  # (N, 2)
    edge_factor: float = 1.0
    threshold: float = 0.0
    by_iou: bool = False

    def overlap(self, boxes: Tensor) -> Tensor:
        """What of the object each box N x A x 4 covers, or the IoU with it: (N, A)."""
        measure = overlap_over_union if self.by_iou else share_covered
        return measure(self.box[:, None], boxes)

    def needed(self, boxes: Tensor) -> Tensor:
        """The score from which each box N x A x 4 counts: (N, A), above 1 where none is enough."""
        import torch

        score = self.score[:, None].expand(boxes.shape[:2])
        if self.edge_factor == 1.0:
            return score
        cut = torch.zeros_like(score, dtype=torch.bool)
        for axis in (0, 1):
            for line in self.lines[:, axis].unbind(1):
                gap = torch.maximum(boxes[..., axis] - line[:, None], line[:, None] - boxes[..., axis + 2])
                cut = cut | (gap <= self.edge[:, axis, None])
        return torch.where(cut, score / max(self.edge_factor, 1e-6), score)


def hide(boxes: Tensor, scores: Tensor, goals: Goals) -> tuple[Tensor, Tensor]:
    """Loss (N,), and whether the view still shows the object (N,), from boxes N x A x 4 and scores N x A x C."""
    import torch

    overlap = goals.overlap(boxes)
    label, other = class_logits(scores, goals)
    needed = goals.needed(boxes.detach())
    excess = label - logit(needed)
    excess = torch.where(goals.every_class[:, None], excess, torch.minimum(excess, label - other))
    touching = (overlap > goals.threshold) & (needed <= 1)
    loss = (torch.relu(excess + LOGIT_MARGIN) * touching).sum(1)
    rival = torch.relu(float(np.log(RIVAL_SCORE / (1 - RIVAL_SCORE))) - other)
    rival = rival + torch.relu(label - other + LOGIT_MARGIN)
    near = overlap > max(goals.threshold, NEAR)
    push = (rival * near).sum(1) / near.sum(1).clamp(min=1)
    shown = ((excess >= -LOGIT_MARGIN / 2) & touching).any(1)
    return loss + torch.where(goals.relabel, push, torch.zeros_like(push)), shown


def plant(boxes: Tensor, scores: Tensor, goals: Goals, wanted: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Loss (N,) and whether a planted box is missing (N,), for wanted boxes N x P x 4 of which `valid` (N, P) count.

    `goals` are those of untouched views.
    """
    import torch

    label, _ = class_logits(scores, goals)
    fit = overlap_over_union(wanted[:, :, None], boxes[:, None])  # N P A
    best = fit.topk(min(PLANT_ANCHORS, fit.shape[2]), dim=2)
    raised = label[:, None].expand(fit.shape).gather(2, best.indices)
    lacking = torch.relu(logit(goals.score)[:, None, None] + LOGIT_MARGIN - raised)
    loss = (lacking + 4 * (1 - best.values)).amin(2)
    missing = ((lacking > LOGIT_MARGIN) | (best.values < 0.7)).all(2) & valid
    return (loss * valid).sum(1), missing.any(1)


def class_logits(scores: Tensor, goals: Goals) -> tuple[Tensor, Tensor]:
    """The best of the object's classes and the best of the others, for every box: N x A each."""
    logits = logit(scores)
    wanted = goals.wanted[:, None].expand_as(logits)
    return logits.masked_fill(~wanted, -20.0).amax(2), logits.masked_fill(wanted, -20.0).amax(2)


def logit(scores: Tensor) -> Tensor:
    return scores.clamp(1e-6, 1 - 1e-6).logit()


def share_covered(objects: Tensor, boxes: Tensor) -> Tensor:
    """Share of each object that each box covers."""
    area = (objects[..., 2] - objects[..., 0]) * (objects[..., 3] - objects[..., 1])
    return _shared(objects, boxes) / area.clamp(min=1e-6)


def overlap_over_union(a: Tensor, b: Tensor) -> Tensor:
    shared = _shared(a, b)
    areas = sum(((box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1) for box in (a, b)), start=-shared)
    return shared / areas.clamp(min=1e-6)


def _shared(a: Tensor, b: Tensor) -> Tensor:
    import torch

    first, last = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    return (last - first).clamp(min=0).prod(-1)


def boxes_to_plant(pipeline: Pipeline, target: Target, gone: Bools) -> Floats:
    """Base boxes that would explain away what the views that do not see the patch show of the object: (P, 4), raw.

    `gone` (M,) are the masks of these views. One for each masked box that finds the object and can be explained
    without finding it.
    """
    rule, observation = pipeline.scoring, target.observation
    explains = pipeline.rule.filter_iou if isinstance(pipeline.rule, IouRule) else rule.filter_ioa
    counts = gone[observation.mask_of] & (rule.evidence(rule.scores(observation)) > 0)
    counts &= pipeline.finding(target, observation.boxes)
    shown: Detections = observation.boxes[counts]
    chosen: list[Floats] = []
    for box in shown.xyxy[np.argsort(-shown.score, kind="stable")]:
        if any(ioa(box[None], other[None])[0, 0] > explains for other in chosen):
            continue
        made = least_revealing(box, target.box, min(explains * SLIGHTLY, 1.0), pipeline.measure)
        if pipeline.overlap(target, made[None])[0] <= pipeline.threshold:
            chosen.append(made)
    return np.array(chosen[:MOST_PLANTS]).reshape(-1, 4)


def least_revealing(
    masked: Floats, box: Floats, share: float, measure: Callable[[Floats, Floats], Floats] = ioa
) -> Floats:
    """The part of the masked box, `share` of its area, that shows least of the object: a slice from one side."""
    x1, y1, x2, y2 = masked
    wide, tall = share * (x2 - x1), share * (y2 - y1)
    sideways = [(x1, y1, x1 + wide, y2), (x2 - wide, y1, x2, y2)]
    upright = [(x1, y1, x2, y1 + tall), (x1, y2 - tall, x2, y2)]
    slices = np.array(sideways + upright)
    return np.asarray(slices[np.argmin(measure(box[None], slices)[0])])
