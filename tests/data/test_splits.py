"""Windows and splits follow from the lengths and names of the sequences."""

import numpy as np
import pytest

from ehd_hf.data.splits import SPLITS, choose_window, num_windows, split_events
from ehd_hf.data.windows import make_windows
from helpers import random_sequences as sequences

# --- windows


@pytest.mark.parametrize(
    "lengths, asked, window",
    [
        ([48] * 9, {}, (30, 6)),
        ([500] * 9, {}, (30, 6)),  # never longer
        ([16] * 9, {}, (10, 2)),
        ([6, 6, 6], {}, (3, 1)),
        ([4, 4, 4], {}, (3, 1)),
        ([1200], {}, (30, 6)),
        ([120], {}, (8, 2)),  # one sequence: a twelfth of it
        ([40, 3], {}, (3, 1)),
        ([48] * 9, {"history": 20}, (20, 4)),
        ([48] * 9, {"future": 10}, (26, 10)),
        ([48] * 9, {"history": 7, "future": 3}, (7, 3)),
    ],
)
def test_the_window_follows_from_the_lengths_and_what_is_asked(lengths, asked, window):
    assert choose_window(np.array(lengths), **asked) == window


def test_windows_are_counted_as_they_are_made():
    events = sequences([5, 9, 4, 7])
    assert num_windows(events.lengths, 5).sum() == len(make_windows(events, future=2, history=3))


# --- splits


def test_sequences_are_split_whole_and_all_of_them():
    events = sequences([12] * 50 + [3] * 10)
    splits, how = split_events(events, 8)
    assert how == "by sequence"
    assert {name: len(split) for name, split in splits.items()} == {"train": 48, "validation": 6, "test": 6}
    assert sorted(name for split in splits.values() for name in split.seq_ids) == list(range(60))
    assert all((split.lengths >= 8).sum() >= 5 for split in splits.values())


def test_the_split_depends_on_names_and_seed_not_on_the_order_of_rows():
    names = [f"user {i}" for i in range(30)]
    forward, _ = split_events(sequences([12] * 30, names=names), 8)
    backward, _ = split_events(sequences([12] * 30, names=names[::-1]), 8)
    other, _ = split_events(sequences([12] * 30, names=names), 8, seed=1)
    assert set(forward["test"].seq_ids) == set(backward["test"].seq_ids) != set(other["test"].seq_ids)


def test_three_long_sequences_are_enough_for_one_each():
    splits, _ = split_events(sequences([9, 9, 9, 2, 2]), 8)
    assert all((split.lengths >= 8).sum() == 1 for split in splits.values())


def test_one_sequence_is_cut_in_time():
    events = sequences([100])
    splits, how = split_events(events, 10)
    assert how == "in time" and [split.num_events for split in splits.values()] == [80, 10, 10]
    assert np.concatenate([split.times for split in splits.values()]).tolist() == events.times.tolist()
    # What came before a part is when its observation began, so that no interval is made up.
    assert splits["test"].starts[0] == events.times[89] and np.isnan(splits["train"].starts[0])
    assert splits["validation"].intervals()[0] == pytest.approx(events.times[80] - events.times[79])


@pytest.mark.parametrize("lengths", [[90], [9], [9, 9], [1] * 50])
def test_too_few_events_are_refused_with_what_is_needed(lengths):
    with pytest.raises(ValueError, match="three sequences of at least 10 events, or one of about 105"):
        split_events(sequences(lengths), 10)


def test_splits_that_are_given_are_kept_and_must_hold_a_window():
    events = sequences([12] * 6)
    given = {name: events.select([place]) for place, name in enumerate(SPLITS)}
    splits, how = split_events(events, 8, given=given)
    assert how == "given" and splits == given
    with pytest.raises(ValueError, match="each hold a sequence of at least 13 events; the longest of train has 12"):
        split_events(events, 13, given=given)
    del given["validation"]
    with pytest.raises(ValueError, match="the longest of validation has 0"):
        split_events(events, 8, given=given)
