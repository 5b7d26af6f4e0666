import functools
import itertools
import math

import pytest
import torch

from ehd_hf import solvers
from ehd_hf.models.perplexity import dppl, keep_gradient
from ehd_hf.models.question import Question
from ehd_hf.models.window import Window, places_of
from ehd_hf.solvers.base import (
    _SOLVERS,
    AtSize,
    Objective,
    Reaches,
    Solver,
    available_solvers,
    get_solver,
    rule_for,
)
from ehd_hf.solvers.prefix import FALLBACKS, RankedBy, RankingSolver, first_prefix, prefix_curve
from helpers import AdditiveMTPP, random_window, tiny_fullynn

assert solvers  # importing it registers every solver
B, L, K, C = 3, 7, 4, 6
NAMES = available_solvers()
CONDITIONINGS = ("paper", "survival")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fullynn(seed=0):
    return tiny_fullynn(C, seed, 0.7, num_components=3, num_layers=2)


def asks(objective, margin=0.0, **question):
    return rule_for(Question(**question), objective, margin)


def random_windows(seed=0, num_windows=B, num_history=L, padded=False, tied=False):
    """Windows (B, L + K); with `padded`, row b lacks b events of its history, anywhere, and one the future's last.

    Without `tied`, no two events are at once: of twins either can go, and rounding would decide which.
    """
    times, marks, mask, *_ = random_window(num_windows, num_history, K, C, seed)
    times = times if tied else times + 0.05 * torch.arange(times.shape[1])
    if padded:
        for row in range(num_windows):
            mask[row, torch.randperm(num_history, generator=seeded(row))[:row]] = False
        mask[1, -1] = False
        times = torch.where(mask, times, 50 * torch.rand(times.shape, generator=seeded(seed), dtype=times.dtype))
    return Window(times, marks, mask, K)


def objective_of(seed=0, conditioning="survival", **options):
    return Objective(fullynn(seed), random_windows(seed, **options), conditioning=conditioning)


def dppl_of(objective, keep_mask):
    """dppl (B,) of masks (B, L) by the gate, all in one call: what `Objective` must agree with."""
    with torch.no_grad():
        keep = keep_mask.to(objective.window.times.dtype)
        return dppl(objective.mtpp, objective.window, keep, conditioning=objective.conditioning)


def feasible_targets(objective, seed=0):
    """Targets that a random half of each history reaches."""
    mask = (torch.rand(objective.history.shape, generator=seeded(seed)) < 0.5) & objective.history
    return Reaches(dppl_of(objective, ~mask), dppl_of(objective, mask))


def stop_rules(objective):
    sizes = objective.history.sum(1) // 2
    return [AtSize(sizes), feasible_targets(objective), asks(objective, epsilon=0.9), asks(objective, share=0.7)]


def subsets_of(events):
    for size in range(len(events) + 1):
        yield from itertools.combinations(events, size)


def as_mask(events, num_history=L):
    return torch.tensor([i in events for i in range(num_history)])


# --- the objective


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_objective_gives_the_dppl_of_any_mask(conditioning):
    windows = random_windows(padded=True, tied=True)
    objective = Objective(fullynn(), windows, conditioning=conditioning)
    masks = torch.rand(5, B, L, generator=seeded(1)) < torch.rand(5, B, 1, generator=seeded(2))
    expected = torch.stack([dppl_of(objective, keep) for keep in masks])
    torch.testing.assert_close(objective.dppl_keep(masks), expected)
    torch.testing.assert_close(objective.dppl_distilled(masks), expected)
    torch.testing.assert_close(objective.dppl_left(~masks), expected)
    flat = torch.tensor([2, 0, 0, 1])
    torch.testing.assert_close(objective.dppl_keep(masks[1, flat], flat), expected[1, flat])
    torch.testing.assert_close(objective.dppl_keep(masks[:, flat], flat), expected[:, flat])


def test_objective_counts_each_window_and_never_the_whole_history_again():
    objective = objective_of()
    assert objective.num_evaluations.tolist() == [1, 1, 1]
    assert objective.dppl_keep(torch.ones(2, L, dtype=torch.bool), torch.tensor([0, 2])).tolist() == [0, 0]
    assert objective.num_evaluations.tolist() == [1, 1, 1]
    objective.dppl_keep(torch.zeros(4, L, dtype=torch.bool), torch.tensor([0, 2, 2, 2]))
    assert objective.num_evaluations.tolist() == [2, 1, 4]
    objective.dppl_left(torch.ones(0, L, dtype=torch.bool), torch.zeros(0, dtype=torch.long))
    assert objective.num_evaluations.tolist() == [2, 1, 4]


def test_objective_refuses_what_it_cannot_evaluate():
    window = random_windows()
    with pytest.raises(ValueError, match="from 1 to 11, all events; got 12"):
        Objective(fullynn(), window._replace(num_future=12))
    window.mask[1, L:] = False
    with pytest.raises(ValueError, match="window 1 has none"):
        Objective(fullynn(), window)


# --- stop rules and the registry


