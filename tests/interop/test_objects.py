"""Objects of other libraries are taken wherever a detector is: pipelines, YOLO objects, torchvision models."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import PIL.Image
import pytest
from tiny_transformers import tiny_yolos

from objectseeker import Defense, Detections, Halves, ObjectSeeker, ObjectSeekerError, Rule, detect, observe
from objectseeker.detectors import load_detector

IMAGE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
RULE = Rule(base_threshold=0.01, mask_threshold=0.02)


def pipeline():
    """A pipeline of transformers with a tiny random model."""
    transformers = pytest.importorskip("transformers")
    model, processor = tiny_yolos(["car", "bus"])
    return transformers.pipeline("object-detection", model=model, image_processor=processor)


def test_a_pipeline_of_transformers_is_a_detector(tmp_path):
    theirs = pipeline()
    detector = load_detector(theirs)
    assert detector.names == ("car", "bus")
    (found,) = detector([IMAGE])
    expected = theirs(PIL.Image.fromarray(IMAGE), threshold=0.01)
    assert len(found) == len(expected) > 0
    assert sorted(found.score.tolist()) == pytest.approx(sorted(row["score"] for row in expected), abs=1e-6)
    assert load_detector(pipeline()).fingerprint == detector.fingerprint  # of the weights, not of the object
    run = observe([IMAGE], theirs, out=tmp_path / "run", masks="halves:2")
    assert run.defense().detector is theirs
    (result,) = detect([IMAGE], Defense(detector=theirs, rule=RULE, masks=Halves(2)))
    assert result.detections == ObjectSeeker(detector, RULE, masks=Halves(2))([IMAGE])[0]


class YoloModel:
    """As ultralytics' Model: `model` is the network, `predict` returns results with boxes."""

    def __init__(self, file=""):
        torch = pytest.importorskip("torch")
        self.model = torch.nn.Linear(2, 2)
        self.names = {0: "person", 1: "car"}
        self.fused = 0

    def fuse(self):
        self.fused += 1

    def __call__(self, images, **options):
        raise AssertionError("batches would mix the views")

    def predict(self, image, **options):
        boxes = SimpleNamespace(xyxy=np.array([[1.0, 2, 20, 30]]), conf=np.array([0.9]), cls=np.array([1.0]))
        return [SimpleNamespace(boxes=boxes)]


@pytest.fixture
def yolo():
    """A stand-in: ultralytics is AGPL, so no test installs it. Its class is found by the name of its package."""
    kind = type("YOLO", (YoloModel,), {"__module__": "ultralytics.models.yolo.model"})
    return kind()


def test_a_yolo_object_is_a_detector(yolo):
    detector = load_detector(yolo)
    assert detector.names == ("person", "car")
    assert detector([IMAGE]) == [Detections([[1, 2, 20, 30]], [0.9], [1])]
    assert detector.fingerprint.startswith("YOLO (640x640 floor=0.01 cpu")
    assert yolo.fused == 1  # before the weights are hashed
    (result,) = detect([IMAGE], yolo)
    assert len(result.detections) == 1
    before = detector.fingerprint
    yolo.model.weight.data += 1
    assert load_detector(yolo).fingerprint != before


def test_the_real_ultralytics_is_found_by_its_package():
    ultralytics = pytest.importorskip("ultralytics", reason="ultralytics is AGPL: tested where it is installed")
    yolo = ultralytics.YOLO("yolov8n.yaml")  # random weights, no download
    detector = load_detector(yolo)
    before = detector.fingerprint
    detector([IMAGE])
    assert load_detector(yolo).fingerprint == before
    assert len(detector.names) == 80


def test_a_model_of_torchvision_is_a_detector():
    try:
        from torchvision.models.detection import ssdlite320_mobilenet_v3_large
    except (ImportError, RuntimeError):
        pytest.skip("needs a torchvision that fits torch")
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    detector = load_detector(model, class_names=["background", "car", "bus"])
    assert detector.names == ("background", "car", "bus")
    assert isinstance(detector([IMAGE])[0], Detections)
    assert detector.one_by_one


def test_an_object_in_a_module_is_a_detector_of_the_command_line(tmp_path, monkeypatch, yolo):
    (tmp_path / "mine_yolo.py").write_text("model = None\n")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("mine_yolo")
    module.__file__ = str(tmp_path / "mine_yolo.py")
    module.model = yolo
    monkeypatch.setitem(sys.modules, "mine_yolo", module)
    detector = load_detector("python:mine_yolo:model")
    assert detector.one_by_one
    assert detector.unverified_reason is None  # its weights are hashed
    assert detector([IMAGE])[0].label.tolist() == [1]


def test_an_object_that_no_one_wrapped_is_named(yolo):
    wrong = lambda images: [SimpleNamespace(boxes=None) for _ in images]  # noqa: E731
    with pytest.raises(ObjectSeekerError, match=r"got SimpleNamespace.*load_detector"):
        ObjectSeeker(wrong, RULE, masks=Halves(2))([IMAGE])
