"""Which files a python detector is made of: its own sources, and what it reads.

The weights that a program reads decide its boxes as much as its source does. Python tells which files it opens; what a
library written in another language opens it does not, so a file that a source names as a text counts as well.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

SYSTEM = ("/proc", "/sys", "/etc")  # what is read there differs from machine to machine, and is no weight
# What Python says of itself, and cannot look into.
BEYOND = {
    "subprocess.Popen": "it starts another process",
    "os.posix_spawn": "it starts another process",
    "os.system": "it starts another process",
    "os.exec": "it starts another process",
    "socket.connect": "it asks another machine",
    "ctypes.dlopen": "it loads a library",
}
OPEN_BY_PYTHON = ("numpy", "PIL", "objectseeker")  # compiled packages that read files through Python
COMPILED = (".so", ".pyd", ".dylib")
ACCESS = 3  # the bits of `open` flags that say whether a file is read or written
LOADER = str(Path(__file__).with_name("python.py"))  # what imports detectors, and calls them for a first time
LONGEST_NAME = 1000  # of a text that may name a file


@dataclass(slots=True)
class Opened:
    """The paths that were opened: to read (or to read and write), and only to write."""

    read: set[Path] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)
    beyond: set[str] = field(default_factory=set)  # what else was done of which Python cannot tell what it brings in


_listening: list[tuple[Opened, frozenset[int | None]]] = []  # who listens, and the threads that do not matter


@lru_cache(maxsize=1)
def _hook() -> None:
    """Installed once, when first needed: an audit hook stays until the process ends."""
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not _listening or (event != "open" and event not in BEYOND):
        return
    with suppress(Exception):  # what a hook raises would be raised by whoever opened the file
        if event in BEYOND:
            if not _importing_installed():
                for opened, others in _listening:
                    if threading.get_ident() not in others:
                        opened.beyond.add(BEYOND[event])
            return
        path = Path(os.fsdecode(args[0])).absolute()
        if path.suffix == ".pyc" or _installed(path):
            return
        path = path.resolve()
        if _importing_installed():
            return
        for opened, others in _listening:
            if threading.get_ident() not in others:
                (opened.written if args[2] & ACCESS == os.O_WRONLY else opened.read).add(path)


def _importing_installed() -> bool:
    """Whether the detector is just importing an installed package: settings and caches that it reads are no weights.

    What loads the detector says nothing: a server or `python -m` is an installed module that has not come to its end.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != LOADER:
        if frame.f_code.co_name == "<module>" and _installed(Path(frame.f_code.co_filename)):
            return True
        frame = frame.f_back
    return False


@contextmanager
def listening() -> Iterator[Opened]:
    """What is opened inside, by this thread and those that it starts."""
    _hook()
    others = frozenset(thread.ident for thread in threading.enumerate()) - {threading.get_ident()}
    entry = Opened(), others
    _listening.append(entry)
    try:
        yield entry[0]
    finally:
        _listening.remove(entry)


def data_files(opened: Iterable[Path]) -> set[Path]:
    """Of the paths that were opened, the regular files that belong to no installation and were not imported."""
    files = {path for path in opened if not _installed(path) and _is_file(path)}
    if any(path.suffix == ".py" for path in files):  # settings may be written in Python, too
        imported = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        files -= {Path(file).resolve() for file in imported if file}
    return files


@dataclass(frozen=True, slots=True)
class Program:
    """Modules, and those that they import, as far as they belong to no installation; and the files they name."""

    modules: dict[str, Path]
    named: frozenset[Path]
    installed: frozenset[str]  # the packages among what they import that do belong to one

    @property
    def unseen(self) -> list[str]:
        """The packages that may open files where Python does not see it: compiled ones."""
        loaded = [
            name.partition(".")[0]
            for name, module in list(sys.modules.items())
            if str(getattr(module, "__file__", None) or "").endswith(COMPILED)
        ]
        return sorted(self.installed.intersection(loaded).difference(OPEN_BY_PYTHON, sys.stdlib_module_names))

    @classmethod
    def of(cls, name: str, *others: str) -> Program:
        """The program that begins with module `name`; what `others` of its package are installed counts with it."""
        modules: dict[str, Path] = {}
        named: set[Path] = set()
        installed: set[str] = set()
        waiting = [*_with_parents(name), *others]
        top = name.partition(".")[0]
        while waiting:
            module = sys.modules.get(current := waiting.pop())
            file = getattr(module, "__file__", None)
            if current in modules or module is None or file is None:
                continue
            path = Path(file).resolve()
            if _installed(path) and current.partition(".")[0] != top:
                installed.add(current.partition(".")[0])
                continue
            if not path.is_file():
                continue
            modules[current] = path
            imports, texts = _read_source(path, module)
            waiting += imports
            named |= {found for text in texts for found in _named(text, path.parent)}
        return cls(modules, frozenset(named - set(modules.values())), frozenset(installed))


def _read_source(path: Path, module: ModuleType) -> tuple[set[str], set[str]]:
    """The names of the modules that a source imports, wherever in it, and its short texts."""
    imports: set[str] = set()
    texts: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # no source: an extension, or compiled code alone
        return imports, texts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(part for alias in node.names for part in _with_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
                imports.update(_with_parents(base), (f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= LONGEST_NAME:
            texts.add(node.value)
    return imports, texts


def _with_parents(name: str) -> Iterator[str]:
    """a.b.c, a.b and a: importing the first runs all of them."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _named(text: str, folder: Path) -> Iterator[Path]:
    """The files that a text names, seen from the current folder and from that of the source."""
    for base in (Path.cwd(), folder):
        path = base / text
        if text and _is_file(path) and not _installed(path := path.resolve()):
            yield path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False


def _installed(path: Path) -> bool:
    """Whether a file belongs to Python, to an installed package, to this one, or to the system."""
    return any(path.is_relative_to(folder) for folder in _installations(tuple(sys.path)))


@lru_cache(maxsize=8)
def _installations(search: tuple[str, ...]) -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    places |= {entry for entry in search if Path(entry).name in ("site-packages", "dist-packages")}
    places |= {os.path.realpath(place) for place in places}
    return (*sorted(places), str(Path(__file__).parents[1]), *SYSTEM)