def test_stop_rules_are_checked_at_the_door():
    objective = objective_of(padded=True)
    with pytest.raises(ValueError, match=r"0\.\.5, the history's length, for window 2; got 6"):
        get_solver("recency").solve(objective, AtSize(6))
    with pytest.raises(ValueError, match="got -1"):
        get_solver("recency").solve(objective, AtSize(torch.tensor([0, -1, 0])))
    with pytest.raises(ValueError, match="AtSize or Reaches .*; got 5"):
        get_solver("recency").solve(objective, 5)
    for margin in (-1e-5, float("nan")):
        with pytest.raises(ValueError, match=f"margin must be at least 0; got {margin}. 0 asks"):
            asks(objective, margin, epsilon=0.5)


def test_unknown_solvers_and_options_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="backward_elimination, exact_search, .*; got 'gready'"):
        get_solver("gready")
    with pytest.raises(ValueError, match="knows the options num_draws; got unknown draws"):
        get_solver("random_distillation", draws=3)
    with pytest.raises(ValueError, match=r"\(none\); got unknown k"):
        get_solver("recency", k=3)
    for name, option in (("random_distillation", "num_draws"), ("shapley", "num_permutations")):
        with pytest.raises(ValueError, match=f"{option} must be at least 1; got 0"):
            get_solver(name, **{option: 0})


def test_a_solver_is_one_class_and_its_name_is_taken_once():
    try:

        class First(RankingSolver):
            name = "first"

            def rank(self, objective, generator):
                return -torch.arange(float(objective.history.shape[1])).expand(objective.history.shape)

        assert "first" in available_solvers()
        found = get_solver("first").solve(objective_of(), AtSize(2)).distill_mask
        assert torch.equal(found, as_mask({0, 1}).expand(B, -1))
        with pytest.raises(ValueError, match="'first' is taken"):
            type("Second", (Solver,), {"name": "first"})
    finally:
        _SOLVERS.pop("first", None)
    assert {"random_distillation", "greedy_search", "recency", "exact_search", "refine"} <= set(available_solvers())


# --- the contract, over everything registered


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_what_the_contract_says(name, conditioning, padded):
    objective = objective_of(conditioning=conditioning, padded=padded)
    numbers = objective.history.sum(1)
    for stop in [*stop_rules(objective), AtSize(torch.zeros_like(numbers)), AtSize(numbers)]:
        result = get_solver(name).solve(objective, stop, generator=seeded())
        assert (result.dppl_left[result.sizes == 0] == 0).all()
        assert (result.dppl_distilled[result.sizes == numbers] == 0).all()
        assert result.distill_mask.shape == (B, L) and result.distill_mask.dtype == torch.bool
        assert result.dppl_left.shape == result.dppl_distilled.shape == (B,)
        assert result.num_evaluations.shape == (B,) and result.num_evaluations.dtype == torch.long
        assert result.reached.shape == (B,) and result.reached.dtype == torch.bool
        assert not (result.distill_mask & ~objective.history).any()
        assert torch.equal(result.sizes, result.distill_mask.sum(1))
        assert torch.equal(result.distill_mask[~result.reached], objective.history[~result.reached])
        if isinstance(stop, AtSize):
            assert result.reached.all() and torch.equal(result.sizes, stop.size)
        if isinstance(stop, Reaches):
            assert (result.dppl_left[result.reached] <= stop.dppl_left[result.reached] + 1e-6).all()
            if stop.dppl_distilled is not None:
                assert (result.dppl_distilled[result.reached] >= stop.dppl_distilled[result.reached] - 1e-6).all()
            else:
                assert torch.equal(result.reached, result.dppl_left <= stop.dppl_left + stop.tolerance)
        if name != "random_distillation":  # which reports means over draws
            torch.testing.assert_close(result.dppl_left, dppl_of(objective, ~result.distill_mask))
            torch.testing.assert_close(result.dppl_distilled, dppl_of(objective, result.distill_mask))


