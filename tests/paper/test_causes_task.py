"""Causes of simulated events: by hand, the oracle and the true likelihood against slow loops, then whole rows."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.data.synthetic import PROCESSES, HawkesProcess, delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.perplexity import future_log_prob, keep_gradient, log_perplexity
from ehd_hf.solvers.base import get_solver
from ehd_hf.solvers.prefix import RankedBy
from helpers import from_lists, random_window
from tasks import Run
from tasks.causes import TrueLikelihood, cause_metrics, causes_of, evaluate_causes, oracle_scores
from tasks.true_process import TrueProcess

L, K = 7, 4


# by hand


def test_average_precision_r_precision_and_recall_by_hand():
    causes = np.array([[True, False, False, True, False], [False, False, True, False, False]])
    scores = np.array([[0.9, 0.8, 0.7, 0.1, 0.0], [5.0, 1.0, 3.0, 4.0, 2.0]])
    metrics = cause_metrics(scores, causes)
    # Causes in first and fourth place: precisions 1/1 and 2/4. The only cause in third place: 1/3.
    np.testing.assert_allclose(metrics["ap"], [(1 + 2 / 4) / 2, 1 / 3])
    np.testing.assert_allclose(metrics["r_precision"], [1 / 2, 0])
    np.testing.assert_allclose(metrics["recall"], [[0.5, 0.5, 0.5, 1, 1], [0, 0, 1, 1, 1]])


def test_causes_are_parents_inside_the_history_of_any_future_event():
    sequences = from_lists([range(6), range(5)], [[0] * 6, [0] * 5])
    parents = np.array([-1, 0, 0, 1, 2, 4] + [-1, -1, 1, 1, 3])
    windows = make_windows(sequences, future=2, history=2)
    # Of the first: events 1 2 | 3 4 and 2 3 | 4 5. Of the second: 1 2 | 3 4.
    assert windows.first.tolist() == [1, 2, 7]
    assert causes_of(windows, parents).tolist() == [
        [True, True],  # 3 is the child of 1, 4 of 2
        [True, False],  # 4 of 2; the parent of 5 is 4, in the future itself
        [True, False],  # 3 of 1; the parent of 4 is 3, in the future
    ]
    wider = make_windows(sequences, future=3, history=2)  # 1 2 | 3 4 5; all of the second, 0 1 | 2 3 4
    assert causes_of(wider, parents).tolist() == [[True, True], [False, True]]


def test_causes_equal_a_loop_over_simulated_events():
    simulated = delayed_hawkes().simulate(30.0, 8, np.random.default_rng(0))
    windows = make_windows(simulated.sequences, future=K, history=L)
    found = causes_of(windows, simulated.parents)
    for row in range(len(windows)):
        first, sequence = int(windows.first[row]), int(windows.sequence_index[row])
        begin, expected = int(simulated.sequences.offsets[sequence]), [False] * L
        for event in range(first + L, first + L + K):
            parent = int(simulated.parents[event])
            if parent >= 0 and first <= parent + begin < first + L:
                expected[parent + begin - first] = True
        assert found[row].tolist() == expected
    assert found.any(1).any() and not found.any(1).all()
    chosen = np.array([5, 2, 9])
    np.testing.assert_array_equal(causes_of(windows.select(chosen), simulated.parents), found[chosen])


def slow_oracle(process, times, marks, split, history, future):
    """P(event is the parent of one future event or more), by a double loop with scipy's gamma distribution."""
    none = [1.0] * history
    for i in range(split, split + future):
        effect = []
        for j in range(i):
            pair = marks[j], marks[i]
            children, delay = process.branching[pair], times[i] - times[j]
            density = stats.gamma.pdf(delay, process.shape[pair], scale=process.scale[pair]) if children else 0.0
            effect.append(children * density)
        intensity = process.base_rates[marks[i]] + sum(effect)
        for place in range(history):
            none[place] *= 1 - effect[split - history + place] / intensity
    return [1 - value for value in none]


