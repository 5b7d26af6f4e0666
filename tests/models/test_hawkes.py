"""The Hawkes backbone: against the exact likelihood of a simulated process, by hand, by integration, and learnt."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf.data.synthetic import HawkesProcess, delayed_hawkes, exponential_hawkes
from ehd_hf.data.windows import make_crops
from ehd_hf.evaluation.scores import score_events
from ehd_hf.explain.certify import CertifiedObjective
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel, erlang_terms
from ehd_hf.models.perplexity import dppl, future_log_prob
from ehd_hf.models.window import Window
from helpers import log_grid, random_events, wild

C = 4


def raw(values, first):
    """Raw parameters whose softplus, counted from the value of a new model, is `values`; 1e-300 stands for 0."""
    values = torch.as_tensor(values, dtype=torch.float64).clamp(min=1e-300)
    return torch.where(values > 30, values, torch.log(torch.expm1(values))) - math.log(math.expm1(first))


def hawkes_of(process, num_shapes):
    """The model that is this process: one scale, and of its shapes the one that acts."""
    number = process.num_marks
    model = HawkesModel(HawkesConfig(num_marks=number, num_scales=1, num_shapes=num_shapes)).double().eval()
    weights = torch.zeros(1, num_shapes, number, number, dtype=torch.float64)
    weights[0, int(process.shape.max()) - 1] = torch.from_numpy(process.branching)
    with torch.no_grad():
        model.scales.fill_(process.scale.max())
        model.raw_rates.copy_(raw(process.base_rates, 0.5 / number))
        model.raw_weights.copy_(raw(weights, 0.5 / (num_shapes * number)))
    return model


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def make_model(generator):
    model = wild(HawkesModel(HawkesConfig(num_marks=C, num_scales=3, num_shapes=3)))
    model.fit_time_scale(torch.rand(50, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        model.raw_weights.add_(1.0)
    return model


def intensity_slowly(model, times, marks, query, mark, keep=None):
    """The formula of the module, term by term, with scipy's densities."""
    total = model.rates[mark].item()
    for index, (time, cause) in enumerate(zip(times.tolist(), marks.tolist(), strict=True)):
        for (scale, shape), weight in np.ndenumerate(model.weights[:, :, cause, mark].detach().numpy()):
            density = stats.gamma.pdf(query - time, shape + 1, scale=model.scales[scale].item())
            total += (1.0 if keep is None else keep[index]) * weight * density
    return total


def test_one_event_by_hand():
    process = HawkesProcess([0.5, 0.25], [[0.0, 0.8], [0.0, 0.0]], scale=2.0, shape=2)
    model = hawkes_of(process, num_shapes=2)
    times, marks = torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[0, 1]])
    output = model.event_log_prob(times, marks, torch.ones_like(marks, dtype=torch.bool))
    # Two units after the event x = 1: density x exp(-x) / 2, distribution function 1 - (1 + x) exp(-x).
    added, begun = 0.8 * math.exp(-1) / 2, 0.8 * (1 - 2 * math.exp(-1))
    expected = [math.log(0.5) - 0.75, math.log(0.25 + added) - 2 * 0.75 - begun]
    torch.testing.assert_close(output.log_prob[0].tolist(), expected)
    torch.testing.assert_close(output.compensator[0].tolist(), [0.75, 1.5 + begun])
    torch.testing.assert_close(output.mark_log_prob[0, 1].item(), math.log((0.25 + added) / (0.75 + added)))
    shares = model.parent_shares(times, marks, torch.ones_like(marks, dtype=torch.bool))
    torch.testing.assert_close(shares[0].tolist(), [[0.0, 0.0], [added / (0.25 + added), 0.0]])


