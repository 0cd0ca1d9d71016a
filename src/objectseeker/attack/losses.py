"""Losses on the raw outputs of a network: the objectives of the gradient attacks.

Every loss takes boxes N x A x 4, in network pixels, and scores N x A x C of N views.

A box shows the object if it covers more than T of it (or, if the rule is about IoU, has an IoU above T with it), has at
least the score required in its view, has one of the object's labels, and has it as best class or is in a view in which
every class counts. The score required in a masked view is the rule's lowest; near a line of the mask, where the
`edge_factor` lowers scores, correspondingly more. `hiding_loss` is zero exactly if no box shows the object, with a
margin. It pulls the label's score below the threshold or, where that helps, below another class, whichever is nearer.
`relabels` also pushes another class up: pointless against our defense, deadly for one that lets boxes of one view
suppress those of another. `planting_loss` raises base boxes that filter masked boxes without showing the object
themselves. `fabricating_loss` raises a box that is wanted, `degrading_loss` is that of one patch for many images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.core.boxes import Bools, Detections, Floats, ioa

Tensor = Any

LOGIT_MARGIN = 0.7  # rounding differs a little between here and the judge
MIN_RELABEL_OVERLAP = 0.3  # share of the object at which a box is pushed towards another class
RIVAL_SCORE = 0.9
WANTED_SCORE = 0.6  # that a fabricated box strives for, in every view that shows the patch
MAX_PLANTED_BOXES = 4
ANCHORS_PER_PLANT = 10
MIN_PLANTED_IOU = 0.7
MIN_DEGRADED_IOU = 0.3  # IoU with its object at and above which a box is pulled down by a universal patch
BOXES_PER_OBJECT = 5  # boxes that show it best
FABRICATED_BOXES = 60  # of a view: the likeliest wrong ones
MIN_PLANTED_COVER = 0.8  # share of an object that a planted box covers: it then filters its masked boxes
MAX_PLANTED_FIT = 0.45  # IoU with the object below which a planted box does not fit it
FILTER_EXCESS = 1.03  # a planted box filters by this factor more than pruning requires


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossTargets:
    """One row per view: the object in network pixels, its classes, the required score, and the tactic.

    `lines` are those of the view's mask along x and y, infinity where there is none; a box within `edge` of one has its
    score multiplied by `edge_factor` before it counts.
    """

    box: Tensor  # (N, 4)
    object_classes: Tensor  # (N, C) bool
    score: Tensor  # (N,)
    every_class: Tensor  # (N,) bool: a box counts for each of its classes, not for the best one alone
    relabels: Tensor  # (N,) bool
    lines: Tensor  # (N, 2, 2)
    edge: Tensor  # (N, 2)
    edge_factor: float = 1.0
    certification_threshold: float = 0.0
    uses_iou: bool = False

    def overlap(self, boxes: Tensor) -> Tensor:
        """Return the share of the object that each box N x A x 4 covers, or its IoU with the object: (N, A)."""
        measure = tensor_iou if self.uses_iou else covered_share
        return measure(self.box[:, None], boxes)

    def required_score(self, boxes: Tensor) -> Tensor:
        """Return the score at which each box N x A x 4 counts: (N, A), above 1 where no score suffices."""
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


def hiding_loss(boxes: Tensor, scores: Tensor, targets: LossTargets) -> tuple[Tensor, Tensor]:
    """Return the loss and whether the view still shows the object, one per view: (N,) each."""
    import torch

    overlap = targets.overlap(boxes)
    label, rival_label = class_logits(scores, targets)
    required = targets.required_score(boxes.detach())
    excess = label - logit(required)
    excess = torch.where(targets.every_class[:, None], excess, torch.minimum(excess, label - rival_label))
    counts = (overlap > targets.certification_threshold) & (required <= 1)
    loss = (torch.relu(excess + LOGIT_MARGIN) * counts).sum(1)
    rival = torch.relu(_logit_of(RIVAL_SCORE) - rival_label)
    rival = rival + torch.relu(label - rival_label + LOGIT_MARGIN)
    near = overlap > max(targets.certification_threshold, MIN_RELABEL_OVERLAP)
    push = (rival * near).sum(1) / near.sum(1).clamp(min=1)
    shown = ((excess >= -LOGIT_MARGIN / 2) & counts).any(1)
    return loss + torch.where(targets.relabels, push, torch.zeros_like(push)), shown


def planting_loss(
    boxes: Tensor, scores: Tensor, targets: LossTargets, planted: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss and whether a box to plant is missing, one per untouched view: (N,) each.

    The boxes to plant are `planted` (N, P, 4), of which those exist that are `valid` (N, P).
    """
    import torch

    label, _ = class_logits(scores, targets)
    fit = tensor_iou(planted[:, :, None], boxes[:, None])  # N P A
    best = fit.topk(min(ANCHORS_PER_PLANT, fit.shape[2]), dim=2)
    raised = label[:, None].expand(fit.shape).gather(2, best.indices)
    lacking = torch.relu(logit(targets.score)[:, None, None] + LOGIT_MARGIN - raised)
    loss = (lacking + 4 * (1 - best.values)).amin(2)
    missing = ((lacking > LOGIT_MARGIN) | (best.values < MIN_PLANTED_IOU)).all(2) & valid
    return (loss * valid).sum(1), missing.any(1)


