"""Sequences: the one rule for frame numbers, any dataset as frames, and tracks linked by overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath

import numpy as np

from objectseeker.core.boxes import iou
from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import SkipLog, folder_of, parse_digits, read_text
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image
from objectseeker.files.remote import Url
from objectseeker.text import quote_plain

MOT_IMAGES = "img1"  # the folder of a MOTChallenge sequence that holds its images
MAX_TRACK = 2**53  # any file format stores integers up to this exactly
LINK_IOU = 0.3  # minimum IoU of two boxes in consecutive frames that are linked


# Frame numbers


def number_frames(images: Sequence[Path | Url]) -> list[int]:
    """Return the frame number of each image of one sequence, given in natural order.

    The one rule for `mot:`, `frames:` and `video:`, so that under rolling masks a stream shows every frame the share of
    the masks that a run shows it. In a MOTChallenge image folder the numbers are the names less 1, with gaps where
    images are missing. Anywhere else images are counted from 0.

    Raises:
        ObjectSeekerError: One of several folders is a MOTChallenge folder, or an image in it is not named by a number.
    """
    folders = list(dict.fromkeys(map(_folder_of, images)))
    mot_folders = list(filter(_is_mot_folder, folders))
    numbers = [mot_number(PurePath(image.name).stem) for image in images]
    if not any(
        number is not None and _folder_of(image) in mot_folders for image, number in zip(images, numbers, strict=True)
    ):
        return list(range(len(images)))
    if len(folders) > 1:
        second = next(folder for folder in folders if folder != mot_folders[0])
        raise ObjectSeekerError(
            f"{mot_folders[0]} holds the numbered frames of a sequence, but {second} holds images, too. Give that "
            "folder alone, or move the other images away."
        )
    by_number: dict[int, Path | Url] = {}
    for image, number in zip(images, numbers, strict=True):
        if number is None or number in by_number:
            raise ObjectSeekerError(f"{image} is not named by the number of a frame as the others are. Move it away.")
        by_number[number] = image
    return list(by_number)


def mot_number(stem: str) -> int | None:
    """Return the number, from 0, of a frame that MOTChallenge calls 000001; None for other names."""
    number = parse_digits(stem) if stem else None
    return number - 1 if number else None


def _folder_of(image: Path | Url) -> Path | str:
    return image.parent if isinstance(image, Path) else str(image).rpartition("/")[0]


def _is_mot_folder(folder: Path | str) -> bool:
    """Return whether it is called img1, or seqinfo.ini next to it names it as imDir, links resolved."""
    if isinstance(folder, str):
        return folder.rpartition("/")[2] == MOT_IMAGES
    real = folder.resolve()
    named = (read_seqinfo(real.parent) or {}).get("imdir")
    return real.name == MOT_IMAGES or (named is not None and (real.parent / named).resolve() == real)


def read_seqinfo(folder: Path) -> dict[str, str] | None:
    """Return the values of a sequence's seqinfo.ini: empty without the file, None if it is damaged."""
    file = folder / "seqinfo.ini"
    if not file.is_file():
        return {}
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(file))
        return dict(parser["Sequence"])
    except (IniError, KeyError, ObjectSeekerError):
        return None


def numbering_warnings(sequences: Iterable[Sequence[ImageRecord]]) -> list[str]:
    """Return a warning if `video:` numbers the images of a sequence's folder differently."""
    different = [records[0] for records in sequences if records and _differs_from_video(records)]
    if not different:
        return []
    return [
        f"sequences whose frames video: of their folder numbers differently: {len(different)}, the first with "
        f"{quote_plain(different[0].id)}; with rolling masks, certificates over time do not cover that video"
    ]


def _differs_from_video(records: Sequence[ImageRecord]) -> bool:
    folders = {_folder_of(record.path) for record in records}
    folder = next(iter(folders))
    if len(folders) > 1 or isinstance(folder, str):
        return False  # not a video
    names = [path.name for path in folder.iterdir() if looks_like_image(path.name) and not path.name.startswith(".")]
    names.sort(key=natural_sort_key)
    try:
        of_video = dict(zip(names, number_frames([folder / name for name in names]), strict=True))
    except ObjectSeekerError:
        return False  # video: raises the same error
    return any(record.frame is None or of_video[record.path.name] != record.frame.number for record in records)


