"""The two adaptive attacks: white-box by gradients, black-box by random search.

Both take the same tasks and return the same solutions. An adaptive attack knows the defense: its masks, its rule and
its certificates.

White-box: momentum sign gradients on patch pixels, many objects and restarts at once.

Black-box: every step redraws a random square of the patch, smaller and smaller, and keeps the change if the object is
detected no better. It uses only what the detector returns, in every view: no margin of ours is trusted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.attack.losses import LossTargets, boxes_to_plant, hiding_loss, planting_loss
from objectseeker.attack.pipeline import (
    AttackBudget,
    AttackedSystem,
    Patches,
    PatchTask,
    Pipeline,
    Progress,
    Solution,
    draw_patches,
)
from objectseeker.attack.placement import PositionCertificates
from objectseeker.attack.whitebox import PatchRenderer, Tensor, WhiteBox, fill_views, unaffected_views
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.masks import Image
from objectseeker.core.seeker import view_rectangles
from objectseeker.detectors.network.preprocess import ViewPlan
from objectseeker.errors import ObjectSeekerError

MOMENTUM = 0.9
FIRST_STEP, LAST_STEP = 24.0, 1.0  # gray levels
FULL_CHECKS = 3  # evaluations of all views during one attack on the defense
SHOWN_PRIORITY = 100.0  # of a view that shows the object, before its loss is known
WHOLE = 0  # the number of the untouched view among a task's views
NO_LINES = np.full((1, 2, 2), np.inf)  # of that view

FIRST_SQUARE, LAST_SQUARE = 0.6, 0.08  # side of the square that random search redraws, as a share of the patch


def attack_by_gradients(
    white: WhiteBox,
    pipeline: Pipeline,
    tasks: Sequence[PatchTask],
    system: AttackedSystem,
    budget: AttackBudget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Run the white-box attack on every task; the solutions are in the order of the tasks.

    On a CPU the same seed returns the same patches.
    """
    sizes = [white.place(task.target.image_size).size for task in tasks]
    solved: dict[int, Solution] = {}
    for part, size in enumerate(groups := list(dict.fromkeys(sizes))):
        members = [n for n, other in enumerate(sizes) if other == size]
        seconds = None if budget.max_seconds is None else budget.max_seconds * len(members) / len(tasks)

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, len(groups) * total)

        batch = _AttackBatch(
            white, pipeline, [tasks[n] for n in members], system, replace(budget, max_seconds=seconds), seed
        )
        batch.run(report)
        solved |= dict(zip(members, batch.solutions(), strict=True))
    return [solved[n] for n in range(len(tasks))]


@dataclass(frozen=True, slots=True, eq=False)
class _ViewSelection:
    """The views that one task optimizes against, the untouched one first.

    The views with the highest loss are used most: `priority` is the loss of each, once it is known. `immune` are the
    masks under which the patches change nothing. With `is_safe` these views prove the object: never believe that it is
    hidden.
    """

    views: ViewPlan
    lines: Floats  # (V, 2, 2) of the masks, on the network input
    priority: Floats  # (V,)
    immune: Bools  # (M,)
    is_safe: bool


