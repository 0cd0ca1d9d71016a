"""The verb attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import (
    escape,
    print_json,
    print_next,
    progress,
    stderr_console,
    stdout_console,
    terminal_table,
)
from objectseeker.cli._options import DefenseOptions, Json, PatchOptions, expand_groups, open_run, print_rule

if TYPE_CHECKING:
    from objectseeker.attack import AttackResult, FabricationResult

ADVANCED, UNIVERSAL = "Advanced", "Universal patch"


@app.command()
@expand_groups
def attack(
    source: Annotated[
        str, typer.Argument(metavar="RUN|IMAGE|DATASET", help="Folder that observe wrote, an image, or a dataset.")
    ],
    defense: DefenseOptions,
    threat: PatchOptions,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for attack.json and images.", rich_help_panel="Output")
    ] = Path("attack"),
    max_objects: Annotated[
        int | None, typer.Option(help="Attack at most N objects. [5]", metavar="N", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Optimization steps per patch.")] = 100,
    restarts: Annotated[
        int | None, typer.Option(metavar="N", help="Patches per object. [3]", show_default=False)
    ] = None,
    goal: Annotated[str, typer.Option(help="hide objects, fabricate boxes or flip labels.", metavar="GOAL")] = "hide",
    universal: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="One patch per dataset: corner, far, random, on:CLASS.",
            rich_help_panel=UNIVERSAL,
        ),
    ] = None,
    patch_image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw this patch, train none.", rich_help_panel=UNIVERSAL)
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of images to draw at random.", rich_help_panel=UNIVERSAL),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="white-box (gradients) or black-box (boxes).", rich_help_panel=ADVANCED),
    ] = None,
    certification_threshold: Annotated[
        float | None,
        typer.Option(metavar="X", help="T, the overlap to exceed. [0]", rich_help_panel="Threat"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1.", rich_help_panel=ADVANCED)
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of objects and positions.", rich_help_panel=ADVANCED)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Try to hide objects with an adaptive patch attack, and to refute their certificates.

    The attack optimizes patches against the detector and against the defense, where the certificate is weakest. A run
    provides images, annotations, detector and masks; without annotations the confident boxes of an image are the
    objects. Exit code 3: a certified object was hidden, so the guarantee is broken, and a reproduction is saved.

    With --goal fabricate the attack wants boxes where nothing is, with --goal flip boxes of another class on objects.
    Exit code 3 then: a box is certified not fabricated that no view without the patch supports.

    With --universal one patch is trained for a dataset and drawn into every image: in the corner, far from all objects,
    at a random place, or on every object of a class, where its area is a share of the object's box. It is trained
    against the detector, or against --defense, and the attacked images are written with their annotations.

    Example:  objectseeker attack street.jpg --patch-area 1% --patch-location over
    Example:  objectseeker attack runs/voc --defense tuned/defense.json --max-objects 20
    Example:  objectseeker attack voc:VOCdevkit:val --universal corner --patch-area 4% --out attacked
    Example:  objectseeker attack coco:val2017 --universal on:person --patch-area 12% --patch-image printed.png
    """
    from objectseeker.attack import AttackBudget, fabricate
    from objectseeker.attack import attack as run_attack

    if universal is not None:
        given = {
            "--max-objects": max_objects,
            "--restarts": restarts,
            "--certification-threshold": certification_threshold,
        }
        for option, value in given.items():
            if value is not None:
                raise ObjectSeekerError(f"{option} {value} is for attacks on single objects. Omit it with --universal.")
        _attack_dataset(
            source, universal, defense, threat, patch_image, sample, out, steps, mode, device, seed, as_json
        )
        return
    for option, unused in (("--patch-image", patch_image), ("--sample", sample)):
        if unused is not None:
            raise ObjectSeekerError(f"{option} {unused} is for one patch for a dataset. Add --universal.")
    path = Path(source)
    run = open_run(path) if path.is_dir() else None
    chosen, patch = defense.build(run), threat.patch()
    mode_name: Any = mode  # attack() rejects unknown modes
    if goal != "hide":
        if certification_threshold is not None:
            raise ObjectSeekerError(
                f"--certification-threshold {certification_threshold} is for --goal hide: got {goal}. Omit it."
            )
        with progress("attacking", 0) as bar:
            made = fabricate(
                path if run is None else run,
                chosen,
                patch,
                goal=cast(Any, goal),  # fabricate() rejects unknown goals
                out=out,
                mode=mode_name,
                max_objects=5 if max_objects is None else max_objects,
                budget=AttackBudget(steps=steps, restarts=3 if restarts is None else restarts),
                device=device,
                seed=seed,
                on_progress=bar.update,
            )
        _print_fabrication(made, out, as_json=as_json)
        return
    with progress("attacking", 0) as bar:
        result = run_attack(
            path if run is None else run,
            chosen,
            patch,
            out=out,
            mode=mode_name,
            certification_threshold=certification_threshold,
            max_objects=5 if max_objects is None else max_objects,
            budget=AttackBudget(steps=steps, restarts=3 if restarts is None else restarts),
            device=device,
            seed=seed,
            on_progress=bar.update,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        if defense.defense is None:
            print_rule(result.setup.defense)
        print_result(result, out, None if run is None else path)
    if result.broken_guarantees:
        leaking = result.summary["objects_with_leaking_views"]
        stderr_console.print(
            f"[bold red]GUARANTEE BROKEN[/] for {result.broken_guarantees} of {len(result.objects)} objects: hidden "
            f"where proven, or a view that removes the patch changed ({leaking} objects). Run check.py in the folders "
            f"under {escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


def _print_fabrication(result: FabricationResult, out: Path, *, as_json: bool) -> None:
    """Print how often the wanted boxes were made; exit with 3 if one refutes its certificate."""
    from objectseeker.cli._evaluation_tables import format_rate

    summary = result.summary
    if as_json:
        print_json(result.to_dict())
    else:
        rows = [
            {"boxes made in": name, result.goal: format_rate(summary[key])}
            for name, key in (
                ("the undefended output", "undefended"),
                ("the defended output", "defended"),
                ("certified boxes", "certified"),
            )
        ]
        title = f"{summary['attacked']} wanted boxes, best of all patches tried, {result.setup.mode}, 95 % intervals"
        stdout_console.print(terminal_table(title, rows))
        stdout_console.print(
            f"{summary['certified_new_boxes']} of {summary['new_boxes']} new boxes are certified: "
            "views without the patch support them"
        )
        stdout_console.print(f"Images before and after, and attack.json: {escape(str(out))}")
    if result.broken_guarantees:
        stderr_console.print(
            f"[bold red]GUARANTEE BROKEN[/] for {result.broken_guarantees} of {summary['attacked']} wanted boxes: a "
            f"certified box has no support without the patch. Report {escape(str(out / 'broken'))}."
        )
        raise typer.Exit(3)


def _attack_dataset(
    dataset: str,
    placement: str,
    defense: DefenseOptions,
    threat: PatchOptions,
    patch_image: Path | None,
    sample: int | None,
    out: Path,
    steps: int,
    mode: str | None,
    device: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Draw one patch into all images of a dataset, and print where they are."""
    from objectseeker.attack import attack_dataset

    with progress("training a patch", 0) as bar:
        result = attack_dataset(
            dataset,
            placement,
            defense.build(),
            threat.patch(),
            out=out,
            system="undefended" if defense.defense is None else "defended",
            patch_image=patch_image,
            sample=sample,
            steps=steps,
            mode=mode,
            device=device,
            seed=seed,
            on_progress=bar.update,
        )
    if as_json:
        print_json(result.to_dict())
        return
    drawn = sum(map(len, result.rectangles.values()))
    trained = "" if result.system is None else f", trained {result.mode} against the {result.system} detector"
    stdout_console.print(f"{drawn} patches in {len(result.rectangles)} images{trained}: {escape(str(out))}")
    print_next(f"objectseeker observe coco:{out}/annotations.json:{out}/images --out RUN2")
    stdout_console.print("then: objectseeker evaluate RUN --attacked RUN2")


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
        command = f"objectseeker evaluate {run} --attacked {out / 'attack.json'}"
        stdout_console.print(f"Next: {escape(command)}")
