"""The certificates of a run, object by object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.core.iou_variant import AnyRule
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import WHERES, Where
from objectseeker.core.vocabulary import Vocabulary
from objectseeker.evaluation.settings import Threat, threshold_of


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One object of one image and what is certified of it.

    It is certified if it is certified as one of the detector's classes that stand for its own; `proven_as` says as
    which. `vulnerable` and `largest_square` (see `Certificates`) are those of the class that stands up to most,
    `detector_class`; it is None where the detector knows no such class.
    """

    image: str
    number: int  # within the image
    class_name: str
    box: tuple[float, ...]
    ignored: bool
    proven_as: Mapping[Where, str | None]
    vacuous_far: bool
    detector_class: str | None
    largest_square: int
    vulnerable: tuple[int, ...]

    @property
    def certified(self) -> dict[Where, bool]:
        return {where: name is not None for where, name in self.proven_as.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "image": self.image,
            "object": self.number,
            "class": self.class_name,
            "box": list(self.box),
            "ignored": self.ignored,
            **{str(where): holds for where, holds in self.certified.items()},
            "vacuous_far": self.vacuous_far,
            "largest_square": self.largest_square,
            "vulnerable": list(self.vulnerable),
            "detector_class": self.detector_class,
            "proven_as": dict(self.proven_as),
        }


def certify_images(
    images: Iterable[ObservedImage], vocabulary: Vocabulary, rule: AnyRule, threat: Threat
) -> Iterator[list[ObjectRow]]:
    """For every image, one row per object: its verdicts, vulnerable lines and largest certified square."""
    for image in images:
        yield _rows(image, vocabulary, rule, threat)


def _rows(image: ObservedImage, vocabulary: Vocabulary, rule: AnyRule, threat: Threat) -> list[ObjectRow]:
    observation = image.observation
    targets, object_of = vocabulary.in_detector(image.truth, classwise=rule.classwise)
    threshold = threshold_of(rule, threat.threshold)
    proven = rule.certify(observation, targets, threat.patches(), threshold=threshold, bound=threat.bound)
    far = WHERES.index("far")
    nothing_safe = (0, 0, observation.width, observation.height)

    def name_of(target: int) -> str:
        label = int(targets.label[target])  # -1 where labels play no part and none stands for the class
        return vocabulary.detector_names[label] if label >= 0 else "any class"

    def row_of(n: int) -> ObjectRow:
        mine = np.flatnonzero(object_of == n)
        ranked = sorted(mine.tolist(), key=lambda t: (-proven.largest_square[t], -proven.certified[:, t].sum()))
        best = ranked[0] if ranked else None
        proven_as = {
            where: next((name_of(t) for t in ranked if proven.certified[p, t]), None) for p, where in enumerate(WHERES)
        }
        return ObjectRow(
            image=image.id,
            number=n,
            class_name=vocabulary.dataset_names[int(image.truth.label[n])],
            box=tuple(image.truth.xyxy[n].tolist()),
            ignored=bool(image.ignore[n]),
            proven_as=proven_as,
            vacuous_far=bool(proven.vacuous[far, mine].any()),
            detector_class=None if best is None else name_of(best),
            largest_square=0 if best is None else int(proven.largest_square[best]),
            vulnerable=nothing_safe if best is None else tuple(proven.vulnerable[best].tolist()),
        )

    return [row_of(n) for n in range(len(image.truth))]