def exact_log_likelihood(process, times, marks):
    """(T,) of one sequence from time 0, by all pairs and scipy's gamma distribution."""
    lags = times[:, None] - times[None, :]
    pair, earlier = (marks[None, :], marks[:, None]), np.tril(np.ones_like(lags), -1) > 0
    gamma = stats.gamma(process.shape[pair], scale=process.scale[pair])
    added = np.where(earlier, process.branching[pair] * gamma.pdf(lags), 0.0).sum(1)
    delay = stats.gamma(process.shape.max(), scale=process.scale.max())
    children = process.branching.sum(1)[marks]
    reached = process.base_rates.sum() * times + np.where(earlier, children[None, :] * delay.cdf(lags), 0.0).sum(1)
    return np.log(process.base_rates[marks] + added) - np.diff(reached, prepend=0.0)


@pytest.mark.parametrize("make, num_shapes", [(exponential_hawkes, 1), (exponential_hawkes, 2), (delayed_hawkes, 6)])
def test_likelihood_is_that_of_the_process_it_is_set_to(make, num_shapes):
    process = make()
    events = process.simulate(60.0, 3, np.random.default_rng(0)).sequences
    scores = score_events(hawkes_of(process, num_shapes), events).log_prob
    for index, (times, marks) in enumerate(events):
        expected = exact_log_likelihood(process, times, marks)
        ours = scores[events.offsets[index] : events.offsets[index + 1]]
        np.testing.assert_allclose(ours[1:], expected[1:], rtol=0, atol=1e-8)


def test_intensities_are_the_sum_over_kept_events_for_any_gates(generator):
    model = make_model(generator)
    times, marks, mask = random_events(1, 20, C, generator, "none")
    keep = torch.rand(1, 20, generator=generator, dtype=torch.float64)
    queries = times[:, [4, 11, 19]] + 0.3
    for gates in (None, keep, keep.round()):
        rates = model.intensity(times, marks, mask, queries, keep=gates)
        for number, query in enumerate(queries[0].tolist()):
            before = times[0] < query
            weights = None if gates is None else gates[0][before].tolist()
            slow = [intensity_slowly(model, times[0][before], marks[0][before], query, m, weights) for m in range(C)]
            torch.testing.assert_close(rates[0, number].tolist(), slow)


def test_compensator_is_the_integral_of_the_intensity(generator):
    model = make_model(generator)
    times, marks, mask = random_events(1, 12, C, generator, "none")
    taus, weights = log_grid(1e-9, 3.0, 4000)
    queries = times[:, -1:] + taus
    rates = model.intensity(times, marks, mask, queries).sum(-1)
    integral = (rates * weights).cumsum(1).detach()
    exact = model.compensator(times, marks, mask, queries).detach()
    torch.testing.assert_close(integral[:, 1000::500], exact[:, 1000::500], rtol=3e-3, atol=1e-6)


def test_long_sequences_cost_no_accuracy(generator):
    model = make_model(generator)
    times, marks, mask = random_events(1, 300, C, generator, "none")  # many blocks
    output = model.event_log_prob(times, marks, mask)
    slow = intensity_slowly(model, times[0, :299], marks[0, :299], times[0, 299].item(), marks[0, 299].item())
    if times[0, 299] > times[0, 298]:
        observed = output.log_prob[0, 299] + output.compensator[0, 299]
        assert observed.item() == pytest.approx(math.log(slow), abs=1e-10)
    total = output.compensator[0].sum().item()
    lags = times[0, -1] - times[0]
    started = model._started(lags[None], marks)[0].sum() + model.rates.sum() * times[0, -1]
    assert total == pytest.approx(started.item(), abs=1e-8)


@pytest.mark.parametrize("padding", ["none", "anywhere"])
def test_parent_shares_are_what_deleting_one_event_takes_away(padding, generator):
    model = make_model(generator)
    times, marks, mask = random_events(3, 11, C, generator, padding)
    shares = model.parent_shares(times, marks, mask)

    def intensities(keep):
        output = model.event_log_prob(times, marks, mask, keep=keep)
        return torch.exp(output.log_prob + output.compensator)

    everything = torch.ones(3, 11, dtype=torch.float64)
    whole, nothing = intensities(everything), intensities(0 * everything)
    for event in range(11):
        keep = everything.clone()
        keep[:, event] = 0
        share = (1 - intensities(keep) / whole).masked_fill(~mask, 0.0)
        torch.testing.assert_close(shares[:, :, event], share * mask[:, event, None], rtol=0, atol=1e-8)
    torch.testing.assert_close((1 - shares.sum(2))[mask], (nothing / whole)[mask], rtol=0, atol=1e-8)


