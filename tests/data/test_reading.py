"""Tables as people have them: columns, times in any writing, marks, ties, and what is refused."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehd_hf.data import tables
from ehd_hf.data.reading import MAX_MARKS, OTHER, Reading, natural_unit, read_events, spread_ties
from ehd_hf.data.sequences import events_digest, load_events

NAMES = {"time": "ts", "mark": "type", "sequence": "user"}


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def log(path, times, marks=None, users=None, separator=","):
    """A CSV file with the columns user, ts, type."""
    marks = ["ab"[i % 2] for i in range(len(times))] if marks is None else marks
    users = ["u1"] * len(times) if users is None else users
    rows = [separator.join(("user", "ts", "type"))]
    rows += [separator.join(map(str, row)) for row in zip(users, times, marks, strict=True)]
    return write(path, "\n".join(rows) + "\n")


# --- times


@pytest.mark.parametrize(
    "times, time_format, unit",
    [
        (["2026-03-01T10:00:00", "2026-03-01T11:00:00", "2026-03-01T13:30:00"], "iso", "h"),
        (["2026-03-01 10:00:00+01:00", "2026-03-01 10:00:00Z", "2026-03-01 13:30:00+01:00"], "iso", "h"),
        (["01.03.2026 10:00", "01.03.2026 11:00", "28.03.2026 13:30"], "%d.%m.%Y %H:%M", "D"),
        (["03/28/2026 10:00 AM", "03/28/2026 11:00 AM", "03/28/2026 01:30 PM"], "%m/%d/%Y %I:%M %p", "h"),
        (["28 Mar 2026", "29 Mar 2026", "30 Mar 2026"], "%d %b %Y", "D"),
        (["28.03.2026 01:00:20", "28.03.2026 02:00", "28.03.2026"], "%d.%m.%Y %H:%M:%S|%d.%m.%Y %H:%M|%d.%m.%Y", "h"),
        (["28/Mar/2026:10:00:00 +0100", "28/Mar/2026:10:00:02 +0100", "28/Mar/2026:10:00:03 +0100"], None, "s"),
        ([1767600041648, 1767600041900, 1767600042648], "ms", "s"),
        ([1767600041, 1767600101, 1767600191], "s", "min"),
        ([1767600041.5, 1767600042.25, 1767600044.0], "s", "s"),
        ([20260301, 20260302, 20260304], "%Y%m%d", "D"),
        ([0.5, 1.25, 7.0], "number", None),
        (['"0,5"', '"1,25"', '"7"'], "number", None),
    ],
)
def test_times_are_understood_however_they_are_written(tmp_path, times, time_format, unit):
    read = read_events(log(tmp_path / "log.csv", times), **NAMES)
    assert time_format in (None, read.reading.time_format)
    assert read.reading.time_unit == read.events.time_unit == unit
    again = read_events(log(tmp_path / "log.csv", times), reading=read.reading)
    assert (again.events.times == read.events.times).all() and again.reading == read.reading  # to the last bit


def test_moments_are_those_of_the_file(tmp_path):
    read = read_events(log(tmp_path / "log.csv", [1767600041648, 1767600042649, 1767600042650]), **NAMES)
    assert [str(moment)[:23] for moment in read.events.select([0]).shown_times()] == [
        "2026-01-05T08:00:41.648",
        "2026-01-05T08:00:42.649",
        "2026-01-05T08:00:42.650",
    ]


def test_numbers_that_could_count_from_1970_are_plain_numbers_if_one_says_so(tmp_path):
    file = log(tmp_path / "log.csv", [1767600041, 1767600101, 1767600191])
    read = read_events(file, **NAMES, time_format="number", time_unit="min")
    assert read.events.epochs is None and read.events.time_unit == "min"
    assert read.events.times.tolist() == [1767600041, 1767600101, 1767600191]


def test_times_without_a_zone_among_others_are_utc_and_that_is_said(tmp_path):
    read = read_events(log(tmp_path / "log.csv", ["2026-03-01T10:00:00+01:00", "2026-03-01T10:00:00"]), **NAMES)
    assert np.diff(read.events.select([0]).shown_times()) == np.timedelta64(1, "h")
    assert read.notes == [
        "Times name their zone; they are shown in UTC.",
        "1 of 2 times name no zone and are taken as UTC.",
    ]


@pytest.mark.parametrize(
    "times, said",
    [
        (["03/04/2026 10:00", "05/06/2026"], r"03 April 2026 or 04 March 2026"),
        (["03/04/2026", "05/06/2026"], r"03 April 2026 or 04 March 2026.*time_format '%d/%m/%Y'"),
        (["2026-03-01 10:00", "01.03.2026"], r"one way.*2026-03-01 10:00.*01.03.2026"),
        (["soon", "later"], r"does not read as times: 'soon'.*Name the time column"),
        (["10:00", "11:00"], r"need a date.*10:00"),
        (["2026-02-29", "2026-02-30"], r"does not read as times|one way"),
    ],
)
def test_times_that_cannot_be_understood_are_refused_with_a_remedy(tmp_path, times, said):
    with pytest.raises(ValueError) as error:
        read_events(log(tmp_path / "log.csv", times), **NAMES)
    assert re.search(said, str(error.value), re.DOTALL), str(error.value)


def test_an_ambiguous_date_is_read_as_one_says(tmp_path):
    file = log(tmp_path / "log.csv", ["03/04/2026", "05/06/2026"])
    read = read_events(file, **NAMES, time_format="%m/%d/%Y")
    assert str(read.events.select([0]).shown_times()[0])[:10] == "2026-03-04"
    with pytest.raises(ValueError, match="must read as %d.%m.%Y; got '03/04/2026'"):
        read_events(file, **NAMES, time_format="%d.%m.%Y")
    with pytest.raises(ValueError, match="Write a pattern"):
        read_events(file, **NAMES, time_format="ms")
    trained = read_events(log(tmp_path / "log.csv", ["03/28/2026", "03/30/2026"]), **NAMES).reading  # remembered
    events = read_events(log(tmp_path / "later.csv", ["03/04/2026", "05/06/2026"]), reading=trained).events
    assert str(events.select([0]).shown_times()[0])[:10] == "2026-03-04"


@pytest.mark.parametrize("seconds, unit", [(2e-3, "ms"), (1.0, "s"), (40.0, "min"), (3000.0, "h"), (1e6, "D")])
def test_the_unit_is_that_of_the_median_interval(seconds, unit):
    assert natural_unit(seconds) == unit


@pytest.mark.parametrize("later", [[1767600041, 1767603641], ["2026-01-05 08:00:41", "2026-01-05 09:00:41"]])
def test_a_later_file_may_write_its_times_otherwise(tmp_path, later):
    trained = read_events(log(tmp_path / "log.csv", [1767600041000, 1767603641000, 1767607241000]), **NAMES).reading
    assert (trained.time_format, trained.time_unit) == ("ms", "h")
    events = read_events(log(tmp_path / "later.csv", later), reading=trained).events
    assert (
        events.times.tolist() == [0.0, 1.0] and str(events.select([0]).shown_times()[0])[:19] == "2026-01-05T08:00:41"
    )


BIG = 2**53
STAMPS = ["2026-03-01T10:00:00", "2026-03-01T11:00:00", "2026-03-01T13:30:00"]
CASES = {  # times, time_format, and what comes out: timestamps, numbers, or words of a refusal
    "ms taken as s": ([1767600041648, 1767600041900, 1767600042648], "s", "1678 to 2261; got 17.*taken as s.*another"),
    "us taken as ms": ([2**62, 2**62 + 1], "ms", "1678 to 2261"),
    "infinite s": ([1.767e9, float("inf")], "s", "1678 to 2261; got 1767000000 to inf"),
    "1e300 as s": ([1.767e9, 1e300], "s", "1678 to 2261"),
    "1e300 as ns": ([1.767e18, 1e300], "ns", "1678 to 2261"),
    "infinite numbers": ([0.5, float("inf")], None, "must be finite"),
    "above 2**53": ([BIG + 1, BIG + 2], "number", r"below 2\*\*53.*Pass timestamps"),
    "below -2**53": ([-BIG - 2, -BIG - 1], "number", r"below 2\*\*53"),
    "unsigned": (np.array([2**63 + 1, 2**63 + 2], np.uint64), None, r"below 2\*\*53"),
    "unsigned ns": (np.array([2**63 + 1, 2**63 + 2], np.uint64), "ns", "1678 to 2261"),
    "long decimals": (
        pa.array(["0.10000000000000000001", "0.1"]).cast(pa.decimal128(22, 20)),
        None,
        "longer decimals",
    ),
    "14 digits": ([20260301100000, 20260301110000, 20260301133000], None, STAMPS),
    "14 digits as floats": ([20260301100000.0, 20260301110000.0, 20260301133000.0], None, STAMPS),
    "12 digits": ([202603011000, 202603011100, 202603011330], None, STAMPS),
    "12 digits that are no dates": ([202603011000, 202603999999], None, [202603011000.0, 202603999999.0]),
    "14 digits as numbers": ([20260301100000, 20260301110000], "number", [20260301100000.0, 20260301110000.0]),
    "thousands": (["1,000", "2,000"], None, "1,000, whose comma may be.*without commas"),
    "decimals of one digit": (["1,000", "2,5"], None, [1.0, 2.5]),
    "decimals below 1": (["0,125", "2,000"], None, [0.125, 2.0]),
    "the year 9999": (["2026-01-01", "9999-01-02"], None, "1678 to 2261; got '9999-01-02'"),
    "the year 1500": (["01.01.1500", "31.01.1500"], None, "1678 to 2261; got '01.01.1500'"),
    "days from 1970": (pa.array([0, 86_400_000 * 10**8], pa.date64()), None, "1678 to 2261; got 1970-01-01 to 2757"),
    "seconds from 1970": (pa.array([0, 10**12], pa.timestamp("s")), None, "1678 to 2261"),
    "views of text": (pa.array(STAMPS, pa.string_view()), None, STAMPS),
    "the last year": (["2261-12-31", "2261-12-30"], None, ["2261-12-30T00:00:00", "2261-12-31T00:00:00"]),
}


@pytest.mark.parametrize("times, time_format, outcome", CASES.values(), ids=CASES)
def test_times_beyond_what_numbers_hold_are_refused_or_right(times, time_format, outcome):
    table = pa.table({"time": times, "mark": ["ab"[i % 2] for i in range(len(times))]})
    if isinstance(outcome, str):
        with pytest.raises(ValueError, match=outcome):
            read_events(table, time_format=time_format)
    else:
        shown = read_events(table, time_format=time_format).events.shown_times()
        assert [str(time)[:19] for time in shown] == list(map(str, outcome))


def test_numbers_that_are_dates_are_refused_where_nothing_is_guessed():
    for times in ([20260301100000, 20260301110000], [202603011000, 202603011100]):
        with pytest.raises(ValueError, match="got 20260301.*read as dates.*Pass timestamps"):
            load_events({"times": times, "marks": [0, 1]})
    assert load_events({"times": [20260301, 20260302], "marks": [0, 1]}).times[0] == 20260301


@pytest.mark.parametrize("read", [lambda table: load_events(table), lambda table: read_events(table).events])
def test_views_of_arrow_are_read_in_rows_and_lists(read, tmp_path):
    lists = {"times": [[0.5, 1.5]], "marks": pa.array([["a", "b"]], pa.list_(pa.string_view()))}
    rows = {"time": [0.5, 1.5], "mark": pa.array(["a", "b"], pa.string_view()), "seq_id": [1, 1]}
    for columns in (lists, rows):
        pq.write_table(pa.table(columns), tmp_path / "views.parquet")
        assert read(tmp_path / "views.parquet").times.tolist() == [0.5, 1.5]
    lists["times"] = pa.array([[0.5, 1.5]], pa.list_view(pa.float64()))
    with pytest.raises(ValueError, match="list_view"):
        read(pa.table(lists))


# --- columns and rows


def test_columns_are_found_by_their_usual_names_and_by_what_is_in_them(tmp_path):
    frame = pd.DataFrame({"Page": ["a", "b"], "seen": ["2026-01-01", "2026-01-02"], "User_ID": [7, 7], "type": [1, 1]})
    frame.to_csv(tmp_path / "log.csv", index=False)
    reading = read_events(tmp_path / "log.csv").reading
    assert (reading.time, reading.mark, reading.sequence) == ("seen", "type", "User_ID")
    reading = read_events(tmp_path / "log.csv", mark="Page").reading
    assert reading.mark == "Page"


@pytest.mark.parametrize("separator", ",;\t|")
def test_load_events_reads_the_files_that_read_events_reads(tmp_path, separator):
    for times in ([1.5, 2.5], ['"1,5"', '"2,5"']):
        file = log(tmp_path / "log.csv", times, separator=separator)
        events = load_events(file, time="ts", mark="type", sequence="user")
        assert events.times.tolist() == read_events(file, **NAMES).events.times.tolist() == [1.5, 2.5]


def test_rows_are_sorted_and_ids_stay_text(tmp_path):
    file = log(tmp_path / "log.csv", [3.0, 1.0, 2.0], marks=["c", "a", "b"], users=["007", "007", "guest"])
    events = read_events(file, **NAMES).events
    assert events.seq_ids == ("007", "guest") and events[0][0].tolist() == [1.0, 3.0]


def test_a_few_rows_without_a_value_are_left_out_and_many_refused(tmp_path):
    marks = ["a", "b"] * 20 + ["", " "]
    read = read_events(log(tmp_path / "log.csv", range(42), marks=marks), **NAMES)
    assert read.events.num_events == 40 and "2 of 42 rows lack a mark" in read.notes[0]
    file = log(tmp_path / "log.csv", range(9), marks=["a", ""] * 4 + ["a"])
    with pytest.raises(ValueError, match="4 of 9 rows lack a value, most in the mark column 'type'"):
        read_events(file, **NAMES)


# --- marks


def test_codes_become_names_in_their_order(tmp_path):
    events = read_events(log(tmp_path / "log.csv", range(4), marks=[4200, 9, 4200, 10]), **NAMES).events
    assert list(events.id2label.values()) == ["9", "10", "4200"]


def many_marks(path, rare=MAX_MARKS, each=30):
    marks = [f"often {i}" for i in range(3) for _ in range(each)] + [f"rare {i}" for i in range(rare)]
    return log(path, range(len(marks)), marks=marks)


def test_rare_marks_become_other_above_the_limit_only(tmp_path):
    read = read_events(many_marks(tmp_path / "log.csv", rare=MAX_MARKS - 3, each=60), **NAMES)
    assert read.events.num_marks == MAX_MARKS and not read.reading.merges
    read = read_events(many_marks(tmp_path / "log.csv", rare=MAX_MARKS - 2, each=60), **NAMES)
    assert list(read.events.id2label.values()) == ["often 0", "often 1", "often 2", OTHER] and read.reading.merges
    assert (read.events.marks == 3).sum() == MAX_MARKS - 2
    assert "101 kinds of events" in read.notes[0] and "rarest 98" in read.notes[0]


def test_marks_a_model_does_not_know_are_other_to_it_or_refused(tmp_path):
    trained = read_events(many_marks(tmp_path / "log.csv", each=60), **NAMES).reading
    later = log(tmp_path / "later.csv", range(3), marks=["often 1", "new", "rare 5"])
    read = read_events(later, reading=trained)
    assert read.events.marks.tolist() == [1, 3, 3] and "2 kinds of events are 'other'" in read.notes[0]
    strict = read_events(log(tmp_path / "log.csv", range(3), marks=["open", "close", "open"]), **NAMES).reading
    with pytest.raises(ValueError, match="does not know 1 of these marks: 'opened'. Did you mean 'open'"):
        read_events(log(tmp_path / "later.csv", range(2), marks=["opened", "close"]), reading=strict)


def test_numbers_stand_for_the_marks_of_a_model_that_names_them(tmp_path):
    file = log(tmp_path / "log.csv", range(3), marks=[2, 0, 1])
    read = read_events(file, reading=Reading(marks=("a", "b", "c"), time_unit="h"), **NAMES)
    assert read.events.marks.tolist() == [2, 0, 1] and read.events.id2label[2] == "c"


def test_timestamps_are_refused_by_a_model_of_plain_numbers(tmp_path):
    file = log(tmp_path / "log.csv", ["2026-01-01", "2026-01-02"])
    with pytest.raises(ValueError, match="numbers without a unit.*timestamps"):
        read_events(file, reading=Reading(marks=("a", "b")), **NAMES)


# --- ties


def test_dates_are_spread_over_their_day_and_shown_as_dates(tmp_path):
    days = [f"2026-03-{day:02d}" for day in (1, 1, 1, 2, 5, 5)]
    read = read_events(log(tmp_path / "log.csv", days, marks=list("abcabc")), **NAMES)
    events = read.events
    assert "rounded to the day" in read.notes[0] and events.time_unit == "D" and read.reading.resolution == 1.0
    assert (np.diff(events.times) > 0).all() and np.floor(events.times).tolist() == [0, 0, 0, 1, 4, 4]
    assert events.marks.tolist() == [0, 1, 2, 0, 1, 2]  # in the order of the file
    assert [str(moment)[:10] for moment in events.select([0]).shown_times()] == days
    assert all(str(moment)[10:] == "T00:00:00.000000000" for moment in events.select([0]).shown_times())


def test_a_few_ties_are_left_alone_and_those_that_are_no_rounding_told(tmp_path):
    times = [float(i) for i in range(200)]
    times[7] = times[6]
    read = read_events(log(tmp_path / "log.csv", times), **NAMES)
    assert read.reading.resolution is None and read.events.times[7] == 6.0 and read.notes == []
    read = read_events(log(tmp_path / "log.csv", [0.25, 0.25, 1.5, 1.5, 2.0]), **NAMES)
    assert read.reading.resolution is None and "not rounding" in read.notes[0]


def test_where_an_event_is_put_does_not_change_when_others_come():
    long = load_events([{"times": [0.0, 0.0, 1.0, 3.0, 3.0], "marks": [0, 0, 1, 0, 1]}])
    two = load_events([{"times": [2.0, 2.0], "marks": [0, 1]}, {"times": [0.0, 0.0, 1.0], "marks": [0, 0, 1]}])
    two = spread_ties(two, 1.0)
    short = spread_ties(long, 1.0)
    assert two.select([1]).seq_ids == (1,)
    renamed = spread_ties(load_events({"seq_id": [1], "times": [[0.0, 0.0, 1.0]], "marks": [[0, 0, 1]]}), 1.0)
    assert renamed.times.tolist() == two[1][0].tolist() != short.times[:3].tolist()


# --- what is remembered


def test_a_reading_survives_json(tmp_path):
    reading = read_events(many_marks(tmp_path / "log.csv", each=60), **NAMES).reading
    assert Reading.from_dict(json.loads(json.dumps(reading.to_dict()))) == reading
    with pytest.raises(ValueError, match="unknown colour"):
        Reading.from_dict({"colour": "red"})


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"time": [1.0, 2.0], "mark": ["a", "b"], "seq_id": [["x"], ["y"]]}, "seq_id"),
        ({"seq_id": [1], "times": [[1.0, 2.0]], "marks": [[["a"], ["b"]]]}, "marks"),
        ({"seq_id": [1], "times": [[[1.0], [2.0]]], "marks": [["a", "b"]]}, "times"),
    ],
)
def test_lists_where_single_values_belong_are_refused(columns, name):
    with pytest.raises(ValueError, match=f"'{name}' must hold single values"):
        read_events(pa.table(columns))


# --- files larger than memory


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that counts as large: 200 users with 10 events each, in order of time."""
    monkeypatch.setattr(tables, "LARGE_TEXT", 0)
    monkeypatch.setattr(tables, "LARGE_PARQUET", 0)
    rows = [f"u{user},{time}.{user:03},{'abc'[(user + time) % 3]}" for time in range(10) for user in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["user,ts,type", *rows, ""]))
    return tmp_path / "log.csv"


