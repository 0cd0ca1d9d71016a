"""KITTI labels, sound and broken."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import Dataset, open_dataset
from objectseeker.errors import ObjectSeekerError

REST = "-1 -1 -1 -1000 -1000 -1000 -10"


def line(kind: str, box: str = "1.5 2 20 10.25") -> str:
    return f"{kind} 0.00 0 -10 {box} {REST}"


def open_lines(root: Path, *lines: str, strict: bool = False) -> Dataset:
    """Frame 000001 with `lines` and frame 000002 without objects."""
    for folder in ("image_2", "label_2"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for stem, text in (("000001", "\n".join(lines)), ("000002", "")):
        PIL.Image.new("RGB", (60, 20)).save(root / "image_2" / f"{stem}.png")
        (root / "label_2" / f"{stem}.txt").write_text(text)
    return open_dataset(f"kitti:{root}", strict=strict)


def test_types_are_merged_to_three_classes(tmp_path: Path) -> None:
    kinds = ["Car", "Van", "Truck", "Tram", "Pedestrian", "Person_sitting", "Cyclist", "car", "pedestrian", "cyclist"]
    dataset = open_lines(tmp_path, *(line(kind) for kind in kinds), "")
    first, second = dataset.images
    assert dataset.names == ("car", "pedestrian", "cyclist")
    assert first.ground_truth.label.tolist() == [0, 0, 0, 0, 1, 1, 2, 0, 1, 2]
    assert first.ground_truth.xyxy[0].tolist() == [1.5, 2, 20, 10.25]
    assert not first.ignore.any()
    assert (first.id, second.id) == ("000001", "000002")
    assert first.size == (60, 20)
    assert len(second.ground_truth) == 0
    assert dataset.warnings == ()


def test_dont_care_is_ignored_for_every_class(tmp_path: Path) -> None:
    dataset = open_lines(tmp_path, line("DontCare"), line("Cyclist"))
    entry = dataset.images[0]
    assert entry.ground_truth.label.tolist() == [0, 1, 2, 2]
    assert entry.ignore.tolist() == entry.crowd.tolist() == [True, True, True, False]
    assert dataset.objects == 1


def test_misc_is_left_out_and_said_so(tmp_path: Path) -> None:
    dataset = open_lines(tmp_path, line("Misc"), line("Car"))
    assert len(dataset.images[0].ground_truth) == 1
    assert dataset.warnings == ("objects of type Misc skipped: 1",)


def test_training_folder_is_found(tmp_path: Path) -> None:
    inside = open_lines(tmp_path / "training", line("Car"))
    assert open_dataset(f"kitti:{tmp_path}").fingerprint == inside.fingerprint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line("Boat"), "unknown type 'Boat'"),
        (line("Car").rsplit(" ", 1)[0], "has 14 columns"),
        (line("Car") + " 0.9", "has 16 columns"),
        (line("Car", "1 2 three 4"), "'three' where a box coordinate should be a number"),
        (line("Car", "1 2 nan 4"), "'nan' where a box coordinate"),
        (line("Car", "5 2 5 4"), "box of 0 x 2 pixels"),
        (line("DontCare", "5 2 4 4"), "box of -1 x 2 pixels"),
        (line("Car", "60 2 70 4"), "entirely outside its 60x20 image"),
    ],
)
def test_broken_line_is_one_sentence_with_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ObjectSeekerError, match=rf"000001\.txt line 3 .*{words}"):
        open_lines(tmp_path, line("Car"), "", text, strict=True)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    open_lines(tmp_path, line("Car"))
    (tmp_path / "label_2" / "000002.txt").rename(tmp_path / "label_2" / "000003.txt")
    with pytest.raises(ObjectSeekerError, match=r"000003\.txt has no image '000003'"):
        open_dataset(f"kitti:{tmp_path}")
    (tmp_path / "label_2" / "000003.txt").unlink()
    with pytest.raises(ObjectSeekerError, match=r"cannot read .*000002\.txt"):
        open_dataset(f"kitti:{tmp_path}")
    (tmp_path / "label_2").rename(tmp_path / "labels")
    with pytest.raises(ObjectSeekerError, match="no folder label_2"):
        open_dataset(f"kitti:{tmp_path}")
    with pytest.raises(ObjectSeekerError, match="no folder image_2"):
        open_dataset(f"kitti:{tmp_path / 'labels'}")
    with pytest.raises(ObjectSeekerError, match="is not a folder"):
        open_dataset(f"kitti:{tmp_path}/gone")


def test_two_images_of_one_name(tmp_path: Path) -> None:
    open_lines(tmp_path, line("Car"))
    PIL.Image.new("RGB", (60, 20)).save(tmp_path / "image_2" / "000001.jpg")
    with pytest.raises(ObjectSeekerError, match="share one annotation file"):
        open_dataset(f"kitti:{tmp_path}")
