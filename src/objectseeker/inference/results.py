"""The result of detection in an image or a frame, and the files and totals made of results.

detections.json     COCO results: `COCO("images.json").loadRes("detections.json")`
images.json         the images and categories they refer to, in COCO's form
boxes.csv           the same boxes, one column per number
alerts.json         the images that masking flags
certificates.json   with certificates: the threat, and how many boxes are certified
frames.jsonl        instead of these for a video: one line of JSON per frame
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import has_windows
from objectseeker.core.seeker import DefendedImage, ObjectSeeker
from objectseeker.core.threats import ALL_LOCATIONS, PATCH_LOCATIONS, ThreatModel
from objectseeker.defense import Defense
from objectseeker.inference.drawing import BoxCertificate, draw_detections
from objectseeker.text import escape_invisible, plural, to_html

NOT_FABRICATED = {location: f"certified_not_fabricated_{location}" for location in ALL_LOCATIONS}
# The columns of certificates; those of the location "outside" follow where the defense has windows.
HIDING = (*PATCH_LOCATIONS, "vacuous_far", "largest_square")
STANDARD = tuple(NOT_FABRICATED[location] for location in PATCH_LOCATIONS)
CERTIFICATE = (*HIDING, *STANDARD, "largest_square_not_fabricated", "certified_score")
OUTSIDE = ("outside", NOT_FABRICATED["outside"])
COUNTED = (*PATCH_LOCATIONS, "vacuous_far", *STANDARD)
MAX_NAMED = 20  # errors of frames and flagged images that totals name; all are in the files

CERTIFICATE_SCOPE = (
    "Certificates against hiding cover the listed boxes on the unmodified images: what would remain of each box under "
    "a patch. If an image is already attacked, objects may be missing from its boxes; no certificate covers those. "
    "Certificates against fabrication hold for the images as given, attacked or not: no such patch has made the box or "
    "its class. They do not say that the detector is right."
)
ONLY_CERTIFIED_SCOPE = (
    "Only boxes certified not fabricated anywhere are listed. A patch can make a box lose that certificate, so nothing "
    "is certified against hiding here."
)

ImageId = int | str


@dataclass(frozen=True, slots=True)
class Categories:
    """The category of the boxes of each detector label.

    With `to_category` (by detector label, -1 for none) categories are a dataset's; else they are the detector's own
    classes, numbered from 1, and a label without a name is called by its number.

    If the rule is `class_agnostic`, a certificate promises a box of any class, and the attacker may choose a class that
    the dataset does not have. Such a box is listed under one more category, `other`; otherwise it has none.
    """

    detector_names: tuple[str, ...]
    ids: tuple[ImageId, ...]
    names: tuple[str, ...]
    to_category: tuple[int, ...] | None = None
    class_agnostic: bool = False

    @classmethod
    def from_detector(cls, names: Sequence[str]) -> Categories:
        return cls(tuple(names), tuple(range(1, len(names) + 1)), tuple(names))

    def detector_name(self, label: int) -> str:
        return self.detector_names[label] if 0 <= label < len(self.detector_names) else str(label)

    @property
    def other(self) -> tuple[ImageId, str]:
        """Id and name of the category of all classes that the dataset does not have; the dataset has neither."""
        name = "other class"
        while name in self.names:
            name = f"({name})"
        return 1 + max((int(id) for id in self.ids if str(id).isdecimal()), default=0), name

    def is_unmatched(self, label: int) -> bool:
        """Return whether the dataset does not have the class."""
        if self.to_category is None:
            return False
        return not 0 <= label < len(self.to_category) or self.to_category[label] < 0

    def find(self, label: int) -> tuple[ImageId, str] | None:
        """Return id and name; None for a class that the dataset does not have, unless class-agnostic."""
        if self.is_unmatched(label):
            return self.other if self.class_agnostic else None
        if self.to_category is None:
            return label + 1, self.detector_name(label)
        index = self.to_category[label]
        return self.ids[index], self.names[index]

    def to_coco_categories(self, labels: Iterable[int]) -> list[dict[str, Any]]:
        """List all categories in COCO's form; those of labels without one if they are among `labels`."""
        listed = dict(zip(self.ids, self.names, strict=True))
        listed.update(category for label in sorted(labels) if (category := self.find(label)) is not None)
        return [{"id": category, "name": name} for category, name in listed.items()]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ImageResult:
    """The result of the defended detector for one image or frame.

    `detections` has the `base_boxes` first, which the detector finds in the unmasked image; the others were recovered
    by masking. `certificates` has the columns of `CERTIFICATE`, a value per box, if requested. If the image could not
    be processed, `error` says why, and there are no detections.
    """

    name: str = "image"
    id: ImageId | None = 1
    size: tuple[int, int] = (0, 0)
    detections: Detections = field(default_factory=Detections.empty)
    base_boxes: int = 0
    certificates: Mapping[str, Sequence[Any]] | None = None
    error: str = ""
    pixels_sha256: str = ""
    time: float | None = None  # seconds, of a frame
    masks: str = ""  # the recipe that was used
    forward_passes: int = 0

    @property
    def recovered_boxes(self) -> int:
        """Number of boxes that only masking found."""
        return len(self.detections) - self.base_boxes

    @property
    def alert(self) -> bool:
        """Return whether masking recovered boxes that no base box filters: the sign of a hiding attack."""
        return self.recovered_boxes > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `from_dict` reads back, bit-identical; name and id are those of the source."""
        boxes = self.detections
        return {
            "sha256": self.pixels_sha256,
            "size": self.size,
            "xyxy": boxes.xyxy.tolist(),
            "score": boxes.score.tolist(),
            "label": boxes.label.tolist(),
            "base_boxes": self.base_boxes,
            "certificates": self.certificates,
        }

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> ImageResult:
        """Read the values of `to_dict`."""
        return cls(
            pixels_sha256=line["sha256"],
            size=tuple(line["size"]),
            detections=Detections(line["xyxy"], line["score"], line["label"]),
            base_boxes=line["base_boxes"],
            certificates=line["certificates"],
        )

    def boxes(self, categories: Categories) -> Iterator[dict[str, Any]]:
        """Iterate over the boxes whose class has a category, with the columns of boxes.csv."""
        boxes = self.detections
        columns = zip(boxes.xyxy.tolist(), boxes.score.tolist(), boxes.label.tolist(), strict=True)
        for number, (xyxy, score, label) in enumerate(columns):
            if (category := categories.find(label)) is None:
                continue
            box: dict[str, Any] = {"image": self.name, "category_id": category[0], "class": category[1]}
            box |= zip(("x1", "y1", "x2", "y2"), xyxy, strict=True)
            box |= {"score": score, "origin": "base" if number < self.base_boxes else "recovered"}
            yield box | {name: values[number] for name, values in (self.certificates or {}).items()}

    def coco_results(self, categories: Categories) -> Iterator[dict[str, Any]]:
        """Iterate over the boxes in the form of COCO results; further keys follow COCO's."""
        for box in self.boxes(categories):
            x1, y1, x2, y2 = (box.pop(corner) for corner in ("x1", "y1", "x2", "y2"))
            row = {"image_id": self.id, "category_id": box.pop("category_id"), "bbox": [x1, y1, x2 - x1, y2 - y1]}
            yield row | {"score": box.pop("score"), "image": box.pop("image"), "category_name": box.pop("class")} | box

    def to_frame_record(self, video: str, categories: Categories, defense_sha256: str | None) -> dict[str, Any]:
        """Return the line of frames.jsonl; it is complete on its own."""
        record: dict[str, Any] = {"video": video, "frame": self.id}
        record |= {} if self.time is None else {"time": round(self.time, 6)}
        if self.error:
            return record | {"error": self.error, "defense_sha256": defense_sha256}
        boxes = [
            {key: value for key, value in row.items() if key not in ("image_id", "image")}
            for row in self.coco_results(categories)
        ]
        return record | {
            "size": self.size,
            "masks": self.masks,
            "forward_passes": self.forward_passes,
            "boxes": boxes,
            "recovered_boxes": self.recovered_boxes,
            "alert": self.alert,
            "defense_sha256": defense_sha256,
        }


