"""Audit bundles, policies, attack files and claims, edited (used by fuzz.py).

Most are read in this process, as the commands read them; every COMMAND_EVERY-th goes through the command line, for its
exit code.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import write_dataset
from fuzz_commands import run_command, sentence_of
from fuzz_kinds import Kind
from fuzz_mutations import Rng, pick, spoiled_bytes, spoiled_json, spoiled_text

from objectseeker import Defense, ObjectSeekerError, codec
from objectseeker.attack.metrics import read_attack, read_recall
from objectseeker.core.boxes import Detections
from objectseeker.gate import verify
from objectseeker.gate.audit_bundle import MANIFEST, SOFTWARE, write_bundle
from objectseeker.gate.policy import parse_policy
from objectseeker.metrics.claim import TOLERANCE, Claim, check_claim
from objectseeker.runs.run import checksum, open_run
from objectseeker.runs.tables import PART_SCHEMA, decode_boxes, encode_boxes

COMMAND_EVERY = 20
BOXES = [(20, 10, 12, 9), (2, 2, 9, 9), (14, 5, 20, 20)]
MAX_EQUAL_BOXES = 4_000_000
POLICY = """
format = 1
bootstrap_samples = 200
max_boxes_per_image = 2
[[require]]
metric = "certified_recall"
location = "over"
patch_area = "2%"
at_least = "1 %"
[[require]]
metric = "joint_certified_recall"
patch_area = 0.02
certification_threshold = 0.25
at_least = "1 %"
min_objects = 2
[[require]]
metric = "false_alert_rate"
at_most = "50 %"
slice = "light"
[[require]]
metric = "fppi"
at_most = 2.5
[[require]]
metric = "recall_under_attack"
patch_area = "2%"
location = "over"
at_least = "1 %"
"""
GATE = ["gate", "run", "--policy", "policy.toml", "--defense", "defense.json", "--tags", "tags.csv"]


class Release(Kind):
    """A small release: a run, a defense, a policy, an attack, and the audit bundle of its verdict."""

    seconds = 120.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.absolute())
        os.chdir(self.folder)
        write_dataset(self.folder, BOXES, size=(48, 32))
        detector = ["--detector", "python:mine:detect", "--set", "masks=halves:2"]
        _expect(run_command(["observe", "coco:truth.json:images", *detector, "--out", "run"]), 0)
        run = open_run(self.folder / "run")
        run.defense().save(self.folder / "defense.json")
        self.defense = run.bind_defense(Defense.load(self.folder / "defense.json"))
        (self.folder / "policy.toml").write_text(POLICY)
        (self.folder / "tags.csv").write_text("image,light\n0.png,day\n1.png,night\n2.png,day\n")
        (self.folder / "attack.json").write_text(json.dumps(self._attack(run.images()[0])))
        extra = ["--attack-results", "attack.json", "--out", "gate", "--audit-bundle", "audit.zip"]
        status, printed, told = run_command([*GATE, *extra])
        if status not in (0, 1):
            raise RuntimeError(f"the release to spoil was not judged: {printed}{told}")

    def _attack(self, image) -> dict[str, object]:  # type: ignore[no-untyped-def]
        row = {
            "image": image.id,
            "object": 0,
            "class": "bright",
            "box": image.ground_truth.xyxy[0].tolist(),
            "certified": False,
            "found_undefended": True,
            "found_defended": True,
            "undefended_survived": False,
            "defended_survived": True,
            "guarantee_broken": False,
            "effects": {"undefended": None, "defended": None},
        }
        return {
            "defense": self.defense.to_dict() | {"sha256": self.defense.sha256},
            "patch": {"area": 0.02, "aspect": 1.0, "location": "over", "count": 1},
            "certification_threshold": 0.0,
            "objects": [row],
        }


class Bundles(Release):
    name = "bundles"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._whole = (self.folder / "audit.zip").read_bytes()
        with zipfile.ZipFile(io.BytesIO(self._whole)) as archive:
            self._members = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
        self._fingerprint = open_run(self.folder / "run").fingerprint
        verify(self.folder / "audit.zip")

    def write(self, rng: Rng) -> tuple[Path, bool]:
        file, members = self.folder / "spoiled.zip", dict(self._members)
        way = int(rng.integers(8))
        if way == 0:
            file.write_bytes(spoiled_bytes(rng, self._whole))
            return file, rng.random() < 1 / COMMAND_EVERY
        for _ in range(int(rng.integers(1, 3))):
            self._spoil(rng, members)
        write_bundle(file, members)
        if way == 1:
            _repack(rng, file)
        return file, rng.random() < 1 / COMMAND_EVERY

    def _spoil(self, rng: Rng, members: dict[str, bytes]) -> None:
        """Edit one member; a part then gets the name that its content has."""
        name, other = pick(rng, sorted(members)), pick(rng, sorted(members))
        way = int(rng.integers(6))
        content = members[name]
        if name.endswith(".parquet") and "/parts/" in name and way < 4:
            del members[name]
            number = int(name.split("/")[-1].split("-")[0])
            content = spoiled_bytes(rng, content) if way == 0 else _other_boxes(rng, content)
            folder = "pending" if rng.random() < 0.2 else "parts"
            name = f"run/{folder}/{number:06d}-{checksum(self._fingerprint, number, content)}.parquet"
            members[name] = content
        elif way == 4:
            del members[name]
        elif way == 5:
            members[name], members[other] = members[other], members[name]
        elif name.endswith(".json") and way < 3:
            members[name] = spoiled_json(rng, json.loads(self._members[name]))
        else:
            members[name] = spoiled_bytes(rng, content)

    def judge(self, made: tuple[Path, bool]) -> str | None:
        file, by_command = made
        os.chdir(self.folder)
        if by_command:
            status, printed, told = run_command(["verify", str(file)])
            if status not in (0, 1, 2):
                raise RuntimeError(f"exit status {status}: {told[-500:]}")
            if status:
                raise ObjectSeekerError(sentence_of(told) or (printed.splitlines() or ["nothing was printed\n"])[0])
        else:
            verify(file)
        return None if self._is_same(file) else "an edited bundle is taken for what gate wrote"

    def _is_same(self, file: Path) -> bool:
        """Whether it is the bundle itself, but for the record of versions, from which nothing follows."""
        with zipfile.ZipFile(file) as archive:
            kept = {name: archive.read(name) for name in archive.namelist() if name not in (MANIFEST, SOFTWARE)}
        return kept == {name: self._members[name] for name in self._members if name != SOFTWARE}


class Policies(Release):
    name = "policies"

    def write(self, rng: Rng) -> tuple[Path, bool]:
        file, text = self.folder / "spoiled.toml", (self.folder / "policy.toml").read_text()
        if rng.random() < 0.8:
            file.write_bytes(spoiled_text(rng, text).encode(errors="surrogatepass"))
        else:
            file.write_bytes(spoiled_bytes(rng, text.encode()))
        return file, rng.random() < 1 / COMMAND_EVERY

    def judge(self, made: tuple[Path, bool]) -> str | None:
        file, by_command = made
        os.chdir(self.folder)
        if by_command:
            words = [*GATE, "--attack-results", "attack.json", "--baseline", "run"]
            _judge_command([str(file) if word == "policy.toml" else word for word in words])
            return None
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ObjectSeekerError("not UTF-8") from None
        policy = parse_policy(text, str(file))
        if not policy.requirements or not 0 < policy.confidence < 1:
            return "a policy without a requirement, or without a confidence"
        return None


class Attacks(Release):
    name = "attacks"

    def write(self, rng: Rng) -> tuple[Path, bool]:
        file, content = self.folder / "spoiled.json", (self.folder / "attack.json").read_bytes()
        if rng.random() < 0.8:
            file.write_bytes(spoiled_json(rng, json.loads(content)))
        else:
            file.write_bytes(spoiled_bytes(rng, content))
        return file, rng.random() < 1 / COMMAND_EVERY

    def judge(self, made: tuple[Path, bool]) -> str | None:
        file, by_command = made
        os.chdir(self.folder)
        if by_command:
            _judge_command([*GATE, "--attack-results", str(file)], refuted=3)
            return None
        attack, rows = read_attack(file)
        read_recall(file, self.defense, attack.patch, certification_threshold=attack.certification_threshold)
        flags = ("found_defended", "found_undefended", "guarantee_broken", "certified", "vacuous")
        for row in rows:
            if not all(isinstance(row.get(flag, False), bool) for flag in flags):
                return "a flag that is neither true nor false"
            if row["defended_survived"] is None and row["found_defended"] and not row.get("vacuous", False):
                return "an object that is found and was not attacked"
        return None


class Claims(Release):
    """A claim about the run, measured again."""

    name = "claims"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        words = ["evaluate", "run", "--defense", "defense.json", "--claim", "mine.json"]
        _expect(run_command(words), 0)
        self._run = open_run(self.folder / "run")
        self._content = (self.folder / "mine.json").read_bytes()
        if differences := check_claim(Claim.load(self.folder / "mine.json"), self._run):
            raise RuntimeError(f"the claim to spoil does not hold: {differences[0]}")
        self._plain = json.loads(self._content)

    def write(self, rng: Rng) -> Path:
        file = self.folder / "mine.json"
        if rng.random() < 0.8:
            file.write_bytes(spoiled_json(rng, json.loads(self._content)))
        else:
            file.write_bytes(spoiled_bytes(rng, self._content))
        return file

    def judge(self, made: Path) -> str | None:
        claim = Claim.load(made)
        if differences := check_claim(claim, self._run):
            raise ObjectSeekerError(f"rejected: {differences[0]}")
        given = codec.to_plain(claim)
        for key, value in self._plain.items():
            if key not in ("format", "metrics", "defense") and value != given[key]:
                return f"{key} was changed without a word"
        for key, metric in self._plain["metrics"].items():
            if any(abs(metric[end] - given["metrics"][key][end]) > TOLERANCE for end in metric):
                return f"{key} was changed without a word"
        schedule = {"threshold_schedule": None}  # one with the same curve makes the same claim
        if self._plain["defense"] | schedule != given["defense"] | schedule:
            return "the defense was changed without a word"
        return None


def _judge_command(words: list[str], refuted: int = 0) -> None:
    status, _, told = run_command(words)
    if status not in (0, 1, 2, refuted):
        raise RuntimeError(f"exit status {status}: {told[-500:]}")
    if status == 2:
        raise ObjectSeekerError(sentence_of(told) or f"no message from {words}\n")


def _expect(found: tuple[int, str, str], status: int) -> None:
    if found[0] != status:
        raise RuntimeError(f"exit status {found[0]}: {found[1]}{found[2]}")


def _other_boxes(rng: Rng, content: bytes) -> bytes:
    """A part with other boxes, other columns, or a few bytes of very many equal boxes."""
    way = int(rng.integers(4))
    if way == 0:
        count = int(rng.integers(1, MAX_EQUAL_BOXES))
        values = {field.name: np.full(count, field.name in ("x2", "y2")) for field in PART_SCHEMA}
        columns = {
            name: pa.array(column).cast(pa.int8()).cast(PART_SCHEMA.field(name).type) for name, column in values.items()
        }
        return _parquet(pa.table(columns))
    if way == 1:
        return _parquet(pa.table({"image": [0], "mask": ["a"]}))
    stored = decode_boxes(content)
    boxes = stored.boxes
    keep = rng.random(len(boxes)) < 0.9
    score = np.clip(boxes.score + rng.normal(0, 10.0 ** -rng.integers(1, 12), len(boxes)), 0, 1)
    changed = Detections(boxes.xyxy, score, boxes.label)[keep]
    observed: Mapping[int, tuple[int, int, str]] = stored.observed
    if way == 2:
        observed = {index: (width + 1, height, digest) for index, (width, height, digest) in observed.items()}
    return encode_boxes(
        replace(stored, image=stored.image[keep], mask=stored.mask[keep], boxes=changed, observed=observed)
    )


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"images": '[[0,48,32,""]]'})
    return sink.getvalue()


def _repack(rng: Rng, file: Path) -> None:
    """The same members in another zip."""
    with zipfile.ZipFile(file) as archive:
        entries, inside = archive.infolist(), {name: archive.read(name) for name in archive.namelist()}
    way = int(rng.integers(5))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if way == 0 else zipfile.ZIP_STORED) as archive:
        if way == 1:
            archive.comment = b"verified"
        for entry in reversed(entries) if way == 2 else entries:
            entry.compress_type = archive.compression
            if way == 3:
                entry.date_time = (2020, 1, 1, 0, 0, 0)
            archive.writestr(entry, inside[entry.filename])
        if way == 4:
            archive.writestr(entries[0], inside[entries[0].filename])
