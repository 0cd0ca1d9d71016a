"""The command that a verb prints as the next step runs as printed, with the same defense."""

import re
import shlex

import pytest
from command import run, write_dataset

from objectseeker import Defense, Halves, Rule

DATA = "coco:truth.json:images"
ATTACK = ("--max-objects", 1, "--steps", 2, "--restarts", 1, "--patch-area", "1%")
POLICY = 'format = 1\n[[require]]\nmetric = "clean_recall"\nat_least = "0 %"\n'


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = write_dataset(tmp_path_factory.mktemp("next"), [(10 + 5 * n, 12, 34, 28) for n in range(4)])
    (folder / "policy.toml").write_text(POLICY)
    rule = Rule(base_threshold=0.4, mask_threshold=0.5)
    Defense(detector="python:mine:detect", rule=rule, masks=Halves(3)).save(folder / "my defense.json")
    run(folder, "observe", DATA, "--defense", "my defense.json", "--out", "seen")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("observe", DATA, "--defense", "my defense.json", "--out", "a run"),
        ("evaluate", "seen", "--defense", "my defense.json"),
        ("attack", "seen", "--defense", "my defense.json", *ATTACK, "--out", "an attack"),
        (
            "gate",
            "seen",
            "--defense",
            "my defense.json",
            "--policy",
            "policy.toml",
            "--audit-bundle",
            "an audit.zip",
            "--allow-undecided",
        ),
    ],
    ids=lambda words: words[0],
)
def test_the_next_step_runs_as_printed(workplace, words):
    done = run(workplace, *words)
    (following,) = re.findall(r"^Next: objectseeker (.*)$", done.stdout, re.M)
    again = run(workplace, *shlex.split(following))
    assert "general default" not in again.stderr  # it has the defense of the step before
