"""The attacked pipeline as the judge, and the tasks of an attack.

The real pipeline decides on the finished 8-bit image; no differentiable approximation of it does. Targets, positions,
budgets, tasks and solutions are the same for every goal, for the white-box and for the black-box attack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, ioa, iou
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.rules import PruningRule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import require_count, require_fraction

AttackedSystem = Literal["undefended", "defended"]  # the detector alone, or the whole defense
ATTACKED_SYSTEMS: tuple[AttackedSystem, ...] = ("undefended", "defended")
Corners = tuple[tuple[int, int], ...]  # x, y of each patch: one, or two
Patches = npt.NDArray[np.uint8]  # the pixels of each patch: K x height x width x 3
Progress = Callable[[int, int], None]  # done, total

FITTING_IOU = 0.5  # IoU at and above which a box fits the object in the ordinary sense
BLOCK_SIDE = 8  # pixels, of initial patches made of colored blocks


@dataclass(frozen=True, slots=True)
class AttackReport:
    """The findings of an attack: the answer in one line, a table, notes, and how a guarantee breaks."""

    headline: str
    rows: list[dict[str, str]]
    notes: list[str]
    breach: str


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def progress_of_part(on_progress: Progress, part: int, parts: int) -> Progress:
    """Return the progress of one of several consecutive parts of equal length."""
    return lambda done, total: on_progress(part * total + done, parts * total)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One object to hide, or one box to make: `box` in `image`, of which the pipeline made `observation`.

    `labels` are the detector labels of its class. A box of any of them finds the object, and the object is certified if
    it is certified as one of them. `class_name` is the object's; a box to make may have other labels.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the image, the object and the box as plain values, as in attack.json."""
        return {"image": self.image_id, "object": self.number, "class": self.class_name, "box": self.box.tolist()}


@dataclass(frozen=True, slots=True)
class Position:
    """Top left corner of each patch, and whether the object is proven there."""

    corners: Corners
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackBudget:
    """Effort and tactics of an adaptive attack.

    Every object gets `restarts` patches (pairs of them, if the threat model has two), each optimized in `steps` steps.
    Against the defense, each step uses `views_per_step` masked views. `views_per_batch` views go through the network
    together (default: 16 on a CPU, 256 on a GPU).

    `immune_view_fraction` is the share of the restarts against the defense, rounded down, that do not trust our own
    margin: they are placed where the object is proven, flush with the masks that prove it, and are optimized as if
    these masks leaked.
    """

    steps: int = 100
    restarts: int = 3
    views_per_step: int = 4
    views_per_batch: int | None = None
    immune_view_fraction: float = 0.5

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "views_per_step", "views_per_batch"):
            if getattr(self, name) is not None:
                require_count(getattr(self, name), name)
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

    def to_dict(self) -> dict[str, Any]:
        """Return the place of the patches as plain values, as in attack.json."""
        wide, tall = self.patch_size
        return {"corners": [list(corner) for corner in self.position.corners], "width": wide, "height": tall}

    def draw(self, patches: Patches) -> Image:
        """Return the image with these patches at the task's position."""
        return draw_patches(self.target.image, patches, self.position.corners)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best patches of a task, their loss, the loss per step, and if the attack expects success."""

    task: PatchTask
    patches: Patches
    loss: float
    loss_curve: tuple[float, ...]
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class FoundStatus:
    """The systems that find the object: undefended (also at IoU 0.5) and, if it was run, defended."""

    undefended: bool
    undefended_fitting: bool
    defended: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A defended detector, and the certification threshold T at which a box finds an object.

    Undefended and defended detector are judged alike, by the rule's own notion: an object is found if some output box
    of one of its labels (any label if the rule is not classwise) covers more than T of it or, if the rule is about IoU,
    has an IoU above T with it.
    """

    seeker: ObjectSeeker
    certification_threshold: float

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
    def class_names(self) -> tuple[str, ...]:
        return cast(LoadedDetector, self.seeker.detector).names

    def observe(self, image: Image) -> Observation:
        (observation,) = self.seeker.observe([image])
        return observation

    def base_boxes(self, observation: Observation) -> Detections:
        """Return the output of the undefended detector."""
        return observation.base.with_min_score(self.rule.base_threshold)

    def certify(self, target: Target, patch: Patch) -> tuple[bool, bool]:
        """Return whether the object is certified as one of its labels, and whether it is so vacuously."""
        certificates = self.seeker.certify(
            target.observation, target.ground_truth, patch, certification_threshold=self.certification_threshold
        )
        return bool(certificates.certified.any()), bool(certificates.vacuous.any())

    def judge(self, target: Target, base: Detections, output: Detections | None = None) -> FoundStatus:
        """Judge an image by its base boxes and, if the defense was asked, by its output."""
        base = base.with_min_score(self.rule.base_threshold)
        fitting = fits(target, base) & self.has_label(target, base)
        defended = None if output is None else self.is_found(target, output)
        return FoundStatus(self.is_found(target, base), bool(fitting.any()), defended)

    def judge_observation(self, target: Target, observation: Observation) -> FoundStatus:
        """Judge an image of which this pipeline made `observation`."""
        return self.judge(target, observation.base, self.rule.prune(observation))

    def is_found(self, target: Target, boxes: Detections) -> bool:
        return bool(self.finding_boxes(target, boxes).any())

    def finding_boxes(self, target: Target, boxes: Detections) -> Bools:
        """Return which boxes find the object."""
        return (self.overlap(target, boxes.xyxy) > self.certification_threshold) & self.has_label(target, boxes)

    def overlap(self, target: Target, boxes: Floats) -> Floats:
        """Return what must exceed T: the share of the object that each box covers, or its IoU with the object."""
        measure = iou if self.rule.overlap == "iou" else ioa
        return np.asarray(measure(target.box[None], boxes)[0])

    def detection_strength(self, target: Target, boxes: Detections) -> float:
        """Return how clearly boxes show the object: the best finding score, and 1 % of the score sum."""
        scores = boxes.score[self.finding_boxes(target, boxes)]
        return float(scores.max(initial=0.0) + 0.01 * scores.sum())

    def has_label(self, target: Target, boxes: Detections) -> Bools:
        """Return which boxes count as boxes of the object's class."""
        return np.isin(boxes.label, target.labels) if self.rule.classwise else np.ones(len(boxes), np.bool_)


def fits(target: Target, boxes: Detections) -> Bools:
    """Return which boxes fit the target in the ordinary sense, whatever their class."""
    return np.asarray(iou(target.box[None], boxes.xyxy)[0] >= FITTING_IOU)


def repeats(boxes: Detections, previous: Detections) -> Bools:
    """Return which boxes were there before: the same class, and they fit."""
    same = (iou(boxes.xyxy, previous.xyxy) >= FITTING_IOU) & (boxes.label[:, None] == previous.label[None])
    return np.asarray(same.any(axis=1))


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
