"""The store: what goes in comes out bit for bit, and nothing damaged or foreign comes out at all."""

import hashlib
import itertools
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import (
    DATASET_NAMES,
    DETECTOR_NAMES,
    SETTINGS,
    flip_a_bit,
    manifest,
    some_views,
    store,
    truncate,
    write_boxes,
    write_broken,
)

from objectseeker import Bands, Detections, Halves, ObjectSeekerError, Observation, Pairs
from objectseeker.core.observation import evenly_spaced_lines, keep_lines
from objectseeker.core.recipes import line_positions
from objectseeker.runs.manifest import FORMAT, Manifest, decode_manifest
from objectseeker.runs.run import open_run
from objectseeker.runs.writer import open_writer

NAMES = [field.name for field in fields(Manifest) if field.name != "images"]


@st.composite
def detections(draw):
    count = draw(st.integers(0, 4))
    coordinate = st.floats(-1e8, 1e8)
    rows = [draw(st.tuples(*[st.tuples(coordinate, coordinate).map(sorted)] * 2)) for _ in range(count)]
    boxes = [[x1, y1, x2, y2] for (x1, x2), (y1, y2) in rows]
    scores = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(0, 2**15 - 1), min_size=count, max_size=count))
    return Detections(np.reshape(boxes, (-1, 4)), scores, labels)


def bits(found):
    """Equal only if every float has the same bits: tells 0.0 from -0.0."""
    return found.xyxy.tobytes(), found.score.tobytes(), found.label.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_boxes_come_back_to_the_last_bit_and_in_order(data):
    size = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    made = manifest([size], detector_names=(), dataset_names=(), dataset_labels=None, unmatched_classes=())
    views = [data.draw(detections()) for _ in range(made.observation_settings.masks.forward_passes(*size))]
    with tempfile.TemporaryDirectory() as folder:
        with open_writer(folder, made) as run:
            write_boxes(run, 0, views[0], views[1:])
        (image,) = open_run(folder).images()
    assert [bits(view) for view in (image.observation.base, *image.observation.masked)] == [*map(bits, views)]
    assert image.observation.masks == Halves(2).masks(*size)


def test_the_manifest_comes_back(tmp_path):
    settings = replace(SETTINGS, batch_size=None)
    made = manifest([(20, 10), None], limit=2, observation_settings=settings, images_per_part=7)
    with open_writer(tmp_path / "run", made):
        pass
    found = open_run(tmp_path / "run").manifest
    assert len(found.images) == 2
    assert [image.id for image in found.images] == ["image 0", "image 1"]
    assert found.images[-1].size is None
    assert found.images[0].path == Path("/images/0.jpg")
    assert found.images[0].ground_truth == made.images[0].ground_truth
    assert found.images[0].ignore.tolist() == found.images[0].crowd.tolist() == [False, False, True]
    assert not found.images[0].ignore.flags.writeable
    for name in NAMES:
        assert getattr(found, name) == getattr(made, name)


def test_the_truth_comes_back_without_the_dataset(tmp_path):
    store(tmp_path / "run", manifest())
    (image,) = open_run(tmp_path / "run").images()
    assert (image.id, image.path) == ("image 0", Path("/images/0.jpg"))
    assert image.ground_truth == Detections([[1, 1, 4.1, 5], [0, 0, 3, 3]], [1, 1], [0, 2])  # no horse: it is not known
    assert image.ignore.tolist() == [False, True]
    assert image.crowd.tolist() == [False, True]


def test_boxes_below_the_floors_are_not_stored(tmp_path):
    made = manifest(observation_settings=replace(SETTINGS, base_floor=0.25, mask_floor=0.5))
    (views,) = store(tmp_path / "run", made)
    (image,) = open_run(tmp_path / "run").images()
    assert image.observation.base == views[0].with_min_score(0.25)
    assert list(image.observation.masked) == [view.with_min_score(0.5) for view in views[1:]]
    exactly = Detections([[0, 0, 1, 1]] * 2, [0.25, 0.5], [0, 0])
    with open_writer(tmp_path / "edge", made) as run:
        write_boxes(run, 0, exactly, [exactly] * 8)
    (image,) = open_run(tmp_path / "edge").images()
    assert image.observation.base.score.tolist() == [0.25, 0.5]
    assert [view.score.tolist() for view in image.observation.masked] == [[0.5]] * 8


