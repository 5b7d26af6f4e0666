"""Simulated processes against theory: rates, family trees, delays."""

import numpy as np
import pytest
from scipy import stats

from ehd_hf.data.synthetic import PROCESSES, HawkesProcess, delayed_hawkes
from helpers import mixed_process


def simulate_poisson(rates, horizon, num_sequences, generator, labels=None):
    """A Hawkes process without children."""
    process = HawkesProcess(rates, np.zeros((len(rates), len(rates))), labels=labels)
    return process.simulate(horizon, num_sequences, generator).sequences


def generator(seed=0):
    return np.random.default_rng(seed)


# simulation


def test_poisson_counts_have_the_given_rates_and_times_are_uniform():
    rates, horizon = np.array([0.5, 2.0, 0.1]), 40.0
    sequences = simulate_poisson(rates, horizon, 300, generator(), labels=("a", "b", "c"))
    expected = rates * horizon * 300
    counts = np.bincount(sequences.marks, minlength=3)
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()
    assert stats.kstest(sequences.times / horizon, "uniform").pvalue > 0.01
    assert sequences.id2label == {0: "a", 1: "b", 2: "c"}
    np.testing.assert_array_equal(sequences.starts, 0.0)


def test_sequences_without_events_are_left_out_and_ids_keep_the_numbering():
    sequences = simulate_poisson([0.5], 1.0, 1000, generator())
    assert 300 < len(sequences) < 480  # 1 - exp(-0.5) of 1000 is 393
    assert (sequences.lengths > 0).all()
    assert max(sequences.seq_ids) > len(sequences)


def test_the_same_seed_gives_the_same_events_and_another_seed_does_not():
    first, again, other = (delayed_hawkes().simulate(30.0, 4, generator(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.sequences.times, again.sequences.times)
    np.testing.assert_array_equal(first.parents, again.parents)
    assert not np.array_equal(first.sequences.times[:5], other.sequences.times[:5])


@pytest.mark.parametrize("make", [mixed_process, *PROCESSES.values()])
def test_parents_are_earlier_in_the_same_sequence_and_allowed(make):
    process = make()
    simulated = process.simulate(60.0, 50, generator(4))
    sequences, parents = simulated
    flat = np.where(parents < 0, -1, parents + np.repeat(sequences.offsets[:-1], sequences.lengths))
    children, owner = np.flatnonzero(flat >= 0), np.repeat(np.arange(len(sequences)), sequences.lengths)
    assert len(children) > 100
    assert (flat[children] < children).all()
    assert (owner[flat[children]] == owner[children]).all()
    assert (sequences.times[flat[children]] <= sequences.times[children]).all()
    assert (process.branching[sequences.marks[flat[children]], sequences.marks[children]] > 0).all()
    assert (process.base_rates[sequences.marks[flat < 0]] > 0).all()
    assert ((sequences.times >= 0) & (sequences.times <= 60.0)).all()
    assert (sequences.intervals() >= 0).all()


@pytest.mark.parametrize(("tail", "delay"), [(None, stats.gamma(3, scale=2.0)), (1.5, stats.lomax(1.5, scale=2.0))])
def test_delays_follow_their_distribution(tail, delay):
    process = HawkesProcess([0.01], [[0.5]], 2.0, 3, tail=tail)
    sequences, parents = process.simulate(2e5, 1, generator(5))
    delays = (sequences.times - sequences.times[parents])[parents >= 0]
    assert len(delays) > 1500 and stats.kstest(delays, delay.cdf).pvalue > 0.01


# ready-made processes and bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0]]), "spectral radius below 1; got 1.000"),
        (([1.0, 1.0], [[0.0, 2.0], [0.6, 0.0]]), "spectral radius below 1; got 1.095"),
    ],
)
def test_a_bad_process_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        HawkesProcess(*arguments)
    with pytest.raises(ValueError, match="must be positive; got 0 and 3"):
        delayed_hawkes().simulate(0, 3, generator())
