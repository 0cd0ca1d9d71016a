"""Pascal VOC devkits, sound and broken."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import open_dataset
from objectseeker.errors import ObjectSeekerError

SIZE = "<size><width>40</width><height>30</height><depth>3</depth></size>"
FRAME = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>"


def obj(name: str = "dog", frame: str = FRAME, more: str = "") -> str:
    return f"<object><name>{name}</name>{more}{frame}</object>"


def add(year: Path, image_id: str, body: str, *, split: str = "val", suffix: str = ".jpg") -> None:
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (year / folder).mkdir(parents=True, exist_ok=True)
    with (year / "ImageSets" / "Main" / f"{split}.txt").open("a") as listing:
        listing.write(f"{image_id}\n")
    (year / "Annotations" / f"{image_id}.xml").write_text(f"<annotation>{body}</annotation>")
    PIL.Image.new("RGB", (40, 30)).save(year / "JPEGImages" / f"{image_id}{suffix}")


@pytest.fixture
def year(tmp_path: Path) -> Path:
    return tmp_path / "VOCdevkit" / "VOC2007"


def test_boxes_become_half_open_and_difficult_is_ignored(year: Path) -> None:
    frame = "<bndbox><xmax> 8.5 </xmax><xmin>3</xmin><ymin>4</ymin><ymax>9</ymax></bndbox>"
    hand = f"<part><name>hand</name>{frame}</part>"
    add(year, "000012", SIZE + obj() + obj("person", frame, hand) + obj("cat", more="<difficult>1</difficult>"))
    add(year, "000001", SIZE)
    dataset = open_dataset(f"voc:{year}:val")
    first, second = dataset.images
    assert (first.id, second.id) == ("000012", "000001")
    assert first.ground_truth.xyxy.tolist() == [[0, 0, 40, 30], [2, 3, 8.5, 9], [0, 0, 40, 30]]
    assert [dataset.names[label] for label in first.ground_truth.label] == ["dog", "person", "cat"]
    assert first.ignore.tolist() == [False, False, True]
    assert not first.crowd.any()
    assert len(dataset.names) == 20
    assert list(dataset.names) == sorted(dataset.names)
    assert dataset.objects == 2
    assert len(second.ground_truth) == 0
    assert first.size == (40, 30)


def test_devkit_its_parent_and_the_year_itself_are_the_same_dataset(tmp_path: Path, year: Path) -> None:
    add(year, "000001", SIZE + obj())
    fingerprints = {open_dataset(f"voc:{place}:val").fingerprint for place in (tmp_path, year.parent, year)}
    assert len(fingerprints) == 1


def test_several_years_are_joined_and_only_where_they_have_the_split(year: Path) -> None:
    add(year, "000001", SIZE + obj())
    add(year.parent / "VOC2012", "2007_000027", SIZE + obj("cat"))
    add(year.parent / "VOC2011", "2008_000001", SIZE, split="train")
    assert [entry.id for entry in open_dataset(f"voc:{year.parent}:val").images] == ["000001", "2007_000027"]
    add(year.parent / "VOC2012", "000001", SIZE)
    with pytest.raises(ObjectSeekerError, match="lists the image '000001' twice"):
        open_dataset(f"voc:{year.parent}:val")


def test_other_classes_give_the_sorted_names_found(year: Path) -> None:
    add(year, "1", SIZE + obj("zebra") + obj("dog") + obj("ant"))
    assert open_dataset(f"voc:{year}:val").names == ("ant", "dog", "zebra")


def test_size_and_suffix_may_differ(year: Path) -> None:
    add(year, "1", obj(), suffix=".png")
    (entry,) = open_dataset(f"voc:{year}:val").images
    assert entry.size == (40, 30)
    assert entry.path.name == "1.png"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (SIZE + "<object>", "1.xml is not valid XML"),
        ("", "JPEGImages"),
        (SIZE + obj(frame=""), "1.xml, object 1 has no <bndbox>"),
        (SIZE + obj() + obj(frame=FRAME.replace("<xmax>40</xmax>", "")), "object 2 has no <xmax>"),
        (SIZE + obj(frame=FRAME.replace("40", "wide")), "object 1 has 'wide' where xmax should be a number"),
        (SIZE + obj(frame=FRAME.replace("40", "nan")), "where xmax should be a number"),
        (SIZE + obj(frame=FRAME.replace("40", "1_0")), "where xmax should be a number"),
        (SIZE + obj(frame=FRAME.replace("40", "0")), "object 1 has a box of 0 x 30 pixels"),
        (SIZE + obj(frame=FRAME.replace("<xmin>1<", "<xmin>42<").replace("40", "50")), "entirely outside its 40x30"),
        (SIZE + obj(name=""), "object 1 has no <name>"),
        (SIZE + obj(more="<difficult>maybe</difficult>"), "<difficult> 'maybe'; it must be 0 or 1"),
        (SIZE.replace("40", "0") + obj(), "1.xml has <width> 0"),
        (SIZE.replace("40", "1.5") + obj(), "1.xml has <width> 1.5"),
        ("<size/>" + obj(), "1.xml has no <width>"),
    ],
)
def test_broken_annotation_is_one_sentence_with_file_and_place(year: Path, body: str, words: str) -> None:
    add(year, "1", body)
    if not body:
        (year / "JPEGImages" / "1.jpg").unlink()
        PIL.Image.new("RGB", (40, 30)).save(year / "JPEGImages" / "2.jpg")
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        open_dataset(f"voc:{year}:val", strict=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_and_so_entity_bombs_are_refused(year: Path, encoding: str) -> None:
    add(year, "1", SIZE)
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'
    (year / "Annotations" / "1.xml").write_bytes(bomb.encode(encoding))
    with pytest.raises(ObjectSeekerError, match=r"1\.xml declares a document type"):
        open_dataset(f"voc:{year}:val")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00", b"<annotation/><annotation/>", b"&x;", b'<?xml version="1.0" encoding="no-such"?><a/>'],
)
def test_bytes_that_are_no_xml(year: Path, content: bytes) -> None:
    add(year, "1", SIZE)
    (year / "Annotations" / "1.xml").write_bytes(content)
    with pytest.raises(ObjectSeekerError, match=r"1\.xml is not valid XML"):
        open_dataset(f"voc:{year}:val")


def test_missing_files_and_folders(year: Path, tmp_path: Path) -> None:
    add(year, "1", SIZE)
    with pytest.raises(ObjectSeekerError, match=r"no split 'test' in .*; it has val"):
        open_dataset(f"voc:{year}:test")
    with pytest.raises(ObjectSeekerError, match="no ImageSets/Main"):
        open_dataset(f"voc:{year / 'JPEGImages'}:val")
    for spec in (f"voc:{year}", f"voc:{tmp_path}/gone:val", "voc:val", f"voc:{year}:"):
        with pytest.raises(ObjectSeekerError, match="Give voc:VOCDIR:SPLIT"):
            open_dataset(spec)
    (year / "Annotations" / "1.xml").unlink()
    with pytest.raises(ObjectSeekerError, match=r"cannot read .*1\.xml"):
        open_dataset(f"voc:{year}:val")


def test_missing_image_with_a_stated_size(year: Path) -> None:
    add(year, "1", SIZE)
    add(year, "2", SIZE)
    (year / "JPEGImages" / "2.jpg").unlink()
    with pytest.raises(ObjectSeekerError, match=r"image '2' has no file at .*2\.jpg"):
        open_dataset(f"voc:{year}:val")


def test_list_of_one_class_is_no_split(year: Path) -> None:
    add(year, "1", SIZE)
    (year / "ImageSets" / "Main" / "dog_val.txt").write_text("1 -1\n")
    with pytest.raises(ObjectSeekerError, match="class lists are not splits"):
        open_dataset(f"voc:{year}:dog_val")


def test_repeated_and_unreadable_listing(year: Path) -> None:
    add(year, "1", SIZE)
    add(year, "1", SIZE)
    with pytest.raises(ObjectSeekerError, match="lists the image '1' twice"):
        open_dataset(f"voc:{year}:val")
    (year / "ImageSets" / "Main" / "val.txt").write_bytes(b"\xff\xff")
    with pytest.raises(ObjectSeekerError, match=r"val\.txt is not a text file"):
        open_dataset(f"voc:{year}:val")
    (year / "ImageSets" / "Main" / "val.txt").write_text("\n")
    with pytest.raises(ObjectSeekerError, match="holds no images"):
        open_dataset(f"voc:{year}:val")
