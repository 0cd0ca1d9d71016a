"""The one codec for JSON and TOML documents: dataclasses in and out, strict, canonical.

A document is a dataclass whose fields are its keys. Reading rejects what a careless reader would accept: unknown keys,
keys that occur twice, true and false as numbers, numbers as strings, NaN, infinity, and values of another type. -0.0
reads as 0.0. Checks in `__post_init__` apply as everywhere else. Every error is one line that names the document, the
key (`rule.mask_threshold`), the value got and what to do. Equal content is written as equal bytes.

    settings = codec.read_json(path.read_bytes(), Settings, str(path), format=1, fix="write it with objectseeker tune")
    options = codec.from_plain(values, Options, "the options")    # from dicts and lists
    save_text(path, codec.write_json(settings, indent=2) + "\n")

Mask recipes are strings in documents, such as halves:30. A field that may be true, false or null is `bool | None`. A
union may hold at most one dataclass and one kind of list.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from objectseeker.core.recipes import Recipe, parse_recipe
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import quote, quote_plain

T = TypeVar("T")

_PATH = re.compile(r"(?P<reason>.*) - at `(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`")
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]*)`(?P<length> of length \d+)?, got .*")
_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a group of settings",
    "null": "null",
}


def read_json(content: bytes | str, kind: type[T], document: str, *, format: int | None = None, fix: str = "") -> T:
    """Read a JSON document.

    Args:
        content: The text, or its bytes in UTF-8.
        kind: The dataclass, or any other type that msgspec knows.
        document: What errors call it, such as its path.
        format: The version that its key `format` must state; None if it has no such key.
        fix: What errors advise, such as "write it with objectseeker tune".

    Raises:
        ObjectSeekerError: The content is not exactly a document of this kind.

    Example:
        >>> from objectseeker import Rule
        >>> read_json('{"base_threshold": 0.25, "mask_threshold": 0.5}', Rule, "rule.json").mask_threshold
        0.5
        >>> read_json('{"base_threshold": true, "mask_threshold": 0.5}', Rule, "rule.json")
        Traceback (most recent call last):
        ...
        objectseeker.errors.ObjectSeekerError: rule.json: base_threshold must be a number: got True
    """
    return from_plain(parse_json(content, document, fix=fix), kind, document, format=format, fix=fix)


def parse_json(content: bytes | str, document: str, *, fix: str = "") -> Any:
    """Parse JSON into plain values; reject keys that occur twice and numbers that are not finite."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ObjectSeekerError(f"{document} has the key {quote(twice)} twice: remove one")
        return values

    def number(text: str) -> float:
        return _finite(text, document)

    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        values = json.loads(text, object_pairs_hook=unique, parse_float=number, parse_constant=number)
        if "\\u" in text:  # JSON can escape half of a surrogate pair, which is not text
            json.dumps(values, ensure_ascii=False).encode("utf-8")
        return values
    except ObjectSeekerError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ObjectSeekerError(_sentence(document, f"is not valid JSON ({reason})", fix)) from None


def parse_toml(text: str, document: str) -> dict[str, Any]:
    """Parse TOML into plain values; reject numbers that are not finite."""
    try:
        return tomllib.loads(text, parse_float=lambda number: _finite(number, document))
    except ObjectSeekerError:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError, too
        raise ObjectSeekerError(f"{document} is not valid TOML ({error})") from None


def from_plain(values: Any, kind: type[T], document: str, *, format: int | None = None, fix: str = "") -> T:
    """Make a typed value of dicts, lists, strings and numbers, as strictly as `read_json`."""
    if format is not None and isinstance(values, dict):
        values = dict(values)
        version = values.pop("format", None)
        if version != format or isinstance(version, bool):
            raise ObjectSeekerError(
                f"{document} has format {quote(version)}, this version of objectseeker reads format {format}: "
                "write it with this version, or read it with the version that wrote it"
            )
    if (number := _huge_number(values)) is not None:  # older versions of msgspec read one as the float -1
        raise ObjectSeekerError(f"{document} has the number {quote(number)}: whole numbers must fit 64 bits")
    try:
        made = msgspec.convert(values, kind, dec_hook=_from_string)
    except msgspec.ValidationError as error:
        raise ObjectSeekerError(_describe(error, values, document, fix)) from None
    unknown = _unknown_key(values, to_plain(made))
    if unknown is not None:
        raise ObjectSeekerError(_sentence(document, f"has an unknown key {quote(unknown)}", fix or "remove it"))
    return made


