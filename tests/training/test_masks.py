"""The mask augmentation, against a reference that paints every object on a bitmap and looks what is left of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from objectseeker.core.image import GREY
from objectseeker.core.masks import SIDES
from objectseeker.errors import ObjectSeekerError
from objectseeker.training import HalfMask, apply_half, draw_half, mask_half
from objectseeker.training.formats import from_corners, require_format, to_corners

HEIGHT, WIDTH = 17, 23
NOTHING = np.zeros((0, 4))


def every_mask(width: int = WIDTH, height: int = HEIGHT) -> list[HalfMask]:
    return [HalfMask(side, line) for side in SIDES for line in range(1, width if side in ("left", "right") else height)]


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def some_boxes(count: int = 30, seed: int = 0) -> np.ndarray:
    """Whole pixels, so that a bitmap holds them exactly; some hang over the border."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(-3, [WIDTH - 1, HEIGHT - 1], (count, 2))
    return np.concatenate([corner, corner + rng.integers(4, 12, (count, 2))], axis=1).astype(float)


def removed_pixels(half: HalfMask) -> np.ndarray:
    """Pixel by pixel, from the words: everything left of (above, right of, below) the line."""
    removed = np.zeros((HEIGHT, WIDTH), bool)
    for y in range(HEIGHT):
        for x in range(WIDTH):
            removed[y, x] = {
                "left": x < half.line,
                "top": y < half.line,
                "right": x >= half.line,
                "bottom": y >= half.line,
            }[half.side]
    return removed


def painted(box: np.ndarray) -> np.ndarray:
    bitmap = np.zeros((HEIGHT, WIDTH), bool)
    x1, y1, x2, y2 = (int(value) for value in box)
    bitmap[max(y1, 0) : max(y2, 0), max(x1, 0) : max(x2, 0)] = True
    return bitmap


def box_around(bitmap: np.ndarray) -> list[float]:
    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def rasterised(boxes: np.ndarray, half: HalfMask, visible: Fraction) -> tuple[list[list[float]], list[bool]]:
    """The target rule by counting pixels."""
    removed = removed_pixels(half)
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
    for half in every_mask():
        masked = apply_half(noise(), boxes, half, visible=float(visible))
        targets, keep = rasterised(boxes, half, visible)
        assert masked.keep.tolist() == keep
        np.testing.assert_array_equal(masked.boxes, np.reshape(targets, (-1, 4)))


def test_visible_shares_are_those_of_a_bitmap():
    boxes = some_boxes(10, seed=1)
    for half in every_mask():
        shares = [(painted(box) & ~removed_pixels(half)).sum() / painted(box).sum() for box in boxes]
        np.testing.assert_allclose(apply_half(noise(), boxes, half).share, shares)


def test_pixels_are_those_of_a_bitmap_and_the_input_is_not_changed():
    image, original = noise(), noise()
    for half in every_mask():
        masked = apply_half(image, NOTHING, half).image
        np.testing.assert_array_equal(masked, np.where(removed_pixels(half)[..., None], GREY, original))
    np.testing.assert_array_equal(image, original)


def test_a_crop_is_what_is_left_and_boxes_lie_where_their_pixels_do():
    image, boxes = noise(), some_boxes(12, seed=2)
    for half in every_mask():
        filled = apply_half(image, boxes, half)
        cropped = apply_half(image, boxes, half, by="crop")
        x, y, right, bottom = half.kept(WIDTH, HEIGHT)
        np.testing.assert_array_equal(cropped.image, image[~removed_pixels(half)].reshape(bottom - y, right - x, 3))
        np.testing.assert_array_equal(cropped.keep, filled.keep)
        for in_crop, in_image in zip(cropped.boxes.astype(int), filled.boxes.astype(int), strict=True):
            a = cropped.image[in_crop[1] : in_crop[3], in_crop[0] : in_crop[2]]
            b = image[in_image[1] : in_image[3], in_image[0] : in_image[2]]
            np.testing.assert_array_equal(a, b)


def test_a_crop_is_a_copy():
    image = noise()
    apply_half(image, NOTHING, HalfMask("left", 3), by="crop").image[:] = 7
    np.testing.assert_array_equal(image, noise())


