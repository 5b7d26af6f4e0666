"""Explanations of data larger than memory: every form of input, the rows of `explain`; kills, processes, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_pipeline import FUTURE, HISTORY, LABELS, small_distiller
from typer.testing import CliRunner

from ehd_hf.cli import app
from ehd_hf.data.export import export_windows
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.windows import make_windows
from ehd_hf.explain import many as streaming
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.explanation import explanations_to_frame
from ehd_hf.explain.many import explain_to_parquet

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [15, 4, 9, 40, 12, 3, 11, 21, 5, 17]  # two are too short for a future of 4
SHOWN = ["num_distilled", "dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark"]
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
    return EventSequences.from_lists(times, marks, id2label=LABELS, seq_ids=names, time_unit="h")


def write_lists(events, path):
    columns = {"seq_id": list(events.seq_ids), "times": [t for t, _ in events], "marks": [m for _, m in events]}
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def event_rows(events):
    return pd.DataFrame(
        {
            "seq_id": np.repeat(events.seq_ids, events.lengths),
            "time": events.times,
            "mark": [LABELS[mark] for mark in events.marks.tolist()],
        }
    )


@pytest.fixture
def source(sequences, tmp_path):
    return write_lists(sequences, tmp_path / "events.parquet")


def ends_of(explainer, sequences, **question):
    enough = np.flatnonzero(sequences.lengths > FUTURE)
    return explainer.explain(sequences.select(enough), **question)


def same(rows, answers):
    """The rows of a folder say what the explanations say."""
    expected = explanations_to_frame(answers)
    assert rows["seq_id"].tolist() == expected["seq_id"].tolist()
    assert [list(chosen) for chosen in rows["positions"]] == expected["positions"].tolist()
    assert rows[JUDGED].equals(expected[JUDGED])
    np.testing.assert_allclose(rows[SHOWN], expected[SHOWN].astype(float), rtol=1e-9, atol=1e-9)
    assert rows["one_minimal"].tolist() == expected["one_minimal"].tolist()
    if "score" in rows:
        for scores, answer in zip(rows["score"], answers, strict=True):
            assert scores == pytest.approx([event.score for event in answer.history], abs=1e-5)
    return True


# --- the same answers as `explain`


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"history": 6, "refine": "prefix"},
        {"epsilon": 0.9, "future": 2},
        {"size": 9, "history": 10},
        {"share": 0.5, "delta": 0.05},
        {"epsilon": 0.01, "refine": "prefix"},
    ],
)
def test_the_rows_say_what_explanations_say(explainer, sequences, source, tmp_path, question):
    question = {"future": FUTURE, **question}
    enough = np.flatnonzero(sequences.lengths > question["future"])
    done = explain_to_parquet(explainer, source, tmp_path / "out", **question, scores=True)
    answers = explainer.explain(sequences.select(enough), **question)
    assert same(pd.read_parquet(tmp_path / "out"), answers)
    assert done.finished and done.windows == len(enough) and done.too_short == len(LENGTHS) - len(enough)
    statuses = [answer.status for answer in answers]
    assert [done.explained, done.explains_nothing, done.infeasible] == [
        statuses.count(status) for status in ("explained", "explains_nothing", "infeasible")
    ]


def test_the_papers_own_answer_is_written_too(sequences, source, tmp_path):
    own = EHDDistiller(small_distiller())
    explain_to_parquet(own, source, tmp_path / "out", refine="none")
    assert same(pd.read_parquet(tmp_path / "out"), ends_of(own, sequences, refine="none"))


def test_where_files_end_and_how_much_is_read_at_once_changes_no_answer(
    explainer, sequences, source, tmp_path, monkeypatch
):
    expected = ends_of(explainer, sequences, history=HISTORY)
    for number, (rows, events, at_once) in enumerate([(1, 2_000_000, 1), (3, 2_000_000, 50), (5, 30, 1), (100, 1, 9)]):
        monkeypatch.setattr(streaming, "_EVENTS_PER_FILE", events)
        monkeypatch.setattr(streaming, "_EVENTS_AT_ONCE", at_once)
        out = tmp_path / str(number)
        done = explain_to_parquet(explainer, source, out, history=HISTORY, rows_per_file=rows)
        files = [pq.read_table(file) for file in sorted(out.glob("*.parquet"))]
        assert same(pa.concat_tables(files).to_pandas(), expected) and done.windows == len(expected)
        for table in files:
            lengths = table["num_history"].to_numpy() + FUTURE
            assert len(lengths) <= rows and (lengths.sum() <= events or len(lengths) == 1)


def test_every_window_of_a_sequence_is_explained_and_says_where_it_begins(explainer, sequences, source, tmp_path):
    done = explain_to_parquet(explainer, source, tmp_path / "out", windows=True, rows_per_file=7)
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


def as_events(sequences, path):
    rows = event_rows(sequences)
    if path.stem == "categories":
        rows = rows.astype({"seq_id": "category", "mark": "category"})
    if path.suffix == ".parquet":
        rows.to_parquet(path, row_group_size=70)
    elif path.suffix == ".jsonl":
        rows.to_json(path, orient="records", lines=True)
    else:
        rows.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize(
    ("name", "at_once"),
    [
        *(("rows.parquet", size) for size in (1, 16, 64, 10**6)),
        *(("categories.parquet", size) for size in (16, 64)),
        *((f"rows.{kind}", size) for kind in ("csv", "tsv", "jsonl") for size in (80, 500)),
    ],
)
def test_one_row_per_event_is_read_sequence_by_sequence(explainer, sequences, tmp_path, monkeypatch, name, at_once):
    monkeypatch.setattr(streaming, "_EVENTS_AT_ONCE", at_once)
    monkeypatch.setattr(streaming, "_BYTES_AT_ONCE", at_once)
    explain_to_parquet(explainer, as_events(sequences, tmp_path / name), tmp_path / "out")
    assert same(pd.read_parquet(tmp_path / "out"), ends_of(explainer, sequences))


def test_lines_of_sequences_and_folders_of_files_are_read_in_order(explainer, sequences, tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    for number, part in enumerate(([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])):
        rows = [
            {"seq_id": sequences.seq_ids[index], "times": sequences[index][0].tolist(), "marks": names}
            for index in part
            for names in [[LABELS[mark] for mark in sequences[index][1].tolist()]]
        ]
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "notes.txt").write_text("other files are passed over")
    explain_to_parquet(explainer, folder, tmp_path / "out")
    assert same(pd.read_parquet(tmp_path / "out"), ends_of(explainer, sequences))


def test_one_log_without_ids_is_one_sequence(explainer, sequences, tmp_path):
    times, marks = sequences[3]
    pd.DataFrame({"time": times, "mark": marks}).to_csv(tmp_path / "log.csv", index=False)
    done = explain_to_parquet(explainer, tmp_path / "log.csv", tmp_path / "out", windows=True)
    assert done.windows == len(times) - HISTORY - FUTURE


@pytest.mark.parametrize("streams", [False, True])
def test_datasets_are_read_streamed_or_not(explainer, sequences, source, tmp_path, streams):
    options = {"split": "train", "cache_dir": str(tmp_path / "cache")}
    dataset = datasets.load_dataset("parquet", data_files=str(source), streaming=streams, **options)
    explain_to_parquet(explainer, dataset, tmp_path / "out")
    assert same(pd.read_parquet(tmp_path / "out"), ends_of(explainer, sequences))
    assert explain_to_parquet(explainer, dataset, tmp_path / "out").finished  # known again


def test_exported_windows_are_explained_as_the_sequences_they_come_from(explainer, sequences, source, tmp_path):
    export_windows({"test": sequences}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    explain_to_parquet(explainer, source, tmp_path / "expected", windows=True)
    expected = pd.read_parquet(tmp_path / "expected")
    pair = f"{FUTURE}-{HISTORY}"
    dataset = datasets.load_dataset(
        str(tmp_path / "data"), pair, split="test", streaming=True, cache_dir=str(tmp_path / "cache")
    )
    for name, windows in (("file", tmp_path / "data" / pair / "test.parquet"), ("dataset", dataset)):
        explain_to_parquet(explainer, windows, tmp_path / name, rows_per_file=20)
        rows = pd.read_parquet(tmp_path / name)
        assert rows[["seq_id", "window", "status"]].equals(expected[["seq_id", "window", "status"]])
        np.testing.assert_allclose(rows[SHOWN], expected[SHOWN], rtol=1e-9, atol=1e-9)


def test_exported_sequences_keep_their_starts_and_their_unit(explainer, sequences, tmp_path):
    minutes = replace(sequences, times=sequences.times * 60, starts=np.full(len(sequences), 60.0), time_unit="min")
    export_windows({"test": minutes}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    explain_to_parquet(explainer, tmp_path / "data" / "sequences" / "test.parquet", tmp_path / "out")
    assert same(pd.read_parquet(tmp_path / "out"), ends_of(explainer, minutes))


def test_the_folder_opens_with_datasets(explainer, source, tmp_path):
    explain_to_parquet(explainer, source, tmp_path / "out", rows_per_file=3)
    files = str(tmp_path / "out" / "*.parquet")
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 8 and rows[0]["seq_id"] == "user 0" and rows[0]["status"] in ("explained", "explains_nothing")


# --- going on


def test_a_finished_run_says_so_and_computes_nothing(explainer, source, tmp_path, monkeypatch):
    first = explain_to_parquet(explainer, source, tmp_path / "out", rows_per_file=3)
    monkeypatch.setattr(EHDDistiller, "_answer", None)
    assert explain_to_parquet(explainer, source, tmp_path / "out", rows_per_file=3) == first and first.finished


def test_what_is_there_is_not_computed_again_and_what_is_half_written_is(explainer, source, tmp_path, monkeypatch):
    out, calls, answer = tmp_path / "out", [], EHDDistiller._answer
    explain_to_parquet(explainer, source, out, rows_per_file=3)
    whole = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
    assert len(whole) == 3
    (out / "part-000002.parquet").unlink()
    (out / "part-000001.parquet").write_bytes(whole["part-000001.parquet"][:-100])
    (out / ".part-000002.parquet.partial").write_bytes(b"PAR1 and no more")
    assert len(pd.read_parquet(out / "part-000000.parquet")) == 3
    monkeypatch.setattr(EHDDistiller, "_answer", lambda *given, **how: calls.append(1) or answer(*given, **how))
    done = explain_to_parquet(explainer, source, out, rows_per_file=3)
    assert done.finished and len(calls) == 2
    assert {file.name: file.read_bytes() for file in out.glob("*.parquet")} == whole
    assert not list(out.glob(".*"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"share": 0.4}, "another request: expected question .*0.7.*got .*0.4"),
        ({"future": 3}, "expected future 4, got 3"),
        ({"scores": True}, "expected scores False, got True"),
        ({"rows_per_file": 4}, "expected rows_per_file 10000, got 4"),
        ({"model": 1}, "expected model '.*', got '.*'. Choose another folder, or remove this one"),
        ({"source": True}, "expected source .*events.parquet.* got .*other.parquet"),
    ],
)
def test_a_folder_of_another_request_is_refused(explainer, sequences, source, tmp_path, changed, said):
    explain_to_parquet(explainer, source, tmp_path / "out")
    if changed.pop("source", False):
        source = write_lists(sequences.select([0, 3]), tmp_path / "other.parquet")
    if changed.pop("model", False):
        explainer = EHDDistiller(small_distiller(seed=1), share=0.7)
    with pytest.raises(ValueError, match=said):
        explain_to_parquet(explainer, source, tmp_path / "out", **changed)


def test_a_folder_that_holds_something_else_is_left_alone(explainer, source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for place in (tmp_path / "out", tmp_path / "out" / "thesis.tex"):
        with pytest.raises(ValueError, match="holds something else"):
            explain_to_parquet(explainer, source, place)


# --- bad input


def test_bad_rows_are_named_before_anything_is_explained(explainer, sequences, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_EVENTS_AT_ONCE", 40)
    rows = event_rows(sequences)
    for name, column, value, said in (
        ("time", "time", np.nan, "times must be finite; got nan in sequence 'user 7'"),
        ("mark", "mark", "party", "got party in sequence 'user 7'"),
    ):
        bad = rows.copy()
        bad.loc[rows.index[rows["seq_id"] == "user 7"][3], column] = value
        bad.to_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(ValueError, match=f"rows [0-9]+ to [0-9]+: .*{said}"):
            explain_to_parquet(explainer, tmp_path / f"{name}.parquet", tmp_path / name)
        assert not list((tmp_path / name).glob("*.parquet"))  # found before anything was computed


def test_a_sequence_that_comes_again_is_refused_with_a_way_out(explainer, sequences, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_EVENTS_AT_ONCE", 16)
    rows = event_rows(sequences)
    pd.concat([rows[5:], rows[:5]]).to_parquet(tmp_path / "mixed.parquet")
    with pytest.raises(ValueError, match="must stand together; got sequence 'user 0' again.*Sort the file"):
        explain_to_parquet(explainer, tmp_path / "mixed.parquet", tmp_path / "out")


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (([1.0], [0, 1], [2.0], [1]), "history_times and history_marks must be equally many.*1 and 2 in row 1"),
        (([1.0], [0], [], []), "future_times and future_marks .* at least one; got 0 and 0 in row 1"),
        (([3.0], [0], [2.0], [1]), "times must not decrease within a sequence; got 2.0 in sequence 1"),
    ],
)
def test_bad_windows_are_named(explainer, tmp_path, window, said):
    rows = [([0.5, 1.0], [0, 5], [2.0], [1]), window]
    columns = dict(zip(streaming.WINDOW_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "windows.parquet")
    with pytest.raises(ValueError, match=said):
        explain_to_parquet(explainer, tmp_path / "windows.parquet", tmp_path / "out")


def test_what_cannot_be_asked_is_refused(explainer, sequences, source, tmp_path):
    out, empty = tmp_path / "out", tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(source)[:0], empty)
    export_windows({"test": sequences}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    exported = tmp_path / "data" / f"{FUTURE}-{HISTORY}" / "test.parquet"
    mtpp = EHDDistiller.from_mtpp(explainer.mtpp)
    for explains, given, options, said in (
        (explainer, empty, {}, "holds no rows"),
        (explainer, tmp_path / "missing.csv", {}, "no file or folder .*missing.csv"),
        (explainer, tmp_path / "data", {}, "must hold files of one type"),
        (explainer, [1, 2], {}, "a file, a folder or a dataset; got list"),
        (explainer, source, {"future": 100}, "none of 10 sequences is long enough: a window has at least 1 . 100"),
        (explainer, source, {"windows": True, "history": 100}, "none of 10 .*100 . 4 events"),
        (explainer, source, {"future": 0}, "future must be a number of events of at least 1; got 0"),
        (explainer, source, {"sequence": "user"}, "no sequence column 'user'; the columns are seq_id, times, marks"),
        (explainer, source, {"rows_per_file": 0}, "rows_per_file must be at least 1; got 0"),
        (explainer, source, {"rank": 2, "world_size": 2}, "rank must lie in"),
        (explainer, exported, {"windows": True}, "The rows are windows"),
        (mtpp, source, {}, "Pass future=5"),
        (mtpp, source, {"future": 2, "windows": True}, "Pass history=40"),
    ):
        with pytest.raises((ValueError, OSError), match=said):
            explain_to_parquet(explains, given, out, **options)  # a folder without answers is free


def test_marks_of_another_vocabulary_are_refused(explainer, sequences, tmp_path):
    others = replace(sequences, id2label={mark: name.upper() for mark, name in LABELS.items()})
    export_windows({"test": others}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    for folder in ("sequences", f"{FUTURE}-{HISTORY}"):
        with pytest.raises(ValueError, match="mark vocabulary is not the model's"):
            explain_to_parquet(explainer, tmp_path / "data" / folder / "test.parquet", tmp_path / "out")


# --- at the command line


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Tables as people have them: times as text, other names, rows of a user out of their order in time."""
    generator = np.random.default_rng(7)
    names, rows = list(pipeline_labels()), []
    for user in ("007", "anna", "zoe"):
        moments = pd.Timestamp("2026-03-01") + pd.to_timedelta(np.cumsum(generator.integers(1, 300, 36)), unit="min")
        order = generator.permutation(len(moments))
        rows += [(user, f"{moments[at]:%d.%m.%Y %H:%M}", names[generator.integers(len(names))]) for at in order]
    path = tmp_path_factory.mktemp("log") / "log.csv"
    pd.DataFrame([*rows, ("short", "01.03.2026 08:00", names[0])], columns=["who", "when", "what"]).to_csv(
        path, index=False
    )
    return path


