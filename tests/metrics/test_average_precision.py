"""AP by COCO's rules against pycocotools, AP by the paper's rules against a literal version, and explicit cases."""

import contextlib
import io

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, NAMES, PAPER, VOCABULARY, ap_literally, image, protocol_literally, run

from objectseeker.core.label_map import LabelMap
from objectseeker.metrics import ImageSet
from objectseeker.metrics.average_precision import coco_ap50, envelope_area, undefended_curve, unpruned_curve
from objectseeker.metrics.defended_images import DefendedImageSet

OUTSIDE_ALL = 1e11  # an object of this area is outside pycocotools' range "all": it is ignored but no crowd


def by_pycocotools(scene):
    coco_module = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    truth, base = scene.ground_truth, scene.base
    annotations = [
        {
            "id": n + 1,
            "image_id": int(truth.image[n]) + 1,
            "category_id": int(truth.detections.label[n]) + 1,
            "bbox": xywh(truth.detections.xyxy[n]),
            "area": OUTSIDE_ALL if scene.ignore[n] else 1.0,
            "iscrowd": int(scene.crowd[n]),
        }
        for n in range(len(truth))
    ]
    results = [
        {
            "image_id": int(base.image[i]) + 1,
            "category_id": int(base.detections.label[i]) + 1,
            "bbox": xywh(base.detections.xyxy[i]),
            "score": float(base.detections.score[i]),
        }
        for i in range(len(base))
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        reference = coco_module.COCO()
        reference.dataset = {
            "info": {},
            "images": [{"id": i + 1} for i in range(len(scene.images))],
            "categories": [{"id": c + 1, "name": name} for c, name in enumerate(scene.names)],
            "annotations": annotations,
        }
        reference.createIndex()
        run = evaluation.COCOeval(reference, reference.loadRes(results), "bbox")
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][0, :, :, 0, -1]  # IoU 0.5, all areas, 100 boxes
    return np.where((precision > -1).any(axis=0), 100 * precision.mean(axis=0), np.nan)


def xywh(box):
    return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]


def crowded(seed, images=5):
    """Many boxes and objects on a coarse grid, with tied scores and IoUs of exactly 0.5; some images exceed 100."""
    rng = np.random.default_rng(seed)

    def some(count):
        corner = rng.integers(0, 8, (count, 2))
        return np.concatenate([corner, corner + rng.integers(1, 5, (count, 2))], axis=1).tolist()

    made = []
    for number in range(images):
        objects, found = int(rng.integers(0, 12)), int(rng.choice([0, 5, 40, 300]))
        crowd = rng.random(objects) < 0.15
        made.append(
            image(
                [(*box, rng.integers(1, 20) / 20, rng.integers(2)) for box in some(found)],
                [(*box, rng.integers(2)) for box in some(objects)],
                ignore=rng.random(objects) < 0.2,
                crowd=crowd,
                number=number,
            )
        )
    return made


@pytest.mark.parametrize("seed", range(12))
def test_coco_ap_is_that_of_pycocotools(seed):
    images = crowded(seed) if seed % 2 else run(seed, 20)
    scene = ImageSet.from_images(images, LabelMap.from_names((*NAMES, "a class without objects")))
    np.testing.assert_allclose(coco_ap50(scene), by_pycocotools(scene), atol=1e-9)


def test_coco_ap_without_any_boxes_is_zero():
    assert coco_ap50(ImageSet.from_images([image([], [(0, 0, 9, 9, 1)])], VOCABULARY)).tolist() == [
        pytest.approx(np.nan, nan_ok=True),
        0,
    ]


def test_a_counted_object_is_preferred_to_an_ignored_one_that_fits_better():
    observed = image([(0, 0, 10, 10, 0.9, 0)], [(0, 0, 10, 10, 0), (0, 0, 10, 8, 0)], ignore=[True, False])
    scene = ImageSet.from_images([observed], VOCABULARY)
    assert undefended_curve(scene).true_positives[0].tolist() == [1, 0]
    np.testing.assert_allclose(coco_ap50(scene), by_pycocotools(scene))


def test_of_objects_that_fit_equally_the_last_is_taken():
    """It is the one that the next box would have found."""
    truth = [(0, 0, 10, 10, 0), (2, 0, 12, 10, 0)]
    observed = image([(1, 0, 11, 10, 0.9, 0), (5, 0, 15, 10, 0.8, 0)], truth)
    scene = ImageSet.from_images([observed], VOCABULARY)
    curve = undefended_curve(scene)
    assert (curve.true_positives[0].tolist(), curve.false_positives[0].tolist()) == ([1, 0], [1, 0])
    np.testing.assert_allclose(coco_ap50(scene), by_pycocotools(scene))


@pytest.mark.parametrize(("wrong", "expected"), [(99, 1.0), (100, 0.0)])
def test_coco_looks_at_a_hundred_boxes_of_an_image_and_class(wrong, expected):
    base = [(50, 50, 60, 60, 0.9, 0)] * wrong + [(0, 0, 10, 10, 0.1, 0), (0, 0, 10, 10, 0.9, 1)]
    scene = ImageSet.from_images([image(base, [(0, 0, 10, 10, 0)])], VOCABULARY)
    assert coco_ap50(scene)[0] == pytest.approx(expected)
    np.testing.assert_allclose(coco_ap50(scene), by_pycocotools(scene))


