"""The mask augmentation, against a reference that paints every object on a bitmap and looks what is left of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.core.recipes import Bands
from objectseeker.errors import ObjectSeekerError
from objectseeker.training import Strip, apply_strip, draw_strip, mask_strip
from objectseeker.training.masking import DEFAULT_BAND_WIDTHS, from_corners, require_format, to_corners

HEIGHT, WIDTH = 17, 23
NOTHING = np.zeros((0, 4))


def half_masks(width: int = WIDTH, height: int = HEIGHT) -> list[Strip]:
    lines = [(axis, line) for axis, length in enumerate((width, height)) for line in range(1, length)]
    return [Strip(axis, 0, line) for axis, line in lines] + [
        Strip(axis, line, (width, height)[axis]) for axis, line in lines
    ]


def every_band(width: int = WIDTH, height: int = HEIGHT) -> list[Strip]:
    return [
        Strip(axis, start, end)
        for axis, length in enumerate((width, height))
        for start in range(1, length)
        for end in range(start + 1, length)
    ]


def every_mask() -> list[Strip]:
    """All half masks, and bands of every width and at every place, but not both at once: that would take too long."""
    return half_masks() + every_band()[::7]


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def some_boxes(count: int = 30, seed: int = 0) -> np.ndarray:
    """Whole pixels, so that a bitmap holds them exactly; some hang over the border."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(-3, [WIDTH - 1, HEIGHT - 1], (count, 2))
    return np.concatenate([corner, corner + rng.integers(4, 12, (count, 2))], axis=1).astype(float)


def removed_pixels(strip: Strip) -> np.ndarray:
    """Pixel by pixel, from the words: everything between two columns or two rows."""
    removed = np.zeros((HEIGHT, WIDTH), bool)
    for y in range(HEIGHT):
        for x in range(WIDTH):
            removed[y, x] = strip.start <= (x, y)[strip.axis] < strip.end
    return removed


def painted(box: np.ndarray) -> np.ndarray:
    bitmap = np.zeros((HEIGHT, WIDTH), bool)
    x1, y1, x2, y2 = (int(value) for value in box)
    bitmap[max(y1, 0) : max(y2, 0), max(x1, 0) : max(x2, 0)] = True
    return bitmap


def box_around(bitmap: np.ndarray) -> list[float]:
    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def rasterised(boxes: np.ndarray, strip: Strip, visible: Fraction) -> tuple[list[list[float]], list[bool]]:
    """The target rule by counting pixels."""
    removed = removed_pixels(strip)
    targets, keep = [], []
    for box in boxes:
        before, after = painted(box), painted(box) & ~removed
        keep.append(bool(after.any()) and Fraction(int(after.sum()), int(before.sum())) >= visible)
        if keep[-1]:
            targets.append(box_around(after))
    return targets, keep


@pytest.mark.parametrize("visible", [Fraction(0), Fraction(1, 5), Fraction(1, 2), Fraction(1)])
def test_targets_are_those_of_a_bitmap(visible):
    boxes = some_boxes()
    for strip in every_mask():
        masked = apply_strip(noise(), boxes, strip, min_visible=float(visible))
        targets, keep = rasterised(boxes, strip, visible)
        assert masked.keep.tolist() == keep
        np.testing.assert_array_equal(masked.boxes, np.reshape(targets, (-1, 4)))


def test_visible_shares_are_those_of_a_bitmap():
    boxes = some_boxes(10, seed=1)
    for strip in every_mask():
        shares = [(painted(box) & ~removed_pixels(strip)).sum() / painted(box).sum() for box in boxes]
        np.testing.assert_allclose(apply_strip(noise(), boxes, strip).visible_fraction, shares)


def test_pixels_are_those_of_a_bitmap_and_the_input_is_not_changed():
    image, original = noise(), noise()
    for strip in every_mask():
        masked = apply_strip(image, NOTHING, strip).image
        np.testing.assert_array_equal(masked, np.where(removed_pixels(strip)[..., None], DEFAULT_FILL, original))
    np.testing.assert_array_equal(image, original)


