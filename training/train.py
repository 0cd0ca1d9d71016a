"""Train the embedded detector from scratch, in one go or in pieces.

python -m training.train --pack train.npz train_a.bin train_b.bin --seconds 1600 --out runs/embedded

If OUT holds a checkpoint, training goes on from it. `--check` tries everything on noise, without data.
"""

from __future__ import annotations

import argparse
import copy
import io
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from objectseeker.embedded.model import EmbeddedDetector, Predictor, fused
from training.augmentation import Augmentation, Bank, Strength
from training.evaluate import average_precisions
from training.loss import anchors, detection_loss
from training.packs import Pack, Pixels, decode, halve, join, read_pack

LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
WARM_UP_STEPS = 1000
GRADIENT_CLIP = 10.0
AVERAGE_DECAY = 0.9995

CLOSING = 0.85  # from this share of the schedule on: no mosaic, no mixup
MASKING = 0.7  # from this share on: half-plane masks at their full probability
EARLY_MASK_SHARE = 0.6  # before that, this much of it

UNTIMED_STEPS = 3  # of every piece: they compile, which is no training
SYNCHRONISE_EVERY = 25
CHECK_STEPS = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """What makes a run this run: a checkpoint is only continued under the same settings."""

    seconds: float | None  # length of the schedule in training time, or
    steps: int | None  # in steps
    batch: int
    size: int
    mask_probability: float
    seed: int
    images: int


@dataclass(slots=True)
class Progress:
    """Where a run stands in its schedule."""

    step: int = 0
    seconds: float = 0.0

    def fraction(self, settings: Settings) -> float:
        return self.step / settings.steps if settings.steps else self.seconds / (settings.seconds or 1.0)


