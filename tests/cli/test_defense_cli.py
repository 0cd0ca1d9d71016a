"""objectseeker defense new, show and set; shell completion of verbs, settings and names."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from command import run

from objectseeker import Defense, Rule
from objectseeker.cli._app import GLOBAL_OPTIONS, commands, program
from objectseeker.cli._options import MEANINGS, VALUES, change_settings, setting_values
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import BUILTIN_DEFENSES, SETTINGS


def test_new_show_and_set_work_on_one_file(tmp_path):
    paper = ["--set", "rule=paper", "--set", "alpha=0.7"]
    done = run(tmp_path, "defense", "new", "onnx:model.onnx", *paper, "--set", "masks=halves:6")
    assert done.stdout.endswith("Next: objectseeker check --defense defense.json\n")
    defense = Defense.load(tmp_path / "defense.json")
    assert defense.rule == ThresholdSchedule(alpha=0.7, beta=0.5).rule(Rule(), 0.5)
    assert str(defense.masks) == "halves:6"
    shown = run(tmp_path, "defense", "show", "defense.json").stdout
    lines = {line.split()[0]: line for line in shown.splitlines()}
    assert all(meaning in lines[key] for key, meaning in MEANINGS.items())
    assert lines["mask_threshold"].split()[1] == "0.75"
    assert json.loads(run(tmp_path, "defense", "show", "defense.json", "--json").stdout)["sha256"] == defense.sha256
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    run(tmp_path, "defense", "set", "defense.json", "class_names=@names.txt", "edge_factor=0.9", "--out", "b.json")
    changed = Defense.load(tmp_path / "b.json")
    assert (changed.class_names, changed.rule.edge_factor) == (("cat", "dog"), 0.9)
    assert Defense.load(tmp_path / "defense.json") == defense
    run(tmp_path, "defense", "set", "defense.json", "fill=0")
    assert Defense.load(tmp_path / "defense.json").fill == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere.json"], "cannot read the defense nowhere.json"),
        (["set", "builtin", "fill=0"], "builtin is a packaged defense, not a file: name one with --out"),
        (["set", "builtin", "size=3", "--out", "x.json"], "not a setting of a defense: got 'size=3'"),
        (["new", "yolo"], "unknown detector 'yolo'"),
        (["new", "builtin", "--set", "rule=best"], "unknown rule: got 'best'. Use paper or evidence."),
        (["new", "builtin", "--out", "."], "--out must name a new file: got ."),
        (["new", "onnx:a.onnx", "--set", "class_names=@none.txt"], "cannot read the class names in none.txt"),
    ],
)
def test_invalid_arguments_are_one_sentence(tmp_path, arguments, message):
    done = run(tmp_path, "defense", *arguments, code=2)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_new_takes_a_packaged_name(tmp_path):
    run(tmp_path, "defense", "new", "builtin-fast", "--out", "fast.json", "--json")
    assert Defense.load(tmp_path / "fast.json") == Defense.load("builtin-fast")


def test_every_setting_has_a_meaning_and_a_value():
    assert set(MEANINGS) == set(SETTINGS)
    assert all(len(meaning) <= 80 for meaning in MEANINGS.values())
    for defense in BUILTIN_DEFENSES.values():
        values = {key: value for key, value in setting_values(defense).items() if key != "rule"}
        typed = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
        kept = [
            one for one in typed if not one.startswith(("mask_threshold", "evidence_threshold")) and "null" not in one
        ]
        assert change_settings(defense, kept) == defense
    assert VALUES.keys() <= MEANINGS.keys()


SCRIPT = """
eval "$($PROGRAM --show-completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
$(complete -p objectseeker | sed -E 's/.*-F ([^ ]+).*/\\1/') $PROGRAM
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(folder, *words):
    """Return what bash offers, by the function that --show-completion installs."""
    bash = shutil.which("bash") or pytest.skip("needs bash")
    program = folder / "bin" / "objectseeker"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\nfrom objectseeker.cli import main\nmain()\n")
        program.chmod(0o755)
    environment = os.environ | {"PROGRAM": str(program), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    split = [part for word in words for part in re.split("(=)", word) if part or word == ""]  # as bash does
    command = [bash, "--noprofile", "--norc", "-c", SCRIPT, "bash", "objectseeker", *split]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert not done.stderr
    return done.stdout.split()


def test_the_shell_completes_verbs_settings_and_defenses(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert {"observe", "defense", "serve"} <= set(complete(tmp_path, ""))
    assert complete(tmp_path, "defense", "s") == ["show", "set"]
    assert complete(tmp_path, "observe", "--set", "mask_") == ["mask_mode=", "mask_threshold="]
    assert complete(tmp_path, "defense", "set", "mine.json", "rule=") == ["paper", "evidence"]
    assert complete(tmp_path, "observe", "--set", "rule=ev") == ["evidence"]
    assert complete(tmp_path, "serve", "--defense", "") == [*BUILTIN_DEFENSES, "bin/", "mine.json", "tuned/"]
    assert complete(tmp_path, "serve", "--limit", "max_m") == ["max_megapixels="]
    assert complete(tmp_path, "defense", "show", "builtin-") == ["builtin-fast", "builtin-video"]


@pytest.mark.parametrize(
    ("verb", "most"),
    [
        ("observe", 20),
        ("check", 12),
        ("serve", 20),
        ("demo", 12),
        ("defense new", 20),
        ("defense show", 20),
        ("defense set", 20),
    ],
)
def test_a_verb_fits_on_a_screen(verb, most):
    """At most 20 options, each with one line of help in a panel, and examples at the end."""
    command = commands(program())[verb]
    options = [one for one in command.params if one.param_type_name == "option"]
    own = [one for one in options if one.name not in (*GLOBAL_OPTIONS, "help")]
    assert len(own) <= most
    assert all(0 < len(one.help) <= 100 and one.rich_help_panel for one in own)
    assert "Example:" not in command.help
    assert command.epilog.startswith(f"Example:  objectseeker {verb}")


def test_no_verb_has_more_than_20_options_and_help_fits_on_a_line():
    for verb, command in commands(program()).items():
        options = [one for one in command.params if one.param_type_name == "option" and one.name not in GLOBAL_OPTIONS]
        assert len(options) <= 20, verb
        assert all(0 < len(one.help) <= 100 for one in options), verb


def test_every_option_is_one_line_of_help(tmp_path):
    """In a terminal of 100 columns every line of a panel is an option or an argument of its own."""
    for verb in commands(program()):
        words = [sys.executable, "-m", "objectseeker.cli", *verb.split(), "--help"]
        text = subprocess.run(words, env=os.environ | {"COLUMNS": "100"}, capture_output=True, text=True).stdout
        lines = [line[1:-1].strip(" *") for line in text.splitlines() if line.startswith("│")]
        first = re.compile(r"-|[A-Z]|\[[A-Z]|\[required\]|(new|show|set) ")
        assert all(first.match(line) for line in lines), (verb, lines)


@pytest.mark.parametrize("verb", [(), ("detect",)])
def test_the_help_of_the_program_and_of_detect_fits_on_a_screen(tmp_path, verb):
    assert len(run(tmp_path, *verb, "--help").stdout.splitlines()) <= 50
