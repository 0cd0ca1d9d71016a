"""Two runs or more on the same metrics: what each has more, or less, than the first.

Where both runs hold the same images and objects, the bootstrap draws the same images for both and what the images
contribute to both cancels out of the difference. Otherwise the interval follows from those of the two metrics
(MOVER: Newcombe's square-and-add).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.core.threats import ThreatModel
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.ap_search import SearchSpec, Trial, tune_images
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.evaluation import (
    FABRICATION_ROWS,
    ROWS,
    Evaluation,
    evaluate,
    evaluate_images,
    evaluation_metrics,
    interval_cell,
)
from objectseeker.metrics.image_set import OnImage, restrict_images, split_images
from objectseeker.metrics.metric import Metric, difference_interval
from objectseeker.metrics.tally import Tally
from objectseeker.runs.run import Run
from objectseeker.text import to_html


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A run's name, its counts, and its metrics with their intervals."""

    name: str
    tally: Tally
    metrics: Mapping[str, Metric]
    intervals: Mapping[str, ConfidenceInterval]
    details: Mapping[str, Any]  # what else is known, ready for JSON


@dataclass(frozen=True, slots=True, eq=False)
class RunDifference:
    """One run minus another: per metric the difference and its interval; `paired` for the same images."""

    run: str
    against: str
    paired: bool
    metrics: Mapping[str, ConfidenceInterval]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Several runs, and what each has more, or less, than the first."""

    protocol: str
    runs: tuple[MeasuredRun, ...]
    differences: tuple[RunDifference, ...]

    def title(self) -> str:
        """Say what was measured, on how many images."""
        images = " and ".join(f"{len(run.tally.ids):,}" for run in self.runs)
        return f"{self.protocol}: {images} images; 95 % intervals"

    def caveats(self) -> list[str]:
        """Return what a reader of the differences must know."""
        return [
            f"{one.run} and {one.against} hold different images: the difference has the interval of two samples"
            for one in self.differences
            if not one.paired
        ]

    def rows(self) -> list[dict[str, str]]:
        """Return a table: one row per metric, every run, then what each has more than the first one."""
        keys = {"AP50 undefended": "undefended.ap50"} | {label: f"defended.{key}" for label, key in ROWS.items()}
        columns = {run.name: run.intervals for run in self.runs}
        columns |= {f"{one.run} - {one.against}": one.metrics for one in self.differences}
        return [
            {"": label}
            | {name: interval_cell(key.partition(".")[2], known.get(key)) for name, known in columns.items()}
            for label, key in keys.items()
            if label not in FABRICATION_ROWS or any(key in run.metrics for run in self.runs)
        ]

    def _repr_html_(self) -> str:
        return to_html(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {
            "protocol": self.protocol,
            "runs": [
                {
                    "run": run.name,
                    "images": len(run.tally.ids),
                    "objects": len(run.tally.objects.label),
                    "metrics": _plain(run.intervals),
                    **run.details,
                }
                for run in self.runs
            ],
            "differences": [
                {"run": one.run, "against": one.against, "paired": one.paired, "metrics": _plain(one.metrics)}
                for one in self.differences
            ],
        }


def _plain(intervals: Mapping[str, ConfidenceInterval]) -> dict[str, Any]:
    return {name: one.to_dict() for name, one in intervals.items() if one.known}


def compare(
    runs: Sequence[Run],
    defenses: Sequence[Defense] | None = None,
    *,
    threat: ThreatModel | None = None,
    clean_recall: float | None = None,
    fppi: float | None = None,
    fabrication: bool = False,
    cross_tune: float | None = None,
    masks: Recipe | None = None,
    seed: int = 0,
    processes: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Comparison:
    """Measure several runs alike and subtract the first from each of the others.

    Args:
        runs: What `open_run` returned.
        defenses: One per run. Default: each run's own.
        threat: The patch to certify against. Default: one square patch of 1 % of the image.
        clean_recall: Measure at this clean recall, a fraction, instead of at each defense's own base threshold.
        fppi: Measure with at most this many false positives per image instead.
        fabrication: Certify the output boxes not fabricated, too.
        cross_tune: Measure every run under its own rules, with at most this loss of AP50 points: tuned on one half of
            its images and measured on the other, both ways.
        masks: With `cross_tune`: only these masks, among those of every run.
        seed: Of the split into halves.
        processes: How many processes share the images.
        on_step: Called whenever an image or a tried setting is done.

    Returns:
        The metrics of every run, and the differences with paired intervals.

    Raises:
        ObjectSeekerError: A defense is not that of its run, or no rule keeps within `cross_tune`.

    Example:
        >>> from objectseeker import compare, open_run
        >>> compare([open_run("runs/old"), open_run("runs/new")]).differences  # doctest: +SKIP
    """
    threat = ThreatModel() if threat is None else threat
    names = _distinct([run.folder.resolve().name for run in runs])
    if cross_tune is not None:
        search = {"threat": threat, "clean_recall": clean_recall, "fppi": fppi, "max_ap_loss": cross_tune, "seed": seed}
        measured = [
            _cross_tuned(name, run, masks, search, fabrication, on_step) for name, run in zip(names, runs, strict=True)
        ]
        protocol = f"tuned on each half with at most {cross_tune:g} points of AP50 lost, measured on the other"
    else:
        chosen = [None] * len(runs) if defenses is None else list(defenses)
        evaluations = [
            evaluate(
                run,
                defense,
                threat=threat,
                clean_recall=clean_recall,
                fppi=fppi,
                fabrication=fabrication,
                processes=processes,
                on_image=on_step,
            )
            for run, defense in zip(runs, chosen, strict=True)
        ]
        measured = [
            MeasuredRun(name, one.tally, evaluation_metrics(one), one.intervals, {"evaluation": one.to_dict()})
            for name, one in zip(names, evaluations, strict=True)
        ]
        protocol = evaluations[0].settings.protocol()
    first, *others = measured
    return Comparison(protocol, tuple(measured), tuple(_difference(other, first) for other in others))


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that occur more than once."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def _cross_tuned(
    name: str,
    run: Run,
    masks: Recipe | None,
    search: dict[str, Any],
    fabrication: bool,
    on_step: Callable[[], None],
) -> MeasuredRun:
    images = run.images() if masks is None else restrict_images(run.images(), masks)
    observing = run.manifest.observation_settings
    wanted = SearchSpec(mask_floor=observing.mask_floor, base_floor=observing.base_floor, losses=(), **search)
    found = cross_tune(images, run.label_map, wanted, fabrication=fabrication, on_trial=lambda _: on_step())
    metrics = found.metrics()
    return MeasuredRun(
        name,
        found.tally,
        metrics,
        {key: one.interval(found.tally) for key, one in metrics.items()},
        {"masks": str(masks or observing.masks), "halves": found.to_dict()},
    )


def _difference(run: MeasuredRun, against: MeasuredRun) -> RunDifference:
    paired = run.tally.has_objects_of(against.tally)
    metrics = {}
    for name in [name for name in run.metrics if name in against.metrics]:
        if paired:
            pairs = (run.metrics[name], run.tally), (against.metrics[name], against.tally)
            metrics[name] = difference_interval(*pairs)
        elif name in run.intervals and name in against.intervals:
            metrics[name] = _unpaired(run.intervals[name], against.intervals[name])
    return RunDifference(run.name, against.name, paired, metrics)


def _unpaired(first: ConfidenceInterval, second: ConfidenceInterval) -> ConfidenceInterval:
    """Return the difference of two independent metrics; reaches add in quadrature on each side."""
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return ConfidenceInterval(value, value - below, value + above, "bootstrap")


@dataclass(frozen=True, slots=True, eq=False)
class CrossTuned:
    """A rule tuned on each half of a run and measured on the other: images by a rule that never saw them.

    Attributes:
        evaluations: Of the two halves, each under the rule tuned on the other one.
        searched: What the two rules gave on the halves that they were tuned on.
        tally: The counts of all images.
    """

    evaluations: tuple[Evaluation, Evaluation]
    searched: tuple[Trial, Trial]
    tally: Tally

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of both halves, without the undefended detector's at an operating point."""
        each = [evaluation_metrics(one) for one in self.evaluations]
        at_rows = ("undefended.clean_recall", "undefended.fppi")  # a row of each half's own curve
        return {name: each[0][name] for name in each[0] if name in each[1] and name not in at_rows}

    def to_dict(self) -> list[dict[str, Any]]:
        """Return per half the rule's settings, and what it gave where it was tuned and where it was measured."""
        return [
            {
                "settings": evaluation.settings.to_dict(),
                "searched": trial.to_dict(),
                "held_out": evaluation.to_dict(),
            }
            for trial, evaluation in zip(self.searched, self.evaluations, strict=True)
        ]


