"""Command lines with valid and invalid values, on a small dataset, run and defense (used by fuzz.py)."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from pathlib import Path

import typer.main
from fuzz_kinds import Kind
from fuzz_mutations import STRINGS, Rng, pick, read_tree, write_tree

from objectseeker import Defense, Halves, ObjectSeekerError
from objectseeker.cli import app, main
from objectseeker.cli._app import commands

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from command import write_dataset

# Excluded: what runs for long by design, and what reaches beyond the folder.
LEFT_OUT = {"demo", "serve", "defense"}  # the last is a group; its commands are listed by two words
NEVER = {"--ray", "--help", "--version", "--install-completion", "--show-completion", "--workers"}
SLOW = {"tune"}  # seconds even on two small images: seldom
NUMBERS = ("-1", "0", "1", "2", "0.5", "1.5", "nan", "inf", "-inf", "1e-8", "1e400", "99999999999999999999", "x", "")
FEW = ("-1", "0", "1", "x", "", "nan")  # for options that say how long to work
LONG_WORK = {"--steps", "--restarts", "--positions", "--bootstrap", "--seeds", "--budget", "--images", "--repeats"}
USUAL: dict[str, tuple[str, ...]] = {
    "run": ("run",),
    "runs": ("run",),
    "dataset": ("coco:truth.json:images", "images", "list:list.txt", "images/0.png"),
    "inputs": ("images", "images/0.png"),
    "image": ("images/0.png",),
    "spec": ("python:mine:detect",),
    "out": ("out", "out.html"),
    "detector": ("python:mine:detect", "python:mine:broken"),
    "defense": ("defense.json",),
    "masks": ("halves:2", "pairs:2", "bands:4%", "halves:1+bands:4%"),
    "names": ("names.txt",),
    "class_map": ("bright=bright", "names.txt"),
    "settings": ("mask_threshold=0.7", "rule=paper", "fill=0", "masks=halves:2", "class_names=@names.txt"),
    "location": ("far", "over"),
    "patch": ("1%", "0.02"),
    "layout": ("yolox",),
    "precision": ("float32",),
    "mask_mode": ("fill", "crop"),
    "device": ("cpu", "cuda"),
    "bound": ("exact", "paper"),
}
DETECTOR = ("--detector", "python:mine:detect")
NAMES = ("nothing", "truth.json", "run/run.json", "images", "/dev/null", "run/parts", ".", "..", "out[test]", "\udcff")

UNUSUAL = (*NAMES, *(text for text in STRINGS if "\0" not in text))  # a process cannot be given that one


class Commands(Kind):
    """The command line in this process: one sentence and exit status 2, or a result."""

    name = "commands"
    turns = 1
    seconds = 300.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.absolute() / "one" / "deep")  # so that .. stays inside
        os.chdir(self.folder)
        write_dataset(self.folder, [(20, 10, 12, 9), (2, 2, 9, 9)], size=(48, 32))
        (self.folder / "names.txt").write_text("bright\n")
        (self.folder / "list.txt").write_text("images/0.png\n")
        status, _, told = run_command(
            ["observe", "coco:truth.json:images", *DETECTOR, "--masks", "halves:2", "--out", "run"]
        )
        if status:
            raise RuntimeError(f"the run to spoil was not made: {told}")
        Defense.for_detector("python:mine:detect", masks=Halves(2)).save(self.folder / "defense.json")
        self._files = read_tree(self.folder)
        self._verbs = {
            name: command for name, command in commands(typer.main.get_command(app)).items() if name not in LEFT_OUT
        }

    def write(self, rng: Rng) -> list[str]:
        write_tree(self.folder, self._files)
        name = pick(rng, sorted(self._verbs.keys() - (SLOW if rng.random() < 0.98 else set())))
        words: list[str] = name.split()
        arguments = [one for one in self._verbs[name].params if one.param_type_name == "argument"]
        for argument in arguments:
            if argument.required or rng.random() < 0.3:
                words.append(self._value(rng, argument.name, "", 0.85))
        options = [one for one in self._verbs[name].params if one.param_type_name == "option"]
        options = [one for one in options if not NEVER & set(one.opts)]
        needed = [one for one in options if one.required or "--detector" in one.opts]
        for option in needed + [pick(rng, options) for _ in range(int(rng.integers(0, 4)))]:
            flag = pick(rng, [*option.opts, *option.secondary_opts])
            words += [flag] if option.is_flag else [flag, self._value(rng, option.name, option.opts[0], 0.7)]
        (self.folder / "command.json").write_text(json.dumps(words))
        return words

    def judge(self, made: list[str]) -> str | None:
        os.chdir(self.folder)
        (self.folder / "command.json").unlink()
        status, _, told = run_command(made)
        if status not in (0, 1, 2):
            raise RuntimeError(f"exit status {status}: {told[-500:]}")
        if status == 2:
            raise ObjectSeekerError(sentence_of(told) or f"no message from {made}\n")
        return None

    def _value(self, rng: Rng, name: str, flag: str, usually: float) -> str:
        if flag in LONG_WORK:
            return str(pick(rng, FEW))
        if name in USUAL:
            return str(pick(rng, USUAL[name] if rng.random() < usually else UNUSUAL))
        return str(pick(rng, NUMBERS))


def run_command(words: list[str]) -> tuple[int, str, str]:
    """Exit status and both streams of a command line."""
    printed, told = io.StringIO(), io.StringIO()
    logging.getLogger("objectseeker").handlers.clear()  # every call adds its own
    sys.argv, status = ["objectseeker", *words], 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
    return status, printed.getvalue(), told.getvalue()


def sentence_of(told: str) -> str:
    """The message, without the notes before it; what click says of wrong usage is a box of its own."""
    if told.startswith("Usage:"):
        return "wrong usage"
    _, mark, sentence = told.rpartition("error: ")
    return sentence.rstrip("\n") if mark else ""
