"""Proof of a broken guarantee: everything needed to see it again, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker.attack.artifacts import save_picture
from objectseeker.attack.falsify import Outcome, leaking_views
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.weakest import PositionProofs
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.defence import Defence
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.files.saving import save_json, save_text

CLEAN, ATTACKED, CASE, DEFENCE, SCRIPT = "clean.png", "attacked.png", "case.json", "defence.json", "check.py"

SNIPPET = '''"""Does the defended detector lose an object that it certified? Run: python check.py"""

from pathlib import Path

from objectseeker.attack import recheck

print(recheck(Path(__file__).parent))
'''


def save_reproduction(
    folder: Path, pipeline: Pipeline, outcome: Outcome, patch: Patch, defence: Defence, *, device: str | None = None
) -> None:
    """Both images, the defence, the case, and a script that checks again."""
    judged, target = outcome.on_defence, outcome.target
    if judged is None:
        raise ObjectSeekerError(f"object {target.number} of {target.name} was not attacked")
    folder.mkdir(parents=True, exist_ok=True)
    save_picture(folder / CLEAN, PIL.Image.fromarray(target.image))
    save_picture(folder / ATTACKED, PIL.Image.fromarray(judged.image))
    defence.save(folder / DEFENCE)
    case = {
        "image": target.name,
        "box": target.box.tolist(),
        "labels": list(target.labels),
        "patch": asdict(patch),
        "corners": [list(corner) for corner in judged.position.corners],
        "size": list(judged.size),
        "threshold": pipeline.threshold,
        "device": device,
    }
    save_json(folder / CASE, case)
    save_text(folder / SCRIPT, SNIPPET)


def recheck(folder: Path, seeker: ObjectSeeker | None = None) -> dict[str, Any]:
    """Certify the clean image and judge the attacked one, both with the defence saved in `folder`.

    `seeker` takes its place: another detector, to see whether it has the same fault.
    """
    case = json.loads((folder / CASE).read_text(encoding="utf-8"))
    if seeker is None:
        seeker = Defence.load(folder / DEFENCE).seeker(case["device"])
    pipeline = Pipeline.of(seeker, case["threshold"])
    clean, attacked = load_image(folder / CLEAN), load_image(folder / ATTACKED)
    box, labels = np.array(case["box"], float), tuple(case["labels"])
    target = Target(case["image"], 0, clean, pipeline.observe(clean), box, labels)
    size = (case["size"][0], case["size"][1])
    changed = (clean != attacked).any(axis=2)
    for x, y in case["corners"]:
        changed[max(y, 0) : max(y + size[1], 0), max(x, 0) : max(x + size[0], 0)] = False
    certified, _ = pipeline.certified(target, Patch(**case["patch"]))
    position = PositionProofs.of(pipeline, target).at(np.array(case["corners"]), size)
    seen = pipeline.observe(attacked)
    still_found = pipeline.judge(target, seen).defended
    leaks = len(leaking_views(target, seen, position, size))
    broken = leaks > 0 or ((certified or position.proven) and not still_found)
    return {
        "certified": certified,
        "proven_at_this_position": position.proven,
        "only_the_patch_differs": not bool(changed.any()),
        "still_found": still_found,
        "removed_views_that_changed": leaks,
        "guarantee_broken": bool(broken and not changed.any()),
    }
