"""The contribution of every image and every object of a run to the metrics.

The images of a run are read once. What stays is a few whole numbers per image and per object: the `Tally`. Every metric
is a function of it that takes weights over images (`objectseeker.metrics.metric`), so a run, a slice of it, and every
bootstrap sample of either are measured by the same formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

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
    Curve,
    CurveRows,
    ScoredBoxes,
    candidate_pairs,
    false_positives,
    greedy_match,
    tally_curve,
)
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import NO_IMAGES, BoxTable, CountedRows, ImageSet, OnImage, map_images
from objectseeker.metrics.output_boxes import BoxRows, tally_boxes
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings
from objectseeker.metrics.track_certificates import (
    SequenceTally,
    TrackCriteria,
    merge_sequences,
    tally_sequences,
)

MAX_TALLIED_IMAGES = 100_000  # of more images only sums are kept: some 100 MB; there are then no confidence intervals
Detector = Literal["undefended", "defended"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows(CountedRows):
    """Counts per image.

    Attributes:
        ignored: Objects that do not count.
        flagged: Images to whose base boxes masks add a box.
        false_positives: Boxes of the defended detector that match no object.
        spurious: Boxes that masks add and that overlap no object of their class, ignored ones included, with an IoU
            of 0.5 or more.
        guaranteed: Per threat the objects that are guaranteed to remain under one patch anywhere.
        guaranteed_boxes: The boxes that cover them at least.
    """

    ignored: Ints
    flagged: Ints
    false_positives: Ints
    spurious: Ints
    guaranteed: Mapping[ThreatModel, Ints]
    guaranteed_boxes: Mapping[ThreatModel, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectRows(CountedRows):
    """The objects that count.

    Attributes:
        number: Within the image.
        label: Class of the dataset.
        box: Corners.
        size: Visible share of the image.
        found: Whether the defended detector detects it on the clean image.
        certified: Per threat (objects, locations).
        vacuous: Likewise: certified only because no position is allowed.
    """

    number: Ints
    label: Ints
    box: Floats
    size: Floats
    found: Bools
    certified: Mapping[ThreatModel, Bools]
    vacuous: Mapping[ThreatModel, Bools]

    def certified_at(self, threat: ThreatModel, location: PatchLocation) -> Bools:
        return np.asarray(self.certified[threat][:, ALL_LOCATIONS.index(location)])

    def vacuous_at(self, threat: ThreatModel, location: PatchLocation) -> Bools:
        return np.asarray(self.vacuous[threat][:, ALL_LOCATIONS.index(location)])

    def vacuous_count(self, threat: ThreatModel, location: PatchLocation) -> int:
        """Count the objects that are certified only because no position is allowed."""
        return int(self.count[self.vacuous_at(threat, location)].sum())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tally:
    """The counts of a run under one rule.

    Attributes:
        names: The classes of the dataset.
        ids: The images.
        images: What is counted per image.
        objects: What is counted per object.
        boxes: The output boxes, where fabrication certificates were requested.
        base_thresholds: Of the curves: the protocol's, then that of a fixed rule.
        undefended: True and false positives at every base threshold, where curves were requested.
        defended: Likewise.
        scored: The undefended detector's boxes, for COCO's AP50; of whole runs, where curves were requested.
        sequences: The tallies of sequences, by name; of whole runs, where tracks were requested.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    images: ImageRows
    objects: ObjectRows
    boxes: BoxRows | None = None
    base_thresholds: Floats = field(default_factory=lambda: BASE_THRESHOLDS)
    undefended: CurveRows | None = None
    defended: CurveRows | None = None
    scored: ScoredBoxes | None = None
    sequences: Mapping[str, SequenceTally] = field(default_factory=dict)

    @classmethod
    def concatenate(cls, parts: Sequence[Tally]) -> Tally:
        """Join the tallies of consecutive images."""
        starts = np.cumsum([0, *(len(part.ids) for part in parts[:-1])]).tolist()
        tables = [part._tables() for part in parts]
        scored = [part.scored for part in parts if part.scored is not None]
        return replace(
            parts[0],
            ids=tuple(key for part in parts for key in part.ids),
            scored=ScoredBoxes.join(scored) if scored else None,
            sequences=merge_sequences(part.sequences for part in parts),
            **{name: rows.concatenate([one[name] for one in tables], starts) for name, rows in tables[0].items()},
        )

    def summed(self) -> Tally:
        """Return the same counts as if all images were one: metrics stay, their confidence intervals are lost."""
        tables: dict[str, Any] = {name: rows.summed(KEYS, COUNTS) for name, rows in self._tables().items()}
        if self.boxes is not None:
            unknown = np.full(len(tables["boxes"].image), np.nan)  # AP needs every box
            tables["boxes"] = replace(tables["boxes"], score=unknown, ranking_score=unknown)
        return replace(self, ids=("all images",), **tables)

    def of_images(self, chosen: Ints) -> Tally:
        """Return the tally of some images, in this order, each at most once."""
        place = np.full(len(self.ids), -1)
        place[chosen] = np.arange(len(chosen))
        tables: dict[str, Any] = {name: rows.of_images(place) for name, rows in self._tables().items()}
        tables["images"] = replace(self.images.select(chosen), image=np.arange(len(chosen)))
        return replace(self, ids=tuple(self.ids[n] for n in chosen.tolist()), scored=None, sequences={}, **tables)

    def of_images_with_objects(self) -> Tally:
        return self.of_images(np.unique(self.objects.image))

    def of_classes(self, labels: Sequence[int]) -> Tally:
        """Return the tally of the objects and boxes of some classes; what is counted per image stays."""
        tables: dict[str, Any] = self._tables()
        del tables["images"]
        return replace(self, **{name: rows.select(np.isin(rows.label, labels)) for name, rows in tables.items()})

    def of_sizes(self, above: float, up_to: float) -> Tally:
        """Return the tally of the objects of some sizes, as shares of the image, without curves."""
        chosen = (self.objects.size > above) & (self.objects.size <= up_to)
        return replace(self, objects=self.objects.select(chosen), undefended=None, defended=None)

    def has_objects_of(self, other: Tally) -> bool:
        """Return whether another tally holds the same images, in the same order, with the same objects."""
        return (self.ids, self.names) == (other.ids, other.names) and all(
            np.array_equal(getattr(self.objects, name), getattr(other.objects, name))
            for name in ("image", "label", "box")
        )

    def objects_per_image(self) -> Floats:
        return self.objects.per_image(len(self.ids))

    def objects_per_class(self, holds: Bools | None = None) -> Ints:
        """Count the objects, or those of which something holds: (images, classes of the dataset)."""
        rows, shape = self.objects if holds is None else self.objects.select(holds), (len(self.ids), len(self.names))
        cells = np.bincount(rows.image * shape[1] + rows.label, rows.count, shape[0] * shape[1])
        return cells.astype(np.int64).reshape(shape)

    def curve(self, detector: Detector) -> Curve:
        """Return the curve of all images."""
        objects = self.objects_per_class().sum(axis=0)
        return self._changes(detector).total(self.base_thresholds, objects, int(self.images.count.sum()))

    def curves(self, detector: Detector, weights: Floats, row: int | None = None) -> Iterator[Curve]:
        """Yield the curves of samples of the images, by the protocol, or at one row of the base thresholds."""
        rows, chosen = self._changes(detector), slice(len(BASE_THRESHOLDS))
        if row is not None:
            rows, chosen = rows.at_row(row), slice(row, row + 1)
        else:
            rows = rows.select(rows.row < chosen.stop)
        return rows.sampled(self.base_thresholds[chosen], self.objects_per_class(), self.images.count, weights)

    def _changes(self, detector: Detector) -> CurveRows:
        changes = self.defended if detector == "defended" else self.undefended
        assert changes is not None  # curves were requested
        return changes

    def _tables(self) -> dict[str, Any]:
        names = ("images", "objects", "boxes", "undefended", "defended")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


