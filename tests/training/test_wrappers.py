"""The augmentation in other people's pipelines: all wrappers do what `apply_strip` does, and keep things in step."""

from __future__ import annotations

import random
from enum import Enum

import numpy as np
import pytest

from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.errors import ObjectSeekerError
from objectseeker.training import (
    AlbumentationsMask,
    MaskedDataset,
    MaskedDetectionDataset,
    Strip,
    TorchvisionMask,
    apply_strip,
    draw_strip,
)
from objectseeker.training.masking import from_corners
from objectseeker.training.transforms import PER_OBJECT

HEIGHT, WIDTH = 24, 32
SIZE = WIDTH, HEIGHT
BOXES = np.array([[1, 1, 9, 9], [20, 2, 31, 12], [3, 14, 12, 23], [18, 15, 30, 22], [8, 6, 24, 18]], dtype=float)
LABELS = np.arange(len(BOXES)) + 10


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(115, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def expected(seed: int, bands: float = 0, **options) -> tuple[Strip | None, object]:
    """What a wrapper whose generator starts from `seed` must give."""
    strip = draw_strip(*SIZE, np.random.default_rng(seed), probability=1, band_fraction=bands)
    return strip, apply_strip(noise(), BOXES, strip, **options)


class TestAlbumentations:
    @pytest.mark.parametrize("form", ["pascal_voc", "albumentations", "coco", "yolo"])
    @pytest.mark.parametrize(("mask_mode", "bands"), [("fill", 0), ("crop", 0), ("crop", 0.5)])
    def test_boxes_in_every_format(self, form, mask_mode, bands):
        lost = 0
        for seed in range(12):
            _, masked = expected(seed, bands, mask_mode=mask_mode)
            rng = np.random.default_rng(seed)
            transform = AlbumentationsMask(
                probability=1, band_fraction=bands, mask_mode=mask_mode, format=form, rng=rng
            )
            given = from_corners(BOXES, form, SIZE)
            sample = transform(image=noise(), bboxes=given.tolist(), class_labels=LABELS.tolist())
            np.testing.assert_array_equal(sample["image"], masked.image)
            size = masked.image.shape[1::-1]
            np.testing.assert_allclose(
                np.reshape(sample["bboxes"], (-1, 4)), from_corners(masked.boxes, form, size), atol=1e-12
            )
            assert sample["class_labels"] == LABELS[masked.keep].tolist()
            lost += (~masked.keep).sum()
        assert lost

    def test_arrays_and_further_columns(self):
        for seed in range(6):
            _, masked = expected(seed)
            transform = AlbumentationsMask(probability=1, rng=np.random.default_rng(seed))
            given = np.concatenate([BOXES, LABELS[:, None]], axis=1)
            sample = transform(image=noise(), bboxes=given, image_id=7)
            np.testing.assert_array_equal(
                sample["bboxes"], np.concatenate([masked.boxes, LABELS[masked.keep, None]], axis=1)
            )
            assert sample["image_id"] == 7

    def test_no_boxes(self):
        transform = AlbumentationsMask(probability=1)
        assert transform(image=noise(), bboxes=[], labels=[])["bboxes"] == []
        assert transform(image=noise(), bboxes=np.zeros((0, 4)), labels=[])["bboxes"].shape == (0, 4)

    def test_an_unmasked_sample_is_left_alone(self):
        image, boxes = noise(), [(1, 2, 3, 4)]
        sample = AlbumentationsMask(probability=0)(image=image, bboxes=boxes, labels=[1])
        assert sample == {"image": image, "bboxes": boxes, "labels": [1]}

    def test_python_seeds_decide_without_a_generator(self):
        def images(seed):
            random.seed(seed)
            mask = AlbumentationsMask(probability=1)
            return [mask(image=noise(), bboxes=[])["image"] for _ in range(5)]

        first, again, other = images(1), images(1), images(2)
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert any((a != b).any() for a, b in zip(first, other, strict=True))
        assert any((first[0] != image).any() for image in first[1:])

    def test_bad_input_is_named(self):
        with pytest.raises(ObjectSeekerError, match="'mask'"):
            AlbumentationsMask()(image=noise(), bboxes=[], mask=np.zeros((HEIGHT, WIDTH)))
        with pytest.raises(ObjectSeekerError, match="pixels"):
            AlbumentationsMask(format="pixels")
        with pytest.raises(ObjectSeekerError, match=r"1\.5"):
            AlbumentationsMask(probability=1.5)


class Format(Enum):
    XYXY = "XYXY"
    XYWH = "XYWH"
    CXCYWH = "CXCYWH"


class Rotated(Enum):
    XYWHR = "XYWHR"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def kinds(torch):
    """Tensors like torchvision's: subclasses that most operations turn into plain tensors, clone() excepted."""

    class Kind(torch.Tensor):
        def __new__(cls, data, **_):
            return torch.as_tensor(data).as_subclass(cls)

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*args, **(kwargs or {}))
            if function is torch.Tensor.clone and isinstance(args[0], cls):
                return result.as_subclass(cls)
            return result

    class BoundingBoxes(Kind):
        def __new__(cls, data, *, format, canvas_size):
            boxes = torch.as_tensor(data).as_subclass(cls)
            boxes.format, boxes.canvas_size = format, canvas_size
            return boxes

    class Image(Kind):
        pass

    class Mask(Kind):
        pass

    return {"image": Image, "boxes": BoundingBoxes, "mask": Mask}


