"""The sources of a report, and the numbers and strings that its page shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from objectseeker import __version__
from objectseeker.core.bounds import MARGIN
from objectseeker.core.boxes import Bools, Detections, Floats
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Masks
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, ThreatModel
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import candidate_pairs, coco_ap50, greedy_match, undefended_curve
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.object_certificates import ATTACKED_ALREADY, name_of_label, with_outputs_as_objects
from objectseeker.metrics.settings import EvaluationSettings, describe_point
from objectseeker.metrics.slices import MIN_SLICE_OBJECTS, NO_TAGS, ImageTags
from objectseeker.metrics.sweeps import SIZE_BINS, measured
from objectseeker.report.certificates import Column
from objectseeker.runs.run import Run
from objectseeker.text import redact_path

UNDEFENDED, DEFENDED = 1, 2  # bits of the column `found`

# Stops of the page's sliders: round numbers, so that what the page shows can be requested on the command line.
AREAS = (*(float(f"{m}e-{e}") for e in (3, 2, 1) for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), 1.0)
ASPECTS = (*(1 / n for n in (16, 12, 8, 6, 4, 3, 2, 1.5)), 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
THRESHOLDS = tuple(t / 20 for t in range(20))

MAX_COVER_OBJECTS = 12  # an image with more is too crowded to come first
MAX_COVER_CANDIDATES = 60  # spread evenly over the run
MAX_COVERS = 5  # ranked, in case the first images are missing


@dataclass(frozen=True, slots=True, eq=False)
class ReportSource:
    """The source of a report: observed images, and the settings that they are evaluated with.

    Args:
        title: Heading of the page; the name of a baseline.
        images: Observed images, with their ground truth.
        label_map: How the detector's labels map to the dataset's classes.
        settings: Rule, threshold schedule, threat and operating point.
        defense: The defense with that rule, which the page then names.
        provenance: What the page says of the origin of the images.
        caveats: Further notices for the reader.
        is_labeled: Without annotations, the objects are the boxes that the defended detector outputs.
        shows_ap: Whether there are enough images to show an AP.
        tags: ImageTags of the images, which make slices.
    """

    title: str
    images: Sequence[ObservedImage]
    label_map: LabelMap
    settings: EvaluationSettings
    defense: Defense | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    caveats: Sequence[str] = ()
    is_labeled: bool = True
    shows_ap: bool = True
    tags: ImageTags = NO_TAGS

    @classmethod
    def from_run(
        cls, run: Run, defense: Defense, settings: EvaluationSettings | None = None, tags: ImageTags = NO_TAGS
    ) -> ReportSource:
        """Read a run under a defense that is bound to it, by default at the operating point of the defense."""
        observed = run.manifest.observation_settings
        settings = settings or EvaluationSettings(
            rule=defense.rule, threshold_schedule=defense.resolved_schedule, base_floor=observed.base_floor
        )
        name = run.folder.resolve().name
        run.require_scores(lowest_masked=settings.min_mask_score)
        return cls(
            f"objectseeker report: {name}",
            run.images(),
            run.label_map,
            settings,
            defense=defense,
            provenance=provenance_of(run),
            is_labeled=run.has_labels,
            tags=tags,
        )

    def matched_to(self, other: ReportSource) -> ReportSource:
        """Restrict this baseline to the images of `other`, in their order; objects that differ are an error."""
        kind, baseline_kind = type(other.settings.rule), type(self.settings.rule)
        if kind is not baseline_kind:
            raise ObjectSeekerError(
                f"the baseline's rule is a {baseline_kind.__name__}, the report's a {kind.__name__}: they certify "
                "different things, compare rules of one kind"
            )
        if other.label_map.dataset_names != self.label_map.dataset_names:
            raise ObjectSeekerError("the baseline has other classes of objects: observe both on the same dataset")
        by_id = {image.id: image for image in self.images}
        return replace(self, images=[_same_objects(image, by_id) for image in other.images])


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The baseline of a report: a run of the same images, and its defense.

    Without a defense the rule of the report is applied to the boxes of the baseline's run.
    """

    run: Run
    defense: Defense | None = None
    name: str | None = None  # default: the run's

    def source(self, settings: EvaluationSettings) -> ReportSource:
        """Read the baseline at the operating point and threat of the report."""
        defense = self.run.defense(settings.rule, settings.threshold_schedule) if self.defense is None else self.defense
        defense = self.run.bind_defense(defense)
        settings = replace(settings, rule=defense.rule, threshold_schedule=defense.resolved_schedule)
        name = self.name or self.run.folder.resolve().name
        return replace(ReportSource.from_run(self.run, defense, settings), title=name)


