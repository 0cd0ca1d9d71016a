"""Any ONNX detector, run by ONNX Runtime, or on a CPU by OpenVINO.

The files next to an ONNX graph that hold its weights are named in the graph, tensor by tensor.

An ONNX file is a protocol buffer: a sequence of fields with a number and a wire type, messages within messages.
Only the fields that lead to a tensor's location are looked into; everything else is skipped by its length.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from objectseeker.detectors.network import (
    MAX_BATCH_BYTES,
    Forward,
    NetworkDetector,
    NetworkOptions,
    class_names,
    fingerprint,
    parse_size,
)
from objectseeker.detectors.network.layout_inference import (
    GUESSED_INPUTS,
    GraphTensor,
    count_classes,
    infer_box_format,
    infer_layout,
    layout_from_metadata,
    order_outputs,
)
from objectseeker.detectors.network.layouts import LAYOUTS, Array, Layout, parse_layout
from objectseeker.detectors.network.preprocess import Size
from objectseeker.errors import ObjectSeekerError, import_optional, require_count

INPUT_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}
# Exhaustive search, the default on CUDA, may pick another algorithm, and so other last bits, in every session.
PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"cudnn_conv_algo_search": "DEFAULT"}),
}
DEVICE = re.compile(r"(cpu|cuda|openvino)(?::(\d{1,3}))?")  # cuda:1 is the second GPU
BATCH_ON = {"cpu": 1, "cuda": 8, "openvino": 1}  # views per forward pass, by measurement
PADDLE_INPUTS = {"scale_factor", "im_shape"}  # further inputs of PaddleDetection besides the image
OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}

log = logging.getLogger("objectseeker")


def load_onnx(
    path: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    workers: int | None = None,
    precision: str = "float32",
    **options: Any,
) -> NetworkDetector:
    """Load the detector in an ONNX file; its layout is inferred from the graph unless `layout` names it.

    `options` are those of `NetworkOptions`. A graph with a fixed batch or size is run at it. Otherwise the batch is
    `batch` and the size `input_size`, by default what its layout usually takes. Its classes are those of `class_names`,
    or of its metadata; else they are guessed from their number, which is logged. Graphs that list their boxes do not
    say how many classes they have: they are then taken for COCO's.

    On a CPU, `workers` views run at the same time, by default as many as there are cores, on one thread each. One view
    a batch is then as fast as many. With fewer workers a view gets several threads; results are only promised to be the
    same at the same number of these, so it is part of the fingerprint. `precision` is bfloat16 only on `openvino`, a
    device that is the CPU.
    """
    path, requested = Path(path), NetworkOptions(**options)
    kind, _ = parse_device(requested.device)
    on_cpu = kind in ("cpu", "openvino")
    if precision != "float32" and kind != "openvino":
        raise ObjectSeekerError(
            f"precision {precision} of an ONNX graph needs device openvino: got {requested.device!r}"
        )
    workers = (available_cores() if on_cpu else 1) if workers is None else require_count(workers, "workers")
    threads = max(available_cores() // workers, 1)
    require_file(path)
    weight_files = external_files(path)  # rejects path traversal before anything is loaded
    graph = Graph.from_session(path, open_session(path, "cpu" if on_cpu else requested.device, threads=threads))
    layout = graph.choose_layout(requested.layout, requested.input_size)
    outputs, classes = graph.outputs_for(layout)
    layout = graph.resolve_background(layout, classes, class_names)
    size = graph.choose_size(requested.input_size, layout)
    dtype = graph.input_type
    if requested.mask_mode == "crop" and (graph.size is not None or layout.stride == 1):
        raise ObjectSeekerError(f"{path} takes inputs of one size only: mask by fill, or export it with free sizes")
    batch = graph.choose_batch(requested.batch_size, layout) or BATCH_ON[kind]
    settings = requested.describe(layout, size, batch)
    settings += f" threads={threads}" * (on_cpu and threads > 1)
    settings += f" openvino {precision}" * (kind == "openvino")
    settings += f" {fingerprint.device_fingerprint('cpu') if on_cpu else kind}"
    engine: Any = graph.session
    if kind == "openvino":
        engine = OpenVinoSession(path, precision=precision, workers=workers, threads=threads)
    return NetworkDetector(
        names=graph.choose_names(class_names, classes, layout),
        fingerprint=f"{path.name} ({settings}) sha256:{fingerprint.hash_files(path, *weight_files)}",
        forward=_forward(replace(graph, session=engine), outputs, layout),
        layout=layout,
        input_size=size,
        batch_size=batch,
        dtype=dtype,
        score_floor=requested.score_floor,
        dynamic_batch=layout.batched and graph.batch_size is None,
        mask_mode=requested.mask_mode,
        workers=workers,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """An ONNX graph in a session, with its metadata; None is a batch size or input size that is not fixed."""

    path: Path
    session: Any
    inputs: list[GraphTensor]
    outputs: list[GraphTensor]
    batch_size: int | None
    size: Size | None

    @classmethod
    def from_session(cls, path: Path, session: Any) -> Graph:
        inputs, outputs = ([_tensor(e) for e in every] for every in (session.get_inputs(), session.get_outputs()))
        inputs.sort(key=lambda tensor: len(tensor.shape) not in (3, 4))  # PaddleDetection may put im_shape first
        image, others = inputs[0], {tensor.name for tensor in inputs[1:]}
        if len(image.shape) not in (3, 4) or image.shape[-3] not in (3, None) or len(others - PADDLE_INPUTS) > 1:
            raise ObjectSeekerError(
                f"{path} has inputs {_listed(inputs)}: it must have an image input N x 3 x height x width, and may "
                f"have one of image sizes N x 2, {' and '.join(sorted(PADDLE_INPUTS))}"
            )
        height, width = image.shape[-2:]
        batch = image.shape[0] if len(image.shape) == 4 else 1
        return cls(path, session, inputs, outputs, batch, None if height is None or width is None else (width, height))

    @property
    def metadata(self) -> dict[str, str]:
        try:
            metadata: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        except UnicodeDecodeError:
            raise ObjectSeekerError(f"the metadata of {self.path} must be UTF-8. Export it again.") from None
        return metadata

    @property
    def input_type(self) -> str:
        """The NumPy name of the type of the image input."""
        image_type = next(entry.type for entry in self.session.get_inputs() if entry.name == self.inputs[0].name)
        if image_type not in INPUT_TYPES:
            raise ObjectSeekerError(f"{self.path} takes {image_type} images: export it with a floating point input")
        return INPUT_TYPES[image_type]

    def choose_layout(self, requested: str | Layout | None, size: int | tuple[int, int] | None) -> Layout:
        text = layout_from_metadata(self.metadata) if requested is None else requested
        if text is not None:
            return parse_layout(text)
        exported_by_yolo = {"names", "stride"} <= set(self.metadata)
        takes_sizes = any(tensor.name not in PADDLE_INPUTS for tensor in self.inputs[1:])
        name = infer_layout(self.outputs, self.size, takes_sizes=takes_sizes, exported_by_yolo=exported_by_yolo)
        if name is None:
            raise ObjectSeekerError(
                f"cannot tell the layout of {self.path} from its outputs ({_listed(self.outputs)}): "
                f"choose one with --set layout=NAME, of {', '.join(LAYOUTS)}, or wrap the graph: python:MODULE:FUNCTION"
            )
        if name in ("yolox", "yolov8") and not exported_by_yolo:
            name = self._disambiguate_layout(name, self.choose_size(size, LAYOUTS[name]))
        if name in GUESSED_INPUTS:
            log.warning("%s: its input is prepared as %s", self.path.name, GUESSED_INPUTS[name])
        return LAYOUTS[name]

    def _disambiguate_layout(self, name: str, size: Size) -> str:
        """Choose the layout of a graph whose outputs have the shapes of `name` by its boxes for a gray image."""
        shape = (self.batch_size or 1, 3, size[1], size[0])
        if math.prod(shape) * np.dtype(self.input_type).itemsize > MAX_BATCH_BYTES:  # rejected later on
            return name
        try:
            ((output,), *_) = _forward(self, [self.outputs[0].name], LAYOUTS[name])(
                np.full(shape, 0.5, self.input_type)
            )
        except ObjectSeekerError:  # of a size that it does not take, which is reported when it is used
            return name
        box_format = infer_box_format((output if name == "yolox" else output.T)[:, :4].astype(np.float64), size)
        if box_format == "corners":
            return {"yolox": "picodet", "yolov8": "yolov9"}[name]
        if box_format == "centers" and name == "yolox":
            raise ObjectSeekerError(
                f"{self.path} has YOLOX's shapes, but its boxes are decoded already: choose a layout "
                "(--set layout=NAME), yolov5 for YOLOv6, yolov5,fit=top-left,channels=bgr,std=1 for YOLOX"
            )
        return name

    def outputs_for(self, layout: Layout) -> tuple[list[str], int | None]:
        """Return the output names in the layout's order, and the number of classes, if known."""
        ordered = order_outputs(self.outputs, layout)
        classes = count_classes(ordered, layout) if ordered else None
        if ordered is None or (classes is not None and classes < 1):
            raise ObjectSeekerError(
                f"{self.path} does not have layout {layout.name} (outputs: {_listed(self.outputs)}): "
                "choose another layout"
            )
        return [tensor.name for tensor in ordered], classes

    def choose_size(self, requested: int | tuple[int, int] | None, layout: Layout) -> Size:
        fixed = None if self.size is None else f"{self.path} is fixed to inputs of {self.size[0]}x{self.size[1]}"
        if fixed and layout.free_sides:
            raise ObjectSeekerError(f"{fixed}: omit trim and fit=max-area")
        if requested is None:
            return self.size or parse_size(layout.input_size)
        size = parse_size(requested)
        if fixed and self.size != size:
            raise ObjectSeekerError(f"{fixed}, not {size[0]}x{size[1]}: omit the input size")
        return size

    def choose_batch(self, requested: int | None, layout: Layout) -> int | None:
        """Return how many views run together; None if neither the graph nor the caller fixes it."""
        fixed = self.batch_size if layout.batched else 1
        if fixed is not None and requested not in (None, fixed):
            log.warning("%s takes batches of %d only: batch %d is not used", self.path, fixed, requested)
        return fixed or requested

    def resolve_background(self, layout: Layout, classes: int | None, names: Sequence[str] | None) -> Layout:
        """Decide whether the last class is the background: not if the graph has COCO's numbers or a name."""
        named = len(names if names is not None else class_names.from_metadata(self.metadata))
        own = classes is not None and (named == classes or (named == 0 and classes == len(class_names.COCO_91)))
        return replace(layout, background="none") if own and layout.background == "last" else layout

    def choose_names(self, names: Sequence[str] | None, classes: int | None, layout: Layout) -> tuple[str, ...]:
        """Return a name for every label that the graph can return."""
        hidden = layout.background == "last"
        labels = None if classes is None else classes - hidden + layout.label_offset
        if names is not None:
            if labels is not None and len(names) != labels:
                raise ObjectSeekerError(
                    f"{self.path} has {labels} classes, but {len(names)} names were given: give one for each, by label"
                )
            return tuple(names)
        own = class_names.from_metadata(self.metadata)
        if own:
            return own + class_names.numbered_names(len(own), labels or 0)
        return _guess_class_names(self.path, labels, layout)


