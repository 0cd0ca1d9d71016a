"""Certificates object by object: of annotations, and of output boxes where there are none."""

from __future__ import annotations

import csv
import io

import numpy as np
from evaluation_cases import EVIDENCE, NAMES, PAPER, VOCABULARY, image, noisy

from objectseeker import IouRule
from objectseeker.core.label_map import LabelMap
from objectseeker.metrics import PATCH_LOCATIONS, ThreatModel, certify_images
from objectseeker.metrics.object_certificates import certify_output_boxes
from objectseeker.text import to_csv

THREAT = ThreatModel(area=0.03)


def test_without_labels_every_output_is_certified_as_what_it_is():
    """Annotations of the images are not used."""
    images = noisy(2, 4)
    seen = set()
    for rule in (PAPER.rule, EVIDENCE.rule, IouRule(ioa_rule=PAPER.rule)):
        for observed, rows in zip(images, certify_output_boxes(images, VOCABULARY, rule, THREAT), strict=True):
            output = rule.prune(observed.observation)
            threshold = 0.5 if isinstance(rule, IouRule) else 0.0
            wanted = rule.certify(observed.observation, output, THREAT.patches(), certification_threshold=threshold)
            assert [list(row.certified.values()) for row in rows] == wanted.certified.T.tolist()
            assert [row.largest_square for row in rows] == wanted.largest_square.tolist()
            assert [row.box for row in rows] == [tuple(box) for box in output.xyxy.tolist()]
            assert [row.score for row in rows] == output.score.tolist()
            assert [row.class_name for row in rows] == [NAMES[label] for label in output.label]
            assert {row.object_source for row in rows} <= {"output"}
            seen |= {row.certified["far"] for row in rows}
    assert seen == {True, False}


def test_labels_without_names_are_called_by_their_number():
    thing = (25, 25, 75, 75, 0.9, 7)
    nameless = LabelMap((), (), np.arange(2**15))
    (row,) = next(certify_output_boxes([image([thing], [], [[thing]] * 4)], nameless, PAPER.rule, THREAT))
    assert (row.class_name, row.detector_class) == ("7", "7")
    assert row.certified["far"]


def test_an_image_without_outputs_has_no_rows():
    assert next(certify_output_boxes([image([], [(1, 1, 9, 9, 0)])], VOCABULARY, PAPER.rule, THREAT)) == []


def test_a_table_has_one_column_for_every_number():
    (row,) = next(certify_images(noisy(2, 1), VOCABULARY, PAPER.rule, THREAT))
    (cells,) = csv.DictReader(io.StringIO(to_csv([row.to_csv_row()])))
    assert tuple(float(cells[name]) for name in ("x1", "y1", "x2", "y2")) == row.box
    assert tuple(int(cells[name]) for name in ("safe_left", "safe_top", "safe_right", "safe_bottom")) == row.safe_lines
    assert (cells["object_source"], cells["score"]) == ("labeled", "")
    for where in PATCH_LOCATIONS:
        assert cells[where] == str(row.certified[where])
        assert cells[f"{where}_certified_as"] == (row.certified_as[where] or "")
    assert not any("[" in value or "{" in value for value in cells.values())