def detect_image(
    seeker: ObjectSeeker, image: Image, threat: ThreatModel | None = None, *, only_certified: bool = False
) -> ImageResult:
    """Detect in one image; with a threat, certify each box that is output."""
    return to_image_result(seeker, seeker.defend(image), threat, only_certified=only_certified)


def to_image_result(
    seeker: ObjectSeeker, defended: DefendedImage, threat: ThreatModel | None = None, *, only_certified: bool = False
) -> ImageResult:
    """Return the result for an image that the seeker has defended; with a threat, certify its boxes.

    With `only_certified`, boxes that are not certified not fabricated anywhere are skipped. The attacker can then
    remove a box by removing its certificate, so none of the others is certified against hiding.
    """
    boxes, base_boxes, certificates = defended.detections, len(defended.base), None
    if threat is not None:
        certificates = _certificates(seeker, defended.observation, boxes, threat)
        if only_certified:
            kept = np.flatnonzero(certificates[NOT_FABRICATED["anywhere"]]).tolist()
            boxes, base_boxes = boxes[kept], sum(number < base_boxes for number in kept)
            unhidden = dict.fromkeys((*HIDING, OUTSIDE[0]), False) | {"largest_square": 0}
            certificates = {
                name: [unhidden.get(name, values[number]) for number in kept] for name, values in certificates.items()
            }
    height, width = defended.image.shape[:2]
    return ImageResult(
        size=(width, height),
        detections=boxes,
        base_boxes=base_boxes,
        certificates=certificates,
        masks=str(seeker.masks),
        forward_passes=1 + len(defended.observation.masks),
    )


