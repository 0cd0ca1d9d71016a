"""The exceptions of the package, and how values are required and shown.

Everything that a caller can do something about is an `ObjectSeekerError`. Three subclasses are caught in the package:

- `files.images.ImageUnavailableError`: a file is missing or its storage does not answer, which says
  nothing about the image.
- `datasets.parsing.InvalidAnnotationError`: one annotation or file cannot be used, while the rest of the dataset can.
- `gate.audit_bundle.BundleMismatchError`: an audit bundle differs from what was written, or implies another verdict.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import Any

# Characters a terminal interprets: control codes, bidirectional and line-separator marks, lone surrogates.
_TERMINAL_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


MAX_MESSAGE_LENGTH = 1000  # a message is one line, whatever value it quotes


class ObjectSeekerError(ValueError):
    """An input cannot be used: one line that names the value and says what to do.

    Every other error for callers is a subclass of it; this module lists them.

    Example:
        >>> from objectseeker import Halves, ObjectSeekerError
        >>> try:
        ...     Halves(0)
        ... except ObjectSeekerError as error:
        ...     print(error)
        lines must be at least 1: got 0
    """

    def __init__(self, message: str) -> None:
        text = sanitize_line(str(message))
        super().__init__(text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:700]} ... {text[-200:]}")


def sanitize_line(text: str) -> str:
    """Escape the characters of untrusted text that a terminal interprets, as Python does: \\\\x1b.

    A name can then neither color nor reverse what follows, nor begin a new line.
    """
    return _TERMINAL_CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


# How other libraries report out of memory, in addition to MemoryError: torch on a GPU by the name of the exception;
# torch on a CPU and ONNX Runtime by the message.
_NO_MEMORY_WORDS = re.compile("can't allocate memory|failed to allocate memory|bad_alloc|bad allocation|out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, which says nothing about the input."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or _NO_MEMORY_WORDS.search(str(error).lower()) is not None


def import_optional(module: str, advice: str) -> Any:
    """Import a module that the package does not depend on; raise `advice` if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ObjectSeekerError(advice) from None


def require_fraction(value: float, name: str) -> float:
    """Return `value` as a float within [0, 1]."""
    number = require_number(value, name)
    if not 0.0 <= number <= 1.0:
        raise ObjectSeekerError(f"{name} must lie within [0, 1]: got {value!r}")
    return number


def require_number(value: float, name: str) -> float:
    """Return `value` as a finite float, 0.0 for -0.0; a string or a boolean is an error."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ObjectSeekerError(f"{name} must be a number: got {value!r}") from None
    if not math.isfinite(number):
        raise ObjectSeekerError(f"{name} must be finite: got {value!r}")
    return number + 0.0  # -0.0 + 0.0 is 0.0


def require_flag(value: bool, name: str) -> bool:
    """Return `value` as a bool; a number is an error."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ObjectSeekerError(f"{name} must be true or false: got {value!r}")
    return bool(value)


def require_count(value: int, name: str) -> int:
    """Return `value` as an int of at least 1; a number with a fractional part is an error, not rounded."""
    try:
        whole = int(value)
        if isinstance(value, bool) or whole != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ObjectSeekerError(f"{name} must be a whole number: got {value!r}") from None
    if whole < 1:
        raise ObjectSeekerError(f"{name} must be at least 1: got {value!r}")
    return whole
