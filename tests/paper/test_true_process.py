"""The true process: its likelihood by hand and against a slow loop, time rescaling, parents; futures of windows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.data.synthetic import HawkesProcess, delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation.scores import score_events, trivial_baselines
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from helpers import from_lists, mixed_process
from tasks import mtpp
from tasks.mtpp import add_gaps, score_row
from tasks.true_process import TRUE_PROCESS, TrueProcess


@pytest.fixture(scope="module")
def events():
    """19 sequences of different lengths, one event in the shortest."""
    sequences = delayed_hawkes().simulate(25.0, 17, np.random.default_rng(0)).sequences
    times, marks = [list(pieces) for pieces in zip(*sequences, strict=True)]
    return from_lists([*times, [3.0], [2.0, 2.0, 4.0]], [*marks, [1], [0, 5, 2]], num_marks=6)


def test_two_events_of_an_exponential_process_worked_by_hand():
    process = TrueProcess(HawkesProcess([0.5, 0.2], [[0.1, 0.6], [0.0, 0.3]], scale=2.0))
    sequences = from_lists([[1.0, 3.0]], [[0, 1]], num_marks=2, starts=[0.0])
    log_prob, compensator = process.log_likelihood(sequences)
    first, second = 0.7 * 1.0, 0.7 * 2.0 + (0.1 + 0.6) * (1 - math.exp(-2.0 / 2.0))
    second_intensity = 0.2 + 0.6 * math.exp(-2.0 / 2.0) / 2.0
    np.testing.assert_allclose(compensator, [first, second], rtol=1e-14)
    np.testing.assert_allclose(log_prob, [math.log(0.5) - first, math.log(second_intensity) - second], rtol=1e-14)


def slow_log_likelihood(process, times, marks, start):
    """Double loop with scipy's distributions of delays."""
    log_prob, compensator = [], []
    before = start
    for i, (time, mark) in enumerate(zip(times, marks, strict=True)):
        intensity, expected = process.base_rates[mark], process.base_rates.sum() * (time - before)
        for j in range(i):
            for child in range(process.num_marks):
                scale, shape = process.scale[marks[j], child], process.shape[marks[j], child]
                kernel = stats.lomax(process.tail, scale=scale) if process.tail else stats.gamma(shape, scale=scale)
                children = process.branching[marks[j], child]
                expected += children * (kernel.cdf(time - times[j]) - kernel.cdf(before - times[j]))
                if child == mark:
                    intensity += children * kernel.pdf(time - times[j])
        log_prob.append(math.log(intensity) - expected)
        compensator.append(expected)
        before = time
    return np.array(log_prob), np.array(compensator)


@pytest.mark.parametrize("tail", [None, 1.5])
def test_likelihood_equals_a_slow_double_loop_over_events_and_marks(tail):
    process = replace(mixed_process(), tail=tail)
    sequences = process.simulate(12.0, 3, np.random.default_rng(7)).sequences
    slow = [slow_log_likelihood(process, times, marks, 0.0) for times, marks in sequences]
    np.testing.assert_allclose(
        TrueProcess(process).log_likelihood(sequences), np.concatenate(slow, axis=1), rtol=1e-10
    )


def test_tied_times_an_unknown_start_and_impossible_events_have_defined_likelihoods():
    process = TrueProcess(HawkesProcess([0.5, 0.0], [[0.2, 0.4], [0.0, 0.0]]))
    sequences = from_lists([[2.0, 2.0], [1.0, 1.5]], [[0, 1], [1, 0]], num_marks=2)
    log_prob, compensator = process.log_likelihood(sequences)
    np.testing.assert_allclose(compensator[:3], 0.0, atol=1e-15)  # unknown starts: the clock begins with the event
    np.testing.assert_allclose(log_prob[:2], [math.log(0.5), math.log(0.4)])
    assert log_prob[2] == -np.inf  # mark 1 has no base rate and nothing came before
    with pytest.raises(ValueError, match="this process's 2 marks; got 6"):
        process.log_likelihood(delayed_hawkes().simulate(5.0, 2, np.random.default_rng(0)).sequences)


# who was the parent


def test_parent_posterior_by_hand():
    process = TrueProcess(HawkesProcess([0.5, 0.2], [[0.1, 0.6], [0.0, 0.3]], scale=2.0))
    parents, immigrant = process.parent_posterior(np.array([0.0, 1.0, 3.0]), np.array([0, 1, 1]))
    from_first, from_second = 0.6 * math.exp(-1.5) / 2, 0.3 * math.exp(-1.0) / 2
    np.testing.assert_allclose(parents[2], np.array([from_first, from_second, 0.0]) / (0.2 + from_first + from_second))
    np.testing.assert_allclose(parents[0], 0.0)
    np.testing.assert_allclose(parents.sum(axis=1) + immigrant, 1.0)


# futures of windows, and gaps


def test_the_nll_of_window_futures_equals_a_loop_over_windows(events, monkeypatch):
    torch.manual_seed(0)
    model = FullyNNModel(FullyNNConfig(num_marks=6, embedding_size=4, hidden_size=8, num_components=5))
    monkeypatch.setattr(mtpp, "MAX_TOKENS", 100)
    row = score_row("m", model, events, "4-7")
    windows = make_windows(events, future=4, history=7)
    parts = []
    for index in range(len(windows)):
        times, marks = windows.gather([index])
        output = model.double().event_log_prob(times, marks, torch.ones(1, 11, dtype=torch.bool))
        parts.append((output.time_log_prob[0, 7:], output.mark_log_prob[0, 7:]))
    time_nll, mark_nll = (-torch.cat(values).mean().item() for values in zip(*parts, strict=True))
    assert row["num_windows"] == len(windows) > 100
    assert row["future_time_nll"] == pytest.approx(time_nll, rel=1e-9)
    assert row["future_mark_nll"] == pytest.approx(mark_nll, rel=1e-9)
    assert row["future_nll"] == pytest.approx(time_nll + mark_nll, rel=1e-9)


def test_baselines_and_the_true_process_are_scored_on_the_same_futures(events):
    models = {**trivial_baselines(events), TRUE_PROCESS: TrueProcess(delayed_hawkes())}
    rows = [score_row(name, model, events, "4-7") for name, model in models.items()]
    windows = make_windows(events, future=4, history=7)
    where = (windows.first[:, None] + 7 + np.arange(4)).ravel()
    assert [rows[place]["model"] for place in (0, 1, -1)] == ["Poisson + unigram", "Gamma + bigram", TRUE_PROCESS]
    for row, model in zip(rows, models.values(), strict=True):
        scores = score_events(model, events)
        assert row["future_nll"] == pytest.approx(-scores.log_prob[where].mean())
        assert row["nll"] == pytest.approx(-np.nanmean(scores.log_prob))
        assert row["num_events"] == events.num_events - len(events)
        assert row["num_tied"] == 1
    assert rows[-1]["time_nll"] is rows[-1]["future_mark_nll"] is None  # not NaN, which JSON does not know
    assert rows[1]["future_time_nll"] == pytest.approx(
        -score_events(models["Gamma + bigram"], events)[1][where].mean()
    )


def test_gaps_are_measured_from_the_true_process_on_the_same_events():
    rows = [
        {"model": name, "nll": nll, "data": "a", "split": "test"} for name, nll in (("m", 2.5), (TRUE_PROCESS, 2.0))
    ]
    other = {"model": "m", "nll": 9.0, "data": "b", "split": "test"}
    gaps = [row.get("gap") for row in add_gaps([*rows, other])]
    assert gaps == [0.5, 0.0, None]