@pytest.mark.parametrize("name", ["delayed", "incident"])
def test_the_oracle_equals_a_slow_double_loop(name):
    process = PROCESSES[name]()
    sequences = process.simulate(14.0, 3, np.random.default_rng(1)).sequences
    windows = make_windows(sequences, future=3, history=4)
    windows = windows.select(np.linspace(0, len(windows) - 1, 5).astype(int)[::-1])
    scores = oracle_scores(process, windows)
    for row in range(len(windows)):
        times, marks = sequences[int(windows.sequence_index[row])]
        split = int(windows.window_offset[row]) + 4
        np.testing.assert_allclose(scores[row], slow_oracle(process, times, marks, split, 4, 3), atol=1e-12)
    assert len(np.unique(windows.sequence_index)) > 1 and (scores > 0.01).any()


# the true likelihood in a model's place


@pytest.mark.parametrize("name", PROCESSES)
def test_the_true_likelihood_of_whole_sequences_is_that_of_the_process(name):
    process = PROCESSES[name]()
    sequences = process.simulate(20.0, 5, np.random.default_rng(3)).sequences
    exact = TrueProcess(process).log_likelihood(sequences)
    longest = int(sequences.lengths.max())
    times = torch.full((len(sequences), longest), 3.0, dtype=torch.float64)  # what stands on padding is nonsense
    marks, mask = torch.ones(times.shape, dtype=torch.long), torch.zeros(times.shape, dtype=torch.bool)
    for row, (real, kinds) in enumerate(sequences):
        times[row, longest - len(real) :] = torch.from_numpy(real)
        marks[row, longest - len(real) :], mask[row, longest - len(real) :] = torch.from_numpy(kinds), True
    output = TrueLikelihood(process).event_log_prob(times, marks, mask)
    np.testing.assert_allclose(output.log_prob[mask], exact.log_prob, rtol=1e-10)
    np.testing.assert_allclose(output.compensator[mask], exact.compensator, rtol=1e-9, atol=1e-12)
    assert (output.log_prob[~mask] == 0).all()
    torch.testing.assert_close(output.log_prob, output.time_log_prob + output.mark_log_prob)
    last = TrueLikelihood(process).event_log_prob(times, marks, mask, num_last=3)
    torch.testing.assert_close(last.log_prob, output.log_prob[:, -3:])


