"""The audit bundle: one zip with everything that a verdict was made from, and what follows from it.

    manifest.json     the SHA-256 of every other member
    policy.toml, defense.json, run/, baseline/, attacks/, detector-check.json, tags.csv    the inputs of the verdict
    verdict.json, certificates.csv, images.csv, assurance.json, README.md     what follows from them
    software.json     the versions that made it: a record, from which nothing follows

The same release yields the same bytes. A bundle is untrusted input, and reading it must fail closed: members are stored
uncompressed and have one of the names above, so nothing that is extracted can be larger than the file (no decompression
bomb) or be written outside its folder (no path traversal).
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import zipfile
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from objectseeker import codec
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError, sanitize_line
from objectseeker.files.atomic import write_atomic
from objectseeker.gate.judge import GateResult
from objectseeker.gate.page import verdict_markdown
from objectseeker.gate.release import (
    ATTACK_NAME,
    Content,
    ReleaseFiles,
    content_sha256,
    file_sha256,
    judge_release,
    run_members,
    without_path,
)
from objectseeker.metrics.tally import Tally
from objectseeker.runs.engines import installed_versions
from objectseeker.runs.run import Run, open_run
from objectseeker.runs.tables import require_bounded
from objectseeker.text import display_path, quote_plain, to_csv

FORMAT = 1
MANIFEST = "manifest.json"
MEMBER_NAMES = re.compile(
    r"manifest\.json|policy\.toml|defense\.json|baseline-defense\.json|detector-check\.json|tags\.csv|tags\.json"
    r"|attacks/attack-[1-9]\d{0,5}\.json|verdict\.json|certificates\.csv|images\.csv|assurance\.json|README\.md"
    r"|software\.json|(run|baseline)/(run\.json|images\.parquet"
    r"|(parts|pending)/\d{6,12}-[0-9a-f]{16}\.parquet|broken/\d{6,12}-[0-9a-f]{16}\.json)"
)
SOFTWARE = "software.json"
REQUIRED_MEMBERS = ("policy.toml", "defense.json", "run/run.json", SOFTWARE)
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of the format: nothing depends on when it was made
CHUNK = 2**20
MAX_DIFFERENCES = 20  # that an error names
MAX_DIFFERENCE_LENGTH = 400
MAX_VALUE_LENGTH = 60  # characters of a value in a difference


class BundleMismatchError(ObjectSeekerError):
    """The content of an audit bundle differs from what was written, or implies another verdict.

    `differences` names what differs.
    """

    def __init__(self, differences: list[str]) -> None:
        more = len(differences) - MAX_DIFFERENCES
        listed = differences[:MAX_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
        self.differences = [sanitize_line(difference[:MAX_DIFFERENCE_LENGTH]) for difference in listed]
        super().__init__("; ".join(self.differences))


def write_audit_bundle(file: Path, files: ReleaseFiles, gate: GateResult, measurements: Tally) -> str:
    """Write everything behind a verdict as one file; return its SHA-256."""
    for run in files.runs:
        for content in run_members(run).values():
            if isinstance(content, Path):
                require_bounded(content)
    return write_bundle(
        file, _members(files, gate, measurements, json_bytes(installed_versions() | {"platform": platform.platform()}))
    )


def _members(files: ReleaseFiles, gate: GateResult, measurements: Tally, software: bytes) -> dict[str, Content]:
    """Return every member but the manifest: the inputs of the verdict, and what follows from them."""
    members: dict[str, Content] = {
        "policy.toml": files.policy,
        "defense.json": _defense_json(files.defense),
        SOFTWARE: software,
        "verdict.json": json_bytes(gate.to_dict()),
        "certificates.csv": _certificates_csv(measurements).encode(),
        "images.csv": _images_csv(files.run).encode(),
        "assurance.json": json_bytes(assurance_statement(gate)),
        "README.md": _readme(gate).encode(),
        **{f"run/{name}": content for name, content in run_members(files.run).items()},
    }
    if files.baseline is not None and files.baseline_defense is not None:
        members |= {f"baseline/{name}": content for name, content in run_members(files.baseline).items()}
        members["baseline-defense.json"] = _defense_json(files.baseline_defense)
    for number, path in enumerate(files.attacks, 1):
        members[f"attacks/{ATTACK_NAME.format(number)}"] = path
    if files.detector_check is not None:
        members["detector-check.json"] = files.detector_check
    if files.tags is not None:
        members[f"tags{'.json' if files.tags.suffix.lower() == '.json' else '.csv'}"] = files.tags
    return members


def verify_bundle(file: Path) -> GateResult:
    """Write the bundle again from its inputs; reject one that is not the same to the last byte.

    Raises:
        BundleMismatchError: The content differs from what `gate` writes; or it cannot be judged at all, which `gate`
            would not have written either.
        ObjectSeekerError: The file is not an audit bundle.
    """
    with TemporaryDirectory() as temporary:
        folder, rebuilt = Path(temporary, "content"), Path(temporary, "rebuilt.zip")
        names = extract_bundle(file, folder)
        try:
            files = _read_release(folder, names)
            gate, measurements = judge_release(files)
            software = codec.read_json((folder / SOFTWARE).read_bytes(), dict[str, str], SOFTWARE)  # in its one form
            members = _members(files, gate, measurements, json_bytes(software))
        except (BundleMismatchError, MemoryError):
            raise
        except Exception as error:
            # Fail closed at the trust boundary: what was judged once can be judged again, unless it was changed.
            what = str(error) if isinstance(error, ObjectSeekerError) else f"{type(error).__name__}: {error}"
            raise BundleMismatchError([f"cannot be judged: {what}".replace(f"{folder}/", "")]) from error
        differences = [f"{name} does not belong to this release" for name in sorted(set(names) - members.keys())]
        for name, content in sorted(members.items()):
            differences += _member_differences(name, folder / name, content)
        if not differences and write_bundle(rebuilt, members) != file_sha256(file):
            differences = ["the zip is not packed as gate packs it: order, dates, attributes, comments or hidden bytes"]
        if differences:
            raise BundleMismatchError(differences)
        return gate


def write_bundle(file: Path, members: Mapping[str, Content]) -> str:
    """Write the members with their manifest as a zip, atomically; return its SHA-256."""
    manifest = _manifest({name: content_sha256(content) for name, content in members.items()})

    def write(stream: BinaryIO) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, content in [(MANIFEST, manifest), *sorted(members.items())]:
                entry = zipfile.ZipInfo(name, ZIP_EPOCH)
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                if isinstance(content, bytes):
                    archive.writestr(entry, content)
                    continue
                entry.file_size = content.stat().st_size
                with content.open("rb") as source, archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, CHUNK)

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, write)
    return file_sha256(file)


def _manifest(hashes: Mapping[str, str]) -> bytes:
    return json_bytes({"format": FORMAT, "members": dict(sorted(hashes.items()))})


def extract_bundle(file: Path, folder: Path) -> list[str]:
    """Extract the members into `folder`, each verified against the manifest; return their names."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _extract(archive, file, folder)
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {display_path(file)}: {error.strerror or error}") from None
    except ObjectSeekerError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ObjectSeekerError(
            f"{display_path(file)} is not an audit bundle, or is damaged: {error}. Get it again."
        ) from None


