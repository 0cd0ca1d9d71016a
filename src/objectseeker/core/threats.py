"""The threat model of a certificate: a patch, and the positions that it may take."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Floats, Ints
from objectseeker.errors import ObjectSeekerError, require_count, require_flag, require_fraction, require_number

if TYPE_CHECKING:
    from objectseeker.core.rules import PruningRule

PatchLocation = Literal["far", "close", "over", "anywhere", "outside"]
# The locations of the protocol standard-1, in its order. "outside" is not among them: only windows withstand it. It
# comes last, so rows for all locations begin with those of the protocol.
PATCH_LOCATIONS: tuple[PatchLocation, ...] = ("far", "close", "over", "anywhere")
ALL_LOCATIONS: tuple[PatchLocation, ...] = get_args(PatchLocation)
MAX_PATCHES = 16

FAR = 10  # a patch is far from an object when the gap exceeds 1/FAR of the image's width or height
LONGEST_ASPECT = 1e6


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle the attacker may fill with any pixels, or several of them (`count`).

    `area` is its share of the image, 0.01 or "1%", `aspect` its width divided by its height; of several patches each
    has that size. A patch of another shape is covered by its bounding rectangle. It may hang over the image border.
    `location` says which positions are allowed, object by object; of several patches each may take any of them, apart,
    overlapping or the same:

    - over: the patch overlaps the object's box with positive area;
    - far: it does not, and the gap exceeds 10 % of the image's width along x or 10 % of its height along y;
    - close: all other positions that do not overlap;
    - anywhere: all positions;
    - outside: no patch touches the object's box grown by 10 % of the image's width and height at each side. Then
      `area`, `aspect` and `count` mean nothing: the attacker may have any number of patches there, of any size and
      shape. Every pixel that is not wholly inside the grown box is the attacker's.

    `with_outside` gives the attacker all of that outside in addition to the patches: one carried by the object itself,
    say, while any number of others are carried elsewhere.

    Example:
        >>> Patch(area=0.01, location="anywhere").size(640, 480)  # pixels
        (56, 56)
    """

    area: float = 0.01
    aspect: float = 1.0
    location: PatchLocation = "over"
    count: int = 1
    with_outside: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", _area_of(self.area))
        require_flag(self.with_outside, "with_outside")
        object.__setattr__(self, "aspect", require_number(self.aspect, "patch aspect"))
        if self.area == 0:
            raise ObjectSeekerError(f"patch area must be above 0: got {self.area!r}")
        if not 1 / LONGEST_ASPECT <= self.aspect <= LONGEST_ASPECT:
            raise ObjectSeekerError(f"patch aspect must lie within [1e-6, 1e6]: got {self.aspect!r}")
        if self.location not in ALL_LOCATIONS:
            raise ObjectSeekerError(f"location must be one of {', '.join(ALL_LOCATIONS)}: got {self.location!r}")
        object.__setattr__(self, "count", require_count(self.count, "patch count"))
        if self.count > MAX_PATCHES:
            raise ObjectSeekerError(f"patch count must be at most {MAX_PATCHES}: got {self.count!r}")

    @property
    def owns_outside(self) -> bool:
        """Return whether every pixel outside the object's grown box is the attacker's."""
        return self.with_outside or self.location == "outside"

    @property
    def has_one_position(self) -> bool:
        """Return whether a position of one patch says all that the attacker can change."""
        return self.count == 1 and not self.owns_outside

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels in an image of that size; both round up."""
        pixels = self.area * width * height
        return math.ceil(math.sqrt(pixels * self.aspect)), math.ceil(math.sqrt(pixels / self.aspect))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatModel:
    """A patch, every location it may have, and how well an object must stay found.

    `certification_threshold` is the T of the certificates; None is the rule's default: 0, for an `IouRule` 0.5.
    `locations` are those of the protocol standard-1, in its order; "outside" may follow.
    """

    area: float = 0.01
    aspect: float = 1.0
    count: int = 1
    certification_threshold: float | None = None
    bound: Bound = "exact"
    locations: tuple[PatchLocation, ...] = PATCH_LOCATIONS

    def __post_init__(self) -> None:
        if self.locations not in (PATCH_LOCATIONS, ALL_LOCATIONS):
            raise ObjectSeekerError(
                f"locations must be {', '.join(PATCH_LOCATIONS)}, and may end with outside: got {self.locations!r}"
            )
        if self.certification_threshold is not None:
            require_fraction(self.certification_threshold, "certification_threshold")
        if self.bound not in get_args(Bound):
            raise ObjectSeekerError(f"bound must be one of {', '.join(get_args(Bound))}: got {self.bound!r}")
        object.__setattr__(self, "area", self.patches()[0].area)

    def patches(self) -> list[Patch]:
        """Return the patch at every location, in their order."""
        return [Patch(self.area, self.aspect, where, self.count) for where in self.locations]

    def at_all_locations(self, has_windows: bool = True) -> ThreatModel:
        """Return the threat with the location "outside", which is shown where a defense has windows."""
        return replace(self, locations=ALL_LOCATIONS if has_windows else PATCH_LOCATIONS)

    def describe(self) -> str:
        """Describe the patches as a short phrase."""
        subject = "a patch" if self.count == 1 else f"{self.count} patches"
        aspect = "" if self.aspect == 1 else f", aspect {self.aspect:g}"
        return f"{subject} of {100 * self.area:g} %{aspect}"

    def to_dict(self, rule: PruningRule) -> dict[str, Any]:
        """Return what certificates of `rule` are about, for files."""
        return {
            "patch_area": self.area,
            "patch_aspect": self.aspect,
            "patch_count": self.count,
            "certification_threshold": rule.resolve_threshold(self.certification_threshold),
            "bound": self.bound,
        }

    def anywhere(self) -> Patch:
        """Return the patch of a joint certificate, which is about a single one."""
        return Patch(self.area, self.aspect, "anywhere")


def _area_of(area: float | str) -> float:
    """Return an area as a share; warn of a bare 1, which is the whole image."""
    if isinstance(area, str):
        return parse_area(area)
    if isinstance(area, int) and area == 1 and not isinstance(area, bool):
        message = 'Patch(area=1) is the whole image. Write "1%" or 0.01 for one percent, 1.0 for all of it.'
        warnings.warn(message, stacklevel=4)
    return require_fraction(area, "patch area")


def parse_area(text: str) -> float:
    """Parse an area as a share of the image: "1%" or "0.01". A bare 1 is ambiguous and an error."""
    number, percent, rest = str(text).strip().partition("%")
    try:
        area = float(number) / (100 if percent else 1)
    except ValueError:
        area = -1.0
    if not number.isascii() or "_" in number:  # Python would read 1_0 and digits of other scripts as numbers
        area = -1.0
    if rest or not 0 < area <= 1 or (area == 1 and not percent):
        raise ObjectSeekerError(f"a patch area must be a share of the image such as 1% or 0.01: got {text!r}")
    return area


@dataclass(frozen=True, slots=True)
class PatchPositions:
    """The place of objects among the integer patch positions, for any patch: one row per object.

    A patch covers [x, x + w) x [y, y + h). With start = (x, y) and end = (x + w, y + h), per axis: it overlaps the
    object iff end >= first and start <= last; it is near iff end >= near_first and start <= near_last. All four are
    exact integers for any float box.
    """

    limit: Ints  # (N, 2) image width and height
    first: Ints  # (N, 2)
    last: Ints
    near_first: Ints
    near_last: Ints

    @classmethod
    def of(cls, objects: Floats, width: npt.ArrayLike, height: npt.ArrayLike) -> PatchPositions:
        """`width` and `height`: of the image each object is in, or one for all."""
        size = (len(objects),)
        limit = np.stack([np.broadcast_to(np.asarray(v, np.int64), size) for v in (width, height)], axis=1)
        return cls(
            limit=limit,
            first=np.floor(objects[:, :2]).astype(np.int64) + 1,  # end > x1
            last=np.ceil(objects[:, 2:]).astype(np.int64) - 1,  # start < x2
            near_first=_ceil_of_sum(objects[:, :2], -limit),  # x1 - end <= limit / 10
            near_last=-_ceil_of_sum(-objects[:, 2:], -limit),  # start - x2 <= limit / 10
        )

    def grown(self) -> Ints:
        """Return the rectangle of the pixels wholly inside each object's grown box: (N, 4).

        Column i is [i, i + 1), so it is inside [x1 - limit / 10, x2 + limit / 10) iff i >= ceil(x1 - limit / 10) and
        i + 1 <= floor(x2 + limit / 10): both ends are rounded inwards, and a pixel that is inside in part is outside.
        """
        ends = np.concatenate([np.maximum(self.near_first, 0), np.minimum(self.near_last, self.limit)], axis=1)
        return np.asarray(ends)

    def _touching_grown(self, patch: Ints) -> Ints:
        """Return the positions of patches that touch a pixel wholly inside the grown box; none if it has none."""
        grown = self.grown()
        has_pixels = (grown[:, :2] < grown[:, 2:]).all(axis=1, keepdims=True)
        touching = np.concatenate([grown[:, :2] - patch + 1, grown[:, 2:] - 1], axis=1)
        return np.where(has_pixels, touching, np.tile(self.limit, 2))

    def allowed(self, location: PatchLocation, patch: Ints) -> Ints:
        """Return the allowed positions of patches of size `patch` (N, 2): (N, R, 4), R rectangles per object.

        A rectangle is x_first, y_first, x_last, y_last, all inclusive; it is empty where a first exceeds its last.
        "outside": positions at which a patch shares no pixel with those that are wholly inside the grown box.
        """
        all_first, all_last = 1 - patch, self.limit - 1
        everywhere = np.concatenate([all_first, all_last], axis=1)
        over = np.concatenate([self.first - patch, self.last], axis=1)
        if location == "anywhere":
            rectangles = [everywhere]
        elif location == "over":
            rectangles = [over]
        else:
            near = np.concatenate([self.near_first - patch, self.near_last], axis=1)
            outer = near if location == "close" else everywhere
            inner = {"far": near, "close": over}.get(location)
            inner = self._touching_grown(patch) if inner is None else inner
            # outer minus inner, as four rectangles that overlap at the corners: inner is always within outer or
            # beyond the image, where clipping below empties what does not exist.
            rectangles = []
            for axis in (0, 1):
                before, after = outer.copy(), outer.copy()
                before[:, axis + 2] = np.minimum(outer[:, axis + 2], inner[:, axis] - 1)
                after[:, axis] = np.maximum(outer[:, axis], inner[:, axis + 2] + 1)
                rectangles += [before, after]
        clipped = np.stack(rectangles, axis=1)
        clipped[..., :2] = np.maximum(clipped[..., :2], all_first[:, None])
        clipped[..., 2:] = np.minimum(clipped[..., 2:], all_last[:, None])
        return clipped


def patch_sizes(patch: Patch, width: npt.ArrayLike, height: npt.ArrayLike, count: int) -> Ints:
    """The size in pixels of `patch` in the image of each of `count` objects: (count, 2)."""
    images = np.stack(np.broadcast_arrays(np.asarray(width, np.int64), np.asarray(height, np.int64)), axis=-1)
    if images.ndim == 1:  # one image for all
        return np.tile(np.array(patch.size(*images.tolist()), dtype=np.int64), (count, 1))
    distinct, which = np.unique(images, axis=0, return_inverse=True)
    pixels = np.array([patch.size(*size) for size in distinct.tolist()], dtype=np.int64).reshape(-1, 2)
    return pixels[which.reshape(-1)]


def _ceil_of_sum(coordinate: Floats, tenths: Ints) -> Ints:
    """ceil(coordinate + tenths / FAR) without rounding: float addition may miss an integer by one unit."""
    exact = [
        [_exact_ceil(float(c), int(t)) for c, t in zip(row, addends, strict=True)]
        for row, addends in zip(coordinate, tenths, strict=True)
    ]
    return np.array(exact, dtype=np.int64).reshape(coordinate.shape)


def _exact_ceil(coordinate: float, tenths: int) -> int:
    numerator, denominator = coordinate.as_integer_ratio()
    return -((-numerator * FAR - tenths * denominator) // (denominator * FAR))
