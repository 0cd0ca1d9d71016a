"""Runs side by side: bootstrap samples against evaluating the very same sample, differences, tables, the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, evaluated, image, made, noisy, run

from objectseeker import Halves, ObjectSeekerError
from objectseeker.cli import _comparison_tables as comparison
from objectseeker.metrics import BASE_THRESHOLDS, Choices, ImageSet, Search, sweeps, tune
from objectseeker.metrics.comparison import RunFigures, compare, measure
from objectseeker.metrics.comparison_metrics import BootstrapEstimate, Options, held_out_figures, plain
from objectseeker.metrics.curves import NO_BOXES, undefended_curve
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.resampling import NO_ROW, Tally, resamples, spurious

FLOOR = 0.15
CHOICES = Choices((0.6,), (1.0,), (0.1,))
OPTIONS = {"losses": (5.0,), "recalls": (0.9,), "bootstrap": 40, "seed": 1, "choices": CHOICES}


def stored(images, name: str = "one"):
    """What `measure` needs of a run."""
    manifest = SimpleNamespace(
        detector_fingerprint="made up", observation_settings=SimpleNamespace(masks=Halves(6), mask_floor=FLOOR)
    )
    return SimpleNamespace(
        folder=Path("runs") / name, manifest=manifest, vocabulary=VOCABULARY, images=lambda: list(images)
    )


def measured_of(images, **options):
    """The figures of a run, as they are written into a file."""
    return measure(stored(images), **options).to_dict()


def compared(runs):
    return compare([RunFigures.from_dict(run) for run in runs])


def tuned(images, family, recall=0.9, **options):
    """The best of one rule, by the search itself."""
    options = {"mask_floor": FLOOR, "most_loss": 5.0, "losses": (), "choices": CHOICES, "seed": 1} | options
    return tune(images, VOCABULARY, Search(families=(family,), clean_recall=recall, **options)).families[family]


@pytest.fixture(scope="module")
def measured():
    return measured_of(noisy(4, 14), **OPTIONS)


@pytest.fixture
def other(measured):
    """Another run of the same images: the same but for the objects certified against patches over them."""
    changed = json.loads(json.dumps(measured | {"run": "two"}))
    certified = changed["tuned"][1]["held_out"]["certified_over"]
    certified["value"] += 2.5
    certified["samples"] = [one + 0.1 * place for place, one in enumerate(certified["samples"])]
    return changed


class TestSamples:
    """A sample's figures are those of the full protocol on a run that holds the images as often as the sample does."""

    @pytest.mark.parametrize("settings", [PAPER, EVIDENCE])
    @pytest.mark.parametrize("images", [run(1, 6), noisy(3, 6)])
    def test_every_figure_is_that_of_the_sample_as_a_run(self, images, settings):
        count, seed = 5, 3
        found = plain(held_out_figures(ImageSet.of(images, VOCABULARY), settings, settings.floor, count, seed))
        compared = 0
        for place, weights in enumerate(resamples(len(images), count, seed)):
            repeated = [one for one, often in zip(images, weights, strict=True) for _ in range(int(often))]
            if not any((~one.ignore).any() for one in repeated):
                continue
            literal = evaluated(repeated, settings)
            ours = literal["objectseeker"]
            expected = {
                "undefended_ap50": literal["undefended"]["ap50"],
                "ap50": ours["ap50"],
                "ap50_loss": literal["undefended"]["ap50"] - ours["ap50"],
                "clean_recall": ours["clean_recall"],
                **{f"certified_{where}": value for where, value in ours["certified_recall"].items()},
            }
            for name, value in expected.items():
                given = found[name]["value"] if place == 0 else found[name]["samples"][place - 1]
                assert given == (None if value is None else pytest.approx(value, abs=1e-4)), name
            if place == 0:
                assert found["base_threshold"] == ours["base_threshold"]
                assert found["mask_threshold"] == ours["mask_threshold"]
            compared += 1
        assert compared >= count

    def test_the_other_recall_is_that_of_the_undefended_detector(self):
        images, settings = noisy(3, 8), made(alpha=0.4, beta=0.3, clean_recall=0.6)
        scene = ImageSet.of(images, VOCABULARY)
        found = plain(held_out_figures(scene, settings, settings.floor, 3, 0))["at_undefended_recall"]
        undefended = undefended_curve(scene)
        (best,) = undefended.base_thresholds[[undefended.row_at_recall(0.6)]]
        assert found["base_threshold"] == best
        point = DefendedImageSet.of(scene, settings).at(settings, settings.on_curve(float(best)))
        assert found["certified_far"]["value"] == pytest.approx(point.certified_recall()["far"])
        assert found["clean_recall"]["value"] == pytest.approx(point.clean_recall)
        assert found["mask_threshold"] == point.rule.mask_threshold

    def test_a_class_without_objects_in_the_sample_does_not_count(self):
        images = [
            image([(10, 10, 40, 40, 0.9, 0)], [(10, 10, 40, 40, 0)]),
            image([], [(10, 10, 40, 40, 0)]),
            image([], [(10, 10, 40, 40, 1)]),
        ]
        tally = Tally.of(ImageSet.of(images, VOCABULARY), [NO_BOXES] * len(BASE_THRESHOLDS))
        weights = np.array([[1.0, 1, 1], [2, 1, 0]])
        assert tally.ap50(weights) == pytest.approx([25, 200 / 3])
        assert tally.clean_recall(weights)[0] == pytest.approx([25, 200 / 3])

    def test_samples_are_the_same_for_the_same_seed_and_hold_as_many_images(self):
        first, again, other = resamples(9, 30, 1), resamples(9, 30, 1), resamples(9, 30, 2)
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()
        assert (first.sum(axis=1) == 9).all()
        assert (first[0] == 1).all()
        assert len(np.unique(first, axis=0)) > 20

    def test_a_recall_that_is_not_reached(self):
        scene = ImageSet.of([image([], [(10, 10, 30, 30, 0)])], VOCABULARY)
        tally = Tally.of(scene, [NO_BOXES] * len(BASE_THRESHOLDS))
        assert tally.rows_at_recall(0.5, np.ones((1, 1))).tolist() == [NO_ROW]
        found = plain(held_out_figures(scene, made(clean_recall=0.5), 0.1, 5, 0))
        assert found["certified_far"]["value"] is None
        assert found["certified_far"]["unreached"] == 5
        assert found["base_threshold"] is None
        assert found["ap50"]["value"] == 0

    def test_the_interval_holds_95_percent_of_the_samples(self):
        found = plain(BootstrapEstimate.of(np.concatenate([[7.0], np.arange(1001)])))
        assert (found["value"], found["low"], found["high"]) == (7.0, 25.0, 975.0)

    def test_intervals_of_a_mean_are_about_right(self):
        """100 images of which a share p has one object certified: sqrt(p (1 - p) / 100) either side, twice."""
        scene = [
            image([(10, 10, 40, 40, 0.9, 0)], [(10, 10, 40, 40, 0)], [[(10, 10, 40, 40, 0.99, 0)]] * 4 * (n % 4 == 0))
            for n in range(100)
        ]
        chosen = made(clean_recall=0.5, patch_area=0.0001)
        found = plain(held_out_figures(ImageSet.of(scene, VOCABULARY), chosen, 0.1, 2000, 0))
        certified = found["certified_over"]
        assert certified["value"] == pytest.approx(25)
        half = 1.96 * np.sqrt(0.25 * 0.75 / 100) * 100
        assert certified["low"] == pytest.approx(25 - half, abs=1.5)
        assert certified["high"] == pytest.approx(25 + half, abs=1.5)


