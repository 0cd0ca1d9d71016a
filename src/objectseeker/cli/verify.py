"""objectseeker verify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed
from objectseeker.cli._options import Json


@app.command()
def verify(
    evidence: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="Zip file that gate --evidence wrote.")],
    as_json: Json = False,
) -> None:
    """Recompute the verdict of an evidence file from what is in it, without detector or images.

    Exit code 0: the file is whole and gives the verdict that it states, whichever that is. 1: something differs, and
    what. 2: it is no evidence file.

    Example:  objectseeker verify evidence.zip
    """
    from objectseeker.cli._audit import verified
    from objectseeker.cli._release import sha256
    from objectseeker.gate.audit_bundle import TamperedError
    from objectseeker.gate.verdict_text import in_short, table_of

    digest = sha256(evidence)
    try:
        gate = verified(evidence)
    except TamperedError as error:
        if as_json:
            print_json({"verified": False, "sha256": digest, "differences": error.differences})
        else:
            printed.print(f"[bold red]{escape(str(evidence))} is refused:[/] it is not what was written")
            for difference in error.differences:
                printed.print(f"  {escape(difference)}")
        raise typer.Exit(1) from None
    if as_json:
        print_json({"verified": True, "sha256": digest, **gate.to_dict()})
        return
    printed.print(table_of(gate))
    printed.print(f"[bold]verified[/]: recomputed to the last bit. The verdict is [bold]{gate.verdict}[/]: ", end="")
    printed.print(escape(in_short(gate)))
    printed.print(f"sha256 {digest}")
