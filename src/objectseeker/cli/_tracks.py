"""What `evaluate` asks of a run with tracks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker.cli._console import Bar, escape, notes, progress
from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.observation import ObservedImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.run import Run

if TYPE_CHECKING:
    from objectseeker.metrics import ThreatModel
    from objectseeker.metrics.track_certificates import OverTime

ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackOptions:
    """Certificates over time, of a run of sequences."""

    window: Annotated[
        list[int] | None,
        typer.Option(metavar="FRAMES", help="Sequences: frames of a window; may be repeated. Default: 4, 8, 16."),
    ] = None
    moves: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PIXELS",
            help="Sequences: how far the patch moves a frame at most, or any; may be repeated. Default: 0, 2, 8, any.",
        ),
    ] = None
    times: Annotated[
        int | None, typer.Option(min=1, help="Sequences: in how many frames of every window. Default: 1.")
    ] = None


def certified_tracks(run: Run, rule: AnyRule, threat: ThreatModel, options: TrackOptions) -> OverTime | None:
    """What is certified over time; None of a run without tracks, of which nothing may be asked then."""
    from objectseeker.metrics.track_certificates import MOVES, Asked, over_time

    given = [name for name in ("window", "moves", "times") if getattr(options, name)]
    if threat.count == 1 and run.manifest.images[0].frame is not None:
        asked = Asked(
            windows=tuple(options.window) if options.window else None,
            moves=tuple(map(_pixels, options.moves)) if options.moves else MOVES,
            times=options.times or 1,
        )
        with progress("certifying tracks", len(run.parts)) as bar:
            images = _counted(run.images(), bar)
            found = over_time(images, run.vocabulary, run.manifest.observation_settings.masks, rule, threat, asked)
        if found is not None and found.tracks:
            return found
        if found is not None:
            notes.print(escape(found.remarks()[-1]))
            return None
    if given:
        raise ObjectSeekerError(
            f"--{given[0]} is about one patch over the tracks of a sequence, and there are none in {run.folder}: "
            "observe mot:DIR or another sequence"
        )
    return None


def _counted(images: Iterable[ObservedImage], bar: Bar) -> Iterator[ObservedImage]:
    for image in images:
        yield image
        bar.advance()


def _pixels(text: str) -> int | None:
    if text == ANY:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ObjectSeekerError(f"--moves is whole pixels a frame such as 2, or any, got {text[:40]!r}")
    return int(text)
