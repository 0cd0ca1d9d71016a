"""Attack results as numbers: rows, success rates with confidence intervals, recall between its bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectseeker.attack.falsify import Attempt, Outcome
from objectseeker.errors import ObjectSeekerError

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


def row_of(outcome: Outcome, names: Sequence[str]) -> dict[str, Any]:
    """One object as plain values."""
    target = outcome.target
    return {
        "image": target.name,
        "object": target.number,
        "class": names[target.label] if 0 <= target.label < len(names) else str(target.label),
        "box": target.box.tolist(),
        "certified": outcome.certified,
        "vacuous": outcome.vacuous,
        "found_by_detector": outcome.clean.vanilla,
        "found_by_defence": outcome.clean.defended,
        "vanilla_survived": outcome.vanilla_survived,
        "vanilla_survived_iou50": outcome.vanilla_fit_survived,
        "defence_survived": outcome.defence_survived,
        "broken": outcome.broken,
        "detector_attack": _attempt(outcome.on_detector),
        "defence_attack": _attempt(outcome.on_defence),
    }


def _attempt(attempt: Attempt | None) -> dict[str, Any] | None:
    if attempt is None:
        return None
    position = attempt.position
    return {
        "x": position.x,
        "y": position.y,
        "width": attempt.size[0],
        "height": attempt.size[1],
        "proven_there": position.proven,
        "loss": attempt.loss,
        "first_loss": next((curve[0] for curve in attempt.curves if curve), None),
        "restarts": len(attempt.curves),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Attack success rates: how often the attacked object was hidden."""
    defended = [row for row in rows if row["defence_survived"] is not None]

    def hidden(of: Sequence[Row], key: str) -> dict[str, Any]:
        asked = [row for row in of if row[key] is not None]
        return rate(sum(not row[key] for row in asked), len(asked))

    return {
        "objects": len(rows),
        "attacked": len([row for row in rows if row["vanilla_survived"] is not None]),
        "without_position": sum(row["vacuous"] for row in rows),
        "hidden_from_detector": hidden(rows, "vanilla_survived"),
        "hidden_from_detector_iou50": hidden(rows, "vanilla_survived_iou50"),
        "hidden_from_defence": hidden(defended, "defence_survived"),
        "hidden_certified": hidden([row for row in defended if row["certified"]], "defence_survived"),
        "hidden_uncertified": hidden([row for row in defended if not row["certified"]], "defence_survived"),
        "broken_guarantees": sum(row["broken"] for row in rows),
    }


def robust_recall(rows: Sequence[Row]) -> dict[str, Any]:
    """Recall of the defended detector on the attacked sample, between its bounds.

    All three count the same objects and the same notion of found: certified recall is a lower bound of recall under
    the worst patch, recall under this attack an upper one, and clean recall what there is without any patch.
    """
    if not rows:
        raise ObjectSeekerError("an attack on no object says nothing about recall: attack at least one")
    kept = sum(row["found_by_defence"] and row["defence_survived"] is not False for row in rows)
    kept_vanilla = sum(row["found_by_detector"] and row["vanilla_survived"] is not False for row in rows)
    return {
        "objects": len(rows),
        "defended": {
            "clean_recall": rate(sum(row["found_by_defence"] for row in rows), len(rows)),
            "recall_under_attack": rate(kept, len(rows)),
            "certified_recall": rate(sum(row["certified"] for row in rows), len(rows)),
        },
        "vanilla": {
            "clean_recall": rate(sum(row["found_by_detector"] for row in rows), len(rows)),
            "recall_under_attack": rate(kept_vanilla, len(rows)),
            "certified_recall": rate(0, len(rows)),
        },
    }


def read_recall(path: Path) -> dict[str, Any]:
    """`robust_recall` of the objects in an attack.json, with the patch they were attacked with."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"patch": content["patch"], **robust_recall(content["objects"])}
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ObjectSeekerError(f"{path} is no attack.json: name the one that objectseeker attack wrote") from None


def robust_rows(recall: Mapping[str, Any]) -> list[dict[str, str]]:
    """The recalls as a table: one row per detector, percentages with 95 % intervals."""
    return [
        {
            "detector": detector,
            "objects": str(recall["objects"]),
            **{
                name: f"{100 * entry['share']:.1f} ({100 * entry['low']:.1f} to {100 * entry['high']:.1f})"
                for name, entry in (
                    ("certified (lower bound)", recall[key]["certified_recall"]),
                    ("under attack (upper bound)", recall[key]["recall_under_attack"]),
                    ("clean", recall[key]["clean_recall"]),
                )
            },
        }
        for detector, key in (("vanilla", "vanilla"), ("objectseeker", "defended"))
    ]