@pytest.mark.parametrize("name", NAMES)
def test_a_result_repeats_changes_no_argument_and_counts_its_evaluations(name):
    window = random_windows(padded=True)
    model, counts = fullynn(), torch.zeros(B, dtype=torch.long)
    before = [x.clone() for x in (*window[:3], *model.parameters())]
    genuine = model.event_log_prob

    def counting(times, *args, **options):
        counts.add_((times[:, -2:-1] == window.times[:, -2]).sum(0))  # the future's times tell the windows apart
        return genuine(times, *args, **options)

    model.event_log_prob = counting
    rules = stop_rules(Objective(model, window, conditioning="survival"))
    for stop in rules:
        results = []
        for _ in range(2):
            counts.zero_()
            objective = Objective(model, window, conditioning="survival")
            results.append(get_solver(name).solve(objective, stop, generator=seeded(3)))
            assert torch.equal(results[-1].num_evaluations, counts) and torch.equal(objective.num_evaluations, counts)
        for field in ("distill_mask", "dppl_left", "dppl_distilled", "reached"):
            assert torch.equal(*(getattr(result, field) for result in results))
    assert all(torch.equal(x, y) for x, y in zip(before, (*window[:3], *model.parameters()), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_target_out_of_reach_is_reported_with_the_whole_history(name):
    objective = objective_of(padded=True)
    for stop in (Reaches(-1e9, -1e9), Reaches(1e9, 1e9), asks(objective, epsilon=1e-300)):
        result = get_solver(name).solve(objective, stop, generator=seeded())
        assert not result.reached.any() and torch.equal(result.distill_mask, objective.history)
        torch.testing.assert_close(result.dppl_left, dppl_of(objective, torch.zeros(B, L)))
    some = get_solver(name).solve(objective, Reaches(torch.tensor([1e9, -1e9, 1e9]), -1e9), generator=seeded())
    assert some.reached.tolist() == [True, False, True] and some.sizes.tolist() == [0, L - 1, 0]


@pytest.mark.parametrize("num_history", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_history_of_one_event_and_of_none(name, num_history):
    objective = objective_of(num_history=num_history)
    full = get_solver(name).solve(objective, AtSize(num_history), generator=seeded())
    assert torch.equal(full.distill_mask, objective.history)
    share = get_solver(name).solve(objective, asks(objective, share=1.0), generator=seeded())
    empty = dppl_of(objective, torch.zeros(B, num_history))
    assert share.reached.all() and torch.equal(share.sizes, (empty < -1e-6).long() * num_history)
    assert not get_solver(name).solve(objective, Reaches(-1e9, 0.0), generator=seeded()).reached.any()


# --- the listings of appendix B, literally: one window, one candidate at a time


def judge(objective, row):
    """dppl of the kept events (a set) of one window, one likelihood at a time."""
    window = objective.window.rows(torch.tensor([row]))

    def value(events):
        keep = as_mask(events, objective.history.shape[1])[None].double()
        with torch.no_grad():
            return dppl(objective.mtpp, window, keep, conditioning=objective.conditioning).item()

    return value


def listed_greedy(value, history, goes_on):
    distilled = set()
    dppl_r, dppl_l = value(distilled), value(history - distilled)
    while goes_on(len(distilled), dppl_r, dppl_l) and distilled != history:
        h_list, r_list, l_list = [], [], []
        for event in sorted(history):
            if event in distilled:
                continue
            candidate = distilled | {event}
            r_list.append(value(candidate))
            l_list.append(value(history - candidate))
            h_list.append(candidate)
        dppl_l = min(l_list)
        dppl_r = r_list[l_list.index(dppl_l)]
        distilled = h_list[l_list.index(dppl_l)]
    return distilled, dppl_r, dppl_l, not goes_on(len(distilled), dppl_r, dppl_l)


def listed_random(value, history, sample, targets):
    """`sample(size)` gives M random sets; `targets` (dppl_r, dppl_l)."""
    size, dppl_r, dppl_l = 0, value(set()), value(history)
    while (dppl_r < targets[0] - 1e-6 or dppl_l > targets[1] + 1e-6) and size < len(history):
        size += 1
        drawn = sample(size)
        dppl_r = sum(value(events) for events in drawn) / len(drawn)
        dppl_l = sum(value(history - events) for events in drawn) / len(drawn)
    return size, dppl_r, dppl_l


def history_of(objective, row):
    return set(objective.history[row].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_greedy_search_is_the_listing(conditioning, seed):
    objective = objective_of(seed, conditioning, padded=True)
    sizes, targets = torch.tensor([3, 0, 5]), feasible_targets(objective, seed)
    at_size = get_solver("greedy_search").solve(objective, AtSize(sizes))
    reaches = get_solver("greedy_search").solve(objective, targets)
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)
        wanted, target_l, target_r = sizes[row], targets.dppl_left[row], targets.dppl_distilled[row]
        ehed = listed_greedy(value, history, lambda size, r, left, wanted=wanted: size != wanted)
        emhd = listed_greedy(
            value, history, lambda size, r, left, t_r=target_r, t_l=target_l: r < t_r - 1e-6 or left > t_l + 1e-6
        )
        for result, (events, dppl_r, dppl_l, reached) in ((at_size, ehed), (reaches, emhd)):
            assert set(result.distill_mask[row].nonzero()[:, 0].tolist()) == events
            assert result.dppl_distilled[row].item() == pytest.approx(dppl_r, abs=1e-9)
            assert result.dppl_left[row].item() == pytest.approx(dppl_l, abs=1e-9)
            assert result.reached[row] == reached


@pytest.mark.parametrize("seed", range(3))
def test_random_distillation_is_the_listing(seed):
    objective = objective_of(seed, padded=True)
    sizes, num_draws = torch.tensor([3, 0, 5]), 4
    targets = feasible_targets(objective, seed)
    at_size = get_solver("random_distillation").solve(objective, AtSize(sizes), generator=seeded(9))
    reaches = get_solver("random_distillation").solve(objective, targets, generator=seeded(9))
    generator = seeded(9)
    draws = [torch.rand(num_draws, B, L, generator=generator) for _ in range(L + 1)]
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)

        def sample(size, draws_of_size, row=row, history=history):
            by_draw = [sorted(history, key=lambda i: -draws_of_size[m, row, i]) for m in range(num_draws)]
            return [set(order[:size]) for order in by_draw]

        drawn = sample(int(sizes[row]), draws[0])
        assert set(at_size.distill_mask[row].nonzero()[:, 0].tolist()) == drawn[0]
        mean_l = sum(value(history - events) for events in drawn) / num_draws
        mean_r = sum(value(events) for events in drawn) / num_draws
        assert at_size.dppl_left[row].item() == pytest.approx(mean_l, abs=1e-9)
        assert at_size.dppl_distilled[row].item() == pytest.approx(mean_r, abs=1e-9)
        size, dppl_r, dppl_l = listed_random(
            value, history, lambda k: sample(k, draws[k]), (targets.dppl_distilled[row], targets.dppl_left[row])
        )
        assert reaches.sizes[row] == size
        assert reaches.dppl_left[row].item() == pytest.approx(dppl_l, abs=1e-9)
        assert reaches.dppl_distilled[row].item() == pytest.approx(dppl_r, abs=1e-9)


def by_hand(influences):
    """One window of an additive process whose future event comes right at the split: log p = log(rate), so that
    dppl(kept) = log((1 + sum of the kept influences) / (1 + sum of all))."""
    kinds = sorted(set(influences))
    base = torch.full((len(kinds),), 0.25, dtype=torch.float64)
    model = AdditiveMTPP(base.tolist(), torch.tensor(kinds, dtype=torch.float64)[:, None] * base)
    marks = torch.tensor([[kinds.index(x) for x in influences] + [0]])
    times = torch.arange(1.0, len(influences) + 2, dtype=torch.float64)[None]
    times[:, -1] = len(influences)
    return Objective(model, Window(times, marks, torch.ones_like(marks).bool(), 1), conditioning="survival")


def test_greedy_search_worked_by_hand():
    # Influences 1 3 0 3, sum 7. Distilled: {} left 8/8, alone 1/8; {1} (3 ties, 1 stands first) 5/8, 4/8;
    # {1, 3} 2/8, 7/8; {0, 1, 3} 1/8, 8/8; then event 2 changes nothing.
    steps = [((), 8, 1), ((1,), 5, 4), ((1, 3), 2, 7), ((0, 1, 3), 1, 8), ((0, 1, 2, 3), 1, 8)]
    for size, (events, left, alone) in enumerate(steps):
        result = get_solver("greedy_search").solve(by_hand([1, 3, 0, 3]), AtSize(size))
        assert torch.equal(result.distill_mask[0], as_mask(events, 4))
        assert result.dppl_left.item() == pytest.approx(math.log(left / 8), abs=1e-12)
        assert result.dppl_distilled.item() == pytest.approx(math.log(alone / 8), abs=1e-12)


# --- the other searches


def test_exact_search_finds_what_trying_every_subset_finds():
    objective = objective_of(padded=True)
    targets = feasible_targets(objective)
    at_size = get_solver("exact_search").solve(objective, AtSize(3))
    reaches = get_solver("exact_search").solve(objective, targets)
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)
        sets = [(len(events), value(history - set(events)), value(set(events))) for events in subsets_of(history)]
        assert at_size.dppl_left[row].item() == pytest.approx(min(left for size, left, _ in sets if size == 3))
        met = [
            (size, left)
            for size, left, alone in sets
            if left <= targets.dppl_left[row] + 1e-6 and alone >= targets.dppl_distilled[row] - 1e-6
        ]
        assert (reaches.sizes[row].item(), reaches.dppl_left[row].item()) == pytest.approx(min(met))


def test_exact_search_does_not_depend_on_its_chunks(monkeypatch):
    objective = objective_of(padded=True)
    rules = stop_rules(objective)
    whole = [get_solver("exact_search").solve(objective, stop) for stop in rules]
    monkeypatch.setattr("ehd_hf.solvers.exact_search._MAX_CANDIDATES", 5)
    for stop, expected in zip(rules, whole, strict=True):
        assert torch.equal(get_solver("exact_search").solve(objective, stop).distill_mask, expected.distill_mask)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("start", [name for name in NAMES if name not in ("random_distillation", "refine")])
def test_refined_is_never_worse_than_unrefined_and_every_event_is_needed(start, seed):
    objective = objective_of(seed, padded=True)
    for stop in stop_rules(objective):
        plain = get_solver(start).solve(objective, stop, generator=seeded())
        for max_swaps in (0, 3):
            refined = get_solver("refine", start=start, max_swaps=max_swaps).solve(objective, stop, generator=seeded())
            assert (refined.reached | ~plain.reached).all()
            if isinstance(stop, AtSize):
                assert (refined.dppl_left <= plain.dppl_left + 1e-9).all()
                continue
            assert (refined.sizes <= plain.sizes).all()
            rule = stop.bind(objective)
            for row in refined.reached.nonzero()[:, 0].tolist():
                for event in refined.distill_mask[row].nonzero()[:, 0].tolist():
                    fewer = refined.distill_mask[row : row + 1].clone()
                    fewer[0, event] = False
                    assert not rule.met(objective, fewer, torch.tensor([row])).any()


def test_refine_starts_from_a_solver_a_name_or_a_mask():
    objective = objective_of(padded=True)
    mask = get_solver("recency").solve(objective, AtSize(3)).distill_mask
    by_mask, by_name, by_solver = (
        get_solver("refine", start=start).solve(objective, AtSize(3))
        for start in (mask, "recency", get_solver("recency"))
    )
    assert torch.equal(by_mask.distill_mask, by_name.distill_mask)
    assert torch.equal(by_mask.distill_mask, by_solver.distill_mask)
    assert (by_mask.dppl_left < dppl_of(objective, ~mask) - 1e-6).any()
    # Nothing distilled does not meet a share: the whole history takes its place, as in backward elimination.
    rule = asks(objective, share=0.7)
    nothing = get_solver("refine", start=torch.zeros_like(mask), max_swaps=0).solve(objective, rule)
    backward = get_solver("backward_elimination").solve(objective, rule)
    assert torch.equal(nothing.distill_mask, backward.distill_mask)
    with pytest.raises(ValueError, match="as many events as AtSize"):
        get_solver("refine", start=mask).solve(objective, AtSize(2))
    with pytest.raises(ValueError, match=r"\(3, 7\); got \(3, 6\)"):
        get_solver("refine", start=mask[:, 1:]).solve(objective, AtSize(2))


def test_recency_leave_one_out_and_backward_elimination_are_plain_loops():
    objective = objective_of(padded=True)
    names = ("recency", "leave_one_out", "backward_elimination")
    recency, one_out, backward = (get_solver(name).solve(objective, AtSize(3)).distill_mask for name in names)
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)
        assert torch.equal(recency[row], as_mask(sorted(history)[-3:]))
        missed = sorted(history, key=lambda event, h=history, v=value: v(h - {event}))
        assert torch.equal(one_out[row], as_mask(missed[:3]))
        distilled = set(history)
        while len(distilled) > 3:
            returned = min(sorted(distilled), key=lambda event, d=distilled, h=history, v=value: v(h - d | {event}))
            distilled = distilled - {returned}
        assert torch.equal(backward[row], as_mask(distilled))


