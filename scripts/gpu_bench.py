"""Everything to be measured on a CUDA GPU, in one command:

    PYTHONPATH=src python scripts/gpu_bench.py --images VOCdevkit/VOC2007/JPEGImages --out OUT

1. Speed on a network of about 28 GFLOP at 640x640 (the embedded architecture, half as wide again, random weights).
2. Does it keep the contract: what check-detector asks of views, at 30 lines, in every precision and way of masking.
3. Real weights on real images: boxes of every precision against the loop of single passes. All boxes are saved, so
   that scripts/compare_gpu_boxes.py can count certificates that differ.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from objectseeker import Observation, halves, prune
from objectseeker.boxes import Detections
from objectseeker.check import _blind
from objectseeker.detectors.network import place_image
from objectseeker.detectors.torch_module import TorchDetector
from objectseeker.detectors.torch_network import Embedded
from objectseeker.detectors.torch_views import Group, arrange, reproducible, to_detections
from objectseeker.detectors.views import Views, plan_views
from objectseeker.embedded.model import EmbeddedDetector, Predictor, fused
from objectseeker.embedded.weights import load_torch
from objectseeker.masks import fill

REALISTIC = 150  # candidates a view on average


@dataclass(frozen=True)
class Rig:
    """Where and at which size things are measured; anything but the defaults is for trying the script out."""

    device: str = "cuda"
    lines: int = 30
    side: int = 640

    @property
    def half(self) -> str:
        return "float16" if self.cuda else "float32"  # half precision crawls on a CPU

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def removed(self, width: int, height: int) -> np.ndarray:
        return np.concatenate([np.zeros((1, 1, 4), np.int64), halves(width, height, self.lines).removed[:, None]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60, help="photographs to compare boxes on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--only", choices=("speed", "contract", "boxes"), action="append")
    options = parser.parse_args()
    rig = Rig(options.device, options.lines, options.side)
    options.out.mkdir(parents=True, exist_ok=True)
    paths = sorted(options.images.glob("*.jpg"))[: options.count]
    images = [np.asarray(PIL.Image.open(path).convert("RGB")) for path in paths]
    print(f"torch {torch.__version__}, {name_of(rig)}, {len(images)} photographs")
    jobs = {
        "boxes": lambda: boxes(images, [path.stem for path in paths], rig, options.out),
        "contract": lambda: contract(images[0], rig),
        "speed": lambda: speed(images[0], rig),
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


def sync(rig: Rig) -> None:
    if rig.cuda:
        torch.cuda.synchronize()


def timed(job: Callable[[], Any], rig: Rig, repeats: int = 15, warm: int = 3) -> float:
    """Median milliseconds, from and to an idle device."""
    repeats, warm = (repeats, warm) if rig.cuda else (1, 0)
    seconds = []
    for number in range(warm + repeats):
        sync(rig)
        begin = time.perf_counter()
        job()
        sync(rig)
        if number >= warm:
            seconds.append(time.perf_counter() - begin)
    return 1000 * median(seconds)


def graphed(job: Callable[[], Any], rig: Rig) -> Callable[[], Any]:
    """`job` recorded as a CUDA graph."""
    if not rig.cuda:
        return job
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            job()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = job()
    return lambda: (graph.replay(), kept)


# --- 1. speed ---------------------------------------------------------------------------------------------------


def wide_predictor(image: np.ndarray, rig: Rig) -> Predictor:
    """Random weights, normalised as training would, with about REALISTIC candidates above the score floor a view."""
    torch.manual_seed(0)
    detector = EmbeddedDetector(width=1.5).to(rig.device)
    resized = np.asarray(PIL.Image.fromarray(image).resize((rig.side, rig.side)))
    pixels = torch.from_numpy(resized.copy()).to(rig.device).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        for module in detector.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        detector.train()(torch.cat([pixels, pixels.flip(3), torch.rand_like(pixels)]))
        ready = fused(detector)
        for head in ready.class_heads:
            head[-1].weight *= 100
        logits = torch.cat([(ready(pixels)[1]).max(-1).values.flatten()])
        wanted = torch.quantile(logits, 1 - REALISTIC / len(logits))
        for head in ready.class_heads:
            head[-1].bias += float(np.log(0.01 / 0.99)) - wanted
    return Predictor(ready).to(rig.device).eval().requires_grad_(False)


def gigaflops(predictor: Predictor, rig: Rig) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        predictor(torch.zeros(1, 3, rig.side, rig.side, device=rig.device))
    return counter.get_total_flops() / 1e9


def matmul_peak(rig: Rig, dtype: Any) -> float:
    side = 8192 if rig.cuda else 512
    a, b = (torch.randn(side, side, device=rig.device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / timed(lambda: [a @ b for _ in range(5)], rig) * 5 / 1e9


def detector_of(predictor: Predictor, rig: Rig, **options: Any) -> TorchDetector:
    given = {"input_size": rig.side, "precision": rig.half, "device": rig.device, "names": [str(n) for n in range(20)]}
    return TorchDetector(predictor, **{**given, **options})


def speed(photograph: np.ndarray, rig: Rig) -> dict[str, Any]:
    image = np.asarray(PIL.Image.fromarray(photograph).resize((640, 480)))
    removed = rig.removed(640, 480)
    predictor = wide_predictor(image, rig)
    flops, peak = gigaflops(predictor, rig), matmul_peak(rig, getattr(torch, rig.half))
    print(f"network: {flops:.1f} GFLOP a view at {rig.side}; matrix peak measured: {peak:.0f} TFLOP/s")
    result: dict[str, Any] = {"gigaflops_per_view": flops, "matmul_tflops": peak, "rows": [], "contract": {}}

    def report(name: str, milliseconds: float, share_of_pixels: float = 1.0) -> None:
        tflops = len(removed) * flops * share_of_pixels / milliseconds
        result["rows"].append({"what": name, "ms": milliseconds, "tflops": tflops, "share_of_peak": tflops / peak})
        print(f"{name:62s} {milliseconds:8.2f} ms  {tflops:6.1f} TFLOP/s  {tflops / peak:6.1%} of peak", flush=True)

    def end_to_end(name: str, detector: TorchDetector) -> None:
        begin = time.perf_counter()
        found = detector.detect_views(image, removed, 114)
        first = time.perf_counter() - begin
        groups, views = groups_of(detector, image, removed)
        pixels = sum(group.views * group.size[0] * group.size[1] for group in groups) / (len(views) * rig.side**2)
        milliseconds = timed(lambda: detector.detect_views(image, removed, 114), rig)
        boxes = np.mean([len(view) for view in found])
        report(f"{name}, {len(groups)} shapes, {pixels:.0%} of pixels", milliseconds, pixels)
        print(f"    first call {first:.1f} s, {boxes:.1f} boxes a view")

    loop = naive_loop(predictor, rig)
    loop(image, removed[:3])
    report("naive loop: mask, upload, resize, run, decode, suppress", timed(lambda: loop(image, removed), rig, 1, 0))
    print(f"    one plain pass, image to boxes: {timed(lambda: loop(image, removed[:1]), rig):.2f} ms")
    eager = detector_of(predictor, rig, compiled=False)
    end_to_end("graph, by fill", eager)
    plain = detector_of(predictor, rig, compiled=rig.cuda)
    engine(plain).network = Embedded(engine(plain).network.predictor if not rig.cuda else half_copy(predictor, rig))
    end_to_end("graph, compiled, 3 input channels, by fill", plain)
    ours = detector_of(predictor, rig, compiled=rig.cuda)
    end_to_end("graph, compiled, by fill", ours)
    result["stages"] = stages(ours, image, removed, rig)
    result["contract"]["float16 fill compiled"] = blind(ours, image, rig)
    cropped = detector_of(predictor, rig, mask_by="crop", compiled=False)
    end_to_end("graph, by crop", cropped)
    cropped = detector_of(predictor, rig, mask_by="crop", compiled=rig.cuda)
    end_to_end("graph, compiled, by crop", cropped)
    result["stages_crop"] = stages(cropped, image, removed, rig)
    result["contract"]["float16 crop compiled"] = blind(cropped, image, rig)
    if rig.cuda:
        result["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        print(f"peak GPU memory: {result['peak_memory_gb']:.1f} GB")
    return result


def half_copy(predictor: Predictor, rig: Rig) -> Predictor:
    return copy.deepcopy(predictor).to(getattr(torch, rig.half), memory_format=torch.channels_last)


def groups_of(detector: TorchDetector, image: np.ndarray, removed: np.ndarray) -> tuple[list[Group], Views]:
    """How the views of an image are batched."""
    placement = place_image(image, detector.input_size, detector.layout)
    step = detector.layout.stride * detector.crop_step
    views = plan_views(placement, removed, detector.mask_by, stride=detector.layout.stride, step=step)
    return arrange(views, placement.size, detector.batch)[0], views


def engine(detector: TorchDetector) -> Any:
    """The part of a detector that runs views on the device."""
    return detector.run_views.__self__  # type: ignore[union-attr]


def naive_loop(predictor: Predictor, rig: Rig) -> Callable[[np.ndarray, np.ndarray], Any]:
    """What one writes first: NumPy masks, torch resizes, one eager pass, boxes, suppression; view after view."""
    network = half_copy(predictor, rig)
    chooser = engine(detector_of(predictor, rig, compiled=False))
    dtype = getattr(torch, rig.half)

    def loop(image: np.ndarray, removed: np.ndarray) -> list[Any]:
        found = []
        for rectangles in removed:
            view = torch.from_numpy(fill(image, rectangles)).to(rig.device).permute(2, 0, 1)[None].float()
            scale = rig.side / max(view.shape[2:])
            view = F.interpolate(view, scale_factor=scale, mode="bilinear", antialias=True) if scale != 1 else view
            bottom, right = rig.side - view.shape[2], rig.side - view.shape[3]
            view = F.pad(view, (0, right, 0, bottom), value=114.0).to(dtype, memory_format=torch.channels_last)
            codes, values = network.detector(view / 255)
            best, label = values.max(-1)
            rows, valid = chooser.choose((rig.side, rig.side), codes, best, label)
            found.append(chooser._finish(rows, valid)[0].cpu())
        return found

    def run(image: np.ndarray, removed: np.ndarray) -> list[Any]:
        with torch.inference_mode():
            return loop(image, removed)

    return run


def stages(detector: TorchDetector, image: np.ndarray, removed: np.ndarray, rig: Rig) -> dict[str, float]:
    """Milliseconds of every stage, each recorded and run by itself."""
    device_views = engine(detector)
    placement = place_image(image, detector.input_size, detector.layout)
    groups, views = groups_of(detector, image, removed)
    _, plan = arrange(views, placement.size, detector.batch)
    look = device_views._look_compiled if device_views.compiled else device_views.look
    found: dict[str, float] = {"plan (host)": timed(lambda: groups_of(detector, image, removed), rig)}
    with reproducible(torch.device(rig.device)), torch.inference_mode():
        canvas, filling = device_views.prepare(image, placement), device_views.filling(114)
        table = torch.from_numpy(plan).to(rig.device)
        found["upload and resize"] = timed(lambda: device_views.prepare(image, placement), rig)
        found["draw and forward"] = found["candidates and boxes"] = 0.0
        for group in groups:
            part = table[group.first : group.first + group.views].clone()
            seen = look(group.size, canvas, part, filling)
            job = functools.partial(look, group.size, canvas, part, filling)
            found["draw and forward"] += timed(graphed(job, rig), rig)
            job = functools.partial(device_views.choose, group.size, *seen)
            found["candidates and boxes"] += timed(graphed(job, rig), rig)
        rows, valid = device_views._gather(groups, canvas, table, filling, len(views))
        found["suppression"] = timed(graphed(lambda: device_views._finish(rows, valid), rig), rig)
        packed = device_views._finish(rows, valid)[0]
        found["transfer"] = timed(lambda: packed.cpu().numpy(), rig)
        rows = packed.cpu().numpy()
        print(f"    suppression settled in time: {bool(rows[-1])}")
    boxes = rows[:-1].reshape(len(views), -1, 6)
    found["to Detections (host)"] = timed(lambda: to_detections(boxes, views.window[:, :2], placement), rig)
    base, *masked = to_detections(boxes, views.window[:, :2], placement)
    height, width = image.shape[:2]
    observation = Observation(width, height, halves(width, height, rig.lines), base, masked)
    found["prune (host)"] = timed(lambda: prune(observation, base_score=0.05, mask_score=0.1), rig, repeats=5)
    for name, milliseconds in found.items():
        print(f"    {name:24s} {milliseconds:7.3f} ms")
    return found


# --- 2. contract ------------------------------------------------------------------------------------------------


def blind(detector: TorchDetector, image: np.ndarray, rig: Rig) -> str:
    """The decisive check of check-detector: rewrite what each mask removes, compare its view bit for bit."""
    begin = time.perf_counter()
    lines = rig.lines if rig.cuda else 1
    try:
        verdict = _blind(detector, image, lines, 1, 114, np.random.default_rng(0))
    except Exception as error:
        verdict = f"FAILED: {error}"
    print(f"    contract: {verdict} ({time.perf_counter() - begin:.0f} s)", flush=True)
    return verdict


def contract(image: np.ndarray, rig: Rig) -> dict[str, Any]:
    found = {}
    for precision in ("float32", rig.half):
        print(f"{precision}, real weights, by fill")
        found[f"{precision} fill"] = blind(real(rig, precision=precision), image, rig)
    return found


def real(rig: Rig, **options: Any) -> TorchDetector:
    return TorchDetector(load_torch(), device=rig.device, input_size=416 if rig.cuda else 96, **options)


# --- 3. boxes ---------------------------------------------------------------------------------------------------


def boxes(images: list[np.ndarray], names: list[str], rig: Rig, out: Path) -> dict[str, Any]:
    single = real(rig).with_batch(1)
    assert single is not None
    ways: dict[str, Any] = {
        "float32-loop": single,
        "float32-fill": real(rig),
        "float32-crop": real(rig, mask_by="crop"),
        "float16-fill": real(rig, precision=rig.half),
        "float16-crop": real(rig, precision=rig.half, mask_by="crop", compiled=False),
    }
    found: dict[str, list[list[Detections]]] = {}
    for way, detector in ways.items():
        begin = time.perf_counter()
        found[way] = []
        for image in images if "loop" not in way else images[:6]:
            height, width = image.shape[:2]
            found[way].append(list(detector.detect_views(image, rig.removed(width, height), 114)))
        seconds = (time.perf_counter() - begin) / len(found[way])
        print(f"{way}: {1000 * seconds:.1f} ms an image with the first, which records", flush=True)
        save(out / f"{way}.npz", found[way], names)
    result = {}
    for way, other in (
        ("float32-fill", "float32-loop"),
        ("float16-fill", "float32-fill"),
        ("float16-crop", "float32-crop"),
    ):
        result[f"{way} against {other}"] = compare(found[way], found[other])
        print(f"{way} against {other}: {result[f'{way} against {other}']}")
    return result


def compare(ours: list[list[Detections]], theirs: list[list[Detections]], strong: float = 0.1) -> dict[str, Any]:
    """How far boxes from a score of `strong` on move; each is matched with the nearest of its label in that view."""
    moved, changed, missing, total = 0.0, 0.0, 0, 0
    for ours_image, theirs_image in zip(ours, theirs, strict=False):
        for mine, other in zip(ours_image, theirs_image, strict=True):
            for box, score, label in zip(mine.xyxy, mine.score, mine.label, strict=True):
                if score < strong:
                    continue
                total += 1
                same = np.flatnonzero(other.label == label)
                distance = np.abs(other.xyxy[same] - box).max(axis=1) if len(same) else np.empty(0)
                if not len(distance) or distance.min() > 8:
                    missing += 1
                    continue
                nearest = same[distance.argmin()]
                moved = max(moved, float(distance.min()))
                changed = max(changed, abs(float(other.score[nearest] - score)))
    return {"boxes": total, "without a partner": missing, "moved_pixels": moved, "score_changed": changed}


def save(path: Path, found: list[list[Detections]], names: list[str]) -> None:
    """Boxes as a run stores them: of the untouched view from a score of .01 on, of the others from .1."""
    rows = [(i, v, d.at_least(0.1 if v else 0.01)) for i, views in enumerate(found) for v, d in enumerate(views)]
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
