"""objectseeker tune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import Json, RunFolder, ThreatOptions, grouped, open_run, say


@app.command()
@grouped
def tune(
    run: RunFolder,
    threat: ThreatOptions,
    loss: Annotated[float, typer.Option(help="Points of clean AP that may be lost.")] = 1.0,
    clean_recall: Annotated[
        float | None, typer.Option(help="Certify most where this clean recall (a fraction) is reached. Default: 0.8.")
    ] = None,
    recall_of: Annotated[
        str, typer.Option(help="Which detector's clean recall counts: defended, or undefended.")
    ] = "defended",
    where: Annotated[list[str] | None, typer.Option(help="What to maximise; default: far, close and over.")] = None,
    filter_ioa: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    edge_factor: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    cluster_distance: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split into two halves.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for defence.json, and tuning.json, tuning.md, frontier.csv and the plot."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search the rule that certifies most within a clean AP loss, on one half of the images; report the other half.

    The paper's rule and the evidence rule are searched side by side, and for several losses: the frontier. The best
    within --loss is written to defence.json, for every other command: detect, evaluate, certify, report, attack.

    Example:  objectseeker tune runs/voc --loss 1 --clean-recall 0.8 --out tuned
    Example:  objectseeker detect photos/ --defence tuned/defence.json --out found
    """
    from objectseeker import evaluation
    from objectseeker.evaluation import Choices, Search
    from objectseeker.results import plots, tuned

    stored = open_run(run)
    given = {"filter_ioa": filter_ioa, "edge_factor": edge_factor, "cluster_distance": cluster_distance}
    search = Search(
        threat=threat.threat(),
        clean_recall=clean_recall,
        recall_of=recall_of,  # type: ignore[arg-type]  # Search refuses what it does not know
        wheres=tuple(where or ("far", "close", "over")),  # type: ignore[arg-type]
        most_loss=loss,
        mask_floor=stored.manifest.observing.mask_floor,
        seed=seed,
        choices=Choices(**{name: tuple(values) for name, values in given.items() if values}),
    )
    with progress("settings tried", 0) as bar:
        tuning = evaluation.tune(stored.images(), stored.vocabulary, search, on_attempt=bar.count)
    defence = stored.defence(*tuning.chosen)
    if out is not None:
        tuned.save(out, tuning)
        defence.save(out / "defence.json")
        note = plots.missing()
        if note is not None:
            warn(note)
    if as_json:
        print_json(tuning.to_json() | {"defence": defence.described()})
        return
    for part in tuned.for_terminal(tuning):
        printed.print(escape(part) if isinstance(part, str) else part)
    if out is not None:
        printed.print(f"The rule for at most {loss:g} points of AP: {escape(str(out / 'defence.json'))}")
    say(defence)
