"""`load`: what a SPEC may name, and what it says when it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from detector_images import scene

from objectseeker import Defense
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import fill_rectangles
from objectseeker.core.recipes import Halves
from objectseeker.core.seeker import ViewDetector
from objectseeker.detectors import SPECS, load_detector, unverified_reason
from objectseeker.detectors.model_zoos import ultralytics_detector
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.detectors.network.fingerprint import instruction_set
from objectseeker.errors import ObjectSeekerError


@pytest.fixture(scope="module")
def builtin():
    return load_detector("builtin", batch_size=2, input_size=128)


def test_the_builtin_detector_is_the_packaged_file(builtin):
    assert builtin.names == VOC_20
    settings = f"decoded,fit=max-area,nms=0.55,every_class=True 128x128 crop batch=2 floor=0.01 cpu {instruction_set()}"
    assert builtin.fingerprint.startswith(f"seeker.onnx ({settings}) sha256:")
    assert load_detector("builtin").input_size == (416, 416)


def test_nothing_drawn_under_a_mask_changes_a_box_of_the_builtin_detector(builtin):
    image, removed = scene(170, 110, 1), Halves(2).masks(170, 110).removed
    before = load_detector("builtin", batch_size=2, input_size=128, score_floor=0.0).detect_views(image, removed, 114)
    assert all(len(found) for found in before)

    for number in (0, 3, 5):
        x1, y1, x2, y2 = removed[number, 0]
        attacked = image.copy()
        attacked[y1:y2, x1:x2] = np.random.default_rng(number).integers(0, 256, (y2 - y1, x2 - x1, 3))
        after = load_detector("builtin", batch_size=2, input_size=128, score_floor=0.0).detect_views(
            attacked, removed, 114
        )
        assert after[number] == before[number]
        assert after != before


def test_at_scale_one_network_masks_are_raw_masks(builtin):
    """Without a resize the support of a pixel is itself, so both ways of masking are the same input."""
    detector = load_detector(
        "builtin", layout="decoded", mask_mode="fill", batch_size=2, input_size=128, score_floor=0.0
    )
    image, removed = scene(128, 96, 2), Halves(2).masks(128, 96).removed

    assert detector.detect_views(image, removed, 114) == detector(
        [fill_rectangles(image, mask, 114) for mask in removed]
    )


@pytest.mark.parametrize("spec", ["", "onnx", "onnx:", "builtin:x", "yolo:file.pt", "bultin"])
def test_an_unknown_spec_is_refused_with_the_known_ones(spec):
    with pytest.raises(ObjectSeekerError, match=r"unknown detector 'models/a\.onnx': write onnx:models/a\.onnx$"):
        load_detector("models/a.onnx")
    with pytest.raises(ObjectSeekerError, match=r"unknown detector .*: write one of builtin, onnx:FILE"):
        load_detector(spec)


def test_an_option_a_detector_does_not_have_is_refused():
    with pytest.raises(ObjectSeekerError, match="python detectors have no option layout: got 'yolox': omit it"):
        load_detector("python:module:function", layout="yolox")


def test_an_option_that_no_detector_has_is_refused():
    with pytest.raises(ObjectSeekerError, match="builtin detectors have no option color: got 'gray': omit it"):
        load_detector("builtin", color="gray")


def test_an_option_that_is_none_is_left_out(builtin):
    assert (
        load_detector("builtin", batch_size=2, input_size=128, layout=None, precision=None).fingerprint
        == builtin.fingerprint
    )


def test_the_specs_are_those_of_the_kinds_there_are():
    assert SPECS == (
        "builtin",
        "onnx:FILE",
        "torchvision:NAME",
        "transformers:NAME",
        "ultralytics:FILE",
        "python:MODULE:FUNCTION",
    )


def test_half_precision_on_the_cpu_is_refused():
    with pytest.raises(ObjectSeekerError, match="precision float16 needs torch and a GPU, or device"):
        load_detector("builtin", precision="float16")


@pytest.mark.parametrize(
    ("spec", "missing", "advice"),
    [
        ("torchvision:fasterrcnn_resnet50_fpn", "torch", r"pip install 'objectseeker\[torchvision\]'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision", r"pip install 'objectseeker\[torchvision\]'"),
        ("transformers:some/detr", "transformers", r"pip install 'objectseeker\[transformers\]'"),
        ("ultralytics:{file}", "ultralytics", "pip install ultralytics"),
    ],
)
def test_a_missing_extra_says_what_to_install(spec, missing, advice, tmp_path, monkeypatch):
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    monkeypatch.setitem(sys.modules, missing, None)  # makes the import fail

    with pytest.raises(ObjectSeekerError, match=advice):
        load_detector(spec.format(file=weights))


# --- python: -----------------------------------------------------------------------------------------------------

OWN_DETECTOR = """
import numpy as np
from objectseeker.core import boxes

