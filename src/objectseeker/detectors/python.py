"""Your own detector: any callable from a sequence of images to one `Detections` per image.

`python:MODULE:FUNCTION` executes code: it imports MODULE and calls FUNCTION with all your rights.

The files that a program reads decide its boxes as much as its source does. So the fingerprint of a `python:` detector
covers its own sources and the files it reads. Python reports which files it opens, but not which ones a library in
another language opens. Therefore a file that a source names in a string literal counts as well.
"""

from __future__ import annotations

import ast
import hashlib
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
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.maite import MaiteDetector, has_maite_metadata
from objectseeker.core.masks import DEFAULT_FILL, Image
from objectseeker.core.seeker import UNTOUCHED, Detector, ViewDetector
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import MAX_CLASSES, normalize_names
from objectseeker.errors import ObjectSeekerError

TRIAL_SIZE = (64, 96, 3)  # of the gray image that a detector is called with once, to record which files it reads
MAX_FINGERPRINT_LENGTH = 300  # characters of a fingerprint that the user sets
MAX_NAME_LENGTH = 1000  # characters of a string literal that may name a file
MAX_LISTED_FILES = 3

SYSTEM = ("/proc", "/sys", "/etc")  # these files differ from machine to machine, and are never weights
# Audit events behind which Python cannot see what is read.
UNTRACKED = {
    "subprocess.Popen": "it starts another process",
    "os.posix_spawn": "it starts another process",
    "os.system": "it starts another process",
    "os.exec": "it starts another process",
    "socket.connect": "it connects to another machine",
    "ctypes.dlopen": "it loads a library",
}
OPEN_BY_PYTHON = ("numpy", "PIL", "objectseeker")  # compiled packages that read files through Python
COMPILED = (".so", ".pyd", ".dylib")
ACCESS = 3  # the bits of `open` flags that tell reading from writing
LOADER = str(Path(__file__).with_name("python.py"))  # the file whose frame marks the start of the detector's code


@dataclass(frozen=True, slots=True)
class PythonDetector:
    """A callable with class names and a fingerprint.

    `unverified_reason` says why the fingerprint may miss a change of the weights; None if it does not.
    """

    function: Detector
    names: tuple[str, ...]
    fingerprint: str
    unverified_reason: str | None

    @property
    def one_by_one(self) -> bool:
        """Return whether the callable takes one image at a time."""
        return bool(getattr(self.function, "one_by_one", False))

    def __call__(self, images: Sequence[Image]) -> Sequence[Detections]:
        return self.function(images)  # the caller checks the results


@dataclass(frozen=True, slots=True)
class PythonViewDetector(PythonDetector):
    """A callable that masks its own input; its author must keep the guarantee of `seeker.ViewDetector`."""

    def detect_views(self, image: Image, removed: Ints, value: int) -> Sequence[Detections]:
        assert isinstance(self.function, ViewDetector)  # `_wrap` makes this class for no other
        return self.function.detect_views(image, removed, value)


def load_python(target: str, *, class_names: Sequence[str] | None = None) -> PythonDetector:
    """Load the detector that `MODULE:FUNCTION` names; the current folder is searched first.

    This executes code: the module is imported, and the function is called once with a small gray image. If FUNCTION has
    a method `detect_views`, it is used for masked views.

    The fingerprint covers the sources of MODULE and of every module it imports that is not installed. It also covers
    what the detector reads, in one of two ways. Either FUNCTION or MODULE has an attribute `fingerprint`, a string that
    you change with the weights. Or the covered files are those that Python opens while the module is imported and while
    the function is called for the first time, and those that string literals of the sources name. If there is no such
    file, a change of weights could go unnoticed, and `unverified_reason` reports it.

    Args:
        target: MODULE:FUNCTION; FUNCTION may be any callable object, and those that `adapt_object` knows.
        class_names: Class names by label; default: the attribute `names` of FUNCTION or MODULE (a sequence, or a
            mapping from labels to names), else none.

    Raises:
        ObjectSeekerError: The module cannot be imported, or has no such callable, or an attribute is invalid.
    """
    module, named = import_named(target)
    function = adapt_object(named)
    if not callable(function):
        module_name, _, function_name = target.partition(":")
        raise ObjectSeekerError(f"{module_name} has no callable named {function_name!r}: name one that it defines")
    if getattr(module, "__file__", None) is None:
        raise ObjectSeekerError(f"{module.__name__} has no source file: name a module that has one")
    if target not in _loaded or _loaded[target][0] is not module:
        _loaded[target] = (module, *_fingerprint(target, module, function))
    return _wrap(function, f"python:{target}", class_names, module, *_loaded[target][1:])


