"""Datasets that are never all in memory: folders and lists of images, on disk or at an address."""

import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from observe_job import MASKS, Spots, run_here

from objectseeker import ObjectSeekerError
from objectseeker.datasets import open_dataset
from objectseeker.datasets.dataset import LazySequence
from objectseeker.files import remote
from objectseeker.files.images import expand_image_paths, image_size, load_image, resolve_path, walk_images
from objectseeker.files.remote import Url, is_url
from objectseeker.runs.run import open_run

fsspec = pytest.importorskip("fsspec")


def make_image(seed):
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


NAMES = ["b.png", "a/2.png", "a/1.png", "a.b/x.PNG", "a/deep/0.png"]
ORDER = ["a/1.png", "a/2.png", "a/deep/0.png", "a.b/x.PNG", "b.png"]
OTHERS = ["notes.txt", ".hidden/h.png", "a/.h.png"]


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(NAMES + OTHERS):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(make_image(number))
    return tmp_path / "images"


@pytest.fixture
def in_memory(folder):
    system = fsspec.filesystem("memory")
    for name in NAMES + OTHERS:
        system.pipe(f"/images/{name}", (folder / name).read_bytes())
    yield "memory://images"
    system.rm("/images", recursive=True)


def test_a_folder_is_walked_in_the_order_of_its_paths(folder):
    found = list(walk_images(folder))
    assert [file.relative_to(folder).as_posix() for file in found] == ORDER
    assert found == sorted(found) == expand_image_paths(folder)
    entries = open_dataset(folder).images
    assert isinstance(entries, LazySequence)
    assert [entry.id for entry in entries] == ORDER
    assert [entry.id for entry in entries] == ORDER  # and again
    assert (entries[1].id, entries[-1].id, len(entries)) == ("a/2.png", "b.png", 5)
    assert [entry.id for entry in entries[1:3]] == ["a/2.png", "a/deep/0.png"]
    with pytest.raises(IndexError):
        entries[5]


def test_the_same_folder_at_an_address_is_the_same_dataset(folder, in_memory):
    here, there = open_dataset(folder), open_dataset(in_memory)
    assert [entry.id for entry in there.images] == ORDER
    assert there.fingerprint == here.fingerprint
    for one, other in zip(here.images, there.images, strict=True):
        assert isinstance(other.path, Url)
        assert other.path.name == one.path.name
        assert np.array_equal(one.load(), other.load())
        assert image_size(other.path) == (30, 20)
    assert open_dataset(f"file://{folder}").fingerprint == here.fingerprint


def test_the_store_of_images_at_an_address_is_that_of_the_same_files(folder, in_memory, tmp_path):
    run_here(str(folder), tmp_path / "files")
    run = run_here(in_memory, tmp_path / "memory")
    assert run.complete
    assert str(run.images()[0].path) == "memory:///images/a/1.png"
    for one, other in zip(open_run(tmp_path / "files").images(), run.images(), strict=True):
        assert (one.id, one.observation) == (other.id, other.observation)
    assert np.array_equal(load_image(run.images()[0].path), load_image(folder / "a/1.png"))


