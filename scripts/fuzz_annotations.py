"""Small datasets of every format, and ways to spoil each (used by fuzz.py)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutations import Rng, pick, spoiled_bytes, spoiled_json, spoiled_text, spoiled_value, spoiled_word, write_tree

Files = dict[str, bytes]

COCO = {
    "images": [
        {"id": 7, "file_name": "1.png", "width": 24, "height": 16},
        {"id": "x", "file_name": "sub/2.png"},
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 5, 6.5], "iscrowd": 0},
        {"id": 2, "image_id": "x", "category_id": 9, "bbox": [0, 0, 24, 16], "iscrowd": 1},
        {"image_id": 7, "category_id": 9, "bbox": [3, 3, 5, 0]},
    ],
    "categories": [{"id": 3, "name": "cat"}, {"id": 9, "name": "dog"}],
}
VOC = """<annotation>
 <size> <width> 24 </width> <height> 16 </height> </size>
 <object> <name> dog </name> <difficult> 0 </difficult>
 <bndbox> <xmin> 2 </xmin> <ymin> 3 </ymin> <xmax> 9 </xmax> <ymax> 12.5 </ymax> </bndbox> </object>
</annotation>"""
YOLO = "0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.2 0.2\n1 0.1 0.1 0.5 0.1 0.5 0.9"
YAML = "path: .\ntrain: images/train\nval: [images/val]\nnc: 2\nnames:\n  0: cat\n  1: dog\n"
KITTI = "Car 0.0 0 1.57 1.0 2.0 9.0 8.0 1 2 3 4 5 6 7\nDontCare -1 -1 -10 3 3 8 8 -1 -1 -1 -1000 -1000 -1000 -10"


def make_image(width: int = 24, height: int = 16) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


PNG = make_image()


def coco(rng: Rng) -> tuple[str, Files]:
    content = spoiled_json(rng, COCO) if rng.random() < 0.8 else spoiled_bytes(rng, json.dumps(COCO).encode())
    return "coco:a.json:images", {"a.json": content, "images/1.png": PNG, "images/sub/2.png": PNG}


def voc(rng: Rng) -> tuple[str, Files]:
    files = {
        "ImageSets/Main/val.txt": b"a\nb\n",
        "JPEGImages/a.jpg": PNG,
        "JPEGImages/b.png": PNG,
        **{f"Annotations/{name}.xml": VOC.encode() for name in "ab"},
    }
    return "voc:.:val", _text_spoiled(rng, files)


def voc_flat(rng: Rng) -> tuple[str, Files]:
    return "voc:.", _text_spoiled(rng, {"a.png": PNG, "a.xml": VOC.encode(), "b.png": PNG, "b.xml": VOC.encode()})


def yolo(rng: Rng) -> tuple[str, Files]:
    files = {
        "data.yaml": YAML.encode(),
        **{f"images/{split}/a.png": PNG for split in ("train", "val")},
        **{f"labels/{split}/a.txt": YOLO.encode() for split in ("train", "val")},
    }
    return pick(rng, ("yolo:.", "yolo:.:val", "yolo:data.yaml", "yolo:data.yaml:val")), _text_spoiled(rng, files)


def yolo_flat(rng: Rng) -> tuple[str, Files]:
    return "yolo:.", _text_spoiled(rng, {"classes.txt": b"cat\ndog\n", "a.png": PNG, "a.txt": YOLO.encode()})


def kitti(rng: Rng) -> tuple[str, Files]:
    files = {"image_2/1.png": PNG, "label_2/1.txt": KITTI.encode(), "image_2/2.png": PNG, "label_2/2.txt": b""}
    return "kitti:.", _text_spoiled(rng, files)


def text_list(rng: Rng) -> tuple[str, Files]:
    return "list:l.txt", _text_spoiled(rng, {"l.txt": b"1.png\nsub/2.png\n", "1.png": PNG, "sub/2.png": PNG})


def parquet_list(rng: Rng) -> tuple[str, Files]:
    stream = io.BytesIO()
    pq.write_table(_table(rng), stream)
    content = stream.getvalue()
    content = spoiled_bytes(rng, content) if rng.random() < 0.5 else content
    return "list:l.parquet", {"l.parquet": content, "1.png": PNG}


def folder(rng: Rng) -> tuple[str, Files]:
    names = [word for word in (spoiled_word(rng) for _ in range(3)) if 0 < len(word) < 80]
    usable = [name for name in names if not set(name) & {"/", "\x00"} and name.isprintable()]
    return ".", {"1.png": PNG} | {f"{name}.png": PNG for name in usable}


FORMATS: dict[str, Callable[[Rng], tuple[str, Files]]] = {
    make.__name__: make for make in (coco, voc, voc_flat, yolo, yolo_flat, kitti, text_list, parquet_list, folder)
}


def write_dataset(rng: Rng, root: Path) -> str:
    """A spoiled dataset below `root`, and its spec as seen from there."""
    spec, files = FORMATS[pick(rng, list(FORMATS))](rng)
    write_tree(root, files)
    if rng.random() < 0.05:  # a name that is not UTF-8, where the system can have one
        (root / "\udcff.png").write_bytes(PNG)
    return spec


def _text_spoiled(rng: Rng, files: Files) -> Files:
    """One of the text files spoiled; now and then one file lost, or replaced by an image."""
    text_files = [name for name in files if not files[name].startswith(b"\x89PNG")]
    name, way = pick(rng, text_files), rng.random()
    if way < 0.7:
        spoiled = spoiled_text(rng, files[name].decode()).encode("utf-8", "surrogatepass")
    elif way < 0.9:
        spoiled = spoiled_bytes(rng, files[name])
    elif way < 0.95:
        spoiled = PNG if rng.random() < 0.5 else b"<html><body><p>404</p></body></html>"
    else:
        lost = pick(rng, list(files))
        return {key: content for key, content in files.items() if key != lost}
    return files | {name: spoiled}


def _table(rng: Rng) -> Any:
    """Rows of paths, some of which are none: null, numbers, bytes, nested."""
    kinds: tuple[tuple[Any, Callable[[], Any]], ...] = (
        (pa.string(), lambda: pick(rng, ("1.png", None, "", "x" * 10_000, "a\nb", "../up.png"))),
        (pa.int64(), lambda: int(rng.integers(-5, 5))),
        (pa.float64(), lambda: float(rng.normal())),
        (pa.binary(), lambda: rng.bytes(4)),
        (pa.bool_(), lambda: bool(rng.integers(2))),
        (pa.null(), lambda: None),
        (pa.list_(pa.string()), lambda: ["1.png"]),
        (pa.struct([("a", pa.int32())]), lambda: {"a": 1}),
        (pa.timestamp("ns"), lambda: int(rng.integers(2**62))),
        (pa.large_string(), lambda: "1.png"),
        (pa.duration("ns"), lambda: int(rng.integers(2**62))),
    )
    count = int(rng.integers(0, 4))

    def column(kind: tuple[Any, Callable[[], Any]]) -> Any:
        return pa.array([kind[1]() for _ in range(count)], kind[0])

    usual = kinds[0]
    columns = {"path": column(pick(rng, kinds) if rng.random() < 0.7 else usual)}
    if rng.random() < 0.4:
        columns["id"] = column(pick(rng, kinds))
    if rng.random() < 0.2:
        columns["path"] = _not_utf8(count)
    if rng.random() < 0.1:
        columns = {"other": columns["path"]}
    if rng.random() < 0.05:
        columns[str(spoiled_value(rng))[:50].encode("utf-8", "replace").decode()] = columns[next(iter(columns))]
    return pa.table(columns)


def _not_utf8(count: int) -> Any:
    """Strings that are not UTF-8: Arrow does not check."""
    offsets = np.arange(count + 1, dtype=np.int32) * 2
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"\xff\xfe" * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
