"""Parts of several images: whatever the order in which images come and whenever it stops, the bytes are the same."""

import contextlib
import itertools
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from observe_job import Spots, content_of, make_dataset, run_here
from store_cases import flip_a_bit, manifest, some_views, truncate

from objectseeker import ObjectSeekerError
from objectseeker.runs import writer
from objectseeker.runs.engines import boxes_to_store
from objectseeker.runs.observe import job_of
from objectseeker.runs.run import open_run
from objectseeker.runs.tables import StoredBoxes
from objectseeker.runs.writer import open_writer

SIZES = [(20, 10), (7, 30), (8, 8), (9, 9), (30, 20), (5, 5), (6, 6)]
MADE = manifest(SIZES, images_per_part=3)
BROKEN = 4


def found_on(index):
    if index == BROKEN:
        return StoredBoxes.unreadable_image(index, "it is torn")
    masks = MADE.observation_settings.masks.masks(*SIZES[index])
    return boxes_to_store(job_of(MADE), index, some_views(index, 1 + len(masks)), masks)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts") / "run"
    with open_writer(folder, MADE) as run:
        for index in range(len(SIZES)):
            run.add(found_on(index))
    return folder


@pytest.fixture
def at_once(monkeypatch):
    """Every image goes to the disk when it comes, as if each took seconds."""
    monkeypatch.setattr(writer, "FLUSH_INTERVAL", -1)


def names(folder):
    return sorted(file.relative_to(folder).as_posix().split("-")[0] for file in folder.rglob("*") if file.is_file())


def test_a_part_holds_its_range_of_images(undisturbed):
    assert names(undisturbed) == [
        "broken/000004", "images.parquet", "lock", "parts/000000", "parts/000001", "parts/000002", "run.json",
    ]  # fmt: skip
    run = open_run(undisturbed)
    assert run.complete
    assert run.indices == [0, 1, 2, 3, 5, 6]
    assert len(run.images()) == 6
    assert not run.has_boxes[BROKEN]
    assert [len(run.files[number]) for number in range(3)] == [1, 1, 1]
    assert run.indices_in_part(1) == [3, 5]
    assert [image.id for image in run.images()] == [f"image {index}" for index in (0, 1, 2, 3, 5, 6)]
    assert [image.id for image in run.images()[3:5]] == ["image 3", "image 5"]
    assert run.images()[-1].observation.width == 6
    alone = manifest(SIZES, images_per_part=1)
    with open_writer(undisturbed.parent / "alone", alone) as one_by_one:
        for index in range(len(SIZES)):
            one_by_one.add(found_on(index))
    for one, other in zip(run.images(), open_run(undisturbed.parent / "alone").images(), strict=True):
        assert one.observation == other.observation


def test_the_bytes_do_not_depend_on_the_order_or_on_what_came_together(undisturbed, at_once, tmp_path):
    rng = np.random.default_rng(0)
    for attempt in range(12):
        out = tmp_path / str(attempt)
        left = rng.permutation(len(SIZES)).tolist()
        while left:
            with open_writer(out, MADE) as run:  # stopped and started again after every few images
                for _ in range(rng.integers(1, 4)):
                    if left:
                        index = left.pop()
                        assert not run.run.is_finished(index)
                        run.add(found_on(index))
            assert [i for i in range(len(SIZES)) if not open_run(out).is_finished(i)] == sorted(left)
            assert len(open_run(out).images()) == len([i for i in range(len(SIZES)) if i not in (*left, BROKEN)])
        assert content_of(out) == content_of(undisturbed)


def test_the_images_can_be_handed_to_another_process(undisturbed):
    images = open_run(undisturbed).images()
    for one, other in zip(pickle.loads(pickle.dumps(images)), images, strict=True):
        assert (one.id, one.observation, one.ground_truth) == (other.id, other.observation, other.ground_truth)


def test_images_of_an_unfinished_part_are_read_from_what_is_pending(at_once, tmp_path):
    with open_writer(tmp_path, MADE) as run:
        run.add(StoredBoxes.join([found_on(2), found_on(1)]))
        run.add(found_on(5))
        run.add(found_on(3))
    assert [name for name in names(tmp_path) if "0" in name] == ["pending/000000", "pending/000001", "pending/000001"]
    run = open_run(tmp_path)
    assert [image.id for image in run.images()] == ["image 1", "image 2", "image 3", "image 5"]
    assert run.finished == 4
    assert not run.complete


def test_a_run_that_is_opened_while_it_is_written_stays_readable(undisturbed, at_once, tmp_path):
    """What was pending when it was opened is in a part when it is read, next to images that are new."""
    with open_writer(tmp_path, MADE) as run:
        run.add(StoredBoxes.join([found_on(2), found_on(1)]))
        reader = open_run(tmp_path).images()
        run.add(found_on(0))
        assert list(tmp_path.glob("pending/*")) == []
        whole = {image.id: image.observation for image in open_run(undisturbed).images()}
        assert {image.id: image.observation for image in reader} == {
            name: whole[name] for name in ("image 1", "image 2")
        }


