"""Small runs for the tests of evaluation, and slow, literal versions of what is measured on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cases import generate

from objectseeker import Detections, Halves, Observation, Rule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import BASE_THRESHOLDS, EvaluationSettings, ThreatModel, evaluate_images

NAMES = ("cat", "dog")
VOCABULARY = LabelMap.from_names(NAMES)

CURVE = ("alpha", "beta", "evidence_alpha", "evidence_beta")
THREAT = {
    "patch_area": "area",
    "patch_aspect": "aspect",
    "patch_count": "count",
    "certification_threshold": "certification_threshold",
}
THREAT |= {"bound": "bound"}
POINT = ("clean_recall", "base_threshold", "fppi")


def made(**values) -> EvaluationSettings:
    """Settings from single values, on the curve of alpha and beta; CertR@0.8 unless told otherwise."""
    point = {name: values[name] for name in POINT if name in values} or {"clean_recall": 0.8}
    follow = ThresholdSchedule(**{name: values[name] for name in CURVE if name in values})
    threat = ThreatModel(**{field: values[name] for name, field in THREAT.items() if name in values})
    of_rule = values.keys() - {*POINT, *CURVE, *THREAT}
    return EvaluationSettings.from_schedule(
        follow, Rule(**{name: values[name] for name in of_rule}), threat=threat, **point
    )


def changed(settings: EvaluationSettings, **values) -> EvaluationSettings:
    """`settings` with other values, each given by its own name."""
    for name, value in values.items():
        if name in CURVE:
            settings = settings.with_schedule(**{name: value})
        elif name in THREAT:
            settings = replace(settings, threat=replace(settings.threat, **{THREAT[name]: value}))
        elif name in POINT:
            settings = replace(settings, **{name: value})
        else:
            settings = settings.with_rule(**{name: value})
    return settings


PAPER = made(alpha=0.4, beta=0.3, clean_recall=0.5)
EVIDENCE = made(
    alpha=0.7, beta=0.4, evidence_alpha=0.2, evidence_beta=0.1, evidence_power=1.5, edge_factor=0.8, clean_recall=0.5
)


def run(seed: int, count: int = 6, *, flagged: float = 0.2, **options) -> list[ObservedImage]:
    """`count` generated images; a share of their objects is ignored, half of those are crowds."""
    rng = np.random.default_rng(seed)
    images = []
    for number in range(count):
        case = generate(int(rng.integers(2**32)), **options)
        ignore = rng.random(len(case.ground_truth)) < flagged
        crowd = ignore & (rng.random(len(case.ground_truth)) < 0.5)
        images.append(ObservedImage(str(number), Path("unused"), case.observation, case.ground_truth, ignore, crowd))
    if not any((~image.ignore).any() for image in images):
        images[0] = replace(images[0], ignore=~images[0].ignore, crowd=np.zeros_like(images[0].crowd))
    return images


def noisy(seed: int, count: int) -> list[ObservedImage]:
    """Images whose views show the object and now and then something that is not there: low scores cost precision."""
    rng = np.random.default_rng(seed)
    images = []
    for number in range(count):
        corner = rng.uniform(5, 60, 2)
        box = np.concatenate([corner, corner + rng.uniform(20, 35, 2)])
        label = int(rng.integers(2))

        strength = rng.uniform(0.4, 1)

        def view(loss, noise, box=box, label=label, strength=strength):
            rows = [(*(box + rng.normal(0, 1, 4)), strength - rng.uniform(0, loss), label)]
            if rng.random() < noise:
                corner = rng.uniform(0, 70, 2)
                rows.append((*corner, *(corner + rng.uniform(10, 30, 2)), rng.uniform(0, 0.8), int(rng.integers(2))))
            return rows

        masked = [view(0.3, 0.2) for _ in range(24)]
        images.append(image(view(0.0, 0.0), [(*box, label)], masked, lines=6, number=number))
    return images


def image(base, truth, masked=(), *, size=100, lines=1, ignore=None, crowd=None, number=0) -> ObservedImage:
    """An image from numbers: boxes are (x1, y1, x2, y2, score, label), objects (x1, y1, x2, y2, label)."""
    masks = Halves(lines).masks(size, size)
    views = [boxes(rows) for rows in masked]
    views += [Detections.empty()] * (len(masks) - len(views))
    objects = boxes([(*row[:4], 1.0, row[4]) for row in truth])
    none = np.zeros(len(objects), dtype=bool)
    crowd = none if crowd is None else np.array(crowd)
    return ObservedImage(
        str(number),
        Path("unused"),
        Observation(size, size, masks, boxes(base), views),
        objects,
        (none if ignore is None else np.array(ignore)) | crowd,
        crowd,
    )


def boxes(rows) -> Detections:
    return Detections([row[:4] for row in rows], [row[4] for row in rows], [row[5] for row in rows])


@dataclass
class Literal:
    """True and false positives per class, counted the slow way."""

    right: dict[int, int]
    wrong: dict[int, int]


def outputs(
    observed: ObservedImage, settings: EvaluationSettings, base_threshold: float, classwise: bool
) -> Detections:
    return settings.with_rule(classwise=classwise).on_curve(base_threshold).prune(observed.observation)


def count_literally(pairs: list[tuple[ObservedImage, Detections]]) -> Literal:
    """Box by box, object by object."""
    result = Literal(dict.fromkeys(range(len(NAMES)), 0), dict.fromkeys(range(len(NAMES)), 0))
    for observed, found in pairs:
        free = set(range(len(observed.ground_truth)))
        for i in sorted(range(len(found)), key=lambda i: (-found.score[i], i)):
            label = int(found.label[i])
            best = None
            for n in sorted(free):
                if observed.ground_truth.label[n] != label:
                    continue
                overlap = _overlap(found.xyxy[i], observed.ground_truth.xyxy[n], bool(observed.crowd[n]))
                key = (not observed.ignore[n], overlap)
                if overlap >= 0.5 and (best is None or key >= best[0]):
                    best = key, n
            if best is None:
                result.wrong[label] += 1
                continue
            n = best[1]
            if not observed.crowd[n]:
                free.remove(n)
            if not observed.ignore[n]:
                result.right[label] += 1
    return result


def ap_literally(points: list[tuple[float, float]]) -> float:
    """The area under the envelope of (recall, precision) points, strip by strip."""
    total, before = 0.0, 0.0
    for recall in sorted({recall for recall, _ in points}):
        total += (recall - before) * max(precision for other, precision in points if other >= recall)
        before = recall
    return total


def protocol_literally(
    images: list[ObservedImage], settings: EvaluationSettings, classwise: bool
) -> tuple[float, list[float]]:
    """The paper's AP50 and the clean recall at every base_threshold, through `Rule.prune`."""
    objects = {
        c: sum(int((~one.ignore & (one.ground_truth.label == c)).sum()) for one in images) for c in range(len(NAMES))
    }
    points: dict[int, list[tuple[float, float]]] = {c: [] for c in objects if objects[c]}
    recalls = []
    for base_threshold in BASE_THRESHOLDS:
        counted = count_literally([(one, outputs(one, settings, float(base_threshold), classwise)) for one in images])
        for c, of_class in points.items():
            right, all_boxes = counted.right[c], counted.right[c] + counted.wrong[c]
            of_class.append((right / objects[c], right / all_boxes if all_boxes else 1.0))
        recalls.append(sum(of_class[-1][0] for of_class in points.values()) / len(points))
    return sum(ap_literally(of_class) for of_class in points.values()) / len(points), recalls


def _overlap(box, truth, crowd: bool) -> float:
    width = min(box[2], truth[2]) - max(box[0], truth[0])
    height = min(box[3], truth[3]) - max(box[1], truth[1])
    shared = max(width, 0.0) * max(height, 0.0)
    whole = (box[2] - box[0]) * (box[3] - box[1])
    if not crowd:
        whole += (truth[2] - truth[0]) * (truth[3] - truth[1]) - shared
    return shared / whole if whole > 0 else 0.0


def evaluated(images, settings: EvaluationSettings, **options) -> dict:
    """What `evaluate --json` prints."""
    return evaluate_images(images, VOCABULARY, settings, intervals=False, **options).to_dict()


def tabled(sweep, *arguments, **options) -> list[dict]:
    """The rows of a sweep, as they go into a table."""
    return [row if isinstance(row, dict) else row.to_row() for row in sweep(*arguments, **options)]
