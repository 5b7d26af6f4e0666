"""Who may import whom (DESIGN.md), read from the source by `ast`; and the front door is lazy."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ehd_hf

PACKAGE = Path(ehd_hf.__file__).parent
EVENTS_ONLY = {"events"}

# DESIGN's table. A folder ("choose one of these") stands for all its modules.
MAY_IMPORT = {
    "events": set(),
    "files": set(),
    "report": set(),
    "analysis": set(),
    "plotting": set(),
    "windows": EVENTS_ONLY,
    "sources": EVENTS_ONLY | {"synthetic"},
    "synthetic": EVENTS_ONLY,
    "mtpp": EVENTS_ONLY,
    "rebuild": EVENTS_ONLY,
    "training": EVENTS_ONLY,
    "explanation": {"events", "plotting", "report"},
    "perplexity": {"events", "mtpp.base", "rebuild"},
    "distillers": {"perplexity", "rebuild", "mtpp.base"},
    "solvers": {"perplexity"},
    "evaluation": {"events", "synthetic", "solvers.base", "distillers.base", "perplexity", "explanation"},
    "hub": {"report", "windows"},
    "pipeline": {"events", "windows", "distillers", "solvers", "perplexity", "explanation", "hub"},
    "cli": None,  # anything
}
# Beyond DESIGN's table, each with its reason.
ADDED = {
    "baselines": EVENTS_ONLY,  # trivial models of event sequences, fitted like `synthetic` simulates them
    "evaluation": {"baselines", "windows", "mtpp.base", "analysis"},  # tables of MTPPs and windows; the bootstrap
    # Methods side by side at a target: windows are answered as `evaluation` does it, certified as in `explanation`.
    "comparison": {"evaluation", "analysis", "explanation", "solvers", "distillers.base", "mtpp.base", "windows"}
    | {"perplexity"},
    # Rankings against the causes only `synthetic` knows; the true process takes an MTPP's place.
    "causes": {"analysis", "mtpp", "perplexity", "solvers.base", "synthetic", "windows"},
    # The same methods as `comparison`, with other seeds and shuffled weights.
    "trust": {"comparison", "evaluation", "analysis", "explanation", "solvers.base", "distillers.base", "mtpp.base"}
    | {"windows", "perplexity"},
    "cards": {"report"},  # the words of `hub`, which holds the way there and back
    "hub_errors": set(),  # of `hub` and of data sets that come from the Hub
    "hub": {"cards", "evaluation", "hub_errors", "remote_code"},  # rows are found by the digest evaluation gives them
    "remote_code": {"perplexity"},  # the pipeline that travels with a model
    "explanation": {"pages"},  # an explanation as a page, as `plotting` draws it as a picture
    # The report of a data set: explains, evaluates and sums up, so it stands behind all of these.
    "html_report": {"events", "analysis", "baselines", "evaluation", "explanation", "pages", "pipeline", "report"},
    "pages": set(),  # like `report` and `plotting`: rows and explanations in, text out
    "intensities": {"events", "explanation", "mtpp.base"},  # the curves of an explanation, from its point process
    "pipeline": {"intensities", "mtpp"},  # computed on request; `from_mtpp` opens any backbone
    "streaming": {"events", "windows", "explanation", "pipeline"},  # the pipeline's answers without its objects
    "reading": EVENTS_ONLY,  # tables as people have them, before the strict door of `events`
    "planning": {"events", "reading"},  # decides from counts and intervals, says it in words; no torch
    # A plan carried out: both training stages, the judgement at the end. Only `cli` stands behind it.
    "fitting": {"events", "reading", "planning", "windows", "mtpp", "distillers", "training", "baselines"}
    | {"evaluation", "comparison", "explanation"},
    # The page to play with. Like `cli` it stands behind all it shows, and only `cli` starts it.
    "app": {"events", "explanation", "fitting", "pages", "pipeline", "reading", "synthetic"},
    "sources": {"hub_errors"},  # a source may be a data set on the Hub
    "windows": {"sources", "report"},  # windows are cut from whatever is a source; a card shows names as they are
}
SHARED = {"base", "encoder"}  # parts of a folder that its siblings have in common
FOLDERS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
MODULES = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in ("templates", "checkpoints")
)


def imports_of(module):
    """Our modules that `module` imports anywhere, as dotted names inside the package; "" is the front door itself."""
    path = PACKAGE / (module.replace(".", "/") + ".py")
    here = ["ehd_hf", *module.split(".")][:-1]  # the package it lives in
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "ehd_hf"}
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] != "ehd_hf":
                continue
            # `from . import x` names a module or something the package defines.
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner.removeprefix("ehd_hf.") in {*MODULES, *FOLDERS} else base)
    return {name.removeprefix("ehd_hf").removeprefix(".") for name in found}


def allowed(name, permitted):
    """A permitted folder permits its modules."""
    return name in permitted or name.split(".")[0] in permitted


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__"])
def test_a_module_imports_only_what_stands_before_it(module):
    home = module.split(".")[0]
    assert home in {**MAY_IMPORT, **ADDED}, f"{module} is not in the table of who may import whom: add it to DESIGN"
    if MAY_IMPORT.get(home, set()) is None:
        return
    permitted = {"files"} | MAY_IMPORT.get(home, set()) | ADDED.get(home, set())  # anyone may write
    for name in imports_of(module) - {""}:
        if home in FOLDERS and name.split(".")[0] == home:
            assert name.split(".")[-1] in SHARED, f"siblings never import one another: {module} imports {name}"
            assert module.split(".")[-1] != "base", f"the contract stands alone: {module} imports {name}"
        else:
            assert allowed(name, permitted), f"{module} imports {name}; it may import {sorted(permitted)}"


def test_modules_take_nothing_but_the_version_from_the_front_door():
    for module in MODULES:
        tree = ast.parse((PACKAGE / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            depth = module.count(".") + 1
            if isinstance(node, ast.ImportFrom) and node.module is None and node.level == depth:
                names = {alias.name for alias in node.names} - FOLDERS - set(MODULES)
                assert names <= {"__version__"}, f"{module} imports {names} from the front door"


def test_nothing_imports_the_command_line():
    assert [module for module in MODULES if "cli" in imports_of(module)] == []


def test_only_the_command_line_imports_the_app():
    assert [module for module in MODULES if "app" in imports_of(module)] == ["cli"]


def test_training_knows_no_model():
    assert imports_of("training") == {"", "files"}


def test_the_reader_of_imports_reads_every_form(tmp_path, monkeypatch):
    (tmp_path / "mtpp").mkdir()
    (tmp_path / "mtpp" / "new.py").write_text(
        "import torch\nimport ehd_hf.data.windows as w\nfrom ..events import load_events\nfrom .. import rebuild\n"
        "from . import fullynn\nfrom .base import MTPPModel\nfrom ehd_hf.data.synthetic import x\n"
        "from .. import __version__\ndef f():\n    from ..training import Trainer\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    expected = {"windows", "events", "rebuild", "mtpp.fullynn", "mtpp.base", "synthetic", "", "training"}
    assert imports_of("mtpp.new") == expected


def test_importing_the_package_loads_neither_torch_nor_transformers():
    heavy = {"torch", "transformers", "datasets", "pandas", "numpy", "gradio"}
    code = f"import sys, ehd_hf; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ehd_hf.__all__)
def test_every_public_name_resolves_to_what_its_module_calls_so(name):
    value = getattr(ehd_hf, name)
    assert name in dir(ehd_hf)
    if name != "__version__":
        assert getattr(importlib.import_module(f"ehd_hf.{ehd_hf._HOME_OF[name]}"), name) is value


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'FullyNN'.*FullyNNModel"):
        _ = ehd_hf.FullyNN


def test_type_checkers_see_the_same_names_as_users():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {
        alias.asname
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == set(ehd_hf.__all__) - {"__version__"}
