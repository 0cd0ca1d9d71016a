"""What an attack leaves on disk: tables, loss curves, adversarial images, pictures, and proof of a broken promise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.attack.attack_metrics import FATES, effects_of
from objectseeker.attack.falsify import JudgedImage, Outcome, leaking_views
from objectseeker.attack.pipeline import GOOD_FIT, Pipeline, Target
from objectseeker.attack.placement import PositionProofs
from objectseeker.core.boxes import Detections, iou
from objectseeker.core.masks import Image
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text, write_atomic
from objectseeker.files.images import load_image
from objectseeker.files.tables import to_csv
from objectseeker.inference.drawing import (
    VULNERABLE,
    Key,
    Layer,
    annotate,
    captions,
    color_of,
    truth_layers,
    with_legend,
)

# Proof of a broken guarantee: everything needed to see it again, and nothing else.


CLEAN, ATTACKED, CASE, DEFENSE, SCRIPT = "clean.png", "attacked.png", "case.json", "defense.json", "check.py"

SNIPPET = '''"""Does the defended detector lose an object that it certified? Run: python check.py"""

from pathlib import Path

from objectseeker.attack import recheck

print(recheck(Path(__file__).parent))
'''


def save_reproduction(
    folder: Path, pipeline: Pipeline, outcome: Outcome, patch: Patch, defense: Defense, *, device: str | None = None
) -> None:
    """Both images, the defense, the case, and a script that checks again."""
    judged, target = outcome.on_defense, outcome.target
    if judged is None:
        raise ObjectSeekerError(f"object {target.number} of {target.name} was not attacked")
    folder.mkdir(parents=True, exist_ok=True)
    save_picture(folder / CLEAN, PIL.Image.fromarray(target.image))
    save_picture(folder / ATTACKED, PIL.Image.fromarray(judged.image))
    defense.save(folder / DEFENSE)
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
    """Certify the clean image and judge the attacked one, both with the defense saved in `folder`.

    `seeker` takes its place: another detector, to see whether it has the same fault.
    """
    case = json.loads((folder / CASE).read_text(encoding="utf-8"))
    if seeker is None:
        seeker = Defense.load(folder / DEFENSE).seeker(case["device"])
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


GAP = 8  # pixels between panels
LEGEND = (Key("white: the object", None), Key("patch", VULNERABLE))
LONGEST_NAME = 150  # of a file, before its object's number and ending


def file_names(images: Iterable[str]) -> dict[str, str]:
    """A name for the files of each image: the last part of its own where that tells all of them apart, else all of it.

    cam1/1 and cam2/1 are two images, and so are 1.jpg and 1.png.
    """
    listed = list(dict.fromkeys(images))
    short = {image: _file_name(Path(image).stem) for image in listed}
    distinct = len(set(short.values())) == len(short)
    return short if distinct else {image: _file_name(image) for image in listed}


def _file_name(text: str) -> str:
    quoted = quote(text, safe="")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return quoted if len(quoted) <= LONGEST_NAME else f"{quoted[: LONGEST_NAME - 17]}-{digest}"


def stem(outcome: Outcome, names: Mapping[str, str]) -> str:
    """What the files of one object are called, given the `file_names` of all images."""
    return f"{names[outcome.target.name]}-{outcome.target.number}"


def save_images(folder: Path, outcome: Outcome, name: str) -> list[Path]:
    """The adversarial images of one object, to the last bit."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, judged in (("detector", outcome.on_detector), ("defense", outcome.on_defense)):
        if judged is not None:
            written.append(folder / f"{name}-{kind}.png")
            save_picture(written[-1], PIL.Image.fromarray(judged.image))
    return written


def save_picture(file: Path, picture: PIL.Image.Image) -> None:
    """A PNG to the last bit, or a JPEG."""
    jpeg = file.suffix == ".jpg"
    write_atomic(
        file, lambda stream: picture.save(stream, "JPEG" if jpeg else "PNG", **{"quality": 90} if jpeg else {})
    )


