"""Hold a release against a policy: every requirement passes, fails or is undecided, with a reason.

A requirement fails if even the better end of its confidence interval does not meet the limit. It passes if the worse
end does, and also the value that all images would have if the share of images that the sample may have missed held
`max_boxes_per_image` boxes each and failed. In between it is undecided.

A release passes if all of its requirements do, so a release that is not good enough passes no more often than it passes
a single requirement. The gate fails closed: a missing input leaves a requirement undecided, never passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.threats import Patch, ThreatModel
from objectseeker.defense import Defense
from objectseeker.detectors.check import DetectorCheck
from objectseeker.errors import ObjectSeekerError
from objectseeker.gate.policy import Policy, Requirement, format_value
from objectseeker.metrics import metric
from objectseeker.metrics.average_precision import percent
from objectseeker.metrics.confidence_intervals import (
    DIGITS,
    NOTHING,
    ConfidenceInterval,
    additional_images,
    bootstrap_interval,
    max_unseen_share,
)
from objectseeker.metrics.metric import Metric, difference_interval, with_unseen_objects
from objectseeker.metrics.output_boxes import FALSE_POSITIVE, TRUE_POSITIVE
from objectseeker.metrics.settings import EvaluationSettings
from objectseeker.metrics.slices import NO_TAGS, ImageTags, label_of, slice_selectors
from objectseeker.metrics.tally import Tally, TallyRequest
from objectseeker.text import quote_plain

Outcome = Literal["pass", "fail", "undecided"]
Verdict = Literal["pass", "fail", "undecided", "refuted"]
WORST_FIRST: tuple[Outcome, ...] = ("fail", "undecided", "pass")
EXIT_STATUS: dict[Verdict, int] = {"pass": 0, "fail": 1, "undecided": 1, "refuted": 3}

FORMAT = 1
MAX_EXAMPLES = 6  # failure examples per requirement
MAX_IMAGE_FACTOR = 1000  # more additional images than this times those at hand: the value is at the limit itself


@dataclass(frozen=True, slots=True)
class FailureExample:
    """An object that fails a requirement; without a number, an image that does."""

    image: str
    number: int | None = None
    class_name: str | None = None
    box: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        box = None if self.box is None else list(self.box)
        return {"image": self.image, "object": self.number, "class": self.class_name, "box": box}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementResult:
    """One requirement, or one slice of it: its value, its interval, and the outcome.

    `slices` holds the results of all required slices; the others are then those of the worst one, named by `slice`.
    """

    requirement: Requirement
    outcome: Outcome = "undecided"
    reason: str = "there is nothing to measure it on"
    slice: str | None = None
    interval: ConfidenceInterval = NOTHING
    limit: float | None = None
    images: int = 0
    objects: int = 0
    vacuous: int = 0
    additional_images: int | None = None
    with_unseen: float | None = None  # the value if the images that the sample may have missed failed
    failure_examples: tuple[FailureExample, ...] = ()
    slices: tuple[RequirementResult, ...] = ()

    @property
    def margin(self) -> float:
        """Distance of the worst value that must meet the limit from the limit; positive on the good side."""
        if self.limit is None or not self.interval.known:
            return 0.0
        better = self.requirement.higher_is_better
        end = self.interval.low if better else self.interval.high
        if self.with_unseen is not None:
            end = min(end, self.with_unseen) if better else max(end, self.with_unseen)
        return end - self.limit if better else self.limit - end

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as gate.json holds them."""
        requirement, known = self.requirement, self.interval.known
        row = {
            "name": requirement.name,
            "metric": requirement.metric,
            "requirement": requirement.describe_with_limit(),
            "outcome": self.outcome,
            "reason": self.reason,
            "slice": self.slice,
            "value": self.interval.value if known else None,
            "low": self.interval.low if known else None,
            "high": self.interval.high if known else None,
            "method": self.interval.method if known else None,
            "with_unseen_images": self.with_unseen,
            "limit": self.limit,
            "unit": requirement.unit,
            "images": self.images,
            "objects": self.objects,
            "vacuous": self.vacuous,
            "additional_images": self.additional_images,
            "failure_examples": [example.to_dict() for example in self.failure_examples],
        }
        return row | ({"slices": [result.to_dict() for result in self.slices]} if self.slices else {})


