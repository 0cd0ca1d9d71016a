"""What is certified over time, as tables: for the terminal, and as JSON, CSV and Markdown files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import percent, to_csv, to_markdown
from objectseeker.metrics.track_certificates import ESTIMATED, OverTime, TrackRow

TITLE = "Over time: certified frames alone, windows (both in percent) and tracks; longest time hidden, in frames"
BY_TRACK = "By track: certified frames alone, in percent; longest time hidden, by how far the patch moves a frame"


def window_rows(found: OverTime) -> list[dict[str, str]]:
    """All tracks together: one row per masks, window and patch."""
    return [
        {
            "masks": row["masks"] + (ESTIMATED if row["estimated"] else ""),
            "passes": str(row["passes"]),
            "window": str(row["frames"]),
            "moves": _moves(row["moves"]),
            "frames": percent(row["certified_frames"]),
            "windows": percent(row["certified_windows"]),
            "tracks": f"{row['certified_tracks']}/{row['tracks']}",
            "hidden": _time(row["longest_hidden_frames"], row["longest_hidden_seconds"]),
        }
        for row in found.rows()
    ]


def track_rows(found: OverTime) -> list[dict[str, str]]:
    """One row per track and masks; a column for every patch."""
    rows: dict[tuple[str, int, str], dict[str, str]] = {}
    for row in found.tracks:
        key = row.sequence, row.track, str(row.way.masks)
        rows.setdefault(key, _first_columns(row))[f"moves {_moves(row.moves)}"] = _time(row.hidden, row.seconds)
    return list(rows.values())


def for_terminal(found: OverTime) -> list[Any]:
    """What `evaluate` prints of a run with tracks."""
    return [terminal_table(TITLE, window_rows(found)), *found.remarks(), terminal_table(BY_TRACK, track_rows(found))]


def save(out: Path, found: OverTime) -> None:
    """tracks.json with everything, tracks.csv by track, tracks.md to paste."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tracks.json", found.to_dict())
    save_text(out / "tracks.csv", to_csv(track_rows(found)))
    text = [
        to_markdown(window_rows(found)),
        "\n".join(f"- {line}" for line in found.remarks()),
        to_markdown(track_rows(found)),
    ]
    save_text(out / "tracks.md", "\n\n".join(text) + "\n")


def _first_columns(row: TrackRow) -> dict[str, str]:
    certified = 100 * (row.certified_frames / row.boxes)
    return {
        "track": f"{row.sequence} {row.track}",
        "class": row.name,
        "boxes": str(row.boxes),
        "masks": str(row.way.masks) + (ESTIMATED if row.way.estimated else ""),
        "frames": percent(certified),
    }


def _moves(moves: int | None) -> str:
    return "any" if moves is None else str(moves)


def _time(frames: int, seconds: float | None) -> str:
    return str(frames) if seconds is None else f"{frames}, {seconds:.2f} s"
