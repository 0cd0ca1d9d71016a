"""The shell around the verbs: what is said and how it ends, whatever happens."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import run
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from objectseeker import cli
from objectseeker.cli._app import program
from objectseeker.cli._console import escape

# A verb that meets what no real one should: the program around it is the real one. Forked, because starting takes long.
PROGRAM = """
import json, logging, os, sys, threading, time
from objectseeker.cli import app, main
from objectseeker.cli._app import Interrupted
from objectseeker.cli._console import progress, stdout_console, warn
from objectseeker.errors import ObjectSeekerError

class OutOfMemoryError(RuntimeError):
    pass

@app.command()
def meet(what: str) -> None:
    exec(what)

if len(sys.argv) > 1:
    main()
codes = []
for number, arguments in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv[1:] = arguments
        main()
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(codes))
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


@pytest.fixture
def meet(tmp_path):
    """Start the program with one verb that does as it is told."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(*arguments, **how):
        command = [sys.executable, "program.py", *arguments]
        pipes = {"stdin": -1, "stdout": -1, "stderr": -1, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, **pipes | how)

    return start


def ended(process):
    stdout, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    return process.returncode, stdout, stderr


def each(meet, folder, commands):
    """Exit code, output and errors of each of several command lines."""
    stdout, stderr = meet().communicate(json.dumps(commands), timeout=60)
    assert not stderr
    for number, code in enumerate(json.loads(stdout)):
        yield code, *((folder / f"{number}.{name}").read_text() for name in ("stdout", "stderr"))


RAISED = [
    ("raise MemoryError", 2, "there is not enough memory"),
    ("raise OutOfMemoryError('CUDA out of memory')", 2, "there is not enough memory"),
    ("raise OSError(28, 'No space left on device')", 2, "cannot read or write: No space left on device, make room"),
    ("raise OSError(28, 'No space left on device', 'a/b.json')", 2, "cannot use a/b.json: No space left on device"),
    ("open('nowhere/at all')", 2, "cannot use nowhere/at all: No such file or directory\n"),
    ("raise ObjectSeekerError('one\\ntwo\\x1b[31m[/foo]' + 'x' * 5000)", 2, r"one\ntwo\x1b[31m[/foo]xxx"),
    ("[][3]", 70, "please report it with what --verbose prints: IndexError in <string>, line 1: list index"),
    ("raise BrokenPipeError(32, 'Broken pipe')", 1, ""),
    ("raise Interrupted('7 of 30 images are kept.')", 130, "Stopped by Ctrl-C. 7 of 30 images are kept.\n"),
]


@needs_fork
def test_whatever_is_raised_is_one_line(meet, tmp_path):
    answers = list(each(meet, tmp_path, [["meet", body] for body, _, _ in RAISED]))
    assert len(answers) == len(RAISED)
    for (body, code, sentence), (returned, stdout, stderr) in zip(RAISED, answers, strict=True):
        assert (returned, stdout) == (code, ""), body
        assert sentence in stderr
        assert stderr.count("\n") == bool(sentence)
        assert len(stderr) < 1200
        assert stderr.startswith("error: ") == (code in (2, 70))


@needs_fork
def test_quiet_leaves_results_and_verbose_adds_times(meet, tmp_path):
    """Before the verb and after it."""
    body = (
        "warn('a note'); logging.getLogger('objectseeker.core').warning('2 boxes dropped'); "
        "logging.getLogger('objectseeker').info('once'); stdout_console.print('a result')\n"
        "with progress('working', 1) as bar: bar.advance()"
    )
    both = [command for flag in ("--quiet", "-v") for command in ([flag, "meet", body], ["meet", body, flag])]
    answers = list(each(meet, tmp_path, [["meet", body], *both, ["meet", "[][3]", "-v"]]))
    assert all(answer[:2] == (0, "a result\n") for answer in answers[:-1])
    plain, *quiet_and_verbose = (stderr for _, _, stderr in answers)
    assert plain == "note: a note\nnote: 2 boxes dropped\n"
    assert quiet_and_verbose[:2] == ["", ""]
    for stderr in quiet_and_verbose[2:4]:
        lines = stderr.splitlines()
        assert "objectseeker 0." in lines[0]
        assert lines[1:3] == ["note: a note", "note: 2 boxes dropped"]
        assert lines[3].endswith("s  once")
        assert "s  working: 0.0" in lines[4]
    assert "Traceback" in answers[-1][2]  # where a fault lies
    assert answers[-1][2].splitlines()[-1].startswith("error: this should not have happened")


def interrupt(process, times):
    """Press Ctrl-C once the verb is at work, and again while it cleans up."""
    assert process.stdout.readline() == "at work\n"
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    return ended(process)


def test_ctrl_c_is_one_sentence(meet):
    code, stdout, stderr = interrupt(meet("meet", "print('at work', flush=True); time.sleep(60)"), 1)
    assert (code, stdout, stderr) == (130, "", "Stopped by Ctrl-C. Files that were finished are kept.\n")


@pytest.mark.parametrize("cleaning", [0, 60])
def test_a_second_ctrl_c_does_not_wait(meet, cleaning):
    """A thread that Python would wait for, and cleaning up that takes long: neither blocks a user who presses twice."""
    body = (
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        f"try: print('at work', flush=True); time.sleep(60)\nfinally: time.sleep({cleaning})"
    )
    began = time.monotonic()
    code, _, stderr = interrupt(meet("meet", body), 2)
    assert code == 130
    assert time.monotonic() - began < 30
    first = "" if cleaning else "Stopped by Ctrl-C. Files that were finished are kept.\n"
    assert stderr == f"{first}Stopped at once.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_output_that_nobody_takes(meet):
    """A reader that leaves early, and a full disk: Python itself does not complain a second time."""
    process = meet("meet", "print('at work', flush=True); sys.stdin.readline(); print('x' * 10)")
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert (process.wait(60), process.stderr.read()) == (1, "")
    with Path("/dev/full").open("w") as full:
        process = meet("meet", "stdout_console.print('a result')", stdout=full)
        assert process.wait(60) == 2
    sentence = "error: cannot read or write: No space left on device, make room or write elsewhere\n"
    assert process.stderr.read() == sentence


def test_a_flag_shows_no_type(tmp_path):
    text = run(tmp_path, "detect", "--help").stdout
    assert "<bool>" not in text
    assert "BOOL" not in text
    assert "--help" in text
    assert "-h " in text
    root = program()
    commands = [*root.commands.values(), root]
    for command in commands:
        flags = [option for option in command.params if getattr(option, "is_flag", False)]
        assert {"quiet", "verbose"} <= {option.name for option in flags}
        assert all(option.metavar == "" for option in flags)


def test_completion_is_there():
    """Without asking which shell this is: not every place where tests run has one."""
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "objectseeker.cli", "--show-completion", "bash"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "objectseeker" in shown.stdout


UNUSUAL = st.text(alphabet=r"[]/\ab# @=:" + "\x1b\n\x9b\u202e\ud800é", max_size=12)


@given(first=UNUSUAL, second=UNUSUAL)
@example(first="[/foo]", second="\\")
@example(first="run[test]", second="\\\\[bold]")
@example(first="\x1b[31mred", second="safe\u202egnp.exe")
@example(first=":smile:", second="[")
def test_foreign_text_is_shown_as_it_is(first, second):
    """Between tags of ours, at the end, alone: brackets and backslashes stay, and nothing is obeyed."""

    def seen(text):
        hidden = "\x1b\n\x9b\u202e\ud800"
        return "".join(c.encode("unicode_escape").decode() if c in hidden else c for c in text)

    for made, expected in (
        (escape(first), seen(first)),
        (f"[bold]{escape(first)}[/] {escape(second)}[red]!", f"{seen(first)} {seen(second)}!"),
        (f"{escape(first)}{escape(second)} of [dim]x[/]", f"{seen(first)}{seen(second)} of x"),
    ):
        assert Text.from_markup(made, emoji=False).plain == expected


FILES = sorted(Path(cli.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_paths_are_printed_through_escape(file):
    """A folder called run[test] is not run, and one called [/x] ends nothing."""
    foreign = {"out", "path", "folder", "file", "source"}
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("stdout_console.print", "notes.print"):
            values = [part.value for part in ast.walk(call) if isinstance(part, ast.FormattedValue)]
            bare = [value for value in values if not any(isinstance(part, ast.Call) for part in ast.walk(value))]
            named = [{name.id for name in ast.walk(value) if isinstance(name, ast.Name)} for value in bare]
            assert not any(names & foreign for names in named), f"{file.name}, line {call.lineno}"