def deleted_log_prob(process, times, marks, kept, conditioning):
    """log p of the future (K,) after the rest was deleted, by the process's own likelihood of what is left."""
    left = [*(event for event in range(L) if kept[event]), *range(L, L + K)]
    sequence = from_lists([times[left].numpy()], [marks[left].numpy()], num_marks=process.num_marks, starts=[0.0])
    log_prob = TrueProcess(process).log_likelihood(sequence).log_prob[-K:].copy()
    if conditioning == "survival":
        before = left[:-K]
        last = float(times[before[-1]]) if before else 0.0
        ends = np.array([last, float(times[L - 1])])
        silent = TrueProcess(process).compensator(times[before].numpy(), marks[before].numpy(), 0.0, ends)
        log_prob[0] += silent[1] - silent[0]
    return log_prob


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("name", PROCESSES)
def test_gates_of_0_and_1_equal_deletion(name, conditioning):
    process = PROCESSES[name]()
    window = random_window(6, L, K, process.num_marks, seed=4)
    kept = torch.rand(6, L, generator=torch.Generator().manual_seed(5)) < 0.6
    kept[4], kept[5] = False, True
    rows = zip(window.times, window.marks, kept, strict=True)
    expected = np.stack([deleted_log_prob(process, *row, conditioning) for row in rows])
    for rebuilder in ("gate", "compact"):
        options = {"conditioning": conditioning, "rebuilder": rebuilder}
        output = future_log_prob(TrueLikelihood(process), window, kept.double(), **options)
        np.testing.assert_allclose(output.log_prob, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("name", PROCESSES)
def test_slopes_in_the_gates_equal_finite_differences(name, conditioning):
    model = TrueLikelihood(PROCESSES[name]())
    window = random_window(2, L, K, PROCESSES[name]().num_marks, seed=9)

    def value(gates):
        return -log_perplexity(model, window, gates, conditioning=conditioning)

    inside = 0.1 + 0.8 * torch.rand(2, L, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    # With all events kept one side is left to look at, and the last kept time moves in that direction only.
    for gates, above, below in ((inside, 1e-6, 1e-6), (torch.ones(2, L, dtype=torch.float64), 0.0, 1e-7)):
        slopes = keep_gradient(model, window, gates, conditioning=conditioning)
        for event in range(L):
            step = torch.zeros(2, L, dtype=torch.float64)
            step[:, event] = 1
            expected = (value(gates + above * step) - value(gates - below * step)) / (above + below)
            torch.testing.assert_close(slopes[:, event], expected, rtol=1e-4, atol=1e-6)


# rows


@pytest.fixture(scope="module")
def simulated():
    return delayed_hawkes().simulate(30.0, 12, np.random.default_rng(12))


@pytest.fixture(scope="module")
def windows(simulated):
    return make_windows(simulated.sequences, future=K, history=L).sample(60)


class Cheat:
    """Scores that are the causes of the windows, in their order."""

    def __init__(self, causes):
        self.causes, self.seen = torch.from_numpy(causes), 0

    def __call__(self, objective):
        self.seen += len(objective.window.times)
        return self.causes[self.seen - len(objective.window.times) : self.seen].float()


def test_a_row_for_the_oracle_for_random_scores_and_for_every_method(simulated, windows):
    process, causes = delayed_hawkes(), causes_of(windows, simulated.parents)
    has_cause, truth = causes.any(1), TrueLikelihood(process)
    cheat = RankedBy(score=Cheat(causes[has_cause]), num_evaluations=2)
    methods = [("recency", truth, get_solver("recency")), ("cheat", truth, cheat)]
    run = Run(batch_size=25, stamp={"data": "toy", "seed": 3})
    rows = list(evaluate_causes(methods, windows, simulated.parents, process, run))
    assert [row["solver"] for row in rows] == ["oracle", "random", "recency", "cheat"]
    assert 0 < has_cause.sum() < len(windows)
    for row in rows:
        assert row["num_windows"] == has_cause.sum() and row["without_causes"] == pytest.approx(1 - has_cause.mean())
        assert row["num_causes"] == pytest.approx(causes[has_cause].sum(1).mean())
        assert (row["data"], row["seed"], row["pair"]) == ("toy", 3, "4-7")
        assert len(row["recall"]) == L and row["recall"][-1] == 1.0 and row["recall"] == sorted(row["recall"])
        assert row["ap_low"] <= row["ap"] <= row["ap_high"]
        assert json.loads(json.dumps(row, allow_nan=False)) == row
    oracle, chance, recency, cheat = rows
    assert cheat["ap"] == cheat["r_precision"] == 1.0 and cheat["evaluations"] == 3.0
    assert oracle["ap"] > recency["ap"] and oracle["ap"] > chance["ap"]
    by_hand = cause_metrics(np.tile(np.arange(L), (has_cause.sum(), 1)), causes[has_cause])
    for key in ("ap", "r_precision"):
        assert recency[key] == pytest.approx(by_hand[key].mean())
    np.testing.assert_allclose(recency["recall"], by_hand["recall"].mean(0), atol=1e-5)
    groups = windows.sequence_index[has_cause]
    assert (recency["ap_low"], recency["ap_high"]) == mean_interval(by_hand["ap"], groups)
    best = cause_metrics(oracle_scores(process, windows)[has_cause], causes[has_cause])
    assert oracle["ap"] == pytest.approx(best["ap"].mean())


def test_marks_in_another_order_and_windows_without_causes_are_refused(simulated, windows):
    process = delayed_hawkes()
    parameters = process.base_rates, process.branching, process.scale, process.shape
    other = HawkesProcess(*parameters, tuple(process.labels[::-1]))
    with pytest.raises(ValueError, match="marks of the process, in its order \\(distractor 2, .*theirs are cause A"):
        next(evaluate_causes([], windows, simulated.parents, other, Run()))
    with pytest.raises(ValueError, match="a window with a cause; got none among 60"):
        next(evaluate_causes([], windows, np.full_like(simulated.parents, -1), process, Run()))
