"""The store: what goes in comes out to the last bit, and nothing damaged or foreign comes out at all."""

import hashlib
import io
import itertools
import json
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, ObjectSeekerError, Observation, halves
from cases import pairs
from objectseeker.core.recipes import line_positions
from objectseeker.datasets import relabel
from objectseeker.runs.engines.work import kept
from objectseeker.runs.findings import Findings
from objectseeker.runs.findings import encode as encode_part
from objectseeker.runs.listing import Written
from objectseeker.runs.manifest import ImageRecord, Manifest, decode, encode
from objectseeker.runs.observe import job_of
from objectseeker.runs.run import line_subset, open_run, restrict
from objectseeker.runs.writer import writing

SETTINGS = [field.name for field in fields(Manifest) if field.name != "images"]
DETECTOR_NAMES = ("dog", "cat", "unicorn", "kitten")
DATASET_NAMES = ("cat", "horse", "dog")


def manifest(sizes=((20, 10),), **changes):
    truth = Detections([[1, 1, 4.1, 5], [2, 2, 6, 7.3], [0, 0, 3, 3]], np.ones(3), [0, 1, 2])
    ignore, crowd = np.array([False, False, True]), np.array([False, False, True])
    images = tuple(
        ImageRecord(f"image {number}", Path(f"/images/{number}.jpg"), size, truth, ignore, crowd)
        for number, size in enumerate(sizes)
    )
    made = Manifest(
        detector="toy sha256:00ff",
        detector_names=DETECTOR_NAMES,
        lines=2,
        masks="halves",
        fill=114,
        batch=8,
        base_floor=0.0,
        mask_floor=0.0,
        dataset="coco:somewhere",
        dataset_identity="abc",
        dataset_names=DATASET_NAMES,
        limit=None,
        to_dataset=(2, 0, -1, 0),
        excluded=("horse",),
        software={"python": "3.11.0", "numpy": "2.0.0"},
        images=images,
    )
    return replace(made, **changes)


def some_views(seed, count, most=5):
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(count):
        boxes = rng.integers(0, most + 1)
        corner = rng.normal(0, 10, (boxes, 2))
        size = rng.exponential(5, (boxes, 2))
        views.append(
            Detections(
                np.hstack([corner, corner + size]), rng.random(boxes), rng.integers(0, len(DETECTOR_NAMES), boxes)
            )
        )
    return views


def write_boxes(writer, index, base, masked):
    made = writer.run.manifest
    writer.add(kept(job_of(made), index, made.images[index].size, base, masked))


def write_broken(writer, index, reason):
    writer.add(Findings.unreadable(index, reason))


def store(folder, made, seed=0):
    """A finished run of made-up views; gives the views of each image."""
    kept = []
    with writing(folder, made) as run:
        for index, record in enumerate(made.images):
            views = some_views(seed + index, 1 + len(halves(*record.size, made.lines)))
            write_boxes(run, index, views[0], views[1:])
            kept.append(views)
    return kept


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
    made = manifest([size], detector_names=(), dataset_names=(), to_dataset=None, excluded=())
    views = [data.draw(detections()) for _ in range(1 + len(halves(*size, made.lines)))]
    with tempfile.TemporaryDirectory() as folder:
        with writing(folder, made) as run:
            write_boxes(run, 0, views[0], views[1:])
        (image,) = open_run(folder).images()
    assert [bits(view) for view in (image.observation.base, *image.observation.masked)] == [*map(bits, views)]
    assert image.observation.masks == halves(*size, made.lines)


def test_the_manifest_comes_back(tmp_path):
    made = manifest([(20, 10), None], limit=2, batch=None, images_per_part=7)
    with writing(tmp_path / "run", made):
        pass
    found = open_run(tmp_path / "run").manifest
    assert len(found.images) == 2
    assert [image.id for image in found.images] == ["image 0", "image 1"]
    assert found.images[-1].size is None
    assert found.images[0].path == Path("/images/0.jpg")
    assert found.images[0].truth == made.images[0].truth
    assert found.images[0].ignore.tolist() == found.images[0].crowd.tolist() == [False, False, True]
    assert not found.images[0].ignore.flags.writeable
    for name in SETTINGS:
        assert getattr(found, name) == getattr(made, name)


def test_the_truth_comes_back_without_the_dataset(tmp_path):
    store(tmp_path / "run", manifest())
    (image,) = open_run(tmp_path / "run").images()
    assert (image.id, image.path) == ("image 0", Path("/images/0.jpg"))
    assert image.truth == Detections([[1, 1, 4.1, 5], [0, 0, 3, 3]], [1, 1], [0, 2])  # no horse: it is not known
    assert image.ignore.tolist() == [False, True]
    assert image.crowd.tolist() == [False, True]


