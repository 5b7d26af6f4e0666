"""The documentation is true: its blocks run, its outputs are those shown, and every path and name on it exists.

Above a block of Python or bash stands `<!-- runnable -->`; or `<!-- runnable, with: --minutes 0.001 -->`, options that
make a command quick enough for a test; or `<!-- not run: why -->`.
"""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.explain.explainer import load_example
from ehd_hf.explain.explanation import FIELDS
from ehd_hf.solvers import base as solvers
from ehd_hf.training import recipe

ROOT = Path(__file__).resolve().parent.parent
GENERATED = [ROOT / "docs" / "results.md", ROOT / "results" / "speed.md"]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page not in GENERATED)]
OTHERS = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>python|bash)\n(?P<code>.*?)^```$", re.M | re.S)
FOLDERS = "data|models|solvers|explain|training|evaluation|present|hub"


def by_name(page):
    return page.name


class Block(NamedTuple):
    page: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def runs(self):
        return self.mark == "runnable" or self.mark.startswith("runnable, with:")

    @property
    def options(self):
        return shlex.split(self.mark.partition("with:")[2])


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, match.start()) + 2, match["language"], match["code"], match["mark"] or "")
        for match in BLOCK.finditer(text)
    ]


def run_bash(block):
    """Run our commands in this process, others in a shell. Exit code 1, an answer of no, is an answer."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] != "ehd-hf":
            subprocess.run(line, shell=True, check=True)
            continue
        result = CliRunner().invoke(app, [*words[1:], *block.options])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in (0, 1), f"{block.page}:{block.line}: {line}\n{result.stderr}"


@pytest.fixture
def empty_folder(monkeypatch, tmp_path):
    """An empty folder to work in. What a page registers is undone afterwards; few windows are judged, to be quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(solvers, "_SOLVERS", dict(solvers._SOLVERS))
    for mapping in (CONFIG_MAPPING, MODEL_MAPPING):
        monkeypatch.setattr(mapping, "_extra_content", dict(mapping._extra_content))
    monkeypatch.setattr(recipe, "MOST_TEST_WINDOWS", 10)
    monkeypatch.setitem(recipe.VALIDATION_ITEMS, "distiller", 20)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_the_blocks_of_a_page_run(page, empty_folder):
    names = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.runs:
            continue
        if block.language == "bash":
            run_bash(block)
        else:
            # Lines as in the page, so that a traceback points into it.
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_block_says_whether_it_runs(page):
    for block in blocks_of(page):
        reason = re.fullmatch(r"not run: (\S.*)", block.mark)
        assert block.runs or reason, f"{page.name}:{block.line} has no mark above it"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_blocks_that_do_not_run_import_names_that_exist(page):
    for block in blocks_of(page):
        if block.language == "python":
            for line in re.findall(r"^(?:import|from) ehd_hf.*$", block.code, re.MULTILINE):
                exec(line, {})


def test_pages_have_something_to_run():
    running = {page.name: sum(block.runs for block in blocks_of(page)) for page in PAGES}
    assert running["tutorial.md"] >= 5 and running["python_api.md"] >= 8 and running["extending.md"] >= 3
    assert running["README.md"] >= 1 and running["operations.md"] >= 1


# --- what the README shows


def assert_shown(printed, shown):
    """The same words, and the same numbers except for the last digit."""
    numbers = re.compile(r"-?\d+\.\d+")
    assert numbers.sub("#", shown) in numbers.sub("#", printed)
    start = numbers.sub("#", printed).index(numbers.sub("#", shown))
    skipped = numbers.sub("#", printed)[:start].count("#")
    expected = [float(number) for number in numbers.findall(shown)]
    printed_numbers = [float(number) for number in numbers.findall(printed)][skipped : skipped + len(expected)]
    assert printed_numbers == pytest.approx(expected, abs=0.0101)


def test_the_first_command_prints_what_the_readme_shows(empty_folder):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.index(".venv/bin/ehd-hf demo\n") < readme.index(".venv/bin/python -m pytest\n")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0 and Path("ehd_hf_demo.html").is_file()
    assert_shown(result.stdout, readme.split("The first prints")[1].split("```\n")[1].strip())


