"""Soundness of the IoU variant by attack; `python tests/adversary_iou.py 50000` plays more games."""

import numpy as np
import pytest
from adversary import total
from adversary_iou import SLIGHTLY, UNSOUND, campaign, worst_boxes
from cases import iou_certify, iou_prune

from objectseeker import Detections, Halves, Observation
from objectseeker.core.boxes import iou
from objectseeker.core.rules.iou import iou_lower_bound


def test_no_certified_object_is_ever_hidden():
    score = campaign(21, 1000)
    assert total(score, "certified") > 200
    assert total(score, "certified hidden") == 0
    for strong in ("filters", "suppressors", "chains"):
        assert score[strong]["open hidden"] > 0.8 * score[strong]["open"]


@pytest.mark.parametrize(("defense", "strategy"), UNSOUND.items(), ids=lambda part: getattr(part, "__name__", part))
def test_the_attacker_breaks_unsound_defenses(defense, strategy):
    assert total(campaign(22, 240, defense, [strategy]), "certified hidden") > 0


def test_the_attacker_breaks_a_certificate_that_forgets_the_replacement(monkeypatch):
    """A box that fits the object well enough itself may be replaced by one that does not."""
    from objectseeker.core.rules import iou as iou_rule

    monkeypatch.setattr(iou_rule, "iou_lower_bound", lambda masked, truth, *_: iou(masked, truth))
    score = campaign(23, 450, strategies=["silent", "filters", "suppressors"])
    assert score["filters"]["certified hidden"] > 0
    assert score["suppressors"]["certified hidden"] > 0
    assert score["silent"]["certified hidden"] == 0


def test_the_attacker_breaks_a_bound_that_is_a_little_too_high(monkeypatch):
    """What is a quarter above the bound is wrong."""
    from objectseeker.core.rules import iou as iou_rule

    honest = iou_rule.iou_lower_bound
    monkeypatch.setattr(iou_rule, "iou_lower_bound", lambda *given: 1.25 * honest(*given))
    assert total(campaign(25, 400, strategies=["filters"]), "certified hidden") > 0


@pytest.mark.parametrize("attacker_writes", ["base boxes", "masked boxes"])
def test_the_exact_bound_leaves_no_room(attacker_writes):
    """One box proves the object: whatever is required above its bound, the attacker denies, and nothing below it."""
    rng = np.random.default_rng(5)
    masks = Halves(9).masks(100, 100)
    mask = masks.rectangle.tolist().index([20, 0, 100, 100])
    seen_by_attacker = masks.rectangle.tolist().index([0, 0, 90, 100])
    nothing = Detections.empty()
    for _ in range(200):
        g = np.array([40.0, 40.0, 70.0, 70.0])
        m = g + rng.uniform(-4, 4, 4)
        proof = Detections([m], [0.9], [0])
        bound = float(iou_lower_bound(m[None], g[None], 0.8, margin=0.0)[0, 0])
        observation = Observation(100, 100, masks, nothing, [proof if i == mask else nothing for i in range(36)])
        truth = Detections([g], [1.0], [0])
        assert iou_certify(observation, truth, [], mask_threshold=0.5, certification_threshold=bound - 1e-6).safe[
            0, mask
        ]
        assert not iou_certify(
            observation, truth, [], mask_threshold=0.5, certification_threshold=bound + 1e-9
        ).safe.any()
        attack = Detections(worst_boxes(m[None], g, 0.8 * (1 + SLIGHTLY)), [1.0], [0])
        masked = list(observation.masked)
        if attacker_writes == "masked boxes":
            masked[seen_by_attacker] = attack
        base = attack if attacker_writes == "base boxes" else nothing
        output = iou_prune(Observation(100, 100, masks, base, masked), mask_threshold=0.5)
        assert output == attack  # the proof is gone
        assert bound - 1e-9 <= iou(output.xyxy, g[None])[0, 0] <= bound + 1e-6