def test_boxes_below_the_floors_are_not_stored(tmp_path):
    made = manifest(base_floor=0.25, mask_floor=0.5)
    (views,) = store(tmp_path / "run", made)
    (image,) = open_run(tmp_path / "run").images()
    known = np.array(made.to_dataset)
    assert image.observation.base == relabel(views[0].at_least(0.25), known)
    assert list(image.observation.masked) == [relabel(view.at_least(0.5), known) for view in views[1:]]
    exactly = Detections([[0, 0, 1, 1]] * 2, [0.25, 0.5], [0, 0])
    with writing(tmp_path / "edge", made) as run:
        write_boxes(run, 0, exactly, [exactly] * 8)
    (image,) = open_run(tmp_path / "edge").images()
    assert image.observation.base.score.tolist() == [0.25, 0.5]
    assert [view.score.tolist() for view in image.observation.masked] == [[0.5]] * 8


def test_labels_are_translated_view_by_view(tmp_path):
    made = manifest([(20, 10), (7, 30)])
    stored = store(tmp_path / "run", made)
    run = open_run(tmp_path / "run")
    assert run.manifest.names == DATASET_NAMES
    for image, views in zip(run.images(), stored, strict=True):
        expected = [relabel(view, np.array(made.to_dataset)) for view in views]
        assert [image.observation.base, *image.observation.masked] == expected
    assert any((view.label == 2).any() for views in stored for view in views)  # there were unicorns to drop


def test_without_dataset_classes_labels_stay_the_detectors(tmp_path):
    made = manifest(dataset_names=(), to_dataset=None, excluded=())
    (views,) = store(tmp_path / "run", made)
    run = open_run(tmp_path / "run")
    (image,) = run.images()
    assert [image.observation.base, *image.observation.masked] == views
    assert run.manifest.names == DETECTOR_NAMES


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
    with writing(tmp_path / "run", made) as run:
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
    with writing(tmp_path / "run", made) as run:
        write_boxes(run, 0, views[0], views[1:])
    assert open_run(tmp_path / "run").complete


def truncate(part):
    part.write_bytes(part.read_bytes()[:-7])


def empty(part):
    part.write_bytes(b"")


def flip_a_bit(part):
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 4
    part.write_bytes(content)


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
    with writing(tmp_path / "run", made) as again:
        assert again.run.damaged == run.damaged
    run = open_run(tmp_path / "run")
    assert run.damaged == ()
    assert sorted(run.parts) == [0, 2]


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
    store(tmp_path / "two", manifest([(20, 10), (7, 30)], detector="other sha256:11"))
    (mine,) = (tmp_path / "one/parts").glob("000001-*")
    (other,) = (tmp_path / "two/parts").glob("000001-*")
    mine.unlink()
    shutil.copy(other, mine.parent)
    assert [file.name for file in open_run(tmp_path / "one").damaged] == [other.name]


def test_a_second_part_for_an_image_is_refused(tmp_path):
    made = manifest()
    store(tmp_path / "run", made, seed=1)
    with writing(tmp_path / "run", made) as run:
        views = some_views(2, 9)
        write_boxes(run, 0, views[0], views[1:])
    assert len(open_run(tmp_path / "run").damaged) == 1


def test_damage_while_reading_is_noticed(tmp_path):
    store(tmp_path / "run", manifest())
    run = open_run(tmp_path / "run")
    flip_a_bit(run.parts[0])
    with pytest.raises(ObjectSeekerError, match=run.parts[0].name):
        list(run.images())


def test_every_flipped_byte_of_the_manifest_is_noticed():
    content, _ = encode(manifest(), Written(1, "00"))
    for place in range(0, len(content), 7):
        harmed = bytearray(content)
        harmed[place] ^= 1
        with pytest.raises(ObjectSeekerError, match=r"run\.json is damaged or was edited"):
            decode(bytes(harmed), Path("run.json"))
    with pytest.raises(ObjectSeekerError, match="damaged"):
        decode(content[:-1], Path("run.json"))
    with pytest.raises(ObjectSeekerError, match="damaged"):
        decode(b"", Path("run.json"))


@pytest.mark.parametrize("harm", [truncate, empty, flip_a_bit, Path.unlink])
def test_a_damaged_list_of_images_is_noticed(tmp_path, harm):
    store(tmp_path, manifest([(20, 10), (7, 30)]))
    harm(tmp_path / "images.parquet")
    with pytest.raises(ObjectSeekerError, match=r"images\.parquet is damaged or was edited"):
        open_run(tmp_path)


def test_another_format_is_refused():
    content, _ = encode(manifest(), Written(1, "00"))
    body = content.split(b"\n", 2)[2].replace(b'"format": 3', b'"format": 4')
    content = b'{\n"sha256": "%s",\n' % hashlib.sha256(body).hexdigest().encode() + body
    with pytest.raises(ObjectSeekerError, match="format 4, this objectseeker reads format 3"):
        decode(content, Path("run.json"))


