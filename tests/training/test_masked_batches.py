"""Whole batches on a device are masked as single images are: same masks, same targets, same pixels."""

from __future__ import annotations

import numpy as np
import pytest

from objectseeker.training import apply_strip, draw_strip

torch = pytest.importorskip("torch")

from objectseeker.training import draw_strips, kept_parts, mask_and_move, visible_targets

COUNT, OBJECTS = 400, 6
SIZES = [(24, 24), (23, 17), (2, 9), (5, 1), (1, 1)]


class Given(np.random.Generator):
    """A generator whose numbers are known beforehand."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(np.random.PCG64())
        self.numbers = numbers

    def random(self, count):
        assert count == len(self.numbers)
        return np.array(self.numbers)


def drawn(width, height, *, band_fraction=0.5, seed=0):
    """What is kept of every sample, and the same masks drawn one by one."""
    options = {"probability": 0.8, "band_fraction": band_fraction, "band_widths": (0.1, 0.6)}
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(4, COUNT, generator=generator)
    generator.manual_seed(seed)
    kept = kept_parts(*draw_strips(COUNT, width, height, generator, **options), width, height)
    return kept, [draw_strip(width, height, Given(row), **options) for row in numbers.T.tolist()]


def some_boxes(width, height, seed=0):
    """Boxes inside their samples, in single precision; some on whole pixels, some without area."""
    corners = torch.rand(COUNT, OBJECTS, 2, 2, generator=torch.Generator().manual_seed(seed))
    corners = corners.sort(dim=2).values * torch.tensor([width, height])
    corners[: COUNT // 4] = corners[: COUNT // 4].round()
    return corners.flatten(2)


def some_images(width, height, kind, seed=0):
    images = torch.randint(0, 256, (COUNT, 3, height, width), generator=torch.Generator().manual_seed(seed))
    return images.to(torch.uint8) if kind == "uint8" else images.float() / 255


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("bands", [0, 0.5, 1])
def test_masks_are_those_drawn_one_by_one_and_lines_lie_inside(width, height, bands):
    kept, strips = drawn(width, height, band_fraction=bands)
    whole = ((0, 0, width, height), (width, 0, width, height))
    assert kept.tolist() == [list(map(list, strip.kept(width, height) if strip else whole)) for strip in strips]
    assert (kept[..., :2] < kept[..., 2:]).all(2).any(1).all()  # something is left
    if min(width, height) > 1:
        assert 0.7 * COUNT < sum(strip is not None for strip in strips) < 0.9 * COUNT
        ends = {(strip.axis, strip.start == 0, strip.end == (width, height)[strip.axis]) for strip in strips if strip}
        sides = {(axis, at_start, not at_start) for axis in (0, 1) for at_start in (False, True)}
        inside = {(axis, False, False) for axis, length in enumerate((width, height)) if length > 2}
        assert ends == (sides | inside if bands else sides)  # bands that reach a border are drawn, too


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("visible", [0.0, 0.2, 0.5, 1.0])
def test_targets_are_those_of_single_images(width, height, visible):
    (kept, strips), boxes = drawn(width, height), some_boxes(width, height)
    present = torch.rand(boxes.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.9
    seen, still = visible_targets(boxes, present, kept, visible)
    assert seen.dtype == boxes.dtype
    assert not (still & ~present).any()
    assert (seen[..., :2] <= seen[..., 2:]).all()  # no box is turned inside out, hidden ones included
    compared = 0
    for number, strip in enumerate(strips):
        if strip is not None:  # a single image without a mask is left alone, empty boxes included
            masked = apply_strip(np.zeros((height, width)), boxes[number], strip, min_visible=visible)
            assert (still[number] == (torch.from_numpy(masked.keep) & present[number])).all()
            assert torch.equal(seen[number][torch.from_numpy(masked.keep)], masked.boxes)
            compared += 1
    assert compared > COUNT / 2 or min(width, height) == 1


@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("fill", [None, 1])
def test_pixels_are_those_of_single_images(kind, fill):
    width, height = 23, 17
    (kept, strips), images = drawn(width, height), some_images(width, height, kind)
    masked = mask_and_move(images, kept, fill=fill)
    assert masked.dtype == images.dtype
    for image, ours, strip in zip(images, masked, strips, strict=True):
        assert torch.equal(ours, apply_strip(image, [], strip, fill=fill).image)


def test_samples_moved_to_their_corner_begin_with_the_crop_of_single_images():
    width, height = 23, 17
    (kept, strips), images, boxes = drawn(width, height), some_images(width, height, "uint8"), some_boxes(23, 17)
    shift = torch.tensor([strip.window(width, height)[:2] if strip else (0, 0) for strip in strips])
    moved = mask_and_move(images, kept, shift)
    seen, _ = visible_targets(boxes, torch.ones(boxes.shape[:2], dtype=torch.bool), kept, 0.2)
    for number, strip in enumerate(strips):
        crop = apply_strip(images[number], boxes[number], strip, mask_mode="crop")
        rows, columns = crop.image.shape[-2:]
        assert torch.equal(moved[number, :, :rows, :columns], crop.image)
        assert (moved[number, :, rows:] == 114).all()
        assert (moved[number, :, :, columns:] == 114).all()
        if strip is not None:
            at = (seen[number].double() - shift[number].tile(2))[torch.from_numpy(crop.keep)]
            assert torch.equal(at.float(), crop.boxes)
