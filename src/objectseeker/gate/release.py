"""A release as files, and how it is judged: the runs, defenses, policy and reports of a verdict.

A verdict depends on nothing else, so a copy of these files has the same verdict anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from objectseeker import codec
from objectseeker.defense import Defense, spec_without_path
from objectseeker.detectors.check import DetectorCheck
from objectseeker.errors import ObjectSeekerError
from objectseeker.gate.judge import (
    AttackResults,
    GateResult,
    Release,
    apply_policy,
    resolve_thresholds,
    tally_request,
)
from objectseeker.gate.policy import Policy, parse_policy
from objectseeker.metrics.slices import NO_TAGS, tags_of_run
from objectseeker.metrics.tally import Tally, tally_images
from objectseeker.runs.manifest import INDEX, encode_manifest
from objectseeker.runs.run import BROKEN, MANIFEST, Run, encode_unreadable, numbered_files
from objectseeker.runs.tables import sha256_of

Content = bytes | Path

ATTACK_NAME = "attack-{}.json"  # what messages call attack files, wherever they are


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReleaseFiles:
    """A release: runs with their defenses, and the files of policy, attacks, detector check and tags."""

    policy: Path
    run: Run
    defense: Defense
    baseline: Run | None = None
    baseline_defense: Defense | None = None
    attacks: Sequence[Path] = ()
    detector_check: Path | None = None
    tags: Path | None = None

    @property
    def runs(self) -> list[Run]:
        return [run for run in (self.run, self.baseline) if run is not None]


def judge_release(files: ReleaseFiles, on_image: Callable[[], None] = lambda: None) -> tuple[GateResult, Tally]:
    """Return the verdict and the measurements it was made from; reject files that do not belong together."""
    policy = resolve_thresholds(read_policy(files.policy), files.defense)
    attacks = [_read_attack(path, number, files.defense) for number, path in enumerate(files.attacks, 1)]
    check = None if files.detector_check is None else read_detector_check(files.detector_check)
    for run in files.runs:
        _require_complete(run)

    def measure(run: Run, defense: Defense) -> Tally:
        request = tally_request(policy, defense, attacks)
        if request.curves:  # AP50 is measured along the whole curve of the rule
            run.require_scores(lowest_masked=request.settings.min_mask_score)
        return tally_images(run.images(), run.label_map, request, max_images=None, on_image=on_image)

    baseline = None
    if files.baseline is not None and files.baseline_defense is not None:
        _require_comparable(files)
        baseline = measure(files.baseline, files.baseline_defense)
    release = Release(
        defense=files.defense,
        measurements=measure(files.run, files.defense),
        baseline=baseline,
        tags=NO_TAGS if files.tags is None else tags_of_run(files.tags, files.run),
        attacks=attacks,
        detector_check=check,
    )
    return apply_policy(policy, release, describe_inputs(files)), release.measurements


def read_policy(file: Path) -> Policy:
    """Read a policy file."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ObjectSeekerError(
            f"cannot read the policy {file}: {error.strerror}; write one with objectseeker gate --example > policy.toml"
        ) from None
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"the policy {file} is not UTF-8 text. Convert it.") from None
    return parse_policy(text, str(file))


def load_bound_defense(run: Run, source: Defense | Path | str | None, template: Defense | None = None) -> Defense:
    """Return `source` bound to the run, else the rule of `template`, else the run's default rule."""
    if source is not None:
        return run.bind_defense(source if isinstance(source, Defense) else Defense.load(source))
    if template is not None:
        return run.bind_defense(run.defense(template.rule, template.threshold_schedule))
    return run.bind_defense(run.defense())


def describe_inputs(files: ReleaseFiles) -> dict[str, Any]:
    """Return the fingerprints and hashes of everything that is judged; no paths."""
    return {
        "defense": _describe_defense(files.defense),
        "run": _describe_run(files.run) | {"tuned_images": files.run.tuned_images(files.defense)},
        "baseline": None if files.baseline is None else _describe_run(files.baseline),
        "baseline_defense": None if files.baseline_defense is None else _describe_defense(files.baseline_defense),
        "files": {
            "policy": file_sha256(files.policy),
            "attacks": [file_sha256(path) for path in files.attacks],
            "detector_check": None if files.detector_check is None else file_sha256(files.detector_check),
            "tags": None if files.tags is None else file_sha256(files.tags),
        },
    }


