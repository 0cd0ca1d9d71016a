"""The verb report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import print_json, print_next, progress, say, warn
from objectseeker.cli._options import (
    OUTPUT,
    BaselineDefense,
    Json,
    OperatingPoint,
    RunDefenseOptions,
    RunFolder,
    TagsFile,
    ThreatModelOptions,
    defense_and_settings,
    expand_groups,
    open_run,
    option,
    tags_and_slices,
)


@app.command()
@expand_groups
def report(
    run: RunFolder,
    defense: RunDefenseOptions,
    operating_point: OperatingPoint = None,
    tags: TagsFile = None,
    baseline: Annotated[Path | None, option(None, "RUN", "Run to compare with, of the same images.")] = None,
    baseline_defense: BaselineDefense = None,
    out: Annotated[Path, option(OUTPUT, "FILE", "HTML file to write.")] = Path("report.html"),
    embed_images: Annotated[
        bool, option(OUTPUT, None, "Images in the file, or next to it.", show_default=False)
    ] = True,
    as_json: Json = False,
    *,
    threat: ThreatModelOptions,
) -> None:
    """Write an interactive report of a run: one HTML file that needs no network.

    It shows every certificate, and the positions where a patch could still hide an object. Its sliders start at the
    patch size, aspect ratio and certification threshold given here. By default it shows the rule at its own base
    threshold; --operating-point chooses another one. --baseline shows what was gained and lost since another run of the
    same images, or another defense of this one. Without annotations the objects are the boxes that the defended
    detector outputs. Sequences play, and every track shows where it is certified over time. The file contains no
    folders, user names or passwords, so you can share it.

    Example:  objectseeker report runs/voc --defense tuned/defense.json --out report.html
    Example:  objectseeker report runs/voc --operating-point clean_recall=0.7 --no-embed-images
    Example:  objectseeker report runs/new --baseline runs/old --tags weather.csv
    """
    from objectseeker.report import Baseline, write_report

    if out.suffix.lower() not in (".html", ".htm"):
        raise ObjectSeekerError(f"--out must be an HTML file, which browsers open: got {out}. Give {out}.html.")
    if baseline is None and baseline_defense is not None:
        raise ObjectSeekerError(f"--baseline-defense {baseline_defense} needs a --baseline RUN: name it")
    stored = open_run(run)
    chosen, settings = defense_and_settings(stored, defense, threat, operating_point)
    tagged, _ = tags_and_slices(stored, tags, None)
    compared = None
    if baseline is not None:
        other = open_run(baseline)
        compared = Baseline(other)
        if baseline_defense is not None:
            name = f"{other.folder.resolve().name}, {baseline_defense.name}"
            compared = Baseline(other, Defense.load(baseline_defense), name)
    with progress("writing images", len(stored.indices)) as bar:
        written = write_report(
            stored,
            chosen,
            out,
            settings=settings,
            tags=tagged,
            baseline=compared,
            embed_images=embed_images,
            on_progress=bar.update,
        )
    if written.missing_images:
        others = len(written.missing_images) - 1
        warn(f"shown without its image: {written.missing_images[0]}" + (f" (and {others} more)" if others else ""))
    if as_json:
        print_json(written.to_dict())
    else:
        say(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB); open it in a browser")
        given = "" if defense.defense is None else f" --defense {shlex.quote(str(defense.defense))}"
        print_next(f"objectseeker gate {shlex.quote(str(run))}{given} --policy policy.toml --out gate")
