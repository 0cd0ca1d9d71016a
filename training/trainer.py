"""The trainer of the embedded detector: recipe, schedule, one step, checkpoints."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from objectseeker.embedded.model import CLASSES, EmbeddedDetector, Predictor, fused
from training.augmentation import Augmentation, Bank, Masking, Strength
from training.loss import anchors, detection_loss

NAMES_FILE = "names.json"  # beside the weights

LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
GRADIENT_CLIP = 10.0

MASKING = 0.7  # from this share on: half-plane masks at their full probability
EARLY_MASK_SHARE = 0.6  # before that, this much of it
LARGEST_SCALE = 1.5  # that an image is shown at, relative to the size of a sample


@dataclass(frozen=True, slots=True)
class Settings:
    """What makes a run this run: a checkpoint is only continued under the same settings."""

    seconds: float | None  # length of the schedule in training time, or
    steps: int | None  # in steps
    images: int
    masking: Masking
    batch: int = 256
    size: int = 416
    learning_rate: float = LEARNING_RATE
    warm_up: int = 1000  # steps
    average_decay: float = 0.9995
    closing: float = 0.85  # from this share of the schedule on: no mosaic, no mixup
    start: str | None = None  # the weights that training begins with; None: random ones
    names: tuple[str, ...] = CLASSES
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """Where a run stands in its schedule."""

    step: int = 0
    seconds: float = 0.0

    def fraction(self, settings: Settings) -> float:
        return self.step / settings.steps if settings.steps else self.seconds / (settings.seconds or 1.0)


class Trainer:
    """The network, its running average, the optimiser and the data: everything a checkpoint must restore.

    One trainer can do several runs one after another (`begin`): compiled code is used again.
    """

    def __init__(self, settings: Settings, bank: Bank, device: torch.device, *, compiled: bool) -> None:
        self.device, self.bank = device, bank
        self.on_gpu = device.type == "cuda"
        self.network = EmbeddedDetector(classes=len(settings.names)).to(device).to(memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self._slow, self._fast = float_tensors(self.average), float_tensors(self.network)
        self.augmentation = Augmentation(bank, settings.size, seed=settings.seed, compiled=compiled)
        self.points, self.strides = anchors(settings.size, settings.size, device)
        self._forward: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._loss: Any = torch.compile(detection_loss, dynamic=False) if compiled else detection_loss
        self.begin(settings)

    def begin(self, settings: Settings) -> None:
        """Start a run from its first step."""
        if settings.size != self.augmentation.size:
            raise SystemExit(
                f"this trainer makes samples of {self.augmentation.size} pixels, asked for {settings.size}"
            )
        self.settings, self.progress = settings, Progress()
        torch.manual_seed(settings.seed)
        first = EmbeddedDetector(classes=len(settings.names)).state_dict()
        if settings.start is not None:
            given = read_weights(Path(settings.start))  # of other classes: all but the last layer of the class heads
            first |= {name: tensor for name, tensor in given.items() if tensor.shape == first[name].shape}
        self.network.load_state_dict(first)
        self.average.load_state_dict(first)
        self.optimizer = make_optimizer(self.network, fused=self.on_gpu)
        self.augmentation.restart(settings.seed)

    def step(self) -> torch.Tensor:
        """One step of training; returns the parts of the loss."""
        settings = self.settings
        fraction = self.progress.fraction(settings)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * decay(fraction, self.progress.step, settings.warm_up)
        batch = self.augmentation.batch(settings.batch, strength(fraction, settings))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            box_logits, class_logits = self._forward(batch.images)
        targets = batch.boxes, batch.labels, batch.present
        parts: torch.Tensor
        loss, parts = self._loss(
            box_logits, class_logits, *targets, self.points, self.strides, paired=settings.masking.paired
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_CLIP, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self._update_average()
        return parts

    @torch.no_grad()
    def _update_average(self) -> None:
        """Move the running average towards the network; faster at first, when there is little to remember."""
        weight = 1 - self.settings.average_decay * (1 - math.exp(-self.progress.step / 1000))
        torch._foreach_lerp_(self._slow, self._fast, weight)

    def predictor(self) -> Predictor:
        """The averaged network as it would be exported."""
        return Predictor(fused(self.average)).to(self.device).eval()

    def save(self, folder: Path) -> None:
        """Write the checkpoint to go on from, and the averaged weights in half precision to export from."""
        state = {
            "settings": asdict(self.settings),
            "progress": asdict(self.progress),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "augmentation": self.augmentation.state_dict(),
        }
        write(state, folder / "checkpoint.pt")
        average = self.average.state_dict()
        weights = {name: t.half() if t.is_floating_point() else t for name, t in average.items()}
        write({name: t.cpu().contiguous() for name, t in weights.items()}, folder / "weights.pt")
        (folder / NAMES_FILE).write_text(json.dumps(self.settings.names) + "\n")

    def resume(self, folder: Path) -> bool:
        """Go on from the folder's checkpoint, if there is one."""
        if not (folder / "checkpoint.pt").exists():
            return False
        state = torch.load(folder / "checkpoint.pt", map_location=self.device, weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise SystemExit(f"{folder} holds a run with {state['settings']}, asked for {asdict(self.settings)}")
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.augmentation.load_state_dict(state["augmentation"])
        self.progress = Progress(**state["progress"])
        return True


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Weights that an earlier run wrote."""
    if not path.is_file():
        raise SystemExit(f"there are no weights at {path}: give the weights.pt of an earlier run")
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return {name: t.float() if t.is_floating_point() else t for name, t in stored.items()}


def read_names(weights: Path) -> tuple[str, ...]:
    """The classes of the detector whose weights those are."""
    file = weights.with_name(NAMES_FILE)
    return tuple(json.loads(file.read_text())) if file.is_file() else CLASSES


def load_trained(weights: Path) -> tuple[Predictor, tuple[str, ...]]:
    """The averaged network of a run, ready for inference, and the names of its classes."""
    names = read_names(weights)
    network = EmbeddedDetector(classes=len(names))
    network.load_state_dict(read_weights(weights))
    return Predictor(fused(network)).eval().requires_grad_(False), names


def float_tensors(network: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and batch statistics, which are averaged alike."""
    return [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]


def make_optimizer(network: torch.nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """AdamW; weight decay for convolution kernels only."""
    kernels = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": kernels, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), fused=fused)


def decay(fraction: float, step: int, warm_up: int) -> float:
    """What the learning rate is multiplied by: falls linearly to a hundredth, after a short warm-up."""
    return (0.01 + 0.99 * (1 - fraction)) * min(1.0, (step + 1) / warm_up)


def strength(fraction: float, settings: Settings) -> Strength:
    """The augmentation at this point of the schedule."""
    full = settings.masking
    share = 1.0 if fraction >= MASKING or full.paired else EARLY_MASK_SHARE
    masking = Masking(share * full.probability, full.visible, full.through, full.crop, full.paired)
    if fraction > settings.closing:
        return Strength(mosaic=0.0, mixup=0.0, smallest=0.6, largest=1.4, masking=masking)
    return Strength(mosaic=0.9, mixup=0.1, smallest=0.5, largest=LARGEST_SCALE, masking=masking)


def write(state: dict[str, Any], path: Path) -> None:
    """Write a file that is either whole or not there."""
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    temporary.replace(path)