def test_shapley_values_add_up_and_approach_the_exact_ones():
    objective = objective_of(padded=True, num_history=5)
    estimate = get_solver("shapley", num_permutations=300).rank(objective, seeded())
    estimate = estimate.masked_fill(~objective.history, 0.0)
    torch.testing.assert_close(estimate.sum(1), -dppl_of(objective, torch.zeros(B, 5)))
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)
        worth = {frozenset(events): -value(history - set(events)) for events in subsets_of(sorted(history))}
        for event in history:
            gains = []
            for order in itertools.permutations(history):
                before = frozenset(order[: order.index(event)])
                gains.append(worth[before | {event}] - worth[before])
            gains = torch.tensor(gains)
            assert abs(estimate[row, event] - gains.mean()) < 4.5 * gains.std() / math.sqrt(300) + 1e-9


def test_evaluations_are_those_of_the_complexity_table():
    objective, num_draws, size = objective_of(), 4, 3
    out_of_reach = Reaches(-1e9, 0.0)

    def evaluations(name, stop, **options):
        counts = get_solver(name, **options).solve(objective, stop, generator=seeded()).num_evaluations
        assert (counts == counts[0]).all()
        return counts[0].item()

    # Each count has 1 for the full history; an answer that is not yet evaluated costs dppl_left and dppl_distilled.
    assert evaluations("recency", AtSize(size)) == 1 + 2
    assert evaluations("leave_one_out", AtSize(size)) == 1 + L + 2
    assert evaluations("shapley", AtSize(size), num_permutations=5) == 1 + 5 * (L - 1) + 1 + 2
    # RD, O(M) and O(M L): M pairs per size; distilling all needs no second value, and size 0 no draws.
    assert evaluations("random_distillation", AtSize(size)) == 1 + 2 * num_draws
    assert evaluations("random_distillation", out_of_reach) == 2 + 2 * num_draws * (L - 1) + num_draws + 1
    # GS, O(P L) and O(L^2).
    assert evaluations("greedy_search", AtSize(size)) == 1 + L + (L - 1) + (L - 2) + 1
    assert evaluations("greedy_search", out_of_reach) == 1 + L * (L + 1) // 2 + 1
    assert evaluations("backward_elimination", AtSize(L - 2)) == 1 + 1 + L + (L - 1) + 2
    assert evaluations("exact_search", AtSize(size)) == 1 + math.comb(L, size) + 1
    assert evaluations("exact_search", out_of_reach) == 2**L + 1
    # A gradient counts as one evaluation, at each point of each round; the last event left needs no round.
    for per_round, num_rounds in ((8, 1), (7, 1), (4, 2), (3, 2), (2, 3), (1, 6)):
        for num_points in (1, 3):
            options = {"num_points": num_points, "per_round": per_round}
            assert evaluations("integrated_gradient", AtSize(size), **options) == 1 + num_points * num_rounds + 2


