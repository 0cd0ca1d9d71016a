"""The fast code equals the literal one."""

from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from cases import certify, generate, iou_rule, prune
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS

from objectseeker import Patch, Rule
from objectseeker.core.boxes import ioa
from objectseeker.core.pruning import clusters
from objectseeker.core.rules import interface
from objectseeker.core.threats import PATCH_LOCATIONS

DISTANCES = st.sampled_from([0.1, 0.1, 0.25, 0.5])


def patches(rng_seed: int, width: int, height: int) -> list[Patch]:
    """One patch per location model: from one pixel to larger than the image."""
    rng = np.random.default_rng(rng_seed)
    chosen = []
    for where in PATCH_LOCATIONS:
        area = float(rng.choice([1 / (width * height), 0.01, 0.05, 0.2, 0.6, 1.0, rng.uniform(0.001, 1)]))
        chosen.append(Patch(area, float(rng.choice([1, 1, 0.5, 2, 0.1, 8, 40])), where))
    return chosen


@pytest.mark.parametrize("make", [Rule, iou_rule])
def test_pairs_measured_label_by_label_are_those_measured_at_once(make, monkeypatch):
    rule, proving = make(base_threshold=0.3, mask_threshold=0.3), {}
    for few in (0, 10**9):
        monkeypatch.setattr(interface, "FEW_PAIRS", few)
        cases = [generate(seed) for seed in range(60)]
        proving[few] = [rule.proving_pairs(case.observation, case.ground_truth, 0.2, "exact") for case in cases]
    for apart, at_once in zip(*proving.values(), strict=True):
        assert np.array_equal(apart, at_once)
    assert sum(int(proves.sum()) for proves in proving[0]) > 20


@pytest.mark.slow
@settings(max_examples=900, deadline=None)
@given(
    SEEDS,
    st.sampled_from([0.5, 0.75]),
    st.sampled_from([0.6, 0.5, 0.75, 0.25]),
    st.sampled_from([0.0, 0.0, 0.25, 0.5]),
    st.sampled_from(["exact", "paper"]),
    st.booleans(),
)
def test_certificates_equal_the_oracle(seed, mask_threshold, filter_ioa, certification_threshold, bound, classwise):
    case = generate(seed)
    observation, truth = case.observation, case.ground_truth
    threats = patches(seed, observation.width, observation.height)
    settings_ = {
        "mask_threshold": mask_threshold,
        "filter_ioa": filter_ioa,
        "certification_threshold": certification_threshold,
        "bound": bound,
        "classwise": classwise,
    }
    fast = certify(observation, truth, threats, **settings_)
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = oracle.safe_masks(observation, truth, n, **settings_)
        for p, patch in enumerate(threats):
            expected = oracle.certify(observation, g, patch, safe)
            assert (fast.certified[p, n], fast.vacuous[p, n]) == expected, (patch, n)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_safe_flags_escape_lines_and_largest_square_equal_the_oracle(seed):
    case = generate(seed, largest=16)
    observation, truth = case.observation, case.ground_truth
    fast = certify(observation, truth, [], mask_threshold=0.5)
    for n in range(len(truth)):
        safe = oracle.safe_masks(observation, truth, n, mask_threshold=0.5)
        assert np.flatnonzero(fast.safe[n]).tolist() == safe
        left, top, right, bottom = fast.safe_lines[n]
        for side in (1, 3, 5):
            removed = oracle.removed(observation, (side, side), safe)
            escapes = ~removed.any(axis=0)
            xs, ys = (np.array(r) for r in oracle.positions(observation.width, observation.height, (side, side)))
            expected = ((ys + side > top) & (ys < bottom))[:, None] & ((xs + side > left) & (xs < right))[None]
            assert np.array_equal(escapes, expected)
        largest = 0
        for side in range(1, max(observation.width, observation.height) + 1):
            patch = (side, side)
            if not safe or not oracle.removed(observation, patch, safe).any(axis=0).all():
                break
            largest = side
        g = oracle.boxes_of(truth)[n]
        if oracle.size(g) == 0 or not oracle.seen(g, observation.width, observation.height):
            largest = 0
        assert fast.largest_square[n] == largest


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.booleans(), st.sampled_from([None, 0.1, 0.375]), st.sampled_from([1.0, 2.0]), DISTANCES)
def test_pruning_equals_the_oracle(seed, classwise, evidence_threshold, power, distance):
    observation = generate(seed, largest=16).observation
    options = {"base_threshold": 0.5, "mask_threshold": 0.625, "filter_ioa": 0.6, "classwise": classwise}
    options |= {"evidence_threshold": evidence_threshold, "evidence_power": power, "cluster_distance": distance}
    fast = prune(observation, **options)
    rows = sorted((*box, s, c) for box, s, c in zip(fast.xyxy, fast.score, fast.label.tolist(), strict=True))
    assert rows == oracle.prune(observation, **options)


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 60), DISTANCES)
def test_clusters_are_connected_components_as_in_dbscan_with_one_sample(seed, count, eps):
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 12, (count, 2))
    boxes = np.concatenate([corner, corner + rng.integers(0, 20, (count, 2))], axis=1).astype(float)
    overlap = ioa(boxes, boxes)
    distance = 1 - np.maximum(overlap, overlap.T)
    np.fill_diagonal(distance, 0)
    components = oracle.connected(distance <= eps)
    assert np.array_equal(clusters(boxes, np.zeros(count, int), eps), components)
    sklearn_cluster = pytest.importorskip("sklearn.cluster")
    assert np.array_equal(
        sklearn_cluster.DBSCAN(eps=eps, min_samples=1, metric="precomputed").fit(distance).labels_, components
    )


