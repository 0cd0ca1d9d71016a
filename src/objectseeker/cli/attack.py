"""The verb attack."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import (
    escape,
    print_json,
    print_next,
    progress,
    say,
    stderr_console,
    stdout_console,
    terminal_table,
)
from objectseeker.cli._options import (
    ADVANCED,
    OUTPUT,
    CertificationThreshold,
    DefenseOptions,
    Json,
    PatchOptions,
    expand_groups,
    open_run,
    option,
    print_rule,
)

if TYPE_CHECKING:
    from objectseeker.attack import AttackResult

UNIVERSAL = "Universal patch"


@app.command()
@expand_groups
def attack(
    source: Annotated[
        str, typer.Argument(metavar="RUN|IMAGE|DATASET", help="Folder that observe wrote, an image, or a dataset.")
    ],
    defense: DefenseOptions,
    threat: PatchOptions,
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for attack.json and images.")] = Path("attack"),
    max_objects: Annotated[int | None, option(None, "N", "Attack at most N objects. [5]", show_default=False)] = None,
    steps: Annotated[int, option(None, "N", "Optimization steps per patch.")] = 100,
    restarts: Annotated[int | None, option(None, "N", "Patches per object. [3]", show_default=False)] = None,
    goal: Annotated[str, option(None, "GOAL", "hide objects, fabricate boxes or flip labels.")] = "hide",
    universal: Annotated[
        str | None, option(UNIVERSAL, "PLACE", "One patch per dataset: corner, far, random, on:CLASS.")
    ] = None,
    patch_image: Annotated[Path | None, option(UNIVERSAL, "FILE", "Draw this patch, train none.")] = None,
    sample: Annotated[int | None, option(UNIVERSAL, "N", "Number of images to draw at random.", min=1)] = None,
    mode: Annotated[str | None, option(ADVANCED, "MODE", "white-box (gradients) or black-box (boxes).")] = None,
    certification_threshold: CertificationThreshold = None,
    device: Annotated[str | None, option(ADVANCED, "DEVICE", "cpu, cuda or cuda:1.")] = None,
    seed: Annotated[int, option(ADVANCED, "N", "Seed of objects and positions.")] = 0,
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
    from objectseeker.attack import AttackBudget, attack_dataset
    from objectseeker.attack import attack as attack_objects

    single: dict[str, Any] = {
        "--max-objects": max_objects,
        "--restarts": restarts,
        "--certification-threshold": certification_threshold,
    }
    universally: dict[str, Any] = {"--patch-image": patch_image, "--sample": sample}
    for name, value in (universally if universal is None else single).items():
        if value is not None:
            kind = "one patch for a dataset. Add" if universal is None else "attacks on single objects. Omit it with"
            raise ObjectSeekerError(f"{name} {value} is for {kind} --universal.")
    shared: dict[str, Any] = {"out": out, "mode": mode, "device": device, "seed": seed}
    if universal is not None:
        system: Any = "undefended" if defense.defense is None else "defended"
        chosen, patch = defense.build(), threat.patch()
        with progress("training a patch", 0) as bar:
            drawn = attack_dataset(
                source, universal, chosen, patch, system=system, patch_image=patch_image, sample=sample, steps=steps,
                on_progress=bar.update, **shared,
            )  # fmt: skip
        if as_json:
            print_json(drawn.to_dict())
            return
        say(f"{drawn.describe()}: {out}")
        print_next(f"objectseeker observe coco:{out}/annotations.json:{out}/images --out RUN2")
        say("then: objectseeker evaluate RUN --attacked RUN2")
        return
    run = open_run(Path(source)) if Path(source).is_dir() else None
    chosen = defense.build(run)
    with progress("attacking", 0) as bar:
        result = attack_objects(
            run or source,
            chosen,
            threat.patch(),
            goal=goal,
            certification_threshold=certification_threshold,
            max_objects=5 if max_objects is None else max_objects,
            budget=AttackBudget(steps=steps, restarts=3 if restarts is None else restarts),
            on_progress=bar.update,
            **shared,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        if defense.defense is None:
            print_rule(chosen)
        _print_result(result, out, None if run is None else f"{shlex.quote(source)}{defense.as_options()}")
    if result.broken_guarantees:
        stderr_console.print(
            f"[bold red]GUARANTEE BROKEN[/] for {result.broken_guarantees} of {len(result.objects)} targets: "
            f"{result.report.breach}. Run check.py in the folders under {escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


def _print_result(result: AttackResult, out: Path, run: str | None) -> None:
    """Print the verdict on the certificates, one table, and the next step."""
    report = result.report
    stdout_console.print(f"[{'bold red' if result.broken_guarantees else 'green'}]{report.headline}[/]")
    title = f"{len(result.objects)} targets under the worst patch tried, {result.setup.mode}, with 95 % intervals"
    say(terminal_table(title, report.rows), *report.notes, f"Annotated images, loss curves and attack.json: {out}")
    if run is not None and result.recall is not None:
        print_next(f"objectseeker evaluate {run} --attacked {shlex.quote(str(out / 'attack.json'))}")
