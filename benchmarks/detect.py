"""Detect in all views of an image, against the loop everybody writes first.

    python -m benchmarks.detect
    python -m benchmarks.detect --detector onnx:yolox_nano.onnx --masks bands:1% --images 5
    python -m benchmarks.detect --extra-masks bands:1% --extra-masks halves:10
    python -m benchmarks.detect --detectorguard

The naive implementation masks the raw image, prepares it, runs the network on that one view with all cores, and
decodes, view after view. Ours runs the same views by fill, by crop (if the network takes any input size) and by drop
(if it has tokens). All strategies take turns, so that other load on the machine affects them alike; times are medians
over images. On a GPU, each of ours has one more row: consecutive images, where the next one starts before the boxes of
the last are fetched.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import add_defense_arguments, argument_parser, best_time, defense_of, peak_memory_gb, print_table
from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import Image, Masks, fill_rectangles
from objectseeker.core.recipes import Halves, Recipe, parse_recipe
from objectseeker.core.seeker import detect_views, view_rectangles
from objectseeker.defense import BATCH, Defense
from objectseeker.demo.samples import samples
from objectseeker.detectors import LoadedDetector, load_detector
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.layouts import Array
from objectseeker.detectors.onnx import available_cores
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.images import load_image

BUILTIN_FLOPS = 5.197e9 / 416**2  # per input pixel, as torch counts them: two per multiply-add
PLAIN_PASSES = 5
PLAIN = f"{PLAIN_PASSES} plain passes"
NAIVE, GUARD = "naive", "detectorguard"
CONSECUTIVE_ROUNDS = 3  # of all images

DetectViews = Callable[[Image, Masks], Sequence[Detections]]


@dataclass(slots=True)
class Stopwatch:
    """Seconds that all threads spend in the network."""

    seconds: list[float] = field(default_factory=list)

    def wrap(self, forward: Callable[[Array], Any]) -> Callable[[Array], Any]:
        def timed(batch: Array) -> Any:
            begin = time.perf_counter()
            outputs = forward(batch)
            self.seconds.append(time.perf_counter() - begin)
            return outputs

        return timed


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """A strategy to run all views, and its time on each image."""

    name: str
    run: DetectViews
    detector: Any
    masks: Recipe
    watch: Stopwatch | None = None
    seconds: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)  # share of the time spent outside the network

    def time_once(self, image: Image) -> None:
        masks = _masks_for(image, self.masks)
        if self.watch is not None:
            self.watch.seconds.clear()
        begin = time.perf_counter()
        self.run(image, masks)
        seconds = time.perf_counter() - begin
        self.seconds.append(seconds)
        if self.watch is not None and self.watch.seconds:
            self.overheads.append(1 - sum(self.watch.seconds) / (seconds * self.detector.workers))


def run(
    defense: Defense,
    *,
    images: int = 3,
    device: str | None = None,
    extra_masks: Sequence[Recipe] = (),
    detectorguard: bool = False,
) -> dict[str, Any]:
    """Measure every strategy: seconds per image, relative to the naive implementation, and of the device's peak.

    Args:
        defense: Its detector, masks and fill value are used, not its rule.
        images: How many of the bundled images.
        device: Such as "cuda"; the detector's default if None.
        extra_masks: Further masks to measure, also relative to the naive implementation of the defense's own masks.
        detectorguard: Also measure DetectorGuard around the undefended detector.

    Returns:
        One row per strategy, and what was measured where. `equal` is whether views that run at the same time return
        bit-identical boxes to views that run sequentially.
    """
    loaded = [load_image(sample.path) for sample in samples()[: require_count(images, "images")]]
    strategies = _strategies(defense, device)
    single, ours = strategies[0].detector, strategies[-1].detector
    strategies += [
        replace(strategy, name=f"{strategy.name}, {recipe}", masks=recipe, seconds=[], overheads=[])
        for recipe in extra_masks
        for strategy in strategies
        if strategy.name.startswith("ours")
    ]
    if detectorguard:
        from objectseeker.detectorguard.features import NETWORK, DetectorGuard, ObjectnessFeatures

        guard = DetectorGuard(
            single, ObjectnessFeatures(NETWORK, input_size=(416, 416)), base_threshold=0.3, threshold=256
        )
        strategies.append(Strategy(GUARD, lambda image, masks: [guard([image])[0].detections], single, defense.masks))
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    for strategy in strategies:  # not counted: the first call also prepares the detector
        strategy.run(loaded[0], _masks_for(loaded[0], Halves(1)))
    for number, image in enumerate(loaded):
        for turn in range(len(strategies)):
            strategies[(turn + number) % len(strategies)].time_once(image)
    strategies += [
        _consecutive(strategy, loaded, defense)
        for strategy in strategies
        if _is_pipelined(strategy.detector) and strategy.name.startswith("ours")
    ]
    device = device or "cpu"
    peak = _matmul_peak(device) if defense.detector == "builtin" else None  # the only one whose FLOPs are known
    naive = next(strategy for strategy in strategies if strategy.name == NAIVE)
    rows = []
    for strategy in strategies:
        seconds = median(strategy.seconds)
        flops = None if strategy.name == GUARD else _flops(strategy, loaded, defense)
        rows.append(
            {
                "strategy": strategy.name,
                "forward_passes": _forward_passes(strategy, loaded),
                "seconds": seconds,
                "of_naive": median(ours / theirs for ours, theirs in zip(strategy.seconds, naive.seconds, strict=True)),
                "outside_the_network": median(strategy.overheads) if strategy.overheads else None,
                "share_of_peak": None if flops is None or peak is None else flops / seconds / peak,
            }
        )
    return {
        "detector": naive.detector.fingerprint,
        "images": len(loaded),
        "masks": str(defense.masks),
        "device": device,
        "cores": available_cores(),
        "load_before": load_before,
        "peak_gflops": None if peak is None else peak / 1e9,
        "peak_memory_gb": peak_memory_gb(),
        "gpu_memory_gb": _gpu_memory_gb(device),
        "equal": _is_equal(ours, loaded[0]),
        "rows": rows,
    }


def caveats(result: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the table should know in addition."""
    lines = [f"Detector: {result['detector']}"]
    if result["peak_gflops"] is not None:
        lines.append(f"Matrix peak: {result['peak_gflops']:,.0f} GFLOP/s.")
    if result["equal"] is not None:
        same = "bit-identical boxes to" if result["equal"] else "OTHER BOXES than"
        lines.append(f"Views that run at the same time return {same} views that run sequentially.")
    if result["peak_memory_gb"] is not None:
        lines.append(f"Peak memory: {result['peak_memory_gb']:.2f} GB.")
    if result["gpu_memory_gb"] is not None:
        lines.append(f"Peak GPU memory: {result['gpu_memory_gb']:.2f} GB.")
    if result["load_before"] is not None and result["load_before"] > 0.5:
        lines.append(f"The machine was busy (load {result['load_before']:.1f} on {result['cores']} cores): rerun.")
    return lines


