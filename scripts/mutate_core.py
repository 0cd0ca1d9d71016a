"""Change the core one place at a time, and list the changes that its tests do not notice.

    python scripts/mutate_core.py                                    a sample of every module
    python scripts/mutate_core.py --all --out all.jsonl              all mutants
    python scripts/mutate_core.py --all --skip all.jsonl --out all.jsonl    those that there was no time for
    python scripts/mutate_core.py --only all.jsonl --slow            those that no test noticed, with slow tests, too
    python scripts/mutate_core.py --modules bounds,joint --list      names of the sample, without running it

A mutant is one small change: an operator, a number, an argument or a statement that is dropped. It is tested by those
tests in tests/core and, of its module, in MORE that call the changed function and pass without the change: those of
its module first, then quick ones first, up to the first that fails. Tests are collected once: each mutant is a copy of
that process in which the code of one function is replaced. Changes outside of functions, or in functions that are
called as tests are imported, take a process of their own, at the end. The order follows from the names of the
mutants, so a sample stays the same as the code around them changes, and Hypothesis draws the same examples each time.

Each line of --out is {"mutant", "outcome", "seconds", "test"}. Outcomes: killed (by `test`), timeout (a test took
many times longer than without the change), survived, error (it could not be tested), unfinished (the time was over).

Survivors that change nothing, or nothing that matters, are in mutate_core_equivalent.toml, each with its reason. Exit
status 1 if another one survives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[threads] = "1"

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

assert np  # imported here once, not in every child

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "src" / "objectseeker" / "core"
TESTS = ROOT / "tests" / "core"
EQUIVALENT = Path(__file__).with_name("mutate_core_equivalent.toml")
LEFT_OUT = {"__init__", "notebook"}  # displays
MEMORY = 3 * 2**30
MIN_LIMIT, LIMIT_FACTOR = 10, 10  # seconds of a test, and times what it takes unchanged: what runs longer is in a loop
SURVIVED, KILLED, FAULT = 0, 1, 70  # exit statuses
NOTICED = ("killed", "timeout")
ALARMS = (signal.SIGALRM, signal.SIGPROF)
UNIMPORTANT = (None, "dtype", "strict", "kind")  # arguments of calls
MAX_LENGTH = 70  # characters of a name's part

# The tests that concern a module most; the others of tests/core follow.
OWN = {
    "boxes": ("test_boxes", "test_observation", "test_pruning"),
    "bounds": ("test_bounds", "test_margin"),
    "certification": (
        "test_certification",
        "test_traps",
        "test_outside",
        "test_bands",
        "test_against_oracle",
        "test_two_patches",
    ),
    "fabrication": ("test_fabrication",),
    "evidence": (
        "test_evidence",
        "test_margin",
        "test_joint",
        "test_outside",
        "test_bands",
        "test_against_oracle",
        "test_two_patches",
    ),
    "joint": ("test_joint",),
    "masks": ("test_masks", "test_positions", "test_windows", "test_recipes", "test_two_patches"),
    "observation": ("test_observation",),
    "positions": ("test_positions", "test_joint", "test_two_patches", "test_bands"),
    "pruning": ("test_pruning", "test_margin", "test_against_oracle"),
    "recipes": ("test_recipes", "test_rolling", "test_bands"),
    "seeker": ("test_seeker", "test_stream", "test_traps"),
    "temporal": ("test_temporal",),
    "threats": ("test_threats", "test_outside"),
    "rules.evidence": ("test_rules", "test_margin", "test_against_oracle", "test_pruning"),
    "rules.interface": ("test_rules", "test_joint", "test_margin", "test_iou_variant"),
    "rules.iou": ("test_rules", "test_iou_variant", "test_margin", "test_joint"),
}
# Tests elsewhere of what the core does for them.
MORE = {
    "class_matching": ("datasets/test_classes.py",),
    "maite": ("interop/test_maite.py",),
    "label_map": ("metrics/test_labels.py", "metrics/test_certified.py"),
    "rules.interface": ("test_toy_rule.py", "metrics/test_certified.py", "test_defense.py"),
    "rules.evidence": ("metrics/test_certified.py", "metrics/test_replay.py", "test_defense.py"),
    "rules.iou": ("metrics/test_iou_variant_evaluated.py", "test_defense.py"),
    "recipes": ("test_defense.py", "metrics/test_budget.py", "inference/test_shares.py"),
    "threats": ("gate/test_policy.py", "metrics/test_certified.py"),
    "threshold_schedule": ("test_defense.py", "metrics/test_sweeps.py", "metrics/test_tuning.py"),
    "certification": ("metrics/test_certified.py", "metrics/test_object_rows.py"),
    "masks": ("metrics/test_certified.py", "detectors/test_views.py"),
    "observation": ("runs/test_store.py", "metrics/test_sweeps.py"),
    "seeker": ("inference/test_detections.py", "inference/test_watching.py", "interop/test_maite.py"),
    "temporal": ("metrics/test_track_certificates.py",),
    "boxes": ("metrics/test_average_precision.py",),
}

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {
    "minimum": "maximum", "maximum": "minimum", "fmin": "fmax", "min": "max", "max": "min", "any": "all", "all": "any",
    "floor": "ceil", "ceil": "floor", "zeros": "ones", "ones": "zeros", "argmax": "argmin", "argmin": "argmax",
    "union1d": "intersect1d", "width": "height", "height": "width", "left": "right", "right": "left",
    "start": "end", "end": "start",
}  # fmt: skip
NAMES |= {"first": "last", "last": "first", "across": "down", "down": "across"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, by which operator, and the tree with it; outside of functions `function` is empty."""

    name: str
    line: int
    operator: str
    function: str
    start: int
    make: Callable[[], ast.Module]

    @property
    def module(self) -> str:
        return self.name.split(":")[0]

    @property
    def key(self) -> str:
        """Module and qualified name of the function."""
        return f"{self.module}:{self.function}"

    def owns(self, test: str) -> bool:
        """Return whether a test is of the files that concern the module most."""
        own = OWN.get(self.module, (f"test_{self.module.split('.')[-1]}",))
        return Path(test.split("::")[0]).stem in own


