"""The report as a file: page, style, script and data, with its images inside or in a folder.

What is needed to open the page comes first, with the image that it opens with. The other images come last, each in its
own element: the page works while the browser is still reading them, and no image is decoded before it is shown.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, BinaryIO, Literal
from urllib.parse import quote

import numpy as np
import PIL.Image

from objectseeker.core.boxes import Detections
from objectseeker.core.observation import ObservedImage
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import write_atomic
from objectseeker.files.images import load_image
from objectseeker.metrics.settings import EvaluationSettings
from objectseeker.metrics.slices import NO_TAGS, ImageTags
from objectseeker.report.certificates import (
    Column,
    PackedCertificates,
    pack_certificates,
    pack_support,
    track_timelines,
)
from objectseeker.report.report_data import (
    Baseline,
    ReportData,
    ReportSource,
    cover_images,
    defense_settings,
    found_columns,
    mask_dicts,
    mask_sets,
    output_columns,
    output_image_set,
    report_data,
    rule_constants,
    slider_stops,
    tag_columns,
)
from objectseeker.runs.run import Run
from objectseeker.text import escape_invisible, plural, redact_ids, redact_path

SCRIPTS = (
    "certificates.js",
    "common.js",
    "overview.js",
    "curve.js",
    "gallery.js",
    "viewer.js",
    "drawing.js",
    "wording.js",
    "export.js",
    "sequences.js",
    "app.js",
)
MAX_THUMBNAIL_SIDE, MAX_VIEW_SIDE = 240, 640  # pixels
THUMBNAIL_QUALITY, VIEW_QUALITY = 50, 60  # JPEG

COLUMNS_GO_HERE, IMAGES_GO_HERE = "<!-- columns -->", "<!-- images -->"


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written: its file, and what it shows."""

    file: Path
    images: int
    object_source: Literal["annotation", "output"]
    missing_images: tuple[str, ...]  # one message per image that could not be shown

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "out": str(self.file),
            "images": self.images,
            "object_source": self.object_source,
            "missing_images": list(self.missing_images),
        }

    def _repr_html_(self) -> str:
        address = html.escape(quote(os.fsencode(self.file)))
        return f'Report of {plural(self.images, "image")}: <a href="{address}">{html.escape(str(self.file))}</a>'


