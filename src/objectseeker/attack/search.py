"""The black-box attack: random search over patch pixels, for detectors that show boxes and no gradients.

Every step redraws a random square of the patch, smaller and smaller, and keeps the change if the object is seen no
better. Only what the detector returns is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectseeker.attack.pipeline import Pipeline, paste
from objectseeker.attack.plan import Budget, Goal, Job, Progress, Solution
from objectseeker.core.image import Image
from objectseeker.core.observation import Observation
from objectseeker.errors import ObjectSeekerError

LARGEST, SMALLEST = 0.6, 0.08  # side of the square that is redrawn, as a share of the patch, first and last


def attack(
    pipeline: Pipeline,
    jobs: Sequence[Job],
    goal: Goal,
    budget: Budget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Improve the patch of every job, `budget.steps` tries each; solutions in the order of the jobs."""
    if budget.jitter:
        raise ObjectSeekerError("jitter needs gradients: leave it out in black-box mode")
    look = _on_image if goal == "detector" else _on_views
    patches = [job.start for job in jobs]
    seen = look(pipeline, jobs, patches)
    curves = [[loss] for loss, _ in seen]
    generators = [np.random.default_rng([seed, n]) for n in range(len(jobs))]
    for step in range(budget.steps):
        done = {id(job.target) for job, (_, hidden) in zip(jobs, seen, strict=True) if hidden}
        active = [n for n, job in enumerate(jobs) if id(job.target) not in done]
        if not active:
            break
        share = LARGEST * (SMALLEST / LARGEST) ** (step / budget.steps)
        tried = [_redrawn(patches[n], share, generators[n]) for n in active]
        found = look(pipeline, [jobs[n] for n in active], tried)
        for n, patch, (loss, hidden) in zip(active, tried, found, strict=True):
            if loss <= seen[n][0]:
                patches[n], seen[n] = patch, (loss, hidden)
            curves[n].append(seen[n][0])
        on_progress(step + 1, budget.steps)
    on_progress(budget.steps, budget.steps)
    return [
        Solution(job, patch, loss, tuple(curve), hidden)
        for job, patch, (loss, hidden), curve in zip(jobs, patches, seen, curves, strict=True)
    ]


def _on_image(pipeline: Pipeline, jobs: Sequence[Job], patches: Sequence[Image]) -> list[tuple[float, bool]]:
    """How well the undefended detector sees each object, and whether it does not: all images in one call."""
    images = [_drawn(job, patch) for job, patch in zip(jobs, patches, strict=True)]
    found = list(pipeline.seeker.detector(images))
    return [
        (pipeline.visibility(job.target, boxes), not pipeline.judge_base(job.target, boxes)[0])
        for job, boxes in zip(jobs, found, strict=True)
    ]


def _on_views(pipeline: Pipeline, jobs: Sequence[Job], patches: Sequence[Image]) -> list[tuple[float, bool]]:
    """How well the defence sees each object: in the image, and on average in the views."""
    seen = []
    for job, patch in zip(jobs, patches, strict=True):
        observation: Observation = pipeline.observe(_drawn(job, patch))
        views = [pipeline.visibility(job.target, boxes) for boxes in observation.masked]
        loss = pipeline.visibility(job.target, observation.base) + float(np.mean(views or [0.0]))
        seen.append((loss, not pipeline.judge(job.target, observation).defended))
    return seen


def _redrawn(patch: Image, share: float, rng: np.random.Generator) -> Image:
    """`patch` with a random square in one random colour, or in noise."""
    height, width = patch.shape[:2]
    side = max(1, round(share * min(height, width)))
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    grain = (side, side, 3) if rng.random() < 0.3 else (1, 1, 3)
    made = patch.copy()
    made[y : y + side, x : x + side] = rng.choice(np.array([0, 64, 128, 192, 255], np.uint8), grain)
    return made


def _drawn(job: Job, patch: Image) -> Image:
    return paste(job.target.image, patch, job.position.x, job.position.y)
