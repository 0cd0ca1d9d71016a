"""The documentation: its Python runs as it stands, its links lead somewhere, its reference is whole, it builds."""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from command import run

import objectseeker

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
pytestmark = pytest.mark.skipif(not PAGES, reason="the documentation is not part of the package")


@pytest.fixture
def own_detector(tmp_path, monkeypatch):
    """The folder that docs/start/quickstart.md uses."""
    graphs = pytest.importorskip("detector_graphs")
    graphs.build("decoded", tmp_path / "model.onnx", box=(8, 8, 40, 40), probe=(20, 20))
    image = np.full((64, 64, 3), 60, np.uint8)
    image[10:40, 10:40] = 230
    PIL.Image.fromarray(image).save(tmp_path / "street.jpg", quality=95)
    monkeypatch.chdir(tmp_path)
    return (DOCS / "start" / "quickstart.md").read_text(encoding="utf-8")


def test_your_detector_in_ten_lines(own_detector, capsys):
    names: dict = {}
    for needs, block in re.findall(r"<!-- example(?:: (\w+))? -->\n```python\n(.*?)^```$", own_detector, re.S | re.M):
        if not needs or find_spec(needs) is not None:
            exec(compile(block, "quickstart.md", "exec"), names)
    assert own_detector.count("```python") == own_detector.count("<!-- example")
    said = capsys.readouterr().out
    assert re.search(r"^(car|van|tram) 0\.\d\d \[", said, re.M)
    assert "False" not in said  # the checks of the callable
    assert names["certificates"].certified.shape == (1, len(names["defended"].detections))
    assert len(names["boxes"]) == 1


def test_its_commands_work(own_detector, tmp_path):
    """Those on the ONNX file; the callable is saved as the page says."""
    (callable_block,) = re.findall(r"```python\n([^`]*?def my_model.*?)^```$", own_detector, re.S | re.M)
    (tmp_path / "mine.py").write_text(callable_block.partition("seeker =")[0])
    (tmp_path / "images").mkdir()
    street = np.asarray(PIL.Image.open(tmp_path / "street.jpg"))
    for number in range(48):
        PIL.Image.fromarray(np.roll(street, number % 8, axis=1)).save(tmp_path / "images" / f"{number}.png")
    commands = re.findall(r"^objectseeker (.*)$", own_detector, re.M)
    assert [command.split()[0] for command in commands] == ["check", "tune", "detect", "check"]
    checked, tuned, detected, own = (command.split() for command in commands)
    done = run(tmp_path, *checked, code=1)  # the box of this little graph does not follow the image
    assert done.stdout.count("FAIL") == done.stdout.count("FAIL  boxes are x1, y1, x2, y2") == 1
    run(tmp_path, *tuned)
    run(tmp_path, *detected)
    assert "All checks passed." in run(tmp_path, *own).stdout
    assert (tmp_path / "found" / "detections.json").is_file()


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    notebook = json.loads((DOCS / "start" / "quickstart.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None
            exec(compile("".join(cell["source"]), f"quickstart.ipynb, cell {number}", "exec"), names)
    assert names["certificates"].certified.any()
    assert names["annotated"].width >= names["image"].shape[1]
    assert capsys.readouterr().out.endswith("True\n")


def anchors(page):
    """As GitHub and the site make them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            other = (page.parent / file).resolve() if file else page
            assert other.is_file(), f"{page.name} links to {target}"
            assert other.is_relative_to(DOCS), f"{target} of {page.name} is not part of the site"
            assert not anchor or anchor in anchors(other), f"{page.name} links to {target}"


def test_every_page_is_in_the_contents():
    listed = re.findall(r"^([a-z]+/[a-z-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.M)
    assert sorted([*listed, "index"]) == sorted(str(page.relative_to(DOCS).with_suffix("")) for page in PAGES)


def test_the_command_line_reference_is_what_help_says():
    sys.path.insert(0, str(DOCS.parent / "scripts"))
    try:
        from write_cli_reference import cli_reference
    finally:
        sys.path.pop(0)
    written = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == cli_reference(), "run python scripts/write_cli_reference.py"


@pytest.fixture
def tables(monkeypatch):
    """scripts/write_tables.py as a module."""
    monkeypatch.syspath_prepend(str(DOCS.parent / "scripts"))
    return importlib.import_module("write_tables")


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.name)
def test_tables_are_those_of_their_data_files(tables, page):
    text = page.read_text(encoding="utf-8")
    assert text == tables.with_tables(page, text), "run python scripts/write_tables.py"
    assert text.count("<!-- table:") == len(tables.MARKED.findall(text))
    assert not tables.unknown_numbers(page, text), "numbers that are in no data file of the page"
    if page.parent.name == "results":
        assert not re.findall(r"^ *\|---", tables.MARKED.sub("", text), re.M), "a table without a data file"


def test_every_data_file_is_used(tables):
    pages = [page.read_text(encoding="utf-8") for page in tables.pages()]
    used = {name for text in pages for name in tables.names_in(text)}
    assert used == {file.stem for file in tables.DATA.iterdir()}


def test_a_table_that_differs_from_its_data_is_found(tables, tmp_path, monkeypatch):
    data = {"command": "c", "date": "2026-11-19", "hardware": "h", "software": "s", "columns": ["a", "b"]}
    data["rows"] = [["x", 1.50], ["y", [2.5, 1.25, 3]], ["z", None]]
    (tmp_path / "t.json").write_text(json.dumps(data))
    monkeypatch.setattr(tables, "DATA", tmp_path)
    page = tmp_path / "page.md"
    text = tables.with_tables(page, "<!-- table: t\ncolumns: b | a\nrows: y | x\n-->\n<!-- end -->\n")
    assert "| b | a |\n|---|---|\n| 2.5 (1.25 to 3) | y |\n| 1.5 | x |\n" in text
    assert tables.with_tables(page, text) == text
    assert tables.with_tables(page, text.replace("1.5", "1.6")) == text
    assert tables.unknown_numbers(page, text + "From 1.25 to 3 %.\n") == []
    assert tables.unknown_numbers(page, text + "From 1.25 to 4 %, or 7.5/2.5 in `9.9`.\n") == ["4", "7.5"]
    with pytest.raises(tables.TableError, match="no column"):
        tables.with_tables(page, text.replace("b | a", "b | c"))
    with pytest.raises(tables.TableError, match="no data file"):
        tables.with_tables(page, "<!-- table: u -->\n<!-- end -->\n")


def public():
    """Every public name: what packages list in `__all__`."""
    found = [objectseeker]
    for module in pkgutil.walk_packages(objectseeker.__path__, "objectseeker."):
        if module.name.endswith("detectors.gpu") and find_spec("torch") is None:
            continue  # it has no public names, and needs torch
        if (module.ispkg or module.name.count(".") == 1) and "cli" not in module.name:
            found.append(importlib.import_module(module.name))
    return [(module, name) for module in found for name in getattr(module, "__all__", ())]


def test_public_names_are_described_and_in_the_reference():
    reference = set(
        re.findall(r"automodule:: (\S+)", (DOCS / "reference" / "python-api.md").read_text(encoding="utf-8"))
    )
    assert {module.__name__ for module, _ in public()} == reference
    for module, name in public():
        thing = getattr(module, name)
        if callable(thing):
            text = (thing.__doc__ or "").strip()
            assert text, f"{module.__name__}.{name} has no docstring"
            assert not text.startswith(f"{name}("), f"{module.__name__}.{name} has no docstring but a dataclass's own"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for needed in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "--keep-going", "-b", "dummy", DOCS, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