def test_an_image_in_an_archive(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for name in NAMES:
            archive.write(folder / name, name)
    dataset = open_dataset(f"zip://::file://{tmp_path}/images.zip")
    assert [entry.id for entry in dataset.images] == ORDER
    assert dataset.fingerprint == open_dataset(folder).fingerprint
    assert np.array_equal(dataset.images[0].load(), load_image(folder / "a/1.png"))


def test_a_list_of_paths_and_addresses(folder, in_memory, tmp_path):
    lines = ["images/b.png", str(folder / "a/1.png"), "memory://images/a/2.png", "", "  images/a.b/x.PNG  "]
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    dataset = open_dataset(f"list:{tmp_path / 'list.txt'}")
    assert [entry.id for entry in dataset.images] == [line.strip() for line in lines if line]
    for entry, name in zip(dataset.images, ["b.png", "a/1.png", "a/2.png", "a.b/x.PNG"], strict=True):
        assert np.array_equal(entry.load(), load_image(folder / name))
    table = pa.table({"path": [line.strip() for line in lines if line]})
    pq.write_table(table, tmp_path / "list.parquet")
    assert open_dataset(f"list:{tmp_path / 'list.parquet'}").fingerprint == dataset.fingerprint
    pq.write_table(table.append_column("id", pa.array([4, 3, 2, 1])), tmp_path / "ids.parquet")
    assert [entry.id for entry in open_dataset(f"list:{tmp_path / 'ids.parquet'}").images] == ["4", "3", "2", "1"]
    fsspec.filesystem("memory").pipe("/images/list.txt", b"a/1.png\nb.png\n")
    remote_list = open_dataset("list:memory://images/list.txt")
    assert [str(entry.path) for entry in remote_list.images] == ["memory://images/a/1.png", "memory://images/b.png"]
    run = run_here(f"list:{tmp_path / 'list.txt'}", tmp_path / "run")
    assert run.complete
    assert len(run.images()) == 4


def test_annotations_here_and_images_at_an_address(folder, in_memory, tmp_path):
    images = [{"id": n, "file_name": name, "width": 30, "height": 20} for n, name in enumerate(NAMES)]
    annotations = [{"image_id": 1, "category_id": 1, "bbox": [2, 3, 10, 11]}]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    here = open_dataset(f"coco:{tmp_path}/truth.json:{folder}")
    there = open_dataset(f"coco:{tmp_path}/truth.json:{in_memory}/")
    for one, other in zip(here.images, there.images, strict=True):
        assert (one.id, one.ground_truth) == (other.id, other.ground_truth)
        assert np.array_equal(one.load(), other.load())
    assert str(there.images[1].path) == "memory://images/a/2.png"
    run = run_here(there.spec, tmp_path / "run")
    assert run.complete
    assert run.images()[1].ground_truth == here.images[1].ground_truth


def test_lists_that_cannot_be_used(tmp_path):
    file = tmp_path / "list.txt"
    for content, named in (
        (b"a.png\nb.png\na.png\n", "lists the image 'a.png' twice"),
        (b"\xff\xfe\n", "not a text file"),
    ):
        file.write_bytes(content)
        with pytest.raises(ObjectSeekerError, match=named):
            open_dataset(f"list:{file}")
    file.write_text("\n\n")
    with pytest.raises(ObjectSeekerError, match="holds no images"):
        open_dataset(f"list:{file}")
    with pytest.raises(ObjectSeekerError, match=r"cannot read the list .*nowhere\.txt: No such file"):
        open_dataset(f"list:{tmp_path / 'nowhere.txt'}")
    pq.write_table(pa.table({"image": ["a"]}), tmp_path / "other.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    for name in ("other.parquet", "torn.parquet"):
        with pytest.raises(ObjectSeekerError, match="is not a Parquet file with a text column path"):
            open_dataset(f"list:{tmp_path / name}")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"path": ["a.png", None]}, "row 2 has the path None; it must be text"),
        ({"path": [1, 2]}, "row 1 has the path 1; it must be text"),
        ({"path": [b"a.png"]}, "row 1 has the path b'a.png'; it must be text"),
        ({"path": [["a.png"]]}, r"row 1 has the path \['a.png'\]"),
        ({"path": [{"path": "a.png"}]}, "row 1 has the path {"),
        ({"path": ["a.png", ""]}, "row 2 has the path ''"),
        ({"path": ["a.png", "b.png"], "id": [1, None]}, "row 2 has the id None"),
        ({"path": ["a.png"], "id": [1.5]}, "row 1 has the id 1.5"),
        ({"path": ["x" * 9999], "id": [b"y" * 9999]}, "row 1 has the id b'yyy"),
        ({"path": ["x" * 9999] * 2}, r"lists the image 'x{79}\.\.\. \(10001 characters\) twice"),
        ({"path": pa.array([280922266305830136], pa.timestamp("ns"))}, "not a Parquet file with a text column path"),
        ({"path": pa.array([4466431480812464300], pa.duration("ns"))}, "not a Parquet file with a text column path"),
        ({"path": pa.array([2**62], pa.duration("s"))}, "not a Parquet file with a text column path"),
    ],
)
def test_parquet_cells_that_name_no_file(tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "list.parquet")
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        open_dataset(f"list:{tmp_path / 'list.parquet'}")
    assert len(str(caught.value)) < 500


