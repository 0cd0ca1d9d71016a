"""What the page says in numbers: AP and recall, settings and provenance. All APs and recalls are percentages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from objectseeker import __version__
from objectseeker.core.bounds import MARGIN
from objectseeker.core.masks import MaskSet
from objectseeker.core.rule import Rule
from objectseeker.core.threats import WHERES
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.average_precision import coco_ap50
from objectseeker.evaluation.curves import vanilla_curve
from objectseeker.evaluation.defence import Defence
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings
from objectseeker.evaluation.sweeps import SIZE_BINS
from objectseeker.runs.run import Run

# The stops of the page's sliders: round numbers, so that what is seen there can be asked for on the command line.
AREAS = (*(float(f"{m}e-{e}") for e in (3, 2, 1) for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), 1.0)
ASPECTS = (*(1 / n for n in (16, 12, 8, 6, 4, 3, 2, 1.5)), 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
THRESHOLDS = tuple(t / 20 for t in range(20))


def operating_rule(scene: Scene, settings: Settings, base_score: float | None) -> tuple[Rule, dict[str, Any]]:
    """The defended detector of the report, and what it costs.

    It is the one at `base_score`, by default at the highest base_score whose clean recall is `settings.clean_recall`.
    """
    vanilla, coco = vanilla_curve(scene), coco_ap50(scene)
    defence = Defence.prepare(scene, settings)
    curve = defence.curve(settings)
    row = curve.row_at_recall(settings.clean_recall) if base_score is None else _row(base_score)
    if row is None:
        raise ObjectSeekerError(
            f"clean recall {100 * settings.clean_recall:g} % is not reached, at most {curve.clean_recall.max():.1f} %: "
            "ask for less with --clean-recall"
        )
    rule = settings.rule(float(curve.base_scores[row]))
    objects = scene.objects_per_class
    return rule, {
        "images": len(scene.images),
        "objects": len(scene.counted),
        "ignored": int(scene.ignore.sum()),
        "vanilla": {"ap50": vanilla.mean_ap50, "ap50_coco": float(scene.macro(coco))},
        "defended": {"ap50": curve.mean_ap50, "clean_recall": float(curve.clean_recall[row])},
        "per_class": [
            {
                "label": int(c),
                "vanilla_ap50": float(vanilla.ap50[c]),
                "ap50": float(curve.ap50[c]),
                "clean_recall": float(curve.recall[row, c]),
            }
            for c in np.flatnonzero(objects)
        ],
    }


def controls(settings: Settings) -> dict[str, Any]:
    """The stops of the sliders, with those of the settings among them, and where they stand at first."""
    return {
        "areas": sorted({*AREAS, settings.patch_area}),
        "aspects": sorted({*ASPECTS, settings.patch_aspect}),
        "thresholds": sorted({*THRESHOLDS, settings.threshold}),
        "wheres": WHERES,
        "start": {
            "area": settings.patch_area,
            "aspect": settings.patch_aspect,
            "threshold": settings.threshold,
            "where": "over",
        },
        "size_bins": SIZE_BINS,
    }


def described(settings: Settings, rule: Rule) -> dict[str, str]:
    """The settings, as a reader wants to see them."""
    values = asdict(settings) | asdict(rule)
    shown = ["base_score", "mask_score", "low_score", "power", "alpha", "beta", "low_alpha", "low_beta"]
    shown += ["filter_ioa", "edge_factor", "cluster_distance", "bound"]
    name = "the paper's: one masked box decides" if rule.low_score is None else "evidence: views add up"
    return {"rule": name} | {
        key: f"{values[key]:g}" if isinstance(values[key], float) else str(values[key])
        for key in shown
        if values[key] is not None and not (key == "power" and rule.low_score is None)
    }


def provenance_of(run: Run) -> dict[str, str]:
    """Where a run comes from."""
    manifest = run.manifest
    return {
        "run": run.folder.resolve().name,
        "run identity": f"sha256:{run.identity}",
        "detector": manifest.detector,
        "dataset": manifest.dataset,
        "dataset identity": manifest.dataset_identity,
        "images": f"{len(run.parts)} of {len(manifest.images)}",
        "lines per axis": str(manifest.lines),
        "fill": str(manifest.fill),
        "boxes stored from": f"{manifest.base_floor:g} (untouched), {manifest.mask_floor:g} (masked)",
        "classes left out": ", ".join(manifest.excluded) or "none",
        "software": ", ".join(f"{name} {version}" for name, version in manifest.software.items()),
    }


def constants(rule: Rule) -> dict[str, Any]:
    """What the page's verdicts compare with."""
    return {"margin": MARGIN, "needed": 1 + MARGIN, "evidence": rule.low_score is not None, "version": __version__}


def masks_of(sizes: Sequence[MaskSet]) -> list[dict[str, Any]]:
    return [
        {"width": one.width, "height": one.height, "side": one.side.tolist(), "line": one.line.tolist()}
        for one in sizes
    ]


def _row(base_score: float) -> int:
    """The row of a curve at `base_score`, which must be one of BASE_SCORES."""
    found = np.flatnonzero(base_score == BASE_SCORES)
    if not len(found):
        raise ObjectSeekerError(f"base_score must be one of 0, 0.01, ..., 0.99, got {base_score!r}")
    return int(found[0])
