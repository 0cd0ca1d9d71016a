"""The rows of the figures: one run, looked at in many ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from objectseeker.core.certification import decide
from objectseeker.core.recipes import Halves, Pairs, Recipe
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation
from objectseeker.metrics import DefendedOutcome, EvaluationSettings, ImageSet, evaluate, sweeps
from objectseeker.metrics.curves import undefended_curve
from objectseeker.metrics.sweeps import Step

CLEAN_RECALLS = tuple(step / 20 for step in range(2, 20))
TENTHS = tuple(step / 10 for step in range(10))
FILTER_IOAS = TENTHS[3:]
LINE_STEPS = 6  # how many numbers of lines are compared; of 30 stored lines: 5, 10, ... 30
LINE_STEPS_OF_AREAS = 3  # likewise where each of them gets a line of its own: 10, 20, 30


@dataclass(frozen=True)
class Study:
    """A run and the settings its figures are made around; what several figures need is computed once."""

    scene: ImageSet
    settings: EvaluationSettings
    masks: Recipe  # as stored
    mask_floor: float  # masked boxes of lower scores were not stored

    @property
    def lines(self) -> int | None:
        """Lines per axis, if masks are made of lines alone."""
        return self.masks.lines if isinstance(self.masks, Halves | Pairs) else None

    @cached_property
    def by_lines(self) -> list[Step]:
        assert self.lines is not None
        return self.named(sweeps.by_lines(self.scene, self.settings, line_counts(self.lines, LINE_STEPS)))

    @cached_property
    def undefended_ap50(self) -> float:
        return undefended_curve(self.scene).mean_ap50

    @cached_property
    def vacuous_far(self) -> int:
        """Objects no position is far from. That depends on the object alone, since a patch may hang over the border."""
        scene, counted = self.scene, self.scene.counted
        image = scene.truth.image[counted]
        box, width, height = scene.truth.detections.xyxy[counted], scene.width[image], scene.height[image]
        far = [Patch(self.settings.threat.area, self.settings.threat.aspect, "far")]
        _, vacuous = decide(np.zeros((len(box), 4), np.int64), box, width, height, far, _nothing, beyond_lines=False)
        return int(vacuous.sum())

    def beside_undefended(self, steps: Sequence[Step]) -> list[Step]:
        return [replace(step, undefended_ap50=self.undefended_ap50) for step in steps]

    def named(self, steps: Sequence[Step]) -> list[Step]:
        """Steps over numbers of lines with what masks those are."""

        def masks(k: int) -> str:
            return str(self.masks) if k == self.lines else f"{k} of the lines of {self.masks}"

        return [replace(step, masks=masks(int(step.value) if step.k is None else step.k)) for step in steps]


def _nothing(_: int) -> Any:
    raise AssertionError("lines alone decide")


def line_counts(stored: int, steps: int) -> list[int]:
    """Numbers of lines to compare: evenly spaced up to all that are stored."""
    return sorted({max(1, round(stored * step / steps)) for step in range(1, steps + 1)})


@dataclass(frozen=True, slots=True)
class MeanOverT:
    """The last row of the sweep over T."""

    certified: dict[PatchLocation, float | None]
    columns: tuple[str, ...]

    def to_row(self) -> dict[str, Any]:
        certified = {f"certified_{where}": share for where, share in self.certified.items()}
        return dict.fromkeys(self.columns) | {"threshold": "mean"} | certified


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to prune, or the undefended detector (without an outcome)."""

    detector: str
    ap50: float
    outcome: DefendedOutcome | None = None
    alert_rate: float | None = None

    def certified(self, where: PatchLocation) -> float | None:
        return None if self.outcome is None else self.outcome.certified_recall()[where]

    def to_row(self) -> dict[str, Any]:
        names = ("base_threshold", "mask_threshold", "clean_recall")
        return {
            "detector": self.detector,
            "ap50": self.ap50,
            **{name: None if self.outcome is None else getattr(self.outcome, name) for name in names},
            **{f"certified_{where}": self.certified(where) for where in PATCH_LOCATIONS},
            "vacuous_far": None if self.outcome is None else self.outcome.vacuous_far,
            "false_alerts": None if self.outcome is None else self.outcome.alerts,
            "false_alert_rate": self.alert_rate,
        }


def lines(study: Study) -> list[Step]:
    return study.beside_undefended(study.by_lines)


def alpha(study: Study) -> list[Step]:
    alphas = _around([one for one in TENTHS if one >= study.mask_floor], study.settings.follow.alpha)
    return study.beside_undefended(sweeps.by_alpha(study.scene, study.settings, alphas))


def beta(study: Study) -> list[Step]:
    betas = _around(TENTHS, study.settings.follow.beta)
    kept = [one for one in betas if study.settings.following(beta=one).floor >= study.mask_floor]
    return study.beside_undefended(sweeps.by_beta(study.scene, study.settings, kept))


def filter_ioa(study: Study) -> list[Step]:
    filter_ioas = _around(FILTER_IOAS, study.settings.ioa.filter_ioa)
    return study.beside_undefended(sweeps.by_filter_ioa(study.scene, study.settings, filter_ioas))


def threshold(study: Study) -> list[Step | MeanOverT]:
    steps = sweeps.by_threshold(study.scene, study.settings)
    return [*steps, MeanOverT(sweeps.mean_over_thresholds(steps), tuple(steps[0].to_row()))]


def variants(study: Study) -> list[Variant]:
    """Every way to prune, label by label and without labels, beside the undefended detector."""
    found = evaluate(study.scene.images, study.scene.vocabulary, study.settings)
    ways = {"IoU": found.iou, "IoU, class-agnostic": found.iou_class_agnostic}
    if found.iou is not found.ours:
        ways = {"IoA": found.ours, "IoA, class-agnostic": found.class_agnostic} | ways
    pruned = [Variant(name, one.ap50, one, found.alert_rate(one)) for name, one in ways.items()]
    return [Variant("undefended", found.undefended.ap50), *pruned]


def patch_area(study: Study) -> list[Step]:
    areas = _around(sweeps.PATCH_AREAS, study.settings.threat.area)
    if study.lines is None:
        return sweeps.by_patch_area(study.scene, study.settings, areas)
    ks = line_counts(study.lines, LINE_STEPS_OF_AREAS)
    return study.named(sweeps.by_patch_area(study.scene, study.settings, areas, ks=ks))


def patch_aspect(study: Study) -> list[Step]:
    aspects = _around(sweeps.PATCH_ASPECTS, study.settings.threat.aspect)
    return sweeps.by_patch_aspect(study.scene, study.settings, aspects)


def _around(values: Sequence[float], used: float) -> list[float]:
    """The usual values and the one in use, ascending."""
    return sorted({*values, used})
