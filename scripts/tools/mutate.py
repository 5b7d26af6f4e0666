"""Mutation testing of the numerical core: is every line of it held by a test?

One small error at a time is put into `perplexity`, `rebuild`, the gate and the losses; a mutant that no test notices
has survived. Tests are collected once; each mutant is a forked child in which the code of one function is exchanged:
a killed one takes a fraction of a second. A survivor must be explained in mutants.md, or the exit code is 1.

    python scripts/tools/mutate.py [perplexity rebuild gated_lstm ehd ranking] [--function _GatedLSTM.backward]
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib
import inspect
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUALITY = ROOT / "scripts" / "tools" / "mutants.md"
# Those that ask the gate itself: a mutant that survives runs all of them, and all of test_mtpp.py takes a minute.
GATE_TESTS = [
    f"models/test_mtpp.py::test_{name}"
    for name in (
        "gates_reach_as_far_as_padding_before_an_event_and_no_farther",
        "states_are_those_of_torchs_own_lstm_with_and_without_gradients",
        "gradients_are_those_of_autograd_whatever_is_learned",
        "gradients_of_the_shortest_sequences_are_those_of_autograd",
        "gradients_that_arrive_are_left_as_they_came",
        "the_last_kept_time_moves_as_far_as_each_gate_says",
    )
]
# Module -> functions (all, if none are named) and the tests that must hold them.
TARGETS = {
    "models.perplexity": (
        [],
        ["models/test_perplexity.py", "test_bad_input.py::test_bad_arguments_are_refused_in_words"],
    ),
    "models.rebuild": ([], ["models/test_rebuild.py", "models/test_perplexity.py"]),
    "models.gated_lstm": (
        ["gate_padding", "last_kept_times", "_GatedLSTM.forward", "_GatedLSTM.backward"],
        GATE_TESTS,
    ),
    "models.ehd": (["EHDDistillerModel.forward", "sample_masks"], ["models/test_distillers.py"]),
    "models.ranking": (
        ["RankingDistillerModel._expected_drop", "_effects", "inclusion_probability"],
        ["models/test_ranking.py"],
    ),
}
SECONDS_PER_MUTANT = 180

SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutant(NamedTuple):
    """The statement `after` in the place of `before`, in the function `where` (a qualified name)."""

    where: str
    line: int
    before: str
    after: str
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None

    def __str__(self) -> str:
        return f"`{self.where}`: `{self.before}` -> `{self.after}`"


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node: the same with one small error."""
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
            yield ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPPED[type(operator)](), values)
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPPED:
            yield ast.Compare(left, [SWAPPED[type(operator)]()], [right])
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(str()):
            yield ast.Constant("another")
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.If(_, body, orelse):
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.Expr(ast.Call()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Call(function, arguments, keywords):
            for left_out in keywords:
                if left_out.arg != "device":  # there is one only where this runs
                    yield ast.Call(function, arguments, [one for one in keywords if one is not left_out])
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.expr):
                if not isinstance(function.value, ast.Name) or function.value.id != "torch":
                    yield function.value  # x.clamp(min=1) -> x


