"""The attacked system, its judge, and the tasks of an attack.

The real pipeline decides on the finished 8-bit image; no differentiable approximation of it does. Targets, positions,
budgets, tasks and solutions are the same for the white-box and the black-box attack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, ioa, iou
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.rules import PruningRule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number

AttackedSystem = Literal["undefended", "defended"]  # the detector alone, or the whole defense
ATTACKED_SYSTEMS: tuple[AttackedSystem, ...] = ("undefended", "defended")
Corners = tuple[tuple[int, int], ...]  # x, y of each patch: one, or two
Patches = npt.NDArray[np.uint8]  # the pixels of each patch: K x height x width x 3
Progress = Callable[[int, int], None]  # done, total

FITTING_IOU = 0.5  # IoU at and above which a box fits the object in the ordinary sense
BLOCK_SIDE = 8  # pixels, of initial patches made of colored blocks


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One object to hide: `box` in `image`, with the pipeline's observation of that image.

    `labels` are the detector labels of the object's class, which is called `class_name`. A box of any of them finds the
    object, and the object is certified if it is certified as one of them.
    """

    image_id: str
    number: int
    image: Image
    observation: Observation
    box: Floats
    labels: tuple[int, ...]
    class_name: str = ""

    @property
    def ground_truth(self) -> Detections:
        """The object as ground truth, once per label."""
        count = len(self.labels)
        return Detections(np.tile(self.box, (count, 1)), np.ones(count), self.labels)

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the image."""
        return self.observation.width, self.observation.height


@dataclass(frozen=True, slots=True)
class Position:
    """Top left corner of each patch, whether the object is proven there, and the sum of its evidence."""

    corners: Corners
    proven: bool
    support: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackBudget:
    """Effort and tactics of an adaptive attack.

    Every object gets `restarts` patches (pairs of them, if the threat model has two), each optimized in `steps` steps.
    Against the defense, each step uses `views_per_step` masked views. `jitter` moves the patch by up to that many
    pixels at every step, so that it works around its position and not only at it. `views_per_batch` views go through
    the network together (default: 16 on a CPU, 256 on a GPU). `max_seconds` ends the optimization early.

    `immune_view_fraction` is the share of the restarts against the defense, rounded down, that do not trust our own
    margin: they are placed where the object is proven, flush with the masks that prove it, and are optimized as if
    these masks leaked.
    """

    steps: int = 100
    restarts: int = 3
    views_per_step: int = 4
    jitter: int = 0
    views_per_batch: int | None = None
    max_seconds: float | None = None
    immune_view_fraction: float = 0.5

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "views_per_step", "views_per_batch"):
            if getattr(self, name) is not None:
                require_count(getattr(self, name), name)
        if self.jitter < 0:
            raise ObjectSeekerError(f"jitter must be at least 0 pixels: got {self.jitter!r}")
        if self.max_seconds is not None and require_number(self.max_seconds, "max_seconds") <= 0:
            raise ObjectSeekerError(f"max_seconds must be above 0: got {self.max_seconds!r}")
        require_fraction(self.immune_view_fraction, "immune_view_fraction")

    def batch_size(self, device: str) -> int:
        """Return the number of views that go through the network together on a device."""
        return self.views_per_batch or (16 if device == "cpu" else 256)


@dataclass(frozen=True, slots=True, eq=False)
class PatchTask:
    """One restart: the patches' position, initial pixels (K x height x width x 3), and tactic.

    `relabels` also pushes another class up; `attacks_immune_views` also attacks views that our own margin calls immune.
    """

    target: Target
    position: Position
    start: Patches
    relabels: bool = False
    attacks_immune_views: bool = False

    @property
    def patch_size(self) -> tuple[int, int]:
        """Width and height of a patch."""
        return self.start.shape[2], self.start.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best patches of a task, their loss, the loss per step, and if the attack expects success."""

    task: PatchTask
    patches: Patches
    loss: float
    loss_curve: tuple[float, ...]
    hidden: bool


@dataclass(frozen=True, slots=True)
class FoundStatus:
    """The systems that find the object: the undefended detector (also at IoU 0.5), the defended one."""

    undefended: bool
    undefended_fitting: bool
    defended: bool


