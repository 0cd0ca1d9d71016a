"""Attacks that fabricate boxes or flip labels, and try to refute certificates against fabrication.

Of every target the attack draws its patches on the box it wants: a box of a class that is not there ("fabricate"), or
of another class on an object ("flip"). White-box: gradients of the wanted box's score, in the untouched view and in
masked ones. Black-box: random search by what the detector returns. The real pipeline judges the finished image.

A certificate is refuted if a box of the output is certified not fabricated, the patch is at an allowed position of that
box, and no view of the clean image that shows nothing of the patch has a box that supports it: literally what the
certificate excludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from objectseeker.attack.losses import fabricating_loss
from objectseeker.attack.metrics import Row, format_rate, rate_with_interval
from objectseeker.attack.optimizers import descend, random_search
from objectseeker.attack.pipeline import (
    AttackedSystem,
    AttackReport,
    PatchTask,
    Pipeline,
    Position,
    Progress,
    Solution,
    Target,
    fits,
    initial_patches,
    no_progress,
    repeats,
)
from objectseeker.attack.placement import removing_masks
from objectseeker.attack.setup import AttackSetup
from objectseeker.attack.whitebox import PatchRenderer, Tensor, fill_views
from objectseeker.core.boxes import Bools, Detections, Floats, iou
from objectseeker.core.masks import Image
from objectseeker.core.seeker import view_rectangles
from objectseeker.core.threats import Patch, PatchPositions, patch_sizes
from objectseeker.errors import ObjectSeekerError

WANTED_SIZE = (0.15, 0.4)  # sides of a fabricated box, as shares of the image
MAX_OVERLAP = 0.1  # IoU of a fabricated box with whatever the detector reports without a patch
PLACES = 200  # that are tried for such a box


@dataclass(frozen=True, slots=True, eq=False)
class FabricationOutcome:
    """The outcome for one wanted box, judged by the real pipeline on the finished image.

    The target of the task has the wanted box and the classes that serve it. `made_undefended` and `made_defended` say
    whether a wanted box is in the output that was not there without the patch. Of the output's new boxes `certified`
    are certified not fabricated, and `refuted` of these refute it.
    """

    task: PatchTask
    image: Image
    made_undefended: bool
    made_defended: bool
    new_boxes: int
    certified: int
    wanted_certified: bool
    refuted: int
    loss: float = 0.0
    loss_curves: tuple[tuple[float, ...], ...] = ()

    @property
    def target(self) -> Target:
        return self.task.target

    @property
    def attacks(self) -> dict[AttackedSystem, FabricationOutcome]:
        """The image of the attack, which is on the defense."""
        return {"defended": self}

    @property
    def guarantee_broken(self) -> bool:
        return self.refuted > 0

    @property
    def severity(self) -> tuple[bool, bool, bool, float]:
        """A rank; the highest must be reported."""
        return self.guarantee_broken, self.made_defended, self.made_undefended, -self.loss

    def to_dict(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return plain values, as in attack.json."""
        names, labels = pipeline.class_names, self.target.labels
        is_named = len(labels) == 1 and labels[0] < len(names)
        return {
            **self.target.to_dict(),
            "wanted_class": names[labels[0]] if is_named else None,
            **self.task.to_dict(),
            "made_undefended": self.made_undefended,
            "made_defended": self.made_defended,
            "new_boxes": self.new_boxes,
            "certified": self.certified,
            "wanted_certified": self.wanted_certified,
            "guarantee_broken": self.guarantee_broken,
            "loss": self.loss,
        }


