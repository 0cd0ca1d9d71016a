"""Features of DetectorGuard: a network's view, what is stored in a run, and a real patch on real pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detectorguard_network import write_network

from objectseeker import Detections, Halves, ObjectSeekerError, Patch
from objectseeker.detectorguard.certification import certify_guarded
from objectseeker.detectorguard.features import (
    FOLDER,
    DetectorGuard,
    ObjectnessFeatures,
    add_features,
    describe,
    read_features,
)
from objectseeker.detectorguard.objectness import Grid

onnx = pytest.importorskip("onnx")

from observe_job import Spots, make_dataset

from objectseeker.datasets import open_dataset
from objectseeker.runs.observe import observe
from objectseeker.runs.run import open_run

SOURCE = Path(__file__).parents[2] / "src" / "objectseeker" / "detectorguard" / "objectness.onnx"  # not in wheels
SIZE = (152, 136)


@pytest.fixture
def network(tmp_path) -> ObjectnessFeatures:
    return ObjectnessFeatures(write_network(tmp_path / "network.onnx"), input_size=SIZE)


def available_networks(tmp_path) -> list[ObjectnessFeatures]:
    """The small one of this file, and the one of the package where it is installed."""
    made = [ObjectnessFeatures(write_network(tmp_path / "network.onnx"), input_size=SIZE)]
    return made + ([ObjectnessFeatures(SOURCE, input_size=SIZE)] if SOURCE.is_file() else [])


def test_a_patch_changes_only_the_features_it_reaches(tmp_path):
    rng = np.random.default_rng(0)
    for network in available_networks(tmp_path):
        for size in ((200, 150), (61, 90)):
            image = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
            grid = Grid.for_image(size, SIZE)
            before = network(image)
            assert before.shape[:2] == grid.shape
            for _ in range(6):
                w, h = rng.integers(4, 40, 2)
                x, y = rng.integers(0, size[0] - 3), rng.integers(0, size[1] - 3)
                patched = image.copy()
                patched[y : y + h, x : x + w] = rng.integers(0, 256, patched[y : y + h, x : x + w].shape)
                changed = (network(patched) != before).any(axis=2)
                (left, right), (top, bottom) = (
                    grid.reached_positions(axis, np.array([start]), np.array([start + length]))[0]
                    for axis, start, length in ((0, x, w), (1, y, h))
                )
                assert changed[top:bottom, left:right].any() == (top < bottom and left < right)
                changed[top:bottom, left:right] = False
                assert not changed.any()


def test_a_certified_object_survives_real_patches(network):
    """Pixels, resizing, network, map, boxes and alert together: the base detector sees nothing at all."""
    size = (160, 120)
    image = np.full((120, 160, 3), 40, np.uint8)
    image[20:100, 30:140] = 220
    truth = Detections([[30, 20, 140, 100]], [1], [0])
    grid = Grid.for_image(size, SIZE)
    rng = np.random.default_rng(0)
    verdicts = set()
    for threshold in (64 * 30, 64 * 60, 64 * 90, 64 * 150):
        guard = DetectorGuard(
            lambda images: [Detections.empty()] * len(images), network, base_threshold=0.1, threshold=threshold
        )
        for where in ("over", "close", "far"):
            patch = Patch(0.02, 1.0, where)
            certified = bool(certify_guarded(grid, network(image), truth, patch, threshold=threshold).certified[0, 0])
            verdicts.add(certified)
            if not certified:
                continue
            w, h = patch.size(*size)
            for x, y in ((70, 50), (25, 15), (130, 90)) if where == "over" else ((5, 2), (2, 106)):
                for value in (0, 255, None):
                    attacked = image.copy()
                    part = attacked[y : y + h, x : x + w]
                    part[:] = rng.integers(0, 256, part.shape) if value is None else value
                    assert guard([attacked])[0].alert
    assert verdicts == {True, False}


def test_boxes_are_output_unless_there_is_an_alert(network):
    image = np.full((120, 160, 3), 30, np.uint8)
    image[20:100, 30:140] = 220
    base = Detections([[25, 15, 145, 105], [0, 0, 9, 9]], [0.6, 0.2], [0, 0])
    guard = DetectorGuard(lambda images: [base] * len(images), network, base_threshold=0.5, threshold=64 * 60)
    (found,) = guard([image])
    assert not found.alert
    assert found.detections == base[:1]
    blind = DetectorGuard(guard.detector, network, base_threshold=0.7, threshold=64 * 60)
    assert blind([image])[0].alert
    assert len(blind([image])[0].detections) == 0
    with pytest.raises(ObjectSeekerError, match="must be an integer"):
        DetectorGuard(guard.detector, network, base_threshold=0.5, threshold=1.5)


@pytest.fixture
def run(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data", 4))
    return observe(dataset, Spots(), out=tmp_path / "run", masks=Halves(2))


def test_features_are_added_once_and_read_back(run, network):
    assert add_features(run, network) == 4
    before = {file.name: file.read_bytes() for file in (run.folder / FOLDER).iterdir()}
    assert add_features(run, network) == 0
    stored = list(read_features(run))
    (run.folder / FOLDER / "000002.features").unlink()
    told = []
    assert add_features(run, network, on_progress=lambda done, total: told.append((done, total))) == 1
    assert told == [(3, 4), (4, 4)]
    assert {file.name: file.read_bytes() for file in (run.folder / FOLDER).iterdir()} == before
    assert describe(run)["input"] == list(SIZE)
    some = list(read_features(run, np.array([3, 1])))
    assert all((a == stored[i]).all() for a, i in zip(some, (3, 1), strict=True))
    from objectseeker.files.images import load_image

    for image, features in zip(open_run(run.folder).images(), stored, strict=True):
        assert (network(load_image(image.path)) == features).all()


def test_missing_features_are_added(run, network):
    add_features(run, network)
    stored = [features.tolist() for features in read_features(run)]
    assert len(stored) == 4
    add_features(run)  # complete, so that no network is needed
    (run.folder / FOLDER / "000002.features").unlink()
    add_features(run, network)
    assert [features.tolist() for features in read_features(run)] == stored


def test_features_of_another_network_are_refused(run, network, tmp_path):
    add_features(run, network)
    other = ObjectnessFeatures(write_network(tmp_path / "other.onnx", seed=1), input_size=SIZE)
    other.description["network"] = network.description["network"]
    with pytest.raises(ObjectSeekerError, match="sha256"):
        add_features(run, other)
    larger = ObjectnessFeatures(tmp_path / "network.onnx", input_size=(160, 136))
    with pytest.raises(ObjectSeekerError, match="input"):
        add_features(run, larger)


def test_missing_damaged_and_foreign_features_are_told(run, network):
    with pytest.raises(ObjectSeekerError, match="no DetectorGuard features"):
        list(read_features(run))
    add_features(run, network)
    folder = run.folder / FOLDER
    one, two, description = (folder / name for name in ("000001.features", "000002.features", "features.json"))
    content, other = one.read_bytes(), two.read_bytes()
    for damaged in (content[:-30], b"", content[:200] + b"?" + content[201:], other, *flipped(content, 60)):
        one.write_bytes(damaged)
        with pytest.raises(ObjectSeekerError, match=r"000001\.features is damaged or belongs to another image"):
            list(read_features(run))
    one.unlink()
    with pytest.raises(ObjectSeekerError, match=r"000001\.features .*run evaluate --measure detectorguard again"):
        list(read_features(run))
    one.write_bytes(content)
    before = [features.tolist() for features in read_features(run)]
    text = description.read_bytes()
    for damaged in flipped(text, 60):
        description.write_bytes(damaged)
        if damaged.split() == text.split():  # only white space was hit
            assert [features.tolist() for features in read_features(run)] == before
            continue
        with pytest.raises(ObjectSeekerError, match=r"features\.json is damaged"):
            list(read_features(run))
    for broken in ("[]", "{}", "7", "[" * 20_000, '{"checksum": 1}'):
        description.write_text(broken)
        for use in (lambda: list(read_features(run)), lambda: add_features(run, network)):
            with pytest.raises(ObjectSeekerError, match=r"features\.json is damaged"):
                use()


def flipped(content: bytes, count: int):
    """The content with one bit turned, at places all over it."""
    rng = np.random.default_rng(0)
    for place, bit in zip(rng.integers(0, len(content), count), rng.integers(0, 8, count), strict=True):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        yield bytes(changed)


def test_features_of_another_run_or_image_are_refused(run, network, tmp_path):
    """Files that are whole, but not where they belong."""
    add_features(run, network)
    data = open_dataset(make_dataset(tmp_path / "data", 4))
    other = observe(data, Spots(), out=tmp_path / "other", masks=Halves(3))
    add_features(other, network)
    mine, theirs = run.folder / FOLDER, other.folder / FOLDER
    (mine / "000001.features").write_bytes((theirs / "000001.features").read_bytes())
    with pytest.raises(ObjectSeekerError, match=r"000001\.features is damaged or belongs to another"):
        list(read_features(run))
    (mine / "features.json").write_bytes((theirs / "features.json").read_bytes())
    with pytest.raises(ObjectSeekerError, match="another run"):
        list(read_features(run))


def test_a_network_with_another_view_is_refused(tmp_path):
    network = ObjectnessFeatures(write_network(tmp_path / "wide.onnx", kernel=65), input_size=SIZE)
    with pytest.raises(ObjectSeekerError, match="not an objectness network"):
        network(np.zeros((50, 50, 3), np.uint8))
    with pytest.raises(ObjectSeekerError, match="at least 89"):
        ObjectnessFeatures(tmp_path / "wide.onnx", input_size=(64, 416))


def test_a_network_that_is_not_there(tmp_path):
    with pytest.raises(ObjectSeekerError, match="there is no file"):
        ObjectnessFeatures(tmp_path / "none.onnx")