@dataclass(frozen=True, slots=True, eq=False)
class AttackResults:
    """The results of an attack on this defense: the rows of attack.json, one per attacked object."""

    name: str
    patch: Patch
    certification_threshold: float
    rows: Sequence[Mapping[str, Any]]

    @property
    def threat(self) -> ThreatModel:
        patch = self.patch
        threat = ThreatModel(
            area=patch.area,
            aspect=patch.aspect,
            count=patch.count,
            certification_threshold=self.certification_threshold,
        )
        return threat.at_all_locations(patch.location == "outside")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """Everything that a policy is held against."""

    defense: Defense
    measurements: Tally
    baseline: Tally | None = None
    tags: ImageTags = NO_TAGS
    attacks: Sequence[AttackResults] = ()
    detector_check: DetectorCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict on a release; it shows itself as a table in a notebook.

    `results` has one entry per requirement, `refuted` names the certificates that an attack broke, and `inputs` has the
    fingerprints of everything that the verdict was made from. With `allow_undecided` an undecided verdict exits with 0.
    """

    policy: Policy
    results: tuple[RequirementResult, ...]
    refuted: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    allow_undecided: bool = False
    audit_bundle_sha256: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Return "refuted" if an attack broke a certificate, else the worst outcome of all requirements."""
        if self.refuted:
            return "refuted"
        outcomes = {result.outcome for result in self.results}
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    @property
    def exit_status(self) -> int:
        """Return the exit status for a build server: 0 passed, 1 failed or undecided, 3 refuted."""
        return 0 if self.verdict == "undecided" and self.allow_undecided else EXIT_STATUS[self.verdict]

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def summarize(self) -> str:
        """Return the verdict as one sentence."""
        if self.refuted:
            return f"{len(self.refuted)} certificates are refuted by an attack: the guarantee does not hold here"
        counts = {outcome: self.count(outcome) for outcome in WORST_FIRST}
        words = [f"{counts['pass']} of {len(self.results)} requirements pass"]
        words += [f"{counts['fail']} fail"] if counts["fail"] else []
        words += [f"{counts['undecided']} undecided"] if counts["undecided"] else []
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as gate.json holds them."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "confidence": self.policy.confidence,
            "bootstrap_samples": self.policy.bootstrap_samples,
            "seed": self.policy.seed,
            "max_boxes_per_image": self.policy.max_boxes_per_image,
            **self.inputs,
            "refuted": list(self.refuted),
            "requirements": [result.to_dict() for result in self.results],
        }

    def _repr_html_(self) -> str:
        from objectseeker.gate.page import notebook_html

        return notebook_html(self)


def resolve_thresholds(policy: Policy, defense: Defense) -> Policy:
    """Fill in the certification threshold of the defense's rule where the policy has none."""
    return replace(
        policy,
        requirements=tuple(
            replace(
                requirement,
                certification_threshold=defense.rule.resolve_threshold(requirement.certification_threshold),
            )
            if requirement.has_patch
            else requirement
            for requirement in policy.requirements
        ),
    )


def tally_request(policy: Policy, defense: Defense, attacks: Sequence[AttackResults] = ()) -> TallyRequest:
    """Return what to measure of a run: what a policy requires, and what attacks need."""

    def threats(metric: str) -> tuple[ThreatModel, ...]:
        return tuple(requirement.threat for requirement in policy.requirements if requirement.metric == metric)

    return TallyRequest(
        settings=EvaluationSettings(rule=defense.rule, threshold_schedule=defense.resolved_schedule),
        rule=defense.rule,
        threats=(*threats("certified_recall"), *(attack.threat for attack in attacks)),
        joint_threats=threats("joint_certified_recall"),
        fabrication_threats=tuple(threat for metric in BOX_METRICS for threat in threats(metric)),
        curves=any(requirement.metric.startswith("clean_ap50") for requirement in policy.requirements),
    )


