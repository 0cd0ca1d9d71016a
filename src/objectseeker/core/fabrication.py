"""Fabrication certificates: which output boxes, and which scores, no allowed patch can have made.

A hiding certificate says what a patch cannot take away; this one says what it cannot have added. Let b be an output box
with label l. A masked box supports b if it has label l (any label, if the rule is class-agnostic), a score of at least
`support_threshold`, and fits b: by an IoU above `support_overlap`, or by IoA if more than SUPPORT_INSIDE of it is in
b and it covers more than `support_overlap` of b. b is certified not fabricated against a patch threat if for every
allowed position of the patch (of both, if there are two) some mask that removes it has a box that supports b.

Guarantee: let X be the image that was observed, attacked or not, and let it differ from a scene X0 in the pixels of one
patch of the threat alone (of two, if its count is 2), with any pixels, at any allowed position. If b is certified, the
detector reports a box that supports b on a view of X0. So the patch made neither b nor its label.

Proof: let the patch be at position p. b is certified, so some mask m that removes a patch at p has a box that supports
b. The view of X under m shows no pixel of the patch, and outside the patch X is X0, so the view of X0 under m has the
same pixels. The detector is a pure function of them, so it reports the same box on that view of X0. Whether a masked
box supports b depends on that box, its score and b alone, and b is given. QED.

What it rests on: X is the image at hand, so nothing is assumed about it; the detector is pure at the batch shape used
(`objectseeker check`); the observation holds what the detector reported under these very masks, so a view that was not
observed supports nothing; and the threat is about b: far, close and over are relative to the output box itself.
What it does not say: that b is right. A mistake that the detector makes on clean pixels is certified as one.

The score of a supporting box is the detector's own, without `edge_factor`: that depends on box and mask alone, so
either would be sound, and this one is what the detector says. Each supporting box is sufficient on its own, so all
closed forms of `certification` hold, with the masks of such boxes as the safe masks.

The certified score of b is the least, over the allowed positions, of the best score of a masked box of b's label that
fits b, among the masks that remove the patch; 0 where there is none. By the same proof, at any threshold instead of
`support_threshold`, no allowed patch has made it; and b is certified iff it is at least `support_threshold`. Against
one patch it has a closed form: a mask removes a position by x or by y, so with a(x) and c(y) the best scores of the
masks that do, the best at (x, y) is max(a(x), c(y)), and its least over a rectangle of positions is the larger of the
least a and the least c. Several patches, or the outside, have none: the certified score is then the largest threshold
that certifies b.

Joint: one patch is at one place. At every position p it can have made only boxes without support at p, so of all
boxes of an image at most as many are fabricated as are without support at the worst position (`joint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from objectseeker.core.bounds import MARGIN, SMALLEST_AREA
from objectseeker.core.boxes import Bools, Detections, Floats, area, row_blocks
from objectseeker.core.certification import Prover, Proving, certify_objects, visible_area
from objectseeker.core.observation import Observation
from objectseeker.core.positions import PositionClasses
from objectseeker.core.threats import Patch, PatchPositions, patch_sizes
from objectseeker.errors import ObjectSeekerError, require_fraction

SupportFit = Literal["iou", "ioa"]

SUPPORT_INSIDE = 0.7  # a box that fits by IoA is in the output box by more than this share of it


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportCriteria:
    """The settings of fabrication certificates: when a masked box supports an output box.

    `threshold`, `fit` and `overlap` are `support_threshold`, `support_fit` and `support_overlap` of the rule. If not
    `classwise`, labels are ignored, and a certificate then says nothing about the label.
    """

    threshold: float = 0.2
    fit: SupportFit = "iou"
    overlap: float = 0.3
    classwise: bool = True

    def __post_init__(self) -> None:
        for name in ("threshold", "overlap"):
            object.__setattr__(self, name, require_fraction(getattr(self, name), f"support_{name}"))
        if self.threshold == 0:
            raise ObjectSeekerError(f"support_threshold must be above 0: got {self.threshold!r}")
        if self.fit not in get_args(SupportFit):
            raise ObjectSeekerError(f"support_fit must be one of {', '.join(get_args(SupportFit))}: got {self.fit!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return what fabrication certificates are about, for files."""
        return {
            "support_threshold": self.threshold,
            "support_fit": self.fit,
            "support_overlap": self.overlap,
        }

    def fits(self, boxes: Detections, detections: Detections) -> Bools:
        """Return which boxes fit which detections, whatever their scores: (boxes, detections).

        Guarantee: what fits does in exact arithmetic. Areas and their ratios are off by a few 2**-53 of themselves, far
        less than MARGIN; ties, and boxes too small for that, do not fit.
        """
        fitting = np.ones((len(boxes), len(detections)), dtype=np.bool_)
        if self.classwise:
            fitting = boxes.label[:, None] == detections.label[None]
        box, n = np.nonzero(fitting)  # few pairs share a label: only those are measured
        a, b = boxes.xyxy[box], detections.xyxy[n]
        sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
        shared = np.maximum(sides[:, 0], 0) * np.maximum(sides[:, 1], 0)
        own, other = area(a), area(b)
        if self.fit == "iou":
            fits = shared > (self.overlap + MARGIN) * (own + other - shared)
        else:
            fits = (shared > (SUPPORT_INSIDE + MARGIN) * own) & (shared > (self.overlap + MARGIN) * other)
        fitting[box, n] = fits & (own > SMALLEST_AREA) & (other > SMALLEST_AREA)
        return fitting

    def supports(self, observation: Observation, detections: Detections) -> Bools:
        """Return which masked boxes support which boxes: (masked boxes, detections)."""
        enough = observation.all_masked.score >= self.threshold
        supports = np.zeros((len(enough), len(detections)), dtype=np.bool_)
        supports[enough] = self.fits(observation.all_masked[enough], detections)
        return supports

    def prover(self, observation: Observation) -> Prover:
        """Return what supports boxes: every fabrication certificate is made of it."""
        return lambda detections: (self.supports(observation, detections), None)


