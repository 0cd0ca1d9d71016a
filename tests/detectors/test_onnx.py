from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from detector_graphs import (
    BUILDERS,
    CELLS,
    SIZE,
    UNIT,
    Graph,
    build,
    cells_with,
    center_sides,
    one_output,
    queries,
)
from detector_images import noise

from objectseeker.core.recipes import Halves
from objectseeker.core.rules import Rule
from objectseeker.core.seeker import ObjectSeeker, ViewDetector
from objectseeker.detectors import load_detector
from objectseeker.detectors.network import class_names
from objectseeker.detectors.network.layout_inference import GraphTensor, infer_box_format, infer_layout
from objectseeker.detectors.network.layouts import LAYOUTS, parse_layout
from objectseeker.detectors.onnx import _guess_class_names, load_onnx, parse_device
from objectseeker.errors import ObjectSeekerError

RED, GREEN, BLUE = 200, 100, 50
IMAGE = np.full((100, 200, 3), (RED, GREEN, BLUE), np.uint8)
RAW_LAYOUTS = ["decoded", "yolox", "yolov5", "yolov8", "yolov9", "nanodet", "picodet", "ppyoloe"]
RAW_BOX = (50.0, 25.0, 150.0, 75.0)

# Where RAW_BOX and the pixel in the middle of IMAGE lie on a 64 x 64 network input.
NETWORK = {
    "top-left": ((16, 8, 48, 24), (32, 16)),
    "center": ((16, 24, 48, 40), (32, 32)),
    "stretch": ((16, 16, 48, 48), (32, 32)),
}


def graph_of(layout: str, folder: Path, **options: object) -> Path:
    box, probe = NETWORK[LAYOUTS[layout].fit]
    return build(layout, folder / f"{layout}.onnx", box, probe, **options)


@pytest.mark.parametrize("layout", BUILDERS)
def test_every_layout_is_recognized_and_decoded_into_raw_pixels(layout, tmp_path):
    detector = load_detector(f"onnx:{graph_of(layout, tmp_path)}")

    (found,) = detector([IMAGE])

    assert detector.layout.name == layout
    assert found.score[0] == pytest.approx(RED / 255, abs=1e-5)
    assert found.label[0] == (2 if detector.layout.channels == "bgr" else 0)
    np.testing.assert_allclose(found.xyxy[0], RAW_BOX, atol=1e-4)


@pytest.mark.parametrize("layout", BUILDERS)
def test_a_view_shows_the_fill_value_where_it_is_masked_and_the_image_elsewhere(layout, tmp_path):
    detector = load_detector(f"onnx:{graph_of(layout, tmp_path)}")
    left_quarter, left_three_quarters = (0, 0, 50, 100), (0, 0, 150, 100)
    removed = np.array([(0, 0, 0, 0), left_quarter, left_three_quarters, (0, 90, 200, 100)])

    untouched, quarter, most, bottom = detector.detect_views(IMAGE, removed, 230)

    assert untouched == detector([IMAGE])[0]
    assert quarter == bottom
    # Where every class of a whole view is reported, a masked one still gives the best alone.
    assert quarter[:1] == untouched[:1]
    assert most.score[0] == pytest.approx(230 / 255, abs=1e-5)
    np.testing.assert_allclose(most.xyxy[0], RAW_BOX, atol=1e-4)


@pytest.mark.parametrize("layout", RAW_LAYOUTS)
def test_raw_layouts_suppress_the_second_box(layout, tmp_path):
    path = graph_of(layout, tmp_path)
    (found,) = load_detector(f"onnx:{path}", layout=f"{layout},every_class=no")([IMAGE])
    (kept,) = load_detector(f"onnx:{path}", layout=f"{layout},every_class=no,nms=none")([IMAGE])

    assert len(found) == 1
    assert kept.score == pytest.approx([RED / 255, RED / 510], abs=1e-5)


@pytest.mark.parametrize("layout", RAW_LAYOUTS)
def test_an_image_shown_whole_may_be_read_with_every_class(layout, tmp_path):
    best = load_detector(f"onnx:{graph_of(layout, tmp_path)}", layout=f"{layout},every_class=no")
    every = load_detector(f"onnx:{graph_of(layout, tmp_path)}", layout=f"{layout},every_class=yes")
    removed = np.array([(0, 0, 0, 0), (0, 0, 50, 100)])

    (found,), (whole, masked) = every([IMAGE]), every.detect_views(IMAGE, removed, 114)

    assert found == whole
    assert sorted(found.label) == [0, 1, 2]
    assert found[:1] == masked == best([IMAGE])[0]
    assert every.fingerprint != best.fingerprint


