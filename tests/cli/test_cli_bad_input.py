"""What each bad input to `ehd-hf` is answered with: the sentence, the exit code, and that nothing is written.

`CASES` is also the table of docs/command_line.md; a test compares the two.
"""

import gzip
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from typer.testing import CliRunner

from ehd_hf.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
ROWS = [(f"u{n % 4}", n * n % 97 + n, "ab"[n % 3 == 0]) for n in range(400)]
LOG = "user,ts,type\n" + "".join(f"{user},{time}.5,{mark}\n" for user, time, mark in ROWS)
IDS = "user,ts,type\n" + "".join(f"u1,{n}.5,id {n}\n" for n in range(900))
INSPECT = "data inspect log.csv"


def days(*times):
    """A log with these times, over and over."""
    return "user,ts,type\n" + "".join(f"u{n % 4},{times[n % len(times)]},{'ab'[n % 2]}\n" for n in range(40))


class Case(NamedTuple):
    """One bad input: in words, the command, the words of the answer, the exit code, and log.csv if it matters."""

    name: str
    command: str
    said: str
    code: int = 2
    content: str | bytes | None = LOG


# The files there are: log.csv (the content), folder/log.csv, notes/notes.txt. "incidents" is a bundled model.
CASES = [
    # the file
    Case("missing file", "data inspect lgo.csv", "there is no file lgo.csv. Did you mean 'log.csv'"),
    Case("a folder", "data inspect folder", "folder is a folder. Pass one of its files: log.csv."),
    Case("unknown extension", "data inspect notes/notes.txt", "a file of events is one of .csv"),
    Case("empty file", INSPECT, "log.csv is empty", content=""),
    Case("header only", INSPECT, "log.csv holds no events", content="user,ts,type\n"),
    Case("no header", INSPECT, "lack a line of column names", content="u1,1.5,7\nu1,2.5,7\n"),
    Case("binary file", INSPECT, "is not text in UTF-8", content=bytes(range(256)) * 9),
    Case("another encoding", INSPECT, "is not text in UTF-8", content=LOG.encode("utf-16")),
    Case("compressed file", INSPECT, "is compressed", content=gzip.compress(LOG.encode())),
    Case("a row too short", INSPECT, "Expected 3 columns, got 2", content=LOG + "u1,2\n"),
    # columns
    Case("wrong time column", "data inspect log.csv --time tss", "the columns are user, ts, type. Did you mean 'ts'?"),
    Case("wrong mark column", "data inspect log.csv --mark typ", "Did you mean 'type'?"),
    Case("wrong sequence column", "data inspect log.csv --sequence usr", "Did you mean 'user'?"),
    Case("no mark column", INSPECT, "which column says what happened?", content="ts,x\n1,2\n3,4\n"),
    Case("a column of ids as marks", INSPECT, "A mark says what kind of event it was", content=IDS),
    # times
    Case("words as times", INSPECT, "does not read as times: 'soon'", content=days("soon")),
    Case(
        "times in several formats",
        INSPECT,
        "must be written in one way",
        content=days("2026-03-01 10:00", "01.03.2026"),
    ),
    Case(
        "ambiguous dates",
        INSPECT,
        "may be 03 April 2026 or 04 March 2026. Give the time_format '%d/%m/%Y' or '%m/%d/%Y'. (--time-format)",
        content=days("03/04/2026"),
    ),
    Case("times of day", INSPECT, "times need a date", content=days("10:00:00")),
    Case("impossible years", INSPECT, "timestamps must lie in 1678 to 2261", content=days("0001-01-01")),
    Case("infinite times", INSPECT, "times must be finite", content=LOG.replace(",0.5,", ",inf,")),
    # what can be read but not trained on
    Case("one short sequence", INSPECT, "It cannot be trained on", 1, "ts,type\n1,a\n2,b\n4,a\n"),
    # options
    Case("no number", "train log.csv --out model --history many", "Invalid value for '--history'"),
    Case("negative number", "train log.csv --out model --history -3", "must be at least 1 event; got -3"),
    Case("no future", "train log.csv --out model --future 0", "must be at least 1 event; got None and 0"),
    Case("no end", "train log.csv --out model --minutes inf", "--minutes must be above 0; got inf"),
    Case("negative seed", "train log.csv --out model --seed -1", "Invalid value for '--seed'"),
    Case("an ensemble of one", "train log.csv --out model --ensemble 1", "Invalid value for '--ensemble'"),
    Case("an ensemble of MTPP-EHD", "train log.csv --out model --ensemble 2 --distiller ehd", "Take ranking"),
    Case("too long a history", "train log.csv --out model --history 500", "at least 600 events"),
    Case("too long a future", "report incidents log.csv --future 9999", "Ask for a shorter future"),
    Case("a share above 1", "explain incidents log.csv --all --share 2", "share must lie in (0, 1]; got 2"),
    Case("missing option", "train log.csv", "Missing option '--out'"),
    Case("misspelt command", "explian log.csv", "Did you mean 'explain'"),
    # where to write
    Case("a folder of something else", "train log.csv --out notes --yes", "is not a model of ehd-hf train"),
    Case("a file in the way", "train log.csv --out log.csv/model --yes", "a file is in the way", 3),
    Case("a folder for a report", "report incidents log.csv --out folder", "a report is one HTML file"),
    Case("a type we do not write", "explain incidents log.csv --all --out a.xlsx", "--out must end in .parquet"),
    Case(
        "a place that is not there", "report incidents log.csv --out /proc/no/report.html", "could not be written", 3
    ),
    # the model
    Case("misspelt model", "explain incident log.csv --all", "Did you mean 'incidents'"),
    Case("a folder that is no model", "explain notes log.csv --all", "no folder of a model"),
    Case("marks it does not know", "explain incidents other.csv --all", "does not know 2 of these marks: 'b', 'a'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the commands name, where they are given."""
    from ehd_hf.explain.explainer import load_example

    (tmp_path / "folder").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    load_example("incidents").to_csv(tmp_path / "folder" / "log.csv", index=False)
    (tmp_path / "other.csv").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_ends_with_a_sentence_and_a_code_and_writes_nothing(folder, case):
    content = case.content
    if case.command.split()[0] in ("explain", "report"):  # events that the bundled model knows
        content = (folder / "folder" / "log.csv").read_bytes()
    (folder / "log.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    before = contents(folder)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, case.command.split())
    assert result.exit_code == case.code and isinstance(result.exception, SystemExit), result.exception
    said = " ".join((result.stdout if case.code == 1 else result.stderr).split())
    assert case.said in said and "Traceback" not in said, said
    assert len(re.findall("^[eE]rror: ", result.stderr, re.MULTILINE)) == (case.code != 1)
    assert contents(folder) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not read a file")
@pytest.mark.parametrize(
    "command", ["data inspect secret.csv", "train log.csv --out locked/model --yes", "data example locked/new.csv"]
)
def test_what_one_may_not_read_or_write_is_named(monkeypatch, command):
    with tempfile.TemporaryDirectory() as name:  # not below a folder that only root may enter
        monkeypatch.chdir(name)
        os.chmod(name, 0o755)
        for file in ("secret.csv", "log.csv"):
            Path(file).write_text(LOG)
        os.chmod("secret.csv", 0)
        Path("locked").mkdir(0o555)
        os.seteuid(65534)
        try:
            result = CliRunner().invoke(app, command.split())
        finally:
            os.seteuid(0)
        assert result.exit_code == 3, result.output
        assert "Permission denied" in result.stderr and "you may" in result.stderr
        assert re.search("secret.csv|locked", result.stderr)
        assert list(Path("locked").iterdir()) == []


def test_times_with_several_zones_are_one_clock(folder):
    zones = ["2026-01-01T12:00:00Z", "2026-01-01T12:00:00+01:00", "2026-01-01T06:30:00-05:30", "2026-01-01T12:30:00"]
    pd.DataFrame({"ts": zones, "type": list("abab")}).to_csv("log.csv", index=False)
    result = CliRunner().invoke(app, ["data", "inspect", "log.csv", "--json"])
    assert result.exit_code == 1 and '"from": "2026-01-01 11:00:00", "to": "2026-01-01 12:30:00"' in result.stdout
    assert "1 of 4 times name no zone and are taken as UTC" in result.stdout and '"trainable": false' in result.stdout


def test_the_page_on_the_command_line_lists_every_case():
    rows = [f"| {case.name} | `ehd-hf {case.command}` | … {case.said} … | {case.code} |" for case in CASES]
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows) in page, "docs/command_line.md must hold this table:\n" + "\n".join(rows)
