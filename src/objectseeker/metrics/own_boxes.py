"""Price and gain of many rules at once, on the boxes of an unlabeled detector.

The score threshold at which a detector is deployed says which base boxes it outputs: its own boxes. On clean images a
defense outputs these and the boxes that masks add. So two numbers need no labels: how many boxes masks add (spurious
boxes, the price), and how many of the own boxes are certified (the gain).

Rules that differ in thresholds share nearly everything. Which masked boxes a base box filters is one overlap per box;
how boxes cluster at any threshold is one tree (`merge_tree`); up to which mask threshold single views certify an object
is one number (`OwnBoxes.decisive`). Views that add up are bounded from above, all objects at once
(`OwnBoxes.bound`): only objects that the bound leaves open, and single views do not certify, are decided one by one.
Every count is that of `Rule.prune`, every verdict that of `Rule.certify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import MARGIN
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa, row_blocks
from objectseeker.core.certification import visible_area
from objectseeker.core.evidence import certified_weights
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.positions import PositionClasses
from objectseeker.core.pruning import cut_by_mask
from objectseeker.core.rules import Rule
from objectseeker.core.threats import PatchPositions, ThreatModel, patch_sizes
from objectseeker.metrics.certified import ProofTable, build_proof_table, target_proof
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.replay import label_groups, neighbors_as_bits
from objectseeker.metrics.search import LOCATIONS

LOOSEST_FILTER = 0.8  # boxes that this filter drops are needed only for rules with a looser one


Clustering = tuple[float, float, float]


def clustering_of(rule: Rule) -> Clustering:
    """Return what decides which masked boxes are left and how they join, at any threshold."""
    return rule.filter_ioa, rule.edge_factor, rule.cluster_distance


@dataclass(frozen=True, slots=True, eq=False)
class _Positions:
    """The allowed positions of one image's objects, by their classes along each axis."""

    removes: tuple[Bools, Bools]  # (classes, M) per axis
    within: tuple[Bools, Bools]  # (objects, rectangles, classes): whether a rectangle reaches a class
    empty: Bools  # (objects, rectangles)

    @classmethod
    def of(cls, image: ObservedImage, threat: ThreatModel) -> _Positions:
        seen, boxes = image.observation, image.ground_truth.xyxy
        around = PatchPositions.of(boxes, seen.width, seen.height)
        patch = next(patch for patch in threat.patches() if patch.location == "over")
        size = patch_sizes(patch, seen.width, seen.height, len(boxes))
        allowed = np.concatenate([around.allowed(location, size) for location in LOCATIONS], axis=1)
        classes = PositionClasses.of(seen.masks, patch.size(seen.width, seen.height))
        within = []
        for axis in (0, 1):
            starts = classes.starts[axis]
            first = np.searchsorted(starts, allowed[..., axis], side="right") - 1
            last = np.searchsorted(starts, allowed[..., axis + 2], side="right")
            each = np.arange(len(starts))
            within.append((first[..., None] <= each) & (each < last[..., None]))
        empty = np.asarray((allowed[..., :2] > allowed[..., 2:]).any(axis=-1))
        return cls(classes.removes, (within[0], within[1]), empty)

    def least(self, across: Floats, down: Floats) -> tuple[Floats, Floats]:
        """Return the least value of each axis within every rectangle; values are (objects, classes)."""
        return cast(
            "tuple[Floats, Floats]",
            tuple(
                np.where(within, values[:, None], np.inf).min(axis=-1, initial=np.inf)
                for within, values in zip(self.within, (across, down), strict=True)
            ),
        )

    def by_location(self, rectangles: Floats) -> Floats:
        """Return the least value over the rectangles of each location: (LOCATIONS, objects)."""
        values = np.where(self.empty, np.inf, rectangles)
        return np.stack([values[:, :4].min(axis=1), values[:, 4:8].min(axis=1), values[:, 8]])