def test_no_mask_leaves_everything_alone():
    image, boxes = noise(), some_boxes()
    masked = apply_half(image, boxes, None)
    assert masked.image is image
    assert masked.boxes is boxes
    assert masked.keep.all()
    assert (masked.share == 1).all()


def test_labels_keep_step_with_boxes():
    rng = np.random.default_rng(3)
    boxes = some_boxes(8, seed=3)
    lost = 0
    for _ in range(50):
        state = rng.bit_generator.state
        image, targets, labels = mask_half(noise(), boxes, np.arange(8), rng=rng, probability=1)
        again = np.random.default_rng()
        again.bit_generator.state = state
        masked = apply_half(noise(), boxes, draw_half(WIDTH, HEIGHT, again, probability=1))
        np.testing.assert_array_equal(labels, np.flatnonzero(masked.keep))
        np.testing.assert_array_equal(targets, masked.boxes)
        np.testing.assert_array_equal(image, masked.image)
        lost += 8 - len(labels)
    assert lost > 0


def test_labels_may_be_a_list():
    _, boxes, labels = mask_half(noise(), [[0, 0, 2, 2], [20, 14, 23, 17]], ["a", "b"], rng=np.random.default_rng(0))
    assert len(labels) == len(boxes)
    assert set(labels) <= {"a", "b"}


def test_every_side_and_every_line_is_drawn_equally_often():
    rng = np.random.default_rng(0)
    drawn = [draw_half(5, 4, rng, probability=1) for _ in range(7200)]
    for side, lines in (("left", 4), ("right", 4), ("top", 3), ("bottom", 3)):
        own = [half.line for half in drawn if half.side == side]
        assert 1650 < len(own) < 1950
        expected = len(own) / lines
        for line in range(1, lines + 1):
            assert abs(own.count(line) - expected) < 5 * expected**0.5
        assert set(own) == set(range(1, lines + 1))


def test_probability():
    rng = np.random.default_rng(4)
    assert all(draw_half(9, 9, rng, probability=0) is None for _ in range(200))
    masked = sum(draw_half(9, 9, rng, probability=0.3) is not None for _ in range(2000))
    assert 500 < masked < 700


def test_the_same_numbers_are_drawn_whatever_comes_of_them():
    masked, unmasked = np.random.default_rng(5), np.random.default_rng(5)
    draw_half(9, 9, masked, probability=1)
    draw_half(1, 1, unmasked, probability=0)
    assert masked.random() == unmasked.random()


def test_an_image_of_one_pixel_has_no_line():
    assert all(draw_half(1, 1, np.random.default_rng(seed), probability=1) is None for seed in range(20))


def test_grey_is_in_the_range_of_the_image():
    half = HalfMask("left", 4)
    whole = apply_half(np.ones((9, 9), np.uint8), NOTHING, half).image
    fractions = apply_half(np.ones((9, 9)), NOTHING, half).image
    assert set(np.unique(whole)) == {1, GREY}
    assert set(np.unique(fractions)) == {GREY / 255, 1.0}
    assert set(np.unique(apply_half(np.ones((9, 9)), NOTHING, half, fill=-2.0).image)) == {-2.0, 1.0}


def test_a_picture_stays_a_picture():
    pil = pytest.importorskip("PIL.Image")
    half = HalfMask("top", 5)
    for mode in ("RGB", "L", "P"):
        picture = pil.fromarray(noise()).convert(mode)
        masked = apply_half(picture, [[0, 0, 9, 9]], half)
        assert masked.image.mode == ("L" if mode == "L" else "RGB")
        shown = np.asarray(masked.image)
        assert (shown[:5] == GREY).all()
        np.testing.assert_array_equal(shown[5:], np.asarray(picture.convert(masked.image.mode))[5:])
        assert apply_half(picture, NOTHING, half, by="crop").image.size == (WIDTH, HEIGHT - 5)


def test_an_empty_box_is_no_target():
    for half in every_mask():
        assert not apply_half(noise(), [[5, 5, 5, 9]], half).keep.any()


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
        ({"visible": -1}, "-1"),
        ({"by": "blur"}, "blur"),
        ({"labels": [1]}, "one label per box"),
    ],
)
def test_bad_input_is_named(arguments, message):
    complete = {"image": noise(), "boxes": NOTHING, "labels": [], **arguments}
    with pytest.raises(ObjectSeekerError, match=message):
        mask_half(rng=np.random.default_rng(0), **complete)


