"""What the figures of the paper are drawn from: every function returns plain rows, ready for CSV.

A row says which setting it was (k is the number of lines per axis), what it cost (ap50, clean_recall) and what it
brought (certified_far, certified_close, certified_over, certified_anywhere), all in percent. Where the clean recall
asked for is not reached, what depends on it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.observation import Observation
from objectseeker.core.threats import WHERES, Patch
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.evaluation.certified import certified_objects
from objectseeker.evaluation.curves import Curve, unpruned_curve, vanilla_curve
from objectseeker.evaluation.defence import Defence, OperatingPoint
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import Settings
from objectseeker.evaluation.summary import Row, certified_row, operating_row

Restrict = Callable[[Observation, int], Observation]  # an observation under fewer lines per axis

PATCH_AREAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PATCH_ASPECTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
THRESHOLDS = tuple(t / 10 for t in range(10))
SIZE_BINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)


def by_clean_recall(scene: Scene, settings: Settings, recalls: Iterable[float]) -> list[Row]:
    """Certified recall against the clean recall it is measured at."""
    defence = Defence.prepare(scene, settings)
    curve = defence.curve(settings)
    return [
        {"asked_clean_recall": 100 * recall}
        | outcome(curve, defence.at_recall(replace(settings, clean_recall=recall), curve))
        for recall in recalls
    ]


def by_lines(scene: Scene, settings: Settings, ks: Iterable[int], restrict: Restrict) -> list[Row]:
    """The effect, and with `forward_passes` the cost, of the number of lines per axis."""
    rows = []
    for k in ks:
        of_k = with_lines(scene, k, restrict)
        masks = max(len(image.observation.masks) for image in of_k.images)  # an image of few pixels has fewer
        rows.append({"k": k, "forward_passes": 1 + masks} | _measured(of_k, settings))
    return rows


def by_alpha(scene: Scene, settings: Settings, alphas: Iterable[float]) -> list[Row]:
    """The effect of the lowest mask_score."""
    tried = [replace(settings, alpha=alpha) for alpha in alphas]
    if not tried:
        return []
    defence = Defence.prepare(scene, settings, floor=min(one.floor for one in tried))
    return [{"alpha": one.alpha} | _measured(scene, one, defence) for one in tried]


def by_filter_ioa(scene: Scene, settings: Settings, filter_ioas: Iterable[float]) -> list[Row]:
    """The effect of how much of a masked box a base box must cover to explain it."""
    return [{"filter_ioa": ioa} | _measured(scene, replace(settings, filter_ioa=ioa)) for ioa in filter_ioas]


def by_threshold(scene: Scene, settings: Settings, thresholds: Iterable[float] = THRESHOLDS) -> list[Row]:
    """Certified recall against T, the share of the object that must stay covered; the detector is the same for all."""
    defence = Defence.prepare(scene, settings)
    curve = defence.curve(settings)
    return [
        {"threshold": t} | outcome(curve, defence.at_recall(replace(settings, threshold=t), curve)) for t in thresholds
    ]


def mean_over_thresholds(rows: Sequence[Row]) -> Row:
    """The mean certified recall over the rows of `by_threshold`."""
    columns = [f"certified_{where}" for where in WHERES]
    reached = bool(rows) and all(row[column] is not None for row in rows for column in columns)
    return {column: float(np.mean([row[column] for row in rows])) if reached else None for column in columns}


def by_patch_area(
    scene: Scene, settings: Settings, areas: Sequence[float] = PATCH_AREAS, *, ks: Iterable[int], restrict: Restrict
) -> list[Row]:
    """Certified recall against the patch's share of the image, for several numbers of lines."""
    rows = []
    for k in ks:
        of_k = _by_patch(with_lines(scene, k, restrict), settings, [(one, settings.patch_aspect) for one in areas])
        rows += [{"k": k, "patch_area": one} | row for one, row in zip(areas, of_k, strict=True)]
    return rows


def by_patch_aspect(scene: Scene, settings: Settings, aspects: Sequence[float] = PATCH_ASPECTS) -> list[Row]:
    """Certified recall against the patch's width divided by its height, at equal area."""
    rows = _by_patch(scene, settings, [(settings.patch_area, aspect) for aspect in aspects])
    return [{"patch_aspect": aspect} | row for aspect, row in zip(aspects, rows, strict=True)]


