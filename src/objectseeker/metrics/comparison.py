"""What training changed: runs of differently trained detectors, measured alike and set side by side.

`measure` gives the figures of one run, each with a bootstrap confidence interval over its images and the samples that
the interval was made of. `compare` subtracts two of them sample by sample. Where both runs hold the same images the
samples hold the same images, too, and what the images have to do with a figure cancels out of the difference.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.metrics.comparison_metrics import (
    BETAS,
    BetaPoint,
    CleanFigures,
    Options,
    Point,
    TunedFigures,
    UndefendedFigures,
    clean_figures,
    combined,
    estimates_in,
    plain,
    read,
    tuned_figures,
)
from objectseeker.metrics.image_set import under
from objectseeker.metrics.tuning import Family
from objectseeker.runs.run import Run, open_run

Task = tuple[Family, Point, int] | None  # a rule, an operating point, the half searched; None: what needs no settings


@dataclass(frozen=True, slots=True)
class Compared:
    """What a run and a difference of two runs have in common."""

    undefended: UndefendedFigures
    curve: tuple[BetaPoint, ...]
    tuned: tuple[TunedFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures(Compared):
    """All figures of one run. APs, losses and recalls are percentages, scores are not; see `measure`."""

    run: str
    detector: str
    masks: str
    mask_floor: float
    options: Options
    images: int
    objects: int
    image_digest: str

    def to_dict(self, *, samples: bool = True) -> dict[str, Any]:
        return plain(self, samples=samples)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunFigures:
        """What `to_dict` gave; ValueError or TypeError for anything else."""
        figures = read(cls, content)
        if not isinstance(figures, cls):
            raise TypeError(f"{type(content).__name__} instead of figures")
        options = figures.options
        parts = {"curve": len(BETAS), "tuned": len(options.rules) * len(options.points) * len(options.losses)}
        if any(len(getattr(figures, name)) != count for name, count in parts.items()) or any(
            len(point.at_recall) != len(options.points) for point in figures.curve
        ):
            raise ValueError("there are more or fewer figures than were asked for")
        if any(row.point not in options.points for row in figures.tuned):
            raise ValueError("there are figures at another operating point than was asked for")
        if any(len(one.samples) != options.bootstrap for one in estimates_in(figures)):
            raise ValueError(f"an estimate has not {options.bootstrap} samples")
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Compared):
    """One run minus another. `paired`: both hold the same images."""

    run: str
    against: str
    paired: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs, and what each of them has more (or less) than the first."""

    runs: tuple[RunFigures, ...]
    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        return plain(self, samples=False)  # type: ignore[no-any-return]


