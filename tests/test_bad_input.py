"""One table: every entry point against every kind of bad input.

A cell is answered by an error of our own (raised in this package, a ValueError or OSError that says what was wrong) or
by a sensible result; never by an exception from the depths of a library.
"""

import re
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset

import ehd_hf
from ehd_hf import EHDDistiller, FullyNNConfig, FullyNNModel, compare, dppl, load_events, load_windows, make_windows
from ehd_hf.data.export import export_windows
from ehd_hf.data.reading import read_events
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.sources import from_easytpp, from_seismic, load_source
from ehd_hf.data.windows import make_crops, make_whole
from ehd_hf.models.ehd import EHDDistillerConfig
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.solvers.base import get_solver
from ehd_hf.training.trainer import Trainer, TrainingArguments

OURS = Path(ehd_hf.__file__).parent
GOOD = [(0.5, "a"), (1.0, "b"), (2.0, "a"), (3.5, "c")]
LATER = [(4.0, "b"), (9.0, "a")]


@pytest.fixture(scope="module")
def explainer():
    torch.manual_seed(0)
    sizes = {"embedding_size": 4, "hidden_size": 4, "num_components": 4}
    return EHDDistiller.from_mtpp(FullyNNModel(FullyNNConfig(num_marks=3, id2label=dict(enumerate("abc")), **sizes)))


def refusal(call) -> str | None:
    """What an error of our own says; None if there was none. Anything else comes through as it is."""
    try:
        result = call()
        if isinstance(result, Iterator):
            list(result)
    except Exception as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        assert type(error) in (ValueError, OSError, FileNotFoundError), repr(error)
        assert OURS in raised_in.parents, f"{raised_in}: {error!r}"
        return str(error)
    return None


# --- events: what is wrong with them x who is given them

