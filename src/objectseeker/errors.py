"""The one exception class of the package."""

from __future__ import annotations

import math


class ObjectSeekerError(ValueError):
    """Something the caller handed in cannot be used; the message names the value and says what to do."""


def require_fraction(value: float, name: str) -> float:
    """`value` as a float within [0, 1]."""
    number = require_number(value, name)
    if not 0.0 <= number <= 1.0:
        raise ObjectSeekerError(f"{name} must lie within [0, 1], got {value!r}")
    return number


def require_number(value: float, name: str) -> float:
    """`value` as a finite float; a text is none."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ObjectSeekerError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ObjectSeekerError(f"{name} must be finite, got {value!r}")
    return number


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