def cross_tune(
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    search: SearchSpec,
    *,
    fabrication: bool = False,
    on_trial: Callable[[Trial], None] | None = None,
    on_image: OnImage = lambda: None,
) -> CrossTuned:
    """Tune on each half of the images in turn and measure on the other half.

    This is how detectors are compared: each has the rule that suits it, and no image is measured under a rule that was
    chosen on it. The operating point (clean recall or FPPI) is found on the half that is measured.

    Raises:
        ObjectSeekerError: No rule keeps within the limits of the search on one of the halves.
    """
    halves = split_images(len(images), 2, search.seed)
    evaluations, searched = [], []
    for half in (0, 1):
        tuning = tune_images(images, label_map, replace(search, half=half), on_trial=on_trial)
        held_out = [images[n] for n in halves[1 - half]]
        trial = cast(Trial, tuning.best.search_split)
        evaluation = evaluate_images(
            held_out, label_map, trial.settings, fabrication=fabrication, intervals=False, on_image=on_image
        )
        if evaluation.defended.rule is None:
            raise ObjectSeekerError(evaluation.defended.caveat() or "the held-out half has no such operating point")
        evaluations.append(evaluation)
        searched.append(trial)
    first, second = evaluations
    order = np.argsort(np.concatenate([halves[1], halves[0]]))
    tally = Tally.concatenate([first.tally, second.tally]).of_images(order)
    return CrossTuned((first, second), (searched[0], searched[1]), tally)
