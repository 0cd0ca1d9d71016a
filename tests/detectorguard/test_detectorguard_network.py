"""The objectness network in PyTorch: what it sees, what it is trained on, and that a stopped run ends like another."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from objectseeker.detectorguard.objectness import position_count
from objectseeker.detectors.builtin.model import CLASSES, fused
from train_builtin.objectness_network import FeatureExtractor, ObjectnessNetwork

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    made = ObjectnessNetwork()
    for module in made.modules():  # statistics as after training
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return made.eval()


def test_a_position_sees_33_pixels_and_no_more(network):
    torch.manual_seed(1)
    image = torch.rand(1, 3, 121, 129)
    with torch.no_grad():
        before = network.body(image)
        assert before.shape[2:] == (position_count(121), position_count(129))
        for y, x in ((0, 0), (32, 40), (33, 39), (64, 65), (96, 95), (120, 128)):
            changed = image.clone()
            changed[:, :, y, x] += 0.5
            moved = (network.body(changed) != before).any(1)[0]
            expected = torch.zeros_like(moved)
            for i in range(moved.shape[0]):
                for j in range(moved.shape[1]):
                    expected[i, j] = 8 * i <= y < 8 * i + 33 and 8 * j <= x < 8 * j + 33
            assert (moved == expected).all()


def test_shapes_and_signs(network):
    with torch.no_grad():
        assert network(torch.rand(1, 3, 224, 744)).shape == (1, len(CLASSES) + 1, 24, 89)
        logits = network(torch.rand(2, 3, 89, 89))
    assert logits.shape == (2, len(CLASSES) + 1, 8, 8)
    assert (logits >= 0).all()
    assert 1e6 < sum(p.numel() for p in network.parameters()) < 3e6


def test_the_exported_function_is_that_of_the_network(network):
    images = torch.randint(0, 256, (1, 3, 96, 104)).float()
    with torch.no_grad():
        expected = network(images / 255)[:, : len(CLASSES)]
        found = FeatureExtractor(fused(network))(images)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-4)


# --- training ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program():
    if not (ROOT / "train_builtin").is_dir():
        pytest.skip("the training program is not part of the package")
    sys.path.insert(0, str(ROOT))
    from train_builtin import objectness

    return objectness


def targets(program, boxes, size=192):
    count = position_count(size)
    given = torch.tensor(boxes, dtype=torch.float).view(1, -1, 5)
    present = torch.ones(given.shape[:2], dtype=torch.bool)
    labels = given[..., 4].long()
    windows = program.window_labels(given[..., :4], labels, present, count - 7)[0]
    on, off = program.position_targets(given[..., :4], present, count)
    return windows, on[0], off[0]


def test_windows_show_the_object_in_their_middle(program):
    windows, on, off = targets(program, [(12, 12, 84, 84, 3)])
    assert windows[0, 0] == 3  # the window covers pixels 12.5 to 76.5
    assert windows[9, 9] == program.BACKGROUND  # 84.5 to 148.5
    assert windows[5, 5] == program.IGNORED  # 52.5 to 116.5: a quarter of it is object, its middle is not
    assert on[0, 0]
    assert not on[9, 9]  # the middle of its view is 88.5
    assert off[13, 13]
    assert not off[9, 9]  # too near to say
    assert not (on & off).any()


def test_of_several_objects_a_window_shows_the_smallest(program):
    windows, _, _ = targets(program, [(0, 0, 192, 192, 3), (20, 20, 70, 70, 5)])
    assert windows[0, 0] == 5
    assert windows[9, 9] == 3


def test_an_object_too_small_to_teach_is_neither_object_nor_background(program):
    windows, on, off = targets(program, [(36, 36, 52, 52, 3)])
    assert windows[0, 0] == program.IGNORED
    assert not on.any()
    assert not off[3, 3]


def test_votes_are_means_over_the_windows_that_cover_a_position(program):
    from objectseeker.detectorguard.objectness import window_votes

    features = np.random.default_rng(0).integers(0, 999, (12, 15, 3)).astype(np.uint16)
    windows = torch.nn.functional.avg_pool2d(torch.from_numpy(features.astype(np.float32)).permute(2, 0, 1)[None], 8, 1)
    expected = window_votes(features) / window_votes(np.ones((12, 15, 1), np.uint16))
    np.testing.assert_allclose(program.window_votes(windows)[0].numpy(), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_stopped_run_ends_like_one_that_was_left_alone(program, tmp_path, monkeypatch):
    def run(folder, *more):
        arguments = f"x --check --steps 2 --batch 2 --size 96 --processes 1 --out {folder}".split()
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        program.main()

    monkeypatch.setattr(program, "separation", lambda trainer: (0.0, 0.0))
    run(tmp_path / "whole")
    run(tmp_path / "pieces", "--stop-after", "0")
    run(tmp_path / "pieces")
    whole, pieces = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("whole", "pieces"))
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    with pytest.raises(SystemExit, match="holds a run with"):
        run(tmp_path / "pieces", "--seed", "1")
