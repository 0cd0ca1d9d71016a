"""Print what recipes certify against one, two, three and any number of patches, at equal spurious boxes, from one run.

    python scripts/how_many_patches.py RUN [--spurious 0.5] [--base-threshold 0.3] [--images 120] [--recipes R R ...]
        [--data FILE] [--best FILE]

RUN is what `objectseeker observe DATASET --masks RECIPE` wrote, where RECIPE is a sum that has all recipes to compare,
such as halves:9+bands:1%+windows:1/2+windows:1/3+windows:2/3+windows:1/4+pairs:3. Each recipe is measured with the
lowest mask threshold at which masks add at most that many spurious boxes per image, under two rules: one masked box is
sufficient, or evidence accumulates. The better of both is shown, threat by threat. The thresholds are chosen on the
images that they are measured on, so shares are those of a fitted rule, and the same for every recipe.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from data_files import add_data_option, save_data

from objectseeker import ObjectSeekerError, Patch, Rule
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import parse_recipe
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.image_set import ImageSet, restrict_images
from objectseeker.metrics.replay import find_candidates
from objectseeker.metrics.tally import count_spurious
from objectseeker.runs.run import Run, open_run
from objectseeker.text import to_markdown

THREATS = {
    "outside": Patch(location="outside"),
    "one anywhere, and outside": Patch(0.01, location="anywhere", with_outside=True),
    "one anywhere": Patch(0.01, location="anywhere"),
    "two anywhere": Patch(0.01, location="anywhere", count=2),
    "three anywhere": Patch(0.01, location="anywhere", count=3),
}
FAMILIES = ("windows:1/2", "windows:1/3", "windows:2/3", "windows:1/4")
OTHERS = ("halves:4", "halves:9", "bands:0.01", "bands:0.01,spacing=2.0+bands:0.01", "pairs:1", "pairs:2", "pairs:3")
STEP = 0.025
EVIDENCE_SHARE = 0.6  # of the mask threshold


@dataclass(frozen=True)
class Row:
    recipe: str
    passes: int
    spurious: float
    shares: dict[str, float]


def main() -> int:
    options = arguments()
    run = open_run(options.run)
    images = list(run.images())[: options.images]
    size = images[0].observation.width, images[0].observation.height
    rows = []
    for recipe in options.recipes or default_recipes():
        try:
            restricted = restrict_images(images, parse_recipe(recipe))
        except ObjectSeekerError:
            continue  # this run has not all of its masks
        row = measure(run, restricted, recipe, options.spurious, options.base_threshold)
        if row is None:
            print(f"{recipe}: more spurious boxes than that at any threshold", file=sys.stderr)
            continue
        rows.append(row)
        print(f"{recipe}: {row.shares}", file=sys.stderr)
    rows.sort(key=lambda row: row.passes)
    objects = sum(int((~image.ignore).sum()) for image in images)
    print(
        f"{options.run}: {len(images)} images, {objects} objects, such as one of {size[0]} x {size[1]} pixels (passes)"
    )
    print(f"at most {options.spurious:g} spurious boxes per image at base threshold {options.base_threshold:g}")
    print("certified objects in percent, against patches of 1 %\n")
    shown = [
        {"masks": f"`{row.recipe}`", "passes": str(row.passes), "spurious": f"{row.spurious:.2f}"}
        | {name: f"{share:.1f}" for name, share in row.shares.items()}
        for row in rows
    ]
    save_data(options.data, shown)
    print(to_markdown(shown))
    best = [
        {"threat": name} | best_within(rows, name, 40, "") | best_within(rows, name, 121, " there") for name in THREATS
    ]
    save_data(options.best, best)
    print(to_markdown(best))
    return 0


def best_within(rows: Sequence[Row], threat: str, budget: int, suffix: str) -> dict[str, str]:
    """Return the masks that certify most within this many passes, the fewest among equals, as cells."""
    best = max((row for row in rows if row.passes <= budget), key=lambda row: row.shares[threat], default=None)
    cells = ("-",) * 3 if best is None else (f"`{best.recipe}`", str(best.passes), f"{best.shares[threat]:.1f}")
    names = (f"at most {budget} passes", f"passes{suffix}", f"certified{suffix}")
    return dict(zip(names, cells, strict=True))


def default_recipes() -> list[str]:
    """Return windows of every family together with the others: none, halves or bands; and the others alone."""
    sums = ["+".join(chosen) for count in range(1, 5) for chosen in combinations(FAMILIES, count)]
    mixed = [f"{other}+{windows}" for other in ("halves:4", "halves:9", "bands:0.01") for windows in sums]
    return [*OTHERS, *sums, *mixed]


def measure(
    run: Run, images: Sequence[ObservedImage], recipe: str, spurious: float, base_threshold: float
) -> Row | None:
    """Return the better of both rules for every threat; None if every threshold adds too many boxes."""
    image_set = ImageSet.from_images(images, run.label_map)
    observations = [image.observation for image in images]
    floor = run.manifest.observation_settings.mask_floor
    shares: dict[str, float] = {}
    added = 0.0
    for is_evidence in (False, True):
        thresholds = np.arange(0.95, max(floor, 0.1) / (EVIDENCE_SHARE if is_evidence else 1), -STEP).round(3).tolist()
        rules = [rule_at(threshold, base_threshold, is_evidence) for threshold in thresholds]
        candidates = find_candidates(
            observations, rules[0], min(rule.min_mask_score for rule in rules), max_base_threshold=1.0
        )
        chosen, last = None, 0.0
        for rule, boxes in zip(rules, candidates.replay(rules), strict=True):
            wrong = count_spurious(boxes.map_to_dataset(run.label_map), image_set).sum() / len(images)
            if wrong > spurious:
                break
            chosen, last = rule, float(wrong)
        if chosen is None:
            continue
        added = max(added, last)
        proofs = build_proof_table(image_set, chosen, "exact", floor=chosen.min_mask_score)
        certified, _ = certified_objects(proofs, chosen, list(THREATS.values()))
        for name, holds in zip(THREATS, certified, strict=True):
            shares[name] = max(shares.get(name, 0.0), 100 * float(holds.mean()))
    width, height = observations[0].width, observations[0].height
    return Row(recipe, parse_recipe(recipe).forward_passes(width, height), added, shares) if shares else None


def rule_at(mask_threshold: float, base_threshold: float, is_evidence: bool) -> Rule:
    return Rule(
        base_threshold=base_threshold,
        mask_threshold=mask_threshold,
        evidence_threshold=EVIDENCE_SHARE * mask_threshold if is_evidence else None,
        filter_ioa=0.75,
        cluster_distance=0.3,
        edge_factor=0.85,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--spurious", type=float, default=0.5, help="boxes per image")
    parser.add_argument("--base-threshold", type=float, default=0.3)
    parser.add_argument("--images", type=int, help="only the first images of the run")
    parser.add_argument("--recipes", nargs="+", help="instead of all that the run has masks of")
    add_data_option(parser)
    parser.add_argument("--best", type=Path, metavar="FILE", help="write the best masks of each threat, likewise")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
