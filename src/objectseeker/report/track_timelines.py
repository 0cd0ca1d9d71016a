"""The sequences of a report: frames and, per track, where it is certified and its longest gap.

All of it is computed here, for the patch that the report is written with, anywhere in the image; the page only draws
it. `metrics.track_certificates`, which `evaluate` uses too, defines windows and uncertified times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, Rolling
from objectseeker.core.rules import PruningRule
from objectseeker.core.temporal import UNBOUNDED_MOTION, earliest_uncertified_start
from objectseeker.core.threats import ThreatModel
from objectseeker.metrics.track_certificates import (
    MAX_MOTIONS,
    WINDOWS,
    SequenceTally,
    TrackTally,
    longest_uncertified,
    tally_sequences,
    window_bounds,
)
from objectseeker.report.packed_certificates import Column
from objectseeker.text import redact_path

NO_BOX, CERTIFIED_FRAME, CERTIFIED_WINDOW, UNCERTIFIED = range(4)  # states of a track in a frame


def track_timelines(
    images: Sequence[ObservedImage], label_map: LabelMap, rule: PruningRule, threat: ThreatModel, masks: Recipe | None
) -> tuple[dict[str, Any] | None, dict[str, Column]]:
    """Compute what the page plays, None without sequences, and the column `track`.

    The column holds the row of an object's track in its sequence, -1 for none.
    """
    sequences = tally_sequences(images, label_map, rule, threat, lambda image: [image.observation])
    if not sequences:
        return None, {}
    first = np.cumsum([0, *(len(image.truth) for image in images)])
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
    words = f"{frames} frame{'' if frames == 1 else 's'}"
    return words if fps is None else f"{words}, {frames / fps:.2f} s"
