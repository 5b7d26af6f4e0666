"""Case studies: by hand, against slow loops, with planted effects."""

import json

import numpy as np
import pytest

from ehd_hf.data.windows import make_windows
from helpers import from_lists
from tasks import sample_sequences
from tasks.case_study import case_study, length_distribution, sizes_along, slide_summary, slides

T, F = True, False


def test_lengths_and_sizes_along_a_sequence_by_hand():
    mask = np.array([[T, F, T], [F, F, F], [T, T, T], [F, T, F], [T, F, F]])
    np.testing.assert_allclose(length_distribution(mask), [0.2, 0.4, 0.2, 0.2])
    along = sizes_along(mask, np.array([4, 4, 2, 4, 2]), np.array([3, 1, 0, 2, 1]), num_sequences=1)
    (offsets, sizes) = along[4]
    assert list(along) == [4] and offsets.tolist() == [1, 2, 3] and sizes.tolist() == [0, 1, 2]


def test_slides_by_hand():
    masks = [
        [T, F, T, T, F],  # events 0..4: 0, 2, 3
        [F, F, F, F, T],  # events 1..5: 5. Added 5; 2 and 3 ejected, a run of two; 0 left the window
        [T, F, T, T, F],  # events 2..6: 2, 4, 5. Added 2, 4; 5 stays
        [T, T, T, T, T],  # another sequence
        [F, T, F, T, T],  # its next window. Ejected its events 1 and 3: two runs of one; added the new one
    ]
    mask, groups, offsets = np.array(masks), np.array([0, 0, 0, 8, 8]), np.array([0, 1, 2, 5, 6])
    moved = slides(mask, groups, offsets)
    assert moved.added.tolist() == [1, 2, 1] and moved.ejected.tolist() == [2, 0, 2]
    assert moved.run_lengths.tolist() == [2, 1, 1] and moved.run_slides.tolist() == [0, 2, 2]
    assert moved.groups.tolist() == [0, 0, 8]
    order = np.array([3, 1, 0, 4, 2])
    for ours, shuffled in zip(moved, slides(mask[order], groups[order], offsets[order]), strict=True):
        np.testing.assert_array_equal(ours, shuffled)
    summary = slide_summary(moved)
    assert summary["adds_one"] == pytest.approx(2 / 3) and summary["adds_several"] == 0
    assert summary["run_length"] == pytest.approx(4 / 3) and summary["in_runs"] == pytest.approx(2 / 4)
    assert (summary["num_slides"], summary["num_sequences"]) == (3, 2)


def test_slides_equal_a_loop_over_sets_of_events():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(5), 7)
    offsets = np.tile([1, 2, 3, 5, 6, 7, 9], 5)  # with gaps
    mask = generator.random((35, 8)) < 0.5
    moved, added, ejected = slides(mask, groups, offsets), [], []
    for i in range(34):
        if groups[i] == groups[i + 1] and offsets[i] + 1 == offsets[i + 1]:
            before = {offsets[i] + place for place in np.flatnonzero(mask[i])}
            after = {offsets[i + 1] + place for place in np.flatnonzero(mask[i + 1])}
            added.append(len(after - before))
            ejected.append(len({event for event in before - after if event > offsets[i]}))
    assert moved.added.tolist() == added and moved.ejected.tolist() == ejected
    assert moved.run_lengths.sum() == moved.ejected.sum()


def test_one_in_segments_out_is_found_when_planted_not_when_reversed():
    """H_d grows by the newest event and now and then drops its three oldest at once."""
    masks, groups, offsets = [], [], []
    generator = np.random.default_rng(0)
    for sequence in range(60):
        held: list[int] = [5, 6, 7]
        for offset in range(20):
            held = [event for event in held if event >= offset]
            masks.append([offset + place in held for place in range(12)])
            groups.append(sequence), offsets.append(offset)
            held.append(offset + 12)
            if len(held) > 4 and generator.random() < 0.4:
                held = held[3:]
    mask, groups, offsets = np.array(masks), np.array(groups), np.array(offsets)
    summary = slide_summary(slides(mask, groups, offsets))
    assert summary["adds_one"] == 1.0 and summary["adds_several"] == 0.0
    assert summary["ejects_rather_low"] > 0 and summary["run_length"] > 2
    turned = slide_summary(slides(mask[::-1, ::-1], groups[::-1], 100 - offsets[::-1]))  # time runs backward
    assert turned["ejects_rather_high"] < 0


def test_a_sample_without_neighbours_is_refused_for_slides():
    mask = np.ones((3, 4), dtype=bool)
    with pytest.raises(ValueError, match="one event apart"):
        slide_summary(slides(mask, np.array([0, 0, 1]), np.array([0, 2, 1])))


def test_a_case_study_is_one_row_json_can_hold():
    generator = np.random.default_rng(0)
    marks, groups = generator.integers(6, size=(72, 11)), np.repeat(np.arange(6), 12)
    offsets = np.tile(np.arange(12), 6)
    row = case_study(np.ones_like(marks, dtype=bool), marks, groups, offsets, dict(enumerate("abcdef")))
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["length_pdf"] == [0.0] * 11 + [1.0]
    assert row["added"] == [0, 66] and row["ejected"] == [66]
    assert row["run_length"] is row["in_runs"] is None  # nothing was ejected
    assert len(row["along"]) == 4 and all(mark["share"] == 1.0 for mark in row["mark_shares"])


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_sampled_sequences_are_whole_and_just_enough(size):
    events = from_lists(*([range(length) for length in (12, 9, 30, 7, 21, 16, 4)] for _ in range(2)))
    store = make_windows(events, future=3, history=4)
    sample, again, other = (sample_sequences(store, size, seed=seed) for seed in (3, 3, 4))
    chosen = np.unique(sample.sequence_index)
    kept = np.flatnonzero(np.isin(store.sequence_index, chosen))
    assert sample.first.tolist() == again.first.tolist() == store.first[kept].tolist()  # all windows of these
    assert len(sample) >= min(size, len(store))
    counts = np.bincount(store.sequence_index)
    assert len(sample) == len(store) or any(len(sample) - counts[index] < size for index in chosen)
    assert size != 7 or other.first.tolist() != sample.first.tolist()
