"""Certificates of all objects of all images, for many settings at once.

What a masked box proves about an object does not depend on any score, so it is found once. Proofs are in the detector's
labels: every object is considered once for each of those that map to it, and is certified if it is certified as one
of them. The verdicts are those of the rule's `certify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from objectseeker.core.bounds import MARGIN, Bound
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, row_blocks
from objectseeker.core.certification import ObjectProof, decide, inside_rectangles, visible_area
from objectseeker.core.evidence import build_stars
from objectseeker.core.joint import JointCertificate, certify_jointly, require_anywhere
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import Patch, PatchPositions
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.metrics.image_set import ImageSet


@dataclass(frozen=True, slots=True, eq=False)
class ProofTable:
    """The masked boxes that prove something: one row per box and target, target by target.

    A target is a counted object as one of the detector labels that map to its class.
    """

    image_set: ImageSet
    rule: PruningRule  # its proof_settings hold for the rows
    floor: float  # the lowest masked score that was considered
    object: Ints  # of each target, ascending: a position in `image_set.counted`
    label: Ints  # of each target: the detector's; -1 where labels are ignored and none maps to its class
    first: Ints  # each target's first row, and the end of the last target
    target: Ints  # of each row
    box: Ints  # a position among the masked boxes of the object's image
    share: Floats  # lower bound of the overlap with the object: the rule's `lower_bound`
    score: Floats  # after the edge factor
    mask: Ints  # of the box, a row of `kept`
    kept: Ints  # (masks, 4) the rectangle that each mask keeps, of all mask sets: `Masks.kept`

    def targets(self) -> tuple[Floats, Ints, Ints]:
        """The boxes of the targets' objects, and width and height of the image of each."""
        objects, n = self.image_set.ground_truth, self.image_set.counted[self.object]
        image = objects.image[n]
        return objects.detections.xyxy[n], self.image_set.width[image], self.image_set.height[image]

    def rows_of(self, target: int) -> Ints:
        return np.arange(self.first[target], self.first[target + 1])


def build_proof_table(image_set: ImageSet, rule: PruningRule, bound: Bound, *, floor: float = 0.0) -> ProofTable:
    """Build what every rule with the `proof_key` of `rule` needs, for masked scores of at least `floor`."""
    targets: list[tuple[Ints, Ints]] = []
    rows: list[tuple[Ints, Ints, Floats, Floats, Ints]] = []
    first_mask: dict[Masks, int] = {}
    objects = start = masks_so_far = 0
    for image in image_set.images:
        observation, counted = image.observation, image.ground_truth[~image.ignore]
        boxes, n = image_set.label_map.map_to_detector(counted, classwise=rule.classwise)
        score, masks = rule.discounted_scores(observation), observation.masks
        target, box, share = _proving(rule, observation, np.flatnonzero(score >= floor), boxes, bound)
        if masks not in first_mask:
            first_mask[masks] = masks_so_far
            masks_so_far += len(masks)
        mask = observation.mask_index[box] + first_mask[masks]
        targets.append((n + objects, boxes.label))
        rows.append((target + start, box, share, score[box], mask))
        objects += len(counted)
        start += len(boxes)
    which, label = (np.concatenate(column) for column in zip(*targets, strict=True))
    of_row, box, share, score, mask = (np.concatenate(column) for column in zip(*rows, strict=True))
    kept = np.concatenate([masks.kept for masks in first_mask])
    first = np.searchsorted(of_row, np.arange(start + 1))
    return ProofTable(image_set, rule, floor, which, label, first, of_row, box, share, score, mask, kept)


def certified_objects(
    proofs: ProofTable, rule: PruningRule, patches: Sequence[Patch], *, certification_threshold: float | None = None
) -> tuple[Bools, Bools]:
    """Return `certified` and `vacuous` (patches, counted objects) as `rule.certify`, in detector labels.

    `threshold` is the rule's own unless given: 0, with an `IouRule` 0.5.
    """
    evidence, image_set = _evidence(proofs, rule, certification_threshold), proofs.image_set
    objects, width, height = proofs.targets()
    has_bands = np.array([image.observation.masks.has_bands for image in image_set.images], dtype=np.bool_)
    has_bands = has_bands[image_set.ground_truth.image[image_set.counted[proofs.object]]]
    beyond = np.broadcast_to(has_bands, (len(patches), len(objects)))
    proof_of = partial(target_proof, proofs, rule, evidence)
    if rule.combines_views:
        # A position that no mask of any such box removes is proven by none of them, together or alone; where there are
        # no bands, lines say which those are.
        at_positions = [p for p, patch in enumerate(patches) if patch.location != "outside"]
        once = [replace(patches[p], count=1, with_outside=False) for p in at_positions]
        lines = _escape_lines(proofs, evidence > 0)
        beyond = beyond.copy()
        beyond[at_positions] |= decide(lines, objects, width, height, once, proof_of, beyond_lines=False)[0]
    lines = _escape_lines(proofs, evidence >= 1)
    inside_boxes = partial(_inside_boxes, proofs, evidence)
    verdicts = decide(lines, objects, width, height, patches, proof_of, inside_boxes, beyond_lines=beyond)
    any_label, counted = image_set.label_map.any_label, len(image_set.counted)
    return any_label(verdicts[0], proofs.object, counted), any_label(verdicts[1], proofs.object, counted)


