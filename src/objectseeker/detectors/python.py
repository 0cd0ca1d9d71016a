"""Your own detector: any callable from a sequence of images to one `Detections` per image."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.image import Image
from objectseeker.detectors.network import identity
from objectseeker.errors import ObjectSeekerError


@dataclass(frozen=True, slots=True)
class PythonDetector:
    """A callable of the user's with a name and the hash of the file it comes from."""

    function: Any
    names: tuple[str, ...]
    identity: str

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        return list(self.function(images))


@dataclass(frozen=True, slots=True)
class PythonViewDetector(PythonDetector):
    """One that masks by itself; the guarantee of `seeker.ViewDetector` is then the user's to keep."""

    def detect_views(self, image: Image, removed: Ints, value: int) -> list[Detections]:
        return list(self.function.detect_views(image, removed, value))


def load_python(target: str, *, class_names: Sequence[str] | None = None) -> PythonDetector:
    """`MODULE:FUNCTION`, looked up from the current folder first. FUNCTION may be any callable object.

    `class_names`, or else its attribute `names`, or that of MODULE, lists the class names; its method `detect_views`,
    if there is one, is used for masked views. The identity covers the source file of MODULE, not what that file reads
    or imports.
    """
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise ObjectSeekerError(f"cannot read python:{target}: write python:MODULE:FUNCTION")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ObjectSeekerError(f"importing {module_name} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ObjectSeekerError(f"{module_name} has no callable named {function_name!r}: name one that it defines")
    source = getattr(module, "__file__", None)
    if source is None:
        raise ObjectSeekerError(f"{module_name} has no source file: name a module that has one")
    kind = PythonViewDetector if hasattr(function, "detect_views") else PythonDetector
    own = getattr(function, "names", getattr(module, "names", ()))
    names = tuple(str(name) for name in class_names or own or ())
    return kind(function, names, f"{target} sha256:{identity.of_files(Path(source))}")
