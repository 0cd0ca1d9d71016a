"""The Open Inference Protocol, version 2, with its extension for tensors in binary form.

A request is a JSON document, or one followed by the bytes of its tensors; the header Inference-Header-Content-Length
then says where the document ends. https://github.com/kserve/open-inference-protocol
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
from objectseeker.serve.limits import MOST_JSON, Limits, Refused
from objectseeker.serve.uploads import require_views

Array = npt.NDArray[Any]

JSON_LENGTH = "Inference-Header-Content-Length"
INPUT = "image"
MOST_SIDE = 2**31
NOT_OFFERED = ("classification", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
DATATYPES = {"FP64": "<f8", "INT64": "<i8", "BOOL": "?"}


class Output(NamedTuple):
    """A tensor that can be asked for; -1 stands for the number of boxes."""

    name: str
    datatype: str
    shape: tuple[int, ...]


OUTPUTS = (
    Output("boxes", "FP64", (-1, 4)),  # x1, y1, x2, y2 in pixels of the image
    Output("scores", "FP64", (-1,)),
    Output("labels", "INT64", (-1,)),
    Output("found_by_masks", "BOOL", (-1,)),
)
CERTIFIED_OUTPUTS = (  # given only to those who ask for one of them: they cost time
    Output("certified", "BOOL", (-1, 4)),  # against a patch far, close, over, anywhere
    Output("vacuous_far", "BOOL", (-1,)),
    Output("largest_square", "INT64", (-1,)),
)
BY_NAME = {output.name: output for output in (*OUTPUTS, *CERTIFIED_OUTPUTS)}


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request for inference: its id, the image, and the outputs that are wanted, in binary form or not."""

    id: str | None
    image: Image
    wanted: tuple[tuple[Output, bool], ...]

    @property
    def certify(self) -> bool:
        return any(output in CERTIFIED_OUTPUTS for output, _ in self.wanted)


def read_request(body: bytes, json_length: str | None, limits: Limits, masks: Recipe) -> Asked:
    """What a body asks for; anything that is not as the protocol says is refused with a sentence."""
    document, binary = _split(body, json_length)
    inputs = _list(document, "inputs")
    if len(inputs) != 1 or not isinstance(inputs[0], dict) or inputs[0].get("name") != INPUT:
        raise _wrong(f"inputs must be one tensor, called {INPUT!r}")
    identity = document.get("id")
    if not isinstance(identity, str | None):
        raise _wrong("id must be a text")
    wanted = _wanted(document)
    return Asked(identity, _image(inputs[0], binary, limits, masks), wanted)


def _split(body: bytes, json_length: str | None) -> tuple[Mapping[str, Any], bytes | None]:
    length = len(body)
    if json_length is not None:
        if not (json_length.isdecimal() and len(json_length) < 20 and 0 < int(json_length) <= len(body)):
            raise _wrong(f"{JSON_LENGTH} must be the length of the JSON document, 1 to {len(body)} bytes here")
        length = int(json_length)
    if length > MOST_JSON:
        raise Refused(
            413,
            f"the JSON document has {length:,} bytes, more than the {MOST_JSON:,} that are taken: send the image as a "
            "binary tensor, or its file to /detect",
        )
    try:
        document = json.loads(body[:length])
    except (ValueError, RecursionError):
        raise _wrong("it is no JSON document") from None
    if not isinstance(document, dict):
        raise _wrong("the JSON document must be an object")
    return document, None if json_length is None else body[length:]


def _wanted(document: Mapping[str, Any]) -> tuple[tuple[Output, bool], ...]:
    all_binary = _flag(_parameters(document), "binary_data_output", False)
    asked = _list(document, "outputs") if "outputs" in document else []
    if not asked:
        return tuple((output, all_binary) for output in OUTPUTS)
    wanted = {}
    for one in asked:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name not in BY_NAME or name in wanted:
            raise _wrong(f"outputs must be some of {', '.join(BY_NAME)}, each once, got {_short(name)}")
        wanted[name] = BY_NAME[name], _flag(_parameters(one), "binary_data", all_binary)
    return tuple(wanted.values())


