"""Make a data pack from a dataset folder, to train or measure AP50 where the folder is not available.

python -m train_builtin.pack voc:VOCdevkit:val held.npz held.bin
python -m train_builtin.pack yolo:coco:train train.npz train.bin --longest-side 512 --format avif --quality 60 \\
    --source coco-train2017 --part-size 40

Images without an object of the 20 VOC classes stay: they show what is none of them.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from train_builtin.folders import FORMATS, JPEG, Storage, read_folder
from train_builtin.packs import write_pack


def main() -> None:
    arguments = parse()
    pack, _ = read_folder(
        arguments.dataset,
        longest_side=arguments.longest_side,
        processes=arguments.processes,
        limit=arguments.limit,
        storage=Storage(arguments.format, arguments.quality),
    )
    source = arguments.source or arguments.dataset.partition(":")[0]
    parts = write_pack(pack, arguments.index, arguments.part, source=source, part_size=arguments.part_size)
    sizes = ", ".join(f"{part}: {part.stat().st_size} bytes" for part in parts)
    print(f"{len(pack)} images of {source}, {sum(map(len, pack.boxes))} boxes; {sizes}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a DATASET as `objectseeker observe` takes it")
    parser.add_argument("index", type=Path, help="the .npz to write")
    parser.add_argument("part", type=Path, help="the .bin to write")
    parser.add_argument(
        "--part-size", type=megabytes, metavar="MB", help="size of the largest part; writes PART_1.bin and so on"
    )
    parser.add_argument("--source", help="what `train --sources` knows the images by (default: the form of DATASET)")
    parser.add_argument("--longest-side", type=int, default=416)
    parser.add_argument("--format", choices=FORMATS, default=JPEG.form)
    parser.add_argument("--quality", type=int, default=JPEG.quality)
    parser.add_argument("--limit", type=int, help="maximum number of images")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def megabytes(text: str) -> int:
    """Parse a size in megabytes; return bytes, at least one."""
    value = float(text) * 1e6
    if not math.isfinite(value) or round(value) < 1:
        raise argparse.ArgumentTypeError(f"a part has at least one byte (0.000001), and an end: got {text}")
    return round(value)


if __name__ == "__main__":
    main()
