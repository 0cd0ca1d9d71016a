"""Certification: which objects no allowed patch can hide.

A patch whose pixels a mask removes cannot change what the detector sees under that mask. So the views whose masks
remove the patch (`Masks.removes`) are what they were, and if they prove the object, it is found.

Allowed positions are unions of integer rectangles (`threats`), so every position is decided without visiting it. A
position escapes the masks that are sufficient on their own iff none of them removes it by x and none by y. Masks that
keep a rectangle leave one rectangle of such positions, given by four lines, and a fixed number of comparisons decides;
bands leave a product of unions of intervals, decided class by class (`positions`), and so is what views prove together
(`evidence`).
Several patches at once need views that remove all of them: every pair of positions is decided by their classes, and
more than two by a search (`ObjectProof.withstands`).

Any number of patches of any size outside the object's grown box (`threats`, location "outside"): let the pixels of the
image change in any way except for those wholly inside that box. A mask whose kept rectangle lies among these shows what
it showed, so the detector, a pure function of the pixels that a mask keeps, reports the same boxes under it. If such
views prove the object it is found, whatever else changed. No patch, no position and no size enters. QED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area, row_blocks
from objectseeker.core.evidence import Stars
from objectseeker.core.masks import SIDES, Masks
from objectseeker.core.notebook import certificates_html
from objectseeker.core.observation import Observation
from objectseeker.core.positions import PositionClasses, contained_sets, jointly_removed, minimal_sets
from objectseeker.core.threats import Patch, PatchPositions, patch_sizes
from objectseeker.errors import ObjectSeekerError

MAX_SEARCH = 5_000  # steps of the search for three positions or more that hide an object
MAX_COMPARED = 4096  # classes that are compared with one another before it


@dataclass(frozen=True, slots=True)
class Certificates:
    """Verdicts for the objects of one image, threat by threat.

    Of a fabrication certificate (`fabrication`) the objects are output boxes, and "hide" reads "have made".

    - certified (P, N): no allowed position of patch p (of all its patches, if its count is 2 or more) hides object n,
      and if the outside is the attacker's nothing there does. Vacuously true where no position is allowed; but against
      the outside only if some view inside the grown box proves the object, even if nothing is outside.
    - vacuous (P, N): the certified pairs that have no allowed position.
    - safe (N, M): under mask m alone, a masked box proves object n, whatever the base boxes are.
    - safe_lines (N, 4): lines XL, YT, XR, YB; a single patch escapes every safe mask that keeps a rectangle (a half
      mask, a pair, a window) iff x + w > XL, y + h > YT, x < XR and y < YB. Bands have no part in it.
    - largest_square (N,): side in pixels of the largest square that cannot hide the object anywhere, alone.

    Example:
        >>> from objectseeker import Detections, Halves, Observation, Patch, Rule
        >>> masks, car = Halves(3).masks(100, 100), Detections([[10, 10, 20, 20]], [0.9], [0])
        >>> seen = Observation(100, 100, masks, base=car, masked=[car] * len(masks))
        >>> Rule().certify(seen, car, [Patch(0.01, location="far")]).certified.tolist()
        [[True]]
    """

    certified: Bools
    vacuous: Bools
    safe: Bools
    safe_lines: Ints
    largest_square: Ints

    def _repr_html_(self) -> str:
        return certificates_html(self)

    @classmethod
    def join(cls, parts: Sequence[Certificates]) -> Certificates:
        """Join the certificates of several groups of objects of one image, in order."""
        return cls(
            certified=np.concatenate([part.certified for part in parts], axis=1),
            vacuous=np.concatenate([part.vacuous for part in parts], axis=1),
            safe=np.concatenate([part.safe for part in parts]),
            safe_lines=np.concatenate([part.safe_lines for part in parts]),
            largest_square=np.concatenate([part.largest_square for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ObjectProof:
    """The proofs of one object: masks under which one box is sufficient, and proofs by combined views."""

    masks: Masks
    safe: Bools  # (M,)
    stars: Stars | None = None  # under the evidence rule

    def restricted_to(self, views: Bools) -> ObjectProof:
        """Return what only some views (M,) prove: those that nothing else the attacker owns can change."""
        stars = None if self.stars is None else self.stars.restricted_to(views)
        return ObjectProof(self.masks, self.safe & views, stars)

    def inside(self, grown: Ints) -> ObjectProof:
        """Return what is proven by views that keep nothing outside the rectangle `grown` (4,)."""
        return self.restricted_to(inside_rectangles(self.masks.kept, grown))

    def few_views(self, views: Bools, cost: npt.ArrayLike = 0) -> Ints | None:
        """Return few of the views (M,) that prove the object together; None if all of them do not.

        Of views that are sufficient on their own it is the one of the lowest `cost` (M,).
        """
        alone = np.flatnonzero(self.safe & views)
        if len(alone):
            return alone[[np.argmin(np.broadcast_to(cost, len(views))[alone])]]
        return None if self.stars is None else self.stars.weakest_proof(views)

    def certifies(self, allowed: Ints, patch: tuple[int, int], count: int = 1) -> bool:
        """Return whether the object is proven for a patch of this size at every position in `allowed` (R, 4).

        With a `count` of 2 or more: for that many such patches at any positions in them, apart, overlapping or at the
        same place. From 3 on a True is exact, and a False may mean that the search was too long (`withstands`).
        """
        classes = PositionClasses.of(self.masks, patch)
        return self._certifies_classes([classes.reached(rectangle) for rectangle in allowed], classes, count)

    def _certifies_classes(self, grids: Sequence[tuple[Ints, Ints]], classes: PositionClasses, count: int = 1) -> bool:
        if count > 2:
            return self.withstands(grids, classes, count)
        if count == 2:
            alone = classes.hardest(grids, np.flatnonzero(self.safe))
            return bool(jointly_removed(alone).all()) or (
                self.stars is not None and self.stars.prove_pairs(grids, classes, self.safe)
            )
        covered: list[Bools] = [np.asarray(removes[:, self.safe].any(axis=1)) for removes in classes.removes]
        for x, y in grids:
            x, y = x[~covered[0][x]], y[~covered[1][y]]  # the classes that escape every safe mask: every x with every y
            if len(x) and len(y) and (self.stars is None or not self.stars.prove(x, y, classes)):
                return False
        return True

    def withstands(self, grids: Sequence[tuple[Ints, Ints]], classes: PositionClasses, count: int) -> bool:
        """Return whether `count` patches at positions of these classes leave views that prove the object.

        Guarantee: True only if for all `count` positions, equal or not, the views that remove every one of the patches
        prove the object.

        Proof: let P be views that prove the object together. Patches that hide it touch at least one view of P, or P is
        left and proves it. So let the first patch be one that touches a view of P: every class that does is tried, and
        for each the views that are left need to withstand one patch less, by the same argument. With no patch left the
        views that are left have to prove the object, which is tested. Classes whose removing views contain those of
        another class are not tried: the other one leaves fewer views (`positions`), so if it hides nothing neither do
        they. After MAX_SEARCH steps the answer is False: not proven, which promises nothing. QED.
        """
        if not any(len(x) and len(y) for x, y in grids):
            return True
        proving = self.safe.copy()
        if self.stars is not None:
            proving[self.stars.center] = True
        views = np.flatnonzero(proving)
        hardest = classes.hardest(grids, views)
        hardest = hardest[minimal_sets(contained_sets(hardest))] if len(hardest) <= MAX_COMPARED else hardest
        removes = np.zeros((len(hardest), len(self.masks)), np.bool_)
        removes[:, views] = hardest
        reach = (~removes).sum(axis=0)  # how many classes touch a view
        steps = 0

        def hides(left: Bools, patches: int) -> bool:
            nonlocal steps
            steps += 1
            few = self.few_views(left, reach)
            if few is None or steps > MAX_SEARCH:
                return True
            if not patches:
                return False
            touching = removes[~removes[:, few].all(axis=1)]
            rest = touching & left
            order = np.argsort(rest.sum(axis=1), kind="stable")  # those that leave least come first
            return any(hides(rest[place], patches - 1) for place in order.tolist())

        return not hides(proving, count)

    def escaping_classes(self, patch: tuple[int, int]) -> Bools:
        """Return where one patch may hide the object: one entry per class of `PositionClasses.of`."""
        classes = PositionClasses.of(self.masks, patch)
        across, down = (np.asarray(~removes[:, self.safe].any(axis=1)) for removes in classes.removes)
        hidden: Bools = np.asarray(across[:, None] & down[None])
        if self.stars is not None and hidden.any():
            x, y = np.flatnonzero(across), np.flatnonzero(down)
            hidden[np.ix_(x, y)] = self.stars.unproven(x, y, classes)
        return hidden

    def largest_square(self, at_least: int = 0) -> int:
        """Side of the largest square that cannot hide the object anywhere, known to be `at_least` so large.

        A smaller square inside a larger one is removed by at least the same masks, so bisection finds it.
        """
        low, high = at_least, max(self.masks.width, self.masks.height)
        while low < high:
            side = (low + high + 1) // 2
            classes = PositionClasses.of(self.masks, (side, side))
            x, y = (np.arange(len(starts)) for starts in classes.starts)
            if self._certifies_classes([(x, y)], classes):
                low = side
            else:
                high = side - 1
        return low


# (boxes, objects): which are sufficient on their own; and each object's stars.
Proving = tuple[Bools, Callable[[int], Stars] | None]
Prover = Callable[[Detections], Proving]
# Of each object's grown box (N, 4): is a view inside it sufficient on its own, and can views inside prove the object?
InsideBoxes = Callable[[Ints], tuple[Bools, Bools]]


def certify_objects(
    observation: Observation,
    objects: Detections,
    patches: Patch | Sequence[Patch],
    proving: Prover,
    *,
    multi_view: bool = False,
) -> Certificates:
    """Certify all objects; `proving` returns the proofs of some of them, as many at once as memory allows.

    `multi_view`: with stars, of which a box may have one, with a number for every mask.
    """
    listed = _listed(patches)
    several = _object_batches(observation, objects, multi_view) or [slice(None)]
    return Certificates.join(
        [_certify_batch(observation, objects[some], listed, *proving(objects[some])) for some in several]
    )


def object_proofs(
    observation: Observation, objects: Detections, proving: Prover, *, multi_view: bool = False
) -> Iterator[Sequence[ObjectProof]]:
    """Yield each object's proofs: one, or none for an object without visible area, as `certificates`."""
    for some in _object_batches(observation, objects, multi_view):
        decisive, together = proving(objects[some])
        safe = any_box_per_mask(decisive, observation.mask_index, len(observation.masks))
        visible = visible_area(objects.xyxy[some], observation.width, observation.height) > 0
        for n in range(len(safe)):
            stars = None if together is None or not visible[n] else together(n)
            yield [ObjectProof(observation.masks, safe[n], stars)] if visible[n] else []


