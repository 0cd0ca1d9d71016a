"""The figures that differently trained detectors are compared by, each with its bootstrap interval over images."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import WHERES
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number
from objectseeker.evaluation.average_precision import coco_ap50
from objectseeker.evaluation.certified import certified_objects
from objectseeker.evaluation.curves import NO_BOXES
from objectseeker.evaluation.defence import Defence
from objectseeker.evaluation.resampling import NOT_REACHED, Tally, ratios_at_rows, resamples, spurious
from objectseeker.evaluation.scene import Boxes, Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings
from objectseeker.evaluation.summary import Row
from objectseeker.evaluation.sweeps import split
from objectseeker.evaluation.tuning import FAMILIES, Choices, Family, RecallOf, Tuned, tune

BETAS = tuple(s / 10 for s in range(10))  # of the curve
INTERVAL = (2.5, 97.5)  # percentiles
DIGITS = 4  # of samples: they go into files


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured: certified recall by these rules at these clean recalls within these losses of AP50."""

    losses: tuple[float, ...] = (1.0,)
    recalls: tuple[float, ...] = (0.7, 0.8)
    rules: tuple[Family, ...] = FAMILIES
    bootstrap: int = 1000
    seed: int = 0
    patch_area: float = 0.01
    recall_of: RecallOf = "defended"  # which detector's clean recall settings are searched at
    both_halves: bool = False  # search on each half in turn and measure on the other, instead of one way only
    choices: Choices = field(default_factory=Choices)

    def __post_init__(self) -> None:
        for name, check in (("losses", require_number), ("recalls", require_fraction)):
            values = getattr(self, name)
            if not values:
                raise ObjectSeekerError(f"{name} must hold at least one value, got none")
            object.__setattr__(self, name, tuple(sorted({check(value, name) for value in values})))
        if not self.rules or not set(self.rules) <= set(FAMILIES):
            raise ObjectSeekerError(f"rules must be some of {', '.join(FAMILIES)}, got {list(self.rules)!r}")

    def to_json(self) -> Row:
        choices = {name: list(values) for name, values in asdict(self.choices).items()}
        rows = {"losses": list(self.losses), "recalls": list(self.recalls), "rules": list(self.rules)}
        return asdict(self) | rows | {"choices": choices}


def clean_figures(images: Sequence[ObservedImage], names: Sequence[str], floor: float, options: Options) -> Row:
    """What needs no settings, from all images."""
    scene = Scene.of(images, names)
    weights = resamples(len(images), options.bootstrap, options.seed)
    vanilla = Tally.of(scene, [NO_BOXES] * len(BASE_SCORES))
    vanilla_ap50 = vanilla.ap50(weights)
    rows_at = {recall: vanilla.rows_at_recall(recall, weights) for recall in options.recalls}
    each = [replace(Settings(), alpha=max(floor, beta), beta=beta) for beta in BETAS]
    defence = Defence.prepare(scene, each[0])
    curve = []
    for settings in each:
        additions = list(defence.additions(settings, BASE_SCORES.tolist()))
        ap50 = Tally.of(scene, additions).ap50(weights)
        boxes = {recall: _spurious_per_image(scene, additions, rows, weights) for recall, rows in rows_at.items()}
        curve.append(
            {
                "beta": settings.beta,
                "ap50": estimate(ap50),
                "ap50_loss": estimate(vanilla_ap50 - ap50),
                "at_recall": [
                    {
                        "clean_recall": recall,
                        "mask_score": _mask_score(settings, rows[0]),
                        "spurious": estimate(boxes[recall]),
                    }
                    for recall, rows in rows_at.items()
                ],
            }
        )
    return {
        "images": len(images),
        "objects": len(scene.counted),
        "image_digest": _digest(images),
        "vanilla": {"ap50": estimate(vanilla_ap50), "ap50_coco": float(scene.macro(coco_ap50(scene)))},
        "curve": curve,
    }


def tuned_figures(
    images: Sequence[ObservedImage],
    names: Sequence[str],
    floor: float,
    options: Options,
    rule: Family,
    recall: float,
    half: int,
) -> list[Row]:
    """One row per loss: the settings found on this half of the images, and their figures on the other."""
    settings = Settings(clean_recall=recall, patch_area=options.patch_area)
    other = split(len(images), 2, options.seed)[1 - half]
    held_out = Scene.of([images[i] for i in other], names)
    found: dict[float, Tuned] = {}
    why: str | None = None
    try:
        tuning = tune(
            images,
            names,
            settings,
            mask_floor=floor,
            families=[rule],
            most_loss=options.losses[-1],
            losses=options.losses,
            choices=options.choices,
            recall_of=options.recall_of,
            seed=options.seed,
            half=half,
        )
        found = {tuned.most_loss: tuned for tuned in tuning.frontier[rule]}
    except ObjectSeekerError as error:  # no setting is good enough: a result, too
        why = str(error)
    rows = []
    for loss in options.losses:
        row: Row = {"rule": rule, "clean_recall": recall, "most_loss": loss, "settings": None, "searched": None}
        row |= {"image_digest": _digest(held_out.images), "held_out": None, "why": why}
        if loss in found:
            one = found[loss]
            row |= {"settings": asdict(one.settings), "searched": one.searched, "why": None}
            # Each half has samples of its own, so that means over both halves spread as they should.
            row["held_out"] = held_out_figures(held_out, one.settings, floor, options.bootstrap, options.seed + half)
        elif why is None:
            row["why"] = f"no setting loses at most {loss:g} points of AP50 on the half that was searched"
        rows.append(row)
    return rows


