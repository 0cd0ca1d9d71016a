"""The defended detector: what it shows the detector, and end to end against a real patch."""

import logging
import sys

import numpy as np
import pytest
from cases import pairs, prune

from objectseeker import Detections, Halves, ObjectSeeker, Observation, Pairs, Patch, Rule
from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.core.seeker import detect_all_views, detect_views, keep_successful_views
from objectseeker.demo.samples import samples
from objectseeker.detectors import load_detector
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image


def bright_box(images):
    """A tiny real detector: the bounding box of pixels brighter than 200, if there are enough of them."""
    found = []
    for image in images:
        ys, xs = np.nonzero(image[..., 0] > 200)
        if len(xs) < 30:
            found.append(Detections.empty())
        else:
            found.append(Detections([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], [0.9], [0]))
    return found


def scene():
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    return image, Detections([[30, 20, 60, 40]], [1], [0])


def test_views_are_the_untouched_image_then_one_per_mask_in_fixed_batches():
    shown = []

    def record(images):
        shown.append([i.copy() for i in images])
        return [Detections.empty() for _ in images]

    image, _ = scene()
    before = image.copy()
    ObjectSeeker(record, Rule(), masks=Halves(3), batch_size=5).observe([image])
    masks = Halves(3).masks(90, 60)
    assert [len(batch) for batch in shown] == [5, 5, 5]
    views = [view for batch in shown for view in batch]
    assert np.array_equal(views[0], image)
    for view, (x1, y1, x2, y2) in zip(views[1 : 1 + len(masks)], masks.removed[:, 0], strict=True):
        assert (view[y1:y2, x1:x2] == DEFAULT_FILL).all()
        kept = np.ones(image.shape[:2], bool)
        kept[y1:y2, x1:x2] = False
        assert np.array_equal(view[kept], image[kept])
    assert np.array_equal(image, before)


def test_a_detector_that_looks_at_each_image_alone_gets_no_padding():
    shapes = []

    class Alone:
        one_by_one = True

        def __call__(self, images):
            shapes.append(len(images))
            return [Detections.empty() for _ in images]

    image = np.zeros((20, 30, 3), np.uint8)
    assert len(detect_views(Alone(), image, Halves(1).masks(30, 20))) == 5
    assert shapes == [1] * 5


def test_calling_is_observing_then_pruning():
    image, _ = scene()
    seeker = ObjectSeeker(bright_box, Rule(base_threshold=0.3, mask_threshold=0.6), masks=Halves(4))
    (observation,) = seeker.observe([image])
    assert seeker([image]) == [prune(observation, base_threshold=0.3, mask_threshold=0.6)]
    assert seeker([]) == []


def test_a_real_patch_that_blinds_the_detector_does_not_blind_the_seeker():
    """A dark patch anywhere it may go: the object stays found wherever it is certified."""
    image, truth = scene()
    seeker = ObjectSeeker(bright_box, Rule(), masks=Halves(14))
    (observation,) = seeker.observe([image])
    patch = Patch(0.02, 1.0, "over")
    verdict = seeker.certify(observation, truth, [patch])
    assert verdict.certified.all()
    w, h = patch.size(90, 60)
    rng = np.random.default_rng(0)
    for y in range(20 - h + 1, 40, 3):
        for x in range(30 - w + 1, 60, 3):
            attacked = image.copy()
            attacked[max(y, 0) : y + h, max(x, 0) : x + w] = rng.integers(0, 256, 3)
            (found,) = seeker([attacked])
            covered = np.clip(
                np.minimum(found.xyxy[:, 2:], (60, 40)) - np.maximum(found.xyxy[:, :2], (30, 20)), 0, None
            )
            assert (covered.prod(axis=1) > 0).any()


