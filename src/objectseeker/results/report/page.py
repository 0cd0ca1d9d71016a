"""The report as a file: page, style, script and data in one, the photographs inside it or in a folder beside it.

What is needed to open the page comes first, photographs last and each by itself: the page works while the browser is
still reading them, and none is decoded before it is looked at.
"""

from __future__ import annotations

import base64
import html
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import IO, Any, Literal, get_args

import numpy as np

from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.masks import MaskSet
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rule import Rule
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import Settings
from objectseeker.results.report.certificates import Packed, pack
from objectseeker.results.report.numbers import constants, controls, described, masks_of, operating_rule
from objectseeker.results.report.photos import Photo, photo_of

Photos = Literal["embed", "beside"]

SCRIPTS = ("certificates.js", "parts.js", "overview.js", "gallery.js", "photo.js", "marks.js", "app.js")
PHOTOS_GO_HERE = "<!-- photographs -->"


def write_report(
    out: Path,
    images: Sequence[ObservedImage],
    names: Sequence[str],
    settings: Settings,
    *,
    title: str = "objectseeker report",
    base_score: float | None = None,
    provenance: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
    photos: Photos = "embed",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write the report of a run to `out`; a sentence for every photograph that could not be shown.

    The defended detector is the one at `base_score`, by default where its clean recall is `settings.clean_recall`.
    With `photos="beside"` the photographs lie in a folder next to the file, which must then travel with it.
    """
    if photos not in get_args(Photos):
        raise ObjectSeekerError(f"photos must be one of {', '.join(get_args(Photos))}, got {photos!r}")
    scene = Scene.of(images, names)
    masks, which = _masks(scene)
    rule, figures = operating_rule(scene, settings, base_score)
    asked = {} if base_score is not None else {"clean recall asked for": f"{settings.clean_recall:g}"}
    packed = pack(scene, rule, settings.bound)
    folder = out.with_name(f"{out.stem}-photos") if photos == "beside" else None
    out.parent.mkdir(parents=True, exist_ok=True)
    missing: dict[int, str] = {}
    with tempfile.TemporaryFile("w+", encoding="ascii", dir=out.parent) as rest:
        for number, image in enumerate(scene.images):
            rest.write(_script(f"details-{number}", _as_json(_details(image, rule, packed, number))))
            photo = photo_of(image)
            if isinstance(photo, str):
                missing[number] = photo
            else:
                _keep(photo, number, folder, rest)
            on_progress(number + 1, len(scene.images))
        data = {
            **figures,
            **constants(rule),
            "title": title,
            "remarks": list(remarks),
            "names": list(scene.names),
            "controls": controls(settings),
            "settings": described(settings, rule) | asked,
            "provenance": dict(provenance or {}),
            "photos": None if folder is None else folder.name,
            "image_ids": [image.id for image in scene.images],
            "image_files": [image.path.name for image in scene.images],
            "image_masks": which,
            "image_missing": sorted(missing),
            "masks": masks_of(masks),
            "columns": {name: _column(values) for name, values in packed.columns.items()},
        }
        before, after = _page(title, data)
        _write(out, before, rest, after)
    return list(missing.values())


def _page(title: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """The page before and after the place of the photographs."""
    texts = {file: resources.files(__package__).joinpath("web", file) for file in ("page.html", "page.css", *SCRIPTS)}
    read = {name: file.read_text(encoding="utf-8") for name, file in texts.items()}
    page = Template(read["page.html"]).substitute(
        title=html.escape(title),
        style=read["page.css"],
        script="\n".join(read[name] for name in SCRIPTS),
        data=_as_json(data),
    )
    before, after = page.split(PHOTOS_GO_HERE)
    return before, after


def _masks(scene: Scene) -> tuple[list[MaskSet], list[int]]:
    """The mask sets in use, one for all images of a size, and which of them each image has."""
    found: list[MaskSet] = []
    which = []
    for image in scene.images:
        masks = image.observation.masks
        if not isinstance(masks, MaskSet):
            raise ObjectSeekerError("a report shows certificates against one patch: observe with half masks, not pairs")
        if masks not in found:
            found.append(masks)
        which.append(found.index(masks))
    return found, which


def _details(image: ObservedImage, rule: Rule, packed: Packed, number: int) -> dict[str, Any]:
    """What is only drawn: base boxes, boxes that only masking found, and the boxes behind the certificates."""
    base = image.observation.base.at_least(rule.base_score)
    recovered = rule.prune(image.observation)[len(base) :]
    first, last = packed.columns["object_first"][number : number + 2].astype(int)
    details: dict[str, Any] = {"base": _drawn(base), "recovered": _drawn(recovered)}
    for name, boxes in (("alone", packed.alone), ("together", packed.together)):
        start, end = packed.columns[f"{name}_first"][[first, last]].astype(int)
        details[name] = _rounded(boxes[start:end])
    return details


def _drawn(found: Detections) -> list[list[float]]:
    scores = np.round(found.score, 3).tolist()
    return [
        [*box, score, label]
        for box, score, label in zip(_rounded(found.xyxy), scores, found.label.tolist(), strict=True)
    ]


def _rounded(boxes: Floats) -> list[list[float]]:
    return np.round(boxes, 1).tolist()  # type: ignore[no-any-return]


def _keep(photo: Photo, number: int, folder: Path | None, rest: IO[str]) -> None:
    for name, content in (("thumbnail", photo.thumbnail), ("view", photo.view)):
        if folder is None:
            rest.write(_script(f"{name}-{number}", base64.b64encode(content).decode("ascii")))
        else:
            folder.mkdir(exist_ok=True)
            (folder / f"{name}-{number}.jpg").write_bytes(content)


def _column(values: Any) -> dict[str, str]:
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    return {"type": values.dtype.str[1:], "data": base64.b64encode(little.tobytes()).decode("ascii")}


def _as_json(content: Any) -> str:
    """JSON that is safe inside a script element whatever a class or a file is called: no < and only ASCII."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _script(name: str, content: str) -> str:
    return f'<script type="text/plain" id="{name}">{content}</script>\n'


def _write(out: Path, before: str, rest: IO[str], after: str) -> None:
    """Written whole or not at all."""
    temporary = out.with_name(out.name + ".partial")
    rest.seek(0)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(before)
        shutil.copyfileobj(rest, file)
        file.write(after)
    temporary.replace(out)