class OwnBoxes:
    """The boxes that a detector outputs from one score threshold on, and what all rules share about them.

    Args:
        images: The observed images; their ground truth is ignored.
        threshold: The score threshold at which the detector is deployed: the base threshold of every rule.
        floor: The lowest masked score that any rule uses.
        threat: The patch to certify against, alone.
    """

    def __init__(
        self, images: Sequence[ObservedImage], threshold: float, floor: float, threat: ThreatModel | None = None
    ) -> None:
        self.threshold, self.floor = threshold, floor
        self.threat = ThreatModel() if threat is None else threat
        own = [_with_own_boxes(image, threshold) for image in images]
        labels = max((int(boxes.label.max(initial=-1)) for image in own for boxes in _all_boxes(image)), default=-1)
        self.image_set = ImageSet.from_part(own, LabelMap.from_names(tuple(map(str, range(labels + 1)))))
        self.image = self.image_set.ground_truth.image  # of each own box
        self.count = len(own)
        self._positions = [_Positions.of(image, self.threat) for image in own]
        self._visible = np.concatenate(
            [visible_area(i.ground_truth.xyxy, i.observation.width, i.observation.height) > 0 for i in own]
        )
        self._views = max(len(image.observation.masks) for image in own)
        self._cut = [_cut_boxes(image) for image in own]
        self._candidates: _Candidates | None = None
        self._trees: dict[Clustering, _Tree] = {}
        self._proofs: dict[float, ProofTable] = {}
        self._best: dict[tuple[float, float], tuple[ProofTable, Floats, Floats]] = {}

    def objects(self) -> Ints:
        """Return the number of own boxes of every image."""
        return np.bincount(self.image, minlength=self.count)

    def sizes(self) -> set[tuple[int, int]]:
        """Return the sizes of the images."""
        return {(image.observation.width, image.observation.height) for image in self.image_set.images}

    def price_curves(self, shapes: Sequence[Rule], mask_thresholds: Floats) -> npt.NDArray[np.int32]:
        """Return `spurious` of every shape: (shapes, mask thresholds, images)."""
        return np.stack([self.spurious(shape, mask_thresholds).astype(np.int32) for shape in shapes])

    def single_view_counts(self, settings: Sequence[tuple[float, float]], mask_thresholds: Floats) -> Ints:
        """Return how many own boxes single views certify, by filter and edge factor.

        The result is (settings, mask thresholds, LOCATIONS); the thresholds ascend.
        """
        every = np.zeros((len(settings), len(mask_thresholds), len(LOCATIONS)), np.int64)
        for number, (filter_ioa, edge_factor) in enumerate(settings):
            for place, decisive in enumerate(self.decisive(filter_ioa, edge_factor)):
                every[number, :, place] = (decisive[None] >= mask_thresholds[:, None]).sum(axis=1)
        return every

    def bound_counts(self, rules: Sequence[Rule]) -> Ints:
        """Return how many own boxes each rule certifies at most: (rules, LOCATIONS)."""
        return np.array([self.bound(rule).sum(axis=1) for rule in rules]).reshape(-1, len(LOCATIONS))

    def certified_counts(self, rules: Sequence[Rule]) -> Ints:
        """Return how many own boxes each rule certifies: (rules, LOCATIONS)."""
        return np.array([self.certified(rule).sum(axis=1) for rule in rules]).reshape(-1, len(LOCATIONS))

    def per_image(self, rule: Rule) -> tuple[Ints, Ints]:
        """Return the boxes that masks add (images,) and the own boxes certified (LOCATIONS, images)."""
        spurious = self.spurious(rule, np.array([rule.mask_threshold]))[0]
        certified = [np.bincount(self.image[holds], minlength=self.count) for holds in self.certified(rule)]
        return spurious, np.stack(certified)

    # --- the price ----------------------------------------------------------------------------------------------------

    def spurious(self, shape: Rule, mask_thresholds: Floats) -> Ints:
        """Return how many boxes masks add to every image: (mask thresholds, images); thresholds ascend.

        Mask thresholds that do not exceed the evidence threshold have a step: one view is sufficient, or none counts.
        """
        tree = self._tree(shape)
        if shape.evidence_threshold is None:
            return tree.components_from(mask_thresholds, self.count)
        counts = tree.by_evidence(shape.evidence_threshold, shape.evidence_power, mask_thresholds, self.count)
        steps = mask_thresholds <= shape.evidence_threshold
        counts[steps] = tree.components_from(mask_thresholds[steps], self.count)
        return counts

    def _tree(self, shape: Rule) -> _Tree:
        key = clustering_of(shape)
        if self._candidates is None or shape.filter_ioa > self._candidates.loosest_filter:
            loosest = max(shape.filter_ioa, LOOSEST_FILTER)
            self._candidates = _Candidates.of(self.image_set.images, self._cut, self.floor, loosest)
        if key not in self._trees:
            self._trees[key] = self._candidates.tree(*key)
        return self._trees[key]

    # --- the gain -----------------------------------------------------------------------------------------------------

    def decisive(self, filter_ioa: float, edge_factor: float) -> Floats:
        """Return up to which mask threshold single views certify each own box: (LOCATIONS, own boxes).

        Let s(m) be the best score of a masked box under mask m that proves the object. At mask threshold t the position
        (x, y) is covered iff a mask with s(m) >= t removes it, by x or by y. So a rectangle of positions is covered iff
        every x of it is, or every y: iff t is at most the larger of min over x of max s(m) over the masks that remove
        x, and the same for y. -inf where no threshold certifies it, +inf where no position is allowed.
        """
        return self._certifying(filter_ioa, edge_factor)[2]

    def bound(self, rule: Rule) -> Bools:
        """Return which own boxes `rule` may certify, at most: (LOCATIONS, own boxes).

        A star at a position has at most the evidence of all masked boxes that prove the object under masks that remove
        the position, whatever their distance. Its sum over masks is at most the sum by x plus the sum by y, so its
        minimum over a rectangle is at most the sum of both minima. Certificates need 1 + MARGIN of it, or one full box.
        """
        _, best, decisive = self._certifying(rule.filter_ioa, rule.edge_factor)
        if rule.evidence_threshold is None:
            return decisive >= rule.mask_threshold
        weight = certified_weights(rule.evidence(best))
        limits = []
        for positions, rows in zip(self._positions, self._rows(), strict=True):
            weights = weight[rows, : positions.removes[0].shape[1]]
            sums = [weights @ removes.T.astype(np.float64) for removes in positions.removes]
            across, down = positions.least(sums[0], sums[1])
            limits.append(positions.by_location(across + down))
        possible = np.concatenate(limits, axis=1) >= 1 + MARGIN
        return np.asarray((possible & self._visible) | (decisive >= rule.mask_threshold))

    def certified(self, rule: Rule) -> Bools:
        """Return which own boxes `rule` certifies: (LOCATIONS, own boxes), as `rule.certify` decides."""
        proofs, _, decisive = self._certifying(rule.filter_ioa, rule.edge_factor)
        certified = decisive >= rule.mask_threshold
        if rule.evidence_threshold is None:
            return np.asarray(certified)
        undecided = self.bound(rule) & ~certified
        evidence = np.where(self._proving(proofs), rule.evidence(proofs.score), 0.0)
        patches = [patch for patch in self.threat.patches() if patch.location in LOCATIONS]
        for n in np.flatnonzero(undecided.any(axis=0)).tolist():
            image = self.image_set.images[int(self.image[n])]
            seen, box = image.observation, self.image_set.ground_truth.detections.xyxy[n : n + 1]
            proof = target_proof(proofs, rule, evidence, n)
            around = PatchPositions.of(box, seen.width, seen.height)
            for place in np.flatnonzero(undecided[:, n]).tolist():
                patch = patches[place]
                size = patch_sizes(patch, seen.width, seen.height, 1)
                pixels = int(size[0, 0]), int(size[0, 1])
                certified[place, n] = proof.certifies(around.allowed(patch.location, size)[0], pixels)
        return np.asarray(certified)

    def _certifying(self, filter_ioa: float, edge_factor: float) -> tuple[ProofTable, Floats, Floats]:
        """Return what proves the own boxes, the best proving score by own box and mask, and `decisive`."""
        key = filter_ioa, edge_factor
        if key not in self._best:
            proofs = self._proof_table(filter_ioa, edge_factor)
            used = np.flatnonzero(self._proving(proofs))
            best = np.full((len(self.image), self._views), -np.inf)
            mask = _masks_of_rows(proofs, self.image)
            np.maximum.at(best, (proofs.target[used], mask[used]), proofs.score[used])
            parts = []
            for positions, rows in zip(self._positions, self._rows(), strict=True):
                scores = best[rows, : positions.removes[0].shape[1]]
                reached = [
                    np.where(removes[None], scores[:, None], -np.inf).max(axis=-1, initial=-np.inf)
                    for removes in positions.removes
                ]
                parts.append(positions.by_location(np.maximum(*positions.least(reached[0], reached[1]))))
            decisive = np.where(self._visible, np.concatenate(parts, axis=1), -np.inf)
            self._best[key] = proofs, best, decisive
        return self._best[key]

    def _proof_table(self, filter_ioa: float, edge_factor: float) -> ProofTable:
        """Return the proofs of rules with this filter, found once, with the scores of this edge factor."""
        if filter_ioa not in self._proofs:
            rule = Rule(base_threshold=self.threshold, filter_ioa=filter_ioa)
            self._proofs[filter_ioa] = build_proof_table(self.image_set, rule, self.threat.bound, floor=self.floor)
        proofs = self._proofs[filter_ioa]
        cut = np.concatenate(self._cut)[_boxes_of_rows(proofs, self.image, self._cut)]
        score = np.where(cut, proofs.score * edge_factor, proofs.score)
        return replace(proofs, rule=proofs.rule.with_settings(edge_factor=edge_factor), score=score)

    def _proving(self, proofs: ProofTable) -> Bools:
        threshold = proofs.rule.resolve_threshold(self.threat.certification_threshold)
        return np.asarray(proofs.share > threshold + MARGIN)

    def _rows(self) -> list[slice]:
        ends = np.cumsum(self.objects()).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _with_own_boxes(image: ObservedImage, threshold: float) -> ObservedImage:
    own = image.observation.base.with_min_score(threshold)
    none = np.zeros(len(own), np.bool_)
    return replace(image, ground_truth=own, ignore=none, crowd=none)


