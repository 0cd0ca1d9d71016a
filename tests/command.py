"""The command line as a user calls it, and a detector to call it with."""

import subprocess
import sys
from pathlib import Path

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
    done = subprocess.run(
        [sys.executable, "-m", "objectseeker.cli", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
