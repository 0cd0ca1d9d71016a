"""The search for settings."""

import dataclasses
import json

import pytest
from evaluation_cases import NAMES, PAPER, image, noisy

from objectseeker import ObjectSeekerError
from objectseeker.evaluation import Choices, Settings, evaluate, sweeps, tune
from objectseeker.evaluation.tuning import STRIDE, Attempt, Search, grid, moves

SETTINGS = dataclasses.replace(PAPER, clean_recall=0.9)
ONE_CHOICE = Choices((SETTINGS.filter_ioa,), (SETTINGS.edge_factor,), (SETTINGS.cluster_distance,))
IMAGES = 20
FLOOR = 0.15
MOST_LOSS = 5.0
CHOICES = Choices((0.6,), (1.0, 0.8), (0.1, 0.3))


@pytest.fixture(scope="module")
def images():
    return noisy(4, IMAGES)


@pytest.fixture(scope="module")
def tuning(images):
    return tune(images, NAMES, SETTINGS, mask_floor=FLOOR, most_loss=MOST_LOSS, losses=(1.0,), choices=CHOICES, seed=1)


def test_what_is_reported_is_what_evaluation_says_of_each_half(images, tuning):
    for index, half in zip(sweeps.split(IMAGES, 2, 1), ("searched", "held_out"), strict=True):
        part = [images[i] for i in index]
        for tuned in tuning.families.values():
            row, table = getattr(tuned, half), evaluate(part, NAMES, tuned.settings)
            assert row["ap50"] == table["objectseeker"]["ap50"]
            assert row["vanilla_ap50"] == table["vanilla"]["ap50"]
            assert row["ap50_loss"] == pytest.approx(table["vanilla"]["ap50"] - row["ap50"])
            certified = table["objectseeker"]["certified_recall"]
            assert row["certified_over"] == certified["over"]
            mean = (certified["far"] + certified["close"] + certified["over"]) / 3
            assert row["certified_mean"] == pytest.approx(mean)
            assert row["base_score"] == table["objectseeker"]["base_score"]


def test_the_loss_is_kept_and_the_floor_respected(tuning):
    assert set(tuning.families) == {"paper", "evidence"}
    for tuned in tuning.families.values():
        assert tuned.searched["ap50_loss"] <= MOST_LOSS
    assert all(attempt.settings.floor >= FLOOR for attempt in tuning.attempts)
    assert len({attempt.settings for attempt in tuning.attempts}) == len(tuning.attempts)


def test_a_search_goes_beyond_its_grid_but_not_beyond_the_loss(tuning):
    for family, tuned in tuning.families.items():
        mine = [attempt for attempt in tuning.attempts if attempt.family == family]
        starts = set(grid(CHOICES.start(SETTINGS), family, FLOOR))
        assert starts < {attempt.settings for attempt in mine}
        at_start = [one.gain for one in mine if one.settings in starts and one.loss <= MOST_LOSS]
        assert tuned.searched["certified_mean"] >= max(at_start)
        assert tuned.searched["certified_mean"] < max(one.gain for one in mine)  # more is to be had, at a price
    evidence, paper = tuning.families["evidence"], tuning.families["paper"]
    assert evidence.held_out["certified_mean"] > paper.held_out["certified_mean"]
    assert tuning.best is evidence


def test_searching_certifies_where_the_full_protocol_does(images, tuning):
    part = [images[i] for i in sweeps.split(IMAGES, 2, 1)[0]]
    for attempt in tuning.attempts[::40]:
        ours = evaluate(part, NAMES, attempt.settings)["objectseeker"]
        assert attempt.row["base_score"] == ours["base_score"]
        assert attempt.row["certified_far"] == ours["certified_recall"]["far"]
    assert any(round(100 * attempt.row["base_score"]) % STRIDE for attempt in tuning.attempts[::40])


def test_a_loss_that_only_the_full_protocol_shows_is_not_accepted():
    class Bench:
        mask_floor = 0.1

        def coarse(self, settings):
            return Attempt(settings, {"ap50_loss": 0.5, "certified_mean": settings.alpha})

        def full(self, settings):
            return Attempt(settings, {"ap50_loss": 0.5 + settings.alpha, "certified_mean": settings.alpha})

    search = Search(Bench(), SETTINGS, {"paper": ONE_CHOICE}, None)
    search.run("paper", [1.0])
    assert max(settings.alpha for settings in search.attempts) == 1.0
    assert search.pick("paper", 1.0).alpha == 0.5


def test_a_search_refines_what_it_may_use():
    """Everything below an alpha of .53 gains more but loses too much: the best allowed one is found, not the best."""

    class Bench:
        mask_floor = 0.1

        def coarse(self, settings):
            return Attempt(
                settings, {"ap50_loss": 2.0 * (settings.alpha < 0.53), "certified_mean": 100 - settings.alpha}
            )

        full = coarse

    search = Search(Bench(), SETTINGS, {"paper": ONE_CHOICE}, None)
    search.run("paper", [1.0])
    assert search.pick("paper", 1.0).alpha == 0.53


