"""The contribution of every image and every object of a run to the metrics.

The images of a run are read once. What stays is a few whole numbers per image and per object: the `Tally`. Every metric
is a function of it that takes weights over images (`objectseeker.metrics.metric`), so a run, a slice of it, and every
bootstrap sample of either are measured by the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import ALL_LOCATIONS, PatchLocation, ThreatModel
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import (
    NO_BOXES,
    CurveTally,
    ScoredBoxes,
    candidate_pairs,
    false_positives,
    greedy_match,
    tally_curve,
)
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import NO_IMAGES, BoxTable, ImageSet, OnImage, open_workers
from objectseeker.metrics.output_boxes import BoxTally, tally_boxes
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings
from objectseeker.metrics.track_certificates import (
    SequenceTally,
    TrackCriteria,
    merge_sequences,
    tally_sequences,
)

MAX_TALLIED_IMAGES = 100_000  # of more images only sums are kept: some 100 MB; there are then no confidence intervals


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """The counts of a run under one rule, image by image and object by object.

    Attributes:
        names: The classes of the dataset.
        ids: The images.
        images: Number of images of each row: 1, or all of them after `summed`.
        flagged: Images to whose base boxes masks add a box.
        false_positives: Boxes of the defended detector that match no object.
        spurious: Boxes that masks add and that overlap no object of their class, ignored ones included, with an IoU
            of 0.5 or more.
        image: Row of the image of each object that counts; the following arrays have one entry per object, too.
        objects: Number of objects of each entry: 1, unless summed.
        size: Visible share of the image.
        found: Whether the defended detector detects it on the clean image.
        certified: Per threat (locations, objects).
        guaranteed: Per threat and image the objects that are guaranteed to remain under one patch anywhere.
        guaranteed_boxes: The boxes that cover them at least.
        undefended: True and false positives at every base threshold, where curves were requested.
        boxes: The output boxes, where fabrication certificates were requested.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    images: Ints
    flagged: Ints
    false_positives: Ints
    spurious: Ints
    image: Ints
    objects: Ints
    number: Ints  # within the image
    label: Ints
    box: Floats
    size: Floats
    found: Bools
    certified: Mapping[ThreatModel, Bools]
    vacuous: Mapping[ThreatModel, Bools]
    guaranteed: Mapping[ThreatModel, Ints]
    guaranteed_boxes: Mapping[ThreatModel, Ints]
    undefended: CurveTally | None
    defended: CurveTally | None
    boxes: BoxTally | None = None

    @classmethod
    def concatenate(cls, parts: Sequence[Tally]) -> Tally:
        """Join the tallies of consecutive images."""
        starts = np.cumsum([0, *(len(part.images) for part in parts)])
        first = parts[0]

        def joined(name: str, axis: int = 0) -> dict[ThreatModel, Any]:
            return {
                one: np.concatenate([getattr(part, name)[one] for part in parts], axis) for one in getattr(first, name)
            }

        arrays: dict[str, Any] = dict.fromkeys(_CURVES)
        arrays |= {
            name: CurveTally.concatenate([getattr(part, name) for part in parts])
            for name in _CURVES
            if getattr(first, name) is not None
        }
        for name in (*_OF_IMAGES, *_OF_OBJECTS):
            arrays[name] = np.concatenate([getattr(part, name) for part in parts])
        return cls(
            names=first.names,
            ids=tuple(key for part in parts for key in part.ids),
            image=np.concatenate([part.image + start for part, start in zip(parts, starts, strict=False)]),
            certified=joined("certified", 1),
            vacuous=joined("vacuous", 1),
            guaranteed=joined("guaranteed"),
            guaranteed_boxes=joined("guaranteed_boxes"),
            boxes=None
            if first.boxes is None
            else BoxTally.concatenate([part.boxes for part in parts if part.boxes is not None], starts[:-1].tolist()),
            **arrays,
        )

    def summed(self) -> Tally:
        """Return the same counts as if all images were one: metrics stay, their confidence intervals are lost."""
        verdicts = [self.found[None], *self.certified.values(), *self.vacuous.values()]
        key = np.concatenate([self.label[None], *verdicts])
        kinds, first, kind = np.unique(key, axis=1, return_index=True, return_inverse=True)
        part = self._select_objects(first)
        return replace(
            part,
            ids=("all images",),
            objects=np.bincount(kind.ravel(), weights=self.objects, minlength=kinds.shape[1]).astype(np.int64),
            image=np.zeros(len(first), np.int64),
            boxes=None if self.boxes is None else self.boxes.summed(),
            **self._changed(lambda counts: counts.sum(keepdims=True), CurveTally.summed),
        )

    def of_images(self, chosen: Ints) -> Tally:
        """Return the tally of some images, in this order, each at most once."""
        place = np.full(len(self.images), -1)
        place[chosen] = np.arange(len(chosen))
        part = self._select_objects(place[self.image] >= 0)
        return replace(
            part,
            ids=tuple(self.ids[n] for n in chosen.tolist()),
            image=place[part.image],
            boxes=None if self.boxes is None else self.boxes.of_images(place),
            **self._changed(lambda counts: counts[chosen], lambda curves: curves.of_images(chosen)),
        )

    def of_images_with_objects(self) -> Tally:
        return self.of_images(np.unique(self.image))

    def of_classes(self, labels: Sequence[int]) -> Tally:
        """Return the tally of the objects of some classes."""
        part = self._select_objects(np.isin(self.label, labels))
        boxes = None if self.boxes is None else self.boxes.select(np.isin(self.boxes.label, labels))
        changed = self._changed(lambda counts: counts, lambda curves: curves.of_classes(labels))
        return replace(part, boxes=boxes, **changed)

    def of_sizes(self, above: float, up_to: float) -> Tally:
        """Return the tally of the objects of some sizes, as shares of the image; curves stay those of all."""
        return self._select_objects((self.size > above) & (self.size <= up_to))

    def _changed(self, counts: Callable[[Ints], Ints], curves: Callable[[CurveTally], CurveTally]) -> dict[str, Any]:
        """Return what there is per image, changed: counts, and curves where there are any."""
        known = {name: getattr(self, name) for name in _CURVES}
        changed: dict[str, Any] = {name: None if one is None else curves(one) for name, one in known.items()}
        for name in _OF_THREATS:
            changed[name] = {threat: counts(of_images) for threat, of_images in getattr(self, name).items()}
        return {name: counts(getattr(self, name)) for name in _OF_IMAGES} | changed

    def _select_objects(self, kept: Bools | Ints) -> Tally:
        verdicts: dict[str, Any] = {
            name: {threat: holds[:, kept] for threat, holds in getattr(self, name).items()}
            for name in ("certified", "vacuous")
        }
        return replace(self, **{name: getattr(self, name)[kept] for name in ("image", *_OF_OBJECTS)}, **verdicts)

    def vacuous_count(self, threat: ThreatModel, location: PatchLocation) -> int:
        """Count the objects that are certified only because no position is allowed."""
        return int(self.objects[self.vacuous[threat][ALL_LOCATIONS.index(location)]].sum())


