"""Perplexity and its drop: by hand on closed-form processes, against re-encoding from scratch, and at the edges."""

import math

import pytest
import torch

from ehd_hf.models import perplexity
from ehd_hf.models.perplexity import dppl, dppl_parts, keep_gradient, log_perplexity, log_perplexity_of_masks
from ehd_hf.models.window import Window
from helpers import AdditiveMTPP, PoissonMTPP, random_window, slow_log_perplexity, slow_log_prob, tiny_fullynn

B, S, L, K, C = 3, 5, 7, 4, 6
CONDITIONINGS = ["paper", "survival"]
REBUILDERS = ["gate", "select", "compact"]
BOTH_WAYS = [(c, r) for c in CONDITIONINGS for r in REBUILDERS]


def by_hand(times, marks, num_future):
    times = torch.tensor([times], dtype=torch.float64)
    return Window(times, torch.tensor([marks]), torch.ones_like(times, dtype=torch.bool), num_future)


def mask_of(*values):
    return torch.tensor([values], dtype=torch.float64)


def random_keep(*shape, seed=0):
    return (torch.rand(*shape, L, generator=torch.Generator().manual_seed(seed)) < 0.5).double()


@pytest.fixture(scope="module")
def fullynn():
    return tiny_fullynn(C, scale=0.5, num_layers=2).requires_grad_(False)


@pytest.fixture(scope="module")
def additive():
    return AdditiveMTPP([0.5, 0.2, 0.1], [[0.3, 0.0, 0.7], [0.2, 0.4, 0.1], [0.0, 0.05, 0.9]]).requires_grad_(False)


# --- by hand


@pytest.mark.parametrize("rebuilder", REBUILDERS)
def test_log_perplexity_and_its_drop_of_a_poisson_process_by_hand(rebuilder):
    model = PoissonMTPP([0.5, 0.25])  # 0.75 events per unit of time
    events = by_hand([1.0, 2.0, 4.0, 5.0, 5.5, 8.0], [0, 1, 0, 1, 0, 1], 3)  # history 1, 2, 4; future 5, 5.5, 8
    logs = math.log(0.25) + math.log(0.5) + math.log(0.25)
    expected = -(logs - 0.75 * (1 + 0.5 + 2.5)) / 3
    assert log_perplexity(model, events).item() == pytest.approx(expected, abs=1e-12)
    without_last = -(logs - 0.75 * (3 + 0.5 + 2.5)) / 3  # 5 now counts from 2
    got = log_perplexity(model, events, mask_of(1, 1, 0), rebuilder=rebuilder)
    assert got.item() == pytest.approx(without_last, abs=1e-12)
    drops = {(1, 1, 0): 2.0, (1, 0, 0): 3.0, (0, 0, 0): 4.0, (0, 1, 1): 0.0, (0, 0, 1): 0.0}  # added silence
    for keep, silence in drops.items():
        drop = dppl(model, events, mask_of(*keep), rebuilder=rebuilder)
        assert drop.item() == pytest.approx(-0.75 * silence / 3, abs=1e-12)


@pytest.mark.parametrize("rebuilder", REBUILDERS)
def test_the_drop_of_an_additive_process_by_hand(rebuilder):
    model = AdditiveMTPP([0.5, 0.2], [[0.3, 0.1], [0.0, 0.6]])
    events = by_hand([1.0, 3.0, 4.0, 6.0], [0, 1, 1, 0], 2)  # history 0 at 1, 1 at 3; future 1 at 4, 0 at 6
    full = -(math.log(0.2 + 0.1 + 0.6) - (0.8 + 0.9) * 1 + math.log(0.5 + 0.3) - (0.8 + 1.5) * 2) / 2
    assert log_perplexity(model, events).item() == pytest.approx(full, abs=1e-12)
    only_first = -(math.log(0.2 + 0.1) - (0.8 + 0.3) * 3 + math.log(0.5 + 0.3) - (0.8 + 0.9) * 2) / 2
    only_second = -(math.log(0.2 + 0.6) - (0.5 + 0.8) * 1 + math.log(0.5) - (0.5 + 1.4) * 2) / 2
    nothing = -(math.log(0.2) - 0.7 * 4 + math.log(0.5) - (0.5 + 0.8) * 2) / 2
    for keep, rest in (((1, 0), only_first), ((0, 1), only_second), ((0, 0), nothing)):
        drop = dppl(model, events, mask_of(*keep), rebuilder=rebuilder)
        assert drop.item() == pytest.approx(full - rest, abs=1e-12)
    # Given that nothing happened until 3, the first future interval begins there.
    survived = {(1, 0): only_first - (0.8 + 0.3) * 2 / 2, (0, 0): nothing - 0.7 * 3 / 2, (0, 1): only_second}
    for keep, rest in survived.items():
        drop = dppl(model, events, mask_of(*keep), conditioning="survival", rebuilder=rebuilder)
        assert drop.item() == pytest.approx(full - rest, abs=1e-12)


