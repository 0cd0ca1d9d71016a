"""compare on the command line."""

import json

import pytest
from command import photographs, run

FEW = ["--loss", 5, "--recall", 0.9, "--rule", "paper", "--bootstrap", 20]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The same eight photographs with one bright box each, observed under two and under three lines."""
    boxes = [(3 + 4 * number, 2 + 2 * number, 20, 15) for number in range(8)]
    folder = photographs(tmp_path_factory.mktemp("compared"), boxes, (60, 40))
    for lines in (2, 3):
        observe = ["observe", "coco:truth.json:photos", "-d", "python:mine:detect", "--out", f"k{lines}"]
        run(folder, *observe, "--masks", f"halves:{lines}")
    return folder


def test_runs_and_files_of_measurements_give_the_same_answer(workplace):
    printed = run(workplace, "compare", "k2", "k3", *FEW, "--processes", 2, "--out", "both").stdout
    assert "paper rule, clean recall 0.9, AP50 loss up to 5" in printed
    assert "difference" in printed
    assert max(map(len, printed.split("8 images")[0].splitlines())) <= 80
    files = ["both/k2.measured.json", "both/k3.measured.json"]
    found = json.loads(run(workplace, "compare", *files, "--json").stdout)
    (difference,) = found["differences"]
    assert (difference["run"], difference["against"], difference["paired"]) == ("k3", "k2", True)
    assert found["runs"][0]["undefended"]["ap50"]["value"] == pytest.approx(100)
    alone = json.loads(run(workplace, "compare", "k3", *FEW, "--json").stdout)  # in one process
    assert alone["runs"] == [found["runs"][1]]


def test_compared_with_few_fppi(workplace):
    asked = ["--fppi", 0.5, *FEW[:2], *FEW[4:]]
    one = json.loads(run(workplace, "compare", "k2", *asked, "--json").stdout)["runs"][0]
    assert (one["options"]["recalls"], one["options"]["fppi"]) == ([], [0.5])
    (found,) = one["tuned"]
    assert (found["clean_recall"], found["fppi"]) == (None, 0.5)
    assert found["held_out"]["undefended_recall"]["value"] == pytest.approx(100)


def test_both_halves_say_so(workplace):
    printed = run(workplace, "compare", "k2", "k3", *FEW, "--both-halves", "--processes", 2).stdout
    assert "each half of the images" in " ".join(printed.split())
    one = json.loads(run(workplace, "compare", "k2", *FEW, "--both-halves", "--json").stdout)["runs"][0]
    assert len(one["tuned"][0]["halves"]) == 2


def test_some_masks_of_a_run_give_what_a_run_of_them_gives(workplace):
    observe = ["observe", "coco:truth.json:photos", "-d", "python:mine:detect", "--out", "sum"]
    run(workplace, *observe, "--masks", "halves:2+halves:3")
    one = json.loads(run(workplace, "compare", "sum", *FEW, "--masks", "halves:3", "--json").stdout)["runs"][0]
    own = json.loads(run(workplace, "compare", "k3", *FEW, "--json").stdout)["runs"][0]
    assert one | {"run": "k3"} == own
    told = run(workplace, "compare", "k3", *FEW, "--masks", "halves:5", code=2).stderr
    assert "nothing was observed under the mask" in " ".join(told.split())


def test_mistakes_are_told_in_one_sentence(workplace):
    assert "nowhere" in run(workplace, "compare", "nowhere", code=2).stderr
    assert "sometimes" in run(workplace, "compare", "k2", "--rule", "sometimes", code=2).stderr
    for command in (["tune", "k2"], ["attack", "k2"]):
        told = run(workplace, *command, "--seed", -1, code=2).stderr
        assert "seed must be a whole number of at least 0, got -1" in " ".join(told.split())
    told = run(workplace, "compare", "k2", "--bootstrap", 10**9, code=2).stderr
    assert "from 0 to 10000, got 1000000000" in " ".join(told.split())
