"""Check claims, against runs where given, and write their table into Markdown files.

    python scripts/check_claims.py claims/*.json                       # are they claims at all?
    python scripts/check_claims.py claims/builtin.json --run runs/voc   # measure again; exit code 1: it differs
    python scripts/check_claims.py claims/*.json --write README.md docs/results/claims.md

The table replaces what is between the lines `<!-- claims -->` and `<!-- end of claims -->`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from objectseeker import open_run
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_text
from objectseeker.metrics.claim import Claim, check_claim, claim_rows
from objectseeker.text import to_markdown

BEGIN, END = "<!-- claims -->\n", "<!-- end of claims -->"


def with_table(text: str, claims: list[Claim]) -> str:
    """Put the table of the claims between the two markers of a Markdown file."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ObjectSeekerError(f"a file with the table of claims has the lines {BEGIN.strip()} and {END}. Add them.")
    return f"{before}{begin}{to_markdown(claim_rows(claims)).strip()}\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("claims", nargs="+", type=Path, metavar="CLAIM")
    parser.add_argument("--run", type=Path, help="run to check the one claim against")
    parser.add_argument("--write", nargs="+", type=Path, default=[], metavar="FILE", help="Markdown files with markers")
    options = parser.parse_args()
    try:
        claims = [Claim.load(file) for file in options.claims]
        for file in options.write:
            save_text(file, with_table(file.read_text(encoding="utf-8"), claims))
        if options.run is None:
            print(f"{len(claims)} claims are well formed; none was measured again")
            return 0
        if len(claims) != 1:
            parser.error("--run checks one claim")
        differences = check_claim(claims[0], open_run(options.run))
    except ObjectSeekerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in differences:
        print(f"rejected: {line}")
    if not differences:
        print(f"{claims[0].name} holds: {len(claims[0].metrics)} metrics measured again")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
