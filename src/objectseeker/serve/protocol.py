"""The Open Inference Protocol v2 with binary tensors, and the JSON response to an image file.

A request is a JSON document, or one followed by the bytes of its tensors; the header Inference-Header-Content-Length
is then the length of the document. https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Recipe
from objectseeker.core.threats import PATCH_LOCATIONS, ThreatModel
from objectseeker.defense import Defense
from objectseeker.inference.results import (
    CERTIFICATE_SCOPE,
    NOT_FABRICATED,
    Categories,
    DetectionTotals,
    ImageResult,
)
from objectseeker.serve.limits import MAX_JSON_BYTES, RequestRejectedError, ServerLimits, check_forward_passes

Array = npt.NDArray[Any]

JSON_LENGTH = "Inference-Header-Content-Length"
INPUT = "image"
MAX_TENSOR_DIM = 2**31
UNSUPPORTED_PARAMETERS = (
    "classification",
    "shared_memory_region",
    "shared_memory_offset",
    "shared_memory_byte_size",
)
DATATYPES = {"FP64": "<f8", "INT64": "<i8", "BOOL": "?"}


class Output(NamedTuple):
    """An output tensor; -1 in its shape is the number of boxes."""

    name: str
    datatype: str
    shape: tuple[int, ...]


OUTPUTS = (
    Output("boxes", "FP64", (-1, 4)),  # x1, y1, x2, y2 in pixels of the image
    Output("scores", "FP64", (-1,)),
    Output("labels", "INT64", (-1,)),
    Output("recovered", "BOOL", (-1,)),
)
CERTIFIED_OUTPUTS = (  # computed only if one of them is requested: they cost time
    Output("certified", "BOOL", (-1, 4)),  # that no patch far, close, over, anywhere hides it
    Output("vacuous_far", "BOOL", (-1,)),
    Output("largest_square", "INT64", (-1,)),
    Output("certified_not_fabricated", "BOOL", (-1, 4)),
    Output("largest_square_not_fabricated", "INT64", (-1,)),
    Output("certified_scores", "FP64", (-1,)),
)
OUTPUTS_BY_NAME = {output.name: output for output in (*OUTPUTS, *CERTIFIED_OUTPUTS)}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served defense, its detector's fingerprint, the class names, and the threat model."""

    name: str
    defense: Defense
    classes: tuple[str, ...]
    threat: ThreatModel

    @property
    def version(self) -> str:
        """The defense's checksum: the defense is what distinguishes one model from another."""
        return self.defense.sha256

    def metadata(self) -> dict[str, Any]:
        """Return the protocol's metadata; `parameters` has the defense and the threat model of certificates."""
        outputs = [
            {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
            for output in OUTPUTS_BY_NAME.values()
        ]
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "objectseeker",
            "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, -1, 3]}],
            "outputs": outputs,
            "parameters": {
                "defense": self.defense.to_public_dict(),
                "classes": list(self.classes),
                "certified": {"location": list(PATCH_LOCATIONS)} | self._certified,
                "about": CERTIFICATE_SCOPE,
            },
        }

    @property
    def _certified(self) -> dict[str, Any]:
        return self.threat.to_dict(self.defense.rule) | self.defense.rule.support_criteria.to_dict()

    def to_response(self, result: ImageResult) -> dict[str, Any]:
        """Return /detect's response: rows of detections.json, the alert, and certificates.json if certified."""
        categories = Categories.from_detector(self.classes)
        sha256 = self.defense.sha256
        rows = [row | {"defense_sha256": sha256} for row in result.coco_results(categories)]
        response: dict[str, Any] = {
            "width": result.size[0],
            "height": result.size[1],
            "detections": rows,
            "alert": result.alert,
            "recovered_boxes": result.recovered_boxes,
            "defense_sha256": sha256,
        }
        if result.certificates is not None:
            totals = DetectionTotals(threat=self._certified)
            totals.add(result, categories)
            response["certificates"] = {**(totals.certificates or {}), "defense_sha256": sha256}
        return response