def test_queries_give_a_box_for_each_class_as_their_own_code_does(tmp_path, caplog):
    (found,) = load_detector(f"onnx:{graph_of('queries', tmp_path)}")([IMAGE])

    assert found.score[:3] == pytest.approx([RED / 255, RED / 510, GREEN / 255], abs=1e-5)
    assert found.label[:3].tolist() == [0, 0, 1]
    assert "queries.onnx: its input is prepared as for RT-DETR, D-FINE and DEIM" in caplog.text


@pytest.mark.parametrize(
    ("options", "names", "labels"),
    [
        ({}, ("class_0", "class_1"), {0, 1}),  # the third is the background
        ({"class_names": ("van", "bike")}, ("van", "bike"), {0, 1}),
        ({"class_names": ("van", "bike", "tram")}, ("van", "bike", "tram"), {0, 1, 2}),
        ({"layout": "rfdetr,background=none"}, ("class_0", "class_1", "class_2"), {0, 1, 2}),
    ],
)
def test_the_last_class_of_rf_detr_is_the_background_unless_it_has_a_name(options, names, labels, tmp_path):
    detector = load_detector(f"onnx:{graph_of('rfdetr', tmp_path)}", **options)

    assert detector.names == names
    assert set(detector([IMAGE])[0].label.tolist()) == labels


def test_only_layouts_with_a_background_take_one(tmp_path):
    with pytest.raises(ObjectSeekerError, match="layout yolox has no background=last: omit it"):
        load_detector(f"onnx:{graph_of('yolox', tmp_path)}", layout="yolox,background=last")


def test_unnamed_outputs_that_list_fewer_boxes_than_a_grid_has_are_not_taken_for_its_boxes(tmp_path):
    """As queries are: read as raw boxes of a grid they would be nonsense, without a word."""
    box, probe = NETWORK["stretch"]
    graph = Graph(probe=probe, scale=UNIT[0], shift=UNIT[1], one_image=False)
    path = queries(graph, tmp_path / "unnamed.onnx", np.array(box, float), {}, names=("812", "813"))

    with pytest.raises(ObjectSeekerError, match=r"cannot tell the layout .*812 .*choose one"):
        load_detector(f"onnx:{path}")
    np.testing.assert_allclose(load_detector(f"onnx:{path}", layout="queries")([IMAGE])[0].xyxy[0], RAW_BOX, atol=1e-4)


def test_libreyolos_graphs_are_read_by_the_family_they_name(tmp_path, caplog):
    """Its YOLOv9 has YOLOv8's shapes, its PP-YOLOE those of our own detector, its YOLO-NAS the names of RT-DETR."""
    signature = {"libreyolo_version": "1.6.0", "task": "detect", "names": '{"0": "a", "1": "b", "2": "c"}'}

    def signed(layout, family, **more):
        path = graph_of(layout, tmp_path, metadata={**signature, "model_family": family, **more})
        return load_detector(f"onnx:{path}").layout.describe()

    assert signed("yolov8", "yolo9") == "yolov9,fit=top-left"  # whatever its boxes look like
    assert signed("yolov8", "yolo9_e2e", letterbox_pad="center") == "yolov9,nms=None"
    assert signed("end2end", "yolo9", nms="true", letterbox_pad="topleft") == "end2end,fit=top-left"
    assert signed("decoded", "ppyoloe") == "ppyoloe"
    assert signed("yolox", "picodet") == "picodet"
    assert not warnings_of(caplog)
    for family, task in (("yolonas", "detect"), ("yolo9", "pose")):
        with pytest.raises(ObjectSeekerError, match=rf"unknown libreyolo model '{family}' \({task}\): choose"):
            signed("queries", family, task=task)