def some_masks(generator, padding, is_part=False):
    """Windows (L, K) = (9, 4), masks (R, L) of them in no order, and whose these are: also of one window many."""
    times, marks, mask = random_events(5, 13, C, generator, "none")
    mask[:, :9] = random_events(5, 9, C, generator, padding)[2]
    mask[3, 11:] = padding == "none"  # behind the future
    times = times.masked_fill(~mask, 77.0)
    scored = torch.rand(5, 4, generator=generator) < 0.5 if is_part else None
    if scored is not None:
        scored[:, 0] = torch.tensor([True, False, True, False, True])
    window = Window(times, marks, mask, 4, scored)
    rows = torch.cat([torch.randint(5, (40,), generator=generator), torch.full((30,), 2), torch.arange(5)])
    keep = torch.rand(75, 9, generator=generator) < torch.rand(75, 1, generator=generator)
    keep[-5:] = False
    return window, keep & window.history[rows], rows


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("padding", ["none", "front", "anywhere"])
def test_all_masks_at_once_are_each_mask_by_itself(padding, conditioning, is_part, generator):
    model = make_model(generator)
    window, keep, rows = some_masks(generator, padding, is_part)
    ours = model.future_of_masks(window, conditioning).log_prob(keep, rows).detach()
    options = {"keep": keep.double(), "conditioning": conditioning}
    general = future_log_prob(model, window.rows(rows), **options)
    torch.testing.assert_close(ours, general.log_prob.sum(1).detach(), rtol=0, atol=1e-10)
    deleted = future_log_prob(model, window.rows(rows), rebuilder="compact", **options)  # pair by pair
    for field in ("log_prob", "time_log_prob", "mark_log_prob"):
        torch.testing.assert_close(deleted[field], general[field], rtol=0, atol=1e-10)
    some = torch.tensor([3, 1])
    part = model.future_of_masks(window, conditioning).rows(some).log_prob(keep[-4:], torch.tensor([0, 1, 1, 0]))
    whole = model.future_of_masks(window, conditioning).log_prob(keep[-4:], some[torch.tensor([0, 1, 1, 0])])
    torch.testing.assert_close(part, whole)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_searches_ask_for_all_masks_at_once(conditioning, generator, monkeypatch):
    model = make_model(generator)
    window, keep, rows = some_masks(generator, "anywhere", is_part=True)
    window.scored[:, 1] = True
    slow = dppl(model, window.rows(rows), keep.double(), conditioning=conditioning).detach()
    monkeypatch.setattr(HawkesModel, "event_log_prob", None)
    objective = CertifiedObjective(
        model, window, conditioning, window.history, model.future_of_masks(window, conditioning, apart=True)
    )
    torch.testing.assert_close(objective.dppl_keep(keep, rows), slow)
    assert objective.num_evaluations.sum() == 5 + (keep != window.history[rows]).any(1).sum()
    last, chosen = keep[-5:], torch.tensor([4, 0])
    torch.testing.assert_close(objective.part(chosen).dppl_keep(last[chosen]), objective.dppl_keep(last)[chosen])


@pytest.mark.parametrize("padding", ["none", "anywhere"])
def test_few_last_events_are_scored_as_all_are(padding, generator):
    model = make_model(generator)
    times, marks, mask = random_events(5, 13, C, generator, padding)
    whole = model.event_log_prob(times, marks, mask)
    for number in (1, 4, 13):
        last = model.event_log_prob(times, marks, mask, num_last=number)
        for field in ("log_prob", "mark_log_prob"):
            torch.testing.assert_close(last[field], whole[field][:, 13 - number :], rtol=0, atol=1e-10)
        counted = mask[:, 13 - number :]
        torch.testing.assert_close(last.compensator[counted], whole.compensator[:, 13 - number :][counted])
    (slope,) = torch.autograd.grad(last.log_prob.sum(), model.raw_weights)
    (expected,) = torch.autograd.grad(whole.log_prob.sum(), model.raw_weights)
    torch.testing.assert_close(slope, expected)


