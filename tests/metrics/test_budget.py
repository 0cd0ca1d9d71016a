"""The best recipe within a budget of passes: what fits, what is chosen, and that the held-out half has no say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_cases import VOCABULARY, boxes
from store_cases import manifest, write_boxes

from objectseeker import Detections, ObjectSeekerError
from objectseeker.cli._tuning_tables import recipe_plot, recipe_rows, save_recipes
from objectseeker.core.recipes import parse_recipe, subrecipes
from objectseeker.datasets import DatasetImage
from objectseeker.metrics import SearchSpace, SearchSpec, evaluate_images
from objectseeker.metrics.ap_search import NO_GAIN
from objectseeker.metrics.image_set import split_images
from objectseeker.metrics.recipe_search import (
    CLOSE,
    SEARCHED,
    RecipeCandidate,
    RecipeTrial,
    _finalists,
    search_recipes,
    settings_at_alpha,
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
    recall_of="undefended",
    max_ap_loss=20.0,
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


@pytest.fixture(scope="module")
def found(run):
    return search_recipes(run, SEARCH, [26, 9, 60])


def test_what_is_chosen_keeps_its_budget_on_every_image(run, found):
    assert [one.budget for one in found.chosen] == [9, 26, 60]
    for one in found.chosen:
        needed = [one.candidate.recipe.forward_passes(*size) for size in SIZES]
        assert one.candidate.forward_passes == max(needed) <= one.budget
    assert {tried.candidate.recipe for tried in found.tried} <= set(subrecipes(MASKS))
    assert {one.candidate.recipe for one in found.chosen} <= {tried.candidate.recipe for tried in found.tried}
    gains = [one.best.search_split.gain for one in found.chosen]
    assert gains == sorted(gains)
    assert gains[0] < gains[-1]


def test_figures_are_those_of_evaluating_these_views_alone(run, found):
    """On the half that was searched and on the other."""
    images = list(run.images())
    searched, held_out = split_images(len(images), 2, 0)
    for one in found.chosen:
        for index, trial in ((searched, one.best.search_split), (held_out, one.best.held_out_split)):
            part = []
            for i in index:
                seen = images[i].observation
                under = seen.restricted_to(one.candidate.recipe.masks(seen.width, seen.height))
                part.append(replace(images[i], observation=under))
            there = replace(one.best.settings, base_threshold=trial.outcome.base_threshold, clean_recall=None)
            told = evaluate_images(part, run.label_map, there)
            assert told.defended.certified_recall() == trial.outcome.certified_recall()
            assert told.defended.ap50 == trial.outcome.ap50


def test_several_processes_find_the_same(run, found):
    steps = []
    again = search_recipes(run, SEARCH, [9, 26], processes=2, on_progress=lambda *step: steps.append(step))
    assert [one.to_dict() for one in again.chosen] == [one.to_dict() for one in found.chosen[:2]]
    assert steps[-1][0].startswith("settings tried of")
    assert steps[-1][1] > 42


def test_progress_names_recipes_and_settings(run):
    steps = []
    search_recipes(run, SEARCH, [9], on_progress=lambda *step: steps.append(step))
    assert steps[0] == ("recipes tried", 1, 2)
    assert steps[-1][0] == "settings tried of 1 recipe"
    settings = [done for what, done, _ in steps if what == steps[-1][0]]
    assert settings[:-1] == list(range(1, settings[-1] + 1))  # the last is told once more, with its recipe


def test_a_budget_that_nothing_keeps_names_the_smallest(run):
    images = list(run.images())
    with pytest.raises(ObjectSeekerError, match=r"needs at most 4 passes .* the fewest are 5, with halves:1$"):
        within_budget(subrecipes(MASKS), images, [40, 4])
    with pytest.raises(ObjectSeekerError, match="passes must be at least 1: got 0"):
        search_recipes(run, SEARCH, [0])
    with pytest.raises(ObjectSeekerError, match=r"^at most 9 passes: halves:2: no setting loses at most -1 points"):
        search_recipes(run, replace(SEARCH, max_ap_loss=-1.0), [9])


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
        RecipeTrial(RecipeCandidate(parse_recipe(text), passes), line, 0.5, gain)
        for text, passes, gain in (("halves:9", 37, 50.0), ("halves:8", 33, 49.0), ("halves:7", 29, 48.9))
    ]
    tried.append(RecipeTrial(RecipeCandidate(parse_recipe("halves:2"), 9), line, 0.5, 48.9 - 2 * CLOSE))
    tried.append(RecipeTrial(RecipeCandidate(parse_recipe("halves:1"), 5), line, 3.0, NO_GAIN))
    assert sorted(tried, key=lambda one: one.rank) == tried
    assert SEARCHED == 2
    assert [one.candidate.forward_passes for one in _finalists(tried, [5, 9, 29, 40])] == [37, 33, 29, 9, 5]
    assert [one.candidate.forward_passes for one in _finalists(tried, [29])] == [29]


def test_a_search_never_ends_below_what_the_line_gave(run, found):
    gave = {str(one.candidate.recipe): one for one in found.tried}
    for one in found.chosen:
        line = gave[str(one.candidate.recipe)]
        assert one.best.search_split.gain >= line.gain > NO_GAIN
        assert line.settings == settings_at_alpha(found.search, line.settings.threshold_schedule.alpha)


def test_only_the_masks_asked_for(run):
    only = search_recipes(run, SEARCH, [60], recipes=[parse_recipe("halves:1")])
    assert [str(one.candidate.recipe) for one in only.tried] == ["halves:1"]
    with pytest.raises(
        ObjectSeekerError, match=r"^halves:3 is not within the run's masks halves:5\+bands:0.04: observe"
    ):
        search_recipes(run, SEARCH, [60], recipes=[parse_recipe("halves:3")])


def test_tables_and_plot_show_every_budget(found, tmp_path):
    save_recipes(tmp_path, found)
    assert {"mask-frontier.json", "mask-frontier.csv", "mask-frontier.md"} <= {p.name for p in tmp_path.iterdir()}
    stored = json.loads((tmp_path / "mask-frontier.json").read_text())
    assert [row["budget"] for row in stored["budgets"]] == [9, 26, 60]
    for row, one in zip(recipe_rows(found), found.chosen, strict=True):
        assert row["mean"] == f"{one.best.held_out_split.mean_certified_recall:.1f}"
        assert row["passes"] == str(one.candidate.forward_passes)
        assert str(one.candidate.recipe) in (tmp_path / "mask-frontier.csv").read_text()
    certified, cost = recipe_plot(found).panels
    assert not certified.is_empty
    assert not cost.is_empty
    assert certified.series[0].x == [one.candidate.forward_passes for one in found.chosen]
