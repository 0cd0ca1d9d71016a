"""The falsifier: attack objects with and without the defense, let the real pipeline judge, look at certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target, Verdict, draw
from objectseeker.attack.placement import Position, nearest_positions, removing, weakest_positions
from objectseeker.attack.plan import Budget, Goal, PatchTask, Progress, Solution, start_pixels
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.threats import Patch

GOALS: tuple[Goal, ...] = ("detector", "defense")


class Attacker(Protocol):
    """Optimizes patches: `gradient.attack` with its white box, or `search.attack`."""

    def __call__(
        self,
        pipeline: Pipeline,
        tasks: Sequence[PatchTask],
        goal: Goal,
        budget: Budget,
        *,
        seed: int,
        on_progress: Progress,
    ) -> list[Solution]: ...


@dataclass(frozen=True, slots=True, eq=False)
class JudgedImage:
    """One finished adversarial image before the real pipeline: where the patches lie, and what is still found.

    `base` are the detector's boxes on it, and `boxes` the output of what was attacked: the same, or the defense's;
    `defended` is None where that was not asked. `leaks` are the views that changed though their masks remove the
    patches: what every certificate rests on is that there is none. `curves` are the losses of all restarts.
    """

    image: Image
    base: Detections
    boxes: Detections
    position: Position
    size: tuple[int, int]
    loss: float
    undefended: bool
    undefended_fit: bool
    defended: bool | None = None
    leaks: int = 0
    curves: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one object, in the image that came furthest on each side; None where it was not attacked."""

    target: Target
    certified: bool
    vacuous: bool
    clean: Verdict
    on_detector: JudgedImage | None
    on_defense: JudgedImage | None

    def not_attacked(self, goal: Goal) -> str | None:
        """Why there was no attack on this side; None if there was one."""
        if (self.on_detector if goal == "detector" else self.on_defense) is not None:
            return None
        if not (self.clean.undefended if goal == "detector" else self.clean.defended):
            return "not found without a patch"
        return "no position is allowed"

    @property
    def worst_for_detector(self) -> JudgedImage | None:
        """The image that counts for the undefended detector: of both attacks, the first that hides the object."""
        if self.on_detector is None:
            return None
        tried = [one for one in (self.on_detector, self.on_defense) if one is not None]
        return next((one for one in tried if not one.undefended), self.on_detector)

    @property
    def undefended_survived(self) -> bool | None:
        """Does the undefended detector still find the object, under the worst of all patches tried?"""
        worst = self.worst_for_detector
        return None if worst is None else worst.undefended

    @property
    def undefended_fit_survived(self) -> bool | None:
        judged = [one.undefended_fit for one in (self.on_detector, self.on_defense) if one is not None]
        return all(judged) if self.on_detector is not None and self.clean.undefended_fit else None

    @property
    def defense_survived(self) -> bool | None:
        return None if self.on_defense is None else self.on_defense.defended

    @property
    def leaks(self) -> int:
        """How many views changed though their masks remove the patches."""
        return 0 if self.on_defense is None else self.on_defense.leaks

    @property
    def broken(self) -> bool:
        """A guarantee was broken: hidden though certified, or at a position where it is proven; or a view leaks."""
        hidden = self.defense_survived is False
        proven = self.certified or (self.on_defense is not None and self.on_defense.position.proven)
        return (hidden and proven) or self.leaks > 0


def falsify(
    attacker: Attacker,
    pipeline: Pipeline,
    targets: Sequence[Target],
    patch: Patch,
    budget: Budget,
    *,
    defense_budget: Budget | None = None,
    seed: int = 0,
    judged: int | None = None,
    on_progress: Progress = lambda done, total: None,
) -> list[Outcome]:
    """Attack every target, first the detector alone, then the defense; the outcomes in the order of the targets.

    The restarts of each target go before the real pipeline, the most promising first, `judged` of them at most; the
    first that hides the object counts.
    """
    verdicts = [pipeline.judge(target, target.observation) for target in targets]
    certificates = [pipeline.certified(target, patch) for target in targets]

    images: dict[Goal, dict[int, JudgedImage]] = {}
    for part, goal in enumerate(GOALS):
        seen = [v.undefended if goal == "detector" else v.defended for v in verdicts]
        spent = budget if goal == "detector" else defense_budget or budget
        tasks = [
            task
            for target, there in zip(targets, seen, strict=True)
            if there
            for task in plan_tasks(pipeline, target, patch, goal, spent, seed)
        ]

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, 2 * total)

        solutions = attacker(pipeline, tasks, goal, spent, seed=seed, on_progress=report) if tasks else []
        images[goal] = judge_solutions(pipeline, solutions, goal, judged)
    return [
        Outcome(target, *certificate, verdict, images["detector"].get(id(target)), images["defense"].get(id(target)))
        for target, certificate, verdict in zip(targets, certificates, verdicts, strict=True)
    ]