def test_two_real_patches_that_blind_the_detector_do_not_blind_a_seeker_with_pairs():
    """Two dark patches wherever they may go: the object stays found, as certified. Half masks do not certify it."""
    image, truth = scene()
    seeker = ObjectSeeker(bright_box, Rule(), masks=Pairs(9))
    (observation,) = seeker.observe([image])
    assert observation.masks == pairs(90, 60, 9)
    threat = Patch(0.001, 1.0, "over", count=2)
    assert seeker.certify(observation, truth, threat).certified.all()
    single = ObjectSeeker(bright_box, Rule(), masks=Halves(9))
    (with_halves,) = single.observe([image])
    assert not single.certify(with_halves, truth, threat).certified.any()
    with pytest.raises(ObjectSeekerError, match="other masks than pairs:9"):
        seeker.certify(with_halves, truth, threat)
    w, h = threat.size(90, 60)
    rng = np.random.default_rng(0)
    for _ in range(40):
        attacked = image.copy()
        for x, y in zip(rng.integers(30 - w + 1, 60, 2), rng.integers(20 - h + 1, 40, 2), strict=True):
            attacked[y : y + h, x : x + w] = rng.integers(0, 256, 3)
        (found,) = seeker([attacked])
        covered = np.clip(np.minimum(found.xyxy[:, 2:], (60, 40)) - np.maximum(found.xyxy[:, :2], (30, 20)), 0, None)
        assert (covered.prod(axis=1) > 0).any()


def test_views_of_pairs_show_what_both_halves_leave():
    shown = []

    def record(images):
        shown.extend(i.copy() for i in images)
        return [Detections.empty() for _ in images]

    image, _ = scene()
    (observation,) = ObjectSeeker(record, Rule(), masks=Pairs(2)).observe([image])
    for view, rectangles in zip(shown[1:], observation.masks.removed, strict=False):
        kept = np.ones(image.shape[:2], bool)
        for x1, y1, x2, y2 in rectangles:
            kept[y1:y2, x1:x2] = False
        assert np.array_equal(view[kept], image[kept])
        assert (view[~kept] == DEFAULT_FILL).all()
        assert kept.any()
    assert len(observation.masked) == 26


@pytest.mark.parametrize("view", [23, 24])  # left and right with a gap; left and bottom
def test_a_real_detector_does_not_see_what_a_pair_removes(view):
    detector, image = load_detector("builtin"), load_image(samples()[0].path)
    masks = pairs(image.shape[1], image.shape[0], 3).select_masks(slice(view, view + 1))
    rng = np.random.default_rng(view)
    inside, outside = image.copy(), image.copy()
    for x1, y1, x2, y2 in masks.removed[0]:
        inside[y1:y2, x1:x2] = rng.integers(0, 256, (y2 - y1, x2 - x1, 3))
    outside[:] = np.where(inside == image, 0, image)
    _, honest = detect_views(detector, image, masks)
    assert len(honest)
    assert detect_views(detector, inside, masks)[1] == honest
    assert detect_views(detector, outside, masks)[1] != honest


def test_detectors_that_mask_mode_themselves_are_asked_to():
    class Masks:
        def __call__(self, images):
            raise AssertionError("must not be called")

        def detect_views(self, image, removed, value):
            self.seen = (image.shape, removed.copy(), value)
            return [Detections.empty() for _ in removed]

    detector = Masks()
    image, _ = scene()
    (observation,) = ObjectSeeker(detector, Rule(), masks=Halves(2), fill=7).observe([image])
    shape, removed, value = detector.seen
    assert shape == (60, 90, 3)
    assert value == 7
    assert removed.tolist() == [[[0, 0, 0, 0]], *observation.masks.removed.tolist()]


def test_images_smaller_than_the_number_of_lines():
    tiny = np.full((3, 1, 3), 255, np.uint8)
    (observation,) = ObjectSeeker(bright_box, Rule(), masks=Halves(30)).observe([tiny])
    assert sorted(observation.masks.rectangle[observation.masks.is_line].tolist()) == [1, 1, 2, 2]


class AheadByOne:
    """Begins with the next image before it gives the boxes of the last, as a GPU detector does."""

    def __init__(self, skip=0):
        self.skip = skip

    def __call__(self, images):
        return bright_box(images)

    def detect_views(self, image, removed, value):
        views = [image.copy() for _ in removed]
        for view, rectangles in zip(views, removed, strict=True):
            for x1, y1, x2, y2 in rectangles:
                view[y1:y2, x1:x2] = value
        return bright_box(views)

    def detect_views_of(self, images, value):
        waiting = [self.detect_views(image, removed, value) for image, removed in images]
        yield from waiting[self.skip :]


