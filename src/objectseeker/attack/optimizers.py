"""Optimization of patch pixels: by momentum sign gradients (white-box), by random search (black-box).

An adaptive attack knows the defense: its masks, its rule and its certificates.

White-box: `sign_step` is the step of all; `descend` minimizes a loss of one patch, `attack_by_gradients` hides many
objects at once, with several restarts each.

Black-box: every step redraws a random square of the patch, smaller and smaller, and keeps the change unless the loss
rises. It uses only what the detector returns, in every view, and trusts no margin of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from objectseeker.attack.losses import LossTargets, boxes_to_plant, hiding_loss, planting_loss
from objectseeker.attack.pipeline import (
    AttackedSystem,
    Patches,
    PatchTask,
    Progress,
    Solution,
    no_progress,
    progress_of_part,
)
from objectseeker.attack.placement import PositionCertificates
from objectseeker.attack.setup import AttackSetup
from objectseeker.attack.whitebox import PatchRenderer, Tensor, fill_views, unaffected_views
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.seeker import view_rectangles
from objectseeker.detectors.network.preprocess import Size, ViewPlan

MOMENTUM = 0.9
FIRST_STEP, LAST_STEP = 24.0, 1.0  # gray levels
FULL_CHECKS = 3  # evaluations of all views during one attack on the defense
SHOWN_PRIORITY = 100.0  # of a view that shows the object, before its loss is known
WHOLE = 0  # the number of the untouched view among a task's views
NO_LINES = np.full((1, 2, 2), np.inf)  # of that view

FIRST_SQUARE, LAST_SQUARE = 0.6, 0.08  # side of the square that random search redraws, as a share of the patch


def sign_step(pixels: Tensor, velocity: Tensor, gradient: Tensor, progress: float) -> tuple[Tensor, Tensor]:
    """Take a momentum sign step, smaller with progress; return the pixels and the velocity of each row."""
    scale = gradient.abs().mean(tuple(range(1, gradient.ndim)), keepdim=True).clamp(min=1e-12)
    velocity = MOMENTUM * velocity + gradient / scale
    rate = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** progress
    return (pixels.detach() - rate * velocity.sign()).clamp(0, 255), velocity


def descend(
    pixels: Tensor, loss_of: Callable[[Tensor], Tensor], steps: int, on_progress: Progress = no_progress
) -> tuple[Tensor, Tensor, list[float]]:
    """Minimize a loss of one row of pixels; return the last ones, the best ones, and all losses."""
    import torch

    best, velocity = pixels, torch.zeros_like(pixels)
    curve: list[float] = []
    for step in range(steps):
        leaf = pixels.detach().requires_grad_()
        loss = loss_of(leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
        value = float(loss.detach())
        if value < min(curve, default=np.inf):
            best = pixels
        curve.append(value)
        pixels, velocity = sign_step(pixels, velocity, gradient, step / steps)
        on_progress(step + 1, steps)
    return pixels, best, curve


def attack_by_gradients(
    setup: AttackSetup, tasks: Sequence[PatchTask], system: AttackedSystem, on_progress: Progress = no_progress
) -> list[Solution]:
    """Run the white-box attack on every task; the solutions are in the order of the tasks.

    On a CPU the same seed returns the same patches.
    """
    groups: dict[Size, list[int]] = {}
    for n, task in enumerate(tasks):
        groups.setdefault(setup.gradients.place(task.target.image_size).size, []).append(n)
    solved: dict[int, Solution] = {}
    for part, members in enumerate(groups.values()):
        batch = _AttackBatch(setup, [tasks[n] for n in members], system)
        batch.run(progress_of_part(on_progress, part, len(groups)))
        solved |= dict(zip(members, batch.solutions(), strict=True))
    return [solved[n] for n in range(len(tasks))]


@dataclass(slots=True, eq=False)
class _TaskState:
    """The views that one task optimizes against, the untouched one first, and how far it is.

    The views with the highest loss are used most: `priority` is the loss of each, once it is known. `immune` are the
    masks under which the patches change nothing. With `is_safe` these views prove the object: never believe that it is
    hidden.
    """

    views: ViewPlan
    lines: Floats  # (V, 2, 2) of the masks, on the network input
    priority: Floats  # (V,)
    immune: Bools  # (M,)
    is_safe: bool
    best_loss: float = np.inf
    is_hidden: bool = False
    loss_curve: list[float] = field(default_factory=list)


class _AttackBatch:
    """Tasks that go through the network together, and their state."""

    def __init__(self, setup: AttackSetup, tasks: Sequence[PatchTask], system: AttackedSystem) -> None:
        import torch

        self.white, self.pipeline, self.tasks, self.budget = setup.gradients, setup.pipeline, tasks, setup.budget
        self.batch_size = self.budget.batch_size(self.white.device)
        self.rng = np.random.default_rng(setup.seed)
        images = {id(task.target.image): task.target.image for task in tasks}
        number = {key: n for n, key in enumerate(images)}
        self.renderer = PatchRenderer(self.white, list(images.values()))
        self.image = [number[id(task.target.image)] for task in tasks]
        self.states = [self._select_views(n, system) for n in range(len(tasks))]

        tall, wide = max(task.patch_size[1] for task in tasks), max(task.patch_size[0] for task in tasks)
        start = np.zeros((len(tasks), len(tasks[0].start), tall, wide, 3), np.float32)
        for slot, task in zip(start, tasks, strict=True):
            slot[:, : task.patch_size[1], : task.patch_size[0]] = task.start
        self.patch = self._tensor(start).permute(0, 1, 4, 2, 3).contiguous()
        self.best, self.velocity = self.patch.clone(), torch.zeros_like(self.patch)
        self.index, self.size = self._tensor(self.image), self._tensor([task.patch_size for task in tasks])
        self.corner = self._tensor([task.position.corners for task in tasks])
        self.box = self._tensor(
            [self.renderer.to_network(image, task.target.box) for image, task in zip(self.image, tasks, strict=True)]
        ).float()
        self.edge = self._tensor([self.renderer.edge(image) for image in self.image]).float()
        self.relabels = self._tensor([task.relabels for task in tasks])
        self.planted, self.has_plant = self._planted_boxes()

    def run(self, on_progress: Progress) -> None:
        steps = self.budget.steps
        defended = any(len(of_task.views) > 1 for of_task in self.states)
        checked = 0
        active = np.arange(len(self.tasks))
        for step in range(steps):
            progress = step / steps
            if not len(active):
                break
            if defended and progress * FULL_CHECKS >= checked + 1:
                checked = int(progress * FULL_CHECKS)
                self._check_all_views(active)
            active = self._unfinished(active)
            together = max(self.batch_size // (1 + self.budget.views_per_step * defended), 1)
            for start in range(0, len(active), together):
                self._step(active[start : start + together], progress)
            on_progress(step + 1, steps)
        self._check_all_views(active)
        on_progress(steps, steps)

    def solutions(self) -> list[Solution]:
        patches = self.best.round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
        solutions = []
        for task, patch, state in zip(self.tasks, patches, self.states, strict=True):
            own = patch[:, : task.patch_size[1], : task.patch_size[0]].copy()
            solutions.append(Solution(task, own, state.best_loss, tuple(state.loss_curve), state.is_hidden))
        return solutions

    def _step(self, task_indices: Ints, progress: float) -> None:
        """Take one step for some tasks, each with the untouched view and a few masked ones."""
        import torch

        rows = self._tensor(task_indices)
        patch = self.patch[rows].requires_grad_()
        chosen = [self._choose_views(n) for n in task_indices]
        owner = np.repeat(np.arange(len(task_indices)), [len(views) for views in chosen])
        view = np.concatenate(chosen)
        losses, shown = self._losses(task_indices, owner, view, patch)
        # The untouched view weighs as much as all masked ones together: one base box is enough to show the object.
        weight = np.where(view == WHOLE, 1.0, 1.0 / self.budget.views_per_step)
        total = torch.zeros(len(task_indices), device=losses.device)
        total = total.index_add(0, self._tensor(owner), losses * self._tensor(weight).float())
        (gradient,) = torch.autograd.grad(total.sum(), patch)
        of_view, values = losses.detach().cpu().numpy(), total.detach().cpu().numpy()
        for k, n in enumerate(task_indices):
            own, state = owner == k, self.states[n]
            state.priority[view[own]] = of_view[own]
            state.loss_curve.append(float(values[k]))
            if len(state.views) == 1:
                self._keep_best(n, float(values[k]), not shown[own].any())
        # Beyond a patch's own size the gradient is zero, so the velocity is, and sign(0) moves nothing.
        self.patch[rows], self.velocity[rows] = sign_step(self.patch[rows], self.velocity[rows], gradient, progress)

    def _check_all_views(self, task_indices: Ints) -> None:
        """Evaluate all views of some tasks and keep the patches that are better than before."""
        import torch

        task = np.repeat(task_indices, [len(self.states[n].views) for n in task_indices])
        view = np.concatenate([np.arange(len(self.states[n].views)) for n in task_indices] or [np.empty(0, np.int64)])
        losses, shown = np.zeros(len(task)), np.zeros(len(task), np.bool_)
        for start in range(0, len(task), self.batch_size):
            part = slice(start, start + self.batch_size)
            tasks, owner = np.unique(task[part], return_inverse=True)
            with torch.no_grad():
                of_view, shows = self._losses(tasks, owner, view[part], self.patch[self._tensor(tasks)])
            losses[part], shown[part] = of_view.cpu().numpy(), shows
        for n in task_indices:
            of_task = task == n
            self.states[n].priority[:] = losses[of_task]
            self._keep_best(n, float(losses[of_task].sum()), not shown[of_task].any())

    def _keep_best(self, n: int, loss: float, is_hidden: bool) -> None:
        """Keep the patches of a task, judged in all of its views, if they are the best so far."""
        state = self.states[n]
        is_hidden = is_hidden and not state.is_safe
        if (is_hidden, -loss) > (state.is_hidden, -state.best_loss):
            self.best[n], state.best_loss, state.is_hidden = self.patch[n], loss, is_hidden

    def _unfinished(self, active: Ints) -> Ints:
        """Return the tasks whose object no task has hidden yet."""
        done = {id(task.target) for task, state in zip(self.tasks, self.states, strict=True) if state.is_hidden}
        return np.array([n for n in active if id(self.tasks[n].target) not in done], np.int64)

    def _losses(self, task_indices: Ints, owner: Ints, view: Ints, patch: Tensor) -> tuple[Tensor, Bools]:
        """Return the loss of each view, and whether it shows the object; view k belongs to task owner[k]."""
        rows, owners = self._tensor(task_indices), self._tensor(owner)
        of_view = [(self.states[task_indices[o]], v) for o, v in zip(owner, view, strict=True)]
        filled = self._tensor(np.stack([of_task.views.filled[v] for of_task, v in of_view]))
        window = np.stack([of_task.views.window[v] for of_task, v in of_view])
        lines = np.stack([of_task.lines[v] for of_task, v in of_view])
        inputs = self.renderer.render(self.index[rows], self.corner[rows], self.size[rows], patch)
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
            edge_factor=rule.edge_factor,
            certification_threshold=self.pipeline.certification_threshold,
            uses_iou=rule.overlap == "iou",
        )

    def _choose_views(self, n: int) -> Ints:
        """Return the untouched view, and masked ones: half those with the highest loss, half at random."""
        masks, count = len(self.states[n].views) - 1, self.budget.views_per_step
        if masks <= count:
            return np.arange(1 + masks)
        order = 1 + np.lexsort((self.rng.random(masks), -self.states[n].priority[1:]))
        top = order[: -(-count // 2)]
        return np.concatenate([[WHOLE], top, self.rng.choice(order[len(top) :], count - len(top), replace=False)])

    def _select_views(self, n: int, system: AttackedSystem) -> _TaskState:
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
            return _TaskState(whole, NO_LINES, np.zeros(1), nothing, False)
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
        single_view = PositionCertificates.from_target(self.pipeline, task.target, task.patch_size).evidence >= 1
        is_safe = task.position.proven or bool((single_view & immune[1:]).any())
        return _TaskState(ViewPlan(views.window[selected], filled), lines, priority, immune[1:], is_safe)

    def _planted_boxes(self) -> tuple[Tensor, Tensor]:
        """Return the base boxes each task has to plant, on the network input (tasks, P, 4), and which exist."""
        planted = [
            self.renderer.to_network(image, boxes_to_plant(self.pipeline, task.target, of_task.immune))
            for task, of_task, image in zip(self.tasks, self.states, self.image, strict=True)
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


def attack_by_random_search(
    setup: AttackSetup, tasks: Sequence[PatchTask], system: AttackedSystem, on_progress: Progress = no_progress
) -> list[Solution]:
    """Run the black-box attack on every task, `budget.steps` trials each; solutions in task order.

    The loss is how clearly the attacked system sees the object: in the image, and for the defense on average in the
    views, too.
    """

    def evaluate(numbers: Sequence[int], patches: Sequence[Patches]) -> list[tuple[float, bool]]:
        images = [tasks[n].draw(of_task) for n, of_task in zip(numbers, patches, strict=True)]
        targets = [tasks[n].target for n in numbers]
        if system == "undefended":  # all images in one call
            pairs = zip(targets, pipeline.seeker.detector(images), strict=True)
            return [(strength(target, boxes), not pipeline.judge(target, boxes).undefended) for target, boxes in pairs]
        states = []
        for target, image in zip(targets, images, strict=True):
            observation = pipeline.observe(image)
            views = [strength(target, boxes) for boxes in observation.masked]
            loss = strength(target, observation.base) + float(np.mean(views or [0.0]))
            states.append((loss, not pipeline.judge_observation(target, observation).defended))
        return states

    pipeline = setup.pipeline
    strength = pipeline.detection_strength
    searched = random_search(
        [task.start for task in tasks],
        evaluate,
        setup.budget.steps,
        [np.random.default_rng([setup.seed, n]) for n in range(len(tasks))],
        groups=[id(task.target) for task in tasks],
        on_progress=on_progress,
    )
    return [
        Solution(task, patches, curve[-1], tuple(curve), is_hidden)
        for task, (patches, curve, is_hidden) in zip(tasks, searched, strict=True)
    ]


def random_search(
    starts: Sequence[Patches],
    evaluate: Callable[[Sequence[int], Sequence[Patches]], Sequence[tuple[float, bool]]],
    steps: int,
    generators: Sequence[np.random.Generator],
    *,
    groups: Sequence[int] | None = None,
    on_progress: Progress = no_progress,
) -> list[tuple[Patches, list[float], bool]]:
    """Run several searches at once; return the best patches, the losses and the success of each.

    `evaluate` returns the loss of patches, and if the attack has succeeded, for the searches with these numbers. With
    `groups` a search ends when one of its group has succeeded. The losses are the best so far, of the start and of
    every step.
    """
    patches, every = list(starts), range(len(starts))
    states = list(evaluate(every, patches))
    curves = [[loss] for loss, _ in states]
    for step in range(steps):
        done = {groups[n] for n in every if states[n][1]} if groups else set()
        active = [n for n in every if not groups or groups[n] not in done]
        if not active:
            break
        trials = [random_square(patches[n], step / steps, generators[n]) for n in active]
        for n, trial, state in zip(active, trials, evaluate(active, trials), strict=True):
            if state[0] <= states[n][0]:
                patches[n], states[n] = trial, state
            curves[n].append(states[n][0])
        on_progress(step + 1, steps)
    on_progress(steps, steps)
    return [(patches[n], curves[n], states[n][1]) for n in every]


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
