"""A plain folder of images (or one image), on disk or at an address: no ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from objectseeker.datasets.dataset import Dataset, stream
from objectseeker.datasets.notes import Notes
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image, no_image_in, walk_images
from objectseeker.files.remote import Url, is_folder, is_url, walk_url

Listed = tuple[str, Path | Url, int | None]


def read(spec: str, rest: str, notes: Notes) -> Dataset:
    """Every image below the folder; its id is its path relative to the folder."""
    if is_url(rest):
        url = Url(rest)
        alone: Listed | None = None if is_folder(rest) else (url.name, url, None)
        walk: Callable[[Notes], Iterator[Listed]] = partial(_at_address, rest)
    else:
        root = Path(rest).expanduser()
        alone = None if root.is_dir() else (root.name, root, root.stat().st_size)
        walk = partial(_on_disk, root)
    if alone is not None:
        return stream(spec, lambda _: iter([alone]), notes)
    if next(walk(Notes(strict=notes.strict)), None) is None:
        raise ObjectSeekerError(no_image_in(rest))
    return stream(spec, walk, notes)


def _on_disk(root: Path, notes: Notes) -> Iterator[Listed]:
    start = len(str(root / "x")) - 1
    for path in filter(notes.storable, walk_images(root)):
        yield path.as_posix()[start:], path, path.stat().st_size


def _at_address(url: str, notes: Notes) -> Iterator[Listed]:
    for below, address, size in walk_url(url):
        hidden = any(part.startswith(".") for part in below.split("/"))
        if looks_like_image(below) and not hidden and notes.storable(Url(address)):
            yield below, Url(address), size
