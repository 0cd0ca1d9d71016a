"""objectseeker certify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress
from objectseeker.cli._options import (
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    defense_of_run,
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
    out: Annotated[Path | None, typer.Option(help="A .csv file for all objects; the defense goes beside it.")] = None,
    as_json: Json = False,
) -> None:
    """The certificate of every object of a run, under the rule of a defense.

    Without annotations the objects are the boxes that the defended detector outputs (object_source: output): what would
    remain of each under an attack on the image as it is. An image that is already attacked may hide objects that are
    not among its boxes, and no certificate speaks of them.

    Example:  objectseeker certify runs/voc --defense tuned/defense.json --patch 1% --out certificates.csv
    Example:  objectseeker certify runs/voc --mask-threshold 0.7
    """
    from objectseeker.core.threats import PATCH_LOCATIONS
    from objectseeker.files.atomic import save_text
    from objectseeker.files.tables import to_csv
    from objectseeker.metrics.object_certificates import (
        ATTACKED_ALREADY,
        ObjectCertificate,
        certify_images,
        certify_output_boxes,
    )

    stored = open_run(run)
    defense = defense_of_run(stored, rule)
    note_masks(defense.masks, threat.patches)
    labeled = stored.labeled
    certify = certify_images if labeled else certify_output_boxes
    rows: list[ObjectCertificate] = []
    with progress("certifying", len(stored.parts)) as bar:
        for of_image in certify(stored.images(), stored.vocabulary, defense.rule, threat.threat()):
            rows += of_image
            bar.advance()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_text(out, to_csv([row.to_csv_row() for row in rows]))
        defense.save(out.with_name(f"{out.stem}.defense.json"))
    if as_json:
        objects_are = "labeled" if labeled else "output"
        about = {"defense": defense.to_public_dict(), "objects_are": objects_are}
        print_json(about | {"objects": [row.to_dict() for row in rows]})
        return
    counted = [row for row in rows if not row.ignored]
    things = "objects" if labeled else "boxes that it outputs"
    for where in PATCH_LOCATIONS:
        number = sum(row.certified[where] for row in counted)
        printed.print(f"certified {where}: {number} of {len(counted)} {things}")
    vacuous = sum(row.vacuous_far for row in counted)
    printed.print(f"{vacuous} {things} have no far position and count as certified there")
    if not labeled:
        printed.print(f"There are no labels, so this is no recall: {ATTACKED_ALREADY}.")
    if out is not None:
        printed.print(f"Every {'object' if labeled else 'box'}: {escape(str(out))}")