def joint_certificates(
    proofs: ProofTable, rule: PruningRule, patches: Sequence[Patch], *, certification_threshold: float | None = None
) -> list[list[JointCertificate]]:
    """Per patch the joint certificate of every image, over its counted objects: see `core.joint`."""
    evidence = _evidence(proofs, rule, certification_threshold)
    image_set, checked = proofs.image_set, [require_anywhere(patch) for patch in patches]
    objects, width, height = proofs.targets()
    grown = PatchPositions.of(objects, width, height).grown()
    visible = visible_area(objects, width, height) > 0
    first = np.searchsorted(image_set.ground_truth.image[image_set.counted], np.arange(len(image_set.images) + 1))
    found: list[list[JointCertificate]] = [[] for _ in patches]
    for image, start, end in zip(image_set.images, first, first[1:], strict=False):
        seen = image.observation
        of_object: list[list[tuple[ObjectProof, Ints]]] = [[] for _ in range(start, end)]
        mine = slice(*np.searchsorted(proofs.object, [start, end]))
        targets = np.flatnonzero(visible[mine]) + mine.start  # object by object
        for target in targets:
            proof = target_proof(proofs, rule, evidence, int(target))
            of_object[int(proofs.object[target]) - start].append((proof, grown[target]))
        labeled = Detections(objects[targets], np.ones(len(targets)), proofs.label[targets])
        shared = rule.may_share_box(labeled, certification_threshold)
        for patch, of_patch in zip(checked, found, strict=True):
            alternatives = [
                [proof.inside(box) if patch.with_outside else proof for proof, box in known] for known in of_object
            ]
            size = patch.size(seen.width, seen.height)
            of_patch.append(certify_jointly(seen.masks, alternatives, size, shared))
    return found


def _evidence(proofs: ProofTable, rule: PruningRule, certification_threshold: float | None) -> Floats:
    """Return the weight of each row in a certificate of its target."""
    certification_threshold = require_fraction(
        rule.resolve_threshold(certification_threshold), "certification_threshold"
    )
    _check(rule, proofs)
    return np.where(proofs.share > certification_threshold + MARGIN, rule.evidence(proofs.score), 0.0)


def target_proof(proofs: ProofTable, rule: PruningRule, evidence: Floats, target: int) -> ObjectProof:
    image_set, rows = proofs.image_set, proofs.rows_of(target)
    observation = image_set.images[
        int(image_set.ground_truth.image[image_set.counted[proofs.object[target]]])
    ].observation
    rows = rows[evidence[rows] > 0]
    safe = np.zeros(len(observation.masks), dtype=np.bool_)
    safe[observation.mask_index[proofs.box[rows[evidence[rows] >= 1]]]] = True
    if not rule.combines_views:
        return ObjectProof(observation.masks, safe)
    stars = build_stars(observation, proofs.box[rows], evidence[rows], rule.cluster_distance)
    return ObjectProof(observation.masks, safe, stars)


def _proving(
    rule: PruningRule, observation: Observation, among: Ints, objects: Detections, bound: Bound
) -> tuple[Ints, Ints, Floats]:
    """Return which masked boxes `among` could prove which targets, and the bound of each such pair.

    Only the rule's usable boxes prove anything, and only boxes of the target's label where labels matter.
    """
    if rule.classwise:
        among = among[np.isin(observation.all_masked.label[among], objects.label)]
    among = among[rule.usable_boxes(observation, among)]
    boxes = observation.all_masked[among]
    pairs: list[tuple[Ints, Ints, Floats]] = []
    for some in list(row_blocks(len(objects), len(boxes))) or [slice(0, 0)]:
        share = rule.lower_bound(boxes.xyxy, objects.xyxy[some], bound)
        if rule.classwise:
            share = np.where(boxes.label[:, None] == objects.label[None, some], share, 0.0)
        target, box = np.nonzero((share > MARGIN).T)
        pairs.append((target + some.start, among[box], share[box, target]))
    target, box, share = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return target, box, share


def _escape_lines(proofs: ProofTable, decisive: Bools) -> Ints:
    """Return the `safe_lines` of every target: `certification.find_safe_lines`."""
    _, width, height = proofs.targets()
    border = np.stack([width, height], axis=1)
    lines = np.concatenate([np.zeros_like(border), border], axis=1)
    kept = proofs.kept[proofs.mask[decisive]]
    target, first = np.unique(proofs.target[decisive], return_index=True)  # rows come target by target
    if len(target):
        lines[target, :2] = np.maximum.reduceat(kept[:, :2], first)
        lines[target, 2:] = np.minimum.reduceat(kept[:, 2:], first)
    return lines


def _inside_boxes(proofs: ProofTable, evidence: Floats, grown: Ints) -> tuple[Bools, Bools]:
    """Return which targets a view inside their grown box proves alone, and which such views prove at most."""
    inside = inside_rectangles(proofs.kept[proofs.mask], grown[proofs.target]) & (evidence > 0)
    alone, possible = np.zeros((2, len(grown)), np.bool_)
    alone[proofs.target[inside & (evidence >= 1)]] = True
    possible[proofs.target[inside]] = True
    return alone, possible


def _check(rule: PruningRule, proofs: ProofTable) -> None:
    prepared = proofs.rule
    if rule.kind != prepared.kind:
        raise ObjectSeekerError(f"the proofs were found for a {type(prepared).__name__}, not {rule!r}: find them again")
    given = rule.proof_key
    for name, value in prepared.proof_key.items():
        if given[name] != value:
            raise ObjectSeekerError(f"the proofs were found for {name}={value!r}, not {given[name]!r}: find them again")
    if rule.min_mask_score < proofs.floor:
        raise ObjectSeekerError(
            f"masked boxes must count from a score of {proofs.floor!r} on, not from {rule.min_mask_score!r}"
        )
