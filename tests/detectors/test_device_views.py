"""Views on a torch device: the same boxes as on the host, whatever shares the batch, and never a removed pixel."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from detector_images import scene
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker.core.boxes import Detections
from objectseeker.core.recipes import Halves
from objectseeker.demo.samples import samples
from objectseeker.detectors import load_detector
from objectseeker.detectors.builtin import load_torch
from objectseeker.detectors.check import check
from objectseeker.detectors.gpu import ROUNDS, finish_suppression, top_k, unpack
from objectseeker.detectors.gpu.device import prepare as prepare_in_torch
from objectseeker.detectors.network.layouts import parse_layout
from objectseeker.detectors.network.preprocess import place, prepare
from objectseeker.detectors.network.raw_boxes import by_score, drop_invalid, nms
from objectseeker.detectors.torch_module import torch_detector
from objectseeker.errors import ObjectSeekerError

INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def module():
    return load_torch()


def make_image(width: int, height: int) -> np.ndarray:
    return np.array(PIL.Image.open(samples()[0].path).resize((width, height)))


def require_close(ours: list[Detections], theirs: list[Detections], *, score: float, pixels: float) -> None:
    """The five best boxes of every view."""
    for mine, other in zip(ours, theirs, strict=True):
        assert len(other) >= 5
        np.testing.assert_allclose(mine.score[:5], other.score[:5], atol=score)
        np.testing.assert_allclose(mine.xyxy[:5], other.xyxy[:5], atol=pixels)
        assert mine.label[:5].tolist() == other.label[:5].tolist()


# --- candidates and suppression -------------------------------------------------------------------------------------


@given(
    score=st.lists(
        st.lists(
            st.sampled_from((0.0, -0.0, 0.005, 0.01, 0.3, 0.3000001, 0.9, 1.0, 1.5, NAN, INF, -INF)),
            min_size=9,
            max_size=9,
        ),
        min_size=1,
        max_size=3,
    ),
    count=st.integers(1, 12),
)
def test_the_best_candidates_come_first_and_ties_keep_their_order(score, count):
    index, best = top_k(torch.tensor(score), torch.arange(9), 0.01, count)

    for row, places, scores in zip(np.array(score, np.float32), index.tolist(), best.tolist(), strict=True):
        usable = np.flatnonzero(np.isfinite(row) & (row >= np.float32(0.01)))
        expected = usable[by_score(np.minimum(row[usable], 1))][:count]
        assert places[: len(expected)] == expected.tolist()
        assert scores[: len(expected)] == np.minimum(row[expected], 1).tolist()
        assert set(scores[len(expected) :]) <= {-1.0}


@settings(deadline=None)
@given(
    data=st.data(), count=st.integers(1, 12), anchors=st.integers(1, 9), classes=st.integers(1, 4), whole=st.booleans()
)
def test_the_best_classes_are_chosen_as_if_from_all(data, count, anchors, classes, whole):
    """Ties, classes that are not numbers, and fewer anchors or classes than wanted."""
    few = st.sampled_from((0.0, 0.005, 0.3, 0.3000001, 0.9, 1.0, -INF, *((NAN, INF) if whole else ())))
    values = data.draw(st.lists(few, min_size=anchors * classes, max_size=anchors * classes))
    scores = np.array(values, np.float32).reshape(anchors, classes)
    boxes = np.tile(np.array([0, 0, 4, 4], np.float32), (anchors, 1)) + np.arange(anchors, dtype=np.float32)[:, None]
    layout = parse_layout("decoded,every_class=yes")
    chooser = torch_detector(torch.nn.Identity(), layout=layout, input_size=64).start_views.__self__
    chooser.candidates = count

    given = (torch.from_numpy(part)[None] for part in (boxes, scores))
    rows, valid = chooser.decode_top_k((64, 64), *given, torch.tensor([int(whole)]))

    found = drop_invalid(layout.decode((boxes, scores), (64, 64), chooser.floor, whole), floor=chooser.floor)
    expected = found.take(by_score(found.score)[:count])
    chosen = rows[0][valid[0]].numpy()
    np.testing.assert_array_equal(chosen, np.column_stack([expected.xyxy, expected.score, expected.label]))


@st.composite
def crowds(draw: st.DrawFn):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    views, count = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    corner = rng.integers(0, 12, (views, count, 2)) / draw(st.sampled_from((1, 3)))
    boxes = np.concatenate([corner, corner + rng.integers(1, 12, (views, count, 2))], axis=2).astype(np.float32)
    return boxes, rng.integers(0, 3, (views, count)), rng.random((views, count)) < 0.9


def finished(boxes, label, valid, threshold):
    """Return which candidates stay after suppression is finished on the host, and which views had converged."""
    views, count = valid.shape
    score = np.tile(np.linspace(1, 0, count, dtype=np.float32), (views, 1))  # best first, down to 0
    rows = np.concatenate([boxes, score[..., None], label[..., None]], axis=2).astype(np.float32)
    detector = torch_detector(torch.nn.Identity(), layout=f"decoded,nms={threshold}", input_size=64, score_floor=0.0)
    chooser = detector.start_views.__self__
    packed = chooser.suppress_and_pack(torch.from_numpy(rows), torch.from_numpy(valid), torch.arange(views)).numpy()
    rows, converged = unpack(packed, views)
    return ~np.signbit(finish_suppression(rows, converged, threshold)[..., 4]), converged


@settings(deadline=None)
@given(case=crowds(), threshold=st.sampled_from((0.0, 0.3, 0.5, 0.65, 1.0)), rounds=st.sampled_from((1, 2, ROUNDS)))
def test_suppression_of_all_views_is_that_of_each(case, threshold, rounds):
    boxes, label, valid = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("objectseeker.detectors.gpu.ROUNDS", rounds)
        keep, converged = finished(*case, threshold)
        for view, stays in enumerate(keep):
            usable = np.flatnonzero(valid[view])
            falling = np.linspace(1, 0.5, len(usable))
            expected = usable[nms(boxes[view, usable].astype(float), falling, label[view, usable], threshold=threshold)]
            assert np.flatnonzero(stays).tolist() == expected.tolist()
            (alone,) = finished(*(part[view : view + 1] for part in case), threshold)[1]
            assert converged[view] == alone  # whatever the other views show


def test_a_long_chain_of_suppression_is_followed_to_its_end():
    """Each box overlaps the next only, so which stay converges box by box: every second box."""
    count = 4 * ROUNDS
    x = np.arange(count) * 3.0
    chain = np.stack([x, np.zeros(count), x + 10, np.ones(count)], -1)
    apart = chain + [[100, 0, 100, 0]] * np.arange(count)[:, None]
    label, valid = np.zeros((2, count), np.int64), np.ones((2, count), bool)

    keep, converged = finished(np.stack([chain, apart]), label, valid, 0.5)

    assert converged.tolist() == [False, True]
    assert keep.tolist() == [[True, False] * (count // 2), [True] * count]


# --- the same as on the host ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
def test_views_on_the_device_are_those_of_the_host(module, mask_mode):
    detector = torch_detector(module, input_size=128, score_floor=0.0, mask_mode=mask_mode, batch_size=4)
    on_host = detector.with_batch(4)
    assert on_host.start_views is None
    image, removed = make_image(128, 96), Halves(1).masks(128, 96).removed  # no resize: bit for bit the same input
    pairs = np.concatenate([removed, removed[[1, 0, 1, 2]]], axis=1)

    for rectangles in (removed, pairs):
        ours, theirs = detector.detect_views(image, rectangles, 114), on_host.detect_views(image, rectangles, 114)
        require_close(ours, theirs, score=1e-4, pixels=0.01)


def test_the_boxes_of_the_builtin_detector_are_those_of_onnx(module):
    in_torch = torch_detector(module, input_size=128, score_floor=0.0, mask_mode="crop")
    in_onnx = load_detector("builtin", layout="decoded", input_size=128, score_floor=0.0, mask_mode="crop")
    image, removed = make_image(128, 96), Halves(1).masks(128, 96).removed

    ours, theirs = in_torch.detect_views(image, removed, 114), in_onnx.detect_views(image, removed, 114)

    require_close(ours, theirs, score=1e-4, pixels=0.01)


@pytest.mark.parametrize(("width", "height"), [(100, 60), (64, 64), (30, 90), (300, 20)])
def test_resizing_on_the_device_is_resizing_on_the_host(module, width, height):
    detector = torch_detector(module, input_size=64)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    placement = place((width, height), (64, 64), "top-left")

    ours = prepare_in_torch(image, placement, detector.layout, torch.device("cpu"), torch.float32).numpy()

    assert np.abs(ours - prepare(image, placement, pad=114)).max() <= 1  # a sum may round the other way


def test_suppression_that_has_not_settled_is_finished_by_the_host(module, monkeypatch):
    detector = torch_detector(module, input_size=96, score_floor=0.0)
    image, removed = make_image(96, 96), Halves(1).masks(96, 96).removed
    before = detector.detect_views(image, removed, 114)

    monkeypatch.setattr("objectseeker.detectors.gpu.ROUNDS", 1)

    assert detector.detect_views(image, removed, 114) == before


# --- several images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["torch", "onnx"])
def test_images_in_a_row_give_the_boxes_of_each(module, device):
    detector = torch_detector(module, input_size=64) if device == "torch" else load_detector("builtin", input_size=64)
    images = [scene(90, 60, seed) for seed in range(3)] + [scene(40, 50, 3)]
    taken = []

    def one_by_one():
        for image in images:
            taken.append(image.shape)
            yield image, Halves(1).masks(image.shape[1], image.shape[0]).removed

    found = []
    for boxes in detector.detect_views_of(one_by_one(), 114):
        found.append(boxes)
        assert len(taken) <= len(found) + 1  # never more than one ahead: memory does not grow

    assert found == [detector.detect_views(*given, 114) for given in one_by_one()]
    assert list(detector.detect_views_of([], 114)) == []


# --- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
@pytest.mark.parametrize("batch", [3, 64])
def test_a_removed_pixel_changes_no_bit_of_its_view_whatever_it_does_to_the_others(module, mask_mode, batch):
    detector = torch_detector(module, input_size=96, score_floor=0.0, mask_mode=mask_mode, batch_size=batch)
    image, removed = scene(130, 70, 2), Halves(2).masks(130, 70).removed
    before = detector.detect_views(image, removed, 114)

    for number in (0, 3, 6):
        x1, y1, x2, y2 = removed[number, 0]
        attacked = image.copy()
        attacked[y1:y2, x1:x2] = np.random.default_rng(number).integers(0, 256, (y2 - y1, x2 - x1, 3))
        after = detector.detect_views(attacked, removed, 114)
        assert after[number] == before[number]
        assert after != before
    assert detector.detect_views(image, removed, 114) == before


def test_the_contract_is_kept(module):
    detector = torch_detector(module, input_size=64, batch_size=2, mask_mode="crop", score_floor=0.001)

    assert check(detector, scene(90, 60, 3), masks=Halves(1), batch_size=2).failed == ()


def test_precision_is_told_apart_and_leaves_the_module_alone(module):
    half = torch_detector(module, precision="bfloat16", input_size=64)

    assert half.fingerprint != torch_detector(module, input_size=64).fingerprint
    assert next(module.parameters()).dtype == torch.float32
    (found,) = half.detect_views(scene(64, 64, 1), np.zeros((1, 4), int), 114)
    assert len(found) <= 300
    with pytest.raises(ObjectSeekerError, match="precision must be one of float32, float16, bfloat16: got 'int8'"):
        torch_detector(module, precision="int8")


def test_settings_of_torch_are_put_back(module):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch_detector(module, input_size=64)([scene(64, 64, 1)])
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic) == before
