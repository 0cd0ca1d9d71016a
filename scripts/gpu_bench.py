"""Measure everything that needs a CUDA GPU, in one command.

    PYTHONPATH=src python scripts/gpu_bench.py --images VOCdevkit/VOC2007/JPEGImages --out OUT

1. Speed on a network of about 28 GFLOP at 640x640 (the builtin architecture, half as wide again, random weights).
2. Does it keep the contract: what objectseeker check asks of views, at 30 lines, in every precision and way of masking.
3. Real weights on real images: the boxes of every precision and of the loop of single passes are saved, and
   scripts/compare_gpu_boxes.py says how far they move and which certificates differ.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from gpu_rig import Rig
from gpu_speed import blind, speed

from objectseeker.core.boxes import Detections
from objectseeker.demo.samples import samples
from objectseeker.detectors.builtin import load_torch
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.errors import ObjectSeekerError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of images; those of the package by default")
    parser.add_argument("--budget", type=float, default=90, help="seconds after which a part begins no further way")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60, help="number of images to compare boxes on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--half", help="half precision: float16 on a GPU; on a CPU, unless told otherwise, float32")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--only", choices=("speed", "contract", "boxes"), action="append")
    parser.add_argument("--way", action="append", help="of the boxes, only these ways: float16-crop, say")
    options = parser.parse_args()
    half = options.half or ("float16" if options.device.startswith("cuda") else "float32")
    rig = Rig(options.device, options.lines, options.side, half)
    options.out.mkdir(parents=True, exist_ok=True)
    paths = sorted(options.images.glob("*.jpg")) if options.images else [sample.path for sample in samples()]
    paths = paths[: options.count]
    images = [np.asarray(PIL.Image.open(path).convert("RGB")) for path in paths]
    print(f"torch {torch.__version__}, {name_of(rig)}, {len(images)} images")
    jobs: dict[str, Callable[[], Any]] = {
        "boxes": lambda: boxes(images, [path.stem for path in paths], rig, options),
        "contract": lambda: contract(images[0], rig),
        "speed": lambda: speed(images, rig, options.budget),
    }
    results: dict[str, Any] = {}
    for name in options.only or jobs:
        begin = time.perf_counter()
        try:
            results[name] = jobs[name]()
        except Exception:  # one part that fails must not take the others with it
            traceback.print_exc()
        print(f"{name} took {time.perf_counter() - begin:.0f} s", flush=True)
        (options.out / "gpu_bench.json").write_text(json.dumps(results, indent=1))


def name_of(rig: Rig) -> str:
    return torch.cuda.get_device_name() if rig.cuda else rig.device


# --- contract ---------------------------------------------------------------------------------------------------


def contract(image: np.ndarray, rig: Rig) -> dict[str, Any]:
    verdicts = {}
    for precision, mask_mode in (("float32", "fill"), (rig.half, "fill"), (rig.half, "crop")):
        print(f"{precision}, real weights, by {mask_mode}")
        verdicts[f"{precision} {mask_mode}"] = blind(real(rig, precision=precision, mask_mode=mask_mode), image, rig)
    return verdicts


def real(rig: Rig, **options: Any) -> NetworkDetector:
    return torch_detector(load_torch(), device=rig.device, input_size=416 if rig.half != "float32" else 96, **options)


# --- boxes ---------------------------------------------------------------------------------------------------


def boxes(images: list[np.ndarray], names: list[str], rig: Rig, options: argparse.Namespace) -> dict[str, float]:
    """Save the boxes of every requested way, as far as the budget allows -> milliseconds an image."""
    begin = time.perf_counter()
    single, single_half = real(rig).with_batch(1), real(rig, precision=rig.half).with_batch(1)
    ways: dict[str, tuple[Any, int]] = {  # those that compile, which takes longest, come last
        "float32-fill": (real(rig), len(images)),
        "float32-loop": (single, 3),
        "float16-loop": (single_half, 3),
        "float16-fill-alone": (real(rig, precision=rig.half, share=False, compiled=False), len(images)),
        "float16-fill-uncompiled": (real(rig, precision=rig.half, share=True, compiled=False), len(images)),
        "float32-crop": (real(rig, mask_mode="crop", share=True), len(images)),
        "float16-crop": (
            real(rig, precision=rig.half, mask_mode="crop", share=True, compiled=False),
            len(images),
        ),
        "float16-fill": (real(rig, precision=rig.half, share=True), len(images)),
    }
    milliseconds: dict[str, float] = {}
    for way, (detector, count) in ways.items():
        if options.way and way not in options.way:
            continue
        if time.perf_counter() - begin > options.budget:
            print(f"no time left for: {way}")
            continue
        start = time.perf_counter()
        try:
            found = [
                list(detector.detect_views(image, rig.removed(image.shape[1], image.shape[0]), 114))
                for image in images[:count]
            ]
        except ObjectSeekerError as error:  # kernels that views cannot share
            print(f"{way}: {error}")
            continue
        milliseconds[way] = 1000 * (time.perf_counter() - start) / len(found)
        print(f"{way}: {milliseconds[way]:.1f} ms per image with the first, which records", flush=True)
        save(options.out / f"{way}.npz", found, names)
    return milliseconds


def save(path: Path, found: list[list[Detections]], names: list[str]) -> None:
    """Boxes as a run stores them: of the untouched view from a score of .01 on, of the others from .1."""
    rows = [(i, v, d.with_min_score(0.1 if v else 0.01)) for i, views in enumerate(found) for v, d in enumerate(views)]
    np.savez_compressed(
        path,
        names=np.array(names[: len(found)]),
        image=np.concatenate([np.full(len(d), i) for i, _, d in rows]).astype(np.int32),
        view=np.concatenate([np.full(len(d), v) for _, v, d in rows]).astype(np.int16),
        xyxy=np.concatenate([d.xyxy for *_, d in rows]),
        score=np.concatenate([d.score for *_, d in rows]),
        label=np.concatenate([d.label for *_, d in rows]).astype(np.int16),
    )


if __name__ == "__main__":
    main()
