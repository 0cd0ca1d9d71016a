"""Policies: strict to the last key, and limits that cannot be misread."""

import re

import pytest

from objectseeker.errors import ObjectSeekerError
from objectseeker.gate.judge import METRICS
from objectseeker.gate.policy import EXAMPLE, METRIC_SPECS, parse_policy


def policy(*requirements, start="format = 1"):
    return "\n".join([start, *(f"[[require]]\n{text}" for text in requirements)])


def test_the_example_parses_as_it_stands_and_with_all_its_comments_removed():
    assert [one.metric for one in parse_policy(EXAMPLE).requirements] == [
        "certified_recall",
        "clean_ap50_loss",
        "clean_recall",
        "false_alert_rate",
    ]
    everything = parse_policy(re.sub(r"^# (?=\[\[require\]\]|[a-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE))
    assert {one.metric for one in everything.requirements} == set(METRIC_SPECS)
    assert everything.confidence == 0.95


ABOUT_A_PATCH = (
    "certified_recall",
    "joint_certified_recall",
    "certified_true_positives",
    "certified_false_positives",
    "recall_under_attack",
)


def test_every_figure_is_measured_or_read_from_a_file():
    assert set(METRIC_SPECS) == {*METRICS, *ABOUT_A_PATCH, "detector_check"}


def test_a_requirement_says_itself_in_words():
    (one,) = parse_policy(
        policy(
            'metric = "certified_recall"\nlocation = "over"\npatch_area = "2%"\npatch_aspect = 2.0\n'
            "certification_threshold = 0.1\n"
            'classes = ["person", "car"]\nobject_size = [0.05, 1.0]\nslice = "weather"\nat_least = "20 %"'
        )
    ).requirements
    assert one.describe() == (
        "certified recall against a patch of 2 %, 2 times as wide as high over with T = 0.1 of person, car of objects "
        "of 5 to 100 % for every weather"
    )
    assert one.describe_limit() == "at least 20 %"
    (other,) = parse_policy(policy('metric = "clean_ap50"\nmax_regression = "0.5 points"')).requirements
    assert other.describe_limit() == "at most 0.5 points worse than the baseline"


RECALL = 'metric = "certified_recall"\nlocation = "far"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1\nrequire = 3", "write [[require]]"),
        ("format = 1", "write [[require]]"),
        ("format = 2", "format must be 1: got 2"),
        ("", "format must be 1: got None"),
        ("format = ", "not valid TOML"),
        ("format = true", "format must be 1: got True"),
        ("format = 1.0", "format must be 1: got 1.0"),
        (f"format = {'9' * 5000}", "not valid TOML"),
        ("format = 1\nconfidence = nan", "numbers must be finite"),
        (policy("metric = [1]"), "must have a metric: got [1]"),
        ("format = 1\nconfidense = 0.9", "did you mean confidence?"),
        ("format = 1\nconfidence = 95", "below 1: got 95"),
        ("format = 1\nseed = -1", "seed must be a whole number"),
        ("format = 1\nbootstrap_samples = 10", "bootstrap_samples must be within"),
        (policy('metric = "certified_recal"'), "did you mean certified_recall?"),
        (policy('metric = "color"'), "it knows certified_recall, joint_certified_recall, certified_true_positives"),
        (policy(RECALL + 'at_leest = "3 %"'), "did you mean at_least?"),
        (policy(RECALL + 'at_most = "3 %"'), "has no 'at_most'"),
        (policy(RECALL), "needs at_least or max_regression"),
        (policy(RECALL + 'at_least = "3 %"\nmax_regression = "1 point"'), "it has 2"),
        (policy('metric = "certified_recall"\nat_least = "3 %"'), "location = one of far, close, over, anywhere"),
        (policy(RECALL + "at_least = 0.4"), 'must be a string such as "40 %": got 0.4'),
        (policy(RECALL + 'at_least = "0.4"'), 'must be a string such as "40 %"'),
        (policy(RECALL + 'at_least = "3 points"'), 'must be a string such as "40 %"'),
        (policy(RECALL + 'at_least = "1.2.3 %"'), 'must be a string such as "40 %"'),
        (policy(RECALL + 'at_least = "140 %"'), "within 0 and 100"),
        (policy('metric = "clean_ap50"\nmax_regression = "1 %"'), 'such as "0.5 points"'),
        (policy(RECALL + 'at_least = "3 %"\npatch_area = 1'), "got '1'"),
        (policy(RECALL + 'at_least = "3 %"\npatch_aspect = 0'), "patch aspect must lie within"),
        (policy(RECALL + 'at_least = "3 %"\nclasses = "person"'), "classes must be a list"),
        (policy(RECALL + 'at_least = "3 %"\nobject_size = [0.5, 0.1]'), "object_size must ascend"),
        (policy(RECALL + 'at_least = "3 %"\nclasses = ["a"]\nslice = "class"'), "not both"),
        (policy('metric = "false_alert_rate"\nat_most = "3 %"\nslice = "class"'), "cannot be sliced by class"),
        (policy('metric = "clean_ap50"\nat_least = "3 %"\nslice = "size"'), "cannot be sliced by size"),
        (policy('metric = "fppi"\nat_most = "3 %"'), "at_most must be a number"),
        (policy('metric = "detector_check"\nat_least = "3 %"'), "has no 'at_least'"),
        (policy(RECALL + 'at_least = "3 %"\nmin_objects = 1.5'), "whole number"),
        (policy(RECALL + 'at_least = "3 %"', RECALL + 'at_least = "3 %"'), "2 requirements are called"),
    ],
)
def test_what_is_not_understood_is_refused(text, message):
    with pytest.raises(ObjectSeekerError) as error:
        parse_policy(text, "mine.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("mine.toml")