def test_bad_masks_and_formats_are_named():
    with pytest.raises(ObjectSeekerError, match="middle"):
        HalfMask("middle", 3)
    with pytest.raises(ObjectSeekerError, match="0"):
        HalfMask("left", 0)
    with pytest.raises(ObjectSeekerError, match="23"):
        apply_half(noise(), NOTHING, HalfMask("left", WIDTH))
    with pytest.raises(ObjectSeekerError, match="voc2"):
        require_format("voc2")


class TestTensors:
    """The same mask on a tensor and on an array gives the same pixels, boxes and verdicts."""

    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("by", ["fill", "crop"])
    @pytest.mark.parametrize("kind", ["uint8", "float32", "float64", "bfloat16"])
    def test_agree_with_arrays(self, torch, kind, by):
        dtype = getattr(torch, kind)
        boxes = some_boxes(seed=6) + np.random.default_rng(6).uniform(0, 1, (30, 4)).astype(np.float32)
        array = noise() if kind == "uint8" else (noise() / 256).astype(np.float32)
        tensor = torch.from_numpy(array).permute(2, 0, 1).to(dtype)
        array = tensor.permute(1, 2, 0).double().numpy()  # as bfloat16 rounds it
        array = array.astype(np.uint8) if kind == "uint8" else array
        given = torch.from_numpy(boxes).float()
        for half in every_mask()[::3]:
            ours = apply_half(tensor, given, half, by=by)
            theirs = apply_half(array, given.double().numpy(), half, by=by)
            assert ours.image.dtype == dtype
            assert ours.boxes.dtype == torch.float32
            np.testing.assert_array_equal(ours.keep, theirs.keep)
            np.testing.assert_array_equal(ours.boxes.numpy(), theirs.boxes.astype(np.float32))
            pixels = ours.image.permute(1, 2, 0).double().numpy()
            expected = torch.from_numpy(np.asarray(theirs.image, dtype=np.float64)).to(dtype).double().numpy()
            np.testing.assert_array_equal(pixels, expected)

    def test_boxes_of_any_type(self, torch):
        boxes = some_boxes(8, seed=7)
        half = HalfMask("right", 12)
        expected = apply_half(noise(), boxes, half)
        for dtype in (torch.bfloat16, torch.float64, torch.int64):
            masked = apply_half(torch.zeros(3, HEIGHT, WIDTH), torch.tensor(boxes).to(dtype), half)
            assert masked.boxes.dtype == dtype
            assert masked.boxes.tolist() == expected.boxes.tolist()  # whole numbers below 256 fit all of them

    def test_input_is_not_changed(self, torch):
        tensor = torch.from_numpy(noise()).permute(2, 0, 1)
        before = tensor.clone()
        for by in ("fill", "crop"):
            apply_half(tensor, torch.zeros(0, 4), HalfMask("left", 5), by=by).image.zero_()
        assert torch.equal(tensor, before)

    def test_a_torch_generator_decides(self, torch):
        drawn = [
            [draw_half(50, 40, torch.Generator().manual_seed(seed), probability=1) for _ in range(2)]
            for seed in range(20)
        ]
        assert all(first == second for first, second in drawn)
        assert len({first for first, _ in drawn}) > 10

    def test_the_global_generator_decides_without_one(self, torch):
        torch.manual_seed(8)
        first = draw_half(50, 40, None, probability=1)
        other = [draw_half(50, 40, None, probability=1) for _ in range(9)]
        torch.manual_seed(8)
        assert draw_half(50, 40, None, probability=1) == first
        assert len({first, *other}) > 5

    def test_labels_of_tensors(self, torch):
        image = torch.zeros(3, HEIGHT, WIDTH)
        boxes = torch.tensor(some_boxes(6, seed=9))
        generator = torch.Generator().manual_seed(1)
        for _ in range(20):
            _, targets, labels = mask_half(image, boxes, torch.arange(6), rng=generator, probability=1)
            assert len(targets) == len(labels)
            assert labels.dtype == torch.int64

    def test_bad_tensor_is_named(self, torch):
        with pytest.raises(ObjectSeekerError, match=r"\(7,\)"):
            apply_half(torch.zeros(7), torch.zeros(0, 4), HalfMask("left", 1))