def test_spurious_boxes_are_those_with_no_object_of_their_label():
    truth = [(10, 10, 40, 40, 0), (60, 60, 90, 90, 1), (10, 60, 40, 90, 0)]
    base = [(10, 10, 40, 40, 0.9, 0)]
    view = [
        (11, 60, 40, 90, 0.9, 0),  # an object the detector missed, though an ignored one
        (60, 60, 90, 90, 0.9, 0),  # an object of another label
        (60, 10, 90, 40, 0.9, 1),  # nothing
        (10, 10, 40, 39, 0.9, 0),  # explained by a base box, so never output
        (60, 75, 90, 90, 0.9, 1),  # half an object: an IoU of 0.5
        (62, 78, 90, 90, 0.9, 1),  # less of it, but in one cluster with the half
    ]
    images = [image(base, truth, [view], ignore=[False, False, True]), image(base, truth)]
    scene = ImageSet.of(images, VOCABULARY)
    settings = made(alpha=0.5, beta=0.0)
    (added,) = DefendedImageSet.of(scene, settings).additions([settings.on_curve(0.5)])
    assert spurious(added, scene).tolist() == [2, 0]


class TestMeasured:
    def test_tuned_figures_are_those_of_the_tuner(self, measured):
        images = noisy(4, 14)
        assert [(row["rule"], row["clean_recall"], row["most_loss"]) for row in measured["tuned"]] == [
            ("paper", 0.9, 5.0),
            ("evidence", 0.9, 5.0),
        ]
        for row in measured["tuned"]:
            found = tuned(images, row["rule"])
            assert row["settings"] == found.settings.to_dict()
            assert row["searched"] == found.searched.figures()
            for name in ("ap50", "ap50_loss", "undefended_ap50", "certified_far", "certified_over", "certified_mean"):
                assert row["held_out"][name]["value"] == pytest.approx(found.held_out.figures()[name])

    def test_both_halves_are_searched_and_the_mean_of_both_is_given(self):
        images, options = noisy(4, 14), OPTIONS | {"rules": ("paper",), "both_halves": True}
        (row,) = measured_of(images, **options)["tuned"]
        both = [tuned(images, "paper", half=half) for half in (0, 1)]
        searched = [one.searched.figures() for one in both]
        assert searched[0] != searched[1]
        assert [half["searched"] for half in row["halves"]] == searched
        for name in ("ap50", "ap50_loss", "certified_far", "certified_over"):
            expected = np.mean([one.held_out.figures()[name] for one in both])
            assert row["held_out"][name]["value"] == pytest.approx(expected)
        assert row["held_out"]["base_threshold"] is None  # each half has its own
        (once,) = measured_of(images, **(options | {"both_halves": False}))["tuned"]
        widths = [found["held_out"]["ap50"]["high"] - found["held_out"]["ap50"]["low"] for found in (row, once)]
        assert widths[0] < widths[1]

    def test_the_images_of_a_half_are_searched_or_measured_never_both(self):
        images = noisy(4, 14)
        options = OPTIONS | {"rules": ("paper",), "both_halves": True, "bootstrap": 2}
        found = measured_of(images, **options)
        (row,) = found["tuned"]
        first, second = (half["image_digest"] for half in row["halves"])
        assert len({first, second, found["image_digest"]}) == 3
        assert [half["held_out"]["images"] for half in row["halves"]] == [7, 7]

    def test_settings_searched_at_the_recall_of_the_undefended_detector(self):
        options = OPTIONS | {"rules": ("paper",), "recall_of": "undefended", "bootstrap": 3}
        (row,) = measured_of(noisy(4, 14), **options)["tuned"]
        found = row["held_out"]["at_undefended_recall"]
        scene = ImageSet.of([noisy(4, 14)[i] for i in sweeps.split(14, 2, 1)[0]], VOCABULARY)
        undefended = undefended_curve(scene)
        assert row["searched"]["base_threshold"] == undefended.base_thresholds[undefended.row_at_recall(0.9)]
        (defended,) = measured_of(noisy(4, 14), **(options | {"recall_of": "defended"}))["tuned"]
        searched = tuned(noisy(4, 14), "paper", recall_of="undefended")
        assert found["certified_mean"]["value"] == pytest.approx(searched.held_out.certified_mean)
        assert defended["searched"]["base_threshold"] >= row["searched"]["base_threshold"]
        with pytest.raises(ObjectSeekerError, match="neither"):
            Search(mask_floor=FLOOR, recall_of="neither")

    def test_the_curve_is_that_of_evaluation_on_all_images(self, measured):
        images = noisy(4, 14)
        assert [point["beta"] for point in measured["curve"]] == [beta / 10 for beta in range(10)]
        for point in measured["curve"][::3]:
            settings = made(alpha=max(FLOOR, point["beta"]), beta=point["beta"], clean_recall=0.9)
            literal = evaluated(images, settings)
            assert point["ap50"]["value"] == pytest.approx(literal["objectseeker"]["ap50"])
            lost = literal["undefended"]["ap50"] - literal["objectseeker"]["ap50"]
            assert point["ap50_loss"]["value"] == pytest.approx(lost)
        assert measured["undefended"]["ap50_coco"] == evaluated(images, PAPER)["undefended"]["ap50_coco"]

    def test_low_mask_thresholds_add_spurious_boxes(self, measured):
        boxes = [point["at_recall"][0]["spurious"]["value"] for point in measured["curve"]]
        assert boxes == sorted(boxes, reverse=True)
        assert boxes[0] > 0 == boxes[-1]

    def test_it_is_ready_for_json(self, measured):
        assert json.loads(json.dumps(measured)) == measured
        assert RunFigures.from_dict(measured).to_dict() == measured
        assert "samples" not in json.dumps(compared([measured]).to_dict())

    def test_a_loss_that_cannot_be_kept_is_said(self):
        found = measured_of(noisy(4, 14), **(OPTIONS | {"losses": (-50.0,), "rules": ("paper",)}))
        (row,) = found["tuned"]
        assert row["held_out"] is None
        assert "-50" in row["why"]
        twice = measured_of(noisy(4, 14), **(OPTIONS | {"losses": (-50.0,), "rules": ("paper",), "both_halves": True}))
        assert twice["tuned"][0]["held_out"] is None
        assert "-50" in twice["tuned"][0]["why"]
        table = compared([found, found])
        assert any("-50" in line for line in comparison.remarks(table))
        assert comparison.for_terminal(table)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"recalls": ()}, "at least one"),
            ({"losses": ("x",)}, "x"),
            ({"recalls": (2,)}, "2"),
            ({"rules": ("all",)}, "all"),
        ],
    )
    def test_bad_input_is_named(self, options, message):
        with pytest.raises(ObjectSeekerError, match=message):
            measure(stored(noisy(4, 4)), **(OPTIONS | options))


