"""Compare seconds per image on this machine and on a Ray cluster of it, taking turns.

    python scripts/scale_throughput.py [--rounds 3] [--images 8] [--lines 8] [--json FILE]

Two detectors: one that only sleeps for a second an image, which shows what Ray itself costs, and the builtin one, each
worker with one core and one thread, on the bundled images. The cluster is up and the detectors are loaded before
anything is timed; what is timed is `observe` from the first image to the finished store. All runs of one detector must
be equal to the last byte. Numbers are medians over the rounds; the machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from objectseeker import Halves
from objectseeker.datasets import Dataset, open_dataset
from objectseeker.demo.samples import samples
from objectseeker.detectors.onnx import available_cores
from objectseeker.runs.engines import ClusterRequest, Engine, LocalEngine, open_engine
from objectseeker.runs.observe import observe
from objectseeker.runs.ray import DetectorLoader

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from observe_job import content_of  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--lines", type=int, default=8, help="of the built-in detector")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.chdir(TESTS)  # where the sleeping detector lies
    start_cluster(available_cores())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        dataset = repeated_images(Path(name), options.images)
        for spec, lines in (("python:ray_detectors:sleeping", 1), ("builtin", options.lines)):
            rows += measure(spec, lines, dataset, Path(name) / spec.rpartition(":")[2], options)
    for row in rows:
        print(
            f"{row['detector']:9} {row['engine']:28} {row['seconds']:7.3f} s per image, {row['ratio']:.3f} of its "
            f"local counterpart; rounds {row['rounds']}"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"cores": available_cores(), "load": os.getloadavg(), "rows": rows}, indent=1)
        )


def measure(spec: str, lines: int, dataset: Dataset, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    cores = available_cores()
    with ExitStack() as stack:

        def local(cores_each: int, count: int = 1) -> Engine:
            return LocalEngine([DetectorLoader(spec, {}, str(TESTS), cores_each).load() for _ in range(count)], spec)

        def ray(workers: int) -> Engine:
            return stack.enter_context(open_engine(spec, cluster=ClusterRequest(workers=workers)))

        # Each with the one it is to be compared with. Sleeping is done side by side by threads, computing by cores.
        sleeping = spec != "builtin"
        engines: dict[str, tuple[Engine, str]] = {
            "local, 1 core": (local(1), "local, 1 core"),
            "ray, 1 worker": (ray(1), "local, 1 core"),
            f"local, {cores} cores": (local(1, cores) if sleeping else local(cores), f"local, {cores} cores"),
            f"ray, {cores} workers": (ray(cores), f"local, {cores} cores"),
        }
        for number, (engine, _) in enumerate(
            engines.values()
        ):  # workers start, detectors are called for the first time
            observe(dataset, engine, out=folder / f"warm-{number}", masks=Halves(1), limit=2 * cores)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        contents = []
        for turn in range(options.rounds):
            for name, (engine, _) in engines.items():
                out = folder / f"{turn}-{name}"
                begin = time.perf_counter()
                observe(dataset, engine, out=out, masks=Halves(lines))
                seconds[name].append((time.perf_counter() - begin) / len(dataset))
                contents.append(content_of(out))
    assert all(content == contents[0] for content in contents), "the engines did not write the same bytes"
    return [
        {
            "detector": spec.rpartition(":")[2],
            "engine": name,
            "seconds": median(seconds[name]),
            "ratio": median(seconds[name]) / median(seconds[against]),
            "rounds": [round(value, 3) for value in seconds[name]],
        }
        for name, (_, against) in engines.items()
    ]


def start_cluster(cores: int) -> None:
    """With room for the workers of all engines at once, though only one engine works at a time."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray

    ray.init(address="local", num_cpus=1 + cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def repeated_images(folder: Path, images: int) -> Dataset:
    """A dataset of that many images: the bundled ones, repeated."""
    paths = [str(sample.path) for sample in samples()]
    columns = {"id": [str(n) for n in range(images)], "path": [paths[n % len(paths)] for n in range(images)]}
    pq.write_table(pa.table(columns), folder / "images.parquet")
    return open_dataset(f"list:{folder / 'images.parquet'}")


if __name__ == "__main__":
    main()
