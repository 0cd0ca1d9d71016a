"""A policy held against a run: for every requirement pass, fail or undecided, and why.

A requirement passes if the worse end of its interval is good enough, fails if even the better end is not, and is
undecided in between. A release passes if all of its requirements do, so the chance that one which is not good enough
passes is no larger than that of a single requirement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.threats import PATCH_LOCATIONS, Patch
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.confidence_intervals import (
    NOTHING,
    ConfidenceInterval,
    bootstrap_interval,
    exact_interval,
    more_images,
)
from objectseeker.metrics.image_tags import NO_TAGS, Tags
from objectseeker.metrics.policy import Policy, Requirement, Unit, in_unit
from objectseeker.metrics.policy_metrics import (
    METRICS,
    OBJECT_METRICS,
    Metric,
    MetricDifference,
    RatioMetric,
    RunMeasurements,
    threat_of,
)
from objectseeker.metrics.settings import ThreatModel, threshold_of
from objectseeker.metrics.slice_metrics import cuts, label_of
from objectseeker.text import plain

Outcome = Literal["pass", "fail", "undecided"]
Verdict = Literal["pass", "fail", "undecided", "refuted"]
WORST_FIRST: tuple[Outcome, ...] = ("fail", "undecided", "pass")

FORMAT = 1
MOST_SHOWN = 6  # objects behind a requirement
MANY_MORE = 1000  # times the images there are: then the limit is where the figure is


@dataclass(frozen=True, slots=True)
class Instance:
    """An object that speaks against a requirement, or with no number an image."""

    image: str
    number: int | None
    class_name: str | None
    box: tuple[float, ...] | None

    def to_dict(self) -> dict[str, Any]:
        box = None if self.box is None else list(self.box)
        return {"image": self.image, "object": self.number, "class": self.class_name, "box": box}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One requirement, or one slice of it: its figure, its interval, and what follows. `slices` has all that were asked
    for; the figure is then that of the worst of them, `slice`."""

    requirement: Requirement
    outcome: Outcome
    reason: str
    slice: str | None = None
    interval: ConfidenceInterval = NOTHING
    limit: float | None = None
    images: int = 0
    objects: int = 0
    vacuous: int = 0
    more_images: int | None = None
    instances: tuple[Instance, ...] = ()
    slices: tuple[Judgement, ...] = ()

    @property
    def margin(self) -> float:
        """How far the worse end is on the good side."""
        if self.limit is None or not self.interval.known:
            return 0.0
        better = self.requirement.higher_is_better
        return self.interval.low - self.limit if better else self.limit - self.interval.high

    def to_dict(self) -> dict[str, Any]:
        asked, known = self.requirement, self.interval.known
        row = {
            "name": asked.name,
            "figure": asked.figure,
            "asked": asked.in_full(),
            "outcome": self.outcome,
            "reason": self.reason,
            "slice": self.slice,
            "value": self.interval.value if known else None,
            "low": self.interval.low if known else None,
            "high": self.interval.high if known else None,
            "method": self.interval.method if known else None,
            "limit": self.limit,
            "unit": asked.unit,
            "images": self.images,
            "objects": self.objects,
            "vacuous": self.vacuous,
            "more_images": self.more_images,
            "instances": [one.to_dict() for one in self.instances],
        }
        return row | ({"slices": [one.to_dict() for one in self.slices]} if self.slices else {})


@dataclass(frozen=True, slots=True, eq=False)
class AttackFile:
    """What an attack on this defense left: rows as `attack.statistics.row_of` makes them."""

    name: str
    patch: Patch
    threshold: float
    rows: Sequence[Mapping[str, Any]]

    @property
    def threat(self) -> ThreatModel:
        patch = self.patch
        return ThreatModel(area=patch.area, aspect=patch.aspect, count=patch.count, threshold=self.threshold)