def prune_by_rule(rule: PruningRule, observation: Observation) -> Detections:
    """Return the output of the defense."""
    return rule.prune(observation)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A defended detector, and the certification threshold T at which a box finds an object.

    Undefended and defended detector are judged alike, by the rule's own notion: an object is found if some output box
    of one of its labels (any label if the rule is not classwise) covers more than T of it or, if the rule is about IoU,
    has an IoU above T with it. `output` turns an observation into detections; a function other than `prune_by_rule` is
    for experiments with other defenses.
    """

    seeker: ObjectSeeker
    certification_threshold: float
    output: Callable[[PruningRule, Observation], Detections] = prune_by_rule

    def __post_init__(self) -> None:
        require_fraction(self.certification_threshold, "certification_threshold")

    @classmethod
    def from_seeker(cls, seeker: ObjectSeeker, certification_threshold: float | None = None) -> Pipeline:
        """Return the pipeline of a defended detector; T is its rule's default unless passed."""
        return cls(seeker, seeker.rule.resolve_threshold(certification_threshold))

    @property
    def rule(self) -> PruningRule:
        return self.seeker.rule

    @property
    def uses_iou(self) -> bool:
        """Return whether IoU decides if an object is found, instead of covered area."""
        return self.rule.overlap == "iou"

    def observe(self, image: Image) -> Observation:
        (observation,) = self.seeker.observe([image])
        return observation

    def certify(self, target: Target, patch: Patch) -> tuple[bool, bool]:
        """Return whether the object is certified as one of its labels, and whether it is so vacuously."""
        certificates = self.seeker.certify(
            target.observation, target.ground_truth, patch, certification_threshold=self.certification_threshold
        )
        return bool(certificates.certified.any()), bool(certificates.vacuous.any())

    def found_status(self, target: Target, observation: Observation) -> FoundStatus:
        """Judge `target` in an image of which this pipeline made `observation`."""
        undefended, fitting = self.base_status(target, observation.base)
        return FoundStatus(undefended, fitting, self.is_found(target, self.output(self.rule, observation)))

    def base_status(self, target: Target, base: Detections) -> tuple[bool, bool]:
        """Return `undefended` and `undefended_fitting` of the status, from the unmasked image's boxes."""
        base = base.with_min_score(self.rule.base_threshold)
        fits = iou(target.box[None], base.xyxy)[0] >= FITTING_IOU
        return self.is_found(target, base), bool((fits & self.has_label(target, base)).any())

    def is_found(self, target: Target, boxes: Detections) -> bool:
        return bool(self.finding_boxes(target, boxes).any())

    def finding_boxes(self, target: Target, boxes: Detections) -> Bools:
        """Return which boxes find the object."""
        return np.asarray(
            (self.overlap(target, boxes.xyxy) > self.certification_threshold) & self.has_label(target, boxes)
        )

    def overlap(self, target: Target, boxes: Floats) -> Floats:
        """Return what must exceed T: the share of the object that each box covers, or its IoU with the object."""
        return np.asarray(self.overlap_measure(target.box[None], boxes)[0])

    @property
    def overlap_measure(self) -> Callable[[Floats, Floats], Floats]:
        """The function of objects and boxes whose value must exceed T."""
        return iou if self.uses_iou else ioa

    def detection_strength(self, target: Target, boxes: Detections) -> float:
        """Return how clearly boxes show the object: the best finding score, and 1 % of the score sum."""
        scores = boxes.score[self.finding_boxes(target, boxes)]
        return float(scores.max(initial=0.0) + 0.01 * scores.sum())

    def has_label(self, target: Target, boxes: Detections) -> Bools:
        """Return which boxes count as boxes of the object's class."""
        return np.isin(boxes.label, target.labels) if self.rule.classwise else np.ones(len(boxes), np.bool_)


def draw_patches(image: Image, patches: Patches, corners: Corners) -> Image:
    """Return a copy of `image` with every patch drawn at its corner, later ones over earlier ones."""
    for patch, (x, y) in zip(patches, corners, strict=True):
        image = paste(image, patch, x, y)
    return image


def paste(image: Image, patch: Image, x: int, y: int) -> Image:
    """Return a copy of `image` with `patch` drawn at (x, y), clipped at the border."""
    height, width = image.shape[:2]
    tall, wide = patch.shape[:2]
    pasted = image.copy()
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + wide, width), min(y + tall, height)
    pasted[top:bottom, left:right] = patch[top - y : bottom - y, left - x : right - x]
    return pasted


def pixels_under(image: Image, x: int, y: int, size: tuple[int, int]) -> Image:
    """Return the pixels under a patch of `size` (width, height) at (x, y), repeated beyond the border."""
    height, width = image.shape[:2]
    columns, rows = np.arange(x, x + size[0]).clip(0, width - 1), np.arange(y, y + size[1]).clip(0, height - 1)
    return np.asarray(image[rows[:, None], columns[None]])


def initial_patches(
    target: Target, position: Position, size: tuple[int, int], restart: int, rng: np.random.Generator
) -> Patches:
    """Return the pixels that a restart begins with: noise, colored blocks, the image itself, in turn."""
    return np.stack([_initial_patch(target, x, y, size, restart % 3, rng) for x, y in position.corners])


def _initial_patch(target: Target, x: int, y: int, size: tuple[int, int], kind: int, rng: np.random.Generator) -> Image:
    width, height = size
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        blocks = rng.integers(0, 256, (-(-height // BLOCK_SIDE), -(-width // BLOCK_SIDE), 3), dtype=np.uint8)
        return np.ascontiguousarray(blocks.repeat(BLOCK_SIDE, axis=0).repeat(BLOCK_SIDE, axis=1)[:height, :width])
    return pixels_under(target.image, x, y, size)