class TestCompared:
    def test_a_run_does_not_differ_from_itself(self, measured):
        (difference,) = compared([measured, measured]).to_dict()["differences"]
        assert difference["paired"]
        estimates = [difference["undefended"]["ap50"], *(point["ap50_loss"] for point in difference["curve"])]
        estimates += [row["held_out"]["certified_far"] for row in difference["tuned"]]
        for one in estimates:
            assert (one["value"], one["low"], one["high"]) == (0, 0, 0)

    def test_differences_are_the_second_minus_the_first(self, measured, other):
        (difference,) = compared([measured, other]).to_dict()["differences"]
        one, two = (run["tuned"][1]["held_out"]["certified_over"] for run in (measured, other))
        differs = difference["tuned"][1]["held_out"]["certified_over"]
        assert differs["value"] == pytest.approx(two["value"] - one["value"])
        assert differs["value"] == pytest.approx(2.5)
        assert differs["low"] == pytest.approx(np.percentile(0.1 * np.arange(40), 2.5))
        assert difference["tuned"][1]["rule"] == "evidence"

    def test_only_runs_of_the_same_images_are_paired(self, measured):
        moved = {**measured, "run": "runs/moved", "image_digest": "another"}
        (difference,) = compared([measured, moved]).to_dict()["differences"]
        assert not difference["paired"]
        assert any("not paired" in line for line in comparison.remarks(compared([measured, moved])))

    def test_runs_measured_differently_are_refused(self, measured):
        with pytest.raises(ObjectSeekerError, match=r"seed=1.*seed=2"):
            compared([measured, {**measured, "options": {**measured["options"], "seed": 2}}])
        with pytest.raises(ObjectSeekerError, match="no runs"):
            compared([])

    def test_everything_is_saved_and_read_again(self, measured, other, tmp_path):
        pytest.importorskip("matplotlib")
        comparison.save(tmp_path, [RunFigures.from_dict(run) for run in (measured, other)])
        names = {file.name for file in tmp_path.iterdir()}
        plain = {"comparison.json", "comparison.csv", "comparison.md", "comparison.svg", "comparison.png"}
        assert names == plain | {"one.measured.json", "two.measured.json"}
        assert comparison.read_measured(tmp_path / "one.measured.json").to_dict() == measured
        with (tmp_path / "comparison.csv").open() as file:
            rows = list(csv.DictReader(file))
        far = next(row for row in rows if row["table"].startswith("evidence") and row["figure"] == "far")
        value = measured["tuned"][1]["held_out"]["certified_far"]
        assert far["one"] == f"{value['value']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"
        assert far.keys() == {"table", "figure", "one", "two", "two - one"}

    def test_cells(self):
        assert comparison.cell(BootstrapEstimate(-0.001, -0.5, 9.876, 0, ())) == "0.00 [-0.50, 9.88]"
        assert comparison.cell(BootstrapEstimate(4.5, 3.21, 10.0, 0, ())) == "4.5 [3.2, 10.0]"
        assert comparison.cell(BootstrapEstimate(3.0, None, None, 0, ())) == "3.00"
        assert comparison.cell(BootstrapEstimate(None, None, None, 0, ())) == comparison.cell(None) == "-"

    def test_runs_of_one_name_are_numbered(self, measured):
        runs = [RunFigures.from_dict({**measured, "run": name}) for name in ("voc", "voc", "coco")]
        assert comparison.names_of(runs) == ["voc (1)", "voc (2)", "coco"]

    def test_files_that_are_no_measurements_are_refused(self, tmp_path):
        file = tmp_path / "x.json"
        file.write_text("{}")
        with pytest.raises(ObjectSeekerError, match=r"x\.json holds no measurements"):
            comparison.read_measured(file)
        file.write_text("nonsense")
        with pytest.raises(ObjectSeekerError, match=r"x\.json"):
            comparison.read_measured(file)