def test_the_marks_of_selected_events_carry_gradients_by_hand():
    model = AdditiveMTPP([0.5, 0.2], [[0.3, 0.1], [0.0, 0.6]])
    events = by_hand([0.0, 2.0], [0, 1], 1)  # at time 0, so that nothing comes by way of the time
    keep = mask_of(1.0).requires_grad_()
    (slope,) = torch.autograd.grad(dppl(model, events, keep, rebuilder="select"), keep)
    assert slope.item() == pytest.approx(0.1 / (0.2 + 0.1) - (0.3 + 0.1) * 2, abs=1e-12)


def test_compaction_shows_the_model_no_more_than_the_events_kept(additive, monkeypatch):
    window = random_window(B, L, K, 3, 0)
    seen, scored = [], additive.event_log_prob
    monkeypatch.setattr(additive, "event_log_prob", lambda *a, **k: seen.append(a[0].shape[1]) or scored(*a, **k))
    keep = torch.zeros(B, L, dtype=torch.float64)
    keep[:, :2] = 1
    log_perplexity(additive, window, keep, rebuilder="compact")
    assert seen == [2 + K]


# --- gate, selection and re-encoding are one


@pytest.mark.parametrize("padding", ["none", "front", "middle", "future"])
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("backbone", ["fullynn", "additive"])
def test_gate_selection_and_re_encoding_agree(request, backbone, conditioning, padding):
    model = request.getfixturevalue(backbone)
    generator = torch.Generator().manual_seed(5)
    window = random_window(B, L, K, model.config.num_marks, generator)
    nonsense = 50 * torch.rand(window.times.shape, generator=generator, dtype=torch.float64)
    for row in range(B):
        first = {"none": L + K, "front": 0, "middle": 2, "future": L + K - row}[padding]
        window.mask[row, first : first + row] = False
    window = window._replace(times=torch.where(window.mask, window.times, nonsense))
    keep = (torch.rand(S, B, L, generator=generator) < 0.5).double()
    keep[0], keep[1] = 1, 0
    values = [[slow_log_perplexity(model, window, i, kept[i], conditioning) for i in range(B)] for kept in keep]
    expected = torch.tensor(values, dtype=torch.float64)
    for rebuilder in REBUILDERS:
        how = {"conditioning": conditioning, "rebuilder": rebuilder}
        got = log_perplexity(model, window, keep, **how)
        assert got.shape == (S, B)
        torch.testing.assert_close(got, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(log_perplexity(model, window, keep[2], **how), got[2], atol=1e-9, rtol=0)
        drop = dppl(model, window, keep, **how)
        torch.testing.assert_close(drop, expected[0] - expected, atol=1e-9, rtol=0)
        # Selection scores the history too: the same numbers, in matrices of another size.
        whole = dppl(model, window, keep[0], **how)
        assert whole.abs().max() <= (0 if rebuilder == "gate" else 1e-14)
        full = log_perplexity(model, window, conditioning=conditioning)
        assert torch.equal(drop, dppl(model, window, keep, full=full, **how))


@pytest.mark.parametrize(("conditioning", "rebuilder"), BOTH_WAYS)
def test_masks_of_any_shape_and_of_booleans_mean_the_same(fullynn, conditioning, rebuilder):
    window, keep = random_window(B, L, K, C, 6, "front"), random_keep(2, S, B)
    options = {"conditioning": conditioning, "rebuilder": rebuilder}
    together = dppl(fullynn, window, keep, **options)
    assert together.shape == (2, S, B)
    apart = torch.stack([torch.stack([dppl(fullynn, window, x, **options) for x in y]) for y in keep])
    torch.testing.assert_close(together, apart, atol=1e-12, rtol=0)
    assert torch.equal(together, dppl(fullynn, window, keep.bool(), **options))
    one = keep[0, 0, 0]  # these events of every window
    torch.testing.assert_close(
        dppl(fullynn, window, one, **options), dppl(fullynn, window, one.expand(B, L), **options), atol=1e-12, rtol=0
    )
    for masks in (keep, keep[0, 0], one):
        parts = dppl_parts(fullynn, window, masks, conditioning=conditioning).total
        torch.testing.assert_close(parts, dppl(fullynn, window, masks, **options))


# --- edges


@pytest.mark.parametrize(("conditioning", "rebuilder"), BOTH_WAYS)
def test_a_history_of_no_events_at_all_is_accepted(fullynn, conditioning, rebuilder):
    window, keep = random_window(B, 0, K, C, 11), torch.ones(S, B, 0).double()
    options = {"conditioning": conditioning, "rebuilder": rebuilder}
    events = zip(window.times, window.marks, strict=True)
    expected = torch.stack([-slow_log_prob(fullynn, times, marks).mean() for times, marks in events])
    got = log_perplexity(fullynn, window, keep, **options)
    torch.testing.assert_close(got, expected.expand(S, B), atol=1e-9, rtol=0)
    assert torch.equal(window.split_time, torch.zeros(B, dtype=torch.float64))
    assert dppl(fullynn, window, keep[0], **options).abs().max() <= (0 if rebuilder == "gate" else 1e-14)
    assert keep_gradient(fullynn, window, keep).shape == (S, B, 0)


@pytest.mark.parametrize(("conditioning", "rebuilder"), BOTH_WAYS)
def test_one_event_of_history_and_one_of_future(additive, conditioning, rebuilder):
    events = by_hand([2.0, 3.0], [0, 2], 1)  # 0 adds (0.3, 0, 0.7) to (0.5, 0.2, 0.1)
    drop = dppl(additive, events, mask_of(0), conditioning=conditioning, rebuilder=rebuilder)
    silence = 3.0 if conditioning == "paper" else 1.0
    expected = (math.log(0.1) - 0.8 * silence) - (math.log(0.8) - 1.8 * 1)
    assert drop.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rebuilder", REBUILDERS)
def test_events_tied_with_the_split_are_conditioned_once(additive, rebuilder):
    events = by_hand([1.0, 4.0, 4.0, 4.0, 4.0, 6.0], [0, 1, 2, 0, 1, 2], 3)  # two at 4 on each side of the split
    for keep in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0), (1, 1, 1)):
        got = log_perplexity(additive, events, mask_of(*keep), conditioning="survival", rebuilder=rebuilder)
        expected = slow_log_perplexity(additive, events, 0, keep, "survival")
        assert got.item() == pytest.approx(expected.item(), abs=1e-12)


