"""The rows of the figures, and what several figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from objectseeker.core.certification import decide
from objectseeker.core.recipes import Halves, Pairs, Recipe
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics import DefendedOutcome, EvaluationSettings, ImageSet, evaluate_images, sweeps
from objectseeker.metrics.curves import undefended_curve
from objectseeker.metrics.sweeps import SweepPoint

CLEAN_RECALLS = tuple(step / 20 for step in range(2, 20))
TENTHS = tuple(step / 10 for step in range(10))
FILTER_IOAS = TENTHS[3:]
LINE_STEPS = 6  # numbers of lines to compare; of 30 stored lines: 5, 10, ... 30
AREA_LINE_STEPS = 3  # the same where each number of lines has its own line in the plot: 10, 20, 30


@dataclass(frozen=True)
class FigureContext:
    """A run and the settings of its figures; what several figures need is computed once."""

    image_set: ImageSet
    settings: EvaluationSettings
    masks: Recipe  # as stored
    mask_floor: float  # the run stores no masked box with a lower score

    @property
    def lines(self) -> int | None:
        """Lines per axis, if the masks consist of lines only."""
        return self.masks.lines if isinstance(self.masks, Halves | Pairs) else None

    @cached_property
    def by_lines(self) -> list[SweepPoint]:
        assert self.lines is not None
        return self.with_mask_names(sweeps.by_lines(self.image_set, self.settings, line_counts(self.lines, LINE_STEPS)))

    @cached_property
    def undefended_ap50(self) -> float:
        return undefended_curve(self.image_set).mean_ap50

    @cached_property
    def vacuous_far(self) -> int:
        """Number of objects without any far position.

        It depends only on the object, because a patch may extend beyond the border.
        """
        image_set, counted = self.image_set, self.image_set.counted
        image = image_set.truth.image[counted]
        box, width, height = image_set.truth.detections.xyxy[counted], image_set.width[image], image_set.height[image]
        far = [Patch(self.settings.threat.area, self.settings.threat.aspect, "far")]
        _, vacuous = decide(np.zeros((len(box), 4), np.int64), box, width, height, far, _not_called, beyond_lines=False)
        return int(vacuous.sum())

    def with_undefended_ap50(self, steps: Sequence[SweepPoint]) -> list[SweepPoint]:
        return [replace(step, undefended_ap50=self.undefended_ap50) for step in steps]

    def with_mask_names(self, steps: Sequence[SweepPoint]) -> list[SweepPoint]:
        """Name the masks of steps over numbers of lines."""

        def masks(k: int) -> str:
            return str(self.masks) if k == self.lines else f"{k} of the lines of {self.masks}"

        return [replace(step, masks=masks(int(step.value) if step.k is None else step.k)) for step in steps]


def _not_called(_: int) -> Any:
    raise AssertionError("lines alone decide")


def line_counts(stored: int, steps: int) -> list[int]:
    """Return numbers of lines to compare, evenly spaced up to all stored lines."""
    return sorted({max(1, round(stored * step / steps)) for step in range(1, steps + 1)})


@dataclass(frozen=True, slots=True)
class MeanOverT:
    """The last row of the sweep over T."""

    certified: dict[PatchLocation, float | None]
    columns: tuple[str, ...]

    def to_row(self) -> dict[str, Any]:
        certified = {f"certified_{where}": share for where, share in self.certified.items()}
        return dict.fromkeys(self.columns) | {"certification_threshold": "mean"} | certified


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A variant of pruning, or the undefended detector (without an outcome)."""

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


def lines(context: FigureContext) -> list[SweepPoint]:
    return context.with_undefended_ap50(context.by_lines)


def alpha(context: FigureContext) -> list[SweepPoint]:
    alphas = _values_with(
        [one for one in TENTHS if one >= context.mask_floor], context.settings.threshold_schedule.alpha
    )
    return context.with_undefended_ap50(sweeps.by_alpha(context.image_set, context.settings, alphas))


def beta(context: FigureContext) -> list[SweepPoint]:
    betas = _values_with(TENTHS, context.settings.threshold_schedule.beta)
    kept = [one for one in betas if context.settings.following(beta=one).floor >= context.mask_floor]
    return context.with_undefended_ap50(sweeps.by_beta(context.image_set, context.settings, kept))


def filter_ioa(context: FigureContext) -> list[SweepPoint]:
    used = context.settings.rule.settings()
    if "filter_ioa" not in used:
        name = context.settings.rule.name
        raise ObjectSeekerError(f"this figure needs a rule with a filter_ioa: got the {name} rule. Leave it out.")
    filter_ioas = _values_with(FILTER_IOAS, used["filter_ioa"])
    return context.with_undefended_ap50(sweeps.by_filter_ioa(context.image_set, context.settings, filter_ioas))


def threshold(context: FigureContext) -> list[SweepPoint | MeanOverT]:
    steps = sweeps.by_threshold(context.image_set, context.settings)
    return [*steps, MeanOverT(sweeps.mean_over_thresholds(steps), tuple(steps[0].to_row()))]


def variants(context: FigureContext) -> list[Variant]:
    """Evaluate every variant of pruning, per class and class-agnostic, and the undefended detector."""
    kinds = {"IoA": context.settings} if context.settings.by_iou() is not context.settings else {}
    kinds["IoU"] = context.settings.by_iou()
    image_set = context.image_set
    found = {
        f"{kind}{suffix}": evaluate_images(image_set.images, image_set.vocabulary, one, intervals=False)
        for kind, settings in kinds.items()
        for suffix, one in (("", settings), (", class-agnostic", settings.class_agnostic()))
    }
    undefended = Variant("undefended", found["IoU"].undefended.ap50)
    rows = [Variant(name, one.defended.ap50, one.defended, one.false_alert_rate) for name, one in found.items()]
    return [undefended, *rows]


def patch_area(context: FigureContext) -> list[SweepPoint]:
    areas = _values_with(sweeps.PATCH_AREAS, context.settings.threat.area)
    if context.lines is None:
        return sweeps.by_patch_area(context.image_set, context.settings, areas)
    ks = line_counts(context.lines, AREA_LINE_STEPS)
    return context.with_mask_names(sweeps.by_patch_area(context.image_set, context.settings, areas, ks=ks))


def patch_aspect(context: FigureContext) -> list[SweepPoint]:
    aspects = _values_with(sweeps.PATCH_ASPECTS, context.settings.threat.aspect)
    return sweeps.by_patch_aspect(context.image_set, context.settings, aspects)


def _values_with(values: Sequence[float], used: float) -> list[float]:
    """Return the default values and the one in use, ascending."""
    return sorted({*values, used})
