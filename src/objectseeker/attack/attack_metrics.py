"""Attack results as numbers: rows, success rates with confidence intervals, recall between its bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.attack.falsify import GOALS, JudgedImage, Outcome
from objectseeker.attack.pipeline import GOOD_FIT, Pipeline, Target
from objectseeker.core.boxes import Detections, iou
from objectseeker.core.threats import Patch
from objectseeker.defense import BATCH, Defense, spec_without_path
from objectseeker.errors import ObjectSeekerError

FATES = ("found", "misclassified", "disappeared")  # of an attacked object: one of them
CONFIDENCE = 1.959964  # standard deviations: 95 %

Row = Mapping[str, Any]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval for a share, at 95 %: honest for few trials and for shares near 0 and 1."""
    if not trials:
        return 0.0, 1.0
    share, z2 = successes / trials, CONFIDENCE**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = CONFIDENCE * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its counts and interval."""
    low, high = wilson(successes, trials)
    return {
        "count": successes,
        "of": trials,
        "share": successes / trials if trials else None,
        "low": low,
        "high": high,
    }


def row_of(outcome: Outcome) -> dict[str, Any]:
    """One object as plain values."""
    target = outcome.target
    return {
        "image": target.name,
        "object": target.number,
        "class": target.kind,
        "box": target.box.tolist(),
        "certified": outcome.certified,
        "vacuous": outcome.vacuous,
        "found_by_detector": outcome.clean.undefended,
        "found_by_defense": outcome.clean.defended,
        "undefended_survived": outcome.undefended_survived,
        "undefended_survived_iou50": outcome.undefended_fit_survived,
        "defense_survived": outcome.defense_survived,
        "broken": outcome.broken,
        "leaks": outcome.leaks,
        "not_attacked": {goal: outcome.not_attacked(goal) for goal in GOALS},
        "detector_attack": _values(outcome.on_detector),
        "defense_attack": _values(outcome.on_defense),
    }


def effects_of(outcome: Outcome, pipeline: Pipeline) -> dict[str, Any]:
    """What the worst patch did on each side, in the image that decides whether the object survived there.

    The object is found; or it is misclassified: a box of another class fits it (IoU 0.5) that was not there without the
    patch; or, if neither, it has disappeared. A box is invented if it neither finds the object nor fits it, nor was
    there without the patch (a box of its class with an IoU of 0.5). None where there was no attack. Certificates are
    about objects that disappear or are misclassified; they do not speak of invented boxes.
    """
    target, of_detector, of_defense = outcome.target, outcome.worst_for_detector, outcome.on_defense
    base = target.observation.base.at_least(pipeline.rule.base_threshold)
    output = pipeline.output(pipeline.rule, target.observation)
    return {
        "effects": {
            "detector": None if of_detector is None else _effect(pipeline, target, of_detector.base, base),
            "defense": None if of_defense is None else _effect(pipeline, target, of_defense.boxes, output),
        }
    }


def _effect(pipeline: Pipeline, target: Target, boxes: Detections, clean: Detections) -> dict[str, Any]:
    finds = pipeline.finding(target, boxes)
    fits = iou(target.box[None], boxes.xyxy)[0] >= GOOD_FIT
    same = (iou(boxes.xyxy, clean.xyxy) >= GOOD_FIT) & (boxes.label[:, None] == clean.label[None])
    there = same.any(axis=1)  # without the patch, so not its doing: the rider is not what a hidden horse was taken for
    renamed = fits & ~pipeline.of_label(target, boxes) & ~there
    hidden = "misclassified" if renamed.any() else "disappeared"
    return {
        "object": "found" if finds.any() else hidden,
        "invented": int(np.count_nonzero(~(finds | fits | there))),
    }


def _values(judged: JudgedImage | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    return {
        "corners": [list(corner) for corner in judged.position.corners],
        "width": judged.size[0],
        "height": judged.size[1],
        "proven_there": judged.position.proven,
        "loss": judged.loss,
        "first_loss": next((curve[0] for curve in judged.curves if curve), None),
        "restarts": len(judged.curves),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Attack success rates: how often the attacked object was hidden."""
    defended = [row for row in rows if row["defense_survived"] is not None]

    def hidden(of: Sequence[Row], key: str) -> dict[str, Any]:
        asked = [row for row in of if row[key] is not None]
        return rate(sum(not row[key] for row in asked), len(asked))

    return {
        "objects": len(rows),
        "attacked": len([row for row in rows if row["undefended_survived"] is not None]),
        "without_position": sum(row["vacuous"] for row in rows),
        "hidden_from_detector": hidden(rows, "undefended_survived"),
        "hidden_from_detector_iou50": hidden(rows, "undefended_survived_iou50"),
        "hidden_from_defense": hidden(defended, "defense_survived"),
        "hidden_certified": hidden([row for row in defended if row["certified"]], "defense_survived"),
        "hidden_uncertified": hidden([row for row in defended if not row["certified"]], "defense_survived"),
        "effects": effects(rows),
        "broken_guarantees": sum(row["broken"] for row in rows),
        "with_leaks": sum(row["leaks"] > 0 for row in rows),
    }


