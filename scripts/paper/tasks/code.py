"""Which code made a row: a digest of the definitions behind it, by which `evaluate.py` knows when a row is old.

Reached are the definitions of the modules a row began with, and from there, in all that these import of ours, whatever
bears a name that reached code mentions. That is more than what runs, and never less but for names built from strings.
So a new method or a new module that nobody calls leaves rows current.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig

from ehd_hf.solvers.base import available_solvers, get_solver

# What reads events, opens models and shows results: digests of the events and of the weights stand for the first two.
_NOT_THE_METHOD = ("ehd_hf.data.reading", "ehd_hf.data.sequences", "ehd_hf.data.sources", "ehd_hf.data.tables")
_NOT_THE_METHOD += ("ehd_hf.files", "ehd_hf.hub", "ehd_hf.present", "page")


class Definition(NamedTuple):
    """A function, a method, the fields of a class, or a constant."""

    name: str
    text: str
    mentions: frozenset[str]  # names that its code uses


def code_stamp(task: str, model_folders: Iterable[Path], solver: str | None = None) -> dict[str, Any]:
    """What a row says of its code: `modules` it began with, that of the task, of the models and of the solver named in
    `solver` if there is one, and `code`, the digest of what they reach."""
    modules = {f"tasks.{task}"}
    for config in map(AutoConfig.from_pretrained, model_folders):
        modules |= {type(part).__module__ for part in (config, getattr(config, "mtpp_config", config))}
    if (name := (solver or "").partition("+")[0]) in available_solvers():
        modules.add(type(get_solver(name)).__module__)
    return {"modules": sorted(modules), "code": code_digest(*sorted(modules))}


def is_current(row: Mapping[str, Any]) -> bool:
    """Whether the code that made a row is the code of today."""
    return "code" in row and row["code"] == code_digest(*row["modules"])


@functools.cache
def code_digest(*modules: str) -> str:
    """Digest of what the named modules reach: of what it does, not of comments and docstrings."""
    found: dict[str, list[Definition]] = {}
    left = list(modules)
    while left:
        module = left.pop()
        if module in found or module.startswith(_NOT_THE_METHOD):
            continue
        tree = _without_docstrings(ast.parse(_source(module)))
        found[module] = list(_definitions(tree.body))
        left += [name for name in _imported(tree, module) if _is_ours(name)]
    reached = {definition for module in modules for definition in found.get(module, [])}
    others = {definition for listed in found.values() for definition in listed} - reached
    while others:
        mentioned = frozenset().union(*(definition.mentions for definition in reached))
        if not (new := {definition for definition in others if definition.name in mentioned}):
            break
        reached |= new
        others -= new
    lines = sorted(f"{definition.name} {definition.text}" for definition in reached)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _definitions(body: list[ast.stmt], owner: str = "") -> Iterator[Definition]:
    """Of a module, or of the class `owner`. What Python calls by itself, and `forward`, goes by the class's name."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            yield from _definitions(list(methods), node.name)
            node.body = [part for part in node.body if part not in methods] or [ast.Pass()]
            yield _definition(node, node.name)
        elif isinstance(node, ast.FunctionDef):
            implicit = owner and (node.name.startswith("__") or node.name == "forward")
            yield _definition(node, owner if implicit else node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            yield from (_definition(node, name) for name in names)


def _definition(node: ast.AST, name: str) -> Definition:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    attributes = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return Definition(name, ast.dump(node), frozenset(names | attributes))


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
