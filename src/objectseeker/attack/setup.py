"""The attacked defense on its device, and the attacked objects of a run or of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np

from objectseeker.attack.pipeline import AttackBudget, Pipeline, Target
from objectseeker.attack.whitebox import WhiteBox
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.metrics.settings import require_seed

if TYPE_CHECKING:
    from objectseeker.runs.run import Run

Mode = Literal["white-box", "black-box"]

MIN_OBJECT_SCORE = 0.5  # at and above which a base box counts as an object, where there are no annotations


@dataclass(frozen=True, slots=True, eq=False)
class AttackSetup:
    """A defense, bound to its detector, as it runs on a device, and what it is attacked with.

    `white` are the detector's gradients. `seed` is that of positions and initial pixels.
    """

    defense: Defense
    pipeline: Pipeline
    white: WhiteBox | None = None
    device: str | None = None
    patch: Patch = Patch()  # noqa: RUF009  (frozen)
    budget: AttackBudget = AttackBudget()  # noqa: RUF009  (frozen)
    seed: int = 0

    def __post_init__(self) -> None:
        require_seed(self.seed)

    @property
    def gradients(self) -> WhiteBox:
        """The detector's gradients, for a white-box attack."""
        assert self.white is not None
        return self.white

    @property
    def mode(self) -> Mode:
        return "black-box" if self.white is None else "white-box"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The detector's class names."""
        return self.pipeline.class_names


def load_attack(
    defense: Defense,
    *,
    certification_threshold: float | None = None,
    mode: str | None = None,
    device: str | None = None,
    autocast: bool = False,
) -> AttackSetup:
    """Build a defense for an attack: white-box if its detector has gradients, black-box otherwise.

    With `autocast` gradients are computed in bfloat16; verdicts always come from the defended detector itself.
    """
    if mode not in (None, *get_args(Mode)):
        raise ObjectSeekerError(f"mode must be white-box or black-box: got {mode!r}")
    seeker = defense.build(device)
    detector = cast(LoadedDetector, seeker.detector)
    white = None if mode == "black-box" else _white_box(defense, detector, device or "cpu")
    if white is not None:
        white = replace(white, autocast=autocast)
    elif mode == "white-box":
        raise ObjectSeekerError(f"the detector has no gradients: got {defense.detector!r}. Use --mode black-box.")
    bound = defense.with_fingerprint(detector.fingerprint)
    return AttackSetup(bound, Pipeline.from_seeker(seeker, certification_threshold), white, device)


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


def targets_of_images(pipeline: Pipeline, paths: Sequence[Path]) -> Iterator[Target]:
    """Yield the confident base boxes of images without annotations, the best of each image first."""
    is_empty = True
    for path in paths:
        image = load_image(path)
        observation = pipeline.observe(image)
        boxes = observation.base.with_min_score(max(MIN_OBJECT_SCORE, pipeline.rule.base_threshold))
        for number, n in enumerate(np.argsort(-boxes.score, kind="stable").tolist()):
            is_empty, label = False, int(boxes.label[n])
            name = _class_name(pipeline.class_names, label)
            yield Target(path.name, number, image, observation, boxes.xyxy[n], (label,), name)
    if is_empty:
        raise ObjectSeekerError(
            f"no object with a score of at least {MIN_OBJECT_SCORE}: got {', '.join(map(str, paths))}. "
            "Choose another image."
        )


def targets_of_run(pipeline: Pipeline, run: Run, seed: int) -> Iterator[Target]:
    """Yield annotated objects of a run, image by image in random order; every image is observed again.

    The certificate and the verdict must come from one pipeline, so the stored boxes of the run are not used. An object
    has every detector label that maps to its class; objects whose class has none are skipped.
    """
    label_map, images, is_empty = run.label_map, run.manifest.images, True
    for index in np.random.default_rng(require_seed(seed)).permutation(len(images)).tolist():
        entry = images[index]
        rows, numbers = label_map.map_to_detector(entry.ground_truth, classwise=pipeline.rule.classwise)
        selected = [n for n in np.unique(numbers).tolist() if not entry.ignore[n]]
        if index in run.unreadable or not selected:
            continue
        is_empty, image = False, load_image(entry.path)
        observation = pipeline.observe(image)
        for n in selected:
            labels = tuple(rows.label[numbers == n].tolist())
            name = _class_name(label_map.dataset_names, int(entry.ground_truth.label[n]))
            yield Target(entry.id, n, image, observation, entry.ground_truth.xyxy[n], labels, name)
    if is_empty:
        raise ObjectSeekerError(
            f"no annotated object of a class that the detector knows: got the run {run.folder}. "
            "Attack single images, or observe an annotated dataset."
        )


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)