def test_the_split_is_the_time_of_the_last_real_event_of_the_history():
    times = torch.tensor([[1.0, 3.0, 9.0, 4.0, 5.0], [9.0, 2.0, 2.0, 2.0, 7.0], [8.0, 8.0, 8.0, 1.0, 2.0]])
    mask = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    assert Window(times, torch.zeros_like(times).long(), mask, 2).split_time.tolist() == [3.0, 2.0, 0.0]


# --- gradients


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_removed_events_get_gradients_by_the_gate_and_none_by_selection(fullynn, conditioning):
    window, values = random_window(B, L, K, C, 14), random_keep(S, B)
    window.mask[0, 0] = False
    gradients = {}
    for rebuilder in ("gate", "select"):
        keep = values.clone().requires_grad_()
        drop = dppl(fullynn, window, keep, conditioning=conditioning, rebuilder=rebuilder)
        (gradients[rebuilder],) = torch.autograd.grad(drop.sum(), keep)
    real = window.mask[:, :L].expand(S, B, L)
    removed, kept = real & (values == 0), real & (values == 1)
    assert (gradients["select"][removed] == 0).all() and (gradients["select"][kept] != 0).any()
    # Nothing that is removed before the last kept event is left out of the gate's gradient.
    assert (gradients["gate"][removed] != 0).float().mean() > 0.95 and (gradients["gate"][kept] != 0).any()
    assert all((gradient[~real] == 0).all() for gradient in gradients.values())


