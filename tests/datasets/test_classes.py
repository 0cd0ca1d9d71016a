"""Matching a detector's class names to a dataset's."""

from __future__ import annotations

import pytest

from objectseeker.datasets import match_classes
from objectseeker.datasets.voc import NAMES as VOC
from objectseeker.errors import ObjectSeekerError

COCO_SIDE_OF_VOC = (
    *("airplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("dining table", "dog", "horse", "motorcycle", "person", "potted plant", "sheep", "couch", "train", "tv"),
)


@pytest.mark.parametrize(("dataset", "detector"), [(VOC, COCO_SIDE_OF_VOC), (COCO_SIDE_OF_VOC, VOC)])
def test_voc_and_coco_names_match_one_to_one(dataset: tuple[str, ...], detector: tuple[str, ...]) -> None:
    match = match_classes(dataset, detector)
    assert match.to_dataset.tolist() == list(range(20))
    assert match.known.all()
    assert match.unknown == ()
    assert match.unused == 0
    assert match.warnings == ()


def test_classes_without_a_counterpart_are_reported() -> None:
    match = match_classes(("car", "pedestrian", "cyclist"), ("person", "bicycle", "car", "zebra"))
    assert match.to_dataset.tolist() == [1, -1, 0, -1]
    assert match.known.tolist() == [True, True, False]
    assert match.unknown == ("cyclist",)
    assert match.unused == 2
    assert match.warnings == ("dataset classes left out because the detector does not know them: cyclist",)


def test_spelling_does_not_matter() -> None:
    match = match_classes(("Traffic Light", "hot_dog", "t-shirt"), ("T shirt", "traffic-light", "HOTDOG"))
    assert match.to_dataset.tolist() == [2, 0, 1]


def test_several_detector_classes_may_be_one_dataset_class() -> None:
    assert match_classes(("tvmonitor",), ("tv", "monitor", "screen")).to_dataset.tolist() == [0, 0, -1]


def test_closest_match_wins() -> None:
    assert match_classes(("pedestrian", "person"), ("Person", "pedestrian")).to_dataset.tolist() == [1, 0]
    assert match_classes(("Car", "car"), ("car",)).to_dataset.tolist() == [1]
    assert match_classes(("person", "pedestrian"), ("person",)).unknown == ("pedestrian",)


def test_a_tie_is_left_unmatched_and_shows_as_unknown() -> None:
    match = match_classes(("tv", "monitor", "cat"), ("television", "cat"))
    assert match.to_dataset.tolist() == [-1, 2]
    assert match.unknown == ("tv", "monitor")


@pytest.mark.parametrize(("dataset", "detector"), [(("cat",), ("dog",)), (("cat",), ()), ((), ("cat",))])
def test_no_match_at_all_is_an_error(dataset: tuple[str, ...], detector: tuple[str, ...]) -> None:
    with pytest.raises(ObjectSeekerError, match="knows none of the dataset's classes"):
        match_classes(dataset, detector)
