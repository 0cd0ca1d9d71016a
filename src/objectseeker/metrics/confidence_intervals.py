"""Confidence intervals of a metric over images, and how many more images would decide a limit.

The bootstrap resamples images: images are independent, objects of one image are not. Its intervals are bias-corrected
and accelerated (Efron's BCa). It sees no spread where nothing failed, and too little where few images decide. There, an
interval is at least as wide as if a kind of image just rare enough to be missing from the sample failed completely
(`max_unseen_share`; an exact rule of three). For a share of 100 % this is the Clopper-Pearson interval.

Samples come from the raw numbers of PCG64, which NumPy promises never to change, and counts are whole numbers: so the
same images give the same intervals everywhere, and a verdict can be recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from objectseeker.core.boxes import Floats

Method = Literal["bootstrap", "exact"]
Values = Callable[[Floats], Floats]  # weights (samples, images) to one value per sample, NaN where there is none

DIGITS = 6  # of a figure: rounding differs between machines far behind that
CELLS = 2**18  # of weights that are in memory at a time
MAX_KEPT_CELLS = 2**20  # of weights that are kept for the next metric of as many images
MOST_GROUPS = 400  # of images that are omitted in turn
FEW = 5.0  # images that decide a figure: with more of them the bootstrap sees more and more of its spread
ROUNDING = 1e-9  # of a metric: less has no influence
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A figure and the two ends of its two-sided interval; NaN where there is nothing to measure."""

    value: float
    low: float
    high: float
    method: Method

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    def to_dict(self) -> dict[str, float | None]:
        """Return the figure and the ends as JSON; None if unknown."""
        return {name: getattr(self, name) if self.known else None for name in ("value", "low", "high")}


NOTHING = ConfidenceInterval(math.nan, math.nan, math.nan, "bootstrap")


def exact_interval(successes: int, trials: int, confidence: float) -> ConfidenceInterval:
    """Of a share of independent images, in percent."""
    if not trials:
        return NOTHING
    low, high = clopper_pearson(successes, trials, confidence)
    return _rounded(100 * successes / trials, 100 * low, 100 * high, "exact")


def bootstrap_interval(
    values: Values, images: int, *, confidence: float, samples: int, seed: int, bounds: tuple[float, float]
) -> ConfidenceInterval:
    """Return the exact interval of a metric of that many images, within `bounds`."""
    value = float(values(np.ones((1, images)))[0]) if images else math.nan
    if math.isnan(value):
        return NOTHING
    every = _kept_samples if images * samples <= MAX_KEPT_CELLS else resampled
    drawn = np.concatenate([values(weights) for weights in every(images, samples, seed)])
    drawn = drawn[~np.isnan(drawn)]
    apart = _jackknife_influence(values, images)
    low, high = _bca(value, drawn, _acceleration(apart), student_t_reach(images, confidence))
    rare = max_unseen_share(images, confidence) * min(FEW / max(effective_images(apart), 1.0), 1.0)
    worst, best = ((1 - rare) * value + rare * bound for bound in bounds)
    return _rounded(value, max(min(low, worst), bounds[0]), min(max(high, best), bounds[1]), "bootstrap")


def max_unseen_share(images: int, confidence: float) -> float:
    """Return the largest share of a kind of image of which none was in the sample, at this confidence."""
    return 1.0 - math.exp(math.log((1 - confidence) / 2) / images)


