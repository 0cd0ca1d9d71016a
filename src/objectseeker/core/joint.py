"""The joint certificate: how many objects of an image are guaranteed to remain under any single patch.

A certificate of one object asks whether some position hides it. But one patch is at one place: what it would hide
elsewhere, it does not hide here. So for every position let the proven objects be counted, and take the fewest. "far",
"close" and "over" are relative to one object: of all objects together only "anywhere" can be asked.

One output box may be what several of these certificates promise: a base box over the whole image covers every object,
and drops every masked box of its label. So boxes are counted, too (`count_boxes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.certification import ObjectProof
from objectseeker.core.masks import Masks
from objectseeker.core.positions import PositionClasses
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError


@dataclass(frozen=True, slots=True, eq=False)
class JointCertificate:
    """The objects of an image that are guaranteed to remain under any single patch of `patch_size`.

    `proven` (N,) marks those proven with the patch at `worst_position` (x, y); at every other position at least as many
    are proven. At every position, what is proven there takes at least `boxes` different boxes of the output.
    """

    patch_size: tuple[int, int]
    worst_position: tuple[int, int]
    proven: Bools
    boxes: int

    @property
    def count(self) -> int:
        return int(self.proven.sum())


def certify_jointly(
    masks: Masks, proofs: Iterable[Sequence[ObjectProof]], size: tuple[int, int], may_share: Bools | None = None
) -> JointCertificate:
    """Count the objects that remain under a patch of `size` at any position, and find the worst position.

    `proofs` are those of each object: one for every detector label that it may be found as, none if nothing can prove
    it. At a position the object is proven if one of them proves it there. `may_share` says which two of all proofs, in
    their order, one output box may satisfy (`PruningRule.may_share_box`); None: each its own.

    Guarantee: for every position of the patch and whatever is drawn there, at least `count` of the objects have a box
    in the output as certificates promise it. Proof: a position is decided by its class (`positions`); with the patch in
    it, each object that is counted is proven by the views that remove it, as for a certificate of that object alone,
    and what proves one object does not depend on what is drawn, so all of them are found in the same output. The fewest
    over all classes is taken. QED. An object that is certified for "anywhere" is counted in every class: the share of
    all objects that remain is never below their certified recall. And at every position the output has at least `boxes`
    different boxes that satisfy them: see `count_boxes`.

    With proofs of views inside each object's grown box alone (`ObjectProof.inside`) the same holds if, in addition to
    the patch, any pixels change that are outside the grown boxes of all objects that are counted.
    """
    classes = PositionClasses.of(masks, size)
    shape = len(classes.starts[0]), len(classes.starts[1])
    escapes = [[proof.escaping_classes(size) for proof in alternatives] for alternatives in proofs]
    hidden = [np.logical_and.reduce(of_object, axis=0, initial=True) for of_object in escapes]
    count = np.zeros(shape, np.int64)
    for grid in hidden:
        count += grid
    x, y = np.unravel_index(np.argmax(count), shape)
    place = _class_center(classes, 0, int(x), masks.width), _class_center(classes, 1, int(y), masks.height)
    each = np.array([grid for of_object in escapes for grid in of_object], dtype=np.bool_).reshape(-1, count.size)
    return JointCertificate(
        size,
        place,
        np.array([not np.broadcast_to(grid, shape)[x, y] for grid in hidden], dtype=np.bool_),
        int(count_boxes(~each, np.eye(len(each), dtype=np.bool_) if may_share is None else may_share).min()),
    )


def count_boxes(proven: Bools, may_share: Bools) -> Ints:
    """Count the output boxes that certificates guarantee at least, at each of several positions.

    `proven` (proofs, positions) says what is proven where; `may_share` (proofs, proofs), symmetric, which two proofs
    one box may satisfy, each with itself.

    Guarantee: at each position the output has at least that many different boxes, each of which satisfies a proof that
    holds there. Proof: proofs are chosen in order, each only if it holds and no box may satisfy it and an
    earlier choice. Each choice is satisfied by a box of the output, and no box satisfies two of them. QED.

    Under a rule of covered area these are the labels of the proofs that hold, or one box if labels are ignored, and an
    attacker reaches that: with a base box of each of these labels over the whole image, which drops every masked box of
    its label. So one hull over everything never beats the count, and no larger one is guaranteed.
    """
    patterns, which = np.unique(proven, axis=1, return_inverse=True)
    count = np.zeros(patterns.shape[1], np.int64)
    left = patterns.copy()
    for row in np.argsort(may_share.sum(axis=1), kind="stable").tolist():  # the most exclusive first: more are left
        chosen = left[row].copy()
        count += chosen
        left[may_share[row]] &= ~chosen
    return np.asarray(count[which.ravel()])


def require_anywhere(patch: Patch) -> Patch:
    """`patch`, checked to be a threat of which a joint certificate can speak."""
    if patch.location != "anywhere" or patch.count != 1:
        raise ObjectSeekerError(
            f"a joint certificate needs one patch anywhere: got {patch!r}: other places are relative to one object"
        )
    return patch


def _class_center(classes: PositionClasses, axis: int, index: int, limit: int) -> int:
    """A position of a class: its middle, for looking at."""
    starts = classes.starts[axis]
    last = int(starts[index + 1]) - 1 if index + 1 < len(starts) else limit - 1
    return (int(starts[index]) + last) // 2