KEYS = ("label", "row", "found", "outcome", "certified", "vacuous")  # what sums keep apart,
COUNTS = (  # and what they add up
    *("count", "ignored", "flagged", "spurious", "true_positives", "false_positives"),
    *("guaranteed", "guaranteed_boxes"),
)


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


def tally_images(
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    request: TallyRequest,
    *,
    max_images: int | None = MAX_TALLIED_IMAGES,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Tally:
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
    work = partial(tally_part, request=request, per_image=per_image)
    parts: list[Tally] = []
    for part in map_images(work, images, label_map, processes=processes, on_image=on_image):
        parts.append(part)
        if not per_image:
            parts = [Tally.concatenate(parts).summed()]
    return Tally.concatenate(parts)


def tally_part(image_set: ImageSet, request: TallyRequest, *, per_image: bool = True) -> Tally:
    """Count one set of images that are in memory."""
    settings, rule, images = request.settings, request.rule, len(image_set.images)
    defended = DefendedImageSet.from_settings(image_set, settings)
    curves: dict[str, Any] = {}
    if request.curves:
        rules = [settings.on_curve(threshold) for threshold in BASE_THRESHOLDS.tolist()]
        # A rule that is not a point of the curve comes after it: it does not affect the AP.
        rules += [] if settings.fixed_rule is None else [settings.fixed_rule]
        thresholds = np.array([one.base_threshold for one in rules])
        curves = {
            "base_thresholds": thresholds,
            "undefended": tally_curve(image_set, thresholds, [NO_BOXES] * len(rules)),
            "defended": tally_curve(image_set, thresholds, defended.recovered_in_dataset(rules)),
            "scored": ScoredBoxes.of(image_set),
        }
    flagged, wrong, spurious = np.zeros((3, images), np.int64)
    found = np.zeros(len(image_set.ground_truth), np.bool_)
    verdicts: dict[ThreatModel, tuple[Bools, Bools]] = {}
    guaranteed: dict[ThreatModel, Ints] = {}
    guaranteed_boxes: dict[ThreatModel, Ints] = {}
    output, sequences = None, {}
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
        if request.tracks is not None:
            maskings = request.tracks.maskings()
            sequences = tally_sequences(
                image_set.images,
                image_set.label_map,
                rule,
                settings.threat,
                lambda image: [masking.observation(image) for masking in maskings],
                fabrication=bool(request.fabrication_threats),
            )
    objects, counted = image_set.ground_truth, image_set.counted
    image, box = objects.image[counted], objects.detections.xyxy[counted]
    width, height = image_set.width[image], image_set.height[image]
    tally = Tally(
        names=image_set.names,
        ids=tuple(one.id for one in image_set.images),
        images=ImageRows(
            image=np.arange(images),
            count=np.ones(images, np.int64),
            ignored=np.bincount(objects.image[image_set.ignore], minlength=images),
            flagged=flagged,
            false_positives=wrong,
            spurious=spurious,
            guaranteed=guaranteed,
            guaranteed_boxes=guaranteed_boxes,
        ),
        objects=ObjectRows(
            image=image,
            count=np.ones(len(counted), np.int64),
            number=counted - np.searchsorted(objects.image, np.arange(images))[image],
            label=objects.detections.label[counted],
            box=box,
            size=visible_area(box, width, height) / (width * height),
            found=found[counted],
            certified={threat: certified.T for threat, (certified, _) in verdicts.items()},
            vacuous={threat: vacuous.T for threat, (_, vacuous) in verdicts.items()},
        ),
        boxes=output,
        sequences=sequences,
        **curves,
    )
    return tally if per_image else tally.summed()


def count_spurious(recovered: BoxTable, image_set: ImageSet) -> Ints:
    """Count per image the recovered boxes that have an IoU below 0.5 with every object of their class.

    Ignored objects are objects here, and a box inside a crowd overlaps it.
    """
    alone = np.ones(len(recovered), np.bool_)
    alone[candidate_pairs(recovered, image_set).box] = False
    return np.bincount(recovered.image[alone], minlength=len(image_set.images))
