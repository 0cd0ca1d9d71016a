"""Evaluations as tables: for the terminal, and as JSON, CSV and Markdown files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import per_image, percent, to_csv, to_markdown, transpose
from objectseeker.metrics.outcomes import DefendedOutcome
from objectseeker.metrics.settings import describe_operating_point, ioa_of, threshold_of
from objectseeker.metrics.slice_metrics import SliceRow, in_words, worst_slices
from objectseeker.metrics.summary import Evaluation

UnderAttack = Mapping[str, Any] | None  # recall under an attack on the same defense, as `attack` writes it

WORDS = (
    "COCO AP50: by COCO's own protocol; clean recall: the mean over classes of the share of objects found; wrong "
    "boxes: boxes an image that find no object; class-agnostic: the same defense without regard to labels; IoU: its "
    "variant that outputs boxes which fit; false alerts: the share of these clean images to whose boxes masks add one; "
    "vacuous: objects that no position is far from"
)

ATTACK_LEGEND = (
    "found: by a box of its class; misclassified: no longer found, but a box of another class fits it that was not "
    "there without the patch; disappeared: neither; fabricated: boxes that match neither the object nor anything found "
    "without the patch; certificates do not cover them"
)


RECALLS = {  # of attacked objects, by name
    "recall without patch": "clean_recall",
    "recall under attack": "recall_under_attack",
    "certified recall": "certified_recall",
}


def ways(found: Evaluation) -> dict[str, DefendedOutcome]:
    """Every way to prune, label by label and without labels; the deployed one first."""
    ours = {"defended": found.ours, "agnostic": found.class_agnostic}
    return ours if found.iou is found.ours else ours | {"IoU": found.iou, "IoU agnostic": found.iou_class_agnostic}


def overview(found: Evaluation) -> list[dict[str, str]]:
    """One row per detector: undefended, then each way to prune."""
    undefended = found.undefended
    first = {"AP50": percent(undefended.ap50), "COCO AP50": percent(undefended.ap50_coco)}
    if undefended.point is not None:
        first |= {
            "base_threshold": _score(undefended.point.base_threshold),
            "clean recall": percent(undefended.point.clean_recall),
            "wrong boxes": per_image(undefended.point.fppi),
        }
    rows = [{"detector": "undefended"} | first]
    for name, outcome in ways(found).items():
        rows.append(
            {
                "detector": name,
                "AP50": percent(outcome.ap50),
                "COCO AP50": "",
                "base_threshold": _score(outcome.base_threshold),
                "mask_threshold": _score(outcome.mask_threshold),
                "evidence_threshold": _score(outcome.evidence_threshold),
                "clean recall": percent(outcome.clean_recall),
                "wrong boxes": per_image(outcome.fppi),
                **{f"certified {where}": percent(share) for where, share in outcome.certified_recall().items()},
                "false alerts": percent(found.alert_rate(outcome)),
            }
        )
    return [{column: row.get(column, "") for column in rows[1]} for row in rows]


def per_class(found: Evaluation) -> list[dict[str, str]]:
    """One row per class: AP50 undefended and defended, clean recall, certified recall, vacuously far objects."""
    point = found.ours.point
    return [
        {
            "class": found.names[c],
            "objects": str(found.objects_per_class[c]),
            "undefended": percent(float(found.undefended.curve.ap50[c])),
            "AP50": percent(float(found.ours.curve.ap50[c])),
            "recall": percent(found.ours.recall(c)),
            **_certified(found.ours, c),
            "vacuous": "-" if point is None else str(point.vacuous_far(c)),
        }
        for c in found.classes
    ]


def per_class_in_full(found: Evaluation) -> list[dict[str, str]]:
    """`per_class` with the same without labels, and of the IoU variant."""
    free, iou, iou_free = found.class_agnostic, found.iou, found.iou_class_agnostic
    rows = []
    for short, c in zip(per_class(found), found.classes, strict=True):
        more = {
            "AP50 class-agnostic": percent(float(free.curve.ap50[c])),
            "recall class-agnostic": percent(free.recall(c)),
            **{f"{where} class-agnostic": share for where, share in _certified(free, c).items()},
            "IoU AP50": percent(float(iou.curve.ap50[c])),
            "IoU far": _certified(iou, c)["far"],
            "IoU AP50 class-agnostic": percent(float(iou_free.curve.ap50[c])),
            "IoU far class-agnostic": _certified(iou_free, c)["far"],
        }
        rows.append(short | more)
    return rows


def _certified(outcome: DefendedOutcome, c: int) -> dict[str, str]:
    """Of one class; "anywhere" is left out, a table has only so many columns."""
    certified = outcome.certified_recall(c)
    return {where: percent(certified[where]) for where in PATCH_LOCATIONS[:3]}


def remarks(found: Evaluation) -> list[str]:
    """What a reader of the numbers must know."""
    threat, threshold = found.settings.threat, threshold_of(found.settings.rule, found.settings.threat.threshold)
    patch = "patch" if threat.count == 1 else "two patches"
    lines = [
        f"{found.images} images, {found.objects} objects ({found.ignored_objects} more ignored), "
        f"{len(found.classes)} classes; {patch} of {threat.area:.2%}, aspect {threat.aspect:g}, "
        f"T = {threshold:g}, {threat.bound} bound",
        *_jointly(found),
        _rest_of_rule(found),
        *found.remarks,
    ]
    if found.vacuous_far is not None:
        lines.append(f"{found.vacuous_far} objects have no far position and count as certified there")
    others = (
        "" if found.iou is found.ours else f", the others for boxes that cover more than {threshold:g} of the object"
    )
    lines.append(f"IoU is certified for boxes with an IoU above {found.iou_threshold:g}{others}")
    alerts = [f"{name} {one.alerts}" for name, one in ways(found).items() if one.alerts is not None]
    if alerts:
        lines.append(f"images flagged by --alert without any attack, of {found.images}: {', '.join(alerts)}")
    if found.defense is not None and found.deployed is not None:
        other = found.deployed.sha256 != found.defense.sha256
        on_curve = f", on the curve of sha256:{found.defense.sha256}" if other else ""
        lines.append(f"defense sha256:{found.deployed.sha256}{on_curve}")
    return [*lines, WORDS]


def _jointly(found: Evaluation) -> list[str]:
    """The joint certificate in words."""
    point = found.ours.point
    if point is None or point.remaining is None:
        return []
    return [
        f"under any single patch, wherever it lies, {point.remaining} of {found.objects} objects surely remain: "
        f"{percent(point.joint_certified_recall)} % "
        f"(one by one, {percent(point.certified_recall()['anywhere'])} % are certified)"
    ]


def _rest_of_rule(found: Evaluation) -> str:
    """What of the rule the table does not show."""
    rule = found.settings.rule if found.ours.point is None else found.ours.point.rule
    names = ("filter_ioa", "power", "edge_factor", "cluster_distance", "classwise")
    values = [f"{name} {getattr(ioa_of(rule), name)}" for name in names]
    return f"rule: {', '.join(values)}"


def slice_table(rows: Sequence[SliceRow]) -> list[dict[str, str]]:
    """One row per slice, without the columns that none of them has: what surely remains and wrong boxes are counted by
    image, so slices of objects have neither."""
    shown = [
        {
            "slice": row.name,
            "images": str(row.images),
            "objects": f"{row.objects} (few)" if row.few else str(row.objects),
            "recall": percent(row.clean_recall),
            **{where: percent(row.certified[where]) for where in PATCH_LOCATIONS},
            "remain": percent(row.joint_certified_recall),
            "wrong": per_image(row.fppi),
        }
        for row in rows
    ]
    empty = [name for name in ("remain", "wrong") if all(row[name] == "-" for row in shown)]
    return [{name: cell for name, cell in row.items() if name not in empty} for row in shown]


def slices_json(rows: Sequence[SliceRow]) -> dict[str, Any]:
    worst = {column: None if row is None else row.name for column, row in worst_slices(rows).items()}
    return {"rows": [row.to_row() for row in rows], "worst": worst, "in_words": in_words(rows)}


def slices_for_terminal(rows: Sequence[SliceRow]) -> list[Any]:
    if not rows:
        return []
    title = "By slice: clean recall, certified recall; of images also what surely remains, and wrong boxes"
    return [terminal_table(title, slice_table(rows)), *in_words(rows)]


def slices_in_markdown(rows: Sequence[SliceRow]) -> str:
    lines = "\n".join(f"- {line}" for line in in_words(rows))
    return f"{to_markdown(slice_table(rows))}\n\n{lines}" if rows else ""


def for_terminal(found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceRow] = ()) -> list[Any]:
    """What `evaluate` prints."""
    where = describe_operating_point(found.settings)
    return [
        terminal_table(f"AP50, and certified recall {where}, in percent", transpose(overview(found))),
        *remarks(found),
        *attack_for_terminal(attacked),
        terminal_table(
            "By class: undefended AP50, AP50, clean recall, certified recall, vacuously far", per_class(found)
        ),
        *slices_for_terminal(slices),
    ]


def attack_for_terminal(attacked: UnderAttack) -> list[Any]:
    """Return recall under attack and the effects of the attack as tables."""
    if attacked is None:
        return []
    return [
        terminal_table("Recall of the attacked objects, in percent", transpose(recall_rows(attacked))),
        *effects_for_terminal(attacked["effects"]),
    ]


def effects_for_terminal(effects: Mapping[str, Any]) -> list[Any]:
    """Return the effects of the worst patches as a table, and its legend."""
    return [
        terminal_table("Effect of the worst patch on the attacked objects", transpose(effect_rows(effects))),
        ATTACK_LEGEND,
    ]


def effect_rows(effects: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the effects on the attacked objects, and the fabricated boxes: one row per detector, with intervals."""
    rows = []
    for system in ("undefended", "defended"):
        of = effects[system]
        images = of["images_with_fabricated_boxes"]
        fabricated = f"{of['fabricated_boxes']} in {images['count']} of {images['total']} images"
        kinds = {kind: format_rate(of[kind]) for kind in ("found", "misclassified", "disappeared")}
        rows.append({"detector": system, **kinds, "fabricated boxes": fabricated if images["total"] else "-"})
    return rows