def measure(
    run: Run,
    *,
    masks: Recipe | None = None,
    processes: int = 1,
    on_part: Callable[[int, int], None] | None = None,
    **options: Any,
) -> RunFigures:
    """All figures of one run, or of some of its masks: those of another recipe, all of which it must hold.

    - undefended: AP50 of the undefended detector.
    - curve: AP50 and its loss against that where mask_threshold = base_threshold + (1 - base_threshold) * beta, by the
      paper's
      rule and protocol (alpha is beta, or the run's floor if that is higher; filter_ioa 0.6), on all images; and the
      spurious boxes per image at the base_threshold at which the undefended detector has the operating point. A
      spurious
      box is one that the defense adds to the base boxes of a clean image and that overlaps no object of its label
      (an ignored one neither) with an IoU of 0.5.
    - tuned: for every rule, operating point and loss, the settings that certify most within the loss on one half of the
      images, and what they give on the other half. With `both_halves`, likewise the other way round: `halves` has both,
      `held_out` the mean.

    An operating point is a clean recall, or a number of wrong boxes an image. Every figure has a 95 % bootstrap
    interval over images. Settings stay as they were found; a sample's base_threshold is the one at which that sample
    has
    the operating point, and samples that never do are left out (`unreached` counts them). `options` are those of
    `Options`; `on_part` is called with how many parts of the work are done, and of how many.
    """
    chosen = Options(**options)
    # The evidence rule takes longest, so it goes first.
    halves = range(2 if chosen.both_halves else 1)
    tasks: list[Task] = [
        (rule, point, half) for rule in chosen.rules[::-1] for point in chosen.points for half in halves
    ]
    tasks.append(None)
    done = 0

    def advance(_: object) -> None:
        nonlocal done
        done += 1
        if on_part is not None:
            on_part(done, len(tasks))

    parts: list[Any] = []
    if require_count(processes, "processes") == 1:
        for task in tasks:
            parts.append(_part_of(run, masks, chosen, task))
            advance(task)
    else:
        # Each process reads the run anew: that takes a second, and nothing large travels between them.
        with ProcessPoolExecutor(min(processes, len(tasks)), get_context("spawn"), _leave_interrupts) as pool:
            waiting = [pool.submit(_part_of_folder, run.folder, masks, chosen, task) for task in tasks]
            for future in waiting:
                future.add_done_callback(advance)
            parts = [future.result() for future in waiting]
    *tuned, clean = parts
    if chosen.both_halves:
        tuned = [list(map(both_ways, *two)) for two in zip(tuned[::2], tuned[1::2], strict=True)]
    order = {at: place for place, at in enumerate(product(chosen.rules, chosen.points))}
    rows: list[TunedFigures] = [row for part in tuned for row in part]
    observing = run.manifest.observation_settings
    return RunFigures(
        run=run.folder.resolve().name,
        detector=run.manifest.detector_fingerprint,
        masks=str(observing.masks if masks is None else masks),
        mask_floor=observing.mask_floor,
        options=chosen,
        **{each.name: getattr(clean, each.name) for each in fields(CleanFigures)},
        tuned=tuple(sorted(rows, key=lambda row: (order[row.rule, row.point], row.most_loss))),
    )


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _part_of_folder(folder: Path, masks: Recipe | None, options: Options, task: Task) -> Any:
    return _part_of(open_run(folder), masks, options, task)


def _part_of(run: Run, masks: Recipe | None, options: Options, task: Task) -> CleanFigures | list[TunedFigures]:
    images = run.images() if masks is None else under(run.images(), masks)
    given = images, run.vocabulary, run.manifest.observation_settings.mask_floor, options
    if task is None:
        return clean_figures(*given)
    rule, point, half = task
    return tuned_figures(*given, rule=rule, point=point, half=half)


def both_ways(one: TunedFigures, other: TunedFigures) -> TunedFigures:
    """What was found on each half as one: the mean of what was measured, if both found settings."""
    return TunedFigures(
        rule=one.rule,
        clean_recall=one.clean_recall,
        fppi=one.fppi,
        most_loss=one.most_loss,
        halves=(one, other),
        held_out=combined(one.held_out, other.held_out, lambda a, b: (a + b) / 2),
        why=one.why or other.why,
    )


def compare(measured: Sequence[RunFigures]) -> Comparison:
    """What `measure` gave for several runs, and what each of them has more (or less) than the first.

    The interval of a difference is that of the differences of the samples.
    """
    if not measured:
        raise ObjectSeekerError("there are no runs to compare; give at least one")
    first, *others = measured
    for other in others:
        for each in fields(Options):
            one, two = getattr(first.options, each.name), getattr(other.options, each.name)
            if one != two:
                raise ObjectSeekerError(
                    f"{first.run} was measured with {each.name}={one!r} and {other.run} with {each.name}={two!r}: "
                    "measure both alike"
                )
    return Comparison(tuple(measured), tuple(_difference(other, first) for other in others))


def _difference(one: RunFigures, other: RunFigures) -> Difference:
    """`one` minus `other` wherever both have an estimate; of all else, what both have in common."""
    return Difference(
        run=one.run,
        against=other.run,
        paired=one.image_digest == other.image_digest,
        undefended=combined(one.undefended, other.undefended, np.subtract),
        curve=combined(one.curve, other.curve, np.subtract),
        tuned=combined(tuple(map(_outcome, one.tuned)), tuple(map(_outcome, other.tuned)), np.subtract),
    )


def _outcome(row: TunedFigures) -> TunedFigures:
    """Without how the settings were found, which no difference has."""
    return replace(row, settings=None, searched=None, halves=())
