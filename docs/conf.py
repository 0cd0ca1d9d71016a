"""The documentation as a site: `pip install '.[docs]' && sphinx-build -W -n docs site`."""

from pathlib import Path
from typing import Any

import objectseeker

project = "objectseeker"
author = "The objectseeker authors"
version = release = objectseeker.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]  # the last reads Args: and Returns:
napoleon_use_ivar = True  # Attributes: of a dataclass, which autodoc lists, too
html_theme = "furo"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_title = f"objectseeker {version}"
highlight_language = "none"  # of blocks that name none: mostly commands
myst_heading_anchors = 4  # links such as how-it-works.md#masks

# The reference is what the docstrings say, nothing more: plain text with `names` in backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"npt.ArrayLike": "ArrayLike"} | {n: n for n in ("Floats", "Ints", "Bools", "Image", "Detector")}
autodoc_default_options = {"members": True, "undoc-members": True, "imported-members": True}
# Types of other packages and of internals are named, not linked.
nitpick_ignore_regex = [("py:class", ".*"), ("py:exc", ".*")]


def keep_indented(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """An indented block of a docstring is shown as it is written."""
    for number in reversed(range(1, len(lines) - 1)):
        before, blank, after = lines[number - 1 : number + 2]
        if not blank.strip() and after.startswith("    ") and before and not before.startswith(" "):
            lines[number + 1 : number + 1] = ["::", ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", keep_indented)
