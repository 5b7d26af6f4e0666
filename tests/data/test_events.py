"""Events: every way in, and what is refused at the door."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ehd_hf.data.reading import read_events
from ehd_hf.data.sequences import find_sequence, load_events, load_splits
from ehd_hf.data.tables import column_names

# Two users by hand: "b" has 3 events (two of them tied), "a" has 2.
ROWS = [("b", 1.0, "stop"), ("a", 0.5, "go"), ("b", 4.0, "go"), ("b", 4.0, "wait"), ("a", 2.5, "stop")]
LONG = pd.DataFrame(ROWS, columns=["seq_id", "time", "mark"])
LISTS = {"seq_id": ["b", "a"], "times": [[1.0, 4.0, 4.0], [0.5, 2.5]]}
LISTS |= {"marks": [["stop", "go", "wait"], ["go", "stop"]]}


def by_format(folder: Path) -> dict[str, object]:
    from datasets import Dataset

    rows = [dict(zip(LISTS, row, strict=True)) for row in zip(*LISTS.values(), strict=True)]
    LONG.to_csv(folder / "long.csv", index=False)
    LONG.to_csv(folder / "long.tsv", index=False, sep="\t")
    LONG.to_parquet(folder / "long.parquet")
    LONG.to_json(folder / "long.jsonl", orient="records", lines=True)
    LONG.to_json(folder / "lines.json", orient="records", lines=True)
    pd.DataFrame(LISTS).to_parquet(folder / "lists.parquet")
    (folder / "lists.json").write_text(json.dumps(rows))
    (folder / "columns.json").write_text(json.dumps(LISTS))
    (folder / "lists.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources: dict[str, object] = {path.name: path for path in folder.iterdir()}
    sources |= {"frame": LONG, "list frame": pd.DataFrame(LISTS), "dict": LISTS, "rows": rows}
    sources |= {"categories": LONG.astype({"mark": "category", "seq_id": "category"})}
    return sources | {"dataset": Dataset.from_dict(LISTS), "long dataset": Dataset.from_pandas(LONG)}


def test_every_format_of_the_same_events_reads_alike(tmp_path):
    assert column_names(by_format(tmp_path)["long.parquet"]) == ["seq_id", "time", "mark"]
    sources = by_format(tmp_path)
    assert len(sources) == 16
    for name, source in sources.items():
        events = load_events(source)
        assert events.seq_ids == ("b", "a"), name
        np.testing.assert_array_equal(events.times, [1.0, 4.0, 4.0, 0.5, 2.5], err_msg=name)
        np.testing.assert_array_equal(events.marks, [1, 0, 2, 0, 1], err_msg=name)
        np.testing.assert_array_equal(events.offsets, [0, 3, 5], err_msg=name)
        assert events.id2label == {0: "go", 1: "stop", 2: "wait"}, name
        read = read_events(source).events
        assert read.times.tobytes() == events.times.tobytes() and read.marks.tolist() == events.marks.tolist(), name


def test_pairs_are_sequences_and_one_list_of_pairs_is_one_sequence():
    many = load_events([[(0.5, 1), (2.0, 0)], [(1, 2)]])
    np.testing.assert_array_equal(many.times, [0.5, 2.0, 1.0])
    assert many.seq_ids == (0, 1) and many.num_marks == 3 and many.id2label[2] == "2"
    one = load_events([(0.5, "x"), (2.0, "y")])
    assert len(one) == 1 and one.num_events == 2


def test_columns_may_have_any_name_and_ids_may_be_missing():
    frame = LONG.rename(columns={"seq_id": "user", "time": "when", "mark": "what"})
    events = load_events(frame, sequence="user", time="when", mark="what")
    assert events.seq_ids == ("b", "a")
    single = load_events(pd.DataFrame({"time": [1, 2, 2], "mark": [0, 4, 1]}))
    assert len(single) == 1 and single.num_marks == 5


def test_long_rows_in_any_order_match_a_plain_python_grouping():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"seq_id": rng.integers(0, 11, 257), "time": rng.random(257), "mark": rng.integers(0, 6, 257)}
    )
    expected: dict[int, list[tuple[float, int]]] = {}
    for row in frame.itertuples():
        expected.setdefault(row.seq_id, []).append((row.time, row.mark))
    events = load_events(frame, sort=True)
    assert list(events.seq_ids) == list(expected)
    for index, name in enumerate(events.seq_ids):
        times, marks = events[index]
        assert list(zip(times, marks, strict=True)) == sorted(expected[name], key=lambda event: event[0])
    tied = load_events([[(2.0, "a"), (1.0, "c"), (1.0, "b")]], sort=True)
    assert [tied.id2label[mark] for mark in tied.marks] == ["c", "b", "a"]


def test_given_names_fix_the_ids_of_string_and_integer_marks():
    assert load_events(LONG, id2label={0: "wait", 1: "stop", 2: "go", 3: "never"}).marks.tolist() == [1, 2, 0, 2, 1]
    assert load_events([[(0, 1)]], id2label={"0": "a", "1": "b"}).id2label == {0: "a", 1: "b"}  # type: ignore[dict-item]
    assert load_events([[(0, 1.0)]], num_marks=7).num_marks == 7
    numbers = load_events([[(3.5, 0)]], time_unit="1e6 s")  # have no timestamps and only keep their unit
    assert numbers.epochs is None and numbers.time_unit == "1e6 s" and numbers.times[0] == 3.5


def test_class_labels_of_a_dataset_become_the_vocabulary():
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = Features({"times": List(Value("float32")), "marks": List(ClassLabel(names=["no", "yes", "maybe"]))})
    events = load_events(Dataset.from_dict({"times": [[1.0, 2.0], [3.0]], "marks": [[0, 1], [1]]}, features=features))
    assert events.id2label == {0: "no", 1: "yes", 2: "maybe"}


@pytest.mark.parametrize("kind", ["datetime", "aware", "pandas", "iso", "csv"])
def test_timestamps_count_from_the_first_event_and_come_back(kind, tmp_path):
    zone = timezone(timedelta(hours=2)) if kind == "aware" else None
    moments = [datetime(1999, 12, 31, 22, 30, 0, 1, tzinfo=zone) + timedelta(hours=h) for h in (0, 1.5, 1.5, 200_001)]
    rows = pd.DataFrame({"time": moments, "mark": [0, 1, 0, 1], "since": [moments[0] - timedelta(minutes=45)] * 4})
    source: object = rows
    if kind == "datetime":
        source = rows.to_dict("records")
    elif kind == "iso":
        source = rows.assign(time=rows["time"].map(datetime.isoformat), since=rows["since"].map(datetime.isoformat))
    elif kind == "csv":
        source = tmp_path / "log.csv"
        rows.to_csv(source, index=False)
    events = load_events(source, time_unit="h", start="since")
    np.testing.assert_allclose(events.times, [0, 1.5, 1.5, 200_001], rtol=1e-15)
    np.testing.assert_allclose(events.starts, [-0.75])
    expected = np.array([m.astimezone(UTC).replace(tzinfo=None) if zone else m for m in moments], "M8[ns]")
    np.testing.assert_array_equal(events.select([0]).shown_times(), expected)
    assert events.time_unit == "h" and events.epochs is not None and events.epochs[0] == expected[0]


def test_starts_give_the_first_interval():
    events = load_events({"times": [[3.0, 4.0], [5.0]], "marks": [[0, 0], [0]], "from": [1.0, None]}, start="from")
    np.testing.assert_array_equal(events.intervals(), [2.0, 1.0, 0.0])
    long = load_events(LONG.assign(begin=[0.5, 0.25, 0.5, 0.5, 0.25]), start="begin")
    np.testing.assert_array_equal(long.starts, [0.5, 0.25])


@pytest.mark.parametrize(
    ("source", "keywords", "fragment"),
    [
        (LONG.iloc[::-1], {}, r"must not decrease within a sequence; got 0.5 in sequence 'a'. Pass sort=True"),
        ([[(0.0, 0)], [(1.0, 0), (float("nan"), 0)]], {}, "times must be finite; got nan in sequence 1"),
        (LONG.assign(time=True), {}, "numbers, timestamps or ISO strings; got bool"),
        ([[(0.0, 0)], [(0.0, -1)]], {}, r"lie in \[0, 1\); got -1 in sequence 1"),
        ([[(0.0, 2), (1.0, 7)]], {"num_marks": 3}, r"lie in \[0, 3\); got 7 in sequence 0.*pass num_marks"),
        (LONG, {"id2label": {0: "go", 1: "stop"}}, "names of id2label; got wait in sequence 'b'"),
        (LONG, {"id2label": {1: "go", 2: "stop"}}, "0..n-1"),
        (LONG, {"num_marks": 2}, "num_marks is 2 but there are 3"),
        (LONG, {"time": "clock"}, "no time column 'clock'; the columns are seq_id, time, mark"),
        (LONG, {"sequence": "user"}, "no sequence column 'user'"),
        (LONG.drop(columns="mark"), {}, "no mark column 'marks' or 'mark'"),
        ([[(0.0, 0)], []], {}, "at least one event; got 0 in sequence 1"),
        ({"times": [[0.0, 1.0]], "marks": [[0]]}, {}, "equally many; got 2 and 1 in sequence 0"),
        ({"times": [[0.0, 1.0]], "marks": [0]}, {}, "both be lists"),
        ({"times": [[1.0]], "marks": [[0]], "s": [2.0]}, {"start": "s"}, "not after the first event; got 2.0"),
        ({"times": [[1.0]], "marks": [[0]], "s": ["2020-01-01"]}, {"start": "s"}, "as the times are"),
        (LONG.assign(s=[0, 0, 0, 1, 0]), {"start": "s"}, "one value per sequence; got 1.0 in sequence 'b'"),
        ([[(datetime(2020, 1, 1), 0)]], {"time_unit": "year"}, "a unit of time is one of ns, us, ms, s, min, h, D, W"),
    ],
)
def test_bad_events_are_refused_with_what_was_expected_and_got(source, keywords, fragment):
    with pytest.raises(ValueError, match=fragment):
        load_events(source, **keywords)


def test_a_sequence_is_found_by_its_id_or_refused_with_the_nearest():
    events = load_events([[(0, 0)], [(1, 0)], [(2, 0)]])
    assert find_sequence(events, 2) == find_sequence(events, "2") == 2
    with pytest.raises(ValueError, match="no sequence 'bb' among 2. Did you mean 'b'. Choose one of b, a"):
        find_sequence(load_events(LONG), "bb")


def test_splits_of_a_folder_share_one_vocabulary_and_ignore_other_files(tmp_path):
    LONG.iloc[:2].to_csv(tmp_path / "train.csv", index=False)
    LONG.iloc[2:].to_parquet(tmp_path / "dev.parquet")
    (tmp_path / "badges.csv").write_text("id,name\n1,x\n")
    splits = load_splits(tmp_path)
    assert list(splits) == ["train", "validation"]
    assert splits["train"].id2label == splits["validation"].id2label == {0: "go", 1: "stop", 2: "wait"}
    assert load_splits(tmp_path / "train.csv").keys() == {"train"}
    numbers = load_splits({"train": [[(0, 1)]], "test": [[(0, 4)]]})
    assert numbers["train"].num_marks == numbers["test"].num_marks == 5


def test_folders_that_are_no_splits_and_bad_splits_are_named(tmp_path):
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(ValueError, match="it holds notes.md"):
        load_splits(tmp_path)
    with pytest.raises(ValueError, match="split 'test': times must not decrease"):
        load_splits({"train": [[(0, 0)]], "test": [[(1, 0), (0, 0)]]})
    with pytest.raises(ValueError, match="strings in another"):
        load_splits({"train": [[(0, 0)]], "test": [[(1, "a")]]})
    for name in ("val.csv", "validation.csv"):
        LONG.to_csv(tmp_path / name, index=False)
    with pytest.raises(ValueError, match="two files for validation: val.csv and validation.csv"):
        load_splits(tmp_path)
