"""Claims: metrics of one defense on one dataset, by the named protocol, that others can check.

A claim says what was measured (dataset, image files, detector, defense), by which protocol, and what came out, with
confidence intervals. `check_claim` measures a run again and compares everything with what is claimed.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from objectseeker import codec
from objectseeker.defense import Defense, spec_without_path
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.atomic import save_text
from objectseeker.metrics.evaluation import Evaluation, evaluate
from objectseeker.runs.manifest import DEFAULT_SIZE
from objectseeker.runs.run import Run

FORMAT = 1
PROTOCOL = "standard-1"
TOLERANCE = 1e-6  # of a percentage: sums in another order may differ in the last digits
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMetric:
    """The value of a metric and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One entry: what was measured, and the metrics.

    Attributes:
        name: The entry's name, that of its file.
        protocol: standard-1; nothing else is claimed.
        dataset: Format and name of the dataset.
        images: Number of images.
        objects: Number of objects that count.
        dataset_sha256: Fingerprint of the dataset's ground truth.
        images_sha256: SHA-256 over the ids and file hashes of the images.
        detector: Fingerprint of the detector, with the hash of its weights.
        defense: Content of the defense file.
        forward_passes: Number of passes for an image of 640 x 480 pixels.
        metrics: By name, as in the intervals of evaluation.json.
        software: Versions that observed the images.
        commands: How to reproduce it.
    """

    name: str
    protocol: str
    dataset: str
    images: int
    objects: int
    dataset_sha256: str
    images_sha256: str
    detector: str
    defense: dict[str, Any]
    forward_passes: int
    metrics: dict[str, ClaimedMetric]
    software: dict[str, str]
    commands: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.protocol != PROTOCOL:
            raise ObjectSeekerError(
                f"protocol must be {PROTOCOL}: got {self.protocol!r}. Measure without other options."
            )
        require_count(self.images, "images")
        require_count(self.forward_passes, "forward_passes")
        if self.objects < 0:
            raise ObjectSeekerError(f"objects must be at least 0: got {self.objects!r}")
        for name in ("dataset_sha256", "images_sha256"):
            if _SHA256.fullmatch(getattr(self, name)) is None:
                raise ObjectSeekerError(f"{name} must be 64 hexadecimal digits: got {getattr(self, name)!r}")
        for name, metric in self.metrics.items():
            if not metric.low <= metric.value <= metric.high:
                raise ObjectSeekerError(f"metrics must lie in their intervals: got {metric} for {name!r}")
        Defense.from_dict(self.defense, "the claim's defense")

    def save(self, file: Path) -> None:
        """Write the claim; equal claims are equal bytes."""
        file.parent.mkdir(parents=True, exist_ok=True)
        save_text(file, codec.write_json({"format": FORMAT, **codec.to_plain(self)}, indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> Claim:
        """Read a claim strictly.

        Raises:
            ObjectSeekerError: The file is not exactly a claim, or is not named after its entry.
        """
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ObjectSeekerError(f"cannot read the claim {file}: {error.strerror}") from None
        claim = codec.read_json(
            content, cls, str(file), format=FORMAT, fix="write it with objectseeker evaluate --claim"
        )
        if claim.name != file.stem:
            raise ObjectSeekerError(f"{file} claims to be {claim.name!r}. Name the file {claim.name}.json.")
        return claim


def make_claim(name: str, run: Run, evaluation: Evaluation) -> Claim:
    """State an evaluation by the named protocol, at the defense's own operating point, as a claim.

    Raises:
        ObjectSeekerError: The protocol or the operating point is another one, fabrication was not measured, or the run
            is unfinished.
    """
    protocol, selected = evaluation.settings.protocol(), evaluation.settings.selected_by
    if protocol != PROTOCOL:
        raise ObjectSeekerError(f"a claim is measured by {PROTOCOL}: got {protocol}. Omit the options of the threat.")
    if evaluation.defense is None or evaluation.deployed != evaluation.defense:
        raise ObjectSeekerError(f"a claim is measured at the defense's own operating point: got {selected}. Omit it.")
    if evaluation.tally.boxes is None:
        raise ObjectSeekerError("a claim needs the metrics of fabrication: got none. Evaluate with fabrication=True.")
    if not run.complete or run.unreadable:
        raise ObjectSeekerError(
            f"a claim needs every image: {run.folder} has {len(run.indices)} of its images. Observe again."
        )
    defense, manifest = evaluation.defense, run.manifest
    return Claim(
        name=name,
        protocol=protocol,
        dataset=_short_dataset(manifest.dataset),
        images=evaluation.images,
        objects=evaluation.objects,
        dataset_sha256=manifest.dataset_fingerprint,
        images_sha256=hash_images(run),
        detector=manifest.detector_fingerprint,
        defense=defense.to_public_dict(),
        forward_passes=defense.masks.forward_passes(*DEFAULT_SIZE),
        metrics={
            key: ClaimedMetric(value=one.value, low=one.low, high=one.high)
            for key, one in evaluation.intervals.items()
            if one.known
        },
        software=dict(manifest.software),
        commands=_commands(run, defense),
    )


def check_claim(claim: Claim, run: Run) -> list[str]:
    """Measure a run again; return each difference from the claim as a sentence, none if it holds.

    Raises:
        ObjectSeekerError: The claim's defense is not that of the run.
    """
    defense = Defense.from_dict(claim.defense, f"the defense of {claim.name}")
    found = make_claim(claim.name, run, evaluate(run, defense, fabrication=True))
    differences = [
        f"{key} is claimed as {getattr(claim, key)!r}, the run has {getattr(found, key)!r}"
        for key in (
            *("dataset", "images", "objects", "dataset_sha256", "images_sha256", "detector", "defense"),
            *("forward_passes", "software", "commands"),
        )
        if getattr(claim, key) != getattr(found, key)
    ]
    for key in sorted({*claim.metrics, *found.metrics}):
        claimed, measured = claim.metrics.get(key), found.metrics.get(key)
        if claimed is None or measured is None:
            differences.append(f"{key} is {'not claimed' if claimed is None else 'claimed, but the run has no value'}")
            continue
        for end in ("value", "low", "high"):
            pair = getattr(claimed, end), getattr(measured, end)
            if not math.isclose(*pair, rel_tol=0, abs_tol=TOLERANCE):
                differences.append(f"{key}: {end} is claimed as {pair[0]:.4f}, the run has {pair[1]:.4f}")
    return differences


def hash_images(run: Run) -> str:
    """Return a SHA-256 over the ids of all images and the hashes of their files."""
    manifest = run.manifest
    known: dict[int, str] = {}
    for number in range(-(-len(manifest.images) // manifest.images_per_part)):
        known |= run.hashes(number)
    lines = "".join(f"{manifest.images[index].id} {known[index]}\n" for index in sorted(known))
    return hashlib.sha256(lines.encode()).hexdigest()


def _short_dataset(spec: str) -> str:
    """Return a dataset's format and the names of its files, without their folders."""
    kind, _, paths = spec.partition(":")
    return ":".join([kind, *(Path(part).name for part in paths.split(":"))])


def _commands(run: Run, defense: Defense) -> tuple[str, ...]:
    manifest = run.manifest
    words = [
        "objectseeker",
        "observe",
        _short_dataset(manifest.dataset),
        "-d",
        spec_without_path(defense.detector_name),
    ]
    words += ["--masks", str(defense.masks)]
    if manifest.limit is not None:
        words += ["--limit", str(manifest.limit)]
        if manifest.seed is not None:
            words[-2:] = ["--sample", str(manifest.limit), "--seed", str(manifest.seed)]
    return shlex.join([*words, "--out", "RUN"]), "objectseeker evaluate RUN --defense DEFENSE --claim CLAIM"
