"""What is attacked, and who decides: the real pipeline on the finished 8-bit image, never an approximation of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Detections, Floats, ioa, iou
from objectseeker.core.image import Image
from objectseeker.core.observation import Observation
from objectseeker.core.rule import Rule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.errors import ObjectSeekerError, require_fraction

GOOD_FIT = 0.5  # IoU from which a box is the object's in the ordinary sense


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One object to hide: `box` and `label` (the detector's) in `image`, with what the pipeline saw of that image."""

    name: str
    number: int
    image: Image
    observation: Observation
    box: Floats
    label: int

    @property
    def truth(self) -> Detections:
        """The object as ground truth of its own."""
        return Detections(self.box[None], [1.0], [self.label])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image."""
        return self.observation.width, self.observation.height


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the object still found? By the undefended detector, by it with IoU 0.5, by the defended one."""

    vanilla: bool
    vanilla_fit: bool
    defended: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A defended detector and the share of an object that a box must cover more than, for the object to be found.

    Undefended and defended detector are judged alike: found means some output box of the object's label (any label
    if the rule is not classwise) covers more than `threshold` of it. `output` turns an observation into detections;
    another function than `prune_with` is for experiments with defences that are not ours.
    """

    seeker: ObjectSeeker
    threshold: float = 0.0
    output: Callable[[Rule, Observation], Detections] = prune_with

    def __post_init__(self) -> None:
        require_fraction(self.threshold, "threshold")
        if self.seeker.tau_iou is not None or self.seeker.masks != "halves":
            raise ObjectSeekerError(
                "the attack knows the IoA rule with half masks, "
                f"got tau_iou={self.seeker.tau_iou!r}, masks={self.seeker.masks!r}: leave both out"
            )

    @property
    def rule(self) -> Rule:
        return self.seeker.rule

    def observe(self, image: Image) -> Observation:
        (observation,) = self.seeker.observe([image])
        return observation

    def judge(self, target: Target, observation: Observation) -> Verdict:
        """The verdict on `target` in an image of which this pipeline saw `observation`."""
        base = observation.base.at_least(self.rule.base_score)
        return Verdict(
            vanilla=self.covers(target, base),
            vanilla_fit=self.fits(target, base),
            defended=self.covers(target, self.output(self.rule, observation)),
        )

    def judge_base(self, target: Target, base: Detections) -> tuple[bool, bool]:
        """`vanilla` and `vanilla_fit` of the verdict, from the boxes on the image alone."""
        base = base.at_least(self.rule.base_score)
        return self.covers(target, base), self.fits(target, base)

    def covers(self, target: Target, found: Detections) -> bool:
        found = self._of_label(target, found)
        return bool((ioa(target.box[None], found.xyxy) > self.threshold).any())

    def visibility(self, target: Target, found: Detections) -> float:
        """How well boxes give the object away: the best score of one that covers it, and a little of the others'."""
        found = self._of_label(target, found)
        scores = found.score[ioa(target.box[None], found.xyxy)[0] > self.threshold]
        return float(scores.max(initial=0.0) + 0.01 * scores.sum())

    def fits(self, target: Target, found: Detections) -> bool:
        found = self._of_label(target, found)
        return bool((iou(target.box[None], found.xyxy) >= GOOD_FIT).any())

    def _of_label(self, target: Target, found: Detections) -> Detections:
        return found[found.label == target.label] if self.rule.classwise else found


def paste(image: Image, patch: Image, x: int, y: int) -> Image:
    """A copy of `image` with `patch` drawn at (x, y); what hangs over the border is cut off."""
    height, width = image.shape[:2]
    tall, wide = patch.shape[:2]
    drawn = image.copy()
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + wide, width), min(y + tall, height)
    drawn[top:bottom, left:right] = patch[top - y : bottom - y, left - x : right - x]
    return drawn


def crop(image: Image, x: int, y: int, size: tuple[int, int]) -> Image:
    """What lies under a patch of `size` = width, height at (x, y); border pixels are repeated beyond the border."""
    height, width = image.shape[:2]
    columns, rows = np.arange(x, x + size[0]).clip(0, width - 1), np.arange(y, y + size[1]).clip(0, height - 1)
    return np.asarray(image[rows[:, None], columns[None]])
