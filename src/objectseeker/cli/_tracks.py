"""Certificates over time in `evaluate`: its options, and the tables that it prints and saves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker.cli._console import escape, stderr_console, terminal_table
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.runs.run import Run
from objectseeker.text import percent, to_csv, to_markdown

if TYPE_CHECKING:
    from objectseeker.metrics import ThreatModel
    from objectseeker.metrics.track_certificates import TrackCertificate, TrackCertificates, TrackCriteria

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
            help="Frames, and detections in them; repeatable.",
            rich_help_panel="Threat",
        ),
    ] = None
    max_motion: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PIXELS",
            help="Patch motion per frame, or any; repeatable.",
            rich_help_panel="Threat",
        ),
    ] = None


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


def window_rows(result: TrackCertificates) -> list[dict[str, str]]:
    """Return one row per masks, window and patch motion, for all tracks together."""
    return [
        {
            "masks": _masks(row["masks"], row["estimated"]),
            "passes": str(row["forward_passes"]),
            "window": str(row["window"]),
            "max motion": _motion(row["max_motion"]),
            "frames": percent(row["certified_frames"]),
            "windows": percent(row["certified_windows"]),
            "tracks": f"{row['certified_tracks']}/{row['tracks']}",
            "uncertified": _duration(row["longest_uncertified_frames"], row["longest_uncertified_seconds"]),
            **_not_fabricated(row),
        }
        for row in result.rows()
    ]


def _not_fabricated(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of fabrication, if it was requested."""
    if row["windows_not_fabricated"] is None:
        return {}
    names = {"boxes": "certified_boxes_not_fabricated", "windows": "certified_windows_not_fabricated"}
    return {f"{name} not fabricated": percent(row[key]) for name, key in names.items()}


def track_rows(result: TrackCertificates) -> list[dict[str, str]]:
    """Return one row per track and masks, with a column per patch motion."""
    rows: dict[tuple[str, int, str], dict[str, str]] = {}
    for row in result.tracks:
        key = row.sequence, row.track, str(row.masking.masks)
        cells = rows.setdefault(key, _first_columns(row))
        cells[f"motion {_motion(row.max_motion)}"] = _duration(row.uncertified_frames, row.uncertified_seconds)
    return list(rows.values())


def render_tracks(result: TrackCertificates) -> list[Any]:
    """Return what `evaluate` prints of a run with tracks."""
    windows, tracks = window_rows(result), track_rows(result)
    return [terminal_table(WINDOW_TITLE, windows), *result.caveats(), terminal_table(TRACK_TITLE, tracks)]


def save_tracks(out: Path, result: TrackCertificates) -> None:
    """Write tracks.json with everything, tracks.csv by track, and tracks.md."""
    out.mkdir(parents=True, exist_ok=True)
    tracks = track_rows(result)
    save_json(out / "tracks.json", result.to_dict())
    save_text(out / "tracks.csv", to_csv(tracks))
    caveats = "\n".join(f"- {line}" for line in result.caveats())
    save_text(out / "tracks.md", "\n\n".join([to_markdown(window_rows(result)), caveats, to_markdown(tracks)]) + "\n")


def _first_columns(row: TrackCertificate) -> dict[str, str]:
    return {
        "track": f"{row.sequence} {row.track}",
        "class": row.name,
        "boxes": str(row.boxes),
        "masks": _masks(str(row.masking.masks), row.masking.is_estimated),
        "frames": percent(100 * (row.certified_frames / row.boxes)),
    }


def _masks(masks: str, estimated: bool) -> str:
    from objectseeker.metrics.track_certificates import ESTIMATED

    return masks + (ESTIMATED if estimated else "")


def _motion(max_motion: int | None) -> str:
    return ANY if max_motion is None else str(max_motion)


def _duration(frames: int, seconds: float | None) -> str:
    return str(frames) if seconds is None else f"{frames}, {seconds:.2f} s"
