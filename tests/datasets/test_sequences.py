"""Sequences: MOTChallenge folders, CVAT, boxes.json, and any dataset as frames; tracks stated and linked."""

from __future__ import annotations

import json
from pathlib import Path

import PIL.Image
import pytest

from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets import Dataset, open_dataset
from objectseeker.datasets.dataset import Annotation, ImageRecord
from objectseeker.datasets.sequences import link_by_overlap, natural_sort_key
from objectseeker.errors import ObjectSeekerError

INI = "[Sequence]\nname=street\nimDir=img1\nframeRate=25\nseqLength=3\nimWidth=40\nimHeight=30\nimExt=.png\n"


def frames(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        PIL.Image.new("RGB", (40, 30)).save(folder / name)
    return folder


def mot(
    root: Path, *lines: str, ini: str | None = INI, images: tuple[str, ...] = ("000001", "000002", "000003")
) -> str:
    frames(root / "img1", *(f"{name}.png" for name in images))
    (root / "gt").mkdir(exist_ok=True)
    (root / "gt" / "gt.txt").write_text("\n".join(lines))
    if ini is not None:
        (root / "seqinfo.ini").write_text(ini)
    return f"mot:{root}"


def tracks(dataset: Dataset) -> list[list[int]]:
    return [entry.track.tolist() for entry in dataset.images]


# --- MOTChallenge ---------------------------------------------------------------------------------------------------


def test_mot_has_frames_tracks_and_boxes_counted_from_one(tmp_path: Path) -> None:
    spec = mot(tmp_path / "street", "1,7,2,3,10,20,1,1,0.9", "3,7,4,3,10,20,1,1,1", "2,9,1,1,5,5,1,3,1")
    dataset = open_dataset(spec, strict=True)
    first, second, third = dataset.images
    assert dataset.names == ("pedestrian", "car")
    assert [entry.frame for entry in dataset.images] == [FrameIndex("street", number, 25.0) for number in range(3)]
    assert [entry.id for entry in dataset.images] == ["street/000001", "street/000002", "street/000003"]
    assert first.ground_truth.xyxy.tolist() == [[1, 2, 11, 22]]
    assert second.ground_truth.label.tolist() == [1]
    assert tracks(dataset) == [[7], [9], [7]]
    assert third.size == (40, 30)
    assert dataset.warnings == ()


def test_mot_2015_has_no_classes_and_ten_columns(tmp_path: Path) -> None:
    dataset = open_dataset(mot(tmp_path, "1,7,2,3,10,20,1,-1,-1,-1", "2,8,2,3,10,20,0,-1,-1,-1", "3,7,2,3,10,20"))
    assert dataset.names == ("pedestrian",)
    assert [entry.ignore.tolist() for entry in dataset.images] == [[False], [True], [False]]


def test_mot_forgives_what_the_challenge_forgives(tmp_path: Path) -> None:
    kinds = {2: (True, False), 7: (True, False), 8: (True, False), 12: (True, False), 13: (True, True), 1: (False,) * 2}
    dataset = open_dataset(mot(tmp_path, *(f"1,{kind},2,3,10,20,1,{kind},1" for kind in (*kinds, 9, 10, 11))))
    entry = dataset.images[0]
    assert list(zip(entry.ignore.tolist(), entry.crowd.tolist(), strict=True)) == list(kinds.values())
    assert set(entry.ground_truth.label.tolist()) == {0}
    assert dataset.warnings == (f"occluders skipped: 3, the first: {tmp_path / 'gt' / 'gt.txt'} line 7",)


def test_mot_counts_and_names_what_is_odd(tmp_path: Path) -> None:
    good, file = "1,7,2,3,10,20,1,1,1", tmp_path / "gt" / "gt.txt"
    odd = (
        "x,7,2,3,10,20,1,1,1",
        f"1,{10**20},2,3,10,20",
        "1,8,2,3,10,20,1,77,1",
        "9,8,2,3,10,20,1,1,1",
        "1,7,5,3,10,20,1,1,1",
    )
    spec = mot(tmp_path, good, *odd, "2,7,2,3,nan,20,1,1,1", ini=INI.replace("25", "fast"))
    frames(tmp_path / "img1", "cover.png", "000000.png")
    dataset = open_dataset(spec)
    assert tracks(dataset) == [[7, NO_TRACK], [], []]
    assert dataset.images[0].frame == FrameIndex(tmp_path.name, 0, None)
    for said in (
        f"sequences with unreadable frame rates: 1, the first: {tmp_path / 'seqinfo.ini'}",
        f"images whose names are not frame numbers skipped: 2, the first: {tmp_path / 'img1' / '000000.png'}",
        f"unreadable annotations skipped: 4, the first: {file} line 2",
        f"boxes of missing frames skipped: 1, the first: {file} line 5",
        f"second objects of a track in one frame kept without a track: 1, the first: {file} line 6",
    ):
        assert said in dataset.warnings
    with pytest.raises(ObjectSeekerError, match="frame rate"):
        open_dataset(spec, strict=True)


def test_mot_without_its_side_files(tmp_path: Path) -> None:
    spec = mot(tmp_path, ini=None, images=("3", "10", "9"))
    (tmp_path / "gt" / "gt.txt").unlink()
    dataset = open_dataset(spec)
    assert [entry.frame_number for entry in dataset.images] == [2, 8, 9]
    assert dataset.warnings == (f"sequences without gt/gt.txt read without objects: 1, the first: {tmp_path}",)
    (tmp_path / "seqinfo.ini").write_text("no section")
    assert any("unreadable seqinfo.ini" in said for said in open_dataset(spec).warnings)


def test_mot_reads_a_folder_of_sequences(tmp_path: Path) -> None:
    mot(tmp_path / "train" / "b", "1,1,2,3,10,20,1,1,1")
    mot(tmp_path / "train" / "a", "1,1,2,3,10,20,1,1,1")
    dataset = open_dataset(f"mot:{tmp_path}")
    assert [entry.frame.sequence for entry in dataset.images if entry.frame] == ["train/a"] * 3 + ["train/b"] * 3
    assert open_dataset(f"mot:{tmp_path / 'train'}").images[0].id == "a/000001"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: f"mot:{root / 'nowhere'}", "is not a folder"),
        (lambda root: f"mot:{root}", "there is no sequence"),
        (lambda root: mot(root, ini=INI.replace("img1", "../../x")), "is outside"),
        (lambda root: mot(root, images=("cover",)), "no images that are named by frame numbers"),
        (lambda root: f"boxes:{root}", "there is no sequence"),
        (lambda root: f"cvat:{root}", "names no file and folder"),
        (lambda root: f"cvat:{root / 'a.xml'}:{root / 'x'}", "is not a folder"),
    ],
)
def test_what_is_no_sequence_is_refused(tmp_path: Path, make, said: str) -> None:
    with pytest.raises(ObjectSeekerError, match=said):
        open_dataset(make(tmp_path))


