"""Draw docs/images/attack.jpg: an image, a patch that hides its object from the detector, and the defended output.

    objectseeker attack src/objectseeker/demo/samples/crossing.jpg --patch-area 1% --max-objects 1 --out attacked
    python scripts/attack_image.py crossing.jpg attacked/images/crossing-0-undefended.png

Exits with 1 unless the detector loses the object and the defended detector, which certifies it, does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from objectseeker import Defense, Detections, Patch, load_image
from objectseeker.detectors.network.class_names import VOC_20

PAGE = Path(__file__).parents[1] / "docs" / "images" / "attack.jpg"


def panel(
    image: npt.NDArray[np.uint8], boxes: Detections, names: tuple[str, ...], title: str, width: int
) -> Image.Image:
    """Draw the boxes on the left part of an image, below a title."""
    drawn = Image.fromarray(image)
    pen = ImageDraw.Draw(drawn)
    for box, score, label in zip(boxes.xyxy, boxes.score, boxes.label, strict=True):
        if box[0] < width - 40:
            pen.rectangle([*box], outline=(0, 200, 120), width=3)
            pen.text((box[0] + 4, box[1] - 12), f"{names[label]} {score:.2f}", fill=(255, 255, 255), stroke_width=2,
                     stroke_fill=(0, 90, 60))  # fmt: skip
    framed = Image.new("RGB", (width, image.shape[0] - 60), "white")
    framed.paste(drawn.crop((0, 84, width, image.shape[0])), (0, 24))
    ImageDraw.Draw(framed).text((4, 5), title, fill="black", font_size=15)
    return framed


def main() -> int:
    seeker = Defense.load("builtin").build()
    clean, attacked = (load_image(path) for path in sys.argv[1:3])
    names = VOC_20
    (seen,) = seeker.observe([clean])
    (observation,) = seeker.observe([attacked])
    threshold = seeker.rule.base_threshold
    before, undefended = (one.base.with_min_score(threshold) for one in (seen, observation))
    defended = seeker.rule.prune(observation)
    first = seeker.rule.prune(seen)[:1]
    (certified,) = seeker.certify(seen, first, Patch(area=0.01, location="over")).certified[0]

    def found(boxes: Detections) -> bool:
        low = np.maximum(boxes.xyxy[:, :2], first.xyxy[0, :2])
        high = np.minimum(boxes.xyxy[:, 2:], first.xyxy[0, 2:])
        return bool(((high > low).all(axis=1) & (boxes.label == first.label[0])).any())

    if not (certified and found(before) and not found(undefended) and found(defended)):
        return 1
    titles = ("no attack", "undefended: the patch hides the person", "defended: certified, still detected")
    panels = [
        panel(image, boxes, names, title, 340)
        for image, boxes, title in zip((clean, attacked, attacked), (before, undefended, defended), titles, strict=True)
    ]
    canvas = Image.new("RGB", (sum(one.width for one in panels) + 20, panels[0].height), "white")
    for number, one in enumerate(panels):
        canvas.paste(one, (number * (one.width + 10), 0))
    canvas.save(PAGE, quality=88)
    return 0


if __name__ == "__main__":
    sys.exit(main())
