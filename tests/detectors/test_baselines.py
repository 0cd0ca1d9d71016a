"""Other people's defenses of examples/baselines: what their filters do, and that a composition keeps the contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import write_dataset

from objectseeker.core.masks import Image

BASELINES = Path(__file__).parents[2] / "examples" / "baselines"
pytestmark = pytest.mark.skipif(not BASELINES.is_dir(), reason="the examples are not part of the package")


@pytest.fixture
def filters(monkeypatch):
    monkeypatch.syspath_prepend(BASELINES)
    monkeypatch.delitem(sys.modules, "baselines", raising=False)
    import baselines  # type: ignore[import-not-found]

    return baselines.FILTERS


def smooth() -> Image:
    return np.broadcast_to(np.linspace(60, 180, 120).astype(np.uint8)[None, :, None], (90, 120, 3)).copy()


def test_gradient_smoothing_darkens_the_patch_and_leaves_the_rest(filters):
    image = smooth()
    image[30:60, 40:70] = 255 * np.random.default_rng(0).integers(0, 2, (30, 30, 3))
    filtered = filters["gradient_smoothing"](image)
    assert filtered[32:58, 42:68].mean() < 0.4 * image[32:58, 42:68].mean()
    np.testing.assert_array_equal(filtered[:, 90:], image[:, 90:])
    np.testing.assert_array_equal(filters["gradient_smoothing"](smooth()[:10, :10]), smooth()[:10, :10])


def test_blocks_overlap_as_published(filters):
    """One strong block of 15 pixels at (10, 20) of the grid of 10 is smoothed, literally computed."""
    image = np.full((60, 60, 3), 100, np.uint8)
    image[25, 16:30:2] = 255
    filtered = filters["gradient_smoothing"](image)
    values = image / 255
    across = np.diff(values, axis=1, append=values[:, -1:])
    down = np.diff(values, axis=0, append=values[-1:])
    gradient = np.sqrt(across**2 + down**2)
    gradient = (gradient - gradient.min()) / (gradient.max() - gradient.min() + 1e-7)
    mask = np.zeros(image.shape)
    for y in range(0, 46, 10):
        for x in range(0, 46, 10):
            strong = gradient[y : y + 15, x : x + 15].mean(axis=(0, 1)) > 0.1
            mask[y : y + 15, x : x + 15][..., strong] = 1
    expected = np.rint(255 * values * (1 - np.clip(2.3 * gradient * mask, 0, 1)))
    assert np.abs(filtered - expected).max() <= 1


def test_the_other_filters(filters):
    image = smooth()
    speckled = image.copy()
    speckled[10::20, 10::20] = 255
    np.testing.assert_array_equal(filters["median"](speckled)[5:-5, 5:-5], filters["median"](image)[5:-5, 5:-5])
    assert len(np.unique(filters["bit_depth"](image))) <= 8
    assert 0 < np.abs(filters["jpeg"](speckled).astype(int) - speckled).mean() < 20


@pytest.mark.parametrize(
    ("name", "kernels"), [("n_13.pth", (2, 2, 2)), ("n_26.pth", (2, 2, 2)), ("n_52.pth", (8, 4, 4))]
)
def test_nutnet_runs_with_weights_of_each_shape(filters, tmp_path, monkeypatch, name, kernels):
    """With weights of zero the autoencoder answers gray, so what is far from gray is suspicious and grayed out."""
    torch = pytest.importorskip("torch")
    channels = (3, 8, 16, 32)
    weights = {}
    for n in range(3):
        shape = (channels[n + 1], channels[n], kernels[n], kernels[n])
        weights |= {f"encoder.{2 * n}.weight": torch.zeros(shape), f"encoder.{2 * n}.bias": torch.zeros(shape[0])}
        last = 2 - n
        shape = (channels[last + 1], channels[last], kernels[last], kernels[last])
        weights |= {f"decoder.{2 * n}.weight": torch.zeros(shape), f"decoder.{2 * n}.bias": torch.zeros(shape[1])}
    torch.save(weights, tmp_path / name)
    monkeypatch.setenv("NUTNET_WEIGHTS", str(tmp_path / name))
    image = np.full((104, 208, 3), 130, np.uint8)
    image[:52, :52] = 255
    filtered = filters["nutnet"](image)
    assert (filtered[:45, :45] == 127).all()
    np.testing.assert_array_equal(filtered[60:], image[60:])


def test_a_composition_is_checked_observed_and_evaluated(tmp_path):
    """A filter inside, our masks outside: a detector like any other, from the command to the table."""
    folder = write_dataset(tmp_path, [(10, 15, 40, 30), (40, 15, 40, 30)])
    environment = os.environ | {"BASELINE_DETECTOR": "python:mine:detect", "PYTHONPATH": f"{BASELINES}:{folder}"}

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "objectseeker.cli", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    words = ["-d", "python:baselines:gradient_smoothing"]
    checked = call("check", words[1], "images/0.png")
    assert "FAIL" not in checked
    call("observe", "coco:truth.json:images", *words, "--masks", "halves:8", "--out", "run")
    found = json.loads(call("evaluate", "run", "--json"))
    assert found["undefended"]["ap50"] == 100
    assert found["defended"]["certified_recall"]["far"] > 0
