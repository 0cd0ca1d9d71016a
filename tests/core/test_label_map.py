"""Label maps against loops over objects and labels."""

import numpy as np
import pytest

from objectseeker import Detections
from objectseeker.core.label_map import LabelMap

# Labels of a detector: two are the dataset's 1, one is its 0, one it does not have; nothing is its 2.
MAP = LabelMap(("a", "b", "c", "d"), ("x", "y", "z"), np.array([1, -1, 0, 1]))
BOX = [1.0, 2, 3, 4]


def boxes(*labels):
    return Detections([[*BOX[:3], 4 + n] for n in range(len(labels))], np.linspace(0.25, 1, len(labels)), labels)


def test_boxes_have_labels_of_the_dataset_or_are_dropped():
    found = boxes(0, 1, 2, 3)
    assert MAP.map_to_dataset(found) == Detections(found.xyxy[[0, 2, 3]], found.score[[0, 2, 3]], [1, 0, 1])
    assert MAP.map_to_dataset(boxes()) == Detections.empty()
    assert MAP.map_to_dataset(boxes(1)) == Detections.empty()


def test_an_object_is_listed_once_for_each_label_that_it_may_be_found_as():
    objects = boxes(0, 1, 2)
    each, which = MAP.map_to_detector(objects)
    assert which.tolist() == [0, 1, 1]
    assert each == Detections(objects.xyxy[which], objects.score[which], [2, 0, 3])
    agnostic, which = MAP.map_to_detector(objects, classwise=False)
    assert which.tolist() == [0, 1, 2]
    assert agnostic == Detections(objects.xyxy, objects.score, [2, 0, -1])
    assert [len(one) for one in MAP.map_to_detector(boxes())] == [0, 0]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_one_label_that_holds_is_enough(shape):
    which = np.array([0, 1, 1, 3])
    verdicts = np.random.default_rng(len(shape)).random((*shape, 4)) < 0.5
    found = MAP.any_label(verdicts, which, 4)
    assert found.shape == (*shape, 4)
    for n in range(4):
        expected = np.zeros(shape, bool)
        for row in np.flatnonzero(which == n):
            expected = expected | verdicts[..., row]
        assert np.array_equal(found[..., n], expected)


def test_names_of_one_set_are_their_own():
    same = LabelMap.from_names(("a", "b"))
    assert (same.detector_names, same.dataset_names, same.dataset_labels.tolist()) == (("a", "b"), ("a", "b"), [0, 1])
    assert same.map_to_dataset(boxes(1, 0)) == boxes(1, 0)


def test_no_names_are_no_labels():
    assert LabelMap.from_names(()).map_to_dataset(Detections.empty()) == Detections.empty()
