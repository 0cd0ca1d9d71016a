"""Check claims, against runs where given.

    python scripts/check_claims.py claims/*.json                       # are they claims at all?
    python scripts/check_claims.py claims/builtin.json --run runs/voc   # measure again; exit code 1: it differs

`scripts/write_tables.py` writes their table into the documentation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from objectseeker import open_run
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.claim import Claim, check_claim


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("claims", nargs="+", type=Path, metavar="CLAIM")
    parser.add_argument("--run", type=Path, help="run to check the one claim against")
    options = parser.parse_args()
    try:
        claims = [Claim.load(file) for file in options.claims]
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
