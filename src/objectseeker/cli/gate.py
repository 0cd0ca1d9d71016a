"""The verb gate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, print_next, progress, say, stdout_console, warn
from objectseeker.cli._options import (
    ADVANCED,
    DEFENSE,
    OUTPUT,
    BaselineDefense,
    Json,
    open_run,
    option,
    print_rule,
    warn_tuned_images,
)

if TYPE_CHECKING:
    from objectseeker.gate.judge import GateResult


COLORS = {"pass": "green", "fail": "bold red", "undecided": "yellow", "refuted": "bold red"}


@app.command()
def gate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder that observe wrote.")] = None,
    policy: Annotated[Path | None, option(None, "FILE", "Requirements, as TOML.")] = None,
    defense: Annotated[Path | None, option(DEFENSE, "FILE", "Defense to judge.")] = None,
    baseline: Annotated[Path | None, option(None, "RUN", "Previous release: a run of the same images.")] = None,
    baseline_defense: BaselineDefense = None,
    attack_results: Annotated[
        list[Path] | None, option(None, "FILE", "attack.json of exactly this defense; repeatable.")
    ] = None,
    detector_check: Annotated[
        Path | None, option(None, "FILE", "Output of objectseeker check --defense FILE --json.")
    ] = None,
    tags: Annotated[Path | None, option(None, "FILE", "Slices: CSV with columns image,..., or a COCO file.")] = None,
    out: Annotated[Path | None, option(OUTPUT, "DIR", "Folder for gate.json, junit.xml, gate.md, gate.html.")] = None,
    audit_bundle: Annotated[
        Path | None, option(OUTPUT, "FILE.zip", "Everything behind the verdict; see verify.")
    ] = None,
    allow_undecided: Annotated[
        bool, option(ADVANCED, None, "Exit 0 if no requirement fails.", "--allow-undecided")
    ] = False,
    example: Annotated[bool, option(OUTPUT, None, "Print a commented policy to start from.", "--example")] = False,
    allow_tuned_images: Annotated[
        bool, option(ADVANCED, None, "Judge although images of the run chose the defense.", "--allow-tuned-images")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hold a run against a policy: pass, fail or undecided, at the ends of confidence intervals.

    Exit code 0: all requirements pass. 1: one fails or is undecided. 2: bad input. 3: an attack file refutes a
    certificate.

    Example:  objectseeker gate --example > policy.toml
    Example:  objectseeker gate runs/voc --policy policy.toml --defense tuned/defense.json --out gate
    Example:  objectseeker gate runs/new --policy policy.toml --baseline runs/old --audit-bundle audit.zip
    """
    from objectseeker.gate.policy import EXAMPLE

    if example:
        print(EXAMPLE, end="")
        return
    if run is None or policy is None:
        raise ObjectSeekerError("name a run and a policy: gate RUN --policy FILE, or start with gate --example")
    if baseline is None and baseline_defense is not None:
        raise ObjectSeekerError(f"--baseline-defense {baseline_defense} is for a --baseline RUN: name it")
    from objectseeker.gate import gate as judge
    from objectseeker.gate.release import load_bound_defense, read_policy

    read_policy(policy)  # a wrong one is rejected before anything is opened
    stored = open_run(run)
    judged = load_bound_defense(stored, defense)
    if defense is None:
        print_rule(judged)
    with progress("judging", 0) as bar:
        result = judge(
            stored,
            policy,
            defense=judged,
            baseline=None if baseline is None else open_run(baseline),
            baseline_defense=baseline_defense,
            attack_results=attack_results or (),
            detector_check=detector_check,
            tags=tags,
            out=out,
            audit_bundle=audit_bundle,
            allow_undecided=allow_undecided,
            allow_tuned_images=allow_tuned_images,
            on_progress=bar.update,
        )
    if allow_tuned_images:
        warn_tuned_images(stored, judged)
    digest = result.audit_bundle_sha256
    if as_json:
        print_json(result.to_dict() | ({} if digest is None else {"audit_bundle_sha256": digest}))
    else:
        color = COLORS[result.verdict]
        stdout_console.print(f"[{color}]{result.verdict}[/]: {escape(result.summarize())}")
        print_verdict(result)
        if out is not None:
            say(f"Page, tables and junit.xml: {out}")
        if audit_bundle is not None:
            say(f"Audit bundle: {audit_bundle}, sha256 {digest}; keep that number elsewhere")
            print_next(f"objectseeker verify {shlex.quote(str(audit_bundle))}")
    if result.verdict == "undecided" and allow_undecided:
        warn("undecided requirements are let through: --allow-undecided")
    if result.exit_status:
        raise typer.Exit(result.exit_status)


def print_verdict(result: GateResult) -> None:
    """Print a row per requirement, and the refuted certificates."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from objectseeker.gate.page import MARKS, format_metric, format_reason
    from objectseeker.text import escape_invisible

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("", "requirement", "value", "reason"):
        table.add_column(column, overflow="fold")
    for row in result.results:
        table.add_row(
            f"[{COLORS[row.outcome]}]{MARKS[row.outcome]}[/]",
            escape(escape_invisible(row.requirement.title)),
            escape(format_metric(row)),
            escape(escape_invisible(format_reason(row))),
        )
    stdout_console.print(table)
    for certificate in result.refuted:
        stdout_console.print(f"[bold red]refuted:[/] {escape(certificate)}")