def corner(images):
    return [boxes.Detections([(0, 0, 5, 5)], [image[0, 0, 0] / 255], [1]) for image in images]

corner.names = ("nothing", "corner")

class Viewing:
    def __call__(self, images):
        return corner(images)

    def detect_views(self, image, removed, value):
        return [boxes.Detections.empty() for _ in removed]

viewing = Viewing()
not_callable = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_detector_module.py").write_text(OWN_DETECTOR)
    (tmp_path / "broken_detector_module.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path / "own_detector_module.py"
    sys.modules.pop("own_detector_module", None)


def test_a_python_callable_is_a_detector(own_module):
    detector = load_detector("python:own_detector_module:corner")

    assert detector([np.full((9, 9, 3), 51, np.uint8)]) == [Detections([(0, 0, 5, 5)], [0.2], [1])]
    assert detector.names == ("nothing", "corner")
    assert not isinstance(detector, ViewDetector)
    fingerprint = detector.fingerprint
    sys.modules.pop("own_detector_module")
    own_module.write_text(OWN_DETECTOR + "\n# changed\n")
    assert load_detector("python:own_detector_module:corner").fingerprint != fingerprint


def test_a_detector_that_makes_no_batches_takes_the_option_all_the_same(own_module):
    """It is the batch of the caller then; a defense has one whatever its detector."""
    spec = "python:own_detector_module:corner"
    assert load_detector(spec, batch_size=4).fingerprint == load_detector(spec).fingerprint


def test_a_python_object_may_mask_mode_itself(own_module):
    detector = load_detector("python:own_detector_module:viewing")

    assert isinstance(detector, ViewDetector)
    assert detector.names == ()
    views = detector.detect_views(np.zeros((9, 9, 3), np.uint8), Halves(1).masks(9, 9).removed, 114)
    assert views == [Detections.empty()] * 4


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("own_detector_module", "write python:MODULE:FUNCTION"),
        ("own_detector_module:absent", "has no callable named 'absent'"),
        ("own_detector_module:not_callable", "has no callable named 'not_callable'"),
        ("module_that_is_absent:f", "importing module_that_is_absent failed: ModuleNotFoundError"),
        ("broken_detector_module:f", "importing broken_detector_module failed: .*no_such_module_anywhere"),
        ("sys:exit", "sys has no source file"),
    ],
)
def test_a_python_target_that_cannot_be_used_is_named(target, message, own_module):
    with pytest.raises(ObjectSeekerError, match=message):
        load_detector(f"python:{target}")


# --- ultralytics: ------------------------------------------------------------------------------------------------


class UltralyticsModel:
    """Answers as ultralytics does: for a BGR image, one result that holds boxes."""

    names = {0: "person", 2: "car"}  # noqa: RUF012

    def __init__(self, file: str = "") -> None:
        self.file = file

    def predict(self, image: np.ndarray, **options: object) -> list[SimpleNamespace]:
        assert image.flags["C_CONTIGUOUS"]
        assert options["imgsz"] == [640, 640]
        blue, _, red = image[0, 0] / 255
        xyxy = np.array([(-5.0, 2.0, 8.0, 30.0), (1.0, 1.0, 4.0, 4.0), (1.0, 1.0, 4.0, 4.0)], np.float32)
        conf = np.array([red, blue, 0.001], np.float32)
        return [SimpleNamespace(boxes=SimpleNamespace(xyxy=xyxy, conf=conf, cls=np.array([2.0, 0.0, 0.0])))]