def _certificates(
    seeker: ObjectSeeker, observation: Observation, boxes: Detections, threat: ThreatModel
) -> dict[str, list[Any]]:
    """Return the columns of CERTIFICATE, and where the defense has windows those of OUTSIDE."""
    patches = threat.at_all_locations(has_windows(seeker.masks)).patches()
    hiding = seeker.certify(
        observation, boxes, patches, certification_threshold=threat.certification_threshold, bound=threat.bound
    )
    fabrication = seeker.certify_not_fabricated(observation, boxes, patches)
    columns: dict[str, Any] = {
        "vacuous_far": hiding.vacuous[PATCH_LOCATIONS.index("far")],
        "largest_square": hiding.largest_square,
        "largest_square_not_fabricated": fabrication.largest_square,
        "certified_score": seeker.certified_scores(observation, boxes, patches[PATCH_LOCATIONS.index("anywhere")]),
    }
    for number, patch in enumerate(patches):
        columns[patch.location] = hiding.certified[number]
        columns[NOT_FABRICATED[patch.location]] = fabrication.certified[number]
    return {name: columns[name].tolist() for name in (*CERTIFICATE, *OUTSIDE) if name in columns}


def error_reason(error: Exception) -> str:
    """Return the message of a foreign exception; out of memory has none of its own."""
    return "not enough memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__


def annotate_result(
    image: Image, result: ImageResult, names: Sequence[str], threat: ThreatModel | None = None
) -> PIL.Image.Image:
    """Draw the boxes on the image, with their certificates if there are any."""
    base, recovered = result.detections[: result.base_boxes], result.detections[result.base_boxes :]
    if result.certificates is None or threat is None:
        return draw_detections(image, base, names, recovered=recovered)
    columns, boxes = result.certificates, range(len(result.detections))
    shown = [
        BoxCertificate(
            [
                location
                for location in PATCH_LOCATIONS
                if columns[location][n] and not (location == "far" and columns["vacuous_far"][n])
            ],
            columns[NOT_FABRICATED["anywhere"]][n],
            columns["certified_score"][n],
        )
        for n in boxes
    ]
    return draw_detections(image, base, names, recovered=recovered, certificates=shown, against=threat.describe())


