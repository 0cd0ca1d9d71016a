"""The examples in docstrings run as printed."""

import doctest
import importlib
from pathlib import Path

import pytest

import objectseeker

SOURCE = Path(objectseeker.__file__).parent
MODULES = [
    ".".join(("objectseeker", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for file in sorted(SOURCE.rglob("*.py"))
    if ">>>" in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS, report=True).failed == 0


def test_everything_public_is_documented_and_has_an_example():
    """Functions say what they take and raise; classes and functions show a call."""
    for name in objectseeker.__all__:
        thing = getattr(objectseeker, name)
        text = thing.__doc__ or ""
        assert text.strip(), name
        if callable(thing) and not isinstance(thing, type):
            for section in ("Args:", "Raises:", "Example:"):
                assert section in text, (name, section)
