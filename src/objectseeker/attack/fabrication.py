"""Attacks that fabricate boxes or flip labels, and try to refute certificates against fabrication.

Of every target the attack draws one patch on the box it wants: a box of a class that is not there (`fabricate`), or of
another class on an object (`flip`). White-box: gradients of the wanted box's score, in the untouched view and in
masked ones. Black-box: random search by what the detector returns. The real pipeline judges the finished image.

A certificate is refuted if a box of the output is certified not fabricated, the patch is at an allowed position of that
box, and no view of the clean image that shows nothing of the patch has a box that supports it: literally what the
certificate excludes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import PIL.Image

from objectseeker.attack.artifacts import save_image
from objectseeker.attack.job import AttackSetup, Mode, no_progress, prepare_attack
from objectseeker.attack.losses import ANCHORS_PER_PLANT, LOGIT_MARGIN, Tensor, logit, tensor_iou
from objectseeker.attack.metrics import rate_with_interval
from objectseeker.attack.optimizers import random_square
from objectseeker.attack.pipeline import (
    FITTING_IOU,
    AttackBudget,
    Patches,
    Position,
    Progress,
    Target,
    draw_patches,
    initial_patches,
)
from objectseeker.attack.placement import removing_masks
from objectseeker.attack.whitebox import PatchRenderer, WhiteBox, fill_views
from objectseeker.core.boxes import Bools, Detections, Floats, iou
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.seeker import view_rectangles
from objectseeker.core.threats import Patch, PatchPositions, ThreatModel, patch_sizes
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json
from objectseeker.inference.results import annotate_result, detect_image
from objectseeker.runs.run import Run

Goal = Literal["fabricate", "flip"]
GOALS: tuple[Goal, ...] = get_args(Goal)

WANTED_SCORE = 0.6  # that gradients strive for, in every view that shows the patch
WANTED_SIZE = (0.15, 0.4)  # sides of a fabricated box, as shares of the image
MAX_OVERLAP = 0.1  # IoU of a fabricated box with whatever the detector reports without a patch
PLACES = 200  # that are tried for such a box
FIRST_STEP, LAST_STEP, MOMENTUM = 24.0, 1.0, 0.9  # gray levels per step


@dataclass(frozen=True, slots=True, eq=False)
class WantedBox:
    """The box that the attack wants in the output: `labels` are the classes that serve it."""

    target: Target
    box: Floats
    labels: tuple[int, ...]
    position: Position
    patch_size: tuple[int, int]


def wanted_box(target: Target, patch: Patch, goal: Goal, classes: int, rng: np.random.Generator) -> WantedBox | None:
    """Choose the wanted box and the position of its patch; None if the image has no room for one."""
    width, height = target.image_size
    if goal == "flip":
        box, labels = target.box, tuple(label for label in range(classes) if label not in target.labels)
    else:
        free = _free_box(target, rng)
        if free is None:
            return None
        box, labels = free, (int(rng.integers(classes)),)
    size = patch.size(width, height)
    allowed = PatchPositions.of(box[None], width, height).allowed(patch.location, patch_sizes(patch, width, height, 1))[
        0
    ]
    allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
    if not len(allowed):
        return None
    center = (box[:2] + box[2:] - size) / 2
    corners = []
    for _ in range(patch.count):
        aim = center + rng.normal(0, 0.15, 2) * (box[2:] - box[:2])
        nearest = np.clip(aim.round().astype(np.int64), allowed[:, :2], allowed[:, 2:])
        best = int(np.argmin(((nearest - aim) ** 2).sum(axis=1)))
        corners.append((int(nearest[best, 0]), int(nearest[best, 1])))
    return WantedBox(target, box, labels, Position(tuple(corners), False, 0.0), size)


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


@dataclass(frozen=True, slots=True, eq=False)
class FabricationOutcome:
    """The outcome for one wanted box, judged by the real pipeline on the finished image.

    `made_undefended` and `made_defended` say whether a wanted box is in the output that was not there without the
    patch. Of the output's new boxes `certified` are certified not fabricated, and `refuted` of these refute it.
    """

    wanted: WantedBox
    image: Image
    made_undefended: bool
    made_defended: bool
    new_boxes: int
    certified: int
    wanted_certified: bool
    refuted: int
    loss: float

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return plain values, as in attack.json."""
        labels = self.wanted.labels
        return {
            "image": self.wanted.target.image_id,
            "object": self.wanted.target.number,
            "class": self.wanted.target.class_name,
            "box": self.wanted.box.tolist(),
            "wanted_class": names[labels[0]] if len(labels) == 1 and labels[0] < len(names) else None,
            "corners": [list(corner) for corner in self.wanted.position.corners],
            "width": self.wanted.patch_size[0],
            "height": self.wanted.patch_size[1],
            "made_undefended": self.made_undefended,
            "made_defended": self.made_defended,
            "new_boxes": self.new_boxes,
            "certified": self.certified,
            "wanted_certified": self.wanted_certified,
            "guarantee_broken": self.refuted > 0,
            "loss": self.loss,
        }


