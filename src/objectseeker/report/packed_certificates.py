"""What a page needs to certify: the little that is left of an object when patch, where and T are still open.

Per object: where it lies among the integer patch positions (`threats.Surroundings`). Per target, an object as one of
the detector's labels that stand for its class: the masked boxes that prove it and decide alone (mask and share), and
those that only prove it together (mask, weight, share, and who is whose neighbor).

Why boxes that decide alone are not among the others: views only have to add up at positions that escape every mask
which decides alone (`ObjectProof.certifies`). The mask of a box that decides alone removes none of those positions, so
that box adds nothing there, and no star centerd on it counts there. For the same reason one box per mask is enough: the
one with the largest share proves the object up to the highest T. Every other box with any evidence is kept, even if its
weight is rounded down to 0: it may still be the center of a star.

An attacker can draw so many weak boxes that no page could hold which of them are neighbors. Of a target with more than
MOST_TOGETHER, and of the largest if all together exceed MOST_BYTES, only the boxes that decide alone are kept: the page
then certifies less than there is, never more, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Floats, Ints, row_blocks
from objectseeker.core.certification import visible_area
from objectseeker.core.evidence import certain_neighbors, certified_weights
from objectseeker.core.iou_rule import AnyRule, IouRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PatchPositions
from objectseeker.metrics.certified import ProofTable, build_proof_table, evidence_weights
from objectseeker.metrics.image_set import ImageSet

Column = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]

MOST_TOGETHER = 2048  # boxes of one target that only prove it together; more than a handful a view
MOST_BYTES = 2**26  # of all of them and their neighbors


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """`columns` go to the page as they are; the boxes behind the rows of alone_ and together_ are only for drawing."""

    columns: Mapping[str, Column]
    alone: Singles
    together: Singles
    partly: Ints  # the objects of which the page cannot hold what views prove together


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The rows of one target: those that decide alone, and those that only do so together."""

    object: int
    label: int
    alone: dict[str, Column]
    together: dict[str, Column]
    partly: bool

    @property
    def size(self) -> int:
        """Bytes of what decides together, neighbors included."""
        rows = len(self.together["mask"])
        return sum(column.nbytes for column in self.together.values()) + rows * -(-rows // 8)

    def below(self, limit: int) -> _Target:
        """Itself, or what is left of it without the rows that only decide together."""
        if self.size < limit:
            return self
        return replace(self, together={name: column[:0].copy() for name, column in self.together.items()}, partly=True)


def pack(scene: ImageSet, rule: AnyRule, bound: Bound) -> Packed:
    """The certificates of all objects of a scene, the ignored ones included, image by image."""
    targets: list[_Target] = []
    total, objects, limit = 0, 0, MOST_BYTES
    for image in scene.images:
        for target in _targets(image, scene.vocabulary, rule, bound, objects):
            targets.append(target.below(limit))
            total += targets[-1].size
            if total > MOST_BYTES:
                limit = _limit(targets)
                targets = [one.below(limit) for one in targets]
                total = sum(one.size for one in targets)
        objects += len(image.truth)
    which = np.array([target.object for target in targets], np.int64)
    alone, boxes_alone = _rows("alone", [target.alone for target in targets])
    together, boxes_together = _rows("together", [target.together for target in targets])
    distance = 0.0 if isinstance(rule, IouRule) else rule.cluster_distance
    links = [_links(target.together["box"], distance) for target in targets]
    partly = np.array([target.partly for target in targets], np.bool_)
    return Packed(
        columns=_objects(scene)
        | alone
        | together
        | {
            "target_first": np.searchsorted(which, np.arange(objects + 1)).astype(np.uint32),
            "target_label": np.array([target.label for target in targets], np.int32),
            "target_partly": partly.astype(np.uint8),
            "link_first": _first(links),
            "link_bits": np.concatenate([np.empty(0, np.uint8), *links]),
        },
        alone=boxes_alone.astype(np.float32),
        together=boxes_together.astype(np.float32),
        partly=np.unique(which[partly]),
    )


def _limit(targets: Sequence[_Target]) -> int:
    """The size from which on targets are too large, so that half of MOST_BYTES is free for those to come."""
    sizes = np.sort([target.size for target in targets])
    return int(sizes[np.searchsorted(np.cumsum(sizes), MOST_BYTES // 2, side="right")])


def _targets(image: ObservedImage, vocabulary: LabelMap, rule: AnyRule, bound: Bound, start: int) -> Iterator[_Target]:
    """The targets of one image, so many objects at a time as memory allows; `start` is its first object."""
    mask_of = image.observation.mask_of
    for some in row_blocks(len(image.truth), len(mask_of)):
        truth = image.truth[some]
        none = np.zeros(len(truth), np.bool_)
        proofs = build_proof_table(
            ImageSet.part([replace(image, truth=truth, ignore=none, crowd=none)], vocabulary), rule, bound
        )
        evidence = evidence_weights(rule, proofs.score)
        for t, (n, label) in enumerate(zip(proofs.object.tolist(), proofs.label.tolist(), strict=True)):
            rows = proofs.rows_of(t)
            alone = _best_of_each_mask(proofs, mask_of, rows[evidence[rows] >= 1])
            together = rows[(evidence[rows] > 0) & (evidence[rows] < 1)]
            partly = len(together) > MOST_TOGETHER
            together = together[:0] if partly else together
            yield _Target(
                object=start + some.start + n,
                label=label,
                alone=_kept(proofs, image, alone),
                together=_kept(proofs, image, together) | {"weight": certified_weights(evidence[together])},
                partly=partly,
            )


def _kept(proofs: ProofTable, image: ObservedImage, rows: Ints) -> dict[str, Column]:
    seen, box = image.observation, proofs.box[rows]
    return {"mask": seen.mask_of[box].astype(np.uint16), "share": proofs.share[rows], "box": seen.boxes.xyxy[box]}


def _rows(kind: str, parts: Sequence[Mapping[str, Column]]) -> tuple[dict[str, Column], Floats]:
    """The rows of all targets, column by column, with where each target begins; and the boxes behind them."""
    none = {"mask": np.empty(0, np.uint16), "share": np.empty(0), "weight": np.empty(0)}
    columns = {f"{kind}_first": _first([part["mask"] for part in parts])}
    for name in ("mask", "share", "weight") if kind == "together" else ("mask", "share"):
        columns[f"{kind}_{name}"] = np.concatenate([none[name], *(part[name] for part in parts)])
    return columns, np.concatenate([np.empty((0, 4)), *(part["box"] for part in parts)])


def _first(parts: Sequence[Column]) -> Column:
    return np.cumsum([0, *map(len, parts)]).astype(np.uint32)


def _objects(scene: ImageSet) -> dict[str, Column]:
    box, image = scene.truth.detections.xyxy, scene.truth.image
    width, height = scene.width[image], scene.height[image]
    around = PatchPositions.of(box, width, height)
    visible = visible_area(box, width, height)
    return {
        "object_first": np.searchsorted(image, np.arange(len(scene.images) + 1)).astype(np.uint32),
        "box": box.ravel(),
        "label": scene.truth.detections.label.astype(np.uint16),
        "ignore": scene.ignore.astype(np.uint8),
        "visible": (visible > 0).astype(np.uint8),
        "size": visible / (width * height),
        "around": np.concatenate([around.first, around.last, around.near_first, around.near_last], axis=1)
        .astype(np.int32)
        .ravel(),
    }


def _best_of_each_mask(proofs: ProofTable, mask_of: Ints, rows: Ints) -> Ints:
    """Of the rows of one target, for each mask the one with the largest share."""
    mask = mask_of[proofs.box[rows]]
    order = np.lexsort((-proofs.share[rows], mask))
    _, first = np.unique(mask[order], return_index=True)
    return np.asarray(rows[order[first]])


def _links(boxes: Floats, distance: float) -> Column:
    """The rows of a target's neighbor matrix as bits, each row on whole bytes. Neighbors as `evidence.linked`."""
    near = (certain_neighbors(boxes[some], boxes, distance, some.start) for some in row_blocks(len(boxes), len(boxes)))
    bits = [np.packbits(rows, axis=1, bitorder="little").ravel() for rows in near]
    return np.concatenate([np.empty(0, np.uint8), *bits])
