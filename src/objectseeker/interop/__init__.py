"""Conversion of boxes and certificates to and from supervision, COCO and FiftyOne; certified recall.

None of these is needed to import this module. Boxes are in raw image pixels unless a function states otherwise.

What is converted is `Detections`, or an `ImageResult` of `detect`: then every box takes along its `origin` (base or
recovered) and, with `certify=True`, its certificates, in the columns of boxes.csv (`inference.results.CERTIFICATE`).
`CertifiedRecall` is a metric with update, compute and reset, as MAITE and torchmetrics have them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.maite import MaiteModel, as_numpy
from objectseeker.core.observation import ObservedImage
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError, import_optional, require_count
from objectseeker.inference.results import ImageResult
from objectseeker.metrics import EvaluationSettings, evaluate_images
from objectseeker.text import quote

__all__ = [
    "CertifiedRecall",
    "from_coco",
    "from_fiftyone",
    "from_supervision",
    "to_coco",
    "to_fiftyone",
    "to_supervision",
]


def to_supervision(result: Detections | ImageResult, names: Sequence[str] | None = None) -> Any:
    """Convert to `supervision.Detections` with the same boxes, bit for bit; `names` become its class_name.

    Origin and certificates are in its `data`, one array per column.

    Args:
        result: Boxes, or a result of `detect`.
        names: Class names by label.

    Returns:
        A `supervision.Detections`.

    Raises:
        ObjectSeekerError: supervision is not installed, or a label has no name.

    Example:
        >>> to_supervision(Detections([[0, 0, 9, 9]], [0.9], [0])).xyxy.tolist()  # doctest: +SKIP
        [[0.0, 0.0, 9.0, 9.0]]
    """
    detections, columns = _boxes_and_attributes(result)
    supervision = import_optional("supervision", "supervision is not installed: pip install supervision")
    boxes, scores, labels = (array.copy() for array in (detections.xyxy, detections.score, detections.label))
    data = {} if names is None else {"class_name": np.array([_name(label, names) for label in labels], str)}
    data |= {name: np.array(values) for name, values in columns.items()}
    return supervision.Detections(xyxy=boxes, confidence=scores, class_id=labels, data=data)


def from_supervision(theirs: Any) -> Detections:
    """Convert from anything with xyxy, confidence and class_id, such as `supervision.Detections`.

    Lost: masks, tracks and all other data. Without confidence, as in ground truth, scores are 1.

    Args:
        theirs: Boxes with class_id.

    Returns:
        The boxes.

    Raises:
        ObjectSeekerError: The boxes have no class_id, or are invalid.

    Example:
        >>> from types import SimpleNamespace
        >>> theirs = SimpleNamespace(xyxy=[[0, 0, 9, 9]], confidence=[0.9], class_id=[2])
        >>> from_supervision(theirs).label.tolist()
        [2]
    """
    boxes, labels = theirs.xyxy, theirs.class_id
    if labels is None and len(boxes):
        raise ObjectSeekerError("the boxes have no class_id: give each a label")
    scores = np.ones(len(boxes)) if theirs.confidence is None else theirs.confidence
    return Detections(boxes, scores, [] if labels is None else labels)


def to_coco(
    result: Detections | ImageResult, image_id: Hashable, category_ids: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Convert to rows of COCO results, as `COCO.loadRes` takes them.

    `category_ids` are the ids of the labels in the dataset; without them label 0 is category 1, as COCO counts. A label
    without an id is an error: no box is lost, which a class-agnostic certificate may rest on. Origin and certificates
    follow COCO's own keys.

    Args:
        result: Boxes, or a result of `detect`.
        image_id: Id of the image.
        category_ids: Category id of every label.

    Returns:
        One row per box.

    Raises:
        ObjectSeekerError: A label has no category id.

    Example:
        >>> to_coco(Detections([[1, 2, 4, 6]], [0.5], [0]), 7)
        [{'image_id': 7, 'category_id': 1, 'bbox': [1.0, 2.0, 3.0, 4.0], 'score': 0.5}]
    """
    detections, columns = _boxes_and_attributes(result)

    def category(label: int) -> int:
        if category_ids is None:
            return label + 1
        if not 0 <= label < len(category_ids):
            raise ObjectSeekerError(f"label {label} has no category id: there are {len(category_ids)}. Add it.")
        return category_ids[label]

    boxes = _corner_and_size(detections.xyxy).tolist()
    return [
        {"image_id": image_id, "category_id": category(label), "bbox": box, "score": score}
        | {name: values[n] for name, values in columns.items()}
        for n, (box, score, label) in enumerate(
            zip(boxes, detections.score.tolist(), detections.label.tolist(), strict=True)
        )
    ]


