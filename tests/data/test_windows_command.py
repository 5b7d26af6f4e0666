"""`ehd-hf data windows`: a file of events in, a data set out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.data.windows import load_windows

CARDS = Path(__file__).resolve().parents[2] / "dataset_cards"


@pytest.fixture
def run(tmp_path):
    """Export a log of two users with 9 events each."""
    log = tmp_path / "log.csv"
    rows = [f"{user},{hour},{'ab'[hour % 2]}" for user in ("x", "y") for hour in range(9)]
    log.write_text("user,hour,action\n" + "\n".join(rows))
    columns = ["--sequence", "user", "--time", "hour", "--mark", "action"]

    def call(*arguments):
        command = ["data", "windows", log, "--out", tmp_path / "out", *columns, *arguments]
        return CliRunner(env={"COLUMNS": "120"}).invoke(app, list(map(str, command)))

    return call


def test_the_command_writes_a_data_set_with_every_pair(run, tmp_path):
    card = CARDS / "retweet_seismic738_segments.yaml"
    result = run("--pair", "2-3", "--pair", "1-4", "--time-unit", "h", "--card", card)
    assert result.exit_code == 0 and "2-3, 1-4 and the sequences" in result.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "2-3", "1-4", "sequences"}
    text = (tmp_path / "out" / "README.md").read_text()
    assert "738 large cascades" in text and "Time unit: h." in text
    store = load_windows(tmp_path / "out", "2-3")
    assert len(store) == 8 and store.sequences.id2label == {0: "a", 1: "b"} and store.sequences.time_unit == "h"


def test_user_errors_end_with_code_2_and_nothing_written(run, tmp_path):
    result = run("--pair", "20-40")
    assert result.exit_code == 2 and "the longest has 9" in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