def pipeline_labels():
    return EHDDistiller.from_pretrained("incidents").mtpp.config.id2label.values()


def ehd_hf(*arguments, code=0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain", "incidents", *map(str, arguments)])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


COLUMNS = ["--time", "when", "--mark", "what", "--sequence-column", "who", "--refine", "prefix", "--all"]


def test_the_command_line_reads_piece_by_piece_what_it_reads_as_a_whole(log, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_BYTES_AT_ONCE", 700)
    said = json.loads(ehd_hf(log, *COLUMNS, "--out", tmp_path / "answers", "--scores", "--json").stdout)
    assert said["finished"] and said["windows"] == 3 and said["too_short"] == 1
    ehd_hf(log, *COLUMNS, "--out", tmp_path / "answers.parquet")
    rows, expected = pd.read_parquet(tmp_path / "answers"), pd.read_parquet(tmp_path / "answers.parquet")
    assert rows["seq_id"].tolist() == expected["seq_id"].tolist() == ["007", "anna", "zoe"]
    assert [list(chosen) for chosen in rows["positions"]] == [list(chosen) for chosen in expected["positions"]]
    np.testing.assert_allclose(rows[SHOWN], expected[SHOWN], rtol=1e-9, atol=1e-9)
    again = ehd_hf(log, *COLUMNS, "--out", tmp_path / "answers", "--scores").stdout
    assert "3 windows are explained" in again and "1 sequences are too short" in again


def test_the_command_line_explains_every_window(log, tmp_path):
    said = ehd_hf(log, *COLUMNS, "--windows", "--out", tmp_path / "answers").stdout
    windows = 3 * (36 - 30)
    assert f"of {windows} windows are explained" in said and str(tmp_path / "answers") in " ".join(said.split())


def test_the_command_line_refuses_what_does_not_go_together(log, tmp_path):
    for arguments, said in (
        (["--windows"], "--windows and --scores are for --all with a folder"),
        (["--scores", "--out", tmp_path / "a.csv"], "--windows and --scores are for --all with a folder"),
        (["--out", tmp_path / "a.xlsx"], ".csv, or be a folder; got 'a.xlsx'"),
        (["--out", log.parent], "holds something else"),
    ):
        assert said in " ".join(ehd_hf(log, *COLUMNS, *arguments, code=2).stderr.split())


# --- several processes, kills


SCRIPT = ROOT / "scripts" / "explain.py"
OPTIONS = {"windows": True, "share": 0.5, "refine": "prefix", "rows_per_file": 20}
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model, events, the command that explains them, and the rows of one process that was left in peace."""
    folder = tmp_path_factory.mktemp("large")
    model = small_distiller()
    model.save_pretrained(folder / "model")
    generator = np.random.default_rng(6)
    times = np.sort(generator.uniform(0, 100, (100, 25)), axis=1)
    marks = generator.integers(0, 6, (100, 25))
    pq.write_table(pa.table({"times": list(times), "marks": list(marks)}), folder / "events.parquet")
    explainer = EHDDistiller.from_pretrained(folder / "model")
    explain_to_parquet(explainer, folder / "events.parquet", folder / "one", **OPTIONS)
    arguments = ["--model", folder / "model", "--events", folder / "events.parquet", "--windows", "--share", "0.5"]
    return folder, [str(SCRIPT), *map(str, arguments), "--refine", "prefix", "--rows-per-file", "20"]


def files_of(folder):
    return {file.name: pq.read_table(file) for file in sorted(folder.glob("*.parquet"))}


def test_two_processes_write_the_files_of_one(large, tmp_path):
    folder, command = large
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*torchrun, *command, "--out", str(tmp_path / "two")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    one, two = files_of(folder / "one"), files_of(tmp_path / "two")
    assert len(one) == 70 and one.keys() == two.keys()
    assert all(two[name].equals(table) for name, table in one.items())  # to the last bit
    assert json.loads((tmp_path / "two" / "_done.json").read_text()) == json.loads(
        (folder / "one" / "_done.json").read_text()
    )


def test_any_number_of_processes_may_go_on(large, tmp_path):
    folder, _ = large
    explainer = EHDDistiller.from_pretrained(folder / "model")
    for rank, world_size, finished in ((1, 3, False), (0, 2, False), (1, 2, True)):
        done = explain_to_parquet(
            explainer, folder / "events.parquet", tmp_path / "out", rank=rank, world_size=world_size, **OPTIONS
        )
        assert done.finished == finished
    one, out = files_of(folder / "one"), files_of(tmp_path / "out")
    assert one.keys() == out.keys() and all(out[name].equals(table) for name, table in one.items())


def kill_and_repeat(large, out, kills, generator):
    """Kill the command at random moments after its first file, then let it finish; which files each life saw done."""
    folder, command = large
    command = [sys.executable, *command, "--out", str(out)]
    lives = []
    for _ in range(kills):
        before = set(out.glob("*.parquet"))
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(set(out.glob("*.parquet"))) <= len(before) and process.poll() is None:
            time.sleep(0.002)
        time.sleep(generator.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        lives.append({file: file.stat().st_mtime_ns for file in out.glob("*.parquet")})
    explainer = EHDDistiller.from_pretrained(folder / "model")
    assert explain_to_parquet(explainer, folder / "events.parquet", out, **OPTIONS).finished
    one, rows = files_of(folder / "one"), files_of(out)
    assert one.keys() == rows.keys() and all(rows[name].equals(table) for name, table in one.items())
    for life in lives:
        assert 0 < len(life) < len(rows)  # killed in between
        assert all(file.stat().st_mtime_ns == then for file, then in life.items())  # not written again
    assert not list(out.glob(".*"))


def test_a_killed_run_goes_on_where_it_was(large, tmp_path):
    kill_and_repeat(large, tmp_path / "out", 1, np.random.default_rng())


@pytest.mark.slow
def test_a_run_killed_five_times_loses_and_repeats_nothing(large, tmp_path):
    kill_and_repeat(large, tmp_path / "out", 5, np.random.default_rng())


@pytest.mark.parametrize("line", ["null", "[1]", '{"times": [1.0', '"' + "\ud800", "[" * 100_000])
def test_a_line_of_json_that_is_no_row_is_refused_by_name(explainer, tmp_path, line):
    source = tmp_path / "rows.jsonl"
    source.write_bytes(line.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(ValueError, match="row 0 must be an object|rows.jsonl cannot be read"):
        explain_to_parquet(explainer, source, tmp_path / "out")
