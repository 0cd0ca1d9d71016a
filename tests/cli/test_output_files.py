"""docs/reference/output-files.md lists the keys and columns that the commands write: no more, no fewer."""

import contextlib
import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import write_dataset

from objectseeker.cli._app import program

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "output-files.md"
POLICY = (
    'format = 1\nmax_boxes_per_image = 2\n[[require]]\nmetric = "clean_recall"\nat_least = "10 %"\n'
    '[[require]]\nmetric = "detector_check"\n'
)
RULE = [word for key in ("filter_ioa=0.6", "edge_factor=1", "cluster_distance=0.1") for word in ("--set", key)]
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not part of the package")


def call(*arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert not program()([*arguments], standalone_mode=False), printed.getvalue()
    return printed.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command has written its files, with a detector of bright boxes."""
    rng = np.random.default_rng(0)
    boxes = [(int(rng.integers(5, 50)), int(rng.integers(5, 30)), 30, 20) for _ in range(12)]
    folder = write_dataset(tmp_path_factory.mktemp("files"), boxes)
    shutil.copytree(folder / "images", folder / "clips" / "one" / "frames")
    tracks = [[number, 1, "bright", x, y, x + width, y + height] for number, (x, y, width, height) in enumerate(boxes)]
    frames = [f"{number}.png" for number in range(len(boxes))]
    (folder / "clips" / "one" / "boxes.json").write_text(json.dumps({"fps": 10, "frames": frames, "boxes": tracks}))
    (folder / "policy.toml").write_text(POLICY)
    detector = ("-d", "python:mine:detect")
    defense = ("--defense", "plain.json")
    with contextlib.chdir(folder):
        call("observe", "coco:truth.json:images", *detector, "--masks", "halves:3", "--out", "run")
        call("defense", "new", "python:mine:detect", "--set", "masks=halves:3", *RULE, "--out", "plain.json")
        call("tune", "run", "--threshold", "0.5", "--spurious", "2", "--out", "tuned")
        Path("check.json").write_text(call("check", *defense, "images/0.png", "--json"))
        options = ("--objects", "certificates.csv", "--by", "size", "--measure", "fabrication")
        call("evaluate", "run", *defense, "--out", "evaluated", *options)
        call("evaluate", "run", "run", *defense, "--out", "compared")
        call("gate", "run", *defense, "--policy", "policy.toml", "--detector-check", "check.json", "--out", "gate")
        call("detect", "images", *defense, "--certify", "--out", "found")
        call("detect", "video:images", *defense, "--certify", "--out", "watched")
        short = ("--steps", "2", "--restarts", "1", "--max-objects", "2", "--mode", "black-box")
        call("attack", "run", *defense, *short, "--out", "attacked")
        call("attack", "run", *defense, *short, "--goal", "fabricate", "--out", "fabricated")
        call("observe", "boxes:clips", *detector, "--masks", "rolling:2:halves:3", "--out", "sequence")
        call("evaluate", "sequence", "--out", "tracks", "--window", "2", "--max-motion", "2")
    return folder


def keys_of(value: Any, prefix: str = "") -> set[str]:
    """Every key below a value, as a path: `a.b`, and `rows[].a` in lists."""
    if isinstance(value, dict):
        return {prefix + key for key in value}.union(
            *(keys_of(inner, f"{prefix}{key}.") for key, inner in value.items())
        )
    if isinstance(value, list):
        return set().union(*(keys_of(inner, f"{prefix.removesuffix('.')}[].") for inner in value))
    return set()


def parent(key: str) -> str:
    return key.rpartition(".")[0].removesuffix("[]")


def described() -> dict[str, set[str]]:
    """What the page lists, by file: the words in backticks of the first column."""
    page = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (\S+\.(?:jsonl?|csv))\n(.*?)(?=^#|\Z)", page, re.S | re.M)
    return {
        name: {key for row in re.findall(r"^\| (`.*?) \|", text, re.M) for key in re.findall(r"`([^`]+)`", row)}
        for name, text in sections
    }


@pytest.mark.parametrize("name", described() if PAGE.is_file() else [])
def test_keys_and_columns_are_those_of_the_page(written: Path, name: str) -> None:
    text = (written / name).read_text(encoding="utf-8")
    listed = described()[name]
    if name.endswith(".csv"):
        assert sorted(listed) == sorted(next(csv.reader([text.splitlines()[0]])))
        return
    keys = keys_of([json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text))
    if name.endswith("l"):
        keys = {key.removeprefix("[].") for key in keys}
    assert not sorted(listed - keys), "listed, but not written"
    parents = {parent(key) for key in listed} | {""} if not any(key.startswith("[]") for key in listed) else {""}
    shown = listed | {parent(key) for key in listed}
    assert not sorted({key for key in keys if parent(key) in parents} - shown), "written, but not listed"
