"""Observe a dataset with trained weights, as `objectseeker observe` does with an exported detector.

python -m train_builtin.observe runs/builtin/weights.pt voc:VOCdevkit:val --out runs/observed --device cuda
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from objectseeker.core.recipes import parse_recipe as parse_masks
from objectseeker.datasets import open_dataset
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.runs.observe import observe
from train_builtin.trainer import load_trained


def main() -> None:
    options = parse()
    predictor, names = load_trained(options.weights)
    detector = torch_detector(
        predictor,
        names=names,
        layout=options.layout,
        input_size=options.input_size,
        device=options.device,
        precision=options.precision,
        mask_mode=options.mask_mode,
        compiled=False,
    )
    begin = time.monotonic()
    run = observe(
        open_dataset(options.dataset),
        detector,
        out=options.out,
        masks=options.masks,
        mask_floor=options.mask_floor,
        limit=options.limit,
        on_progress=lambda done, total: print(f"{done} of {total}", flush=True) if done % 100 == 0 else None,
    )
    print(f"{len(run.indices)} images in {time.monotonic() - begin:.1f} s: {options.out}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="weights.pt of a training run")
    parser.add_argument("dataset", help="a DATASET as `objectseeker observe` takes it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--layout", default="decoded")
    parser.add_argument("--input-size", type=int, default=416)
    parser.add_argument("--mask-mode", choices=("fill", "crop"), default="fill")
    parser.add_argument("--mask-floor", type=float, default=0.05)
    parser.add_argument("--masks", type=parse_masks, default="halves:30", help="a mask recipe")
    parser.add_argument("--limit", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