Change = tuple[str, str, str, Callable[[Any], Any]]  # operator, was, is, the node anew


def changes(node: ast.AST, scalars: frozenset[str]) -> Iterator[Change]:
    """Yield the changes of one node; `scalars` are the numbers among the parameters of its function."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in SWAPPED:
                yield "compare", _text(node), f"{SWAPPED[type(op)].__name__} {i}", lambda n, i=i: _with_op(n, i)
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPPED:
        if not isinstance(node, ast.BinOp) or not _is_type_union(node):
            other = SWAPPED[type(node.op)]
            yield "arithmetic", _text(node), other.__name__, lambda n, other=other: _set(n, op=other())
    elif isinstance(node, ast.BoolOp):
        other = SWAPPED[type(node.op)]
        yield "logic", _text(node), other.__name__, lambda n, other=other: _set(n, op=other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield "logic", _text(node), _text(node.operand), lambda n: n.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        for value in _other_values(node.value):
            yield (
                "number",
                repr(node.value),
                repr(value),
                lambda n, value=value: ast.copy_location(ast.Constant(value), n),
            )
    elif isinstance(node, ast.Constant) and node.value in ("left", "right"):
        other_side = NAMES[node.value]
        yield "name", repr(node.value), other_side, lambda n, o=other_side: ast.copy_location(ast.Constant(o), n)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES and isinstance(node.ctx, ast.Load):
        yield "name", _text(node), NAMES[node.attr], lambda n, o=NAMES[node.attr]: _set(n, attr=o)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield "name", node.id, NAMES[node.id], lambda n, o=NAMES[node.id]: _set(n, id=o)
    elif isinstance(node, ast.Call):
        for i, argument in enumerate(node.args):
            if isinstance(argument, ast.Name) and argument.id in scalars:
                yield "argument", f"{_text(node.func)}({argument.id})", "0.0", lambda n, i=i: _with_argument(n, i)
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in UNIMPORTANT:
                yield (
                    "argument",
                    f"{_text(node.func)}({keyword.arg}=)",
                    "dropped",
                    lambda n, i=i: _set(n, keywords=[*n.keywords[:i], *n.keywords[i + 1 :]]),
                )
    elif isinstance(node, ast.IfExp):
        yield "branch", _text(node), "first", lambda n: n.body
        yield "branch", _text(node), "second", lambda n: n.orelse
    elif isinstance(node, ast.If):
        yield (
            "branch",
            f"if {_text(node.test)}",
            "True",
            lambda n: _set(n, test=ast.copy_location(ast.Constant(True), n)),
        )
        yield (
            "branch",
            f"if {_text(node.test)}",
            "False",
            lambda n: _set(n, test=ast.copy_location(ast.Constant(False), n)),
        )
    elif isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            yield (
                "branch",
                f"for if {_text(test)}",
                "dropped",
                lambda n, i=i: _set(n, ifs=[*n.ifs[:i], *n.ifs[i + 1 :]]),
            )
    elif isinstance(node, ast.Break | ast.Continue) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    ):
        yield "statement", _text(node), "dropped", lambda n: ast.copy_location(ast.Pass(), n)
    if isinstance(node, ast.AugAssign):
        yield "statement", _text(node), "dropped", lambda n: ast.copy_location(ast.Pass(), n)


def _other_values(value: bool | int | float) -> list[bool | int | float]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1, value - 1] if isinstance(value, int) else [0.0] if value else [0.1]


def _is_type_union(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Constant) or (isinstance(side, ast.Name) and side.id in ("int", "float", "str", "None"))
        for side in (node.left, node.right)
    )


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}~{hashlib.sha256(text.encode()).hexdigest()[:4]}"


def _set(node: ast.AST, **changed: object) -> ast.AST:
    for key, value in changed.items():
        setattr(node, key, value)
    return node


def _with_op(node: ast.AST, index: int) -> ast.AST:
    assert isinstance(node, ast.Compare)
    node.ops[index] = cast(ast.cmpop, SWAPPED[type(node.ops[index])]())
    return node


def _with_argument(node: ast.AST, index: int) -> ast.AST:
    assert isinstance(node, ast.Call)
    node.args[index] = ast.copy_location(ast.Constant(0.0), node)
    return node


class _Replace(ast.NodeTransformer):
    """Change the node of one number, in the order of `_walk`."""

    def __init__(self, number: int, change: Callable[[ast.AST], ast.AST | list[ast.AST]]) -> None:
        self.number, self.change = number, change

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        if getattr(node, "mutate_number", None) == self.number:
            return self.change(node)
        return self.generic_visit(node)


@dataclass(frozen=True)
class _Scope:
    """Where a node is: its function's name, the outermost one with its first line, and that one's numbers."""

    name: str = ""
    function: str = ""
    start: int = 0
    scalars: frozenset[str] = frozenset()


def _walk(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
    """Yield every node that may be changed; not annotations, messages of errors and displays."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        if node.name in ("_repr_html_", "__hash__", "describe", "certified_property"):
            return
        inner = replace(scope, name=f"{scope.name}.{node.name}".lstrip("."))
        if isinstance(node, ast.FunctionDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from _walk(default, inner)
            arguments = [*node.args.args, *node.args.kwonlyargs]
            numbers = ("float", "int", "float | None", "int | None")
            scalars = {a.arg for a in arguments if a.annotation is not None and ast.unparse(a.annotation) in numbers}
            inner = replace(inner, scalars=frozenset(scalars))
            if not scope.function:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                inner = replace(inner, function=inner.name, start=first)
        for statement in node.body:
            yield from _walk(statement, inner)
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield node, scope
    if isinstance(node, ast.Raise):
        return  # a message
    if isinstance(node, ast.keyword) and node.arg is not None and node.arg in UNIMPORTANT:
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None and not (isinstance(node.value, ast.Call) and _text(node.value.func) == "field"):
            yield from _walk(node.value, scope)
        return
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id in TYPES for target in node.targets
    ):
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, scope)