def attack_rows(recall: Mapping[str, Any], effects: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return recall and effects of an attack: one column per detector, with 95 % intervals."""
    rows = []
    for row in effect_rows(effects):
        rates = {name: format_rate(recall[row["detector"]][key]) for name, key in RECALLS.items()}
        rows.append({"detector": row.pop("detector"), **rates, **row})
    return [row for row in transpose(rows) if row[""] != "found"]  # recall under attack counts them


def format_rate(rate: Mapping[str, Any]) -> str:
    """Format a rate with its counts and its confidence interval."""
    if not rate["total"]:
        return "-"
    return f"{rate['count']} of {rate['total']}: {rate['rate']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"


def recall_rows(recall: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return recall between its bounds, certified and under attack: one row per detector, with 95 % intervals."""
    return [
        {
            "detector": detector,
            "objects": str(recall["objects"]),
            **{
                name: f"{100 * entry['rate']:.1f} ({100 * entry['low']:.1f} to {100 * entry['high']:.1f})"
                for name, entry in (
                    ("certified (lower bound)", recall[detector]["certified_recall"]),
                    ("under attack (upper bound)", recall[detector]["recall_under_attack"]),
                    ("clean", recall[detector]["clean_recall"]),
                )
            },
        }
        for detector in ("undefended", "defended")
    ]


def as_json(found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceRow] = ()) -> dict[str, Any]:
    more = {"under_attack": attacked} if attacked is not None else {}
    return found.to_dict() | more | ({"slices": slices_json(slices)} if slices else {})


def save(out: Path, found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceRow] = ()) -> None:
    """evaluation.json with everything, evaluation.csv by class, slices.csv by slice, evaluation.md to paste."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "evaluation.json", as_json(found, attacked, slices))
    save_text(out / "evaluation.csv", to_csv(per_class_in_full(found)))
    if slices:
        save_text(out / "slices.csv", to_csv([row.to_row() for row in slices]))
    text = [
        to_markdown(overview(found)),
        "\n".join(f"- {line}" for line in remarks(found)),
        *attack_in_markdown(attacked),
        to_markdown(per_class_in_full(found)),
        slices_in_markdown(slices),
    ]
    save_text(out / "evaluation.md", "\n\n".join(part for part in text if part) + "\n")


def attack_in_markdown(attacked: UnderAttack) -> list[str]:
    if attacked is None:
        return []
    return [to_markdown(recall_rows(attacked)), to_markdown(effect_rows(attacked["effects"])), f"- {ATTACK_LEGEND}"]


def _score(value: float | None) -> str:
    """All digits: a rounded score is another rule than the one that is certified."""
    return "-" if value is None else str(value)
