"""Files of an attack: images, loss curves, and the reproduction of a broken guarantee."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.attack.fabrication import FabricationOutcome, judge
from objectseeker.attack.hiding import EvaluatedImage, HidingOutcome
from objectseeker.attack.metrics import EFFECT_KINDS
from objectseeker.attack.pipeline import ATTACKED_SYSTEMS, AttackedSystem, PatchTask, Pipeline, Position, Target, fits
from objectseeker.attack.placement import PositionCertificates, find_leaking_views
from objectseeker.attack.setup import AttackSetup
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch, ThreatModel
from objectseeker.defense import Defense
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
from objectseeker.inference.images import annotated_names
from objectseeker.inference.results import annotate_result, detect_image
from objectseeker.text import to_csv

Outcome = HidingOutcome | FabricationOutcome

# The files of a reproduction: only what is needed to see a broken guarantee again.
CLEAN, ATTACKED, CASE, DEFENSE, SCRIPT = "clean.png", "attacked.png", "case.json", "defense.json", "check.py"
SCRIPT_TEXT = '''"""Does the defense break the guarantee that it gave? Run: python check.py"""

from pathlib import Path

from objectseeker.attack import recheck

print(recheck(Path(__file__).parent))
'''

PANEL_GAP = 8  # pixels
LEGEND = (LegendEntry("white: the object", None), LegendEntry("patch", VULNERABLE))


def save_outcome(out: Path, setup: AttackSetup, outcome: Outcome, name: str) -> None:
    """Save the images of one target and, if a guarantee was broken, the reproduction."""
    for system, image in outcome.attacks.items():
        save_image(out / "images" / f"{name}-{system}.png", PIL.Image.fromarray(image.image))
    save_image(out / "annotated" / f"{name}.jpg", draw_outcome(setup, outcome))
    if outcome.guarantee_broken:
        save_reproduction(out / "broken" / name, setup, outcome)


def save_reproduction(folder: Path, setup: AttackSetup, outcome: Outcome) -> None:
    """Save both images, the defense, the case, and a script that checks again."""
    attacked, target = outcome.attacks["defended"], outcome.target
    save_image(folder / CLEAN, PIL.Image.fromarray(target.image))
    save_image(folder / ATTACKED, PIL.Image.fromarray(attacked.image))
    case = {
        "hides": isinstance(outcome, HidingOutcome),
        "image": target.image_id,
        "box": target.box.tolist(),
        "labels": list(target.labels),
        "patch": asdict(setup.patch),
        "corners": [list(corner) for corner in attacked.task.position.corners],
        "size": list(attacked.task.patch_size),
        "certification_threshold": setup.pipeline.certification_threshold,
        "device": setup.device,
    }
    save_json(folder / CASE, case)
    if isinstance(setup.defense.detector, str):
        setup.defense.save(folder / DEFENSE)
        save_text(folder / SCRIPT, SCRIPT_TEXT)
    else:  # a callable cannot be loaded again
        save_json(folder / DEFENSE, setup.defense.to_public_dict())


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
    pipeline, patch = Pipeline.from_seeker(seeker, case["certification_threshold"]), Patch(**case["patch"])
    clean, attacked = load_image(folder / CLEAN), load_image(folder / ATTACKED)
    box, labels = np.array(case["box"], float), tuple(case["labels"])
    target = Target(case["image"], 0, clean, pipeline.observe(clean), box, labels)
    (wide, tall), corners = case["size"], tuple((x, y) for x, y in case["corners"])
    changed = (clean != attacked).any(axis=2)
    for x, y in corners:
        changed[max(y, 0) : max(y + tall, 0), max(x, 0) : max(x + wide, 0)] = False
    only_patch_differs = not bool(changed.any())
    if not case["hides"]:
        task = PatchTask(target, Position(corners), np.zeros((len(corners), tall, wide, 3), np.uint8))
        refuted = judge(pipeline, task, attacked, patch).refuted
        verdicts: dict[str, Any] = {"refuted_boxes": refuted}
        broken = refuted > 0
    else:
        certified, _ = pipeline.certify(target, patch)
        certificates = PositionCertificates.from_target(pipeline, target, (wide, tall))
        position = certificates.position_at(np.array(corners))
        observation = pipeline.observe(attacked)
        still_found = pipeline.judge_observation(target, observation).defended
        leaking = len(find_leaking_views(target, observation, position, (wide, tall)))
        verdicts = {
            "certified": certified,
            "proven_at_position": position.proven,
            "still_found": still_found,
            "leaking_views": leaking,
        }
        broken = leaking > 0 or ((certified or position.proven) and not still_found)
    return verdicts | {
        "only_patch_differs": only_patch_differs,
        "guarantee_broken": broken and only_patch_differs,
    }


def file_stems(image_ids: Iterable[str]) -> dict[str, str]:
    """Return a path for the files of each image, without a suffix, always inside their folder."""
    distinct = list(dict.fromkeys(image_ids))
    stems = (str(PurePosixPath(name).with_suffix("")) for name in annotated_names(distinct))
    return dict(zip(distinct, stems, strict=True))


def save_image(file: Path, image: PIL.Image.Image) -> None:
    """Write a lossless PNG or, if the file is called .jpg, a JPEG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    jpeg = file.suffix == ".jpg"
    options = {"quality": 90} if jpeg else {}
    write_atomic(file, lambda stream: image.save(stream, "JPEG" if jpeg else "PNG", **options))


