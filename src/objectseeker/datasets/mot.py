"""MOTChallenge: a folder a sequence, with img1/000001.jpg, gt/gt.txt and seqinfo.ini; or a folder of such folders.

A line of gt.txt is `frame,track,left,top,width,height,counts,class,visibility` (2016 and later), or without a class
(2015, ten columns that end in coordinates of the world, or fewer). Frames and pixels are counted from 1. What does not
count (0 in the seventh column) is ignored, and so are the classes that the challenge forgives: persons on vehicles,
static persons, distractors and reflections, all of them as pedestrians.
"""

from __future__ import annotations

from collections.abc import Iterator
from configparser import ConfigParser
from configparser import Error as IniError
from pathlib import Path

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import (
    InvalidAnnotationError,
    SkipLog,
    SkipReason,
    images_by_stem,
    parse_number,
    read_bytes,
    read_lines,
    require_folder,
)
from objectseeker.datasets.sequences import (
    LARGEST_TRACK,
    MOT_IMAGES,
    NO_FRAME,
    UNREADABLE,
    assign_tracks,
    mot_number,
    parse_fps,
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
FORGIVEN = ("person on vehicle", "static person", "distractor", "reflection")
OCCLUDERS = SkipReason("occluder skipped", "occluders skipped")
NO_NUMBER = SkipReason(
    "image whose name is no frame number skipped", "images whose names are no frame numbers skipped", "at"
)
NO_TRUTH = SkipReason(
    "sequence without gt/gt.txt read without objects", "sequences without gt/gt.txt read without objects"
)
BAD_INI = SkipReason("seqinfo.ini that cannot be read", "seqinfo.ini files that cannot be read", "at")
CLASS_COLUMNS = 9  # of a line that has a class


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """All sequences of the folder. Objects without a track (-1) in the whole sequence are linked by overlap."""
    records = []
    for name, folder in sequences_below(Path(path_spec).expanduser(), _is_sequence, spec, FORM):
        records += assign_tracks(_records(name, folder, skip_log), skip_log)
    occurring = {box.name for record in records for box in record.boxes}
    names = [name for name in CLASSES.values() if name in occurring or name == PERSON]
    return build_dataset(spec, names, records, skip_log)


def _is_sequence(folder: Path) -> bool:
    return (folder / "seqinfo.ini").is_file() or (folder / MOT_IMAGES).is_dir()


def _records(name: str, folder: Path, skip_log: SkipLog) -> list[ImageRecord]:
    info = _info(folder / "seqinfo.ini", skip_log)
    ini = str(folder / "seqinfo.ini")
    fps = parse_fps(info.get("framerate"), ini, skip_log)
    place = Path(skip_log.resolve_inside(folder, info.get("imdir") or MOT_IMAGES, ini))
    images = images_by_stem(require_folder(place, f"{folder} has no folder {place.name} with its images"), skip_log)
    frames: dict[int, ImageRecord] = {}  # counted from 1, as in the annotation
    for stem, path in images.items():
        number_of = mot_number(stem)
        if number_of is None or number_of + 1 in frames:
            skip_log.record_skip(NO_NUMBER, str(path), f"{path} is not named by the number of a frame, from 1 on")
            continue
        frame = FrameIndex(name, number_of, fps)
        frames[number_of + 1] = ImageRecord(f"{name}/{stem}", path, image_size(path), [], frame)
    if not frames:
        raise ObjectSeekerError(f"{place} holds no images that are named by frame numbers, such as 000001.jpg")
    for number_of, box in _boxes(folder / "gt" / "gt.txt", frames, skip_log):
        frames[number_of].boxes.append(box)
    return [frames[number_of] for number_of in sorted(frames)]


def _info(file: Path, skip_log: SkipLog) -> dict[str, str]:
    if not file.is_file():
        return {}
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_bytes(file).decode("utf-8-sig"))
        return dict(parser["Sequence"])
    except (IniError, KeyError, UnicodeDecodeError):
        skip_log.record_skip(BAD_INI, str(file), f"{file} cannot be read: it must have a section [Sequence]")
        return {}


def _boxes(file: Path, frames: dict[int, ImageRecord], skip_log: SkipLog) -> Iterator[tuple[int, Annotation]]:
    if not file.is_file():
        skip_log.record_skip(NO_TRUTH, str(file.parent.parent), f"there is no {file} with the objects")
        return
    for line, text in read_lines(file):
        source = f"{file} line {line}"
        with skip_log:
            frame, box = _line(text.split(","), source)
            if frame not in frames:
                raise InvalidAnnotationError(NO_FRAME, source, f"{source} is about frame {frame}, which has no image")
            yield frame, box


def _line(columns: list[str], source: str) -> tuple[int, Annotation]:
    try:
        frame, track, left, top, width, height = (parse_number(text, "a value", source) for text in columns[:6])
        counts = parse_number(columns[6], "a value", source) if len(columns) > 6 else 1.0
        kind = int(parse_number(columns[7], "a class", source)) if len(columns) == CLASS_COLUMNS else 1
        if frame != int(frame) or track != int(track) or track > LARGEST_TRACK or kind not in CLASSES:
            raise ValueError
    except ValueError:  # an ObjectSeekerError is one
        raise InvalidAnnotationError(
            UNREADABLE, source, f"{source} is not frame,track,left,top,width,height,counts,class,visibility"
        ) from None
    name = CLASSES[kind]
    if name.startswith("occluder"):
        raise InvalidAnnotationError(OCCLUDERS, source, f"{source} is an occluder, which is no object")
    forgiven = name in FORGIVEN
    box = Annotation(
        PERSON if forgiven or name == CROWD else name,
        (left - 1, top - 1, left - 1 + width, top - 1 + height),
        source,
        ignore=forgiven or counts == 0,
        crowd=name == CROWD,
        track=int(track) if track >= 0 else NO_TRACK,
    )
    return int(frame), box
