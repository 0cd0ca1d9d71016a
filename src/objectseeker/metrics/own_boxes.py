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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import MARGIN
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa, row_blocks
from objectseeker.core.certification import ObjectProof, decide, inside_rectangles, visible_area
from objectseeker.core.evidence import certified_weights
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.positions import PositionClasses
from objectseeker.core.pruning import cut_by_mask
from objectseeker.core.recipes import Recipe
from objectseeker.core.rules import Rule
from objectseeker.core.threats import Patch, PatchLocation, PatchPositions, ThreatModel, patch_sizes
from objectseeker.metrics.certified import ProofTable, build_proof_table, target_proof
from objectseeker.metrics.image_set import ImageSet, with_objects
from objectseeker.metrics.replay import label_groups, neighbors_as_bits
from objectseeker.metrics.search import LOCATIONS

LOOSEST_FILTER = 0.8  # boxes that this filter drops are needed only for rules with a looser one


Clustering = tuple[float, float, float]


def clustering_of(rule: Rule) -> Clustering:
    """Return what decides which masked boxes are left and how they join, at any threshold."""
    return rule.filter_ioa, rule.edge_factor, rule.cluster_distance


@dataclass(frozen=True, slots=True, eq=False)
class _Reach:
    """Allowed patch positions around one image's own boxes, by classes along each axis.

    Of several patches it is one of them; if they own the outside, what matters is which views show none of it.
    """

    removes: tuple[Bools, ...]  # (classes, M) per axis
    within: tuple[Bools, ...]  # (objects, rectangles, classes): whether a rectangle reaches a class
    empty: Bools  # (objects, rectangles)
    rectangles: tuple[int, ...]  # of each patch; none of the outside
    inside: Bools  # (objects, M): the views that keep nothing outside the grown box

    @classmethod
    def of(cls, image: ObservedImage, patches: Sequence[Patch]) -> _Reach:
        seen, boxes = image.observation, image.ground_truth.xyxy
        around = PatchPositions.of(boxes, seen.width, seen.height)
        inside = inside_rectangles(seen.masks.kept[None], around.grown()[:, None])
        size = patch_sizes(patches[0], seen.width, seen.height, len(boxes))
        allowed = [around.allowed(p.location, size)[:, : 0 if p.location == "outside" else None] for p in patches]
        every = np.concatenate(allowed, axis=1)
        classes = PositionClasses.of(seen.masks, patches[0].size(seen.width, seen.height))
        within = []
        for axis in (0, 1):
            starts = classes.starts[axis]
            first = np.searchsorted(starts, every[..., axis], side="right") - 1
            last = np.searchsorted(starts, every[..., axis + 2], side="right")
            each = np.arange(len(starts))
            within.append((first[..., None] <= each) & (each < last[..., None]))
        empty = np.asarray((every[..., :2] > every[..., 2:]).any(axis=-1))
        return cls(classes.removes, tuple(within), empty, tuple(part.shape[1] for part in allowed), inside)

    def least(self, values: Floats, combine: np.ufunc, none: float) -> Floats:
        """Return the least, over positions, of what each box's views give: (patches, objects).

        `values` (objects, M) of the views that remove the patch are combined by `combine`, np.maximum or np.add, along
        x and along y, and so are the least of both axes: see `OwnBoxes.decisive` and `OwnBoxes.bound`.
        """
        sides = []
        for removes, within in zip(self.removes, self.within, strict=True):
            if combine is np.add:
                along = values @ removes.T.astype(np.float64)
            else:
                along = np.where(removes[None], values[:, None], none).max(axis=-1, initial=none)
            sides.append(np.where(within, along[:, None], np.inf).min(axis=-1, initial=np.inf))
        worst = np.where(self.empty, np.inf, combine(*sides))
        found, start = np.empty((len(self.rectangles), len(values))), 0
        for row, count in enumerate(self.rectangles):
            part = worst[:, start : start + count].min(axis=1) if count else None
            found[row] = combine.reduce(np.where(self.inside, values, none), axis=1) if part is None else part
            start += count
        return found


