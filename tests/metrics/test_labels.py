"""Two sets of labels: pruned and certified in the detector's, counted in the dataset's."""

import dataclasses

import numpy as np
import pytest
from cases import pairs
from evaluation_cases import EVIDENCE, NAMES, PAPER, ap_literally, boxes, count_literally, image, run
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Bands, Detections, Halves, IouRule, ObjectSeeker, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core.boxes import ioa
from objectseeker.core.label_map import LabelMap
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import BASE_THRESHOLDS, ImageSet, ThreatModel, certify_images, evaluate_images
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.defended_images import DefendedImageSet

# cat has three names, dog one, and of lamps the dataset knows nothing
MANY = LabelMap(("cat", "kitten", "lamp", "dog", "tomcat"), NAMES, np.array([0, 0, -1, 1, 0]))


def renamed(images, seed, vocabulary=MANY):
    """The images with the detector's labels on all boxes: any name of the class, now and then one of no class."""
    rng = np.random.default_rng(seed)
    names = [np.flatnonzero(vocabulary.dataset_labels == label) for label in (0, 1, -1)]

    def relabeled(found):
        label = [int(rng.choice(names[c if rng.random() < 0.9 else -1])) for c in found.label.tolist()]
        return Detections(found.xyxy, found.score, label)

    def seen(one):
        masked = [relabeled(view) for view in one.masked]
        return Observation(one.width, one.height, one.masks, relabeled(one.base), masked)

    return [dataclasses.replace(one, observation=seen(one.observation)) for one in images]


def halves_and_bands(width, height, lines):
    return (Halves(lines) + Bands(0.1)).masks(width, height)


def bands(width, height, lines):
    return Bands(0.02 * lines, spacing=0.5).masks(width, height)