@dataclass(frozen=True, slots=True)
class Fabrication:
    """The goal to make boxes: of a random class where nothing is; "flip": of another class on objects."""

    goal: Literal["fabricate", "flip"]

    def attack(
        self, setup: AttackSetup, targets: Sequence[Target], on_progress: Progress = no_progress
    ) -> list[FabricationOutcome]:
        """Try to make one box per target; no outcome for a target whose image has no room for one."""
        pipeline, patch, restarts, outcomes = setup.pipeline, setup.patch, setup.budget.restarts, []
        optimize = _search if setup.white is None else _optimize
        for number, target in enumerate(targets):
            entropy = [target.number, *target.image_id.encode()]
            planned = self.plan(pipeline, target, patch, np.random.default_rng([setup.seed, *entropy]))
            if planned is None:
                continue
            wanted, position = planned
            size = patch.size(*target.image_size)
            tried: list[FabricationOutcome] = []
            curves: tuple[tuple[float, ...], ...] = ()
            for restart in range(restarts):
                rng = np.random.default_rng([setup.seed, restart, *entropy])
                task = PatchTask(wanted, position, initial_patches(wanted, position, size, restart, rng))
                solution = optimize(setup, task, rng)
                curves += (solution.loss_curve,)
                tried.append(replace(judge(pipeline, task, task.draw(solution.patches), patch), loss=solution.loss))
                on_progress(number * restarts + restart + 1, len(targets) * restarts)
            outcomes.append(replace(max(tried, key=lambda outcome: outcome.severity), loss_curves=curves))
        return outcomes

    def plan(
        self, pipeline: Pipeline, target: Target, patch: Patch, rng: np.random.Generator
    ) -> tuple[Target, Position] | None:
        """Choose the wanted box, as a target, and its patches' position; None if there is no room."""
        classes = len(pipeline.class_names)
        if self.goal == "fabricate":
            box = _free_box(target, rng)
            if box is None:
                return None
            wanted = replace(target, box=box, labels=(int(rng.integers(classes)),))
        elif classes < 2:
            raise ObjectSeekerError(
                f"a label can flip only to another class: got a detector of {classes}. Use fabricate."
            )
        else:
            wanted = replace(target, labels=tuple(label for label in range(classes) if label not in target.labels))
        size = np.array([patch.size(*target.image_size)])
        allowed = PatchPositions.of(wanted.box[None], *target.image_size).allowed(patch.location, size)[0]
        allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
        if not len(allowed):
            return None
        center = (wanted.box[:2] + wanted.box[2:] - size[0]) / 2
        corners = []
        for _ in range(patch.count):
            aim = center + rng.normal(0, 0.15, 2) * (wanted.box[2:] - wanted.box[:2])
            nearest = np.clip(aim.round().astype(np.int64), allowed[:, :2], allowed[:, 2:])
            x, y = nearest[np.argmin(((nearest - aim) ** 2).sum(axis=1))].tolist()
            corners.append((x, y))
        return wanted, Position(tuple(corners))

    def measure(self, rows: Sequence[Row]) -> tuple[dict[str, Any], None]:
        """Return success rates; `certified` counts wanted boxes that are made and certified not fabricated."""
        flags = {"undefended": "made_undefended", "defended": "made_defended", "certified": "wanted_certified"}
        summary = {
            "attacked": len(rows),
            **{name: rate_with_interval(sum(row[key] for row in rows), len(rows)) for name, key in flags.items()},
            "new_boxes": sum(row["new_boxes"] for row in rows),
            "certified_new_boxes": sum(row["certified"] for row in rows),
            "broken_guarantees": sum(row["guarantee_broken"] for row in rows),
        }
        return summary, None

    def report(self, summary: dict[str, Any], recall: dict[str, Any] | None, rows: Sequence[Row]) -> AttackReport:
        undefended, defended, certified = (format_rate(summary[key]) for key in ("undefended", "defended", "certified"))
        return AttackReport(
            f"certificates refuted: {summary['broken_guarantees']} of {summary['attacked']} targets",
            [
                {"": "wanted boxes made", "undefended": undefended, "defended": defended},
                {"": "and certified not fabricated", "undefended": "-", "defended": certified},
            ],
            [
                f"{summary['certified_new_boxes']} of {summary['new_boxes']} new boxes are certified: "
                "views without the patch support them"
            ],
            "a certified box has no support without the patch",
        )


def _free_box(target: Target, rng: np.random.Generator) -> Floats | None:
    size = np.array(target.image_size)
    seen = Detections.concatenate([target.observation.base, target.ground_truth]).xyxy
    for _ in range(PLACES):
        sides = size * rng.uniform(*WANTED_SIZE, 2)
        corner = rng.uniform(0, size - sides)
        box = np.concatenate([corner, corner + sides])
        if not (iou(box[None], seen) > MAX_OVERLAP).any():
            return box
    return None