def effects(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What became of the attacked objects on each side, and how many boxes were invented; None if rows do not say."""
    if not all("effects" in row for row in rows):  # a file of an earlier version
        return None
    return {
        goal: _effects([row["effects"][goal] for row in rows if row["effects"][goal] is not None]) for goal in GOALS
    }


def _effects(seen: Sequence[Row]) -> dict[str, Any]:
    return {
        **{fate: rate(sum(effect["object"] == fate for effect in seen), len(seen)) for fate in FATES},
        "inventing": rate(sum(effect["invented"] > 0 for effect in seen), len(seen)),
        "invented_boxes": sum(effect["invented"] for effect in seen),
    }


def robust_recall(rows: Sequence[Row]) -> dict[str, Any]:
    """Recall of the defended detector on the attacked sample, between its bounds.

    All three count the same objects and the same notion of found: certified recall is a lower bound of recall under
    the worst patch, recall under this attack an upper one, and clean recall what there is without any patch.
    """
    if not rows:
        raise ObjectSeekerError("an attack on no object says nothing about recall: attack at least one")
    kept = sum(row["found_by_defense"] and row["defense_survived"] is not False for row in rows)
    kept_undefended = sum(row["found_by_detector"] and row["undefended_survived"] is not False for row in rows)
    return {
        "objects": len(rows),
        "defended": {
            "clean_recall": rate(sum(row["found_by_defense"] for row in rows), len(rows)),
            "recall_under_attack": rate(kept, len(rows)),
            "certified_recall": rate(sum(row["certified"] for row in rows), len(rows)),
        },
        "undefended": {
            "clean_recall": rate(sum(row["found_by_detector"] for row in rows), len(rows)),
            "recall_under_attack": rate(kept_undefended, len(rows)),
            "certified_recall": rate(0, len(rows)),
        },
    }


def read_recall(path: Path, defense: Defense, threats: Patch | Sequence[Patch], *, threshold: float) -> dict[str, Any]:
    """`robust_recall` and `effects` of the objects in an attack.json, with the patch and the T of that attack.

    Refuses a file that is about another defense, another threat than one of `threats`, or another T.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        attacked = Defense.from_dict(content["defense"], f"the defense in {path}")
        patch, at = Patch(**content["patch"]), content["threshold"]
        edited = content["defense"]["sha256"] != attacked.sha256
        recall, became = robust_recall(content["objects"]), effects(content["objects"])
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    except ObjectSeekerError:
        raise
    except (ValueError, KeyError, TypeError):
        raise ObjectSeekerError(f"{path} is no attack.json: name the one that objectseeker attack wrote") from None
    if edited:
        raise ObjectSeekerError(f"{path} was edited: the settings of its defense are not those of its sha256")
    listed = [threats] if isinstance(threats, Patch) else list(threats)
    differences = defense_differences(attacked, defense)
    if patch not in listed:
        asked = " or ".join(map(_in_words, listed))
        differences.append(f"patch {_in_words(patch)}, asked for {asked}")
    if at != threshold:
        differences.append(f"threshold {at!r}, asked for {threshold!r}")
    if differences:
        raise ObjectSeekerError(
            f"{path} is an attack on something else ({'; '.join(differences)}): attack with this defense and this patch"
        )
    return {"patch": content["patch"], "threshold": at, **recall} | ({} if became is None else {"effects": became})


def defense_differences(attacked: Defense, asked: Defense) -> list[str]:
    """What makes the defense that is asked for another than the one that was attacked, each in a few words.

    A detector's identity says which weights ran with which options; where a defense is bound to none, its spec and its
    options speak.
    """
    bound = None not in (attacked.identity, asked.identity)

    def settings(defense: Defense) -> dict[str, Any]:
        spec = {"detector": spec_without_path(defense.detector), **defense.options}
        detector = {"detector": defense.identity} if bound else spec
        rule = asdict(defense.rule)
        scoring: dict[str, Any] = rule.pop("ioa", {})
        views = {"masks": str(defense.masks), "fill": defense.fill, "batch": defense.batch or BATCH}
        return {**detector, **views, **scoring, **rule}

    then, now = settings(attacked), settings(asked)
    pairs = ((name, then.get(name), now.get(name)) for name in then | now)
    return [f"{name} {before}, asked for {after}" for name, before, after in pairs if before != after]


def _in_words(patch: Patch) -> str:
    count = "two of " if patch.count == 2 else ""
    return f"{count}{patch.area:.4g} of the image, aspect {patch.aspect:.4g}, {patch.where}"
