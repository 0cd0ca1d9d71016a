"""The evidence file: one zip with all that a verdict was made from, and what may be said of it.

    manifest.json     the SHA-256 of every other member
    policy.toml, defense.json, run/, baseline/, attacks/, check.json, tags.csv    what the verdict is made from
    verdict.json, certificates.csv, images.csv, verification.json, README.md      what follows from it
    software.json     the versions that made it: a record, from which nothing follows

The same release gives the same bytes. Members are stored as they are, not compressed, and have one of the names above:
so nothing that is unpacked can be larger than the file or lie elsewhere than in its folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import write_atomic
from objectseeker.files.tables import to_csv
from objectseeker.gate.verdict_text import markdown_of
from objectseeker.metrics.gate import Gate
from objectseeker.metrics.policy_metrics import RunMeasurements
from objectseeker.text import plain, readable

FORMAT = 1
MANIFEST = "manifest.json"
NAMES = re.compile(
    r"manifest\.json|policy\.toml|defense\.json|baseline-defense\.json|check\.json|tags\.csv|tags\.json"
    r"|attacks/attack-[1-9]\d{0,5}\.json|verdict\.json|certificates\.csv|images\.csv|verification\.json|README\.md"
    r"|software\.json|(run|baseline)/(run\.json|images\.parquet"
    r"|(parts|pending)/\d{6,12}-[0-9a-f]{16}\.parquet|broken/\d{6,12}-[0-9a-f]{16}\.json)"
)
WRITTEN = (1980, 1, 1, 0, 0, 0)  # what a zip calls the time before all others: nothing depends on when it was made
CHUNK = 2**20
MOST_NAMED = 20  # differences

Content = bytes | Path


class TamperedError(ObjectSeekerError):
    """An evidence file is not what it was, or does not give the verdict it states. `differences` says where."""

    def __init__(self, differences: list[str]) -> None:
        more = len(differences) - MOST_NAMED
        shown = differences[:MOST_NAMED] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("; ".join(shown))
        self.differences = differences


def write_archive(file: Path, members: Mapping[str, Content]) -> str:
    """Write the members and their manifest; the SHA-256 of the file."""
    hashes = {name: _hash(content) for name, content in sorted(members.items())}
    manifest = json_bytes({"format": FORMAT, "members": hashes})

    def write(stream: BinaryIO) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, content in [(MANIFEST, manifest), *sorted(members.items())]:
                entry = zipfile.ZipInfo(name, WRITTEN)
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                if isinstance(content, bytes):
                    archive.writestr(entry, content)
                    continue
                entry.file_size = content.stat().st_size
                with content.open("rb") as source, archive.open(entry, "w") as target:
                    while some := source.read(CHUNK):
                        target.write(some)

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, write)
    return _hash(file)


def unpack_archive(file: Path, folder: Path) -> list[str]:
    """Put the members into `folder`, each verified against the manifest; their names."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _unpacked(archive, file, folder)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {readable(file)}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, ObjectSeekerError):
            raise
        raise ObjectSeekerError(f"{readable(file)} is not an evidence file, or is damaged: {error}") from None


def _unpacked(archive: zipfile.ZipFile, file: Path, folder: Path) -> list[str]:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if MANIFEST not in names:
        raise ObjectSeekerError(f"{readable(file)} is not an evidence file: it has no {MANIFEST}; gate writes one")
    for entry in entries:
        if NAMES.fullmatch(entry.filename) is None:
            raise ObjectSeekerError(f"{readable(file)} has a member {plain(entry.filename)}: no evidence file has that")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ObjectSeekerError(f"{readable(file)} has {entry.filename} compressed: gate stores them as they are")
    if len(set(names)) < len(names) or sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise ObjectSeekerError(f"{readable(file)} has members twice or on top of each other: gate writes each once")
    stated = _manifest(archive.read(MANIFEST), file)
    differences = [f"{name} is missing" for name in sorted(stated.keys() - set(names))]
    differences += [f"{name} is not in the manifest" for name in sorted(set(names) - stated.keys() - {MANIFEST})]
    for name in sorted(stated.keys() & set(names)):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        try:
            with archive.open(name) as source, place.open("wb") as target:
                while some := source.read(CHUNK):
                    digest.update(some)
                    target.write(some)
        except zipfile.BadZipFile as error:
            differences.append(f"{name} is damaged ({error})")
            continue
        if digest.hexdigest() != stated[name]:
            differences.append(f"{name} has sha256 {digest.hexdigest()[:16]}, the manifest says {stated[name][:16]}")
    if differences:
        raise TamperedError(differences)
    return sorted(stated)


