"""Attack a defense: choose objects, optimize patches, evaluate them, compare with certificates.

The threat model is a `Patch`: its area, aspect, count and location. The attack is adaptive: it knows the defense and
goes where the certificate is weakest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import numpy as np

from objectseeker.attack import artifacts
from objectseeker.attack.metrics import AttackOutcome, EvaluatedImage, attack_summary, outcome_row, recall_bounds
from objectseeker.attack.optimizers import attack_by_gradients, attack_by_random_search
from objectseeker.attack.pipeline import (
    ATTACKED_SYSTEMS,
    AttackBudget,
    AttackedSystem,
    PatchTask,
    Pipeline,
    Progress,
    Solution,
    Target,
    draw_patches,
    initial_patches,
)
from objectseeker.attack.placement import drawn_size, find_leaking_views, nearest_positions, weakest_positions
from objectseeker.attack.whitebox import WhiteBox
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.atomic import save_json
from objectseeker.files.images import load_image
from objectseeker.metrics.settings import require_seed

if TYPE_CHECKING:
    from objectseeker.runs.run import Run

Mode = Literal["white-box", "black-box"]

MIN_OBJECT_SCORE = 0.5  # at and above which a base box counts as an object, where there are no annotations
OBJECTS_PER_BATCH = {"cpu": 1, "cuda": 64}


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, eq=False)
class AttackResult:
    """The result of an attack on one defense.

    `objects` are the attacked objects as plain values, `summary` the success rates, and `recall` the recall of both
    detectors between its bounds; rates have a count, a total and a 95 % confidence interval. `outcomes` has the
    adversarial images.
    """

    setup: AttackSetup
    patch: Patch
    budget: AttackBudget
    seed: int
    outcomes: tuple[AttackOutcome, ...]
    objects: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    recall: dict[str, Any]

    @property
    def broken_guarantees(self) -> int:
        """Number of objects whose certificate or proof the attack refuted."""
        return int(self.summary["broken_guarantees"])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        return {
            "defense": self.setup.defense.to_public_dict(),
            "device": self.setup.device,
            "mode": self.setup.mode,
            "patch": asdict(self.patch),
            "certification_threshold": self.setup.pipeline.certification_threshold,
            "budget": asdict(self.budget),
            "seed": self.seed,
            "summary": self.summary,
            "recall": self.recall,
            "objects": list(self.objects),
        }

    def _repr_html_(self) -> str:
        rows = {"recall without patch": "clean_recall", "recall under attack": "recall_under_attack"}
        table = "<tr><th></th><th>undefended</th><th>defended</th></tr>"
        for name, key in (rows | {"certified recall": "certified_recall"}).items():
            rates = (self.recall[system][key] for system in ATTACKED_SYSTEMS)
            cells = "".join(f"<td>{rate['count']} of {rate['total']}</td>" for rate in rates)
            table += f"<tr><th>{name}</th>{cells}</tr>"
        return f"<p>Broken guarantees: {self.broken_guarantees}</p><table>{table}</table>"


def attack(
    source: Run | str | Path | Sequence[str | Path],
    defense: Defense | str | Path | None = None,
    patch: Patch = Patch(),  # noqa: B008  (frozen)
    *,
    out: str | Path | None = None,
    mode: Mode | None = None,
    certification_threshold: float | None = None,
    max_objects: int = 5,
    budget: AttackBudget = AttackBudget(),  # noqa: B008  (frozen)
    device: str | None = None,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> AttackResult:
    """Try to hide objects with a patch and to refute their certificates.

    Args:
        source: A run or its folder, which provides images, annotations, detector and masks; or images without
            annotations, whose confident base boxes are the objects.
        defense: A defense, its file or its name. Default: the run's, or that of the built-in detector.
        patch: The threat model: area, aspect, location and count.
        out: A folder for attack.json, images and loss curves; with None nothing is written.
        mode: "white-box" uses gradients, "black-box" only boxes. Default: white-box if the detector has gradients.
        certification_threshold: T of certificates and verdicts. Default: that of the rule.
        max_objects: At most that many objects are attacked.
        budget: Effort and tactics.
        device: The torch device.
        seed: Seed of the choice of objects, positions and initial pixels.
        on_progress: Called with the objects observed and their number, then with the steps done and their number.

    Returns:
        An `AttackResult`. `broken_guarantees` above 0 means that a guarantee is broken.

    Raises:
        ObjectSeekerError: The source, the defense or an option cannot be used.

    Example:
        >>> from objectseeker import Patch
        >>> from objectseeker.attack import AttackBudget, attack
        >>> from objectseeker.demo.samples import samples
        >>> image = next(sample.path for sample in samples() if sample.name == "lunch")
        >>> quick = AttackBudget(steps=1, restarts=1)
        >>> result = attack(image, "builtin-fast", Patch(0.01), mode="black-box", max_objects=1, budget=quick)
        >>> result.broken_guarantees
        0
    """
    setup, chosen = prepare_attack(
        source,
        defense,
        certification_threshold=certification_threshold,
        mode=mode,
        max_objects=max_objects,
        device=device,
        seed=seed,
        on_progress=on_progress,
    )
    return run_attack(
        setup, chosen, patch, budget, None if out is None else Path(out), seed=seed, on_progress=on_progress
    )


def prepare_attack(
    source: Run | str | Path | Sequence[str | Path],
    defense: Defense | str | Path | None,
    *,
    certification_threshold: float | None = None,
    mode: Mode | None = None,
    max_objects: int = 5,
    device: str | None = None,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> tuple[AttackSetup, list[Target]]:
    """Load the attacked defense and choose the targets; arguments and errors are those of `attack`."""
    require_count(max_objects, "max_objects")
    require_seed(seed)
    run = _open_run(source)
    if defense is not None and not isinstance(defense, Defense):
        defense = Defense.load(defense)
    if run is not None:
        defense = run.bind_defense(defense or run.defense())
    setup = load_attack(
        defense or Defense.for_detector("builtin"),
        certification_threshold=certification_threshold,
        mode=mode,
        device=device,
    )
    if run is not None:
        targets = targets_of_run(setup.pipeline, run, max_objects, seed)
    else:
        paths = [source] if isinstance(source, str | Path) else cast("Sequence[str | Path]", source)
        targets = targets_of_images(setup.pipeline, [Path(path) for path in paths], max_objects)
    chosen: list[Target] = []
    for target in targets:
        chosen.append(target)
        on_progress(len(chosen), max_objects)
    return setup, chosen


def _open_run(source: Run | str | Path | Sequence[str | Path]) -> Run | None:
    from objectseeker.runs.run import Run, open_run

    if isinstance(source, Run):
        return source
    is_folder = isinstance(source, str | Path) and Path(source).is_dir()
    return open_run(Path(cast("str | Path", source))) if is_folder else None


@dataclass(frozen=True, slots=True, eq=False)
class AttackSetup:
    """A defense, bound to its detector, as it runs on a device, and the optimizer that attacks it.

    `white` are the detector's gradients, None in black-box mode.
    """

    defense: Defense
    pipeline: Pipeline
    optimizer: PatchOptimizer
    mode: Mode
    device: str | None
    white: WhiteBox | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The detector's class names."""
        return cast(LoadedDetector, self.pipeline.seeker.detector).names


