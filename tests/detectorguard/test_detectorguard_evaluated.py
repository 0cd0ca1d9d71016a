"""DetectorGuard measured: alerts at every score, curves, tuning, and the table."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle_detectorguard as oracle
import pytest
from evaluation_cases import VOCABULARY, image

from objectseeker import Detections, ObjectSeekerError, Patch
from objectseeker.cli.evaluate import _compare_with_detectorguard
from objectseeker.core.label_map import LabelMap
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.detectorguard import comparison
from objectseeker.detectorguard.certification import allowed_squares, certify_guarded, patch_side, positions_in_view
from objectseeker.detectorguard.comparison import (
    GuardedDetector,
    ObjectnessMaps,
    certify_guarded_images,
    compare_with_detectorguard,
    tune_thresholds,
)
from objectseeker.detectorguard.objectness import Grid, objectness_map
from objectseeker.metrics import BASE_THRESHOLDS, EvaluationSettings, ImageSet, ThreatModel
from objectseeker.metrics.average_precision import undefended_curve

NETWORK = (153, 153)  # 16 x 16 positions
SIZE = 100


def features_of(boxes, strengths, rng) -> np.ndarray:
    """Features of class 0 where the boxes are, on an image of SIZE x SIZE."""
    grid = Grid.for_image((SIZE, SIZE), NETWORK)
    features = rng.integers(0, 20, (*grid.shape, 2))
    for box, strength in zip(boxes, strengths, strict=True):
        inside = [(grid.centers[a] >= box[a]) & (grid.centers[a] <= box[a + 2]) for a in (0, 1)]
        features[..., 0] += np.outer(inside[1], inside[0]) * strength
    return features.astype(np.uint16)


def make(seed: int, count: int = 10) -> tuple[ImageSet, list[np.ndarray]]:
    """Images with one object each, a base box on it of any score, and objectness on it or somewhere else."""
    rng = np.random.default_rng(seed)
    images, features = [], []
    for number in range(count):
        corner = rng.uniform(0, 30, 2)
        box = np.concatenate([corner, corner + rng.uniform(40, 65, 2)])
        seen = box if rng.random() < 0.8 else box[[1, 0, 3, 2]]
        wrong = (60.0, 60.0, 90.0, 90.0, float(rng.uniform(0.05, 0.5)), 1)
        missed = number % 10 == 9  # whatever the score
        base = [(*box, float(rng.uniform(0.1, 0.95)), 0)] * (not missed) + [wrong] * int(rng.random() < 0.5)
        images.append(image(base, [(*box, 0)], number=number, size=SIZE))
        features.append(features_of([seen], [int(rng.integers(40, 300))], rng))
    return ImageSet.from_images(images, VOCABULARY), features


def test_an_image_alerts_from_the_first_score_on_that_leaves_objectness_unexplained():
    image_set, features = make(0)
    maps = ObjectnessMaps.from_images(image_set, features, NETWORK)
    thresholds = np.array([20, 60, 150])
    first = maps.first_alert(thresholds)
    assert len(np.unique(first)) > 5
    for t, threshold in enumerate(thresholds.tolist()):
        for n, (one, own) in enumerate(zip(image_set.images, features, strict=True)):
            found = objectness_map(own, threshold)
            alerts = [
                oracle.has_alert(maps.grids[n], found, one.observation.base.with_min_score(float(score)))
                for score in BASE_THRESHOLDS[::7]
            ]
            assert alerts == (np.arange(100)[::7] >= first[t, n]).tolist()


def test_without_alerts_the_curve_is_that_of_the_undefended_detector():
    image_set, features = make(1)
    maps = ObjectnessMaps.from_images(image_set, [np.zeros_like(own) for own in features], NETWORK)
    guarded = GuardedDetector.measure(maps, 10)
    expected = undefended_curve(image_set)
    assert (guarded.curve.true_positives == expected.true_positives).all()
    assert (guarded.curve.false_positives == expected.false_positives).all()
    assert guarded.false_alerts(99) == 0


def test_an_image_that_alerts_has_no_boxes_and_its_objects_are_missed():
    image_set, features = make(2)
    maps = ObjectnessMaps.from_images(image_set, features, NETWORK)
    guarded = GuardedDetector.measure(maps, 60)
    for row in (5, 40, 60, 80):
        quiet = np.flatnonzero(guarded.first_alert > row)
        assert guarded.false_alerts(row) == len(image_set.images) - len(quiet)
        right = wrong = 0
        for n in quiet.tolist():
            part = undefended_curve(image_set.subset([n]))
            right, wrong = right + part.true_positives[row], wrong + part.false_positives[row]
        assert (guarded.curve.true_positives[row] == right).all()
        assert (guarded.curve.false_positives[row] == wrong).all()
        assert guarded.detected(row).sum() == guarded.curve.true_positives[row].sum()
    assert 0 < guarded.false_alerts(60) < len(image_set.images)


def test_the_threshold_is_the_lowest_that_alerts_seldom_enough():
    image_set, features = make(3, 30)
    maps = ObjectnessMaps.from_images(image_set, features, NETWORK)
    thresholds = np.arange(10, 320, 10)
    options = {"max_ap_losses": (np.inf, 0.5), "thresholds": thresholds}
    chosen, dearer = tune_thresholds(maps, 0.5, max_false_alert_rate=0.3, **options)
    assert 10 < chosen < dearer < 310
    for threshold in thresholds[thresholds <= chosen].tolist():
        guarded = GuardedDetector.measure(maps, threshold)
        row = guarded.curve.row_at_recall(0.5)
        seldom = row is not None and guarded.false_alerts(row) <= 9
        assert seldom == (threshold == chosen)
    lost = [
        undefended_curve(image_set).mean_ap50 - GuardedDetector.measure(maps, t).curve.mean_ap50
        for t in (dearer - 10, dearer)
    ]
    assert lost[0] > 0.5 >= lost[1]
    assert tune_thresholds(maps, 1.0, max_false_alert_rate=0.0, **options) == [None, None]


def test_a_scene_is_certified_image_by_image():
    image_set, features = make(4)
    maps = ObjectnessMaps.from_images(image_set, features, NETWORK)
    patches = ThreatModel(area=0.02).patches()
    found, published = certify_guarded_images(maps, features, 60, patches)
    for n, one in enumerate(image_set.images):
        alone = certify_guarded(maps.grids[n], features[n], one.ground_truth, patches, threshold=60)
        assert (found.certified[:, [n]] == alone.certified).all()
        assert (found.vacuous[:, [n]] == alone.vacuous).all()
    assert 0 < found.certified.mean() < 1
    assert (found.certified != published).any()


# --- the detector's labels and the dataset's -----------------------------------------------------------------------

LABELS = LabelMap(("tabby", "dog", "lion", "tree"), ("cat", "dog"), np.array([0, 1, 0, -1]))


def with_labels(image_set: ImageSet, label) -> ImageSet:
    """The image set of a detector with four classes: `label` maps each of our labels to the detector's."""

    def seen(one):
        old = one.observation.base
        base = Detections(old.xyxy, old.score, [label(c) for c in old.label.tolist()])
        return replace(one, observation=replace(one.observation, base=base))

    return ImageSet.from_images([seen(one) for one in image_set.images], LABELS)


