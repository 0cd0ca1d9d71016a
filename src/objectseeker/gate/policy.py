"""Policies: the requirements on a release, as a short TOML file that the gate applies."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from objectseeker import codec
from objectseeker.core.threats import ALL_LOCATIONS, Patch, PatchLocation, ThreatModel, parse_area
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number
from objectseeker.text import quote, suggest_name

FORMAT = 1
CONFIDENCE = 0.95
SAMPLES = 2000
MAX_BOXES_PER_IMAGE = 100  # as many detections per image as COCO counts
MAX_SAMPLES = 100_000
MAX_BOXES = 1_000_000

Limit = Literal["at_least", "at_most", "max_regression"]
LIMITS: tuple[Limit, ...] = ("at_least", "at_most", "max_regression")
Unit = Literal["%", "points", ""]  # a share, a difference of shares, a number

EXAMPLE = resources.files(__package__).joinpath("example.toml").read_text(encoding="utf-8")

PATCH = ("location", "patch_area", "patch_aspect", "certification_threshold")
OBJECTS = ("classes", "object_size", "slice")
ENOUGH = ("min_objects", "min_images")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric that a policy may require: description, limit, unit, and the keys that restrict it."""

    description: str
    limit: Limit | None  # without a baseline; None: it holds or it does not
    unit: Unit
    keys: tuple[str, ...] = ()
    has_baseline: bool = True  # may be compared with a baseline


