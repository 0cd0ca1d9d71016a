"""The white-box attack: momentum sign gradients on patch pixels, many objects and restarts at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.attack import objectives
from objectseeker.attack.objectives import Goals
from objectseeker.attack.pipeline import Pipeline
from objectseeker.attack.plan import Budget, Goal, Job, Progress, Solution
from objectseeker.attack.whitebox import Stage, Tensor, WhiteBox, masked
from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.seeker import UNTOUCHED

MOMENTUM = 0.9
FIRST_STEP, LAST_STEP = 24.0, 1.0  # grey levels
CHECKS = 3  # how often, in one attack on the defence, all views are looked at
LOOK_FIRST = 100.0  # what a view that shows the object counts before its loss is known
BASE = 0  # the number of the untouched view among a job's views


def attack(
    white: WhiteBox,
    pipeline: Pipeline,
    jobs: Sequence[Job],
    goal: Goal,
    budget: Budget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Optimise every job; solutions in the order of the jobs. On a CPU the same seed gives the same patches."""
    sizes = [white.place(job.target.size).size for job in jobs]
    solved: dict[int, Solution] = {}
    for part, size in enumerate(groups := list(dict.fromkeys(sizes))):
        members = [n for n, other in enumerate(sizes) if other == size]
        seconds = None if budget.seconds is None else budget.seconds * len(members) / len(jobs)

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, len(groups) * total)

        campaign = _Campaign(white, pipeline, [jobs[n] for n in members], goal, replace(budget, seconds=seconds), seed)
        campaign.run(report)
        solved |= dict(zip(members, campaign.solutions(), strict=True))
    return [solved[n] for n in range(len(jobs))]


