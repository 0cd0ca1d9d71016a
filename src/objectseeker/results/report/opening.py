"""The photograph that the report opens with: one that shows what a patch can do and what it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from objectseeker.core.iou_variant import AnyRule
from objectseeker.core.threats import WHERES, Patch
from objectseeker.evaluation.certified import certified_objects, find_proofs
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import Threat

MOST_OBJECTS = 12  # more are no first picture
LOOKED_AT = 60  # images, spread over the run
RANKED = 5  # how many to fall back on where photographs are missing


def opening_images(scene: Scene, rule: AnyRule, threat: Threat) -> list[int]:
    """Images to open with, best first: of objects certified over, only away from it, and not at all, most kinds.

    Among equals those with about four objects, then those whose largest object is large.
    """
    per_image = np.bincount(scene.truth.image[scene.counted], minlength=scene.image_count)
    chosen = np.flatnonzero((per_image > 0) & (per_image <= MOST_OBJECTS))
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, LOOKED_AT).astype(int))] if len(chosen) else chosen
    if not len(chosen):
        return list(range(min(scene.image_count, RANKED)))
    part = Scene.part([scene.images[i] for i in chosen.tolist()], scene.vocabulary)
    patches = [Patch(threat.area, threat.aspect, where) for where in WHERES]
    certified, vacuous = certified_objects(
        find_proofs(part, rule, threat.bound), rule, patches, threshold=threat.threshold
    )
    shown = dict(zip(WHERES, certified & ~vacuous, strict=True))
    kind = np.where(shown["over"], 2, np.where(shown["far"] | shown["close"], 1, 0))

    def keys() -> Iterator[tuple[int, int, float, int]]:
        owner = part.truth.image[part.counted]
        box = part.truth.detections.xyxy[part.counted]
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        for i in range(part.image_count):
            mine = owner == i
            share = float(area[mine].max()) / float(part.width[i] * part.height[i])
            yield -len(set(kind[mine].tolist())), abs(int(mine.sum()) - 4), -min(share, 0.5), i

    return [int(chosen[i]) for *_, i in sorted(keys())[:RANKED]]