def before_and_after(pipeline: Pipeline, outcome: Outcome, names: Sequence[str]) -> PIL.Image.Image:
    """The object without attack, the undefended detector under attack, the defended one under attack, side by side.

    Each under attack in the image that decides whether the object survived. Only boxes of the object's class are drawn,
    and those of others that fit it, in their colors, the object itself in thin white on black, the patch in vermilion.
    """
    target, effects = outcome.target, effects_of(outcome, pipeline)["effects"]
    clean = pipeline.output(pipeline.rule, target.observation)
    promised = "certified" if outcome.certified else "not certified"
    panels = [_panel(f"no attack; {promised}", pipeline, target.image, outcome, clean, None, names)]
    sides = (("undefended", "detector", outcome.worst_for_detector), ("defended", "defense", outcome.on_defense))
    for what, goal, judged in sides:
        if judged is not None:
            fate = effects[goal]["object"]
            title = f"{what}, attacked: {fate if fate == FATES[0] else fate.upper()}"
            boxes = judged.base if goal == "detector" else judged.boxes
            panels.append(_panel(title, pipeline, judged.image, outcome, boxes, judged, names))
    height = panels[0].height
    page = PIL.Image.new("RGB", (sum(p.width + GAP for p in panels) - GAP, height), "white")
    x = 0
    for panel in panels:
        page.paste(panel, (x, 0))
        x += panel.width + GAP
    return page


def _panel(
    title: str,
    pipeline: Pipeline,
    image: Image,
    outcome: Outcome,
    boxes: Detections,
    judged: JudgedImage | None,
    names: Sequence[str],
) -> PIL.Image.Image:
    fits = iou(outcome.target.box[None], boxes.xyxy)[0] >= GOOD_FIT
    shown = boxes[pipeline.of_label(outcome.target, boxes) | fits]
    layers = truth_layers(outcome.target.truth[:1])
    for label in np.unique(shown.label).tolist():
        mine = shown[shown.label == label]
        layers.append(Layer(mine.xyxy, captions(mine, names), color=color_of(label)))
    if judged is not None:
        wide, tall = judged.size
        patches = [(x, y, x + wide, y + tall) for x, y in judged.position.corners]
        layers.append(Layer(np.array(patches, float), color=VULNERABLE, width=0.5))
    drawn = with_legend(annotate(image, layers), LEGEND)
    font = PIL.ImageFont.load_default(max(12, drawn.height // 24))
    bar = round(font.getbbox("Ag")[3] * 1.4)
    panel = PIL.Image.new("RGB", (drawn.width, drawn.height + bar), "white")
    PIL.ImageDraw.Draw(panel).text((2, 2), title, fill="black", font=font)
    panel.paste(drawn, (0, bar))
    return panel


def curve_rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The loss of every restart at every step."""
    return [
        {
            "image": outcome.target.name,
            "object": outcome.target.number,
            "attack_on": goal,
            "restart": restart,
            "step": step,
            "loss": f"{loss:.5g}",
        }
        for outcome in outcomes
        for goal, judged in (("detector", outcome.on_detector), ("defense", outcome.on_defense))
        if judged is not None
        for restart, curve in enumerate(judged.curves)
        for step, loss in enumerate(curve)
    ]


def median_curves(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """For each attack, the median over objects of the best restart's loss so far, as a share of the first loss."""
    medians = {}
    for goal in ("detector", "defense"):
        images = [outcome.on_detector if goal == "detector" else outcome.on_defense for outcome in outcomes]
        curves = [_best_so_far(judged) for judged in images if judged is not None]
        steps = max((len(curve) for curve in curves), default=0)
        padded = [np.pad(curve, (0, steps - len(curve)), mode="edge") for curve in curves if len(curve)]
        medians[goal] = np.median(padded, axis=0).tolist() if padded else []
    return medians


def _best_so_far(judged: JudgedImage) -> np.ndarray[Any, np.dtype[np.float64]]:
    steps = max((len(curve) for curve in judged.curves), default=0)
    curves = [np.pad(np.array(c), (0, steps - len(c)), mode="edge") for c in judged.curves if c]
    if not curves:
        return np.empty(0)
    best = np.minimum.accumulate(np.min(curves, axis=0))
    return np.asarray(best / max(best[0], 1e-9))


def save_curves(out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """curves.csv, and curves.png where matplotlib is installed."""
    rows = curve_rows(outcomes)
    if not rows:
        return []
    save_text(out / "curves.csv", to_csv(rows))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return [out / "curves.csv"]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for (goal, curve), dash in zip(median_curves(outcomes).items(), ("-", "--"), strict=True):
        axes.plot(range(len(curve)), curve, dash, label=f"attack on the {goal}")
    axes.set(xlabel="step", ylabel="loss, share of the first (median)", ylim=(0, None))
    axes.legend()
    write_atomic(out / "curves.png", lambda stream: figure.savefig(stream, dpi=150))
    return [out / "curves.csv", out / "curves.png"]
