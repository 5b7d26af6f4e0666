"""The ranking distiller: its gradient against enumeration, its probabilities, what it learns, what it answers."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from ehd_hf.models import ranking
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.ranking import RankingDistillerConfig, RankingDistillerModel, inclusion_probability
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import Objective, rule_for
from ehd_hf.solvers.prefix import RankedBy
from ehd_hf.training.trainer import Trainer, TrainingArguments
from helpers import TINY, AdditiveMTPP, random_window, tiny_fullynn, watched

L, K, C = 5, 3, 6
QUIET = {"num_threads": 1, "progress": False}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny_ranking(seed=0, **config):
    """A ranking distiller of a FullyNN far from initialisation, in float64."""
    mtpp = tiny_fullynn(C, seed, 0.7, num_components=3, num_layers=2).float()
    torch.manual_seed(seed)
    return RankingDistillerModel.from_mtpp(mtpp, future=K, **TINY, **config).double()


def additive_ranking(influences, seed=0, **config):
    """A ranking distiller of an additive process: an event of mark m adds its influence times the base rates."""
    base = torch.full((len(influences),), 0.25)
    mtpp = AdditiveMTPP(base.tolist(), torch.tensor(influences)[:, None] * base)
    torch.manual_seed(seed)
    config = {"mtpp_config": {"model_type": "fullynn", "num_marks": len(influences)}, **TINY, **config}
    model = RankingDistillerModel(RankingDistillerConfig(**config))
    model.mtpp = mtpp.float().eval().requires_grad_(False)
    return model


def one_window(seed=0, padded=()):
    """A window (1, L + K) whose history lacks the events at `padded`; times are apart from one another."""
    window = random_window(1, L, K, C, seed)
    window.mask[:, list(padded)] = False
    return window._replace(times=window.times + 0.05 * torch.arange(L + K))


def repeated(window, count):
    return window.rows(torch.zeros(count, dtype=torch.long))


# --- the probabilities


def slow_inclusion(scores, size):
    """The same probabilities of the events of one window (n,), the threshold by another method."""

    def excess(threshold):
        return (1 / (1 + np.exp(threshold - scores))).sum() - size

    threshold = brentq(excess, scores.min() - 40, scores.max() + 40, xtol=1e-13, rtol=1e-14)
    return 1 / (1 + np.exp(threshold - scores))


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 10.0])
def test_inclusion_probabilities_add_up_and_rise_with_the_scores(spread):
    scores = spread * torch.randn(4, 7, generator=seeded(1), dtype=torch.float64)
    history = torch.ones(4, 7, dtype=torch.bool)
    history[1, 2], history[2, [0, 6]], history[3, 1:] = False, False, False
    for sizes in ([0.3, 1.0, 2.0, 0.5], [3.7, 5.5, 4.9, 0.9], [6.999, 0.01, 1.0, 0.999]):
        size = torch.tensor(sizes, dtype=torch.float64)
        chance = inclusion_probability(scores, history, size)
        torch.testing.assert_close(chance.sum(1), size, atol=1e-8, rtol=0)
        assert (chance[~history] == 0).all() and ((chance >= 0) & (chance <= 1)).all()
        for row in range(4):
            real = history[row]
            expected = slow_inclusion(scores[row, real].numpy(), sizes[row])
            assert chance[row, real].tolist() == pytest.approx(expected.tolist(), abs=1e-8)
            by_score = chance[row, real][scores[row, real].argsort()]
            assert (by_score.diff() >= 0).all()


def test_inclusion_probabilities_by_hand():
    history = torch.ones(1, 4, dtype=torch.bool)
    alike = inclusion_probability(torch.full((1, 4), 2.5), history, torch.tensor([3.0]))
    assert alike[0].tolist() == pytest.approx([0.75] * 4, abs=1e-5)
    # sigmoid(log 3) = 3/4 and sigmoid(-log 3) = 1/4 add up to 1 with the threshold at 0.
    two = inclusion_probability(torch.tensor([[math.log(3), -math.log(3)]]), history[:, :2], torch.tensor([1.0]))
    assert two[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-5)


def test_the_derivative_of_the_probabilities_is_their_finite_difference():
    scores = (2 * torch.randn(3, 5, generator=seeded(2), dtype=torch.float64)).requires_grad_()
    history = torch.ones(3, 5, dtype=torch.bool)
    history[1, 3] = False
    size = torch.tensor([1.3, 2.6, 3.75], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: inclusion_probability(x, history, size, steps=70), scores)
    # The size stays: no change of the scores changes the sum.
    (slope,) = torch.autograd.grad(inclusion_probability(scores, history, size).sum(), scores)
    assert slope.abs().max() < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_and_slopes_are_finite_where_nothing_can_be_chosen(dtype):
    scores = torch.tensor([[0.0] * 4, [9.0, 0.0, 0.0, 0.0], [0.0] * 4, [1e4, -1e4, 0.0, 3.0]], dtype=dtype)
    history = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]).bool()
    scores.requires_grad_()
    chance = inclusion_probability(scores, history, torch.tensor([1.0, 1.0, 4.0, 1.5]))
    chance.sum().backward()
    assert chance.isfinite().all() and scores.grad.isfinite().all()
    expected = torch.tensor([0, 1, 4, 1.5], dtype=dtype)
    torch.testing.assert_close(chance.sum(1), expected, atol=1e-3, rtol=0)


# --- the gradient of the expectation, against enumeration of all sets


ALL_SETS = torch.tensor(list(itertools.product([False, True], repeat=L)))  # (2^L, L)


def values_of_all_sets(model, window):
    """dppl_left of every set (2^L,), and the scale of its values."""
    history = window.history[0]
    how = {"conditioning": model.config.conditioning}
    with torch.no_grad():
        left = dppl(model.mtpp, window, (~ALL_SETS & history).double()[:, None], **how)[:, 0]
        empty = dppl(model.mtpp, window, torch.zeros(1, L).double(), **how)
    return left.numpy(), max(abs(empty.item()), 0.1)


def expectation(values, chance, real):
    """Sum over the sets of `real` events of probability * value, the probability a plain product."""
    total = 0.0
    for events, value in zip(ALL_SETS.numpy(), values, strict=True):
        if not events[~real].any():
            total += np.prod(np.where(events[real], chance, 1 - chance)) * value
    return total


def exact_gradient(values, scores, real, size, step=1e-5):
    """Derivative (L,) of the expected value in each score, the size kept, by central differences."""
    gradient = np.zeros(L)
    for event in np.flatnonzero(real):
        moved = [scores + sign * step * (np.arange(L) == event) for sign in (1, -1)]
        up, down = (expectation(values, slow_inclusion(x[real], size), real) for x in moved)
        gradient[event] = (up - down) / (2 * step)
    return gradient


def force_draws(monkeypatch, size_share, sets):
    """Let the next step draw sizes at `size_share` of their range, and these `sets`."""
    monkeypatch.setattr(torch, "rand", lambda count, device=None: torch.full((count,), size_share))
    monkeypatch.setattr(torch, "rand_like", lambda chance: torch.where(sets, 0.0, 1.0).to(chance))


@pytest.mark.parametrize("padded", [(), (1,)])
@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_the_gradient_averaged_over_all_draws_is_that_of_the_expectation(monkeypatch, conditioning, padded):
    model = tiny_ranking(conditioning=conditioning, prefix_shares=[])
    window = one_window(padded=padded)
    real = window.history[0].numpy()
    scores = 1.5 * torch.randn(L, generator=seeded(3), dtype=torch.float64) * window.history[0]
    left, scale = values_of_all_sets(model, window)
    # One row for every set that can be drawn, weighted by how likely it is to be.
    sets = ALL_SETS[~(ALL_SETS & ~window.history).any(1)]
    for size_share in (0.0, 0.37, 1.0):
        size = 1 + size_share * (0.75 * real.sum() - 1)
        leaf = scores.expand(len(sets), -1).clone().requires_grad_()
        with monkeypatch.context() as patch:
            force_draws(patch, size_share, sets)
            loss = model._expected_drop(repeated(window, len(sets)), [leaf])
        (gradient,) = torch.autograd.grad(loss, leaf)
        chance = torch.from_numpy(slow_inclusion(scores.numpy()[real], size))
        likely = torch.where(sets[:, real], chance, 1 - chance).prod(1)  # (number of sets,)
        assert likely.sum().item() == pytest.approx(1)
        mean = (likely[:, None] * gradient * len(sets)).sum(0)  # the loss is a mean over rows
        expected = exact_gradient(left / scale, scores.numpy(), real, size)
        assert mean.tolist() == pytest.approx(expected.tolist(), abs=1e-7)
        assert np.abs(expected).max() > 1e-3
        # The value is that of the sets drawn, here each once.
        drawn_left = [left[(ALL_SETS == events).all(1).nonzero()[0, 0]] for events in sets]
        assert loss.item() == pytest.approx(np.mean(drawn_left) / scale, abs=1e-9)


def test_the_first_pass_is_judged_by_the_effects_among_the_last_ones_sets(monkeypatch):
    model, window = tiny_ranking(), one_window(2)
    first, last = (1.5 * torch.randn(L, generator=seeded(seed), dtype=torch.float64) for seed in (5, 6))
    left, scale = values_of_all_sets(model, window)
    leaves = [x.expand(len(ALL_SETS), -1).clone().requires_grad_() for x in (first, last)]
    with monkeypatch.context() as patch:
        force_draws(patch, 0.5, ALL_SETS)
        loss = model._expected_drop(repeated(window, len(ALL_SETS)), leaves)
    gradient, own = torch.autograd.grad(loss, leaves)
    size, real = 1 + 0.5 * (0.75 * L - 1), np.ones(L, dtype=bool)
    chance = torch.from_numpy(slow_inclusion(last.numpy(), size))
    likely = torch.where(ALL_SETS, chance, 1 - chance).prod(1)
    value_of = {tuple(events): value for events, value in zip(ALL_SETS.tolist(), left / scale, strict=True)}
    effect = torch.zeros(L, dtype=torch.float64)
    for events, weight in zip(ALL_SETS.tolist(), likely, strict=True):
        for event in range(L):
            with_it, without = (value_of[(*events[:event], x, *events[event + 1 :])] for x in (True, False))
            effect[event] += weight * (with_it - without)
    history = window.history
    moving = first[None].clone().requires_grad_()
    surrogate = (inclusion_probability(moving, history, torch.tensor([size])) * effect).sum()
    (expected,) = torch.autograd.grad(surrogate, moving)
    mean = (likely[:, None] * gradient * len(ALL_SETS)).sum(0)
    torch.testing.assert_close(mean, expected[0], atol=1e-8, rtol=0)
    mean = (likely[:, None] * own * len(ALL_SETS)).sum(0)
    assert mean.tolist() == pytest.approx(exact_gradient(left / scale, last.numpy(), real, size).tolist(), abs=1e-7)


def test_the_sets_drawn_have_their_sizes_and_follow_the_last_pass(monkeypatch):
    model, num_draws = tiny_ranking(largest_share=0.6), 2000
    window = repeated(one_window(3, padded=(2,)), num_draws)
    seen, genuine = [], ranking._effects
    monkeypatch.setattr(ranking, "_effects", lambda *values: seen.append(values[2]) or genuine(*values))
    scores = 2 * torch.randn(num_draws, L, generator=seeded(7), dtype=torch.float64) * window.history
    torch.manual_seed(0)
    model._expected_drop(window, [-scores, scores])
    (drawn,) = seen
    assert scores[drawn].mean() > 0.5 and drawn.shape == (num_draws, L) and not drawn[:, 2].any()
    mean, expected = drawn.sum(1).double().mean(), (1 + 0.6 * 4) / 2  # uniform from 1 to 0.6 of 4 events
    assert abs(mean - expected) < 4 * drawn.sum(1).double().std() / math.sqrt(num_draws)


@pytest.mark.parametrize(("length", "largest"), [(1, 1.0), (2, 1.5)])
def test_short_histories_draw_sizes_from_one_on(monkeypatch, length, largest):
    model, num_draws, sizes, values = tiny_ranking(), 50, [], []
    window = repeated(one_window(4, padded=range(length, L)), num_draws)
    inclusion, effects = ranking.inclusion_probability, ranking._effects
    monkeypatch.setattr(ranking, "inclusion_probability", lambda *a: sizes.append(a[2]) or inclusion(*a))
    monkeypatch.setattr(ranking, "_effects", lambda *a: values.append(a[1]) or effects(*a))
    torch.manual_seed(0)
    loss = model._expected_drop(window, [torch.zeros(num_draws, L, dtype=torch.float64)])
    assert sizes[0].min() >= 1 and sizes[0].max() <= largest
    whole = model._drops(window, torch.zeros(1, num_draws, L, dtype=torch.bool))[0]
    assert loss.item() == pytest.approx((values[0] / whole.abs()).mean().item(), abs=1e-9)


# --- scores


def test_scores_have_mean_zero_and_the_spread_of_the_config():
    model = tiny_ranking(score_spread=2.5)
    history = torch.ones(5, 6, dtype=torch.bool)
    history[1, [0, 3]], history[2, 1:], history[3] = False, False, False
    scores = torch.randn(5, 6, generator=seeded(8), dtype=torch.float64)
    scores[4] = 7.0  # all equal
    scores = torch.where(history, scores, torch.nan).requires_grad_()  # padding may hold anything
    spread = model._spread(scores, history)
    for row, number in ((0, 6), (1, 4)):
        real = spread[row, history[row]]
        assert len(real) == number and real.mean().item() == pytest.approx(0, abs=1e-12)
        assert real.std(correction=0).item() == pytest.approx(2.5, abs=1e-4)
    assert (spread[~history] == 0).all() and (spread[2:] == 0).all()
    (gradient,) = torch.autograd.grad((spread * torch.arange(6)).sum(), scores)
    assert gradient.isfinite().all()


def test_a_history_without_influence_gives_finite_scores():
    model = additive_ranking([0.0, 0.0], history=L, future=K).train()  # a Poisson process in disguise
    window = random_window(3, L, K, 2, 9, dtype=torch.float32)
    slopes = model._slopes(window, torch.full((2, 3, L), 0.5))
    assert slopes.shape == (3, L, 4) and slopes.abs().max() < 1  # rounding, not its inflation
    model(*window[:4]).loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert all(value.isfinite() for value in watched(model.eval()(*window[:4])).values())


def test_slopes_are_relative_to_their_mean_size_in_the_window():
    model = additive_ranking([1.0, 3.0], history=4, future=1, gate_levels=[0.5], prefix_shares=[])
    times = torch.tensor([[1.0, 2.0, 3.0, 4.0, 4.0]])  # the future comes right at the split: log p = log rate
    marks, mask = torch.tensor([[0, 1, 0, 1, 0]]), torch.ones(1, 5, dtype=torch.bool)
    mask[0, 0] = False
    slopes = model._slopes(Window(times, marks, mask, 1), 0.5 * mask[None, :, :4])
    mean = (3 + 1 + 3) / 3  # of the influences of real events; their common factor goes
    relative = [0, 3 / mean, 1 / mean, 3 / mean]
    assert slopes[0, :, 0].tolist() == pytest.approx(relative, abs=1e-5)
    assert slopes[0, :, 1].tolist() == pytest.approx([math.log1p(4 * x) for x in relative], abs=1e-5)


def test_the_second_pass_takes_out_the_first_of_the_first_order(monkeypatch):
    model, window = tiny_ranking(prefix_shares=[0.25, 0.5]).eval(), one_window(4, padded=(1,))
    seen = []
    genuine = ranking.keep_gradient
    monkeypatch.setattr(ranking, "keep_gradient", lambda *a, **k: seen.append(a[2]) or genuine(*a, **k))
    first, second = model._scores_of_passes(window)
    history = window.history[0]
    assert torch.equal(seen[0], torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)[:, None, None] * history)
    order = sorted(history.nonzero()[:, 0].tolist(), key=lambda event: -first[0, event])  # four events
    for gates, out in zip(seen[1][:, 0], (order[:1], order[:2]), strict=True):
        assert gates.nonzero()[:, 0].tolist() == sorted(set(order) - set(out)) and gates.max() == 1
    assert not torch.equal(first, second) and model.num_evaluations == 3 + 2
    assert torch.equal(model.history_scores(window), second)
    assert len(tiny_ranking(prefix_shares=[])._scores_of_passes(window)) == 1


def test_the_second_pass_does_not_move_the_scores_of_the_first():
    model, window = tiny_ranking(), one_window(5)
    first, second = model._scores_of_passes(window)
    weights = [model.score_head.weight, model.slope_weight.weight, model.second_weight.weight]
    by_first = torch.autograd.grad(first.square().sum(), weights, allow_unused=True, retain_graph=True)
    by_second = torch.autograd.grad((second * torch.arange(L)).sum(), weights, allow_unused=True)
    assert [gradient is None for gradient in by_first] == [False, False, True]
    assert [gradient is None for gradient in by_second] == [True, True, False]


class FastFutures(torch.utils.data.Dataset):
    """Windows whose future comes at once: to blame are the events of the marks with the largest influence."""

    def __init__(self, size, num_history, num_marks, seed=0):
        times = torch.rand(size, num_history, generator=seeded(seed)).cumsum(1)
        self.times = torch.cat([times, times[:, -1:] + 0.001 * torch.arange(1, 3)], 1)
        self.marks = torch.randint(num_marks, self.times.shape, generator=seeded(seed + 1))

    def __len__(self):
        return len(self.times)

    def __getitems__(self, rows):
        times, marks = self.times[list(rows)], self.marks[list(rows)]
        return {"times": times, "marks": marks, "mask": torch.ones_like(marks, dtype=torch.bool)}

    @staticmethod
    def collate(batch):
        return batch


@pytest.mark.parametrize("prefix_shares", [[], [0.5]])
def test_a_few_dozen_steps_put_the_truly_influential_events_first(tmp_path, prefix_shares):
    influences = [0.0, 2.0, 0.3, 1.0]
    config = {"history": 8, "future": 2, "gate_levels": [0.5], "prefix_shares": prefix_shares, "hidden_size": 8}
    model = additive_ranking(influences, seed=5, **config)
    validation = FastFutures(100, 8, 4, seed=50)
    truth = torch.tensor(influences)[validation.marks[:, :8]]
    best = truth.sort(dim=1, descending=True).values.cumsum(1)

    def share_of_the_best():
        """What the first k of the order bring together, as a share of the most that k events can, mean over k."""
        batch = validation.__getitems__(range(100))
        order = model.eval().history_scores(Window(**batch, num_future=2)).argsort(dim=1, descending=True)
        found = truth.gather(1, order).cumsum(1)
        return (found / best.clamp(min=0.1))[:, :6].mean().item()

    before = share_of_the_best()
    options = {"steps": 40, "warmup_steps": 5, "batch_size": 32, "learning_rate": 0.02, "eval_every": 10_000, **QUIET}
    Trainer(model, TrainingArguments(out=str(tmp_path), **options), FastFutures(400, 8, 4), validation).train()
    assert before < 0.8 and share_of_the_best() > 0.98


# --- answers and metrics


def by_hand(scores, influences=(1.0, 3.0, 0.0, 3.0), **config):
    """A ranking of one window that is told the scores, with dppl(kept) = log((1 + kept influences) / (1 + all))."""
    kinds = sorted(set(influences))
    model = additive_ranking(kinds, history=len(influences), future=1, **config).double().eval()
    model._scores_of_passes = lambda window: [torch.tensor([scores], dtype=torch.float64)]
    marks = torch.tensor([[kinds.index(x) for x in influences] + [0]])
    times = torch.arange(1.0, len(influences) + 2, dtype=torch.float64)[None]
    times[:, -1] = len(influences)
    return model, Window(times, marks, torch.ones_like(marks, dtype=torch.bool), 1)


def test_answers_and_metrics_by_hand():
    # In the order 1, 3, 0, 2 what is left has 8, 5, 2, 1, 1 eighths.
    logs = [math.log(x / 8) for x in (8, 5, 2, 1, 1)]
    targets = [({"share": 2 / 3 - 1e-9}, 2), ({"share": 0.7}, 3), ({"share": 0.2}, 1), ({"share": 1.0}, 3)]
    targets += [({"epsilon": x, "share": None}, size) for x, size in ((0.5, 2), (0.6251, 1), (0.2, 3))]
    targets.append(({"epsilon": 0.1, "share": None}, 4))  # out of reach: the whole history
    for target, size in targets:
        model, window = by_hand([0.0, 4.0, -1.0, 3.0], **target)
        chosen, shown = model.distill(window)
        assert chosen[0].nonzero()[:, 0].tolist() == sorted([1, 3, 0, 2][:size])
        assert shown[0].tolist() == [0.0, 4.0, -1.0, 3.0]
        output = model(*window[:4])
        assert output["size"] == size and output["constraint_met"] == (target.get("epsilon") != 0.1)
        assert output.loss.item() == pytest.approx(sum(logs) / 5 / math.log(8), abs=1e-9)
        assert output.num_items == 1


def test_a_history_that_explains_nothing_is_left_out_of_the_means():
    model, (times, marks, mask, *_) = by_hand([0.0, 4.0, -1.0, 3.0])
    calm = times.clone()
    calm[:, -1] += 50.0  # the rates the history raised promised more than came: without it the future is likelier
    both = Window(torch.cat([times, calm]), marks.repeat(2, 1), mask.repeat(2, 1), 1)
    scores = torch.tensor([[0.0, 4.0, -1.0, 3.0]] * 2, dtype=torch.float64)
    model._scores_of_passes = lambda window: [scores[: len(window.times)]]
    chosen, _ = model.distill(both)
    assert chosen.sum(1).tolist() == [3, 0]
    alone, together = model(times, marks, mask, 1), model(*both[:4])
    assert together.num_items == alone.num_items == 1
    for name, value in watched(alone).items():
        torch.testing.assert_close(together[name], value)
    nothing = model(calm, marks, mask, 1)
    assert nothing.num_items == 0 and all(value == 0 for value in watched(nothing).values())


@pytest.mark.parametrize("target", [{"epsilon": None, "share": 0.7}, {"epsilon": 0.95, "share": None}])
def test_the_answer_is_the_smallest_prefix_that_meets_the_target(target):
    model = tiny_ranking(1, **target).eval()
    window = random_window(6, L, K, C, 10)
    window.mask[1, 2], window.mask[2, :3], window.mask[3, L + K - 1] = False, False, False
    window = window._replace(times=window.times + 0.05 * torch.arange(L + K))
    chosen, scores = model.distill(window)
    objective = Objective(model.mtpp, window, conditioning="survival")
    solver = RankedBy(score=lambda objective: scores, num_evaluations=model.num_evaluations)
    result = solver.solve(objective, rule_for(model.config.question, objective))
    assert torch.equal(chosen, result.distill_mask) and result.reached.any()


def test_means_over_batches_are_means_over_windows(tmp_path):
    model = tiny_ranking(2).float()
    times, marks, mask, *_ = random_window(9, L, K, C, 11, dtype=torch.float32)

    class Windows(FastFutures):
        def __init__(self, rows=slice(None)):
            self.times, self.marks = times[rows], marks[rows]

    whole = model.eval()(times, marks, mask)
    assert 1 < whole.num_items < 9  # some histories explain nothing
    arguments = TrainingArguments(out=str(tmp_path), steps=1, warmup_steps=0, eval_batch_size=2, **QUIET)
    expected = {"loss": whole.loss.item(), **{name: value.item() for name, value in watched(whole).items()}}
    assert Trainer(model, arguments, Windows(), Windows()).evaluate() == pytest.approx(expected, abs=1e-5)
    alone = [model.eval()(times[i : i + 1], marks[i : i + 1], mask[i : i + 1]).num_items.item() for i in range(9)]
    nothing = Windows([row for row in range(9) if not alone[row]])
    assert all(value == 0 for value in Trainer(model, arguments, Windows(), nothing).evaluate().values())


def test_defaults_and_names_of_weights_are_those_of_the_checkpoints():
    config = RankingDistillerConfig()
    assert (config.epsilon, config.share, config.conditioning) == (None, 0.7, "survival")
    assert (list(config.gate_levels), list(config.prefix_shares)) == ([0.9, 0.5, 0.1], [0.25, 0.5, 0.75])
    names = {name.split(".")[0] for name in tiny_ranking().state_dict()}
    first = {"mtpp", "window_encoder", "slope_input", "slope_weight", "score_head"}
    second = {"second_input", "second_layer", "second_norm", "second_weight", "second_head"}
    assert names == first | second
    assert {name.split(".")[0] for name in tiny_ranking(prefix_shares=[]).state_dict()} == first
