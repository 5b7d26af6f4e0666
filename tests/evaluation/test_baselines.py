"""Trivial baselines by hand, against scipy, and at the edges."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.evaluation.baselines import (
    Gaps,
    TrivialBaseline,
    fit_autoregression,
    fit_gamma,
    fit_gaps,
    fit_log_normals,
    fit_marks,
    gamma_log_survival,
    is_scored,
    own_frequency,
)
from helpers import from_lists


def fit(train, gap="Gamma", mark="bigram"):
    smallest, gaps = fit_gaps(train)
    return TrivialBaseline("", gaps[gap], fit_marks(train)[mark], train.num_marks, smallest)


def two_sequences():
    """Three marks; the first event of each sequence, at its own time, is never scored."""
    return from_lists([[5.0, 6.0, 8.0, 9.0], [1.0, 5.0]], [[0, 1, 1, 0], [2, 1]], num_marks=3)


def gamma_sequences(shape=0.6, scale=2.0, seed=0):
    generator = np.random.default_rng(seed)
    lengths = (7, 1, 40, 300)
    times = [generator.gamma(shape, scale, size=length).cumsum() for length in lengths]
    return from_lists(times, [generator.integers(5, size=length) for length in lengths], num_marks=5)


def test_poisson_and_unigram_by_hand():
    baseline = fit(two_sequences(), "Poisson", "unigram")
    scores = baseline.log_prob(two_sequences())
    assert baseline.gaps.scale == 2.0  # intervals 1, 2, 1, 4
    # marks 1, 1, 0, 1 and one more of each: (2, 4, 1) / 7
    marks = np.log(np.array([np.nan, 4, 4, 2, np.nan, 4]) / 7)
    times = -math.log(2) - np.array([np.nan, 1, 2, 1, np.nan, 4]) / 2
    np.testing.assert_allclose(scores.mark_log_prob, marks)
    np.testing.assert_allclose(scores.time_log_prob, times)
    np.testing.assert_allclose(scores.log_prob, marks + times)
    np.testing.assert_allclose(scores.compensator, np.array([np.nan, 1, 2, 1, np.nan, 4]) / 2)


def test_bigram_by_hand_counts_no_pair_across_sequences():
    bigram = fit_marks(two_sequences())["bigram"]._replace(borrowed=1.0)
    # Pairs 0-1, 1-1, 1-0, 2-1, filled up with one event of the unigram (2, 4, 1) / 7.
    expected = [(1 + 4 / 7) / 2, (1 + 4 / 7) / 3, (1 + 2 / 7) / 3, (1 + 4 / 7) / 2]
    np.testing.assert_allclose(bigram.probabilities(two_sequences())[is_scored(two_sequences())], expected)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 9.0, 4000.0])
def test_the_gamma_fit_is_a_stationary_point_of_the_likelihood(shape):
    intervals = np.random.default_rng(0).gamma(shape, 3.0, size=2000)
    k, scale = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in fit_gamma(intervals))
    gamma = torch.distributions.Gamma(k, 1 / scale)
    gamma.log_prob(torch.from_numpy(intervals)).mean().backward()
    for parameter in (k, scale):  # slopes in the logarithm, to compare over orders of magnitude
        assert abs((parameter.detach() * parameter.grad).item()) < 1e-7
    assert k.item() == pytest.approx(shape, rel=0.2)


def mixed_gaps(size=4000, seed=0):
    """Two log-normals, of which a gap takes the narrow one with probability 0.3."""
    generator = np.random.default_rng(seed)
    narrow = generator.random(size) < 0.3
    return np.where(narrow, generator.normal(-3.0, 0.2, size), generator.normal(1.0, 0.8, size))


def test_gap_models_agree_with_scipy():
    train, test = gamma_sequences(seed=0), gamma_sequences(seed=1)
    scored, logs = is_scored(test), np.log(train.intervals()[is_scored(train)])
    intervals = test.intervals()[scored]
    gamma = fit(train)
    references = {
        "Gamma": stats.gamma(gamma.gaps.shape, scale=gamma.gaps.scale),
        "log-normal": stats.lognorm(logs.std(), scale=math.exp(logs.mean())),
    }
    for name, reference in references.items():
        scores = fit(train, name).log_prob(test)
        np.testing.assert_allclose(scores.time_log_prob[scored], reference.logpdf(intervals), rtol=1e-9)
        np.testing.assert_allclose(scores.compensator[scored], -reference.logsf(intervals), rtol=1e-8, atol=1e-13)
        assert all(np.isnan(values[~scored]).all() for values in scores)
    assert scored.sum() == 6 + 0 + 39 + 299


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["Poisson", "Gamma", "log-normal", "log-normal mixture", "AR(1)"])
def test_densities_integrate_to_one_and_to_their_survival(name, first):
    model = fit_gaps(gamma_sequences(shape=2.0))[1][name]
    logs = np.linspace(-30, 12, 40_001)
    before = np.full(len(logs), np.nan if first else 0.7)
    density, survival = model.scores(Gaps(np.exp(logs), before))
    mass = np.exp(density + logs) * (logs[1] - logs[0])
    np.testing.assert_allclose(np.cumsum(mass) - mass / 2, -np.expm1(survival), atol=1e-5)
    assert mass.sum() == pytest.approx(1, abs=1e-6)


def test_em_finds_a_mixture_and_never_loses_likelihood():
    logs = mixed_gaps()
    gaps = Gaps(np.exp(logs), np.full(len(logs), np.nan))
    fits = [fit_log_normals(logs[:1999], 2, steps) for steps in (0, 1, 2, 5, 20, 500)]
    part = Gaps(gaps.values[:1999], gaps.log_before[:1999])
    assert (np.diff([one.scores(part)[0].sum() for one in fits]) >= 0).all()
    mixture = fit_log_normals(logs, 2)  # by a half of them
    for values, expected in zip(mixture, ((0.3, 0.7), (-3.0, 1.0), (0.2, 0.8)), strict=True):
        np.testing.assert_allclose(values, expected, atol=0.05)
    assert fit_log_normals(logs, 4).scores(gaps)[0].mean() > fit_log_normals(logs).scores(gaps)[0].mean() + 0.3


def test_ar1_finds_its_coefficients_and_starts_from_all_gaps():
    generator, logs = np.random.default_rng(0), [0.0]
    for noise in generator.normal(0, 0.5, 20_000):
        logs.append(0.4 + 0.8 * logs[-1] + noise)
    logs = np.array(logs[1:])
    model = fit_autoregression(Gaps(np.exp(logs), np.concatenate([[np.nan], logs[:-1]])))
    assert model.slope == pytest.approx(0.8, abs=0.02)
    np.testing.assert_allclose(np.concatenate(model.following), [1, 0.4, 0.5], atol=0.05)
    np.testing.assert_allclose(np.concatenate(model.first), [1, 2.0, 0.5 / 0.6], atol=0.1)
    follows, first = model.scores(Gaps(np.exp([1.0, 1.0]), np.array([0.5, np.nan])))[0]
    assert follows == pytest.approx(stats.norm(0.8, 0.5).logpdf(1.0) - 1, abs=0.05)
    assert first == pytest.approx(stats.norm(2.0, 0.5 / 0.6).logpdf(1.0) - 1, abs=0.1)


def test_each_event_left_out_is_a_fit_without_it():
    events = from_lists([np.arange(9.0), np.arange(5.0)], [[0, 1, 0, 1, 2, 2, 0, 1, 1], [3, 0, 1, 2, 2]])
    models, scored = fit_marks(events), is_scored(events)
    before, marks = np.roll(events.marks, 1)[scored], events.marks[scored]
    unigram, bigram = (models[name].probabilities(events, left_out=1)[scored] for name in ("unigram", "bigram"))
    for event in range(len(marks)):
        others = np.arange(len(marks)) != event
        frequency = (np.sum(marks[others] == marks[event]) + 1) / (len(marks) - 1 + 4)
        row = marks[others & (before == before[event])]
        borrowed = models["bigram"].borrowed
        assert unigram[event] == pytest.approx(frequency)
        expected = (np.sum(row == marks[event]) + borrowed * frequency) / (len(row) + borrowed)
        assert bigram[event] == pytest.approx(expected)


def test_a_bigram_of_rare_marks_is_not_worse_than_the_unigram():
    generator, chance = np.random.default_rng(0), 1 / np.arange(1, 1790)
    train, test = (
        from_lists([range(100)] * 50, generator.choice(1789, (50, 100), p=chance / chance.sum()), num_marks=1789)
        for _ in range(2)
    )
    nll = {name: -fit(train, "Poisson", name).log_prob(test).mark_log_prob for name in fit_marks(train)}
    mean = {name: np.nanmean(values) for name, values in nll.items()}
    assert max(mean["bigram"], mean["own recent marks"]) < mean["unigram"] + 0.005
    # Where marks do follow marks it is far better.
    following = from_lists([range(100)] * 50, (np.arange(100) + generator.integers(1789, size=(50, 1))) % 1789)
    assert fit_marks(following)["bigram"].borrowed < 2


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_decayed_counts_agree_with_a_slow_loop(decay):
    events, expected = gamma_sequences(), []
    for _, marks in events:
        for place, mark in enumerate(marks):
            weights = decay ** np.arange(place, 0, -1)
            expected.append(weights[marks[:place] == mark].sum() / weights.sum() if place else 0.0)
    np.testing.assert_allclose(own_frequency(events, decay), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["unigram", "bigram", "own recent marks"])
def test_probabilities_of_the_next_mark_sum_to_one(name):
    model = fit_marks(gamma_sequences())[name]
    for history in ([4], [0, 3, 3], list(gamma_sequences().marks[:300])):
        times = [range(len(history) + 1)] * 5
        nexts = from_lists(times, [[*history, mark] for mark in range(5)], num_marks=5)
        assert model.probabilities(nexts)[nexts.offsets[1:] - 1].sum() == pytest.approx(1)


def test_own_recent_marks_are_found_where_sequences_repeat_theirs():
    marks = [[user] * 30 for user in range(20)]  # a mark each: the others never come
    models = fit_marks(from_lists([range(30)] * 20, marks))
    weights = models["own recent marks"].weights
    assert weights.sum() == pytest.approx(1) and (weights > 1e-4).all()  # but they may come


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
    scores = fit(tied).log_prob(tied)
    assert np.isfinite(scores.log_prob[1:]).all()
    assert scores.time_log_prob[1] == scores.time_log_prob[2] == scores.time_log_prob[4]


def test_a_known_start_does_not_make_the_first_event_count():
    known = from_lists([[5.0, 6.0, 8.0]], [[0, 1, 1]], starts=[0.0])
    unknown = from_lists([[5.0, 6.0, 8.0]], [[0, 1, 1]])
    first, second = (fit(sequences).log_prob(sequences) for sequences in (known, unknown))
    np.testing.assert_array_equal(first.log_prob, second.log_prob)


def test_what_cannot_be_fitted_is_left_out():
    assert fit_gaps(from_lists([[1.0], [2.0]], [[0], [0]]))[1] == {}
    assert list(fit_gaps(from_lists([[1.0, 2.0, 3.0]], [[0, 0, 0]]))[1]) == ["Poisson"]
    assert "AR(1)" not in fit_gaps(from_lists([[1.0, 2.0, 4.0]], [[0, 0, 0]]))[1]
    with pytest.raises(ValueError, match="fitted on 3 marks; got sequences of 5"):
        fit(two_sequences()).log_prob(gamma_sequences())
