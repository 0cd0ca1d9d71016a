"""Views resized to the full input: a pure function of the kept pixels, with boxes at their place in the image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS

from objectseeker import Bands, Detections, Halves, Pairs, Windows
from objectseeker.core.seeker import view_rectangles
from objectseeker.detectors import load_detector
from objectseeker.detectors.check import check
from objectseeker.detectors.resized import ResizedViews, kept_part

RECIPES = (Windows(1 / 2), Windows(1 / 3) + Halves(2), Pairs(1), Bands(0.05))


class Reader:
    """Everything it is shown decides its boxes: one box around the image, its score from all pixels."""

    names = ("thing",)
    fingerprint = "reader"

    def __call__(self, images):
        found = []
        for image in images:
            height, width = image.shape[:2]
            weight = np.arange(image.size) % 250 + 1
            score = float((image.ravel().astype(float) @ weight) % 997) / 997
            found.append(Detections([[0, 0, width, height]], [score], [0]))
        return found


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 40), st.integers(2, 40), st.sampled_from(RECIPES))
def test_no_removed_pixel_is_seen_and_every_kept_one_is(seed, width, height, recipe):
    rng = np.random.default_rng(seed)
    masks = recipe.masks(width, height)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    removed = view_rectangles(masks)
    detector = ResizedViews(Reader())
    before = detector.detect_views(image, removed, 114)
    assert len(before) == 1 + len(masks)
    for number, rectangles in enumerate(masks.removed, start=1):
        attacked = image.copy()
        for x1, y1, x2, y2 in rectangles:
            attacked[y1:y2, x1:x2] = rng.integers(0, 256, attacked[y1:y2, x1:x2].shape)
        assert detector.detect_views(attacked, removed, 114)[number] == before[number]
        x1, y1, x2, y2 = masks.kept[number - 1]
        assert before[number].xyxy.tolist() == [[x1, y1, x2, y2]]
        assert kept_part(rectangles, width, height) == (x1, y1, x2, y2)
    x, y = int(rng.integers(width)), int(rng.integers(height))
    touched = image.copy()
    touched[y, x, 0] ^= 1
    after = detector.detect_views(touched, removed, 114)
    for number, rectangles in enumerate(removed):
        shown = not any(x1 <= x < x2 and y1 <= y < y2 for x1, y1, x2, y2 in rectangles)
        assert (after[number] != before[number]) == shown


def test_a_leak_of_one_column_is_found(monkeypatch):
    """The check of detectors rewrites what a mask removes, and finds a part that is cut out too large."""
    from objectseeker.detectors import resized

    image = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    assert check(ResizedViews(Reader()), image, masks=Windows(1 / 2)).failed == ()
    monkeypatch.setattr(resized, "fill_rectangles", lambda image, removed, value: image)
    honest = resized.kept_part
    monkeypatch.setattr(resized, "kept_part", lambda *given: (max(honest(*given)[0] - 1, 0), *honest(*given)[1:]))
    assert check(ResizedViews(Reader()), image, masks=Windows(1 / 2)).failed


def test_any_detector_takes_the_mask_mode():
    detector = load_detector("builtin", input_size=96, mask_mode="resize")
    assert isinstance(detector, ResizedViews)
    plain = load_detector("builtin", input_size=96)
    assert detector.names == plain.names
    assert detector.fingerprint != plain.fingerprint
    image = np.random.default_rng(1).integers(0, 256, (64, 80, 3), np.uint8)
    removed = view_rectangles(Windows(1 / 2).masks(80, 64))
    (whole, first, *_) = detector.detect_views(image, removed, 114)
    assert whole == detector([image])[0]
    assert first == detector([image[:32, :40]])[0]


def test_a_view_that_fails_has_no_boxes():
    class Fails(Reader):
        def __call__(self, images):
            if images[0].shape[0] < 60:
                raise ValueError("too small")
            return super().__call__(images)

    image = np.zeros((60, 90, 3), np.uint8)
    found = ResizedViews(Fails()).detect_views(image, view_rectangles(Windows(1 / 2).masks(90, 60)), 114)
    assert [len(view) for view in found] == [1, *[0] * 9]


def test_a_part_of_nothing_is_the_whole():
    assert kept_part(np.array([[0, 0, 9, 9]]), 9, 9) == (0, 0, 9, 9)
    with pytest.raises(ValueError, match="cannot reshape"):
        kept_part(np.array([1, 2, 3]), 9, 9)
