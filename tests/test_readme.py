"""README's Python runs as it stands."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from objectseeker import Defense
from objectseeker.cli import app

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_runs_as_it_stands(tmp_path):
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    checks = "\nassert certificates.certified.shape == (3, len(detections)) and certificates.certified.any()\n"
    done = subprocess.run([sys.executable, "-c", code + checks], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Defense.load(tmp_path / "defense.json").detector == "builtin"


def test_every_command_of_the_table_is_known():
    """Verbs and options of README's commands exist: each is asked for its help."""
    commands = re.findall(r"`objectseeker ([a-z-]+)", README.read_text())
    for command in set(commands):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command


SCRIPTS = README.parent / "scripts"


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the scripts are not part of the package")
def test_every_script_is_listed_with_its_first_sentence():
    listed = dict(re.findall(r"^\| `(\w+)\.py` \| (.*) \|$", (SCRIPTS / "README.md").read_text(), re.M))
    scripts = {script.stem: ast.get_docstring(ast.parse(script.read_text())) for script in SCRIPTS.glob("*.py")}
    assert {name: text.split("\n")[0] for name, text in scripts.items()} == listed
