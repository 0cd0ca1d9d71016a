"""The image, random weights and torch exporter that all exports share (used by export_real_detectors.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Size = tuple[int, int]  # width, height
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
CLASSES = ("van", "bike", "tram")
FLOOR = 0.05  # below, own post-processing is not asked


class Export(NamedTuple):
    """One graph: what is exported, how its tensors are called, its input for an image, and its own reading of that.

    `read` takes what the module returned for the image and gives boxes in pixels, scores and labels.
    """

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    prepare: Callable[[np.ndarray], Any]
    read: Callable[[Any, Size], tuple[Any, Any, Any]]
    free: tuple[str, ...] = ()  # tensors whose first side is not fixed
    most: int = 300  # boxes that its own reading gives at most


class Own(NamedTuple):
    """One graph of a project with its own export: what it finds in an image, and how it writes the graph.

    `layout` is what must be said of the graph when it is loaded.
    """

    find: Callable[[np.ndarray], tuple[Any, Any, Any]]
    write: Callable[[Path], None]
    most: int = 300
    floor: float = FLOOR  # of the boxes that it returns
    layout: str = ""


def make_image(size: Size, seed: int = 0) -> np.ndarray:
    """Noise with a red rectangle."""
    image = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image[size[1] // 4 : size[1] // 2, size[0] // 4 : size[0] // 2] = (250, 20, 30)
    return image


def by_torch(export: Export, size: Size) -> Own:
    """A module by torch's exporter."""
    import torch

    module = export.module.eval()

    def find(image: np.ndarray) -> tuple[Any, Any, Any]:
        with torch.inference_mode():
            return export.read(module(export.prepare(image)), size)

    def write(path: Path) -> None:
        torch.onnx.export(
            module,
            (export.prepare(np.zeros((size[1], size[0], 3), np.uint8)),),
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=list(export.inputs),
            output_names=list(export.outputs),
            dynamic_axes={name: {0: "batch"} for name in export.free},
        )

    return Own(find, write, export.most)


def around(model: Any, forward: Callable[[Any], Any]) -> Any:
    """A module that holds `model` and computes `forward`."""
    import torch

    class Exported(torch.nn.Module):  # type: ignore[misc]  # Any where torch is not looked at
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Any) -> Any:
            return forward(images)

    return Exported()


def floor_of(export: Export | Own, scores: Any, floor: float = FLOOR) -> float:
    """The score from which its own reading lists every box."""
    return floor if len(scores) < export.most else float(scores.min())


def randomise(module: Any, gain: float = 1.0, seed: int = 0) -> Any:
    """Weights under which every pixel matters: as initialized, heads are constant and all queries tie.

    With the wrong `gain` all scores are 1, or the same.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            weight.data = gain * noise * (2 * weight.shape[0] / weight.numel()) ** 0.5
        else:
            weight.data += 0.1 * noise
    return module


def settle(module: Any, images: Any) -> None:
    """Batch statistics of these images: random weights then neither die out nor grow from layer to layer."""
    import torch

    layers = [layer for layer in module.eval().modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    with torch.inference_mode():
        module(images)
    module.eval()


def normalized(mean: tuple[float, ...] = (0,) * 3, std: tuple[float, ...] = (255,) * 3, *, bgr: bool = False) -> Any:
    """An image as the tensor of a network."""

    def prepare(image: np.ndarray) -> Any:
        import torch

        ordered = image[..., ::-1] if bgr else image
        values = (ordered.astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)[None]))

    return prepare
