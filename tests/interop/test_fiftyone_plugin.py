"""The FiftyOne plugin in examples/fiftyone, run by FiftyOne itself; it needs a MongoDB, as FiftyOne does."""

import importlib.resources
from pathlib import Path

import pytest

from objectseeker import Defense, evaluate, observe, open_dataset
from objectseeker.interop import to_fiftyone

EXAMPLES = Path(__file__).parents[2] / "examples"
URI = "@objectseeker/fiftyone"


@pytest.fixture
def fiftyone(monkeypatch):
    fo = pytest.importorskip("fiftyone", reason="needs FiftyOne")
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not part of the package")
    try:
        fo.list_datasets()
    except Exception as error:  # without a MongoDB of its own: whatever the way in which it fails
        pytest.skip(f"FiftyOne has no database here: {str(error)[:80]}")
    monkeypatch.setattr(fo.config, "plugins_dir", str(EXAMPLES))
    return fo


def test_boxes_and_ground_truth_are_certified_in_fiftyone(fiftyone, tmp_path):
    import fiftyone.operators as foo

    root = importlib.resources.files("objectseeker.demo") / "samples"
    data = open_dataset(f"coco:{root / 'annotations.json'}:{root}")
    run = observe(data, Defense.load("builtin-fast"), out=tmp_path / "run", limit=2)
    theirs = fiftyone.Dataset()
    for image in list(data.images)[:2]:
        width, height = image.size
        objects = image.ground_truth[~image.ignore]
        truth = [fiftyone.Detection(**fields) for fields in to_fiftyone(objects, width, height, data.names)]
        sample = fiftyone.Sample(filepath=str(image.path))
        sample["ground_truth"] = fiftyone.Detections(detections=truth)
        theirs.add_sample(sample)
    try:
        params = {"defense": "builtin-fast", "label_field": "defended", "ground_truth": "ground_truth"}
        done = foo.execute_operator(f"{URI}/certify", ctx={"dataset": theirs, "params": params}).result
        boxes = theirs.values("defended.detections", unwind=True)
        assert done["samples"] == 2
        assert done["boxes"] == len(boxes) > 0
        assert {box["origin"] for box in boxes} <= {"base", "recovered"}
        assert len(theirs.filter_labels("defended", fiftyone.ViewField("anywhere"), only_matches=False)) == 2
        results = theirs.evaluate_detections(
            "defended", "ground_truth", eval_key="eval", custom_metrics=[f"{URI}/certified_recall"]
        )
        ours = evaluate(run, intervals=False)
        measured = results.metrics()["certified_recall"]
        known = theirs.count("ground_truth.detections")
        assert ours.objects == known
        assert measured == pytest.approx(ours.defended.certified_recall()["anywhere"] / 100)
        assert measured > 0
    finally:
        theirs.delete()
