"""Context events, causes that are never predicted: over every backbone, against a closed form and slow references."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from scipy import integrate
from torch.nn import functional as F

from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.ensemble import EnsembleModel
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.perplexity import dppl, dppl_parts, future_log_prob, keep_gradient, log_perplexity
from ehd_hf.models.window import asked_of
from helpers import random_events, random_window, wild

C, CONTEXT = 5, (1, 4)
CONTEXT_MASK = torch.tensor([mark in CONTEXT for mark in range(C)])
COMMON = {"num_marks": C, "context_marks": ["1", "4"]}
RNN = {"embedding_size": 4, "hidden_size": 6, "num_components": 4}


def hawkes():
    return HawkesModel(HawkesConfig(num_scales=3, num_shapes=2, **COMMON))


def fullynn(**config):
    return FullyNNModel(FullyNNConfig(**COMMON, **RNN, **config))


def lognormmix(**config):
    return LogNormMixModel(LogNormMixConfig(**COMMON, **RNN, **config))


BACKBONES = {
    "hawkes": hawkes,
    "fullynn": fullynn,
    "fullynn-recent": lambda: fullynn(recent_marks=True),
    "lognormmix": lognormmix,
    "lognormmix-interval": lambda: lognormmix(mark_mode="interval", recent_marks=True),
    "attention": lambda: AttentionModel(AttentionConfig(hidden_size=8, num_heads=2, num_components=4, **COMMON)),
    "ensemble": lambda: EnsembleModel.of([fullynn(), hawkes()]),
}


@pytest.fixture(params=BACKBONES)
def model(request):
    torch.manual_seed(0)
    return wild(BACKBONES[request.param](), 0.3)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def slow_scores(model, times, marks):
    """log p of each event of one row (T,): intensities on the clock, integrated since the event before."""
    scores = []
    for i in range(len(times)):
        past = times[None, :i], marks[None, :i], torch.ones(1, i, dtype=torch.bool)
        last = float(times[i - 1]) if i else 0.0

        def total(lag, past=past, last=last):
            query = torch.tensor([[last + max(lag, 1e-12)]], dtype=torch.float64)
            return float(model.intensity(*past, query)[0, 0].sum())

        silence = float(times[i]) - last
        points = [silence * share for share in (1e-6, 1e-4, 1e-2, 0.1, 0.3)]
        score = -integrate.quad(total, 0, silence, points=points, limit=400, epsabs=1e-10)[0] if silence else 0.0
        if int(marks[i]) not in CONTEXT:
            query = torch.tensor([[float(times[i])]], dtype=torch.float64)
            score += math.log(float(model.intensity(*past, query)[0, 0, marks[i]]))
        scores.append(score)
    return scores


@torch.no_grad()
def test_of_a_context_event_the_silence_before_it_counts(model):
    times = torch.tensor([0.4, 1.0, 1.7, 2.9, 3.3], dtype=torch.float64)
    marks = torch.tensor([0, 1, 2, 4, 3])
    output = model.event_log_prob(times[None], marks[None], torch.ones(1, 5, dtype=torch.bool))
    assert output.log_prob[0].tolist() == pytest.approx(slow_scores(model, times, marks), abs=2e-6)
    assert output.mark_log_prob[0, [1, 3]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(output.time_log_prob[0, [1, 3]], -output.compensator[0, [1, 3]])


def test_a_hawkes_process_with_context_by_hand():
    model = HawkesModel(HawkesConfig(num_marks=2, num_scales=1, num_shapes=1, context_marks=["1"])).double()
    scale, mu, (a, b) = 2.0, model.rates.sum().item(), model.branching[:, 0].tolist()
    model.scales.fill_(scale)
    assert model.rates[1] == 0 and model.branching[:, 1].tolist() == [0, 0]
    # A context event at 1, a predicted one at 3, and again a context event at 4.
    times, marks = torch.tensor([[1.0, 3.0, 4.0]], dtype=torch.float64), torch.tensor([[1, 0, 1]])
    left = math.exp(-2 / scale)
    expected = [-mu, math.log(mu + b / scale * left) - 2 * mu - b * (1 - left)]
    expected.append(-mu - b * (left - math.exp(-3 / scale)) - a * (1 - math.exp(-1 / scale)))
    scores = model.event_log_prob(times, marks, torch.ones(1, 3, dtype=torch.bool)).log_prob
    assert scores[0].tolist() == pytest.approx(expected)


@torch.no_grad()
def test_context_is_never_expected_nor_drawn(model, generator):
    times, marks, mask = random_events(4, 7, C, generator, "end")
    query = times.masked_fill(~mask, 0).amax(1, keepdim=True) + torch.tensor([0.1, 1.0, 5.0])
    intensities = model.intensity(times, marks, mask, query)
    assert (intensities[..., CONTEXT_MASK] == 0).all() and (intensities[..., ~CONTEXT_MASK] > 0).all()
    drawn = model.sample_next(times, marks, mask, 200, generator)[1]
    assert not CONTEXT_MASK[drawn].any() and len(drawn.unique()) == 3
    probability = model.predict_next(times, marks, mask)[1]
    torch.testing.assert_close(probability.sum(-1), torch.ones(4, dtype=torch.float64))
    past = model.past(times, marks, mask)
    uniform = torch.linspace(0, 1 - 1e-12, 4, dtype=torch.float64)
    assert not CONTEXT_MASK[model.next_events(past, torch.ones(4, dtype=torch.float64), uniform)[1]].any()


@torch.no_grad()
@pytest.mark.parametrize("padding", ["none", "end", "front", "anywhere"])
def test_deleting_context_is_exact(model, padding, generator):
    times, marks, mask = random_events(4, 8, C, generator, padding)
    keep = (torch.rand(4, 8, generator=generator) > 0.5).double()
    scores = model.event_log_prob(times, marks, mask, keep=keep)
    for row in range(4):
        kept = (mask[row] & (keep[row] > 0)).nonzero()[:, 0]
        alone = model.event_log_prob(*(values[row : row + 1, kept] for values in (times, marks, mask)))
        for name in ("log_prob", "mark_log_prob", "compensator"):
            torch.testing.assert_close(scores[name][row, kept], alone[name][0])


def test_context_events_are_not_counted_and_all_weights_learn(model, generator):
    times, marks, mask = random_events(3, 9, C, generator, "end")
    output = model(times, marks, mask)
    assert output.num_items == (mask & ~CONTEXT_MASK[marks]).sum()
    torch.testing.assert_close(output.loss * output.num_items, -output.log_prob.sum())
    output.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_a_future_is_scored_up_to_its_last_predicted_event(model, conditioning, generator):
    window = random_window(5, 6, 4, C, 3)
    window.marks[:, 6:] = torch.tensor([[1, 0, 4, 2], [0, 0, 1, 1], [4, 4, 3, 1], [0, 1, 2, 3], [2, 2, 2, 2]])
    keep = (torch.rand(5, 6, generator=generator) > 0.4).double()
    assert asked_of(model, window).num_scored.tolist() == [2, 2, 1, 3, 4]
    with torch.no_grad():
        scores = model.event_log_prob(
            *window[:3],
            keep=keep,
            num_last=4,
            survived_until=window.split_time if conditioning == "survival" else None,
        ).log_prob
    counted = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    expected = -(scores * counted).sum(1) / torch.tensor([2, 2, 1, 3, 4])
    for rebuilder in ("gate", "select", "compact"):
        with torch.no_grad():
            value = log_perplexity(model, window, keep, conditioning=conditioning, rebuilder=rebuilder)
        torch.testing.assert_close(value, expected)
    parts = dppl_parts(model, window, keep, conditioning=conditioning)
    torch.testing.assert_close(parts.total, dppl(model, window, keep, conditioning=conditioning).detach())
    assert keep_gradient(model, window, keep, conditioning=conditioning).isfinite().all()


@torch.no_grad()
def test_of_one_event_asked_about_the_silences_before_it_count():
    model = wild(hawkes(), 0.3)
    window = random_window(1, 4, 4, C, 0)
    window.marks[:, 4:] = torch.tensor([[0, 1, 4, 2]])
    scored = torch.tensor([[False, False, False, True]])
    scores = future_log_prob(model, window._replace(scored=scored)).log_prob
    whole = model.event_log_prob(*window[:3], num_last=4).log_prob
    torch.testing.assert_close(scores, whole * torch.tensor([[0.0, 1, 1, 1]]))


@torch.no_grad()
@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("one", [False, True])
def test_one_pass_for_all_masks_knows_context(conditioning, one, generator):
    model, window = wild(hawkes(), 0.3), random_window(6, 5, 4, C, 5)
    if one:
        scored = torch.zeros(6, 4, dtype=torch.bool)
        window = asked_of(model, window._replace(scored=scored | (torch.arange(4) == 2)))
    else:
        window.marks[:, -1] = 0
    keep = torch.rand(6, 5, generator=generator) > 0.5
    future = model.future_of_masks(window, conditioning, apart=True)
    expected = future_log_prob(model, window, keep.double(), conditioning=conditioning)
    torch.testing.assert_close(future.log_prob(keep, torch.arange(6)), expected.log_prob.sum(1))
    torch.testing.assert_close(future.mark_log_prob(keep, torch.arange(6)), expected.mark_log_prob.sum(1))


@torch.no_grad()
def test_leaving_out_context_is_deleting_it(model, generator):
    times, marks, mask = random_events(3, 7, C, generator, "front")
    marks[:, -1], mask[:, -1] = 2, True
    times[:, -1] = times.masked_fill(~mask, 0).amax(1) + 0.3
    observed, total = model.leave_one_out(times, marks, mask)
    for row, place in [(0, 3), (1, 5), (2, 4)]:
        gone = mask.clone()
        gone[row, place] = False
        query = times[:, -1:]
        values = model.intensity(*(x[:, :-1] for x in (times, marks, gone)), query)[row, 0]
        torch.testing.assert_close(observed[row, 1 + place].exp(), values[2])
        torch.testing.assert_close(total[row, 1 + place].exp(), values.sum())


def test_shares_of_parents_are_of_predicted_events():
    model = wild(hawkes(), 0.3)
    times, marks = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64), torch.tensor([[0, 1, 2]])
    shares = model.parent_shares(times, marks, torch.ones(1, 3, dtype=torch.bool))[0]
    assert (shares[1] == 0).all() and (shares[2, :2] > 0).all()


def test_a_function_scores_context_by_the_silence_alone():
    def log_prob(times, marks, mask):
        silence = times - F.pad(times, (1, 0))[:, :-1]
        return torch.where(marks == 0, math.log(0.5), 0.0) - 0.5 * silence, torch.full_like(times, 7.0)

    model = from_callable(log_prob, id2label={0: "a", 1: "deploy"}, context_marks=["deploy"])
    times, marks = torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[0, 1]])
    scores = model.event_log_prob(times, marks, torch.ones(1, 2, dtype=torch.bool))
    assert scores.log_prob[0].tolist() == pytest.approx([math.log(0.5) - 0.5 + 7, -1.0])


@pytest.mark.parametrize(
    "names, message",
    [(["0", "1"], "must leave a mark to predict; got all of them. Name fewer"), (["9"], "got '9'. Correct the name")],
)
def test_wrong_context_marks_say_what_is_wrong(names, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        HawkesConfig(num_marks=2, context_marks=names)


def test_context_is_stored_with_a_model(tmp_path):
    hawkes().save_pretrained(tmp_path)
    assert HawkesModel.from_pretrained(tmp_path).context.tolist() == CONTEXT_MASK.tolist()
