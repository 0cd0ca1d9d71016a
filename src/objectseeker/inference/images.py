"""Detect in many images: find the sources, run the detector on each, and keep what is finished.

A run with a folder for its results can be interrupted at any time and resumed: finished images are in its journal, and
all other files follow from that and the list of sources alone.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import PIL.Image

from objectseeker.core.masks import Image
from objectseeker.datasets import READERS, Dataset, match_classes, open_dataset
from objectseeker.datasets.parsing import read_bytes
from objectseeker.defense import spec_without_path
from objectseeker.detectors import unverified_reason
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.atomic import save_json, write_atomic
from objectseeker.files.images import expand_image_paths, load_sized
from objectseeker.files.remote import Url, is_url
from objectseeker.inference.frame_sources import DEFAULT_RATE, ArrayFrames, Video, is_video, open_video
from objectseeker.inference.journal import ProgressJournal, open_journal, pixels_sha256
from objectseeker.inference.results import (
    CERTIFICATE,
    OUTSIDE,
    Categories,
    DetectionRun,
    DetectionTotals,
    ImageId,
    ImageResult,
    annotate_result,
    detect_image,
    error_reason,
)
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.text import escape_csv_cell

CSV_COLUMNS = ("image", "class", "x1", "y1", "x2", "y2", "score", "origin")
MAX_JPEG_SIDE = 65_500  # pixels
MAX_NAME_BYTES = 200  # of a folder or file; most disks take 255

log = logging.getLogger("objectseeker")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image to detect in: id, name in results, path, and the size if an annotation states it."""

    id: ImageId
    name: str
    path: Path | Url
    size: tuple[int, int] | None = None

    def load(self) -> Image:
        return load_sized(self.path, self.size)


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The images of a run, with the dataset they are from, if any."""

    sources: Sequence[ImageSource]
    dataset: Dataset | None = None
    category_ids: tuple[ImageId, ...] = ()

    @classmethod
    def from_dataset(cls, data: Dataset) -> ImageInputs:
        """Return a dataset's images, with the ids of a COCO file; others count from 1."""
        entries = data.images
        if not data.spec.startswith("coco:"):
            sources = [ImageSource(number, entry.id, entry.path, entry.size) for number, entry in enumerate(entries, 1)]
            return cls(sources, data, tuple(range(1, len(data.names) + 1)))
        content = _coco_file(data.spec)
        sources = [
            ImageSource(image["id"], image["file_name"], entry.path, entry.size)
            for image, entry in zip(content["images"], entries, strict=True)
        ]
        return cls(sources, data, tuple(category["id"] for category in content["categories"]))

    def categories(
        self, detector_names: Sequence[str], class_map: Mapping[str, str] | None, *, class_agnostic: bool
    ) -> tuple[Categories, tuple[str, ...]]:
        """Return the categories of the results, and warnings about the dataset."""
        data = self.dataset
        if data is None or not data.has_ground_truth:
            if class_map:
                subject = "images and folders have" if data is None else f"{data.spec} has"
                raise ObjectSeekerError(f"--class-map is for the classes of a dataset: {subject} none. Omit it.")
            return Categories.from_detector(detector_names), () if data is None else data.warnings
        match = match_classes(data.names, detector_names, class_map=class_map)
        labels = tuple(match.dataset_labels.tolist())
        categories = Categories(tuple(detector_names), self.category_ids, data.names, labels, class_agnostic)
        return categories, (*data.warnings, *match.warnings)


