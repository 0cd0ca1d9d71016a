"""Draw boxes on images, in colors that color-blind readers can distinguish (Okabe and Ito's palette)."""

from __future__ import annotations

import colorsys
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.core.boxes import Detections, Floats, Ints, intersection
from objectseeker.core.certification import Certificates
from objectseeker.core.masks import Image, as_image
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import quote_plain

Color = tuple[int, int, int]
Font = PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont

BLACK: Color = (0, 0, 0)
WHITE: Color = (255, 255, 255)
GRAY: Color = (128, 128, 128)
ORANGE: Color = (230, 159, 0)
SKY_BLUE: Color = (86, 180, 233)
GREEN: Color = (0, 158, 115)
YELLOW: Color = (240, 228, 66)
BLUE: Color = (0, 114, 178)
VERMILION: Color = (213, 94, 0)
PURPLE: Color = (204, 121, 167)

PALETTE = (SKY_BLUE, ORANGE, YELLOW, PURPLE, GREEN, VERMILION, BLUE)  # of classes
BASE, CERTIFIED, PARTLY, VULNERABLE, TRUTH = SKY_BLUE, GREEN, SKY_BLUE, VERMILION, WHITE
CERTIFICATE_LOOKS = {
    "hiding: certified anywhere": CERTIFIED,
    "hiding: certified where the label says": PARTLY,
    "hiding: not certified": VULNERABLE,
}

MAX_CAPTIONS = 500  # per image; more could not be read, and a caller may draw any number of boxes
MAX_CLASSES = 12  # in a legend
MAX_COVERED = 0.1  # of a caption's plate that may lie on others: a box whose caption finds no room goes without


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Boxes of one look: outlines `width` times the default (0: none), and one caption per box, or none."""

    boxes: Floats
    captions: Sequence[str] = ()
    color: Color = BASE
    dashed: bool = False
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One entry of a legend: the meaning of boxes of this look; without a color, a note."""

    text: str
    color: Color | None = BLACK
    dashed: bool = False
    inside: bool = False  # a white line inside the outline


@dataclass(frozen=True, slots=True)
class BoxCertificate:
    """Both sides of a box: where no patch can hide it, and what no patch anywhere can have made."""

    unhidden: Sequence[str]
    unfabricated: bool
    certified_score: float


def fabrication_legend(count: int | None = None) -> list[LegendEntry]:
    """Return the legend of fabrication: the white line, of `count` boxes, and the second number."""
    counted = "" if count is None else f" ({count})"
    return [
        LegendEntry(f"fabrication: certified anywhere{counted}", BLACK, inside=True),
        LegendEntry("score/certified score", None),
    ]


def draw_detections(
    image: Image,
    base: Detections,
    names: Sequence[str],
    *,
    recovered: Detections | None = None,
    certificates: Sequence[BoxCertificate] | None = None,
    against: str = "a patch",
) -> PIL.Image.Image:
    """Draw boxes with name and score in the color of their class, and a legend below the image.

    Args:
        image: The image; it is not changed.
        base: Base boxes.
        names: Class names.
        recovered: Boxes that masking recovered; they are dashed.
        certificates: For each box, base boxes first. Colors then show certificates against hiding, not classes; a white
            line inside shows those against fabrication, and captions have the certified score.
        against: Describes the patch.
    """
    boxes = base if recovered is None else Detections.concatenate([base, recovered])
    labels = captions(boxes, names)
    inside: list[Layer] = []
    if certificates is None:
        colors = [class_color(label) for label in boxes.label.tolist()]
        keys = _class_legend(boxes, names)
    else:
        locations = [certificate.unhidden for certificate in certificates]
        colors = [CERTIFIED if "anywhere" in where else PARTLY if where else VULNERABLE for where in locations]
        for number, certificate in enumerate(certificates):
            labels[number] += f"/{certificate.certified_score:.2f}"
            if colors[number] == PARTLY:
                labels[number] += " " + "+".join(certificate.unhidden)
        unfabricated = [number for number, certificate in enumerate(certificates) if certificate.unfabricated]
        inside = [Layer(boxes.xyxy[unfabricated], color=WHITE, width=2)]  # the outlines cover all but its inside
        counts = ((text, color, colors.count(color)) for text, color in CERTIFICATE_LOOKS.items())
        keys = [LegendEntry(f"{text} ({count})", color) for text, color, count in counts if count]
        keys += [*fabrication_legend(len(unfabricated)), LegendEntry(f"against {against}", None)] if keys else []
    looks: dict[tuple[Color, bool], list[int]] = {}
    for number, color in enumerate(colors):
        looks.setdefault((color, number >= len(base)), []).append(number)
    layers = inside + [  # base boxes get captions first
        Layer(boxes.xyxy[numbers], [labels[n] for n in numbers], color=color, dashed=is_recovered)
        for (color, is_recovered), numbers in sorted(looks.items(), key=lambda item: item[0][1])
    ]
    if len(boxes) > len(base):
        keys.append(LegendEntry("recovered by masking", dashed=True))
    return with_legend(annotate(image, layers), keys)