def to_plain(value: Any) -> Any:
    """Turn a typed value into dicts, lists, strings and numbers that `from_plain` turns back."""
    if isinstance(value, Recipe):
        return str(value)
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float):
        return value + 0.0  # -0.0 + 0.0 is 0.0
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a document cannot hold {type(value).__name__}")


def write_json(value: Any, *, indent: int | None = None) -> str:
    """Write a document: keys in the order of the fields, every float so that it is read back unchanged."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(to_plain(value), indent=indent, separators=separators, allow_nan=False)


def _from_string(kind: type[Any], value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Recipe):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return parse_recipe(value)
    raise NotImplementedError(f"documents of {kind}")


def _finite(text: str, document: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ObjectSeekerError(f"{document} has the number {quote_plain(text)}: numbers must be finite")
    return number + 0.0  # -0.0 + 0.0 is 0.0


def _huge_number(values: Any) -> int | None:
    if isinstance(values, dict | list):
        items = values.values() if isinstance(values, dict) else values
        return next((number for item in items if (number := _huge_number(item)) is not None), None)
    return values if isinstance(values, int) and not -(2**63) <= values < 2**63 else None


def _describe(error: msgspec.ValidationError, values: Any, document: str, fix: str) -> str:
    """Say in one line what msgspec found wrong."""
    found = _PATH.fullmatch(str(error))
    reason, path = (found["reason"], found["path"]) if found else (str(error), "$")
    key, value = _key(path), _at(values, path)
    if isinstance(error.__cause__, ObjectSeekerError):  # a check of our own, which names the value and the remedy
        names_field = isinstance(value, dict) and reason.split()[0] in value
        return f"{document}: {key}{'.' if names_field else ': '}{reason}" if key else f"{document}: {reason}"
    if missing := _MISSING.fullmatch(reason):
        return _sentence(document, f"lacks the key {_key(path + '.' + missing['key'])}", fix)
    if expected := _EXPECTED.fullmatch(reason):
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in expected["kinds"].split(" | "))
        reason = f"must be {kinds}{expected['length'] or ''}"
    elif reason.startswith("Invalid enum value"):
        reason = "must be one of the documented values"
    else:
        reason = f"cannot be used ({reason})"
    return _sentence(f"{document}: {key}" if key else document, f"{reason}: got {quote(value)}", fix)


def _sentence(subject: str, statement: str, fix: str) -> str:
    return f"{subject} {statement}: {fix}" if fix else f"{subject} {statement}"


def _key(path: str) -> str:
    """The path as a user writes it: `$.rule.mask_threshold` is rule.mask_threshold."""
    return path.replace("key in ", "").removeprefix("$").removeprefix(".")


def _at(values: Any, path: str) -> Any:
    """The value at a path of msgspec's; the nearest group around it where the path does not tell."""
    for step in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", path):
        try:
            values = values[step[0]] if step[0] else values[int(step[1])]
        except (KeyError, IndexError, TypeError, ValueError):
            return values
    return values


def _unknown_key(given: Any, understood: Any, path: str = "") -> str | None:
    """The first key of a document that was not read, since no field has its name."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            if key not in understood:
                return f"{path}{key}"
            if (unknown := _unknown_key(value, understood[key], f"{path}{key}.")) is not None:
                return unknown
    if isinstance(given, list) and isinstance(understood, list):
        for number, (value, item) in enumerate(zip(given, understood, strict=False)):
            if (unknown := _unknown_key(value, item, f"{path.removesuffix('.')}[{number}].")) is not None:
                return unknown
    return None