def _object_batches(observation: Observation, objects: Detections, multi_view: bool) -> list[slice]:
    """Split the objects into batches that fit into memory."""
    return list(row_blocks(len(objects), len(observation.all_masked) * (len(observation.masks) if multi_view else 1)))


def _certify_batch(
    observation: Observation,
    objects: Detections,
    patches: Sequence[Patch],
    decisive: Bools,
    together: Callable[[int], Stars] | None,
) -> Certificates:
    masks, width, height = observation.masks, observation.width, observation.height
    safe = any_box_per_mask(decisive, observation.mask_index, len(masks))
    safe_lines = find_safe_lines(safe, masks)
    proofs: dict[int, ObjectProof] = {}

    def proof_of(n: int) -> ObjectProof:
        if n not in proofs:
            proofs[n] = ObjectProof(masks, safe[n], None if together is None else together(n))
        return proofs[n]

    square = largest_square(safe_lines)
    lines_are_all = not masks.has_bands and together is None

    def inside_boxes(grown: Ints) -> tuple[Bools, Bools]:
        inside = inside_rectangles(masks.kept[None], grown[:, None])
        alone = (safe & inside).any(axis=1)
        return np.asarray(alone), np.asarray(alone if together is None else inside.any(axis=1))

    certified, vacuous = decide(
        safe_lines,
        objects.xyxy,
        width,
        height,
        patches,
        proof_of,
        inside_boxes,
        beyond_lines=np.bool_(not lines_are_all),
    )
    visible = visible_area(objects.xyxy, width, height) > 0
    if not lines_are_all:
        for n in np.flatnonzero(visible).tolist():
            square[n] = proof_of(n).largest_square(at_least=int(square[n]))
    return Certificates(certified, vacuous, safe, safe_lines, np.where(visible, square, 0))


