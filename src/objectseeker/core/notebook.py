"""Notebook displays of boxes, observations and certificates: a small SVG and a table, as HTML.

No image is needed and nothing is loaded. Long lists end after MOST_ROWS rows and MOST_DRAWN boxes and report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from objectseeker.text import plural

if TYPE_CHECKING:
    from objectseeker.core.boxes import Detections
    from objectseeker.core.certification import Certificates
    from objectseeker.core.observation import Observation

MOST_ROWS, MOST_DRAWN = 20, 400
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's, by label
LARGE, SMALL = 320, 48  # pixels across
PROVEN, NOT_PROVEN, VACUOUS = "✓", "✗", "○"


def detections_html(found: Detections) -> str:
    """The boxes in the colors of their labels, and label, score and corners of each."""
    size = found.xyxy[:, 2:].max(axis=0, initial=1)
    head = plural(len(found), "box", "boxes")
    return _page(head, _svg(size[0], size[1], _rectangles(found)), _boxes(found))


def observation_html(seen: Observation) -> str:
    """Draw base boxes thick, by score, and masked boxes thin; count the masks that find anything."""
    masked = seen.all_masked
    drawing = _svg(
        seen.width,
        seen.height,
        [*_rectangles(masked, width=0.5, opacity=0.25), *_rectangles(seen.base, width=2, opacity=None)],
    )
    under = len(np.unique(seen.mask_index))
    head = (
        f"{seen.width} x {seen.height} pixels: {plural(len(seen.base), 'base box', 'base boxes')}, "
        f"{plural(len(masked), 'masked box', 'masked boxes')} under {under} of {plural(len(seen.masks), 'mask')}"
    )
    return _page(head, drawing, _boxes(seen.base))


def certificates_html(proven: Certificates) -> str:
    """Return a row per object: verdicts of all threats, largest square, safe masks, and the four lines.

    The area between the lines of half masks is shaded. A patch that escapes all that are safe reaches into it; where
    the lines have passed each other, it spans it.
    """
    patches, objects = proven.certified.shape
    lines = proven.safe_lines
    width, height = lines[:, 2:].max(axis=0, initial=1).tolist()
    rows = []
    for n in range(min(objects, MOST_ROWS)):
        verdicts = [
            VACUOUS if proven.vacuous[p, n] else PROVEN if proven.certified[p, n] else NOT_PROVEN
            for p in range(patches)
        ]
        left, top, right, bottom = lines[n].tolist()
        between = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        drawing = _svg(width, height, [_rectangle(between, "#d55e00", shade=0.35)], across=SMALL)
        cells = [str(n), *verdicts, f"{proven.largest_square[n]} px", str(int(proven.safe[n].sum()))]
        rows.append([*cells, ", ".join(map(str, lines[n].tolist())), drawing])
    threats = [f"threat {p}" for p in range(patches)]
    head = ["object", *threats, "largest square", "safe masks", "XL, YT, XR, YB", ""]
    counts = [f"threat {p}: {int(proven.certified[p].sum())} certified" for p in range(patches)]
    words = ", ".join([plural(objects, "object"), *counts])
    key = f"{PROVEN} certified, {NOT_PROVEN} not, {VACUOUS} vacuous: no position is allowed"
    return _page(words, "", _table(head, rows, objects), f"<div>{key}</div>" if patches else "")


def _boxes(found: Detections) -> str:
    some = found[:MOST_ROWS]
    rows = [
        [str(label), f"{score:.3f}", *(f"{corner:.1f}" for corner in box)]
        for label, score, box in zip(some.label.tolist(), some.score.tolist(), some.xyxy.tolist(), strict=True)
    ]
    return _table(["label", "score", "x1", "y1", "x2", "y2"], rows, len(found))


def _rectangles(found: Detections, *, width: float = 1.5, opacity: float | None = 1.0) -> list[str]:
    """The boxes in the colors of their labels; without an opacity, the surer the clearer."""
    some = found[:MOST_DRAWN]
    clear = np.maximum(some.score, 0.15) if opacity is None else np.full(len(some), opacity)
    return [
        _rectangle(box, COLORS[label % len(COLORS)], width=width, opacity=much)
        for box, label, much in zip(some.xyxy.tolist(), some.label.tolist(), clear.tolist(), strict=True)
    ]


def _rectangle(
    box: Sequence[float], color: str, *, width: float = 1.0, opacity: float = 1.0, shade: float = 0.0
) -> str:
    x1, y1, x2, y2 = box
    return (
        f'<rect x="{x1:g}" y="{y1:g}" width="{x2 - x1:g}" height="{y2 - y1:g}" fill="{color}" '
        f'fill-opacity="{shade:g}" stroke="{color}" stroke-width="{width:g}" stroke-opacity="{opacity:g}" '
        'vector-effect="non-scaling-stroke"/>'
    )


def _svg(width: float, height: float, parts: Iterable[str], *, across: int = LARGE) -> str:
    width, height = max(float(width), 1.0), max(float(height), 1.0)
    scale = across / max(width, height)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{max(width * scale, 1):.0f}" '
        f'height="{max(height * scale, 1):.0f}" style="border:1px solid #8888">{"".join(parts)}</svg>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    if not rows:
        return ""
    first = "".join(f"<th>{cell}</th>" for cell in head)
    rest = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    more = f"<div>and {total - len(rows)} more</div>" if total > len(rows) else ""
    return f"<table><tr>{first}</tr>{rest}</table>{more}"


def _page(words: str, *parts: str) -> str:
    shown = "".join(f"<div>{part}</div>" for part in parts if part)
    return f'<div><b>{words}</b><div style="display:flex;gap:1em;flex-wrap:wrap">{shown}</div></div>'
