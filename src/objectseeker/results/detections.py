"""What `objectseeker detect` leaves behind: robust detections of files, as COCO results and annotated images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectseeker.core.seeker import Defended, ObjectSeeker
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.results.drawing import draw


@dataclass(frozen=True, slots=True)
class Unreadable:
    """One file that is no image, and why."""

    reason: str


def defend_files(seeker: ObjectSeeker, paths: Iterable[Path]) -> Iterator[tuple[Path, Defended | Unreadable]]:
    """Each file with its detections; a file that cannot be read does not stop the others."""
    for path in paths:
        try:
            image = load_image(path)
        except ObjectSeekerError as error:
            yield path, Unreadable(str(error))
        else:
            yield path, seeker.defend(image)


def coco_results(name: str, defended: Defended, names: Sequence[str]) -> list[dict[str, Any]]:
    """COCO results of one image. `found_by` tells base boxes ("image") from those only masking found ("masks")."""
    rows = []
    for detections, source in ((defended.base, "image"), (defended.recovered, "masks")):
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


def alert_row(name: str, defended: Defended) -> dict[str, Any]:
    """Whether one image is flagged, and by how many boxes."""
    return {"image_id": name, "alert": defended.alert, "found_by_masks_only": len(defended.recovered)}


def save_annotated(path: Path, defended: Defended, names: Sequence[str]) -> None:
    """The image with base boxes solid and the boxes that only masking found dashed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(defended.image, defended.base, names, recovered=defended.recovered).save(path, quality=90)


def output_names(paths: Sequence[Path]) -> list[str]:
    """A name for every file: its path below the folder all files share, so that equal file names stay apart."""
    parents = [path.resolve().parent for path in paths]
    shared = parents[0] if parents else Path()
    while any(not parent.is_relative_to(shared) for parent in parents):
        shared = shared.parent
    return [path.resolve().relative_to(shared).as_posix() for path in paths]
