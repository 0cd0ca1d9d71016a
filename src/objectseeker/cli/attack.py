"""objectseeker attack"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, mark, notes, print_json, printed, progress
from objectseeker.cli._options import (
    DetectorOptions,
    Device,
    Json,
    MaskOptions,
    RuleOptions,
    ThreatOptions,
    defense_of,
    defense_of_run,
    grouped,
    open_run,
    refuse_beside_run,
    say,
)


@app.command()
@grouped
def attack(
    source: Annotated[Path, typer.Argument(metavar="RUN|IMAGE", help="Folder that observe wrote, or an image.")],
    rule: RuleOptions,
    threat: ThreatOptions,
    detector: DetectorOptions,
    masks: MaskOptions,
    where: Annotated[str, typer.Option(help="far, close, over or anywhere.")] = "over",
    out: Annotated[Path, typer.Option(help="Folder for attack.json, images and loss curves.")] = Path("attack"),
    mode: Annotated[str | None, typer.Option(help="white: by gradients. black: by boxes alone.")] = None,
    objects: Annotated[int, typer.Option(help="At most so many objects.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps per patch.")] = 100,
    restarts: Annotated[int, typer.Option(help="Patches per object.")] = 3,
    views: Annotated[int, typer.Option(help="Masked views looked at per step, against the defense.")] = 4,
    jitter: Annotated[int, typer.Option(help="Move the patch by up to so many pixels while optimizing it.")] = 0,
    distrust: Annotated[
        float, typer.Option(help="Share of the patches that also attack views our own proof calls immune.")
    ] = 0.5,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of objects, positions and first pixels.")] = 0,
    as_json: Json = False,
) -> None:
    """Try to hide objects with a patch, from the detector and from the defense, and to refute their certificates.

    The certificate is asked where the defense is weakest, and the patch goes there. Exit code 3 if a certified object
    was hidden: then a guarantee is broken, and a reproduction is saved. RUN lends its images, annotations, detector and
    masks; without annotations the confident boxes of IMAGE are the objects.

    Example:  objectseeker attack street.jpg --patch 1% --where over --out attacked
    Example:  objectseeker attack runs/voc --defense tuned/defense.json --objects 20 --out attacked
    """
    from objectseeker.attack import Budget, job

    stored = open_run(source) if source.is_dir() else None
    if stored is not None:
        refuse_beside_run(source, detector, masks)
        defense = defense_of_run(stored, rule)
    else:
        defense = defense_of(detector, masks, rule)
    patch = threat.at(where)
    on_gpu = (device or "cpu") != "cpu"
    budget = Budget(
        steps=steps,
        restarts=restarts,
        views=views,
        jitter=jitter,
        distrust=distrust,
        at_once=256 if on_gpu else 16,
    )
    attacked = job.load_attacked(defense, threshold=threat.threshold, mode=mode, device=device)
    if stored is None:
        if rule.defense is None:
            say(attacked.defense)
        targets = job.targets_of_image(attacked.pipeline, source, objects)
    else:
        with progress("observing objects", objects) as bar:
            targets = []
            for target in job.targets_of_run(attacked.pipeline, stored, objects, seed):
                targets.append(target)
                bar.advance()
    with progress("attacking", 0) as bar:
        results = job.run_attack(attacked, targets, patch, budget, out, seed=seed, on_progress=bar.update)
    broken = results["summary"]["broken_guarantees"]
    if as_json:
        print_json(results)
    else:
        print_attack(results, out)
    if broken:
        leaks = results["summary"]["with_leaks"]
        notes.print(
            f"[bold red]A GUARANTEE IS BROKEN:[/] {broken} of {len(targets)} objects were hidden where proven, or seen "
            f"otherwise in a view that removes the patch ({leaks}). Run check.py in the folders under "
            f"{escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


def print_attack(results: dict[str, Any], out: Path) -> None:
    """One row per object, the rates, and what the patches did."""
    from objectseeker.cli._evaluation_tables import effects_for_terminal

    table = Table(title=f"Attacked by {results['mode']} box: what became of each object under the worst patch tried")
    for column in ("image", "object", "certified", "undefended", "defended"):
        table.add_column(column)
    for row in results["objects"]:
        cells = [
            f"not attacked: {escape(row['not_attacked'][goal])}" if effect is None else effect["object"]
            for goal, effect in row["effects"].items()
        ]
        table.add_row(
            escape(str(row["image"])), escape(f"{row['class']} {row['object']}"), mark(row["certified"]), *cells
        )
    printed.print(table)
    for key, what in (
        ("hidden_from_detector", "hidden from the undefended detector"),
        ("hidden_uncertified", "not certified, hidden from the defense"),
        ("hidden_certified", "certified, hidden from the defense"),
    ):
        rate = results["summary"][key]
        interval = f" ({rate['low']:.0%} to {rate['high']:.0%} at 95 %)" if rate["of"] else ""
        printed.print(f"{what}: {rate['count']} of {rate['of']}{interval}")
    for part in effects_for_terminal(results["summary"]["effects"]):
        printed.print(escape(part) if isinstance(part, str) else part)
    printed.print(f"Images, pictures, loss curves and attack.json: {escape(str(out))}")