def test_a_detector_that_is_ahead_gives_every_image_its_own_boxes():
    image, _ = scene()
    wider = np.full((70, 120, 3), 30, np.uint8)
    wider[5:50, 10:40] = 255
    plain, ahead = (ObjectSeeker(one, Rule(), masks=Halves(3)) for one in (bright_box, AheadByOne()))

    for one, other in zip(plain.observe([image, wider, image]), ahead.observe([image, wider, image]), strict=True):
        assert one == other
    with pytest.raises(ObjectSeekerError, match=r"for 13 views: got|got none for the last 1"):
        ObjectSeeker(AheadByOne(skip=1), Rule(), masks=Halves(3)).observe([image, image])


# --- what a detector returns, and when it does not ---------------------------------------------------------------

POISON = (1, 2, 3)


def fragile(images):
    """Sees bright boxes, but cannot stand one color, nor an image without any contrast such as padding."""
    for image in images:
        if (image == POISON).all(axis=2).any() or image.min() == image.max():
            raise FloatingPointError("not a number")
    return bright_box(images)


def test_a_patch_that_makes_the_detector_raise_hides_nothing_that_is_certified():
    image, truth = scene()
    seeker = ObjectSeeker(fragile, Rule(), masks=Halves(14))
    (observation,) = seeker.observe([image])
    patch = Patch(0.02, 1.0, "over")
    assert seeker.certify(observation, truth, [patch]).certified.all()
    assert observation.base == bright_box([image])[0]
    w, h = patch.size(90, 60)
    for x, y in ((30, 20), (45, 30), (52, 33), (28, 38)):
        attacked = image.copy()
        attacked[y : y + h, x : x + w] = POISON
        (seen,) = seeker.observe([attacked])
        removes = [(m[0] <= x and m[1] <= y and m[2] >= x + w and m[3] >= y + h) for m in seen.masks.removed[:, 0]]
        assert not len(seen.base)
        assert any(removes)
        for before, after, removed in zip(observation.masked, seen.masked, removes, strict=True):
            assert after == (before if removed else Detections.empty())
        assert len(seeker([attacked])[0])


def test_a_batch_that_raises_is_run_again_view_by_view_at_the_same_shape_and_place():
    """Whatever the place of a view in its batch has to do with its boxes, it keeps it."""
    shown = []

    def placed(images):
        shown.append(len(images))
        if any((image == POISON).all(axis=2).any() for image in images):
            raise ValueError
        boxes = [[[place, 0, place + 1, 1]] for place in range(len(images))]
        return [Detections(box, [0.5], [0]) for box in boxes]

    image, _ = scene()
    image[0, 0] = POISON
    (seen,) = ObjectSeeker(placed, Rule(), masks=Halves(2), batch_size=4).observe([image])
    places = [int(view.xyxy[0, 0]) if len(view) else None for view in (seen.base, *seen.masked)]
    assert places == [
        None if (m[:2] > 0).any() or not m[2:].all() else number % 4
        for number, m in enumerate([np.zeros(4, int), *seen.masks.removed[:, 0]])
    ]
    assert set(shown) == {4}


def test_a_failing_view_is_counted_and_logged_once_an_image(caplog):
    image, _ = scene()
    image[0, 0] = POISON
    with caplog.at_level(logging.WARNING, "objectseeker"):
        ObjectSeeker(fragile, Rule(), masks=Halves(2)).observe([image, image])
    assert [record.getMessage() for record in caplog.records] == [
        "the detector failed on 5 of 9 views of an image, which count as empty: not a number"
    ] * 2


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), type("OutOfMemoryError", (RuntimeError,), {})()])
def test_too_little_memory_and_an_interrupt_are_not_swallowed(error):
    def fails(images):
        if (images[0] != DEFAULT_FILL).any():
            raise error
        return bright_box(images)

    with pytest.raises(type(error)):
        ObjectSeeker(fails, Rule(), masks=Halves(2), batch_size=1).observe([scene()[0]])


