"""The sequences of a report: their frames, and for every track where it is certified and how long it can be hidden.

All of it is computed here, for the patch that the report is written with, anywhere in the image: the page only draws
it. What windows and hidden times are is said in `evaluation.over_time`, which `evaluate` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, Rolling
from objectseeker.core.temporal import UNBOUNDED_MOTION, FramePositions, earliest_uncertified_start
from objectseeker.metrics.settings import ThreatModel, threshold_of
from objectseeker.metrics.track_certificates import MOVES, WINDOWS, longest_hidden, tracked_objects, windows_of
from objectseeker.report.packed_certificates import Column
from objectseeker.text import redact_path

NO_BOX, ALONE, HELD, HIDDEN = range(4)  # what a frame is for a track


@dataclass(slots=True, eq=False)
class _Track:
    """A track while frames pass by."""

    label: int
    seen: dict[int, FramePositions] = field(default_factory=dict)  # by frame
    objects: list[int] = field(default_factory=list)  # of the report


@dataclass(slots=True, eq=False)
class _Frames:
    """A sequence while frames pass by."""

    fps: float | None
    images: dict[int, int] = field(default_factory=dict)  # by frame
    sizes: set[tuple[int, int]] = field(default_factory=set)
    tracks: dict[int, _Track] = field(default_factory=dict)


def sequences_of(
    images: Sequence[ObservedImage], vocabulary: LabelMap, rule: AnyRule, threat: ThreatModel, masks: Recipe | None
) -> tuple[dict[str, Any] | None, dict[str, Column]]:
    """What the page plays, None without sequences; and the column `track`: its row in its sequence, -1 for none."""
    found: dict[str, _Frames] = {}
    objects = 0
    for place, image in enumerate(images):
        if image.frame is not None:
            sequence = found.setdefault(image.frame.sequence, _Frames(image.frame.fps))
            sequence.images[image.frame.number] = place
            sequence.sizes.add((image.observation.width, image.observation.height))
            _follow(sequence, image, vocabulary, rule, threat, objects)
        objects += len(image.truth)
    if not found:
        return None, {}
    rolling = masks.frames if isinstance(masks, Rolling) else None
    windows = (1, *WINDOWS) if rolling is None else (rolling,)
    of_object = np.full(objects, -1, np.int32)
    for sequence in found.values():
        for row, track in enumerate(sequence.tracks.values()):
            of_object[track.objects] = row
    shown = {
        "area": threat.area,
        "aspect": threat.aspect,
        "threshold": threshold_of(rule, threat.threshold),
        "rolling": rolling,
        "moves": MOVES,
        "windows": windows,
        "sequences": [_shown(name, sequence, windows) for name, sequence in found.items()],
    }
    return shown, {"track": of_object}


def _follow(
    sequence: _Frames, image: ObservedImage, vocabulary: LabelMap, rule: AnyRule, threat: ThreatModel, start: int
) -> None:
    """Add one frame to its tracks; `start` is its first object."""
    assert image.frame is not None
    for n, (seen,) in tracked_objects(image, vocabulary, rule, threat, threat.anywhere(), [image.observation]):
        track = sequence.tracks.setdefault(int(image.track[n]), _Track(int(image.truth.label[n])))
        track.seen[image.frame.number] = seen
        track.objects.append(start + n)


def _shown(name: str, sequence: _Frames, windows: Sequence[int]) -> dict[str, Any]:
    frames = sorted(sequence.images)
    one_size = len(sequence.sizes) == 1  # where a patch moves to is said in pixels of one size
    return {
        "name": redact_path(name),
        "fps": sequence.fps,
        "frames": frames,
        "images": [sequence.images[number] for number in frames],
        "one_size": one_size,
        "tracks": [
            {
                "track": str(number),  # of any length, to the last digit
                "label": track.label,
                "ways": list(_ways(track, sequence.fps, windows)) if one_size else [],
            }
            for number, track in sequence.tracks.items()
        ],
    }


def _ways(track: _Track, fps: float | None, windows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """For every move of the patch: the longest hidden time, where it is, and for every window what each frame is."""
    frames = sorted(track.seen)  # those between are blind
    at = np.array(frames)
    line = [track.seen[number] for number in frames]
    alone = np.array([instant.certified for instant in line])
    for moves in MOVES:
        earliest = np.array(
            earliest_uncertified_start(line, UNBOUNDED_MOTION if moves is None else moves, numbers=frames)
        )
        begin, end = longest_hidden(earliest, at)
        yield {
            "hidden": end - begin,
            "words": _time(end - begin, fps),
            "stretch": [begin, end - 1],
            "states": [_runs(_states(earliest, at, alone, length), at) for length in windows],
        }


def _states(earliest: Ints, at: Ints, alone: Bools, frames: int) -> Ints:
    """What each frame with a box is. HELD: some window of so many frames has it, and all that have it are certified."""
    begins, ends = windows_of(at, frames)
    open_ones = earliest[ends] <= begins
    held = _within(begins, ends, len(at)) & ~_within(begins[open_ones], ends[open_ones], len(at))
    return np.select([alone, held], [ALONE, HELD], HIDDEN)


def _within(begins: Ints, ends: Ints, length: int) -> Bools:
    """Which frames lie in one of the windows."""
    steps = np.zeros(length + 1, np.int64)
    np.add.at(steps, begins, 1)
    np.add.at(steps, ends + 1, -1)
    return np.asarray(np.cumsum(steps)[:-1] > 0)


def _runs(states: Ints, at: Ints) -> list[list[int]]:
    """Frames of one state after one another: the state, the first and the last of them. Without a box there is none."""
    turns = np.flatnonzero((np.diff(states) != 0) | (np.diff(at) > 1)) + 1
    return [
        [int(states[begin]), int(at[begin]), int(at[end - 1])] for begin, end in pairwise([0, *turns.tolist(), len(at)])
    ]


def _time(frames: int, fps: float | None) -> str:
    words = f"{frames} frame{'' if frames == 1 else 's'}"
    return words if fps is None else f"{words}, {frames / fps:.2f} s"
