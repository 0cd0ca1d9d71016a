"""Attacks that hide objects: positions, restarts and tactics, judged by the real pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectseeker.attack.metrics import (
    ATTACK_LEGEND,
    EFFECT_KINDS,
    Row,
    attack_rows,
    attack_summary,
    recall_bounds,
)
from objectseeker.attack.optimizers import attack_by_gradients, attack_by_random_search
from objectseeker.attack.pipeline import (
    ATTACKED_SYSTEMS,
    AttackedSystem,
    AttackReport,
    FoundStatus,
    PatchTask,
    Pipeline,
    Position,
    Progress,
    Solution,
    Target,
    fits,
    initial_patches,
    no_progress,
    progress_of_part,
    repeats,
)
from objectseeker.attack.placement import PositionCertificates, drawn_size, find_leaking_views
from objectseeker.attack.setup import AttackSetup
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedImage:
    """One finished adversarial image, evaluated by the real pipeline.

    `base` are the detector's boxes on it, and `boxes` the output of the attacked system: the same, or the defense's.
    `leaking_views` counts the views that changed although their masks remove the patches; every certificate rests on
    that number being 0. `loss_curves` are those of all restarts.
    """

    solution: Solution
    image: Image
    base: Detections
    boxes: Detections
    found: FoundStatus
    leaking_views: int = 0
    loss_curves: tuple[tuple[float, ...], ...] = ()

    @property
    def task(self) -> PatchTask:
        return self.solution.task

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as in attack.json."""
        return self.task.to_dict() | {
            "proven_at_position": self.task.position.proven,
            "loss": self.solution.loss,
            "first_loss": next((curve[0] for curve in self.loss_curves if curve), None),
            "restarts": len(self.loss_curves),
        }


