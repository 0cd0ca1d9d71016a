"""Infer the layout of a graph from the shapes, types and names of its outputs, or from its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from objectseeker.detectors.network.layouts import (
    DISTANCES,
    NANODET_STRIDES,
    STRIDES,
    Array,
    Layout,
    count_cells,
    grid,
)
from objectseeker.detectors.network.preprocess import Size
from objectseeker.errors import ObjectSeekerError

# The names that exporters use for boxes and scores.
ROLES = {"boxes": "boxes", "scores": "scores", "pred_boxes": "boxes", "pred_logits": "scores", "logits": "scores"}
RFDETR_ROLES = {"dets": "boxes", "labels": "scores"}
GRIDS = (STRIDES, NANODET_STRIDES, (4, *STRIDES))

# The families that libreyolo names in the metadata of its graphs, with the preprocessing and decoding of its code.
LIBREYOLO_LAYOUTS = {
    "yolo9": "yolov9",
    "yolo9_p2": "yolov9",
    "yolo9_e2e": "yolov9,nms=none",
    "yolox": "yolov5,fit=top-left,channels=bgr,std=1",
    "picodet": "picodet",
    "ppyoloe": "ppyoloe",
    "rtmdet": "picodet,fit=top-left,channels=bgr,mean=103.53/116.28/123.675,std=57.375/57.12/58.395,nms=0.65",
    "dfine": "queries",
    "deim": "queries",
}

# Layouts for which a graph does not say how pixels are normalized: the assumption, and what to write for others.
GUESSED_INPUTS = {
    "queries": "for RT-DETR, D-FINE and DEIM, pixels within 0..1: if it expects them normalized, name the layout, for "
    "example --set layout=rfdetr",
    "picodet": "for PicoDet and PP-YOLOE, pixels normalized: for PP-YOLOE+ use --set layout=picodet,mean=0,std=255",
    "ppyoloe": "for PicoDet and PP-YOLOE, pixels normalized: for PP-YOLOE+ use --set layout=ppyoloe,mean=0,std=255",
    "paddle": "for PicoDet and PP-YOLOE, pixels normalized: for PP-YOLOE+ and RT-DETR use --set layout="
    "paddle,mean=0,std=255",
    "mmdeploy": "for most detectors of mmdet, RGB pixels normalized: for RTMDet use --set layout=mmdeploy,channels=bgr,"
    "mean=103.53/116.28/123.675,std=57.375/57.12/58.395",
}


class GraphTensor(NamedTuple):
    """An input or output of a graph; None is a dimension that is not fixed."""

    name: str
    shape: tuple[int | None, ...]
    integer: bool

    def __str__(self) -> str:
        return f"{self.name} {'x'.join('?' if side is None else str(side) for side in self.shape)}"


def layout_from_metadata(metadata: Mapping[str, str]) -> str | None:
    """Return the layout of a graph that libreyolo exported; None for all other graphs.

    Several of its families have outputs of the same shape that mean different things.
    """
    if not {"libreyolo_version", "model_family"} <= set(metadata):
        return None
    family, task = metadata["model_family"], metadata.get("task", "detect")
    if family not in LIBREYOLO_LAYOUTS or task != "detect":
        raise ObjectSeekerError(
            f"unknown libreyolo model {family[:40]!r} ({task[:20]}): choose a layout (--set layout=NAME), or wrap it "
            "as a python: detector"
        )
    text = LIBREYOLO_LAYOUTS[family]
    if family.startswith("yolo9"):
        text = "end2end" if metadata.get("nms") == "true" else text
        text += "" if metadata.get("letterbox_pad") == "center" else ",fit=top-left"
    return text


def infer_layout(
    outputs: Sequence[GraphTensor], size: Size | None, *, takes_sizes: bool, exported_by_yolo: bool
) -> str | None:
    """Return the name of the layout; None if the outputs do not determine it.

    Args:
        outputs: The graph's outputs.
        size: Width and height of the graph's input, if they are fixed.
        takes_sizes: Whether the graph has a second input for image sizes.
        exported_by_yolo: Whether it carries the metadata of the exporters of YOLOv5 and later.
    """
    names = {output.name for output in outputs}
    roles = _roles(outputs)
    ranks = sorted(len(output.shape) for output in outputs)
    integers = sum(output.integer for output in outputs)
    widths = [output.shape[-1] if output.shape else None for output in outputs]
    if ranks == [3]:
        return _infer_single_output(outputs[0].shape[1], outputs[0].shape[2], size, exported_by_yolo)
    if ranks == [3, 3] and integers == 0:
        if set(roles) == {"boxes", "scores"} and names != {"boxes", "scores"}:
            if roles["boxes"].shape[2] not in (4, None):  # some exporters write names that do not fit
                return None
            return "rfdetr" if "dets" in names else "queries"
        if widths.count(4) == 1 and _in_columns(sorted(outputs, key=lambda output: output.shape[2] != 4)):
            return "ppyoloe"
        if names == {"boxes", "scores"} or (widths.count(4) == 1 and not _has_too_few_rows(outputs, size)):
            return "decoded"
    if ranks == [1, 2] and integers == 1 and 6 in widths:
        return "paddle"
    if ranks == [2, 3] and (names == {"dets", "labels"} or (integers == 1 and 5 in widths)):
        return "mmdeploy"
    if names == {"labels", "boxes", "scores"} or (len(outputs) == 3 and integers == 1 and 4 in widths):
        if ranks == [2, 2, 3] and takes_sizes:
            return "detr"
        if ranks == [1, 1, 2]:
            return "torchvision"
    return None


def _infer_single_output(
    rows: int | None, columns: int | None, size: Size | None, exported_by_yolo: bool
) -> str | None:
    """Infer the layout from one output: YOLOX has a row per grid cell, YOLOv5 three, YOLOv8 a column."""
    if size is not None:
        cells = sum((size[0] // stride) * (size[1] // stride) for stride in STRIDES)
        coarse_cells = (size[0] // 64) * (size[1] // 64)  # of a fourth scale that large YOLOv5 and YOLOR have
        if rows == count_cells(size, NANODET_STRIDES) and columns is not None and columns > 4 * DISTANCES:
            return "nanodet"
        if rows == cells and columns != cells:
            # A head that lists its boxes lists every cell of a very small input, in rows like a YOLOX of one class.
            return "end2end" if exported_by_yolo and columns == 6 else "yolox"
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


def infer_box_format(boxes: Array, size: Size) -> Literal["corners", "centers"] | None:
    """Infer how a network writes its boxes A x 4, one per grid cell; None if unclear.

    A network that learns the distances from the middle of a cell to four sides has that middle in its box, whatever an
    image shows; so numbers that are corners contain it in every row. Centers at least move across the image with their
    cells. YOLOX's raw outputs, offsets from a cell in strides, stay near 0.
    """
    if boxes.shape[1] != 4 or not np.isfinite(boxes).all():
        return None
    low, high = boxes[:, :2], boxes[:, 2:]
    grids = [grid(size, order) for strides in GRIDS for order in (strides, strides[::-1])]
    middles = [((cell + 0.5) * stride, stride) for cell, stride in grids if len(cell) == len(boxes)]
    if any(((low <= middle + stride / 2) & (high >= middle - stride / 2)).all() for middle, stride in middles):
        return "corners"
    if any(_follows(low, middle) for middle, _ in middles):
        return "centers"
    return None


def _follows(points: Array, middles: Array) -> bool:
    """Return whether points move, along both axes, by more than half of the movement of the middles."""
    apart = middles - middles.mean(axis=0)
    return bool(((points * apart).sum(axis=0) > 0.5 * (apart**2).sum(axis=0)).all())


def _has_too_few_rows(outputs: Sequence[GraphTensor], size: Size | None) -> bool:
    """Return whether outputs list fewer boxes than the grid has cells: then they are not raw boxes."""
    rows = outputs[0].shape[1]
    return size is not None and rows is not None and rows < count_cells(size, STRIDES)


def _in_columns(ordered: Sequence[GraphTensor]) -> bool:
    """Return whether the scores next to boxes N x A x 4 are N x C x A, as PaddleDetection writes them."""
    if len(ordered) != 2 or any(len(output.shape) != 3 for output in ordered):
        return False
    boxes, scores = ordered
    return scores.shape[2] == boxes.shape[1] and scores.shape[1] not in (boxes.shape[1], None)


def _roles(outputs: Sequence[GraphTensor]) -> dict[str, GraphTensor]:
    """Return the outputs whose names tell their role, by role.

    RF-DETR names its raw boxes and logits as others name their final boxes.
    """
    raw = all(len(output.shape) == 3 and not output.integer for output in outputs)
    known = ROLES | RFDETR_ROLES if raw else ROLES
    return {known[output.name]: output for output in outputs if output.name in known}


def order_outputs(outputs: Sequence[GraphTensor], layout: Layout) -> list[GraphTensor] | None:
    """Return the graph's outputs in the order in which `layout.decode` takes them; None if one is missing.

    Exporters often number their outputs: if the names tell nothing, type and shape decide.
    """
    if layout.outputs == ("output",):
        return list(outputs[:1])
    by_role = {output.name: output for output in outputs} | _roles(outputs)
    lists = any(output.integer for output in outputs)
    for output in outputs:
        width = output.shape[-1] if output.shape else None
        role = "boxes" if width == 4 else "dets" if width == 5 and lists else "scores"
        role = "rows" if width == 6 and len(output.shape) == 2 else role
        role = "labels" if output.integer else role
        by_role.setdefault(role, output)
    return [by_role[role] for role in layout.outputs] if set(layout.outputs) <= set(by_role) else None


def count_classes(ordered: Sequence[GraphTensor], layout: Layout) -> int | None:
    """Return how many classes the graph has, or None if its shapes do not tell."""
    if layout.classes is None:
        return None
    axis, skipped = layout.classes
    if layout.name == "ppyoloe" and _in_columns(ordered):
        axis = 1
    side = ordered[-1].shape[axis] if len(ordered[-1].shape) == 3 else None
    return None if side is None else side - skipped
