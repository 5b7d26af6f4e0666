"""Every promise of docs/operations.md names tests, and every test it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECTION = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("\n## Promises\n")[1].split("\n## ")[0]
PROMISES = [line for line in SECTION.splitlines() if line.startswith("| ") and line != "| promise | held by |"]


def marked_slow(file):
    """Name of a test -> whether it is marked slow."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        node.name: any(ast.unparse(mark) == "pytest.mark.slow" for mark in node.decorator_list) for node in functions
    }


@pytest.mark.parametrize("line", PROMISES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_a_promise_names_tests_and_says_which_are_slow(line):
    promise, held_by = (part.strip() for part in line.strip("| ").rsplit("|", 1))
    named = re.findall(r"(\*slow\* )?`(?:python )?((?:tests|scripts)/[\w/]+\.py)(?:::(test_\w+))?[^`]*`", held_by)
    assert promise and named, f"{promise}: held by {held_by}"
    for slow, file, test in named:
        is_slow = marked_slow(file)
        assert not test or test in is_slow, f"{file} has no {test}"
        assert not test or is_slow[test] == bool(slow), f"{file}::{test}: slow or not?"


def test_there_are_promises():
    assert len(PROMISES) >= 14
