"""Matching a detector's class names to a dataset's."""

from __future__ import annotations

import pytest

from objectseeker.datasets import match_classes
from objectseeker.detectors.network.class_names import VOC_20 as VOC
from objectseeker.errors import ObjectSeekerError

COCO_SIDE_OF_VOC = (
    *("airplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("dining table", "dog", "horse", "motorcycle", "person", "potted plant", "sheep", "couch", "train", "tv"),
)


@pytest.mark.parametrize(("dataset", "detector"), [(VOC, COCO_SIDE_OF_VOC), (COCO_SIDE_OF_VOC, VOC)])
def test_voc_and_coco_names_match_one_to_one(dataset: tuple[str, ...], detector: tuple[str, ...]) -> None:
    match = match_classes(dataset, detector)
    assert match.dataset_labels.tolist() == list(range(20))
    assert match.unmatched_dataset == ()
    assert match.unmatched_detector == ()
    assert match.warnings == ()


def test_classes_without_a_counterpart_are_reported() -> None:
    match = match_classes(("car", "pedestrian", "cyclist"), ("person", "bicycle", "car", "zebra"))
    assert match.dataset_labels.tolist() == [1, -1, 0, -1]
    assert match.unmatched_dataset == ("cyclist",)
    assert len(match.unmatched_detector) == 2
    assert match.warnings == (
        "dataset classes skipped because the detector does not know them: cyclist",
        "detector classes that match none of the dataset: bicycle, zebra; a class map can pair them",
    )


def test_spelling_does_not_matter() -> None:
    match = match_classes(("Traffic Light", "hot_dog", "t-shirt"), ("T shirt", "traffic-light", "HOTDOG"))
    assert match.dataset_labels.tolist() == [2, 0, 1]


def test_several_detector_classes_may_be_one_dataset_class() -> None:
    assert match_classes(("tvmonitor",), ("tv", "monitor", "screen")).dataset_labels.tolist() == [0, 0, -1]


def test_closest_match_wins() -> None:
    assert match_classes(("pedestrian", "person"), ("Person", "pedestrian")).dataset_labels.tolist() == [1, 0]
    assert match_classes(("Car", "car"), ("car",)).dataset_labels.tolist() == [1]
    assert match_classes(("person", "pedestrian"), ("person",)).unmatched_dataset == ("pedestrian",)


def test_a_tie_is_left_unmatched_and_shows_as_unknown() -> None:
    match = match_classes(("tv", "monitor", "cat"), ("television", "cat"))
    assert match.dataset_labels.tolist() == [-1, 2]
    assert match.unmatched_dataset == ("tv", "monitor")


@pytest.mark.parametrize(("dataset", "detector"), [(("cat",), ("dog",)), (("cat",), ()), ((), ("cat",))])
def test_no_match_at_all_is_an_error(dataset: tuple[str, ...], detector: tuple[str, ...]) -> None:
    with pytest.raises(ObjectSeekerError, match="knows none of the dataset's classes"):
        match_classes(dataset, detector)


def test_a_class_map_comes_before_the_names() -> None:
    names = ("car", "person", "cat")
    match = match_classes(names, ("Pkw", "car", "cat"), class_map={"Pkw": "car", "car": "person"})
    assert match.dataset_labels.tolist() == [0, 1, 2]
    assert match.warnings == ()
    assert match_classes(names, ("Pkw", "Lkw"), class_map={"Pkw": "car", "Lkw": "car"}).dataset_labels.tolist() == [
        0,
        0,
    ]
    assert match_classes(names, ("cat",), class_map={}).dataset_labels.tolist() == [2]


@pytest.mark.parametrize(
    ("class_map", "words"),
    [
        ({"Pwk": "car"}, "the class map names 'Pwk', which the detector does not have; the nearest is 'Pkw'"),
        ({"Pkw": "Caar"}, "names 'Caar', which the dataset does not have; the nearest is 'car'"),
        ({"zebra": "car"}, "the detector does not have; it has Pkw, truck"),
        ({"Pkw": "x" * 9000}, "which the dataset does not have; it has car, person"),
    ],
)
def test_unknown_names_in_a_class_map_are_refused_with_the_nearest(class_map: dict[str, str], words: str) -> None:
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        match_classes(("car", "person"), ("Pkw", "truck"), class_map=class_map)
    assert len(str(caught.value)) < 300


def test_near_misses_are_suggested_in_two_lines() -> None:
    match = match_classes(("car", "cyclist", "tram"), ("car", "bus", "bicyclist", *(f"kind {n}" for n in range(50))))
    assert match.warnings == (
        "dataset classes skipped because the detector does not know them: cyclist, tram",
        "detector classes that match none of the dataset: bicyclist (nearest is cyclist), bus, kind 0, kind 1, kind 2 "
        "and 47 more; a class map can pair them",
    )
    many = match_classes(("car", *(f"rarity {n}" for n in range(500))), ("car", "line\nbreak"))
    assert all("\n" not in line and len(line) < 400 for line in many.warnings)
    assert "rarity 19 and 480 more" in many.warnings[0]


def test_thousands_of_classes_are_matched_at_once() -> None:
    names = [f"class {n}" for n in range(5000)]
    assert match_classes(names, names[::-1]).dataset_labels.tolist() == list(range(4999, -1, -1))


def test_labels_cannot_be_changed_and_the_first_nearest_name_is_suggested() -> None:
    match = match_classes(("car", "cart"), ("car", "cart"))
    assert not match.dataset_labels.flags.writeable
    with pytest.raises(ObjectSeekerError, match="the nearest is 'carts'"):
        match_classes(("car",), ("carsx", "carts", "car"), class_map={"cartss": "car"})


@pytest.mark.parametrize(("count", "listed"), [(4, ""), (5, ""), (6, " and 1 more"), (9, " and 4 more")])
def test_five_names_are_listed_in_an_error(count: int, listed: str) -> None:
    names = [f"k{n}" for n in range(count)]
    with pytest.raises(ObjectSeekerError, match=rf"it has {', '.join(names[:5])}{listed}$"):
        match_classes(names, names, class_map={"zebra": "k0"})