def test_objects_without_tracks_are_linked_by_overlap(tmp_path: Path) -> None:
    lines = ["1,-1,2,3,10,10,1,1,1", "1,-1,20,3,10,10,1,1,1", "2,-1,21,3,10,10,1,1,1", "2,-1,3,3,10,10,1,1,1"]
    assert tracks(open_dataset(mot(tmp_path, *lines))) == [[0, 1], [1, 0], []]


# --- boxes.json -----------------------------------------------------------------------------------------------------


def boxes_json(root: Path, *boxes: object, **more: object) -> str:
    frames(root / "frames", "1.png", "2.png")
    content = {"fps": 10, "frames": ["1.png", "2.png"], "boxes": list(boxes)} | more
    (root / "boxes.json").write_text(json.dumps(content))
    return f"boxes:{root}"


def test_boxes_json(tmp_path: Path) -> None:
    spec = boxes_json(
        tmp_path / "one", [0, 4, "cat", 1, 2, 3.5, 4], [1, 4, "cat", 2, 2, 4, 4], [1, 5, "ant", 1, 1, 9, 9]
    )
    dataset = open_dataset(spec, strict=True)
    assert dataset.names == ("ant", "cat")
    assert tracks(dataset) == [[4], [4, 5]]
    assert dataset.images[1].frame == FrameIndex("one", 1, 10.0)
    assert dataset.images[0].ground_truth.xyxy.tolist() == [[1, 2, 3.5, 4]]
    boxes_json(tmp_path / "two", [0, None, "cat", 1, 2, 3.5, 4], [1, None, "cat", 1, 2, 3.5, 4])
    both = open_dataset(f"boxes:{tmp_path}")
    assert tracks(both) == [[4], [4, 5], [0], [0]]