def test_a_part_that_goes_while_it_is_in_use_is_an_error(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    run = open_run(tmp_path / "run")
    next((tmp_path / "run").glob("parts/000000-*")).unlink()
    with pytest.raises(ObjectSeekerError, match="is gone: run observe again"):
        run.boxes_of_part(0)


def test_cheap_images_are_held_back_and_still_written_when_it_stops(undisturbed, tmp_path):
    stopped = contextlib.suppress(KeyboardInterrupt)
    with stopped, open_writer(tmp_path, MADE) as run:
        run.add(found_on(0))
        assert list(tmp_path.glob("pending/*")) == []
        raise KeyboardInterrupt
    assert open_run(tmp_path).is_finished(0)


def test_stopped_between_a_part_and_what_it_was_made_of(undisturbed, at_once, tmp_path):
    out = tmp_path / "run"
    with open_writer(out, MADE) as run:
        run.add(found_on(0))
        run.add(found_on(1))
    pending = list((out / "pending").iterdir())
    kept_back = tmp_path / "kept"
    shutil.copytree(out / "pending", kept_back)
    with open_writer(out, MADE) as run:
        for index in range(2, len(SIZES)):
            run.add(found_on(index))
    for file in kept_back.iterdir():
        shutil.copy(file, out / "pending")
    run = open_run(out)
    assert sorted(run.orphaned) == sorted(pending)
    assert run.complete
    assert len(list(run.images())) == 6
    with open_writer(out, MADE):
        pass
    assert content_of(out) == content_of(undisturbed)


def test_stopped_when_the_last_image_of_a_part_was_broken(undisturbed, at_once, tmp_path):
    out = tmp_path / "run"
    with open_writer(out, MADE) as run:
        for index in (0, 1, 2, 3, 5, 6):
            run.add(found_on(index))
    (broken,) = undisturbed.glob("broken/*")
    shutil.copy(broken, out / "broken")
    assert open_run(out).complete
    with open_writer(out, MADE):
        pass
    assert content_of(out) == content_of(undisturbed)


def test_a_lost_word_on_a_broken_image_costs_that_image_only(undisturbed, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    next(out.glob("broken/*")).unlink()
    with open_writer(out, MADE) as run:
        assert [index for index in range(len(SIZES)) if not run.run.is_finished(index)] == [BROKEN]
        run.add(found_on(BROKEN))
    assert content_of(out) == content_of(undisturbed)


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, Path.unlink])
def test_a_damaged_part_costs_its_images(undisturbed, tmp_path, harm):
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    harm(next(out.glob("parts/000001-*")))
    assert len(open_run(out).damaged) == (harm is not Path.unlink)
    with open_writer(out, MADE) as run:
        assert [index for index in range(len(SIZES)) if not run.run.is_finished(index)] == [3, 5]
        run.add(found_on(5))
        run.add(found_on(3))
    assert content_of(out) == content_of(undisturbed)


def test_findings_of_two_parts_are_not_taken_for_one(tmp_path):
    with pytest.raises(ValueError, match="too many values"), open_writer(tmp_path, MADE) as run:
        run.add(StoredBoxes.join([found_on(2), found_on(3)]))


def test_a_large_run_has_parts_of_many_images(tmp_path, monkeypatch):
    spec = make_dataset(tmp_path / "images", 7)
    small = run_here(spec, tmp_path / "small")
    monkeypatch.setattr("objectseeker.runs.observe.SMALL_DATASET", 5)
    monkeypatch.setattr("objectseeker.runs.observe.PART_SIZE", 3)
    large = run_here(spec, tmp_path / "large")
    assert (small.manifest.images_per_part, large.manifest.images_per_part) == (1, 3)
    assert len(list((tmp_path / "large").glob("parts/*"))) == 3
    for one, other in zip(small.images(), large.images(), strict=True):
        assert one.observation == other.observation
    fails = Spots()
    fails.names = ("gadget",)
    with pytest.raises(ObjectSeekerError, match=r"detector class 1 was thing, now none \(3 classes, now 1\)"):
        run_here(spec, tmp_path / "large", fails)


def test_records_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("objectseeker.runs.tables.ROW_GROUP_SIZE", 4)
    many = manifest([(n + 1, 9) for n in range(11)])
    with open_writer(tmp_path, many):
        pass
    images = open_run(tmp_path).manifest.images
    assert len(images) == 11
    assert images._parquet.metadata.num_row_groups == 3
    assert [image.size for image in images] == [(n + 1, 9) for n in range(11)]
    assert list(images.ids()) == [f"image {n}" for n in range(11)]
    for place in itertools.chain(range(-11, 11)):
        assert images[place].id == f"image {place % 11}"
    with pytest.raises(IndexError):
        images[11]
