"""Train the built-in detector from scratch, in one go or in pieces.

python -m train_builtin.train --pack train.npz train_a.bin train_b.bin --seconds 1600 --out runs/builtin

If OUT holds a checkpoint, training continues from it. `--check` tries everything on noise, without data.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from objectseeker.datasets.parsing import read_lines
from objectseeker.detectors.builtin.model import CLASSES
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import quote
from objectseeker.training.masking import MaskMode
from train_builtin.augmentation import Bank, SampleMasking
from train_builtin.evaluate import LAYOUT, average_precisions
from train_builtin.folders import read_folder
from train_builtin.learner import Learner, Progress, RunSettings
from train_builtin.packs import (
    DOUBTFUL,
    Pack,
    Pixels,
    decode,
    digest_of,
    halve,
    join,
    names_in,
    plain,
    read_pack,
    without,
)
from train_builtin.trainer import LARGEST_SCALE, Settings, Trainer

UNTIMED_STEPS = 3  # of every piece: they compile, which is not a training
SYNCHRONISE_EVERY = 25
CHECK_STEPS = 60

LEAVE_OUT = (
    "names of images not to train on, one a line, with or without .jpg and the like; they are omitted from every pack "
    "and dataset"
)

S = TypeVar("S")


class Log:
    """Prints lines with the seconds since the start, and saves them in the run's folder."""

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
    parser = detector_parser(__doc__)
    arguments = checked(parser, parser.parse_args())
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.out)
    data = load_data(arguments, log)
    trainer = make_trainer(settings_of(arguments, data), data, log, compiled=not arguments.no_compile)
    resume(trainer, log, arguments.out)
    train(trainer, log, arguments.out, arguments, partial(measure, trainer, data.held_out, log))


def make_trainer(settings: Settings, data: Data, log: Log, *, compiled: bool) -> Trainer:
    device, bank = make_bank(data, log)
    return Trainer(settings, bank, device, compiled=device.type == "cuda" and compiled)


def make_bank(data: Data, log: Log) -> tuple[torch.device, Bank]:
    """The GPU, if there is one, with all images in its memory."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    bank = Bank(data.pack, data.full, data.half, device, repeats=data.repeats)
    log(f"bank of {bank.pixels.numel() * 4 / 2**30:.2f} GiB on {device}, torch {torch.__version__}")
    return device, bank


def measure(trainer: Trainer, held_out: tuple[Pack, Pixels] | None, log: Log) -> None:
    """Measure the averaged network's AP50 on the held-out images, if there are any."""
    if held_out is None:
        return
    settings = trainer.settings
    detector = torch_detector(
        trainer.predictor(),
        names=settings.names,
        layout=LAYOUT,
        input_size=settings.size,
        device=str(trainer.device),
    )
    log(f"AP50 {np.nanmean(average_precisions(detector, *held_out)):.2f} on {len(held_out[0])} held-out images")


def settings_of(arguments: argparse.Namespace, data: Data) -> Settings:
    try:
        mode: MaskMode = "crop" if arguments.mask_crop else "fill"
        masking = settings_from(SampleMasking, arguments, "mask_", mask_mode=mode, fill=None)
        return settings_from(Settings, arguments, **data.settings, masking=masking, names=data.names)
    except ObjectSeekerError as error:
        raise SystemExit(str(error)) from None


def settings_from(kind: type[S], arguments: argparse.Namespace, prefix: str = "", **own: Any) -> S:
    """Build settings of a class: `own` ones, and the others from arguments of the same names."""
    names = (field.name for field in fields(kind) if field.name not in own)  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: getattr(arguments, prefix + name) for name in names}, **own)