def _all_boxes(image: ObservedImage) -> tuple[Detections, Detections]:
    return image.observation.base, image.observation.all_masked


def _cut_boxes(image: ObservedImage) -> Bools:
    seen = image.observation
    return cut_by_mask(seen.all_masked.xyxy, seen.mask_index, seen.masks)


def _boxes_of_rows(proofs: ProofTable, image: Ints, per_box: Sequence[Bools | Ints]) -> Ints:
    """Return each row's box among the masked boxes of all images."""
    starts = np.cumsum([0, *map(len, per_box)])
    return np.asarray(starts[image[proofs.target]] + proofs.box)


def _masks_of_rows(proofs: ProofTable, image: Ints) -> Ints:
    masks = [each.observation.mask_index for each in proofs.image_set.images]
    return np.asarray(np.concatenate(masks)[_boxes_of_rows(proofs, image, masks)])


# --- clusters at every threshold --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """The masked boxes that some filter leaves, and which of them clustering joins directly."""

    image: Ints
    mask: Ints
    score: Floats
    cut: Bools
    inside: Floats  # the largest share of the box inside a base box that is output
    boxes: list[Detections]  # by image
    linked: dict[float, list[list[int]]]  # by cluster distance and image: neighbors as bits
    loosest_filter: float

    @classmethod
    def of(
        cls, images: Sequence[ObservedImage], cut: Sequence[Bools], floor: float, loosest_filter: float
    ) -> _Candidates:
        parts, boxes = [], []
        for number, image in enumerate(images):
            seen = image.observation
            inside = _largest_share(seen.all_masked, image.ground_truth)
            kept = np.flatnonzero((inside <= loosest_filter) & (seen.all_masked.score >= floor))
            parts.append(
                (
                    np.full(len(kept), number),
                    seen.mask_index[kept],
                    seen.all_masked.score[kept],
                    cut[number][kept],
                    inside[kept],
                )
            )
            boxes.append(seen.all_masked[kept])
        of, mask, score, was_cut, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(of, mask, score, was_cut, share, boxes, {}, loosest_filter)

    def tree(self, filter_ioa: float, edge_factor: float, cluster_distance: float) -> _Tree:
        """Return how the boxes that this filter leaves join, from the best score down."""
        if cluster_distance not in self.linked:
            rule = Rule(cluster_distance=cluster_distance)
            self.linked[cluster_distance] = [neighbors_as_bits(rule, boxes) for boxes in self.boxes]
        score = np.where(self.cut, self.score * edge_factor, self.score)
        left = self.inside <= filter_ioa
        joined = np.arange(len(score))
        start = 0
        for boxes, linked in zip(self.boxes, self.linked[cluster_distance], strict=True):
            members = np.flatnonzero(left[start : start + len(boxes)])
            order = members[np.argsort(-score[start + members], kind="stable")]
            for box, lower in merge_tree(linked, order.tolist()):
                joined[start + box] = start + lower
            start += len(boxes)
        return _Tree(self.image, self.mask, np.where(left, score, -np.inf), joined)


