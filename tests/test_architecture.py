"""The shape of the package, read from its source: who imports whom, how long each folder is, and a lazy front door."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ehd_hf

PACKAGE = Path(ehd_hf.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("templates", "checkpoints")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}

# Stage -> stages it may import. The longest name that fits a module decides: hub.fetch is not hub.
DATA = {"files", "hub.fetch"}
EXPLAIN = DATA | {"data", "models", "solvers"}
MAY_IMPORT = {
    "files": set(),
    "hub.fetch": {"files"},
    "models": set(),
    "data": DATA,
    "solvers": {"models"},
    "training": {"files", "data", "hub"},
    "explain": EXPLAIN,
    "evaluation": EXPLAIN | {"explain"},
    "present": EXPLAIN | {"explain", "evaluation"},
    "hub": EXPLAIN | {"explain", "evaluation", "present"},
}
ANYTHING = {"training.recipe", "cli", "app"}  # may import anything; nobody imports them, but that cli starts app
SHOWN = {"plot", "to_html", "_repr_html_"}  # of the answers of explain: these methods open `present` when called
LINES = {"files": 335, "data": 2240, "models": 3200, "solvers": 850, "explain": 2680, "training": 1200}
LINES |= {"evaluation": 815, "present": 1260, "hub": 385, "cli": 920, "app": 368, "__init__": 100}


def imports_of(name, tree=None):
    """Pairs (module of ours, imported name or None) for every import in the module, inside functions too."""
    package = name.split(".")[:-1]
    for node in ast.walk(TREES[name] if tree is None else tree):
        if isinstance(node, ast.Import):
            ours = [alias.name.split(".")[1:] for alias in node.names if alias.name.split(".")[0] == "ehd_hf"]
            yield from ((".".join(parts), None) for parts in ours)
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".") if node.module else []
            if node.level:
                parts = package[: len(package) - node.level + 1] + parts
            elif parts[:1] != ["ehd_hf"]:
                continue
            else:
                parts = parts[1:]
            for alias in node.names:
                inner = ".".join([*parts, alias.name])
                yield (inner, None) if inner in SOURCES else (".".join(parts), alias.name)


def stage_of(module):
    return max((s for s in MAY_IMPORT if module == s or module.startswith(f"{s}.")), key=len, default=None)


def functions_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in {"__init__", *ANYTHING}])
def test_a_module_imports_only_earlier_stages(name):
    home = stage_of(name)
    assert home is not None, f"{name} belongs to no stage"
    excused = set()
    if home == "explain":
        classes = [node for node in TREES[name].body if isinstance(node, ast.ClassDef)]
        bodies = [node for of in classes for node in functions_of(of) if node.name in SHOWN]
        excused = {pair for body in bodies for pair in imports_of(name, body) if stage_of(pair[0]) == "present"}
    for module, imported in set(imports_of(name)) - excused:
        if (module, imported) == ("", "__version__"):
            continue
        assert module not in ANYTHING, f"{name} imports {module}, which nobody may import"
        assert stage_of(module) in {home} | MAY_IMPORT[home], f"{name} imports {module}"


def test_only_the_command_line_starts_the_app():
    users = {(name, module) for name in ANYTHING for module, _ in imports_of(name) if module in {"app", "cli"}}
    assert users == {("cli", "app")}


def test_solvers_share_only_base_and_prefix():
    for name in SOURCES:
        if stage_of(name) == "solvers" and name != "solvers.__init__":
            siblings = {module for module, _ in imports_of(name) if stage_of(module) == "solvers"}
            assert siblings <= {"solvers.base", "solvers.prefix"}, name


@pytest.mark.parametrize("name", SOURCES)
def test_no_private_name_is_imported_and_no_module_by_string(name):
    private = [(m, i) for m, i in imports_of(name) if i and i.startswith("_") and i != "__version__"]
    assert private == []
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            assert not isinstance(node.args[0], ast.Constant), f"{name}: {ast.unparse(node)}"


def test_models_name_their_siblings_relatively():
    for name in SOURCES:
        froms = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.ImportFrom)]
        if stage_of(name) == "models":
            assert all(node.level < 2 and (node.module or "").split(".")[0] != "ehd_hf" for node in froms), name


@pytest.mark.parametrize("folder", LINES)
def test_a_folder_stays_within_its_budget_of_lines(folder):
    files = [path for name, path in SOURCES.items() if name.split(".")[0] == folder]
    count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert 0 < count <= 1.1 * LINES[folder], f"{folder}: {count} lines of {LINES[folder]}"


def test_the_package_is_small_and_its_root_is_short():
    counts = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in SOURCES.items()}
    assert sum(counts.values()) <= 15_500
    assert sum("." not in name for name in SOURCES) <= 6
    assert {name.split(".")[0] for name in SOURCES} == set(LINES)


def test_no_function_takes_more_than_ten_parameters():
    for name, tree in TREES.items():
        for node in functions_of(tree) if name != "cli" else []:
            number = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            assert number <= 10, f"{name}.{node.name} takes {number}"


def test_importing_the_package_loads_no_heavy_library():
    heavy = {"torch", "transformers", "datasets", "pandas", "numpy", "gradio"}
    code = f"import sys, ehd_hf; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ehd_hf.__all__)
def test_a_public_name_is_that_of_its_module(name):
    value = getattr(ehd_hf, name)
    assert name in dir(ehd_hf)
    if name != "__version__":
        assert getattr(importlib.import_module(f"ehd_hf.{ehd_hf._HOME_OF[name]}"), name) is value


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'FullyNN'.*FullyNNModel"):
        _ = ehd_hf.FullyNN


def test_type_checkers_see_the_names_that_users_see():
    blocks = [node for node in ast.walk(TREES["__init__"]) if isinstance(node, ast.If)]
    typed = {a.asname for block in blocks for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == set(ehd_hf.__all__) - {"__version__"}
