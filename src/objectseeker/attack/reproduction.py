"""Proof of a broken guarantee: everything needed to see it again, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker.attack.falsify import Outcome
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.weakest import Proof
from objectseeker.core.rule import Rule
from objectseeker.core.seeker import Detector, ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.jobs import save_json, save_text

CLEAN, ATTACKED, CASE, SCRIPT = "clean.png", "attacked.png", "case.json", "check.py"

SNIPPET = '''"""Does the defended detector lose an object that it certified? Run: python check.py"""

from pathlib import Path

from objectseeker.attack import recheck
{loading}
print(recheck(Path(__file__).parent, detector))
'''


def save_reproduction(
    folder: Path, pipeline: Pipeline, outcome: Outcome, patch: Patch, *, identity: str, loading: str
) -> None:
    """Both images, the settings, and a script that checks again. `loading` is Python that defines `detector`."""
    attempt = outcome.on_defence
    if attempt is None:
        raise ObjectSeekerError(f"object {outcome.target.number} of {outcome.target.name} was not attacked")
    folder.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(outcome.target.image).save(folder / CLEAN)
    PIL.Image.fromarray(attempt.image).save(folder / ATTACKED)
    seeker = pipeline.seeker
    save_json(
        folder / CASE,
        {
            "image": outcome.target.name,
            "box": outcome.target.box.tolist(),
            "label": outcome.target.label,
            "patch": asdict(patch),
            "position": [attempt.position.x, attempt.position.y],
            "size": list(attempt.size),
            "detector": identity,
            "rule": asdict(seeker.rule),
            "lines": seeker.lines,
            "fill": seeker.fill,
            "batch": seeker.batch,
            "threshold": pipeline.threshold,
        },
    )
    save_text(folder / SCRIPT, SNIPPET.format(loading=loading))


def recheck(folder: Path, detector: Detector) -> dict[str, Any]:
    """Certify the clean image and judge the attacked one, both with `detector`, as the case in `folder` says."""
    case = json.loads((folder / CASE).read_text(encoding="utf-8"))
    seeker = ObjectSeeker.with_rule(
        detector, Rule(**case["rule"]), lines=case["lines"], fill=case["fill"], batch=case["batch"]
    )
    pipeline = Pipeline(seeker, case["threshold"])
    clean, attacked = load_image(folder / CLEAN), load_image(folder / ATTACKED)
    target = Target(case["image"], 0, clean, pipeline.observe(clean), np.array(case["box"], float), case["label"])
    patch = Patch(**case["patch"])
    certificate = seeker.rule.certify(target.observation, target.truth, patch, threshold=pipeline.threshold)
    (x, y), (wide, tall) = case["position"], case["size"]
    changed = (clean != attacked).any(axis=2)
    changed[max(y, 0) : max(y + tall, 0), max(x, 0) : max(x + wide, 0)] = False
    certified = bool(certificate.certified[0, 0])
    proven = Proof.of(pipeline, target).at(x, y, (wide, tall)).proven
    found = pipeline.judge(target, pipeline.observe(attacked)).defended
    return {
        "certified": certified,
        "proven_at_this_position": proven,
        "only_the_patch_differs": not bool(changed.any()),
        "still_found": found,
        "guarantee_broken": (certified or proven) and not changed.any() and not found,
    }
