"""Certification: which objects no allowed patch can hide.

A patch whose pixels a mask removes cannot change what the detector sees under that mask. So the views whose masks
remove the patch are what they were, and if they prove the object, it is found. A half mask removes a patch at (x, y)
of size w x h iff the patch lies on its side of the line (only visible pixels count, and lines lie strictly inside the
image, so this holds for patches that hang over the border, too):

    left: x + w <= line    right: x >= line    top: y + h <= line    bottom: y >= line

Allowed positions are unions of integer rectangles (`threats`), so every position is decided without visiting it.
Two patches at once need views that remove both: every pair of positions is decided by their classes (`positions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import MARGIN, Bound, lower_bound
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area
from objectseeker.core.evidence import stars_of
from objectseeker.core.masks import SIDES, Masks
from objectseeker.core.observation import Observation
from objectseeker.core.positions import Classes, removed_together
from objectseeker.core.pruning import Rule
from objectseeker.core.threats import Patch, Surroundings, sizes
from objectseeker.errors import ObjectSeekerError, require_fraction


@dataclass(frozen=True, slots=True)
class Certificates:
    """Verdicts for the objects of one image, threat by threat.

    - certified (P, N): no allowed position of patch p (of both patches, if its count is 2) hides object n. Vacuously
      true where no position is allowed.
    - vacuous (P, N): the certified pairs that have no allowed position.
    - safe (N, M): under mask m alone, a masked box proves object n, whatever the base boxes are.
    - vulnerable (N, 4): lines XL, YT, XR, YB; a single patch escapes every safe mask iff x + w > XL, y + h > YT,
      x < XR and y < YB.
    - largest_square (N,): side in pixels of the largest square that cannot hide the object anywhere, alone.
    """

    certified: Bools
    vacuous: Bools
    safe: Bools
    vulnerable: Ints
    largest_square: Ints


def certify(
    observation: Observation,
    truth: Detections,
    patches: Patch | Sequence[Patch],
    *,
    mask_score: float,
    filter_ioa: float = 0.6,
    threshold: float = 0.0,
    bound: Bound = "exact",
    classwise: bool = True,
    low_score: float | None = None,
    power: float = 1.0,
    edge_factor: float = 1.0,
    cluster_distance: float = 0.1,
) -> Certificates:
    """Decide for every object of `truth` and every threat whether any allowed patch could hide the object.

    Guarantee: if object g is certified against patch p, then for every allowed position of p (any two of them, if its
    count is 2) and whatever the attacker draws there, `prune` with the same settings and any `base_score` outputs a
    box (of g's label, if classwise) that covers more than `threshold` of g. It holds in exact arithmetic, for a
    detector that is a pure function of the pixels a mask keeps; ties are not certified. An object with no visible
    area is never certified. Any masks certify any count; against two patches `pairs` certify most.
    """
    rule = Rule(
        mask_score=mask_score,
        filter_ioa=filter_ioa,
        classwise=classwise,
        low_score=low_score,
        power=power,
        edge_factor=edge_factor,
        cluster_distance=cluster_distance,
    )
    return certify_with(rule, observation, truth, patches, threshold=threshold, bound=bound)


def certify_with(
    rule: Rule,
    observation: Observation,
    truth: Detections,
    patches: Patch | Sequence[Patch],
    *,
    threshold: float = 0.0,
    bound: Bound = "exact",
) -> Certificates:
    """`certify` under the settings of `rule`, with its guarantee; `rule.base_score` is not used."""
    patches = [patches] if isinstance(patches, Patch) else list(patches)
    for patch in patches:
        if not isinstance(patch, Patch):
            raise ObjectSeekerError(f"patches must be Patch objects, got {patch!r}")
    safe_boxes = provable(observation, truth, rule, threshold=threshold, bound=bound)
    evidence = rule.evidence(rule.scores(observation))
    decisive = safe_boxes & (evidence >= 1)[:, None]
    masks, width, height = observation.masks, observation.width, observation.height
    safe = any_box_of_mask(decisive, observation.mask_of, len(masks))
    vulnerable = escape_lines(safe, masks)
    certified, vacuous = verdicts(vulnerable, truth.xyxy, width, height, patches)
    square = largest_square(vulnerable)
    twice = {p: Classes.of(masks, patch.size(width, height)) for p, patch in enumerate(patches) if patch.count == 2}
    if twice or rule.low_score is not None:  # otherwise the verdicts are final
        surroundings = Surroundings.of(truth.xyxy, width, height)
        allowed = [surroundings.allowed(patch.where, sizes(patch, width, height, len(truth))) for patch in patches]
    for p, classes in twice.items():
        for n in np.flatnonzero(certified[p]).tolist():  # what one patch can hide, two can
            certified[p, n] = proven_twice(classes, allowed[p][n], safe[n])
    if rule.low_score is not None:
        for n in range(len(truth)):
            members = np.flatnonzero(safe_boxes[:, n] & (evidence > 0))
            stars = stars_of(observation, members, evidence[members], rule.cluster_distance)
            for p in np.flatnonzero(~certified[:, n]).tolist():
                certified[p, n] = (
                    stars.prove_pairs(allowed[p][n], twice[p], safe[n])
                    if p in twice
                    else stars.prove_all(allowed[p][n], patches[p].size(width, height), vulnerable[n])
                )
            square[n] = stars.largest_square(vulnerable[n], at_least=int(square[n]))
    visible = visible_area(truth.xyxy, width, height) > 0
    return Certificates(certified & visible, vacuous & visible, safe, vulnerable, np.where(visible, square, 0))


def proven_twice(classes: Classes, allowed: Ints, safe: Bools) -> bool:
    """Does some mask that decides alone (`safe`, (M,)) remove both patches, wherever in `allowed` (R, 4) they are?"""
    return bool(removed_together(classes.hardest(allowed, np.flatnonzero(safe))).all())


def provable(
    observation: Observation, truth: Detections, rule: Rule, *, threshold: float = 0.0, bound: Bound = "exact"
) -> Bools:
    """Which masked boxes prove which objects, filtered or not: (boxes, objects)."""
    require_fraction(threshold, "threshold")
    proves = lower_bound(observation.boxes.xyxy, truth.xyxy, rule.filter_ioa, bound) > threshold + MARGIN
    if rule.classwise:
        proves &= observation.boxes.label[:, None] == truth.label[None]
    return np.asarray(proves)


def any_box_of_mask(flags: Bools, mask_of: Ints, masks: int) -> Bools:
    """(boxes, objects) flags to (objects, masks): is there a flagged box under the mask?"""
    found = np.zeros((flags.shape[1], masks), dtype=np.bool_)
    box, n = np.nonzero(flags)
    found[n, mask_of[box]] = True
    return found


def escape_lines(safe: Bools, masks: Masks) -> Ints:
    """The four lines of `Certificates.vulnerable`: furthest safe left and top mask, nearest safe right and bottom.

    A mask made of two half masks removes one patch iff one of them does, so each of them counts as safe here.
    """
    halves = masks.halves
    safe_half = np.zeros((len(safe), len(halves)), dtype=np.bool_)
    n, mask = np.nonzero(safe)
    safe_half[n[:, None], masks.members[mask]] = True
    lines = np.empty((len(safe), 4), np.int64)
    for side in range(len(SIDES)):
        of_side = np.flatnonzero(halves.side == side)
        found, line = safe_half[:, of_side], halves.line[of_side]
        if side < 2:
            lines[:, side] = np.where(found, line, 0).max(axis=1, initial=0)
        else:
            border = masks.width if side == 2 else masks.height
            lines[:, side] = np.where(found, line, border).min(axis=1, initial=border)
    return lines


def verdicts(
    vulnerable: Ints, truth: Floats, width: npt.ArrayLike, height: npt.ArrayLike, patches: Sequence[Patch]
) -> tuple[Bools, Bools]:
    """`certified` and `vacuous` (P, N) of objects with the given escape lines, each in the image of its size.

    For one patch each, whatever the count: an object that one patch can hide, two can hide.

    The positions that escape every safe mask form one rectangle, so an object is certified iff that rectangle meets
    none of the allowed ones: a fixed number of comparisons, whatever the size of image and patch.
    """
    surroundings = Surroundings.of(truth, width, height)
    certified = np.empty((len(patches), len(truth)), dtype=np.bool_)
    vacuous = np.empty_like(certified)
    for p, patch in enumerate(patches):
        size = sizes(patch, width, height, len(truth))
        allowed = surroundings.allowed(patch.where, size)
        first = np.maximum(allowed[..., :2], (vulnerable[:, :2] - size + 1)[:, None])
        last = np.minimum(allowed[..., 2:], (vulnerable[:, 2:] - 1)[:, None])
        certified[p] = ~(first <= last).all(axis=-1).any(axis=-1)
        vacuous[p] = ~(allowed[..., :2] <= allowed[..., 2:]).all(axis=-1).any(axis=-1)
    return certified, vacuous


def largest_square(vulnerable: Ints) -> Ints:
    """Largest s for which no s x s patch escapes: x + s > XL and x < XR has no solution iff s <= XL - XR + 1."""
    overlap = vulnerable[:, :2] - vulnerable[:, 2:] + 1
    return np.asarray(np.maximum(overlap.max(axis=1), 0))


def visible_area(truth: Floats, width: npt.ArrayLike, height: npt.ArrayLike) -> Floats:
    """Area of each object inside its image; `width` and `height` are one for all, or one per object."""
    limit = np.stack(np.broadcast_arrays(width, height, width, height), axis=-1)
    return area(np.clip(truth, 0, limit))
