"""Files of an attack: loss curves, images, and the reproduction of a broken guarantee."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.attack.metrics import EFFECT_KINDS, AttackOutcome, EvaluatedImage, object_effects
from objectseeker.attack.pipeline import ATTACKED_SYSTEMS, FITTING_IOU, Pipeline, Target
from objectseeker.attack.placement import PositionCertificates, find_leaking_views
from objectseeker.core.boxes import Detections, iou
from objectseeker.core.masks import Image
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text, write_atomic
from objectseeker.files.images import load_image
from objectseeker.inference.drawing import (
    VULNERABLE,
    Layer,
    LegendEntry,
    annotate,
    captions,
    class_color,
    truth_layers,
    with_legend,
)
from objectseeker.text import to_csv

# The files of a reproduction: only what is needed to see a broken guarantee again.
CLEAN, ATTACKED, CASE, DEFENSE, SCRIPT = "clean.png", "attacked.png", "case.json", "defense.json", "check.py"
SCRIPT_TEXT = '''"""Does the defended detector lose an object that it certified? Run: python check.py"""

from pathlib import Path

from objectseeker.attack import recheck

print(recheck(Path(__file__).parent))
'''

PANEL_GAP = 8  # pixels
LEGEND = (LegendEntry("white: the object", None), LegendEntry("patch", VULNERABLE))
MAX_NAME_LENGTH = 150  # of a file, before its object's number and ending


def save_reproduction(
    folder: Path,
    pipeline: Pipeline,
    outcome: AttackOutcome,
    patch: Patch,
    defense: Defense,
    *,
    device: str | None = None,
) -> None:
    """Save both images, the defense, the case, and a script that checks again."""
    attacked, target = outcome.on_defended, outcome.target
    if attacked is None:
        raise ObjectSeekerError(f"there was no attack on object {target.number} of {target.image_id}. Attack it first.")
    save_image(folder / CLEAN, PIL.Image.fromarray(target.image))
    save_image(folder / ATTACKED, PIL.Image.fromarray(attacked.image))
    defense.save(folder / DEFENSE)
    case = {
        "image": target.image_id,
        "box": target.box.tolist(),
        "labels": list(target.labels),
        "patch": asdict(patch),
        "corners": [list(corner) for corner in attacked.position.corners],
        "size": list(attacked.patch_size),
        "certification_threshold": pipeline.certification_threshold,
        "device": device,
    }
    save_json(folder / CASE, case)
    save_text(folder / SCRIPT, SCRIPT_TEXT)


def recheck(folder: Path, seeker: ObjectSeeker | None = None) -> dict[str, Any]:
    """Certify the clean image and judge the attacked one again, both with the defense saved in `folder`.

    Args:
        folder: A reproduction that `objectseeker attack` saved.
        seeker: Another defended detector, to see whether it has the same fault.

    Returns:
        The verdicts, and whether the guarantee is broken.

    Raises:
        ObjectSeekerError: The folder is not a reproduction, or its defense cannot be loaded.

    Example:
        >>> recheck(Path("attack/broken/0"))["guarantee_broken"]  # doctest: +SKIP
        True
    """
    case = json.loads((folder / CASE).read_text(encoding="utf-8"))
    if seeker is None:
        seeker = Defense.load(folder / DEFENSE).build(case["device"])
    pipeline = Pipeline.from_seeker(seeker, case["certification_threshold"])
    clean, attacked = load_image(folder / CLEAN), load_image(folder / ATTACKED)
    box, labels = np.array(case["box"], float), tuple(case["labels"])
    target = Target(case["image"], 0, clean, pipeline.observe(clean), box, labels)
    size = (case["size"][0], case["size"][1])
    changed = (clean != attacked).any(axis=2)
    for x, y in case["corners"]:
        changed[max(y, 0) : max(y + size[1], 0), max(x, 0) : max(x + size[0], 0)] = False
    certified, _ = pipeline.certify(target, Patch(**case["patch"]))
    position = PositionCertificates.from_target(pipeline, target).position_at(np.array(case["corners"]), size)
    observation = pipeline.observe(attacked)
    still_found = pipeline.found_status(target, observation).defended
    leaking = len(find_leaking_views(target, observation, position, size))
    broken = leaking > 0 or ((certified or position.proven) and not still_found)
    return {
        "certified": certified,
        "proven_at_position": position.proven,
        "only_patch_differs": not bool(changed.any()),
        "still_found": still_found,
        "leaking_views": leaking,
        "guarantee_broken": bool(broken and not changed.any()),
    }


def file_names(image_ids: Iterable[str]) -> dict[str, str]:
    """Return a file name for each image: its stem if that tells all images apart, else its whole id.

    cam1/1 and cam2/1 are two images, and so are 1.jpg and 1.png.
    """
    distinct = list(dict.fromkeys(image_ids))
    stems = {image_id: _file_name(Path(image_id).stem) for image_id in distinct}
    if len(set(stems.values())) == len(stems):
        return stems
    return {image_id: _file_name(image_id) for image_id in distinct}


def _file_name(text: str) -> str:
    quoted = quote(text, safe="")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return quoted if len(quoted) <= MAX_NAME_LENGTH else f"{quoted[: MAX_NAME_LENGTH - 17]}-{digest}"


def object_name(outcome: AttackOutcome, names: Mapping[str, str]) -> str:
    """Return the name of one object's files, from the `file_names` of all images."""
    return f"{names[outcome.target.image_id]}-{outcome.target.number}"


def save_images(folder: Path, outcome: AttackOutcome, name: str) -> list[Path]:
    """Save the adversarial images of one object, lossless."""
    files = []
    for system in ATTACKED_SYSTEMS:
        if (image := outcome.attack_on(system)) is not None:
            files.append(folder / f"{name}-{system}.png")
            save_image(files[-1], PIL.Image.fromarray(image.image))
    return files


