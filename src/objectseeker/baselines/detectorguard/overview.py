"""DetectorGuard beside the undefended detector and ObjectSeeker, on the same images: one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from objectseeker.baselines.detectorguard.features import describe, read_features
from objectseeker.baselines.detectorguard.measured import (
    FALSE_ALERTS,
    Guarded,
    Maps,
    certify_scene,
    shares,
    tune_thresholds,
)
from objectseeker.baselines.detectorguard.objectness import FEATURE_STEP, Features
from objectseeker.core.boxes import Ints
from objectseeker.core.threats import WHERES
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.evaluation.curves import vanilla_curve
from objectseeker.evaluation.defence import Defence
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import RECOMMENDED, Settings
from objectseeker.evaluation.sweeps import by_lines, split
from objectseeker.results.tables import percent
from objectseeker.runs.run import Run, restrict

Row = dict[str, Any]

PAPER = Settings(alpha=0.8, beta=0.5)  # ObjectSeeker's published rule at its published values
LOSSES = (np.inf, 1.0)  # points of AP that tuning may cost: any, and as much as ObjectSeeker's recommended settings
PASSES = 2  # one of the detector, one of the objectness network


def evaluate(
    run: Run,
    settings: Settings = RECOMMENDED,
    *,
    threshold: int | None = None,
    false_alerts: float = FALSE_ALERTS,
    seed: int = 0,
) -> Row:
    """The figures of a run with features, ready for JSON. APs, recalls and rates are percentages, scores are not.

    Thresholds are tuned on one half of the images (`tune_thresholds`): to a rate of false alerts of at most
    `false_alerts` where the clean recall is `settings.clean_recall`, and, in a second row, to an AP loss of at most one
    point besides. Everything is measured on the other half. With a `threshold` (a whole number of steps) nothing is
    tuned, and everything is measured on all images.

    `settings` are those of ObjectSeeker's evidence rule and of the threat. All rows are about the same images.

    - certified_recall: the share of objects that no patch hides without an alert; it does not depend on base_score.
    - certified_and_found: the share of objects that are certified and in the output of the clean image (found by the
      base detector, no false alert). This is how the published figures are counted.
    - certified_published: certified under the published location model (`locations`).
    """
    require_fraction(false_alerts, "false_alerts")
    if settings.patch_count != 1:
        raise ObjectSeekerError(f"DetectorGuard is certified against one patch at a time, got {settings.patch_count}")
    description = describe(run)
    everything = Scene.of(list(run.images()), run.manifest.names)
    width, height = description["input"]
    maps = Maps.of(everything, read_features(run), (width, height))
    measured = np.arange(len(maps.grids))
    thresholds = [threshold]
    tuned_on = 0
    if threshold is None:
        tuning, measured = split(len(maps.grids), 2, seed)
        tuned_on = len(tuning)
        thresholds = tune_thresholds(
            maps.subset(tuning), settings.clean_recall, losses=LOSSES, false_alerts=false_alerts
        )
        maps = maps.subset(measured)
    scene = maps.scene
    guarded = [_guarded_row(maps, read_features(run, measured), settings, each) for each in thresholds]
    if threshold is None:
        guarded[1]["defence"] += f", AP loss <= {LOSSES[1]:g}"
    return {
        "baseline": "detectorguard",
        "images": len(scene.images),
        "objects": len(scene.counted),
        "settings": asdict(settings),
        "network": description,
        "tuning": {"images": tuned_on, "false_alert_rate": 100 * false_alerts} if tuned_on else None,
        "rows": [
            {"defence": "vanilla", "forward_passes": 1, "ap50": vanilla_curve(scene).mean_ap50},
            *guarded,
            *_objectseeker_rows(scene, "paper", _at(PAPER, settings)),
            *_objectseeker_rows(scene, "evidence", settings),
        ],
    }


def _guarded_row(maps: Maps, features: Iterable[Features], settings: Settings, threshold: int | None) -> Row:
    row: Row = {"defence": "DetectorGuard", "forward_passes": PASSES}
    if threshold is None:  # none was found
        return row
    row["threshold"] = threshold * FEATURE_STEP
    guarded = Guarded.measure(maps, threshold)
    curve = guarded.curve
    row |= {"ap50": curve.mean_ap50, "highest_clean_recall": float(curve.clean_recall.max())}
    verdicts = certify_scene(maps, features, threshold, settings.patches())
    row |= {
        "certified_recall": shares(verdicts.certified),
        "certified_published": shares(verdicts.published),
        "vacuous_far": int(verdicts.vacuous[WHERES.index("far")].sum()),
    }
    at = curve.row_at_recall(settings.clean_recall)
    if at is not None:
        alerts = guarded.false_alerts(at)
        row |= {
            "base_score": float(curve.base_scores[at]),
            "clean_recall": float(curve.clean_recall[at]),
            "false_alerts": {"images": alerts, "rate": 100 * alerts / len(maps.grids)},
            "certified_and_found": shares(verdicts.certified & guarded.found(at)),
        }
    return row


def _objectseeker_rows(scene: Scene, rule: str, settings: Settings) -> list[Row]:
    """Label by label and without labels: DetectorGuard promises nothing about labels."""
    rows = []
    masks = max(len(image.observation.masks) for image in scene.images)
    for classwise, name in ((True, ""), (False, ", label-free")):
        defence = Defence.prepare(scene, settings, classwise=classwise)
        curve = defence.curve(settings)
        point = defence.at_recall(settings, curve)
        row: Row = {"defence": f"ObjectSeeker {rule}{name}", "forward_passes": 1 + masks, "ap50": curve.mean_ap50}
        row["highest_clean_recall"] = float(curve.clean_recall.max())
        if point is not None:
            (added,) = defence.additions(settings, [point.rule.base_score])
            alerts = len(np.unique(added.image))
            row |= {
                "base_score": point.rule.base_score,
                "clean_recall": point.clean_recall,
                "certified_recall": dict(point.certified_recall()),
                "vacuous_far": point.vacuous_far(),
                "false_alerts": {"images": alerts, "rate": 100 * alerts / len(scene.images)},
            }
        rows.append(row)
    return rows


def cost_rows(scene: Scene, found: Row, ks: Iterable[int]) -> list[Row]:
    """Certified recall against cost: DetectorGuard as in `found`, ObjectSeeker with k lines per axis."""
    settings = Settings(**found["settings"])
    rows: list[Row] = []
    for row in found["rows"]:
        if row["defence"].startswith("DetectorGuard"):
            certified = row.get("certified_recall") or dict.fromkeys(WHERES)
            rows.append(
                {"defence": row["defence"], "k": None, "forward_passes": PASSES}
                | {f"certified_{where}": certified[where] for where in WHERES}
            )
    columns = ("k", "forward_passes", *(f"certified_{where}" for where in WHERES))
    for row in by_lines(scene, settings, ks, restrict):
        rows.append({"defence": "ObjectSeeker"} | {column: row[column] for column in columns})
    return rows


def measured_images(run: Run, *, seed: int = 0) -> Ints:
    """Which images `evaluate` measures on when it tunes the threshold."""
    return split(len(run.parts), 2, seed)[1]


def table_rows(found: Row) -> list[dict[str, str]]:
    """The table to print: one row per defence."""
    rows = []
    for row in found["rows"]:
        alerts = row.get("false_alerts")
        certified, clean, published = (
            row.get(key) or {} for key in ("certified_recall", "certified_and_found", "certified_published")
        )
        shown = {
            "defence": row["defence"],
            "passes": str(row["forward_passes"]),
            "threshold": "-" if "threshold" not in row else f"{row['threshold']:.2f}",
            "AP50": percent(row.get("ap50")),
            "base_score": "-" if row.get("base_score") is None else f"{row['base_score']:.2f}",
            "clean recall": percent(row.get("clean_recall")),
            "false alerts": percent(alerts["rate"] if alerts else None),
        }
        shown |= {f"certified {where}": percent(certified.get(where)) for where in WHERES}
        shown |= {f"and found, {where}": percent(clean.get(where)) for where in WHERES[:3]}
        shown |= {f"its locations, {where}": percent(published.get(where)) for where in WHERES[:3]}
        rows.append(shown)
    return rows


def terminal_rows(found: Row) -> list[dict[str, str]]:
    """`table_rows`, as much of them as fits a terminal; other ways to count DetectorGuard's certificates below it."""
    rows = []
    for full in table_rows(found):
        shown = {
            "": full["defence"],
            "AP50": full["AP50"],
            "recall": full["clean recall"],
            "alerts": full["false alerts"],
        }
        rows.append(shown | {where: full[f"certified {where}"] for where in WHERES[:3]})
        if full["defence"].startswith("DetectorGuard"):
            for name, prefix in (("  certified and found", "and found"), ("  its own locations", "its locations")):
                rows.append(dict.fromkeys(shown, "") | {"": name} | {w: full[f"{prefix}, {w}"] for w in WHERES[:3]})
    return rows


