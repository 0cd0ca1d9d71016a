"""Print the tables of fabrication certificates from stored runs.

python scripts/two_sides_table.py runs/voc [runs/coco ...] --masks bands:1%,spacing=2+bands:1% --defense builtin-fast

Of each run: the share of true and of false positives that is certified not fabricated by a square of 1 %, and precision
and recall of the output with and without --only-certified, all with 95 % intervals over images; then by class.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from data_files import add_data_option, save_data

from objectseeker import Defense, evaluate
from objectseeker.core.recipes import parse_recipe
from objectseeker.core.threats import PatchLocation, ThreatModel
from objectseeker.defense import set_defense_value
from objectseeker.metrics import metric
from objectseeker.metrics.average_precision import percent
from objectseeker.metrics.evaluation import evaluate_images, settings_for
from objectseeker.metrics.image_set import restrict_images
from objectseeker.metrics.metric import Metric
from objectseeker.metrics.output_boxes import FALSE_POSITIVE, TRUE_POSITIVE
from objectseeker.metrics.tally import Tally
from objectseeker.runs.run import open_run
from objectseeker.text import to_markdown

Values = Callable[[Tally, np.ndarray], np.ndarray]


def counts(tally: Tally, weights: np.ndarray, threat: ThreatModel, outcome: int, *, certified: bool) -> np.ndarray:
    """The boxes of an outcome in each sample, all or those certified anywhere."""
    boxes = tally.boxes
    assert boxes is not None
    chosen = boxes.outcome == outcome
    if certified:
        chosen &= boxes.certified_at(threat, "anywhere")
    return np.asarray(weights @ boxes.per_image(weights.shape[1], chosen))


def precision(threat: ThreatModel, *, certified: bool) -> Values:
    def values(tally: Tally, weights: np.ndarray) -> np.ndarray:
        right = counts(tally, weights, threat, TRUE_POSITIVE, certified=certified)
        return percent(right, right + counts(tally, weights, threat, FALSE_POSITIVE, certified=certified))

    return values


def recall(threat: ThreatModel, *, certified: bool) -> Values:
    def values(tally: Tally, weights: np.ndarray) -> np.ndarray:
        objects = weights @ tally.objects_per_image()
        return percent(counts(tally, weights, threat, TRUE_POSITIVE, certified=certified), objects)

    return values


def metrics(threat: ThreatModel) -> dict[str, Metric]:
    locations: tuple[PatchLocation, ...] = ("far", "anywhere")
    rows = {f"true positives, {where}": metric.certified_true_positives(threat, where) for where in locations}
    rows |= {f"false positives, {where}": metric.certified_false_positives(threat, where) for where in locations}
    for name, values in (("precision", precision), ("recall", recall)):
        rows[f"{name}, all boxes"] = Metric(values(threat, certified=False))
        rows[f"{name}, only certified"] = Metric(values(threat, certified=True))
    return rows | {"AP50, by score": metric.output_ap50, "AP50, by certified score": metric.ranked_ap50}


def with_interval(tally: Tally, one: Metric) -> str:
    interval = one.interval(tally)
    value = one.value(tally)
    return "-" if np.isnan(value) else f"{value:.1f} ({interval.low:.1f} to {interval.high:.1f})"


def tally_of(path: Path, defense: Defense | None, masks: str | None, threat: ThreatModel, limit: int | None) -> Tally:
    run = open_run(path)
    if masks is None and limit is None:
        return evaluate(run, defense, threat=threat, fabrication=True, intervals=False).tally
    chosen = run.defense() if defense is None else defense
    images = list(run.images())[:limit]
    if masks is not None:
        images = restrict_images(images, parse_recipe(masks))
    settings = settings_for(run, chosen, threat=threat)
    return evaluate_images(images, run.label_map, settings, fabrication=True, intervals=False).tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--defense", help="file or name; default: the run's own")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the defense")
    parser.add_argument("--masks", help="recipe within the run's masks; default: all of them")
    parser.add_argument("--area", type=float, default=0.01)
    parser.add_argument("--images", type=int, help="only the first N images of each run")
    parser.add_argument("--classes", type=int, default=20, help="rows of the table by class, most objects first")
    add_data_option(parser)
    options = parser.parse_args()
    threat = ThreatModel(area=options.area)
    tallies = {}
    for path in options.runs:
        defense = Defense.load(options.defense) if options.defense else open_run(path).defense()
        for setting in options.set:
            defense = set_defense_value(defense, setting)
        tallies[path.name] = tally_of(path, defense, options.masks, threat, options.images)
    rows = [
        {"in percent": name} | {run: with_interval(tally, one) for run, tally in tallies.items()}
        for name, one in metrics(threat).items()
    ]
    sizes = {
        run: f"{len(tally.ids)} images, {len(tally.objects.image)} objects, {len(tally.boxes.image)} boxes"
        for run, tally in tallies.items()
        if tally.boxes is not None
    }
    save_data(options.data, [{"in percent": "sample"} | sizes, *rows])
    print(to_markdown([{"in percent": "sample"} | sizes, *rows]))
    for run, tally in tallies.items():
        print(f"\n{run}, by class, a square of {options.area:.1%} anywhere:\n")
        print(to_markdown(class_rows(tally, threat)[: options.classes]))


def class_rows(tally: Tally, threat: ThreatModel) -> list[dict[str, str]]:
    """One row per class, most objects first."""
    names = ("true positives, anywhere", "false positives, anywhere", "precision, all boxes")
    names += ("precision, only certified", "recall, all boxes", "recall, only certified")  # type: ignore[assignment]
    known = metrics(threat)
    found = []
    for label, objects in sorted(enumerate(np.bincount(tally.objects.label).tolist()), key=lambda item: -item[1]):
        if objects:
            part = tally.of_classes([label])
            values = {name: known[name].value(part) for name in names}
            shown = {name: "-" if np.isnan(value) else f"{value:.1f}" for name, value in values.items()}
            found.append({"class": tally.names[label], "objects": str(objects)} | shown)
    return found


if __name__ == "__main__":
    main()
