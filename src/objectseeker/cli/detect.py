"""objectseeker detect"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import Defense, ObjectSeeker, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, notes, print_json, printed, progress, warn
from objectseeker.cli._options import (
    ClassMap,
    DetectorOptions,
    Device,
    Json,
    MaskOptions,
    Outside,
    RuleOptions,
    ThreatOptions,
    defense_of,
    grouped,
    note_masks,
    read_class_map,
    say,
)
from objectseeker.cli._video import VideoOptions, Watching, refuse_rolling, require_free, video_in
from objectseeker.detectors import unverified_reason

if TYPE_CHECKING:
    from objectseeker.datasets import Dataset
    from objectseeker.inference.image_sources import Categories, Id, Source
    from objectseeker.inference.images import Looked, Totals
    from objectseeker.metrics import ThreatModel


@app.command()
@grouped
def detect(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|DATASET|VIDEO...",
            help="Images and folders, one dataset, or one video: a file, an address, a camera's number, video:FOLDER.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results; an unfinished one of images is continued.")],
    rule: RuleOptions,
    detector: DetectorOptions,
    masks: MaskOptions,
    threat: ThreatOptions,
    video: VideoOptions,
    certify: Annotated[
        bool, typer.Option("--certify", help="Certify the boxes that are output, against --patch and its like.")
    ] = False,
    alert: Annotated[
        bool,
        typer.Option("--alert", help="Flag images that may be under attack, in alerts.json; frames, in their lines."),
    ] = False,
    class_map: ClassMap = None,
    outside: Outside = False,
    device: Device = None,
    trust_detector: Annotated[
        bool,
        typer.Option(
            "--trust-detector",
            help="Your word that the detector gives the same boxes as before, where another CPU or unknown weights "
            "leave that open.",
        ),
    ] = False,
    annotate: Annotated[bool, typer.Option(help="Write annotated images.")] = True,
    as_json: Json = False,
) -> None:
    """Robust detections of images or of a video: COCO results, CSV and pictures, or a line a frame and a video.

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks". The defense
    that was used lies beside them, in defense.json: certificates hold for these detections if they are about this file.
    Without --defense and scores the rule is the one that all commands share, printed in full.

    With images it may be stopped at any moment: the same command goes on where it was. One image that fails is named,
    and the others go on.

    With --certify every box says where a patch could not hide it (far, close, over, anywhere) on this image as it is.
    An image that is already attacked may hide objects that are not among its boxes: no certificate speaks of them.

    With --alert an image is flagged when masking finds what the base boxes do not explain. If an attacker hides a
    certified object from the detector itself, the image is flagged; clean images may be, too (see evaluate).

    A video gives frames.jsonl, one line of JSON a frame while it runs, and annotated.mp4. Ctrl-C ends it in order, with
    what was done. With --defense builtin-video each frame is shown an eighth of the masks.

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect clip.mp4 --start 1:30 --end 2:00 --stride 5 --out watched
    Example:  objectseeker detect 0 --defense builtin-video --out camera
    Example:  objectseeker detect photos/ --defense tuned/defense.json --out found --certify --patch 1% --alert
    Example:  objectseeker detect a.jpg b.png --detector onnx:yolox_nano.onnx --masks halves:10 --out found
    Example:  objectseeker detect coco:annotations.json:images --class-map Pkw=car --out found
    """
    from objectseeker.inference import images as job
    from objectseeker.inference.journal import journal_in

    defense = defense_of(detector, masks, rule)
    against = _threat(threat, certify)
    if (given := video_in(inputs)) is not None:
        if class_map or outside:
            raise ObjectSeekerError("--class-map and --outside are about datasets: leave them out for a video")
        seeker_of = partial(defense.build, device, trust_detector=trust_detector)
        watching = _watching(given, video, out, defense, seeker_of, threat=against, annotate=annotate, alert=alert)
        watching.say_cost()
        watching.run(as_json=as_json)
        return
    video.refuse()
    refuse_rolling(defense.masks)
    data, sources, ids = _given(inputs, outside)
    pairs = None if class_map is None else read_class_map(class_map)
    seeker = defense.build(device, trust_detector=trust_detector)
    loaded: Any = seeker.detector
    categories, warnings = _categories(data, ids, loaded.names, pairs)
    bound = defense.with_fingerprint(defense.fingerprint or loaded.fingerprint)
    doubt = None if trust_detector else unverified_reason(loaded)
    about = None if against is None else against.to_dict(bound.rule)
    with journal_in(out, {"defense": _decides(bound), "certified": about}) as journal:
        before = sum(source.name in journal.images for source in sources)
        known = len(journal.images)
        if doubt and known and before < len(sources):
            raise ObjectSeekerError(
                f"{out} has {known:,} finished images, and {doubt}; if this is the detector they were made with, say "
                "so with --trust-detector, else use another folder"
            )
        bound.save(out / "defense.json")
        say(bound)
        for sentence in (*(() if data is None else data.warnings), *warnings):
            warn(sentence)
        if doubt and not known:
            warn(f"{doubt}; once stopped, the same command goes on only with --trust-detector")
        if certify:
            note_masks(bound.masks, threat.patches)
        _say_cost(bound, before, len(sources))
        stream = job.look_at_all(
            seeker,
            sources,
            journal,
            threat=against,
            pictures=out / "annotated" if annotate else None,
            names=loaded.names,
            only_known=doubt if known else None,
        )
        done: list[tuple[Source, str]] = []
        with _keeping(done, len(sources), out):
            failed, without_picture = _go_through(stream, len(sources), done)
            totals = job.Results(journal, done, categories, bound.sha256, about).save(out, alerts=alert)
    if as_json:
        print_json(
            {
                "images": totals.images,
                "detections": totals.boxes,
                "found_by_masks_only": totals.recovered,
                **({"alerts": totals.flagged} if alert else {}),
                **({} if about is None else {"certificates": _counts(totals) | about, "about": job.ABOUT}),
                "left_out": dict(totals.left_out),
                "failed": failed,
                "without_picture": without_picture,
                "out": str(out),
                "defense": bound.sha256,
            }
        )
    else:
        _print_totals(
            totals, out, against, about["certification_threshold"] if about else 0.0, pictures=annotate, alert=alert
        )
    for reason in failed.values():
        notes.print(f"[bold yellow]skipped:[/] {escape(reason)}")
    if failed:
        raise typer.Exit(1 if len(failed) < len(sources) else 2)


def _watching(
    given: str,
    options: VideoOptions,
    out: Path,
    defense: Defense,
    seeker_of: Callable[[], ObjectSeeker],
    *,
    threat: ThreatModel | None,
    annotate: bool,
    alert: bool,
) -> Watching:
    """What is asked for where a video is given; the defense that is used is written and printed."""
    from objectseeker.inference.decoding import open_video, pyav
    from objectseeker.inference.defended_video import Lines
    from objectseeker.inference.image_sources import Categories

    choice = options.choice()
    require_free(out)
    if annotate:
        pyav()  # else a folder of frames does without it
    opened = open_video(given, rate=options.fps)  # first: a detector takes longer to load than a bad file to refuse
    seeker = seeker_of()
    loaded: Any = seeker.detector
    bound = defense.with_fingerprint(defense.fingerprint or loaded.fingerprint)
    bound.save(out / "defense.json")
    say(bound)
    lines = Lines(opened.name, Categories.of_detector(loaded.names), bound.sha256, alert)
    about = None if threat is None else threat.to_dict(bound.rule)
    names = tuple(loaded.names)
    return Watching(opened, choice, seeker, lines, out, threat=threat, about=about, annotate=annotate, names=names)


def _threat(options: ThreatOptions, certify: bool) -> ThreatModel | None:
    if certify:
        return options.threat()
    if options != ThreatOptions():
        raise ObjectSeekerError(
            "--patch, --aspect, --patches, --certification-threshold and --bound say what --certify certifies: add it"
        )
    return None


def _given(inputs: list[str], outside: bool) -> tuple[Dataset | None, list[Source], tuple[Id, ...]]:
    """The dataset, where one is given; the images; and the ids of a dataset's categories."""
    from objectseeker.datasets import open_dataset
    from objectseeker.inference.image_sources import is_dataset, sources_of_dataset, sources_of_files

    named = [given for given in inputs if is_dataset(given)]
    if not named:
        return None, sources_of_files([Path(given) for given in inputs]), ()
    if len(inputs) > 1:
        raise ObjectSeekerError(f"{named[0]} is a dataset: give it alone, or images and folders")
    data = open_dataset(named[0], allow_outside_paths=outside)
    return data, *sources_of_dataset(data)


