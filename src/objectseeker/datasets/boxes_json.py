"""Sequences as boxes.json: folders with that file and the frames it names, or a folder of those.

    {"name": "street", "fps": 30, "frames": ["000001.jpg", ...], "boxes": [[0, 7, "person", x1, y1, x2, y2], ...]}

A box is the frame (an index into `frames`), the track (null for none), the class and the corners in pixels from 0.
Frames are in frames/ or next to the file. `name`, `fps`, `width` and `height` may be missing.
"""

from __future__ import annotations

from pathlib import Path

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import InvalidAnnotationError, SkipLog, read_json
from objectseeker.datasets.sequences import (
    MAX_TRACK,
    NO_FRAME,
    UNREADABLE,
    assign_tracks,
    numbering_warnings,
    parse_fps,
    sequences_below,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import is_utf8, quote

FILE = "boxes.json"
FORM = f"boxes:DIR, a folder with {FILE} and frames/ or a folder of such folders"


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read all sequences in the folder; where no object has a track, objects are linked by overlap."""
    folders = sequences_below(Path(path_spec).expanduser(), lambda path: (path / FILE).is_file(), spec, FORM)
    sequences = [assign_tracks(_records(name, folder / FILE, skip_log), skip_log) for name, folder in folders]
    records = [record for sequence in sequences for record in sequence]
    names = sorted({box.name for record in records for box in record.boxes})
    return build_dataset(spec, names, records, skip_log, numbering_warnings(sequences))


def _records(name: str, file: Path, skip_log: SkipLog) -> list[ImageRecord]:
    content = read_json(file)
    if not all(isinstance(content.get(key), list) for key in ("frames", "boxes")):
        raise ObjectSeekerError(f"{file} must hold an object with the lists frames and boxes")
    fps = parse_fps(content.get("fps"), str(file), skip_log)
    folder = file.parent / "frames" if (file.parent / "frames").is_dir() else file.parent
    records = []
    for number, frame in enumerate(content["frames"]):
        source = f"{file}, frames[{number}]"
        if not isinstance(frame, str) or not frame or not is_utf8(frame):
            raise ObjectSeekerError(f"{source} must be the name of a file, got {quote(frame)}")
        path = skip_log.resolve_inside(folder, frame, source)
        index = FrameIndex(name, number, fps)
        records.append(ImageRecord(f"{name}/{Path(frame).stem}", path, image_size(path), [], index))
    for position, row in enumerate(content["boxes"]):
        source = f"{file}, boxes[{position}]"
        with skip_log:
            number, box = _box(row, source)
            if not 0 <= number < len(records):
                raise InvalidAnnotationError(NO_FRAME, source, f"{source} is about frame {number} of {len(records)}")
            records[number].boxes.append(box)
    return records


def _box(row: object, source: str) -> tuple[int, Annotation]:
    match row:
        case [int(frame), int() | None as track, str(name), *corners] if (
            len(corners) == 4
            and all(type(value) in (int, float) for value in corners)
            and not isinstance(frame, bool)
            and not isinstance(track, bool)
            and (track is None or 0 <= track <= MAX_TRACK)
            and name
            and is_utf8(name)
        ):
            x1, y1, x2, y2 = (float(str(value)) for value in corners)  # one beyond any float is then infinite
            return frame, Annotation(name, (x1, y1, x2, y2), source, track=NO_TRACK if track is None else track)
    message = f"{source} must be [frame, track, class, x1, y1, x2, y2], got {quote(row)}"
    raise InvalidAnnotationError(UNREADABLE, source, message)
