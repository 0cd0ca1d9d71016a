"""The joint certificate against every pixel position, and against an attacker who hides several objects at once."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import adversary
import numpy as np
import oracle
import oracle_iou
import pytest
from cases import generate, iou_rule
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core.boxes import iou
from objectseeker.core.certification import ObjectProof
from objectseeker.core.joint import certify_jointly, count_boxes
from objectseeker.core.masks import keep
from objectseeker.core.positions import PositionClasses
from objectseeker.core.recipes import Bands, Halves, Pairs

SEEDS = st.integers(0, 2**32)
PATCHES = [Patch(area, aspect, "anywhere") for area in (0.004, 0.03, 0.1, 0.4) for aspect in (0.5, 1.0)]


RECIPES = (Halves(3), Pairs(1), Bands(0.05), Pairs(2), Halves(2) + Bands(0.03, spacing=0.5), Pairs(1))


def masks_of(seed):
    return lambda width, height, lines: RECIPES[seed % len(RECIPES)].masks(width, height)


def hidden_everywhere(observation, proofs, size):
    """(objects, y, x): may the patch hide the object there, by the classes of its proofs?"""
    starts = PositionClasses.of(observation.masks, size).starts
    x, y = (
        np.searchsorted(start, positions, side="right") - 1
        for start, positions in zip(starts, oracle.positions(observation.width, observation.height, size), strict=True)
    )
    unseen = np.ones((len(starts[0]), len(starts[1])), dtype=bool)
    hidden = [np.all([one.escaping_classes(size) for one in proof] or [unseen], axis=0) for proof in proofs]
    return np.array([grid[np.ix_(x, y)].T for grid in hidden])


def proven_everywhere(observation, truth, size, mask_threshold, evidence_threshold, certification_threshold):
    """(objects, y, x): is the object proven with the patch at that position? One position after the other."""
    removing = oracle.removed(observation, size)
    answer = np.zeros((len(truth), *removing.shape[1:]), dtype=bool)
    for n, g in enumerate(oracle.boxes_of(truth)):
        if oracle.size(g) == 0 or not oracle.seen(g, observation.width, observation.height):
            continue
        proofs = [
            (mask, box, oracle.evidence_of(score, mask_threshold, evidence_threshold, 1.0))
            for mask, _, box, score in oracle.proving(
                observation, truth, n, 0.6, certification_threshold, "exact", True
            )
        ]
        proofs = [proof for proof in proofs if proof[2] > 0]
        close = Fraction("0.9")
        linked = [
            [a is b or max(oracle.ioa(a[1], b[1]), oracle.ioa(b[1], a[1])) > close for b in proofs] for a in proofs
        ]
        decided = {}
        for y, x in np.ndindex(*removing.shape[1:]):
            present = tuple(i for i, (mask, _, _) in enumerate(proofs) if removing[mask, y, x])
            if present not in decided:
                stars = oracle.groups(present, linked, "star")
                decided[present] = any(oracle.enough([proofs[i] for i in star]) for star in stars)
            answer[n, y, x] = decided[present]
    return answer


@settings(max_examples=120, deadline=None)
@given(
    SEEDS,
    st.sampled_from(PATCHES),
    st.sampled_from([None, 0.1, 0.1]),
    st.sampled_from([0.0, 0.25, 0.5]),
    st.sampled_from([0.0, 0.8]),
)
def test_the_fewest_over_all_pixel_positions(seed, patch, evidence_threshold, certification_threshold, torn):
    """Class by class, also where boxes that prove an object are not neighbors (`torn`)."""
    case = generate(seed, smallest=4, largest=8, make=masks_of(seed), crowd=0.9, generous=0.3, sure=0.9, torn=torn)
    observation, truth = case.observation, case.ground_truth
    rule = Rule(mask_threshold=0.75, evidence_threshold=evidence_threshold)
    size = patch.size(observation.width, observation.height)

    joint = rule.certify_jointly(observation, truth, patch, certification_threshold=certification_threshold)

    proven = proven_everywhere(observation, truth, size, 0.75, evidence_threshold, certification_threshold)
    proofs = rule.object_proofs(observation, truth, certification_threshold)
    assert np.array_equal(hidden_everywhere(observation, proofs, size), ~proven)
    assert joint.count == proven.sum(axis=0).min()
    xs, ys = oracle.positions(observation.width, observation.height, size)
    x, y = joint.worst_position
    assert joint.proven.tolist() == proven[:, ys.index(y), xs.index(x)].tolist()
    certified = rule.certify(observation, truth, patch, certification_threshold=certification_threshold).certified[0]
    assert certified.tolist() == proven.all(axis=(1, 2)).tolist()
    assert joint.count >= certified.sum()
    assert (joint.proven >= certified).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(PATCHES), st.sampled_from([0.25, 0.5, 0.7, 0.85]))
def test_of_boxes_that_fit_it_equals_every_position(seed, patch, certification_threshold):
    case = generate(seed, smallest=6, largest=12, lines=3, crowd=0.9, generous=1.0, sure=0.9)
    observation, truth = case.observation, case.ground_truth
    rule = iou_rule(mask_threshold=0.1)
    size = patch.size(observation.width, observation.height)
    options = {
        "mask_threshold": 0.1,
        "filter_iou": 0.8,
        "certification_threshold": certification_threshold,
        "bound": "exact",
        "classwise": True,
    }
    proven = []
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = oracle_iou.safe_masks(observation, truth, n, **options)
        seen = oracle.seen(g, observation.width, observation.height)
        proven.append(oracle.removed(observation, size, safe).any(axis=0) & seen)

    proofs = rule.object_proofs(observation, truth, certification_threshold)

    assert np.array_equal(hidden_everywhere(observation, proofs, size), ~np.array(proven))
    joint = rule.certify_jointly(observation, truth, patch, certification_threshold=certification_threshold)
    assert joint.count == np.sum(proven, axis=0).min()


def test_generated_cases_have_more_joint_than_single_certificates():
    """Else the tests above would not tell one from the other."""
    more = 0
    for seed in range(200):
        case = generate(seed, largest=12, make=masks_of(seed), crowd=0.9, generous=1.0, sure=0.4)
        rule = Rule(mask_threshold=0.75)
        single = rule.certify(case.observation, case.ground_truth, PATCHES[2]).certified.sum()
        more += rule.certify_jointly(case.observation, case.ground_truth, PATCHES[2]).count > single
    assert more > 10


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(PATCHES[:6]), st.sampled_from([None, 0.1]))
def test_an_attacker_hides_no_more_objects_than_it_allows(seed, patch, evidence_threshold):
    """One position, all objects at once: what the strategies write against each is written together."""
    case = generate(seed, largest=16, lines=3, crowd=0.9, generous=1.0, sure=0.8)
    observation, truth, rng = case.observation, case.ground_truth, np.random.default_rng(seed)
    rule = Rule(mask_threshold=0.5, evidence_threshold=evidence_threshold)
    joint = rule.certify_jointly(observation, truth, patch)
    width, height = observation.width, observation.height
    for x, y in (
        joint.worst_position,
        (rng.integers(1 - joint.patch_size[0], width), rng.integers(1 - joint.patch_size[1], height)),
    ):
        first, last = (
            np.maximum([x, y], 0),
            np.minimum([x + joint.patch_size[0], y + joint.patch_size[1]], [width, height]),
        )
        gone = oracle.shows_none_of(observation, first, last)
        for strategy in (
            adversary.silent,
            adversary.slicer,
            adversary.some_slices,
            adversary.decoys,
            adversary.bridges,
        ):
            base, masked = [], [observation.masked[m] if gone[m] else Detections.empty() for m in range(len(gone))]
            for g, label in zip(truth.xyxy, truth.label.tolist(), strict=True):
                fixed, free = np.flatnonzero(gone).tolist(), np.flatnonzero(~gone).tolist()
                target = adversary.Target(observation, g, label, fixed, free, 0.6, 0.0, True)
                move = strategy(target, rng)
                base.append(adversary._detections(move.base, label))
                for m, boxes in move.masked.items():
                    masked[m] = Detections.concatenate([masked[m], adversary._detections(boxes, label)])
            attacked = Observation(width, height, observation.masks, Detections.concatenate(base), masked)
            output = rule.prune(attacked)
            found = [
                any(
                    oracle.shared(oracle.box_of(g), box) > 0
                    for box, of in zip(oracle.boxes_of(output), output.label.tolist(), strict=True)
                    if of == label
                )
                for g, label in zip(truth.xyxy, truth.label.tolist(), strict=True)
            ]
            assert sum(found) >= joint.count


def test_an_object_may_be_proven_as_either_of_two_labels():
    """Left of the middle as one class, right of it as the other: neither proves it everywhere, together they do."""
    masks = Halves(1).masks(100, 100)  # removes left, top, right, bottom half
    box = [[40.0, 40.0, 60.0, 60.0]]
    seen = {0: 0, 2: 1}  # under the left half's mask it is a 0, under the right half's a 1
    masked = [Detections(box, [0.9], [seen[m]]) if m in seen else Detections.empty() for m in range(4)]
    observation = Observation(100, 100, masks, Detections.empty(), masked)
    rule, proofs = Rule(mask_threshold=0.5), []
    for label in (0, 1):
        truth = Detections(box, [1.0], [label])
        assert rule.certify_jointly(observation, truth, Patch(0.01, location="anywhere")).count == 0
        proofs += [proof for (proof,) in rule.object_proofs(observation, truth, 0)]

    apart = np.eye(2, dtype=bool)  # boxes of two labels
    assert certify_jointly(masks, [proofs], (1, 1), apart).count == 1
    assert certify_jointly(masks, [proofs], (1, 1), apart).boxes == 1
    assert certify_jointly(masks, [proofs], (2, 2), apart).count == 0  # it can lie across the line
    assert certify_jointly(masks, [[]], (1, 1), apart[:0, :0]).count == 0
    assert certify_jointly(masks, [[]], (1, 1), apart[:0, :0]).boxes == 0
    one = certify_jointly(masks, [proofs[:1]], (1, 1), apart[:1, :1])
    assert one.worst_position == (74, 24)  # the middle of its class


def test_the_worst_position_is_in_the_middle_of_the_first_of_the_worst_classes():
    """Lines at 10 and 7 of 21 x 15 pixels; positions of a patch of 3 x 2 are -2 to 20 and -1 to 14."""
    masks = keep(21, 15, [[10, 0, 21, 15], [0, 0, 10, 15], [0, 7, 21, 15], [0, 0, 21, 7]])
    for safe, x, y in (
        ([0, 1, 2, 3], (8 + 9) // 2, (6 + 6) // 2),  # astride both lines
        ([1, 2, 3], (-2 - 1) // 2, (6 + 6) // 2),
        ([0, 2, 3], (8 + 9) // 2, (6 + 6) // 2),
        ([0, 3], (8 + 9) // 2, (-1 - 1) // 2),
        ([], (-2 - 1) // 2, (-1 - 1) // 2),
    ):
        proof = ObjectProof(masks, np.isin(np.arange(4), safe))
        found = certify_jointly(masks, [[proof]], (3, 2))
        assert (found.worst_position, found.count, found.patch_size) == ((x, y), 0, (3, 2))
    only_last = ObjectProof(keep(21, 15, [[20, 14, 21, 15]]), np.array([True]))
    found = certify_jointly(only_last.masks, [[only_last]], (1, 1))
    assert found.worst_position == (20, 14)
    assert found.count == found.boxes == 0
    everywhere = ObjectProof(masks, np.array([True, True, True, True]))
    found = certify_jointly(masks, [[everywhere], [proof]], (1, 1))
    assert (found.count, found.proven.tolist(), found.boxes) == (1, [True, False], 1)


@pytest.mark.parametrize("patch", [Patch(0.01, location="far"), Patch(0.01, location="anywhere", count=2)])
def test_only_one_patch_anywhere_can_be_asked(patch):
    case = generate(3)
    with pytest.raises(ObjectSeekerError, match="one patch anywhere"):
        Rule().certify_jointly(case.observation, case.ground_truth, patch)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_of_boxes_that_fit_it_is_never_below_what_is_certified(seed):
    case = generate(seed, generous=1.0, sure=0.9)
    rule = iou_rule(mask_threshold=0.5)
    patch = Patch(0.01, location="anywhere")
    certified = rule.certify(case.observation, case.ground_truth, patch, certification_threshold=0.5).certified[0]
    joint = rule.certify_jointly(case.observation, case.ground_truth, patch)
    assert joint.count >= certified.sum()
    assert joint.count <= len(case.ground_truth)


# --- how many boxes cover the objects -----------------------------------------------------------------------------


def fewest_boxes(proven, may_share):
    """Group by group: every partition of the proofs that hold into groups that pairwise may share."""
    chosen = np.flatnonzero(proven).tolist()

    def least(left):
        if not left:
            return 0
        first, others = left[0], [row for row in left[1:] if may_share[left[0], row]]
        found = len(chosen)
        for size in range(len(others), -1, -1):
            for group in combinations(others, size):
                if all(may_share[a, b] for a, b in combinations(group, 2)):
                    found = min(found, 1 + least([row for row in left if row != first and row not in group]))
        return found

    return least(chosen)


def test_boxes_are_never_more_than_the_fewest_that_could_satisfy_the_proofs():
    rng = np.random.default_rng(0)
    equal = 0
    for _ in range(300):
        rows = int(rng.integers(0, 6))
        may_share = np.triu(rng.random((rows, rows)) < rng.random())
        may_share = may_share | may_share.T | np.eye(rows, dtype=bool)
        proven = rng.random((rows, 7)) < 0.7
        counted = count_boxes(proven, may_share).tolist()
        fewest = [fewest_boxes(column, may_share) for column in proven.T]
        assert all(a <= b for a, b in zip(counted, fewest, strict=True))
        assert all((a > 0) == column.any() for a, column in zip(counted, proven.T, strict=True))
        equal += counted == fewest
    assert equal > 200


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(PATCHES), st.sampled_from([None, 0.1]), st.booleans())
def test_boxes_are_the_labels_that_are_proven_at_every_position(seed, patch, evidence_threshold, classwise):
    case = generate(seed, smallest=4, largest=8, make=masks_of(seed), crowd=0.9, generous=0.6, sure=0.9)
    observation, truth = case.observation, case.ground_truth
    rule = Rule(mask_threshold=0.75, evidence_threshold=evidence_threshold, classwise=classwise)
    hidden = hidden_everywhere(
        observation, rule.object_proofs(observation, truth), patch.size(observation.width, observation.height)
    )
    labels = truth.label if classwise else np.zeros(len(truth), int)
    literal = min(len({*labels[column].tolist()}) for column in ~hidden.reshape(len(truth), -1).T)
    assert rule.certify_jointly(observation, truth, patch).boxes == literal


@pytest.mark.parametrize("classwise", [True, False])
def test_an_attacker_reaches_the_number_of_boxes_and_never_beats_it(classwise):
    """One base box of each label over the whole image: nothing else of these labels is left, and no fewer can be."""
    reached = several = 0
    for seed in range(250):
        case = generate(seed, largest=12, crowd=0.9, generous=0.6, sure=0.9)
        observation, truth = case.observation, case.ground_truth
        rule = Rule(mask_threshold=0.5, classwise=classwise)
        patch = PATCHES[seed % len(PATCHES)]
        joint = rule.certify_jointly(observation, truth, patch)
        several += joint.boxes > 1
        labels = np.unique(truth.label) if classwise else np.zeros(1, int)
        for x, y in [joint.worst_position, (0, 0)]:
            removes = oracle.removed(observation, joint.patch_size)
            xs, ys = oracle.positions(observation.width, observation.height, joint.patch_size)
            left = removes[:, ys.index(y), xs.index(x)]
            whole = [[-1e3, -1e3, 1e3, 1e3]] * len(labels)
            masked = [boxes if left[m] else Detections.empty() for m, boxes in enumerate(observation.masked)]
            for base in (Detections(whole, np.ones(len(labels)), labels), Detections.empty()):
                seen = Observation(observation.width, observation.height, observation.masks, base, masked)
                output = rule.prune(seen)
                if classwise:
                    output = output[np.isin(output.label, truth.label)]
                touching = [
                    box
                    for box in oracle.boxes_of(output)
                    if any(oracle.shared(box, g) > 0 for g in oracle.boxes_of(truth))
                ]
                assert len(touching) >= joint.boxes
                reached += len(base) > 0 and len(touching) == joint.boxes
    assert several > (20 if classwise else -1)
    assert reached > 50


def test_boxes_that_fit_stand_for_one_object_unless_the_objects_overlap():
    rule, other = iou_rule(mask_threshold=0.5), Rule(mask_threshold=0.5)
    objects = Detections([[0, 0, 10, 10], [20, 0, 30, 10], [0, 0, 10, 9]], np.ones(3), [0, 0, 0])
    assert rule.may_share_box(objects, 0.5).tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    assert rule.may_share_box(objects, 0.94).sum() == 5  # 2 T - 1 = 0.88 is below the IoU of 0.9
    assert rule.may_share_box(objects, 0.95).sum() == 5  # at 0.9 itself, the margin goes to sharing
    assert rule.may_share_box(objects, 0.96).sum() == 3
    assert rule.may_share_box(objects, 0.3).all()
    assert other.may_share_box(objects, 0.9).all()  # a large box covers all of them


def test_no_box_fits_two_objects_that_may_not_share_one():
    """Any boxes, at random and moved towards both objects."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        g = np.concatenate([rng.uniform(0, 4, 2), rng.uniform(6, 10, 2)])
        h = g + rng.uniform(-1.5, 1.5, 4)
        share = rng.random((200, 4))
        boxes = share * g + (1 - share) * h + rng.normal(0, 0.05, (200, 4))
        boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(axis=1)]
        fits = iou(boxes, np.array([g, h])).min(axis=1).max()
        threshold = float(rng.uniform(0.5, 0.95))
        may_share = iou_rule().may_share_box(Detections([g, h], np.ones(2), [0, 0]), threshold)[0, 1]
        assert may_share or fits <= threshold
        found += not may_share and fits > threshold - 0.05
    assert found > 10


def test_seven_bars_of_one_class_are_one_box_under_attack():
    """The output of an attacked image: one hull over all that is left, though four objects are guaranteed to remain."""
    masks, bars = Halves(10).masks(64, 48), [[10 + 6 * k, 14, 14 + 6 * k, 34] for k in range(7)]

    def seen(x1, x2):
        inside = [[max(a, x1), b, min(c, x2), d] for a, b, c, d in bars if min(c, x2) > max(a, x1)]
        return Detections([[inside[0][0], 14, inside[-1][2], 34]], [0.9], [0]) if inside else Detections.empty()

    masked = [seen(x1, x2) for x1, _, x2, _ in masks.rectangle.tolist()]
    observation = Observation(64, 48, masks, Detections.empty(), masked)
    joint = Rule(base_threshold=0.5, mask_threshold=0.6).certify_jointly(
        observation, Detections(bars, np.ones(7), np.zeros(7, int)), Patch(0.01, location="anywhere")
    )
    assert joint.count > joint.boxes == 1
