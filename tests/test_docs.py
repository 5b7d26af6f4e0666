"""The documentation runs: every block of Python and bash that is marked runnable, in order, page by page.

Above a block stands `<!-- runnable -->`; or `<!-- runnable, with: --minutes 0.001 -->`, options that make a command
quick enough for a test; or `<!-- not run: why -->`. On the pages below every block says one of these.
"""

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.solvers import base as solvers
from ehd_hf.training import recipe as fitting
from ehd_hf.training import recipe as planning

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ("tutorial", "concepts", "python_api", "extending", "command_line", "reproducing", "choices")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES)]
OTHERS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page not in PAGES]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>python|bash)\n(?P<code>.*?)^```$", re.M | re.S)


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
        Block(page.name, text.count("\n", 0, found.start()) + 2, found["language"], found["code"], found["mark"] or "")
        for found in BLOCK.finditer(text)
    ]


def run_bash(block):
    """Commands of ours in this process, others in a shell. An answer of no is an answer."""
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
def as_it_was(monkeypatch, tmp_path):
    """An empty folder to work in; what a page registers is forgotten afterwards; little is judged, to be quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(solvers, "_SOLVERS", dict(solvers._SOLVERS))
    for mapping in (CONFIG_MAPPING, MODEL_MAPPING):
        monkeypatch.setattr(mapping, "_extra_content", dict(mapping._extra_content))
    monkeypatch.setattr(fitting, "MOST_TEST_WINDOWS", 10)
    monkeypatch.setitem(planning.VALIDATION_ITEMS, "distiller", 20)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, as_it_was):
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_whether_it_runs(page):
    for block in blocks_of(page):
        reason = re.fullmatch(r"not run: (\S.*)", block.mark)
        assert block.runs or reason, f"{page.name}:{block.line} has no mark above it"


def test_pages_have_something_to_run():
    running = {page.name: sum(block.runs for block in blocks_of(page)) for page in PAGES}
    assert running["tutorial.md"] >= 5 and running["python_api.md"] >= 8 and running["extending.md"] >= 3
    assert running["README.md"] >= 1


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:\s]+\.md)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