def in_place(images):
    """Turns the channels in place, as careless code does, and raises on what an attacker draws."""
    for image in images:
        image[...] = image[..., ::-1]
    return fragile(images)


def dropping(images):
    """Takes out of its list what it does not like."""
    images[:] = [image for image in images if not (image == POISON).all(axis=2).any()]
    return bright_box(images)


def leaving(images):
    try:
        return fragile(images)
    except ValueError:
        sys.exit("not a number")


@pytest.mark.parametrize("detector", [in_place, dropping, leaving])
def test_what_a_detector_does_to_its_input_is_no_other_views_loss(detector):
    image, _ = scene()
    seeker = ObjectSeeker(detector, Rule(), masks=Halves(2), batch_size=4)
    (before,) = seeker.observe([image])
    attacked = image.copy()
    attacked[0, 0] = POISON
    (seen,) = seeker.observe([attacked])
    shows = [(m[:2] > 0).any() for m in seen.masks.removed[:, 0]]
    assert not all(shows)
    for was, now, shown in zip(before.masked, seen.masked, shows, strict=True):
        assert now == was or shown
    assert any(len(view) for view in seen.masked)


def test_a_detector_that_never_recovers_is_an_error():
    """As a GPU after an assertion has failed on it: what comes after says nothing about the views."""
    dead = []

    def dies(images):
        if dead or (images[0] == POISON).all(axis=2).any():
            dead.append(True)
            raise RuntimeError("device lost")
        return bright_box(images)

    image, _ = scene()
    image[-1, -1] = POISON
    masks = Halves(2)
    assert len(ObjectSeeker(bright_box, Rule(), masks=masks, batch_size=1).observe([image])[0].masked) == 8

    def later(images):
        return dies(images) if len(shown) > 3 else (shown.append(True), bright_box(images))[1]

    shown: list = []
    with pytest.raises(RuntimeError, match="device lost"):
        ObjectSeeker(later, Rule(), masks=masks, batch_size=1).observe([image])


def test_a_detector_that_fails_on_every_view_is_broken_not_empty():
    def fails(images):
        raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        ObjectSeeker(fails, Rule(), masks=Halves(2)).observe([scene()[0]])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda images: bright_box(images)[1:], "8 results for 8 images: got 7"),
        (lambda images: [([], [], []) for _ in images], "must return Detections: got tuple"),
        (lambda images: None, "one Detections for each of its images: got NoneType"),
        (lambda images: bright_box(images)[0], "one Detections for each of its images: got Detections"),
    ],
)
def test_what_is_no_result_is_named(returned, message):
    with pytest.raises(ObjectSeekerError, match=message):
        ObjectSeeker(returned, Rule(), masks=Halves(2)).observe([scene()[0]])


def labeled(*labels, names=()):
    def detect(images):
        return [Detections([[1, 1, 9, 9]] * len(labels), [0.9] * len(labels), labels) for _ in images]

    detect.names = names
    return detect


@pytest.mark.parametrize(
    ("labels", "names", "kept"),
    [([0, -1, 1], (), [0, 1]), ([2**40, 3], (), [3]), ([0, 1, 2], ("a", "b"), [0, 1]), ([-1, 0], ["a"], [0])],
)
def test_a_label_that_is_no_class_is_dropped_and_said(labels, names, kept, caplog):
    with caplog.at_level(logging.WARNING, "objectseeker"):
        (seen,) = ObjectSeeker(labeled(*labels, names=names), Rule(), masks=Halves(1)).observe([scene()[0]])
    assert [view.label.tolist() for view in (seen.base, *seen.masked)] == [kept] * 5
    (record,) = caplog.records
    assert record.getMessage().startswith("dropped 5 boxes of an image: the detector returned labels")


@pytest.mark.parametrize(("labels", "names"), [([-1], ()), ([2, 5], ("a", "b")), ([2**40], ())])
def test_a_detector_whose_labels_are_all_no_classes_is_refused(labels, names):
    with pytest.raises(ObjectSeekerError, match="but its classes are 0 to"):
        ObjectSeeker(labeled(*labels, names=names), Rule(), masks=Halves(1)).observe([scene()[0]])


