"""Metadata of releases: README as it reads on a package index, where relative links lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def absolute_links(text: str, repository: str, version: str) -> str:
    """Point relative links of Markdown at the files of a release; of images, at their content."""

    def absolute(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        return f"{image}{label}({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return LINK.sub(absolute, text)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]  # Any where hatchling is not installed
    """Set the readme, with links below the URL `Source` of pyproject.toml, at the tag of this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
