"""Views that share their first stages: the same features as computed one by one, and never a removed pixel."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cases import pairs
from detector_images import scene
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker.core.recipes import Halves
from objectseeker.detectors.builtin.model import BuiltinDetector, BuiltinNetwork, Predictor, fused, receptive_field_of
from objectseeker.detectors.gpu import DeviceViews, gather_cells
from objectseeker.detectors.gpu.batch_plan import ReceptiveField, levels, plan_batches, split, split_lines
from objectseeker.detectors.network.layouts import LAYOUTS
from objectseeker.detectors.network.preprocess import place, plan_views
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.errors import ObjectSeekerError


class Toy:
    """Two stages of convolutions that shrink by 4 and by 2; the rest is not used."""

    def __init__(self, leak: float = 0.0) -> None:
        torch.manual_seed(0)
        sides = [[(3, 4, 3, 2), (4, 4, 3, 2), (4, 4, 3, 1)], [(4, 5, 3, 2), (5, 5, 1, 1), (5, 5, 3, 1)]]
        self.stages = [
            torch.nn.Sequential(*(torch.nn.Conv2d(i, o, k, s, k // 2) for i, o, k, s in stage)).double().eval()
            for stage in sides
        ]
        self.leak = leak

    @property
    def receptive_fields(self) -> tuple[ReceptiveField, ...]:
        return tuple(receptive_field_of(stage) for stage in self.stages)

    def stage(self, number: int, features):
        with torch.no_grad():
            found = self.stages[number](features).tanh()
        return found + self.leak * features.mean(dim=(1, 2, 3), keepdim=True)


def device_views(network) -> DeviceViews:
    return DeviceViews(
        network=network,
        layout=LAYOUTS["decoded"],
        device=torch.device("cpu"),
        dtype=torch.float64,
        batch_size=50,
        floor=0.01,
        candidates=10,
        share=True,
    )


@st.composite
def scenes(draw: st.DrawFn):
    image = draw(st.integers(2, 150)), draw(st.integers(2, 150))
    network = 32 * draw(st.integers(1, 5)), 32 * draw(st.integers(1, 5))
    placement = place(image, network, draw(st.sampled_from(("top-left", "center", "stretch"))))
    removed = np.concatenate([np.zeros((1, 1, 4), int), Halves(draw(st.integers(1, 5))).masks(*image).removed])
    return placement, plan_views(placement, removed, draw(st.sampled_from(("fill", "crop"))), stride=32, step=32)


@settings(deadline=None, max_examples=25)
@given(scene=scenes())
def test_shared_features_are_those_of_each_view(scene):
    placement, views = scene
    network = Toy()
    device = device_views(network)
    program, table, order = plan_batches(views, placement, network.receptive_fields, 50)
    width, height = placement.size
    canvas, filling = torch.rand((height, width, 3), dtype=torch.float64), torch.rand(3, dtype=torch.float64)

    early, late = split(program, torch.tensor(table))
    bank = device.shared(program, canvas, early, filling)
    ours = [
        window
        for group, part in zip(program.groups, late, strict=True)
        for window in gather_cells(bank, group.size, part, program.levels[-1])[: group.members]
    ]

    for number, place_among in enumerate(order):
        view = canvas.clone()
        for x1, y1, x2, y2 in views.filled[number]:
            view[y1:y2, x1:x2] = filling
        features = view.permute(2, 0, 1)[None]
        for stage in range(2):
            features = network.stage(stage, features)
        left, top, right, bottom = views.window[number] // 8
        expected = features[0, :, top:bottom, left:right]
        torch.testing.assert_close(ours[place_among], expected, atol=1e-12, rtol=0)


def test_a_cell_looks_no_further_than_its_reach():
    torch.manual_seed(0)
    detector = BuiltinDetector(width=0.25).double().eval()
    network = BuiltinNetwork.from_predictor(Predictor(detector))
    first, second = levels((256, 256), network.receptive_fields)
    assert (first.receptive_field, second.receptive_field) == (ReceptiveField(4, 11, 12), ReceptiveField(8, 47, 48))
    image = torch.rand(1, 3, 256, 256, dtype=torch.float64)

    with torch.no_grad():
        features = [network.stage(0, image * 255)]
        features.append(network.stage(1, features[0]))
        for column in (120, 121, 127):
            changed = image.clone()
            changed[:, :, :, column] = 1 - changed[:, :, :, column]
            now = network.stage(0, changed * 255)
            for before, after, level in zip(features, (now, network.stage(1, now)), (first, second), strict=True):
                stride, low, high = level.receptive_field
                moved = np.flatnonzero((before != after).any(1).any(1)[0].numpy())
                assert moved.min() * stride + high > column >= moved.max() * stride - low
                assert len(moved) >= (low + high) // stride - 1  # the reach is as small as it can be


def test_what_lies_behind_the_shared_stages_is_the_rest_of_the_network():
    torch.manual_seed(0)
    detector = BuiltinDetector(width=0.25).double().eval()
    network = BuiltinNetwork.from_predictor(Predictor(detector))
    images = torch.randn(2, 3, 96, 160, dtype=torch.float64)

    with torch.no_grad():
        features = network.stage(1, network.stage(0, images * 255))
        for ours, theirs in zip(network.final_stage(features), detector(images), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_only_half_planes_are_shared():
    placement = place((60, 40), (64, 64), "top-left")
    one = placement.leaking_extent(Halves(2).masks(60, 40).removed)
    two = placement.leaking_extent(pairs(60, 40, 1).removed)
    corner = np.array([[[0, 0, 20, 20]]])

    assert split_lines(one, placement).shape == (8, 3)
    assert split_lines(two, placement) is None
    assert split_lines(corner, placement) is None


def test_kernels_that_look_beyond_their_window_are_refused():
    placement = place((60, 40), (64, 64), "top-left")
    views = plan_views(placement, Halves(2).masks(60, 40).removed, "fill", stride=32, step=32)
    filling = torch.zeros(3, dtype=torch.float64)
    for leak in (0.0, 1e-9):
        network = Toy(leak)
        program, table, _ = plan_batches(views, placement, network.receptive_fields, 50)
        if leak:
            with pytest.raises(ObjectSeekerError, match="look beyond their window"):
                device_views(network).require_no_leak(program, torch.tensor(table), filling)
        else:
            device_views(network).require_no_leak(program, torch.tensor(table), filling)


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(1)
    return Predictor(fused(BuiltinDetector(width=0.25))).eval().requires_grad_(False)


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
def test_a_removed_pixel_changes_no_bit_of_its_view(module, mask_mode):
    detector = torch_detector(module, input_size=160, score_floor=0.0, mask_mode=mask_mode, share=True)
    image, removed = scene(150, 120, 2), Halves(3).masks(150, 120).removed
    before = detector.detect_views(image, removed, 114)
    assert min(map(len, before)) > 3

    for number, (x1, y1, x2, y2) in enumerate(removed[:, 0]):
        attacked = image.copy()
        attacked[y1:y2, x1:x2] = np.random.default_rng(number).integers(0, 256, (y2 - y1, x2 - x1, 3))
        after = detector.detect_views(attacked, removed, 114)
        assert after[number] == before[number]
        assert after != before


def test_by_fill_boxes_are_those_of_views_that_share_nothing(module):
    image, removed = scene(150, 120, 2), Halves(3).masks(150, 120).removed
    two = pairs(150, 120, 1).removed
    shared, plain = (torch_detector(module, input_size=160, score_floor=0.0, share=share) for share in (True, False))

    assert shared.fingerprint != plain.fingerprint
    for rectangles in (removed, two):
        for ours, theirs in zip(
            shared.detect_views(image, rectangles, 30), plain.detect_views(image, rectangles, 30), strict=True
        ):
            assert ours.label.tolist() == theirs.label.tolist()
            np.testing.assert_allclose(ours.xyxy, theirs.xyxy, atol=1e-3)
            np.testing.assert_allclose(ours.score, theirs.score, atol=1e-5)
