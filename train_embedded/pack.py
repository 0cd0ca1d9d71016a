"""Make a held-out pack from a data set in folders, to measure AP50 where the folders cannot go.

python -m train_embedded.pack voc:VOCdevkit:val held.npz held.bin
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from train_embedded.folders import read_folder
from train_embedded.packs import write_pack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a DATASET as `objectseeker observe` takes it")
    parser.add_argument("index", type=Path, help="the .npz to write")
    parser.add_argument("part", type=Path, help="the .bin to write")
    parser.add_argument("--longest-side", type=int, default=416)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    pack, _ = read_folder(arguments.dataset, longest_side=arguments.longest_side, processes=arguments.processes)
    write_pack(pack, arguments.index, arguments.part, source=arguments.dataset.partition(":")[0])
    print(f"{len(pack)} images, {sum(map(len, pack.boxes))} boxes, {arguments.part.stat().st_size} bytes")


if __name__ == "__main__":
    main()
