"""Policies: strict to the last key, and limits that cannot be misread."""

import re

import pytest

from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.policy import EXAMPLE, KINDS, parse_policy
from objectseeker.metrics.policy_metrics import METRICS


def policy(*requirements, start="format = 1"):
    return "\n".join([start, *(f"[[require]]\n{text}" for text in requirements)])


def test_the_example_parses_as_it_stands_and_with_all_its_comments_removed():
    assert [one.figure for one in parse_policy(EXAMPLE).requirements] == [
        "certified_recall",
        "clean_ap50_loss",
        "clean_recall",
        "false_alerts",
    ]
    everything = parse_policy(re.sub(r"^# (?=\[\[require\]\]|[a-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE))
    assert {one.figure for one in everything.requirements} == set(KINDS)
    assert everything.confidence == 0.95


def test_every_figure_is_measured_or_read_from_a_file():
    assert set(KINDS) == {*METRICS, "recall_under_attack", "check_detector"}


def test_a_requirement_says_itself_in_words():
    (one,) = parse_policy(
        policy(
            'figure = "certified_recall"\nwhere = "over"\npatch = "2%"\naspect = 2.0\nthreshold = 0.1\n'
            'classes = ["person", "car"]\nobject_size = [0.05, 1.0]\nslice = "weather"\nat_least = "20 %"'
        )
    ).requirements
    assert one.in_words() == (
        "certified recall against a patch of 2 %, 2 times as wide as high over with T = 0.1 of person, car of objects "
        "of 5 to 100 % for every weather"
    )
    assert one.limit_in_words() == "at least 20 %"
    (other,) = parse_policy(policy('figure = "clean_ap50"\nno_worse_than_baseline_by = "0.5 points"')).requirements
    assert other.limit_in_words() == "no worse than the baseline by more than 0.5 points"


RECALL = 'figure = "certified_recall"\nwhere = "far"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1\nrequire = 3", "write [[require]]"),
        ("format = 1", "write [[require]]"),
        ("format = 2", "format must be 1, got 2"),
        ("", "format must be 1, got None"),
        ("format = ", "not valid TOML"),
        ("format = 1\nconfidense = 0.9", "did you mean confidence?"),
        ("format = 1\nconfidence = 95", "below 1, got 95"),
        ("format = 1\nseed = -1", "seed must be a whole number"),
        ("format = 1\nsamples = 10", "samples must lie within"),
        (policy('figure = "certified_recal"'), "did you mean certified_recall?"),
        (policy('figure = "color"'), "it knows certified_recall, joint_certified_recall, clean_recall"),
        (policy(RECALL + 'at_leest = "3 %"'), "did you mean at_least?"),
        (policy(RECALL + 'at_most = "3 %"'), "has no 'at_most'"),
        (policy(RECALL), "needs at_least or no_worse_than_baseline_by"),
        (policy(RECALL + 'at_least = "3 %"\nno_worse_than_baseline_by = "1 point"'), "it has 2"),
        (policy('figure = "certified_recall"\nat_least = "3 %"'), "where = one of far, close, over, anywhere"),
        (policy(RECALL + "at_least = 0.4"), 'must be a text such as "40 %", got 0.4'),
        (policy(RECALL + 'at_least = "0.4"'), 'must be a text such as "40 %"'),
        (policy(RECALL + 'at_least = "3 points"'), 'must be a text such as "40 %"'),
        (policy(RECALL + 'at_least = "1.2.3 %"'), 'must be a text such as "40 %"'),
        (policy(RECALL + 'at_least = "140 %"'), "within 0 and 100"),
        (policy('figure = "clean_ap50"\nno_worse_than_baseline_by = "1 %"'), 'such as "0.5 points"'),
        (policy(RECALL + 'at_least = "3 %"\npatch = 1'), "got '1'"),
        (policy(RECALL + 'at_least = "3 %"\naspect = 0'), "patch aspect must lie within"),
        (policy(RECALL + 'at_least = "3 %"\nclasses = "person"'), "classes must be a list"),
        (policy(RECALL + 'at_least = "3 %"\nobject_size = [0.5, 0.1]'), "object_size must ascend"),
        (policy(RECALL + 'at_least = "3 %"\nclasses = ["a"]\nslice = "class"'), "not both"),
        (policy('figure = "false_alerts"\nat_most = "3 %"\nslice = "class"'), "not counted by class"),
        (policy('figure = "clean_ap50"\nat_least = "3 %"\nslice = "size"'), "not counted by size"),
        (policy('figure = "fppi"\nat_most = "3 %"'), "at_most must be a number"),
        (policy('figure = "check_detector"\nat_least = "3 %"'), "has no 'at_least'"),
        (policy(RECALL + 'at_least = "3 %"\nfewest_objects = 1.5'), "whole number"),
        (policy(RECALL + 'at_least = "3 %"', RECALL + 'at_least = "3 %"'), "2 requirements are called"),
    ],
)
def test_what_is_not_understood_is_refused(text, message):
    with pytest.raises(ObjectSeekerError) as error:
        parse_policy(text, "mine.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("mine.toml")
