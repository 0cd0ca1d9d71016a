"""A list of images in a file: one path or address a line, or a Parquet file with a column path. No ground truth.

It is read piece by piece, and nothing is asked about the images before they are observed, so a list may be longer than
memory and its images may lie anywhere. Paths are relative to the folder of the list.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from objectseeker.datasets.dataset import Dataset, stream_dataset
from objectseeker.datasets.parsing import SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import Url, is_url, open_url
from objectseeker.text import shown

FORM = "list:FILE.txt or list:FILE.parquet"


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """An image's id is its line; in a Parquet file that of its column id, if there is one."""
    lines = _rows if path_spec.endswith(".parquet") else _lines
    _refuse_repeats(path_spec, lines)
    return stream_dataset(
        spec, lambda _: ((identity, _place(path, path_spec), None) for identity, path in lines(path_spec)), skip_log
    )


def _lines(file: str) -> Iterator[tuple[str, str]]:
    with _opened(file) as stream:
        try:
            for line in io.TextIOWrapper(stream, "utf-8-sig"):
                if text := line.strip():
                    yield text, text
        except UnicodeDecodeError:
            raise ObjectSeekerError(f"{file} is not a text file in UTF-8; give {FORM}") from None


def _rows(file: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa  # here, because `import objectseeker` reads no Parquet
    import pyarrow.parquet as pq

    with _opened(file) as stream:
        try:
            parquet, row = pq.ParquetFile(stream), 0
            columns = ["id", "path"] if "id" in parquet.schema_arrow.names else ["path", "path"]
            for batch in parquet.iter_batches(columns=sorted(set(columns)), use_threads=False):
                for identity, path in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    row += 1
                    text = _known(path, "path", file, row, (str,))
                    yield _known(identity, "id", file, row, (str, int)), text
        except ObjectSeekerError:
            raise
        except UnicodeDecodeError:
            raise ObjectSeekerError(f"{file} has a path or id that is not UTF-8; write the list anew") from None
        except (pa.ArrowException, KeyError, OSError, ValueError, OverflowError):  # damaged, or times beyond Python's
            raise ObjectSeekerError(f"{file} is no Parquet file with a column path of text; give {FORM}") from None


def _known(value: object, name: str, file: str, row: int, types: tuple[type, ...]) -> str:
    """The value of one cell as text; null, nested values and bytes name no file."""
    if isinstance(value, types) and not isinstance(value, bool) and value != "":
        return str(value)
    raise ObjectSeekerError(f"{file} row {row} has the {name} {shown(value)}; it must be text")


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    if is_url(file):
        return open_url(file)
    try:
        return Path(file).expanduser().open("rb")
    except OSError as error:
        raise ObjectSeekerError(f"cannot read the list {file}: {error.strerror}; give {FORM}") from None


def _place(path: str, file: str) -> Path | Url:
    if is_url(path):
        return Url(path)
    if is_url(file):
        return Path(path) if path.startswith("/") else Url(f"{file.rpartition('/')[0]}/{path}")
    return Path(file).expanduser().parent / path


def _refuse_repeats(file: str, lines: Callable[[str], Iterator[tuple[str, str]]]) -> None:
    """No id may come twice. Eight bytes an image are kept, and the few that agree in these are looked at in full."""
    hashes = array("Q", (_hash(identity) for identity, _ in lines(file)))
    values, counts = np.unique(np.frombuffer(hashes, np.uint64) if hashes else np.empty(0), return_counts=True)
    suspicious = set(values[counts > 1].tolist())
    if not suspicious:
        return
    seen: set[str] = set()
    for identity, _ in lines(file):
        if identity in seen:
            raise ObjectSeekerError(f"{file} lists the image {shown(identity)} twice; remove one")
        if _hash(identity) in suspicious:
            seen.add(identity)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
