"""Soundness by attack: a few thousand games here, a million in tests/soak.py."""

import numpy as np
import pytest
from adversary import campaign, total, with_class_maximum, with_extra_nms

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("evidence", [False, True])
def test_no_certified_object_is_ever_hidden(evidence):
    score = campaign(11, 3000, evidence=evidence)
    assert total(score, "certified") > 400
    assert total(score, "certified hidden") == 0
    assert score["slicer"]["open hidden"] > 0.8 * score["slicer"]["open"]  # the attacker is strong
    assert score["every_harmless_box"]["open hidden"] > 0.7 * score["every_harmless_box"]["open"]


@pytest.mark.parametrize("unsound", [with_extra_nms, with_class_maximum])
def test_the_attacker_breaks_unsound_defenses(unsound):
    assert total(campaign(12, 2000, unsound), "certified hidden") > 0


def test_the_attacker_breaks_a_weakened_comparison(monkeypatch):
    """A certificate that forgives half a line's width is wrong, and the attacker finds it."""
    import objectseeker.core.certification as certification

    honest = certification.find_safe_lines

    def generous(safe, masks):
        return honest(safe, masks) + np.array([3, 3, -3, -3])

    monkeypatch.setattr(certification, "find_safe_lines", generous)
    assert total(campaign(13, 1000, evidence=False), "certified hidden") > 0
