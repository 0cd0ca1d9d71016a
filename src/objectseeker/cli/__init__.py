"""The command line: reads options, calls the package, prints. One file for every verb; what they share in _files."""

from __future__ import annotations

# Commands are listed in the order in which they register.
# isort: off
from objectseeker.cli import demo, detect, check_detector, observe, evaluate, certify, tune  # noqa: F401
from objectseeker.cli import compare, figures, report, attack, bench  # noqa: F401

# isort: on
from objectseeker.cli._app import app
from objectseeker.cli._console import fail
from objectseeker.errors import ObjectSeekerError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; what the user can mend becomes one sentence and exit code 2."""
    try:
        app()
    except ObjectSeekerError as error:
        fail(str(error))
    except OSError as error:  # a folder that is a file, a full disk, no permission
        fail(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error))