def test_a_crop_is_what_is_left_and_boxes_lie_where_their_pixels_do():
    image, boxes = noise(), some_boxes(12, seed=2)
    for strip in half_masks():
        filled = apply_strip(image, boxes, strip)
        cropped = apply_strip(image, boxes, strip, mask_mode="crop")
        x, y, right, bottom = strip.window(WIDTH, HEIGHT)
        np.testing.assert_array_equal(cropped.image, image[~removed_pixels(strip)].reshape(bottom - y, right - x, 3))
        np.testing.assert_array_equal(cropped.keep, filled.keep)
        for in_crop, in_image in zip(cropped.boxes.astype(int), filled.boxes.astype(int), strict=True):
            a = cropped.image[in_crop[1] : in_crop[3], in_crop[0] : in_crop[2]]
            b = image[in_image[1] : in_image[3], in_image[0] : in_image[2]]
            np.testing.assert_array_equal(a, b)


def test_a_band_is_filled_by_crop_too():
    image, boxes = noise(), some_boxes(12, seed=2)
    for strip in every_band()[::19]:
        filled, cropped = (apply_strip(image, boxes, strip, mask_mode=mask_mode) for mask_mode in ("fill", "crop"))
        for name in ("image", "boxes", "keep", "visible_fraction"):
            np.testing.assert_array_equal(getattr(cropped, name), getattr(filled, name))


def test_a_band_through_an_object_leaves_its_box_and_one_over_its_end_shortens_it():
    boxes = [[4.0, 2, 12, 10]]
    assert apply_strip(noise(), boxes, Strip(0, 6, 9)).boxes.tolist() == boxes
    assert apply_strip(noise(), boxes, Strip(0, 6, 9)).visible_fraction == 5 / 8
    assert apply_strip(noise(), boxes, Strip(0, 2, 6)).boxes.tolist() == [[6, 2, 12, 10]]
    assert apply_strip(noise(), boxes, Strip(1, 6, 14)).boxes.tolist() == [[4, 2, 12, 6]]
    assert apply_strip(noise(), boxes, Strip(0, 5, 11)).visible_fraction == 2 / 8  # both of its ends are left
    least = [[4.0, 2, 12.01, 3]]  # of its last column a hundredth is left
    assert apply_strip(noise(), least, Strip(0, 6, 12)).boxes.tolist() == least
    assert not apply_strip(noise(), boxes, Strip(0, 5, 11), min_visible=0.26).keep.any()
    assert not apply_strip(noise(), boxes, Strip(0, 4, 12), min_visible=0).keep.any()


def test_a_crop_is_a_copy():
    image = noise()
    apply_strip(image, NOTHING, Strip(0, 0, 3), mask_mode="crop").image[:] = 7
    np.testing.assert_array_equal(image, noise())


def test_no_mask_leaves_everything_alone():
    image, boxes = noise(), some_boxes()
    masked = apply_strip(image, boxes, None)
    assert masked.image is image
    assert masked.boxes is boxes
    assert masked.keep.all()
    assert (masked.visible_fraction == 1).all()


def test_labels_keep_step_with_boxes():
    rng = np.random.default_rng(3)
    boxes = some_boxes(8, seed=3)
    lost = 0
    for _ in range(50):
        state = rng.bit_generator.state
        image, targets, labels = mask_strip(noise(), boxes, np.arange(8), rng=rng, probability=1)
        again = np.random.default_rng()
        again.bit_generator.state = state
        masked = apply_strip(noise(), boxes, draw_strip(WIDTH, HEIGHT, again, probability=1))
        np.testing.assert_array_equal(labels, np.flatnonzero(masked.keep))
        np.testing.assert_array_equal(targets, masked.boxes)
        np.testing.assert_array_equal(image, masked.image)
        lost += 8 - len(labels)
    assert lost > 0


def test_labels_may_be_a_list():
    _, boxes, labels = mask_strip(noise(), [[0, 0, 2, 2], [20, 14, 23, 17]], ["a", "b"], rng=np.random.default_rng(0))
    assert len(labels) == len(boxes)
    assert set(labels) <= {"a", "b"}