def _manifest(content: bytes, file: Path) -> dict[str, str]:
    try:
        values = json.loads(content)
        members = {str(name): str(value) for name, value in values["members"].items()}
        written_as = values["format"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ObjectSeekerError(f"{readable(file)} has a {MANIFEST} that cannot be read") from None
    if written_as != FORMAT:
        raise ObjectSeekerError(f"{readable(file)} has format {written_as!r}, this objectseeker reads {FORMAT}")
    return members


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _hash(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def certificates_csv(measured: RunMeasurements) -> str:
    """Every counted object against every patch that was asked for."""
    rows: list[dict[str, str]] = []
    for threat, certified in measured.certified.items():
        patch = {"patch_area": repr(threat.area), "aspect": repr(threat.aspect), "patches": str(threat.count)}
        vacuous = measured.vacuous[threat][PATCH_LOCATIONS.index("far")]
        for n, box in enumerate(measured.box.tolist()):
            corners = {name: repr(value) for name, value in zip(("x1", "y1", "x2", "y2"), box, strict=True)}
            rows.append(
                {
                    "image": measured.ids[measured.image[n]],
                    "object": str(measured.number[n]),
                    "class": measured.names[measured.label[n]],
                    **corners,
                    **patch,
                    "threshold": repr(threat.threshold),
                    **{where: str(bool(certified[place, n])) for place, where in enumerate(PATCH_LOCATIONS)},
                    "vacuous_far": str(bool(vacuous[n])),
                    "found": str(bool(measured.found[n])),
                }
            )
    return to_csv(rows)


def verification(gate: Gate) -> dict[str, Any]:
    """What kind of verification this is, and what it rests on, with how each assumption was checked."""
    about, patches = gate.about, [one.patch for one in gate.policy.requirements if "patch" in one.kind.keys]
    sizes = [f"{patch.area:g} of the image, aspect {patch.aspect:g}, {patch.where}" for patch in patches]
    return {
        "in_the_terms_of": "ISO/IEC 24029-2:2023, formal methods for the robustness of neural networks; no claim is "
        "made to fulfil that document",
        "property": "for every input of the domain the defended detector outputs a box of the object's class that "
        "covers more than T of it",
        "deterministic": "a certificate is a proof about one object of one image; only the intervals of the verdicts "
        "are statistics, over the images",
        "incomplete": "an object that is not certified may or may not be hidden by some patch",
        "closed_box": "the detector is only run, on masked views; weights and gradients are not looked at",
        "arithmetic": "computer arithmetic: the detector's numbers are taken as the machine computed them, comparisons "
        "of boxes leave a margin of 1e-9 on the safe side, positions are whole numbers and exact",
        "input_domain": {
            "inputs": "every image of the run with any pixels in one axis-parallel rectangle of at most this size, at "
            "every allowed whole-number position, also over the border",
            "patches": sizes,
            "images": about["run"]["images"],
        },
        "assumptions": _assumptions(gate),
    }


def _assumptions(gate: Gate) -> list[dict[str, str]]:
    """Those of docs/guarantee.md, in their order."""
    run, checks = gate.about["run"], [one for one in gate.judgments if one.requirement.figure == "check_detector"]
    checked = checks[0].reason if checks else "the policy does not ask for check-detector"
    unverified = run["detector_unverified"]
    identity = "named by a hash of its weights and settings" if unverified is None else f"not verified: {unverified}"
    return [
        {
            "assumption": "the detector is a pure function of the pixels that it may see",
            "how": f"{checked}; that is a test and no proof",
        },
        {
            "assumption": "the patch is one axis-parallel rectangle in raw image pixels, and the rest of the image is "
            "what the certificate was computed on",
            "how": "taken as given: it says which attacker is meant",
        },
        {
            "assumption": "the patch is at most of the size that the certificate names",
            "how": "taken as given; the sizes are those of the policy",
        },
        {
            "assumption": "the same numbers come out where it is deployed",
            "how": f"the detector is {identity}; the versions it ran with are in run/run.json; deploy on the same",
        },
        {
            "assumption": "objects are what their annotations say",
            "how": f"taken as given, in dataset {run['dataset_identity'][:16]}; images not read: {run['left_out']}",
        },
    ]


def readme(gate: Gate) -> str:
    """What a reader finds first."""
    said = verification(gate)
    lines = [
        "# Evidence of a release gate",
        "",
        "`objectseeker verify FILE.zip` recomputes the verdict from the boxes in here, without detector or images, and",
        "refuses the file if anything in it differs. The file carries no signature: who can write it can write another",
        "one. Keep its SHA-256 elsewhere, or sign it.",
        "",
        markdown_of(gate),
        f"## What kind of verification this is, in the terms of {said['in_the_terms_of']}",
        "",
        *(f"- {key.replace('_', ' ')}: {said[key]}" for key in ("property", "deterministic", "incomplete")),
        *(f"- {key.replace('_', ' ')}: {said[key]}" for key in ("closed_box", "arithmetic")),
        f"- input domain: {said['input_domain']['inputs']}",
        *(f"  - {patch}" for patch in said["input_domain"]["patches"]),
        "",
        "## What it rests on",
        "",
        *(f"{n}. {one['assumption']}: {one['how']}." for n, one in enumerate(said["assumptions"], 1)),
    ]
    return "\n".join(lines) + "\n"
