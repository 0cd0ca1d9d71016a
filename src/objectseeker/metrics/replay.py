"""Pruning replayed from stored boxes, at many settings of one rule, for all images at once.

`prune`, rerun for every image and every base threshold, would spend its time on what does not change: which base box
filters a masked box, and which masked boxes are neighbors (IoU rule: which base box repeats a masked box, and which
masked boxes suppress each other). Both are computed once. A setting then decides which masked boxes are alive (they
carry evidence and nothing filters them), and only images where that changed are clustered again. The result is that of
`prune`, bit for bit, in the detector's labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints, ioa, row_blocks
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import are_neighbors, cluster_evidence, clusters, unionize
from objectseeker.core.rules import PruningRule, Rule
from objectseeker.core.rules.iou import IouRule, nms_survivors, non_overlapping
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.image_set import BoxTable


class Replay(Protocol):
    """A function from rules to recovered boxes; the rules differ only in their thresholds."""

    def replay(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        """Yield the recovered boxes of all images under each rule, in the order of `prune`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PruneEveryImage:
    """The replay of a rule that has none of its own: every image is pruned anew by every rule."""

    observations: Sequence[Observation]

    def replay(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        for rule in rules:
            base = [len(observation.base.with_min_score(rule.base_threshold)) for observation in self.observations]
            yield BoxTable.concatenate(
                [rule.prune(seen)[count:] for seen, count in zip(self.observations, base, strict=True)]
            )


NO_BASE = -1.0  # the filtering score of a masked box that no base box filters

# Pairs of boxes whose links are kept, a bit each: half a gigabyte. An attacker can choose
# how many boxes there are, so images beyond it are clustered anew at every setting: slower, and the same clusters.
MAX_LINKS = 2**32


@dataclass(frozen=True, slots=True, eq=False)
class PruningCandidates:
    """The masked boxes that can be output at some base_threshold, image by image.

    If masked boxes need a score of at least base_threshold, one that a base box of at least its own score filters is
    never output: most boxes of most runs end here. A rule whose mask scores are below its base_threshold also needs
    those that only base boxes of lower scores filter: `max_base_threshold` is the highest base_threshold of such a
    rule.
    """

    boxes: BoxTable  # scores after the edge factor
    mask_of: Ints
    masks: Ints  # how many masks the image of each box has
    filtering: Floats  # the highest score of a base box that filters the box
    linked: list[list[int] | None]  # of each image: its boxes' neighbors, bit i being its i-th candidate, if kept
    first: list[int]  # each image's first candidate, and the end of the last image
    rule: Rule  # its candidate_settings hold for the candidates; scores and power are free
    floor: float  # the lowest masked score that is considered
    max_base_threshold: float

    def replay(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        boxes = self.boxes
        score = boxes.detections.score
        cluster = np.zeros(len(boxes), np.int64)  # of the boxes alive: the first box of the cluster
        before = np.zeros(len(boxes), np.bool_)
        for rule in rules:
            _check(rule, self)
            evidence = rule.evidence(score)
            alive = (evidence > 0) & (self.filtering < rule.base_threshold)
            for image in np.unique(boxes.image[alive != before]).tolist():
                start, end = self.first[image : image + 2]
                members = np.flatnonzero(alive[start:end])
                linked = self.linked[image]
                if linked is None:
                    cluster[start + members] = start + members[_clusters(rule, boxes.detections[start + members])]
                else:
                    _join(linked, members.tolist(), start, cluster)
            before = alive
            kept = np.flatnonzero(alive)
            if rule.evidence_threshold is not None:
                kept = kept[_enough(cluster[kept], self.mask_of[kept], self.masks[kept], evidence[kept])]
            yield BoxTable(unionize(boxes.detections[kept], cluster[kept]), boxes.image[np.unique(cluster[kept])])


def find_candidates(
    observations: Sequence[Observation],
    rule: Rule,
    floor: float,
    *,
    max_base_threshold: float = 0.0,
    among: Sequence[Bools] | None = None,
) -> PruningCandidates:
    """Find the candidates of all rules with `rule.candidate_key` and masked scores of at least `floor`.

    `among` selects the masked boxes of each observation to consider; by default all.
    """
    kept: list[Ints] = []
    boxes: list[Detections] = []
    filtering: list[Floats] = []
    linked: list[list[int] | None] = []
    room = MAX_LINKS
    for number, observation in enumerate(observations):
        score, masked = rule.discounted_scores(observation), observation.all_masked
        considered = score >= floor
        index = np.flatnonzero(considered if among is None else considered & among[number])
        best = filtering_score(rule, masked[index], observation.base)
        possible = best < np.maximum(score[index], max_base_threshold)
        index = index[possible]
        kept.append(index)
        boxes.append(Detections._checked(masked.xyxy[index], score[index], masked.label[index]))
        filtering.append(best[possible])
        links = len(index) ** 2
        linked.append(neighbors_as_bits(rule, boxes[-1]) if links <= room else None)
        room -= links if links <= room else 0
    counts = [len(index) for index in kept]
    return PruningCandidates(
        boxes=BoxTable.concatenate(boxes),
        mask_of=np.concatenate([seen.mask_index[index] for seen, index in zip(observations, kept, strict=True)]),
        masks=np.repeat([len(seen.masks) for seen in observations], counts),
        filtering=np.concatenate(filtering),
        linked=linked,
        first=[0, *np.cumsum(counts).tolist()],
        rule=rule,
        floor=floor,
        max_base_threshold=max_base_threshold,
    )


def filtering_score(rule: Rule, masked: Detections, base: Detections) -> Floats:
    """Return for every masked box the highest base threshold at which a base box filters it."""
    best = np.full(len(masked), NO_BASE)
    for left, rest in label_groups(rule, masked.label, base.label):
        # The best base boxes come first: what one of them filters is not compared with the others.
        rest = rest[np.argsort(-base.score[rest], kind="stable")]
        while len(left) and len(rest):
            first = next(row_blocks(len(rest), len(left)))
            some, rest = rest[first], rest[first.stop :]
            inside = ioa(masked.xyxy[left], base.xyxy[some]) > rule.filter_ioa
            found = inside.any(axis=1)
            best[left[found]] = base.score[some[inside[found].argmax(axis=1)]]
            left = left[~found]
    return best


def neighbors_as_bits(rule: Rule, boxes: Detections) -> list[int]:
    """For every box, the boxes that clustering joins it to directly, as the bits of one number."""
    linked = [0] * len(boxes)
    for group, _ in label_groups(rule, boxes.label, boxes.label):
        for some in row_blocks(len(group), len(boxes)):
            near = np.zeros((len(group[some]), len(boxes)), np.bool_)
            near[:, group] = are_neighbors(boxes.xyxy[group[some]], boxes.xyxy[group], rule.cluster_distance)
            for box, row in zip(group[some].tolist(), as_bits(near), strict=True):
                linked[box] = row
    return linked


def as_bits(flags: Bools) -> list[int]:
    """Every row as one number, flag i being bit i."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(flags, axis=1, bitorder="little")]


def label_groups(rule: Rule, a: Ints, b: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield, per label in both `a` and `b`, its indices in each: far fewer pairs than all with all."""
    if not rule.classwise:
        a, b = np.zeros_like(a), np.zeros_like(b)
    for label in np.intersect1d(a, b):
        yield np.flatnonzero(a == label), np.flatnonzero(b == label)


def _join(linked: list[int], members: list[int], start: int, cluster: Ints) -> None:
    """Write the clusters of the boxes `members` of the image whose candidates begin at `start`."""
    left = sum(1 << member for member in members)
    for seed in members:
        if not left >> seed & 1:
            continue
        left ^= 1 << seed
        reached = [seed]
        for member in reached:
            cluster[start + member] = start + seed
            new = linked[member] & left
            left ^= new
            while new:
                lowest = new & -new
                reached.append(lowest.bit_length() - 1)
                new ^= lowest


def _clusters(rule: PruningRule, boxes: Detections) -> Ints:
    """For every box the first box of its cluster, by `pruning` itself."""
    number = clusters(boxes.xyxy, boxes.label if rule.classwise else np.zeros_like(boxes.label), rule.cluster_distance)
    return np.asarray(np.unique(number, return_index=True)[1][number])


def _enough(cluster: Ints, mask_of: Ints, masks: Ints, evidence: Floats) -> Ints:
    """Return the boxes whose cluster is output."""
    # By number of masks: a sum rounds differently with more terms.
    output = np.zeros(len(cluster), np.bool_)
    for many in np.unique(masks):
        rows = np.flatnonzero(masks == many)
        _, number = np.unique(cluster[rows], return_inverse=True)
        output[rows] = (cluster_evidence(number, mask_of[rows], evidence[rows], int(many)) >= 1)[number]
    return np.flatnonzero(output)


def _check(rule: PruningRule, candidates: PruningCandidates) -> None:
    given = rule.candidate_key
    for name, value in candidates.rule.candidate_key.items():
        if given.get(name) != value:
            raise ObjectSeekerError(
                f"the candidates were found for {name}={value!r}, not {given.get(name)!r}: find them again"
            )
    needed = max(candidates.floor, rule.base_threshold if rule.base_threshold > candidates.max_base_threshold else 0.0)
    if rule.min_mask_score < needed:
        raise ObjectSeekerError(
            f"masked boxes must count from a score of {needed!r} on, not from {rule.min_mask_score!r}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class IouCandidates:
    """The masked boxes that can be output at some base_threshold, per image: clear ones, and `others`."""

    boxes: BoxTable
    repeated: Floats  # the highest score of a base box that repeats the box: it is dropped up to that base_threshold
    by_score: list[Ints]  # for every image its boxes, best first
    same: list[list[int] | None]  # in that order, which boxes each one suppresses: bit i is the i-th best; if kept
    first: list[int]  # each image's first box, and the end of the last image
    others: PruningCandidates
    rule: IouRule  # its filter_iou and classwise hold for the candidates

    def replay(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        """Yield each rule's additions to the base boxes of all images: clear boxes, then hulls of others."""
        iou_rules = cast("list[IouRule]", list(rules))
        boxes, score = self.boxes, self.boxes.detections.score
        before, output = np.zeros((2, len(boxes)), dtype=np.bool_)
        for rule, hulls in zip(iou_rules, self.others.replay([one.ioa_rule for one in iou_rules]), strict=True):
            if rule.filter_iou != self.rule.filter_iou:
                raise ObjectSeekerError(
                    f"candidates were found for filter_iou={self.rule.filter_iou!r}, not {rule!r}: find them again"
                )
            alive = (score >= rule.ioa_rule.mask_threshold) & (self.repeated < rule.base_threshold)
            for image in np.unique(boxes.image[alive != before]).tolist():
                start, end = self.first[image : image + 2]
                output[start:end] = False
                output[start + self.unsuppressed(image, alive[start:end])] = True
            before = alive
            yield boxes.select(output).followed_by(hulls)

    def unsuppressed(self, image: int, alive: Bools) -> Ints:
        """`iou_variant.unsuppressed` among the boxes alive of one image."""
        order, same = self.by_score[image], self.same[image]
        if same is None:
            members = np.flatnonzero(alive)
            boxes = self.boxes.detections[self.first[image] + members]
            return np.asarray(
                members[nms_survivors(boxes.score, lambda i: self.rule.are_duplicates(boxes[i], boxes)[0])]
            )
        left = int.from_bytes(np.packbits(alive[order], bitorder="little").tobytes(), "little")
        best = []
        while left:
            lowest = left & -left
            best.append(lowest.bit_length() - 1)
            left &= ~(same[best[-1]] | lowest)
        return np.asarray(order[best])


def find_iou_candidates(
    observations: Sequence[Observation],
    rule: IouRule,
    floor: float,
    *,
    mask_floor: float,
    max_base_threshold: float = 0.0,
) -> IouCandidates:
    """Find the candidates of the IoU variant; clear boxes with scores of at least `mask_floor` count."""
    clear = [non_overlapping(seen.all_masked.xyxy, seen.mask_index, seen.masks) for seen in observations]
    parts: list[Detections] = []
    repeated: list[Floats] = []
    by_score: list[Ints] = []
    same: list[list[int] | None] = []
    room = MAX_LINKS // 2
    for seen, flags in zip(observations, clear, strict=True):
        boxes = seen.all_masked[flags].with_min_score(mask_floor)
        best = _repeating_score(rule, boxes, seen.base)
        kept = best < np.maximum(boxes.score, max_base_threshold)  # as in `Candidates`
        boxes = boxes[kept]
        order = np.argsort(-boxes.score, kind="stable")
        parts.append(boxes)
        repeated.append(best[kept])
        by_score.append(order)
        links = len(boxes) ** 2
        best_first = boxes[order]
        every = list(row_blocks(len(boxes), len(boxes))) if links <= room else []
        suppressed = [row for some in every for row in as_bits(rule.are_duplicates(best_first[some], best_first))]
        same.append(suppressed if links <= room else None)
        room -= links if links <= room else 0
    return IouCandidates(
        boxes=BoxTable.concatenate(parts),
        repeated=np.concatenate(repeated),
        by_score=by_score,
        same=same,
        first=[0, *np.cumsum([len(boxes) for boxes in parts]).tolist()],
        others=find_candidates(
            observations, rule.ioa_rule, floor, max_base_threshold=max_base_threshold, among=[~flags for flags in clear]
        ),
        rule=rule,
    )


def _repeating_score(rule: IouRule, boxes: Detections, base: Detections) -> Floats:
    """For every box the highest score of a base box that repeats it."""
    best = np.full(len(boxes), NO_BASE)
    for some in row_blocks(len(boxes), len(base)):
        same = rule.are_duplicates(boxes[some], base)
        best[some] = np.where(same, base.score[None], NO_BASE).max(axis=1, initial=NO_BASE)
    return best
