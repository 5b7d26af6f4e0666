"""Intervals and case studies: by hand, against slow loops, with planted effects and under the null."""

import json

import numpy as np
import pytest
from scipy import stats

from ehd_hf.evaluation.statistics import holm, mark_shares, mean_interval, ratio_interval

T, F = True, False


# --- intervals


def test_the_bootstrap_equals_a_slow_one_that_draws_whole_sequences(monkeypatch):
    monkeypatch.setattr("ehd_hf.evaluation.statistics.NUM_RESAMPLES", 50)
    generator = np.random.default_rng(0)
    groups = np.repeat([3, 1, 7, 4, 9], [2, 5, 1, 4, 3])
    values = generator.normal(size=len(groups)) + groups
    low, high = mean_interval(values, groups)
    names = np.unique(groups)
    drawn = np.random.default_rng(0).multinomial(5, np.full(5, 0.2), 50)
    means = []
    for times in drawn:
        pieces = [values[groups == name] for name, count in zip(names, times, strict=True) for _ in range(count)]
        means.append(np.concatenate(pieces).mean())
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)
    assert mean_interval(values, groups) == mean_interval(values, groups)


def test_a_ratio_of_nothing_has_no_interval():
    assert np.isnan(ratio_interval(np.zeros(3), np.zeros(3), np.arange(3))).all()
    assert np.isnan(ratio_interval(np.zeros(0), np.zeros(0), np.zeros(0))).all()
    assert ratio_interval(np.array([2.0, 4.0]), np.array([1.0, 2.0]), np.array([0, 1])) == (2.0, 2.0)
    assert mean_interval(np.array([1.0, 3.0]), np.array([5, 5])) == (2.0, 2.0)  # one sequence: nothing varies


# --- marks


def test_shares_of_marks_by_hand():
    marks = np.array([[0, 0, 1, 2], [1, 1, 0, 0], [2, 0, 0, 0]])
    mask = np.array([[T, T, F, F], [F, F, T, F], [F, F, F, F]])
    found = mark_shares(mask, marks, np.array([0, 1, 1]), dict(enumerate("abcd")))
    rows = {row["label"]: row for row in found}
    assert set(rows) == {"a", "b", "c"}  # d never occurs
    assert rows["a"]["num_events"] == 7 and rows["a"]["share"] == pytest.approx(3 / 7)
    # Windows distil 2, 1 and 0 of 4: of a's 2, 2 and 3 events 1, 0.5 and 0 are expected.
    assert rows["a"]["expected"] == pytest.approx(1.5 / 7)
    assert rows["a"]["recency"] == pytest.approx(1 / 7)  # the last two, one and none: a, once
    # Beyond expectation: 1 in the first sequence, 0.5 in the second.
    spread = stats.hypergeom.var(4, 2, 2) + stats.hypergeom.var(4, 2, 1)
    assert rows["a"]["z"] == pytest.approx(1.5 / np.sqrt(max(1 + 0.25, spread)))
    assert rows["a"]["p"] == pytest.approx(2 * stats.norm.sf(rows["a"]["z"]))
    assert rows["b"]["share"] == 0.0 and rows["b"]["z"] < 0
    assert rows["c"]["num_sequences"] == 2
    assert json.loads(json.dumps(list(rows.values()))) == list(rows.values())


def test_holm_agrees_with_its_definition():
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])
    assert len(holm(np.zeros(0))) == 0


def overlapping(generator, num_sequences=40, num_windows=12, num_history=11, num_marks=6):
    """Marks (W, L) of windows that slide along sequences, and which sequence each belongs to."""
    events = generator.choice(
        num_marks, size=(num_sequences, num_windows + num_history), p=[0.4, 0.2, 0.2, 0.1, 0.06, 0.04]
    )
    marks = np.lib.stride_tricks.sliding_window_view(events, num_history, axis=1)[:, :num_windows]
    return marks.reshape(-1, num_history), np.repeat(np.arange(num_sequences), num_windows)


@pytest.mark.slow
def test_random_distillation_is_called_significant_no_more_often_than_asked():
    found, p_values = 0, []
    for seed in range(150):
        generator = np.random.default_rng(seed)
        marks, groups = overlapping(generator)
        places = generator.random(marks.shape).argsort(1).argsort(1)
        mask = places < generator.integers(0, 12, (len(marks), 1))  # what random distillation draws
        rows = mark_shares(mask, marks, groups, dict(enumerate("abcdef")))
        found += any(row["significant"] for row in rows)
        p_values += [row["p"] for row in rows]
    assert found <= 0.05 * 150 + 3 * np.sqrt(150 * 0.05 * 0.95)
    assert np.mean(np.array(p_values) < 0.05) < 0.08


@pytest.mark.slow
def test_masks_that_repeat_along_the_slide_do_not_fake_significance():
    """A sequence's events keep their fate in every window: many windows, but only as many draws as sequences."""
    found = 0
    for seed in range(150):
        generator = np.random.default_rng(seed)
        marks, groups = overlapping(generator)
        fate = generator.random((40, 12 + 11)) < 0.4
        mask = np.lib.stride_tricks.sliding_window_view(fate, 11, axis=1)[:, :12].reshape(-1, 11)
        found += any(row["significant"] for row in mark_shares(mask, marks, groups, dict(enumerate("abcdef"))))
    assert found <= 0.05 * 150 + 3 * np.sqrt(150 * 0.05 * 0.95)


def test_a_planted_preference_is_found_and_only_that():
    generator = np.random.default_rng(1)
    marks, groups = overlapping(generator, num_sequences=120)
    scores = generator.random(marks.shape) + 0.5 * (marks == 2) - 0.5 * (marks == 4)
    mask = np.argsort(np.argsort(-scores, axis=1), axis=1) < 4
    rows = mark_shares(mask, marks, groups, dict(enumerate("abcdef")))
    sign = {row["label"]: np.sign(row["share"] - row["expected"]) * row["significant"] for row in rows}
    assert sign["c"] == 1 and sign["e"] == -1
    assert all(row["low"] <= row["share"] <= row["high"] for row in rows)


def test_shorter_histories_are_counted_by_their_own_length():
    # One window of four events and one of two: at random, sizes 1 take a quarter and a half of them.
    distill = np.array([[0, 0, 0, 1], [0, 0, 0, 1]], bool)
    marks = np.array([[0, 1, 0, 0], [-1, -1, 0, 1]])
    history = np.array([[1, 1, 1, 1], [0, 0, 1, 1]], bool)
    first, second = mark_shares(distill, marks, np.arange(2), {0: "a", 1: "b"}, history=history)
    assert (first["num_events"], second["num_events"]) == (4, 2)
    assert first["expected"] == pytest.approx((3 / 4 + 1 / 2) / 4)
    assert second["expected"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert (first["share"], second["share"], second["recency"]) == (1 / 4, 1 / 2, 1 / 2)
    whole = mark_shares(distill[:1], marks[:1], np.arange(1), {0: "a", 1: "b"})
    assert whole == mark_shares(distill[:1], marks[:1], np.arange(1), {0: "a", 1: "b"}, history=history[:1])
