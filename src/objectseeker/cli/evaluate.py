"""objectseeker evaluate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._baseline import Baseline, evaluate_baseline
from objectseeker.cli._console import escape, print_json, printed
from objectseeker.cli._options import (
    CleanRecall,
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    defence_and_settings,
    grouped,
    open_run,
    require_floor,
)


@app.command()
@grouped
def evaluate(
    run: RunFolder,
    rule: RuleOptions,
    threat: ThreatOptions,
    clean_recall: CleanRecall = None,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json, .csv and .md.")] = None,
    attacks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="attack.json of this defence: adds recall under attack.")
    ] = None,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Clean AP and certified recall of a run, by the paper's protocol.

    Certified recall is that of the rule itself, at its own base_score: what detect does with the same options or the
    same file. With --clean-recall or --base-score it is measured elsewhere on the rule's curve. Without --defence and
    scores the rule is the one that all commands share; --alpha and --beta alone are the paper's rule.

    Example:  objectseeker evaluate runs/voc --defence tuned/defence.json
    Example:  objectseeker evaluate runs/voc --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --alpha 0.35 --beta 0.25 --low-alpha 0.2 --low-beta 0.15 --json
    Example:  objectseeker evaluate runs/voc --baseline detectorguard --clean-recall 0.8
    """
    from objectseeker import evaluation
    from objectseeker.results import tables

    stored = open_run(run)
    defence, settings = defence_and_settings(stored, rule, threat, clean_recall)
    if baseline is not None:
        evaluate_baseline(baseline, stored, settings, out=out, as_json=as_json)
        return
    evaluated = evaluation.evaluate(stored.images(), stored.vocabulary, settings, defence=defence)
    deployed = evaluated.deployed or defence  # at the operating point that was asked for
    require_floor(stored, deployed.rule.base_score)
    under_attack = None
    if attacks is not None:
        from objectseeker.attack.statistics import read_recall
        from objectseeker.evaluation.settings import threshold_of

        under_attack = read_recall(
            attacks,
            deployed,
            settings.threat.patches(),
            threshold=threshold_of(defence.rule, threat.threshold),
        )
    if out is not None:
        tables.save(out, evaluated, under_attack)
    if as_json:
        print_json(evaluated.to_json() | ({} if under_attack is None else {"under_attack": under_attack}))
        return
    for part in tables.for_terminal(evaluated, under_attack):
        printed.print(escape(part) if isinstance(part, str) else part)