@pytest.mark.parametrize("function", ["dppl", "log_perplexity", "future_log_prob"])
@pytest.mark.parametrize(
    ("option", "valid"), [("conditioning", "paper, survival"), ("rebuilder", "gate, select, compact")]
)
def test_an_unknown_option_is_answered_with_the_known_ones(additive, function, option, valid):
    with pytest.raises(ValueError, match=f"must be one of {valid}; got 'gates'"):
        getattr(perplexity, function)(additive, by_hand([1.0, 2.0], [0, 1], 1), mask_of(1), **{option: "gates"})


@pytest.mark.parametrize("function", ["dppl", "log_perplexity", "future_log_prob"])
def test_masks_of_another_shape_are_refused(additive, function):
    with pytest.raises(ValueError, match=r"keep must be \(..., B, L\), here \(1, 2\) at its end; got \(1, 3\)"):
        getattr(perplexity, function)(additive, by_hand([1.0, 2.0, 3.0], [0, 1, 2], 1), torch.ones(1, 3))


# --- the slope of the drop in every gate


def test_the_slopes_of_an_additive_process_by_hand():
    model = AdditiveMTPP([0.5, 0.5], [[0.5, 0.5], [1.5, 1.5]])  # rates 0.5 (1 + S), influences 1 and 3
    events = by_hand([1.0, 2.0, 2.0], [0, 1, 0], 1)  # the future comes right at the split: log p = log rate
    for first, second in ((1.0, 0.999), (0.5, 0.5), (0.0, 0.25), (1.0, 0.0), (0.0, 0.0)):
        slopes = keep_gradient(model, events, mask_of(first, second), conditioning="survival")
        total = 1 + first + 3 * second
        # The compensator of the silence up to the split cancels that of the interval, which is the same.
        assert slopes[0].tolist() == pytest.approx([1 / total, 3 / total], abs=1e-12)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("backbone", ["fullynn", "additive"])
