"""The container and what is measured on boxes."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, ObjectSeekerError
from objectseeker.core import boxes as boxes_module
from objectseeker.core.boxes import LARGEST_COORDINATE, area, intersection, ioa, iou, row_blocks


def some():
    return Detections([[0, 0, 4, 4], [2, 2, 6, 6], [1, 1, 1, 5]], [0.9, 0.5, 0.1], [0, 1, 1])


def test_indexing_length_and_equality():
    boxes = some()
    assert len(boxes) == 3
    assert len(boxes[1]) == 1
    assert boxes[1].score.tolist() == [0.5]
    assert boxes[-1] == boxes[2]
    assert boxes[boxes.label == 1] == boxes[1:]
    assert boxes.with_min_score(0.5) == boxes[:2]
    assert Detections.concatenate([boxes[:1], boxes[1:]]) == boxes
    assert boxes != boxes[::-1]
    assert [len(box) for box in boxes] == [1, 1, 1]
    with pytest.raises(IndexError):
        boxes[3]


def test_empty_ones_work_everywhere():
    nothing = Detections.empty()
    assert len(nothing) == len(Detections([], [], [])) == 0
    assert Detections.concatenate([]) == nothing
    assert nothing.with_min_score(0.5) == nothing
    assert ioa(nothing.xyxy, some().xyxy).shape == (0, 3)


def test_arrays_are_copied_and_read_only():
    xyxy = np.array([[0.0, 0, 1, 1]])
    boxes = Detections(xyxy, [1], [0])
    xyxy[:] = 5
    assert boxes.xyxy.tolist() == [[0, 0, 1, 1]]
    with pytest.raises(ValueError, match="read-only"):
        boxes.xyxy[0, 0] = 3


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_measures_equal_exact_fractions(seed):
    rng = np.random.default_rng(seed)
    corner = rng.integers(-4, 10, (6, 2)) / 4
    boxes = np.concatenate([corner, corner + rng.integers(0, 12, (6, 2)) / 4], axis=1)
    exact = oracle.boxes_of(Detections(boxes, np.ones(6), np.zeros(6)))
    for i, a in enumerate(exact):
        assert area(boxes)[i] == oracle.size(a)
        for j, b in enumerate(exact):
            shared, union = oracle.shared(a, b), oracle.size(a) + oracle.size(b) - oracle.shared(a, b)
            assert intersection(boxes, boxes)[i, j] == shared
            assert ioa(boxes, boxes)[i, j] == float(oracle.ioa(a, b))
            assert iou(boxes, boxes)[i, j] == (float(shared / union) if union else 0.0)


FINE = [1.0, 2, 3, 4]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([np.nan, 2, 3, 4], r"box coordinates must be finite: got \[nan, 2.0, 3.0, 4.0\] in row 1"),
        ([1, 2, np.inf, 4], "box coordinates must be finite: .* in row 1"),
        ([1, 2, 3, 2e8], "box coordinates are too large: .* in row 1"),
        ([-2e8, 2, 3, 4], "box coordinates are too large: .* in row 1"),
        ([3.5, 2, 3, 4], "a box needs x1 <= x2 and y1 <= y2: .* in row 1"),
        ([1, 5, 3, 4], "a box needs x1 <= x2 and y1 <= y2: .* in row 1"),
    ],
)
def test_a_box_that_is_none_is_refused_by_its_row(bad, message):
    with pytest.raises(ObjectSeekerError, match=message):
        Detections([FINE, bad, FINE], [1, 1, 1], [0, 0, 0])


def test_scores_and_labels_that_are_none_are_refused_by_their_row():
    for score in (1.5, -0.5, np.nan, np.nextafter(1, 2)):
        with pytest.raises(ObjectSeekerError, match=r"a score must lie within \[0, 1\]: got .* in row 1"):
            Detections([FINE, FINE], [1, score], [0, 0])
    for label in (0.5, np.nan, np.inf):
        with pytest.raises(ObjectSeekerError, match=r"a label must be a whole number: got .* in row 1"):
            Detections([FINE, FINE], [1, 1], [0, label])
    for arrays, message in (
        (([FINE[:3]], [1], [0]), r"xyxy must have shape \(N, 4\): got \(1, 3\)"),
        ((FINE, [1], [0]), r"xyxy must have shape \(N, 4\): got \(4,\)"),
        (([FINE], [1, 1], [0]), r"score must have shape \(1,\) to match xyxy: got \(2,\)"),
        (([], [], np.zeros((0, 5))), r"label must have shape \(0,\) to match xyxy: got \(0, 5\)"),
        (([FINE], [1], [[0]]), r"label must have shape \(1,\) to match xyxy: got \(1, 1\)"),
        (([], [1], []), r"score must have shape \(0,\)"),
        (("x", [1], [0]), "xyxy must be an array of numbers"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            Detections(*arrays)


def test_the_largest_coordinates_points_and_scores_of_0_and_1_are_boxes():
    most = LARGEST_COORDINATE
    found = Detections([[-most, -most, most, most], [3, 3, 3, 3]], [0, 1], [-3, 2.0])
    assert found.label.tolist() == [-3, 2]
    assert len(Detections(np.zeros((0, 4)), [], [])) == 0


def test_what_is_made_of_boxes_is_read_only_and_equal_only_to_boxes():
    boxes = some()
    for made in (boxes, boxes[1:], boxes[np.int64(1)], Detections.concatenate([boxes, boxes]), Detections.empty()):
        assert not any(array.flags.writeable for array in (made.xyxy, made.score, made.label))
    assert boxes != (boxes.xyxy, boxes.score, boxes.label)
    for other in (
        Detections(boxes.xyxy + 1, boxes.score, boxes.label),
        Detections(boxes.xyxy, boxes.score / 2, boxes.label),
        Detections(boxes.xyxy, boxes.score, boxes.label + 1),
    ):
        assert boxes != other


def test_blocks_of_rows_have_at_most_so_many_cells_and_leave_none_out(monkeypatch):
    monkeypatch.setattr(boxes_module, "MAX_CELLS", 6)
    for rows, columns, step in ((5, 3, 2), (5, 4, 1), (2, 100, 1), (7, 0, 6), (7, 1, 6), (6, 1, 6), (0, 3, 2)):
        blocks = [list(range(rows))[some] for some in row_blocks(rows, columns)]
        assert blocks == [list(range(start, min(start + step, rows))) for start in range(0, rows, step)]
        assert all(some.stop - some.start == step for some in row_blocks(rows, columns))
