"""torch on a device: deterministic settings, images, recorded graphs, streams."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from objectseeker.core.masks import Image
from objectseeker.detectors.network.layouts import Layout
from objectseeker.detectors.network.preprocess import InputPlacement, Resampling

Tensor = Any
_Result = TypeVar("_Result")

SIDE_STREAMS = 8
MAX_GRAPHS = 64  # recorded at a time; the one unused for longest goes first

_settings_lock = Lock()
_saved_settings: list[list[Any]] = []  # one entry for every thread inside `set_deterministic`


@contextmanager
def set_deterministic(device: Any) -> Iterator[None]:
    """Make results bit-identical: no choice of kernels by stopwatch, and true single precision.

    TF32, which torch turns on for convolutions by default, keeps 10 of 23 bits: half precision by another name. These
    are settings of the process: of several threads the first sets them and the last puts back what was there.
    """
    settings = (
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_tf32", False),
    )
    with _settings_lock:
        _saved_settings.append([getattr(module, name) for module, name, _ in settings])
        for module, name, value in settings:
            setattr(module, name, value)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        with _settings_lock:
            saved = _saved_settings.pop()
            if not _saved_settings:
                for (module, name, _), value in zip(settings, saved, strict=True):
                    setattr(module, name, value)


# --- there and back without waiting -----------------------------------------------------------------------------


def upload(array: npt.NDArray[Any], device: Any) -> Tensor:
    """Copy `array` to `device` from pinned memory: any other copy waits until the device is idle."""
    if device.type != "cuda":
        return torch.from_numpy(np.require(array, requirements=("C", "W")))  # torch takes no read-only memory
    pinned = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)  # torch reuses the memory only when the copy is done


def download(tensor: Tensor) -> Callable[[], npt.NDArray[Any]]:
    """Begin to copy `tensor` to the host; the returned function waits for the copy and returns it."""
    if not tensor.is_cuda:
        return lambda: np.asarray(tensor.numpy())
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> npt.NDArray[Any]:
        copied.synchronize()
        return np.asarray(pinned.numpy())

    return wait


def run_concurrently(jobs: Sequence[Callable[[], _Result]], *, streams: bool) -> list[_Result]:
    """Return what every job returns. With `streams` a GPU may run them concurrently, with equal results."""
    if not streams or len(jobs) < 2:
        return [job() for job in jobs]
    main = torch.cuda.current_stream()
    sides = _side_streams(torch.cuda.current_device())[: len(jobs)]
    results = []
    for side, job in zip(cycle(sides), jobs, strict=False):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            results.append(job())
    for side in sides:
        main.wait_stream(side)
    return results


@lru_cache(maxsize=16)
def _side_streams(device: int) -> list[Any]:
    """Always the same ones: libraries keep memory for every stream they have seen."""
    return [torch.cuda.Stream(device) for _ in range(SIDE_STREAMS)]


# --- images -----------------------------------------------------------------------------------------------------


def prepare(image: Image, placement: InputPlacement, layout: Layout, device: Any, dtype: Any) -> Tensor:
    """The network input H x W x 3, normalized, in the network's precision.

    The image is resized by exactly the weight tables of `preprocess`, as matrix products. Its proof holds: a removed
    pixel meets only zero weights in the pixels that are left unchanged, and zero times a finite number adds exactly
    zero in any order of summation.
    """
    height, width = image.shape[:2]
    pixels = upload(image, device).float()
    tall, wide = placement.y.resampling.resized, placement.x.resampling.resized
    rows = _table(placement.y.resampling, device) @ pixels.reshape(height, width * 3)
    turned = rows.reshape(tall, width, 3).transpose(0, 1).reshape(width, tall * 3)
    both = (_table(placement.x.resampling, device) @ turned).reshape(wide, tall, 3).transpose(0, 1)
    x, y = placement.x.offset, placement.y.offset
    canvas = torch.full((placement.size[1], placement.size[0], 3), float(layout.pad), device=device)
    canvas[y : y + tall, x : x + wide] = both.clamp(0, 255).round()
    return normalize(canvas, layout, dtype)


def normalize(pixels: Tensor, layout: Layout, dtype: Any) -> Tensor:
    ordered = pixels.flip(-1) if layout.channels == "bgr" else pixels
    mean, std = _constants(layout.mean, layout.std, pixels.device)
    return ((ordered - mean) / std).to(dtype)


@lru_cache(maxsize=16)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: Any) -> tuple[Tensor, Tensor]:
    return torch.tensor(mean, device=device), torch.tensor(std, device=device)


@lru_cache(maxsize=64)
def _table(axis: Resampling, device: Any) -> Tensor:
    return torch.from_numpy(axis.matrix()).to(device)


# --- graphs -----------------------------------------------------------------------------------------------------


class CudaGraph(NamedTuple):
    """A CUDA graph, the addresses it reads, and those it leaves its results at."""

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class CudaGraphCache:
    """Jobs recorded once for every shape and replayed, which leaves the host out of it.

    A recorded graph cannot depend on what its inputs hold: the same kernels run in the same order on the same
    addresses.
    """

    record: bool
    _recorded: OrderedDict[Hashable, CudaGraph] = field(default_factory=OrderedDict)
    _pool: Any = None  # of memory: graphs run sequentially, so all may use the same

    def run(
        self, shape: Hashable, job: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Run `job` by a graph recorded for `shape` if graphs are used. The next replay overwrites it."""
        if not self.record:
            return job(*inputs)
        recorded = self._recorded.get(shape) or self._make(job, inputs)
        self._recorded[shape] = recorded
        self._recorded.move_to_end(shape)
        if len(self._recorded) > MAX_GRAPHS:
            self._recorded.popitem(last=False)
        for address, value in zip(recorded.inputs, inputs, strict=True):
            address.copy_(value)
        recorded.graph.replay()
        return recorded.outputs

    def _make(self, job: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> CudaGraph:
        fixed = tuple(value.clone() for value in inputs)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # libraries set themselves up on first use, which must not be recorded
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                job(*fixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = job(*fixed)
        return CudaGraph(graph, fixed, outputs)
