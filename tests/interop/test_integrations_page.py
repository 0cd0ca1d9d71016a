"""The page about other tools: every block of Python runs, in order, where its tool is installed."""

import importlib
import importlib.resources
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from interop.test_maite import MODULE
from interop.test_objects import YoloModel
from tiny_transformers import tiny_yolos

from objectseeker import load_image, open_dataset

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "integrations.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of the package")


class Samples:
    """Two images of the demonstration as a MAITE dataset."""

    def __init__(self):
        root = importlib.resources.files("objectseeker.demo") / "samples"
        self.data = open_dataset(f"coco:{root / 'annotations.json'}:{root}")
        self.metadata = {"id": "samples", "index2label": dict(enumerate(self.data.names))}

    def __len__(self):
        return 2

    def __getitem__(self, index):
        image = self.data.images[index]
        truth = image.ground_truth
        target = SimpleNamespace(boxes=truth.xyxy / 4, labels=truth.label, scores=truth.score)
        return image.load()[::4, ::4].transpose(2, 0, 1), target, {"id": index}


def blocks():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```python") == text.count("<!-- example")
    return re.findall(r"<!-- example(?:: ([\w ]+))? -->\n```python\n(.*?)^```$", text, re.S | re.M)


@pytest.mark.parametrize(("needs", "block"), blocks() if PAGE.exists() else [])
def test_every_block_runs(needs, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if needs == "ultralytics" and find_spec("ultralytics") is not None:
        importlib.import_module("ultralytics").YOLO("yolov8n.yaml").save("yolo.pt")  # random weights, no download
    elif needs == "ultralytics":  # AGPL: a stand-in, where it is not installed
        module = ModuleType("ultralytics")
        module.YOLO = type("YOLO", (YoloModel,), {"__module__": "ultralytics"})
        monkeypatch.setitem(sys.modules, "ultralytics", module)
    elif needs and find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no data base for a test
    if needs == "transformers":
        for part in tiny_yolos(["car", "bus"]):
            part.save_pretrained("my-model")
    mine: dict = {}
    exec(MODULE, mine)
    sample = importlib.resources.files("objectseeker.demo") / "samples" / "crossing.jpg"
    names = {"image": load_image(str(sample))[::4, ::4].copy(), "dataset": Samples(), "maite_model": mine["model"]}
    if "maite_model" in block:
        names["dataset"] = mine["dataset"]
    exec(compile(block, "integrations.md", "exec"), names)
    if needs == "mlflow":
        names["mlflow"].end_run()  # here, not when Python ends: then it would write to another database
