"""The figures that differently trained detectors are compared by, each with its bootstrap interval over images."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rule import Rule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number
from objectseeker.metrics.average_precision import coco_ap50
from objectseeker.metrics.curves import NO_BOXES
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.resampling import NO_ROW, Tally, ratios_at_rows, require_samples, resamples, spurious
from objectseeker.metrics.settings import (
    BASE_THRESHOLDS,
    EvaluationSettings,
    ThreatModel,
    at_most,
    ioa_of,
    require_fppi,
    require_seed,
)
from objectseeker.metrics.sweeps import split
from objectseeker.metrics.tuning import FAMILIES, Choices, Family, RecallOf, Search, Tuned, tune

BETAS = tuple(s / 10 for s in range(10))  # of the curve
INTERVAL = (2.5, 97.5)  # percentiles
DIGITS = 4  # of samples: they go into files


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured: certified recall by these rules within these losses of AP50, at these operating points: clean
    recalls, and numbers of wrong boxes an image."""

    losses: tuple[float, ...] = (1.0,)
    recalls: tuple[float, ...] = (0.7, 0.8)
    fppi: tuple[float, ...] = ()
    rules: tuple[Family, ...] = FAMILIES
    bootstrap: int = 1000
    seed: int = 0
    patch_area: float = 0.01
    recall_of: RecallOf = "defended"  # which detector's clean recall settings are searched at
    both_halves: bool = False  # search on each half in turn and measure on the other, instead of one way only
    choices: Choices = field(default_factory=Choices)

    def __post_init__(self) -> None:
        for name, check in (("losses", require_number), ("recalls", require_fraction)):
            object.__setattr__(self, name, tuple(sorted({check(value, name) for value in getattr(self, name)})))
        object.__setattr__(self, "fppi", tuple(sorted(set(map(require_fppi, self.fppi)))))
        for name, values in (("losses", self.losses), ("recalls", (*self.recalls, *self.fppi))):
            if not values:
                raise ObjectSeekerError(f"{name} must hold at least one value, got none")
        if not self.rules or not set(self.rules) <= set(FAMILIES):
            raise ObjectSeekerError(f"rules must be some of {', '.join(FAMILIES)}, got {list(self.rules)!r}")
        require_seed(self.seed)
        require_samples(self.bootstrap)

    @property
    def points(self) -> tuple[Point, ...]:
        """All operating points."""
        recalls = [Point(clean_recall=recall) for recall in self.recalls]
        return (*recalls, *(Point(fppi=most) for most in self.fppi))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operating point to search and to measure at, one of both."""

    clean_recall: float | None = None
    fppi: float | None = None

    def in_words(self) -> str:
        return f"clean recall {self.clean_recall:g}" if self.fppi is None else at_most(self.fppi)


@dataclass(frozen=True, slots=True)
class BootstrapEstimate:
    """A figure of the images as they are, the interval of its samples, and the samples; NaN is None.

    `unreached` counts the samples that have no such figure.
    """

    value: float | None
    low: float | None
    high: float | None
    unreached: int
    samples: tuple[float | None, ...]

    @classmethod
    def of(cls, samples: Floats) -> BootstrapEstimate:
        """The first sample is the images as they are; the interval is that of the others."""
        drawn = samples[1:][~np.isnan(samples[1:])]
        low, high = np.percentile(drawn, INTERVAL) if len(drawn) else (np.nan, np.nan)
        rounded = tuple(None if math.isnan(one) else round(one, DIGITS) for one in samples[1:].tolist())
        return cls(_plain(samples[0]), _plain(low), _plain(high), int(np.isnan(samples[1:]).sum()), rounded)

    def all(self) -> Floats:
        """What it was made of."""
        return np.array([self.value, *self.samples], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class SpuriousAt:
    """Spurious boxes per image where the undefended detector has a clean recall, or at most so many wrong boxes."""

    clean_recall: float | None
    mask_threshold: float | None
    spurious: BootstrapEstimate
    fppi: float | None = None


@dataclass(frozen=True, slots=True)
class BetaPoint:
    """What a beta costs, by the paper's rule."""

    beta: float
    ap50: BootstrapEstimate
    ap50_loss: BootstrapEstimate
    at_recall: tuple[SpuriousAt, ...]