METRIC_SPECS: dict[str, MetricSpec] = {
    "certified_recall": MetricSpec("certified recall", "at_least", "%", (*PATCH, *OBJECTS, *ENOUGH)),
    "joint_certified_recall": MetricSpec("joint certified recall", "at_least", "%", (*PATCH[1:], "slice", *ENOUGH)),
    "certified_true_positives": MetricSpec(
        "true positives certified not fabricated", "at_least", "%", (*PATCH[:3], "classes", "slice", *ENOUGH)
    ),
    "certified_false_positives": MetricSpec(
        "false positives certified not fabricated", "at_most", "%", (*PATCH[:3], "classes", "slice", *ENOUGH)
    ),
    "clean_recall": MetricSpec("clean recall", "at_least", "%", (*OBJECTS, *ENOUGH)),
    "clean_ap50": MetricSpec("clean AP50", "at_least", "%", ("classes", "slice", *ENOUGH)),
    "clean_ap50_loss": MetricSpec("AP50 loss against undefended", "at_most", "points", ("classes", "slice", *ENOUGH)),
    "false_alert_rate": MetricSpec("false alert rate", "at_most", "%", ("slice", *ENOUGH)),
    "fppi": MetricSpec("false positives per image", "at_most", "", ("slice", *ENOUGH)),
    "recall_under_attack": MetricSpec("recall under attack", "at_least", "%", (*PATCH, *ENOUGH), has_baseline=False),
    "detector_check": MetricSpec("objectseeker check passed", None, "", has_baseline=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One entry of a policy; its limit is in the unit of the metric: percent, points, or a plain number."""

    metric: str
    given_name: str = ""
    limit: Limit | None = None
    value: float = 0.0  # of the limit
    location: PatchLocation = "anywhere"
    patch_area: float = 0.01
    patch_aspect: float = 1.0
    certification_threshold: float | None = None
    classes: tuple[str, ...] = ()  # empty: all
    object_size: tuple[float, float] | None = None  # above the first share of the image and up to the second
    slice: str | None = None  # COLUMN=VALUE, or COLUMN: every value of it
    min_objects: int = 0
    min_images: int = 0

    def __post_init__(self) -> None:
        Patch(self.patch_area, self.patch_aspect, self.location)  # rejects invalid values

    @property
    def spec(self) -> MetricSpec:
        return METRIC_SPECS[self.metric]

    @property
    def has_patch(self) -> bool:
        """Return whether the requirement is about a patch."""
        return "patch_area" in self.spec.keys

    @property
    def patch(self) -> Patch:
        return Patch(self.patch_area, self.patch_aspect, self.location)

    @property
    def threat(self) -> ThreatModel:
        """Return the threat model to certify against."""
        threat = ThreatModel(
            area=self.patch_area, aspect=self.patch_aspect, certification_threshold=self.certification_threshold
        )
        return threat.at_all_locations(self.location == "outside")

    @property
    def against_baseline(self) -> bool:
        return self.limit == "max_regression"

    @property
    def higher_is_better(self) -> bool:
        return self.spec.limit == "at_least"

    @property
    def unit(self) -> Unit:
        return "points" if self.against_baseline and self.spec.unit == "%" else self.spec.unit

    def describe(self) -> str:
        """Describe the metric and what it is restricted to."""
        words = [self.spec.description]
        if self.has_patch:
            shape = "" if self.patch_aspect == 1 else f", {self.patch_aspect:g} times as wide as high"
            words.append(f"against a patch of {100 * self.patch_area:.4g} %{shape} {self.location}")
            words += [f"with T = {self.certification_threshold:g}"] if self.certification_threshold else []
        words += [f"of {', '.join(self.classes)}"] if self.classes else []
        if self.object_size is not None:
            words.append("of objects of {:.4g} to {:.4g} %".format(*(100 * share for share in self.object_size)))
        words += [] if self.slice is None else [f"for {'' if '=' in self.slice else 'every '}{self.slice}"]
        return " ".join(words)

    def describe_limit(self) -> str:
        if self.limit is None:
            return "must hold"
        number = format_value(self.value, self.unit)
        if self.against_baseline:
            return f"at most {number} worse than the baseline"
        return f"{self.limit.replace('_', ' ')} {number}"

    def describe_with_limit(self) -> str:
        return f"{self.describe()}: {self.describe_limit()}"

    @property
    def name(self) -> str:
        return self.given_name or self.describe_with_limit()

    @property
    def title(self) -> str:
        """The name with the limit."""
        return f"{self.given_name}: {self.describe_limit()}" if self.given_name else self.describe_with_limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Requirements, and the confidence of the two-sided intervals at whose ends they are tested.

    `max_boxes_per_image` is the assumption about images unlike those of the run: none has more objects, or more false
    positives.
    """

    requirements: tuple[Requirement, ...]
    confidence: float = CONFIDENCE
    bootstrap_samples: int = SAMPLES
    seed: int = 0
    max_boxes_per_image: int = MAX_BOXES_PER_IMAGE


def format_value(value: float, unit: Unit) -> str:
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{digits} {unit}".rstrip()


def parse_policy(text: str, source: str = "the policy") -> Policy:
    """Read a policy from TOML; unknown keys and values are errors, never ignored.

    Args:
        text: The TOML document.
        source: What error messages call it.

    Raises:
        ObjectSeekerError: The document is not a policy; the message names the key and the value.

    Example:
        >>> text = 'format = 1\\n[[require]]\\nmetric = "clean_recall"\\nat_least = "80 %"'
        >>> parse_policy(text).requirements[0].name
        'clean recall: at least 80 %'
    """
    content = codec.parse_toml(text, source)
    try:
        return _policy(content)
    except ObjectSeekerError as error:
        raise ObjectSeekerError(f"{source}: {error}") from None


def _policy(content: Mapping[str, Any]) -> Policy:
    _require_known(
        content, ("format", "confidence", "bootstrap_samples", "seed", "max_boxes_per_image", "require"), "the policy"
    )
    if type(content.get("format")) is not int or content["format"] != FORMAT:
        raise ObjectSeekerError(f"format must be {FORMAT}: got {quote(content.get('format'))}")
    confidence = require_number(content.get("confidence", CONFIDENCE), "confidence")
    if not 0.5 <= confidence < 1:
        raise ObjectSeekerError(f"confidence must be at least 0.5 and below 1: got {confidence!r}")
    samples = require_count(content.get("bootstrap_samples", SAMPLES), "bootstrap_samples")
    if not 200 <= samples <= MAX_SAMPLES:
        raise ObjectSeekerError(f"bootstrap_samples must be within 200 and {MAX_SAMPLES:,}: got {samples}")
    seed = content.get("seed", 0)
    if type(seed) is not int or seed < 0:
        raise ObjectSeekerError(f"seed must be a whole number of at least 0: got {quote(seed)}")
    boxes = require_count(content.get("max_boxes_per_image", MAX_BOXES_PER_IMAGE), "max_boxes_per_image")
    if not 1 <= boxes <= MAX_BOXES:
        raise ObjectSeekerError(f"max_boxes_per_image must be within 1 and {MAX_BOXES:,}: got {boxes}")
    listed = content.get("require")
    if not isinstance(listed, list) or not listed or not all(isinstance(item, dict) for item in listed):
        raise ObjectSeekerError("it has no requirement: write [[require]] and a metric below it")
    requirements = tuple(_requirement(item, number) for number, item in enumerate(listed, 1))
    for name, count in Counter(requirement.name for requirement in requirements).items():
        if count > 1:
            raise ObjectSeekerError(f"{count} requirements are called {quote(name)}: give each its own name")
    return Policy(
        requirements=requirements,
        confidence=confidence,
        bootstrap_samples=samples,
        seed=seed,
        max_boxes_per_image=boxes,
    )


def _requirement(item: Mapping[str, Any], number: int) -> Requirement:
    source = f"requirement {number}"
    metric = item.get("metric")
    if not isinstance(metric, str) or metric not in METRIC_SPECS:
        advice = _suggest(str(metric), METRIC_SPECS)
        raise ObjectSeekerError(f"{source} must have a metric: got {quote(metric)}: {advice}")
    spec = METRIC_SPECS[metric]
    given = [limit for limit in LIMITS if limit in item]
    allowed = [limit for limit in LIMITS if limit == spec.limit or (limit == LIMITS[2] and spec.has_baseline)]
    allowed = [] if spec.limit is None else allowed
    _require_known(item, ("metric", "name", *allowed, *spec.keys), f"{source} ({metric})")
    if len(given) != bool(allowed):
        raise ObjectSeekerError(f"{source} ({metric}) needs {' or '.join(allowed)}, one of them; it has {len(given)}")
    parsers: dict[str, Callable[[Any], Any]] = {
        "location": _parse_location,
        "patch_area": _parse_area,
        "patch_aspect": lambda value: require_number(value, "patch_aspect"),
        "certification_threshold": lambda value: require_fraction(value, "certification_threshold"),
        "classes": _parse_classes,
        "object_size": _parse_sizes,
        "slice": _require_string,
        "min_objects": lambda value: require_count(value, "min_objects"),
        "min_images": lambda value: require_count(value, "min_images"),
    }
    try:
        values = {key: parsers[key](item[key]) for key in spec.keys if key in item}
        if "location" in spec.keys and "location" not in item:
            raise ObjectSeekerError(f"give the patch location: location = one of {', '.join(ALL_LOCATIONS)}")
        limit = given[0] if given else None
        requirement = Requirement(metric=metric, limit=limit, **values)
        _check_slice(requirement)
        value = 0.0 if limit is None else _parse_limit(item[limit], limit, requirement.unit)
        return replace(requirement, value=value, given_name=_require_string(item["name"]) if "name" in item else "")
    except ObjectSeekerError as error:
        raise ObjectSeekerError(f"{source} ({metric}): {error}") from None


def _check_slice(requirement: Requirement) -> None:
    column = (requirement.slice or "").partition("=")[0]
    other_key = {"class": "classes", "size": "object_size"}.get(column)
    if other_key is not None and other_key not in requirement.spec.keys:
        raise ObjectSeekerError(
            f"{requirement.spec.description} cannot be sliced by {column}: slice by a column of your tags"
        )
    if other_key is not None and getattr(requirement, other_key):
        raise ObjectSeekerError(f"give {other_key} or slice = {quote(requirement.slice)}, not both")


def _parse_limit(value: Any, limit: str, unit: Unit) -> float:
    """Read a limit with its unit, which must be written: 0.4 could mean 0.4 % or 40 %."""
    if unit == "":
        number = require_number(value, limit)
    else:
        match = re.fullmatch(r"\s*([0-9.]+)\s*(%|points?)\s*", value) if isinstance(value, str) else None
        example = '"40 %"' if unit == "%" else '"0.5 points"'
        if match is None or (match[2] == "%") != (unit == "%"):
            raise ObjectSeekerError(f"{limit} must be a string such as {example}: got {quote(value)}")
        try:
            number = float(match[1])
        except ValueError:
            raise ObjectSeekerError(f"{limit} must be a string such as {example}: got {quote(value)}") from None
    if not 0 <= number <= (math.inf if unit == "" else 100):
        raise ObjectSeekerError(f"{limit} must be within 0 and 100: got {quote(value)}")
    return number


def _parse_location(value: Any) -> PatchLocation:
    if value not in ALL_LOCATIONS:
        raise ObjectSeekerError(f"location must be one of {', '.join(ALL_LOCATIONS)}: got {quote(value)}")
    location: PatchLocation = value
    return location


def _parse_area(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ObjectSeekerError(f"patch_area must be a share of the image such as 1% or 0.01: got {quote(value)}")
    return parse_area(str(value))


def _parse_classes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ObjectSeekerError(f'classes must be a list of names such as ["person", "car"]: got {quote(value)}')
    return tuple(dict.fromkeys(value))


def _parse_sizes(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ObjectSeekerError(f"object_size must be two shares of the image such as [0.01, 1.0]: got {quote(value)}")
    low, high = (require_fraction(share, "object_size") for share in value)
    if low >= high:
        raise ObjectSeekerError(f"object_size must ascend: got {quote(value)}")
    return low, high


def _require_string(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ObjectSeekerError(f"name and slice must be strings: got {quote(value)}")
    return value


def _require_known(item: Mapping[str, Any], keys: tuple[str, ...], source: str) -> None:
    for key in item:
        if key not in keys:
            raise ObjectSeekerError(f"{source} has no {quote(key)}: {_suggest(key, keys)}")


def _suggest(name: str, known: Any) -> str:
    return suggest_name(name, known) or f"it knows {', '.join(known)}"