def _same_objects(image: ObservedImage, by_id: Mapping[str, ObservedImage]) -> ObservedImage:
    """Find the baseline's observation of an image; raise an error if its size or objects differ."""
    previous = by_id.get(image.id)
    if previous is None:
        raise ObjectSeekerError(f"the baseline has no image {image.id}: observe both on the same images")
    sizes = {(one.observation.width, one.observation.height) for one in (previous, image)}
    if (
        len(sizes) > 1
        or not np.array_equal(previous.ground_truth.xyxy, image.ground_truth.xyxy)
        or not np.array_equal(previous.ground_truth.label, image.ground_truth.label)
    ):
        raise ObjectSeekerError(
            f"the baseline has another image {image.id}, or other objects in it: observe both on the same dataset"
        )
    return replace(previous, ignore=image.ignore, crowd=image.crowd)


@dataclass(frozen=True, slots=True, eq=False)
class ReportData:
    """The data of a report: the images with their objects, the rule, its metrics, and caveats."""

    image_set: ImageSet
    rule: PruningRule
    metrics: dict[str, Any]
    caveats: list[str]


def report_data(source: ReportSource) -> ReportData:
    """Evaluate the defended detector at the operating point of the settings, as `evaluate` does."""
    if not source.is_labeled:
        return _unlabeled_data(source)
    image_set = ImageSet.from_images(source.images, source.label_map)
    undefended, coco = undefended_curve(image_set), coco_ap50(image_set)
    defended = measured(image_set, source.settings)
    if defended.rule is None:
        raise ObjectSeekerError(defended.caveat() or "there is no such operating point")
    recall = np.asarray(defended.recall_per_class)
    has_objects = image_set.objects_per_class > 0
    metrics = {
        "labeled": True,
        "images": image_set.image_count,
        "objects": len(image_set.counted),
        "ignored": int(image_set.ignore.sum()),
        "undefended": {"ap50": undefended.mean_ap50, "ap50_coco": float(coco[has_objects].mean())},
        "defended": {"ap50": defended.ap50, "clean_recall": defended.clean_recall},
        "per_class": [
            {
                "label": c,
                "undefended_ap50": float(undefended.ap50[c]),
                "ap50": float(defended.curve.ap50[c]),
                "clean_recall": float(recall[c]),
            }
            for c in np.flatnonzero(has_objects).tolist()
        ],
    }
    return ReportData(image_set, defended.rule, metrics, [])


def _unlabeled_data(source: ReportSource) -> ReportData:
    """Use the output boxes of the defended detector as objects. Shares of them are not recalls; no AP."""
    rule = source.settings.fixed_rule
    if rule is None:
        point = describe_point(source.settings)
        raise ObjectSeekerError(
            f"a point at {point} cannot be found without annotations: give a base threshold instead"
        )
    image_set = output_image_set(source, list(source.images), rule)
    images = image_set.images
    if not len(image_set.ground_truth):
        raise ObjectSeekerError(
            f"the defended detector outputs no box on any of the {len(images)} images, so there is nothing to certify: "
            f"its base_threshold is {rule.base_threshold:g}, lower it"
        )
    metrics = {
        "labeled": False,
        "images": len(images),
        "objects": len(image_set.ground_truth),
        "ignored": 0,
        "base_boxes": sum(len(image.observation.base.with_min_score(rule.base_threshold)) for image in images),
        "per_class": [{"label": c} for c in image_set.objects_per_class.nonzero()[0].tolist()],
    }
    caveat = (
        "These images have no annotations: the objects are the boxes that the defended detector outputs, and every "
        f"number is a share of these boxes. This is not recall: {ATTACKED_ALREADY}, and no certificate here covers "
        "those."
    )
    return ReportData(image_set, rule, metrics, [caveat])


def _detector_names(label_map: LabelMap, images: Sequence[ObservedImage]) -> tuple[str, ...]:
    """Return the detector's class names; without names, any label is its own name."""
    boxes = [one for image in images for one in (image.observation.base, image.observation.all_masked)]
    used = max((int(np.max(one.label, initial=-1)) for one in boxes), default=-1) + 1
    names = label_map.detector_names
    return tuple(name_of_label(names, label) for label in range(max(len(names), used)))


