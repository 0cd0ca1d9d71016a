"""Detectors: `load(SPEC)` gives a callable from images to boxes, whatever framework is behind it.

    embedded                  the detector that comes with the package
    onnx:FILE                 an ONNX graph
    torchvision:NAME          a detection model of torchvision, with its default weights
    transformers:NAME         an object detection model of Hugging Face transformers: a name or a folder
    ultralytics:FILE          a model file of ultralytics (an AGPL package: you install it, we only call it)
    python:MODULE:FUNCTION    your own callable

Everything loaded has `names` (class names by label, empty where unknown) and `identity` (a readable name and a
SHA-256). Those that resize themselves also have `detect_views`, which masks after the resize, provably without a
leak; for the others the caller masks raw pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image
from objectseeker.errors import ObjectSeekerError

__all__ = ["SPECS", "LoadedDetector", "load"]

SPECS = (
    "embedded",
    "onnx:FILE",
    "torchvision:NAME",
    "transformers:NAME",
    "ultralytics:FILE",
    "python:MODULE:FUNCTION",
)


# What `load` takes beside a spec and a device, and what a defence therefore says about its detector.
OPTIONS = ("batch", "layout", "input_size", "class_names", "score_floor", "mask_by", "precision")


class LoadedDetector(Protocol):
    """What `load` returns."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def identity(self) -> str: ...

    def __call__(self, images: Sequence[Image], /) -> list[Detections]: ...


def load(
    spec: str,
    *,
    input_size: int | tuple[int, int] | None = None,
    layout: str | None = None,
    class_names: Sequence[str] | None = None,
    score_floor: float | None = None,
    batch: int | None = None,
    device: str | None = None,
    mask_by: str | None = None,
    precision: str | None = None,
    workers: int | None = None,
) -> LoadedDetector:
    """The detector that `spec` names. An option left at None takes the detector's own default.

    `input_size` is a side or width, height in pixels; `layout` names the family of an ONNX graph (see `layouts`);
    boxes scored below `score_floor` are not returned; `device` is cpu or cuda; `mask_by` is fill or crop (see `views`);
    `precision` is float32, float16 or bfloat16 on a GPU; `workers` is how many views run at a time on a CPU.
    """
    kind, name = require_spec(spec)
    loader, accepted = _KINDS[kind]
    options = {
        "input_size": input_size,
        "layout": layout,
        "class_names": class_names,
        "score_floor": score_floor,
        "batch": batch,
        "device": device,
        "mask_by": mask_by,
        "precision": precision,
        "workers": workers,
    }
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in accepted:
            raise ObjectSeekerError(f"{kind} detectors have no option {key}: leave it out")
    detector: LoadedDetector = loader(name, **given)
    return detector


def require_spec(spec: str) -> tuple[str, str]:
    """`spec` as its kind and what follows the colon, checked to be of a kind there is."""
    kind, _, name = str(spec).partition(":")
    if kind not in _KINDS or bool(name) == (kind == "embedded"):
        raise ObjectSeekerError(f"unknown detector {spec!r}: write one of {', '.join(SPECS)}")
    return kind, name


def _embedded(_: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.embedded.loading import load_embedded

    return load_embedded(**options)


def _onnx(file: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.onnx import OnnxDetector

    return OnnxDetector(file, **options)


def _torchvision(name: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.torchvision import load_torchvision

    return load_torchvision(name, **options)


def _transformers(name: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.transformers import load_transformers

    return load_transformers(name, **options)


def _ultralytics(file: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.ultralytics import load_ultralytics

    return load_ultralytics(file, **options)


def _python(target: str, **options: Any) -> LoadedDetector:
    from objectseeker.detectors.python import load_python

    return load_python(target, **options)


_NETWORK = frozenset({"input_size", "layout", "score_floor", "batch", "device", "mask_by", "workers"})
_FRAMEWORK = frozenset({"score_floor", "device"})

# For every kind of detector: its loader (which imports what it needs only when called) and the options it takes.
_KINDS: dict[str, tuple[Callable[..., LoadedDetector], frozenset[str]]] = {
    "embedded": (_embedded, _NETWORK | {"precision"}),
    "onnx": (_onnx, _NETWORK | {"class_names"}),
    "torchvision": (_torchvision, _FRAMEWORK),
    "transformers": (_transformers, _FRAMEWORK),
    "ultralytics": (_ultralytics, _FRAMEWORK | {"input_size"}),
    "python": (_python, frozenset()),
}
