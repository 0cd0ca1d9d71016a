"""The verb attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, progress, stderr_console, stdout_console, terminal_table
from objectseeker.cli._options import DefenseOptions, Json, PatchOptions, expand_groups, open_run, print_rule

if TYPE_CHECKING:
    from objectseeker.attack import AttackResult

ADVANCED = "Advanced"


@app.command()
@expand_groups
def attack(
    source: Annotated[Path, typer.Argument(metavar="RUN|IMAGE", help="Folder that observe wrote, or an image.")],
    defense: DefenseOptions,
    threat: PatchOptions,
    out: Annotated[Path, typer.Option(help="Folder for attack.json, images and loss curves.")] = Path("attack"),
    max_objects: Annotated[int, typer.Option(help="Attack at most N objects.", metavar="N")] = 5,
    steps: Annotated[int, typer.Option(help="Optimization steps per patch.")] = 100,
    restarts: Annotated[int, typer.Option(help="Patches per object.")] = 3,
    mode: Annotated[
        str | None,
        typer.Option(
            help="white-box (gradients) or black-box (boxes only). Default: what works.", rich_help_panel=ADVANCED
        ),
    ] = None,
    certification_threshold: Annotated[
        float | None,
        typer.Option(help="T: overlap with the object to exceed. Default: the rule's.", rich_help_panel=ADVANCED),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.", rich_help_panel=ADVANCED)] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of objects, positions and initial pixels.", rich_help_panel=ADVANCED)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Try to hide objects with an adaptive patch attack, and to refute their certificates.

    The attack optimizes patches against the detector and against the defense, where the certificate is weakest. A run
    provides images, annotations, detector and masks; without annotations the confident boxes of an image are the
    objects. Exit code 3: a certified object was hidden, so the guarantee is broken, and a reproduction is saved.

    Example:  objectseeker attack street.jpg --patch-area 1% --patch-location over
    Example:  objectseeker attack runs/voc --defense tuned/defense.json --max-objects 20
    """
    from objectseeker.attack import AttackBudget
    from objectseeker.attack import attack as run_attack

    run = open_run(source) if source.is_dir() else None
    chosen, patch = defense.build(run), threat.patch()
    mode_name: Any = mode  # attack() rejects unknown modes
    with progress("attacking", 0) as bar:
        result = run_attack(
            source if run is None else run,
            chosen,
            patch,
            out=out,
            mode=mode_name,
            certification_threshold=certification_threshold,
            max_objects=max_objects,
            budget=AttackBudget(steps=steps, restarts=restarts),
            device=device,
            seed=seed,
            on_progress=bar.update,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        if defense.defense is None:
            print_rule(result.setup.defense)
        print_result(result, out, None if run is None else source)
    if result.broken_guarantees:
        leaking = result.summary["objects_with_leaking_views"]
        stderr_console.print(
            f"[bold red]GUARANTEE BROKEN[/] for {result.broken_guarantees} of {len(result.objects)} objects: hidden "
            f"where proven, or a view that removes the patch changed ({leaking} objects). Run check.py in the folders "
            f"under {escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


def print_result(result: AttackResult, out: Path, run: Path | None) -> None:
    """Print the verdict on the certificates, one table, and the next step."""
    from objectseeker.cli._evaluation_tables import ATTACK_LEGEND, attack_rows

    hidden = result.summary["hidden_certified"]
    color = "bold red" if hidden["count"] else "green"
    stdout_console.print(f"[{color}]certified objects hidden: {hidden['count']} of {hidden['total']}[/]")
    title = f"{len(result.objects)} objects under the worst patch tried, {result.setup.mode}, with 95 % intervals"
    stdout_console.print(terminal_table(title, attack_rows(result.recall, result.summary["effects"])))
    stdout_console.print(ATTACK_LEGEND)
    skipped = {
        reason: sum(row["skip_reason"]["defended"] == reason for row in result.objects)
        for reason in dict.fromkeys(row["skip_reason"]["defended"] for row in result.objects)
        if reason is not None
    }
    for reason, count in skipped.items():
        stdout_console.print(f"{count} objects not attacked: {reason}")
    stdout_console.print(f"Annotated images, loss curves and attack.json: {escape(str(out))}")
    if run is not None:
        command = f"objectseeker evaluate {run} --attacks {out / 'attack.json'}"
        stdout_console.print(f"Next: {escape(command)}")
