"""The deployed DetectorGuard, its objectness network in ONNX, and the features stored in a run.

    RUN/detectorguard/features.json      the network and its input size
    RUN/detectorguard/000012.features    the features of image 12

The stored features are exactly those the defense uses: integers. Every file has a checksum; that of features also
covers the image, run and network they belong to, so a misplaced file is detected. The folder can be added to a run at
any time, and an interrupted job resumes.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import DEFAULT_FILL, Image
from objectseeker.detectorguard.objectness import (
    FEATURE_STEP,
    MIN_INPUT_SIZE,
    Features,
    Grid,
    has_alert,
    objectness_map,
    position_count,
)
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.preprocess import Size, place, prepare
from objectseeker.detectors.onnx import available_cores, open_session
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.files.atomic import save_json, write_atomic
from objectseeker.files.images import load_image
from objectseeker.runs.observe import Progress
from objectseeker.runs.run import Run

FOLDER, DESCRIPTION = "detectorguard", "features.json"
NETWORK = Path(__file__).with_name("objectness.onnx")
DEFAULT_INPUT: Size = (416, 416)
MAX_FEATURE = 2**16 - 1
FORMAT = 2  # of the files
CHECKSUM = "checksum"
CHECKSUM_BYTES = hashlib.sha256().digest_size


class ObjectnessFeatures:
    """The objectness network in an ONNX file, a function of an image that returns features.

    It runs one image at a time on one thread: the same image returns the same features, and a position's features
    depend only on the pixels of its view (tests verify both, bit for bit).
    """

    def __init__(self, path: str | Path = NETWORK, *, input_size: Size = DEFAULT_INPUT) -> None:
        path = Path(path)
        if path == NETWORK and not path.is_file():
            raise ObjectSeekerError(
                f"no objectness network: got {path}. Wheels omit it: copy it there from "
                f"src/objectseeker/detectorguard/{path.name} of the source distribution."
            )
        if min(input_size) < MIN_INPUT_SIZE:
            raise ObjectSeekerError(
                f"the objectness network needs at least {MIN_INPUT_SIZE} pixels per side: got "
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
        """Return features (rows, columns, classes)."""
        height, width = image.shape[:2]
        canvas = prepare(image, place((width, height), self.input_size, "center"), pad=DEFAULT_FILL)
        pixels = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32)
        (logits,) = self.session.run(None, {self.session.get_inputs()[0].name: pixels})
        shape = tuple(position_count(side) for side in self.input_size[::-1])
        if logits.ndim != 4 or logits.shape[2:] != shape or not np.isfinite(logits).all():
            raise ObjectSeekerError(
                f"{self.description['network']} returned {logits.shape} for {shape[0]} x {shape[1]} positions: "
                "it is not an objectness network of 33 pixels and stride 8"
            )
        levels = np.clip(np.rint(logits[0] / FEATURE_STEP), 0, MAX_FEATURE)
        return np.ascontiguousarray(levels.transpose(1, 2, 0)).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class GuardedDetections:
    """The output for one image: boxes, none of them if there is an alert."""

    detections: Detections
    alert: bool


class DetectorGuard:
    """A detector behind DetectorGuard: `guard(images)` returns base boxes, or an alert, for each image.

    Args:
        detector: The base detector.
        network: The objectness network.
        base_threshold: The lowest score of a base box that is used.
        threshold: The objectness threshold, in units of `FEATURE_STEP`; certificates hold at this threshold.
    """

    def __init__(
        self,
        detector: Callable[[Sequence[Image]], Sequence[Detections]],
        network: ObjectnessFeatures,
        *,
        base_threshold: float,
        threshold: int,
    ) -> None:
        if isinstance(threshold, bool) or int(threshold) != threshold or threshold < 0:
            raise ObjectSeekerError(f"threshold must be an integer of at least 0: got {threshold!r}")
        self.detector, self.network = detector, network
        self.base_threshold = require_fraction(base_threshold, "base_threshold")
        self.threshold = int(threshold)

    def __call__(self, images: Sequence[Image]) -> list[GuardedDetections]:
        base = self.detector(images)
        return [
            self._guard(image, boxes.with_min_score(self.base_threshold))
            for image, boxes in zip(images, base, strict=True)
        ]

    def _guard(self, image: Image, base: Detections) -> GuardedDetections:
        height, width = image.shape[:2]
        grid = Grid.for_image((width, height), self.network.input_size)
        if has_alert(grid, objectness_map(self.network(image), self.threshold), base):
            return GuardedDetections(Detections.empty(), True)
        return GuardedDetections(base, False)


def add_features(
    run: Run, network: ObjectnessFeatures | None = None, *, on_progress: Progress = lambda done, total: None
) -> int:
    """Compute the features of every finished image of a run that has none yet; return their number.

    Without a network it is that of the package, and needed only if a feature is missing.

    Raises:
        ObjectSeekerError: The run has features of another network.
    """
    folder, numbers = run.folder / FOLDER, run.indices
    pending = [number for number in numbers if not _file(folder, number).exists()]
    if network is None and not pending:
        return 0
    model = network or ObjectnessFeatures()
    folder.mkdir(exist_ok=True)
    maker = model.description | {"format": FORMAT, "run": run.fingerprint}
    _require_same(folder / DESCRIPTION, maker)
    done = len(numbers) - len(pending)
    on_progress(done, len(numbers))

    def make(number: int, path: Any) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, features=model(load_image(path)))
        content = stream.getvalue()
        write_atomic(_file(folder, number), lambda file: file.write(_checksum(maker, number, content) + content))

    paths = [run.manifest.images[number].path for number in pending]  # the manifest is not thread-safe
    with ThreadPoolExecutor(available_cores()) as pool:
        for _ in pool.map(make, pending, paths):
            done += 1
            on_progress(done, len(numbers))
    return len(pending)


def describe(run: Run) -> dict[str, Any]:
    """Return the network that made the features of a run, and its input size."""
    file = run.folder / FOLDER / DESCRIPTION
    if not file.exists():
        raise ObjectSeekerError(
            f"{run.folder} has no DetectorGuard features. Add them with evaluate RUN --measure detectorguard."
        )
    description = _read_description(file)
    expected = {"run": run.fingerprint, "step": FEATURE_STEP, "format": FORMAT}
    if any(description.get(key) != value for key, value in expected.items()):
        raise ObjectSeekerError(
            f"the features in {run.folder / FOLDER} belong to another run or version. Remove that folder and run "
            "evaluate --measure detectorguard again."
        )
    return description


def read_features(run: Run, index: Ints | None = None) -> Iterator[Features]:
    """Yield the features of a run's images in the order of `run.images()`: of all, or of those in `index`."""
    maker = describe(run)
    shape = tuple(position_count(side) for side in maker["input"][::-1])
    numbers = run.indices
    for number in numbers if index is None else [numbers[i] for i in index.tolist()]:
        file = _file(run.folder / FOLDER, number)
        try:
            stored = file.read_bytes()
        except OSError as error:
            raise ObjectSeekerError(
                f"cannot read {file} ({error.strerror}). If it is missing, run evaluate --measure detectorguard again."
            ) from None
        content = stored[CHECKSUM_BYTES:]
        if stored[:CHECKSUM_BYTES] != _checksum(maker, number, content):
            raise ObjectSeekerError(
                f"{file} is damaged or belongs to another image. Remove it and run evaluate --measure detectorguard "
                "again."
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            features = arrays["features"]
        if features.dtype != np.uint16 or features.ndim != 3 or features.shape[:2] != shape:
            raise ObjectSeekerError(f"{file} does not have features of {shape[0]} x {shape[1]} positions. Remove it.")
        yield features


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.features"


def _checksum(maker: Mapping[str, Any], number: int, content: bytes) -> bytes:
    """Return the checksum of the features of image `number`, their image and their maker."""
    about = json.dumps([dict(maker), number], sort_keys=True).encode()
    return hashlib.sha256(hashlib.sha256(about).digest() + content).digest()


def _seal(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(description), sort_keys=True).encode()).hexdigest()


def _read_description(file: Path) -> dict[str, Any]:
    """Read what `_require_same` wrote."""
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        description = None
    seal = description.pop(CHECKSUM, None) if isinstance(description, dict) else None
    if seal is None or seal != _seal(description):
        raise ObjectSeekerError(
            f"{file} is damaged or of another version. Remove {file.parent} and run evaluate --measure detectorguard "
            "again."
        )
    return dict(description)


def _require_same(file: Path, description: dict[str, Any]) -> None:
    """Write the maker of the features, or raise if existing features have another maker."""
    if not file.exists():
        save_json(file, description | {CHECKSUM: _seal(description)})
        return
    maker = _read_description(file)
    for key, value in description.items():
        if maker.get(key) != value:
            raise ObjectSeekerError(
                f"{file.parent} was made with {key} {maker.get(key)!r}, not {value!r}. Use that, or remove it."
            )
