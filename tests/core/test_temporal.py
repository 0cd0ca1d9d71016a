"""Certificates over time equal every path of the patch, and no attacker who moves hides a certified window.

More of the same: `python tests/trajectories.py 5000`.
"""

import numpy as np
import pytest
import trajectories
from cases import generate

from objectseeker import Detections, Halves, IouRule, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core import temporal
from objectseeker.core.temporal import (
    NOWHERE,
    UNBOUNDED_MOTION,
    FramePositions,
    earliest_uncertified_start,
    frame_positions,
    intersect_alternatives,
)
from objectseeker.core.threats import PATCH_LOCATIONS


def test_windows_equal_every_path_of_pixel_positions():
    verdicts = [trajectories.compare(seed) for seed in range(50)]
    assert sum(certified for certified, _ in verdicts) > 15
    assert sum(still_open for _, still_open in verdicts) > 15


def filled(rectangles, places):
    """Positions of a union as a bitmap (x, y)."""
    bitmap = np.zeros(places, bool)
    for x1, y1, x2, y2 in rectangles:
        bitmap[x1 : x2 + 1, y1 : y2 + 1] = True
    return bitmap


def some_rectangles(rng, most, places=(4, 4)):
    first, last = rng.integers(0, places, (2, int(rng.integers(0, most + 1)), 2))
    return np.concatenate([np.minimum(first, last), np.maximum(first, last)], axis=1)


@pytest.mark.parametrize(("most", "windows"), [(64, 150), (1, 100)])
def test_unions_of_rectangles_equal_every_path(monkeypatch, most, windows):
    """Thousands of windows: any sets of positions, allowed ones too, against all paths on a grid of 4 x 4."""
    monkeypatch.setattr(temporal, "MAX_UNION_SIZE", most)
    verdicts = {True: 0, False: 0}
    for seed in range(windows):
        rng = np.random.default_rng(seed)
        areas = [NOWHERE if rng.random() < 0.02 else np.array([[0, 0, 3, 3]]) for _ in range(3)]
        areas = areas if rng.random() < 0.6 else [some_rectangles(rng, 3) for _ in range(3)]
        hiding = [some_rectangles(rng, 3) for _ in range(3)]
        met = [
            np.concatenate(
                [np.maximum(a[:, None, :2], h[None, :, :2]), np.minimum(a[:, None, 2:], h[None, :, 2:])], axis=-1
            ).reshape(-1, 4)
            for a, h in zip(areas, hiding, strict=True)
        ]
        met = [one[(one[:, :2] <= one[:, 2:]).all(axis=1)] for one in met]
        track = [FramePositions(a, h) for a, h in zip(areas, met, strict=True)]
        for reach in (0, 1, 2, UNBOUNDED_MOTION):
            every = trajectories.paths((4, 4), 3, min(reach, 9))
            may = np.all([filled(a, (4, 4)).ravel()[every[:, t]] for t, a in enumerate(areas)], axis=0)
            reports = np.sum([~filled(h, (4, 4)).ravel()[every[:, t]] for t, h in enumerate(met)], axis=0)
            least = reports[may].min() if may.any() else 9
            for times in (1, 2, 3):
                certified = earliest_uncertified_start(track, reach, times)[-1] > 0
                assert certified == (least >= times), (seed, reach, times)
                verdicts[certified] += 1
    assert min(verdicts.values()) > 2 * windows


def test_disjoint_rectangles_are_the_same_union():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rectangles = some_rectangles(rng, 90, (9, 14)) if seed else np.array([[2, 3, 2, 3], [4, 0, 8, 0]])
        if len(rectangles):
            cut = temporal._disjoint(rectangles)
            assert np.array_equal(filled(cut, (9, 14)), filled(rectangles, (9, 14)))
            assert filled(rectangles, (9, 14)).sum() == (cut[:, 2:] - cut[:, :2] + 1).prod(axis=1).sum()
            assert np.array_equal(filled(temporal._simplify(rectangles), (9, 14)), filled(rectangles, (9, 14)))


@pytest.mark.parametrize("seed", range(6))
def test_larger_images_equal_reachability_by_pixels(seed):
    made = trajectories.sequence(seed, largest=18, frames=5)
    for reach in (0, 1, 3):
        least = trajectories.reachable(made, reach)
        for times in (1, 3):
            assert trajectories.certified(made, reach, times) == (least is None or least >= times)


def test_pixel_sets_are_the_paths_one_by_one():
    """`reachable` and `literal` are two ways to the same: what the test above rests on."""
    for seed in range(40):
        made = trajectories.sequence(seed, largest=3, frames=3)
        if made.places[0] * made.places[1] <= 30:
            for reach in (0, 1):
                assert trajectories.reachable(made, reach) == trajectories.literal(made, reach)