def draw(
    image: Image, detections: Detections, certificates: Certificates | None = None, *, names: Sequence[str] = ()
) -> PIL.Image.Image:
    """Draw boxes on an image, in the colors of their certificates if given, else of their classes.

    Args:
        image: The image, height x width x 3; it is not changed.
        detections: The boxes: detections, or the objects that were certified.
        certificates: Their certificates, as `ObjectSeeker.certify` returned them for one or several patches. Captions
            then end with the side of the largest square that cannot hide the object anywhere, in pixels.
        names: Class names by label.

    Returns:
        The image with the boxes and a legend, which a notebook shows.

    Raises:
        ObjectSeekerError: There is not one certificate for each box.

    Example:
        >>> box = Detections([[2, 2, 40, 40]], [0.9], [0])
        >>> draw(np.zeros((48, 64, 3), np.uint8), box, names=["car"]).size[0]
        64
    """
    if certificates is None:
        return draw_detections(image, detections, names)
    patches, objects = certificates.certified.shape
    if objects != len(detections):
        raise ObjectSeekerError(f"draw needs one certificate for each of {len(detections)} boxes: got {objects}")
    proven = certificates.certified & ~certificates.vacuous  # a patch that has no position is nothing to be shown
    sides = certificates.largest_square.tolist()
    labels = [f"{text}, {side} px" for text, side in zip(captions(detections, names), sides, strict=True)]
    every = "the patch" if patches == 1 else f"all {patches} patches"
    looks = (
        (f"certified against {every}", CERTIFIED, proven.all(axis=0)),
        (f"against some of {patches} patches", PARTLY, proven.any(axis=0) & ~proven.all(axis=0)),
        ("not certified", VULNERABLE, ~proven.any(axis=0)),
    )
    layers = [
        Layer(detections.xyxy[which], [labels[n] for n in np.flatnonzero(which)], color=color)
        for _, color, which in looks
    ]
    keys = [LegendEntry(f"{text} ({which.sum()})", color) for text, color, which in looks if which.any()]
    return with_legend(annotate(image, layers), [*keys, LegendEntry("px: largest square that cannot hide it", None)])


def class_color(label: int) -> Color:
    """Return the color of a class, the same in every image: one of the palette, then distant hues."""
    if 0 <= label < len(PALETTE):
        return PALETTE[label]
    red, green, blue = colorsys.hsv_to_rgb(
        label * 0.618034 % 1, 0.55 + 0.3 * (label % 2), 0.95 - 0.25 * (label % 3 == 0)
    )
    return round(255 * red), round(255 * green), round(255 * blue)