# --- the integrated gradient


def faded_credits(objective, row, left, num_points):
    """What each event is credited with while the gates of the set `left` of one window fade from 1 to 0 together."""
    window = objective.window.rows(torch.tensor([row]))
    present = as_mask(left, objective.history.shape[1]).double()
    gates = torch.stack([(i + 0.5) / num_points * present for i in range(num_points)])[:, None]
    slopes = keep_gradient(objective.mtpp, window, gates, conditioning=objective.conditioning)
    return (sum(slopes) / num_points)[0].tolist()


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize(("num_points", "per_round"), [(3, 2), (1, 1), (4, 3), (8, L)])
def test_integrated_gradient_is_a_plain_loop_of_rounds(conditioning, num_points, per_round):
    objective = objective_of(1, conditioning, padded=True)
    solver = get_solver("integrated_gradient", num_points=num_points, per_round=per_round)
    ranks = places_of(solver.rank(objective, None), objective.history)
    for row in range(B):
        left, order = history_of(objective, row), []
        while left:
            credits = faded_credits(objective, row, left, num_points)
            order += sorted(left, key=lambda event, c=credits: -c[event])[:per_round]
            left -= set(order)
        assert ranks[row, order].tolist() == list(range(len(order)))


@pytest.mark.parametrize(("length", "size"), [(6, 8), (40, 8), (41, 9), (63, 13)])
def test_a_default_round_is_a_fifth_of_the_history_and_at_least_eight(length, size):
    window = random_windows(num_windows=2, num_history=64)
    window.mask[0, length:64] = False
    objective = Objective(fullynn(1), window)
    first, longer = get_solver("integrated_gradient").rank(objective, None)
    fixed = (get_solver("integrated_gradient", per_round=n).rank(objective, None) for n in (size, 13))
    assert torch.equal(torch.stack([first, longer]), torch.stack([rank[row] for row, rank in enumerate(fixed)]))


