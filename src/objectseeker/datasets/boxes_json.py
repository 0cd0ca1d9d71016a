"""Sequences as boxes.json: a folder with that file and the frames it names, or a folder of such folders.

    {"name": "street", "fps": 30, "frames": ["000001.jpg", ...], "boxes": [[0, 7, "person", x1, y1, x2, y2], ...]}

A box is frame (a position in `frames`), track, class and corners in pixels from 0; a track of null is none. Frames lie
in frames/ or beside the file. `name`, `fps`, `width` and `height` may be missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import read_bytes
from objectseeker.datasets.sequences import (
    LARGEST_TRACK,
    NO_FRAME,
    UNREADABLE,
    assign_tracks,
    parse_fps,
    sequences_below,
)
from objectseeker.datasets.skip_log import InvalidAnnotationError, SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import shown, writable

FILE = "boxes.json"
FORM = f"boxes:DIR, a folder with {FILE} and frames/ or a folder of such folders"


def read(spec: str, rest: str, notes: SkipLog) -> Dataset:
    """All sequences of the folder. Where no object has a track they are linked by overlap."""
    records = []
    for name, folder in sequences_below(Path(rest).expanduser(), lambda path: (path / FILE).is_file(), spec, FORM):
        records += assign_tracks(_records(name, folder / FILE, notes), notes)
    return build_dataset(spec, sorted({box.name for record in records for box in record.boxes}), records, notes)


def _records(name: str, file: Path, notes: SkipLog) -> list[ImageRecord]:
    content = _content(file)
    fps = parse_fps(content.get("fps"), str(file), notes)
    folder = file.parent / "frames" if (file.parent / "frames").is_dir() else file.parent
    records = []
    for place, frame in enumerate(content["frames"]):
        source = f"{file}, frames[{place}]"
        if not isinstance(frame, str) or not frame or not writable(frame):
            raise ObjectSeekerError(f"{source} must be the name of a file, got {shown(frame)}")
        path = notes.inside(folder, frame, source)
        records.append(
            ImageRecord(f"{name}/{Path(frame).stem}", path, image_size(path), [], FrameIndex(name, place, fps))
        )
    for place, row in enumerate(content["boxes"]):
        source = f"{file}, boxes[{place}]"
        with notes:
            frame, box = _box(row, source)
            if not 0 <= frame < len(records):
                raise InvalidAnnotationError(NO_FRAME, source, f"{source} is about frame {frame} of {len(records)}")
            records[frame].boxes.append(box)
    return records


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(file).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ObjectSeekerError(f"{file} is not valid JSON") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in ("frames", "boxes")):
        raise ObjectSeekerError(f"{file} must hold an object with the lists frames and boxes")
    return content


def _box(row: object, source: str) -> tuple[int, Annotation]:
    match row:
        case [int(frame), int() | None as track, str(name), *corners] if (
            len(corners) == 4
            and all(type(value) in (int, float) for value in corners)
            and not isinstance(frame, bool)
            and not isinstance(track, bool)
            and (track is None or 0 <= track <= LARGEST_TRACK)
            and name
            and writable(name)
        ):
            x1, y1, x2, y2 = (float(str(value)) for value in corners)  # one beyond any float is then infinite
            return frame, Annotation(name, (x1, y1, x2, y2), source, track=NO_TRACK if track is None else track)
    raise InvalidAnnotationError(
        UNREADABLE, source, f"{source} must be [frame, track, class, x1, y1, x2, y2], got {shown(row)}"
    )