def test_every_side_and_every_line_is_drawn_equally_often():
    rng = np.random.default_rng(0)
    drawn = [draw_strip(5, 4, rng, probability=1) for _ in range(7200)]
    lengths = [(5, 4)[strip.axis] for strip in drawn]
    sides = {(0, "left"): 4, (0, "right"): 4, (1, "left"): 3, (1, "right"): 3}
    for (axis, side), lines in sides.items():
        own = [
            strip.end if side == "left" else strip.start
            for strip, length in zip(drawn, lengths, strict=True)
            if strip.axis == axis and (strip.start == 0 if side == "left" else strip.end == length)
        ]
        assert 1650 < len(own) < 1950
        expected = len(own) / lines
        for line in range(1, lines + 1):
            assert abs(own.count(line) - expected) < 5 * expected**0.5
        assert set(own) == set(range(1, lines + 1))


def test_probability():
    rng = np.random.default_rng(4)
    assert all(draw_strip(9, 9, rng, probability=0) is None for _ in range(200))
    masked = sum(draw_strip(9, 9, rng, probability=0.3) is not None for _ in range(2000))
    assert 500 < masked < 700


def test_the_same_numbers_are_drawn_whatever_comes_of_them():
    masked, unmasked = np.random.default_rng(5), np.random.default_rng(5)
    draw_strip(9, 9, masked, probability=1)
    draw_strip(1, 1, unmasked, probability=0)
    assert masked.random() == unmasked.random()
    draw_strip(9, 9, masked, probability=1, band_fraction=1)
    draw_strip(9, 9, unmasked, probability=1, band_fraction=0)
    assert masked.random() == unmasked.random()


@pytest.mark.parametrize("bands", [0, 1])
def test_an_image_of_one_pixel_has_no_line(bands):
    assert all(
        draw_strip(1, 1, np.random.default_rng(seed), probability=1, band_fraction=bands) is None for seed in range(20)
    )


def test_of_every_width_and_at_every_place_bands_are_drawn_equally_often():
    rng = np.random.default_rng(0)
    drawn = [draw_strip(12, 12, rng, probability=1, band_fraction=1, band_widths=(0.2, 0.5)) for _ in range(6000)]
    assert 2800 < sum(strip.axis for strip in drawn) < 3200
    widths = [strip.end - strip.start for strip in drawn]
    assert set(widths) == {3, 4, 5, 6}  # 0.2 and 0.5 of eleven pixels, rounded down, and one
    for width in (4, 5):
        starts = [strip.start for strip in drawn if strip.end - strip.start == width]
        expected = len(starts) / (13 - width)
        assert expected > 100
        for start in range(13 - width):
            assert abs(starts.count(start) - expected) < 5 * expected**0.5
        assert set(starts) == set(range(13 - width))


def test_the_share_of_bands():
    rng = np.random.default_rng(1)
    drawn = [draw_strip(100, 100, rng, probability=0.5, band_fraction=0.3) for _ in range(4000)]
    masks = [strip for strip in drawn if strip is not None]
    assert 1850 < len(masks) < 2150
    inside = [strip for strip in masks if strip.start > 0 and strip.end < 100]
    assert 0.25 < len(inside) / len(masks) < 0.34
    assert all(0.1 <= (strip.end - strip.start) / 100 <= 0.3 for strip in inside)


def test_without_bands_a_seed_gives_the_half_masks_that_the_words_say():
    rng = np.random.default_rng(2)
    for _ in range(200):
        state = rng.bit_generator.state
        chance, direction, place, end = rng.random(4)
        axis = int(direction >= 0.5)
        length = (WIDTH, HEIGHT)[axis]
        line = 1 + int(place * (length - 1))
        expected = Strip(axis, 0, line) if end < 0.5 else Strip(axis, line, length)
        rng.bit_generator.state = state
        assert draw_strip(WIDTH, HEIGHT, rng, probability=0.7) == (expected if chance < 0.7 else None)


@pytest.mark.parametrize("spacing", [0.5, 1])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (640, 480), (416, 416), (1280, 720)])
def test_the_bands_of_a_recipe_for_one_percent_are_among_those_drawn(size, spacing):
    masks = Bands(0.01, spacing=spacing).masks(*size)
    bands = masks.rectangle[masks.is_band]
    shares = ((bands[:, 2:] - bands[:, :2]) / masks.extent)[masks.along[masks.is_band]]
    assert shares.min() > DEFAULT_BAND_WIDTHS[0]
    assert shares.max() < DEFAULT_BAND_WIDTHS[1]


