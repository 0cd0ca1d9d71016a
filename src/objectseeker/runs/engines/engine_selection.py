"""From the options of a command to an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from objectseeker import detectors
from objectseeker.errors import ObjectSeekerError, require_count, require_number
from objectseeker.runs.engines.local import LocalEngine
from objectseeker.runs.engines.tasks import Engine
from objectseeker.text import shown

ENGINES = ("local", "ray")
RAY_DIGITS = 4  # after the point: what Ray counts in
WISHES = {"address": "address", "workers": "workers", "cpus": "cpus-per-worker", "gpus": "gpus-per-worker"}


@contextmanager
def open_engine(
    name: str,
    spec: str,
    options: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Engine]:
    """The engine `name` for the detector that `detectors.load_detector(spec, **options)` gives.

    The option device may name several for the local engine, with commas; cuda are all GPUs there are. `asked` is what
    `ray_cluster.Request` takes; what is None there or in `options` counts as not given.
    """
    options = {key: value for key, value in (options or {}).items() if value is not None}
    asked = {key: value for key, value in (asked or {}).items() if value is not None}
    if name == "local":
        if asked:
            named = ", ".join(f"--{WISHES[wish]}" for wish in asked)
            raise ObjectSeekerError(f"{named} can only be asked of a Ray cluster: add --engine ray")
        devices = every_gpu() if options.get("device") == "cuda" else options.get("device", "").split(",")
        options.pop("device", None)
        each = [{**options, "device": device} if device else options for device in devices]
        yield LocalEngine(tuple(detectors.load_detector(spec, **one) for one in each), spec, options)
    elif name == "ray":
        # Whenever a worker is lost Ray prints pages to where results belong; they are in its logs too.
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            _ray_engine(spec, options, asked, on_warning) as engine,
        ):
            yield engine
    else:
        raise ObjectSeekerError(f"engine must be one of {', '.join(ENGINES)}, got {shown(name)}")


def every_gpu() -> list[str]:
    """The CUDA devices of this machine by name; plain cuda where there is one, or where torch does not say."""
    if find_spec("torch") is None:
        return ["cuda"]
    import torch

    count = int(torch.cuda.device_count())
    return ["cuda"] if count < 2 else [f"cuda:{number}" for number in range(count)]


def _ray_engine(
    spec: str, options: Mapping[str, Any], asked: Mapping[str, Any], on_warning: Callable[[str], None]
) -> Any:
    from objectseeker.runs.engines.ray import RayEngine
    from objectseeker.runs.engines.ray_cluster import ClusterRequest
    from objectseeker.runs.engines.ray_worker import DetectorLoader

    device = options.get("device", "cpu")
    if "," in device or ":" in device:
        raise ObjectSeekerError(f"with --engine ray the device is cpu or cuda, Ray hands out the GPUs; got {device!r}")
    request = ClusterRequest(**_checked({"gpus": float(device != "cpu"), **asked}))
    if device == "cpu" and request.gpus:
        raise ObjectSeekerError(f"workers of {request.gpus:g} GPUs would not use them: add --device cuda")
    loading = DetectorLoader(spec, options, str(Path.cwd()), cores=max(int(request.cpus), 1))
    # A driver need not have a GPU, so there the first worker says what the detector is.
    reference = None if loading.on_gpu else loading.describe(loading.load())
    return RayEngine(loading, request, reference, on_warning)


def _checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of a cluster, as far as it can be told to be impossible."""
    checked = dict(asked)
    if "workers" in checked:
        checked["workers"] = require_count(checked["workers"], "workers")
    for name in ("cpus", "gpus"):
        if name in checked:
            checked[name] = _share(require_number(checked[name], WISHES[name]), WISHES[name])
    if not checked.get("cpus", 1.0) and not checked.get("gpus", 0.0):
        raise ObjectSeekerError("a worker must ask for some CPU or GPU, got 0 of both")
    return checked


def _share(amount: float, name: str) -> float:
    """Cores or GPUs of a worker, as Ray can count them."""
    if amount < 0:
        raise ObjectSeekerError(f"{name} must not be negative, got {amount!r}")
    if amount and round(amount, RAY_DIGITS) != amount:
        raise ObjectSeekerError(f"{name} has at most {RAY_DIGITS} digits after the point, got {amount!r}")
    return amount
