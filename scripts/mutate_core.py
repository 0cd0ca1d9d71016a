"""Change the core one place at a time, and list the changes that its tests do not notice.

    python scripts/mutate_core.py                            a sample of every module, half an hour on two cores
    python scripts/mutate_core.py --modules bounds,joint --per-operator 99
    python scripts/mutate_core.py --list                     the sample, without running it
    python scripts/mutate_core.py --only names.txt           the mutants of these names, such as --list prints

A mutant is one small change: an operator, a number, an argument or a statement that is dropped. It runs the tests
of its module, then all others of tests/core, then those of MORE; slow ones with --slow. The tests are collected once
per module: each mutant is a copy of that process in which the code of one function is replaced. Changes outside
of functions take a process of their own. The sample follows from the names of the mutants, so it stays the same as the
code around them changes, and Hypothesis draws the same examples each time.

Survivors that change nothing, or nothing that matters, are in mutate_core_equivalent.toml, each with its reason. Exit
status 1 if another one survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
import tempfile
import time
import tomllib
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

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
OWN_ONLY = "MUTATE_OWN_ONLY"  # environment variable: a first look, with the tests of the module itself alone
MEMORY = 3 * 2**30
MAX_CPU = 240  # seconds of a mutant, all its tests included: what runs longer is in a loop, which tests notice
UNIMPORTANT = (None, "dtype", "strict", "kind")  # arguments of calls
MAX_LENGTH = 70  # characters of a name's part

# The tests that concern a module most; the others of tests/core follow.
OWN = {
    "boxes": ("test_boxes", "test_observation", "test_pruning"),
    "bounds": ("test_bounds", "test_margin"),
    "certification": ("test_traps", "test_outside", "test_bands", "test_against_oracle", "test_two_patches"),
    "fabrication": ("test_fabrication",),
    "evidence": ("test_margin", "test_joint", "test_outside", "test_bands", "test_against_oracle", "test_two_patches"),
    "joint": ("test_joint",),
    "label_map": ("test_traps",),
    "masks": ("test_masks", "test_windows", "test_recipes", "test_two_patches"),
    "observation": ("test_observation",),
    "positions": ("test_joint", "test_two_patches", "test_bands"),
    "pruning": ("test_pruning", "test_margin", "test_against_oracle"),
    "recipes": ("test_recipes", "test_rolling", "test_bands"),
    "seeker": ("test_seeker", "test_stream", "test_traps"),
    "temporal": ("test_temporal",),
    "threats": ("test_threats", "test_outside"),
    "rules.evidence": ("test_margin", "test_against_oracle", "test_pruning"),
    "rules.interface": ("test_joint", "test_margin", "test_iou_variant"),
    "rules.iou": ("test_iou_variant", "test_margin", "test_joint"),
}
# Tests elsewhere of what the core does for them.
MORE = {
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
    "seeker": ("inference/test_detections.py", "inference/test_watching.py"),
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


def sample(found: Sequence[Mutant], per_operator: int, seed: int) -> list[Mutant]:
    """Return the first of each operator, in the order of their hashed names."""

    def place(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed}:{mutant.name}".encode()).digest()

    taken: Counter[str] = Counter()
    chosen = []
    for mutant in sorted(found, key=place):
        taken[mutant.operator] += 1
        if taken[mutant.operator] <= per_operator:
            chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: mutant.line)


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import one module from a tree."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.name, self.tree = f"objectseeker.core.{module}", tree
        self.path = str(path_of(module))

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self, origin=self.path) if name == self.name else None

    def exec_module(self, module: object) -> None:
        exec(compile(self.tree, self.path, "exec"), vars(module))


def path_of(module: str) -> Path:
    return CORE / f"{module.replace('.', '/')}.py"


def test_files(module: str) -> list[Path]:
    """The test files of the module, then the others of the core, then those elsewhere."""
    own = [TESTS / f"{name}.py" for name in OWN.get(module, (f"test_{module.split('.')[-1]}",))]
    own = [path for path in own if path.exists()]
    rest = sorted(path for path in TESTS.glob("test_*.py") if path not in own)
    return own if OWN_ONLY in os.environ else [*own, *rest, *(ROOT / "tests" / name for name in MORE.get(module, ()))]


def run_tests(module: str, plugin: object, slow: bool) -> int:
    """Run the tests of a module in this process, with a plugin that may take over."""
    os.chdir(ROOT)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no smaller example is needed
    hypothesis.settings.register_profile("mutants", database=None, derandomize=True, deadline=None, phases=phases)
    options = ["-x", "-q", "--hypothesis-profile=mutants"]
    options += [word for name in ("cacheprovider", "xdist", "anyio", "doctest") for word in ("-p", f"no:{name}")]
    options += [] if slow else ["-m", "not slow"]
    return int(pytest.main([*options, *map(str, test_files(module))], plugins=[plugin]))


def in_child(work: Callable[[], int], cpu: int = resource.RLIM_INFINITY) -> int:
    """Do something in a copy of this process, without a word; return its id. Its exit status is what `work` returns."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        quiet = os.open(os.environ.get("MUTATE_OUT", os.devnull), os.O_WRONLY | os.O_APPEND)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Crew:
    """Several mutants at a time, each in a child of this process."""

    def __init__(self, workers: int, end: float, results: Path) -> None:
        self.workers, self.end, self.results = workers, end, results
        self.terminal = os.fdopen(os.dup(1), "w")  # what pytest prints goes elsewhere

    def test(self, mutants: Sequence[Mutant], work: Callable[[Mutant], int]) -> None:
        """Test every mutant for which there is time, and print the outcome."""
        waiting, going = list(mutants), dict[int, tuple[Mutant, float]]()
        while going or (waiting and time.monotonic() < self.end):
            while waiting and len(going) < self.workers and time.monotonic() < self.end:
                mutant = waiting.pop(0)
                going[in_child(lambda mutant=mutant: work(mutant), MAX_CPU)] = mutant, time.monotonic()
            time.sleep(0.02)
            for child, (mutant, since) in list(going.items()):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    outcome = "killed" if os.waitstatus_to_exitcode(status) else "survived"
                    del going[child]
                    told = f"{outcome:15} {time.monotonic() - since:4.0f} s {mutant.line:4} {mutant.name}"
                    print(told, file=self.terminal, flush=True)
                    with self.results.open("a") as stream:
                        stream.write(f"{outcome}\t{mutant.name}\n")