def _extract(archive: zipfile.ZipFile, file: Path, folder: Path) -> list[str]:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if MANIFEST not in names:
        raise ObjectSeekerError(f"{display_path(file)} is not an audit bundle: it has no {MANIFEST}; gate writes one")
    for entry in entries:
        if MEMBER_NAMES.fullmatch(entry.filename) is None:
            raise ObjectSeekerError(
                f"{display_path(file)} has a member {quote_plain(entry.filename)}: not of a bundle. Get it again."
            )
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ObjectSeekerError(
                f"{display_path(file)} has {entry.filename} compressed: gate stores members uncompressed. Get it again."
            )
    if len(set(names)) < len(names) or sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise ObjectSeekerError(
            f"{display_path(file)} has members twice or on top of each other: gate writes each once. Get it again."
        )
    damaged = []
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with archive.open(name) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
        except zipfile.BadZipFile as error:
            damaged.append(f"{name} is damaged ({error})")
    names.remove(MANIFEST)
    manifest = _manifest({name: file_sha256(folder / name) for name in names})
    missing = [f"{name} is missing" for name in REQUIRED_MEMBERS if name not in names]
    if differences := damaged or _member_differences(MANIFEST, folder / MANIFEST, manifest) or missing:
        raise BundleMismatchError(differences)
    return names