# --- what is asked of the distilled events alone, and by how much


def test_delta_asks_that_the_distilled_events_predict_alone():
    # Influences 1 3 0 3. Distilled {1}: left 5/8, alone 4/8; {1, 3}: 2/8, 7/8; {0, 1, 3}: 1/8, 8/8.
    for name in ("greedy_search", "backward_elimination", "exact_search", "leave_one_out"):
        for delta, size in ((10.0, 1), (math.log(2), 1), (math.log(8 / 7), 2), (math.log(8 / 7.1), 3), (0.0, 3)):
            delta += 1e-12  # with an epsilon there is no tolerance for rounding
            for target in ({"epsilon": 0.7}, {"share": 1e-3}):
                objective = by_hand([1, 3, 0, 3])
                result = get_solver(name).solve(objective, asks(objective, delta=delta, **target))
                assert (result.sizes.item(), result.reached.item()) == (size, True)
                assert result.dppl_distilled.item() >= -delta - 1e-9
    result = get_solver("greedy_search").solve(objective, asks(objective, epsilon=0.1, delta=10.0))
    assert not result.reached.item() and result.sizes.item() == 4


def test_a_margin_is_by_how_much_the_targets_are_met():
    two_eighths, seven_eighths = math.log(2 / 8), -math.log(7 / 8) + 1e-12
    for question, size in (
        (dict(share=2 / 3), 2),  # exactly met by two events: two thirds of log(1/8) is log(2/8)
        (dict(share=2 / 3, margin=1e-5), 3),
        (dict(epsilon=2 / 8 + 1e-9), 2),
        (dict(epsilon=2 / 8 + 1e-9, margin=1e-5), 3),
        (dict(epsilon=0.5, delta=seven_eighths), 2),
        (dict(epsilon=0.5, delta=seven_eighths, margin=1e-5), 3),
        (dict(share=1.0, margin=1e-5), None),  # not even the whole history
        (dict(share=0.5, delta=0.0, margin=1e-5), None),
    ):
        objective = by_hand([1, 3, 0, 3])
        result = get_solver("greedy_search").solve(objective, asks(objective, **question))
        assert (result.sizes.item(), result.reached.item()) == (4 if size is None else size, size is not None)
    rule = asks(objective, epsilon=0.25, delta=0.5, margin=0.125)
    assert rule.dppl_left.item() == pytest.approx(two_eighths - 0.125, abs=1e-12) and rule.tolerance == 0
    assert rule.dppl_distilled.item() == 0.125 - 0.5


def test_a_history_that_explains_nothing_meets_a_share_with_no_event():
    objective = by_hand([1, 3, 0, 3])
    times = objective.window.times.clone()
    times[:, -1] += 50.0  # the rates the history raised promised more than came
    calm = Objective(objective.mtpp, objective.window._replace(times=times), conditioning="survival")
    assert calm.dppl_left(calm.history).item() > 0
    for margin in (0.0, 1e-5, 100.0):
        result = get_solver("greedy_search").solve(calm, asks(calm, margin, share=0.7))
        assert result.reached.item() and result.sizes.item() == 0


# --- orders and their prefixes


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_a_prefix_curve_is_a_plain_loop(conditioning):
    objective = objective_of(2, conditioning, padded=True)
    scores = torch.randn(B, L, generator=seeded(5))
    curve = prefix_curve(objective, places_of(scores, objective.history))
    assert curve.shape == (B, L + 1) and (curve[:, 0] == 0).all()
    for row in range(B):
        value, history = judge(objective, row), history_of(objective, row)
        order = sorted(history, key=lambda event, row=row: -scores[row, event].item())
        expected = [value(history - set(order[:size])) for size in range(len(order) + 1)]
        expected += expected[-1:] * (L - len(order))
        assert curve[row].tolist() == pytest.approx(expected, abs=1e-9)
    # One evaluation for each prefix of each window's own events, none for the whole history.
    assert objective.num_evaluations.tolist() == [1 + number for number in objective.history.sum(1).tolist()]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("per_step", [1, 3, 50])