def judge(pipeline: Pipeline, task: PatchTask, image: Image, patch: Patch) -> FabricationOutcome:
    """Judge a finished image by the defended detector itself, literally by what certificates exclude."""
    wanted = task.target
    clean, attacked = wanted.observation, pipeline.observe(image)
    output, previous = pipeline.rule.prune(attacked), pipeline.rule.prune(clean)
    new = ~repeats(output, previous)
    base = pipeline.base_boxes(attacked)
    certified = pipeline.seeker.certify_not_fabricated(attacked, output, patch).certified[0]
    criteria = pipeline.rule.support_criteria
    without_patch = _removing(task)[clean.mask_index] & (clean.all_masked.score >= criteria.threshold)
    supported = criteria.fits(clean.all_masked[without_patch], output).any(axis=0)
    serves = _serves(wanted, output) & new
    return FabricationOutcome(
        task,
        image,
        made_undefended=bool((_serves(wanted, base) & ~repeats(base, previous)).any()),
        made_defended=bool(serves.any()),
        new_boxes=int(new.sum()),
        certified=int((new & certified).sum()),
        wanted_certified=bool((serves & certified).any()),
        refuted=int((certified & ~supported & _positions_allowed(output, task, patch)).sum()),
    )


def _serves(wanted: Target, boxes: Detections) -> Bools:
    """Return the boxes that fit the wanted box and have one of its classes."""
    return fits(wanted, boxes) & np.isin(boxes.label, wanted.labels)


def _removing(task: PatchTask) -> Bools:
    """Return which masks remove all patches."""
    masks = task.target.observation.masks
    return np.asarray(removing_masks(masks, np.array(task.position.corners), task.patch_size).all(axis=0))


def _positions_allowed(output: Detections, task: PatchTask, patch: Patch) -> Bools:
    """Return the boxes of which every patch is at an allowed position: no other certificate is refuted."""
    size = task.target.image_size
    sizes = patch_sizes(patch, *size, len(output))
    allowed = PatchPositions.of(output.xyxy, *size).allowed(patch.location, sizes)
    holds = np.ones(len(output), np.bool_)
    for corner in np.array(task.position.corners):
        inside = (allowed[..., :2] <= corner).all(axis=-1) & (corner <= allowed[..., 2:]).all(axis=-1)
        holds &= inside.any(axis=1)
    return holds


def _optimize(setup: AttackSetup, task: PatchTask, rng: np.random.Generator) -> Solution:
    """Raise the score of the wanted box by gradients, in the untouched view and in random masked ones."""
    import torch

    def tensor(values: Any) -> Any:
        return torch.as_tensor(np.asarray(values), device=white.device)

    white, wanted = setup.gradients, task.target
    renderer = PatchRenderer(white, [wanted.image])
    plan = renderer.view_plan(0, view_rectangles(wanted.observation.masks))
    shown = 1 + np.flatnonzero(~_removing(task))
    corner, size = tensor([task.position.corners]), tensor([task.patch_size])
    box = tensor(renderer.to_network(0, wanted.box[None])).float()

    def loss_of(pixels: Tensor) -> Tensor:
        masked = rng.choice(shown, min(setup.budget.views_per_step, len(shown)), replace=False)
        views = np.concatenate([[0], masked]).astype(np.int64)
        inputs = renderer.render(tensor([0]), corner, size, pixels).expand(len(views), -1, -1, -1)
        inputs = fill_views(inputs, tensor(plan.filled[views]), setup.pipeline.seeker.fill)
        boxes, scores = white.window_outputs(inputs, plan.window[views])
        losses = fabricating_loss(boxes, scores, box, tensor(wanted.labels), white.detector.layout.every_class)
        return losses[0] + losses[1:].mean() if len(views) > 1 else losses[0]

    start = tensor(task.start).float().permute(0, 3, 1, 2)[None].contiguous()
    _, best, curve = descend(start, loss_of, setup.budget.steps)
    return Solution(task, best[0].round().byte().permute(0, 2, 3, 1).cpu().numpy(), min(curve), tuple(curve))


def _search(setup: AttackSetup, task: PatchTask, rng: np.random.Generator) -> Solution:
    """Raise the score of the wanted box by random search over all views."""

    def strength(boxes: Detections) -> float:
        """Return how clearly boxes show the wanted one: its best score times its fit."""
        boxes = boxes[np.isin(boxes.label, task.target.labels)]
        return float((boxes.score * iou(task.target.box[None], boxes.xyxy)[0]).max(initial=0.0))

    def evaluate(numbers: Sequence[int], patches: Sequence[Any]) -> list[tuple[float, bool]]:
        seen = setup.pipeline.observe(task.draw(patches[0]))
        views = [strength(boxes) for boxes in seen.masked]
        return [(-strength(seen.base) - float(np.mean(views or [0.0])), False)]

    ((patches, curve, _),) = random_search([task.start], evaluate, setup.budget.steps, [rng])
    return Solution(task, patches, curve[-1], tuple(curve))
