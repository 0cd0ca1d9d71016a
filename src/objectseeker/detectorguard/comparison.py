"""Compare DetectorGuard with the undefended detector and ObjectSeeker on the same images.

The output at a base threshold is the base boxes of at least that score, or an alert instead of them. On a clean image
an alert is false: its boxes are lost and its objects are missed (as published). The higher the base threshold, the
fewer boxes explain objectness, so an image that alerts at one base threshold alerts at every higher one.

All boxes of the deployed guard explain, including those of classes that the dataset lacks. Metrics count the output in
the dataset's labels. Certificates are class-agnostic, so an object needs no detector label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.rules import Rule
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.detectorguard.certification import GuardCertificates, certify_guarded, certify_published
from objectseeker.detectorguard.features import ObjectnessFeatures, add_features, describe, read_features
from objectseeker.detectorguard.objectness import (
    FEATURE_STEP,
    Features,
    Grid,
    explaining_score,
    has_cluster,
    max_votes,
    required_votes,
)
from objectseeker.detectors.network.preprocess import Size
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.metrics.average_precision import NO_BOXES, Curve, defended_curve, match_rows, undefended_curve
from objectseeker.metrics.defended_images import shares
from objectseeker.metrics.evaluation import evaluate_images
from objectseeker.metrics.image_set import ImageSet, split_images
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings
from objectseeker.runs.observe import Progress
from objectseeker.runs.run import Run
from objectseeker.text import percent, plural, to_html

Shares = Mapping[PatchLocation, float | None]

DEFAULT_CLEAN_RECALL = 0.8
PUBLISHED_SCHEDULE = ThresholdSchedule(alpha=0.8, beta=0.5)  # of ObjectSeeker's paper
MAX_AP_LOSSES = (np.inf, 1.0)  # points that tuning may cost: any, and as many as ObjectSeeker's default rule
MAX_FALSE_ALERT_RATE = 0.05  # that thresholds are tuned to
OBJECTNESS_THRESHOLDS: Ints = np.unique(np.rint(np.geomspace(16, 2048, 141)).astype(np.int64))  # candidates
FORWARD_PASSES = 2  # one of the detector, one of the objectness network


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseRow:
    """The metrics of one defense: APs, recalls and rates in percent; None means that it does not apply.

    - certified_recall: the share of objects that no patch hides; with DetectorGuard, without an alert.
    - certified_and_found: the share of objects that are certified and in the output of the clean image (found by the
      base detector, no false alert), as the published metrics are counted.
    - certified_published: certified under the published threat model.
    """

    defense: str
    forward_passes: int
    threshold: float | None = None
    ap50: float | None = None
    max_clean_recall: float | None = None
    base_threshold: float | None = None
    clean_recall: float | None = None
    false_alerts: int | None = None  # images
    false_alert_rate: float | None = None
    certified_recall: Shares | None = None
    certified_and_found: Shares | None = None
    certified_published: Shares | None = None
    vacuous_far: int | None = None

    @property
    def guarded(self) -> bool:
        return self.defense.startswith("DetectorGuard")

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics that apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_table(self) -> dict[str, str]:
        certified, detected, published = (
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
            "false alerts": percent(self.false_alert_rate),
            **{f"certified {location}": percent(certified[location]) for location in PATCH_LOCATIONS},
            **{f"and found, {location}": percent(detected[location]) for location in PATCH_LOCATIONS[:3]},
            **{f"published model, {location}": percent(published[location]) for location in PATCH_LOCATIONS[:3]},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectorGuardComparison:
    """The metrics of all defenses on the same images of a run, at the clean recall of `settings`."""

    images: int
    objects: int
    settings: EvaluationSettings
    network: Mapping[str, Any]
    tuned_on: int  # images; 0 if the threshold was fixed
    max_false_alert_rate: float  # of tuned thresholds, in percent
    rows: tuple[DefenseRow, ...]
    recall_note: str | None  # if the clean recall is a default

    def to_dict(self) -> dict[str, Any]:
        tuning = {"images": self.tuned_on, "max_false_alert_rate": self.max_false_alert_rate} if self.tuned_on else None
        return {
            "compared_with": "detectorguard",
            "images": self.images,
            "objects": self.objects,
            "settings": self.settings.to_dict(),
            "network": dict(self.network),
            "tuning": tuning,
            "rows": [row.to_dict() for row in self.rows],
            "caveats": self.caveats(),
        }

    def table_rows(self) -> list[dict[str, str]]:
        """Return the table: one row per defense."""
        return [row.to_table() for row in self.rows]

    def terminal_rows(self) -> list[dict[str, str]]:
        """Return the columns that fit a terminal, with DetectorGuard's other counts as rows of their own."""
        rows = []
        for row in self.rows:
            full = row.to_table()
            names = {"": "defense", "AP50": "AP50", "recall": "clean recall", "alerts": "false alerts"}
            shown = {short: full[name] for short, name in names.items()}
            rows.append(shown | {location: full[f"certified {location}"] for location in PATCH_LOCATIONS[:3]})
            for name, prefix in (
                ("  certified and found", "and found"),
                ("  published threat model", "published model"),
            ):
                if row.guarded:
                    rows.append(
                        dict.fromkeys(shown, "") | {"": name} | {w: full[f"{prefix}, {w}"] for w in PATCH_LOCATIONS[:3]}
                    )
        return rows

    def _repr_html_(self) -> str:
        return to_html(self.terminal_rows())

    def caveats(self) -> list[str]:
        """Return the conditions under which the table holds."""
        threat, network, recall = self.settings.threat, self.network, f"clean recall {self.settings.clean_recall:g}"
        patch = f"patch of {threat.area:.2%}, aspect {threat.aspect:g}"
        lines = [
            f"{plural(self.images, 'image')}, {plural(self.objects, 'object')}; {patch}; at {recall}",
            f"objectness network {network['network']} (sha256 {network['sha256'][:12]}) at "
            f"{network['input'][0]}x{network['input'][1]}",
        ]
        lines += [] if self.recall_note is None else [self.recall_note]
        if self.tuned_on:
            rate = f"{self.max_false_alert_rate:g} % false alerts"
            lines.append(f"thresholds tuned on {self.tuned_on} other images to at most {rate}")
            if any(row.guarded and row.threshold is None for row in self.rows):
                lines.append(f"dashes: no threshold reaches that at {recall}; use a lower --clean-recall")
        lines.append(
            "certified: an alert or a base box that overlaps the object (T = 0, class-agnostic); and found: the "
            "certified objects in the output of the clean image, as the published metrics are counted"
        )
        for name, rule in (("paper", Rule()), (_rule_name(self.settings), self.settings.rule)):
            if more := rule.resolve_threshold(threat.certification_threshold):
                overlap = "an IoU with" if rule.overlap == "iou" else "a share of"
                lines.append(
                    f"ObjectSeeker {name} guarantees more than an overlap: {overlap} the object above {more:g}"
                )
        return lines