def test_the_best_prefix_is_the_smallest_that_a_plain_loop_finds(seed, per_step, monkeypatch):
    monkeypatch.setattr("ehd_hf.models.perplexity.ROWS_AT_ONCE", per_step * B)
    objective = objective_of(seed, padded=True)
    values = [functools.cache(judge(objective, row)) for row in range(B)]
    ranks = places_of(torch.randn(B, L, generator=seeded(seed)), objective.history)
    curve = prefix_curve(objective, ranks)
    rules = [asks(objective, share=0.5), asks(objective, epsilon=0.95), asks(objective, share=0.3, delta=0.2)]
    rules += [feasible_targets(objective), Reaches(-1e9, None)]
    for stop in rules:
        rule = stop.bind(objective)
        found, same = first_prefix(objective, rule, ranks, curve)
        step_by_step, _ = first_prefix(objective, rule, ranks)
        assert same is curve and torch.equal(step_by_step.distill_mask, found.distill_mask)
        assert torch.equal(step_by_step.reached, found.reached)
        for row in range(B):
            value, history = values[row], frozenset(history_of(objective, row))
            order = sorted(history, key=lambda event, row=row: ranks[row, event].item())
            smallest = None
            for size in reversed(range(len(order) + 1)):
                left, alone = value(history - set(order[:size])), value(frozenset(order[:size]))
                meets = left <= rule.dppl_left[row] + rule.tolerance
                if rule.dppl_distilled is not None:
                    meets = meets and alone >= rule.dppl_distilled[row] - rule.tolerance
                smallest = size if meets else smallest
            assert found.reached[row] == (smallest is not None)
            expected = history if smallest is None else frozenset(order[:smallest])
            assert torch.equal(found.distill_mask[row], as_mask(expected))
            if smallest is not None:
                assert found.dppl_left[row].item() == pytest.approx(value(history - expected), abs=1e-9)
    sizes = objective.history.sum(1) - 1
    at_size, _ = first_prefix(objective, AtSize(sizes).bind(objective), ranks)
    assert at_size.reached.all() and torch.equal(at_size.distill_mask, ranks < sizes[:, None])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("name", ["greedy_search", "backward_elimination"])
def test_the_order_of_a_search_is_the_sequence_of_its_sets(name, conditioning, seed):
    objective, solver = objective_of(seed, conditioning, padded=True), get_solver(name)
    assert solver.orders
    ranks = places_of(solver.rank(objective, None), objective.history)
    numbers = objective.history.sum(1)
    for size in range(L + 1):
        sizes = numbers.clamp(max=size)
        found = solver.solve(objective, AtSize(sizes)).distill_mask
        assert torch.equal((ranks < sizes[:, None]) & objective.history, found)
    # One evaluation for each candidate of each round; for greedy search the last leaves nothing, and counts too.
    objective = objective_of(seed, conditioning, padded=True)
    solver.rank(objective, None)
    candidates = numbers * (numbers + 1) // 2
    assert torch.equal(objective.num_evaluations, 1 + candidates - int(name == "backward_elimination"))


@pytest.mark.parametrize("name", NAMES)
def test_orders_of_short_empty_and_no_histories(name):
    assert get_solver(name).orders == (name not in ("exact_search", "random_distillation", "refine"))
    if not get_solver(name).orders:
        with pytest.raises(TypeError, match="finds sets of events and does not order them"):
            get_solver(name).rank(objective_of(), seeded())
        return
    for num_history in (0, 1):
        objective = objective_of(num_history=num_history)
        assert get_solver(name).rank(objective, seeded()).shape == (B, num_history)
    window = random_windows()
    window.mask[0, :L], window.mask[1, 1:L] = False, False
    objective = Objective(fullynn(), window, conditioning="survival")
    ranks = places_of(get_solver(name).rank(objective, seeded()), objective.history)
    assert ranks[1, 0] == 0 and sorted(ranks[2].tolist()) == list(range(L))


def test_scores_from_elsewhere_cost_what_they_are_said_to():
    objective = objective_of(padded=True)
    for stop in stop_rules(objective):
        plain = get_solver("recency").solve(objective, stop)
        asked = []

        def score(given, asked=asked):
            asked.append(given)
            return get_solver("recency").rank(given, None)

        result = RankedBy(score=score, num_evaluations=6).solve(objective, stop)
        assert asked == [objective] and torch.equal(result.distill_mask, plain.distill_mask)
        assert torch.equal(result.num_evaluations, plain.num_evaluations + 6)
        free = RankedBy(score=score).solve(objective, stop)
        assert torch.equal(free.num_evaluations, plain.num_evaluations)
    assert RankedBy(score=score).orders and not hasattr(RankedBy, "name")


# --- the shortlist of swaps


