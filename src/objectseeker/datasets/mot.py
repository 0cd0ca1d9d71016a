"""MOTChallenge: one folder per sequence, with img1/000001.jpg, gt/gt.txt and seqinfo.ini.

A line of gt.txt is `frame,track,left,top,width,height,counts,class,visibility` (2016 and later), or without a class
(2015, ten columns that end in world coordinates, or fewer). Frames and pixels are counted from 1. Objects that do not
count (0 in the seventh column) are ignored, and so are the classes that the challenge ignores: persons on vehicles,
static persons, distractors and reflections, all of them as pedestrians.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import (
    InvalidAnnotationError,
    SkipLog,
    SkipReason,
    images_by_stem,
    parse_number,
    read_lines,
    require_folder,
)
from objectseeker.datasets.sequences import (
    MAX_TRACK,
    MOT_IMAGES,
    NO_FRAME,
    UNREADABLE,
    assign_tracks,
    mot_number,
    number_frames,
    parse_fps,
    read_seqinfo,
    sequences_below,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size

FORM = "mot:DIR, a sequence with img1/ and gt/gt.txt or a folder of sequences"
CLASSES = {
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

OCCLUDERS = SkipReason("occluder skipped", "occluders skipped")
NO_NUMBER = SkipReason(
    "image whose name is not a frame number skipped", "images whose names are not frame numbers skipped", "at"
)
NO_GROUND_TRUTH = SkipReason(
    "sequence without gt/gt.txt read without objects", "sequences without gt/gt.txt read without objects"
)
BAD_INI = SkipReason("unreadable seqinfo.ini", "unreadable seqinfo.ini files", "at")


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read all sequences in the folder; in one without tracks (all are -1) objects are linked by overlap."""
    records = []
    for name, folder in sequences_below(Path(path_spec).expanduser(), _is_sequence, spec, FORM):
        records += assign_tracks(_records(name, folder, skip_log), skip_log)
    occurring = {box.name for record in records for box in record.boxes}
    names = [name for name in CLASSES.values() if name in occurring or name == PERSON]
    return build_dataset(spec, names, records, skip_log)


def _is_sequence(folder: Path) -> bool:
    return (folder / "seqinfo.ini").is_file() or (folder / MOT_IMAGES).is_dir()


def _records(name: str, folder: Path, skip_log: SkipLog) -> list[ImageRecord]:
    ini = str(folder / "seqinfo.ini")
    info = read_seqinfo(folder)
    if info is None:
        skip_log.record_skip(BAD_INI, ini, f"{ini} cannot be read: it must have a section [Sequence]")
        info = {}
    fps = parse_fps(info.get("framerate"), ini, skip_log)
    images = Path(skip_log.resolve_inside(folder, info.get("imdir") or MOT_IMAGES, ini))
    require_folder(images, f"{folder} has no folder {images.name} with its images")
    frames = _frames(name, images, fps, skip_log)
    for number, box in _boxes(folder / "gt" / "gt.txt", frames, skip_log):
        frames[number].boxes.append(box)
    return [frames[number] for number in sorted(frames)]


def _frames(name: str, folder: Path, fps: float | None, skip_log: SkipLog) -> dict[int, ImageRecord]:
    """Return the frames by number, from 0."""
    frames: dict[int, ImageRecord] = {}
    for stem, path in images_by_stem(folder, skip_log).items():
        number = mot_number(stem)
        if number is None or number in frames:
            skip_log.record_skip(NO_NUMBER, str(path), f"{path} is not named by the number of a frame, from 1")
            continue
        frames[number] = ImageRecord(f"{name}/{stem}", path, image_size(path), [], FrameIndex(name, number, fps))
    if not frames:
        raise ObjectSeekerError(f"{folder} holds no images that are named by frame numbers, such as 000001.jpg")
    numbers = sorted(frames)
    if number_frames([frames[number].path for number in numbers]) != numbers:
        raise ObjectSeekerError(
            f"{folder} is {folder.resolve()}, where video: would not number frames by their names. Call that folder "
            f"{MOT_IMAGES}, or put a seqinfo.ini with its imDir next to it."
        )
    return frames


def _boxes(file: Path, frames: dict[int, ImageRecord], skip_log: SkipLog) -> Iterator[tuple[int, Annotation]]:
    if not file.is_file():
        skip_log.record_skip(NO_GROUND_TRUTH, str(file.parent.parent), f"there is no {file} with the objects")
        return
    for line, text in read_lines(file):
        source = f"{file} line {line}"
        with skip_log:
            number, box = _line(text.split(","), source)
            if number not in frames:
                message = f"{source} is about frame {number + 1}, which has no image"
                raise InvalidAnnotationError(NO_FRAME, source, message)
            yield number, box


def _line(columns: list[str], source: str) -> tuple[int, Annotation]:
    try:
        frame, track, left, top, width, height = (parse_number(text, "a value", source) for text in columns[:6])
        counts = parse_number(columns[6], "a value", source) if len(columns) > 6 else 1.0
        kind = int(parse_number(columns[7], "a class", source)) if len(columns) == CLASS_COLUMNS else 1
        if frame != int(frame) or track != int(track) or track > MAX_TRACK or kind not in CLASSES:
            raise ValueError
    except ValueError:  # an ObjectSeekerError is one
        message = f"{source} is not frame,track,left,top,width,height,counts,class,visibility"
        raise InvalidAnnotationError(UNREADABLE, source, message) from None
    name = CLASSES[kind]
    if name.startswith("occluder"):
        raise InvalidAnnotationError(OCCLUDERS, source, f"{source} is an occluder, not an object")
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
