"""What a reader may do, and what it left out: counted, and named in one sentence for each kind."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import Url
from objectseeker.text import readable, shown, writable


class SkipReason(NamedTuple):
    """One kind of thing worth a sentence, as it is said of one and of many."""

    one: str
    many: str
    at: str = "in"  # what stands before its place


NO_AREA = SkipReason("box without area left out", "boxes without area left out")
OUTSIDE = SkipReason("box wholly outside its image left out", "boxes wholly outside their images left out")
IMPOSSIBLE = SkipReason("box with an impossible coordinate left out", "boxes with impossible coordinates left out")
BAD_NAME = SkipReason("file whose name is not UTF-8 left out", "files whose names are not UTF-8 left out", "at")


class InvalidAnnotationError(ObjectSeekerError):
    """One annotation or file that cannot be used, where the rest can."""

    def __init__(self, kind: SkipReason, source: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind, self.source = kind, source


class SkipLog:
    """What the user allows, and what was left out so far.

    A `with` block around one item leaves it out if it proves unusable; with `strict` the error goes on to the user.
    `outside` allows paths that lead out of the folder that the user named.
    """

    def __init__(self, *, strict: bool = False, outside: bool = False) -> None:
        self.strict, self.outside = strict, outside
        self._counts: dict[SkipReason, int] = {}
        self._first: dict[SkipReason, str] = {}
        self._last: dict[SkipReason, str] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if self.strict or not isinstance(error, InvalidAnnotationError):
            return False
        self._count(error.kind, error.source)
        return True

    def note(self, kind: SkipReason, source: str, refusal: str) -> None:
        """Count one of a kind, or refuse it where the user is strict."""
        if self.strict:
            raise ObjectSeekerError(refusal)
        self._count(kind, source)

    def check_storable(self, path: Path | Url) -> bool:
        """Whether the path can be written down; one that is not UTF-8 is noted, since no file of a run can hold it."""
        if writable(str(path)):
            return True
        name = readable(path)
        self.note(BAD_NAME, name, f"the name of {name} is not UTF-8; rename the file")
        return False

    def inside(self, folder: Path | Url, name: str, source: str) -> Path | Url:
        """The file called `name` below `folder`; one that lies elsewhere is refused unless the user allows it."""
        if isinstance(folder, Url):
            steps = name.replace("\\", "/").split("/")
            if self.outside or not (".." in steps or "::" in name):
                return Url(f"{folder}/{name}")
        elif self.outside:
            return folder / name
        elif (path := below(folder, folder / name)) is not None:
            return path
        raise ObjectSeekerError(
            f"{source} names {shown(name)}, which lies outside {folder}; move the file there, or allow it with outside"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{count:,} {kind.many}, the first {kind.at} {self._first[kind]}"
            if count > 1
            else f"1 {kind.one}, {kind.at} {self._first[kind]}"
            for kind, count in self._counts.items()
        )

    def _count(self, kind: SkipReason, source: str) -> None:
        if self._last.get(kind) != source:  # a region that stands for every class is one thing all the same
            self._counts[kind] = self._counts.get(kind, 0) + 1
        self._first.setdefault(kind, source)
        self._last[kind] = source


def below(folder: Path, path: Path) -> Path | None:
    """`path` without detours, or None if it lies outside `folder`.

    A link inside the folder is the user's own and may lead anywhere, but `..` is taken literally and never follows one.
    The folder itself may be named by a link.
    """
    plain, root = (Path(os.path.abspath(item)) for item in (path, folder))  # noqa: PTH100  # resolve follows links
    if plain.is_relative_to(root):
        return folder / plain.relative_to(root)
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a name the system cannot have, a circle of links
        return None
    return folder / real.relative_to(root) if real.is_relative_to(root) else None
