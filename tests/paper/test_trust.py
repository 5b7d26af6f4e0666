"""Overlaps by hand and against chance, shuffled weights, seeds, and curves against plain loops."""

import copy
import json

import numpy as np
import pytest
import torch
from scipy import stats

import helpers
from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation.answers import dppl_of_empty, solver_answers, where_explained
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.question import Question
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import get_solver, rule_for
from tasks import Run
from tasks.trust import (
    Explained,
    chance_overlaps,
    evaluate_curves,
    evaluate_trust,
    overlap_of_all,
    overlaps,
    shuffle_weights,
    with_mtpp,
)

L, K = 7, 4


@pytest.fixture(scope="module")
def windows():
    sequences = delayed_hawkes().simulate(25.0, 9, np.random.default_rng(0)).sequences
    return make_windows(sequences, future=K, history=L).sample(14)


def point_process(windows, seed):
    return helpers.tiny_fullynn(seed=seed, scale=0.4, id2label=dict(windows.sequences.id2label)).float().eval()


def ranking(mtpp, seed):
    torch.manual_seed(seed)
    model = RankingDistillerModel.from_mtpp(mtpp, history=L, future=K, **helpers.TINY).eval()
    with torch.no_grad():
        for head in (model.score_head, model.second_head):
            head.weight.normal_()
    return model


@pytest.fixture(scope="module")
def mtpp(windows):
    return point_process(windows, 0)


# overlap of two sets


def test_overlaps_by_hand():
    one = np.array([[True, True, False, False], [True, False, False, False], [False] * 4, [False] * 4])
    other = np.array([[False, True, True, False], [True, False, False, False], [False] * 4, [True] * 4])
    np.testing.assert_allclose(overlaps(one, other), [1 / 3, 1, 1, 0])
    np.testing.assert_allclose(overlaps(other, one), overlaps(one, other))


def test_chance_is_the_hypergeometric_expectation():
    sizes = ((3, 5), (7, 2), (0, 4), (9, 9))
    one, other = (np.repeat([np.arange(9) < pair[side] for pair in sizes], 300, axis=0) for side in (0, 1))
    found = chance_overlaps(one, other, np.random.default_rng(0)).reshape(4, 300).mean(1)
    expected = []
    for a, b in sizes:
        shared = np.arange(10)
        union = np.maximum(a + b - shared, 1)
        expected.append((stats.hypergeom.pmf(shared, 9, a, b) * shared / union).sum())
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert one.sum() == 300 * (3 + 7 + 9)  # the sets given are left alone


def test_the_overlap_of_several_models_is_the_mean_over_pairs(windows):
    generator = np.random.default_rng(1)
    masks = [generator.random((len(windows), L)) < 0.5 for _ in range(3)]
    row = overlap_of_all(masks, windows, 0)
    pairs = np.mean([overlaps(masks[i], masks[j]) for i, j in ((0, 1), (0, 2), (1, 2))], axis=0)
    assert row["overlap"] == pytest.approx(pairs.mean()) and row["overlap_std"] == pytest.approx(pairs.std())
    assert (row["overlap_low"], row["overlap_high"]) == mean_interval(pairs, windows.sequence_index)
    assert row["num_models"] == 3 and row["size"] == pytest.approx(np.mean([mask.sum(1).mean() for mask in masks]))
    assert abs(row["chance"] - row["overlap"]) < 0.1  # these sets are random themselves
    masks[1][:7], masks[2][5:9] = False, False
    assert overlap_of_all(masks, windows, 0)["with_empty_set"] == pytest.approx(9 / 14)
    assert overlap_of_all([masks[0]] * 2, windows, 0)["overlap"] == 1.0


# a model that has unlearnt everything


def test_shuffled_weights_have_the_same_entries_elsewhere(mtpp):
    before = copy.deepcopy(mtpp.state_dict())
    spoilt = shuffle_weights(mtpp, 0)
    moved = 0
    for name, parameter in mtpp.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
        theirs = spoilt.get_parameter(name)
        torch.testing.assert_close(theirs.flatten().sort()[0], parameter.flatten().sort()[0], rtol=0, atol=0)
        moved += int((theirs != parameter).sum())
    assert moved > 100
    torch.testing.assert_close(dict(spoilt.named_buffers()), dict(mtpp.named_buffers()))
    again, other = shuffle_weights(mtpp, 0), shuffle_weights(mtpp, 1)
    name = "encoder.lstm.weight_ih_l0"
    assert torch.equal(again.get_parameter(name), spoilt.get_parameter(name))
    assert not torch.equal(other.get_parameter(name), spoilt.get_parameter(name))


