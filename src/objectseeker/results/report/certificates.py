"""What a page needs to certify: the little that is left of an object when patch, where and T are still open.

Per object: where it lies among the integer patch positions (`threats.Surroundings`). Per target, an object as one of
the detector's labels that stand for its class: the masked boxes that prove it and decide alone (mask and share), and
those that only prove it together (mask, weight, share, and who is whose neighbour).

Why boxes that decide alone are not among the others: views only have to add up at positions that escape every mask
which decides alone (`ObjectProof.certifies`). The mask of a box that decides alone removes none of those positions, so
that box adds nothing there, and no star centred on it counts there. For the same reason one box per mask is enough: the
one with the largest share proves the object up to the highest T. Every other box with any evidence is kept, even if its
weight is rounded down to 0: it may still be the centre of a star.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Floats, Ints, blocks
from objectseeker.core.certification import visible_area
from objectseeker.core.evidence import linked, weights
from objectseeker.core.iou_variant import AnyRule, IouRule
from objectseeker.core.threats import Surroundings
from objectseeker.evaluation.certified import Proofs, evidence_of, find_proofs
from objectseeker.evaluation.scene import Scene

Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """`columns` go to the page as they are; the boxes behind the rows of alone_ and together_ are only for drawing."""

    columns: Mapping[str, Column]
    alone: Floats
    together: Floats


def pack(scene: Scene, rule: AnyRule, bound: Bound) -> Packed:
    """The certificates of all objects of a scene, the ignored ones included, image by image."""
    everything = [replace(image, ignore=np.zeros_like(image.ignore)) for image in scene.images]
    proofs = find_proofs(Scene.of(everything, scene.vocabulary), rule, bound)
    mask, boxes = _behind(proofs)
    evidence = evidence_of(rule, proofs.score)
    alone = _best_of_each_mask(proofs, mask, np.flatnonzero(evidence >= 1))
    together = np.flatnonzero((evidence > 0) & (evidence < 1))
    targets = np.arange(len(proofs.first))
    first_together = np.searchsorted(proofs.target[together], targets)
    distance = 0.0 if isinstance(rule, IouRule) else rule.cluster_distance
    links, first_link = _links(boxes[together], first_together, distance)
    return Packed(
        columns=_objects(scene)
        | {
            "target_first": np.searchsorted(proofs.object, np.arange(len(scene.truth) + 1)).astype(np.uint32),
            "target_label": proofs.label.astype(np.int32),
            "alone_first": np.searchsorted(proofs.target[alone], targets).astype(np.uint32),
            "alone_mask": mask[alone].astype(np.uint16),
            "alone_share": proofs.share[alone],
            "together_first": first_together.astype(np.uint32),
            "together_mask": mask[together].astype(np.uint16),
            "together_share": proofs.share[together],
            "together_weight": weights(evidence[together]),
            "link_first": first_link,
            "link_bits": links,
        },
        alone=boxes[alone],
        together=boxes[together],
    )


def _objects(scene: Scene) -> dict[str, Column]:
    box, image = scene.truth.detections.xyxy, scene.truth.image
    width, height = scene.width[image], scene.height[image]
    around = Surroundings.of(box, width, height)
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


def _behind(proofs: Proofs) -> tuple[Ints, Floats]:
    """Mask and coordinates of the masked box of every row."""
    image = proofs.scene.truth.image[proofs.object[proofs.target]]
    observations = [image.observation for image in proofs.scene.images]
    start = np.cumsum([0, *(len(one.boxes) for one in observations)])[image] + proofs.box
    mask = np.concatenate([one.mask_of for one in observations])
    xyxy = np.concatenate([one.boxes.xyxy for one in observations])
    return mask[start], xyxy[start]


def _best_of_each_mask(proofs: Proofs, mask: Ints, rows: Ints) -> Ints:
    """Of the rows of each target and mask, the one with the largest share; still target by target."""
    rows = rows[np.lexsort((-proofs.share[rows], mask[rows], proofs.target[rows]))]
    key = np.stack([proofs.target[rows], mask[rows]])
    new = np.ones(len(rows), np.bool_)
    new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    return np.asarray(rows[new])


def _links(boxes: Floats, first: Ints, distance: float) -> tuple[Column, Column]:
    """Per target, the rows of its neighbour matrix as bits, each row on whole bytes; and where each target begins.

    Neighbours as `evidence.linked` has them.
    """
    parts = [np.empty(0, np.uint8)]
    for start, end in pairwise(first.tolist()):
        mine = boxes[start:end]
        near = (linked(mine[some], mine, distance, some.start) for some in blocks(len(mine), len(mine)))
        bits = [np.packbits(rows, axis=1, bitorder="little").ravel() for rows in near]
        parts.append(np.concatenate([parts[0], *bits]))
    ends = np.cumsum([len(part) for part in parts])
    return np.concatenate(parts), ends.astype(np.uint32)