def listed_swaps(value, history, distilled, max_swaps, shortlist):
    """From a set of events, the single swap that lowers dppl_left most, again and again. Events are tried in swaps
    that do best when they alone change sides."""
    for _ in range(max_swaps):
        flipped = {event: value(history - (distilled ^ {event})) for event in sorted(history)}
        tried = [sorted(events, key=flipped.get)[:shortlist] for events in (distilled, history - distilled)]
        swapped = [distilled - {out} | {into} for out, into in itertools.product(*tried)]
        best = min(swapped, key=lambda events: value(history - events), default=distilled)
        if value(history - best) >= value(history - distilled) - 1e-6:
            return distilled
        distilled = best
    return distilled


@pytest.mark.parametrize("seed", [0, 3])
def test_swaps_are_a_plain_loop_over_the_most_promising_pairs(seed):
    objective = objective_of(seed, padded=True)
    start = get_solver("recency").solve(objective, AtSize(3)).distill_mask
    for shortlist in (1, 2, L, 99):
        solver = get_solver("refine", start=start, shortlist=shortlist, max_swaps=3)
        result = solver.solve(objective, AtSize(3))
        for row in range(B):
            value, history = functools.cache(judge(objective, row)), frozenset(history_of(objective, row))
            distilled = frozenset(start[row].nonzero()[:, 0].tolist())
            expected = listed_swaps(value, history, distilled, 3, shortlist)
            assert torch.equal(result.distill_mask[row], as_mask(expected))
    for stop in stop_rules(objective)[1:]:
        whole, more = (get_solver("refine", shortlist=size).solve(objective, stop) for size in (L, 99))
        assert torch.equal(whole.distill_mask, more.distill_mask)
        assert torch.equal(whole.num_evaluations, more.num_evaluations)


def test_a_shortlist_saves_evaluations():
    objective = objective_of(num_history=12)
    spent = [
        get_solver("refine", shortlist=size, max_swaps=1).solve(objective, AtSize(6)).num_evaluations
        for size in (2, 12)
    ]
    # The full history; singles and pairs of the shortlist, or all pairs; the mask itself; and 2 to report at the end.
    assert (spent[0] == 1 + 12 + 2 * 2 + 1 + 2).all() and (spent[1] == 1 + 6 * 6 + 1 + 2).all()
    for option, smallest in (("shortlist", 1), ("max_swaps", 0)):
        with pytest.raises(ValueError, match=f"{option} must be at least {smallest}; got {smallest - 1}"):
            get_solver("refine", **{option: smallest - 1})
    with pytest.raises(ValueError, match="swap_in must be one of evaluated, ordered; got 'random'"):
        get_solver("refine", swap_in="random")


def test_events_to_swap_in_can_be_read_off_the_order_of_the_start():
    objective = objective_of(num_history=12)
    scores = get_solver("leave_one_out").rank(objective, None)
    start = places_of(scores, objective.history) < 6
    options = {"max_swaps": 1, "shortlist": 3}
    asked = get_solver("refine", start=start, **options).solve(objective, AtSize(6))
    read = get_solver("refine", start=start, scores=scores, swap_in="ordered", **options).solve(objective, AtSize(6))
    brought = get_solver("refine", start="leave_one_out", swap_in="ordered", **options).solve(objective, AtSize(6))
    assert (read.num_evaluations == asked.num_evaluations - 6).all()  # the six others were not tried one by one
    assert torch.equal(read.distill_mask, brought.distill_mask)
    next_three = (places_of(scores, objective.history) >= 6) & (places_of(scores, objective.history) < 9)
    assert not (read.distill_mask & ~start & ~next_three).any()
    before = objective.dppl_left(start)
    assert (read.dppl_left <= before + 1e-9).all() and (read.dppl_left < before - 1e-6).any()


def test_where_no_prefix_meets_the_targets_others_are_asked():
    objective = objective_of(num_history=8)
    best = get_solver("exact_search").solve(objective, AtSize(3))
    rule = Reaches(best.dppl_left, best.dppl_distilled)
    poor = RankedBy(score=lambda asked: -get_solver("greedy_search").rank(asked, None), otherwise=FALLBACKS)
    ranks = places_of(poor.rank(objective, None), objective.history)
    alone, _ = first_prefix(objective, rule.bind(objective), ranks, prefix_curve(objective, ranks))
    assert not alone.reached.all()  # else this shows nothing
    helped = poor.solve(objective, rule)
    others = [get_solver(name).solve(objective, rule) for name in FALLBACKS]
    assert torch.equal(helped.reached, alone.reached | others[0].reached | others[1].reached | others[2].reached)
    assert torch.equal(helped.distill_mask[alone.reached], alone.distill_mask[alone.reached])
    met = rule.bind(objective).met(objective, helped.distill_mask, objective.windows)
    assert met[helped.reached].all()
    assert (helped.num_evaluations > 0).all()


def test_a_part_of_an_objective_answers_for_its_windows_alone():
    objective = objective_of(num_history=6)
    chosen = torch.tensor([2, 0])
    part, mask = objective.part(chosen), torch.rand(objective.history.shape, generator=seeded()) > 0.5
    before = objective.num_evaluations.clone()
    assert torch.equal(part.dppl_left(mask[chosen]), objective.dppl_left(mask)[chosen])
    assert part.num_evaluations.tolist() == [1, 1] and (objective.num_evaluations > before).all()
