"""Compare DetectorGuard with ObjectSeeker on a run: the table, and certified recall by cost.

python scripts/detectorguard_table.py runs/voc --clean-recall 0.8 --out tables/voc
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data_files import add_data_option, save_data

from objectseeker import Halves
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.defense import EVIDENCE_RULE, EVIDENCE_SCHEDULE
from objectseeker.detectorguard.comparison import (
    FORWARD_PASSES,
    DetectorGuardComparison,
    Shares,
    compare_with_detectorguard,
)
from objectseeker.detectorguard.features import DEFAULT_INPUT, NETWORK, ObjectnessFeatures
from objectseeker.files.atomic import save_json, save_text
from objectseeker.inference.drawing import ORANGE, VERMILION
from objectseeker.metrics import EvaluationSettings, ImageSet, ThreatModel
from objectseeker.metrics.image_set import split_images
from objectseeker.metrics.sweeps import by_lines
from objectseeker.report import plots
from objectseeker.runs.run import Run, open_run
from objectseeker.text import to_csv, to_markdown, transpose

LINE_SUBSET_NOTE = (
    "ObjectSeeker's k lines are every n-th of the stored ones, not those of a detector deployed with k lines: read the "
    "trend"
)
LINES = (1, 2, 3, 5, 8, 10, 15, 20, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run; missing features are computed")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--clean-recall", type=float, default=0.8)
    parser.add_argument("--patch-area", type=float, default=0.01)
    parser.add_argument("--max-false-alert-rate", type=float, default=0.05)
    parser.add_argument("--network", type=Path, help="ONNX file of the objectness network")
    parser.add_argument("--input-size", type=int, nargs=2, help="width and height of its input; KITTI: 744 224")
    add_data_option(parser)
    parser.add_argument("--no-cost", action="store_true", help="omit certified recall by cost")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    settings = EvaluationSettings(  # the same rule for every detector
        rule=EVIDENCE_RULE,
        threshold_schedule=EVIDENCE_SCHEDULE,
        threat=ThreatModel(area=arguments.patch_area),
        clean_recall=arguments.clean_recall,
    )
    network = None
    if arguments.network or arguments.input_size:
        network = ObjectnessFeatures(
            arguments.network or NETWORK, input_size=tuple(arguments.input_size or DEFAULT_INPUT)
        )
    comparison = compare_with_detectorguard(
        run, settings, network=network, max_false_alert_rate=arguments.max_false_alert_rate
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = to_markdown(transpose(comparison.table_rows())) + "\n\n" + "\n".join(comparison.caveats()) + "\n"
    save_json(arguments.out / "detectorguard.json", comparison.to_dict())
    save_text(arguments.out / "detectorguard.md", text)
    save_data(arguments.data, transpose(comparison.table_rows()))
    print(text)
    if not arguments.no_cost:
        save_cost(run, comparison, arguments.out)


def save_cost(run: Run, comparison: DetectorGuardComparison, out: Path) -> None:
    masks = run.manifest.observation_settings.masks
    if not isinstance(masks, Halves):
        raise SystemExit(f"cost is told by the number of lines, and {run.folder} was observed with {masks}: --no-cost")
    images, (_, measured) = run.images(), split_images(len(run.indices), 2, 0)  # as the comparison does
    image_set = ImageSet.from_images([images[i] for i in measured.tolist()], run.label_map)
    cost = cost_rows(image_set, comparison, [k for k in LINES if k <= masks.lines])
    shown = [
        {key: "" if value is None else value if isinstance(value, str) else f"{value:g}" for key, value in row.items()}
        for row in cost
    ]
    save_text(out / "cost.csv", to_csv(shown))
    save_text(out / "cost.md", f"{to_markdown(shown)}\n\n{LINE_SUBSET_NOTE}\n")
    print(f"{to_markdown(shown)}\n\n{LINE_SUBSET_NOTE}")
    if plots.unavailable_reason() is None:
        plots.save(cost_plot(cost, comparison), out / "cost")


def cost_rows(image_set: ImageSet, comparison: DetectorGuardComparison, ks: Iterable[int]) -> list[dict[str, Any]]:
    """Return certified recall by forward passes: DetectorGuard, and ObjectSeeker with k lines per axis.

    The lines are every n-th of the stored ones: show `LINE_SUBSET_NOTE` with these rows.
    """
    rows = [
        _cost_row(row.defense, None, FORWARD_PASSES, row.certified_recall or dict.fromkeys(PATCH_LOCATIONS))
        for row in comparison.rows
        if row.guarded
    ]
    for step in by_lines(image_set, comparison.settings, ks):
        passes = step.columns["forward_passes"]
        rows.append(_cost_row("ObjectSeeker", int(step.value), passes, step.outcome.certified_recall()))
    return rows


def _cost_row(defense: str, k: int | None, passes: int, certified: Shares) -> dict[str, Any]:
    lines = None if k is None else "every n-th stored"
    row: dict[str, Any] = {"defense": defense, "k": k, "lines": lines, "forward_passes": passes}
    return row | {f"certified_{location}": certified[location] for location in PATCH_LOCATIONS}


def cost_plot(rows: list[dict[str, Any]], comparison: DetectorGuardComparison) -> plots.Plot:
    """One panel for each `where`: lines for ObjectSeeker, a marker for each DetectorGuard."""
    looks = (plots.LineStyle(VERMILION, "s"), plots.LineStyle(ORANGE, "^"))
    panels = []
    for where in PATCH_LOCATIONS:
        column = f"certified_{where}"
        ours = [row for row in rows if row["defense"] == "ObjectSeeker"]
        others = [row for row in rows if row["defense"] != "ObjectSeeker"]
        series = [
            plots.Line(row["defense"], [row["forward_passes"]], [row[column]], look)
            for row, look in zip(others, looks, strict=True)
        ]
        x, y = ([row[key] for row in ours] for key in ("forward_passes", column))
        series.append(plots.Line("ObjectSeeker, 1 to 30 lines", x, y, plots.LineStyle(plots.BLUE, "o")))
        panels.append(
            plots.Panel(
                x_label="forward passes per image",
                y_label="certified recall, %",
                title=where,
                series=series,
                x_scale="log",
                ticks={2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 121: "121"},
                y_limits=plots.zero_based_limits([row[column] for row in rows]),
            )
        )
    note = (
        f"{comparison.images} images, {comparison.objects} objects, clean recall "
        f"{comparison.settings.clean_recall:g}, evidence rule per class; {LINE_SUBSET_NOTE}."
    )
    return plots.Plot("Certified recall against cost", panels, note, legend_columns=3)


if __name__ == "__main__":
    main()
