"""Write docs/reference/cli.md: every command with its options and examples, from the text of `--help`.

    python scripts/write_cli_reference.py

Run it after changing a command; a test compares the page with what this script returns.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from objectseeker.cli._app import commands, program

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
INTRODUCTION = """# Command line

Generated from `--help` (`python scripts/write_cli_reference.py`). `--quiet` prints results and errors only, `--verbose`
adds times; both may be placed before or after the verb. Exit code 0 is success, 1 a result to act on, 2 bad input (a
one-line message), 70 an internal error, 130 Ctrl-C. `objectseeker --install-completion` has your shell complete verbs
and options.
"""


def code_options(text: str) -> str:
    """Return text with its options in backticks, so that a page shows two hyphens."""
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", text)


def cell(text: str) -> str:
    """Return text as the cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def names_of(parameter: Any) -> str:
    """Return how a parameter is written: its options and its value."""
    if parameter.param_type_name == "argument":
        return f"`{cell(parameter.metavar or parameter.name.upper())}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    kind = getattr(parameter.type_descriptor, "annotation", None)
    value = parameter.metavar or ("" if parameter.is_flag else getattr(kind, "__name__", "value").upper())
    value = {"INT": "N", "FLOAT": "X", "STR": "TEXT", "LIST": "VALUE"}.get(value, value)
    return f"{names} `{cell(value)}`" if value else names


def meaning_of(parameter: Any) -> str:
    """Return the help of a parameter, with its default."""
    text = code_options(cell(inspect.cleandoc(parameter.help or "")))
    default = parameter.default
    shown = bool(parameter.show_default) and default not in (None, False, True, (), []) and not callable(default)
    if shown and "efault" not in text and f"[{default}]" not in text:
        text += f" Default: {default}."
    return text + (" Required." if parameter.required else "")


def command_section(name: str, command: Any) -> str:
    """Return the section of a command."""
    text = code_options(re.sub(r"\n{3,}", "\n\n", inspect.cleandoc(command.help or "")).strip())
    shown = [parameter for parameter in command.params if not parameter.hidden and "--help" not in parameter.opts]
    rows = "".join(f"| {names_of(parameter)} | {meaning_of(parameter)} |\n" for parameter in shown)
    table = f"\n| argument or option | meaning |\n|---|---|\n{rows}" if rows else ""
    examples = "".join(f"{line.strip()}\n" for line in re.findall(r"Example: (.*)", command.epilog or ""))
    block = f"\n```\n{examples}```\n" if examples else ""
    return f"## {name}\n\n{text}\n{table}{block}"


def cli_reference() -> str:
    """Return the page."""
    sections = [command_section(name, command) for name, command in commands(program()).items()]
    return "\n".join([INTRODUCTION, *sections])


def main() -> None:
    PAGE.write_text(cli_reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