def expect_labels_error(detector, message):
    with pytest.raises(ObjectSeekerError, match=f"^{message}$"):
        ObjectSeeker(detector, Rule(), masks=Halves(1)).observe([scene()[0]])


def test_the_error_says_which_labels_and_which_classes():
    must = "the detector must return known labels: got labels"
    last = 2**15 - 1
    expect_labels_error(
        labeled(2, 5, names=("a", "b")), f"{must} 2 to 5, but its classes are 0 to 1, one for each of its names"
    )
    expect_labels_error(labeled(-3), f"{must} -3 to -3, but its classes are 0 to {last}")
    expect_labels_error(
        labeled(-1, names="abc"), f"{must} -1 to -1, but its classes are 0 to {last}"
    )  # no list of names
    expect_labels_error(labeled(-1, names=None), f"{must} -1 to -1, but its classes are 0 to {last}")


@pytest.mark.parametrize("names", [(), "ab", ("a",) * 3])
def test_labels_at_the_limits_are_classes(names):
    labels = [0, 2] if isinstance(names, tuple) and names else [0, 2**15 - 1]
    (seen,) = ObjectSeeker(labeled(*labels, names=names), Rule(), masks=Halves(1)).observe([scene()[0]])
    assert seen.base.label.tolist() == labels


def test_only_views_that_show_too_little_memory_are_not_swallowed_either():
    """One view of many: what it shows is not known, so the image has no observation."""

    def fails(images):
        if any((image == POISON).all(axis=2).any() for image in images):
            raise MemoryError
        return bright_box(images)

    image, _ = scene()
    image[0, 0] = POISON
    with pytest.raises(MemoryError):
        ObjectSeeker(fails, Rule(), masks=Halves(2), batch_size=1).observe([image])


def test_views_that_fail_are_empty_if_another_still_works(caplog):
    calls = []

    def again(number, result="seen"):
        calls.append(number)
        return result

    found = [ValueError("the first\nand its second line"), "a", KeyError("x"), "b"]
    with caplog.at_level(logging.WARNING, "objectseeker"):
        assert keep_successful_views(found, again, "nothing") == ["nothing", "a", "nothing", "b"]
        assert keep_successful_views([ValueError(), "a"], again, "") == ["", "a"]
        assert keep_successful_views([ValueError("x" * 300), "a"], again, "") == ["", "a"]
        assert keep_successful_views(["a", "b"], again, "") == ["a", "b"]
    assert calls == [1, 1, 1]
    begin = "the detector failed on %d of %d views of an image, which count as empty: "
    assert [record.getMessage() for record in caplog.records] == [
        begin % (2, 4) + "the first",
        begin % (1, 2) + "ValueError",
        begin % (1, 2) + "x" * 200,
    ]
    with pytest.raises(ValueError, match="the first"):
        keep_successful_views(found, lambda number: again(number, OSError("gone")), "nothing")
    with pytest.raises(ValueError, match="one"):
        keep_successful_views([ValueError("one"), OSError("two")], again, "nothing")
    assert keep_successful_views([], again, "nothing") == []


def test_views_of_a_batch_that_fails_are_filled_as_others_are():
    """What is removed is gray 7 in a view that is run alone, too, and so is padding."""
    padding = []

    def darkest(images):
        if any((image == POISON).all(axis=2).any() for image in images):
            raise ValueError("poison")
        padding.extend(image for image in images if (image == image[0, 0]).all())
        return [Detections([[0, 0, image.min(), 1]], [0.9], [0]) for image in images]

    image = np.full((60, 90, 3), 200, np.uint8)
    image[0, 0] = POISON
    (seen,) = ObjectSeeker(darkest, Rule(), masks=Halves(2), batch_size=4, fill=7).observe([image])
    shows = [not (m[:2] == 0).all() for m in seen.masks.removed[:, 0]]
    assert sum(shows) == 4
    for view, shown in zip(seen.masked, shows, strict=True):
        assert view == (Detections.empty() if shown else Detections([[0, 0, 7, 1]], [0.9], [0]))
    image[0, 0] = 200
    ObjectSeeker(darkest, Rule(), masks=Halves(2), batch_size=4, fill=7).observe([image])  # 9 views in 3 batches
    assert [int(view[0, 0, 0]) for view in padding[-3:]] == [7, 7, 7]