@settings(max_examples=250, deadline=None)
@given(SEEDS, st.sampled_from(PATCH_LOCATIONS), st.sampled_from([1.0, 2.0]), DISTANCES)
def test_evidence_certificates_equal_the_oracle(seed, where, power, distance):
    case = generate(seed, largest=14, lines=1 + seed % 4, crowd=0.9)
    observation, truth = case.observation, case.ground_truth
    patch = Patch(0.05, 1.0, where)
    options = {"mask_threshold": 0.75, "evidence_threshold": 0.1, "evidence_power": power, "cluster_distance": distance}
    fast = certify(observation, truth, [patch], **options)
    for n in range(len(truth)):
        star = oracle.certify_by_evidence(observation, truth, patch, n, **options)
        assert fast.certified[0, n] == star
        component = oracle.certify_by_evidence(observation, truth, patch, n, **options, notion="component")
        assert component or not star
        if len(observation.all_masked) <= 24:
            assert star or not oracle.certify_by_evidence(observation, truth, patch, n, **options, notion="clique")


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_largest_square_under_evidence_equals_the_oracle(seed):
    case = generate(seed, largest=12, lines=1 + seed % 4, crowd=0.9, generous=1.0)
    options = {"mask_threshold": 0.75, "evidence_threshold": 0.1}
    fast = certify(case.observation, case.ground_truth, [], **options)
    for n, side in enumerate(fast.largest_square.tolist()):
        for tried in (side, side + 1):
            square = SimpleNamespace(location="anywhere", size=lambda width, height, tried=tried: (tried, tried))
            expected = oracle.certify_by_evidence(case.observation, case.ground_truth, square, n, **options)
            assert expected == (tried <= side) or tried == 0


def test_generated_cases_cover_what_matters():
    """The equality above would be empty if one verdict never occurred."""
    seen = set()
    for seed in range(400):
        case = generate(seed)
        threats = patches(seed, case.observation.width, case.observation.height)
        fast = certify(case.observation, case.ground_truth, threats, mask_threshold=0.5)
        for p, patch in enumerate(threats):
            seen |= {
                (patch.location, bool(v), bool(e)) for v, e in zip(fast.certified[p], fast.vacuous[p], strict=True)
            }
    for where in PATCH_LOCATIONS:
        assert (where, True, False) in seen
        assert (where, False, False) in seen
    assert ("far", True, True) in seen


@pytest.mark.parametrize("seed", range(20))
def test_an_observation_without_any_mask_certifies_nothing(seed):
    case = generate(seed, smallest=1, largest=1)
    assert len(case.observation.masks) == 0
    fast = certify(case.observation, case.ground_truth, [Patch(location="anywhere")], mask_threshold=0.1)
    assert not fast.certified.any()
