"""Metrics of attacks: success rates with confidence intervals, effects, and bounds of recall.

Certified recall is a lower bound of recall under the worst patch, recall under this attack an upper one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from objectseeker import codec
from objectseeker.attack.pipeline import ATTACKED_SYSTEMS
from objectseeker.core.boxes import Detections
from objectseeker.core.threats import Patch
from objectseeker.defense import BATCH, Defense, spec_without_path
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import transpose

EFFECT_KINDS = ("found", "misclassified", "disappeared")  # of an attacked object: one of them
Z_95 = 1.959964  # standard deviations of a 95 % confidence interval

HIDE = "hide"  # the goal of the attacks that recall under attack is about

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

Row = Mapping[str, Any]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a rate, valid for few trials and for rates near 0 and 1."""
    if not trials:
        return 0.0, 1.0
    rate, z2 = successes / trials, Z_95**2
    center = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(center - half, 0.0), min(center + half, 1.0)


def rate_with_interval(count: int, total: int) -> dict[str, Any]:
    """Return a rate with its counts and its 95 % confidence interval."""
    low, high = wilson(count, total)
    return {"count": count, "total": total, "rate": count / total if total else None, "low": low, "high": high}


def attack_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return attack success rates: how often the attacked object was hidden."""
    defended = [row for row in rows if row["defended_survived"] is not None]

    def hidden(of: Sequence[Row], key: str) -> dict[str, Any]:
        attacked = [row for row in of if row[key] is not None]
        return rate_with_interval(sum(not row[key] for row in attacked), len(attacked))

    return {
        "objects": len(rows),
        "attacked": len([row for row in rows if row["undefended_survived"] is not None]),
        "vacuous": sum(row["vacuous"] for row in rows),
        "hidden_undefended": hidden(rows, "undefended_survived"),
        "hidden_undefended_iou50": hidden(rows, "undefended_survived_iou50"),
        "hidden_defended": hidden(defended, "defended_survived"),
        "hidden_certified": hidden([row for row in defended if row["certified"]], "defended_survived"),
        "hidden_uncertified": hidden([row for row in defended if not row["certified"]], "defended_survived"),
        "effects": attack_effects(rows),
        "broken_guarantees": sum(row["guarantee_broken"] for row in rows),
        "objects_with_leaking_views": sum(row["leaking_views"] > 0 for row in rows),
    }


def attack_effects(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the effects on the attacked objects on each side, and the number of fabricated boxes."""
    effects: dict[str, Any] = {}
    for system in ATTACKED_SYSTEMS:
        attacked = [row["effects"][system] for row in rows if row["effects"][system] is not None]
        counts = {kind: sum(effect["object"] == kind for effect in attacked) for kind in EFFECT_KINDS}
        fabricating = sum(effect["fabricated"] > 0 for effect in attacked)
        effects[system] = {
            **{kind: rate_with_interval(count, len(attacked)) for kind, count in counts.items()},
            "images_with_fabricated_boxes": rate_with_interval(fabricating, len(attacked)),
            "fabricated_boxes": sum(effect["fabricated"] for effect in attacked),
        }
    return effects


def recall_bounds(rows: Sequence[Row]) -> dict[str, Any]:
    """Return recall on the attacked sample: clean, under this attack, and certified.

    All three count the same objects by the same notion of found. Certified recall is a lower bound of recall under the
    worst patch, recall under this attack an upper one, and clean recall is that without any patch.
    """
    if not rows:
        raise ObjectSeekerError("recall under attack needs at least one attacked object: got none. Attack one.")
    bounds: dict[str, Any] = {"objects": len(rows)}
    for system in ("defended", "undefended"):
        clean = sum(row[f"found_{system}"] for row in rows)
        kept = sum(row[f"found_{system}"] and row[f"{system}_survived"] is not False for row in rows)
        certified = sum(row["certified"] for row in rows) if system == "defended" else 0
        bounds[system] = {
            "clean_recall": rate_with_interval(clean, len(rows)),
            "recall_under_attack": rate_with_interval(kept, len(rows)),
            "certified_recall": rate_with_interval(certified, len(rows)),
        }
    return bounds


