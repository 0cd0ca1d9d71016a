"""The page at /: one document that asks for nothing from elsewhere, with a policy that keeps it so.

Whatever an image or its name holds is shown as text, never as markup; the policy forbids any script or style but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from string import Template

from objectseeker.inference.images import ABOUT


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("web", name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a policy calls a script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_PALETTE = resources.files("objectseeker").joinpath("report/web/palette.css").read_text(encoding="utf-8")
_STYLE, _SCRIPT = _PALETTE + _read("front.css"), _read("front.js")

PAGE = Template(_read("front.html")).substitute(style=_STYLE, script=_SCRIPT, about=html.escape(ABOUT))

HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
