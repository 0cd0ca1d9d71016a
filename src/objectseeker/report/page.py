"""The report as a file: page, style, script and data in one, the photographs inside it or in a folder beside it.

What is needed to open the page comes first, with the photograph that it opens with; the others come last and each by
itself: the page works while the browser is still reading them, and none is decoded before it is looked at.
"""

from __future__ import annotations

import base64
import html
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, BinaryIO, Literal, get_args
from urllib.parse import quote

import numpy as np

from objectseeker.core.boxes import Detections
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import MaskSet
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import write_atomic
from objectseeker.metrics.image_set import NO_IMAGES
from objectseeker.metrics.image_tags import NO_TAGS, Tags
from objectseeker.metrics.settings import EvaluationSettings
from objectseeker.report.detectorguard_section import Baseline
from objectseeker.report.packed_certificates import Column, Packed, pack
from objectseeker.report.report_data import (
    Shown,
    constants,
    controls,
    described,
    found_columns,
    masks_of,
    shown,
    shown_without_labels,
    tags_of,
)
from objectseeker.report.thumbnails import Photo, opening_images, photo_of
from objectseeker.report.track_timelines import sequences_of
from objectseeker.text import escape_invisible, redact_ids, redact_path

Photos = Literal["embed", "beside"]

SCRIPTS = (
    "certificates.js",
    "joint.js",
    "parts.js",
    "overview.js",
    "curve.js",
    "slices.js",
    "changes.js",
    "gallery.js",
    "photo.js",
    "stage.js",
    "marks.js",
    "words.js",
    "saving.js",
    "sequences.js",
    "app.js",
)
COLUMNS_GO_HERE, PHOTOS_GO_HERE = "<!-- columns -->", "<!-- photographs -->"


