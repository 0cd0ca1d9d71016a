"""A PyTorch module as a detector."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from objectseeker.detectors.network import Forward, NetworkDetector, NetworkOptions, Predict, fingerprint, parse_size
from objectseeker.detectors.network.layouts import Array, parse_layout
from objectseeker.errors import ObjectSeekerError, import_optional

PRECISIONS = ("float32", "float16", "bfloat16")
INPUT_SIZE = 416
BATCH_ON = {"cpu": 8, "cuda": 128}  # views per forward pass
CROP_SIDES = 4  # on a GPU a cropped view has one of 4 widths and heights: few shapes, large batches


def torch_detector(
    module: Any,
    *,
    decode: Callable[[Any], tuple[Any, Any]] | None = None,
    names: Sequence[str] = (),
    precision: str = "float32",
    compiled: bool | None = None,
    share: bool | None = None,
    **options: Any,
) -> NetworkDetector:
    """Wrap a module from images N x 3 x H x W to boxes N x A x 4 and scores N x A x classes.

    Images are float; boxes are corners in input pixels. `decode` turns what the module returns into that pair, if it
    returns something else. `options` are those of `NetworkOptions`. `layout` defines how the input is placed and
    normalized and the IoU of suppression; its default is that of the built-in detector: RGB 0..255, top left on gray.
    The module is put into evaluation mode: a batch norm in training mode would mix the views of a batch.

    Views are masked, run and suppressed on the device (`gpu.DeviceViews`); the best 300 boxes of each are considered
    in suppression. In a `precision` other than float32 a copy of the module is used. `compiled` has torch compile it,
    by default where that pays and is possible: in half precision on a GPU, with triton and a C compiler, if the layout
    has one input size for all images (each size takes most of a minute). `share` has the views of the built-in detector
    share its first stages (`gpu.batch_plan`), by default in half precision on a GPU.
    """
    torch = import_torch("a torch module")
    from objectseeker.detectors.builtin.model import BuiltinNetwork, Predictor
    from objectseeker.detectors.gpu import BoxesAndScores, DeviceViews, RawNetwork

    requested = NetworkOptions(**options)
    layout = parse_layout(requested.layout or "decoded")
    if layout.outputs != ("boxes", "scores"):
        raise ObjectSeekerError(f"a torch module has layout decoded: got {layout.name!r}: use decode instead")
    size = parse_size(INPUT_SIZE if requested.input_size is None else requested.input_size)
    module = _to_device(module, precision, requested.device)
    device, dtype = torch.device(requested.device), getattr(torch, precision)
    on_gpu = device.type == "cuda"
    batch = requested.batch_size or BATCH_ON.get(device.type, BATCH_ON["cpu"])
    network: RawNetwork = BoxesAndScores(module, decode)
    if decode is None and isinstance(module, Predictor):
        network = BuiltinNetwork.from_predictor(module)
    half = on_gpu and precision != "float32"
    if compiled is None:  # torch.compile needs triton and a C compiler
        can_compile = find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
        compiled = half and can_compile and not layout.free_sides
    share = bool(network.receptive_fields) and (half if share is None else share)
    views = DeviceViews(
        network=network,
        layout=layout,
        device=device,
        dtype=dtype,
        batch_size=batch,
        floor=requested.score_floor,
        compiled=compiled,
        share=share,
    )
    settings = f"{requested.describe(layout, size, batch)} {precision} {'compiled ' if compiled else ''}"
    settings += f"{'shared ' if share else ''}{fingerprint.device_fingerprint(requested.device)}"
    predict = BoxesAndScores(module, decode).final_stage
    return NetworkDetector(
        names=tuple(names),
        fingerprint=f"{type(module).__name__} ({settings}) sha256:{fingerprint.hash_module(module)}",
        forward=_forward(predict, device, dtype),
        layout=layout,
        input_size=size,
        batch_size=batch,
        score_floor=requested.score_floor,
        mask_mode=requested.mask_mode,
        crop_stride=-(-max(size) // layout.stride // CROP_SIDES) if on_gpu else 1,
        start_views=views.start_image,
        predict=predict,
        device=requested.device,
    )


def _to_device(module: Any, precision: str, device: str) -> Any:
    """Return the module on its device; in a precision other than its own, a copy of it."""
    import torch

    if precision not in PRECISIONS:
        raise ObjectSeekerError(f"precision must be one of {', '.join(PRECISIONS)}: got {precision!r}")
    if precision != "float32":
        module = copy.deepcopy(module).to(getattr(torch, precision))
    module = prepare_module(module, device)
    on_gpu = torch.device(device).type == "cuda"
    return module.to(memory_format=torch.channels_last) if on_gpu else module


def _forward(predict: Predict, device: Any, dtype: Any) -> Forward:
    import torch

    from objectseeker.detectors.gpu.device import set_deterministic

    def forward(images: Array) -> Sequence[Sequence[Array]]:
        with set_deterministic(device), torch.inference_mode():
            outputs = predict(torch.from_numpy(images).to(device, dtype))
        return list(zip(*(part.detach().float().cpu().numpy() for part in outputs), strict=True))

    return forward


def prepare_module(module: Any, device: str) -> Any:
    """Move `module` to `device`, in evaluation mode."""
    try:
        return module.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"torch cannot use device {device!r}, try cpu: {reason}") from None


def import_torch(user: str, *, extra: str = "torch") -> Any:
    """Import PyTorch, or raise an error that names the extra of this package to install."""
    return import_optional("torch", f"{user} needs PyTorch: pip install 'objectseeker[{extra}]'")