def by_object_size(scene: Scene, settings: Settings, bins: Sequence[float] = SIZE_BINS) -> list[Row]:
    """How many objects take which share of their image, and how many of those are certified.

    A bin holds the shares above its `from` up to and including its `to`.
    """
    if len(bins) < 2 or list(bins) != sorted(set(bins)):
        raise ObjectSeekerError(f"size bins must be at least two ascending limits, got {list(bins)}")
    defence = Defence.prepare(scene, settings)
    point = defence.at_recall(settings, defence.curve(settings))
    truth, width, height = defence.proofs.objects()
    share = visible_area(truth, width, height) / (width * height)
    rows = []
    for low, high in pairwise(bins):
        mine = (share > low) & (share <= high)
        rows.append(
            {"from": low, "to": high, "objects": int(mine.sum()), "objects_share": 100 * float(mine.mean())}
            | _certified_columns(certified_row(None) if point is None else point.certified_recall(mine))
            | {"vacuous_far": None if point is None else point.vacuous_far(mine)}
        )
    return rows


def by_split(scene: Scene, settings: Settings, *, splits: int = 2, seed: int = 0) -> list[Row]:
    """The same measurement on disjoint random parts of the images: how much of a difference is chance."""
    rows = []
    for number, index in enumerate(split(len(scene.images), require_count(splits, "splits"), seed)):
        part = scene.subset(index)
        vanilla = vanilla_curve(part).mean_ap50
        rows.append(
            {"split": number, "images": len(part.images), "objects": len(part.counted), "vanilla_ap50": vanilla}
            | _measured(part, settings)
        )
    return rows


def precision_recall(scene: Scene, settings: Settings) -> list[Row]:
    """Precision and recall over all boxes at every base_score: undefended, defended, and defended without pruning."""
    defence = Defence.prepare(scene, settings)
    rows = []
    for detector, curve in (
        ("vanilla", vanilla_curve(scene)),
        ("defended", defence.curve(settings)),
        ("without pruning", unpruned_curve(scene, settings)),
    ):
        right, boxes = curve.right.sum(axis=1), (curve.right + curve.wrong).sum(axis=1)
        rows += [
            {
                "detector": detector,
                "base_score": float(curve.base_scores[i]),
                "precision": 100 * float(right[i] / boxes[i]) if boxes[i] else None,
                "recall": 100 * float(right[i] / len(scene.counted)),
                "clean_recall": float(curve.clean_recall[i]),
            }
            for i in range(len(curve.base_scores))
        ]
    return rows


def outcome(curve: Curve, point: OperatingPoint | None) -> Row:
    """The columns that every sweep has."""
    return {
        "ap50": curve.mean_ap50,
        **operating_row(curve, point),
        **_certified_columns(certified_row(point)),
        "vacuous_far": None if point is None else point.vacuous_far(),
    }


def with_lines(scene: Scene, k: int, restrict: Restrict) -> Scene:
    """The scene as observed under `k` lines per axis."""
    return Scene.of([replace(image, observation=restrict(image.observation, k)) for image in scene.images], scene.names)


def split(images: int, parts: int, seed: int) -> list[Ints]:
    """Disjoint random parts of nearly equal size, each in ascending order."""
    if parts > images:
        raise ObjectSeekerError(f"{images} images cannot be split into {parts} parts; observe more of them")
    order = np.random.default_rng(seed).permutation(images)
    return [np.sort(part) for part in np.array_split(order, parts)]


def _measured(scene: Scene, settings: Settings, defence: Defence | None = None) -> Row:
    defence = Defence.prepare(scene, settings) if defence is None else defence
    curve = defence.curve(settings)
    return outcome(curve, defence.at_recall(settings, curve))


def _by_patch(scene: Scene, settings: Settings, shapes: Sequence[tuple[float, float]]) -> list[Row]:
    """One operating point, many patches (area, aspect), all certified in one go."""
    defence = Defence.prepare(scene, settings)
    curve = defence.curve(settings)
    point = defence.at_recall(settings, curve)
    if point is None:
        return [outcome(curve, None) for _ in shapes]
    patches = [
        Patch(area=one, aspect=aspect, where=where, count=settings.patch_count)
        for one, aspect in shapes
        for where in WHERES
    ]
    certified, vacuous = certified_objects(defence.proofs, point.rule, patches, threshold=settings.threshold)
    return [
        outcome(curve, replace(point, certified=certified[i : i + len(WHERES)], vacuous=vacuous[i : i + len(WHERES)]))
        for i in range(0, len(patches), len(WHERES))
    ]


def _certified_columns(recalls: Row) -> Row:
    return {f"certified_{where}": recalls[where] for where in WHERES}
