"""The app without its server: answers and error messages of `Service`."""

import sys
from html import unescape

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ehd_hf import app, cli
from ehd_hf.app import Asked
from ehd_hf.explain.explainer import EHDDistiller, load_example
from explanations import HOSTILE, made


@pytest.fixture(scope="module")
def service():
    return app.Service(app.open_models("incidents"))


def explain(service, **asked):
    return service.explain(Asked(**asked))


def refusal(service, **asked):
    """The error message shown in place of an answer."""
    shown, text = service.show_answer(*Asked(**asked))
    opening = '<div class="problem" role="alert"><strong>No answer yet:</strong> '
    assert shown.startswith(opening) and text == ""
    return unescape(shown.removeprefix(opening).removesuffix("</div>"))


# --- questions and answers


def test_the_defaults_give_the_answer_of_the_command_line(service):
    answer = explain(service)
    alone = EHDDistiller.from_pretrained("incidents").explain(load_example(), history=25)
    assert answer.to_dict() == alone.to_dict() and answer.intensity is not None


@pytest.mark.parametrize("model", [None, "", [], "nobody", {"a": 1}])
def test_a_model_must_be_chosen(service, model):
    assert "choose a model, one of incidents" in refusal(service, model=model)


def test_a_json_file_of_a_million_lists_is_not_opened(service, tmp_path):
    (tmp_path / "lists.json").write_text("[" + "[]," * 10**6 + "[]]")
    said = refusal(service, source=app.UPLOAD, upload=str(tmp_path / "lists.json"))
    assert "a JSON file may have up to 400,000 lists and objects here; got 1,000,002" in said


@pytest.mark.parametrize("split", [1, 12, 29])
def test_the_history_ends_where_the_split_is(service, split):
    answer = explain(service, split=split, future=4, history=7)
    times = load_example()["time"].to_numpy()
    assert [event.time for event in answer.history] == list(times[max(split - 7, 0) : split])
    assert [event.time for event in answer.future] == list(times[split : split + 4])


@pytest.mark.parametrize(("target", "value"), [("share", 0.4), ("epsilon", 0.6), ("size", 2)])
@pytest.mark.parametrize("conditioning", ["survival", "paper"])
def test_target_and_conditioning_are_used(service, target, value, conditioning):
    answer = explain(service, target=target, conditioning=conditioning, **{target: value})
    assert getattr(answer, target) == value and answer.conditioning == conditioning
    assert [answer.share, answer.epsilon, answer.size].count(None) == 2
    assert service.models["incidents"].conditioning == "survival"  # nobody changes what all share


def test_a_model_begins_with_what_it_was_trained_for(service):
    trained = {"future": 5, "history": 25, "target": "epsilon", "share": 0.7, "epsilon": 0.5, "size": 3}
    assert service.defaults("incidents-paper") == {**trained, "conditioning": "paper"}


def test_opening_events_lists_sequences_and_sets_the_split(service):
    opened = Asked(example="Six services, simulated")
    sequences, split, notes = service.show_events(*opened)
    assert len(sequences["choices"]) == 6 and sequences["value"] == "service-000" and sequences["visible"]
    assert split["maximum"] == split["value"] + 4 and "of 6 sequences" in notes["value"]
    again, moved, _ = service.show_events(*opened._replace(sequence="service-004"))
    assert again["value"] == "service-004" and moved["maximum"] != split["maximum"]
    assert service.explain(opened._replace(sequence="service-004", split=40)).seq_id == "service-004"
    sequences, split, _ = service.show_events(*Asked())  # one sequence needs no choice
    assert not sequences["visible"] and split == {"maximum": 29, "value": 25}


def test_uploads_and_pasted_tables_give_the_answer_of_the_example(service, tmp_path):
    frame, expected = load_example(), explain(service).to_dict()
    frame.to_parquet(tmp_path / "events.parquet")
    frame.to_csv(tmp_path / "events.tsv", index=False, sep="\t")
    for file in tmp_path.iterdir():
        assert explain(service, source=app.UPLOAD, upload=str(file)).to_dict() == expected
    text = frame.rename(columns={"time": "a", "mark": "b"}).to_csv(index=False, sep=";")
    assert explain(service, source=app.PASTED, pasted=text, time="a", mark="b").to_dict() == expected


