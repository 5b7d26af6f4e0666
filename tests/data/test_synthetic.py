"""Simulated processes against theory: rates, family trees, delays, likelihood, time rescaling."""

import math

import numpy as np
import pytest
from scipy import stats

from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.synthetic import HORIZON, PROCESSES, HawkesProcess, delayed_hawkes, exponential_hawkes


def simulate_poisson(rates, horizon, num_sequences, generator, labels=None):
    """A Hawkes process without children."""
    process = HawkesProcess(rates, np.zeros((len(rates), len(rates))), labels=labels)
    return process.simulate(horizon, num_sequences, generator).sequences


def generator(seed=0):
    return np.random.default_rng(seed)


def mixed_process():
    """Three marks, a different delay for every pair: nothing is symmetric by accident."""
    branching = [[0.3, 0.5, 0.0], [0.0, 0.2, 0.4], [0.25, 0.0, 0.1]]
    scale = np.array([[0.5, 1.0, 1.0], [1.0, 2.0, 0.3], [0.7, 1.0, 0.5]])
    shape = np.array([[1, 3, 1], [1, 2, 5], [4, 1, 1]])
    return HawkesProcess([0.3, 0.2, 0.1], branching, scale, shape)


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


# likelihood


def test_two_events_of_an_exponential_process_worked_by_hand():
    process = HawkesProcess([0.5, 0.2], [[0.1, 0.6], [0.0, 0.3]], scale=2.0)
    sequences = EventSequences.from_lists([[1.0, 3.0]], [[0, 1]], num_marks=2, starts=[0.0])
    log_prob, compensator = process.log_likelihood(sequences)
    first, second = 0.7 * 1.0, 0.7 * 2.0 + (0.1 + 0.6) * (1 - math.exp(-2.0 / 2.0))
    second_intensity = 0.2 + 0.6 * math.exp(-2.0 / 2.0) / 2.0
    np.testing.assert_allclose(compensator, [first, second], rtol=1e-14)
    np.testing.assert_allclose(log_prob, [math.log(0.5) - first, math.log(second_intensity) - second], rtol=1e-14)


def slow_log_likelihood(process, times, marks, start):
    """Double loop with scipy's gamma distribution."""
    log_prob, compensator = [], []
    before = start
    for i, (time, mark) in enumerate(zip(times, marks, strict=True)):
        intensity, expected = process.base_rates[mark], process.base_rates.sum() * (time - before)
        for j in range(i):
            for child in range(process.num_marks):
                kernel = stats.gamma(process.shape[marks[j], child], scale=process.scale[marks[j], child])
                children = process.branching[marks[j], child]
                expected += children * (kernel.cdf(time - times[j]) - kernel.cdf(before - times[j]))
                if child == mark:
                    intensity += children * kernel.pdf(time - times[j])
        log_prob.append(math.log(intensity) - expected)
        compensator.append(expected)
        before = time
    return np.array(log_prob), np.array(compensator)


def test_likelihood_equals_a_slow_double_loop_over_events_and_marks():
    process = mixed_process()
    sequences = process.simulate(12.0, 3, generator(7)).sequences
    slow = [slow_log_likelihood(process, times, marks, 0.0) for times, marks in sequences]
    np.testing.assert_allclose(process.log_likelihood(sequences), np.concatenate(slow, axis=1), rtol=1e-10)


@pytest.mark.parametrize("make", [mixed_process, *PROCESSES.values()])
def test_compensators_of_the_true_process_are_unit_exponential(make):
    """Time rescaling: the last interval of a sequence is cut off at the horizon, so all are laid end to end."""
    process = make()
    sequences = process.simulate(HORIZON, 60, generator(9)).sequences
    compensator = process.log_likelihood(sequences).compensator
    ends = [process.compensator(times, marks, 0.0, np.array([times[-1], HORIZON])) for times, marks in sequences]
    tails = np.diff(ends, axis=1)[:, 0]
    clock = np.insert(compensator, sequences.offsets[1:-1], tails[:-1])  # a tail stands before the next first event
    has_event = np.insert(np.ones(len(compensator), dtype=bool), sequences.offsets[1:-1], False)
    arrivals = np.diff(np.cumsum(clock)[has_event], prepend=0.0)
    assert len(arrivals) > 5000
    assert stats.kstest(arrivals, "expon").pvalue > 0.01


