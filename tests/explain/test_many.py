"""Explaining data of any size: every form of input gives the rows of `explain`; files, kills, processes, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_pipeline import FUTURE, HISTORY, LABELS, small_distiller
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.data import sorting, tables
from ehd_hf.data.export import export_windows
from ehd_hf.data.windows import make_windows
from ehd_hf.explain import many
from ehd_hf.explain.explainer import WINDOW_COLUMNS, EHDDistiller, load_example
from ehd_hf.explain.explanation import FIELDS, explanations_to_frame
from ehd_hf.explain.many import Work, explain_many
from helpers import from_lists

LENGTHS = [15, 4, 9, 40, 12, 3, 11, 21, 5, 17]  # two are too short for a future of 4
NUMBERS = ["num_distilled", "dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark"]
JUDGED = ["status", "certified", "constraint_met", "is_most_recent"]


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller(small_distiller(), share=0.7)


@pytest.fixture(scope="module")
def sequences():
    generator = np.random.default_rng(5)
    times = [3.0 + np.cumsum(generator.integers(0, 6, length)) / 4 for length in LENGTHS]
    marks = [generator.integers(0, 6, length) for length in LENGTHS]
    names = [f"user {number}" for number in range(len(LENGTHS))]
    return from_lists(times, marks, id2label=LABELS, seq_ids=names, time_unit="h")


def write_lists(events, path):
    columns = {"seq_id": list(events.seq_ids), "times": [t for t, _ in events], "marks": [m for _, m in events]}
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def event_rows(events):
    marks = [LABELS[mark] for mark in events.marks.tolist()]
    return pd.DataFrame({"seq_id": np.repeat(events.seq_ids, events.lengths), "time": events.times, "mark": marks})


@pytest.fixture
def source(sequences, tmp_path):
    return write_lists(sequences, tmp_path / "events.parquet")


def ends_of(explainer, sequences, **question):
    enough = np.flatnonzero(sequences.lengths > question.get("future", FUTURE))
    return explainer.explain(sequences.select(enough), **question)


def check(rows, answers):
    """The rows of a file or folder say what the explanations say."""
    rows = rows if isinstance(rows, pd.DataFrame) else pd.read_parquet(rows)
    expected = explanations_to_frame(answers)
    assert list(rows.columns)[: len(FIELDS)] == list(FIELDS)
    assert rows["seq_id"].tolist() == expected["seq_id"].tolist()
    assert [list(chosen) for chosen in rows["positions"]] == expected["positions"].tolist()
    assert rows[JUDGED].equals(expected[JUDGED])
    np.testing.assert_allclose(rows[NUMBERS], expected[NUMBERS].astype(float), rtol=1e-9, atol=1e-9)
    assert rows["one_minimal"].tolist() == expected["one_minimal"].tolist()
    for scores, answer in zip(rows.get("score", []), answers, strict="score" in rows):
        assert scores == pytest.approx([event.score for event in answer.history], abs=1e-5)


# --- the same answers as `explain`


QUESTIONS = [{}, {"history": 6, "refine": "prefix"}, {"epsilon": 0.9, "future": 2}, {"size": 9, "history": 10}]
QUESTIONS += [{"share": 0.5, "delta": 0.05}, {"epsilon": 0.01, "refine": "prefix"}, {"refine": "none"}]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_rows_say_what_explanations_say(explainer, sequences, source, tmp_path, question):
    answers = ends_of(explainer, sequences, **question)
    statuses = [answer.status for answer in answers]
    for name in ("answers", "answers.parquet"):
        done = explain_many(explainer, source, tmp_path / name, **question, scores=True)
        check(tmp_path / name, answers)
        assert done.finished and done.windows == len(answers) and done.too_short == len(LENGTHS) - len(answers)
        for status in ("explained", "explains_nothing", "infeasible"):
            assert getattr(done, status) == statuses.count(status)


@pytest.mark.parametrize(("rows", "events", "at_once"), [(1, 2e6, 1), (3, 2e6, 50), (5, 30, 1), (100, 1, 9)])
def test_where_files_end_changes_no_answer(explainer, sequences, source, tmp_path, monkeypatch, rows, events, at_once):
    monkeypatch.setattr(many, "_EVENTS_PER_FILE", events)
    monkeypatch.setattr(tables, "_EVENTS_AT_ONCE", at_once)
    expected = ends_of(explainer, sequences)
    done = explain_many(explainer, source, tmp_path / "out", work=Work(rows))
    files = [pq.read_table(file) for file in sorted((tmp_path / "out").glob("*.parquet"))]
    check(pa.concat_tables(files).to_pandas(), expected)
    assert done.windows == len(expected) and done.files == len(files)
    for table in files:
        lengths = table["num_history"].to_numpy() + FUTURE
        assert len(lengths) <= rows and (lengths.sum() <= events or len(lengths) == 1)


def test_every_window_is_explained_and_says_where_it_begins(explainer, sequences, source, tmp_path):
    done = explain_many(explainer, source, tmp_path / "out", windows=True, work=Work(7))
    rows = pd.read_parquet(tmp_path / "out")
    store = make_windows(sequences, future=FUTURE, history=HISTORY)
    assert done.windows == len(rows) == len(store) > 40 and done.too_short == store.num_too_short
    assert rows["window"].tolist() == store.window_offset.tolist()
    assert rows["seq_id"].tolist() == [sequences.seq_ids[index] for index in store.sequence_index]
    # Asked about alone, with the event before it as its clock's origin.
    row = rows.iloc[20]
    times, marks = sequences[sequences.seq_ids.index(row["seq_id"])]
    until = row["window"] + HISTORY + FUTURE
    answer = explainer.explain(list(zip(times[:until], marks[:until], strict=True)), future=FUTURE, history=HISTORY)
    assert row["dppl_left"] == pytest.approx(answer.dppl_left, abs=1e-9)
    assert list(row["positions"]) == [event.position for event in answer.distilled]


# --- every form of input


WRITERS = {
    "rows.parquet": lambda rows, path: rows.to_parquet(path, row_group_size=70),
    "categories.parquet": lambda rows, path: rows.astype({"seq_id": "category", "mark": "category"}).to_parquet(path),
    "rows.csv": lambda rows, path: rows.to_csv(path, index=False),
    "rows.tsv": lambda rows, path: rows.to_csv(path, index=False, sep="\t"),
    "rows.jsonl": lambda rows, path: rows.to_json(path, orient="records", lines=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_one_row_per_event_is_read_sequence_by_sequence(explainer, sequences, tmp_path, monkeypatch, name):
    WRITERS[name](event_rows(sequences), tmp_path / name)
    for at_once in (16, 64, 10**6) if name.endswith(".parquet") else (80, 500):
        monkeypatch.setattr(tables, "_EVENTS_AT_ONCE", at_once)
        monkeypatch.setattr(tables, "_BYTES_AT_ONCE", at_once)
        explain_many(explainer, tmp_path / name, tmp_path / f"out {at_once}")
        check(tmp_path / f"out {at_once}", ends_of(explainer, sequences))


def test_lines_of_sequences_and_folders_of_files_are_read_in_order(explainer, sequences, tmp_path):
    (tmp_path / "events").mkdir()
    lists = [(times.tolist(), [LABELS[mark] for mark in marks]) for times, marks in sequences]
    for number, part in enumerate((slice(4), slice(4, None))):
        rows = zip(sequences.seq_ids[part], *zip(*lists[part], strict=True), strict=True)
        lines = [json.dumps(dict(zip(("seq_id", "times", "marks"), row, strict=True))) for row in rows]
        (tmp_path / "events" / f"{number}.jsonl").write_text("\n".join(lines))
    (tmp_path / "events" / "notes.txt").write_text("other files are passed over")
    explain_many(explainer, tmp_path / "events", tmp_path / "out")
    check(tmp_path / "out", ends_of(explainer, sequences))


@pytest.mark.parametrize("streams", [False, True])
def test_datasets_are_read_streamed_or_not(explainer, sequences, source, tmp_path, streams):
    options = {"split": "train", "cache_dir": str(tmp_path / "cache")}
    dataset = datasets.load_dataset("parquet", data_files=str(source), streaming=streams, **options)
    explain_many(explainer, dataset, tmp_path / "out", work=Work(3))
    check(tmp_path / "out", ends_of(explainer, sequences))
    assert explain_many(explainer, dataset, tmp_path / "out", work=Work(3)).finished  # recognised again
    again = datasets.load_dataset("parquet", data_files=str(tmp_path / "out" / "*.parquet"), **options)
    assert len(again) == 8 and again[0]["seq_id"] == "user 0"  # the answers are a dataset too


def test_exported_windows_give_the_answers_of_their_sequences(explainer, sequences, source, tmp_path):
    export_windows({"test": sequences}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    explain_many(explainer, source, tmp_path / "expected", windows=True)
    expected, pair = pd.read_parquet(tmp_path / "expected"), f"{FUTURE}-{HISTORY}"
    options = {"split": "test", "streaming": True, "cache_dir": str(tmp_path / "cache")}
    dataset = datasets.load_dataset(str(tmp_path / "data"), pair, **options)
    for name, windows in (("file", tmp_path / "data" / pair / "test.parquet"), ("dataset", dataset)):
        explain_many(explainer, windows, tmp_path / name, work=Work(20))
        rows = pd.read_parquet(tmp_path / name)
        assert rows[["seq_id", "window", "status"]].equals(expected[["seq_id", "window", "status"]])
        np.testing.assert_allclose(rows[NUMBERS], expected[NUMBERS], rtol=1e-9, atol=1e-9)


def test_exported_sequences_keep_their_starts_and_their_unit(explainer, sequences, tmp_path):
    minutes = replace(sequences, times=sequences.times * 60, starts=np.full(len(sequences), 60.0), time_unit="min")
    export_windows({"test": minutes}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    explain_many(explainer, tmp_path / "data" / "sequences" / "test.parquet", tmp_path / "out")
    check(tmp_path / "out", ends_of(explainer, minutes))


# --- one file


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_text_files_hold_what_parquet_files_hold(explainer, source, tmp_path, suffix):
    for name in (f"deep/answers{suffix}", "answers.parquet"):
        explain_many(explainer, source, tmp_path / name, scores=True, work=Work(3))
    expected, out = pd.read_parquet(tmp_path / "answers.parquet"), tmp_path / "deep" / f"answers{suffix}"
    rows = pd.read_csv(out) if suffix == ".csv" else pd.read_json(out, lines=True)
    assert list(rows.columns) == list(expected.columns) and rows["seq_id"].equals(expected["seq_id"])
    np.testing.assert_allclose(rows[NUMBERS], expected[NUMBERS])
    marks = [row.split("; ") if suffix == ".csv" else row for row in rows["future_marks"]]
    assert marks == [list(row) for row in expected["future_marks"]]
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_timestamps_stay_timestamps_in_parquet(tmp_path):
    explainer, example = EHDDistiller.from_pretrained("incidents"), load_example("incidents")
    example.to_parquet(tmp_path / "log.parquet")
    explain_many(explainer, tmp_path / "log.parquet", tmp_path / "answers.parquet", refine="prefix")
    table = pq.read_table(tmp_path / "answers.parquet")
    assert table["future_times"].type == table["times"].type == pa.list_(pa.timestamp("us"))
    assert table["future_times"][0].as_py() == example["time"].tolist()[-5:]


def test_a_file_is_replaced_only_when_all_is_written(explainer, source, tmp_path, monkeypatch):
    out, answers, calls = tmp_path / "answers.jsonl", EHDDistiller.answers, []
    out.write_text("precious\n")

    def failing(self, *given, **options):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the plug was pulled")
        return answers(self, *given, **options)

    monkeypatch.setattr(EHDDistiller, "answers", failing)
    with pytest.raises(RuntimeError, match="plug"):
        explain_many(explainer, source, out, work=Work(3))
    with pytest.raises(ValueError, match="none of 10 sequences is long enough"):
        explain_many(explainer, source, out, future=100)
    assert out.read_text() == "precious\n" and {path.name for path in tmp_path.iterdir()} == {out.name, source.name}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("memory", ["1GB", "10KB"])  # sorted in memory; on disk, by DuckDB
def test_rows_in_any_order_give_the_same_answers(explainer, sequences, tmp_path, monkeypatch, name, memory):
    if memory == "10KB":
        pytest.importorskip("duckdb")
        monkeypatch.setattr(sorting, "_LEAST_FOR_DUCKDB", 30 * 10**6)
    rows = event_rows(sequences)
    order = np.random.default_rng(1).permutation(len(rows))
    order = order[np.argsort(rows["time"].to_numpy()[order], kind="stable")]  # ties keep their order in the file
    ties = rows.groupby(["seq_id", "time"]).ngroup().to_numpy()
    order[np.argsort(ties[order], kind="stable")] = np.arange(len(rows))[np.argsort(ties, kind="stable")]
    WRITERS[name](rows.iloc[order], tmp_path / name)
    monkeypatch.setattr(tables, "_EVENTS_AT_ONCE", 16)
    monkeypatch.setattr(tables, "_BYTES_AT_ONCE", 300)
    for out in ("answers", "answers.parquet"):
        explain_many(explainer, tmp_path / name, tmp_path / out, work=Work(memory=memory))
        check(tmp_path / out, ends_of(explainer, sequences))
    assert sorted(file.name for file in (tmp_path / "answers").iterdir())[:2] == ["_done.json", "_request.json"]


# --- going on


def test_only_missing_and_damaged_files_are_computed_again(explainer, source, tmp_path, monkeypatch):
    out, calls, answers = tmp_path / "out", [], EHDDistiller.answers
    first = explain_many(explainer, source, out, work=Work(3))
    monkeypatch.setattr(EHDDistiller, "answers", lambda *given, **asked: calls.append(1) or answers(*given, **asked))
    assert explain_many(explainer, source, out, work=Work(3)) == first and first.finished and not calls
    whole = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
    assert len(whole) == 4
    (out / "part-000002.parquet").unlink()
    (out / "part-000001.parquet").write_bytes(whole["part-000001.parquet"][:-100])
    (out / ".part-000002.parquet.partial").write_bytes(b"PAR1 and no more")
    assert explain_many(explainer, source, out, work=Work(3)) == first and len(calls) == 2
    assert {file.name: file.read_bytes() for file in out.glob("*.parquet")} == whole
    assert not list(out.glob(".*"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"share": 0.4}, "another request: expected question .*0.7.*got .*0.4"),
        ({"future": 3}, "expected future 4, got 3"),
        ({"scores": True}, "expected scores False, got True"),
        ({"work": Work(4)}, "expected rows_per_file 10000, got 4"),
        ({"explainer": 1}, "expected model '.*', got '.*'. Choose another folder, or remove it"),
        ({"source": [0, 3]}, "expected source .*events.parquet.* got .*other.parquet"),
    ],
)
def test_a_folder_of_another_request_is_refused(explainer, sequences, source, tmp_path, changed, message):
    given = {"explainer": explainer, "source": source, "out": tmp_path / "out"}
    explain_many(**given)
    given |= changed
    if "source" in changed:
        given["source"] = write_lists(sequences.select(changed["source"]), tmp_path / "other.parquet")
    if "explainer" in changed:
        given["explainer"] = EHDDistiller(small_distiller(seed=changed["explainer"]), share=0.7)
    with pytest.raises(ValueError, match=message):
        explain_many(**given)


def test_a_folder_that_holds_something_else_is_left_alone(explainer, source, tmp_path):
    (tmp_path / "out").mkdir()
    for name in ("thesis.tex", "thesis"):
        (tmp_path / "out" / name).write_text("years of work")
    for place in (tmp_path / "out", tmp_path / "out" / "thesis"):
        with pytest.raises(ValueError, match="holds something else"):
            explain_many(explainer, source, place)


# --- bad input


def test_bad_rows_are_named_before_anything_is_explained_or_left_out(explainer, sequences, tmp_path, monkeypatch):
    bad, source, out = event_rows(sequences), tmp_path / "events.parquet", tmp_path / "out"
    bad.loc[3, "time"] = np.nan
    bad.to_parquet(source)
    assert "1 of 120 rows lack a time: left out." in explain_many(explainer, source, tmp_path / "noted").notes
    monkeypatch.setattr(tables, "_EVENTS_AT_ONCE", 40)
    bad.loc[bad.index[bad["seq_id"] == "user 7"][3], "mark"] = "party"
    bad.to_parquet(source)
    with pytest.raises(ValueError, match="sequences 'user 0' to 'user .': .*the model does not know .*'party'"):
        explain_many(explainer, source, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (([1.0], [0, 1], [2.0], [1]), "history: times and marks must be equally many; got 1 and 2 in sequence 1"),
        (([1.0], [0], [], []), "future: .*at least one event; got 0 in sequence 1"),
        (([3.0], [0], [2.0], [1]), "must not begin before the history ends; it begins at 2 in sequence 1"),
    ],
)
def test_bad_windows_are_named(explainer, tmp_path, window, message):
    rows = [([0.5, 1.0], [0, 5], [2.0], [1]), window]
    columns = dict(zip(WINDOW_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "windows.parquet")
    with pytest.raises(ValueError, match=message):
        explain_many(explainer, tmp_path / "windows.parquet", tmp_path / "out")


def test_what_cannot_be_asked_is_refused(explainer, sequences, source, tmp_path):
    out, empty = tmp_path / "out", tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(source)[:0], empty)
    export_windows({"test": sequences}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    exported = tmp_path / "data" / f"{FUTURE}-{HISTORY}" / "test.parquet"
    others = replace(sequences, id2label={mark: name.upper() for mark, name in LABELS.items()})
    export_windows({"test": others}, tmp_path / "others", [(FUTURE, HISTORY)], name="small")
    for given, options, message in (
        (empty, {}, "holds no rows"),
        (tmp_path / "missing.csv", {}, "no file or folder .*missing.csv"),
        (tmp_path / "data", {}, "must hold files of one type"),
        ([1, 2], {}, "a file, a folder or a dataset; got list"),
        (source, {"windows": True, "history": 100}, "none of 10 .*100 . 4 events"),
        (source, {"windows": True, "history": "all"}, "Pass history=40"),
        (exported, {"windows": True}, "The rows are windows"),
        (tmp_path / "others" / "sequences" / "test.parquet", {}, "mark vocabulary is not the model's"),
        (tmp_path / "others" / f"{FUTURE}-{HISTORY}" / "test.parquet", {}, "mark vocabulary is not the model's"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            explain_many(explainer, given, out, **options)  # a folder without answers is free
    with pytest.raises(ValueError, match=r"ends in .parquet, .jsonl, .csv, or a folder; got .*a.xlsx"):
        explain_many(explainer, source, tmp_path / "a.xlsx")
    for options, message in (({"rows_per_file": 0}, "at least 1; got 0"), ({"rank": 2, "world_size": 2}, "rank must")):
        with pytest.raises(ValueError, match=message):
            Work(**options)


# --- at the command line


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A table as people have it: times as text, other names, rows of a user out of their order in time. Deploys and
    changes, alerts and pages take turns, so that there is something to explain."""
    generator = np.random.default_rng(7)
    names, rows = list(EHDDistiller.from_pretrained("incidents").mtpp.config.id2label.values()), []
    for user in ("007", "anna", "zoe"):
        times = pd.Timestamp("2026-03-01") + pd.to_timedelta(np.cumsum(generator.integers(1, 60, 36)), unit="min")
        order = generator.permutation(len(times))
        rows += [(user, f"{times[at]:%d.%m.%Y %H:%M}", names[at % 4]) for at in order]
    rows.append(("short", "01.03.2026 08:00", names[0]))
    path = tmp_path_factory.mktemp("log") / "log.csv"
    pd.DataFrame(rows, columns=["who", "when", "what"]).to_csv(path, index=False)
    return path


