"""Two sets of labels: the detector's, in which boxes are pruned and certified, and the dataset's, in which they count.

A deployed detector knows only its own labels, so what is proven must be proven in them: boxes of two detector classes
never add up, even if both stand for one class of the dataset. Average precision and recall are about the dataset's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints


@dataclass(frozen=True, slots=True, eq=False)
class LabelMap:
    """`to_dataset[d]` is the label of the dataset that detector label d stands for, or -1 if it has none."""

    detector_names: tuple[str, ...]
    dataset_names: tuple[str, ...]
    dataset_labels: Ints

    @classmethod
    def from_names(cls, names: tuple[str, ...]) -> LabelMap:
        """Where there is only one set of labels: a dataset without annotations, or one in the detector's classes."""
        return cls(tuple(names), tuple(names), np.arange(len(names)))

    def map_to_dataset(self, boxes: Detections) -> Detections:
        """Boxes with the dataset's labels; those of classes that it does not have are left out."""
        label = self.dataset_labels[boxes.label] if len(boxes) else boxes.label
        kept = label >= 0
        return Detections(boxes.xyxy[kept], boxes.score[kept], label[kept])

    def map_to_detector(self, objects: Detections, *, classwise: bool = True) -> tuple[Detections, Ints]:
        """Every object once for every detector label that stands for it, and which object each of these is.

        An object is certified if it is certified as one of them. Where labels play no part (not `classwise`) one of
        them says it all, and an object that no detector label stands for is kept as well: with label -1.
        """
        means = objects.label[:, None] == self.dataset_labels[None]
        if not classwise:
            return _relabeled(objects, np.where(means.any(axis=1), np.argmax(means, axis=1), -1)), np.arange(
                len(objects)
            )
        n, label = np.nonzero(means)
        return _relabeled(objects[n], label), n

    def any_label(self, verdicts: Bools, which: Ints, objects: int) -> Bools:
        """Verdicts (..., rows) on the rows of `in_detector` as verdicts on the objects: one that holds is enough."""
        holds = np.zeros((objects, *verdicts.shape[:-1]), dtype=np.bool_)
        np.logical_or.at(holds, which, np.moveaxis(verdicts, -1, 0))
        return np.moveaxis(holds, 0, -1)


def _relabeled(boxes: Detections, label: Ints) -> Detections:
    return Detections(boxes.xyxy, boxes.score, label)
