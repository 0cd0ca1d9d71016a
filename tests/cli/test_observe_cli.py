"""observe on the command line: how it resumes, what it takes, how it is stopped."""

import json
import signal
import subprocess
import sys
import time

import pytest
import typer
from command import DETECTOR, run, write_dataset
from ftp_server import silent_server

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import program
from objectseeker.cli._console import describe_duration

OBSERVE = ("observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks", "halves:2")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Six images, and a detector that says itself what it is."""
    folder = write_dataset(tmp_path_factory.mktemp("observe"), [(5 + number, 5, 30, 20) for number in range(6)])
    (folder / "mine.py").write_text(DETECTOR + '\nfingerprint = "bright 1"\n')
    return folder


def test_a_run_grows_and_says_how_far_it_was(workplace):
    """Its folder may look like markup."""
    done = run(workplace, *OBSERVE, "--out", "run[test]", "--limit", 2)
    following = "Next: objectseeker tune 'run[test]' --out tuned\n"
    assert done.stdout == f"2 images observed in run[test]\n{following}"
    done = run(workplace, *OBSERVE, "--out", "run[test]")
    assert "2 of 6 images are done already" in done.stderr
    assert done.stdout == f"6 images observed in run[test]\n{following}"


def test_a_sample_is_recorded_and_shown(workplace):
    done = run(workplace, *OBSERVE, "--out", "sample", "--sample", 3, "--seed", 5)
    assert "3 images drawn with seed 5 from 6 x 9 views = 27 forward passes" in done.stderr
    assert json.loads((workplace / "sample" / "run.json").read_text())["seed"] == 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--limit", 2, "--sample", 2], "give --limit (the first images) or --sample (some of all), not both"),
        (["--seed", 2], "--seed draws a sample: say with --sample of how many images"),
        (["--sample", 2, "--seed", -1], "0"),  # in the words of whichever Typer there is
        (["--workers", 2], "--workers 2 needs a Ray cluster: add --ray auto or --ray local"),
        (["--set", "fill=99999999999999999999", "--estimate"], "fill must be a gray value within 0 to 255"),
        (["--set", "x" * 10_000], "not a setting of a defense: got 'xxx"),
    ],
)
def test_bad_options_are_one_sentence(workplace, options, named, monkeypatch):
    monkeypatch.chdir(workplace)
    arguments = [*OBSERVE, "--out", "never", *map(str, options)]
    with pytest.raises((ObjectSeekerError, typer.BadParameter)) as caught:
        program()(arguments, standalone_mode=False)
    assert named in str(caught.value)
    assert len(str(caught.value)) < 300
    assert not (workplace / "never").exists()


def test_the_estimate_is_in_units_that_people_plan_with():
    shown = [describe_duration(seconds) for seconds in (0.04, 9.96, 99.4, 396, 6001, 250_000, 3e6, 1e9)]
    fine = ["0.0 seconds", "10.0 seconds", "99 seconds", "6.6 minutes"]
    assert shown == [*fine, "1.7 hours", "69 hours", "35 days", "11,574 days"]


def test_a_run_of_which_nothing_could_be_read_is_an_error(workplace):
    (workplace / "broken").mkdir()
    (workplace / "broken" / "a.png").write_bytes(b"no image")
    done = run(workplace, "observe", "broken", *OBSERVE[2:], "--out", "nothing", code=2)
    assert "error: none of the 1 images could be read" in done.stderr.splitlines()[-1]


def test_ctrl_c_does_not_wait_for_a_server_that_says_nothing(workplace):
    pytest.importorskip("fsspec")
    with silent_server() as (port, asked):
        (workplace / "list.txt").write_text("".join(f"ftp://127.0.0.1:{port}/{number}.png\n" for number in range(9)))
        arguments = ["observe", "list:list.txt", *OBSERVE[2:], "--out", "stopped"]
        with (
            subprocess.Popen(
                [sys.executable, "-m", "objectseeker.cli", *arguments], cwd=workplace, stderr=subprocess.PIPE, text=True
            ) as process,
            asked(),
        ):  # for the first image, so the run has begun
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
    assert time.monotonic() - begin < 10  # it would be 90 if it waited; well under a second on an idle machine
    assert process.returncode == 130
    assert said.splitlines()[-1] == "Stopped by Ctrl-C. 0 of 9 images are done; rerun the same command to resume."
