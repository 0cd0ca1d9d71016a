"""README's Python runs as it stands."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from objectseeker.cli._app import commands, program

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_prints_what_the_page_shows():
    """Names and lines are equal; numbers may move by a hundredth or two pixels with another processor's arithmetic."""
    page = README.read_text(encoding="utf-8")
    ((code, shown),) = re.findall(r"<!-- example -->\n```python\n(.*?)```\n\n```\n(.*?)```", page, re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [re.sub(r"[\d.]+", "#", line) for line in printed] == [
        re.sub(r"[\d.]+", "#", line) for line in shown.splitlines()
    ]
    for ours, theirs in zip(printed, shown.splitlines(), strict=True):
        (score, side), (score_shown, side_shown) = (map(float, re.findall(r"[\d.]+", line)) for line in (ours, theirs))
        assert abs(score - score_shown) <= 0.011
        assert abs(side - side_shown) <= 2


def test_the_page_is_short_and_its_links_are_few():
    page = README.read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 110
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", page)
    assert len(links) <= 12
    for target in [*links, *re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page)]:
        assert (README.parent / target).is_file(), target


ROOT = README.parent
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "examples").rglob("*.sh")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_printed_command_has_a_known_verb_and_known_options(page):
    verbs = commands(program())
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for words, rest in re.findall(r"(?:^|`|\$ )objectseeker ((?:defense )?[a-z]+)\b([^\n`|#]*)", text, re.M):
        assert words in verbs, words
        known = {option for one in verbs[words].params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
        unknown = set(re.findall(r"(?<![\w-])--[a-z-]+", rest)) - known
        assert not unknown, f"{page.name}: objectseeker {words}{rest}"


SCRIPTS = README.parent / "scripts"


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the scripts are not part of the package")
def test_every_script_is_listed_with_its_first_sentence():
    listed = dict(re.findall(r"^\| `(\w+)\.py` \| (.*) \|$", (SCRIPTS / "README.md").read_text(), re.M))
    scripts = {script.stem: ast.get_docstring(ast.parse(script.read_text())) for script in SCRIPTS.glob("*.py")}
    assert {name: text.split("\n")[0] for name, text in scripts.items()} == listed