def to_tensors(result: ImageResult) -> Mapping[str, Array]:
    """Return every available output tensor, base boxes first."""
    boxes = result.detections
    tensors: dict[str, Array] = {
        "boxes": boxes.xyxy,
        "scores": boxes.score,
        "labels": boxes.label,
        "recovered": np.arange(len(boxes)) >= result.base_boxes,
    }
    if (columns := result.certificates) is not None:
        tensors["certified"] = np.array([columns[location] for location in PATCH_LOCATIONS]).T
        not_fabricated = [columns[NOT_FABRICATED[location]] for location in PATCH_LOCATIONS]
        tensors["certified_not_fabricated"] = np.array(not_fabricated).T
        for name in ("vacuous_far", "largest_square", "largest_square_not_fabricated"):
            tensors[name] = np.array(columns[name])
        tensors["certified_scores"] = np.array(columns["certified_score"])
    return tensors


@dataclass(frozen=True, slots=True, eq=False)
class InferenceRequest:
    """A request for inference: its id, the image, and each requested output with whether it is binary."""

    id: str | None
    image: Image
    outputs: tuple[tuple[Output, bool], ...]

    @property
    def certify(self) -> bool:
        return any(output in CERTIFIED_OUTPUTS for output, _ in self.outputs)


def read_request(body: bytes, json_length: str | None, limits: ServerLimits, masks: Recipe) -> InferenceRequest:
    """Parse a request; reject with a message anything that does not follow the protocol."""
    document, binary = _split(body, json_length)
    inputs = _require_list(document, "inputs")
    if len(inputs) != 1 or not isinstance(inputs[0], dict) or inputs[0].get("name") != INPUT:
        raise _bad_request(f"inputs must be one tensor, named {INPUT!r}")
    request_id = document.get("id")
    if not isinstance(request_id, str | None):
        raise _bad_request(f"id must be a string: got {_quote(request_id)}")
    outputs = _requested_outputs(document)
    return InferenceRequest(request_id, _read_image(inputs[0], binary, limits, masks), outputs)


def _split(body: bytes, json_length: str | None) -> tuple[Mapping[str, Any], bytes | None]:
    length = len(body)
    if json_length is not None:
        if not (json_length.isdecimal() and len(json_length) < 20 and 0 < int(json_length) <= len(body)):
            raise _bad_request(f"{JSON_LENGTH} must be the length of the JSON document, 1 to {len(body)} bytes here")
        length = int(json_length)
    if length > MAX_JSON_BYTES:
        raise RequestRejectedError(
            413,
            f"the JSON document is too long: got {length:,} bytes, at most {MAX_JSON_BYTES:,} are allowed. Send the "
            "image as a binary tensor, or its file to /detect.",
        )
    try:
        document = json.loads(body[:length])
    except (ValueError, RecursionError):
        raise _bad_request("the body must be a JSON document: got no valid JSON") from None
    if not isinstance(document, dict):
        raise _bad_request("the JSON document must be an object")
    return document, None if json_length is None else body[length:]


def _requested_outputs(document: Mapping[str, Any]) -> tuple[tuple[Output, bool], ...]:
    all_binary = _flag(_parameters(document), "binary_data_output", False)
    requested = _require_list(document, "outputs") if "outputs" in document else []
    if not requested:
        return tuple((output, all_binary) for output in OUTPUTS)
    outputs = {}
    for entry in requested:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in OUTPUTS_BY_NAME or name in outputs:
            raise _bad_request(f"outputs must be from {', '.join(OUTPUTS_BY_NAME)}, each once: got {_quote(name)}")
        outputs[name] = OUTPUTS_BY_NAME[name], _flag(_parameters(entry), "binary_data", all_binary)
    return tuple(outputs.values())


