"""README's Python runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

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