@pytest.mark.parametrize("classwise", [True, False])
@pytest.mark.parametrize("settings", [PAPER, EVIDENCE])
def test_the_papers_protocol_against_a_literal_version(settings, classwise):
    for seed in (0, 1):
        images = run(seed, 5)
        scene = ImageSet.from_images(images, VOCABULARY)
        chosen = settings.with_rule(classwise=classwise)
        curve = DefendedImageSet.from_settings(scene, chosen).curve(chosen)
        ap50, recalls = protocol_literally(images, settings, classwise)
        assert curve.mean_ap50 == pytest.approx(100 * ap50, abs=1e-9)
        np.testing.assert_allclose(curve.clean_recall, 100 * np.array(recalls), atol=1e-9)


def test_the_undefended_detector_follows_the_same_protocol_with_base_boxes_alone():
    images = run(8, 6, generous=0.0)  # nothing under any mask: the defense adds nothing
    undefended = undefended_curve(ImageSet.from_images(images, VOCABULARY))
    assert undefended.mean_ap50 == pytest.approx(100 * protocol_literally(images, PAPER, True)[0], abs=1e-9)


def test_envelope_area_by_hand_and_against_a_literal_version():
    recall, precision = np.array([[0.8], [0.5], [0.5], [0.0]]), np.array([[0.6], [0.5], [0.9], [1.0]])
    assert envelope_area(recall, precision)[0] == pytest.approx(0.5 * 0.9 + 0.3 * 0.6)
    rng = np.random.default_rng(0)
    points = rng.integers(0, 9, (100, 2, 30)) / 8
    areas = envelope_area(points[:, 0], points[:, 1])
    for column in range(30):
        assert areas[column] == pytest.approx(ap_literally([tuple(row) for row in points[:, :, column].tolist()]))


def test_one_image_by_hand():
    """Two objects found at .9 and .5, a false positive at .7: precision 1, then 1/2, then 2/3."""
    truth = [(0, 0, 10, 10, 0), (20, 20, 30, 30, 0)]
    base = [(0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.7, 0), (20, 20, 30, 30, 0.5, 0)]
    curve = undefended_curve(ImageSet.from_images([image(base, truth)], VOCABULARY))
    assert curve.mean_ap50 == pytest.approx(50 + 50 * 2 / 3)
    assert curve.clean_recall[[0, 50, 51, 90, 91]].tolist() == [100, 100, 50, 50, 0]
    assert curve.base_thresholds[curve.row_at_recall(0.5)] == 0.9
    assert curve.base_thresholds[curve.row_at_recall(0.51)] == 0.5
    assert coco_ap50(ImageSet.from_images([image(base, truth)], VOCABULARY))[0] == pytest.approx(
        (51 + 50 * 2 / 3) / 101 * 100
    )


def test_boxes_on_ignored_objects_count_neither_way():
    truth = [(0, 0, 10, 10, 0), (20, 20, 30, 30, 0), (40, 40, 80, 80, 0)]
    base = [(20, 20, 30, 30, 0.9, 0), (40, 40, 50, 50, 0.9, 0), (60, 60, 70, 70, 0.9, 0), (0, 0, 10, 10, 0.5, 0)]
    observed = image(base, truth, ignore=[False, True, False], crowd=[False, False, True])
    curve = undefended_curve(ImageSet.from_images([observed], VOCABULARY))
    assert curve.true_positives[0].tolist() == [1, 0]
    assert curve.false_positives[0].tolist() == [0, 0]
    twice = image([*base, (20, 20, 30, 30, 0.8, 0)], truth, ignore=[False, True, False], crowd=[False, False, True])
    assert undefended_curve(ImageSet.from_images([twice], VOCABULARY)).false_positives[0].tolist() == [
        1,
        0,
    ]  # a difficult object is one object


def test_a_masked_box_can_be_what_finds_the_object():
    truth = [(60, 60, 80, 80, 1)]
    observed = image([], truth, [[(60, 60, 80, 80, 0.9, 1)], [(60, 60, 80, 79, 0.95, 1)]])
    scene = ImageSet.from_images([observed], VOCABULARY)
    assert undefended_curve(scene).mean_ap50 == 0
    curve = DefendedImageSet.from_settings(scene, PAPER).curve(PAPER)
    assert curve.mean_ap50 == 100
    assert curve.false_positives.sum() == 0  # one hull
    unpruned = unpruned_curve(scene, PAPER)
    assert unpruned.true_positives[0].tolist() == [0, 1]
    assert unpruned.false_positives[0].tolist() == [0, 1]  # without pruning both are output, and one is too many


def test_the_unpruned_detector_lowers_cut_boxes_like_the_defended_one():
    cut = image(
        [], [(50, 60, 80, 80, 1)], [[(50, 60, 80, 80, PAPER.threshold_schedule.alpha, 1)]]
    )  # a left mask, line at 50
    scene = ImageSet.from_images([cut], VOCABULARY)
    assert unpruned_curve(scene, PAPER).true_positives[0].tolist() == [0, 1]
    assert unpruned_curve(scene, PAPER.with_rule(edge_factor=0.99)).true_positives[0].tolist() == [0, 0]


def test_a_recall_that_is_reached_exactly_counts():
    """Three classes of which two are found: 66.66… % must count as two thirds however the mean is rounded."""
    objects = [(20 * c, 0, 20 * c + 10, 10, c) for c in range(3)]
    observed = image([(*row[:4], 0.5, row[4]) for row in objects[:2]], objects)
    curve = undefended_curve(ImageSet.from_images([observed], LabelMap.from_names(("a", "b", "c"))))
    assert curve.row_at_recall(2 / 3) == 50
    assert curve.row_at_recall(0.67) is None


def test_no_boxes_and_no_objects_of_a_class_leave_it_out():
    observed = image([(50, 50, 60, 60, 0.9, 1)], [(0, 0, 10, 10, 0)])
    curve = undefended_curve(ImageSet.from_images([observed], VOCABULARY))
    assert np.isnan(curve.recall[:, 1]).all()
    assert curve.mean_ap50 == 0