class PatchOptimizer(Protocol):
    """Optimizes patches: `attack_by_gradients` with its white box, or `attack_by_random_search`."""

    def __call__(
        self,
        pipeline: Pipeline,
        tasks: Sequence[PatchTask],
        system: AttackedSystem,
        budget: AttackBudget,
        *,
        seed: int,
        on_progress: Progress,
    ) -> list[Solution]: ...


def load_attack(
    defense: Defense,
    *,
    certification_threshold: float | None = None,
    mode: str | None = None,
    device: str | None = None,
    autocast: bool = False,
) -> AttackSetup:
    """Build a defense for an attack: white-box if its detector has gradients, black-box otherwise.

    Args:
        defense: The defense.
        certification_threshold: T of certificates and verdicts. Default: that of the rule.
        mode: "white-box" or "black-box", to choose.
        device: The torch device.
        autocast: Compute gradients in bfloat16; verdicts always come from the defended detector itself.
    """
    if mode not in (None, *get_args(Mode)):
        raise ObjectSeekerError(f"mode must be white-box or black-box: got {mode!r}")
    seeker = defense.build(device)
    detector = cast(LoadedDetector, seeker.detector)
    bound = defense.with_fingerprint(detector.fingerprint)
    pipeline = Pipeline.from_seeker(seeker, certification_threshold)
    white = None if mode == "black-box" else _white_box(defense, detector, device or "cpu")
    if white is not None:
        white = replace(white, autocast=autocast)
        return AttackSetup(bound, pipeline, partial(attack_by_gradients, white), "white-box", device, white)
    if mode == "white-box":
        raise ObjectSeekerError(f"the detector has no gradients: got {defense.detector!r}. Use --mode black-box.")
    return AttackSetup(bound, pipeline, attack_by_random_search, "black-box", device)


