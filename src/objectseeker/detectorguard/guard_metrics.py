"""DetectorGuard measured as ObjectSeeker is: AP, false alerts and certified recall at one clean recall.

The output at a base_threshold are the base boxes of at least that score, or an alert instead of them. On a clean image
an
alert is false: its boxes are gone and its objects are missed (as published). The higher base_threshold, the fewer boxes
explain anything, so an image that alerts at one base_threshold alerts at every higher one.

Boxes explain as the deployed guard has them: all of them, those of classes that the dataset lacks included. What is
output counts in the dataset's labels. Certificates know no labels, so an object needs no detector label to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.threats import Patch
from objectseeker.detectorguard.objectness import Features, Grid, clustered, explaining_score, most_votes, votes_needed
from objectseeker.detectorguard.proof import certify_guarded
from objectseeker.detectorguard.published import certify_published
from objectseeker.detectors.network.preprocess import Size
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.curves import Curve, undefended_curve
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.matching import Overlaps, candidate_pairs, count_matches, greedy_match
from objectseeker.metrics.settings import BASE_THRESHOLDS

FALSE_ALERTS = 0.05  # the rate the threshold is tuned to
OBJECTNESS_THRESHOLDS: Ints = np.unique(np.rint(np.geomspace(16, 2048, 141)).astype(np.int64))  # that are tried


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """What alerts depend on, for every image of a scene: independent of threshold and base_threshold."""

    scene: ImageSet
    grids: tuple[Grid, ...]
    votes: tuple[Ints, ...]  # of the class with most votes
    explained: tuple[Floats, ...]  # the highest score of a box that explains a position

    @classmethod
    def of(cls, scene: ImageSet, features: Iterable[Features], network: Size) -> Maps:
        """`features` of every image of the scene, in order; `network`: width and height of the network's input."""
        grids, votes, explained = [], [], []
        for image, own in zip(scene.images, features, strict=True):
            grid = Grid.of((image.observation.width, image.observation.height), network)
            if own.shape[:2] != grid.shape:
                raise ObjectSeekerError(f"image {image.id!r} has features of shape {own.shape}, not {grid.shape}")
            grids.append(grid)
            votes.append(most_votes(own))
            explained.append(explaining_score(grid, image.observation.base))
        return cls(scene, tuple(grids), tuple(votes), tuple(explained))

    def subset(self, index: Ints) -> Maps:
        def pick(values: tuple[object, ...]) -> tuple:  # type: ignore[type-arg]
            return tuple(values[i] for i in index.tolist())

        return Maps(self.scene.subset(index), pick(self.grids), pick(self.votes), pick(self.explained))

    def first_alert(self, thresholds: Ints, base_thresholds: Floats = BASE_THRESHOLDS) -> Ints:
        """The first of the ascending `base_thresholds` at which each image alerts, by threshold: (thresholds, images).

        len(base_thresholds) if it never does. Found by bisection, since alerts only come and never go.
        """
        first = np.empty((len(thresholds), len(self.grids)), np.int64)
        rows = np.arange(len(thresholds))
        for n, (votes, explained) in enumerate(zip(self.votes, self.explained, strict=True)):
            says_object = votes > thresholds[:, None, None] * votes_needed(1)
            low, high = np.zeros_like(rows), np.full_like(rows, len(base_thresholds))  # the answer lies in [low, high]
            while (low < high).any():
                middle = (low + high) // 2
                score = base_thresholds[np.minimum(middle, len(base_thresholds) - 1)]
                alerts = clustered(says_object & (explained < score[:, None, None]))
                low, high = np.where(alerts | (low == high), low, middle + 1), np.where(alerts, middle, high)
            first[:, n] = low
        return first


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """DetectorGuard at one threshold."""

    maps: Maps
    threshold: int
    first_alert: Ints  # per image: the first row of the curve at which it alerts
    curve: Curve

    @classmethod
    def measure(cls, maps: Maps, threshold: int) -> Guarded:
        return cls.at(maps, threshold, maps.first_alert(np.array([threshold]))[0])

    @classmethod
    def at(cls, maps: Maps, threshold: int, first_alert: Ints) -> Guarded:
        return cls(maps, threshold, first_alert, guarded_curve(maps.scene, first_alert))

    def false_alerts(self, row: int) -> int:
        """Clean images that alert at one row of the curve."""
        return int((self.first_alert <= row).sum())

    def found(self, row: int) -> Bools:
        """Which counted objects are in the output at one row of the curve."""
        scene = self.maps.scene
        taken = _matched(scene, candidate_pairs(scene.base, scene), *_output(scene, self.first_alert, row))
        return np.isin(scene.counted, taken)


