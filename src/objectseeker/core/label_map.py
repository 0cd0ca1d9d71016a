"""The label map from the detector's labels, which prove, to the dataset's labels, which count.

A deployed detector knows only its own labels, so proofs must be in these: the evidence of boxes of two detector classes
never accumulates, even if both map to one class of the dataset. Average precision and recall use the dataset's labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints


@dataclass(frozen=True, slots=True, eq=False)
class LabelMap:
    """`to_dataset[d]` is the dataset's label for detector label d, or -1 if it has none."""

    detector_names: tuple[str, ...]
    dataset_names: tuple[str, ...]
    dataset_labels: Ints

    @classmethod
    def from_names(cls, names: tuple[str, ...]) -> LabelMap:
        """Return the map for a single set of labels: no annotations, or only the detector's classes."""
        return cls(tuple(names), tuple(names), np.arange(len(names)))

    def map_to_dataset(self, boxes: Detections) -> Detections:
        """Return boxes with the dataset's labels, without those of classes that it does not have."""
        label = self.dataset_labels[boxes.label]
        kept = label >= 0
        return Detections(boxes.xyxy[kept], boxes.score[kept], label[kept])

    def map_to_detector(self, objects: Detections, *, classwise: bool = True) -> tuple[Detections, Ints]:
        """Return every object once per detector label that maps to it, and the object's index in each case.

        An object is certified if it is certified as one of them. If labels are ignored (class-agnostic: not
        `classwise`) one of them is enough, and an object to which no detector label maps is kept as well: with label
        -1.
        """
        means = objects.label[:, None] == self.dataset_labels[None]
        if not classwise:
            return _relabeled(objects, np.where(means.any(axis=1), np.argmax(means, axis=1), -1)), np.arange(
                len(objects)
            )
        n, label = np.nonzero(means)
        return _relabeled(objects[n], label), n

    def any_label(self, verdicts: Bools, which: Ints, objects: int) -> Bools:
        """Reduce verdicts (..., rows) on the rows of `map_to_detector` to objects: one that holds is enough."""
        holds = np.zeros((objects, *verdicts.shape[:-1]), dtype=np.bool_)
        np.logical_or.at(holds, which, np.moveaxis(verdicts, -1, 0))
        return np.moveaxis(holds, 0, -1)


def _relabeled(boxes: Detections, label: Ints) -> Detections:
    return Detections(boxes.xyxy, boxes.score, label)