def test_boxes_keep_the_detectors_labels_and_the_vocabulary_translates(tmp_path):
    made = manifest([(20, 10), (7, 30)])
    stored = store(tmp_path / "run", made)
    run = open_run(tmp_path / "run")
    words = run.label_map
    assert (words.detector_names, words.dataset_names) == (DETECTOR_NAMES, DATASET_NAMES)
    assert words.dataset_labels.tolist() == [2, 0, -1, 0]
    for image, views in zip(run.images(), stored, strict=True):
        assert [image.observation.base, *image.observation.masked] == views
        for view in views:
            known = view[view.label != 2]  # the dataset has no unicorns
            assert words.map_to_dataset(view).label.tolist() == [made.dataset_labels[label] for label in known.label]
    assert any((view.label == 2).any() for views in stored for view in views)  # there were unicorns to keep


def test_without_dataset_classes_labels_stay_the_detectors(tmp_path):
    made = manifest(dataset_names=(), dataset_labels=None, unmatched_classes=())
    (views,) = store(tmp_path / "run", made)
    run = open_run(tmp_path / "run")
    (image,) = run.images()
    assert [image.observation.base, *image.observation.masked] == views
    assert run.label_map.dataset_names == DETECTOR_NAMES
    assert [run.label_map.map_to_dataset(view) for view in views] == views


def test_without_any_class_names_every_label_stays(tmp_path):
    made = manifest(detector_names=(), dataset_names=(), dataset_labels=None, unmatched_classes=())
    seen = Detections([[0, 0, 1, 1]] * 2, [0.5, 0.6], [7, 2**15 - 1])
    with open_writer(tmp_path, made) as run:
        write_boxes(run, 0, seen, [seen] * 8)
    run = open_run(tmp_path)
    assert run.label_map.map_to_dataset(run.images()[0].observation.base) == seen


