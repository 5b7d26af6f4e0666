"""One question, one answer: every way to ask about the same log of 235 events gives the same explanation."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from ehd_hf import EHDDistiller, cli
from ehd_hf.data.synthetic import example_log
from ehd_hf.models.hf_pipeline import EventHistoryPipeline

NUM_EVENTS, FUTURE = 235, 5


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    frame = example_log(12)
    counts = frame["service"].value_counts()
    service = counts[counts >= NUM_EVENTS].index[0]
    file = tmp_path_factory.mktemp("doors") / "one.csv"
    frame[frame["service"] == service][["ts", "type"]].head(NUM_EVENTS).to_csv(file, index=False)
    return file


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller.from_pretrained("incidents")


@pytest.fixture(scope="module")
def answer(explainer, log):
    """What Python answers: the one all others must give."""
    return explainer.explain(explainer.read(log).events, future=FUTURE).to_row()


def same(row, answer, *more):
    counts = ("num_history", "num_future", "num_distilled")
    names = (*counts, "positions", "marks", "future_marks", "constraint_met", *more)
    assert {name: _plain(row[name]) for name in names} == {name: _plain(answer[name]) for name in names}
    for name in ("dppl_left", "dppl_distilled", "dppl_empty"):
        assert row[name] == pytest.approx(answer[name], abs=1e-12), name


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


def of_explanation(told):
    """Row of what `Explanation.to_dict` gives."""
    events = {"positions": [event["position"] for event in told["distilled"]]}
    events |= {"marks": [event["mark"] for event in told["distilled"]], "num_distilled": len(told["distilled"])}
    events |= {"future_marks": [event["mark"] for event in told["future"]], "num_future": len(told["future"])}
    return {**told, **events, "num_history": len(told["distilled"]) + len(told["left"])}


def test_the_log_is_longer_than_what_the_model_looks_at(explainer, answer):
    assert answer["num_history"] == explainer.model.config.history < NUM_EVENTS - FUTURE
    assert 0 < answer["num_distilled"] < answer["num_history"]


def test_the_command_line_agrees(log, answer):
    result = CliRunner().invoke(cli.app, ["explain", "incidents", str(log), "--future", str(FUTURE), "--json"])
    assert result.exit_code == 0, result.stderr
    same(of_explanation(json.loads(result.stdout)), answer, "status", "certified")


@pytest.mark.parametrize("out", ["one.parquet", "one.jsonl", "folder"])
def test_files_and_folders_agree(log, answer, tmp_path, out):
    command = ["explain", "incidents", str(log), "--future", str(FUTURE), "--all", "--out", str(tmp_path / out)]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.stderr
    read = pd.read_parquet if not out.endswith("jsonl") else lambda file: pd.read_json(file, lines=True)
    (row,) = read(tmp_path / out).to_dict("records")
    same(row, answer, "status", "certified")
    assert list(row) == list(answer)


def test_the_app_agrees(log, answer):
    app = pytest.importorskip("ehd_hf.app")
    service = app.Service({"incidents": EHDDistiller.from_pretrained("incidents")})
    defaults = service.defaults("incidents") | {"future": FUTURE}
    asked = app.Asked(source=app.UPLOAD, upload=str(log), split=NUM_EVENTS - FUTURE, **defaults)
    same(service.explain(asked).to_row(), answer, "status", "certified")


def test_the_pipeline_of_transformers_agrees(explainer, log):
    events = explainer.read(log).events
    answer = explainer.explain(events, future=FUTURE, refine="none").to_row()
    asked = {"times": events.times.tolist(), "marks": events.marks.tolist()}
    same(of_explanation(EventHistoryPipeline(model=explainer.model)(asked, future=FUTURE)), answer)
