"""Which code made a row: a digest of the modules behind it, by which `evaluate.py` knows when a row is old."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from ehd_hf.solvers.base import available_solvers, get_solver

# What reads events, opens models and shows results: digests of the events and of the weights stand for the first two.
_NOT_THE_METHOD = ("ehd_hf.data.reading", "ehd_hf.data.sequences", "ehd_hf.data.sources", "ehd_hf.data.tables")
_NOT_THE_METHOD += ("ehd_hf.files", "ehd_hf.hub", "ehd_hf.present", "page")


def code_stamp(task: str, model_folders: Iterable[Path], solver: str | None = None) -> dict[str, Any]:
    """What a row says of its code: `modules` it began with, that of the task, of the models and of the solver named in
    `solver` if there is one, and `code`, the digest of these and of all they import."""
    modules = {f"tasks.{task}"}
    modules |= {type(AutoConfig.from_pretrained(folder)).__module__ for folder in model_folders}
    if (name := (solver or "").partition("+")[0]) in available_solvers():
        modules.add(type(get_solver(name)).__module__)
    return {"modules": sorted(modules), "code": code_digest(*sorted(modules))}


def is_current(row: Mapping[str, Any]) -> bool:
    """Whether the code that made a row is the code of today."""
    return "code" in row and row["code"] == code_digest(*row["modules"])


@functools.cache
def code_digest(*modules: str) -> str:
    """Digest of the named modules and of all they import of ours: of what they do, not of comments and docstrings."""
    found: dict[str, str] = {}
    left = list(modules)
    while left:
        module = left.pop()
        if module in found or module.startswith(_NOT_THE_METHOD):
            continue
        tree = _without_docstrings(ast.parse(_source(module)))
        found[module] = ast.dump(tree)
        left += [name for name in _imported(tree, module) if _is_ours(name)]
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()[:12]


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""  # it is gone, and with it the digest
    return Path(spec.origin).read_text(encoding="utf-8")


def _is_ours(module: str) -> bool:
    if module.partition(".")[0] not in ("ehd_hf", "tasks", "page"):
        return False
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name inside a module
        return False
    return spec is not None and not spec.submodule_search_locations  # packages only gather


def _imported(tree: ast.AST, module: str) -> Iterator[str]:
    package = module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*above, *([node.module] if node.module else [])])
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
