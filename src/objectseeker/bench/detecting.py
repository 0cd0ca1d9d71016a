"""`objectseeker bench detect`: all views of an image, ours against the loop everybody writes first.

The naive loop masks the raw image, prepares it, runs the network on that one view with all cores, and decodes, view
after view. Ours does the same views by fill, by crop where the network takes any size, and by drop where it has
tokens. All ways take turns, so that whatever else the machine does hits them alike; medians over images are reported.
On a GPU there is one more figure for each of ours: images in a row, where the next is begun before the boxes of the
last are fetched.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import Image, Masks, fill_rectangles
from objectseeker.core.recipes import Halves, Recipe
from objectseeker.core.seeker import detect_views, view_rectangles
from objectseeker.defense import BATCH, Defense
from objectseeker.demo.samples import samples
from objectseeker.detectors import LoadedDetector, load_detector
from objectseeker.detectors.network.detector import NetworkDetector
from objectseeker.detectors.network.layouts import Array
from objectseeker.detectors.onnx import available_cores
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.images import load_image

BUILTIN_FLOPS = 5.197e9 / 416**2  # for a pixel of input, as torch counts them: two per multiplication and addition
PLAIN_PASSES = 5
PLAIN = f"{PLAIN_PASSES} plain passes"
ROUNDS_IN_A_ROW = 3  # of all pictures

SeeViews = Callable[[Image, Masks], Sequence[Detections]]
MakeBaseline = Callable[[LoadedDetector], SeeViews]  # a defense around a detector


@dataclass(slots=True)
class Stopwatch:
    """Adds up what several threads spend in the network."""

    seconds: list[float] = field(default_factory=list)

    def around(self, forward: Callable[[Array], Any]) -> Callable[[Array], Any]:
        def timed(batch: Array) -> Any:
            begin = time.perf_counter()
            outputs = forward(batch)
            self.seconds.append(time.perf_counter() - begin)
            return outputs

        return timed


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to look at all views, and what it took on each image."""

    name: str
    run: SeeViews
    detector: Any
    masks: Recipe
    watch: Stopwatch | None = None
    seconds: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)  # share of the time not spent in the network

    def take_turn(self, image: Image) -> None:
        masks = _masks(image, self.masks)
        if self.watch is not None:
            self.watch.seconds.clear()
        begin = time.perf_counter()
        self.run(image, masks)
        took = time.perf_counter() - begin
        self.seconds.append(took)
        if self.watch is not None and self.watch.seconds:
            self.outside.append(1 - sum(self.watch.seconds) / (took * self.detector.workers))


def run(
    defense: Defense,
    *,
    images: int = 3,
    device: str | None = None,
    beside: Sequence[Recipe] = (),
    baseline: tuple[str, MakeBaseline] | None = None,
) -> dict[str, Any]:
    """Seconds an image for every way, what they are of the naive loop, and how close to the device's peak.

    The masks of `beside` are measured as well, against the naive loop of the defense's own masks. Of `defense` its
    detector, masks and fill count, not its rule; its way of masking is measured beside the other one. `baseline` is
    another defense, by name, around the plain detector. `equal` says whether views run at the same time gave the same
    bits as views run one after the other.
    """
    pictures = [load_image(sample.path) for sample in samples()[: require_count(images, "images")]]
    ways = _ways(defense, device)
    ours = ways[-1].detector
    ways += [_like(way, recipe) for recipe in beside for way in ways if way.name.startswith("ours")]
    if baseline is not None:
        name, around = baseline
        ways.append(Way(name, around(ways[0].detector), ways[0].detector, defense.masks))
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    for way in ways:  # not counted: the first call also prepares the detector
        way.run(pictures[0], _masks(pictures[0], Halves(1)))
    for number, picture in enumerate(pictures):
        for turn in range(len(ways)):
            ways[(turn + number) % len(ways)].take_turn(picture)
    ways += [
        _in_a_row(way, pictures, defense) for way in ways if _is_begun(way.detector) and way.name.startswith("ours")
    ]
    device = device or "cpu"
    peak = _matmul_peak(device) if defense.detector == "builtin" else None  # of no other the operations are known
    naive = next(way for way in ways if way.name == "naive loop")
    rows = []
    for way in ways:
        seconds = median(way.seconds)
        flops = None if baseline and way.name == baseline[0] else _flops(way, pictures, defense)
        rows.append(
            {
                "way": way.name,
                "passes": _passes(way, pictures),
                "seconds": seconds,
                "of_naive": median(ours / theirs for ours, theirs in zip(way.seconds, naive.seconds, strict=True)),
                "outside_the_network": median(way.outside) if way.outside else None,
                "share_of_peak": None if flops is None or peak is None else flops / seconds / peak,
            }
        )
    return {
        "detector": naive.detector.fingerprint,
        "images": len(pictures),
        "masks": str(defense.masks),
        "device": device,
        "cores": available_cores(),
        "load_before": load_before,
        "peak_gflops": None if peak is None else peak / 1e9,
        "peak_memory_gb": _peak_memory_gb(),
        "gpu_memory_gb": _gpu_memory_gb(device),
        "equal": _equal(ours, pictures[0]),
        "rows": rows,
    }


