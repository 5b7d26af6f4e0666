"""Trivial baselines by hand, against scipy, and at the edges."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.evaluation.baselines import TrivialBaseline, fit_gamma, gamma_log_survival, is_scored
from helpers import from_lists


def two_sequences():
    """Three marks; the first event of each sequence, at its own time, is never scored."""
    return from_lists([[5.0, 6.0, 8.0, 9.0], [1.0, 5.0]], [[0, 1, 1, 0], [2, 1]], num_marks=3)


def gamma_sequences(shape=0.6, scale=2.0, seed=0):
    generator = np.random.default_rng(seed)
    lengths = (7, 1, 40, 300)
    times = [generator.gamma(shape, scale, size=length).cumsum() for length in lengths]
    return from_lists(times, [generator.integers(5, size=length) for length in lengths], num_marks=5)


def test_poisson_and_unigram_by_hand():
    baseline = TrivialBaseline("poisson", "unigram").fit(two_sequences())
    scores = baseline.log_prob(two_sequences())
    assert baseline.scale == 2.0  # intervals 1, 2, 1, 4
    # marks 1, 1, 0, 1 and one more of each: (2, 4, 1) / 7
    marks = np.log(np.array([np.nan, 4, 4, 2, np.nan, 4]) / 7)
    times = -math.log(2) - np.array([np.nan, 1, 2, 1, np.nan, 4]) / 2
    np.testing.assert_allclose(scores.mark_log_prob, marks)
    np.testing.assert_allclose(scores.time_log_prob, times)
    np.testing.assert_allclose(scores.log_prob, marks + times)
    np.testing.assert_allclose(scores.compensator, np.array([np.nan, 1, 2, 1, np.nan, 4]) / 2)


def test_bigram_by_hand_counts_no_pair_across_sequences():
    scores = TrivialBaseline("poisson", "bigram").fit(two_sequences()).log_prob(two_sequences())
    # Pairs 0-1, 1-1, 1-0, 2-1, and one more of each: row 0 (1, 2, 1) / 4, row 1 (2, 2, 1) / 5, row 2 (1, 2, 1) / 4.
    expected = np.log([np.nan, 2 / 4, 2 / 5, 2 / 5, np.nan, 2 / 4])
    np.testing.assert_allclose(scores.mark_log_prob, expected)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 9.0, 4000.0])
def test_the_gamma_fit_is_a_stationary_point_of_the_likelihood(shape):
    intervals = np.random.default_rng(0).gamma(shape, 3.0, size=2000)
    k, scale = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in fit_gamma(intervals))
    gamma = torch.distributions.Gamma(k, 1 / scale)
    gamma.log_prob(torch.from_numpy(intervals)).mean().backward()
    for parameter in (k, scale):  # slopes in the logarithm, to compare over orders of magnitude
        assert abs((parameter.detach() * parameter.grad).item()) < 1e-7
    assert k.item() == pytest.approx(shape, rel=0.2)


def test_gamma_scores_agree_with_scipy():
    train, test = gamma_sequences(seed=0), gamma_sequences(seed=1)
    baseline = TrivialBaseline("gamma", "bigram").fit(train)
    scores, scored = baseline.log_prob(test), is_scored(test)
    reference = stats.gamma(baseline.shape, scale=baseline.scale)
    intervals = test.intervals()[scored]
    np.testing.assert_allclose(scores.time_log_prob[scored], reference.logpdf(intervals), rtol=1e-9)
    np.testing.assert_allclose(scores.compensator[scored], -reference.logsf(intervals), rtol=1e-8, atol=1e-13)
    assert scored.sum() == 6 + 0 + 39 + 299
    assert all(np.isnan(values[~scored]).all() for values in scores)


@pytest.mark.parametrize("shape", [0.2, 1.0, 3.5, 200.0])
def test_log_survival_is_finite_and_right_beyond_underflow(shape):
    intervals = np.array([0.0, 1e-9, 0.5, 10.0, 300.0, 640.0, 700.0, 2000.0, 1e6])
    ours = gamma_log_survival(intervals, shape, 1.0)
    known = intervals < 650  # scipy itself underflows later on
    np.testing.assert_allclose(ours[known], stats.gamma(shape).logsf(intervals[known]), rtol=1e-7, atol=1e-15)
    assert np.isfinite(ours).all() and (np.diff(ours) <= 0).all()
    # The hazard tends to 1: far out, log survival is close to the log density.
    assert ours[-1] == pytest.approx(stats.gamma(shape).logpdf(1e6), abs=1e-3)


def test_intervals_of_zero_are_raised_to_the_smallest_positive_one():
    tied = from_lists([[0.0, 0.0, 0.25, 1.0, 1.0]], [[0, 0, 1, 0, 1]])
    scores = TrivialBaseline().fit(tied).log_prob(tied)
    assert np.isfinite(scores.log_prob[1:]).all()
    assert scores.time_log_prob[1] == scores.time_log_prob[2] == scores.time_log_prob[4]


def test_a_known_start_does_not_make_the_first_event_count():
    known = from_lists([[5.0, 6.0, 8.0]], [[0, 1, 1]], starts=[0.0])
    unknown = from_lists([[5.0, 6.0, 8.0]], [[0, 1, 1]])
    first, second = (TrivialBaseline().fit(sequences).log_prob(sequences) for sequences in (known, unknown))
    np.testing.assert_array_equal(first.log_prob, second.log_prob)


def test_bad_input_is_answered_with_what_is_known():
    with pytest.raises(ValueError, match="fitted on 3 marks; got sequences of 5"):
        TrivialBaseline("poisson").fit(two_sequences()).log_prob(gamma_sequences())
    with pytest.raises(ValueError, match="positive intervals; got none among 2"):
        TrivialBaseline().fit(from_lists([[1.0], [2.0]], [[0], [0]]))
    with pytest.raises(ValueError, match="intervals that differ"):
        TrivialBaseline().fit(from_lists([[1.0, 2.0, 3.0]], [[0, 0, 0]]))