def apply_policy(policy: Policy, release: Release, inputs: Mapping[str, Any]) -> GateResult:
    """Hold a release against a policy whose thresholds are resolved (`resolve_thresholds`)."""
    results = tuple(_result(requirement, policy, release) for requirement in policy.requirements)
    return GateResult(policy=policy, results=results, refuted=tuple(_refuted(release)), inputs=inputs)


def _result(requirement: Requirement, policy: Policy, release: Release) -> RequirementResult:
    if requirement.metric == "detector_check":
        return _detector_check_result(requirement, release)
    if requirement.metric == "recall_under_attack":
        return _attack_result(requirement, policy, release)
    if requirement.against_baseline and release.baseline is None:
        return RequirementResult(requirement=requirement, reason="no baseline was given: add --baseline RUN")
    measurements, baseline = release.measurements, release.baseline
    chosen, name = np.arange(len(measurements.ids)), requirement.slice
    if requirement.against_baseline and baseline is not None:
        chosen, in_baseline = _common_images(measurements, baseline)
        measurements, baseline = measurements.of_images(chosen), baseline.of_images(in_baseline)
    sides = [_select_objects(side, requirement) for side in (measurements, baseline) if side is not None]
    if name is None:
        return _slice_result(requirement, policy, None, sides)
    slices = [
        _slice_result(requirement, policy, slice_name, [cut(side) for side in sides])
        for slice_name, cut in slice_selectors(name, measurements, release.tags.of(chosen)).items()
    ]
    if not slices:
        return RequirementResult(requirement=requirement, reason=f"no image has a value of {name}: tag them")
    worst = min(slices, key=lambda result: (WORST_FIRST.index(result.outcome), result.margin))
    return replace(worst, slices=tuple(slices) if len(slices) > 1 else ())


def _select_objects(measurements: Tally, requirement: Requirement) -> Tally:
    """Keep the objects that the requirement covers."""
    if requirement.classes:
        measurements = measurements.of_classes([label_of(name, measurements.names) for name in requirement.classes])
    return measurements if requirement.object_size is None else measurements.of_sizes(*requirement.object_size)


BOX_METRICS = ("certified_true_positives", "certified_false_positives")
METRICS: dict[str, Metric] = {
    "clean_recall": metric.clean_recall,
    "clean_ap50": metric.ap50,
    "clean_ap50_loss": metric.ap50_loss,
    "false_alert_rate": metric.false_alert_rate,
    "fppi": metric.fppi,
}


def metric_of(requirement: Requirement) -> Metric:
    """Return the metric that a requirement limits."""
    match requirement.metric:
        case "certified_recall":
            return metric.certified_recall(requirement.threat, requirement.location)
        case "certified_true_positives":
            return metric.certified_true_positives(requirement.threat, requirement.location)
        case "certified_false_positives":
            return metric.certified_false_positives(requirement.threat, requirement.location)
        case "joint_certified_recall":
            return metric.joint_certified_recall(requirement.threat)
        case name:
            return METRICS[name]


def _slice_result(
    requirement: Requirement, policy: Policy, name: str | None, sides: Sequence[Tally]
) -> RequirementResult:
    measured = metric_of(requirement)
    if measured.needs_objects:
        sides = [side.of_images_with_objects() for side in sides]
    tally = sides[0]
    options: dict[str, Any] = {
        "confidence": policy.confidence,
        "samples": policy.bootstrap_samples,
        "seed": policy.seed,
    }
    unseen: UnseenImages | None = None
    if requirement.against_baseline:
        interval = difference_interval((measured, tally), (measured, sides[1]), **options)
    else:
        interval = measured.interval(tally, **options)
        if (worst := measured.with_unseen) is not None and interval.known:
            unseen = UnseenImages(partial(worst, tally), _most_boxes(requirement, tally), requirement, policy)
    vacuous = 0
    if requirement.metric == "certified_recall":
        vacuous = tally.objects.vacuous_count(requirement.threat, requirement.location)
    result = _decide(requirement, interval, len(tally.ids), len(tally.objects.image), unseen)
    examples = tuple(_failure_examples(requirement, tally))
    return replace(result, slice=name, vacuous=vacuous, failure_examples=examples)