_OF_IMAGES = ("images", "flagged", "false_positives", "spurious")
_OF_THREATS = ("guaranteed", "guaranteed_boxes")
_OF_OBJECTS = ("objects", "number", "label", "box", "size", "found")
_CURVES = ("undefended", "defended")


class SampledTally:
    """The sums of a tally over samples of its images; the first axis of every result are the samples.

    Args:
        tally: The counts.
        weights: (samples, images), how often each image is in each sample.
    """

    def __init__(self, tally: Tally, weights: Floats) -> None:
        self.tally, self.weights = tally, weights

    @cached_property
    def images(self) -> Floats:
        return self._sum(self.tally.images)

    @cached_property
    def flagged(self) -> Floats:
        return self._sum(self.tally.flagged)

    @cached_property
    def false_positives(self) -> Floats:
        return self._sum(self.tally.false_positives)

    @cached_property
    def spurious(self) -> Floats:
        return self._sum(self.tally.spurious)

    @cached_property
    def objects(self) -> Floats:
        return self._sum(self._per_image())

    def certified(self, threat: ThreatModel, location: PatchLocation) -> Floats:
        return self._sum(self._per_image(self.tally.certified[threat][ALL_LOCATIONS.index(location)]))

    def guaranteed(self, threat: ThreatModel) -> Floats:
        return self._sum(self.tally.guaranteed[threat])

    def guaranteed_boxes(self, threat: ThreatModel) -> Floats:
        return self._sum(self.tally.guaranteed_boxes[threat])

    @cached_property
    def objects_per_class(self) -> Floats:
        return self._sum(self._per_image_and_class(np.ones_like(self.tally.found)))

    @cached_property
    def objects_of_all_classes(self) -> Floats:
        """Return the objects of every class of the dataset, also of those that do not occur."""
        shape = len(self.tally.images), len(self.tally.names)
        cell = self.tally.image * shape[1] + self.tally.label
        return self._sum(np.bincount(cell, self.tally.objects, shape[0] * shape[1]).reshape(shape))

    @cached_property
    def found_per_class(self) -> Floats:
        return self._sum(self._per_image_and_class(self.tally.found))

    def _sum(self, counts: Ints | Floats) -> Floats:
        return np.asarray(self.weights @ counts.astype(np.float64))

    def _per_image(self, holds: Bools | None = None) -> Floats:
        """Count the objects of each image, or those of which something holds."""
        image, objects = self.tally.image, self.tally.objects
        if holds is not None:
            image, objects = image[holds], objects[holds]
        return np.asarray(np.bincount(image, objects, len(self.tally.images)), np.float64)

    def _per_image_and_class(self, holds: Bools) -> Floats:
        """Return an array (images, occurring classes)."""
        occurring, label = np.unique(self.tally.label, return_inverse=True)
        shape = len(self.tally.images), len(occurring)
        cell = self.tally.image * shape[1] + label
        counts = np.bincount(cell[holds], self.tally.objects[holds], shape[0] * shape[1])
        return np.asarray(counts.reshape(shape), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyRequest:
    """The counts to make of every image.

    Attributes:
        settings: How thresholds follow the base threshold, for curves.
        rule: The rule whose certificates and detections are counted; None counts curves only.
        threats: Threats to certify against.
        joint_threats: Threats whose joint certificate is counted.
        fabrication_threats: Threats against which output boxes are certified not fabricated.
        curves: Whether to count true and false positives at every base threshold.
        tracks: What tracks require; None counts no sequences.
    """

    settings: EvaluationSettings
    rule: PruningRule | None = None
    threats: tuple[ThreatModel, ...] = ()
    joint_threats: tuple[ThreatModel, ...] = ()
    fabrication_threats: tuple[ThreatModel, ...] = ()
    curves: bool = False
    tracks: TrackCriteria | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RunTally:
    """The tally of a run, and what is not a sum over images: boxes sorted by score, and sequences.

    Attributes:
        tally: The counts.
        ignored_objects: Objects that do not count.
        scored: The undefended detector's boxes, for COCO's AP50, where curves were requested.
        sequences: The tallies of sequences, by name, where tracks were requested.
        per_image: Whether the tally has one row per image.
    """

    tally: Tally
    ignored_objects: int
    scored: ScoredBoxes | None
    sequences: Mapping[str, SequenceTally]
    per_image: bool


def tally_images(
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    request: TallyRequest,
    *,
    max_images: int | None = MAX_TALLIED_IMAGES,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> RunTally:
    """Count everything that metrics are made of; the images are read once.

    The images are not kept: a stored run may be larger than memory. Several processes share them, with the same
    result.

    Args:
        images: The observations, read anew whenever they are iterated over.
        label_map: Maps the detector's labels to those of the dataset.
        request: What to count.
        max_images: Of more images than this only the sums are kept; None keeps one row per image of any number.
        processes: How many processes share the images.
        on_image: Called once for every image that is done.

    Raises:
        ObjectSeekerError: There is no image.
    """
    if not len(images):
        raise ObjectSeekerError(NO_IMAGES)
    per_image = max_images is None or len(images) <= max_images
    parts: list[RunTally] = []
    with open_workers(images, label_map, processes=processes, on_image=on_image) as crew:
        for some in crew.each(_tally_parts, (request, per_image)):
            parts += some
            if not per_image and len(parts) > 1:
                parts = [_joined(parts, per_image=False)]
    return _joined(parts, per_image=per_image)


def _joined(parts: Sequence[RunTally], *, per_image: bool) -> RunTally:
    tally = Tally.concatenate([part.tally for part in parts])
    scored = [part.scored for part in parts if part.scored is not None]
    return RunTally(
        tally if per_image else tally.summed(),
        sum(part.ignored_objects for part in parts),
        ScoredBoxes.join(scored) if scored else None,
        merge_sequences(part.sequences for part in parts),
        per_image,
    )


def _tally_parts(image_sets: Iterable[ImageSet], argument: tuple[TallyRequest, bool]) -> list[RunTally]:
    request, per_image = argument
    parts = []
    for image_set in image_sets:
        tally = tally_part(image_set, request)
        scored = ScoredBoxes.of(image_set) if request.curves else None
        sequences = _sequences(image_set, request)
        tally = tally if per_image else tally.summed()
        parts.append(RunTally(tally, int(image_set.ignore.sum()), scored, sequences, per_image))
    return parts


def _sequences(image_set: ImageSet, request: TallyRequest) -> dict[str, SequenceTally]:
    if request.tracks is None or request.rule is None:
        return {}
    maskings = request.tracks.maskings()
    return tally_sequences(
        image_set.images,
        image_set.label_map,
        request.rule,
        request.settings.threat,
        lambda image: [masking.observation(image) for masking in maskings],
    )


def tally_part(image_set: ImageSet, request: TallyRequest) -> Tally:
    """Count one set of images that are in memory."""
    settings, rule, images = request.settings, request.rule, len(image_set.images)
    defended = DefendedImageSet.from_settings(image_set, settings)
    counted = image_set.counted
    image, box = image_set.ground_truth.image[counted], image_set.ground_truth.detections.xyxy[counted]
    width, height = image_set.width[image], image_set.height[image]
    first = np.searchsorted(image_set.ground_truth.image, np.arange(images))
    curves: list[CurveTally | None] = [None, None]
    if request.curves:
        rules = [settings.on_curve(threshold) for threshold in BASE_THRESHOLDS.tolist()]
        # A rule that is not a point of the curve comes after it: it does not affect the AP.
        rules += [] if settings.fixed_rule is None else [settings.fixed_rule]
        thresholds = np.array([one.base_threshold for one in rules])
        curves = [
            tally_curve(image_set, thresholds, [NO_BOXES] * len(rules)),
            tally_curve(image_set, thresholds, defended.recovered_in_dataset(rules)),
        ]
    flagged, wrong, spurious = np.zeros((3, images), np.int64)
    found = np.zeros(len(image_set.ground_truth), np.bool_)
    verdicts: dict[ThreatModel, tuple[Bools, Bools]] = {}
    guaranteed: dict[ThreatModel, Ints] = {}
    guaranteed_boxes: dict[ThreatModel, Ints] = {}
    output: BoxTally | None = None
    if rule is not None:
        (added,) = defended.recovered_boxes([rule])
        flagged[added.image] = 1
        base = image_set.base.select(image_set.base.detections.score >= rule.base_threshold)
        recovered = added.map_to_dataset(image_set.label_map)
        spurious = count_spurious(recovered, image_set)
        boxes = base.followed_by(recovered)
        taken = greedy_match(boxes.detections.score, candidate_pairs(boxes, image_set), image_set)
        found[taken[taken >= 0]] = True
        wrong = np.bincount(boxes.image[false_positives(taken)], minlength=images)
        if request.fabrication_threats:
            output = tally_boxes(image_set, rule, added, tuple(dict.fromkeys(request.fabrication_threats)))
        verdicts = {threat: defended.certified(rule, threat) for threat in dict.fromkeys(request.threats)}
        for threat in dict.fromkeys(request.joint_threats):
            jointly = defended.jointly_certified(rule, threat)
            guaranteed[threat] = np.array([one.count for one in jointly])
            guaranteed_boxes[threat] = np.array([one.boxes for one in jointly])
    return Tally(
        names=image_set.names,
        ids=tuple(one.id for one in image_set.images),
        images=np.ones(images, np.int64),
        flagged=flagged,
        false_positives=wrong,
        spurious=spurious,
        image=image,
        objects=np.ones(len(counted), np.int64),
        number=counted - first[image],
        label=image_set.ground_truth.detections.label[counted],
        box=box,
        size=visible_area(box, width, height) / (width * height),
        found=found[counted],
        certified={threat: certified for threat, (certified, _) in verdicts.items()},
        vacuous={threat: vacuous for threat, (_, vacuous) in verdicts.items()},
        guaranteed=guaranteed,
        guaranteed_boxes=guaranteed_boxes,
        undefended=curves[0],
        defended=curves[1],
        boxes=output,
    )


def count_spurious(recovered: BoxTable, image_set: ImageSet) -> Ints:
    """Count per image the recovered boxes that have an IoU below 0.5 with every object of their class.

    Ignored objects are objects here, and a box inside a crowd overlaps it.
    """
    alone = np.ones(len(recovered), np.bool_)
    alone[candidate_pairs(recovered, image_set).box] = False
    return np.bincount(recovered.image[alone], minlength=len(image_set.images))
