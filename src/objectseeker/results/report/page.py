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
from typing import Any, BinaryIO, Literal, get_args

import numpy as np

from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.iou_variant import AnyRule
from objectseeker.core.masks import MaskSet
from objectseeker.core.observation import ObservedImage
from objectseeker.core.vocabulary import Vocabulary
from objectseeker.defence import Defence
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import Settings
from objectseeker.files.saving import write_whole
from objectseeker.results.report.certificates import Packed, pack
from objectseeker.results.report.numbers import constants, controls, described, masks_of, shown
from objectseeker.results.report.photos import Photo, photo_of

Photos = Literal["embed", "beside"]

SCRIPTS = ("certificates.js", "parts.js", "overview.js", "gallery.js", "photo.js", "marks.js", "app.js")
PHOTOS_GO_HERE = "<!-- photographs -->"


def write_report(
    out: Path,
    images: Sequence[ObservedImage],
    vocabulary: Vocabulary,
    settings: Settings,
    *,
    defence: Defence | None = None,
    title: str = "objectseeker report",
    provenance: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
    photos: Photos = "embed",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write the report of a run to `out`; a sentence for every photograph that could not be shown.

    It shows the rule that the settings ask for, by default the rule itself. `defence`, if given, is what that rule is
    deployed as, and is named by the page. With `photos="beside"` the photographs lie in a folder next to the file,
    which must then travel with it.
    """
    if photos not in get_args(Photos):
        raise ObjectSeekerError(f"photos must be one of {', '.join(get_args(Photos))}, got {photos!r}")
    if defence is not None and defence.rule != settings.rule:
        raise ObjectSeekerError(f"the settings are about {settings.rule}, but the defence has {defence.rule}")
    if settings.threat.count != 1:
        raise ObjectSeekerError(f"a report shows certificates against one patch, got {settings.threat.count} patches")
    scene = Scene.of(images, vocabulary)
    masks, which = _masks(scene, defence)
    ours = shown(scene, settings)
    packed = pack(scene, ours.rule, settings.threat.bound)
    folder = out.with_name(f"{out.stem}-photos") if photos == "beside" else None
    out.parent.mkdir(parents=True, exist_ok=True)
    missing: dict[int, str] = {}
    with tempfile.TemporaryFile(dir=out.parent) as rest:
        for number, image in enumerate(scene.images):
            rest.write(_script(f"details-{number}", _as_json(_details(image, ours.rule, packed, number))))
            photo = photo_of(image)
            if isinstance(photo, str):
                missing[number] = photo
            else:
                _keep(photo, number, folder, rest)
            on_progress(number + 1, len(scene.images))
        data = {
            **ours.figures,
            **constants(ours.rule),
            "title": title,
            "remarks": [*ours.remarks, *remarks],
            "names": list(vocabulary.dataset_names),
            "detector_names": list(vocabulary.detector_names),
            "controls": controls(settings),
            "settings": described(settings, ours.rule, defence),
            "provenance": dict(provenance or {}),
            "photos": None if folder is None else folder.name,
            "image_ids": [image.id for image in scene.images],
            "image_files": [image.path.name for image in scene.images],
            "image_masks": which,
            "image_missing": sorted(missing),
            "masks": masks_of(masks),
            "only_halves": all(one.only_halves for one in masks),
            "columns": {name: _column(values) for name, values in packed.columns.items()},
        }
        before, after = _page(title, data)
        write_whole(out, lambda stream: _write(stream, before, rest, after))
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


def _masks(scene: Scene, defence: Defence | None) -> tuple[list[MaskSet], list[int]]:
    """The mask sets in use, one for all images of a size, and which of them each image has."""
    used: dict[MaskSet, int] = {}
    which = []
    for image in scene.images:
        masks = image.observation.masks
        if not isinstance(masks, MaskSet):
            raise ObjectSeekerError(
                "a report shows certificates against one patch: observe with half masks or bands, not pairs"
            )
        if defence is not None and masks != defence.masks.masks(masks.width, masks.height):
            raise ObjectSeekerError(
                f"image {image.id} was observed under other masks than the defence's {defence.masks}"
            )
        which.append(used.setdefault(masks, len(used)))
    return list(used), which


def _details(image: ObservedImage, rule: AnyRule, packed: Packed, number: int) -> dict[str, Any]:
    """What is only drawn: base boxes, boxes that only masking found, and the boxes behind the certificates."""
    base = image.observation.base.at_least(rule.base_score)
    recovered = rule.prune(image.observation)[len(base) :]
    targets = packed.columns["target_first"][packed.columns["object_first"][number : number + 2]]
    details: dict[str, Any] = {"base": _drawn(base), "recovered": _drawn(recovered)}
    for name, boxes in (("alone", packed.alone), ("together", packed.together)):
        start, end = packed.columns[f"{name}_first"][targets].astype(int)
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


def _keep(photo: Photo, number: int, folder: Path | None, rest: BinaryIO) -> None:
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


def _script(name: str, content: str) -> bytes:
    return f'<script type="text/plain" id="{name}">{content}</script>\n'.encode("ascii")


def _write(stream: BinaryIO, before: str, rest: BinaryIO, after: str) -> None:
    stream.write(before.encode())
    rest.seek(0)
    shutil.copyfileobj(rest, stream)
    stream.write(after.encode())