def test_of_a_large_file_whole_sequences_are_taken(large, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BYTES_AT_ONCE", 1000)  # many tables
    whole, part = read_events(large), read_events(large, max_events=700)
    assert 350 < part.events.num_events <= 700 and (part.events.lengths == 10).all()
    where = [whole.events.seq_ids.index(name) for name in part.events.seq_ids]
    chosen = whole.events.select(where)
    assert (chosen.times == part.events.times).all() and (chosen.marks == part.events.marks).all()
    said = f"{part.events.num_events} of the 2,000 events of log.csv are taken: whole sequences"
    assert part.notes[0].startswith(said) and part.reading == whole.reading
    header, *rows = large.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join([header, *sorted(rows), ""]))
    assert set(read_events(tmp_path / "other.csv", max_events=700).events.seq_ids) == set(part.events.seq_ids)


def test_a_large_file_that_fits_is_read_whole(large):
    whole, read = read_events(large), read_events(large, max_events=2000)
    assert read.notes == whole.notes == [] and events_digest(read.events) == events_digest(whole.events)


def test_of_large_files_of_lists_rows_are_taken(large, tmp_path):
    frame = pd.read_csv(large).groupby("user")[["ts", "type"]].agg(list)
    frame.reset_index().to_parquet(tmp_path / "lists.parquet")
    frame.reset_index(drop=True).to_parquet(tmp_path / "nameless.parquet")
    named = read_events(tmp_path / "lists.parquet", max_events=700).events
    assert set(named.seq_ids) == set(read_events(large, max_events=700).events.seq_ids)
    nameless = read_events(tmp_path / "nameless.parquet", max_events=700).events
    assert 350 < nameless.num_events <= 700 and (nameless.lengths == 10).all()


@pytest.mark.parametrize("change", [lambda text: text, lambda text: text.replace("user", "who")])
def test_sequences_too_long_to_take_twenty_are_refused(large, change):
    large.write_text(change(large.read_text()))
    with pytest.raises(ValueError, match="of 2,000 events at most 100 .max_events.*fewer than 20.*cut the log"):
        read_events(large, max_events=100)


def test_large_files_of_splits_share_what_is_taken(large, tmp_path):
    (tmp_path / "splits").mkdir()
    for split in ("train", "test"):
        (tmp_path / "splits" / f"{split}.csv").write_text(large.read_text())
    read = read_events(tmp_path / "splits", max_events=1000)
    assert all(250 < split.num_events <= 500 for split in read.splits.values()) and len(read.splits) == 2
    assert [note.split(" are taken")[0].split()[-1] for note in read.notes[:2]] == ["train.csv", "test.csv"]


def test_rows_without_an_id_are_not_taken_more_often(large):
    text = large.read_text()
    large.write_text(text.replace("u7,0.007", ",0.007").replace("u9,0.009", ",0.009"))
    whole, part = read_events(large), read_events(large, max_events=1000)
    assert "2 of 2,000 rows lack a sequence" in whole.notes[0] and part.events.num_events <= 1000
