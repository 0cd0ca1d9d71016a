"""DetectorGuard beside the undefended detector and ObjectSeeker, on the same images: one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.iou_rule import IouRule
from objectseeker.core.rule import Rule
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.detectorguard.features import describe, read_features
from objectseeker.detectorguard.guard_metrics import FALSE_ALERTS, Guarded, Maps, certify_scene, tune_thresholds
from objectseeker.detectorguard.objectness import FEATURE_STEP, Features
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.files.tables import percent
from objectseeker.metrics.curves import undefended_curve
from objectseeker.metrics.defended_images import DefendedImageSet, shares
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.settings import EvaluationSettings, threshold_of
from objectseeker.metrics.sweeps import by_lines, split
from objectseeker.runs.run import Run

Shares = Mapping[PatchLocation, float | None]

CLEAN_RECALL = 0.8  # where nobody says otherwise
PUBLISHED_FOLLOW = ThresholdSchedule(alpha=0.8, beta=0.5)  # ObjectSeeker's published rule at its published values
ALLOWED_LOSSES = (np.inf, 1.0)  # points of AP that tuning may cost: any, and as much as ObjectSeeker's default rule
PASSES = 2  # one of the detector, one of the objectness network
EVERY_NTH_LINE = (
    "ObjectSeeker's k lines are every n-th of the stored ones, not those of a detector deployed with k lines: the "
    "trend counts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseRow:
    """One defense. APs, recalls and rates are percentages, scores are not; None is what it does not have.

    - certified_recall: the share of objects that no patch hides; with DetectorGuard, without an alert.
    - certified_and_found: the share of objects that are certified and in the output of the clean image (found by the
      base detector, no false alert). This is how the published figures are counted.
    - certified_published: certified under the published model of where a patch may lie.
    """

    defense: str
    forward_passes: int
    threshold: float | None = None
    ap50: float | None = None
    max_clean_recall: float | None = None
    base_threshold: float | None = None
    clean_recall: float | None = None
    false_alerts: int | None = None  # images
    alert_rate: float | None = None
    certified_recall: Shares | None = None
    certified_and_found: Shares | None = None
    certified_published: Shares | None = None
    vacuous_far: int | None = None

    @property
    def guarded(self) -> bool:
        return self.defense.startswith("DetectorGuard")

    def to_dict(self) -> dict[str, Any]:
        """What the defense has."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        images, rate = row.pop("false_alerts"), row.pop("alert_rate")
        row["false_alerts"] = None if images is None else {"images": images, "rate": rate}
        return {name: value for name, value in row.items() if value is not None}

    def to_table(self) -> dict[str, str]:
        certified, found, published = (
            dict.fromkeys(PATCH_LOCATIONS) if of is None else of
            for of in (self.certified_recall, self.certified_and_found, self.certified_published)
        )
        return {
            "defense": self.defense,
            "passes": str(self.forward_passes),
            "threshold": _two_digits(self.threshold),
            "AP50": percent(self.ap50),
            "base_threshold": _two_digits(self.base_threshold),
            "clean recall": percent(self.clean_recall),
            "false alerts": percent(self.alert_rate),
            **{f"certified {where}": percent(certified[where]) for where in PATCH_LOCATIONS},
            **{f"and found, {where}": percent(found[where]) for where in PATCH_LOCATIONS[:3]},
            **{f"published model, {where}": percent(published[where]) for where in PATCH_LOCATIONS[:3]},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideBySide:
    """The figures of a run with features: all rows are about the same images, at the clean recall of `settings`."""

    images: int
    objects: int
    settings: EvaluationSettings
    network: Mapping[str, Any]
    tuned_on: int  # images; 0 if the threshold was given
    false_alert_rate: float  # at most, in percent, where tuned
    rows: tuple[DefenseRow, ...]
    why_this_recall: str | None  # if nobody asked for it

    def to_dict(self) -> dict[str, Any]:
        tuning = {"images": self.tuned_on, "false_alert_rate": self.false_alert_rate} if self.tuned_on else None
        return {
            "baseline": "detectorguard",
            "images": self.images,
            "objects": self.objects,
            "settings": self.settings.to_dict(),
            "network": dict(self.network),
            "tuning": tuning,
            "rows": [row.to_dict() for row in self.rows],
            "remarks": self.remarks(),
        }

    def table_rows(self) -> list[dict[str, str]]:
        """The table to print: one row per defense."""
        return [row.to_table() for row in self.rows]

    def terminal_rows(self) -> list[dict[str, str]]:
        """As much as fits a terminal; other ways to count DetectorGuard's certificates stand below it."""
        rows = []
        for row in self.rows:
            full = row.to_table()
            names = {"": "defense", "AP50": "AP50", "recall": "clean recall", "alerts": "false alerts"}
            shown = {short: full[name] for short, name in names.items()}
            rows.append(shown | {where: full[f"certified {where}"] for where in PATCH_LOCATIONS[:3]})
            for name, prefix in (
                ("  certified and found", "and found"),
                ("  published model of where", "published model"),
            ):
                if row.guarded:
                    rows.append(
                        dict.fromkeys(shown, "") | {"": name} | {w: full[f"{prefix}, {w}"] for w in PATCH_LOCATIONS[:3]}
                    )
        return rows

    def remarks(self) -> list[str]:
        """What a reader of the table must know."""
        threat, network, recall = self.settings.threat, self.network, f"clean recall {self.settings.clean_recall:g}"
        patch = f"patch of {threat.area:.2%}, aspect {threat.aspect:g}"
        lines = [
            f"{self.images} images, {self.objects} objects; {patch}; at {recall}",
            f"objectness network {network['network']} (sha256 {network['sha256'][:12]}) at "
            f"{network['input'][0]}x{network['input'][1]}",
        ]
        lines += [] if self.why_this_recall is None else [self.why_this_recall]
        if self.tuned_on:
            rate = f"{self.false_alert_rate:g} % false alerts"
            lines.append(f"thresholds tuned on {self.tuned_on} other images to at most {rate}")
            if any(row.guarded and row.threshold is None for row in self.rows):
                lines.append(
                    f"where there are dashes, no threshold does that at {recall}: ask for less with --clean-recall"
                )
        lines.append(
            "certified: an alert or a base box that overlaps the object (T = 0, no promise about labels); and found: "
            "of these the objects in the output of the clean image, as the published figures are counted"
        )
        for name, rule in (("paper", Rule()), (_rule_name(self.settings), self.settings.rule)):
            if more := threshold_of(rule, threat.threshold):
                what = "an IoU with" if isinstance(rule, IouRule) else "a share of"
                lines.append(f"ObjectSeeker {name} promises more than an overlap: {what} the object above {more:g}")
        return lines


def side_by_side(
    run: Run,
    settings: EvaluationSettings,
    *,
    threshold: int | None = None,
    false_alerts: float = FALSE_ALERTS,
    seed: int = 0,
) -> SideBySide:
    """DetectorGuard, and ObjectSeeker by its published rule and by that of `settings`, on a run with features.

    Thresholds are tuned on one half of the images (`tune_thresholds`): to a rate of false alerts of at most
    `false_alerts` where the clean recall is `settings.clean_recall`, and, in a second row, to an AP loss of at most one
    point besides. Everything is measured on the other half. With a `threshold` (a whole number of steps) nothing is
    tuned, and everything is measured on all images. DetectorGuard's certificates do not depend on base_threshold.
    """
    require_fraction(false_alerts, "false_alerts")
    if settings.threat.count != 1:
        raise ObjectSeekerError(f"DetectorGuard is certified against one patch at a time, got {settings.threat.count}")
    description = describe(run)
    width, height = description["input"]
    maps = Maps.of(ImageSet.of(run.images(), run.vocabulary), read_features(run), (width, height))
    if threshold is None:
        tuning, measured = split(len(maps.grids), 2, seed)
        parts = [maps.subset(tuning), maps.subset(measured)]
        settings, why = _at_some_recall(settings, [part.scene for part in parts])
        assert settings.clean_recall is not None
        thresholds = tune_thresholds(parts[0], settings.clean_recall, losses=ALLOWED_LOSSES, false_alerts=false_alerts)
        tuned_on, maps = len(tuning), parts[1]
    else:
        measured, tuned_on, thresholds = np.arange(len(maps.grids)), 0, [threshold]
        settings, why = _at_some_recall(settings, [maps.scene])
    scene = maps.scene
    names = ("DetectorGuard", f"DetectorGuard, AP loss <= {ALLOWED_LOSSES[1]:g}")
    published = EvaluationSettings.along(PUBLISHED_FOLLOW, threat=settings.threat, clean_recall=settings.clean_recall)
    return SideBySide(
        images=len(scene.images),
        objects=len(scene.counted),
        settings=settings,
        network=description,
        tuned_on=tuned_on,
        false_alert_rate=100 * false_alerts,
        rows=(
            DefenseRow(defense="undefended", forward_passes=1, ap50=undefended_curve(scene).mean_ap50),
            *(
                _guarded_row(name, maps, read_features(run, measured), settings, each)
                for name, each in zip(names, thresholds, strict=False)
            ),
            *_objectseeker_rows("paper", scene, published),
            *_objectseeker_rows(_rule_name(settings), scene, settings),
        ),
        why_this_recall=why,
    )


def _at_some_recall(settings: EvaluationSettings, scenes: Sequence[ImageSet]) -> tuple[EvaluationSettings, str | None]:
    """The settings at a clean recall, and why at that one if nobody asked for it."""
    asked = settings.clean_recall
    if asked is not None and not settings.clean_recall_is_default:
        return settings, None
    usual = CLEAN_RECALL if asked is None else asked
    reached = min(undefended_curve(scene).max_clean_recall for scene in scenes) / 100
    why = "no clean recall was asked for, and defenses are compared at one: "
    if reached < usual:
        return settings.at_clean_recall(reached), f"{why}the highest that is reached, since {usual:g} is not"
    return settings.at_clean_recall(usual), f"{why}{usual:g}"


def _guarded_row(
    name: str, maps: Maps, features: Iterable[Features], settings: EvaluationSettings, threshold: int | None
) -> DefenseRow:
    if threshold is None:  # none was found
        return DefenseRow(defense=name, forward_passes=PASSES)
    assert settings.clean_recall is not None
    guarded = Guarded.measure(maps, threshold)
    curve = guarded.curve
    verdicts = certify_scene(maps, features, threshold, settings.threat.patches())
    there: dict[str, Any] = {}
    at = curve.row_at_recall(settings.clean_recall)
    if at is not None:
        there = {
            "base_threshold": float(curve.base_thresholds[at]),
            "clean_recall": float(curve.clean_recall[at]),
            "false_alerts": guarded.false_alerts(at),
            "alert_rate": 100 * guarded.false_alerts(at) / len(maps.grids),
            "certified_and_found": _shares(verdicts.certified & guarded.found(at)),
        }
    return DefenseRow(
        defense=name,
        forward_passes=PASSES,
        threshold=threshold * FEATURE_STEP,
        ap50=curve.mean_ap50,
        max_clean_recall=curve.max_clean_recall,
        certified_recall=_shares(verdicts.certified),
        certified_published=_shares(verdicts.published),
        vacuous_far=int(verdicts.vacuous[PATCH_LOCATIONS.index("far")].sum()),
        **there,
    )


def _objectseeker_rows(rule: str, scene: ImageSet, settings: EvaluationSettings) -> list[DefenseRow]:
    """Label by label and without labels: DetectorGuard promises nothing about labels."""
    rows = []
    masks = max(len(image.observation.masks) for image in scene.images)
    for classwise, suffix in ((True, ""), (False, ", class-agnostic")):
        way = settings.with_rule(classwise=classwise)
        replayed = DefendedImageSet.of(scene, way)
        curve = replayed.curve(way)
        point = replayed.at_operating_point(way, curve)
        there: dict[str, Any] = {}
        if point is not None:
            (added,) = replayed.added([point.rule])
            alerts = len(np.unique(added.image))
            there = {
                "base_threshold": point.rule.base_threshold,
                "clean_recall": point.clean_recall,
                "certified_recall": point.certified_recall(),
                "vacuous_far": point.vacuous_far(),
                "false_alerts": alerts,
                "alert_rate": 100 * alerts / len(scene.images),
            }
        rows.append(
            DefenseRow(
                defense=f"ObjectSeeker {rule}{suffix}",
                forward_passes=1 + masks,
                ap50=curve.mean_ap50,
                max_clean_recall=curve.max_clean_recall,
                **there,
            )
        )
    return rows


def _rule_name(settings: EvaluationSettings) -> str:
    if isinstance(settings.rule, IouRule):
        return "IoU variant"
    return "as given" if settings.rule.evidence_threshold is None else "evidence"


def cost_rows(scene: ImageSet, beside: SideBySide, ks: Iterable[int]) -> list[dict[str, Any]]:
    """Certified recall against cost: DetectorGuard as in `beside`, ObjectSeeker with k lines per axis.

    The lines are every n-th of the stored ones: `EVERY_NTH_LINE` is to stand beside these rows.
    """
    rows = [
        _cost_row(row.defense, None, PASSES, row.certified_recall or dict.fromkeys(PATCH_LOCATIONS))
        for row in beside.rows
        if row.guarded
    ]
    for step in by_lines(scene, beside.settings, ks):
        assert step.forward_passes is not None
        rows.append(_cost_row("ObjectSeeker", int(step.value), step.forward_passes, step.outcome.certified_recall()))
    return rows


def _cost_row(defense: str, k: int | None, passes: int, certified: Shares) -> dict[str, Any]:
    lines = None if k is None else "every n-th stored"
    row: dict[str, Any] = {"defense": defense, "k": k, "lines": lines, "forward_passes": passes}
    return row | {f"certified_{where}": certified[where] for where in PATCH_LOCATIONS}


def measured_images(run: Run, *, seed: int = 0) -> Ints:
    """Which images `side_by_side` measures on when it tunes the threshold."""
    return split(len(run.parts), 2, seed)[1]


def _shares(verdicts: Bools) -> Shares:
    return shares(verdicts.sum(axis=1), verdicts.shape[1])


def _two_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
