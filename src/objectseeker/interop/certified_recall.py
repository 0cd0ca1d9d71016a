"""Certified recall as a metric with update, compute and reset, as MAITE and torchmetrics have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections
from objectseeker.core.maite import MaiteModel, as_numpy
from objectseeker.core.observation import ObservedImage
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics import EvaluationSettings, evaluate_images


class CertifiedRecall:
    """The share of ground truth objects that no allowed patch can hide, as a MAITE Metric.

    It certifies from the observations that the targets of `ObjectSeeker.as_maite` carry, which it keeps until `reset`.
    The numbers are those of `objectseeker.evaluate` at the operating point of the rule, as shares within [0, 1]:

    - certified_recall_far, _close, _over, _anywhere: certified objects by all objects;
    - joint_certified_recall: objects guaranteed to remain per image under any single patch, by all objects;
    - clean_recall: recall on the unmodified images, mean over classes; objects, and vacuous_far of them, are counts.

    Objects of classes that the detector does not have do not count.

    Args:
        model: The model whose targets are measured, or its seeker, if labels are the detector's own.
        threat: The patch to certify against. Default: one square patch of 1 % of the image.

    Example:
        >>> metric = CertifiedRecall(seeker.as_maite())  # doctest: +SKIP
        >>> maite.tasks.evaluate(model=metric.model, dataset=dataset, metric=metric)[0]  # doctest: +SKIP
        {'certified_recall_far': 0.75, ...}
    """

    def __init__(self, model: MaiteModel | ObjectSeeker, threat: ThreatModel | None = None) -> None:
        self.model = model.as_maite() if isinstance(model, ObjectSeeker) else model
        self.threat = ThreatModel() if threat is None else threat
        self.metadata = {"id": f"certified recall, a patch of {100 * self.threat.area:g}%"}
        self._images: list[ObservedImage] = []

    def reset(self) -> None:
        """Forget all images."""
        self._images.clear()

    def update(self, preds: Sequence[Any], target: Sequence[Any], metadata: Sequence[Any] = (), /) -> None:
        """Add a batch: targets of the model, ground truth, and MAITE's metadata, which is not used.

        Ground truth has boxes and labels, as attributes (MAITE) or keys (torchmetrics).

        Raises:
            ObjectSeekerError: The numbers of images differ, a target has no observation, or a label is unknown.
        """
        if len(preds) != len(target):
            raise ObjectSeekerError(f"update needs ground truth for each image: got {len(preds)} and {len(target)}")
        added: list[ObservedImage] = []
        for prediction, ground_truth in zip(preds, target, strict=True):
            observation = getattr(prediction, "observation", None)
            if observation is None:
                raise ObjectSeekerError(
                    f"certified recall needs what the detector saw under every mask: got {type(prediction).__name__} "
                    "without an observation. Predict with the model of seeker.as_maite()."
                )
            objects = self._objects(ground_truth)
            none = np.zeros(len(objects), np.bool_)
            number = str(len(self._images) + len(added))
            added.append(ObservedImage(number, Path(), observation, objects, none, none))
        self._images += added

    def compute(self) -> dict[str, float | int]:
        """Certify all objects, and return the shares.

        Raises:
            ObjectSeekerError: There is no image, or no object.
        """
        rule = self.model.seeker.rule
        settings = EvaluationSettings(
            rule=rule, threshold_schedule=ThresholdSchedule.from_rule(rule), threat=self.threat
        )
        evaluation = evaluate_images(self._images, self.model.label_map, settings, intervals=False)
        found = evaluation.defended
        recall = found.certified_recall()
        shares: dict[str, Any] = {f"certified_recall_{location}": share for location, share in recall.items()}
        shares |= {"joint_certified_recall": found.joint_certified_recall, "clean_recall": found.clean_recall}
        defined = {name: float(value) / 100 for name, value in shares.items() if value is not None}
        return defined | {"objects": evaluation.objects, "vacuous_far": found.vacuous_far or 0}

    def _objects(self, ground_truth: Any) -> Detections:
        """Return ground truth of the detector's classes, with labels into the label map's dataset names."""
        boxes, labels = (
            as_numpy(ground_truth[name] if isinstance(ground_truth, Mapping) else getattr(ground_truth, name))
            for name in ("boxes", "labels")
        )
        known = {label: index for index, label in enumerate(self.model.labels)}
        unknown = [label for label in labels.tolist() if label not in known]
        if unknown:
            raise ObjectSeekerError(
                f"ground truth has label {unknown[0]}, which is not a label of the model: pass the dataset's "
                "index2label to as_maite."
            )
        objects = Detections(boxes.reshape(-1, 4), np.ones(len(labels)), [known[label] for label in labels.tolist()])
        return objects[np.isin(objects.label, self.model.label_map.dataset_labels)]
