"""A plain folder of images (or one image), on disk or at an address: no ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from objectseeker.datasets.dataset import Dataset, stream_dataset
from objectseeker.datasets.parsing import SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image, no_image_in, walk_images
from objectseeker.files.remote import Url, is_folder, is_url, walk_url

Listed = tuple[str, Path | Url, int | None]


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Every image below the folder; its id is its path relative to the folder."""
    if is_url(path_spec):
        url = Url(path_spec)
        alone: Listed | None = None if is_folder(path_spec) else (url.name, url, None)
        walk: Callable[[SkipLog], Iterator[Listed]] = partial(_at_address, path_spec)
    else:
        root = Path(path_spec).expanduser()
        alone = None if root.is_dir() else (root.name, root, root.stat().st_size)
        walk = partial(_on_disk, root)
    if alone is not None:
        return stream_dataset(spec, lambda _: iter([alone]), skip_log)
    if next(walk(SkipLog(strict=skip_log.strict)), None) is None:
        raise ObjectSeekerError(no_image_in(path_spec))
    return stream_dataset(spec, walk, skip_log)


def _on_disk(root: Path, skip_log: SkipLog) -> Iterator[Listed]:
    start = len(str(root / "x")) - 1
    for path in filter(skip_log.check_storable, walk_images(root)):
        yield path.as_posix()[start:], path, path.stat().st_size


def _at_address(url: str, skip_log: SkipLog) -> Iterator[Listed]:
    for below, address, size in walk_url(url):
        hidden = any(part.startswith(".") for part in below.split("/"))
        if looks_like_image(below) and not hidden and skip_log.check_storable(Url(address)):
            yield below, Url(address), size
