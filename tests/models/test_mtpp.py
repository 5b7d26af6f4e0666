"""The MTPP contract, over every backbone: worked by hand, against slow references, over shapes, at the edges."""

import functools
import json
import math

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from scipy import stats
from torch.nn import functional as F
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

import helpers
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import make_crops
from ehd_hf.models import lognormmix
from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.ensemble import EnsembleModel
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.gated_lstm import GatedHistoryEncoder, _GatedLSTM, gate_padding, last_kept_times
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.point_process import MTPPConfig
from ehd_hf.training.recipe import choose_backbones
from helpers import AdditiveMTPP, PoissonMTPP, log_grid, random_events, slow_batch_log_prob, wild

C = 6  # marks
SCORES = ("log_prob", "time_log_prob", "mark_log_prob", "compensator")
tiny_fullynn = functools.partial(helpers.tiny_fullynn, num_layers=2)


def tiny_lognormmix(mark_mode="history", num_components=4, **config):
    torch.manual_seed(0)
    sizes = {"num_marks": C, "embedding_size": 5, "hidden_size": 8, "num_components": num_components, **config}
    return LogNormMixModel(LogNormMixConfig(mark_mode=mark_mode, **sizes))


def tiny_hawkes():
    return HawkesModel(HawkesConfig(num_marks=C, num_scales=3, num_shapes=3))


def tiny_attention():
    torch.manual_seed(0)
    sizes = {"num_marks": C, "hidden_size": 8, "num_heads": 2, "num_layers": 2, "num_components": 4}
    return AttentionModel(AttentionConfig(**sizes))


def tiny_ensemble():
    return EnsembleModel.of([tiny_hawkes(), tiny_fullynn(), tiny_lognormmix("interval")])


def additive():
    weight = torch.linspace(0, 0.6, C * C, dtype=torch.float64).view(C, C).flip(0)
    return AdditiveMTPP([0.05, 0.1, 0.15, 0.2, 0.25, 0.3], weight).double().eval()


# A new sibling is added here, by one line, and meets the whole suite.
BACKBONES = {
    "poisson": lambda: PoissonMTPP([0.05, 0.1, 0.15, 0.2, 0.25, 0.3]).double().eval(),
    "additive": additive,
    "fullynn": lambda: wild(tiny_fullynn()),
    # Wilder ones, with sharper peaks, need finer grids than the suite's; they are tested at the end of the file.
    "lognormmix-history": lambda: wild(tiny_lognormmix("history")),
    "lognormmix-interval": lambda: wild(tiny_lognormmix("interval")),
    "fullynn-recent": lambda: wild(tiny_fullynn(recent_marks=True)),
    "lognormmix-recent": lambda: wild(tiny_lognormmix(recent_marks=True)),
    "hawkes": lambda: wild(tiny_hawkes()),
    "attention": lambda: wild(tiny_attention(), 0.5),
    "ensemble": lambda: wild(tiny_ensemble()),
}
AT_INIT = {
    "fullynn-init": lambda: tiny_fullynn().double().eval(),
    "lognormmix-history-init": lambda: tiny_lognormmix("history").double().eval(),
    "lognormmix-interval-init": lambda: tiny_lognormmix("interval").double().eval(),
    "hawkes-init": lambda: tiny_hawkes().double().eval(),
    "attention-init": lambda: tiny_attention().double().eval(),
}
PADDINGS = ["none", "end", "front", "anywhere"]


@pytest.fixture(params=BACKBONES)
def model(request):
    return BACKBONES[request.param]()


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def rows(*events):
    """times, marks, mask (1, T) of (time, mark) pairs."""
    times = torch.tensor([[time for time, _ in events]], dtype=torch.float64)
    marks = torch.tensor([[mark for _, mark in events]], dtype=torch.long)
    return times, marks, torch.ones_like(marks, dtype=torch.bool)


def compacted(times, marks, mask, keep):
    """The kept real events of a one-row batch, as a batch of their own."""
    kept = mask[0] & keep[0].bool()
    return times[:, kept], marks[:, kept], mask[:, kept]


def some_states(model, generator):
    """States (5, D): the empty history, and four random ones."""
    times, marks, mask = random_events(4, 7, C, generator, "none")
    states, _ = model.encode_history(times, marks, mask, None)
    return torch.cat([states[:1, 0], states[:, -1]])


# worked by hand


def test_poisson_log_prob_is_log_rate_minus_total_rate_times_interval():
    model = PoissonMTPP([0.5, 1.5, 3.0])
    output = model.event_log_prob(*rows((0.2, 1), (0.2, 0), (1.1, 2)))
    expected = [math.log(1.5) - 5 * 0.2, math.log(0.5), math.log(3.0) - 5 * 0.9]
    torch.testing.assert_close(output.log_prob[0].tolist(), expected)
    torch.testing.assert_close(output.mark_log_prob[0].tolist(), [math.log(0.3), math.log(0.1), math.log(0.6)])
    torch.testing.assert_close(output.compensator[0].tolist(), [1.0, 0.0, 4.5])


