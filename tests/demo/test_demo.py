"""The demo: its report is the interactive one, at the settings of its table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from report_cases import columns_of, data_of

from objectseeker.demo import photographs as demo
from objectseeker.demo.samples import samples
from objectseeker.detectors.embedded.loading import RECOMMENDED


@pytest.fixture(scope="module")
def results():
    return list(demo.run(lines=1, patch_area=0.02))


def test_the_report_uses_the_recommended_rule():
    assert demo.recommended_settings(0.02).rule(RECOMMENDED.base_score) == RECOMMENDED


def test_the_report_shows_every_photograph_and_object(tmp_path, results):
    demo.save_report(tmp_path / "report.html", results, lines=1, patch_area=0.02)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = data_of(page)
    assert found["image_ids"] == [sample.name for sample in samples()]
    assert found["image_missing"] == []
    assert len(re.findall(r'id="view-\d"', page)) == len(samples())
    assert found["controls"]["start"]["area"] == 0.02
    assert found["objects"] == sum(len(one.label) for one in results)
    assert found["ignored"] == sum(int(sample.crowd.sum()) for sample in samples())
    assert "measure nothing" in found["remarks"][0]
    column = columns_of(page)
    labels = np.concatenate([one.label for one in results])
    assert (column["label"][column["ignore"] == 0] == labels).all()
    assert len(column["alone_mask"]) > 0


def test_an_annotated_photograph_is_written(tmp_path, results):
    assert demo.save(tmp_path, results[0]).stat().st_size > 1000