@dataclass(slots=True)
class DetectionTotals:
    """The totals of a detection run so far, over images or frames; `unit` says which.

    `flagged` counts images with an alert and `flagged_names` has the first of them. `errors` has the reasons why images
    failed, by name, and `stop_reason` says why a video ended early. `threat` describes the threat, if boxes are
    certified.
    """

    unit: str = "images"
    source: str | None = None
    images: int = 0
    boxes: int = 0
    recovered_boxes: int = 0
    forward_passes: int = 0
    seconds: float = 0.0
    flagged: int = 0
    flagged_names: list[str] = field(default_factory=list)
    certified: Counter[str] = field(default_factory=Counter)  # by the names of COUNTED
    skipped: Counter[str] = field(default_factory=Counter)  # boxes without a category, by detector class
    other_class: Counter[str] = field(default_factory=Counter)  # boxes listed as "other class", by detector class
    failed: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    annotation_errors: dict[str, str] = field(default_factory=dict)
    stop_reason: str | None = None
    interrupted: bool = False
    threat: dict[str, Any] | None = None
    only_certified: bool = False
    has_windows: bool = False  # the boxes have the certificates of OUTSIDE
    out: Path | None = None
    files: list[str] = field(default_factory=list)  # in `out`
    defense_sha256: str | None = None

    def add(self, result: ImageResult, categories: Categories, *, count: int = 1) -> None:
        """Add a result; a failed one may count for several images."""
        if result.error:
            self.failed += count
            if self.unit == "images" or len(self.errors) < MAX_NAMED:
                self.errors[result.name] = result.error
            return
        self.images += 1
        self.forward_passes += result.forward_passes
        self.flagged += result.alert
        if result.alert and len(self.flagged_names) < MAX_NAMED:
            self.flagged_names.append(result.name)
        for label in result.detections.label.tolist():
            if categories.is_unmatched(label):
                counts = self.other_class if categories.class_agnostic else self.skipped
                counts[categories.detector_name(label)] += 1
        for box in result.boxes(categories):
            self.boxes += 1
            self.recovered_boxes += box["origin"] == "recovered"
            self.certified.update(key for key, value in box.items() if value is True)
            self.has_windows |= OUTSIDE[0] in box

    @property
    def headline(self) -> str:
        """Return one sentence: how many boxes, how many of them recovered, and how many images are flagged."""
        return (
            f"{plural(self.boxes, 'box', 'boxes')} in {plural(self.images, self.unit.removesuffix('s'))}, "
            f"{self.recovered_boxes} of them recovered by masking; "
            f"{self.flagged} of {self.images} {self.unit} flagged"
        )

    def certificate_rows(self) -> list[dict[str, str]]:
        """Return a row per patch location: boxes certified against hiding and against fabrication."""
        if self.threat is None:
            return []
        return [
            {"patch": name, "not hidden": str(self.certified[name]), "not fabricated": str(self.certified[column])}
            for name, column in NOT_FABRICATED.items()
            if name != "outside" or self.has_windows
        ]

    def notes(self) -> list[str]:
        """Return sentences on the scope of certificates, on skipped boxes, on speed and files."""
        lines = []
        if self.threat is not None:
            threat = ThreatModel(**{name: self.threat[f"patch_{name}"] for name in ("area", "aspect", "count")})
            lines.append(
                f"{plural(self.certified['vacuous_far'], 'box has', 'boxes have')} no far position and count as "
                f"certified there; all against {threat.describe()}, T = {self.threat['certification_threshold']:g}"
                f"{', each frame separately' if self.unit == 'frames' else ''}"
            )
            lines.append(self.scope)
        for counts, outcome in ((self.skipped, "skipped"), (self.other_class, 'listed as "other class"')):
            if counts:
                named = ", ".join(f"{name} {count}" for name, count in counts.most_common())
                lines.append(f"{counts.total()} boxes {outcome}, of classes that the dataset does not have: {named}")
        if self.forward_passes and self.seconds:
            rate, passes = self.images / self.seconds, self.forward_passes / self.images
            unit = self.unit.removesuffix("s")
            lines.append(f"{rate:.3g} {self.unit} per second, {passes:.4g} forward passes per {unit}")
        if self.files:
            lines.append(f"Written to {self.out}: {', '.join(self.files)}")
        return lines

    def _repr_html_(self) -> str:
        headline, *notes = (f"<p>{escape(escape_invisible(line))}</p>" for line in (self.headline, *self.notes()))
        return headline + to_html(self.certificate_rows()) + "".join(notes)

    @property
    def scope(self) -> str:
        """Return what the certificates say, and what they do not."""
        return f"{CERTIFICATE_SCOPE} {ONLY_CERTIFIED_SCOPE}" if self.only_certified else CERTIFICATE_SCOPE

    @property
    def exit_status(self) -> int:
        """Return the exit status: 0 all images are done, 1 some failed, 2 all failed."""
        return 0 if not (self.failed or self.stop_reason) else 1 if self.images else 2

    @property
    def certificates(self) -> dict[str, Any] | None:
        """The number of certified boxes by location, with the threat; None without certificates."""
        if self.threat is None:
            return None
        counts = {key: self.certified[key] for key in (*COUNTED, *(OUTSIDE if self.has_windows else ()))}
        return {"about": self.scope, **self.threat, "boxes": self.boxes, **counts}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "source": self.source,
            self.unit: self.images,
            "detections": self.boxes,
            "recovered_boxes": self.recovered_boxes,
            "alerts": self.flagged,
            "certificates": self.certificates,
            "forward_passes": self.forward_passes,
            "seconds": round(self.seconds, 3),
            "skipped_boxes": dict(self.skipped),
            "other_class_boxes": dict(self.other_class),
            "failed": self.failed,
            "errors": self.errors,
            "annotation_errors": self.annotation_errors,
            "stop_reason": self.stop_reason,
            "interrupted": self.interrupted,
            "out": None if self.out is None else str(self.out),
            "defense_sha256": self.defense_sha256,
        }


