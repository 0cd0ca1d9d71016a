"""Inference: which masked boxes become robust detections.

Filter what the base boxes explain, cluster the rest, output one hull per cluster that carries enough evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number

EDGE = 0.015  # a masked box this close to its mask's line, as a share of the axis, counts as cut by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The settings that inference and certification must share; certification does not use `base_score`.

    With `low_score=None` (the paper's rule) one masked box of at least `mask_score` decides alone. Otherwise a masked
    box of score s carries evidence clip((s - low_score) / (mask_score - low_score), 0, 1) ** power, and a cluster is
    output once the evidence of its views adds up to 1. Boxes are clustered whose IoA, either way, is at least
    1 - cluster_distance.
    """

    base_score: float = 0.5
    mask_score: float = 0.7
    filter_ioa: float = 0.6
    classwise: bool = True
    low_score: float | None = None
    power: float = 1.0
    edge_factor: float = 1.0
    cluster_distance: float = 0.1

    def __post_init__(self) -> None:
        for name in ("base_score", "mask_score", "filter_ioa", "edge_factor", "cluster_distance"):
            require_fraction(getattr(self, name), name)
        if self.cluster_distance == 1:  # boxes that share no area would be neighbours
            raise ObjectSeekerError(f"cluster_distance must be below 1, got {self.cluster_distance!r}")
        if require_number(self.power, "power") <= 0:
            raise ObjectSeekerError(f"power must be above 0, got {self.power!r}")
        if self.low_score is not None and require_fraction(self.low_score, "low_score") > self.mask_score:
            raise ObjectSeekerError(f"low_score must not exceed mask_score {self.mask_score!r}, got {self.low_score!r}")

    def prune(self, observation: Observation) -> Detections:
        """Robust detections under these settings."""
        return prune_with(self, observation)

    def scores(self, observation: Observation) -> Floats:
        """The score of every masked box, lowered by `edge_factor` where the mask's line cuts the box."""
        score = observation.boxes.score
        if self.edge_factor == 1.0:
            return score
        cut = near_line(observation.boxes.xyxy, observation.mask_of, observation.masks)
        return np.where(cut, score * self.edge_factor, score)

    def evidence(self, score: Floats) -> Floats:
        """What a masked box of each score adds to its cluster: exactly 1 from `mask_score` on."""
        if self.low_score is None or self.low_score == self.mask_score:
            return np.where(score >= self.mask_score, 1.0, 0.0)
        share = (score - self.low_score) / (self.mask_score - self.low_score)
        return np.where(score >= self.mask_score, 1.0, np.clip(share, 0, 1) ** self.power)


def prune(
    observation: Observation,
    base_score: float = 0.5,
    mask_score: float = 0.7,
    filter_ioa: float = 0.6,
    classwise: bool = True,
    low_score: float | None = None,
    power: float = 1.0,
    edge_factor: float = 1.0,
    cluster_distance: float = 0.1,
) -> Detections:
    """Robust detections: base boxes of at least `base_score`, then one hull per cluster of unexplained masked boxes.

    `classwise=False` ignores labels when filtering and clustering; a hull then takes the label of its best box.
    """
    rule = Rule(
        base_score=base_score,
        mask_score=mask_score,
        filter_ioa=filter_ioa,
        classwise=classwise,
        low_score=low_score,
        power=power,
        edge_factor=edge_factor,
        cluster_distance=cluster_distance,
    )
    return prune_with(rule, observation)


def prune_with(rule: Rule, observation: Observation) -> Detections:
    """`prune` under the settings of `rule`."""
    base = observation.base.at_least(rule.base_score)
    score = rule.scores(observation)
    evidence = rule.evidence(score)
    kept = np.flatnonzero(evidence > 0)
    kept = kept[~explained(rule, observation.boxes[kept], base)]
    boxes = Detections(observation.boxes.xyxy[kept], score[kept], observation.boxes.label[kept])
    label = boxes.label if rule.classwise else np.zeros_like(boxes.label)
    cluster = clusters(boxes.xyxy, label, rule.cluster_distance)
    enough = cluster_evidence(cluster, observation.mask_of[kept], evidence[kept], len(observation.masks)) >= 1
    return Detections.concatenate([base, hulls(boxes, cluster)[enough]])


def explained(rule: Rule, masked: Detections, base: Detections) -> Bools:
    """Which masked boxes lie by more than `filter_ioa` inside a base box (of their label, if classwise)."""
    inside = ioa(masked.xyxy, base.xyxy) > rule.filter_ioa
    if rule.classwise:
        inside &= masked.label[:, None] == base.label[None]
    return np.asarray(inside.any(axis=1))


def near_line(boxes: Floats, mask_of: Ints, masks: Masks) -> Bools:
    """Which boxes come within EDGE of the axis of a line of the mask they were seen under."""
    half = masks.members[mask_of]  # one or two per box
    axis, line = masks.halves.side[half] % 2, masks.halves.line[half]
    rows = np.arange(len(boxes))[:, None]
    gap = np.maximum(boxes[rows, axis] - line, line - boxes[rows, axis + 2])
    return np.asarray((gap <= EDGE * np.where(axis == 0, masks.width, masks.height)).any(axis=1))


def neighbours(a: Floats, b: Floats, distance: float) -> Bools:
    """Which boxes a, b are so close that 1 - max(IoA(a, b), IoA(b, a)) <= distance. Boxes apart never are."""
    return np.asarray(1 - np.maximum(ioa(a, b), ioa(b, a).T) <= distance)


def clusters(boxes: Floats, label: Ints, distance: float) -> Ints:
    """Cluster number of every box: connected components of `neighbours` among boxes of equal label.

    This is DBSCAN with min_samples = 1. Clusters are numbered in the order of their first box.
    """
    number = np.full(len(boxes), -1, np.int64)
    count = 0
    for seed in range(len(boxes)):
        if number[seed] >= 0:
            continue
        number[seed] = count
        open_boxes = np.flatnonzero((number < 0) & (label == label[seed]))
        frontier = np.array([seed])
        while len(frontier) and len(open_boxes):
            # Neighbours share area, so only boxes that meet the frontier's hull can be neighbours of any of it.
            low, high = boxes[frontier, :2].min(axis=0), boxes[frontier, 2:].max(axis=0)
            rest = boxes[open_boxes]
            meets = np.flatnonzero((rest[:, :2] < high).all(axis=1) & (rest[:, 2:] > low).all(axis=1))
            reached = meets[neighbours(boxes[frontier], rest[meets], distance).any(axis=0)]
            frontier = open_boxes[reached]
            number[frontier] = count
            open_boxes = np.delete(open_boxes, reached)
        count += 1
    return number


def cluster_evidence(cluster: Ints, mask_of: Ints, evidence: Floats, masks: int) -> Floats:
    """For every cluster, the sum over masks of the strongest evidence one of that mask's boxes gives it."""
    best = np.zeros((cluster.max(initial=-1) + 1, masks))
    np.maximum.at(best, (cluster, mask_of), evidence)
    return np.asarray(best.sum(axis=1))


def hulls(boxes: Detections, cluster: Ints) -> Detections:
    """The bounding box of every cluster, with the score and label of the cluster's best box."""
    if not len(boxes):
        return Detections.empty()
    order = np.lexsort((-boxes.score, cluster))
    first = np.flatnonzero(np.diff(cluster[order], prepend=-1))
    xyxy = boxes.xyxy[order]
    hull = np.concatenate([np.minimum.reduceat(xyxy[:, :2], first), np.maximum.reduceat(xyxy[:, 2:], first)], axis=1)
    return Detections(hull, boxes.score[order][first], boxes.label[order][first])
