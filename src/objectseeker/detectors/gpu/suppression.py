"""Candidates and suppression for all views at once, on whatever device the tensors are: nothing waits for the host.

Shapes are fixed: every view keeps the same number of candidates, so that one recorded sequence of kernels serves all
inputs, and what one view shows never changes how another is computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

Tensor = Any

LARGEST_NUMBER = 2**31 - 1  # of a candidate
ROUNDS = 12  # of suppression; real images need about five, and what has not settled then is the host's to finish


class Suppression(NamedTuple):
    """`keep` V x K, and of each view whether it has settled."""

    keep: Tensor
    settled: Tensor


def best_first(score: Tensor, number: Tensor, floor: float, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best candidates of each view: their numbers V x K and scores V x K, -1 where there is no candidate.

    `score` is V x N, `number` likewise or N, from 0 on and all different. Of equal scores the lower number comes first,
    as on the CPU: score and number are packed into one whole number, so no two are equal and the selection does not
    depend on how the device breaks ties. Scores that are not finite or below `floor` are no candidates.
    """
    usable = torch.isfinite(score) & (score >= floor)
    score = torch.where(usable, score.clamp(max=1.0), -1.0).float()
    # The bits of floats from 0 on are ordered like the floats; everything without a score gets a key below all others.
    bits = torch.where(score >= 0, (score + 0.0).view(torch.int32).to(torch.int64), -1)
    key = torch.topk(bits * 2**32 + (LARGEST_NUMBER - number), min(count, score.shape[1]), dim=1).values
    bits = key >> 32
    return LARGEST_NUMBER - key % 2**32, torch.where(bits >= 0, bits.to(torch.int32).view(torch.float32), -1.0)


def suppress(boxes: Tensor, label: Tensor, valid: Tensor, threshold: float) -> Suppression:
    """Greedy suppression of boxes V x K x 4 of the same label, best first; `valid` V x K says which are boxes at all.

    The same result as `nms.nms` view by view: the overlap is computed in double precision with the same operations. A
    box stays if no better box that stays is its rival. Starting from "all stay" and applying that rule to all boxes at
    once, after n rounds the first n boxes are right, so the answer is where nothing changes any more, and there is only
    one such place. Chains are short, so that takes few rounds. An attacker can draw a longer one: whether a view has
    settled is said of each by itself, so that nothing about a view depends on what another shows.
    """
    x1, y1, x2, y2 = boxes.double().unbind(-1)
    width = torch.minimum(x2[:, :, None], x2[:, None]) - torch.maximum(x1[:, :, None], x1[:, None])
    height = torch.minimum(y2[:, :, None], y2[:, None]) - torch.maximum(y1[:, :, None], y1[:, None])
    shared = width.clamp_(min=0).mul_(height.clamp_(min=0))
    area = (x2 - x1) * (y2 - y1)
    union = (area[:, :, None] + area[:, None]).sub_(shared)
    close = shared.div_(union) > threshold
    close &= label[:, :, None] == label[:, None]
    close &= valid[:, :, None] & valid[:, None]
    # Only zeros and ones are multiplied, and only "more than none" is asked of a sum: exact in any precision.
    rivals = close.triu_(1).to(torch.float16 if boxes.is_cuda else torch.float32)
    keep, settled = valid, None
    for _ in range(ROUNDS):
        keep, before = _round(keep, rivals, valid), keep
        settled = (keep == before).all(1)
    return Suppression(keep, settled)


def _round(keep: Tensor, rivals: Tensor, valid: Tensor) -> Tensor:
    losses = keep[:, None].to(rivals.dtype) @ rivals
    return valid & (losses[:, 0] == 0)
