"""Evaluation of point processes: against a slow loop and a closed form."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.data.sequences import events_digest
from ehd_hf.data.synthetic import HawkesProcess, delayed_hawkes
from ehd_hf.evaluation import scores as evaluation
from ehd_hf.evaluation.scores import (
    compare_with_trivial,
    evaluate_mtpp,
    ks_distance,
    score_events,
    summarize_scores,
    trivial_baselines,
)
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from helpers import PoissonMTPP, from_lists


def small_fullynn(num_marks=6):
    torch.manual_seed(0)
    return FullyNNModel(FullyNNConfig(num_marks=num_marks, embedding_size=4, hidden_size=8, num_components=5))


@pytest.fixture(scope="module")
def events():
    """19 sequences of different lengths, one event in the shortest."""
    sequences = delayed_hawkes().simulate(25.0, 17, np.random.default_rng(0)).sequences
    times, marks = [list(pieces) for pieces in zip(*sequences, strict=True)]
    return from_lists([*times, [3.0], [2.0, 2.0, 4.0]], [*marks, [1], [0, 5, 2]], num_marks=6)


def slow_scores(model, sequences):
    """One sequence at a time, in double, no padding."""
    model, pieces = model.double(), []
    for times, marks in sequences:
        inputs = torch.tensor(times - times[0])[None], torch.tensor(marks)[None]
        output = model.event_log_prob(*inputs, torch.ones(1, len(times), dtype=torch.bool))
        piece = torch.stack([output.time_log_prob, output.mark_log_prob, output.compensator])[:, 0].detach()
        piece[:, 0] = torch.nan
        pieces.append(piece)
    return torch.cat(pieces, dim=1).numpy()


@pytest.mark.parametrize("max_tokens", [1, 64, 10_000])
def test_scores_equal_a_slow_loop_whatever_the_batches(events, max_tokens):
    model = small_fullynn()
    scores = score_events(model, events, max_tokens=max_tokens)
    assert next(model.parameters()).dtype == torch.float32  # the caller's model is left as it is
    expected = slow_scores(model, events)
    for ours, slow in zip(scores[1:], expected, strict=True):
        np.testing.assert_allclose(ours, slow, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scores.log_prob, expected[0] + expected[1], rtol=1e-9)


def test_batches_hold_every_sequence_once_and_no_more_tokens_than_allowed():
    lengths = np.array([3, 50, 1, 7, 7, 20, 2, 130])
    batches = list(evaluation._length_buckets(lengths, 40))
    assert sorted(np.concatenate(batches).tolist()) == list(range(8))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= 40 for batch in batches)
    assert len(batches) < 8


def test_a_poisson_row_has_the_nll_known_by_hand():
    sequences = from_lists([[5.0, 6.0, 8.0, 9.0], [1.0, 5.0]], [[0, 1, 1, 0], [1, 0]])
    (row,) = evaluate_mtpp({"p": PoissonMTPP([0.5, 1.5])}, sequences, data="toy", seed=3)
    # Scored: intervals 1, 2, 1, 4 and marks 1, 1, 0, 0, at a total rate of 2.
    assert row["time_nll"] == pytest.approx(-np.log(2) + 2 * 8 / 4)
    assert row["mark_nll"] == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)
    assert row["nll"] == pytest.approx(row["time_nll"] + row["mark_nll"])
    assert (row["data"], row["seed"], row["model"], row["pair"], row["num_events"]) == ("toy", 3, "p", None, 4)
    assert {"task", "version", "seconds", "num_tied", "ks", "qq"} <= row.keys()
    assert json.loads(json.dumps(row)) == row


def test_baselines_are_scored_on_the_same_events(events):
    models = trivial_baselines(events)
    rows = list(evaluate_mtpp(models, events))
    assert [row["model"] for row in rows][:2] == ["Poisson + unigram", "Gamma + bigram"]
    (best,) = (row for row in rows if "chosen_from" in row)
    assert set(best["model"].split(" + ")) <= best["chosen_from"].keys() and len(best["chosen_from"]) == 8
    for row, model in zip(rows, models.values(), strict=True):
        assert row["nll"] == pytest.approx(-np.nanmean(score_events(model, events).log_prob))
        assert (row["num_events"], row["num_tied"]) == (events.num_events - len(events), 1)


def test_the_best_trivial_model_is_chosen_on_validation():
    generator, times = np.random.default_rng(0), [np.arange(99.0) ** 1.1] * 8
    own, mixed = np.repeat(np.arange(8)[:, None] % 4, 99, axis=1), generator.integers(4, size=(8, 99))
    train = from_lists([*times, *times], [*own, *mixed])
    for marks, name in ((own, "own recent marks"), (mixed, "unigram")):
        validation = from_lists(times, marks, num_marks=4)
        (best,) = (one for one in trivial_baselines(validation, train, validation).values() if one.chosen_from)
        assert best.name.endswith(f" + {name}")
        scores = best.log_prob(validation)
        nlls = [best.chosen_from[part] for part in best.name.split(" + ")]
        np.testing.assert_allclose(nlls, [-np.nanmean(scores.time_log_prob), -np.nanmean(scores.mark_log_prob)])


def test_marks_of_the_events_that_baselines_are_fitted_to_are_not_known_beforehand():
    marks = np.random.default_rng(0).integers(300, size=(4, 100))
    events = from_lists([np.arange(100.0)] * 4, marks, num_marks=300)
    (row,) = evaluate_mtpp(trivial_baselines(events), events)
    assert row["model"] == "Poisson + unigram" and row["mark_nll"] > 0.99 * np.log(300)
    assert trivial_baselines(from_lists([[1.0], [2.0]], [[0], [0]])) == {}


def trivial_row(model, time, mark, **keys):
    return {"model": model, "nll": time + mark, "time_nll": time, "mark_nll": mark, **keys}


@pytest.mark.parametrize(
    "nats, good, words",
    [
        (0.6, True, "1.49 times as well as by the best trivial model ({})"),
        (1.0, False, "better than by {}, but no better than by the best trivial model ({})"),
        (1.3, False, "better than by {}, but worse than by the best trivial model ({})"),
        (1.99, False, "no better than by {}"),
        (math.nan, False, "no better than by {}"),
    ],
)
def test_a_process_is_compared_with_the_best_trivial_model_times_and_marks_apart(nats, good, words):
    rows = [trivial_row("Poisson + unigram", 2.0, 2.0), trivial_row("Gamma + bigram", 0.1, 0.1)]
    rows.append(trivial_row("AR(1) + own recent marks", 1.0, 1.0, chosen_from={"Poisson": 1.0}))
    standing = compare_with_trivial(trivial_row("m", nats, nats), rows)
    names = ("a constant rate", "AR(1)"), ("their frequency", "own recent marks")
    times, marks = (words.format(*(pair if "better" in words else pair[1:])) for pair in names)
    assert (standing.good, standing.words) == (good, f"Times are predicted {times}; marks {marks}.")
    assert standing.best is rows[2] and compare_with_trivial(rows[0], rows[:2]).best is rows[1]
    assert compare_with_trivial({"nll": nats, "time_nll": None}, rows).words == ""


def test_marks_of_one_kind_need_no_comparison():
    standing = compare_with_trivial(trivial_row("m", 1.0, 0.0), [trivial_row("Poisson + unigram", 2.0, 0.0)])
    assert standing.words == "Times are predicted 2.72 times as well as by the best trivial model (Poisson)."
    assert compare_with_trivial(trivial_row("m", 1.0, 0.0), []) is None


def test_ks_distance_agrees_with_scipy_and_sees_a_wrong_rate():
    process = HawkesProcess([0.5, 1.0], np.zeros((2, 2)))  # no children: a Poisson process
    sequences = process.simulate(60.0, 30, np.random.default_rng(0)).sequences
    right, wrong = (score_events(PoissonMTPP(rates), sequences) for rates in ([0.5, 1.0], [1.0, 2.0]))
    rescaled = right.compensator[~np.isnan(right.compensator)]
    assert ks_distance(rescaled) == pytest.approx(stats.kstest(rescaled, "expon").statistic)
    good, bad = summarize_scores(right), summarize_scores(wrong)
    assert good["ks"] < 0.04 and bad["ks"] > 0.15
    assert len(good["qq"]) == 99 and good["qq"][49] == pytest.approx(np.log(2), abs=0.05)
    assert bad["qq"][49] == pytest.approx(2 * good["qq"][49], rel=1e-5)


def test_short_intervals_far_from_the_origin_are_not_lost():
    times = np.array([0.0, 500_000.0, 500_000.001, 500_000.003])
    sequences = from_lists([times], [[0, 0, 0, 0]])
    np.testing.assert_allclose(score_events(PoissonMTPP([1.0]), sequences).compensator[1:], np.diff(times), rtol=1e-12)


def test_bad_input_is_refused_before_anything_is_scored(events):
    with pytest.raises(ValueError, match="model m knows 3 marks; the events have 6"):
        next(evaluate_mtpp({"m": small_fullynn(3)}, events))
    with pytest.raises(ValueError, match="two events or more"):
        list(evaluate_mtpp({"m": small_fullynn(1)}, from_lists([[1.0]], [[0]])))
    with pytest.raises(ValueError, match="m must be a point process; got a Linear"):
        next(evaluate_mtpp({"m": torch.nn.Linear(1, 1)}, events))


def test_the_digest_of_events_sees_every_time_mark_and_boundary(events):
    split = from_lists([[1.0, 2.0], [3.0]], [[0, 1], [1]])
    other = [
        from_lists([[1.0, 2.5], [3.0]], [[0, 1], [1]]),
        from_lists([[1.0, 2.0], [3.0]], [[0, 0], [1]]),
        from_lists([[1.0], [2.0, 3.0]], [[0], [1, 1]]),
    ]
    assert len({events_digest(sequences) for sequences in (split, *other)}) == 4
    assert events_digest(split) == events_digest(split.select([0, 1]))
