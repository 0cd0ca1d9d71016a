"""On a GPU: whichever way the content of a view sends it, all views give the same bits. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")

from objectseeker.core.recipes import Bands, Halves
from objectseeker.core.seeker import view_rectangles
from objectseeker.demo.samples import samples
from objectseeker.detectors.builtin import load_torch
from objectseeker.detectors.gpu import ROUNDS
from objectseeker.detectors.torch_module import torch_detector

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPE = 480, 360
# What decides the kernels: precision, way of masking, compiled or not, shared stages or not.
DETECTORS = [
    (precision, mask_mode, compiled, share)
    for precision in ("float32", "float16")
    for mask_mode in ("fill", "crop")
    for compiled, share in ((False, False), (False, True), (True, True))
    if not (compiled and precision == "float32")
]


@pytest.fixture(scope="module")
def module():
    return load_torch()


@pytest.mark.parametrize(("precision", "mask_mode", "compiled", "share"), DETECTORS)
def test_a_view_does_not_depend_on_the_way_others_take(module, monkeypatch, precision, mask_mode, compiled, share):
    """Rounds of suppression too few for all views, for some, and enough.

    What an attacker can choose is which of the views that show the patch settle. The others must not change, not in
    one bit; here even those that take the other way do not.
    """
    images = [np.array(PIL.Image.open(sample.path).convert("RGB").resize(SHAPE)) for sample in samples()[:3]]
    removed = view_rectangles((Halves(4) + Bands(0.02)).masks(*SHAPE))

    def views_of(rounds):
        monkeypatch.setattr("objectseeker.detectors.gpu.ROUNDS", rounds)
        torch._dynamo.reset()
        detector = torch_detector(
            module,
            layout="decoded",
            input_size=256,
            score_floor=0.01,
            mask_mode=mask_mode,
            precision=precision,
            compiled=compiled,
            share=share,
            device="cuda",
        )
        return [detector.detect_views(image, removed, 114) for image in images]

    enough = views_of(ROUNDS)

    assert any(len(view) for views in enough for view in views)
    for rounds in (1,) if compiled else (1, 2, 3):  # compiling takes most of a minute
        assert views_of(rounds) == enough
