"""`ehd-hf influence`, and the options that bring context: a few seconds from two tables to a matrix."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.data.synthetic import example_log
from ehd_hf.training import recipe as fitting

COLUMNS = ["--time", "ts", "--mark", "type", "--sequence", "service"]
TRAIN = ["--history", "6", "--future", "2", "--threads", "1", "--backbone", "hawkes", "--distiller", "none", "--yes"]


def run(*arguments, code=0):
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log without its deploys, these in a table of their own, who is related to whom, and a model of all three."""
    folder = tmp_path_factory.mktemp("log")
    frame = example_log(12)
    frame = frame[frame["ts"] < "2026-03-04"]
    frame[frame["type"] != "deploy"].to_csv(folder / "events.csv", index=False)
    frame[frame["type"] == "deploy"].to_csv(folder / "deploys.csv", index=False)
    names = list(frame["service"].unique())
    pd.DataFrame({"service": names, "neighbour": names[1:] + names[:1]}).to_csv(folder / "related.csv", index=False)
    extra = ["--context-events", folder / "deploys.csv", "--related", folder / "related.csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "MTPP_STEPS", (40, 40))
        asked = [*COLUMNS, *TRAIN, *extra, "--context", "user login", "--out", folder / "m"]
        CliRunner().invoke(app, list(map(str, ["train", folder / "events.csv", *asked])))
    return folder


def test_a_matrix_of_all_three_tables(folder):
    config = json.loads((folder / "m" / "config.json").read_text())
    assert {"deploy", "user login", "near: alert"} <= set(config["context_marks"]) < set(config["id2label"].values())
    extra = ["--context-events", folder / "deploys.csv", "--related", folder / "related.csv"]
    told = json.loads(run("influence", folder / "m", folder / "events.csv", *extra, "--json").stdout)
    assert told["events"]["deploy"] > 0 and told["events"]["near: alert"] > 0
    predicted = set(config["id2label"].values()) - set(config["context_marks"])
    assert {pair["effect"] for pair in told["pairs"]} == predicted
    plain = run("influence", folder / "m", folder / "events.csv", "--out", folder / "pairs.csv")
    assert "per cause" in plain.stdout and "set off by others" in " ".join(plain.stdout.split())
    assert {"cause", "effect", "share", "per_cause", "low", "high", "lift", "count"} <= set(
        pd.read_csv(folder / "pairs.csv").columns
    )
    run("influence", folder / "m", folder / "events.csv", "--out", folder / "matrix.png")
    assert (folder / "matrix.png").read_bytes()[:4] == b"\x89PNG"


def test_context_goes_with_the_other_questions(folder):
    extra = ["--context-events", folder / "deploys.csv", "--related", folder / "related.csv"]
    service = pd.read_csv(folder / "events.csv")["service"].iloc[0]
    asked = ["--sequence", service, "--event", "-2", "--json"]
    why = json.loads(run("why", folder / "m", folder / "events.csv", *extra, *asked).stdout)
    assert any(cause["mark"].startswith("near: ") for cause in why["causes"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["influence", "{}/m", "{}/events.csv", "--out", "x.html"], "--out must end in .csv, .json, .png"),
        (["influence", "{}/m", "{}/events.csv", "--related", "{}/events.csv"], "need two columns"),
        (["trace", "{}/m", "{}/events.csv", "--out", "t.parquet", "--related", "{}/related.csv"], "Join the tables"),
        (["train", "{}/events.csv", *COLUMNS, *TRAIN, "--out", "{}/n", "--context", "holiday"], "got 'holiday'"),
    ],
)
def test_what_cannot_be_is_refused(folder, arguments, message):
    told = run(*(str(argument).format(folder) for argument in arguments), code=2).stderr
    assert message in " ".join(told.split())
