"""The IoU variant: robust boxes that fit, not only touch; its guarantee is about IoU.

A masked box is clear if it lies apart from what its mask removes, by more than 1/CLEAR of that axis: the mask did not
cut it. Clear boxes are pruned by IoU and output unchanged; all others go the way of `pruning`, hulls and all.

Why a clear box m of at least mask_threshold cannot be lost without a trace. That m is clear and confident depends on m,
its score and its mask alone, so no patch that the mask removes changes it. Then only two things can drop m:

- a base box b with IoU(m, b) > filter_iou: base boxes are always output;
- non-maximum suppression by a box b with IoU(m, b) > filter_iou: it is greedy, so only boxes that were kept suppress,
  and
  what was kept is output.

Boxes that are not clear never meet m. So m or some b with IoU(m, b) > filter_iou is output, and `iou_lower_bound` says
how well any such box fits the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from objectseeker.core.bounds import MARGIN, SMALLEST_AREA, SMALLEST_FILTER, Bound, lower_bound
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area, intersection, iou, row_blocks
from objectseeker.core.fabrication import SupportCriteria
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.rules.evidence import Rule
from objectseeker.core.rules.interface import Overlap, PruningRule, register_rule
from objectseeker.errors import ObjectSeekerError, require_fraction

CLEARANCE_DIVISOR = 20  # a box is clear when its gap to the mask exceeds 1/CLEAR of the image's width or height
FILTER_IOU = 0.8
IOU_THRESHOLD = 0.5  # the T of this variant, unless told otherwise


@register_rule
@dataclass(frozen=True, slots=True, kw_only=True)
class IouRule(PruningRule):
    """The rule of the IoU variant.

    `ioa_rule` is the rule of the boxes that are not clear; its base_threshold, mask_threshold and classwise hold for
    clear ones as well.

    Guarantee: if object g is certified against patch p, then for every allowed position of p (of both patches, if its
    count is 2) and any pixels drawn there, `prune` outputs a box (of g's label, if classwise) whose IoU with g exceeds
    `certification_threshold`. It holds in exact arithmetic, for a detector that is a pure function of the pixels a mask
    keeps; ties are not certified. An object with no visible area is never certified.

    A mask is safe if under it a clear box of at least mask_threshold has a bound above the certification threshold. See
    the top of this module for why it or a box that fits as well is then output wherever the mask removes the patch (or
    both).

    Example:
        >>> IouRule(ioa_rule=Rule(base_threshold=0.3), filter_iou=0.8).overlap
        'iou'
    """

    kind: ClassVar[str] = "iou"
    overlap: ClassVar[Overlap] = "iou"
    default_certification_threshold: ClassVar[float] = IOU_THRESHOLD
    proof_settings: ClassVar[tuple[str, ...]] = ("filter_iou", "classwise")
    candidate_settings: ClassVar[tuple[str, ...]] = ("filter_iou", *Rule.candidate_settings)

    ioa_rule: Rule = field(default_factory=Rule)
    filter_iou: float = FILTER_IOU

    def __post_init__(self) -> None:
        object.__setattr__(self, "filter_iou", require_fraction(self.filter_iou, "filter_iou"))
        if not isinstance(self.ioa_rule, Rule):
            raise ObjectSeekerError(f"ioa_rule must be a Rule: got {self.ioa_rule!r}")

    @property
    def name(self) -> str:
        return "IoU"

    def describe(self) -> str:
        return "the IoU rule"

    @property
    def base_threshold(self) -> float:
        return self.ioa_rule.base_threshold

    @property
    def mask_threshold(self) -> float:
        return self.ioa_rule.mask_threshold

    @property
    def evidence_threshold(self) -> float | None:
        return self.ioa_rule.evidence_threshold

    @property
    def classwise(self) -> bool:
        return self.ioa_rule.classwise

    @property
    def edge_factor(self) -> float:
        return self.ioa_rule.edge_factor

    @property
    def support_criteria(self) -> SupportCriteria:
        return self.ioa_rule.support_criteria

    @property
    def filter_threshold(self) -> float:
        return self.filter_iou

    @property
    def combines_views(self) -> bool:
        """Return False: clear boxes are sufficient on their own; what others prove is not about IoU."""
        return False

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        return (*Rule.setting_names(), "filter_iou")

    def settings(self) -> dict[str, Any]:
        return {**self.ioa_rule.settings(), "filter_iou": self.filter_iou}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        inner = {name: value for name, value in settings.items() if name != "filter_iou"}
        return cls(ioa_rule=Rule.from_settings(inner), filter_iou=settings.get("filter_iou", FILTER_IOU))

    def with_settings(self, **changes: Any) -> Self:
        filter_iou = changes.pop("filter_iou", self.filter_iou)
        return replace(self, ioa_rule=self.ioa_rule.with_settings(**changes), filter_iou=filter_iou)

    def prune(self, observation: Observation) -> Detections:
        """Base boxes, then the clear boxes that are left, then the hulls of the others.

        Clear masked boxes of at least mask_threshold are dropped if a base box has an IoU above `filter_iou` with them,
        and what is left goes through non-maximum suppression at the same IoU, best scores first, earlier boxes first
        among equals. `classwise=False` ignores labels in all of that.
        """
        base = observation.base.with_min_score(self.base_threshold)
        clear = non_overlapping(observation.all_masked.xyxy, observation.mask_index, observation.masks)
        fitting = observation.all_masked[clear].with_min_score(self.ioa_rule.mask_threshold)
        repeated = [
            self.are_duplicates(fitting[some], base).any(axis=1) for some in row_blocks(len(fitting), len(base))
        ]
        fitting = fitting[~np.concatenate([np.zeros(0, np.bool_), *repeated])]
        fitting = fitting[nms_survivors(fitting.score, lambda i: self.are_duplicates(fitting[i], fitting)[0])]
        hulls = self.ioa_rule.prune(select_masked(observation, ~clear))[len(base) :]
        return Detections.concatenate([base, fitting, hulls])

    def discounted_scores(self, observation: Observation) -> Floats:
        """Those of `ioa_rule`: no edge factor lowers the score of a clear box."""
        return self.ioa_rule.discounted_scores(observation)

    def usable_boxes(self, observation: Observation, boxes: Ints) -> Bools:
        """Clear boxes alone."""
        return non_overlapping(observation.all_masked.xyxy[boxes], observation.mask_index[boxes], observation.masks)

    def lower_bound(self, boxes: Floats, objects: Floats, bound: Bound) -> Floats:
        return iou_lower_bound(boxes, objects, self.filter_iou, bound)

    def are_duplicates(self, a: Detections, b: Detections) -> Bools:
        """Return the duplicates in `a` and `b`: IoU above `filter_iou` and, if classwise, of one label."""
        same = iou(a.xyxy, b.xyxy) > self.filter_iou
        if self.classwise:
            same &= a.label[:, None] == b.label[None]
        return np.asarray(same)


def with_filter_iou(rule: PruningRule, filter_iou: float | None) -> PruningRule:
    """Return the IoU variant of a rule with this `filter_iou`, or with None the rule behind it."""
    ioa_rule = rule.ioa_rule if isinstance(rule, IouRule) else rule
    if filter_iou is None:
        return ioa_rule
    if not isinstance(ioa_rule, Rule):
        raise ObjectSeekerError(f"this rule has no IoU variant: got {ioa_rule!r}. Omit filter_iou.")
    return IouRule(ioa_rule=ioa_rule, filter_iou=filter_iou)


def non_overlapping(boxes: Floats, mask_of: Ints, masks: Masks) -> Bools:
    """Return the boxes apart from what their mask removes, by more than 1/CLEARANCE_DIVISOR of the axis.

    A box is that far inside of every line of the rectangle that its mask keeps, or outside of a band beyond one line.
    """
    is_band, extent = masks.is_band[mask_of], masks.extent
    inside, beyond = ~is_band, np.zeros(len(boxes), np.bool_)
    for edge in range(4):
        axis = edge % 2
        line, is_line = masks.rectangle[mask_of, edge], masks.is_line[mask_of, edge]
        after = CLEARANCE_DIVISOR * (boxes[:, axis] - line) > extent[axis]
        before = CLEARANCE_DIVISOR * (line - boxes[:, axis + 2]) > extent[axis]
        inside &= (after if edge < 2 else before) | ~is_line
        beyond |= (before if edge < 2 else after) & is_line
    return np.asarray(inside | (is_band & beyond))


def nms_survivors(score: Floats, same: Callable[[int], Bools]) -> Ints:
    """Return the boxes that greedy NMS keeps, ascending; `same(i)` are the boxes that box i suppresses."""
    left = np.ones(len(score), dtype=np.bool_)
    kept = []
    for i in np.argsort(-score, kind="stable"):
        if left[i]:
            kept.append(i)
            left &= ~same(int(i))
    return np.sort(np.array(kept, dtype=np.int64))


def select_masked(observation: Observation, keep: Bools) -> Observation:
    """The observation with some of its masked boxes."""
    index = np.flatnonzero(keep)
    ends = np.searchsorted(observation.mask_index[index], np.arange(len(observation.masks) + 1))
    kept = observation.all_masked[index]
    masked = [kept[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    return Observation(observation.width, observation.height, observation.masks, observation.base, masked)


def iou_lower_bound(
    masked: Floats, objects: Floats, filter_iou: float, bound: Bound = "exact", margin: float = MARGIN
) -> Floats:
    """Return the lowest IoU with each object of any box whose IoU with a masked box exceeds `filter_iou`.

    Shape (masked boxes, objects). With m the masked box, g the object, A = |g minus m|, B = |g and m|, C = |m minus g|
    and b any box with IoU(m, b) > tau:

    paper: (tau * B + (tau - 1) * C) / (A + B + C). With u = |m or b| at least |m|: |m and b| > tau * u, so
    |b and g| > tau * u - C and |b or g| <= u + A. (tau * u - C) / (u + A) grows with u, so u = |m| is least.

    exact: m and b share a rectangle R of width p and height q inside m, of area f * |m| with f >= tau, and
    |b minus m| <= f * |m| / tau - |m|. Let j = |R and g|. What b has of g beyond R only helps, so IoU(b, g) is at least
    j / (D - j) with D = |g| + f * |m| + f * |m| / tau - |m|, which grows with j / D. And j is at least
    clip(p - a, 0, w) * clip(q - b, 0, h), as in `bounds`. For fixed q that, divided by D (linear in p), is monotone
    in p on each piece and falls once the clip has reached w; so, moving p, the smallest value is where f = tau or
    where p is m's whole width; likewise for q. That leaves f = tau, where `bounds` has the smallest j = E, and R = m:

        min(E / (|g| + tau * |m| - E), B / (|g| + |m| / tau - B)).

    Both are reached: by a slice of m, and by m extended at a side that g does not reach beyond (if there is none, m
    lies inside g and the first is smaller). So it is the smallest IoU over rectangles b, never below the paper's.

    Guarantee: with the default margin no value that exceeds T + MARGIN belongs to a pair for which some b with IoU(m,
    b) > filter_iou - 1e-12 has IoU(b, g) <= T, in exact arithmetic; the IoUs that pruning computes are off by less than
    16 * 2**-53. (E, tau * |m| - C and 1 / tau each give way by the margin; sums and quotients round by a few 2**-53 of
    values that no cancellation makes small.) IoU(m, g) is never below either bound. Boxes and objects without area give
    0 or less. `margin=0` gives the plain value, for looking at, not for certifying.
    """
    covered = lower_bound(masked, objects, filter_iou, bound, margin) * area(objects)[None]
    if filter_iou < SMALLEST_FILTER:
        return covered  # zeros
    m, g, shared = area(masked)[:, None], area(objects)[None], intersection(masked, objects)
    with np.errstate(divide="ignore", invalid="ignore"):
        if bound == "paper":
            smallest = covered / (m + g - shared)
        else:
            slice_of_m = covered / (g + filter_iou * m - covered)
            extended_m = shared / (g + m / (filter_iou - margin) - shared)
            smallest = np.minimum(slice_of_m, extended_m)
    return np.where((m > SMALLEST_AREA) & (g > SMALLEST_AREA), smallest, 0.0)
