"""Methods on the same windows: their names, what they find against plain loops, pairing, and the second look at it."""

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import helpers
from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation import answers as comparison
from ehd_hf.evaluation.answers import compare, dppl_of_empty, get_method, verify, where_explained
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.question import Question
from ehd_hf.models.window import Window
from helpers import slow_log_perplexity

L, K, SHARE, MARGIN = 7, 4, 0.6, 1e-5
ASKED = Question(share=SHARE, conditioning="survival")


class ByMark:
    """A distiller that prefers high marks, the first of equal ones: its order is known by hand."""

    num_evaluations = 5

    def __init__(self, id2label):
        self.config = SimpleNamespace(mtpp_config=SimpleNamespace(id2label=dict(id2label)))

    def history_scores(self, window):
        return window.marks[:, : window.num_history].to(window.times.dtype)


@pytest.fixture(scope="module")
def mtpp():
    torch.manual_seed(0)
    model = FullyNNModel(FullyNNConfig(num_marks=6, embedding_size=4, hidden_size=8, num_components=5))
    return helpers.wild(model, 0.4).float().eval()


@pytest.fixture(scope="module")
def windows():
    sequences = delayed_hawkes().simulate(25.0, 9, np.random.default_rng(0)).sequences
    return make_windows(sequences, future=K, history=L).sample(10)


# plain loops


class Slow:
    """dppl of a window by plain loops, in double; masks are sets of distilled positions."""

    def __init__(self, mtpp, windows, row, conditioning):
        self.model, self.how = copy.deepcopy(mtpp).double(), conditioning
        times, marks = windows.gather([row])
        self.window, self.marks = Window(times, marks, torch.ones_like(marks).bool(), K), marks[0]
        self.full, self.known = self.log_ppl(range(L)), {}
        self.empty = self.left(frozenset(range(L)))

    @torch.no_grad()
    def log_ppl(self, kept):
        keep = [event in kept for event in range(L)]
        return slow_log_perplexity(self.model, self.window, 0, keep, self.how).item()

    def left(self, chosen):
        if chosen not in self.known:
            self.known[chosen] = self.full - self.log_ppl(set(range(L)) - chosen)
        return self.known[chosen]

    def alone(self, chosen):
        return self.full - self.log_ppl(chosen)

    def limit(self, share=SHARE):
        return share * self.empty - MARGIN

    def smallest_prefix(self, order):
        sets = (frozenset(order[:size]) for size in range(L + 1))
        return next(chosen for chosen in sets if self.left(chosen) <= self.limit())

    def greedy(self):
        chosen = frozenset()
        while self.left(chosen) > self.limit():
            chosen = min((chosen | {event} for event in range(L) if event not in chosen), key=self.left)
        return chosen

    def drop(self, chosen):
        while True:
            best = min((chosen - {event} for event in sorted(chosen)), key=self.left)
            if self.left(best) > self.limit():
                return chosen
            chosen = best


@pytest.fixture(scope="module")
def slow(mtpp, windows):
    """Every window by conditioning; each knows the sets it was asked for."""
    rows = range(len(windows))
    return {how: [Slow(mtpp, windows, row, how) for row in rows] for how in ("paper", "survival")}


