"""The sequences of a report: frames and, per track, where it is certified and its longest gap.

All of it is computed here, for the patch that the report is written with, anywhere in the image; the page only draws
it. `metrics.track_certificates`, which `evaluate` uses too, defines windows and uncertified times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, Rolling
from objectseeker.core.rules import PruningRule
from objectseeker.core.temporal import UNBOUNDED_MOTION, FramePositions, earliest_uncertified_start
from objectseeker.core.threats import ThreatModel
from objectseeker.metrics.track_certificates import MOVES, WINDOWS, longest_hidden, tracked_objects, windows_of
from objectseeker.report.packed_certificates import Column
from objectseeker.text import redact_path

NO_BOX, CERTIFIED_FRAME, CERTIFIED_WINDOW, UNCERTIFIED = range(4)  # states of a track in a frame


@dataclass(slots=True, eq=False)
class _ReportTrack:
    """A track while its frames are read."""

    label: int
    positions: dict[int, FramePositions] = field(default_factory=dict)  # by frame number
    objects: list[int] = field(default_factory=list)  # numbers in the report


@dataclass(slots=True, eq=False)
class _SequenceState:
    """A sequence while its frames are read."""

    fps: float | None
    images: dict[int, int] = field(default_factory=dict)  # by frame number
    sizes: set[tuple[int, int]] = field(default_factory=set)
    tracks: dict[int, _ReportTrack] = field(default_factory=dict)


def track_timelines(
    images: Sequence[ObservedImage], label_map: LabelMap, rule: PruningRule, threat: ThreatModel, masks: Recipe | None
) -> tuple[dict[str, Any] | None, dict[str, Column]]:
    """Compute what the page plays, None without sequences, and the column `track`.

    The column holds the row of an object's track in its sequence, -1 for none.
    """
    sequences: dict[str, _SequenceState] = {}
    objects = 0
    for number, image in enumerate(images):
        if image.frame is not None:
            sequence = sequences.setdefault(image.frame.sequence, _SequenceState(image.frame.fps))
            sequence.images[image.frame.number] = number
            sequence.sizes.add((image.observation.width, image.observation.height))
            _add_frame(sequence, image, label_map, rule, threat, objects)
        objects += len(image.truth)
    if not sequences:
        return None, {}
    rolling = masks.frames if isinstance(masks, Rolling) else None
    windows = (1, *WINDOWS) if rolling is None else (rolling,)
    row_of_object = np.full(objects, -1, np.int32)
    for sequence in sequences.values():
        for row, track in enumerate(sequence.tracks.values()):
            row_of_object[track.objects] = row
    playback = {
        "area": threat.area,
        "aspect": threat.aspect,
        "certification_threshold": rule.resolve_threshold(threat.certification_threshold),
        "rolling": rolling,
        "max_motions": MOVES,
        "windows": windows,
        "sequences": [_sequence_dict(name, sequence, windows) for name, sequence in sequences.items()],
    }
    return playback, {"track": row_of_object}


def _add_frame(
    sequence: _SequenceState,
    image: ObservedImage,
    label_map: LabelMap,
    rule: PruningRule,
    threat: ThreatModel,
    first: int,
) -> None:
    """Add one frame to its tracks; `first` is the number of its first object."""
    assert image.frame is not None
    for n, (positions,) in tracked_objects(image, label_map, rule, threat, threat.anywhere(), [image.observation]):
        track = sequence.tracks.setdefault(int(image.track[n]), _ReportTrack(int(image.truth.label[n])))
        track.positions[image.frame.number] = positions
        track.objects.append(first + n)


def _sequence_dict(name: str, sequence: _SequenceState, windows: Sequence[int]) -> dict[str, Any]:
    frames = sorted(sequence.images)
    one_size = len(sequence.sizes) == 1  # patch motion is measured in pixels of one frame size
    return {
        "name": redact_path(name),
        "fps": sequence.fps,
        "frames": frames,
        "images": [sequence.images[number] for number in frames],
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


def _timelines(track: _ReportTrack, fps: float | None, windows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield, per patch motion, the longest uncertified time and the state of each frame per window."""
    frames = sorted(track.positions)  # frames in between are unobserved
    numbers = np.array(frames)
    line = [track.positions[number] for number in frames]
    certified = np.array([positions.certified for positions in line])
    for max_motion in MOVES:
        motion = UNBOUNDED_MOTION if max_motion is None else max_motion
        earliest = np.array(earliest_uncertified_start(line, motion, numbers=frames))
        begin, end = longest_hidden(earliest, numbers)
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
    begins, ends = windows_of(numbers, frames)
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
