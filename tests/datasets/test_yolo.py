"""YOLO folders and their class names, sound and broken."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import open_dataset
from objectseeker.datasets.yolo import find_names
from objectseeker.errors import ObjectSeekerError

BOX = "1 0.5 0.5 0.25 0.5"


def add(root: Path, stem: str, text: str | None = BOX) -> None:
    image, label = root / "images" / f"{stem}.png", root / "labels" / f"{stem}.txt"
    for path in (image, label):
        path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (80, 20)).save(image)
    if text is not None:
        label.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "classes.txt").write_text("cat\nred panda\n")
    return folder


def test_boxes_in_pixels_and_images_without_objects(root: Path) -> None:
    add(root, "a", f"{BOX}\n\n0 0 0 1e-1 0.2\n")
    add(root, "b", "")
    add(root, "c", None)
    dataset = open_dataset(f"yolo:{root}")
    assert dataset.names == ("cat", "red panda")
    assert [entry.id for entry in dataset.images] == ["a", "b", "c"]
    assert dataset.images[0].ground_truth.xyxy.tolist() == [[30, 5, 50, 15], [-4, -2, 4, 2]]
    assert dataset.images[0].ground_truth.label.tolist() == [1, 0]
    assert dataset.images[0].size == (80, 20)
    assert [len(entry.ground_truth) for entry in dataset.images] == [2, 0, 0]
    assert "kept as annotated: 1, " in dataset.warnings[0]


def test_splits(root: Path) -> None:
    add(root, "train/a")
    add(root, "val/b")
    dataset = open_dataset(f"yolo:{root}:val")
    assert [entry.id for entry in dataset.images] == ["b"]
    assert dataset.warnings == ()
    both = open_dataset(f"yolo:{root}")
    assert [entry.id for entry in both.images] == ["train/a", "val/b"]
    assert both.warnings == (f"all of train, val are read; yolo:{root}:val would read one of them",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 0.5 0.5 0.25", "has 4 columns"),
        ("1 0.1 0.1 0.2 0.2 0.3 0.1", "has 7 columns"),
        ("2 0.5 0.5 0.25 0.5", "has the class '2'; it must be one of 0 to 1"),
        ("-1 0.5 0.5 0.25 0.5", "has the class '-1'"),
        ("1.0 0.5 0.5 0.25 0.5", "has the class '1.0'"),
        ("² 0.5 0.5 0.25 0.5", "has the class '²'"),
        ("1 0.5 half 0.25 0.5", "'half' where cy should be a number"),
        ("1 0.5 inf 0.25 0.5", "'inf' where cy should be a number"),
        ("1 40 10 20 10", "has 40; center and size are fractions"),
        ("1 0.5 0.5 -0.25 0.5", "has -0.25; center and size are fractions"),
        ("1 0.5 0.5 0 0.5", "box of 0 x 10 pixels"),
    ],
)
def test_broken_line_is_one_sentence_with_file_and_line(root: Path, text: str, words: str) -> None:
    add(root, "a", f"{BOX}\n\n{text}")
    with pytest.raises(ObjectSeekerError, match=rf"a\.txt line 3 .*{words}"):
        open_dataset(f"yolo:{root}", strict=True)


def test_missing_files_and_folders(root: Path) -> None:
    with pytest.raises(ObjectSeekerError, match=r"no folder .*images"):
        open_dataset(f"yolo:{root}")
    (root / "images").mkdir()
    with pytest.raises(ObjectSeekerError, match=r"no folder .*labels"):
        open_dataset(f"yolo:{root}")
    add(root, "a")
    with pytest.raises(ObjectSeekerError, match=r"no folder .*images.test"):
        open_dataset(f"yolo:{root}:test")
    with pytest.raises(ObjectSeekerError, match=r"no folder at that path\. Give yolo:DIR"):
        open_dataset(f"yolo:{root}/gone:val")
    (root / "labels" / "other.txt").write_text(BOX)
    with pytest.raises(ObjectSeekerError, match=r"other\.txt has no image of the same name"):
        open_dataset(f"yolo:{root}")
    (root / "labels" / "other.txt").unlink()
    (root / "images" / "a.png").write_bytes(b"broken")
    with pytest.raises(ObjectSeekerError, match=r"a\.png"):
        open_dataset(f"yolo:{root}")


def names(folder: Path, text: str, file: str = "data.yaml") -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    return find_names(folder)


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, red panda, it's]",
        "names: ['cat', \"red panda\", 'it''s']  # three\nval: images",
        "path: x # names: [no]\nnames: [\n  cat,  # a comment, with a comma and ]\n  red panda,\n\n  it's,\n]\nnc: 3",
        "nc: 3\nnames:\n- cat\n- red panda # wide\n- it's\nval: images\n",
        'names:\n  # pets\n  - cat\n  - "red panda"\n  - it\'s\n',
        "names:\n  0: cat\n  1: red panda\n  2: it's # quoted not\nother:\n  3: no\n",
        "names:\r\n  2: it's\r\n  0: cat\r\n  1: red panda\r\n",
        "names: {0: cat, 1: 'red panda', 2: it's}",
        'names: {"0": "cat", "1": "red panda", "2": "it\'s"}',
        "names: # below\n  '0': cat\n  '1': red panda\n  '2': it's\n",
        "\ufeffnames: [cat,red panda,it's]",
    ],
)
def test_names_in_every_usual_form(tmp_path: Path, text: str) -> None:
    assert names(tmp_path, text) == ("cat", "red panda", "it's")


def test_names_stay_text(tmp_path: Path) -> None:
    """YAML takes some of these for values of other types."""
    assert names(tmp_path, "  names: [no, 1e3, 010, null, 2020-01-01, a b\n    c]\n  nc: 6") == (
        *("no", "1e3", "010", "null", "2020-01-01", "a b c"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nnames: *b", r"line 2 cannot be read as YAML: the alias \*a repeats a value"),
        ("a: &a\n  b: *a\nnames: [x]", "the alias"),
        ("base: &base {nc: 1}\n<<: *base\nnames: [x]", "the alias"),
        ("a: " + "[" * 10_000, "nested more than 20 deep"),
        ("- " * 10_000, "nested more than 20 deep"),
        ("names: [" + "x," * 150_000 + "]", "more than 100,000 values"),
        ("names: [a]\n#" + "x" * 1_000_000, "is too large: 1,000,012 characters"),
    ],
)
def test_bombs_are_an_error_at_once(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ObjectSeekerError, match=rf"data\.yaml .*{words}"):
        names(tmp_path, text)


def test_names_of_all_imagenet_classes(tmp_path: Path) -> None:
    assert len(names(tmp_path, "names:\n" + "".join(f"  {i}: class name {i}\n" for i in range(21_841)))) == 21_841


def test_names_with_signs_in_them(tmp_path: Path) -> None:
    assert names(tmp_path, "names:\n  0: c#\n  1: cup, mug\n  2: can/tin (small)\n  3: a:b\n  4: '#1: x'\n") == (
        *("c#", "cup, mug", "can/tin (small)", "a:b", "#1: x"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nc: 3", "has no names"),
        ("names: []", "no class names"),
        ("names:\nnc: 0", "no class names"),
        ("names: ['']", "an empty name for class 0"),
        ("names: coco.names", r"has names: 'coco.names'. Write names: \[a, b\]"),
        ("names: *classes", r"line 1 cannot be read as YAML: the alias \*classes repeats a value; write the value"),
        ("names: [a, [b, c]]", "as the name of class 1"),
        ("names: [a, b", "cannot be read as YAML: expected"),
        ('names: ["a\\nb"]', r"has 'a\\nb' as the name of class 0"),
        ('names: ["\\ud800"]', "as the name of class 0"),
        ('names: ["\\UFFFFFFFF"]', "cannot be read as YAML"),
        ("names: [a, !!python/object/apply:os.getcwd []]", r"a value has the tag .*os.getcwd; remove the tag"),
        ("---\nnames: [a]\n---\nnames: [b]", "line 3 .*found another document"),
        ("[a]: 1", "a key must be text or a number"),
        ("- names", "must hold keys and values, .*got .'names'."),
        ("names: [a]\nx: \x07", "cannot be read as YAML: special characters are not allowed"),
        ("names: [x: 1]", "as the name of class 0"),
        ("names:\n  - a\n  1: b", "line 3 cannot be read as YAML"),
        ("names:\n  0: a\n  2: b", "from 0 to 1, each once"),
        ("names:\n  0: a\n  0: b", "line 3 .*the key '0' occurs twice; remove one"),
        ("names:\n  0: a\n  00: b", "from 0 to 1, each once"),
        ("names: {1: a, 2: b}", "from 0 to 1, each once"),
        ("names:\n  - 0: a", "as the name of class 0"),
        ("names:\n  cat: 0", "numbers its names cat. Number them from 0 to 0, each once"),
        ("names: [? a]", "as the name of class 0"),
        ("nc: 3\nnames: [a, b]", "has nc: '3' but 2 names. Correct one of them"),
    ],
)
def test_names_in_other_forms_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ObjectSeekerError, match=rf"data\.yaml .*{words}"):
        names(tmp_path, text)


def test_where_names_are_looked_for(tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "labels").mkdir(parents=True)
    with pytest.raises(ObjectSeekerError, match=r"neither a data\.yaml with names nor a classes\.txt"):
        find_names(root)
    (tmp_path / "data.yml").write_text("names: [above]")
    (root / "training.yaml").write_text("epochs: 3")
    assert find_names(root) == ("above",)
    (root / "labels" / "classes.txt").write_text("next to labels")
    assert find_names(root) == ("next to labels",)
    assert names(root, "classes", "classes.txt") == ("classes",)
    assert names(root, "names: [only yaml]", "coco8.yaml") == ("only yaml",)
    assert names(root, "names: [data]") == ("data",)


def test_label_tools_classes_file_among_the_labels(root: Path) -> None:
    add(root, "a")
    (root / "classes.txt").rename(root / "labels" / "classes.txt")
    assert open_dataset(f"yolo:{root}").objects == 1


def test_gap_and_repeat_in_classes_file(root: Path) -> None:
    add(root, "a")
    (root / "classes.txt").write_text("cat\n\ndog\n")
    with pytest.raises(ObjectSeekerError, match="line 2 is empty"):
        open_dataset(f"yolo:{root}")
    (root / "classes.txt").write_text("cat\ncat\n")
    with pytest.raises(ObjectSeekerError, match="class 'cat' twice"):
        open_dataset(f"yolo:{root}")
