"""objectseeker gate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import Json, open_run, say

CODES = {"pass": 0, "fail": 1, "undecided": 1, "refuted": 3}


@app.command()
def gate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder that observe wrote.")] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="What is required, as TOML.")] = None,
    defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The defense to judge. Default: the run's own.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The release before: a run of the same images.")
    ] = None,
    baseline_defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its defense. Default: the rule that is judged.")
    ] = None,
    attacks: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="attack.json of this defense; may be given again.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What check-detector --defense FILE --json printed.")
    ] = None,
    tags: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Slices: CSV with columns image,..., or a COCO file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for gate.json, junit.xml, gate.md and gate.html.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(metavar="FILE.zip", help="Everything behind the verdict; see verify.")
    ] = None,
    allow_undecided: Annotated[
        bool, typer.Option("--allow-undecided", help="Exit 0 if nothing fails, even if something is undecided.")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a policy with comments, to begin with.")] = False,
    as_json: Json = False,
) -> None:
    """Hold a run against a policy: pass, fail or undecided, at the ends of confidence intervals.

    Exit code 0: all requirements pass. 1: one fails or is undecided. 2: bad input. 3: an attack file refutes a
    certificate.

    Example:  objectseeker gate --example > policy.toml
    Example:  objectseeker gate runs/voc --policy policy.toml --defense tuned/defense.json --out gate
    Example:  objectseeker gate runs/new --policy policy.toml --baseline runs/old --evidence evidence.zip
    """
    from objectseeker.metrics.policy import EXAMPLE

    if example:
        print(EXAMPLE, end="")
        return
    if run is None or policy is None:
        raise ObjectSeekerError("name a run and a policy: gate RUN --policy FILE, or begin with gate --example")
    from objectseeker.cli._release import Files, bound, judged, read_policy
    from objectseeker.gate import write_gate
    from objectseeker.gate.verdict_text import in_short, table_of

    read_policy(policy)  # refused before anything is computed
    stored = open_run(run)
    chosen = bound(stored, defense)
    if defense is None:
        say(chosen)
    before = None if baseline is None else open_run(baseline)
    if before is None and baseline_defense is not None:
        raise ObjectSeekerError(f"--baseline-defense {baseline_defense} is about a --baseline RUN: name it")
    files = Files(
        policy=policy,
        run=stored,
        defense=chosen,
        baseline=before,
        baseline_defense=None if before is None else bound(before, baseline_defense, chosen),
        attacks=tuple(attacks or ()),
        check=check,
        tags=tags,
    )
    with progress("judging", len(stored.parts) + (0 if before is None else len(before.parts))) as bar:
        found, measured = judged(files, bar.advance)
    if out is not None:
        write_gate(out, found, stored.images(), stored.vocabulary, chosen, allow_undecided=allow_undecided)
    digest = None
    if evidence is not None:
        from objectseeker.cli._audit import write_evidence

        digest = write_evidence(evidence, files, found, measured)
    if as_json:
        print_json(found.to_dict() | ({} if digest is None else {"evidence_sha256": digest}))
    else:
        printed.print(table_of(found))
        for certificate in found.refuted:
            printed.print(f"[bold red]refuted:[/] {escape(certificate)}")
        printed.print(f"[bold]{found.verdict}[/]: {escape(in_short(found))}")
        if out is not None:
            printed.print(f"Page, tables and junit.xml: {escape(str(out))}")
        if evidence is not None:
            printed.print(f"Evidence: {escape(str(evidence))}, sha256 {digest}; keep that number elsewhere")
    code = CODES[found.verdict]
    if found.verdict == "undecided" and allow_undecided:
        warn("undecided requirements are let through: --allow-undecided")
        code = 0
    if code:
        raise typer.Exit(code)
