"""What `objectseeker detect` and `certify` do: defend a detector on files, certify the objects of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image
from objectseeker.core.iou_variant import AnyRule, certify_by
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.results.drawing import draw


@dataclass(frozen=True, slots=True, eq=False)
class Defended:
    """One image: the base boxes, and the boxes that only masking found."""

    image: Image
    observation: Observation
    base: Detections
    recovered: Detections

    @property
    def alert(self) -> bool:
        """Whether masking found something that the base boxes do not explain: the mark of a hiding attack.

        Guarantee: if an object is certified for the rule in use, then whatever the attacker draws into an allowed
        patch, the image is flagged or the base boxes alone still find the object (by more than T, as certified). For
        the output contains a box that does, and it is a base box or one of `recovered`.
        """
        return len(self.recovered) > 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """One file that is no image, and why."""

    reason: str


def defend(seeker: ObjectSeeker, image: Image) -> Defended:
    """The robust detections of one image, kept apart by who found them."""
    (observation,) = seeker.observe([image])
    found = seeker.strategy.prune(observation)
    count = len(observation.base.at_least(seeker.rule.base_score))
    return Defended(image, observation, found[:count], found[count:])


def defend_files(seeker: ObjectSeeker, paths: Iterable[Path]) -> Iterator[tuple[Path, Defended | Unreadable]]:
    """Each file with its detections; a file that cannot be read does not stop the others."""
    for path in paths:
        try:
            image = load_image(path)
        except ObjectSeekerError as error:
            yield path, Unreadable(str(error))
        else:
            yield path, defend(seeker, image)


def certify_images(
    images: Iterable[ObservedImage],
    names: Sequence[str],
    rule: AnyRule,
    patches: Sequence[Patch],
    *,
    threshold: float | None = None,
    bound: Bound = "exact",
) -> Iterator[list[dict[str, Any]]]:
    """For every image, one row per object: its verdicts, vulnerable lines and largest certified square."""
    for image in images:
        found = certify_by(rule, image.observation, image.truth, patches, threshold=threshold, bound=bound)
        yield [
            {
                "image": image.id,
                "object": n,
                "class": names[label],
                "box": box,
                "ignored": bool(image.ignore[n]),
                **{patch.where: bool(found.certified[p, n]) for p, patch in enumerate(patches)},
                "vacuous_far": any(
                    bool(found.vacuous[p, n]) for p, patch in enumerate(patches) if patch.where == "far"
                ),
                "largest_square": int(found.largest_square[n]),
                "vulnerable": found.vulnerable[n].tolist(),
            }
            for n, (box, label) in enumerate(zip(image.truth.xyxy.tolist(), image.truth.label.tolist(), strict=True))
        ]


def coco_results(name: str, found: Defended, names: Sequence[str]) -> list[dict[str, Any]]:
    """COCO results of one image. `found_by` tells base boxes ("image") from those only masking found ("masks")."""
    rows = []
    for detections, source in ((found.base, "image"), (found.recovered, "masks")):
        for (x1, y1, x2, y2), score, label in zip(
            detections.xyxy.tolist(), detections.score.tolist(), detections.label.tolist(), strict=True
        ):
            rows.append(
                {
                    "image_id": name,
                    "category_id": label,
                    "category_name": names[label] if 0 <= label < len(names) else str(label),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "score": score,
                    "found_by": source,
                }
            )
    return rows


def alert_row(name: str, found: Defended) -> dict[str, Any]:
    """Whether one image is flagged, and by how many boxes."""
    return {"image_id": name, "alert": found.alert, "found_by_masks_only": len(found.recovered)}


def save_annotated(path: Path, found: Defended, names: Sequence[str]) -> None:
    """The image with base boxes solid and the boxes that only masking found dashed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(found.image, found.base, names, recovered=found.recovered).save(path, quality=90)


def save_text(path: Path, text: str) -> None:
    """Written whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def save_json(path: Path, content: Any) -> None:
    save_text(path, json.dumps(content, indent=1) + "\n")


def output_names(paths: Sequence[Path]) -> list[str]:
    """A name for every file: its path below the folder all files share, so that equal file names stay apart."""
    parents = [path.resolve().parent for path in paths]
    shared = parents[0] if parents else Path()
    while any(not parent.is_relative_to(shared) for parent in parents):
        shared = shared.parent
    return [path.resolve().relative_to(shared).as_posix() for path in paths]