def plan_tasks(
    pipeline: Pipeline, target: Target, patch: Patch, goal: Goal, budget: Budget, seed: int
) -> list[PatchTask]:
    """The restarts for one object: none if the threat allows no position."""
    rng = np.random.default_rng([seed, target.number, *target.name.encode()])
    count = budget.restarts
    if goal == "detector":
        positions, doubting = nearest_positions(pipeline, target, patch, count, rng), 0
    else:
        doubting = int(budget.distrust * count)
        doubted = weakest_positions(pipeline, target, patch, doubting, rng, proven=True) if doubting else []
        doubting = len(doubted)
        positions = weakest_positions(pipeline, target, patch, count - doubting, rng) + doubted
    return [
        PatchTask(
            target,
            position,
            start_pixels(target, position, patch.size(*target.size), restart, rng),
            relabel=goal == "defense" and restart > 0 and restart == count - 1,
            distrust=restart >= count - doubting,
        )
        for restart, position in enumerate(positions)
    ]


def judge_solutions(
    pipeline: Pipeline, solutions: Sequence[Solution], goal: Goal, judged: int | None = None
) -> dict[int, JudgedImage]:
    """The image that counts for each target, by the target's id().

    Patches where the object is proven go first: if one of them hides it, or a view leaks, that is what has to be
    reported.
    """

    def hope(solution: Solution) -> tuple[bool, bool, float]:
        return goal == "defense" and not solution.task.position.proven, not solution.hidden, solution.loss

    by_target: dict[int, list[Solution]] = {}
    for solution in sorted(solutions, key=hope):
        by_target.setdefault(id(solution.task.target), []).append(solution)
    curves = {key: tuple(solution.curve for solution in of_target) for key, of_target in by_target.items()}
    most = max(map(len, by_target.values()), default=0)
    worst: dict[int, JudgedImage] = {}
    for turn in range(most if judged is None else min(judged, most)):
        # The best of every target that is still found, then the second best, and so on.
        chosen = {
            key: of_target[turn]
            for key, of_target in by_target.items()
            if turn < len(of_target) and (key not in worst or not _hides(worst[key], goal))
        }
        for key, image in zip(chosen, _judged(pipeline, list(chosen.values()), goal), strict=True):
            if key not in worst or _rank(image, goal) > _rank(worst[key], goal):
                worst[key] = replace(image, curves=curves[key])
    return worst


def _hides(image: JudgedImage, goal: Goal) -> bool:
    return not (image.undefended if goal == "detector" else image.defended)


def _rank(image: JudgedImage, goal: Goal) -> tuple[bool, bool, bool]:
    """What has to be reported first is highest."""
    hides = _hides(image, goal)
    return goal == "defense" and hides and image.position.proven, image.leaks > 0, hides


def _judged(pipeline: Pipeline, solutions: Sequence[Solution], goal: Goal) -> Iterator[JudgedImage]:
    """Each solution before the real pipeline; images for the undefended detector go through it in batches."""
    size = int(getattr(pipeline.seeker.detector, "batch", pipeline.seeker.batch))
    for start in range(0, len(solutions), size):
        some = solutions[start : start + size]
        images = [draw(s.task.target.image, s.patches, s.task.position.corners) for s in some]
        if goal == "detector":
            for solution, image, base in zip(some, images, pipeline.seeker.detector(images), strict=True):
                yield _judged_base(pipeline, solution, image, base)
        else:
            for solution, image in zip(some, images, strict=True):
                observation = pipeline.observe(image)
                boxes = pipeline.output(pipeline.rule, observation)
                task = solution.task
                yield replace(
                    _judged_base(pipeline, solution, image, observation.base),
                    boxes=boxes,
                    defended=pipeline.finds(task.target, boxes),
                    leaks=len(leaking_views(task.target, observation, task.position, task.size)),
                )


def _judged_base(pipeline: Pipeline, solution: Solution, image: Image, base: Detections) -> JudgedImage:
    task = solution.task
    boxes = base.at_least(pipeline.rule.base_threshold)
    found = pipeline.judge_base(task.target, boxes)
    return JudgedImage(image, boxes, boxes, task.position, task.size, solution.loss, *found)


def leaking_views(target: Target, attacked: Observation, position: Position, size: tuple[int, int]) -> list[int]:
    """The masks that remove all patches, but under which another image was seen than without them."""
    clean = target.observation
    removed = removing(clean.masks, np.array(position.corners), size).all(axis=0)
    return [m for m in np.flatnonzero(removed).tolist() if clean.masked[m] != attacked.masked[m]]