def _strategies(defense: Defense, device: str | None) -> list[Strategy]:
    spec, options = defense.detector_name, defense.options | {"device": device}
    is_network = spec.partition(":")[0] in ("builtin", "onnx")
    single = load_detector(
        spec, **options | {"batch_size": 1, "workers": 1 if is_network and device in (None, "cpu") else None}
    )

    def plain(image: Image, masks: Masks) -> list[Detections]:
        return [single([image])[0] for _ in range(PLAIN_PASSES)]

    def naive(image: Image, masks: Masks) -> list[Detections]:
        return [
            single([view])[0]
            for view in (image, *(fill_rectangles(image, mask, defense.fill) for mask in masks.removed))
        ]

    strategies = [Strategy(name, run, single, defense.masks) for name, run in ((PLAIN, plain), (NAIVE, naive))]
    for mask_mode in ("fill", "crop", "drop"):
        try:
            detector = load_detector(spec, **options | {"mask_mode": mask_mode})
        except ObjectSeekerError:
            if mask_mode != "fill":  # fixed input size, no tokens, or a callable that draws no masks
                continue
            detector = load_detector(spec, **options)
        watch = None
        if isinstance(detector, NetworkDetector) and not _is_pipelined(detector):
            watch = Stopwatch()
            detector = replace(detector, forward=watch.wrap(detector.forward))
        strategies.append(
            Strategy(f"ours by {mask_mode}", _views_of(detector, defense), detector, defense.masks, watch)
        )
    return strategies


def _forward_passes(strategy: Strategy, images: Sequence[Image]) -> int:
    """Return the forward passes per image, at most."""
    if strategy.name in (PLAIN, GUARD):
        return PLAIN_PASSES if strategy.name == PLAIN else 1
    return max(strategy.masks.forward_passes(image.shape[1], image.shape[0]) for image in images)


