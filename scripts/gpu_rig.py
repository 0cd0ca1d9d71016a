"""The device, 28 GFLOP network and naive implementation that the GPU measurements share (used by gpu_bench.py)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from objectseeker import Halves
from objectseeker.core.masks import fill_rectangles
from objectseeker.detectors.builtin.model import BuiltinDetector, Predictor, fused
from objectseeker.detectors.gpu import DeviceViews
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.torch_module import torch_detector

REALISTIC = 150  # candidates a view on average


@dataclass(frozen=True)
class Rig:
    """Where and at which size things are measured; anything but the defaults is for trying the script out."""

    device: str = "cuda"
    lines: int = 30
    side: int = 640
    half: str = "float16"  # what is used as half precision: it crawls on a CPU

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def removed(self, width: int, height: int) -> np.ndarray:
        return np.concatenate([np.zeros((1, 1, 4), np.int64), Halves(self.lines).masks(width, height).removed])

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def timed(self, job: Callable[[], Any], repeats: int = 15, warm: int = 3) -> float:
        """Median milliseconds, from and to an idle device."""
        repeats, warm = (repeats, warm) if self.cuda else (1, 0)
        seconds = []
        for number in range(warm + repeats):
            self.sync()
            begin = time.perf_counter()
            job()
            self.sync()
            if number >= warm:
                seconds.append(time.perf_counter() - begin)
        return 1000 * median(seconds)

    def graphed(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """`job` recorded as a CUDA graph."""
        if not self.cuda:
            return job
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                job()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = job()
        return lambda: (graph.replay(), kept)


def wide_predictor(image: np.ndarray, rig: Rig) -> Predictor:
    """Random weights, normalized as training would, with about REALISTIC candidates above the score floor a view."""
    torch.manual_seed(0)
    detector = BuiltinDetector(width=1.5).to(rig.device)
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
        logits = ready(pixels)[1].flatten()
        wanted = torch.quantile(logits, 1 - REALISTIC / len(logits))
        for head in ready.class_heads:
            head[-1].bias += float(np.log(0.01 / 0.99)) - wanted
    predictor: Predictor = Predictor(ready).to(rig.device).eval().requires_grad_(False)
    return predictor


def gigaflops(job: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        job()
    return float(counter.get_total_flops()) / 1e9


def matmul_peak(rig: Rig) -> float:
    side, dtype = 8192 if rig.cuda else 512, getattr(torch, rig.half)
    a, b = (torch.randn(side, side, device=rig.device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / rig.timed(lambda: [a @ b for _ in range(5)]) * 5 / 1e9


def copy_rate(rig: Rig) -> float:
    """Terabytes a second, read and written, of a large copy on the device."""
    source = torch.rand(2**28 if rig.cuda else 2**20, device=rig.device)
    target = torch.empty_like(source)
    return 2 * float(source.nbytes) / rig.timed(lambda: target.copy_(source)) / 1e9


def detector_of(predictor: Predictor, rig: Rig, **options: Any) -> NetworkDetector:
    given = {"input_size": rig.side, "precision": rig.half, "device": rig.device, "names": [str(n) for n in range(20)]}
    return torch_detector(predictor, **{**given, **options})


def engine(detector: NetworkDetector) -> DeviceViews:
    """The part of a detector that runs views on the device."""
    views: DeviceViews = detector.start_views.__self__  # type: ignore[union-attr]
    return views


def naive_loop(predictor: Predictor, rig: Rig) -> Callable[[np.ndarray, np.ndarray], Any]:
    """What one writes first: NumPy masks, torch resizes, one eager pass, boxes, suppression; view after view."""
    dtype = getattr(torch, rig.half)
    network = copy.deepcopy(predictor).to(dtype, memory_format=torch.channels_last)
    chooser = engine(detector_of(predictor, rig, compiled=False))

    def run(image: np.ndarray, removed: np.ndarray) -> list[Any]:
        boxes = []
        place = whole = torch.zeros(1, dtype=torch.int64, device=rig.device)
        with torch.inference_mode():
            for rectangles in removed:
                view = (
                    torch.from_numpy(fill_rectangles(image, rectangles)).to(rig.device).permute(2, 0, 1)[None].float()
                )
                scale = rig.side / max(view.shape[2:])
                view = F.interpolate(view, scale_factor=scale, mode="bilinear", antialias=True) if scale != 1 else view
                bottom, right = rig.side - view.shape[2], rig.side - view.shape[3]
                view = F.pad(view, (0, right, 0, bottom), value=114.0).to(dtype, memory_format=torch.channels_last)
                codes, values = network.detector(view / 255)
                chosen = chooser.decode_top_k((rig.side, rig.side), codes, values, whole)
                boxes.append(chooser.suppress_and_pack(*chosen, place).cpu())
        return boxes

    return run
