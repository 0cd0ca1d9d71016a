"""The training program: what it draws, and that a killed run ends like one that was left alone."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("train_builtin", reason="the training program is not part of the package")

from objectseeker.training import draw_strips, kept_parts, mask_and_move, visible_targets
from train_builtin.ablation import changed
from train_builtin.augmentation import (
    NO_MASKS,
    Augmentation,
    Bank,
    SampleMasking,
    Strength,
    cut_to_border,
)
from train_builtin.loss import anchor_points, detection_loss
from train_builtin.packs import DOUBTFUL, decode, halve
from train_builtin.train import Log, detector_parser, noise_pack, settings_of, train
from train_builtin.trainer import Settings, Trainer

SIZE = 64


@pytest.fixture(scope="module")
def bank():
    pack = noise_pack(12)
    pack.boxes[0][:, 5] = DOUBTFUL
    full = decode(pack, processes=1)
    return Bank(pack, full, halve(full, processes=1), torch.device("cpu"))


def draw(bank, masking, count=6, seed=0):
    augmentation = Augmentation(bank, SIZE, seed=seed, compiled=False)
    return augmentation.batch(count, Strength(mosaic=0.5, mixup=0.0, smallest=0.8, largest=1.2, masking=masking))


def test_what_a_mask_hides_is_gray_and_no_target_reaches_into_it(bank):
    plain, masked = draw(bank, NO_MASKS), draw(bank, SampleMasking(probability=1.0))
    gray = torch.isclose(masked.images, torch.tensor(114 / 255)).all(1)

    assert (
        gray.float().mean((1, 2)) > torch.isclose(plain.images, torch.tensor(114 / 255)).all(1).float().mean((1, 2))
    ).any()
    for image, boxes, present in zip(gray, masked.boxes, masked.present, strict=True):
        rows, columns = (~image).any(1).nonzero(), (~image).any(0).nonzero()
        for x1, y1, x2, y2 in boxes[present]:
            assert x1 >= columns.min() - 1
            assert y1 >= rows.min() - 1
            assert x2 <= columns.max() + 2
            assert y2 <= rows.max() + 2


def test_targets_are_the_visible_parts_of_what_is_visible_enough():
    boxes = torch.tensor([[[0.0, 0, 40, 40], [20, 0, 60, 40], [30, 0, 60, 40]]]).repeat(2, 1, 1)
    present = torch.ones(2, 3, dtype=torch.bool)
    kept = torch.tensor([[[0.0, 0, 32, 64], [64, 0, 64, 64]], [[0, 0, 64, 0], [0, 10, 64, 64]]])

    cut, still = visible_targets(boxes, present, kept, 0.2)

    assert still.tolist() == [[True, True, False], [True, True, True]]  # of the third, 2 of 30 columns are left
    assert cut[0, 0].tolist() == [0, 0, 32, 40]
    assert cut[1, 2].tolist() == [30, 10, 60, 40]


def test_a_cropped_sample_has_its_cut_on_the_border():
    image = torch.arange(SIZE).float().expand(2, 3, SIZE, SIZE).contiguous()  # a column shows its own number
    kept = torch.tensor([[[0.0, 0, 0, SIZE], [24, 0, SIZE, SIZE]], [[0, 0, 24, SIZE], [SIZE, 0, SIZE, SIZE]]])
    shift = cut_to_border(kept, SIZE)

    moved = mask_and_move(image, kept, shift.long())

    assert shift.tolist() == [[24, 0], [-40, 0]]
    assert moved[0, 0, 0, :40].tolist() == list(range(24, 64))
    assert moved[1, 0, 0, 40:].tolist() == list(range(24))
    assert torch.isclose(moved[0, 0, 0, 40:], torch.tensor(114 / 255)).all()


def test_only_half_masks_move_their_sample():
    halves = [[0, 0, 8], [0, 40, SIZE], [1, 0, 8], [1, 40, SIZE]]
    axis, start, end = torch.tensor([*halves, [0, 8, 40], [1, 8, 40], [1, 0, 9]]).T
    masked = torch.tensor([True] * 6 + [False])  # the last one is none

    shift = cut_to_border(kept_parts(masked, axis, start, end, SIZE, SIZE), SIZE)

    assert shift.tolist() == [[8, 0], [-24, 0], [0, 8], [0, -24], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("bands", [0.0, 1.0])
def test_lines_through_objects_cut_one(bank, bands):
    augmentation = Augmentation(bank, SIZE, seed=0, compiled=False)
    boxes = torch.tensor([[[0.0, 0, 9, 9], [40, 20, 64, 30]]]).repeat(200, 1, 1)
    present = torch.tensor([[True, True], [False, True]]).repeat(100, 1)

    masking = SampleMasking(probability=1.0, band_fraction=bands, band_widths=(0.1, 0.2), through=1.0)
    masked, axis, start, end = augmentation._strips(boxes, present, masking)

    for number in range(200):
        lines = [int(line) for line in (start[number], end[number]) if 0 < line < SIZE]
        low, high = boxes[number, :, int(axis[number])], boxes[number, :, int(axis[number]) + 2]
        assert any(((low <= line) & (line <= high) & present[number]).any() for line in lines)
    assert masked.all()
    assert ((start >= 0) & (start < end) & (end <= SIZE) & (end - start < SIZE)).all()
    bands_left = (start > 0) & (end < SIZE)
    assert (bands_left.sum() > 100) == (bands > 0) == bands_left.any()
    assert (end - start)[bands_left].unique().tolist() in ([], [7, 8, 9, 10, 11, 12, 13])  # a tenth to a fifth of SIZE


def test_masks_that_are_aimed_at_nothing_are_those_drawn(bank):
    masking = SampleMasking(probability=1.0, band_fraction=0.5, through=1.0)
    augmentation = Augmentation(bank, SIZE, seed=3, compiled=False)
    boxes, nothing = torch.zeros(50, 2, 4), torch.zeros(50, 2, dtype=torch.bool)

    ours = augmentation._strips(boxes, nothing, masking)

    generator = torch.Generator().manual_seed(3)
    theirs = draw_strips(50, SIZE, SIZE, generator, probability=1.0, band_fraction=0.5)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_bands_are_comes_from_the_command_line_and_from_a_plan():
    given = ["--check", "--out", "runs", "--mask-band-fraction", "0.5", "--mask-band-widths", "0.1", "0.2"]
    options = detector_parser(None).parse_args(given)
    data = argparse.Namespace(settings={"images": 12, "digest": ""}, names=("a",))
    masking = settings_of(options, data).masking
    assert (masking.band_fraction, masking.band_widths) == (0.5, (0.1, 0.2))
    plan = {"name": "bands", "mask_band_fraction": 1, "mask_band_widths": [0.15, 0.25]}
    masking = settings_of(changed(options, plan), data).masking
    assert (masking.band_fraction, masking.band_widths) == (1, (0.15, 0.25))
    assert settings_of(detector_parser(None).parse_args(given[:3]), data).masking == SampleMasking()


def test_paired_batches_show_every_sample_whole_and_masked(bank):
    batch = draw(bank, SampleMasking(probability=1.0, band_fraction=0.5, paired=True), count=8)
    whole, masked = batch.images[:4], batch.images[4:]

    same = torch.isclose(whole, masked).all(1)
    gray = torch.isclose(masked, torch.tensor(114 / 255)).all(1)
    assert (same | gray).all()
    assert not same.all()
    assert (batch.present[:4] | ~batch.present[4:]).all()  # nothing appears by masking


def test_an_object_the_network_is_not_sure_of_is_no_goal_of_its_masked_version():
    generator = torch.Generator().manual_seed(0)
    points, strides = anchor_points(SIZE, torch.device("cpu"))
    box_logits = torch.randn(2, len(points), 64, generator=generator)
    boxes = torch.tensor([[[8.0, 8, 40, 40]]]).repeat(2, 1, 1)
    labels, present = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.bool)

    def class_gradient(logit: float, paired: bool) -> float:
        logits = torch.full((2, len(points), 20), logit, requires_grad=True)
        loss, _ = detection_loss(box_logits, logits, boxes, labels, present, points, strides, paired=paired)
        loss.backward()
        return float(logits.grad[1, :, 0].min())  # how much the masked version is pushed up

    assert class_gradient(-8.0, paired=False) < 0
    assert class_gradient(-8.0, paired=True) > class_gradient(-8.0, paired=False)


def test_a_teacher_is_the_goal_of_whole_samples_and_of_nothing_else():
    generator = torch.Generator().manual_seed(0)
    points, strides = anchor_points(SIZE, torch.device("cpu"))
    taught = torch.randn(1, len(points), 64, generator=generator), torch.randn(1, len(points), 20, generator=generator)
    logits = taught[1].repeat(2, 1, 1).requires_grad_()
    boxes = torch.tensor([[[8.0, 8, 40, 40]]]).repeat(2, 1, 1)
    labels, present = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.bool)

    loss, _ = detection_loss(
        taught[0].repeat(2, 1, 1), logits, boxes, labels, present, points, strides, paired=True, taught=taught
    )
    loss.backward()

    assert torch.allclose(logits.grad[0], torch.zeros_like(logits.grad[0]), atol=1e-9)
    assert (logits.grad[1].abs() > 1e-9).any()


def settings(**changes):
    return Settings(
        **(
            {
                "seconds": None,
                "steps": 3,
                "images": 12,
                "digest": "these",
                "masking": SampleMasking(probability=0.5, band_fraction=0.5),
                "batch": 4,
                "size": SIZE,
            }
            | changes
        )
    )


def piece(trainer, folder, seconds=float("inf")):
    folder.mkdir(exist_ok=True)
    train(trainer, Log(folder), folder, argparse.Namespace(stop_after=seconds, log_every=100, save_every=2))


@pytest.mark.slow
def test_a_run_in_pieces_ends_with_the_same_bits_as_one_left_alone(bank, tmp_path):
    cpu = torch.device("cpu")
    chosen = settings(masking=SampleMasking(probability=0.9, band_fraction=0.5, worst=2), mask_worst_every=2)
    alone = Trainer(chosen, bank, cpu, compiled=False)
    piece(alone, tmp_path / "alone")
    for _ in range(3):  # no time at all: one step a piece
        again = Trainer(chosen, bank, cpu, compiled=False)
        again.resume(tmp_path / "pieces")
        piece(again, tmp_path / "pieces", seconds=0)

    assert again.progress.step == 3
    for name, tensor in alone.average.state_dict().items():
        assert torch.equal(tensor, again.average.state_dict()[name]), name


def test_a_trainer_that_begins_again_does_the_same(bank, tmp_path):
    trainer = Trainer(settings(), bank, torch.device("cpu"), compiled=False)
    piece(trainer, tmp_path / "first")
    first = {name: tensor.clone() for name, tensor in trainer.average.state_dict().items()}
    trainer.begin(settings())
    piece(trainer, tmp_path / "second")

    assert all(torch.equal(first[name], tensor) for name, tensor in trainer.average.state_dict().items())


def test_a_step_and_the_choice_of_masks_leave_doubt_out(bank, monkeypatch):
    trainer = Trainer(settings(masking=NO_MASKS), bank, torch.device("cpu"), compiled=False)
    batch = trainer.augmentation.batch(4, Strength(mosaic=1.0, mixup=0.0, smallest=0.8, largest=1.2))
    assert (trainer.judge(batch) < trainer.judge(replace(batch, doubtful=None))).any()
    losses = []
    for doubtful in (bank.doubtful, None):
        monkeypatch.setattr(bank, "doubtful", doubtful)
        trainer.begin(trainer.settings)
        losses.append(trainer.step())
    box, classes, distance = losses[0] < losses[1]
    assert (box, classes, distance) == (False, True, False)


def test_a_run_can_start_from_weights_and_refuses_other_settings(bank, tmp_path):
    trainer = Trainer(settings(steps=1), bank, torch.device("cpu"), compiled=False)
    piece(trainer, tmp_path / "first")
    weights = str(tmp_path / "first" / "weights.pt")
    trainer.begin(settings(steps=1, start=weights))

    kernel = trainer.network.stem.conv.weight
    np.testing.assert_array_equal(kernel.detach(), torch.load(weights)["stem.conv.weight"].float())
    with pytest.raises(SystemExit, match="holds a run with"):
        trainer.resume(tmp_path / "first")
    trainer.begin(settings(steps=1, digest="others"))
    with pytest.raises(SystemExit, match=r"with \{'digest': 'these'\}, requested \{'digest': 'others'\}"):
        trainer.resume(tmp_path / "first")
    torch.save({"other.weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(SystemExit, match="another network"):
        trainer.begin(settings(start=str(tmp_path / "other.pt")))


def test_a_run_can_be_taught_by_weights_of_the_same_classes_beside_masked_samples(bank, tmp_path):
    trainer = Trainer(settings(steps=1), bank, torch.device("cpu"), compiled=False)
    piece(trainer, tmp_path / "first")
    weights = str(tmp_path / "first" / "weights.pt")
    trainer.begin(
        settings(steps=1, start=weights, teacher=weights, masking=SampleMasking(probability=1.0, paired=True))
    )
    before = {name: tensor.clone() for name, tensor in trainer.teacher.state_dict().items()}
    piece(trainer, tmp_path / "taught")

    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.teacher.state_dict().items())
    assert not torch.equal(trainer.network.stem.conv.weight, trainer.teacher.stem.conv.weight)
    with pytest.raises(SystemExit, match="--mask-paired"):
        trainer.begin(settings(teacher=weights))
    taught = settings(teacher=weights, masking=SampleMasking(probability=1.0, paired=True), names=("one", "two"))
    with pytest.raises(SystemExit, match="knows 20 classes"):
        Trainer(taught, bank, torch.device("cpu"), compiled=False)