def test_a_parquet_path_that_is_not_utf8(tmp_path):
    spoiled = pa.array([b"a\xff.png"]).view(pa.string())
    pq.write_table(pa.table({"path": spoiled}), tmp_path / "list.parquet")
    with pytest.raises(ObjectSeekerError, match="a path or id that is not UTF-8"):
        open_dataset(f"list:{tmp_path / 'list.parquet'}")


def test_an_image_that_a_list_names_and_nobody_has_stops_the_job(folder, tmp_path):
    (tmp_path / "list.txt").write_text("images/b.png\nmemory://images/gone.png\n")
    with pytest.raises(ObjectSeekerError, match=r"memory://images/gone\.png: there is no such file: restore it"):
        run_here(f"list:{tmp_path / 'list.txt'}", tmp_path / "run")
    assert open_run(tmp_path / "run").finished == 1


def test_what_is_read_and_is_no_image_is_broken(in_memory, tmp_path):
    fsspec.filesystem("memory").pipe("/images/b.png", b"no image")
    run = run_here(in_memory, tmp_path / "run")
    assert [(image.id, str(image.path)) for image in run.broken] == [("b.png", "memory:///images/b.png")]
    assert run.complete


def test_storage_that_fails_now_and_then_is_asked_again(folder, in_memory, monkeypatch):
    attempts, working_from = [], remote.ATTEMPTS

    def failing(path, mode="rb", **options):
        attempts.append(path)
        if len(attempts) < working_from:
            raise ConnectionError("try later")
        return real(path, mode, **options)

    system = fsspec.filesystem("memory")
    real = system.open
    monkeypatch.setattr(system, "open", failing)
    monkeypatch.setattr(remote, "RETRY_DELAY", 0)
    assert np.array_equal(load_image("memory://images/b.png"), load_image(folder / "b.png"))
    assert len(attempts) == remote.ATTEMPTS
    monkeypatch.setattr(remote, "ATTEMPTS", working_from - 1)
    attempts.clear()
    with pytest.raises(
        ObjectSeekerError, match=r"cannot read image memory://images/b\.png: ConnectionError: try later"
    ):
        load_image("memory://images/b.png")


def test_addresses_and_paths_are_told_apart(tmp_path):
    for text in ("s3://bucket/a.jpg", "zip://a.png::s3://b/c.zip", "zip::file:///x.zip", "gs://b"):
        assert is_url(text)
        assert str(resolve_path(text)) == text
    for text in ("a.jpg", "/data/a.jpg", "C:\\a.jpg", "C:/a.jpg", "voc:dir:val", "odd::name.jpg"):
        assert not is_url(text)
        assert resolve_path(text) == Path(text).absolute()
    assert Url("zip://a/b.png::s3://b/c.zip").name == "b.png"


def test_what_is_not_there_or_not_installed_is_one_sentence(monkeypatch):
    for spec, named in (
        ("memory://nothing/here", "there is no file or folder memory://nothing/here"),
        ("nowhere://bucket", "nowhere"),
    ):
        with pytest.raises(ObjectSeekerError, match=named):
            open_dataset(spec)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ObjectSeekerError, match=r"needs fsspec: pip install 'objectseeker\[cloud\]'"):
        open_dataset("s3://bucket/images")
    with pytest.raises(ObjectSeekerError, match=r"needs fsspec: pip install 'objectseeker\[cloud\]'"):
        load_image("s3://bucket/image.jpg")


def test_the_manifest_stays_small(folder, tmp_path):
    small = run_here(str(folder), tmp_path / "small", limit=1)
    large = run_here(str(folder), tmp_path / "large")
    sizes = [(run.folder / "run.json").stat().st_size for run in (small, large)]
    assert abs(sizes[0] - sizes[1]) < 10
    settings = json.loads((large.folder / "run.json").read_text())
    assert settings["images"] == 5
    assert settings["observation_settings"]["masks"] == str(MASKS)
    assert settings["detector_fingerprint"] == Spots().fingerprint


def test_a_folder_that_cannot_be_listed_is_not_left_out(folder, monkeypatch):
    real = os.scandir

    def reject_listing(path):
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", reject_listing)
    with pytest.raises(ObjectSeekerError, match=r"cannot list folder .*deep: Permission denied"):
        open_dataset(folder)
