"""The rows of the figures."""

import csv
import io

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, image, run, tabled

from objectseeker import ObjectSeekerError
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import ImageSet, sweeps
from objectseeker.metrics.image_set import split_images

LINES = 7


@pytest.fixture(scope="module")
def images():
    return run(33, 12, generous=1.0, lines=LINES, crowd=0.9)


@pytest.fixture(scope="module")
def scene(images):
    return ImageSet.from_images(images, VOCABULARY)


def check(row, images, settings):
    """A row agrees with the table of its settings."""
    ours = evaluated(images, settings)["defended"]
    assert row["ap50"] == ours["ap50"]
    for column in (
        "base_threshold",
        "mask_threshold",
        "evidence_threshold",
        "clean_recall",
        "max_clean_recall",
        "vacuous_far",
    ):
        assert row[column] == ours[column]
    assert {where: row[f"certified_{where}"] for where in PATCH_LOCATIONS} == ours["certified_recall"]


def column(rows, name):
    return [row[name] for row in rows]


@pytest.mark.parametrize("settings", [PAPER, EVIDENCE])
def test_every_sweep_agrees_with_the_table(scene, images, settings):
    assert_at = [
        (tabled(sweeps.by_clean_recall, scene, settings, [0.4, 0.6]), "clean_recall", [0.4, 0.6]),
        (tabled(sweeps.by_schedule, scene, settings, "alpha", [0.9, 0.3]), "alpha", [0.9, 0.3]),
        (tabled(sweeps.by_filter_ioa, scene, settings, [0.5, 0.8]), "filter_ioa", [0.5, 0.8]),
        (tabled(sweeps.by_threshold, scene, settings, [0.0, 0.4]), "certification_threshold", [0.0, 0.4]),
        (tabled(sweeps.by_patch_aspect, scene, settings, [0.25, 4.0]), "patch_aspect", [0.25, 4.0]),
    ]
    for rows, name, values in assert_at:
        for row, value in zip(rows, values, strict=True):
            check(row, images, changed(settings, **{name: value}))
    areas = tabled(sweeps.by_patch_area, scene, settings, [0.01, 0.1], ks=[LINES])
    for row, area in zip(areas, [0.01, 0.1], strict=True):
        check(row, images, changed(settings, patch_area=area))


def test_fewer_lines_cost_less_and_never_certify_more_at_equal_scores(scene, images):
    settings = changed(PAPER, alpha=0.9, beta=0.9, clean_recall=0.0)  # base_threshold .99, mask_threshold .999
    rows = tabled(sweeps.by_lines, scene, settings, [1, 3, LINES])
    assert column(rows, "forward_passes") == [5, 13, 29]
    assert column(rows, "base_threshold") == [0.99] * 3
    assert column(rows, "certified_far") == sorted(column(rows, "certified_far"))
    assert rows[0]["certified_far"] < rows[-1]["certified_far"]
    check(rows[-1], images, settings)


def test_larger_patches_and_thresholds_never_certify_more(scene):
    by_area = tabled(sweeps.by_patch_area, scene, PAPER, ks=[3, LINES])
    assert column(by_area, "k") == [3] * len(sweeps.PATCH_AREAS) + [LINES] * len(sweeps.PATCH_AREAS)
    anywhere = column(by_area, "certified_anywhere")[-len(sweeps.PATCH_AREAS) :]
    assert anywhere == sorted(anywhere, reverse=True)
    assert anywhere[0] > anywhere[-1] == 0
    by_threshold = tabled(sweeps.by_threshold, scene, PAPER)
    assert column(by_threshold, "certification_threshold") == pytest.approx(np.arange(10) / 10)
    over = column(by_threshold, "certified_over")
    assert over == sorted(over, reverse=True)
    mean = sweeps.mean_over_thresholds(sweeps.by_threshold(scene, PAPER))
    assert mean["over"] == pytest.approx(np.mean(over))
    assert list(mean) == list(PATCH_LOCATIONS)


