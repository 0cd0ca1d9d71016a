"""Kill workers, machines and the driver of a Ray run, and compare it with an undisturbed one.

    python scripts/ray_kill_test.py [--workers N] [--raylets N] [--drivers N] [--namespaces] [--seed S]

A cluster of two machines is started here: two raylets, with --namespaces each in a network namespace of its own (needs
root and `ip`), else side by side on this machine. While a job runs on it, kill -9 hits in random order

- workers: the process that has the detector, on either machine,
- raylets: the second machine's, whose workers die with it; it comes back as a new machine a little later,
- drivers: the process that writes the run; the same command is started again.

Whenever the job gets through before all kills are done, it begins anew in another folder. In the end every file of
every run must equal that of a run of the local engine to the last byte: nothing lost, nothing twice. Parts hold eight
images, so that pending files are made and merged all the time. Only processes started here are killed, by their ids.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from observe_job import MASKS, content_of, make_dataset  # noqa: E402

DETECTOR = "python:ray_detectors:slow"
PORT = 6399
WAIT = 60  # seconds for anything that should happen soon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--workers", type=int, default=6, help="kills of workers")
    parser.add_argument("--raylets", type=int, default=3, help="kills of the second machine")
    parser.add_argument("--drivers", type=int, default=3, help="kills of the driver")
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", nargs=3, metavar=("DATASET", "RUN", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    rng = np.random.default_rng(options.seed)
    kills = ["worker"] * options.workers + ["raylet"] * options.raylets + ["driver"] * options.drivers
    rng.shuffle(kills)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        spec = make_dataset(folder / "images", options.images)
        drive(spec, str(folder / "undisturbed"), "local")
        expected = content_of(folder / "undisturbed")
        prefixes = stack.enter_context(namespaces()) if options.namespaces else [[], []]
        hosts = ["10.77.0.1", "10.77.0.2"] if options.namespaces else ["127.0.0.1", "127.0.0.1"]
        cluster = Cluster(prefixes, hosts)
        stack.callback(cluster.stop)
        runs = disturbed_runs(cluster, spec, folder, options.images, kills, rng)
        for run in runs:
            found = content_of(run)
            different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            assert not different, f"{run.name} differs in {different}"
    print(
        f"{len(runs)} runs of {options.images} images with {options.workers} workers, {options.raylets} raylets and "
        f"{options.drivers} drivers killed ({'two network namespaces' if options.namespaces else 'two raylets'}): "
        f"all {len(expected)} files of each equal to the last byte"
    )


def drive(dataset: str, out: str, engine: str) -> None:
    """The job itself; `engine` is local or the address of a cluster."""
    from objectseeker import observe
    from objectseeker.runs.engines import ClusterRequest

    os.chdir(TESTS)  # where the detector lies
    cluster = None if engine == "local" else ClusterRequest(address=engine)
    warn = lambda sentence: print(f"    {sentence}", file=sys.stderr, flush=True)  # noqa: E731
    observe(dataset, DETECTOR, out=out, masks=MASKS, cluster=cluster, images_per_part=8, on_warning=warn)


def disturbed_runs(
    cluster: Cluster, spec: str, folder: Path, images: int, kills: list[str], rng: np.random.Generator
) -> list[Path]:
    """Run the job, again and again if need be, until every one of `kills` has hit a running one."""
    runs = [folder / "disturbed-0"]
    driver = cluster.drive(spec, runs[-1])
    left = list(kills)
    while left:
        done = wait_for_progress(runs[-1], driver, int(rng.integers(2, 9)))
        if driver.poll() is not None:
            require_success(driver)
            runs.append(folder / f"disturbed-{len(runs)}")
            driver = cluster.drive(spec, runs[-1])
            continue
        workers = cluster.workers()
        if done == images:
            continue  # as good as through
        if left[-1] == "worker" and not workers:
            continue  # the next ones are starting
        kill = left.pop()
        print(f"{runs[-1].name}, {done} images finished: kill -9 of a {kill}", flush=True)
        if kill == "worker":
            os.kill(int(rng.choice(workers)), signal.SIGKILL)
        elif kill == "raylet":
            cluster.lose_second()
        else:
            driver.kill()
            driver.wait()
            driver = cluster.drive(spec, runs[-1])
    driver.wait(10 * WAIT)
    require_success(driver)
    return runs


def wait_for_progress(run: Path, driver: subprocess.Popen[bytes], more: int) -> int:
    """Wait until that many more images are on the disk, or the job is done; return how many are there."""
    begin, deadline = finished(run), time.monotonic() + WAIT
    while (now := finished(run)) < begin + more and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def finished(run: Path) -> int:
    from objectseeker.errors import ObjectSeekerError
    from objectseeker.runs.run import open_run

    try:
        return open_run(run).finished
    except (ObjectSeekerError, OSError):  # not there yet, or a file went while it was read
        return 0


def require_success(driver: subprocess.Popen[bytes]) -> None:
    assert driver.returncode == 0, f"the job ended with status {driver.returncode}"


class Cluster:
    """Two machines, each a `ray start --block`."""

    def __init__(self, prefixes: list[list[str]], hosts: list[str]) -> None:
        self._prefixes, self._hosts = prefixes, hosts
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        self._head = self._start(0, head)
        self._second = self._start(1, [f"--address={hosts[0]}:{PORT}"])

    def _start(self, number: int, arguments: list[str]) -> subprocess.Popen[bytes]:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", *arguments, f"--node-ip-address={self._hosts[number]}", "--num-cpus=1", "--block"]
        command += ["--object-store-memory=100000000"]
        node = subprocess.Popen(
            [*self._prefixes[number], *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: raylets_of(node.pid), "a raylet")
        time.sleep(2)
        return node

    def drive(self, spec: str, run: Path) -> subprocess.Popen[bytes]:
        address = f"{self._hosts[0]}:{PORT}"
        return subprocess.Popen([*self._prefixes[0], sys.executable, __file__, "--drive", spec, str(run), address])

    def workers(self) -> list[int]:
        """Those that are loaded."""
        return [
            pid
            for node in (self._head, self._second)
            for pid, what in descendants(node.pid)
            if what.startswith("ray::Worker")
        ]

    def lose_second(self) -> None:
        """Kill the raylet of the second machine; a new one takes its place."""
        (raylet,) = raylets_of(self._second.pid)
        os.kill(raylet, signal.SIGKILL)
        self._second.wait(WAIT)
        self._second = self._start(1, [f"--address={self._hosts[0]}:{PORT}"])

    def stop(self) -> None:
        for node in (self._second, self._head):
            node.terminate()
        for node in (self._second, self._head):
            node.wait(WAIT)


def raylets_of(pid: int) -> list[int]:
    return [child for child, what in descendants(pid) if "/raylet/raylet " in what]


def descendants(pid: int) -> list[tuple[int, str]]:
    """All processes below `pid`, with their command lines."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [
        (int(own), int(parent), what) for own, parent, what in (line.split(None, 2) for line in listed.splitlines())
    ]
    found, wanted = [], {pid}
    while wanted:
        children = [(own, what) for own, parent, what in rows if parent in wanted]
        found += children
        wanted = {own for own, _ in children}
    return found


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT} seconds for {what}"
        time.sleep(0.1)


@contextmanager
def namespaces() -> Iterator[list[list[str]]]:
    """Two network namespaces joined by a cable, as command prefixes."""
    names = [f"objectseeker-{os.getpid()}-{number}" for number in range(2)]
    cables = [f"os{os.getpid()}v{number}" for number in range(2)]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for number, (name, cable) in enumerate(zip(names, cables, strict=True)):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", cable)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", cable, "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    main()
