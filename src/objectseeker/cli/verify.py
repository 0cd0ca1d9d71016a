"""The verb verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, say, stdout_console
from objectseeker.cli._options import Json
from objectseeker.cli.gate import print_verdict


@app.command()
def verify(
    audit_bundle: Annotated[
        Path, typer.Argument(metavar="AUDIT_BUNDLE", help="Zip file that gate --audit-bundle wrote.")
    ],
    as_json: Json = False,
) -> None:
    """Recompute the verdict of an audit bundle from its content, without detector or images.

    Exit code 0: the bundle is intact and gives the verdict that it states, whichever that is. 1: something differs; it
    is named. 2: the file is not an audit bundle.

    Example:  objectseeker verify audit.zip
    """
    from objectseeker.gate.audit_bundle import BundleMismatchError, verify_bundle
    from objectseeker.gate.release import file_sha256

    digest = file_sha256(audit_bundle)
    try:
        result = verify_bundle(audit_bundle)
    except BundleMismatchError as error:
        if as_json:
            print_json({"verified": False, "sha256": digest, "differences": error.differences})
        else:
            stdout_console.print(f"[bold red]{escape(str(audit_bundle))} is rejected:[/] it is not what was written")
            for difference in error.differences:
                stdout_console.print(f"  {escape(difference)}")
        raise typer.Exit(1) from None
    if as_json:
        print_json({"verified": True, "sha256": digest, **result.to_dict()})
        return
    stdout_console.print(
        f"[bold]verified[/]: recomputed, bit-identical. The verdict is [bold]{result.verdict}[/]: ", end=""
    )
    say(result.summarize())
    print_verdict(result)
    say(f"sha256 {digest}: compare it with the number that gate printed")