@dataclass(frozen=True, slots=True, eq=False)
class HidingOutcome:
    """The outcome for one object: per attacked system the image of the strongest attack, or None."""

    target: Target
    certified: bool
    vacuous: bool
    clean: FoundStatus
    on_undefended: EvaluatedImage | None
    on_defended: EvaluatedImage | None

    def attack_on(self, system: AttackedSystem) -> EvaluatedImage | None:
        return self.on_undefended if system == "undefended" else self.on_defended

    @property
    def attacks(self) -> dict[AttackedSystem, EvaluatedImage]:
        """The images of both attacks, as far as there were any."""
        return {system: image for system in ATTACKED_SYSTEMS if (image := self.attack_on(system)) is not None}

    def skip_reason(self, system: AttackedSystem) -> str | None:
        """Return why there was no attack on this side; None if there was one."""
        if self.attack_on(system) is not None:
            return None
        return "no position is allowed" if getattr(self.clean, system) else "not found without a patch"

    @property
    def worst_for_undefended(self) -> EvaluatedImage | None:
        """The image that counts for the undefended detector: of both attacks, the first that hides the object."""
        if self.on_undefended is None:
            return None
        return next((image for image in self.attacks.values() if not image.found.undefended), self.on_undefended)

    @property
    def undefended_survived(self) -> bool | None:
        """Return whether the undefended detector finds the object under the worst of all patches tried."""
        worst = self.worst_for_undefended
        return None if worst is None else worst.found.undefended

    @property
    def undefended_fitting_survived(self) -> bool | None:
        if self.on_undefended is None or not self.clean.undefended_fitting:
            return None
        return all(image.found.undefended_fitting for image in self.attacks.values())

    @property
    def defended_survived(self) -> bool | None:
        return None if self.on_defended is None else self.on_defended.found.defended

    @property
    def leaking_views(self) -> int:
        """Number of views that changed although their masks remove the patches."""
        return 0 if self.on_defended is None else self.on_defended.leaking_views

    @property
    def guarantee_broken(self) -> bool:
        """Return whether the object was hidden though certified or proven there, or a view leaks."""
        hidden = self.defended_survived is False
        proven = self.certified or (self.on_defended is not None and self.on_defended.task.position.proven)
        return (hidden and proven) or self.leaking_views > 0

    def effects(self, pipeline: Pipeline) -> dict[AttackedSystem, dict[str, Any] | None]:
        """Return the effect of the worst patch on each system, in the image that decides the outcome.

        The object is found; or it is misclassified: a box of another class fits it (IoU 0.5) that was not there without
        the patch; or, if neither, it has disappeared. A box is fabricated if it neither finds the object nor fits it,
        nor was there without the patch (a box of its class with an IoU of 0.5). None where there was no attack.
        Certificates exclude that a certified object disappears or is misclassified; they do not cover fabricated boxes.
        """
        worst, defended, clean = self.worst_for_undefended, self.on_defended, self.target.observation
        base, output = pipeline.base_boxes(clean), pipeline.rule.prune(clean)
        return {
            "undefended": None if worst is None else self._effect(pipeline, worst.base, base),
            "defended": None if defended is None else self._effect(pipeline, defended.boxes, output),
        }

    def _effect(self, pipeline: Pipeline, boxes: Detections, clean: Detections) -> dict[str, Any]:
        finds, fitting = pipeline.finding_boxes(self.target, boxes), fits(self.target, boxes)
        known = repeats(boxes, clean)  # there without the patch: a hidden horse was not misclassified as its rider
        renamed = fitting & ~pipeline.has_label(self.target, boxes) & ~known
        still_found, misclassified, disappeared = EFFECT_KINDS
        return {
            "object": still_found if finds.any() else misclassified if renamed.any() else disappeared,
            "fabricated": int(np.count_nonzero(~(finds | fitting | known))),
        }

    def to_dict(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return plain values, as in attack.json."""
        return self.target.to_dict() | {
            "certified": self.certified,
            "vacuous": self.vacuous,
            "found_undefended": self.clean.undefended,
            "found_defended": self.clean.defended,
            "undefended_survived": self.undefended_survived,
            "undefended_survived_iou50": self.undefended_fitting_survived,
            "defended_survived": self.defended_survived,
            "guarantee_broken": self.guarantee_broken,
            "leaking_views": self.leaking_views,
            "skip_reason": {system: self.skip_reason(system) for system in ATTACKED_SYSTEMS},
            **{
                f"attack_on_{system}": None if (image := self.attack_on(system)) is None else image.to_dict()
                for system in ATTACKED_SYSTEMS
            },
            "effects": self.effects(pipeline),
        }


class Hiding:
    """The goal to hide objects."""

    def attack(
        self, setup: AttackSetup, targets: Sequence[Target], on_progress: Progress = no_progress
    ) -> list[HidingOutcome]:
        """Attack every target, first undefended, then defended; outcomes in the order of the targets."""
        pipeline = setup.pipeline
        statuses = [pipeline.judge_observation(target, target.observation) for target in targets]
        certificates = [pipeline.certify(target, setup.patch) for target in targets]
        images: dict[AttackedSystem, dict[int, EvaluatedImage]] = {}
        for part, system in enumerate(ATTACKED_SYSTEMS):
            tasks = [
                task
                for target, status in zip(targets, statuses, strict=True)
                if getattr(status, system)
                for task in plan_tasks(setup, target, system)
            ]
            report = progress_of_part(on_progress, part, len(ATTACKED_SYSTEMS))
            optimize = attack_by_random_search if setup.white is None else attack_by_gradients
            solutions = optimize(setup, tasks, system, report) if tasks else []
            images[system] = evaluate_solutions(pipeline, solutions, system)
        return [
            HidingOutcome(
                target, *certificate, status, *(images[system].get(id(target)) for system in ATTACKED_SYSTEMS)
            )
            for target, certificate, status in zip(targets, certificates, statuses, strict=True)
        ]

    def measure(self, rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return success rates, and recall of both systems between its bounds."""
        return attack_summary(rows), recall_bounds(rows)

    def report(self, summary: dict[str, Any], recall: dict[str, Any] | None, rows: Sequence[Row]) -> AttackReport:
        hidden, reasons = summary["hidden_certified"], Counter(row["skip_reason"]["defended"] for row in rows)
        skipped = [f"{count} objects not attacked: {reason}" for reason, count in reasons.items() if reason]
        return AttackReport(
            f"certified objects hidden: {hidden['count']} of {hidden['total']}",
            attack_rows(recall or {}, summary["effects"]),
            [ATTACK_LEGEND, *skipped],
            "hidden where proven, or a view that removes the patch changed "
            f"({summary['objects_with_leaking_views']} objects)",
        )


def plan_tasks(setup: AttackSetup, target: Target, system: AttackedSystem) -> list[PatchTask]:
    """Return the restarts for one object: none if the threat model allows no position."""
    patch, budget = setup.patch, setup.budget
    rng = np.random.default_rng([setup.seed, target.number, *target.image_id.encode()])
    count, size, proven = budget.restarts, drawn_size(target, patch), list[Position]()
    certificates = PositionCertificates.from_target(setup.pipeline, target, size)
    if system == "undefended":
        positions = certificates.nearest(patch, count, rng)
    else:
        if immune_count := int(budget.immune_view_fraction * count):
            proven = certificates.weakest(patch, immune_count, rng, proven_only=True)
        positions = certificates.weakest(patch, count - len(proven), rng) + proven
    return [
        PatchTask(
            target,
            position,
            initial_patches(target, position, size, restart, rng),
            relabels=system == "defended" and restart > 0 and restart == count - 1,
            attacks_immune_views=restart >= count - len(proven),
        )
        for restart, position in enumerate(positions)
    ]


def evaluate_solutions(
    pipeline: Pipeline, solutions: Sequence[Solution], system: AttackedSystem
) -> dict[int, EvaluatedImage]:
    """Return the image that counts for each target, by the target's id().

    The solutions of each target are evaluated by the real pipeline, the most promising first, until one hides it.
    Patches where the object is proven go first: if one of them hides it, or a view leaks, that must be reported.
    """

    def promise(solution: Solution) -> tuple[bool, bool, float]:
        return system == "defended" and not solution.task.position.proven, not solution.hidden, solution.loss

    def severity(image: EvaluatedImage) -> tuple[bool, bool, bool]:
        hides = not getattr(image.found, system)
        return system == "defended" and hides and image.task.position.proven, image.leaking_views > 0, hides

    worst: dict[int, EvaluatedImage] = {}
    curves: dict[int, tuple[tuple[float, ...], ...]] = {}
    for solution in sorted(solutions, key=promise):
        key = id(solution.task.target)
        curves[key] = (*curves.get(key, ()), solution.loss_curve)
        if key not in worst or getattr(worst[key].found, system):
            image = evaluate(pipeline, solution, system)
            if key not in worst or severity(image) > severity(worst[key]):
                worst[key] = image
    return {key: replace(image, loss_curves=curves[key]) for key, image in worst.items()}


def evaluate(pipeline: Pipeline, solution: Solution, system: AttackedSystem) -> EvaluatedImage:
    """Evaluate a solution by the real pipeline; the undefended detector alone needs no masked views."""
    task, image = solution.task, solution.task.draw(solution.patches)
    if system == "undefended":
        (detections,) = pipeline.seeker.detector([image])
        base = detections.with_min_score(pipeline.rule.base_threshold)
        return EvaluatedImage(solution, image, base, base, pipeline.judge(task.target, base))
    observation = pipeline.observe(image)
    base, output = pipeline.base_boxes(observation), pipeline.rule.prune(observation)
    leaking = len(find_leaking_views(task.target, observation, task.position, task.patch_size))
    return EvaluatedImage(solution, image, base, output, pipeline.judge(task.target, base, output), leaking)