def import_named(target: str) -> tuple[ModuleType, Any]:
    """Import MODULE of MODULE:NAME, which executes its code; return it and its NAME, None if missing."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ObjectSeekerError(f"cannot read python:{target}: write python:MODULE:FUNCTION")
    module = _import(module_name)
    return module, getattr(module, name, None)


def adapt_object(source: Any) -> Any:
    """Return the detector of an object of another library; anything else is returned unchanged.

    Known are a YOLO of ultralytics, an object detection pipeline of transformers, a detection model of torchvision and
    a MAITE model. The library is not imported for that: an object of it exists only if it was.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(source).__mro__}
    if "ultralytics" in libraries and hasattr(source, "predict"):
        from objectseeker.detectors.model_zoos import ultralytics_detector

        return ultralytics_detector(source, device=str(getattr(source, "device", None) or "cpu"))
    if "transformers" in libraries and hasattr(source, "image_processor") and hasattr(source, "model"):
        from objectseeker.detectors.transformers import transformers_detector

        return transformers_detector(source.model, source.image_processor, device=str(source.device))
    if any(base.__module__.startswith("torchvision.models.detection") for base in type(source).__mro__):
        from objectseeker.detectors.model_zoos import torchvision_detector

        return torchvision_detector(source, device=str(next(source.parameters()).device))
    if has_maite_metadata(source) and not isinstance(source, type):
        return MaiteDetector(source)
    return source


def wrap_callable(function: Detector, *, class_names: Sequence[str] | None = None) -> PythonDetector:
    """Wrap a callable that was passed in memory.

    Its weights are already loaded, so only its attribute `fingerprint`, a string that you change with the weights, can
    tell two versions apart. Without it the fingerprint covers the sources of its module alone.
    """
    name, module_name = callable_name(function), _module_of(function)
    token = _read_token(name, function)
    named = f"fingerprint {token}, " if token else ""
    sources = fingerprint.hash_file_set(SourceGraph.from_module(module_name).modules.values())
    contents = hashlib.sha256(f"{token} {sources}".encode()).hexdigest()
    hashed = f"{name} ({named}{fingerprint.device_fingerprint('cpu')}) sha256:{contents}"
    reason = None if token else _describe_unverified(name, "it was passed in memory")
    return _wrap(function, name, class_names, None, hashed, reason)


def callable_name(function: Detector) -> str:
    """Return the name of a callable with its module, such as `mine.detect`."""
    return f"{_module_of(function)}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _module_of(function: Detector) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _wrap(
    function: Detector,
    spec: str,
    class_names: Sequence[str] | None,
    module: ModuleType | None,
    hashed: str,
    unverified_reason: str | None,
) -> PythonDetector:
    kind = PythonViewDetector if hasattr(function, "detect_views") else PythonDetector
    names = tuple(class_names) if class_names is not None else _read_names(spec, function, module)
    return kind(function, names, hashed, unverified_reason)


_loaded: dict[str, tuple[ModuleType, str, str | None]] = {}  # by target: module, fingerprint, unverified reason


