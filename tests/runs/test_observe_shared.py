"""One run, several detectors: the images are shared out, the bytes are the same."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from objectseeker import Detections, Halves
from objectseeker.datasets import open_dataset
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs import engines
from objectseeker.runs.engines import READ_AHEAD, ImageTask, LocalEngine, prefetch_images
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe

TWO_LINES = {"masks": Halves(2)}


class Mean:
    """One box, scored by the mean of the view. Waits until `together` of its kind are at work."""

    names = ("thing",)

    def __init__(self, barrier: threading.Barrier | None = None, fingerprint: str = "mean") -> None:
        self.barrier, self.fingerprint, self.calls = barrier, fingerprint, 0

    def __call__(self, images):
        return [Detections([[0, 0, 5, 5]], [float(image.mean()) / 255], [0]) for image in images]

    def detect_views(self, image, removed, value):
        self.calls += 1
        if self.barrier is not None:
            self.barrier.wait(20)
        mean = float(image.mean()) / 255
        return [Detections([[0, 0, 5, 5 + number]], [mean], [0]) for number in range(len(removed))]


@pytest.fixture
def image_folder(tmp_path) -> str:
    (tmp_path / "images").mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(128, 256, (20, 30, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "3.png").write_bytes(b"no image")
    return str(tmp_path / "images")


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_detectors_that_share_a_run_work_at_the_same_time_and_write_the_same_bytes(image_folder, tmp_path):
    dataset = open_dataset(image_folder)
    observe(dataset, Mean(), out=tmp_path / "alone", **TWO_LINES)
    barrier = threading.Barrier(1 + 4)  # all wait until five images are in work at once
    team = [Mean(barrier) for _ in range(5)]

    progress = []
    run = observe(
        dataset,
        LocalEngine(team),
        out=tmp_path / "shared",
        **TWO_LINES,
        on_progress=lambda done, total: progress.append((done, total)),
    )

    assert run.complete
    assert [detector.calls for detector in team] == [1] * 5
    assert progress == [(done, 6) for done in range(7)]
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_a_failure_stops_the_others_and_what_is_done_stays(image_folder, tmp_path):
    class Fails(Mean):
        def detect_views(self, image, removed, value):
            raise RuntimeError("out of memory")

    dataset = open_dataset(image_folder)
    with pytest.raises(ObjectSeekerError, match=r"the detector failed on .*png: out of memory"):
        observe(dataset, LocalEngine([Fails(), Fails()]), out=tmp_path / "run", **TWO_LINES)

    assert observe(dataset, LocalEngine([Mean(), Mean()]), out=tmp_path / "run", **TWO_LINES).complete


def test_only_the_same_detector_may_share_a_run():
    with pytest.raises(ObjectSeekerError, match="detectors that share a run must be the same: got another"):
        LocalEngine([Mean(), Mean(fingerprint="another")])


def test_only_a_few_images_are_read_before_the_detector_is_free(image_folder):
    taken = 0

    def items():
        nonlocal taken
        for index in range(40):
            taken += 1
            yield ImageTask(index, str(Path(image_folder) / "0.png"), None)

    for done, (item, image) in enumerate(prefetch_images(items())):
        assert item.index == done
        assert image.result()[0].shape == (20, 30, 3)
        assert taken - done <= READ_AHEAD + 1
    assert taken == 40


def test_reading_ahead_may_be_ended_by_one_of_its_own_threads(monkeypatch):
    """As happens when it is collected there, after an error elsewhere."""
    go_on, ended = threading.Event(), threading.Event()
    errors = []

    def read(item):
        go_on.wait(20)

    def end(_):
        try:
            images.close()
        except RuntimeError as error:
            errors.append(error)
        ended.set()

    monkeypatch.setattr(engines, "load_task", read)
    images = prefetch_images(ImageTask(index, "", None) for index in range(40))
    _, future = next(images)
    future.add_done_callback(end)
    go_on.set()
    assert ended.wait(20)
    assert errors == []


@pytest.fixture
def stuck(monkeypatch):
    """A storage that gives the first image and does not answer for the others until it is let go."""
    let_go = threading.Event()

    def read(item):
        if item.index:
            let_go.wait(60)
        return np.full((20, 30, 3), 200, np.uint8), ""

    monkeypatch.setattr(engines, "load_task", read)
    yield let_go
    let_go.set()


def test_nobody_waits_for_what_is_being_read(stuck):
    """Not who ends the job, and not the end of the process, which waits for threads that are not daemons."""
    before = set(threading.enumerate())
    images = prefetch_images(ImageTask(index, "", None) for index in range(40))
    next(images)
    _, second = next(images)
    readers = set(threading.enumerate()) - before
    assert len(readers) == READ_AHEAD
    assert all(thread.daemon for thread in readers)
    images.close()
    assert not second.done()
    stuck.set()
    for thread in readers:
        thread.join(20)
    assert not any(thread.is_alive() for thread in readers)


def test_a_shared_job_ends_though_its_detectors_wait_for_images(stuck):
    items = (ImageTask(index, "", None) for index in range(40))
    job = engines.ObservationJob(ObservationSettings(Halves(2)), Mean.names)
    stream = LocalEngine([Mean(), Mean()]).observe(job, items)
    assert next(stream).indices == [0]
    begin = time.monotonic()
    stream.close()
    assert time.monotonic() - begin < 10
    assert not stuck.is_set()


@pytest.mark.parametrize(
    ("device", "used"),
    [(None, [None]), ("cuda", ["cuda:0", "cuda:1"]), ("cuda:1", ["cuda:1"]), ("cuda:1,cuda:0", ["cuda:1", "cuda:0"])],
)
def test_cuda_means_every_gpu_of_the_machine(device, used, monkeypatch):
    loaded = []

    def load(spec, *, device=None):
        loaded.append(device)
        return Mean()

    monkeypatch.setattr(engines, "all_gpus", lambda: ["cuda:0", "cuda:1"])
    monkeypatch.setattr(engines.detectors, "load_detector", load)
    with engines.open_engine("builtin", {"device": device}) as engine:
        assert len(engine.detectors) == len(used)
        assert (engine.describe().spec, engine.describe().options) == ("builtin", {})
    assert loaded == used


class Ahead(Mean):
    """Takes the next image before it gives the boxes of the last, as a GPU does."""

    def detect_views_of(self, images, value):
        waiting = []
        for image, removed in images:
            waiting.append((image, removed))
            if len(waiting) == 2:
                yield self.detect_views(*waiting.pop(0), value)
        for image, removed in waiting:
            yield self.detect_views(image, removed, value)


@pytest.mark.parametrize("count", [1, 2])
def test_a_detector_that_is_one_image_ahead_makes_the_same_run(image_folder, count, tmp_path):
    dataset = open_dataset(image_folder)
    observe(dataset, Mean(), out=tmp_path / "one at a time", **TWO_LINES)
    observe(dataset, LocalEngine([Ahead()] * count), out=tmp_path / "ahead", **TWO_LINES)
    assert content(tmp_path / "ahead") == content(tmp_path / "one at a time")


def test_a_failure_while_one_image_ahead_names_the_one(image_folder, tmp_path):
    class Fails(Ahead):
        def detect_views(self, image, removed, value):
            raise RuntimeError("out of luck")

    with pytest.raises(ObjectSeekerError, match=r"failed on [^ ]*0\.png: out of luck"):
        observe(open_dataset(image_folder), Fails(), out=tmp_path / "run", **TWO_LINES)


@pytest.mark.parametrize("kind", [Mean, Ahead])
def test_an_image_on_which_the_detector_fails_altogether_is_left_out_and_named(image_folder, tmp_path, kind):
    dataset = open_dataset(image_folder)
    hostile = [dataset.images[number].load() for number in (2, 4)]  # 3 is not an image

    class Fails(kind):
        def detect_views(self, image, removed, value):
            if any(np.array_equal(image, one) for one in hostile):
                raise RuntimeError("out of luck")
            return super().detect_views(image, removed, value)

    told = []
    run = observe(dataset, Fails(), out=tmp_path / "run", **TWO_LINES, on_warning=told.append)
    assert run.complete
    assert [broken.id for broken in run.broken] == ["2.png", "3.png", "4.png"]
    assert sum("the detector failed on" in sentence for sentence in told) == 2
    whole = observe(dataset, kind(), out=tmp_path / "whole", **TWO_LINES)
    others = [image for image in whole.images() if image.id not in ("2.png", "4.png")]
    for ours, theirs in zip(run.images(), others, strict=True):
        assert (ours.id, ours.observation.base) == (theirs.id, theirs.observation.base)
