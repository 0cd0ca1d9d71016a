"""What `objectseeker detect` is given, and what it leaves behind: results of finished images, and files made of them.

    detections.json     COCO results: `COCO("images.json").loadRes("detections.json")`
    images.json         the images and categories they are about, in COCO's form
    boxes.csv           the same boxes, one column per number
    alerts.json         on request: which images masking flags
    certificates.json   on request: what was certified against, and how many boxes are
    annotated/          pictures

All files follow from the record of finished images (`journal`) and the list of sources alone.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import PIL.Image

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.seeker import DefendedImage, ObjectSeeker
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.files.atomic import save_json, write_atomic
from objectseeker.inference.drawing import draw
from objectseeker.inference.image_sources import Categories, Source
from objectseeker.inference.journal import Journal, pixels_sha256
from objectseeker.metrics.settings import ThreatModel
from objectseeker.text import escape_csv_cell

CERTIFICATE = (*PATCH_LOCATIONS, "vacuous_far", "largest_square")
COLUMNS = ("image", "class", "x1", "y1", "x2", "y2", "score", "found_by")
RESULT = ("image_id", "category_id", "bbox", "score", "image", "category_name", "found_by", *CERTIFICATE, "defense")
LARGEST_JPEG = 65_500  # pixels a side
LONGEST_PART = 200  # bytes of a name of a folder or file; most disks take 255

ABOUT = (
    "Certificates are about the boxes listed, on the images as they are: what would remain of each under a patch. "
    "An image that is already attacked may hide objects that are not among its boxes; no certificate speaks of them."
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What was found in one image: base boxes first, and with each the values of `CERTIFICATE`, where asked for."""

    sha256: str  # of its pixels
    size: tuple[int, int]
    boxes: Detections
    base: int
    certificates: tuple[tuple[bool | int, ...], ...] | None

    @property
    def recovered(self) -> int:
        """How many boxes only masking found."""
        return len(self.boxes) - self.base

    def to_dict(self) -> Row:
        """Plain values that `from_dict` reads back, to the last bit."""
        boxes = self.boxes
        return {
            "sha256": self.sha256,
            "size": self.size,
            "xyxy": boxes.xyxy.tolist(),
            "score": boxes.score.tolist(),
            "label": boxes.label.tolist(),
            "base": self.base,
            "certificates": self.certificates,
        }

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Found:
        proven = line["certificates"]
        return cls(
            sha256=line["sha256"],
            size=tuple(line["size"]),
            boxes=Detections(line["xyxy"], line["score"], line["label"]),
            base=line["base"],
            certificates=None if proven is None else tuple(map(tuple, proven)),
        )


def look(seeker: ObjectSeeker, image: Image, sha256: str, threat: ThreatModel | None = None) -> Found:
    """The robust detections of one image; with a threat, what is certified of each: the object is the box itself."""
    return found_by(seeker, seeker.defend(image), sha256, threat)


def found_by(seeker: ObjectSeeker, defended: DefendedImage, sha256: str, threat: ThreatModel | None = None) -> Found:
    """What `look` finds, of an image that the seeker has defended."""
    boxes, proven = defended.detections, None
    if threat is not None:
        given = seeker.certify(
            defended.observation,
            boxes,
            threat.patches(),
            certification_threshold=threat.certification_threshold,
            bound=threat.bound,
        )
        vacuous = given.vacuous[PATCH_LOCATIONS.index("far")].tolist()
        columns = (*given.certified.tolist(), vacuous, given.largest_square.tolist())
        proven = tuple(zip(*columns, strict=True))
    height, width = defended.image.shape[:2]
    return Found(sha256, (width, height), boxes, len(defended.base), proven)


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """How it went with one source: what was found, or why nothing was; and why it has no picture, where it should.

    `changed`: another image was finished under its name before.
    """

    source: Source
    found: Found | None = None
    failure: str = ""
    no_picture: str = ""
    changed: bool = False


