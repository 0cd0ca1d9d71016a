"""What every training run has: a network, its running average, and checkpoints to resume from."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from objectseeker.files.atomic import write_atomic
from train_builtin.augmentation import Augmentation

WEIGHT_DECAY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings that identify a run: a checkpoint is resumed only with the same ones."""

    seconds: float | None  # length of the schedule in training time, or
    steps: int | None  # in steps
    images: int
    digest: str  # of the training images, so that no piece of a run is trained on others
    batch: int
    size: int = 416
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """The progress of a run in its schedule."""

    step: int = 0
    seconds: float = 0.0

    def fraction(self, settings: RunSettings) -> float:
        return self.step / settings.steps if settings.steps else self.seconds / (settings.seconds or 1.0)


class Learner:
    """The network, its running average, the optimizer and the data: everything a checkpoint must restore."""

    gradient_clip = 10.0

    def __init__(
        self, network: nn.Module, settings: RunSettings, augmentation: Augmentation, device: torch.device
    ) -> None:
        self.settings: RunSettings = settings
        self.device, self.augmentation = device, augmentation
        self.on_gpu = device.type == "cuda"
        self.network: Any = network.to(device).to(memory_format=torch.channels_last)
        self.average: Any = copy.deepcopy(self.network).eval().requires_grad_(False)
        self._slow, self._fast = float_tensors(self.average), float_tensors(self.network)
        self.restart()

    def restart(self) -> None:
        """Reset the optimizer and the progress in the schedule."""
        self.progress = Progress()
        self.optimizer = make_optimizer(self.network, fused=self.on_gpu)

    def step(self) -> Tensor:
        """Run one training step; return the parts of the loss."""
        raise NotImplementedError

    def describe(self, parts: Sequence[float]) -> str:
        """Format the parts of the loss for the log."""
        raise NotImplementedError

    def learn(self, loss: Tensor, *, average_decay: float) -> None:
        """Update the network by the gradient of `loss`, and the running average by the network."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.gradient_clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        with torch.no_grad():  # faster at first, when there is little to remember
            weight = 1 - average_decay * (1 - math.exp(-self.progress.step / 1000))
            torch._foreach_lerp_(self._slow, self._fast, weight)

    def save(self, folder: Path) -> None:
        """Write the checkpoint to resume from, and the averaged weights in half precision for export."""
        state = {
            "settings": asdict(self.settings),
            "progress": asdict(self.progress),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "augmentation": self.augmentation.state_dict(),
        }
        write_atomic(folder / "checkpoint.pt", partial(torch.save, state))
        average = self.average.state_dict()
        half = {name: t.half() if t.is_floating_point() else t for name, t in average.items()}
        weights = {name: t.cpu().contiguous() for name, t in half.items()}
        write_atomic(folder / "weights.pt", partial(torch.save, weights))

    def resume(self, folder: Path) -> bool:
        """Resume from the folder's checkpoint, if there is one."""
        if not (folder / "checkpoint.pt").exists():
            return False
        state = torch.load(folder / "checkpoint.pt", map_location=self.device, weights_only=True)
        stored, requested = state["settings"], asdict(self.settings)
        changed = [name for name in requested if stored.get(name) != requested[name]]
        if changed:
            had, has = ({name: settings.get(name) for name in changed} for settings in (stored, requested))
            raise SystemExit(
                f"{folder} holds a run with {had}, requested {has}: give another --out, or what it had (the digest "
                "is of the training images, their boxes and --repeat)"
            )
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.augmentation.load_state_dict(state["augmentation"])
        self.progress = Progress(**state["progress"])
        return True


def float_tensors(network: nn.Module) -> list[Tensor]:
    """Return parameters and batch statistics, which are both averaged."""
    return [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]


def make_optimizer(network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """Return AdamW with weight decay for convolution kernels only. Every step sets its learning rate."""
    kernels = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": kernels, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), fused=fused)