@dataclass(frozen=True, slots=True)
class UndefendedFigures:
    ap50: BootstrapEstimate
    ap50_coco: float


@dataclass(frozen=True, slots=True)
class CleanFigures:
    """What needs no settings, from all images."""

    images: int
    objects: int
    image_digest: str
    undefended: UndefendedFigures
    curve: tuple[BetaPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedFigures:
    """What settings give at an operating point; the mean is over far, close and over."""

    base_threshold: float | None
    mask_threshold: float | None
    evidence_threshold: float | None
    clean_recall: BootstrapEstimate
    certified_far: BootstrapEstimate
    certified_close: BootstrapEstimate
    certified_over: BootstrapEstimate
    certified_anywhere: BootstrapEstimate
    certified_mean: BootstrapEstimate
    spurious: BootstrapEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(CertifiedFigures):
    """What fixed settings give on images that they were not found on, where the defended detector reaches the recall.

    Masks find objects, too, so that is at a higher base_threshold than where the undefended one does, and every
    mask_threshold
    rises with base_threshold: `at_undefended_recall` has the figures at the undefended detector's.
    """

    images: int
    objects: int
    undefended_ap50: BootstrapEstimate
    ap50: BootstrapEstimate
    ap50_loss: BootstrapEstimate
    at_undefended_recall: CertifiedFigures
    undefended_recall: BootstrapEstimate | None = None  # the undefended detector's own clean recall there


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFigures:
    """The settings found on one half of the images and their figures on the other, or why there are none.

    With both halves searched in turn, `halves` has both and `held_out` their mean.
    """

    rule: Family
    clean_recall: float | None
    most_loss: float
    fppi: float | None = None
    settings: dict[str, Any] | None = None
    searched: dict[str, Any] | None = None
    image_digest: str | None = None
    held_out: HeldOut | None = None
    why: str | None = None
    halves: tuple[TunedFigures, ...] = ()

    @property
    def point(self) -> Point:
        return Point(clean_recall=self.clean_recall, fppi=self.fppi)


def clean_figures(
    images: Sequence[ObservedImage], vocabulary: LabelMap, floor: float, options: Options
) -> CleanFigures:
    """What needs no settings, from all images."""
    scene = ImageSet.of(images, vocabulary)
    weights = resamples(len(images), options.bootstrap, options.seed)
    undefended = Tally.of(scene, [NO_BOXES] * len(BASE_THRESHOLDS))
    undefended_ap50 = undefended.ap50(weights)
    rows_at = {point: undefended.rows_asked_for(_at(point), weights) for point in options.points}
    each = [EvaluationSettings.along(ThresholdSchedule(alpha=max(floor, beta), beta=beta)) for beta in BETAS]
    replayed = DefendedImageSet.of(scene, each[0])
    curve = []
    for settings in each:
        additions = _additions(replayed, settings)
        ap50 = Tally.of(scene, additions).ap50(weights)
        at_recall = tuple(
            SpuriousAt(
                point.clean_recall,
                None if rows[0] == NO_ROW else _rule_at(settings, rows[0]).mask_threshold,
                BootstrapEstimate.of(_spurious_per_image(scene, additions, rows, weights)),
                point.fppi,
            )
            for point, rows in rows_at.items()
        )
        lost = BootstrapEstimate.of(undefended_ap50 - ap50)
        curve.append(BetaPoint(settings.follow.beta, BootstrapEstimate.of(ap50), lost, at_recall))
    return CleanFigures(
        images=len(images),
        objects=len(scene.counted),
        image_digest=_digest(images),
        undefended=UndefendedFigures(BootstrapEstimate.of(undefended_ap50), float(scene.macro(coco_ap50(scene)))),
        curve=tuple(curve),
    )


def tuned_figures(
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    floor: float,
    options: Options,
    *,
    rule: Family,
    point: Point,
    half: int,
) -> list[TunedFigures]:
    """One for every loss: the settings found on this half of the images, and their figures on the other."""
    other = split(len(images), 2, options.seed)[1 - half]
    held_out = ImageSet.of([images[i] for i in other], vocabulary)
    search = Search(
        mask_floor=floor,
        threat=ThreatModel(area=options.patch_area),
        clean_recall=point.clean_recall,
        fppi=point.fppi,
        families=(rule,),
        most_loss=options.losses[-1],
        losses=options.losses,
        choices=options.choices,
        recall_of=options.recall_of,
        seed=options.seed,
        half=half,
    )
    best: dict[float, Tuned] = {}
    why: str | None = None
    try:
        best = {tuned.most_loss: tuned for tuned in tune(images, vocabulary, search).frontier[rule]}
    except ObjectSeekerError as error:  # no setting is good enough: a result, too
        why = str(error)

    def figures(loss: float) -> TunedFigures:
        asked: dict[str, Any] = {"rule": rule, "clean_recall": point.clean_recall, "most_loss": loss}
        asked |= {"fppi": point.fppi}
        asked["image_digest"] = _digest(held_out.images)
        if loss not in best:
            return TunedFigures(
                **asked, why=why or f"no setting loses at most {loss:g} points of AP50 on the half that was searched"
            )
        one = best[loss]
        # Each half has samples of its own, so that means over both halves spread as they should.
        measured = held_out_figures(held_out, one.settings, floor, options.bootstrap, options.seed + half)
        return TunedFigures(
            **asked, settings=one.settings.to_dict(), searched=one.searched.figures(), held_out=measured
        )

    return [figures(loss) for loss in options.losses]


def held_out_figures(scene: ImageSet, settings: EvaluationSettings, floor: float, bootstrap: int, seed: int) -> HeldOut:
    """What fixed settings give on a scene, at their clean recall or number of wrong boxes."""
    weights = resamples(len(scene.images), bootstrap, seed)
    replayed = DefendedImageSet.of(scene, settings, floor=floor)
    additions = _additions(replayed, settings)
    tally = Tally.of(scene, additions)
    ap50 = tally.ap50(weights)
    undefended = Tally.of(scene, [NO_BOXES] * len(BASE_THRESHOLDS))
    undefended_ap50 = undefended.ap50(weights)
    of_undefended = undefended.rows_asked_for(settings, weights)

    def certified(rows: Ints) -> dict[str, Any]:
        rule = None if rows[0] == NO_ROW else _rule_at(settings, rows[0])
        counts = _certified_counts(replayed, settings)
        percent = 100 * ratios_at_rows(counts, tally.objects.sum(axis=1), rows, weights)
        by_where = dict(
            zip(PATCH_LOCATIONS, np.broadcast_to(percent, (len(PATCH_LOCATIONS), len(weights))), strict=True)
        )
        mean = (by_where["far"] + by_where["close"] + by_where["over"]) / 3
        return {
            "base_threshold": None if rule is None else rule.base_threshold,
            "mask_threshold": None if rule is None else rule.mask_threshold,
            "evidence_threshold": None if rule is None else rule.evidence_threshold,
            "clean_recall": BootstrapEstimate.of(_recall_at(tally, rows, weights)),
            **{f"certified_{where}": BootstrapEstimate.of(values) for where, values in by_where.items()},
            "certified_mean": BootstrapEstimate.of(mean),
            "spurious": BootstrapEstimate.of(_spurious_per_image(scene, additions, rows, weights)),
        }

    return HeldOut(
        images=len(scene.images),
        objects=len(scene.counted),
        undefended_ap50=BootstrapEstimate.of(undefended_ap50),
        ap50=BootstrapEstimate.of(ap50),
        ap50_loss=BootstrapEstimate.of(undefended_ap50 - ap50),
        **certified(tally.rows_asked_for(settings, weights)),
        at_undefended_recall=CertifiedFigures(**certified(of_undefended)),
        undefended_recall=BootstrapEstimate.of(_recall_at(undefended, of_undefended, weights)),
    )


def _recall_at(tally: Tally, rows: Ints, weights: Floats) -> Floats:
    """The clean recall of each sample at its own row."""
    return np.where(rows == NO_ROW, np.nan, tally.clean_recall(weights)[rows, np.arange(len(rows))])


def _at(point: Point) -> EvaluationSettings:
    """Any settings with this operating point."""
    return EvaluationSettings.along(ThresholdSchedule(), clean_recall=point.clean_recall, fppi=point.fppi)


def _rule_at(settings: EvaluationSettings, row: int) -> Rule:
    return ioa_of(settings.on_curve(float(BASE_THRESHOLDS[row])))


def _additions(replayed: DefendedImageSet, settings: EvaluationSettings) -> list[BoxTable]:
    return list(replayed.additions([settings.on_curve(score) for score in BASE_THRESHOLDS.tolist()]))


def _spurious_per_image(scene: ImageSet, additions: Sequence[BoxTable], rows: Ints, weights: Floats) -> Floats:
    """Of each sample, at its own row."""
    ones = np.ones(len(scene.images))
    (boxes,) = ratios_at_rows(lambda row: spurious(additions[row], scene)[None], ones, rows, weights)
    return np.asarray(boxes)


def _certified_counts(replayed: DefendedImageSet, settings: EvaluationSettings) -> Callable[[int], Floats]:
    """For the row of a base_threshold, how many counted objects of each image are certified: (WHERES, images)."""
    scene = replayed.scene
    image = scene.truth.image[scene.counted]

    def at(row: int) -> Floats:
        certified, _ = replayed.certified(_rule_at(settings, row), settings.threat)
        return np.stack([np.bincount(image, weights=of_where, minlength=len(scene.images)) for of_where in certified])

    return at


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _digest(images: Sequence[ObservedImage]) -> str:
    """Of which images these are."""
    return hashlib.sha256("\n".join(image.id for image in images).encode()).hexdigest()[:16]


def combined(one: Any, other: Any, how: Callable[[Floats, Floats], Floats]) -> Any:
    """Two figures or records of figures, alike in shape: estimates sample by sample, of all else what is equal."""
    if isinstance(one, BootstrapEstimate) and isinstance(other, BootstrapEstimate):
        return BootstrapEstimate.of(how(one.all(), other.all()))
    if is_dataclass(one) and type(one) is type(other):
        names = [each.name for each in fields(one)]
        return replace(one, **{name: combined(getattr(one, name), getattr(other, name), how) for name in names})  # type: ignore[type-var]
    if isinstance(one, tuple) and isinstance(other, tuple):
        return tuple(combined(a, b, how) for a, b in zip(one, other, strict=True))
    return one if one == other else None


def plain(part: Any, *, samples: bool = True) -> Any:
    """Records as plain values, ready for JSON; without the samples they are short enough to print."""
    if is_dataclass(part):
        shown = [each.name for each in fields(part) if samples or each.name != "samples"]
        return {name: plain(getattr(part, name), samples=samples) for name in shown}
    if isinstance(part, tuple):
        return [plain(one, samples=samples) for one in part]
    return part


def read(kind: Any, content: Any) -> Any:
    """A record of this type from the plain values that it was written as; TypeError for any others."""
    if isinstance(content, Mapping) and (record := _record_in(kind)) is not None:
        hints = get_type_hints(record)
        return record(**{name: read(hints[name], value) for name, value in content.items()})
    if isinstance(content, list) and get_origin(kind) is tuple:
        return tuple(read(get_args(kind)[0], one) for one in content)
    _require_plain(kind, content)
    return content


def _require_plain(kind: Any, content: Any) -> None:
    """Refuse a value that is none of the type's."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if any(get_origin(one) is Literal and content in get_args(one) for one in kinds):
        return
    plain_kinds = tuple(get_origin(one) or one for one in kinds)
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    if is_number and not math.isfinite(content):
        raise TypeError(f"{content!r} is no number")
    if not ((is_number and float in plain_kinds) or type(content) in plain_kinds):
        raise TypeError(f"{content!r} is no {kind}")


def estimates_in(part: Any) -> Iterator[BootstrapEstimate]:
    """All that there are in a record."""
    if isinstance(part, BootstrapEstimate):
        yield part
    elif is_dataclass(part):
        for each in fields(part):
            yield from estimates_in(getattr(part, each.name))
    elif isinstance(part, tuple):
        for one in part:
            yield from estimates_in(one)


def _record_in(kind: Any) -> Any:
    """The dataclass that a type is, or may be."""
    return next((one for one in (kind, *get_args(kind)) if is_dataclass(one)), None)