def slow_sizes(slow):
    """Sizes of five methods in the windows whose history explains something, and the share of the others."""
    sizes, nothing = [], 0
    for window in slow:
        if window.empty >= 0:
            nothing += 1
            continue
        alone = [window.left(frozenset({event})) for event in range(L)]
        marks = window.marks.tolist()
        greedy = window.greedy()
        found = {
            "greedy_search": greedy,
            "recency": window.smallest_prefix(list(range(L))[::-1]),
            "distiller": window.smallest_prefix(sorted(range(L), key=lambda event, marks=marks: -marks[event])),
            "leave_one_out": window.smallest_prefix(sorted(range(L), key=lambda event, alone=alone: alone[event])),
            "greedy_search+drop": window.drop(greedy),
        }
        sizes.append({name: len(chosen) for name, chosen in found.items()})
    return {name: [each[name] for each in sizes] for name in sizes[0]}, nothing / len(slow)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_sizes_and_paired_differences_equal_plain_loops(mtpp, windows, slow, conditioning):
    expected, nothing = slow_sizes(slow[conditioning])
    methods = ["recency", "distiller", "leave_one_out", "greedy_search+drop"]
    question, distiller = Question(share=SHARE, conditioning=conditioning), ByMark(windows.sequences.id2label)
    rows = list(compare(mtpp, windows, methods, question, distiller=distiller, batch_size=5, data="toy"))
    assert [row["solver"] for row in rows] == ["greedy_search", *methods]
    groups = windows.select(where_explained([mtpp], windows, conditioning, 50)).sequence_index
    for row in rows:
        sizes = np.array(expected[row["solver"]])
        assert row["sizes"] == sizes.tolist() and row["size"] == pytest.approx(sizes.mean())
        assert row["size_std"] == pytest.approx(sizes.std())
        difference = sizes - expected["greedy_search"]
        assert row["difference"] == pytest.approx(difference.mean())
        assert (row["difference_low"], row["difference_high"]) == mean_interval(difference, groups)
        assert (row["size_low"], row["size_high"]) == mean_interval(sizes, groups)
        assert row["reached"] == row["verified"] == 1.0
        assert (row["explains_nothing"], row["num_windows"]) == (pytest.approx(nothing), len(sizes))
        assert (row["target"], row["conditioning"], row["data"]) == (f"share {SHARE}", conditioning, "toy")
        assert row["num_sequences"] == len(np.unique(groups)) and row["threads"] == 1
        assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert rows[0]["time_ratio"] == 1.0 and rows[0]["difference"] == 0.0
    assert rows[1]["recency_overlap"] == 1.0 > rows[2]["recency_overlap"]
    assert rows[2]["evaluations"] > rows[1]["evaluations"] + 4  # its scores are not free


def test_some_windows_explain_nothing_and_are_left_out_for_every_method(mtpp, windows, slow):
    empty = np.array([window.empty for window in slow["survival"]])
    np.testing.assert_allclose(dppl_of_empty(mtpp, windows, "survival", 5), empty, atol=1e-5)
    assert 0 < (empty < 0).sum() < len(windows)
    assert where_explained([mtpp], windows, "survival", 5).tolist() == np.flatnonzero(empty < 0).tolist()
    (row,) = compare(mtpp, windows, [], ASKED)
    assert row["num_windows"] == len(row["sizes"]) == (empty < 0).sum()
    other = helpers.wild(copy.deepcopy(mtpp), 0.4, seed=1).float()
    one, two = (set(where_explained([model], windows, "survival", 5).tolist()) for model in (mtpp, other))
    assert one != two
    assert set(where_explained([mtpp, other], windows, "survival", 5).tolist()) == one & two
    assert list(compare(helpers.PoissonMTPP([1.0] * 6).float(), windows, [], ASKED)) == []


def test_a_method_that_does_not_reach_the_target_counts_as_the_whole_history(mtpp, windows):
    rows = list(compare(mtpp, windows, ["recency"], Question(epsilon=1e-6, conditioning="survival")))
    for row in rows:
        assert row["reached"] == 0.0 and row["verified"] is None and row["target"] == "epsilon 1e-06"
        assert row["size"] == L and set(row["sizes"]) == {L} and row["difference"] == 0.0


def test_a_target_for_the_distilled_events_makes_sets_larger_and_is_verified_too(mtpp, windows):
    questions = (Question(share=0.2, delta=delta, conditioning="survival") for delta in (None, 0.01))
    plain, strict = (next(compare(mtpp, windows, [], question)) for question in questions)
    assert strict["target"] == "share 0.2, delta 0.01" and strict["verified"] == 1.0
    assert strict["size"] > plain["size"] and strict["dppl_distilled"] > plain["dppl_distilled"]


def test_the_reference_may_be_any_method_and_is_always_run(mtpp, windows):
    rows = list(compare(mtpp, windows, ["greedy_search"], ASKED, reference="recency"))
    assert [row["solver"] for row in rows] == ["recency", "greedy_search"]
    sizes = [np.array(row["sizes"]) for row in rows]
    assert rows[0]["difference"] == 0.0
    assert rows[1]["difference"] == pytest.approx((sizes[1] - sizes[0]).mean()) != 0.0
    assert {row["reference"] for row in rows} == {"recency"}


