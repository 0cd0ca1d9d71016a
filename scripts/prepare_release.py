"""Write the address of the repository and the date of a release into the files that state them.

    python scripts/prepare_release.py https://github.com/acme/objectseeker
    python scripts/prepare_release.py https://github.com/acme/objectseeker --date 2026-12-01

Until then the files name the placeholder OWNER, and the package is marked "Private :: Do Not Upload", which a package
index rejects. Fails, and changes nothing, if a file is not as this script expects it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESS = r"https://[\w.-]+(?::\d+)?(?:/[\w.-]+)*/(?P<owner>[\w.-]+)/objectseeker"
PLACEHOLDER = "https://github.com/OWNER/objectseeker"
COMMENT = "# scripts/prepare_release.py writes the address of the public repository: OWNER is a placeholder.\n"
PRIVATE = '    "Private :: Do Not Upload",  # scripts/prepare_release.py removes this line\n'


def edits(address: str, date: str) -> dict[str, list[tuple[str, str]]]:
    """List what is replaced by what in each file."""
    match = re.fullmatch(ADDRESS, address)
    if match is None:
        sys.exit(f"the address must be https://HOST/OWNER/objectseeker: got {address}. Give that of the repository.")
    return {
        "pyproject.toml": [(PLACEHOLDER, address), (PRIVATE, ""), (COMMENT, "")],
        "CITATION.cff": [("type: software\n", f"type: software\ndate-released: {date}\nrepository-code: {address}\n")],
        "CHANGELOG.md": [(" (unreleased)\n", f" ({date})\n")],
        "docs/guides/integrations.md": [
            ("uses: OWNER/objectseeker@", f"uses: {match['owner']}/objectseeker@"),
            (f"{PLACEHOLDER}/raw/", f"{address}/raw/"),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="URL", help="address of the public repository")
    parser.add_argument(
        "--date", type=datetime.date.fromisoformat, default=datetime.date.today(), help="default: today"
    )
    options = parser.parse_args()
    written = {}
    for name, changes in edits(options.address.rstrip("/"), options.date.isoformat()).items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                sys.exit(f"{name} must contain {old.strip()!r}. Is the release prepared already?")
            text = text.replace(old, new)
        written[name] = text
    for name, text in written.items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
