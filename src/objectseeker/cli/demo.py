"""objectseeker demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, mark, print_json, printed, progress
from objectseeker.cli._options import Json
from objectseeker.core.threats import parse_area


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the annotated images.")] = Path("demo"),
    masks: Annotated[str, typer.Option(help="Mask recipe.")] = "halves:30",
    patch: Annotated[str, typer.Option(metavar="SHARE", help="Patch area: 1% or 0.01 of the image.")] = "1%",
    as_json: Json = False,
) -> None:
    """Defend and certify the built-in detector on six bundled images.

    The report opens with an image: drag the patch over it.

    Example:  objectseeker demo --out demo
    """
    from dataclasses import replace

    from objectseeker import Defense
    from objectseeker.core.recipes import parse_recipe
    from objectseeker.demo import demo_run as job
    from objectseeker.demo.samples import samples

    defense, area = replace(Defense.for_detector("builtin"), masks=parse_recipe(masks)), parse_area(patch)
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
        print_json({"out": str(out), "patch_area": area, "masks": masks, "objects": rows})
        return
    table = Table(title=f"Objects of at least 1 % of their image, square patch of {area:.2%}")
    for column in ("image", *columns):
        table.add_column(column)
    for row in rows:
        if row["area_fraction"] >= 0.01:
            table.add_row(row["image"], *(mark(cell) for cell in _cells(row, columns)))
    printed.print(table)
    small = sum(row["area_fraction"] < 0.01 for row in rows)
    printed.print(f"{len(rows)} objects in {count} images; {small} smaller than 1 % are in the report only.")
    printed.print(", ".join(f"certified {location}: {number}" for location, number in summary.items()))
    vacuous = sum(row["vacuous_far"] for row in rows)
    printed.print(
        "found: detected without the defense. far, close, over: no patch more than 10 % of the image away from the "
        "object, next to it, or on it can hide it. Vacuously certified far (too large for any far position): "
        f"{vacuous}"
    )
    printed.print(f"Report: {escape(str(out / 'report.html'))}")


def _cells(row: dict[str, Any], columns: list[str]) -> list[Any]:
    side = row["largest_certified_square"]
    cells = {
        "object": f"{row['object']}, {row['area_fraction']:.1%}",
        "found": row["found_undefended"],
        **row["certified"],
        "largest patch": f"{side} px, {row['largest_certified_area']:.1%}" if side else "-",
    }
    return [cells[column] for column in columns]