def guarded_curve(scene: ImageSet, first_alert: Ints, base_thresholds: Floats = BASE_THRESHOLDS) -> Curve:
    """Right and wrong boxes at every base_threshold, boxes of images that alert left out."""
    pairs = candidate_pairs(scene.base, scene)
    counts = []
    for row in range(len(base_thresholds)):
        score, kept = _output(scene, first_alert, row, base_thresholds)
        label = scene.base.detections.label[kept]
        counts.append(count_matches(label, _matched(scene, pairs, score, kept), scene))
    right, wrong = map(np.array, zip(*counts, strict=True))
    return Curve(base_thresholds, right, wrong, scene.objects_per_class, len(scene.images))


def _output(
    scene: ImageSet, first_alert: Ints, row: int, base_thresholds: Floats = BASE_THRESHOLDS
) -> tuple[Floats, Bools]:
    """The scores of the boxes that are output, and which of all base boxes these are."""
    base = scene.base
    kept = (base.detections.score >= base_thresholds[row]) & (first_alert > row)[base.image]
    return base.detections.score[kept], kept


def _matched(scene: ImageSet, pairs: Overlaps, score: Floats, kept: Bools) -> Ints:
    """The object each kept box takes, or -1."""
    rows = kept[pairs.box]
    number = np.cumsum(kept) - 1
    return greedy_match(score, Overlaps(number[pairs.box[rows]], pairs.object[rows], pairs.overlap[rows]), scene)


def tune_thresholds(
    maps: Maps,
    clean_recall: float,
    *,
    losses: Sequence[float],
    false_alerts: float = FALSE_ALERTS,
    thresholds: Ints = OBJECTNESS_THRESHOLDS,
) -> list[int | None]:
    """For each loss of AP that is allowed, in points, the lowest threshold that alerts seldom enough.

    That is: where the clean recall is reached, the rate of false alerts is at most `false_alerts`. None if there is no
    such threshold. Lower thresholds certify more. The AP is over all base_thresholds: at high ones fewer boxes explain,
    more images alert, and a low threshold costs more AP than the one rate of false alerts tells.
    """
    undefended = undefended_curve(maps.scene).mean_ap50
    chosen: list[int | None] = [None] * len(losses)
    for first, threshold in zip(maps.first_alert(thresholds), map(int, thresholds), strict=True):
        guarded = Guarded.at(maps, threshold, first)
        row = guarded.curve.row_at_recall(clean_recall)
        if row is None or guarded.false_alerts(row) > false_alerts * len(maps.grids):
            continue
        loss = undefended - guarded.curve.mean_ap50
        chosen = [threshold if old is None and loss <= most else old for old, most in zip(chosen, losses, strict=True)]
        if None not in chosen:
            break
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class GuardVerdicts:
    """(WHERES, counted objects) each; `published` under the published model of where a patch may lie."""

    certified: Bools
    vacuous: Bools
    published: Bools


def certify_scene(maps: Maps, features: Iterable[Features], threshold: int, patches: Sequence[Patch]) -> GuardVerdicts:
    """`certify_guarded` for every counted object of a scene. The verdicts depend on no base_threshold."""
    parts = []
    for image, grid, own in zip(maps.scene.images, maps.grids, features, strict=True):
        truth = image.truth[~image.ignore]
        ours = certify_guarded(grid, own, truth, patches, threshold=threshold)
        published = certify_published(grid, own, truth, patches, threshold=threshold)
        parts.append((ours.certified, ours.vacuous, published))
    certified, vacuous, published = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return GuardVerdicts(certified, vacuous, published)