def merge_tree(linked: Sequence[int], order: Sequence[int]) -> list[tuple[int, int]]:
    """Return which box joins the cluster of which box to a later one, taking boxes in `order`.

    A pair (a, b): when b comes, the cluster whose last box is a becomes part of the cluster whose last box is b. So the
    clusters of the first boxes of the order are those of the tree without its later boxes.
    """
    members = [0] * len(linked)  # of the cluster whose last box this is
    last = list(range(len(linked)))  # a box of the same cluster that came later, up to the last one
    pairs: list[tuple[int, int]] = []
    seen = 0
    for box in order:
        near, cluster = linked[box] & seen, 1 << box
        while near:
            root = (near & -near).bit_length() - 1
            while last[root] != root:
                last[root] = root = last[last[root]]
            near &= ~members[root]
            cluster |= members[root]
            last[root] = box
            pairs.append((root, box))
        members[box] = cluster
        seen |= 1 << box
    return pairs


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """The merge trees of all images; `joined[i]` is the later box that takes in box i, or i."""

    image: Ints
    mask: Ints
    score: Floats  # after the edge factor; -inf for boxes that the filter drops
    joined: Ints

    def components_from(self, thresholds: Floats, images: int) -> Ints:
        """Return how many clusters the boxes of at least each threshold form: (thresholds, images)."""
        merged = np.flatnonzero(self.joined != np.arange(len(self.joined)))
        boxes = _counts_from(self.score, self.image, thresholds, images)
        return boxes - _counts_from(self.score[self.joined[merged]], self.image[merged], thresholds, images)

    def by_evidence(self, lowest: float, power: float, thresholds: Floats, images: int) -> Ints:
        """Return how many clusters reach an evidence of 1 at each mask threshold above `lowest`.

        Which boxes cluster depends on `lowest` alone, and evidence falls as the mask threshold rises: so bisection
        finds the highest threshold at which each cluster is output.
        """
        alive = np.flatnonzero(self.score > lowest)
        above = np.where(self.score[self.joined] > lowest, self.joined, np.arange(len(self.joined)))
        while True:
            further = above[above]
            if np.array_equal(further, above):
                break
            above = further
        roots, cluster = np.unique(above[alive], return_inverse=True)
        views = int(self.mask.max(initial=0)) + 1
        view, which = np.unique(cluster * views + self.mask[alive], return_inverse=True)  # in the order of the masks
        best = np.full(len(view), -np.inf)
        np.maximum.at(best, which, self.score[alive])
        of_cluster = view // views
        from_here = np.searchsorted(thresholds, lowest, side="right")
        low, high = np.full(len(roots), from_here - 1), np.full(len(roots), len(thresholds) - 1)
        levels = np.append(thresholds, np.inf)
        while (low < high).any():  # the cluster is output at `low`, or nowhere; not above `high`
            middle = (low + high + 1) // 2
            top = levels[middle][of_cluster]
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.clip((best - lowest) / (top - lowest), 0, 1) ** power
            evidence = np.where(best >= top, 1.0, share)
            enough = np.bincount(of_cluster, weights=evidence, minlength=len(roots)) >= 1
            open_ = low < high
            low = np.where(open_ & enough, middle, low)
            high = np.where(open_ & ~enough, middle - 1, high)
        counts = np.zeros((len(thresholds) + 1, images), np.int64)
        np.add.at(counts, (low + 1, self.image[roots]), 1)
        reached = np.cumsum(counts[::-1], axis=0)[::-1][1:]
        reached[:from_here] = 0
        return reached


def _counts_from(score: Floats, image: Ints, thresholds: Floats, images: int) -> Ints:
    """Return how many boxes of each image have at least each score: (thresholds, images)."""
    counts = np.zeros((len(thresholds) + 1, images), np.int64)
    np.add.at(counts, (np.searchsorted(thresholds, score, side="right"), image), 1)
    return np.asarray(np.cumsum(counts[::-1], axis=0)[::-1][1:])


def _largest_share(masked: Detections, base: Detections) -> Floats:
    """Return the largest IoA of every masked box in a base box of its label; 0 where there is none."""
    share = np.zeros(len(masked))
    for left, right in label_groups(Rule(), masked.label, base.label):
        for some in row_blocks(len(left), len(right)):
            share[left[some]] = ioa(masked.xyxy[left[some]], base.xyxy[right]).max(axis=1)
    return share
