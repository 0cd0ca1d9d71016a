"""The release gate: apply a policy to a run, with a verdict for people and for build servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from objectseeker.defense import Defense

if TYPE_CHECKING:
    from objectseeker.gate.judge import GateResult
    from objectseeker.runs.run import Run

__all__ = ["gate", "verify"]


def gate(
    run: Run | Path | str,
    policy: Path | str,
    *,
    defense: Defense | Path | str | None = None,
    baseline: Run | Path | str | None = None,
    baseline_defense: Defense | Path | str | None = None,
    attack_results: Sequence[Path | str] = (),
    detector_check: Path | str | None = None,
    tags: Path | str | None = None,
    out: Path | str | None = None,
    audit_bundle: Path | str | None = None,
    allow_undecided: bool = False,
    allow_tuned_images: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> GateResult:
    """Hold a run against a policy: every requirement passes, fails or is undecided.

    Args:
        run: A run, or the folder that `observe` wrote.
        policy: A TOML file; `objectseeker gate --example` prints one with comments.
        defense: The defense to judge, by default the rule for the run's detector.
        baseline: The previous release: a run of the same images.
        baseline_defense: Its defense, by default the rule that is judged.
        attack_results: Files attack.json of attacks on exactly this defense.
        detector_check: A file with the output of `objectseeker check --defense FILE --json`.
        tags: Slices of the images: a CSV file with a column `image`, or a COCO file.
        out: A folder for gate.json, junit.xml, gate.md and gate.html.
        audit_bundle: A zip file for everything behind the verdict; `verify` recomputes it.
        allow_undecided: Whether an undecided verdict has exit status 0.
        allow_tuned_images: Whether to judge although images of the run chose the defense.
        on_progress: Called with the number of finished images and their total.

    Returns:
        The verdict, with `verdict`, `exit_status`, one result per requirement, and `to_dict()`.

    Raises:
        ObjectSeekerError: A file cannot be read, or belongs to another run, detector or defense; or images of the run
            chose the defense.

    Example:
        >>> result = gate("runs/voc", "policy.toml", defense="defense.json")  # doctest: +SKIP
        >>> result.verdict, result.exit_status  # doctest: +SKIP
        ('pass', 0)
    """
    from dataclasses import replace

    from objectseeker.errors import ObjectSeekerError
    from objectseeker.gate.audit_bundle import write_audit_bundle
    from objectseeker.gate.page import write_reports
    from objectseeker.gate.release import ReleaseFiles, judge_release, load_bound_defense, read_policy
    from objectseeker.runs.run import Run, open_run

    if baseline is None and baseline_defense is not None:
        raise ObjectSeekerError(f"baseline_defense is for a baseline: got {baseline_defense}. Name a baseline run.")
    read_policy(Path(policy))  # before anything is computed
    stored = run if isinstance(run, Run) else open_run(Path(run))
    judged = load_bound_defense(stored, defense)
    tuned = stored.tuned_images(judged)
    if tuned and not allow_tuned_images:
        raise ObjectSeekerError(
            f"{tuned} of the {len(stored.indices)} images chose this defense, so a verdict on them proves nothing: "
            "judge images that objectseeker observe --exclude RUN leaves, or say --allow-tuned-images "
            "(allow_tuned_images=True)"
        )
    previous = baseline if isinstance(baseline, Run) or baseline is None else open_run(Path(baseline))
    files = ReleaseFiles(
        policy=Path(policy),
        run=stored,
        defense=judged,
        baseline=previous,
        baseline_defense=None if previous is None else load_bound_defense(previous, baseline_defense, judged),
        attacks=tuple(map(Path, attack_results)),
        detector_check=None if detector_check is None else Path(detector_check),
        tags=None if tags is None else Path(tags),
    )
    done, total = 0, sum(len(each.indices) for each in files.runs)

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    result, measurements = judge_release(files, advance)
    result = replace(result, allow_undecided=allow_undecided)
    if out is not None:
        write_reports(Path(out), result, stored.images(), stored.label_map, judged.rule)
    if audit_bundle is not None:
        digest = write_audit_bundle(Path(audit_bundle), files, result, measurements)
        result = replace(result, audit_bundle_sha256=digest)
    return result


def verify(audit_bundle: Path | str) -> GateResult:
    """Recompute the verdict of an audit bundle from its content, without detector or images.

    Args:
        audit_bundle: The zip file that `gate` wrote.

    Returns:
        The recomputed verdict, which equals the stated one.

    Raises:
        BundleMismatchError: Something differs from what was written; `differences` names it.
        ObjectSeekerError: The file is not an audit bundle.

    Example:
        >>> verify("audit.zip").verdict  # doctest: +SKIP
        'pass'
    """
    from objectseeker.gate.audit_bundle import verify_bundle

    return verify_bundle(Path(audit_bundle))
