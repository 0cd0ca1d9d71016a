"""Soundness by attack with two patches: a few thousand games here, more by tests/soak.py --patches 2."""

import numpy as np
import pytest
from adversary import total, with_class_maximum, with_extra_nms
from adversary_two_patches import campaign

import objectseeker.core.certification as certification


@pytest.mark.parametrize("evidence", [False, True])
def test_no_certified_object_is_ever_hidden(evidence):
    score = campaign(21, 900, evidence=evidence)
    assert total(score, "certified") > 100
    assert total(score, "certified hidden") == 0
    assert score["slicer"]["open hidden"] > 0.5 * score["slicer"]["open"]  # the attacker is strong


@pytest.mark.parametrize("unsound", [with_extra_nms, with_class_maximum])
def test_the_attacker_breaks_unsound_defenses(unsound):
    assert total(campaign(22, 900, unsound), "certified hidden") > 0


def test_the_attacker_breaks_certificates_that_take_each_patch_on_its_own(monkeypatch):
    """A view for each of the patches is not a view for both."""
    together = lambda removes: np.ones((len(removes), len(removes)), np.bool_)  # noqa: E731
    monkeypatch.setattr(certification, "jointly_removed", together)  # one patch is still checked
    assert total(campaign(23, 500, evidence=False), "certified hidden") > 0
