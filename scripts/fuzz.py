"""Feed thousands of broken and hostile inputs, and check what a user would see.

    python scripts/fuzz.py --seed 1 --minutes 2
    python scripts/fuzz.py --inputs 20000 --kinds images,stores
    python scripts/fuzz.py --seed 1 --kinds stores --only 17     one input again, in this process

Every input follows from the seed, its kind and its number. It may end in a result or in one sentence. Anything else
is a finding: a traceback, a crash, a hang, a message of several lines or of endless length, and a corrupted file that
is taken for whole. Inputs with findings are kept in --out. Exit status 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzz_commands import Commands
from fuzz_kinds import Annotations, Defenses, Graphs, Images, Kind, Stores, generator
from fuzz_release import Attacks, Bundles, Claims, Policies

from objectseeker.errors import ObjectSeekerError

EVERY_KIND = (Images, Annotations, Graphs, Stores, Defenses, Bundles, Policies, Attacks, Claims, Commands)
KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in EVERY_KIND}
MEMORY = 2 * 2**30  # bytes that a worker may have of its own
MAX_SENTENCE_LENGTH = 1200  # characters: a message may name two long paths
START = 120.0  # seconds until a worker is ready


class Finding(NamedTuple):
    """One input that did not end in a result or one sentence."""

    kind: str
    number: int
    what: str  # traceback, crash, hang, lines, length, silent
    detail: str

    def told(self, seed: int) -> str:
        again = f"python scripts/fuzz.py --seed {seed} --kinds {self.kind} --only {self.number}"
        return f"{self.what}: {self.kind} {self.number} ({again})\n    " + self.detail.rstrip().replace("\n", "\n    ")


@dataclass
class Outcome:
    """What a round came to."""

    counts: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.counts.values())


def fuzz(
    *,
    seed: int = 0,
    seconds: float = 60.0,
    inputs: int | None = None,
    kinds: Sequence[type[Kind]] = tuple(KINDS.values()),
    workers: int = 1,
    out: Path | None = None,
) -> Outcome:
    """Try inputs of the kinds in turn until time or number is reached; those with findings go to `out`."""
    names = [kind.name for kind in kinds]
    outcome, began = Outcome(dict.fromkeys(names, 0), dict.fromkeys(names, 0)), float("inf")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        crew = [_Worker(seed, tuple(kinds), place, workers, Path(name)) for place in range(workers)]
        try:
            while time.monotonic() - began < seconds and (inputs is None or outcome.inputs < inputs):
                for report in _reports(crew):
                    began = began if outcome.inputs else time.monotonic()  # getting ready does not count
                    _add(outcome, report, seed, out, kinds)
        finally:
            for worker in crew:
                worker.stop()
    outcome.seconds = time.monotonic() - began
    return outcome


def try_one(kind: Kind, seed: int, number: int) -> tuple[bool, Finding | None]:
    """Try one input in this process; return whether it was rejected, and the finding if there is one."""
    try:
        silent = kind.attempt(generator(seed, kind.name, number))
    except ObjectSeekerError as error:
        return True, _judged(kind.name, number, str(error))
    except (Exception, SystemExit):
        return False, Finding(kind.name, number, "traceback", traceback.format_exc(limit=-6))
    return False, None if silent is None else Finding(kind.name, number, "silent", silent)


def _judged(kind: str, number: int, message: str) -> Finding | None:
    """A message must be one line that can be printed, and not endless."""
    try:
        message.encode()
    except UnicodeEncodeError:
        return Finding(kind, number, "traceback", f"a message that is not UTF-8: {message[:300]!a}")
    if len(message.splitlines()) != 1 or not message.strip():
        return Finding(kind, number, "lines", repr(message[:600]))
    if len(message) > MAX_SENTENCE_LENGTH:
        return Finding(kind, number, "length", f"{len(message)} characters: {message[:600]}")
    return None


class _Worker:
    """A process that tries every n-th input; a new one takes over where one hangs or dies."""

    def __init__(self, seed: int, kinds: tuple[type[Kind], ...], place: int, step: int, root: Path) -> None:
        self._arguments = seed, kinds, step, root
        self._place, self._lives = place, 0
        self._start()

    def _start(self) -> None:
        seed, kinds, step, root = self._arguments
        self._lives += 1
        self.folder = root / f"{self._place}-{self._lives}"
        # Spawned, not forked: threads of onnxruntime or torch in this process would be missing in a copy of it.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(theirs, seed, kinds, self._place, step, self.folder), daemon=True
        )
        self._process.start()
        theirs.close()
        self.current: tuple[str, int] | None = None
        self.since = time.monotonic()

    def restart(self) -> None:
        """Continue after the input that ended the process."""
        self._place += self._arguments[2]
        self.stop()
        self._start()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()

    @property
    def seconds(self) -> float:
        """How long it may be silent."""
        if self.current is None:
            return START
        return next(kind.seconds for kind in self._arguments[1] if kind.name == self.current[0])

    def heard(self, place: int, current: tuple[str, int] | None) -> None:
        self._place, self.current, self.since = place, current, time.monotonic()


class _Report(NamedTuple):
    kind: str
    number: int
    rejected: bool
    finding: Finding | None


def _reports(crew: list[_Worker]) -> Iterator[_Report]:
    """What the workers say within a moment; hanging and dead ones are replaced."""
    by_pipe: dict[Any, _Worker] = {worker.pipe: worker for worker in crew}
    for pipe in wait(list(by_pipe), timeout=0.5):
        worker = by_pipe[pipe]
        try:
            place, kind, number, ended = worker.pipe.recv()
        except (EOFError, OSError):
            if worker.current is None:
                raise RuntimeError("a worker died before its first input: see its message above") from None
            yield _lost(worker, "crash", "the process died: out of memory, or a fault in native code")
            continue
        if ended is None:
            worker.heard(place, (kind, number))
        else:
            yield _Report(kind, number, *ended)
    for worker in crew:
        if time.monotonic() - worker.since > (limit := worker.seconds):
            yield _lost(worker, "hang", f"no answer within {limit:g} seconds")


def _lost(worker: _Worker, what: str, detail: str) -> _Report:
    assert worker.current is not None, "a worker did not start"
    kind, number = worker.current
    report = _Report(kind, number, False, Finding(kind, number, what, detail))
    worker.restart()
    return report


def _work(pipe: Connection, seed: int, kinds: tuple[type[Kind], ...], place: int, step: int, folder: Path) -> None:
    """Input after input, each announced before and reported after; it ends when it is stopped."""
    _limit_memory()
    folder.mkdir(parents=True)
    made = [kind(folder / kind.name) for kind in kinds]
    turns = [(kind, turn) for kind in made for turn in range(kind.turns)]
    while True:
        kind, turn = turns[place % len(turns)]
        number = place // len(turns) * kind.turns + turn
        pipe.send((place, kind.name, number, None))
        pipe.send((place, kind.name, number, try_one(kind, seed, number)))
        place += step


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def _add(outcome: Outcome, report: _Report, seed: int, out: Path | None, kinds: Sequence[type[Kind]]) -> None:
    outcome.counts[report.kind] += 1
    outcome.rejected[report.kind] += report.rejected
    if report.finding is None:
        return
    outcome.findings.append(report.finding)
    print(report.finding.told(seed), flush=True)
    if out is not None and len(outcome.findings) <= 200:
        (kind,) = (kind for kind in kinds if kind.name == report.kind)
        _save_input(kind, seed, report.number, out / f"{report.kind}-{report.number}")


def _save_input(kind: type[Kind], seed: int, number: int, saved: Path) -> None:
    """Make the input again: the worker's folder may be at its next one. Some kinds change the current folder."""
    saved, current = saved.resolve(), Path.cwd()
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True)
    try:
        kind(saved).write(generator(seed, kind.name, number))
    finally:
        os.chdir(current)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--inputs", type=int, help="number of inputs to try, however long it takes")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this one input of the one kind named")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder for inputs with findings")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"unknown kind {unknown[0]!r}: choose from {', '.join(KINDS)}")

    if arguments.only is not None:
        if len(kinds) != 1:
            parser.error("--only needs the one kind it is of: add --kinds KIND")
        saved = arguments.out / f"{kinds[0]}-{arguments.only}"
        saved.mkdir(parents=True, exist_ok=True)
        rejected, finding = try_one(KINDS[kinds[0]](saved), arguments.seed, arguments.only)
        print(finding.told(arguments.seed) if finding else "rejected with one line" if rejected else "a result")
        print(f"the input is in {saved}")
        sys.exit(finding is not None)
    outcome = fuzz(
        seed=arguments.seed,
        seconds=float("inf") if arguments.inputs else arguments.minutes * 60,
        inputs=arguments.inputs,
        kinds=[KINDS[kind] for kind in kinds],
        workers=arguments.workers,
        out=arguments.out,
    )
    for kind, count in outcome.counts.items():
        print(f"{kind:12} {count:7,} inputs, {outcome.rejected[kind]:7,} rejected with one line")
    found = len(outcome.findings)
    print(f"{outcome.inputs:,} inputs in {outcome.seconds:.0f} s, seed {arguments.seed}: {found} findings")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
