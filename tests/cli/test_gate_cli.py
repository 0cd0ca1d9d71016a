"""The whole way: observe, tune, gate, verify; and audit bundles that were edited."""

import contextlib
import csv
import hashlib
import html
import io
import json
import re
import shutil
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import write_dataset

import objectseeker
from objectseeker import Defense, Halves, IouRule, Rule
from objectseeker.cli._app import program
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError
from objectseeker.gate import verify
from objectseeker.gate.audit_bundle import MANIFEST, json_bytes, write_bundle
from objectseeker.gate.policy import parse_policy
from objectseeker.runs.run import checksum, open_run
from objectseeker.runs.tables import PART_SCHEMA, decode_boxes, encode_boxes

POLICY = """
format = 1
bootstrap_samples = 200
max_boxes_per_image = 2
[[require]]
metric = "certified_recall"
location = "over"
patch_area = "{patch}"
at_least = "{certified} %"
[[require]]
metric = "clean_ap50_loss"
at_most = "40 points"
[[require]]
metric = "false_alert_rate"
at_most = "50 %"
slice = "light"
[[require]]
metric = "clean_recall"
max_regression = "30 points"
[[require]]
metric = "detector_check"
"""


def call(*arguments, code=0):
    """The command line in this process, what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            found = program()([str(one) for one in arguments], standalone_mode=False) or 0
        except SystemExit as left:
            found = left.code
    assert found == code, out.getvalue()
    return out.getvalue()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Twelve images with one bright box each, a run, a tuned defense, a transcript, and tags."""
    rng = np.random.default_rng(0)
    boxes = [(int(rng.integers(5, 50)), int(rng.integers(5, 30)), 30, 20) for _ in range(12)]
    folder = write_dataset(tmp_path_factory.mktemp("gate"), boxes)
    with contextlib.chdir(folder):
        observe = ["observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks", "halves:3"]
        call(*observe, "--out", "run")
        few = [
            "--set",
            "filter_ioa=0.6",
            "--set",
            "edge_factor=1",
            "--set",
            "cluster_distance=0.1",
        ]
        call("tune", "run", "--operating-point", "clean_recall=0.5", *few, "--out", "tuned")
        forgetful = replace(Defense.load("tuned/defense.json"), tuned_on=None)
        forgetful.save("tuned/defense.json")  # the gate gives no verdict on the images that chose a defense
        said = call("check", "--defense", "tuned/defense.json", "images/0.png", "--json")
        (folder / "check.json").write_text(said)
        rows = "".join(f"{n}.png,{'night' if n % 2 else 'day'}\n" for n in range(12))
        (folder / "tags.csv").write_text("image,light\n" + rows)
        for name, patch, certified in (("easy", "2%", 10), ("hard", "80%", 30), ("unsure", "2%", 45)):
            (folder / f"{name}.toml").write_text(POLICY.format(patch=patch, certified=certified))
        yield folder


GATE = ["--defense", "tuned/defense.json", "--baseline", "run", "--detector-check", "check.json", "--tags", "tags.csv"]


@pytest.fixture(scope="module")
def bundle(workplace):
    out = ["--out", "gate", "--audit-bundle", "audit.zip"]
    printed = call("gate", "run", "--policy", "easy.toml", *GATE, *out)
    assert "pass: 5 of 5 requirements pass" in printed
    return workplace / "audit.zip"


def test_a_release_passes_and_leaves_what_people_and_servers_read(workplace, bundle):
    folder = workplace / "gate"
    assert {file.name for file in folder.iterdir()} == {"gate.json", "junit.xml", "gate.md", "gate.html"}
    found = json.loads((folder / "gate.json").read_text())
    assert found["verdict"] == "pass"
    assert [one["outcome"] for one in found["requirements"]] == ["pass"] * 5
    assert [one["slice"] for one in found["requirements"][2]["slices"]] == ["light=day", "light=night"]
    assert (
        found["defense"]["sha256"]
        == Defense.load(workplace / "tuned" / "defense.json").with_fingerprint(found["defense"]["detector"]).sha256
    )
    assert 'tests="6" failures="0"' in (folder / "junit.xml").read_text()
    assert (folder / "gate.md").read_text().startswith("## Release gate: pass")


