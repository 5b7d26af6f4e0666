"""Mutation testing of the numerical core: does a test notice a small error in any line of it?

One error at a time is put into a function; a mutant that no test notices has survived. Tests are collected once, and
each mutant is a forked child in which the code of one function is exchanged, so most take a fraction of a second.
A survivor must be explained in mutants.md, or the exit code is 1.

    python scripts/tools/mutate.py                                  # all modules, about an hour
    python scripts/tools/mutate.py gated_lstm --function _GatedLSTM.backward
"""

from __future__ import annotations

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
from typing import Annotated, Any, NamedTuple

import pytest
import typer
from _pytest.runner import runtestprotocol

TESTS = Path(__file__).resolve().parents[2] / "tests"
EXPLAINED = Path(__file__).with_name("mutants.md")
# Module of ehd_hf.models -> its functions (all, if none are named) and the arguments of pytest that choose its tests.
# Of test_mtpp.py those that ask the gate itself: a mutant that survives runs all of them.
GATE = "gates or lstm or gradients or last_kept"
TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "perplexity": ([], ["test_perplexity.py", "test_window_question.py"]),
    "question": ([], ["test_window_question.py", "../explain/test_explanation.py"]),
    "window": ([], ["test_window_question.py", "test_perplexity.py"]),
    "rebuild": ([], ["test_rebuild.py", "test_perplexity.py"]),
    "gated_lstm": (
        ["gate_padding", "last_kept_times", "_GatedLSTM.forward", "_GatedLSTM.backward"],
        ["test_mtpp.py", "-k", GATE],
    ),
    "ehd": (["EHDDistillerModel.forward", "sample_masks"], ["test_distillers.py", "test_distiller_contract.py"]),
    "ranking": (["RankingDistillerModel._expected_drop", "_effects", "inclusion_probability"], ["test_ranking.py"]),
}
SECONDS_PER_MUTANT = 180
PAIRS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or), (ast.Lt, ast.LtE)]
PAIRS += [(ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
SWAPPED: dict[type, type] = dict(PAIRS) | {second: first for first, second in PAIRS} | {ast.BitXor: ast.BitOr}


class Mutant(NamedTuple):
    """The statement `after` in the place of `before`, in the function `where` (a qualified name)."""

    where: str
    line: int
    before: str
    after: str
    code: types.CodeType

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
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) != "torch":
                yield function.value  # x.clamp(min=1) -> x


def places(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.AST], None]]]:
    """Every node below this one, the statement it stands in and how to put another in its place; not in signatures,
    docstrings or error messages."""
    for field, value in ast.iter_fields(node):
        if field in ("args", "returns", "decorator_list") and isinstance(node, ast.FunctionDef):
            continue
        if field == "annotation" or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
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


def mutants_of(path: Path, names: list[str]) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, function in functions(tree):
        for node, statement, put in places(function, function) if not names or name in names else ():
            for new in replacements(node):
                before = ast.unparse(statement).splitlines()[0]
                put(ast.copy_location(new, node))
                ast.fix_missing_locations(tree)
                code = code_of(compile(tree, str(path), "exec"), name)
                after = ast.unparse(new if node is statement else statement).splitlines()[0]
                yield Mutant(name, getattr(node, "lineno", function.lineno), before, after, code)
                put(node)


def function_at(module: types.ModuleType, name: str) -> types.FunctionType:
    *outer, last = name.split(".")
    owner: Any = module
    for part in outer:
        owner = getattr(owner, part)
    member = inspect.getattr_static(owner, last)
    member = member.fget if isinstance(member, property) else member
    return inspect.unwrap(getattr(member, "__func__", member))


class MutationLoop:
    """A pytest plugin: instead of running the tests once, run them against each mutant until one fails."""

    def __init__(self, module: str, names: list[str]) -> None:
        self.name, self.names = module, names
        self.survivors: list[Mutant] = []
        self.number = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.module = importlib.import_module(f"ehd_hf.models.{self.name}")
        items = list(session.items)
        seconds, failed = self.in_child(items, None)
        if failed is not None:
            raise pytest.UsageError(f"the tests must pass before mutants are tried; {items[failed].nodeid} does not")
        kills: collections.Counter[int] = collections.Counter()
        order = sorted(range(len(items)), key=lambda index: seconds[index])
        for mutant in mutants_of(Path(str(self.module.__file__)), self.names):
            self.number += 1
            order.sort(key=lambda index: -kills[index])  # tests that have killed most come first
            _, failed = self.in_child([items[index] for index in order], mutant)
            if failed is None:
                self.survivors.append(mutant)
                print(f"\nsurvived: line {mutant.line} {mutant}", flush=True)
            elif failed >= 0:
                kills[order[failed]] += 1
        return True

    def in_child(self, items: list[pytest.Item], mutant: Mutant | None) -> tuple[list[float], int | None]:
        """Seconds of each test, and which failed first: None if none did, -1 if the child was killed."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS_PER_MUTANT)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            with os.fdopen(writer, "w") as out:
                self.run_until_failure(items, mutant, out.write)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            words = lines.read().split()
        _, status = os.waitpid(child, 0)
        if status or (words and words[-1] == "failed"):
            return [], len(words) - 1 if status == 0 else -1
        return [float(word) for word in words], None

    def run_until_failure(self, items: list[pytest.Item], mutant: Mutant | None, write: Callable[[str], Any]) -> None:
        if mutant is not None:
            function_at(self.module, mutant.where).__code__ = mutant.code
        for item, following in zip(items, [*items[1:], None], strict=True):
            began = time.perf_counter()
            if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
                write("failed")
                return
            write(f"{time.perf_counter() - began:.4f} ")


def main(
    modules: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(TARGETS)}; all if none is named")] = None,
    function: Annotated[list[str] | None, typer.Option(help="only mutants of this one (Class.method)")] = None,
) -> None:
    """Try the mutants of modules; ends with 1 if a survivor is not explained."""
    if unknown := sorted(set(modules or ()) - set(TARGETS)):
        raise typer.BadParameter(f"modules must be of {', '.join(TARGETS)}; got {unknown[0]}.")
    sys.path.insert(0, str(TESTS))
    explained, lines, unexplained = EXPLAINED.read_text(encoding="utf-8"), [], []
    for module in modules or TARGETS:
        names, (file, *selection) = TARGETS[module]
        loop, began = MutationLoop(module, function or names), time.perf_counter()
        files = [str(TESTS / "models" / name) if name.endswith(".py") else name for name in (file, *selection)]
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", "not slow", "--no-summary"]
        if pytest.main([*options, *files], plugins=[loop]) != pytest.ExitCode.OK or loop.number == 0:
            print(f"{module}: no mutant was tried", file=sys.stderr)  # where nothing was tried, nothing survives
            raise typer.Exit(1)
        unexplained += [str(mutant) for mutant in loop.survivors if str(mutant) not in explained]
        counts = (loop.number, loop.number - len(loop.survivors), len(loop.survivors))
        lines.append(f"| {module} | {' | '.join(map(str, counts))} | {(time.perf_counter() - began) / 60:.1f} |")
    print("| module | mutants | killed | survived | minutes |\n|---|---|---|---|---|", *lines, sep="\n")
    print(f"{len(unexplained)} survivors are not explained in {EXPLAINED.name}", *unexplained, sep="\n")
    raise typer.Exit(1 if unexplained else 0)


if __name__ == "__main__":
    typer.run(main)