def from_coco(
    rows: Iterable[Mapping[str, Any]], category_ids: Sequence[int] | None = None
) -> dict[Hashable, Detections]:
    """Convert from COCO results or annotations: detections by image id; `category_ids` as in `to_coco`.

    Widths and heights were rounded when they were written: the right and the lower side may differ in the last digit.
    Lost: every entry but image_id, category_id, bbox and score; without a score, as in annotations, it is 1.

    Args:
        rows: Results or annotations.
        category_ids: Category id of every label.

    Returns:
        The boxes of every image id.

    Raises:
        ObjectSeekerError: A row lacks a key, or its category is unknown.

    Example:
        >>> rows = [{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4]}]
        >>> from_coco(rows)[7].xyxy.tolist()
        [[1.0, 2.0, 4.0, 6.0]]
    """
    labels = None if category_ids is None else {number: label for label, number in enumerate(category_ids)}
    images: dict[Hashable, list[tuple[Any, float, int]]] = {}
    for row in rows:
        try:
            image, category, box = row["image_id"], row["category_id"], row["bbox"]
        except (KeyError, TypeError, IndexError):
            raise ObjectSeekerError(f"a row needs image_id, category_id and bbox: got {quote(row)}") from None
        if labels is not None and category not in labels:
            raise ObjectSeekerError(f"category {quote(category)} is not among the category_ids. Add it.")
        label = require_count(category, "category_id") - 1 if labels is None else labels[category]
        images.setdefault(image, []).append((box, row.get("score", 1.0), label))
    return {
        image: Detections(_corners([box for box, _, _ in boxes]), [s for _, s, _ in boxes], [at for _, _, at in boxes])
        for image, boxes in images.items()
    }


def to_fiftyone(
    result: Detections | ImageResult, width: int, height: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Convert to `fiftyone.Detection` fields: `[fo.Detection(**fields) for fields in to_fiftyone(...)]`.

    FiftyOne keeps boxes as shares of an image of width x height pixels, and class names instead of labels. Origin and
    certificates are attributes of a detection, by which its app filters.

    Args:
        result: Boxes, or a result of `detect`.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        names: Class names by label.

    Returns:
        The fields of one `fiftyone.Detection` per box.

    Raises:
        ObjectSeekerError: A label has no name, or a side is not positive.

    Example:
        >>> (fields,) = to_fiftyone(Detections([[10, 10, 30, 20]], [0.5], [0]), 100, 100, ["car"])
        >>> fields["label"], fields["bounding_box"]
        ('car', [0.1, 0.1, 0.2, 0.1])
    """
    detections, columns = _boxes_and_attributes(result)
    boxes = _corner_and_size(detections.xyxy) / _sides(width, height)
    return [
        {"label": _name(label, names), "bounding_box": box, "confidence": score}
        | {name: values[n] for name, values in columns.items()}
        for n, (box, score, label) in enumerate(
            zip(boxes.tolist(), detections.score.tolist(), detections.label.tolist(), strict=True)
        )
    ]


def from_fiftyone(theirs: Any, width: int, height: int, names: Sequence[str]) -> Detections:
    """Convert from `fiftyone.Detections`, or from a list of `fiftyone.Detection` or of their fields.

    Pixels come back up to rounding: shares of the image were stored. Lost: every other field; without a confidence, as
    in ground truth, the score is 1.

    Args:
        theirs: The detections, or their fields.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        names: Class names by label.

    Returns:
        The boxes in pixels.

    Raises:
        ObjectSeekerError: A class is not among the names.

    Example:
        >>> fields = {"label": "car", "bounding_box": [0.1, 0.1, 0.2, 0.1], "confidence": None}
        >>> from_fiftyone([fields], 100, 100, ["car"]).label.tolist()
        [0]
    """
    labels = {name: label for label, name in enumerate(names)}
    boxes, scores, indices = [], [], []
    for entry in getattr(theirs, "detections", theirs):
        label, box, score = (_field(entry, name) for name in ("label", "bounding_box", "confidence"))
        if label not in labels:
            raise ObjectSeekerError(f"class {quote(label)} is not among the names. Add it.")
        boxes.append(box)
        scores.append(1.0 if score is None else score)
        indices.append(labels[label])
    return Detections(_corners(boxes, _sides(width, height)), scores, indices)


def _boxes_and_attributes(result: Detections | ImageResult) -> tuple[Detections, dict[str, Sequence[Any]]]:
    """Return boxes, and what else is known of them: columns with a value per box."""
    if isinstance(result, Detections):
        return result, {}
    origins = ["base" if number < result.base_boxes else "recovered" for number in range(len(result.detections))]
    return result.detections, {"origin": origins} | dict(result.certificates or {})


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _corner_and_size(xyxy: Floats) -> Floats:
    return np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)


def _corners(boxes: list[Any], scale: Floats | float = 1.0) -> Floats:
    try:
        rows = np.array(boxes, np.float64).reshape(len(boxes), 4) * scale
    except (TypeError, ValueError):
        raise ObjectSeekerError(f"a box must be four numbers, x, y, width and height: got {quote(boxes)}") from None
    return np.concatenate([rows[:, :2], rows[:, :2] + rows[:, 2:]], axis=1)


def _sides(width: int, height: int) -> Floats:
    return np.array([require_count(width, "width"), require_count(height, "height")] * 2, np.float64)


def _name(label: int, names: Sequence[str]) -> str:
    if not 0 <= label < len(names):
        raise ObjectSeekerError(f"label {label} has no name: there are {len(names)} names. Add it.")
    return names[label]


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