def test_runs_that_fail_or_are_undecided_exit_with_1(workplace):
    printed = call("gate", "run", "--policy", "unsure.toml", *GATE, "--json", code=1)
    found = json.loads(printed)
    assert found["verdict"] == "undecided"
    assert found["requirements"][0]["additional_images"] > 0
    call("gate", "run", "--policy", "unsure.toml", *GATE, "--allow-undecided")
    assert "fail: 4 of 5 requirements pass, 1 fail" in call("gate", "run", "--policy", "hard.toml", *GATE, code=1)
    assert "no baseline was given" in call("gate", "run", "--policy", "easy.toml", "--tags", "tags.csv", code=1)


def test_python_judges_as_the_command_line_does(workplace):
    seen = []
    result = objectseeker.gate(
        "run",
        "easy.toml",
        defense="tuned/defense.json",
        baseline="run",
        detector_check="check.json",
        tags="tags.csv",
        out="python",
        audit_bundle="python.zip",
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert (result.verdict, result.exit_status, seen[-1]) == ("pass", 0, (24, 24))
    printed = json.loads(call("gate", "run", "--policy", "easy.toml", *GATE, "--json"))
    assert result.to_dict() == printed
    assert json.loads((workplace / "python" / "gate.json").read_text()) == printed
    assert verify("python.zip").to_dict() == printed
    with pytest.raises(ObjectSeekerError, match="Name a baseline run"):
        objectseeker.gate("run", "easy.toml", baseline_defense="tuned/defense.json")


def written_with(folder, name, **changes):
    """What gate writes and says of the tuned defense with another rule."""
    tuned = Defense.load(folder / "tuned" / "defense.json")
    settings = {key: changes.pop(key) for key in ("classwise",) if key in changes}
    rule = replace(tuned.rule, **settings)
    rule = IouRule(ioa_rule=rule) if changes else rule
    replace(tuned, rule=rule, threshold_schedule=None).save(folder / f"{name}.json")
    (folder / "joint.toml").write_text(JOINT)
    out = ["--out", name, "--audit-bundle", f"{name}.zip"]
    call("gate", "run", "--policy", "joint.toml", "--defense", f"{name}.json", *out)
    inside = {path: content.decode() for path, content in members_of(folder / f"{name}.zip").items() if "/" not in path}
    written = {path.name: path.read_text() for path in (folder / name).iterdir()}
    return inside, written


JOINT = 'format = 1\n[[require]]\nmetric = "joint_certified_recall"\nat_least = "0 %"\n'


@pytest.mark.parametrize(
    ("changes", "property_"),
    [
        ({}, "a box of the object's class that covers more than T of it"),
        ({"classwise": False}, "a box of some class, not necessarily the object's, that covers more than T of it"),
        ({"iou": True}, "a box of the object's class whose IoU with it exceeds T"),
        (
            {"iou": True, "classwise": False},
            "a box of some class, not necessarily the object's, whose IoU with it exceeds T",
        ),
    ],
)
def test_what_is_stated_follows_from_the_defense(workplace, changes, property_):
    inside, written = written_with(workplace, "stated", **changes)
    assert json.loads(inside["assurance.json"])["property"].endswith(f"outputs {property_}")
    assert json.loads(written["gate.json"])["defense"]["certifies"] == property_
    for text in (inside["README.md"], written["gate.md"], html.unescape(written["gate.html"])):
        assert property_ in text
        assert "one output box may cover several of them" in text
    every = " ".join([*inside.values(), *written.values()])
    assert changes.get("classwise", True) == ("a box of the object's class" in html.unescape(every))


@pytest.mark.parametrize("other", [{"classwise": False}, {"iou": True}])
def test_what_certifies_different_things_is_not_compared(workplace, other):
    written_with(workplace, "same")
    written_with(workplace, "other", **other)
    arguments = ["gate", "run", "--policy", "joint.toml", "--baseline", "run"]
    call(*arguments, "--defense", "same.json", "--baseline-defense", "same.json")
    for one, another in (("same", "other"), ("other", "same")):
        with pytest.raises(ObjectSeekerError, match=r"the baseline certifies something else: a box of"):
            call(*arguments, "--defense", f"{one}.json", "--baseline-defense", f"{another}.json")


def test_the_example_is_a_policy(workplace):
    text = call("gate", "--example")
    assert parse_policy(text).confidence == 0.95


def attack_json(folder, survived, **changes):
    """An attack file on the tuned defense, of the first object."""
    run = open_run(folder / "run")
    defense = run.bind_defense(Defense.load(folder / "tuned" / "defense.json"))
    image = run.images()[0]
    row = {
        "image": image.id,
        "object": 0,
        "class": "bright",
        "box": image.ground_truth.xyxy[0].tolist(),
        "certified": True,
        "vacuous": False,
        "found_undefended": True,
        "found_defended": True,
        "undefended_survived": False,
        "defended_survived": survived,
        "guarantee_broken": not survived,
        "effects": {"undefended": None, "defended": None},
        **changes,
    }
    content = {
        "defense": defense.to_dict() | {"sha256": defense.sha256},
        "patch": {"area": 0.02, "aspect": 1.0, "location": "over", "count": 1},
        "certification_threshold": 0.0,
        "objects": [row],
    }
    (folder / "attack.json").write_text(json.dumps(content))


def test_a_refuted_certificate_exits_with_3(workplace):
    attack_json(workplace, True)
    arguments = ["gate", "run", "--policy", "easy.toml", *GATE, "--attack-results", "attack.json"]
    call(*arguments)
    attack_json(workplace, False)
    printed = call(*arguments, "--out", "refuted", "--audit-bundle", "refuted.zip", code=3)
    assert "refuted" in printed
    assert 'errors="1"' in (workplace / "refuted" / "junit.xml").read_text()
    assert "The verdict is refuted" in call("verify", "refuted.zip")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("defended_survived", 0, "must be true or false or null: got 0"),
        ("defended_survived", "false", "must be true or false or null: got 'false'"),
        ("guarantee_broken", None, "must be true or false: got None"),
        ("guarantee_broken", 0.0, "must be true or false: got 0.0"),
        ("found_defended", 1, "must be true or false: got 1"),
        ("box", [1, 2, True, 4], "must be a number: got True"),
        ("object", 0.5, "must be a whole number: got 0.5"),
        (
            "effects",
            {"undefended": {"object": "gone", "fabricated": 0}, "defended": None},
            "one of the documented values: got .gone.",
        ),
        ("effects", {"undefended": {"object": "found", "fabricated": 0.5}, "defended": None}, "whole number: got 0.5"),
    ],
)
def test_a_flag_that_is_neither_true_nor_false_is_no_survival(workplace, key, value, message):
    attack_json(workplace, False, **{key: value})
    with pytest.raises(
        ObjectSeekerError, match=rf"attack\.json: objects\[0\]\.{key}.* {message}: name an attack\.json"
    ):
        call("gate", "run", "--policy", "easy.toml", *GATE, "--attack-results", "attack.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_name": "bright"}, "unknown key 'class_name'"),
        ({"object": -1}, "object must be at least 0: got -1"),
        ({"leaking_views": -1}, "leaking_views must be at least 0"),
        ({"box": [9, 9, 1, 1]}, "a box needs x1 <= x2"),
        ({"box": [0, 0, 1e300, 1]}, "too large"),
        ({"effects": {"undefended": None, "defended": {"object": "found", "fabricated": -1}}}, "fabricated must be at"),
        ({"guarantee_broken": False}, "guarantee_broken must be true where a certified object was hidden"),
        ({"guarantee_broken": False, "defended_survived": None, "vacuous": True}, "but the patch has positions"),
    ],
)
def test_an_attack_that_contradicts_itself_or_the_run_is_rejected(workplace, changes, message):
    attack_json(workplace, False, **changes)
    with pytest.raises(ObjectSeekerError, match=message):
        call("gate", "run", "--policy", "easy.toml", *GATE, "--attack-results", "attack.json")


