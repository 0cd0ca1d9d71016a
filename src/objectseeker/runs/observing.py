"""How images are observed: under which masks, in which batches, and down to which scores boxes are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from objectseeker.core.image import GREY, require_grey
from objectseeker.core.recipes import Halves, Pairs, Recipe, pair_counts, parse, require_recipe
from objectseeker.core.rolling import Rolling
from objectseeker.defence import BATCH
from objectseeker.errors import require_count, require_fraction

BASE_FLOOR, MASK_FLOOR = 0.01, 0.1
USUAL_SIZE = (640, 480)  # of an image, where the number of masks depends on it


@dataclass(frozen=True, slots=True)
class Observing:
    """What a run, the job that makes it and its cost have in common.

    `batch` is how many views the detector is shown at a time, None for one that makes its own batches. Boxes scored
    below `base_floor` (untouched image) or `mask_floor` (masked views) are not stored, so no threshold below them may
    be used.
    """

    masks: Recipe = field(default_factory=Halves)
    fill: int = field(default=GREY, kw_only=True)
    batch: int | None = field(default=BATCH, kw_only=True)
    base_floor: float = field(default=BASE_FLOOR, kw_only=True)
    mask_floor: float = field(default=MASK_FLOOR, kw_only=True)

    def __post_init__(self) -> None:
        plain = {
            "masks": require_recipe(self.masks),
            "fill": require_grey(self.fill),
            "batch": None if self.batch is None else require_count(self.batch, "batch"),
            "base_floor": require_fraction(self.base_floor, "base_floor"),
            "mask_floor": require_fraction(self.mask_floor, "mask_floor"),
        }
        for name, value in plain.items():  # numbers of any type are the same settings, and written as such
            object.__setattr__(self, name, value)

    def cost(self) -> tuple[int, str]:
        """How many views an image has (fewer if it has hardly more pixels than lines), and a sentence on why."""
        match self.masks:
            case Halves(lines):
                return 1 + 4 * lines, f"{lines} lines per axis are {4 * lines} half masks"
            case Pairs(lines):
                unordered, distinct = pair_counts(lines)
                return 1 + distinct, (
                    f"{lines} lines per axis are {4 * lines} half masks, {unordered:,} pairs of them, {distinct:,} of "
                    "which remove something different and leave something"
                )
            case Rolling(recipe, frames):
                views = self.masks.passes(*USUAL_SIZE)
                return views, f"a frame shows at most {views - 1:,} masks of {recipe}, {frames} frames show all of them"
            case others:
                views, size = others.passes(*USUAL_SIZE), "x".join(map(str, USUAL_SIZE))
                return views, f"{others} makes {views - 1:,} masks of a {size} image, about as many of other sizes"

    def to_json(self) -> dict[str, Any]:
        """Plain values that `of_json` reads back to an equal object."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"masks": str(self.masks)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Observing:
        return cls(**dict(values) | {"masks": parse(values["masks"])})
