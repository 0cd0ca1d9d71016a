"""The same run on a Ray cluster: the same bytes, whichever worker dies on the way."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import PIL.Image
import pytest
from observe_job import MASKS, content_of, make_dataset

from objectseeker import Halves, ObjectSeekerError, detectors
from objectseeker.datasets import open_dataset
from objectseeker.runs.engines import ClusterRequest, describe_detector, open_engine
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe
from objectseeker.runs.ray import DetectorLoader, import_ray
from objectseeker.runs.run import open_run

if find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
ray = import_ray(None)  # as for a cluster of our own: with a token, at 127.0.0.1
HERE = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}}
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env=environment,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("images"), 12)


@pytest.fixture(scope="module")
def undisturbed(spec, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    on_engine("local", spec, folder, "slow")
    return content_of(folder)


def on_engine(name, spec, out, detector, *, asked=None, warnings=None, **options):
    says = [] if warnings is None else warnings
    cluster = ClusterRequest(**(asked or {})) if name == "ray" else None
    detector = f"python:ray_detectors:{detector}"
    return observe(spec, detector, out=out, masks=MASKS, cluster=cluster, on_warning=says.append, **options)


def worker_pids():
    """The processes of our workers that are loaded and at work."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()[1:]]
    raylets = {pid for pid, parent, _ in rows if parent == str(os.getpid())}
    return [int(pid) for pid, parent, what in rows if parent in raylets and what.startswith("ray::Worker")]


def test_our_own_cluster_is_out_of_reach_of_other_machines():
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    assert host == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: only says by which address this machine would go out
        except OSError:
            pytest.skip("this machine has no other address")
        outside = asking.getsockname()[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((outside, int(port)), 5)
    socket.create_connection((host, int(port)), 5).close()


@pytest.mark.parametrize("version", ["2.51.1", "2.40.0", "1.99.0", "3", "unknown"])
def test_a_ray_that_ignores_the_token_is_refused(version, monkeypatch):
    monkeypatch.setattr(ray, "__version__", version)
    with pytest.raises(ObjectSeekerError, match=rf"Ray {re.escape(version)} lets anyone .* install 2\.52 or later"):
        import_ray(None)


def test_the_store_is_the_same_bit_for_bit(spec, tmp_path):
    """Here of images in an archive, which workers open for themselves."""
    pytest.importorskip("fsspec")
    folder = Path(spec.rpartition(":")[2])
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for file in folder.glob("*.png"):
            archive.write(file, file.name)
    zipped = f"zip://::file://{tmp_path}/images.zip"
    on_engine("local", zipped, tmp_path / "local", "spotting", images_per_part=5)
    seen = []
    run = on_engine(
        "ray", zipped, tmp_path / "ray", "spotting", images_per_part=5, on_progress=lambda *step: seen.append(step)
    )
    assert run.complete
    assert len(run.images()) == 12
    assert seen == [(done, 12) for done in range(13)]
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")


def test_workers_that_are_killed_cost_only_what_they_were_at(spec, undisturbed, tmp_path):
    killed, warnings = [], []

    def kill(done, total):
        if done in (3, 7) and (workers := worker_pids()):
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])

    run = on_engine("ray", spec, tmp_path / "run", "slow", warnings=warnings, on_progress=kill)
    assert run.complete
    assert len(set(killed)) == 2
    lost = [sentence for sentence in warnings if "was lost, its images go to others" in sentence]
    assert len(lost) == 2
    assert content_of(tmp_path / "run") == undisturbed


def test_one_engine_goes_on_where_the_other_stopped(spec, undisturbed, tmp_path):
    class EnoughError(Exception):
        pass

    def stop(done, total):
        if done == 4:
            raise EnoughError

    out = tmp_path / "run"
    with pytest.raises(EnoughError):
        on_engine("ray", spec, out, "slow", asked={"workers": 1}, on_progress=stop)
    assert 4 <= open_run(out).finished < 12
    on_engine("local", spec, out, "slow")
    assert content_of(out) == undisturbed


def test_an_image_that_ends_worker_after_worker_is_named(tmp_path):
    spec = make_dataset(tmp_path / "images", 2)
    red = tmp_path / "images" / "1.png"
    PIL.Image.new("RGB", PIL.Image.open(red).size, (255, 0, 0)).save(red)
    with pytest.raises(ObjectSeekerError, match=rf"{red} ended 3 workers, so no other gets it"):
        on_engine("ray", spec, tmp_path / "run", "poisoned", asked={"workers": 1})
    assert open_run(tmp_path / "run").finished == 1


def test_a_detector_that_fails_is_one_sentence(spec, tmp_path):
    with pytest.raises(ObjectSeekerError, match=r"the detector failed on .*0\.png: out of luck \(on "):
        on_engine("ray", spec, tmp_path / "run", "failing", asked={"workers": 1})


