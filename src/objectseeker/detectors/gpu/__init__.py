"""All views of an image on a torch device: one upload, masks and suppression there, one download.

On CUDA everything behind the resize is recorded once per shape as a graph and replayed, and nothing waits: the host
begins the next image before it asks for the boxes of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.masks import Image
from objectseeker.detectors.gpu.batch_plan import (
    BatchPlan,
    FeatureLevel,
    ReceptiveField,
    ViewGroup,
    plan_batches,
    split,
)
from objectseeker.detectors.gpu.device import (
    CudaGraphCache,
    download,
    normalize,
    prepare,
    run_concurrently,
    set_deterministic,
    upload,
)
from objectseeker.detectors.network.layouts import Layout
from objectseeker.detectors.network.preprocess import InputPlacement, Size, ViewPlan
from objectseeker.detectors.network.raw_boxes import MAX_BOXES, has_area, nms
from objectseeker.errors import ObjectSeekerError

Tensor = Any
DecodeTensor = Callable[[Any], tuple[Any, Any]]


class RawNetwork(Protocol):
    """A network that treats every view of a batch on its own.

    It may begin with stages of convolutions that views can share (`batch_plan`); `final_stage` continues from there.
    """

    @property
    def receptive_fields(self) -> tuple[ReceptiveField, ...]:
        """Return the input region of an output cell of each stage, measured on the previous stage's output."""

    def stage(self, number: int, features: Tensor) -> Tensor:
        """Run one of the first stages; the features of the first are images N x 3 x H x W."""

    def final_stage(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Run the rest: features -> a code per anchor N x A x D, values N x A x C that rank classes."""

    def score(self, values: Tensor) -> Tensor:
        """Convert class values to scores within [0, 1], in single precision, in the same order."""

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        """Decode codes N x K x D of the anchors `index` N x K to corners N x K x 4, in single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class BoxesAndScores:
    """A module that returns boxes N x A x 4 and scores N x A x C, or an output for `decode`."""

    module: Any
    decode: DecodeTensor | None
    receptive_fields: tuple[ReceptiveField, ...] = ()

    def stage(self, number: int, features: Tensor) -> Tensor:
        raise IndexError(number)

    def final_stage(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.module(features)
        boxes, scores = outputs if self.decode is None else self.decode(outputs)
        return boxes, scores

    def score(self, values: Tensor) -> Tensor:
        return values.float()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        return codes.float()


# Candidates and suppression for all views at once, on whatever device the tensors are: nothing waits for the host.
#
# Shapes are fixed: every view keeps the same number of candidates, so that one recorded sequence of kernels serves all
# inputs, and what one view shows never changes how another is computed.


MAX_NUMBER = 2**31 - 1  # of a candidate
ROUNDS = 12  # of suppression; real images need about five, and what has not converged then is the host's to finish


def top_k(score: Tensor, number: Tensor, floor: float, count: int) -> tuple[Tensor, Tensor]:
    """Select the `count` best candidates per view: numbers and scores, V x K each; score -1 for none.

    `score` is V x N, `number` likewise or N, nonnegative and all different. Of equal scores the lower number is first,
    as on the CPU: score and number are packed into one whole number, so no two are equal and the selection does not
    depend on how the device breaks ties. Scores that are not finite or below `floor` are not candidates.
    """
    usable = torch.isfinite(score) & (score >= floor)
    score = torch.where(usable, score.clamp(max=1.0), -1.0).float()
    # The bits of nonnegative floats are ordered like the floats; everything without a score has a key below all others.
    bits = torch.where(score >= 0, (score + 0.0).view(torch.int32).to(torch.int64), -1)
    key = torch.topk(bits * 2**32 + (MAX_NUMBER - number), min(count, score.shape[1]), dim=1).values
    bits = key >> 32
    return MAX_NUMBER - key % 2**32, torch.where(bits >= 0, bits.to(torch.int32).view(torch.float32), -1.0)


def suppress(boxes: Tensor, label: Tensor, valid: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Suppress boxes of the same label greedily, best first; return what stays and which views converged.

    `boxes` are V x K x 4; `valid` V x K marks those that count. The result is that of `raw_boxes.nms` view by view: the
    overlap is computed in double precision with the same operations. A box stays if no better box that stays is its
    rival. Starting from "all stay" and applying that rule to all boxes at once, after n rounds the first n boxes are
    right, so the answer is where nothing changes any more, and there is only one such place. Chains are short, so that
    takes few rounds. An attacker can draw a longer one: whether a view has converged is decided for each separately, so
    that nothing about a view depends on what another shows.
    """
    x1, y1, x2, y2 = boxes.double().unbind(-1)
    width = torch.minimum(x2[:, :, None], x2[:, None]) - torch.maximum(x1[:, :, None], x1[:, None])
    height = torch.minimum(y2[:, :, None], y2[:, None]) - torch.maximum(y1[:, :, None], y1[:, None])
    shared = width.clamp_(min=0).mul_(height.clamp_(min=0))
    area = (x2 - x1) * (y2 - y1)
    union = (area[:, :, None] + area[:, None]).sub_(shared)
    close = shared.div_(union) > threshold
    close &= label[:, :, None] == label[:, None]
    close &= valid[:, :, None] & valid[:, None]
    # Only zeros and ones are multiplied, and only "more than none" is asked of a sum: exact in any precision.
    rivals = close.triu_(1).to(torch.float16 if boxes.is_cuda else torch.float32)
    keep = valid
    for _ in range(ROUNDS):
        losses = keep[:, None].to(rivals.dtype) @ rivals
        keep, previous = valid & (losses[:, 0] == 0), keep
        converged = (keep == previous).all(1)
    return keep, converged


Rows = npt.NDArray[np.float32]

NO_BOX = -2.0  # the score of a candidate that is not a box; others are suppressed from 0 to -1, or stay


@dataclass(slots=True, eq=False, kw_only=True)
class DeviceViews:
    """Engine that runs the views of one image on `device`, at most `batch_size` at a time.

    Every view keeps its `candidates` best-scored boxes for suppression, with scores of at least `floor`. On a GPU
    graphs are recorded, in which groups of views run concurrently; with `compiled`, torch compiles the network for
    every size; with `share`, views that fill one side of a line share the network's first stages (`batch_plan`), and a
    cropped view is a window of the features behind them.
    """

    network: RawNetwork
    layout: Layout
    device: Any
    dtype: Any
    batch_size: int
    floor: float
    candidates: int = MAX_BOXES
    compiled: bool = False
    share: bool = False
    _graphs: CudaGraphCache = field(init=False)
    _fast: dict[str, Any] = field(init=False, default_factory=dict)
    _tried: set[Any] = field(init=False, default_factory=set)  # shapes of shared stages

    def __post_init__(self) -> None:
        self._graphs = CudaGraphCache(record=self.device.type == "cuda")

    def start_image(
        self, image: Image, placement: InputPlacement, views: ViewPlan, value: int
    ) -> Callable[[], list[Detections]]:
        """Begin with the views of an image; the returned function waits for their boxes and returns them.

        The boxes of a view depend on nothing of `image` that `views` fills or cuts away.
        """
        fields = self.network.receptive_fields if self.share else ()
        program, table, order = plan_batches(views, placement, fields, self.batch_size)
        with set_deterministic(self.device), torch.inference_mode():
            filling = normalize(torch.full((3,), float(value), device=self.device), self.layout, self.dtype)
            tables, places = upload(table, self.device), upload(order, self.device)
            canvas = prepare(image, placement, self.layout, self.device, self.dtype)
            if program.levels and program.batches not in self._tried:
                self.require_no_leak(program, tables, filling)
                self._tried.add(program.batches)

            def job(canvas: Tensor, tables: Tensor, places: Tensor, filling: Tensor) -> tuple[Tensor, ...]:
                candidates = self.candidates_of(program, canvas, tables, filling)
                return (self._call_compiled("suppress_and_pack", *candidates, places),)

            inputs = canvas, tables, places, filling
            packed = download(self._graphs.run(program, job, inputs)[0])

        def wait() -> list[Detections]:
            rows = finish_suppression(*unpack(packed(), len(views)), self.threshold)
            return to_detections(rows, views.window[:, :2], placement)

        return wait

    @property
    def threshold(self) -> float:
        """IoU above which boxes suppress each other."""
        return 1.0 if self.layout.nms is None else self.layout.nms

    def candidates_of(
        self, program: BatchPlan, canvas: Tensor, tables: Tensor, filling: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the best candidates of all views, N x K x 6, and which are boxes at all, group by group."""
        early, late = split(program, tables)
        bank = self.shared(program, canvas, early, filling)

        def look_at(group: ViewGroup, part: Tensor) -> tuple[Tensor, Tensor]:
            if bank is None:
                rows, valid = self._call_compiled("top_candidates", canvas, filling, group.size, part)
            else:
                rows, valid = self._call_compiled("top_candidates_shared", bank, group.size, part, program.levels[-1])
            return rows[: group.members], valid[: group.members]

        jobs = [partial(look_at, group, part) for group, part in zip(program.groups, late, strict=True)]
        groups = run_concurrently(jobs, streams=self._graphs.record)
        return torch.cat([rows for rows, _ in groups]), torch.cat([valid for _, valid in groups])

    # --- views that share nothing -------------------------------------------------------------------------------

    def draw(self, canvas: Tensor, filling: Tensor, size: Size, plan: Tensor) -> Tensor:
        """Draw views N x 3 x H x W, channels last: windows of the canvas, filled where the plan requires."""
        columns = plan[:, 0, None] + torch.arange(size[0], device=plan.device)
        rows = plan[:, 1, None] + torch.arange(size[1], device=plan.device)
        whole = (size[1], size[0]) == canvas.shape[:2]
        views = canvas[None] if whole else canvas[rows[:, :, None], columns[:, None]]
        for start in range(2, plan.shape[1] - 3, 4):  # whole rectangles: the tables of groups have a flag behind them
            x1, y1, x2, y2 = (plan[:, start + side, None] for side in range(4))
            inside_x, inside_y = (columns >= x1) & (columns < x2), (rows >= y1) & (rows < y2)
            views = torch.where((inside_y[:, :, None] & inside_x[:, None])[..., None], filling, views)
        return views.permute(0, 3, 1, 2)

    def top_candidates(self, canvas: Tensor, filling: Tensor, size: Size, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best candidates of every view, and which of them are boxes at all."""
        features = self.draw(canvas, filling, size, plan)
        for number in range(len(self.network.receptive_fields)):
            features = self.network.stage(number, features)
        return self.decode_top_k(size, *self.network.final_stage(features), plan[:, -1])

    # --- views that share their first stages --------------------------------------------------------------------

    def shared(self, program: BatchPlan, canvas: Tensor, tables: list[list[Tensor]], filling: Tensor) -> Tensor | None:
        """Return the cells behind the shared stages, as `locate_cells` finds them; None if nothing is shared."""
        bank: Tensor | None = None
        for number, (shapes, parts) in enumerate(zip(program.batches, tables, strict=True)):
            if bank is None:
                run = partial(self._call_compiled, "first_shared_stage", canvas, filling)
            else:
                run = partial(self._call_compiled, "next_shared_stage", bank, number, program.levels[number - 1])
            jobs = [partial(run, size, part) for (size, _), part in zip(shapes, parts, strict=True)]
            bank = torch.cat(run_concurrently(jobs, streams=self._graphs.record))
        return bank

    def first_shared_stage(self, canvas: Tensor, filling: Tensor, size: Size, plan: Tensor) -> Tensor:
        return _cells(self.network.stage(0, self.draw(canvas, filling, size, plan)))

    def next_shared_stage(self, bank: Tensor, number: int, below: FeatureLevel, size: Size, plan: Tensor) -> Tensor:
        return _cells(self.network.stage(number, gather_cells(bank, size, plan, below)))

    def top_candidates_shared(
        self, bank: Tensor, size: Size, plan: Tensor, level: FeatureLevel
    ) -> tuple[Tensor, Tensor]:
        """Return what `top_candidates` does, from the shared cells on; sizes and corners are in cells."""
        stride = level.receptive_field.stride
        features = gather_cells(bank, size, plan, level)
        return self.decode_top_k((size[0] * stride, size[1] * stride), *self.network.final_stage(features), plan[:, -1])

    def require_no_leak(self, program: BatchPlan, tables: Tensor, filling: Tensor) -> None:
        """Check on noise that nothing a view takes from the shared cells depends on what the view fills.

        The proof in `batch_plan` requires it of the kernels, and they are the same whenever the shapes are.
        """
        noise = torch.Generator(self.device).manual_seed(0)
        width, height = program.canvas
        pixels = torch.rand((2, height, width, 3), device=self.device, generator=noise) * 255
        first, second = normalize(pixels, self.layout, self.dtype)
        early, late = split(program, tables)
        expected: Tensor = self.shared(program, first, early, filling)
        x, y = torch.arange(width, device=self.device), torch.arange(height, device=self.device)[:, None]
        left, top, right, bottom = early[0][0][1, 2:]  # the image, all of it filled: the second reference
        on_image = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        for group, part in zip(program.groups, late, strict=True):
            for row in part[: group.members]:
                along = torch.where(row[2] == 0, x, y)
                filled = torch.where(row[4] == 1, along < row[3], along >= row[3]) & on_image
                actual: Tensor = self.shared(program, torch.where(filled[..., None], second, first), early, filling)
                cells = _positions(group.size, row[None], program.levels[-1]).flatten()
                if not torch.equal(expected[cells], actual[cells]):
                    raise ObjectSeekerError(
                        f"convolutions on {self.device} look beyond their window, so views cannot share them: "
                        "use share=False"
                    )

    # --- boxes --------------------------------------------------------------------------------------------------

    def decode_top_k(self, size: Size, codes: Tensor, values: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best candidates of every view, N x K x 6 (corners, score, label), and which are boxes.

        A candidate is a class of an anchor: the best one or, in views that are `whole` and if the layout has it, any.
        The best K lie in the K anchors whose best classes score highest: an anchor that comes behind K others, by score
        and then by number, has K candidates before each of its own.
        """
        anchors, classes = values.shape[1:]
        values = values.where(values.isfinite(), -torch.inf)
        every = torch.arange(anchors, device=values.device)
        anchor, _ = top_k(self.network.score(values.amax(-1)), every, self.floor, self.candidates)
        values = values.gather(1, anchor[..., None].expand(-1, -1, classes))
        label = torch.arange(classes, device=values.device)
        counts = label == values.argmax(-1, keepdim=True)
        if self.layout.every_class:
            counts = counts | (whole[:, None, None] == 1)
        score = torch.where(counts, self.network.score(values), -1.0)
        number = anchor[..., None] * classes + label
        number, score = top_k(score.flatten(1), number.flatten(1), self.floor, self.candidates)
        anchor, label = number // classes, number % classes + self.layout.label_offset
        codes = codes.gather(1, anchor[..., None].expand(-1, -1, codes.shape[-1]))
        boxes = self.network.boxes(codes, anchor, size)
        flat = (boxes[..., 0] >= boxes[..., 2]) | (boxes[..., 1] >= boxes[..., 3])
        valid = (score >= 0) & (label >= 0) & torch.isfinite(boxes).all(-1) & ~flat
        rows = torch.cat([boxes, score[..., None], label[..., None].float()], -1)
        missing, pad = self.candidates - rows.shape[1], torch.nn.functional.pad  # a small window may have fewer
        return pad(rows, (0, 0, 0, missing)), pad(valid, (0, missing))

    def suppress_and_pack(self, rows: Tensor, valid: Tensor, places: Tensor) -> Tensor:
        """Suppress the rows in the order of `places` and pack them for the host; `unpack` reads them."""
        rows, valid = rows[places], valid[places]
        keep, converged = suppress(rows[..., :4], rows[..., 5], valid, self.threshold)
        score = torch.where(valid, torch.where(keep, rows[..., 4], -rows[..., 4]), NO_BOX)
        rows = torch.cat([rows[..., :4], score[..., None], rows[..., 5:]], -1)
        return torch.cat([rows.flatten(), converged.float()])

    def _call_compiled(self, name: str, *arguments: Any) -> Any:
        """Call a method, compiled if requested: by kernels made for this size and any number of views.

        Never by kernels made for several sizes, and never by falling back: what runs must follow from the shape alone,
        not from which shapes came before. The canvas has one size; the length of everything else is free.
        """
        if not self.compiled:
            return getattr(self, name)(*arguments)
        if name not in self._fast:
            self._fast[name] = torch.compile(getattr(self, name))
        settings = {"automatic_dynamic_shapes": False, "recompile_limit": 256, "fail_on_recompile_limit_hit": True}
        known = {key: value for key, value in settings.items() if hasattr(torch._dynamo.config, key)}
        with torch._dynamo.config.patch(known):
            for tensor in arguments[2 if name in ("top_candidates", "first_shared_stage") else 0 :]:
                if isinstance(tensor, torch.Tensor) and len(tensor) > 2:
                    torch._dynamo.mark_dynamic(tensor, 0)
            return self._fast[name](*arguments)


def _cells(features: Tensor) -> Tensor:
    """Turn N x C x H x W, channels last, into one row per cell."""
    return features.permute(0, 2, 3, 1).reshape(-1, features.shape[1])


def gather_cells(bank: Tensor, size: Size, plan: Tensor, level: FeatureLevel) -> Tensor:
    """Gather the windows N x C x H x W, channels last, that `plan` describes (see `locate_cells`)."""
    return bank[_positions(size, plan, level)].permute(0, 3, 1, 2)


def _positions(size: Size, plan: Tensor, level: FeatureLevel) -> Tensor:
    """Return the cell of the bank at each position: N x H x W."""
    left, top, axis, at, fills_low, first, start = (plan[:, column, None, None] for column in range(7))
    x = left + torch.arange(size[0], device=plan.device)
    y = top + torch.arange(size[1], device=plan.device)[:, None]
    upright, (width, height), (stride, low, high) = axis == 0, level.size, level.receptive_field
    along = torch.where(upright, x, y) * stride
    before, behind = along + high <= at, along - low >= at
    untouched = torch.where(fills_low == 1, behind, before)
    whole = y * width + x + torch.where(untouched, 0, width * height)
    strip = start + torch.where(upright, y * level.strip[0] + x - first, (y - first) * width + x)
    return torch.where(before | behind, whole, strip)


def unpack(packed: Rows, views: int) -> tuple[Rows, Bools]:
    """Unpack the candidates of all views, N x K x 6, and which views have converged.

    The score of a suppressed candidate has its sign turned; what is not a box scores NO_BOX.
    """
    rows, converged = np.split(packed, [-views])
    return rows.reshape(views, -1, 6), converged > 0


def finish_suppression(rows: Rows, converged: Bools, threshold: float) -> Rows:
    """Finish the suppression of views that have not converged, on the host, from the same candidates.

    An attacker chooses which views that are, of those that show the patch. A view that removes it shows what it always
    shows: its candidates are the same bits and it has converged, or not, as ever. So the path of a view, and its boxes,
    follow from what that view shows alone, and it does not matter whether both paths agree in every bit.
    """
    for view in np.flatnonzero(~converged):
        score = rows[view, :, 4]
        (boxes,) = np.nonzero(score > NO_BOX)
        score[boxes] = -np.abs(score[boxes])
        kept = rows[view, boxes].astype(np.float64)
        stays = boxes[nms(kept[:, :4], np.abs(kept[:, 4]), kept[:, 5].astype(np.int64), threshold=threshold)]
        score[stays] = np.abs(score[stays])
    return rows


def to_detections(rows: Rows, corner: Ints, placement: InputPlacement) -> list[Detections]:
    """Convert candidates N x K x 6 to boxes on the raw image, view by view, best first."""
    view, rank = np.nonzero(~np.signbit(rows[..., 4]))  # by view, then by falling score: the order they came in
    kept = rows[view, rank].astype(np.float64)
    xyxy = placement.to_raw(kept[:, :4] + np.tile(corner, 2)[view])
    good = has_area(xyxy)
    boxes = Detections(xyxy[good], kept[good, 4], kept[good, 5].astype(np.int64))  # checked once for all views
    ends = np.searchsorted(view[good], np.arange(len(rows)), side="right").tolist()
    return [boxes[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