def _categories(
    data: Dataset | None, ids: tuple[Id, ...], names: tuple[str, ...], class_map: dict[str, str] | None
) -> tuple[Categories, tuple[str, ...]]:
    """How results are listed, and sentences for the user on that."""
    from objectseeker.inference.image_sources import Categories, categories_of_dataset

    if data is not None:
        return categories_of_dataset(data, ids, names, class_map)
    if class_map:
        raise ObjectSeekerError("--class-map is about the classes of a dataset: leave it out for images and folders")
    return Categories.of_detector(names), ()


def _decides(defense: Defense) -> dict[str, Any]:
    """Everything that two defenses of one sha256 have in common."""
    from objectseeker.defense import spec_without_path

    return defense.to_dict() | {"detector": spec_without_path(defense.detector_name), "threshold_schedule": None}


def _say_cost(defense: Defense, before: int, total: int) -> None:
    from objectseeker.runs.manifest import ObservationSettings

    views, why = ObservationSettings(defense.masks).views_per_image()
    done = f"{before:,} of {total:,} images done before; " if before else ""
    left = total - before
    notes.print(f"{done}{why}: {left:,} images x {views:,} views = {left * views:,} forward passes")


def _go_through(
    stream: Iterable[Looked], total: int, done: list[tuple[Source, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Note every image that is done; which failed, and which have no picture, with reasons."""
    failed: dict[str, str] = {}
    without_picture: dict[str, str] = {}
    with progress("detecting", total) as bar:
        for one in stream:
            if one.found is None:
                failed[str(one.source.path)] = one.failure
            else:
                done.append((one.source, one.found.sha256))
            if one.changed:
                warn(f"{one.source.name} is not the image it was before: looked at again")
            if one.no_picture:
                warn(f"no picture of {one.source.name}: {one.no_picture}")
                without_picture[one.source.name] = one.no_picture
            bar.advance()
    return failed, without_picture


@contextmanager
def _keeping(done: list[tuple[Source, str]], total: int, out: Path) -> Iterator[None]:
    """Whatever ends it early, a sentence says what is kept."""

    def kept() -> str:
        return f"{len(done):,} of {total:,} images are kept in {out}, the same command goes on from there"

    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{kept()}.") from None  # said on the way out, with exit code 130
    except ObjectSeekerError as error:  # a full disk
        raise ObjectSeekerError(f"{error}; {kept()}") from None


def _counts(totals: Totals) -> dict[str, int]:
    from objectseeker.inference.images import CERTIFICATE

    return {name: totals.certified[name] for name in CERTIFICATE[:-1]}


def _print_totals(
    totals: Totals, out: Path, threat: ThreatModel | None, threshold: float, *, pictures: bool, alert: bool
) -> None:
    from objectseeker.core.threats import PATCH_LOCATIONS
    from objectseeker.inference.images import ABOUT, patch_words

    printed.print(f"{totals.boxes} boxes in {totals.images} images, {totals.recovered} of them found by masking only")
    if totals.left_out:
        named = ", ".join(f"{name} {count}" for name, count in totals.left_out.most_common())
        warn(f"boxes left out, of classes that the dataset does not have: {totals.left_out.total()} ({named})")
    if threat is not None:
        for where in PATCH_LOCATIONS:
            printed.print(f"certified {where}: {totals.certified[where]} of {totals.boxes} boxes")
        printed.print(
            f"{totals.certified['vacuous_far']} boxes have no far position and count as certified there; all against "
            f"{patch_words(threat)}, T = {threshold:g}"
        )
        printed.print(ABOUT)
    written = ["detections.json", "images.json", "boxes.csv", *(["annotated/"] if pictures else [])]
    printed.print(f"Written to {escape(str(out))}: {', '.join(written)}")
    if alert:
        printed.print(
            f"{len(totals.flagged)} of {totals.images} images flagged, see {escape(str(out / 'alerts.json'))}"
        )
        for name in totals.flagged[:20]:
            printed.print(f"[bold red]alert:[/] {escape(name)}")
