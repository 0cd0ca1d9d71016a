"""Which layout a graph has, told from the shapes, types and names of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from objectseeker.detectors.network.layouts import DISTANCES, NANODET_STRIDES, STRIDES, Layout, grid
from objectseeker.detectors.network.preprocess import Size

# Names by which exporters call what we call boxes and scores.
ROLES = {"boxes": "boxes", "scores": "scores", "pred_boxes": "boxes", "pred_logits": "scores", "logits": "scores"}
RFDETR_ROLES = {"dets": "boxes", "labels": "scores"}


class GraphTensor(NamedTuple):
    """An input or output of a graph; a dimension that is not fixed is None."""

    name: str
    shape: tuple[int | None, ...]
    integer: bool

    def __str__(self) -> str:
        return f"{self.name} {'x'.join('?' if side is None else str(side) for side in self.shape)}"


def recognise(
    outputs: Sequence[GraphTensor], size: Size | None, *, takes_sizes: bool, exported_by_yolo: bool
) -> str | None:
    """The name of the layout, None where the outputs do not settle it.

    `size` is the width and height of the graph's input where they are fixed, `takes_sizes` whether it has a second
    input for image sizes, `exported_by_yolo` whether it carries the metadata of the YOLOv5 and later exporters.
    """
    names = {output.name for output in outputs}
    roles = _roles(outputs)
    ranks = sorted(len(output.shape) for output in outputs)
    integers = sum(output.integer for output in outputs)
    widths = [output.shape[-1] if output.shape else None for output in outputs]
    if ranks == [3]:
        return _recognise_single(outputs[0].shape[1], outputs[0].shape[2], size, exported_by_yolo)
    if ranks == [3, 3] and integers == 0:
        if set(roles) == {"boxes", "scores"} and names != {"boxes", "scores"}:
            return "rfdetr" if "dets" in names else "queries"
        if names == {"boxes", "scores"} or (widths.count(4) == 1 and not _few(outputs, size)):
            return "decoded"
    if ranks == [2, 3] and (names == {"dets", "labels"} or (integers == 1 and 5 in widths)):
        return "mmdeploy"
    if names == {"labels", "boxes", "scores"} or (len(outputs) == 3 and integers == 1 and 4 in widths):
        if ranks == [2, 2, 3] and takes_sizes:
            return "detr"
        if ranks == [1, 1, 2]:
            return "torchvision"
    return None


def _recognise_single(rows: int | None, columns: int | None, size: Size | None, exported_by_yolo: bool) -> str | None:
    """One output: candidates in rows (YOLOX one per grid cell, YOLOv5 three) or, YOLOv8, in columns."""
    if size is not None:
        cells = sum((size[0] // stride) * (size[1] // stride) for stride in STRIDES)
        coarse_cells = (size[0] // 64) * (size[1] // 64)  # of a fourth scale, which large YOLOv5 and YOLOR have
        if rows == len(grid(size, NANODET_STRIDES)[0]) and columns is not None and columns > 4 * DISTANCES:
            return "nanodet"
        if rows == cells and columns != cells:
            return "yolox"
        if rows in (3 * cells, 3 * (cells + coarse_cells)):
            return "yolov5"
        if columns == cells:
            return "yolov8"
        if columns == 6 and rows is not None and rows < cells:
            return "end2end"
    if rows is not None and columns is None:
        return "yolov8"
    if columns == 6 and rows in (100, 300):
        return "end2end"
    many_rows = columns is not None and columns > 6 and (rows is None or rows > columns)
    return "yolov5" if exported_by_yolo and many_rows else None


def _few(outputs: Sequence[GraphTensor], size: Size | None) -> bool:
    """Whether outputs list fewer boxes than a grid over the input has cells: then they are not its raw boxes."""
    rows = outputs[0].shape[1]
    return size is not None and rows is not None and rows < len(grid(size)[0])


def _roles(outputs: Sequence[GraphTensor]) -> dict[str, GraphTensor]:
    """Outputs whose names say what they are, by role.

    RF-DETR gives its raw boxes and logits the names of what others list as finished boxes.
    """
    raw = all(len(output.shape) == 3 and not output.integer for output in outputs)
    known = ROLES | RFDETR_ROLES if raw else ROLES
    return {known[output.name]: output for output in outputs if output.name in known}


def order_outputs(outputs: Sequence[GraphTensor], layout: Layout) -> list[GraphTensor] | None:
    """The graph's outputs in the order `layout.decode` takes them; None where one is missing.

    Exporters often number their outputs: where the names say nothing, type and shape do.
    """
    if len(layout.outputs) == 1:
        return list(outputs[:1])
    by_role = {output.name: output for output in outputs} | _roles(outputs)
    lists = any(output.integer for output in outputs)
    for output in outputs:
        width = output.shape[-1] if output.shape else None
        role = "boxes" if width == 4 else "dets" if width == 5 and lists else "scores"
        role = "labels" if output.integer else role
        by_role.setdefault(role, output)
    return [by_role[role] for role in layout.outputs] if set(layout.outputs) <= set(by_role) else None


def count_classes(ordered: Sequence[GraphTensor], layout: Layout) -> int | None:
    """How many classes the graph has, where its shapes say so."""
    if layout.classes is None:
        return None
    axis, skipped = layout.classes
    side = ordered[-1].shape[axis] if len(ordered[-1].shape) == 3 else None
    return None if side is None else side - skipped
