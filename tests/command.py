"""The command line as a user calls it, and a detector to call it with."""

import atexit
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

DETECTOR = """
import numpy as np
from objectseeker import Detections

names = ("bright",)

def detect(images):
    found = []
    for image in images:
        ys, xs = np.nonzero(image[..., 0] > 200)
        few = len(xs) < 5
        box = [] if few else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
        found.append(Detections(box, [0.9] * len(box), [0] * len(box)))
    return found

detect.names = names

def broken(images):
    mean = float(np.mean([i.mean() for i in images]))
    return [Detections(d.xyxy, d.score - mean / 1e6, d.label) for d in detect(images)]

broken.names = names
"""


def run(folder: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    done = _ask(folder, [str(argument) for argument in arguments])
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def certificates(folder: Path, run_folder: object, *options: object) -> dict[str, Any]:
    """What `evaluate --objects` writes: the certificate of every object."""
    run(folder, "evaluate", run_folder, "--objects", "certificates.json", *options)
    written: dict[str, Any] = json.loads((folder / "certificates.json").read_text())
    return written


def _ask(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Have the command run by a fork of `command_server`, of which every process of tests has one."""
    server = _server()
    with tempfile.TemporaryDirectory() as own:
        streams = {name: str(Path(own) / name) for name in ("stdout", "stderr")}
        server.stdin.write(json.dumps({"folder": str(folder), "arguments": arguments, **streams}) + "\n")
        server.stdin.flush()
        returned = json.loads(server.stdout.readline())
        outputs = {name: Path(file).read_text(encoding="utf-8") for name, file in streams.items()}
    return subprocess.CompletedProcess(arguments, returned, **outputs)


@cache
def _server() -> Any:
    program = str(Path(__file__).with_name("command_server.py"))
    server = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    return server


def write_dataset(
    folder: Path, boxes: Sequence[tuple[int, int, int, int]], size: tuple[int, int] = (90, 60), dark: int = 30
) -> Path:
    """Images of one bright box (x, y, width, height) each, as COCO annotations, and a detector that sees it."""
    (folder / "mine.py").write_text(DETECTOR)
    (folder / "images").mkdir()
    images, annotations = [], []
    for number, (x, y, width, height) in enumerate(boxes):
        image = np.full((size[1], size[0], 3), dark, np.uint8)
        image[y : y + height, x : x + width] = 255
        PIL.Image.fromarray(image).save(folder / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": size[0], "height": size[1]})
        box = {"bbox": [x, y, width, height], "iscrowd": 0}
        annotations.append({"id": number, "image_id": number, "category_id": 1} | box)
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "bright"}]}
    (folder / "truth.json").write_text(json.dumps(content))
    return folder
