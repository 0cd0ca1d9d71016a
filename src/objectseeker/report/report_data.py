"""Which objects are found on the images as they are: by the undefended detector or the defended one, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from objectseeker import __version__
from objectseeker.core.bounds import MARGIN
from objectseeker.core.boxes import Bools, Detections, Floats
from objectseeker.core.iou_rule import AnyRule, IouRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import MaskSet
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.accumulators import Totals
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.image_tags import Tags
from objectseeker.metrics.matching import candidate_pairs, greedy_match
from objectseeker.metrics.object_certificates import ATTACKED_ALREADY, name_of_label, with_outputs
from objectseeker.metrics.settings import EvaluationSettings, describe_operating_point, ioa_of, threshold_of
from objectseeker.metrics.slice_metrics import FEW
from objectseeker.metrics.sweeps import SIZE_BINS
from objectseeker.report.packed_certificates import Column
from objectseeker.text import redact_path

if TYPE_CHECKING:
    from objectseeker.runs.run import Run


UNDEFENDED, DEFENDED = 1, 2  # bits of the column `found`


def found_columns(scene: ImageSet, outputs: Sequence[Detections], rule: AnyRule, *, labeled: bool) -> dict[str, Column]:
    """`found` (bits) and `score` of every object, by the matching of clean recall; `outputs` are those of the images.

    Without labels the objects are the outputs themselves: all are found, the base boxes also without a defense.
    """
    base = [image.observation.base.at_least(rule.base_threshold) for image in scene.images]
    if labeled:
        undefended, weaker = _found(scene, base)
        defended, score = _found(scene, outputs)
        score = np.where(defended, score, weaker)
    else:
        undefended = np.concatenate(
            [np.arange(len(all_of_it)) < len(few) for all_of_it, few in zip(outputs, base, strict=True)]
        )
        defended, score = np.ones_like(undefended), scene.truth.detections.score
    return {
        "found": (UNDEFENDED * undefended + DEFENDED * defended).astype(np.uint8),
        "score": score.astype(np.float32),
    }


def _found(scene: ImageSet, boxes: Sequence[Detections]) -> tuple[Bools, Floats]:
    """Which objects some box takes, and the highest score of such a box; 0 for the others."""
    gathered = BoxTable.concatenate_boxes(boxes).in_dataset(scene.vocabulary)
    taken = greedy_match(gathered.detections.score, candidate_pairs(gathered, scene), scene)
    score = np.full(len(scene.truth), -1.0)
    np.maximum.at(score, taken[taken >= 0], gathered.detections.score[taken >= 0])
    return score >= 0, np.maximum(score, 0.0)


# What the page says in numbers: AP and recall, the defense and provenance. All APs and recalls are percentages.


# The stops of the page's sliders: round numbers, so that what is seen there can be asked for on the command line.
AREAS = (*(float(f"{m}e-{e}") for e in (3, 2, 1) for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), 1.0)
ASPECTS = (*(1 / n for n in (16, 12, 8, 6, 4, 3, 2, 1.5)), 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
OFFERED_THRESHOLDS = tuple(t / 20 for t in range(20))


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What the report shows: the images with their objects, the rule, its figures, and what must be said of them."""

    scene: ImageSet
    rule: AnyRule
    figures: dict[str, Any]
    remarks: list[str]


def shown(images: Sequence[ObservedImage], vocabulary: LabelMap, settings: EvaluationSettings) -> Shown:
    """The defended detector where the settings ask for it, in the figures of `evaluate`."""
    scene = ImageSet.of(images, vocabulary)
    totals = Totals(vocabulary, [settings])
    totals.add(scene)
    undefended, ours = totals.undefended(), totals.outcome(0)
    remark = ours.remark()
    if ours.point is None:
        raise ObjectSeekerError(remark or "there is no such operating point")
    figures = {
        "labeled": True,
        "images": totals.images,
        "objects": int(totals.objects.sum()),
        "ignored": totals.ignored,
        "undefended": {"ap50": undefended.ap50, "ap50_coco": undefended.ap50_coco},
        "defended": {"ap50": ours.ap50, "clean_recall": ours.clean_recall},
        "per_class": [
            {
                "label": c,
                "undefended_ap50": float(undefended.curve.ap50[c]),
                "ap50": float(ours.curve.ap50[c]),
                "clean_recall": ours.recall(c),
            }
            for c in totals.objects.nonzero()[0].tolist()
        ],
    }
    return Shown(scene, ours.point.rule, figures, [] if remark is None else [f"{remark[0].upper()}{remark[1:]}."])