def effect_rows(effects: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return effects on attacked objects and fabricated boxes, with intervals: one row per detector."""
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
    """Return recall, certified and under attack, with 95 % intervals: one row per detector."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackEffect:
    """The effect of a patch on one detector: on the object, and the number of fabricated boxes."""

    object: Literal["found", "misclassified", "disappeared"]
    fabricated: int

    def __post_init__(self) -> None:
        if self.fabricated < 0:
            raise ObjectSeekerError(f"fabricated must be at least 0: got {self.fabricated!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackEffects:
    """The effects on both detectors; None where one was not attacked."""

    undefended: AttackEffect | None
    defended: AttackEffect | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedObject:
    """An object in attack.json.

    A survival is None where the system was not attacked: it does not find the object anyway, or no position is allowed.
    """

    image: str
    object: int
    class_name: str
    box: tuple[float, float, float, float]
    guarantee_broken: bool
    found_defended: bool
    defended_survived: bool | None
    effects: AttackEffects
    certified: bool = False
    vacuous: bool = False
    found_undefended: bool = False
    undefended_survived: bool | None = None
    undefended_survived_iou50: bool | None = None
    leaking_views: int = 0
    skip_reason: dict[str, str | None] | None = None
    attack_on_undefended: dict[str, Any] | None = None
    attack_on_defended: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        Detections([self.box], [1], [0])  # rejects an impossible box
        for name in ("object", "leaking_views"):
            if getattr(self, name) < 0:
                raise ObjectSeekerError(f"{name} must be at least 0: got {getattr(self, name)!r}")
        if self.certified and self.defended_survived is False and not self.guarantee_broken:
            raise ObjectSeekerError("guarantee_broken must be true where a certified object was hidden: got false")
        if self.defended_survived is None and self.found_defended and not self.vacuous:
            raise ObjectSeekerError("defended_survived must be true or false for an object that is found: got null")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackFile:
    """attack.json of an attack that hides objects."""

    defense: dict[str, Any]
    patch: Patch
    certification_threshold: float
    objects: tuple[AttackedObject, ...]
    goal: str = HIDE
    device: str | None = None
    mode: str | None = None
    budget: dict[str, Any] | None = None
    seed: int = 0
    summary: dict[str, Any] | None = None
    recall: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.patch.with_outside:
            raise ObjectSeekerError(
                "patch.with_outside must be false: got true. No attack draws patches and the outside"
            )


def read_attack(path: Path) -> tuple[AttackFile, list[dict[str, Any]]]:
    """Read an attack.json, and its objects as plain values; a flag must be true or false.

    Raises:
        ObjectSeekerError: The file is not an attack.json, or its attack hides nothing.
    """
    advice = "name an attack.json that objectseeker attack wrote"
    try:
        content = codec.parse_json(path.read_bytes(), str(path), fix=advice)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    rows = content.get("objects") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ObjectSeekerError(f"not an attack.json: got {path}. Name one that objectseeker attack wrote.")
    if (goal := content.get("goal", HIDE)) != HIDE:
        raise ObjectSeekerError(f"{path} must be of an attack that hides objects: got goal {goal!r}. Attack with hide.")
    if any("class_name" in row for row in rows):
        raise ObjectSeekerError(f"{path} has an unknown key 'class_name': {advice}")
    stated = content | {"objects": [{"class_name" if key == "class" else key: row[key] for key in row} for row in rows]}
    return codec.from_plain(stated, AttackFile, str(path), fix=advice), rows


def read_recall(
    path: Path, defense: Defense, patches: Patch | Sequence[Patch], *, certification_threshold: float
) -> dict[str, Any]:
    """Read `recall_bounds` and `attack_effects` from an attack.json, with its patch and its T.

    Args:
        path: An attack.json.
        defense: The defense that was attacked.
        patches: The patches that are certified against.
        certification_threshold: The T that is certified.

    Returns:
        Recall with its bounds, effects, patch and T, as plain values.

    Raises:
        ObjectSeekerError: The file is not an attack.json, or is about another defense, about a patch that is not among
            `patches`, or about another T.

    Example:
        >>> read_recall(Path("attack/attack.json"), defense, Patch())  # doctest: +SKIP
    """
    file, rows = read_attack(path)
    try:
        attacked = Defense.from_dict(file.defense, f"the defense in {path}")
        edited = file.defense["sha256"] != attacked.sha256
        recall, effects = recall_bounds(rows), attack_effects(rows)
    except ObjectSeekerError:
        raise
    except (ValueError, KeyError, TypeError):
        raise ObjectSeekerError(f"not an attack.json: got {path}. Name one that objectseeker attack wrote.") from None
    if edited:
        raise ObjectSeekerError(
            f"{path} was edited: the settings of its defense do not match their sha256. Attack again."
        )
    allowed = [patches] if isinstance(patches, Patch) else list(patches)
    differences = defense_differences(attacked, defense)
    if file.patch not in allowed:
        requested = " or ".join(map(_describe_patch, allowed))
        differences.append(f"patch {_describe_patch(file.patch)}, requested {requested}")
    if file.certification_threshold != certification_threshold:
        differences.append(
            f"certification_threshold {file.certification_threshold!r}, requested {certification_threshold!r}"
        )
    if differences:
        raise ObjectSeekerError(
            f"{path} attacks something else: {'; '.join(differences)}. Attack with this defense and this patch."
        )
    threat = {"patch": codec.to_plain(file.patch), "certification_threshold": file.certification_threshold}
    return threat | recall | {"effects": effects}


def defense_differences(attacked: Defense, requested: Defense) -> list[str]:
    """Return the settings in which the requested defense differs from the attacked one, as phrases.

    A detector's fingerprint identifies its weights and options. Where one of the defenses has none, its spec and its
    options are compared.
    """
    bound = None not in (attacked.fingerprint, requested.fingerprint)

    def settings(defense: Defense) -> dict[str, Any]:
        spec = {"detector": spec_without_path(defense.detector_name), **defense.options}
        detector = {"detector": defense.fingerprint} if bound else spec
        views = {"masks": str(defense.masks), "fill": defense.fill, "batch_size": defense.batch_size or BATCH}
        return {**detector, **views, "rule": defense.rule.kind, **defense.rule.settings()}

    first, second = settings(attacked), settings(requested)
    pairs = {name: (first.get(name), second.get(name)) for name in first | second}
    return [f"{name} {pair[0]}, requested {pair[1]}" for name, pair in pairs.items() if pair[0] != pair[1]]


def _describe_patch(patch: Patch) -> str:
    if patch.location == "outside":
        return "everything outside the object's grown box"
    count = {1: "", 2: "two of "}.get(patch.count, f"{patch.count} of ")
    return f"{count}{patch.area:.4g} of the image, aspect {patch.aspect:.4g}, {patch.location}"
