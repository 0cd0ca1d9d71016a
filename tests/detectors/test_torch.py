"""Adapters that need PyTorch, on small modules with random weights and on objects that answer as the libraries do."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from detector_images import scene
from tiny_transformers import tiny_yolos

from objectseeker import Defense
from objectseeker.attack.whitebox import WhiteBox
from objectseeker.core.boxes import iou
from objectseeker.core.recipes import Halves
from objectseeker.core.seeker import ViewDetector
from objectseeker.detectors import load_detector
from objectseeker.detectors.model_zoos import torchvision_detector
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.detectors.transformers import transformers_detector
from objectseeker.errors import ObjectSeekerError


class Corner(torch.nn.Module):  # type: ignore[name-defined]
    """One box; class c scores what channel c shows at the top left. Batch norm would mix views in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3, eps=0.0)
        self.box = torch.nn.Parameter(torch.tensor([16.0, 8.0, 48.0, 24.0]))

    def forward(self, images):
        scores = self.norm(images)[:, :, 0, 0] / 255
        return self.box.expand(len(images), 1, 4), scores[:, None]


def test_a_module_is_a_detector_that_masks_by_itself():
    detector = torch_detector(Corner(), names=["red", "green", "blue"], input_size=64, batch_size=2)
    image = np.full((100, 200, 3), (20, 200, 40), np.uint8)

    untouched, left, right = detector.detect_views(
        image, np.array([(0, 0, 0, 0), (0, 0, 30, 100), (100, 0, 200, 100)]), 114
    )

    np.testing.assert_allclose(untouched.xyxy, [(50, 25, 150, 75)], atol=1e-4)
    assert (untouched.label[0], left.label[0]) == (1, 0)
    assert untouched.score[0] == pytest.approx(200 / 255, abs=1e-6)
    assert left.score[0] == pytest.approx(114 / 255, abs=1e-6)
    assert right == untouched == detector([image])[0]
    assert isinstance(detector, ViewDetector)
    assert detector.names == ("red", "green", "blue")


def test_the_output_of_a_module_may_be_decoded():
    class Other(Corner):
        def forward(self, images):
            boxes, scores = super().forward(images)
            return {"scores": scores, "boxes": boxes}

    detector = torch_detector(Other(), decode=lambda found: (found["boxes"], found["scores"]), input_size=64)

    assert detector([np.full((64, 64, 3), 51, np.uint8)])[0].score == pytest.approx([0.2])


def test_an_image_shown_whole_may_be_read_with_every_class():
    detector = torch_detector(Corner(), layout="decoded,every_class=yes", input_size=64, batch_size=2)
    image = np.full((100, 200, 3), (20, 200, 40), np.uint8)

    untouched, right = detector.detect_views(image, np.array([(0, 0, 0, 0), (100, 0, 200, 100)]), 114)

    assert untouched.label.tolist() == [1, 2, 0]
    assert untouched == detector([image])[0]
    assert right == untouched[:1]


def test_what_a_module_is_set_to_is_part_of_its_identity():
    one, other = Corner(), Corner()
    other.load_state_dict(one.state_dict())
    assert torch_detector(one).fingerprint == torch_detector(other).fingerprint
    other.norm.eps = 0.5  # no weight, and other boxes
    assert torch_detector(one).fingerprint != torch_detector(other).fingerprint


def test_the_identity_of_a_module_follows_its_weights():
    first, second = Corner(), Corner()
    assert torch_detector(first).fingerprint == torch_detector(second).fingerprint
    with torch.no_grad():
        second.box += 1
    assert torch_detector(first).fingerprint != torch_detector(second).fingerprint


def test_a_constant_of_one_element_counts_whatever_its_stride_is():
    modules = [torch.nn.Conv2d(1, 1, 1) for _ in range(3)]
    modules[1].load_state_dict(modules[0].state_dict())
    modules[2].load_state_dict(modules[0].state_dict())
    for module, value in zip(modules, (1.0, 1.0, 2.0), strict=True):
        module.register_buffer("constant", torch.tensor(value).expand(1))
    one, same, other = (torch_detector(module).fingerprint for module in modules)
    assert one == same != other


def test_gradients_are_computed_where_the_detector_is():
    white = WhiteBox.from_detector(replace(torch_detector(Corner()), device="cuda:1"))
    assert white.device == "cuda:1"


def test_a_setting_of_a_module_is_changed_by_replacing_it():
    detector = torch_detector(Corner(), input_size=64, batch_size=2)
    image, removed = scene(200, 100, 3), Halves(1).masks(200, 100).removed

    cropped = replace(detector, mask_mode="crop")

    assert type(detector) is type(cropped) is NetworkDetector
    expected = torch_detector(Corner(), input_size=64, batch_size=2, mask_mode="crop")
    assert cropped.detect_views(image, removed, 114) == expected.detect_views(image, removed, 114)
    assert cropped.predict is detector.predict