def test_object_sizes_partition_the_objects(scene, images):
    rows = tabled(sweeps.by_object_size, scene, PAPER, (0.0, 0.05, 0.2, 1.0))
    ours = evaluated(images, PAPER)
    without_area = ours["objects"] - sum(column(rows, "objects"))
    assert 0 <= without_area < ours["objects"] / 4  # some generated objects lie outside their image
    assert sum(column(rows, "objects_share")) == pytest.approx(100 * (1 - without_area / ours["objects"]))
    certified = sum(row["objects"] * (row["certified_far"] or 0) for row in rows)
    assert certified / ours["objects"] == pytest.approx(ours["defended"]["certified_recall"]["far"])
    for bad in [(0.5,), (0.2, 0.1), (0.1, 0.1)]:
        with pytest.raises(ObjectSeekerError, match="ascending"):
            tabled(sweeps.by_object_size, scene, PAPER, bad)


def test_an_object_lies_in_the_bin_of_its_visible_share():
    half_outside = image([(0, 0, 10, 10, 0.9, 0)], [(-10, 0, 10, 10, 0)])
    rows = tabled(
        sweeps.by_object_size, ImageSet.from_images([half_outside], VOCABULARY), PAPER, (0.0, 0.0099, 0.01, 1.0)
    )
    assert column(rows, "objects") == [0, 1, 0]
    assert rows[0]["certified_far"] is None


def test_splits_are_disjoint_and_complete(scene, images):
    rows = tabled(sweeps.by_split, scene, PAPER, seed=5)
    assert column(rows, "images") == [6, 6]
    assert sum(column(rows, "objects")) == len(scene.counted)
    first, second = split_images(12, 2, 5)
    assert sorted([*first, *second]) == list(range(12))
    part = [images[i] for i in second]
    check(rows[1], part, PAPER)
    assert rows[1]["undefended_ap50"] == evaluated(part, PAPER)["undefended"]["ap50"]
    assert [*split_images(12, 2, 6)[0]] != [*first]
    with pytest.raises(ObjectSeekerError, match="cannot be split into 13 parts"):
        split_images(12, 13, 0)


def test_precision_and_recall_of_all_three_detectors(scene):
    rows = tabled(sweeps.precision_recall, scene, PAPER)
    assert len(rows) == 300
    at = {(row["detector"], row["base_threshold"]): row for row in rows}
    assert {detector for detector, _ in at} == {"undefended", "defended", "without pruning"}
    for base_threshold in (0.0, 0.2):
        undefended, defended, unpruned = (
            at[name, base_threshold] for name in ("undefended", "defended", "without pruning")
        )
        assert undefended["recall"] <= defended["recall"]
        assert unpruned["precision"] < defended["precision"]
    assert [
        row["precision"]
        for row in tabled(
            sweeps.precision_recall, ImageSet.from_images([image([], [(0, 0, 9, 9, 0)])], VOCABULARY), PAPER
        )
    ] == [None] * 300


def test_rows_fit_into_a_table(scene):
    for rows in (
        tabled(sweeps.by_clean_recall, scene, PAPER, [0.3, 1.0]),
        tabled(sweeps.by_object_size, scene, PAPER),
        tabled(sweeps.precision_recall, scene, PAPER)[:3],
    ):
        writer = csv.DictWriter(io.StringIO(), rows[0])
        writer.writerows(rows)  # raises if a row has other columns


def test_a_recall_out_of_reach_is_empty_in_every_sweep():
    blind = ImageSet.from_images([image([], [(40, 40, 60, 60, 0)], lines=LINES)], VOCABULARY)
    for rows in (
        tabled(sweeps.by_clean_recall, blind, PAPER, [0.9]),
        tabled(sweeps.by_lines, blind, PAPER, [1]),
        tabled(sweeps.by_patch_area, blind, PAPER, [0.1], ks=[1]),
        tabled(sweeps.by_threshold, blind, PAPER, [0.5]),
        tabled(sweeps.by_schedule, blind, PAPER, "alpha", [0.5]),
        tabled(sweeps.by_object_size, blind, PAPER),
    ):
        assert column(rows, "certified_far") == [None] * len(rows)
    assert sweeps.mean_over_thresholds(sweeps.by_threshold(blind, PAPER))["far"] is None
    assert tabled(sweeps.by_schedule, blind, PAPER, "alpha", []) == []
