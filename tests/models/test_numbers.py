"""Numbers stay numbers: at any scale of time, in any unit, in either precision, whatever stands beside them."""

import math

import numpy as np
import pytest
import torch

from ehd_hf import EHDDistiller, FullyNNConfig, FullyNNModel, dppl, load_events
from ehd_hf.data.windows import make_crops, make_windows
from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.training.trainer import Trainer, TrainingArguments
from helpers import random_events, random_window, wild

GAPS = [0.0, 1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9, 1e12]
SCALES = [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9]
SIZES = {"num_marks": 3, "embedding_size": 4, "hidden_size": 5, "num_components": 6}
MODELS = {
    "fullynn": lambda: FullyNNModel(FullyNNConfig(**SIZES)),
    "fullynn, recent marks": lambda: FullyNNModel(FullyNNConfig(recent_marks=True, **SIZES)),
    "lognormmix": lambda: LogNormMixModel(LogNormMixConfig(**SIZES)),
    "lognormmix, interval": lambda: LogNormMixModel(LogNormMixConfig(mark_mode="interval", **SIZES)),
    "hawkes": lambda: HawkesModel(HawkesConfig(num_marks=3, num_scales=4, num_shapes=3)),
    "attention": lambda: AttentionModel(AttentionConfig(num_marks=3, hidden_size=8, num_heads=2, num_components=6)),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def ones(times):
    return torch.ones(times.shape, dtype=torch.bool)


# --- finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", SCALES)
def test_gaps_from_0_to_1e12_have_finite_likelihoods_and_gradients(model, scale, dtype):
    model.fit_time_scale(scale * torch.rand(50, dtype=torch.float64))
    model = model.to(dtype)
    times = torch.tensor(GAPS, dtype=dtype)[:, None].expand(-1, 3).cumsum(1)  # one gap three times, a row for each
    marks = torch.arange(3).expand(len(GAPS), -1)
    output = model(times, marks, ones(times))
    assert output.log_prob.isfinite().all() and output.compensator.isfinite().all()
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("spread", [(1e-9, 1e12), (1e-9, 1e-9), (1e12, 1e12), (1e-30, 1e30)])
def test_the_time_scale_of_any_data_is_finite_and_positive(model, spread):
    logs = torch.linspace(math.log10(spread[0]), math.log10(spread[1]), 40, dtype=torch.float64)
    model.fit_time_scale(10**logs)
    for name, value in model.named_buffers():
        assert value.isfinite().all(), name
        assert (value > 0).all() or name in ("log_mean",), name


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_compensators_never_fall_from_0_to_1e12(model, scale):
    model.fit_time_scale(scale * torch.rand(50, dtype=torch.float64))
    model = model.double()
    silences = torch.cat([torch.zeros(1), torch.logspace(-12, 12, 400)]).double()
    times, marks, mask = random_events(1, 5, 3, torch.Generator().manual_seed(1), "none")
    states = model.encode_history(times * scale, marks, mask, None)[0][:, -1].expand(len(silences), -1)
    values = model.total_compensator(states, silences).detach()
    assert values[0] == 0
    assert (values.diff() >= -1e-15).all()  # of curves that rise by less than rounding can tell


# --- invariant


@pytest.mark.parametrize("factor", [1e-9, 1 / 3600, 60.0, 1e6, 1e9])
def test_another_unit_of_time_shifts_each_log_likelihood_by_its_logarithm(model, factor):
    generator = torch.Generator().manual_seed(1)
    times, marks, mask = random_events(3, 7, 3, generator, "none")
    gaps = torch.rand(50, generator=generator, dtype=torch.float64)
    model = model.double()
    model.fit_time_scale(gaps)
    before = model(times, marks, mask).log_prob
    model.fit_time_scale(gaps * factor)
    after = model(times * factor, marks, mask).log_prob
    torch.testing.assert_close(after + math.log(factor), before, rtol=1e-6, atol=1e-6)  # statistics are in float32


@pytest.mark.parametrize("name", ["fullynn", "lognormmix"])
def test_marks_by_other_numbers_change_nothing(name):
    torch.manual_seed(0)
    model = wild(MODELS[name](), 0.5)
    times, marks, mask = random_events(3, 7, 3, torch.Generator().manual_seed(2), "none")
    before = model(times, marks, mask).log_prob
    order = torch.tensor([2, 0, 1])  # the old number of each new mark
    with torch.no_grad():
        logits = [model.emission_logits] if name == "fullynn" else [*model.mark_logits.parameters()]
        for weight in [model.encoder.mark_embedding.weight, *logits]:
            weight.copy_(weight[order])
    after = model(times, order.argsort()[marks], mask).log_prob
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_float32_is_within_1e_4_of_float64(model, scale):
    generator = torch.Generator().manual_seed(3)
    times, marks, mask = random_events(5, 60, 3, generator, "end")
    model.fit_time_scale(scale * torch.rand(50, generator=generator, dtype=torch.float64))
    single = model(times.float() * scale, marks, mask).log_prob
    # The same times: what float32 cannot hold was lost before the model.
    double = model.double()((times.float() * scale).double(), marks, mask).log_prob
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_full_history_drops_by_exactly_zero_at_every_scale(model, conditioning, dtype):
    for scale in (1e-9, 1.0, 1e9):
        window = random_window(3, 5, 4, 3, 4)
        window = window._replace(times=(scale * window.times).to(dtype))
        assert (dppl(model.to(dtype), window, torch.ones(3, 5, dtype=dtype), conditioning=conditioning) == 0).all()


# --- training

HARD_DATA = {
    "bursts": lambda draw: np.concatenate([[0.0], np.where(np.arange(39) % 8, 1e-6, 1e4) * draw.exponential(size=39)]),
    "ties": lambda draw: np.where(draw.random(40) < 0.7, 0.0, 1.0),
    "a constant": lambda draw: np.full(40, 2.5),
    "a heavy tail": lambda draw: draw.pareto(0.3, size=40).clip(max=1e12),
}


@pytest.mark.parametrize("kind", HARD_DATA)
@pytest.mark.parametrize("name", ["fullynn", "lognormmix", "hawkes", "attention"])
def test_training_does_not_diverge_on_hard_data(tmp_path, name, kind):
    draw = np.random.default_rng(0)
    times = [np.cumsum(HARD_DATA[kind](draw)) for _ in range(6)]
    events = load_events({"times": times, "marks": [draw.integers(3, size=40) for _ in times]}, num_marks=3)
    torch.manual_seed(0)
    model = MODELS[name]()
    model.fit_time_scale(torch.from_numpy(events.intervals()))
    data = make_crops(events, length=40).select(range(0, 126, 21))
    before = model(**data.__getitems__(range(6))).loss.item()
    options = {"steps": 40, "warmup_steps": 4, "batch_size": 4, "eval_every": 40, "learning_rate": 1e-2}
    args = TrainingArguments(out=str(tmp_path / "run"), progress=False, num_threads=1, **options)
    after = Trainer(model, args, data, data).train()["eval_loss"]
    assert math.isfinite(after) and after < before


# --- what is no number is caught by name


@pytest.fixture(params=[name for name in MODELS if name != "hawkes"])  # which has no embeddings
def poisoned(request):
    """Mark 2 has no embedding that is a number."""
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    with torch.no_grad():
        model.encoder.mark_embedding.weight[2] = torch.nan
    return model


NAMED = {"times": [[0.0, 1.0, 2.0, 3.0]] * 3, "marks": [[0, 1, 0, 1], [0, 2, 0, 1], [1, 1, 1, 1]], "seq_id": [*"abc"]}


def test_an_explanation_that_is_no_number_names_its_sequence(poisoned):
    explainer = EHDDistiller.from_mtpp(poisoned)
    with pytest.raises(ValueError, match="sequence 'b' has none. Check the model's weights"):
        explainer.explain(load_events(NAMED), future=1)
    with pytest.raises(ValueError, match="sequence 'b' has none"):
        explainer.attribute(load_events(NAMED), future=1)
    assert len(explainer.explain(load_events(NAMED).select([0, 2]), future=1)) == 2


def test_training_stops_before_a_loss_that_is_no_number(poisoned, tmp_path):
    data = make_windows(load_events(NAMED), future=1, history=2)
    weights = {name: value.clone() for name, value in poisoned.state_dict().items()}
    args = TrainingArguments(out=str(tmp_path / "run"), steps=3, batch_size=8, progress=False, num_threads=1)
    with pytest.raises(ValueError, match="loss became nan at step 0, with sequence b in the batch.*learning rate"):
        Trainer(poisoned, args, make_crops(data.sequences, length=4).select([0, 3, 6])).train()
    # What is there is the checkpoint of the beginning.
    assert [path.name for path in (tmp_path / "run").rglob("*step*")] == ["step-00000000"]
    for name, value in poisoned.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=0, equal_nan=True)
