"""An evidence file made of a release, and a release read back from one."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import objectseeker
from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._release import NAMES, Files, judged, run_files, without_place
from objectseeker.files.tables import to_csv
from objectseeker.gate.audit_bundle import (
    Content,
    TamperedError,
    certificates_csv,
    json_bytes,
    readme,
    unpack_archive,
    verification,
    write_archive,
)

if TYPE_CHECKING:
    from objectseeker.metrics.gate import Gate
    from objectseeker.metrics.policy_metrics import RunMeasurements
    from objectseeker.runs.run import Run

PACKAGES = ("numpy", "pyarrow", "pillow", "onnxruntime", "torch", "transformers", "torchvision")
LONGEST = 60  # characters of a value in a difference


def write_evidence(file: Path, files: Files, gate: Gate, measured: RunMeasurements) -> str:
    """Everything behind a verdict as one file; its SHA-256."""
    members: dict[str, Content] = {
        "policy.toml": files.policy,
        "defense.json": _defense(files.defense),
        "software.json": json_bytes(_software()),
        **_of_run("run", files.run),
        **derived(files, gate, measured),
    }
    if files.baseline is not None and files.baseline_defense is not None:
        members |= _of_run("baseline", files.baseline)
        members["baseline-defense.json"] = _defense(files.baseline_defense)
    for number, path in enumerate(files.attacks, 1):
        members[f"attacks/{NAMES.format(number)}"] = path
    if files.check is not None:
        members["check.json"] = files.check
    if files.tags is not None:
        members[f"tags{'.json' if files.tags.suffix.lower() == '.json' else '.csv'}"] = files.tags
    return write_archive(file, members)


def derived(files: Files, gate: Gate, measured: RunMeasurements) -> dict[str, bytes]:
    """What follows from the rest, to the last byte."""
    return {
        "verdict.json": json_bytes(gate.to_dict()),
        "certificates.csv": certificates_csv(measured).encode(),
        "images.csv": _images_csv(files.run).encode(),
        "verification.json": json_bytes(verification(gate)),
        "README.md": readme(gate).encode(),
    }


def verified(file: Path) -> Gate:
    """The verdict of an evidence file, recomputed from what is in it; refuses one that differs, saying where."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        names = unpack_archive(file, folder)
        for needed in ("policy.toml", "defense.json", "run/run.json", "verdict.json"):
            if needed not in names:
                raise TamperedError([f"{needed} is missing"])
        try:
            files = _files(folder, names)
            _require_intact(files)
            gate, measured = judged(files)
            again = derived(files, gate, measured)
        except TamperedError:
            raise
        except ObjectSeekerError as error:
            # What was once judged can be judged again, unless it is no longer the same.
            raise TamperedError([str(error).replace(f"{folder}/", "")]) from None
        differences = [
            difference for name, content in again.items() for difference in _differences(name, folder / name, content)
        ]
        if differences:
            raise TamperedError(differences)
        return gate


def _files(folder: Path, names: list[str]) -> Files:
    from objectseeker.runs.run import open_run

    def given(name: str) -> Path | None:
        return folder / name if name in names else None

    def defense(run: Run, name: str) -> Defense:
        return run.bind_defense(Defense.load(folder / name))

    run = open_run(folder / "run")
    baseline = open_run(folder / "baseline") if "baseline/run.json" in names else None
    attacks = [name for name in names if name.startswith("attacks/")]
    return Files(
        policy=folder / "policy.toml",
        run=run,
        defense=defense(run, "defense.json"),
        baseline=baseline,
        baseline_defense=None if baseline is None else defense(baseline, "baseline-defense.json"),
        attacks=[folder / name for name in sorted(attacks, key=lambda name: (len(name), name))],
        check=given("check.json"),
        tags=given("tags.csv") or given("tags.json"),
    )


def _require_intact(files: Files) -> None:
    """The name of a part holds the checksum of its content."""
    runs = [run for run in (files.run, files.baseline) if run is not None]
    damaged = [f"{run.folder.name}/{path.parent.name}/{path.name}" for run in runs for path in run.damaged]
    if damaged:
        raise TamperedError([f"{name} is not what its name says" for name in damaged])


def _of_run(place: str, run: Run) -> dict[str, Content]:
    return {f"{place}/{path.relative_to(run.folder).as_posix()}": path for path in run_files(run)}


def _defense(defense: Defense) -> bytes:
    placed = without_place(defense)
    return json_bytes(placed.to_dict() | {"sha256": placed.sha256})


def _software() -> dict[str, str]:
    found = {"objectseeker": objectseeker.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"platform": platform.platform()}


def _images_csv(run: Run) -> str:
    """Which images were observed: the hash of each one's file, where the run has it."""
    rows = []
    for number in sorted({*run.parts.whole, *run.parts.begun}):
        findings = run.findings(number)
        for index in run.parts.images_of(number):
            width, height = findings.sizes[index]
            digest = findings.hashes.get(index, "")
            entry = run.manifest.images[index]
            rows.append({"image": entry.id, "width": str(width), "height": str(height), "file_hash": digest})
    return to_csv(rows)


def _differences(name: str, file: Path, again: bytes) -> list[str]:
    import json

    if not file.is_file():
        return [f"{name} is missing"]
    stated = file.read_bytes()
    if stated == again:
        return []
    if name.endswith(".json"):
        try:
            found = list(_of_values(json.loads(stated), json.loads(again), name))
        except (ValueError, RecursionError):
            found = [f"{name} cannot be read"]
        return found or [f"{name} is written in another way"]
    lines = zip_longest(stated.decode(errors="replace").splitlines(), again.decode().splitlines(), fillvalue="nothing")
    for number, (before, now) in enumerate(lines, 1):
        if before != now:
            return [f"{name} line {number} says {_short(before)}, recomputed it is {_short(now)}"]
    return [f"{name} is written in another way"]


def _of_values(stated: Any, again: Any, place: str) -> list[str]:
    """Where two JSON values differ."""
    if isinstance(stated, dict) and isinstance(again, dict):
        keys = sorted({*stated, *again})
        return [
            one
            for key in keys
            for one in _of_values(stated.get(key, "nothing"), again.get(key, "nothing"), f"{place} {key}")
        ]
    if isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        pairs = enumerate(zip(stated, again, strict=True), 1)
        return [one for number, (a, b) in pairs for one in _of_values(a, b, f"{place} {number}")]
    return [] if stated == again else [f"{place} says {_short(stated)}, recomputed it is {_short(again)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
