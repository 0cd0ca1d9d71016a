"""The verdict of a gate for people and for build servers: gate.json, junit.xml, gate.md and gate.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.defense import Defense
from objectseeker.files.atomic import save_json, save_text
from objectseeker.gate.failure_images import pictures_of
from objectseeker.gate.junit import junit_of
from objectseeker.gate.page import page_of
from objectseeker.gate.verdict_text import markdown_of
from objectseeker.metrics.gate import Gate

__all__ = ["write_gate"]


def write_gate(
    out: Path,
    gate: Gate,
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    defense: Defense,
    *,
    allow_undecided: bool = False,
) -> None:
    """Write all four into `out`; `images` are those that were judged."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = pictures_of(gate, images, vocabulary, defense.rule)
    save_json(out / "gate.json", gate.to_dict())
    save_text(out / "junit.xml", junit_of(gate, allow_undecided=allow_undecided))
    save_text(out / "gate.md", markdown_of(gate))
    save_text(out / "gate.html", page_of(gate, pictures))
