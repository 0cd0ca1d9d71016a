"""Claims: written by evaluate, read strictly, measured again; one changed number is enough to reject one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import run, write_dataset

from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.claim import Claim

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_claims.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the scripts are not part of the package")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = write_dataset(tmp_path_factory.mktemp("claims"), [(5 + 9 * n, 8, 24, 22) for n in range(5)])
    observe = ["-d", "python:mine:detect", "--masks", "halves:6"]
    run(folder, "observe", "coco:truth.json:images", *observe, "--out", "run")
    run(folder, "evaluate", "run", "--claim", "claims/mine.json")
    return folder


def check(folder, *words):
    command = [sys.executable, SCRIPT, *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_claim_holds_for_its_run(workplace):
    code, said = check(workplace, "claims/mine.json", "--run", "run")
    assert (code, "mine holds" in said) == (0, True), said
    written = (workplace / "claims" / "mine.json").read_bytes()
    run(workplace, "evaluate", "run", "--claim", "claims/again/mine.json")
    assert (workplace / "claims" / "again" / "mine.json").read_bytes() == written
    claim = Claim.load(workplace / "claims" / "mine.json")
    assert claim.protocol == "standard-1"
    assert str(workplace) not in written.decode()
    assert claim.metrics["defended.certified_recall.far"].value > 0


def leaves(value, path=()):
    """All numbers of a document, with their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def test_a_claim_with_one_changed_number_is_rejected(workplace):
    """Every number of the claim, and every hash, one at a time."""
    content = json.loads((workplace / "claims" / "mine.json").read_text())
    paths = [path for path, _ in leaves({key: content[key] for key in ("images", "objects", "forward_passes")})]
    paths += [path for path, _ in leaves({"metrics": content["metrics"]})][::7]
    # A schedule with the same curve makes the same claim, and a defense's checksum does not cover it.
    paths += [path for path, _ in leaves({"defense": content["defense"]}) if "threshold_schedule" not in path]
    paths += [("dataset_sha256",), ("images_sha256",), ("detector",)]
    file = workplace / "changed" / "mine.json"
    file.parent.mkdir()
    for path in paths:
        changed = json.loads(json.dumps(content))
        place = changed
        for key in path[:-1]:
            place = place[key]
        value = place[path[-1]]
        place[path[-1]] = (
            f"{value}0" if isinstance(value, str) else value + 1e-3 if isinstance(value, float) else value + 1
        )
        file.write_text(json.dumps(changed))
        code, said = check(workplace, file, "--run", "run")
        assert code in (1, 2), (path, said)
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "standard-2"}, "standard-1"),
        ({"price": 3}, "unknown key"),
        ({"images": "5"}, "images"),
        ({"name": "other"}, "claims to be 'other'"),
        ({"images": 0}, "images must be at least 1"),
        ({"objects": -1}, "objects must be at least 0"),
        ({"forward_passes": -7}, "forward_passes must be at least 1"),
        ({"dataset_sha256": "abc"}, "dataset_sha256 must be 64 hexadecimal digits"),
    ],
)
def test_what_is_no_claim_is_an_error(workplace, tmp_path, change, message):
    content = json.loads((workplace / "claims" / "mine.json").read_text()) | change
    (tmp_path / "mine.json").write_text(json.dumps(content))
    with pytest.raises(ObjectSeekerError, match=message):
        Claim.load(tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commands": ["rm -r ~"]}, "commands is claimed as"),
        ({"dataset": "coco:other.json:images"}, "dataset is claimed as"),
        ({"software": {}}, "software is claimed as"),
    ],
)
def test_words_that_the_run_does_not_have_are_rejected(workplace, tmp_path, change, message):
    content = json.loads((workplace / "claims" / "mine.json").read_text()) | change
    (tmp_path / "mine.json").write_text(json.dumps(content))
    code, said = check(workplace, tmp_path / "mine.json", "--run", "run")
    assert (code, message in said) == (1, True), said


def test_a_claim_states_its_whole_defense(workplace, tmp_path):
    content = json.loads((workplace / "claims" / "mine.json").read_text())
    for key in ("sha256", "fingerprint"):
        content["defense"].pop(key)
    (tmp_path / "mine.json").write_text(json.dumps(content))
    code, said = check(workplace, tmp_path / "mine.json", "--run", "run")
    assert (code, "defense is claimed as" in said) == (1, True), said


def test_only_the_named_protocol_is_claimed(workplace):
    for option in (["--patch-area", "2%"], ["--operating-point", "fppi=1"]):
        done = run(workplace, "evaluate", "run", *option, "--claim", "claims/no.json", code=2)
        assert "a claim is measured" in done.stderr
