"""Bad input at the doors of the data folder.

It is answered by an error of our own (raised in this package, a ValueError or OSError that says what was wrong) or by
a sensible result; never by an exception from the depths of a library.
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

import ehd_hf
from ehd_hf import EHDDistiller, load_events, load_windows
from ehd_hf.data.export import export_windows
from ehd_hf.data.reading import read_events
from ehd_hf.data.sources import load_source
from helpers import tiny_fullynn

OURS = Path(ehd_hf.__file__).parent
GOOD = [(0.5, "a"), (1.0, "b"), (2.0, "a"), (3.5, "c")]


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller.from_mtpp(tiny_fullynn(3, id2label=dict(enumerate("abc"))))


def refusal(call) -> str | None:
    """The message of an error of our own; None if there was none. Anything else comes through as it is."""
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


# --- events; `tests/data/test_events.py` has the refusals that name a sequence

COLUMNS = {"times": [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], "marks": [["a", "b", "a"], ["a", "a", "b"]]}
TWICE = pd.DataFrame([[0.5, 1.0, "a"], [1.0, 2.0, "b"]], columns=["time", "time", "mark"])
BAD_EVENTS = {
    "nothing": (None, "None"),
    "a number": (42, "got int"),
    "bytes": (b"abc", "got bytes"),
    "a tensor": (torch.zeros(3, 2), "got Tensor"),
    "a text": ("nonsense", "there is no file nonsense.*one of .csv"),
    "a name no file can have": ("x" * 5000 + ".csv", "no file"),
    "a name with NUL": ("a\0b.csv", "no file"),
    "a folder": (Path(__file__).parent, "is a folder"),
    "an empty list": ([], "no events"),
    "an empty sequence": ([[]], "at least one event"),
    "a list of nothing": ([None], "cannot be read as columns"),
    "triples": ([(1.0, "a", 3)] * 4, "cannot be read as columns"),
    "words": (["ab", "cd", "ef"], "times must be numbers"),
    "rows of two kinds": ([{"times": [1.0], "marks": ["a"]}, 3], "row 1 must be an object"),
    "infinite times": ([(0.5, "a"), (1.0, "b"), (float("inf"), "a")], "finite"),
    "missing times": ([(0.5, "a"), (None, "b"), (2.0, "a")], "finite"),
    "times of two kinds": ([(0.5, "a"), ("soon", "b")], "one type"),
    "times that are words": ([("soon", "a"), ("later", "b")], "ISO strings; got soon"),
    "times of any length": ([(-1e300, "a"), (0.0, "b"), (1.7e308, "a")], "span less than 1e\\+30"),
    "epoch nanoseconds": ([(1_700_000_000_000_000_001 + i, "a") for i in range(4)], "below 2\\*\\*53.*timestamps"),
    "times beyond 64 bits": ([(2**70 + i, "a") for i in range(3)], "cannot be read as columns"),
    "durations": ({"times": [[pd.Timedelta("1s")]], "marks": [["a"]]}, "got duration"),
    "five centuries": ([(datetime(1700, 1, 1), "a"), (datetime(2200, 1, 1), "b")], "292 years"),
    "the year 9999": ([("9999-01-01", "a"), ("9999-01-02", "b")], "1678 to 2261; got 9999-01-01"),
    "a mark without a name": ([(0.5, ""), (1.0, "b"), (2.0, "a")], "must have a name"),
    "missing marks": ([(0.5, None), (1.0, "a"), (2.0, "b")], "missing"),
    "infinite marks": ([(0.5, np.inf), (1.0, 1.0), (2.0, 2.0)], "whole"),
    "half marks": ([(0.5, 0.5), (1.0, 1.0), (2.0, 2.0)], "whole"),
    "marks that are identifiers": ([(0.5, 10**12), (1.0, 1), (2.0, 2)], "Pass identifiers as strings"),
    "marks that are truth values": ([(0.5, True), (1.0, False)], "got bool"),
    "marks that are objects": ([(0.5, {"x": 1}), (1.0, {"x": 2})], "got struct"),
    "half a character": ([(0.5, "\ud83d"), (1.0, "b")], "not text in UTF-8"),
    "columns of other lengths": ({"times": [1.0, 2.0, 3.0], "marks": ["a", "b"]}, "cannot be read"),
    "columns that are called alike": (TWICE, "Duplicate column names"),
    "objects in a table": (pd.DataFrame({"time": [object()], "mark": ["a"]}), "cannot be read as columns"),
    "ids twice": ({"seq_id": [4, 4], **COLUMNS}, "ids must differ; got 4 twice"),
    "missing ids": ({"seq_id": [4, None], **COLUMNS}, "ids must not be missing"),
    "ids that are lists": ({"seq_id": [[4], [5]], **COLUMNS}, "single values"),
}
TAKERS = {
    "load_windows": lambda explainer, source: load_windows(source, "1-1"),
    "explain": lambda explainer, source: explainer.explain(source, future=1),
    "explain, future apart": lambda explainer, source: explainer.explain(history=GOOD, future=source),
    "attribute": lambda explainer, source: explainer.attribute(source, future=1),
    "a stream": lambda explainer, source: explainer(iter([source]), future=1),
}


@pytest.mark.parametrize("kind", BAD_EVENTS)
def test_load_events_refuses_bad_events_in_words(kind):
    source, expected = BAD_EVENTS[kind]
    message = refusal(lambda: load_events(source))
    assert message is not None and re.search(expected, message, re.DOTALL), message


@pytest.mark.parametrize("taker", TAKERS)
def test_every_door_refuses_bad_events(explainer, taker):
    message = refusal(lambda: TAKERS[taker](explainer, [(0.5, "a"), (float("nan"), "b"), (2.0, "a")]))
    assert message is not None and len(message) > 20


LONG = [(float(i), "abc"[i % 3]) for i in range(100_000)]
STRANGE_BUT_SOUND = {
    "negative times": [(-5.0, "a"), (-3.0, "b"), (-1.0, "c")],
    "ties": [(1.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "a")],
    "a long silence": [(0.0, "a"), (1e-9, "b"), (1e12, "c"), (1e12 + 1, "a")],
    "far from zero": [(1e15, "a"), (1e15 + 1, "b"), (1e15 + 2, "a")],
    "a hundred thousand events": LONG,
}


@pytest.mark.parametrize("silence, is_explained", [(1e13, True), (1e15, False), (1e29, False)])
def test_a_silence_that_drowns_a_likelihood_is_told(explainer, silence, is_explained):
    events = [(0.0, "a"), (1.0, "b"), (silence, "c"), (silence * (1 + 1e-12), "a")]
    if is_explained:
        assert np.isfinite(explainer.explain(events, future=1).dppl_left)
    else:
        with pytest.raises(ValueError, match=r"below 1e\+14 mean intervals; that of sequence 0 .*conditioning="):
            explainer.explain(events, future=1)
    asked = EHDDistiller(explainer.model, conditioning="paper")
    assert np.isfinite(asked.explain(events, future=1).dppl_left)


@pytest.mark.parametrize("kind", STRANGE_BUT_SOUND)
def test_strange_but_sound_events_are_explained(explainer, kind):
    source = STRANGE_BUT_SOUND[kind]
    assert load_events(source).num_events == len(source)
    answer = explainer.explain(source, future=1, history=20)
    assert np.isfinite([answer.dppl_left, answer.dppl_distilled, answer.dppl_empty]).all()


def test_windows_have_a_history_and_a_longest_length(explainer):
    message = refusal(lambda: explainer.explain(LONG, future=1, history="all"))
    assert "at most max_length = 4096" in message and "history=<number" in message
    assert load_events([(0.5, "a")]).num_events == 1
    assert "the history is empty" in refusal(lambda: explainer.explain([(0.5, "a")], future=1))


@pytest.mark.parametrize("mark", ["🚀", "a ", "A", "a\0", "<script>"])
def test_any_text_is_a_mark_and_a_model_names_unseen_ones(explainer, mark):
    events = [(0.5, mark), (1.0, "b"), (2.0, "a")]
    assert mark in load_events(events).id2label.values()
    assert f"got {mark} in sequence 0" in refusal(lambda: explainer.explain(events, future=1))


# --- files


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


CSV = "seq_id,time,mark\nü,0.5,löschen\nü,1.5,ok\nü,2.5,ok\n"
BAD_FILES = {
    "empty.csv": (b"", "empty"),
    "header.csv": (b"time,mark\n", "no events"),
    "latin.csv": (CSV.encode("latin-1"), "UTF-8"),
    "zeros.csv": (b"\0" * 300, "UTF-8"),
    "gz.csv": (b"\x1f\x8b" + b"0" * 9, "compressed"),
    "ragged.csv": (b"time,mark\n1,a\n2,b,c\n", "cannot be read as columns.*Correct that row"),
    "half.json": (b'{"times": [[1.0', "cannot be read"),
    "number.json": (b"3", "cannot be read"),
    "null.jsonl": (b'null\n{"times": [1.0], "marks": [0]}\n', "row 0 must be an object"),
    "deep.json": (b"[" * 100_000, "nested too deep"),
    "deep.jsonl": (b'{"a":' * 100_000, "nested too deep"),
    "latin.jsonl": ('{"times": [1.0], "marks": ["ö"]}'.encode("latin-1"), "UTF-8"),
    "long.json": (b'{"times": [[' + b"9" * 5000 + b']], "marks": [[0]]}', "cannot be read"),
    "easytpp.json": (b'[{"time_since_start": [0.0, 1.0], "type_event": [0, "x"]}]', "cannot be read"),
    "half.parquet": (b"PAR1" + b"\0" * 40, "cannot be read as Parquet"),
    "words.txt": (b"time,mark\n", "one of .csv, .tsv, .jsonl, .json, .parquet; got 'words.txt'"),
}
FILE_TAKERS = {"load_source": load_source, "read_events": read_events}
FILE_TAKERS["load_windows"] = lambda file: load_windows(file, "1-1")


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_in_words(tmp_path, name):
    content, expected = BAD_FILES[name]
    message = refusal(lambda: load_events(write(tmp_path, name, content)))
    assert message is not None and re.search(expected, message), message


@pytest.mark.parametrize("name", ["latin.csv", "half.json", "half.parquet"])
@pytest.mark.parametrize("taker", FILE_TAKERS)
def test_every_door_refuses_bad_files(tmp_path, taker, name):
    content, expected = BAD_FILES[name]
    assert re.search(expected, refusal(lambda: FILE_TAKERS[taker](write(tmp_path, name, content))))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_parquet_is_refused(tmp_path, share):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"time": np.arange(99.0), "mark": ["a"] * 99}), sink)
    whole = sink.getvalue().to_pybytes()
    assert refusal(lambda: load_events(write(tmp_path, "half.parquet", whole[: int(share * len(whole))])))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_makes_no_difference(tmp_path, encoding):
    as_csv = load_events(write(tmp_path, "bom.csv", CSV.encode(encoding)))
    as_json = load_events(write(tmp_path, "bom.json", '{"times": [[1.0]], "marks": [["l"]]}'.encode(encoding)))
    assert as_csv.seq_ids == ("ü",) and as_csv.id2label == {0: "löschen", 1: "ok"}
    assert as_json.num_events == 1


@pytest.mark.parametrize("metadata", [b"", b"[]", b"{", b'{"info": 3}', b'{"info": {"features": 3}}', b"\xff"])
def test_damaged_metadata_beside_a_parquet_schema_is_ignored(tmp_path, metadata):
    table = pa.table({"time": [1.0, 2.0], "mark": [0, 1]})
    both = {b"huggingface": metadata, b"ehd_hf": metadata}
    pq.write_table(table.replace_schema_metadata(both), tmp_path / "x.parquet")
    assert load_events(tmp_path / "x.parquet").num_marks == 2


# --- arguments of the doors of this folder

EVENTS = {"train": load_events([[(float(i), "abc"[i % 3]) for i in range(12)]] * 3)}
BAD_CALLS = {
    "num_marks a text": (lambda t: load_events(GOOD, num_marks="x"), "num_marks must be a number"),
    "num_marks endless": (lambda t: load_events([(0.0, 1)], num_marks=2**63), "num_marks must be a number"),
    "names of words": (lambda t: load_events(GOOD, id2label={"x": "y"}), "id2label must map"),
    "names a number": (lambda t: load_events(GOOD, id2label=3), "id2label must map"),
    "unit a number": (lambda t: load_events([("2020-01-01", "a")], time_unit=3), "a unit of time is one of"),
    "unit NaN": (lambda t: load_events([("2020-01-01", "a")], time_unit="nan s"), "a unit of time is one of"),
    "column a number": (lambda t: load_events(GOOD, time=3), "no time column 3"),
    "starts in lists": (lambda t: load_events({**COLUMNS, "s": [[1.0], [1.0]]}, start="s"), "must hold single values"),
    "export of nothing": (lambda t: export_windows({}, t, name="x"), "splits that share"),
    "export, no pairs": (lambda t: export_windows(EVENTS, t, [], name="x"), "needs pairs"),
    "export, no name": (lambda t: export_windows(EVENTS, t, [(1, 2)], name=""), "needs a name"),
}


@pytest.mark.parametrize("kind", BAD_CALLS)
def test_bad_arguments_are_refused_in_words(tmp_path, kind):
    call, expected = BAD_CALLS[kind]
    message = refusal(lambda: call(tmp_path))
    assert message is not None and re.search(expected, message), message
