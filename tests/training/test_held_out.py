"""AP50 on held-out images: the package's, whichever detector answers."""

from __future__ import annotations

import numpy as np
import pytest

from objectseeker.core.boxes import Detections

torch = pytest.importorskip("torch")
pytest.importorskip("train_builtin", reason="the training program is not part of the package")

from train_builtin.augmentation import Bank, SampleMasking
from train_builtin.evaluate import average_precisions
from train_builtin.packs import CROWD, DIFFICULT, Pack, decode, halve, read_pack, write_pack
from train_builtin.train import Log, measure, noise_pack
from train_builtin.trainer import Settings, Trainer

NAMES = ("cat", "dog", "cow")


class Answering:
    """A detector that knows its answers."""

    names, fingerprint = NAMES, "answering"

    def __init__(self, answers: list[Detections]) -> None:
        self.answers = answers

    def __call__(self, images):
        assert len(images) == len(self.answers)
        return self.answers


def pack_of(*images: list[tuple[float, ...]]) -> Pack:
    noise = noise_pack(len(images))
    return Pack(noise.files, noise.names, noise.sizes, [np.array(rows, np.float32).reshape(-1, 6) for rows in images])


def precisions(pack, answers):
    boxes = [
        Detections([row[:4] for row in rows], [row[4] for row in rows], [row[5] for row in rows]) for rows in answers
    ]
    return average_precisions(Answering(boxes), pack, decode(pack, processes=1)).tolist()


def test_what_is_there_is_found_and_what_is_not_is_nan():
    pack = pack_of([(0, 4, 4, 20, 20, 0)], [(1, 8, 8, 40, 40, 0)], [])
    assert precisions(pack, [[(4, 4, 20, 20, 0.9, 0)], [], []]) == pytest.approx([100, 0, np.nan], nan_ok=True)


def test_a_wrong_box_before_the_right_one_costs_half():
    pack = pack_of([(0, 4, 4, 20, 20, 0)])
    answers = [[(30, 30, 40, 40, 0.9, 0), (4, 4, 20, 20, 0.8, 0)]]
    assert precisions(pack, answers)[0] == pytest.approx(50)


def test_boxes_on_difficult_objects_and_crowds_are_neither_right_nor_wrong():
    pack = pack_of([(0, 4, 4, 20, 20, 0), (0, 30, 4, 46, 20, DIFFICULT), (0, 0, 24, 60, 48, CROWD)])
    answers = [[(30, 4, 46, 20, 0.9, 0), (2, 26, 12, 36, 0.9, 0), (20, 30, 30, 40, 0.9, 0), (4, 4, 20, 20, 0.8, 0)]]
    assert precisions(pack, answers)[0] == pytest.approx(100)


def test_a_written_pack_is_read_back(tmp_path):
    pack = pack_of([(0, 4, 4, 20, 20, 0), (2, 1, 2, 3, 4, DIFFICULT)], [], [(1, 8, 8, 40, 40, CROWD)])
    write_pack(pack, tmp_path / "held.npz", tmp_path / "held.bin", source="voc")
    again = read_pack(tmp_path / "held.npz", [tmp_path / "held.bin"], sources=["voc"])
    assert again.files == pack.files
    assert again.names == pack.names
    assert again.sizes.tolist() == pack.sizes.tolist()
    assert [rows.tolist() for rows in again.boxes] == [rows.tolist() for rows in pack.boxes]


def test_a_run_tells_the_ap50_of_its_averaged_network(tmp_path, capsys):
    pack = noise_pack(4)
    full = decode(pack, processes=1)
    settings = Settings(
        seconds=None,
        steps=1,
        images=4,
        digest="",
        masking=SampleMasking(probability=0.5),
        batch=2,
        size=64,
        names=("a",) * 20,
    )
    bank = Bank(pack, full, halve(full, processes=1), torch.device("cpu"))
    trainer = Trainer(settings, bank, torch.device("cpu"), compiled=False)
    trainer.network.train()
    measure(trainer, (pack, full), Log(tmp_path))
    assert "on 4 held-out images" in capsys.readouterr().out
    assert 0 <= float((tmp_path / "log.txt").read_text().split("AP50 ")[1].split()[0]) <= 100
    assert trainer.network.training  # measuring leaves the network as it was
