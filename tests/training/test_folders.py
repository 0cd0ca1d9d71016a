"""Training data from folders: the pixels, boxes, labels and flags of a dataset as a pack."""

from __future__ import annotations

import io
import json

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("train_builtin", reason="the training program is not part of the package")

from objectseeker.detectors.network.class_names import VOC_20
from train_builtin.folders import read_folder
from train_builtin.pack import main as write_a_pack
from train_builtin.packs import CROWD, DIFFICULT, NORMAL, decode, digest_of, join, read_pack, write_pack

WIDTH, HEIGHT = 80, 60


def make_image(number: int) -> PIL.Image.Image:
    """Flat colors, which survive shrinking and JPEG: left half, and right half."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:, : WIDTH // 2] = 40 * number
    image[:, WIDTH // 2 :] = 255 - 40 * number
    return PIL.Image.fromarray(image)


@pytest.fixture
def coco(tmp_path):
    """Three images; two of the classes have a VOC name, one of them by another name."""
    (tmp_path / "images").mkdir()
    for number in range(3):
        make_image(number).save(tmp_path / "images" / f"{number}.png")
    images = [{"id": n, "file_name": f"{n}.png", "width": WIDTH, "height": HEIGHT} for n in range(3)]
    rows = [
        (0, 7, [8, 6, 40, 30], 0),
        (0, 3, [0, 0, 10, 10], 0),
        (1, 9, [20, 20, 20, 10], 1),
        (1, 9, [4, 8, 12, 16], 0),
    ]
    annotations = [
        {"id": place, "image_id": image, "category_id": category, "bbox": bbox, "iscrowd": crowd}
        for place, (image, category, bbox, crowd) in enumerate(rows)
    ]
    categories = [{"id": 3, "name": "zebra"}, {"id": 7, "name": "couch"}, {"id": 9, "name": "person"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    return f"coco:{tmp_path}/truth.json:{tmp_path}/images"


@pytest.fixture
def voc(tmp_path):
    year = tmp_path / "VOCdevkit" / "VOC2007"
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (year / folder).mkdir(parents=True)
    (year / "ImageSets" / "Main" / "train.txt").write_text("000005\n")
    make_image(2).save(year / "JPEGImages" / "000005.jpg", quality=95)
    objects = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for name, difficult, x1, y1, x2, y2 in (("dog", 0, 1, 1, 40, 60), ("chair", 1, 41, 21, 60, 40))
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    (year / "Annotations" / "000005.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    return f"voc:{tmp_path}/VOCdevkit:train"


def test_coco_classes_become_voc_classes_and_boxes_shrink_with_their_images(coco):
    pack, names = read_folder(coco, longest_side=40, processes=1)
    assert names == VOC_20
    assert pack.names == ["0", "1", "2"]
    assert pack.sizes.tolist() == [[40, 30]] * 3
    assert pack.boxes[0].tolist() == [[names.index("sofa"), 4, 3, 24, 18, NORMAL]]  # no zebra among the VOC classes
    person = names.index("person")
    assert pack.boxes[1].tolist() == [[person, 10, 10, 20, 15, CROWD], [person, 2, 4, 8, 12, NORMAL]]
    assert pack.boxes[2].shape == (0, 6)
    assert pack.boxes[2].dtype == np.float32


def test_own_classes_in_the_order_of_the_dataset(coco):
    pack, names = read_folder(coco, longest_side=40, processes=1, classes=None)
    assert names == ("zebra", "couch", "person")
    assert [rows[:, 0].tolist() for rows in pack.boxes] == [[1, 0], [2, 2], []]


def test_voc_flags_and_pixels(voc):
    pack, _ = read_folder(voc, longest_side=40, processes=1)
    dog, chair = VOC_20.index("dog"), VOC_20.index("chair")
    assert pack.boxes[0].tolist() == [[dog, 0, 0, 20, 30, NORMAL], [chair, 20, 10, 30, 20, DIFFICULT]]
    pixels = decode(pack, processes=1).image(0)
    assert pixels.shape == (30, 40, 3)
    assert abs(pixels[:, :18].astype(int) - 80).max() <= 3
    assert abs(pixels[:, 22:].astype(int) - 175).max() <= 3


def test_small_images_are_not_enlarged_and_turned_ones_are_upright(coco, tmp_path):
    tag = PIL.Image.Exif()
    tag[0x0112] = 6  # stored turned by a quarter
    turned = make_image(1).transpose(PIL.Image.Transpose.ROTATE_90)
    buffer = io.BytesIO()
    turned.save(buffer, "JPEG", quality=95, exif=tag)
    (tmp_path / "images" / "1.png").write_bytes(buffer.getvalue())
    pack, _ = read_folder(coco, longest_side=500, processes=1)
    assert pack.sizes.tolist() == [[WIDTH, HEIGHT]] * 3
    pixels = decode(pack, processes=1).image(1)
    assert abs(pixels[:, :36].astype(int) - 40).max() <= 3


def test_limit_join_and_processes(coco, voc):
    few, _ = read_folder(coco, longest_side=40, processes=2, limit=2)
    other, _ = read_folder(voc, longest_side=64, processes=1)
    both = join([few, other])
    assert both.names == ["0", "1", "000005"]
    assert both.sizes.tolist() == [[40, 30], [40, 30], [64, 48]]
    decode(both, processes=2)


def test_a_training_pack_in_parts_that_says_where_its_images_are_from(coco, tmp_path, monkeypatch, capsys):
    given = [coco, f"{tmp_path}/train.npz", f"{tmp_path}/train.bin", "--longest-side", "40", "--processes", "1"]
    given += ["--format", "avif", "--quality", "60", "--source", "coco-train2017", "--part-size", "0.0005"]
    monkeypatch.setattr("sys.argv", ["pack", *given])
    write_a_pack()
    parts = sorted(tmp_path.glob("train_*.bin"))
    assert "3 images of coco-train2017, 3 boxes" in capsys.readouterr().out
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 500

    pack = read_pack(tmp_path / "train.npz", parts, sources=["voc", "coco-train2017"])
    folder, _ = read_folder(coco, longest_side=40, processes=1)
    assert [rows.tolist() for rows in pack.boxes] == [rows.tolist() for rows in folder.boxes]
    pixels = decode(pack, processes=1).image(1)
    assert abs(pixels[:, :18].astype(int) - 40).max() <= 6
    assert len(read_pack(tmp_path / "train.npz", parts, sources=["voc"])) == 0


@pytest.mark.parametrize("size", ["-1", "0", "0.0000001", "nan", "inf"])
def test_parts_of_no_size_are_refused(coco, tmp_path, monkeypatch, capsys, size):
    monkeypatch.setattr(
        "sys.argv", ["pack", coco, f"{tmp_path}/train.npz", f"{tmp_path}/train.bin", f"--part-size={size}"]
    )
    with pytest.raises(SystemExit):
        write_a_pack()
    assert f"got {size}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "train.npz").exists()


def small_pack(coco, folder, **options):
    pack, _ = read_folder(coco, longest_side=8, processes=1)
    return pack, write_pack(pack, folder / "small.npz", folder / "small.bin", source="voc", **options)


def test_ten_parts_sort_in_order_and_another_order_is_refused(coco, tmp_path):
    size = sum(map(len, read_folder(coco, longest_side=8, processes=1)[0].files))
    pack, parts = small_pack(coco, tmp_path, part_size=size // 10)
    assert len(parts) > 9
    assert sorted(tmp_path.glob("small_*.bin")) == parts
    assert read_pack(tmp_path / "small.npz", parts).files == pack.files
    joined = tmp_path / "all.bin"
    joined.write_bytes(b"".join(pack.files))
    assert read_pack(tmp_path / "small.npz", [joined]).files == pack.files  # where it was cut does not matter
    wrong = [parts[0], parts[9], *parts[1:9], *parts[10:]]
    with pytest.raises(SystemExit, match=r"small.npz are others, or in another order: .*small_01.bin first"):
        read_pack(tmp_path / "small.npz", wrong)


def test_a_pack_without_a_checksum_is_read(coco, tmp_path):
    pack, parts = small_pack(coco, tmp_path)
    with np.load(tmp_path / "small.npz") as stored:
        older = {name: column for name, column in stored.items() if name != "crc"}
    np.savez(tmp_path / "older.npz", **older)
    assert read_pack(tmp_path / "older.npz", parts).files == pack.files


@pytest.fixture
def load(coco, tmp_path):
    """The data that training gets, with a list of images to skip."""
    pytest.importorskip("torch")
    from train_builtin.train import Log, detector_parser, load_data

    def load(listed, *more):
        (tmp_path / "leave-out.txt").write_bytes(listed if isinstance(listed, bytes) else listed.encode())
        given = ["--data", coco, "--leave-out", f"{tmp_path}/leave-out.txt", "--batch", "1", "--processes", "1"]
        return load_data(detector_parser(None).parse_args([*given, *more]), Log(tmp_path))

    return load


@pytest.mark.parametrize("listed", ["1\n", "1.png\n", "\ufeff 1 \t\r\n\r\n1.JPG"])
def test_images_that_a_file_names_are_not_trained_on(load, tmp_path, listed):
    data = load(listed)
    assert data.pack.names == ["0", "2"]
    assert [len(rows) for rows in data.pack.boxes] == [1, 0]
    assert len(data.full.sizes) == 2
    assert "1 of 3 training images omitted" in (tmp_path / "log.txt").read_text()


def test_a_list_of_ids_leaves_out_images_that_packs_call_by_their_files(load, coco, tmp_path):
    pack, _ = small_pack(coco, tmp_path)
    pack.names[:] = ["1.jpg", "9.jpg", "a.b"]
    for source in ("voc", "unknown"):
        parts = write_pack(pack, tmp_path / f"{source}.npz", tmp_path / f"{source}.bin", source=source)
        data = load("1\n9\n", "--pack", f"{tmp_path}/{source}.npz", *map(str, parts))
        assert data.pack.names == (["a.b", "0", "2"] if source == "voc" else ["0", "2"])  # 9.jpg is known, if not used
    with pytest.raises(SystemExit, match="such as 'a': write them"):
        load("a\n", "--pack", f"{tmp_path}/voc.npz", f"{tmp_path}/voc.bin")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("1\n12\n13\n", r"lists names that no training image has \(2 of 3\), such as '12': .* such as '0'"),
        ("0\n1\n2\n", "the data give 0"),
        (b"1\n\xff\xfe\n", "leave-out.txt is not a text file in UTF-8"),
    ],
)
def test_lists_that_cannot_be_meant(load, listed, message):
    with pytest.raises(SystemExit, match=message):
        load(listed)


def test_where_a_limit_hides_images_no_name_is_refused(load):
    assert load("1\n2\n", "--limit", "2").pack.names == ["0"]


def test_other_training_images_have_another_digest(load):
    first, again, second = load("1\n"), load("1.png\n"), load("2\n")
    assert first.settings == again.settings
    assert first.settings["images"] == second.settings["images"] == 2
    assert first.settings["digest"] != second.settings["digest"]
    assert first.digest != digest_of(first.pack, [2, 1])
    first.pack.boxes[0][0, 0] += 1
    assert digest_of(first.pack, first.repeats) != first.digest


def test_mistakes_are_told_in_one_sentence(coco, tmp_path):
    (tmp_path / "images" / "2.png").write_bytes(b"no image")
    for spec, message in (
        (coco, "2.png"),
        ("coco:nowhere.json:images", "nowhere.json"),
        (str(tmp_path / "images"), "no annotations"),
    ):
        with pytest.raises(SystemExit, match=message):
            read_folder(spec, longest_side=40, processes=1)
    with pytest.raises(SystemExit, match="knows none"):
        read_folder(coco, longest_side=40, processes=1, classes=("unicorn",))
