"""The script: a file of events in, a data set out; user errors end with one line and code 2."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ehd_hf.data.windows import load_windows

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prepare_windows.py"


@pytest.fixture
def run(monkeypatch):
    spec = importlib.util.spec_from_file_location("prepare_windows", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["prepare_windows.py", *map(str, arguments)])
        module.main()

    return call


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "log.csv"
    rows = [f"{user},{hour},{'ab'[hour % 2]}" for user in ("x", "y") for hour in range(9)]
    path.write_text("user,hour,action\n" + "\n".join(rows))
    return path


def test_the_script_writes_a_data_set_with_every_pair(run, log, tmp_path, capsys):
    columns = ["--sequence", "user", "--time", "hour", "--mark", "action", "--time-unit", "h"]
    run("--source", log, "--pairs", "2-3", "1-4", "--out", tmp_path / "out", *columns)
    assert "wrote 2-3, 1-4" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "2-3", "1-4", "sequences"}
    store = load_windows(tmp_path / "out", "2-3")
    assert len(store) == 8 and store.sequences.id2label == {0: "a", 1: "b"} and store.sequences.time_unit == "h"


def test_the_card_of_a_known_source_is_found_by_name(run, tmp_path):
    source = tmp_path / "retweet_seismic738_segments"
    source.mkdir()
    (source / "train.csv").write_text("time,mark\n" + "\n".join(f"{second},{second % 3}" for second in range(9)))
    run("--source", source, "--pairs", "2-3", "--out", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "738 large cascades" in text and "# retweet_seismic738_segments" in text and "Time unit: s." in text


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--pairs", "15x40"], "such as \"15-40\"; got '15x40'"),
        (["--pairs", "20-40"], "the longest has 9"),
        (["--time", "clock"], "no time column 'clock'; the columns are user, hour, action"),
        (["--card", "absent.yaml"], "absent.yaml"),
    ],
)
def test_user_errors_end_with_one_line_and_nothing_written(run, log, tmp_path, capsys, arguments, fragment):
    columns = ["--sequence", "user", "--time", "hour", "--mark", "action"]
    with pytest.raises(SystemExit) as stop:
        run("--source", log, "--out", tmp_path / "out", *columns, *arguments)
    message = capsys.readouterr().err
    assert stop.value.code == 2 and fragment in message and len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [log]