def test_parts_are_plain_parquet_and_always_the_same_bytes(tmp_path):
    made = manifest([(20, 10), (7, 30)])
    stored = store(tmp_path / "one", made)
    store(tmp_path / "two", made)
    names = sorted(file.name for file in (tmp_path / "one" / "parts").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two" / "parts").iterdir())
    for name in names:
        assert (tmp_path / "one/parts" / name).read_bytes() == (tmp_path / "two/parts" / name).read_bytes()
    table = pq.read_table(tmp_path / "one" / "parts")
    assert table.column_names == ["image", "mask", "x1", "y1", "x2", "y2", "score", "label"]
    assert table.column("image").to_pylist() == [0] * sum(map(len, stored[0])) + [1] * sum(map(len, stored[1]))
    assert table.column("mask").to_pylist()[: len(stored[0][0])] == [-1] * len(stored[0][0])
    assert [str(table.schema.field(name).type) for name in ("x1", "score")] == ["double", "double"]


def test_unfinished_runs_say_so(tmp_path):
    made = manifest([(20, 10), (7, 30), (8, 8)])
    with open_writer(tmp_path / "run", made) as run:
        assert (run.run.finished, run.run.complete) == (0, False)
        views = some_views(0, 9)
        write_boxes(run, 1, views[0], views[1:])
        write_broken(run, 2, "it is torn")
    run = open_run(tmp_path / "run")
    assert (run.finished, run.complete) == (2, False)
    assert [image.id for image in run.images()] == ["image 1"]
    (broken,) = run.broken
    assert (broken.id, broken.reason) == ("image 2", "it is torn")
    assert broken.objects == 1  # of three, one is ignored and one is a horse
    with open_writer(tmp_path / "run", made) as run:
        write_boxes(run, 0, views[0], views[1:])
    assert open_run(tmp_path / "run").complete


def empty(part):
    part.write_bytes(b"")


def call_it_another_image(part):
    part.rename(part.with_name(part.name.replace("000001", "000002")))


def call_it_an_image_that_is_not_there(part):
    part.rename(part.with_name(part.name.replace("000001", "000077")))


@pytest.mark.parametrize(
    "harm", [truncate, empty, flip_a_bit, call_it_another_image, call_it_an_image_that_is_not_there]
)
def test_a_damaged_part_is_named_never_read_and_removed_on_the_next_start(tmp_path, harm):
    made = manifest([(20, 10), (7, 30), (8, 8)])
    store(tmp_path / "run", made)
    harm(next((tmp_path / "run" / "parts").glob("000001-*")))
    run = open_run(tmp_path / "run")
    assert not run.complete
    assert len(run.damaged) == 1
    with pytest.raises(ObjectSeekerError, match=rf"has damaged parts \({run.damaged[0].name}\)"):
        run.images()
    with open_writer(tmp_path / "run", made) as again:
        assert again.run.damaged == run.damaged
    run = open_run(tmp_path / "run")
    assert run.damaged == ()
    assert run.indices == [0, 2]


def test_a_part_of_another_image_is_told_apart(tmp_path):
    store(tmp_path / "run", manifest([(20, 10), (20, 10)]))
    (first,) = (tmp_path / "run/parts").glob("000000-*")
    (second,) = (tmp_path / "run/parts").glob("000001-*")
    second.unlink()
    moved = first.rename(first.with_name(first.name.replace("000000", "000001")))
    run = open_run(tmp_path / "run")
    assert run.damaged == (moved,)
    assert run.finished == 0


def test_a_part_of_another_run_is_told_apart(tmp_path):
    store(tmp_path / "one", manifest([(20, 10), (7, 30)]))
    store(tmp_path / "two", manifest([(20, 10), (7, 30)], detector_fingerprint="other sha256:11"))
    (mine,) = (tmp_path / "one/parts").glob("000001-*")
    (other,) = (tmp_path / "two/parts").glob("000001-*")
    mine.unlink()
    shutil.copy(other, mine.parent)
    assert [file.name for file in open_run(tmp_path / "one").damaged] == [other.name]


def test_a_second_part_for_an_image_is_refused(tmp_path):
    made = manifest()
    store(tmp_path / "run", made, seed=1)
    with open_writer(tmp_path / "run", made) as run:
        views = some_views(2, 9)
        write_boxes(run, 0, views[0], views[1:])
    assert len(open_run(tmp_path / "run").damaged) == 1


def test_damage_while_reading_is_noticed(tmp_path):
    store(tmp_path / "run", manifest())
    run = open_run(tmp_path / "run")
    (part,) = run.files[0]
    flip_a_bit(part)
    with pytest.raises(ObjectSeekerError, match=part.name):
        list(run.images())


def test_every_flipped_byte_of_the_manifest_is_noticed(tmp_path):
    store(tmp_path, manifest())
    content = (tmp_path / "run.json").read_bytes()
    for place in range(0, len(content), 7):
        harmed = bytearray(content)
        harmed[place] ^= 1
        with pytest.raises(ObjectSeekerError, match=r"run\.json is damaged or was edited"):
            decode_manifest(bytes(harmed), Path("run.json"))
    with pytest.raises(ObjectSeekerError, match="damaged"):
        decode_manifest(content[:-1], Path("run.json"))
    with pytest.raises(ObjectSeekerError, match="damaged"):
        decode_manifest(b"", Path("run.json"))


@pytest.mark.parametrize("harm", [truncate, empty, flip_a_bit, Path.unlink])
def test_a_damaged_list_of_images_is_noticed(tmp_path, harm):
    store(tmp_path, manifest([(20, 10), (7, 30)]))
    harm(tmp_path / "images.parquet")
    with pytest.raises(ObjectSeekerError, match=r"images\.parquet is damaged or was edited"):
        open_run(tmp_path)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(tmp_path, other):
    store(tmp_path, manifest())
    content = (tmp_path / "run.json").read_bytes()
    body = content.split(b"\n", 2)[2].replace(b'"format": %d' % FORMAT, b'"format": %d' % other)
    content = b'{\n"sha256": "%s",\n' % hashlib.sha256(body).hexdigest().encode() + body
    with pytest.raises(ObjectSeekerError, match=f"format {other}, this version of objectseeker reads format {FORMAT}"):
        decode_manifest(content, Path("run.json"))


def test_where_there_is_no_run(tmp_path):
    with pytest.raises(ObjectSeekerError, match=r"there is no run in .*nowhere"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ObjectSeekerError, match=r"there is no run in .*file"):
        open_run(tmp_path / "file")


def test_folders_that_hold_something_else_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(ObjectSeekerError, match=r"holds 'thesis\.tex' but no run"), open_writer(tmp_path, manifest()):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ObjectSeekerError, match="cannot write into"), open_writer(tmp_path / "thesis.tex", manifest()):
        pass


