"""The command line: parse, call, print. One file per verb; names of shared files begin with _."""

from __future__ import annotations

# Commands are listed in the order in which they register.
# isort: off
from objectseeker.cli import demo, detect, check, observe, evaluate, tune  # noqa: F401
from objectseeker.cli import report, gate, verify, attack, serve, defense  # noqa: F401

# isort: on
from objectseeker.cli._app import app, main

__all__ = ["app", "main"]