@dataclass(frozen=True, slots=True, eq=False)
class FabricationResult:
    """The result of an attack that fabricates boxes or flips labels."""

    setup: AttackSetup
    goal: Goal
    patch: Patch
    budget: AttackBudget
    seed: int
    outcomes: tuple[FabricationOutcome, ...]

    @property
    def broken_guarantees(self) -> int:
        """Number of targets with a box that refutes its certificate."""
        return sum(outcome.refuted > 0 for outcome in self.outcomes)

    @property
    def summary(self) -> dict[str, Any]:
        """Return success rates; `certified` counts wanted boxes that are made and certified not fabricated."""
        total = len(self.outcomes)
        return {
            "attacked": total,
            "undefended": rate_with_interval(sum(one.made_undefended for one in self.outcomes), total),
            "defended": rate_with_interval(sum(one.made_defended for one in self.outcomes), total),
            "certified": rate_with_interval(sum(one.wanted_certified for one in self.outcomes), total),
            "new_boxes": sum(one.new_boxes for one in self.outcomes),
            "certified_new_boxes": sum(one.certified for one in self.outcomes),
            "broken_guarantees": self.broken_guarantees,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        return {
            "goal": self.goal,
            "defense": self.setup.defense.to_public_dict(),
            "device": self.setup.device,
            "mode": self.setup.mode,
            "patch": asdict(self.patch),
            "budget": asdict(self.budget),
            "seed": self.seed,
            "summary": self.summary,
            "targets": [outcome.to_dict(self.setup.class_names) for outcome in self.outcomes],
        }


def fabricate(
    source: Run | str | Path | Sequence[str | Path],
    defense: Defense | str | Path | None = None,
    patch: Patch = Patch(location="anywhere"),  # noqa: B008  (frozen)
    *,
    goal: Goal = "fabricate",
    out: str | Path | None = None,
    mode: Mode | None = None,
    max_objects: int = 5,
    budget: AttackBudget = AttackBudget(),  # noqa: B008  (frozen)
    device: str | None = None,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> FabricationResult:
    """Try to make boxes, or to flip labels, with a patch, and to refute certificates against fabrication.

    Args:
        source: A run or its folder, or images, as for `attack`; each of its objects gives one target.
        defense: A defense, its file or its name. Default: the run's, or that of the built-in detector.
        patch: The threat model; its location is relative to the wanted box.
        goal: "fabricate" wants a box of a random class where nothing is, "flip" one of another class on an object.
        out: A folder for attack.json and annotated images; with None nothing is written.
        mode: "white-box" uses gradients, "black-box" only boxes. Default: white-box if the detector has gradients.
        max_objects: At most that many targets.
        budget: Effort.
        device: The torch device.
        seed: Seed of the choice of targets and initial pixels.
        on_progress: Called with the steps done and their number.

    Returns:
        A `FabricationResult`. `broken_guarantees` above 0 means that a guarantee is broken.

    Raises:
        ObjectSeekerError: The source, the defense or an option cannot be used.

    Example:
        >>> fabricate("street.jpg", patch=Patch(area=0.04, location="anywhere")).broken_guarantees  # doctest: +SKIP
        0
    """
    setup, targets = prepare_attack(
        source, defense, mode=mode, max_objects=max_objects, device=device, seed=seed, on_progress=on_progress
    )
    folder = None if out is None else Path(out)
    return run_fabrication(setup, targets, patch, goal, budget, folder, seed=seed, on_progress=on_progress)


def run_fabrication(
    setup: AttackSetup,
    targets: Iterable[Target],
    patch: Patch,
    goal: Goal,
    budget: AttackBudget,
    out: Path | None,
    *,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> FabricationResult:
    """Attack every target with this goal; write attack.json and annotated images to `out`, if given.

    Raises:
        ObjectSeekerError: The goal is unknown, or no image has room for a wanted box.
    """
    if goal not in GOALS:
        raise ObjectSeekerError(f"goal must be hide, {' or '.join(GOALS)}: got {goal!r}. Choose one of them.")
    classes = len(setup.class_names)
    if classes < 2 and goal == "flip":
        raise ObjectSeekerError(f"a label can flip only to another class: got a detector of {classes}. Use fabricate.")
    wanted = []
    for target in targets:
        rng = np.random.default_rng([seed, target.number, *target.image_id.encode()])
        found = wanted_box(target, patch, goal, classes, rng)
        if found is not None:
            wanted.append(found)
    if not wanted:
        raise ObjectSeekerError(
            f"no image has room for a box to {goal}: got a patch of {patch.area:g} {patch.location}."
        )
    outcomes = []
    steps = budget.steps * budget.restarts
    for number, one in enumerate(wanted):

        def report(done: int, number: int = number) -> None:
            on_progress(number * steps + done, len(wanted) * steps)

        best: FabricationOutcome | None = None
        for restart in range(budget.restarts):
            rng = np.random.default_rng([seed, restart, one.target.number, *one.target.image_id.encode()])
            start = initial_patches(one.target, one.position, one.patch_size, restart, rng)
            if setup.white is None:
                patches, loss = _search(setup, one, start, budget, rng)
            else:
                patches, loss = _optimize(setup, setup.white, one, start, budget, rng)
            outcome = judge(setup, one, patches, patch, loss)
            if best is None or _severity(outcome) > _severity(best):
                best = outcome
            report((restart + 1) * budget.steps)
        assert best is not None
        outcomes.append(best)
        if out is not None:
            _save_outcome(out, setup, best, patch, number)
    result = FabricationResult(setup, goal, patch, budget, seed, tuple(outcomes))
    if out is not None:
        save_json(out / "attack.json", result.to_dict())
    return result


def _severity(outcome: FabricationOutcome) -> tuple[bool, bool, bool, float]:
    return outcome.refuted > 0, outcome.made_defended, outcome.made_undefended, -outcome.loss


def judge(setup: AttackSetup, wanted: WantedBox, patches: Patches, patch: Patch, loss: float) -> FabricationOutcome:
    """Judge a finished image by the defended detector itself, literally by what certificates exclude."""
    pipeline, target = setup.pipeline, wanted.target
    image = draw_patches(target.image, patches, wanted.position.corners)
    clean, attacked = target.observation, pipeline.observe(image)
    rule = pipeline.rule
    output, before = pipeline.output(rule, attacked), pipeline.output(rule, clean)
    new = ~_repeats(output, before)
    base = attacked.base.with_min_score(rule.base_threshold)
    certified = pipeline.seeker.certify_not_fabricated(attacked, output, patch).certified[0]
    removing = np.asarray(removing_masks(clean.masks, np.array(wanted.position.corners), wanted.patch_size).all(axis=0))
    unexplained = certified & ~_has_support(setup, clean, output, removing)
    unexplained &= _positions_allowed(output, wanted, patch, clean)
    serves = _serves(wanted, output) & new
    return FabricationOutcome(
        wanted=wanted,
        image=image,
        made_undefended=bool((_serves(wanted, base) & ~_repeats(base, before)).any()),
        made_defended=bool(serves.any()),
        new_boxes=int(new.sum()),
        certified=int((new & certified).sum()),
        wanted_certified=bool((serves & certified).any()),
        refuted=int(unexplained.sum()),
        loss=loss,
    )


def _serves(wanted: WantedBox, boxes: Detections) -> Bools:
    """Return the boxes that fit the wanted box and have one of its classes."""
    fits = iou(boxes.xyxy, wanted.box[None])[:, 0] >= FITTING_IOU
    return np.asarray(fits & np.isin(boxes.label, wanted.labels))


def _repeats(boxes: Detections, before: Detections) -> Bools:
    same = (iou(boxes.xyxy, before.xyxy) >= FITTING_IOU) & (boxes.label[:, None] == before.label[None])
    return np.asarray(same.any(axis=1))


def _has_support(setup: AttackSetup, clean: Observation, output: Detections, removing: Bools) -> Bools:
    """Return the boxes that a clean view without the patch supports."""
    criteria = setup.pipeline.rule.support_criteria
    usable = removing[clean.mask_index] & (clean.all_masked.score >= criteria.threshold)
    return np.asarray(criteria.fits(clean.all_masked[usable], output).any(axis=0))


def _positions_allowed(output: Detections, wanted: WantedBox, patch: Patch, clean: Observation) -> Bools:
    """Return the boxes of which every patch is at an allowed position: no other certificate is refuted."""
    size = patch_sizes(patch, clean.width, clean.height, len(output))
    allowed = PatchPositions.of(output.xyxy, clean.width, clean.height).allowed(patch.location, size)
    holds = np.ones(len(output), np.bool_)
    for corner in np.array(wanted.position.corners):
        inside = (allowed[..., :2] <= corner).all(axis=-1) & (corner <= allowed[..., 2:]).all(axis=-1)
        holds &= inside.any(axis=1)
    return holds


def _optimize(
    setup: AttackSetup,
    white: WhiteBox,
    wanted: WantedBox,
    start: Patches,
    budget: AttackBudget,
    rng: np.random.Generator,
) -> tuple[Patches, float]:
    """Raise the score of the wanted box by gradients, in the untouched view and in random masked ones."""
    import torch

    def tensor(values: Any) -> Any:
        return torch.as_tensor(np.asarray(values), device=white.device)

    image, masks = wanted.target.image, wanted.target.observation.masks
    renderer = PatchRenderer(white, [image])
    plan = renderer.view_plan(0, view_rectangles(masks))
    removing = removing_masks(masks, np.array(wanted.position.corners), wanted.patch_size).all(axis=0)
    shown = 1 + np.flatnonzero(~removing)
    corner, size = tensor([wanted.position.corners]), tensor([wanted.patch_size])
    box = tensor(renderer.to_network(0, wanted.box[None])).float()
    patch = tensor(start).float().permute(0, 3, 1, 2)[None].contiguous()
    velocity, best, best_loss = torch.zeros_like(patch), patch.clone(), float("inf")
    for step in range(budget.steps):
        masked = rng.choice(shown, min(budget.views_per_step, len(shown)), replace=False)
        views = np.concatenate([[0], masked]).astype(np.int64)
        leaf = patch.clone().requires_grad_()
        inputs = renderer.render(tensor([0]), corner, size, leaf).expand(len(views), -1, -1, -1)
        inputs = fill_views(inputs, tensor(plan.filled[views]), setup.pipeline.seeker.fill)
        boxes, scores = white.window_outputs(inputs, plan.window[views])
        losses = fabricating_loss(boxes, scores, box, tensor(wanted.labels), white.detector.layout.every_class)
        loss = losses[0] + losses[1:].mean() if len(views) > 1 else losses[0]
        (gradient,) = torch.autograd.grad(loss, leaf)
        value = float(loss.detach())
        if value < best_loss:
            best, best_loss = patch.clone(), value
        velocity = MOMENTUM * velocity + gradient / gradient.abs().mean().clamp(min=1e-12)
        rate = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / budget.steps)
        patch = (patch - rate * velocity.sign()).clamp(0, 255)
    return best[0].round().byte().permute(0, 2, 3, 1).cpu().numpy(), best_loss


def fabricating_loss(boxes: Tensor, scores: Tensor, wanted: Tensor, labels: Tensor, every_class: bool) -> Tensor:
    """Return how far each view is from showing the wanted box: (N,).

    `wanted` is (1, 4) in network pixels. Of the boxes that fit it most, the nearest counts. Unless every class of a box
    counts, its wanted class must also exceed the others.
    """
    logits = logit(scores)
    fit = tensor_iou(wanted[:, None], boxes)
    best = fit.topk(min(ANCHORS_PER_PLANT, fit.shape[1]), dim=1)
    own = logits[..., labels].amax(2).gather(1, best.indices)
    lacking = (float(np.log(WANTED_SCORE / (1 - WANTED_SCORE))) + LOGIT_MARGIN - own).relu()
    others = np.setdiff1d(np.arange(logits.shape[2]), labels.cpu().numpy())
    if not every_class and len(others):
        lacking = lacking + (logits[..., others].amax(2).gather(1, best.indices) - own + LOGIT_MARGIN).relu()
    return (lacking + 4 * (1 - best.values)).amin(1)


def _search(
    setup: AttackSetup, wanted: WantedBox, start: Patches, budget: AttackBudget, rng: np.random.Generator
) -> tuple[Patches, float]:
    """Raise the score of the wanted box by random search over all views."""

    def loss_of(patches: Patches) -> float:
        seen = setup.pipeline.observe(draw_patches(wanted.target.image, patches, wanted.position.corners))
        views = [_strength(wanted, boxes) for boxes in seen.masked]
        return -_strength(wanted, seen.base) - float(np.mean(views or [0.0]))

    patches, loss = start, loss_of(start)
    for step in range(budget.steps):
        trial = random_square(patches, step / budget.steps, rng)
        trial_loss = loss_of(trial)
        if trial_loss <= loss:
            patches, loss = trial, trial_loss
    return patches, loss


def _strength(wanted: WantedBox, boxes: Detections) -> float:
    """Return how clearly boxes show the wanted one: its best score times its fit."""
    of_class = np.isin(boxes.label, wanted.labels)
    fit = iou(boxes.xyxy[of_class], wanted.box[None])[:, 0]
    return float((boxes.score[of_class] * fit).max(initial=0.0))


def _save_outcome(out: Path, setup: AttackSetup, outcome: FabricationOutcome, patch: Patch, number: int) -> None:
    """Write the image before and after with both certificates; of a refuted certificate all that shows it."""
    threat = ThreatModel(area=patch.area, aspect=patch.aspect, count=patch.count)
    panels = []
    for image in (outcome.wanted.target.image, outcome.image):
        result = detect_image(setup.pipeline.seeker, image, threat=threat)
        panels.append(annotate_result(image, result, setup.class_names, threat))
    page = PIL.Image.new("RGB", (sum(one.width for one in panels), max(one.height for one in panels)), "white")
    page.paste(panels[0], (0, 0))
    page.paste(panels[1], (panels[0].width, 0))
    save_image(out / "annotated" / f"{number}.jpg", page)
    if outcome.refuted:
        for name, pixels in (("clean", outcome.wanted.target.image), ("attacked", outcome.image)):
            save_image(out / "broken" / str(number) / f"{name}.png", PIL.Image.fromarray(pixels))
        save_json(out / "broken" / str(number) / "defense.json", setup.defense.to_public_dict())