COLUMNS = {"times": [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], "marks": [["a", "b", "a"], ["a", "a", "b"]]}
BAD_EVENTS = {
    "nothing": (None, "None|needs a sequence"),
    "a number": (42, "got int|needs a sequence"),
    "a truth value": (True, "got bool|needs a sequence"),
    "bytes": (b"abc", "got bytes"),
    "a set": ({1, 2}, "got set"),
    "a class": (int, "got type"),
    "a tensor": (torch.zeros(3, 2), "got Tensor"),
    "a flat array": (np.zeros(4), "got ndarray"),
    "a deep array": (np.zeros((2, 3, 2)), "got ndarray"),
    "a text": ("nonsense", "file type must be one of"),
    "an empty text": ("", "file type must be one of|no events"),
    "no such file": ("nowhere/nothing.csv", "nothing.csv"),
    "a name no file can have": ("x" * 5000 + ".csv", "no file|does not exist"),
    "a name with NUL": ("a\0b.csv", "no file|does not exist"),
    "a folder": (Path(__file__).parent, "file type|must hold train"),
    "an empty list": ([], "no events"),
    "an empty dict": ({}, "no (events|mark column)"),
    "an empty sequence": ([[]], "at least one event|no events"),
    "a list of nothing": ([None], "cannot be read as columns"),
    "a list of numbers": ([1, 2], "cannot be read as columns"),
    "triples": ([(1.0, "a", 3)] * 4, "cannot be read as columns"),
    "words": (["ab", "cd", "ef"], "times must be numbers"),
    "rows of two kinds": ([{"times": [1.0], "marks": ["a"]}, 3], "row 1 must be an object"),
    "times of NaN": ([(0.5, "a"), (float("nan"), "b"), (2.0, "a")], "finite"),
    "infinite times": ([(0.5, "a"), (1.0, "b"), (float("inf"), "a")], "finite"),
    "missing times": ([(0.5, "a"), (None, "b"), (2.0, "a")], "finite"),
    "times of two kinds": ([(0.5, "a"), ("soon", "b")], "one type"),
    "times that are words": ([("soon", "a"), ("later", "b")], "ISO strings; got soon"),
    "times that fall": ([(1.0, "a"), (0.5, "b"), (2.0, "a")], "must not decrease"),
    "times of any length": ([(-1e300, "a"), (0.0, "b"), (1.7e308, "a")], "span less than 1e\\+30"),
    "epoch nanoseconds": ([(1_700_000_000_000_000_001 + i, "a") for i in range(4)], "below 2\\*\\*53.*timestamps"),
    "times beyond 64 bits": ([(2**70 + i, "a") for i in range(3)], "cannot be read as columns"),
    "complex times": ([(1j, "a"), (2j, "b")], "cannot be read as columns"),
    "durations": ({"times": [[pd.Timedelta("1s")]], "marks": [["a"]]}, "got duration"),
    "moments of five centuries": ([(datetime(1700, 1, 1), "a"), (datetime(2200, 1, 1), "b")], "292 years"),
    "moments beyond nanoseconds": ([("9999-01-01", "a"), ("9999-01-02", "b")], "1678 to 2261; got 9999-01-01"),
    "a mark without a name": ([(0.5, ""), (1.0, "b"), (2.0, "a")], "must have a name"),
    "missing marks": ([(0.5, None), (1.0, "a"), (2.0, "b")], "missing"),
    "marks of NaN": ([(0.5, float("nan")), (1.0, 1.0), (2.0, 2.0)], "finite|missing"),
    "infinite marks": ([(0.5, np.inf), (1.0, 1.0), (2.0, 2.0)], "finite"),
    "half marks": ([(0.5, 0.5), (1.0, 1.0), (2.0, 2.0)], "whole numbers"),
    "negative marks": ([(0.5, -1), (1.0, 1), (2.0, 2)], "negative"),
    "marks that are identifiers": ([(0.5, 10**12), (1.0, 1), (2.0, 2)], "identifiers|lie in"),
    "marks that are truth values": ([(0.5, True), (1.0, False)], "got bool"),
    "marks of two kinds": ([(0.5, 1), (1.0, "a")], "one type"),
    "marks that are lists": ([(0.5, [1]), (1.0, [2])], "got list"),
    "marks that are objects": ([(0.5, {"x": 1}), (1.0, {"x": 2})], "got struct"),
    "half a character": ([(0.5, "\ud83d"), (1.0, "b")], "not text in UTF-8"),
    "columns of other lengths": ({"times": [1.0, 2.0, 3.0], "marks": ["a", "b"]}, "equally many|cannot be read"),
    "columns of other names": ({"t": [1.0, 2.0], "m": ["a", "b"]}, "no (time|mark) column"),
    "columns that are none": ({"times": None, "marks": None}, "NoneType"),
    "columns of single values": ({"times": 1.0, "marks": "a"}, "float"),
    "columns that are called alike": (
        pd.DataFrame([[0.5, 1.0, "a"], [1.0, 2.0, "b"]], columns=["time", "time", "mark"]),
        "Duplicate column names",
    ),
    "a table without rows": (pd.DataFrame({"time": [], "mark": []}), "no events"),
    "objects in a table": (pd.DataFrame({"time": [object()], "mark": ["a"]}), "cannot be read as columns"),
    "ids twice": ({"seq_id": [4, 4], **COLUMNS}, "ids must differ; got 4 twice"),
    "missing ids": ({"seq_id": [4, None], **COLUMNS}, "ids must not be missing"),
    "ids of two kinds": ({"seq_id": [4, "x"], **COLUMNS}, "one type"),
    "ids that are lists": ({"seq_id": [[4], [5]], **COLUMNS}, "single values"),
}
TAKERS = {
    "load_events": lambda explainer, source: load_events(source),
    "load_windows": lambda explainer, source: load_windows(source, "1-1"),
    "explain": lambda explainer, source: explainer.explain(source, future=1),
    "explain, history apart": lambda explainer, source: explainer.explain(history=source, future=LATER),
    "explain, future apart": lambda explainer, source: explainer.explain(history=GOOD, future=source),
    "attribute": lambda explainer, source: explainer.attribute(source, future=1),
    "a stream": lambda explainer, source: explainer(iter([source]), future=1),
    "load": lambda explainer, source: explainer.load(source),
}


@pytest.mark.parametrize("kind", BAD_EVENTS)
@pytest.mark.parametrize("taker", TAKERS)
def test_bad_events_are_refused_in_words(explainer, taker, kind):
    source, said = BAD_EVENTS[kind]
    message = refusal(lambda: TAKERS[taker](explainer, source))
    assert message is not None and len(message) > 20
    if taker == "load_events":  # others put it in their own words
        assert re.search(said, message), message


