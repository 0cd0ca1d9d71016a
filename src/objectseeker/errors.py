"""The one exception class of the package, and how values are required and shown."""

from __future__ import annotations

import math
import re

# What a terminal obeys instead of showing: control characters, marks that turn or break a line, halves of characters.
_TERMINAL_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


MOST_CHARACTERS = 1000  # of a message: whatever was handed in, it is one sentence


class ObjectSeekerError(ValueError):
    """Something the caller handed in cannot be used; the message names the value and says what to do, in one line."""

    def __init__(self, message: str) -> None:
        text = sanitize_line(str(message))
        super().__init__(text if len(text) <= MOST_CHARACTERS else f"{text[:700]} ... {text[-200:]}")


def sanitize_line(text: str) -> str:
    """Text that is not ours, to print: what a terminal would obey is shown as Python writes it, such as \\x1b.

    So a name can neither color what follows, nor turn its direction, nor begin a new line.
    """
    return _TERMINAL_CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# How libraries below say that they got no memory, beside MemoryError: torch of a GPU by the exception's name; torch of
# a CPU and ONNX Runtime in words.
_NO_MEMORY_WORDS = re.compile("can't allocate memory|failed to allocate memory|bad_alloc|bad allocation|out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether something failed for want of memory, which says nothing about what it was given."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or _NO_MEMORY_WORDS.search(str(error).lower()) is not None


def require_fraction(value: float, name: str) -> float:
    """`value` as a float within [0, 1]."""
    number = require_number(value, name)
    if not 0.0 <= number <= 1.0:
        raise ObjectSeekerError(f"{name} must lie within [0, 1], got {value!r}")
    return number


def require_number(value: float, name: str) -> float:
    """Return `value` as a finite float, 0.0 for -0.0; a string or a boolean is an error."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ObjectSeekerError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ObjectSeekerError(f"{name} must be finite, got {value!r}")
    return number + 0.0  # -0.0 + 0.0 is 0.0


def require_flag(value: bool, name: str) -> bool:
    """`value` as a bool: true or false, and nothing that only counts as one."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ObjectSeekerError(f"{name} must be true or false, got {value!r}")
    return bool(value)


def require_count(value: int, name: str) -> int:
    """`value` as an int of at least 1; a float with a fractional part is refused, not rounded."""
    try:
        whole = int(value)
        if isinstance(value, bool) or whole != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ObjectSeekerError(f"{name} must be a whole number, got {value!r}") from None
    if whole < 1:
        raise ObjectSeekerError(f"{name} must be at least 1, got {value!r}")
    return whole
