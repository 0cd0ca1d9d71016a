"""All views of an image on a torch device: upload once, mask there, run, suppress there, one transfer back.

The image is resized on the device by the very weight tables of `preprocess`, as matrix products. Its proof holds: a
removed pixel meets only zero weights in the pixels that are left as they are, and zero times a finite number adds
exactly zero in any order of summation.

On CUDA the kernels of a group of views are recorded once per shape as a graph and replayed, which leaves the host out
of it. A recorded graph cannot depend on what the views show: the same kernels run in the same order on the same
addresses, whatever is in them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from objectseeker.boxes import Detections, Ints
from objectseeker.detectors.layouts import Layout
from objectseeker.detectors.preprocess import Placement, Resampling, Size
from objectseeker.detectors.results import has_area
from objectseeker.detectors.torch_network import RawNetwork
from objectseeker.detectors.torch_nms import best_first, settle, suppress
from objectseeker.detectors.views import Views
from objectseeker.masks import Image

Tensor = Any
Rows = npt.NDArray[np.float32]

MOST_GRAPHS = 64  # recorded at a time; the one unused for longest goes first
PADDED_TO = 4  # views of one of several sizes are filled up to a multiple of it, so that fewer shapes occur


class Group(NamedTuple):
    """Views that run together: `members`, filled up to `views`, at one `size`; their plan begins at row `first`."""

    size: Size
    views: int
    members: Ints
    first: int


class Recorded(NamedTuple):
    """A CUDA graph, the addresses it reads, and those it leaves its results at."""

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class DeviceViews:
    """Runs the views of one image through `network` on `device`, at most `batch` at a time.

    Every view keeps its `candidates` best-scored boxes for suppression, from the score `floor` on. With `record`, CUDA
    graphs are recorded for every shape of a batch; with `compiled`, torch compiles the network for every size.
    """

    network: RawNetwork
    layout: Layout
    device: Any
    dtype: Any
    batch: int
    floor: float
    candidates: int
    record: bool
    compiled: bool = False
    _recorded: OrderedDict[Any, Recorded] = field(default_factory=OrderedDict)
    _pool: Any = None  # of memory: graphs run one after the other, so all may use the same
    _fast: Any = None

    def detect(self, image: Image, placement: Placement, views: Views, value: int) -> list[Detections]:
        """The boxes of every view. They depend on nothing of `image` that `views` fills or cuts away."""
        groups, plan = arrange(views, placement.size, self.batch)
        with reproducible(self.device), torch.inference_mode():
            canvas, filling = self.prepare(image, placement), self.filling(value)
            table = torch.from_numpy(plan).to(self.device)
            rows, valid = self._gather(groups, canvas, table, filling, len(views))
            packed = self._replay("finish", tuple(rows.shape), self._finish, (rows, valid))[0].cpu().numpy()
            if not packed[-1]:  # rare: some view needs more rounds of suppression, which the host has to ask for
                packed = self._finish(rows, valid, patient=True)[0].cpu().numpy()
        return to_detections(packed[:-1].reshape(len(views), -1, 6), views.window[:, :2], placement)

    def prepare(self, image: Image, placement: Placement) -> Tensor:
        """The network input H x W x 3, normalised, in the network's precision."""
        height, width = image.shape[:2]
        writable = np.require(image, requirements=("C", "W"))  # torch does not take read-only memory
        pixels = torch.from_numpy(writable).to(self.device).float()
        tall, wide = placement.y.resampling.resized, placement.x.resampling.resized
        rows = _table(placement.y.resampling, self.device) @ pixels.reshape(height, width * 3)
        turned = rows.reshape(tall, width, 3).transpose(0, 1).reshape(width, tall * 3)
        both = (_table(placement.x.resampling, self.device) @ turned).reshape(wide, tall, 3).transpose(0, 1)
        x, y = placement.x.offset, placement.y.offset
        canvas = torch.full((placement.size[1], placement.size[0], 3), float(self.layout.pad), device=self.device)
        canvas[y : y + tall, x : x + wide] = both.clamp(0, 255).round()
        return self._normalise(canvas)

    def filling(self, value: int) -> Tensor:
        """A removed pixel as the network sees it."""
        return self._normalise(torch.full((3,), float(value), device=self.device))

    def draw(self, size: Size, canvas: Tensor, plan: Tensor, filling: Tensor) -> Tensor:
        """Views N x 3 x H x W, channels last: the windows of the canvas, painted over where the plan says so."""
        columns = plan[:, 0, None] + torch.arange(size[0], device=plan.device)
        rows = plan[:, 1, None] + torch.arange(size[1], device=plan.device)
        whole = (size[1], size[0]) == canvas.shape[:2]
        views = canvas[None] if whole else canvas[rows[:, :, None], columns[:, None]]
        for start in range(2, plan.shape[1], 4):
            x1, y1, x2, y2 = (plan[:, start + side, None] for side in range(4))
            inside_x, inside_y = (columns >= x1) & (columns < x2), (rows >= y1) & (rows < y2)
            views = torch.where((inside_y[:, :, None] & inside_x[:, None])[..., None], filling, views)
        return views.permute(0, 3, 1, 2)

    def look(self, size: Size, canvas: Tensor, plan: Tensor, filling: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The code, the best class and its value at every anchor of every view."""
        codes, values = self.network.raw(self.draw(size, canvas, plan, filling))
        best, label = values.max(-1)
        return codes, best, label

    def choose(self, size: Size, codes: Tensor, best: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidates of every view, N x K x 6 (corners, score, label), and which of them are boxes at all."""
        index, score = best_first(self.network.score(best), self.floor, self.candidates)
        codes = codes.gather(1, index[..., None].expand(-1, -1, codes.shape[-1]))
        boxes = self.network.boxes(codes, index, size)
        label = label.gather(1, index) + self.layout.label_offset
        flat = (boxes[..., 0] >= boxes[..., 2]) | (boxes[..., 1] >= boxes[..., 3])
        valid = (score >= 0) & (label >= 0) & torch.isfinite(boxes).all(-1) & ~flat
        rows = torch.cat([boxes, score[..., None], label[..., None].float()], -1)
        missing = self.candidates - rows.shape[1]  # a small window may have fewer anchors
        return tuple(
            torch.nn.functional.pad(part, pad) for part, pad in ((rows, (0, 0, 0, missing)), (valid, (0, missing)))
        )

    def _gather(
        self, groups: list[Group], canvas: Tensor, plan: Tensor, filling: Tensor, views: int
    ) -> tuple[Tensor, Tensor]:
        """The candidates of all views, in the order of the views."""
        rows = torch.empty((views, self.candidates, 6), device=self.device)
        valid = torch.empty((views, self.candidates), dtype=torch.bool, device=self.device)
        order = torch.from_numpy(np.concatenate([group.members for group in groups])).to(self.device)
        done = 0
        for group in groups:

            def job(canvas: Tensor, part: Tensor, filling: Tensor, size: Size = group.size) -> tuple[Tensor, Tensor]:
                look = self._look_compiled if self.compiled else self.look
                return self.choose(size, *look(size, canvas, part, filling))

            inputs = canvas, plan[group.first : group.first + group.views], filling
            found = self._replay("look", (group.size, inputs[1].shape, canvas.shape), job, inputs)
            count = len(group.members)
            for target, source in zip((rows, valid), found, strict=True):
                target.index_copy_(0, order[done : done + count], source[:count])
            done += count
        return rows, valid

    def _finish(self, rows: Tensor, valid: Tensor, *, patient: bool = False) -> tuple[Tensor]:
        """Suppression: all rows, with score -1 where they go, and at the end whether it settled."""
        threshold = 1.0 if self.layout.nms is None else self.layout.nms
        found = suppress(rows[..., :4], rows[..., 5], valid, threshold)
        keep = settle(found, valid) if patient else found.keep
        score = torch.where(keep, rows[..., 4], -1.0)
        packed = torch.cat([rows[..., :4], score[..., None], rows[..., 5:]], -1)
        return (torch.cat([packed.flatten(), found.settled.float()[None]]),)

    def _normalise(self, pixels: Tensor) -> Tensor:
        ordered = pixels.flip(-1) if self.layout.channels == "bgr" else pixels
        mean, std = _constants(self.layout.mean, self.layout.std, self.device)
        return ((ordered - mean) / std).to(self.dtype)

    def _look_compiled(self, size: Size, canvas: Tensor, plan: Tensor, filling: Tensor) -> tuple[Tensor, ...]:
        """`look` by kernels made for this size and any number of views.

        Never by kernels made for several sizes, and never by falling back: what runs must follow from the shape alone,
        not from which shapes came before.
        """
        if self._fast is None:
            self._fast = torch.compile(self.look)
        wanted = {"automatic_dynamic_shapes": False, "recompile_limit": 256, "fail_on_recompile_limit_hit": True}
        known = {name: value for name, value in wanted.items() if hasattr(torch._dynamo.config, name)}
        with torch._dynamo.config.patch(known):
            torch._dynamo.mark_dynamic(plan, 0)
            found: tuple[Tensor, ...] = self._fast(size, canvas, plan, filling)
            return found

    def _replay(
        self, what: str, shape: Any, job: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """`job` of `inputs`, by a graph recorded for that shape if graphs are used. The next replay overwrites it."""
        if not self.record:
            return job(*inputs)
        recorded = self._recorded.get((what, shape)) or self._make(job, inputs)
        self._recorded[what, shape] = recorded
        self._recorded.move_to_end((what, shape))
        if len(self._recorded) > MOST_GRAPHS:
            self._recorded.popitem(last=False)
        for address, value in zip(recorded.inputs, inputs, strict=True):
            address.copy_(value)
        recorded.graph.replay()
        return recorded.outputs

    def _make(self, job: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> Recorded:
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
        return Recorded(graph, fixed, outputs)


def arrange(views: Views, canvas: Size, batch: int) -> tuple[list[Group], Ints]:
    """Which views run together, and a table of every view's corner and filled rectangles, group after group.

    A function of sizes and masks only. Groups that are not full are filled up with views that show nothing.
    """
    rectangles = views.filled.shape[1]
    sizes = list(views.by_size())
    groups, plans = [], [np.empty((0, 2 + 4 * rectangles), np.int64)]
    for size, members in sizes:
        full = -(-len(members) // -(-len(members) // batch))  # batches of equal length
        full = full if len(sizes) == 1 else min(-(-full // PADDED_TO) * PADDED_TO, batch)
        for start in range(0, len(members), full):
            part = members[start : start + full]
            plan = np.tile([0, 0, *([0, 0, *canvas] * rectangles)], (full, 1))
            plan[: len(part), :2] = views.window[part, :2]
            plan[: len(part), 2:] = views.filled[part].reshape(len(part), -1)
            groups.append(Group(size, full, part, sum(len(plan) for plan in plans)))
            plans.append(plan)
    return groups, np.concatenate(plans)


def to_detections(rows: Rows, corner: Ints, placement: Placement) -> list[Detections]:
    """Candidates N x K x 6 as boxes on the raw image, view by view, best first."""
    view, place = np.nonzero(rows[..., 4] >= 0)  # by view, then by falling score: the order they came in
    kept = rows[view, place].astype(np.float64)
    xyxy = placement.to_raw(kept[:, :4] + np.tile(corner, 2)[view])
    good = has_area(xyxy)
    found = Detections(xyxy[good], kept[good, 4], kept[good, 5].astype(np.int64))  # checked once for all views
    ends = np.searchsorted(view[good], np.arange(len(rows)), side="right").tolist()
    return [found[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


_settings_lock = Lock()
_settings_before: list[list[Any]] = []  # one entry for every thread inside `reproducible`


@contextmanager
def reproducible(device: Any) -> Iterator[None]:
    """The same bits every time: no choice of kernels by stopwatch, and single precision is single precision.

    TF32, which torch turns on for convolutions by default, keeps 10 of 23 bits: half precision by another name. These
    are settings of the process: of several threads the first sets them and the last puts back what was there.
    """
    wanted = (
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_tf32", False),
    )
    with _settings_lock:
        _settings_before.append([getattr(where, name) for where, name, _ in wanted])
        for where, name, value in wanted:
            setattr(where, name, value)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        with _settings_lock:
            before = _settings_before.pop()
            if not _settings_before:
                for (where, name, _), value in zip(wanted, before, strict=True):
                    setattr(where, name, value)


@lru_cache(maxsize=16)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: Any) -> tuple[Tensor, Tensor]:
    return torch.tensor(mean, device=device), torch.tensor(std, device=device)


@lru_cache(maxsize=64)
def _table(axis: Resampling, device: Any) -> Tensor:
    """The weights of `axis` as a matrix, resized x raw."""
    dense = np.zeros((axis.resized, axis.raw), np.float32)
    np.add.at(dense, (np.arange(axis.resized)[:, None], axis.tap), axis.weight)
    return torch.from_numpy(dense).to(device)
