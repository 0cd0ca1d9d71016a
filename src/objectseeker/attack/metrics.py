"""Metrics of attacks: success rates with confidence intervals, effects, and bounds of recall.

Certified recall is a lower bound of recall under the worst patch, recall under this attack an upper one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker import codec
from objectseeker.attack.pipeline import (
    ATTACKED_SYSTEMS,
    FITTING_IOU,
    AttackedSystem,
    FoundStatus,
    Pipeline,
    Position,
    Target,
)
from objectseeker.core.boxes import Detections, iou
from objectseeker.core.masks import Image
from objectseeker.core.threats import Patch
from objectseeker.defense import BATCH, Defense, spec_without_path
from objectseeker.errors import ObjectSeekerError

EFFECT_KINDS = ("found", "misclassified", "disappeared")  # of an attacked object: one of them
Z_95 = 1.959964  # standard deviations of a 95 % confidence interval

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedImage:
    """One finished adversarial image, evaluated by the real pipeline.

    `base` are the detector's boxes on it, and `boxes` the output of the attacked system: the same, or the defense's.
    `defended` is None if the defense was not attacked. `leaking_views` counts the views that changed although their
    masks remove the patches; every certificate rests on that number being 0. `loss_curves` are those of all restarts.
    """

    image: Image
    base: Detections
    boxes: Detections
    position: Position
    patch_size: tuple[int, int]
    loss: float
    undefended: bool
    undefended_fitting: bool
    defended: bool | None = None
    leaking_views: int = 0
    loss_curves: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AttackOutcome:
    """The outcome for one object: per attacked system the image of the strongest attack, or None."""

    target: Target
    certified: bool
    vacuous: bool
    clean: FoundStatus
    on_undefended: EvaluatedImage | None
    on_defended: EvaluatedImage | None

    def attack_on(self, system: AttackedSystem) -> EvaluatedImage | None:
        return self.on_undefended if system == "undefended" else self.on_defended

    def skip_reason(self, system: AttackedSystem) -> str | None:
        """Return why there was no attack on this side; None if there was one."""
        if self.attack_on(system) is not None:
            return None
        found = self.clean.undefended if system == "undefended" else self.clean.defended
        return "no position is allowed" if found else "not found without a patch"

    @property
    def worst_for_undefended(self) -> EvaluatedImage | None:
        """The image that counts for the undefended detector: of both attacks, the first that hides the object."""
        if self.on_undefended is None:
            return None
        images = [image for image in (self.on_undefended, self.on_defended) if image is not None]
        return next((image for image in images if not image.undefended), self.on_undefended)

    @property
    def undefended_survived(self) -> bool | None:
        """Return whether the undefended detector finds the object under the worst of all patches tried."""
        worst = self.worst_for_undefended
        return None if worst is None else worst.undefended

    @property
    def undefended_fitting_survived(self) -> bool | None:
        fitting = [image.undefended_fitting for image in (self.on_undefended, self.on_defended) if image is not None]
        return all(fitting) if self.on_undefended is not None and self.clean.undefended_fitting else None

    @property
    def defended_survived(self) -> bool | None:
        return None if self.on_defended is None else self.on_defended.defended

    @property
    def leaking_views(self) -> int:
        """Number of views that changed although their masks remove the patches."""
        return 0 if self.on_defended is None else self.on_defended.leaking_views

    @property
    def guarantee_broken(self) -> bool:
        """Return whether the object was hidden though certified or proven there, or a view leaks."""
        hidden = self.defended_survived is False
        proven = self.certified or (self.on_defended is not None and self.on_defended.position.proven)
        return (hidden and proven) or self.leaking_views > 0


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


def outcome_row(outcome: AttackOutcome, pipeline: Pipeline) -> dict[str, Any]:
    """Return one object as plain values, as in attack.json."""
    target = outcome.target
    return {
        "image": target.image_id,
        "object": target.number,
        "class": target.class_name,
        "box": target.box.tolist(),
        "certified": outcome.certified,
        "vacuous": outcome.vacuous,
        "found_undefended": outcome.clean.undefended,
        "found_defended": outcome.clean.defended,
        "undefended_survived": outcome.undefended_survived,
        "undefended_survived_iou50": outcome.undefended_fitting_survived,
        "defended_survived": outcome.defended_survived,
        "guarantee_broken": outcome.guarantee_broken,
        "leaking_views": outcome.leaking_views,
        "skip_reason": {system: outcome.skip_reason(system) for system in ATTACKED_SYSTEMS},
        "attack_on_undefended": _image_values(outcome.on_undefended),
        "attack_on_defended": _image_values(outcome.on_defended),
        "effects": object_effects(outcome, pipeline),
    }


def object_effects(outcome: AttackOutcome, pipeline: Pipeline) -> dict[str, Any]:
    """Return the effect of the worst patch on each system, in the image that decides the outcome.

    The object is found; or it is misclassified: a box of another class fits it (IoU 0.5) that was not there without the
    patch; or, if neither, it has disappeared. A box is fabricated if it neither finds the object nor fits it, nor was
    there without the patch (a box of its class with an IoU of 0.5). None where there was no attack. Certificates
    exclude that a certified object disappears or is misclassified; they do not cover fabricated boxes.
    """
    target, undefended, defended = outcome.target, outcome.worst_for_undefended, outcome.on_defended
    base = target.observation.base.with_min_score(pipeline.rule.base_threshold)
    output = pipeline.output(pipeline.rule, target.observation)
    return {
        "undefended": None if undefended is None else _effect(pipeline, target, undefended.base, base),
        "defended": None if defended is None else _effect(pipeline, target, defended.boxes, output),
    }


def _effect(pipeline: Pipeline, target: Target, boxes: Detections, clean: Detections) -> dict[str, Any]:
    finds = pipeline.finding_boxes(target, boxes)
    fits = iou(target.box[None], boxes.xyxy)[0] >= FITTING_IOU
    same = (iou(boxes.xyxy, clean.xyxy) >= FITTING_IOU) & (boxes.label[:, None] == clean.label[None])
    known = same.any(axis=1)  # there without the patch: a hidden horse was not misclassified as its rider
    renamed = fits & ~pipeline.has_label(target, boxes) & ~known
    hidden = "misclassified" if renamed.any() else "disappeared"
    return {
        "object": "found" if finds.any() else hidden,
        "fabricated": int(np.count_nonzero(~(finds | fits | known))),
    }


def _image_values(image: EvaluatedImage | None) -> dict[str, Any] | None:
    if image is None:
        return None
    return {
        "corners": [list(corner) for corner in image.position.corners],
        "width": image.patch_size[0],
        "height": image.patch_size[1],
        "proven_at_position": image.position.proven,
        "loss": image.loss,
        "first_loss": next((curve[0] for curve in image.loss_curves if curve), None),
        "restarts": len(image.loss_curves),
    }


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
    certified: bool = False
    vacuous: bool = False
    found_undefended: bool = False
    undefended_survived: bool | None = None
    undefended_survived_iou50: bool | None = None
    leaking_views: int = 0
    skip_reason: dict[str, str | None] | None = None
    attack_on_undefended: dict[str, Any] | None = None
    attack_on_defended: dict[str, Any] | None = None
    effects: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.defended_survived is None and self.found_defended and not self.vacuous:
            raise ObjectSeekerError("defended_survived must be true or false for an object that is found: got null")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackFile:
    """attack.json."""

    defense: dict[str, Any]
    patch: Patch
    certification_threshold: float
    objects: tuple[AttackedObject, ...]
    device: str | None = None
    mode: str | None = None
    budget: dict[str, Any] | None = None
    seed: int = 0
    summary: dict[str, Any] | None = None
    recall: dict[str, Any] | None = None


def read_attack(path: Path) -> tuple[AttackFile, list[dict[str, Any]]]:
    """Read an attack.json, and its objects as plain values; a flag must be true or false.

    Raises:
        ObjectSeekerError: The file is not an attack.json.
    """
    advice = "name an attack.json that objectseeker attack wrote"
    try:
        content = codec.parse_json(path.read_bytes(), str(path), fix=advice)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    rows = content.get("objects") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ObjectSeekerError(f"not an attack.json: got {path}. Name one that objectseeker attack wrote.")
    stated = content | {"objects": [{"class_name" if key == "class" else key: row[key] for key in row} for row in rows]}
    return codec.from_plain(stated, AttackFile, str(path), fix=advice), rows


def read_recall(
    path: Path, defense: Defense, patches: Patch | Sequence[Patch], *, certification_threshold: float
) -> dict[str, Any]:
    """Read `recall_bounds` and `attack_effects` from an attack.json, with its patch and its T.

    Raises:
        ObjectSeekerError: The file is not an attack.json, or is about another defense, about a patch that is not among
            `patches`, or about another T.

    Args:
        path: An attack.json.
        defense: The defense that was attacked.
        patches: The patches that are certified against.
        certification_threshold: The T that is certified.

    Returns:
        Recall with its bounds, effects, patch and T, as plain values.

    Example:
        >>> read_recall(Path("attack/attack.json"), defense, Patch())  # doctest: +SKIP
    """
    file, rows = read_attack(path)
    patch, attacked_threshold = file.patch, file.certification_threshold
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
    if patch not in allowed:
        requested = " or ".join(map(_describe_patch, allowed))
        differences.append(f"patch {_describe_patch(patch)}, requested {requested}")
    if attacked_threshold != certification_threshold:
        differences.append(f"certification_threshold {attacked_threshold!r}, requested {certification_threshold!r}")
    if differences:
        raise ObjectSeekerError(
            f"{path} attacks something else: {'; '.join(differences)}. Attack with this defense and this patch."
        )
    return {"patch": codec.to_plain(patch), "certification_threshold": attacked_threshold, **recall, "effects": effects}


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
    pairs = ((name, first.get(name), second.get(name)) for name in first | second)
    return [f"{name} {value}, requested {other}" for name, value, other in pairs if value != other]


def _describe_patch(patch: Patch) -> str:
    if patch.location == "outside":
        return "everything outside the object's grown box"
    count = {1: "", 2: "two of "}.get(patch.count, f"{patch.count} of ")
    return f"{count}{patch.area:.4g} of the image, aspect {patch.aspect:.4g}, {patch.location}"
