"""The boxes of a detector in one image: all that inference and certification need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.masks import Masks
from objectseeker.core.notebook import observation_html
from objectseeker.errors import ObjectSeekerError, require_count


@dataclass(frozen=True, slots=True)
class Observation:
    """Boxes of the unmasked image (`base`) and of each masked view (`masked`, one entry per mask).

    `boxes` holds all masked boxes in one container, mask by mask, and `mask_of` the mask each of them came from.

    Example:
        >>> from objectseeker import Detections, Halves, Observation
        >>> masks, nothing = Halves(1).masks(100, 100), Detections([], [], [])
        >>> seen = Observation(100, 100, masks, base=nothing, masked=[nothing] * len(masks))
        >>> len(seen.all_masked)
        0
    """

    width: int
    height: int
    masks: Masks
    base: Detections
    masked: Sequence[Detections]
    all_masked: Detections = field(init=False, repr=False, compare=False)
    mask_index: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = require_count(self.width, "width"), require_count(self.height, "height")
        if not isinstance(self.masks, Masks):
            raise ObjectSeekerError(f"masks must be what a recipe such as Halves(30) makes: got {self.masks!r}")
        if size != (self.masks.width, self.masks.height):
            raise ObjectSeekerError(
                f"masks are for a {self.masks.width}x{self.masks.height} image: got {size[0]}x{size[1]}. "
                "Use masks of its size."
            )
        masked = tuple(self.masked)
        if len(masked) != len(self.masks):
            raise ObjectSeekerError(f"masked must hold one entry per mask, {len(self.masks)}: got {len(masked)}")
        for name, entry in (("base", self.base), *((f"masked[{i}]", d) for i, d in enumerate(masked))):
            if not isinstance(entry, Detections):
                raise ObjectSeekerError(f"{name} must be Detections: got {entry!r}")
        object.__setattr__(self, "masked", masked)
        object.__setattr__(self, "all_masked", Detections.concatenate(masked))
        object.__setattr__(self, "mask_index", np.repeat(np.arange(len(masked)), [len(d) for d in masked]))

    def _repr_html_(self) -> str:
        return observation_html(self)

    def restricted_to(self, masks: Masks) -> Observation:
        """Return the observation under these masks only, in their order, as their recipe would have made it.

        Masks are the same if they remove the same rectangles, to the pixel; one that was not observed is an error.
        """
        places = {key: index for index, key in enumerate(self.masks.keys)}
        kept = [places.get(key, -1) for key in masks.keys]
        if -1 in kept:
            first = kept.index(-1)
            what = "removes" if masks.is_band[first] else "keeps"
            missing = f"{what} {masks.rectangle[first].tolist()}"
            raise ObjectSeekerError(f"nothing was observed under the mask that {missing}: observe with it")
        return Observation(self.width, self.height, masks, self.base, [self.masked[index] for index in kept])


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The frame of a sequence; `number` counts time, from 0 and with gaps where frames are missing.

    `fps` are the frames per second, None if unknown.
    """

    sequence: str
    number: int
    fps: float | None = None


NO_TRACK = -1  # of an object that belongs to none


@dataclass(frozen=True, slots=True, eq=False)
class ObservedImage:
    """One image of a dataset as observed: what evaluation, certification and the report work on.

    The labels of `observation` are the detector's, those of `ground_truth` the dataset's: a `LabelMap` connects them.
    `ignore` marks objects that count neither way (VOC difficult, COCO crowd); `crowd` marks those that represent
    any number of objects. Of a `frame` of a sequence, `track` says which object is which: one number per object,
    the same in every frame, or NO_TRACK. It is empty elsewhere.
    """

    id: str
    path: Path
    observation: Observation
    ground_truth: Detections
    ignore: Bools
    crowd: Bools
    frame: FrameIndex | None = None
    track: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def keep_lines(observation: Observation, lines: int) -> Observation:
    """`observation` as if only `lines` of its lines per axis had been used, as evenly spaced as they come.

    For figures that say so, and for nothing else: some of thirty lines are another recipe than that many lines, one
    that no `detect` can take, so their certificates are about nothing that can be deployed.

    An axis that has no more lines than that, because the image is only a few pixels long, keeps all of them.
    """
    masks = observation.masks
    if masks.has_bands:
        raise ObjectSeekerError("only half masks and pairs of them can be restricted to fewer lines, not bands")
    has_kept_lines = np.ones(len(masks), np.bool_)
    for axis in (0, 1):
        edges, is_line = masks.rectangle[:, axis::2], masks.is_line[:, axis::2]
        positions = np.unique(edges[is_line])
        if len(positions) > require_count(lines, "lines"):
            positions = positions[np.array(evenly_spaced_lines(len(positions), lines)) - 1]
        has_kept_lines &= (np.isin(edges, positions) | ~is_line).all(axis=1)
    return observation.restricted_to(masks.select_masks(np.flatnonzero(has_kept_lines)))


def evenly_spaced_lines(stored: int, count: int) -> list[int]:
    """Return the `count` of the lines 1 to `stored` that are spread most evenly, ascending."""
    if require_count(count, "lines") > stored:
        raise ObjectSeekerError(f"lines must be at most {stored}, as many as were observed: got {count}")
    return [(2 * t * (stored + 1) + count + 1) // (2 * (count + 1)) for t in range(1, count + 1)]
