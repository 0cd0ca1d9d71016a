"""Print the model card's metrics: AP50 with and without a defense, certified recall, intervals, classes.

    python scripts/model_card.py runs/all                            # the default defense of the run
    python scripts/model_card.py runs/sum --defense builtin-fast     # its masks must be among those of the run

AP50 is the paper's, for detector and defense alike; COCO's own is in the table of classes. Certified recall is that of
the deployed rule, at its own base threshold. Intervals are over images, by bootstrap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_files import add_data_option, save_data

from objectseeker import Defense
from objectseeker.cli._evaluation_tables import caveats, class_rows, title_of
from objectseeker.metrics import EvaluationSettings, evaluate_images
from objectseeker.metrics.image_set import restrict_images
from objectseeker.runs.run import open_run
from objectseeker.text import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--defense", type=Defense.load, help="a file, builtin or builtin-fast")
    add_data_option(parser)
    options = parser.parse_args()
    run = open_run(options.run)
    defense = options.defense or run.defense()
    images = run.images() if options.defense is None else restrict_images(run.images(), defense.masks)
    found = evaluate_images(
        images, run.label_map, EvaluationSettings(rule=defense.rule, threshold_schedule=defense.resolved_schedule)
    )
    save_data(options.data, class_rows(found))
    print(f"{title_of(found)}\n\n{to_markdown(found.rows())}\n\n{to_markdown(class_rows(found))}\n")
    for line in caveats(found):
        print(f"- {line}")


if __name__ == "__main__":
    main()
