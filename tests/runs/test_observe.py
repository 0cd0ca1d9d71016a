"""The long job: stopped at any point it resumes, and ends as if nothing had happened."""

import contextlib
from collections.abc import Sequence
from importlib import metadata

import numpy as np
import PIL.Image
import pytest
from observe_job import (
    LINES,
    MASKS,
    Crash,
    Spots,
    content_of,
    crash_before,
    kill_until_done,
    make_dataset,
    run_here,
)
from store_cases import flip_a_bit, truncate

from objectseeker import Bands, Detections, Halves, ObjectSeeker, ObjectSeekerError, Pairs, Rule
from objectseeker.datasets import match_classes, open_dataset
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe, plan_run, time_view
from objectseeker.runs.run import open_run

BATCHES = 2  # per image: 1 + 4 * LINES views, 8 at a time


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("images"), 4)


@pytest.fixture(scope="module")
def undisturbed(spec, tmp_path_factory):
    """Every file of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run_here(spec, folder)
    return content_of(folder)


class FailsAt(Spots):
    """Raises on one call; before and after that it is the detector it wraps."""

    def __call__(self, images):
        if self.calls == self.failing:
            raise MemoryError("out of luck")  # which is about no view, so it stops the job
        return super().__call__(images)


def failing_at(call):
    detector = FailsAt()
    detector.failing = call
    return detector


def test_a_run_holds_what_the_defended_detector_sees(spec, tmp_path):
    dataset = open_dataset(spec)
    run = run_here(spec, tmp_path / "run", fill=9, base_floor=0.3, mask_floor=0.2)
    match = match_classes(dataset.names, Spots().names)
    images = run.images()
    assert run.complete
    assert len(images) == len(dataset)
    for image, entry in zip(images, dataset.images, strict=True):
        (seen,) = ObjectSeeker(Spots(), Rule(), masks=Halves(LINES), fill=9).observe([entry.load()])
        assert image.observation.masks == seen.masks
        assert image.observation.base == seen.base.with_min_score(0.3)
        assert list(image.observation.masked) == [view.with_min_score(0.2) for view in seen.masked]
        assert len(image.observation.all_masked)
        known = np.isin(entry.ground_truth.label, match.dataset_labels)
        assert image.ground_truth == entry.ground_truth[known]
        assert image.ignore.tolist() == entry.ignore[known].tolist()
        assert image.crowd.tolist() == entry.crowd[known].tolist()
        assert (image.id, image.path) == (entry.id, entry.path)


def test_the_manifest_records_the_job(spec, tmp_path):
    manifest = run_here(spec, tmp_path / "run", fill=9, base_floor=0.3, mask_floor=0.2, limit=2).manifest
    dataset = open_dataset(spec)
    assert (manifest.detector_fingerprint, manifest.detector_names) == (
        "spots sha256:0123",
        ("gadget", "thing", "shadow"),
    )
    assert (manifest.detector_spec, manifest.detector_options) == (None, {})
    assert manifest.observation_settings == ObservationSettings(
        Halves(LINES), fill=9, batch_size=8, base_floor=0.3, mask_floor=0.2
    )
    assert manifest.limit == 2
    assert (manifest.dataset, manifest.dataset_fingerprint) == (dataset.spec, dataset.fingerprint)
    assert manifest.dataset_names == ("thing", "gadget", "rarity")
    assert (manifest.dataset_labels, manifest.unmatched_classes) == ((1, 0, -1), ("rarity",))
    assert {"python", "objectseeker", "numpy", "pillow", "pyarrow"} <= manifest.software.keys()
    assert [image.size for image in manifest.images] == [entry.size for entry in dataset.images[:2]]


def test_progress_starts_with_what_is_done_already(spec, tmp_path):
    seen = []
    with pytest.raises(ObjectSeekerError, match="out of luck"):
        run_here(spec, tmp_path / "run", failing_at(2 * BATCHES), on_progress=lambda *step: seen.append(step))
    assert seen == [(0, 4), (1, 4), (2, 4)]
    seen.clear()
    run_here(spec, tmp_path / "run", on_progress=lambda *step: seen.append(step))
    assert seen == [(2, 4), (3, 4), (4, 4)]
    seen.clear()
    again = Spots()
    assert run_here(spec, tmp_path / "run", again, on_progress=lambda *step: seen.append(step)).complete
    assert seen == [(4, 4)]
    assert again.calls == 0


@pytest.mark.parametrize("call", range(4 * BATCHES))
def test_a_detector_that_fails_costs_one_image_at_most(spec, undisturbed, tmp_path, call):
    out = tmp_path / "run"
    image = call // BATCHES
    with pytest.raises(ObjectSeekerError, match=rf"the detector failed on .*{image}\.png: out of luck"):
        run_here(spec, out, failing_at(call))
    assert open_run(out).finished == image
    rest = Spots()
    run_here(spec, out, rest)
    assert rest.calls == (4 - image) * BATCHES  # nothing finished was computed again
    assert content_of(out) == undisturbed


def test_a_crash_between_any_two_disk_operations(spec, undisturbed, tmp_path):
    crashes = 0
    for number in range(100):
        out = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as monkeypatch:
            crash_before(number, monkeypatch)
            try:
                run_here(spec, out)
            except Crash:
                crashes += 1
            else:
                break
        with pytest.MonkeyPatch.context() as monkeypatch:  # and once more while it picks up the pieces
            crash_before(2, monkeypatch)
            with contextlib.suppress(Crash):
                run_here(spec, out)
        assert run_here(spec, out).complete
        assert content_of(out) == undisturbed
    assert crashes >= 3 * (1 + 4)  # for run.json and each part: file to disk, rename, name to disk


def test_killed_for_real_at_random_moments(tmp_path):
    spec = make_dataset(tmp_path / "images", 12)
    run_here(spec, tmp_path / "undisturbed")
    expected = content_of(tmp_path / "undisturbed")
    assert len(expected) == 12 + len(("run.json", "images.parquet", "lock"))
    seen = kill_until_done(spec, tmp_path / "killed", expected, kills=5, seconds=0.02, rng=np.random.default_rng())
    assert len(seen) == 5


def test_a_running_job_keeps_others_out(spec, tmp_path):
    out = tmp_path / "run"
    rejected = []

    def intrude(done, total):
        with pytest.raises(ObjectSeekerError, match="another process is writing") as caught:
            run_here(spec, out)
        rejected.append(caught)

    assert run_here(spec, out, on_progress=intrude).complete
    assert len(rejected) == 5


@pytest.mark.parametrize("harm", [truncate, flip_a_bit])
def test_only_damaged_parts_are_computed_again(spec, undisturbed, tmp_path, harm):
    out = tmp_path / "run"
    run_here(spec, out)
    damaged = [next(out.glob(f"parts/{number:06d}-*")) for number in (1, 3)]
    for part in damaged:
        harm(part)
    assert list(open_run(out).damaged) == damaged
    detector, warnings = Spots(), []
    run_here(spec, out, detector, on_warning=warnings.append)
    assert detector.calls == 2 * BATCHES
    for part in damaged:
        assert f"{part.name} was damaged: its image is observed again" in warnings
    assert content_of(out) == undisturbed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"masks": Halves(4)}, "masks was halves:3, now halves:4"),
        ({"masks": Halves(3) + Bands(0.01)}, "masks was halves:3, now halves:3+bands:0.01"),
        ({"fill": 0}, "fill was 114, now 0"),
        ({"base_floor": 0.05}, "base floor was 0.01, now 0.05"),
        ({"mask_floor": 0.2}, "mask floor was 0.1, now 0.2"),
        ({"batch_size": 4}, "batch size was 8, now 4"),
        ({"seed": 3}, "order was the dataset's, now drawn with seed 3"),
        ({"detector": Spots(fingerprint="spots sha256:4567")}, "detector was spots sha256:0123, now spots sha256:4567"),
        (
            {"detector": Spots(names=("gadget", "thing", "ghost"))},
            "detector class 2 was shadow, now ghost (3 classes, now 3)",
        ),
        (
            {"detector": Spots(names=("gadget", "thing", *(f"ghost {n}" for n in range(78))))},
            "detector class 2 was shadow, now ghost 0 (3 classes, now 80)",
        ),
        ({"masks": Halves(5), "fill": 1}, "masks was halves:3, now halves:5; fill was 114, now 1"),
    ],
)
def test_other_settings_are_refused_and_named(spec, undisturbed, tmp_path, changes, named):
    out = tmp_path / "run"
    run_here(spec, out)
    with pytest.raises(ObjectSeekerError) as caught:
        run_here(spec, out, **changes)
    assert str(caught.value) == (
        f"{out} holds another run ({named}): use the settings it was started with, or another folder"
    )
    assert content_of(out) == undisturbed


def test_another_dataset_is_refused_and_the_same_one_elsewhere_is_not(spec, tmp_path):
    run_here(spec, tmp_path / "run")
    other = make_dataset(tmp_path / "other", 5)
    with pytest.raises(ObjectSeekerError, match=r"run \(the dataset has other objects for image 0\)"):
        run_here(other, tmp_path / "run")
    assert run_here(make_dataset(tmp_path / "moved", 4), tmp_path / "run").complete


def test_other_software_may_read_a_finished_run_but_not_go_on_with_one(spec, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(ObjectSeekerError):
        run_here(spec, out, failing_at(3))
    installed = metadata.version

    def another_numpy(name: str) -> str:
        return "9.9.9" if name == "numpy" else installed(name)

    with monkeypatch.context() as changed:
        changed.setattr(metadata, "version", another_numpy)
        with pytest.raises(ObjectSeekerError, match=r"numpy was .*, now 9\.9\.9"):
            run_here(spec, out)
    run_here(spec, out)
    monkeypatch.setattr(metadata, "version", another_numpy)
    assert run_here(spec, out).complete


def test_images_that_cannot_be_read_are_recorded_and_skipped(tmp_path):
    spec = make_dataset(tmp_path / "images", 6)
    torn = tmp_path / "images" / "2.png"
    torn.write_bytes(torn.read_bytes()[:-200])
    PIL.Image.new("RGB", (99, 3)).save(tmp_path / "images" / "4.png")  # not the size its boxes were drawn on
    warnings, detector = [], Spots()
    run = run_here(spec, tmp_path / "run", detector, on_warning=warnings.append)
    assert run.complete
    assert [image.id for image in run.images()] == ["0", "1", "3", "5"]
    assert [(image.id, image.path) for image in run.broken] == [("2", torn), ("4", torn.with_name("4.png"))]
    assert "damaged or incomplete" in run.broken[0].reason
    assert "99x3" in run.broken[1].reason
    entries = open_dataset(spec).images
    for image in run.broken:
        truth, ignore = entries[int(image.id)].ground_truth, entries[int(image.id)].ignore
        assert image.objects == int(((truth.label != 2) & ~ignore).sum())  # the detector does not know label 2
        assert f"image skipped (objects lost: {image.objects}): {image.reason}" in warnings
    assert detector.calls == 4 * BATCHES
    before = content_of(tmp_path / "run")
    seen = []
    again = run_here(spec, tmp_path / "run", on_progress=lambda *step: seen.append(step))
    assert [broken.id for broken in again.broken] == ["2", "4"]
    assert seen == [(6, 6)]
    assert content_of(tmp_path / "run") == before


def test_an_image_that_goes_away_stops_the_job(tmp_path):
    """A disk that is pulled out must not turn the rest of the dataset into broken images."""
    dataset = open_dataset(make_dataset(tmp_path / "images", 3))
    (tmp_path / "images" / "1.png").rename(tmp_path / "away.png")
    with pytest.raises(ObjectSeekerError, match=r"1\.png: there is no such file: restore it"):
        observe(dataset, Spots(), out=tmp_path / "run", masks=MASKS)
    (tmp_path / "away.png").rename(tmp_path / "images" / "1.png")
    run = observe(dataset, Spots(), out=tmp_path / "run", masks=MASKS)
    assert run.complete
    assert run.broken == ()


def test_classes_the_detector_does_not_know(spec, tmp_path):
    warnings = []
    run = run_here(spec, tmp_path / "run", on_warning=warnings.append)
    assert warnings[0] == "dataset classes skipped because the detector does not know them: rarity"
    assert run.manifest.unmatched_classes == ("rarity",)
    assert any((entry.ground_truth.label == 2).any() for entry in open_dataset(spec).images)
    assert not any((image.ground_truth.label == 2).any() for image in run.images())
    with pytest.raises(ObjectSeekerError, match="knows none of the dataset's classes"):
        run_here(spec, tmp_path / "none", Spots(names=("a", "b", "c")))
    assert not (tmp_path / "none").exists()


def test_a_folder_of_images_has_no_truth(tmp_path):
    make_dataset(tmp_path / "images", 3)
    (tmp_path / "images" / "1.png").write_bytes(b"nothing like an image")
    run = run_here(str(tmp_path / "images"), tmp_path / "run")
    assert run.complete
    assert run.label_map.detector_names == run.label_map.dataset_names == Spots().names
    assert [broken.id for broken in run.broken] == ["1.png"]
    assert run.manifest.images[1].size is None
    for image in run.images():
        assert len(image.ground_truth) == len(image.ignore) == 0
        pixels = np.array(PIL.Image.open(image.path))
        assert (image.observation.width, image.observation.height) == (pixels.shape[1], pixels.shape[0])
        (seen,) = Spots()([pixels])
        assert image.observation.base == seen.with_min_score(0.01)


def test_an_image_that_changes_its_size_during_the_run_is_stored_as_it_was_seen(tmp_path):
    make_dataset(tmp_path / "images", 2)

    def swap(done, total):
        if not done:  # before anything is read, after it was listed; later it would be written while it is read
            PIL.Image.new("RGB", (50, 60)).save(tmp_path / "images" / "1.png")

    run = run_here(str(tmp_path / "images"), tmp_path / "run", on_progress=swap)
    observation = run.images()[1].observation
    assert (observation.width, observation.height) == (50, 60)


def test_a_file_that_appears_during_the_run_does_not_renumber_the_others(tmp_path):
    make_dataset(tmp_path / "images", 3)
    dataset = open_dataset(tmp_path / "images")

    def add(done, total):
        PIL.Image.new("RGB", (50, 60)).save(tmp_path / "images" / "00.png")

    with pytest.raises(ObjectSeekerError, match=r"has changed: image 1 was '1.png' and is '00.png' now"):
        observe(dataset, Spots(), out=tmp_path / "run", masks=MASKS, on_progress=add)
    with pytest.raises(ObjectSeekerError, match="changed while it was read"):
        observe(dataset, Spots(), out=tmp_path / "another", masks=MASKS)


def test_a_limit_takes_the_first_images(spec, tmp_path):
    run = run_here(spec, tmp_path / "run", limit=2)
    assert [image.id for image in run.images()] == ["0", "1"]
    assert run.complete
    assert run_here(spec, tmp_path / "all", limit=99).manifest.limit is None


class Masks(Spots):
    """One that masks on its own."""

    def detect_views(self, image, removed, value) -> Sequence[Detections]:
        self.calls += 1
        return [Detections([[0, 0, 1 + value, 1 + number]], [0.5], [0]) for number in range(len(removed))]


def test_detectors_that_mask_mode_themselves_make_their_own_batches(spec, tmp_path):
    detector = Masks()
    run = run_here(spec, tmp_path / "run", detector, batch_size=4)
    assert run.manifest.observation_settings.batch_size is None
    assert detector.calls == 4
    assert run_here(spec, tmp_path / "run", Masks(), batch_size=5).complete
    assert run.images()[0].observation.masked[6].xyxy.tolist() == [[0, 0, 115, 8]]


def test_the_plan(spec):
    dataset = open_dataset(spec)
    whole = plan_run(dataset, ObservationSettings(Halves(30)))
    assert (whole.images, whole.views_per_image, whole.forward_passes) == (4, 121, 484)
    assert whole.reason == "30 lines per axis are 120 half masks"
    assert plan_run(dataset, ObservationSettings(Halves(30)), limit=3).forward_passes == 363
    with pytest.raises(ObjectSeekerError, match="limit must be at least 1: got 0"):
        plan_run(dataset, limit=0)


@pytest.mark.parametrize(
    ("masks", "views", "why"),
    [
        (
            Pairs(10),
            531,
            "10 lines per axis are 40 half masks, 820 pairs of them, 530 of which remove something different and leave "
            "something",
        ),
        (Bands(0.01), 20, "bands:0.01 makes 19 masks of a 640x480 image, about as many of other sizes"),
        (
            Halves(10) + Bands(0.01),
            60,
            "halves:10+bands:0.01 makes 59 masks of a 640x480 image, about as many of other sizes",
        ),
    ],
)
def test_the_plan_says_where_the_views_come_from(spec, masks, views, why):
    found = plan_run(open_dataset(spec), ObservationSettings(masks))
    assert (found.views_per_image, found.forward_passes, found.reason) == (views, 4 * views, why)
    assert views == masks.forward_passes(640, 480)


def test_the_estimate_comes_from_a_few_views(spec):
    dataset, detector = open_dataset(spec), Spots(seconds=0.02)
    seconds = time_view(dataset, detector, ObservationSettings(Halves(30), batch_size=4))
    assert detector.calls == 2 * (1 + 2)  # two batches of each image, and of the first once more to warm up
    assert 0.02 / 4 <= seconds < 0.1


def test_the_estimate_skips_images_that_cannot_be_read(tmp_path):
    spec = make_dataset(tmp_path, 2)
    (tmp_path / "0.png").write_bytes(b"no")
    detector = Spots()
    time_view(open_dataset(spec), detector, ObservationSettings(Halves(1)))
    assert detector.calls == 2
    (tmp_path / "1.png").write_bytes(b"no")
    with pytest.raises(ObjectSeekerError, match=r"none of the 2 images can be read, the last: .*1\.png"):
        time_view(open_dataset(spec), detector)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"masks": "thirds"}, "cannot read the masks 'thirds'"),
        ({"masks": 30}, "masks must be a recipe such as Halves(30): got 30"),
        ({"fill": 256}, "fill must be a gray value within 0 to 255: got 256"),
        ({"fill": 0.5}, "fill must be a gray value within 0 to 255: got 0.5"),
        ({"base_floor": 1.5}, "base_floor must lie within"),
        ({"mask_floor": float("nan")}, "mask_floor must be finite"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
        ({"limit": -1}, "limit must be at least 1: got -1"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(spec, tmp_path, changes, named):
    with pytest.raises(ObjectSeekerError) as caught:
        run_here(spec, tmp_path / "run", **changes)
    assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "lines", "named"),
    [
        (Halves, 0, "lines must be at least 1: got 0"),
        (Halves, 8192, "lines must be at most 8191: got 8192"),
        (Pairs, 81, "lines must be at most 80: got 81"),
    ],
)
def test_masks_that_the_store_cannot_number_are_refused(recipe, lines, named):
    with pytest.raises(ObjectSeekerError, match=named):
        recipe(lines)


def test_whole_numbers_of_any_type_are_the_same_settings(spec, undisturbed, tmp_path):
    run_here(
        spec, tmp_path / "run", masks=Halves(np.int64(LINES)), fill=np.uint8(114), batch_size=8.0, limit=np.int32(4)
    )
    assert content_of(tmp_path / "run") == undisturbed