def test_two_detector_classes_that_stand_for_one_count_as_that_one():
    image_set, features = make(6)
    rng = np.random.default_rng(0)
    many = with_labels(image_set, lambda c: 1 if c else int(rng.choice([0, 2])))
    ours, theirs = (
        GuardedDetector.measure(ObjectnessMaps.from_images(one, features, NETWORK), 60) for one in (image_set, many)
    )
    assert (ours.first_alert == theirs.first_alert).all()
    assert (ours.curve.true_positives == theirs.curve.true_positives).all()
    assert (ours.curve.false_positives == theirs.curve.false_positives).all()
    verdicts = [
        certify_guarded_images(one.maps, features, 60, ThreatModel(area=0.02).patches())[0] for one in (ours, theirs)
    ]
    assert (verdicts[0].certified == verdicts[1].certified).all()
    assert verdicts[0].certified.any()


def test_boxes_of_classes_that_the_data_set_lacks_explain_as_they_do_when_deployed():
    image_set, features = make(7)
    trees = with_labels(image_set, lambda c: 1 if c else 3)
    ours, theirs = (
        GuardedDetector.measure(ObjectnessMaps.from_images(one, features, NETWORK), 60) for one in (image_set, trees)
    )
    assert (ours.first_alert == theirs.first_alert).all()
    assert ours.first_alert.max() > ours.first_alert.min()
    assert ours.curve.true_positives.sum() > theirs.curve.true_positives.sum() == 0  # they find nothing that counts
    for n, (one, own) in enumerate(zip(trees.images, features, strict=True)):
        says_object = objectness_map(own, 60)
        for row in (0, 30, 70):
            base = one.observation.base.with_min_score(float(BASE_THRESHOLDS[row]))
            assert oracle.has_alert(theirs.maps.grids[n], says_object, base) == (row >= theirs.first_alert[n])


