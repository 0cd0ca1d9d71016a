"""Evaluations as tables: for the terminal, and as JSON, CSV and Markdown files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from objectseeker.evaluation import WHERES, Tuning
from objectseeker.jobs import save_json, save_text

LOCATIONS: tuple[str, ...] = WHERES
Row = Mapping[str, Any]


def overview(found: Row) -> list[dict[str, str]]:
    """One row per detector: undefended, defended label by label, defended without labels."""
    vanilla, defended = found["vanilla"], found["objectseeker"]
    rows = [{"detector": "vanilla", "AP50": _percent(vanilla["ap50"]), "COCO AP50": _percent(vanilla["ap50_coco"])}]
    for name, ap50, point, certified in (
        ("objectseeker", defended["ap50"], defended, defended["certified_recall"]),
        (
            "objectseeker, label-free",
            defended["ap50_label_free"],
            defended["label_free"],
            defended["certified_recall_label_free"],
        ),
    ):
        rows.append(
            {
                "detector": name,
                "AP50": _percent(ap50),
                "COCO AP50": "",
                "base_score": _score(point["base_score"]),
                "mask_score": _score(point["mask_score"]),
                "low_score": _score(point["low_score"]),
                "clean recall": _percent(point["clean_recall"]),
                **{f"certified {where}": _percent(certified[where]) for where in LOCATIONS},
            }
        )
    columns = list(rows[1])
    return [{column: row.get(column, "") for column in columns} for row in rows]


def per_class(found: Row) -> list[dict[str, str]]:
    """One row per class: AP50 undefended and defended, clean recall, certified recall, vacuously far objects."""
    return [
        {
            "class": row["class"],
            "objects": str(row["objects"]),
            "vanilla": _percent(row["vanilla_ap50"]),
            "AP50": _percent(row["ap50"]),
            "recall": _percent(row["clean_recall"]),
            **{where: _percent(row["certified_recall"][where]) for where in LOCATIONS[:3]},
            "vacuous": "-" if row["vacuous_far"] is None else str(row["vacuous_far"]),
        }
        for row in found["per_class"]
    ]


def remarks(found: Row) -> list[str]:
    """What a reader of the numbers must know."""
    settings, defended = found["settings"], found["objectseeker"]
    lines = [
        f"{found['images']} images, {found['objects']} objects ({found['ignored_objects']} more ignored), "
        f"{found['classes']} classes; patch of {settings['patch_area']:.2%}, aspect {settings['patch_aspect']:g}, "
        f"T = {settings['threshold']:g}, {settings['bound']} bound",
    ]
    if defended["clean_recall"] is None:
        lines.append(
            f"clean recall {settings['clean_recall']:.0%} is not reached, at most "
            f"{defended['highest_clean_recall']:.1f} %: ask for less with --clean-recall"
        )
    if defended["vacuous_far"] is not None:
        lines.append(f"{defended['vacuous_far']} objects have no far position and count as certified there")
    return lines


def for_terminal(found: Row) -> list[Any]:
    """What `evaluate` prints."""
    asked = found["settings"]["clean_recall"]
    return [
        _table(f"AP50, and certified recall at clean recall {asked:g}, in percent", _turned(overview(found))),
        *remarks(found),
        _table("By class: vanilla AP50, AP50, clean recall, certified recall, vacuously far", per_class(found)),
    ]


def save(out: Path, found: Row) -> None:
    """evaluation.json with everything, evaluation.csv by class, evaluation.md to paste."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "evaluation.json", found)
    save_text(out / "evaluation.csv", as_csv(per_class(found)))
    text = [
        as_markdown(overview(found)),
        "\n".join(f"- {line}" for line in remarks(found)),
        as_markdown(per_class(found)),
    ]
    save_text(out / "evaluation.md", "\n\n".join(text) + "\n")


def tuned_rows(tuning: Tuning) -> list[dict[str, str]]:
    """The best setting of each rule, on the half it was searched on and on the other."""
    rows = []
    for family, tuned in tuning.families.items():
        settings = tuned.settings
        for half, row in (("searched", tuned.searched), ("held out", tuned.held_out)):
            rows.append(
                {
                    "rule, half": f"{family}, {half}",
                    "alpha": f"{settings.alpha:g}",
                    "beta": f"{settings.beta:g}",
                    "low alpha": "" if settings.low_alpha is None else f"{settings.low_alpha:g}",
                    "low beta": "" if settings.low_beta is None else f"{settings.low_beta:g}",
                    "power": "" if settings.low_alpha is None else f"{settings.power:g}",
                    "filter_ioa": f"{settings.filter_ioa:g}",
                    "edge_factor": f"{settings.edge_factor:g}",
                    "vanilla AP50": _percent(row["vanilla_ap50"]),
                    "AP50": _percent(row["ap50"]),
                    **{where: _percent(row[f"certified_{where}"]) for where in LOCATIONS[:3]},
                }
            )
    return rows


def frontier_rows(tuning: Tuning) -> list[dict[str, str]]:
    """The settings that no other beats in both AP loss and certified recall, on the searched half."""
    return [
        {
            "AP50 loss": f"{attempt.loss:.2f}",
            "rule": attempt.family,
            "certified mean": _percent(attempt.row["certified_mean"]),
            **{where: _percent(attempt.row[f"certified_{where}"]) for where in LOCATIONS[:3]},
        }
        for attempt in tuning.frontier()
    ]


def tuning_for_terminal(tuning: Tuning) -> list[Any]:
    """What `tune` prints."""
    return [
        _table("AP50 loss against certified recall, searched half", frontier_rows(tuning)),
        _table("The best setting of each rule", _turned(tuned_rows(tuning))),
    ]


def save_tuning(out: Path, tuning: Tuning) -> None:
    """tuning.json with every setting tried, frontier.csv, tuning.md."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tuning.json", tuning.to_json())
    save_text(out / "frontier.csv", as_csv(frontier_rows(tuning)))
    text = as_markdown(tuned_rows(tuning)) + "\n\n" + as_markdown(frontier_rows(tuning)) + "\n"
    save_text(out / "tuning.md", text)


def as_csv(rows: Sequence[Mapping[str, str]]) -> str:
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return buffer.getvalue()


def as_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row[column] for column in columns) + " |" for row in rows])


def _turned(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Columns as rows: what has many columns and few rows then fits a terminal."""
    first, *rest = list(rows[0])
    return [{"": column} | {row[first]: row[column] for row in rows} for column in rest]


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False)
    for number, column in enumerate(rows[0] if rows else ()):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
