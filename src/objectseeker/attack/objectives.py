"""What the gradient follows: losses on the raw outputs of a network, one number per view.

A box gives the object away if it covers more than T of it, scores at least what counts in its view for the object's
label, and has that label as best class or lies in a view in which every class counts. `hide` is zero exactly if no box
does, with a margin. It pulls the label's score below the threshold or, where that helps, below another class, whichever
is nearer. `relabel` also pushes another class up: pointless against our defence, deadly for one that lets boxes of one
view suppress those of another. `plant` raises base boxes that explain masked boxes away without covering the object
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.weakest import removing
from objectseeker.core.boxes import Detections, Floats, ioa

Tensor = Any

MARGIN = 0.7  # in logits: rounding differs a little between here and the judge
NEAR = 0.3  # share of the object from which a box is pushed towards another class
RIVAL_SCORE = 0.9
MOST_PLANTS = 4
PLANT_ANCHORS = 10
SLIGHTLY = 1.03  # how much more than filter_ioa a planted box shall explain


@dataclass(frozen=True, slots=True, eq=False)
class Goals:
    """One row per view: the object in network pixels, its classes, what a box must score to count, and the tactic."""

    box: Tensor  # (N, 4)
    wanted: Tensor  # (N, C) bool
    score: Tensor  # (N,)
    every_class: Tensor  # (N,) bool: a box counts for each of its classes, not for the best one alone
    relabel: Tensor  # (N,) bool
    threshold: float

    def rows(self, index: Tensor) -> Goals:
        box, wanted, score = self.box[index], self.wanted[index], self.score[index]
        return Goals(box, wanted, score, self.every_class[index], self.relabel[index], self.threshold)


def hide(boxes: Tensor, scores: Tensor, goals: Goals) -> tuple[Tensor, Tensor]:
    """Loss (N,), and whether the view still shows the object (N,), from boxes N x A x 4 and scores N x A x C."""
    import torch

    covered = share_covered(goals.box[:, None], boxes)
    logits = scores.clamp(1e-6, 1 - 1e-6).logit()
    wanted = goals.wanted[:, None].expand_as(logits)
    label = logits.masked_fill(~wanted, -20.0).amax(2)
    other = logits.masked_fill(wanted, -20.0).amax(2)
    excess = label - goals.score.logit()[:, None]
    excess = torch.where(goals.every_class[:, None], excess, torch.minimum(excess, label - other))
    touching = covered > goals.threshold
    loss = (torch.relu(excess + MARGIN) * touching).sum(1)
    rival = torch.relu(float(np.log(RIVAL_SCORE / (1 - RIVAL_SCORE))) - other) + torch.relu(label - other + MARGIN)
    near = covered > max(goals.threshold, NEAR)
    push = (rival * near).sum(1) / near.sum(1).clamp(min=1)
    shown = ((excess >= -MARGIN / 2) & touching).any(1)
    return loss + torch.where(goals.relabel, push, torch.zeros_like(push)), shown


def plant(boxes: Tensor, scores: Tensor, goals: Goals, wanted: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Loss (N,) and whether a planted box is missing (N,), for wanted boxes N x P x 4 of which `valid` (N, P) count."""
    import torch

    if not wanted.shape[1]:
        nothing = boxes.sum((1, 2)) * 0
        return nothing, nothing > 0
    logits = scores.clamp(1e-6, 1 - 1e-6).logit()
    label = logits.masked_fill(~goals.wanted[:, None].expand_as(logits), -20.0).amax(2)  # N A
    fit = overlap_over_union(wanted[:, :, None], boxes[:, None])  # N P A
    best = fit.topk(min(PLANT_ANCHORS, fit.shape[2]), dim=2)
    raised = label[:, None].expand(fit.shape).gather(2, best.indices)
    lacking = torch.relu(goals.score.logit()[:, None, None] + MARGIN - raised)
    loss = (lacking + 4 * (1 - best.values)).amin(2)
    missing = ((lacking > MARGIN) | (best.values < 0.7)).all(2) & valid
    return (loss * valid).sum(1), missing.any(1)


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


def boxes_to_plant(pipeline: Pipeline, target: Target, corner: tuple[int, int], size: tuple[int, int]) -> Floats:
    """Base boxes that would explain away what the views that do not see the patch show of the object: (P, 4), raw.

    One for each masked box that covers the object and can be explained without covering more than T of it.
    """
    rule, observation = pipeline.rule, target.observation
    gone = removing(observation.masks, np.array([corner]), size)[0]
    counts = gone[observation.mask_of] & (rule.evidence(rule.scores(observation)) > 0)
    counts &= ioa(observation.boxes.xyxy, target.box[None])[:, 0] > 0
    counts &= ioa(target.box[None], observation.boxes.xyxy)[0] > pipeline.threshold
    if rule.classwise:
        counts &= observation.boxes.label == target.label
    shown: Detections = observation.boxes[counts]
    chosen: list[Floats] = []
    for box in shown.xyxy[np.argsort(-shown.score, kind="stable")]:
        if any(ioa(box[None], other[None])[0, 0] > rule.filter_ioa for other in chosen):
            continue
        made = least_revealing(box, target.box, min(rule.filter_ioa * SLIGHTLY, 1.0))
        if ioa(target.box[None], made[None])[0, 0] <= pipeline.threshold:
            chosen.append(made)
    return np.array(chosen[:MOST_PLANTS]).reshape(-1, 4)


def least_revealing(masked: Floats, box: Floats, share: float) -> Floats:
    """The part of the masked box, `share` of its area, that covers least of the object: a slice from one side."""
    x1, y1, x2, y2 = masked
    wide, tall = share * (x2 - x1), share * (y2 - y1)
    sideways = [(x1, y1, x1 + wide, y2), (x2 - wide, y1, x2, y2)]
    upright = [(x1, y1, x2, y1 + tall), (x1, y2 - tall, x2, y2)]
    slices = np.array(sideways + upright)
    return np.asarray(slices[np.argmin(ioa(box[None], slices)[0])])