def test_two_writers_are_kept_apart(tmp_path):
    made = manifest()
    with open_writer(tmp_path / "run", made):
        with (
            pytest.raises(ObjectSeekerError, match=r"another process is writing .*run"),
            open_writer(tmp_path / "run", made),
        ):
            pass
        assert open_run(tmp_path / "run").finished == 0  # reading is always possible
    with open_writer(tmp_path / "run", made):  # let go of once the first is done
        pass


def test_leftovers_go_and_strangers_stay(tmp_path):
    made = manifest()
    store(tmp_path / "run", made)
    before = open_run(tmp_path / "run")
    for name in (
        "run.json.partial",
        "images.parquet.partial",
        "parts/000000-0011223344556677.parquet.partial",
        "parts/.DS_Store",
        "my.partial",
    ):
        (tmp_path / "run" / name).write_bytes(b"half")
    assert open_run(tmp_path / "run").complete
    with open_writer(tmp_path / "run", made):
        pass
    assert {file.name for file in (tmp_path / "run").rglob("*") if file.is_file()} == {
        "run.json", "images.parquet", "lock", ".DS_Store", "my.partial", before.files[0][0].name,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "label", "most"),
    [(DETECTOR_NAMES, 4, "0 to 3"), (DETECTOR_NAMES, -1, "0 to 3"), ((), 2**15, "0 to 32767")],
)
def test_labels_without_a_name_are_refused_before_hours_are_spent(tmp_path, names, label, most):
    with open_writer(tmp_path / "run", manifest(detector_names=names)) as run:
        strange = Detections([[0, 0, 1, 1]], [1], [label])
        with pytest.raises(ObjectSeekerError, match=f"labels {label} to {label}.* {most}"):
            write_boxes(run, 0, strange, [])


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    def write():
        with open_writer(tmp_path / "run", manifest()) as run:
            monkeypatch.setattr("os.fsync", full)
            write_boxes(run, 0, Detections.empty(), [Detections.empty()] * 8)

    with pytest.raises(ObjectSeekerError, match=r"cannot write .*000000-.*: No space left on device"):
        write()
    assert open_run(tmp_path / "run").finished == 0