def test_the_first_python_example_prints_what_it_shows(capsys):
    block = r"## In Python\n\n(?:<!--[^\n]*-->\n)?```python\n(.*?)```\n\nprints\n\n```\n(.*?)\n```"
    code, shown = re.search(block, (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert_shown(capsys.readouterr().out, shown)


# --- what the pages name


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=by_name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        if ":" in path:
            continue
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if heading:
            lines = file.read_text(encoding="utf-8").splitlines()
            headings = [re.sub(r"[^\w -]", "", line.strip("# ").lower()) for line in lines if line.startswith("#")]
            assert heading in [text.replace(" ", "-") for text in headings], f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=by_name)
def test_files_named_on_a_page_exist(page):
    named = re.findall(r"(?:scripts|tests|src|\.ci|dataset_cards)/[\w./-]+\w(?![\w$*])", page.read_text("utf-8"))
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing, f"{page.name} names {', '.join(sorted(missing))}"


def resolve(name):
    """What `ehd_hf.<name>` is, a module or an attribute of one; None if there is no such thing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(["ehd_hf", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part, None)
        return value
    return None


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=by_name)
def test_functions_named_on_a_page_exist(page):
    named = re.findall(rf"`((?:(?:{FOLDERS})|cli|files)(?:\.\w+)+)`", page.read_text(encoding="utf-8"))
    missing = sorted(name for name in set(named) if name != "files.py" and name != "cli.py" and resolve(name) is None)
    assert not missing, f"{page.name} names {', '.join(missing)}"


def test_the_tree_names_all_that_the_package_holds():
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    parts = {path.name + "/" * path.is_dir() for path in (ROOT / "src" / "ehd_hf").iterdir() if path.name[0] != "."}
    assert parts - {"__pycache__/", "py.typed"} == set(
        re.findall(r"(?:^  |(?<=py) )([\w.]+(?:/|\.py))", tree, re.MULTILINE)
    )


def test_the_way_of_an_event_is_told_by_functions_that_run(empty_folder):
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(hops) >= 12
    load_example("incidents").to_csv("events.csv", index=False)
    ran = set()
    sys.setprofile(lambda frame, event, _: ran.add(frame.f_code) if event == "call" else None)
    try:
        for command in ("explain incidents events.csv", "report incidents events.csv --max-explanations 1"):
            assert CliRunner().invoke(app, command.split()).exit_code == 0
    finally:
        sys.setprofile(None)
    called = {(code.co_filename, code.co_qualname) for code in ran}
    called |= {(file, name.rpartition(".")[0]) for file, name in called}  # a class runs with its methods
    for hop in hops:
        told = {name: resolve(name) for name in re.findall(rf"`((?:{FOLDERS}|cli)\.[\w.]+)`", hop)}
        places = {name: (inspect.getfile(inspect.unwrap(one)), one.__qualname__) for name, one in told.items()}
        assert told and not [name for name, place in places.items() if place not in called], hop


def commands_of(group, words=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        else:
            yield " ".join((*words, name)), [option for parameter in command.params for option in parameter.opts]


def test_the_page_names_every_command_and_option():
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    for command, options in commands_of(typer.main.get_command(app)):
        assert f"`ehd-hf {command}`" in text, command
        missing = [option for option in options if option.startswith("--") and f"`{option}`" not in text]
        assert set(missing) <= {"--help"}, f"ehd-hf {command}: {', '.join(missing)}"


def test_the_page_names_every_column_of_an_answer():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("### What is written")[1]
    table = text.split("### ")[0]
    assert not [name for name in FIELDS if f"`{name}`" not in table]


def test_there_are_nine_pages():
    assert len(list((ROOT / "docs").glob("*.md"))) <= 9