def _read_image(tensor: Mapping[str, Any], binary: bytes | None, limits: ServerLimits, masks: Recipe) -> Image:
    if tensor.get("datatype") != "UINT8":
        raise _bad_request(f"the datatype of {INPUT} must be UINT8: got {_quote(tensor.get('datatype'))}")
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(type(side) is int and 0 < side < MAX_TENSOR_DIM for side in shape)
        or shape[2] != 3
    ):
        raise _bad_request(f"the shape of {INPUT} must be height, width, 3: got {_quote(shape)}")
    height, width, _ = shape
    limits.check_size(width, height)
    check_forward_passes(masks, width, height)
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        if binary:
            raise _bad_request(f"{len(binary):,} bytes follow the JSON document, but {INPUT} has no binary_data_size")
        return _image_from_list(tensor.get("data"), shape)
    if "data" in tensor or type(size) is not int or size != prod(shape) or binary is None or len(binary) != size:
        count = "none" if binary is None else f"{len(binary):,}"
        raise _bad_request(
            f"{INPUT} of shape {shape} has {prod(shape):,} bytes, binary_data_size is {_quote(size)}, and {count} "
            "follow the JSON document: all must be equal, and there must be no data"
        )
    return np.frombuffer(binary, np.uint8).reshape(shape)


def _image_from_list(data: Any, shape: Sequence[int]) -> Image:
    """Convert a list of numbers, flat or nested like the shape."""
    values = _flatten(data, [prod(shape)]) or _flatten(data, shape)
    if values is None or set(map(type, values)) != {int}:  # NumPy would allocate for the longest string among them
        raise _bad_request(f"the data of {INPUT} must be {prod(shape):,} integers, flat or nested as {list(shape)}")
    try:
        return np.frombuffer(bytes(values), np.uint8).reshape(shape)
    except ValueError:
        first_invalid = next(value for value in values if not 0 <= value <= 255)
        raise _bad_request(f"the data of {INPUT} must be from 0 to 255: got {_quote(first_invalid)}") from None


def _flatten(data: Any, sides: Sequence[int]) -> list[Any] | None:
    """Return the entries of nested lists of these lengths, or None if a length differs."""
    level = [data]
    for side in sides:
        if not all(type(part) is list and len(part) == side for part in level):
            return None
        level = list(chain.from_iterable(level))
    return level


def write_response(
    request: InferenceRequest, tensors: Mapping[str, Array], header: Mapping[str, Any]
) -> tuple[bytes, int | None]:
    """Return the body, which begins with `header`, and its JSON length if tensors follow."""
    outputs, binary = [], []
    for output, is_binary in request.outputs:
        tensor = np.ascontiguousarray(tensors[output.name], DATATYPES[output.datatype])
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(tensor.shape)}
        if is_binary:
            binary.append(tensor.tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = tensor.ravel().tolist()
        outputs.append(entry)
    document = dict(header) | ({} if request.id is None else {"id": request.id}) | {"outputs": outputs}
    text = json.dumps(document).encode()
    return text + b"".join(binary), len(text) if binary else None


def _parameters(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request, an input or an output.

    Unknown ones belong to other servers and are ignored, except those of extensions that request another response
    than this server's.
    """
    parameters = holder.get("parameters", {})
    if not isinstance(parameters, dict):
        raise _bad_request(f"parameters must be an object: got {_quote(parameters)}")
    for name in UNSUPPORTED_PARAMETERS:
        if name in parameters:
            raise _bad_request(f"{name} is not supported. Omit it")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _bad_request(f"{name} must be true or false: got {_quote(value)}")
    return value


def _require_list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise _bad_request(f"{name} must be a list: got {_quote(value)}")
    return value


def _quote(value: Any) -> str:
    """Quote a value; of a large one only its size."""
    if isinstance(value, list | dict):
        is_small = len(value) <= 4 and all(type(entry) is int and abs(entry) < MAX_TENSOR_DIM for entry in value)
        return str(value) if is_small else f"{len(value):,} entries"
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _bad_request(problem: str) -> RequestRejectedError:
    return RequestRejectedError(400, f"invalid inference request: {problem}.")
