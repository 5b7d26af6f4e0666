"""Readers of public layouts: what they read, what they refuse, and that a hostile pickle runs nothing."""

import json
import os
import pickle
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ehd_hf.data.sequences import EventSequences, load_events
from ehd_hf.data.sources import load_source, with_jitter
from helpers import easytpp_events

TOOLS = Path(__file__).resolve().parents[2] / "scripts" / "tools"
READ_PICKLES = runpy.run_path(str(TOOLS / "neural_hawkes.py"))["read_pickles"]


def from_neural_hawkes(path):
    return {split: easytpp_events(rows) for split, rows in READ_PICKLES(path).items()}


def easytpp_row(times, marks, first_gap=0.0, dim_process=6, **more):
    gaps = [first_gap, *np.diff(times).tolist()]
    row = {"time_since_start": times, "time_since_last_event": gaps, "type_event": marks, "dim_process": dim_process}
    return row | more


ROWS = [easytpp_row([1.5, 2.0, 4.25], [0, 4, 1], seq_idx=7), easytpp_row([0.5], [2], first_gap=0.5, seq_idx=9)]


def hawkes_pickle(rows, number=float, mark=int):
    """The Neural Hawkes layout of the same rows: dicts per event, all splits named, most of them empty."""
    sequences = [
        [
            {"time_since_start": number(t), "time_since_last_event": number(g), "type_event": mark(m)}
            for t, g, m in zip(row["time_since_start"], row["time_since_last_event"], row["type_event"], strict=True)
        ]
        for row in rows
    ]
    return {"dim_process": 6, "args": None, "devtest": [], "train": sequences, "dev": [], "test": []}


def assert_rows(sequences):
    assert isinstance(sequences, EventSequences)
    np.testing.assert_array_equal(sequences.times, [1.5, 2.0, 4.25, 0.5])
    np.testing.assert_array_equal(sequences.marks, [0, 4, 1, 2])
    np.testing.assert_array_equal(sequences.lengths, [3, 1])
    assert sequences.num_marks == 6


# EasyTPP


def test_easytpp_rows_give_times_marks_ids_and_the_declared_number_of_marks():
    sequences = easytpp_events(ROWS)
    assert_rows(sequences)
    assert sequences.seq_ids == (7, 9)


def test_the_first_gap_tells_the_start_of_the_observation_and_zero_means_unknown():
    rows = [easytpp_row([3.0, 4.0], [0, 1], first_gap=gap) for gap in (0.0, 3.0, 1.0)]
    np.testing.assert_array_equal(easytpp_events(rows).starts, [np.nan, 0.0, 2.0])


@pytest.mark.parametrize("layout", ["array", "lines", "parquet"])
def test_an_easytpp_folder_is_recognised_and_its_splits_are_named_ours(tmp_path, layout):
    for name in ("dev", "train", "test"):
        if layout == "array":
            (tmp_path / f"{name}.json").write_text(json.dumps(ROWS, indent=2))
        elif layout == "lines":
            (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
        else:
            pd.DataFrame(ROWS).to_parquet(tmp_path / f"{name}.parquet")
    splits = load_source(tmp_path, time_unit="h")
    assert list(splits) == ["train", "validation", "test"]
    for sequences in splits.values():
        assert_rows(sequences)
        assert sequences.time_unit == "h"
    (alone,) = load_source(next(tmp_path.glob("dev.*")), id2label=dict(enumerate("abcdef"))).items()
    assert alone[0] == "train" and alone[1].id2label[4] == "e"


def test_rounded_gaps_pass_but_gaps_that_tell_another_story_are_refused():
    row = easytpp_row([10.1234567, 11.7654321, 15.1111111], [0, 1, 2])
    row["time_since_last_event"] = [round(gap, 3) for gap in row["time_since_last_event"]]
    assert easytpp_events([row]).num_events == 3
    row["time_since_last_event"] = [0.0, 1.642, 0.3]
    with pytest.raises(ValueError, match=r"differences of time_since_start; got .* in row 1 of train\. Correct it"):
        easytpp_events([ROWS[0], row])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([easytpp_row([1.0], [6])], r"lie in \[0, 6\); got 6"),
        ([easytpp_row([2.0, 1.0], [0, 1])], "times must not decrease"),
        ([], "no events"),
        ([ROWS[0] | {"time_since_last_event": [0.0, 0.5]}], "differences of time_since_start"),
    ],
)
def test_bad_easytpp_rows_say_what_is_wrong(rows, message):
    with pytest.raises(ValueError, match=message):
        easytpp_events(rows)


# Neural Hawkes pickles

