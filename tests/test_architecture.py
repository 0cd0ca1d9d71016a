"""The house: packages import only from those before them, names mean one thing, and the surface is what it says."""

import ast
import inspect
from pathlib import Path

import pytest

import objectseeker

SOURCE = Path(objectseeker.__file__).parent

# Every package may import from those before it, and from itself.
ORDER = (
    "errors",
    "text",
    "core",
    "codec",
    "files",
    "detectors",
    "defense",
    "datasets",
    "runs",
    "metrics",
    "inference",
    "interop",
    "report",
    "attack",
    "gate",
    "serve",
    "detectorguard",
    "training",
    "demo",
    "cli",
)
# What the package offers at its root; everything may not import that, only its version, but the outermost may.
ROOT_USERS = ("cli", "demo")


def modules():
    return [file for file in sorted(SOURCE.rglob("*.py")) if file != SOURCE / "__init__.py"]


def package_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(file: Path):
    """The dotted names below objectseeker that a module imports, wherever in it; what only types need included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("objectseeker.") for name in names if name.startswith("objectseeker."))


def test_the_root_holds_packages_and_four_modules():
    modules = {"errors", "text", "codec", "defense"}
    assert {file.stem for file in SOURCE.glob("*.py")} == {"__init__", *modules}
    folders = {folder.name for folder in SOURCE.iterdir() if folder.is_dir() and folder.name[0] not in "_."}
    assert folders | modules == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_those_before_it(package):
    allowed = ORDER[: ORDER.index(package) + 1]
    against = [
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in modules()
        if package_of(file) == package
        for name in imported(file)
        if name.split(".")[0] not in allowed
        and not (name == "__version__" or (package in ROOT_USERS and name in objectseeker.__all__))
    ]
    assert not against


def test_the_core_needs_numpy_alone():
    outside = {
        alias
        for file in modules()
        if package_of(file) == "core"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for alias in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [name.name for name in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    import sys

    foreign = {name.split(".")[0] for name in outside} - set(sys.stdlib_module_names) - {"objectseeker"}
    assert foreign == {"numpy"}


def test_the_verbs_are_the_files():
    from objectseeker.cli import app

    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    files = {file.stem.replace("_", "-") for file in (SOURCE / "cli").glob("*.py") if not file.stem.startswith("_")}
    assert files == verbs


def test_what_is_public_is_there():
    for name in objectseeker.__all__:
        assert hasattr(objectseeker, name)
    wanted = {
        "Bands",
        "Defense",
        "Detections",
        "Halves",
        "ObjectSeeker",
        "Observation",
        "Pairs",
        "Patch",
        "Rule",
        "load_image",
        "open_dataset",
    }
    assert wanted <= set(objectseeker.__all__)


def test_scores_reach_certification_only_through_a_rule():
    """No public function takes a score in addition to what it certifies: there is no second place to type it."""
    scores = {
        "base_threshold",
        "mask_threshold",
        "evidence_threshold",
        "filter_ioa",
        "edge_factor",
        "cluster_distance",
        "evidence_power",
    }
    rules = (objectseeker.Rule, objectseeker.IouRule)
    for name in objectseeker.__all__:
        thing = getattr(objectseeker, name)
        if thing in rules or not callable(thing):
            continue
        for member in [thing, *(m for _, m in inspect.getmembers(thing, inspect.isfunction))]:
            try:
                parameters = set(inspect.signature(member).parameters)
            except ValueError:
                continue
            # `evaluate` may measure elsewhere on a defense's own curve; its result names the defense of that point.
            point = {"base_threshold"} if thing is objectseeker.evaluate else set()
            assert not parameters & (scores - point), (name, member)
    for gone in ("prune", "certify", "iou_prune", "iou_certify"):
        assert not hasattr(objectseeker, gone)
    import objectseeker.core as core

    for file in sorted(Path(core.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "certif" in node.name:
                given = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                assert not given & scores, (file.name, node.name)
