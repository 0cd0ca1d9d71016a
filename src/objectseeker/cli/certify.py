"""objectseeker certify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import print_json, printed, progress
from objectseeker.cli._options import (
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    defence_of_run,
    grouped,
    note_masks,
    open_run,
)


@app.command()
@grouped
def certify(
    run: RunFolder,
    rule: RuleOptions,
    threat: ThreatOptions,
    out: Annotated[Path | None, typer.Option(help="A .csv file for all objects; the defence goes beside it.")] = None,
    as_json: Json = False,
) -> None:
    """The certificate of every object of a run, under the rule of a defence.

    Example:  objectseeker certify runs/voc --defence tuned/defence.json --patch 1% --out certificates.csv
    Example:  objectseeker certify runs/voc --mask-score 0.7
    """
    from objectseeker.core.threats import WHERES
    from objectseeker.evaluation import certify_images
    from objectseeker.files.saving import save_text
    from objectseeker.results import tables

    stored = open_run(run)
    defence = defence_of_run(stored, rule)
    note_masks(defence.masks, threat.patches)
    rows: list[dict[str, Any]] = []
    with progress("certifying", len(stored.parts)) as bar:
        for of_image in certify_images(stored.images(), stored.vocabulary, defence.rule, threat.threat()):
            rows += [row.to_json() for row in of_image]
            bar.advance()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_text(out, tables.as_csv([{key: str(value) for key, value in row.items()} for row in rows]))
        defence.save(out.with_name(f"{out.stem}.defence.json"))
    if as_json:
        print_json({"defence": defence.to_json() | {"sha256": defence.sha256}, "objects": rows})
        return
    counted = [row for row in rows if not row["ignored"]]
    for where in WHERES:
        number = sum(row[where] for row in counted)
        printed.print(f"certified {where}: {number} of {len(counted)} objects")
    printed.print(
        f"{sum(row['vacuous_far'] for row in counted)} objects have no far position and count as certified there"
    )
    if out is not None:
        printed.print(f"Every object: {out}")