def _import(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with _record_access():
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ObjectSeekerError(
            f"importing {name} failed: {type(error).__name__}: {error}. Correct it, or the name."
        ) from error


def _fingerprint(target: str, module: ModuleType, function: Detector) -> tuple[str, str | None]:
    """Return the fingerprint of a detector, and why it may miss a change of the weights."""
    token, processor = _read_token(f"python:{target}", function, module), fingerprint.device_fingerprint("cpu")
    if token is not None:
        sources = fingerprint.hash_file_set(SourceGraph.from_module(module.__name__).modules.values())
        return f"{target} (fingerprint {token}, {processor}) sha256:{sources}", None
    with _record_access() as call:
        failure = _call_once(function)
    program = SourceGraph.from_module(module.__name__, *_imports.get(module.__name__, Access()).modules)
    imports = [_imports.get(name, Access()) for name in program.modules]
    written = call.written.union(*(record.written for record in imports))
    read = call.read.union(*(record.read for record in imports)) | (program.named_files - written)
    contents = fingerprint.hash_file_set({*read, *program.modules.values()})
    listed = f"{target} ({_list_files(read)}{processor}) sha256:{contents}"
    if failure is not None:
        why = f"it failed on a gray image of {TRIAL_SIZE[1]}x{TRIAL_SIZE[0]} ({type(failure).__name__})"
    elif unrecorded := [name for name in program.modules if name not in _imports]:
        why = f"{unrecorded[0]} had been imported before"
    elif untracked := sorted(call.untracked.union(*(record.untracked for record in imports))):
        why = untracked[0]
    elif packages := program.compiled_packages:
        why = f"{packages[0]} may read files where Python does not see it"
    elif not read:
        why = "Python sees it read no file"
    else:
        return listed, None
    return listed, _describe_unverified(f"python:{target}", why)


def _describe_unverified(name: str, why: str) -> str:
    advice = "give it an attribute fingerprint, a string that you change with the weights"
    return f"the weights of {name} cannot be verified, because {why}: {advice}"


def _call_once(function: Detector) -> Exception | None:
    """Call the detector once, as it will be called, so that it reads its files; return what it raises."""
    image = np.full(TRIAL_SIZE, DEFAULT_FILL, np.uint8)
    try:
        if isinstance(function, ViewDetector):
            function.detect_views(image, np.array([[UNTOUCHED]]), DEFAULT_FILL)
        else:
            list(function([image]))
    except Exception as error:
        return error
    return None


def _read_token(name: str, *owners: object) -> str | None:
    """Return the user's own fingerprint string, if the detector or its module has one."""
    token = _first_attribute(name, "fingerprint", *owners)
    if token is None or (isinstance(token, str) and token.isprintable() and 0 < len(token) <= MAX_FINGERPRINT_LENGTH):
        return token
    raise ObjectSeekerError(f"the fingerprint of {name} must be a short string: got {str(token)[:80]!r}")


def _read_names(name: str, *owners: object) -> tuple[str, ...]:
    """Return the detector's own class names, or none if it has none."""
    own = _first_attribute(name, "names", *owners)
    if own is None:
        return ()
    try:
        if isinstance(own, str | bytes) or not isinstance(own, Iterable):
            raise TypeError(f"got {own!r:.80}")
        return normalize_names(own if isinstance(own, Mapping) else list(islice(own, MAX_CLASSES + 1)))
    except Exception as error:
        raise ObjectSeekerError(f"the names of {name} must be strings by label: {_first_line(error)}") from None


def _first_attribute(name: str, attribute: str, *owners: object) -> Any:
    """Return the attribute of the first owner that has it, else None."""
    try:
        values = [getattr(owner, attribute, None) for owner in owners]
    except Exception as error:
        raise ObjectSeekerError(f"cannot read the {attribute} of {name}: {_first_line(error)}") from None
    return next((value for value in values if value is not None), None)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _list_files(files: Iterable[Path]) -> str:
    """Return a few file names, for a fingerprint."""
    names = sorted("".join(c if c.isprintable() else "?" for c in path.name) for path in files)
    more = [f"and {len(names) - MAX_LISTED_FILES} more"] if len(names) > MAX_LISTED_FILES else []
    return "".join(f"{name}, " for name in names[:MAX_LISTED_FILES] + more)


# --- which files a program opens --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Access:
    """The paths that a block opened for reading (or both) or only for writing, and what it imported."""

    read: set[Path] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)
    untracked: set[str] = field(default_factory=set)  # events behind which Python cannot see what is read
    modules: set[str] = field(default_factory=set)


_imports: dict[str, Access] = {}  # by module
_recorders: list[tuple[Access, frozenset[int | None]]] = []  # with the threads that each one ignores


@lru_cache(maxsize=1)
def _install_hook() -> None:
    """Install the audit hook when it is first needed; it stays until the process ends."""
    sys.addaudithook(_audit_event)