STRANGE_BUT_SOUND = {
    "negative times": [(-5.0, "a"), (-3.0, "b"), (-1.0, "c")],
    "ties": [(1.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "a")],
    "a long silence": [(0.0, "a"), (1e-9, "b"), (1e12, "c"), (1e12 + 1, "a")],
    "far from zero": [(1e15, "a"), (1e15 + 1, "b"), (1e15 + 2, "a")],
    "a hundred thousand events": [(float(i), "abc"[i % 3]) for i in range(100_000)],
}


@pytest.mark.parametrize("kind", STRANGE_BUT_SOUND)
def test_strange_but_sound_events_are_explained(explainer, kind):
    source = STRANGE_BUT_SOUND[kind]
    assert load_events(source).num_events == len(source)
    answer = explainer.explain(source, future=1, history=20)
    assert np.isfinite([answer.dppl_left, answer.dppl_distilled, answer.dppl_empty]).all()


def test_a_hundred_thousand_events_at_once_are_more_than_a_window_holds(explainer):
    said = refusal(lambda: explainer.explain(STRANGE_BUT_SOUND["a hundred thousand events"], future=1))
    assert "at most max_length = 4096" in said and "history=<number" in said


def test_one_event_is_a_sequence_without_a_history(explainer):
    assert load_events([(0.5, "a")]).num_events == 1
    assert "the history is empty" in refusal(lambda: explainer.explain([(0.5, "a")], future=1))


@pytest.mark.parametrize("mark", ["🚀", "z", "a ", "A", "a\0", "<script>", "ä"])
def test_any_mark_is_one_to_read_and_an_unseen_one_is_named_by_a_model(explainer, mark):
    events = [(0.5, mark), (1.0, "b"), (2.0, "a")]
    assert mark in load_events(events).label2id
    assert f"got {mark} in sequence 0" in refusal(lambda: explainer.explain(events, future=1))


# --- files


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


CSV = "seq_id,time,mark\nü,0.5,löschen\nü,1.5,ok\nü,2.5,ok\n"
EASYTPP = b'[{"time_since_start": [0.0, 1.0], "type_event": [0, %s]}]'
BAD_FILES = {
    "empty.csv": (b"", "empty"),
    "header.csv": (b"time,mark\n", "no events"),
    "latin.csv": (CSV.encode("latin-1"), "UTF-?8|got binary"),
    "wide.csv": (CSV.encode("utf-16"), "UTF-?8|no .* column|cannot be read|Name it"),
    "zeros.csv": (b"\0" * 300, "no .* column|cannot be read|first line|Name it|UTF-8"),
    "ragged.csv": (b"time,mark\n1,a\n2,b,c\n", "cannot be read"),
    "half.json": (b'{"times": [[1.0', "cannot be read"),
    "number.json": (b"3", "cannot be read"),
    "null.jsonl": (b'null\n{"times": [1.0], "marks": [0]}\n', "row 0 must be an object"),
    "deep.json": (b"[" * 100_000, "nested too deep"),
    "deep.jsonl": (b'{"a":' * 100_000, "nested too deep"),
    "latin.jsonl": ('{"times": [1.0], "marks": ["ö"]}'.encode("latin-1"), "UTF-8"),
    "long.json": (b'{"times": [[' + b"9" * 5000 + b']], "marks": [[0]]}', "cannot be read"),
    "easytpp.json": (EASYTPP % b'"x"', "lists of numbers|cannot be read"),
    "rows.json": (b'["time_since_start", "type_event"]', "must have time_since_start|cannot be read|Name it"),
    "half.parquet": (b"PAR1" + b"\0" * 40, "cannot be read"),
    "words.txt": (b"time,mark\n", "file type|one of"),
}
FILE_TAKERS = {"load_events": load_events, "load_source": load_source, "read_events": read_events}
FILE_TAKERS["load_windows"] = lambda file: load_windows(file, "1-1")


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("taker", FILE_TAKERS)
def test_bad_files_are_refused_in_words(tmp_path, taker, name):
    content, said = BAD_FILES[name]
    message = refusal(lambda: FILE_TAKERS[taker](write(tmp_path, name, content)))
    assert message is not None
    assert re.search(said, message), message