def write_report(
    run: Run,
    defense: Defense | None,
    out: str | os.PathLike[str],
    *,
    settings: EvaluationSettings | None = None,
    tags: ImageTags = NO_TAGS,
    baseline: Baseline | None = None,
    embed_images: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Write the report of a run under a defense as one HTML file.

    The page certifies in the browser: patch size, aspect ratio, location and certification threshold have sliders. It
    loads nothing from any network. It contains no folder, user name, password or key. Without annotations its objects
    are the boxes that the defended detector outputs.

    Args:
        run: A stored run, as `open_run` returns it.
        defense: The defense to certify; None: the run's own.
        out: The HTML file to write.
        settings: Threat and operating point to start with. Default: one square patch of 1 % of the image, at the
            operating point of the defense.
        tags: Tags of the images, which make slices.
        baseline: Another run of the same images, or the same run under another defense, to compare with.
        embed_images: Whether the images go into the file, or into a folder next to it, which must then travel with it.
        on_progress: Called with the number of images written and of all images.

    Returns:
        The file, and a message for each image that could not be shown.

    Raises:
        ObjectSeekerError: The defense or baseline does not fit the run, or the file cannot be written.

    Example:
        >>> report = write_report(open_run("runs/voc"), None, "report.html")  # doctest: +SKIP
    """
    defense = run.bind_defense(run.defense() if defense is None else defense)
    source = ReportSource.from_run(run, defense, settings, tags)
    source = replace(source, caveats=[*source.caveats, *_choice_caveats(run, defense)])
    other = None if baseline is None else baseline.source(source.settings)
    return write_page(source, Path(out), baseline=other, embed_images=embed_images, on_progress=on_progress)


def write_page(
    source: ReportSource,
    out: Path,
    *,
    baseline: ReportSource | None = None,
    embed_images: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Write the report of observed images; `write_report` does this for a stored run.

    Args:
        source: The observed images, their defense and settings.
        out: The HTML file to write.
        baseline: What to compare with, of the same images.
        embed_images: Whether the images are in the file, or in a folder next to it.
        on_progress: Called with the number of images that are done and of all.

    Returns:
        The report, which names its files.

    Raises:
        ObjectSeekerError: The settings and the defense differ, or the baseline is about other images.

    Example:
        >>> write_page(source, Path("report.html")).images  # doctest: +SKIP
    """
    settings, defense = source.settings, source.defense
    if defense is not None and defense.rule != settings.rule:
        raise ObjectSeekerError(
            f"the settings have the rule {settings.rule}, but the defense has {defense.rule}: pass one of them"
        )
    if settings.threat.count != 1:
        raise ObjectSeekerError(
            f"a report shows certificates against one patch: got {settings.threat.count}. Use count=1."
        )
    if baseline is not None and not source.is_labeled:
        raise ObjectSeekerError(
            "without annotations two runs have no objects in common: a baseline needs an annotated dataset"
        )
    data = report_data(source)
    images = data.image_set.images
    masks, mask_index = mask_sets(images, defense)
    packed = pack_certificates(data.image_set, data.rule, settings.threat.bound)
    output_set = output_image_set(source, images, data.rule)
    outputs = [image.ground_truth for image in output_set.images]
    support = pack_support(output_set, data.rule)
    support_columns = dict(support.columns) | output_columns(output_set, data.rule)
    columns = dict(packed.columns) | found_columns(data, outputs, is_labeled=source.is_labeled)
    recipe = None if defense is None else defense.masks
    playback, track_columns = track_timelines(images, data.image_set.label_map, data.rule, settings.threat, recipe)
    columns |= track_columns
    baseline_data, baseline_columns = None, dict[str, Column]()
    if baseline is not None:
        baseline_data, baseline_columns = _baseline_data(baseline.matched_to(source), settings)
    covers = cover_images(data.image_set, data.rule, settings.threat)
    folder = None if embed_images else out.with_name(f"{out.stem}-images")
    missing: dict[int, str] = {}
    first: dict[int, bytes] = {}  # candidates for the image that the page opens with
    with _file_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent) as rest:
            for number, image in enumerate(images):
                details = _details(image, data, outputs[number], packed, support, number)
                content = _script(f"details-{number}", _to_json(details))
                try:
                    files = load_jpegs(image)
                except ObjectSeekerError as error:
                    missing[number] = str(error)
                else:
                    content += _store_jpegs(files, number, folder)
                if number in covers:
                    first[number] = content
                else:
                    rest.write(content)
                on_progress(number + 1, len(images))
            cover = next((number for number in covers if number not in missing), covers[0])
            rest.writelines(first[number] for number in covers if number != cover)
            page_data = {
                **data.metrics,
                **rule_constants(data.rule),
                "shows_ap": source.shows_ap and source.is_labeled,
                "title": source.title,
                "caveats": [*data.caveats, *_truncation_caveat(packed), *source.caveats],
                "names": data.image_set.names,
                "detector_names": source.label_map.detector_names,
                "controls": slider_stops(settings),
                "settings": defense_settings(source, data.rule),
                "provenance": dict(source.provenance),
                "image_folder": None if folder is None else quote(os.fsencode(folder.name)),
                "image_ids": redact_ids(image.id for image in images),
                "image_files": [redact_path(image.path.name) for image in images],
                "image_masks": mask_index,
                "image_missing": sorted(missing),
                "cover": cover,
                "playback": playback,
                "fabrication": {"columns": _column_types(support_columns)},
                "tags": tag_columns(source.tags, len(images)),
                "baseline": baseline_data,
                "masks": mask_dicts(masks),
                "only_halves": not any(one.has_bands for one in masks),
                "columns": _column_types(columns),
            }
            columns |= baseline_columns | {f"fabrication_{name}": values for name, values in support_columns.items()}
            scripts = [_script(f"column-{name}", _encode(values)) for name, values in columns.items()]
            page = _page(source.title, page_data)
            write_atomic(out, lambda stream: _write(stream, page, [*scripts, first[cover]], rest))
    return Report(out, len(images), "annotation" if source.is_labeled else "output", tuple(missing.values()))


