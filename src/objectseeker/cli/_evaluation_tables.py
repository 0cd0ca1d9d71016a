"""Tables of `evaluate`: metrics with intervals; classes, slices and certificates over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectseeker.attack.metrics import ATTACK_LEGEND, effect_rows, recall_rows
from objectseeker.cli._console import terminal_table
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.files.atomic import save_json, save_text
from objectseeker.metrics.evaluation import Evaluation
from objectseeker.metrics.settings import describe_point
from objectseeker.metrics.slices import SliceMetrics, describe_worst, worst_slices
from objectseeker.metrics.track_certificates import ESTIMATED, TrackCertificate, TrackCertificates
from objectseeker.text import per_image, percent, plural, to_csv, to_markdown, transpose

UnderAttack = Mapping[str, Any] | None  # recall under an attack on the same defense, as `attack` writes it

DEFINITIONS = (
    "AP50: the paper's protocol, mean over classes; COCO AP50: COCO's own protocol.",
    "clean recall: the mean over classes of the share of objects detected without an attack.",
    "false positives per image (FPPI): boxes that match no object.",
    "certified: the share of objects that no patch far from the object, close to it, over it, or anywhere can hide.",
    "guaranteed to remain: the share of all objects that are still detected under any single patch, all in one output; "
    "one output box may cover several of them.",
    "boxes guaranteed per image: the output boxes that cover these objects at least: one per class, or one if "
    "the rule is class-agnostic; under the IoU rule more.",
    "false alerts: clean images to whose boxes masks add one.",
    "vacuous: objects so large that no position is far from them; they count as certified there.",
)

FABRICATION_DEFINITIONS = (
    "not fabricated: the share of the output boxes that match an object (true positives), or none (false positives), "
    "that no patch far from the box, or anywhere, can have made.",
    "AP50 of output boxes: of the boxes at this operating point, ranked by score; or by certified score: at most the "
    "ranking margin above it.",
)
WINDOW_TITLE = "Over time: certified frames and windows, in percent; certified tracks; longest uncertified time"
TRACK_TITLE = "By track: certified frames, in percent; longest uncertified time, by the patch's motion per frame"


def class_rows(found: Evaluation) -> list[dict[str, str]]:
    """One row per class that has objects."""
    return [
        {
            "class": row["class"],
            "objects": str(row["objects"]),
            "undefended AP50": percent(row["undefended_ap50"]),
            "AP50": percent(row["ap50"]),
            "recall": percent(row["clean_recall"]),
            **{location: percent(share) for location, share in row["certified_recall"].items()},
            "vacuous": "-" if row["vacuous_far"] is None else str(row["vacuous_far"]),
        }
        for row in found.to_dict()["per_class"]
    ]


def caveats(found: Evaluation) -> list[str]:
    """Return the limits of the metrics that a reader must know."""
    lines = [*found.caveats]
    if found.defended.vacuous_far:
        lines.append(
            f"{found.defended.vacuous_far} of the objects certified far are so large that no position is far from them"
        )
    if found.ignored_objects:
        lines.append(f"not counted: {plural(found.ignored_objects, 'object')} marked difficult or crowd")
    if not found.intervals:
        lines.append(f"no confidence intervals: {found.images:,} images are too many to keep a tally of each")
    return lines


def summarize(found: Evaluation) -> str:
    """Return what the defense certifies and what it costs, in one sentence."""
    recall = found.defended.certified_recall()
    if recall["anywhere"] is None or recall["far"] is None:
        return f"The operating point is not reached: AP50 is {found.defended.ap50:.1f}, nothing is certified."
    cost = found.undefended.ap50 - found.defended.ap50
    return (
        f"Certified: {recall['anywhere']:.1f} % of {plural(found.objects, 'object')} against "
        f"{found.settings.threat.describe()} anywhere, {recall['far']:.1f} % far from them. "
        f"AP50 {'lost' if cost >= 0 else 'gained'}: {abs(cost):.1f} points."
    )


def title_of(found: Evaluation) -> str:
    """Return protocol, operating point and number of images."""
    where = f"at {describe_point(found.settings)}"
    counts = f"{plural(found.images, 'image')}, {plural(found.objects, 'object')}"
    intervals = "; 95 % intervals" if found.intervals else ""
    return f"protocol: {found.settings.protocol()}; {where}; {counts}{intervals}"


def explain(found: Evaluation) -> list[str]:
    """The definitions, and the rule and the threat in full."""
    settings = found.settings
    rule = found.defended.rule or settings.rule
    threshold = rule.resolve_threshold(settings.threat.certification_threshold)
    threat = settings.threat
    values = [f"{name}={value}" for name, value in rule.settings().items() if value is not None]
    count = "one patch" if threat.count == 1 else f"{threat.count} patches"
    return [
        f"threat: {count} of {threat.area:.2%} of the image, aspect {threat.aspect:g}; T = {threshold:g}, "
        f"{threat.bound} bound",
        f"rule: {rule.name}; {', '.join(values)}",
        *DEFINITIONS,
        *(FABRICATION_DEFINITIONS if found.tally.boxes is not None else ()),
    ]


def slice_table(slices: Sequence[SliceMetrics]) -> list[dict[str, str]]:
    """One row per slice, without columns that no slice has: some metrics are counted per image only."""
    rows = [
        {
            "slice": one.name,
            "images": str(one.images),
            "objects": f"{one.objects} (few)" if one.is_small else str(one.objects),
            "recall": percent(one.clean_recall),
            **{location: percent(one.certified[location]) for location in PATCH_LOCATIONS},
            "remain": percent(one.joint_certified_recall),
            "FPPI": per_image(one.fppi),
        }
        for one in slices
    ]
    empty = [name for name in ("remain", "FPPI") if all(row[name] == "-" for row in rows)]
    return [{name: cell for name, cell in row.items() if name not in empty} for row in rows]


def slices_json(slices: Sequence[SliceMetrics]) -> dict[str, Any]:
    worst = {column: None if one is None else one.name for column, one in worst_slices(slices).items()}
    return {"rows": [one.to_row() for one in slices], "worst": worst, "summary": describe_worst(slices)}


def slices_for_terminal(slices: Sequence[SliceMetrics]) -> list[Any]:
    if not slices:
        return []
    title = "By slice: clean recall, certified recall; of images also what is guaranteed to remain, and FPPI"
    return [terminal_table(title, slice_table(slices)), *describe_worst(slices)]


def slices_in_markdown(slices: Sequence[SliceMetrics]) -> str:
    lines = "\n".join(f"- {line}" for line in describe_worst(slices))
    return f"{to_markdown(slice_table(slices))}\n\n{lines}" if slices else ""


def render_terminal(
    found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceMetrics] = (), *, explained: bool = False
) -> list[Any]:
    """Return the parts of the output of `evaluate`: tables and lines."""
    return [
        summarize(found),
        terminal_table(title_of(found), found.rows()),
        *caveats(found),
        *attack_for_terminal(attacked),
        *slices_for_terminal(slices),
        *(explain(found) if explained else []),
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


def as_json(found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceMetrics] = ()) -> dict[str, Any]:
    more = {"under_attack": attacked} if attacked is not None else {}
    return found.to_dict() | more | ({"slices": slices_json(slices)} if slices else {})


def save(out: Path, found: Evaluation, attacked: UnderAttack = None, slices: Sequence[SliceMetrics] = ()) -> None:
    """Write evaluation.json (everything), evaluation.csv (classes), slices.csv and evaluation.md."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "evaluation.json", as_json(found, attacked, slices))
    save_text(out / "evaluation.csv", to_csv(class_rows(found)))
    if slices:
        save_text(out / "slices.csv", to_csv([one.to_row() for one in slices]))
    text = [
        to_markdown(found.rows()),
        "\n".join(f"- {line}" for line in [summarize(found), title_of(found), *caveats(found), *explain(found)]),
        *attack_in_markdown(attacked),
        to_markdown(class_rows(found)),
        slices_in_markdown(slices),
    ]
    save_text(out / "evaluation.md", "\n\n".join(part for part in text if part) + "\n")


def attack_in_markdown(attacked: UnderAttack) -> list[str]:
    if attacked is None:
        return []
    return [to_markdown(recall_rows(attacked)), to_markdown(effect_rows(attacked["effects"])), f"- {ATTACK_LEGEND}"]


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
    return masks + (ESTIMATED if estimated else "")


def _motion(max_motion: int | None) -> str:
    return "any" if max_motion is None else str(max_motion)


def _duration(frames: int, seconds: float | None) -> str:
    return str(frames) if seconds is None else f"{frames}, {seconds:.2f} s"