def places(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.AST], None]]]:
    """Every node below this one, the statement it stands in and how to put another in its place; no annotations,
    docstrings or error messages."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue

            def put(new: ast.AST, field: str = field, value: Any = value, index: int = index) -> None:
                if isinstance(value, list):
                    value[index] = new
                else:
                    setattr(node, field, new)

            around = child if isinstance(child, ast.stmt) else statement
            yield child, around, put
            yield from places(child, around)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")


def code_of(module: types.CodeType, name: str) -> types.CodeType:
    codes = [module]
    for code in codes:
        if code.co_qualname == name:
            return code
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    raise LookupError(name)


def literals(nodes: list[ast.expr | None]) -> list[Any]:
    return [None if node is None else ast.literal_eval(node) for node in nodes]


def first_line(node: ast.AST) -> str:
    """Of its source: enough of a statement with a body to know it by."""
    return next(line for line in ast.unparse(node).splitlines() if not line.startswith("@"))


def mutants_of(path: Path, names: list[str]) -> list[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for name, function in functions(tree):
        if names and name not in names:
            continue
        for node, statement, put in places(function, function):
            for new in replacements(node):
                before = first_line(statement)
                put(ast.copy_location(new, node))
                ast.fix_missing_locations(tree)
                code = code_of(compile(tree, str(path), "exec"), name)
                arguments = function.args
                by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
                keyword_defaults = {one.arg: ast.literal_eval(value) for one, value in by_name if value is not None}
                defaults = tuple(literals(list(arguments.defaults)))
                line = getattr(node, "lineno", function.lineno)
                after = first_line(new if node is statement else statement)
                found.append(Mutant(name, line, before, after, code, defaults or None, keyword_defaults or None))
                put(node)
    return found


def function_at(module: types.ModuleType, name: str) -> types.FunctionType:
    owner: Any = module
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, last)
    if isinstance(found, property):
        found = found.fget
    return inspect.unwrap(getattr(found, "__func__", found))


class MutationLoop:
    """A pytest plugin: in the place of running the tests once, run them against each mutant until one fails."""

    def __init__(self, module: str, names: list[str], only: list[str] | None = None) -> None:
        self.module, self.names, self.only = module, names, only
        self.survivors: list[Mutant] = []
        self.number = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        module = importlib.import_module(f"ehd_hf.{self.module}")
        items = list(session.items)
        # How long each test takes, which also shows that the tests pass without a mutant.
        seconds, failed = self.in_child(items, None, module)
        if failed is not None:
            raise pytest.UsageError(f"the tests must pass before mutants are tried; {items[failed].nodeid} does not")
        kills: collections.Counter[int] = collections.Counter()
        order = sorted(range(len(items)), key=lambda index: seconds[index])
        mutants = mutants_of(Path(str(module.__file__)), self.names)
        if self.only is not None:
            mutants = [mutant for mutant in mutants if mutant.where in self.only]
        self.number = len(mutants)
        for tried, mutant in enumerate(mutants):
            if tried and tried % 25 == 0:
                print(f"\n{self.module}: {tried} of {self.number} tried", file=sys.stderr, flush=True)
            # Tests that have killed most come first, quick ones before slow ones.
            order.sort(key=lambda index: -kills[index])
            _, failed = self.in_child([items[index] for index in order], mutant, module)
            if failed is None:
                self.survivors.append(mutant)
                print(f"\nsurvived: {self.module}:{mutant.line} {mutant}", flush=True)
            elif failed >= 0:
                kills[order[failed]] += 1
        return True

    def in_child(
        self, items: list[pytest.Item], mutant: Mutant | None, module: types.ModuleType
    ) -> tuple[list[float], int | None]:
        """Seconds of each test, and which failed first: None if none did, -1 if the child came to another end."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS_PER_MUTANT)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            with os.fdopen(writer, "w") as out:
                run_until_failure(items, mutant, module, out.write)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            said = lines.read().split()
        _, status = os.waitpid(child, 0)
        if status or (said and said[-1] == "failed"):
            return [], len(said) - 1 if status == 0 else -1
        return [float(one) for one in said], None


def run_until_failure(
    items: list[pytest.Item], mutant: Mutant | None, module: types.ModuleType, say: Callable[[str], Any]
) -> None:
    from _pytest.runner import runtestprotocol

    if mutant is not None:
        function = function_at(module, mutant.where)
        function.__code__ = mutant.code
        function.__defaults__, function.__kwdefaults__ = mutant.defaults, mutant.keyword_defaults
    for index, item in enumerate(items):
        began = time.perf_counter()
        following = items[index + 1] if index + 1 < len(items) else None
        reports = runtestprotocol(item, nextitem=following, log=False)
        if any(report.failed for report in reports):
            say("failed")
            return
        say(f"{time.perf_counter() - began:.4f} ")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    short = {module.rpartition(".")[2]: module for module in TARGETS}
    known_names = [*short, *(module for module in TARGETS if module not in short)]
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(known_names)}; all if none is named")
    parser.add_argument("--function", action="append", help="only mutants of this one (Class.method); may be repeated")
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - set(known_names):  # a name that means nothing must not pass for a success
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known_names)}")
    asked = {short.get(name, name) for name in arguments.modules}
    sys.path.insert(0, str(ROOT / "tests"))
    explained = QUALITY.read_text(encoding="utf-8") if QUALITY.exists() else ""
    unexplained = 0
    print("| module | mutants | killed | survived | explained | minutes |\n|---|---|---|---|---|---|")
    survivors = []
    for module, (names, tests) in TARGETS.items():
        if asked and module not in asked:
            continue
        loop, began = MutationLoop(module, names, arguments.function), time.perf_counter()
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", "not slow", "--no-summary"]
        files = [str(ROOT / "tests" / test) for test in tests]
        code = pytest.main([*options, *files], plugins=[loop])
        if code != pytest.ExitCode.OK or loop.number == 0:  # where nothing was tried, nothing survives
            print(f"{module}: no mutant was tried", file=sys.stderr)
            unexplained += 1
            continue
        known = [mutant for mutant in loop.survivors if str(mutant) in explained]
        unexplained += len(loop.survivors) - len(known)
        survivors += loop.survivors
        killed, minutes = loop.number - len(loop.survivors), (time.perf_counter() - began) / 60
        counts = (loop.number, killed, len(loop.survivors), len(known), f"{minutes:.1f}")
        print(f"| {module} | {' | '.join(map(str, counts))} |", flush=True)
    for mutant in survivors:
        print(f"line {mutant.line} {mutant}{'' if str(mutant) in explained else '  NOT EXPLAINED'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
