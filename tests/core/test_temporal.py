"""Certificates over time equal every path of the patch, and no attacker who moves hides a certified window.

More of the same: `python tests/trajectories.py 5000`.
"""

import numpy as np
import oracle
import pytest
import trajectories
from cases import banded, generate, halves, literally_removed, pairs, windowed

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


def test_a_frame_that_is_not_observed_lets_the_patch_be_anywhere_in_the_image():
    """Of 30 x 20 pixels, with a patch of 6 x 2: at every position at which it shows a pixel."""
    patch = Patch(0.02, 3.0, "far")
    assert patch.size(30, 20) == (6, 2)
    blind = FramePositions.unobserved(30, 20, patch)
    assert blind.allowed.tolist() == blind.uncertified.tolist() == [[-5, -1, 29, 19]]
    masks = Halves(2).masks(30, 20)
    seen = Observation(30, 20, masks, Detections.empty(), [Detections.empty()] * len(masks))
    (unseen,) = frame_positions(Rule(), seen, Detections([[40, 5, 50, 9]], [1.0], [0]), patch)
    assert unseen.allowed.tolist() == unseen.uncertified.tolist() == [[-5, -1, 29, 19]]


@pytest.mark.parametrize("seed", range(24))
def test_the_positions_of_a_frame_are_those_of_the_oracle(seed):
    make = (halves, pairs, banded(seed), windowed(seed))[seed % 4]
    case = generate(seed, smallest=3, largest=12, lines=3, make=make, crowd=0.9, sure=0.9)
    observation, masks = case.observation, case.observation.masks
    width, height = masks.width, masks.height
    patch = Patch(0.06, (3.0, 0.4)[seed % 2], PATCH_LOCATIONS[seed // 4 % len(PATCH_LOCATIONS)])
    size = patch.size(width, height)
    rule = Rule(mask_threshold=0.25)
    verdict = rule.certify(observation, case.ground_truth, patch)
    found = frame_positions(rule, observation, case.ground_truth, patch)
    gone = literally_removed(masks, size)
    for n, (frame, g) in enumerate(zip(found, oracle.boxes_of(case.ground_truth), strict=True)):
        if oracle.size(g) == 0 or not oracle.seen(g, width, height):
            continue
        allowed = oracle.allowed(patch.location, g, width, height, size)
        hiding = allowed & ~gone[verdict.safe[n]].any(axis=0)
        shift = np.array([size[0] - 1, size[1] - 1] * 2)
        assert np.array_equal(filled(frame.allowed + shift, allowed.T.shape), allowed.T)
        assert np.array_equal(filled(frame.uncertified + shift, allowed.T.shape), hiding.T)
        assert frame.certified == bool(verdict.certified[0, n]) == (not hiding.any())


def test_unions_are_cut_into_few_rectangles():
    """Empty and contained ones are dropped; runs of a column are joined with equal neighbors."""
    some = np.array([[0, 0, 4, 4], [1, 1, 4, 4], [5, 0, 4, 9], [0, 5, 9, 4], [0, 0, 4, 4], [2, 2, 6, 3]])
    assert temporal._simplify(some).tolist() == [[0, 0, 4, 4], [2, 2, 6, 3]]
    assert temporal._simplify(some[2:4]).tolist() == []
    assert temporal._simplify(some[1:2]).tolist() == [[1, 1, 4, 4]]
    assert temporal._simplify(some[:2]).tolist() == [[0, 0, 4, 4]]
    assert temporal._disjoint(some[[0, 5]]).tolist() == [[0, 0, 4, 4], [5, 2, 6, 3]]
    assert temporal._disjoint(np.array([[0, 0, 0, 0], [2, 3, 2, 3], [1, 3, 1, 3]])).tolist() == [
        [0, 0, 0, 0],
        [1, 3, 2, 3],
    ]
    assert temporal._intersect(some[:1], some[5:]).tolist() == [[2, 2, 4, 3]]
    assert temporal._intersect(some[:1], NOWHERE).tolist() == []
    assert temporal._dilate(some[:1], 3).tolist() == [[-3, -3, 7, 7]]
    assert not NOWHERE.flags.writeable


def test_many_specks_are_kept_as_they_are_up_to_the_largest_union(monkeypatch):
    monkeypatch.setattr(temporal, "MAX_UNION_SIZE", 3)
    specks = np.array([[0, 0, 1, 1], [1, 1, 2, 2], [4, 4, 4, 4]])
    assert temporal._simplify(specks).tolist() == specks.tolist()
    more = np.concatenate([specks, [[6, 0, 6, 0]]])
    assert temporal._simplify(more).tolist() == [[0, 0, 0, 1], [1, 0, 1, 2], [2, 1, 2, 2], [4, 4, 4, 4], [6, 0, 6, 0]]


def test_found_as_one_of_three_things_or_as_one():
    area = np.array([[0, 0, 9, 9]])
    ways = [FramePositions(area, np.array([box])) for box in ([0, 0, 5, 9], [2, 0, 9, 5], [0, 3, 9, 9])]
    assert intersect_alternatives(ways).uncertified.tolist() == [[2, 3, 5, 5]]
    assert intersect_alternatives(ways[:1]).uncertified.tolist() == [[0, 0, 5, 9]]
    assert intersect_alternatives(ways).allowed.tolist() == area.tolist()


def test_a_gap_between_frames_is_as_many_steps_and_one_alone_is_one():
    left = FramePositions(np.array([[0, 0, 99, 0]]), np.array([[0, 0, 3, 0]]))
    right = FramePositions(np.array([[0, 0, 99, 0]]), np.array([[20, 0, 99, 0]]))  # 17 pixels further
    for after, reach, earliest in ((2, 8, 1), (2, 9, 0), (3, 5, 1), (3, 6, 0), (1, 16, 1), (1, 17, 0)):
        assert earliest_uncertified_start([left, right], reach, numbers=[7, 7 + after])[-1] == earliest
    assert earliest_uncertified_start([left, right], 17) == [0, 0]
    assert earliest_uncertified_start([left, right], 16, numbers=[3, 4]) == [0, 1]
    assert earliest_uncertified_start([], 1) == earliest_uncertified_start([], 1, numbers=[]) == []
    assert earliest_uncertified_start([left], 0, numbers=[5]) == [0]


def test_a_patch_of_unbounded_motion_is_anywhere_in_an_image_of_any_size():
    area = np.array([[0, 0, 200_000, 90_000]])
    left, right = (FramePositions(area, np.array([box])) for box in ([0, 0, 3, 9], [199_000, 80_000, 199_009, 80_009]))
    assert earliest_uncertified_start([left, right], UNBOUNDED_MOTION) == [0, 0]
    assert earliest_uncertified_start([right, left], UNBOUNDED_MOTION) == [0, 0]
    assert earliest_uncertified_start([left, right], 198_997) == [0, 0]
    assert earliest_uncertified_start([left, right], 198_996) == [0, 1]
