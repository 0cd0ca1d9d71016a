"""The XML of a VOC or CVAT annotation, read without what can harm."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from objectseeker.datasets.reading import read_bytes
from objectseeker.datasets.shown import shown
from objectseeker.errors import ObjectSeekerError

ROOT = "annotation"


def parse(file: Path, root_tag: str = ROOT, kind: str = "VOC") -> Element:
    """The file's root element, a `root_tag` as files of that kind have it.

    A document type is refused: entities can blow a small file up to gigabytes.
    """

    def refuse(name: str, *_: object) -> None:
        if name.lower() == "html":
            raise ObjectSeekerError(f"{file} is an HTML page, not an annotation; fetch the file again")
        raise ObjectSeekerError(f"{file} declares a document type, which annotations do not need; remove it")

    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(file), True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, ObjectSeekerError):
            raise
        raise ObjectSeekerError(f"{file} is not valid XML: {error}") from None
    root = builder.close()
    if root.tag != root_tag:
        raise ObjectSeekerError(
            f"{file} holds {shown(root.tag)} where a {kind} file holds {root_tag!r}; correct or remove it"
        )
    return root
