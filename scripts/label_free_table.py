"""Print rules chosen from unlabeled images next to rules chosen by labels, from stored runs.

    python scripts/label_free_table.py runs/a runs/b --masks halves:9 --thresholds 0.3 0.5 --limit 200
    python scripts/label_free_table.py runs/a --slow

For each run, threshold and half: on one half the rule with most certified own boxes at each price in spurious boxes
(unlabeled), and the rule with most certified recall at as many false positives (by labels), from the same grid. Both
are measured with the labels of the other half. `--slow` instead times the search of rules one by one by `prune` and
`certify` on a small grid, and checks that it finds no more.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data_files import add_data_option, save_data

from objectseeker.core.boxes import Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import parse_recipe
from objectseeker.core.rules import Rule
from objectseeker.core.threats import ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, SearchSpace, evaluate_images
from objectseeker.metrics.image_set import restrict_images, split_images
from objectseeker.metrics.rule_search import RuleSearch, mask_thresholds, measure_rule, open_bench, spurious_interval
from objectseeker.metrics.search import LOCATIONS, format_interval
from objectseeker.runs.run import Run, open_run
from objectseeker.text import to_markdown

PRICES = (0.1, 0.25, 0.5, 1.0)
SPACE = SearchSpace((0.6, 0.75), (1.0, 0.85, 0.7), (0.1, 0.3), (None, 0.2, 0.3, 0.4), (1.0, 2.0))
SMALL_SPACE = SearchSpace((0.6, 0.75), (0.85,), (0.3,), (None, 0.3), (1.0,))


@dataclass(frozen=True, slots=True)
class Measured:
    """A rule by the labels of the images that did not choose it."""

    cells: dict[str, str]
    mean: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--masks", help="only these masks of the runs")
    parser.add_argument("--thresholds", nargs="+", type=float, default=[0.3])
    parser.add_argument("--prices", nargs="+", type=float, default=PRICES)
    parser.add_argument("--limit", type=int, help="number of images of each run")
    parser.add_argument("--slow", action="store_true", help="compare with the search of rules one by one, instead")
    add_data_option(parser)
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for folder in options.runs:
        run = open_run(folder)
        images = list(run.images()[: options.limit])
        if options.masks:
            images = restrict_images(images, parse_recipe(options.masks))
        for threshold in options.thresholds:
            if options.slow:
                rows.append(compare_with_slow(folder.name, run, images, threshold))
            else:
                for half in (0, 1):
                    rows += rows_of(folder.name, run, images, threshold, half, options.prices)
        print(to_markdown(rows), flush=True)
    save_data(options.data, rows)


def rows_of(
    name: str, run: Run, images: list[ObservedImage], threshold: float, half: int, prices: list[float]
) -> list[dict[str, str]]:
    """Choose on one half, unlabeled and by labels, and measure both on the other."""
    split = split_images(len(images), 2, 0)
    searched, held_out = split[half], split[1 - half]
    floor = run.manifest.observation_settings.mask_floor
    threat = ThreatModel()
    with open_bench(images, searched, threshold, floor, threat) as bench:
        search = RuleSearch(bench, threshold, floor, SPACE)
        unlabeled = {price: search.best(price) for price in prices}
        by_labels = choose_by_labels(run, images, searched, search, unlabeled)
    rows = []
    with open_bench(images, held_out, threshold, floor, threat) as bench:
        objects = bench.objects()
        for price, rule in unlabeled.items():
            if rule is None:
                continue
            own = measure_rule(bench, rule, objects)
            mine, best = (measure(run, images, held_out, one) for one in (rule, by_labels[price]))
            rows.append(
                {
                    "run": f"{name}, {threshold:g}, half {half}",
                    "price": f"{price:g}",
                    "spurious": format_interval(own.spurious, 2),
                    "own boxes": " / ".join(f"{own.certified[where].value:.1f}" for where in LOCATIONS),
                    **mine.cells,
                    "by labels": "same rule" if rule == by_labels[price] else best.cells["certified recall"],
                    "mean": f"{mine.mean:.1f} / {best.mean:.1f}",
                }
            )
    return rows


def choose_by_labels(
    run: Run, images: list[ObservedImage], searched: Ints, search: RuleSearch, unlabeled: dict[float, Rule | None]
) -> dict[float, Rule]:
    """For each price, the rule with most certified recall at no more false positives than the unlabeled choice has.

    The candidates are those of the unlabeled search: each shape at its lowest mask threshold that keeps the price, the
    20 with the highest bound of their gain.
    """
    chosen = [images[number] for number in searched.tolist()]
    known: dict[Rule, tuple[float, float]] = {}

    def labeled(rule: Rule) -> tuple[float, float]:
        if rule not in known:
            point = evaluate_at(run, chosen, rule).defended
            recall = point.certified_recall()
            known[rule] = float(np.mean([recall[where] or 0.0 for where in LOCATIONS])), point.fppi
        return known[rule]

    best: dict[float, Rule] = {}
    for price, rule in unlabeled.items():
        if rule is None:
            continue
        allowed = labeled(rule)[1]
        rivals = [rule, *search.rivals(price, 20)]
        best[price] = max((one for one in rivals if labeled(one)[1] <= allowed), key=lambda one: labeled(one)[0])
    return best


def evaluate_at(run: Run, images: list[ObservedImage], rule: Rule, *, intervals: bool = False) -> Any:
    settings = EvaluationSettings(rule=rule, threshold_schedule=ThresholdSchedule.from_rule(rule))
    return evaluate_images(images, run.label_map, settings, intervals=intervals)


def measure(run: Run, images: list[ObservedImage], index: Ints, rule: Rule) -> Measured:
    """Measure a rule by labels: FPPI and certified recall, with intervals."""
    found = evaluate_at(run, [images[number] for number in index.tolist()], rule, intervals=True)
    recall = found.defended.certified_recall()
    intervals = [found.intervals[f"defended.certified_recall.{where}"] for where in LOCATIONS]
    cells = {
        "FPPI": format_interval(found.intervals["defended.fppi"], 2),
        "certified recall": " / ".join(format_interval(interval, 1) for interval in intervals),
    }
    return Measured(cells, float(np.mean([recall[where] or 0.0 for where in LOCATIONS])))


def compare_with_slow(name: str, run: Run, images: list[ObservedImage], threshold: float) -> dict[str, str]:
    """Time both searches of the small grid for one price; the fast one must find as much."""
    floor, price = run.manifest.observation_settings.mask_floor, 0.5
    start = time.process_time()
    with open_bench(images, np.arange(len(images)), threshold, floor, ThreatModel()) as bench:
        search = RuleSearch(bench, threshold, floor, SMALL_SPACE)
        rule = search.best(price)
    fast = time.process_time() - start
    found = -1.0 if rule is None else search.gains[rule]
    start, best = time.process_time(), -1.0
    patches = [patch for patch in ThreatModel().patches() if patch.location in LOCATIONS]
    for shape in SMALL_SPACE.rules(threshold, floor):
        for level in mask_thresholds(threshold, floor):
            tried = shape.with_settings(mask_threshold=float(level))
            if shape.evidence_threshold is not None and level <= shape.evidence_threshold:
                continue
            own = [image.observation.base.with_min_score(threshold) for image in images]
            counts = [len(tried.prune(one.observation)) - len(base) for one, base in zip(images, own, strict=True)]
            if spurious_interval(np.array(counts)).high > price:
                continue
            verdicts = [
                tried.certify(one.observation, base, patches).certified for one, base in zip(images, own, strict=True)
            ]
            best = max(best, 100 * float(np.concatenate(verdicts, axis=1).mean()))
            break  # a higher mask threshold certifies no more
    slow = time.process_time() - start
    assert found >= best - 1e-9, f"{name}: {found} < {best}"
    return {
        "run": name,
        "images": str(len(images)),
        "fast, s of CPU": f"{fast:.1f}",
        "slow, s of CPU": f"{slow:.1f}",
        "optimum, fast and slow": f"{found:.2f} / {best:.2f}",
    }


if __name__ == "__main__":
    main()