def test_an_attack_on_the_patch_and_the_outside_is_rejected(workplace):
    """None draws both, and no certificate of a policy is about both."""
    attack_json(workplace, False)
    content = json.loads((workplace / "attack.json").read_text())
    content["patch"]["with_outside"] = True
    (workplace / "attack.json").write_text(json.dumps(content))
    with pytest.raises(ObjectSeekerError, match="with_outside must be false"):
        call("gate", "run", "--policy", "easy.toml", *GATE, "--attack-results", "attack.json")


def test_bad_input_is_refused_before_anything_is_judged(workplace):
    (workplace / "wrong.toml").write_text("format = 1\n[[require]]\nmetric = 'color'\n")
    for arguments, message in (
        (["gate"], "name a run and a policy"),
        (["gate", "run", "--policy", "none.toml"], "gate --example"),
        (["gate", "run", "--policy", "wrong.toml"], "'color'"),
        (["gate", "run", "--policy", "easy.toml", "--attack-results", "tags.csv"], "name an attack.json"),
        (["gate", "run", "--policy", "easy.toml", "--detector-check", "truth.json"], "not a detector check report"),
        (["gate", "run", "--policy", "easy.toml", "--baseline-defense", "tuned/defense.json"], "--baseline RUN"),
        (["verify", "truth.json"], "not an audit bundle"),
        (["verify", "none.zip"], "cannot read"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            call(*arguments)


def test_ap_is_not_measured_on_a_curve_that_was_not_stored(workplace):
    """The rule uses scores of at least 0.5, its curve of at least 0.05: below 0.1 the run has no masked boxes."""
    follow = ThresholdSchedule(alpha=0.05, beta=0.0)
    Defense(
        detector="python:mine:detect", rule=follow.rule(Rule(), 0.5), masks=Halves(3), threshold_schedule=follow
    ).save("low.json")
    (workplace / "ap.toml").write_text('format = 1\n[[require]]\nmetric = "clean_ap50"\nat_least = "10 %"\n')
    (workplace / "recall.toml").write_text(
        'format = 1\nmax_boxes_per_image = 2\n[[require]]\nmetric = "clean_recall"\nat_least = "10 %"\n'
    )
    call("gate", "run", "--policy", "recall.toml", "--defense", "low.json")
    with pytest.raises(ObjectSeekerError, match=r"scores of at least 0\.05 .* the run stores none below 0\.1"):
        call("gate", "run", "--policy", "ap.toml", "--defense", "low.json")


def test_an_unfinished_run_is_not_judged(workplace, tmp_path):
    shutil.copytree(workplace / "run", tmp_path / "run")
    next((tmp_path / "run" / "parts").iterdir()).unlink()
    with pytest.raises(ObjectSeekerError, match=r"unfinished \(11 of 12 images\)"):
        call("gate", tmp_path / "run", "--policy", "easy.toml")


def members_of(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_evidence_gives_the_same_verdict_without_detector_or_images(workplace, bundle, tmp_path):
    shutil.copy(bundle, tmp_path / "audit.zip")
    with contextlib.chdir(tmp_path):
        assert "recomputed, bit-identical. The verdict is pass" in call("verify", "audit.zip")
        found = json.loads(call("verify", "audit.zip", "--json"))
    assert found["verified"] is True
    assert found["requirements"] == json.loads((workplace / "gate" / "gate.json").read_text())["requirements"]
    call("gate", "run", "--policy", "easy.toml", *GATE, "--audit-bundle", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_evidence_holds_what_a_safety_case_asks_for(workplace, bundle):
    inside = members_of(bundle)
    said = json.loads(inside["assurance.json"])
    assert {"deterministic", "incomplete", "closed_box", "arithmetic", "input_domain"} <= said.keys()
    assert len(said["assumptions"]) == 5
    assert "every check passed" in said["assumptions"][0]["how"]
    certificates = list(csv.DictReader(io.StringIO(inside["certificates.csv"].decode())))
    assert len(certificates) == 12
    assert {"far", "close", "over", "anywhere", "class", "patch_area"} <= certificates[0].keys()
    images = list(csv.DictReader(io.StringIO(inside["images.csv"].decode())))
    assert len({one["file_hash"] for one in images}) > 8
    assert json.loads(inside["software.json"])["numpy"] == np.__version__
    assert str(workplace) not in inside["verdict.json"].decode() + inside["defense.json"].decode()
    assert json.loads(inside[MANIFEST])["members"].keys() == inside.keys() - {MANIFEST}


def rewritten(file, change, place, *, honest=False):
    """The file with members changed; `honest` leaves the manifest as it was, else it is made to fit."""
    members = members_of(file)
    manifest = members.pop(MANIFEST)
    change(members)
    write_bundle(place, members)
    if honest:
        with zipfile.ZipFile(place) as archive:
            inside = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(place, "w") as archive:
            for name, content in inside.items():
                archive.writestr(name, manifest if name == MANIFEST else content)
    return place


def first_part(members):
    return min(name for name in members if name.startswith("run/parts/"))


def touched(content, column, value):
    """A part with one number changed."""
    found = decode_boxes(content)
    boxes = found.boxes
    xyxy, score = boxes.xyxy.copy(), boxes.score.copy()
    if column == "score":
        score[3] += value
    else:
        xyxy[3, 2] += value
    changed = type(boxes)(xyxy, score, boxes.label)
    return encode_boxes(replace(found, boxes=changed))


def moved(members, column, value, *, renamed):
    name = first_part(members)
    content = touched(members.pop(name), column, value)
    number = int(name.split("/")[-1].split("-")[0])
    if renamed:
        fingerprint = json.loads(members["verdict.json"])["run"]["run_fingerprint"]
        name = f"run/parts/{number:06d}-{checksum(fingerprint, number, content)}.parquet"
    members[name] = content


@pytest.mark.parametrize(("column", "value"), [("x2", 1e-9), ("score", 1e-12)])
def test_one_box_or_one_score_is_noticed(bundle, tmp_path, column, value):
    """In spite of a manifest that fits, a name that fits, or both."""
    plain = rewritten(
        bundle, lambda members: moved(members, column, value, renamed=False), tmp_path / "a.zip", honest=True
    )
    assert "manifest.json members run/parts/000000" in call("verify", plain, code=1)
    fitting = rewritten(bundle, lambda members: moved(members, column, value, renamed=False), tmp_path / "b.zip")
    assert "parquet does not match the checksum in its name" in call("verify", fitting, code=1)
    renamed = rewritten(bundle, lambda members: moved(members, column, value, renamed=True), tmp_path / "c.zip")
    printed = call("verify", renamed, code=1)
    assert "verdict.json run fingerprint says" in printed


def test_one_byte_on_the_disk_is_noticed(bundle, tmp_path):
    content = bundle.read_bytes()
    with zipfile.ZipFile(bundle) as archive:
        entry = next(one for one in archive.infolist() if one.filename.startswith("run/parts/"))
    place = entry.header_offset + 30 + len(entry.filename) + entry.file_size // 2
    (tmp_path / "e.zip").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert f"{entry.filename} is damaged" in call("verify", tmp_path / "e.zip", code=1)


def test_one_hash_or_one_verdict_is_noticed(bundle, tmp_path):
    def another_hash(members):
        members["images.csv"] = members["images.csv"].replace(b"0", b"1", 1)

    def better(members):
        verdict = json.loads(members["verdict.json"])
        verdict["requirements"][0]["low"] += 1
        members["verdict.json"] = json_bytes(verdict)

    def missing(members):
        del members["certificates.csv"]

    def defense(members):
        content = json.loads(members["defense.json"])
        content["rule"]["filter_ioa"] -= 0.01
        members["defense.json"] = json_bytes(content)

    for change, said in (
        (another_hash, "images.csv line"),
        (better, "verdict.json requirements 1 low says"),
        (missing, "certificates.csv is missing"),
        (defense, "was edited"),
    ):
        file = rewritten(bundle, change, tmp_path / "t.zip")
        answer = json.loads(call("verify", file, "--json", code=1))
        assert answer["verified"] is False
        assert said in " ".join(answer["differences"])


@pytest.mark.parametrize("name", ["../outside.json", "/tmp/outside.json", "run/parts/../../x.json", "run/lock", "x/"])
def test_members_that_do_not_belong_are_refused_before_they_are_written(bundle, tmp_path, name):
    shutil.copy(bundle, tmp_path / "e.zip")
    with zipfile.ZipFile(tmp_path / "e.zip", "a") as archive:
        archive.writestr(name, b"{}")
    with pytest.raises(ObjectSeekerError, match="not of a bundle"):
        call("verify", tmp_path / "e.zip")


def test_a_member_that_comes_twice_is_refused(bundle, tmp_path):
    shutil.copy(bundle, tmp_path / "e.zip")
    with zipfile.ZipFile(tmp_path / "e.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("README.md", b"twice")
    with pytest.raises(ObjectSeekerError, match="twice or on top"):
        call("verify", tmp_path / "e.zip")


def test_what_unpacks_to_more_than_it_is_is_refused(bundle, tmp_path):
    members = members_of(bundle)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, b"0" * 10**6 if name == "README.md" else content)
    with pytest.raises(ObjectSeekerError, match="compressed"):
        call("verify", tmp_path / "bomb.zip")
    content = bundle.read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(ObjectSeekerError, match="not an audit bundle, or is damaged"):
        call("verify", tmp_path / "cut.zip")


def fingerprint_of(members):
    return json.loads(members["verdict.json"])["run"]["run_fingerprint"]


def put_part(members, content, folder="run/parts"):
    """The first part with this content, under a name with the checksum that fits."""
    number = int(first_part(members).split("/")[-1].split("-")[0])
    if folder == "run/parts":
        del members[first_part(members)]
    members[f"{folder}/{number:06d}-{checksum(fingerprint_of(members), number, content)}.parquet"] = content


def parquet_of(table, groups=1):
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=len(table))
        writer.add_key_value_metadata({"images": '[[0,96,64,""]]'})
    return sink.getvalue()


def many_boxes(members):
    """Three million equal boxes of one image in a few kilobytes."""
    values = {field.name: pa.array(np.full(10**6, field.name in ("x2", "y2")), pa.uint8()) for field in PART_SCHEMA}
    table = pa.table({name: column.cast(PART_SCHEMA.field(name).type) for name, column in values.items()})
    content = parquet_of(table, 3)
    assert len(content) < 120_000
    put_part(members, content)


def edit_run(change):
    """run.json with the text changed, and its first line made to fit."""

    def edited(members):
        body = members["run/run.json"].split(b",\n", 1)[1]
        body = change(body)
        members["run/run.json"] = b'{\n"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body

    return edited


def edit_json(name, change):
    def edited(members):
        members[name] = json_bytes(change(json.loads(members[name])))

    return edited


def replace_text(name, old, new):
    def edited(members):
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return edited


def other_images(members):
    index = b"PAR1 no images PAR1"
    old = hashlib.sha256(members["run/images.parquet"]).hexdigest().encode()
    members["run/images.parquet"] = index
    edit_run(lambda body: body.replace(old, hashlib.sha256(index).hexdigest().encode()))(members)


def other_columns(members):
    put_part(members, parquet_of(pa.table({"image": [0], "mask": ["a"]})))


def other_schedule(content):
    rule = Defense.from_dict(content).rule
    content["threshold_schedule"] = asdict(ThresholdSchedule.from_rule(rule))
    return content


def baseline_without_a_run(members):
    del members["baseline/run.json"]


REJECTED = {
    "no Parquet": lambda members: put_part(members, b"PAR1garbagePAR1"),
    "other columns": other_columns,
    "no images": other_images,
    "a bomb": many_boxes,
    "run.json without format": edit_run(lambda body: body.replace(b'"format": 1,\n', b"")),
    "run.json of format true": edit_run(lambda body: body.replace(b'"format": 1', b'"format": true')),
    "run.json with another setting": edit_run(lambda body: body.replace(b'"format"', b'"more": 1,\n"format"')),
    "run.json with a setting twice": edit_run(lambda body: body.replace(b'"format"', b'"seed": 1,\n"format"')),
    "run.json that is not JSON": edit_run(lambda body: body[:-3]),
    "run.json in other words": edit_run(lambda body: body.replace(b'"format": 1', b'"format":  1')),
    "run.json without images per part": edit_run(
        lambda body: body.replace(b'"images_per_part": 1', b'"images_per_part": 0')
    ),
    "defense without fingerprint": edit_json(
        "defense.json", lambda content: {key: content[key] for key in content if key not in ("fingerprint", "sha256")}
    ),
    "defense with another schedule": edit_json("defense.json", other_schedule),
    "defense with a rule twice": replace_text(
        "defense.json", b'"rule": {', b'"rule": {"mask_threshold": 0.1}, "rule": {'
    ),
    "defense of format true": replace_text("defense.json", b'"format": 1', b'"format": true'),
    "defense with true for a number": replace_text("defense.json", b'"evidence_power": 1.0', b'"evidence_power": true'),
    "defense with a fraction for a count": replace_text("defense.json", b'"fill": 1', b'"fill": 0.1'),
    "a pending part": lambda members: put_part(
        members, touched(members[first_part(members)], "score", -0.1), "run/pending"
    ),
    "a baseline without a run": baseline_without_a_run,
    "no software": lambda members: members.pop("software.json"),
    "garbage for software": lambda members: members.update({"software.json": b"garbage"}),
    "software of numbers": lambda members: members.update({"software.json": b'{"numpy": 2}\n'}),
    "software in other words": replace_text("software.json", b'"numpy"', b' "numpy"'),
    "attacks that leave a number out": lambda members: members.update({"attacks/attack-2.json": b"{}"}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_gate_would_not_have_written_is_rejected(bundle, tmp_path, name):
    file = rewritten(bundle, REJECTED[name], tmp_path / "e.zip")
    printed = call("verify", file, code=1)
    assert "it is not what was written" in printed
    assert len(printed.splitlines()) <= 22


def test_a_bomb_is_named_before_it_is_read(bundle, tmp_path):
    assert "more memory than disk" in call("verify", rewritten(bundle, many_boxes, tmp_path / "e.zip"), code=1)


def with_comment(archive, entries):
    archive.comment = b"verified"


def with_other_dates(archive, entries):
    for entry in entries:
        entry.date_time = (2020, 1, 1, 0, 0, 0)


def with_links(archive, entries):
    for entry in entries:
        entry.external_attr = 0o120777 << 16


def with_another_order(archive, entries):
    entries.reverse()


@pytest.mark.parametrize("change", [with_comment, with_other_dates, with_links, with_another_order])
def test_a_zip_packed_in_another_way_is_rejected(bundle, tmp_path, change):
    with zipfile.ZipFile(bundle) as archive:
        entries, inside = archive.infolist(), {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        change(archive, entries)
        for entry in entries:
            archive.writestr(entry, inside[entry.filename])
    assert "not packed as gate packs it" in call("verify", tmp_path / "e.zip", code=1)


def test_hidden_bytes_are_rejected(bundle, tmp_path):
    content = bundle.read_bytes()
    (tmp_path / "before.zip").write_bytes(b"#!/bin/sh\n" + content)
    with zipfile.ZipFile(bundle) as archive:
        entries, inside = archive.infolist(), {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "unlisted.zip", "w") as archive:
        for entry in entries:
            archive.writestr(entry, inside[entry.filename])
        archive.writestr("other.json", b'{"verdict": "fail"}')
        archive.filelist.pop()
        del archive.NameToInfo["other.json"]
    for name in ("before.zip", "unlisted.zip"):
        assert "not packed as gate packs it" in call("verify", tmp_path / name, code=1)


def test_the_policies_of_the_guide_are_policies():
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / page / "gate.md").read_text(encoding="utf-8") for page in ("guides", "results"))
    policies = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert [len(parse_policy(policy).requirements) for policy in policies] == [4, 7]
