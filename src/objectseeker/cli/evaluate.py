"""objectseeker evaluate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, terminal_table
from objectseeker.cli._options import (
    CleanRecall,
    FalsePositives,
    Json,
    Processes,
    RuleOptions,
    Slices,
    TagsFile,
    ThreatOptions,
    defense_of_run,
    grouped,
    note_masks,
    open_run,
    tags_and_slices,
)
from objectseeker.cli._tracks import TrackOptions, certified_tracks, render_tracks, save_tracks

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings
    from objectseeker.runs.run import Run


@app.command()
@grouped
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that observe wrote.")],
    rule: RuleOptions,
    threat: ThreatOptions,
    tracks: TrackOptions,
    clean_recall: CleanRecall = None,
    fppi: FalsePositives = None,
    cross_tune: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS", help="Tune on each half, at most N points of AP50 lost; measure the other half."
        ),
    ] = None,
    masks: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="With --cross-tune: only these masks, among those of every run."),
    ] = None,
    tags: TagsFile = None,
    slices: Slices = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print definitions, the threat and the rule in full.")
    ] = False,
    processes: Processes = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.json, .csv and .md, slices.csv, tracks.csv.")
    ] = None,
    attacks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="attack.json of this defense: adds recall under attack, and what it did."),
    ] = None,
    detectorguard: Annotated[
        bool, typer.Option("--detectorguard", help="Compare with DetectorGuard (prior work) instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure clean AP and certified recall of a run, with 95 % confidence intervals; compare several runs.

    Everything is measured at the defense's own base threshold, as detect applies it, or with --clean-recall,
    --base-threshold or --fppi elsewhere on its curve. Of several runs each is compared with the first, image by image
    where they hold the same images. With --cross-tune every run gets the rule that suits it: tuned on one half of its
    images and measured on the other.

    Example:  objectseeker evaluate runs/voc --defense tuned/defense.json
    Example:  objectseeker evaluate runs/voc --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --tags tags.csv --slice weather --slice class
    Example:  objectseeker evaluate runs/plain runs/masked --cross-tune 1 --clean-recall 0.8
    Example:  objectseeker evaluate runs/mot --window 8 --max-motion 2 --max-motion any
    Example:  objectseeker evaluate runs/voc --detectorguard --clean-recall 0.8
    """
    from objectseeker import metrics
    from objectseeker.cli import _evaluation_tables as evaluation_tables
    from objectseeker.metrics.evaluation import settings_for
    from objectseeker.metrics.slices import measure_slices

    if masks is not None and cross_tune is None:
        raise ObjectSeekerError(f"--masks {masks} chooses masks to tune: give --cross-tune, too")
    if cross_tune is not None or len(runs) > 1:
        _compare(runs, rule, threat, clean_recall, fppi, cross_tune, masks, processes, out, as_json)
        return
    stored = open_run(runs[0])
    defense = defense_of_run(stored, rule, point=True)
    note_masks(defense.masks, threat.patches)
    tagged, requested = tags_and_slices(stored, tags, slices)
    point: dict[str, Any] = {
        "clean_recall": clean_recall,
        "base_threshold": rule.base_threshold if rule.defense is not None else None,
        "fppi": fppi,
    }
    if detectorguard:
        if fppi is not None or requested:
            raise ObjectSeekerError(
                "--detectorguard compares at a clean recall, on all images. Omit --fppi and --slice."
            )
        settings = settings_for(stored, defense, threat=threat.threat(), **point)
        print_detectorguard(stored, settings, out, as_json=as_json)
        return
    times = 1 if clean_recall is None and fppi is None else 2  # that the images are read
    with progress("evaluating", times * len(stored.parts)) as bar:
        evaluated = metrics.evaluate(
            stored, defense, threat=threat.threat(), **point, processes=processes, on_image=bar.advance
        )
    deployed = evaluated.deployed or defense
    under_attack = None
    if attacks is not None:
        from objectseeker.attack.metrics import read_recall
        from objectseeker.metrics.settings import certification_threshold_of

        under_attack = read_recall(
            attacks,
            deployed,
            evaluated.settings.threat.patches(),
            certification_threshold=certification_threshold_of(defense.rule, threat.certification_threshold),
        )
    rows = []
    if requested and evaluated.defended.point is not None:
        rows = measure_slices(evaluated.tally, tagged, requested, evaluated.settings.threat)
    over_time = certified_tracks(stored, deployed.rule, evaluated.settings.threat, tracks)
    if out is not None:
        evaluation_tables.save(out, evaluated, under_attack, rows)
        if over_time is not None:
            save_tracks(out, over_time)
    if as_json:
        of_tracks = {} if over_time is None else {"over_time": over_time.to_dict()}
        print_json(evaluation_tables.as_json(evaluated, under_attack, rows) | of_tracks)
        return
    _print(evaluation_tables.for_terminal(evaluated, under_attack, rows, explained=explain))
    _print([] if over_time is None else render_tracks(over_time))


def _compare(
    paths: list[Path],
    rule: RuleOptions,
    threat: ThreatOptions,
    clean_recall: float | None,
    fppi: float | None,
    cross_tune: float | None,
    masks: str | None,
    processes: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure several runs alike, or each under rules tuned on its own halves, and print their differences."""
    from objectseeker.cli import _evaluation_tables as evaluation_tables
    from objectseeker.core.recipes import parse_recipe
    from objectseeker.files.atomic import save_json, save_text
    from objectseeker.files.tables import to_csv
    from objectseeker.metrics.comparison import compare

    stored = [open_run(path) for path in paths]
    with progress("evaluating", 0) as bar:
        comparison = compare(
            stored,
            [defense_of_run(run, rule) for run in stored] if cross_tune is None else None,
            threat=threat.threat(),
            clean_recall=clean_recall,
            fppi=fppi,
            cross_tune=cross_tune,
            masks=None if masks is None else parse_recipe(masks),
            processes=processes,
            on_step=bar.advance,
        )
    rows = evaluation_tables.comparison_rows(comparison)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_json(out / "comparison.json", comparison.to_dict())
        save_text(out / "comparison.csv", to_csv(rows))
    if as_json:
        print_json(comparison.to_dict())
        return
    _print([terminal_table(comparison.title(), rows), *comparison.caveats()])


def _print(parts: list[Any]) -> None:
    for part in parts:
        printed.print(escape(part) if isinstance(part, str) else part)


def print_detectorguard(run: Run, settings: EvaluationSettings, out: Path | None, *, as_json: bool) -> None:
    """Print the comparison with DetectorGuard, and save it."""
    from objectseeker.detectorguard import compare_with_detectorguard
    from objectseeker.files.atomic import save_json, save_text
    from objectseeker.files.tables import to_csv, to_markdown

    with progress("computing objectness", 0) as bar:
        comparison = compare_with_detectorguard(run, settings, on_progress=bar.update)
    rows, caveats = comparison.table_rows(), comparison.caveats()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_json(out / "detectorguard.json", comparison.to_dict())
        save_text(out / "detectorguard.csv", to_csv(rows))
        save_text(out / "detectorguard.md", "\n\n".join([to_markdown(rows), *(f"- {line}" for line in caveats)]) + "\n")
    if as_json:
        print_json(comparison.to_dict())
        return
    title = "AP50, clean recall, false alerts and certified recall, in percent"
    printed.print(terminal_table(title, comparison.terminal_rows()))
    for line in caveats:
        printed.print(escape(line))