DEFAULT_SUPPORT = SupportCriteria()


def certified_scores(
    observation: Observation, detections: Detections, patch: Patch, criteria: SupportCriteria
) -> Floats:
    """Return the score of each box that no such patch can have made; 1 where no position is allowed.

    Guarantee: if the score of box n is above 0, and the observed image differs from a scene in the pixels of one patch
    (of two) of this threat alone, the detector reports a box that fits box n, of at least that score, on a view of that
    scene. It is at least `criteria.threshold` iff box n is certified not fabricated. A box without visible area has 0.
    """
    scores = np.zeros(len(detections))
    for some in row_blocks(len(detections), len(observation.all_masked) + len(observation.masks)):
        boxes = detections[some]
        visible = visible_area(boxes.xyxy, observation.width, observation.height) > 0
        least = _least_score if patch.has_one_position else _largest_threshold
        scores[some] = np.where(visible, least(observation, boxes, patch, criteria), 0.0)
    return scores


def ranking_scores(base_scores: Floats, scores: Floats, certified_scores: Floats) -> Floats:
    """Return the mean of base score and certified score, to rank output boxes by.

    Args:
        base_scores: The score of each box in the untouched image; 0 for a recovered box.
        scores: The score of each output box.
        certified_scores: The certified score of each; at most `scores` of it counts.
    """
    return (base_scores + np.minimum(scores, certified_scores)) / 2


def _least_score(observation: Observation, detections: Detections, patch: Patch, criteria: SupportCriteria) -> Floats:
    """Return the least of the best scores over the allowed positions of one patch, in closed form."""
    width, height = observation.width, observation.height
    best = np.zeros((len(detections), len(observation.masks)))  # of a fitting box under each mask
    box, of_box = np.nonzero(criteria.fits(observation.all_masked, detections))
    np.maximum.at(best, (of_box, observation.mask_index[box]), observation.all_masked.score[box])
    classes = PositionClasses.of(observation.masks, patch.size(width, height))
    along = [
        np.stack([best[:, masks].max(axis=1, initial=0.0) for masks in removes], axis=1) for removes in classes.removes
    ]  # the best score among the masks that remove a patch of each class: (detections, classes)
    least = np.ones(len(detections))
    allowed = PatchPositions.of(detections.xyxy, width, height).allowed(
        patch.location, patch_sizes(patch, width, height, len(detections))
    )
    for n, rectangles in enumerate(allowed):
        for rectangle in rectangles:
            x, y = classes.reached(rectangle)
            if len(x) and len(y):
                least[n] = min(least[n], max(along[0][n, x].min(), along[1][n, y].min()))
    return least


def _largest_threshold(
    observation: Observation, detections: Detections, patch: Patch, criteria: SupportCriteria
) -> Floats:
    """Return the largest threshold that certifies each box, by bisection; 0 if none does.

    A lower threshold makes more masks safe, and more safe masks certify no less.
    """
    masked = observation.all_masked

    def proving(objects: Detections) -> Proving:
        return criteria.fits(masked, objects) & (masked.score[:, None] >= objects.score), None

    # 1 is for boxes that no allowed position concerns; 0 promises nothing, so it is never tested
    levels = np.unique(np.append(masked.score, [0.0, 1.0]))
    low = np.zeros(len(detections), np.int64)  # the last level that certifies
    high = np.full(len(detections), len(levels))  # the first that does not
    while (high - low > 1).any():
        middle = (low + high) // 2
        at_level = Detections(detections.xyxy, levels[middle], detections.label)  # each box's threshold as its score
        certified = certify_objects(observation, at_level, patch, proving).certified[0]
        low, high = (
            np.where(certified, np.maximum(middle, low), low),
            np.where(certified, high, np.minimum(middle, high)),
        )
    return np.asarray(levels[low])
