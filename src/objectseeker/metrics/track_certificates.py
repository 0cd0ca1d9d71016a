"""Certificates over time: how often each tracked object of a sequence is guaranteed to be detected.

A window is n consecutive frames of a sequence, the first of which has a box of the track's object. It is certified if
the object is guaranteed to be reported in at least m of them (`core.temporal`); a track is certified if all of its
windows are. A frame without a box, one that is ignored and one that was not observed prove nothing, and the patch moves
on meanwhile.

Of fabrication a frame has a box of the track if the defended output has one of its class with an IoU of at least
MIN_IOU with the annotated box. A window that begins with one is certified if the track's boxes have support in at least
m of its frames, however the patch moves: it did not make the track.

A run with rolling masks is certified for streams that show each frame the share of the masks that it has in the run
(`core.rolling.recipe_for_frame`). A run with all masks also estimates what rolling ones would certify: only an
estimate, since the same views, grouped otherwise, may have other last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Ints, iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import NO_TRACK, Observation, ObservedImage
from objectseeker.core.recipes import Pairs, Recipe, Rolling, Share, recipe_for_frame
from objectseeker.core.rules import PruningRule
from objectseeker.core.temporal import (
    UNBOUNDED_MOTION,
    FramePositions,
    earliest_uncertified_start,
    frame_positions,
    frame_positions_not_fabricated,
    intersect_alternatives,
)
from objectseeker.core.threats import Patch, ThreatModel
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.metrics.average_precision import MIN_IOU
from objectseeker.text import quote

WINDOWS = (4, 8, 16)
MAX_MOTIONS: tuple[int | None, ...] = (0, 2, 8, None)
ESTIMATED = " *"  # after masks in tables


@dataclass(frozen=True, slots=True)
class TemporalMasking:
    """Masks shown over time, and the windows they are certified for.

    Attributes:
        masks: The recipe of the frames.
        windows: Lengths in frames.
        is_estimated: The run shows all masks, and these are some of them.
        forward_passes: The largest number that a frame takes.
    """

    masks: Recipe
    windows: tuple[int, ...]
    is_estimated: bool = False
    forward_passes: int = 0

    def observation(self, image: ObservedImage) -> Observation:
        """Return what this masking shows of a frame; reject a frame that shows another share of rolling masks."""
        seen, frame = image.observation, image.frame
        assert frame is not None
        if not isinstance(self.masks, Rolling):
            return seen
        share = recipe_for_frame(self.masks, frame.number).masks(seen.width, seen.height)
        if self.is_estimated:
            return seen.restricted_to(share)
        if seen.masks != share:
            raise ObjectSeekerError(
                f"{quote(image.id)} was observed under another share of {self.masks} than its frame number requires: "
                f"got frame {frame.number}. Observe the sequence again."
            )
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackCriteria:
    """Detections that a track requires, and the patch motions it is certified against.

    Attributes:
        masks: The recipe that the run was observed with.
        windows: Lengths in frames. Default: that of the rolling masks, else WINDOWS.
        max_motions: Pixels per frame along each axis; None for a patch that may jump anywhere.
        min_detections: Reports required in every window.

    Raises:
        ObjectSeekerError: A value is out of range.
    """

    masks: Recipe
    windows: tuple[int, ...] | None = None
    max_motions: tuple[int | None, ...] = MAX_MOTIONS
    min_detections: int = 1

    def __post_init__(self) -> None:
        for frames in self.windows or ():
            require_count(frames, "window")
        require_count(self.min_detections, "min_detections")
        for motion in self.max_motions:
            if motion is not None and (type(motion) is not int or motion < 0):
                raise ObjectSeekerError(
                    f"max_motions must be whole pixels per frame of at least 0: got {motion!r}. "
                    "Use None for any motion."
                )

    def maskings(self) -> list[TemporalMasking]:
        """Return the masks of the run, and the rolling masks that can be estimated from it."""
        if isinstance(self.masks, Rolling):
            return [TemporalMasking(self.masks, self.windows or (self.masks.frames,))]
        windows = self.windows or WINDOWS
        rolling = [] if isinstance(self.masks, Pairs | Share) else [frames for frames in windows if frames > 1]
        return [
            TemporalMasking(self.masks, windows),
            *(TemporalMasking(Rolling(self.masks, frames), (frames,), is_estimated=True) for frames in rolling),
        ]


@dataclass(slots=True, eq=False)
class TrackTally:
    """A track: its label in the dataset, and per frame with a box the patch positions under each masking.

    `support` are those without support of the output box; None where there is no such box, or it was not requested.
    """

    label: int
    positions: dict[int, list[FramePositions]] = field(default_factory=dict)
    support: dict[int, list[FramePositions | None]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SequenceTally:
    """The frames of a sequence, as far as certificates over time depend on them.

    Attributes:
        fps: Frames per second, where known.
        sizes: Width and height of the frames.
        annotated: The tracks with objects that count.
        tracks: Those of them whose class the detector knows, by number.
    """

    fps: float | None
    sizes: set[tuple[int, int]] = field(default_factory=set)
    annotated: set[int] = field(default_factory=set)
    tracks: dict[int, TrackTally] = field(default_factory=dict)

    def add(self, other: SequenceTally) -> None:
        """Add the tally of further frames."""
        self.sizes |= other.sizes
        self.annotated |= other.annotated
        for number, track in other.tracks.items():
            mine = self.tracks.setdefault(number, TrackTally(track.label))
            mine.positions.update(track.positions)
            mine.support.update(track.support)


def tally_sequences(
    images: Iterable[ObservedImage],
    label_map: LabelMap,
    rule: PruningRule,
    threat: ThreatModel,
    observations: Callable[[ObservedImage], Sequence[Observation]],
    *,
    fabrication: bool = False,
) -> dict[str, SequenceTally]:
    """Tally the sequences among some images, by name, against a patch anywhere.

    `observations` returns what each masking shows of a frame; `fabrication` adds the support of output boxes.
    """
    sequences: dict[str, SequenceTally] = {}
    threshold = rule.resolve_threshold(threat.certification_threshold)
    for image in images:
        if image.frame is None:
            continue
        sequence = sequences.setdefault(image.frame.sequence, SequenceTally(image.frame.fps))
        sequence.sizes.add((image.observation.width, image.observation.height))
        has_track = ~image.ignore & (image.track != NO_TRACK) if len(image.track) else np.zeros_like(image.ignore)
        chosen = np.flatnonzero(has_track)
        sequence.annotated |= set(image.track[chosen].tolist())
        objects, of_object = label_map.map_to_detector(image.ground_truth[chosen], classwise=rule.classwise)
        positions = [
            frame_positions(
                rule, seen, objects, threat.anywhere(), certification_threshold=threshold, bound=threat.bound
            )
            for seen in observations(image)
        ]
        support: list[dict[int, FramePositions]] = []
        if fabrication:
            support = [_support(rule, seen, objects, of_object, threat.anywhere()) for seen in observations(image)]
        for position, n in enumerate(chosen.tolist()):
            rows = np.flatnonzero(of_object == position).tolist()
            if rows:
                track = sequence.tracks.setdefault(int(image.track[n]), TrackTally(int(image.ground_truth.label[n])))
                track.positions[image.frame.number] = [
                    intersect_alternatives([per_row[row] for row in rows]) for per_row in positions
                ]
                track.support[image.frame.number] = [of_boxes.get(position) for of_boxes in support]
    return sequences


def _support(
    rule: PruningRule, seen: Observation, objects: Detections, of_object: Ints, patch: Patch
) -> dict[int, FramePositions]:
    """Return the positions of the output box of every object that has one, by the object's position."""
    output = rule.prune(seen)
    overlap = iou(objects.xyxy, output.xyxy)
    if rule.classwise:
        overlap = np.where(objects.label[:, None] == output.label[None], overlap, 0.0)
    row, box = np.nonzero(overlap >= MIN_IOU)
    order = np.argsort(overlap[row, box], kind="stable")  # the best of each object is written last
    best = dict(zip(of_object[row[order]].tolist(), box[order].tolist(), strict=True))
    found = frame_positions_not_fabricated(rule, seen, output[np.array([*best.values()], np.int64)], patch)
    return dict(zip(best, found, strict=True))