def decide(
    safe_lines: Ints,
    objects: Floats,
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    patches: Sequence[Patch],
    proof_of: Callable[[int], ObjectProof],
    inside_boxes: InsideBoxes | None = None,
    *,
    beyond_lines: npt.ArrayLike = True,
) -> tuple[Bools, Bools]:
    """Return `certified` and `vacuous` (P, N), each object in the image of its size: all verdicts.

    The four lines of the safe masks (`safe_lines`) decide all objects at once where they can; otherwise the object's
    proof decides. `beyond_lines` (P, N, or one for all) marks where a proof can certify against one patch
    what the lines do not: by bands, or by combined views. An object that one patch can hide, several can hide.

    `inside_boxes` decides "outside" where its first answer is true or its second is false. An object that the outside
    can hide, patches and the outside together can hide.
    """
    surroundings = PatchPositions.of(objects, width, height)
    size = [patch_sizes(patch, width, height, len(objects)) for patch in patches]
    certified, vacuous = _by_lines(safe_lines, surroundings, patches, size)
    possible = certified | np.broadcast_to(beyond_lines, certified.shape)
    several = np.array([patch.count > 1 for patch in patches], dtype=np.bool_)
    certified = np.where(several[:, None], vacuous, certified)  # lines say nothing about several patches
    outside = np.array([patch.owns_outside for patch in patches], dtype=np.bool_)
    only_outside = np.array([patch.location == "outside" for patch in patches], dtype=np.bool_)
    grown = surroundings.grown() if outside.any() else None
    if grown is not None:
        assert inside_boxes is not None
        alone, together = inside_boxes(grown)
        vacuous[outside] = False
        possible[only_outside] = True
        possible[outside] &= together
        certified[outside] = False
        certified[only_outside] = alone
    undecided = possible & ~certified
    if undecided.any():
        allowed = [
            surroundings.allowed(patch.location, of_patch) for patch, of_patch in zip(patches, size, strict=True)
        ]
        for n in np.flatnonzero(undecided.any(axis=0)).tolist():
            proof = proof_of(n)
            inside, proven_inside = proof, False
            if grown is not None and undecided[outside, n].any():
                inside = proof.inside(grown[n])
                proven_inside = inside.few_views(np.ones(len(proof.masks), np.bool_)) is not None
            for p in np.flatnonzero(undecided[:, n]).tolist():
                pixels = int(size[p][n, 0]), int(size[p][n, 1])
                if only_outside[p]:
                    certified[p, n] = proven_inside
                elif outside[p]:
                    certified[p, n] = proven_inside and inside.certifies(allowed[p][n], pixels, patches[p].count)
                else:
                    certified[p, n] = proof.certifies(allowed[p][n], pixels, patches[p].count)
    visible = visible_area(objects, width, height) > 0
    return certified & visible, vacuous & visible