def compare_with_detectorguard(
    run: Run,
    settings: EvaluationSettings,
    *,
    network: ObjectnessFeatures | None = None,
    threshold: int | None = None,
    max_false_alert_rate: float = MAX_FALSE_ALERT_RATE,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> DetectorGuardComparison:
    """Compare DetectorGuard with ObjectSeeker, by its published rule and by that of `settings`, on a run.

    Thresholds are tuned on one half of the images (`tune_thresholds`), and everything is measured on the other half. A
    second row of DetectorGuard also limits the AP loss to one point. DetectorGuard's certificates do not depend on the
    base threshold.

    Args:
        run: A finished run; features that are missing are computed from its images and stored with it.
        settings: The rule, the threat model and the clean recall of the comparison.
        network: The objectness network. Default: the stored features, or the network of the package.
        threshold: An objectness threshold in steps: nothing is tuned, and all images are measured.
        max_false_alert_rate: The highest false alert rate of a tuned threshold, at the clean recall.
        seed: Seed of the split into halves.
        on_progress: Called with the images that have features and their number.

    Returns:
        A `DetectorGuardComparison`: `rows` has one entry per defense.

    Raises:
        ObjectSeekerError: The threat model has several patches, or the features belong to another network.

    Example:
        >>> compare_with_detectorguard(run, settings).table_rows()  # doctest: +SKIP
    """
    require_fraction(max_false_alert_rate, "max_false_alert_rate")
    if settings.threat.count != 1:
        raise ObjectSeekerError(f"DetectorGuard takes one patch at a time: got {settings.threat.count}. Use 1.")
    add_features(run, network, on_progress=on_progress)
    description = describe(run)
    width, height = description["input"]
    maps = ObjectnessMaps.from_images(
        ImageSet.from_images(run.images(), run.label_map), read_features(run), (width, height)
    )
    if threshold is None:
        tuning, held_out = split_images(len(maps.grids), 2, seed)
        parts = [maps.subset(tuning), maps.subset(held_out)]
        settings, note = _at_some_recall(settings, [part.image_set for part in parts])
        assert settings.clean_recall is not None
        thresholds = tune_thresholds(
            parts[0], settings.clean_recall, max_ap_losses=MAX_AP_LOSSES, max_false_alert_rate=max_false_alert_rate
        )
        tuned_on, maps = len(tuning), parts[1]
    else:
        held_out, tuned_on, thresholds = np.arange(len(maps.grids)), 0, [threshold]
        settings, note = _at_some_recall(settings, [maps.image_set])
    image_set = maps.image_set
    names = ("DetectorGuard", f"DetectorGuard, AP loss <= {MAX_AP_LOSSES[1]:g}")
    published = EvaluationSettings.from_schedule(
        PUBLISHED_SCHEDULE, threat=settings.threat, clean_recall=settings.clean_recall
    )
    return DetectorGuardComparison(
        images=len(image_set.images),
        objects=len(image_set.counted),
        settings=settings,
        network=description,
        tuned_on=tuned_on,
        max_false_alert_rate=100 * max_false_alert_rate,
        rows=(
            DefenseRow(defense="undefended", forward_passes=1, ap50=undefended_curve(image_set).mean_ap50),
            *(
                _guarded_row(name, maps, read_features(run, held_out), settings, each)
                for name, each in zip(names, thresholds, strict=False)
            ),
            *_objectseeker_rows("paper", image_set, published),
            *_objectseeker_rows(_rule_name(settings), image_set, settings),
        ),
        recall_note=note,
    )


def _at_some_recall(
    settings: EvaluationSettings, image_sets: Sequence[ImageSet]
) -> tuple[EvaluationSettings, str | None]:
    """Return the settings at a clean recall, and a note if that one is a default."""
    if settings.clean_recall is not None:
        return settings, None
    reached = min(undefended_curve(image_set).max_clean_recall for image_set in image_sets) / 100
    note, default = "no clean recall was requested, and defenses are compared at one: ", DEFAULT_CLEAN_RECALL
    if reached < default:
        return settings.at_clean_recall(reached), f"{note}the highest that is reached, since {default:g} is not"
    return settings.at_clean_recall(default), f"{note}{default:g}"


def _guarded_row(
    name: str, maps: ObjectnessMaps, features: Iterable[Features], settings: EvaluationSettings, threshold: int | None
) -> DefenseRow:
    if threshold is None:  # no threshold reaches the rate
        return DefenseRow(defense=name, forward_passes=FORWARD_PASSES)
    assert settings.clean_recall is not None
    guarded = GuardedDetector.measure(maps, threshold)
    curve = guarded.curve
    patches = settings.threat.at_all_locations(has_windows=False).patches()
    verdicts, published = certify_guarded_images(maps, features, threshold, patches)
    at_point: dict[str, Any] = {}
    at = curve.row_at_recall(settings.clean_recall)
    if at is not None:
        at_point = {
            "base_threshold": float(curve.base_thresholds[at]),
            "clean_recall": float(curve.clean_recall[at]),
            "false_alerts": guarded.false_alerts(at),
            "false_alert_rate": 100 * guarded.false_alerts(at) / len(maps.grids),
            "certified_and_found": _shares(verdicts.certified & guarded.detected(at)),
        }
    return DefenseRow(
        defense=name,
        forward_passes=FORWARD_PASSES,
        threshold=threshold * FEATURE_STEP,
        ap50=curve.mean_ap50,
        max_clean_recall=curve.max_clean_recall,
        certified_recall=_shares(verdicts.certified),
        certified_published=_shares(published),
        vacuous_far=int(verdicts.vacuous[PATCH_LOCATIONS.index("far")].sum()),
        **at_point,
    )


def _objectseeker_rows(rule: str, image_set: ImageSet, settings: EvaluationSettings) -> list[DefenseRow]:
    """Return the rows per class and class-agnostic, as DetectorGuard guarantees nothing about labels."""
    rows = []
    masks = max(len(image.observation.masks) for image in image_set.images)
    for suffix, variant in (("", settings.with_rule(classwise=True)), (", class-agnostic", settings.class_agnostic())):
        evaluation = evaluate_images(image_set.images, image_set.label_map, variant, intervals=False)
        defended = evaluation.defended
        rows.append(
            DefenseRow(
                defense=f"ObjectSeeker {rule}{suffix}",
                forward_passes=1 + masks,
                ap50=defended.ap50,
                max_clean_recall=defended.max_clean_recall,
                base_threshold=defended.base_threshold,
                clean_recall=defended.clean_recall,
                false_alerts=defended.alerts,
                false_alert_rate=evaluation.false_alert_rate,
                certified_recall=None if defended.rule is None else defended.certified_recall(),
                vacuous_far=defended.vacuous_far,
            )
        )
    return rows


def _rule_name(settings: EvaluationSettings) -> str:
    return "as given" if settings.rule.name == "paper" else settings.rule.name


def _shares(verdicts: Bools) -> Shares:
    return shares(verdicts.sum(axis=1), verdicts.shape[1])


def _two_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# DetectorGuard measured as ObjectSeeker is


@dataclass(frozen=True, slots=True, eq=False)
class ObjectnessMaps:
    """Everything that alerts depend on, for every image of a set, at all thresholds and base thresholds."""

    image_set: ImageSet
    grids: tuple[Grid, ...]
    votes: tuple[Ints, ...]  # of the class with most votes
    explained: tuple[Floats, ...]  # the highest score of a box that explains a position

    @classmethod
    def from_images(cls, image_set: ImageSet, features: Iterable[Features], network: Size) -> ObjectnessMaps:
        """Return the maps from the features of every image, in order, and the size of the network's input."""
        grids, votes, explained = [], [], []
        for image, of_image in zip(image_set.images, features, strict=True):
            grid = Grid.for_image((image.observation.width, image.observation.height), network)
            if of_image.shape[:2] != grid.shape:
                raise ObjectSeekerError(
                    f"image {image.id!r} has features of shape {of_image.shape}, not {grid.shape}: observe it again"
                )
            grids.append(grid)
            votes.append(max_votes(of_image))
            explained.append(explaining_score(grid, image.observation.base))
        return cls(image_set, tuple(grids), tuple(votes), tuple(explained))

    def subset(self, index: Ints) -> ObjectnessMaps:
        chosen = index.tolist()
        return ObjectnessMaps(
            self.image_set.subset(index),
            tuple(self.grids[i] for i in chosen),
            tuple(self.votes[i] for i in chosen),
            tuple(self.explained[i] for i in chosen),
        )

    def first_alert(self, thresholds: Ints) -> Ints:
        """Return the first of `BASE_THRESHOLDS` at which each image alerts: (thresholds, images).

        It is len(BASE_THRESHOLDS) if an image never alerts. Bisection finds it, since alerts never vanish again.
        """
        first = np.empty((len(thresholds), len(self.grids)), np.int64)
        rows = np.arange(len(thresholds))
        for n, (votes, explained) in enumerate(zip(self.votes, self.explained, strict=True)):
            says_object = votes > thresholds[:, None, None] * required_votes(1)
            low, high = np.zeros_like(rows), np.full_like(rows, len(BASE_THRESHOLDS))  # the answer is in [low, high]
            while (low < high).any():
                middle = (low + high) // 2
                score = BASE_THRESHOLDS[np.minimum(middle, len(BASE_THRESHOLDS) - 1)]
                alerts = has_cluster(says_object & (explained < score[:, None, None]))
                low, high = np.where(alerts | (low == high), low, middle + 1), np.where(alerts, middle, high)
            first[:, n] = low
        return first


@dataclass(frozen=True, slots=True, eq=False)
class GuardedDetector:
    """DetectorGuard at one threshold."""

    maps: ObjectnessMaps
    threshold: int
    first_alert: Ints  # per image: the first row of the curve at which it alerts
    curve: Curve

    @classmethod
    def measure(cls, maps: ObjectnessMaps, threshold: int, first_alert: Ints | None = None) -> GuardedDetector:
        first = maps.first_alert(np.array([threshold]))[0] if first_alert is None else first_alert
        nothing = [NO_BOXES] * len(BASE_THRESHOLDS)
        return cls(maps, threshold, first, defended_curve(maps.image_set, BASE_THRESHOLDS, nothing, first))

    def false_alerts(self, row: int) -> int:
        """Return the number of clean images that alert at one row of the curve."""
        return int((self.first_alert <= row).sum())

    def detected(self, row: int) -> Bools:
        """Return which counted objects are detected in the output at one row of the curve."""
        image_set = self.maps.image_set
        ((found, _, _),) = match_rows(image_set, BASE_THRESHOLDS[[row]], [NO_BOXES], self.first_alert - row)
        return np.isin(image_set.counted, found)


def tune_thresholds(
    maps: ObjectnessMaps,
    clean_recall: float,
    *,
    max_ap_losses: Sequence[float],
    max_false_alert_rate: float = MAX_FALSE_ALERT_RATE,
    thresholds: Ints = OBJECTNESS_THRESHOLDS,
) -> list[int | None]:
    """Return, per allowed AP loss in points, the lowest threshold with few enough false alerts, or None.

    Where the clean recall is reached, the false alert rate is at most `max_false_alert_rate`. Lower thresholds certify
    more. The AP is over all base thresholds: at high ones fewer boxes explain, more images alert, and a low threshold
    costs more AP than the false alert rate at one base threshold shows.
    """
    undefended = undefended_curve(maps.image_set).mean_ap50
    chosen: list[int | None] = [None] * len(max_ap_losses)
    for first, threshold in zip(maps.first_alert(thresholds), map(int, thresholds), strict=True):
        guarded = GuardedDetector.measure(maps, threshold, first)
        row = guarded.curve.row_at_recall(clean_recall)
        if row is None or guarded.false_alerts(row) > max_false_alert_rate * len(maps.grids):
            continue
        loss = undefended - guarded.curve.mean_ap50
        chosen = [
            threshold if old is None and loss <= limit else old
            for old, limit in zip(chosen, max_ap_losses, strict=True)
        ]
        if None not in chosen:
            break
    return chosen


def certify_guarded_images(
    maps: ObjectnessMaps, features: Iterable[Features], threshold: int, patches: Sequence[Patch]
) -> tuple[GuardCertificates, Bools]:
    """Certify every counted object of an image set, in our threat model and in the published one.

    The verdicts do not depend on the base threshold.
    """
    parts = []
    for image, grid, of_image in zip(maps.image_set.images, maps.grids, features, strict=True):
        objects = image.ground_truth[~image.ignore]
        ours = certify_guarded(grid, of_image, objects, patches, threshold=threshold)
        published = certify_published(grid, of_image, objects, patches, threshold=threshold)
        parts.append((ours.certified, ours.vacuous, published))
    certified, vacuous, published = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return GuardCertificates(certified, vacuous), published