def _white_box(defense: Defense, detector: LoadedDetector, device: str) -> WhiteBox | None:
    """Return the detector's gradients; those of the built-in one come from the same network in torch."""
    if find_spec("torch") is None:
        return None
    predict = None
    if defense.detector == "builtin":
        from objectseeker.detectors.builtin import load_torch
        from objectseeker.detectors.torch_module import torch_detector

        predict = torch_detector(load_torch(), device=device).predict
    return WhiteBox.from_detector(detector, predict=predict, device=device)


def targets_of_images(pipeline: Pipeline, paths: Sequence[Path], max_objects: int) -> Iterator[Target]:
    """Yield the confident base boxes of images without annotations, the best of each image first."""
    names, count = cast(LoadedDetector, pipeline.seeker.detector).names, 0
    for path in paths:
        if count == max_objects:
            return
        image = load_image(path)
        observation = pipeline.observe(image)
        boxes = observation.base.with_min_score(max(MIN_OBJECT_SCORE, pipeline.rule.base_threshold))
        order = np.argsort(-boxes.score, kind="stable")[: max_objects - count]
        for number, (n, label) in enumerate(zip(order, boxes.label[order].tolist(), strict=True)):
            yield Target(path.name, number, image, observation, boxes.xyxy[n], (label,), _class_name(names, label))
            count += 1
    if not count:
        raise ObjectSeekerError(
            f"no object with a score of at least {MIN_OBJECT_SCORE}: got {', '.join(map(str, paths))}. "
            "Choose another image."
        )


def targets_of_run(pipeline: Pipeline, run: Run, max_objects: int, seed: int) -> Iterator[Target]:
    """Yield annotated objects of a run, image by image in random order; every image is observed again.

    The certificate and the verdict must come from one pipeline, so the stored boxes of the run are not used. An object
    has every detector label that maps to its class; objects whose class has none are skipped.
    """
    label_map, images = run.label_map, run.manifest.images
    count = 0
    for index in np.random.default_rng(require_seed(seed)).permutation(len(images)).tolist():
        if index in run.unreadable:
            continue
        entry = images[index]
        rows, numbers = label_map.map_to_detector(entry.ground_truth, classwise=pipeline.rule.classwise)
        selected = [n for n in np.unique(numbers).tolist() if not entry.ignore[n]]
        if not selected:
            continue
        image = load_image(entry.path)
        observation = pipeline.observe(image)
        for n in selected:
            if count == max_objects:
                return
            labels, dataset_label = tuple(rows.label[numbers == n].tolist()), int(entry.ground_truth.label[n])
            name = _class_name(label_map.dataset_names, dataset_label)
            yield Target(entry.id, n, image, observation, entry.ground_truth.xyxy[n], labels, name)
            count += 1
    if not count:
        raise ObjectSeekerError(
            f"no annotated object of a class that the detector knows: got the run {run.folder}. "
            "Attack single images, or observe an annotated dataset."
        )


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)


