"""The training loss: task-aligned assignment, then class, box and distance terms. Dense, all shapes static.

Overlaps are written here once more because a loss needs them differentiable, for batches on the device.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from objectseeker.detectors.builtin.model import DISTANCE_BINS, anchors

POSITIVES_PER_OBJECT = 10
BOX_WEIGHT, CLASS_WEIGHT, DISTANCE_WEIGHT = 7.5, 0.5, 1.5


def anchor_points(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the anchor points (A, 2) of all levels of a square image in pixels, and their strides (A, 1)."""
    columns, rows, strides = anchors((size, size), device)
    return torch.stack([columns, rows], -1) * strides[:, None], strides[:, None]


def predicted_boxes(box_logits: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """Return boxes (N, A, 4) in pixels: each side is the mean of its predicted distance distribution."""
    shares = box_logits.view(*box_logits.shape[:2], 4, DISTANCE_BINS).softmax(-1)
    distance = (shares * torch.arange(DISTANCE_BINS, device=box_logits.device, dtype=torch.float)).sum(-1) * strides
    return torch.cat([points - distance[..., :2], points + distance[..., 2:]], -1)


def overlap(a: Tensor, b: Tensor, epsilon: float = 1e-7) -> Tensor:
    """Return the IoU of pairs of boxes (broadcast)."""
    corner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    shared = corner.clamp(min=0).prod(-1)
    area_a, area_b = (a[..., 2:] - a[..., :2]).prod(-1), (b[..., 2:] - b[..., :2]).prod(-1)
    return shared / (area_a + area_b - shared + epsilon)


def complete_overlap(a: Tensor, b: Tensor, epsilon: float = 1e-7) -> Tensor:
    """Return the complete IoU: IoU minus penalties for the distance of the centers and the aspect ratio."""
    iou = overlap(a, b, epsilon)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    apart = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    distance = apart.square().sum(-1) / (hull.square().sum(-1) + epsilon)
    (width_a, height_a), (width_b, height_b) = ((box[..., 2:] - box[..., :2]).unbind(-1) for box in (a, b))
    angle = torch.atan(width_b / (height_b + epsilon)) - torch.atan(width_a / (height_a + epsilon))
    aspect = 4 / math.pi**2 * angle.square()
    with torch.no_grad():
        weight = aspect / (aspect - iou + 1 + epsilon)
    return iou - distance - weight * aspect


def assign(
    class_logits: Tensor,
    predicted: Tensor,
    boxes: Tensor,
    labels: Tensor,
    present: Tensor,
    points: Tensor,
    confidence: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Assign anchor points to objects: target boxes (N, A, 4) and soft target scores (N, A, classes).

    An object claims the anchor points inside it whose present prediction, score**0.5 * IoU**6, is best. One claimed by
    several objects goes to the one it overlaps most. A target score is that measure, scaled so that an object's best
    anchor point gets its best IoU, and by the object's `confidence`, N,objects, where that is given.
    """
    count, anchor_count, classes = class_logits.shape
    objects = boxes.shape[1]
    corners = boxes[:, :, None]
    inside = within(boxes, points) & present[..., None]  # N,objects,A
    score = class_logits.sigmoid().transpose(1, 2).gather(1, labels[..., None].expand(-1, -1, anchor_count))
    iou = overlap(corners, predicted[:, None]).clamp(min=0)
    quality = torch.where(inside, score.sqrt() * iou.pow(6), torch.zeros_like(iou))

    best, where = quality.topk(POSITIVES_PER_OBJECT, -1)
    claimed = torch.zeros_like(inside).scatter_(-1, where, best > 0) & inside
    largest, owner = torch.where(claimed, iou, torch.full_like(iou, -1.0)).max(1)
    assigned = claimed & (owner[:, None] == torch.arange(objects, device=boxes.device).view(1, -1, 1))

    quality = quality * assigned
    best_iou = (iou * assigned).amax(-1, keepdim=True)
    strength = (quality / (quality.amax(-1, keepdim=True) + 1e-9) * best_iou).amax(1) * (largest >= 0)
    if confidence is not None:
        strength = strength * confidence.gather(1, owner)
    target_boxes = boxes.gather(1, owner[..., None].expand(count, anchor_count, 4))
    target_scores = F.one_hot(labels.gather(1, owner), classes).float() * strength[..., None]
    return target_boxes, target_scores


def whole_confidence(scores: Tensor, predicted: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    """Return (N, objects): the best score of an object's label among the predictions that match it (IoU 0.5)."""
    scores = scores.transpose(1, 2)
    score = scores.gather(1, labels[..., None].expand(-1, -1, scores.shape[2]))
    return (score * (overlap(boxes[:, :, None], predicted[:, None]) >= 0.5)).amax(-1)


def distance_loss(box_logits: Tensor, target_boxes: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """Return (N, A): cross entropy between the distance distribution and the two bins around the true distance."""
    distance = torch.cat([points - target_boxes[..., :2], target_boxes[..., 2:] - points], -1) / strides
    distance = distance.clamp(0, DISTANCE_BINS - 1.01)
    lower = distance.floor()
    upper_share = distance - lower
    log_shares = box_logits.view(*box_logits.shape[:2], 4, DISTANCE_BINS).log_softmax(-1)
    bin_below = lower.long()[..., None]
    below = log_shares.gather(-1, bin_below)[..., 0]
    above = log_shares.gather(-1, bin_below + 1)[..., 0]
    return -(below * (1 - upper_share) + above * upper_share).mean(-1)


def detection_loss(
    box_logits: Tensor,
    class_logits: Tensor,
    boxes: Tensor,
    labels: Tensor,
    present: Tensor,
    points: Tensor,
    strides: Tensor,
    *,
    doubtful: tuple[Tensor, Tensor, Tensor] | None = None,
    paired: bool = False,
    taught: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss, and its three parts (box, class, distance) for the log.

    `doubtful` are boxes, labels and which of them are present: for an anchor point in one that is to find no object,
    the score of that label is neither right nor wrong.

    With `paired`, the second half of the batch are masked versions of the first: an object's target score in them is
    scaled by how sure the network is of it in the whole sample, so that masking reveals nothing new. `taught` are a
    teacher's box and class logits for the whole samples: then its answers are the targets there, and it is the one who
    says how sure one is.
    """
    box_logits, class_logits = box_logits.float(), class_logits.float()
    predicted = predicted_boxes(box_logits, points, strides)
    confidence = None
    if paired:
        half = len(boxes) // 2
        if taught is None:
            whole_boxes, whole_scores = predicted[:half].detach(), class_logits[:half].detach().sigmoid()
        else:
            whole_boxes, whole_scores = predicted_boxes(taught[0].float(), points, strides), taught[1].float().sigmoid()
        sure = whole_confidence(whole_scores, whole_boxes, boxes[:half], labels[:half])
        confidence = torch.cat([torch.ones_like(sure), sure])
    targets, target_scores = assign(
        class_logits.detach(), predicted.detach(), boxes, labels, present, points, confidence
    )
    if taught is not None:
        targets = torch.cat([whole_boxes, targets[half:]])
        target_scores = torch.cat([whole_scores, target_scores[half:]])
    parts = loss_parts(predicted, box_logits, class_logits, targets, target_scores, doubtful, points, strides).sum(0)
    parts = parts / target_scores.sum().clamp(min=1)
    return weighted(parts), parts.detach()


def sample_losses(
    box_logits: Tensor,
    class_logits: Tensor,
    boxes: Tensor,
    labels: Tensor,
    present: Tensor,
    points: Tensor,
    strides: Tensor,
    *,
    doubtful: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Return (N): the loss of each sample in its own batch."""
    box_logits, class_logits = box_logits.float(), class_logits.float()
    predicted = predicted_boxes(box_logits, points, strides)
    targets, scores = assign(class_logits, predicted, boxes, labels, present, points, None)
    parts = loss_parts(predicted, box_logits, class_logits, targets, scores, doubtful, points, strides)
    return weighted(parts) / scores.sum((1, 2)).clamp(min=1)


def loss_parts(
    predicted: Tensor,
    box_logits: Tensor,
    class_logits: Tensor,
    targets: Tensor,
    target_scores: Tensor,
    doubtful: tuple[Tensor, Tensor, Tensor] | None,
    points: Tensor,
    strides: Tensor,
) -> Tensor:
    """Return (N, 3): the box, class and distance terms of each sample, summed over its anchor points."""
    weight = target_scores.sum(-1)
    # Anchor points without an object get a harmless box: their weight is zero, their gradient must be finite.
    harmless = torch.cat([points - strides, points + strides], -1).expand_as(targets)
    targets = torch.where((weight > 0)[..., None], targets, harmless)
    box_part = ((1 - complete_overlap(predicted, targets)) * weight).sum(1)
    class_part = F.binary_cross_entropy_with_logits(class_logits, target_scores, reduction="none")
    if doubtful is not None:
        open_question = in_doubt(*doubtful, points, class_logits.shape[2]) & (weight == 0)[..., None]
        class_part = class_part * ~open_question
    class_part = class_part.sum((1, 2))
    distance_part = (distance_loss(box_logits, targets, points, strides) * weight).sum(1)
    return torch.stack([box_part, class_part, distance_part], 1)


def in_doubt(boxes: Tensor, labels: Tensor, present: Tensor, points: Tensor, classes: int) -> Tensor:
    """Return (N, A, classes): whether an anchor point is inside a doubtful box of that class.

    Only of that class: who is not sure of a table can still be sure that there is no bus.
    """
    own = F.one_hot(labels.clamp(min=0), classes).float() * present[..., None]
    return own.transpose(1, 2).matmul(within(boxes, points).float()).transpose(1, 2) > 0


def within(boxes: Tensor, points: Tensor) -> Tensor:
    """Return (N, boxes, A): whether a point is inside a box."""
    corners = boxes[:, :, None]
    return torch.minimum(points - corners[..., :2], corners[..., 2:] - points).amin(-1) > 1e-6


def weighted(parts: Tensor) -> Tensor:
    """Combine box, class and distance terms (the last axis) into the loss."""
    box_part, class_part, distance_part = parts.unbind(-1)
    return BOX_WEIGHT * box_part + CLASS_WEIGHT * class_part + DISTANCE_WEIGHT * distance_part
