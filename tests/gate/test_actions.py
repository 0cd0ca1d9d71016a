"""The GitHub Action and the GitLab template: their steps run in a shell, as a runner would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import write_dataset
from junitparser import JUnitXml

from objectseeker import Defense, Halves, Rule

ROOT = Path(__file__).parents[2]
ACTION, TEMPLATE = ROOT / "action.yml", ROOT / "templates" / "gate.yml"
pytestmark = pytest.mark.skipif(not ACTION.exists(), reason="the action is not part of the package")
POLICY = """
format = 1
[[require]]
metric = "clean_recall"
at_least = "{}"
[[require]]
metric = "detector_check"
"""


@pytest.fixture
def release(tmp_path):
    """Images, a defense and policies, in a folder whose name a shell would take apart."""
    folder = tmp_path / "a $(touch hacked) folder"
    folder.mkdir()
    write_dataset(folder, [(20, 20, 30, 20), (30, 10, 40, 40)])
    rule = Rule(base_threshold=0.3, mask_threshold=0.5)
    Defense(detector="python:mine:detect", rule=rule, masks=Halves(2)).save(folder / "defense.json")
    for name, share in (("kind", "0 %"), ("strict", "100 %")):
        (folder / f"{name}.toml").write_text(POLICY.format(share))
    return folder


def run_shell(script, folder, **variables):
    """Run a script as GitHub and GitLab do: bash that stops at the first failure."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": places} | variables,
        capture_output=True,
        text=True,
    )


def act(folder, **given):
    """Run the shell steps of the action; return the last one, and what was written to outputs and summary."""
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert {name for name, known in action["inputs"].items() if known.get("required")} <= given.keys()
    inputs = {name: known.get("default", "") for name, known in action["inputs"].items()} | given
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    done = None
    for step in action["runs"]["steps"]:
        if "run" not in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])  # pinned
            continue
        assert "${{" not in step["run"]  # inputs come as variables
        environment = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs[match[1]], text)
            for name, text in step["env"].items()
        }
        paths = {name: str(file) for name, file in files.items()}
        done = run_shell(step["run"], folder, GITHUB_ACTION_PATH=str(ROOT), **environment, **paths)
    return done, *(file.read_text() for file in files.values())


def test_the_action_releases_and_publishes(release):
    out = "gate $(touch hacked)"  # a name that a shell would run, if it were part of a script
    done, output, summary = act(
        release, policy="kind.toml", data="coco:truth.json:images", defense="defense.json", install="", out=out
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert output == "status=0\n"
    assert summary.startswith("#")
    assert summary == (release / out / "gate.md").read_text()
    assert JUnitXml.fromfile(release / out / "junit.xml").tests > 0
    assert (release / out / "gate.html").is_file()
    assert not (release / "hacked").exists()


def test_the_action_stops_a_release_and_still_publishes(release):
    (release / "truth.json").write_text(
        (release / "truth.json").read_text().replace("[20, 20, 30, 20]", "[70, 50, 9, 9]")
    )
    done, output, summary = act(
        release, policy="strict.toml", data="coco:truth.json:images", defense="defense.json", install=""
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert output == "status=1\n"
    assert summary.startswith("## Release gate: undecided")  # two images are few: that does not pass
    assert (release / "gate" / "junit.xml").is_file()


def test_bad_input_has_a_status_and_no_summary(release):
    done, output, summary = act(release, policy="none.toml", data="coco:truth.json:images", defense="no", install="")
    assert (done.returncode, output, summary) == (2, "status=2\n", "")


def test_the_action_installs_its_own_source_or_what_it_is_told(release):
    (install, *_) = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    echo = 'python() { echo python "$@"; }\n'
    for given, expected in (
        ("source", f"python -m pip install {ROOT}"),
        ("objectseeker[torch]", "objectseeker[torch]"),
        ("", ""),
    ):
        done = run_shell(echo + install["run"], release, INSTALL=given, GITHUB_ACTION_PATH=str(ROOT))
        assert done.stdout.strip().endswith(expected)
        assert (given == "") == (done.stdout == "")


def test_the_gitlab_job_gates_and_reports(release):
    spec, job = yaml.safe_load_all(TEMPLATE.read_text(encoding="utf-8"))
    given = {"policy": "kind.toml", "data": "coco:truth.json:images", "defense": "defense.json"}
    assert {name for name, known in spec["spec"]["inputs"].items() if "default" not in known} == given.keys()
    (job,) = job.values()
    variables = {
        name: re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda m: given.get(m[1], ""), text)
        for name, text in job["variables"].items()
    }
    install, *steps = job["script"]
    assert install.startswith("python -m pip install")
    done = run_shell("\n".join(steps), release, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]:
        assert (release / path).is_file()
    assert not (release / "hacked").exists()
