"""Every analysis of the paper from one stored run, as tables and plots, without running a detector."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.report import plots
from objectseeker.report.figure_plots import FIGURES, Figure, FigureContext
from objectseeker.report.report_data import ReportSource
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.run import Run
from objectseeker.text import to_csv


@dataclass(frozen=True, slots=True)
class FigureFiles:
    """Figures that were written: the folder, its files, and the defense they are about."""

    folder: Path
    files: tuple[Path, ...]
    defense: Defense

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "out": str(self.folder),
            "files": [str(file) for file in self.files],
            "defense_sha256": self.defense.sha256,
        }


def write_figures(
    run: Run,
    defense: Defense | None,
    out: str | os.PathLike[str],
    *,
    settings: EvaluationSettings | None = None,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_warning: Callable[[str], None] = lambda message: None,
) -> FigureFiles:
    """Write the paper's figures for a run under a defense: NAME.csv, NAME.svg and NAME.png per figure.

    figures.json says what they were made with. defense.json is the defense at the operating point; at a clean recall or
    FPPI every figure finds its own rule, and on-the-curve-of.defense.json is the defense whose curve contains them.

    Args:
        run: A stored run, as `open_run` returns it.
        defense: The defense to analyze; None: the run's own.
        out: The folder to write to.
        settings: Threat and operating point. Default: one square patch of 1 % of the image, at the operating point of
            the defense.
        only: Names of `FIGURES`; None: all.
        on_progress: Called with the number of figures written and of all figures.
        on_warning: Called with a message for each figure that is skipped or empty, and if plots cannot be drawn.

    Returns:
        The files. Without matplotlib there are tables, but no plots.

    Raises:
        ObjectSeekerError: The defense does not fit the run, or a name in `only` is unknown.

    Example:
        >>> write_figures(open_run("runs/voc"), None, "figures", only=["patch-area"])  # doctest: +SKIP
    """
    defense = run.bind_defense(run.defense() if defense is None else defense)
    source = ReportSource.from_run(run, defense, settings)
    context = FigureContext(
        ImageSet.from_images(source.images, source.label_map),
        source.settings,
        defense.masks,
        run.manifest.observation_settings.mask_floor,
    )
    folder = Path(out)
    files = draw_figures(context, folder, only=only, on_progress=on_progress, on_warning=on_warning)
    rule = source.settings.fixed_rule
    named = defense if rule is None else replace(defense, rule=rule)
    named.save(folder / ("on-the-curve-of.defense.json" if rule is None else "defense.json"))
    reason = plots.unavailable_reason()
    if reason is not None:
        on_warning(reason)
    return FigureFiles(folder, tuple(files), named)


def draw_figures(
    context: FigureContext,
    out: Path,
    *,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_warning: Callable[[str], None] = lambda message: None,
) -> list[Path]:
    """Write the figures of a context; `write_figures` does this for a stored run."""
    stored = ObservationSettings(mask_floor=context.mask_floor)
    if missing := stored.missing_scores(lowest_masked=context.settings.min_mask_score):
        raise ObjectSeekerError(missing[0])
    chosen = _choose(only, context, on_warning)
    plotting = plots.unavailable_reason() is None
    written = [out / "figures.json"]
    empty: dict[str, list[str]] = {}  # names of empty figures, by the reason
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ObjectSeekerError(f"cannot write into {out}: {error.strerror}. Name another folder.") from None
    save_json(written[0], _context_dict(context, chosen))
    on_progress(0, len(chosen))
    for done, (name, figure) in enumerate(chosen.items(), start=1):
        rows, plot = figure.draw(context)
        for panel in plot.panels:
            if panel.is_empty and name not in empty.setdefault(panel.if_empty, []):
                empty[panel.if_empty].append(name)
        table = out / f"{name}.csv"
        save_text(table, to_csv(rows))
        written.append(table)
        if plotting:
            written += plots.save(plot, out / name)
        on_progress(done, len(chosen))
    for reason, names in empty.items():
        on_warning(f"nothing to draw in {', '.join(names)}: {reason}")
    return written


def _context_dict(context: FigureContext, chosen: Mapping[str, Figure]) -> dict[str, Any]:
    return {
        "images": len(context.image_set.images),
        "objects": len(context.image_set.counted),
        "vacuous_far": context.vacuous_far,
        "masks": str(context.masks),
        "mask_floor": context.mask_floor,
        "settings": context.settings.to_dict(),
        "figures": {name: figure.description for name, figure in chosen.items()},
    }


def _choose(
    only: Collection[str] | None, context: FigureContext, on_warning: Callable[[str], None]
) -> dict[str, Figure]:
    for name in only or ():
        if name not in FIGURES:
            raise ObjectSeekerError(f"no figure is called {name!r}: choose from {', '.join(FIGURES)}")
    chosen = {name: figure for name, figure in FIGURES.items() if not only or name in only}
    skipped = [name for name, figure in chosen.items() if figure.needs_lines and context.lines is None]
    if skipped:
        on_warning(f"skipped {', '.join(skipped)}: {context.masks} has no lines of which a subset could be used")
    return {name: figure for name, figure in chosen.items() if name not in skipped}
