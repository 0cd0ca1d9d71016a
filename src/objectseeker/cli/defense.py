"""The commands `objectseeker defense new`, `show` and `set`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, print_next, say, stdout_console
from objectseeker.cli._options import (
    MEANINGS,
    OUTPUT,
    Json,
    Settings,
    change_settings,
    complete_defense,
    complete_setting,
    default_defense,
    option,
    setting_values,
)
from objectseeker.defense import BUILTIN_DEFENSES

MAX_SHOWN = 44  # characters of a value; --json shows all

defense_app = typer.Typer(no_args_is_help=True, help="Write, show and change defense files.")
app.add_typer(defense_app, name="defense")

DefenseArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|NAME",
        help="Defense file, or builtin, builtin-fast, builtin-video.",
        autocompletion=complete_defense,
    ),
]


@defense_app.command()
def new(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC|NAME", help="Detector, such as onnx:FILE, or a packaged defense.")
    ],
    settings: Settings = None,
    out: Annotated[Path, option(OUTPUT, "FILE", "File to write; must not exist.")] = Path("defense.json"),
    as_json: Json = False,
) -> None:
    """Write the default defense of a detector to a file.

    Example:  objectseeker defense new onnx:model.onnx --set masks=bands:1% --out defense.json
    Example:  objectseeker defense new builtin --set rule=paper --set alpha=0.7
    """
    if out.exists():
        raise ObjectSeekerError(f"--out must name a new file: got {out}. Change it with objectseeker defense set.")
    if spec in BUILTIN_DEFENSES:
        defense = change_settings(BUILTIN_DEFENSES[spec], settings or ())
    else:
        defense = default_defense(spec, settings or ())
    _save(defense, out, as_json=as_json)


@defense_app.command()
def show(file: DefenseArgument, as_json: Json = False) -> None:
    """Show every setting of a defense, with its meaning.

    The settings are the keys of --set.

    Example:  objectseeker defense show builtin-fast
    Example:  objectseeker defense show tuned/defense.json --json
    """
    _show(Defense.load(file), as_json=as_json)
    if not as_json:
        print_next(f"objectseeker check --defense {shlex.quote(str(file))}")


@defense_app.command(name="set")
def set_values(
    file: DefenseArgument,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Settings, changed in this order; none unsets one.",
            autocompletion=complete_setting,
        ),
    ],
    out: Annotated[Path | None, option(OUTPUT, "FILE", "File to write. Default: the same file.")] = None,
    as_json: Json = False,
) -> None:
    """Change settings of a defense file.

    Example:  objectseeker defense set defense.json mask_threshold=0.7
    Example:  objectseeker defense set builtin-fast batch_size=4 --out mine.json
    """
    changed = change_settings(Defense.load(file), settings)
    if out is None and not file.is_file():
        raise ObjectSeekerError(f"{file} is a packaged defense, not a file: name one with --out")
    _save(changed, out or file, as_json=as_json)


def _save(defense: Defense, file: Path, *, as_json: bool) -> None:
    defense.save(file)
    _show(defense, as_json=as_json)
    if not as_json:
        say(f"Written to {file}")
        print_next(f"objectseeker check --defense {shlex.quote(str(file))}")


def _show(defense: Defense, *, as_json: bool) -> None:
    values = setting_values(defense)
    if as_json:
        print_json(defense.to_dict() | {"sha256": defense.sha256})
        return
    lines = {key: _shown(value) for key, value in values.items()}
    width = max(map(len, lines.values()))
    for key, value in lines.items():
        stdout_console.print(f"[bold]{key:<18}[/] {escape(value.ljust(width))}  [dim]{escape(MEANINGS[key])}[/]")
    say(f"fingerprint        {defense.fingerprint or 'none: any detector with this SPEC'}")
    say(f"sha256             {defense.sha256}")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
