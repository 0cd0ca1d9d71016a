"""Measure the speed of all strategies on a GPU, and where the time goes (used by gpu_bench.py).

The network is the builtin architecture, half as wide again, with random weights: about 28 GFLOP at 640x640.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import torch
from gpu_rig import Rig, copy_rate, detector_of, engine, gigaflops, matmul_peak, naive_loop, wide_predictor

from objectseeker import Halves, Observation, Rule
from objectseeker.detectors.builtin.model import Predictor
from objectseeker.detectors.check import check_views
from objectseeker.detectors.gpu import DeviceViews, to_detections, unpack
from objectseeker.detectors.gpu.batch_plan import BatchPlan, levels, plan_batches, split
from objectseeker.detectors.gpu.device import download, prepare, set_deterministic, upload
from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.preprocess import MaskMode

Engines = dict[bool, NetworkDetector]  # by whether layers are shared

IN_A_ROW = 24  # images, where the next begins before the last is done


@dataclass(frozen=True)
class Way:
    """A way to run all views. `look_into` asks for the contract, stages and kernels."""

    name: str
    mask_mode: MaskMode = "fill"
    share: bool = True
    batch: int | None = None
    look_into: bool = False


WAYS = (  # most interesting first: the last ones are skipped when the time is up
    Way("fill", look_into=True),
    Way("crop", "crop", look_into=True),
    Way("fill in 2 batches side by side", batch=61),
    Way("fill in 3 batches side by side", batch=41),
    Way("fill, nothing shared", share=False),
)


class NetworkAlone(DeviceViews):
    """Chooses no candidates but reads all that the network computes: what remains is the network's time."""

    def decode_top_k(
        self, size: Any, codes: torch.Tensor, values: torch.Tensor, whole: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = codes.amax((1, 2)) + values.amax((1, 2))
        rows = seen.float()[:, None, None].expand(-1, self.candidates, 6)
        return rows, rows[..., 0] > torch.inf


def speed(samples: list[np.ndarray], rig: Rig, budget: float) -> dict[str, Any]:
    """One table of all ways, as far as they fit into `budget` seconds."""
    begin = time.perf_counter()
    images = [np.asarray(PIL.Image.fromarray(each).resize((640, 480))) for each in samples[:3]]
    removed = rig.removed(640, 480)
    predictor = wide_predictor(images[0], rig)
    whole = gigaflops(lambda: predictor(torch.zeros(1, 3, rig.side, rig.side, device=rig.device)))
    peak = matmul_peak(rig)
    print(f"{whole:.1f} GFLOP per view; matrix peak {peak:.0f} TFLOP/s; copies {copy_rate(rig):.2f} TB/s")
    result: dict[str, Any] = {"gigaflops_per_view": whole, "matmul_tflops": peak, "rows": []}
    loop = naive_loop(predictor, rig)
    loop(images[0], removed[:3])
    single = rig.timed(lambda: loop(images[0], removed), 1, 0)
    print(
        f"naive implementation {single:.0f} ms; one plain pass {rig.timed(lambda: loop(images[0], removed[:1])):.2f} ms"
    )
    result["naive_ms"] = single
    engines: Engines = {}
    for way in WAYS:
        if time.perf_counter() - begin > budget:
            print(f"no time left for: {way.name}")
            continue
        try:
            result["rows"].append(measure(way, predictor, images, removed, rig, engines))
            row = result["rows"][-1]
            print(
                f"{way.name:40s} {row['latency_ms']:6.2f} ms alone {row['ms']:6.2f} ms in a row "
                f"{row['gflop']:6.0f} GFLOP {row['gflop'] / row['ms'] / peak:5.1%} of peak, {row['groups']} groups, "
                f"{row['boxes']:.1f} boxes per view, first {row['first_s']:.1f} s",
                flush=True,
            )
        except Exception:  # one way that fails must not take the others with it
            print(f"{way.name} FAILED")
            traceback.print_exc()
    print(f"\n{'way':40s} {'alone':>8s} {'in a row':>8s} {'GFLOP':>7s} {'of peak':>8s}")
    for row in result["rows"]:
        share = row["gflop"] / row["ms"] / peak
        print(f"{row['way']:40s} {row['latency_ms']:8.2f} {row['ms']:8.2f} {row['gflop']:7.0f} {share:8.1%}")
    if rig.cuda:
        result["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        print(f"peak GPU memory: {result['peak_memory_gb']:.1f} GB; {time.perf_counter() - begin:.0f} s in all")
    return result


def in_a_row(detector: NetworkDetector, images: list[np.ndarray], removed: np.ndarray, rig: Rig) -> float:
    """Milliseconds an image, the next begun before the last is done."""
    many = [(images[number % len(images)], removed) for number in range(IN_A_ROW if rig.cuda else 2)]
    for _ in detector.detect_views_of(many[:4], 114):
        pass
    begin = time.perf_counter()
    for _ in detector.detect_views_of(many, 114):
        pass
    return 1000 * (time.perf_counter() - begin) / len(many)


def measure(
    way: Way, predictor: Predictor, images: list[np.ndarray], removed: np.ndarray, rig: Rig, engines: Engines
) -> dict[str, Any]:
    """Milliseconds an image, alone and in a row. Ways of the same kernels share what is compiled."""
    if way.share not in engines:
        engines[way.share] = detector_of(predictor, rig, compiled=rig.cuda, share=way.share)
    detector = replace(engines[way.share], mask_mode=way.mask_mode)
    views = engine(detector)
    views.batch_size = way.batch or detector.batch_size
    begin = time.perf_counter()
    found = detector.detect_views(images[0], removed, 114)
    first = time.perf_counter() - begin
    placement, shown = detector.plan(images[0], removed)
    program, *_ = plan_batches(
        shown, placement, views.network.receptive_fields if views.share else (), views.batch_size
    )
    row: dict[str, Any] = {
        "way": way.name,
        "first_s": first,
        "latency_ms": rig.timed(lambda: detector.detect_views(images[0], removed, 114)),
        "ms": in_a_row(detector, images, removed, rig),
        "gflop": operations(views, program),
        "groups": len(program.groups),
        "boxes": float(np.mean([len(view) for view in found])),
    }
    if way.look_into:
        row["stages"] = stages(detector, images[0], removed, rig)
        row["contract"] = blind(detector, images[0], rig)
        row["kernels"] = kernels(lambda: detector.detect_views(images[0], removed, 114), rig)
        for name, whole in (("in a row", row["ms"]), ("alone", row["latency_ms"])):
            print(f"    outside the network, {name}: {1 - row['stages']['network alone'] / whole:.1%}")
    return row


def operations(views: DeviceViews, program: BatchPlan) -> float:
    """GFLOP that a program takes."""
    weight = next(views.network.predictor.parameters())  # type: ignore[attr-defined]
    features = torch.zeros(1, 3, 64, 64, device=weight.device, dtype=weight.dtype)
    rates: list[float] = []  # for a pixel or cell of input
    for number in range(len(views.network.receptive_fields)):
        work = gigaflops(partial(views.network.stage, number, features))
        rates.append(work / features[0, 0].numel())
        features = views.network.stage(number, features)
    rest = gigaflops(lambda: views.network.final_stage(features)) / int(features[0, 0].numel())
    cells = sum(group.views * group.size[0] * group.size[1] for group in program.groups)
    if not program.levels:
        strides = [
            1,
            *(level.receptive_field.stride for level in levels(program.canvas, views.network.receptive_fields)),
        ]
        per_pixel = sum(rate / float(step) ** 2 for rate, step in zip([*rates, rest], strides, strict=True))
        return cells * per_pixel
    early = sum(
        rate * count * size[0] * size[1]
        for rate, batches in zip(rates, program.batches, strict=True)
        for size, count in batches
    )
    return early + cells * rest


def stages(detector: NetworkDetector, image: np.ndarray, removed: np.ndarray, rig: Rig) -> dict[str, float]:
    """Milliseconds of every stage, each recorded and run on its own."""
    views, device = engine(detector), torch.device(rig.device)
    placement, shown = detector.plan(image, removed)

    def planned() -> Any:
        return plan_batches(
            detector.plan(image, removed)[1], placement, views.network.receptive_fields, views.batch_size
        )

    program, table, order = planned()
    found = {"plan (host)": rig.timed(planned)}
    with set_deterministic(device), torch.inference_mode():
        tables, places = upload(table, device), upload(order, device)
        canvas = prepare(image, placement, views.layout, device, views.dtype)
        filling = canvas[0, 0].clone()
        found["upload and resize"] = rig.timed(lambda: prepare(image, placement, views.layout, device, views.dtype))
        early, _ = split(program, tables)
        found["shared stages"] = rig.timed(rig.graphed(lambda: views.shared(program, canvas, early, filling)))
        found["network and candidates"] = rig.timed(
            rig.graphed(lambda: views.candidates_of(program, canvas, tables, filling))
        )
        alone = NetworkAlone(
            **{field.name: getattr(views, field.name) for field in fields(views) if field.name[0] != "_"}
        )
        found["network alone"] = rig.timed(rig.graphed(lambda: alone.candidates_of(program, canvas, tables, filling)))
        chosen = views.candidates_of(program, canvas, tables, filling)
        found["suppression"] = rig.timed(
            rig.graphed(lambda: views._call_compiled("suppress_and_pack", *chosen, places))
        )
        packed = views._call_compiled("suppress_and_pack", *chosen, places)
        found["transfer"] = rig.timed(lambda: download(packed)())
        boxes, converged = unpack(download(packed)(), len(shown))
        same = torch.equal(packed, views.suppress_and_pack(*chosen, places))
        print(f"    suppression converged in time: {converged.all()}; compiled equals not compiled: {same}")
    found["to Detections (host)"] = rig.timed(lambda: to_detections(boxes, shown.window[:, :2], placement))
    base, *masked = to_detections(boxes, shown.window[:, :2], placement)
    height, width = image.shape[:2]
    observation = Observation(width, height, Halves(rig.lines).masks(width, height), base, masked)
    rule = Rule(base_threshold=0.05, mask_threshold=0.1)
    found["prune (host)"] = rig.timed(lambda: rule.prune(observation), repeats=5)
    for name, milliseconds in found.items():
        print(f"    {name:48s} {milliseconds:7.3f} ms")
    return found


def kernels(job: Callable[[], Any], rig: Rig, most: int = 14) -> list[tuple[str, float, int]]:
    """The kernels that take longest: name, milliseconds in all, how often."""
    if not rig.cuda:
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        job()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    found = [(event.key, event.self_device_time_total / 1000, event.count) for event in events]
    print(f"    kernels: {sum(time for _, time, _ in found):.2f} ms in {sum(count for *_, count in found)} launches")
    for name, milliseconds, count in found[:most]:
        print(f"    {milliseconds:7.3f} ms {count:4d} x {name[:110]}")
    return found


def blind(detector: Any, image: np.ndarray, rig: Rig) -> str:
    """The decisive check of objectseeker check: rewrite what each mask removes, compare its view bit for bit."""
    begin = time.perf_counter()
    masks = Halves(rig.lines if rig.cuda else 1)
    try:
        rng = np.random.default_rng(0)
        verdict = check_views(detector, image, masks, batch_size=1, fill=114, rng=rng)
    except Exception as error:
        verdict = f"FAILED: {error}"
    print(f"    contract: {verdict} ({time.perf_counter() - begin:.0f} s)", flush=True)
    return verdict