def _views_of(detector: LoadedDetector, defense: Defense) -> DetectViews:
    return lambda image, masks: detect_views(
        detector, image, masks, value=defense.fill, batch_size=defense.batch_size or BATCH
    )


def _is_pipelined(detector: Any) -> bool:
    """Return whether views are started first and fetched later."""
    return isinstance(detector, NetworkDetector) and detector.start_views is not None


def _consecutive(strategy: Strategy, images: Sequence[Image], defense: Defense) -> Strategy:
    """Run several rounds of all images without a pause; every image gets the mean time."""
    views = [(image, view_rectangles(_masks_for(image, strategy.masks))) for image in images] * CONSECUTIVE_ROUNDS
    begin = time.perf_counter()
    for _ in strategy.detector.detect_views_of(views, defense.fill):
        pass
    seconds = (time.perf_counter() - begin) / len(views)
    return replace(strategy, name=f"{strategy.name}, consecutive", seconds=[seconds] * len(images), overheads=[])


def _masks_for(image: Image, recipe: Recipe) -> Masks:
    return recipe.masks(image.shape[1], image.shape[0])


def _is_equal(detector: Any, image: Image) -> bool | None:
    """Return whether parallel workers return bit-identical boxes to a single one; None if there is only one."""
    if not isinstance(detector, NetworkDetector) or detector.workers == 1:
        return None
    masks = _masks_for(image, Halves(2))
    return detect_views(detector, image, masks) == detect_views(replace(detector, workers=1), image, masks)


def _flops(strategy: Strategy, images: Sequence[Image], defense: Defense) -> float | None:
    """Return the mean operations per image, where they are known."""
    shares_layers = " shared " in strategy.detector.fingerprint  # these take less than the pixels suggest
    if defense.detector != "builtin" or shares_layers:
        return None
    pixels = [_view_pixels(strategy.detector, image, strategy.masks) for image in images]
    is_plain = strategy.name == PLAIN
    return BUILTIN_FLOPS * float(np.mean([PLAIN_PASSES * each[0] if is_plain else each.sum() for each in pixels]))


def _view_pixels(detector: NetworkDetector, image: Image, recipe: Recipe) -> Ints:
    """Return the network input's pixels in each view of an image, the unmasked one first."""
    window = detector.plan(image, view_rectangles(_masks_for(image, recipe)))[1].window
    return np.asarray((window[:, 2:] - window[:, :2]).prod(axis=1))


def _matmul_peak(device: str, side: int = 2048) -> float:
    """Return the operations per second of a large matrix product: float32 on a CPU, float16 on a GPU."""
    if device == "cpu":
        a = np.ones((side, side), np.float32)

        def product() -> None:
            a @ a
    else:
        import torch

        side = 4 * side
        b = torch.ones((side, side), dtype=torch.float16, device=device)

        def product() -> None:
            b @ b
            torch.cuda.synchronize()

    return 2 * side**3 / best_time(product)[0]


def _gpu_memory_gb(device: str) -> float | None:
    if device == "cpu":
        return None
    import torch

    return float(torch.cuda.max_memory_allocated(device) / 1e9)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add_defense_arguments(parser)
    parser.add_argument("--images", type=int, default=3, help="how many of the bundled images, default: 3")
    parser.add_argument("--extra-masks", action="append", default=[], metavar="RECIPE", help="may be repeated")
    parser.add_argument("--detectorguard", action="store_true", help="also measure DetectorGuard")
    arguments = parser.parse_args(argv)
    result = run(
        defense_of(arguments),
        images=arguments.images,
        device=arguments.device,
        extra_masks=[parse_recipe(recipe) for recipe in arguments.extra_masks],
        detectorguard=arguments.detectorguard,
    )
    if arguments.json:
        print(json.dumps(result))
        return

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    rows = [
        {
            "strategy": row["strategy"],
            "passes": str(row["forward_passes"]),
            "seconds per image": f"{row['seconds']:.3f}",
            "of naive": f"{row['of_naive']:.2f}x",
            "outside the network": percent(row["outside_the_network"]),
            "of matrix peak": percent(row["share_of_peak"]),
        }
        for row in result["rows"]
    ]
    print_table(f"{result['masks']}, median of {result['images']} images, {result['device']}", rows)
    for line in caveats(result):
        print(line)


if __name__ == "__main__":
    main()