class _Forks:
    """A pytest plugin: instead of running the tests, copies of this process with a mutant each run them."""

    def __init__(self, crew: Crew, module: str, mutants: Sequence[Mutant]) -> None:
        self.crew, self.module, self.mutants = crew, module, mutants

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True  # it cannot be collected

        def work(mutant: Mutant | None) -> int:
            if mutant is not None:
                replace_code(path_of(self.module), mutant)
            for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return 1
            return 0

        self.crew.test(self.mutants, work)
        return True


def replace_code(path: Path, mutant: Mutant) -> None:
    """Give every function of this name the changed code, wherever it is referred to; forget what it once returned."""

    def codes(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from codes(inner)

    (changed,) = (
        code
        for code in codes(compile(mutant.make(), str(path), "exec"))
        if _key(code) == (mutant.function, mutant.start)
    )
    replaced = 0
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__code__.co_filename == str(path):
            if _key(thing.__code__) == (mutant.function, mutant.start):
                thing.__code__ = changed
                replaced += 1
        elif isinstance(thing, functools._lru_cache_wrapper) and thing.__module__.startswith("objectseeker"):
            thing.cache_clear()
    if not replaced:
        raise RuntimeError(f"{mutant.function} is nowhere")


def _key(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def test_module(module: str, chosen: Sequence[Mutant], crew: Crew, slow: bool) -> None:
    """Test the mutants of one module, printing each."""

    def fresh(mutant: Mutant) -> int:
        sys.meta_path.insert(0, _Loader(module, mutant.make()))
        return run_tests(module, object(), slow)

    crew.test([mutant for mutant in chosen if not mutant.function], fresh)
    inside = [mutant for mutant in chosen if mutant.function]
    if inside and time.monotonic() < crew.end:
        os.waitpid(in_child(lambda: run_tests(module, _Forks(crew, module, inside), slow)), 0)


def check_setup(module: str, slow: bool) -> None:
    """Tests pass without a change, and fail if the module cannot be imported."""
    tree = ast.parse(path_of(module).read_text())
    broken = ast.parse("raise RuntimeError")
    for changed, fails in ((broken, True), (tree, False)):

        def work(changed: ast.Module = changed) -> int:
            sys.meta_path.insert(0, _Loader(module, changed))
            return run_tests(module, object(), slow)

        _, status = os.waitpid(in_child(work), 0)
        if (os.waitstatus_to_exitcode(status) != 0) != fails:
            raise SystemExit(f"the tests of {module} {'pass with a module that raises' if fails else 'fail unchanged'}")


def main() -> None:
    known = sorted(
        ".".join(path.relative_to(CORE).with_suffix("").parts)
        for path in CORE.rglob("*.py")
        if path.stem not in LEFT_OUT
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--per-operator", type=int, default=3, help="mutants of each operator and module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0, help="start no mutant after that")
    parser.add_argument("--slow", action="store_true", help="the slow tests of tests/core, too, where all others pass")
    parser.add_argument("--only", type=Path, metavar="FILE", help="mutants by name, one per line")
    parser.add_argument("--list", action="store_true", help="print the names only")
    arguments = parser.parse_args()
    modules = arguments.modules.split(",")
    if unknown := [module for module in modules if module not in known]:
        parser.error(f"unknown module {unknown[0]!r}: choose from {', '.join(known)}")
    found = {module: mutants(module) for module in modules}
    chosen = [mutant for module in modules for mutant in sample(found[module], arguments.per_operator, arguments.seed)]
    if arguments.only:
        listed_names = set(arguments.only.read_text().splitlines())
        chosen = [mutant for module in modules for mutant in found[module] if mutant.name in listed_names]
    if arguments.list:
        for mutant in chosen:
            print(mutant.name)
    total = sum(map(len, found.values()))
    print(f"{len(chosen)} of {total} mutants of {len(modules)} modules", flush=True)
    if arguments.list:
        return

    listed = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    equivalent = {entry["mutant"]: entry["reason"] for entry in listed.get("equivalent", [])}
    if OWN_ONLY not in os.environ:
        check_setup(modules[0], arguments.slow)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        results.touch()
        crew = Crew(arguments.workers, time.monotonic() + 60 * arguments.minutes, results)
        for module in modules:
            test_module(module, [mutant for mutant in chosen if mutant in found[module]], crew, arguments.slow)
        tested = [line.split("\t") for line in results.read_text().splitlines()]
    survivors = [name for outcome, name in tested if outcome == "survived"]
    new = [name for name in survivors if name not in equivalent]
    print(f"{len(tested)} of {len(chosen)} tested, {len(tested) - len(survivors)} killed, {len(survivors)} survived:")
    for name in survivors:
        print(f"  equivalent  {name}: {equivalent[name]}" if name in equivalent else f"  NOT NOTICED {name}")
    if rest := len(tested) - len(survivors) + len(new):
        print(f"{rest - len(new)} of {rest} that are not equivalent were killed: {100 - 100 * len(new) / rest:.1f} %")
    sys.exit(bool(new))


if __name__ == "__main__":
    main()