def halves(width, height, lines):
    return Halves(lines).masks(width, height)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    chosen=st.sampled_from([PAPER, EVIDENCE]),
    make=st.sampled_from([halves, pairs, bands, halves_and_bands]),
    classwise=st.booleans(),
    by_iou=st.booleans(),
    count=st.sampled_from([1, 1, 2]),
)
def test_verdicts_are_those_of_the_rule_for_one_of_the_names(seed, chosen, make, classwise, by_iou, count):
    images = renamed(run(seed, 3, make=make, sure=0.8, lines=1 + seed % 4), seed)
    rule = chosen.with_rule(classwise=classwise).on_curve(0.3)
    rule = IouRule(ioa_rule=rule) if by_iou else rule
    threats = [Patch(area=0.05, aspect=2.0, location=where, count=count) for where in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(
        build_proof_table(ImageSet.from_images(images, MANY), rule, "exact"), rule, threats
    )
    expected = []
    for one in images:
        truth = one.ground_truth[~one.ignore]
        rows, which = MANY.map_to_detector(truth, classwise=classwise)
        proven = rule.certify(one.observation, rows, threats)
        expected.append([MANY.any_label(part, which, len(truth)) for part in (proven.certified, proven.vacuous)])
    assert np.array_equal(certified, np.concatenate([one[0] for one in expected], axis=1))
    assert np.array_equal(vacuous, np.concatenate([one[1] for one in expected], axis=1))


@pytest.mark.parametrize("make", [halves, pairs, bands, halves_and_bands])
@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE])
def test_every_recipe_certifies_something_under_many_names(make, chosen):
    """The comparison above must not be between empty tables."""
    images = renamed(run(7, 30, make=make, sure=0.9, lines=3, largest=40), 7)
    rule = chosen.on_curve(0.3)
    threats = [Patch(area=0.02, location=where) for where in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(
        build_proof_table(ImageSet.from_images(images, MANY), rule, "exact"), rule, threats
    )
    proven = certified & ~vacuous
    assert 0 < proven.sum() < proven.size


# --- a detector that hesitates between its two names ------------------------------------------------------------------

SIZE, OBJECT, FILL, HIDING = 100, (40, 40, 60, 60), 114, 200
TWO_NAMES = LabelMap(("person", "pedestrian"), ("person",), np.array([0, 0]))
HESITANT = Rule(base_threshold=0.5, mask_threshold=0.8, evidence_threshold=0.3)


def hesitant(images):
    """Sees the bright rectangle, unless something hides it; which name it gives depends on how much is masked."""
    found = []
    for one in images:
        gray = one[..., 0]
        whole = (gray[40:60, 40:60] == 255).all() and not (gray == HIDING).any()
        masked = int((gray == FILL).sum()) // (10 * SIZE)
        score = 0.56 if masked else 0.9  # evidence .52: one view does not decide, two do
        found.append(boxes([(*OBJECT, score, masked % 2)] if whole else []))
    return found


def make_image(hidden_at=None):
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    pixels[40:60, 40:60] = 255
    if hidden_at is not None:
        x, y = hidden_at
        pixels[y : y + 10, x : x + 10] = HIDING
    return pixels


def test_nothing_is_certified_that_the_deployed_detector_does_not_output():
    seeker = ObjectSeeker(hesitant, HESITANT, masks=Halves(9))
    (observation,) = seeker.observe([make_image()])
    observed = dataclasses.replace(image([], [(*OBJECT, 0)], lines=9), observation=observation)

    # In the dataset's labels the views combine, so everything far is certified ...
    one_name = Observation(
        SIZE, SIZE, observation.masks, observation.base, [TWO_NAMES.map_to_dataset(view) for view in observation.masked]
    )
    far = Patch(0.01, location="far")
    assert HESITANT.certify(one_name, observed.ground_truth, far).certified.all()
    # ... but the deployed detector outputs nothing there,
    assert not len(seeker([make_image(hidden_at=(15, 45))])[0])
    # so it must not be certified.
    found = evaluate_images([observed], TWO_NAMES, dataclasses.replace(EVIDENCE, rule=HESITANT, clean_recall=None))
    assert found.defended.certified_recall()["far"] == 0
    (row,) = next(certify_images([observed], TWO_NAMES, HESITANT, ThreatModel()))
    assert not row.certified["far"]
    # Class-agnostic, both names are one, in certification as in deployment.
    class_agnostic = dataclasses.replace(HESITANT, classwise=False)
    settings = dataclasses.replace(EVIDENCE, rule=class_agnostic, clean_recall=None)
    assert evaluate_images([observed], TWO_NAMES, settings).defended.certified_recall()["far"] == 100
    (output,) = ObjectSeeker(hesitant, class_agnostic, masks=Halves(9))([make_image(hidden_at=(15, 45))])
    assert ioa(np.array([OBJECT], dtype=float), output.xyxy).max() == 1


def test_what_is_certified_is_output_wherever_the_patch_lies():
    sure = dataclasses.replace(HESITANT, mask_threshold=0.5)
    seeker = ObjectSeeker(hesitant, sure, masks=Halves(9))
    (observation,) = seeker.observe([make_image()])
    observed = dataclasses.replace(image([], [(*OBJECT, 0)], lines=9), observation=observation)
    (row,) = next(certify_images([observed], TWO_NAMES, sure, ThreatModel()))
    assert row.certified["far"]
    assert row.certified_as["far"] in TWO_NAMES.detector_names
    rng = np.random.default_rng(0)
    for x, y in rng.integers(0, 91, (40, 2)).tolist():
        gap = max(40 - (x + 10), x - 60), max(40 - (y + 10), y - 60)
        if max(gap) > 10:
            (output,) = seeker([make_image(hidden_at=(x, y))])
            assert len(output)


# --- counting in the dataset's labels --------------------------------------------------------------------------------


@pytest.mark.parametrize("classwise", [True, False])
@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE])
@pytest.mark.parametrize("by_iou", [False, True])
def test_boxes_are_relabeled_after_pruning_and_all_of_them_are_pruned(chosen, classwise, by_iou):
    images = renamed(run(3, 4, generous=1.0), 3)
    chosen = chosen.with_rule(classwise=classwise)
    chosen = chosen.iou_variant() if by_iou else chosen
    curve = DefendedImageSet.from_settings(ImageSet.from_images(images, MANY), chosen).curve(chosen)
    objects = np.bincount(np.concatenate([one.ground_truth.label[~one.ignore] for one in images]), minlength=2)
    points = {0: [], 1: []}
    for row, base_threshold in enumerate(BASE_THRESHOLDS.tolist()):
        rule = chosen.on_curve(base_threshold)
        counted = count_literally([(one, MANY.map_to_dataset(rule.prune(one.observation))) for one in images])
        for c, of_class in points.items():
            assert (curve.true_positives[row, c], curve.false_positives[row, c]) == (counted.right[c], counted.wrong[c])
            both = counted.right[c] + counted.wrong[c]
            of_class.append((counted.right[c] / objects[c], counted.right[c] / both if both else 1.0))
    expected = [100 * ap_literally(of_class) for of_class in points.values()]
    assert curve.ap50.tolist() == pytest.approx(expected)