def write_report(
    out: Path,
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    settings: EvaluationSettings,
    *,
    defense: Defense | None = None,
    title: str = "objectseeker report",
    provenance: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
    labeled: bool = True,
    measured: bool = True,
    tags: Tags = NO_TAGS,
    baseline: Baseline | None = None,
    photos: Photos = "embed",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write the report of a run to `out`; a sentence for every photograph that could not be shown.

    It shows the rule that the settings ask for, by default the rule itself. `defense`, if given, is what that rule is
    deployed as, and is named by the page. Images that are not `labeled` are shown with the boxes that the defended
    detector outputs as their objects; of those that are not `measured`, too few to measure anything, no AP is shown.
    `tags` make slices of the images, and a `baseline` is set beside them, object by object. With `photos="beside"` the
    photographs lie in a folder next to the file, which must then travel with it.

    The file is made to be passed on: it holds no folder that anything lies in, and no user name or key of an address.
    """
    if photos not in get_args(Photos):
        raise ObjectSeekerError(f"photos must be one of {', '.join(get_args(Photos))}, got {photos!r}")
    if defense is not None and defense.rule != settings.rule:
        raise ObjectSeekerError(f"the settings are about {settings.rule}, but the defense has {defense.rule}")
    if settings.threat.count != 1:
        raise ObjectSeekerError(f"a report shows certificates against one patch, got {settings.threat.count} patches")
    if baseline is not None and not labeled:
        raise ObjectSeekerError("without labels two runs have no objects in common: a baseline needs an annotated set")
    images = tuple(images)  # those of a stored run are read anew whenever they are gone through
    if not images:
        raise ObjectSeekerError(NO_IMAGES)
    masks, which = _masks(images, defense)
    ours = (shown if labeled else shown_without_labels)(images, vocabulary, settings)
    packed = pack(ours.scene, ours.rule, settings.threat.bound)
    outputs = [ours.rule.prune(image.observation) for image in ours.scene.images]
    columns = dict(packed.columns) | found_columns(ours.scene, outputs, ours.rule, labeled=labeled)
    recipe = None if defense is None else defense.masks
    played, of_tracks = sequences_of(ours.scene.images, ours.scene.vocabulary, ours.rule, settings.threat, recipe)
    columns |= of_tracks
    before, of_before = None, dict[str, Column]()
    if baseline is not None:
        before, of_before = _before(baseline.beside(images, vocabulary, settings), settings)
    best = opening_images(ours.scene, ours.rule, settings.threat)
    folder = out.with_name(f"{out.stem}-photos") if photos == "beside" else None
    missing: dict[int, str] = {}
    first: dict[int, bytes] = {}  # what the page may open with
    with _naming(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent) as rest:
            for number, image in enumerate(ours.scene.images):
                content = _script(f"details-{number}", _as_json(_details(image, ours, outputs[number], packed, number)))
                photo = photo_of(image)
                if isinstance(photo, str):
                    missing[number] = photo
                else:
                    content += _kept(photo, number, folder)
                if number in best:
                    first[number] = content
                else:
                    rest.write(content)
                on_progress(number + 1, len(images))
            opening = next((number for number in best if number not in missing), best[0])
            for number in best:
                if number != opening:
                    rest.write(first[number])
            data = {
                **ours.figures,
                **constants(ours.rule),
                "measured": measured and labeled,
                "title": title,
                "remarks": [*ours.remarks, *_remarks(packed), *remarks],
                "names": ours.scene.names,
                "detector_names": vocabulary.detector_names,
                "controls": controls(settings),
                "settings": described(settings, ours.rule, defense),
                "provenance": dict(provenance or {}),
                "photos": None if folder is None else quote(os.fsencode(folder.name)),
                "image_ids": redact_ids(image.id for image in images),
                "image_files": [redact_path(image.path.name) for image in images],
                "image_masks": which,
                "image_missing": sorted(missing),
                "opening": opening,
                "played": played,
                "tags": tags_of(tags, len(images)),
                "before": before,
                "masks": masks_of(masks),
                "only_halves": all(one.only_halves for one in masks),
                "columns": {name: values.dtype.str[1:] for name, values in columns.items()},
            }
            scripts = [_script(f"column-{name}", _encoded(values)) for name, values in (columns | of_before).items()]
            write_atomic(out, lambda stream: _write(stream, _page(title, data), [*scripts, first[opening]], rest))
    return list(missing.values())


def _before(baseline: Baseline, settings: EvaluationSettings) -> tuple[dict[str, Any], dict[str, Column]]:
    """What the page needs to certify the same objects by the baseline, and its columns, named before_."""
    theirs = shown(baseline.images, baseline.vocabulary, baseline.settings)
    masks, which = _masks(baseline.images, None)
    packed = pack(theirs.scene, theirs.rule, settings.threat.bound)
    return {
        **constants(theirs.rule),
        "name": baseline.name,
        "figures": {name: theirs.figures[name] for name in ("undefended", "defended")},
        "settings": described(baseline.settings, theirs.rule, None),
        "image_masks": which,
        "masks": masks_of(masks),
        "columns": {name: values.dtype.str[1:] for name, values in packed.columns.items()},
    }, {f"before_{name}": values for name, values in packed.columns.items()}


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """A sentence that names the file: a full disk names none, and a temporary one says nothing to the user."""
    try:
        yield
    except OSError as error:
        raise ObjectSeekerError(f"cannot write {file}: {error.strerror or error}") from None


def _remarks(packed: Packed) -> list[str]:
    if not len(packed.partly):
        return []
    return [
        f"Of {len(packed.partly)} objects more views add up than a page can hold: it shows what one mask alone proves "
        "of them, which may be less than there is. The command certify has all of it."
    ]


def _page(title: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    """The page before the columns, between them and the photographs, and after those."""
    texts = {
        file: resources.files(__package__).joinpath("web", file)
        for file in ("page.html", "palette.css", "page.css", *SCRIPTS)
    }
    read = {name: file.read_text(encoding="utf-8") for name, file in texts.items()}
    page = Template(read["page.html"]).substitute(
        title=html.escape(escape_invisible(title)),
        style=read["palette.css"] + read["page.css"],
        script="\n".join(read[name] for name in SCRIPTS),
        data=_as_json(data),
    )
    before, rest = page.split(COLUMNS_GO_HERE)
    between, after = rest.split(PHOTOS_GO_HERE)
    return before, between, after


def _masks(images: Sequence[ObservedImage], defense: Defense | None) -> tuple[list[MaskSet], list[int]]:
    """The mask sets in use, one for all images of a size, and which of them each image has."""
    used: dict[MaskSet, int] = {}
    which = []
    for image in images:
        masks = image.observation.masks
        if not isinstance(masks, MaskSet):
            raise ObjectSeekerError(
                "a report shows certificates against one patch: observe with half masks or bands, not pairs"
            )
        number = None if image.frame is None else image.frame.number
        if defense is not None and masks != recipe_for_frame(defense.masks, number).masks(masks.width, masks.height):
            raise ObjectSeekerError(
                f"image {image.id} was observed under other masks than the defense's {defense.masks}"
            )
        which.append(used.setdefault(masks, len(used)))
    return list(used), which


def _details(image: ObservedImage, ours: Shown, outputs: Detections, packed: Packed, number: int) -> dict[str, Any]:
    """What is only drawn: base boxes, boxes that only masking found, and the boxes behind the certificates."""
    base = image.observation.base.at_least(ours.rule.base_threshold)
    targets = packed.columns["target_first"][packed.columns["object_first"][number : number + 2]]
    details: dict[str, Any] = {"base": _drawn(base), "recovered": _drawn(outputs[len(base) :])}
    for name, boxes in (("alone", packed.alone), ("together", packed.together)):
        start, end = packed.columns[f"{name}_first"][targets].astype(int)
        details[name] = _encoded(boxes[start:end])
    return details


def _drawn(found: Detections) -> list[list[float]]:
    boxes, scores = np.round(found.xyxy, 1).tolist(), np.round(found.score, 3).tolist()
    return [[*box, score, label] for box, score, label in zip(boxes, scores, found.label.tolist(), strict=True)]


def _kept(photo: Photo, number: int, folder: Path | None) -> bytes:
    """What of a photograph goes into the file; nothing if it lies in a folder beside it."""
    scripts = b""
    for name, content in (("thumbnail", photo.thumbnail), ("view", photo.view)):
        if folder is None:
            scripts += _script(f"{name}-{number}", base64.b64encode(content).decode("ascii"))
        else:
            file = folder / f"{name}-{number}.jpg"
            with _naming(file):
                folder.mkdir(exist_ok=True)
                file.write_bytes(content)
    return scripts


def _encoded(values: Column) -> str:
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    return base64.b64encode(little.tobytes()).decode("ascii")


def _as_json(content: Any) -> str:
    """JSON that is safe inside a script element whatever a class or a file is called: no < and only ASCII."""
    return json.dumps(escape_invisible(content), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _script(name: str, content: str) -> bytes:
    return f'<script type="text/plain" id="{name}">{content}</script>\n'.encode("ascii")


def _write(stream: BinaryIO, page: tuple[str, str, str], first: Sequence[bytes], rest: BinaryIO) -> None:
    before, between, after = page
    stream.write(before.encode())
    stream.writelines(first)
    stream.write(between.encode())
    rest.seek(0)
    shutil.copyfileobj(rest, stream)
    stream.write(after.encode())
