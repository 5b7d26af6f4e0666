"""A model's code as one file, for where this package is not installed.

transformers fetches the modeling file that `config.json` names and what it imports from its own folder; a package with
folders does not travel. `flat_source` therefore collects what the given classes need, definition by definition,
following every import inside the package, and writes it in the order of the imports. A new backbone or distiller needs
no change here.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Pipeline

from .perplexity import dppl_parts
from .window import Window

TASK = "event-history-distillation"
Place = tuple[str, str]  # module, name


class EventHistoryPipeline(Pipeline):
    """`transformers.pipeline("event-history-distillation", model=..., trust_remote_code=True)`.

    Takes {"times": [...], "marks": [...]} (marks by name or number, times in the model's unit; "start", if known) or a
    list of (time, mark) pairs, or a list of either; `future` is the number of last events to explain, `history` how
    many before them to look at. Gives the distiller's own answer per sequence, plain values under the names of
    `Explanation.to_dict`.
    """

    model: Any  # a distiller
    _load_tokenizer: Any = False
    _load_feature_extractor: Any = False
    _load_image_processor: Any = False
    _load_processor: Any = False

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown := sorted(set(options) - {"future", "history"}):
            raise ValueError(f"The pipeline takes future and history; got unknown {', '.join(unknown)}.")
        for name, value in options.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a number of events of at least 1; got {value!r}.")
        return options, {}, {}

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        if isinstance(inputs, list | tuple) and inputs:
            is_one = not isinstance(inputs[0], dict) and not isinstance(inputs[0][0], list | tuple)
            named = [
                each if isinstance(each, dict) else self._columns(each) for each in ([inputs] if is_one else inputs)
            ]
            inputs = named[0] if is_one else named
        return super().__call__(inputs, *args, **options)

    @staticmethod
    def _columns(pairs: Any) -> dict[str, Any]:
        times, marks = zip(*pairs, strict=True)
        return {"times": times, "marks": marks}

    def preprocess(self, input_: Any, future: Any = None, history: Any = None, **_: Any) -> dict[str, Any]:
        config = self.model.config
        known = {label: mark for mark, label in config.id2label.items()}
        times = [float(time) for time in input_["times"]]
        marks = [known.get(mark, mark) for mark in input_["marks"]]
        if len(times) != len(marks) or times != sorted(times):
            raise ValueError(f"A sequence has a mark for every time, in order; got {len(times)} and {len(marks)}.")
        if unknown := [mark for mark in marks if mark not in config.id2label]:
            raise ValueError(f"The model knows the marks {', '.join(known)}; got {unknown[0]!r}. Check the spelling.")
        num_future = config.future if future is None else future
        if len(times) <= num_future:
            raise ValueError(
                f"The sequence has {len(times)} events, all of them in the future of {num_future}: the history is "
                "empty. Ask for a shorter future or give a longer sequence."
            )
        first = 0 if history is None else max(0, len(times) - num_future - history)
        start = times[0] if input_.get("start") is None else float(input_["start"])
        origin = times[first - 1] if first else start
        return {
            "times": torch.tensor([times[first:]], dtype=torch.float64) - origin,  # float32 would lose small intervals
            "marks": torch.tensor([marks[first:]]),
            "num_future": num_future,
            "events": [
                {"position": position, "time": time, "mark": config.id2label[mark], "score": None}
                for position, (time, mark) in enumerate(zip(times[first:], marks[first:], strict=True))
            ],
        }

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> Any:
        times, marks, num_future = (input_tensors[name] for name in ("times", "marks", "num_future"))
        mask = torch.ones_like(marks, dtype=torch.bool)
        window = Window(times, marks, mask, num_future)
        chosen, scores = self.model.distill(window.to(self.model.dtype))
        # What is reported is measured in double precision, as `EHDDistiller` does.
        drops = dppl_parts(
            copy.deepcopy(self.model.mtpp).double(),
            window,
            torch.stack([~chosen, chosen, torch.zeros_like(chosen)]).to(times.dtype),
            conditioning=self.model.config.conditioning,
            rebuilder="compact",
        )
        parts = torch.stack([drops.time, drops.mark])[..., 0]  # (2, 3)
        return {"chosen": chosen[0], "scores": scores[0], "parts": parts, "events": input_tensors["events"]}

    def postprocess(self, model_outputs: Any, **_: Any) -> dict[str, Any]:
        config, chosen, events = self.model.config, model_outputs["chosen"].tolist(), model_outputs["events"]
        parts = model_outputs["parts"]
        left, distilled, empty = (parts[0] + parts[1]).tolist()
        past = [
            event | {"score": score} for event, score in zip(events, model_outputs["scores"].tolist(), strict=False)
        ]
        by_epsilon = config.epsilon is not None
        return {
            "distilled": [event for event, part in zip(past, chosen, strict=True) if part],
            "left": [event for event, part in zip(past, chosen, strict=True) if not part],
            "future": events[len(past) :],
            "dppl_left": left,
            "dppl_left_time": parts[0, 0].item(),
            "dppl_left_mark": parts[1, 0].item(),
            "dppl_distilled": distilled,
            "dppl_empty": empty,
            "ds": distilled - left,
            "epsilon": config.epsilon,
            "share": config.share,
            "conditioning": config.conditioning,
            "constraint_met": left < math.log(config.epsilon) if by_epsilon else left <= config.share * empty,
            "is_most_recent": all(chosen[len(chosen) - sum(chosen) :]),
            "time_unit": config.mtpp_config.time_unit,
        }


# --- writing the file


def flat_source(classes: Sequence[type], title: str) -> str:
    """Source of one module that defines `classes` and all they need of their own packages.

    What a module does with a definition (registers a class, say) is taken along with it. Where two modules use one
    name for different things, the later one is renamed.

    Args:
        classes: defined at the top of modules that lie in files.
        title: the module's docstring.
    """
    sources = _Sources({cls.__module__.partition(".")[0] for cls in classes})
    needed: dict[str, set[int]] = {}  # by module, which of its statements
    imports: dict[Place, Place] = {}  # names that come from other packages
    to_do: list[Place] = [(cls.__module__, cls.__qualname__) for cls in classes]
    while to_do:
        home, name = sources.home(to_do.pop())
        module = sources[home]
        if name in module.foreign:
            imports[home, name] = module.foreign[name]
            continue
        for index, piece in enumerate(module.pieces):
            concerned = name in piece.binds or (not piece.binds and name in piece.mentions)
            if concerned and index not in needed.setdefault(home, set()):
                needed[home].add(index)
                to_do += [place for _, place in module.uses(piece)]

    order = [home for home in sources.in_order([*(cls.__module__ for cls in classes), *needed]) if home in needed]
    pieces = {home: [sources[home].pieces[index] for index in sorted(needed[home])] for home in order}
    names: dict[Place, str] = {}  # in the flat file: a thing's own name, unless another thing has it
    owners: dict[str, Any] = {}
    for place in [*imports, *((home, name) for home in order for piece in pieces[home] for name in piece.binds)]:
        home, name = place
        thing = imports.get(place, home)
        tail = home.removeprefix("ehd_hf.").replace(".", "_")
        names[place] = name if owners.setdefault(name, thing) == thing else f"{name}_{tail}"

    text = f'"""{title}"""\n\n' + "\n".join(_import_lines({names[place]: source for place, source in imports.items()}))
    for home in order:
        text += f"\n\n\n# --- {home}"
        before: ast.stmt | None = None
        for piece in pieces[home]:
            both_short = not any(isinstance(node, _BLOCKS) for node in (piece.node, before or piece.node))
            text += "\n" if before and both_short else "\n\n" if before is None else "\n\n\n"
            text += sources[home].text(piece, lambda place: names[sources.home(place)])
            before = piece.node
    return text + "\n"


_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Piece(NamedTuple):
    """A statement at the top of a module: the names it binds (none if it only acts), and all names in it."""

    node: ast.stmt
    binds: list[str]
    mentions: set[str]


class _Module:
    """A source file, read."""

    def __init__(self, name: str, own: set[str]) -> None:
        spec = None if name == "__main__" else importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise ValueError(f"code that travels must lie in a file; module {name!r} does not. Move it into one.")
        self.name, self.source = name, Path(spec.origin).read_bytes()
        self.lines = self.source.splitlines(keepends=True)
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        self.foreign: dict[str, Place] = {}  # names from other packages; (module, "") is the module itself
        self.links: dict[str, Place] = {}  # names from `own` packages, the same way
        self.needs: list[str] = []  # modules that must stand before this one
        self.own_imports: list[ast.stmt] = []  # anywhere; in the flat file their names are simply there
        tree = ast.parse(self.source)
        at_the_top = set(map(id, tree.body))
        for node in ast.walk(tree):
            for bound, source in _imported(node, package, own):
                if source[0].partition(".")[0] in own:
                    self.links[bound] = source
                    self.own_imports.append(node)  # type: ignore[arg-type]  # `_imported` knows statements only
                    self.needs += [source[0]] if id(node) in at_the_top else []
                elif id(node) in at_the_top:
                    self.foreign[bound] = source
        self.lazy = self.foreign.pop("annotations", None) == ("__future__", "annotations")
        self.pieces = [
            _Piece(node, _bound(node), _mentioned(node))
            for node in tree.body
            if not (isinstance(node, ast.Import | ast.ImportFrom) or _is_idle(node))
        ]
        self.defined = {bound for piece in self.pieces for bound in piece.binds}

    def uses(self, piece: _Piece) -> Iterator[tuple[ast.expr, Place]]:
        """Every node of a statement that stands for something at the top of a module, and what that is."""
        unread = {id(node) for whole in _annotations(piece.node) for node in ast.walk(whole)} if self.lazy else set()
        seen = set()
        for node in ast.walk(piece.node):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in unread:
                module, name = self.links.get(node.value.id, ("", None))
                if name == "":  # module.name
                    seen.add(id(node.value))
                    yield node, (module, node.attr)
            elif isinstance(node, ast.Name) and id(node) not in seen:
                # Annotations that nobody reads need their imports (dataclasses look for ClassVar), not more.
                if node.id in self.foreign or (id(node) not in unread and node.id in self.defined):
                    yield node, (self.name, node.id)
                elif id(node) not in unread and node.id in self.links:
                    yield node, self.links[node.id]

    def text(self, piece: _Piece, name_of: Callable[[Place], str]) -> str:
        """A statement with the comments above it, in the names of the flat file."""
        edits: dict[tuple[int, int], str] = {}
        for node, place in self.uses(piece):
            old, new = ast.unparse(node), name_of(place)
            if old != new:
                edits[self._span(node)] = new
                # Not found where it should stand: inside a formatted string of an older Python.
                if self.source[slice(*self._span(node))] != old.encode() or old in _parameters(piece.node):
                    raise ValueError(f"{old!r} of {self.name} must be called {new!r} to travel. Rename it there.")
        for statement in self.own_imports:
            edits[self._span(statement)] = "pass"
        for annotation in _annotations(piece.node) if self.lazy else ():
            start, end = self._span(annotation)
            edits = {span: new for span, new in edits.items() if not start <= span[0] < end}
            edits[start, end] = f'"{ast.unparse(annotation)}"'  # read in the flat file, where there is no __future__
        first = min([piece.node.lineno, *(node.lineno for node in getattr(piece.node, "decorator_list", ()))])
        while first > 1 and self.lines[first - 2].startswith(b"#"):
            first -= 1
        begin, end = self._offset(first, 0), self._span(piece.node)[1]
        parts = []
        for (start, stop), new in sorted(edits.items()):
            if begin <= start < end:
                parts += [self.source[begin:start], new.encode()]
                begin = stop
        return b"".join([*parts, self.source[begin:end]]).decode()

    def _offset(self, line: int, column: int) -> int:
        return sum(map(len, self.lines[: line - 1])) + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)


class _Sources(dict[str, _Module]):
    """Modules by name, read when they are asked for."""

    def __init__(self, own: set[str]) -> None:
        super().__init__()
        self.own = {"ehd_hf", *own}

    def __missing__(self, name: str) -> _Module:
        self[name] = _Module(name, self.own)
        return self[name]

    def home(self, place: Place) -> Place:
        """Where a name is defined, or imported from another package."""
        module, name = place
        while name not in self[module].defined and name in self[module].links:
            module, name = self[module].links[name]
        if name not in self[module].defined and name not in self[module].foreign:
            raise ValueError(f"{name or 'the module'!r} is not defined at the top of {module}, so it cannot travel.")
        return module, name

    def in_order(self, names: Iterable[str], above: tuple[str, ...] = ()) -> list[str]:
        """The modules and those they import, each after what it imports."""
        found: list[str] = []
        for name in names:
            if name not in above:
                found += [*self.in_order(self[name].needs, (*above, name)), name]
        return list(dict.fromkeys(found))


def _imported(node: ast.AST, package: str, own: set[str]) -> Iterator[tuple[str, Place]]:
    """The names an import statement binds, and what they are: (module, name), or (module, "") for a module."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, "")
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            is_module = base.partition(".")[0] in own and inner in sys.modules
            yield alias.asname or alias.name, ((inner, "") if is_module else (base, alias.name))


def _import_lines(imports: Mapping[str, Place]) -> list[str]:
    """Statements that bind each name to what it is, one for each module."""
    whole, parts = [], dict[str, list[str]]()
    for bound, (module, name) in sorted(imports.items()):
        if name:
            parts.setdefault(module, []).append(name if bound == name else f"{name} as {bound}")
        else:
            whole.append(f"import {module}" if bound == module.partition(".")[0] else f"import {module} as {bound}")
    return [*sorted(whole), *(f"from {module} import {', '.join(names)}" for module, names in sorted(parts.items()))]


def _is_idle(node: ast.stmt) -> bool:
    """A docstring, or what only type checkers see."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, _BLOCKS):
        return [node.name]
    if isinstance(node, ast.AugAssign):
        return []  # changes what is there
    stored = (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return list(dict.fromkeys(stored))


def _mentioned(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _parameters(node: ast.AST) -> set[str]:
    return {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def _annotations(node: ast.AST) -> list[ast.expr]:
    found = (
        getattr(each, "returns" if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) else "annotation", None)
        for each in ast.walk(node)
    )
    return [each for each in found if each is not None and not isinstance(each, ast.Constant)]