def held_out_figures(scene: Scene, settings: Settings, floor: float, bootstrap: int, seed: int) -> Row:
    """What fixed settings give on a scene.

    Masks find objects, too, so the defended detector reaches a clean recall at a higher base_score than the undefended
    one, and every mask_score rises with base_score: `at_vanilla_recall` has the figures at the undefended detector's.
    """
    weights = resamples(len(scene.images), bootstrap, seed)
    defence = Defence.prepare(scene, settings, floor=floor)
    additions = list(defence.additions(settings, BASE_SCORES.tolist()))
    tally = Tally.of(scene, additions)
    ap50 = tally.ap50(weights)
    undefended = Tally.of(scene, [NO_BOXES] * len(BASE_SCORES))
    vanilla = undefended.ap50(weights)

    def certified(rows: Ints) -> Row:
        rule = None if rows[0] == NOT_REACHED else settings.rule(float(BASE_SCORES[rows[0]]))
        counts = _certified_counts(defence, settings)
        shares = 100 * ratios_at_rows(counts, tally.objects.sum(axis=1), rows, weights)
        by_where = dict(zip(WHERES, np.broadcast_to(shares, (len(WHERES), len(weights))), strict=True))
        by_where["mean"] = (by_where["far"] + by_where["close"] + by_where["over"]) / 3
        recall = np.where(rows == NOT_REACHED, np.nan, tally.clean_recall(weights)[rows, np.arange(len(rows))])
        return {
            "base_score": None if rule is None else rule.base_score,
            "mask_score": None if rule is None else rule.mask_score,
            "low_score": None if rule is None else rule.low_score,
            "clean_recall": estimate(recall),
            **{f"certified_{where}": estimate(values) for where, values in by_where.items()},
            "spurious": estimate(_spurious_per_image(scene, additions, rows, weights)),
        }

    return {
        "images": len(scene.images),
        "objects": len(scene.counted),
        "vanilla_ap50": estimate(vanilla),
        "ap50": estimate(ap50),
        "ap50_loss": estimate(vanilla - ap50),
        **certified(tally.rows_at_recall(settings.clean_recall, weights)),
        "at_vanilla_recall": certified(undefended.rows_at_recall(settings.clean_recall, weights)),
    }


def _mask_score(settings: Settings, row: int) -> float | None:
    return None if row == NOT_REACHED else settings.rule(float(BASE_SCORES[row])).mask_score


def _spurious_per_image(scene: Scene, additions: Sequence[Boxes], rows: Ints, weights: Floats) -> Floats:
    """Of each sample, at its own row."""
    ones = np.ones(len(scene.images))
    (boxes,) = ratios_at_rows(lambda row: spurious(additions[row], scene)[None], ones, rows, weights)
    return np.asarray(boxes)


def _certified_counts(defence: Defence, settings: Settings) -> Callable[[int], Floats]:
    """For the row of a base_score, how many counted objects of each image are certified: (WHERES, images)."""
    scene = defence.scene
    image = scene.truth.image[scene.counted]

    def at(row: int) -> Floats:
        rule = settings.rule(float(BASE_SCORES[row]))
        certified, _ = certified_objects(defence.proofs, rule, settings.patches(), threshold=settings.threshold)
        return np.stack([np.bincount(image, weights=of_where, minlength=len(scene.images)) for of_where in certified])

    return at


def estimate(samples: Floats) -> Row:
    """The first sample is the images as they are; the interval is that of the others."""
    drawn = samples[1:][~np.isnan(samples[1:])]
    low, high = np.percentile(drawn, INTERVAL) if len(drawn) else (np.nan, np.nan)
    return {
        "value": _plain(samples[0]),
        "low": _plain(low),
        "high": _plain(high),
        "unreached": int(np.isnan(samples[1:]).sum()),
        "samples": [None if math.isnan(one) else round(one, DIGITS) for one in samples[1:].tolist()],
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _digest(images: Sequence[ObservedImage]) -> str:
    """Of which images these are."""
    return hashlib.sha256("\n".join(image.id for image in images).encode()).hexdigest()[:16]


def combined(one: Any, other: Any, how: Callable[[Floats, Floats], Floats]) -> Any:
    """Two parts of what `measure` gave, alike in shape: estimates sample by sample, of all else what is equal."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if "samples" in one:
            return estimate(how(_samples(one), _samples(other)))
        values = {name: combined(one[name], other.get(name), how) for name in one}
        return {name: value for name, value in values.items() if value is not None}
    if isinstance(one, list) and isinstance(other, list):
        return [combined(a, b, how) for a, b in zip(one, other, strict=True)]
    return one if one == other else None


def _samples(estimated: Mapping[str, Any]) -> Floats:
    """With the value itself first; NaN for None."""
    return np.array([estimated["value"], *estimated["samples"]], dtype=np.float64)


def without_samples(part: Any) -> Any:
    """A part of what `measure` gave, short enough to print."""
    if isinstance(part, Mapping):
        return {name: without_samples(value) for name, value in part.items() if name != "samples"}
    return [without_samples(one) for one in part] if isinstance(part, list) else part
