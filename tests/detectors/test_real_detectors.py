"""Graphs exported from the code of other projects: the same boxes as that code's own post-processing.

The graphs come from `scripts/export_real_detectors.py`, which needs these projects; the environment variable
OBJECTSEEKER_REAL_DETECTORS names the folder it wrote. Where transformers is installed, its models are compared without
an export as well.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from objectseeker.core.boxes import Detections
from objectseeker.core.recipes import Halves
from objectseeker.detectors import load_detector
from objectseeker.detectors.check import check
from objectseeker.detectors.network.layout_inference import GraphTensor, infer_layout, order_outputs
from objectseeker.detectors.network.layouts import LAYOUTS

SCRIPTS = Path(__file__).parents[2] / "scripts"
FOLDER = Path(os.environ.get("OBJECTSEEKER_REAL_DETECTORS", "no folder"))
GRAPHS = sorted(FOLDER.glob("*.onnx"))

PIXELS, SIDE, SCORE = 0.05, 1 / 2500, 1e-3  # how far boxes and scores may be apart: single precision, other kernels


def require_same(found: Detections, own: dict, floor: float) -> None:
    """Each of our boxes well above the floor is one of theirs, and each of theirs one of ours."""
    theirs = Detections(own["boxes"], own["scores"], own["labels"])
    pixels = max(PIXELS, SIDE * theirs.xyxy.max(initial=0))
    for one, other in ((found, theirs), (theirs, found)):
        sure = one.with_min_score(floor + 2 * SCORE)
        assert len(sure)
        far = np.abs(sure.xyxy[:, None] - other.xyxy[None]).max(axis=2)
        alike = np.abs(sure.score[:, None] - other.score[None]) < SCORE
        near = (far < pixels) & alike & (sure.label[:, None] == other.label[None])
        assert near.any(axis=1).all()


@pytest.mark.skipif(not GRAPHS, reason="OBJECTSEEKER_REAL_DETECTORS names no folder of exported graphs")
@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_an_exported_graph_is_read_as_its_own_project_reads_it(path):
    own = dict(np.load(path.with_suffix(".npz")))
    detector = load_detector(f"onnx:{path}", layout=str(own.pop("layout", "")) or None)
    image, floor = own.pop("image"), float(own.pop("floor"))
    height, width = image.shape[:2]
    own["boxes"] = np.clip(own["boxes"], 0, [width, height, width, height])

    require_same(detector([image])[0].with_min_score(floor), own, floor)
    failed = set(check(detector, image, masks=Halves(1)).failed)
    assert failed <= {"boxes are x1, y1, x2, y2 in raw pixels"}  # boxes of random weights follow nothing


def test_outputs_of_transformers_are_read_as_transformers_reads_them(monkeypatch):
    """D-FINE, without an export: that takes a while."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(SCRIPTS)
    import export_real_detectors as script

    size = (96, 64)
    made = script.PROJECTS["d_fine"][0](size)
    image = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    with torch.inference_mode():
        outputs = made.module.eval()(made.prepare(image))
        boxes, scores, labels = made.read(outputs, size)
    tensors = [GraphTensor(n, (None, *o.shape[1:]), False) for n, o in zip(made.outputs, outputs, strict=True)]
    name = infer_layout(tensors, size, takes_sizes=False, exported_by_yolo=False)
    layout = LAYOUTS[name]
    by_name = dict(zip(made.outputs, outputs, strict=True))
    views = [by_name[tensor.name][0].numpy() for tensor in order_outputs(tensors, layout)]

    floor = script.floor_of(made, scores)
    found = layout.read(views, size, floor, layout.every_class)

    assert name == "queries"
    own = {"boxes": boxes.numpy(), "scores": scores.numpy(), "labels": labels.numpy()}
    require_same(Detections(*found), own, floor)