@pytest.mark.parametrize("taker", FILE_TAKERS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated_parquet_is_refused(tmp_path, taker, share):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"time": np.arange(99.0), "mark": ["a"] * 99}), sink)
    whole = sink.getvalue().to_pybytes()
    assert refusal(lambda: FILE_TAKERS[taker](write(tmp_path, "half.parquet", whole[: int(share * len(whole))])))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_makes_no_difference(tmp_path, encoding):
    as_csv = load_events(write(tmp_path, "bom.csv", CSV.encode(encoding)))
    as_json = load_events(
        write(tmp_path, "bom.json", b'{"times": [[1.0]], "marks": [["l"]]}'.decode().encode(encoding))
    )
    assert as_csv.seq_ids == ("ü",) and as_csv.id2label == {0: "löschen", 1: "ok"}
    assert as_json.num_events == 1


@pytest.mark.parametrize("metadata", [b"", b"[]", b"{", b'{"info": 3}', b'{"info": {"features": 3}}', b"\xff"])
def test_words_beside_a_parquet_schema_that_cannot_be_read_are_ignored(tmp_path, metadata):
    table = pa.table({"time": [1.0, 2.0], "mark": [0, 1]})
    pq.write_table(
        table.replace_schema_metadata({b"huggingface": metadata, b"ehd_hf": metadata}), tmp_path / "x.parquet"
    )
    assert load_events(tmp_path / "x.parquet").num_marks == 2


@pytest.mark.parametrize(
    "row",
    [3, None, "x", {}, {"time_since_start": 3, "type_event": [1]}, {"time_since_start": [1.0], "type_event": "x"}]
    + [{"time_since_start": [1.0], "type_event": [0], "dim_process": count} for count in ("x", [], -1, 2**63, 1e999)]
    + [{"time_since_start": [1.0, 2.0], "type_event": [0, 1], "time_since_last_event": [0.0, float("nan")]}]
    + [{"time_since_start": [[1.0]], "type_event": [[0]]}],
)
def test_bad_easytpp_rows_are_refused(row):
    assert refusal(lambda: from_easytpp([row]))


@pytest.mark.parametrize(
    ("index", "data"),
    [
        ("tweet_id,start_ind,end_ind\n7,1,x\n", "relative_time_second,number_of_followers\n0,5\n"),
        ("tweet_id,start_ind,end_ind\n7,1,1.5\n", "relative_time_second,number_of_followers\n0,5\n0,5\n"),
        ("tweet_id,start_ind,end_ind\n7,1,1\n", "relative_time_second,number_of_followers\n0,\n"),
        ("tweet_id,start_ind,end_ind\n7,1,1\n", "relative_time_second,number_of_followers\n0,5\n0,5,6\n"),
        ("\xff", "relative_time_second,number_of_followers\n0,5\n"),
    ],
)
def test_bad_seismic_tables_are_refused(tmp_path, index, data):
    files = [write(tmp_path, f"{i}.csv", text.encode("latin-1")) for i, text in enumerate((index, data))]
    assert refusal(lambda: from_seismic(*files))


# --- everything else one may pass

EVENTS = load_events([[(float(i), "abc"[i % 3]) for i in range(12)]] * 3)
WINDOWS = make_windows(EVENTS, future=2, history=3)
NAN = float("nan")
SIZES = {"zero": 0, "negative": -3, "a half": 1.5, "NaN": NAN, "a text": "2", "a truth value": True, "nothing": None}
MARKS, MASK = torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 5, dtype=torch.bool)
TIMES = torch.arange(5.0)[None]
ROW = {"history_times": [[0.0, 1.0]], "history_marks": [[0, 1]], "future_times": [[2.0]], "future_marks": [[1]]}


def rows(**columns):
    return Dataset.from_dict(columns)