def test_additive_log_prob_by_hand_with_and_without_an_event():
    model = AdditiveMTPP([1.0, 2.0], [[0.5, 0.25], [1.0, 4.0]])
    events = rows((0.5, 0), (1.0, 1), (3.0, 1))
    # Rates: (1, 2), then (1.5, 2.25), then (2.5, 6.25); without the second event (1.5, 2.25) until the third; without
    # the first (1, 2) until the second, then (2, 6).
    whole = [math.log(1) - 3 * 0.5, math.log(2.25) - 3.75 * 0.5, math.log(6.25) - 8.75 * 2]
    no_second = [*whole[:2], math.log(2.25) - 3.75 * 2.5]
    no_first = [whole[0], math.log(2) - 3 * 1.0, math.log(6) - 8 * 2]
    for keep, expected in (([1.0, 1.0, 1.0], whole), ([1.0, 0.0, 1.0], no_second), ([0.0, 1.0, 1.0], no_first)):
        keep = torch.tensor([keep], dtype=torch.float64)
        torch.testing.assert_close(model.event_log_prob(*events, keep=keep).log_prob[0].tolist(), expected)
        torch.testing.assert_close(slow_batch_log_prob(model, *events, keep)[0].tolist(), expected)


# a proper density


@pytest.mark.parametrize("make", [*BACKBONES.values(), *AT_INIT.values()], ids=[*BACKBONES, *AT_INIT])
@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_density_integrates_to_one_for_any_history_and_for_none(make, unit, generator):
    model = make()
    model.fit_time_scale(unit * torch.linspace(0.1, 2.0, 50, dtype=torch.float64))
    states = some_states(model, generator)  # (5, D)
    taus, weights = log_grid(1e-10 * unit, 1e6 * unit, 5000)
    mass = torch.zeros(5, dtype=torch.float64)
    with torch.no_grad():
        for mark in range(C):
            wide = states[:, None].expand(-1, len(taus), -1)
            marks = torch.full((5, len(taus)), mark)
            _, log_intensity, compensator = model.score_intervals(wide, taus.expand(5, -1), marks)
            mass += (torch.exp(log_intensity - compensator) * weights).sum(1)
    assert (mass - 1).abs().max() < 1e-3


def test_log_prob_is_time_plus_mark_and_mark_probabilities_sum_to_one(model, generator):
    times, marks, mask = random_events(3, 7, C, generator)
    output = model.event_log_prob(times, marks, mask)
    torch.testing.assert_close(output.log_prob, output.time_log_prob + output.mark_log_prob)
    states, last = model.encode_history(times, marks, mask, None)
    states, silence, total = states[:, :-1], (times - last[:, :-1]).clamp(min=0), torch.zeros_like(times)
    for mark in range(C):
        log_total, log_one, _ = model.score_intervals(states, silence, torch.full_like(marks, mark))
        total += torch.exp(log_one - log_total)
    torch.testing.assert_close(total, torch.ones_like(total))
    assert (output.log_prob[~mask] == 0).all() and (output.time_log_prob[~mask] == 0).all()


