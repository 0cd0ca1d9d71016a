"""What a detector costs and brings at an operating point: undefended and defended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from objectseeker.core.boxes import Floats
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation
from objectseeker.metrics.curves import Curve
from objectseeker.metrics.defended_images import OperatingPoint
from objectseeker.metrics.settings import EvaluationSettings, at_most


@dataclass(frozen=True, slots=True)
class UndefendedPoint:
    """The undefended detector at the operating point that was asked for: where it reaches that itself, or at the same
    base_threshold."""

    base_threshold: float
    clean_recall: float
    fppi: float

    @classmethod
    def on(cls, curve: Curve, row: int) -> UndefendedPoint:
        return cls(*(float(of[row]) for of in (curve.base_thresholds, curve.clean_recall, curve.fppi)))


@dataclass(frozen=True, slots=True, eq=False)
class Undefended:
    """The detector as it is: its curve by the paper's protocol, and COCO's AP50 for every class."""

    curve: Curve
    coco: Floats
    point: UndefendedPoint | None

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def ap50_coco(self) -> float:
        return float(self.curve.scene.macro(self.coco))


@dataclass(frozen=True, slots=True, eq=False)
class DefendedOutcome:
    """What a defended detector costs and brings: the AP of its curve, and its operating point.

    The point is None, and so is all that depends on it, if what was asked for is reached nowhere on the curve.
    """

    settings: EvaluationSettings
    curve: Curve
    point: OperatingPoint | None
    alerts: int | None = None  # clean images there to whose base boxes something is added, where counted

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def highest_clean_recall(self) -> float:
        return self.curve.highest_clean_recall

    @property
    def base_threshold(self) -> float | None:
        return None if self.point is None else self.point.ioa.base_threshold

    @property
    def mask_threshold(self) -> float | None:
        return None if self.point is None else self.point.ioa.mask_threshold

    @property
    def evidence_threshold(self) -> float | None:
        return None if self.point is None else self.point.ioa.evidence_threshold

    @property
    def clean_recall(self) -> float | None:
        return None if self.point is None else self.point.clean_recall

    @property
    def fppi(self) -> float | None:
        return None if self.point is None else self.point.fppi

    @property
    def vacuous_far(self) -> int | None:
        return None if self.point is None else self.point.vacuous_far()

    @property
    def joint_certified_recall(self) -> float | None:
        return None if self.point is None else self.point.joint_certified_recall

    def certified_recall(self, c: int | None = None) -> dict[PatchLocation, float | None]:
        """Of all objects, or of those of class `c`, where by where."""
        return dict.fromkeys(PATCH_LOCATIONS) if self.point is None else self.point.certified_recall(c)

    def recall(self, c: int) -> float | None:
        """The clean recall of one class."""
        return None if self.point is None else float(self.point.recall_per_class[c])

    def remark(self) -> str | None:
        """Why there is no point, or why it is at another clean recall than the usual one."""
        if self.settings.fppi is not None and self.point is None:
            fewest = float(self.curve.fppi[-1])
            return (
                f"{at_most(self.settings.fppi)} cannot be reached: there are {fewest:.3g} even at the "
                f"highest base_threshold, {self.curve.base_thresholds[-1]:g}; allow more with --fppi"
            )
        asked, reached = self.settings.clean_recall, self.highest_clean_recall
        if asked is None or (self.point is not None and not self.settings.clean_recall_is_default):
            return None
        if self.point is None:
            return f"clean recall {asked:.0%} is not reached, at most {reached:.1f} %: ask for less with --clean-recall"
        if self.curve.row_at_recall(asked) is None:
            return f"clean recall {asked:.0%} is not reached: measured at the highest that is, {reached:.1f} %"
        return None

    def operating_row(self) -> dict[str, float | None]:
        """Where on its curve the detector was certified."""
        names = (
            "base_threshold",
            "mask_threshold",
            "evidence_threshold",
            "clean_recall",
            "highest_clean_recall",
            "fppi",
        )
        return {name: getattr(self, name) for name in names}

    def to_row(self) -> dict[str, Any]:
        """The columns that every sweep has."""
        certified = {f"certified_{where}": share for where, share in self.certified_recall().items()}
        return {"ap50": self.ap50, **self.operating_row(), **certified, "vacuous_far": self.vacuous_far}