def look_at_all(
    seeker: ObjectSeeker,
    sources: Sequence[Source],
    journal: Journal,
    *,
    threat: ThreatModel | None = None,
    pictures: Path | None = None,
    names: Sequence[str] = (),
    only_known: str | None = None,
) -> Iterator[Looked]:
    """Source after source, what the journal has not got yet; one that fails does not stop the others.

    With a folder for `pictures`, each image is drawn there unless it was before. `only_known` says why nothing that
    the journal has not got may be looked at, where that is so.
    """
    of_source = picture_names([source.name for source in sources])
    for source, picture in zip(sources, of_source, strict=True):
        try:
            image = source.load()
        except Exception as error:  # a foreign file
            yield Looked(source, failure=_reason(error))
            continue
        sha256 = pixels_sha256(image)
        line = journal.get(sha256)
        changed = line is None and source.name in journal.images
        if line is None and only_known:
            yield Looked(source, failure=f"{source.path} is not the image it was before, and {only_known}")
            continue
        try:
            found = look(seeker, image, sha256, threat) if line is None else Found.from_dict(line)
        except Exception as error:  # foreign code, whatever it raises
            yield Looked(source, failure=f"the detector failed on {source.path}: {_reason(error)}")
            continue
        if line is None:
            journal.add({"image": source.name} | found.to_dict())
        elif source.name not in journal.images:
            journal.add({"image": source.name, "same": found.sha256})
        no_picture = ""
        if pictures is not None and not (journal.drawn(picture) == found.sha256 and (pictures / picture).exists()):
            no_picture = _save_picture(pictures / picture, image, found, names, threat)
            if not no_picture:
                journal.add({"drawn": picture, "sha256": found.sha256})
        yield Looked(source, found, no_picture=no_picture, changed=changed)


def _reason(error: Exception) -> str:
    return "not enough memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__


def _save_picture(file: Path, image: Image, found: Found, names: Sequence[str], threat: ThreatModel | None) -> str:
    """Draw and write the picture of an image; why there is none, where it cannot be done."""
    try:
        jpeg = encode(picture_of(image, found, names, threat))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, lambda stream: stream.write(jpeg))
    except Exception as error:  # the boxes are there all the same
        return _reason(error)
    return ""


def picture_of(image: Image, found: Found, names: Sequence[str], threat: ThreatModel | None = None) -> PIL.Image.Image:
    """The image with its boxes."""
    base, recovered = found.boxes[: found.base], found.boxes[found.base :]
    if found.certificates is None or threat is None:
        return draw(image, base, names, recovered=recovered)
    proven = [_places(dict(zip(CERTIFICATE, row, strict=True))) for row in found.certificates]
    return draw(image, base, names, recovered=recovered, proven=proven, against=patch_words(threat))


def _places(certificate: Row) -> list[str]:
    """Where a patch cannot hide the box; not far, if there is no such place."""
    return [
        where for where in PATCH_LOCATIONS if certificate[where] and not (where == "far" and certificate["vacuous_far"])
    ]


def encode(picture: PIL.Image.Image) -> bytes:
    """As JPEG; one that is too long for that is made smaller."""
    if max(picture.size) > LARGEST_JPEG:
        picture.thumbnail((LARGEST_JPEG, LARGEST_JPEG))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90, subsampling=0)  # else thin lines lose their color
    return stream.getvalue()


def picture_names(names: Sequence[str]) -> list[str]:
    """A file below the folder of pictures for each image: x.jpg for x.jpg and x.png, x.png.jpg beside another x.

    They differ by more than capital letters, which not every disk tells apart.
    """
    taken: set[str] = set()
    chosen: dict[str, str] = {}
    for name in sorted(names, key=lambda name: not name.endswith(".jpg")):  # a JPEG keeps its own
        below = "/".join(_short(part) for part in PurePosixPath(name).parts if part not in ("/", "//", ".."))
        number, picture = 2, str(PurePosixPath(below or "image").with_suffix(".jpg"))
        while picture.casefold() in taken:
            picture = f"{below}.jpg" if number == 2 else f"{below}-{number}.jpg"
            number += 1
        taken.add(picture.casefold())
        chosen[name] = picture
    return [chosen[name] for name in names]


def _short(part: str) -> str:
    """Part of a path, so short that a file may be called so with more behind it."""
    if len(part.encode()) <= LONGEST_PART:
        return part
    return (
        f"{part.encode()[: LONGEST_PART // 2].decode(errors='ignore')}-{hashlib.sha256(part.encode()).hexdigest()[:16]}"
    )


def patch_words(threat: ThreatModel) -> str:
    """What is certified against, in a few words."""
    what = "a patch" if threat.count == 1 else "two patches"
    aspect = "" if threat.aspect == 1 else f", aspect {threat.aspect:g}"
    return f"{what} of {100 * threat.area:g}%{aspect}"