TYPES = {"Masks", "Prover", "Proving", "Bound", "Side", "Overlap", "PatchLocation", "Image", "Bools", "Floats", "Ints"}


def mutants(module: str) -> list[Mutant]:
    """Every change of a module, by name."""
    tree = ast.parse(path_of(module).read_text())
    found, seen = [], Counter[str]()
    for number, (node, scope) in enumerate(list(_walk(tree, _Scope()))):
        node.mutate_number = number  # type: ignore[attr-defined]
        if isinstance(node, ast.Module | ast.Import | ast.ImportFrom):
            continue
        for operator, was, now, change in changes(node, scope.scalars):
            name = f"{module}:{scope.name}:{operator}:{was}:{now}"
            seen[name] += 1

            def make(number: int = number, change: Callable[[ast.AST], ast.AST | list[ast.AST]] = change) -> ast.Module:
                changed = _Replace(number, change).visit(copy.deepcopy(tree))
                assert isinstance(changed, ast.Module)
                return ast.fix_missing_locations(changed)

            line = getattr(node, "lineno", scope.start)
            found.append(Mutant(f"{name}:{seen[name]}", line, operator, scope.function, scope.start, make))
    return found


def _place(mutant: Mutant, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{mutant.name}".encode()).digest()


def sample(found: Sequence[Mutant], per_operator: int, seed: int) -> list[Mutant]:
    """Return the first of each operator, in the order of their hashed names."""
    taken: Counter[str] = Counter()
    chosen = []
    for mutant in sorted(found, key=lambda mutant: _place(mutant, seed)):
        taken[mutant.operator] += 1
        if taken[mutant.operator] <= per_operator:
            chosen.append(mutant)
    return chosen


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import some modules of the core from trees; `called` is what noted calls are put into (`noting_calls`)."""

    def __init__(self, trees: Mapping[str, ast.Module], called: set[str] | None = None) -> None:
        self.trees = {f"objectseeker.core.{module}": (path_of(module), tree) for module, tree in trees.items()}
        self.called = called

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.trees:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self.trees[name][0]))

    def exec_module(self, module: types.ModuleType) -> None:
        path, tree = self.trees[module.__name__]
        vars(module)["_called"] = self.called
        exec(compile(tree, str(path), "exec"), vars(module))


def noting_calls(module: str) -> ast.Module:
    """Return a module whose outermost functions note their names, as `Mutant.key` has them, when they are called."""

    def visit(parent: ast.Module | ast.ClassDef, prefix: str) -> None:
        for node in parent.body:
            if isinstance(node, ast.ClassDef):
                visit(node, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                (note,) = ast.parse(f"_called.add({f'{module}:{prefix}{node.name}'!r})").body
                has_docstring = ast.get_docstring(node, clean=False) is not None
                node.body.insert(int(has_docstring), ast.copy_location(note, node))

    tree = ast.parse(path_of(module).read_text())
    visit(tree, "")
    return ast.fix_missing_locations(tree)


def path_of(module: str) -> Path:
    return CORE / f"{module.replace('.', '/')}.py"


@functools.cache
def test_files(*modules: str) -> list[Path]:
    """The test files of the core, then those elsewhere that concern these modules."""
    more = dict.fromkeys(name for module in modules for name in MORE.get(module, ()))
    return [*sorted(TESTS.glob("test_*.py")), *(ROOT / "tests" / name for name in more)]


def run_pytest(files: Sequence[Path], plugin: object, slow: bool) -> int:
    """Run tests in this process, with a plugin that may take over."""
    os.chdir(ROOT)
    hypothesis.settings.register_profile(
        "mutants",
        database=None,
        derandomize=True,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # no smaller example is needed
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    options = ["-q", "--hypothesis-profile=mutants", "--continue-on-collection-errors"]
    options += [word for name in ("cacheprovider", "xdist", "anyio", "doctest") for word in ("-p", f"no:{name}")]
    options += [] if slow else ["-m", "not slow"]
    return int(pytest.main([*options, *map(str, files)], plugins=[plugin]))


def run_item(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test; return whether it passes."""
    failed = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return bool(item.session.testsfailed == failed)


def first_failure(items: Sequence[pytest.Item], seconds: Mapping[str, float], note: Path) -> int:
    """Run tests up to the first one that fails; `note` holds the name of the last that was begun.

    One that takes much longer than its seconds without a change ends this process: it is in a loop, or it waits.
    """
    for alarm in ALARMS:
        signal.signal(alarm, signal.SIG_DFL)
    for item, following in zip(items, [*items[1:], None], strict=True):
        note.write_text(json.dumps(item.nodeid))
        limit = MIN_LIMIT + LIMIT_FACTOR * seconds[item.nodeid]
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, 5 * limit)  # if it only waits; other processes may keep it waiting, too
        if not run_item(item, following):
            return KILLED
    return SURVIVED