@dataclass(frozen=True, slots=True, eq=False)
class Transcript:
    """What `check-detector --json` printed: of which detector, under which masks, and whether it passed."""

    detector: str
    masks: str | None
    fill: int | None
    passed: bool
    failed: tuple[str, ...]

    @classmethod
    def from_dict(cls, content: Any, source: str) -> Transcript:
        try:
            failed = tuple(str(one["name"]) for one in content["findings"] if one["passed"] is False)
            passed, checked = content["passed"] is True and not failed, bool(content["findings"])
            return cls(str(content["detector"]), content.get("masks"), content.get("fill"), passed and checked, failed)
        except (KeyError, TypeError, AttributeError):
            raise ObjectSeekerError(
                f"{source} is no transcript of check-detector: write one with check-detector --defense FILE --json"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """All that a policy is held against."""

    defense: Defense
    measured: RunMeasurements
    baseline: RunMeasurements | None = None
    tags: Tags = NO_TAGS
    attacks: Sequence[AttackFile] = ()
    transcript: Transcript | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The verdict on a release. `about` names everything that it was made from."""

    policy: Policy
    judgments: tuple[Judgement, ...]
    refuted: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.refuted:
            return "refuted"
        outcomes = {judgment.outcome for judgment in self.judgments}
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    def count(self, outcome: Outcome) -> int:
        return sum(judgment.outcome == outcome for judgment in self.judgments)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "confidence": self.policy.confidence,
            "samples": self.policy.samples,
            "seed": self.policy.seed,
            **self.about,
            "refuted": list(self.refuted),
            "requirements": [judgment.to_dict() for judgment in self.judgments],
        }


def normal(policy: Policy, defense: Defense) -> Policy:
    """The policy with the T that the defense's rule has where none is given."""
    return replace(
        policy,
        requirements=tuple(
            replace(one, threshold=threshold_of(defense.rule, one.threshold)) if "patch" in one.kind.keys else one
            for one in policy.requirements
        ),
    )


def threats(policy: Policy, attacks: Sequence[AttackFile]) -> list[ThreatModel]:
    """What must be certified against: what is asked for, and what was attacked."""
    return [*_threats(policy, "certified_recall"), *(attack.threat for attack in attacks)]


def joint_threats(policy: Policy) -> list[ThreatModel]:
    """What must be certified against jointly."""
    return _threats(policy, "joint_certified_recall")


def _threats(policy: Policy, figure: str) -> list[ThreatModel]:
    return [threat_of(one) for one in policy.requirements if one.figure == figure]


def needs_curves(policy: Policy) -> bool:
    return any(one.figure.startswith("clean_ap50") for one in policy.requirements)


def judge(policy: Policy, release: Release, about: Mapping[str, Any]) -> Gate:
    """Hold a release against a policy (made `normal`)."""
    judgments = tuple(_judged(one, policy, release) for one in policy.requirements)
    return Gate(policy=policy, judgments=judgments, refuted=tuple(_refuted(release)), about=about)


def _judged(asked: Requirement, policy: Policy, release: Release) -> Judgement:
    if asked.figure == "check_detector":
        return _of_transcript(asked, release)
    if asked.figure == "recall_under_attack":
        return _of_attack(asked, policy, release)
    if asked.against_baseline and release.baseline is None:
        return Judgement(requirement=asked, outcome="undecided", reason="no baseline was given: add --baseline RUN")
    measured, baseline = release.measured, release.baseline
    chosen, name = np.arange(len(measured.ids)), asked.slice
    if asked.against_baseline and baseline is not None:
        chosen, of_baseline = _common(measured, baseline)
        measured, baseline = measured.of_images(chosen), baseline.of_images(of_baseline)
    pairs = [_selected(one, asked) for one in (measured, baseline) if one is not None]
    if name is None:
        return _of_slice(asked, policy, None, pairs)
    parts = [
        _of_slice(asked, policy, one, [cut(side) for side in pairs])
        for one, cut in cuts(name, measured, release.tags.of(chosen)).items()
    ]
    if not parts:
        reason = f"no image has a value of {asked.slice}: tag them"
        return Judgement(requirement=asked, outcome="undecided", reason=reason)
    worst = min(parts, key=lambda part: (WORST_FIRST.index(part.outcome), part.margin))
    return replace(worst, slices=tuple(parts) if len(parts) > 1 else ())


def _selected(measured: RunMeasurements, asked: Requirement) -> RunMeasurements:
    """The objects that the requirement speaks of."""
    if asked.classes:
        measured = measured.of_classes([label_of(name, measured.names) for name in asked.classes])
    return measured if asked.object_size is None else measured.of_sizes(*asked.object_size)


def _of_slice(asked: Requirement, policy: Policy, name: str | None, sides: Sequence[RunMeasurements]) -> Judgement:
    measured = sides[0]
    if asked.figure in OBJECT_METRICS:
        having = np.unique(measured.image)
        sides = [one.of_images(having) for one in sides]
        measured = sides[0]
    figures = [METRICS[asked.figure](one, asked) for one in sides]
    figure = MetricDifference(*figures) if asked.against_baseline else figures[0]
    vacuous = 0
    if asked.figure == "certified_recall":
        vacuous = int(measured.vacuous[threat_of(asked)][PATCH_LOCATIONS.index(asked.where)].sum())
    decided = _decided(asked, policy, figure, len(measured.label))
    return replace(decided, slice=name, vacuous=vacuous, instances=tuple(_against(asked, measured)))


def _decided(asked: Requirement, policy: Policy, figure: Metric, objects: int) -> Judgement:
    """The outcome that follows from the interval of a figure."""
    images = figure.images
    if isinstance(figure, RatioMetric) and figure.single:
        interval = exact_interval(int(figure.numerator.sum()), images, policy.confidence)
    else:
        interval = bootstrap_interval(
            figure.values,
            images,
            confidence=policy.confidence,
            samples=policy.samples,
            seed=policy.seed,
            bounds=figure.bounds,
        )
    limit = asked.value
    if asked.against_baseline and asked.higher_is_better:
        limit = -limit
    behind: dict[str, Any] = {"limit": limit, "interval": interval, "images": images, "objects": objects}
    made = Judgement(requirement=asked, outcome="undecided", reason="there is nothing to measure it on", **behind)
    if not interval.known:
        return made
    worse, better = (interval.low, interval.high) if asked.higher_is_better else (interval.high, interval.low)

    def good(end: float) -> bool:
        return end >= limit if asked.higher_is_better else end <= limit

    if not good(better):
        return replace(
            made, outcome="fail", reason=f"even the better end, {in_unit(better, asked.unit)}, is not good enough"
        )
    for what, there, fewest in (("objects", objects, asked.fewest_objects), ("images", images, asked.fewest_images)):
        if there < fewest:
            more = fewest - there if what == "images" else None
            reason = f"{there} {what} are behind it and {fewest} are required: observe more images"
            return replace(made, reason=reason, more_images=more)
    if good(worse):
        return replace(made, outcome="pass", reason=f"the worse end, {in_unit(worse, asked.unit)}, is good enough")
    more = more_images(interval, limit, images)
    if more is None or more > MANY_MORE * images:
        return replace(made, reason="the figure lies at the limit itself: no number of images would decide it")
    return replace(made, reason=_undecided(interval, asked.unit, more, images), more_images=more)


def _undecided(interval: ConfidenceInterval, unit: Unit, more: int, images: int) -> str:
    ends = f"{in_unit(interval.low, unit)} to {in_unit(interval.high, unit)}"
    return f"the limit lies within {ends}: about {more:,} more images like these {images:,} would decide"


def _of_transcript(asked: Requirement, release: Release) -> Judgement:
    transcript, defense = release.transcript, release.defense
    outcome: Outcome = "undecided"
    masks = str(defense.masks)
    if transcript is None:
        reason = "no transcript was given: add --check FILE, what check-detector --defense FILE --json printed"
    elif transcript.detector != defense.identity:
        reason = f"the transcript is about the detector {transcript.detector}, not {defense.identity}: check this one"
    elif transcript.masks is None or transcript.fill is None:
        reason = "the transcript does not say under which masks and fill: check again with --defense FILE"
    elif (transcript.masks, transcript.fill) != (masks, defense.fill):
        checked = f"{transcript.masks} and fill {transcript.fill}"
        reason = f"checked under {checked}, the defense has {masks} and {defense.fill}: check again with --defense FILE"
    elif transcript.passed:
        outcome, reason = "pass", "every check passed for this very detector, under these masks"
    else:
        outcome, reason = "fail", f"these checks failed: {', '.join(transcript.failed) or 'not said which'}"
    return Judgement(requirement=asked, outcome=outcome, reason=reason)


def _of_attack(asked: Requirement, policy: Policy, release: Release) -> Judgement:
    """Recall of the defended detector on the attacked objects, over their images: an upper bound on the worst patch.

    An object that several files attack is kept if it survives all of them. Objects that are not the run's say nothing
    about it and are left out.
    """
    attacks = [one for one in release.attacks if one.patch == asked.patch and one.threshold == asked.threshold]
    ours = _objects(release.measured)
    rows = [row for attack in attacks for row in attack.rows if _key(row) in ours]
    if not rows:
        reason = "no attack with this patch was given: add --attacks FILE, the attack.json of this defense"
        if attacks:
            reason = "none of the attacked objects is one of this run: attack the run that is judged"
        return Judgement(requirement=asked, outcome="undecided", reason=reason)
    kept: dict[Instance, bool] = {}
    for row in rows:
        one = Instance(row["image"], row["object"], row["class"], tuple(row["box"]))
        survived = bool(row["found_by_defense"] and row["defense_survived"] is not False)
        kept[one] = kept.get(one, True) and survived
    images = {name: place for place, name in enumerate(sorted({one.image for one in kept}))}
    found, there = np.zeros((2, len(images), 1))
    for one, survived in kept.items():
        found[images[one.image]] += survived
        there[images[one.image]] += 1
    lost = tuple(one for one, survived in kept.items() if not survived)
    return replace(_decided(asked, policy, RatioMetric(found, there), len(kept)), instances=lost[:MOST_SHOWN])


def _against(asked: Requirement, measured: RunMeasurements) -> list[Instance]:
    """What speaks against the requirement most: the largest objects that it misses, or the images with most boxes."""
    if asked.figure in ("false_alerts", "fppi"):
        count = measured.false_positives + measured.flagged if asked.figure == "fppi" else measured.flagged * 1
        worst = np.argsort(-count, kind="stable")[:MOST_SHOWN]
        return [Instance(measured.ids[n], None, None, None) for n in worst.tolist() if count[n] > 0]
    if asked.figure == "joint_certified_recall":
        lost = np.bincount(measured.image, minlength=len(measured.ids)) - measured.remaining[threat_of(asked)]
        worst = np.argsort(-lost, kind="stable")[:MOST_SHOWN]
        return [Instance(measured.ids[n], None, None, None) for n in worst.tolist() if lost[n] > 0]
    holds: Bools = measured.found
    if asked.figure == "certified_recall":
        holds = measured.certified[threat_of(asked)][PATCH_LOCATIONS.index(asked.where)]
    missed = np.flatnonzero(~holds)
    worst = missed[np.argsort(-measured.size[missed], kind="stable")[:MOST_SHOWN]]
    return [
        Instance(
            measured.ids[measured.image[n]],
            int(measured.number[n]),
            measured.names[measured.label[n]],
            tuple(measured.box[n].tolist()),
        )
        for n in worst.tolist()
    ]


def _common(measured: RunMeasurements, baseline: RunMeasurements) -> tuple[Ints, Ints]:
    """The images that both have, and the same images in the baseline; their objects must be the same."""
    place = {key: n for n, key in enumerate(baseline.ids)}
    both = [(n, place[key]) for n, key in enumerate(measured.ids) if key in place]
    if not both:
        raise ObjectSeekerError(
            f"the baseline has none of the run's images, such as {plain(measured.ids[0])}: observe the same dataset"
        )
    mine, theirs = (np.array(column, np.int64) for column in zip(*both, strict=True))
    ours, others = measured.of_images(mine), baseline.of_images(theirs)
    same = ours.names == others.names and all(
        np.array_equal(getattr(ours, name), getattr(others, name)) for name in ("image", "label", "box")
    )
    if not same:
        raise ObjectSeekerError(
            "the baseline has other objects on the same images: compare runs of one dataset by detectors that know "
            "the same of its classes"
        )
    return mine, theirs


def _objects(measured: RunMeasurements) -> dict[tuple[Any, ...], int]:
    """The objects of a run by image, class and box: as rows of attack files name them."""
    key_of = zip(measured.image.tolist(), measured.label.tolist(), measured.box.tolist(), strict=True)
    return {(measured.ids[image], measured.names[label], *box): n for n, (image, label, box) in enumerate(key_of)}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["image"], row["class"], *map(float, row["box"]))


def _refuted(release: Release) -> list[str]:
    """Certificates that an attack file breaks, by its own account or by this run's."""
    measured, found = release.measured, []
    objects = _objects(measured)
    for attack in release.attacks:
        certified = measured.certified[attack.threat][PATCH_LOCATIONS.index(attack.patch.where)]
        for row in attack.rows:
            n = objects.get(_key(row))
            proven = n is not None and bool(certified[n])
            if row["broken"] or (proven and row["defense_survived"] is False):
                found.append(f"{attack.name}: {plain(str(row['class']))} {row['object']} of {plain(str(row['image']))}")
    return found
