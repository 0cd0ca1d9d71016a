"""What training changed: runs of differently trained detectors, measured alike and set side by side.

`measure` gives the figures of one run, each with a bootstrap confidence interval over its images and the samples that
the interval was made of. `compare` subtracts two of them sample by sample. Where both runs hold the same images the
samples hold the same images, too, and what the images have to do with a figure cancels out of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.evaluation.estimates import Options, clean_figures, combined, tuned_figures, without_samples
from objectseeker.evaluation.summary import Row
from objectseeker.evaluation.tuning import Family
from objectseeker.runs.run import Run, open_run

Task = tuple[Family, float, int] | None  # a rule, a clean recall, the half searched; None: what needs no settings
HOW_SETTINGS_WERE_FOUND = ("settings", "searched", "halves")  # parts of a tuned row that no difference has


def measure(run: Run, *, processes: int = 1, on_part: Callable[[int, int], None] | None = None, **options: Any) -> Row:
    """All figures of one run: plain values, ready for JSON. APs, losses and recalls are percentages, scores are not.

    - vanilla: AP50 of the undefended detector.
    - curve: AP50 and its loss against vanilla where mask_score = base_score + (1 - base_score) * beta, by the paper's
      rule and protocol (alpha is beta, or the run's floor if that is higher; filter_ioa 0.6), on all images; and the
      spurious boxes per image at the base_score at which the undefended detector reaches a clean recall. A spurious
      box is one that the defence adds to the base boxes of a clean image and that overlaps no object of its label
      (an ignored one neither) with an IoU of 0.5.
    - tuned: for every rule, clean recall and loss, the settings that certify most within the loss on one half of the
      images, and what they give on the other half. With `both_halves`, likewise the other way round: `halves` has both,
      `held_out` the mean.

    Every figure is a row of value, low, high (its 95 % bootstrap interval over images) and samples. Settings stay as
    they were found; a sample's base_score is the one at which that sample reaches the clean recall, and samples that
    never do are left out (`unreached` counts them). `options` are those of `Options`; `on_part` is called with how
    many parts of the work are done, and of how many.
    """
    chosen = Options(**options)
    # The evidence rule takes longest, so it goes first.
    halves = range(2 if chosen.both_halves else 1)
    tasks: list[Task] = [
        (rule, recall, half) for rule in chosen.rules[::-1] for recall in chosen.recalls for half in halves
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
            parts.append(_part_of(run, chosen, task))
            advance(task)
    else:
        # Each process reads the run anew: that takes a second, and nothing large travels between them.
        with ProcessPoolExecutor(min(processes, len(tasks)), get_context("spawn")) as pool:
            waiting = [pool.submit(_part_of_folder, run.folder, chosen, task) for task in tasks]
            for future in waiting:
                future.add_done_callback(advance)
            parts = [future.result() for future in waiting]
    *tuned, clean = parts
    if chosen.both_halves:
        tuned = [list(map(both_ways, *two)) for two in zip(tuned[::2], tuned[1::2], strict=True)]
    order = {rule: place for place, rule in enumerate(chosen.rules)}
    rows = [row for part in tuned for row in part]
    return {
        "run": str(run.folder),
        "detector": run.manifest.detector,
        "lines": run.manifest.lines,
        "mask_floor": run.manifest.mask_floor,
        "options": chosen.to_json(),
        **clean,
        "tuned": sorted(rows, key=lambda row: (order[row["rule"]], row["clean_recall"], row["most_loss"])),
    }


def _part_of_folder(folder: Path, options: Options, task: Task) -> Any:
    return _part_of(open_run(folder), options, task)


def _part_of(run: Run, options: Options, task: Task) -> Any:
    given = run.images(), run.manifest.names, run.manifest.mask_floor, options
    return clean_figures(*given) if task is None else tuned_figures(*given, *task)


def both_ways(one: Row, other: Row) -> Row:
    """A tuned row of each half as one row: the mean of what was measured, if both found settings."""
    halves = [one, other]
    reached = all(half["held_out"] is not None for half in halves)
    return {
        **{name: one[name] for name in ("rule", "clean_recall", "most_loss")},
        "halves": without_samples(halves),
        "held_out": combined(one["held_out"], other["held_out"], lambda a, b: (a + b) / 2) if reached else None,
        "why": one["why"] or other["why"],
    }


def compare(measured: Sequence[Mapping[str, Any]]) -> Row:
    """What `measure` gave for several runs, and what each of them has more (or less) than the first.

    The interval of a difference is that of the differences of the samples. `paired` says whether both runs hold the
    same images.
    """
    if not measured:
        raise ObjectSeekerError("there are no runs to compare; give at least one")
    first, *others = measured
    for other in others:
        for name, value in first["options"].items():
            if other["options"].get(name) != value:
                raise ObjectSeekerError(
                    f"{first['run']} was measured with {name}={value!r} and {other['run']} with "
                    f"{name}={other['options'].get(name)!r}: measure both alike"
                )
    return {
        "runs": [without_samples(run) for run in measured],
        "differences": [
            {
                "run": other["run"],
                "against": first["run"],
                "paired": other["image_digest"] == first["image_digest"],
                **{part: _difference(other[part], first[part]) for part in ("vanilla", "curve")},
                "tuned": _difference(*([_outcome(row) for row in run["tuned"]] for run in (other, first))),
            }
            for other in others
        ],
    }


def _difference(one: Any, other: Any) -> Any:
    """`one` minus `other` wherever both have an estimate; of all else, what both have in common."""
    return without_samples(combined(one, other, np.subtract))


def _outcome(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if name not in HOW_SETTINGS_WERE_FOUND}