def test_a_module_shows_its_gradients():
    images = torch.full((2, 3, 64, 64), 51.0, requires_grad=True)

    boxes, scores = torch_detector(Corner(), input_size=64).predict(images)
    scores.sum().backward()

    assert (boxes.shape, scores.shape) == ((2, 1, 4), (2, 1, 3))
    assert float(images.grad[0, 0, 0, 0]) == pytest.approx(1 / 255)
    assert load_detector("builtin", input_size=64).predict is None


def test_an_option_that_is_misspelt_is_refused():
    with pytest.raises(TypeError, match="bach"):
        torch_detector(Corner(), bach=2)
    with pytest.raises(ObjectSeekerError, match="batch_size must be at least 1: got 0"):
        torch_detector(Corner(), batch_size=0)


def test_a_module_has_only_one_layout():
    with pytest.raises(ObjectSeekerError, match="a torch module has layout decoded: got 'yolox'"):
        torch_detector(Corner(), layout="yolox")


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ObjectSeekerError, match="torch cannot use device 'no such device', try cpu"):
        torch_detector(Corner(), device="no such device")


def test_the_builtin_detector_is_the_same_in_torch_and_in_onnx():
    weights = pytest.importorskip("objectseeker.detectors.builtin")
    pytest.importorskip("onnx")
    options = {"layout": "decoded,fit=max-area,every_class=yes", "input_size": 128, "score_floor": 0.0, "batch_size": 2}
    in_torch = torch_detector(weights.load_torch(), names=VOC_20, **options)
    in_onnx = load_detector("builtin", mask_mode="fill", **options)
    image, removed = scene(170, 110, 1), Halves(1).masks(170, 110).removed

    views = zip(in_torch.detect_views(image, removed, 114), in_onnx.detect_views(image, removed, 114), strict=True)
    for ours, theirs in views:
        strongest = ours.score[:5]
        assert strongest == pytest.approx(theirs.score[:5], abs=1e-4)
        assert (iou(ours.xyxy[:1], theirs.xyxy[:1]) > 0.99).all()


# --- torchvision -------------------------------------------------------------------------------------------------


class TorchvisionModel(torch.nn.Module):  # type: ignore[name-defined]
    """Answers as torchvision's detectors do."""

    def forward(self, images):
        return [
            {
                "boxes": torch.tensor([(1.0, 2.0, 500.0, 9.0), (0.0, 0.0, 3.0, 3.0)]),
                "scores": torch.stack([image[0].mean(), torch.tensor(0.001)]),
                "labels": torch.tensor([3, 1]),
            }
            for image in images
        ]


def test_a_torchvision_model_is_given_rgb_within_one():
    detector = torchvision_detector(TorchvisionModel(), names=["background", "a", "b", "c"])

    (found,) = detector([np.full((10, 20, 3), (51, 0, 0), np.uint8)])

    assert found.xyxy.tolist() == [[1, 2, 20, 9]]
    assert found.score == pytest.approx([0.2])
    assert found.label.tolist() == [3]
    assert not isinstance(detector, ViewDetector)


def test_torchvision_models_are_found_by_name(monkeypatch):
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(meta={"categories": ["__background__", "person"]}))
    module = ModuleType("torchvision")
    module.models = SimpleNamespace(
        detection=None,
        list_models=lambda module: ["ssd"],
        get_model_weights=lambda name: weights,
        get_model=lambda name, weights: TorchvisionModel(),
    )
    monkeypatch.setitem(sys.modules, "torchvision", module)

    assert load_detector("torchvision:ssd").names == ("__background__", "person")
    with pytest.raises(ObjectSeekerError, match="torchvision has no detector 'resnet': choose one of ssd"):
        load_detector("torchvision:resnet")


class Head(torch.nn.Module):  # type: ignore[name-defined]
    """Answers as torchvision's detectors do; like theirs, its last layer has three rows for every class."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.cls = torch.nn.Linear(4, 3 * num_classes)
        self.norm = torch.nn.BatchNorm1d(4)

    forward = TorchvisionModel.forward


@pytest.fixture
def heads(monkeypatch, tmp_path):
    """torchvision as far as weights of one's own need it, in a folder to keep these in."""

    def get_model(name, *, weights, weights_backbone="", num_classes=91):
        if weights is not None:
            raise URLError("no connection")
        return Head(num_classes)

    default = SimpleNamespace(meta={"categories": ["__background__", "person"]}, url="https://x/head.pth")
    module = ModuleType("torchvision")
    module.models = SimpleNamespace(
        detection=None,
        list_models=lambda module: ["head"],
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=default),
        get_model=get_model,
    )
    monkeypatch.setitem(sys.modules, "torchvision", module)
    monkeypatch.chdir(tmp_path)


