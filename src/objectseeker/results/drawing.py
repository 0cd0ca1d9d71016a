"""Boxes drawn on images, in colours that colour-blind readers tell apart (Okabe and Ito's palette)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, intersection
from objectseeker.core.image import Image, as_image
from objectseeker.errors import ObjectSeekerError, require_fraction

Colour = tuple[int, int, int]
Font = PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)
ORANGE: Colour = (230, 159, 0)
SKY_BLUE: Colour = (86, 180, 233)
GREEN: Colour = (0, 158, 115)
VERMILION: Colour = (213, 94, 0)

BASE, RECOVERED, CERTIFIED, VULNERABLE, TRUTH = SKY_BLUE, ORANGE, GREEN, VERMILION, WHITE


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Boxes drawn alike: outlines `width` times as thick as usual (0: none), inside shaded with opacity `shade`.

    `captions` holds one text per box, or is empty.
    """

    boxes: Floats
    captions: Sequence[str] = ()
    colour: Colour = BASE
    dashed: bool = False
    width: float = 1.0
    shade: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.boxes)
        boxes = Detections(self.boxes, np.ones(count), np.zeros(count)).xyxy  # which checks them
        if len(self.captions) not in (0, count):
            raise ObjectSeekerError(f"captions must hold one text per box, {count}, got {len(self.captions)}")
        if not self.width >= 0:
            raise ObjectSeekerError(f"width must be at least 0, got {self.width!r}")
        require_fraction(self.shade, "shade")
        object.__setattr__(self, "boxes", boxes)


def draw(
    image: Image,
    base: Detections,
    names: Sequence[str],
    *,
    recovered: Detections | None = None,
    truth: Detections | None = None,
) -> PIL.Image.Image:
    """Base boxes solid, boxes that only masking found (`recovered`) dashed, ground truth in thin white."""
    layers = [] if truth is None else truth_layers(truth)
    layers.append(Layer(base.xyxy, captions(base, names)))
    if recovered is not None:
        layers.append(Layer(recovered.xyxy, captions(recovered, names), colour=RECOVERED, dashed=True))
    return annotate(image, layers)


def captions(detections: Detections, names: Sequence[str]) -> list[str]:
    """Name and score of each box; a label without a name shows its number."""
    return [
        f"{names[label] if 0 <= label < len(names) else label} {score:.2f}"
        for label, score in zip(detections.label.tolist(), detections.score.tolist(), strict=True)
    ]


def truth_layers(truth: Detections) -> list[Layer]:
    """Ground truth: a thin white line with a black one inside it, so that it shows on white too."""
    return [Layer(truth.xyxy, colour=BLACK), Layer(truth.xyxy, colour=TRUTH, width=0.5)]


def annotate(image: Image, layers: Iterable[Layer]) -> PIL.Image.Image:
    """A copy of `image` with the layers on it, the first at the bottom, and all captions above all boxes."""
    canvas = as_image(image).copy()
    height, width = canvas.shape[:2]
    short = min(height, width)
    texts: list[tuple[str, Ints, Colour]] = []
    for layer in layers:
        line = 0 if layer.width == 0 else max(1, round(layer.width * short / 200))
        for number, box in enumerate(layer.boxes):
            if box[0] >= width or box[1] >= height or box[2] <= 0 or box[3] <= 0:
                continue  # wholly outside the image
            pixels = _pixels(box, width, height)
            _shade(canvas, pixels, layer.colour, layer.shade)
            _outline(canvas, pixels, layer.colour, line, dash=4 * line if layer.dashed else 0)
            if len(layer.captions):
                texts.append((layer.captions[number], pixels, layer.colour))
    picture = PIL.Image.fromarray(canvas)
    font = PIL.ImageFont.load_default(max(10, round(short / 32)))
    taken: list[Floats] = []
    for text, pixels, colour in texts:
        _caption(picture, text, pixels, colour, font, taken)
    return picture


def _pixels(box: Floats, width: int, height: int) -> Ints:
    """The pixels a box touches, at least one: x1, y1, x2, y2, half-open, inside the image."""
    size = np.array([width, height])
    first = np.clip(np.floor(box[:2]), 0, size - 1)
    last = np.clip(np.ceil(box[2:]), first + 1, size)
    return np.concatenate([first, last]).astype(np.int64)


def _shade(canvas: Image, pixels: Ints, colour: Colour, opacity: float) -> None:
    x1, y1, x2, y2 = pixels
    if opacity > 0:
        inside = canvas[y1:y2, x1:x2]
        inside[:] = np.rint(inside * (1 - opacity) + np.array(colour) * opacity)


def _outline(canvas: Image, pixels: Ints, colour: Colour, line: int, *, dash: int) -> None:
    """An outline `line` pixels thick, inside the box; `dash` is the length of a dash and of a gap, 0 for none."""
    x1, y1, x2, y2 = pixels
    inside = canvas[y1:y2, x1:x2]
    if line > 0:
        for edge in (inside[:line], inside[-line:]):
            edge[:, _drawn(edge.shape[1], dash)] = colour
        for edge in (inside[:, :line], inside[:, -line:]):
            edge[_drawn(edge.shape[0], dash)] = colour


def _drawn(length: int, dash: int) -> Bools:
    """Which positions along an edge are drawn."""
    return np.ones(length, np.bool_) if dash == 0 else np.arange(length) // dash % 2 == 0


def _caption(
    picture: PIL.Image.Image, text: str, pixels: Ints, colour: Colour, font: Font, taken: list[Floats]
) -> None:
    """The text on a plate above the box, inside it or below, where no earlier plate lies; always inside the image."""
    _, top, _, bottom = font.getbbox("Ag" + text)
    margin = max(1, round((bottom - top) / 5))
    text = _shortened(text, font, picture.width - 2 * margin)
    left, _, right, _ = font.getbbox(text)
    width, height = math.ceil(right - left) + 2 * margin, math.ceil(bottom - top) + 2 * margin
    if not text or height > picture.height or width > picture.width:
        return
    x = min(int(pixels[0]), picture.width - width)
    heights = [y for y in (pixels[1] - height, pixels[1], pixels[3]) if 0 <= y <= picture.height - height]
    plates = [np.array([[x, y, x + width, y + height]], np.float64) for y in heights or [picture.height - height]]
    free = [plate for plate in plates if not any(intersection(plate, other).any() for other in taken)]
    plate = (free or plates)[0]
    taken.append(plate)
    y = plate[0, 1]
    pen = PIL.ImageDraw.Draw(picture)
    pen.rectangle((x, y, x + width - 1, y + height - 1), fill=colour)
    brightness = np.dot(colour, (0.299, 0.587, 0.114))
    pen.text((x + margin - left, y + margin - top), text, font=font, fill=BLACK if brightness > 110 else WHITE)


def _shortened(text: str, font: Font, room: float) -> str:
    """`text`, or as much of its beginning as fits into `room` pixels."""
    if font.getlength(text) <= room:
        return text
    for end in range(len(text) - 1, 0, -1):
        if font.getlength(text[:end] + "…") <= room:
            return text[:end] + "…"
    return ""