def in_child(work: Callable[[], int]) -> int:
    """Do something in a copy of this process, without a word; return its id. Its exit status is what `work` returns."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = FAULT
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        quiet = os.open(os.environ.get("MUTATE_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


J = TypeVar("J")


def in_pool(
    jobs: Iterable[J], work: Callable[[J, Path], int], workers: int, end: float
) -> Iterator[tuple[J, int | None, float, Any]]:
    """Do each job in a copy of this process, several at a time; yield its exit status, seconds and what it noted.

    What is not done at `end` is ended, and its status is None.
    """
    waiting, going = iter(jobs), dict[int, tuple[J, float, Path]]()
    with tempfile.TemporaryDirectory() as folder:
        for number in itertools.count():
            if len(going) < workers and time.monotonic() < end:
                for job in itertools.islice(waiting, 1):
                    note = Path(folder, str(number))
                    going[in_child(functools.partial(work, job, note))] = job, time.monotonic(), note
            if not going:
                return
            if len(going) == workers:
                time.sleep(0.005)
            late = time.monotonic() >= end
            for child, (job, since, note) in list(going.items()):
                if late:
                    end_group(child)
                done, status = os.waitpid(child, 0 if late else os.WNOHANG)
                if done:
                    end_group(child)  # what it left running
                    del going[child]
                    code = os.waitstatus_to_exitcode(status)
                    noted = json.loads(note.read_text() or "null") if note.exists() else None
                    yield job, None if late and code == -signal.SIGKILL else code, time.monotonic() - since, noted


def end_group(child: int) -> None:
    """End a child of this process and its own children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


