"""The white-box attack: momentum sign gradients on patch pixels, many objects and restarts at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.attack import losses as attack_losses
from objectseeker.attack.losses import Goals
from objectseeker.attack.pipeline import Pipeline
from objectseeker.attack.placement import PositionProofs
from objectseeker.attack.plan import Budget, Goal, PatchTask, Progress, Solution
from objectseeker.attack.whitebox import Stage, Tensor, WhiteBox, masked, unreached
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.seeker import view_rectangles
from objectseeker.detectors.network.preprocess import ViewPlan

MOMENTUM = 0.9
FIRST_STEP, LAST_STEP = 24.0, 1.0  # gray levels
CHECKS = 3  # how often, in one attack on the defense, all views are looked at
LOOK_FIRST = 100.0  # what a view that shows the object counts before its loss is known
WHOLE = 0  # the number of the untouched view among a task's views
NO_LINES = np.full((1, 2, 2), np.inf)  # of that view


def attack(
    white: WhiteBox,
    pipeline: Pipeline,
    tasks: Sequence[PatchTask],
    goal: Goal,
    budget: Budget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Optimize every task; solutions in the order of the tasks. On a CPU the same seed gives the same patches."""
    sizes = [white.place(task.target.size).size for task in tasks]
    solved: dict[int, Solution] = {}
    for part, size in enumerate(groups := list(dict.fromkeys(sizes))):
        members = [n for n, other in enumerate(sizes) if other == size]
        seconds = None if budget.seconds is None else budget.seconds * len(members) / len(tasks)

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, len(groups) * total)

        some = [tasks[n] for n in members]
        campaign = _Campaign(white, pipeline, some, goal, replace(budget, seconds=seconds), seed)
        campaign.run(report)
        solved |= dict(zip(members, campaign.solutions(), strict=True))
    return [solved[n] for n in range(len(tasks))]


@dataclass(frozen=True, slots=True, eq=False)
class _TaskViews:
    """The views that one task looks at, the untouched one first.

    The views that hurt most are looked at most: `priority` is the loss of each, once it is known. `immune` are the
    masks under which the patches change nothing; with `safe` these views prove the object: never believe that it is
    hidden.
    """

    views: ViewPlan
    lines: Floats  # (V, 2, 2) of the masks, on the network input
    priority: Floats  # (V,)
    immune: Bools  # (M,)
    safe: bool


