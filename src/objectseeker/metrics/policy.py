"""A policy: what a release must show, as a short TOML file. Reading it needs no run; `gate` holds a run against it."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation, parse_area
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number
from objectseeker.metrics.image_tags import did_you_mean
from objectseeker.text import shown

FORMAT = 1
CONFIDENCE = 0.95
SAMPLES = 2000
MOST_SAMPLES = 100_000

Limit = Literal["at_least", "at_most", "no_worse_than_baseline_by"]
LIMITS: tuple[Limit, ...] = ("at_least", "at_most", "no_worse_than_baseline_by")
Unit = Literal["%", "points", ""]  # a share, a difference of shares, a number

PATCH = ("where", "patch", "aspect", "threshold")
OBJECTS = ("classes", "object_size", "slice")
ENOUGH = ("fewest_objects", "fewest_images")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a figure is, what may be asked of it, and which way is better."""

    words: str
    limit: Limit | None  # beside a comparison with the baseline; None: it holds or it does not
    unit: Unit
    keys: tuple[str, ...] = ()
    compared: bool = True  # with a baseline


KINDS: dict[str, Kind] = {
    "certified_recall": Kind("certified recall", "at_least", "%", (*PATCH, *OBJECTS, *ENOUGH)),
    "joint_certified_recall": Kind(
        "objects that surely remain, all at once,", "at_least", "%", (*PATCH[1:], "slice", *ENOUGH)
    ),
    "clean_recall": Kind("clean recall", "at_least", "%", (*OBJECTS, *ENOUGH)),
    "clean_ap50": Kind("clean AP50", "at_least", "%", ("classes", "slice", *ENOUGH)),
    "clean_ap50_loss": Kind("AP50 lost against undefended", "at_most", "points", ("classes", "slice", *ENOUGH)),
    "false_alerts": Kind("clean images flagged", "at_most", "%", ("slice", *ENOUGH)),
    "fppi": Kind("wrong boxes an image", "at_most", "", ("slice", *ENOUGH)),
    "recall_under_attack": Kind("recall under attack", "at_least", "%", (*PATCH, *ENOUGH), compared=False),
    "check_detector": Kind("check-detector passed", None, "", compared=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One line of a policy. Limits are in percent, in points of percent, or plain numbers, as the figure is."""

    figure: str
    given_name: str = ""
    limit: Limit | None = None
    value: float = 0.0  # of the limit
    where: PatchLocation = "anywhere"
    area: float = 0.01
    aspect: float = 1.0
    threshold: float | None = None
    classes: tuple[str, ...] = ()  # none: all
    object_size: tuple[float, float] | None = None  # above the first share of the image and up to the second
    slice: str | None = None  # COLUMN=VALUE, or COLUMN: every value of it
    fewest_objects: int = 0
    fewest_images: int = 0

    def __post_init__(self) -> None:
        Patch(self.area, self.aspect, self.where)  # refuses what cannot be

    @property
    def kind(self) -> Kind:
        return KINDS[self.figure]

    @property
    def patch(self) -> Patch:
        return Patch(self.area, self.aspect, self.where)

    @property
    def against_baseline(self) -> bool:
        return self.limit == "no_worse_than_baseline_by"

    @property
    def higher_is_better(self) -> bool:
        return self.kind.limit == "at_least"

    @property
    def unit(self) -> Unit:
        return "points" if self.against_baseline and self.kind.unit == "%" else self.kind.unit

    def in_words(self) -> str:
        """What is required, in a few words."""
        words = [self.kind.words]
        if "patch" in self.kind.keys:
            shape = "" if self.aspect == 1 else f", {self.aspect:g} times as wide as high"
            words.append(f"against a patch of {100 * self.area:.4g} %{shape} {self.where}")
            words += [f"with T = {self.threshold:g}"] if self.threshold else []
        words += [f"of {', '.join(self.classes)}"] if self.classes else []
        if self.object_size is not None:
            words.append("of objects of {:.4g} to {:.4g} %".format(*(100 * share for share in self.object_size)))
        words += [] if self.slice is None else [f"for {'' if '=' in self.slice else 'every '}{self.slice}"]
        return " ".join(words)

    def in_full(self) -> str:
        """The same with the limit."""
        return f"{self.in_words()}: {self.limit_in_words()}"

    @property
    def name(self) -> str:
        return self.given_name or self.in_full()

    @property
    def title(self) -> str:
        """Its name, and the limit."""
        return f"{self.given_name}: {self.limit_in_words()}" if self.given_name else self.in_full()

    def limit_in_words(self) -> str:
        if self.limit is None:
            return "must hold"
        number = in_unit(self.value, self.unit)
        if self.against_baseline:
            return f"no worse than the baseline by more than {number}"
        return f"{self.limit.replace('_', ' ')} {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Requirements, and how sure a verdict must be: each is tested at the ends of its two-sided interval."""

    requirements: tuple[Requirement, ...]
    confidence: float = CONFIDENCE
    samples: int = SAMPLES
    seed: int = 0


def in_unit(value: float, unit: Unit) -> str:
    """A figure as it is shown."""
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{digits} {unit}".rstrip()


def parse_policy(text: str, source: str = "the policy") -> Policy:
    """The policy that a TOML text spells out; whatever is not understood is refused, never ignored."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ObjectSeekerError(f"{source} is not valid TOML: {error}") from None
    try:
        return _policy(content)
    except ObjectSeekerError as error:
        raise ObjectSeekerError(f"{source}: {error}") from None


def _policy(content: Mapping[str, Any]) -> Policy:
    _known(content, ("format", "confidence", "samples", "seed", "require"), "the policy")
    if content.get("format") != FORMAT:
        raise ObjectSeekerError(f"format must be {FORMAT}, got {shown(content.get('format'))}")
    confidence = require_number(content.get("confidence", CONFIDENCE), "confidence")
    if not 0.5 <= confidence < 1:
        raise ObjectSeekerError(f"confidence must be at least 0.5 and below 1, got {confidence!r}")
    samples = require_count(content.get("samples", SAMPLES), "samples")
    if not 200 <= samples <= MOST_SAMPLES:
        raise ObjectSeekerError(f"samples must lie within 200 and {MOST_SAMPLES:,}, got {samples}")
    seed = content.get("seed", 0)
    if type(seed) is not int or seed < 0:
        raise ObjectSeekerError(f"seed must be a whole number of at least 0, got {shown(seed)}")
    listed = content.get("require")
    if not isinstance(listed, list) or not listed or not all(isinstance(item, dict) for item in listed):
        raise ObjectSeekerError("it must require something: write [[require]] and a figure below it")
    requirements = tuple(_requirement(item, number) for number, item in enumerate(listed, 1))
    names = [one.name for one in requirements]
    for name in names:
        if names.count(name) > 1:
            raise ObjectSeekerError(
                f"{names.count(name)} requirements are called {shown(name)}: give each its own name"
            )
    return Policy(requirements=requirements, confidence=confidence, samples=samples, seed=seed)


def _requirement(item: Mapping[str, Any], number: int) -> Requirement:
    source = f"requirement {number}"
    figure = item.get("figure")
    if figure not in KINDS:
        raise ObjectSeekerError(f"{source} must have a figure, got {shown(figure)}: {_instead(str(figure), KINDS)}")
    kind = KINDS[figure]
    given = [limit for limit in LIMITS if limit in item]
    allowed = [limit for limit in LIMITS if limit == kind.limit or (limit == LIMITS[2] and kind.compared)]
    allowed = [] if kind.limit is None else allowed
    _known(item, ("figure", "name", *allowed, *kind.keys), f"{source} ({figure})")
    if len(given) != bool(allowed):
        raise ObjectSeekerError(f"{source} ({figure}) needs {' or '.join(allowed)}, one of them; it has {len(given)}")
    read: dict[str, Callable[[Any], Any]] = {
        "where": _where,
        "patch": _area,
        "aspect": lambda value: require_number(value, "aspect"),
        "threshold": lambda value: require_fraction(value, "threshold"),
        "classes": _classes,
        "object_size": _sizes,
        "slice": _text,
        "fewest_objects": lambda value: require_count(value, "fewest_objects"),
        "fewest_images": lambda value: require_count(value, "fewest_images"),
    }
    try:
        values = {("area" if key == "patch" else key): read[key](item[key]) for key in kind.keys if key in item}
        if "where" in kind.keys and "where" not in item:
            raise ObjectSeekerError(f"say where the patch may be: where = one of {', '.join(PATCH_LOCATIONS)}")
        limit = given[0] if given else None
        made = Requirement(figure=figure, limit=limit, **values)
        _check_slice(made)
        number_of = 0.0 if limit is None else _value(item[limit], limit, made.unit)
        return replace(made, value=number_of, given_name=_text(item["name"]) if "name" in item else "")
    except ObjectSeekerError as error:
        raise ObjectSeekerError(f"{source} ({figure}): {error}") from None


def _check_slice(made: Requirement) -> None:
    column = (made.slice or "").partition("=")[0]
    beside = {"class": "classes", "size": "object_size"}.get(column)
    if beside is not None and beside not in made.kind.keys:
        raise ObjectSeekerError(f"{made.kind.words} are not counted by {column}: slice by a column of your tags")
    if beside is not None and getattr(made, beside):
        raise ObjectSeekerError(f"give {beside} or slice = {shown(made.slice)}, not both")


def _value(value: Any, limit: str, unit: Unit) -> float:
    """A limit in its unit, which must be written: 0.4 could mean 0.4 % or 40 %."""
    if unit == "":
        number = require_number(value, limit)
    else:
        found = re.fullmatch(r"\s*([0-9.]+)\s*(%|points?)\s*", value) if isinstance(value, str) else None
        example = '"40 %"' if unit == "%" else '"0.5 points"'
        if found is None or (found[2] == "%") != (unit == "%"):
            raise ObjectSeekerError(f"{limit} must be a text such as {example}, got {shown(value)}")
        try:
            number = float(found[1])
        except ValueError:
            raise ObjectSeekerError(f"{limit} must be a text such as {example}, got {shown(value)}") from None
    if not 0 <= number <= (math.inf if unit == "" else 100):
        raise ObjectSeekerError(f"{limit} must lie within 0 and 100, got {shown(value)}")
    return number


def _where(value: Any) -> PatchLocation:
    if value not in PATCH_LOCATIONS:
        raise ObjectSeekerError(f"where must be one of {', '.join(PATCH_LOCATIONS)}, got {shown(value)}")
    where: PatchLocation = value
    return where


def _area(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ObjectSeekerError(f"a patch area is a share of the image such as 1% or 0.01, got {shown(value)}")
    return parse_area(str(value))


def _classes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ObjectSeekerError(f'classes must be a list of names such as ["person", "car"], got {shown(value)}')
    return tuple(dict.fromkeys(value))


def _sizes(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ObjectSeekerError(f"object_size must be two shares of the image such as [0.01, 1.0], got {shown(value)}")
    low, high = (require_fraction(share, "object_size") for share in value)
    if low >= high:
        raise ObjectSeekerError(f"object_size must ascend, got {shown(value)}")
    return low, high


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ObjectSeekerError(f"name and slice must be texts, got {shown(value)}")
    return value


def _known(given: Mapping[str, Any], keys: tuple[str, ...], source: str) -> None:
    for key in given:
        if key not in keys:
            raise ObjectSeekerError(f"{source} has no {shown(key)}: {_instead(key, keys)}")


def _instead(wrong: str, known: Any) -> str:
    return did_you_mean(wrong, known) or f"it knows {', '.join(known)}"


EXAMPLE = """\
# What a release must show. Check it with:
#   objectseeker gate RUN --defense tuned/defense.json --policy policy.toml
format = 1

# Every requirement is tested at the ends of its two-sided interval, not at the measured value: it passes if the worse
# end is good enough and fails if even the better end is not; in between there is too little data to say. With 0.95 a
# release that is not good enough passes about one time in forty.
confidence = 0.95
# samples = 2000   # of the bootstrap over images
# seed = 0

# Of all objects, how many surely stay found, wherever one square patch of 1 % of the image lies?
[[require]]
figure = "certified_recall"
where = "anywhere"          # far, close, over or anywhere
patch = "1%"                # share of the image; aspect = 2.0 for one twice as wide as high
at_least = "25 %"
fewest_objects = 100        # behind this figure; with fewer it is undecided

# Of all objects, how many surely remain under any one such patch? It lies at one place at a time, so that is more.
# [[require]]
# figure = "joint_certified_recall"
# patch = "1%"
# at_least = "40 %"

# The same for people that are large enough, and more of each than touched.
# [[require]]
# figure = "certified_recall"
# where = "over"
# patch = "1%"
# threshold = 0.1           # T: share of the object that must stay covered
# classes = ["person"]
# object_size = [0.05, 1.0] # shares of the image
# at_least = "20 %"

# In every weather; --tags FILE has a column `weather`. slice = "class" and slice = "size" need no file.
# [[require]]
# figure = "certified_recall"
# where = "far"
# slice = "weather"         # or "weather=rain"
# at_least = "40 %"

# What the defense may cost.
[[require]]
figure = "clean_ap50_loss"
at_most = "2 points"

[[require]]
figure = "clean_recall"
at_least = "50 %"

[[require]]
figure = "false_alerts"     # clean images to which masks add a box
at_most = "30 %"

# [[require]]
# figure = "fppi"    # of the defended detector, per clean image
# at_most = 1.5

# No step back: --baseline RUN is the release before, on the same images.
# [[require]]
# figure = "clean_ap50"
# no_worse_than_baseline_by = "0.5 points"

# --attacks FILE: attack.json of this very defense and patch.
# [[require]]
# figure = "recall_under_attack"
# where = "over"
# patch = "1%"
# at_least = "60 %"

# --check FILE: what check-detector --defense FILE --json printed.
# [[require]]
# figure = "check_detector"
"""
