"""Any ONNX detector, run by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.detectors.network import identity, names
from objectseeker.detectors.network.detector import Forward, NetworkDetector, as_size
from objectseeker.detectors.network.layouts import LAYOUTS, Array, Layout, parse
from objectseeker.detectors.network.preprocess import Size
from objectseeker.detectors.network.recognise import Tensor, count_classes, order_outputs, recognise
from objectseeker.detectors.network.results import SCORE_FLOOR
from objectseeker.detectors.network.views import MaskBy
from objectseeker.errors import ObjectSeekerError, require_count

INPUT_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}
# Exhaustive search, the default on CUDA, may pick another algorithm, and so other last bits, in every session.
PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"cudnn_conv_algo_search": "DEFAULT"}),
}
BATCH = {"cpu": 1, "cuda": 8}  # views per forward pass, by measurement


class OnnxDetector(NetworkDetector):
    """The detector in an ONNX file; its layout is recognised from the graph unless given.

    A graph with a fixed batch or size is run at it. Otherwise the batch is `batch` and the size `input_size` (a side or
    width, height), by default what its layout usually takes. Graphs that list their boxes do not say how many classes
    they have: unless their metadata or `class_names` names them, they are taken for COCO's.

    On a CPU, `workers` views run at the same time, by default as many as there are cores, on one thread each. One view
    a batch is then as fast as many. With fewer workers a view gets several threads; results are only promised to be the
    same at the same number of these, so it is part of the identity.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        layout: str | Layout | None = None,
        input_size: int | tuple[int, int] | None = None,
        class_names: Sequence[str] | None = None,
        score_floor: float = SCORE_FLOOR,
        batch: int | None = None,
        device: str = "cpu",
        mask_by: MaskBy = "fill",
        workers: int | None = None,
    ) -> None:
        path = Path(path)
        workers = (usable_cores() if device == "cpu" else 1) if workers is None else require_count(workers, "workers")
        threads = max(usable_cores() // workers, 1)
        session = open_session(path, device, threads=threads)
        tensors = [_tensor(entry) for entry in session.get_inputs()]
        outputs = [_tensor(entry) for entry in session.get_outputs()]
        fixed_batch, fixed_size = _check_inputs(path, tensors)
        metadata = session.get_modelmeta().custom_metadata_map
        layout = _choose_layout(path, layout, tensors, outputs, fixed_size, metadata)
        ordered = order_outputs(outputs, layout)
        classes = count_classes(ordered, layout) if ordered else None
        if ordered is None or (classes is not None and classes < 1):
            raise ObjectSeekerError(
                f"{path} does not have layout {layout.name} (outputs: {_listed(outputs)}): choose another layout"
            )
        size = _choose_size(path, input_size, fixed_size, layout)
        image_type = session.get_inputs()[0].type
        if image_type not in INPUT_TYPES:
            raise ObjectSeekerError(f"{path} takes {image_type} images: export it with a floating point input")
        batch = 1 if not layout.batched else fixed_batch or batch or BATCH[device]
        if mask_by == "crop" and (fixed_size is not None or layout.stride == 1):
            raise ObjectSeekerError(f"{path} takes inputs of one size only: mask by fill, or export it with free sizes")
        settings = f"{layout.describe()} {size[0]}x{size[1]} {mask_by} batch={batch} floor={score_floor:g} {device}"
        settings += f" threads={threads}" * (device == "cpu" and threads > 1)
        super().__init__(
            names=tuple(class_names or names.from_metadata(metadata) or _usual_names(classes, layout)),
            identity=f"{path.name} ({settings}) sha256:{identity.of_files(path, *_external_weights(path))}",
            forward=_forward(session, tensors, [tensor.name for tensor in ordered], layout),
            layout=layout,
            input_size=size,
            batch=batch,
            dtype=INPUT_TYPES[image_type],
            score_floor=score_floor,
            free_batch=layout.batched and fixed_batch is None,
            mask_by=mask_by,
            workers=workers,
        )


def open_session(path: Path, device: str = "cpu", *, threads: int) -> Any:
    """An ONNX Runtime session without telemetry whose runs take `threads` cores each."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    if not path.is_file():
        raise ObjectSeekerError(f"there is no file {path}: give the path of an ONNX file")
    if device not in PROVIDERS:
        raise ObjectSeekerError(f"device must be one of {', '.join(PROVIDERS)}, got {device!r}")
    provider, _ = PROVIDERS[device]
    no_provider = f"this onnxruntime cannot use {device}: pip install onnxruntime-gpu, or use cpu"
    if provider not in onnxruntime.get_available_providers():
        raise ObjectSeekerError(no_provider)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors only: they are raised anyway, warnings are about the exporter
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[device]])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"onnxruntime cannot load {path}, export it again: {reason}") from None
    if session.get_providers()[0] != provider:  # onnxruntime falls back to the CPU without an error
        raise ObjectSeekerError(no_provider)
    return session


def usable_cores() -> int:
    """How many cores this process may use, which in a container is often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tensor(entry: Any) -> Tensor:
    shape = tuple(side if isinstance(side, int) else None for side in entry.shape)
    return Tensor(entry.name, shape, "int" in entry.type)


def _check_inputs(path: Path, inputs: Sequence[Tensor]) -> tuple[int | None, Size | None]:
    """The fixed batch and the fixed width and height of the image input, None where they are free."""
    image, others = inputs[0], inputs[1:]
    if len(image.shape) not in (3, 4) or image.shape[-3] not in (3, None) or len(others) > 1:
        raise ObjectSeekerError(
            f"{path} has inputs {_listed(inputs)}: an image input N x 3 x height x width must come first, and at most "
            "one input of image sizes N x 2 may follow"
        )
    height, width = image.shape[-2:]
    batch = image.shape[0] if len(image.shape) == 4 else 1
    return batch, None if height is None or width is None else (width, height)


def _choose_layout(
    path: Path,
    layout: str | Layout | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    size: Size | None,
    metadata: dict[str, str],
) -> Layout:
    if layout is not None:
        return parse(layout) if isinstance(layout, str) else layout
    exported_by_yolo = {"names", "stride"} <= set(metadata)
    name = recognise(outputs, size, takes_sizes=len(inputs) == 2, exported_by_yolo=exported_by_yolo)
    if name is None:
        raise ObjectSeekerError(
            f"cannot tell the layout of {path} from its outputs ({_listed(outputs)}): "
            f"choose one with layout (--layout), of {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]


def _choose_size(path: Path, wanted: int | tuple[int, int] | None, fixed: Size | None, layout: Layout) -> Size:
    if fixed is not None and layout.free_sides:
        raise ObjectSeekerError(f"{path} is fixed to inputs of {fixed[0]}x{fixed[1]}: leave out trim and fit=spend")
    if wanted is None:
        return fixed or as_size(layout.input_size)
    size = as_size(wanted)
    if fixed not in (None, size):
        raise ObjectSeekerError(
            f"{path} is fixed to inputs of {fixed[0]}x{fixed[1]}, not {size[0]}x{size[1]}: leave out the input size"
        )
    return size


def _usual_names(classes: int | None, layout: Layout) -> tuple[str, ...]:
    if classes is not None:
        return names.by_count(classes)
    return names.COCO_91 if layout.name == "torchvision" else names.COCO_80


def _forward(session: Any, inputs: Sequence[Tensor], outputs: list[str], layout: Layout) -> Forward:
    image, *sizes = inputs
    unbatched_input = len(image.shape) == 3

    def forward(batch: Array) -> Sequence[Sequence[Array]]:
        height, width = batch.shape[2:]
        feeds: dict[str, Array] = {image.name: batch[0] if unbatched_input else batch}
        for entry in sizes:  # the network input's own size: boxes then come back in its pixels, as everywhere else
            feeds[entry.name] = np.full((len(batch), 2), (width, height), np.int64)
        try:
            found = session.run(outputs, feeds)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ObjectSeekerError(f"the graph does not take {_shape(batch)} inputs: {reason}") from None
        if not layout.batched:
            return [found]
        if any(len(output) != len(batch) for output in found):
            shapes = ", ".join(_shape(output) for output in found)
            raise ObjectSeekerError(f"the graph returned {shapes} for {len(batch)} images: choose another layout")
        return [[output[view] for output in found] for view in range(len(batch))]

    return forward


def _external_weights(path: Path) -> list[Path]:
    """Files beside the graph that hold its weights, by their usual names."""
    usual = (path.with_name(path.name + ".data"), path.with_name(path.name + "_data"))
    return [file for file in usual if file.is_file()]


def _listed(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tensor) for tensor in tensors)


def _shape(array: Array) -> str:
    return "x".join(str(side) for side in array.shape)
