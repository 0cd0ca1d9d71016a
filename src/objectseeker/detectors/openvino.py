"""OpenVINO as what runs ONNX graphs on a CPU, in float32 or bfloat16.

Each precision is a detector of its own: its boxes differ from ONNX Runtime's, and so does its fingerprint.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.detectors.network.layouts import Array
from objectseeker.errors import ObjectSeekerError

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVinoSession:
    """A compiled graph with the `run` of an ONNX Runtime session.

    Every thread that calls it has its own buffers: they share nothing that a view could change.

    Args:
        path: The ONNX file.
        precision: float32, or bfloat16 on processors that compute with it.
        workers: Number of threads that call `run` at the same time.
        threads: Number of threads of each call.
    """

    def __init__(self, path: Path, *, precision: str, workers: int, threads: int) -> None:
        try:
            import openvino
        except ImportError:
            raise ObjectSeekerError("device openvino needs pip install 'objectseeker[openvino]'") from None
        if precision not in PRECISIONS:
            raise ObjectSeekerError(f"precision on openvino must be one of {', '.join(PRECISIONS)}: got {precision!r}")
        core = openvino.Core()
        if precision == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ObjectSeekerError("this processor does not compute in bfloat16: omit precision")
        settings = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
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
        request = self._own.request
        request.infer(dict(feeds), share_inputs=True)
        return [np.array(request.get_tensor(name).data) for name in outputs]