def _class_legend(boxes: Detections, names: Sequence[str]) -> list[LegendEntry]:
    counts = Counter(boxes.label.tolist()).most_common()
    keys = [
        LegendEntry(f"{_name(label, names)} ({count})", class_color(label)) for label, count in counts[:MAX_CLASSES]
    ]
    more = len(counts) - MAX_CLASSES
    return [*keys, LegendEntry(f"and {more} more classes", None)] if more > 0 else keys


def captions(detections: Detections, names: Sequence[str]) -> list[str]:
    """Return name and score of each box; a label without a name shows its number."""
    return [
        f"{_name(label, names)} {score:.2f}"
        for label, score in zip(detections.label.tolist(), detections.score.tolist(), strict=True)
    ]


def _name(label: int, names: Sequence[str]) -> str:
    return quote_plain(names[label]) if 0 <= label < len(names) else str(label)


def truth_layers(objects: Detections) -> list[Layer]:
    """Return thin white lines with black ones inside, which also show on white."""
    return [Layer(objects.xyxy, color=BLACK), Layer(objects.xyxy, color=TRUTH, width=0.5)]


def annotate(image: Image, layers: Iterable[Layer]) -> PIL.Image.Image:
    """Draw layers on a copy of the image, the first at the bottom, and all captions above all boxes.

    If there is no room for all captions, those of the largest boxes are drawn.
    """
    canvas = as_image(image).copy()
    height, width = canvas.shape[:2]
    short = min(height, width)
    captions: list[tuple[str, Ints, Color]] = []
    for layer in layers:
        thinnest = math.floor(layer.width) * (2 if short > 200 else 1) if layer.width >= 1 else 1
        line = 0 if layer.width == 0 else max(thinnest, round(layer.width * short / 200))
        for number, box in enumerate(layer.boxes):
            if box[0] >= width or box[1] >= height or box[2] <= 0 or box[3] <= 0:
                continue  # completely outside the image
            pixels = _pixels(box, width, height)
            _outline(canvas, pixels, layer.color, line, dash=4 * line if layer.dashed else 0)
            if len(layer.captions):
                captions.append((layer.captions[number], pixels, layer.color))
    annotated = PIL.Image.fromarray(canvas)
    font = _font(width, height)
    occupied = np.empty((0, 4))
    captions.sort(key=lambda caption: (caption[1][0] - caption[1][2]) * (caption[1][3] - caption[1][1]))
    for text, pixels, color in captions[:MAX_CAPTIONS]:
        occupied = _caption(annotated, text, pixels, color, font, occupied)
    return annotated


