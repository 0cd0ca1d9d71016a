"""What is attacked, and who decides: the real pipeline on the finished 8-bit image, never an approximation of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, ioa, iou
from objectseeker.core.iou_rule import IOU_THRESHOLD, AnyRule, IouRule
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.rule import Rule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import require_fraction

Corners = tuple[tuple[int, int], ...]  # x, y of each patch: one, or two
Patches = npt.NDArray[np.uint8]  # the pixels of each patch: K x height x width x 3

GOOD_FIT = 0.5  # IoU from which a box is the object's in the ordinary sense


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One object to hide: `box` in `image`, with what the pipeline saw of that image.

    `labels` are the detector's labels that stand for the object's class, which is called `kind`: a box of any of them
    finds the object, and it is certified if it is certified as one of them.
    """

    name: str
    number: int
    image: Image
    observation: Observation
    box: Floats
    labels: tuple[int, ...]
    kind: str = ""

    @property
    def truth(self) -> Detections:
        """The object as ground truth of its own, once for each label."""
        count = len(self.labels)
        return Detections(np.tile(self.box, (count, 1)), np.ones(count), self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image."""
        return self.observation.width, self.observation.height


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the object still found? By the undefended detector, by it with IoU 0.5, by the defended one."""

    undefended: bool
    undefended_fit: bool
    defended: bool


def pruned(rule: AnyRule, observation: Observation) -> Detections:
    """What the defense outputs."""
    return rule.prune(observation)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A defended detector, and the T by which a box finds an object.

    Undefended and defended detector are judged alike, by the rule's own notion: found means that some output box of
    one of the object's labels (any label if the rule is not classwise) covers more than `threshold` of it or, with an
    `IouRule`, has an IoU above `threshold` with it. `output` turns an observation into detections; another function
    than `pruned` is for experiments with defenses that are not ours.
    """

    seeker: ObjectSeeker
    threshold: float
    output: Callable[[AnyRule, Observation], Detections] = pruned

    def __post_init__(self) -> None:
        require_fraction(self.threshold, "threshold")

    @classmethod
    def of(cls, seeker: ObjectSeeker, threshold: float | None = None) -> Pipeline:
        """The pipeline of a defended detector, at the T of its rule unless another one is given."""
        own = IOU_THRESHOLD if isinstance(seeker.rule, IouRule) else 0.0
        return cls(seeker, own if threshold is None else threshold)

    @property
    def rule(self) -> AnyRule:
        return self.seeker.rule

    @property
    def scoring(self) -> Rule:
        """The rule that says what scores of masked boxes count for."""
        return self.rule.ioa if isinstance(self.rule, IouRule) else self.rule

    @property
    def by_iou(self) -> bool:
        """Whether found is a matter of IoU, not of covered area."""
        return isinstance(self.rule, IouRule)

    def observe(self, image: Image) -> Observation:
        (observation,) = self.seeker.observe([image])
        return observation

    def certified(self, target: Target, patch: Patch) -> tuple[bool, bool]:
        """Whether the object is certified, as one of its labels, and whether only because no position is allowed."""
        certificate = self.seeker.certify(target.observation, target.truth, patch, threshold=self.threshold)
        return bool(certificate.certified.any()), bool(certificate.vacuous.any())

    def judge(self, target: Target, observation: Observation) -> Verdict:
        """The verdict on `target` in an image of which this pipeline saw `observation`."""
        undefended, fit = self.judge_base(target, observation.base)
        return Verdict(undefended, fit, self.finds(target, self.output(self.rule, observation)))

    def judge_base(self, target: Target, base: Detections) -> tuple[bool, bool]:
        """`undefended` and `undefended_fit` of the verdict, from the boxes on the image alone."""
        base = base.at_least(self.rule.base_threshold)
        fits = iou(target.box[None], base.xyxy)[0] >= GOOD_FIT
        return self.finds(target, base), bool((fits & self.of_label(target, base)).any())

    def finds(self, target: Target, boxes: Detections) -> bool:
        return bool(self.finding(target, boxes).any())

    def finding(self, target: Target, boxes: Detections) -> Bools:
        """Which boxes find the object."""
        return np.asarray((self.overlap(target, boxes.xyxy) > self.threshold) & self.of_label(target, boxes))

    def overlap(self, target: Target, boxes: Floats) -> Floats:
        """What must exceed `threshold`: the share of the object that each box covers, or the IoU with it."""
        return np.asarray(self.measure(target.box[None], boxes)[0])

    @property
    def measure(self) -> Callable[[Floats, Floats], Floats]:
        """Of objects and boxes, what must exceed `threshold`."""
        return iou if self.by_iou else ioa

    def visibility(self, target: Target, boxes: Detections) -> float:
        """How well boxes give the object away: the best score of one that finds it, and a little of the others'."""
        scores = boxes.score[self.finding(target, boxes)]
        return float(scores.max(initial=0.0) + 0.01 * scores.sum())

    def of_label(self, target: Target, boxes: Detections) -> Bools:
        """Which boxes count as boxes of the object's class."""
        return np.isin(boxes.label, target.labels) if self.rule.classwise else np.ones(len(boxes), np.bool_)


def draw(image: Image, patches: Patches, corners: Corners) -> Image:
    """A copy of `image` with every patch drawn at its corner, later ones over earlier ones."""
    for patch, (x, y) in zip(patches, corners, strict=True):
        image = paste(image, patch, x, y)
    return image


def paste(image: Image, patch: Image, x: int, y: int) -> Image:
    """A copy of `image` with `patch` drawn at (x, y); what hangs over the border is cut off."""
    height, width = image.shape[:2]
    tall, wide = patch.shape[:2]
    drawn = image.copy()
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + wide, width), min(y + tall, height)
    drawn[top:bottom, left:right] = patch[top - y : bottom - y, left - x : right - x]
    return drawn


def beneath(image: Image, x: int, y: int, size: tuple[int, int]) -> Image:
    """What lies under a patch of `size` = width, height at (x, y); border pixels are repeated beyond the border."""
    height, width = image.shape[:2]
    columns, rows = np.arange(x, x + size[0]).clip(0, width - 1), np.arange(y, y + size[1]).clip(0, height - 1)
    return np.asarray(image[rows[:, None], columns[None]])
