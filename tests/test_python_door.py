"""The notebook that does in Python what the commands do, and the same numbers from the command line."""

import json
from importlib import resources
from pathlib import Path

import pytest
from command import run

NOTEBOOK = Path(__file__).parent.parent / "docs" / "start" / "runs.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("door")


@pytest.fixture(scope="module")
def names(folder):
    """What the notebook has made, after all of its cells."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made: dict = {}
        for number, cell in enumerate(cells):
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), f"runs.ipynb, cell {number}", "exec"), made)
    return made


def test_results_show_themselves_and_are_ready_for_json(names):
    for name in ("run", "tuned", "evaluation", "comparison", "verdict"):
        assert "<" in names[name]._repr_html_(), name
        json.dumps(names[name].to_dict())


def test_the_command_line_gives_the_same_numbers(names, folder):
    samples = Path(str(resources.files("objectseeker.demo.samples")))
    dataset = f"coco:{samples / 'annotations.json'}:{samples}"
    run(folder, "observe", dataset, "--masks", "halves:4", "--out", "again")
    assert (folder / "again" / "run.json").read_bytes() == (folder / "run" / "run.json").read_bytes()
    limits = ["--operating-point", "clean_recall=0.3", "--max-ap-loss", 20]
    tuned = json.loads(run(folder, "tune", "again", *limits, "--out", "tuned", "--json").stdout)
    assert tuned["best"] == json.loads(json.dumps(names["tuned"].to_dict()["best"]))
    assert (folder / "tuned" / "defense.json").read_bytes() == (folder / "defense.json").read_bytes()

    options = ["--defense", "defense.json", "--by", "size", "--json"]
    evaluated = json.loads(run(folder, "evaluate", "again", *options).stdout)
    slices = evaluated.pop("slices")["rows"]
    assert evaluated == json.loads(json.dumps(names["evaluation"].to_dict()))
    assert slices == json.loads(json.dumps([one.to_row() for one in names["evaluation"].by("size")]))
    assert evaluated["intervals"]["defended.certified_recall.far"][0] < evaluated["defended"]["certified_recall"]["far"]

    arguments = ["again", "--policy", "policy.toml", "--defense", "defense.json", "--allow-tuned-images", "--json"]
    judged = json.loads(run(folder, "gate", *arguments).stdout)
    assert judged["requirements"] == json.loads(json.dumps(names["verdict"].to_dict()["requirements"]))

    arguments = ["--defense", "defense.json", "--certify", "--no-annotate", "--out", "found", "--json"]
    detected = json.loads(run(folder, "detect", samples / "crossing.jpg", *arguments).stdout)
    assert detected["certificates"] == names["detection"].totals.to_dict()["certificates"]
    boxes = json.loads((folder / "found" / "detections.json").read_text())
    assert [row["score"] for row in boxes] == pytest.approx(names["results"][0].detections.score.tolist())
