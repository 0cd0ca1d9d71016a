"""Certificates over time in `evaluate`: its options, and the tables that it prints and saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker.cli._console import ProgressBar, escape, progress, stderr_console, terminal_table
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import percent, to_csv, to_markdown
from objectseeker.runs.run import Run

if TYPE_CHECKING:
    from objectseeker.metrics import ThreatModel
    from objectseeker.metrics.track_certificates import OverTime, TrackRow

ANY = "any"
WINDOW_TITLE = "Over time: certified frames and windows, in percent; certified tracks; longest uncertified time"
TRACK_TITLE = "By track: certified frames, in percent; longest uncertified time, by the patch's motion per frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackOptions:
    """Options of certificates over time, for a run of sequences."""

    window: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRAMES[:N]",
            help="Frames per window, and detections required in it (1); repeatable. Default: 4, 8, 16.",
            rich_help_panel="Sequences",
        ),
    ] = None
    max_motion: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PIXELS",
            help="Patch motion per frame at most, or any; repeatable. Default: 0, 2, 8, any.",
            rich_help_panel="Sequences",
        ),
    ] = None


def certified_tracks(run: Run, rule: PruningRule, threat: ThreatModel, options: TrackOptions) -> OverTime | None:
    """Certify the tracks of a run; None for a run without tracks, for which no option may be given."""
    from objectseeker.metrics.track_certificates import MOVES, Asked, over_time

    given = [name for name in ("window", "max_motion") if getattr(options, name)]
    if threat.count == 1 and run.manifest.images[0].frame is not None:
        windows = [_window(text) for text in options.window or ()]
        required = {detections for _, detections in windows} or {1}
        if len(required) > 1:
            raise ObjectSeekerError(
                f"--window requires one number of detections: got {', '.join(options.window or ())}"
            )
        criteria = Asked(
            windows=tuple(frames for frames, _ in windows) or None,
            moves=tuple(map(_pixels, options.max_motion)) if options.max_motion else MOVES,
            times=required.pop(),
        )
        with progress("certifying tracks", len(run.parts)) as bar:
            images = _with_progress(run.images(), bar)
            result = over_time(images, run.label_map, run.manifest.observation_settings.masks, rule, threat, criteria)
        if result is not None and result.tracks:
            return result
        if result is not None:
            stderr_console.print(escape(result.remarks()[-1]))
            return None
    if given:
        raise ObjectSeekerError(
            f"--{given[0].replace('_', '-')} needs one patch and the tracks of a sequence, and {run.folder} has none: "
            "observe mot:DIR or another sequence"
        )
    return None


def _with_progress(images: Iterable[ObservedImage], bar: ProgressBar) -> Iterator[ObservedImage]:
    for image in images:
        yield image
        bar.advance()


def _window(text: str) -> tuple[int, int]:
    """Parse FRAMES or FRAMES:DETECTIONS."""
    frames, _, detections = text.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (frames, detections or "1")):
        raise ObjectSeekerError(
            f"--window is a number of frames such as 8, or 8:2 for two detections: got {text[:40]!r}"
        )
    return int(frames), int(detections or 1)


def _pixels(text: str) -> int | None:
    if text == ANY:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ObjectSeekerError(
            f"--max-motion is a whole number of pixels per frame such as 2, or any: got {text[:40]!r}"
        )
    return int(text)


def window_rows(result: OverTime) -> list[dict[str, str]]:
    """Return one row per masks, window and patch motion, for all tracks together."""
    return [
        {
            "masks": _masks(row["masks"], row["estimated"]),
            "passes": str(row["passes"]),
            "window": str(row["frames"]),
            "max motion": _motion(row["moves"]),
            "frames": percent(row["certified_frames"]),
            "windows": percent(row["certified_windows"]),
            "tracks": f"{row['certified_tracks']}/{row['tracks']}",
            "uncertified": _duration(row["longest_hidden_frames"], row["longest_hidden_seconds"]),
        }
        for row in result.rows()
    ]


def track_rows(result: OverTime) -> list[dict[str, str]]:
    """Return one row per track and masks, with a column per patch motion."""
    rows: dict[tuple[str, int, str], dict[str, str]] = {}
    for row in result.tracks:
        key = row.sequence, row.track, str(row.way.masks)
        cells = rows.setdefault(key, _first_columns(row))
        cells[f"motion {_motion(row.moves)}"] = _duration(row.hidden, row.seconds)
    return list(rows.values())


def render_tracks(result: OverTime) -> list[Any]:
    """Return what `evaluate` prints of a run with tracks."""
    windows, tracks = window_rows(result), track_rows(result)
    return [terminal_table(WINDOW_TITLE, windows), *result.remarks(), terminal_table(TRACK_TITLE, tracks)]


def save_tracks(out: Path, result: OverTime) -> None:
    """Write tracks.json with everything, tracks.csv by track, and tracks.md."""
    out.mkdir(parents=True, exist_ok=True)
    tracks = track_rows(result)
    save_json(out / "tracks.json", result.to_dict())
    save_text(out / "tracks.csv", to_csv(tracks))
    caveats = "\n".join(f"- {line}" for line in result.remarks())
    save_text(out / "tracks.md", "\n\n".join([to_markdown(window_rows(result)), caveats, to_markdown(tracks)]) + "\n")


def _first_columns(row: TrackRow) -> dict[str, str]:
    return {
        "track": f"{row.sequence} {row.track}",
        "class": row.name,
        "boxes": str(row.boxes),
        "masks": _masks(str(row.way.masks), row.way.estimated),
        "frames": percent(100 * (row.certified_frames / row.boxes)),
    }


def _masks(masks: str, estimated: bool) -> str:
    from objectseeker.metrics.track_certificates import ESTIMATED

    return masks + (ESTIMATED if estimated else "")


def _motion(max_motion: int | None) -> str:
    return ANY if max_motion is None else str(max_motion)


def _duration(frames: int, seconds: float | None) -> str:
    return str(frames) if seconds is None else f"{frames}, {seconds:.2f} s"
