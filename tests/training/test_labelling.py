"""Images labeled by a network: boxes where the objects are, doubt that training neither rewards nor punishes."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
pytest.importorskip("train_builtin", reason="the training program is not part of the package")

from objectseeker.detectors.builtin.model import BuiltinDetector
from train_builtin import label
from train_builtin.augmentation import NO_MASKS, Augmentation, Bank, SampleMasking, Strength
from train_builtin.loss import anchor_points, detection_loss, sample_losses
from train_builtin.packs import DOUBTFUL, NORMAL, Pack, decode, halve, read_pack, write_pack
from train_builtin.train import noise_pack, repeats_of

SIZE = 64
CPU = torch.device("cpu")


def bank_of(pack, **options):
    full = decode(pack, processes=1)
    return Bank(pack, full, halve(full, processes=1), CPU, **options)


def find_white(images):
    """Finds what is white, as class 3, and is surer of it in the right half."""
    boxes = []
    for sample in images.amin(1) > 128:
        rows, columns = sample.any(1).nonzero(), sample.any(0).nonzero()
        boxes.append([float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1])
    boxes = torch.tensor(boxes)[:, None]
    scores = torch.zeros(len(images), 1, 20)
    scores[..., 3] = torch.where(boxes[..., 0] + boxes[..., 2] > images.shape[3], 0.8, 0.3)
    return boxes, scores


@pytest.mark.parametrize("side", [128, 32])  # twice as large, and from the images at half size
def test_an_object_is_labeled_once_where_it_is(side):
    files, sizes = [], [(64, 48), (40, 64)]
    for width, height in sizes:
        image = np.zeros((height, width, 3), np.uint8)
        image[8:24, 4:20] = 255
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        files.append(buffer.getvalue())
    bank = bank_of(Pack(files, ["a", "b"], np.array(sizes), [np.zeros((0, 6), np.float32)] * 2))

    found = label.answers(find_white, bank, size=side, batch=2, floor=0.1)

    for (rows, scale), size in zip(found, np.array(sizes), strict=True):
        assert rows[:, 4].tolist() == pytest.approx([0.8])  # the mirror image's answer, which suppresses the other
        for sure, flag in ((0.8, NORMAL), (0.81, DOUBTFUL)):
            ((number, *box, given),) = label.rows_of(rows, scale, size, sure=sure)
            assert (number, given) == (3, flag)
            assert box == pytest.approx([4, 8, 20, 24], abs=0.01)


def test_a_labeled_pack_holds_the_same_images(tmp_path, monkeypatch):
    torch.manual_seed(0)
    torch.save(BuiltinDetector().state_dict(), tmp_path / "weights.pt")
    pack, index = noise_pack(3), tmp_path / "images.npz"
    parts = write_pack(pack, index, tmp_path / "images.bin", source="images", part_size=5000)
    out = tmp_path / "labeled.npz"
    options = ["--size", str(SIZE), "--processes", "1", "--doubtful", "1e-9", "--sure", "0.0002"]
    monkeypatch.setattr(
        sys,
        "argv",
        ["label", str(tmp_path / "weights.pt"), "--pack", str(index), *map(str, parts), "--out", str(out), *options],
    )
    label.main()

    labeled = read_pack(out, parts, sources=["images"])
    assert (labeled.files, labeled.names) == (pack.files, pack.names)
    rows = np.concatenate(labeled.boxes)
    assert set(rows[:, 5]) == {NORMAL, DOUBTFUL}
    assert (rows[:, 1:5] >= 0).all()
    assert (rows[:, 3] <= 64).all()
    assert (rows[:, 4] <= 48).all()
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "0"])
    with pytest.raises(SystemExit, match="--doubtful <= --sure"):
        label.main()


def test_no_anchor_point_learns_from_doubt():
    generator = torch.Generator().manual_seed(0)
    points, strides = anchor_points(SIZE, CPU)
    box_logits = torch.randn(1, len(points), 64, generator=generator)
    logits = torch.randn(1, len(points), 20, generator=generator) - 8
    objects = torch.tensor([[[8.0, 8, 40, 40]]]), torch.tensor([[5]]), torch.tensor([[True]])
    doubtful = torch.tensor([[[0.0, 0, 64, 32], [0, 0, 64, 64]]]), torch.tensor([[7, 2]]), torch.tensor([[True, False]])

    def gradient(doubt):
        leaf = logits.clone().requires_grad_()
        given = box_logits, leaf, *objects, points, strides
        detection_loss(*given, doubtful=doubt)[0].backward()
        alone = sample_losses(*given, doubtful=doubt)
        return leaf.grad[0], alone

    (plain, loss), (spared, less) = gradient(None), gradient(doubtful)
    targets = plain[:, 5] < 0  # pushed up
    upper = points[:, 1] < 32
    assert 0 < targets.sum() < upper.sum()
    assert (targets & upper).any()
    assert (plain[upper, 7] > 0).all()
    assert (spared[upper & ~targets, 7] == 0).all()
    spared[upper & ~targets, 7] = plain[upper & ~targets, 7]
    assert torch.equal(spared, plain)  # other classes, other places, and where an object is to be found
    assert (less < loss).all()


@pytest.mark.parametrize("masking", [NO_MASKS, SampleMasking(probability=1.0, mask_mode="crop", min_visible=0.5)])
def test_doubtful_boxes_go_where_their_images_go(masking):
    pack = noise_pack(8)
    for number, rows in enumerate(pack.boxes):
        doubtful = np.add(rows, [1, 0, 0, 0, 0, DOUBTFUL])
        pack.boxes[number] = np.concatenate([rows, doubtful]).astype(np.float32)
    augmentation = Augmentation(bank_of(pack), SIZE, seed=0, compiled=False)

    batch = augmentation.batch(8, Strength(mosaic=0.5, mixup=0.5, smallest=0.8, largest=1.2, masking=masking))

    boxes, labels, present = batch.doubtful
    here = batch.present  # the doubtful box of an object is in the same place of its list
    assert present[here].all()
    assert torch.equal(labels[here], batch.labels[here] + 1)
    moved = (batch.boxes - boxes)[here]
    unmasked = moved.abs().amax(1) < 1e-4
    assert unmasked.any()
    assert unmasked.all() == (masking is NO_MASKS)
    assert (moved[:, :2] > -1e-4).all()  # a mask makes targets smaller, and leaves doubt as large as it is
    assert (moved[:, 2:] < 1e-4).all()


def test_an_epoch_shows_images_as_often_as_asked_for():
    pack = noise_pack(6)
    repeats = repeats_of([range(2), range(4)], [3])
    augmentation = Augmentation(bank_of(pack, repeats=repeats), SIZE, seed=0, compiled=False)

    shown = torch.cat([augmentation._choose(5)[:, -1] for _ in range(2)])

    assert torch.bincount(shown).tolist() == [3, 3, 1, 1, 1, 1]
    for wrong in ([1, 1, 1], [0]):
        with pytest.raises(SystemExit, match="one for each of 2 packs"):
            repeats_of([range(2), range(4)], wrong)