def _audit_event(event: str, args: tuple[Any, ...]) -> None:
    if not _recorders or (event != "open" and event not in UNTRACKED):
        return
    with suppress(Exception):  # whatever a hook raises would be raised in the code that opens the file
        path = None
        if event == "open":
            path = Path(os.fsdecode(args[0])).absolute()
            if path.suffix == ".pyc" or _is_installed(path):
                return
            path = path.resolve()
        if _importing_installed(sys._getframe(1)):
            return
        for access, ignored in _recorders:
            if threading.get_ident() in ignored:
                continue
            if path is None:
                access.untracked.add(UNTRACKED[event])
            else:
                (access.written if args[2] & ACCESS == os.O_WRONLY else access.read).add(path)


def _importing_installed(frame: FrameType | None) -> bool:
    """Return whether the detector is importing an installed package.

    The settings and caches that a package reads then are not weights. Frames above the loader do not count: a server or
    `python -m` is an installed module that is still being run.
    """
    while frame is not None and frame.f_code.co_filename != LOADER:
        if frame.f_code.co_name == "<module>" and _is_installed(Path(frame.f_code.co_filename)):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _record_access() -> Iterator[Access]:
    """Record what this thread, and threads that it starts, open and import inside the block.

    In the end `read` has the regular files that belong to no installation and were not imported.
    """
    _install_hook()
    others = frozenset(thread.ident for thread in threading.enumerate()) - {threading.get_ident()}
    entry, modules = (Access(), others), set(sys.modules)
    _recorders.append(entry)
    try:
        yield (access := entry[0])
    finally:
        _recorders.remove(entry)
    access.read = {path for path in access.read if not _is_installed(path) and _is_file(path)}
    if any(path.suffix == ".py" for path in access.read):  # settings may be written in Python, too
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        access.read -= {Path(file).resolve() for file in files if file}
    access.modules = set(sys.modules) - modules
    _imports.update(dict.fromkeys(access.modules, access))


# --- which sources a program consists of ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceGraph:
    """A module with everything it imports that is not installed, and the files that these sources name."""

    modules: dict[str, Path]
    named_files: frozenset[Path]
    installed: frozenset[str]  # installed packages that they import

    @property
    def compiled_packages(self) -> list[str]:
        """The imported packages that may open files where Python does not see it."""
        loaded = [
            name.partition(".")[0]
            for name, module in list(sys.modules.items())
            if str(getattr(module, "__file__", None) or "").endswith(COMPILED)
        ]
        return sorted(self.installed.intersection(loaded).difference(OPEN_BY_PYTHON, sys.stdlib_module_names))

    @classmethod
    def from_module(cls, name: str, *others: str) -> SourceGraph:
        """Collect the program that starts with module `name`, and those of `others` that belong to it.

        Modules of the package of `name` count even if that package is installed.
        """
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
            if _is_installed(path) and current.partition(".")[0] != top:
                installed.add(current.partition(".")[0])
                continue
            if not path.is_file():
                continue
            modules[current] = path
            imports, literals = _read_source(path, module)
            waiting += imports
            named |= {file for literal in literals for file in _named_files(literal, path.parent)}
        return cls(modules, frozenset(named - set(modules.values())), frozenset(installed))


def _read_source(path: Path, module: ModuleType) -> tuple[set[str], set[str]]:
    """Return the names of all modules that a source imports, at any level, and its short string literals."""
    imports: set[str] = set()
    literals: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # no source: an extension, or compiled code alone
        return imports, literals
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(part for alias in node.names for part in _with_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
                imports.update(_with_parents(base), (f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= MAX_NAME_LENGTH:
            literals.add(node.value)
    return imports, literals


def _with_parents(name: str) -> Iterator[str]:
    """Yield a.b.c, a.b and a: importing the first runs all of them."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _named_files(literal: str, folder: Path) -> Iterator[Path]:
    """Yield the files that a string names, relative to the current folder and to that of the source."""
    for base in (Path.cwd(), folder):
        path = base / literal
        if literal and _is_file(path) and not _is_installed(path := path.resolve()):
            yield path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a string that cannot be a path
        return False


def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to Python, to an installed package, to this one, or to the system."""
    return any(path.is_relative_to(folder) for folder in _installations(tuple(sys.path)))


@lru_cache(maxsize=8)
def _installations(search: tuple[str, ...]) -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {entry for entry in search if Path(entry).name in ("site-packages", "dist-packages")}
    folders |= {os.path.realpath(folder) for folder in folders}
    return (*sorted(folders), str(Path(__file__).parents[1]), *SYSTEM)