def require_file(path: Path) -> None:
    if not path.is_file():
        raise ObjectSeekerError(f"there is no file {path}: give the path of an ONNX file")


def parse_device(device: str) -> tuple[str, int]:
    """Split `cpu`, `openvino`, `cuda` or `cuda:1` into kind and number.

    Example:
        >>> parse_device("cuda:1")
        ('cuda', 1)
    """
    match = DEVICE.fullmatch(device)
    if match is None:
        raise ObjectSeekerError(f"device must be cpu, openvino, cuda or cuda:NUMBER: got {device!r}")
    return match[1], int(match[2] or 0)


def open_session(path: Path, device: str = "cpu", *, threads: int) -> Any:
    """Open an ONNX Runtime session without telemetry whose runs take `threads` cores each."""
    # Importing onnxruntime already writes a device number and a data base below ~/.cache, unless this is set.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    require_file(path)
    kind, number = parse_device(device)
    provider, settings = PROVIDERS[kind]
    no_provider = f"this onnxruntime cannot use {device}: pip install onnxruntime-gpu, or use cpu"
    if provider not in onnxruntime.get_available_providers():
        raise ObjectSeekerError(no_provider)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # nothing: errors are raised anyway, warnings are about the exporter
    try:
        chosen = (provider, settings | ({} if kind == "cpu" else {"device_id": str(number)}))
        # Without the fallback it neither tries another device nor prints that it does.
        session = onnxruntime.InferenceSession(str(path), options, providers=[chosen], enable_fallback=0)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"onnxruntime cannot load {path}, export it again: {reason}") from None
    if session.get_providers()[0] != provider:  # onnxruntime falls back to the CPU without an error
        raise ObjectSeekerError(no_provider)
    return session


