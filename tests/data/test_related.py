"""Context from a second table and from related sequences: worked by hand, then what is refused."""

import numpy as np
import pandas as pd
import pytest

from ehd_hf.data.reading import read_events
from ehd_hf.data.related import join_context, join_related, without_marks

ALARMS = pd.DataFrame(
    {
        "time": [0.0, 2.0, 5.0, 1.0, 2.0, 4.0, 0.0, 9.0],
        "alarm": ["fan", "heat", "heat", "link", "fan", "link", "fan", "heat"],
        "device": ["d1", "d1", "d1", "d2", "d2", "d2", "d3", "d3"],
    }
)


@pytest.fixture
def read():
    return read_events(ALARMS, time="time", mark="alarm", sequence="device")


def named(events, name):
    """Times and names of the marks of one sequence."""
    times, marks = events[events.seq_ids.index(name)]
    return list(zip(times.tolist(), [events.id2label[mark] for mark in marks.tolist()], strict=True))


def test_events_of_neighbours_join_under_their_own_names(read):
    joined, context = join_related(read, pd.DataFrame({"device": ["d1", "d2"], "neighbour": ["d2", "d1"]}))
    assert context == ["near: fan", "near: heat", "near: link"]
    assert joined.reading.marks == ("fan", "heat", "link", *context)
    # Each from its first to its last event; what d1 got from d2 does not come back to d2.
    around = [(0.0, "fan"), (1.0, "near: link"), (2.0, "near: fan"), (2.0, "heat"), (4.0, "near: link"), (5.0, "heat")]
    assert named(joined.events, "d1") == around
    assert named(joined.events, "d2") == [(1.0, "link"), (2.0, "near: heat"), (2.0, "fan"), (4.0, "link")]
    assert named(joined.events, "d3") == named(read.events, "d3")
    twice, again = join_related(joined._replace(events=read.events), [{"a": "d1", "b": "d2"}] * 2)
    assert again == context and named(twice.events, "d1") == around


def test_a_table_without_sequences_joins_every_one(read):
    changes = pd.DataFrame({"time": [1.5, 3.0, 100.0], "mark": ["deploy", "fan", "deploy"]})
    joined, context = join_context(read, changes)
    assert context == ["deploy", "fan"]
    assert named(joined.events, "d1")[1:4] == [(1.5, "deploy"), (2.0, "heat"), (3.0, "fan")]
    assert named(joined.events, "d3") == [(0.0, "fan"), (1.5, "deploy"), (3.0, "fan"), (9.0, "heat")]
    own, _ = join_context(read, changes.assign(device=["d1", "d2", "d3"]))
    assert [len(times) for times, _ in own.events] == [4, 4, 2]


def test_timestamps_are_put_on_the_clock_of_each_sequence():
    start = pd.Timestamp("2024-05-01")
    alarms = ALARMS.assign(time=start + pd.to_timedelta(ALARMS["time"], unit="h"))
    read = read_events(alarms, mark="alarm", sequence="device")
    deploy = pd.DataFrame({"time": [start + pd.Timedelta("90min")], "mark": ["deploy"]})
    events = join_context(read, deploy)[0].events
    times, marks = events[events.seq_ids.index("d2")]
    hours = times * pd.Timedelta(1, events.time_unit) / pd.Timedelta("1h")
    assert hours.tolist() == pytest.approx([0.0, 0.5, 1.0, 3.0])
    shown = events.shown_times()[events.marks == list(events.id2label.values()).index("deploy")]
    assert (shown == np.datetime64("2024-05-01T01:30")).all() and len(shown) == 3


def test_splits_keep_their_sequences(read, tmp_path):
    for split, names in (("train", ["d1", "d2"]), ("test", ["d3"])):
        ALARMS[ALARMS["device"].isin(names)].to_csv(tmp_path / f"{split}.csv", index=False)
    apart = read_events(tmp_path, mark="alarm", sequence="device")
    joined, _ = join_related(apart, [{"device": "d3", "neighbour": "d1"}])
    assert {name: part.num_events for name, part in joined.splits.items()} == {"train": 6, "test": 5}


def test_without_marks_sequences_that_have_nothing_else_go(read):
    left = without_marks(read.events, ["fan", "link"])
    assert left.seq_ids == ("d1", "d3") and left.times.tolist() == [2.0, 5.0, 9.0]
    assert left.id2label == read.events.id2label and without_marks(read.events, ()) is read.events


@pytest.mark.parametrize(
    "pairs, message",
    [
        ([("d1", "d9")], "must be those of the events; got 'd9'. Leave its rows out"),
        ([("d1", "d2"), ("d2", "d2")], "must not be its own neighbour; got 'd2' twice. Leave the row out"),
        ([("d1", "d2", "x")], "need two columns, sequence and neighbour; got a, b, c. Keep these two"),
    ],
)
def test_related_tables_that_cannot_be_are_refused(read, pairs, message):
    with pytest.raises(ValueError, match=message):
        join_related(read, pd.DataFrame(pairs, columns=list("abc")[: len(pairs[0])]))


def test_context_on_another_clock_or_of_others_is_refused(read):
    stamps = pd.DataFrame({"time": pd.to_datetime(["2024-05-01"]), "mark": ["deploy"]})
    with pytest.raises(ValueError, match="unit|numbers as times"):
        join_context(read, stamps)
    with pytest.raises(ValueError, match="must be those of the events; got 'web'"):
        join_context(read, pd.DataFrame({"time": [1.0], "mark": ["deploy"], "device": ["web"]}))
