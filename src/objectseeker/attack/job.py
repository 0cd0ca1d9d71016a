"""Attack a defense: choose objects, optimize patches, evaluate them, compare with certificates.

The threat model is a `Patch`: its area, aspect, count and location. The attack is adaptive: it knows the defense and
goes where the certificate is weakest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectseeker.attack.artifacts import Outcome, file_stems, save_curves, save_outcome
from objectseeker.attack.fabrication import Fabrication
from objectseeker.attack.hiding import Hiding
from objectseeker.attack.metrics import HIDE
from objectseeker.attack.pipeline import (
    AttackBudget,
    AttackReport,
    Progress,
    Target,
    no_progress,
    progress_of_part,
)
from objectseeker.attack.setup import AttackSetup, Mode, load_attack, targets_of_images, targets_of_run
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.atomic import save_json
from objectseeker.metrics.settings import require_seed
from objectseeker.text import to_html

if TYPE_CHECKING:
    from objectseeker.runs.run import Run

OBJECTS_PER_BATCH = {"cpu": 1, "cuda": 64}


GOALS: dict[str, Hiding | Fabrication] = {
    HIDE: Hiding(),
    "fabricate": Fabrication("fabricate"),
    "flip": Fabrication("flip"),
}


@dataclass(frozen=True, slots=True, eq=False)
class AttackResult:
    """The result of an attack on one defense.

    `objects` are the attacked objects as plain values, and `summary` the success rates; of an attack that hides
    objects, `recall` is the recall of both detectors between its bounds. Rates have a count, a total and a 95 %
    confidence interval. `outcomes` has the adversarial images.
    """

    setup: AttackSetup
    goal: str
    outcomes: tuple[Outcome, ...]
    objects: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    recall: dict[str, Any] | None

    @property
    def broken_guarantees(self) -> int:
        """Number of targets that refute a certificate or a proof."""
        return int(self.summary["broken_guarantees"])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        return {
            "goal": self.goal,
            "defense": self.setup.defense.to_public_dict(),
            "device": self.setup.device,
            "mode": self.setup.mode,
            "patch": asdict(self.setup.patch),
            "certification_threshold": self.setup.pipeline.certification_threshold,
            "budget": asdict(self.setup.budget),
            "seed": self.setup.seed,
            "summary": self.summary,
            "recall": self.recall,
            "objects": list(self.objects),
        }

    @property
    def report(self) -> AttackReport:
        """The findings of the attack: a headline, a table and notes."""
        return GOALS[self.goal].report(self.summary, self.recall, self.objects)

    def _repr_html_(self) -> str:
        return f"<p>{self.report.headline}</p>{to_html(self.report.rows)}"


def attack(
    source: Run | str | Path | Sequence[str | Path],
    defense: Defense | str | Path | None = None,
    patch: Patch = Patch(),  # noqa: B008  (frozen)
    *,
    goal: str = HIDE,
    out: str | Path | None = None,
    mode: Mode | None = None,
    certification_threshold: float | None = None,
    max_objects: int = 5,
    budget: AttackBudget = AttackBudget(),  # noqa: B008  (frozen)
    device: str | None = None,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> AttackResult:
    """Try to hide objects, to make boxes or to flip labels with a patch, and to refute certificates.

    Args:
        source: A run or its folder, which provides images, annotations, detector and masks; or images without
            annotations, whose confident base boxes are the objects.
        defense: A defense, its file or its name. Default: the run's, or that of the built-in detector.
        patch: The threat model: area, aspect, location and count. The location is relative to the object to hide, or to
            the box to make.
        goal: "hide" hides objects; "fabricate" wants a box of a random class where nothing is, one per object; "flip"
            wants one of another class on an object.
        out: A folder for attack.json, images and loss curves; with None nothing is written.
        mode: "white-box" uses gradients, "black-box" only boxes. Default: white-box if the detector has gradients.
        certification_threshold: T of certificates and verdicts on hidden objects. Default: that of the rule.
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
    from objectseeker.runs.run import Run, open_run

    require_count(max_objects, "max_objects")
    require_seed(seed)
    _require_goal(goal)
    if goal != HIDE and certification_threshold is not None:
        raise ObjectSeekerError(
            f"certification_threshold is for the goal hide: got {certification_threshold} and {goal}. Omit it."
        )
    if defense is not None and not isinstance(defense, Defense):
        defense = Defense.load(defense)
    if isinstance(source, str | Path) and Path(source).is_dir():
        source = open_run(Path(source))
    if isinstance(source, Run):
        defense = source.bind_defense(defense or source.defense())
    defense = defense or Defense.for_detector("builtin")
    loaded = load_attack(defense, certification_threshold=certification_threshold, mode=mode, device=device)
    setup = replace(loaded, patch=patch, budget=budget, seed=seed)
    if isinstance(source, Run):
        targets = targets_of_run(setup.pipeline, source, seed)
    else:
        paths = [source] if isinstance(source, str | Path) else source
        targets = targets_of_images(setup.pipeline, list(map(Path, paths)))
    chosen: list[Target] = []
    for target in islice(targets, max_objects):
        chosen.append(target)
        on_progress(len(chosen), max_objects)
    folder = None if out is None else Path(out)
    return run_attack(setup, chosen, folder, goal=goal, on_progress=on_progress)


def run_attack(
    setup: AttackSetup,
    targets: Sequence[Target],
    out: Path | None,
    *,
    goal: str = HIDE,
    on_progress: Progress = no_progress,
) -> AttackResult:
    """Attack targets; write attack.json, images and loss curves to `out`, unless it is None.

    Raises:
        ObjectSeekerError: The goal is unknown, or no image has room for a box to make.
    """
    _require_goal(goal)
    size = OBJECTS_PER_BATCH.get((setup.device or "cpu").partition(":")[0], 1)
    parts = [targets[start : start + size] for start in range(0, len(targets), size)]
    names = file_stems(target.image_id for target in targets)
    outcomes: list[Outcome] = []
    for number, part in enumerate(parts):
        report = progress_of_part(on_progress, number, len(parts))
        for outcome in GOALS[goal].attack(setup, part, report):
            outcomes.append(outcome)
            if out is not None:
                name = f"{names[outcome.target.image_id]}-{outcome.target.number}"
                save_outcome(out, setup, outcome, name)
    if not outcomes:
        raise ObjectSeekerError(
            f"no image has room for a box to {goal}: got a patch {setup.patch}. Choose other images."
        )
    rows = tuple(outcome.to_dict(setup.pipeline) for outcome in outcomes)
    summary, recall = GOALS[goal].measure(rows)
    result = AttackResult(setup, goal, tuple(outcomes), rows, summary, recall)
    if out is not None:
        save_curves(out, outcomes)
        save_json(out / "attack.json", result.to_dict())
    return result


def _require_goal(goal: str) -> None:
    if goal not in GOALS:
        raise ObjectSeekerError(f"goal must be hide, fabricate or flip: got {goal!r}. Choose one of them.")
