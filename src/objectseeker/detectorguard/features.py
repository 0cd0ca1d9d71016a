"""Features: made by the objectness network from an image, and kept beside the boxes of a run.

    RUN/detectorguard/features.json      which network, run on which input size
    RUN/detectorguard/000012.features    the features of image 12

What is stored is what the defense works with: whole numbers, to the last bit. Every file begins or ends with a
checksum; that of features is also about which image, run and network they belong to, so a file in another one's place
is told from its own. The folder can be added to a run at any time, and a job that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.masks import DEFAULT_FILL, Image
from objectseeker.detectorguard.objectness import FEATURE_STEP, SMALLEST_INPUT, Features, positions
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.preprocess import Size, place, prepare
from objectseeker.detectors.onnx import available_cores, open_session
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, write_atomic
from objectseeker.files.images import load_image
from objectseeker.runs.observe import Progress
from objectseeker.runs.run import Run

FOLDER, DESCRIPTION = "detectorguard", "features.json"
NETWORK = Path(__file__).with_name("objectness.onnx")
DEFAULT_INPUT: Size = (416, 416)
LARGEST_FEATURE = 2**16 - 1
FORMAT = 2  # of the files
CHECKSUM = "checksum"
CHECKSUM_BYTES = hashlib.sha256().digest_size


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
            "sha256": fingerprint.hash_files(path),
            "input": list(input_size),
            "step": FEATURE_STEP,
        }

    def __call__(self, image: Image) -> Features:
        """(rows, columns, classes)."""
        height, width = image.shape[:2]
        canvas = prepare(image, place((width, height), self.input_size, "center"), pad=DEFAULT_FILL)
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
    made_with = network.description | {"format": FORMAT, "run": run.fingerprint}
    _require_same(folder / DESCRIPTION, made_with)
    numbers = sorted(run.parts)
    todo = [number for number in numbers if not _file(folder, number).exists()]
    done = len(numbers) - len(todo)
    on_progress(done, len(numbers))

    def make(number: int, path: Any) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, features=network(load_image(path)))
        content = stream.getvalue()
        write_atomic(_file(folder, number), lambda file: file.write(_checksum(made_with, number, content) + content))

    paths = [run.manifest.images[number].path for number in todo]  # read here: not for several threads
    with ThreadPoolExecutor(available_cores()) as pool:
        for _ in pool.map(make, todo, paths):
            done += 1
            on_progress(done, len(numbers))
    return len(todo)


def describe(run: Run) -> dict[str, Any]:
    """Which network made the features of a run, and on which input size."""
    file = run.folder / FOLDER / DESCRIPTION
    if not file.exists():
        raise ObjectSeekerError(
            f"{run.folder} has no features for DetectorGuard: add them with observe --baseline detectorguard"
        )
    description = _read_description(file)
    expected = {"run": run.fingerprint, "step": FEATURE_STEP, "format": FORMAT}
    if any(description.get(key) != value for key, value in expected.items()):
        raise ObjectSeekerError(
            f"the features in {run.folder / FOLDER} belong to another run or version: remove that folder and add them "
            "again with observe --baseline detectorguard"
        )
    return description


def read_features(run: Run, index: Ints | None = None) -> Iterator[Features]:
    """The features of the run's images in the order of `run.images()`: of all, or of those that `index` says."""
    made_with = describe(run)
    shape = tuple(positions(side) for side in made_with["input"][::-1])
    numbers = sorted(run.parts)
    for number in numbers if index is None else [numbers[i] for i in index.tolist()]:
        file = _file(run.folder / FOLDER, number)
        try:
            stored = file.read_bytes()
        except OSError as error:
            raise ObjectSeekerError(
                f"cannot read {file} ({error.strerror}): if it is missing, run observe --baseline detectorguard again"
            ) from None
        content = stored[CHECKSUM_BYTES:]
        if stored[:CHECKSUM_BYTES] != _checksum(made_with, number, content):
            raise ObjectSeekerError(
                f"{file} is damaged or belongs to another image: remove it and run observe --baseline detectorguard "
                "again"
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            features = arrays["features"]
        if features.dtype != np.uint16 or features.ndim != 3 or features.shape[:2] != shape:
            raise ObjectSeekerError(f"{file} does not hold features of {shape[0]} x {shape[1]} positions: remove it")
        yield features


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.features"


def _checksum(made_with: Mapping[str, Any], number: int, content: bytes) -> bytes:
    """Of the features of image `number`: what they are, and what they are about."""
    about = json.dumps([dict(made_with), number], sort_keys=True).encode()
    return hashlib.sha256(hashlib.sha256(about).digest() + content).digest()


def _seal(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(description), sort_keys=True).encode()).hexdigest()


def _read_description(file: Path) -> dict[str, Any]:
    """What `_require_same` wrote."""
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        description = None
    seal = description.pop(CHECKSUM, None) if isinstance(description, dict) else None
    if seal is None or seal != _seal(description):
        raise ObjectSeekerError(
            f"{file} is damaged or of another version: remove {file.parent} and run observe --baseline detectorguard "
            "again"
        )
    return dict(description)


def _require_same(file: Path, description: dict[str, Any]) -> None:
    """Write what the features are made with, or refuse if those that are there were made with something else."""
    if not file.exists():
        save_json(file, description | {CHECKSUM: _seal(description)})
        return
    made_with = _read_description(file)
    for key, value in description.items():
        if made_with.get(key) != value:
            raise ObjectSeekerError(
                f"{file.parent} was made with {key} {made_with.get(key)!r}, not {value!r}: use that, or remove it"
            )