def save_image(file: Path, image: PIL.Image.Image) -> None:
    """Write a lossless PNG or, if the file is called .jpg, a JPEG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    jpeg = file.suffix == ".jpg"
    options = {"quality": 90} if jpeg else {}
    write_atomic(file, lambda stream: image.save(stream, "JPEG" if jpeg else "PNG", **options))


def draw_comparison(pipeline: Pipeline, outcome: AttackOutcome, class_names: Sequence[str]) -> PIL.Image.Image:
    """Draw three panels: without attack, the undefended detector attacked, the defended one attacked.

    Each panel under attack is the image that decides whether the object survived. Only boxes of the object's class and
    boxes of others that fit it are drawn, in their colors, the object itself in thin white on black, the patch in
    vermilion.
    """
    effects = object_effects(outcome, pipeline)
    clean = pipeline.output(pipeline.rule, outcome.target.observation)
    verdict = "certified" if outcome.certified else "not certified"
    panels = [_draw_panel(f"no attack; {verdict}", pipeline, outcome, clean, None, class_names)]
    for system in ATTACKED_SYSTEMS:
        image = outcome.worst_for_undefended if system == "undefended" else outcome.on_defended
        if image is not None:
            effect = effects[system]["object"]
            title = f"{system}, attacked: {effect if effect == EFFECT_KINDS[0] else effect.upper()}"
            boxes = image.base if system == "undefended" else image.boxes
            panels.append(_draw_panel(title, pipeline, outcome, boxes, image, class_names))
    width = sum(panel.width + PANEL_GAP for panel in panels) - PANEL_GAP
    page = PIL.Image.new("RGB", (width, panels[0].height), "white")
    x = 0
    for panel in panels:
        page.paste(panel, (x, 0))
        x += panel.width + PANEL_GAP
    return page


def _draw_panel(
    title: str,
    pipeline: Pipeline,
    outcome: AttackOutcome,
    boxes: Detections,
    attacked: EvaluatedImage | None,
    class_names: Sequence[str],
) -> PIL.Image.Image:
    target = outcome.target
    fits = iou(target.box[None], boxes.xyxy)[0] >= FITTING_IOU
    shown = boxes[pipeline.has_label(target, boxes) | fits]
    layers = truth_layers(target.ground_truth[:1])
    for label in np.unique(shown.label).tolist():
        of_label = shown[shown.label == label]
        layers.append(Layer(of_label.xyxy, captions(of_label, class_names), color=class_color(label)))
    pixels: Image = target.image
    if attacked is not None:
        pixels, (wide, tall) = attacked.image, attacked.patch_size
        patches = [(x, y, x + wide, y + tall) for x, y in attacked.position.corners]
        layers.append(Layer(np.array(patches, float), color=VULNERABLE, width=0.5))
    annotated = with_legend(annotate(pixels, layers), LEGEND)
    font = PIL.ImageFont.load_default(max(12, annotated.height // 24))
    bar = round(font.getbbox("Ag")[3] * 1.4)
    panel = PIL.Image.new("RGB", (annotated.width, annotated.height + bar), "white")
    PIL.ImageDraw.Draw(panel).text((2, 2), title, fill="black", font=font)
    panel.paste(annotated, (0, bar))
    return panel


def curve_rows(outcomes: Iterable[AttackOutcome]) -> list[dict[str, Any]]:
    """Return the loss of every restart at every step."""
    return [
        {
            "image": outcome.target.image_id,
            "object": outcome.target.number,
            "attack_on": system,
            "restart": restart,
            "step": step,
            "loss": f"{loss:.5g}",
        }
        for outcome in outcomes
        for system in ATTACKED_SYSTEMS
        if (image := outcome.attack_on(system)) is not None
        for restart, curve in enumerate(image.loss_curves)
        for step, loss in enumerate(curve)
    ]


def median_curves(outcomes: Sequence[AttackOutcome]) -> dict[str, list[float]]:
    """Return, per attacked system, the median over objects of the best loss so far over the first loss."""
    medians: dict[str, list[float]] = {}
    for system in ATTACKED_SYSTEMS:
        images = [outcome.attack_on(system) for outcome in outcomes]
        curves = [_best_so_far(image) for image in images if image is not None]
        steps = max((len(curve) for curve in curves), default=0)
        padded = [np.pad(curve, (0, steps - len(curve)), mode="edge") for curve in curves if len(curve)]
        medians[system] = np.median(padded, axis=0).tolist() if padded else []
    return medians


def _best_so_far(image: EvaluatedImage) -> npt.NDArray[np.float64]:
    steps = max((len(curve) for curve in image.loss_curves), default=0)
    curves = [np.pad(np.array(curve), (0, steps - len(curve)), mode="edge") for curve in image.loss_curves if curve]
    if not curves:
        return np.empty(0)
    best = np.minimum.accumulate(np.min(curves, axis=0))
    return np.asarray(best / max(best[0], 1e-9))


def save_curves(out: Path, outcomes: Sequence[AttackOutcome]) -> list[Path]:
    """Save curves.csv, and curves.png if matplotlib is installed."""
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
    for (system, curve), dash in zip(median_curves(outcomes).items(), ("-", "--"), strict=True):
        axes.plot(range(len(curve)), curve, dash, label=f"attack on the {system} detector")
    axes.set(xlabel="step", ylabel="loss, share of the first (median)", ylim=(0, None))
    axes.legend()
    write_atomic(out / "curves.png", lambda stream: figure.savefig(stream, dpi=150))
    return [out / "curves.csv", out / "curves.png"]
