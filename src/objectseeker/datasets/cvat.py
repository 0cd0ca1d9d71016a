"""CVAT for video: one XML file with tracks, and a folder with the frames.

A track has a box for every frame it is in, or is marked outside where it is not. Frames are numbered from 0: by the
names of the images if all are called frame_000000 and so on as CVAT exports them, else by their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from objectseeker.core.observation import FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import (
    InvalidAnnotationError,
    SkipLog,
    SkipReason,
    images_by_stem,
    parse_digits,
    parse_number,
    read_xml,
    require_folder,
)
from objectseeker.datasets.sequences import (
    NO_FRAME,
    UNREADABLE,
    assign_tracks,
    natural_sort_key,
    numbering_warnings,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import is_utf8

FORM = "cvat:ANNOTATIONS.xml:IMAGES"
FRAME_NAME = re.compile(r"(?:.*/)?frame_([0-9]{1,9})")
NOT_A_BOX = SkipReason("shape other than a box skipped", "shapes other than boxes skipped")
CORNERS = ("xtl", "ytl", "xbr", "ybr")


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read one sequence with the boxes of all tracks."""
    annotation, _, images = path_spec.rpartition(":")
    if not annotation or not images:
        raise ObjectSeekerError(f"{spec!r} names no file and folder. Give {FORM}.")
    file, folder = Path(annotation).expanduser(), Path(images).expanduser()
    require_folder(folder, f"{spec!r}: {images!r} is not a folder. Give {FORM}.")
    root = read_xml(file, "annotations", "CVAT")
    if root.find("track") is None and root.find("image") is not None:
        raise ObjectSeekerError(f"{file} is a CVAT file for images, without tracks. Export it as CVAT for video.")
    frames = _frames(folder, skip_log)
    for frame, box in _boxes(root, file, skip_log):
        with skip_log:
            if frame not in frames:
                message = f"{box.source} is about frame {frame}, which has no image"
                raise InvalidAnnotationError(NO_FRAME, box.source, message)
            frames[frame].boxes.append(box)
    records = assign_tracks([frames[frame] for frame in sorted(frames)], skip_log)
    names = sorted({box.name for record in records for box in record.boxes})
    return build_dataset(spec, names, records, skip_log, numbering_warnings([records]))


def _frames(folder: Path, skip_log: SkipLog) -> dict[int, ImageRecord]:
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


def _boxes(root: Element, file: Path, skip_log: SkipLog) -> Iterator[tuple[int, Annotation]]:
    for position, track in enumerate(root.findall("track")):
        stated = parse_digits(track.get("id") or "?")
        number = position if stated is None else stated
        for shape in track:
            if shape.get("outside") == "1":
                continue
            source = f"{file}, track {number}, frame {(shape.get('frame') or '?')[:9]}"
            with skip_log:
                if shape.tag != "box":
                    message = f"{source} has a {shape.tag[:40]} where a box is needed"
                    raise InvalidAnnotationError(NOT_A_BOX, source, message)
                frame, name = parse_digits(shape.get("frame") or "?"), track.get("label") or ""
                if frame is None or not name or not is_utf8(name) or any(shape.get(key) is None for key in CORNERS):
                    message = f"{source} lacks a label, a frame number or a corner"
                    raise InvalidAnnotationError(UNREADABLE, source, message)
                x1, y1, x2, y2 = (_corner(shape.get(key) or "", key, source) for key in CORNERS)
                yield frame, Annotation(name, (x1, y1, x2, y2), source, track=number)


def _corner(text: str, name: str, source: str) -> float:
    try:
        return parse_number(text, name, source)
    except InvalidAnnotationError:
        raise
    except ObjectSeekerError as error:
        raise InvalidAnnotationError(UNREADABLE, source, str(error)) from None