def train(
    trainer: Learner, log: Log, out: Path, arguments: argparse.Namespace, report: Callable[[], object] = lambda: None
) -> None:
    """Run steps until the schedule or the time limit ends, at least one.

    Saves now and then and at the end, and calls `report` each time.
    """
    settings, progress = trainer.settings, trainer.progress
    trainer.network.train()
    sums, summed, last = torch.zeros((), device=trainer.device), 0, time.monotonic()
    logged_at, own_steps = last, 0
    while progress.fraction(settings) < 1 and (own_steps == 0 or log.elapsed() < arguments.stop_after):
        sums = sums + trainer.step()
        summed, own_steps = summed + 1, own_steps + 1
        if trainer.on_gpu and (own_steps == UNTIMED_STEPS or own_steps % SYNCHRONISE_EVERY == 0):
            torch.cuda.synchronize()  # the GPU runs behind; let its clock and ours agree
        current = time.monotonic()
        if own_steps > UNTIMED_STEPS:
            progress.seconds += current - last
        last = current
        if own_steps == UNTIMED_STEPS or progress.step % arguments.log_every == 0:
            parts = (sums / summed).tolist()
            log(
                f"step {progress.step} ({progress.fraction(settings):.1%}, "
                f"{progress.step * settings.batch / settings.images:.1f} epochs) "
                f"{trainer.describe(parts)} "
                f"{summed * settings.batch / (time.monotonic() - logged_at):.0f} images/s "
                f"{time_left(progress, settings)}"
            )
            if not math.isfinite(sum(parts)):
                raise SystemExit("training diverged: the loss is not a number any more")
            sums, summed, logged_at = torch.zeros_like(sums), 0, time.monotonic()
        if progress.step % arguments.save_every == 0:
            save(trainer, log, out)
            report()
            last = logged_at = time.monotonic()
    save(trainer, log, out)
    report()
    if trainer.on_gpu:
        log(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def resume(trainer: Learner, log: Log, out: Path) -> None:
    if trainer.resume(out):
        step, fraction = trainer.progress.step, trainer.progress.fraction(trainer.settings)
        log(f"resumed at step {step}, {fraction:.1%} of the schedule")


def save(trainer: Learner, log: Log, out: Path) -> None:
    trainer.save(out)
    log(f"saved at step {trainer.progress.step}, {trainer.progress.fraction(trainer.settings):.1%} of the schedule")


def time_left(progress: Progress, settings: RunSettings) -> str:
    done = max(progress.fraction(settings), 1e-9)
    minutes, seconds = divmod(round(progress.seconds * (1 - done) / done), 60)
    return f"{minutes}:{seconds:02} left"


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """The training images at full and half size, the held-out images, if any, and the class names.

    An epoch shows each training image as often as `repeats` says.
    """

    pack: Pack
    full: Pixels
    half: Pixels
    held_out: tuple[Pack, Pixels] | None
    names: tuple[str, ...]
    repeats: npt.NDArray[np.int64]
    digest: str

    @property
    def settings(self) -> dict[str, Any]:
        """Return what identifies the training images in a run's settings."""
        return {"images": int(self.repeats.sum()), "digest": self.digest}


def load_data(arguments: argparse.Namespace, log: Log) -> Data:
    """Read and decode the images that the command line names."""
    processes, limit = arguments.processes, arguments.limit
    names: tuple[str, ...] = CLASSES
    packs = [read_pack(index, parts, sources=arguments.sources, limit=limit) for index, *parts in arguments.pack or []]
    if arguments.check:
        packs = [noise_pack(max(2 * arguments.batch, 64))]
    largest = round(LARGEST_SCALE * arguments.size)  # training looks at nothing larger
    for number, spec in enumerate(arguments.data):
        classes = None if arguments.own_classes and number == 0 else names
        pack, names = read_folder(spec, longest_side=largest, processes=processes, classes=classes, limit=limit)
        packs.append(pack)
    held_out = None
    if arguments.held_out:
        held = read_held_out(arguments.held_out, names, arguments)
        held_out = held, decode(held, processes=processes)
    kept = leave_out(packs, arguments, log) if arguments.leave_out else packs
    pack, repeats = join(kept), repeats_of(kept, arguments.repeat)
    if repeats.sum() < max(arguments.batch, 1):
        raise SystemExit(f"a batch of {arguments.batch} needs as many images, the data give {repeats.sum()}")
    full = decode(pack, processes=processes)
    half = halve(full, processes=processes)
    doubtful = sum(int((rows[:, 5] == DOUBTFUL).sum()) for rows in pack.boxes)
    log(
        f"{len(pack)} training images with {sum(map(len, pack.boxes)) - doubtful} boxes of {len(names)} classes "
        f"and {doubtful} doubtful ones decoded"
    )
    return Data(pack, full, half, held_out, names, repeats, digest_of(pack, repeats))


def repeats_of(packs: Sequence[Pack], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return how often an epoch shows each image: one count per pack."""
    if len(counts) > len(packs) or min(counts, default=1) < 1:
        raise SystemExit(f"--repeat takes whole numbers from 1 on, one for each of {len(packs)} packs: got {counts}")
    every = [*counts, *[1] * (len(packs) - len(counts))]
    return np.repeat(np.array(every, np.int64), [len(pack) for pack in packs])


def leave_out(packs: Sequence[Pack], arguments: argparse.Namespace, log: Log) -> list[Pack]:
    """Drop the images that a file lists, one per line; reject a name that no image has.

    Every pack and dataset is searched for every name. Images that --sources omits count as known; where --limit
    cuts datasets short no one can say what is known, and nothing is rejected.
    """
    file = arguments.leave_out
    try:
        listed = {plain(line): line.strip() for _, line in read_lines(file)}
    except ObjectSeekerError as error:
        raise SystemExit(str(error)) from None
    names = [name for pack in packs for name in pack.names]
    known = {plain(name) for index, *_ in arguments.pack or [] for name in names_in(index)} | set(map(plain, names))
    unknown = [line for name, line in listed.items() if name not in known]
    if unknown and arguments.limit is None:
        raise SystemExit(
            f"{file} lists names that no training image has ({len(unknown)} of {len(listed)}), such as "
            f"{quote(unknown[0])}: write them as the data do, such as {quote(names[0]) if names else 'none'}"
        )
    kept = [without(pack, listed) for pack in packs]
    log(f"{len(names) - sum(map(len, kept))} of {len(names)} training images omitted that {file} names")
    return kept


def read_held_out(sources: Sequence[str], names: Sequence[str], arguments: argparse.Namespace) -> Pack:
    """Read a pack, or a dataset folder."""
    if len(sources) > 1:
        return read_pack(Path(sources[0]), [Path(part) for part in sources[1:]])
    return read_folder(sources[0], longest_side=arguments.size, processes=arguments.processes, classes=names)[0]


def noise_pack(count: int) -> Pack:
    """Make random images in the two pack formats, each with one box, for `--check`."""
    random = np.random.default_rng(0)
    files = []
    for number in range(count):
        buffer = io.BytesIO()
        noise = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(buffer, "WEBP" if number % 2 else "AVIF")
        files.append(buffer.getvalue())
    box = np.array([[number % 20, 8, 8, 40, 40, 0] for number in range(count)], np.float32)
    return Pack(files, [str(number) for number in range(count)], np.tile([64, 48], (count, 1)), list(box[:, None]))


def run_parser(description: str | None) -> argparse.ArgumentParser:
    """Add the options of every run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pack", type=Path, nargs="+", action="append", help="index, then its parts in order; may be repeated"
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DATASET",
        help="a dataset in folders, as voc:VOCDIR:SPLIT or coco:ANNOTATIONS.json:IMAGES; may be repeated",
    )
    parser.add_argument(
        "--sources",
        nargs="+",
        default=["voc", "coco-train2017"],
        help="of packs take only images from these datasets (default: voc coco-train2017)",
    )
    parser.add_argument("--leave-out", type=Path, metavar="FILE", help=LEAVE_OUT)
    parser.add_argument(
        "--repeat",
        type=int,
        nargs="+",
        default=[],
        metavar="COUNT",
        help="how often an epoch shows the images of the first pack, of the second and so on (default: once)",
    )
    parser.add_argument("--limit", type=int, help="maximum number of images of each pack")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="length of the schedule in seconds of training")
    length.add_argument("--steps", type=int, help="length of the schedule in steps")
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, help="stop after this many seconds, to resume later"
    )
    parser.add_argument("--out", type=Path, help="folder of checkpoint, weights and log")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=416, help="side of the training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes for decoding")
    parser.add_argument("--log-every", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=3000)
    parser.add_argument("--check", action="store_true", help=f"run {CHECK_STEPS} steps on noise, at full size")
    return parser


