"""The program that the commands hang on."""

from __future__ import annotations

from typing import Annotated

import typer

import objectseeker
from objectseeker.cli._console import printed

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Object detection that provably survives adversarial patches.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure speed against the naive way, in the same run.")
app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        printed.print(f"objectseeker {objectseeker.__version__}")
        raise typer.Exit