def test_gray_is_in_the_range_of_the_image():
    strip = Strip(0, 0, 4)
    whole = apply_strip(np.ones((9, 9), np.uint8), NOTHING, strip).image
    fractions = apply_strip(np.ones((9, 9)), NOTHING, strip).image
    assert set(np.unique(whole)) == {1, DEFAULT_FILL}
    assert set(np.unique(fractions)) == {DEFAULT_FILL / 255, 1.0}
    assert set(np.unique(apply_strip(np.ones((9, 9)), NOTHING, strip, fill=-2.0).image)) == {-2.0, 1.0}


def test_a_image_stays_a_image():
    pil = pytest.importorskip("PIL.Image")
    strip = Strip(1, 0, 5)
    for mode in ("RGB", "L", "P"):
        image = pil.fromarray(noise()).convert(mode)
        masked = apply_strip(image, [[0, 0, 9, 9]], strip)
        assert masked.image.mode == ("L" if mode == "L" else "RGB")
        shown = np.asarray(masked.image)
        assert (shown[:5] == DEFAULT_FILL).all()
        np.testing.assert_array_equal(shown[5:], np.asarray(image.convert(masked.image.mode))[5:])
        assert apply_strip(image, NOTHING, strip, mask_mode="crop").image.size == (WIDTH, HEIGHT - 5)


def test_an_empty_box_is_no_target():
    for strip in every_mask():
        assert not apply_strip(noise(), [[5, 5, 5, 9]], strip).keep.any()


@pytest.mark.parametrize("form", ["pascal_voc", "albumentations", "coco", "yolo", "cxcywh"])
def test_formats_there_and_back(form):
    boxes = some_boxes()
    there = from_corners(boxes, form, (WIDTH, HEIGHT))
    np.testing.assert_allclose(to_corners(there, form, (WIDTH, HEIGHT)), boxes, atol=1e-12)


def test_formats_as_their_makers_describe_them():
    box, size = np.array([[2.0, 4.0, 8.0, 6.0]]), (10, 20)
    assert from_corners(box, "coco", size).tolist() == [[2, 4, 6, 2]]
    assert from_corners(box, "cxcywh", size).tolist() == [[5, 5, 6, 2]]
    assert from_corners(box, "yolo", size).tolist() == [[0.5, 0.25, 0.6, 0.1]]
    assert from_corners(box, "albumentations", size).tolist() == [[0.2, 0.2, 0.8, 0.3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boxes": [[1, 2, 3]]}, r"\(1, 3\)"),
        ({"image": np.zeros(5)}, r"\(5,\)"),
        ({"image": [[1, 2], [3, 4]]}, "list"),
        ({"probability": 1.5}, r"1\.5"),
        ({"min_visible": -1}, "-1"),
        ({"band_fraction": 2}, "band_fraction.*2"),
        ({"band_widths": (0.3, 0.1)}, r"\(0\.3, 0\.1\)"),
        ({"band_widths": (0.3, 1)}, "below 1"),
        ({"band_widths": 0.2}, "two ascending fractions"),
        ({"band_widths": (0.1, "wide")}, "'wide'"),
        ({"mask_mode": "blur"}, "blur"),
        ({"labels": [1]}, "labels must be one per box"),
    ],
)
def test_bad_input_is_named(arguments, message):
    complete = {"image": noise(), "boxes": NOTHING, "labels": [], **arguments}
    with pytest.raises(ObjectSeekerError, match=message):
        mask_strip(rng=np.random.default_rng(0), **complete)


def test_bad_masks_and_formats_are_named():
    with pytest.raises(ObjectSeekerError, match="middle"):
        Strip("middle", 0, 3)
    with pytest.raises(ObjectSeekerError, match="0"):
        Strip(0, 0, 0)
    with pytest.raises(ObjectSeekerError, match="width of a strip must be at least 1: got -2"):
        Strip(1, 5, 3)
    with pytest.raises(ObjectSeekerError, match=r"whole number: got 2\.5"):
        Strip(1, 0.5, 3)
    with pytest.raises(ObjectSeekerError, match="at least 0: got -1"):
        Strip(0, -1, 3)
    with pytest.raises(ObjectSeekerError, match="does not fit 23x17 pixels: got an end of 18"):
        apply_strip(noise(), NOTHING, Strip(1, 3, HEIGHT + 1))
    with pytest.raises(ObjectSeekerError, match="23"):
        apply_strip(noise(), NOTHING, Strip(0, 0, WIDTH))
    with pytest.raises(ObjectSeekerError, match="voc2"):
        require_format("voc2")