def inside_rectangles(kept: Ints, outer: Ints) -> Bools:
    """Return whether rectangles (..., 4) lie inside others, pixel by pixel."""
    return np.asarray((kept[..., :2] >= outer[..., :2]).all(axis=-1) & (kept[..., 2:] <= outer[..., 2:]).all(axis=-1))


def any_box_per_mask(flags: Bools, mask_of: Ints, masks: int) -> Bools:
    """Return whether any box under each mask is flagged: flags (boxes, objects) to (objects, masks)."""
    under = np.zeros((flags.shape[1], masks), dtype=np.bool_)
    box, n = np.nonzero(flags)
    under[n, mask_of[box]] = True
    return under


def find_safe_lines(safe: Bools, masks: Masks) -> Ints:
    """Find the `safe_lines`: the furthest left and top line, the nearest right and bottom one.

    A position escapes a mask that keeps [a, b) x [c, d) iff x + w > a, x < b, y + h > c and y < d: all of them iff it
    does so for the largest a and c and the smallest b and d.
    """
    lines = np.empty((len(safe), 4), np.int64)
    for side in range(len(SIDES)):
        of_side = np.flatnonzero(masks.is_line[:, side] & ~masks.is_band)
        is_safe, line = safe[:, of_side], masks.rectangle[of_side, side]
        if side < 2:
            lines[:, side] = np.where(is_safe, line, 0).max(axis=1, initial=0)
        else:
            border = masks.width if side == 2 else masks.height
            lines[:, side] = np.where(is_safe, line, border).min(axis=1, initial=border)
    return lines


