"""The joint certificate: how many objects of an image are guaranteed to remain under any single patch.

A certificate of one object asks whether some position hides it. But one patch is at one place: what it would hide
elsewhere, it does not hide here. So for every position let the proven objects be counted, and take the fewest. "far",
"close" and "over" are relative to one object: of all objects together only "anywhere" can be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools
from objectseeker.core.certification import ObjectProof
from objectseeker.core.masks import Masks
from objectseeker.core.positions import PositionClasses
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError


@dataclass(frozen=True, slots=True, eq=False)
class JointCertificate:
    """The objects of an image that are guaranteed to remain under any single patch of `size`.

    `proven` (N,) marks those proven with the patch at `place` (x, y), the worst position; at every other position at
    least as many are proven.
    """

    patch_size: tuple[int, int]
    worst_position: tuple[int, int]
    proven: Bools

    @property
    def count(self) -> int:
        return int(self.proven.sum())


def certify_jointly(masks: Masks, proofs: Iterable[Sequence[ObjectProof]], size: tuple[int, int]) -> JointCertificate:
    """Count the objects that remain under a patch of `size` at any position, and find the worst position.

    `proofs` are those of each object: one for every detector label that it may be found as, none if nothing can prove
    it. At a position the object is proven if one of them proves it there.

    Guarantee: for every position of the patch and whatever is drawn there, at least `count` of the objects have a box
    in the output as certificates promise it. Proof: a position is decided by its class (`positions`); with the patch in
    it, each object that is counted is proven by the views that remove it, as for a certificate of that object alone,
    and what proves one object does not depend on what is drawn, so all of them are found in the same output. The fewest
    over all classes is taken. QED. An object that is certified for "anywhere" is counted in every class: the share of
    all objects that remain is never below their certified recall.
    """
    classes = PositionClasses.of(masks, size)
    shape = len(classes.starts[0]), len(classes.starts[1])
    hidden = [_hidden(alternatives, size, shape) for alternatives in proofs]
    count = np.zeros(shape, np.int64)
    for grid in hidden:
        count += grid
    x, y = np.unravel_index(np.argmax(count), shape)
    place = _class_center(classes, 0, int(x), masks.width), _class_center(classes, 1, int(y), masks.height)
    return JointCertificate(size, place, np.array([not grid[x, y] for grid in hidden], dtype=np.bool_))


def require_anywhere(patch: Patch) -> Patch:
    """`patch`, checked to be a threat of which a joint certificate can speak."""
    if patch.location != "anywhere" or patch.count != 1:
        raise ObjectSeekerError(
            f"a joint certificate is about one patch anywhere, got {patch!r}: other places are relative to one object"
        )
    return patch


def _hidden(alternatives: Sequence[ObjectProof], size: tuple[int, int], shape: tuple[int, int]) -> Bools:
    hidden = np.ones(shape, dtype=np.bool_)
    for proof in alternatives:
        hidden &= proof.escaping_classes(size)
    return hidden


def _class_center(classes: PositionClasses, axis: int, index: int, limit: int) -> int:
    """A position of a class: its middle, for looking at."""
    starts = classes.starts[axis]
    last = int(starts[index + 1]) - 1 if index + 1 < len(starts) else limit - 1
    return (int(starts[index]) + last) // 2
