"""Export detectors with the code of their own projects, with random weights, and record their outputs.

    python scripts/export_real_detectors.py FOLDER [NAME ...]
    OBJECTSEEKER_REAL_DETECTORS=FOLDER pytest tests/detectors/test_real_detectors.py

For every project that is installed FOLDER gets NAME-WIDTHxHEIGHT.onnx at two input sizes and a .npz with an
image of exactly that size (so that resizing has no effect) and the boxes, scores and labels that the
project's own post-processing gives for it, from its own model in its own framework. The projects need versions of
their own: run this in one environment for each, all into the same folder. NanoDet has no package: put its
repository on PYTHONPATH. What was installed for each is in docs/reference/detectors.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from real_exports import Export, Own, Size, by_torch, floor_of, make_image
from real_mmdet import mmdet_rtmdet
from real_paddle import paddle_model, picodet, ppyoloe
from real_torch import libreyolo_model, nanodet_plus, rfdetr_package, torchvision_model, transformers_queries


def main(folder: Path, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (build, sizes) in PROJECTS.items():
        if wanted and name not in wanted:
            continue
        for size in sizes:
            try:
                export = build(size)
            except ImportError as error:
                print(f"{name}: skipped, {error}")
                break
            save(folder / f"{name}-{size[0]}x{size[1]}", export, size)


def save(stem: Path, export: Export | Own, size: Size) -> None:
    """The graph and the project's own boxes."""
    image = make_image(size)
    path = stem.with_name(stem.name + ".onnx")
    own = by_torch(export, size) if isinstance(export, Export) else export
    boxes, scores, labels = (np.asarray(part) for part in own.find(image))
    own.write(path)
    floor = floor_of(own, scores, own.floor)
    stored = path.with_suffix(".npz")
    np.savez(stored, image=image, floor=floor, layout=own.layout, boxes=boxes, scores=scores, labels=labels)
    print(f"{stem.name}: {len(scores)} boxes, best {scores.max(initial=0):.3f}")


SQUARE_AND_WIDE = ((64, 64), (128, 96))
MEDIUM = ((128, 96), (160, 160))  # where a deep network has no more than a few pixels left of a small image
LARGER = ((160, 160), (256, 192))  # where boxes at a random size fill a small image
SQUARES = ((96, 96), (160, 160))  # where the project exports no others
PROJECTS: dict[str, tuple[Callable[[Size], Export | Own], tuple[Size, ...]]] = {
    "rt_detr": (transformers_queries("rt_detr"), SQUARE_AND_WIDE),
    "rt_detr_v2": (transformers_queries("rt_detr_v2"), SQUARE_AND_WIDE),
    "d_fine": (transformers_queries("d_fine"), SQUARE_AND_WIDE),
    "deimv2": (transformers_queries("deimv2"), SQUARE_AND_WIDE),
    "nanodet_plus": (nanodet_plus, SQUARE_AND_WIDE),
    "rfdetr": (rfdetr_package, ((128, 128), (192, 192))),
    "torchvision_ssdlite": (torchvision_model("ssdlite320_mobilenet_v3_large"), SQUARE_AND_WIDE),
    "mmdet_rtmdet": (mmdet_rtmdet, SQUARE_AND_WIDE),
    "paddle_picodet": (paddle_model(picodet), MEDIUM),
    "paddle_picodet_raw": (paddle_model(picodet, nms=False, layout="ppyoloe,nms=0.6"), MEDIUM),
    "paddle_ppyoloe": (paddle_model(ppyoloe), MEDIUM),
    "paddle_ppyoloe_raw": (paddle_model(ppyoloe, nms=False), MEDIUM),
    "libreyolo_yolo9": (libreyolo_model("LibreYOLO9", "t"), LARGER),
    "libreyolo_yolo9_nms": (libreyolo_model("LibreYOLO9", "t", nms=True), LARGER),
    "libreyolo_yolo9_e2e": (libreyolo_model("LibreYOLO9E2E", "t"), LARGER),
    "libreyolo_yolo9_p2": (libreyolo_model("LibreYOLO9P2", "t"), MEDIUM),
    "libreyolo_yolox": (libreyolo_model("LibreYOLOX", "n", floor=0.2), SQUARES),
    "libreyolo_picodet": (libreyolo_model("LibrePICODET", "s", iou=0.6), SQUARES),
    "libreyolo_ppyoloe": (libreyolo_model("LibrePPYOLOE", "s", iou=0.7), SQUARES),
    "libreyolo_rtmdet": (libreyolo_model("LibreRTMDet", "t"), SQUARES),
    # As free as these say it is their batch is not.
    "libreyolo_dfine": (libreyolo_model("LibreDFINE", "n", dynamic=False), ((320, 320), (384, 384))),
    "libreyolo_deim": (libreyolo_model("LibreDEIM", "n", dynamic=False), ((320, 320), (384, 384))),
}

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
