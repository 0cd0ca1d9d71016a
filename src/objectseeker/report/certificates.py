"""The columns that the page certifies from, and the timelines that it plays.

Certificates are columns from which the page decides every verdict, for any patch, location and T.

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

Output boxes have columns of the same names (`pack_support`): the masks that support each are sufficient on their own,
so the page decides by the same functions whether a patch can have made them. That does not depend on T, so the shares
are above every T.

Of sequences the page draws, per track, where it is certified and its longest gap. All of this is computed here, for the
patch that the report is written with, anywhere in the image; `metrics.track_certificates`, which `evaluate` uses too,
defines windows and uncertified times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Bools, Floats, Ints, row_blocks
from objectseeker.core.certification import visible_area
from objectseeker.core.evidence import certain_neighbors, certified_weights
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import Recipe, Rolling
from objectseeker.core.rules import PruningRule
from objectseeker.core.temporal import UNBOUNDED_MOTION, earliest_uncertified_start
from objectseeker.core.threats import PatchPositions, ThreatModel
from objectseeker.metrics.certified import build_proof_table
from objectseeker.metrics.image_set import ImageSet, with_objects
from objectseeker.metrics.track_certificates import (
    MAX_MOTIONS,
    WINDOWS,
    SequenceTally,
    TrackTally,
    longest_uncertified,
    tally_sequences,
    window_bounds,
)
from objectseeker.text import plural, redact_path

Column = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]

MAX_MULTI_VIEW_BOXES = 2048  # of one target; more than a handful per view
MAX_MULTI_VIEW_BYTES = 2**26  # of all targets, neighbors included

ABOVE_EVERY_T = 2.0  # added to the scores of supporting boxes: T is at most 1

NO_BOX, CERTIFIED_FRAME, CERTIFIED_WINDOW, UNCERTIFIED = range(4)  # states of a track in a frame


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
        for target in _targets(image, image_set.label_map, rule, bound, objects):
            targets.append(target.limited_to(limit))
            total += targets[-1].size
            if total > MAX_MULTI_VIEW_BYTES:
                limit = _size_limit(targets)
                targets = [kept.limited_to(limit) for kept in targets]
                total = sum(kept.size for kept in targets)
        objects += len(image.ground_truth)
    return _packed(image_set, targets, rule.cluster_distance)


def pack_support(image_set: ImageSet, rule: PruningRule) -> PackedCertificates:
    """Pack what supports each output box, which are the objects of the image set.

    `core.fabrication` defines support.
    """
    targets: list[_Target] = []
    objects = 0
    for image in image_set.images:
        seen, outputs = image.observation, image.ground_truth
        masked = seen.all_masked
        for block in row_blocks(len(outputs), len(masked)):
            supports = rule.support_criteria.supports(seen, outputs[block])
            for n, label in enumerate(outputs.label[block].tolist()):
                rows = _best_of_each_mask(seen.mask_index, masked.score, np.flatnonzero(supports[:, n]))
                single = _row_columns(seen, rows, ABOVE_EVERY_T + masked.score[rows])
                none = {name: column[:0] for name, column in single.items()} | {"weight": np.empty(0)}
                targets.append(_Target(objects + block.start + n, label, single, none, truncated=False))
        objects += len(outputs)
    packed = _packed(image_set, targets, rule.cluster_distance)
    share = packed.columns["single_view_share"].astype(np.float32)  # only ranks views: half the size is enough
    return replace(packed, columns={**packed.columns, "single_view_share": share})


def _packed(image_set: ImageSet, targets: Sequence[_Target], distance: float) -> PackedCertificates:
    objects = len(image_set.ground_truth)
    owner = np.array([target.object for target in targets], np.int64)
    single, single_boxes = _rows("single_view", ("mask", "share"), [target.single_view for target in targets])
    multi, multi_boxes = _rows("multi_view", ("mask", "share", "weight"), [target.multi_view for target in targets])
    links = [_links(target.multi_view["box"], distance) for target in targets]
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
    for block in row_blocks(len(image.ground_truth), len(mask_of)):
        objects = image.ground_truth[block]
        proofs = build_proof_table(ImageSet.from_part([with_objects(image, objects)], label_map), rule, bound)
        evidence = rule.evidence(proofs.score)
        mask = mask_of[proofs.box]
        for t, (n, label) in enumerate(zip(proofs.object.tolist(), proofs.label.tolist(), strict=True)):
            rows = proofs.rows_of(t)
            sufficient = _best_of_each_mask(mask, proofs.share, rows[evidence[rows] >= 1])
            combined = rows[(evidence[rows] > 0) & (evidence[rows] < 1)]
            truncated = len(combined) > MAX_MULTI_VIEW_BOXES
            combined = combined[:0] if truncated else combined
            yield _Target(
                object=first + block.start + n,
                label=label,
                single_view=_row_columns(image.observation, proofs.box[sufficient], proofs.share[sufficient]),
                multi_view=_row_columns(image.observation, proofs.box[combined], proofs.share[combined])
                | {"weight": certified_weights(evidence[combined])},
                truncated=truncated,
            )


def _row_columns(seen: Observation, box: Ints, share: Floats) -> dict[str, Column]:
    return {
        "mask": seen.mask_index[box].astype(np.uint16),
        "share": share,
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
    box, image = image_set.ground_truth.detections.xyxy, image_set.ground_truth.image
    width, height = image_set.width[image], image_set.height[image]
    around = PatchPositions.of(box, width, height)
    visible = visible_area(box, width, height)
    return {
        "object_first": np.searchsorted(image, np.arange(len(image_set.images) + 1)).astype(np.uint32),
        "box": box.ravel(),
        "label": image_set.ground_truth.detections.label.astype(np.uint16),
        "ignore": image_set.ignore.astype(np.uint8),
        "visible": (visible > 0).astype(np.uint8),
        "size": visible / (width * height),
        "around": np.concatenate([around.first, around.last, around.near_first, around.near_last], axis=1)
        .astype(np.int32)
        .ravel(),
    }


def _best_of_each_mask(mask: Ints, share: Floats, rows: Ints) -> Ints:
    """Select, for each mask, the row with the largest share; `mask` and `share` cover all rows."""
    order = np.lexsort((-share[rows], mask[rows]))
    _, first = np.unique(mask[rows][order], return_index=True)
    return np.asarray(rows[order[first]])


def _links(boxes: Floats, distance: float) -> Column:
    """Pack a target's neighbor matrix (`evidence.certain_neighbors`) as bits, each row on whole bytes."""
    blocks = row_blocks(len(boxes), len(boxes))
    near = (certain_neighbors(boxes[block], boxes, distance, block.start) for block in blocks)
    bits = [np.packbits(rows, axis=1, bitorder="little").ravel() for rows in near]
    return np.concatenate([np.empty(0, np.uint8), *bits])


