"""Figures slice by slice: each is what the slice's own images or objects give, and the worst is named with care."""

import dataclasses

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, VOCABULARY, evaluated, noisy

from objectseeker import ObjectSeekerError
from objectseeker.metrics import evaluate_images
from objectseeker.metrics.slices import (
    MIN_SLICE_OBJECTS,
    NO_TAGS,
    ImageTags,
    SliceMetrics,
    describe_worst,
    measure_slices,
    require_slices,
    worst_slices,
)
from objectseeker.metrics.tally import TallyRequest, tally_images

IMAGES = noisy(4, 6)
TAGS = ImageTags({"weather": ("rain", "sun", "rain", "", "sun", "rain"), "camera": ("1",) * 6})
RULE = evaluate_images(IMAGES, VOCABULARY, EVIDENCE).defended.rule
assert RULE is not None
OWN = dataclasses.replace(EVIDENCE, rule=RULE, clean_recall=None)


def measured(slices, images=IMAGES, tags=TAGS):
    request = TallyRequest(settings=OWN, rule=OWN.rule, threats=(OWN.threat,), joint_threats=(OWN.threat,))
    return measure_slices(tally_images(images, VOCABULARY, request), tags, slices, OWN.threat)


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in measured(["weather", "class", "size"])}


def test_a_slice_of_images_is_what_these_images_give_alone(rows):
    assert [name for name in rows if name.startswith("weather")] == ["weather=rain", "weather=sun"]
    for name, chosen in (("weather=rain", (0, 2, 5)), ("weather=sun", (1, 4))):
        alone, row = evaluated([IMAGES[n] for n in chosen], OWN), rows[name]
        assert (row.images, row.objects) == (len(chosen), alone["objects"])
        ours = alone["defended"]
        assert row.certified == pytest.approx(ours["certified_recall"])
        assert (row.clean_recall, row.fppi) == pytest.approx((ours["clean_recall"], ours["fppi"]))
        assert (row.joint_certified_recall, row.vacuous_far) == (
            pytest.approx(ours["joint_certified_recall"]),
            ours["vacuous_far"],
        )


def test_slices_of_objects_are_those_of_the_class_and_size(rows):
    for one in evaluated(IMAGES, OWN)["per_class"]:
        row = rows[f"class={one['class']}"]
        assert row.objects == one["objects"]
        assert row.certified == pytest.approx(one["certified_recall"])
        assert row.clean_recall == pytest.approx(one["clean_recall"])
        assert (row.joint_certified_recall, row.fppi) == (None, None)
    sizes = [row for name, row in rows.items() if name.startswith("size")]
    assert [row.name for row in sizes] == ["size=small", "size=medium", "size=large"]
    assert sum(row.objects for row in sizes) == 6
    assert sizes[0].certified["far"] is None  # it has none


def test_one_value_can_be_asked_for_and_what_is_not_there_is_refused():
    asked = ["camera=1", "weather=sun", "class=dog", "size=large", "weather=sun"]
    found = measured(asked)
    assert [row.name for row in found] == asked[:4]
    for wrong, message in (
        ("wether", "did you mean weather"),
        ("weather=snow", "no image has weather=snow"),
        ("class=cta", "did you mean cat"),
        ("size=huge", "small, medium, large: got 'huge'"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            require_slices([wrong], VOCABULARY.dataset_names, TAGS)  # before any image is read
    with pytest.raises(ObjectSeekerError, match="give --tags FILE"):
        require_slices(["weather"], VOCABULARY.dataset_names, NO_TAGS)


def test_some_of_the_images_keep_their_tags():
    some = TAGS.of(np.array([4, 0]))
    assert some.columns["weather"] == ("sun", "rain")


def made(name, objects, anywhere):
    certified = dict.fromkeys(("far", "close", "over", "anywhere"), anywhere)
    return SliceMetrics(
        name=name,
        images=objects,
        objects=objects,
        clean_recall=90.0,
        certified=certified,
        vacuous_far=0,
        joint_certified_recall=None,
        fppi=None,
    )


def test_a_slice_of_few_objects_is_not_called_the_worst():
    rows = [
        made("w=fog", MIN_SLICE_OBJECTS - 1, 0.0),
        made("w=rain", MIN_SLICE_OBJECTS, 20.0),
        made("w=sun", 500, 30.0),
        made("c=1", 2, None),
    ]
    assert {column: row and row.name for column, row in worst_slices(rows).items()} == {"w": "w=rain", "c": None}
    assert describe_worst(rows) == [
        "worst w: w=rain, 20.0 % of 30 objects are certified anywhere; skipped, with fewer than 30 objects: w=fog (29)",
        "worst c: unknown, every slice has fewer than 30 objects: c=1 (2)",
    ]