@given(st.integers(1, 60).flatmap(lambda stored: st.tuples(st.just(stored), st.integers(1, stored))))
def test_a_subset_of_lines_is_as_even_as_the_lines_allow(case):
    stored, count = case
    chosen = evenly_spaced_lines(stored, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert 1 <= chosen[0] <= chosen[-1] <= stored
    # Every line is the nearest one to its ideal place.
    assert all(abs(line - t * (stored + 1) / (count + 1)) <= 0.5 for t, line in enumerate(chosen, start=1))


def test_more_lines_than_observed_are_refused():
    with pytest.raises(ObjectSeekerError, match="at most 2, as many as were observed: got 3"):
        evenly_spaced_lines(2, 3)
    with pytest.raises(ObjectSeekerError, match="at least 1: got 0"):
        keep_lines(observed(50, 40, 2), 0)


def observed(width, height, lines, seed=0):
    masks = Halves(lines).masks(width, height)
    views = some_views(seed, 1 + len(masks))
    return Observation(width, height, masks, views[0], views[1:])


@pytest.mark.parametrize(("lines", "fewer"), [(29, 14), (29, 9), (5, 1), (3, 3)])
def test_restricted_to_lines_that_divide_it_is_what_fewer_lines_would_have_seen(lines, fewer):
    everything = observed(333, 500, lines)
    found = keep_lines(everything, fewer)
    assert found.masks == Halves(fewer).masks(333, 500)
    view_of = dict(zip(everything.masks.keys, everything.masked, strict=True))
    assert list(found.masked) == [view_of[key] for key in found.masks.keys]
    assert found.base == everything.base


def test_restricted_uses_stored_lines_only_both_sides_of_each_on_both_axes():
    found = keep_lines(observed(333, 500, 30), 12)
    assert len(found.masks) == 48
    for side, length in ((0, 333), (1, 500), (2, 333), (3, 500)):
        lines = found.masks.rectangle[found.masks.is_line[:, side], side]
        assert [line_positions(length, 30).index(line) + 1 for line in lines] == evenly_spaced_lines(30, 12)


def test_restricted_keeps_all_lines_of_an_axis_that_has_few():
    for width, height in itertools.product((1, 2, 4, 40), repeat=2):
        found = keep_lines(observed(width, height, 30), 3)
        for sides, length in (((0, 2), width), ((1, 3), height)):
            counts = [int(found.masks.is_line[:, side].sum()) for side in sides]
            assert counts == [min(3, length - 1)] * 2


def test_bands_have_no_lines_to_choose_from():
    masks = (Halves(5) + Bands(0.01)).masks(50, 40)
    views = [Detections.empty()] * len(masks)
    with pytest.raises(ObjectSeekerError, match="only half masks and pairs of them can be restricted"):
        keep_lines(Observation(50, 40, masks, Detections.empty(), views), 2)


def test_a_run_of_pairs_comes_back_and_can_be_restricted(tmp_path):
    made = manifest([(50, 40)], observation_settings=replace(SETTINGS, masks=Pairs(5)))
    (views,) = store(tmp_path, made, seed=3)
    run = open_run(tmp_path)
    (image,) = run.images()
    assert image.observation.masks == pairs(50, 40, 5)
    assert list(image.observation.masked) == views[1:]
    fewer = keep_lines(image.observation, 2)  # lines 2 and 4 of 5 are those of 2 lines
    expected = pairs(50, 40, 2)
    assert fewer.masks == expected
    where = {key: m for m, key in enumerate(image.observation.masks.keys)}
    for key, seen in zip(expected.keys, fewer.masked, strict=True):
        assert seen == image.observation.masked[where[key]]
    others = open_writer(tmp_path, manifest([(50, 40)], observation_settings=replace(SETTINGS, masks=Halves(5))))
    with pytest.raises(ObjectSeekerError, match="masks was pairs:5, now halves:5"), others:
        pass


@pytest.mark.parametrize("masks", [Bands(0.01, spacing=0.5), Bands(0.02, aspect=2.0), Halves(3) + Bands(0.01)])
def test_a_run_of_any_recipe_comes_back(tmp_path, masks):
    made = manifest([(50, 40), (9, 30)], observation_settings=replace(SETTINGS, masks=masks, fill=0))
    stored = store(tmp_path, made)
    run = open_run(tmp_path)
    assert run.manifest.observation_settings == made.observation_settings
    for image, views in zip(run.images(), stored, strict=True):
        assert image.observation.masks == masks.masks(image.observation.width, image.observation.height)
        assert [image.observation.base, *image.observation.masked] == views


def test_a_part_that_cannot_be_read_now_is_an_error_and_stays(tmp_path, monkeypatch):
    """No permission, a network disk that is away: only damage is removed and computed again."""
    store(tmp_path / "run", manifest(((20, 10), (20, 10))))
    parts = sorted((tmp_path / "run" / "parts").iterdir())
    real = Path.read_bytes

    def fail(self):
        if self == parts[0]:
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", fail)
    folder = parts[0].parents[1]
    with pytest.raises(ObjectSeekerError, match="Permission denied; it was left unchanged"):
        open_run(folder)
    monkeypatch.undo()
    assert parts[0].exists()
    assert not open_run(folder).damaged


def test_a_pending_file_that_goes_while_a_run_is_opened_is_looked_for_again(tmp_path, monkeypatch):
    store(tmp_path / "run", manifest(((20, 10), (20, 10))))
    parts = sorted((tmp_path / "run" / "parts").iterdir())
    real, gone = Path.read_bytes, []

    def vanish_once(self):
        if self == parts[0] and not gone:
            gone.append(self)
            raise FileNotFoundError(2, "No such file or directory")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", vanish_once)
    assert not open_run(parts[0].parents[1]).damaged
    assert gone


def test_a_run_in_a_folder_whose_name_is_not_utf8_is_one_sentence(tmp_path):
    folder = tmp_path / "\udcff"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes no such name")
    with pytest.raises(ObjectSeekerError, match="the path of a run must be UTF-8"):
        store(folder / "run", manifest([(9, 9)]))
