"""The trainer of the built-in detector: recipe, schedule, one step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from objectseeker.detectors.builtin.model import CLASSES, BuiltinDetector, Predictor, fused
from objectseeker.errors import require_count, require_fraction
from train_builtin.augmentation import Augmentation, Bank, Batch, SampleMasking, Strength
from train_builtin.learner import Learner, Progress, RunSettings
from train_builtin.loss import anchor_points, detection_loss, sample_losses

NAMES_FILE = "names.json"  # next to the weights

LEARNING_RATE = 3e-3

MASKING = 0.7  # from this share on: masks at their full probability
EARLY_MASK_SHARE = 0.6  # before that, this much of it, unless a run says otherwise
LARGEST_SCALE = 1.5  # that an image is shown at, relative to the size of a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(RunSettings):
    """The settings that identify a detector run."""

    masking: SampleMasking
    batch: int = 256
    learning_rate: float = LEARNING_RATE
    warm_up: int = 1000  # steps
    average_decay: float = 0.9995
    closing: float = 0.85  # from this share of the schedule on: no mosaic, no mixup
    start: str | None = None  # the weights that training begins with; None: random ones
    mask_early_share: float = EARLY_MASK_SHARE
    mask_worst_from: float = 0.0  # from this share of the schedule on the worst of several masks is taken
    mask_worst_every: int = 1  # and only every that many steps
    teacher: str | None = None  # weights whose answers on whole samples are kept; with paired masks
    names: tuple[str, ...] = CLASSES

    def __post_init__(self) -> None:
        require_fraction(self.mask_early_share, "mask_early_share")
        require_fraction(self.mask_worst_from, "mask_worst_from")
        require_count(self.mask_worst_every, "mask_worst_every")


class Trainer(Learner):
    """Trains the built-in detector.

    One trainer can do several runs one by one (`begin`): compiled code is used again.
    """

    settings: Settings

    def __init__(self, settings: Settings, bank: Bank, device: torch.device, *, compiled: bool) -> None:
        augmentation = Augmentation(bank, settings.size, seed=settings.seed, compiled=compiled)
        super().__init__(BuiltinDetector(classes=len(settings.names)), settings, augmentation, device)
        self.points, self.strides = anchor_points(settings.size, device)
        self._forward: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._loss: Any = torch.compile(detection_loss, dynamic=False) if compiled else detection_loss
        self._answer: Any = torch.compile(self.average, dynamic=False) if compiled else self.average
        self._sample_losses: Any = torch.compile(sample_losses, dynamic=False) if compiled else sample_losses
        self._judged = False
        self.begin(settings)

    def begin(self, settings: Settings) -> None:
        """Start a run at its first step."""
        if settings.size != self.augmentation.size:
            raise SystemExit(
                f"this trainer makes samples of {self.augmentation.size} pixels, requested {settings.size}"
            )
        self.settings = settings
        torch.manual_seed(settings.seed)
        first = BuiltinDetector(classes=len(settings.names)).state_dict()
        if settings.start is not None:
            stored = read_weights(Path(settings.start))
            if stored.keys() != first.keys():
                raise SystemExit(f"{settings.start} holds the weights of another network")
            # Of other classes all but the last layer of the class heads is taken.
            first |= {name: tensor for name, tensor in stored.items() if tensor.shape == first[name].shape}
        self.network.load_state_dict(first)
        self.average.load_state_dict(first)
        self.teacher = self._read_teacher(settings)
        self.restart()
        self.augmentation.restart(settings.seed)

    def _read_teacher(self, settings: Settings) -> BuiltinDetector | None:
        if settings.teacher is None:
            return None
        if not settings.masking.paired:
            raise SystemExit("a teacher answers whole samples next to masked ones: give --mask-paired, too")
        teacher, names = read_network(Path(settings.teacher))
        if names != settings.names:
            raise SystemExit(f"the teacher {settings.teacher} knows {len(names)} classes, not those that are trained")
        teacher.to(self.device, memory_format=torch.channels_last).eval().requires_grad_(False)
        return teacher

    def step(self) -> torch.Tensor:
        """Run one training step; return the parts of the loss."""
        settings = self.settings
        fraction = self.progress.fraction(settings)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * decay(fraction, self.progress.step, settings.warm_up)
        batch = self.augmentation.batch(settings.batch, strength(self.progress, settings), self.judge)
        if settings.masking.worst > 1 and not self._judged:
            self.judge(batch)  # compiles now, in the steps that are not timed, what may be wanted much later
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            box_logits, class_logits = self._forward(batch.images)
            taught = None if self.teacher is None else self.teacher(batch.images[: settings.batch // 2])
        targets = batch.boxes, batch.labels, batch.present
        parts: torch.Tensor
        loss, parts = self._loss(
            box_logits,
            class_logits,
            *targets,
            self.points,
            self.strides,
            doubtful=batch.doubtful,
            paired=settings.masking.paired,
            taught=taught,
        )
        self.learn(loss, average_decay=settings.average_decay)
        return parts

    def judge(self, batch: Batch) -> torch.Tensor:
        """Return each sample's loss under the averaged network, which is exported and which judging cannot change."""
        self._judged = True
        targets = batch.boxes, batch.labels, batch.present
        with torch.no_grad():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                box_logits, class_logits = self._answer(batch.images)
            losses: torch.Tensor = self._sample_losses(
                box_logits, class_logits, *targets, self.points, self.strides, doubtful=batch.doubtful
            )
        return losses

    def describe(self, parts: Sequence[float]) -> str:
        box, classes, distance = parts
        return f"box {box:.3f} class {classes:.3f} distance {distance:.3f}"

    def predictor(self) -> Predictor:
        """Return the averaged network as it would be exported."""
        predictor: Predictor = Predictor(fused(self.average)).to(self.device).eval()
        return predictor

    def save(self, folder: Path) -> None:
        """Save as every learner does, and the class names with the weights."""
        super().save(folder)
        (folder / NAMES_FILE).write_text(json.dumps(self.settings.names) + "\n")


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Load the weights of an earlier run."""
    if not path.is_file():
        raise SystemExit(f"there are no weights at {path}: give the weights.pt of an earlier run")
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return {name: t.float() if t.is_floating_point() else t for name, t in stored.items()}


def read_names(weights: Path) -> tuple[str, ...]:
    """Return the classes of the weights' detector."""
    file = weights.with_name(NAMES_FILE)
    return tuple(json.loads(file.read_text())) if file.is_file() else CLASSES


