"""The verb evaluate."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import (
    escape,
    print_json,
    print_next,
    progress,
    say,
    stderr_console,
    terminal_table,
    warn,
)
from objectseeker.cli._options import (
    ADVANCED,
    OUTPUT,
    THREAT,
    Json,
    OperatingPoint,
    RunDefenseOptions,
    Slices,
    TagsFile,
    ThreatModelOptions,
    expand_groups,
    open_run,
    option,
    parse_operating_point,
    tags_and_slices,
    warn_about_defense,
)

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings, ThreatModel
    from objectseeker.metrics.track_certificates import TrackCertificates, TrackCriteria
    from objectseeker.runs.run import Run


MEASURABLE = {"fabrication", "detectorguard"}
ANY = "any"  # patch motion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackOptions:
    """Options of certificates over time, for a run of sequences."""

    window: Annotated[list[str] | None, option(THREAT, "FRAMES[:N]", "Frames, and detections in them; repeatable.")] = (
        None
    )
    max_motion: Annotated[list[str] | None, option(THREAT, "PIXELS", "Patch motion per frame, or any; repeatable.")] = (
        None
    )


@app.command()
@expand_groups
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that observe wrote.")],
    defense: RunDefenseOptions,
    operating_point: OperatingPoint = None,
    tags: TagsFile = None,
    slices: Slices = None,
    explain: Annotated[bool, option(OUTPUT, None, "Print definitions, threat and rule in full.", "--explain")] = False,
    out: Annotated[Path | None, option(OUTPUT, "DIR", "Folder for evaluation.json and tables.")] = None,
    objects: Annotated[Path | None, option(OUTPUT, "FILE", "Write the certificates of every object, as CSV.")] = None,
    claim: Annotated[Path | None, option(OUTPUT, "FILE", "Write a claim that others can check, as JSON.")] = None,
    figures: Annotated[Path | None, option(OUTPUT, "DIR", "Write every analysis of the paper, as CSV and SVG.")] = None,
    as_json: Json = False,
    *,
    threat: ThreatModelOptions,
    tracks: TrackOptions,
    cross_tune: Annotated[
        float | None, option(ADVANCED, "POINTS", "Tune on half the images, at this AP50 loss.")
    ] = None,
    attacked: Annotated[
        Path | None, option(THREAT, "RUN|FILE", "Run of the images under attack, or attack.json.")
    ] = None,
    measure: Annotated[list[str] | None, option(ADVANCED, "WHAT", "Also fabrication; or only detectorguard.")] = None,
) -> None:
    """Measure clean AP and certified recall of a run, with intervals; compare several runs.

    Everything is measured at the defense's own base threshold, as detect applies it, or with --operating-point
    elsewhere on its curve. Of several runs, each is compared with the first, image by image where they hold the
    same images. With --attacked RUN it measures what an attack on the same images takes, with --attacked FILE
    recall under attack. With --cross-tune every run gets the rule that suits it. With --measure fabrication the
    output boxes are certified not fabricated, too; with --measure detectorguard it compares with DetectorGuard
    instead. Without annotations only --objects is possible: the objects are the boxes that the defended detector
    outputs.

    Example:  objectseeker evaluate runs/voc --defense tuned/defense.json
    Example:  objectseeker evaluate runs/voc --set rule=paper --operating-point clean_recall=0.8
    Example:  objectseeker evaluate runs/voc --tags tags.csv --by weather --by class
    Example:  objectseeker evaluate runs/voc --objects certificates.csv
    Example:  objectseeker evaluate runs/voc --attacked runs/voc-attacked
    Example:  objectseeker evaluate runs/voc --claim claims/mine.json
    Example:  objectseeker evaluate runs/plain runs/masked --cross-tune 1 --operating-point clean_recall=0.8
    Example:  objectseeker evaluate runs/mot --window 8 --max-motion 2 --max-motion any
    """
    from objectseeker import metrics
    from objectseeker.cli import _evaluation_tables as tables
    from objectseeker.metrics.evaluation import settings_for

    point, model = parse_operating_point(operating_point), threat.threat_model()
    wanted = set(measure or ())
    if not wanted <= MEASURABLE:
        raise ObjectSeekerError(f"--measure must be fabrication or detectorguard: got {', '.join(sorted(wanted))}")
    fabrication = "fabrication" in wanted
    if cross_tune is not None or len(runs) > 1:
        if "detectorguard" in wanted:
            raise ObjectSeekerError("--measure detectorguard takes one run and no --cross-tune")
        measured = point | {"threat": model, "fabrication": fabrication, "cross_tune": cross_tune}
        _compare([open_run(path) for path in runs], defense, measured, out, as_json)
        return
    run = open_run(runs[0])
    chosen = defense.build(run)
    if attacked is not None and attacked.is_dir():
        _compare_attacked(run, open_run(attacked), chosen, point | {"threat": model}, out, as_json)
        return
    warn_about_defense(run, chosen, threat.patch_count)
    tagged, requested = tags_and_slices(run, tags, slices)
    if objects is not None:
        _certify_objects(run, chosen, model, objects, as_json and not run.has_labels)
        if not run.has_labels:
            return
    if figures is not None:
        _write_figures(run, chosen, settings_for(run, chosen, threat=model, **point), figures)
    if "detectorguard" in wanted:
        if "fppi" in point or requested or fabrication:
            raise ObjectSeekerError(
                "--measure detectorguard compares at a clean recall, on all images: omit fppi, fabrication and --by"
            )
        _compare_with_detectorguard(run, settings_for(run, chosen, threat=model, **point), out, as_json)
        return
    criteria = track_criteria(run, model, tracks)
    times = 1 if point.keys() <= {"base_threshold"} else 2  # that the images are read
    with progress("evaluating", times * len(run.indices)) as bar:
        found = metrics.evaluate(
            run,
            chosen,
            threat=model,
            **point,
            fabrication=fabrication or claim is not None,
            tracks=criteria,
            on_image=bar.advance,
        )
    if claim is not None:
        from objectseeker.metrics.claim import make_claim

        make_claim(claim.stem, run, found).save(claim)
    deployed = found.deployed or chosen
    under_attack = None
    if attacked is not None:
        from objectseeker.attack.metrics import read_recall

        threshold = chosen.rule.resolve_threshold(model.certification_threshold)
        under_attack = read_recall(attacked, deployed, model.patches(), certification_threshold=threshold)
    rows = []
    if requested and found.defended.rule is not None:
        rows = found.by(*requested, tags=tagged)
    certificates = None if criteria is None else usable_tracks(run, found.tracks, tracks)
    if out is not None:
        tables.save(out, found, under_attack, rows)
        if certificates is not None:
            tables.save_tracks(out, certificates)
    if as_json:
        of_tracks = {} if certificates is None else {"track_certificates": certificates.to_dict()}
        print_json(tables.as_json(found, under_attack, rows) | of_tracks)
        return
    say(*tables.render_terminal(found, under_attack, rows, explained=explain))
    say(*([] if certificates is None else tables.render_tracks(certificates)))
    print_next(f"objectseeker report {shlex.quote(str(runs[0]))}{defense.as_options()}")


def _compare(
    runs: list[Run], options: RunDefenseOptions, measured: dict[str, Any], out: Path | None, as_json: bool
) -> None:
    """Print the differences of several runs, under the same rule or under cross-tuned rules."""
    from objectseeker.metrics.comparison import compare

    tuned = measured["cross_tune"] is not None
    masks = options.masks() if tuned else None
    defenses = None if tuned else [options.build(run) for run in runs]
    with progress("evaluating", 0) as bar:
        found = compare(runs, defenses, **measured, masks=masks, on_step=bar.advance)
    rows = found.rows()
    _show(found.to_dict(), rows, [terminal_table(found.title(), rows), *found.caveats()], out, "comparison", as_json)


def _compare_attacked(
    run: Run, attacked: Run, defense: Defense, measured: dict[str, Any], out: Path | None, as_json: bool
) -> None:
    """Print and save what an attack on the images of a run takes, and what certificates hold."""
    from objectseeker.metrics.attacked import evaluate_attacked

    with progress("evaluating", 2 * len(attacked.indices)) as bar:
        found = evaluate_attacked(run, attacked, defense, **measured, on_image=bar.advance)
    title = f"{found.clean.settings.protocol()}: {found.clean.images} images, clean and attacked; 95 % intervals"
    rows = found.rows()
    _show(found.to_dict(), rows, [terminal_table(title, rows), *found.sentences()], out, "attacked", as_json)


def _compare_with_detectorguard(run: Run, settings: EvaluationSettings, out: Path | None, as_json: bool) -> None:
    """Print the comparison with DetectorGuard, and save it."""
    from objectseeker.detectorguard import compare_with_detectorguard
    from objectseeker.files.atomic import save_text
    from objectseeker.text import to_markdown

    with progress("computing objectness", 0) as bar:
        found = compare_with_detectorguard(run, settings, on_progress=bar.update)
    rows, caveats = found.table_rows(), found.caveats()
    title = "AP50, clean recall, false alerts and certified recall, in percent"
    parts = [terminal_table(title, found.terminal_rows()), *caveats]
    _show(found.to_dict(), rows, parts, out, "detectorguard", as_json)
    if out is not None:
        lines = "\n".join(f"- {line}" for line in caveats)
        save_text(out / "detectorguard.md", f"{to_markdown(rows)}\n\n{lines}\n")


def _show(
    content: dict[str, Any], rows: list[dict[str, str]], parts: list[Any], out: Path | None, name: str, as_json: bool
) -> None:
    """Save NAME.json and NAME.csv, and print the content as JSON or as tables and lines."""
    from objectseeker.files.atomic import save_json, save_text
    from objectseeker.text import to_csv

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_json(out / f"{name}.json", content)
        save_text(out / f"{name}.csv", to_csv(rows))
    if as_json:
        print_json(content)
    else:
        say(*parts)


def _certify_objects(run: Run, defense: Defense, threat: ThreatModel, file: Path, as_json: bool) -> None:
    """Write the certificates of every object, or without annotations of every output box."""
    from objectseeker.core.recipes import has_windows
    from objectseeker.files.atomic import save_json, save_text
    from objectseeker.metrics.object_certificates import ATTACKED_ALREADY, certify_run
    from objectseeker.text import to_csv

    with progress("certifying", len(run.indices)) as bar:
        rows = certify_run(run, defense, threat, on_image=bar.advance)
    source = "annotation" if run.has_labels else "output"
    content = {"defense": defense.to_public_dict(), "object_source": source, "objects": [row.to_dict() for row in rows]}
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".json":
        save_json(file, content)
    else:
        save_text(file, to_csv([row.to_csv_row() for row in rows]))
    defense.save(file.with_name(f"{file.stem}.defense.json"))
    if run.has_labels:
        return
    if as_json:
        print_json(content)
        return
    for location in threat.at_all_locations(has_windows(defense.masks)).locations:
        number = sum(row.certified[location] for row in rows)
        say(f"certified {location}: {number} of {len(rows)} output boxes")
    warn(f"without annotations there is no recall: {ATTACKED_ALREADY}")
    say(f"Every box: {file}")


def _write_figures(run: Run, defense: Defense, settings: EvaluationSettings, out: Path) -> None:
    from objectseeker.report.figures import write_figures

    with progress("drawing figures", 0) as bar:
        written = write_figures(run, defense, out, settings=settings, on_progress=bar.update, on_warning=warn)
    say(f"{len(written.files)} files in {out}")


def track_criteria(run: Run, threat: ThreatModel, options: TrackOptions) -> TrackCriteria | None:
    """Return what tracks require; None for a run without sequences, for which no option may be given."""
    from objectseeker.metrics.track_certificates import MAX_MOTIONS, TrackCriteria

    if threat.count != 1 or run.manifest.images[0].frame is None:
        _reject_options(run, options)
        return None
    windows = [_window(text) for text in options.window or ()]
    required = {detections for _, detections in windows} or {1}
    if len(required) > 1:
        raise ObjectSeekerError(f"--window requires one number of detections: got {', '.join(options.window or ())}")
    return TrackCriteria(
        masks=run.manifest.observation_settings.masks,
        windows=tuple(frames for frames, _ in windows) or None,
        max_motions=tuple(map(_pixels, options.max_motion)) if options.max_motion else MAX_MOTIONS,
        min_detections=required.pop(),
    )


def usable_tracks(run: Run, result: TrackCertificates | None, options: TrackOptions) -> TrackCertificates | None:
    """Return certificates with tracks; without any say why, and reject options for them."""
    if result is None:
        _reject_options(run, options)
        return None
    if not result.tracks:
        stderr_console.print(escape(result.caveats()[-1]))
        return None
    return result


def _reject_options(run: Run, options: TrackOptions) -> None:
    given = [name for name in ("window", "max_motion") if getattr(options, name)]
    if given:
        raise ObjectSeekerError(
            f"--{given[0].replace('_', '-')} needs one patch and the tracks of a sequence, and {run.folder} has none: "
            "observe mot:DIR or another sequence"
        )


def _window(text: str) -> tuple[int, int]:
    """Parse FRAMES or FRAMES:DETECTIONS."""
    frames, _, detections = text.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (frames, detections or "1")):
        raise ObjectSeekerError(
            f"--window must be a number of frames such as 8, or 8:2 for two detections: got {text[:40]!r}"
        )
    return int(frames), int(detections or 1)


def _pixels(text: str) -> int | None:
    if text == ANY:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ObjectSeekerError(
            f"--max-motion must be a whole number of pixels per frame such as 2, or any: got {text[:40]!r}"
        )
    return int(text)