BAD_CALLS = {
    **{
        f"make_windows, future {kind}": lambda e, t, v=v: make_windows(EVENTS, future=v, history=2)
        for kind, v in SIZES.items()
    },
    **{
        f"make_windows, history {kind}": lambda e, t, v=v: make_windows(EVENTS, future=2, history=v)
        for kind, v in SIZES.items()
    },
    **{f"make_crops, length {kind}": lambda e, t, v=v: make_crops(EVENTS, length=v) for kind, v in SIZES.items()},
    **{
        f"explain, size {kind}": lambda e, t, v=v: e.explain(GOOD, future=1, size=v)
        for kind, v in SIZES.items()
        if v is not None
    },
    **{
        f"explain, history {kind}": lambda e, t, v=v: e.explain(GOOD, future=1, history=v)
        for kind, v in SIZES.items()
        if v is not None
    },
    **{f"explain, future {kind}": lambda e, t, v=v: e.explain(GOOD, future=v) for kind, v in SIZES.items()},
    **{
        f"explain, {name} {value}": lambda e, t, n=name, v=value: e.explain(GOOD, future=1, **{n: v})
        for name in ("epsilon", "share", "delta")
        for value in (NAN, "x", -1, [])
    },
    "make_windows of a list": lambda e, t: make_windows([GOOD], future=1, history=1),
    "make_windows of nothing": lambda e, t: make_windows(None, future=1, history=1),
    "make_windows of no sequences": lambda e, t: make_windows(EVENTS.select([]), future=1, history=1),
    "make_windows too long": lambda e, t: make_windows(EVENTS, future=10**9, history=10**9),
    "make_whole, length a text": lambda e, t: make_whole(EVENTS, max_length="x"),
    "load_windows, no pair": lambda e, t: load_windows(EVENTS, "15x40"),
    "load_windows, pair nothing": lambda e, t: load_windows(EVENTS, None),
    "load_windows, pair 0-0": lambda e, t: load_windows(EVENTS, "0-0"),
    "load_windows, endless pair": lambda e, t: load_windows(EVENTS, "9" * 5000 + "-1"),
    "load_windows, digits of another script": lambda e, t: load_windows(EVENTS, "١-٢"),
    "load_windows, split unknown": lambda e, t: load_windows(EVENTS, "1-2", split="dev"),
    "load_windows, split nothing": lambda e, t: load_windows(EVENTS, "1-2", split=None),
    "load_windows of no splits": lambda e, t: load_windows({}, "1-2"),
    "export_windows of nothing": lambda e, t: export_windows({}, t, name="x"),
    "export_windows of lists": lambda e, t: export_windows({"train": [1]}, t, name="x"),
    "export_windows of one": lambda e, t: export_windows(EVENTS, t, name="x"),
    "export_windows, half a pair": lambda e, t: export_windows({"train": EVENTS}, t, [(1,)], name="x"),
    "export_windows, pair a text": lambda e, t: export_windows({"train": EVENTS}, t, ["1-2"], name="x"),
    "export_windows, no pairs": lambda e, t: export_windows({"train": EVENTS}, t, [], name="x"),
    "export_windows, no name": lambda e, t: export_windows({"train": EVENTS}, t, [(1, 2)], name=""),
    "export_windows, card a number": lambda e, t: export_windows({"train": EVENTS}, t, [(1, 2)], name="x", card=3),
    "from_pretrained(None)": lambda e, t: EHDDistiller.from_pretrained(None),
    "from_pretrained(3)": lambda e, t: EHDDistiller.from_pretrained(3),
    "from_pretrained, empty": lambda e, t: EHDDistiller.from_pretrained(""),
    "from_pretrained, unknown": lambda e, t: EHDDistiller.from_pretrained("nope"),
    "from_pretrained, NUL": lambda e, t: EHDDistiller.from_pretrained("a\0b"),
    "from_pretrained, endless": lambda e, t: EHDDistiller.from_pretrained("x" * 5000),
    "from_pretrained, a folder of something else": lambda e, t: EHDDistiller.from_pretrained(t),
    "from_pretrained, no such subfolder": lambda e, t: EHDDistiller.from_pretrained("incidents", subfolder="x"),
    "from_mtpp(None)": lambda e, t: EHDDistiller.from_mtpp(None),
    "from_mtpp, unknown": lambda e, t: EHDDistiller.from_mtpp("nope/nope"),
    "from_mtpp, another model": lambda e, t: EHDDistiller.from_mtpp(torch.nn.Linear(1, 1)),
    "from_mtpp of a distiller's class, nothing": lambda e, t: RankingDistillerModel.from_mtpp(None),
    "from_mtpp of a distiller's class, unknown": lambda e, t: RankingDistillerModel.from_mtpp("nope/nope"),
    "explain, future too long": lambda e, t: e.explain(GOOD, future=99),
    "explain, refine unknown": lambda e, t: e.explain(GOOD, future=1, refine="x"),
    "explain, two targets": lambda e, t: e.explain(GOOD, future=1, size=1, share=0.5),
    "explain, nothing": lambda e, t: e.explain(),
    "explain, history without future": lambda e, t: e.explain(history=GOOD),
    "explain, future before history": lambda e, t: e.explain(history=LATER, future=GOOD),
    "explain, fewer futures": lambda e, t: e.explain(history=[GOOD, GOOD], future=[LATER]),
    "attribute, unknown method": lambda e, t: e.attribute(GOOD, future=1, method="nope"),
    "attribute, method a number": lambda e, t: e.attribute(GOOD, future=1, method=3),
    "attribute, method of sets": lambda e, t: e.attribute(GOOD, future=1, method="exact_search"),
    "a stream, batches of 0": lambda e, t: e(iter([GOOD]), batch_size=0, future=1),
    "explain_dataset of nothing": lambda e, t: e.explain_dataset(None),
    "explain_dataset of a list": lambda e, t: e.explain_dataset([1]),
    "explain_dataset of a dict": lambda e, t: e.explain_dataset({"train": rows(**ROW)}),
    "explain_dataset, other columns": lambda e, t: e.explain_dataset(rows(a=[1])),
    "explain_dataset, texts": lambda e, t: e.explain_dataset(rows(**{**ROW, "history_times": [["x", "y"]]})),
    "explain_dataset, single values": lambda e, t: e.explain_dataset(rows(times=[1.0], marks=[0]), future=1),
    "explain_dataset, NaN": lambda e, t: e.explain_dataset(rows(times=[[0.0, NAN, 2.0]], marks=[[0, 1, 1]]), future=1),
    "explain_dataset, a row missing": lambda e, t: e.explain_dataset(
        rows(times=[[0.0, 1.0, 2.0], None], marks=[[0, 1, 1], [0]]), future=1
    ),
    "explain_dataset, ragged": lambda e, t: e.explain_dataset(rows(**{**ROW, "history_marks": [[0]]})),
    "explain_dataset, no history": lambda e, t: e.explain_dataset(
        rows(**{**ROW, "history_times": [[]], "history_marks": [[]]})
    ),
    "get_solver, unknown": lambda e, t: get_solver("nope"),
    "get_solver(None)": lambda e, t: get_solver(None),
    "get_solver, unknown option": lambda e, t: get_solver("greedy_search", colour=3),
    "get_solver, negative option": lambda e, t: get_solver("integrated_gradient", per_round=-1),
    "get_solver, no draws": lambda e, t: get_solver("shapley", num_draws=0),
    "TrainingArguments, steps a text": lambda e, t: TrainingArguments(out="x", steps="x"),
    "TrainingArguments, rate NaN": lambda e, t: TrainingArguments(out="x", learning_rate=NAN),
    "TrainingArguments, out nothing": lambda e, t: TrainingArguments(out=None),
    "TrainingArguments, out empty": lambda e, t: TrainingArguments(out=""),
    "TrainingArguments, metric a number": lambda e, t: TrainingArguments(out="x", metric=3),
    "TrainingArguments, progress a text": lambda e, t: TrainingArguments(out="x", progress="no"),
    "TrainingArguments, without out": lambda e, t: TrainingArguments.from_dict({"steps": 1}),
    "TrainingArguments of nothing": lambda e, t: TrainingArguments.from_dict(None),
    "Trainer without data": lambda e, t: Trainer(e.mtpp, TrainingArguments(out=str(t)), []),
    "Trainer of nothing": lambda e, t: Trainer(None, TrainingArguments(out=str(t)), WINDOWS),
    "Trainer, arguments a dict": lambda e, t: Trainer(e.mtpp, {"out": "x"}, WINDOWS),
    "config, no marks": lambda e, t: FullyNNConfig(num_marks=0),
    "config, too few names": lambda e, t: FullyNNConfig(num_marks=2, id2label={0: "a"}),
    "config, names in a list": lambda e, t: FullyNNConfig(num_marks=2, id2label=["a", "b"]),
    "config, names that are none": lambda e, t: FullyNNConfig(num_marks=2, id2label={0: "a", 1: None}),
    "config, unknown key": lambda e, t: FullyNNConfig(colour=1),
    "config, negative width": lambda e, t: FullyNNConfig(hidden_size=-1),
    "distiller's config, epsilon NaN": lambda e, t: EHDDistillerConfig(epsilon=NAN),
    "distiller's config, two targets": lambda e, t: EHDDistillerConfig(epsilon=0.5, share=0.5),
    "distiller's config, another model inside": lambda e, t: EHDDistillerConfig(mtpp_config={"model_type": "bert"}),
    "dppl, future too long": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, 9, torch.ones(1, 3)),
    "dppl, no future": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, 0, torch.ones(1, 5)),
    "dppl, future a text": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, "x", torch.ones(1, 3)),
    "dppl, keep too long": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, 2, torch.ones(1, 4)),
    "dppl, keep of other rows": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, 2, torch.ones(7, 3)),
    "dppl, keep of one value": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK, 2, torch.tensor(1.0)),
    "dppl, times a list": lambda e, t: dppl(e.mtpp, [[1.0]], MARKS, MASK, 2, torch.ones(1, 3)),
    "dppl, one axis": lambda e, t: dppl(e.mtpp, TIMES[0], MARKS[0], MASK[0], 2, torch.ones(1, 3)),
    "dppl, other shapes": lambda e, t: dppl(e.mtpp, TIMES, MARKS[:, :3], MASK, 2, torch.ones(1, 3)),
    "dppl, whole times": lambda e, t: dppl(e.mtpp, TIMES.long(), MARKS, MASK, 2, torch.ones(1, 3)),
    "dppl, half marks": lambda e, t: dppl(e.mtpp, TIMES, MARKS.float(), MASK, 2, torch.ones(1, 3)),
    "dppl, mask of numbers": lambda e, t: dppl(e.mtpp, TIMES, MARKS, MASK.long(), 2, torch.ones(1, 3)),
    "compare, unknown method": lambda e, t: compare(e.mtpp, WINDOWS, ["nope"]),
    "load_events, num_marks a text": lambda e, t: load_events(GOOD, num_marks="x"),
    "load_events, num_marks endless": lambda e, t: load_events([(0.0, 1)], num_marks=2**63),
    "load_events, names of words": lambda e, t: load_events(GOOD, id2label={"x": "y"}),
    "load_events, names a number": lambda e, t: load_events(GOOD, id2label=3),
    "load_events, unit a number": lambda e, t: load_events([("2020-01-01", "a")], time_unit=3),
    "load_events, unit of nothing": lambda e, t: load_events([("2020-01-01", "a")], time_unit="0 s"),
    "load_events, unit NaN": lambda e, t: load_events([("2020-01-01", "a")], time_unit="nan s"),
    "load_events, column a number": lambda e, t: load_events(GOOD, time=3),
    "load_events, starts that are lists": lambda e, t: load_events({**COLUMNS, "s": [[1.0], [1.0]]}, start="s"),
    "from_lists, texts": lambda e, t: EventSequences.from_lists([[0.0]], [["a"]]),
    "from_lists, nothing": lambda e, t: EventSequences.from_lists(None, None),
    "from_lists, objects": lambda e, t: EventSequences.from_lists([[object()]], [[0]]),
    "from_lists, two axes": lambda e, t: EventSequences.from_lists([[[0.0, 1.0]]], [[[0, 1]]]),
    "from_lists, starts a text": lambda e, t: EventSequences.from_lists([[0.0]], [[0]], starts=["x"]),
}


@pytest.mark.parametrize("kind", BAD_CALLS)
def test_bad_arguments_are_refused_in_words(explainer, tmp_path, kind):
    (tmp_path / "something").mkdir()
    message = refusal(lambda: BAD_CALLS[kind](explainer, tmp_path / "something"))
    assert message is not None and len(message) > 20