class OpenVinoSession:
    """A graph compiled by OpenVINO for a CPU, with the `run` of an ONNX Runtime session.

    Each precision, float32 or bfloat16, is a detector of its own: its boxes differ from ONNX Runtime's, and so does its
    fingerprint. Each of the `workers` threads that call `run` at the same time has its own buffers: they share nothing
    that a view could change. A call takes `threads` threads.
    """

    def __init__(self, path: Path, *, precision: str, workers: int, threads: int) -> None:
        openvino = import_optional("openvino", "device openvino needs pip install 'objectseeker[openvino]'")
        if precision not in OPENVINO_PRECISIONS:
            precisions = ", ".join(OPENVINO_PRECISIONS)
            raise ObjectSeekerError(f"precision on openvino must be one of {precisions}: got {precision!r}")
        core = openvino.Core()
        if precision == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ObjectSeekerError("this processor does not compute in bfloat16: omit precision")
        settings = {
            "INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[precision],
            "NUM_STREAMS": workers,
            "INFERENCE_NUM_THREADS": workers * threads,
            "ENABLE_CPU_PINNING": False,  # other processes have cores, too
        }
        try:
            self._compiled: Any = core.compile_model(core.read_model(path), "CPU", settings)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ObjectSeekerError(f"openvino cannot load {path}, use device cpu: {reason}") from None
        self._own = threading.local()

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the named outputs, as copies."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        self._own.request.infer(dict(feeds), share_inputs=True)
        return [np.array(self._own.request.get_tensor(name).data) for name in outputs]


