"""The black-box attack: random search over patch pixels, for detectors that show boxes and no gradients.

Every step redraws a random square of the patch, smaller and smaller, and keeps the change if the object is seen no
better. Only what the detector returns is used, in every view: no margin of ours is believed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectseeker.attack.pipeline import Patches, Pipeline, draw
from objectseeker.attack.plan import Budget, Goal, PatchTask, Progress, Solution
from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError

LARGEST, SMALLEST = 0.6, 0.08  # side of the square that is redrawn, as a share of the patch, first and last


def attack(
    pipeline: Pipeline,
    tasks: Sequence[PatchTask],
    goal: Goal,
    budget: Budget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Improve the patches of every task, `budget.steps` tries each; solutions in the order of the tasks."""
    if budget.jitter:
        raise ObjectSeekerError("jitter needs gradients: leave it out in black-box mode")
    look = _on_image if goal == "detector" else _on_views
    patches = [task.start for task in tasks]
    seen = look(pipeline, tasks, patches)
    curves = [[loss] for loss, _ in seen]
    generators = [np.random.default_rng([seed, n]) for n in range(len(tasks))]
    for step in range(budget.steps):
        done = {id(task.target) for task, (_, hidden) in zip(tasks, seen, strict=True) if hidden}
        active = [n for n, task in enumerate(tasks) if id(task.target) not in done]
        if not active:
            break
        share = LARGEST * (SMALLEST / LARGEST) ** (step / budget.steps)
        tried = [_redrawn(patches[n], share, generators[n]) for n in active]
        now = look(pipeline, [tasks[n] for n in active], tried)
        for n, patch, (loss, hidden) in zip(active, tried, now, strict=True):
            if loss <= seen[n][0]:
                patches[n], seen[n] = patch, (loss, hidden)
            curves[n].append(seen[n][0])
        on_progress(step + 1, budget.steps)
    on_progress(budget.steps, budget.steps)
    return [
        Solution(task, patch, loss, tuple(curve), hidden)
        for task, patch, (loss, hidden), curve in zip(tasks, patches, seen, curves, strict=True)
    ]


def _on_image(pipeline: Pipeline, tasks: Sequence[PatchTask], patches: Sequence[Patches]) -> list[tuple[float, bool]]:
    """How well the undefended detector sees each object, and whether it does not: all images in one call."""
    every = list(pipeline.seeker.detector([_drawn(task, patch) for task, patch in zip(tasks, patches, strict=True)]))
    return [
        (pipeline.visibility(task.target, boxes), not pipeline.judge_base(task.target, boxes)[0])
        for task, boxes in zip(tasks, every, strict=True)
    ]


def _on_views(pipeline: Pipeline, tasks: Sequence[PatchTask], patches: Sequence[Patches]) -> list[tuple[float, bool]]:
    """How well the defense sees each object: in the image, and on average in the views."""
    seen = []
    for task, patch in zip(tasks, patches, strict=True):
        observation = pipeline.observe(_drawn(task, patch))
        views = [pipeline.visibility(task.target, boxes) for boxes in observation.masked]
        loss = pipeline.visibility(task.target, observation.base) + float(np.mean(views or [0.0]))
        seen.append((loss, not pipeline.judge(task.target, observation).defended))
    return seen


def _redrawn(patches: Patches, share: float, rng: np.random.Generator) -> Patches:
    """`patches` with a random square of one of them in one random color, or in noise."""
    count, height, width = patches.shape[:3]
    side = max(1, round(share * min(height, width)))
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    grain = (side, side, 3) if rng.random() < 0.3 else (1, 1, 3)
    made = patches.copy()
    one = made[int(rng.integers(count))]
    one[y : y + side, x : x + side] = rng.choice(np.array([0, 64, 128, 192, 255], np.uint8), grain)
    return made


def _drawn(task: PatchTask, patches: Patches) -> Image:
    return draw(task.target.image, patches, task.position.corners)
