"""Make a held-out pack from a VOCdevkit folder, to measure AP50 where the folder itself cannot go.

python -m training.pack VOCdevkit/VOC2007 val held.npz held.bin
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from PIL import Image

from objectseeker.detectors.embedded.model import CLASSES
from training.packs import DIFFICULT, NORMAL


def main() -> None:
    arguments = parse()
    names = (arguments.folder / "ImageSets" / "Main" / f"{arguments.split}.txt").read_text().split()
    files, sizes, boxes, owners = [], [], [], []
    for number, name in enumerate(names):
        with Image.open(arguments.folder / "JPEGImages" / f"{name}.jpg") as picture:
            image = picture.convert("RGB")
        small = shrink(image, arguments.longest_side)
        rows = read_boxes(arguments.folder / "Annotations" / f"{name}.xml")
        rows[:, 1:5] *= np.tile(np.divide(small.size, image.size), 2)
        files.append(compress(small, arguments.quality))
        sizes.append((*image.size, *small.size))
        boxes.append(rows)
        owners.append(np.full(len(rows), number, np.int32))
    arguments.part.write_bytes(b"".join(files))
    np.savez_compressed(
        arguments.index,
        off=np.cumsum([0] + [len(file) for file in files]),
        wh=np.array(sizes, np.int32),
        src=np.array(["voc"] * len(names)),
        name=np.array([f"{name}.jpg" for name in names]),
        bx=np.concatenate(boxes).astype(np.float32),
        bi=np.concatenate(owners),
    )
    print(f"{len(names)} images, {sum(map(len, boxes))} boxes, {arguments.part.stat().st_size} bytes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the year's folder, with JPEGImages and Annotations in it")
    parser.add_argument("split", help="which list of ImageSets/Main to take")
    parser.add_argument("index", type=Path, help="the .npz to write")
    parser.add_argument("part", type=Path, help="the .bin to write")
    parser.add_argument("--longest-side", type=int, default=416)
    parser.add_argument("--quality", type=int, default=90, help="of the WebP files")
    return parser.parse_args()


def shrink(image: Image.Image, longest_side: int) -> Image.Image:
    """The image with its longer side at exactly `longest_side`: what the detector's letterbox makes of it."""
    scale = longest_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def compress(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=6)
    return buffer.getvalue()


def read_boxes(path: Path) -> npt.NDArray[np.float64]:
    """Rows label, x1, y1, x2, y2, flag; VOC counts pixels from one and includes the last."""
    rows = []
    for item in ElementTree.parse(path).iter("object"):
        name, difficult = item.findtext("name"), item.findtext("difficult", "0")
        x1, y1, x2, y2 = (float(item.findtext(f"bndbox/{side}", "nan")) for side in ("xmin", "ymin", "xmax", "ymax"))
        rows.append((CLASSES.index(str(name)), x1 - 1, y1 - 1, x2, y2, DIFFICULT if difficult == "1" else NORMAL))
    return np.array(rows, np.float64).reshape(-1, 6)


if __name__ == "__main__":
    main()
