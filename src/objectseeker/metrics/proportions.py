"""Exact intervals for a share of independent trials (Clopper and Pearson's), with nothing but the standard library."""

from __future__ import annotations

import math
from collections.abc import Callable

STEPS = 200  # of a bisection: more than a double has bits
TERMS = 20_000  # of the continued fraction; it needs about the square root of the number of trials


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The two-sided interval of a share: it misses the truth at most 1 - confidence of the time, half on either side.

    Without trials nothing is known.
    """
    if not trials:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    # The lower end is where so many successes or more are as rare as `tail`, the upper end where so many or fewer are.
    low = _solved(lambda p: at_least(successes, trials, p) > tail) if successes else 0.0
    high = 1.0 - _solved(lambda q: at_least(trials - successes, trials, q) > tail) if successes < trials else 1.0
    return low, high


def at_least(successes: int, trials: int, share: float) -> float:
    """The chance of at least so many successes in so many trials, each with probability `share`."""
    if successes <= 0:
        return 1.0
    if share <= 0.0 or share >= 1.0:
        return float(share >= 1.0)
    a, b = float(successes), float(trials - successes + 1)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(share) + b * math.log1p(-share)
    front = math.exp(log_front)
    if share < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _fraction(a, b, share) / a
    return 1.0 - front * _fraction(b, a, 1.0 - share) / b


def _solved(exceeds: Callable[[float], bool]) -> float:
    """The largest share that is known not to exceed: the outer side of the end of an interval."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return low


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, from the front (Lentz's way)."""
    smallest = 1e-300
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1), smallest)
    result = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _apart(1.0 + term * d, smallest)
            c = _apart(1.0 + term / c, smallest)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def _apart(value: float, smallest: float) -> float:
    return value if abs(value) > smallest else smallest