def track_timelines(
    images: Sequence[ObservedImage], label_map: LabelMap, rule: PruningRule, threat: ThreatModel, masks: Recipe | None
) -> tuple[dict[str, Any] | None, dict[str, Column]]:
    """Compute what the page plays, None without sequences, and the column `track`.

    The column holds the row of an object's track in its sequence, -1 for none.
    """
    sequences = tally_sequences(images, label_map, rule, threat, lambda image: [image.observation])
    if not sequences:
        return None, {}
    first = np.cumsum([0, *(len(image.ground_truth) for image in images)])
    row_of_object = np.full(first[-1], -1, np.int32)
    frames: dict[str, dict[int, int]] = {name: {} for name in sequences}  # images by frame number
    for number, image in enumerate(images):
        if image.frame is not None:
            frames[image.frame.sequence][image.frame.number] = number
            for row, (key, track) in enumerate(sequences[image.frame.sequence].tracks.items()):
                if image.frame.number in track.positions:
                    row_of_object[first[number] + np.flatnonzero((image.track == key) & ~image.ignore)] = row
    rolling = masks.frames if isinstance(masks, Rolling) else None
    windows = (1, *WINDOWS) if rolling is None else (rolling,)
    playback = {
        "area": threat.area,
        "aspect": threat.aspect,
        "certification_threshold": rule.resolve_threshold(threat.certification_threshold),
        "rolling": rolling,
        "max_motions": MAX_MOTIONS,
        "windows": windows,
        "sequences": [_sequence_dict(name, sequence, frames[name], windows) for name, sequence in sequences.items()],
    }
    return playback, {"track": row_of_object}