def plain_target(torch) -> dict:
    masks = torch.zeros(len(BOXES), HEIGHT, WIDTH, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, BOXES.astype(int).tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    return {
        "boxes": torch.tensor(BOXES, dtype=torch.float32),
        "labels": torch.from_numpy(LABELS),
        "masks": masks,
        "area": masks.flatten(1).sum(1).float(),
        "iscrowd": torch.tensor([0, 1, 0, 1, 0]),
        "image_id": 5,
        "orig_size": torch.tensor([HEIGHT, WIDTH]),
    }


class TestTorchvision:
    @pytest.mark.parametrize("mask_mode", ["fill", "crop"])
    def test_everything_about_an_object_keeps_step(self, torch, mask_mode):
        image, target = torch.from_numpy(noise()).permute(2, 0, 1), plain_target(torch)
        for seed in range(20):
            strip = draw_strip(*SIZE, np.random.default_rng(seed), probability=1)
            masked = apply_strip(image, target["boxes"], strip, mask_mode=mask_mode)
            got, changed = TorchvisionMask(mask_mode=mask_mode).mask(image, target, strip)
            assert torch.equal(got, masked.image)
            assert torch.equal(changed["boxes"], masked.boxes)
            keep = torch.from_numpy(masked.keep)
            for name in ("labels", "iscrowd"):
                assert torch.equal(changed[name], target[name][keep])
            assert changed["masks"].shape[-2:] == got.shape[-2:]
            for box, mask, area in zip(changed["boxes"].int(), changed["masks"], changed["area"], strict=True):
                x1, y1, x2, y2 = box.tolist()
                assert mask[y1:y2, x1:x2].all()  # objects fill their boxes here, so what is visible does, too
                assert mask.sum() == area == (x2 - x1) * (y2 - y1)
            assert changed["image_id"] == 5
            assert changed["orig_size"] is target["orig_size"]
        assert torch.equal(target["boxes"], torch.tensor(BOXES).float())  # the given target is not changed
        assert target["masks"].sum() == target["area"].sum()

    @pytest.mark.parametrize("mask_mode", ["fill", "crop"])
    def test_boxes_lie_around_what_a_band_leaves_of_their_masks(self, torch, mask_mode):
        image, target = noise_tensor(torch), plain_target(torch)
        through = 0
        for start in range(1, WIDTH - 6, 2):
            got, changed = TorchvisionMask(mask_mode=mask_mode).mask(image, target, Strip(0, start, start + 5))
            assert got.shape == image.shape
            assert (got[..., start : start + 5] == DEFAULT_FILL).all()
            for box, mask, area in zip(changed["boxes"].int(), changed["masks"], changed["area"], strict=True):
                columns, rows = mask.any(0).nonzero(), mask.any(1).nonzero()
                assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                assert mask.sum() == area
                through += bool(area < (box[2:] - box[:2]).prod())
        assert through > 5  # a band that leaves both ends leaves the box

    def test_areas_without_masks_follow_the_visible_share(self, torch):
        target = plain_target(torch)
        counted = TorchvisionMask().mask(noise_tensor(torch), target, Strip(0, 0, 10))[1]["area"]
        del target["masks"]
        estimated = TorchvisionMask().mask(noise_tensor(torch), target, Strip(0, 0, 10))[1]["area"]
        torch.testing.assert_close(estimated, counted)  # equal, since these objects fill their boxes
        target["area"] = target["area"].long()
        whole = TorchvisionMask().mask(noise_tensor(torch), target, Strip(0, 0, 10))[1]["area"]
        assert whole.dtype == torch.int64
        torch.testing.assert_close(whole, counted.long())

    def test_an_image_without_objects(self, torch):
        target = {name: values[:0] for name, values in plain_target(torch).items() if name in PER_OBJECT}
        _, changed = TorchvisionMask(mask_mode="crop").mask(
            noise_tensor(torch), {**target, "boxes": torch.zeros(0, 4)}, Strip(0, 0, 10)
        )
        assert changed["boxes"].shape == (0, 4)
        assert changed["masks"].shape == (0, HEIGHT, WIDTH - 10)
        assert len(changed["labels"]) == len(changed["area"]) == 0

    @pytest.mark.parametrize("form", list(Format))
    @pytest.mark.parametrize("mask_mode", ["fill", "crop"])
    def test_tensors_of_torchvision(self, torch, kinds, form, mask_mode):
        ours = {"XYXY": "pascal_voc", "XYWH": "coco", "CXCYWH": "cxcywh"}[form.value]
        given = from_corners(BOXES, ours, SIZE)
        image = kinds["image"](noise_tensor(torch))
        target = plain_target(torch)
        target["boxes"] = kinds["boxes"](torch.tensor(given), format=form, canvas_size=(HEIGHT, WIDTH))
        target["masks"] = kinds["mask"](target["masks"])
        strip = Strip(1, 0, 11)
        masked = apply_strip(noise(), BOXES, strip, mask_mode=mask_mode)
        got, changed = TorchvisionMask(mask_mode=mask_mode).mask(image, target, strip)
        assert type(got) is kinds["image"]
        assert type(changed["masks"]) is kinds["mask"]
        assert type(changed["boxes"]) is kinds["boxes"]
        assert changed["boxes"].format is form
        assert tuple(changed["boxes"].canvas_size) == tuple(got.shape[-2:])
        np.testing.assert_allclose(changed["boxes"].as_subclass(torch.Tensor), from_corners(masked.boxes, ours, SIZE))

    def test_images(self, torch, kinds):
        from PIL.Image import fromarray

        target = {"boxes": kinds["boxes"](torch.tensor(BOXES), format=Format.XYXY, canvas_size=(HEIGHT, WIDTH))}
        got, changed = TorchvisionMask(mask_mode="crop").mask(fromarray(noise()), target, Strip(0, 0, 10))
        assert got.size == (WIDTH - 10, HEIGHT)
        assert tuple(changed["boxes"].canvas_size) == (HEIGHT, WIDTH - 10)

    def test_torch_seeds_decide(self, torch):
        image, target = noise_tensor(torch), plain_target(torch)
        torch.manual_seed(3)
        first = [TorchvisionMask(probability=1)(image, target)[0] for _ in range(4)]
        torch.manual_seed(3)
        again = [TorchvisionMask(probability=1)(image, target)[0] for _ in range(4)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(first[0], other) for other in first[1:])
        own = TorchvisionMask(probability=1, generator=torch.Generator().manual_seed(3))
        assert all(torch.equal(own(image, target)[0], one) for one in first)

    def test_what_cannot_be_masked_is_refused(self, torch, kinds):
        turned = kinds["boxes"](torch.zeros(1, 5), format=Rotated.XYWHR, canvas_size=(HEIGHT, WIDTH))
        with pytest.raises(ObjectSeekerError, match="XYWHR"):
            TorchvisionMask()(noise_tensor(torch), {"boxes": turned})
        with pytest.raises(ObjectSeekerError, match="'labels'"):
            TorchvisionMask()(noise_tensor(torch), {"labels": torch.zeros(0)})
        with pytest.raises(ObjectSeekerError, match="keypoints"):
            TorchvisionMask()(noise_tensor(torch), {**plain_target(torch), "keypoints": torch.zeros(5, 17, 3)})


def noise_tensor(torch):
    return torch.from_numpy(noise()).permute(2, 0, 1)


class Pairs:
    """A plain dataset: bright images, so that gray is what a mask removed."""

    def __init__(self, torch, count: int = 12) -> None:
        self.image, self.target, self.count = noise_tensor(torch), plain_target(torch), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if not -self.count <= index < self.count:
            raise IndexError(index)
        return self.image, {**self.target, "image_id": index % self.count}


def removed(images) -> list[tuple[int, ...]]:
    """The place of every image's gray pixels, as their number in each row."""
    return [tuple((image == DEFAULT_FILL).all(dim=0).sum(dim=1).tolist()) for image in images]


class TestPlainDataset:
    @pytest.mark.parametrize("bands", [0, 1])
    def test_items_are_masked(self, torch, bands):
        dataset = MaskedDataset(Pairs(torch), probability=1, band_fraction=bands, seed=4)
        assert len(dataset) == 12
        for index, (image, target) in enumerate(dataset):
            strip = draw_strip(*SIZE, np.random.default_rng((4, 0, index)), probability=1, band_fraction=bands)
            assert torch.equal(image, apply_strip(noise_tensor(torch), BOXES, strip).image)
            assert target["image_id"] == index
            assert len(target["boxes"]) == len(target["labels"])
        assert torch.equal(dataset[-1][0], dataset[11][0])

    def test_a_seed_fixes_masks_for_any_number_of_workers_and_epochs_change_them(self, torch):
        from torch.utils.data import DataLoader

        dataset = MaskedDataset(Pairs(torch), probability=1, seed=4)

        def epoch(workers, number):
            dataset.set_epoch(number)
            loader = DataLoader(dataset, batch_size=None, num_workers=workers)
            return removed(image for image, _ in loader)

        assert epoch(0, 0) == epoch(2, 0)
        assert epoch(2, 1) == epoch(0, 1) != epoch(0, 0)

    def test_workers_that_outlive_an_epoch_see_the_next_one(self, torch):
        from torch.utils.data import DataLoader

        dataset = MaskedDataset(Pairs(torch), probability=1, seed=4)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
        seen = []
        for number in (0, 1):
            dataset.set_epoch(number)
            seen.append(removed(image for image, _ in loader))
        again = MaskedDataset(Pairs(torch), probability=1, seed=4)
        again.set_epoch(1)
        assert seen[0] != seen[1] == removed(image for image, _ in again)

    def test_without_a_seed_workers_and_epochs_differ(self, torch):
        from torch.utils.data import DataLoader

        torch.manual_seed(0)
        dataset = MaskedDataset(Pairs(torch), probability=1)
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        first, second = (removed(image for image, _ in loader) for _ in range(2))
        assert first != second
        assert first[::2] != first[1::2]  # samples go to the two workers in turn
        torch.manual_seed(0)
        assert removed(image for image, _ in loader) == first


class Coco:
    """A dataset as transformers' examples have them."""

    def __init__(self, image, keys: tuple[str, ...] = ("bbox", "category", "area", "id")) -> None:
        boxes = from_corners(BOXES, "coco", SIZE)
        everything = {
            "bbox": boxes.tolist(),
            "category": LABELS.tolist(),
            "category_id": LABELS.tolist(),
            "area": (boxes[:, 2] * boxes[:, 3] / 2).tolist(),
            "id": list(range(100, 100 + len(BOXES))),
        }
        self.item = {"image": image, "image_id": 9, "objects": {key: everything[key] for key in keys}}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        if index >= 8:
            raise IndexError(index)
        return self.item


class TestTransformersDataset:
    @pytest.mark.parametrize("mask_mode", ["fill", "crop"])
    @pytest.mark.parametrize("as_image", [False, True])
    @pytest.mark.parametrize("bands", [0, 1])
    def test_annotations(self, torch, mask_mode, as_image, bands):
        from PIL.Image import fromarray

        image = fromarray(noise()) if as_image else noise()
        dataset = MaskedDetectionDataset(Coco(image), probability=1, band_fraction=bands, seed=1, mask_mode=mask_mode)
        for index, item in enumerate(dataset):
            strip = draw_strip(*SIZE, np.random.default_rng((1, 0, index)), probability=1, band_fraction=bands)
            masked = apply_strip(noise(), BOXES, strip, mask_mode=mask_mode)
            np.testing.assert_array_equal(np.asarray(item["image"]), masked.image)
            assert item["annotations"]["image_id"] == 9
            rows = item["annotations"]["annotations"]
            kept = np.flatnonzero(masked.keep)
            assert [row["category_id"] for row in rows] == LABELS[kept].tolist()
            assert [row["id"] for row in rows] == (100 + kept).tolist()
            np.testing.assert_allclose(
                np.reshape([row["bbox"] for row in rows], (-1, 4)), from_corners(masked.boxes, "coco", SIZE)
            )
            seen = (BOXES[:, 2:] - BOXES[:, :2]).prod(axis=1) * masked.visible_fraction
            np.testing.assert_allclose([row["area"] for row in rows], seen[kept] / 2)
            if not bands:
                sides = from_corners(masked.boxes, "coco", SIZE)[:, 2:]
                np.testing.assert_allclose([row["area"] for row in rows], sides.prod(axis=1) / 2)
            assert all(row["iscrowd"] == 0 and row["image_id"] == 9 for row in rows)

    def test_what_may_be_missing(self, torch):
        item = MaskedDetectionDataset(Coco(noise(), ("bbox", "category_id")), probability=0, seed=1)[3]
        first = item["annotations"]["annotations"][0]
        assert first == {"image_id": 9, "bbox": [1, 1, 8, 8], "area": 64, "category_id": 10, "iscrowd": 0}
        with pytest.raises(ObjectSeekerError, match="category"):
            MaskedDetectionDataset(Coco(noise(), ("bbox", "area")))[0]

    def test_objects_as_a_list(self, torch):
        dataset = Coco(noise(), ("bbox", "category_id"))
        objects = dataset.item["objects"]
        rows = [dict(zip(objects, values, strict=True)) for values in zip(*objects.values(), strict=True)]
        by_column = MaskedDetectionDataset(dataset, probability=1, seed=2)[0]["annotations"]
        dataset.item = {**dataset.item, "objects": rows}
        assert MaskedDetectionDataset(dataset, probability=1, seed=2)[0]["annotations"] == by_column
        dataset.item = {**dataset.item, "objects": []}
        assert MaskedDetectionDataset(dataset, probability=1, seed=2)[0]["annotations"]["annotations"] == []

    def test_an_image_processor_takes_it(self, torch):
        transformers = pytest.importorskip("transformers")
        processor = transformers.DetrImageProcessor(size={"height": 48, "width": 64})
        items = [MaskedDetectionDataset(Coco(noise()), probability=1, seed=1)[index] for index in range(4)]
        batch = processor(
            images=[item["image"] for item in items],
            annotations=[item["annotations"] for item in items],
            return_tensors="pt",
        )
        assert batch["pixel_values"].shape == (4, 3, 48, 64)
        for item, labels in zip(items, batch["labels"], strict=True):
            rows = item["annotations"]["annotations"]
            assert labels["class_labels"].tolist() == [row["category_id"] for row in rows]
            corners = np.reshape([row["bbox"] for row in rows], (-1, 4)) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
            corners[:, :2] += corners[:, 2:] / 2
            np.testing.assert_allclose(labels["boxes"].numpy(), corners, atol=1e-6)
