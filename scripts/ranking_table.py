"""Print AP50 of output boxes ranked by score and by certified score, on clean and on attacked images.

python scripts/ranking_table.py runs/clean runs/far runs/gray --defense builtin-fast --names clean far gray

The base threshold is low (--base-threshold), so that AP50 is that of nearly all boxes; the masks' thresholds are those
of the defense. `undefended` ranks the boxes of the untouched images by score.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_files import add_data_option, save_data

from objectseeker import Defense, evaluate, open_run
from objectseeker.cli._options import change_settings
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.text import to_markdown

UNDEFENDED = ("mask_threshold=1", "evidence_threshold=none")  # no masked box recovers anything
ROWS = ("undefended, by score", "defended, by score", "defended, by certified score")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the runs, in the table; default: of the folders")
    parser.add_argument("--defense", help="file or name; default: that of each run")
    parser.add_argument("--base-threshold", type=float, default=0.05)
    add_data_option(parser)
    options = parser.parse_args()
    names = options.names or [folder.name for folder in options.runs]
    table = {row: {"": row} for row in ROWS}
    for name, folder in zip(names, options.runs, strict=True):
        run = open_run(folder)
        own = run.bind_defense(Defense.load(options.defense)) if options.defense else run.defense()
        defense = change_settings(own, [f"base_threshold={options.base_threshold}"])
        intervals = evaluate(run, defense, fabrication=True).intervals
        plain = evaluate(run, change_settings(defense, UNDEFENDED), fabrication=True).intervals
        table[ROWS[0]][name] = cell(plain["defended.output_ap50"])
        table[ROWS[1]][name] = cell(intervals["defended.output_ap50"])
        table[ROWS[2]][name] = cell(intervals["defended.ranked_ap50"])
    save_data(options.data, list(table.values()))
    print(to_markdown(list(table.values())))


def cell(interval: ConfidenceInterval) -> str:
    return f"{interval.value:.1f} ({interval.low:.1f} to {interval.high:.1f})"


if __name__ == "__main__":
    main()
