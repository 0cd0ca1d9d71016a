"""objectseeker report"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import (
    CleanRecall,
    Json,
    RuleOptions,
    RunFolder,
    TagsFile,
    ThreatOptions,
    WrongBoxes,
    defense_and_settings,
    grouped,
    open_run,
    tags_and_slices,
)

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings
    from objectseeker.report import Baseline
    from objectseeker.runs.run import Run


@app.command()
@grouped
def report(
    run: RunFolder,
    rule: RuleOptions,
    threat: ThreatOptions,
    clean_recall: CleanRecall = None,
    fppi: WrongBoxes = None,
    tags: TagsFile = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Set beside it: a run of the same images, or this one.")
    ] = None,
    baseline_defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its defense. Default: the rule that is shown.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    photos: Annotated[str, typer.Option(help="embed them in the file, or leave them beside it in a folder.")] = "embed",
    as_json: Json = False,
) -> None:
    """One HTML file to look at a run: what is certified, and where a patch would still win. It needs no network.

    Patch size, shape, place and T given here are where the page's sliders stand at first. It shows the rule itself, at
    its own base_threshold, unless --clean-recall, --fppi or --base-threshold is given. --baseline shows what was gained
    and what was lost since another run of the same images, or since another defense of this one. Of data without labels
    it shows the boxes that the defended detector outputs as objects, and says so. Sequences play, and every track shows
    where it is certified over time. The file is made to be passed on: it says nothing of folders, users and passwords.

    Example:  objectseeker report runs/voc --defense tuned/defense.json --out report.html
    Example:  objectseeker report runs/voc --clean-recall 0.7 --photos beside
    Example:  objectseeker report runs/new --baseline runs/old --tags weather.csv
    """
    from objectseeker.report import provenance_of, write_report

    stored = open_run(run)
    labeled = stored.labeled
    defense, settings = defense_and_settings(stored, rule, threat, clean_recall, fppi)
    tagged, _ = tags_and_slices(stored, tags, None)
    compared = None if baseline is None else _baseline(open_run(baseline), baseline_defense, settings)
    if baseline is None and baseline_defense is not None:
        raise ObjectSeekerError(f"--baseline-defense {baseline_defense} is about a --baseline RUN: name it")
    with progress("writing images", len(stored.parts)) as bar:
        missing = write_report(
            out,
            stored.images(),
            stored.vocabulary,
            settings,
            defense=defense,
            title=f"objectseeker report: {stored.folder.resolve().name}",
            provenance=provenance_of(stored),
            labeled=labeled,
            tags=tagged,
            baseline=compared,
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
                "objects_are": "labeled" if labeled else "output",
                "missing_photographs": missing,
            }
        )
    else:
        printed.print(f"Report: {escape(str(out))} ({out.stat().st_size / 1e6:.1f} MB)")


def _baseline(run: Run, file: Path | None, settings: EvaluationSettings) -> Baseline:
    """What to compare with, measured at the same operating point: under its own defense, or under the rule shown."""
    from objectseeker.report import Baseline

    name = run.folder.resolve().name
    defense = run.bind_defense(run.defense(settings.rule, settings.follow) if file is None else Defense.load(file))
    measured = replace(settings, rule=defense.rule, follow=defense.curve)
    floor = run.manifest.observing.mask_floor
    if measured.floor < floor:
        raise ObjectSeekerError(
            f"the baseline keeps masked boxes from a score of {floor} on, but its rule looks from {measured.floor} on: "
            "name a --baseline-defense that looks higher, or observe it with a lower --mask-floor"
        )
    return Baseline(name if file is None else f"{name}, {file.name}", run.images(), run.vocabulary, measured)
