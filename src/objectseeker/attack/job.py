"""What `objectseeker attack` does: load, choose objects, attack, save."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from objectseeker import detectors
from objectseeker.attack import artifacts, gradient, search
from objectseeker.attack.falsify import Attacker, Outcome, falsify
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.plan import Budget, Progress
from objectseeker.attack.reproduction import save_reproduction
from objectseeker.attack.statistics import robust_recall, row_of, summary
from objectseeker.attack.whitebox import embedded_white_box, white_box_of
from objectseeker.core.threats import Patch
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.files.images import load_image
from objectseeker.jobs import save_json

if TYPE_CHECKING:
    from objectseeker.runs.run import Run

Mode = Literal["white", "black"]

CONFIDENT = 0.5  # score from which a base box is taken for an object, where there are no annotations
TOGETHER = {"cpu": 1, "cuda": 64}  # objects attacked at once

_EMBEDDED = """from objectseeker.attack.whitebox import embedded_white_box

detector = embedded_white_box({options}).detector"""
_LOADED = """from objectseeker import detectors

detector = detectors.load({options})"""


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """A detector, how it is attacked, and Python code that loads it again."""

    detector: LoadedDetector
    attacker: Attacker
    mode: Mode
    loading: str
    device: str


def load_attacked(spec: str, *, mode: str | None = None, device: str | None = None, **options: Any) -> Attacked:
    """The detector that `spec` names, attacked by its gradients if it shows them, by random search otherwise.

    `options` are those of `detectors.load`; None means not given.
    """
    if mode not in (None, "white", "black"):
        raise ObjectSeekerError(f"mode must be white or black, got {mode!r}")
    where = device or "cpu"
    given = {key: value for key, value in options.items() if value is not None}
    has_torch = importlib.util.find_spec("torch") is not None
    if spec == "embedded" and (mode == "white" or (mode is None and has_torch)):
        settings = {"device": where, **given}
        white = embedded_white_box(**settings)
        text = _EMBEDDED.format(options=_arguments(settings))
        return Attacked(white.detector, partial(gradient.attack, white), "white", text, where)
    settings = given if device is None else {**given, "device": device}
    loaded = detectors.load(spec, **settings)
    text = _LOADED.format(options=", ".join(filter(None, [repr(spec), _arguments(settings)])))
    shown = white_box_of(loaded, device=where) if has_torch else None
    if mode == "white" and shown is None:
        raise ObjectSeekerError(f"{spec} shows no gradients: attack it with --mode black")
    if shown is not None and mode != "black":
        return Attacked(loaded, partial(gradient.attack, shown), "white", text, where)
    return Attacked(loaded, search.attack, "black", text, where)


def parse_area(text: str) -> float:
    """A patch area as a share of the image: "1%" or "0.01"."""
    number, percent, rest = text.strip().partition("%")
    try:
        area = float(number) / (100 if percent else 1)
    except ValueError:
        area = -1.0
    if rest or area < 0:
        raise ObjectSeekerError(f"patch must be a share such as 1% or 0.01, got {text!r}")
    return require_fraction(area, "patch")


def targets_of_image(pipeline: Pipeline, path: Path, most: int) -> list[Target]:
    """The confident base boxes of an image without annotations, best first."""
    image = load_image(path)
    observation = pipeline.observe(image)
    boxes = observation.base.at_least(max(CONFIDENT, pipeline.rule.base_score))
    if not len(boxes):
        raise ObjectSeekerError(
            f"the detector finds nothing with a score of {CONFIDENT} in {path}: choose another image"
        )
    order = np.argsort(-boxes.score, kind="stable")[:most]
    return [
        Target(path.name, number, image, observation, boxes.xyxy[n], int(boxes.label[n]))
        for number, n in enumerate(order)
    ]


def targets_of_run(pipeline: Pipeline, run: Run, most: int, seed: int) -> Iterator[Target]:
    """Annotated objects of a run, `most` of them, image by image in random order; each image is observed anew.

    The certificate and the verdict must come from one pipeline, so what the run stored is not used. Only classes that
    are one class of the detector's, too, are taken.
    """
    manifest = run.manifest
    to_detector = _one_to_one(manifest.to_dataset)
    count = 0
    for index in np.random.default_rng(seed).permutation(len(manifest.images)):
        record = manifest.images[index]
        wanted = [n for n in np.flatnonzero(~record.ignore) if int(record.truth.label[n]) in to_detector]
        if record.size is None or not wanted:
            continue
        image = load_image(record.path)
        observation = pipeline.observe(image)
        for n in wanted:
            if count == most:
                return
            label = to_detector[int(record.truth.label[n])]
            yield Target(record.id, int(n), image, observation, record.truth.xyxy[n], label)
            count += 1


def _one_to_one(to_dataset: Sequence[int] | None) -> dict[int, int]:
    """Dataset label -> detector label, where exactly one detector label means it."""
    if to_dataset is None:
        raise ObjectSeekerError("the run has no annotations: attack single images, or observe an annotated dataset")
    found = np.array(to_dataset)
    return {
        int(label): int(np.flatnonzero(found == label)[0])
        for label in found
        if (found == label).sum() == 1 and label >= 0
    }


def run_attack(
    attacked: Attacked,
    pipeline: Pipeline,
    targets: Sequence[Target],
    patch: Patch,
    budget: Budget,
    out: Path,
    *,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Attack the targets, write everything to `out`; what is also in attack.json."""
    out.mkdir(parents=True, exist_ok=True)
    names = attacked.detector.names
    size = TOGETHER.get(attacked.device.partition(":")[0], 1)
    parts = [targets[start : start + size] for start in range(0, len(targets), size)]
    outcomes: list[Outcome] = []
    for number, part in enumerate(parts):

        def report(done: int, total: int, number: int = number) -> None:
            on_progress(number * total + done, len(parts) * total)

        for outcome in falsify(attacked.attacker, pipeline, part, patch, budget, seed=seed, on_progress=report):
            outcomes.append(outcome)
            artifacts.save_images(out / "images", outcome)
            (out / "pictures").mkdir(exist_ok=True)
            picture = artifacts.before_and_after(pipeline, outcome, names)
            picture.save(out / "pictures" / f"{artifacts.stem(outcome)}.jpg", quality=90)
            if outcome.broken:
                save_reproduction(
                    out / "broken" / artifacts.stem(outcome),
                    pipeline,
                    outcome,
                    patch,
                    identity=attacked.detector.identity,
                    loading=attacked.loading,
                )
    artifacts.save_curves(out, outcomes)
    rows = [row_of(outcome, names) for outcome in outcomes]
    content = {
        "detector": attacked.detector.identity,
        "mode": attacked.mode,
        "patch": asdict(patch),
        "threshold": pipeline.threshold,
        "rule": asdict(pipeline.rule),
        "lines": pipeline.seeker.lines,
        "budget": asdict(budget),
        "seed": seed,
        "summary": summary(rows),
        "recall": robust_recall(rows),
        "objects": rows,
    }
    save_json(out / "attack.json", content)
    return content


def _arguments(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in settings.items())
