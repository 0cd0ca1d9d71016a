"""Exit codes: every failure becomes a one-line message and an exit code, never a traceback.

2: an error that the user can mend. 70: an internal error. 130: Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from objectseeker.cli._app import Interrupted, program
from objectseeker.cli._console import ConsoleLogHandler, errors, escape, fail, log, stderr_console
from objectseeker.cli._settings import join_words_of_bash
from objectseeker.errors import ObjectSeekerError, is_out_of_memory

INTERNAL_ERROR, INTERRUPTED = 70, 130
NO_MEMORY = "there is not enough memory: ask for less at once (a smaller --batch-size, fewer --processes or --workers)"
SHOW_CURSOR = b"\x1b[?25h"


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _first_interrupt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a letter gets its number, not an exception
            stream.reconfigure(errors="backslashreplace")
    if not log.handlers:
        log.addHandler(ConsoleLogHandler())
    join_words_of_bash()
    try:
        try:
            program()()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk or a closed pipe is still answered
    except Interrupted as pressed:
        errors.print(escape(f"Stopped by Ctrl-C. {str(pressed) or 'Files that were finished are kept.'}"))
        _exit_now(INTERRUPTED)
    except BrokenPipeError:  # the reader of the output has closed it
        _exit_now(1)
    except ObjectSeekerError as error:
        fail(str(error))
    except OSError as error:  # a folder that is a file, a full disk, no permission
        errors.print(f"[bold red]error:[/] {escape(_describe_os_error(error))}")
        _exit_now(2)
    except MemoryError:
        fail(NO_MEMORY)
    except Exception as error:
        _fail_internal(error)


def _first_interrupt(signum: int, frame: Any) -> NoReturn:
    """Shut down gracefully at Ctrl-C; at a second Ctrl-C at once."""
    signal.signal(signal.SIGINT, _second_interrupt)
    raise KeyboardInterrupt


def _second_interrupt(signum: int, frame: Any) -> NoReturn:
    cursor = SHOW_CURSOR if stderr_console.is_terminal else b""  # a progress bar hides it
    os.write(2, cursor + b"Stopped at once.\n")
    os._exit(INTERRUPTED)


def _exit_now(code: int) -> NoReturn:
    """Exit without a second error about closed output: Python would flush it again."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += ", make room or write elsewhere"
    return f"cannot use {error.filename}: {reason}" if error.filename else f"cannot read or write: {reason}"


def _fail_internal(error: Exception) -> NoReturn:
    if is_out_of_memory(error):
        fail(NO_MEMORY)
    for line in traceback.format_exc().splitlines():
        log.debug("%s", line)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    fail(
        f"this should not have happened, please report it with what --verbose prints: {type(error).__name__} in "
        f"{where}: {error}",
        INTERNAL_ERROR,
    )
