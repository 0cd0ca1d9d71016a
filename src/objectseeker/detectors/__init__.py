"""Detectors: `load_detector` makes one from a SPEC, a callable or a Defense, of any framework.

    builtin                  the detector that comes with the package
    onnx:FILE                 an ONNX graph
    torchvision:NAME          a detection model of torchvision, with its default weights; NAME,weights=FILE: with yours
    transformers:NAME         an object detection model of Hugging Face transformers: a folder, or a name on the hub
    ultralytics:FILE          a model file of ultralytics (an AGPL package that you install; it is only called here)
    python:MODULE:FUNCTION    your own callable; naming one executes its code

A loaded detector has `names` (class names by label, empty if unknown) and a `fingerprint` (a readable name and a
SHA-256). If the fingerprint may miss a change of the weights, `unverified_reason` says why. A detector that masks its
own input also has `detect_views`, proven not to leak removed pixels; for every other one the caller masks raw pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from importlib import import_module
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol, runtime_checkable

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.seeker import Detector
from objectseeker.errors import ObjectSeekerError

__all__ = ["OPTIONS", "SPECS", "WEIGHTS", "LoadedDetector", "load_detector", "require_spec", "unverified_reason"]

# The options of `load_detector` that decide the boxes, and so belong to a defense.
OPTIONS = ("batch_size", "layout", "input_size", "class_names", "score_floor", "mask_mode", "precision")

WEIGHTS = ",weights="  # in a torchvision spec: a file follows


class _Source(NamedTuple):
    """A source of detectors: what follows the colon of its specs, its loading function and its options."""

    target: str
    module: str
    function: str
    options: frozenset[str]


_FRAMEWORK = frozenset({"score_floor", "device"})
_NETWORK = _FRAMEWORK | {"input_size", "layout", "batch_size", "mask_mode", "workers"}
_CALLABLE = frozenset({"class_names"})

# To add a source of detectors, write its module and name it here. It is imported when it is first used.
_SOURCES = {
    "builtin": _Source("", "builtin", "load_builtin", _NETWORK | {"precision"}),
    "onnx": _Source("FILE", "onnx", "load_onnx", _NETWORK | {"class_names", "precision"}),
    "torchvision": _Source("NAME", "model_zoos", "load_torchvision", _FRAMEWORK | {"class_names"}),
    "transformers": _Source("NAME", "transformers", "load_transformers", _FRAMEWORK | {"mask_mode"}),
    "ultralytics": _Source("FILE", "model_zoos", "load_ultralytics", _FRAMEWORK | {"input_size"}),
    "python": _Source("MODULE:FUNCTION", "python", "load_python", _CALLABLE),
}

_KINDS_OF_FILES = {".onnx": "onnx", ".pt": "ultralytics"}  # a path without its kind is a common mistake
SPECS = tuple(f"{kind}:{source.target}".rstrip(":") for kind, source in _SOURCES.items())


@runtime_checkable
class LoadedDetector(Protocol):
    """A detector with class names and a fingerprint, as `load_detector` returns it."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, images: Sequence[Image], /) -> Sequence[Detections]: ...


@runtime_checkable
class DetectorHolder(Protocol):
    """An object that says which detector it is about, with all its options: a `Defense`."""

    def load_detector(self, device: str | None = None, *, trust_detector: bool = False) -> LoadedDetector: ...


