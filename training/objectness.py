"""Train the objectness network of the DetectorGuard baseline from scratch, in one go or in pieces; export it.

python -m training.objectness --pack train.npz train_a.bin train_b.bin --seconds 240 --out runs/objectness
python -m training.objectness --export runs/objectness/weights.pt objectness.onnx

If OUT holds a checkpoint, training goes on from it. `--check` tries everything on noise, without data.

Two things are learned from every image, both from what the defence itself computes: windows of 8 x 8 positions are
classified by the mean of their clipped logits, and at every position the largest class vote (the mean of the windows
that cover it) is pushed above or below a fixed level, because that is what the defence compares with a threshold.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from objectseeker.baselines.detectorguard.network import CLASSES, FeatureExtractor, ObjectnessNetwork, fused
from objectseeker.baselines.detectorguard.objectness import STRIDE, VIEW, WINDOW
from training.augmentation import Augmentation, Bank, Strength
from training.train import Log, load_data
from training.trainer import Progress, float_tensors, make_optimizer, write

LEARNING_RATE = 2e-3
WARM_UP_STEPS = 500
GRADIENT_CLIP = 5.0
AVERAGE_DECAY = 0.999
AUGMENTATION = Strength(mosaic=0.25, mixup=0.0, smallest=0.6, largest=1.6)

IGNORED, BACKGROUND = -1, len(CLASSES)
LEVEL = 4.0  # of the largest vote: above it a position says object
LEAST_SHARE = 0.5  # a window shows an object if it covers this share of it, or the object covers this share of it
CLEAR_SHARE = 0.1  # a window is background if no object covers more of it, or more of which it covers
LEAST_SIDE = 24.0  # pixels: smaller objects teach nothing
NEAR = 24.0  # pixels around an object where votes are not judged: windows blur them

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
    seed: int
    images: int


def window_labels(boxes: Tensor, labels: Tensor, present: Tensor, count: int) -> Tensor:
    """What every one of count x count windows shows: a class, BACKGROUND, or IGNORED where that is not clear.

    A window stands for the square of its positions' middles, 64 pixels a side. Of several objects it shows the smallest
    that contains its middle.
    """
    start = torch.arange(count, device=boxes.device) * STRIDE + (VIEW - STRIDE) / 2
    side = float(WINDOW * STRIDE)
    x1, y1, x2, y2 = boxes[..., None].unbind(2)  # N,M,1 each
    width = (torch.minimum(x2, start + side) - torch.maximum(x1, start)).clamp(min=0)  # N,M,columns
    height = (torch.minimum(y2, start + side) - torch.maximum(y1, start)).clamp(min=0)
    middle = start + side / 2
    across, down = (x1 <= middle) & (middle < x2), (y1 <= middle) & (middle < y2)
    overlap = height[..., :, None] * width[..., None, :]  # N,M,rows,columns
    area = ((x2 - x1) * (y2 - y1))[..., None]
    share = torch.maximum(overlap / side**2, overlap / area.clamp(min=1))
    there = present[..., None, None]
    large = ((x2 - x1 >= LEAST_SIDE) & (y2 - y1 >= LEAST_SIDE))[..., None]
    shows = there & large & down[..., :, None] & across[..., None, :] & (share >= LEAST_SHARE)
    smallest = torch.where(shows, area, math.inf).min(1)
    label = labels.gather(1, smallest.indices.flatten(1)).view_as(smallest.indices)
    clear = ~(there & (share > CLEAR_SHARE)).any(1)
    other = torch.where(clear, BACKGROUND, IGNORED)
    return torch.where(smallest.values.isfinite(), label, other)


def position_targets(boxes: Tensor, present: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which of count x count positions have their middle in an object, and which are far from all objects."""
    middle = torch.arange(count, device=boxes.device) * STRIDE + VIEW / 2
    x1, y1, x2, y2 = boxes[..., None].unbind(2)

    def inside(margin: float) -> Tensor:
        across, down = (
            (x1 - margin <= middle) & (middle < x2 + margin),
            (y1 - margin <= middle) & (middle < y2 + margin),
        )
        return (present[..., None, None] & down[..., :, None] & across[..., None, :]).flatten(2)

    large = (x2 - x1 >= LEAST_SIDE) & (y2 - y1 >= LEAST_SIDE)
    shape = (len(boxes), count, count)
    return (inside(0.0) & large).any(1).view(shape), ~inside(NEAR).any(1).view(shape)


