"""A small observe job that can be run, and killed, as a process of its own.

python observe_job.py DATASET RUN SECONDS_PER_BATCH
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image

from objectseeker import Detections, Halves
from objectseeker.runs.observe import observe
from objectseeker.runs.run import Run

LINES = 3
MASKS = Halves(LINES)


@dataclass
class Spots:
    """A real detector, if a simple one: boxes around what is bright, in each color, at fractions of a pixel.

    Some of its scores lie below the usual floors, and one of its classes is in no dataset here.
    """

    names: tuple[str, ...] = ("gadget", "thing", "shadow")
    fingerprint: str = "spots sha256:0123"
    seconds: float = 0.0
    calls: int = 0

    def __call__(self, images):
        self.calls += 1
        time.sleep(self.seconds)
        return [self._find(image) for image in images]

    def _find(self, image):
        boxes, scores, labels = [], [], []
        for color in range(3):
            for limit in (60, 130, 200, 245):
                ys, xs = np.nonzero(image[..., color] > limit)
                if len(xs):
                    x, y, spread_x, spread_y = xs.mean(), ys.mean(), xs.std() + 1 / 3, ys.std() + 1 / 3
                    boxes.append([x - spread_x, y - spread_y, x + spread_x, y + spread_y])
                    scores.append(len(xs) / image[..., 0].size)
                    labels.append(color)
        return Detections(np.reshape(boxes, (-1, 4)), scores, labels)


def make_dataset(folder: Path, count: int, *, names: tuple[str, ...] = ("thing", "gadget", "rarity")) -> str:
    """`count` small noisy images of several sizes with a few objects each, some of them crowds; gives the spec."""
    rng = np.random.default_rng(count)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number in range(count):
        width, height = (int(side) for side in rng.integers(14, 30, 2))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        for _ in range(rng.integers(0, 4)):
            bbox = [*rng.uniform(0, 8, 2).tolist(), *rng.uniform(1, 6, 2).tolist()]
            crowd, category = int(rng.random() < 0.2), int(rng.integers(len(names)))
            annotations.append({"image_id": number, "category_id": category, "bbox": bbox, "iscrowd": crowd})
    categories = [{"id": label, "name": name} for label, name in enumerate(names)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(content))
    return f"coco:{folder / 'truth.json'}:{folder}"


def run_here(spec: str, out: Path, detector: Spots | None = None, **options) -> Run:
    """Observe with `MASKS` and a small detector, unless `options` say otherwise."""
    return observe(spec, detector or Spots(), out=out, **{"masks": MASKS, **options})


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, byte for byte."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class Crash(BaseException):
    """The machine stops."""


def crash_before(number, monkeypatch):
    """Stop right before the given one of all the operations that change the disk, tearing what was not yet safe."""
    count = iter(range(10_000))

    def stopping(operation, torn=lambda *a: None):
        def wrapped(*arguments, **options):
            if next(count) == number:
                torn(*arguments)
                raise Crash
            return operation(*arguments, **options)

        return wrapped

    def tear(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not a folder
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)

    monkeypatch.setattr(os, "fsync", stopping(os.fsync, tear))
    for name in ("replace", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, stopping(getattr(Path, name)))


def kill_until_done(
    spec: str, out: Path, expected: dict[str, bytes], *, kills: int, seconds: float, rng: np.random.Generator
) -> list[int]:
    """Kill the job `kills` times at random moments, resuming it each time, and compare whenever it gets through.

    Gives the number of parts there were at each kill. After the last kill the job is left to end.
    """
    seen: list[int] = []
    while len(seen) < kills:
        process = _start(spec, out, seconds)
        time.sleep(rng.uniform(0, 0.1 + 10 * seconds))
        if process.poll() is None:
            process.kill()
            process.wait()
            seen.append(len(list(out.glob("parts/*.parquet"))))
        else:
            _require(process, out, expected)
            shutil.rmtree(out)
        if process.stdout:
            process.stdout.close()
    process = _start(spec, out, seconds)
    process.communicate(timeout=600)
    _require(process, out, expected)
    return seen


def _start(spec: str, out: Path, seconds: float) -> subprocess.Popen[bytes]:
    """The job as a process, past its imports."""
    process = subprocess.Popen([sys.executable, __file__, spec, str(out), str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def _require(process: subprocess.Popen[bytes], out: Path, expected: dict[str, bytes]) -> None:
    assert process.returncode == 0, f"the job ended with status {process.returncode}"
    found = content_of(out)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


if __name__ == "__main__":
    dataset, folder, pause = sys.argv[1:]
    print("ready", flush=True)
    run_here(dataset, Path(folder), Spots(seconds=float(pause)))