def read_network(weights: Path) -> tuple[BuiltinDetector, tuple[str, ...]]:
    """Load the averaged network of a run, in training form, and its class names."""
    names = read_names(weights)
    network = BuiltinDetector(classes=len(names))
    network.load_state_dict(read_weights(weights))
    return network, names


def load_trained(weights: Path) -> tuple[Predictor, tuple[str, ...]]:
    """Load the averaged network of a run, ready for inference, and its class names."""
    network, names = read_network(weights)
    return Predictor(fused(network)).eval().requires_grad_(False), names


def decay(fraction: float, step: int, warm_up: int) -> float:
    """Return the learning rate factor: linear down to a hundredth, after a short warm-up."""
    return (0.01 + 0.99 * (1 - fraction)) * min(1.0, (step + 1) / warm_up)


def strength(progress: Progress, settings: Settings) -> Strength:
    """Return the augmentation at this point of the schedule."""
    masking, fraction = settings.masking, progress.fraction(settings)
    if fraction < MASKING and not masking.paired:
        masking = replace(masking, probability=settings.mask_early_share * masking.probability)
    if fraction < settings.mask_worst_from or progress.step % settings.mask_worst_every:
        masking = replace(masking, worst=1)
    if fraction > settings.closing:
        return Strength(mosaic=0.0, mixup=0.0, smallest=0.6, largest=1.4, masking=masking)
    return Strength(mosaic=0.9, mixup=0.1, smallest=0.5, largest=LARGEST_SCALE, masking=masking)