def load_detector(source: str | Detector | DetectorHolder, **options: Any) -> LoadedDetector:
    """Load a detector from a SPEC, a callable or a Defense.

    Args:
        source: A SPEC such as `onnx:model.onnx`; a callable from a sequence of images to one `Detections` per image
            (used unchanged if it has `names` and a `fingerprint` already); a YOLO object of ultralytics, a pipeline of
            transformers, a detection model of torchvision or a MAITE model, in memory; or a `Defense`, which rejects a
            detector other than its own and takes the options `device` and `trust_detector` only.
        options: None is the detector's own default. `input_size` is a side, or width and height, in pixels. `layout`
            names the family of an ONNX graph (`network.layouts`). `class_names` are those of an ONNX, python or
            torchvision detector or of a callable. Boxes scored below `score_floor` are not returned. `device` is cpu,
            openvino, cuda or cuda:1. `mask_mode` is fill, crop (`network.preprocess`), resize (`resized`) or drop
            (`transformers`).
            `precision` is float32, float16 or bfloat16 on a GPU, float32 or bfloat16 on OpenVINO. `workers` is the
            number of views that run at the same time on a CPU. `batch_size` is the number of views per forward pass; a
            detector whose caller makes the batches ignores it.

    Returns:
        The detector, with `names` and `fingerprint`.

    Raises:
        ObjectSeekerError: The source is unknown or cannot be loaded, or does not have one of the options.

    Example:
        >>> load_detector("builtin", input_size=96).names[:2]
        ('aeroplane', 'bicycle')
    """
    options = {key: value for key, value in options.items() if value is not None}
    if isinstance(source, DetectorHolder):
        owner = "a defense has all options of its detector, so load_detector has"
        _reject_unknown(options, {"device", "trust_detector"}, owner)
        return source.load_detector(**options)
    if not isinstance(source, str):
        return _load_callable(source, options)
    kind, name = require_spec(source)
    _, module, function, accepted = _SOURCES[kind]
    if options.get("mask_mode") == "resize":
        from objectseeker.detectors.resized import ResizedViews

        # One view per forward pass: a batch would be filled up for each of them.
        batch_size = 1 if "batch_size" in accepted else None
        return ResizedViews(load_detector(source, **options | {"mask_mode": None, "batch_size": batch_size}))
    _reject_unknown(options, accepted | {"batch_size"}, f"{kind} detectors have")
    loader = getattr(import_module(f"{__name__}.{module}"), function)
    options = {key: value for key, value in options.items() if key in accepted}
    detector: LoadedDetector = loader(name, **options) if name else loader(**options)
    return detector


def _load_callable(function: Detector, options: Mapping[str, Any]) -> LoadedDetector:
    from objectseeker.detectors.python import adapt_object, wrap_callable

    if not callable(function):
        raise ObjectSeekerError(
            f"a detector must be a SPEC, a callable or a Defense: got {function!r}: pass one of {', '.join(SPECS)}"
        )
    _reject_unknown(options, _CALLABLE | {"batch_size"}, "a callable has")
    function = adapt_object(function)
    if isinstance(function, LoadedDetector) and "class_names" not in options:
        return function
    return wrap_callable(function, class_names=options.get("class_names"))


def _reject_unknown(options: Mapping[str, Any], accepted: Set[str], owner: str) -> None:
    for key, value in options.items():
        if key not in accepted:
            raise ObjectSeekerError(f"{owner} no option {key}: got {value!r}: omit it")


def require_spec(spec: str) -> tuple[str, str]:
    """Split a SPEC at its colon and check that its kind exists.

    Args:
        spec: Such as onnx:FILE.

    Returns:
        The kind and the rest.

    Raises:
        ObjectSeekerError: The kind is unknown, or the rest is missing.

    Example:
        >>> require_spec("onnx:model.onnx")
        ('onnx', 'model.onnx')
    """
    kind, _, name = str(spec).partition(":")
    if kind not in _SOURCES or bool(name) != bool(_SOURCES[kind].target):
        meant = None if ":" in str(spec) else _KINDS_OF_FILES.get(PurePath(str(spec)).suffix.lower())
        forms = f"one of {', '.join(SPECS)}" if meant is None else f"{meant}:{spec}"
        raise ObjectSeekerError(f"unknown detector {spec!r}: write {forms}")
    return kind, name


def unverified_reason(detector: object) -> str | None:
    """Return why the fingerprint of a detector may miss a change of its weights; None if it does not.

    Args:
        detector: What `load_detector` returned.

    Returns:
        A sentence, or None.

    Example:
        >>> unverified_reason(load_detector("builtin", input_size=96)) is None
        True
    """
    reason: str | None = getattr(detector, "unverified_reason", None)
    return reason
