"""Compare the evidence rule's stars with cliques and with connected components.

    python scripts/compare_notions.py RUN --mask-threshold 0.45 --evidence-threshold 0.3 [--edge-factor 0.7] [--objects
    300]

Certifies random objects of a run under the evidence rule three times: with stars (the product), with connected
components position class by position class (the most these boxes can prove), and with the best of many greedy cliques
(a lower limit of what cliques can). Prints certified shares for far, close and over. An object with several names in
the detector is certified as one of them.
"""

from __future__ import annotations

import argparse

import numpy as np

from objectseeker import Detections, Observation, Patch
from objectseeker.core.bounds import MARGIN
from objectseeker.core.evidence import certain_neighbors, certified_weights
from objectseeker.core.masks import Masks
from objectseeker.core.positions import PositionClasses
from objectseeker.core.rules import Rule
from objectseeker.core.threats import PatchLocation, PatchPositions, patch_sizes
from objectseeker.runs.run import open_run

LOCATIONS: tuple[PatchLocation, ...] = ("far", "close", "over")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--mask-threshold", type=float, required=True)
    parser.add_argument("--evidence-threshold", type=float, required=True)
    parser.add_argument("--edge-factor", type=float, default=1.0)
    parser.add_argument("--cluster-distance", type=float, default=0.1)
    parser.add_argument("--objects", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rule = Rule(
        mask_threshold=options.mask_threshold,
        evidence_threshold=options.evidence_threshold,
        edge_factor=options.edge_factor,
        cluster_distance=options.cluster_distance,
    )
    run = open_run(options.run)
    images = run.images()
    objects = [(i, int(n)) for i, image in enumerate(images) for n in np.flatnonzero(~image.ignore)]
    chosen = np.random.default_rng(options.seed).permutation(len(objects))[: options.objects]
    patches = [Patch(0.01, 1.0, where) for where in LOCATIONS]
    total = {notion: np.zeros(len(LOCATIONS), int) for notion in ("clique", "star", "component")}
    for index in sorted(chosen.tolist()):
        number, n = objects[index]
        image = images[number]
        targets, _ = run.label_map.map_to_detector(image.ground_truth[[n]])
        star = np.asarray(rule.certify(image.observation, targets, patches).certified.any(axis=1))
        total["star"] += star
        for p, patch in enumerate(patches):
            found = [by_notion(image.observation, targets[[t]], rule, patch) for t in range(len(targets))]
            component, clique = (any(answers) for answers in zip(*found, strict=True)) if found else (False, False)
            assert component or not star[p], "components certify all that stars do"
            total["component"][p] += component
            total["clique"][p] += clique
    for notion, certified in total.items():
        shares = " / ".join(f"{100 * share / len(chosen):.2f}" for share in certified)
        print(f"{notion:10} {shares} % of {len(chosen)} objects certified (far / close / over)")


def by_notion(observation: Observation, truth: Detections, rule: Rule, patch: Patch) -> tuple[bool, bool]:
    """Is the one object certified by components, by greedy cliques? Every position class on its own."""
    evidence = rule.evidence(rule.discounted_scores(observation))
    members = np.flatnonzero(rule.proving_pairs(observation, truth, 0.0, "exact")[:, 0] & (evidence > 0))
    weight, mask = certified_weights(evidence[members]), observation.mask_index[members]
    boxes = observation.all_masked.xyxy[members]
    joined = certain_neighbors(boxes, boxes, rule.cluster_distance, 0)
    size = patch_sizes(patch, observation.width, observation.height, 1)
    allowed = PatchPositions.of(truth.xyxy, observation.width, observation.height).allowed(patch.location, size)[0]
    present = classes_of(observation.masks, allowed, (int(size[0, 0]), int(size[0, 1])))[:, mask]
    answers = [True, True]
    for row in np.unique(present, axis=0):
        at = np.flatnonzero(row)
        parts = joined[np.ix_(at, at)]
        if answers[0]:
            answers[0] = any(enough(weight[at][group], mask[at][group]) for group in components(parts))
        if answers[1]:
            answers[1] = any(enough(weight[at][group], mask[at][group]) for group in greedy_cliques(parts, weight[at]))
        if not any(answers):
            break
    return answers[0], answers[1]


def classes_of(masks: Masks, allowed: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """Which masks remove the patch (classes, masks), for every class of positions inside the allowed rectangles."""
    classes = PositionClasses.of(masks, patch)
    across, down = classes.removes
    found = [np.zeros((0, len(masks)), bool)]
    for rectangle in allowed:
        x, y = classes.reached(rectangle)
        found.append((across[x][:, None] | down[y][None]).reshape(-1, len(masks)))
    return np.concatenate(found)


def components(linked: np.ndarray) -> list[np.ndarray]:
    left, found = set(range(len(linked))), []
    while left:
        frontier, group = {left.pop()}, set()
        while frontier:
            group |= frontier
            frontier = {j for j in left if any(linked[i, j] for i in frontier)}
            left -= frontier
        found.append(np.array(sorted(group)))
    return found


def greedy_cliques(linked: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """From every box, the clique that takes the strongest box that still fits, again and again."""
    order, found = np.argsort(-weight, kind="stable"), []
    for seed in range(len(linked)):
        fits, clique = linked[seed].copy(), [seed]
        fits[seed] = False
        for candidate in order:
            if fits[candidate]:
                clique.append(int(candidate))
                fits &= linked[candidate]
                fits[candidate] = False
        found.append(np.array(clique))
    return found


def enough(weight: np.ndarray, mask: np.ndarray) -> bool:
    strongest: dict[int, float] = {}
    for w, m in zip(weight.tolist(), mask.tolist(), strict=True):
        strongest[m] = max(w, strongest.get(m, 0.0))
    return sum(strongest.values()) >= 1 + MARGIN


if __name__ == "__main__":
    main()
