"""Certificates as columns from which the page decides every verdict, for any patch, location and T.

Per object: the rectangles of integer patch positions around it (`threats.PatchPositions`). Per target, an object as one
of the detector's labels that map to its class: the masked boxes that prove it and are sufficient on their own (mask and
share), and those that only prove it combined (mask, weight, share, and which of them are neighbors).

Why boxes that are sufficient on their own are not among the others: evidence only has to accumulate at positions that
escape every mask of such a box (`ObjectProof.certifies`). The mask of such a box removes none of those positions, so
that box adds nothing there, and no star centered on it counts there. For the same reason one box per mask is enough:
the one with the largest share proves the object up to the highest T. Every other box with any evidence is kept, even if
its weight is rounded down to 0: it may still be the center of a star.

An attacker can draw more weak boxes than a page could hold the neighbors of. Of a target with more than
MAX_MULTI_VIEW_BOXES, and of the largest if all together exceed MAX_MULTI_VIEW_BYTES, only the boxes that are sufficient
on their own are kept: the page then certifies less than there is, never more, and reports it.
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
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import PatchPositions
from objectseeker.metrics.certified import ProofTable, build_proof_table
from objectseeker.metrics.image_set import ImageSet

Column = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]

MAX_MULTI_VIEW_BOXES = 2048  # of one target; more than a handful per view
MAX_MULTI_VIEW_BYTES = 2**26  # of all targets, neighbors included


@dataclass(frozen=True, slots=True, eq=False)
class PackedCertificates:
    """`columns` go to the page unchanged; the boxes of single_view_ and multi_view_ rows are only drawn."""

    columns: Mapping[str, Column]
    single_view: Singles
    multi_view: Singles
    truncated: Ints  # objects whose proofs from several views exceed what the page can hold


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Rows of one target: boxes that are sufficient on their own, and boxes that only prove it combined."""

    object: int
    label: int
    single_view: dict[str, Column]
    multi_view: dict[str, Column]
    truncated: bool

    @property
    def size(self) -> int:
        """Bytes of the multi-view rows, neighbors included."""
        rows = len(self.multi_view["mask"])
        return sum(column.nbytes for column in self.multi_view.values()) + rows * -(-rows // 8)

    def limited_to(self, limit: int) -> _Target:
        """Drop the multi-view rows if they take `limit` bytes or more."""
        if self.size < limit:
            return self
        none = {name: column[:0].copy() for name, column in self.multi_view.items()}
        return replace(self, multi_view=none, truncated=True)


def pack_certificates(image_set: ImageSet, rule: PruningRule, bound: Bound) -> PackedCertificates:
    """Pack the certificates of all objects of an image set, image by image, ignored objects included."""
    targets: list[_Target] = []
    total, objects, limit = 0, 0, MAX_MULTI_VIEW_BYTES
    for image in image_set.images:
        for target in _targets(image, image_set.vocabulary, rule, bound, objects):
            targets.append(target.limited_to(limit))
            total += targets[-1].size
            if total > MAX_MULTI_VIEW_BYTES:
                limit = _size_limit(targets)
                targets = [kept.limited_to(limit) for kept in targets]
                total = sum(kept.size for kept in targets)
        objects += len(image.truth)
    owner = np.array([target.object for target in targets], np.int64)
    single, single_boxes = _rows("single_view", ("mask", "share"), [target.single_view for target in targets])
    multi, multi_boxes = _rows("multi_view", ("mask", "share", "weight"), [target.multi_view for target in targets])
    links = [_links(target.multi_view["box"], rule.cluster_distance) for target in targets]
    truncated = np.array([target.truncated for target in targets], np.bool_)
    return PackedCertificates(
        columns=_object_columns(image_set)
        | single
        | multi
        | {
            "target_first": np.searchsorted(owner, np.arange(objects + 1)).astype(np.uint32),
            "target_label": np.array([target.label for target in targets], np.int32),
            "target_truncated": truncated.astype(np.uint8),
            "link_first": _first_rows(links),
            "link_bits": np.concatenate([np.empty(0, np.uint8), *links]),
        },
        single_view=single_boxes.astype(np.float32),
        multi_view=multi_boxes.astype(np.float32),
        truncated=np.unique(owner[truncated]),
    )


def _size_limit(targets: Sequence[_Target]) -> int:
    """Return the size at and above which targets are too large: half of MAX_MULTI_VIEW_BYTES stays free."""
    sizes = np.sort([target.size for target in targets])
    return int(sizes[np.searchsorted(np.cumsum(sizes), MAX_MULTI_VIEW_BYTES // 2, side="right")])


def _targets(
    image: ObservedImage, label_map: LabelMap, rule: PruningRule, bound: Bound, first: int
) -> Iterator[_Target]:
    """Yield the targets of one image, a block of objects at a time; `first` numbers its first object."""
    mask_of = image.observation.mask_index
    for block in row_blocks(len(image.truth), len(mask_of)):
        truth = image.truth[block]
        none = np.zeros(len(truth), np.bool_)
        proofs = build_proof_table(
            ImageSet.part([replace(image, truth=truth, ignore=none, crowd=none)], label_map), rule, bound
        )
        evidence = rule.evidence(proofs.score)
        for t, (n, label) in enumerate(zip(proofs.object.tolist(), proofs.label.tolist(), strict=True)):
            rows = proofs.rows_of(t)
            sufficient = _best_of_each_mask(proofs, mask_of, rows[evidence[rows] >= 1])
            combined = rows[(evidence[rows] > 0) & (evidence[rows] < 1)]
            truncated = len(combined) > MAX_MULTI_VIEW_BOXES
            combined = combined[:0] if truncated else combined
            yield _Target(
                object=first + block.start + n,
                label=label,
                single_view=_row_columns(proofs, image, sufficient),
                multi_view=_row_columns(proofs, image, combined) | {"weight": certified_weights(evidence[combined])},
                truncated=truncated,
            )


def _row_columns(proofs: ProofTable, image: ObservedImage, rows: Ints) -> dict[str, Column]:
    seen, box = image.observation, proofs.box[rows]
    return {
        "mask": seen.mask_index[box].astype(np.uint16),
        "share": proofs.share[rows],
        "box": seen.all_masked.xyxy[box],
    }


def _rows(kind: str, names: Sequence[str], parts: Sequence[Mapping[str, Column]]) -> tuple[dict[str, Column], Floats]:
    """Concatenate the rows of all targets, with the first row of each; and the boxes behind them."""
    columns = {f"{kind}_first": _first_rows([part["mask"] for part in parts])}
    for name in names:
        empty = np.empty(0, np.uint16 if name == "mask" else np.float64)
        columns[f"{kind}_{name}"] = np.concatenate([empty, *(part[name] for part in parts)])
    return columns, np.concatenate([np.empty((0, 4)), *(part["box"] for part in parts)])


def _first_rows(parts: Sequence[Column]) -> Column:
    return np.cumsum([0, *map(len, parts)]).astype(np.uint32)


def _object_columns(image_set: ImageSet) -> dict[str, Column]:
    box, image = image_set.truth.detections.xyxy, image_set.truth.image
    width, height = image_set.width[image], image_set.height[image]
    around = PatchPositions.of(box, width, height)
    visible = visible_area(box, width, height)
    return {
        "object_first": np.searchsorted(image, np.arange(len(image_set.images) + 1)).astype(np.uint32),
        "box": box.ravel(),
        "label": image_set.truth.detections.label.astype(np.uint16),
        "ignore": image_set.ignore.astype(np.uint8),
        "visible": (visible > 0).astype(np.uint8),
        "size": visible / (width * height),
        "around": np.concatenate([around.first, around.last, around.near_first, around.near_last], axis=1)
        .astype(np.int32)
        .ravel(),
    }


def _best_of_each_mask(proofs: ProofTable, mask_of: Ints, rows: Ints) -> Ints:
    """Select, for each mask, the row of one target with the largest share."""
    mask = mask_of[proofs.box[rows]]
    order = np.lexsort((-proofs.share[rows], mask))
    _, first = np.unique(mask[order], return_index=True)
    return np.asarray(rows[order[first]])


def _links(boxes: Floats, distance: float) -> Column:
    """Pack a target's neighbor matrix (`evidence.certain_neighbors`) as bits, each row on whole bytes."""
    blocks = row_blocks(len(boxes), len(boxes))
    near = (certain_neighbors(boxes[block], boxes, distance, block.start) for block in blocks)
    bits = [np.packbits(rows, axis=1, bitorder="little").ravel() for rows in near]
    return np.concatenate([np.empty(0, np.uint8), *bits])
