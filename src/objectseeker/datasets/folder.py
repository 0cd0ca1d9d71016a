"""A plain folder of images (or one image): no ground truth."""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets.dataset import Dataset, Record, build
from objectseeker.images import find_images


def read(spec: str, rest: str) -> Dataset:
    """Every image below the folder; its id is its path relative to the folder."""
    root = Path(rest).expanduser()
    base = root if root.is_dir() else root.parent
    paths = find_images([root])
    return build(spec, (), (Record(path.relative_to(base).as_posix(), path, None, []) for path in paths))