def test_boxes_json_counts_what_is_odd(tmp_path: Path) -> None:
    odd = (
        [0, 1, "cat", 1, 2, 3],
        "box",
        [0, True, "cat", 1, 2, 3, 4],
        [0, 1, "cat", 1, 2, "x", 4],
        [0, -1, "c", 1, 1, 2, 2],
    )
    spec = boxes_json(
        tmp_path, [0, 1, "cat", 1, 2, 3, 4], *odd, [7, 1, "cat", 1, 2, 3, 4], [1, 1, "cat", 1, 2, 10**400, 4]
    )
    file = tmp_path / "boxes.json"
    dataset = open_dataset(spec)
    assert dataset.objects == 1
    assert dataset.warnings == (
        f"unreadable annotations skipped: 5, the first: {file}, boxes[1]",
        f"boxes of missing frames skipped: 1, the first: {file}, boxes[6]",
        f"boxes with impossible coordinates skipped: 1, the first: {file}, boxes[7]",
    )
    for content in ("[]", "{", '{"frames": 3}'):
        file.write_text(content)
        with pytest.raises(ObjectSeekerError, match=r"boxes\.json"):
            open_dataset(spec)


def test_two_sequences_differ_if_only_their_tracks_do(tmp_path: Path) -> None:
    boxes = [[0, 4, "cat", 1, 2, 3.5, 4], [1, 4, "cat", 2, 2, 4, 4]]
    one = open_dataset(boxes_json(tmp_path / "a", *boxes))
    same = open_dataset(boxes_json(tmp_path / "b" / "a", *boxes))
    other = open_dataset(boxes_json(tmp_path / "c" / "a", boxes[0], [1, 5, *boxes[1][2:]]))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


# --- CVAT -----------------------------------------------------------------------------------------------------------


def cvat(root: Path, tracks_xml: str, *names: str) -> str:
    frames(root / "images", *(names or ("frame_000000.png", "frame_000001.png", "frame_000003.png")))
    (root / "a.xml").write_text(f"<annotations><version>1.1</version>{tracks_xml}</annotations>")
    return f"cvat:{root / 'a.xml'}:{root / 'images'}"


def shape(frame: object, more: str = "", tag: str = "box") -> str:
    return f'<{tag} frame="{frame}" outside="0" occluded="0" xtl="1.5" ytl="2" xbr="10" ybr="12" {more}></{tag}>'


def test_cvat_tracks(tmp_path: Path) -> None:
    gone = shape(1).replace('outside="0"', 'outside="1"')
    first = f'<track id="3" label="car">{shape(0)}{gone}{shape(3)}</track>'
    dataset = open_dataset(cvat(tmp_path, f'{first}<track id="5" label="bus">{shape(1)}</track>'), strict=True)
    assert dataset.names == ("bus", "car")
    assert tracks(dataset) == [[3], [5], [3]]
    assert [entry.frame_number for entry in dataset.images] == [0, 1, 3]
    assert dataset.images[0].ground_truth.xyxy.tolist() == [[1.5, 2, 10, 12]]


def test_cvat_numbers_other_images_by_their_order(tmp_path: Path) -> None:
    dataset = open_dataset(
        cvat(tmp_path, f'<track id="3" label="car">{shape(2)}</track>', "s9.png", "s10.png", "s100.png")
    )
    assert [entry.id for entry in dataset.images] == ["s9", "s10", "s100"]
    assert tracks(dataset) == [[], [], [3]]


def test_cvat_counts_what_is_odd(tmp_path: Path) -> None:
    bad = shape(0).replace('xtl="1.5"', 'xtl="left"'), shape("x"), shape(0).replace("xbr", "other")
    spec = cvat(
        tmp_path, f'<track id="3" label="car">{shape(0)}{shape(7)}{shape(1, tag="polygon")}{"".join(bad)}</track>'
    )
    dataset = open_dataset(spec)
    assert dataset.objects == 1
    assert dataset.warnings[0].startswith(
        "sequences whose frames video: of their folder numbers differently: 1, the first"
    )
    assert [said.split(", the first")[0] for said in dataset.warnings[1:]] == [
        "boxes of missing frames skipped: 1",
        "shapes other than boxes skipped: 1",
        "unreadable annotations skipped: 3",
    ]
    with pytest.raises(ObjectSeekerError, match="frame 7"):
        open_dataset(spec, strict=True)


