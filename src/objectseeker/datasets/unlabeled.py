"""Images without ground truth: a folder (or one image), local or remote, and `list:` files.

A list has one path or address per line, or is a Parquet file with a column `path` and perhaps `id`; paths are relative
to its folder. Lists are read piece by piece and their images are not checked before they are observed, so a list may be
larger than memory and its images may be anywhere.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from objectseeker.datasets.dataset import Dataset, ImageFile, stream_dataset
from objectseeker.datasets.parsing import SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image, no_image_in, walk_images
from objectseeker.files.remote import Url, is_folder, is_url, open_url, walk_url
from objectseeker.text import quote

LIST_FORM = "list:FILE.txt or list:FILE.parquet"


def read_folder(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read every image in and below a folder; its id is its path relative to the folder."""
    if is_url(path_spec):
        url = Url(path_spec)
        single: ImageFile | None = None if is_folder(path_spec) else (url.name, url, None)
        walk: Callable[[SkipLog], Iterator[ImageFile]] = partial(_walk_address, path_spec)
    else:
        root = Path(path_spec).expanduser()
        single = None if root.is_dir() else (root.name, root, root.stat().st_size)
        walk = partial(_walk_disk, root)
    if single is not None:
        return stream_dataset(spec, lambda _: iter([single]), skip_log)
    if next(walk(SkipLog(strict=skip_log.strict)), None) is None:
        raise ObjectSeekerError(no_image_in(path_spec))
    return stream_dataset(spec, walk, skip_log)


def _walk_disk(root: Path, skip_log: SkipLog) -> Iterator[ImageFile]:
    start = len(str(root / "x")) - 1
    for path in filter(skip_log.check_storable, walk_images(root)):
        yield path.as_posix()[start:], path, path.stat().st_size


def _walk_address(url: str, skip_log: SkipLog) -> Iterator[ImageFile]:
    for path, address, size in walk_url(url):
        is_hidden = any(part.startswith(".") for part in path.split("/"))
        if looks_like_image(path) and not is_hidden and skip_log.check_storable(Url(address)):
            yield path, Url(address), size


def read_list(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read a list of images; an image's id is its line, or its `id` in a Parquet file with that column."""
    rows = _parquet_rows if path_spec.endswith(".parquet") else _text_rows
    _reject_duplicates(path_spec, rows)
    return stream_dataset(
        spec, lambda _: ((image_id, _resolve(path, path_spec), None) for image_id, path in rows(path_spec)), skip_log
    )


def _text_rows(file: str) -> Iterator[tuple[str, str]]:
    with _open_list(file) as stream:
        try:
            for line in io.TextIOWrapper(stream, "utf-8-sig"):
                if text := line.strip():
                    yield text, text
        except UnicodeDecodeError:
            raise ObjectSeekerError(f"{file} is not a text file in UTF-8. Give {LIST_FORM}.") from None


def _parquet_rows(file: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa  # here, because `import objectseeker` reads no Parquet
    import pyarrow.parquet as pq

    with _open_list(file) as stream:
        try:
            parquet, row = pq.ParquetFile(stream), 0
            columns = ["id", "path"] if "id" in parquet.schema_arrow.names else ["path", "path"]
            for batch in parquet.iter_batches(columns=sorted(set(columns)), use_threads=False):
                for image_id, path in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    row += 1
                    text = _cell(path, "path", file, row, (str,))
                    yield _cell(image_id, "id", file, row, (str, int)), text
        except ObjectSeekerError:
            raise
        except UnicodeDecodeError:
            raise ObjectSeekerError(f"{file} has a path or id that is not UTF-8. Write the list again.") from None
        except (pa.ArrowException, KeyError, OSError, ValueError, OverflowError):  # damaged, or times beyond Python's
            raise ObjectSeekerError(
                f"{file} is not a Parquet file with a text column path. Give {LIST_FORM}."
            ) from None


def _cell(value: object, name: str, file: str, row: int, types: tuple[type, ...]) -> str:
    """Return a cell as text; null, nested values and bytes name no file."""
    if isinstance(value, types) and not isinstance(value, bool) and value != "":
        return str(value)
    raise ObjectSeekerError(f"{file} row {row} has the {name} {quote(value)}; it must be text")


def _open_list(file: str) -> AbstractContextManager[BinaryIO]:
    if is_url(file):
        return open_url(file)
    try:
        return Path(file).expanduser().open("rb")
    except OSError as error:
        raise ObjectSeekerError(f"cannot read the list {file}: {error.strerror}. Give {LIST_FORM}.") from None


def _resolve(path: str, file: str) -> Path | Url:
    if is_url(path):
        return Url(path)
    if is_url(file):
        return Path(path) if path.startswith("/") else Url(f"{file.rpartition('/')[0]}/{path}")
    return Path(file).expanduser().parent / path


def _reject_duplicates(file: str, rows: Callable[[str], Iterator[tuple[str, str]]]) -> None:
    """Reject an id that occurs twice, with eight bytes per image; equal hashes compare ids in full."""
    hashes = array("Q", (_hash(image_id) for image_id, _ in rows(file)))
    values, counts = np.unique(np.frombuffer(hashes, np.uint64) if hashes else np.empty(0), return_counts=True)
    repeated = set(values[counts > 1].tolist())
    if not repeated:
        return
    seen: set[str] = set()
    for image_id, _ in rows(file):
        if image_id in seen:
            raise ObjectSeekerError(f"{file} lists the image {quote(image_id)} twice. Remove one.")
        if _hash(image_id) in repeated:
            seen.add(image_id)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