def _image(tensor: Mapping[str, Any], binary: bytes | None, limits: Limits, masks: Recipe) -> Image:
    if tensor.get("datatype") != "UINT8":
        raise _wrong(f"the datatype of {INPUT} must be UINT8, got {_short(tensor.get('datatype'))}")
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(type(side) is int and 0 < side < MOST_SIDE for side in shape)
        or shape[2] != 3
    ):
        raise _wrong(f"the shape of {INPUT} must be height, width, 3, got {_short(shape)}")
    height, width, _ = shape
    limits.require_pixels(width, height)
    require_views(masks, width, height)
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        if binary:
            raise _wrong(f"{len(binary):,} bytes follow the JSON document, but {INPUT} has no binary_data_size")
        return _of_json(tensor.get("data"), shape)
    if "data" in tensor or type(size) is not int or size != prod(shape) or binary is None or len(binary) != size:
        have = "none" if binary is None else f"{len(binary):,}"
        raise _wrong(
            f"{INPUT} of shape {shape} has {prod(shape):,} bytes, binary_data_size says {_short(size)}, and {have} "
            "follow the JSON document: all must be equal, without data beside them"
        )
    return np.frombuffer(binary, np.uint8).reshape(shape)


def _of_json(data: Any, shape: Sequence[int]) -> Image:
    """A list of numbers, flat or nested as the shape is."""
    values = _flat(data, [prod(shape)]) or _flat(data, shape)
    if values is None or set(map(type, values)) != {int}:  # NumPy would make room for the longest text among them
        raise _wrong(f"the data of {INPUT} must be {prod(shape):,} whole numbers, flat or nested as {list(shape)}")
    try:
        return np.frombuffer(bytes(values), np.uint8).reshape(shape)
    except ValueError:
        wrong = next(value for value in values if not 0 <= value <= 255)
        raise _wrong(f"the data of {INPUT} must lie within 0 to 255, got {_short(wrong)}") from None


def _flat(data: Any, sides: Sequence[int]) -> list[Any] | None:
    """The entries of lists in lists, each as long as `sides` say; nothing if one is not."""
    level = [data]
    for side in sides:
        if not all(type(part) is list and len(part) == side for part in level):
            return None
        level = list(chain.from_iterable(level))
    return level


def write_response(asked: Asked, tensors: Mapping[str, Array], about: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON document where tensors follow; `about` are its first fields."""
    outputs, binary = [], []
    for output, in_binary in asked.wanted:
        tensor = np.ascontiguousarray(tensors[output.name], DATATYPES[output.datatype])
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(tensor.shape)}
        if in_binary:
            binary.append(tensor.tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = tensor.ravel().tolist()
        outputs.append(entry)
    document = dict(about) | ({} if asked.id is None else {"id": asked.id}) | {"outputs": outputs}
    text = json.dumps(document).encode()
    return text + b"".join(binary), len(text) if binary else None


def _parameters(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a request, an input or an output; unknown ones are other servers' and do not count.

    But for those of the protocol's extensions that ask for another answer than the one that is given here.
    """
    given = holder.get("parameters", {})
    if not isinstance(given, dict):
        raise _wrong(f"parameters must be an object, got {_short(given)}")
    for name in NOT_OFFERED:
        if name in given:
            raise _wrong(f"{name} is not offered here: leave it out")
    return given


def _flag(parameters: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise _wrong(f"{name} must be true or false, got {_short(value)}")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise _wrong(f"{name} must be a list, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    """A value to quote: of a large one only how large it is."""
    if isinstance(value, list | dict):
        plain = len(value) <= 4 and all(type(entry) is int and abs(entry) < MOST_SIDE for entry in value)
        return str(value) if plain else f"{len(value):,} entries"
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _wrong(sentence: str) -> Refused:
    return Refused(400, f"this is no request that the model takes: {sentence}")
