"""Find evaluation images among training images by what they look like (perceptual hash).

    python scripts/check_overlap.py --train train.npz train_a.bin train_b.bin --train voc:VOCdevkit:train \\
        --held-out voc:VOCdevkit:val --held-out images/ --write leave-out.txt

Each of --train and --held-out takes a data pack (its index, then its parts) or a DATASET as `objectseeker observe`
takes it (a folder means all images below it), and may be repeated. Every image becomes 255 bits: the signs of the
lowest frequencies (16 by 16, without the mean) of its gray version. Two images are taken for one if few of the bits
differ. Unrelated images rarely differ in fewer than 80 bits (of 54,000 training images and 5,000 others none in 40 or
fewer, simple ones such as a plane in the sky in 43), two images of one scene often in 40 to 70.

Found is a copy that was compressed again, made smaller, darker or stretched, which hardly changes its bits, and one
that is mirrored, upside down or turned by quarters, whose bits are known. NOT found is one that was cropped, framed or
turned by a few degrees. Of 540 COCO images were found:

    1 %, 2.5 % or 5 % cut from each side    100 %, 51 %, 1 %
    a border of 1 % or 5 %                  97 %, none
    letterboxed to a square                 6 %
    turned by 1, 2 or 5 degrees             over 99 %, 72 %, 0.2 %

`--most-different 60` finds 98 % of those with 2.5 % cut, and images that only show the same scene.

`--write` lists the names of the training images that were found, for `python -m train_builtin.train --leave-out`.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from objectseeker.datasets import DatasetImage, open_dataset
from objectseeker.errors import ObjectSeekerError

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_builtin.packs import read_pack

SIDE = 64  # that images are shrunk to
FREQUENCIES = 16  # along each axis
MOST_DIFFERENT = 40  # of 255 bits, for two images to be one

BITS = FREQUENCIES**2 - 1  # without the mean, which says nothing
BLOCK = 1000  # training images that are compared at once

Signs = npt.NDArray[np.float32]  # n,FREQUENCIES,FREQUENCIES: a bit is 1 or -1, the mean's is 0


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The images of one place: what they are called, and their bits."""

    place: str
    names: list[str]
    bits: Signs

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
        options.write.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        print(f"{options.write}: {len(names)} training images to omit")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in (("--train", "training images"), ("--held-out", "evaluation images")):
        parser.add_argument(
            option, nargs="+", action="append", required=True, metavar="PLACE", help=f"{what}: a DATASET, or a pack"
        )
    parser.add_argument("--sources", nargs="+", help="of training packs only images from these datasets")
    parser.add_argument("--most-different", type=int, default=MOST_DIFFERENT, metavar="BITS", help="(default: 40)")
    parser.add_argument("--show", type=int, default=5, help="number of nearest pairs to print (default: 5)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="names of the training images that were found")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def report(pairs: Sequence[Pair], *, show: int) -> None:
    """The distances between the images of two sources, and the nearest pairs in ascending order."""
    counts, edges = np.histogram([pair.different for pair in pairs], bins=[0, 10, 20, 30, 40, 50, 60, 70, 80, 256])
    print("  bits to the nearest: " + ", ".join(f"{low}+: {n}" for low, n in zip(edges, counts, strict=False)))
    for pair in pairs[:show]:
        print(f"  {pair.different:3}  {pair.train}  {pair.held_out}")


def read_images(place: Sequence[str], *, processes: int, sources: Sequence[str] | None = None) -> Images:
    """A pack (index and parts) or a dataset, its images called as in training."""
    with get_context("fork").Pool(processes) as pool:
        if len(place) > 1:
            pack = read_pack(Path(place[0]), [Path(part) for part in place[1:]], sources=sources)
            names, gray = pack.names, pool.map(gray_of_bytes, pack.files, chunksize=16)
        else:
            entries = list(open_dataset(place[0]).images)
            names, gray = [entry.id for entry in entries], pool.map(gray_of_entry, entries, chunksize=16)
    if not names:
        raise ObjectSeekerError(f"{place[0]} has no images" + (f" of {', '.join(sources)}" if sources else ""))
    return Images(place[0], names, bits_of(np.array(gray, np.float32).reshape(-1, SIDE, SIDE)))


def gray_of_entry(entry: DatasetImage) -> npt.NDArray[np.uint8]:
    return small_gray(Image.fromarray(entry.load()))


def gray_of_bytes(file: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(file)) as image:
        return small_gray(image)


def small_gray(image: Image.Image) -> npt.NDArray[np.uint8]:
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def bits_of(gray: npt.NDArray[np.float32]) -> Signs:
    """The bits of images n,SIDE,SIDE."""
    frequency, pixel = np.arange(FREQUENCIES)[:, None], np.arange(SIDE) + 0.5
    waves = np.cos(np.pi * frequency * pixel / SIDE).astype(np.float32)
    bits = np.where(waves @ gray @ waves.T > 0, np.float32(1), np.float32(-1))
    bits[:, 0, 0] = 0
    return bits


def turned(bits: Signs) -> Iterator[Signs]:
    """The bits of images unmodified, turned by one to three quarters, and the mirror images of all these.

    Odd columns change sign in a mirror image, odd rows upside down; rows become columns in a quarter turn.
    """
    sign = np.float32(-1) ** np.arange(FREQUENCIES, dtype=np.float32)
    for way in (bits, bits.transpose(0, 2, 1)):
        for upright in (way, way * sign[:, None]):
            yield from (upright, upright * sign)


def nearest(ours: Images, theirs: Images) -> list[Pair]:
    """For every training image the evaluation image that differs in the fewest bits, in any of its eight ways."""
    pairs = []
    others = theirs.bits.reshape(len(theirs.names), -1).T
    for first in range(0, len(ours.names), BLOCK):
        block = slice(first, first + BLOCK)
        bits = ours.bits[block]
        alike = np.maximum.reduce([way.reshape(len(bits), -1) @ others for way in turned(bits)])
        best = alike.argmax(1)
        different = (BITS - alike.max(1)) / 2
        pairs += [
            Pair(name, theirs.names[place], int(bit_count))
            for name, place, bit_count in zip(ours.names[block], best, different, strict=True)
        ]
    return pairs


if __name__ == "__main__":
    main()
