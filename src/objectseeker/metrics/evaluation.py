"""Evaluate a defense on a run: clean performance and certified recall, with confidence intervals.

The images are read once, or twice where the operating point is a clean recall or an FPPI: only the curves of the first
time tell which rule that is. Every number is a function of the tally (`objectseeker.metrics.tally`), but COCO's AP50.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import has_windows
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import ALL_LOCATIONS, PATCH_LOCATIONS, ThreatModel
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics import metric
from objectseeker.metrics.average_precision import Curve
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.defended_images import DefendedOutcome, operating_row_of
from objectseeker.metrics.image_set import OnImage, default_process_count, nothing_counts
from objectseeker.metrics.metric import Metric
from objectseeker.metrics.settings import BASE_THRESHOLDS, OPERATING_POINT_KEYS, EvaluationSettings
from objectseeker.metrics.slices import NO_TAGS, ImageTags, SliceMetrics, measure_slices
from objectseeker.metrics.tally import MAX_TALLIED_IMAGES, Tally, TallyRequest, tally_images
from objectseeker.metrics.track_certificates import TrackCertificates, TrackCriteria, certify_tracks
from objectseeker.runs.run import Run
from objectseeker.text import per_image, percent, to_html

FABRICATION_ROWS = {  # of what `fabrication` requests
    **{
        f"{kind} positives not fabricated, {location}": f"certified_{kind}_positives.{location}"
        for kind in ("true", "false")
        for location in ("far", "anywhere")
    },
    "AP50 of output boxes": "output_ap50",
    "AP50 by certified score": "ranked_ap50",
}
# Rows of tables: their labels, and the metrics in them.
ROWS = {
    "AP50": "ap50",
    "AP50 lost": "ap50_loss",
    "clean recall": "clean_recall",
    "FPPI": "fppi",
    **{f"certified {location}": f"certified_recall.{location}" for location in ALL_LOCATIONS},
    "guaranteed to remain": "joint_certified_recall",
    "boxes guaranteed per image": "guaranteed_boxes",
    "false alerts": "false_alert_rate",
    **FABRICATION_ROWS,
}
PER_IMAGE = ("fppi", "spurious_per_image", "guaranteed_boxes")


@dataclass(frozen=True, slots=True, eq=False)
class UndefendedOutcome:
    """The undefended detector: its curve, COCO's AP50 per class, and its operating point.

    The curve is that of the paper's protocol. `row` is where on its curve it reaches the requested clean recall or FPPI
    itself, or has the same base threshold.
    """

    curve: Curve
    coco: Floats
    point: Curve | None  # the curve at its operating point only
    row: int | None = None

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def ap50_coco(self) -> float:
        return float(self.coco[self.curve.objects > 0].mean())

    def at_point(self) -> dict[str, float | None]:
        """The base threshold, clean recall and FPPI at its operating point."""
        names = ("base_threshold", "clean_recall", "fppi")
        if self.point is None:
            return dict.fromkeys(names)
        curve = self.point
        return {
            name: float(values[0])
            for name, values in zip(names, (curve.base_thresholds, curve.clean_recall, curve.fppi), strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The metrics of a run under one rule. APs, recalls and rates are percentages; thresholds are not.

    Attributes:
        names: The classes of the dataset.
        images: How many images.
        ignored_objects: Objects that do not count (difficult, crowd).
        objects_per_class: Objects that count.
        settings: What was evaluated.
        undefended: The detector without a defense, by the same protocol.
        defended: The defended detector.
        intervals: Per metric its 95 % confidence interval over images; empty for runs of too many images.
        tally: The counts that all metrics are functions of.
        defense: What the settings' rule is deployed as, where given.
        tracks: Certificates over time, where requested, if there are tracks.
        tuned_images: How many of the images chose the defense: what is measured on them is too good.
    """

    names: tuple[str, ...]
    images: int
    ignored_objects: int
    objects_per_class: Ints
    settings: EvaluationSettings
    undefended: UndefendedOutcome
    defended: DefendedOutcome
    intervals: Mapping[str, ConfidenceInterval]
    tally: Tally
    defense: Defense | None = None
    tracks: TrackCertificates | None = None
    tuned_images: int = 0

    @property
    def deployed(self) -> Defense | None:
        """The defense with the rule of the operating point."""
        rule = self.defended.rule
        if self.defense is None or rule is None or rule == self.defense.rule:
            return self.defense
        return replace(self.defense, rule=rule, threshold_schedule=self.settings.threshold_schedule)

    @property
    def objects(self) -> int:
        return int(self.objects_per_class.sum())

    @property
    def classes(self) -> list[int]:
        """The classes that have objects."""
        return [int(c) for c in np.flatnonzero(self.objects_per_class)]

    @property
    def false_alert_rate(self) -> float | None:
        return None if self.defended.alerts is None else 100 * self.defended.alerts / self.images

    @property
    def spurious_per_image(self) -> float | None:
        return None if self.defended.rule is None else metric.spurious_per_image.value(self.tally)

    @property
    def caveats(self) -> list[str]:
        """Limits of the metrics that a reader must know."""
        caveat = self.defended.caveat()
        return [] if caveat is None else [caveat]

    def rows(self) -> list[dict[str, str]]:
        """Return a table: one row per metric, undefended next to defended, with intervals where there are any."""
        values = self.to_dict()
        names = ("undefended", "defended")
        rows = [
            {"": label} | {name: self._cell(name, key, values[name]) for name in names}
            for label, key in ROWS.items()
            if self.tally.boxes is not None or key not in FABRICATION_ROWS.values()
        ]
        return [row for row in rows if any(row[name] for name in names)]

    def by(self, *columns: str, tags: ImageTags = NO_TAGS) -> list[SliceMetrics]:
        """Return the metrics slice by slice: of "class", of "size", or of a column of the images' tags."""
        return measure_slices(self.tally, tags, columns, self.settings.threat)

    def _cell(self, detector: str, key: str, values: Mapping[str, Any]) -> str:
        outer, _, inner = key.partition(".")
        value = values.get(outer)
        value = value.get(inner) if isinstance(value, Mapping) else value
        return "" if value is None else format_with_interval(key, value, self.intervals.get(f"{detector}.{key}"))

    def _repr_html_(self) -> str:
        return to_html(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        undefended, defended, settings = self.undefended, self.defended, self.settings
        return {
            "images": self.images,
            "tuned_images": self.tuned_images,
            "objects": self.objects,
            "ignored_objects": self.ignored_objects,
            "classes": len(self.classes),
            "protocol": settings.protocol(),
            "defense": None if self.deployed is None else self.deployed.to_public_dict(),
            "settings": settings.to_dict(),
            "operating_point": {
                "selected_by": settings.selected_by,
                **{name: getattr(settings, name) for name in OPERATING_POINT_KEYS},
                "caveats": self.caveats,
            },
            "undefended": {"ap50": undefended.ap50, "ap50_coco": undefended.ap50_coco, **undefended.at_point()},
            "defended": {
                "ap50": defended.ap50,
                "ap50_loss": undefended.ap50 - defended.ap50,
                **defended.at_point(),
                "certified_recall": defended.certified_recall(),
                "joint_certified_recall": defended.joint_certified_recall,
                "guaranteed_boxes": defended.guaranteed_boxes,
                "vacuous_far": defended.vacuous_far,
                "spurious_per_image": self.spurious_per_image,
                "false_alerts": defended.alerts,
                "false_alert_rate": self.false_alert_rate,
                **self._of_output_boxes(self.tally),
            },
            "intervals": {name: [one.low, one.high] for name, one in self.intervals.items() if one.known},
            "per_class": [self._class_row(c) for c in self.classes],
        }

    def _of_output_boxes(self, tally: Tally) -> dict[str, Any]:
        """Return the metrics of the output boxes, if requested: fabrication, and AP50 by either rank."""
        threat = self.settings.threat

        def value(one: Metric) -> float | None:
            number = one.value(tally)
            return None if np.isnan(number) else number

        if tally.boxes is None:
            return {}
        return {
            "certified_true_positives": {
                location: value(metric.certified_true_positives(threat, location)) for location in threat.locations
            },
            "certified_false_positives": {
                location: value(metric.certified_false_positives(threat, location)) for location in threat.locations
            },
            "output_ap50": value(metric.output_ap50),
            "ranked_ap50": value(metric.ranked_ap50),
        }

    def _class_row(self, c: int) -> dict[str, Any]:
        undefended, defended = self.undefended, self.defended
        return {
            "class": self.names[c],
            "objects": int(self.objects_per_class[c]),
            "undefended_ap50": float(undefended.curve.ap50[c]),
            "undefended_ap50_coco": float(undefended.coco[c]),
            "ap50": float(defended.curve.ap50[c]),
            "clean_recall": None if defended.recall_per_class is None else float(defended.recall_per_class[c]),
            "certified_recall": defended.certified_recall(c),
            "vacuous_far": None if defended.vacuous is None else int(defended.vacuous[PATCH_LOCATIONS.index("far"), c]),
            **self._of_output_boxes(self.tally.of_classes([c])),
        }


def evaluate(
    run: Run,
    defense: Defense | None = None,
    *,
    threat: ThreatModel | None = None,
    clean_recall: float | None = None,
    base_threshold: float | None = None,
    fppi: float | None = None,
    fabrication: bool = False,
    tracks: TrackCriteria | None = None,
    intervals: bool = True,
    processes: int | None = None,
    on_image: OnImage = lambda: None,
) -> Evaluation:
    """Measure a defense on a run: clean AP, certified recall and false positives.

    Metrics have 95 % confidence intervals. Without an operating point (at most one of `clean_recall`, `base_threshold`
    and `fppi`) everything is measured at the defense's own base threshold, as `detect` applies it.

    Args:
        run: What `observe` or `open_run` returned.
        defense: The defense to measure; it must have the run's detector and masks. Default: the run's own.
        threat: The patch to certify against. Default: one square patch of 1 % of the image.
        clean_recall: Measure at the highest base threshold that reaches this clean recall, a fraction.
        base_threshold: Measure at this base threshold.
        fppi: Measure at the lowest base threshold with at most this many false positives per image.
        fabrication: Certify the output boxes not fabricated, too, and measure AP ranked by certified score.
        tracks: Certify the tracks of sequences, too, by these criteria.
        intervals: Whether to compute confidence intervals.
        processes: How many processes share the images. Default: as many as there are cores, if that pays.
        on_image: Called whenever an image is done.

    Returns:
        The metrics; `to_dict()` has them as plain values, and a notebook shows them as a table.

    Raises:
        ObjectSeekerError: The defense is not that of the run, or scores are needed that the run does not store.

    Example:
        >>> from objectseeker import evaluate, open_run
        >>> evaluate(open_run("runs/voc")).defended.ap50  # doctest: +SKIP
        71.0
    """
    defense = run.bind_defense(run.defense() if defense is None else defense)
    settings = settings_for(
        run, defense, threat=threat, clean_recall=clean_recall, base_threshold=base_threshold, fppi=fppi
    )
    evaluation = evaluate_images(
        run.images(),
        run.label_map,
        settings,
        defense=defense,
        fabrication=fabrication,
        tracks=tracks,
        intervals=intervals,
        processes=default_process_count(len(run.indices)) if processes is None else processes,
        on_image=on_image,
    )
    if evaluation.defended.base_threshold is not None:
        run.require_scores(lowest_base=evaluation.defended.base_threshold)
    return replace(evaluation, tuned_images=run.tuned_images(defense))


def settings_for(
    run: Run, defense: Defense, *, threat: ThreatModel | None = None, **operating_point: Any
) -> EvaluationSettings:
    """Return how to measure a defense of a run; reject scores that the run does not store."""
    settings = EvaluationSettings(
        rule=defense.rule,
        threshold_schedule=defense.resolved_schedule,
        threat=(ThreatModel() if threat is None else threat).at_all_locations(has_windows(defense.masks)),
        base_floor=run.manifest.observation_settings.base_floor,
        **operating_point,
    )
    run.require_scores(lowest_base=settings.base_threshold, lowest_masked=settings.min_mask_score)
    return settings


def evaluate_images(
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    settings: EvaluationSettings,
    *,
    defense: Defense | None = None,
    fabrication: bool = False,
    tracks: TrackCriteria | None = None,
    intervals: bool = True,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Evaluation:
    """Measure a defense on observed images; see `evaluate`.

    `metrics.metric` defines the metrics. The clean recall is the mean over classes. The undefended detector is measured
    by the same protocol, and where it reaches the same clean recall or FPPI itself, or at the same base threshold.
    `vacuous_far` objects count as certified against far patches because no position is far from them.

    Everything that depends on the operating point is None if no base threshold reaches what was requested. Intervals
    are those of the rule at the operating point: it is found once, on all images.

    Args:
        images: The observations; a stored run may be larger than memory, so they are read and not kept.
        label_map: Maps the detector's labels to those of the dataset.
        settings: The rule, how its thresholds follow the base threshold, the threat and the operating point.
        defense: What the rule is deployed as; the result names it.
        fabrication, tracks, intervals: As in `evaluate`.
        processes: How many processes share the images, with the same result.
        on_image: Called whenever an image is done; images are read twice where only the curve tells the rule.

    Raises:
        ObjectSeekerError: There is no image, or no object that counts.

    Example:
        >>> evaluate_images(run.images(), run.label_map, settings).defended.ap50  # doctest: +SKIP
        71.0
    """
    rule, threat = settings.fixed_rule, settings.threat
    request = TallyRequest(
        settings=settings,
        rule=rule,
        threats=(threat,),
        joint_threats=(threat,) if threat.count == 1 else (),  # a joint certificate is about a single patch
        fabrication_threats=(threat,) if fabrication else (),
        curves=True,
        tracks=tracks,
    )
    if len(images) and not label_map.dataset_names:  # the images are not annotated
        raise ObjectSeekerError(nothing_counts(len(images)))
    options: dict[str, Any] = {"max_images": MAX_TALLIED_IMAGES, "processes": processes, "on_image": on_image}
    tally = tally_images(images, label_map, request, **options)
    if not tally.objects.count.any():
        raise ObjectSeekerError(nothing_counts(len(images)))
    defended, undefended = tally.curve("defended"), tally.curve("undefended")
    fixed = len(BASE_THRESHOLDS)  # the row of a fixed rule, after those of the protocol
    rows = [operating_row_of(settings, one) if rule is None else fixed for one in (defended, undefended)]
    if rule is None and rows[0] is not None:
        rule = settings.on_curve(float(BASE_THRESHOLDS[rows[0]]))
        again = tally_images(images, label_map, replace(request, rule=rule, curves=False), **options)
        curves = {name: getattr(tally, name) for name in ("undefended", "defended", "base_thresholds", "scored")}
        tally = replace(again, **curves)
    certified_tracks = None
    if tracks is not None:
        certified_tracks = certify_tracks(tally.sequences, label_map.dataset_names, tracks, threat.anywhere())
    evaluation = Evaluation(
        names=label_map.dataset_names,
        images=int(tally.images.count.sum()),
        ignored_objects=int(tally.images.ignored.sum()),
        objects_per_class=np.asarray(defended.objects),
        settings=settings,
        undefended=_undefended(tally, undefended, rows[1]),
        defended=_defended(settings, tally, defended, rows[0], rule),
        intervals={},
        tally=tally,
        defense=defense,
        tracks=certified_tracks,
    )
    if not intervals or len(tally.ids) < evaluation.images:
        return evaluation
    known = {name: one.interval(tally) for name, one in evaluation_metrics(evaluation).items()}
    return replace(evaluation, intervals=known)


def _undefended(tally: Tally, curve: Curve, row: int | None) -> UndefendedOutcome:
    assert tally.scored is not None  # curves were requested
    point = None if row is None else curve.rows(slice(row, row + 1))
    protocol = curve.rows(slice(len(BASE_THRESHOLDS)))
    return UndefendedOutcome(protocol, tally.scored.ap50(np.asarray(curve.objects)), point, row)


def _defended(
    settings: EvaluationSettings, tally: Tally, curve: Curve, row: int | None, rule: PruningRule | None
) -> DefendedOutcome:
    outcome = DefendedOutcome(settings=settings, curve=curve.rows(slice(len(BASE_THRESHOLDS))))
    if row is None:
        return outcome
    there, threat = curve.rows(slice(row, row + 1)), settings.threat
    guaranteed, boxes = tally.images.guaranteed.get(threat), tally.images.guaranteed_boxes.get(threat)
    certified, vacuous = (
        np.stack([tally.objects_per_class(holds).sum(axis=0) for holds in verdicts[threat].T])
        for verdicts in (tally.objects.certified, tally.objects.vacuous)
    )
    return replace(
        outcome,
        rule=rule,
        clean_recall=float(there.clean_recall[0]),
        recall_per_class=there.recall[0],
        fppi=float(there.fppi[0]),
        certified=certified,
        vacuous=vacuous,
        remaining=None if guaranteed is None else int(guaranteed.sum()),
        guaranteed_boxes=None if boxes is None else float(boxes.sum() / tally.images.count.sum()),
        alerts=int(tally.images.flagged.sum()),
    )


def evaluation_metrics(evaluation: Evaluation) -> dict[str, Metric]:
    """Return every metric of an evaluation by its name, as functions of a tally."""
    threat, tally = evaluation.settings.threat, evaluation.tally
    metrics: dict[str, Metric] = {
        "undefended.ap50": metric.undefended_ap50,
        "defended.ap50": metric.ap50,
        "defended.ap50_loss": metric.ap50_loss,
    }
    row = evaluation.undefended.row
    if row is not None:
        metrics["undefended.clean_recall"] = metric.undefended_clean_recall(row)
        metrics["undefended.fppi"] = metric.undefended_fppi(row)
    if evaluation.defended.rule is not None:
        metrics |= {"defended.clean_recall": metric.clean_recall, "defended.fppi": metric.fppi}
        metrics["defended.spurious_per_image"] = metric.spurious_per_image
        metrics |= {
            f"defended.certified_recall.{location}": metric.certified_recall(threat, location)
            for location in threat.locations
        }
        if threat in tally.images.guaranteed:
            metrics["defended.joint_certified_recall"] = metric.joint_certified_recall(threat)
            metrics["defended.guaranteed_boxes"] = metric.guaranteed_boxes(threat)
        metrics["defended.false_alert_rate"] = metric.false_alert_rate
    if tally.boxes is not None:
        for location in threat.locations:
            metrics[f"defended.certified_true_positives.{location}"] = metric.certified_true_positives(threat, location)
            metrics[f"defended.certified_false_positives.{location}"] = metric.certified_false_positives(
                threat, location
            )
        metrics |= {"defended.output_ap50": metric.output_ap50, "defended.ranked_ap50": metric.ranked_ap50}
    return metrics


def interval_cell(key: str, interval: ConfidenceInterval | None) -> str:
    """Format a metric that is only shown with its interval."""
    return "-" if interval is None or not interval.known else format_with_interval(key, interval.value, interval)


def format_with_interval(key: str, value: float, interval: ConfidenceInterval | None) -> str:
    """Format a metric, with the ends of its interval where it is known."""
    shown = per_image if key in PER_IMAGE else percent
    if interval is None or not interval.known:
        return shown(value)
    return f"{shown(value)} ({shown(interval.low)} to {shown(interval.high)})"
