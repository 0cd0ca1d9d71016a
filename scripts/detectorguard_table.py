"""Compare DetectorGuard with ObjectSeeker on a run with features: the table, and certified recall by cost.

python scripts/detectorguard_table.py runs/voc --clean-recall 0.8 --out tables/voc
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from objectseeker import Halves
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.defense import DEFAULT_RULE, GENERAL_FOLLOW
from objectseeker.detectorguard.overview import EVERY_NTH_LINE, SideBySide, cost_rows, measured_images, side_by_side
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import to_csv, to_markdown, transpose
from objectseeker.inference.drawing import ORANGE, VERMILION
from objectseeker.metrics import EvaluationSettings, ImageSet, ThreatModel
from objectseeker.report import plots
from objectseeker.runs.run import Run, open_run

LINES = (1, 2, 3, 5, 8, 10, 15, 20, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run that observe --baseline detectorguard has been through")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--clean-recall", type=float, default=0.8)
    parser.add_argument("--patch", type=float, default=0.01)
    parser.add_argument("--false-alerts", type=float, default=0.05)
    parser.add_argument("--no-cost", action="store_true", help="leave out certified recall against cost")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    settings = EvaluationSettings(  # the same rule for every detector
        rule=DEFAULT_RULE,
        follow=GENERAL_FOLLOW,
        threat=ThreatModel(area=arguments.patch),
        clean_recall=arguments.clean_recall,
    )
    beside = side_by_side(run, settings, false_alerts=arguments.false_alerts)
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = to_markdown(transpose(beside.table_rows())) + "\n\n" + "\n".join(beside.remarks()) + "\n"
    save_json(arguments.out / "detectorguard.json", beside.to_dict())
    save_text(arguments.out / "detectorguard.md", text)
    print(text)
    if not arguments.no_cost:
        save_cost(run, beside, arguments.out)


def save_cost(run: Run, beside: SideBySide, out: Path) -> None:
    masks = run.manifest.observation_settings.masks
    if not isinstance(masks, Halves):
        raise SystemExit(f"cost is told by the number of lines, and {run.folder} was observed with {masks}: --no-cost")
    images = run.images()
    scene = ImageSet.of([images[i] for i in measured_images(run).tolist()], run.vocabulary)
    cost = cost_rows(scene, beside, [k for k in LINES if k <= masks.lines])
    shown = [
        {key: "" if value is None else value if isinstance(value, str) else f"{value:g}" for key, value in row.items()}
        for row in cost
    ]
    save_text(out / "cost.csv", to_csv(shown))
    save_text(out / "cost.md", f"{to_markdown(shown)}\n\n{EVERY_NTH_LINE}\n")
    print(f"{to_markdown(shown)}\n\n{EVERY_NTH_LINE}")
    if plots.unavailable_reason() is None:
        plots.save(cost_plot(cost, beside), out / "cost")


def cost_plot(rows: list[dict[str, Any]], beside: SideBySide) -> plots.Plot:
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
        f"{beside.images} images, {beside.objects} objects, clean recall {beside.settings.clean_recall:g}, evidence "
        f"rule label by label; {EVERY_NTH_LINE}."
    )
    return plots.Plot("Certified recall against cost", panels, note, legend_columns=3)


if __name__ == "__main__":
    main()