def _baseline_data(baseline: ReportSource, settings: EvaluationSettings) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return the data to certify the same objects by the baseline, and its columns, named baseline_."""
    data = report_data(baseline)
    masks, mask_index = mask_sets(baseline.images, None)
    packed = pack_certificates(data.image_set, data.rule, settings.threat.bound)
    return {
        **rule_constants(data.rule),
        "name": baseline.title,
        "metrics": {name: data.metrics[name] for name in ("undefended", "defended")},
        "settings": defense_settings(baseline, data.rule),
        "image_masks": mask_index,
        "masks": mask_dicts(masks),
        "columns": _column_types(packed.columns),
    }, {f"baseline_{name}": values for name, values in packed.columns.items()}


@contextmanager
def _file_errors(file: Path) -> Iterator[None]:
    """Name the file in errors: a full disk names none, and a temporary file means nothing to the user."""
    try:
        yield
    except OSError as error:
        raise ObjectSeekerError(f"cannot write {file}: {error.strerror or error}") from None


def _choice_caveats(run: Run, defense: Defense) -> list[str]:
    """Say so where the rule is the general default, or images of the run chose it."""
    if defense.is_untuned:
        return [
            "The rule is the general default, not one chosen for this detector: objectseeker tune finds one from "
            "unlabeled images."
        ]
    tuned = run.tuned_images(defense)
    if not tuned:
        return []
    return [f"{tuned} of the {len(run.indices)} images chose this defense, so it looks better here than it is."]


def _truncation_caveat(packed: PackedCertificates) -> list[str]:
    if not len(packed.truncated):
        return []
    return [
        f"{plural(len(packed.truncated), 'object has', 'objects have')} more evidence from several views than a page "
        "can hold: it shows what a single view proves, which may be less than there is."
    ]


def _page(title: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    """Build the page: the part before the columns, between them and the images, and after the images."""
    web = resources.files(__package__).joinpath("web")
    assets = {
        name: web.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "palette.css", "page.css", *SCRIPTS)
    }
    page = Template(assets["page.html"]).substitute(
        title=html.escape(escape_invisible(title)),
        style=assets["palette.css"] + assets["page.css"],
        script="\n".join(assets[name] for name in SCRIPTS),
        data=_to_json(data),
    )
    before, rest = page.split(COLUMNS_GO_HERE)
    between, after = rest.split(IMAGES_GO_HERE)
    return before, between, after


def _details(
    image: ObservedImage,
    data: ReportData,
    outputs: Detections,
    packed: PackedCertificates,
    support: PackedCertificates,
    number: int,
) -> dict[str, Any]:
    """Return what is only drawn: base boxes, recovered boxes, and the boxes behind the certificates."""
    base = image.observation.base.with_min_score(data.rule.base_threshold)
    details: dict[str, Any] = {"base": _box_rows(base), "recovered": _box_rows(outputs[len(base) :])}
    for name, columns, rows, boxes in (
        ("single_view", packed.columns, "single_view", packed.single_view),
        ("multi_view", packed.columns, "multi_view", packed.multi_view),
        ("support", support.columns, "single_view", support.single_view),
    ):
        targets = columns["target_first"][columns["object_first"][number : number + 2]]
        start, end = columns[f"{rows}_first"][targets].astype(int)
        details[name] = _encode(boxes[start:end])
    return details


def _box_rows(boxes: Detections) -> list[list[float]]:
    corners, scores = np.round(boxes.xyxy, 1).tolist(), np.round(boxes.score, 3).tolist()
    return [[*box, score, label] for box, score, label in zip(corners, scores, boxes.label.tolist(), strict=True)]


def load_jpegs(image: ObservedImage) -> dict[str, bytes]:
    """Load an observed image as two JPEG files: a "thumbnail" and a larger "view".

    Raises:
        ObjectSeekerError: The image is missing, or no longer has the observed size.
    """
    pixels = PIL.Image.fromarray(np.ascontiguousarray(load_image(image.path)))
    observed = image.observation.width, image.observation.height
    if pixels.size != observed:
        raise ObjectSeekerError(
            f"{image.path} has {pixels.width}x{pixels.height} pixels, but {observed[0]}x{observed[1]} when it was "
            "observed"
        )
    return {"thumbnail": to_jpeg(pixels, MAX_THUMBNAIL_SIDE, THUMBNAIL_QUALITY), "view": to_jpeg(pixels)}


def to_jpeg(image: PIL.Image.Image, max_side: int = MAX_VIEW_SIDE, quality: int = VIEW_QUALITY) -> bytes:
    """Shrink an image to at most `max_side` pixels per side, and compress it as a JPEG file."""
    small, buffer = image.copy(), io.BytesIO()
    small.thumbnail((max_side, max_side), PIL.Image.Resampling.BICUBIC)
    small.save(buffer, "JPEG", quality=quality, optimize=True, progressive=True)
    return buffer.getvalue()


def _store_jpegs(files: Mapping[str, bytes], number: int, folder: Path | None) -> bytes:
    """Return the part of an image that goes into the file; without embedding, write it to the folder."""
    scripts = b""
    for name, content in files.items():
        if folder is None:
            scripts += _script(f"{name}-{number}", base64.b64encode(content).decode("ascii"))
        else:
            file = folder / f"{name}-{number}.jpg"
            with _file_errors(file):
                folder.mkdir(exist_ok=True)
                file.write_bytes(content)
    return scripts


def _column_types(columns: Mapping[str, Column]) -> dict[str, str]:
    return {name: values.dtype.str[1:] for name, values in columns.items()}


def _encode(values: Column) -> str:
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    return base64.b64encode(little.tobytes()).decode("ascii")


def _to_json(content: Any) -> str:
    """Encode JSON that is safe in a script element, whatever the names in it: no < and only ASCII."""
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