def _by_lines(
    safe_lines: Ints, surroundings: PatchPositions, patches: Sequence[Patch], sizes: Sequence[Ints]
) -> tuple[Bools, Bools]:
    """Return `certified` and `vacuous` (P, N) by the safe lines only, for one patch each.

    The positions that escape every safe mask other than bands form one rectangle, so an object is certified iff that
    rectangle meets none of the allowed ones: a fixed number of comparisons, whatever the size of image and patch.
    """
    certified = np.empty((len(sizes), len(safe_lines)), dtype=np.bool_)
    vacuous = np.empty_like(certified)
    for p, (patch, size) in enumerate(zip(patches, sizes, strict=True)):
        rectangles = surroundings.allowed(patch.location, size)
        first = np.maximum(rectangles[..., :2], (safe_lines[:, :2] - size + 1)[:, None])
        last = np.minimum(rectangles[..., 2:], (safe_lines[:, 2:] - 1)[:, None])
        certified[p] = ~np.any(np.all(first <= last, axis=2), axis=1)
        vacuous[p] = ~np.any(np.all(rectangles[..., :2] <= rectangles[..., 2:], axis=2), axis=1)
    return certified, vacuous


def largest_square(safe_lines: Ints) -> Ints:
    """Return the largest s such that no s x s patch escapes.

    x + s > XL and x < XR has no solution iff s <= XL - XR + 1.
    """
    overlap = safe_lines[:, :2] - safe_lines[:, 2:] + 1
    return np.asarray(np.maximum(overlap.max(axis=1), 0))


def visible_area(objects: Floats, width: npt.ArrayLike, height: npt.ArrayLike) -> Floats:
    """Area of each object inside its image; `width` and `height` are one for all, or one per object."""
    limit = np.stack(np.broadcast_arrays(width, height, width, height), axis=-1)
    return area(np.clip(objects, 0, limit))


def _listed(patches: Patch | Sequence[Patch]) -> list[Patch]:
    listed = [patches] if isinstance(patches, Patch) else list(patches)
    for patch in listed:
        if not isinstance(patch, Patch):
            raise ObjectSeekerError(f"patches must be Patch objects: got {patch!r}")
    return listed
