"""Your own detector: any callable from a sequence of images to one `Detections` per image.

Naming one executes it: `python:MODULE:FUNCTION` imports MODULE and calls FUNCTION, with all the rights that you have.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import DEFAULT_FILL, Image
from objectseeker.core.seeker import UNTOUCHED
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import MOST_CLASSES, normalize_names
from objectseeker.errors import ObjectSeekerError

# Which files a python detector is made of: its own sources, and what it reads.
#
# The weights that a program reads decide its boxes as much as its source does. Python tells which files it opens;
# what a
# library written in another language opens it does not, so a file that a source names as a text counts as well.


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
class OpenedFiles:
    """The paths that were opened: to read (or to read and write), and only to write."""

    read: set[Path] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)
    beyond: set[str] = field(default_factory=set)  # what else was done of which Python cannot tell what it brings in


_listening: list[tuple[OpenedFiles, frozenset[int | None]]] = []  # who listens, and the threads that do not matter


@lru_cache(maxsize=1)
def _hook() -> None:
    """Installed once, when first needed: an audit hook stays until the process ends."""
    sys.addaudithook(_audit_event)


def _audit_event(event: str, args: tuple[Any, ...]) -> None:
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
def record_file_access() -> Iterator[OpenedFiles]:
    """What is opened inside, by this thread and those that it starts."""
    _hook()
    others = frozenset(thread.ident for thread in threading.enumerate()) - {threading.get_ident()}
    entry = OpenedFiles(), others
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
class SourceGraph:
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
    def of(cls, name: str, *others: str) -> SourceGraph:
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


TRIAL_SIZE = (64, 96, 3)  # of the gray image that a detector is tried with, to see what it reads
LONGEST_IDENTITY = 300  # characters of one that the user gives
SHOWN_FILES = 3


class _Import(NamedTuple):
    """What happened while modules were imported: the files that were read or written, and the modules that came."""

    read: frozenset[Path] = frozenset()
    written: frozenset[Path] = frozenset()
    brought: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()


_imports: dict[str, _Import] = {}  # by module
_loaded: dict[str, tuple[ModuleType, str, str | None]] = {}  # by target: its module, its identity, why it may be wrong


@dataclass(frozen=True, slots=True)
class PythonDetector:
    """A callable of the user's with a name, and the hash of the files that it is made of and reads.

    `unverified_reason` says why that cannot be relied on to tell changed weights, where it cannot.
    """

    function: Any
    names: tuple[str, ...]
    fingerprint: str
    unverified_reason: str | None = None

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        results: list[Detections] = self.function(images)  # checked by whoever asked
        return results


@dataclass(frozen=True, slots=True)
class PythonViewDetector(PythonDetector):
    """One that masks by itself; the guarantee of `seeker.ViewDetector` is then the user's to keep."""

    def detect_views(self, image: Image, removed: Ints, value: int) -> list[Detections]:
        results: list[Detections] = self.function.detect_views(image, removed, value)
        return results


