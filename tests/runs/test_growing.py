"""Runs that grow, samples that grow, and what a run is never mixed with: other images, another detector."""

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from observe_job import Crash, Spots, content_of, crash_before, make_dataset, run_here

from objectseeker import ObjectSeekerError
from objectseeker.datasets import open_dataset
from objectseeker.runs import writer
from objectseeker.runs.run import open_run


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("images"), 9)


def ids(run):
    return [image.id for image in run.images()]


# More images


@pytest.mark.parametrize("size", [1, 4])
def test_a_run_that_grows_ends_as_one_made_at_once(tmp_path, size):
    """Also where the last part was not full, and where an image cannot be read."""
    spec = make_dataset(tmp_path / "images", 9)
    (tmp_path / "images" / "2.png").write_bytes(b"no image")
    detector = Spots()
    for limit, done in ((3, 2), (6, 5), (99, 8)):
        run = run_here(spec, tmp_path / "grown", detector, limit=limit, images_per_part=size)
        assert run.complete
        assert len(run.images()) == done
        run_here(spec, tmp_path / str(limit), limit=limit, images_per_part=size)
        assert content_of(tmp_path / "grown") == content_of(tmp_path / str(limit))
    assert detector.calls == 8 * 2  # no image twice
    assert run_here(spec, tmp_path / "grown", detector, limit=9).complete


def test_an_unfinished_run_grows(spec, tmp_path):
    class EnoughError(Exception):
        pass

    def stop(done, total):
        if done == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        run_here(spec, tmp_path / "run", limit=4, on_progress=stop)
    seen = []
    run_here(spec, tmp_path / "run", limit=6, on_progress=lambda *step: seen.append(step))
    run_here(spec, tmp_path / "once", limit=6)
    assert seen[0] == (2, 6)
    assert content_of(tmp_path / "run") == content_of(tmp_path / "once")


def test_a_crash_while_it_grows_leaves_a_run_that_can_be_read_and_go_on(spec, tmp_path):
    run_here(spec, tmp_path / "small", limit=3, images_per_part=4)
    run_here(spec, tmp_path / "once", limit=5, images_per_part=4)
    expected, crashes = content_of(tmp_path / "once"), 0
    for number in range(100):
        out = tmp_path / str(number)
        shutil.copytree(tmp_path / "small", out)
        with pytest.MonkeyPatch.context() as monkeypatch:
            crash_before(number, monkeypatch)
            try:
                run_here(spec, out, limit=5)
            except Crash:
                crashes += 1
            else:
                break
        assert open_run(out).finished >= 3
        with pytest.MonkeyPatch.context() as monkeypatch, contextlib.suppress(Crash):
            crash_before(2, monkeypatch)
            run_here(spec, out, limit=5)
        run_here(spec, out, limit=5)
        assert content_of(out) == expected
    assert crashes >= 10  # listing, run.json and the part: file to disk, rename, name to disk; the listing's name


def test_a_reader_that_saw_the_old_run_looks_again(spec, tmp_path, monkeypatch):
    """It reads run.json, then the run grows, and the listing is no longer the one that was spoken of."""
    run_here(spec, tmp_path / "run", limit=2)
    before, read = (tmp_path / "run" / "run.json").read_bytes(), Path.read_bytes
    run_here(spec, tmp_path / "run", limit=3)
    looks = iter([before])
    monkeypatch.setattr(Path, "read_bytes", lambda file: (file.name == "run.json" and next(looks, b"")) or read(file))
    assert open_run(tmp_path / "run").finished == 3


def test_a_run_is_never_made_smaller(spec, tmp_path):
    run_here(spec, tmp_path / "run", limit=4)
    before = content_of(tmp_path / "run")
    with pytest.raises(ObjectSeekerError, match="is a run of 4 images, and 3 are fewer: a run can only grow"):
        run_here(spec, tmp_path / "run", limit=3)
    assert content_of(tmp_path / "run") == before


def test_parts_are_as_large_as_the_dataset_asks_whatever_the_limit(spec, tmp_path, monkeypatch):
    monkeypatch.setattr("objectseeker.runs.observe.SMALL_DATASET", 5)
    assert run_here(spec, tmp_path / "run", limit=2).manifest.images_per_part == 256


# Samples


def test_a_sample_is_drawn_from_all_and_grows(spec, tmp_path):
    few = run_here(spec, tmp_path / "run", limit=3, seed=7)
    first = ids(few)
    more = run_here(spec, tmp_path / "run", limit=6, seed=7)
    assert ids(more)[:3] == first
    run_here(spec, tmp_path / "once", limit=6, seed=7)
    assert content_of(tmp_path / "run") == content_of(tmp_path / "once")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 7
    whole = run_here(spec, tmp_path / "run", seed=7)
    assert sorted(ids(whole)) == [str(number) for number in range(9)] != ids(whole)


def test_seeds_draw_different_samples_and_every_image_now_and_then(spec, tmp_path):
    from objectseeker.runs.observe import select_images

    dataset = open_dataset(spec)
    drawn = [tuple(entry.id for entry in select_images(dataset, 3, seed)) for seed in range(60)]
    assert len(set(drawn)) > 50
    assert {image for sample in drawn for image in sample} == {str(number) for number in range(9)}


def test_a_sample_of_a_folder_that_is_never_all_in_memory(spec, tmp_path):
    folder = Path(spec.rpartition(":")[2])
    run = run_here(str(folder), tmp_path / "run", limit=4, seed=1)
    assert run_here(str(folder), tmp_path / "run", limit=4, seed=1).complete
    for image in run.images():
        assert (image.observation.width, image.observation.height) == PIL.Image.open(folder / image.id).size
    with pytest.raises(ObjectSeekerError, match=r"order was drawn with seed 1, now drawn with seed 2"):
        run_here(str(folder), tmp_path / "run", limit=4, seed=2)