def votes_of(windows: Tensor) -> Tensor:
    """The mean, at every position, of the windows that cover it: N,C,n,n -> N,C,n+7,n+7."""

    def spread(x: Tensor) -> Tensor:
        return F.avg_pool2d(F.pad(x, (WINDOW - 1,) * 4), WINDOW, 1)

    return spread(windows) / spread(torch.ones_like(windows[:1, :1]))


def objectness_loss(logits: Tensor, boxes: Tensor, labels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its four parts: windows of objects, of background; positions in objects, far from them."""
    windows = F.avg_pool2d(logits.float(), WINDOW, 1)
    label = window_labels(boxes, labels, present, windows.shape[-1])
    wrong = F.cross_entropy(windows, label, ignore_index=IGNORED, reduction="none")
    level = votes_of(windows[:, :BACKGROUND]).amax(1) - LEVEL
    on, off = position_targets(boxes, present, logits.shape[-1])
    parts = torch.stack(
        [
            mean_where(wrong, (label >= 0) & (label < BACKGROUND)),
            mean_where(wrong, label == BACKGROUND),
            mean_where(F.softplus(-level), on),
            mean_where(F.softplus(level), off),
        ]
    )
    return parts.sum(), parts.detach()


def mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


class Trainer:
    """The network, its running average, the optimiser and the data: everything a checkpoint must restore."""

    def __init__(self, settings: Settings, bank: Bank, device: torch.device, *, compiled: bool) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.device = settings, device
        self.on_gpu = device.type == "cuda"
        self.network = ObjectnessNetwork().to(device).to(memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.optimizer = make_optimizer(self.network, fused=self.on_gpu)
        self.augmentation = Augmentation(bank, settings.size, seed=settings.seed, compiled=compiled)
        self.progress = Progress()
        self._slow, self._fast = float_tensors(self.average), float_tensors(self.network)
        self._forward: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._loss: Any = torch.compile(objectness_loss, dynamic=False) if compiled else objectness_loss

    def step(self) -> Tensor:
        """One step of training; returns the parts of the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.fraction(self.settings), self.progress.step)
        batch = self.augmentation.batch(self.settings.batch, AUGMENTATION)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            logits = self._forward(batch.images)
        loss, parts = self._loss(logits, batch.boxes, batch.labels, batch.present)
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


def learning_rate(fraction: float, step: int) -> float:
    """Falls along a cosine to a hundredth, after a short warm-up."""
    falling = 0.01 + 0.99 * (1 + math.cos(math.pi * min(fraction, 1.0))) / 2
    return LEARNING_RATE * falling * min(1.0, (step + 1) / WARM_UP_STEPS)


def train(trainer: Trainer, log: Log, arguments: argparse.Namespace) -> None:
    """Step until the schedule ends or this piece's time is up; always at least one step."""
    settings, progress = trainer.settings, trainer.progress
    trainer.network.train()
    sums, summed, before = torch.zeros(4, device=trainer.device), 0, time.monotonic()
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
            parts = (sums / summed).tolist()
            log(
                f"step {progress.step} ({progress.fraction(settings):.1%}, "
                f"{progress.step * settings.batch / settings.images:.1f} epochs) windows: object {parts[0]:.3f} "
                f"background {parts[1]:.3f}; positions: object {parts[2]:.3f} background {parts[3]:.3f}; "
                f"{summed * settings.batch / (time.monotonic() - logged_at):.0f} images/s"
            )
            if not math.isfinite(sum(parts)):
                raise SystemExit("training diverged: the loss is not a number any more")
            sums, summed, logged_at = torch.zeros_like(sums), 0, time.monotonic()
        if progress.step % arguments.save_every == 0:
            trainer.save(arguments.out)


@torch.no_grad()
def separation(trainer: Trainer, batches: int = 8) -> tuple[float, float]:
    """How well the averaged network tells positions apart: share of object positions above 99 and 99.9 % of others."""
    on, off = [], []
    plain = Strength(mosaic=0.0, mixup=0.0, smallest=1.0, largest=1.0)
    for _ in range(batches):
        batch = trainer.augmentation.batch(trainer.settings.batch, plain)
        logits = torch.cat([trainer.average(part) for part in batch.images.split(16)])
        votes = votes_of(F.avg_pool2d(logits[:, :BACKGROUND], WINDOW, 1)).amax(1)
        inside, outside = position_targets(batch.boxes, batch.present, votes.shape[-1])
        on.append(votes[inside].cpu())
        off.append(votes[outside].cpu())
    objects, others = torch.cat(on), torch.cat(off).sort().values
    if not len(objects) or not len(others):
        return math.nan, math.nan
    levels = [others[min(int(share * len(others)), len(others) - 1)] for share in (0.99, 0.999)]
    return float((objects > levels[0]).float().mean()), float((objects > levels[1]).float().mean())