def write_old(folder, made, written_as, views, broken):
    """A run as versions before images.parquet wrote it: the images in run.json, a part without metadata for each."""
    settings = {"format": written_as} | {name: getattr(made, name) for name in SETTINGS if name != "images_per_part"}
    if written_as == 1:
        del settings["masks"]
    images = [
        {
            "id": image.id,
            "path": str(image.path),
            "width": image.size[0],
            "height": image.size[1],
            "truth": image.truth.xyxy.tolist(),
            "label": image.truth.label.tolist(),
            "ignore": image.ignore.tolist(),
            "crowd": image.crowd.tolist(),
        }
        for image in made.images
    ]
    body = json.dumps(settings | {"images": images})[1:].encode()
    identity = hashlib.sha256(body).hexdigest()
    (folder / "parts").mkdir(parents=True)
    (folder / "broken").mkdir()
    (folder / "run.json").write_bytes(b'{\n"sha256": "%s",\n' % identity.encode() + body)

    def name(index, content):
        return f"{index:06d}-{hashlib.sha256(f'{identity} {index}'.encode() + bytes([10]) + content).hexdigest()[:16]}"

    for index, found in enumerate(views):
        findings = Findings.of_image(index, (0, 0), found)
        table = pq.read_table(io.BytesIO(encode_part(findings))).replace_schema_metadata(None)
        sink = io.BytesIO()
        pq.write_table(table, sink, store_schema=False)
        (folder / "parts" / f"{name(index, sink.getvalue())}.parquet").write_bytes(sink.getvalue())
    for index, reason in broken.items():
        content = json.dumps({"image": index, "reason": reason}).encode()
        (folder / "broken" / f"{name(index, content)}.json").write_bytes(content)


@pytest.mark.parametrize("written_as", [1, 2])
def test_runs_of_earlier_formats_are_read_and_gone_on_with(tmp_path, written_as):
    made = manifest([(20, 10), (7, 30), (8, 8), (9, 9)])
    stored = store(tmp_path / "new", made)
    write_old(tmp_path / "old", made, written_as, stored[:2], {3: "it is torn"})
    old = open_run(tmp_path / "old")
    assert old.manifest.masks == "halves"
    assert (old.finished, old.complete, old.damaged) == (3, False, ())
    assert [(broken.id, broken.reason) for broken in old.broken] == [("image 3", "it is torn")]
    with writing(tmp_path / "old", made) as writer:
        assert [index for index in range(4) if not writer.run.is_finished(index)] == [2]
        write_boxes(writer, 2, stored[2][0], stored[2][1:])
    old = open_run(tmp_path / "old")
    assert old.complete
    for before, now in zip(old.images(), open_run(tmp_path / "new").images()[:3], strict=True):
        assert before.observation == now.observation
        assert (before.id, before.path, before.truth) == (now.id, now.path, now.truth)


def test_where_there_is_no_run(tmp_path):
    with pytest.raises(ObjectSeekerError, match=r"there is no run in .*nowhere"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ObjectSeekerError, match=r"there is no run in .*file"):
        open_run(tmp_path / "file")


def test_folders_that_hold_something_else_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(ObjectSeekerError, match=r"holds 'thesis\.tex' but no run"), writing(tmp_path, manifest()):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ObjectSeekerError, match="cannot write into"), writing(tmp_path / "thesis.tex", manifest()):
        pass


def test_two_writers_are_kept_apart(tmp_path):
    made = manifest()
    with writing(tmp_path / "run", made):
        with (
            pytest.raises(ObjectSeekerError, match=r"another process is writing .*run"),
            writing(tmp_path / "run", made),
        ):
            pass
        assert open_run(tmp_path / "run").finished == 0  # reading is always possible
    with writing(tmp_path / "run", made):  # let go of once the first is done
        pass


def test_leftovers_go_and_strangers_stay(tmp_path):
    made = manifest()
    store(tmp_path / "run", made)
    before = open_run(tmp_path / "run")
    for name in (
        "run.json.tmp",
        "images.parquet.tmp",
        "parts/000000-0011223344556677.parquet.tmp",
        "parts/.DS_Store",
        "my.tmp",
    ):
        (tmp_path / "run" / name).write_bytes(b"half")
    assert open_run(tmp_path / "run").complete
    with writing(tmp_path / "run", made):
        pass
    assert {file.name for file in (tmp_path / "run").rglob("*") if file.is_file()} == {
        "run.json", "images.parquet", "lock", ".DS_Store", "my.tmp", before.parts[0].name,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "label", "most"),
    [(DETECTOR_NAMES, 4, "0 to 3"), (DETECTOR_NAMES, -1, "0 to 3"), ((), 2**15, "0 to 32767")],
)
def test_labels_without_a_name_are_refused_before_hours_are_spent(tmp_path, names, label, most):
    with writing(tmp_path / "run", manifest(detector_names=names)) as run:
        strange = Detections([[0, 0, 1, 1]], [1], [label])
        with pytest.raises(ObjectSeekerError, match=f"labels {label} to {label}.* {most}"):
            write_boxes(run, 0, strange, [])


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with writing(tmp_path / "run", manifest()) as run:
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(ObjectSeekerError, match=r"cannot write .*000000-.*: No space left on device"):
            write_boxes(run, 0, Detections.empty(), [Detections.empty()] * 8)
    assert open_run(tmp_path / "run").finished == 0