class _Campaign:
    """Tasks that go through the network together, and where each of them stands."""

    def __init__(
        self, white: WhiteBox, pipeline: Pipeline, tasks: Sequence[PatchTask], goal: Goal, budget: Budget, seed: int
    ) -> None:
        import torch

        self.white, self.pipeline, self.tasks, self.budget = white, pipeline, tasks, budget
        self.rng = np.random.default_rng(seed)
        images = {id(task.target.image): task.target.image for task in tasks}
        number = {key: n for n, key in enumerate(images)}
        self.stage = Stage(white, list(images.values()))
        self.image = [number[id(task.target.image)] for task in tasks]
        self.views = [self._views(n, goal) for n in range(len(tasks))]

        tall, wide = max(task.size[1] for task in tasks), max(task.size[0] for task in tasks)
        start = np.zeros((len(tasks), len(tasks[0].start), tall, wide, 3), np.float32)
        for slot, task in zip(start, tasks, strict=True):
            slot[:, : task.size[1], : task.size[0]] = task.start
        self.patch = self._tensor(start).permute(0, 1, 4, 2, 3).contiguous()
        self.best, self.velocity = self.patch.clone(), torch.zeros_like(self.patch)
        self.best_loss = np.full(len(tasks), np.inf)
        self.hidden = np.zeros(len(tasks), np.bool_)
        self.curves: list[list[float]] = [[] for _ in tasks]

        self.index, self.size = self._tensor(self.image), self._tensor([task.size for task in tasks])
        self.corner = self._tensor([task.position.corners for task in tasks])
        self.box = self._tensor(
            [self.stage.to_network(image, task.target.box) for image, task in zip(self.image, tasks, strict=True)]
        ).float()
        self.edge = self._tensor([self.stage.edge(image) for image in self.image]).float()
        self.relabel = self._tensor([task.relabel for task in tasks])
        self.plants, self.planted = self._plants()

    def run(self, on_progress: Progress) -> None:
        begin, steps = time.monotonic(), self.budget.steps
        defended = any(len(of_task.views) > 1 for of_task in self.views)
        checked = 0
        active = np.arange(len(self.tasks))
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
        patches = self.best.round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
        rows = zip(self.tasks, patches, self.best_loss, self.curves, self.hidden, strict=True)
        return [
            Solution(task, patch[:, : task.size[1], : task.size[0]].copy(), float(loss), tuple(curve), bool(hidden))
            for task, patch, loss, curve, hidden in rows
        ]

    def _step(self, some: Ints, rate: float) -> None:
        """One step of the tasks `some`, each looking at the untouched view and at a few masked ones."""
        import torch

        rows = self._tensor(some)
        patch = self.patch[rows].requires_grad_()
        chosen = [self._choose(n) for n in some]
        owner = np.repeat(np.arange(len(some)), [len(views) for views in chosen])
        view = np.concatenate(chosen)
        shift = self.rng.integers(-self.budget.jitter, self.budget.jitter + 1, (len(some), 1, 2))
        losses, shown = self._losses(some, owner, view, patch, shift)
        # The untouched view counts as much as all masked ones together: a base box gives the object away by itself.
        weight = np.where(view == WHOLE, 1.0, 1.0 / self.budget.views)
        total = torch.zeros(len(some), device=losses.device)
        total = total.index_add(0, self._tensor(owner), losses * self._tensor(weight).float())
        (gradient,) = torch.autograd.grad(total.sum(), patch)
        scale = gradient.abs().mean((1, 2, 3, 4), keepdim=True).clamp(min=1e-12)
        velocity = MOMENTUM * self.velocity[rows] + gradient / scale
        of_view, values = losses.detach().cpu().numpy(), total.detach().cpu().numpy()
        for k, n in enumerate(some):
            self.views[n].priority[view[owner == k]] = of_view[owner == k]
            self.curves[n].append(float(values[k]))
        alone = np.array([len(self.views[n].views) == 1 for n in some]) & (self.budget.jitter == 0)
        self._keep_best(some[alone], values[alone], ~_any(shown, owner, len(some))[alone])
        self.velocity[rows] = velocity
        # Beyond a patch's own size there is no gradient, so no velocity, and sign(0) moves nothing.
        self.patch[rows] = (self.patch[rows] - rate * velocity.sign()).clamp(0, 255)

    def _check(self, some: Ints) -> None:
        """Look at all views of the tasks `some` and keep the patches that are better than before."""
        import torch

        task = np.repeat(some, [len(self.views[n].views) for n in some])
        view = np.concatenate([np.arange(len(self.views[n].views)) for n in some] or [np.empty(0, np.int64)])
        losses, shown = np.zeros(len(task)), np.zeros(len(task), np.bool_)
        for start in range(0, len(task), self.budget.at_once):
            part = slice(start, start + self.budget.at_once)
            tasks, owner = np.unique(task[part], return_inverse=True)
            with torch.no_grad():
                shift = np.zeros((len(tasks), 1, 2), np.int64)
                of_view, shows = self._losses(tasks, owner, view[part], self.patch[self._tensor(tasks)], shift)
            losses[part], shown[part] = of_view.cpu().numpy(), shows
        for n in some:
            of_task = task == n
            self.views[n].priority[:] = losses[of_task]
            self._keep_best(np.array([n]), losses[of_task].sum(keepdims=True), ~shown[of_task].any(keepdims=True))

    def _keep_best(self, some: Ints, values: npt.NDArray[Any], hidden: Bools) -> None:
        """Keep the patches that are better than the best so far, each with its loss."""
        for n, value, gone in zip(some, values, hidden, strict=True):
            gone = gone and not self.views[n].safe
            if (gone, -value) > (self.hidden[n], -self.best_loss[n]):
                self.best[n], self.best_loss[n], self.hidden[n] = self.patch[n], value, gone

    def _unfinished(self, active: Ints) -> Ints:
        """The tasks whose object none of the tasks has hidden yet."""
        done = {id(self.tasks[n].target) for n in np.flatnonzero(self.hidden).tolist()}
        return np.array([n for n in active if id(self.tasks[n].target) not in done], np.int64)

    def _losses(self, some: Ints, owner: Ints, view: Ints, patch: Tensor, shift: Ints) -> tuple[Tensor, Bools]:
        """The loss of each view of the tasks `some`, and whether it shows the object; view k belongs to owner[k]."""
        rows, owners = self._tensor(some), self._tensor(owner)
        of_view = [(self.views[some[o]], v) for o, v in zip(owner, view, strict=True)]
        filled = self._tensor(np.stack([of_task.views.filled[v] for of_task, v in of_view]))
        window = np.stack([of_task.views.window[v] for of_task, v in of_view])
        lines = np.stack([of_task.lines[v] for of_task, v in of_view])
        inputs = self.stage.render(self.index[rows], self.corner[rows] + self._tensor(shift), self.size[rows], patch)
        inputs = masked(inputs.index_select(0, owners), filled, self.pipeline.seeker.fill)
        boxes, scores = self.white.look(inputs, window)
        goals = self._goals(some[owner], view, lines, scores.shape[2])
        losses, shown = attack_losses.hide(boxes, scores, goals)
        if self.plants.shape[1]:
            whole = np.flatnonzero(view == WHOLE)
            untouched, of_task = self._tensor(whole), self._tensor(some[owner[whole]])
            planting, missing = attack_losses.plant(
                boxes[untouched],
                scores[untouched],
                self._goals(some[owner[whole]], view[whole], lines[whole], scores.shape[2]),
                self.plants[of_task],
                self.planted[of_task],
            )
            losses = losses.index_add(0, untouched, planting)
            shown = shown.index_put((untouched,), shown[untouched] | missing)
        return losses, shown.cpu().numpy()

    def _goals(self, tasks: Ints, view: Ints, lines: Floats, classes: int) -> Goals:
        rule, rows = self.pipeline.rule, self._tensor(tasks)
        labels = np.zeros((len(tasks), classes), np.bool_)
        for slot, n in zip(labels, tasks, strict=True):
            slot[:] = np.isin(np.arange(classes), self.tasks[n].target.labels) | (not rule.classwise)
        return Goals(
            box=self.box[rows],
            wanted=self._tensor(labels),
            score=self._tensor(np.where(view == WHOLE, rule.base_threshold, rule.floor)).float(),
            every_class=self._tensor((view == WHOLE) & self.white.detector.layout.every_class),
            relabel=self.relabel[rows],
            lines=self._tensor(lines).float(),
            edge=self.edge[rows],
            edge_factor=self.pipeline.scoring.edge_factor,
            threshold=self.pipeline.threshold,
            by_iou=self.pipeline.by_iou,
        )

    def _choose(self, n: int) -> Ints:
        """The untouched view, and masked ones of task n: half of them those with the highest loss, half at random."""
        masks, wanted = len(self.views[n].views) - 1, self.budget.views
        if masks <= wanted:
            return np.arange(1 + masks)
        order = 1 + np.lexsort((self.rng.random(masks), -self.views[n].priority[1:]))
        top = order[: -(-wanted // 2)]
        return np.concatenate([[WHOLE], top, self.rng.choice(order[len(top) :], wanted - len(top), replace=False)])

    def _views(self, n: int, goal: Goal) -> _TaskViews:
        """The views that the patches of task n can change.

        A task that distrusts the margin also looks at those that the patches cannot change, as they would be if what
        is filled there leaked at the mask's lines. Before a view was looked at it matters as much as it shows of the
        object without a patch.
        """
        task, image = self.tasks[n], self.image[n]
        observation = task.target.observation
        removed = view_rectangles(observation.masks)
        if goal == "detector":
            whole = self.stage.views(image, removed[: WHOLE + 1])
            nothing = np.zeros(len(observation.masks), np.bool_)
            return _TaskViews(whole, NO_LINES, np.zeros(1), nothing, False)
        views = self.stage.views(image, removed)
        footprints = np.array([self.stage.footprint(image, corner, task.size) for corner in task.position.corners])
        immune = unreached(views, footprints)
        immune[WHOLE] = False
        kept = [(np.flatnonzero(~immune), views.filled)]
        for filled in self.stage.doubted(image, removed) if task.distrust else ():
            leaks = immune & ~unreached(ViewPlan(views.window, filled), footprints)
            kept.append((np.flatnonzero(leaks), filled))
        which = np.concatenate([members for members, _ in kept])
        filled = np.concatenate([filled[members] for members, filled in kept])
        lines = np.concatenate([NO_LINES, self.stage.lines(image, observation.masks)])[which]
        shown = [0.0, *(self.pipeline.visibility(task.target, boxes) for boxes in observation.masked)]
        priority = LOOK_FIRST * np.array(shown)[which]
        alone = PositionProofs.of(self.pipeline, task.target).evidence >= 1
        safe = task.position.proven or bool((alone & immune[1:]).any())
        return _TaskViews(ViewPlan(views.window[which], filled), lines, priority, immune[1:], safe)

    def _plants(self) -> tuple[Tensor, Tensor]:
        """The base boxes each task has to plant, on the network input: (tasks, most, 4), and which of them exist."""
        plants = [
            self.stage.to_network(image, attack_losses.boxes_to_plant(self.pipeline, task.target, of_task.immune))
            for task, of_task, image in zip(self.tasks, self.views, self.image, strict=True)
        ]
        most = max(len(boxes) for boxes in plants)
        padded = np.zeros((len(plants), most, 4), np.float32)
        for slot, boxes in zip(padded, plants, strict=True):
            slot[: len(boxes)] = boxes
        count = np.array([len(boxes) for boxes in plants])
        return self._tensor(padded), self._tensor(np.arange(most) < count[:, None])

    def _tensor(self, values: Any) -> Tensor:
        import torch

        return torch.as_tensor(np.asarray(values), device=self.white.device)


def _any(flags: Bools, owner: Ints, count: int) -> Bools:
    """Does an owner have a flagged view?"""
    has = np.zeros(count, np.bool_)
    np.logical_or.at(has, owner, flags)
    return has
