"""What readers of sequences share: frames in their order, and objects linked from frame to frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from objectseeker.core.boxes import iou
from objectseeker.core.observation import NO_TRACK
from objectseeker.datasets.dataset import Annotation, ImageRecord
from objectseeker.datasets.parsing import SkipLog, SkipReason, parse_digits
from objectseeker.errors import ObjectSeekerError

MOT_IMAGES = "img1"  # the folder of a MOTChallenge sequence that holds its images
LARGEST_TRACK = 2**53  # a number that any file keeps as it is
LINK_IOU = 0.3  # of two boxes in frames after one another that are taken for one object

DUPLICATE_TRACK = SkipReason(
    "second object of a track in one frame kept without a track",
    "second objects of a track in one frame kept without a track",
)
NO_FRAME = SkipReason("box of a frame that is not there skipped", "boxes of frames that are not there skipped")
UNREADABLE = SkipReason("annotation that cannot be read skipped", "annotations that cannot be read skipped")
NO_FPS = SkipReason("sequence whose frames a second cannot be read", "sequences whose frames a second cannot be read")


def sequences_below(root: Path, is_sequence: Callable[[Path], bool], spec: str, form: str) -> list[tuple[str, Path]]:
    """The folders that are sequences, by name: `root` itself, else those in it, else those one folder further down."""
    if not root.is_dir():
        raise ObjectSeekerError(f"{spec!r}: {str(root)!r} is not a folder; give {form}")
    for pattern in (".", "*", "*/*"):
        found = sorted(path for path in ([root] if pattern == "." else root.glob(pattern)) if is_sequence(path))
        if found:
            return [
                (path.relative_to(root).as_posix() if path != root else path.resolve().name, path) for path in found
            ]
    raise ObjectSeekerError(f"{spec!r}: there is no sequence in {root}; give {form}")


def natural_sort_key(text: str) -> list[tuple[int, str]]:
    """What to sort names by, so that frame10 comes after frame9."""
    parts = re.split(r"([0-9]+)", text)  # every other one is a number
    return [*((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)), (-1, text)]


def number_frames(images: Sequence[PurePath]) -> list[int]:
    """The frame number of each image of one sequence, as datasets and videos of these images have it.

    They are counted in the order given. In a folder img1 whose images are called by numbers it is these (`mot_number`).
    """
    names = [mot_number(image.stem) for image in images]
    if {image.parent.name for image in images} != {MOT_IMAGES} or len({image.parent for image in images}) > 1:
        return list(range(len(images)))
    numbers = [number for number in names if number is not None]
    if not numbers:
        return list(range(len(images)))
    if len(set(numbers)) < len(images):
        odd = next(image for place, image in enumerate(images) if names[place] in (None, *names[:place]))
        raise ObjectSeekerError(f"{odd} is not named by the number of a frame as the others are: take it away")
    return numbers


def mot_number(stem: str) -> int | None:
    """The frame that MOTChallenge calls by this name, where they begin with 000001; None if it is no such name."""
    frame = parse_digits(stem) if stem else None
    return frame - 1 if frame else None


def parse_fps(value: object, source: str, skip_log: SkipLog) -> float | None:
    """Frames a second as an annotation states them; None where it states nothing or nothing possible."""
    if value is None:
        return None
    try:
        fps = float(str(value))
        if 0 < fps < 1e6:
            return fps
    except ValueError:
        pass
    skip_log.record_skip(
        NO_FPS, source, f"{source} has {str(value)[:40]!r} frames a second; it must be a number above 0"
    )
    return None


def assign_tracks(records: Sequence[ImageRecord], skip_log: SkipLog) -> list[ImageRecord]:
    """The frames of one sequence with every object in a track; a track has one object a frame.

    Objects without a track are linked by overlap (`link`). A second object of a track in one frame, which must be a
    mistake, stays without one.
    """
    once = [replace(record, boxes=_once(record.boxes, skip_log)) for record in records]
    return link_by_overlap(once) if all(box.track == NO_TRACK for record in once for box in record.boxes) else once


def link_by_overlap(records: Sequence[ImageRecord]) -> list[ImageRecord]:
    """The frames of one sequence, their boxes numbered by tracks that overlap makes.

    From each frame to the next the pairs of boxes of one class whose IoU is at least LINK_IOU are linked, the largest
    IoU first, each box once. A box that no pair links begins a track, and one that is not continued ends. Crowds are no
    objects: they have no track. Frames that are not there end all tracks.
    """
    linked: list[ImageRecord] = []
    following = 0
    for record in records:
        before = linked[-1] if linked and _adjacent(linked[-1], record) else None
        continued = {} if before is None else _pairs(before.boxes, record.boxes)
        boxes = []
        for place, box in enumerate(record.boxes):
            track = NO_TRACK if box.crowd else continued.get(place, following)
            following += track == following
            boxes.append(replace(box, track=track))
        linked.append(replace(record, boxes=boxes))
    return linked


def _adjacent(before: ImageRecord, record: ImageRecord) -> bool:
    return before.frame is not None and record.frame is not None and before.frame.number + 1 == record.frame.number


def _pairs(before: Sequence[Annotation], boxes: Sequence[Annotation]) -> dict[int, int]:
    """Which of `boxes` go on with the track of one of `before`."""
    if not before or not boxes:
        return {}
    old_boxes, new_boxes = (np.array([box.xyxy for box in some], dtype=np.float64) for some in (before, boxes))
    with np.errstate(all="ignore"):  # a coordinate may be impossible: such a box is skipped later on
        overlap = np.nan_to_num(iou(old_boxes, new_boxes), nan=0.0)
    apart = [[a.name != b.name or a.crowd or b.crowd for b in boxes] for a in before]
    overlap[np.array(apart)] = 0
    continued: dict[int, int] = {}
    used: set[int] = set()
    for pair in np.argsort(-overlap, axis=None, kind="stable").tolist():
        old, new = divmod(pair, len(boxes))
        if overlap[old, new] < LINK_IOU:
            break
        if old not in used and new not in continued:
            used.add(old)
            continued[new] = before[old].track
    return continued


def _once(boxes: Sequence[Annotation], skip_log: SkipLog) -> list[Annotation]:
    seen: set[int] = set()
    kept = []
    for box in boxes:
        if box.track in seen:
            skip_log.record_skip(
                DUPLICATE_TRACK, box.source, f"{box.source} has a second object of track {box.track} in one frame"
            )
            box = replace(box, track=NO_TRACK)
        elif box.track != NO_TRACK:
            seen.add(box.track)
        kept.append(box)
    return kept