def test_every_entry_is_the_earliest_beginning_of_a_window():
    for seed in range(12):
        made = trajectories.sequence(seed, largest=4, frames=5)
        earliest = earliest_uncertified_start(made.track, 1)
        for end in range(5):
            for begin in range(end + 1):
                part = earliest_uncertified_start(made.track[begin : end + 1], 1)
                assert (part[-1] > 0) == (earliest[end] > begin)


def test_a_path_beyond_the_border_gains_nothing():
    """Positions outside the image, where every mask removes the patch, are given to the attacker: the same verdicts."""
    more = 0
    for seed in range(60):
        made = trajectories.sequence(seed, largest=5, frames=3)
        if made.patch.location != "anywhere":
            continue
        around = []
        for case, (_, unproven) in zip(made.frames, made.maps, strict=True):
            proofs, enough = trajectories.proofs_of(case, made)
            around.append(np.pad(unproven, 2, constant_values=not enough(tuple(range(len(proofs))))))
            more += not unproven.all()
        for reach in (1, 2):
            least = np.zeros(around[0].shape)
            for unproven in around:
                least = trajectories.grown(least, reach) + ~unproven
            assert least.min() == trajectories.reachable(made, reach)
    assert more > 20


def test_no_attacker_who_moves_hides_a_certified_window():
    score = trajectories.campaign(1, 25)
    assert score["certified"] > 8
    assert score["certified hidden"] == 0
    assert score["open hidden"] > 3


def test_the_attacker_breaks_certificates_that_grow_by_a_pixel_too_little():
    assert trajectories.campaign(2, 25, mistake=1)["certified hidden"] > 0


@pytest.mark.parametrize("threshold", [0.25, 0.5, 0.85])
@pytest.mark.parametrize(
    "rule",
    [
        Rule(mask_threshold=0.5),
        Rule(mask_threshold=0.75, evidence_threshold=0.1),
        IouRule(ioa_rule=Rule(mask_threshold=0.1)),  # at a filter IoU of 0.8 no box fits by 0.85
    ],
    ids=repr,
)
def test_a_frame_is_certified_alone_as_ever(rule, threshold):
    verdicts = set()
    for seed in range(32):
        case = generate(seed, largest=24, lines=6, sure=1.0)
        patch = Patch(0.02, 1.0, PATCH_LOCATIONS[seed % len(PATCH_LOCATIONS)])
        found = frame_positions(rule, case.observation, case.ground_truth, patch, certification_threshold=threshold)
        expected = rule.certify(
            case.observation, case.ground_truth, patch, certification_threshold=threshold
        ).certified[0]
        assert [one.certified for one in found] == expected.tolist()
        verdicts |= set(expected.tolist())
    assert threshold > 0.25 or verdicts == {True, False}


def test_a_patch_that_jumps_leaves_the_frames_that_are_certified_alone():
    """m of n: at least as many reports as certified frames, and no more is promised."""
    blind, sure = FramePositions.unobserved(10, 10, Patch(0.01)), FramePositions(np.array([[0, 0, 9, 9]]), NOWHERE)
    track = [sure, blind, sure, blind, blind, sure]
    assert earliest_uncertified_start(track, UNBOUNDED_MOTION) == [1, 1, 3, 3, 3, 6]
    assert earliest_uncertified_start(track, UNBOUNDED_MOTION, 2) == [0, 0, 1, 1, 1, 3]
    assert earliest_uncertified_start(track, UNBOUNDED_MOTION, 9) == [0] * 6


def test_frames_that_prove_something_elsewhere_prove_it_together_if_the_patch_cannot_follow():
    left, right = (
        FramePositions(np.array([[0, 0, 9, 9]]), np.array([[0, 0, 3, 9]])),
        FramePositions(np.array([[0, 0, 9, 9]]), np.array([[6, 0, 9, 9]])),
    )
    for reach, earliest in ((0, 1), (2, 1), (3, 0), (UNBOUNDED_MOTION, 0)):  # from 3 to 6 are three pixels
        assert earliest_uncertified_start([left, right], reach)[-1] == earliest


def test_frames_that_are_not_there_are_blind_ones():
    area = np.array([[0, 0, 9, 9]])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        track = [FramePositions(area, some_rectangles(rng, 3, (10, 10))) for _ in range(5)]
        numbers = np.cumsum(rng.integers(1, 4, 5)).tolist()
        line = [FramePositions(area, area)] * (numbers[-1] - numbers[0] + 1)
        for number, instant in zip(numbers, track, strict=True):
            line[number - numbers[0]] = instant
        for reach, times in ((0, 1), (1, 1), (2, 2)):
            dense = earliest_uncertified_start(line, reach, times)
            found = earliest_uncertified_start(track, reach, times, numbers=numbers)
            begins = [numbers[0] if entry == 0 else numbers[entry - 1] + 1 for entry in found]
            assert [dense[number - numbers[0]] for number in numbers] == [begin - numbers[0] for begin in begins]