def load_python(target: str, *, class_names: Sequence[str] | None = None) -> PythonDetector:
    """`MODULE:FUNCTION`, looked up from the current folder first. FUNCTION may be any callable object.

    This executes code: the module is imported, and the function is called once with a small gray image.

    `class_names`, or else its attribute `names`, or that of MODULE, lists the class names (or has them by label); its
    method `detect_views`, if there is one, is used for masked views.

    The identity covers the sources: that of MODULE and those it imports that are not installed. And it covers what it
    reads, by one of two ways. Either FUNCTION or MODULE has an attribute `identity`, a text of yours that you change
    with the weights. Or these are all files that Python opens while the module is imported and while the function is
    called for the first time, and those that the sources name as texts. If that is none, changed weights would go
    unnoticed, and `unverified_reason` says so.
    """
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise ObjectSeekerError(f"cannot read python:{target}: write python:MODULE:FUNCTION")
    module = _import(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ObjectSeekerError(f"{module_name} has no callable named {function_name!r}: name one that it defines")
    if getattr(module, "__file__", None) is None:
        raise ObjectSeekerError(f"{module_name} has no source file: name a module that has one")
    if target not in _loaded or _loaded[target][0] is not module:
        _loaded[target] = (module, *_identify(target, module, function))
    kind = PythonViewDetector if hasattr(function, "detect_views") else PythonDetector
    names = tuple(class_names) if class_names is not None else _own_names(target, function, module)
    return kind(function, names, *_loaded[target][1:])


def _import(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with _record_imports():
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ObjectSeekerError(f"importing {name} failed: {type(error).__name__}: {error}") from error


@contextmanager
def _record_imports() -> Iterator[OpenedFiles]:
    """Remember what is imported inside, and what is read by it."""
    before = set(sys.modules)
    with record_file_access() as opened:
        yield opened
    brought = frozenset(set(sys.modules) - before)
    happened = _Import(frozenset(data_files(opened.read)), frozenset(opened.written), brought, frozenset(opened.beyond))
    _imports.update(dict.fromkeys(brought, happened))


def _identify(target: str, module: ModuleType, function: Any) -> tuple[str, str | None]:
    """The identity of a detector, and why changed weights could go unnoticed, if they could."""
    token = _first_attribute(target, "fingerprint", function, module)
    if token is not None:
        if not isinstance(token, str) or not token.isprintable() or not 0 < len(token) <= LONGEST_IDENTITY:
            raise ObjectSeekerError(
                f"the fingerprint of python:{target} must be a short string: got {str(token)[:80]!r}"
            )
        sources = fingerprint.hash_file_set(SourceGraph.of(module.__name__).modules.values())
        return f"{target} (fingerprint {token}, {fingerprint.on_cpu()}) sha256:{sources}", None
    with _record_imports() as opened:
        failure = _try(function)
    program = _program(module)
    imports = [_imports.get(name, _Import()) for name in program.modules]
    written = opened.written.union(*(one.written for one in imports))
    read = data_files(opened.read).union(*(one.read for one in imports)) | (program.named - written)
    contents = fingerprint.hash_file_set({*read, *program.modules.values()})
    named = f"{target} ({_listed(read)}{fingerprint.on_cpu()}) sha256:{contents}"
    unwatched = [name for name in program.modules if name not in _imports]
    beyond = sorted(opened.beyond.union(*(one.beyond for one in imports)))
    beyond += [f"{package} may read files where Python does not see it" for package in program.unseen]
    return named, _unverifiable_reason(target, failure, unwatched, read, beyond)


def _program(module: ModuleType) -> SourceGraph:
    return SourceGraph.of(module.__name__, *_imports.get(module.__name__, _Import()).brought)


def _try(function: Any) -> Exception | None:
    """Call the detector once, as it will be called, so that it reads what it reads; what it raises."""
    image = np.full(TRIAL_SIZE, DEFAULT_FILL, np.uint8)
    try:
        if hasattr(function, "detect_views"):
            function.detect_views(image, np.array([[UNTOUCHED]]), DEFAULT_FILL)
        else:
            list(function([image]))
    except Exception as error:
        return error
    return None


def _unverifiable_reason(
    target: str,
    failure: Exception | None,
    unwatched: Sequence[str],
    read: Iterable[Path],
    beyond: Sequence[str],
) -> str | None:
    if failure is not None:
        why = f"it failed on a gray image of {TRIAL_SIZE[1]}x{TRIAL_SIZE[0]} ({type(failure).__name__})"
    elif unwatched:
        why = f"{unwatched[0]} had been imported before"
    elif beyond:
        why = beyond[0]
    elif not read:
        why = "Python sees it read no file"
    else:
        return None
    advice = "give it an attribute fingerprint, a string that you change with the weights"
    return f"whether the weights of python:{target} have changed cannot be told, for {why}: {advice}"


def _own_names(target: str, function: Any, module: ModuleType) -> tuple[str, ...]:
    """The class names that a detector has itself, none if it has none."""
    own = _first_attribute(target, "names", function, module)
    if own is None:
        return ()
    try:
        if isinstance(own, str | bytes) or not isinstance(own, Iterable):
            raise TypeError(f"got {own!r:.80}")
        return normalize_names(own if isinstance(own, Mapping) else list(islice(own, MOST_CLASSES + 1)))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ObjectSeekerError(f"the names of python:{target} must be texts by label: {reason[:200]}") from None


def _first_attribute(target: str, attribute: str, *owners: Any) -> Any:
    """An attribute of the first that has one."""
    try:
        values = [getattr(owner, attribute, None) for owner in owners]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ObjectSeekerError(f"the {attribute} of python:{target} cannot be read: {reason[:200]}") from None
    return next((value for value in values if value is not None), None)


def _listed(files: Iterable[Path]) -> str:
    """A few file names, as identities show them."""
    names = sorted("".join(c if c.isprintable() else "?" for c in path.name) for path in files)
    more = [f"and {len(names) - SHOWN_FILES} more"] if len(names) > SHOWN_FILES else []
    return "".join(f"{name}, " for name in names[:SHOWN_FILES] + more)
