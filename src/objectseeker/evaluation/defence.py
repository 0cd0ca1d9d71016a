"""The defended detector on a scene: its curve, and what is certified where its clean recall is what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from objectseeker.core.boxes import Bools, Floats
from objectseeker.core.rule import Rule
from objectseeker.core.threats import WHERES
from objectseeker.evaluation.certified import Proofs, certified_objects, find_proofs
from objectseeker.evaluation.curves import Curve, curve_of
from objectseeker.evaluation.replay import Candidates, find_candidates, replay
from objectseeker.evaluation.scene import Boxes, Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings


@dataclass(frozen=True, slots=True, eq=False)
class OperatingPoint:
    """The defended detector at one base_score. Verdicts are (WHERES, counted objects); recalls are percentages."""

    rule: Rule
    clean_recall: float
    recall_per_class: Floats
    certified: Bools
    vacuous: Bools

    def certified_recall(self, objects: Bools | None = None) -> dict[str, float | None]:
        """The certified share of the objects (or of some of them), where by where; None if there are none."""
        certified = self.certified if objects is None else self.certified[:, objects]
        shares = 100 * certified.mean(axis=1) if certified.shape[1] else [None] * len(WHERES)
        return {where: None if share is None else float(share) for where, share in zip(WHERES, shares, strict=True)}

    def vacuous_far(self, objects: Bools | None = None) -> int:
        """Objects (all, or of some) that count as certified against far because no position is far from them."""
        vacuous = self.vacuous[WHERES.index("far")]
        return int((vacuous if objects is None else vacuous[objects]).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Defence:
    """What all settings with the same filter_ioa, edge_factor and bound share."""

    scene: Scene
    candidates: Candidates
    proofs: Proofs

    @classmethod
    def prepare(
        cls, scene: Scene, settings: Settings, *, classwise: bool = True, floor: float | None = None
    ) -> Defence:
        """`floor`: the lowest masked score any of the settings will use; by default that of `settings`."""
        rule = settings.rule(0.0, classwise=classwise)
        candidates = find_candidates(scene, rule, settings.floor if floor is None else floor)
        return cls(scene, candidates, find_proofs(scene, rule, settings.bound))

    def curve(self, settings: Settings, base_scores: Floats = BASE_SCORES) -> Curve:
        return curve_of(self.scene, base_scores, self.additions(settings, base_scores.tolist()))

    def additions(self, settings: Settings, base_scores: Iterable[float]) -> Iterator[Boxes]:
        """What is added to the base boxes of all images at each base_score."""
        classwise = self.candidates.rule.classwise
        return replay(self.candidates, (settings.rule(score, classwise=classwise) for score in base_scores))

    def at(self, settings: Settings, curve: Curve, row: int) -> OperatingPoint:
        """Certify at one row of the curve of these settings."""
        rule = settings.rule(float(curve.base_scores[row]), classwise=self.candidates.rule.classwise)
        certified, vacuous = certified_objects(self.proofs, rule, settings.patches(), threshold=settings.threshold)
        return OperatingPoint(rule, float(curve.clean_recall[row]), curve.recall[row], certified, vacuous)

    def at_recall(self, settings: Settings, curve: Curve) -> OperatingPoint | None:
        """Certify at the highest base_score that reaches `settings.clean_recall`; None if none does."""
        row = curve.row_at_recall(settings.clean_recall)
        return None if row is None else self.at(settings, curve, row)
