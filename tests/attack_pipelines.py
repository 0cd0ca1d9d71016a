"""A small torch detector with real gradients, the defense around it, and defenses made unsound on purpose."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from objectseeker import Detections, Halves, ObjectSeeker, Rule
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.whitebox import WhiteBox
from objectseeker.core.boxes import iou
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Recipe
from objectseeker.core.rules import PruningRule
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.preprocess import ViewPlan
from objectseeker.detectors.torch_module import torch_detector

SIDE, INPUT = 96, 64  # raw and network pixels: resized by 2/3
OBJECT = (24, 24, 72, 72)
LINES = 15  # a line every 6 raw pixels
LARGEST = 37  # the largest square that is certified everywhere; exactly this size makes every proof a tight one
AREA = (LARGEST - 0.5) ** 2 / SIDE**2


class Cues(torch.nn.Module):
    """Sees a red object (class 0) in any bright red block. A green that is off, by a few gray levels in a few
    pixels of any one row or column, blinds it; a blue that is off shows it a thing of class 1 next to the object."""

    def __init__(self) -> None:
        super().__init__()
        scale = INPUT / SIDE
        x1, y1, x2, y2 = (scale * v for v in OBJECT)
        self.register_buffer("box", torch.tensor([(x1, y1, x2, y2), (x1 + 2, y1 + 2, x2 + 2, y2 + 2)]))

    def forward(self, images):
        red, green, blue = ((channel - 114) / 255 for channel in images.unbind(1))
        seen = F.avg_pool2d(red[:, None, 16:48, 16:48], 4).amax((1, 2, 3))
        blinded, distracted = (self._off(channel) for channel in (green, blue))
        class_0 = 24 * (seen - 0.2) - 120 * blinded
        class_1 = 120 * distracted - 4
        never = torch.full_like(class_0, -9.0)
        logits = torch.stack([torch.stack([class_0, never], 1), torch.stack([never, class_1], 1)], 1)
        return self.box.expand(len(images), 2, 4), logits.sigmoid()

    @staticmethod
    def _off(channel):
        lines = [F.avg_pool2d(channel[:, None], kernel, stride=1).abs().amax((1, 2, 3)) for kernel in ((6, 1), (1, 6))]
        return torch.maximum(*lines)


class CodedCues(Cues):
    """As `Cues`, but what blinds it is a code along a row or column, too long for noise to show it by chance."""

    def __init__(self) -> None:
        super().__init__()
        code = np.random.default_rng(1).permutation([1.0, -1.0] * 6).repeat(2)
        self.register_buffer("code", torch.from_numpy(2 * code / len(code)).float())

    def _off(self, channel):
        lines = [F.conv2d(channel[:, None], self.code.view(1, 1, *side)) for side in ((-1, 1), (1, -1))]
        return torch.relu(torch.maximum(*(line.amax((1, 2, 3)) for line in lines)))


def make_image() -> np.ndarray:
    """Green and blue as in a filled view everywhere; red on the object only."""
    image = np.full((SIDE, SIDE, 3), (20, 114, 114), np.uint8)
    x1, y1, x2, y2 = OBJECT
    image[y1:y2, x1:x2, 0] = 220
    return image


class LeakyDetector(NetworkDetector):
    """Unsound: masks the resized image up to the scaled line, without the pixels that the resize blends across it."""

    def plan(self, image, removed):
        filled = np.rint(np.asarray(removed).reshape(len(removed), -1, 4) * INPUT / SIDE).astype(np.int64)
        window = np.broadcast_to([0, 0, INPUT, INPUT], (len(filled), 4))
        return self.layout.place((SIDE, SIDE), self.input_size), ViewPlan(window, filled)


class SecretlyLeakyDetector(NetworkDetector):
    """As unsound as that, but what it says of its views is what they should be."""

    def detect_views(self, image, removed, value) -> list[Detections]:
        settings = {field.name: getattr(self, field.name) for field in fields(NetworkDetector)}
        return LeakyDetector(**settings).detect_views(image, removed, value)


class SuppressingRule(Rule):
    """Unsound: of masked boxes that overlap, whatever their label and view, only the best-scored remains."""

    def prune(self, observation: Observation) -> Detections:
        boxes = observation.all_masked
        overlap = iou(boxes.xyxy, boxes.xyxy) > 0.5
        keep: list[int] = []
        for i in np.argsort(-boxes.score, kind="stable"):
            if not overlap[i, keep].any():
                keep.append(int(i))
        kept = np.isin(np.arange(len(boxes)), keep)
        masked = [boxes[kept & (observation.mask_index == m)] for m in range(len(observation.masks))]
        left = Observation(observation.width, observation.height, observation.masks, observation.base, masked)
        return Rule.prune(self, left)


PAPER = Rule(base_threshold=0.5, mask_threshold=0.7)
MASKS = Halves(LINES)


def sound(
    rule: PruningRule = PAPER,
    masks: Recipe = MASKS,
    certification_threshold: float | None = None,
    *,
    cues: type[Cues] = Cues,
) -> tuple[WhiteBox, Pipeline]:
    module = cues()
    detector = torch_detector(module, names=["object", "thing"], input_size=INPUT, batch_size=8)
    return WhiteBox(predict=module, detector=detector), _pipeline(detector, rule, masks, certification_threshold)


def leaky(kind: type[NetworkDetector] = LeakyDetector, *, cues: type[Cues] = Cues) -> tuple[WhiteBox, Pipeline]:
    white, _ = sound(cues=cues)
    settings = {field.name: getattr(white.detector, field.name) for field in fields(NetworkDetector)}
    detector = kind(**settings | {"start_views": None})
    return replace(white, detector=detector), _pipeline(detector)


def secretly_leaky() -> tuple[WhiteBox, Pipeline]:
    return leaky(SecretlyLeakyDetector, cues=CodedCues)


def suppressing() -> tuple[WhiteBox, Pipeline]:
    return sound(SuppressingRule(**{field.name: getattr(PAPER, field.name) for field in fields(Rule)}))


def target(pipeline: Pipeline, labels: tuple[int, ...] = (0,)) -> Target:
    image = make_image()
    return Target("image", 0, image, pipeline.observe(image), np.array(OBJECT, float), labels, "object")


def _pipeline(
    detector: NetworkDetector,
    rule: PruningRule = PAPER,
    masks: Recipe = MASKS,
    certification_threshold: float | None = None,
) -> Pipeline:
    return Pipeline.from_seeker(ObjectSeeker(detector, rule, masks=masks), certification_threshold)


leaky_detector = leaky()[0].detector  # as python:attack_pipelines:leaky_detector
