"""The best recipe within a budget of passes: what fits, what is chosen, and that the held-out half has no say."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_cases import VOCABULARY, boxes
from store_cases import manifest, write_boxes

from objectseeker import Detections, ObjectSeekerError, tune
from objectseeker.cli._tuning_tables import frontier_plot, frontier_rows, save_tuning
from objectseeker.core.recipes import parse_recipe, subrecipes
from objectseeker.datasets import DatasetImage
from objectseeker.metrics import SearchSpace, SearchSpec, evaluate_images
from objectseeker.metrics.ap_search import LabelTuner, settings_at_alpha
from objectseeker.metrics.image_set import split_images
from objectseeker.metrics.search import (
    FINALISTS,
    NO_GAIN,
    RecipeTrial,
    finalists,
    recipes_among,
    search_recipes,
    within_budget,
)
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.run import open_run
from objectseeker.runs.writer import open_writer

MASKS = parse_recipe("halves:5+bands:4%")
SIZES = [(100, 100), (200, 60), (60, 60)] * 2
SEARCH = SearchSpec(
    mask_floor=0.1,
    clean_recall=0.9,
    max_ap_loss=20.0,
    losses=(),
    rule_kinds=("paper",),
    search_space=SearchSpace((0.6,), (1.0,), (0.1,)),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Views that show an object unless their mask removes most of it, and now and then one that is not there."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("budget") / "run"
    truths = [rng.uniform(5, 25, 2) for _ in SIZES]
    objects = [Detections([[*at, *(at + 25)]], [1.0], [number % 2]) for number, at in enumerate(truths)]
    none = np.zeros(1, bool)
    entries = tuple(
        DatasetImage(str(number), Path(f"{number}.jpg"), size, truth, none, none)
        for number, (size, truth) in enumerate(zip(SIZES, objects, strict=True))
    )
    names = VOCABULARY.dataset_names
    made = manifest(
        images=entries,
        observation_settings=ObservationSettings(MASKS, base_floor=0.0, mask_floor=0.1),
        dataset_names=names,
        detector_names=names,
        detector_options={},
        dataset_labels=(0, 1),
        unmatched_classes=(),
    )
    with open_writer(folder, made) as writer:
        for index, (size, truth) in enumerate(zip(SIZES, objects, strict=True)):
            (box,), label = truth.xyxy.tolist(), int(truth.label[0])
            views = []
            for x1, y1, x2, y2 in MASKS.masks(*size).removed[:, 0].tolist():
                wide = max(min(x2, box[2]) - max(x1, box[0]), 0)
                hidden = wide * max(min(y2, box[3]) - max(y1, box[1]), 0) > 400  # of 625 pixels
                seen = [] if hidden else [(*box, rng.uniform(0.4, 0.9), label)]
                false = [(0, 0, 9, 9, rng.uniform(0.1, 0.6), 1 - label)] if rng.random() < 0.1 else []
                views.append(boxes(seen + false))
            write_boxes(writer, index, boxes([(*box, 0.4, label)]), views)
    return open_run(folder)


def searched(run, budgets, spec=SEARCH, recipes=(), processes=1, on_progress=lambda *step: None):
    images, steps = list(run.images()), []
    on_trial = lambda trial: on_progress("settings tried", steps.append(trial) or len(steps), 0)  # noqa: E731
    tuner = LabelTuner(images, run.label_map, spec, MASKS, processes, on_trial)
    candidates = within_budget(recipes_among(MASKS, recipes), images, budgets)
    return search_recipes(tuner, candidates, budgets, on_progress)


@pytest.fixture(scope="module")
def found(run):
    return searched(run, [9, 26, 60])


def test_what_is_chosen_keeps_its_budget_on_every_image(run, found):
    assert [one.budget for one in found.frontier] == [9, 26, 60]
    for one in found.frontier:
        assert one.forward_passes == max(one.masks.forward_passes(*size) for size in SIZES) <= one.budget
    assert {tried.recipe for tried in found.recipes} <= set(subrecipes(MASKS))
    assert {one.masks for one in found.frontier} <= {tried.recipe for tried in found.recipes}
    assert found.best == found.frontier[-1]
    gains = [one.search_split.gain for one in found.frontier]
    assert gains == sorted(gains)
    assert gains[0] < gains[-1]


def test_figures_are_those_of_evaluating_these_views_alone(run, found):
    """On the half that was searched and on the other."""
    images = list(run.images())
    searched, held_out = split_images(len(images), 2, 0)
    assert held_out.tolist() == found.held_out.tolist()
    for one in found.frontier:
        for index, trial in ((searched, one.search_split), (held_out, one.held_out_split)):
            part = []
            for i in index:
                seen = images[i].observation
                under = seen.restricted_to(one.masks.masks(seen.width, seen.height))
                part.append(replace(images[i], observation=under))
            there = replace(trial.settings, base_threshold=trial.outcome.base_threshold, clean_recall=None)
            told = evaluate_images(part, run.label_map, there)
            assert told.defended.certified_recall() == trial.outcome.certified_recall()
            assert told.defended.ap50 == trial.outcome.ap50


def test_several_processes_find_the_same(run, found):
    steps = []
    again = searched(run, [9, 26], processes=2, on_progress=lambda *step: steps.append(step))
    assert [one.to_dict() for one in again.frontier] == [one.to_dict() for one in found.frontier[:2]]
    assert steps[-1][0] == "masks searched in full"
    assert steps[-1][1] == steps[-1][2] > 1


def test_progress_names_recipes_and_settings(run):
    steps = []
    searched(run, [9], on_progress=lambda *step: steps.append(step))
    assert steps[0] == ("masks tried", 1, 2)
    assert steps[-1] == ("masks searched in full", 2, 2)
    settings = [done for what, done, _ in steps if what == "settings tried"]
    assert settings == list(range(1, len(settings) + 1))
    assert len(settings) > 42


def test_a_budget_that_nothing_keeps_names_the_smallest(run):
    images = list(run.images())
    with pytest.raises(ObjectSeekerError, match=r"needs at most 4 passes .* the fewest are 5, with halves:1$"):
        within_budget(subrecipes(MASKS), images, [40, 4])
    with pytest.raises(ObjectSeekerError, match="passes must be at least 1: got 0"):
        tune(run, passes=[9, 0])
    with pytest.raises(ObjectSeekerError, match=r"^at most 9 passes: halves:2: no setting loses at most -1 points"):
        searched(run, [9], replace(SEARCH, max_ap_loss=-1.0))


def test_the_worst_image_decides_and_the_same_masks_are_tried_once(run):
    images = list(run.images())
    needed = {str(one.recipe): one.forward_passes for one in within_budget(subrecipes(MASKS), images, [1000])}
    assert needed["bands:0.04"] == max(parse_recipe("bands:4%").forward_passes(*size) for size in SIZES)
    assert len({parse_recipe("bands:4%").forward_passes(*size) for size in SIZES}) > 1
    twice = within_budget(subrecipes(parse_recipe("halves:5+halves:11")), images, [1000])
    masks = [frozenset(each.recipe.masks(100, 100).keys) for each in twice]
    assert len(set(masks)) == len(masks) < len(subrecipes(parse_recipe("halves:5+halves:11")))
    assert {"halves:1", "halves:5", "halves:11"} < {str(one.recipe) for one in twice}


def test_only_recipes_that_may_still_be_the_best_are_searched():
    line = settings_at_alpha(SEARCH, 0.5)
    tried = [
        RecipeTrial(parse_recipe(text), passes, gain, 0.5, line)
        for text, passes, gain in (("halves:9", 37, 50.0), ("halves:8", 33, 49.0), ("halves:7", 29, 48.9))
    ]
    close = LabelTuner.close
    tried.append(RecipeTrial(parse_recipe("halves:2"), 9, 48.9 - 2 * close, 0.5, line))
    tried.append(RecipeTrial(parse_recipe("halves:1"), 5, NO_GAIN, 3.0, line))
    assert sorted(tried, key=lambda one: one.rank) == tried
    assert FINALISTS == 2
    assert [one.forward_passes for one in finalists(tried, [5, 9, 29, 40], close)] == [37, 33, 29, 9, 5]
    assert [one.forward_passes for one in finalists(tried, [29], close)] == [29]
    assert [one.forward_passes for one in finalists(tried, [29], math.inf)] == [29, 9]


def test_a_search_never_ends_below_what_the_line_gave(run, found):
    gave = {one.recipe: one for one in found.recipes}
    for one in found.frontier:
        line = gave[one.masks]
        assert one.search_split.gain >= line.gain > NO_GAIN
        assert line.settings == settings_at_alpha(SEARCH, line.settings.threshold_schedule.alpha)


def test_only_the_masks_asked_for(run):
    only = searched(run, [60], recipes=[parse_recipe("halves:1")])
    assert [str(one.recipe) for one in only.recipes] == ["halves:1"]
    with pytest.raises(
        ObjectSeekerError, match=r"^halves:3 is not within the run's masks halves:5\+bands:0.04: observe"
    ):
        searched(run, [60], recipes=[parse_recipe("halves:3")])


def test_tables_and_plot_show_every_budget(found, tmp_path):
    assert save_tuning(tmp_path, found) == []  # it is unknown how the detector is loaded
    assert {"tuning.json", "frontier.csv", "tuning.md"} <= {p.name for p in tmp_path.iterdir()}
    stored = json.loads((tmp_path / "tuning.json").read_text())
    assert [row["budget"] for row in stored["frontier"]] == [9, 26, 60]
    for row, one in zip(frontier_rows(found), found.frontier, strict=True):
        assert row["mean"] == f"{one.held_out_split.mean_certified_recall:.1f}"
        assert (row["max passes"], row["passes"]) == (str(one.budget), str(one.forward_passes))
        assert str(one.masks) in (tmp_path / "frontier.csv").read_text()
    certified, cost = frontier_plot(found).panels
    assert not certified.is_empty
    assert not cost.is_empty
    assert certified.series[0].x == cost.series[0].x == [one.forward_passes for one in found.frontier]