def test_cvat_for_images_is_refused_with_what_to_do(tmp_path: Path) -> None:
    spec = cvat(tmp_path, '<image id="0" name="a.png"></image>')
    with pytest.raises(ObjectSeekerError, match="Export it as CVAT for video"):
        open_dataset(spec)
    (tmp_path / "a.xml").write_text("<annotation></annotation>")
    with pytest.raises(ObjectSeekerError, match="but CVAT files have 'annotations'"):
        open_dataset(spec)


# --- any dataset as frames -----------------------------------------------------------------------------------------


def test_a_folder_of_frames_in_the_order_of_numbers(tmp_path: Path) -> None:
    frames(tmp_path / "cam" / "left", "f10.png", "f9.png")
    frames(tmp_path / "cam" / "right", "f1.png")
    dataset = open_dataset(f"frames:{tmp_path / 'cam'}")
    assert [entry.id for entry in dataset.images] == ["left/f9.png", "left/f10.png", "right/f1.png"]
    assert [entry.frame for entry in dataset.images] == [
        FrameIndex("left", 0),
        FrameIndex("left", 1),
        FrameIndex("right", 0),
    ]
    assert not dataset.has_ground_truth
    alone = open_dataset(f"frames:{tmp_path / 'cam' / 'left'}")
    assert alone.images[0].frame == FrameIndex("left", 0)


def test_a_folder_in_a_folder_of_its_name_is_another_sequence(tmp_path: Path) -> None:
    frames(tmp_path / "cam", "a.png", "b.png")
    frames(tmp_path / "cam" / "cam", "a.png")
    dataset = open_dataset(f"frames:{tmp_path / 'cam'}")
    found = {entry.id: entry.frame for entry in dataset.images}
    assert found == {"a.png": FrameIndex(".", 0), "b.png": FrameIndex(".", 1), "cam/a.png": FrameIndex("cam", 0)}


def test_names_in_the_order_of_their_numbers() -> None:
    names = ["a9b30", "a10b2", "a10b²", "a10b10", "a", "01", "1"]
    assert sorted(names, key=natural_sort_key) == ["01", "1", "a", "a9b30", "a10b2", "a10b10", "a10b²"]


def test_other_formats_are_linked(tmp_path: Path) -> None:
    frames(tmp_path / "images", "1.png", "2.png")
    for number, x in ((1, 0.5), (2, 0.52)):
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / f"{number}.txt").write_text(f"0 {x} 0.5 0.2 0.4\n")
    (tmp_path / "classes.txt").write_text("cat\n")
    dataset = open_dataset(f"frames:yolo:{tmp_path}")
    assert tracks(dataset) == [[0], [0]]
    assert open_dataset(f"yolo:{tmp_path}").images[0].frame is None


# --- linking --------------------------------------------------------------------------------------------------------


def record(number: int, *boxes: Annotation) -> ImageRecord:
    return ImageRecord(str(number), Path("x"), (99, 99), list(boxes), FrameIndex("s", number))


def box(x: float, name: str = "cat", *, crowd: bool = False) -> Annotation:
    return Annotation(name, (x, 0, x + 10, 10), "", crowd=crowd)


def linked(*records: ImageRecord) -> list[list[int]]:
    return [[box.track for box in record.boxes] for record in link_by_overlap(records)]


def test_the_largest_overlap_is_linked_first() -> None:
    assert linked(record(0, box(0), box(4)), record(1, box(3), box(8))) == [[0, 1], [1, 2]]


def test_a_track_ends_where_nothing_overlaps_and_where_frames_are_missing() -> None:
    assert linked(record(0, box(0)), record(1, box(50)), record(2, box(50)), record(4, box(50))) == [[0], [1], [1], [2]]


@pytest.mark.filterwarnings("error")
def test_impossible_boxes_are_not_linked() -> None:
    odd = Annotation("cat", (float("nan"), 0, float("inf"), 10), "")
    assert linked(record(0, odd, box(0)), record(1, odd, box(0))) == [[0, 1], [2, 1]]


def test_classes_are_not_linked_and_crowds_have_no_track() -> None:
    before = record(0, box(0), box(30, crowd=True))
    assert linked(before, record(1, box(0, "dog"), box(30), box(0, crowd=True))) == [[0, NO_TRACK], [1, 2, NO_TRACK]]
