"""Where the images and label files of a YOLO dataset lie: images/ and labels/, Roboflow's folders, or a data.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from objectseeker.datasets.notes import Kind, Notes, below
from objectseeker.datasets.reading import exists, images_by_stem, read_lines, require_folder
from objectseeker.datasets.shown import plain, shown, writable
from objectseeker.datasets.yolo_names import NAMES_FILE, yaml_file
from objectseeker.datasets.yolo_yaml import read_text, values
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image

SPLITS = ("train", "val", "test")
SAME = {"val": ("val", "valid"), "valid": ("valid", "val")}  # Roboflow's folder and Ultralytics' key
NO_FOLDER = Kind("split without its folder left out", "splits without their folders left out")
NO_IMAGE = Kind("text file without an image left out", "text files without an image left out", "at")


@dataclass(frozen=True, slots=True)
class Labelled:
    """One image and where its label file would be."""

    id: str
    image: Path
    label: Path


def find_images_and_labels(spec: str, root: Path, split: str, notes: Notes) -> list[Labelled]:
    """`root` is the folder or the YAML file that the user named; `split` is empty where none is."""
    if root.is_file():
        return _of_yaml(spec, root, split, notes)
    images, labels = root / "images" / split, root / "labels" / split
    if not images.is_dir():
        if parts := _roboflow(root, split):
            return _joined([(name, _in_folder(part / "images", part / "labels", notes)) for name, part in parts])
        file = yaml_file(root)
        if file is not None and any(values(read_text(file), key, file) for key in SPLITS):
            return _of_yaml(spec, file, split, notes)
        if not split and _has_labels_beside(root):
            return _in_folder(root, root, notes)
        raise ObjectSeekerError(f"{spec!r}: there is no folder {images}")
    return _in_folder(images, require_folder(labels, f"{spec!r}: there is no folder {labels}"), notes)


def _roboflow(root: Path, split: str) -> list[tuple[str, Path]]:
    """The folders train, valid and test that hold images and labels; of a named split, only its own."""
    names = SAME.get(split, (split,)) if split else ("train", "valid", "val", "test")
    return [(name, root / name) for name in names if all((root / name / sub).is_dir() for sub in ("images", "labels"))]


def _joined(parts: list[tuple[str, list[Labelled]]]) -> list[Labelled]:
    """All images; where there are several parts, each id begins with that of its part."""
    if len(parts) == 1:
        return parts[0][1]
    return [Labelled(f"{name}/{one.id}", one.image, one.label) for name, part in parts for one in part]


def _in_folder(images: Path, labels: Path, notes: Notes) -> list[Labelled]:
    paths = images_by_stem(images, notes)
    for file in filter(lambda file: writable(str(file)), sorted(labels.rglob("*.txt"))):
        if file.name != NAMES_FILE and file.relative_to(labels).with_suffix("").as_posix() not in paths:
            refusal = f"{file} has no image of the same name in {images}"
            if images != labels:  # beside images there are other text files: lists of images, a readme
                raise ObjectSeekerError(refusal)
            notes.note(NO_IMAGE, str(file), refusal)
    return [Labelled(stem, path, labels / f"{stem}.txt") for stem, path in paths.items()]


def _has_labels_beside(folder: Path) -> bool:
    return any(looks_like_image(path.name) and path.with_suffix(".txt").is_file() for path in folder.iterdir())


def _of_yaml(spec: str, file: Path, split: str, notes: Notes) -> list[Labelled]:
    text = read_text(file)
    stated = {key: values(text, key, file) for key in SPLITS}
    keys = [key for key in (SAME.get(split, (split,)) if split else SPLITS) if stated.get(key)]
    if not keys:
        known = ", ".join(key for key in SPLITS if stated[key]) or "none of train, val and test"
        raise ObjectSeekerError(f"{spec!r}: {file} has no images for {split or 'any split'}; it has {known}")
    base = file.parent.joinpath(*values(text, "path", file)[:1])
    parts: list[tuple[str, list[Labelled]]] = []
    seen: set[Path] = set()
    for key, value in [(one, each) for one in keys for each in stated[one]]:
        place = _place(value, base, file, notes)
        if place is None:
            source = f"{file}, {key}: {plain(value)}"
            refusal = f"{source} is neither a folder nor a list of images; correct it"
            if split:
                raise ObjectSeekerError(refusal)
            notes.note(NO_FOLDER, source, refusal)
        elif place.resolve() not in seen:  # some files name one folder for several splits
            seen.add(place.resolve())
            name = key if len(stated[key]) == 1 else f"{key}/{value.strip('./')}"
            parts.append((name, _in_place(place, file, notes)))
    if not parts:
        raise ObjectSeekerError(f"{spec!r}: none of the folders that {file} names is there; correct its path")
    return _joined(parts)


def _place(value: str, base: Path, file: Path, notes: Notes) -> Path | None:
    """The folder or list that a YAML file names; None if there is nothing.

    Roboflow writes ../train/images for train/images beside the file, and a `path` is often that of another machine.
    """
    names = (value, value.removeprefix("../"))
    there = [path for folder in (base, file.parent) for path in (folder / name for name in names) if exists(path)]
    inside = [path for path in (below(file.parent, path) for path in there) if path is not None]
    if inside or not there:
        return inside[0] if inside else None
    if notes.outside:
        return there[0]
    raise ObjectSeekerError(
        f"{file} names {shown(value)}, which lies outside {file.parent}; put the file beside its images, or allow it "
        "with outside"
    )


def _in_place(place: Path, file: Path, notes: Notes) -> list[Labelled]:
    if place.is_dir():
        return _in_folder(place, _labels_of(place), notes)
    return list(_in_list(place, file.parent, notes))


def _in_list(listing: Path, root: Path, notes: Notes) -> Iterator[Labelled]:
    """The images of a text file, one path a line, relative to the file."""
    for line, text in read_lines(listing):
        source, name = f"{listing} line {line}", text.strip()
        path = listing.parent / name
        if not notes.outside:
            path = Path(notes.inside(root, str(path.absolute()), source))
        yield Labelled(Path(name).with_suffix("").as_posix(), path, _labels_of(path.parent) / f"{path.stem}.txt")


def _labels_of(images: Path) -> Path:
    """labels where the path has images; beside the images if there is no such folder."""
    parts = list(images.parts)
    if "images" not in parts:
        return images
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts) if Path(*parts).is_dir() else images