# --- what is refused


def pasted(*rows, header="time,mark", **others):
    return {"source": app.PASTED, "pasted": "\n".join([header, *rows]), **others}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": app.UPLOAD}, "choose a file with one row per event"),
        ({"source": app.PASTED}, "paste a table: a line of column names"),
        (pasted("1,alert", split=1), "there must be a past and a future"),
        (pasted("x" * 11_000_000), "a file may have up to 10 MB here; got 11.0"),
        ({"split": 30}, "the event after which the history ends must be a whole number from 1 to 29; got 30."),
        ({"future": 51}, "the number of events to explain must be a whole number from 1 to 50; got 51."),
        ({"history": 201}, "the number of events to look at must be a whole number from 1 to 200; got 201."),
        ({"history": None}, "got None"),
        ({"target": "size", "size": 1.5}, "the size must be a whole number from 1 to 200; got 1.5."),
        ({"model": "stackoverflow-15-40"}, "the examples are not for stackoverflow-15-40: the model does not know 8"),
    ],
)
def test_a_bad_question_gets_an_error_message(service, change, sentence):
    assert sentence in refusal(service, **change)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("events.parquet", b"PAR1 and no more", "events.parquet cannot be read as Parquet"),
        ("events.jsonl", b'{"time": 1, "mark": "alert"}\n{"time"', "cannot be read"),
        ("<img src=x>.csv", b"a,b\n1,2\n", "which column says"),
    ],
)
def test_errors_name_a_bad_file_without_its_folder(service, tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    text = refusal(service, source=app.UPLOAD, upload=str(tmp_path / name))
    assert sentence in text and str(tmp_path) not in text and "Traceback" not in text


def test_too_many_events_are_refused(service, tmp_path):
    file = tmp_path / "many.csv"
    file.write_text("time,mark\n" + "".join(f"{i},alert\n" for i in range(app.MAX_EVENTS + 1)))
    assert "up to 200,000 events here; got 200,001" in refusal(service, source=app.UPLOAD, upload=str(file))


def test_a_small_parquet_file_that_unfolds_to_a_huge_table_is_refused(service, tmp_path):
    many, wide = tmp_path / "many.parquet", tmp_path / "wide.parquet"
    count = 3_000_000
    pq.write_table(pa.table({"time": np.zeros(count), "mark": pa.array(["alert"]).take(np.zeros(count, int))}), many)
    long = pa.DictionaryArray.from_arrays(np.zeros(150_000, np.int32), ["alert" * 200_000])  # 150 GB as text
    pq.write_table(pa.table({"time": np.arange(150_000.0), "mark": long}), wide)
    assert many.stat().st_size < 1e6 and wide.stat().st_size < 3e6
    before = pa.default_memory_pool().max_memory()
    assert "got 3,000,000" in refusal(service, source=app.UPLOAD, upload=str(many))
    text = refusal(service, source=app.UPLOAD, upload=str(wide))
    assert "an unpacked table may have up to 50 MB here; got 150,000" in text
    assert pa.default_memory_pool().max_memory() - before < 200e6


def test_a_bug_is_logged_and_not_shown(service, monkeypatch, caplog):
    def broken(*_):
        raise KeyError("secret/path")

    monkeypatch.setattr(service, "read", broken)
    assert refusal(service).startswith("something went wrong in this app") and "secret/path" in caplog.text


@pytest.mark.parametrize("name", HOSTILE)
def test_strings_from_data_are_escaped(service, name):
    shown = app.shown(made(marks=(name,), seq_id=name))
    assert shown.count("<") == 4 and 'sandbox="allow-scripts" srcdoc=' in shown
    assert app.problem(ValueError(name)).count("<") == 4 and app.in_lines([name]).count("<") == 2
    rows = pd.DataFrame({"time": [1.0, 2.0], "mark": [name, name]}).to_csv(index=False)
    assert service.show_answer(*Asked(source=app.PASTED, pasted=rows, split=1))[0].count("<") == 4


def test_without_gradio_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "ehd_hf.app")
    result = CliRunner().invoke(cli.app, ["app"])
    assert result.exit_code == cli.BAD_INPUT
    assert result.stderr == "error: the app comes with the demo extra. Install it: pip install 'ehd-hf[demo]'\n"