@dataclass(frozen=True, slots=True)
class UnseenImages:
    """Images that a sample may have missed: statistics bound their share, the policy their boxes.

    Attributes:
        worst: Maps their share and how many boxes each has to the value of all images, if all of these boxes fail.
        most_boxes: What one image of the sample has; an unseen one may have as many.
        requirement: What is required of the value.
        policy: Its confidence, and its bound on the boxes of an image.
    """

    worst: Callable[[float, int], float]
    most_boxes: int
    requirement: Requirement
    policy: Policy

    def share(self, images: int) -> float:
        return max_unseen_share(images, self.policy.confidence)

    @property
    def boxes(self) -> int:
        return max(self.policy.max_boxes_per_image, self.most_boxes)

    def value(self, images: int, boxes: int | None = None) -> float:
        """Return the worst value for a sample of this size, rounded to the worse side."""
        unit, value = 10.0**DIGITS, self.worst(self.share(images), self.boxes if boxes is None else boxes)
        return (math.floor(value * unit) if self.requirement.higher_is_better else math.ceil(value * unit)) / unit


def _most_boxes(requirement: Requirement, tally: Tally) -> int:
    if requirement.metric in BOX_METRICS:
        assert tally.boxes is not None
        return int(np.bincount(tally.boxes.image).max(initial=1))
    images = tally.images
    per_image = images.false_positives if requirement.metric == "fppi" else np.bincount(tally.objects.image)
    return int(per_image.max(initial=1))


def _decide(
    requirement: Requirement,
    interval: ConfidenceInterval,
    images: int,
    objects: int,
    unseen: UnseenImages | None = None,
) -> RequirementResult:
    """Return the outcome that follows from a metric's interval and the images that the sample may lack."""
    limit = requirement.value
    if requirement.against_baseline and requirement.higher_is_better:
        limit = -limit
    result = RequirementResult(
        requirement=requirement,
        limit=limit,
        interval=interval,
        images=images,
        objects=objects,
        with_unseen=None if unseen is None else unseen.value(images),
    )
    if not interval.known:
        return result
    ends = (interval.low, interval.high)
    worse, better = ends if requirement.higher_is_better else ends[::-1]

    def meets_limit(end: float) -> bool:
        return end >= limit if requirement.higher_is_better else end <= limit

    if not meets_limit(better):
        end = format_value(better, requirement.unit)
        return replace(result, outcome="fail", reason=f"even the better end, {end}, is not good enough")
    for unit, count, minimum in (
        ("objects", objects, requirement.min_objects),
        ("images", images, requirement.min_images),
    ):
        if count < minimum:
            reason = f"the sample has {count} {unit} and {minimum} are required: observe more images"
            return replace(result, reason=reason, additional_images=minimum - count if unit == "images" else None)
    if meets_limit(worse) and unseen is not None and not meets_limit(unseen.value(images)):
        return _undecided_for_unseen(result, unseen, meets_limit)
    if meets_limit(worse):
        end = format_value(worse, requirement.unit)
        return replace(result, outcome="pass", reason=f"the worse end, {end}, is good enough")
    more = additional_images(interval, limit, images)
    if more is None or more > MAX_IMAGE_FACTOR * images:
        return replace(result, reason="the value is at the limit itself: no number of images would decide it")
    span = f"{format_value(interval.low, requirement.unit)} to {format_value(interval.high, requirement.unit)}"
    reason = f"the limit is within {span}: about {more:,} more images like these {images:,} would decide"
    return replace(result, reason=reason, additional_images=more)


