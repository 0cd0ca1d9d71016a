"""Certificates of whole runs are those of `certify`, object by object."""

import dataclasses

import numpy as np
import pytest
from cases import certify, halves, pairs
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, run
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import ObjectSeekerError, Patch
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import ImageSet
from objectseeker.metrics.certified import build_proof_table, certified_objects

SMALL, LARGE = 0.02, 0.3


def by_certify(images, chosen, base_threshold, classwise, patches):
    rule = chosen.with_rule(classwise=classwise).on_curve(base_threshold)
    parts = []
    for image in images:
        found = certify(
            image.observation,
            image.ground_truth[~image.ignore],
            patches,
            mask_threshold=rule.mask_threshold,
            filter_ioa=rule.filter_ioa,
            certification_threshold=chosen.threat.certification_threshold or 0.0,
            bound=chosen.threat.bound,
            classwise=classwise,
            evidence_threshold=rule.evidence_threshold,
            evidence_power=rule.evidence_power,
            edge_factor=rule.edge_factor,
            cluster_distance=rule.cluster_distance,
        )
        parts.append((found.certified, found.vacuous))
    return tuple(np.concatenate(part, axis=1) for part in zip(*parts, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    chosen=st.sampled_from([PAPER, EVIDENCE]),
    base_threshold=st.sampled_from([0.0, 0.3, 0.6, 0.99]),
    certification_threshold=st.sampled_from([0.0, 0.2, 0.9]),
    bound=st.sampled_from(["exact", "paper"]),
    classwise=st.booleans(),
)
def test_whole_runs_are_certified_as_single_images_are(
    seed, chosen, base_threshold, certification_threshold, bound, classwise
):
    chosen = changed(chosen, certification_threshold=certification_threshold, bound=bound)
    images = run(seed, 3)
    patches = [Patch(area=area, aspect=2.0, location=where) for area in (SMALL, LARGE) for where in PATCH_LOCATIONS]
    rule = chosen.with_rule(classwise=classwise).on_curve(base_threshold)
    proofs = build_proof_table(
        ImageSet.from_images(images, VOCABULARY), chosen.with_rule(classwise=classwise).rule, bound
    )
    found = certified_objects(proofs, rule, patches, certification_threshold=certification_threshold)
    expected = by_certify(images, chosen, base_threshold, classwise, patches)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    chosen=st.sampled_from([PAPER, EVIDENCE]),
    make=st.sampled_from([pairs, pairs, halves]),
    sure=st.sampled_from([0.5, 0.9, 1.0]),
    classwise=st.booleans(),
)
def test_whole_runs_are_certified_against_two_patches_as_single_images_are(seed, chosen, make, sure, classwise):
    images = run(seed, 3, make=make, sure=sure, lines=1 + seed % 4, largest=16)
    threats = [
        Patch(area=SMALL, aspect=0.5, location=where, count=count) for count in (2, 1) for where in PATCH_LOCATIONS
    ]
    rule = chosen.with_rule(classwise=classwise).on_curve(0.3)
    proofs = build_proof_table(
        ImageSet.from_images(images, VOCABULARY), chosen.with_rule(classwise=classwise).rule, "exact"
    )
    found = certified_objects(proofs, rule, threats)
    expected = by_certify(images, chosen, 0.3, classwise, threats)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE])
def test_two_patches_certify_less_but_something(chosen):
    images = run(5, 25, make=pairs, generous=0.05, sure=0.9, lines=2)
    rule = chosen.on_curve(0.3)
    proofs = build_proof_table(ImageSet.from_images(images, VOCABULARY), rule, "exact")
    threats = [Patch(area=SMALL, location=where, count=count) for count in (1, 2) for where in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(proofs, rule, threats)
    once, twice = (certified & ~vacuous)[:4], (certified & ~vacuous)[4:]
    assert not (twice & ~once).any()
    assert 0 < twice[:3].sum(axis=1).min() <= twice.sum() < once.sum()


@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE])
def test_generous_runs_certify_much_but_not_all(chosen):
    """The comparison above must not be between two empty tables; views that agree must decide something."""
    images = run(2, 25, generous=1.0, lines=12, crowd=1.0)
    rule = chosen.on_curve(0.3)
    proofs = build_proof_table(ImageSet.from_images(images, VOCABULARY), rule, "exact")
    patches = [Patch(area=SMALL, location=where) for where in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(proofs, rule, patches)
    assert np.array_equal(certified, by_certify(images, chosen, 0.3, True, patches)[0])
    assert 0.1 < certified.mean() < 0.9
    assert vacuous.any()
    if rule.evidence_threshold is not None:
        alone, _ = certified_objects(proofs, dataclasses.replace(rule, evidence_threshold=None), patches)
        assert (certified & ~alone).any()


def test_rules_that_the_proofs_were_not_found_for_are_refused():
    rule = PAPER.on_curve(0.3)
    proofs = build_proof_table(ImageSet.from_images(run(1), VOCABULARY), rule, "exact")
    for bad in ({"filter_ioa": 0.5}, {"classwise": False}, {"edge_factor": 0.9}):
        with pytest.raises(ObjectSeekerError, match="proofs were found for"):
            certified_objects(proofs, dataclasses.replace(rule, **bad), [])
    with pytest.raises(ObjectSeekerError, match="certification_threshold"):
        certified_objects(proofs, rule, [], certification_threshold=-0.1)
