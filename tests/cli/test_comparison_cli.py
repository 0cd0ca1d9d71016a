"""compare on the command line."""

import json

import numpy as np
import PIL.Image
import pytest
from command import DETECTOR, run

FEW = ["--loss", 5, "--recall", 0.9, "--rule", "paper", "--bootstrap", 20]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The same eight photographs with one bright box each, observed under two and under three lines."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "mine.py").write_text(DETECTOR)
    (folder / "photos").mkdir()
    images, annotations = [], []
    for number in range(8):
        image = np.full((40, 60, 3), 30, np.uint8)
        x, y = 3 + 4 * number, 2 + 2 * number
        image[y : y + 15, x : x + 20] = 255
        PIL.Image.fromarray(image).save(folder / "photos" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 60, "height": 40})
        annotations.append({"id": number, "image_id": number, "category_id": 1, "bbox": [x, y, 20, 15], "iscrowd": 0})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "bright"}]}
    (folder / "truth.json").write_text(json.dumps(content))
    for lines in (2, 3):
        run(
            folder,
            "observe",
            "coco:truth.json:photos",
            "-d",
            "python:mine:detect",
            "--out",
            f"k{lines}",
            "--masks",
            f"halves:{lines}",
        )
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


def test_both_halves_say_so(workplace):
    printed = run(workplace, "compare", "k2", "k3", *FEW, "--both-halves", "--processes", 2).stdout
    assert "each half of the images" in " ".join(printed.split())
    one = json.loads(run(workplace, "compare", "k2", *FEW, "--both-halves", "--json").stdout)["runs"][0]
    assert len(one["tuned"][0]["halves"]) == 2


def test_mistakes_are_told_in_one_sentence(workplace):
    assert "nowhere" in run(workplace, "compare", "nowhere", code=2).stderr
    assert "sometimes" in run(workplace, "compare", "k2", "--rule", "sometimes", code=2).stderr
