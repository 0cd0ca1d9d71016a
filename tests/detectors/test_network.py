"""Between a network and `Detections`: batches, masks, suppression, and outputs that are not boxes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from detector_images import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker.core.boxes import Detections, iou
from objectseeker.core.recipes import Halves
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.layouts import LAYOUTS, normalize, parse_layout
from objectseeker.detectors.network.preprocess import place, prepare
from objectseeker.detectors.network.raw_boxes import BLOCK, RawBoxes, nms
from objectseeker.errors import ObjectSeekerError


def network(forward, *, layout: str = "decoded", batch_size: int = 4, **options) -> NetworkDetector:
    return NetworkDetector(
        names=("a", "b", "c"),
        fingerprint="test",
        forward=forward,
        layout=parse_layout(layout),
        input_size=(64, 64),
        batch_size=batch_size,
        **options,
    )


def recording(seen: list[np.ndarray], layout: str = "decoded") -> NetworkDetector:
    """A detector that finds nothing and keeps every input of its network."""

    def forward(batch):
        seen.append(batch.copy())
        return [()] * len(batch)

    nothing = RawBoxes(np.empty((0, 4)), np.empty(0), np.empty(0))
    silent = replace(parse_layout(layout), decode=lambda *_: nothing, background="none")
    return replace(network(forward, layout=layout), layout=silent)


def answer(boxes, scores, layout: str = "decoded") -> Detections:
    """The boxes of these network outputs on a 64 x 64 image."""
    view = np.asarray(boxes, np.float32), np.asarray(scores, np.float32)
    return network(lambda batch: [view] * len(batch), layout=layout)([np.zeros((64, 64, 3), np.uint8)])[0]


# --- batches and masks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 4, 5, 8])
def test_every_batch_is_full(views):
    seen: list[np.ndarray] = []
    detector = recording(seen)

    assert len(detector([noise(64, 64, 0)] * views)) == views

    assert {batch.shape for batch in seen} == {(4, 3, 64, 64)}
    assert len(seen) == -(-views // 4)
    assert not np.concatenate(seen)[views:].any()  # the rest is zeros, whatever came before


def test_the_untouched_view_is_the_plain_input_and_masked_views_are_filled():
    seen: list[np.ndarray] = []
    detector = recording(seen, "yolov5")
    image = noise(100, 50, 1)
    placement = place((100, 50), (64, 64), "center")
    plain = normalize(prepare(image, placement, pad=114), LAYOUTS["yolov5"])

    detector([image])
    detector.detect_views(image, np.array([(0, 0, 0, 0), (0, 0, 30, 50)]), 200)

    np.testing.assert_array_equal(seen[0][0], plain)
    np.testing.assert_array_equal(seen[1][0], plain)
    covered = plain.copy()
    covered[:, 16:48, :20] = np.float32(200) / np.float32(255)  # 30 raw columns are 19.2 network columns
    np.testing.assert_array_equal(seen[1][1], covered)


@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(2, 90),
    height=st.integers(2, 90),
    layout=st.sampled_from([*LAYOUTS, "decoded,trim=yes", "decoded,fit=max-area", "mmdeploy,channels=bgr,fit=center"]),
    seed=st.integers(0, 2**32),
)
def test_what_a_mask_removes_cannot_be_seen_by_the_network(width, height, layout, seed):
    image, removed = noise(width, height, seed), Halves(3).masks(width, height).removed
    views: list[np.ndarray] = []
    recording(views, layout).detect_views(image, removed, 114)

    for number, (x1, y1, x2, y2) in enumerate(removed[:, 0]):
        attacked, after = image.copy(), []
        attacked[y1:y2, x1:x2] = noise(x2 - x1, y2 - y1, seed + 1)
        recording(after, layout).detect_views(attacked, removed, 114)
        np.testing.assert_array_equal(np.concatenate(views)[number], np.concatenate(after)[number])


def test_a_setting_is_changed_by_replacing_it():
    def both(batch):
        return [(np.array([BOX]), np.array([(0.9, 0, 0)]))] * len(batch)

    def predict(images):
        return images, images

    detector = network(both, layout="decoded", predict=predict, start_views=lambda *_: list)
    other = detector.with_batch(2)

    assert (other.batch_size, other.start_views, other.predict) == (2, None, predict)
    assert replace(detector, dynamic_batch=False).with_batch(2) is None
    assert detector.detect_views(noise(64, 64, 0), Halves(1).masks(64, 64).removed, 114) == []
    assert replace(detector, start_views=None, score_floor=0.95)([noise(64, 64, 0)]) == [Detections.empty()]
    assert network(both).predict is None


# --- outputs ----------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
BOX = (10.0, 10.0, 20.0, 20.0)


@pytest.mark.parametrize(
    ("box", "scores"),
    [
        (BOX, (NAN, 0.2, 0.1)),
        (BOX, (INF, 0.2, 0.1)),
        (BOX, (-INF, -INF, -INF)),
        ((NAN, 10, 20, 20), (0.9, 0, 0)),
        ((10, 10, INF, 20), (0.9, 0, 0)),
        ((20, 10, 10, 20), (0.9, 0, 0)),
        ((10, 10, 10, 20), (0.9, 0, 0)),
        ((-30, 10, -5, 20), (0.9, 0, 0)),
        (BOX, (0.005, 0.009, 0.0)),
    ],
)
def test_what_is_no_box_is_dropped_and_the_others_stay(box, scores):
    found = answer([box, (30, 30, 40, 40)], [scores, (0, 0.5, 0)])

    assert found == Detections([(30, 30, 40, 40)], [0.5], [1])


def test_what_is_no_box_is_counted_once_an_image(caplog):
    def forward(batch):
        outputs = np.array([(NAN, 10, 20, 20), (20, 10, 10, 20), BOX, (5, 5, 5, 9)]), np.full((4, 3), 0.5)
        return [outputs] * len(batch)

    seen = network(forward, layout="decoded,nms=none").detect_views(
        noise(64, 64, 0), Halves(2).masks(64, 64).removed, 114
    )

    assert [len(view) for view in seen] == [1] * 8
    assert [record.getMessage() for record in caplog.records] == [
        "dropped invalid boxes (not finite or inverted) that the detector returned for an image: 16"
    ]


def failing(fails, **options):
    """Fails on a batch for which `fails` is true, else finds one box in each view."""
    output = np.array([BOX]), np.array([(0, 0.5, 0)])

    def forward(batch):
        if fails(batch):
            raise RuntimeError("the network is broken")
        return [output] * len(batch)

    return network(forward, **options).detect_views(noise(64, 64, 0), Halves(2).masks(64, 64).removed, 114)


def test_a_view_on_which_the_network_fails_is_empty_and_why_is_said(caplog):
    gray = normalize(np.full((1, 1, 3), 114, np.uint8), parse_layout("decoded"), np.float32).ravel()
    seen = failing(lambda batch: any((view[:, 0, 0] != gray).any() and view.any() for view in batch))
    assert {len(view) for view in seen} == {0, 1}
    (said,) = caplog.records
    assert said.getMessage().endswith("of 8 views of an image, which count as empty: the network is broken")


def test_a_failure_that_stays_is_no_empty_image():
    """As a GPU after an assertion: an attacker would empty the views that remove the patch."""
    runs = count()
    with pytest.raises(RuntimeError, match="the network is broken"):
        failing(lambda batch: next(runs) >= 3, batch_size=1)


def test_each_class_of_a_box_that_reaches_the_floor_may_be_a_detection():
    given = [BOX, (30, 30, 40, 40)], [(0.25, 0.005, 0.75), (0.5, NAN, 0)]

    assert answer(*given) == Detections([BOX], [0.75], [2])
    every = answer(*given, layout="decoded,every_class=yes")
    assert every == Detections([BOX, (30, 30, 40, 40), BOX], [0.75, 0.5, 0.25], [2, 0, 0])


def test_scores_are_clipped_and_sorted():
    found = answer([(30, 30, 40, 40), BOX], [(0.5, 0, 0), (0, 0, 1.5)])

    assert found == Detections([BOX, (30, 30, 40, 40)], [1.0, 0.5], [2, 0])


@pytest.mark.parametrize(
    "layout", ["yolox", "yolov5", "yolov8", "end2end", "mmdeploy", "detr", "yolox,every_class=yes"]
)
@pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38, -3e38])
def test_every_decoder_survives_outputs_that_are_not_numbers(layout, value):
    rows = np.full((84, 8), value, np.float32)
    outputs = {
        "yolov8": (rows.T,),
        "mmdeploy": (rows[:, :5], np.zeros(84, np.int64)),
        "detr": (np.zeros(84, np.int64), rows[:, :4], rows[:, 4]),
    }.get(layout, (rows,))

    (found,) = network(lambda batch: [outputs] * len(batch), layout=layout)([noise(64, 64, 0)])

    assert len(found) <= 300


def test_at_most_so_many_boxes_are_returned_the_best_ones():
    boxes = [(x, y, x + 1, y + 1) for y in range(64) for x in range(64)]
    scores = np.linspace(0.1, 0.9, len(boxes), dtype=np.float32)[:, None]

    found = answer(boxes, scores)

    assert len(found) == 300
    np.testing.assert_array_equal(found.score, np.sort(scores[:, 0].astype(float))[::-1][:300])


# --- suppression ------------------------------------------------------------------------------------------------


@st.composite
def scored_boxes(draw: st.DrawFn):
    count = draw(st.integers(0, 25))
    side = st.integers(0, 12)
    boxes = [(x := draw(side), y := draw(side), x + draw(side) + 1, y + draw(side) + 1) for _ in range(count)]
    scores = draw(st.lists(st.sampled_from((0.1, 0.5, 0.9)), min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    return np.array(boxes, float).reshape(-1, 4), np.array(scores, float), np.array(labels, np.int64)


@settings(deadline=None)
@given(case=scored_boxes(), threshold=st.sampled_from((0.0, 0.3, 0.65, 1.0)))
def test_suppression_is_the_textbook_loop(case, threshold):
    boxes, scores, labels = case
    kept: list[int] = []
    for index in sorted(range(len(scores)), key=lambda i: -scores[i]):  # sorted is stable
        rivals = [other for other in kept if labels[other] == labels[index]]
        if all(iou(boxes[[index]], boxes[[other]])[0, 0] <= threshold for other in rivals):
            kept.append(index)

    assert nms(boxes, scores, labels, threshold=threshold).tolist() == kept


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 40])
def test_suppression_of_a_crowd_is_the_textbook_loop(count):
    """More boxes than are processed together."""
    rng = np.random.default_rng(count)
    corner = rng.uniform(0, 30, (count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 25, (count, 2))], axis=1)
    scores, labels = rng.choice([0.2, 0.5, 0.7, 0.9], count), rng.integers(0, 2, count)
    overlap, kept = iou(boxes, boxes), []
    for index in np.argsort(-scores, kind="stable"):
        if not any(labels[other] == labels[index] and overlap[index, other] > 0.5 for other in kept):
            kept.append(index)

    assert nms(boxes, scores, labels, threshold=0.5).tolist() == kept
    assert 10 < len(kept) < count


@settings(deadline=None)
@given(
    threshold=st.sampled_from((0.0, 0.1, 0.5, 0.65, 0.9)),
    steps=st.integers(-3, 3),
    at=st.sampled_from((0.0, -7.3, 416.0, 1e4, 1e8)),
    size=st.sampled_from((1e-3, 0.3, 1.0, 417.0)),
)
def test_a_box_that_overlaps_just_enough_is_not_overlooked(threshold, steps, at, size):
    """The right part of another box: it begins where suppression stops to look for rivals."""
    begin = at + size - threshold * size
    for _ in range(abs(steps)):
        begin = np.nextafter(begin, np.inf * np.sign(steps))
    boxes = np.array([(at, 0.0, at + size, 1.0), (min(begin, at + size), 0.0, at + size, 1.0)])

    kept = nms(boxes, np.array([0.9, 0.8]), np.zeros(2, int), threshold=threshold)

    assert len(kept) == (1 if iou(boxes[:1], boxes[1:])[0, 0] > threshold else 2)


def test_labels_never_suppress_each_other_however_large_the_boxes():
    """Boxes shifted by label * 4096 would overlap here."""
    boxes = np.array([(0.0, 0.0, 9000.0, 9000.0)] * 3)
    scores, labels = np.array([0.9, 0.8, 0.7]), np.array([0, 1, 0])

    assert nms(boxes, scores, labels, threshold=0.65).tolist() == [0, 1]


@settings(deadline=None)
@given(case=scored_boxes(), floor=st.sampled_from((0.3, 0.6)))
def test_dropping_weak_boxes_before_or_after_suppression_is_the_same(case, floor):
    boxes, scores, labels = case
    strong = np.flatnonzero(scores >= floor)

    after = [i for i in nms(boxes, scores, labels, threshold=0.5) if scores[i] >= floor]
    before = strong[nms(boxes[strong], scores[strong], labels[strong], threshold=0.5)]

    assert after == before.tolist()


# --- layouts as text --------------------------------------------------------------------------------------------


def test_a_layout_is_read_with_its_changes():
    layout = parse_layout("mmdeploy,channels=bgr,mean=1/2/3,std=2,pad=0,nms=0.5,trim=yes,fit=stretch,label_offset=-1")

    assert (layout.channels, layout.mean, layout.std, layout.pad) == ("bgr", (1.0, 2.0, 3.0), (2.0, 2.0, 2.0), 0)
    assert (layout.nms, layout.trim, layout.fit, layout.label_offset) == (0.5, True, "stretch", -1)
    assert parse_layout("yolox").describe() == "yolox"
    assert parse_layout("yolox,pad=0").describe() == "yolox,pad=0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yolo", "unknown layout 'yolo': choose one of decoded"),
        ("yolox,color=bgr", "unknown layout option 'color=bgr'"),
        ("yolox,mean=1/2", "cannot read the value of layout option 'mean=1/2'"),
        ("yolox,trim=maybe", "cannot read the value of layout option 'trim=maybe'"),
        ("yolox,pad=300", r"pad must be a gray value within \[0, 255\]: got 300"),
        ("yolox,channels=gbr", "channels must be one of rgb, bgr: got 'gbr'"),
        ("yolox,std=0", "std not 0"),
        ("yolox,nms=2", r"nms must lie within \[0, 1\]"),
    ],
)
def test_a_layout_that_cannot_be_read_is_named(text, message):
    with pytest.raises(ObjectSeekerError, match=message):
        parse_layout(text)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"score_floor": 2.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ObjectSeekerError, match=next(iter(options))):
        network(lambda batch: [], **options)