class _AttackBatch:
    """Tasks that go through the network together, and their state."""

    def __init__(
        self,
        white: WhiteBox,
        pipeline: Pipeline,
        tasks: Sequence[PatchTask],
        system: AttackedSystem,
        budget: AttackBudget,
        seed: int,
    ) -> None:
        import torch

        self.white, self.pipeline, self.tasks, self.budget = white, pipeline, tasks, budget
        self.batch_size = budget.batch_size(white.device)
        self.rng = np.random.default_rng(seed)
        images = {id(task.target.image): task.target.image for task in tasks}
        number = {key: n for n, key in enumerate(images)}
        self.renderer = PatchRenderer(white, list(images.values()))
        self.image = [number[id(task.target.image)] for task in tasks]
        self.views = [self._select_views(n, system) for n in range(len(tasks))]

        tall, wide = max(task.patch_size[1] for task in tasks), max(task.patch_size[0] for task in tasks)
        start = np.zeros((len(tasks), len(tasks[0].start), tall, wide, 3), np.float32)
        for slot, task in zip(start, tasks, strict=True):
            slot[:, : task.patch_size[1], : task.patch_size[0]] = task.start
        self.patch = self._tensor(start).permute(0, 1, 4, 2, 3).contiguous()
        self.best, self.velocity = self.patch.clone(), torch.zeros_like(self.patch)
        self.best_loss = np.full(len(tasks), np.inf)
        self.hidden = np.zeros(len(tasks), np.bool_)
        self.loss_curves: list[list[float]] = [[] for _ in tasks]

        self.index, self.size = self._tensor(self.image), self._tensor([task.patch_size for task in tasks])
        self.corner = self._tensor([task.position.corners for task in tasks])
        self.box = self._tensor(
            [self.renderer.to_network(image, task.target.box) for image, task in zip(self.image, tasks, strict=True)]
        ).float()
        self.edge = self._tensor([self.renderer.edge(image) for image in self.image]).float()
        self.relabels = self._tensor([task.relabels for task in tasks])
        self.planted, self.has_plant = self._planted_boxes()

    def run(self, on_progress: Progress) -> None:
        begin, steps = time.monotonic(), self.budget.steps
        defended = any(len(of_task.views) > 1 for of_task in self.views)
        checked = 0
        active = np.arange(len(self.tasks))
        for step in range(steps):
            progress = step / steps
            if self.budget.max_seconds is not None:
                progress = max(progress, (time.monotonic() - begin) / self.budget.max_seconds)
            if progress >= 1 or not len(active):
                break
            if defended and progress * FULL_CHECKS >= checked + 1:
                checked = int(progress * FULL_CHECKS)
                self._check_all_views(active)
            active = self._unfinished(active)
            rate = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** progress
            together = max(self.batch_size // (1 + self.budget.views_per_step * defended), 1)
            for start in range(0, len(active), together):
                self._step(active[start : start + together], rate)
            on_progress(step + 1, steps)
        self._check_all_views(active)
        on_progress(steps, steps)

    def solutions(self) -> list[Solution]:
        patches = self.best.round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
        rows = zip(self.tasks, patches, self.best_loss, self.loss_curves, self.hidden, strict=True)
        return [
            Solution(
                task,
                patch[:, : task.patch_size[1], : task.patch_size[0]].copy(),
                float(loss),
                tuple(curve),
                bool(hidden),
            )
            for task, patch, loss, curve, hidden in rows
        ]

    def _step(self, task_indices: Ints, rate: float) -> None:
        """Take one step for some tasks, each with the untouched view and a few masked ones."""
        import torch

        rows = self._tensor(task_indices)
        patch = self.patch[rows].requires_grad_()
        chosen = [self._choose_views(n) for n in task_indices]
        owner = np.repeat(np.arange(len(task_indices)), [len(views) for views in chosen])
        view = np.concatenate(chosen)
        shift = self.rng.integers(-self.budget.jitter, self.budget.jitter + 1, (len(task_indices), 1, 2))
        losses, shown = self._losses(task_indices, owner, view, patch, shift)
        # The untouched view weighs as much as all masked ones together: one base box is enough to show the object.
        weight = np.where(view == WHOLE, 1.0, 1.0 / self.budget.views_per_step)
        total = torch.zeros(len(task_indices), device=losses.device)
        total = total.index_add(0, self._tensor(owner), losses * self._tensor(weight).float())
        (gradient,) = torch.autograd.grad(total.sum(), patch)
        scale = gradient.abs().mean((1, 2, 3, 4), keepdim=True).clamp(min=1e-12)
        velocity = MOMENTUM * self.velocity[rows] + gradient / scale
        of_view, values = losses.detach().cpu().numpy(), total.detach().cpu().numpy()
        for k, n in enumerate(task_indices):
            self.views[n].priority[view[owner == k]] = of_view[owner == k]
            self.loss_curves[n].append(float(values[k]))
        is_complete = np.array([len(self.views[n].views) == 1 for n in task_indices]) & (self.budget.jitter == 0)
        any_shown = _any_by_owner(shown, owner, len(task_indices))
        self._keep_best(task_indices[is_complete], values[is_complete], ~any_shown[is_complete])
        self.velocity[rows] = velocity
        # Beyond a patch's own size the gradient is zero, so the velocity is, and sign(0) moves nothing.
        self.patch[rows] = (self.patch[rows] - rate * velocity.sign()).clamp(0, 255)

    def _check_all_views(self, task_indices: Ints) -> None:
        """Evaluate all views of some tasks and keep the patches that are better than before."""
        import torch

        task = np.repeat(task_indices, [len(self.views[n].views) for n in task_indices])
        view = np.concatenate([np.arange(len(self.views[n].views)) for n in task_indices] or [np.empty(0, np.int64)])
        losses, shown = np.zeros(len(task)), np.zeros(len(task), np.bool_)
        for start in range(0, len(task), self.batch_size):
            part = slice(start, start + self.batch_size)
            tasks, owner = np.unique(task[part], return_inverse=True)
            with torch.no_grad():
                shift = np.zeros((len(tasks), 1, 2), np.int64)
                of_view, shows = self._losses(tasks, owner, view[part], self.patch[self._tensor(tasks)], shift)
            losses[part], shown[part] = of_view.cpu().numpy(), shows
        for n in task_indices:
            of_task = task == n
            self.views[n].priority[:] = losses[of_task]
            self._keep_best(np.array([n]), losses[of_task].sum(keepdims=True), ~shown[of_task].any(keepdims=True))

    def _keep_best(self, task_indices: Ints, values: npt.NDArray[Any], hidden: Bools) -> None:
        """Keep the patches that are better than the best so far, each with its loss."""
        for n, value, is_hidden in zip(task_indices, values, hidden, strict=True):
            is_hidden = is_hidden and not self.views[n].is_safe
            if (is_hidden, -value) > (self.hidden[n], -self.best_loss[n]):
                self.best[n], self.best_loss[n], self.hidden[n] = self.patch[n], value, is_hidden

    def _unfinished(self, active: Ints) -> Ints:
        """Return the tasks whose object no task has hidden yet."""
        done = {id(self.tasks[n].target) for n in np.flatnonzero(self.hidden).tolist()}
        return np.array([n for n in active if id(self.tasks[n].target) not in done], np.int64)

    def _losses(self, task_indices: Ints, owner: Ints, view: Ints, patch: Tensor, shift: Ints) -> tuple[Tensor, Bools]:
        """Return the loss of each view, and whether it shows the object; view k belongs to task owner[k]."""
        rows, owners = self._tensor(task_indices), self._tensor(owner)
        of_view = [(self.views[task_indices[o]], v) for o, v in zip(owner, view, strict=True)]
        filled = self._tensor(np.stack([of_task.views.filled[v] for of_task, v in of_view]))
        window = np.stack([of_task.views.window[v] for of_task, v in of_view])
        lines = np.stack([of_task.lines[v] for of_task, v in of_view])
        corner = self.corner[rows] + self._tensor(shift)
        inputs = self.renderer.render(self.index[rows], corner, self.size[rows], patch)
        inputs = fill_views(inputs.index_select(0, owners), filled, self.pipeline.seeker.fill)
        boxes, scores = self.white.window_outputs(inputs, window)
        targets = self._loss_targets(task_indices[owner], view, lines, scores.shape[2])
        losses, shown = hiding_loss(boxes, scores, targets)
        if self.planted.shape[1]:
            whole = np.flatnonzero(view == WHOLE)
            untouched, of_task = self._tensor(whole), self._tensor(task_indices[owner[whole]])
            planting, missing = planting_loss(
                boxes[untouched],
                scores[untouched],
                self._loss_targets(task_indices[owner[whole]], view[whole], lines[whole], scores.shape[2]),
                self.planted[of_task],
                self.has_plant[of_task],
            )
            losses = losses.index_add(0, untouched, planting)
            shown = shown.index_put((untouched,), shown[untouched] | missing)
        return losses, shown.cpu().numpy()

    def _loss_targets(self, tasks: Ints, view: Ints, lines: Floats, classes: int) -> LossTargets:
        rule, rows = self.pipeline.rule, self._tensor(tasks)
        labels = np.zeros((len(tasks), classes), np.bool_)
        for slot, n in zip(labels, tasks, strict=True):
            slot[:] = np.isin(np.arange(classes), self.tasks[n].target.labels) | (not rule.classwise)
        return LossTargets(
            box=self.box[rows],
            object_classes=self._tensor(labels),
            score=self._tensor(np.where(view == WHOLE, rule.base_threshold, rule.min_mask_score)).float(),
            every_class=self._tensor((view == WHOLE) & self.white.detector.layout.every_class),
            relabels=self.relabels[rows],
            lines=self._tensor(lines).float(),
            edge=self.edge[rows],
            edge_factor=self.pipeline.rule.edge_factor,
            certification_threshold=self.pipeline.certification_threshold,
            uses_iou=self.pipeline.uses_iou,
        )

    def _choose_views(self, n: int) -> Ints:
        """Return the untouched view, and masked ones: half those with the highest loss, half at random."""
        masks, count = len(self.views[n].views) - 1, self.budget.views_per_step
        if masks <= count:
            return np.arange(1 + masks)
        order = 1 + np.lexsort((self.rng.random(masks), -self.views[n].priority[1:]))
        top = order[: -(-count // 2)]
        return np.concatenate([[WHOLE], top, self.rng.choice(order[len(top) :], count - len(top), replace=False)])

    def _select_views(self, n: int, system: AttackedSystem) -> _ViewSelection:
        """Return the views that the patches of task n can change.

        A task that attacks immune views also has those that the patches cannot change, as they would be if what is
        filled there leaked at the mask's lines. The initial priority of a view is how clearly it shows the object
        without a patch.
        """
        task, image = self.tasks[n], self.image[n]
        observation = task.target.observation
        removed = view_rectangles(observation.masks)
        if system == "undefended":
            whole = self.renderer.view_plan(image, removed[: WHOLE + 1])
            nothing = np.zeros(len(observation.masks), np.bool_)
            return _ViewSelection(whole, NO_LINES, np.zeros(1), nothing, False)
        views = self.renderer.view_plan(image, removed)
        affected = np.array(
            [self.renderer.affected_rectangle(image, corner, task.patch_size) for corner in task.position.corners]
        )
        immune = unaffected_views(views, affected)
        immune[WHOLE] = False
        kept = [(np.flatnonzero(~immune), views.filled)]
        for filled in self.renderer.leak_rectangles(image, removed) if task.attacks_immune_views else ():
            leaks = immune & ~unaffected_views(ViewPlan(views.window, filled), affected)
            kept.append((np.flatnonzero(leaks), filled))
        selected = np.concatenate([members for members, _ in kept])
        filled = np.concatenate([filled[members] for members, filled in kept])
        lines = np.concatenate([NO_LINES, self.renderer.mask_lines(image, observation.masks)])[selected]
        shown = [0.0, *(self.pipeline.detection_strength(task.target, boxes) for boxes in observation.masked)]
        priority = SHOWN_PRIORITY * np.array(shown)[selected]
        single_view = PositionCertificates.from_target(self.pipeline, task.target).evidence >= 1
        is_safe = task.position.proven or bool((single_view & immune[1:]).any())
        return _ViewSelection(ViewPlan(views.window[selected], filled), lines, priority, immune[1:], is_safe)

    def _planted_boxes(self) -> tuple[Tensor, Tensor]:
        """Return the base boxes each task has to plant, on the network input (tasks, P, 4), and which exist."""
        planted = [
            self.renderer.to_network(image, boxes_to_plant(self.pipeline, task.target, of_task.immune))
            for task, of_task, image in zip(self.tasks, self.views, self.image, strict=True)
        ]
        max_count = max(len(boxes) for boxes in planted)
        padded = np.zeros((len(planted), max_count, 4), np.float32)
        for slot, boxes in zip(padded, planted, strict=True):
            slot[: len(boxes)] = boxes
        count = np.array([len(boxes) for boxes in planted])
        return self._tensor(padded), self._tensor(np.arange(max_count) < count[:, None])

    def _tensor(self, values: Any) -> Tensor:
        import torch

        return torch.as_tensor(np.asarray(values), device=self.white.device)


def _any_by_owner(flags: Bools, owner: Ints, count: int) -> Bools:
    """Return whether each owner has a flagged view."""
    has = np.zeros(count, np.bool_)
    np.logical_or.at(has, owner, flags)
    return has


def attack_by_random_search(
    pipeline: Pipeline,
    tasks: Sequence[PatchTask],
    system: AttackedSystem,
    budget: AttackBudget,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> list[Solution]:
    """Run the black-box attack on every task, `budget.steps` trials each; solutions in task order.

    Raises:
        ObjectSeekerError: The budget has jitter, which needs gradients.
    """
    if budget.jitter:
        raise ObjectSeekerError(f"jitter needs gradients: got {budget.jitter!r} in black-box mode. Use 0.")
    evaluate = _detect_on_images if system == "undefended" else _detect_on_views
    patches = [task.start for task in tasks]
    states = evaluate(pipeline, tasks, patches)
    curves = [[loss] for loss, _ in states]
    generators = [np.random.default_rng([seed, n]) for n in range(len(tasks))]
    for step in range(budget.steps):
        done = {id(task.target) for task, (_, hidden) in zip(tasks, states, strict=True) if hidden}
        active = [n for n, task in enumerate(tasks) if id(task.target) not in done]
        if not active:
            break
        trials = [random_square(patches[n], step / budget.steps, generators[n]) for n in active]
        trial_states = evaluate(pipeline, [tasks[n] for n in active], trials)
        for n, patch, (loss, hidden) in zip(active, trials, trial_states, strict=True):
            if loss <= states[n][0]:
                patches[n], states[n] = patch, (loss, hidden)
            curves[n].append(states[n][0])
        on_progress(step + 1, budget.steps)
    on_progress(budget.steps, budget.steps)
    return [
        Solution(task, patch, loss, tuple(curve), hidden)
        for task, patch, (loss, hidden), curve in zip(tasks, patches, states, curves, strict=True)
    ]


def _detect_on_images(
    pipeline: Pipeline, tasks: Sequence[PatchTask], patches: Sequence[Patches]
) -> list[tuple[float, bool]]:
    """Return how clearly the undefended detector sees each object and if it is hidden, in one call."""
    images = [_attacked_image(task, patch) for task, patch in zip(tasks, patches, strict=True)]
    return [
        (pipeline.detection_strength(task.target, boxes), not pipeline.base_status(task.target, boxes)[0])
        for task, boxes in zip(tasks, pipeline.seeker.detector(images), strict=True)
    ]


def _detect_on_views(
    pipeline: Pipeline, tasks: Sequence[PatchTask], patches: Sequence[Patches]
) -> list[tuple[float, bool]]:
    """Return how clearly the defense sees each object: in the image, and on average in the views."""
    states = []
    for task, patch in zip(tasks, patches, strict=True):
        observation = pipeline.observe(_attacked_image(task, patch))
        views = [pipeline.detection_strength(task.target, boxes) for boxes in observation.masked]
        loss = pipeline.detection_strength(task.target, observation.base) + float(np.mean(views or [0.0]))
        states.append((loss, not pipeline.found_status(task.target, observation).defended))
    return states


def random_square(patches: Patches, progress: float, rng: np.random.Generator) -> Patches:
    """Redraw a random square of one of the patches in one color or in noise, smaller with progress."""
    count, height, width = patches.shape[:3]
    share = FIRST_SQUARE * (LAST_SQUARE / FIRST_SQUARE) ** progress
    side = max(1, round(share * min(height, width)))
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    grain = (side, side, 3) if rng.random() < 0.3 else (1, 1, 3)
    redrawn = patches.copy()
    patch = redrawn[int(rng.integers(count))]
    patch[y : y + side, x : x + side] = rng.choice(np.array([0, 64, 128, 192, 255], np.uint8), grain)
    return redrawn


def _attacked_image(task: PatchTask, patches: Patches) -> Image:
    return draw_patches(task.target.image, patches, task.position.corners)
