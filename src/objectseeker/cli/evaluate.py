"""objectseeker evaluate"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._baseline import Baseline, evaluate_baseline
from objectseeker.cli._console import escape, print_json, printed, progress
from objectseeker.cli._options import (
    CleanRecall,
    Json,
    Processes,
    RuleOptions,
    RunFolder,
    Slices,
    TagsFile,
    ThreatOptions,
    WrongBoxes,
    defense_and_settings,
    grouped,
    open_run,
    require_floor,
    tags_and_slices,
)
from objectseeker.cli._tracks import TrackOptions, certified_tracks


@app.command()
@grouped
def evaluate(
    run: RunFolder,
    rule: RuleOptions,
    threat: ThreatOptions,
    tracks: TrackOptions,
    clean_recall: CleanRecall = None,
    fppi: WrongBoxes = None,
    tags: TagsFile = None,
    slices: Slices = None,
    processes: Processes = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.json, .csv and .md, slices.csv, tracks.csv.")
    ] = None,
    attacks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="attack.json of this defense: adds recall under attack, and what it did."),
    ] = None,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Clean AP and certified recall of a run, by the paper's protocol.

    Certified recall is that of the rule itself, at its own base_threshold: what detect does with the same options or
    the
    same file. With --clean-recall, --base-threshold or --fppi it is measured elsewhere on the rule's curve. Without
    --defense and scores the rule is the one that all commands share; --alpha and --beta alone are the paper's rule.

    Example:  objectseeker evaluate runs/voc --defense tuned/defense.json
    Example:  objectseeker evaluate runs/voc --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --defense tuned/defense.json --fppi 1
    Example:  objectseeker evaluate runs/voc --tags tags.csv --slice weather --slice size
    Example:  objectseeker evaluate runs/voc --alpha 0.35 --beta 0.25 --evidence-alpha 0.2 --evidence-beta 0.15 --json
    Example:  objectseeker evaluate runs/mot --window 8 --moves 2 --moves any
    Example:  objectseeker evaluate runs/voc --baseline detectorguard --clean-recall 0.8
    """
    from objectseeker import metrics
    from objectseeker.cli import _evaluation_tables as evaluation_tables
    from objectseeker.cli import _track_tables as track_tables
    from objectseeker.metrics.parallel import usual_processes
    from objectseeker.metrics.slice_metrics import measured_slices

    stored = open_run(run)
    defense, settings = defense_and_settings(stored, rule, threat, clean_recall, fppi)
    tagged, asked = tags_and_slices(stored, tags, slices)
    if baseline is not None:
        if fppi is not None or asked:
            raise ObjectSeekerError("--baseline is measured at a clean recall and as a whole: leave out the rest")
        evaluate_baseline(baseline, stored, settings, out=out, as_json=as_json)
        return
    many = usual_processes(len(stored.parts)) if processes is None else processes
    times = 1 if settings.fixed_rule is not None else 2  # that the images are gone through
    with progress("evaluating", times * len(stored.parts)) as bar:
        evaluated = metrics.evaluate(
            stored.images(), stored.vocabulary, settings, defense=defense, processes=many, on_image=bar.advance
        )
    deployed = evaluated.deployed or defense  # at the operating point that was asked for
    require_floor(stored, deployed.rule.base_threshold)
    under_attack = None
    if attacks is not None:
        from objectseeker.attack.metrics import read_recall
        from objectseeker.metrics.settings import threshold_of

        under_attack = read_recall(
            attacks,
            deployed,
            settings.threat.patches(),
            certification_threshold=threshold_of(defense.rule, threat.threshold),
        )
    rows = []
    if asked and evaluated.ours.point is not None:
        own = replace(settings, rule=evaluated.ours.point.rule)
        with progress("measuring slices", len(stored.parts)) as bar:
            rows = measured_slices(
                stored.images(), stored.vocabulary, own, tagged, asked, processes=many, on_image=bar.advance
            )
    over_time = certified_tracks(stored, deployed.rule, settings.threat, tracks)
    if out is not None:
        evaluation_tables.save(out, evaluated, under_attack, rows)
        if over_time is not None:
            track_tables.save(out, over_time)
    if as_json:
        of_tracks = {} if over_time is None else {"over_time": over_time.to_dict()}
        print_json(evaluation_tables.as_json(evaluated, under_attack, rows) | of_tracks)
        return
    of_tracks_shown = [] if over_time is None else track_tables.for_terminal(over_time)
    for part in [*evaluation_tables.for_terminal(evaluated, under_attack, rows), *of_tracks_shown]:
        printed.print(escape(part) if isinstance(part, str) else part)
