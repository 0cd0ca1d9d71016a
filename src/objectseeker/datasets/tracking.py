"""Tracking formats: MOTChallenge, CVAT for video, and boxes.json.

Where no object of a sequence has a track, objects are linked by overlap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from xml.etree.ElementTree import Element

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import (
    InvalidAnnotationError,
    SkipLog,
    folder_of,
    images_by_stem,
    parse_digits,
    parse_number,
    read_json,
    read_lines,
    read_xml,
    require_folder,
)
from objectseeker.datasets.sequences import (
    MAX_TRACK,
    MOT_IMAGES,
    assign_tracks,
    mot_number,
    natural_sort_key,
    number_frames,
    numbering_warnings,
    parse_fps,
    read_seqinfo,
    sequences_below,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import is_utf8, quote

T = TypeVar("T")

NO_FRAME = "boxes of missing frames skipped"
UNREADABLE = "unreadable annotations skipped"


def _fill(
    frames: dict[int, ImageRecord],
    rows: Iterable[tuple[str, T]],
    parse: Callable[[T, str], tuple[int, Annotation]],
    skip_log: SkipLog,
) -> list[ImageRecord]:
    """Parse every row to a box of a frame; return the frames with their boxes and tracks."""

    def add(item: tuple[str, T]) -> None:
        source, row = item
        number, box = parse(row, source)
        if number not in frames:
            raise InvalidAnnotationError(NO_FRAME, source, "is about a frame that has no image")
        frames[number].boxes.append(box)

    skip_log.parse_each(add, rows)
    return assign_tracks([frames[number] for number in sorted(frames)], skip_log)


def _names(records: Iterable[ImageRecord]) -> set[str]:
    return {box.name for record in records for box in record.boxes}


# MOTChallenge: one folder per sequence, with img1/000001.jpg, gt/gt.txt and seqinfo.ini
#
# A line of gt.txt is `frame,track,left,top,width,height,counts,class,visibility` (2016 and later), or without a class
# (2015, ten columns that end in world coordinates, or fewer). Frames and pixels are counted from 1. Objects that do
# not count (0 in the seventh column) are ignored, and so are the classes that the challenge ignores: persons on
# vehicles, static persons, distractors and reflections, all of them as pedestrians.

MOT_FORM = "mot:DIR, a sequence with img1/ and gt/gt.txt or a folder of sequences"
MOT_CLASSES = {
    1: "pedestrian",
    2: "person on vehicle",
    3: "car",
    4: "bicycle",
    5: "motorbike",
    6: "non motorized vehicle",
    7: "static person",
    8: "distractor",
    9: "occluder",
    10: "occluder on the ground",
    11: "occluder full",
    12: "reflection",
    13: "crowd",
}
PERSON, CROWD = "pedestrian", "crowd"
IGNORED_CLASSES = ("person on vehicle", "static person", "distractor", "reflection")
CLASS_COLUMNS = 9  # of a line that has a class


def read_mot(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read all MOTChallenge sequences in the folder."""
    records = []
    for name, folder in sequences_below(path_spec, _is_mot_sequence, spec, MOT_FORM):
        file = folder / "gt" / "gt.txt"
        if not file.is_file():
            reason = "sequences without gt/gt.txt read without objects"
            skip_log.record_skip(reason, str(folder), f"there is no {file} with the objects")
        lines = read_lines(file) if file.is_file() else []
        records += _fill(_mot_frames(name, folder, skip_log), lines, _mot_box, skip_log)
    occurring = _names(records)
    names = [name for name in MOT_CLASSES.values() if name in occurring or name == PERSON]
    return build_dataset(spec, names, records, skip_log)


def _is_mot_sequence(folder: Path) -> bool:
    return (folder / "seqinfo.ini").is_file() or (folder / MOT_IMAGES).is_dir()