def test_the_frontier_is_the_best_within_each_loss(tuning):
    for family, points in tuning.frontier.items():
        assert {one.most_loss for one in points} <= {1.0, MOST_LOSS}
        assert tuning.families[family] == points[-1]
        for one in points:
            assert one.searched["ap50_loss"] <= one.most_loss
        gains = [one.searched["certified_mean"] for one in points]
        assert gains == sorted(gains)
    assert any(len(points) == 2 for points in tuning.frontier.values())


def test_only_the_evidence_rule_chooses_factor_and_distance(tuning):
    chosen = {
        family: {(a.settings.edge_factor, a.settings.cluster_distance) for a in tuning.attempts if a.family == family}
        for family in ("paper", "evidence")
    }
    assert chosen["paper"] == {(1.0, 0.1)}
    assert {factor for factor, _ in chosen["evidence"]} == {1.0, 0.8}
    assert {distance for _, distance in chosen["evidence"]} == {0.1, 0.3}


def test_choices_move_to_their_neighbours():
    choices = Choices((0.6,), (0.85, 1.0, 0.7), (0.1, 0.2))
    start = choices.start(SETTINGS)
    assert (start.filter_ioa, start.edge_factor, start.cluster_distance) == (0.6, 0.85, 0.1)
    moved = {(one.filter_ioa, one.edge_factor, one.cluster_distance) for one in choices.moves(start)}
    assert moved == {(0.6, 0.7, 0.1), (0.6, 1.0, 0.1), (0.6, 0.85, 0.2)}
    with pytest.raises(ObjectSeekerError, match="edge_factor must have at least one value"):
        Choices(edge_factor=())


def test_the_result_is_plain_and_repeatable(images, tuning):
    assert json.loads(json.dumps(tuning.to_json())) == tuning.to_json()
    seen = []
    again = tune(
        images,
        NAMES,
        SETTINGS,
        mask_floor=FLOOR,
        most_loss=MOST_LOSS,
        losses=(1.0,),
        choices=CHOICES,
        seed=1,
        families=["paper"],
        on_attempt=seen.append,
    )
    assert again.families["paper"] == tuning.families["paper"]
    assert tuple(seen) == again.attempts == tuning.attempts[: len(seen)]


def test_one_place_and_several_filters(images):
    chosen = tune(
        images,
        NAMES,
        SETTINGS,
        mask_floor=0.5,
        families=["paper"],
        wheres=["over"],
        most_loss=100,
        losses=(),
        choices=Choices(filter_ioa=(0.7, 0.5)),
    )
    assert set(chosen.families) == {"paper"}
    assert {attempt.settings.filter_ioa for attempt in chosen.attempts} == {0.7, 0.5}
    assert chosen.best.searched["certified_mean"] == chosen.best.searched["certified_over"]


@pytest.mark.parametrize("family", ["paper", "evidence"])
def test_grid_and_moves_stay_within_their_limits(family):
    starts = list(grid(PAPER, family, 0.3))
    assert {start.low_alpha is None for start in starts} == {family == "paper"}
    for start in starts:
        for one in (start, *moves(start, 0.1, 0.3)):
            assert one.floor >= 0.3
            if one.low_alpha is not None:
                assert one.low_alpha <= one.alpha
                assert one.low_beta <= one.beta
    corner = Settings(alpha=1.0, beta=0.0, low_alpha=0.3, low_beta=0.0, power=0.25)
    assert any(one.low_alpha == 0.4 for one in moves(corner, 0.1, 0.3))
    assert any(one.power == 0.75 for one in moves(corner, 0.1, 0.3))


def test_searches_without_a_result_say_why():
    blind = [image([(0, 0, 9, 9, 0.9, 0)], [(0, 0, 9, 9, 0), (50, 50, 60, 60, 0)])] * 4
    with pytest.raises(ObjectSeekerError, match=r"clean recall of 90 %; the highest is 50.00 %"):
        tune(blind, NAMES, SETTINGS, mask_floor=0.1, families=["paper"], losses=())
    with pytest.raises(ObjectSeekerError, match=r"loses at most -1 points of AP50; the smallest loss found is 0.00"):
        tune(blind, NAMES, PAPER, mask_floor=0.1, most_loss=-1.0, families=["paper"])


def test_bad_requests_are_refused(images):
    for options, message in (
        ({"mask_floor": 2}, "mask_floor"),
        ({"most_loss": float("nan")}, "most_loss"),
        ({"wheres": ["near"]}, r"wheres must be some of far, close, over, anywhere, got \['near'\]"),
        ({"families": []}, "families must be some of paper, evidence"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            tune(images, NAMES, PAPER, **({"mask_floor": 0.1} | options))
    with pytest.raises(ObjectSeekerError, match="1 images cannot be split"):
        tune(images[:1], NAMES, PAPER, mask_floor=0.1)