def output_image_set(source: ReportSource, images: Sequence[ObservedImage], rule: PruningRule) -> ImageSet:
    """Build the image set whose objects are the output boxes, in the detector's labels."""
    return ImageSet.from_part(
        [with_outputs_as_objects(image, rule) for image in images],
        LabelMap.from_names(_detector_names(source.label_map, images)),
    )


def found_columns(data: ReportData, outputs: Sequence[Detections], *, is_labeled: bool) -> dict[str, Column]:
    """Compute `found` (bits) and `score` of every object by the matching of clean recall.

    `outputs` are the boxes that the defended detector outputs, per image. Without annotations the objects are these
    boxes: all are found, and the base boxes also without a defense.
    """
    image_set = data.image_set
    if not is_labeled:
        return output_columns(image_set, data.rule)
    base = [image.observation.base.with_min_score(data.rule.base_threshold) for image in image_set.images]
    undefended, undefended_score = _match(image_set, base)
    defended, score = _match(image_set, outputs)
    score = np.where(defended, score, undefended_score)
    return {
        "found": (UNDEFENDED * undefended + DEFENDED * defended).astype(np.uint8),
        "score": score.astype(np.float32),
    }


def output_columns(image_set: ImageSet, rule: PruningRule) -> dict[str, Column]:
    """Compute `found` (bits) and `score` of every output box: base boxes come first in each image."""
    base = [len(image.observation.base.with_min_score(rule.base_threshold)) for image in image_set.images]
    undefended = np.concatenate(
        [np.arange(len(image.ground_truth)) < kept for image, kept in zip(image_set.images, base, strict=True)]
    )
    return {
        "found": (DEFENDED + UNDEFENDED * undefended).astype(np.uint8),
        "score": image_set.ground_truth.detections.score.astype(np.float32),
    }


def _match(image_set: ImageSet, boxes: Sequence[Detections]) -> tuple[Bools, Floats]:
    """Return which objects some box matches, and the highest score of such a box; 0 for the others."""
    table = BoxTable.concatenate(boxes).map_to_dataset(image_set.label_map)
    matched = greedy_match(table.detections.score, candidate_pairs(table, image_set), image_set)
    score = np.full(len(image_set.ground_truth), -1.0)
    np.maximum.at(score, matched[matched >= 0], table.detections.score[matched >= 0])
    return score >= 0, np.maximum(score, 0.0)


