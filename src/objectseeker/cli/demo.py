"""The command `objectseeker demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, mark, print_json, print_next, progress, stdout_console
from objectseeker.cli._options import Json, PatchArea, Settings
from objectseeker.cli._settings import default_defense
from objectseeker.core.threats import parse_area
from objectseeker.errors import ObjectSeekerError


@app.command()
def demo(
    settings: Settings = None,
    patch_area: PatchArea = "1%",
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the report and the annotated images.", rich_help_panel="Output"),
    ] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Defend and certify the built-in detector on six bundled images.

    It takes half a minute, without a GPU or a download. The report opens with an image: drag the patch over it.

    Example:  objectseeker demo
    Example:  objectseeker demo --set masks=bands:1% --patch-area 0.5% --out demo
    """
    from objectseeker.demo import demo_run as job
    from objectseeker.demo.samples import samples

    defense, area = default_defense("builtin", settings or ()), parse_area(patch_area)
    if defense.detector != "builtin":
        raise ObjectSeekerError(f"the demo uses the built-in detector: got {defense.detector}. Use detect instead.")
    count = len(samples())
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with progress("certifying images", count) as bar:
        for verdicts in job.run(defense, patch_area=area):
            job.save(out, verdicts)
            results.append(verdicts)
            bar.advance()
    rows = [row for verdicts in results for row in verdicts.rows()]
    summary = {location: sum(row["certified"][location] for row in rows) for location in job.LOCATIONS}
    columns = ["object", "found", *job.LOCATIONS, "largest patch"]
    job.save_report(out / "report.html", results, defense, patch_area=area)
    if as_json:
        print_json({"out": str(out), "patch_area": area, "masks": str(defense.masks), "objects": rows})
        return
    table = Table(title=f"Objects of at least 1 % of their image, square patch of {area:.2%}")
    for column in ("image", *columns):
        table.add_column(column)
    for row in rows:
        if row["area_fraction"] >= 0.01:
            table.add_row(row["image"], *(mark(cell) for cell in _cells(row, columns)))
    stdout_console.print(table)
    small = sum(row["area_fraction"] < 0.01 for row in rows)
    stdout_console.print(f"{len(rows)} objects in {count} images; {small} smaller than 1 % are in the report only.")
    stdout_console.print(", ".join(f"certified {location}: {number}" for location, number in summary.items()))
    vacuous = sum(row["vacuous_far"] for row in rows)
    stdout_console.print(
        "found: detected without the defense. far, close, over: no patch more than 10 % of the image away from the "
        "object, next to it, or on it can hide it. Vacuously certified far (too large for any far position): "
        f"{vacuous}"
    )
    stdout_console.print(f"Report: {escape(str(out / 'report.html'))}")
    print_next("objectseeker check SPEC, for your own detector, such as onnx:model.onnx")


def _cells(row: dict[str, Any], columns: list[str]) -> list[Any]:
    side = row["largest_certified_square"]
    cells = {
        "object": f"{row['object']}, {row['area_fraction']:.1%}",
        "found": row["found_undefended"],
        **row["certified"],
        "largest patch": f"{side} px, {row['largest_certified_area']:.1%}" if side else "-",
    }
    return [cells[column] for column in columns]
