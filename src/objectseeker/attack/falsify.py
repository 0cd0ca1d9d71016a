"""The falsifier: attack objects with and without the defence, let the real pipeline judge, look at certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target, Verdict, paste
from objectseeker.attack.plan import Budget, Goal, Job, Progress, Solution, start_pixels
from objectseeker.attack.weakest import Position, nearest_positions, weakest_positions
from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError

GOALS: tuple[Goal, ...] = ("detector", "defence")


class Attacker(Protocol):
    """Optimises patches: `gradient.attack` with its white box, or `search.attack`."""

    def __call__(
        self,
        pipeline: Pipeline,
        jobs: Sequence[Job],
        goal: Goal,
        budget: Budget,
        *,
        seed: int,
        on_progress: Progress,
    ) -> list[Solution]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """The attack on one object that came furthest: the image it ends in, where the patch lies, what is still found.

    `found` are the detector's boxes, or the defence's where that was attacked; `defended` is None where it was not
    asked. `curves` are the losses of all restarts.
    """

    image: Image
    found: Detections
    position: Position
    size: tuple[int, int]
    loss: float
    vanilla: bool
    vanilla_fit: bool
    defended: bool | None = None
    curves: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one object. An attack is None where there was nothing to attack: not found, or no position."""

    target: Target
    certified: bool
    vacuous: bool
    clean: Verdict
    on_detector: Attempt | None
    on_defence: Attempt | None

    @property
    def vanilla_survived(self) -> bool | None:
        """Does the undefended detector still find the object, under the worst of all patches tried?"""
        found = [attempt.vanilla for attempt in (self.on_detector, self.on_defence) if attempt is not None]
        return all(found) if self.on_detector is not None else None

    @property
    def vanilla_fit_survived(self) -> bool | None:
        found = [attempt.vanilla_fit for attempt in (self.on_detector, self.on_defence) if attempt is not None]
        return all(found) if self.on_detector is not None and self.clean.vanilla_fit else None

    @property
    def defence_survived(self) -> bool | None:
        return None if self.on_defence is None else self.on_defence.defended

    @property
    def broken(self) -> bool:
        """A guarantee was broken: hidden though certified, or at a position where it is proven."""
        hidden = self.defence_survived is False
        return hidden and (self.certified or (self.on_defence is not None and self.on_defence.position.proven))


def falsify(
    attacker: Attacker,
    pipeline: Pipeline,
    targets: Sequence[Target],
    patch: Patch,
    budget: Budget,
    *,
    defence_budget: Budget | None = None,
    seed: int = 0,
    judged: int | None = None,
    on_progress: Progress = lambda done, total: None,
) -> list[Outcome]:
    """Attack every target, first the detector alone, then the defence; the outcomes in the order of the targets.

    The restarts of each target go before the real pipeline, the most promising first, `judged` of them at most; the
    first that hides the object counts.
    """
    if patch.count != 1:
        raise ObjectSeekerError(f"the attack draws one patch at a time, got count={patch.count!r}")
    verdicts = [pipeline.judge(target, target.observation) for target in targets]
    certificates = [pipeline.rule.certify(t.observation, t.truth, patch, threshold=pipeline.threshold) for t in targets]

    attempts: dict[Goal, dict[int, Attempt]] = {}
    for part, goal in enumerate(GOALS):
        found = [v.vanilla if goal == "detector" else v.defended for v in verdicts]
        spent = budget if goal == "detector" else defence_budget or budget
        jobs = [
            job
            for target, there in zip(targets, found, strict=True)
            if there
            for job in plan_jobs(pipeline, target, patch, goal, spent.restarts, seed)
        ]

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, 2 * total)

        solutions = attacker(pipeline, jobs, goal, spent, seed=seed, on_progress=report) if jobs else []
        attempts[goal] = judge_solutions(pipeline, solutions, goal, judged)
    return [
        Outcome(
            target,
            bool(certificate.certified[0, 0]),
            bool(certificate.vacuous[0, 0]),
            verdict,
            attempts["detector"].get(id(target)),
            attempts["defence"].get(id(target)),
        )
        for target, certificate, verdict in zip(targets, certificates, verdicts, strict=True)
    ]


def plan_jobs(pipeline: Pipeline, target: Target, patch: Patch, goal: Goal, restarts: int, seed: int) -> list[Job]:
    """The patches to optimise for one object: none if the threat allows no position."""
    rng = np.random.default_rng([seed, target.number, *target.name.encode()])
    choose = nearest_positions if goal == "detector" else weakest_positions
    size = patch.size(*target.size)
    return [
        Job(
            target,
            position,
            start_pixels(target, position, size, restart, rng),
            relabel=goal == "defence" and restart > 0 and restart == restarts - 1,
        )
        for restart, position in enumerate(choose(pipeline, target, patch, restarts, rng))
    ]


def judge_solutions(
    pipeline: Pipeline, solutions: Sequence[Solution], goal: Goal, judged: int | None = None
) -> dict[int, Attempt]:
    """The attempt that counts for each target, by the target's id().

    Patches where the object is proven go first: if one of them hides it, that is what has to be reported.
    """

    def hope(solution: Solution) -> tuple[bool, bool, float]:
        return goal == "defence" and not solution.job.position.proven, not solution.hidden, solution.loss

    by_target: dict[int, list[Solution]] = {}
    for solution in sorted(solutions, key=hope):
        by_target.setdefault(id(solution.job.target), []).append(solution)
    curves = {key: tuple(solution.curve for solution in of_target) for key, of_target in by_target.items()}
    most = max(map(len, by_target.values()), default=0)
    attempts: dict[int, Attempt] = {}
    for turn in range(most if judged is None else min(judged, most)):
        # The best of every target that is still found, then the second best, and so on.
        chosen = {
            key: of_target[turn]
            for key, of_target in by_target.items()
            if turn < len(of_target) and (key not in attempts or not _hides(attempts[key], goal))
        }
        for key, attempt in zip(chosen, _attempts(pipeline, list(chosen.values()), goal), strict=True):
            if key not in attempts or _hides(attempt, goal):
                attempts[key] = replace(attempt, curves=curves[key])
    return attempts


def _hides(attempt: Attempt, goal: Goal) -> bool:
    return not (attempt.vanilla if goal == "detector" else attempt.defended)


def _attempts(pipeline: Pipeline, solutions: Sequence[Solution], goal: Goal) -> Iterator[Attempt]:
    """Each solution before the real pipeline; images for the undefended detector go through it in batches."""
    size = int(getattr(pipeline.seeker.detector, "batch", pipeline.seeker.batch))
    for start in range(0, len(solutions), size):
        some = solutions[start : start + size]
        images = [paste(s.job.target.image, s.patch, s.job.position.x, s.job.position.y) for s in some]
        if goal == "detector":
            for solution, image, base in zip(some, images, pipeline.seeker.detector(images), strict=True):
                found = base.at_least(pipeline.rule.base_score)
                vanilla, fit = pipeline.judge_base(solution.job.target, found)
                yield Attempt(image, found, solution.job.position, solution.job.size, solution.loss, vanilla, fit)
        else:
            for solution, image in zip(some, images, strict=True):
                observation = pipeline.observe(image)
                found = pipeline.output(pipeline.rule, observation)
                vanilla, fit = pipeline.judge_base(solution.job.target, observation.base)
                defended = pipeline.covers(solution.job.target, found)
                yield Attempt(
                    image, found, solution.job.position, solution.job.size, solution.loss, vanilla, fit, defended
                )