def file_sha256(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}") from None


def content_sha256(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_sha256(content)


def run_members(run: Run) -> dict[str, Content]:
    """Return what counts of a run by name: settings, images and objects, boxes, and unreadable images.

    Documents are in the one form that they are written in.
    """
    index = run.folder / INDEX
    manifest = encode_manifest(run.manifest, index)
    boxes = {f"{file.parent.name}/{file.name}": file for files in run.files.values() for file in files}
    broken = {
        f"{BROKEN}/{file.name}": encode_unreadable(number, run.unreadable[number])
        for file, number in numbered_files(run.folder / BROKEN)
    }
    return {MANIFEST: manifest, INDEX: index, **dict(sorted(boxes.items())), **broken}


def without_path(defense: Defense) -> Defense:
    """Return the defense without the path of its detector's file, which may be private."""
    spec = defense.detector
    return replace(defense, detector=spec_without_path(spec)) if isinstance(spec, str) else defense


def _describe_defense(defense: Defense) -> dict[str, Any]:
    return {
        "sha256": defense.sha256,
        "detector": defense.fingerprint,
        "masks": str(defense.masks),
        "certifies": defense.rule.certified_property,
        "threshold_schedule": codec.to_plain(defense.threshold_schedule),
    }


def _describe_run(run: Run) -> dict[str, Any]:
    """Describe a run; a part's name has the checksum of its content, verified when the run was opened."""
    members = run_members(run)
    content = "\n".join([content_sha256(members[MANIFEST]), *list(members)[2:]])
    return {
        "run_fingerprint": run.fingerprint,
        "fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "dataset_fingerprint": run.manifest.dataset_fingerprint,
        "images": len(run.indices),
        "unreadable_images": len(run.unreadable),
        "unverified_reason": run.manifest.unverified_reason,
    }


def _require_comparable(files: ReleaseFiles) -> None:
    """Reject a baseline whose certificates mean something else, or that observed other pixels."""
    assert files.baseline is not None and files.baseline_defense is not None  # noqa: PT018
    certified, before = (one.rule.certified_property for one in (files.defense, files.baseline_defense))
    if certified != before:
        raise ObjectSeekerError(
            f"the baseline certifies something else: {before}; the release certifies {certified}. Compare defenses "
            "that certify the same."
        )
    known, hashes = (
        {run.manifest.images[index].id: digest for index, digest in zip(run.indices, run.file_hashes(), strict=True)}
        for run in (files.baseline, files.run)
    )
    for image, digest in hashes.items():
        if known.get(image, digest) != digest:
            raise ObjectSeekerError(
                f"the baseline observed other pixels for image {image}: observe both on the same files"
            )


def _require_complete(run: Run) -> None:
    if not run.complete:
        raise ObjectSeekerError(
            f"{run.folder} is unfinished ({run.finished} of {len(run.manifest.images)} images): run observe again, a "
            "release is judged by all of them"
        )
    if run.manifest.dataset_labels is None:
        raise ObjectSeekerError(f"{run.folder} has no annotations, so it has no recall: observe an annotated dataset")
    if not run.files:
        raise ObjectSeekerError(f"{run.folder} has no readable image: observe others")


def read_detector_check(path: Path) -> DetectorCheck:
    """Read what `objectseeker check --json` printed."""
    fix = "it is not a detector check report: write one with objectseeker check --defense FILE --json"
    try:
        content = codec.parse_json(path.read_bytes(), str(path), fix=fix)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    passed = content.pop("passed", None) if isinstance(content, dict) else None
    check = codec.from_plain(content, DetectorCheck, str(path), fix=fix)
    if not check.checks or passed is not check.passed:
        raise ObjectSeekerError(f"{path} says passed = {passed}, which does not follow from its checks: check again")
    return check


def _read_attack(path: Path, number: int, defense: Defense) -> AttackResults:
    """Read attack.json; reject one on another defense."""
    from objectseeker.attack.metrics import read_attack, read_recall

    attack, rows = read_attack(path)
    threshold = attack.certification_threshold
    read_recall(path, defense, attack.patch, certification_threshold=threshold)
    return AttackResults(ATTACK_NAME.format(number), attack.patch, threshold, rows)
