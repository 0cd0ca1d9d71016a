"""The demo: its report is the interactive one, under the same defense as its table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from report_cases import columns_of, data_of

from objectseeker import Defense, Halves
from objectseeker.demo import demo_run as demo
from objectseeker.demo.samples import samples
from objectseeker.detectors import load_detector

DEFENSE = Defense.for_detector("builtin", masks=Halves(1))


@pytest.fixture(scope="module")
def results():
    return list(demo.run(DEFENSE, patch_area=0.02))


@pytest.fixture(scope="module")
def page(tmp_path_factory, results):
    file = tmp_path_factory.mktemp("demo") / "report.html"
    demo.save_report(file, results, DEFENSE, patch_area=0.02)
    return file.read_text(encoding="utf-8")


def test_the_report_is_about_the_defense_of_the_table(page):
    shown = data_of(page)["settings"]
    bound = DEFENSE.with_fingerprint(load_detector("builtin").fingerprint)
    assert shown["defense"] == f"sha256:{bound.sha256}"
    assert shown["detector fingerprint"] == bound.fingerprint
    assert shown["masks"] == "halves:1"
    assert {name: float(shown[name]) for name in ("base_threshold", "mask_threshold", "evidence_threshold")} == {
        name: getattr(DEFENSE.rule, name) for name in ("base_threshold", "mask_threshold", "evidence_threshold")
    }


def test_the_report_shows_every_image_and_object(page, results):
    found = data_of(page)
    assert found["image_ids"] == [sample.name for sample in samples()]
    assert found["image_missing"] == []
    assert len(re.findall(r'id="view-\d"', page)) == len(samples())
    assert found["controls"]["start"]["area"] == 0.02
    assert found["objects"] == sum(len(one.objects.label) for one in results)
    assert found["ignored"] == sum(int(sample.crowd.sum()) for sample in samples())
    assert "too few to measure" in found["caveats"][0]
    assert not found["shows_ap"]  # AP is not stated
    assert page.index('id="view-') < page.index("<script>\n")  # what it opens with comes before the script
    column = columns_of(page)
    labels = np.concatenate([one.objects.label for one in results])
    assert (column["label"][column["ignore"] == 0] == labels).all()
    assert len(column["single_view_mask"]) > 0


def test_rows_say_what_was_found_and_proven(results):
    rows = [row for one in results for row in one.rows()]
    assert len(rows) == sum(len(one.objects.label) for one in results)
    assert any(row["found_undefended"] for row in rows)
    assert all(row["found_defended"] or not row["found_undefended"] for row in rows)
    assert {*rows[0]["certified"]} == set(demo.LOCATIONS)
    assert {row["image"] for row in rows if row["vacuous_far"]} == {"coat"}  # a person who fills it


def test_an_annotated_image_is_written(tmp_path, results):
    assert demo.save(tmp_path, results[0]).stat().st_size > 1000
