"""This method as a baseline in your benchmark: any detector, tuned on your data, with its figures and its time.

    python baseline.py torchvision:fasterrcnn_resnet50_fpn_v2 coco:instances.json:images baseline
    python baseline.py transformers:PekingU/rtdetr_r18vd coco:instances.json:images baseline --device cuda

Tuned means: the rule that certifies most at a loss of at most a point of clean AP, searched on one half of
the images. It goes on where it was stopped. Then, in your benchmark, these three lines:

    from objectseeker import Defence
    seeker = Defence.load("baseline/tuned/defence.json").seeker(device="cuda")
    detections = seeker(images)
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from objectseeker import Defence
from objectseeker.datasets import open_dataset
from objectseeker.files.images import load_image


def objectseeker(*arguments):
    """What a command prints; it tells its progress itself."""
    program = [sys.executable, "-c", "from objectseeker.cli import main; main()"]
    return subprocess.run([*program, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


detector, data, out, *device = sys.argv[1:]
out = Path(out)
tuned = out / "tuned" / "defence.json"
start = ["--defence", tuned] if tuned.exists() else ["--detector", detector]
objectseeker("observe", data, *start, "--out", out / "run", *device)
if not tuned.exists():
    objectseeker("tune", out / "run", "--loss", 1, "--out", out / "tuned")
figures = json.loads(objectseeker("evaluate", out / "run", "--defence", tuned, "--patch", "1%", "--json"))

seeker = Defence.load(tuned).seeker(*device[1:])
images = [load_image(entry.path) for entry in open_dataset(data).entries[:10]]
seconds = {}
for name, run in (("undefended", seeker.detector), ("defended", seeker)):
    run(images[:1])  # the first call takes longer
    begun = time.perf_counter()
    for image in images:
        run([image])
    seconds[name] = (time.perf_counter() - begun) / len(images)

undefended, defended = figures["vanilla"], figures["objectseeker"]
print(f"clean AP50: undefended {undefended['ap50']:.1f}, defended {defended['ap50']:.1f}")
print(f"clean recall: undefended {undefended['clean_recall']:.1f}, defended {defended['clean_recall']:.1f}")
for where, recall in defended["certified_recall"].items():
    print(f"recall under a patch of 1 %, {where}: at least {recall:.1f}, whatever the patch")
print(f"recall under any single patch of 1 %, objects taken together: at least {defended['joint_recall']:.1f}")
print(f"milliseconds an image: undefended {1e3 * seconds['undefended']:.1f}, defended {1e3 * seconds['defended']:.1f}")