def test_a_torchvision_model_takes_weights_of_ones_own(heads, caplog):
    """The number of classes comes from the weights; a training program's checkpoint is as good as a state dict."""
    own = Head(4)
    torch.save(own.state_dict(), "own.pt")
    frozen = {f"module.{key}": value for key, value in own.state_dict().items() if "tracked" not in key}
    torch.save({"model": frozen, "epoch": 3, "args": Namespace(lr=0.1)}, "checkpoint.pt")
    detector = load_detector("torchvision:head,weights=own.pt")
    assert detector.names == ("class_0", "class_1", "class_2", "class_3")
    assert detector.fingerprint == torchvision_detector(own).fingerprint
    named = load_detector("torchvision:head,weights=checkpoint.pt", class_names=["background", "a", "b", "c"])
    assert named.fingerprint == detector.fingerprint
    assert named([np.full((10, 20, 3), (51, 0, 0), np.uint8)])[0].label.tolist() == [3]
    torch.save(Head(91).state_dict(), "coco.pt")
    assert load_detector("torchvision:head,weights=coco.pt").names[1] == "person"
    assert "COCO's are assumed" in caplog.text


def test_weights_that_do_not_fit_are_refused_in_one_sentence(heads):
    own = Head(4)
    torch.save(own.state_dict(), "own.pt")
    with pytest.raises(ObjectSeekerError, match=r"own\.pt has 4 classes, including the background .*: got 1 names"):
        load_detector("torchvision:head,weights=own.pt", class_names=["a"])
    with pytest.raises(ObjectSeekerError, match=r"there is no file absent\.pt"):
        load_detector("torchvision:head,weights=absent.pt")
    torch.save(own, "pickled.pt")  # code, not only weights
    Path("junk.pt").write_bytes(b"junk")
    for file in ("pickled.pt", "junk.pt"):
        with pytest.raises(ObjectSeekerError, match=rf"cannot read {file} as weights: write it with"):
            load_detector(f"torchvision:head,weights={file}")
    torch.save([1, 2], "list.pt")
    with pytest.raises(ObjectSeekerError, match=r"list\.pt does not contain weights by name"):
        load_detector("torchvision:head,weights=list.pt")
    for change, problem in (
        ({"cls.weight": torch.ones(13, 4)}, "they lack the classification layer"),
        ({"body.weight": torch.ones(5, 4)}, "size mismatch for body.weight"),
        ({"more": torch.ones(1)}, "0 are missing and 1 unknown, such as more"),
    ):
        torch.save(own.state_dict() | change, "other.pt")
        with pytest.raises(ObjectSeekerError, match=rf"do not fit torchvision's head: .*{problem}"):
            load_detector("torchvision:head,weights=other.pt")


def test_without_a_connection_torchvision_says_what_to_do(heads):
    with pytest.raises(
        ObjectSeekerError, match=r"cannot download the weights of .*: download https://x/head\.pth .*weights=FILE"
    ):
        load_detector("torchvision:head")


def test_a_defense_finds_the_weights_from_where_it_lies(heads, tmp_path, monkeypatch):
    Defense.for_detector("torchvision:head,weights=own.pt").save("release/defense.json")
    assert '"torchvision:head,weights=../own.pt"' in Path("release/defense.json").read_text()
    monkeypatch.chdir(tmp_path / "release")
    loaded = Defense.load("defense.json")
    assert loaded.detector == "torchvision:head,weights=../own.pt"
    assert loaded.sha256 == Defense.for_detector("torchvision:head,weights=elsewhere/own.pt").sha256
    assert loaded.sha256 != Defense.for_detector("torchvision:head").sha256


# --- transformers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def yolos():
    return tiny_yolos(("person", "car", "dog"))


def test_a_transformers_model_finds_boxes_inside_the_image(yolos):
    detector = transformers_detector(*yolos)
    images = [scene(90, 60, 1), scene(33, 70, 2)]

    together = detector(images)

    assert detector.names == ("person", "car", "dog")
    assert [len(found) for found in together] == [5, 5]
    for image, found in zip(images, together, strict=True):
        height, width = image.shape[:2]
        assert (found.xyxy >= 0).all()
        assert (found.xyxy[:, 2] <= width).all()
        assert (found.xyxy[:, 3] <= height).all()
    assert together[1] == detector(images[1:])[0]
    assert not isinstance(detector, ViewDetector)


def test_a_transformers_model_is_loaded_from_a_folder(yolos, tmp_path, capsys):
    model, processor = yolos
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    capsys.readouterr()

    loaded = load_detector(f"transformers:{tmp_path}")

    assert capsys.readouterr() == ("", "")
    assert loaded.fingerprint == transformers_detector(model, processor).fingerprint
    assert loaded([scene(90, 60, 1)]) == transformers_detector(model, processor)([scene(90, 60, 1)])


def test_a_folder_that_holds_no_transformers_model_is_named(yolos, tmp_path):
    with pytest.raises(ObjectSeekerError, match="transformers cannot load an object detector from"):
        load_detector(f"transformers:{tmp_path}")


def test_without_a_connection_transformers_says_what_to_do(yolos, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(name, timeout):
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr(hub, "model_info", unreachable)
    with pytest.raises(
        ObjectSeekerError, match=r"'owner/detr': there is no such folder.*use transformers:DIR"
    ) as rejected:
        load_detector("transformers:owner/detr")
    assert "Errno" not in str(rejected.value)