def draw_outcome(setup: AttackSetup, outcome: Outcome) -> PIL.Image.Image:
    """Draw the image without attack and under attack, side by side.

    Of a hidden object: the undefended detector attacked, then the defended one, each on the image that decides whether
    the object survived. Only boxes of the object's class and boxes of others that fit it are drawn, in their colors,
    the object itself in thin white on black, the patch in vermilion. Of a wanted box: the defended output with its
    certificates.
    """
    pipeline, patch = setup.pipeline, setup.patch
    panels: list[tuple[str, PIL.Image.Image]] = []
    if isinstance(outcome, FabricationOutcome):
        threat = ThreatModel(area=patch.area, aspect=patch.aspect, count=patch.count)
        for title, image in (("no attack", outcome.target.image), ("attacked", outcome.image)):
            result = detect_image(pipeline.seeker, image, threat=threat)
            panels.append((title, annotate_result(image, result, pipeline.class_names, threat)))
        return _side_by_side(panels)
    effects: dict[AttackedSystem, Any] = outcome.effects(pipeline)
    clean = pipeline.rule.prune(outcome.target.observation)
    verdict = "certified" if outcome.certified else "not certified"
    panels.append((f"no attack; {verdict}", _draw_boxes(pipeline, outcome.target, clean, None)))
    for system in ATTACKED_SYSTEMS:
        attacked = outcome.worst_for_undefended if system == "undefended" else outcome.on_defended
        if attacked is not None:
            effect = effects[system]["object"]
            title = f"{system}, attacked: {effect if effect == EFFECT_KINDS[0] else effect.upper()}"
            boxes = attacked.base if system == "undefended" else attacked.boxes
            panels.append((title, _draw_boxes(pipeline, outcome.target, boxes, attacked)))
    return _side_by_side(panels)


def _draw_boxes(
    pipeline: Pipeline, target: Target, boxes: Detections, attacked: EvaluatedImage | None
) -> PIL.Image.Image:
    shown = boxes[pipeline.has_label(target, boxes) | fits(target, boxes)]
    layers = truth_layers(target.ground_truth[:1])
    for label in np.unique(shown.label).tolist():
        of_label = shown[shown.label == label]
        layers.append(Layer(of_label.xyxy, captions(of_label, pipeline.class_names), color=class_color(label)))
    pixels: Image = target.image
    if attacked is not None:
        pixels, (wide, tall) = attacked.image, attacked.task.patch_size
        patches = [(x, y, x + wide, y + tall) for x, y in attacked.task.position.corners]
        layers.append(Layer(np.array(patches, float), color=VULNERABLE, width=0.5))
    return with_legend(annotate(pixels, layers), LEGEND)


def _side_by_side(panels: Sequence[tuple[str, PIL.Image.Image]]) -> PIL.Image.Image:
    """Join images, each below its title."""
    font = PIL.ImageFont.load_default(max(12, panels[0][1].height // 24))
    bar = round(font.getbbox("Ag")[3] * 1.4)
    width = sum(panel.width + PANEL_GAP for _, panel in panels) - PANEL_GAP
    page = PIL.Image.new("RGB", (width, bar + max(panel.height for _, panel in panels)), "white")
    x = 0
    for title, panel in panels:
        PIL.ImageDraw.Draw(page).text((x + 2, 2), title, fill="black", font=font)
        page.paste(panel, (x, bar))
        x += panel.width + PANEL_GAP
    return page


def save_curves(out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Save the losses of all restarts as curves.csv, and curves.png if matplotlib is installed."""
    rows = [
        {
            "image": outcome.target.image_id,
            "object": outcome.target.number,
            "attack_on": system,
            "restart": restart,
            "step": step,
            "loss": f"{loss:.5g}",
        }
        for outcome in outcomes
        for system, image in outcome.attacks.items()
        for restart, curve in enumerate(image.loss_curves)
        for step, loss in enumerate(curve)
    ]
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


def median_curves(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return, per attacked system, the median over targets of the best loss so far over the first loss.

    Targets with a first loss of 0 or less are skipped: there is nothing to take a share of.
    """
    medians: dict[str, list[float]] = {}
    for system in ATTACKED_SYSTEMS:
        attacks = [outcome.attacks[system] for outcome in outcomes if system in outcome.attacks]
        padded = [_padded(attack.loss_curves) for attack in attacks if any(attack.loss_curves)]
        best = [np.minimum.accumulate(curves.min(axis=0)) for curves in padded]
        shares = _padded([curve / curve[0] for curve in best if curve[0] > 0])
        medians[system] = np.median(shares, axis=0).tolist() if len(shares) else []
    return medians


def _padded(curves: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Return curves of one length, each continued by its last value."""
    steps = max(map(len, curves), default=0)
    return np.array([np.pad(curve, (0, steps - len(curve)), mode="edge") for curve in curves if len(curve)])
