"""The program that the commands hang on, and its exit codes.

Every failure becomes a one-line message and an exit code, never a traceback. 2: an error that the user can mend.
70: an internal error. 130: Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import traceback
from copy import copy
from pathlib import Path
from platform import platform, python_version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import objectseeker
from objectseeker.cli._console import ConsoleLogHandler, errors, escape, fail, log, stderr_console, stdout_console
from objectseeker.cli._options import join_words_of_bash
from objectseeker.errors import ObjectSeekerError, is_out_of_memory

GLOBAL_OPTIONS = ("quiet", "verbose")  # accepted before the verb and after it
PANELS = ("Input", "Defense", "Threat", "Output", "Advanced")  # of options in help, in this order; others before Output
INTERNAL_ERROR, INTERRUPTED = 70, 130
NO_MEMORY = "there is not enough memory: ask for less at once (a smaller --batch-size, fewer --processes or --workers)"
SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(BaseException):
    """Ctrl-C, with a sentence on what is kept. Typer versions handle a KeyboardInterrupt differently."""


class CommandGroup(TyperGroup):
    """All verbs, and how Ctrl-C leaves them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Object detection that provably survives adversarial patches.",
)


def _quiet(is_set: bool) -> None:
    if is_set:
        stderr_console.quiet = True


def _verbose(is_set: bool) -> None:
    if is_set:
        log.setLevel(logging.DEBUG)
        log.info("objectseeker %s, Python %s, %s", objectseeker.__version__, python_version(), platform())


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", expose_value=False, callback=_quiet, help="Print results and errors only.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", expose_value=False, callback=_verbose, help="Print what is done, with times."),
    ] = False,
) -> None:
    if version:
        stdout_console.print(f"objectseeker {objectseeker.__version__}")
        raise typer.Exit


def program() -> Any:
    """Return the command line, ready to be called.

    In the help of every verb options are in panels, those of all verbs are last, and examples follow the options.
    """
    root: Any = typer.main.get_command(app)
    shared = [copy(option) for option in root.params if option.name in GLOBAL_OPTIONS]
    for option in shared:
        option.hidden = True  # the help of the program shows them
    context = root.context_class(root, **root.context_settings)
    for command in (root, *commands(root).values()):
        command.params += [] if command is root else shared
        description, example, examples = (command.help or "").partition("Example:")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in description.split("\n\n"))
        command.epilog = "\n".join(f"Example:{line.rstrip()}" for line in examples.split("Example:") if example)
        for option in command.get_params(command.context_class(command, parent=context)):
            if getattr(option, "is_flag", False):
                option.metavar = ""
            if command is not root and option.param_type_name == "option":
                option.rich_help_panel = "Advanced" if option.name == "help" else option.rich_help_panel or "Input"
        command.params.sort(key=_panel_rank)
    return root


def _panel_rank(option: Any) -> int:
    panel = getattr(option, "rich_help_panel", None)
    return PANELS.index(panel) if panel in PANELS else PANELS.index("Output") - 1


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return all commands below a group by their words; a verb with subcommands is followed by them."""
    listed = {}
    for name, command in group.commands.items():
        listed[f"{prefix}{name}"] = command
        if hasattr(command, "commands"):
            listed |= commands(command, f"{prefix}{name} ")
    return listed


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
