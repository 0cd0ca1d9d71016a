"""README's Python runs as it stands."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from objectseeker import Defense
from objectseeker.cli._app import commands, program

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_runs_as_it_stands(tmp_path):
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    checks = "\nassert certificates.certified.shape == (3, len(detections)) and certificates.certified.any()\n"
    done = subprocess.run([sys.executable, "-c", code + checks], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Defense.load(tmp_path / "defense.json").detector == "builtin"


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
