"""Files that are meant to be shared name no one: no absolute path, no user, no folder above what was given.

Shared are results: detections, certificates, evaluations, reports, figures, defenses, comparisons, attacks. A run is
a working folder: it must find its images again, and stays where they are.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import write_dataset

SECRET = "wilhelmina-geheim"  # the home of a user, as the paths below show it
PROGRAM = """
import json, sys
from objectseeker.cli._app import program
for arguments in json.load(sys.stdin):
    try:
        program().main(arguments, prog_name="objectseeker", standalone_mode=False)
    except SystemExit as left:
        assert left.code in (0, None), arguments
"""
MADE = {
    "found": ["detections.json", "defense.json", "alerts.json"],
    "certified": ["certificates.csv", "certificates.defense.json"],
    "evaluated": ["evaluation.json", "evaluation.csv", "evaluation.md"],
    "shown": ["report.html"],
    "drawn": ["figures.json", "defense.json"],
    "compared": ["comparison.csv"],
    "attacked": ["attack.json"],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every verb once, with absolute paths, on data and with a detector in a user's home."""
    graphs = pytest.importorskip("detector_graphs")
    home = tmp_path_factory.mktemp(SECRET)
    write_dataset(home, [(20, 15, 30, 25), (40, 20, 30, 20)], size=(64, 64))
    names = "{0: 'bright', 1: 'b', 2: 'c'}"
    graphs.build("decoded", home / "model.onnx", box=(20, 15, 60, 45), probe=(45, 30), metadata={"names": names})
    given = {name: str(home / name) for name in (*MADE, "run", "images", "truth.json", "model.onnx")}
    detector, few = ["-d", f"onnx:{given['model.onnx']}"], ["--masks", "halves:2"]
    out = {name: ["--out", given[name]] for name in MADE}
    report, table = f"{given['shown']}/report.html", f"{given['certified']}/certificates.csv"
    Path(given["shown"]).mkdir()
    commands = [
        ["observe", f"coco:{given['truth.json']}:{given['images']}", *detector, *few, "--out", given["run"]],
        ["detect", given["images"], *detector, "--set", "masks=halves:2", *out["found"]],
        ["evaluate", given["run"], "--objects", table],
        ["evaluate", given["run"], *out["evaluated"]],
        ["report", given["run"], "--out", report],
        ["evaluate", given["run"], "--figures", given["drawn"]],
        ["evaluate", given["run"], given["run"], *out["compared"]],
        ["attack", given["run"], "--mode", "black-box", "--max-objects", "1", "--steps", "1", "--restarts", "1"]
        + out["attacked"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize("folder", MADE)
def test_no_file_names_where_it_was_made(results, folder):
    written = [file for file in (results / folder).rglob("*") if file.is_file()]
    assert {*MADE[folder]} <= {file.name for file in written}
    for file in written:
        content = file.read_bytes()
        for word in (SECRET, str(results.parent)):
            at = content.find(word.encode())
            assert at < 0, f"{file.name}: ...{content[max(at - 60, 0) : at + 60]!r}"
