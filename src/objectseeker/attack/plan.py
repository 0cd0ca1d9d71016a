"""What an attack is asked to do, and what it brings back; the same for gradients and for random search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from objectseeker.attack.pipeline import Patches, Target, beneath
from objectseeker.attack.placement import Position
from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction

Goal = Literal["detector", "defense"]  # hide the object from the undefended detector, or from the whole defense
Progress = Callable[[int, int], None]

BLOCK_SIDE = 8  # pixels, of a start made of colored blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How hard to try.

    Every object gets `restarts` patches (pairs of them, if the threat is two), each improved in `steps` steps. Against
    the defense, `views` masked views are looked at per step. `jitter` moves the patch by up to so many pixels at every
    step: it then works around its position, not only at it. `at_once` views go through the network together. `seconds`
    may end it early.

    `distrust` is the share of the restarts against the defense, rounded down, that do not believe our own margin: they
    lie where the object is proven, flush with the masks that prove it, and are optimized as if these masks leaked.
    """

    steps: int = 100
    restarts: int = 2
    views: int = 4
    jitter: int = 0
    at_once: int = 16
    seconds: float | None = None
    distrust: float = 0.5

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "views", "at_once"):
            require_count(getattr(self, name), name)
        if self.jitter < 0:
            raise ObjectSeekerError(f"jitter must be at least 0 pixels, got {self.jitter!r}")
        require_fraction(self.distrust, "distrust")


@dataclass(frozen=True, slots=True, eq=False)
class PatchTask:
    """One restart: where the patches lie, what they start from (K x height x width x 3), and by which tactic.

    `relabel` pushes another class up, too; `distrust` attacks views that our own margin calls immune as well.
    """

    target: Target
    position: Position
    start: Patches
    relabel: bool = False
    distrust: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a patch."""
        return self.start.shape[2], self.start.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best patches of a task, their loss, the loss at every step, and whether the attack believes it succeeded."""

    task: PatchTask
    patches: Patches
    loss: float
    curve: tuple[float, ...]
    hidden: bool


def start_pixels(
    target: Target, position: Position, size: tuple[int, int], restart: int, rng: np.random.Generator
) -> Patches:
    """What restart number `restart` begins with: noise, colored blocks, the image itself, in turn."""
    return np.stack([_one_start(target, x, y, size, restart % 3, rng) for x, y in position.corners])


def _one_start(target: Target, x: int, y: int, size: tuple[int, int], kind: int, rng: np.random.Generator) -> Image:
    width, height = size
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        blocks = rng.integers(0, 256, (-(-height // BLOCK_SIDE), -(-width // BLOCK_SIDE), 3), dtype=np.uint8)
        return np.ascontiguousarray(blocks.repeat(BLOCK_SIDE, axis=0).repeat(BLOCK_SIDE, axis=1)[:height, :width])
    return beneath(target.image, x, y, size)