# --- the published model of where -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["far", "close", "over", "anywhere"])
def test_where_a_patch_may_lie_as_published(where):
    rng = np.random.default_rng(0)
    for _ in range(20):
        left, top = rng.integers(0, 12, 2).tolist()
        right, bottom = left + int(rng.integers(1, 6)), top + int(rng.integers(1, 6))
        side = int(rng.integers(1, 6))
        found = set()
        for columns, rows in allowed_squares(where, np.array([left, top, right, bottom]), side, (24, 30)):
            found |= {(int(x[0]), int(y[0])) for x in columns for y in rows}
            assert all(x[1] - x[0] == side for x in columns)
        expected = set()
        for x in range(30 - side + 1):
            for y in range(24 - side + 1):
                over = left - side // 2 <= x < right - side // 2 + 1 and top - side // 2 <= y < bottom - side // 2 + 1
                near = left - side - 8 <= x < right + 9 and top - side - 8 <= y < bottom + 9
                kind = "over" if over else "close" if near else "far"
                if where in (kind, "anywhere"):
                    expected.add((x, y))
        assert found == expected


def test_positions_whose_view_meets_an_object():
    grid = Grid.for_image((416, 416), (416, 416))
    ((left, top, right, bottom),) = positions_in_view(grid, np.array([[100.0, 50.0, 101.0, 60.0]])).tolist()
    assert [i for i in range(48) if 8 * i < 101 and 8 * i + 33 > 100] == list(range(left, right))
    assert [i for i in range(48) if 8 * i < 60 and 8 * i + 33 > 50] == list(range(top, bottom))
    assert patch_side(grid, Patch(32 * 32 / 416**2)) == 8


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    """A run with features, without its files: those have tests of their own."""
    image_set, features = make(5, 40)

    class Stored:
        label_map = VOCABULARY
        indices = range(40)

        def images(self):
            return image_set.images

    monkeypatch.setattr(comparison, "add_features", lambda run, network, on_progress: None)
    described = {"network": "n.onnx", "sha256": "0" * 64, "input": list(NETWORK)}
    monkeypatch.setattr(comparison, "describe", lambda run: described)
    monkeypatch.setattr(comparison, "read_features", lambda run, index=range(40): iter([features[i] for i in index]))
    return Stored()


SETTINGS = EvaluationSettings.from_schedule(
    ThresholdSchedule(alpha=0.4, beta=0.3, evidence_alpha=0.2, evidence_beta=0.1),
    clean_recall=0.6,
    threat=ThreatModel(area=0.02),
)


def test_the_table_tunes_on_one_half_and_measures_on_the_other(run):
    compared = compare_with_detectorguard(run, SETTINGS, max_false_alert_rate=0.2)
    found = compared.to_dict()
    assert found["images"] == found["tuning"]["images"] == 20
    assert found["tuning"]["max_false_alert_rate"] == 20
    rows = {row["defense"]: row for row in found["rows"]}
    assert list(rows)[:3] == ["undefended", "DetectorGuard", "DetectorGuard, AP loss <= 1"]
    assert len(rows) == 7
    assert rows["DetectorGuard"]["threshold"] <= rows["DetectorGuard, AP loss <= 1"]["threshold"]
    guarded = rows["DetectorGuard"]
    assert guarded["forward_passes"] == 2
    assert guarded["ap50"] <= rows["undefended"]["ap50"]
    for where, share in guarded["certified_and_found"].items():
        assert share <= guarded["certified_recall"][where]
    anywhere = guarded["certified_recall"]["anywhere"]
    assert all(anywhere <= share for share in guarded["certified_recall"].values())
    fixed = compare_with_detectorguard(run, SETTINGS, threshold=int(guarded["threshold"] * 64)).to_dict()
    assert fixed["images"] == 40
    assert fixed["tuning"] is None
    assert len(fixed["rows"]) == 6
    assert len(compared.table_rows()) == 7
    assert compared._repr_html_().count("<tr>") == 1 + len(compared.terminal_rows())
    assert any("tuned on 20 other images" in line for line in compared.caveats())