def test_the_slope_in_a_gate_is_the_finite_difference_of_the_drop(request, backbone, conditioning):
    model = request.getfixturevalue(backbone)
    generator = torch.Generator().manual_seed(15)
    window = random_window(B, L, K, model.config.num_marks, generator)
    window.mask[1, 2], window.mask[2, L + K - 1] = False, False
    keep = 0.05 + 0.9 * torch.rand(S, B, L, generator=generator, dtype=torch.float64)
    slopes = keep_gradient(model, window, keep, conditioning=conditioning)
    assert slopes.shape == (S, B, L) and not slopes.requires_grad and (slopes[:, 1, 2] == 0).all()
    gates = keep.clone().requires_grad_()
    dppl(model, window, gates, conditioning=conditioning).sum().backward()
    torch.testing.assert_close(slopes, gates.grad)
    step = 1e-5 * torch.eye(L, dtype=torch.float64)[:, None, None]  # (L, 1, 1, L)
    up, down = (dppl(model, window, x, conditioning=conditioning) for x in (keep + step, keep - step))
    torch.testing.assert_close(slopes, ((up - down) / 2e-5).movedim(0, -1), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_slopes_of_any_masks_need_no_gradient_mode_and_leave_the_model_none(conditioning):
    model, window = tiny_fullynn(C, scale=0.5), random_window(B, L, K, C, 16, "front")
    options = {"conditioning": conditioning}
    gates = torch.full((L,), 0.5, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        quiet = keep_gradient(model, window, gates, **options)
        assert not torch.is_grad_enabled()
    loud = keep_gradient(model, window, gates.expand(B, L), **options)
    assert quiet.shape == (B, L) and torch.equal(quiet, loud)  # (L,) means these gates in every window
    keep = random_keep(2, S, B)
    slopes = keep_gradient(model, window, keep, **options)
    apart = torch.stack([torch.stack([keep_gradient(model, window, x, **options) for x in y]) for y in keep])
    torch.testing.assert_close(slopes, apart)
    assert torch.equal(slopes, keep_gradient(model, window, keep.bool(), **options))
    assert gates.grad is None and all(parameter.grad is None for parameter in model.parameters())


def test_times_and_marks_apart_by_hand():
    model = AdditiveMTPP([0.5, 0.2], [[0.3, 0.1], [0.0, 0.6]])
    events = by_hand([1.0, 3.0, 4.0, 6.0], [0, 1, 1, 0], 2)  # history 0 at 1, 1 at 3; future 1 at 4, 0 at 6
    output = perplexity.future_log_prob(model, events, mask_of(1, 0))
    assert output.mark_log_prob[0].tolist() == pytest.approx([math.log(0.3 / 1.1), math.log(0.8 / 1.7)])
    assert output.time_log_prob[0].tolist() == pytest.approx([math.log(1.1) - 3.3, math.log(1.7) - 3.4])
    assert output.log_prob.shape == (1, 2)
    torch.testing.assert_close(output.log_prob, output.time_log_prob + output.mark_log_prob)
    parts = dppl_parts(model, events, mask_of(1, 0))
    mark = (math.log(0.3 / 1.1) + math.log(0.8 / 1.7)) - (math.log(0.9 / 1.7) + math.log(0.8 / 2.3))
    time = (math.log(1.1) - 3.3 + math.log(1.7) - 3.4) - (math.log(1.7) - 1.7 + math.log(2.3) - 4.6)
    assert parts.mark.item() == pytest.approx(mark / 2, abs=1e-12)
    assert parts.time.item() == pytest.approx(time / 2, abs=1e-12)
    survived = dppl_parts(model, events, mask_of(1, 0), conditioning="survival")
    assert survived.mark.item() == parts.mark.item()  # the silence is a matter of times
    assert survived.time.item() == pytest.approx((time + 1.1 * 2) / 2, abs=1e-12)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("at_once", [1, 4, 13, 512])
def test_many_masks_give_what_each_gives_by_itself_in_any_order(fullynn, conditioning, at_once, monkeypatch):
    monkeypatch.setattr("ehd_hf.models.perplexity.ROWS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(31)
    window = random_window(B, L, K, C, generator)
    window.mask[0, [0, 3]], window.mask[1, L + K - 1] = False, False
    windows = torch.randint(B, (13,), generator=generator)
    keep_mask = torch.rand(13, L, generator=generator) < torch.rand(13, 1, generator=generator)
    keep_mask[0], keep_mask[1] = True, False
    how = {"conditioning": conditioning}
    got = log_perplexity_of_masks(fullynn, window, keep_mask, windows, **how)
    assert got.shape == (13,) and not got.requires_grad
    for row, index in enumerate(windows.tolist()):
        one = window.rows(slice(index, index + 1))
        alone = log_perplexity(fullynn, one, keep_mask[row : row + 1].double(), conditioning=conditioning)
        assert got[row].item() == pytest.approx(alone.item(), abs=1e-9)
    order = torch.randperm(13, generator=generator)
    shuffled = log_perplexity_of_masks(fullynn, window, keep_mask[order], windows[order], **how)
    torch.testing.assert_close(shuffled, got[order], atol=1e-12, rtol=0)
    none = log_perplexity_of_masks(fullynn, window, keep_mask[:0], windows[:0], **how)
    assert none.shape == (0,)
    if conditioning == "paper":  # the default
        assert torch.equal(log_perplexity_of_masks(fullynn, window, keep_mask, windows), got)