def natural_sort_key(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by value: frame9 before frame10."""
    parts = re.split(r"([0-9]+)", text)  # every other one is a number
    return [*((int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)), (-1, text)]


# Sequences from folders and datasets


def sequences_below(text: str, is_sequence: Callable[[Path], bool], spec: str, form: str) -> list[tuple[str, Path]]:
    """Return names and folders of the sequences: that folder, else those in it, else those one level down."""
    root = folder_of(text, spec, form)
    if is_sequence(root):
        return [(root.resolve().name, root)]
    for pattern in ("*", "*/*"):
        if folders := sorted(filter(is_sequence, root.glob(pattern))):
            return [(folder.relative_to(root).as_posix(), folder) for folder in folders]
    raise ObjectSeekerError(f"{spec!r}: there is no sequence in {root}. Give {form}.")


def as_sequences(spec: str, dataset: Dataset, skip_log: SkipLog) -> Dataset:
    """Turn the images of each folder into the frames of a sequence, with objects linked by overlap."""
    folders: dict[str, list[ImageRecord]] = {}
    for image in sorted(dataset.images, key=lambda image: natural_sort_key(image.id)):
        boxes = [
            Annotation(dataset.names[label], tuple(xyxy), f"image {image.id}", ignore, crowd)
            for xyxy, label, ignore, crowd in zip(
                image.ground_truth.xyxy.tolist(),
                np.asarray(image.ground_truth.label).tolist(),
                image.ignore.tolist(),
                image.crowd.tolist(),
                strict=True,
            )
        ]
        records = folders.setdefault(PurePosixPath(image.id).parent.as_posix(), [])
        records.append(ImageRecord(image.id, image.path, image.size, boxes))
    root_name = PurePosixPath(dataset.spec).name
    sequences = []
    for folder, records in folders.items():
        name = root_name if folder == "." and root_name not in folders else folder
        numbers = number_frames([record.path for record in records])
        numbered = sorted(zip(numbers, records, strict=True), key=lambda item: item[0])
        sequences.append(link_by_overlap([replace(item, frame=FrameIndex(name, number)) for number, item in numbered]))
    linked = [record for sequence in sequences for record in sequence]
    warnings = (*dataset.warnings, *numbering_warnings(sequences))
    return replace(build_dataset(spec, dataset.names, linked, skip_log), warnings=warnings)


def parse_fps(value: object, source: str, skip_log: SkipLog) -> float | None:
    """Return the frame rate that an annotation states; None if it states none, or an impossible one."""
    if value is None:
        return None
    try:
        fps = float(str(value))
        if 0 < fps < 1e6:
            return fps
    except ValueError:
        pass
    message = f"{source} has the frame rate {str(value)[:40]!r}; it must be a number of frames per second above 0"
    skip_log.record_skip("sequences with unreadable frame rates", source, message)
    return None


# Tracks


def assign_tracks(records: Sequence[ImageRecord], skip_log: SkipLog) -> list[ImageRecord]:
    """Return the frames of one sequence with at most one object of each track per frame.

    If no object has a track, objects are linked by overlap. A second object of a track in one frame, which must be a
    mistake, keeps no track.
    """
    unique = [replace(record, boxes=_without_duplicate_tracks(record.boxes, skip_log)) for record in records]
    has_tracks = any(box.track != NO_TRACK for record in unique for box in record.boxes)
    return unique if has_tracks else link_by_overlap(unique)


def _without_duplicate_tracks(boxes: Sequence[Annotation], skip_log: SkipLog) -> list[Annotation]:
    seen: set[int] = set()
    kept = []
    for box in boxes:
        if box.track in seen:
            message = f"{box.source} has a second object of track {box.track} in one frame"
            skip_log.record_skip("second objects of a track in one frame kept without a track", box.source, message)
            box = replace(box, track=NO_TRACK)
        elif box.track != NO_TRACK:
            seen.add(box.track)
        kept.append(box)
    return kept


def link_by_overlap(records: Sequence[ImageRecord]) -> list[ImageRecord]:
    """Return the frames of one sequence with objects linked to tracks by overlap.

    From each frame to the next the pairs of boxes of one class whose IoU is at least LINK_IOU are linked, the largest
    IoU first, each box once. A box that no pair links begins a track, and one that is not continued ends. Crowds
    are not objects: they have no track. Missing frames end all tracks.
    """
    linked: list[ImageRecord] = []
    next_track = 0
    for record in records:
        numbers = [entry.frame.number for entry in (*linked[-1:], record) if entry.frame is not None]
        is_next = len(numbers) == 2 and numbers[0] + 1 == numbers[1]
        continued = _continued_tracks(linked[-1].boxes, record.boxes) if is_next else {}
        boxes = []
        for index, box in enumerate(record.boxes):
            track = NO_TRACK if box.crowd else continued.get(index, next_track)
            next_track += track == next_track
            boxes.append(replace(box, track=track))
        linked.append(replace(record, boxes=boxes))
    return linked


def _continued_tracks(previous: Sequence[Annotation], boxes: Sequence[Annotation]) -> dict[int, int]:
    """Return the tracks of `previous` that continue, by index into `boxes`."""
    if not previous or not boxes:
        return {}
    old_boxes, new_boxes = (np.array([box.xyxy for box in frame], dtype=np.float64) for frame in (previous, boxes))
    with np.errstate(all="ignore"):  # a coordinate may be impossible: such a box is skipped later on
        overlap = np.nan_to_num(iou(old_boxes, new_boxes), nan=0.0)
    different = [[a.name != b.name or a.crowd or b.crowd for b in boxes] for a in previous]
    overlap[np.array(different)] = 0
    continued: dict[int, int] = {}
    used: set[int] = set()
    for pair in np.argsort(-overlap, axis=None, kind="stable").tolist():
        old, new = divmod(pair, len(boxes))
        if overlap[old, new] < LINK_IOU:
            break
        if old not in used and new not in continued:
            used.add(old)
            continued[new] = previous[old].track
    return continued