def remarks(found: Row) -> list[str]:
    """What a reader of the table must know."""
    settings, tuning, network = found["settings"], found["tuning"], found["network"]
    lines = [
        f"{found['images']} images, {found['objects']} objects; patch of {settings['patch_area']:.2%}, aspect "
        f"{settings['patch_aspect']:g}, T = 0; at clean recall {settings['clean_recall']:g}",
        f"objectness network {network['network']} (sha256 {network['sha256'][:12]}) at "
        f"{network['input'][0]}x{network['input'][1]}",
    ]
    if tuning is not None:
        rate = f"{tuning['false_alert_rate']:g} % false alerts"
        lines.append(f"thresholds tuned on {tuning['images']} other images to at most {rate}")
        if any(row["defence"].startswith("DetectorGuard") and "threshold" not in row for row in found["rows"]):
            lines.append(
                f"where there are dashes, no threshold does that at clean recall {settings['clean_recall']:g}: ask for "
                "less with --clean-recall"
            )
    lines.append(
        "certified: an alert or a base box that overlaps the object (no promise about labels); and found: of these the "
        "objects in the output of the clean image, as the published figures are counted"
    )
    return lines


def _at(settings: Settings, like: Settings) -> Settings:
    """`settings` against the threat and at the clean recall of `like`."""
    return replace(
        settings,
        patch_area=like.patch_area,
        patch_aspect=like.patch_aspect,
        patch_count=like.patch_count,
        clean_recall=like.clean_recall,
        bound=like.bound,
    )