def run_attack(
    setup: AttackSetup,
    targets: Sequence[Target],
    patch: Patch,
    budget: AttackBudget,
    out: Path | None,
    *,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> AttackResult:
    """Attack targets; write attack.json, images and loss curves to `out`, unless it is None."""
    require_seed(seed)
    size = OBJECTS_PER_BATCH.get((setup.device or "cpu").partition(":")[0], 1)
    parts = [targets[start : start + size] for start in range(0, len(targets), size)]
    names = artifacts.file_names(target.image_id for target in targets)
    outcomes: list[AttackOutcome] = []
    for number, part in enumerate(parts):

        def report(done: int, total: int, number: int = number) -> None:
            on_progress(number * total + done, len(parts) * total)

        for outcome in falsify(setup.optimizer, setup.pipeline, part, patch, budget, seed=seed, on_progress=report):
            outcomes.append(outcome)
            if out is not None:
                _save_outcome(out, setup, outcome, patch, artifacts.object_name(outcome, names))
    rows = tuple(outcome_row(outcome, setup.pipeline) for outcome in outcomes)
    result = AttackResult(setup, patch, budget, seed, tuple(outcomes), rows, attack_summary(rows), recall_bounds(rows))
    if out is not None:
        artifacts.save_curves(out, outcomes)
        save_json(out / "attack.json", result.to_dict())
    return result


def _save_outcome(out: Path, setup: AttackSetup, outcome: AttackOutcome, patch: Patch, name: str) -> None:
    """Save the images of one object and, if a guarantee was broken, the reproduction."""
    artifacts.save_images(out / "images", outcome, name)
    comparison = artifacts.draw_comparison(setup.pipeline, outcome, setup.class_names)
    artifacts.save_image(out / "annotated" / f"{name}.jpg", comparison)
    if outcome.guarantee_broken:
        folder = out / "broken" / name
        artifacts.save_reproduction(folder, setup.pipeline, outcome, patch, setup.defense, device=setup.device)


def falsify(
    optimizer: PatchOptimizer,
    pipeline: Pipeline,
    targets: Sequence[Target],
    patch: Patch,
    budget: AttackBudget,
    *,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> list[AttackOutcome]:
    """Attack every target, first undefended, then defended; outcomes in the order of the targets."""
    statuses = [pipeline.found_status(target, target.observation) for target in targets]
    certificates = [pipeline.certify(target, patch) for target in targets]

    images: dict[AttackedSystem, dict[int, EvaluatedImage]] = {}
    for part, system in enumerate(ATTACKED_SYSTEMS):
        found = [status.undefended if system == "undefended" else status.defended for status in statuses]
        tasks = [
            task
            for target, is_found in zip(targets, found, strict=True)
            if is_found
            for task in plan_tasks(pipeline, target, patch, system, budget, seed)
        ]

        def report(done: int, total: int, part: int = part) -> None:
            on_progress(part * total + done, 2 * total)

        solutions = optimizer(pipeline, tasks, system, budget, seed=seed, on_progress=report) if tasks else []
        images[system] = evaluate_solutions(pipeline, solutions, system)
    return [
        AttackOutcome(
            target, *certificate, status, images["undefended"].get(id(target)), images["defended"].get(id(target))
        )
        for target, certificate, status in zip(targets, certificates, statuses, strict=True)
    ]


def plan_tasks(
    pipeline: Pipeline, target: Target, patch: Patch, system: AttackedSystem, budget: AttackBudget, seed: int
) -> list[PatchTask]:
    """Return the restarts for one object: none if the threat model allows no position."""
    rng = np.random.default_rng([seed, target.number, *target.image_id.encode()])
    count = budget.restarts
    if system == "undefended":
        positions, immune_count = nearest_positions(pipeline, target, patch, count, rng), 0
    else:
        immune_count = int(budget.immune_view_fraction * count)
        proven = weakest_positions(pipeline, target, patch, immune_count, rng, proven_only=True) if immune_count else []
        immune_count = len(proven)
        positions = weakest_positions(pipeline, target, patch, count - immune_count, rng) + proven
    return [
        PatchTask(
            target,
            position,
            initial_patches(target, position, drawn_size(target, patch), restart, rng),
            relabels=system == "defended" and restart > 0 and restart == count - 1,
            attacks_immune_views=restart >= count - immune_count,
        )
        for restart, position in enumerate(positions)
    ]


def evaluate_solutions(
    pipeline: Pipeline, solutions: Sequence[Solution], system: AttackedSystem
) -> dict[int, EvaluatedImage]:
    """Return the image that counts for each target, by the target's id().

    The solutions of each target are evaluated by the real pipeline, the most promising first, until one hides it.
    Patches where the object is proven go first: if one of them hides it, or a view leaks, that must be reported.
    """

    def promise(solution: Solution) -> tuple[bool, bool, float]:
        return system == "defended" and not solution.task.position.proven, not solution.hidden, solution.loss

    by_target: dict[int, list[Solution]] = {}
    for solution in sorted(solutions, key=promise):
        by_target.setdefault(id(solution.task.target), []).append(solution)
    curves = {key: tuple(solution.loss_curve for solution in of_target) for key, of_target in by_target.items()}
    worst: dict[int, EvaluatedImage] = {}
    for turn in range(max(map(len, by_target.values()), default=0)):
        # The best of every target that is still found, then the second best, and so on.
        chosen = {
            key: of_target[turn]
            for key, of_target in by_target.items()
            if turn < len(of_target) and (key not in worst or not _hides(worst[key], system))
        }
        for key, image in zip(chosen, _evaluate(pipeline, list(chosen.values()), system), strict=True):
            if key not in worst or _severity(image, system) > _severity(worst[key], system):
                worst[key] = replace(image, loss_curves=curves[key])
    return worst


def _hides(image: EvaluatedImage, system: AttackedSystem) -> bool:
    return not (image.undefended if system == "undefended" else image.defended)


def _severity(image: EvaluatedImage, system: AttackedSystem) -> tuple[bool, bool, bool]:
    """Return a rank; the highest must be reported first."""
    hides = _hides(image, system)
    return system == "defended" and hides and image.position.proven, image.leaking_views > 0, hides


def _evaluate(pipeline: Pipeline, solutions: Sequence[Solution], system: AttackedSystem) -> Iterator[EvaluatedImage]:
    """Evaluate each solution by the real pipeline; in batches for the undefended detector."""
    size = int(getattr(pipeline.seeker.detector, "batch_size", pipeline.seeker.batch_size))
    for start in range(0, len(solutions), size):
        batch = solutions[start : start + size]
        images = [draw_patches(s.task.target.image, s.patches, s.task.position.corners) for s in batch]
        if system == "undefended":
            for solution, image, base in zip(batch, images, pipeline.seeker.detector(images), strict=True):
                yield _evaluate_base(pipeline, solution, image, base)
            continue
        for solution, image in zip(batch, images, strict=True):
            observation, task = pipeline.observe(image), solution.task
            boxes = pipeline.output(pipeline.rule, observation)
            yield replace(
                _evaluate_base(pipeline, solution, image, observation.base),
                boxes=boxes,
                defended=pipeline.is_found(task.target, boxes),
                leaking_views=len(find_leaking_views(task.target, observation, task.position, task.patch_size)),
            )


def _evaluate_base(pipeline: Pipeline, solution: Solution, image: Image, base: Detections) -> EvaluatedImage:
    task = solution.task
    boxes = base.with_min_score(pipeline.rule.base_threshold)
    status = pipeline.base_status(task.target, boxes)
    return EvaluatedImage(image, boxes, boxes, task.position, task.patch_size, solution.loss, *status)
