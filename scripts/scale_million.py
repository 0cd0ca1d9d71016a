"""Observe a list of a million images with a trivial detector, in constant memory of the driver.

    python scripts/scale_million.py [--images 1000000] [--engine ray] [--workers 2] [--keep FOLDER]

The listing is a Parquet file of that many ids over a hundred small files; the detector finds one box in each of the
five views of an image (one line per axis), whatever it shows. So all there is to see is what a run costs besides the
detector: every 100,000 images the driver's memory, the rate and what is on the disk, and at the end the store.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq

TESTS = Path(__file__).resolve().parents[1] / "tests"
FILES = 100
ROWS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--engine", default="ray")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=100_000)
    parser.add_argument("--read", action="store_true", help="go through all images of the finished run, too")
    parser.add_argument("--keep", type=Path, help="leave the run here")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listing = write_listing(folder, options.images)
        os.chdir(TESTS)  # where the detector lies
        observe_all(f"list:{listing}", folder / "run", options)


def write_listing(folder: Path, images: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.png")
    file = folder / "images.parquet"
    schema = pa.schema([("id", pa.string()), ("path", pa.string())])
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, images, ROWS):
            numbers = range(start, min(start + ROWS, images))
            columns = [[f"frame {n:09d}" for n in numbers], [f"{n % FILES}.png" for n in numbers]]
            writer.write_table(pa.table(columns, schema=schema))
    return file


def observe_all(spec: str, out: Path, options: argparse.Namespace) -> None:
    from objectseeker import Halves, observe, open_run
    from objectseeker.datasets import open_dataset
    from objectseeker.runs.engines import ClusterRequest

    begin = time.perf_counter()
    say = Printer(begin)
    dataset = open_dataset(spec)
    say(f"{len(dataset):,} images listed")
    cluster = ClusterRequest(workers=options.workers) if options.engine == "ray" else None

    def progress(done: int, total: int) -> None:
        if done % options.every == 0:
            files = sum(1 for _ in out.glob("parts/*"))
            say(f"{done:>9,} of {total:,} done, {done / (time.perf_counter() - begin):>6,.0f}/s, {files:,} parts")

    detector = "python:ray_detectors:trivial"
    observe(dataset, detector, out=out, masks=Halves(1), cluster=cluster, on_progress=progress, on_warning=say)
    say("observed")
    run = open_run(out)
    say(f"opened again, every checksum verified: complete {run.complete}, {len(run.indices):,} images")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    count = sum(1 for file in out.rglob("*") if file.is_file())
    listing = (out / "images.parquet").stat().st_size
    each = size / options.images
    say(f"store: {size:,} bytes in {count:,} files, {each:.1f} bytes per image ({listing:,} are the listing)")
    if options.read:
        read = sum(len(image.observation.all_masked) for image in run.images())
        say(f"read through: {read:,} masked boxes")


class Printer:
    """Prints with the time and the memory of this process; to the error stream, since Ray's output is kept away."""

    def __init__(self, begin: float) -> None:
        self.begin = begin

    def __call__(self, sentence: str) -> None:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        now, most = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        seconds = time.perf_counter() - self.begin
        print(f"{seconds:7.1f} s  {now:6.0f} MB now, {most:6.0f} at most  {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