def available_cores() -> int:
    """Return the number of cores for this process; in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tensor(entry: Any) -> GraphTensor:
    shape = tuple(side if isinstance(side, int) else None for side in entry.shape)
    return GraphTensor(entry.name, shape, "int" in entry.type)


def _guess_class_names(path: Path, labels: int | None, layout: Layout) -> tuple[str, ...]:
    """The classes of the dataset that has that many, said aloud, or numbered ones."""
    count = (91 if layout.name == "torchvision" else 80) if labels is None else labels
    if count not in class_names.BY_COUNT:
        return class_names.numbered_names(0, count)
    which = "they" if labels is None else f"its {count} classes"
    dataset = "PASCAL VOC" if count == len(class_names.VOC_20) else "COCO"
    assumption = f"{which} are taken for those of {dataset}"
    log.warning("%s does not name its classes: %s; --set class_names=@FILE sets others", path.name, assumption)
    return class_names.BY_COUNT[count]


def _forward(graph: Graph, outputs: list[str], layout: Layout) -> Forward:
    image, *sizes = graph.inputs
    unbatched_input = len(image.shape) == 3

    def forward(batch: Array) -> Sequence[Sequence[Array]]:
        height, width = batch.shape[2:]
        feeds: dict[str, Array] = {image.name: batch[0] if unbatched_input else batch}
        for entry in sizes:  # the network input's own size: boxes then come back in its pixels, as everywhere else
            stated = {"scale_factor": (1, 1), "im_shape": (height, width)}.get(entry.name, (width, height))
            feeds[entry.name] = np.full((len(batch), 2), stated, np.int64 if entry.integer else np.float32)
        try:
            every = graph.session.run(outputs, feeds)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ObjectSeekerError(
                f"the graph does not take {_shape(batch)} inputs: {reason}. Choose another input size."
            ) from None
        if not layout.batched:
            return [every]
        if any(len(output) != len(batch) for output in every):
            shapes = ", ".join(_shape(output) for output in every)
            raise ObjectSeekerError(f"the graph returned {shapes} for {len(batch)} images: choose another layout")
        return [[output[view] for output in every] for view in range(len(batch))]

    return forward


def _listed(tensors: Sequence[GraphTensor]) -> str:
    more = f" and {len(tensors) - 4} more" if len(tensors) > 4 else ""
    return ", ".join(str(tensor) for tensor in tensors[:4]) + more


def _shape(array: Array) -> str:
    return "x".join(str(side) for side in array.shape)


VARINT, FIXED64, LENGTH, START, END, FIXED32 = 0, 1, 2, 3, 4, 5
LOCATION = 13  # of a tensor: pairs of a key (1) and a value (2)

# By kind of message: which fields hold messages that may hold a tensor, and of what kind these are.
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


def external_files(path: Path) -> list[Path]:
    """Return the external data files of the ONNX graph `path`; rejects path traversal out of its folder."""
    with path.open("rb") as file:
        try:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            locations = sorted(set(_locations(content, "model")))
        except (ValueError, IndexError, RecursionError):  # what cannot be read to its end may have weights elsewhere
            raise ObjectSeekerError(f"cannot read {path} as an ONNX file: export it again") from None
    for location in locations:
        parts = PurePosixPath(location.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise ObjectSeekerError(f"{path} keeps weights outside its folder, in {location!r}: save them next to it")
    return [path.parent / location for location in locations]


def _locations(message: memoryview, kind: str) -> Iterator[str]:
    for number, content in _fields(message):
        if kind == "tensor":
            if number == LOCATION:
                pair = dict(_fields(content))
                if bytes(pair.get(1, b"")) == b"location":
                    yield bytes(pair.get(2, b"")).decode("utf-8", "replace")
        elif number in INSIDE[kind]:
            yield from _locations(content, INSIDE[kind][number])


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and content of every field that has a length."""
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        wire = tag & 7
        if wire == VARINT:
            _, offset = _varint(message, offset)
        elif wire in (FIXED64, FIXED32):
            offset += 8 if wire == FIXED64 else 4
        elif wire == LENGTH:
            length, offset = _varint(message, offset)
            if offset + length > len(message):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[offset : offset + length]
            offset += length
        elif wire not in (START, END):  # the fields of a group are read as if they were outside it: rather too much
            raise ValueError(f"unknown wire type {wire}")


def _varint(message: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, offset
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
