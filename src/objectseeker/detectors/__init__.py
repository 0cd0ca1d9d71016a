"""Detectors: `load_detector(SPEC)` gives a callable from images to boxes, whatever framework is behind it.

    builtin                  the detector that comes with the package
    onnx:FILE                 an ONNX graph
    torchvision:NAME          a detection model of torchvision, with its default weights; NAME,weights=FILE: with yours
    transformers:NAME         an object detection model of Hugging Face transformers: a folder, or a name on the hub
    ultralytics:FILE          a model file of ultralytics (an AGPL package: you install it, we only call it)
    python:MODULE:FUNCTION    your own callable; naming one executes its code

A loaded detector has `names` (class names by label, empty if unknown) and a `fingerprint` (a readable name and a
SHA-256). If the fingerprint may miss a change of the weights, `unverified_reason` says why. A detector that masks its
own input also has `detect_views`, proven not to leak removed pixels; for every other one the caller masks raw pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError

__all__ = ["OPTIONS", "SPECS", "WEIGHTS", "LoadedDetector", "load_detector", "require_spec"]

# What `load_detector` takes beside a spec and a device, and what a defense therefore says about its detector.
OPTIONS = ("batch", "layout", "input_size", "class_names", "score_floor", "mask_mode", "precision")

WEIGHTS = ",weights="  # in a spec of torchvision: what follows is a file


class _Kind(NamedTuple):
    """One source of detectors: what follows the colon of its specs, what loads them, and the options that takes."""

    target: str
    module: str
    function: str
    options: frozenset[str]


_FRAMEWORK = frozenset({"score_floor", "device"})
_NETWORK = _FRAMEWORK | {"input_size", "layout", "batch", "mask_mode", "workers"}

# To add a source of detectors, write its module and name it here. It is imported when it is first asked for.
_KINDS = {
    "builtin": _Kind("", "builtin", "load_builtin", _NETWORK | {"precision"}),
    "onnx": _Kind("FILE", "onnx", "load_onnx", _NETWORK | {"class_names"}),
    "torchvision": _Kind("NAME", "torchvision", "load_torchvision", _FRAMEWORK | {"class_names"}),
    "transformers": _Kind("NAME", "transformers", "load_transformers", _FRAMEWORK | {"mask_mode"}),
    "ultralytics": _Kind("FILE", "ultralytics", "load_ultralytics", _FRAMEWORK | {"input_size"}),
    "python": _Kind("MODULE:FUNCTION", "python", "load_python", frozenset({"class_names"})),
}

SPECS = tuple(f"{kind}:{entry.target}".rstrip(":") for kind, entry in _KINDS.items())


class LoadedDetector(Protocol):
    """What `load_detector` returns."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, images: Sequence[Image], /) -> list[Detections]: ...


def load_detector(spec: str, **options: Any) -> LoadedDetector:
    """The detector that `spec` names. An option left out, or None, takes the detector's own default.

    `input_size` is a side or width, height in pixels; `layout` names the family of an ONNX graph (`network.layouts`)
    and `class_names` the classes of one, of a python or of a torchvision detector; boxes scored below `score_floor` are
    not returned; `device` is cpu, cuda or cuda:1; `mask_mode` is fill, crop (`network.views`) or drop (`tokens`);
    `precision` is float32, float16 or bfloat16 on a GPU; `workers` is how many views run at a time on a CPU. `batch` is
    how many views run together: a detector that leaves batches to its caller ignores it.
    """
    kind, name = require_spec(spec)
    _, module, function, accepted = _KINDS[kind]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in accepted | {"batch"}:
            raise ObjectSeekerError(f"{kind} detectors have no option {key}: leave it out")
    loader = getattr(import_module(f"{__name__}.{module}"), function)
    passed = {key: value for key, value in given.items() if key in accepted}
    detector: LoadedDetector = loader(name, **passed) if name else loader(**passed)
    return detector


def require_spec(spec: str) -> tuple[str, str]:
    """`spec` as its kind and what follows the colon, checked to be of a kind there is."""
    kind, _, name = str(spec).partition(":")
    if kind not in _KINDS or bool(name) != bool(_KINDS[kind].target):
        raise ObjectSeekerError(f"unknown detector {spec!r}: write one of {', '.join(SPECS)}")
    return kind, name
