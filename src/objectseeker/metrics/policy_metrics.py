"""What every image and every object of a run adds to the figures that a policy can ask for.

A run is gone through once. What stays is a few numbers per image and per object, from which each figure (`FIGURES`)
makes its contributions: a numerator and a denominator for every image, so that any sample of images has its figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics.curves import NO_BOXES
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.matching import candidate_pairs, false_positives, greedy_match
from objectseeker.metrics.parallel import OnImage, working
from objectseeker.metrics.policy import Requirement
from objectseeker.metrics.resampling import Tally
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings, ThreatModel


class Metric(Protocol):
    """A figure of any sample of the images that count for it: `weights` (samples, images) to one value per sample."""

    @property
    def images(self) -> int: ...
    @property
    def bounds(self) -> tuple[float, float]: ...
    def values(self, weights: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True, eq=False)
class RatioMetric:
    """Numerators by denominators, both (images, groups): the mean over the groups that a sample has, times `scale`.

    `single` says that every image is one trial that succeeds or fails, and no more.
    """

    numerator: Floats
    denominator: Floats
    scale: float = 100.0
    single: bool = False
    most: float | None = None  # the largest value it can have; `scale` unless given

    @property
    def images(self) -> int:
        return len(self.numerator)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, self.scale if self.most is None else self.most

    def values(self, weights: Floats) -> Floats:
        above, below = weights @ self.numerator, weights @ self.denominator
        share = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
        groups = (below > 0).sum(axis=1)
        total = np.where(below > 0, share, 0.0).sum(axis=1)
        return np.asarray(self.scale * np.divide(total, groups, out=np.full(len(total), np.nan), where=groups > 0))


@dataclass(frozen=True, slots=True, eq=False)
class AveragePrecisionMetric:
    """AP50 by the paper's protocol, in percent: the mean over the classes that a sample has."""

    tally: Tally

    @property
    def images(self) -> int:
        return len(self.tally.objects)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 100.0

    def values(self, weights: Floats) -> Floats:
        empty = np.asarray((weights @ self.tally.objects).max(axis=1) <= 0)
        result = np.full(len(weights), np.nan)
        step = max(2**23 // self.tally.right[0].size, 1)  # samples whose sums are in memory at a time
        for start in range(0, len(weights), step):
            some = np.arange(start, min(start + step, len(weights)))
            some = some[~empty[some]]
            if len(some):
                result[some] = self.tally.ap50(weights[some])
        return result


@dataclass(frozen=True, slots=True, eq=False)
class MetricDifference:
    """One figure minus another one of the same images."""

    first: Metric
    second: Metric

    @property
    def images(self) -> int:
        return self.first.images

    @property
    def bounds(self) -> tuple[float, float]:
        span = max(self.first.bounds[1] - self.first.bounds[0], self.second.bounds[1] - self.second.bounds[0])
        return -span, span

    def values(self, weights: Floats) -> Floats:
        return self.first.values(weights) - self.second.values(weights)


@dataclass(frozen=True, slots=True, eq=False)
class RunMeasurements:
    """A run under one rule: images, counted objects, and what became of each. `curves` only where AP is asked for."""

    names: tuple[str, ...]
    ids: tuple[str, ...]  # of images
    flagged: Bools  # per image: masks add a box
    false_positives: Ints  # per image: boxes of the defended detector that find nothing
    image: Ints  # of each object
    number: Ints  # of each object within its image
    label: Ints
    box: Floats
    size: Floats  # visible share of the image
    found: Bools
    certified: Mapping[ThreatModel, Bools]  # (WHERES, objects)
    vacuous: Mapping[ThreatModel, Bools]
    remaining: Mapping[ThreatModel, Ints]  # per image: objects that surely remain under one patch anywhere
    undefended: Tally | None
    defended: Tally | None

    def of_images(self, chosen: Ints) -> RunMeasurements:
        """The same of some of the images, in this order, each at most once."""
        place = np.full(len(self.ids), -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.image] >= 0
        some = replace(
            self.of_objects(kept),
            ids=tuple(self.ids[n] for n in chosen.tolist()),
            flagged=self.flagged[chosen],
            false_positives=self.false_positives[chosen],
            remaining={threat: count[chosen] for threat, count in self.remaining.items()},
            undefended=_of_images(self.undefended, chosen),
            defended=_of_images(self.defended, chosen),
        )
        return replace(some, image=place[some.image])

    def of_objects(self, kept: Bools) -> RunMeasurements:
        """The same of some of the objects; curves and boxes stay those of all."""
        arrays = ("image", "number", "label", "box", "size", "found")
        verdicts: dict[str, Any] = {
            name: {threat: holds[:, kept] for threat, holds in getattr(self, name).items()}
            for name in ("certified", "vacuous")
        }
        return replace(self, **{name: getattr(self, name)[kept] for name in arrays}, **verdicts)

    def of_classes(self, labels: Sequence[int]) -> RunMeasurements:
        some = self.of_objects(np.isin(self.label, labels))
        undefended, defended = (_of_classes(tally, labels) for tally in (self.undefended, self.defended))
        return replace(some, undefended=undefended, defended=defended)

    def of_sizes(self, above: float, up_to: float) -> RunMeasurements:
        return self.of_objects((self.size > above) & (self.size <= up_to))


def threat_of(requirement: Requirement) -> ThreatModel:
    return ThreatModel(
        area=requirement.patch_area, aspect=requirement.patch_aspect, threshold=requirement.certification_threshold
    )


def measure_run(
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    settings: EvaluationSettings,
    threats: Sequence[ThreatModel],
    *,
    curves: bool,
    jointly: Sequence[ThreatModel] = (),
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> RunMeasurements:
    """All that a policy can ask for, at the settings' own rule; the images are gone through once.

    Several `processes` share them, with the same result; `on_image` is called for every image gone through.
    """
    threats, jointly = list(dict.fromkeys(threats)), list(dict.fromkeys(jointly))
    with working(images, vocabulary, processes=processes, on_image=on_image) as crew:
        of_parts = crew.each(_parts, (settings, threats, jointly, curves))
        parts = [part for some in of_parts for part in some]
    starts = np.cumsum([0, *(len(part.ids) for part in parts)])
    plain = ("flagged", "false_positives", "number", "label", "box", "size", "found")
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in plain}
    return replace(
        parts[0],
        ids=tuple(key for part in parts for key in part.ids),
        image=np.concatenate([part.image + start for part, start in zip(parts, starts, strict=False)]),
        certified={threat: np.concatenate([part.certified[threat] for part in parts], axis=1) for threat in threats},
        vacuous={threat: np.concatenate([part.vacuous[threat] for part in parts], axis=1) for threat in threats},
        remaining={threat: np.concatenate([part.remaining[threat] for part in parts]) for threat in jointly},
        undefended=_joined([part.undefended for part in parts]),
        defended=_joined([part.defended for part in parts]),
        **joined,
    )


MeasurementRequest = tuple[EvaluationSettings, Sequence[ThreatModel], Sequence[ThreatModel], bool]


def _parts(scenes: Iterable[ImageSet], asked: MeasurementRequest) -> list[RunMeasurements]:
    return [_part(scene, *asked) for scene in scenes]


def _part(
    scene: ImageSet,
    settings: EvaluationSettings,
    threats: Sequence[ThreatModel],
    jointly: Sequence[ThreatModel],
    curves: bool,
) -> RunMeasurements:
    rule = settings.rule
    replayed = DefendedImageSet.of(scene, settings)
    (added,) = replayed.added([rule])
    base = scene.base.select(scene.base.detections.score >= rule.base_threshold)
    boxes = base.followed_by(added.in_dataset(scene.vocabulary))
    taken = greedy_match(boxes.detections.score, candidate_pairs(boxes, scene), scene)
    found = np.zeros(len(scene.truth), np.bool_)
    found[taken[taken >= 0]] = True
    counted, images = scene.counted, len(scene.images)
    image = scene.truth.image[counted]
    box = scene.truth.detections.xyxy[counted]
    width, height = scene.width[image], scene.height[image]
    first = np.searchsorted(scene.truth.image, np.arange(images))
    verdicts = {threat: replayed.certified(rule, threat) for threat in threats}
    flagged = np.zeros(images, np.bool_)
    flagged[added.image] = True
    tallies: list[Tally | None] = [None, None]
    if curves:
        nothing: list[BoxTable] = [NO_BOXES] * len(BASE_THRESHOLDS)
        on_curve = [settings.on_curve(score) for score in BASE_THRESHOLDS.tolist()]
        tallies = [Tally.of(scene, nothing), Tally.of(scene, list(replayed.additions(on_curve)))]
    return RunMeasurements(
        names=scene.names,
        ids=tuple(one.id for one in scene.images),
        flagged=flagged,
        false_positives=np.bincount(boxes.image[false_positives(taken)], minlength=images),
        image=image,
        number=counted - first[image],
        label=scene.truth.detections.label[counted],
        box=box,
        size=visible_area(box, width, height) / (width * height),
        found=found[counted],
        certified={threat: certified for threat, (certified, _) in verdicts.items()},
        vacuous={threat: vacuous for threat, (_, vacuous) in verdicts.items()},
        remaining={threat: np.array([one.count for one in replayed.remaining(rule, threat)]) for threat in jointly},
        undefended=tallies[0],
        defended=tallies[1],
    )


def _joined(tallies: Sequence[Tally | None]) -> Tally | None:
    known = [tally for tally in tallies if tally is not None]
    if not known:
        return None
    names = ("objects", "right", "wrong")
    return replace(known[0], **{name: np.concatenate([getattr(one, name) for one in known]) for name in names})


def _of_images(tally: Tally | None, chosen: Ints) -> Tally | None:
    if tally is None:
        return None
    return replace(tally, objects=tally.objects[chosen], right=tally.right[chosen], wrong=tally.wrong[chosen])


def _of_classes(tally: Tally | None, labels: Sequence[int]) -> Tally | None:
    if tally is None:
        return None
    some = list(labels)
    return replace(tally, objects=tally.objects[:, some], right=tally.right[..., some], wrong=tally.wrong[..., some])


def _certified_recall(measured: RunMeasurements, requirement: Requirement) -> Metric:
    """Of all objects, those that no patch can hide: micro, as `evaluate` has it."""
    holds = measured.certified[threat_of(requirement)][PATCH_LOCATIONS.index(requirement.location)]
    return RatioMetric(_per_image(measured, holds)[:, None], _per_image(measured)[:, None])


def _joint_certified_recall(measured: RunMeasurements, requirement: Requirement) -> Metric:
    """Of all objects, those that surely remain under any single patch: the joint certificate of each image."""
    remaining = measured.remaining[threat_of(requirement)].astype(np.float64)
    return RatioMetric(remaining[:, None], _per_image(measured)[:, None])


def clean_recall_of(measured: RunMeasurements) -> RatioMetric:
    """The mean over classes, as `evaluate` has it."""
    labels = np.unique(measured.label).tolist()
    by_class = [measured.of_objects(measured.label == label) for label in labels]
    found = [_per_image(one, one.found) for one in by_class]
    return RatioMetric(_columns(found, measured), _columns([_per_image(one) for one in by_class], measured))


def _clean_ap50(measured: RunMeasurements, requirement: Requirement) -> Metric:
    assert measured.defended is not None
    return AveragePrecisionMetric(measured.defended)


def _clean_ap50_loss(measured: RunMeasurements, requirement: Requirement) -> Metric:
    assert measured.undefended is not None
    return MetricDifference(AveragePrecisionMetric(measured.undefended), _clean_ap50(measured, requirement))


def _false_alert_rate(measured: RunMeasurements, requirement: Requirement) -> Metric:
    return RatioMetric(measured.flagged[:, None].astype(np.float64), np.ones((len(measured.ids), 1)), single=True)


def fppi_of(measured: RunMeasurements) -> RatioMetric:
    """An image, as `evaluate` has them."""
    wrong = measured.false_positives.astype(np.float64)
    return RatioMetric(wrong[:, None], np.ones((len(wrong), 1)), scale=1.0, most=max(float(wrong.max(initial=0)), 1.0))


METRICS: dict[str, Callable[[RunMeasurements, Requirement], Metric]] = {
    "certified_recall": _certified_recall,
    "joint_certified_recall": _joint_certified_recall,
    "clean_recall": lambda measured, _: clean_recall_of(measured),
    "clean_ap50": _clean_ap50,
    "clean_ap50_loss": _clean_ap50_loss,
    "false_alert_rate": _false_alert_rate,
    "fppi": lambda measured, _: fppi_of(measured),
}
OBJECT_METRICS = (
    "certified_recall",
    "joint_certified_recall",
    "clean_recall",
)  # images without objects play no part in these


def _per_image(measured: RunMeasurements, holds: Bools | None = None) -> Floats:
    """Objects of each image, or those of which something holds."""
    image = measured.image if holds is None else measured.image[holds]
    return np.bincount(image, minlength=len(measured.ids)).astype(np.float64)


def _columns(of_groups: Sequence[Floats], measured: RunMeasurements) -> Floats:
    return np.stack(of_groups, axis=1) if of_groups else np.zeros((len(measured.ids), 0))
