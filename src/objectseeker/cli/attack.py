"""The command that attacks: attack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker import ObjectSeeker, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, mark, notes, print_json, printed, progress
from objectseeker.cli._options import Batch, Device, InputSize, Json, Layout, Spec, open_run, rule_of


@app.command()
def attack(
    source: Annotated[Path, typer.Argument(metavar="RUN|IMAGE", help="Folder that observe wrote, or an image.")],
    out: Annotated[Path, typer.Option(help="Folder for attack.json, images and loss curves.")] = Path("attack"),
    detector: Spec = "embedded",
    patch: Annotated[str, typer.Option(help="Patch area, 1% or 0.01 of the image.")] = "1%",
    aspect: Annotated[float, typer.Option(help="Patch width divided by its height.")] = 1.0,
    where: Annotated[str, typer.Option(help="far, close, over or anywhere.")] = "over",
    mode: Annotated[str | None, typer.Option(help="white: by gradients. black: by boxes alone.")] = None,
    objects: Annotated[int, typer.Option(help="At most so many objects.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps per patch.")] = 100,
    restarts: Annotated[int, typer.Option(help="Patches per object.")] = 2,
    views: Annotated[int, typer.Option(help="Masked views looked at per step, against the defence.")] = 4,
    jitter: Annotated[int, typer.Option(help="Move the patch by up to so many pixels while optimising it.")] = 0,
    threshold: Annotated[float, typer.Option(help="T: share of an object that must stay covered.")] = 0.0,
    lines: Annotated[int | None, typer.Option(help="Mask lines per axis. Default: the run's, or 30.")] = None,
    base_score: Annotated[float | None, typer.Option(help="Smallest score of a base box.")] = None,
    mask_score: Annotated[float | None, typer.Option(help="Score at which one masked box decides alone.")] = None,
    low_score: Annotated[float | None, typer.Option(help="Evidence rule: score from which views add up.")] = None,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of objects, positions and first pixels.")] = 0,
    as_json: Json = False,
) -> None:
    """Try to hide objects with a patch, from the detector and from the defence, and to refute their certificates.

    The certificate is asked where the defence is weakest, and the patch goes there. Exit code 3 if a certified object
    was hidden: then a guarantee is broken, and a reproduction is saved. RUN lends its images and annotations; without
    annotations the confident boxes of IMAGE are the objects.

    Example:  objectseeker attack street.jpg --patch 1% --where over --out attacked
    Example:  objectseeker attack runs/voc --detector onnx:model.onnx --mode black --objects 20 --out attacked
    """
    from objectseeker import Patch
    from objectseeker.attack import Budget, Pipeline, job

    stored = open_run(source) if source.is_dir() else None
    threat = Patch(job.parse_area(patch), aspect, where)  # type: ignore[arg-type]  # Patch refuses what it does not know
    budget = Budget(steps=steps, restarts=restarts, views=views, jitter=jitter, at_once=256 if device == "cuda" else 16)
    attacked = job.load_attacked(detector, mode=mode, device=device, layout=layout, input_size=input_size, batch=batch)
    if stored is not None and stored.manifest.detector_names != attacked.detector.names:
        raise ObjectSeekerError(f"{source} was observed with other classes than those of {detector}: name its detector")
    rule = rule_of(detector, {"base_score": base_score, "mask_score": mask_score, "low_score": low_score})
    chosen_lines = lines or (30 if stored is None else stored.manifest.lines)
    fill = 114 if stored is None else stored.manifest.fill
    seeker = ObjectSeeker.with_rule(attacked.detector, rule, lines=chosen_lines, fill=fill, batch=batch or 8)
    pipeline = Pipeline(seeker, threshold)
    if stored is None:
        targets = job.targets_of_image(pipeline, source, objects)
    else:
        with progress("observing objects", objects) as bar:
            targets = []
            for target in job.targets_of_run(pipeline, stored, objects, seed):
                targets.append(target)
                bar.advance()
    with progress("attacking", 0) as bar:
        found = job.run_attack(attacked, pipeline, targets, threat, budget, out, seed=seed, on_progress=bar.update)
    broken = found["summary"]["broken_guarantees"]
    if as_json:
        print_json(found)
    else:
        print_attack(found, out)
    if broken:
        notes.print(
            f"[bold red]A GUARANTEE IS BROKEN:[/] {broken} of {len(targets)} objects were hidden where proven. "
            f"Run check.py in the folders under {escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


def print_attack(found: dict[str, Any], out: Path) -> None:
    """One row per object, and the rates."""
    table = Table(title=f"Attacked by {found['mode']} box; survived: still found under the worst patch tried")
    for column in ("image", "object", "certified", "undefended survived", "defended survived"):
        table.add_column(column)
    for row in found["objects"]:
        survived = [row["vanilla_survived"], row["defence_survived"]]
        cells = ["not attacked" if cell is None else mark(cell) for cell in survived]
        table.add_row(escape(row["image"]), f"{row['class']} {row['object']}", mark(row["certified"]), *cells)
    printed.print(table)
    for key, what in (
        ("hidden_from_detector", "hidden from the undefended detector"),
        ("hidden_uncertified", "not certified, hidden from the defence"),
        ("hidden_certified", "certified, hidden from the defence"),
    ):
        rate = found["summary"][key]
        interval = f" ({rate['low']:.0%} to {rate['high']:.0%} at 95 %)" if rate["of"] else ""
        printed.print(f"{what}: {rate['count']} of {rate['of']}{interval}")
    printed.print(f"Images, pictures, loss curves and attack.json: {out}")
