"""What `objectseeker attack` does: load, choose objects, attack, save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from objectseeker.attack import artifacts, gradient, random_search
from objectseeker.attack.artifacts import save_reproduction
from objectseeker.attack.attack_metrics import effects_of, robust_recall, row_of, summary
from objectseeker.attack.falsify import Attacker, Outcome, falsify
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.plan import Budget, Progress
from objectseeker.attack.whitebox import WhiteBox, white_box_of
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json
from objectseeker.files.images import load_image
from objectseeker.metrics.settings import require_seed

if TYPE_CHECKING:
    from objectseeker.runs.run import Run

Mode = Literal["white", "black"]

CONFIDENT_SCORE = 0.5  # from which a base box is taken for an object, where there are no annotations
OBJECTS_AT_ONCE = {"cpu": 1, "cuda": 64}


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """A defense, bound to its detector, as it runs on a device, and how it is attacked."""

    defense: Defense
    pipeline: Pipeline
    attacker: Attacker
    mode: Mode
    device: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The detector's class names."""
        return cast(LoadedDetector, self.pipeline.seeker.detector).names


def load_attacked(
    defense: Defense,
    *,
    threshold: float | None = None,
    mode: str | None = None,
    device: str | None = None,
    autocast: bool = False,
) -> Attacked:
    """What `defense.seeker(device)` gives, attacked by its gradients if it shows them, by random search otherwise.

    `threshold` is the T of certificates and verdicts, by default the rule's own. `autocast` computes gradients in
    bfloat16; verdicts always come from the defended detector itself.
    """
    if mode not in (None, "white", "black"):
        raise ObjectSeekerError(f"mode must be white or black, got {mode!r}")
    seeker = defense.seeker(device)
    detector = cast(LoadedDetector, seeker.detector)
    bound, pipeline = defense.with_fingerprint(detector.fingerprint), Pipeline.of(seeker, threshold)
    white = None if mode == "black" else _white_box(defense, detector, device or "cpu")
    if white is not None:
        return Attacked(bound, pipeline, partial(gradient.attack, replace(white, autocast=autocast)), "white", device)
    if mode == "white":
        raise ObjectSeekerError(f"{defense.detector} shows no gradients: attack it with --mode black")
    return Attacked(bound, pipeline, random_search.attack, "black", device)


def _white_box(defense: Defense, detector: LoadedDetector, device: str) -> WhiteBox | None:
    """The detector's gradients; those of the builtin one are the same network's in torch, wherever it runs."""
    if find_spec("torch") is None:
        return None
    predict = None
    if defense.detector == "builtin":
        from objectseeker.detectors.builtin import load_torch
        from objectseeker.detectors.torch_module import torch_detector

        predict = torch_detector(load_torch(), device=device).predict
    return white_box_of(detector, predict=predict, device=device)


def targets_of_image(pipeline: Pipeline, path: Path, most: int) -> list[Target]:
    """The confident base boxes of an image without annotations, best first."""
    image = load_image(path)
    observation = pipeline.observe(image)
    boxes = observation.base.at_least(max(CONFIDENT_SCORE, pipeline.rule.base_threshold))
    if not len(boxes):
        raise ObjectSeekerError(
            f"the detector finds nothing with a score of {CONFIDENT_SCORE} in {path}: choose another image"
        )
    names = cast(LoadedDetector, pipeline.seeker.detector).names
    order = np.argsort(-boxes.score, kind="stable")[:most]
    return [
        Target(path.name, number, image, observation, boxes.xyxy[n], (label,), _name(names, label))
        for number, (n, label) in enumerate(zip(order, boxes.label[order].tolist(), strict=True))
    ]


def targets_of_run(pipeline: Pipeline, run: Run, most: int, seed: int) -> Iterator[Target]:
    """Annotated objects of a run, `most` of them, image by image in random order; each image is observed anew.

    The certificate and the verdict must come from one pipeline, so what the run stored is not used. An object has every
    detector label that stands for its class; those that have none are left out.
    """
    vocabulary, images = run.vocabulary, run.manifest.images
    count = 0
    for index in np.random.default_rng(require_seed(seed)).permutation(len(images)).tolist():
        if index in run.unreadable:
            continue
        entry = images[index]
        rows, which = vocabulary.map_to_detector(entry.truth, classwise=pipeline.rule.classwise)
        wanted = [n for n in np.unique(which).tolist() if not entry.ignore[n]]
        if not wanted:
            continue
        image = load_image(entry.path)
        observation = pipeline.observe(image)
        for n in wanted:
            if count == most:
                return
            labels, kind = tuple(rows.label[which == n].tolist()), int(entry.truth.label[n])
            name = _name(vocabulary.dataset_names, kind)
            yield Target(entry.id, n, image, observation, entry.truth.xyxy[n], labels, name)
            count += 1
    if not count:
        raise ObjectSeekerError(
            f"{run.folder} has no annotated object of a class that the detector knows: attack single images, or "
            "observe an annotated dataset"
        )


def run_attack(
    attacked: Attacked,
    targets: Sequence[Target],
    patch: Patch,
    budget: Budget,
    out: Path,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Attack the targets, write everything to `out`; what is also in attack.json."""
    require_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    size = OBJECTS_AT_ONCE.get((attacked.device or "cpu").partition(":")[0], 1)
    parts = [targets[start : start + size] for start in range(0, len(targets), size)]
    files = artifacts.file_names(target.name for target in targets)
    outcomes: list[Outcome] = []
    for number, part in enumerate(parts):

        def report(done: int, total: int, number: int = number) -> None:
            on_progress(number * total + done, len(parts) * total)

        for outcome in falsify(
            attacked.attacker, attacked.pipeline, part, patch, budget, seed=seed, on_progress=report
        ):
            outcomes.append(outcome)
            save_outcome(out, attacked, outcome, patch, artifacts.stem(outcome, files))
    artifacts.save_curves(out, outcomes)
    rows = [row_of(outcome) | effects_of(outcome, attacked.pipeline) for outcome in outcomes]
    content = {
        "defense": attacked.defense.described(),
        "device": attacked.device,
        "mode": attacked.mode,
        "patch": asdict(patch),
        "threshold": attacked.pipeline.threshold,
        "budget": asdict(budget),
        "seed": seed,
        "summary": summary(rows),
        "recall": robust_recall(rows),
        "objects": rows,
    }
    save_json(out / "attack.json", content)
    return content


def save_outcome(out: Path, attacked: Attacked, outcome: Outcome, patch: Patch, name: str) -> None:
    """The images and the picture of one object and, where a guarantee was broken, the reproduction."""
    artifacts.save_images(out / "images", outcome, name)
    (out / "pictures").mkdir(exist_ok=True)
    picture = artifacts.before_and_after(attacked.pipeline, outcome, attacked.names)
    artifacts.save_picture(out / "pictures" / f"{name}.jpg", picture)
    if outcome.broken:
        folder = out / "broken" / name
        save_reproduction(folder, attacked.pipeline, outcome, patch, attacked.defense, device=attacked.device)


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)
