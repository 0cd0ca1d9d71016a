"""Certificates over time, of all tracks of a run: how often each object of a sequence is surely reported.

A window are n frames after one another within a track, the first of which has a box of the object. It is certified if
the object is surely reported in at least m of them (`core.windows`), a track if all of its windows are. A frame without
a box, one that is ignored and one that was not observed prove nothing, and the patch moves on meanwhile.

Of a run with rolling masks these are certificates of it: of streams that show each frame the share that it has in the
run (`core.rolling.of_frame`). A run with all masks also says what rolling ones would give: an estimate, since the same
views, grouped otherwise, may have other last bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import NO_TRACK, Observation, ObservedImage
from objectseeker.core.recipes import Pairs, Recipe, Rolling, Share, recipe_for_frame
from objectseeker.core.rules import PruningRule
from objectseeker.core.temporal import (
    UNBOUNDED_MOTION,
    FramePositions,
    earliest_uncertified_start,
    frame_positions,
    intersect_alternatives,
)
from objectseeker.core.threats import Patch, PatchLocation, ThreatModel
from objectseeker.errors import ObjectSeekerError, require_count

WINDOWS = (4, 8, 16)
ESTIMATED = " *"  # behind masks in tables
MOVES: tuple[int | None, ...] = (0, 2, 8, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of tracks: `times` reports in every window of so many frames, however the patch moves.

    `moves` are the pixels a frame along each axis, None for a patch that jumps anywhere. Without `windows` they are
    those of the rolling masks, else WINDOWS.
    """

    windows: tuple[int, ...] | None = None
    moves: tuple[int | None, ...] = MOVES
    times: int = 1
    location: PatchLocation = "anywhere"

    def __post_init__(self) -> None:
        for frames in self.windows or ():
            require_count(frames, "window")
        require_count(self.times, "times")
        for moves in self.moves:
            if moves is not None and (type(moves) is not int or moves < 0):
                raise ObjectSeekerError(f"moves must be whole pixels a frame of at least 0, got {moves!r}")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to show masks over time; `estimated` if the run shows others, of which these are some."""

    masks: Recipe
    windows: tuple[int, ...]
    passes: int  # a frame takes at most
    estimated: bool


@dataclass(frozen=True, slots=True, eq=False)
class TrackRow:
    """One track, one way to show masks, one patch."""

    sequence: str
    track: int
    name: str
    fps: float | None
    way: Way
    moves: int | None
    first: int  # frame
    last: int
    boxes: int  # frames in which the object has one
    certified_frames: int  # of these, alone
    windows: dict[int, tuple[int, int]]  # by frames: certified ones, all
    hidden: int  # the longest time in frames that the attacker can keep reports below what is asked

    @property
    def seconds(self) -> float | None:
        return None if self.fps is None else self.hidden / self.fps

    def to_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "track": self.track,
            "class": self.name,
            "fps": self.fps,
            "masks": str(self.way.masks),
            "moves": self.moves,
            "first_frame": self.first,
            "last_frame": self.last,
            "boxes": self.boxes,
            "certified_frames": self.certified_frames,
            "windows": {
                str(frames): {"certified": certified, "all": every}
                for frames, (certified, every) in self.windows.items()
            },
            "longest_hidden_frames": self.hidden,
            "longest_hidden_seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """What is certified over time: one row per track, way and patch, and the sums of them."""

    asked: Asked
    patch: Patch
    sequences: int
    tracks: tuple[TrackRow, ...]
    several_sizes: tuple[str, ...] = ()  # sequences that are left out for it
    unknown: int = 0  # tracks that are left out because the detector does not know their class

    def rows(self) -> list[dict[str, Any]]:
        """All tracks together, one row per way to show masks, window and patch; shares are percentages."""
        groups: dict[tuple[Way, int | None], list[TrackRow]] = {}
        for row in self.tracks:
            groups.setdefault((row.way, row.moves), []).append(row)
        return [
            self._row(way, frames, moves, tracks) for (way, moves), tracks in groups.items() for frames in way.windows
        ]

    def _row(self, way: Way, frames: int, moves: int | None, tracks: Sequence[TrackRow]) -> dict[str, Any]:
        counts = [track.windows[frames] for track in tracks if track.windows[frames][1]]
        worst = max(tracks, key=lambda track: (track.hidden, track.seconds or 0))
        certified, every = (sum(count) for count in zip(*counts, strict=True)) if counts else (0, 0)
        boxes = sum(track.boxes for track in tracks)
        return {
            "masks": str(way.masks),
            "estimated": way.estimated,
            "passes": way.passes,
            "moves": moves,
            "frames": frames,
            "times": self.asked.times,
            "certified_frames": _share(sum(track.certified_frames for track in tracks), boxes),
            "windows": every,
            "certified_windows": _share(certified, every),
            "tracks": len(counts),
            "certified_tracks": sum(one == all_of_it for one, all_of_it in counts),
            "longest_hidden_frames": worst.hidden,
            "longest_hidden_seconds": worst.seconds,
        }

    def remarks(self) -> list[str]:
        """What a reader of the numbers must know."""
        lengths = {(row.sequence, row.track): row.last - row.first + 1 for row in self.tracks}
        longest = max((frames for row in self.tracks for frames in row.way.windows), default=0)
        short = sum(length < longest for length in lengths.values())
        times = "once" if self.asked.times == 1 else f"{self.asked.times} times"
        said = [
            f"sequences: {self.sequences}, tracks: {len(lengths)}; a patch of {self.patch.area:.2%}, aspect "
            f"{self.patch.aspect:g}, {self.patch.location}; certified: reported at least {times} in every window",
            "moves: pixels of the image a frame, at most, along each axis; hidden: the longest time of all tracks",
        ]
        if any(isinstance(row.way.masks, Rolling) for row in self.tracks):
            said.append(
                "rolling masks: about streams that show frame t share t mod n, t its number in the run: detect does so "
                "without --stride, and not with live sources"
            )
        if self.several_sizes:
            said.append(
                f"sequences left out because their frames have several sizes: {len(self.several_sizes)}, the first "
                f"{self.several_sizes[0][:80]!r}; where a patch moves to is said in pixels of one size"
            )
        if self.unknown:
            said.append(f"tracks left out because the detector does not know their class: {self.unknown}")
        if short:
            said.append(f"tracks that are shorter than the longest window: {short}")
        if any(row.way.estimated for row in self.tracks):
            said.append("* estimated from a run that shows all masks: observe with --masks rolling:N:... to certify")
        return said

    def to_dict(self) -> dict[str, Any]:
        return {
            "patch_area": self.patch.area,
            "patch_aspect": self.patch.aspect,
            "location": self.patch.location,
            "times": self.asked.times,
            "sequences": self.sequences,
            "several_sizes": list(self.several_sizes),
            "tracks_of_unknown_classes": self.unknown,
            "rows": self.rows(),
            "tracks": [row.to_dict() for row in self.tracks],
        }


@dataclass(slots=True, eq=False)
class _Track:
    """A track while frames pass by."""

    sequence: str
    number: int
    label: int
    fps: float | None
    seen: dict[int, list[FramePositions]]  # by frame, one for each way


def over_time(
    images: Iterable[ObservedImage],
    vocabulary: LabelMap,
    masks: Recipe,
    rule: PruningRule,
    threat: ThreatModel,
    asked: Asked | None = None,
) -> OverTime | None:
    """What is certified over time of a run that was observed with `masks`; None if it has no tracks.

    Sequences whose frames have several sizes are left out.

    Guarantee: of a way that is not estimated, what `core.windows.first_unreported` states, for every certified window.
    """
    asked = asked or Asked()
    patch = replace(threat.anywhere(), location=asked.location)
    ways: tuple[Way, ...] = ()
    tracks: dict[tuple[str, int], _Track] = {}
    annotated: set[tuple[str, int]] = set()
    sizes: dict[str, set[tuple[int, int]]] = {}
    for image in images:
        if image.frame is None:
            continue
        size = image.observation.width, image.observation.height
        ways = tuple(_most(way, size) for way in ways or _ways(masks, asked))
        sizes.setdefault(image.frame.sequence, set()).add(size)
        _require_share(image, masks)
        annotated |= {(image.frame.sequence, number) for number in image.track[_counted(image)].tolist()}
        shown = [_shown(image, way) for way in ways]
        for n, found in tracked_objects(image, vocabulary, rule, threat, patch, shown):
            key = image.frame.sequence, int(image.track[n])
            if key not in tracks:
                tracks[key] = _Track(*key, int(image.truth.label[n]), image.frame.fps, {})
            tracks[key].seen[image.frame.number] = found
    if not tracks:
        return None
    names = vocabulary.dataset_names
    several = tuple(name for name, of_sequence in sizes.items() if len(of_sequence) > 1)
    of_one_size = [track for track in tracks.values() if track.sequence not in several]
    rows = [row for track in of_one_size for row in _rows(track, names[track.label], ways, asked)]
    unknown = len(annotated - tracks.keys())
    return OverTime(asked, patch, len(sizes) - len(several), tuple(rows), several, unknown)


def _require_share(image: ObservedImage, masks: Recipe) -> None:
    """A frame that was shown another share than its number says is not what any stream shows."""
    assert image.frame is not None
    shown = image.observation
    if isinstance(masks, Rolling) and shown.masks != masks.recipe_for_frame(image.frame.number).masks(
        shown.width, shown.height
    ):
        raise ObjectSeekerError(f"{image.id[:80]!r} was observed under another share of {masks} than its number says")


def _ways(masks: Recipe, asked: Asked) -> Iterator[Way]:
    if isinstance(masks, Rolling):
        yield Way(masks, asked.windows or (masks.frames,), 0, estimated=False)
        return
    windows = asked.windows or WINDOWS
    yield Way(masks, windows, 0, estimated=False)
    if not isinstance(masks, Pairs | Share):
        for frames in windows:
            if frames > 1:
                yield Way(Rolling(masks, frames), (frames,), 0, estimated=True)


def _most(way: Way, size: tuple[int, int]) -> Way:
    return replace(way, passes=max(way.passes, way.masks.forward_passes(*size)))


def _shown(image: ObservedImage, way: Way) -> Observation:
    """What the frame shows in this way."""
    seen = image.observation
    if not way.estimated or image.frame is None:
        return seen
    return seen.restricted_to(recipe_for_frame(way.masks, image.frame.number).masks(seen.width, seen.height))


def tracked_objects(
    image: ObservedImage,
    vocabulary: LabelMap,
    rule: PruningRule,
    threat: ThreatModel,
    patch: Patch,
    shown: Sequence[Observation],
) -> Iterator[tuple[int, list[FramePositions]]]:
    """The objects of a frame that count and have a track, by number; and what the frame, as `shown`, is for each."""
    chosen = _counted(image)
    truth, of_object = vocabulary.map_to_detector(image.truth[chosen], classwise=rule.classwise)
    threshold = rule.resolve_threshold(threat.certification_threshold)
    found = [
        frame_positions(rule, one, truth, patch, certification_threshold=threshold, bound=threat.bound) for one in shown
    ]
    for place, n in enumerate(chosen.tolist()):
        rows = np.flatnonzero(of_object == place).tolist()
        if rows:
            yield n, [intersect_alternatives([of_way[row] for row in rows]) for of_way in found]


def _counted(image: ObservedImage) -> Ints:
    """The objects of a frame that count and have a track, by number."""
    return np.flatnonzero(~image.ignore & (image.track != NO_TRACK)) if len(image.track) else np.empty(0, np.int64)


def _rows(track: _Track, name: str, ways: Sequence[Way], asked: Asked) -> Iterator[TrackRow]:
    frames = sorted(track.seen)  # those between are blind
    at = np.array(frames)
    for number, way in enumerate(ways):
        line = [track.seen[frame][number] for frame in frames]
        for moves in asked.moves:
            reach = UNBOUNDED_MOTION if moves is None else moves
            earliest = np.array(earliest_uncertified_start(line, reach, asked.times, numbers=frames))
            begin, end = longest_hidden(earliest, at)
            yield TrackRow(
                sequence=track.sequence,
                track=track.number,
                name=name,
                fps=track.fps,
                way=way,
                moves=moves,
                first=frames[0],
                last=frames[-1],
                boxes=len(frames),
                certified_frames=sum(instant.certified for instant in line),
                windows={length: _windows(earliest, at, length) for length in way.windows},
                hidden=end - begin,
            )


def _windows(earliest: Ints, at: Ints, frames: int) -> tuple[int, int]:
    """Of the windows that begin with a box: how many are certified, and how many there are."""
    begins, ends = windows_of(at, frames)
    return int((earliest[ends] > begins).sum()), len(begins)


def windows_of(at: Ints, frames: int) -> tuple[Ints, Ints]:
    """The first and the last box of every window of so many frames that begins with one; `at` are the frames of boxes.

    Where a window ends without one, what holds at its last box holds at its end.
    """
    begins = np.flatnonzero(at + frames - 1 <= at[-1])
    return begins, np.searchsorted(at, at[begins] + frames - 1, side="right") - 1


def longest_hidden(earliest: Ints, at: Ints) -> tuple[int, int]:
    """Where the longest time begins and ends, from a frame with a box to another one, with too few reports.

    `at` are the frames of boxes, `earliest` is what `first_unreported` gave for them.
    """
    begin = at[np.minimum(earliest, len(at) - 1)]
    length = np.where(earliest <= np.arange(len(at)), at - begin + 1, 0)
    longest = int(length.argmax())
    return int(begin[longest]), int(begin[longest] + length[longest])


def _share(part: int, whole: int) -> float | None:
    return 100 * (part / whole) if whole else None
