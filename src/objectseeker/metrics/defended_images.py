"""A defended detector on an image set: its curve, and its certificates at one operating point.

Every rule has the same face here. Nothing is computed before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.joint import JointCertificate
from objectseeker.core.observation import Observation
from objectseeker.core.rules import IouRule, PruningRule, Rule
from objectseeker.core.threats import ALL_LOCATIONS, PATCH_LOCATIONS, Patch, PatchLocation, ThreatModel
from objectseeker.metrics.average_precision import Curve, defended_curve
from objectseeker.metrics.certified import ProofTable, build_proof_table, certified_objects, joint_certificates
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.replay import PruneEveryImage, Replay, find_candidates, find_iou_candidates
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings, describe_fppi


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DefendedOutcome:
    """The defended detector: the AP of its curve, and its operating point.

    What depends on the point is None if the curve does not reach what was requested. Recalls are in percent.

    Attributes:
        settings: What was measured.
        curve: By the protocol.
        rule: The rule at the operating point.
        clean_recall: There, the mean over classes.
        recall_per_class: Likewise.
        fppi: False positives per image there.
        certified: Objects that are certified there: (locations, classes).
        vacuous: Objects that are certified because no position is allowed.
        remaining: Objects that are guaranteed to remain under one patch at any position, where counted.
        guaranteed_boxes: The boxes per image that cover them at least, where counted.
        alerts: Clean images to whose base boxes masks add a box, where counted.
    """

    settings: EvaluationSettings
    curve: Curve
    rule: PruningRule | None = None
    clean_recall: float | None = None
    recall_per_class: Floats | None = None
    fppi: float | None = None
    certified: Ints | None = None
    vacuous: Ints | None = None
    remaining: int | None = None
    guaranteed_boxes: float | None = None
    alerts: int | None = None

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def max_clean_recall(self) -> float:
        return self.curve.max_clean_recall

    @property
    def base_threshold(self) -> float | None:
        return None if self.rule is None else self.rule.base_threshold

    @property
    def joint_certified_recall(self) -> float | None:
        """Return the joint certificate: the percentage of objects guaranteed to remain under any single patch."""
        objects = int(self.curve.objects.sum())
        return None if self.remaining is None or not objects else 100 * (self.remaining / objects)

    @property
    def vacuous_far(self) -> int | None:
        """Count the objects that are certified far because no position is far."""
        return None if self.vacuous is None else int(self.vacuous[PATCH_LOCATIONS.index("far")].sum())

    def certified_recall(self, c: int | None = None) -> dict[PatchLocation, float | None]:
        """Return the certified share of all objects, or of class `c`, by location; None if there are none."""
        if self.certified is None:
            return dict.fromkeys(self.settings.threat.locations)
        chosen = slice(None) if c is None else slice(c, c + 1)
        return shares(self.certified[:, chosen].sum(axis=1), int(self.curve.objects[chosen].sum()))

    def caveat(self) -> str | None:
        """Say why there is no operating point."""
        if self.rule is not None:
            return None
        if self.settings.fppi is not None:
            return (
                f"{describe_fppi(self.settings.fppi)} cannot be reached: there are {float(self.curve.fppi[-1]):.3g} "
                f"even at the highest base_threshold, {self.curve.base_thresholds[-1]:g}; allow more with --fppi"
            )
        requested, reached = self.settings.clean_recall or 0.0, self.max_clean_recall
        return f"clean recall {requested:.0%} is not reached, at most {reached:.1f} %: lower --clean-recall"

    def at_point(self) -> dict[str, float | None]:
        """The thresholds, clean recall and FPPI at the operating point."""
        thresholds = ("base_threshold", "mask_threshold", "evidence_threshold")
        names = ("clean_recall", "max_clean_recall", "fppi")
        return {name: getattr(self.rule, name, None) for name in thresholds} | {
            name: getattr(self, name) for name in names
        }

    def to_row(self) -> dict[str, Any]:
        """Return the columns that every sweep has."""
        certified = {f"certified_{location}": share for location, share in self.certified_recall().items()}
        return {"ap50": self.ap50, **self.at_point(), **certified, "vacuous_far": self.vacuous_far}


@dataclass(frozen=True, eq=False)
class DefendedImageSet:
    """A defended detector on an image set, for `settings` up to thresholds and power."""

    image_set: ImageSet
    settings: EvaluationSettings
    floor: float  # the lowest masked score any of the settings will use

    @classmethod
    def from_settings(
        cls, image_set: ImageSet, settings: EvaluationSettings, *, floor: float | None = None
    ) -> DefendedImageSet:
        return cls(
            image_set, settings, settings.min_mask_score if floor is None else min(floor, settings.min_mask_score)
        )

    @cached_property
    def replay(self) -> Replay:
        """Return the replay of pruning at many base thresholds."""
        rule: Any = self.settings.rule  # of a kind that tells its class
        options: dict[str, Any] = {"floor": self.floor, "max_base_threshold": self.max_base_threshold}
        match rule.kind:
            case Rule.kind:
                return find_candidates(self.observations, rule, **options)
            case IouRule.kind:
                return find_iou_candidates(self.observations, rule, mask_floor=self.mask_floor, **options)
        return PruneEveryImage(self.observations)

    @property
    def observations(self) -> list[Observation]:
        return [image.observation for image in self.image_set.images]

    @property
    def mask_floor(self) -> float:
        """The lowest mask_threshold that any of the settings will use."""
        lowest = min(self.settings.rule.mask_threshold, self.settings.on_curve(0.0).mask_threshold)
        return lowest if self.floor == self.settings.min_mask_score else self.floor

    @property
    def max_base_threshold(self) -> float:
        """The highest base_threshold of a rule whose masked scores lie below it: those on the curve never do."""
        rule = self.settings.rule
        return rule.base_threshold if rule.min_mask_score < rule.base_threshold else 0.0

    @cached_property
    def proofs(self) -> ProofTable:
        return build_proof_table(self.image_set, self.settings.rule, self.settings.threat.bound, floor=self.floor)

    def curve(self, settings: EvaluationSettings, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
        return self._curve(base_thresholds, [settings.on_curve(score) for score in base_thresholds.tolist()])

    def recovered_boxes(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        """Return each rule's additions to the base boxes of all images, in the detector's labels."""
        return self.replay.replay(rules)

    def recovered_in_dataset(self, rules: Iterable[PruningRule]) -> Iterator[BoxTable]:
        """Return each rule's additions to the base boxes of all images, in the dataset's labels."""
        return (boxes.map_to_dataset(self.image_set.label_map) for boxes in self.recovered_boxes(rules))

    def certified(
        self, rule: PruningRule, threat: ThreatModel, patches: list[Patch] | None = None
    ) -> tuple[Bools, Bools]:
        """Return `certified` and `vacuous` (locations or `patches`, counted objects)."""
        return certified_objects(
            self.proofs, rule, patches or threat.patches(), certification_threshold=threat.certification_threshold
        )

    def jointly_certified(self, rule: PruningRule, threat: ThreatModel) -> list[JointCertificate]:
        """The joint certificate of every image against the patch of a threat, anywhere."""
        (found,) = joint_certificates(
            self.proofs, rule, [threat.anywhere()], certification_threshold=threat.certification_threshold
        )
        return found

    def at(self, settings: EvaluationSettings, rule: PruningRule) -> DefendedOutcome:
        """Certify one rule, on the curve of these settings or not; the curve is that of the rule alone."""
        return self._outcome(settings, rule, self._curve(np.array([rule.base_threshold]), [rule]), 0)

    def at_operating_point(self, settings: EvaluationSettings, curve: Curve) -> DefendedOutcome:
        """Certify where these settings say on their curve."""
        if settings.fixed_rule is not None:
            return replace(self.at(settings, settings.fixed_rule), curve=curve)
        row = operating_row_of(settings, curve)
        if row is None:
            return DefendedOutcome(settings=settings, curve=curve)
        return self._outcome(settings, settings.on_curve(float(curve.base_thresholds[row])), curve, row)

    def _curve(self, base_thresholds: Floats, rules: Iterable[PruningRule]) -> Curve:
        return defended_curve(self.image_set, base_thresholds, self.recovered_in_dataset(rules))

    def _outcome(self, settings: EvaluationSettings, rule: PruningRule, curve: Curve, row: int) -> DefendedOutcome:
        certified, vacuous = (counted(self.image_set, verdicts) for verdicts in self.certified(rule, settings.threat))
        return DefendedOutcome(
            settings=settings,
            curve=curve,
            rule=rule,
            clean_recall=float(curve.clean_recall[row]),
            recall_per_class=curve.recall[row],
            fppi=float(curve.fppi[row]),
            certified=certified,
            vacuous=vacuous,
        )


def operating_row_of(settings: EvaluationSettings, curve: Curve) -> int | None:
    """Return the row of a curve at the settings' operating point, without a fixed rule; None if nowhere."""
    if settings.fppi is not None:
        return curve.row_at_fppi(settings.fppi, settings.base_floor)
    assert settings.clean_recall is not None
    return curve.row_at_recall(settings.clean_recall)


def counted(image_set: ImageSet, verdicts: Bools) -> Ints:
    """Verdicts (patches, counted objects) as counts (patches, classes)."""
    label, classes = image_set.ground_truth.detections.label[image_set.counted], len(image_set.names)
    return np.stack([np.bincount(label[holds], minlength=classes) for holds in verdicts])


def shares(certified: Iterable[float], objects: int) -> dict[PatchLocation, float | None]:
    """Counts, where by where, as percentages of the objects; None if there are none."""
    return {
        where: 100 * (float(count) / objects) if objects else None
        for where, count in zip(ALL_LOCATIONS, certified, strict=False)  # rows may end before "outside"
    }
