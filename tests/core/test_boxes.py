"""The container and what is measured on boxes."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections
from objectseeker.core.boxes import area, intersection, ioa, iou


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
