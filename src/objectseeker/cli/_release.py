"""What `gate` and `verify` share: a release as files, read and held against its policy.

Everything that a verdict depends on is in these files, so a copy of them gives the same verdict anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectseeker import Defense, ObjectSeekerError, Patch

if TYPE_CHECKING:
    from objectseeker.metrics.gate import AttackFile, Gate, Transcript
    from objectseeker.metrics.policy import Policy
    from objectseeker.metrics.policy_metrics import RunMeasurements
    from objectseeker.metrics.settings import EvaluationSettings
    from objectseeker.runs.run import Run

NAMES = "attack-{}.json"  # what messages call attack files, wherever they lie


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Files:
    """A release: runs with their defenses, and the files beside them."""

    policy: Path
    run: Run
    defense: Defense
    baseline: Run | None = None
    baseline_defense: Defense | None = None
    attacks: Sequence[Path] = ()
    check: Path | None = None
    tags: Path | None = None


def judged(files: Files, on_image: Callable[[], None] = lambda: None) -> tuple[Gate, RunMeasurements]:
    """The verdict and what it was made from; refuses what does not belong together."""
    from objectseeker.metrics.gate import Release, joint_threats, judge, needs_curves, normal, threats
    from objectseeker.metrics.image_tags import NO_TAGS, tags_of_run
    from objectseeker.metrics.policy_metrics import measure_run
    from objectseeker.metrics.settings import EvaluationSettings

    policy = normal(read_policy(files.policy), files.defense)
    attacks = [_attack(path, number, files.defense) for number, path in enumerate(files.attacks, 1)]
    transcript = None if files.check is None else _transcript(files.check)

    def measured(run: Run, defense: Defense) -> RunMeasurements:
        settings = EvaluationSettings(rule=defense.rule, follow=defense.curve)
        asked = threats(policy, attacks)
        curves = needs_curves(policy)
        if curves:
            _require_curve(run, settings)
        jointly = joint_threats(policy)
        return measure_run(
            run.images(), run.vocabulary, settings, asked, curves=curves, jointly=jointly, on_image=on_image
        )

    for run in (files.run, files.baseline):
        if run is not None:
            _require_whole(run)
    baseline = None
    if files.baseline is not None and files.baseline_defense is not None:
        _require_comparable(files.run, files.baseline, files.defense, files.baseline_defense)
        baseline = measured(files.baseline, files.baseline_defense)
    release = Release(
        defense=files.defense,
        measured=measured(files.run, files.defense),
        baseline=baseline,
        tags=NO_TAGS if files.tags is None else tags_of_run(files.tags, files.run),
        attacks=attacks,
        transcript=transcript,
    )
    return judge(policy, release, about(files)), release.measured


def read_policy(file: Path) -> Policy:
    from objectseeker.metrics.policy import parse_policy

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ObjectSeekerError(
            f"cannot read the policy {file}: {error.strerror}; write one with objectseeker gate --example"
        ) from None
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"the policy {file} is no text in UTF-8") from None
    return parse_policy(text, str(file))


def about(files: Files) -> dict[str, Any]:
    """What the verdict is about: identities and hashes, no places."""
    return {
        "defense": _named(files.defense),
        "run": _described(files.run),
        "baseline": None if files.baseline is None else _described(files.baseline),
        "baseline_defense": None if files.baseline_defense is None else _named(files.baseline_defense),
        "files": {
            "policy": sha256(files.policy),
            "attacks": [sha256(path) for path in files.attacks],
            "check": None if files.check is None else sha256(files.check),
            "tags": None if files.tags is None else sha256(files.tags),
        },
    }


def sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}") from None


def run_files(run: Run) -> list[Path]:
    """The files of a whole run, in order: settings, images and objects, boxes, and what could not be read."""
    from objectseeker.runs.manifest import LISTING
    from objectseeker.runs.run import BROKEN, MANIFEST

    kept = {path for number in run.parts.whole for path in run.parts.files_of(number)}
    kept |= {path for number in run.parts.begun for path in run.parts.files_of(number)}
    return [run.folder / MANIFEST, run.folder / LISTING, *sorted(kept), *sorted((run.folder / BROKEN).glob("*.json"))]


def _named(defense: Defense) -> dict[str, Any]:
    return {"sha256": defense.sha256, "detector": defense.identity, "masks": str(defense.masks)}


def _described(run: Run) -> dict[str, Any]:
    """The name of a part holds the checksum of its content, which was verified when the run was opened."""
    names = [f"{path.parent.name}/{path.name}" for path in run_files(run)[2:]]
    settings = run.folder / "run.json"
    return {
        "identity": run.identity,
        "digest": hashlib.sha256("\n".join([sha256(settings), *names]).encode()).hexdigest(),
        "dataset_identity": run.manifest.dataset_identity,
        "images": len(run.parts),
        "left_out": len(run.unreadable),
        "detector_unverified": run.manifest.detector_unverified,
    }


def _require_comparable(run: Run, baseline: Run, defense: Defense, other: Defense) -> None:
    """Refuse a baseline whose figures mean something else, or that saw other pixels."""
    if type(defense.rule) is not type(other.rule):
        raise ObjectSeekerError(
            f"the baseline's rule is a {type(other.rule).__name__}, the release's a {type(defense.rule).__name__}: "
            "they certify different things, compare rules of one kind"
        )
    known = _files_seen(baseline)
    for image, file in _files_seen(run).items():
        if known.get(image, file) != file:
            raise ObjectSeekerError(f"the baseline saw another image {image}: observe both on the same files")


def _files_seen(run: Run) -> dict[str, str]:
    """The hash of every image's file, by the image's id."""
    manifest = run.manifest
    parts = range(-(-len(manifest.images) // manifest.images_per_part))
    return {manifest.images[index].id: file for part in parts for index, file in run.hashes(part).items()}


def _require_whole(run: Run) -> None:
    if not run.complete:
        raise ObjectSeekerError(
            f"{run.folder} is unfinished ({run.finished} of {len(run.manifest.images)} images): run observe again, a "
            "release is judged by all of them"
        )
    if run.manifest.to_dataset is None:
        raise ObjectSeekerError(f"{run.folder} has no labels, so there is no recall to judge: observe an annotated set")
    if not run.parts:
        raise ObjectSeekerError(f"{run.folder} has no image that could be read: there is nothing to judge")


def _require_curve(run: Run, settings: EvaluationSettings) -> None:
    """AP is measured along the whole curve of the rule, which must not look below what the run has stored."""
    floor = run.manifest.observing.mask_floor
    if settings.floor < floor:
        raise ObjectSeekerError(
            f"AP50 needs masked boxes from a score of {settings.floor} on and {run.folder} keeps them from {floor} on: "
            "observe with a lower --mask-floor, or ask for no AP50"
        )


def _attack(path: Path, number: int, defense: Defense) -> AttackFile:
    from objectseeker.attack.attack_metrics import read_recall
    from objectseeker.metrics.gate import AttackFile

    content = _json(path, "attack.json: name the one that objectseeker attack wrote")
    try:
        patch, threshold, rows = Patch(**content["patch"]), float(content["threshold"]), list(content["objects"])
        for row in rows:
            _ = [row[key] for key in ("image", "object", "class", "broken", "found_by_defense", "defense_survived")]
            _ = [float(value) for value in row["box"]]
    except ObjectSeekerError:
        raise
    except (KeyError, TypeError, ValueError):
        raise ObjectSeekerError(f"{path} is no attack.json: name the one that objectseeker attack wrote") from None
    read_recall(path, defense, patch, threshold=threshold)  # refuses one on another defense
    return AttackFile(NAMES.format(number), patch, threshold, rows)


def _transcript(path: Path) -> Transcript:
    from objectseeker.metrics.gate import Transcript

    return Transcript.from_dict(_json(path, "transcript: write one with check-detector --json"), str(path))


def _json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ObjectSeekerError(f"{path} is no {what}") from None


def bound(run: Run, file: Path | None, like: Defense | None = None) -> Defense:
    """The defense in a file, else the rule of `like` or the default one on the run's detector; bound to the run."""
    if file is not None:
        return run.bind_defense(Defense.load(file))
    if like is not None:
        return run.bind_defense(run.defense(like.rule, like.follow))
    return run.bind_defense(run.defense())


def without_place(defense: Defense) -> Defense:
    """As it can be passed on: where its detector's file lies decides nothing."""
    from objectseeker.defense import spec_without_path

    return replace(defense, detector=spec_without_path(defense.detector))
