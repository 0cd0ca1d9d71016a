"""Files at addresses such as s3://bucket/photo.jpg, read through fsspec where it is installed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from objectseeker.errors import ObjectSeekerError

ATTEMPTS = 3  # to read one file; object storage fails now and then
PAUSE = 0.5  # seconds before the second attempt, twice as long before the third

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+"  # two letters at least: C: is a drive
_URL = re.compile(rf"{_SCHEME}(::{_SCHEME})*://")


@dataclass(frozen=True, slots=True)
class Url:
    """An address, with as much of a path's manners as images need."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The file's own name: of zip://a/b.png::s3://bucket/c.zip that is b.png."""
        return self.text.split("::")[0].rstrip("/").rpartition("/")[2]


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def read_url(url: str) -> bytes:
    """The whole file. What fails for another reason than that it is not there is tried again."""
    for attempt in range(ATTEMPTS):
        try:
            with _fsspec(url).open(url, "rb") as file:
                return bytes(file.read())
        except ObjectSeekerError:
            raise
        except FileNotFoundError:
            raise ObjectSeekerError("there is no such file") from None
        except Exception as error:  # every kind of storage has exceptions of its own
            if attempt == ATTEMPTS - 1:
                raise ObjectSeekerError(_sentence(error)) from None
            time.sleep(PAUSE * 2**attempt)
    raise AssertionError("unreachable")


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """The file, to be read piece by piece."""
    try:
        with _fsspec(url).open(url, "rb") as file:
            yield file
    except ObjectSeekerError:
        raise
    except Exception as error:
        raise ObjectSeekerError(f"cannot read {url}: {_sentence(error)}") from None


def is_folder(url: str) -> bool:
    """Whether there are files below the address; refuses one where there is nothing."""
    try:
        system, path = _fsspec(url).core.url_to_fs(url)
        info = system.info(path)
    except ObjectSeekerError:
        raise
    except Exception as error:
        raise ObjectSeekerError(f"there is no file or folder {url}: {_sentence(error)}") from None
    return bool(info["type"] == "directory")


def walk_url(url: str) -> Iterator[tuple[str, str, int]]:
    """Every file below a folder, sorted by path: its path below the folder, its address and its size in bytes.

    One folder's names are in memory at a time.
    """
    try:
        system, root = _fsspec(url).core.url_to_fs(url)
        for path, size in _walk(system, root):
            yield path[len(root) :].lstrip("/"), _address(system, path, url), size
    except ObjectSeekerError:
        raise
    except Exception as error:
        raise ObjectSeekerError(f"cannot list {url}: {_sentence(error)}") from None


def _walk(system: Any, folder: str) -> Iterator[tuple[str, int]]:
    for found in sorted(system.ls(folder, detail=True, refresh=True), key=lambda found: found["name"].rstrip("/")):
        path = found["name"].rstrip("/")
        if found["type"] == "directory":
            yield from _walk(system, path)
        elif path != folder.rstrip("/"):  # object storage may list the folder itself as an empty object
            yield path, int(found["size"] or 0)


def _address(system: Any, path: str, url: str) -> str:
    """The address of a file below `url`; a chained address (zip://::s3://...) keeps what comes after its first link."""
    first, *rest = url.split("::")
    if not rest:
        return str(system.unstrip_protocol(path))
    return "::".join([f"{first.partition(':')[0]}://{path.lstrip('/')}", *rest])


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise ObjectSeekerError(f"reading {url} needs fsspec: pip install 'objectseeker[cloud]'") from None
    return fsspec


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