def _read_release(folder: Path, names: list[str]) -> ReleaseFiles:
    """Open the runs of a bundle, none of which takes much more memory than its files."""

    def run_of(name: str) -> Run:
        run = open_run(folder / name)
        damaged = [f"{name}/{path.parent.name}/{path.name}" for path in run.damaged]
        if damaged:
            raise BundleMismatchError([f"{path} does not match the checksum in its name" for path in damaged])
        return run

    def defense_of(name: str, run: Run) -> Defense:
        return run.bind_defense(Defense.load(folder / name))

    def optional(name: str) -> Path | None:
        return folder / name if name in names else None

    for name in names:
        if name.endswith(".parquet"):
            require_bounded(folder / name)
    run = run_of("run")
    baseline = run_of("baseline") if "baseline/run.json" in names else None
    attacks = [name for name in names if name.startswith("attacks/")]
    return ReleaseFiles(
        policy=folder / "policy.toml",
        run=run,
        defense=defense_of("defense.json", run),
        baseline=baseline,
        baseline_defense=None if baseline is None else defense_of("baseline-defense.json", baseline),
        attacks=[folder / name for name in sorted(attacks, key=lambda name: (len(name), name))],
        detector_check=optional("detector-check.json"),
        tags=optional("tags.csv") or optional("tags.json"),
    )


def _defense_json(defense: Defense) -> bytes:
    portable = without_path(defense)
    return json_bytes(portable.to_dict() | {"sha256": portable.sha256})


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _images_csv(run: Run) -> str:
    """List the observed images with the hash of each one's file, if the run has it."""
    rows = []
    for number in sorted(run.files):
        boxes = run.boxes_of_part(number)
        for index in run.indices_in_part(number):
            width, height, digest = boxes.observed[index]
            entry = run.manifest.images[index]
            rows.append({"image": entry.id, "width": str(width), "height": str(height), "file_hash": digest})
    return to_csv(rows)


def _certificates_csv(measurements: Tally) -> str:
    """List every counted object with its certificates against every required patch."""
    rows: list[dict[str, str]] = []
    objects = measurements.objects
    locations = max((threat.locations for threat in objects.certified), key=len, default=PATCH_LOCATIONS)
    for threat, certified in objects.certified.items():
        patch = {"patch_area": repr(threat.area), "patch_aspect": repr(threat.aspect), "patch_count": str(threat.count)}
        vacuous = objects.vacuous[threat][:, PATCH_LOCATIONS.index("far")]
        for n, box in enumerate(objects.box.tolist()):
            corners = {name: repr(value) for name, value in zip(("x1", "y1", "x2", "y2"), box, strict=True)}
            rows.append(
                {
                    "image": measurements.ids[objects.image[n]],
                    "object": str(objects.number[n]),
                    "class": measurements.names[objects.label[n]],
                    **corners,
                    **patch,
                    "certification_threshold": repr(threat.certification_threshold),
                    **dict.fromkeys(locations, ""),
                    **{name: str(bool(certified[n, place])) for place, name in enumerate(threat.locations)},
                    "vacuous_far": str(bool(vacuous[n])),
                    "detected": str(bool(objects.found[n])),
                }
            )
    return to_csv(rows)


def assurance_statement(gate: GateResult) -> dict[str, Any]:
    """State which kind of verification this is, what it assumes, and how each assumption was checked."""
    patches = [requirement.patch for requirement in gate.policy.requirements if requirement.has_patch]
    sizes = [f"{patch.area:g} of the image, aspect {patch.aspect:g}, {patch.location}" for patch in patches]
    return {
        "in_the_terms_of": "ISO/IEC 24029-2:2023, formal methods for the robustness of neural networks; no claim is "
        "made to fulfil that document",
        "property": "for every input of the domain the defended detector outputs "
        + gate.inputs["defense"]["certifies"],
        "deterministic": "a certificate is a proof about one object of one image; only the intervals of the verdicts "
        "are statistics, over the images",
        "incomplete": "some patch may or may not hide an object that is not certified",
        "closed_box": "the detector is only run, on masked views; weights and gradients are not inspected",
        "arithmetic": "floating point: the detector's numbers are used as the machine computed them, comparisons "
        "of boxes leave a margin of 1e-9 on the safe side, positions are whole numbers and exact",
        "input_domain": {
            "inputs": "every image of the run with any pixels in one axis-parallel rectangle of at most this size, at "
            "every allowed whole-number position, also over the border",
            "patches": sizes,
            "images": gate.inputs["run"]["images"],
        },
        "assumptions": _assumptions(gate),
    }