def test_beginnings_that_leave_the_patch_the_same_are_followed_as_one(monkeypatch):
    """Of blind frames that a sure one ends every one was a beginning: their number squared in steps."""
    blind, steps = FramePositions.unobserved(64, 36, Patch(0.01)), []
    step = temporal._step
    monkeypatch.setattr(temporal, "_step", lambda *given: steps.append(1) or step(*given))
    track = [*[blind] * 200, FramePositions(blind.allowed, NOWHERE), blind]
    for times, last in ((1, [0, 201, 201]), (2, [0, 0, 0])):
        assert earliest_uncertified_start(track, 2, times)[-3:] == last
    assert len(steps) < 5 * len(track)


@pytest.mark.parametrize("reach", [2**62, 2**63 - 1, 2**63, 10**30])
def test_a_reach_beyond_all_numbers_is_anywhere(reach):
    blind, sure = FramePositions.unobserved(10, 10, Patch(0.01)), FramePositions(np.array([[0, 0, 9, 9]]), NOWHERE)
    track = [blind, blind, sure, blind]
    assert (
        earliest_uncertified_start(track, reach, numbers=[0, 1, 2, 9])
        == earliest_uncertified_start(track, UNBOUNDED_MOTION)
        == [0, 0, 3, 3]
    )


def test_a_frame_without_the_object_lets_the_patch_move_on():
    area = np.array([[0, 0, 9, 9]])
    left, right = FramePositions(area, np.array([[0, 0, 3, 9]])), FramePositions(area, np.array([[6, 0, 9, 9]]))
    blind = FramePositions(area, area)
    assert earliest_uncertified_start([left, blind, right], 1)[-1] > 0
    assert earliest_uncertified_start([left, blind, right], 2)[-1] == 0


def test_many_rectangles_are_cut_anew_and_stay_the_same_positions():
    rng = np.random.default_rng(0)
    specks = rng.integers(0, 60, (400, 2))
    hiding = np.concatenate([specks, specks + rng.integers(0, 3, (400, 2))], axis=1)
    track = [FramePositions(np.array([[0, 0, 62, 62]]), hiding)] * 2
    assert earliest_uncertified_start(track, 0) == [0, 0]
    gaps = ~filled(hiding, (63, 63))
    x, y = np.argwhere(gaps)[0]
    there = FramePositions(np.array([[0, 0, 62, 62]]), np.array([[x, y, x, y]]))
    assert earliest_uncertified_start([*track, there], 0)[-1] == 2
    assert earliest_uncertified_start([*track, there], 62)[-1] == 0


def test_found_as_one_of_two_things_is_hidden_where_both_are():
    area = np.array([[0, 0, 9, 9]])
    ways = [FramePositions(area, np.array([[0, 0, 3, 9]])), FramePositions(area, np.array([[2, 0, 9, 5]]))]
    assert intersect_alternatives(ways).uncertified.tolist() == [[2, 0, 3, 5]]


def test_an_object_that_cannot_be_seen_is_blind():
    masks = Halves(2).masks(20, 20)
    observation = Observation(20, 20, masks, Detections.empty(), [Detections.empty()] * len(masks))
    truth = Detections([[30, 30, 40, 40]], [1.0], [0])
    (found,) = frame_positions(Rule(), observation, truth, Patch(0.01, 1.0, "over"))
    assert not found.certified
    assert found.uncertified.tolist() == [[-1, -1, 19, 19]]


def test_what_is_not_meant_is_refused():
    masks = Halves(2).masks(20, 20)
    observation = Observation(20, 20, masks, Detections.empty(), [Detections.empty()] * len(masks))
    with pytest.raises(ObjectSeekerError, match="one patch at one position: got"):
        frame_positions(Rule(), observation, Detections.empty(), Patch(count=2))
    for reach in (-1, 1.5, True):
        with pytest.raises(ObjectSeekerError, match="max_motion must be a whole number"):
            earliest_uncertified_start([], reach)
    for numbers in ([3, 3], [1]):
        with pytest.raises(ObjectSeekerError, match="numbers of frames"):
            earliest_uncertified_start([FramePositions.unobserved(9, 9, Patch())] * 2, 1, numbers=numbers)
    with pytest.raises(ObjectSeekerError, match="min_detections"):
        earliest_uncertified_start([], 1, 0)