class OwnBoxes:
    """The boxes that a detector outputs from one score threshold on, and what all rules share about them.

    Args:
        images: The observed images; their ground truth is ignored.
        threshold: The score threshold at which the detector is deployed: the base threshold of every rule.
        floor: The lowest masked score that any rule uses.
        threat: The patches to certify against.
        locations: Their locations, alone.
    """

    def __init__(
        self,
        images: Sequence[ObservedImage],
        threshold: float,
        floor: float,
        threat: ThreatModel | None = None,
        locations: Sequence[PatchLocation] = LOCATIONS,
    ) -> None:
        self.threshold, self.floor = threshold, floor
        self.threat = ThreatModel() if threat is None else threat
        self.patches = [Patch(self.threat.area, self.threat.aspect, where, self.threat.count) for where in locations]
        own = [with_objects(image, image.observation.base.with_min_score(threshold)) for image in images]
        every = [boxes for image in images for boxes in (image.observation.base, image.observation.all_masked)]
        labels = max((int(boxes.label.max(initial=-1)) for boxes in every), default=-1)
        self.image_set = ImageSet.from_part(own, LabelMap.from_names(tuple(map(str, range(labels + 1)))))
        self.image = self.image_set.ground_truth.image  # of each own box
        self.count = len(own)
        self._reach = [_Reach.of(image, self.patches) for image in own]
        self._visible = np.concatenate(
            [visible_area(i.ground_truth.xyxy, i.observation.width, i.observation.height) > 0 for i in own]
        )
        self._views = max(len(image.observation.masks) for image in own)
        self._used = [np.ones(len(image.observation.masks), np.bool_) for image in own]
        self._cut = [
            cut_by_mask(seen.all_masked.xyxy, seen.mask_index, seen.masks)
            for seen in (image.observation for image in own)
        ]
        self._candidates: _Candidates | None = None
        self._trees: dict[Clustering, _Tree] = {}
        self._proofs: dict[float, ProofTable] = {}
        self._best: dict[tuple[float, float], tuple[ProofTable, Floats, Floats]] = {}

    def restrict(self, recipe: Recipe) -> None:
        """From now on use the views of a recipe within the observed one alone, as if there were no others."""
        for used, image in zip(self._used, self.image_set.images, strict=True):
            seen = image.observation
            wanted = set(recipe.masks(seen.width, seen.height).keys)
            used[:] = [key in wanted for key in seen.masks.keys]
        self._trees.clear()
        self._best.clear()

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

        The result is (settings, mask thresholds, patches); the thresholds ascend.
        """
        every = [self.decisive(*pair)[None] >= mask_thresholds[:, None, None] for pair in settings]
        return np.asarray(np.array(every).sum(axis=-1))

    def totals(self, verdicts: Callable[[OwnBoxes, Rule], Bools], rules: Sequence[Rule]) -> Ints:
        """Return how many own boxes each rule certifies, or at most (`bound`): (rules, patches)."""
        return np.array([verdicts(self, rule).sum(axis=1) for rule in rules])

    def per_image(self, rule: Rule) -> tuple[Ints, Ints]:
        """Return the boxes that masks add (images,) and the own boxes certified (patches, images)."""
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
            used = np.concatenate(self._used)[self._candidates.view(self._used)]
            self._trees[key] = self._candidates.tree(*key, used)
        return self._trees[key]

    # --- the gain -----------------------------------------------------------------------------------------------------

    def decisive(self, filter_ioa: float, edge_factor: float) -> Floats:
        """Return up to which mask threshold single views certify each own box: (patches, own boxes).

        Let s(m) be the best score of a masked box under mask m that proves the object. At mask threshold t the position
        (x, y) is covered iff a mask with s(m) >= t removes it, by x or by y. So a rectangle of positions is covered iff
        every x of it is, or every y: iff t is at most the larger of min over x of max s(m) over the masks that remove
        x, and the same for y. Against the outside t is at most the largest s(m) of the views inside the grown box. -inf
        where no threshold certifies it, +inf where no position is allowed. Several patches hide what one of them does;
        the threshold from which they do is found by bisection.
        """
        return self._certifying(filter_ioa, edge_factor)[2]

    def bound(self, rule: Rule) -> Bools:
        """Return which own boxes `rule` may certify, at most: (patches, own boxes).

        A star at a position has at most the evidence of all masked boxes that prove the object under masks that remove
        the position, whatever their distance. Its sum over masks is at most the sum by x plus the sum by y, so its
        minimum over a rectangle is at most the sum of both minima. Certificates need 1 + MARGIN of it, or one full box;
        and against several patches some evidence wherever these are.
        """
        _, best, decisive = self._certifying(rule.filter_ioa, rule.edge_factor)
        certified = decisive >= rule.mask_threshold
        if rule.evidence_threshold is None:
            return np.asarray(certified)
        weights = self._least(certified_weights(rule.evidence(best)), np.add, 0.0)
        possible = (weights >= 1 + MARGIN) & self._visible & (decisive >= rule.evidence_threshold)
        return np.asarray(possible | certified)

    def certified(self, rule: Rule) -> Bools:
        """Return which own boxes `rule` certifies: (patches, own boxes), as `rule.certify` decides."""
        proofs, _, decisive = self._certifying(rule.filter_ioa, rule.edge_factor)
        certified = decisive >= rule.mask_threshold
        if self.threat.count > 2:  # a search that may give up: it decides by the views of this rule
            certified = decisive == np.inf
        elif rule.evidence_threshold is None:
            return np.asarray(certified)
        undecided = self.bound(rule) & ~certified
        evidence = np.where(self._proving(proofs), rule.evidence(proofs.score), 0.0)
        for n in np.flatnonzero(undecided.any(axis=0)).tolist():
            certified[:, n] |= self._decide(n, target_proof(proofs, rule, evidence, n), undecided[:, n])
        return certified

    def _decide(self, n: int, proof: ObjectProof, undecided: Bools) -> Bools:
        """Return against which of some patches (patches,) own box n is certified."""
        seen = self.image_set.images[int(self.image[n])].observation
        nothing, one = np.array([[0, 0, seen.width, seen.height]]), np.ones(1, np.bool_)
        verdicts, _ = decide(
            nothing,
            self.image_set.ground_truth.detections.xyxy[n : n + 1],
            seen.width,
            seen.height,
            [patch for patch, is_open in zip(self.patches, undecided.tolist(), strict=True) if is_open],
            lambda _: proof,
            lambda _: (~one, one),
        )
        found = undecided.copy()
        found[undecided] = verdicts[:, 0]
        return found

    def _certifying(self, filter_ioa: float, edge_factor: float) -> tuple[ProofTable, Floats, Floats]:
        """Return what proves the own boxes, the best proving score by own box and mask, and `decisive`."""
        key = filter_ioa, edge_factor
        if key not in self._best:
            proofs = self._proof_table(filter_ioa, edge_factor)
            used = np.flatnonzero(self._proving(proofs))
            best = np.full((len(self.image), self._views), -np.inf)
            mask = _masks_of_rows(proofs, self.image)
            np.maximum.at(best, (proofs.target[used], mask[used]), proofs.score[used])
            decisive = np.where(self._visible, self._least(best, np.maximum, -np.inf), -np.inf)
            several = [patch.count > 1 and patch.location != "outside" for patch in self.patches]
            self._best[key] = proofs, best, self._bisected(best, decisive, np.array(several))
        return self._best[key]

    def _bisected(self, best: Floats, decisive: Floats, several: Bools) -> Floats:
        """Return up to which mask threshold single views certify each own box against several patches, too."""
        for p, n in zip(*np.nonzero(several[:, None] & np.isfinite(decisive)), strict=True):
            masks = self.image_set.images[int(self.image[n])].observation.masks
            scores = best[n, : len(masks)]
            levels = np.unique(scores[scores <= decisive[p, n]])  # ascending; -inf where a view proves nothing
            low, high = -1, len(levels) - 1
            this = np.arange(len(several)) == p
            while low < high:
                middle = (low + high + 1) // 2
                holds = self._decide(int(n), ObjectProof(masks, scores >= levels[middle]), this)[p]
                low, high = (middle, high) if holds else (low, middle - 1)
            decisive[p, n] = levels[low] if low >= 0 else -np.inf
        return decisive

    def _least(self, values: Floats, combine: np.ufunc, none: float) -> Floats:
        parts = [
            reach.least(values[rows, : reach.inside.shape[1]], combine, none)
            for reach, rows in zip(self._reach, self._rows(), strict=True)
        ]
        return np.concatenate(parts, axis=1)

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
        """Return which rows are about views that are used, and boxes that cover enough."""
        threshold = proofs.rule.resolve_threshold(self.threat.certification_threshold)
        starts = np.cumsum([0, *map(len, self._used)])[self.image[proofs.target]]
        used = np.concatenate(self._used)[starts + _masks_of_rows(proofs, self.image)]
        return np.asarray(used & (proofs.share > threshold + MARGIN))

    def _rows(self) -> list[slice]:
        ends = np.cumsum(self.objects()).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


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

    def view(self, per_view: Sequence[Bools]) -> Ints:
        """Return each box's view among the views of all images."""
        return np.cumsum([0, *map(len, per_view)])[self.image] + self.mask

    def tree(self, filter_ioa: float, edge_factor: float, cluster_distance: float, used: Bools) -> _Tree:
        """Return how the `used` boxes that this filter leaves join, from the best score down."""
        if cluster_distance not in self.linked:
            rule = Rule(cluster_distance=cluster_distance)
            self.linked[cluster_distance] = [neighbors_as_bits(rule, boxes) for boxes in self.boxes]
        score = np.where(self.cut, self.score * edge_factor, self.score)
        left = (self.inside <= filter_ioa) & used
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
