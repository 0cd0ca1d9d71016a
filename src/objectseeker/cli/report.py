"""objectseeker report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import (
    CleanRecall,
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    defence_and_settings,
    grouped,
    open_run,
)


@app.command()
@grouped
def report(
    run: RunFolder,
    rule: RuleOptions,
    threat: ThreatOptions,
    clean_recall: CleanRecall = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    photos: Annotated[str, typer.Option(help="embed them in the file, or leave them beside it in a folder.")] = "embed",
    as_json: Json = False,
) -> None:
    """One HTML file to look at a run: what is certified, and where a patch would still win. It needs no network.

    Patch size, shape, place and T given here are where the page's sliders stand at first. It shows the rule itself, at
    its own base_score, unless --clean-recall or --base-score is given. Of data without labels it shows the boxes that
    the defended detector outputs as objects, and says so. The file is made to be passed on: it says nothing of folders,
    users and passwords.

    Example:  objectseeker report runs/voc --defence tuned/defence.json --out report.html
    Example:  objectseeker report runs/voc --clean-recall 0.7 --photos beside
    """
    from objectseeker.results.report import provenance_of, write_report

    stored = open_run(run)
    labelled = stored.labelled
    defence, settings = defence_and_settings(stored, rule, threat, clean_recall)
    with progress("writing images", len(stored.parts)) as bar:
        missing = write_report(
            out,
            stored.images(),
            stored.vocabulary,
            settings,
            defence=defence,
            title=f"objectseeker report: {stored.folder.resolve().name}",
            provenance=provenance_of(stored),
            labelled=labelled,
            photos=photos,  # type: ignore[arg-type]  # write_report refuses what it does not know
            on_progress=bar.update,
        )
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        warn(f"shown without its photograph: {missing[0]}{more}")
    if as_json:
        print_json(
            {
                "out": str(out),
                "images": len(stored.parts),
                "objects_are": "labelled" if labelled else "output",
                "missing_photographs": missing,
            }
        )
    else:
        printed.print(f"Report: {escape(str(out))} ({out.stat().st_size / 1e6:.1f} MB)")