def _mot_frames(name: str, sequence: Path, skip_log: SkipLog) -> dict[int, ImageRecord]:
    ini = str(sequence / "seqinfo.ini")
    info = read_seqinfo(sequence)
    if info is None:
        message = f"{ini} cannot be read: it must have a section [Sequence]"
        skip_log.record_skip("unreadable seqinfo.ini files", ini, message)
        info = {}
    fps = parse_fps(info.get("framerate"), ini, skip_log)
    folder = Path(skip_log.resolve_inside(sequence, info.get("imdir") or MOT_IMAGES, ini))
    require_folder(folder, f"{sequence} has no folder {folder.name} with its images. Add it.")
    frames: dict[int, ImageRecord] = {}
    for stem, path in images_by_stem(folder, skip_log).items():
        number = mot_number(stem)
        if number is None or number in frames:
            message = f"{path} is not named by the number of a frame, from 1"
            skip_log.record_skip("images whose names are not frame numbers skipped", str(path), message)
            continue
        frames[number] = ImageRecord(f"{name}/{stem}", path, image_size(path), [], FrameIndex(name, number, fps))
    if not frames:
        raise ObjectSeekerError(
            f"{folder} holds no images that are named by frame numbers. Name them as 000001.jpg and so on."
        )
    numbers = sorted(frames)
    if number_frames([frames[number].path for number in numbers]) != numbers:
        raise ObjectSeekerError(
            f"{folder} is {folder.resolve()}, where video: would not number frames by their names. Call that folder "
            f"{MOT_IMAGES}, or put a seqinfo.ini with its imDir next to it."
        )
    return frames


def _mot_box(text: str, source: str) -> tuple[int, Annotation]:
    columns = text.split(",")
    try:
        frame, track, left, top, width, height = (parse_number(value, "a value", source) for value in columns[:6])
        counts = parse_number(columns[6], "a value", source) if len(columns) > 6 else 1.0
        kind = int(parse_number(columns[7], "a class", source)) if len(columns) == CLASS_COLUMNS else 1
        if frame != int(frame) or track != int(track) or track > MAX_TRACK or kind not in MOT_CLASSES:
            raise ValueError
    except ValueError:  # an ObjectSeekerError is one
        problem = "is not frame,track,left,top,width,height,counts,class,visibility"
        raise InvalidAnnotationError(UNREADABLE, source, problem) from None
    name = MOT_CLASSES[kind]
    if name.startswith("occluder"):
        raise InvalidAnnotationError("occluders skipped", source, "is an occluder, not an object")
    is_ignored = name in IGNORED_CLASSES
    box = Annotation(
        PERSON if is_ignored or name == CROWD else name,
        (left - 1, top - 1, left - 1 + width, top - 1 + height),
        source,
        ignore=is_ignored or counts == 0,
        crowd=name == CROWD,
        track=int(track) if track >= 0 else NO_TRACK,
    )
    return int(frame) - 1, box


# CVAT for video: one XML file with tracks, and a folder with one image per frame.
#
# A track has a box for every frame it is in, or is marked outside where it is not. Frames are numbered from 0: by the
# names of the images if all are called frame_000000 and so on as CVAT exports them, else by their order.

CVAT_FORM = "cvat:ANNOTATIONS.xml:IMAGES"
FRAME_NAME = re.compile(r"(?:.*/)?frame_([0-9]{1,9})")
CORNERS = ("xtl", "ytl", "xbr", "ybr")