def fabricating_loss(boxes: Tensor, scores: Tensor, wanted: Tensor, labels: Tensor, every_class: bool) -> Tensor:
    """Return how far each view is from showing the wanted box: (N,).

    `wanted` is (1, 4) in network pixels. Of the boxes that fit it most, the nearest counts. Unless every class of a box
    counts, its wanted class must also exceed the others.
    """
    logits = logit(scores)
    fit = tensor_iou(wanted[:, None], boxes)
    best = fit.topk(min(ANCHORS_PER_PLANT, fit.shape[1]), dim=1)
    own = logits[..., labels].amax(2).gather(1, best.indices)
    lacking = (_logit_of(WANTED_SCORE) + LOGIT_MARGIN - own).relu()
    others = np.setdiff1d(np.arange(logits.shape[2]), labels.cpu().numpy())
    if not every_class and len(others):
        lacking = lacking + (logits[..., others].amax(2).gather(1, best.indices) - own + LOGIT_MARGIN).relu()
    return (lacking + 4 * (1 - best.values)).amin(1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DegradingTargets:
    """The objects of each view in network pixels, for a patch that lowers average precision.

    A label of -1 pads images with fewer objects. Boxes of `classes` can be fabricated. An object is hidden once no box
    that fits it has `score`. With `plants` boxes are planted that filter the right masked boxes without fitting.
    """

    box: Tensor  # (N, O, 4)
    label: Tensor  # (N, O)
    classes: Tensor  # (C,) bool
    score: float
    plants: bool


def degrading_loss(boxes: Tensor, scores: Tensor, targets: DegradingTargets) -> Tensor:
    """Return the loss of all views: shown objects, missing fabricated boxes, missing planted boxes."""
    import torch

    logits, valid = logit(scores), targets.label >= 0
    label = targets.label.clamp(min=0)
    own = logits.gather(2, label[:, None].expand(-1, boxes.shape[1], -1)).transpose(1, 2)  # N O A
    fit = tensor_iou(targets.box[:, :, None], boxes[:, None]) * valid[:, :, None]
    near = fit > MIN_DEGRADED_IOU
    best = own.masked_fill(~near, -20.0).topk(min(BOXES_PER_OBJECT, own.shape[2]), dim=2).values
    required = _logit_of(targets.score) if 0 < targets.score < 1 else 0.0
    shown = torch.relu(best - required + LOGIT_MARGIN).mean(2)
    loss = (shown * valid).sum() / valid.sum().clamp(min=1)
    true_positives = torch.zeros_like(logits, dtype=torch.bool)
    for n in range(targets.label.shape[1]):
        column = torch.nn.functional.one_hot(label[:, n], logits.shape[2]).bool()[:, None]
        true_positives = true_positives | (near[:, n, :, None] & column)
    false_positives = logits.masked_fill(true_positives | ~targets.classes, -20.0).flatten(1)
    fabricated = false_positives.topk(min(FABRICATED_BOXES, false_positives.shape[1]), dim=1).values
    loss = loss + torch.nn.functional.softplus(-fabricated).mean()
    if targets.plants and targets.label.shape[1]:
        covers = (covered_share(targets.box[:, :, None], boxes[:, None]) > MIN_PLANTED_COVER) & (fit < MAX_PLANTED_FIT)
        planted = own.masked_fill(~covers, -20.0).topk(min(BOXES_PER_OBJECT, own.shape[2]), dim=2).values
        lacking = torch.nn.functional.softplus(-planted).mean(2)
        loss = loss + (lacking * valid).sum() / valid.sum().clamp(min=1)
    return loss


def class_logits(scores: Tensor, targets: LossTargets) -> tuple[Tensor, Tensor]:
    """Return the best logit of the object's classes and of the others, for every box: N x A each."""
    logits = logit(scores)
    own = targets.object_classes[:, None].expand_as(logits)
    return logits.masked_fill(~own, -20.0).amax(2), logits.masked_fill(own, -20.0).amax(2)


def logit(scores: Tensor) -> Tensor:
    return scores.clamp(1e-6, 1 - 1e-6).logit()


def _logit_of(score: float) -> float:
    return float(np.log(score / (1 - score)))


def covered_share(objects: Tensor, boxes: Tensor) -> Tensor:
    """Return the share of each object that each box covers."""
    area = (objects[..., 2] - objects[..., 0]) * (objects[..., 3] - objects[..., 1])
    return _intersection(objects, boxes) / area.clamp(min=1e-6)


def tensor_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU of boxes."""
    shared = _intersection(a, b)
    areas = sum(((box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1) for box in (a, b)), start=-shared)
    return shared / areas.clamp(min=1e-6)


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    import torch

    first, last = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    return (last - first).clamp(min=0).prod(-1)


def boxes_to_plant(pipeline: Pipeline, target: Target, immune: Bools) -> Floats:
    """Return base boxes that would filter masked boxes of views without the patch: (P, 4), raw pixels.

    `immune` (M,) are the masks of these views. There is one box for each masked box that finds the object and can be
    filtered without finding it.
    """
    rule, observation = pipeline.rule, target.observation
    share = min(rule.filter_threshold * FILTER_EXCESS, 1.0)
    counts = immune[observation.mask_index] & (rule.discounted_scores(observation) >= rule.min_mask_score)
    counts &= pipeline.finding_boxes(target, observation.all_masked)
    shown: Detections = observation.all_masked[counts]
    chosen: list[Floats] = []
    for box in shown.xyxy[np.argsort(-shown.score, kind="stable")]:
        if any(ioa(box[None], previous[None])[0, 0] > rule.filter_threshold for previous in chosen):
            continue
        parts = end_slices(box, share)
        overlap = pipeline.overlap(target, parts)
        if overlap.min() <= pipeline.certification_threshold:
            chosen.append(parts[np.argmin(overlap)])
    return np.array(chosen[:MAX_PLANTED_BOXES]).reshape(-1, 4)


def end_slices(box: Floats, share: float) -> Floats:
    """Return the four slices of a box, each `share` of its area, at its left, right, upper and lower end."""
    x1, y1, x2, y2 = box
    wide, tall = share * (x2 - x1), share * (y2 - y1)
    slices = (x1, y1, x1 + wide, y2), (x2 - wide, y1, x2, y2), (x1, y1, x2, y1 + tall), (x1, y2 - tall, x2, y2)
    return np.array(slices)