def _first(holds: Callable[[int], bool], largest: int) -> int | None:
    """Return the smallest number from 1 to `largest` that holds, if all larger ones do, too."""
    low, high = 0, largest
    if not holds(largest):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _undecided_for_unseen(
    result: RequirementResult, unseen: UnseenImages, meets_limit: Callable[[float], bool]
) -> RequirementResult:
    """Say what the images that the sample may lack could do, and what would rule that out."""
    requirement, images = result.requirement, result.images
    more = _first(lambda count: meets_limit(unseen.value(images + count)), MAX_IMAGE_FACTOR * images)
    ways = [] if more is None else [f"observe about {more:,} more"]
    too_many = _first(lambda boxes: not meets_limit(unseen.value(images, boxes)), unseen.boxes) or 1
    if too_many > unseen.most_boxes:
        ways.append(f"set max_boxes_per_image = {too_many - 1} in the policy if no image has more")
    kind = "false positives" if requirement.metric == "fppi" else "lost objects"
    value = format_value(unseen.value(images), requirement.unit)
    reason = (
        f"{100 * unseen.share(images):.2g} % of all images may be unlike these {images:,}; with {unseen.boxes} {kind} "
        f"each it would be {value}: {' or '.join(ways) or 'the limit is out of reach'}"
    )
    return replace(result, reason=reason, additional_images=more)


def _detector_check_result(requirement: Requirement, release: Release) -> RequirementResult:
    report, defense = release.detector_check, release.defense
    outcome: Outcome = "undecided"
    masks = str(defense.masks)
    if report is None:
        reason = "no report was given: add --detector-check FILE, what objectseeker check --defense FILE --json prints"
    elif report.detector != defense.fingerprint:
        reason = f"the report is about the detector {report.detector}, not {defense.fingerprint}: check this one"
    elif (report.masks, report.fill) != (masks, defense.fill):
        checked = f"{report.masks} and fill {report.fill}"
        reason = f"checked under {checked}, the defense has {masks} and {defense.fill}: check again with --defense FILE"
    elif report.passed:
        outcome, reason = "pass", "every check passed for exactly this detector, under these masks"
    else:
        outcome, reason = "fail", f"these checks failed: {', '.join(report.failed)}"
    return RequirementResult(requirement=requirement, outcome=outcome, reason=reason)


def _attack_result(requirement: Requirement, policy: Policy, release: Release) -> RequirementResult:
    """Measure recall of the defended detector on attacked objects, an upper bound for the worst patch.

    An object that several attacks target counts as detected if it survives all of them. Objects that are not in the run
    are skipped.
    """
    attacks = [
        attack
        for attack in release.attacks
        if attack.patch == requirement.patch and attack.certification_threshold == requirement.certification_threshold
    ]
    objects = _object_numbers(release.measurements)
    rows = [row for attack in attacks for row in attack.rows if _row_key(row) in objects]
    if not rows:
        reason = "no attack with this patch was given: add --attack-results FILE, the attack.json of this defense"
        if attacks:
            reason = "none of the attacked objects is one of this run: attack the run that is judged"
        return RequirementResult(requirement=requirement, reason=reason)
    survivors: dict[FailureExample, bool] = {}
    for row in rows:
        example = FailureExample(row["image"], row["object"], row["class"], tuple(row["box"]))
        survived = bool(row["found_defended"] and row["defended_survived"] is not False)
        survivors[example] = survivors.get(example, True) and survived
    images = {name: index for index, name in enumerate(sorted({example.image for example in survivors}))}
    detected, total = np.zeros((2, len(images)))
    for example, survived in survivors.items():
        detected[images[example.image]] += survived
        total[images[example.image]] += 1
    lost = tuple(example for example, survived in survivors.items() if not survived)
    interval = bootstrap_interval(
        lambda weights: percent(weights @ detected, weights @ total),
        len(images),
        confidence=policy.confidence,
        samples=policy.bootstrap_samples,
        seed=policy.seed,
        bounds=(0.0, 100.0),
    )
    value = interval.value
    unseen = UnseenImages(
        lambda share, boxes: with_unseen_objects(value, float(total.mean()), share, boxes),
        int(total.max()),
        requirement,
        policy,
    )
    result = _decide(requirement, interval, len(images), len(survivors), unseen)
    return replace(result, failure_examples=lost[:MAX_EXAMPLES])


def _worst_images(tally: Tally, count: Ints) -> list[FailureExample]:
    worst = np.argsort(-count, kind="stable")[:MAX_EXAMPLES]
    return [FailureExample(tally.ids[n]) for n in worst.tolist() if count[n] > 0]


