"""Runs next to each other: paired differences, differences of independent runs, and rules tuned on the other half."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, noisy

from objectseeker import Defense, Halves, ObjectSeekerError, Rule
from objectseeker.metrics import ImageSet, SearchSpace, SearchSpec, ThreatModel, evaluate_images, tune_images
from objectseeker.metrics.comparison import MeasuredRun, _difference, compare, cross_tune
from objectseeker.metrics.evaluation import FABRICATION_ROWS, evaluation_metrics
from objectseeker.metrics.image_set import split_images

CHOICES = SearchSpace((0.6,), (1.0,), (0.1,))
SEARCH = SearchSpec(mask_floor=0.15, clean_recall=0.9, max_ap_loss=5.0, losses=(), search_space=CHOICES, seed=1)


def measured(images, settings=PAPER, name="run") -> MeasuredRun:
    found = evaluate_images(images, VOCABULARY, settings)
    return MeasuredRun(name, found.tally, evaluation_metrics(found), found.intervals, {})


class TestDifferences:
    def test_a_run_does_not_differ_from_itself(self):
        one = measured(noisy(4, 14))
        difference = _difference(one, one)
        assert difference.paired
        assert set(difference.metrics) == set(one.metrics)
        for name, interval in difference.metrics.items():
            if np.isnan(one.intervals[name].value):  # no box of the kind that it counts
                assert np.isnan(interval.value), name
                continue
            assert interval.value == 0, name
            assert interval.low <= 0 <= interval.high
            # What never differed may differ on images of a kind that is too rare to be among 14: no more than that.
            assert interval.high <= 2 * one.metrics[name].upper(one.tally)

    def test_a_difference_is_the_second_minus_the_first_and_narrower_than_unpaired(self):
        images = noisy(4, 40)
        first, second = measured(images, PAPER), measured(images, EVIDENCE)
        difference = _difference(second, first)
        narrower = 0
        for name, interval in difference.metrics.items():
            apart = second.intervals[name].value - first.intervals[name].value
            assert interval.value == pytest.approx(apart, abs=2e-6, nan_ok=True)
            width = first.intervals[name].high - first.intervals[name].low
            narrower += interval.high - interval.low < width
        assert narrower >= 5

    def test_runs_of_other_images_are_not_paired(self):
        """Square-and-add: the reach of a difference is that of both intervals, as for independent estimates."""
        first, second = measured(noisy(4, 20)), measured(noisy(5, 30))
        difference = _difference(second, first)
        assert not difference.paired
        name = "defended.ap50"
        one, other, apart = second.intervals[name], first.intervals[name], difference.metrics[name]
        assert apart.value == one.value - other.value
        assert apart.value - apart.low == pytest.approx(np.hypot(one.value - one.low, other.high - other.value))
        assert apart.high - apart.value == pytest.approx(np.hypot(one.high - one.value, other.value - other.low))

    def test_the_same_images_with_other_objects_are_not_paired(self):
        images = noisy(4, 6)
        fewer = [
            *images[:5],
            type(images[5])(
                *(getattr(images[5], name) for name in ("id", "path", "observation")),
                images[5].ground_truth[:0],
                images[5].ignore[:0],
                images[5].crowd[:0],
            ),
        ]
        one, other = (evaluate_images(some, VOCABULARY, PAPER).tally for some in (images, fewer))
        assert one.has_objects_of(one)
        assert not one.has_objects_of(other)


class TestCrossTuned:
    def test_each_half_is_measured_under_the_rule_tuned_on_the_other(self):
        images = noisy(4, 14)
        found = cross_tune(images, VOCABULARY, SEARCH)
        halves = split_images(14, 2, SEARCH.seed)
        for half, evaluation, trial in zip((0, 1), found.evaluations, found.searched, strict=True):
            best = tune_images(
                images,
                VOCABULARY,
                SearchSpec(**{name: getattr(SEARCH, name) for name in SEARCH.__slots__} | {"half": half}),
            ).best
            assert trial.to_dict() == best.search_split.to_dict()
            assert evaluation.settings == best.search_split.settings
            held_out = [images[n] for n in halves[1 - half]]
            assert evaluation.to_dict() == evaluated(held_out, best.search_split.settings)
            assert evaluation.tally.ids == tuple(one.id for one in held_out)
        assert found.tally.ids == tuple(one.id for one in images)
        value = found.metrics()["defended.certified_recall.far"].value(found.tally)
        certified = sum(one.defended.certified_recall()["far"] * one.objects / 100 for one in found.evaluations)
        assert value == pytest.approx(100 * certified / sum(one.objects for one in found.evaluations))

    def test_a_loss_that_cannot_be_kept_is_an_error(self):
        with pytest.raises(ObjectSeekerError, match="-50"):
            cross_tune(
                noisy(4, 14),
                VOCABULARY,
                SearchSpec(mask_floor=0.15, max_ap_loss=-50.0, losses=(), search_space=CHOICES),
            )


def stored(images, name):
    """What `compare` needs of a run."""
    defense = Defense.for_detector("builtin", masks=Halves(6))
    observing = SimpleNamespace(masks=Halves(6), mask_floor=0.15, base_floor=0.0)
    return SimpleNamespace(
        folder=Path(name),
        indices=range(len(images)),
        manifest=SimpleNamespace(observation_settings=observing),
        label_map=VOCABULARY,
        images=lambda: list(images),
        defense=lambda: defense,
        bind_defense=lambda one: one,
        tuned_images=lambda one: 0,
        require_scores=lambda **_: None,
    )


@pytest.mark.parametrize("options", [{}, {"clean_recall": 0.9}, {"cross_tune": 5.0, "clean_recall": 0.9, "seed": 1}])
def test_runs_are_compared_with_the_first(options):
    images = noisy(4, 14)
    runs = [stored(images, "plain"), stored(images, "plain"), stored(noisy(5, 10), "other")]
    steps = []
    comparison = compare(runs, threat=ThreatModel(area=0.02), processes=1, on_step=lambda: steps.append(1), **options)
    content = comparison.to_dict()
    assert json.loads(json.dumps(content)) == content
    assert [run["run"] for run in content["runs"]] == ["plain (1)", "plain (2)", "other"]
    assert [(one["run"], one["against"], one["paired"]) for one in content["differences"]] == [
        ("plain (2)", "plain (1)", True),
        ("other", "plain (1)", False),
    ]
    assert all(one["value"] == 0 for one in content["differences"][0]["metrics"].values())
    assert len(comparison.caveats()) == 1
    rows = comparison.rows()
    assert list(rows[0]) == ["", "plain (1)", "plain (2)", "other", "plain (2) - plain (1)", "other - plain (1)"]
    assert len(steps) >= 38
    if "cross_tune" not in options:
        assert "patch_area=0.02" in comparison.protocol
        expected = evaluated(images, changed(PAPER, clean_recall=None))["undefended"]["ap50"]
        assert content["runs"][0]["metrics"]["undefended.ap50"]["value"] == pytest.approx(expected)


def test_defenses_of_their_own():
    images = noisy(4, 14)
    runs = [stored(images, "one"), stored(images, "two")]
    strict = Defense(detector="builtin", rule=Rule(base_threshold=0.3, mask_threshold=0.95), masks=Halves(6))
    plain, found = (
        compare(runs, [runs[0].defense(), strict], fabrication=requested, processes=1) for requested in (False, True)
    )
    assert found.differences[0].metrics["defended.certified_recall.far"].value < 0
    assert "defended.output_ap50" in found.differences[0].metrics
    assert plain.differences[0].metrics.items() < found.differences[0].metrics.items()
    assert plain.rows() == [row for row in found.rows() if row[""] not in FABRICATION_ROWS]
    scene = ImageSet.from_images(images, VOCABULARY)
    assert len(scene.counted) == found.to_dict()["runs"][0]["objects"]