@dataclass(slots=True, eq=False, kw_only=True)
class DetectionRun(ABC):
    """A detection run: iterate over its results, in order, or call `finish` for the totals alone.

    `defense` names the fingerprint of its detector, and `totals` are those so far. Without `out` nothing is written;
    with it, finished results are kept however the run ends. A run can be iterated over once. A `resumable` one
    continues where it was interrupted; `total` is the number of images or frames, if known.
    """

    seeker: ObjectSeeker
    categories: Categories
    totals: DetectionTotals
    threat: ThreatModel | None = None
    only_certified: bool = False
    defense: Defense | None = None
    out: Path | None = None
    annotate: bool = True

    resumable: ClassVar[bool] = False

    @property
    @abstractmethod
    def total(self) -> int | None: ...

    @property
    def kept(self) -> str:
        """Return what an interruption leaves, as a sentence."""
        of_all = f" of {self.total:,}" if self.resumable else ""
        resume = ", rerun the same command to resume" if self.resumable else ""
        state = "done" if self.out is None else f"kept in {self.out}{resume}"
        return f"{self.totals.images:,}{of_all} {self.totals.unit} are {state}"

    @abstractmethod
    def results(self, on_start: Callable[[str], None] = lambda cost: None) -> Generator[ImageResult]:
        """Iterate over the results; `on_start` gets a sentence about the cost before the first."""

    def __iter__(self) -> Iterator[ImageResult]:
        return self.results()

    def finish(
        self,
        on_start: Callable[[str], None] = lambda cost: None,
        on_progress: Callable[[int, int | None], None] = lambda done, total: None,
    ) -> DetectionTotals:
        """Process all images.

        Args:
            on_start: Called with a sentence about the cost before the first image.
            on_progress: Called with the number of finished images and their total, if known.

        Returns:
            The totals; they are also those of an interrupted run.
        """
        try:
            with closing(self.results(on_start)) as results:
                for number, _ in enumerate(results, 1):
                    on_progress(number, self.total)
        except KeyboardInterrupt:
            self.totals.interrupted = True
            raise
        return self.totals