def test_a_box_of_a_class_that_the_data_set_lacks_explains_others_where_labels_play_no_part():
    lamp, cat = (40, 40, 60, 60, 0.9, 2), (40, 40, 60, 60, 0.9, 0)
    observed = image([lamp], [(40, 40, 60, 60, 0)], [[cat]] * 4)
    found = evaluate_images([observed], MANY, PAPER)
    assert found.defended.ap50 == 100  # a mask finds the cat
    agnostic = evaluate_images([observed], MANY, PAPER.class_agnostic())
    assert agnostic.defended.ap50 == 0  # the lamp explains it, as it would in deployment


def test_labels_are_checked_against_their_own_names():
    good = image([(0, 0, 9, 9, 0.9, 4)], [(0, 0, 9, 9, 1)])
    assert evaluate_images([good], MANY, PAPER).objects == 1
    with pytest.raises(
        ObjectSeekerError, match=r"boxes with labels from 5 to 5 but there are 5 class names: add the others"
    ):
        evaluate_images([image([(0, 0, 9, 9, 0.9, 5)], [(0, 0, 9, 9, 1)])], MANY, PAPER)
    with pytest.raises(ObjectSeekerError, match=r"objects with labels from 2 to 2 but there are 2 class names"):
        evaluate_images([image([(0, 0, 9, 9, 0.9, 1)], [(0, 0, 9, 9, 2)])], MANY, PAPER)


def test_rows_of_objects_name_what_proves_them():
    seen = [[(40, 40, 60, 60, 0.99, 4)]] * 4
    observed = image([], [(40, 40, 60, 60, 0), (40, 40, 60, 60, 1)], seen * 25, lines=25)
    proven, not_proven = next(certify_images([observed], MANY, PAPER.rule, ThreatModel()))
    assert set(proven.certified_as.values()) == {"tomcat"}
    assert proven.detector_class == "tomcat"
    assert proven.largest_square > 0
    assert (not_proven.detector_class, set(not_proven.certified_as.values())) == ("dog", {None})
    unknown = LabelMap(("dog",), NAMES, np.array([1]))
    row, _ = next(certify_images([image([], [(0, 0, 9, 9, 0), (0, 0, 9, 9, 1)])], unknown, PAPER.rule, ThreatModel()))
    assert (row.detector_class, row.largest_square, row.safe_lines) == (None, 0, (0, 0, 100, 100))
    assert not any(row.certified.values())
    for rule in (PAPER.rule, EVIDENCE.rule, IouRule(ioa_rule=PAPER.rule)):
        rows = next(certify_images([observed], MANY, rule, ThreatModel()))
        together, _ = certified_objects(
            build_proof_table(ImageSet.from_images([observed], MANY), rule, "exact"), rule, ThreatModel().patches()
        )
        assert [list(row.certified.values()) for row in rows] == together.T.tolist()
        assert rows[0].to_dict().keys() > {
            "image",
            "object",
            "class",
            "box",
            "ignored",
            *PATCH_LOCATIONS,
            "vacuous_far",
        }