def with_legend(annotated: PIL.Image.Image, keys: Sequence[LegendEntry]) -> PIL.Image.Image:
    """Return the image with a white legend strip below it.

    An image that is too narrow for a few letters is returned unchanged.
    """
    font = _font(*annotated.size)
    left, top, right, bottom = font.getbbox("Ag")
    line, letter = math.ceil(1.5 * (bottom - top)), right - left
    swatch = 2 * line
    if not keys or annotated.width < swatch + 3 * letter:
        return annotated
    placed: list[tuple[LegendEntry, int, int, str]] = []
    x = y = 0
    for key in keys:
        begin = line // 4 if key.color is None else swatch
        text = _shorten(key.text, font, annotated.width - begin)
        entry_width = begin + math.ceil(font.getlength(text))
        if x and x + entry_width > annotated.width:
            x, y = 0, y + line
        placed.append((key, x, y + annotated.height, text))
        x += entry_width + line // 2
    page = PIL.Image.new("RGB", (annotated.width, annotated.height + y + line), "white")
    page.paste(annotated)
    pen, stroke = PIL.ImageDraw.Draw(page), max(2, line // 6)
    for key, x, y, text in placed:
        if key.color is not None:
            middle = y + (line - stroke) // 2
            for start in range(x + line // 4, x + swatch - line // 2, (2 if key.dashed else 1) * stroke):
                pen.rectangle((start, middle, start + stroke - 1, middle + stroke - 1), fill=key.color)
                if key.inside:  # between the color and gray, as on an image
                    pen.rectangle((start, middle + stroke, start + stroke - 1, middle + 2 * stroke - 1), fill=WHITE)
                    below = middle + 2 * stroke
                    pen.rectangle((start, below, start + stroke - 1, below + stroke - 1), fill=GRAY)
        begin = line // 4 if key.color is None else swatch - line // 4
        pen.text((x + begin, y + line // 6 - top // 2), text, font=font, fill=BLACK)
    return page


def _font(width: int, height: int) -> Font:
    """Return a font that is readable at the image's own size, and if a large image is shown smaller."""
    short = min(width, height)
    return PIL.ImageFont.load_default(max(10, round(min(short / 32, 8 + short / 54))))


def _pixels(box: Floats, width: int, height: int) -> Ints:
    """Return the pixels that a box touches, at least one: x1, y1, x2, y2, half-open, inside the image."""
    size = np.array([width, height])
    first = np.clip(np.floor(box[:2]), 0, size - 1)
    last = np.clip(np.ceil(box[2:]), first + 1, size)
    return np.concatenate([first, last]).astype(np.int64)


def _outline(canvas: Image, pixels: Ints, color: Color, line: int, *, dash: int) -> None:
    """Draw an outline `line` pixels thick, inside the box; `dash` is the length of dash and gap, or 0."""
    x1, y1, x2, y2 = pixels
    inside = canvas[y1:y2, x1:x2]
    for box in (inside, inside.swapaxes(0, 1)) if line > 0 else ():
        along = np.arange(box.shape[1])
        for edge in (box[:line], box[-line:]):
            edge[:, along // dash % 2 == 0 if dash else slice(None)] = color


def _caption(annotated: PIL.Image.Image, text: str, pixels: Ints, color: Color, font: Font, occupied: Floats) -> Floats:
    """Draw the caption on a plate above the box, inside it or below, free of earlier plates, best left.

    It is always inside the image, and omitted where it would cover others. Returns the plates there are now.
    """
    _, top, _, bottom = font.getbbox("Ag" + text)
    margin = max(1, round((bottom - top) / 5))
    text = _shorten(text, font, annotated.width - 2 * margin)
    left, _, right, _ = font.getbbox(text)
    width, height = math.ceil(right - left) + 2 * margin, math.ceil(bottom - top) + 2 * margin
    if not text or height > annotated.height or width > annotated.width:
        return occupied
    x1, y1, x2, y2 = pixels.tolist()
    lefts = [min(x1, annotated.width - width), max(x2 - width, 0)]
    heights = [y for y in (y1 - height, y1, y2, y2 - height) if 0 <= y <= annotated.height - height]
    plates = np.array(
        [(x, y, x + width, y + height) for x in lefts for y in heights or [annotated.height - height]], float
    )
    covered = intersection(plates, occupied).sum(axis=1)
    best = int(covered.argmin())  # the first that is free, else what covers least
    if covered[best] > MAX_COVERED * width * height:
        return occupied
    plate = plates[best : best + 1]
    x, y = plate[0, :2].tolist()
    pen = PIL.ImageDraw.Draw(annotated)
    pen.rectangle((x, y, x + width - 1, y + height - 1), fill=color)
    brightness = np.dot(color, (0.299, 0.587, 0.114))
    pen.text((x + margin - left, y + margin - top), text, font=font, fill=BLACK if brightness > 110 else WHITE)
    return np.concatenate([occupied, plate])


def _shorten(text: str, font: Font, room: float) -> str:
    """Return the text, or as much of its beginning as fits into `room` pixels."""
    shorter = (text[:end] + "…" for end in range(len(text) - 1, 0, -1))
    return next((fitting for fitting in (text, *shorter) if font.getlength(fitting) <= room), "")