def test_without_a_clean_recall_it_is_08_or_the_highest_that_is_reached(run):
    settings = replace(SETTINGS, clean_recall=None)
    highest = undefended_curve(ImageSet.from_images(run.images(), VOCABULARY)).max_clean_recall / 100
    assert highest >= 0.8
    compared = compare_with_detectorguard(run, settings, threshold=2000)
    assert compared.settings.clean_recall == 0.8
    assert compared.rows == compare_with_detectorguard(run, SETTINGS.at_clean_recall(0.8), threshold=2000).rows
    assert any("no clean recall was requested" in line and line.endswith(": 0.8") for line in compared.caveats())
    requested = compare_with_detectorguard(run, SETTINGS, threshold=2000)
    assert not any("requested" in line for line in requested.caveats())


def test_a_rule_that_promises_more_says_so(run):
    compared = compare_with_detectorguard(run, SETTINGS.iou_variant(), threshold=100)
    assert [row.defense for row in compared.rows[-2:]] == [
        "ObjectSeeker IoU",
        "ObjectSeeker IoU, class-agnostic",
    ]
    assert any("an IoU with the object above 0.5" in line for line in compared.caveats())
    assert not any("paper guarantees more" in line for line in compared.caveats())


def test_the_table_says_so_where_the_clean_recall_is_out_of_reach(run):
    settings = EvaluationSettings.from_schedule(ThresholdSchedule(), clean_recall=1.0)
    compared = compare_with_detectorguard(
        run, settings, max_false_alert_rate=0.0, seed=1
    )  # a missed object in either half
    found = compared.to_dict()
    assert "threshold" not in found["rows"][1]
    assert "ap50" not in found["rows"][1]
    assert any("no threshold reaches that" in line for line in compared.caveats())
    assert compared.table_rows()[1]["certified far"] == "-"


def test_cost_against_certified_recall(run, monkeypatch):
    compared = compare_with_detectorguard(run, SETTINGS, max_false_alert_rate=0.2)
    scripts = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(scripts)  # scripts import each other
    cost_rows = runpy.run_path(str(scripts / "detectorguard_table.py"))["cost_rows"]
    rows = cost_rows(ImageSet.from_images(run.images(), VOCABULARY), compared, [1])
    assert [(row["defense"], row["forward_passes"]) for row in rows] == [
        ("DetectorGuard", 2),
        ("DetectorGuard, AP loss <= 1", 2),
        ("ObjectSeeker", 5),
    ]
    assert [row["lines"] for row in rows] == [None, None, "every n-th stored"]
    assert rows[0]["certified_far"] == compared.to_dict()["rows"][1]["certified_recall"]["far"]


def test_the_command_prints_and_saves_the_table(run, tmp_path, capsys):
    _compare_with_detectorguard(run, SETTINGS, tmp_path / "out", True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "detectorguard.json").read_text())
    assert [row["defense"] for row in printed["rows"]][:2] == ["undefended", "DetectorGuard"]
    lines = (tmp_path / "out" / "detectorguard.csv").read_text().splitlines()
    assert len(lines) == 1 + len(printed["rows"])
    _compare_with_detectorguard(run, SETTINGS, None, False)
    shown = capsys.readouterr().out
    for row in printed["rows"]:
        assert row["defense"] in shown
    assert "certified and found" in shown


def test_two_patches_are_refused(run):
    with pytest.raises(ObjectSeekerError, match="one patch at a time"):
        compare_with_detectorguard(
            run, EvaluationSettings.from_schedule(ThresholdSchedule(), threat=ThreatModel(count=2))
        )


def test_features_that_do_not_fit_are_told():
    image_set, features = make(0, 2)
    with pytest.raises(ObjectSeekerError, match="features of shape"):
        ObjectnessMaps.from_images(image_set, features, (416, 416))
