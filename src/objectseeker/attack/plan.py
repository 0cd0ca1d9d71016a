"""What an attack is asked to do, and what it brings back; the same for gradients and for random search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from objectseeker.attack.pipeline import Target, crop
from objectseeker.attack.weakest import Position
from objectseeker.core.image import Image
from objectseeker.errors import ObjectSeekerError, require_count

Goal = Literal["detector", "defence"]  # hide the object from the undefended detector, or from the whole defence
Progress = Callable[[int, int], None]

BLOCK = 8  # pixels a side, of a start made of coloured blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How hard to try.

    Every object gets `restarts` patches, each improved in `steps` steps. Against the defence, `views` masked views are
    looked at per step. `jitter` moves the patch by up to so many pixels at every step: it then works around its
    position, not only at it. `at_once` views go through the network together. `seconds` may end it early.
    """

    steps: int = 100
    restarts: int = 2
    views: int = 4
    jitter: int = 0
    at_once: int = 16
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "views", "at_once"):
            require_count(getattr(self, name), name)
        if self.jitter < 0:
            raise ObjectSeekerError(f"jitter must be at least 0 pixels, got {self.jitter!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One patch to optimise: where it lies, what it starts from, and whether it pushes another class up, too."""

    target: Target
    position: Position
    start: Image
    relabel: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the patch."""
        return self.start.shape[1], self.start.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best patch of a job, its loss, the loss at every step, and whether the attack believes it succeeded."""

    job: Job
    patch: Image
    loss: float
    curve: tuple[float, ...]
    hidden: bool


def start_pixels(
    target: Target, position: Position, size: tuple[int, int], restart: int, rng: np.random.Generator
) -> Image:
    """What restart number `restart` begins with: noise, coloured blocks, the image itself, in turn."""
    width, height = size
    kind = restart % 3
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        blocks = rng.integers(0, 256, (-(-height // BLOCK), -(-width // BLOCK), 3), dtype=np.uint8)
        return np.ascontiguousarray(blocks.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)[:height, :width])
    return crop(target.image, position.x, position.y, size)