class TestTensors:
    """The same mask on a tensor and on an array gives the same pixels, boxes and verdicts."""

    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("mask_mode", ["fill", "crop"])
    @pytest.mark.parametrize("kind", ["uint8", "float32", "float64", "bfloat16"])
    def test_agree_with_arrays(self, torch, kind, mask_mode):
        dtype = getattr(torch, kind)
        boxes = some_boxes(seed=6) + np.random.default_rng(6).uniform(0, 1, (30, 4)).astype(np.float32)
        array = noise() if kind == "uint8" else (noise() / 256).astype(np.float32)
        tensor = torch.from_numpy(array).permute(2, 0, 1).to(dtype)
        array = tensor.permute(1, 2, 0).double().numpy()  # as bfloat16 rounds it
        array = array.astype(np.uint8) if kind == "uint8" else array
        given = torch.from_numpy(boxes).float()
        for strip in every_mask()[::3]:
            ours = apply_strip(tensor, given, strip, mask_mode=mask_mode)
            theirs = apply_strip(array, given.double().numpy(), strip, mask_mode=mask_mode)
            assert ours.image.dtype == dtype
            assert ours.boxes.dtype == torch.float32
            np.testing.assert_array_equal(ours.keep, theirs.keep)
            np.testing.assert_array_equal(ours.boxes.numpy(), theirs.boxes.astype(np.float32))
            pixels = ours.image.permute(1, 2, 0).double().numpy()
            expected = torch.from_numpy(np.asarray(theirs.image, dtype=np.float64)).to(dtype).double().numpy()
            np.testing.assert_array_equal(pixels, expected)

    def test_boxes_of_any_type(self, torch):
        boxes = some_boxes(8, seed=7)
        strip = Strip(0, 12, WIDTH)
        expected = apply_strip(noise(), boxes, strip)
        for dtype in (torch.bfloat16, torch.float64, torch.int64):
            masked = apply_strip(torch.zeros(3, HEIGHT, WIDTH), torch.tensor(boxes).to(dtype), strip)
            assert masked.boxes.dtype == dtype
            assert masked.boxes.tolist() == expected.boxes.tolist()  # whole numbers below 256 fit all of them

    def test_input_is_not_changed(self, torch):
        tensor = torch.from_numpy(noise()).permute(2, 0, 1)
        before = tensor.clone()
        for mask_mode in ("fill", "crop"):
            apply_strip(tensor, torch.zeros(0, 4), Strip(0, 0, 5), mask_mode=mask_mode).image.zero_()
        assert torch.equal(tensor, before)

    def test_a_torch_generator_decides(self, torch):
        drawn = [
            [draw_strip(50, 40, torch.Generator().manual_seed(seed), probability=1) for _ in range(2)]
            for seed in range(20)
        ]
        assert all(first == second for first, second in drawn)
        assert len({first for first, _ in drawn}) > 10

    def test_the_global_generator_decides_without_one(self, torch):
        torch.manual_seed(8)
        first = draw_strip(50, 40, None, probability=1)
        other = [draw_strip(50, 40, None, probability=1) for _ in range(9)]
        torch.manual_seed(8)
        assert draw_strip(50, 40, None, probability=1) == first
        assert len({first, *other}) > 5

    def test_labels_of_tensors(self, torch):
        image = torch.zeros(3, HEIGHT, WIDTH)
        boxes = torch.tensor(some_boxes(6, seed=9))
        generator = torch.Generator().manual_seed(1)
        for _ in range(20):
            _, targets, labels = mask_strip(image, boxes, torch.arange(6), rng=generator, probability=1)
            assert len(targets) == len(labels)
            assert labels.dtype == torch.int64

    def test_bad_tensor_is_named(self, torch):
        with pytest.raises(ObjectSeekerError, match=r"\(7,\)"):
            apply_strip(torch.zeros(7), torch.zeros(0, 4), Strip(0, 0, 1))