# the second look


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("target", [{"share": 0.5}, {"epsilon": 0.9}, {"share": 0.3, "delta": 0.3}])
def test_verify_agrees_with_plain_loops_on_any_mask(mtpp, windows, slow, conditioning, target):
    masks = np.random.default_rng(0).random((len(windows), L)) < 0.6
    rows = np.arange(len(windows)) != 3
    holds = verify(mtpp, windows, masks, Question(**target, conditioning=conditioning), rows)
    expected = []
    for row in np.flatnonzero(rows):
        window, chosen = slow[conditioning][row], frozenset(np.flatnonzero(masks[row]).tolist())
        met = (
            window.left(chosen) <= target["share"] * window.empty
            if "share" in target
            else window.left(chosen) < math.log(target["epsilon"])
        )
        expected.append(met and window.alone(chosen) >= -target.get("delta", math.inf))
    assert holds.tolist() == expected
    assert 0 < sum(expected) < len(expected) or "delta" in target


def test_a_falsified_mask_does_not_verify(mtpp, windows, monkeypatch):
    solve = comparison.solver_answers

    def forge(*arguments, **options):
        """Takes out one event of every set that was found, and says nothing about it."""
        answers = solve(*arguments, **options)
        mask = answers.distill_mask.copy()
        mask[np.arange(len(mask)), mask.argmax(1)] = False
        return answers._replace(distill_mask=mask)

    (honest,) = compare(mtpp, windows, [], ASKED, reference="greedy_search+drop")
    monkeypatch.setattr(comparison, "solver_answers", forge)
    (forged,) = compare(mtpp, windows, [], ASKED, reference="greedy_search+drop")
    # Every event of a set from which nothing can be dropped is needed, but for the margin.
    assert honest["verified"] == 1.0 and forged["verified"] == 0.0 and forged["reached"] == 1.0


def test_the_time_of_a_method_is_that_of_its_search_not_of_the_second_look(mtpp, windows, monkeypatch):
    spent = iter([3.0, 7.0])
    solve = comparison.solver_answers
    monkeypatch.setattr(comparison, "solver_answers", lambda *a, **k: solve(*a, **k)._replace(seconds=next(spent)))
    rows = list(compare(mtpp, windows, ["recency"], ASKED))
    number = rows[0]["num_windows"]
    assert [row["seconds_per_window"] for row in rows] == [3.0 / number, 7.0 / number]
    assert rows[1]["time_ratio"] == pytest.approx(7 / 3)


# names of methods


def test_a_name_may_have_options_and_a_refinement():
    plain = get_method("integrated_gradient")
    chosen = get_method("integrated_gradient:per_round=2,num_points=5")
    assert (plain.per_round, plain.num_points) == (None, 3) and (chosen.per_round, chosen.num_points) == (2, 5)
    for refinement, swaps in (("drop", 0), ("prune", 1), ("swap", 4)):
        refined = get_method(f"shapley:num_permutations=3+{refinement}")
        assert (refined.name, refined.max_swaps) == ("refine", swaps) and refined.start.num_permutations == 3
    assert get_method("refine:start=greedy_search,max_swaps=2").start == "greedy_search"
    assert get_method("distiller", ByMark({0: "a"})).num_evaluations == 5
    assert get_method("distiller+drop", ByMark({0: "a"})).start.num_evaluations == 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("weather", "solver must be one of .*greedy_search.*; got 'weather'"),
        ("recency+shrink", "After \\+ stands one of drop, prune, swap; got 'shrink'"),
        ("recency+drop+swap", "got 'drop\\+swap'"),
        ("recency:", "options read name:option=value"),
        ("shapley:num_permutations=", "options read name:option=value"),
        ("shapley:permutations=3", "knows the options num_permutations; got unknown permutations"),
        ("shapley:num_permutations=0", "at least 1; got 0"),
        ("shapley:num_permutations=many", "num_permutations of shapley must be a whole number; got 'many'"),
        ("integrated_gradient:per_round=2.5", "per_round of integrated_gradient must be a whole number; got '2.5'"),
        ("distiller", "stands for a trained distiller"),
    ],
)
def test_a_name_that_is_none_says_what_is_expected(spec, message):
    with pytest.raises(ValueError, match=message):
        get_method(spec)


def test_a_distiller_has_no_options_and_other_marks_are_refused(mtpp, windows):
    with pytest.raises(ValueError, match="has no options; got 'distiller:k=1'"):
        get_method("distiller:k=1", ByMark({0: "a"}))
    with pytest.raises(ValueError, match="must have the distiller's marks, 1 "):
        next(compare(mtpp, windows, [], ASKED, distiller=ByMark({0: "a"})))