def open_images(images: Any, *, fps: float | None = None, allow_outside_paths: bool = False) -> ImageInputs | Video:
    """Open what `detect` is given: paths, a dataset, a video or arrays, which are frames.

    Raises:
        ObjectSeekerError: There are no such images.
    """
    if isinstance(images, Dataset):
        return ImageInputs.from_dataset(images)
    if isinstance(images, Video):
        return images
    rate = DEFAULT_RATE if fps is None else fps
    if isinstance(images, np.ndarray):
        return ArrayFrames(images[None] if images.ndim == 3 else images, rate)
    items = iter([images] if isinstance(images, str | Path) else images)
    first = next(items, None)
    if not isinstance(first, str | Path):
        arrays = images if isinstance(images, Sequence) else chain([] if first is None else [first], items)
        return ArrayFrames(arrays, rate)
    inputs = [str(item) for item in (first, *items)]
    videos = [name for name in inputs if is_video(name)]
    if videos:
        if len(inputs) > 1:
            raise ObjectSeekerError(f"{videos[0]} is a video: give it alone, with its own folder for --out")
        return open_video(videos[0], rate=fps)
    datasets = [name for name in inputs if is_dataset_spec(name)]
    if not datasets:
        return ImageInputs(find_sources([Path(name) for name in inputs]))
    if len(inputs) > 1:
        raise ObjectSeekerError(f"{datasets[0]} is a dataset: give it alone, or images and folders")
    return ImageInputs.from_dataset(open_dataset(datasets[0], allow_outside_paths=allow_outside_paths))


def select_inputs(source: ImageInputs, limit: int | None, sample: int | None) -> ImageInputs:
    """Return the first images of a source, or as many of all, drawn at random."""
    if limit is not None and sample is not None:
        raise ObjectSeekerError(f"give limit (the first images) or sample (some of all): got {limit!r} and {sample!r}")
    chosen = list(range(len(source.sources)))
    if limit is not None:
        chosen = chosen[: require_count(limit, "limit")]
    if sample is not None:
        chosen = sorted(np.random.default_rng(0).permutation(chosen)[: require_count(sample, "sample")].tolist())
    return replace(source, sources=[source.sources[number] for number in chosen])


def is_dataset_spec(source: str) -> bool:
    """Return whether an argument names a dataset, not an image or a folder on disk."""
    kind, colon, path = source.partition(":")
    return not os.path.exists(source) and (is_url(source) or bool(colon and path and kind in READERS))  # noqa: PTH110


def find_sources(paths: Sequence[Path]) -> list[ImageSource]:
    """List the images of files and folders, each once, numbered from 1.

    A name is the path below the given folder, with the folder's own name if several paths are given; if two files still
    have the same name, as much of their paths as is needed.
    """
    several = len(paths) > 1
    parts: dict[Path, int] = {}  # number of parts of its path in the name of an image
    for source in paths:
        root = Path(os.path.abspath(source))  # noqa: PTH100  # a link keeps its own name, not its target's
        for file in expand_image_paths(source):
            path = Path(os.path.abspath(file))  # noqa: PTH100
            below = len(path.parts) - len(root.parts)
            parts.setdefault(path, below + several if below else 1)
    names = {path: _last_parts(path, count) for path, count in parts.items()}
    while repeated := {name for name, count in Counter(names.values()).items() if count > 1}:
        for number, (path, name) in enumerate(names.items()):
            if name in repeated:
                parts[path] += 1
                names[path] = _last_parts(path, parts[path]) if parts[path] <= len(path.parts) else f"{name}~{number}"
    return [ImageSource(number, name, path) for number, (path, name) in enumerate(names.items(), 1)]


def _last_parts(path: Path, count: int) -> str:
    return "/".join(path.parts[-count:]).encode(errors="backslashreplace").decode()


def _coco_file(spec: str) -> dict[str, list[dict[str, Any]]]:
    """Read the checked file of a dataset again: a `Dataset` has ids as strings, and none of categories."""
    parts = spec.split(":")[1:]
    files = (Path(":".join(parts[:count])).expanduser() for count in range(1, len(parts)))
    content: dict[str, list[dict[str, Any]]] = json.loads(read_bytes(next(file for file in files if file.is_file())))
    return content