def test_tied_times_an_unknown_start_and_impossible_events_have_defined_likelihoods():
    process = HawkesProcess([0.5, 0.0], [[0.2, 0.4], [0.0, 0.0]])
    sequences = EventSequences.from_lists([[2.0, 2.0], [1.0, 1.5]], [[0, 1], [1, 0]], num_marks=2)
    log_prob, compensator = process.log_likelihood(sequences)
    np.testing.assert_allclose(compensator[:3], 0.0, atol=1e-15)  # unknown starts: the clock begins with the event
    np.testing.assert_allclose(log_prob[:2], [math.log(0.5), math.log(0.4)])
    assert log_prob[2] == -np.inf  # mark 1 has no base rate and nothing came before
    with pytest.raises(ValueError, match="this process's 2 marks; got 6"):
        process.log_likelihood(delayed_hawkes().simulate(5.0, 2, generator()).sequences)


# who was the parent


def test_parent_posterior_by_hand():
    process = HawkesProcess([0.5, 0.2], [[0.1, 0.6], [0.0, 0.3]], scale=2.0)
    parents, immigrant = process.parent_posterior(np.array([0.0, 1.0, 3.0]), np.array([0, 1, 1]))
    from_first, from_second = 0.6 * math.exp(-1.5) / 2, 0.3 * math.exp(-1.0) / 2
    np.testing.assert_allclose(parents[2], np.array([from_first, from_second, 0.0]) / (0.2 + from_first + from_second))
    np.testing.assert_allclose(parents[0], 0.0)
    np.testing.assert_allclose(parents.sum(axis=1) + immigrant, 1.0)


def test_parent_posterior_is_calibrated_on_simulated_parents():
    process = delayed_hawkes()
    simulated = process.simulate(HORIZON, 60, generator(12))
    probabilities, truths = [], []
    for index, (times, marks) in enumerate(simulated.sequences):
        parents = simulated.parents[simulated.sequences.offsets[index] : simulated.sequences.offsets[index + 1]]
        posterior, _ = process.parent_posterior(times, marks)
        probabilities.append(posterior.ravel())
        truths.append((parents[:, None] == np.arange(len(times))).ravel())
    probability, truth = np.concatenate(probabilities), np.concatenate(truths)
    for low, high in ((0.05, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)):
        chosen = (probability > low) & (probability <= high)
        error = math.sqrt((probability[chosen] * (1 - probability[chosen])).sum()) / chosen.sum()
        assert chosen.sum() > 100
        assert abs(truth[chosen].mean() - probability[chosen].mean()) < 4 * error


# ready-made processes and bad input


def test_the_delayed_process_is_the_one_of_the_findings():
    process = delayed_hawkes()
    np.testing.assert_array_equal(process.base_rates, [0.12, 0.12, 0.02, 0.02, 0.3, 0.3])
    edges = {(0, 2): 1.2, (1, 3): 1.2, (2, 0): 0.25, (3, 1): 0.25}
    assert {tuple(edge): process.branching[tuple(edge)] for edge in np.argwhere(process.branching).tolist()} == edges
    assert (process.shape == 6).all() and (process.scale == 0.5).all() and HORIZON == 120.0
    immediate = exponential_hawkes()
    np.testing.assert_array_equal(immediate.branching, process.branching)
    assert (immediate.shape == 1).all() and (immediate.scale == 0.5).all()


def test_distractors_of_the_incident_log_neither_cause_nor_follow_anything():
    process = PROCESSES["incident"]()
    distractors = [process.labels.index(name) for name in ("health check", "user login")]
    assert not process.branching[distractors].any() and not process.branching[:, distractors].any()
    others = [mark for mark in range(process.num_marks) if mark not in distractors]
    assert (process.branching[others].any(axis=1) | process.branching[:, others].any(axis=0)).all()
    sequences = process.simulate(HORIZON, 2, generator()).sequences
    assert (sequences.time_unit, sequences.id2label[0]) == ("h", "deploy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0]]), "spectral radius below 1; got 1.000"),
        (([1.0, 1.0], [[0.0, 2.0], [0.6, 0.0]]), "spectral radius below 1; got 1.095"),
        (([1.0, 1.0], [[0.1]]), r"got \(2,\) and \(1, 1\)"),
        (([], []), r"base_rates must be \(C,\)"),
        (([-1.0], [[0.1]]), "base_rates must be finite, at least 0"),
        (([1.0], [[np.nan]]), "branching must be finite"),
        (([0.0], [[0.1]]), "at least 0 and not all 0"),
        (([1.0], [[0.1]], 0.0), "scale must be finite, positive; got 0.0"),
        (([1.0], [[0.1]], 1.0, 1.5), "shape must be finite, whole and at least 1; got 1.5"),
        (([1.0], [[0.1]], 1.0, 2, ("a", "b")), "labels must name all 1 marks; got 2"),
    ],
)
def test_a_bad_process_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        HawkesProcess(*arguments)
    with pytest.raises(ValueError, match="must be positive; got 0 and 3"):
        delayed_hawkes().simulate(0, 3, generator())