def test_intensity_equals_the_derivative_of_the_compensator_by_autograd(model, generator):
    states = some_states(model, generator).detach()
    taus = (torch.rand(5, generator=generator, dtype=torch.float64) * 3).requires_grad_()
    marks = torch.randint(C, (5,), generator=generator)
    (slope,) = torch.autograd.grad(model.total_compensator(states, taus).sum(), taus)
    intensities = model.mark_intensities(states, taus)
    log_total, log_observed, compensator = model.score_intervals(states, taus, marks)
    torch.testing.assert_close(intensities.sum(-1), slope, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(log_total.exp(), slope, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(log_observed.exp(), intensities.gather(-1, marks[:, None])[:, 0])
    torch.testing.assert_close(compensator, model.total_compensator(states, taus))


def test_compensator_is_zero_at_zero_and_never_falls(model, generator):
    states = some_states(model, generator)
    taus = torch.cat([torch.zeros(1, dtype=torch.float64), log_grid(1e-6, 1e6, 400)[0]])
    values = model.total_compensator(states[:, None].expand(-1, len(taus), -1), taus.expand(5, -1))
    assert (values[:, 0] == 0).all()
    assert (values.diff(dim=1) >= 0).all()
    assert (values[:, -1] > 50).all()  # unbounded: something happens in the end


# keep equals deletion


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kept", ["not said", "all", "none", "one", "some"])
def test_keep_of_zeros_and_ones_equals_deletion(model, padding, kept, generator):
    times, marks, mask = random_events(3, 7, C, generator, padding)
    keep = {
        "not said": None,
        "all": torch.ones(3, 7).double(),
        "none": torch.zeros(3, 7).double(),
        "one": torch.eye(7)[[4, 0, 2]].double(),
        "some": (torch.rand(3, 7, generator=generator) < 0.5).double(),
    }[kept]
    expected = slow_batch_log_prob(model, times, marks, mask, keep)
    for gates in [keep] if keep is None else [keep, keep.clone().requires_grad_(), keep.bool(), keep.float()]:
        fast = model.event_log_prob(times, marks, mask, keep=gates).log_prob
        torch.testing.assert_close(fast, expected, rtol=1e-9, atol=1e-9)
    assert keep is None or (keep.long() == keep).all()  # left as it was


@pytest.mark.parametrize("padding", PADDINGS)
def test_state_after_the_last_event_equals_that_of_the_compacted_sequence(model, padding, generator):
    times, marks, mask = random_events(3, 7, C, generator, padding)
    keep = (torch.rand(3, 7, generator=generator) < 0.6).double()
    for gates in (None, keep):
        states, last = model.encode_history(times, marks, mask, gates)
        for row in range(3):
            one = [x[row : row + 1] for x in (times, marks, mask)]
            alone = compacted(*one, torch.ones(1, 7) if gates is None else gates[row : row + 1])
            alone_states, alone_last = model.encode_history(*alone, None)
            end = max(i + 1 for i in range(7) if mask[row, i])  # padding that nothing follows need not be skipped
            torch.testing.assert_close(states[row, end], alone_states[0, -1], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(last[row, end], alone_last[0, -1])


def test_num_last_and_positions_pick_from_the_scores_of_every_row(model, generator):
    times, marks, mask = random_events(3, 7, C, generator, "anywhere")
    keep = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    whole = model.event_log_prob(times, marks, mask, keep=keep)
    for picked in (1, 3, 7, torch.tensor([[0, 1], [4, 6], [2, 5]])):
        name, index = ("positions", picked) if torch.is_tensor(picked) else ("num_last", torch.arange(7 - picked, 7))
        part = model.event_log_prob(times, marks, mask, keep=keep, **{name: picked})
        for score in SCORES:
            torch.testing.assert_close(part[score], whole[score].gather(1, index.expand(3, -1)))
    until = {"keep": keep[:, :4], "survived_until": times.masked_fill(~mask, 0).amax(1) / 2}
    last = [model.event_log_prob(times, marks, mask, num_last=number, **until).log_prob for number in (1, 3)]
    by_position = model.event_log_prob(times, marks, mask, positions=torch.tensor([[4, 5, 6]] * 3), **until).log_prob
    torch.testing.assert_close(by_position, last[1])
    torch.testing.assert_close(by_position[:, 2:], last[0])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("gated", [0, 4, 7])
def test_events_beyond_a_shorter_keep_are_kept(model, padding, gated, generator):
    times, marks, mask = random_events(3, 7, C, generator, padding)
    keep = torch.rand(3, gated, generator=generator, dtype=torch.float64)
    whole = torch.cat([keep, torch.ones(3, 7 - gated, dtype=torch.float64)], 1)
    short = model.event_log_prob(times, marks, mask, keep=keep).log_prob
    torch.testing.assert_close(short, model.event_log_prob(times, marks, mask, keep=whole).log_prob)


def test_mark_weights_of_one_change_no_score_and_carry_gradients(model, generator):
    times, marks, mask = random_events(3, 7, C, generator, "anywhere")
    weights = torch.ones(3, 7, dtype=torch.float64, requires_grad=True)
    weighted = model.event_log_prob(times, marks, mask, mark_weights=weights).log_prob
    torch.testing.assert_close(weighted, model.event_log_prob(times, marks, mask).log_prob)
    if not isinstance(model, PoissonMTPP):  # which has no use for its marks
        weighted.sum().backward()
        after = mask.flip(1).cumsum(1).flip(1) - mask.long()  # events to come, on each event
        assert (weights.grad[mask & (after > 0)] != 0).all() and (weights.grad[~mask] == 0).all()


def test_gradient_with_respect_to_keep_is_that_of_finite_differences(model, generator):
    times, marks, mask = random_events(2, 5, C, generator, "end")
    keep = (0.2 + 0.6 * torch.rand(2, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: model.event_log_prob(times, marks, mask, keep=k).log_prob, (keep,))
    split = times[:, 2].detach()

    def conditioned(gates):
        return model.event_log_prob(times, marks, mask, keep=gates, survived_until=split, num_last=2).log_prob

    assert torch.autograd.gradcheck(conditioned, (keep,))


# survival conditioning


def test_surviving_until_the_split_by_hand_for_poisson():
    model = PoissonMTPP([0.5, 1.5])
    events = rows((1.0, 0), (2.0, 1), (2.5, 1), (4.0, 0))
    keep = torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    split = torch.tensor([2.0], dtype=torch.float64)
    output = model.event_log_prob(*events, keep=keep, survived_until=split, num_last=2)
    expected = [math.log(1.5) - 2.0 * 0.5, math.log(0.5) - 2.0 * 1.5]  # counted from the split, not from time 1
    torch.testing.assert_close(output.log_prob[0].tolist(), expected)
    torch.testing.assert_close(output.mark_log_prob[0].tolist(), [math.log(0.75), math.log(0.25)])
    nothing = model.event_log_prob(*events, keep=0 * keep[:, :2], survived_until=split, num_last=2).log_prob[0]
    torch.testing.assert_close(nothing.tolist(), expected)


@pytest.mark.parametrize("kept", [[], [0], [0, 2], [1, 3]])
def test_survival_adds_the_compensator_to_the_first_future_event_alone(model, kept):
    # Events 2 and 3 are tied with the split, 4 (the first of the future) too.
    times, marks, mask = rows((0.4, 1), (0.9, 5), (1.5, 2), (1.5, 0), (1.5, 3), (1.5, 4), (2.0, 0))
    keep = torch.ones(1, 7, dtype=torch.float64)
    keep[0, [i for i in range(4) if i not in kept]] = 0
    split = torch.tensor([1.5], dtype=torch.float64)
    paper = model.event_log_prob(times, marks, mask, keep=keep).log_prob[0, 4:]
    conditioned = model.event_log_prob(times, marks, mask, keep=keep, survived_until=split, num_last=3).log_prob[0]
    history = compacted(times[:, :4], marks[:, :4], mask[:, :4], keep[:, :4])
    states, last = model.encode_history(*history, None)
    silence = model.total_compensator(states[0, -1], split[0] - last[0, -1])
    torch.testing.assert_close(conditioned[0], paper[0] + silence)
    torch.testing.assert_close(conditioned[1:], paper[1:])


# shapes and edges


@pytest.mark.parametrize("padding", ["none", "anywhere"])
def test_a_row_does_not_depend_on_the_other_rows(model, padding, generator):
    times, marks, mask = random_events(3, 7, C, generator, padding)
    mask[2] = torch.tensor([True, False, True, True, True, False, True])
    queries = torch.linspace(0, 20, 5, dtype=torch.float64).expand(3, -1)

    def everything(rows):
        events = times[rows], marks[rows], mask[rows]
        return [
            model.event_log_prob(*events).log_prob,
            model.intensity(*events, queries[rows]),
            model.compensator(*events, queries[rows]),
            *model.predict_next(*events, num_points=16),
            -model(*events).loss[None] * mask[rows].sum(),
        ]

    together = everything(slice(None))
    alone = [everything(slice(row, row + 1)) for row in range(3)]
    for index, joint in enumerate(together[:-1]):
        torch.testing.assert_close(joint, torch.cat([parts[index] for parts in alone]))
    torch.testing.assert_close(together[-1], sum(parts[-1] for parts in alone))


def test_a_single_event_and_no_event_at_all_are_fine(model):
    single, none = rows((0.7, 3)), rows()
    torch.testing.assert_close(model.event_log_prob(*single).log_prob, slow_batch_log_prob(model, *single))
    assert model.event_log_prob(*none).log_prob.shape == (1, 0)
    for keep in (None, torch.zeros(1, 0, dtype=torch.float64)):
        states, last = model.encode_history(*none, keep)
        assert states.shape[:2] == (1, 1) and last.tolist() == [[0.0]]
    assert model.intensity(*none, torch.tensor([[0.0, 2.0]], dtype=torch.float64)).shape == (1, 2, C)
    time, probabilities = model.predict_next(*none)
    assert time.item() > 0
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(1, dtype=torch.float64))
    drawn, marks = model.sample_next(*none, num_samples=4, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == marks.shape == (1, 4)


def test_gates_reach_as_far_as_padding_before_an_event_and_no_farther():
    whole = torch.ones(2, 5, dtype=torch.bool)
    at_the_end, inside = whole.clone(), whole.clone()
    at_the_end[1, 3:] = False
    inside[1, 2] = False
    for mask in (whole, at_the_end, whole[:, :1], whole[:, :0]):
        assert gate_padding(None, mask, torch.float64) is None
    assert gate_padding(None, inside, torch.float64).tolist() == [[1, 1, 1], [1, 1, 0]]
    assert gate_padding(None, inside, torch.float64).dtype == torch.float64
    half = torch.full((2, 1), 0.5, dtype=torch.float64)
    assert gate_padding(half, inside, torch.float32).dtype == torch.float32
    assert gate_padding(half, whole, torch.float64).tolist() == [[0.5], [0.5]]
    assert gate_padding(half, inside, torch.float64).tolist() == [[0.5, 1, 1], [0.5, 1, 0]]
    longer = torch.full((2, 5), 0.5)
    assert gate_padding(longer, inside, torch.float64).tolist() == [[0.5] * 5, [0.5, 0.5, 0, 0.5, 0.5]]


# the gated recurrence, against torch's own LSTM a step at a time


def gated_states_slowly(encoder, features, marks, keep, mark_weights):
    """States (B, T + 1, D) of `GatedHistoryEncoder`: its `nn.LSTM` asked for one event after the other, autograd."""
    hidden, cell = (start.expand(len(marks), -1) for start in (encoder.initial_hidden, encoder.initial_cell))
    states = [hidden]
    for step in range(marks.shape[1]):
        embedded = encoder.mark_embedding(marks[:, step])
        if mark_weights is not None:
            embedded = embedded * mark_weights[:, step, None]
        event = torch.cat([embedded, features[:, step]], dim=-1)[:, None]
        _, (new_hidden, new_cell) = encoder.lstm(event, (hidden[None].contiguous(), cell[None].contiguous()))
        gate = keep[:, step, None] if keep is not None and step < keep.shape[1] else 1.0
        hidden, cell = hidden + gate * (new_hidden[0] - hidden), cell + gate * (new_cell[0] - cell)
        states.append(hidden)
    return torch.stack(states, dim=1)


def recurrence(num_gated, weighted, num_rows=3, num_events=7, num_marks=C):
    """An encoder with weights of order one, and what it takes; all float64."""
    torch.manual_seed(0)
    encoder = GatedHistoryEncoder(num_marks, embedding_size=5, num_time_features=2, hidden_size=9).double()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter)
    features = torch.randn(num_rows, num_events, 2, dtype=torch.float64)
    marks = torch.randint(num_marks, (num_rows, num_events))
    keep = None if num_gated is None else torch.rand(num_rows, num_gated, dtype=torch.float64)
    if keep is not None and keep.shape[1] > 1:
        keep[0, 0], keep[1, 0] = 0.0, 1.0  # the ends too
    weights = 2 * torch.rand(num_rows, num_events, dtype=torch.float64) if weighted else None
    return encoder, features, marks, keep, weights


def check_gradients(encoder, given, learned):
    """Gradients of `learned` are those of autograd, and the gradients that arrive are left as they came."""
    arriving = torch.randn(len(given[1]), given[1].shape[1] + 1, 9, dtype=torch.float64)  # every state is heard
    before, options = arriving.clone(), {"allow_unused": True, "materialize_grads": True}
    ours = torch.autograd.grad(encoder(*given), learned, arriving, **options)
    expected = torch.autograd.grad(gated_states_slowly(encoder, *given), learned, arriving, **options)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(arriving, before)


GATED = {"nothing is gated": None, "a gate for none": 0, "some are gated": 4, "all are gated": 7}
gated_events = pytest.mark.parametrize("num_gated", GATED.values(), ids=GATED)


@gated_events
@pytest.mark.parametrize("weighted", [False, True], ids=["plain marks", "weighted marks"])
@pytest.mark.parametrize("num_marks", [C, 40], ids=["few marks", "many marks"])
def test_states_and_gradients_are_those_of_torchs_own_lstm(num_gated, weighted, num_marks):
    encoder, *given = recurrence(num_gated, weighted, num_marks=num_marks)
    expected = gated_states_slowly(encoder, *given)
    torch.testing.assert_close(encoder(*given), expected, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(encoder(*given), expected, rtol=1e-10, atol=1e-10)
    features, _, *gates = given
    values = [*encoder.parameters(), features, *(each for each in gates if each is not None and each.numel())]
    for learned in (values, *([value] for value in values)):  # all at once, and each while the others stand still
        for value in values:
            value.requires_grad_(any(value is one for one in learned))
        check_gradients(encoder, given, learned)


@pytest.mark.parametrize("num_events", [0, 1, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_gradients_of_the_shortest_sequences_are_those_of_autograd(num_events, gated):
    encoder, features, marks, keep, _ = recurrence(num_events if gated else None, False, 2, num_events)
    learned = [*encoder.parameters(), features.requires_grad_()] + ([keep.requires_grad_()] if gated else [])
    check_gradients(encoder, (features, marks, keep, None), learned)


@gated_events
def test_without_gradients_no_step_is_remembered(num_gated, monkeypatch):
    encoder, *given = recurrence(num_gated, True)
    asked, run = [], _GatedLSTM.apply
    monkeypatch.setattr(_GatedLSTM, "apply", lambda *values: asked.append(values) or run(*values))
    encoder(*given)
    with torch.no_grad():
        encoder(*given)
    learned, not_learned = (any(one is not None and one.requires_grad for one in values) for values in asked)
    assert learned and not not_learned


@pytest.mark.parametrize("num_gated", [None, 0, 3, 5])
def test_the_last_kept_time_moves_as_far_as_each_gate_says(num_gated):
    torch.manual_seed(0)
    times = torch.rand(3, 5, dtype=torch.float64).cumsum(1)
    keep = None if num_gated is None else torch.rand(3, num_gated, dtype=torch.float64)
    expected = [torch.zeros(3, dtype=torch.float64)]
    for event in range(5):
        gate = keep[:, event] if keep is not None and event < num_gated else 1.0
        expected.append((1 - gate) * expected[-1] + gate * times[:, event])
    torch.testing.assert_close(last_kept_times(times, keep), torch.stack(expected, 1), rtol=0, atol=1e-12)


# the process on a clock


@pytest.mark.parametrize("padding", PADDINGS)
def test_intensity_and_compensator_agree_with_the_event_scores(model, padding, generator):
    times, marks, mask = random_events(3, 7, C, generator, padding)
    apart = times + 0.01 * torch.arange(7)  # no ties, so that "strictly before" is "before in order"
    output = model.event_log_prob(apart, marks, mask)
    compensators = model.compensator(apart, marks, mask, apart)
    observed = model.intensity(apart, marks, mask, apart).gather(-1, marks[..., None])[..., 0]
    torch.testing.assert_close((observed.log() - compensators)[mask], output.log_prob[mask])
    torch.testing.assert_close(compensators[mask], output.compensator[mask])


def test_intensity_on_the_clock_knows_only_what_was_kept_before_it(model):
    times, marks, mask = rows((1.0, 0), (2.0, 1), (3.0, 2))
    keep = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    queries = torch.tensor([[0.5, 1.0, 2.5, 3.5]], dtype=torch.float64)
    seen = model.intensity(times, marks, mask, queries, keep=keep)
    empty, first, both = rows(), rows((1.0, 0)), rows((1.0, 0), (3.0, 2))
    for column, (history, query) in enumerate([(empty, 0.5), (empty, 1.0), (first, 2.5), (both, 3.5)]):
        alone = model.intensity(*history, torch.tensor([[query]], dtype=torch.float64))
        torch.testing.assert_close(seen[:, column : column + 1], alone)


def test_samples_of_the_next_event_follow_the_models_own_distribution(model, generator):
    times, marks, mask = random_events(2, 5, C, generator, "end")
    drawn, drawn_marks = model.sample_next(times, marks, mask, num_samples=1500, generator=generator)
    for row in range(2):
        history = compacted(times[row : row + 1], marks[row : row + 1], mask[row : row + 1], torch.ones(1, 5))
        states, last = model.encode_history(*history, None)
        state, silence = states[:, -1].expand(1500, -1), drawn[row] - last[0, -1]
        assert (silence >= 0).all()
        rescaled = model.total_compensator(state, silence).detach().numpy()
        assert stats.kstest(rescaled, "expon").pvalue > 1e-3
        intensities = model.mark_intensities(state, silence).detach()
        expected = (intensities / intensities.sum(-1, keepdim=True)).sum(0).numpy()
        # Rare marks count as one; where there is none, one event more on both sides changes nothing.
        counts, rare = np.bincount(drawn_marks[row].numpy(), minlength=C), expected < 10
        counts, expected = (np.append(values[~rare], values[rare].sum() + 1) for values in (counts, expected))
        assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_samples_repeat_with_the_same_generator(model):
    state = torch.get_rng_state()
    seeded = (torch.Generator().manual_seed(5) for _ in range(2))
    first, again = (model.sample_next(*rows((1.0, 2)), num_samples=9, generator=generator) for generator in seeded)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert torch.equal(torch.get_rng_state(), state)


def brute_force_next(model, times, marks, mask):
    """Expected silence and mark probabilities by integrating over time: survival, and intensity times survival."""
    states, _ = model.encode_history(times, marks, mask, None)
    taus, weights = log_grid(1e-10, 1e7, 8000)
    state = states[0, -1].expand(len(taus), -1)
    with torch.no_grad():
        survival = torch.exp(-model.total_compensator(state, taus))
        marks = (model.mark_intensities(state, taus) * (survival * weights)[:, None]).sum(0)
    return (survival * weights).sum(), marks


def test_prediction_of_the_next_event_equals_a_brute_force_integral(model):
    history = rows((0.5, 1), (0.9, 4), (2.0, 0))
    for events in (history, rows()):
        time, probabilities = model.predict_next(*events)
        expected_silence, expected_marks = brute_force_next(model, *events)
        last = events[0].amax().item() if events[0].numel() else 0.0
        assert (time.item() - last) / expected_silence.item() == pytest.approx(1, abs=0.01)
        torch.testing.assert_close(probabilities[0], expected_marks, rtol=0, atol=2e-3)


@pytest.mark.parametrize("log_amplitude", [0.5, 0.0, -1.0])
def test_prediction_keeps_the_mean_of_a_heavy_tail(log_amplitude):
    # Almost surely at once, else after a silence a thousand times as long: the mean is in the tail.
    model = tiny_fullynn(num_marks=2).double().eval()
    with torch.no_grad():
        model.amplitude.weight.zero_()
        model.amplitude.bias.fill_(log_amplitude)
        model.amplitude.bias[-1] = -30.0  # only the smallest tail rate is left
    history = rows((1.0, 0))
    expected, _ = brute_force_next(model, *history)
    time, _ = model.predict_next(*history)
    assert time.item() - 1.0 == pytest.approx(expected.item(), rel=0.01)


def test_time_scale_is_a_function_of_the_intervals_alone(model):
    intervals, state = torch.linspace(0, 2, 1001, dtype=torch.float64), torch.get_rng_state()
    model.fit_time_scale(intervals)
    first = {name: value.clone() for name, value in model.named_buffers()}
    model.fit_time_scale(intervals.flip(0))
    for name, value in model.named_buffers():
        torch.testing.assert_close(value, first[name])
    assert torch.equal(torch.get_rng_state(), state)  # randomness arrives as a generator, or not at all


def test_loss_is_the_mean_negative_log_likelihood_of_the_counted_events(model, generator):
    times, marks, mask = random_events(3, 7, C, generator)
    scores = slow_batch_log_prob(model, times, marks, mask)
    for loss_mask in (None, torch.rand(3, 7, generator=generator) < 0.5):
        counted = mask if loss_mask is None else mask & loss_mask
        output = model(times, marks, mask, loss_mask=loss_mask)
        assert output.num_items.item() == counted.sum().item()
        torch.testing.assert_close(output.loss, -scores[counted].mean())
    nothing = model(times, marks, mask, loss_mask=torch.zeros_like(mask))
    assert nothing.loss.item() == 0 and nothing.num_items.item() == 0


# FullyNN


@pytest.mark.parametrize(
    "make",
    [tiny_fullynn, tiny_lognormmix, lambda: tiny_lognormmix("interval"), tiny_hawkes, tiny_attention, tiny_ensemble],
)
def test_a_saved_model_opens_the_same_to_the_bit(make, tmp_path, generator):
    model = make().eval()
    model.fit_time_scale(torch.rand(50, generator=generator) * 1e-3)
    model.save_pretrained(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    auto = AutoModel.from_pretrained(tmp_path, use_safetensors=True)
    assert type(auto) is type(model) and type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
    events = random_events(3, 7, C, generator, dtype=torch.float32)
    for other in (loaded, auto):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
        assert torch.equal(other.event_log_prob(*events).log_prob, model.event_log_prob(*events).log_prob)
    with pytest.raises(ValueError, match="dtype must be float32 or float64; got float16, whose three digits"):
        type(model).from_pretrained(tmp_path, dtype="float16")


def test_a_config_is_stored_with_its_names_and_unknown_keys_fail(tmp_path):
    names = {0: "deploy", 1: "alert"}
    FullyNNConfig(num_marks=2, id2label=names, time_unit="h").save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.id2label == names and config.label2id == {"deploy": 0, "alert": 1} and config.time_unit == "h"
    assert config.num_marks == config.num_labels == 2
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "num_layer": 3}))
    with pytest.raises(ValueError, match="unknown num_layer"):
        AutoConfig.from_pretrained(tmp_path)
    # A later transformers may write keys of its own; a user may not.
    (tmp_path / "config.json").write_text(json.dumps({**values, "paged_kernels": {"a": 1}}))
    assert AutoConfig.from_pretrained(tmp_path).vocab_size == 2
    with pytest.raises(ValueError, match="unknown paged_kernels"):
        FullyNNConfig(paged_kernels=None)
    with pytest.raises(ValueError, match="of type 'lognormmix'; got one of type 'fullynn'"):
        LogNormMixConfig.from_pretrained(tmp_path)


def test_a_backbone_that_registers_itself_can_be_named_for_training(monkeypatch):
    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", dict(CONFIG_MAPPING._extra_content))
    new = type("NewConfig", (MTPPConfig,), {"model_type": "new_backbone"})
    with pytest.raises(ValueError, match="must be auto or one of .*got 'new_backbone'"):
        choose_backbones("new_backbone", 5)
    AutoConfig.register("new_backbone", new)
    assert choose_backbones("new_backbone,hawkes", 5) == ["new_backbone", "hawkes"]


def test_a_checkpoint_that_lacks_a_weight_leaves_the_others_as_stored(tmp_path):
    model = tiny_fullynn()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["amplitude.bias"], weights["encoder.lstm.bias_ih_l0"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, report = FullyNNModel.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"amplitude.bias", "encoder.lstm.bias_ih_l0"}
    for name, value in weights.items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert loaded.amplitude.bias.tolist() == pytest.approx([-math.log(9)] * 10)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hiden_size": 8}, "hidden_size.*unknown hiden_size"),
        ({"num_marks": 3, "id2label": {0: "a", 1: "b"}}, "0..2.*got 2"),
        ({"num_marks": 2, "id2label": {0: "a", 2: "b"}}, "0..1"),
        ({"num_marks": 2, "id2label": {0: "a", 1: "a"}}, "a"),  # results could not be read by name
        ({"num_marks": 3, "num_labels": 7}, "num_labels|num_marks|id2label"),
        ({"num_marks": 0}, "at least 1; got 0"),
        ({"hidden_size": 0}, "hidden_size.*at least 1; got 0"),
        ({"num_components": -2}, "num_components"),
        ({"num_layers": 0}, "num_layers"),
        ({"mark_mode": "shared"}, "unknown mark_mode"),
        ({"hidden_size": 8.0}, "hidden_size.*int"),
        ({"num_marks": "3"}, "num_marks.*int"),
    ],
)
def test_a_wrong_config_says_what_is_wrong(options, message):
    with pytest.raises((ValueError, StrictDataclassError), match=f"(?s){message}"):
        FullyNNConfig(**options)


def test_a_new_model_hears_its_history(generator):
    model = FullyNNModel(FullyNNConfig(num_marks=C)).eval()
    times, marks, mask = random_events(8, 12, C, generator, "none", dtype=torch.float32)
    states, _ = model.encode_history(times, marks, mask, None)
    silence = torch.full((8,), 0.7)
    rates = model.mark_intensities(states[:, -1], silence)
    assert (rates.std(0) / rates.mean(0)).min() > 0.01  # neither saturated nor dead
    assert 0.05 < rates.sum(-1).mean() < 5  # events per mean interval
    rise, slope = model._components(states[:, -1], torch.full((8,), 3.0))
    assert rise.max() < 0.95 and slope.min() > 1e-3


def test_likelihood_cost_carries_no_mark_axis_in_the_middle():
    model = tiny_fullynn(num_marks=5000)
    times = torch.linspace(0, 1, 30).repeat(20, 1)
    peak = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                peak.append(result.numel())
            return result

    with torch.no_grad(), Watch():
        model.event_log_prob(times, torch.zeros(20, 30, dtype=torch.long), torch.ones(20, 30, dtype=torch.bool))
    assert max(peak) < 5001 * 10  # the emission table at most, never (B, T, C)


def test_a_few_steps_of_training_beat_the_best_poisson_process():
    splits = simulated_splits("exponential", {"train": 60, "test": 20}, horizon=60.0, seed=1)
    train, test = make_crops(splits["train"], length=24), make_crops(splits["test"], length=24)
    rates = np.bincount(splits["train"].marks, minlength=6) / (60 * 60.0)
    poisson = PoissonMTPP(rates.tolist())
    batch = test.__getitems__(np.arange(0, len(test), 7))
    doubled = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    baseline = poisson(**doubled).loss.item()
    model = tiny_fullynn(num_marks=6)
    model.fit_time_scale(torch.from_numpy(splits["train"].intervals()))
    before = model(**batch).loss.item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    draws = np.random.default_rng(0)
    for _ in range(150):
        loss = model(**train.__getitems__(draws.integers(0, len(train), 32))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        after = model(**batch).loss.item()
    assert after < baseline - 0.05 < before


# LogNormMix


def one_lognormal(mean, scale, mean_interval=1.0):
    """One component whatever the history: log tau ~ N(mean, scale^2), but for the shift and the tail rate."""
    model = tiny_lognormmix(num_components=1).double().eval()
    model.mean_interval.fill_(mean_interval)
    with torch.no_grad():
        model.mixture.weight.zero_()
        model.mixture.bias.copy_(torch.tensor([0.0, mean - math.log(mean_interval), math.log(scale)]))
    return model


@pytest.mark.parametrize("mean, scale, mean_interval", [(0.0, 1.0, 1.0), (0.7, 0.4, 1.0), (2.0, 0.9, 30.0)])
def test_one_component_is_the_shifted_log_normal_of_scipy(mean, scale, mean_interval):
    model = one_lognormal(mean, scale, mean_interval)
    exact = stats.lognorm(s=scale, scale=math.exp(mean), loc=-lognormmix._SHIFT * mean_interval)
    taus = torch.cat([torch.zeros(1, dtype=torch.float64), log_grid(1e-3, 1e3, 61)[0]])
    states = torch.zeros(len(taus), 8, dtype=torch.float64)
    log_total, log_observed, compensator = model.score_intervals(states, taus, torch.arange(len(taus)) % C)
    rate = lognormmix._TAIL_RATE / mean_interval
    survival, density = exact.sf(taus) / exact.sf(0), exact.pdf(taus) / exact.sf(0)
    torch.testing.assert_close(compensator.detach().numpy(), -np.log(survival) + rate * taus.numpy())
    torch.testing.assert_close((1 - torch.exp(rate * taus - compensator)).detach().numpy(), 1 - survival)
    torch.testing.assert_close(log_total.exp().detach().numpy(), density / survival + rate)
    marks = model.mark_logits.bias.log_softmax(0)[torch.arange(len(taus)) % C]
    torch.testing.assert_close(log_observed - log_total, marks)


def test_mixture_survival_is_one_minus_the_weighted_cdfs(generator):
    model = wild(tiny_lognormmix(num_components=3))
    model.fit_time_scale(5 * torch.rand(50, generator=generator, dtype=torch.float64) ** 2)
    state = some_states(model, generator)[-1].detach()
    weights, means, scales = model.mixture(state).detach().view(3, 3)
    weights, scales = weights.softmax(0).numpy(), scales.clamp(*lognormmix._LOG_SCALE_RANGE).exp().numpy()
    mean_interval, log_mean, log_std = (x.item() for x in (model.mean_interval, model.log_mean, model.log_std))

    def cdf(tau):
        logs = math.log(tau / mean_interval + lognormmix._SHIFT)
        return weights @ stats.norm.cdf(((logs - log_mean) / log_std - means.numpy()) / scales)

    for tau in (1e-4, 0.03, 0.5, 2.0, 11.0):
        survival = math.exp(-model.total_compensator(state, torch.tensor(tau, dtype=torch.float64)).item())
        expected = (1 - cdf(tau)) / (1 - cdf(0.0)) * math.exp(-lognormmix._TAIL_RATE * tau / mean_interval)
        assert survival == pytest.approx(expected, rel=1e-9)


def test_marks_of_the_mixture_hear_the_interval_in_interval_mode_alone(generator):
    for mark_mode, heard in (("history", False), ("interval", True)):
        model = wild(tiny_lognormmix(mark_mode))
        states = some_states(model, generator)
        rates = [model.mark_intensities(states, torch.full((5,), tau, dtype=torch.float64)) for tau in (0.01, 2.0)]
        short, long = (rate / rate.sum(-1, keepdim=True) for rate in rates)
        assert ((short - long).abs().amax() > 0.01) == heard


def test_mixture_measures_time_by_the_positive_intervals():
    model = tiny_lognormmix()
    model.fit_time_scale(torch.tensor([0.0, 2.0, 8.0]))
    assert model.mean_interval.item() == 5.0 and model.time_scales.tolist() == [2.0, 2.0, 8.0]
    assert model.log_mean.item() == pytest.approx(math.log(4 / 5), abs=1e-4)
    assert model.log_std.item() == pytest.approx(math.log(2), abs=1e-4)
    model.fit_time_scale(torch.full((3,), 7.0))  # a metronome
    assert model.log_std.item() > 0
    with pytest.raises(ValueError, match="positive intervals"):
        model.fit_time_scale(torch.zeros(5))


# futures, event by event


@pytest.mark.parametrize("padding", PADDINGS)
def test_extending_a_past_is_encoding_it_whole(model, generator, padding):
    times, marks, mask = random_events(4, 9, C, generator, padding)
    later = times.amax(1, keepdim=True) + torch.rand(4, 5, generator=generator, dtype=torch.float64).cumsum(1)
    kinds = torch.randint(C, later.shape, generator=generator)
    with torch.no_grad():
        past = model.past(times, marks, mask)
        for step in range(6):
            whole = torch.cat([times, later[:, :step]], 1), torch.cat([marks, kinds[:, :step]], 1)
            states, last_times = model._before(*whole, torch.cat([mask, torch.ones(4, step, dtype=torch.bool)], 1))
            torch.testing.assert_close(past.states, states[:, 0], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(past.last_times, last_times[:, 0], rtol=0, atol=0)
            if step < 5:
                past = model.extend(past, later[:, step], kinds[:, step])
        # Only some rows go on.
        some = model.extend(past.rows(torch.tensor([3, 1])), later[[3, 1], -1], kinds[[3, 1], -1])
        torch.testing.assert_close(some.states, model.extend(past, later[:, -1], kinds[:, -1]).states[[3, 1]])


@pytest.mark.parametrize("name", ["fullynn", "fullynn-recent", "lognormmix-recent", "hawkes", "attention"])
def test_extending_a_past_in_single_precision(name, generator):
    model = BACKBONES[name]().float()
    times, marks, mask = random_events(3, 9, C, generator, "anywhere", torch.float32)
    later, kinds = times.amax(1) + 0.5, torch.tensor([0, 3, 5])
    with torch.no_grad():
        past = model.extend(model.past(times, marks, mask), later, kinds)
        whole = torch.cat([times, later[:, None]], 1), torch.cat([marks, kinds[:, None]], 1)
        states, _ = model._before(*whole, torch.cat([mask, torch.ones(3, 1, dtype=torch.bool)], 1))
    assert past.states.dtype == torch.float32
    torch.testing.assert_close(past.states, states[:, 0], rtol=1e-5, atol=1e-6)


def test_next_events_end_where_the_compensator_says(model, generator):
    times, marks, mask = random_events(4, 9, C, generator, "front")
    targets = -torch.log(torch.rand(4, generator=generator, dtype=torch.float64))
    shares = torch.tensor([0.0, 0.3, 0.7, 1 - 2**-53], dtype=torch.float64)
    with torch.no_grad():
        past = model.past(times, marks, mask)
        drawn, kinds = model.next_events(past, targets, shares)
        intervals = drawn - past.last_times
        torch.testing.assert_close(model.total_compensator(past.states, intervals), targets, rtol=1e-4, atol=1e-5)
        intensities = model.mark_intensities(past.states, intervals)
    reached = F.pad((intensities / intensities.sum(1, keepdim=True)).cumsum(1), (1, 0))
    assert (reached.gather(1, kinds[:, None])[:, 0] <= shares + 1e-12).all()
    assert (reached.gather(1, kinds[:, None] + 1)[:, 0] >= shares - 1e-12).all()