@dataclass(slots=True, eq=False, kw_only=True)
class ImageDetection(DetectionRun):
    """A detection run over images. With `out`, images that are in its journal are not processed again."""

    sources: Sequence[ImageSource]
    trust_detector: bool = False
    warnings: tuple[str, ...] = ()

    resumable = True

    @property
    def total(self) -> int:
        return len(self.sources)

    def results(self, on_start: Callable[[str], None] = lambda cost: None) -> Generator[ImageResult]:
        began = time.monotonic()
        settings: dict[str, Any] = {"certified": self.totals.threat, "only_certified": self.only_certified}
        if self.out is not None:
            assert self.defense is not None
            # Everything that two defenses of one sha256 have in common.
            spec = spec_without_path(self.defense.detector_name)
            settings["defense"] = self.defense.to_dict() | {"detector": spec, "threshold_schedule": None}
        with nullcontext() if self.out is None else open_journal(self.out, settings) as journal:
            skip_new = self._start(journal, on_start)
            done: list[tuple[ImageSource, str]] = []
            try:
                files = annotated_names([source.name for source in self.sources])
                for source, file in zip(self.sources, files, strict=True):
                    result = self._detect(source, file, journal, skip_new)
                    self.totals.add(result, self.categories)
                    self.totals.seconds = time.monotonic() - began
                    if not result.error:
                        done.append((source, result.pixels_sha256))
                    yield result
                if self.out is not None and journal is not None:
                    self._save(self.out, journal, done)
            except ObjectSeekerError as error:  # a full disk
                raise ObjectSeekerError(f"{error}; {self.kept}") from None

    def _start(self, journal: ProgressJournal | None, on_start: Callable[[str], None]) -> str | None:
        """Write the defense and state the cost; return why no new image may be processed, if that is so."""
        finished, known = 0, 0
        reason = None if self.trust_detector else unverified_reason(self.seeker.detector)
        if journal is not None and self.out is not None and self.defense is not None:
            finished = sum(source.name in journal.images for source in self.sources)
            known = len(journal.images)
            if reason and known and finished < self.total:
                raise ObjectSeekerError(
                    f"{self.out} has {known:,} finished images, and {reason}; if this is the detector they were made "
                    "with, confirm that with --trust-detector, else use another folder"
                )
            self.defense.save(self.out / "defense.json")
            if reason and not known:
                log.warning("%s; if interrupted, it can be resumed only with --trust-detector", reason)
        for warning in self.warnings:
            log.warning("%s", warning)
        views, why = ObservationSettings(self.seeker.masks).views_per_image()
        left = self.total - finished
        done = f"{finished:,} of {self.total:,} images done before; " if finished else ""
        on_start(f"{done}{why}: {left:,} images x {views:,} views = {left * views:,} forward passes")
        return reason if known else None

    def _detect(
        self, source: ImageSource, file: str, journal: ProgressJournal | None, skip_new: str | None
    ) -> ImageResult:
        """Detect in an image, unless the journal has it; the result of one that fails says why."""

        def failed(reason: str) -> ImageResult:
            return ImageResult(name=source.name, id=source.id, error=reason)

        try:
            image = source.load()
        except Exception as error:  # an untrusted file
            return failed(error_reason(error))
        sha256 = pixels_sha256(image)
        line = None if journal is None else journal.get(sha256)
        if line is not None:
            result = ImageResult.from_dict(line)
        elif skip_new:
            return failed(f"{source.path} is not the image it was before, and {skip_new}")
        else:
            if journal is not None and source.name in journal.images:
                log.warning("%s is not the image it was before: it is processed again", source.name)
            try:
                result = detect_image(self.seeker, image, self.threat, only_certified=self.only_certified)
            except Exception as error:  # code of others, whatever it raises
                return failed(f"the detector failed on {source.path}: {error_reason(error)}")
        result = replace(result, name=source.name, id=source.id, pixels_sha256=sha256)
        if journal is not None:
            if line is None:
                journal.add({"image": source.name} | result.to_dict())
            elif source.name not in journal.images:
                journal.add({"image": source.name, "same": sha256})
            if self.annotate:
                self._annotate(file, image, result, journal)
        return result

    def _annotate(self, file: str, image: Image, result: ImageResult, journal: ProgressJournal) -> None:
        """Write an annotated image, unless it is drawn already; its boxes are kept if that fails."""
        assert self.out is not None
        path = self.out / "annotated" / file
        if journal.annotated.get(file) == result.pixels_sha256 and path.exists():
            return
        try:
            jpeg = encode_jpeg(annotate_result(image, result, self.categories.detector_names, self.threat))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, lambda stream: stream.write(jpeg))
        except Exception as error:
            self.totals.annotation_errors[result.name] = error_reason(error)
            log.warning("no annotated image of %s: %s", result.name, error_reason(error))
        else:
            journal.add({"annotated": file, "sha256": result.pixels_sha256})

    def _save(self, out: Path, journal: ProgressJournal, done: Sequence[tuple[ImageSource, str]]) -> None:
        def results() -> Iterator[ImageResult]:
            for source, sha256 in done:
                line = journal.get(sha256)
                assert line is not None  # it was written before
                yield replace(ImageResult.from_dict(line), name=source.name, id=source.id)

        names = save_results(out, results, self.categories, self.totals)
        self.totals.files = [*names, *(["annotated/"] if self.annotate else []), "defense.json"]


