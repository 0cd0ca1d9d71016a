"""Features: made by the objectness network from an image, and kept beside the boxes of a run.

    RUN/detectorguard/features.json    which network, run on which input size
    RUN/detectorguard/000012.npz       the features of image 12

What is stored is what the defence works with: whole numbers, to the last bit. The folder can be added to a run at any
time, and a job that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from objectseeker.baselines.detectorguard.objectness import FEATURE_STEP, SMALLEST_INPUT, Features, positions
from objectseeker.core.boxes import Ints
from objectseeker.core.image import GREY, Image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.preprocess import Size, place, prepare
from objectseeker.detectors.onnx import open_session, usable_cores
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.files.saving import save_json, write_whole
from objectseeker.runs.observe import Progress
from objectseeker.runs.run import Run

FOLDER, DESCRIPTION = "detectorguard", "features.json"
NETWORK = Path(__file__).with_name("objectness.onnx")
DEFAULT_INPUT: Size = (416, 416)
LARGEST_FEATURE = 2**16 - 1


class ObjectnessFeatures:
    """The objectness network in an ONNX file: image in, features out.

    One image at a time on one thread, always: the same image gives the same features, and a position's features depend
    on the pixels of its view alone (tests verify both bit for bit).
    """

    def __init__(self, path: str | Path = NETWORK, *, input_size: Size = DEFAULT_INPUT) -> None:
        path = Path(path)
        if path == NETWORK and not path.is_file():
            raise ObjectSeekerError(
                f"the objectness network is not at {path}: train one as docs/detectorguard.md says, and name its file"
            )
        if min(input_size) < SMALLEST_INPUT:
            raise ObjectSeekerError(
                f"the objectness network needs at least {SMALLEST_INPUT} pixels a side, got "
                f"{input_size[0]}x{input_size[1]}"
            )
        self.session: Any = open_session(path, threads=1)
        self.input_size = input_size
        self.description: dict[str, Any] = {
            "network": path.name,
            "sha256": identity.of_files(path),
            "input": list(input_size),
            "step": FEATURE_STEP,
        }

    def __call__(self, image: Image) -> Features:
        """(rows, columns, classes)."""
        height, width = image.shape[:2]
        canvas = prepare(image, place((width, height), self.input_size, "centred"), pad=GREY)
        pixels = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32)
        (logits,) = self.session.run(None, {self.session.get_inputs()[0].name: pixels})
        shape = tuple(positions(side) for side in self.input_size[::-1])
        if logits.ndim != 4 or logits.shape[2:] != shape or not np.isfinite(logits).all():
            raise ObjectSeekerError(
                f"{self.description['network']} returned {logits.shape} for {shape[0]} x {shape[1]} positions: "
                "it is no objectness network of 33 pixels and stride 8"
            )
        levels = np.clip(np.rint(logits[0] / FEATURE_STEP), 0, LARGEST_FEATURE)
        return np.ascontiguousarray(levels.transpose(1, 2, 0)).astype(np.uint16)


def add_features(run: Run, network: ObjectnessFeatures, *, on_progress: Progress = lambda done, total: None) -> int:
    """Make the features of every finished image of a run that has none yet; returns how many were made."""
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    _require_same(folder / DESCRIPTION, network.description | {"run": run.identity})
    numbers = sorted(run.parts)
    todo = [number for number in numbers if not _file(folder, number).exists()]
    done = len(numbers) - len(todo)
    on_progress(done, len(numbers))

    def make(number: int, path: Any) -> None:
        features = network(load_image(path))
        write_whole(_file(folder, number), lambda stream: np.savez_compressed(stream, features=features))

    paths = [run.manifest.images[number].path for number in todo]  # read here: not for several threads
    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(make, todo, paths):
            done += 1
            on_progress(done, len(numbers))
    return len(todo)


def describe(run: Run) -> dict[str, Any]:
    """Which network made the features of a run, and on which input size."""
    try:
        description: dict[str, Any] = json.loads((run.folder / FOLDER / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ObjectSeekerError(
            f"{run.folder} has no features for DetectorGuard: add them with observe --baseline detectorguard"
        ) from None
    if description.get("run") != run.identity or description.get("step") != FEATURE_STEP:
        raise ObjectSeekerError(
            f"the features in {run.folder / FOLDER} belong to another run or version: remove that folder and add them "
            "again with observe --baseline detectorguard"
        )
    return description


def read_features(run: Run, index: Ints | None = None) -> Iterator[Features]:
    """The features of the run's images in the order of `run.images()`: of all, or of those that `index` says."""
    rows, columns = (positions(side) for side in describe(run)["input"][::-1])
    numbers = sorted(run.parts)
    for number in numbers if index is None else [numbers[i] for i in index.tolist()]:
        file = _file(run.folder / FOLDER, number)
        try:
            with np.load(file, allow_pickle=False) as stored:
                features = stored["features"]
        except (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error):
            raise ObjectSeekerError(
                f"{file} is missing or damaged: remove it and run observe --baseline detectorguard again"
            ) from None
        if features.dtype != np.uint16 or features.ndim != 3 or features.shape[:2] != (rows, columns):
            raise ObjectSeekerError(f"{file} does not hold features of {rows} x {columns} positions: remove it")
        yield features


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _require_same(file: Path, description: dict[str, Any]) -> None:
    """Write what the features are made with, or refuse if those that are there were made with something else."""
    if not file.exists():
        save_json(file, description)
        return
    try:
        made_with = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        made_with = {}
    for key, value in description.items():
        if made_with.get(key) != value:
            raise ObjectSeekerError(
                f"{file.parent} was made with {key} {made_with.get(key)!r}, not {value!r}: use that, or remove it"
            )
