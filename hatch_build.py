"""Metadata of releases: README as it reads on a package index, where relative links lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\((?![a-z]+:|#)([^)\s]+)\)"  # what follows the label of a link


def absolute_links(text: str, repository: str, version: str) -> str:
    """Point relative links of Markdown at the files of a release; of images, at their content."""
    images = re.sub(rf"(!\[[^\]]*\]){RELATIVE}", rf"\1({repository}/raw/v{version}/\2)", text)
    return re.sub(rf"\]{RELATIVE}", rf"]({repository}/blob/v{version}/\1)", images)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]  # Any where hatchling is not installed
    """Set the readme, with links below the URL `Source` of pyproject.toml, at the tag of this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