def export(weights: Path, file: Path) -> None:
    """Averaged weights -> ONNX for any batch and image size, stored in half precision, checked against PyTorch."""
    import numpy as np
    import onnx
    import onnxruntime

    from training.export import store_half

    network = ObjectnessNetwork()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    extractor = FeatureExtractor(fused(network)).eval()
    torch.onnx.export(
        extractor,
        (torch.zeros(1, 3, 416, 416),),
        str(file),
        input_names=["images"],
        output_names=["features"],
        dynamic_axes={"images": {0: "n", 2: "h", 3: "w"}, "features": {0: "n", 2: "rows", 3: "columns"}},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(file)
    for key, value in {"classes": " ".join(CLASSES), "input": "RGB float32 0..255, N3HW"}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    store_half(model)
    onnx.checker.check_model(model)
    onnx.save(model, file)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    error = 0.0
    for height, width in ((416, 416), (224, 744), (320, 416)):
        images = torch.randint(0, 256, (1, 3, height, width), generator=torch.Generator().manual_seed(0)).float()
        with torch.no_grad():
            expected = extractor(images).numpy()
        found = session.run(None, {"images": images.numpy()})[0]
        if found.shape != expected.shape:
            raise SystemExit(f"{file} gives shape {found.shape} at {height} x {width}, not {expected.shape}")
        error = max(error, float(np.abs(found - expected).max()))
    print(f"{file}: {file.stat().st_size} bytes; half precision moves features by up to {error:.4f}")


def main() -> None:
    arguments = parse()
    if arguments.export:
        export(*arguments.export)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.out)
    data = load_data(arguments, log)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    bank = Bank(data.pack, data.full, data.half, device)
    log(f"bank of {bank.pixels.numel() * 4 / 2**30:.2f} GiB on {device}, torch {torch.__version__}")
    settings = Settings(
        seconds=arguments.seconds,
        steps=arguments.steps,
        batch=arguments.batch,
        size=arguments.size,
        seed=arguments.seed,
        images=len(data.pack),
    )
    trainer = Trainer(settings, bank, device, compiled=device.type == "cuda" and not arguments.no_compile)
    if trainer.resume(arguments.out):
        log(f"resumed at step {trainer.progress.step}, {trainer.progress.fraction(settings):.1%} of the schedule")
    train(trainer, log, arguments)
    trainer.save(arguments.out)
    log(f"saved at step {trainer.progress.step}, {trainer.progress.fraction(settings):.1%} of the schedule")
    if device.type == "cuda":
        log(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    at_99, at_999 = separation(trainer)
    log(f"on training images, object positions above 99 % of the others: {at_99:.1%}; above 99.9 %: {at_999:.1%}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pack", type=Path, nargs="+", action="append", help="index, then its parts in order; may be repeated"
    )
    parser.add_argument(
        "--data", action="append", default=[], metavar="DATASET", help="a data set in folders; may be repeated"
    )
    parser.add_argument("--sources", nargs="+", default=["voc"], help="take only images from these data sets")
    parser.add_argument("--limit", type=int, help="take only this many images of each pack")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="length of the schedule in seconds of training")
    length.add_argument("--steps", type=int, help="length of the schedule in steps")
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, help="stop after so many seconds, to resume later"
    )
    parser.add_argument("--out", type=Path, help="folder of checkpoint, weights and log")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=416, help="side of the training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for decoding")
    parser.add_argument("--log-every", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=3000)
    parser.add_argument("--check", action="store_true", help=f"run {CHECK_STEPS} steps on noise, at full size")
    parser.add_argument("--export", type=Path, nargs=2, metavar=("WEIGHTS", "ONNX"), help="export instead of training")
    parser.set_defaults(held_out=None, own_classes=False)  # the network has VOC's classes
    arguments = parser.parse_args()
    if arguments.export:
        return arguments
    if arguments.check:
        arguments.steps, arguments.seconds = arguments.steps or CHECK_STEPS, None
        arguments.log_every = max(arguments.steps // 3, 1)
    elif not (arguments.pack or arguments.data) or not (arguments.seconds or arguments.steps):
        parser.error("give --data or --pack, and --seconds or --steps; or --check")
    if not arguments.out:
        parser.error("say with --out where the run is to be kept")
    return arguments


if __name__ == "__main__":
    main()
