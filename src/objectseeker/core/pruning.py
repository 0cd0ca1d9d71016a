"""Inference: which masked boxes become robust detections.

Filter what the base boxes explain, cluster the rest, output one hull per cluster that carries enough evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa, row_blocks
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation

if TYPE_CHECKING:
    from objectseeker.core.rules.evidence import Rule
    from objectseeker.core.rules.interface import PruningRule

EDGE = 0.015  # a masked box this close to its mask's line, as a share of the axis, counts as cut by it


def prune_by_evidence(rule: Rule, observation: Observation) -> Detections:
    """Return the base boxes, then one hull per cluster of unfiltered masked boxes, for `Rule.prune`."""
    base = observation.base.with_min_score(rule.base_threshold)
    score = rule.discounted_scores(observation)
    evidence = rule.evidence(score)
    kept = np.flatnonzero(evidence > 0)
    kept = kept[~is_filtered(rule, observation.all_masked[kept], base)]
    boxes = Detections(observation.all_masked.xyxy[kept], score[kept], observation.all_masked.label[kept])
    label = boxes.label if rule.classwise else np.zeros_like(boxes.label)
    cluster = clusters(boxes.xyxy, label, rule.cluster_distance)
    enough = cluster_evidence(cluster, observation.mask_index[kept], evidence[kept], len(observation.masks)) >= 1
    return Detections.concatenate([base, unionize(boxes, cluster)[enough]])


def is_filtered(rule: PruningRule, masked: Detections, base: Detections) -> Bools:
    """Return masked boxes by more than `filter_threshold` in a base box (of their label if classwise)."""
    filtered = np.zeros(len(masked), dtype=np.bool_)
    for some in row_blocks(len(masked), len(base)):
        inside = ioa(masked.xyxy[some], base.xyxy) > rule.filter_threshold
        if rule.classwise:
            inside &= masked.label[some, None] == base.label[None]
        filtered[some] = inside.any(axis=1)
    return filtered


def cut_by_mask(boxes: Floats, mask_of: Ints, masks: Masks) -> Bools:
    """Return the boxes within EDGE of the axis of a line of their mask."""
    cut, near = np.zeros(len(boxes), np.bool_), EDGE * masks.extent
    for edge in range(4):
        axis = edge % 2
        line = masks.rectangle[mask_of, edge]
        gap = np.maximum(boxes[:, axis] - line, line - boxes[:, axis + 2])
        cut |= masks.is_line[mask_of, edge] & (gap <= near[axis])
    return cut


def are_neighbors(a: Floats, b: Floats, distance: float) -> Bools:
    """Return the boxes a, b with 1 - max(IoA(a, b), IoA(b, a)) <= distance; boxes apart never are close."""
    return np.asarray(1 - np.maximum(ioa(a, b), ioa(b, a).T) <= distance)


def clusters(boxes: Floats, label: Ints, distance: float) -> Ints:
    """Cluster number of every box: connected components of `neighbors` among boxes of equal label.

    This is DBSCAN with min_samples = 1. Clusters are numbered in the order of their first box. Memory is linear in the
    number of boxes; time is quadratic at worst, where boxes overlap without being neighbors
    (docs/concepts/guarantee.md).
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
            # Neighbors share area, so only boxes that meet the frontier's hull can be neighbors of any of it.
            low, high = boxes[frontier, :2].min(axis=0), boxes[frontier, 2:].max(axis=0)
            rest = boxes[open_boxes]
            meets = np.flatnonzero((rest[:, :2] < high).all(axis=1) & (rest[:, 2:] > low).all(axis=1))
            near = np.zeros(len(rest), dtype=np.bool_)
            for some in row_blocks(len(frontier), len(meets)):
                still = meets[~near[meets]]
                near[still] = are_neighbors(boxes[frontier[some]], rest[still], distance).any(axis=0)
            frontier = open_boxes[near]
            number[frontier] = count
            open_boxes = open_boxes[~near]
        count += 1
    return number


def cluster_evidence(cluster: Ints, mask_of: Ints, evidence: Floats, masks: int) -> Floats:
    """Return per cluster the sum over masks, in their order, of the strongest evidence of their boxes."""
    # a view of a cluster: its boxes of one mask
    view, first = np.unique(cluster * masks + mask_of, return_inverse=True)
    best = np.zeros(len(view))
    np.maximum.at(best, first, evidence)
    return np.bincount(view // masks, weights=best).astype(np.float64)


def unionize(boxes: Detections, cluster: Ints) -> Detections:
    """The bounding box of every cluster, with the score and label of the cluster's best box."""
    order = np.lexsort((-boxes.score, cluster))
    first = np.flatnonzero(np.diff(cluster[order], prepend=-1))
    xyxy = boxes.xyxy[order]
    hull = np.concatenate([np.minimum.reduceat(xyxy[:, :2], first), np.maximum.reduceat(xyxy[:, 2:], first)], axis=1)
    return Detections(hull, boxes.score[order][first], boxes.label[order][first])
