"""Train the objectness network of the DetectorGuard baseline from scratch, in one go or in pieces; export it.

python -m train_builtin.objectness --pack train.npz train_a.bin train_b.bin --seconds 240 --out runs/objectness
python -m train_builtin.objectness --export runs/objectness/weights.pt objectness.onnx

If OUT holds a checkpoint, training continues from it. `--check` tries everything on noise, without data.

Two things are learned from every image, both from what the defense itself computes: windows of 8 x 8 positions are
classified by the mean of their clipped logits, and at every position the largest class vote (the mean of the windows
that cover it) is pushed above or below a fixed level, because that is what the defense compares with a threshold.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from objectseeker.detectorguard.objectness import STRIDE, VIEW, WINDOW
from objectseeker.detectors.builtin.model import CLASSES, fused
from train_builtin.augmentation import Augmentation, Bank, Strength
from train_builtin.learner import Learner, RunSettings
from train_builtin.objectness_network import FeatureExtractor, ObjectnessNetwork
from train_builtin.train import Log, checked, load_data, make_bank, resume, run_parser, settings_from, train

LEARNING_RATE = 2e-3
WARM_UP_STEPS = 500
AVERAGE_DECAY = 0.999
AUGMENTATION = Strength(mosaic=0.25, mixup=0.0, smallest=0.6, largest=1.6)

IGNORED, BACKGROUND = -1, len(CLASSES)
LEVEL = 4.0  # of the largest vote: above it a position says object
LEAST_SHARE = 0.5  # a window shows an object if it covers this share of it, or the object covers this share of it
CLEAR_SHARE = 0.1  # a window is background if no object covers more of it, or more of which it covers
LEAST_SIDE = 24.0  # pixels: smaller objects teach nothing
NEAR = 24.0  # pixels around an object where votes are not judged: windows blur them


def window_labels(boxes: Tensor, labels: Tensor, present: Tensor, count: int) -> Tensor:
    """Return the target of each of count x count windows: a class, BACKGROUND, or IGNORED if unclear.

    A window represents the square of its positions' middles, 64 pixels per side. Of several objects it shows the
    smallest that contains its middle.
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
    """Return which of count x count positions are centered in an object, and which are far from all objects."""
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


def window_votes(windows: Tensor) -> Tensor:
    """Average the windows that cover each position: N,C,n,n -> N,C,n+7,n+7."""

    def spread(x: Tensor) -> Tensor:
        return F.avg_pool2d(F.pad(x, (WINDOW - 1,) * 4), WINDOW, 1)

    return spread(windows) / spread(torch.ones_like(windows[:1, :1]))


def objectness_loss(logits: Tensor, boxes: Tensor, labels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and its four parts: object and background windows, positions in and far from objects."""
    windows = F.avg_pool2d(logits.float(), WINDOW, 1)
    label = window_labels(boxes, labels, present, windows.shape[-1])
    wrong = F.cross_entropy(windows, label, ignore_index=IGNORED, reduction="none")
    level = window_votes(windows[:, :BACKGROUND]).amax(1) - LEVEL
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


class Trainer(Learner):
    """Trains the objectness network."""

    gradient_clip = 5.0

    def __init__(self, settings: RunSettings, bank: Bank, device: torch.device, *, compiled: bool) -> None:
        torch.manual_seed(settings.seed)
        augmentation = Augmentation(bank, settings.size, seed=settings.seed, compiled=compiled)
        super().__init__(ObjectnessNetwork(), settings, augmentation, device)
        self._forward: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._loss: Any = torch.compile(objectness_loss, dynamic=False) if compiled else objectness_loss

    def step(self) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.fraction(self.settings), self.progress.step)
        batch = self.augmentation.batch(self.settings.batch, AUGMENTATION)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            logits = self._forward(batch.images)
        parts: Tensor
        loss, parts = self._loss(logits, batch.boxes, batch.labels, batch.present)
        self.learn(loss, average_decay=AVERAGE_DECAY)
        return parts

    def describe(self, parts: Sequence[float]) -> str:
        windows, positions = parts[:2], parts[2:]
        return (
            f"windows: object {windows[0]:.3f} background {windows[1]:.3f}; "
            f"positions: object {positions[0]:.3f} background {positions[1]:.3f};"
        )


def learning_rate(fraction: float, step: int) -> float:
    """Return the learning rate factor: a cosine down to a hundredth, after a short warm-up."""
    falling = 0.01 + 0.99 * (1 + math.cos(math.pi * min(fraction, 1.0))) / 2
    return LEARNING_RATE * falling * min(1.0, (step + 1) / WARM_UP_STEPS)


def separation(trainer: Trainer, batches: int = 8) -> tuple[float, float]:
    """Measure how well the averaged network separates positions: object positions above 99 and 99.9 % of the others."""
    on, off = [], []
    plain = Strength(mosaic=0.0, mixup=0.0, smallest=1.0, largest=1.0)
    for _ in range(batches):
        batch = trainer.augmentation.batch(trainer.settings.batch, plain)
        logits = torch.cat([trainer.average(part) for part in batch.images.split(16)])
        votes = window_votes(F.avg_pool2d(logits[:, :BACKGROUND], WINDOW, 1)).amax(1)
        inside, outside = position_targets(batch.boxes, batch.present, votes.shape[-1])
        on.append(votes[inside].cpu())
        off.append(votes[outside].cpu())
    objects, others = torch.cat(on), torch.cat(off).sort().values
    if not len(objects) or not len(others):
        return math.nan, math.nan
    levels = [others[min(int(share * len(others)), len(others) - 1)] for share in (0.99, 0.999)]
    return float((objects > levels[0]).float().mean()), float((objects > levels[1]).float().mean())


def export(weights: Path, file: Path) -> None:
    """Export averaged weights to ONNX, checked against PyTorch."""
    from train_builtin.export import differences, export

    network = ObjectnessNetwork()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    extractor = FeatureExtractor(fused(network)).eval()
    metadata = {"classes": " ".join(CLASSES), "input": "RGB float32 0..255, N3HW"}
    export(extractor, file, {"features": {0: "n", 2: "rows", 3: "columns"}}, metadata)
    (error,) = differences(extractor, file, [(1, 416, 416), (1, 224, 744), (1, 320, 416)])
    print(f"{file}: {file.stat().st_size} bytes; half precision moves features by up to {error:.4f}")


def main() -> None:
    arguments = parse()
    if arguments.export:
        export(*arguments.export)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.out)
    data = load_data(arguments, log)
    device, bank = make_bank(data, log)
    settings = settings_from(RunSettings, arguments, **data.settings)
    trainer = Trainer(settings, bank, device, compiled=device.type == "cuda" and not arguments.no_compile)
    resume(trainer, log, arguments.out)
    train(trainer, log, arguments.out, arguments)
    at_99, at_999 = separation(trainer)
    log(f"on training images, object positions above 99 % of the others: {at_99:.1%}; above 99.9 %: {at_999:.1%}")


def parse() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument("--export", type=Path, nargs=2, metavar=("WEIGHTS", "ONNX"), help="export instead of training")
    parser.set_defaults(batch=128, held_out=None, own_classes=False)  # the network has VOC's classes
    arguments = parser.parse_args()
    return arguments if arguments.export else checked(parser, arguments)


if __name__ == "__main__":
    main()
