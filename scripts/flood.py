"""Flood a defense with the maximum number of boxes per view: time, memory, and no lost certificate.

    python scripts/flood.py [--boxes 300] [--masks halves:30] [--memory 2] [--json]

The detector sees one white object. Wherever it sees the patch, it answers as the attacker likes, with `--boxes` boxes
that hide the object as well as boxes can: they never touch it. The patch is drawn far from the object, close to it and
over it; a last image is all patch, so that every single view is flooded. Each image must be answered within the memory
(GiB of address space), and an object that was certified must be found. Prints seconds and peak memory; exit status 1
if an object was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker import Defense, Detections, Patch, Rule
from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.core.recipes import parse_recipe

WIDTH, HEIGHT = 160, 120
OBJECT = (104, 72, 136, 100)
CORNERS = {"far": (6, 8), "close": (88, 78), "over": (112, 80)}  # of the patch
SIDE = 14  # a square of 1 % of the image, rounded up
MAX_BOXES = int(
    os.environ.get("FLOOD_BOXES", "300")
)  # in one view; the detector is loaded by its name, so not an argument

names = ("white",)


# --- the detector ----------------------------------------------------------------------------------------------------


def detect(images: Sequence[np.ndarray]) -> list[Detections]:
    """A pure function of each image: the attacker's boxes where the patch can be seen, else the object."""
    return [_flooded(image) if _sees_patch(image) else _seen(image) for image in images]


def _sees_patch(image: np.ndarray) -> bool:
    return bool((image[..., 0] == 255).any() and ((image[..., 0] == 255) & (image[..., 1] == 0)).any())


def _seen(image: np.ndarray) -> Detections:
    ys, xs = np.nonzero((image == 255).all(axis=2))
    box = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]] if len(xs) else []
    return Detections(box, [0.9] * len(box), [0] * len(box))


def _flooded(image: np.ndarray) -> Detections:
    """The patch's blue says which flood; the boxes differ from view to view."""
    red = (image[..., 0] == 255) & (image[..., 1] == 0)
    rng = np.random.default_rng(zlib.crc32(image.tobytes()))
    flood = FLOODS[int(image[..., 2][red][0])]
    untouched = not (image == DEFAULT_FILL).all(axis=2).any()
    # Base boxes would explain the masked ones away: only the first flood has them, against the others nothing helps.
    boxes = np.empty((0, 4)) if untouched and flood is not scattered else flood(rng)
    return Detections(boxes, np.full(len(boxes), 0.99), np.zeros(len(boxes), np.int64))


def scattered(rng: np.random.Generator) -> np.ndarray:
    """The most boxes, anywhere but on the object."""
    return _boxes(
        rng.uniform((0, 0), (OBJECT[0] - 20, HEIGHT - 20), (MAX_BOXES, 2)), rng.uniform(2, 20, (MAX_BOXES, 2))
    )


def chain(rng: np.random.Generator) -> np.ndarray:
    """Each box is just a neighbor of the next: one cluster, found link by link."""
    start = np.linspace(0, OBJECT[0] - 24, MAX_BOXES) + rng.uniform(0, 0.2)
    return _boxes(np.stack([start, np.full(MAX_BOXES, 30.0)], axis=1), np.full((MAX_BOXES, 2), 20.0))


def crosses(rng: np.random.Generator) -> np.ndarray:
    """Bars that cross each other and are not neighbors: every pair is compared, no two are merged."""
    half = MAX_BOXES // 2
    place = np.sort(rng.uniform(0, 1, MAX_BOXES))[:, None]
    upright = np.hstack([place[:half] * (OBJECT[0] - 4), np.zeros((half, 1))])
    lying = np.hstack([np.zeros((MAX_BOXES - half, 1)), place[half:] * (HEIGHT - 2)])
    sides = np.vstack([np.tile([0.4, HEIGHT], (half, 1)), np.tile([OBJECT[0] - 1.0, 0.3], (MAX_BOXES - half, 1))])
    return _boxes(np.vstack([upright, lying]), sides)


def overlapping(rng: np.random.Generator) -> np.ndarray:
    """Equal boxes that overlap by about half: few are neighbors, and all are near each other."""
    return _boxes(rng.uniform((0, 0), (45, 45), (MAX_BOXES, 2)), np.full((MAX_BOXES, 2), 50.0))


FLOODS: tuple[Callable[[np.random.Generator], np.ndarray], ...] = (scattered, chain, crosses, overlapping)


def _boxes(corner: np.ndarray, sides: np.ndarray) -> np.ndarray:
    return np.hstack([corner, corner + sides])


# --- the game --------------------------------------------------------------------------------------------------------


def scene() -> np.ndarray:
    image = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
    image[OBJECT[1] : OBJECT[3], OBJECT[0] : OBJECT[2]] = 255
    return image


def attacked(where: str, flood: int) -> np.ndarray:
    image = scene()
    x, y = CORNERS.get(where, (0, 0))
    across, down = (SIDE, SIDE) if where in CORNERS else (WIDTH, HEIGHT)
    image[y : y + down, x : x + across] = (255, 0, flood)
    return image


def play(masks: str) -> dict[str, Any]:
    """Every flood from every place, against the defense as it is saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "defense.json"
        Defense(detector="python:flood:detect", rule=Rule(), masks=parse_recipe(masks)).save(file)
        seeker = Defense.load(file).build()
    truth = Detections([OBJECT], [1.0], [0])
    patches = [Patch(area=0.01, location=where) for where in ("far", "close", "over")]
    (observation,) = seeker.observe([scene()])
    certified = seeker.certify(observation, truth, patches).certified[:, 0].tolist()
    rounds = []
    for flood, strategy in enumerate(FLOODS):
        for where, proven in zip([*CORNERS, "every view"], [*certified, False], strict=True):
            began = time.perf_counter()
            (boxes,) = seeker([attacked(where, flood)])
            rounds.append(
                {
                    "flood": strategy.__name__,
                    "patch": where,
                    "certified": proven,
                    "found": bool(_covers(boxes)),
                    "output": len(boxes),
                    "seconds": round(time.perf_counter() - began, 2),
                }
            )
    return {"views": len(observation.masks) + 1, "boxes_per_view": MAX_BOXES, "rounds": rounds}


def _covers(boxes: Detections) -> bool:
    """Whether a box of the object's label covers any of it."""
    shared = np.minimum(boxes.xyxy[:, 2:], OBJECT[2:]) - np.maximum(boxes.xyxy[:, :2], OBJECT[:2])
    return bool(((shared > 0).all(axis=1) & (boxes.label == 0)).any())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, help="in every view that shows the patch")
    parser.add_argument("--masks", default="halves:30")
    parser.add_argument("--memory", type=float, default=2.0, help="GiB of address space")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.boxes is not None:
        os.environ["FLOOD_BOXES"] = str(arguments.boxes)
    import resource

    limit = int(arguments.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.chdir(Path(__file__).resolve().parent)  # where python:flood:detect is found

    from flood import play

    outcome = play(arguments.masks)
    outcome["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    lost = [one for one in outcome["rounds"] if one["certified"] and not one["found"]]
    if arguments.json:
        print(json.dumps(outcome, indent=2))
    else:
        for one in outcome["rounds"]:
            proven, seen = "certified" * one["certified"], "found" if one["found"] else "hidden"
            row = f"{one['flood']:12} {one['patch']:10} {proven:9} {seen:6} {one['output']:7,} boxes"
            print(f"{row} {one['seconds']:7.2f} s")
        print(f"{outcome['views']} views, {outcome['boxes_per_view']} boxes in each: peak {outcome['peak_mib']} MiB")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
