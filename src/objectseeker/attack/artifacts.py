"""What an attack leaves on disk: tables, loss curves, adversarial images, pictures, and proof of a broken promise."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from objectseeker.attack.falsify import Attempt, Outcome
from objectseeker.attack.pipeline import Pipeline
from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image
from objectseeker.jobs import save_text
from objectseeker.results.drawing import VULNERABLE, Layer, annotate, captions, truth_layers

GAP = 8  # pixels between panels


def stem(outcome: Outcome) -> str:
    """A file name for one object."""
    return f"{Path(outcome.target.name).stem}-{outcome.target.number}"


def save_images(folder: Path, outcome: Outcome) -> list[Path]:
    """The adversarial images of one object, to the last bit."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, attempt in (("detector", outcome.on_detector), ("defence", outcome.on_defence)):
        if attempt is not None:
            written.append(folder / f"{stem(outcome)}-{kind}.png")
            PIL.Image.fromarray(attempt.image).save(written[-1])
    return written


def before_and_after(pipeline: Pipeline, outcome: Outcome, names: Sequence[str]) -> PIL.Image.Image:
    """The object without attack, the undefended detector under attack, the defended one under attack, side by side.

    Only boxes of the object's label are drawn, the object itself in thin white, the patch in vermilion.
    """
    target = outcome.target
    clean = pipeline.output(pipeline.rule, target.observation)
    panels = [_panel("no attack", target.image, outcome, clean, None, names)]
    for attempt, what, survived in (
        (outcome.on_detector, "undefended", outcome.on_detector and outcome.on_detector.vanilla),
        (outcome.on_defence, "defended", outcome.defence_survived),
    ):
        if attempt is not None:
            title = f"{what}, attacked: {'found' if survived else 'HIDDEN'}"
            panels.append(_panel(title, attempt.image, outcome, attempt.found, attempt, names))
    height = panels[0].height
    page = PIL.Image.new("RGB", (sum(p.width + GAP for p in panels) - GAP, height), "white")
    x = 0
    for panel in panels:
        page.paste(panel, (x, 0))
        x += panel.width + GAP
    return page


def _panel(
    title: str, image: Image, outcome: Outcome, found: Detections, attempt: Attempt | None, names: Sequence[str]
) -> PIL.Image.Image:
    shown = found[found.label == outcome.target.label]
    layers = [*truth_layers(outcome.target.truth), Layer(shown.xyxy, captions(shown, names))]
    if attempt is not None:
        (x, y), (wide, tall) = (attempt.position.x, attempt.position.y), attempt.size
        layers.append(Layer(np.array([[x, y, x + wide, y + tall]], float), colour=VULNERABLE, width=0.5))
    drawn = annotate(image, layers)
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
        for goal, attempt in (("detector", outcome.on_detector), ("defence", outcome.on_defence))
        if attempt is not None
        for restart, curve in enumerate(attempt.curves)
        for step, loss in enumerate(curve)
    ]


def median_curves(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """For each attack, the median over objects of the best restart's loss so far, as a share of the first loss."""
    found = {}
    for goal in ("detector", "defence"):
        attempts = [outcome.on_detector if goal == "detector" else outcome.on_defence for outcome in outcomes]
        curves = [_best_so_far(attempt) for attempt in attempts if attempt is not None]
        steps = max((len(curve) for curve in curves), default=0)
        padded = [np.pad(curve, (0, steps - len(curve)), mode="edge") for curve in curves if len(curve)]
        found[goal] = np.median(padded, axis=0).tolist() if padded else []
    return found


def _best_so_far(attempt: Attempt) -> np.ndarray[Any, np.dtype[np.float64]]:
    steps = max((len(curve) for curve in attempt.curves), default=0)
    curves = [np.pad(np.array(c), (0, steps - len(c)), mode="edge") for c in attempt.curves if c]
    if not curves:
        return np.empty(0)
    best = np.minimum.accumulate(np.min(curves, axis=0))
    return np.asarray(best / max(best[0], 1e-9))


def save_curves(out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """curves.csv, and curves.png where matplotlib is installed."""
    rows = curve_rows(outcomes)
    if not rows:
        return []
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    save_text(out / "curves.csv", text.getvalue())
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
    figure.savefig(out / "curves.png", dpi=150)
    return [out / "curves.csv", out / "curves.png"]
