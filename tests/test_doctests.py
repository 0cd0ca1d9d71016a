"""The examples in docstrings run as printed."""

import ast
import doctest
import importlib
import inspect
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


PACKAGES = [
    *("attack", "core.rules", "datasets", "detectorguard", "detectors", "gate", "inference", "interop", "metrics"),
    *("report", "training"),
]


def test_everything_public_shows_a_call():
    """What `objectseeker` exports has an example; its functions say what they take, return and raise."""
    for name in objectseeker.__all__:
        text = inspect.getdoc(getattr(objectseeker, name)) or ""
        assert "Example" in text, name
        if inspect.isfunction(getattr(objectseeker, name)):
            assert all(section in text for section in ("Args:", "Returns:", "Raises:")), name


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_of_packages_are_documented(package):
    module = importlib.import_module(f"objectseeker.{package}")
    for name in module.__all__:
        function, text = getattr(module, name), inspect.getdoc(getattr(module, name)) or ""
        assert text or not callable(function), name
        if not inspect.isfunction(function):
            continue
        assert "Example" in text, name
        assert "Args:" in text or not inspect.signature(function).parameters, name


def test_errors_are_one_tree():
    """ObjectSeekerError catches them all; what a server raises internally is listed here."""
    internal = {"RequestRejectedError", "ClientDisconnectedError"}
    named = inspect.getdoc(importlib.import_module("objectseeker.errors")) or ""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_"):
                bases = [ast.unparse(base) for base in node.bases]
                assert node.name in internal or bases in (["ObjectSeekerError"], ["ValueError"]), node.name
                assert node.name in internal or node.name in named, node.name