def resampled(images: int, samples: int, seed: int) -> Iterator[Floats]:
    """Weights of samples of as many images, drawn with replacement, a few samples at a time."""
    raw = np.random.PCG64(seed)
    step = max(CELLS // images, 1)
    for start in range(0, samples, step):
        count = min(step, samples - start)
        chosen = (raw.random_raw((count, images)) % images).astype(np.int64)
        cells = chosen + np.arange(count)[:, None] * images
        yield np.bincount(cells.ravel(), minlength=count * images).reshape(count, images).astype(np.float64)


@lru_cache(maxsize=2)
def _kept_samples(images: int, samples: int, seed: int) -> tuple[Floats, ...]:
    """Return what `resampled` yields, made once."""
    return tuple(resampled(images, samples, seed))


def additional_images(interval: ConfidenceInterval, limit: float, images: int) -> int | None:
    """Estimate how many more such images would move the limit out of the interval; None if none would.

    An interval shrinks with the square root of the number of images.
    """
    apart = abs(interval.value - limit)
    reach = interval.value - interval.low if interval.value >= limit else interval.high - interval.value
    if not interval.known or apart < 0.5 * 10**-DIGITS:
        return None
    return max(math.ceil(images * (reach / apart) ** 2) - images, 1)


def effective_images(apart: Floats) -> float:
    """Return how many images would decide the metric with equal influence: the effective sample size."""
    fourth = float((apart**4).sum())
    return float((apart**2).sum()) ** 2 / fourth if fourth > 0 else 0.0


def _jackknife_influence(values: Values, images: int) -> Floats:
    """Return how much the metric changes as images, or groups of them, are omitted in turn (jackknife)."""
    groups = min(images, MOST_GROUPS)
    of_group = np.arange(images) % groups
    step = max(CELLS // images, 1)
    left_out = [
        values((of_group[None] != np.arange(start, min(start + step, groups))[:, None]).astype(np.float64))
        for start in range(0, groups, step)
    ]
    without = np.concatenate(left_out)
    without = without[~np.isnan(without)]
    apart = np.asarray(without.mean() - without) if len(without) else without
    return np.where(np.abs(apart) > ROUNDING, apart, 0.0)


def _acceleration(apart: Floats) -> float:
    """Return how fast the spread of the metric changes with the metric."""
    spread = float((apart**2).sum()) ** 1.5
    return float((apart**3).sum()) / (6 * spread) if spread > 0 else 0.0


def student_t_reach(images: int, confidence: float) -> float:
    """Return the reach of an end in standard deviations, as for Student's t: the spread is estimated.

    A bootstrap of n images has n - 1 of n parts of the variance (Hesterberg's correction of both).
    """
    z, free = NORMAL.inv_cdf((1 + confidence) / 2), max(images - 1, 1)
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return t * math.sqrt(images / free)


def _bca(value: float, drawn: Floats, acceleration: float, reach: float) -> tuple[float, float]:
    if not len(drawn):
        return value, value
    below = (np.count_nonzero(drawn < value) + 0.5 * np.count_nonzero(drawn == value)) / len(drawn)
    inside = min(max(below, 1 / (len(drawn) + 1)), len(drawn) / (len(drawn) + 1))
    bias = NORMAL.inv_cdf(inside)
    ends = []
    for z in (bias - reach, bias + reach):
        slowed = 1 - acceleration * z
        ends.append(NORMAL.cdf(bias + z / slowed) if slowed > 0 else float(z > 0))
    low, high = np.percentile(drawn, [100 * end for end in ends])
    return float(low), float(high)


def _rounded(value: float, low: float, high: float, method: Method) -> ConfidenceInterval:
    """Ends away from the value, the value to the nearest."""
    unit = 10.0**DIGITS
    return ConfidenceInterval(
        round(value, DIGITS), math.floor(low * unit) / unit, math.ceil(high * unit) / unit, method
    )


# The exact interval of a share of independent trials (Clopper and Pearson's), with the standard library alone.

STEPS = 200  # of a bisection: more than a double has bits
TERMS = 20_000  # of the continued fraction; it needs about the square root of the number of trials


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval of a share; it errs at most 1 - confidence of the time, half per side.

    Without trials nothing is known.
    """
    if not trials:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    # The lower end is where that many or more successes are as rare as `tail`, the upper end where that many or fewer
    # are.
    low = _solved(lambda p: at_least(successes, trials, p) > tail) if successes else 0.0
    high = 1.0 - _solved(lambda q: at_least(trials - successes, trials, q) > tail) if successes < trials else 1.0
    return low, high


def at_least(successes: int, trials: int, share: float) -> float:
    """Return the chance of at least `successes` in `trials`, each with probability `share`."""
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