SCALAR, DTYPE, ENCODE = b"cnumpy.core.multiarray\nscalar\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n"


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("number", [float, np.float32, np.float64], ids=lambda kind: kind.__name__)
def test_neural_hawkes_pickles_of_numbers_and_numpy_scalars_are_read(tmp_path, number, protocol):
    file = tmp_path / "data.pkl"
    file.write_bytes(pickle.dumps(hawkes_pickle(ROWS, number, np.int64), protocol))
    splits = from_neural_hawkes(file)
    assert list(splits) == ["train"]
    assert_rows(splits["train"])
    np.testing.assert_array_equal(splits["train"].starts, [np.nan, 0.0])


def test_a_python_2_pickle_with_byte_strings_and_old_numpy_names_is_read(tmp_path):
    """Protocol 2 as Python 2 wrote it: str is SHORT_BINSTRING, numpy scalars live in numpy.core."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    dtype = DTYPE + text(b"f8") + b"K\x00K\x01\x87R(K\x03" + text(b"<") + b"NNNJ" + b"\xff" * 4 + b"J" + b"\xff" * 4
    dtype += b"K\x00tb"
    scalar = SCALAR + dtype + text(np.float64(2.5).tobytes()) + b"\x86R"
    event = b"}(" + text(b"time_since_start") + scalar + text(b"time_since_last_event") + scalar
    event += text(b"type_event") + b"K\x03u"
    content = b"\x80\x02}(" + text(b"dim_process") + b"K\x05" + text(b"dev") + b"](](" + event + b"eeu."
    (tmp_path / "dev.pkl").write_bytes(content)
    ((split, events),) = from_neural_hawkes(tmp_path).items()
    assert split == "validation" and events.times.tolist() == [2.5]
    assert (events.marks.tolist(), events.num_marks) == ([3], 5)


def test_in_a_folder_each_pickle_gives_its_own_split(tmp_path):
    everything = hawkes_pickle(ROWS) | {"dev": hawkes_pickle(ROWS[1:])["train"]}
    for name in ("train", "dev"):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(everything))
    splits = from_neural_hawkes(tmp_path)
    assert {split: len(sequences) for split, sequences in splits.items()} == {"train": 2, "validation": 1}
    (tmp_path / "test.pkl").write_bytes(pickle.dumps(everything))
    with pytest.raises(ValueError, match="split test must have a sequence; got none"):
        from_neural_hawkes(tmp_path)


class Call:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("is_deep", [False, True])
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(tmp_path, is_deep, protocol):
    proof, file = tmp_path / "proof", tmp_path / "train.pkl"
    call = Call(os.system, f"touch {proof}")
    file.write_bytes(pickle.dumps({"train": [[{"type_event": call}]]} if is_deep else call, protocol))
    with pytest.raises(ValueError, match=r"got a request to import (posix|nt|os)\.system\. Nothing in it was run"):
        from_neural_hawkes(file)
    assert not proof.exists()
    pickle.loads(file.read_bytes())  # the attack is real: the standard reader falls for it
    assert proof.exists()


INNER = pickle.dumps(Call(os.system, "exit 1"))
INNER = len(INNER).to_bytes(4, "little") + INNER


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (DTYPE + b"X\x01\x00\x00\x00OK\x00K\x01\x87R.", "the numpy type 'O'"),
        (DTYPE + b"X\x05\x00\x00\x00f8,O8\x85R.", "the numpy type 'f8,O8'"),
        (SCALAR + b"X\x01\x00\x00\x00OB" + INNER + b"\x86R.", "a numpy scalar of str"),
        (SCALAR + DTYPE + b"X\x02\x00\x00\x00f8\x85RB\x02\x00\x00\x00ab\x86R.", "plain lists"),
        (ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.", "text in the encoding 'rot'"),
        (b"cnumpy\ndtype.mro\n.", r"import numpy\.dtype\.mro"),
        (b"cnumpy.core.multiarray\n_reconstruct\n.", r"import numpy\.core\.multiarray\._reconstruct"),
        (b"\x80\x04}(K\x01", "plain lists"),
    ],
)
def test_strange_requests_through_the_few_allowed_names_are_refused(tmp_path, program, message):
    file = tmp_path / "odd.pkl"
    file.write_bytes(program)
    with pytest.raises(ValueError, match=message):
        from_neural_hawkes(file)


# SEISMIC


def seismic(folder, first=(1, 4), last=(3, 8), **keywords):
    index = pd.DataFrame({"tweet_id": [101, 55], "post_time_day": [1.5, 2.5], "start_ind": first, "end_ind": last})
    times, followers = [0, 7, 7, 0, 1, 30, 31, 500], [5000, 119, 120, 1362, 1363, 0, 121, 10**7]
    index.to_csv(folder / "index.csv", index=False)
    data = pd.DataFrame({"relative_time_second": times, "number_of_followers": followers})
    data.to_csv(folder / "data.csv", index=False)
    cascades = runpy.run_path(str(TOOLS / "seismic.py"))["cascades"]
    return cascades(folder / "index.csv", folder / "data.csv", **keywords)


def test_seismic_cascades_become_sequences_with_follower_classes_as_marks(tmp_path):
    sequences = load_events(seismic(tmp_path), start="start")
    assert sequences.seq_ids == (101, 55) and sequences.starts.tolist() == [0.0, 0.0]
    assert [times.tolist() for times, _ in sequences] == [[0, 7, 7], [0, 1, 30, 31, 500]]
    names = ["under 120 followers", "120 to 1,362 followers", "1,363 followers or more"]
    assert [sequences.id2label[mark] for mark in sequences.marks] == [names[m] for m in (2, 0, 1, 1, 2, 0, 1, 2)]
    other = load_events(seismic(tmp_path, first=(5, 1), last=(6, 1), classes=(1000,)))
    assert [times.tolist() for times, _ in other] == [[1, 30], [0]] and other.num_marks == 2


# plain and known folders


def test_a_plain_file_and_a_plain_folder_pass_through_to_load_splits(tmp_path):
    frame = pd.DataFrame({"who": ["a", "a", "b"], "when": [0.0, 1.0, 5.0], "what": ["x", "y", "x"]})
    frame.to_csv(tmp_path / "train.csv", index=False)
    for path in (tmp_path, tmp_path / "train.csv"):
        splits = load_source(path, sequence="who", time="when", mark="what")
        assert splits["train"].id2label == {0: "x", 1: "y"}
    with pytest.raises(ValueError, match="does not exist"):
        load_source(tmp_path / "nowhere")


def test_the_stackoverflow_folder_gets_badge_names_and_its_unit(tmp_path):
    folder = tmp_path / "stackoverflow"
    folder.mkdir()
    pd.DataFrame({"seq_id": [0], "times": [[1.0, 2.0]], "marks": [[1, 0]]}).to_parquet(folder / "train.parquet")
    pd.DataFrame({"seq_id": [0], "source": ["x"]}).to_parquet(folder / "provenance.parquet")
    assert load_source(folder)["train"].time_unit is None  # only the name: any folder may be called so
    (folder / "badges.csv").write_text("id, badge\n2, Guru\n1, Nice Question\n3, Caucus\n")
    ((split, events),) = load_source(folder).items()
    assert split == "train" and events.time_unit == "1e6 s"
    assert events.id2label == {0: "Nice Question", 1: "Guru", 2: "Caucus"}
    assert load_source(folder, time_unit="Ms")["train"].time_unit == "Ms"


def test_the_retweet_cascades_get_follower_classes_as_names(tmp_path):
    folder = tmp_path / "retweet_seismic738_segments"
    folder.mkdir()
    pd.DataFrame({"seq_id": [0], "times": [[1.0, 2.0]], "marks": [[1, 0]]}).to_parquet(folder / "test.parquet")
    sequences = load_source(folder)["test"]
    assert (sequences.num_marks, sequences.time_unit, sequences.id2label[0]) == (3, "s", "under 120 followers")


def test_jitter_spreads_whole_times_sorts_again_and_moves_marks_along():
    times = [[0, 0, 0, 1, 1, 7], [3, 3, 4]]
    sequences = load_events({"times": times, "marks": [[0, 1, 2, 3, 4, 5], [6, 7, 8]]})
    jittered, again = (with_jitter(sequences, seed=3) for _ in range(2))
    np.testing.assert_array_equal(jittered.times, again.times)
    assert (with_jitter(sequences, seed=4).times != jittered.times).any()
    for (old_times, old_marks), (new_times, new_marks) in zip(sequences, jittered, strict=True):
        assert (np.diff(new_times) > 0).all() and sorted(new_marks) == sorted(old_marks)
        of_mark = dict(zip(old_marks, old_times, strict=True))
        np.testing.assert_array_equal(np.floor(new_times), [of_mark[mark] for mark in new_marks])
    draws = np.random.default_rng(3).uniform(size=9)
    np.testing.assert_allclose(np.sort(jittered.times[:3]), np.sort(draws[:3]))
    np.testing.assert_array_equal(sequences.times[:3], 0)  # the argument is left alone
    with pytest.raises(ValueError, match=r"whole-number times; got 0\.5"):
        with_jitter(load_events([[(0.5, 0), (1.0, 0)]]), seed=0)