def command(*arguments, code=0):
    columns = ["--time", "when", "--mark", "what", "--sequence-column", "who", "--refine", "prefix", "--all"]
    arguments = ["explain", "incidents", *map(str, arguments), *columns]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_the_command_line_writes_the_same_rows_to_file_and_folder(log, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BYTES_AT_ONCE", 700)
    done = json.loads(command(log, "--out", tmp_path / "answers", "--json").stdout)
    assert done["finished"] and done["windows"] == 3 and done["too_short"] == 1
    command(log, "--out", tmp_path / "answers.parquet")
    rows, expected = pd.read_parquet(tmp_path / "answers"), pd.read_parquet(tmp_path / "answers.parquet")
    assert rows["seq_id"].tolist() == expected["seq_id"].tolist() == ["007", "anna", "zoe"]
    assert [list(chosen) for chosen in rows["positions"]] == [list(chosen) for chosen in expected["positions"]]
    np.testing.assert_allclose(rows[NUMBERS], expected[NUMBERS], rtol=1e-9, atol=1e-9)
    again = command(log, "--out", tmp_path / "answers").stdout
    assert "3 windows are explained" in again and "1 sequences are too short" in again
    assert f"of {3 * (36 - 30)} windows are explained" in command(log, "--windows", "--out", tmp_path / "all").stdout
    assert "holds something else" in command(log, "--out", log.parent, code=2).stderr


# --- several processes, kills

OPTIONS = {"windows": True, "share": 0.5, "refine": "prefix", "work": Work(20)}
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SCRIPT = """import sys
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import Work, explain_many
explainer = EHDDistiller.from_pretrained(sys.argv[1])
explain_many(explainer, *sys.argv[2:], windows=True, share=0.5, refine="prefix", work=Work(20))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A folder with a model, events, a script that explains them, and the rows of a process left in peace."""
    folder = tmp_path_factory.mktemp("large")
    small_distiller().save_pretrained(folder / "model")
    generator = np.random.default_rng(6)
    times, marks = np.sort(generator.uniform(0, 100, (40, 25)), axis=1), generator.integers(0, 6, (40, 25))
    pq.write_table(pa.table({"times": list(times), "marks": list(marks)}), folder / "events.parquet")
    (folder / "run.py").write_text(SCRIPT)
    explain_many(EHDDistiller.from_pretrained(folder / "model"), folder / "events.parquet", folder / "one", **OPTIONS)
    return folder


def script(folder, out):
    return [str(folder / "run.py"), str(folder / "model"), str(folder / "events.parquet"), str(out)]


def check_same_files(folder, out):
    one, other = ({file.name: pq.read_table(file) for file in sorted(f.glob("*.parquet"))} for f in (folder, out))
    assert len(one) == 40 and one.keys() == other.keys()
    assert all(other[name].equals(table) for name, table in one.items())  # to the last bit
    assert (folder / "_done.json").read_text() == (out / "_done.json").read_text()
    assert not list(out.glob(".*"))


@pytest.mark.slow
def test_two_processes_write_the_files_of_one(large, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = [*torchrun, *script(large, tmp_path / "two")]
    ended = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stderr[-3000:]
    check_same_files(large / "one", tmp_path / "two")


def test_any_number_of_processes_may_go_on(large, tmp_path):
    explainer = EHDDistiller.from_pretrained(large / "model")
    for rank, world_size, finished in ((1, 3, False), (0, 2, False), (1, 2, True)):
        options = OPTIONS | {"work": Work(20, rank, world_size)}
        assert explain_many(explainer, large / "events.parquet", tmp_path, **options).finished == finished
    check_same_files(large / "one", tmp_path)


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_run_loses_and_repeats_nothing(large, tmp_path, kills):
    """Kill the script at random times after its first file, then let it finish."""
    out, generator, lives = tmp_path / "out", np.random.default_rng(), []
    for _ in range(kills):
        before = len(list(out.glob("*.parquet")))
        process = subprocess.Popen([sys.executable, *script(large, out)], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        while len(list(out.glob("*.parquet"))) <= before and process.poll() is None:
            time.sleep(0.002)
        time.sleep(generator.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        lives.append({file: file.stat().st_mtime_ns for file in out.glob("*.parquet")})
    explainer = EHDDistiller.from_pretrained(large / "model")
    assert explain_many(explainer, large / "events.parquet", out, **OPTIONS).finished
    check_same_files(large / "one", out)
    for life in lives:
        assert 0 < len(life) < 40  # killed in between
        assert all(file.stat().st_mtime_ns == then for file, then in life.items())  # not written again
