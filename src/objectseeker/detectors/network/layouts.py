"""Families of networks: the input that each one expects, and how to read boxes from its outputs.

`LAYOUTS` holds the known layouts by name; `parse_layout` reads a name with changes, such as
"mmdeploy,channels=bgr,pad=0".

A decoder sees the outputs of one view only, so one view can never change the boxes of another. It drops boxes below the
score floor first, which keeps it fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from objectseeker.detectors.network.preprocess import Fit, InputPlacement, Size, place
from objectseeker.detectors.network.raw_boxes import RawBoxes
from objectseeker.errors import ObjectSeekerError, require_fraction

Array = npt.NDArray[Any]
Decode = Callable[[Sequence[Array], Size, float, bool], RawBoxes]  # outputs of a view, input size, floor, every class?
Channels = Literal["rgb", "bgr"]
Background = Literal["none", "last"]
Triple = tuple[float, float, float]

STRIDES = (8, 16, 32)
NANODET_STRIDES = (8, 16, 32, 64)
DISTANCES = 8  # NanoDet-Plus returns each side of a box as a distribution over 0 to 7 strides
_CHOICES = {"fit": get_args(Fit), "channels": get_args(Channels), "background": get_args(Background)}


@dataclass(frozen=True, slots=True)
class Layout:
    """Preprocessing and decoding of one family of networks; the network input is `(pixel - mean) / std`.

    Attributes:
        outputs: The roles of the network's outputs, in the order in which `decode` takes them.
        classes: The axis of the last output that lists the classes, and how many other entries that axis has.
        batched: Whether the network takes several images at a time.
        stride: The sides of the input must be multiples of it.
        trim: Cut a letterbox down to the image, which saves time, if the network takes any size. Fit "max-area" instead
            uses all pixels of the letterbox for a larger image of the same shape.
        nms: IoU threshold of per-class suppression; None if the network contains its own.
        every_class: In views of the whole image, report each class of a box that reaches the floor, not only the best
            one. In masked views it is always the best class.
        background: "last" if the network's last class means no object; it is then dropped.
        label_offset: Added to every label; labels below 0 are dropped. With -1, a background class 0 disappears.
    """

    name: str
    decode: Decode
    _: KW_ONLY
    outputs: tuple[str, ...]
    classes: tuple[int, int] | None = None
    batched: bool = True
    stride: int = 1
    input_size: int = 640
    fit: Fit = "center"
    channels: Channels = "rgb"
    mean: Triple = (0.0, 0.0, 0.0)
    std: Triple = (255.0, 255.0, 255.0)
    pad: int = 114
    trim: bool = False
    nms: float | None = None
    every_class: bool = False
    background: Background = "none"
    label_offset: int = 0

    def __post_init__(self) -> None:
        for key, choices in _CHOICES.items():
            if getattr(self, key) not in choices:
                raise ObjectSeekerError(f"{key} must be one of {', '.join(choices)}: got {getattr(self, key)!r}")
        if not 0 <= self.pad <= 255:
            raise ObjectSeekerError(f"pad must be a gray value within [0, 255]: got {self.pad!r}")
        if not (np.isfinite([*self.mean, *self.std]).all() and all(self.std)):
            raise ObjectSeekerError(f"mean and std must be finite and std not 0: got {self.mean} and {self.std}")
        if self.nms is not None:
            require_fraction(self.nms, "nms")
        if self.background != "none" and self.decode is not _decode_queries:
            raise ObjectSeekerError(f"layout {self.name} has no background={self.background}: omit it")

    @property
    def free_sides(self) -> bool:
        """Return whether the sides of the network input depend on the image."""
        return self.trim or self.fit == "max-area"

    def place(self, image: Size, network: Size) -> InputPlacement:
        """Place an image of one size on a network input of another."""
        return place(image, network, self.fit, stride=self.stride if self.free_sides else None)

    def read(self, outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
        """Decode the outputs of one view, without the background class."""
        if self.background == "last":
            boxes, scores = outputs
            outputs = boxes, scores[..., :-1]
        return self.decode(outputs, size, floor, every_class)

    def describe(self) -> str:
        """Return the name and every setting that differs from the known layout of that name."""
        known = LAYOUTS.get(self.name)
        own = {key: getattr(self, key) for key in SETTABLE}
        return ",".join([self.name, *(f"{k}={v}" for k, v in own.items() if known is None or v != getattr(known, k))])


def normalize(pixels: npt.NDArray[np.uint8], layout: Layout, dtype: npt.DTypeLike = np.float32) -> Array:
    """Turn H x W x 3 RGB pixels into the 3 x H x W network input, pixel by pixel."""
    ordered = pixels[..., ::-1] if layout.channels == "bgr" else pixels
    values = np.empty((3, *pixels.shape[:2]), np.float32)
    values[...] = ordered.transpose(2, 0, 1)
    values -= np.array(layout.mean, np.float32)[:, None, None]
    values /= np.array(layout.std, np.float32)[:, None, None]
    return values.astype(dtype, copy=False)


# --- decoders ---------------------------------------------------------------------------------------------------


def _decode_boxes_scores(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """Boxes A x 4 and class scores A x C."""
    boxes, scores = outputs
    return _classes(boxes, scores, floor, every_class)


def _decode_boxes_any_scores(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """Boxes A x 4 and class scores A x C or C x A."""
    boxes, scores = outputs
    return _classes(boxes, scores if len(scores) == len(boxes) else scores.T, floor, every_class)


def _decode_yolov5(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """A x (center, sides, objectness, class scores).

    Class scores are at most 1, so no score exceeds its objectness.
    """
    rows = outputs[0][outputs[0][:, 4] >= floor]
    return _corners(_classes(rows[:, :4], rows[:, 4:5] * rows[:, 5:], floor, every_class))


def _decode_yolox(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """As YOLOv5, but the center is in strides from the grid cell, and the sides are logarithms."""
    cell, stride = _grid_of_rows("yolox", outputs[0], size, STRIDES)
    likely = np.flatnonzero(outputs[0][:, 4] >= floor)
    rows = outputs[0][likely]
    if every_class:
        index, label = np.nonzero(rows[:, 4:5] * rows[:, 5:] >= floor)
    else:
        # Products of single precision numbers are exact in double precision, so this is also the best product.
        index, label = np.arange(len(rows)), rows[:, 5:].argmax(axis=1)
    score = rows[index, 4].astype(np.float64) * rows[index, 5 + label]
    keep = score >= floor
    index, score, label = index[keep], score[keep], label[keep]
    sides, cell, stride = rows[index, :4].astype(np.float64), cell[likely[index]], stride[likely[index]]
    boxes = np.concatenate([(sides[:, :2] + cell) * stride, np.exp(sides[:, 2:]) * stride], axis=1)
    return _corners(RawBoxes(boxes, score, label))


def _decode_yolov8(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """(center, sides, class scores) x A."""
    kept = outputs[0][:, outputs[0][4:].max(axis=0) >= floor].T
    return _corners(_classes(kept[:, :4], kept[:, 4:], floor, every_class))


def _decode_corner_columns(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """(corners, class scores) x A."""
    return _decode_corner_rows([outputs[0].T], size, floor, every_class)


def _decode_corner_rows(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """A x (corners, class scores)."""
    (rows,) = outputs
    raw = _classes(rows[:, :4], rows[:, 4:], floor, every_class)
    return raw._replace(xyxy=np.clip(raw.xyxy, 0, np.tile(size, 2)))  # before suppression, as its own code does


def _decode_queries(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """Boxes K x 4 (center and sides, as fractions of the input) and K x C logits, one sigmoid per class."""
    boxes, logits = outputs
    raw = _classes(boxes, 1 / (1 + np.exp(-logits.astype(np.float64))), floor, every_class)
    return _corners(raw._replace(xyxy=raw.xyxy * np.tile(size, 2)))


def _decode_nanodet(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    """A x (class scores, distance distributions to left, top, right and bottom of the cell's corner)."""
    (rows,) = outputs
    cell, stride = _grid_of_rows("nanodet", rows, size, NANODET_STRIDES)
    classes = rows.shape[1] - 4 * DISTANCES
    raw = _classes(np.arange(len(rows))[:, None], rows[:, :classes], floor, every_class)
    index = raw.xyxy[:, 0]  # only the numbers of the rows so far
    logits = rows[index, classes:].reshape(-1, 4, DISTANCES).astype(np.float64)
    share = np.exp(logits - logits.max(axis=2, keepdims=True))
    distance = (share @ np.arange(DISTANCES)) / share.sum(axis=2) * stride[index]
    corner = cell[index] * stride[index]
    boxes = np.concatenate([corner - distance[:, :2], corner + distance[:, 2:]], axis=1)
    return raw._replace(xyxy=np.clip(boxes, 0, np.tile(size, 2)))  # before suppression, as NanoDet does


def _decode_listed(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    labels, boxes, scores = outputs
    return RawBoxes(boxes, scores, labels)


def _decode_columns(boxes: int, score: int, label: int) -> Decode:
    """Read K rows of corners, score and label, which begin at these columns."""

    def decode(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
        (rows,) = outputs
        return RawBoxes(rows[:, boxes : boxes + 4], rows[:, score], rows[:, label])

    return decode


def _decode_dets_labels(outputs: Sequence[Array], size: Size, floor: float, every_class: bool) -> RawBoxes:
    dets, labels = outputs
    x1, y1, x2, y2, score = dets.T
    return RawBoxes(np.stack([x1, y1, x2, y2], axis=1), score, labels)


def _classes(boxes: Array, scores: Array, floor: float, every_class: bool) -> RawBoxes:
    """Return each box with its best class, or once per class that reaches the floor."""
    if every_class:
        index, label = np.nonzero(scores >= floor)
        return RawBoxes(boxes[index], scores[index, label], label)
    label = scores.argmax(axis=1)
    best = scores[np.arange(len(label)), label]
    keep = best >= floor
    return RawBoxes(boxes[keep], best[keep], label[keep])


def _corners(raw: RawBoxes) -> RawBoxes:
    """Convert center and sides to corners."""
    center, half = raw.xyxy[:, :2].astype(np.float64), raw.xyxy[:, 2:].astype(np.float64) / 2
    return raw._replace(xyxy=np.concatenate([center - half, center + half], axis=1))


def _grid_of_rows(name: str, rows: Array, size: Size, strides: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the `grid` with one cell per row."""
    cell, stride = grid(size, strides)
    if len(rows) != len(cell):
        raise ObjectSeekerError(
            f"a {name} graph has {len(cell)} rows at input {size[0]}x{size[1]}: got {len(rows)}: choose another layout"
        )
    return cell, stride


def count_cells(size: Size, strides: tuple[int, ...]) -> int:
    """Return how many cells `grid` has, without making them: a graph may state a huge input size."""
    return sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)


@lru_cache(maxsize=16)
def grid(size: Size, strides: tuple[int, ...] = STRIDES) -> tuple[Array, Array]:
    """Return column and row (A x 2) and stride (A x 1) of every grid cell, scale by scale, row by row.

    Cells that the input fills only in part count.
    """
    cells, each = [], []
    for stride in strides:
        rows, columns = np.mgrid[: -(-size[1] // stride), : -(-size[0] // stride)]
        cells.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        each.append(np.full((rows.size, 1), stride))
    return np.concatenate(cells).astype(np.float64), np.concatenate(each).astype(np.float64)


# --- the families -----------------------------------------------------------------------------------------------

_UNIT = (1.0, 1.0, 1.0)
_IMAGENET_MEAN, _IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_ONE: dict[str, Any] = {"outputs": ("output",)}
_RAW: dict[str, Any] = {"outputs": ("boxes", "scores"), "classes": (2, 0)}
_LISTED: dict[str, Any] = {"outputs": ("labels", "boxes", "scores")}
_YOLO: dict[str, Any] = _ONE | {"stride": 32, "nms": 0.65}
_TOP_LEFT: dict[str, Any] = {"fit": "top-left", "std": _UNIT}
_IMAGENET: dict[str, Any] = {"mean": _IMAGENET_MEAN, "std": _IMAGENET_STD}
_PADDLE: dict[str, Any] = _IMAGENET | {"fit": "stretch"}
_QUERIES: dict[str, Any] = _RAW | {"fit": "stretch", "every_class": True}  # as their own post-processing does

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("decoded", _decode_boxes_scores, **_RAW, **_TOP_LEFT, stride=32, input_size=416, nms=0.65),
        Layout("yolox", _decode_yolox, **_YOLO, **_TOP_LEFT, classes=(2, 5), channels="bgr"),
        # And YOLOR, YOLOv7; YOLOv6 as well, though it has YOLOX's shapes.
        Layout("yolov5", _decode_yolov5, **_YOLO, classes=(2, 5)),
        # And YOLO11, YOLOv9 of its authors.
        Layout("yolov8", _decode_yolov8, **_YOLO, classes=(1, 4)),
        # Of MultimediaTechLab and libreyolo: corners where YOLOv8 has centers.
        Layout("yolov9", _decode_corner_columns, **_YOLO, classes=(1, 4), every_class=True),
        Layout("end2end", _decode_columns(0, 4, 5), **_ONE, stride=32),
        Layout("detr", _decode_listed, **_LISTED, fit="stretch"),
        # RT-DETR, D-FINE, DEIM as transformers and others export them.
        Layout("queries", _decode_queries, **_QUERIES),
        # The same outputs, another input. Its last class is the background unless it has COCO's 91 numbers, or as many
        # names (`onnx.Graph.resolve_background`).
        Layout("rfdetr", _decode_queries, **_QUERIES, **_IMAGENET, input_size=560, background="last"),
        Layout(
            "nanodet",
            _decode_nanodet,
            **_ONE,
            classes=(2, 4 * DISTANCES),
            stride=32,
            input_size=416,
            fit="stretch",
            channels="bgr",
            mean=_IMAGENET_MEAN[::-1],
            std=_IMAGENET_STD[::-1],
            nms=0.6,
            every_class=True,
        ),
        # Of libreyolo; PP-YOLOE of PaddleDetection without post-processing.
        Layout("picodet", _decode_corner_rows, **_ONE, **_PADDLE, classes=(2, 4), stride=32, nms=0.6, every_class=True),
        # And PicoDet, both without suppression.
        Layout("ppyoloe", _decode_boxes_any_scores, **_RAW, **_PADDLE, stride=32, nms=0.7, every_class=True),
        Layout("paddle", _decode_columns(2, 1, 0), **_PADDLE, outputs=("rows",), batched=False),
        Layout("mmdeploy", _decode_dets_labels, **_IMAGENET, outputs=("dets", "labels"), fit="top-left"),
        Layout("torchvision", _decode_listed, **_LISTED, fit="top-left", batched=False),
    )
}


# --- layouts by name --------------------------------------------------------------------------------------------


def parse_layout(text: str | Layout) -> Layout:
    """Read the name of a layout, with changes after commas.

    Example:
        >>> parse_layout("mmdeploy,channels=bgr,mean=103/116/123,pad=0").describe()
        'mmdeploy,channels=bgr,mean=(103.0, 116.0, 123.0),pad=0'
    """
    if isinstance(text, Layout):
        return text
    name, *changes = text.split(",")
    if name not in LAYOUTS:
        raise ObjectSeekerError(f"unknown layout {name!r}: choose one of {', '.join(LAYOUTS)}")
    return replace(LAYOUTS[name], **dict(_parse_change(change) for change in changes))


def _parse_change(change: str) -> tuple[str, Any]:
    key, _, value = change.partition("=")
    if key not in SETTABLE:
        raise ObjectSeekerError(f"unknown layout option {change!r}: write KEY=VALUE, KEY one of {', '.join(SETTABLE)}")
    try:
        return key, SETTABLE[key](value)
    except (ValueError, KeyError):
        raise ObjectSeekerError(f"cannot read the value of layout option {change!r}: write KEY=VALUE") from None


def _triple(text: str) -> Triple:
    numbers = [float(part) for part in text.split("/")]
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue


SETTABLE: dict[str, Callable[[str], Any]] = {
    "fit": str,
    "channels": str,
    "mean": _triple,
    "std": _triple,
    "pad": int,
    "trim": {"yes": True, "no": False}.__getitem__,
    "nms": lambda text: None if text == "none" else float(text),
    "every_class": {"yes": True, "no": False}.__getitem__,
    "background": str,
    "label_offset": int,
}
