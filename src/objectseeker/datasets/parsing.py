"""Parse untrusted annotation files: plain data, or a one-line error that names file and place.

Limits are checked while reading: path traversal, YAML aliases, XML entity expansion, depth and size. What cannot be
used but does not spoil the rest is skipped and counted in a `SkipLog`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import yaml

from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import expand_image_paths
from objectseeker.files.remote import Url
from objectseeker.text import display_path, is_utf8, quote

MAX_YAML_LENGTH = 1_000_000  # characters; the names of all 21,841 ImageNet classes take half of them
MAX_YAML_VALUES = 100_000  # keys, values, lists and mappings: about five seconds of parsing
MAX_YAML_DEPTH = 20  # lists and mappings inside each other

YamlValue: TypeAlias = "str | list[YamlValue] | dict[str, YamlValue]"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


# Why items are skipped, as warnings say it
NO_AREA = "boxes without area skipped"
OUTSIDE = "boxes entirely outside their images skipped"
IMPOSSIBLE = "boxes with impossible coordinates skipped"
NOT_UTF8 = "files whose names are not UTF-8 skipped"


class InvalidAnnotationError(ObjectSeekerError):
    """One annotation or file that cannot be used, while the rest of the dataset can."""

    def __init__(self, reason: str, source: str, problem: str) -> None:
        super().__init__(f"{source} {problem}")
        self.reason, self.source = reason, source


class SkipLog:
    """Counts of what a reader skipped, and what the user allows.

    Args:
        strict: Raise instead of skipping.
        allow_outside_paths: Let annotations name files outside the image folder.
    """

    def __init__(self, *, strict: bool = False, allow_outside_paths: bool = False) -> None:
        self.strict, self.allow_outside_paths = strict, allow_outside_paths
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._last: dict[str, str] = {}

    def parse_each(self, parse: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Parse every item; skip and count one that raises an `InvalidAnnotationError`."""
        results = []
        for item in items:
            try:
                results.append(parse(item))
            except InvalidAnnotationError as error:
                if self.strict:
                    raise
                self._count(error.reason, error.source)
        return results

    def record_skip(self, reason: str, source: str, message: str) -> None:
        """Count one skipped item; raise `message` instead if strict."""
        if self.strict:
            raise ObjectSeekerError(message)
        self._count(reason, source)

    def check_storable(self, path: Path | Url) -> bool:
        """Return whether the path is UTF-8; skip and count it otherwise, since no run could store it."""
        if is_utf8(str(path)):
            return True
        name = display_path(path)
        self.record_skip(NOT_UTF8, name, f"the name of {name} is not UTF-8. Rename the file.")
        return False

    def resolve_inside(self, folder: Path | Url, name: str, source: str) -> Path | Url:
        """Return the path of file `name` in `folder`; reject path traversal unless the user allows it."""
        if isinstance(folder, Url):
            steps = name.replace("\\", "/").split("/")
            if self.allow_outside_paths or not (".." in steps or "::" in name):
                return Url(f"{folder}/{name}")
        elif self.allow_outside_paths:
            return folder / name
        elif (path := path_below(folder, folder / name)) is not None:
            return path
        raise ObjectSeekerError(
            f"{source} names {quote(name)}, which is outside {folder}. Move the file there, or allow outside paths."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence per reason, with the number of items and the first of them."""
        return tuple(f"{reason}: {count:,}, the first: {self._first[reason]}" for reason, count in self._counts.items())

    def _count(self, reason: str, source: str) -> None:
        if self._last.get(reason) != source:  # a region that applies to every class is one item all the same
            self._counts[reason] = self._counts.get(reason, 0) + 1
        self._first.setdefault(reason, source)
        self._last[reason] = source


def path_below(folder: Path, path: Path) -> Path | None:
    """Return `path` without detours, or None if it leads out of `folder`.

    A link inside the folder is the user's own and may lead anywhere, but `..` is taken literally and never follows one.
    The folder itself may be named by a link.
    """
    literal, root = (Path(os.path.abspath(item)) for item in (path, folder))  # noqa: PTH100  # resolve follows links
    if literal.is_relative_to(root):
        return folder / literal.relative_to(root)
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a name the system cannot have, a circle of links
        return None
    return folder / real.relative_to(root) if real.is_relative_to(root) else None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ObjectSeekerError(f"cannot read {display_path(path)}: {reason}") from None


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 text file, without a byte order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"{path} is not a text file in UTF-8. Save it as one.") from None


def read_lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines that are not blank, each after its place, for messages."""
    lines = enumerate(read_text(path).splitlines(), start=1)
    return [(f"{path} line {number}", line) for number, line in lines if line.strip()]


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        content = json.loads(read_bytes(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ObjectSeekerError(f"{path} is not valid JSON: {error}. Correct it.") from None
    if not isinstance(content, dict):
        raise ObjectSeekerError(f"{path} must hold a JSON object: got {quote(content)}")
    return content


def read_yaml(path: Path) -> dict[str, YamlValue]:
    """Return the mapping in a YAML file, with all its scalars as text.

    Text, because a class may be called `no` or `1e3`, which YAML takes for false and 1000. Nothing else is constructed.
    Aliases (and so alias bombs), tags, repeated keys and huge or deep files are rejected.
    """
    text = read_text(path)
    if len(text) > MAX_YAML_LENGTH:
        raise ObjectSeekerError(
            f"{path} is too large: {len(text):,} characters, at most {MAX_YAML_LENGTH:,} are read. Shorten it."
        )
    try:
        content = yaml.load(text, _TextLoader)
    except yaml.MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        line = "" if error.problem_mark is None else f" line {error.problem_mark.line + 1}"
        raise ObjectSeekerError(f"{path}{line} cannot be read as YAML: {error.problem}{context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an unprintable character, a code beyond Unicode
        raise ObjectSeekerError(f"{path} cannot be read as YAML: {getattr(error, 'reason', error)}") from None
    content = {} if content is None else content  # an empty file
    if not isinstance(content, dict):
        raise ObjectSeekerError(f"{path} must hold keys and values, as in 'names: [car, person]': got {quote(content)}")
    return content


class _TextLoader(yaml.BaseLoader):
    """PyYAML's loader of lists, mappings and text, with the limits of `read_yaml`."""

    _count = _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        parser: Any = self  # its types say nothing of this method
        event: yaml.Event = parser.peek_event()
        self._count += 1
        if isinstance(event, yaml.AliasEvent):
            raise _yaml_error(f"the alias *{event.anchor} repeats a value; write the value", event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise _yaml_error(f"a value has the tag {event.tag}; remove the tag", event)
        if self._depth >= MAX_YAML_DEPTH:
            raise _yaml_error(f"values are nested more than {MAX_YAML_DEPTH} deep; use fewer levels", event)
        if self._count > MAX_YAML_VALUES:
            raise _yaml_error(f"there are more than {MAX_YAML_VALUES:,} values; remove some", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error("a key must be text or a number", key)
            if key.value in keys:
                raise _yaml_error(f"the key {quote(key.value)} occurs twice; remove one", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _yaml_error(problem: str, source: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    mark: Any = source.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read_xml(path: Path, root_tag: str, kind: str) -> Element:
    """Return the root element of an XML file, a `root_tag` as files of that kind have it.

    Guards against XML entity expansion ("billion laughs"), where entities blow a small file up to gigabytes, and
    against external entities: both need a document type, and any document type is rejected.
    """

    def reject_document_type(name: str, *_: object) -> None:
        if name.lower() == "html":
            raise ObjectSeekerError(f"{path} is an HTML page, not an annotation. Download the file again.")
        raise ObjectSeekerError(f"{path} declares a document type, which annotations do not need. Remove it.")

    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reject_document_type
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(path), True)
    except ObjectSeekerError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise ObjectSeekerError(f"{path} is not valid XML: {error}. Correct it.") from None
    root = builder.close()
    if root.tag != root_tag:
        raise ObjectSeekerError(
            f"{path} has the root element {quote(root.tag)}, but {kind} files have {root_tag!r}. Correct or remove it."
        )
    return root


def parse_number(text: str, name: str, source: str) -> float:
    """Return the finite number in `text`; `source` and `name` are its place, for the message."""
    problem = f"has {quote(text)} where {name} should be a number"
    try:
        value = float(text.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        raise ObjectSeekerError(f"{source} {problem}") from None
    if not math.isfinite(value):
        raise InvalidAnnotationError(IMPOSSIBLE, source, problem)
    return value


def parse_digits(text: str) -> int | None:
    """Return the number that ASCII digits spell; None for anything else and for too many digits."""
    digits = text.lstrip("0") or text[-1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def path_exists(path: Path) -> bool:
    """Return whether the path exists; a name the system cannot have does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def require_folder(path: Path, message: str) -> Path:
    """Return `path`; raise `message` unless it is a folder."""
    if not path.is_dir():
        raise ObjectSeekerError(message)
    return path


def folder_of(text: str, spec: str, form: str) -> Path:
    """Return the folder that a part of a spec names; `form` is how such specs are written."""
    return require_folder(Path(text).expanduser(), f"{spec!r}: {text!r} is not a folder. Give {form}.")


def images_by_stem(folder: Path, skip_log: SkipLog) -> dict[str, Path]:
    """Return the images in and below `folder`, in order, by their relative path without its suffix."""
    images: dict[str, Path] = {}
    for path in filter(skip_log.check_storable, expand_image_paths(folder)):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in images:
            raise ObjectSeekerError(f"{images[stem]} and {path} would share one annotation file. Remove one.")
        images[stem] = path
    return images
