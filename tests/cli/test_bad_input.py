"""Bad input: one exception class, one sentence, the offending value in it."""

# Wrong types are what is tested.
# mypy: disable-error-code="arg-type, list-item"

import numpy as np
import pytest
from cases import certify, prune

from objectseeker import Detections, Halves, ObjectSeeker, ObjectSeekerError, Observation, Patch, Rule

GOOD = Detections([[0, 0, 5, 5]], [0.9], [0])
MASKS, RULE = Halves(1).masks(20, 20), Rule()
SEEN = Observation(20, 20, MASKS, GOOD, [GOOD] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Detections([[0, 0, 5]], [1], [0]), r"shape \(N, 4\).*\(1, 3\)"),
        (lambda: Detections([[0, 0, 5, 5]], [1, 1], [0]), r"score.*\(1,\).*\(2,\)"),
        (lambda: Detections([[0, 0, 5, 5]], [1], [[0]]), r"label.*\(1, 1\)"),
        (lambda: Detections([[0, np.nan, 5, 5]], [1], [0]), "nan"),
        (lambda: Detections([[0, 0, np.inf, 5]], [1], [0]), "inf"),
        (lambda: Detections([[0, 0, 1e9, 5]], [1], [0]), "too large.*1000000000"),
        (lambda: Detections([[5, 0, 0, 5]], [1], [0]), r"x1 <= x2.*\[5.0, 0.0, 0.0, 5.0\]"),
        (lambda: Detections([[0, 0, 5, 5]], [1.5], [0]), "1.5"),
        (lambda: Detections([[0, 0, 5, 5]], [np.nan], [0]), "nan"),
        (lambda: Detections([[0, 0, 5, 5]], [1], [0.5]), "whole number.*0.5"),
        (lambda: Detections([[0, 0, 5, 5]], [1], [np.nan]), "whole number.*nan"),
        (lambda: Detections([["a", 0, 5, 5]], [1], [0]), "numbers.*'a'"),
        (lambda: Halves(30).masks(0, 5), "width must be at least 1: got 0"),
        (lambda: Halves(30).masks(5, -3), "height must be at least 1: got -3"),
        (lambda: Halves(0).masks(5, 5), "lines must be at least 1: got 0"),
        (lambda: Halves(2.5).masks(5, 5), "lines must be a whole number: got 2.5"),
        (lambda: Halves(30).masks("wide", 5), "width must be a whole number: got 'wide'"),
        (lambda: Patch(area=0), "area must be above 0: got 0"),
        (lambda: Patch(area=1.2), r"area must lie within \[0, 1\]: got 1.2"),
        (lambda: Patch(area=float("nan")), "area must be finite: got nan"),
        (lambda: Patch(aspect=0), "aspect.*got 0"),
        (lambda: Patch(aspect=-2), "aspect.*got -2"),
        (lambda: Patch(location="near"), "far, close, over, anywhere, outside: got 'near'"),
        (lambda: Patch(count=17), "count must be at most 16: got 17"),
        (lambda: Observation(21, 20, MASKS, GOOD, [GOOD] * 4), "20x20.*21x20"),
        (lambda: Observation(20, 20, MASKS, GOOD, [GOOD] * 3), "4: got 3"),
        (lambda: Observation(20, 20, MASKS, GOOD, [GOOD] * 3 + [None]), r"masked\[3\].*None"),
        (lambda: Observation(20, 20, "halves", GOOD, []), "'halves'"),
        (lambda: prune(SEEN, base_threshold=-0.1), "base_threshold.*-0.1"),
        (lambda: prune(SEEN, mask_threshold=2), "mask_threshold.*2"),
        (lambda: prune(SEEN, filter_ioa=1.01), "filter_ioa.*1.01"),
        (lambda: prune(SEEN, evidence_threshold=0.9, mask_threshold=0.5), "evidence_threshold.*0.5.*0.9"),
        (lambda: prune(SEEN, evidence_power=0), "power.*0"),
        (lambda: prune(SEEN, edge_factor=1.5), "edge_factor.*1.5"),
        (lambda: certify(SEEN, GOOD, Patch(), mask_threshold=0.5, certification_threshold=-1), "threshold.*-1"),
        (lambda: certify(SEEN, GOOD, Patch(), mask_threshold=0.5, bound="best"), "bound.*'best'"),
        (lambda: certify(SEEN, GOOD, ["over"], mask_threshold=0.5), "Patch objects: got 'over'"),
        (lambda: ObjectSeeker("detector", RULE), "callable: got 'detector'"),
        (lambda: ObjectSeeker(list, RULE, masks=Halves(0)), "lines.*0"),
        (lambda: ObjectSeeker(list, RULE, batch_size=0), "batch.*0"),
        (lambda: ObjectSeeker(list, RULE, masks="thirds"), "masks must be a recipe such as Halves.30.: got 'thirds'"),
        (lambda: ObjectSeeker(list, 0.7), "rule must be a Rule, an IouRule or another PruningRule: got 0.7"),
        (lambda: ObjectSeeker(list, RULE, fill=300), "fill.*300"),
    ],
)
def test_is_refused_with_its_value(make, message):
    with pytest.raises(ObjectSeekerError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((5, 5), np.uint8),
        np.zeros((5, 5, 4), np.uint8),
        np.zeros((5, 5, 3), np.float32),
        np.zeros((0, 5, 3), np.uint8),
    ],
)
def test_an_image_must_be_rgb_bytes(image):
    with pytest.raises(ObjectSeekerError, match="H x W x 3 uint8"):
        ObjectSeeker(lambda images: [GOOD for _ in images], RULE)([image])


def test_a_detector_must_answer_for_every_image_with_detections():
    image = np.zeros((20, 20, 3), np.uint8)
    with pytest.raises(ObjectSeekerError, match="8 results for 8 images: got 7"):
        ObjectSeeker(lambda images: [GOOD] * 7, RULE, masks=Halves(2))([image])
    with pytest.raises(ObjectSeekerError, match="ndarray"):
        ObjectSeeker(lambda images: [np.zeros(4)] * len(images), RULE, masks=Halves(2))([image])
