"""Is an image of an evaluation set among the training images? Compared by what they look like.

    python scripts/check_overlap.py --train train.npz train_a.bin train_b.bin --train voc:VOCdevkit:train \\
        --held-out voc:VOCdevkit:val --held-out photos/ --write leave-out.txt

Each of --train and --held-out takes a data pack (its index, then its parts) or a DATASET as `objectseeker observe`
takes it (a folder stands for all images below it), and may be repeated. Every image becomes 255 bits: the signs of the
lowest frequencies (16 by 16, without the mean) of its grey version. Two images are taken for one if few of the bits
differ; compressed again, made smaller or stretched an image hardly changes its bits, and of a mirrored one they are
known. Unrelated images differ in 80 bits and more, up to half of them; two photographs of one scene often in 40 to 70.

`--write` lists the names of the training images that were found, for `python -m train_embedded.train --leave-out`.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from objectseeker.datasets import Entry, open_dataset
from objectseeker.errors import ObjectSeekerError

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_embedded.packs import read_pack

SIDE = 64  # that images are shrunk to
FREQUENCIES = 16  # along each axis
MOST_DIFFERENT = 40  # of 255 bits, for two images to be one

BITS = FREQUENCIES**2 - 1
BLOCK = 1000  # training images that are compared at once

Signs = npt.NDArray[np.float32]  # n,BITS: a bit is 1 or -1


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The images of one place: what they are called, their bits, and the bits of their mirror images."""

    place: str
    names: list[str]
    bits: Signs
    mirrored: Signs

    def __str__(self) -> str:
        return f"{self.place} ({len(self.names)})"


@dataclass(frozen=True, slots=True)
class Pair:
    """A training image, the evaluation image that looks most like it, and how many bits differ."""

    train: str
    held_out: str
    different: int


def main() -> None:
    options = parse()
    try:
        read = partial(read_images, processes=options.processes)
        train = [read(place, sources=options.sources) for place in options.train]
        held_out = [read(place) for place in options.held_out]
    except ObjectSeekerError as error:
        raise SystemExit(str(error)) from None
    found: list[str] = []
    for ours in train:
        for theirs in held_out:
            pairs = sorted(nearest(ours, theirs), key=lambda pair: pair.different)
            near = [pair.train for pair in pairs if pair.different <= options.most_different]
            found += near
            print(f"{ours} against {theirs}: {len(near)} within {options.most_different} bits")
            report(pairs, show=options.show)
    if options.write:
        names = sorted(set(found))
        options.write.write_text("".join(f"{name}\n" for name in names))
        print(f"{options.write}: {len(names)} training images to leave out")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in (("--train", "training images"), ("--held-out", "evaluation images")):
        parser.add_argument(
            option, nargs="+", action="append", required=True, metavar="PLACE", help=f"{what}: a DATASET, or a pack"
        )
    parser.add_argument("--sources", nargs="+", help="of training packs only images from these data sets")
    parser.add_argument("--most-different", type=int, default=MOST_DIFFERENT, metavar="BITS", help="(default: 40)")
    parser.add_argument("--show", type=int, default=5, help="so many of the nearest pairs (default: 5)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="names of the training images that were found")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def report(pairs: Sequence[Pair], *, show: int) -> None:
    """How near the images of two places come to each other, and which are nearest; the pairs are in that order."""
    counts, edges = np.histogram([pair.different for pair in pairs], bins=[0, 10, 20, 30, 40, 50, 60, 70, 80, 256])
    print("  bits to the nearest: " + ", ".join(f"{low}+: {n}" for low, n in zip(edges, counts, strict=False)))
    for pair in pairs[:show]:
        print(f"  {pair.different:3}  {pair.train}  {pair.held_out}")


def read_images(place: Sequence[str], *, processes: int, sources: Sequence[str] | None = None) -> Images:
    """A pack (index and parts) or a data set, its images called as in training."""
    with get_context("fork").Pool(processes) as pool:
        if len(place) > 1:
            pack = read_pack(Path(place[0]), [Path(part) for part in place[1:]], sources=sources)
            names, grey = pack.names, pool.map(grey_of_bytes, pack.files, chunksize=16)
        else:
            entries = list(open_dataset(place[0]).entries)
            names, grey = [entry.id for entry in entries], pool.map(grey_of_entry, entries, chunksize=16)
    if not names:
        raise ObjectSeekerError(f"{place[0]} has no images" + (f" of {', '.join(sources)}" if sources else ""))
    bits, mirrored = bits_of(np.array(grey, np.float32).reshape(-1, SIDE, SIDE))
    return Images(place[0], names, bits, mirrored)


def grey_of_entry(entry: Entry) -> npt.NDArray[np.uint8]:
    return small_grey(Image.fromarray(entry.load()))


def grey_of_bytes(file: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(file)) as image:
        return small_grey(image)


def small_grey(image: Image.Image) -> npt.NDArray[np.uint8]:
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def bits_of(grey: npt.NDArray[np.float32]) -> tuple[Signs, Signs]:
    """The bits of images n,SIDE,SIDE and of their mirror images, in whose cosines the odd columns change sign."""
    frequency, pixel = np.arange(FREQUENCIES)[:, None], np.arange(SIDE) + 0.5
    waves = np.cos(np.pi * frequency * pixel / SIDE).astype(np.float32)
    cosines = waves @ grey @ waves.T
    mirrored = cosines * (-1.0) ** np.arange(FREQUENCIES)
    bits, others = (
        np.where(c > 0, 1, -1).astype(np.float32).reshape(len(grey), -1)[:, 1:] for c in (cosines, mirrored)
    )
    return bits, others  # without the first, the mean, which says nothing


def nearest(ours: Images, theirs: Images) -> list[Pair]:
    """For every training image the evaluation image that differs in the fewest bits, as it is or mirrored."""
    pairs = []
    for first in range(0, len(ours.names), BLOCK):
        block = slice(first, first + BLOCK)
        alike = np.maximum(ours.bits[block] @ theirs.bits.T, ours.mirrored[block] @ theirs.bits.T)
        best = alike.argmax(1)
        different = (BITS - alike.max(1)) / 2
        pairs += [
            Pair(name, theirs.names[place], int(bits))
            for name, place, bits in zip(ours.names[block], best, different, strict=True)
        ]
    return pairs


if __name__ == "__main__":
    main()