def _assumptions(gate: GateResult) -> list[dict[str, str]]:
    """The assumptions of docs/concepts/guarantee.md, in their order."""
    run = gate.inputs["run"]
    checks = [result.reason for result in gate.results if result.requirement.metric == "detector_check"]
    check = checks[0] if checks else "the policy does not require objectseeker check"
    unverified = run["unverified_reason"]
    detector = (
        "identified by a hash of its weights and settings" if unverified is None else f"not verified: {unverified}"
    )
    stated = (
        ("the detector is a pure function of the pixels that it may see", f"{check}; that is a test, not a proof"),
        (
            "the patch is one axis-parallel rectangle in raw image pixels, and the rest of the image is what the "
            "certificate was computed on",
            "assumed: it defines the attacker",
        ),
        (
            "the patch is at most of the size that the certificate names",
            "assumed; the sizes are those of the policy",
        ),
        (
            "the same numbers are computed where it is deployed",
            f"the detector is {detector}; the versions it ran with are in run/run.json; deploy on the same",
        ),
        (
            "objects are what their annotations say",
            f"assumed, in dataset {run['dataset_fingerprint'][:16]}; unreadable images: {run['unreadable_images']}",
        ),
    )
    return [{"assumption": assumption, "how": how} for assumption, how in stated]


def _readme(gate: GateResult) -> str:
    statement = assurance_statement(gate)
    lines = [
        "# Audit bundle of a release gate",
        "",
        "`objectseeker verify FILE.zip` recomputes the verdict from the boxes in here, without detector or images, and",
        "rejects the file if anything in it differs. The file carries no signature: anyone with write access can write",
        "another one. Keep its SHA-256 elsewhere, or sign it.",
        "",
        verdict_markdown(gate),
        f"## Kind of verification, in the terms of {statement['in_the_terms_of']}",
        "",
        *(f"- {key.replace('_', ' ')}: {statement[key]}" for key in ("property", "deterministic", "incomplete")),
        *(f"- {key.replace('_', ' ')}: {statement[key]}" for key in ("closed_box", "arithmetic")),
        f"- input domain: {statement['input_domain']['inputs']}",
        *(f"  - {patch}" for patch in statement["input_domain"]["patches"]),
        "",
        "## Assumptions",
        "",
        *(f"{n}. {entry['assumption']}: {entry['how']}." for n, entry in enumerate(statement["assumptions"], 1)),
    ]
    return "\n".join(lines) + "\n"


def _member_differences(name: str, file: Path, recomputed: Content) -> list[str]:
    """Describe how a member differs from what follows from the inputs."""
    if not file.is_file():
        return [f"{name} is missing"]
    if isinstance(recomputed, Path):  # an input of its own
        return []
    stated = file.read_bytes()
    if stated == recomputed:
        return []
    if name.endswith(".json") and name != SOFTWARE:
        try:
            differences = _value_differences(json.loads(stated), json.loads(recomputed), name)
        except (ValueError, RecursionError):
            return [f"{name} cannot be read"]
        return differences or [f"{name} is formatted in another way"]
    lines = zip_longest(
        stated.decode(errors="replace").splitlines(), recomputed.decode().splitlines(), fillvalue="nothing"
    )
    for number, (expected, actual) in enumerate(lines, 1):
        if expected != actual:
            return [f"{name} line {number} says {_format(expected)}, recomputed it is {_format(actual)}"]
    return [f"{name} is formatted in another way"]


def _value_differences(stated: Any, recomputed: Any, path: str) -> list[str]:
    """Describe where two JSON values differ."""
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        return [
            difference
            for key in sorted({*stated, *recomputed})
            for difference in _value_differences(
                stated.get(key, "nothing"), recomputed.get(key, "nothing"), f"{path} {_format(key)}"
            )
        ]
    if isinstance(stated, list) and isinstance(recomputed, list) and len(stated) == len(recomputed):
        pairs = enumerate(zip(stated, recomputed, strict=True), 1)
        return [difference for n, (a, b) in pairs for difference in _value_differences(a, b, f"{path} {n}")]
    if stated == recomputed:
        return []
    return [f"{path} says {_format(stated)}, recomputed it is {_format(recomputed)}"]


def _format(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."