def merge_sequences(parts: Iterable[Mapping[str, SequenceTally]]) -> dict[str, SequenceTally]:
    """Merge the tallies of consecutive images."""
    merged: dict[str, SequenceTally] = {}
    for part in parts:
        for name, sequence in part.items():
            merged.setdefault(name, SequenceTally(sequence.fps)).add(sequence)
    return merged


@dataclass(frozen=True, slots=True, eq=False)
class TrackCertificate:
    """One track under one masking, against a patch of one motion.

    Attributes:
        boxes: Frames in which the object has a box.
        certified_frames: Those of them that are certified on their own.
        windows: Per window length the certified windows, and all.
        uncertified_frames: The longest time for which an attacker can keep reports below what is required.
        output_boxes: Frames in which the output has a box of the track; None if fabrication was not requested.
        certified_boxes: Those of them whose box is certified not fabricated on its own.
        supported_windows: Per window length those that begin with such a box: certified not fabricated, and all.
    """

    sequence: str
    track: int
    name: str
    fps: float | None
    masking: TemporalMasking
    max_motion: int | None
    first: int
    last: int
    boxes: int
    certified_frames: int
    windows: dict[int, tuple[int, int]]
    uncertified_frames: int
    output_boxes: int | None = None
    certified_boxes: int | None = None
    supported_windows: dict[int, tuple[int, int]] | None = None

    @property
    def uncertified_seconds(self) -> float | None:
        return None if self.fps is None else self.uncertified_frames / self.fps

    def to_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "track": self.track,
            "class": self.name,
            "fps": self.fps,
            "masks": str(self.masking.masks),
            "max_motion": self.max_motion,
            "first_frame": self.first,
            "last_frame": self.last,
            "boxes": self.boxes,
            "certified_frames": self.certified_frames,
            "windows": _windows_dict(self.windows),
            "output_boxes": self.output_boxes,
            "certified_boxes_not_fabricated": self.certified_boxes,
            "windows_not_fabricated": None if self.supported_windows is None else _windows_dict(self.supported_windows),
            "longest_uncertified_frames": self.uncertified_frames,
            "longest_uncertified_seconds": self.uncertified_seconds,
        }