def test_a_worker_with_another_detector_or_another_version_is_refused(spec, tmp_path):
    from objectseeker.runs.ray import RayEngine, _difference

    loading = DetectorLoader("python:ray_detectors:spotting", {}, str(HERE), cores=1)
    right = loading.describe(detectors.load_detector(loading.spec))
    assert _difference(right, replace(right, software=right.software | {"python": "3.99"})) == ""
    for wrong, named in (
        (replace(right, software=right.software | {"numpy": "9.9"}), r"its numpy is .*, here it is 9\.9"),
        (replace(right, software={}), "its numpy is .*, here it is missing"),
        (replace(right, names=("a",)), r"its class names is \('gadget', .*here it is \('a',\)"),
        (replace(right, own_batches=True), "whether it makes its own batches is False, here it is True"),
    ):
        assert re.match(named, _difference(right, wrong))
    other = replace(right, fingerprint="other sha256:00")
    named = (
        "cannot be used, it would find other boxes: its detector is .*spotting .*sha256.*, here it is other sha256:00"
    )
    with RayEngine(loading, ClusterRequest(workers=1), other) as engine, pytest.raises(ObjectSeekerError, match=named):
        observe(spec, engine, out=tmp_path / "run", masks=MASKS)
    unknown = replace(loading, spec="onnx:nowhere.onnx")
    with (
        RayEngine(unknown, ClusterRequest(workers=1)) as engine,
        pytest.raises(ObjectSeekerError, match=r"cannot load the detector: there is no file nowhere\.onnx"),
    ):
        engine.describe()


def test_without_a_reference_the_first_worker_says_what_the_detector_is():
    from objectseeker.runs.ray import RayEngine

    loading = DetectorLoader("builtin", {}, str(HERE), cores=1)
    with RayEngine(loading, ClusterRequest(workers=1)) as engine:
        found = engine.describe()
    assert found == loading.describe(loading.load())
    assert found == describe_detector(detectors.load_detector("builtin"), "builtin")  # nor does it depend on the cores
    assert found.own_batches


def test_what_no_machine_of_the_cluster_has_is_not_waited_for_for_ever(spec, tmp_path):
    from objectseeker.runs.ray import RayEngine

    loading = DetectorLoader("python:ray_detectors:spotting", {}, str(HERE), cores=1)
    begin = time.monotonic()
    for request in (
        ClusterRequest(gpus=1),
        ClusterRequest(cpus=64),
        ClusterRequest(gpus=1, address="auto", start_timeout=0.5),
    ):
        with (
            RayEngine(loading, request) as engine,
            pytest.raises(ObjectSeekerError, match=r"no worker (could be started|fits) .* CPUs and 0 GPUs in all"),
        ):
            engine.describe()
    assert time.monotonic() - begin < 10


def test_cheap_images_share_a_task_and_items_are_taken_no_faster_than_they_are_done(tmp_path):
    from objectseeker.runs.engines import ImageTask
    from objectseeker.runs.observe import job_of, make_manifest
    from objectseeker.runs.ray import MAX_TASK_IMAGES, QUEUED_TASKS, RayEngine

    make_dataset(tmp_path, 1)
    dataset = open_dataset(tmp_path)
    loading = DetectorLoader("python:ray_detectors:trivial", {}, str(HERE), cores=1)
    taken = 0

    def items():
        nonlocal taken
        for index in range(4000):
            taken += 1
            yield ImageTask(index, str(tmp_path / "0.png"), None)

    observing = ObservationSettings(Halves(1), base_floor=0.1)
    done = 0
    with RayEngine(loading, ClusterRequest(workers=1)) as engine:
        job = job_of(make_manifest(dataset, engine.describe(), observing, images_per_part=64))
        tasks = []
        for stored in engine.observe(job, items()):
            tasks.append(len(stored.indices))
            done += len(stored.indices)
            assert taken - done <= QUEUED_TASKS * MAX_TASK_IMAGES
    assert done == taken == 4000
    assert max(tasks) == 64


def test_a_job_that_is_given_up_leaves_nothing_for_the_next(spec, undisturbed, tmp_path):
    class EnoughError(Exception):
        pass

    def stop(done, total):
        if done == 1:
            raise EnoughError

    dataset = open_dataset(spec)
    with open_engine("python:ray_detectors:slow", cluster=ClusterRequest(workers=1)) as engine:
        with pytest.raises(EnoughError):
            observe(dataset, engine, out=tmp_path / "given-up", masks=MASKS, on_progress=stop)
        observe(dataset, engine, out=tmp_path / "run", masks=MASKS)
    assert content_of(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ({"workers": 0}, {}, "workers must be at least 1: got 0"),
        ({"cpus": -1}, {}, "cpus must not be negative: got -1"),
        ({"cpus": 1e-8}, {}, "cpus must have at most 4 decimals: got 1e-08"),
        ({"cpus": 0}, {}, "some CPU or GPU"),
        ({"gpus": 1}, {}, "would not use them: add --device cuda"),
        ({}, {"device": "cuda:0,cuda:1"}, "Ray assigns the GPUs: got 'cuda:0,cuda:1'"),
    ],
)
def test_impossible_requests_are_one_sentence(asked, options, message):
    with (
        pytest.raises(ObjectSeekerError, match=message),
        open_engine("python:ray_detectors:spotting", options, cluster=ClusterRequest(**asked)),
    ):
        pass


def test_a_cluster_that_does_not_answer_is_one_sentence(spec, tmp_path):
    arguments = ["observe", spec, "-d", "python:ray_detectors:spotting", "--out", str(tmp_path / "run")]
    arguments += ["--masks", "halves:2"]
    done = subprocess.run(
        [sys.executable, "-m", "objectseeker.cli", *arguments, "--ray", "127.0.0.1:9"],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_ray_it_says_what_to_install(spec, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ObjectSeekerError, match=r"needs Ray: pip install 'objectseeker\[ray\]'"):
        on_engine("ray", spec, tmp_path / "run", "spotting")