def test_boxes_that_only_look_like_yolox_are_refused(tmp_path):
    boxes, strengths = cells_with(np.array(NETWORK["top-left"][0], float), (8, 16, 32))
    graph = Graph(probe=(0, 0), scale=UNIT[0], shift=UNIT[1], one_image=False)
    path = one_output(graph, tmp_path / "decoded.onnx", center_sides(boxes), strengths, {})

    with pytest.raises(
        ObjectSeekerError, match=r"has YOLOX's shapes, but its boxes are decoded already: choose a layout"
    ):
        load_detector(f"onnx:{path}")
    found = load_detector(f"onnx:{path}", layout="yolov5,fit=top-left,channels=bgr,std=1")
    np.testing.assert_allclose(found([IMAGE // 255])[0].xyxy, np.empty((0, 4)))


def test_a_graph_that_cannot_be_run_says_so_when_it_is_used(tmp_path):
    """Not while its boxes are inspected to infer its layout."""
    detector = load_detector(f"onnx:{build('yolov8', tmp_path / 'broken.onnx', (16, 24, 48, 40), (SIZE, SIZE))}")

    assert detector.layout.name == "yolov8"
    with pytest.raises(ObjectSeekerError, match="the graph returned 0x7x84 for 1 images"):
        detector([IMAGE])


def test_only_whole_and_finite_boxes_are_looked_at():
    box = np.array([16.0, 24, 48, 40])
    boxes, _ = cells_with(box, (8, 16, 32))

    assert infer_box_format(boxes, (SIZE, SIZE)) == "corners"
    assert (
        infer_box_format(cells_with(box, (32, 16, 8))[0], (SIZE, SIZE)) == "corners"
    )  # though most would do as centers
    assert infer_box_format(boxes[:, :2], (SIZE, SIZE)) is None
    assert infer_box_format(np.full_like(boxes, np.inf), (SIZE, SIZE)) is None
    assert infer_box_format(center_sides(boxes), (SIZE, SIZE)) == "centers"
    assert (
        infer_box_format(np.random.default_rng(0).normal(0, 3, boxes.shape), (SIZE, SIZE)) is None
    )  # as YOLOX's offsets


def test_outputs_named_like_boxes_that_cannot_be_boxes_are_not_taken_for_queries(tmp_path):
    box, probe = NETWORK["stretch"]
    graph = Graph(probe=probe, scale=UNIT[0], shift=UNIT[1], one_image=False)
    path = queries(graph, tmp_path / "swapped.onnx", np.array(box, float), {}, names=("pred_boxes", "pred_logits"))

    with pytest.raises(ObjectSeekerError, match="cannot tell the layout"):
        load_detector(f"onnx:{path}")


@pytest.mark.parametrize("layout", ["queries", "picodet", "ppyoloe", "paddle", "mmdeploy"])
def test_a_guess_at_the_pixels_is_said_and_what_to_write_for_others_can_be_read(layout, tmp_path, caplog):
    load_detector(f"onnx:{graph_of(layout, tmp_path)}", class_names=None if layout in RAW_LAYOUTS else ["a", "b", "c"])

    (said,) = warnings_of(caplog)
    assert said.startswith(f"{layout}.onnx: its input is prepared as for ")
    assert parse_layout(said.rsplit("--set layout=", 1)[1]).mean != LAYOUTS[layout].mean


def test_a_head_that_lists_every_cell_of_a_small_input_is_not_yolox_with_one_class():
    """As Ultralytics' YOLOv10 and YOLO26 do below 300 cells, at 128 x 96."""
    rows = [GraphTensor("output0", (1, 252, 6), False)]

    assert infer_layout(rows, (128, 96), takes_sizes=False, exported_by_yolo=True) == "end2end"
    assert infer_layout(rows, (128, 96), takes_sizes=False, exported_by_yolo=False) == "yolox"


def test_metadata_that_is_not_utf8_is_one_sentence(tmp_path):
    path = graph_of("yolov8", tmp_path, metadata={"names": "{0: 'zyx', 1: 'dog', 2: 'cow'}"})
    content = path.read_bytes()
    assert content.count(b"zyx") == 1
    path.write_bytes(content.replace(b"zyx", b"z\x80x"))

    with pytest.raises(ObjectSeekerError, match="must be UTF-8"):
        load_detector(f"onnx:{path}")


def test_a_graph_of_an_enormous_input_is_compared_without_making_its_grid():
    """Its 2**28 x 8 cells would take 32 GB."""
    for shapes in ([(1, 252, 37)], [(1, 5, 4), (1, 5, 3)]):
        outputs = [GraphTensor(f"output{n}", shape, False) for n, shape in enumerate(shapes)]
        infer_layout(outputs, (64, 2**31), takes_sizes=False, exported_by_yolo=False)


def test_boxes_below_the_score_floor_are_not_returned(tmp_path):
    path = graph_of("detr", tmp_path)

    assert len(load_detector(f"onnx:{path}")([IMAGE])[0]) == 3
    assert len(load_detector(f"onnx:{path}", score_floor=0.3)([IMAGE])[0]) == 2


def test_a_box_is_clipped_to_the_image_and_dropped_if_nothing_is_left(tmp_path):
    path = build("end2end", tmp_path / "a.onnx", (-10, 0, 32, 64), (32, 32))
    padded = build("end2end", tmp_path / "b.onnx", (0, 0, 64, 10), (32, 32))  # in the padding above the image

    np.testing.assert_allclose(load_detector(f"onnx:{path}")([IMAGE])[0].xyxy[0], (0, 0, 100, 100), atol=1e-4)
    assert len(load_detector(f"onnx:{padded}")([IMAGE])[0]) == 0


def test_images_of_all_sizes_go_through_one_call(tmp_path):
    detector = load_detector(f"onnx:{graph_of('end2end', tmp_path)}", batch_size=2)
    images = [np.full((height, width, 3), 128, np.uint8) for height, width in ((64, 64), (1, 1), (333, 21), (14, 450))]

    together = detector(images)

    assert together == [detector([image])[0] for image in images]
    assert [found.score[0] for found in together] == pytest.approx([128 / 255] * 4, abs=1e-5)
    assert detector([]) == []


def test_a_graph_of_batch_one_runs_view_by_view(tmp_path):
    detector = load_detector(f"onnx:{graph_of('yolox', tmp_path, input_shape=(1, 3, SIZE, SIZE))}")

    assert detector.batch_size == 1
    assert len(detector.detect_views(IMAGE, Halves(2).masks(200, 100).removed, 114)) == 8


def test_a_graph_of_dynamic_size_takes_the_size_asked_for(tmp_path):
    path = graph_of("decoded", tmp_path, input_shape=("n", 3, "h", "w"))

    assert load_detector(f"onnx:{path}").input_size == (416, 416)
    assert load_detector(f"onnx:{path}", input_size=64).input_size == (64, 64)
    detector = load_detector(f"onnx:{path}", input_size=(64, 32))
    np.testing.assert_allclose(detector([IMAGE])[0].xyxy[0], RAW_BOX, atol=1e-4)
    with pytest.raises(ObjectSeekerError, match=r"input_size 64x50 .* multiples of 32"):
        load_detector(f"onnx:{path}", input_size=(64, 50))


def test_trimming_cuts_the_padding_and_keeps_the_boxes(tmp_path):
    path = graph_of("decoded", tmp_path, input_shape=("n", 3, "h", "w"))
    detector = load_detector(f"onnx:{path}", input_size=64, layout="decoded,trim=yes")
    shapes = []
    detector = replace(detector, forward=spy(detector.forward, shapes))

    square = np.full((100, 100, 3), 50, np.uint8)
    first, second = detector([square, IMAGE])

    assert sorted(shapes) == [(1, 3, 32, 64), (1, 3, 64, 64)]
    assert first.score[0] == pytest.approx(50 / 255, abs=1e-5)
    np.testing.assert_allclose(second.xyxy[0], RAW_BOX, atol=1e-4)


def spy(forward, shapes):
    def recording(batch):
        shapes.append(batch.shape)
        return forward(batch)

    return recording


def test_candidates_of_unknown_number_need_a_layout_unless_the_exporter_signed(tmp_path):
    options = {"input_shape": ("n", 3, "h", "w"), "output_shape": ["n", "a", 8]}
    path = graph_of("yolov5", tmp_path, **options)

    with pytest.raises(ObjectSeekerError, match=r"cannot tell the layout .*output \?x.*x8.*yolov5"):
        load_detector(f"onnx:{path}")
    np.testing.assert_allclose(
        load_detector(f"onnx:{path}", layout="yolov5", input_size=64)([IMAGE])[0].xyxy[0], RAW_BOX, atol=1e-4
    )
    signed = graph_of("yolov5", tmp_path, **options, metadata={"stride": "32", "names": "{0: 'a', 1: 'b', 2: 'c'}"})
    assert load_detector(f"onnx:{signed}").layout.name == "yolov5"


def test_a_layout_that_does_not_fit_is_an_error(tmp_path):
    path = graph_of("yolov5", tmp_path)

    with pytest.raises(ObjectSeekerError, match=f"yolox graph has {CELLS} rows at input 64x64: got {3 * CELLS}"):
        load_detector(f"onnx:{path}", layout="yolox")([IMAGE])
    with pytest.raises(ObjectSeekerError, match="does not have layout detr"):
        load_detector(f"onnx:{path}", layout="detr")
    with pytest.raises(ObjectSeekerError, match=r"fixed to inputs of 64x64, not 96x96"):
        load_detector(f"onnx:{path}", input_size=96)
    with pytest.raises(ObjectSeekerError, match=r"fixed to inputs of 64x64: omit trim and fit=max-area"):
        load_detector(f"onnx:{path}", layout="yolov5,trim=yes")


@pytest.mark.parametrize("shape", [(3, SIZE, SIZE), (1, 3, SIZE, SIZE), ("n", 3, SIZE, SIZE)])
def test_a_graph_whose_outputs_have_no_batch_axis_runs_image_by_image(shape, tmp_path):
    detector = load_detector(f"onnx:{graph_of('torchvision', tmp_path, input_shape=shape)}")

    first, second = detector([IMAGE, IMAGE // 2])

    assert first.score[0] == pytest.approx(RED / 255, abs=1e-5)
    assert second.score[0] == pytest.approx(RED / 510, abs=1e-5)


def test_a_background_class_goes_away_with_label_offset(tmp_path):
    path = graph_of("torchvision", tmp_path)

    assert load_detector(f"onnx:{path}")([IMAGE])[0].label.tolist() == [0, 1, 2]
    assert load_detector(f"onnx:{path}", layout="torchvision,label_offset=-1")([IMAGE])[0].label.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, ("class_0", "class_1", "class_2")),
        ({"classes": "cat dog bird"}, ("cat", "dog", "bird")),
        ({"classes": "cat, hot dog, bird"}, ("cat", "hot dog", "bird")),
        ({"names": "{0: 'cat', 2: 'bird'}"}, ("cat", "class_1", "bird")),
        ({"names": "['cat', 'dog', 'bird']"}, ("cat", "dog", "bird")),
        ({"names": "__import__('os').abort()"}, ("class_0", "class_1", "class_2")),
        ({"names": "7"}, ("class_0", "class_1", "class_2")),
    ],
)
def test_class_names_come_from_the_metadata_or_are_numbered(metadata, expected, tmp_path):
    assert load_detector(f"onnx:{graph_of('yolov8', tmp_path, metadata=metadata)}").names == expected


def test_class_names_of_graphs_that_only_list_boxes(tmp_path):
    assert load_detector(f"onnx:{graph_of('detr', tmp_path)}").names == class_names.COCO_80
    assert load_detector(f"onnx:{graph_of('torchvision', tmp_path)}").names == class_names.COCO_91
    assert load_detector(f"onnx:{graph_of('detr', tmp_path)}", class_names=["a", "b"]).names == ("a", "b")
    assert class_names.COCO_91[1] == "person"
    assert class_names.COCO_91[90] == "toothbrush"


def test_the_identity_changes_with_weights_and_settings(tmp_path):
    path = graph_of("yolov8", tmp_path)
    fingerprint = load_detector(f"onnx:{path}").fingerprint

    assert fingerprint == load_detector(f"onnx:{path}").fingerprint
    assert fingerprint.startswith("yolov8.onnx ")
    assert fingerprint != load_detector(f"onnx:{path}", layout="yolov8,channels=bgr").fingerprint
    assert fingerprint != load_detector(f"onnx:{path}", score_floor=0.05).fingerprint
    other = build("yolov8", tmp_path / "other.onnx", (1, 2, 3, 4), (0, 0))
    assert fingerprint.split("sha256:")[1] != load_detector(f"onnx:{other}").fingerprint.split("sha256:")[1]


def test_bad_files_give_one_clear_sentence(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a graph")

    with pytest.raises(ObjectSeekerError, match=r"there is no file .*missing\.onnx"):
        load_detector("onnx:missing.onnx")
    with pytest.raises(ObjectSeekerError, match=r"cannot read .*broken\.onnx as an ONNX file"):
        load_detector(f"onnx:{broken}")
    with pytest.raises(ObjectSeekerError, match="device must be cpu, openvino, cuda or cuda:NUMBER"):
        load_detector(f"onnx:{broken}", device="tpu")


def test_an_onnx_detector_masks_by_itself_inside_the_defended_detector(tmp_path):
    detector = load_onnx(graph_of("decoded", tmp_path))

    assert isinstance(detector, ViewDetector)
    observation = ObjectSeeker(detector, Rule(), masks=Halves(3)).observe([IMAGE])[0]
    assert observation.base == detector([IMAGE])[0]
    assert len(observation.masked) == 12


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "objectseeker"]


def test_classes_that_are_guessed_are_said(tmp_path, caplog):
    path = graph_of("detr", tmp_path)
    load_detector(f"onnx:{path}")
    assert warnings_of(caplog) == [
        "detr.onnx does not name its classes: they are taken for those of COCO; --set class_names=@FILE sets others"
    ]
    caplog.clear()
    load_detector(f"onnx:{path}", class_names=["a"])
    load_detector(f"onnx:{graph_of('yolov8', tmp_path)}")  # three classes: numbered, nothing is guessed
    assert not warnings_of(caplog)
    assert _guess_class_names(path, 20, LAYOUTS["yolox"]) == class_names.VOC_20
    assert _guess_class_names(path, 80, LAYOUTS["yolox"]) == class_names.COCO_80
    assert len(warnings_of(caplog)) == 2


def test_an_own_graph_is_given_names_one_for_each_class(tmp_path):
    path = graph_of("yolox", tmp_path)
    assert load_detector(f"onnx:{path}", class_names=["van", "bike", "tram"]).names == ("van", "bike", "tram")
    with pytest.raises(ObjectSeekerError, match=r"yolox\.onnx has 3 classes, but 2 names were given"):
        load_detector(f"onnx:{path}", class_names=["van", "bike"])
    with pytest.raises(ObjectSeekerError, match="has 2 classes, but 3 names"):
        load_detector(f"onnx:{path}", layout="yolox,label_offset=-1", class_names=["van", "bike", "tram"])


@pytest.mark.parametrize(
    "metadata",
    [
        {"names": "{2000000000: 'x'}"},
        {"names": "{" + "9" * 5000 + ": 'x'}"},
        {"names": "'abc'"},
        {"names": "[" * 4000},
        {"classes": "a," * 70_000},
        {"names": " " * (2**22 + 1) + "['a']"},
    ],
)
def test_metadata_cannot_make_a_great_many_names(metadata):
    assert class_names.from_metadata(metadata) == ()


def test_a_graph_that_names_some_of_its_classes_has_numbers_for_the_rest(tmp_path):
    path = graph_of("yolov8", tmp_path, metadata={"names": "{0: 'cat'}"})
    assert load_detector(f"onnx:{path}").names == ("cat", "class_1", "class_2")


def test_a_batch_that_the_graph_fixes_is_said(tmp_path, caplog):
    path = graph_of("yolov8", tmp_path, input_shape=(1, 3, 64, 64))
    assert load_detector(f"onnx:{path}", batch_size=8, class_names=["a", "b", "c"]).batch_size == 1
    assert warnings_of(caplog) == [f"{path} takes batches of 1 only: batch 8 is not used"]


def test_a_batch_that_no_memory_holds_is_refused(tmp_path):
    path = graph_of("yolov8", tmp_path)
    with pytest.raises(ObjectSeekerError, match=r"a batch of 100000 views of 64x64 takes 4\.6 GB, more than 4: choose"):
        load_detector(f"onnx:{path}", batch_size=100_000)
    with pytest.raises(ObjectSeekerError, match="a batch of 100000 views"):
        load_detector(f"onnx:{graph_of('yolov8', tmp_path, input_shape=(100_000, 3, SIZE, SIZE))}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_than_the_graphs_is_a_sentence_or_gives_boxes(layout, tmp_path):
    """Nothing else is raised: no index, no shape."""
    rejected = []
    for other in ("decoded", "yolox", "detr", "mmdeploy"):
        try:
            load_detector(f"onnx:{graph_of(other, tmp_path)}", layout=layout)([noise(60, 40, 0)])
        except ObjectSeekerError as error:
            rejected.append(str(error))
    assert rejected
    assert all("layout" in sentence or "does not take" in sentence for sentence in rejected)


def test_the_second_gpu_is_a_device():
    assert parse_device("cuda:1") == ("cuda", 1)
    assert parse_device("cuda") == ("cuda", 0)
    for device in ("cuda:", "cuda:-1", "tpu", "CPU", "cuda:1,cuda:2"):
        with pytest.raises(ObjectSeekerError, match="device must be cpu, openvino, cuda or cuda:NUMBER"):
            parse_device(device)


def test_nothing_is_written_below_home(tmp_path):
    code = "from objectseeker.detectors import load_detector; load_detector('builtin')"
    home = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "ORT_"))}
    subprocess.run([sys.executable, "-c", code], env=home | {"HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("*")) == []