def _failure_examples(requirement: Requirement, measurements: Tally) -> list[FailureExample]:
    """Return the largest objects that fail the requirement, or the images with most boxes that do."""
    if requirement.metric in BOX_METRICS:
        boxes = measurements.boxes
        assert boxes is not None
        certified = boxes.certified_at(requirement.threat, requirement.location)
        if requirement.metric == "certified_true_positives":
            fails = (boxes.outcome == TRUE_POSITIVE) & ~certified
        else:
            fails = (boxes.outcome == FALSE_POSITIVE) & certified
        return _worst_images(measurements, np.bincount(boxes.image[fails], minlength=len(measurements.ids)))
    if requirement.metric == "false_alert_rate":
        return _worst_images(measurements, measurements.images.flagged * 1)
    if requirement.metric == "fppi":
        return _worst_images(measurements, measurements.images.false_positives + measurements.images.flagged)
    if requirement.metric == "joint_certified_recall":
        remaining = measurements.images.guaranteed[requirement.threat]
        return _worst_images(measurements, measurements.objects_per_image().astype(np.int64) - remaining)
    objects = measurements.objects
    holds: Bools = objects.found
    if requirement.metric == "certified_recall":
        holds = objects.certified_at(requirement.threat, requirement.location)
    missed = np.flatnonzero(~holds)
    worst = missed[np.argsort(-objects.size[missed], kind="stable")[:MAX_EXAMPLES]]
    return [
        FailureExample(
            measurements.ids[objects.image[n]],
            int(objects.number[n]),
            measurements.names[objects.label[n]],
            tuple(objects.box[n].tolist()),
        )
        for n in worst.tolist()
    ]


def _common_images(measurements: Tally, baseline: Tally) -> tuple[Ints, Ints]:
    """Return the images that both have, by index in each; reject a baseline with other objects on them."""
    index = {key: n for n, key in enumerate(baseline.ids)}
    both = [(n, index[key]) for n, key in enumerate(measurements.ids) if key in index]
    if not both:
        raise ObjectSeekerError(
            f"the baseline has none of the run's images, such as {quote_plain(measurements.ids[0])}: observe the same "
            "dataset"
        )
    in_run, in_baseline = (np.array(column, np.int64) for column in zip(*both, strict=True))
    if not measurements.of_images(in_run).has_objects_of(baseline.of_images(in_baseline)):
        raise ObjectSeekerError(
            "the baseline has other objects on the same images: compare runs of one dataset by detectors that know "
            "the same of its classes"
        )
    return in_run, in_baseline


def _object_numbers(measurements: Tally) -> dict[tuple[Any, ...], int]:
    """Return the index of every object of a run by image, class and box, as attack.json names them."""
    objects = measurements.objects
    columns = (objects.image.tolist(), objects.label.tolist(), objects.box.tolist())
    return {
        (measurements.ids[image], measurements.names[label], *box): n
        for n, (image, label, box) in enumerate(zip(*columns, strict=True))
    }


def _row_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["image"], row["class"], *map(float, row["box"]))


def _refuted(release: Release) -> list[str]:
    """Name the certificates that an attack broke, by its own account or by this run's certificates."""
    measurements, refuted = release.measurements, []
    objects = _object_numbers(measurements)
    for attack in release.attacks:
        certified = measurements.objects.certified_at(attack.threat, attack.patch.location)
        vacuous = measurements.objects.vacuous_at(attack.threat, attack.patch.location)
        for row in attack.rows:
            n = objects.get(_row_key(row))
            attacked = f"{attack.name}: {quote_plain(str(row['class']))} {row['object']} of {quote_plain(row['image'])}"
            if n is not None and row.get("vacuous", False) and not vacuous[n]:
                raise ObjectSeekerError(f"{attacked} is said to be vacuous, but the patch has positions. Attack again.")
            proven = n is not None and bool(certified[n])
            if row["guarantee_broken"] or (proven and row["defended_survived"] is False):
                refuted.append(attacked)
    return refuted
