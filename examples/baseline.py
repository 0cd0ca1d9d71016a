"""This method as a baseline in your benchmark: any detector, tuned on your data, with its figures and its time.

    python baseline.py torchvision:fasterrcnn_resnet50_fpn_v2 coco:val.json:images coco:test.json:images baseline
    python baseline.py transformers:PekingU/rtdetr_r18vd voc:VOCdevkit:val voc:VOCdevkit:test baseline --device cuda

The rule is searched on the first images, all figures are about the second. It resumes where it was stopped. Then, in
your benchmark, these three lines:

    from objectseeker import Defense
    seeker = Defense.load("baseline/tuned/defense.json").build(device="cuda")
    detections = seeker(images)
"""

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from statistics import median

from objectseeker import Defense
from objectseeker.cli import app
from objectseeker.demo.samples import samples
from objectseeker.files.images import load_image

POINT = ["--operating-point", "fppi=1"]  # an image: where detectors and rules are compared
ATTACK = ["--max-objects", 10, "--steps", 20, "--restarts", 2]  # more of each is a stronger attack


def objectseeker(*arguments):
    """A command, as you type it, in this process; what it answers."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        app([*map(str, arguments), "--json"], standalone_mode=False)
    return json.loads(said.getvalue())


detector, searched, tested, folder, *device = sys.argv[1:]
out = Path(folder)
tuned, run = out / "tuned" / "defense.json", out / "tested"
if not tuned.exists():
    objectseeker("observe", searched, "--detector", detector, "--out", out / "searched", *device)
    objectseeker("tune", out / "searched", *POINT, "--max-ap-loss", 1, "--out", out / "tuned")
objectseeker("observe", tested, "--defense", tuned, "--out", run, *device)
attacks = out / "attack" / "attack.json"
if not attacks.exists():
    objectseeker("attack", run, "--defense", tuned, *ATTACK, "--out", attacks.parent, *device)
settings = {
    # the paper's rule with the paper's scores
    "published": ["--set", "rule=paper", "--set", "alpha=0.8", "--set", "beta=0.5", *POINT],
    "default": POINT,  # what every command takes where you do not say otherwise
    "tuned": ["--defense", tuned, *POINT],
    # what runs: its base_threshold is that of the searched images
    "as saved": ["--defense", tuned, "--attacked", attacks],
}
figures = {name: objectseeker("evaluate", run, *options) for name, options in settings.items()}
seeker = Defense.load(tuned).build(*device[1:])
images = [load_image(sample.path) for sample in samples()[:3]]


def seconds(call):
    """The median over the images, after one that is not counted: the first call also prepares the detector."""
    times = []
    for image in (images[0], *images):
        begin = time.perf_counter()
        call([image])
        times.append(time.perf_counter() - begin)
    return median(times[1:])


def line(what, undefended, values):
    cells = ["-" if value is None else f"{value:.1f}" for value in (undefended, *values)]
    print(f"{what:26}" + "".join(f"{cell:>12}" for cell in cells))


print(" " * 26 + "".join(f"{name:>12}" for name in ("undefended", *figures)))
undefended, ours = figures["default"]["undefended"], [one["defended"] for one in figures.values()]
for what, key in (("clean AP50", "ap50"), ("clean recall", "clean_recall"), ("false positives per image", "fppi")):
    line(what, undefended[key], [one[key] for one in ours])
for where in ("far", "close", "over"):
    line(f"certified recall {where}", 0, [one["certified_recall"][where] for one in ours])

attacked = figures["as saved"]["under_attack"]
print(
    f"\nRecall of {attacked['objects']} objects under a patch of 1 % over each, in percent: proven, and after an attack"
)
for name in ("undefended", "defended"):
    proven, left = (100 * attacked[name][key]["rate"] for key in ("certified_recall", "recall_under_attack"))
    became = attacked["effects"][name]
    print(f"{name:12}at least {proven:.0f}, at most {left:.0f}: {became['disappeared']['count']} disappeared", end=", ")
    print(f"{became['misclassified']['count']} misclassified; {became['fabricated_boxes']} boxes fabricated")

passes = seeker.masks.forward_passes(*images[0].shape[1::-1])
print(f"\nSeconds per image, {seeker.masks}")
for name, count, call in (("undefended", 1, seeker.detector), ("defended", passes, seeker)):
    print(f"{name:26}{count:4} passes{seconds(call):10.3f}")
