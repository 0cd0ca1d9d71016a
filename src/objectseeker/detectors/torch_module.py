"""A PyTorch module as a detector."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from objectseeker.detectors.network import identity
from objectseeker.detectors.network.detector import NetworkDetector, as_size
from objectseeker.detectors.network.layouts import Array, Layout, parse
from objectseeker.detectors.network.results import MOST_BOXES, SCORE_FLOOR
from objectseeker.detectors.network.views import MaskBy
from objectseeker.errors import ObjectSeekerError

PRECISIONS = ("float32", "float16", "bfloat16")
BATCH = {"cpu": 8, "cuda": 128}  # views per forward pass
CROP_SIDES = 4  # on a GPU a cropped view has one of so many widths and heights: few shapes, large batches


class TorchDetector(NetworkDetector):
    """A module from float images N x 3 x H x W to boxes N x A x 4 (corners, input pixels) and scores N x A x classes.

    `decode` turns what the module returns into that pair, if it returns something else. `layout` says how the input is
    placed and normalised and what IoU is suppressed; its default is that of the embedded detector: RGB 0..255, top
    left on grey. The module is put into evaluation mode: a batch norm in training mode would mix the views of a batch.

    Views are masked, run and suppressed on the device (`torch_views`); the best 300 boxes of each take part in
    suppression. In a `precision` other than float32 a copy of the module is used. `compiled` has torch compile it, by
    default where that pays and is possible: in half precision on a GPU, with triton and a C compiler, if the layout
    gives all images one input size (each size takes most of a minute). `share` has the views of the embedded detector
    share its first stages (`shared`), by default in half precision on a GPU.
    """

    def __init__(
        self,
        module: Any,
        *,
        decode: Callable[[Any], tuple[Any, Any]] | None = None,
        names: Sequence[str] = (),
        layout: str | Layout = "decoded",
        input_size: int | tuple[int, int] = 416,
        score_floor: float = SCORE_FLOOR,
        batch: int | None = None,
        device: str = "cpu",
        precision: str = "float32",
        mask_by: MaskBy = "fill",
        compiled: bool | None = None,
        share: bool | None = None,
    ) -> None:
        torch = import_torch("a torch module")
        from objectseeker.detectors.gpu.device import reproducible
        from objectseeker.detectors.gpu.device_views import DeviceViews
        from objectseeker.detectors.gpu.raw_network import as_network

        layout = parse(layout) if isinstance(layout, str) else layout
        if layout.outputs != ("boxes", "scores"):
            raise ObjectSeekerError(f"a torch module has layout decoded, got {layout.name!r}: use decode instead")
        if precision not in PRECISIONS:
            raise ObjectSeekerError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        size = as_size(input_size)
        dtype = getattr(torch, precision)
        module = ready(module if precision == "float32" else copy.deepcopy(module).to(dtype), device)
        kind = torch.device(device).type
        if kind == "cuda":
            module = module.to(memory_format=torch.channels_last)
        batch = batch or BATCH.get(kind, BATCH["cpu"])
        network, half = as_network(module, decode), kind == "cuda" and precision != "float32"
        compiled = half and can_compile() and not layout.free_sides if compiled is None else compiled
        share = bool(network.reaches) and (half if share is None else share)

        def predict(images: Any) -> tuple[Any, Any]:
            outputs = module(images)
            boxes, scores = decode(outputs) if decode is not None else outputs
            return boxes, scores

        def forward(images: Array) -> Sequence[Sequence[Array]]:
            with reproducible(torch.device(device)), torch.inference_mode():
                boxes, scores = predict(torch.from_numpy(images).to(device, dtype))
            found = [part.detach().float().cpu().numpy() for part in (boxes, scores)]
            return list(zip(*found, strict=True))

        views = DeviceViews(
            network=network,
            layout=layout,
            device=torch.device(device),
            dtype=dtype,
            batch=batch,
            floor=score_floor,
            candidates=MOST_BOXES,
            record=kind == "cuda",
            compiled=compiled,
            share=share,
        )
        settings = (
            f"{layout.describe()} {size[0]}x{size[1]} {mask_by} batch={batch} floor={score_floor:g} {precision} "
            f"{'compiled ' if compiled else ''}{'shared ' if share else ''}{device_name(device)}"
        )
        super().__init__(
            names=tuple(names),
            identity=f"{type(module).__name__} ({settings}) sha256:{identity.of_module(module)}",
            forward=forward,
            layout=layout,
            input_size=size,
            batch=batch,
            score_floor=score_floor,
            mask_by=mask_by,
            crop_step=-(-max(size) // layout.stride // CROP_SIDES) if kind == "cuda" else 1,
            begin_views=views.begin,
        )
        object.__setattr__(self, "predict", predict)  # differentiable: `attack` follows its gradients


def ready(module: Any, device: str) -> Any:
    """`module` on `device`, in evaluation mode."""
    try:
        return module.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"torch cannot use device {device!r}, try cpu: {reason}") from None


def import_torch(what: str) -> Any:
    """PyTorch, or one sentence that says how to get it."""
    try:
        import torch
    except ImportError:
        raise ObjectSeekerError(f"{what} needs PyTorch: pip install 'objectseeker[torch]'") from None
    return torch


def device_name(device: str) -> str:
    """The kind of device, and the model of a GPU: another model may round differently, its number does not matter."""
    import torch

    kind = torch.device(device).type
    return f"{kind} {torch.cuda.get_device_name(device)}" if kind == "cuda" else kind


def can_compile() -> bool:
    """Whether torch.compile finds what it needs."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
