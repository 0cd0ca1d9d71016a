"""Your own detector: any callable from a sequence of images to one `Detections` per image.

Naming one executes it: `python:MODULE:FUNCTION` imports MODULE and calls FUNCTION, with all the rights that you have.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.image import GREY, Image
from objectseeker.core.seeker import UNTOUCHED
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.names import MOST_CLASSES, from_any
from objectseeker.detectors.python_files import Opened, Program, data_files, listening
from objectseeker.errors import ObjectSeekerError

TRIAL_SIZE = (64, 96, 3)  # of the grey image that a detector is tried with, to see what it reads
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

    `unverified` says why that cannot be relied on to tell changed weights, where it cannot.
    """

    function: Any
    names: tuple[str, ...]
    identity: str
    unverified: str | None = None

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

    This executes code: the module is imported, and the function is called once with a small grey image.

    `class_names`, or else its attribute `names`, or that of MODULE, lists the class names (or has them by label); its
    method `detect_views`, if there is one, is used for masked views.

    The identity covers the sources: that of MODULE and those it imports that are not installed. And it covers what it
    reads, by one of two ways. Either FUNCTION or MODULE has an attribute `identity`, a text of yours that you change
    with the weights. Or these are all files that Python opens while the module is imported and while the function is
    called for the first time, and those that the sources name as texts. If that is none, changed weights would go
    unnoticed, and `unverified` says so.
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
        with _watched():
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ObjectSeekerError(f"importing {name} failed: {type(error).__name__}: {error}") from error


@contextmanager
def _watched() -> Iterator[Opened]:
    """Remember what is imported inside, and what is read by it."""
    before = set(sys.modules)
    with listening() as opened:
        yield opened
    brought = frozenset(set(sys.modules) - before)
    happened = _Import(frozenset(data_files(opened.read)), frozenset(opened.written), brought, frozenset(opened.beyond))
    _imports.update(dict.fromkeys(brought, happened))


def _identify(target: str, module: ModuleType, function: Any) -> tuple[str, str | None]:
    """The identity of a detector, and why changed weights could go unnoticed, if they could."""
    token = _own(target, "identity", function, module)
    if token is not None:
        if not isinstance(token, str) or not token.isprintable() or not 0 < len(token) <= LONGEST_IDENTITY:
            raise ObjectSeekerError(f"the identity of python:{target} must be a short text, got {str(token)[:80]!r}")
        sources = identity.of_set(Program.of(module.__name__).modules.values())
        return f"{target} (identity {token}, {identity.on_cpu()}) sha256:{sources}", None
    with _watched() as opened:
        failure = _try(function)
    program = _program(module)
    imports = [_imports.get(name, _Import()) for name in program.modules]
    written = opened.written.union(*(one.written for one in imports))
    read = data_files(opened.read).union(*(one.read for one in imports)) | (program.named - written)
    named = (
        f"{target} ({_listed(read)}{identity.on_cpu()}) sha256:{identity.of_set({*read, *program.modules.values()})}"
    )
    unwatched = [name for name in program.modules if name not in _imports]
    beyond = sorted(opened.beyond.union(*(one.beyond for one in imports)))
    beyond += [f"{package} may read files where Python does not see it" for package in program.unseen]
    return named, _doubt(target, failure, unwatched, read, beyond)


def _program(module: ModuleType) -> Program:
    return Program.of(module.__name__, *_imports.get(module.__name__, _Import()).brought)


def _try(function: Any) -> Exception | None:
    """Call the detector once, as it will be called, so that it reads what it reads; what it raises."""
    image = np.full(TRIAL_SIZE, GREY, np.uint8)
    try:
        if hasattr(function, "detect_views"):
            function.detect_views(image, np.array([[UNTOUCHED]]), GREY)
        else:
            list(function([image]))
    except Exception as error:
        return error
    return None


def _doubt(
    target: str,
    failure: Exception | None,
    unwatched: Sequence[str],
    read: Iterable[Path],
    beyond: Sequence[str],
) -> str | None:
    if failure is not None:
        why = f"it failed on a grey image of {TRIAL_SIZE[1]}x{TRIAL_SIZE[0]} ({type(failure).__name__})"
    elif unwatched:
        why = f"{unwatched[0]} had been imported before"
    elif beyond:
        why = beyond[0]
    elif not read:
        why = "Python sees it read no file"
    else:
        return None
    advice = "give it an attribute identity, a text that you change with the weights"
    return f"whether the weights of python:{target} have changed cannot be told, for {why}: {advice}"


def _own_names(target: str, function: Any, module: ModuleType) -> tuple[str, ...]:
    """The class names that a detector has itself, none if it has none."""
    own = _own(target, "names", function, module)
    if own is None:
        return ()
    try:
        if isinstance(own, str | bytes) or not isinstance(own, Iterable):
            raise TypeError(f"got {own!r:.80}")
        return from_any(own if isinstance(own, Mapping) else list(islice(own, MOST_CLASSES + 1)))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ObjectSeekerError(f"the names of python:{target} must be texts by label: {reason[:200]}") from None


def _own(target: str, attribute: str, *owners: Any) -> Any:
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