def read_cvat(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read one CVAT sequence with the boxes of all tracks."""
    annotation, _, images = path_spec.rpartition(":")
    if not annotation or not images:
        raise ObjectSeekerError(f"{spec!r} names no file and folder. Give {CVAT_FORM}.")
    file, folder = Path(annotation).expanduser(), folder_of(images, spec, CVAT_FORM)
    root = read_xml(file, "annotations", "CVAT")
    if root.find("track") is None and root.find("image") is not None:
        raise ObjectSeekerError(f"{file} is a CVAT file for images, without tracks. Export it as CVAT for video.")
    rows = []
    for position, track in enumerate(root.findall("track")):
        stated = parse_digits(track.get("id") or "?")
        number = position if stated is None else stated
        for shape in track:
            if shape.get("outside") != "1":
                source = f"{file}, track {number}, frame {(shape.get('frame') or '?')[:9]}"
                rows.append((source, (number, track.get("label") or "", shape)))
    records = _fill(_cvat_frames(folder, skip_log), rows, _cvat_box, skip_log)
    return build_dataset(spec, sorted(_names(records)), records, skip_log, numbering_warnings([records]))


def _cvat_frames(folder: Path, skip_log: SkipLog) -> dict[int, ImageRecord]:
    images = images_by_stem(folder, skip_log)
    stems = sorted(images, key=natural_sort_key)
    matches = [FRAME_NAME.fullmatch(stem) for stem in stems]
    numbers = [int(match[1]) for match in matches if match]
    if len(set(numbers)) < len(stems):
        numbers = list(range(len(stems)))
    name = folder.resolve().name
    return {
        frame: ImageRecord(stem, images[stem], image_size(images[stem]), [], FrameIndex(name, frame))
        for frame, stem in zip(numbers, stems, strict=True)
    }


def _cvat_box(row: tuple[int, str, Element], source: str) -> tuple[int, Annotation]:
    track, name, shape = row
    if shape.tag != "box":
        problem = f"has a {shape.tag[:40]} where a box is needed"
        raise InvalidAnnotationError("shapes other than boxes skipped", source, problem)
    frame = parse_digits(shape.get("frame") or "?")
    if frame is None or not name or not is_utf8(name) or any(shape.get(key) is None for key in CORNERS):
        raise InvalidAnnotationError(UNREADABLE, source, "lacks a label, a frame number or a corner")
    try:
        x1, y1, x2, y2 = (parse_number(shape.get(key) or "", key, source) for key in CORNERS)
    except InvalidAnnotationError:
        raise
    except ObjectSeekerError as error:
        raise InvalidAnnotationError(UNREADABLE, source, str(error).removeprefix(f"{source} ")) from None
    return frame, Annotation(name, (x1, y1, x2, y2), source, track=track)


# boxes.json: folders with that file and the frames it names, or a folder of those
#
#     {"name": "street", "fps": 30, "frames": ["000001.jpg", ...], "boxes": [[0, 7, "person", x1, y1, x2, y2], ...]}
#
# A box is the frame (an index into `frames`), the track (null for none), the class and the corners in pixels from 0.
# Frames are in frames/ or next to the file. `name`, `fps`, `width` and `height` may be missing.

BOXES_FILE = "boxes.json"
BOXES_FORM = f"boxes:DIR, a folder with {BOXES_FILE} and frames/ or a folder of such folders"


def read_boxes(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read all boxes.json sequences in the folder."""
    sequences = []
    for name, folder in sequences_below(path_spec, lambda path: (path / BOXES_FILE).is_file(), spec, BOXES_FORM):
        file = folder / BOXES_FILE
        content = read_json(file)
        if not all(isinstance(content.get(key), list) for key in ("frames", "boxes")):
            raise ObjectSeekerError(f"{file} must hold an object with the lists frames and boxes. Correct it.")
        fps = parse_fps(content.get("fps"), str(file), skip_log)
        images = folder / "frames" if (folder / "frames").is_dir() else folder
        frames = {}
        for number, frame in enumerate(content["frames"]):
            source = f"{file}, frames[{number}]"
            if not isinstance(frame, str) or not frame or not is_utf8(frame):
                raise ObjectSeekerError(f"{source} must be the name of a file: got {quote(frame)}")
            path = skip_log.resolve_inside(images, frame, source)
            image_id = f"{name}/{Path(frame).stem}"
            frames[number] = ImageRecord(image_id, path, image_size(path), [], FrameIndex(name, number, fps))
        rows = ((f"{file}, boxes[{position}]", row) for position, row in enumerate(content["boxes"]))
        sequences.append(_fill(frames, rows, _listed_box, skip_log))
    records = [record for sequence in sequences for record in sequence]
    return build_dataset(spec, sorted(_names(records)), records, skip_log, numbering_warnings(sequences))


def _listed_box(row: object, source: str) -> tuple[int, Annotation]:
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
    problem = f"must be [frame, track, class, x1, y1, x2, y2]: got {quote(row)}"
    raise InvalidAnnotationError(UNREADABLE, source, problem)
