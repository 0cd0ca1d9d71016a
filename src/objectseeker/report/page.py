"""A self-contained page: pictures inside, light and dark, readable on a phone."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import PIL.Image

from objectseeker.jobs import save_text


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One photograph of the report with the rows of its table."""

    title: str
    image: PIL.Image.Image
    rows: Sequence[Mapping[str, Any]]


def write_page(
    path: Path, *, title: str, summary: Mapping[str, str], columns: Sequence[str], pictures: Sequence[Picture]
) -> None:
    """Write the report; `columns` are the keys of the rows to show, in order."""
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    text = template.substitute(
        title=html.escape(title),
        summary="".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in summary.items()),
        pictures="\n".join(_section(picture, columns) for picture in pictures),
    )
    save_text(path, text)


def _section(picture: Picture, columns: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(_cell(row[column]) for column in columns) + "</tr>" for row in picture.rows)
    return (
        f"<section><h2>{html.escape(picture.title)}</h2>"
        f'<img src="data:image/jpeg;base64,{_encode(picture.image)}" alt="{html.escape(picture.title)}, annotated" '
        f'width="{picture.image.width}" height="{picture.image.height}" loading="lazy">'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return '<td class="yes">yes</td>' if value else '<td class="no">no</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _encode(image: PIL.Image.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=85)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