@given(st.integers(1, 60).flatmap(lambda stored: st.tuples(st.just(stored), st.integers(1, stored))))
def test_a_subset_of_lines_is_as_even_as_the_lines_allow(case):
    stored, count = case
    chosen = line_subset(stored, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert 1 <= chosen[0] <= chosen[-1] <= stored
    # Every line is the nearest one to its ideal place.
    assert all(abs(line - t * (stored + 1) / (count + 1)) <= 0.5 for t, line in enumerate(chosen, start=1))


def test_more_lines_than_observed_are_refused(tmp_path):
    store(tmp_path / "run", manifest())
    with pytest.raises(ObjectSeekerError, match="at most 2, as many as were observed, got 3"):
        open_run(tmp_path / "run").images(lines=3)
    with pytest.raises(ObjectSeekerError, match="at least 1, got 0"):
        open_run(tmp_path / "run").images(lines=0)


def observed(width, height, lines, seed=0):
    masks = halves(width, height, lines)
    views = some_views(seed, 1 + len(masks))
    return Observation(width, height, masks, views[0], views[1:])


@pytest.mark.parametrize(("lines", "fewer"), [(29, 14), (29, 9), (5, 1), (3, 3)])
def test_restricted_to_lines_that_divide_it_is_what_fewer_lines_would_have_seen(lines, fewer):
    everything = observed(333, 500, lines)
    found = restrict(everything, fewer)
    assert found.masks == halves(333, 500, fewer)
    view_of = {tuple(r): view for r, view in zip(everything.masks.removed.tolist(), everything.masked, strict=True)}
    assert list(found.masked) == [view_of[tuple(r)] for r in found.masks.removed.tolist()]
    assert found.base == everything.base


def test_restricted_uses_stored_lines_only_both_sides_of_each_on_both_axes():
    found = restrict(observed(333, 500, 30), 12)
    assert len(found.masks) == 48
    for side, length in ((0, 333), (1, 500), (2, 333), (3, 500)):
        lines = found.masks.line[found.masks.side == side]
        assert [line_positions(length, 30).index(line) + 1 for line in lines] == line_subset(30, 12)


def test_restricted_keeps_all_lines_of_an_axis_that_has_few():
    for width, height in itertools.product((1, 2, 4, 40), repeat=2):
        found = restrict(observed(width, height, 30), 3)
        for sides, length in (((0, 2), width), ((1, 3), height)):
            counts = [int((found.masks.side == side).sum()) for side in sides]
            assert counts == [min(3, length - 1)] * 2


def test_a_run_restricted_is_its_observations_restricted(tmp_path):
    store(tmp_path / "run", manifest([(200, 100), (2, 30)], lines=11))
    run = open_run(tmp_path / "run")
    for whole, part in zip(run.images(), run.images(lines=4), strict=True):
        assert part.observation == restrict(whole.observation, 4)
        assert part.observation != whole.observation


def test_a_run_of_pairs_comes_back_and_can_be_restricted(tmp_path):
    made = manifest([(50, 40)], masks="pairs", lines=5)
    views = some_views(3, 1 + len(pairs(50, 40, 5)))
    with writing(tmp_path, made) as run:
        write_boxes(run, 0, views[0], views[1:])
    run = open_run(tmp_path)
    (image,) = run.images()
    assert image.observation.masks == pairs(50, 40, 5)
    assert [len(view) for view in image.observation.masked] == [int((view.label != 2).sum()) for view in views[1:]]
    fewer = run.images(lines=2)[0].observation  # lines 2 and 4 of 5 are those of 2 lines
    expected = pairs(50, 40, 2)
    assert np.array_equal(fewer.masks.removed, expected.removed)
    where = {tuple(rectangles.ravel()): m for m, rectangles in enumerate(image.observation.masks.removed)}
    for rectangles, found in zip(expected.removed, fewer.masked, strict=True):
        assert found == image.observation.masked[where[tuple(rectangles.ravel())]]
    others = writing(tmp_path, replace(made, masks="halves"))
    with pytest.raises(ObjectSeekerError, match="masks was pairs, now halves"), others:
        pass
