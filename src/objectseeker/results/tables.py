"""Evaluations as tables: for the terminal, and as JSON, CSV and Markdown files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from objectseeker.attack.statistics import robust_rows
from objectseeker.core.threats import WHERES
from objectseeker.jobs import save_json, save_text

LOCATIONS: tuple[str, ...] = WHERES
Row = Mapping[str, Any]


def overview(found: Row) -> list[dict[str, str]]:
    """One row per detector: undefended, then each way to prune, label by label and without labels."""
    vanilla = found["vanilla"]
    rows = [{"detector": "vanilla", "AP50": percent(vanilla["ap50"]), "COCO AP50": percent(vanilla["ap50_coco"])}]
    rows += _pruned_rows(found["objectseeker"], "objectseeker", "label-free")
    rows += _pruned_rows(found["iou_variant"], "IoU", "IoU label-free")
    columns = list(rows[1])
    return [{column: row.get(column, "") for column in columns} for row in rows]


def _pruned_rows(defended: Row, name: str, label_free_name: str) -> list[dict[str, str]]:
    rows = []
    for detector, suffix, point in ((name, "", defended), (label_free_name, "_label_free", defended["label_free"])):
        certified = defended[f"certified_recall{suffix}"]
        rows.append(
            {
                "detector": detector,
                "AP50": percent(defended[f"ap50{suffix}"]),
                "COCO AP50": "",
                "base_score": _score(point["base_score"]),
                "mask_score": _score(point["mask_score"]),
                "low_score": _score(point["low_score"]),
                "clean recall": percent(point["clean_recall"]),
                **{f"certified {where}": percent(certified[where]) for where in LOCATIONS},
                "false alerts": percent(defended[f"false_alerts{suffix}"]["rate"]),
            }
        )
    return rows


def per_class(found: Row) -> list[dict[str, str]]:
    """One row per class: AP50 undefended and defended, clean recall, certified recall, vacuously far objects."""
    return [
        {
            "class": row["class"],
            "objects": str(row["objects"]),
            "vanilla": percent(row["vanilla_ap50"]),
            "AP50": percent(row["ap50"]),
            "recall": percent(row["clean_recall"]),
            **{where: percent(row["certified_recall"][where]) for where in LOCATIONS[:3]},
            "vacuous": "-" if row["vacuous_far"] is None else str(row["vacuous_far"]),
        }
        for row in found["per_class"]
    ]


def per_class_in_full(found: Row) -> list[dict[str, str]]:
    """`per_class` with the same without labels, and of the IoU variant."""
    rows = []
    for short, row in zip(per_class(found), found["per_class"], strict=True):
        more = {
            "AP50 label-free": percent(row["ap50_label_free"]),
            "recall label-free": percent(row["clean_recall_label_free"]),
            **{f"{where} label-free": percent(row["certified_recall_label_free"][where]) for where in LOCATIONS[:3]},
        }
        by_iou = row["iou_variant"]
        more |= {
            "IoU AP50": percent(by_iou["ap50"]),
            "IoU far": percent(by_iou["certified_recall"]["far"]),
            "IoU AP50 label-free": percent(by_iou["ap50_label_free"]),
            "IoU far label-free": percent(by_iou["certified_recall_label_free"]["far"]),
        }
        rows.append(short | more)
    return rows


def remarks(found: Row) -> list[str]:
    """What a reader of the numbers must know."""
    settings, defended, by_iou = found["settings"], found["objectseeker"], found["iou_variant"]
    patch = "patch" if settings["patch_count"] == 1 else "two patches"
    lines = [
        f"{found['images']} images, {found['objects']} objects ({found['ignored_objects']} more ignored), "
        f"{found['classes']} classes; {patch} of {settings['patch_area']:.2%}, aspect {settings['patch_aspect']:g}, "
        f"T = {settings['threshold']:g}, {settings['bound']} bound",
    ]
    if defended["clean_recall"] is None:
        lines.append(
            f"clean recall {settings['clean_recall']:.0%} is not reached, at most "
            f"{defended['highest_clean_recall']:.1f} %: ask for less with --clean-recall"
        )
    if defended["vacuous_far"] is not None:
        lines.append(f"{defended['vacuous_far']} objects have no far position and count as certified there")
    lines.append(
        f"IoU is certified for boxes with an IoU above {by_iou['threshold']:g}, the others for boxes that cover more "
        f"than {settings['threshold']:g} of the object"
    )
    alerts = [
        f"{name} {block[f'false_alerts{suffix}']['images']}"
        for block, names in ((defended, ("objectseeker", "label-free")), (by_iou, ("IoU", "IoU label-free")))
        for name, suffix in zip(names, ("", "_label_free"), strict=True)
        if block[f"false_alerts{suffix}"]["images"] is not None
    ]
    if alerts:
        lines.append(f"images flagged by --alert without any attack, of {found['images']}: {', '.join(alerts)}")
    return lines


def for_terminal(found: Row) -> list[Any]:
    """What `evaluate` prints."""
    asked = found["settings"]["clean_recall"]
    return [
        table(f"AP50, and certified recall at clean recall {asked:g}, in percent", turned(overview(found))),
        *remarks(found),
        *(table("Recall of the attacked objects, in percent", turned(rows)) for rows in [under_attack(found)] if rows),
        table("By class: vanilla AP50, AP50, clean recall, certified recall, vacuously far", per_class(found)),
    ]


def under_attack(found: Row) -> list[dict[str, str]]:
    """Recall between its bounds, certified and under attack, if there was one; `evaluate --attacks`."""
    return robust_rows(found["under_attack"]) if "under_attack" in found else []


def save(out: Path, found: Row) -> None:
    """evaluation.json with everything, evaluation.csv by class, evaluation.md to paste."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "evaluation.json", found)
    save_text(out / "evaluation.csv", as_csv(per_class_in_full(found)))
    text = [
        as_markdown(overview(found)),
        "\n".join(f"- {line}" for line in remarks(found)),
        as_markdown(under_attack(found)),
        as_markdown(per_class_in_full(found)),
    ]
    save_text(out / "evaluation.md", "\n\n".join(part for part in text if part) + "\n")


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


def turned(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Columns as rows: what has many columns and few rows then fits a terminal."""
    first, *rest = list(rows[0])
    return [{"": column} | {row[first]: row[column] for row in rows} for column in rest]


def table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Rows as a table for the terminal."""
    made = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False)
    for number, column in enumerate(rows[0] if rows else ()):
        made.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row.values())
    return made


def percent(value: float | None) -> str:
    """A percentage, or a dash."""
    return "-" if value is None else f"{value:.1f}"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