def _windows_dict(windows: Mapping[int, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {str(frames): {"certified": certified, "all": count} for frames, (certified, count) in windows.items()}


@dataclass(frozen=True, slots=True, eq=False)
class TrackCertificates:
    """Certificates over time: one per track, masking and patch motion, and their sums.

    Attributes:
        criteria: What was required.
        patch: The patch that tracks are certified against.
        sequences: How many sequences were certified.
        tracks: The certificates.
        mixed_sizes: Sequences that were skipped because their frames differ in size.
        unmatched_tracks: Tracks that were skipped because the detector does not know their class.
    """

    criteria: TrackCriteria
    patch: Patch
    sequences: int
    tracks: tuple[TrackCertificate, ...]
    mixed_sizes: tuple[str, ...] = ()
    unmatched_tracks: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per masking, window and patch motion, for all tracks; shares are percentages."""
        groups: dict[tuple[TemporalMasking, int | None], list[TrackCertificate]] = {}
        for track in self.tracks:
            groups.setdefault((track.masking, track.max_motion), []).append(track)
        return [
            self._row(masking, frames, motion, tracks)
            for (masking, motion), tracks in groups.items()
            for frames in masking.windows
        ]

    def _row(
        self, masking: TemporalMasking, window: int, max_motion: int | None, tracks: Sequence[TrackCertificate]
    ) -> dict[str, Any]:
        counts = [track.windows[window] for track in tracks if track.windows[window][1]]
        worst = max(tracks, key=lambda track: (track.uncertified_frames, track.uncertified_seconds or 0))
        certified, windows = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        frames = sum(track.certified_frames for track in tracks)
        supported = [track.supported_windows[window] for track in tracks if track.supported_windows is not None]
        boxes = sum(track.output_boxes or 0 for track in tracks)
        box_windows = sum(count for _, count in supported)
        return {
            "masks": str(masking.masks),
            "estimated": masking.is_estimated,
            "forward_passes": masking.forward_passes,
            "max_motion": max_motion,
            "window": window,
            "min_detections": self.criteria.min_detections,
            "certified_frames": 100 * (frames / sum(track.boxes for track in tracks)),
            "windows": windows,
            "certified_windows": _percent(certified, windows),
            "tracks": len(counts),
            "certified_tracks": sum(holding == count for holding, count in counts),
            "longest_uncertified_frames": worst.uncertified_frames,
            "longest_uncertified_seconds": worst.uncertified_seconds,
            "certified_boxes_not_fabricated": _percent(sum(track.certified_boxes or 0 for track in tracks), boxes),
            "windows_not_fabricated": box_windows if supported else None,
            "certified_windows_not_fabricated": _percent(sum(holding for holding, _ in supported), box_windows),
        }

    def caveats(self) -> list[str]:
        """List what a reader of the numbers must know."""
        lengths = {(track.sequence, track.track): track.last - track.first + 1 for track in self.tracks}
        longest = max((frames for track in self.tracks for frames in track.masking.windows), default=0)
        short = sum(length < longest for length in lengths.values())
        times = "once" if self.criteria.min_detections == 1 else f"{self.criteria.min_detections} times"
        lines = [
            f"sequences: {self.sequences}, tracks: {len(lengths)}; a patch of {self.patch.area:.2%}, aspect "
            f"{self.patch.aspect:g}, {self.patch.location}; certified: reported at least {times} in every window",
            "max motion: pixels per frame along each axis; uncertified: the longest time of all tracks",
        ]
        if any(isinstance(track.masking.masks, Rolling) for track in self.tracks):
            lines.append(
                "rolling masks: about streams that show frame t share t mod n, t its number in the run: detect does so "
                "without --stride, and not with live sources"
            )
        if self.mixed_sizes:
            lines.append(
                f"sequences skipped because their frames have several sizes: {len(self.mixed_sizes)}, the first "
                f"{quote(self.mixed_sizes[0])}; patch motion is measured in pixels of one size"
            )
        if self.unmatched_tracks:
            lines.append(f"tracks skipped because the detector does not know their class: {self.unmatched_tracks}")
        if any(track.supported_windows is not None for track in self.tracks):
            lines.append(
                f"not fabricated: of the output boxes with an IoU of at least {MIN_IOU:g} with the track's box, and of "
                f"the windows that begin with one: supported at least {times} by views without the patch"
            )
        if short:
            lines.append(f"tracks that are shorter than the longest window: {short}")
        if any(track.masking.is_estimated for track in self.tracks):
            lines.append("* estimated from a run that shows all masks: observe with --masks rolling:N:... to certify")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {
            "patch_area": self.patch.area,
            "patch_aspect": self.patch.aspect,
            "location": self.patch.location,
            "min_detections": self.criteria.min_detections,
            "sequences": self.sequences,
            "sequences_with_mixed_sizes": list(self.mixed_sizes),
            "tracks_of_unmatched_classes": self.unmatched_tracks,
            "rows": self.rows(),
            "tracks": [track.to_dict() for track in self.tracks],
        }


def certify_tracks(
    sequences: Mapping[str, SequenceTally], names: Sequence[str], criteria: TrackCriteria, patch: Patch
) -> TrackCertificates | None:
    """Certify the tracks of tallied sequences; None if there are none.

    Sequences whose frames have several sizes are skipped.

    Args:
        sequences: The tallies of a run, whose positions are under the criteria's maskings.
        names: The classes of the dataset.
        criteria: What tracks require.
        patch: What the tally was counted against.

    Guarantee: without estimated masks, what `core.temporal.earliest_uncertified_start` states holds for every
    certified window.
    """
    if not any(sequence.tracks for sequence in sequences.values()):
        return None
    sizes = set().union(*(sequence.sizes for sequence in sequences.values()))
    maskings = [
        replace(masking, forward_passes=max(masking.masks.forward_passes(*size) for size in sizes))
        for masking in criteria.maskings()
    ]
    mixed = tuple(name for name, sequence in sequences.items() if len(sequence.sizes) > 1)
    certificates = [
        certificate
        for name, sequence in sequences.items()
        if name not in mixed
        for number, track in sequence.tracks.items()
        for certificate in _certificates(name, sequence.fps, number, track, names[track.label], maskings, criteria)
    ]
    unmatched = sum(len(sequence.annotated - sequence.tracks.keys()) for sequence in sequences.values())
    return TrackCertificates(criteria, patch, len(sequences) - len(mixed), tuple(certificates), mixed, unmatched)


def _certificates(
    sequence: str,
    fps: float | None,
    number: int,
    track: TrackTally,
    name: str,
    maskings: Sequence[TemporalMasking],
    criteria: TrackCriteria,
) -> Iterator[TrackCertificate]:
    for index, masking in enumerate(maskings):
        line = {frame: positions[index] for frame, positions in sorted(track.positions.items())}
        own = {frame: box for frame, boxes in sorted(track.support.items()) if boxes and (box := boxes[index])}
        has_support = any(track.support.values())
        for max_motion in criteria.max_motions:
            windows, uncertified = _windows(line, masking, max_motion, criteria)
            yield TrackCertificate(
                sequence=sequence,
                track=number,
                name=name,
                fps=fps,
                masking=masking,
                max_motion=max_motion,
                first=min(line),
                last=max(line),
                boxes=len(line),
                certified_frames=sum(positions.certified for positions in line.values()),
                windows=windows,
                uncertified_frames=uncertified,
                output_boxes=len(own) if has_support else None,
                certified_boxes=sum(positions.certified for positions in own.values()) if has_support else None,
                supported_windows=_windows(own, masking, max_motion, criteria)[0] if has_support else None,
            )


def _windows(
    line: Mapping[int, FramePositions], masking: TemporalMasking, max_motion: int | None, criteria: TrackCriteria
) -> tuple[dict[int, tuple[int, int]], int]:
    """Return the certified windows and all, by length, and the longest time that is not certified.

    `line` are the frames with a box, ascending; those in between are unobserved.
    """
    if not line:
        return dict.fromkeys(masking.windows, (0, 0)), 0
    motion, numbers = UNBOUNDED_MOTION if max_motion is None else max_motion, np.array(list(line))
    frames = earliest_uncertified_start(list(line.values()), motion, criteria.min_detections, numbers=list(line))
    earliest, windows = np.array(frames), {}
    for length in masking.windows:
        begins, ends = window_bounds(numbers, length)
        windows[length] = int((earliest[ends] > begins).sum()), len(begins)
    begin, end = longest_uncertified(earliest, numbers)
    return windows, end - begin


def _percent(part: int, whole: int) -> float | None:
    return 100 * (part / whole) if whole else None


def window_bounds(numbers: Ints, frames: int) -> tuple[Ints, Ints]:
    """Return the first and the last box of every window of `frames` frames that begins with one.

    `numbers` are the frames of boxes. Where a window ends without one, what holds at its last box holds at its end.
    """
    begins = np.flatnonzero(numbers + frames - 1 <= numbers[-1])
    return begins, np.searchsorted(numbers, numbers[begins] + frames - 1, side="right") - 1


def longest_uncertified(earliest: Ints, numbers: Ints) -> tuple[int, int]:
    """Return the begin and end of the longest time with too few reports, between frames with a box.

    `numbers` are the frames of boxes, `earliest` is what `earliest_uncertified_start` returned for them.
    """
    begin = numbers[np.minimum(earliest, len(numbers) - 1)]
    length = np.where(earliest <= np.arange(len(numbers)), numbers - begin + 1, 0)
    longest = int(length.argmax())
    return int(begin[longest]), int(begin[longest] + length[longest])