def _sequence_dict(
    name: str, sequence: SequenceTally, image_of: dict[int, int], windows: Sequence[int]
) -> dict[str, Any]:
    frames = sorted(image_of)
    one_size = len(sequence.sizes) == 1  # patch motion is measured in pixels of one frame size
    return {
        "name": redact_path(name),
        "fps": sequence.fps,
        "frames": frames,
        "images": [image_of[number] for number in frames],
        "one_size": one_size,
        "tracks": [
            {
                "track": str(number),  # a string: JavaScript would round a long number
                "label": track.label,
                "motions": list(_timelines(track, sequence.fps, windows)) if one_size else [],
            }
            for number, track in sequence.tracks.items()
        ],
    }


def _timelines(track: TrackTally, fps: float | None, windows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield, per patch motion, the longest uncertified time and the state of each frame per window."""
    frames = sorted(track.positions)  # frames in between are unobserved
    numbers = np.array(frames)
    line = [track.positions[number][0] for number in frames]
    certified = np.array([positions.certified for positions in line])
    for max_motion in MAX_MOTIONS:
        motion = UNBOUNDED_MOTION if max_motion is None else max_motion
        earliest = np.array(earliest_uncertified_start(line, motion, numbers=frames))
        begin, end = longest_uncertified(earliest, numbers)
        yield {
            "uncertified": end - begin,
            "duration": _duration(end - begin, fps),
            "longest": [begin, end - 1],
            "states": [_runs(_certification_states(earliest, numbers, certified, n), numbers) for n in windows],
        }


def _certification_states(earliest: Ints, numbers: Ints, certified: Bools, frames: int) -> Ints:
    """Compute the state of each frame that has a box.

    CERTIFIED_WINDOW: at least one window of `frames` frames contains the frame, and every such window is certified.
    """
    begins, ends = window_bounds(numbers, frames)
    uncertified = earliest[ends] <= begins
    in_any = _within(begins, ends, len(numbers))
    in_uncertified = _within(begins[uncertified], ends[uncertified], len(numbers))
    return np.select([certified, in_any & ~in_uncertified], [CERTIFIED_FRAME, CERTIFIED_WINDOW], UNCERTIFIED)


def _within(begins: Ints, ends: Ints, length: int) -> Bools:
    """Mark the frames that are in one of the windows."""
    steps = np.zeros(length + 1, np.int64)
    np.add.at(steps, begins, 1)
    np.add.at(steps, ends + 1, -1)
    return np.asarray(np.cumsum(steps)[:-1] > 0)


def _runs(states: Ints, numbers: Ints) -> list[list[int]]:
    """Group consecutive frames of one state: state, first, last. Frames without a box are in no group."""
    turns = np.flatnonzero((np.diff(states) != 0) | (np.diff(numbers) > 1)) + 1
    return [
        [int(states[begin]), int(numbers[begin]), int(numbers[end - 1])]
        for begin, end in pairwise([0, *turns.tolist(), len(numbers)])
    ]


def _duration(frames: int, fps: float | None) -> str:
    return plural(frames, "frame") + ("" if fps is None else f", {frames / fps:.2f} s")
