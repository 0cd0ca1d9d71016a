"""KITTI object detection: image_2 with the frames, label_2 with one text file each.

A line is `type truncated occluded alpha x1 y1 x2 y2 ...`, 15 columns. Coordinates are 0-based pixels, kept unchanged.
Classes are merged to three as in the ObjectSeeker paper.
"""

from __future__ import annotations

from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import SkipLog, folder_of, images_by_stem, parse_number, read_lines, require_folder
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import is_utf8, quote

NAMES = ("car", "pedestrian", "cyclist")
MERGED = {  # type in lower case -> class
    **dict.fromkeys(("car", "van", "truck", "tram"), "car"),
    **dict.fromkeys(("pedestrian", "person_sitting"), "pedestrian"),
    "cyclist": "cyclist",
}
IGNORED_REGION, SKIPPED = "dontcare", "misc"
COLUMNS = 15


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read a KITTI folder with the classes car, pedestrian and cyclist; skip Misc objects with a warning.

    A DontCare region has no class: it becomes one ignored crowd box of each class, so that detections of every class in
    it are ignored.
    """
    root = folder_of(path_spec, spec, "kitti:DIR")
    root = root / "training" if (root / "training").is_dir() else root
    folder = require_folder(root / "image_2", f"{spec!r}: {root} has no folder image_2. Add it.")
    labels = require_folder(root / "label_2", f"{spec!r}: {root} has no folder label_2 with the annotation. Add it.")
    images = images_by_stem(folder, skip_log)
    for file in sorted(labels.glob("*.txt")):
        if is_utf8(file.stem) and file.stem not in images:
            raise ObjectSeekerError(f"{file} has no image {file.stem!r} in {folder}. Add or remove one.")
    records, skipped = [], 0
    for stem, path in images.items():
        boxes = [box for part in skip_log.parse_each(_boxes, read_lines(labels / f"{stem}.txt")) for box in part]
        kept = [box for box in boxes if box.name != SKIPPED]
        skipped += len(boxes) - len(kept)
        records.append(ImageRecord(stem, path, image_size(path), kept))
    warnings = [f"objects of type Misc skipped: {skipped}"] if skipped else []
    return build_dataset(spec, NAMES, records, skip_log, warnings)


def _boxes(line: tuple[str, str]) -> list[Annotation]:
    source, text = line
    columns = text.split()
    if len(columns) != COLUMNS:
        raise ObjectSeekerError(f"{source} has {len(columns)} columns; a KITTI label has {COLUMNS}. Correct it.")
    x1, y1, x2, y2 = (parse_number(columns[column], "a box coordinate", source) for column in range(4, 8))
    kind = columns[0].lower()
    if kind == IGNORED_REGION:
        return [Annotation(name, (x1, y1, x2, y2), source, crowd=True) for name in NAMES]
    if kind in MERGED or kind == SKIPPED:
        return [Annotation(MERGED.get(kind, SKIPPED), (x1, y1, x2, y2), source)]
    raise ObjectSeekerError(f"{source} has the unknown type {quote(columns[0])}. Use one of {', '.join(MERGED)}.")