def cover_images(image_set: ImageSet, rule: PruningRule, threat: ThreatModel) -> list[int]:
    """Rank images to open with: those whose objects differ most in where they are certified.

    Objects are of three kinds: certified over, certified only for patches away from the object, and not certified.
    More kinds rank first; among equals an image with about four objects, then one with a large object.
    """
    per_image = np.bincount(image_set.ground_truth.image[image_set.counted], minlength=image_set.image_count)
    chosen = np.flatnonzero((per_image > 0) & (per_image <= MAX_COVER_OBJECTS))
    if not len(chosen):
        return list(range(min(image_set.image_count, MAX_COVERS)))
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, MAX_COVER_CANDIDATES).astype(int))]
    part = ImageSet.from_part([image_set.images[i] for i in chosen.tolist()], image_set.label_map)
    patches = [Patch(threat.area, threat.aspect, location) for location in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(
        build_proof_table(part, rule, threat.bound),
        rule,
        patches,
        certification_threshold=threat.certification_threshold,
    )
    proven = dict(zip(PATCH_LOCATIONS, certified & ~vacuous, strict=True))
    kind = np.where(proven["over"], 2, np.where(proven["far"] | proven["close"], 1, 0))

    def keys() -> Iterator[tuple[int, int, float, int]]:
        owner = part.ground_truth.image[part.counted]
        box = part.ground_truth.detections.xyxy[part.counted]
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        for i in range(part.image_count):
            objects = owner == i
            share = float(area[objects].max()) / float(part.width[i] * part.height[i])
            yield -len(set(kind[objects].tolist())), abs(int(objects.sum()) - 4), -min(share, 0.5), i

    return [int(chosen[i]) for *_, i in sorted(keys())[:MAX_COVERS]]


def slider_stops(settings: EvaluationSettings) -> dict[str, Any]:
    """Return the stops of the page's sliders, those of the settings included, and the initial ones."""
    threat = settings.threat
    threshold = settings.rule.resolve_threshold(threat.certification_threshold)
    return {
        "areas": sorted({*AREAS, threat.area}),
        "aspects": sorted({*ASPECTS, threat.aspect}),
        "thresholds": sorted({*THRESHOLDS, threshold}),
        "locations": PATCH_LOCATIONS,
        "start": {"area": threat.area, "aspect": threat.aspect, "threshold": threshold, "location": "over"},
        "size_bins": SIZE_BINS,
        "min_slice_objects": MIN_SLICE_OBJECTS,
    }


def defense_settings(source: ReportSource, rule: PruningRule) -> dict[str, str]:
    """Return every setting of the defense with all its digits, so that it can be typed again."""
    settings, defense = source.settings, source.defense
    values: dict[str, Any] = {}
    if defense is not None:
        deployed = replace(defense, rule=rule)
        values["defense"] = f"sha256:{deployed.sha256}"
        if deployed != defense:
            values["on the curve of"] = f"sha256:{defense.sha256}"
        fingerprint = defense.fingerprint or "not recorded"
        values |= {"detector": redact_path(defense.detector_name), "detector fingerprint": redact_path(fingerprint)}
        values |= defense.options | {"masks": str(defense.masks), "fill": defense.fill}
    values |= {"rule": rule.describe()} | rule.settings()
    values |= {"bound": settings.threat.bound, "operating point": f"at {describe_point(settings)}"}
    return {key: value if isinstance(value, str) else repr(value) for key, value in values.items() if value is not None}


def provenance_of(run: Run) -> dict[str, str]:
    """Describe where a run comes from, without folders or credentials."""
    manifest, observed = run.manifest, run.manifest.observation_settings
    return {
        "run": run.folder.resolve().name,
        "run fingerprint": f"sha256:{run.fingerprint}",
        "dataset": redact_path(manifest.dataset),
        "dataset fingerprint": manifest.dataset_fingerprint,
        "images": f"{len(run.indices)} of {len(manifest.images)}",
        "lowest scores stored": f"{observed.base_floor!r} (unmasked), {observed.mask_floor!r} (masked)",
        "unmatched classes": ", ".join(manifest.unmatched_classes) or "none",
        "software": ", ".join(f"{name} {version}" for name, version in manifest.software.items()),
    }


def rule_constants(rule: PruningRule) -> dict[str, Any]:
    """Return what the page's verdicts compare with, and what its wording depends on."""
    return {
        "margin": MARGIN,
        "needed": 1 + MARGIN,
        "evidence": rule.combines_views,
        "by_iou": rule.overlap == "iou",
        "classwise": rule.classwise,
        "version": __version__,
    }


def tag_columns(tags: ImageTags, images: int) -> list[dict[str, Any]]:
    """Return, per tag, its values and each image's (-1: none); tags without values are omitted."""
    columns = []
    for name, values in tags.columns.items():
        if len(values) != images:
            raise ObjectSeekerError(
                f"tags need one value per image: {name} has {len(values)} values for {images} images"
            )
        known = sorted(set(values) - {""})
        index = {value: at for at, value in enumerate(known)}
        if known:
            columns.append({"name": name, "values": known, "of_image": [index.get(value, -1) for value in values]})
    return columns


def mask_sets(images: Sequence[ObservedImage], defense: Defense | None) -> tuple[list[Masks], list[int]]:
    """Return the mask sets in use, one per image size, and which of them each image has."""
    used: dict[Masks, int] = {}
    index = []
    for image in images:
        masks = image.observation.masks
        number = None if image.frame is None else image.frame.number
        if defense is not None and masks != recipe_for_frame(defense.masks, number).masks(masks.width, masks.height):
            raise ObjectSeekerError(
                f"image {image.id} was observed under other masks than the defense's {defense.masks}: observe it again"
            )
        index.append(used.setdefault(masks, len(used)))
    return list(used), index


def mask_dicts(masks: Sequence[Masks]) -> list[dict[str, Any]]:
    """Return mask sets as JSON."""
    return [
        {
            "width": one.width,
            "height": one.height,
            "rectangle": one.rectangle.tolist(),
            "is_band": one.is_band.tolist(),
        }
        for one in masks
    ]