@dataclass(slots=True)
class Totals:
    """What there is to say about all images together."""

    images: int = 0
    boxes: int = 0
    recovered: int = 0
    certified: Counter[str] = field(default_factory=Counter)  # by the names of CERTIFICATE but the last
    left_out: Counter[str] = field(default_factory=Counter)  # boxes by detector class
    flagged: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The files of a folder, made of what was found in each source (its sha256 beside it).

    `certified` says what was certified against, `defense` is the sha256 of the defense.
    """

    journal: Journal
    looked: Sequence[tuple[Source, str]]
    categories: Categories
    defense: str
    certified: Row | None = None

    def save(self, out: Path, *, alerts: bool = False) -> Totals:
        """Write all of them, each whole or not at all."""
        totals, images, flags, labels = Totals(), [], [], set[int]()
        for source, found in self._each():
            totals.images += 1
            images.append({"id": source.id, "file_name": source.name, "width": found.size[0], "height": found.size[1]})
            flags.append(alert_row(source, found) | {"defense": self.defense})
            labels.update(found.boxes.label.tolist())
            totals.flagged += [source.name] if found.recovered else []
            for label in found.boxes.label.tolist():
                if self.categories.of(label) is None:
                    totals.left_out[self.categories.detector_name(label)] += 1
            for row in self._rows_of(source, found):
                totals.boxes += 1
                totals.recovered += row["found_by"] == "masks"
                totals.certified.update(name for name in CERTIFICATE[:-1] if row.get(name))
        categories = self.categories.listed(labels)
        save_json(
            out / "images.json",
            {"info": {"defense": self.defense}, "images": images, "annotations": [], "categories": categories},
        )
        write_atomic(out / "detections.json", self._write_json)
        write_atomic(out / "boxes.csv", self._write_csv)
        if alerts:
            save_json(out / "alerts.json", flags)
        if self.certified is not None:
            save_json(out / "certificates.json", self._certificates(totals))
        return totals

    def _certificates(self, totals: Totals) -> Row:
        counts = {name: totals.certified[name] for name in CERTIFICATE[:-1]}
        return {"about": ABOUT, **(self.certified or {}), "boxes": totals.boxes, **counts, "defense": self.defense}

    def _each(self) -> Iterator[tuple[Source, Found]]:
        for source, sha256 in self.looked:
            line = self.journal.get(sha256)
            assert line is not None  # it was written before
            yield source, Found.from_dict(line)

    def _rows(self) -> Iterator[Row]:
        for source, found in self._each():
            yield from self._rows_of(source, found)

    def _rows_of(self, source: Source, found: Found) -> Iterator[Row]:
        return (row | {"defense": self.defense} for row in box_rows(source, found, self.categories))

    def _write_json(self, stream: BinaryIO) -> None:
        """A list with one row a line, never all in memory."""
        before = b"[\n"
        for row in self._rows():
            stream.write(before + json.dumps(coco_result(row)).encode())
            before = b",\n"
        stream.write(b"\n]\n" if before == b",\n" else b"[]\n")

    def _write_csv(self, stream: BinaryIO) -> None:
        columns = [*COLUMNS, *(CERTIFICATE if self.certified is not None else ()), "defense"]
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(
            row | {name: escape_csv_cell(row[name]) for name in ("image", "class")} for row in self._rows()
        )
        text.detach()


def box_rows(source: Source, found: Found, categories: Categories) -> Iterator[Row]:
    """The boxes of one image, as `boxes_of` lists them, with the image they are in."""
    return ({"image_id": source.id, "image": source.name} | row for row in boxes_of(found, categories))


def boxes_of(found: Found, categories: Categories) -> Iterator[Row]:
    """The boxes that were found, without those of classes that have no category.

    `found_by` tells base boxes ("image") from those only masking found ("masks").
    """
    boxes = found.boxes
    for number, (xyxy, score, label) in enumerate(
        zip(boxes.xyxy.tolist(), boxes.score.tolist(), boxes.label.tolist(), strict=True)
    ):
        if (category := categories.of(label)) is None:
            continue
        row = {"category_id": category[0], "class": category[1]} | dict(
            zip(("x1", "y1", "x2", "y2"), xyxy, strict=True)
        )
        row |= {"score": score, "found_by": "image" if number < found.base else "masks"}
        if found.certificates is not None:
            row |= zip(CERTIFICATE, found.certificates[number], strict=True)
        yield row


def coco_result(row: Row) -> Row:
    """A row in the form of COCO results; what these do not have comes after what they have."""
    x1, y1, x2, y2 = (row[name] for name in ("x1", "y1", "x2", "y2"))
    known = row | {"bbox": [x1, y1, x2 - x1, y2 - y1], "category_name": row["class"]}
    return {name: known[name] for name in RESULT if name in known}


def alert_row(source: Source, found: Found) -> Row:
    """Whether one image is flagged, and by how many boxes."""
    flagged = found.recovered > 0
    return {"image_id": source.id, "image": source.name, "alert": flagged, "found_by_masks_only": found.recovered}