def test_kernels_integrate_to_the_branching_matrix(generator):
    model = make_model(generator)
    taus, weights = log_grid(1e-8, 1e5, 6000)
    kernel = model.kernel(taus).detach()
    assert kernel.shape == (C, C, 6000)
    torch.testing.assert_close((kernel * weights).sum(-1), model.branching.detach(), rtol=1e-3, atol=1e-6)
    one = model.intensity(
        torch.zeros(1, 1).double(), torch.tensor([[2]]), torch.tensor([[True]]), taus[None, 2000:2100]
    )
    torch.testing.assert_close((one[0] - model.rates).t().detach(), kernel[2, :, 2000:2100])


def test_nothing_kept_leaves_the_background(generator):
    model = make_model(generator)
    times, marks, mask = random_events(2, 9, C, generator, "none")
    output = model.event_log_prob(times, marks, mask, keep=torch.zeros(2, 9, dtype=torch.float64))
    torch.testing.assert_close(output.compensator, model.rates.sum() * times)
    torch.testing.assert_close(output.mark_log_prob, (model.rates / model.rates.sum()).log()[marks])


def test_terms_stay_finite_at_any_lag():
    for dtype in (torch.float32, torch.float64):
        terms = erlang_terms(torch.tensor([0.0, 1e-30, 1.0, 1e4, 1e30, torch.inf], dtype=dtype), 8)
        assert terms.isfinite().all() and terms[0].tolist() == [1.0] + [0.0] * 7 and terms[3:].max() < 1e-20


def test_many_marks_are_read_by_those_that_occur(generator):
    model = wild(HawkesModel(HawkesConfig(num_marks=40, num_scales=2, num_shapes=2)))
    times, marks, mask = random_events(2, 6, 40, generator)
    few = model.event_log_prob(times, marks, mask).log_prob
    many = model.event_log_prob(*(torch.cat([x] * 4) for x in (times, marks, mask))).log_prob[:2]
    torch.testing.assert_close(few, many)


def test_scales_span_the_intervals_and_beyond():
    model = HawkesModel(HawkesConfig(num_marks=2, num_scales=4))
    model.fit_time_scale(torch.cat([torch.full((5,), 0.01), torch.full((5,), 1.99), torch.zeros(3)]))
    assert model.mean_interval.item() == pytest.approx(1.0)
    assert model.scales[0].item() == pytest.approx(0.01) and model.scales[-1].item() > 10
    ratios = model.scales[1:] / model.scales[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand(3))


def test_an_exponential_process_is_recovered():
    process = HawkesProcess([0.3, 0.1], [[0.1, 0.7], [0.0, 0.3]], scale=0.5)
    events = process.simulate(100.0, 80, np.random.default_rng(0)).sequences
    model = HawkesModel(HawkesConfig(num_marks=2, num_scales=6, num_shapes=1))
    model.fit_time_scale(torch.from_numpy(events.intervals()))
    batch = make_crops(events, length=400).__getitems__(np.arange(80))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    for step in range(120):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 120)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(model.rates.tolist(), [0.3, 0.1], rtol=0.15, atol=0.02)
    torch.testing.assert_close(model.branching.tolist(), process.branching.tolist(), rtol=0, atol=0.08)
    delay = torch.linspace(0.1, 1.5, 8)
    expected = 0.7 * torch.exp(-delay / 0.5) / 0.5
    assert (model.kernel(delay)[0, 1] - expected).abs().max() < 0.2


def test_sparsity_costs_expected_children_in_training_alone(generator):
    model = HawkesModel(HawkesConfig(num_marks=3, num_scales=2, num_shapes=2, sparsity=0.5))
    events = random_events(2, 6, 3, generator, dtype=torch.float32)
    learning, judged = model.train()(*events).loss, model.eval()(*events).loss
    torch.testing.assert_close(learning - judged, 0.5 * model.branching.sum())
