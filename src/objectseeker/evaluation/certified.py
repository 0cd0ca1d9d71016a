"""Which objects are certified, for all images and many settings at once.

What a masked box proves about an object does not depend on any score, so it is found once. The verdicts are those of
`certify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.bounds import MARGIN, Bound, lower_bound
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import proven_twice, verdicts, visible_area
from objectseeker.core.evidence import stars_of
from objectseeker.core.observation import ObservedImage
from objectseeker.core.positions import Classes
from objectseeker.core.rule import Rule
from objectseeker.core.threats import Patch, Surroundings, sizes
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.evaluation.scene import Scene


@dataclass(frozen=True, slots=True, eq=False)
class Proofs:
    """The masked boxes that prove something about a counted object: one row per box and object, object by object."""

    scene: Scene
    object: Ints  # a position in `scene.counted`
    box: Ints  # a position among the masked boxes of the object's image
    share: Floats  # lower bound of what is covered of the object
    score: Floats  # after the edge factor
    side: Ints  # of the half masks that the box's mask is made of: one or two columns
    line: Ints
    first: Ints  # each object's first row, and the end of the last object
    rule: Rule  # its filter_ioa, classwise and edge_factor hold for the rows

    def objects(self) -> tuple[Floats, Ints, Ints]:
        """The counted objects' boxes, and width and height of the image of each."""
        truth, counted = self.scene.truth, self.scene.counted
        image = truth.image[counted]
        return truth.detections.xyxy[counted], self.scene.width[image], self.scene.height[image]

    def image_of(self, n: int) -> ObservedImage:
        """The image of one counted object."""
        return self.scene.images[int(self.scene.truth.image[self.scene.counted[n]])]


def find_proofs(scene: Scene, rule: Rule, bound: Bound) -> Proofs:
    """What every rule with the same filter_ioa, classwise and edge_factor needs to certify."""
    parts: list[tuple[Ints, Ints, Floats, Floats, Ints, Ints]] = []
    columns = max(image.observation.masks.members.shape[1] for image in scene.images)
    start = 0
    for image in scene.images:
        observation, boxes = image.observation, image.observation.boxes
        truth = image.truth[~image.ignore]
        share = lower_bound(boxes.xyxy, truth.xyxy, rule.filter_ioa, bound)
        proves = share > MARGIN
        if rule.classwise:
            proves &= boxes.label[:, None] == truth.label[None]
        n, box = np.nonzero(proves.T)
        half = observation.masks.members[observation.mask_of[box]]
        half = np.broadcast_to(half, (len(half), columns))
        halves = observation.masks.halves
        score = rule.scores(observation)[box]
        parts.append((n + start, box, share[box, n], score, halves.side[half], halves.line[half]))
        start += len(truth)
    objects, box, share, score, side, line = (np.concatenate(column) for column in zip(*parts, strict=True))
    first = np.searchsorted(objects, np.arange(start + 1))
    return Proofs(scene, objects, box, share, score, side, line, first, rule)


def certified_objects(
    proofs: Proofs, rule: Rule, patches: Sequence[Patch], *, threshold: float = 0.0
) -> tuple[Bools, Bools]:
    """`certified` and `vacuous` (patches, counted objects), as `certify` has them with the same settings."""
    require_fraction(threshold, "threshold")
    _check(rule, proofs.rule)
    truth, width, height = proofs.objects()
    evidence = np.where(proofs.share > threshold + MARGIN, rule.evidence(proofs.score), 0.0)
    vulnerable = _escape_lines(proofs, evidence >= 1)
    certified, vacuous = verdicts(vulnerable, truth, width, height, patches)
    possible = certified
    if rule.low_score is not None:
        # A position that no mask of any such box removes is proven by none of them, together or alone.
        possible, _ = verdicts(_escape_lines(proofs, evidence > 0), truth, width, height, patches)
    twice = np.array([patch.count == 2 for patch in patches], dtype=np.bool_)
    certified = np.where(twice[:, None], vacuous, certified)  # those were verdicts on one patch
    certified |= _certified_one_by_one(proofs, rule, evidence, vulnerable, patches, possible & ~certified)
    visible = visible_area(truth, width, height) > 0
    return certified & visible, vacuous & visible


def _certified_one_by_one(
    proofs: Proofs, rule: Rule, evidence: Floats, vulnerable: Ints, patches: Sequence[Patch], undecided: Bools
) -> Bools:
    """Which of the `undecided` (patches, objects) are certified: against two patches, or by views together."""
    proven = np.zeros_like(undecided)
    if not undecided.any():
        return proven
    truth, width, height = proofs.objects()
    surroundings = Surroundings.of(truth, width, height)
    size = [sizes(patch, width, height, len(truth)) for patch in patches]
    allowed = [surroundings.allowed(patch.where, of_patch) for patch, of_patch in zip(patches, size, strict=True)]
    known: dict[tuple[int, tuple[int, int]], Classes] = {}  # by the masks (images of one size share theirs) and patch
    for n in np.flatnonzero(undecided.any(axis=0)).tolist():
        observation = proofs.image_of(n).observation
        rows = np.arange(proofs.first[n], proofs.first[n + 1])
        rows = rows[evidence[rows] > 0]
        safe = np.zeros(len(observation.masks), dtype=np.bool_)
        safe[observation.mask_of[proofs.box[rows[evidence[rows] >= 1]]]] = True
        stars = None
        if rule.low_score is not None:
            stars = stars_of(observation, proofs.box[rows], evidence[rows], rule.cluster_distance)
        for p in np.flatnonzero(undecided[:, n]).tolist():
            patch = (int(size[p][n, 0]), int(size[p][n, 1]))
            if patches[p].count == 2:
                key = id(observation.masks), patch
                of_patch = known[key] = known.get(key) or Classes.of(observation.masks, patch)
                proven[p, n] = proven_twice(of_patch, allowed[p][n], safe) or (
                    stars is not None and stars.prove_pairs(allowed[p][n], of_patch, safe)
                )
            elif stars is not None:
                proven[p, n] = stars.prove_all(allowed[p][n], patch, vulnerable[n])
    return proven


def _escape_lines(proofs: Proofs, decisive: Bools) -> Ints:
    """`Certificates.vulnerable` of every object: furthest safe left and top mask, nearest safe right and bottom."""
    _, width, height = proofs.objects()
    border = np.stack([width, height], axis=1)
    lines = np.concatenate([np.zeros_like(border), border], axis=1)
    side, line = proofs.side[decisive], proofs.line[decisive]
    n = np.broadcast_to(proofs.object[decisive][:, None], side.shape)
    before = side < 2
    np.maximum.at(lines, (n[before], side[before]), line[before])
    np.minimum.at(lines, (n[~before], side[~before]), line[~before])
    return lines


def _check(rule: Rule, prepared: Rule) -> None:
    for name in ("filter_ioa", "classwise", "edge_factor"):
        if getattr(rule, name) != getattr(prepared, name):
            raise ObjectSeekerError(
                f"the proofs were found for {name}={getattr(prepared, name)!r}, not {getattr(rule, name)!r}"
            )