class _Campaign:
    """Jobs that go through the network together, and where each of them stands."""

    def __init__(
        self, white: WhiteBox, pipeline: Pipeline, jobs: Sequence[Job], goal: Goal, budget: Budget, seed: int
    ) -> None:
        import torch

        self.white, self.pipeline, self.jobs, self.budget = white, pipeline, jobs, budget
        self.rng = np.random.default_rng(seed)
        images = {id(job.target.image): job.target.image for job in jobs}
        number = {key: n for n, key in enumerate(images)}
        self.stage = Stage(white, list(images.values()))
        self.image = [number[id(job.target.image)] for job in jobs]
        seen = [self._views(n, goal) for n in range(len(jobs))]
        self.views = [filled for filled, _ in seen]
        self.priority = [priority for _, priority in seen]  # the views that hurt most are looked at most

        tall, wide = max(job.size[1] for job in jobs), max(job.size[0] for job in jobs)
        start = np.zeros((len(jobs), tall, wide, 3), np.float32)
        for slot, job in zip(start, jobs, strict=True):
            slot[: job.size[1], : job.size[0]] = job.start
        self.patch = self._tensor(start).permute(0, 3, 1, 2).contiguous()
        self.best, self.velocity = self.patch.clone(), torch.zeros_like(self.patch)
        self.best_loss = np.full(len(jobs), np.inf)
        self.hidden = np.zeros(len(jobs), np.bool_)
        self.curves: list[list[float]] = [[] for _ in jobs]

        self.index, self.size = self._tensor(self.image), self._tensor([job.size for job in jobs])
        self.corner = self._tensor([(job.position.x, job.position.y) for job in jobs])
        self.box = self._tensor(
            [self.stage.to_network(image, job.target.box) for image, job in zip(self.image, jobs, strict=True)]
        ).float()
        self.label = self._tensor([job.target.label for job in jobs])
        self.relabel = self._tensor([job.relabel for job in jobs])
        self.plants, self.planted = self._plants(goal)

    def run(self, on_progress: Progress) -> None:
        begin, steps = time.monotonic(), self.budget.steps
        defended = any(len(views) > 1 for views in self.views)
        checked = 0
        active = np.arange(len(self.jobs))
        for step in range(steps):
            progress = step / steps
            if self.budget.seconds is not None:
                progress = max(progress, (time.monotonic() - begin) / self.budget.seconds)
            if progress >= 1 or not len(active):
                break
            if defended and progress * CHECKS >= checked + 1:
                checked = int(progress * CHECKS)
                self._check(active)
            active = self._unfinished(active)
            rate = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** progress
            together = max(self.budget.at_once // (1 + self.budget.views * defended), 1)
            for start in range(0, len(active), together):
                self._step(active[start : start + together], rate)
            on_progress(step + 1, steps)
        self._check(active)
        on_progress(steps, steps)

    def solutions(self) -> list[Solution]:
        patches = self.best.round().byte().permute(0, 2, 3, 1).cpu().numpy()
        rows = zip(self.jobs, patches, self.best_loss, self.curves, self.hidden, strict=True)
        return [
            Solution(job, patch[: job.size[1], : job.size[0]].copy(), float(loss), tuple(curve), bool(hidden))
            for job, patch, loss, curve, hidden in rows
        ]

    def _step(self, some: Ints, rate: float) -> None:
        """One step of the jobs `some`, each looking at the untouched view and at a few masked ones."""
        import torch

        rows = self._tensor(some)
        patch = self.patch[rows].requires_grad_()
        chosen = [self._choose(n) for n in some]
        owner = np.repeat(np.arange(len(some)), [len(views) for views in chosen])
        view = np.concatenate(chosen)
        shift = self.rng.integers(-self.budget.jitter, self.budget.jitter + 1, (len(some), 2))
        losses, shown = self._losses(some, owner, view, patch, shift)
        # The untouched view counts as much as all masked ones together: a base box gives the object away by itself.
        weight = np.where(view == BASE, 1.0, 1.0 / self.budget.views)
        total = torch.zeros(len(some), device=losses.device)
        total = total.index_add(0, self._tensor(owner), losses * self._tensor(weight).float())
        (gradient,) = torch.autograd.grad(total.sum(), patch)
        scale = gradient.abs().mean((1, 2, 3), keepdim=True).clamp(min=1e-12)
        velocity = MOMENTUM * self.velocity[rows] + gradient / scale
        found, values = losses.detach().cpu().numpy(), total.detach().cpu().numpy()
        for k, n in enumerate(some):
            self.priority[n][view[owner == k]] = found[owner == k]
            self.curves[n].append(float(values[k]))
        alone = np.array([len(self.views[n]) == 1 for n in some]) & (self.budget.jitter == 0)
        self._keep_best(some[alone], values[alone], ~_any(shown, owner, len(some))[alone])
        self.velocity[rows] = velocity
        # Beyond a patch's own size there is no gradient, so no velocity, and sign(0) moves nothing.
        self.patch[rows] = (self.patch[rows] - rate * velocity.sign()).clamp(0, 255)

    def _check(self, some: Ints) -> None:
        """Look at all views of the jobs `some` and keep the patches that are better than before."""
        import torch

        job = np.repeat(some, [len(self.views[n]) for n in some])
        view = np.concatenate([np.arange(len(self.views[n])) for n in some] or [np.empty(0, np.int64)])
        losses, shown = np.zeros(len(job)), np.zeros(len(job), np.bool_)
        for start in range(0, len(job), self.budget.at_once):
            part = slice(start, start + self.budget.at_once)
            jobs, owner = np.unique(job[part], return_inverse=True)
            with torch.no_grad():
                shift = np.zeros((len(jobs), 2), np.int64)
                found, shows = self._losses(jobs, owner, view[part], self.patch[self._tensor(jobs)], shift)
            losses[part], shown[part] = found.cpu().numpy(), shows
        for n in some:
            of_job = job == n
            self.priority[n][:] = losses[of_job]
            self._keep_best(np.array([n]), losses[of_job].sum(keepdims=True), ~shown[of_job].any(keepdims=True))

    def _keep_best(self, some: Ints, values: npt.NDArray[Any], hidden: npt.NDArray[Any]) -> None:
        """Keep the patches that are better than the best so far, each with its loss.

        Where the object is proven, views that do not see the patch still show it: never believe that it is hidden.
        """
        provable = np.array([len(self.views[n]) > 1 and self.jobs[n].position.proven for n in some], np.bool_)
        for n, value, gone in zip(some, values, hidden & ~provable, strict=True):
            if (gone, -value) > (self.hidden[n], -self.best_loss[n]):
                self.best[n], self.best_loss[n], self.hidden[n] = self.patch[n], value, gone

    def _unfinished(self, active: Ints) -> Ints:
        """The jobs whose object none of the jobs has hidden yet."""
        done = {id(self.jobs[n].target) for n in np.flatnonzero(self.hidden).tolist()}
        return np.array([n for n in active if id(self.jobs[n].target) not in done], np.int64)

    def _losses(
        self, some: Ints, owner: Ints, view: Ints, patch: Tensor, shift: Ints
    ) -> tuple[Tensor, npt.NDArray[np.bool_]]:
        """The loss of each view of the jobs `some`, and whether it shows the object; view k belongs to owner[k]."""
        rows = self._tensor(some)
        inputs = self.stage.render(self.index[rows], self.corner[rows] + self._tensor(shift), self.size[rows], patch)
        filled = np.array([self.views[some[o]][v] for o, v in zip(owner, view, strict=True)])
        owners = self._tensor(owner)
        boxes, scores = self.white(
            masked(inputs.index_select(0, owners), self._tensor(filled), self.pipeline.seeker.fill)
        )
        goals = self._goals(rows[owners], view, scores.shape[2])
        losses, shown = objectives.hide(boxes, scores, goals)
        if self.plants.shape[1]:
            untouched = self._tensor(np.flatnonzero(view == BASE))
            of = rows[owners[untouched]]
            planting, missing = objectives.plant(
                boxes[untouched], scores[untouched], goals.rows(untouched), self.plants[of], self.planted[of]
            )
            losses = losses.index_add(0, untouched, planting)
            shown = shown.index_put((untouched,), shown[untouched] | missing)
        return losses, shown.cpu().numpy()

    def _goals(self, rows: Tensor, view: Ints, classes: int) -> Goals:
        import torch

        rule = self.pipeline.rule
        masked_score = rule.mask_score if rule.low_score is None else rule.low_score
        score = self._tensor(np.where(view == BASE, rule.base_score, masked_score)).float()
        labels = torch.arange(classes, device=rows.device)
        wanted = (labels == self.label[rows][:, None]) | (not rule.classwise)
        every_class = self._tensor((view == BASE) & self.white.detector.layout.every_class)
        return Goals(self.box[rows], wanted, score, every_class, self.relabel[rows], self.pipeline.threshold)

    def _choose(self, n: int) -> Ints:
        """The untouched view, and masked ones of job n: half of them those with the highest loss, half at random."""
        masks, wanted = len(self.views[n]) - 1, self.budget.views
        if masks <= wanted:
            return np.arange(1 + masks)
        order = 1 + np.lexsort((self.rng.random(masks), -self.priority[n][1:]))
        top = order[: -(-wanted // 2)]
        return np.concatenate([[BASE], top, self.rng.choice(order[len(top) :], wanted - len(top), replace=False)])

    def _views(self, n: int, goal: Goal) -> tuple[Ints, Floats]:
        """What the detector fills in each view that the patch can change, the untouched one first: (V, 4).

        And how much each view matters before it was looked at: as much as it shows of the object without a patch.
        """
        job, image = self.jobs[n], self.image[n]
        untouched = np.array([UNTOUCHED], np.int64)
        if goal == "detector":
            return untouched, np.zeros(1)
        observation = job.target.observation
        filled = self.stage.filled(image, observation.masks.halves.removed)
        reach = self.stage.footprint(image, (job.position.x, job.position.y), job.size)
        hides = (filled[:, :2] <= reach[:2]).all(axis=1) & (filled[:, 2:] >= reach[2:]).all(axis=1)
        shown = np.array([self.pipeline.visibility(job.target, boxes) for boxes in observation.masked])
        return np.concatenate([untouched, filled[~hides]]), np.concatenate([[0.0], LOOK_FIRST * shown[~hides]])

    def _plants(self, goal: Goal) -> tuple[Tensor, Tensor]:
        """The base boxes each job has to plant, on the network input: (jobs, most, 4), and which of them exist."""
        found = [
            self.stage.to_network(
                image,
                objectives.boxes_to_plant(self.pipeline, job.target, (job.position.x, job.position.y), job.size)
                if goal == "defence"
                else np.empty((0, 4)),
            )
            for job, image in zip(self.jobs, self.image, strict=True)
        ]
        most = max(len(boxes) for boxes in found)
        padded = np.zeros((len(found), most, 4), np.float32)
        for slot, boxes in zip(padded, found, strict=True):
            slot[: len(boxes)] = boxes
        count = np.array([len(boxes) for boxes in found])
        return self._tensor(padded), self._tensor(np.arange(most) < count[:, None])

    def _tensor(self, values: Any) -> Tensor:
        import torch

        return torch.as_tensor(np.asarray(values), device=self.white.device)


def _any(flags: npt.NDArray[np.bool_], owner: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Does an owner have a flagged view?"""
    found = np.zeros(count, np.bool_)
    np.logical_or.at(found, owner, flags)
    return found