def test_a_distiller_around_another_point_process_keeps_its_own_weights(mtpp):
    distiller, spoilt = ranking(mtpp, 0), shuffle_weights(mtpp, 0)
    changed = with_mtpp(distiller, spoilt)
    assert torch.equal(changed.score_head.weight, distiller.score_head.weight)
    name = "encoder.lstm.weight_ih_l0"
    assert torch.equal(changed.mtpp.get_parameter(name), spoilt.get_parameter(name))
    assert not torch.equal(distiller.mtpp.get_parameter(name), spoilt.get_parameter(name))


# rows


def run_trust(distillers, mtpps, windows, methods=("recency", "distiller"), **options):
    return list(evaluate_trust(distillers, mtpps, windows, methods, 0.6, Run(batch_size=9, **options)))


def test_overlaps_of_a_row_are_those_of_the_sets_found(mtpp, windows):
    other = point_process(windows, 1)
    rows = run_trust([ranking(mtpp, 0)], [other], windows, ["leave_one_out"])
    (row,) = (row for row in rows if "point" in row["check"])
    chosen = windows.select(where_explained([mtpp, other], windows, "survival", 50))
    question, solver = Question(share=0.6, conditioning="survival"), get_solver("leave_one_out")

    def rule(objective, rows):
        return rule_for(question, objective, 1e-5)

    answers = (solver_answers(solver, model, chosen, rule, conditioning="survival") for model in (mtpp, other))
    one, two = (answer.distill_mask for answer in answers)
    assert row["overlap"] == pytest.approx(overlaps(one, two).mean()) and row["overlap"] < 1
    assert row["size"] == pytest.approx((one.sum(1).mean() + two.sum(1).mean()) / 2)


def test_models_that_cannot_be_compared_are_refused(mtpp, windows):
    stranger, own = helpers.tiny_fullynn(), ranking(mtpp, 0)
    for distillers, mtpps, message in (
        ([own, ranking(point_process(windows, 1), 0)], [], "must explain the same point process"),
        ([own], [stranger], "must know the marks of the distiller's own"),
        ([own], [copy.deepcopy(mtpp)], "must be of other seeds than the distiller's own"),
        ([ranking(stranger, 0)], [], "must have the distiller's marks, 6"),
    ):
        with pytest.raises(ValueError, match=message):
            run_trust(distillers, mtpps, windows)


# curves


def test_curves_begin_and_end_where_they_must(mtpp, windows):
    distiller = ranking(mtpp, 0)
    methods = ("recency", "distiller", "greedy_search", "backward_elimination")
    curves = evaluate_curves(Explained(mtpp, distiller), methods, windows, Run(batch_size=10))
    rows = {row["solver"]: row for row in curves}
    for row in rows.values():
        for key, first, last in (("deletion", 0, -1), ("insertion", -1, 0)):
            assert len(row[key]) == L + 1 and (row[key][0], row[key][-1]) == pytest.approx((first, last), abs=1e-5)
            assert row[f"{key}_mean"] == pytest.approx(np.mean(row[key]), abs=1e-5)
        assert row["num_windows"] == (dppl_of_empty(mtpp, windows, "survival", 50) < 0).sum()
        assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert rows["greedy_search"]["deletion_mean"] < rows["recency"]["deletion_mean"]
    # One step of greedy search is the best there is; so is the last step of backward elimination.
    assert rows["greedy_search"]["deletion"][1] == min(row["deletion"][1] for row in rows.values())
    assert rows["backward_elimination"]["deletion"][-2] == min(row["deletion"][-2] for row in rows.values())


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_curves_of_recency_equal_plain_sums(mtpp, windows, conditioning):
    (row,) = evaluate_curves(Explained(mtpp), ["recency"], windows, Run(conditioning=conditioning))
    explained = np.flatnonzero(dppl_of_empty(mtpp, windows, conditioning, 50) < 0)
    times, marks = windows.gather(explained)
    window = copy.deepcopy(mtpp).double(), Window(times, marks, torch.ones(times.shape, dtype=torch.bool), K)

    @torch.no_grad()
    def total(keep):
        return float(dppl(*window, torch.tensor(keep, dtype=torch.float64), conditioning=conditioning).sum())

    worth = -total([0.0] * L)
    for size in range(L + 1):
        last = [0.0] * (L - size) + [1.0] * size
        assert row["insertion"][size] == pytest.approx(total(last) / worth, abs=2e-5)
        assert row["deletion"][size] == pytest.approx(total([1 - gate for gate in last]) / worth, abs=2e-5)
