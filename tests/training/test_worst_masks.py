"""The worst of several masks: which is chosen, by what loss, and when in the schedule."""

from __future__ import annotations

import argparse

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("train_builtin", reason="the training program is not part of the package")

from objectseeker.errors import ObjectSeekerError
from train_builtin.augmentation import Augmentation, Bank, SampleMasking, Strength
from train_builtin.learner import Progress
from train_builtin.loss import anchor_points, detection_loss, sample_losses
from train_builtin.packs import decode, halve
from train_builtin.train import detector_parser, noise_pack, settings_of
from train_builtin.trainer import Trainer, strength

SIZE = 64
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bank():
    pack = noise_pack(16)
    full = decode(pack, processes=1)
    return Bank(pack, full, halve(full, processes=1), CPU)


def settings(*options):
    given = ["--steps", "10", "--batch", "4", "--size", str(SIZE), *options]
    data = argparse.Namespace(settings={"images": 16, "digest": ""}, names=("a",) * 20)
    return settings_of(detector_parser(None).parse_args(given), data)


def hidden(batch):
    """The share of each sample that is gray."""
    return torch.isclose(batch.images, torch.tensor(114 / 255)).all(1).float().mean((1, 2))


def draw(bank, worst, judge):
    masking = SampleMasking(probability=0.6, band_fraction=0.5, through=0.5, min_visible=0.5, worst=worst)
    augmentation = Augmentation(bank, SIZE, seed=0, compiled=False)
    return augmentation.batch(16, Strength(0.0, 0.0, 1.3, 1.4, masking), judge)


def test_of_several_masks_the_one_the_judge_finds_worst_is_applied(bank):
    judged = []

    def judge(batch):
        judged.append(hidden(batch))
        return judged[-1]

    one, worst = draw(bank, 1, judge), draw(bank, 4, judge)
    assert len(judged) == 4  # a single mask is not judged
    assert torch.equal(hidden(worst), torch.stack(judged).amax(0))
    assert torch.equal(judged[0], hidden(one))  # the first of the four is the one that would have been drawn
    assert (hidden(worst) > hidden(one)).any()
    unmasked = (judged[0] == judged[1]) & (judged[1] == judged[2])
    assert 0 < unmasked.sum() < 16  # as many as before: trying several masks masks no more samples
    assert torch.equal(worst.images[unmasked], one.images[unmasked])


def test_the_loss_of_a_sample_is_that_of_a_batch_of_its_own():
    generator = torch.Generator().manual_seed(0)
    points, strides = anchor_points(SIZE, CPU)
    box_logits = torch.randn(3, len(points), 64, generator=generator)
    class_logits = torch.randn(3, len(points), 20, generator=generator)
    boxes = torch.tensor([[8.0, 8, 40, 40], [20, 4, 60, 50]]).repeat(3, 1, 1)
    labels = torch.tensor([[0, 3], [5, 0], [0, 0]])
    present = torch.tensor([[True, True], [True, False], [False, False]])
    inputs = box_logits, class_logits, boxes, labels, present
    alone = [detection_loss(*(x[n : n + 1] for x in inputs), points, strides)[0] for n in range(3)]
    torch.testing.assert_close(sample_losses(*inputs, points, strides), torch.stack(alone))


def test_when_masks_are_many_and_when_the_worst_is_taken():
    chosen = settings(
        *("--mask-probability", "0.9", "--mask-early-share", "1", "--mask-band-fraction", "0.5"),
        *("--mask-through", "0.3"),
        *("--mask-min-visible", "0.5", "--mask-worst", "2", "--mask-worst-from", "0.5", "--mask-worst-every", "2"),
    )
    drawn = [strength(Progress(step), chosen).masking for step in range(10)]
    assert [masking.worst for masking in drawn] == [1, 1, 1, 1, 1, 1, 2, 1, 2, 1]
    expected = {(0.9, 0.5, 0.3, 0.5)}
    assert {
        (masking.probability, masking.band_fraction, masking.through, masking.min_visible) for masking in drawn
    } == expected
    usual = [strength(Progress(step), settings()).masking.probability for step in range(10)]
    assert usual == [0.3] * 7 + [0.5] * 3


def test_mistakes_are_refused():
    with pytest.raises(ObjectSeekerError, match="either paired or worst"):
        SampleMasking(paired=True, worst=2)
    for option in ("--mask-worst", "--mask-worst-every"):
        with pytest.raises(SystemExit, match="at least 1: got 0"):
            settings(option, "0")
    with pytest.raises(SystemExit, match="mask_early_share"):
        settings("--mask-early-share", "2")


def test_a_step_trains_on_the_worst_masks_and_judging_changes_nothing(bank):
    trainer = Trainer(settings("--mask-worst", "2", "--mask-probability", "1"), bank, CPU, compiled=False)
    trainer.network.train()
    before = {name: tensor.clone() for name, tensor in trainer.average.state_dict().items()}
    batch = trainer.augmentation.batch(4, strength(trainer.progress, trainer.settings), trainer.judge)
    losses = trainer.judge(batch)
    assert losses.shape == (4,)
    assert not losses.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.average.state_dict().items())
    assert torch.isfinite(trainer.step()).all()
