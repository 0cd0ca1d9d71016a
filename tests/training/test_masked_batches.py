"""Whole batches on a device are masked as single images are: same masks, same targets, same pixels."""

from __future__ import annotations

import numpy as np
import pytest

from objectseeker.training import apply_half, draw_half

torch = pytest.importorskip("torch")

from objectseeker.training.masked_batches import draw_halves, kept_parts, mask_and_move, visible_targets  # noqa: E402

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


def drawn(width, height, *, probability=0.8, seed=0):
    """What is kept of every sample, and the same masks drawn one by one."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(4, COUNT, generator=generator)
    generator.manual_seed(seed)
    kept = kept_parts(*draw_halves(COUNT, width, height, generator, probability=probability), width, height)
    return kept, [draw_half(width, height, Given(row), probability=probability) for row in numbers.T.tolist()]


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
def test_masks_are_those_drawn_one_by_one_and_lines_lie_inside(width, height):
    kept, halves = drawn(width, height)
    assert kept.tolist() == [list(half.kept(width, height)) if half else [0, 0, width, height] for half in halves]
    assert (kept[:, :2] < kept[:, 2:]).all()  # something is left
    if min(width, height) > 1:
        assert 0.7 * COUNT < sum(half is not None for half in halves) < 0.9 * COUNT
        assert {half.side for half in halves if half} == {"left", "top", "right", "bottom"}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("visible", [0.0, 0.2, 0.5, 1.0])
def test_targets_are_those_of_single_images(width, height, visible):
    (kept, halves), boxes = drawn(width, height), some_boxes(width, height)
    present = torch.rand(boxes.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.9
    seen, still = visible_targets(boxes, present, kept, visible)
    assert seen.dtype == boxes.dtype
    assert not (still & ~present).any()
    compared = 0
    for number, half in enumerate(halves):
        if half is not None:  # a single image without a mask is left alone, empty boxes included
            masked = apply_half(np.zeros((height, width)), boxes[number], half, visible=visible)
            assert (still[number] == (torch.from_numpy(masked.keep) & present[number])).all()
            assert torch.equal(seen[number][torch.from_numpy(masked.keep)], masked.boxes)
            compared += 1
    assert compared > COUNT / 2 or min(width, height) == 1


@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("fill", [None, 1])
def test_pixels_are_those_of_single_images(kind, fill):
    width, height = 23, 17
    (kept, halves), images = drawn(width, height), some_images(width, height, kind)
    masked = mask_and_move(images, kept, fill=fill)
    assert masked.dtype == images.dtype
    for image, ours, half in zip(images, masked, halves, strict=True):
        assert torch.equal(ours, apply_half(image, [], half, fill=fill).image)


def test_samples_moved_to_their_corner_begin_with_the_crop_of_single_images():
    width, height = 23, 17
    (kept, halves), images, boxes = drawn(width, height), some_images(width, height, "uint8"), some_boxes(23, 17)
    shift = kept[:, :2]
    moved = mask_and_move(images, kept, shift)
    seen, _ = visible_targets(boxes, torch.ones(boxes.shape[:2], dtype=torch.bool), kept, 0.2)
    for number, half in enumerate(halves):
        crop = apply_half(images[number], boxes[number], half, by="crop")
        rows, columns = crop.image.shape[-2:]
        assert torch.equal(moved[number, :, :rows, :columns], crop.image)
        assert (moved[number, :, rows:] == 114).all()
        assert (moved[number, :, :, columns:] == 114).all()
        if half is not None:
            at = (seen[number].double() - shift[number].tile(2))[torch.from_numpy(crop.keep)]
            assert torch.equal(at.float(), crop.boxes)