class Results:
    """The outcome of mutants: written as it comes, and printed if it is not the usual one."""

    def __init__(self, out: Path, equivalent: Mapping[str, str]) -> None:
        self.out, self.equivalent = out, equivalent
        self.terminal = os.fdopen(os.dup(1), "w")  # what pytest prints goes elsewhere

    def print(self, text: str) -> None:
        print(text, file=self.terminal, flush=True)

    def add(self, mutant: Mutant, outcome: str, seconds: float, test: str | None) -> None:
        """Write one outcome and, of a mutant that was noticed, the test that did."""
        row = {"mutant": mutant.name, "outcome": outcome, "seconds": round(seconds, 2), "test": test}
        with self.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        if outcome not in NOTICED and mutant.name not in self.equivalent:
            self.print(f"{outcome:10} {seconds:4.0f} s {mutant.line:4} {mutant.name}")


def outcome_of(status: int | None) -> str:
    """Return what the exit status of the tests says of a mutant; by a signal other than alarms it crashed them."""
    if status is None:
        return "unfinished"
    if -status in ALARMS:
        return "timeout"
    return {KILLED: "killed", SURVIVED: "survived"}.get(status, "killed" if status < 0 else "error")


class _Session:
    """A pytest plugin: finds which test calls what and how long it takes, then runs mutants in copies of this process.

    A mutant in a function is tested by what calls this function. Mutants whose functions are called as tests are
    imported, too, take a process of their own.
    """

    def __init__(self, chosen: Sequence[Mutant], results: Results, left: Path, workers: int, end: float) -> None:
        self.chosen, self.results, self.left, self.workers, self.end = chosen, results, left, workers, end
        self.called: set[str] = set()  # functions, by `Mutant.key`
        self.called_by_fixtures: set[str] = set()

    @pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """What fixtures of several tests call, all tests of the file depend on."""
        before = self.take_called()
        result = yield
        if fixturedef.scope != "function":
            self.called_by_fixtures |= self.called
        self.called |= before
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.results.print(f"skipped, as it cannot be imported here: {report.nodeid}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        at_import = self.take_called()
        session.testsfailed = 0
        items = {item.nodeid: item for item in session.items}
        calls, seconds = self.run_unchanged(items)
        for module in {mutant.module for mutant in self.chosen}:
            importlib.import_module(f"objectseeker.core.{module}")  # some are imported when they are needed
        functions, caches = loaded_functions(), loaded_caches()
        killers: dict[str, Counter[str]] = defaultdict(Counter)

        def with_tests(mutant: Mutant) -> tuple[Mutant, list[str]]:
            files = {str(path) for path in test_files(mutant.module)}
            covering = [test for test in calls if mutant.key in calls[test] and str(items[test].path) in files]
            known = killers[mutant.key]
            return mutant, sorted(covering, key=lambda test: (-known[test], not mutant.owns(test), seconds[test]))

        def work(job: tuple[Mutant, list[str]], note: Path) -> int:
            mutant, tests = job
            if not tests:
                return SURVIVED
            replace_code(mutant, functions)
            for cache in caches:
                cache.cache_clear()
            return first_failure([items[test] for test in tests], seconds, note)

        again = [mutant.name for mutant in self.chosen if not mutant.function]
        inside = map(with_tests, [mutant for mutant in self.chosen if mutant.function])
        for (mutant, _), status, taken, test in in_pool(inside, work, self.workers, self.end):
            outcome = outcome_of(status)
            if outcome in NOTICED:
                killers[mutant.key][test] += 1
            if outcome == "error" or (outcome == "survived" and mutant.key in at_import):
                again.append(mutant.name)
            else:
                self.results.add(mutant, outcome, taken, test)
        self.left.write_text(json.dumps({"again": again, "seconds": seconds}))
        return True

    def take_called(self) -> set[str]:
        """Return the functions that were called since the last time."""
        called = set(self.called)
        self.called.clear()
        return called

    def run_unchanged(self, items: Mapping[str, pytest.Item]) -> tuple[dict[str, set[str]], dict[str, float]]:
        """Return the functions that each test calls and its seconds, of all tests that pass without a change."""
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items.values():
            files[str(item.path)].append(item)
        caches = loaded_caches()

        def work(path: str, note: Path) -> int:
            found = []
            for item, following in zip(files[path], [*files[path][1:], None], strict=True):
                for cache in caches:
                    cache.cache_clear()
                since = time.process_time()
                passed = run_item(item, following)
                found.append((item.nodeid, passed, time.process_time() - since, sorted(self.take_called())))
            note.write_text(json.dumps([found, sorted(self.called_by_fixtures)]))
            return 0

        calls: dict[str, set[str]] = {}
        seconds: dict[str, float] = {}
        for path, status, _, noted in in_pool(sorted(files), work, self.workers, self.end):
            if noted is None:
                self.results.print(f"skipped, as its tests end with status {status} without a change: {path}")
                continue
            tests, shared = noted
            for test, passed, taken, called in tests:
                if passed:
                    calls[test], seconds[test] = {*called, *shared}, taken
                else:
                    self.results.print(f"skipped, as it fails without a change: {test}")
        self.results.print(f"{len(calls)} tests pass without a change, in {sum(seconds.values()):.0f} s")
        if not calls:
            raise RuntimeError("no test can be run here")
        return calls, seconds


class _Anew:
    """A pytest plugin for a process that imported a changed module: runs the tests that pass without the change."""

    def __init__(self, mutant: Mutant, seconds: Mapping[str, float], note: Path) -> None:
        self.mutant, self.seconds, self.note = mutant, seconds, note

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:  # of those that are imported without a change
            files = {name.split("::")[0] for name in self.seconds} - {
                item.nodeid.split("::")[0] for item in session.items
            }
            if missing := [name for name in sorted(files) if ROOT / name in test_files(self.mutant.module)]:
                self.note.write_text(json.dumps(missing[0]))
                os._exit(KILLED)
            session.testsfailed = 0
        known = [item for item in session.items if item.nodeid in self.seconds]
        ordered = sorted(known, key=lambda item: (not self.mutant.owns(item.nodeid), self.seconds[item.nodeid]))
        os._exit(first_failure(ordered, self.seconds, self.note))


def loaded_functions() -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """The functions of the core that exist, by file, qualified name and first line."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__code__.co_filename.startswith(str(CORE)):
            found[thing.__code__.co_filename, *_key(thing.__code__)].append(thing)
    return found


def loaded_caches() -> list[Any]:
    """The caches of functions of the package."""
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, functools._lru_cache_wrapper) and thing.__module__.startswith("objectseeker")
    ]


def replace_code(mutant: Mutant, functions: Mapping[tuple[str, str, int], Sequence[types.FunctionType]]) -> None:
    """Give every function of this name the changed code, wherever it is referred to."""

    def codes(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from codes(inner)

    path = str(path_of(mutant.module))
    key = mutant.function, mutant.start
    (changed,) = (code for code in codes(compile(mutant.make(), path, "exec")) if _key(code) == key)
    replaced = functions[path, *key]
    if not replaced:
        raise RuntimeError(f"{mutant.function} is nowhere")
    for function in replaced:
        function.__code__ = changed


def _key(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def test_mutants(chosen: Sequence[Mutant], results: Results, workers: int, end: float, slow: bool) -> None:
    """Test as many mutants as there is time for, in the order given."""
    modules = list(dict.fromkeys(mutant.module for mutant in chosen))
    files = test_files(*modules)
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "left")

        def in_functions() -> int:
            session = _Session(chosen, results, left, workers, end)
            sys.meta_path.insert(0, _Loader({module: noting_calls(module) for module in modules}, session.called))
            return run_pytest(files, session, slow)

        os.waitpid(in_child(in_functions), 0)
        if not left.exists():
            raise SystemExit("the tests cannot be run: set MUTATE_LOG=FILE and see why")
        noted = json.loads(left.read_text())
    names, seconds = set(noted["again"]), noted["seconds"]

    def anew(mutant: Mutant, note: Path) -> int:
        sys.meta_path.insert(0, _Loader({mutant.module: mutant.make()}))
        run_pytest(test_files(mutant.module), _Anew(mutant, seconds, note), slow)
        return FAULT  # the plugin ends the process, unless the tests cannot even be begun

    rest = [mutant for mutant in chosen if mutant.name in names]
    for mutant, status, taken, test in in_pool(rest, anew, workers, end):
        results.add(mutant, outcome_of(status), taken, test)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; a line that is a name alone has no outcome."""
    lines = path.read_text().splitlines()
    return [json.loads(line) if line.startswith("{") else {"mutant": line, "outcome": None} for line in lines]


def main() -> None:
    known = sorted(
        ".".join(path.relative_to(CORE).with_suffix("").parts)
        for path in CORE.rglob("*.py")
        if path.stem not in LEFT_OUT
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--per-operator", type=int, default=3, help="mutants of each operator and module in the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time, default: all cores"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="end then, whatever is left, default: 30")
    parser.add_argument("--slow", action="store_true", help="the slow tests, too")
    parser.add_argument("--only", type=Path, metavar="FILE", help="names, one per line, or results: those not noticed")
    parser.add_argument("--skip", type=Path, metavar="FILE", help="results: only mutants that have none there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append results as they come, as JSON lines")
    parser.add_argument("--list", action="store_true", help="print the names only")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    modules = arguments.modules.split(",")
    if unknown := [module for module in modules if module not in known]:
        parser.error(f"unknown module {unknown[0]!r}: choose from {', '.join(known)}")
    found = {module: mutants(module) for module in modules}
    per_operator = sys.maxsize if arguments.all else arguments.per_operator
    chosen = [mutant for module in modules for mutant in sample(found[module], per_operator, arguments.seed)]
    if arguments.only:
        names = {row["mutant"] for row in rows_of(arguments.only) if row["outcome"] not in NOTICED}
        chosen = [mutant for module in modules for mutant in found[module] if mutant.name in names]
    if arguments.skip:
        names = {row["mutant"] for row in rows_of(arguments.skip) if row["outcome"] not in ("unfinished", "error")}
        chosen = [mutant for mutant in chosen if mutant.name not in names]
    chosen.sort(key=lambda mutant: _place(mutant, arguments.seed))  # all modules alike, if there is no time for all
    if arguments.list:
        for mutant in chosen:
            print(mutant.name)
    total = sum(map(len, found.values()))
    print(f"{len(chosen)} of {total} mutants of {len(modules)} modules", flush=True)
    if arguments.list or not chosen:
        return

    listed = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    equivalent = {entry["mutant"]: entry["reason"] for entry in listed.get("equivalent", [])}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results")
        results = Results(out, equivalent)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            out = results.out = arguments.out
        already = len(rows_of(out)) if out.exists() else 0
        test_mutants(chosen, results, arguments.workers, end, arguments.slow)
        tested = rows_of(out)[already:] if out.exists() else []
    outcomes = Counter(row["outcome"] for row in tested)
    survivors = [row["mutant"] for row in tested if row["outcome"] not in (*NOTICED, "unfinished")]
    new = [name for name in survivors if name not in equivalent]
    print(f"{len(tested)} of {len(chosen)} begun: {', '.join(f'{count} {word}' for word, count in outcomes.items())}")
    for name in survivors:
        print(f"  equivalent  {name}: {equivalent[name]}" if name in equivalent else f"  NOT NOTICED {name}")
    noticed = sum(outcomes[word] for word in NOTICED)
    if rest := noticed + len(new):
        print(f"{noticed} of {rest} that are not equivalent were noticed: {100 * noticed / rest:.1f} %")
    sys.exit(bool(new))


if __name__ == "__main__":
    main()
