"""Windows of the network input: what is cut away is never shown, what is kept is never lost, boxes come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from detector_graphs import build
from detector_images import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import fill_rectangles
from objectseeker.core.recipes import Halves
from objectseeker.detectors import load_detector
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.layouts import parse_layout
from objectseeker.detectors.network.preprocess import cached_view_plan, place, plan_views, prepare
from objectseeker.detectors.network.raw_boxes import RawBoxes
from objectseeker.errors import ObjectSeekerError


@st.composite
def images_and_unions(draw: st.DrawFn):
    """An image size and, for each of a few views, two rectangles: halves, anything, or empty."""
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 90))

    def rectangle() -> tuple[int, int, int, int]:
        kind = draw(st.sampled_from(("left", "top", "right", "bottom", "inside", "empty")))
        x, y = draw(st.integers(0, width)), draw(st.integers(0, height))
        return {
            "left": (0, 0, x, height),
            "top": (0, 0, width, y),
            "right": (x, 0, width, height),
            "bottom": (0, y, width, height),
            "inside": (x, y, draw(st.integers(x, width)), draw(st.integers(y, height))),
            "empty": (0, 0, 0, 0),
        }[kind]

    views = [[rectangle(), rectangle()] for _ in range(draw(st.integers(1, 4)))]
    return (width, height), np.array(views, np.int64)


PLACES = st.sampled_from([("top-left", None), ("center", None), ("stretch", None), ("center", 8)])


@settings(max_examples=200, deadline=None)
@given(case=images_and_unions(), fit=PLACES, step=st.sampled_from((8, 16, 24)))
def test_a_window_holds_all_that_is_kept_at_whole_strides(case, fit, step):
    (width, height), removed = case
    placement = place((width, height), (64, 48), fit[0], stride=fit[1])
    views = plan_views(placement, removed, "crop", stride=8, step=step)

    kept = np.zeros((len(removed), *placement.size[::-1]), bool)
    x, y = placement.x, placement.y
    kept[:, y.offset : y.offset + y.resampling.resized, x.offset : x.offset + x.resampling.resized] = True
    for view, rectangles in enumerate(views.filled):
        for x1, y1, x2, y2 in rectangles:
            kept[view, y1:y2, x1:x2] = False
    for view, (x1, y1, x2, y2) in enumerate(views.window):
        inside = kept[view, y1:y2, x1:x2]
        assert inside.sum() == kept[view].sum()
        assert (x1 % 8, y1 % 8, x2 % 8, y2 % 8) == (0, 0, 0, 0)
        assert 0 <= x1 < x2 <= placement.size[0]
        assert 0 <= y1 < y2 <= placement.size[1]
        assert (x2 - x1) % step == 0 or x2 - x1 == placement.size[0]
        assert (y2 - y1) % step == 0 or y2 - y1 == placement.size[1]


def test_a_plan_is_made_once_for_all_images_of_a_size():
    placement = place((90, 60), (64, 64), "center")
    removed = Halves(3).masks(90, 60).removed
    views, same = (cached_view_plan(placement, removed.tobytes(), removed.shape, "crop", 8, 8) for _ in range(2))
    other = cached_view_plan(placement, removed[:5].tobytes(), removed[:5].shape, "crop", 8, 8)
    expected = plan_views(placement, removed, "crop", stride=8, step=8)

    assert views is same
    assert len(other) == 5
    assert np.array_equal(views.window, expected.window)
    assert np.array_equal(views.filled, expected.filled)
    with pytest.raises(ValueError, match="read-only"):  # a change would be seen by all images to come
        views.window[0] = 0


def test_a_half_mask_leaves_about_half_the_pixels():
    placement = place((640, 640), (640, 640), "top-left")
    removed = Halves(30).masks(640, 640).removed

    window = plan_views(placement, removed, "crop", stride=32, step=32).window

    pixels = ((window[:, 2:] - window[:, :2]).prod(axis=1)).sum() / (len(removed) * 640 * 640)
    assert 0.5 <= pixels < 0.53


def test_a_pair_of_masks_leaves_what_neither_removes():
    placement = place((128, 128), (128, 128), "top-left")
    left, top, right = (0, 0, 40, 128), (0, 0, 128, 70), (100, 0, 128, 128)
    removed = np.array([(left, top), (left, right), (top, top), (left, (0, 0, 0, 0))])

    window = plan_views(placement, removed, "crop", stride=32, step=32).window

    assert window.tolist() == [[32, 64, 128, 128], [32, 0, 128, 128], [0, 64, 128, 128], [32, 0, 128, 128]]


def recording(seen: dict, **options) -> NetworkDetector:
    """A detector that finds nothing and keeps every input of its network."""

    def forward(batch):
        seen.setdefault("batches", []).append(batch.copy())
        return [()] * len(batch)

    nothing = RawBoxes(np.empty((0, 4)), np.empty(0), np.empty(0))
    layout = replace(parse_layout("decoded"), decode=lambda *_: nothing)
    return NetworkDetector(names=(), fingerprint="", forward=forward, layout=layout, input_size=(96, 64), **options)


@settings(max_examples=60, deadline=None)
@given(case=images_and_unions(), mask_mode=st.sampled_from(("fill", "crop")), seed=st.integers(0, 2**32))
def test_no_union_of_removed_pixels_reaches_the_network(case, mask_mode, seed):
    (width, height), removed = case
    image = noise(width, height, seed)
    before: dict = {}
    recording(before, mask_mode=mask_mode, batch_size=1).detect_views(image, removed, 114)

    for view, rectangles in enumerate(removed):
        attacked, after = image.copy(), {}
        for x1, y1, x2, y2 in rectangles:
            attacked[y1:y2, x1:x2] = noise(x2 - x1, y2 - y1, seed + 1)
        recording(after, mask_mode=mask_mode, batch_size=1).detect_views(attacked, removed, 114)
        order = [
            member
            for _, members in plan_views(
                place((width, height), (96, 64), "top-left"), removed, mask_mode, stride=32, step=32
            ).by_size()
            for member in members
        ]
        slot = order.index(view)
        np.testing.assert_array_equal(before["batches"][slot], after["batches"][slot])


def test_a_cropped_view_is_a_window_of_the_filled_one():
    image, removed = noise(96, 64, 0), np.array([[(0, 0, 40, 64)], [(0, 20, 96, 64)]])
    filled, cropped = {}, {}
    recording(filled, batch_size=1).detect_views(image, removed, 114)
    recording(cropped, mask_mode="crop", batch_size=1).detect_views(image, removed, 114)

    np.testing.assert_array_equal(cropped["batches"][0], filled["batches"][0][..., 32:96])
    np.testing.assert_array_equal(cropped["batches"][1], filled["batches"][1][..., :32, :])


def test_boxes_of_a_window_come_back_to_the_image(tmp_path):
    """The graph finds one box at a fixed place of its input, whatever the size of that."""
    path = build("decoded", tmp_path / "g.onnx", (4, 6, 20, 30), (5, 5), input_shape=("n", 3, "h", "w"))
    image = np.full((128, 256, 3), 255, np.uint8)
    removed = np.array([(0, 0, 0, 0), (0, 0, 100, 128), (0, 0, 256, 70), (200, 0, 256, 128)])

    detector = load_detector(f"onnx:{path}", layout="decoded", input_size=128, mask_mode="crop")
    found = detector.detect_views(image, removed, 255)

    corners = [(0, 0), (32, 0), (0, 32), (0, 0)]  # of the windows on the network input, which is half as large
    for view, (u, v) in zip(found, corners, strict=True):
        expected = 2.0 * np.array([4 + u, 6 + v, 20 + u, 30 + v])
        np.testing.assert_array_equal(view.xyxy[0], expected)


def test_crop_and_fill_are_told_apart_and_wrong_words_refused(tmp_path):
    fixed = build("decoded", tmp_path / "fixed.onnx", (4, 6, 20, 30), (5, 5))
    free = build("decoded", tmp_path / "free.onnx", (4, 6, 20, 30), (5, 5), input_shape=("n", 3, "h", "w"))

    assert (
        load_detector(f"onnx:{free}", mask_mode="crop").fingerprint
        != load_detector(f"onnx:{free}", mask_mode="fill").fingerprint
    )
    with pytest.raises(ObjectSeekerError, match="takes inputs of one size only: mask by fill"):
        load_detector(f"onnx:{fixed}", mask_mode="crop")
    with pytest.raises(ObjectSeekerError, match="mask_mode must be one of fill, crop: got 'cut'"):
        load_detector(f"onnx:{free}", mask_mode="cut")
    with pytest.raises(ObjectSeekerError, match="precision float16 needs torch and a GPU"):
        load_detector("builtin", precision="float16")


# --- several at a time --------------------------------------------------------------------------------------------


def mean_color(batch):
    """One box a view, scored by the mean of what it shows: every pixel counts."""
    mean = batch.astype(np.float64).mean(axis=(1, 2, 3)) / 255
    return [(np.array([[1.0, 2.0, 9.0, 9.0]]), np.array([[value, 0.0]])) for value in mean]


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_number_of_workers_changes_nothing(mask_mode, batch):
    image, removed = noise(90, 60, 5), Halves(6).masks(90, 60).removed

    def run(workers: int) -> list[Detections]:
        detector = NetworkDetector(
            names=(),
            fingerprint="",
            forward=mean_color,
            layout=parse_layout("decoded"),
            input_size=(96, 64),
            mask_mode=mask_mode,
            batch_size=batch,
            workers=workers,
        )
        return detector.detect_views(image, removed, 114)

    one = run(1)
    assert len(one) == 24
    assert len({found.score[0] for found in one}) == 24  # every view is another
    for workers in (2, 5, 40):
        assert run(workers) == one


def test_what_a_worker_raises_is_raised():
    def forward(batch):
        raise ObjectSeekerError("no such layer")

    detector = NetworkDetector(
        names=(),
        fingerprint="",
        forward=forward,
        layout=parse_layout("decoded"),
        input_size=(64, 64),
        workers=2,
        batch_size=1,
    )
    with pytest.raises(ObjectSeekerError, match="no such layer"):
        detector.detect_views(noise(9, 9, 0), Halves(2).masks(9, 9).removed, 114)


def test_masks_are_those_of_the_raw_image_at_scale_one():
    image = noise(96, 64, 3)
    union = np.array([[(0, 0, 40, 64), (0, 50, 96, 64)]])
    seen: dict = {}
    recording(seen, batch_size=1).detect_views(image, union, 114)

    expected = prepare(fill_rectangles(image, union[0]), place((96, 64), (96, 64), "top-left"), pad=114)
    np.testing.assert_array_equal(seen["batches"][0][0], expected.transpose(2, 0, 1).astype(np.float32))
