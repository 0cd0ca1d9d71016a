"""A PyTorch module as a detector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from objectseeker.detectors import identity
from objectseeker.detectors.layouts import Array, Layout, parse
from objectseeker.detectors.network import NetworkDetector, as_size
from objectseeker.detectors.results import SCORE_FLOOR
from objectseeker.errors import ObjectSeekerError


class TorchDetector(NetworkDetector):
    """A module from float images N x 3 x H x W to boxes N x A x 4 (corners, input pixels) and scores N x A x classes.

    `decode` turns what the module returns into that pair, if it returns something else. `layout` says how the input is
    placed and normalised and what IoU is suppressed; its default is that of the embedded detector: RGB 0..255, top
    left on grey. The module is put into evaluation mode: a batch norm in training mode would mix the views of a batch.
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
        batch: int = 8,
        device: str = "cpu",
    ) -> None:
        torch = import_torch("a torch module")
        layout = parse(layout) if isinstance(layout, str) else layout
        if layout.outputs != ("boxes", "scores"):
            raise ObjectSeekerError(f"a torch module has layout decoded, got {layout.name!r}: use decode instead")
        size = as_size(input_size)
        module = ready(module, device)

        def forward(images: Array) -> Sequence[Sequence[Array]]:
            with torch.inference_mode():
                outputs = module(torch.from_numpy(images).to(device))
                boxes, scores = decode(outputs) if decode is not None else outputs
            found = [part.detach().float().cpu().numpy() for part in (boxes, scores)]
            return list(zip(*found, strict=True))

        settings = f"{layout.describe()} {size[0]}x{size[1]} batch={batch} floor={score_floor:g} {device}"
        super().__init__(
            names=tuple(names),
            identity=f"{type(module).__name__} ({settings}) sha256:{identity.of_module(module)}",
            forward=forward,
            layout=layout,
            input_size=size,
            batch=batch,
            score_floor=score_floor,
        )


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
