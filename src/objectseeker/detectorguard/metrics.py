"""The metrics of DetectorGuard as of ObjectSeeker: AP, false alerts and certified recall.

The output at a base threshold is the base boxes of at least that score, or an alert instead of them. On a clean image
an alert is false: its boxes are lost and its objects are missed (as published). The higher the base threshold, the
fewer boxes explain objectness, so an image that alerts at one base threshold alerts at every higher one.

All boxes of the deployed guard explain, including those of classes that the dataset lacks. Metrics count the output in
the dataset's labels. Certificates are class-agnostic, so an object needs no detector label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.threats import Patch
from objectseeker.detectorguard.certification import certify_guarded, certify_published
from objectseeker.detectorguard.objectness import (
    Features,
    Grid,
    explaining_score,
    has_cluster,
    max_votes,
    required_votes,
)
from objectseeker.detectors.network.preprocess import Size
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.average_precision import (
    Curve,
    Overlaps,
    candidate_pairs,
    count_matches,
    greedy_match,
    undefended_curve,
)
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.settings import BASE_THRESHOLDS

MAX_FALSE_ALERT_RATE = 0.05  # that thresholds are tuned to
OBJECTNESS_THRESHOLDS: Ints = np.unique(np.rint(np.geomspace(16, 2048, 141)).astype(np.int64))  # candidates


@dataclass(frozen=True, slots=True, eq=False)
class ObjectnessMaps:
    """Everything that alerts depend on, for every image of a set, at all thresholds and base thresholds."""

    image_set: ImageSet
    grids: tuple[Grid, ...]
    votes: tuple[Ints, ...]  # of the class with most votes
    explained: tuple[Floats, ...]  # the highest score of a box that explains a position

    @classmethod
    def from_images(cls, image_set: ImageSet, features: Iterable[Features], network: Size) -> ObjectnessMaps:
        """Return the maps from the features of every image, in order, and the size of the network's input."""
        grids, votes, explained = [], [], []
        for image, of_image in zip(image_set.images, features, strict=True):
            grid = Grid.for_image((image.observation.width, image.observation.height), network)
            if of_image.shape[:2] != grid.shape:
                raise ObjectSeekerError(
                    f"image {image.id!r} has features of shape {of_image.shape}, not {grid.shape}: observe it again"
                )
            grids.append(grid)
            votes.append(max_votes(of_image))
            explained.append(explaining_score(grid, image.observation.base))
        return cls(image_set, tuple(grids), tuple(votes), tuple(explained))

    def subset(self, index: Ints) -> ObjectnessMaps:
        chosen = index.tolist()
        return ObjectnessMaps(
            self.image_set.subset(index),
            tuple(self.grids[i] for i in chosen),
            tuple(self.votes[i] for i in chosen),
            tuple(self.explained[i] for i in chosen),
        )

    def first_alert(self, thresholds: Ints) -> Ints:
        """Return the first of `BASE_THRESHOLDS` at which each image alerts: (thresholds, images).

        It is len(BASE_THRESHOLDS) if an image never alerts. Bisection finds it, since alerts never vanish again.
        """
        first = np.empty((len(thresholds), len(self.grids)), np.int64)
        rows = np.arange(len(thresholds))
        for n, (votes, explained) in enumerate(zip(self.votes, self.explained, strict=True)):
            says_object = votes > thresholds[:, None, None] * required_votes(1)
            low, high = np.zeros_like(rows), np.full_like(rows, len(BASE_THRESHOLDS))  # the answer is in [low, high]
            while (low < high).any():
                middle = (low + high) // 2
                score = BASE_THRESHOLDS[np.minimum(middle, len(BASE_THRESHOLDS) - 1)]
                alerts = has_cluster(says_object & (explained < score[:, None, None]))
                low, high = np.where(alerts | (low == high), low, middle + 1), np.where(alerts, middle, high)
            first[:, n] = low
        return first


