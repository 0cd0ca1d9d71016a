"""The program that the commands hang on."""

from __future__ import annotations

from copy import copy
from platform import platform, python_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import objectseeker
from objectseeker.cli._console import be_quiet, be_verbose, log, stdout_console

GLOBAL_OPTIONS = ("quiet", "verbose")  # accepted before the verb and after it
PANELS = ("Input", "Defense", "Threat", "Output", "Advanced")  # of options in help, in this order; others before Output


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
        be_quiet()


def _verbose(is_set: bool) -> None:
    if is_set:
        be_verbose()
        log.info("objectseeker %s, Python %s, %s", objectseeker.__version__, python_version(), platform())


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", expose_value=False, callback=_quiet, help="Print results and errors only."),
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