# The same images


@pytest.fixture
def image_folder(tmp_path):
    """Images whose files all have the same number of bytes."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.ppm")
    return folder


@pytest.mark.parametrize("limit", [3, None])
def test_a_replaced_image_of_the_same_size_is_refused(image_folder, tmp_path, limit):
    run_here(str(image_folder), tmp_path / "run", limit=3)
    before = content_of(tmp_path / "run")
    shutil.copy(image_folder / "5.ppm", image_folder / "1.ppm")
    with pytest.raises(ObjectSeekerError, match=r"1\.ppm is another image than the one that was observed into .*run: "):
        run_here(str(image_folder), tmp_path / "run", limit=limit)
    assert content_of(tmp_path / "run") == before


def test_an_old_image_that_is_moved_in_place_is_refused(image_folder, tmp_path):
    """Its time of writing is from last year: the file system knows when it got its name."""
    run_here(str(image_folder), tmp_path / "run", limit=3)
    shutil.copy(image_folder / "5.ppm", tmp_path / "old.ppm")
    os.utime(tmp_path / "old.ppm", (1e9, 1e9))
    (tmp_path / "old.ppm").rename(image_folder / "1.ppm")
    with pytest.raises(ObjectSeekerError, match=r"1\.ppm is another image"):
        run_here(str(image_folder), tmp_path / "run")


def test_images_are_read_again_only_where_they_may_have_changed(image_folder, tmp_path, monkeypatch):
    run_here(str(image_folder), tmp_path / "run", limit=5)
    later = time.time() + 2 * writer.RECENT_SECONDS
    for part in (tmp_path / "run" / "parts").iterdir():
        os.utime(part, (later, later))
    read, hash_of = [], writer.hash_of
    monkeypatch.setattr(writer, "hash_of", lambda path: read.append(path.name) or hash_of(path))
    monkeypatch.setattr(writer, "SPOT_CHECKS", 2)
    assert run_here(str(image_folder), tmp_path / "run", limit=5).complete
    assert read == ["0.ppm", "2.ppm", "4.ppm"]


def test_another_folder_in_place_of_the_first_is_noticed_whatever_its_times(image_folder, tmp_path):
    run_here(str(image_folder), tmp_path / "run")
    later = time.time() + 2 * writer.RECENT_SECONDS
    for part in (tmp_path / "run" / "parts").iterdir():
        os.utime(part, (later, later))
    image_folder.rename(tmp_path / "first")
    image_folder.mkdir()
    for number in range(6):
        shutil.copy(tmp_path / "first" / f"{5 - number}.ppm", image_folder / f"{number}.ppm")
    with pytest.raises(ObjectSeekerError, match=r"0\.ppm is another image"):
        run_here(str(image_folder), tmp_path / "run")


def test_what_changed_in_a_dataset_is_named(image_folder, tmp_path):
    run_here(str(image_folder), tmp_path / "run", limit=4)
    small = PIL.Image.new("RGB", (3, 3))
    small.save(image_folder / "2.ppm")
    with pytest.raises(ObjectSeekerError, match=r"holds another run \(.*2\.ppm is another image now\)"):
        run_here(str(image_folder), tmp_path / "run", limit=4)
    (image_folder / "1.ppm").unlink()
    with pytest.raises(ObjectSeekerError, match=r"image 1 of the dataset was 1\.ppm, now 2\.ppm\)"):
        run_here(str(image_folder), tmp_path / "run", limit=4)


def test_a_dataset_that_got_more_images_says_so(image_folder, tmp_path):
    run_here(str(image_folder), tmp_path / "run")
    PIL.Image.new("RGB", (3, 3)).save(image_folder / "9.ppm")
    with pytest.raises(ObjectSeekerError, match=r"the dataset had 6 images, now 7\)"):
        run_here(str(image_folder), tmp_path / "run")


# The same detector


@dataclass
class Unverified(Spots):
    unverified_reason: str | None = "its weights are unknown"


def test_a_detector_that_cannot_be_vouched_for_needs_trust_to_go_on(spec, tmp_path):
    out, said = tmp_path / "run", []
    run = run_here(spec, out, Unverified(), limit=2, on_warning=said.append)
    sentence = f"{Unverified.unverified_reason}; once stopped, the run resumes only with --trust-detector"
    assert said.count(sentence) == 1
    assert (run.manifest.unverified_reason, run.manifest.detector_trusted) == (Unverified.unverified_reason, False)
    assert run_here(spec, out, Unverified(), limit=2).complete  # nothing is computed
    before = content_of(out)
    with pytest.raises(ObjectSeekerError, match="2 finished images, and its weights are unknown; if this is"):
        run_here(spec, out, Unverified(), limit=4)
    assert content_of(out) == before
    said.clear()
    trusted = run_here(spec, out, Unverified(), limit=4, trust_detector=True, on_warning=said.append)
    assert trusted.manifest.detector_trusted
    assert any("resumes because you confirmed" in sentence for sentence in said)
    assert (len(trusted.images()), trusted.fingerprint) == (4, run.fingerprint)


def test_trust_is_recorded_only_where_something_rests_on_it(spec, tmp_path):
    run = run_here(spec, tmp_path / "run", Unverified(), limit=2, trust_detector=True)
    assert not run.manifest.detector_trusted
    assert not run_here(spec, tmp_path / "known", limit=2, trust_detector=True).manifest.detector_trusted
    run_here(spec, tmp_path / "known", limit=3, trust_detector=True)
    assert not open_run(tmp_path / "known").manifest.detector_trusted