def save_results(
    out: Path, results: Callable[[], Iterable[ImageResult]], categories: Categories, totals: DetectionTotals
) -> list[str]:
    """Write the files of a folder of results, each atomically; return their names.

    `results` iterates over all of them each time it is called, so that they are never all in memory.
    """
    info: dict[str, Any] = {"defense_sha256": totals.defense_sha256}
    images, alerts, labels = [], [], set[int]()
    for result in results():
        images.append({"id": result.id, "file_name": result.name, "width": result.size[0], "height": result.size[1]})
        alert = {"image_id": result.id, "image": result.name, "alert": result.alert}
        alerts.append(alert | {"recovered_boxes": result.recovered_boxes} | info)
        labels.update(result.detections.label.tolist())

    def write_json(stream: BinaryIO) -> None:
        separator = b"[\n"
        for result in results():
            for row in result.coco_results(categories):
                stream.write(separator + json.dumps(row | info).encode())
                separator = b",\n"
        stream.write(b"\n]\n" if separator == b",\n" else b"[]\n")

    def write_csv(stream: BinaryIO) -> None:
        certificates = () if totals.threat is None else (*CERTIFICATE, *(OUTSIDE if totals.has_windows else ()))
        columns = [*CSV_COLUMNS, *certificates, *info]
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for result in results():
            for box in result.boxes(categories):
                untrusted = {key: escape_csv_cell(box[key]) for key in ("image", "class")}  # CSV injection
                writer.writerow(box | untrusted | info)
        text.detach()

    listed = categories.to_coco_categories(labels)
    save_json(out / "images.json", {"info": info, "images": images, "annotations": [], "categories": listed})
    write_atomic(out / "detections.json", write_json)
    write_atomic(out / "boxes.csv", write_csv)
    save_json(out / "alerts.json", alerts)
    names = ["detections.json", "images.json", "boxes.csv", "alerts.json"]
    if totals.certificates is None:
        return names
    save_json(out / "certificates.json", totals.certificates | info)
    return [*names, "certificates.json"]


def encode_jpeg(annotated: PIL.Image.Image) -> bytes:
    """Encode as JPEG; an image that is too long for that is made smaller."""
    if max(annotated.size) > MAX_JPEG_SIDE:
        annotated.thumbnail((MAX_JPEG_SIDE, MAX_JPEG_SIDE))
    stream = io.BytesIO()
    annotated.save(stream, "JPEG", quality=90, subsampling=0)  # else thin lines lose their color
    return stream.getvalue()


def annotated_names(names: Sequence[str]) -> list[str]:
    """Choose a file for each annotated image, always inside their folder (no path traversal).

    That is x.jpg for x.jpg and x.png, and x.png.jpg next to another x. They differ by more than case, which some file
    systems ignore.
    """
    used: set[str] = set()
    chosen: dict[str, str] = {}
    for name in sorted(names, key=lambda name: not name.endswith(".jpg")):  # a JPEG keeps its own
        below = "/".join(_shorten(part) for part in PurePosixPath(name).parts if part not in ("/", "//", ".."))
        number, file = 2, str(PurePosixPath(below or "image").with_suffix(".jpg"))
        while file.casefold() in used:
            file = f"{below}.jpg" if number == 2 else f"{below}-{number}.jpg"
            number += 1
        used.add(file.casefold())
        chosen[name] = file
    return [chosen[name] for name in names]


def _shorten(part: str) -> str:
    """Shorten part of a path, so that a file may have that name with a suffix."""
    if len(part.encode()) <= MAX_NAME_BYTES:
        return part
    head = part.encode()[: MAX_NAME_BYTES // 2].decode(errors="ignore")
    return f"{head}-{hashlib.sha256(part.encode()).hexdigest()[:16]}"