@pytest.mark.parametrize("bad", [{"seed": -1}, {"seed": 0.5}, {"bootstrap": -1}, {"bootstrap": 10_001}])
def test_seeds_and_samples_that_cannot_be_drawn_are_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ObjectSeekerError, match=f"{name}.* must be .*, got {value}"):
        Options(**bad)


def test_malformed_measurements_are_told_in_one_sentence(measured, tmp_path):
    """Whatever is taken out of the file, or put in its place, it is refused; or it is a number like any other."""
    rng = np.random.default_rng(0)
    file = tmp_path / "one.measured.json"
    refused = 0
    for odd in (None, "x", -1, 10**400, float("nan"), [], {}, True, [[]], "drop"):
        for _ in range(4):
            content = json.loads(json.dumps(measured))
            damage(content, odd, rng)
            file.write_text(json.dumps(content))
            try:
                read = comparison.read_measured(file)
            except ObjectSeekerError as error:
                refused += str(file) in str(error)
                continue
            found = compare([read, read])
            assert comparison.for_terminal(found)
            assert comparison.curve_plot(found)
    assert refused > 25
    for text in ("", "[]", "7", "null", "[" * 100_000, "{}", '{"run": 1}', "\x00"):
        file.write_text(text)
        with pytest.raises(ObjectSeekerError, match="measurements"):
            comparison.read_measured(file)


def damage(content, odd, rng) -> None:
    """Replace something, anywhere in it."""
    while True:
        keys = sorted(content) if isinstance(content, dict) else list(range(len(content)))
        key = keys[rng.integers(len(keys))]
        if isinstance(content[key], dict | list) and content[key] and rng.random() < 0.7:
            content = content[key]
        elif odd == "drop":
            del content[key]
            return
        else:
            content[key] = odd
            return
