"""Boxes as other tools hold them, there and back; against the tools themselves where they are installed."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectseeker import Detections, Halves, ObjectSeeker, ObjectSeekerError, Rule, detect
from objectseeker.inference.results import CERTIFICATE, Categories, ImageResult
from objectseeker.interop import from_coco, from_fiftyone, from_supervision, to_coco, to_fiftyone, to_supervision

NAMES = ("cat", "dog", "cow")
IDS = (7, 21, 900)
BOXES = Detections([[0.1, 0.2, 30.7, 40.3], [5.0, 6.0, 5.0, 60.0]], [0.9, 1 / 3], [2, 0])
EMPTY = Detections.empty()
SEEKER = ObjectSeeker(lambda images: [BOXES for _ in images], Rule(base_threshold=0.3), masks=Halves(2))

sides = st.floats(-50, 500, allow_nan=False)
boxes = st.tuples(sides, sides, sides, sides).map(
    lambda b: [min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])]
)
detections = st.lists(st.tuples(boxes, st.floats(0, 1), st.integers(0, 2)), max_size=5).map(
    lambda rows: Detections([box for box, _, _ in rows], [s for _, s, _ in rows], [label for _, _, label in rows])
)


@given(detections, st.sampled_from([None, IDS]))
def test_coco_and_fiftyone_keep_all_but_the_last_digit(given, ids):
    rows = json.loads(json.dumps(to_coco(given, "street.jpg", ids)))
    back = from_coco(rows, ids).get("street.jpg", EMPTY)
    fields = json.loads(json.dumps(to_fiftyone(given, 640, 427, NAMES)))
    for boxes in (back, from_fiftyone(fields, 640, 427, NAMES)):
        assert np.array_equal(boxes.label, given.label)
        assert np.array_equal(boxes.score, given.score)
        np.testing.assert_allclose(boxes.xyxy, given.xyxy, rtol=0, atol=1e-12 * 1000)
    if len(given):
        assert np.array_equal(back.xyxy[:, :2], given.xyxy[:, :2])


def test_what_the_rows_say():
    rows = to_coco(BOXES, 42)
    assert rows[1] == {"image_id": 42, "category_id": 1, "bbox": [5.0, 6.0, 0.0, 54.0], "score": 1 / 3}
    assert [row["category_id"] for row in to_coco(BOXES, 42, IDS)] == [900, 7]
    (first, _) = to_fiftyone(Detections([[10, 20, 30, 60]] * 2, [1, 0.5], [1, 0]), 100, 200, NAMES)
    assert first == {"label": "dog", "bounding_box": [0.1, 0.1, 0.2, 0.2], "confidence": 1.0}


def test_images_are_kept_apart_and_truth_has_a_score_of_one():
    rows = [*to_coco(BOXES, 2), *to_coco(BOXES[:1], 1), {"image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4]}]
    found = from_coco(rows)
    assert list(found) == [2, 1]
    assert found[1].score.tolist() == [0.9, 1.0]
    assert found[1].label.tolist() == [2, 1]
    assert from_fiftyone([{"label": "cow", "bounding_box": [0, 0, 1, 1]}], 10, 10, NAMES).score.tolist() == [1.0]


def test_pycocotools_loads_the_rows():
    coco = pytest.importorskip("pycocotools.coco")
    truth = coco.COCO()
    truth.dataset = {"images": [{"id": 42}], "categories": [{"id": number} for number in IDS], "annotations": []}
    truth.createIndex()
    loaded = truth.loadRes(to_coco(BOXES, 42, IDS))
    back = from_coco(loaded.loadAnns(loaded.getAnnIds(imgIds=[42])), IDS)[42]
    np.testing.assert_allclose(back.xyxy, BOXES.xyxy, atol=1e-9)
    assert back.label.tolist() == BOXES.label.tolist()


def test_anything_with_the_fields_from_supervision_will_do():
    theirs = SimpleNamespace(xyxy=np.array([[1, 2, 3, 4]], np.float32), confidence=None, class_id=np.array([1]))
    assert from_supervision(theirs) == Detections([[1, 2, 3, 4]], [1], [1])
    theirs.class_id = None
    with pytest.raises(ObjectSeekerError, match="no class_id"):
        from_supervision(theirs)


CERTIFIED = ImageResult(
    name="street.jpg",
    size=(64, 64),
    detections=BOXES,
    base_boxes=1,
    certificates={column: [f"{column} {n}" for n in range(2)] for column in CERTIFICATE},
)


def test_certificates_travel_with_boxes():
    """In every form: the columns of boxes.csv, and each value with its own box."""
    rows = to_coco(CERTIFIED, "street.jpg", IDS), to_fiftyone(CERTIFIED, 64, 64, NAMES)
    expected = list(CERTIFIED.boxes(Categories.from_detector(NAMES)))
    for one in rows:
        for row, box in zip(one, expected, strict=True):
            assert {"origin", *CERTIFICATE} <= row.keys()
            assert all(row[key] == box[key] for key in ("origin", *CERTIFICATE))
    assert [row["origin"] for row in rows[0]] == ["base", "recovered"]
    assert from_coco(json.loads(json.dumps(rows[0])), IDS)["street.jpg"].score.tolist() == BOXES.score.tolist()
    uncertified = ImageResult(name="a", detections=BOXES, base_boxes=2)
    assert "far" not in to_coco(uncertified, 1)[0]
    assert to_coco(uncertified, 1)[1]["origin"] == "base"


def test_certificates_travel_to_supervision_itself(tmp_path):
    pytest.importorskip("supervision", reason="needs supervision")
    (result,) = detect([np.full((48, 64, 3), 90, np.uint8)], SEEKER, certify=True)
    theirs = to_supervision(result, NAMES)
    for column in CERTIFICATE:
        assert theirs[column].tolist() == result.certificates[column]
    kept = theirs[theirs["anywhere"]]  # as its users filter
    assert len(kept) == sum(theirs["anywhere"]) > 0
    assert theirs["origin"].tolist() == ["base"] * len(theirs)
    empty = to_supervision(ImageResult(name="none", certificates={column: [] for column in CERTIFICATE}), NAMES)
    assert empty.data.keys() == theirs.data.keys()  # which supervision asks for, to merge them


def test_certificates_travel_to_fiftyone_itself():
    fiftyone = pytest.importorskip("fiftyone", reason="needs FiftyOne")
    (result,) = detect([np.full((48, 64, 3), 90, np.uint8)], SEEKER, certify=True)
    theirs = [fiftyone.Detection(**fields) for fields in to_fiftyone(result, 64, 48, NAMES)]
    for n, one in enumerate(theirs):
        assert {column: one[column] for column in CERTIFICATE} == {k: v[n] for k, v in result.certificates.items()}
        assert one["origin"] == "base"


@pytest.mark.parametrize("given", [BOXES, EMPTY])
def test_supervision_itself(given):
    supervision = pytest.importorskip("supervision")
    theirs = to_supervision(given, NAMES)
    assert isinstance(theirs, supervision.Detections)
    assert theirs["class_name"].tolist() == [NAMES[label] for label in given.label]
    assert from_supervision(theirs) == given  # bit for bit
    assert from_supervision(theirs[theirs.confidence > 0.5]) == given.with_min_score(0.51)
    before = given.xyxy.tolist()
    theirs.xyxy[:] = 0  # theirs to change: ours stay
    assert given.xyxy.tolist() == before
    assert from_supervision(supervision.Detections.empty()) == EMPTY


def test_fiftyone_itself():
    fiftyone = pytest.importorskip("fiftyone")
    theirs = fiftyone.Detections(detections=[fiftyone.Detection(**row) for row in to_fiftyone(BOXES, 64, 64, NAMES)])
    back = from_fiftyone(theirs, 64, 64, NAMES)
    np.testing.assert_allclose(back.xyxy, BOXES.xyxy, atol=1e-9)
    assert back.label.tolist() == BOXES.label.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: to_coco(BOXES, 1, [5]), "label 2 has no category id: there are 1"),
        (lambda: from_coco([{"image_id": 1}]), "a row needs image_id, category_id and bbox: got {'image_id': 1}"),
        (lambda: from_coco([{"image_id": 1, "category_id": 5, "bbox": [0, 0, 1, 1]}], IDS), "category 5 is not among"),
        (
            lambda: from_coco([{"image_id": 1, "category_id": 5, "bbox": "x" * 900}]),
            r"a box must be four numbers.*x\.\.\. ",
        ),
        (
            lambda: from_coco([{"image_id": 1, "category_id": 0, "bbox": [0, 0, 1, 1]}]),
            "category_id.*at least 1: got 0",
        ),
        (lambda: to_fiftyone(BOXES, 9, 9, ["cat"]), "label 2 has no name: there are 1 names"),
        (lambda: to_fiftyone(BOXES, 0, 9, NAMES), "width must be at least 1: got 0"),
        (lambda: from_fiftyone([{"label": "elk", "bounding_box": [0, 0, 1, 1]}], 9, 9, NAMES), "class 'elk' is not"),
        (lambda: from_fiftyone([{"label": "cat"}], 9, 9, NAMES), "a box must be four numbers"),
    ],
)
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(ObjectSeekerError, match=message):
        make()