def detector_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser with every option of a detector run."""
    parser = run_parser(description)
    parser.add_argument(
        "--own-classes", action="store_true", help="detect the classes of the first --data instead of VOC's 20"
    )
    parser.add_argument("--held-out", nargs="+", help="a pack, or a DATASET in folders, to measure AP50 on")
    parser.add_argument("--start", help="begin with the weights.pt of an earlier run instead of random weights")
    parser.add_argument("--teacher", help="weights.pt of a teacher for unmasked samples; with --mask-paired")
    add_settings(
        parser,
        Settings,
        learning_rate={},
        warm_up={"help": "steps"},
        average_decay={"help": "decay of the running average of the weights"},
        closing={"help": "fraction of the schedule with mosaic and mixup"},
    )
    masks = parser.add_argument_group("masks")
    add_settings(
        masks,
        SampleMasking,
        "mask_",
        probability={"help": "probability of a mask in the last 30 %% of the schedule"},
        band_fraction={"help": "fraction of masks that are bands", "metavar": "SHARE"},
        band_widths={"help": "as fractions of the axis", "type": float, "nargs": 2, "metavar": ("NARROWEST", "WIDEST")},
        min_visible={"help": "fraction of a box that must be visible"},
        through={"help": "fraction of masks with a line through an object"},
        worst={"help": "take the one of K masks with the largest loss", "metavar": "K"},
    )
    add_settings(
        masks,
        Settings,
        mask_early_share={"help": "fraction of that probability before (default: 0.6)"},
        mask_worst_from={"help": "of the schedule; one mask before", "metavar": "SHARE"},
        mask_worst_every={"help": "one mask in the steps between", "metavar": "STEPS"},
    )
    masks.add_argument(
        "--mask-crop", action="store_true", help="move the cut to the border of the sample; bands are filled"
    )
    masks.add_argument(
        "--mask-paired", action="store_true", help="pair unmasked and masked samples, with a consistency loss"
    )
    return parser


def add_settings(parser: Any, kind: Any, prefix: str = "", **options: dict[str, Any]) -> None:
    """Add the settings of a class as options, with their defaults."""
    defaults = {field.name: field.default for field in fields(kind)}
    for name, extra in options.items():
        flag, default = f"--{prefix}{name}".replace("_", "-"), defaults[name]
        parser.add_argument(flag, **{"type": type(default), "default": default} | extra)


def checked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """Check that the arguments are complete."""
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
