"""The words of the field: no banned phrase anywhere, and every concept is found by a search for its name."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The name of a concept, and where in the package it is implemented.
SEARCHES = {
    "false positive": "metrics",
    "FPPI": "metrics",
    "ground truth": "datasets",
    "confidence interval": "metrics",
    "bootstrap": "metrics",
    "hyperparameter": "metrics",
    "class-agnostic": "core",
    "label map": "core",
    "out of memory": ".",
    "atomic": "files",
    "threat model": "core",
    "adaptive": "attack",
    "white-box": "attack",
    "black-box": "attack",
    "fail closed": "gate",
    "path traversal": "datasets",
    "CSV injection": ".",
    "DNS rebinding": "serve",
    "slowloris": "serve",
    "denial of service": "serve",
    "XML entity expansion": "datasets",
    "decompression bomb": "files",
}
DOCS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]


def words(files):
    return " ".join(" ".join(file.read_text(encoding="utf-8").replace("#", " ").split()) for file in files).lower()


def test_no_banned_phrase_is_used():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "check_language.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_banned_phrases_are_found_across_lines_and_errors_without_a_remedy():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from check_language import find_errors, find_phrases, find_summaries
    finally:
        sys.path.pop(0)
    assert list(find_phrases("a run\nthat is left\n    # out of it")) == [
        (2, "left # out", "skip (data); omit (options)")
    ]
    assert [line for line, *_ in find_summaries('def f():\n    """Which it is."""\n')] == [2]
    assert not list(find_phrases("Return the false positives per image."))
    assert [line for line, *_ in find_errors('raise ObjectSeekerError(f"there is no {file}")')] == [1]
    assert not list(find_errors('raise ObjectSeekerError(f"there is no {file}: got {name}. Choose another.")'))


@pytest.mark.parametrize("phrase", SEARCHES)
def test_a_search_finds_the_code_and_the_documentation(phrase: str):
    package = ROOT / "src" / "objectseeker" / SEARCHES[phrase]
    sources = package.glob("*.py") if SEARCHES[phrase] == "." else package.rglob("*.py")
    assert phrase.lower() in words(sources), f"{phrase!r} is not in {package}"
    assert phrase.lower() in words(DOCS), f"{phrase!r} is not in the documentation"