def test_an_ultralytics_model_is_given_bgr_and_its_boxes_are_clipped(tmp_path):
    weights = tmp_path / "model.pt"
    weights.write_bytes(b"weights")
    detector = ultralytics_detector(UltralyticsModel(), weights)

    (found,) = detector([np.full((20, 10, 3), (204, 0, 51), np.uint8)])

    assert found.xyxy.tolist() == [[0, 2, 8, 20], [1, 1, 4, 4]]
    assert found.score == pytest.approx([0.8, 0.2])
    assert found.label.tolist() == [2, 0]
    assert detector.names == ("person", "class_1", "car")
    assert detector.fingerprint.startswith(f"model.pt (640x640 floor=0.01 cpu {instruction_set()}) sha256:")
    assert not isinstance(detector, ViewDetector)


def test_ultralytics_is_loaded_by_file(tmp_path, monkeypatch):
    module = ModuleType("ultralytics")
    module.YOLO = UltralyticsModel
    monkeypatch.setitem(sys.modules, "ultralytics", module)
    weights = tmp_path / "model.pt"
    weights.write_bytes(b"weights")

    assert load_detector(f"ultralytics:{weights}", score_floor=0.5).names[2] == "car"
    with pytest.raises(ObjectSeekerError, match=r"there is no file absent\.pt"):
        load_detector("ultralytics:absent.pt")


def test_loading_no_framework_imports_none():
    """A core install must stay light: the detectors package itself pulls in no framework."""
    import subprocess

    code = (
        "import objectseeker.detectors, sys; print([m for m in ('torch', 'onnxruntime', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "[]"


# --- callables in memory -----------------------------------------------------------------------------------------


class InMemory:
    names = ("thing",)

    def __call__(self, images):
        return [Detections([(0, 0, 5, 5)], [0.9], [0]) for _ in images]


def test_a_callable_in_memory_is_a_detector():
    detector = load_detector(InMemory(), class_names=["other"], batch_size=4)

    assert detector([np.zeros((9, 9, 3), np.uint8)]) == [Detections([(0, 0, 5, 5)], [0.9], [0])]
    assert (detector.names, load_detector(InMemory()).names) == (("other",), ("thing",))
    assert detector.fingerprint.startswith(f"{__name__}.InMemory (cpu")
    assert "it was passed in memory: give it an attribute fingerprint" in unverified_reason(detector)


def test_a_callable_in_memory_with_a_fingerprint_of_its_own_is_used_unchanged():
    own = InMemory()
    own.fingerprint = "release 7"

    assert load_detector(own) is own
    renamed = load_detector(own, class_names=["other"])
    assert "(fingerprint release 7, cpu" in renamed.fingerprint
    assert unverified_reason(renamed) is None


def test_a_callable_in_memory_that_masks_its_own_input_still_does():
    class Viewing(InMemory):
        def detect_views(self, image, removed, value):
            return [Detections.empty() for _ in removed]

    assert isinstance(load_detector(Viewing()), ViewDetector)
    assert not isinstance(load_detector(InMemory()), ViewDetector)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (7, {}, "a detector must be a SPEC, a callable or a Defense: got 7"),
        (InMemory(), {"device": "cuda"}, "a callable has no option device: got 'cuda': omit it"),
    ],
)
def test_a_source_that_is_no_detector_is_an_error(source, options, message):
    with pytest.raises(ObjectSeekerError, match=message):
        load_detector(source, **options)


def test_a_defense_is_a_detector_with_its_options():
    detector = load_detector(Defense.for_detector("builtin", input_size=96))
    assert detector.fingerprint == load_detector("builtin", input_size=96).fingerprint
    with pytest.raises(ObjectSeekerError, match=r"a defense has all options .* no option input_size: got 96"):
        load_detector(Defense.for_detector("builtin"), input_size=96)


def test_a_defense_may_have_a_callable_but_cannot_be_saved_then(tmp_path):
    defense = Defense.for_detector(InMemory(), masks=Halves(2))

    assert len(defense.build()([np.zeros((9, 9, 3), np.uint8)])[0]) == 1
    assert defense.to_dict()["detector"] == f"callable:{__name__}.InMemory"
    assert load_detector(defense).names == ("thing",)
    assert defense.sha256 == Defense.for_detector(InMemory(), masks=Halves(2)).sha256
    with pytest.raises(ObjectSeekerError, match="a defense with a callable cannot be saved: got callable:"):
        defense.save(tmp_path / "defense.json")
    with pytest.raises(ObjectSeekerError, match="detector must be a SPEC or a callable: got 7"):
        Defense.for_detector(7)