def notes(measured: dict[str, Any]) -> list[str]:
    """What else a reader of the table should know, in sentences."""
    sentences = [f"Detector: {measured['detector']}"]
    if measured["peak_gflops"] is not None:
        sentences.append(f"Matrix peak measured: {measured['peak_gflops']:,.0f} GFLOP/s.")
    if measured["equal"] is not None:
        same = "the same bits as" if measured["equal"] else "OTHER BITS than"
        sentences.append(f"Views run at the same time gave {same} views run one after the other.")
    if measured["peak_memory_gb"] is not None:
        sentences.append(f"Most memory held: {measured['peak_memory_gb']:.2f} GB.")
    if measured["gpu_memory_gb"] is not None:
        sentences.append(f"Most GPU memory held: {measured['gpu_memory_gb']:.2f} GB.")
    if measured["load_before"] is not None and measured["load_before"] > 0.5:
        sentences.append(
            f"The machine was busy (load {measured['load_before']:.1f} on {measured['cores']} cores): measure again."
        )
    return sentences


def _ways(defense: Defense, device: str | None) -> list[Way]:
    spec, options = defense.detector, defense.options | {"device": device}
    network = spec.partition(":")[0] in ("builtin", "onnx")
    single = load_detector(
        spec, **options | {"batch": 1, "workers": 1 if network and device in (None, "cpu") else None}
    )

    def plain(image: Image, masks: Masks) -> list[Detections]:
        return [single([image])[0] for _ in range(PLAIN_PASSES)]

    def naive(image: Image, masks: Masks) -> list[Detections]:
        return [
            single([view])[0]
            for view in (image, *(fill_rectangles(image, mask, defense.fill) for mask in masks.removed))
        ]

    ways = [Way(name, run, single, defense.masks) for name, run in ((PLAIN, plain), ("naive loop", naive))]
    for mask_mode in ("fill", "crop", "drop"):
        try:
            detector = load_detector(spec, **options | {"mask_mode": mask_mode})
        except ObjectSeekerError:
            if mask_mode != "fill":  # the network takes one size only, has no tokens, or others draw its masks
                continue
            detector = load_detector(spec, **options)
        watch = None
        if isinstance(detector, NetworkDetector) and not _is_begun(detector):
            watch = Stopwatch()
            detector = replace(detector, forward=watch.around(detector.forward))
        ways.append(Way(f"ours by {mask_mode}", _views_of(detector, defense), detector, defense.masks, watch))
    return ways


def _like(way: Way, masks: Recipe) -> Way:
    """The same with other masks."""
    return replace(way, name=f"{way.name}, {masks}", masks=masks, seconds=[], outside=[])


def _passes(way: Way, pictures: Sequence[Image]) -> int:
    """Of the network, for an image: at most."""
    if way.name == PLAIN:
        return PLAIN_PASSES
    return max(way.masks.passes(picture.shape[1], picture.shape[0]) for picture in pictures)


def _views_of(detector: LoadedDetector, defense: Defense) -> SeeViews:
    return lambda image, masks: detect_views(detector, image, masks, value=defense.fill, batch=defense.batch or BATCH)


def _is_begun(detector: Any) -> bool:
    """Whether views are begun first and fetched later."""
    return isinstance(detector, NetworkDetector) and detector.start_views is not None


def _in_a_row(way: Way, pictures: Sequence[Image], defense: Defense) -> Way:
    """The pictures one after the other without a pause, several times over; the same time for each."""
    given = [(picture, view_rectangles(_masks(picture, way.masks))) for picture in pictures] * ROUNDS_IN_A_ROW
    begin = time.perf_counter()
    for _ in way.detector.detect_views_of(given, defense.fill):
        pass
    took = (time.perf_counter() - begin) / len(given)
    return Way(f"{way.name}, in a row", way.run, way.detector, way.masks, seconds=[took] * len(pictures))


def _masks(image: Image, recipe: Recipe) -> Masks:
    return recipe.masks(image.shape[1], image.shape[0])


def _equal(detector: Any, image: Image) -> bool | None:
    """Whether workers side by side give the same bits as one alone."""
    if not isinstance(detector, NetworkDetector) or detector.workers == 1:
        return None
    masks = _masks(image, Halves(2))
    return detect_views(detector, image, masks) == detect_views(replace(detector, workers=1), image, masks)


def _flops(way: Way, pictures: Sequence[Image], defense: Defense) -> float | None:
    """Operations an image, where they are known: on average over the pictures."""
    if defense.detector != "builtin" or " shared " in way.detector.fingerprint:  # shared layers do less than pixels say
        return None
    per_view = [_pixels(way.detector, picture, way.masks) for picture in pictures]
    plain = way.name == PLAIN
    return BUILTIN_FLOPS * float(np.mean([PLAIN_PASSES * each[0] if plain else each.sum() for each in per_view]))


def _pixels(detector: NetworkDetector, picture: Image, recipe: Recipe) -> Ints:
    """Pixels of network input in each view of a picture, the untouched one first."""
    window = detector.plan(picture, view_rectangles(_masks(picture, recipe)))[1].window
    return np.asarray((window[:, 2:] - window[:, :2]).prod(axis=1))


def _matmul_peak(device: str, side: int = 2048) -> float:
    """Operations a second in a large matrix product: single precision on a CPU, half precision on a GPU."""
    if device == "cpu":
        a = np.ones((side, side), np.float32)

        def product() -> None:
            a @ a
    else:
        import torch

        b = torch.ones((4 * side, 4 * side), dtype=torch.float16, device=device)
        side = 4 * side

        def product() -> None:
            b @ b
            torch.cuda.synchronize()

    product()
    best = np.inf
    for _ in range(5):
        begin = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best


def _peak_memory_gb() -> float | None:
    """The most memory the process ever held, where the system tells."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def _gpu_memory_gb(device: str) -> float | None:
    if device == "cpu":
        return None
    import torch

    return float(torch.cuda.max_memory_allocated(device) / 1e9)