def shown_without_labels(images: Sequence[ObservedImage], vocabulary: LabelMap, settings: EvaluationSettings) -> Shown:
    """The boxes that the defended detector outputs as objects. They are no recall, and there is no AP."""
    rule = settings.fixed_rule
    if rule is None:
        raise ObjectSeekerError(
            f"a point {describe_operating_point(settings)} cannot be found without labels: give a base score instead"
        )
    found = [with_outputs(image, rule) for image in images]
    names = _names(vocabulary, found)
    scene = ImageSet.part(found, LabelMap.same(names))
    if not len(scene.truth):
        raise ObjectSeekerError(
            f"the defended detector outputs no box on any of the {len(found)} images, so there is nothing to certify: "
            f"its base_threshold is {rule.base_threshold:g}"
        )
    base = sum(len(image.observation.base.at_least(rule.base_threshold)) for image in found)
    figures = {
        "labeled": False,
        "images": len(found),
        "objects": len(scene.truth),
        "ignored": 0,
        "base_boxes": base,
        "per_class": [{"label": c} for c in scene.objects_per_class.nonzero()[0].tolist()],
    }
    remark = (
        "There are no labels here: the objects are the boxes that the defended detector outputs, and every figure is a "
        f"share of these boxes. That is not recall: {ATTACKED_ALREADY}, and nothing here speaks of them."
    )
    return Shown(scene, rule, figures, [remark])


def _names(vocabulary: LabelMap, images: Sequence[ObservedImage]) -> tuple[str, ...]:
    """The detector's class names; one that has none may use any label, and each label is its own name."""
    boxes = [one for image in images for one in (image.observation.base, image.observation.boxes)]
    used = max((int(np.max(one.label, initial=-1)) for one in boxes), default=-1) + 1
    known = vocabulary.detector_names
    return tuple(name_of_label(known, label) for label in range(max(len(known), used)))


def controls(settings: EvaluationSettings) -> dict[str, Any]:
    """The stops of the sliders, with those of the settings among them, and where they stand at first."""
    threat = settings.threat
    threshold = threshold_of(settings.rule, threat.threshold)
    return {
        "areas": sorted({*AREAS, threat.area}),
        "aspects": sorted({*ASPECTS, threat.aspect}),
        "thresholds": sorted({*OFFERED_THRESHOLDS, threshold}),
        "wheres": PATCH_LOCATIONS,
        "start": {"area": threat.area, "aspect": threat.aspect, "threshold": threshold, "where": "over"},
        "size_bins": SIZE_BINS,
        "few": FEW,
    }


def described(settings: EvaluationSettings, rule: AnyRule, defense: Defense | None) -> dict[str, str]:
    """The defense in full, number by number as exact as it is used: what is read here can be typed again."""
    values: dict[str, Any] = {}
    if defense is not None:
        deployed = replace(defense, rule=rule)
        values["defense"] = f"sha256:{deployed.sha256}"
        if deployed != defense:
            values["on the curve of"] = f"sha256:{defense.sha256}"
        identity = defense.identity or "not recorded"
        values |= {"detector": redact_path(defense.detector), "detector identity": redact_path(identity)}
        values |= defense.options | {"masks": str(defense.masks), "fill": defense.fill}
    ioa = ioa_of(rule)
    name = "the paper's: one masked box decides" if ioa.evidence_threshold is None else "evidence: views add up"
    values |= {"rule": "the IoU variant" if isinstance(rule, IouRule) else name} | asdict(ioa)
    values |= {"filter_iou": rule.filter_iou} if isinstance(rule, IouRule) else {}
    values |= {"bound": settings.threat.bound, "operating point": describe_operating_point(settings)}
    return {key: value if isinstance(value, str) else repr(value) for key, value in values.items() if value is not None}


def provenance_of(run: Run) -> dict[str, str]:
    """Where a run comes from."""
    manifest, observing = run.manifest, run.manifest.observing
    return {
        "run": run.folder.resolve().name,
        "run identity": f"sha256:{run.identity}",
        "dataset": redact_path(manifest.dataset),
        "dataset identity": manifest.dataset_identity,
        "images": f"{len(run.parts)} of {len(manifest.images)}",
        "boxes stored from": f"{observing.base_floor!r} (untouched), {observing.mask_floor!r} (masked)",
        "classes left out": ", ".join(manifest.unmatched_classes) or "none",
        "software": ", ".join(f"{name} {version}" for name, version in manifest.software.items()),
    }


def constants(rule: AnyRule) -> dict[str, Any]:
    """What the page's verdicts compare with, and what their words depend on."""
    by_iou = isinstance(rule, IouRule)
    return {
        "margin": MARGIN,
        "needed": 1 + MARGIN,
        "evidence": not by_iou and ioa_of(rule).evidence_threshold is not None,
        "by_iou": by_iou,
        "classwise": rule.classwise,
        "version": __version__,
    }


def tags_of(tags: Tags, images: int) -> list[dict[str, Any]]:
    """Column by column its values, and which of them each image has, -1 for none; columns without any are left out."""
    columns = []
    for name, values in tags.columns.items():
        if len(values) != images:
            raise ObjectSeekerError(f"tags must have a value for every image, {images}, {name} has {len(values)}")
        known = sorted(set(values) - {""})
        place = {value: at for at, value in enumerate(known)}
        if known:
            columns.append({"name": name, "values": known, "of_image": [place.get(value, -1) for value in values]})
    return columns


def masks_of(sizes: Sequence[MaskSet]) -> list[dict[str, Any]]:
    return [
        {
            "width": one.width,
            "height": one.height,
            "axis": one.axis.tolist(),
            "start": one.start.tolist(),
            "end": one.end.tolist(),
        }
        for one in sizes
    ]
