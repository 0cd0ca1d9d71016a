"""What a notebook shows: images and tables that are well-formed, of anything, and never too long."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from evaluation_cases import image

from objectseeker import Detections, Patch, Rule
from objectseeker.core.notebook import MOST_DRAWN, MOST_ROWS
from objectseeker.core.threats import PATCH_LOCATIONS


def shown(value: object) -> ElementTree.Element:
    """The HTML that a notebook is given, which here is also XML."""
    return ElementTree.fromstring(value._repr_html_())  # type: ignore[attr-defined]


def rows(page: ElementTree.Element) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in page.iter("tr")]


def test_detections_are_drawn_and_listed() -> None:
    page = shown(Detections([(1, 2, 30, 40), (5, 5, 50, 20.25)], [0.9, 0.25], [0, 3]))
    assert page.findtext("b") == "2 boxes"
    assert rows(page) == [
        ["label", "score", "x1", "y1", "x2", "y2"],
        ["0", "0.900", "1.0", "2.0", "30.0", "40.0"],
        ["3", "0.250", "5.0", "5.0", "50.0", "20.2"],
    ]
    (drawing,) = page.iter("svg")
    assert drawing.get("viewBox") == "0 0 50 40"
    corners = ("x", "y", "width", "height")
    drawn = [[box.get(name) for name in corners] for box in drawing]
    assert drawn == [["1", "2", "29", "38"], ["5", "5", "45", "15.25"]]
    assert drawing[0].get("stroke") != drawing[1].get("stroke")


def test_an_observation_tells_its_masks_and_boxes() -> None:
    thing = (20, 20, 60, 60, 0.9, 1)
    seen = image([thing], [], [[thing], [], [thing, thing]], lines=1).observation
    page = shown(seen)
    assert page.findtext("b") == "100 x 100 pixels: 1 base box, 3 masked boxes under 2 of 4 masks"
    assert len(next(page.iter("svg"))) == 4
    assert len(rows(page)) == 2


def test_certificates_have_a_row_for_every_object() -> None:
    thing, other = (20, 20, 60, 60, 0.9, 1), (5, 5, 12, 12, 0.9, 1)
    one = image([thing], [(*thing[:4], 1), (*other[:4], 1)], [[thing]] * 36, lines=9)
    patches = [Patch(0.01, 1.0, where) for where in PATCH_LOCATIONS]
    proven = Rule(base_threshold=0.5, mask_threshold=0.7).certify(one.observation, one.ground_truth, patches)
    page = shown(proven)
    counts = [f"threat {p}: {int(proven.certified[p].sum())} certified" for p in range(4)]
    assert page.findtext("b") == ", ".join(["2 objects", *counts])
    _, first, second = rows(page)
    assert first[:6] == ["0", "✓", "✓", "✓", "✓", f"{proven.largest_square[0]} px"]
    assert second[1:5] == ["✗"] * 4
    assert first[6:8] == ["36", ", ".join(map(str, proven.safe_lines[0].tolist()))]
    assert len(list(page.iter("svg"))) == 2
    assert (
        shown(Rule(base_threshold=0.5, mask_threshold=0.7).certify(one.observation, one.ground_truth, [])).findtext("b")
        == "2 objects"
    )


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_what_is_shown_stays_short(count: int) -> None:
    found = Detections(np.tile([0, 0, 0, 0], (count, 1)), np.zeros(count), np.arange(count))
    seen = image([], [(1, 1, 9, 9, 0)] * min(count, 50)).observation
    page = shown(found)
    assert len(list(page.iter("rect"))) == min(count, MOST_DRAWN)
    assert len(rows(page)) == (1 + min(count, MOST_ROWS) if count else 0)
    assert (f"and {count - MOST_ROWS} more" in "".join(page.itertext())) == (count > MOST_ROWS)
    assert len(rows(shown(Rule().certify(seen, found[:50], [Patch()])))) == (1 + min(count, MOST_ROWS) if count else 0)