@pytest.mark.parametrize("extra", [[Detections.empty()], []])
def test_a_detector_that_gives_more_results_than_images_is_an_error(extra):
    class Extra(AheadByOne):
        def detect_views_of(self, images, value):
            yield from super().detect_views_of(images, value)
            yield extra

    with pytest.raises(ObjectSeekerError, match="results for every image once: got more"):
        ObjectSeeker(Extra(), Rule(), masks=Halves(1)).observe([scene()[0]])


def test_what_masking_recovers_raises_the_alert():
    """A box that only masked views show; and one that the untouched image shows, too."""
    image, truth = scene()

    def blinded(images):
        return [Detections.empty() if (view == POISON).all(axis=2).any() else bright_box([view])[0] for view in images]

    attacked = image.copy()
    attacked[0, 0] = POISON
    seeker = ObjectSeeker(blinded, Rule(), masks=Halves(2))
    hidden, seen = seeker.defend(attacked), seeker.defend(image)
    assert (hidden.alert, seen.alert) == (True, False)
    assert (len(hidden.base), len(seen.base)) == (0, 1)
    assert hidden.detections == hidden.recovered
    assert seen.detections == seen.base == Detections(truth.xyxy, [0.9], [0])
    assert np.array_equal(seen.image, image)


def test_certificates_of_a_defended_detector_are_those_of_its_rule():
    """The bound and the threshold reach the rule, and so are the other certificates."""
    box, corner = Detections([[0, 0, 10, 10]], [0.9], [0]), Detections([[4, 4, 10, 10]], [0.9], [0])
    seeker = ObjectSeeker(bright_box, Rule(), masks=Halves(1))
    seen = Observation(100, 100, Halves(1).masks(100, 100), box, [box] * 4)
    patch = Patch(0.0001, location="anywhere")
    for options, proven in (({}, True), ({"bound": "paper"}, False), ({"certification_threshold": 0.5}, False)):
        assert seeker.certify(seen, corner, patch, **options).certified.tolist() == [[proven]]
    assert seeker.certify_not_fabricated(seen, box, patch).certified.all()
    assert seeker.certified_scores(seen, box, patch).tolist() == [0.9]
    other = Observation(100, 90, Halves(1).masks(100, 90), box, [box] * 4)
    assert seeker.certify(other, box, patch).certified.all()
    wrong = Observation(100, 100, Halves(2).masks(100, 100), box, [box] * 8)
    for call in (seeker.certify, seeker.certify_not_fabricated, seeker.certified_scores):
        with pytest.raises(ObjectSeekerError, match="the observation has other masks than halves:1"):
            call(wrong, box, patch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"fill": 256}, "fill must be a gray value"),
        ({"masks": "halves:1"}, "masks must be a recipe"),
        ({"rule": None}, "rule must be a Rule"),
        ({"detector": None}, "detector must be callable"),
    ],
)
def test_what_cannot_be_defended_is_an_error(settings, message):
    with pytest.raises(ObjectSeekerError, match=message):
        ObjectSeeker(**{"detector": bright_box, "rule": Rule(), **settings})


def test_the_defaults_are_those_that_are_documented():
    seeker = ObjectSeeker(bright_box, Rule())
    assert (seeker.masks, seeker.fill, seeker.batch_size) == (Halves(30), 114, 8)


def test_views_are_shown_in_batches_of_eight_and_filled_gray_unless_told_otherwise():
    shown = []

    def record(images):
        shown.append([int(image[-1, -1, 0]) for image in images])
        return [Detections.empty() for _ in images]

    image, masks = np.zeros((20, 30, 3), np.uint8), Halves(1).masks(30, 20)
    assert len(detect_views(record, image, masks)) == 5
    assert len(next(iter(detect_all_views(record, [(image, masks)])))) == 5
    assert len(detect_views(record, image, masks, value=9, batch_size=5)) == 5
    gray = [0, 0, 0, 114, 114]  # the image, and without its left, top, right and bottom half
    assert shown == [gray + [114] * 3, gray + [114] * 3, [0, 0, 0, 9, 9]]