@dataclass(frozen=True, slots=True, eq=False)
class GuardedDetector:
    """DetectorGuard at one threshold."""

    maps: ObjectnessMaps
    threshold: int
    first_alert: Ints  # per image: the first row of the curve at which it alerts
    curve: Curve

    @classmethod
    def measure(cls, maps: ObjectnessMaps, threshold: int, first_alert: Ints | None = None) -> GuardedDetector:
        first = maps.first_alert(np.array([threshold]))[0] if first_alert is None else first_alert
        return cls(maps, threshold, first, guarded_curve(maps.image_set, first))

    def false_alerts(self, row: int) -> int:
        """Return the number of clean images that alert at one row of the curve."""
        return int((self.first_alert <= row).sum())

    def detected(self, row: int) -> Bools:
        """Return which counted objects are detected in the output at one row of the curve."""
        image_set = self.maps.image_set
        pairs = candidate_pairs(image_set.base, image_set)
        return np.isin(image_set.counted, _matched(image_set, pairs, *_output(image_set, self.first_alert, row)))


def guarded_curve(image_set: ImageSet, first_alert: Ints) -> Curve:
    """Return true and false positives at every base threshold, without the boxes of images that alert."""
    pairs = candidate_pairs(image_set.base, image_set)
    counts = []
    for row in range(len(BASE_THRESHOLDS)):
        score, kept = _output(image_set, first_alert, row)
        label = image_set.base.detections.label[kept]
        counts.append(count_matches(label, _matched(image_set, pairs, score, kept), image_set))
    true_positives, false_positives = map(np.array, zip(*counts, strict=True))
    return Curve(BASE_THRESHOLDS, true_positives, false_positives, image_set.objects_per_class, len(image_set.images))


def _output(image_set: ImageSet, first_alert: Ints, row: int) -> tuple[Floats, Bools]:
    """Return the scores of the output boxes, and which of all base boxes they are."""
    base = image_set.base
    kept = (base.detections.score >= BASE_THRESHOLDS[row]) & (first_alert > row)[base.image]
    return base.detections.score[kept], kept


def _matched(image_set: ImageSet, pairs: Overlaps, score: Floats, kept: Bools) -> Ints:
    """Return the object matched by each kept box, or -1."""
    rows = kept[pairs.box]
    number = np.cumsum(kept) - 1
    return greedy_match(score, Overlaps(number[pairs.box[rows]], pairs.object[rows], pairs.overlap[rows]), image_set)


def tune_thresholds(
    maps: ObjectnessMaps,
    clean_recall: float,
    *,
    max_ap_losses: Sequence[float],
    max_false_alert_rate: float = MAX_FALSE_ALERT_RATE,
    thresholds: Ints = OBJECTNESS_THRESHOLDS,
) -> list[int | None]:
    """Return, per allowed AP loss in points, the lowest threshold with few enough false alerts, or None.

    Where the clean recall is reached, the false alert rate is at most `max_false_alert_rate`. Lower thresholds certify
    more. The AP is over all base thresholds: at high ones fewer boxes explain, more images alert, and a low threshold
    costs more AP than the false alert rate at one base threshold shows.
    """
    undefended = undefended_curve(maps.image_set).mean_ap50
    chosen: list[int | None] = [None] * len(max_ap_losses)
    for first, threshold in zip(maps.first_alert(thresholds), map(int, thresholds), strict=True):
        guarded = GuardedDetector.measure(maps, threshold, first)
        row = guarded.curve.row_at_recall(clean_recall)
        if row is None or guarded.false_alerts(row) > max_false_alert_rate * len(maps.grids):
            continue
        loss = undefended - guarded.curve.mean_ap50
        chosen = [
            threshold if old is None and loss <= limit else old
            for old, limit in zip(chosen, max_ap_losses, strict=True)
        ]
        if None not in chosen:
            break
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class GuardCertificateTable:
    """Verdicts, (PATCH_LOCATIONS, counted objects) each; `published` under the published threat model."""

    certified: Bools
    vacuous: Bools
    published: Bools


def certify_images(
    maps: ObjectnessMaps, features: Iterable[Features], threshold: int, patches: Sequence[Patch]
) -> GuardCertificateTable:
    """Certify every counted object of an image set; the verdicts do not depend on the base threshold."""
    parts = []
    for image, grid, of_image in zip(maps.image_set.images, maps.grids, features, strict=True):
        objects = image.ground_truth[~image.ignore]
        ours = certify_guarded(grid, of_image, objects, patches, threshold=threshold)
        published = certify_published(grid, of_image, objects, patches, threshold=threshold)
        parts.append((ours.certified, ours.vacuous, published))
    certified, vacuous, published = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return GuardCertificateTable(certified, vacuous, published)
