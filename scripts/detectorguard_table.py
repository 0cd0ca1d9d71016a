"""DetectorGuard beside ObjectSeeker on a run with features: the table, and certified recall against cost.

python scripts/detectorguard_table.py runs/voc --clean-recall 0.8 --out tables/voc
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from objectseeker import jobs
from objectseeker.baselines.detectorguard import overview as summary
from objectseeker.core.threats import WHERES
from objectseeker.evaluation import RECOMMENDED, Scene
from objectseeker.results import plots, tables
from objectseeker.runs.run import open_run

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
    settings = replace(RECOMMENDED, clean_recall=arguments.clean_recall, patch_area=arguments.patch)
    found = summary.evaluate(run, settings, false_alerts=arguments.false_alerts)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = summary.table_rows(found)
    text = tables.as_markdown(tables.turned(rows)) + "\n\n" + "\n".join(summary.remarks(found)) + "\n"
    jobs.save_json(arguments.out / "detectorguard.json", found)
    jobs.save_text(arguments.out / "detectorguard.md", text)
    print(text)
    if arguments.no_cost:
        return
    images = list(run.images())
    scene = Scene.of([images[i] for i in summary.measured_images(run).tolist()], run.manifest.names)
    cost = summary.cost_rows(scene, found, [k for k in LINES if k <= run.manifest.lines])
    shown = [
        {key: "" if value is None else f"{value:g}" if key != "defence" else value for key, value in row.items()}
        for row in cost
    ]
    jobs.save_text(arguments.out / "cost.csv", tables.as_csv(shown))
    print(tables.as_markdown(shown))
    if plots.missing() is None:
        plots.save(cost_plot(cost, found), arguments.out / "cost")


def cost_plot(rows: list[dict[str, Any]], found: dict[str, Any]) -> plots.Plot:
    """One panel for each location: lines for ObjectSeeker, a marker for each DetectorGuard."""
    looks = (plots.Look(plots.VERMILION, "s"), plots.Look(plots.ORANGE, "^"))
    panels = []
    for where in WHERES:
        column = f"certified_{where}"
        ours = [row for row in rows if row["defence"] == "ObjectSeeker"]
        others = [row for row in rows if row["defence"] != "ObjectSeeker"]
        series = [
            plots.Line(row["defence"], [row["forward_passes"]], [row[column]], look)
            for row, look in zip(others, looks, strict=True)
        ]
        x, y = ([row[key] for row in ours] for key in ("forward_passes", column))
        series.append(plots.Line("ObjectSeeker, 1 to 30 lines", x, y, plots.Look(plots.BLUE, "o")))
        panels.append(
            plots.Panel(
                x_label="forward passes per image",
                y_label="certified recall, %",
                title=where,
                series=series,
                x_scale="log",
                ticks={2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 121: "121"},
                y_limits=plots.from_zero([row[column] for row in rows]),
            )
        )
    recall = found["settings"]["clean_recall"]
    note = (
        f"{found['images']} images, {found['objects']} objects, clean recall {recall:g}, evidence rule label by label."
    )
    return plots.Plot("Certified recall against cost", panels, note, legend_columns=3)


if __name__ == "__main__":
    main()