class Trainer:
    """The network, its running average, the optimiser and the data: everything a checkpoint must restore."""

    def __init__(self, settings: Settings, bank: Bank, device: torch.device, *, compiled: bool) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.device = settings, device
        self.on_gpu = device.type == "cuda"
        self.network = EmbeddedDetector().to(device).to(memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.optimizer = make_optimizer(self.network, fused=self.on_gpu)
        self.augmentation = Augmentation(bank, settings.size, seed=settings.seed, compiled=compiled)
        self.progress = Progress()
        self._slow, self._fast = float_tensors(self.average), float_tensors(self.network)
        self.points, self.strides = anchors(settings.size, settings.size, device)
        self._forward: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._loss: Any = torch.compile(detection_loss, dynamic=False) if compiled else detection_loss

    def step(self) -> torch.Tensor:
        """One step of training; returns the parts of the loss."""
        fraction = self.progress.fraction(self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(fraction, self.progress.step)
        batch = self.augmentation.batch(self.settings.batch, strength(fraction, self.settings.mask_probability))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            box_logits, class_logits = self._forward(batch.images)
        parts: torch.Tensor
        loss, parts = self._loss(
            box_logits, class_logits, batch.boxes, batch.labels, batch.present, self.points, self.strides
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
        weight = 1 - AVERAGE_DECAY * (1 - math.exp(-self.progress.step / 1000))
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


def float_tensors(network: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and batch statistics, which are averaged alike."""
    return [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]


def make_optimizer(network: torch.nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """AdamW; weight decay for convolution kernels only."""
    kernels = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": kernels, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), fused=fused)


def learning_rate(fraction: float, step: int) -> float:
    """Falls linearly to a hundredth, after a short warm-up."""
    return LEARNING_RATE * (0.01 + 0.99 * (1 - fraction)) * min(1.0, (step + 1) / WARM_UP_STEPS)


def strength(fraction: float, mask_probability: float) -> Strength:
    """The augmentation at this point of the schedule."""
    mask = mask_probability * (1.0 if fraction >= MASKING else EARLY_MASK_SHARE)
    if fraction > CLOSING:
        return Strength(mosaic=0.0, mixup=0.0, mask=mask, smallest=0.6, largest=1.4)
    return Strength(mosaic=0.9, mixup=0.1, mask=mask, smallest=0.5, largest=1.5)


class Log:
    """Prints lines with the seconds since the start, and keeps them in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.started = time.monotonic()
        self.path = folder / "log.txt"

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def __call__(self, text: str) -> None:
        line = f"[{self.elapsed():7.1f}] {text}"
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


def main() -> None:
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.out)
    pack, full, half, held_out = load_data(arguments, log)
    if len(pack) < arguments.batch:
        raise SystemExit(f"a batch of {arguments.batch} needs as many images, the packs give {len(pack)}")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    bank = Bank(pack, full, half, device)
    log(f"bank of {bank.pixels.numel() * 4 / 2**30:.2f} GiB on {device}, torch {torch.__version__}")
    settings = Settings(
        seconds=arguments.seconds,
        steps=arguments.steps,
        batch=arguments.batch,
        size=arguments.size,
        mask_probability=arguments.mask_probability,
        seed=arguments.seed,
        images=len(pack),
    )
    trainer = Trainer(settings, bank, device, compiled=device.type == "cuda" and not arguments.no_compile)
    if trainer.resume(arguments.out):
        log(f"resumed at step {trainer.progress.step}, {trainer.progress.fraction(settings):.1%} of the schedule")
    train(trainer, log, arguments)
    trainer.save(arguments.out)
    log(f"saved at step {trainer.progress.step}, {trainer.progress.fraction(settings):.1%} of the schedule")
    if device.type == "cuda":
        log(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if held_out is not None:
        precisions = average_precisions(trainer.predictor(), *held_out, size=settings.size, device=device)
        log(f"AP50 {100 * np.nanmean(precisions):.2f} on {len(held_out[0])} held-out images")


def train(trainer: Trainer, log: Log, arguments: argparse.Namespace) -> None:
    """Step until the schedule ends or this piece's time is up; always at least one step."""
    settings, progress = trainer.settings, trainer.progress
    trainer.network.train()
    sums, summed, before = torch.zeros(3, device=trainer.device), 0, time.monotonic()
    logged_at, own_steps = before, 0
    while progress.fraction(settings) < 1 and (own_steps == 0 or log.elapsed() < arguments.stop_after):
        sums += trainer.step()
        summed, own_steps = summed + 1, own_steps + 1
        if trainer.on_gpu and (own_steps == UNTIMED_STEPS or own_steps % SYNCHRONISE_EVERY == 0):
            torch.cuda.synchronize()  # the GPU runs behind; let its clock and ours agree
        now = time.monotonic()
        if own_steps > UNTIMED_STEPS:
            progress.seconds += now - before
        before = now
        if own_steps == UNTIMED_STEPS or progress.step % arguments.log_every == 0:
            box, classes, distance = (sums / summed).tolist()
            log(
                f"step {progress.step} ({progress.fraction(settings):.1%}, "
                f"{progress.step * settings.batch / settings.images:.1f} epochs) "
                f"box {box:.3f} class {classes:.3f} distance {distance:.3f} "
                f"{summed * settings.batch / (time.monotonic() - logged_at):.0f} images/s"
            )
            if not math.isfinite(box + classes + distance):
                raise SystemExit("training diverged: the loss is not a number any more")
            sums, summed, logged_at = torch.zeros_like(sums), 0, time.monotonic()
        if progress.step % arguments.save_every == 0:
            trainer.save(arguments.out)


def load_data(arguments: argparse.Namespace, log: Log) -> tuple[Pack, Pixels, Pixels, tuple[Pack, Pixels] | None]:
    """The training images at full and half size, and the held-out images if asked for."""
    processes = arguments.processes
    if arguments.check:
        pack = noise_pack(max(2 * arguments.batch, 64))
    else:
        packs = [
            read_pack(index, parts, sources=arguments.sources, limit=arguments.limit)
            for index, *parts in arguments.pack
        ]
        pack = join(packs)
    full = decode(pack, processes=processes)
    half = halve(full, processes=processes)
    log(f"{len(pack)} training images with {sum(map(len, pack.boxes))} boxes decoded")
    if arguments.held_out is None:
        return pack, full, half, None
    held_out = read_pack(arguments.held_out[0], arguments.held_out[1:])
    return pack, full, half, (held_out, decode(held_out, processes=processes))


def noise_pack(count: int) -> Pack:
    """Random images in the two formats that packs use, each with one box: what `--check` trains on."""
    random = np.random.default_rng(0)
    files = []
    for number in range(count):
        buffer = io.BytesIO()
        noise = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(buffer, "WEBP" if number % 2 else "AVIF")
        files.append(buffer.getvalue())
    box = np.array([[number % 20, 8, 8, 40, 40, 0] for number in range(count)], np.float32)
    return Pack(files, [str(number) for number in range(count)], np.tile([64, 48], (count, 1)), list(box[:, None]))


def write(state: dict[str, Any], path: Path) -> None:
    """Write a file that is either whole or not there."""
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    temporary.replace(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pack", type=Path, nargs="+", action="append", help="index, then its parts in order; may be repeated"
    )
    parser.add_argument(
        "--sources",
        nargs="+",
        default=["voc"],
        help="take only images from these data sets (default: voc; packs do not say which COCO split an image is from)",
    )
    parser.add_argument("--limit", type=int, help="take only this many images of each pack")
    parser.add_argument("--held-out", type=Path, nargs="+", help="a pack to measure AP50 on at the end")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="length of the schedule in seconds of training")
    length.add_argument("--steps", type=int, help="length of the schedule in steps")
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, help="stop after so many seconds, to resume later"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, weights and log")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=416, help="side of the training images")
    parser.add_argument("--mask-probability", type=float, default=0.5, help="of a half-plane mask, late in training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for decoding")
    parser.add_argument("--log-every", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=3000)
    parser.add_argument("--check", action="store_true", help=f"run {CHECK_STEPS} steps on noise, at full size")
    arguments = parser.parse_args()
    if arguments.check:
        arguments.steps, arguments.seconds, arguments.log_every = CHECK_STEPS, None, CHECK_STEPS // 3
    elif not arguments.pack or not (arguments.seconds or arguments.steps):
        parser.error("give --pack and --seconds (or --steps), or --check")
    return arguments


if __name__ == "__main__":
    main()
