"""Every analysis of the paper from one stored run, as tables and plots. No detector runs here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import to_csv
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.report import plots
from objectseeker.report.figure_plots import FIGURES_BY_NAME, Figure
from objectseeker.report.figure_rows import Study, line_counts

__all__ = ["FIGURES", "line_counts", "write_figures"]

FIGURES: Mapping[str, str] = MappingProxyType({name: one.description for name, one in FIGURES_BY_NAME.items()})


def write_figures(
    scene: ImageSet,
    settings: EvaluationSettings,
    out: Path,
    *,
    masks: Recipe,
    mask_floor: float,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> list[Path]:
    """Write figures.json (what they were made with) and, for each figure, NAME.csv, NAME.svg and NAME.png.

    `masks` and `mask_floor` are those the run was stored with, `only` names some of FIGURES. Without matplotlib there
    are tables but no plots: `plots.missing()` says so in a sentence. `on_progress(done, total)` is called once at the
    start and after every figure, `on_note` with a sentence for what is left out, or drawn without any value.
    """
    study = Study(scene, settings, masks, require_fraction(mask_floor, "mask_floor"))
    if settings.floor < mask_floor:
        raise ObjectSeekerError(
            f"the run keeps masked boxes from a score of {mask_floor!r} on, but these settings look from "
            f"{settings.floor!r} on: raise alpha and beta, or observe with a lower floor"
        )
    chosen = _chosen(only, study, on_note)
    drawing = plots.missing() is None
    written = [out / "figures.json"]
    nothing: dict[str, list[str]] = {}  # which figures have nothing to show, by the reason
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ObjectSeekerError(f"cannot write into {out}: {error.strerror}") from None
    save_json(written[0], _about(study, chosen))
    on_progress(0, len(chosen))
    for done, (name, figure) in enumerate(chosen.items(), start=1):
        rows = figure.rows(study)
        plot = figure.plot(study, rows)
        for panel in plot.panels:
            if panel.is_empty and name not in nothing.setdefault(panel.if_empty, []):
                nothing[panel.if_empty].append(name)
        table = out / f"{name}.csv"
        save_text(table, to_csv([row.to_row() for row in rows]))
        written.append(table)
        if drawing:
            written += plots.save(plot, out / name)
        on_progress(done, len(chosen))
    for why, names in nothing.items():
        on_note(f"nothing to draw in {', '.join(names)}: {why}")
    return written


def _about(study: Study, chosen: Mapping[str, Figure[Any]]) -> dict[str, Any]:
    return {
        "images": len(study.scene.images),
        "objects": len(study.scene.counted),
        "vacuous_far": study.vacuous_far,
        "masks": str(study.masks),
        "mask_floor": study.mask_floor,
        "settings": study.settings.to_dict(),
        "figures": {name: figure.description for name, figure in chosen.items()},
    }


def _chosen(only: Collection[str] | None, study: Study, on_note: Callable[[str], None]) -> dict[str, Figure[Any]]:
    for name in only or ():
        if name not in FIGURES_BY_NAME:
            raise ObjectSeekerError(f"there is no figure {name!r}: choose from {', '.join(FIGURES_BY_NAME)}")
    chosen = {name: figure for name, figure in FIGURES_BY_NAME.items() if not only or name in only}
    left_out = [name for name, figure in chosen.items() if figure.needs_lines and study.lines is None]
    if left_out:
        on_note(f"left out, because {study.masks} are no lines of which some could be used: {', '.join(left_out)}")
    return {name: figure for name, figure in chosen.items() if name not in left_out}
