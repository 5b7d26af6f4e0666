"""MTPP-EHD: samples, losses and metrics by hand, what learns and what stays frozen, checkpoints, small trainings."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from torch import nn
from transformers import AutoModel

from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import make_crops, make_windows
from ehd_hf.models import ehd, window_encoder
from ehd_hf.models.ehd import EHDDistillerConfig, EHDDistillerModel, sample_masks
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.window import Window
from ehd_hf.training.trainer import Trainer, TrainingArguments
from helpers import TINY, AdditiveMTPP, PoissonMTPP, random_window, tiny_fullynn, watched

B, S, L, K, C = 3, 5, 7, 4, 6
LABELS = {mark: f"mark {mark}" for mark in range(C)}


def small_mtpp(**config):
    return tiny_fullynn(**{"num_marks": C, "id2label": LABELS, **config})


def small_distiller(mtpp=None, **config):
    mtpp = small_mtpp() if mtpp is None else mtpp
    torch.manual_seed(1)
    return EHDDistillerModel.from_mtpp(mtpp, **{"history": L, "future": K, **TINY, **config})


def windows_of(seed=0):
    return random_window(B, L, K, C, seed, dtype=torch.float32)


class FixedLogits(EHDDistillerModel):
    """A distiller that says what it is told, of an MTPP worked out by hand."""

    def __init__(self, mtpp, logits, **config):
        inner = {"model_type": "fullynn", "num_marks": mtpp.config.num_marks}
        super().__init__(EHDDistillerConfig(mtpp_config=inner, **{**TINY, **config}))
        self.mtpp = mtpp.eval().requires_grad_(False)
        self.fixed = nn.Parameter(torch.as_tensor(logits, dtype=torch.float64))

    def history_logits(self, window):
        return self.fixed


def sure(*rows):
    """Logits (B, L, 2) that distil where a row has a 1, whatever is drawn."""
    distil = torch.tensor(rows, dtype=torch.float64)
    return torch.stack([1000 * (1 - distil), 1000 * distil], dim=-1)


# History 1, 2, 4 and future 5, 5.5, 8, twice; 0.75 events per unit of time. Removing the last events adds silence:
# dppl_left is -0.75 * silence / 3, that is -0.5 without 4, -0.75 without 2 and 4, -1 without any. log(0.5) = -0.693.
POISSON = [0.5, 0.25]
TIMES = torch.tensor([[1.0, 2.0, 4.0, 5.0, 5.5, 8.0]] * 2, dtype=torch.float64)
MARKS = torch.tensor([[0, 1, 0, 1, 0, 1]] * 2)
MASK = torch.ones_like(MARKS, dtype=torch.bool)
BY_HAND = {"times": TIMES, "marks": MARKS, "mask": MASK, "num_future": 3}


# --- samples


def test_samples_are_exactly_zero_or_one():
    logits = 3 * torch.randn(B, L, 2, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    samples = sample_masks(logits.requires_grad_(), 200, 0.7)
    assert samples.shape == (200, B, L) and samples.requires_grad
    assert set(samples.unique().tolist()) == set((1 - samples).unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_events_are_drawn_with_their_probability_at_any_temperature(tau):
    logits = torch.tensor([[[0.0, 0.0], [2.0, 0.5], [-1.0, 1.5], [7.0, 7.4]]])
    torch.manual_seed(1)
    counts = sample_masks(logits, 4000, tau).sum(0)[0]
    for count, probability in zip(counts.tolist(), logits.softmax(-1)[0, :, 1].tolist(), strict=True):
        assert binomtest(int(count), 4000, probability).pvalue > 1e-3


def test_samples_of_different_events_and_draws_are_independent():
    torch.manual_seed(2)
    samples = sample_masks(torch.zeros(2, 3, 2), 4000, 1.0).flatten(1)  # (4000, 6)
    assert (torch.corrcoef(samples.t()) - torch.eye(6)).abs().max() < 0.06
    assert torch.corrcoef(torch.stack([samples[:-1, 0], samples[1:, 0]]))[0, 1].abs() < 0.06


def test_the_gradient_of_a_sample_is_that_of_the_soft_one():
    logits = torch.randn(B, L, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    torch.manual_seed(4)
    (straight,) = torch.autograd.grad(sample_masks(logits, S, 0.8).sum(), logits)
    torch.manual_seed(4)
    noise = torch.empty(S, B, L, 2, dtype=torch.float64).exponential_().log()
    soft = ((logits.log_softmax(-1) - noise) / 0.8).softmax(-1)[..., 1]
    (gradient,) = torch.autograd.grad(soft.sum(), logits)
    torch.testing.assert_close(straight, gradient)
    assert (straight[..., 1] > 0).all() and torch.allclose(straight[..., 0], -straight[..., 1])


# --- losses by hand


@pytest.mark.parametrize(
    ("distilled", "epsilon", "hinge"),
    [
        ((0, 0, 0), 0.5, math.log(2)),
        ((1, 1, 0), 0.5, math.log(2)),  # the Poisson process minds only the silence
        ((0, 0, 1), 0.7, 0.0),  # log(0.7) = -0.357 > -0.5
        ((1, 1, 1), 0.5, 0.0),
        ((1, 1, 1), 1e-6, -1 + 6 * math.log(10)),
    ],
)
def test_the_hinge_opens_and_closes_at_log_epsilon(distilled, epsilon, hinge):
    output = FixedLogits(PoissonMTPP(POISSON), sure(distilled, distilled), epsilon=epsilon).train()(**BY_HAND)
    assert output.constraint_loss.item() == pytest.approx(hinge, abs=1e-9)
    assert output.size_loss.item() == pytest.approx(sum(distilled) / 3)


@pytest.mark.parametrize(("alpha", "constraint_weight"), [(0, 1), (1, 0), (2.5, 0.25), (0, 0)])
def test_the_loss_weighs_its_two_parts(alpha, constraint_weight):
    weights = {"alpha": alpha, "constraint_weight": constraint_weight}
    output = FixedLogits(PoissonMTPP(POISSON), sure((0, 0, 1), (0, 1, 1)), **weights).train()(**BY_HAND)
    hinge = (-0.5 - math.log(0.5)) / 2
    assert output.loss.item() == pytest.approx(alpha * 0.5 + constraint_weight * hinge, abs=1e-9)


def test_losses_are_means_over_the_mask_samples(monkeypatch):
    samples = torch.tensor([[[0, 0, 1], [0, 1, 1]], [[1, 1, 1], [0, 0, 0]]], dtype=torch.float64)  # (S, B, L)
    drawn = []
    monkeypatch.setattr(ehd, "sample_masks", lambda *arguments: drawn.append(arguments[1:]) or samples)
    model = FixedLogits(PoissonMTPP(POISSON), sure((0, 0, 0), (0, 0, 0)), num_mask_samples=2, tau=0.3).train()
    output = model(**BY_HAND)
    assert drawn == [(2, 0.3)]
    assert output.size_loss.item() == pytest.approx((1 + 2 + 3 + 0) / 12)
    assert output.constraint_loss.item() == pytest.approx((math.log(2) - 0.5 + 0 + 0 + math.log(2)) / 4, abs=1e-9)


@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_losses_of_an_additive_process_by_hand(conditioning):
    mtpp = AdditiveMTPP([0.5, 0.2], [[0.3, 0.1], [0.0, 0.6]])
    times = torch.tensor([[1.0, 3.0, 4.0, 6.0]], dtype=torch.float64)
    window = {"times": times, "marks": torch.tensor([[0, 1, 1, 0]]), "mask": torch.ones(1, 4).bool(), "num_future": 2}
    full = -(math.log(0.9) - 1.7 * 1 + math.log(0.8) - 2.3 * 2) / 2
    first_left = -(math.log(0.3) - 1.1 * (3 if conditioning == "paper" else 1) + math.log(0.8) - 1.7 * 2) / 2
    second_left = -(math.log(0.8) - 1.3 * 1 + math.log(0.5) - 1.9 * 2) / 2
    for distilled, left, other in (((0, 1), first_left, second_left), ((1, 0), second_left, first_left)):
        output = FixedLogits(mtpp, sure(distilled), conditioning=conditioning).eval()(**window)
        assert output.constraint_loss.item() == pytest.approx(max(full - left + math.log(2), 0), abs=1e-9)
        assert output["dppl_left"].item() == pytest.approx(full - left, abs=1e-9)
        assert output["dppl_distilled"].item() == pytest.approx(full - other, abs=1e-9)
        assert output["ds"].item() == pytest.approx(left - other, abs=1e-9)


def test_padding_does_not_count_in_the_losses():
    model = FixedLogits(PoissonMTPP(POISSON), sure((1, 0, 0, 1), (1, 1, 0, 1)), epsilon=0.9).train()
    times = torch.cat([torch.full((2, 1), 77.0), TIMES], dim=1)
    marks, mask = torch.cat([MARKS[:, :1], MARKS], 1), torch.cat([torch.zeros(2, 1).bool(), MASK], 1)
    output = model(times, marks, mask, 3)  # both rows distil the padding too
    assert output.size_loss.item() == pytest.approx((1 / 3 + 2 / 3) / 2)
    output = model.eval()(times, marks, mask, 3)
    assert output["size"].item() == 1.5 and output["dppl_left"].item() == pytest.approx(-0.5)
    mask[:, 1:3] = False  # one event is left, and both distil it
    assert model.train()(times, marks, mask, 3).size_loss.item() == 1.0


def test_the_rebuilder_decides_which_gradients_the_masks_get():
    mtpp = AdditiveMTPP([0.5, 0.2, 0.3], [[0.3, 0.1, 0.2], [0.0, 0.6, 0.1], [0.4, 0.2, 0.9]])
    window = random_window(B, L, K, 3)
    gradients = {}
    for rebuilder in ("select", "gate"):
        model = FixedLogits(mtpp, torch.zeros(B, L, 2), rebuilder=rebuilder, alpha=0, epsilon=1e-9).train()
        torch.manual_seed(5)
        (gradients[rebuilder],) = torch.autograd.grad(model(*window[:4]).loss, model.fixed)
    assert (gradients["select"] - gradients["gate"]).abs().max() > 1e-3


def metrics_of(*distilled):
    model = FixedLogits(PoissonMTPP(POISSON), sure(*distilled)).eval()
    output = watched(model(**BY_HAND))
    return {name: value.item() for name, value in output.items() if not name.endswith("_loss")}


def test_metrics_by_hand():
    expected = {
        "left_share": 1 - 2 / 3,
        "size": 2.0,
        "size_or_all": (3 + 2) / 2,  # the first fails (-0.5), so it counts as all three
        "dppl_left": (-0.5 - 0.75) / 2,
        "dppl_distilled": 0.0,  # both keep the last event: the silence is as it was
        "ds": (0.5 + 0.75) / 2,
        "constraint_met": 0.5,
        "recency_overlap": (1 / 2 + 1) / 2,
    }
    assert metrics_of((1, 0, 1), (0, 1, 1)) == pytest.approx(expected, abs=1e-7)
    # Nothing, and everything: dppl_left is 0 and -1, dppl_distilled -1 and 0.
    expected = {"left_share": 0.5, "size": 1.5, "size_or_all": 3.0, "dppl_left": -0.5, "dppl_distilled": -0.5}
    expected |= {"ds": 0.0, "constraint_met": 0.5, "recency_overlap": 1.0}
    assert metrics_of((0, 0, 0), (1, 1, 1)) == pytest.approx(expected, abs=1e-7)


# --- answers


def test_evaluation_takes_the_argmax():
    model, window = small_distiller().eval(), windows_of()
    output = model(*window[:4])
    chosen = output.logits[..., 1] > output.logits[..., 0]
    distill_mask, probability = model.distill(window)
    assert torch.equal(distill_mask, chosen) and torch.equal(probability, output.logits.softmax(-1)[..., 1])
    drop = dppl(model.mtpp, window, (~chosen).float())
    assert output.constraint_loss.item() == pytest.approx((drop - math.log(0.5)).clamp(min=0).mean().item(), abs=1e-6)
    assert output.size_loss.item() == pytest.approx(chosen.float().mean().item())
    assert output["dppl_left"].item() == pytest.approx(drop.mean().item(), abs=1e-6)


def test_the_answer_and_the_training_metrics_agree_on_the_closest_calls():
    logits = torch.zeros(2, 3, 2, dtype=torch.float32)
    logits[0, 2, 1] = 1e-9  # larger, if only just
    model = FixedLogits(PoissonMTPP(POISSON), logits).eval()
    model.fixed.data = logits
    distill_mask, _ = model.distill(Window(**BY_HAND))
    assert distill_mask.sum(-1).float().mean() == model(**BY_HAND).size


def test_positions_count_from_the_split():
    encoder, (times, marks, mask, *_) = small_distiller().window_encoder, windows_of(8)
    with torch.no_grad():
        for parameter in (encoder.mark_input.weight, *encoder.time_input.parameters(), *encoder.input.parameters()):
            parameter.zero_()  # the position alone remains
        whole = encoder._embed(times, marks, mask, L, torch.tensor(1.0))
        short = encoder._embed(times[:, 4:], marks[:, 4:], mask[:, 4:], L - 4, torch.tensor(1.0))
    assert torch.equal(whole[:, 4:], short)
    assert whole[0, L].tolist() == [0.0, 1.0] * (TINY["hidden_size"] // 2)  # the first future event is at 0
    assert whole[0, L - 1, 0].item() == pytest.approx(math.sin(-1)) and len(whole[0].unique(dim=0)) == L + K


def attended_slowly(query, key, value, allowed):
    """One query of one head (D,) to those of its memory (M, D) that are allowed: weights by hand, no softmax."""
    scores = [sum(float(a) * float(b) for a, b in zip(query, one, strict=True)) for one in key]
    weights = [math.exp(score - max(scores)) * bool(may) for score, may in zip(scores, allowed, strict=True)]
    return sum(weight * one for weight, one in zip(weights, value, strict=True)) / sum(weights)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [127, 128, 129, 200])  # written out up to 128, as `how` says beyond
@pytest.mark.parametrize("masked", ["nothing", "the end", "here and there"])
def test_attention_to_long_memories_is_that_to_short_ones(length, masked, how):
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 2, number, 5, dtype=torch.float64) for number in (4, length, length))
    allowed = torch.ones(3, 1, 1, length, dtype=torch.bool)
    if masked == "the end":
        for row in range(3):
            allowed[row, ..., length - 10 * row - 3 :] = False
    elif masked == "here and there":
        allowed = torch.rand(allowed.shape) < 0.6
    config = EHDDistillerConfig(hidden_size=10, attention_size=10, num_heads=2, attn_implementation=how)
    attention = window_encoder.Attention(config)
    found = attention.attend(query, key, value, None if masked == "nothing" else allowed).transpose(1, 2)
    assert found.shape == (3, 2, 4, 5) and found.dtype == torch.float64
    for row, head, position in itertools.product(range(3), range(2), range(4)):
        parts = (query[row, head, position], key[row, head], value[row, head], allowed[row, 0, 0])
        torch.testing.assert_close(found[row, head, position], attended_slowly(*parts), rtol=0, atol=1e-6)


def test_the_head_sees_marks_times_and_the_future():
    model, (times, marks, mask, *_) = small_distiller().eval(), windows_of(4)
    logits = model(times, marks, mask).logits
    future = torch.arange(L + K) >= L
    other_future, later = (marks + future) % C, times + 5.0 * future
    for changed in ((times, (marks + 1) % C), (times * 3, marks), (times, other_future), (later, marks)):
        assert (model(*changed, mask).logits - logits).abs().amax(dim=(1, 2)).min() > 1e-4


# --- what learns and what does not


def test_from_mtpp_copies_the_weights_and_shares_none():
    mtpp = small_mtpp()
    mtpp.fit_time_scale(torch.tensor([0.5, 1.5, 4.0]))
    model = small_distiller(mtpp)
    assert all(torch.equal(value, model.mtpp.state_dict()[name]) for name, value in mtpp.state_dict().items())
    assert model.mtpp.mean_interval == 2.0 and model.config.id2label == LABELS
    assert all(parameter.requires_grad for parameter in mtpp.parameters())
    with torch.no_grad():
        mtpp.amplitude.weight.zero_()
    assert (model.mtpp.amplitude.weight != 0).any()
    assert model.config.mtpp_config is not mtpp.config


def test_from_mtpp_takes_a_folder_and_refuses_what_is_no_point_process(tmp_path):
    mtpp, window = small_mtpp(), windows_of()
    mtpp.save_pretrained(tmp_path / "mtpp")
    small_distiller(mtpp).save_pretrained(tmp_path / "distiller")
    from_folder = EHDDistillerModel.from_mtpp(tmp_path / "mtpp", **TINY)
    assert torch.equal(from_folder.mtpp(*window[:3]).log_prob, mtpp.eval()(*window[:3]).log_prob)
    with pytest.raises(ValueError, match="needs a marked temporal point process; got EHDDistillerModel"):
        EHDDistillerModel.from_mtpp(tmp_path / "distiller")
    with pytest.raises(ValueError, match="from_mtpp"):  # no distiller
        EHDDistillerModel.from_pretrained(tmp_path / "mtpp")


@pytest.mark.parametrize(("dropped", "part"), [("mtpp.", "mtpp.amplitude"), ("distill_head.", "distill_head.bias")])
def test_a_checkpoint_without_one_of_its_parts_is_refused(tmp_path, dropped, part):
    small_distiller().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith(dropped)}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for cls in (EHDDistillerModel, AutoModel):
        with pytest.raises(ValueError, match=f"lacks {part}.*from_mtpp"):
            cls.from_pretrained(tmp_path)


def test_the_defaults_are_the_papers():
    config = EHDDistillerConfig()
    assert (config.hidden_size, config.input_size, config.attention_size, config.num_heads) == (64, 32, 32, 4)
    assert (config.num_mask_samples, config.epsilon, config.alpha, config.tau) == (4, 0.5, 1.0, 1.0)
    assert (config.conditioning, config.rebuilder, config.max_length) == ("paper", "select", 4096)
    assert json.loads(config.to_json_string())["mtpp_config"]["model_type"] == "fullynn"


# --- small trainings


@pytest.fixture(scope="module")
def simulated():
    splits = simulated_splits("incident", {"train": 40, "validation": 10}, horizon=60.0, seed=0)
    return {name: make_windows(sequences, future=K, history=L) for name, sequences in splits.items()}, splits["train"]


def arguments(out, steps, batch_size=32):
    quiet = {"eval_every": 10_000, "save_every": 10_000, "num_threads": 1, "progress": False}
    sizes = {"steps": steps, "warmup_steps": 5, "batch_size": batch_size, "learning_rate": 0.01}
    return TrainingArguments(out=str(out), **sizes, **quiet)


def mtpp_of(events):
    torch.manual_seed(0)
    mtpp = small_mtpp(num_marks=events.num_marks, id2label=events.id2label)
    mtpp.fit_time_scale(torch.from_numpy(events.intervals()))
    return mtpp


def sampled_loss(model, windows):
    torch.manual_seed(99)
    with torch.no_grad():
        return model.train()(**windows.__getitems__(range(200))).loss.item()


@pytest.mark.parametrize("rebuilder", ["select", "gate"])
def test_twenty_steps_lower_the_loss_and_leave_the_mtpp_alone(simulated, tmp_path, rebuilder):
    windows, events = simulated
    model = small_distiller(mtpp_of(events), rebuilder=rebuilder)
    frozen = {name: value.clone() for name, value in model.mtpp.state_dict().items()}
    before = sampled_loss(model, windows["train"])
    Trainer(model, arguments(tmp_path / "run", 20), windows["train"], windows["validation"]).train()
    assert sampled_loss(model, windows["train"]) < before - 0.02
    assert all(torch.equal(value, frozen[name]) for name, value in model.mtpp.state_dict().items())
    row = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    logged = {"left_share", "dppl_left", "dppl_distilled", "constraint_met", "recency_overlap", "ds", "size"}
    assert logged <= {name.removeprefix("eval_") for name in row}
    again = AutoModel.from_pretrained(tmp_path / "run")
    assert all(torch.equal(value, again.mtpp.state_dict()[name]) for name, value in frozen.items())


@pytest.fixture(scope="module")
def trained_mtpp(tmp_path_factory):
    """A tiny point process that has learnt something of simulated incidents."""
    splits = simulated_splits("incident", {"train": 300, "validation": 40}, horizon=120.0, seed=0)
    mtpp = mtpp_of(splits["train"])
    crops = make_crops(splits["train"], length=30)
    Trainer(mtpp, arguments(tmp_path_factory.mktemp("mtpp") / "run", 300, batch_size=64), crops).train()
    return mtpp, {name: make_windows(events, future=5, history=20) for name, events in splits.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rebuilder", ["select", "gate"])
@pytest.mark.parametrize("loss", ["constraint", "size"])
def test_one_loss_alone_empties_or_fills_what_is_left(trained_mtpp, tmp_path, rebuilder, loss):
    mtpp, windows = trained_mtpp
    weights = {"alpha": 0, "epsilon": 1e-6} if loss == "constraint" else {"constraint_weight": 0}
    model = small_distiller(mtpp, history=20, future=5, rebuilder=rebuilder, **weights)
    Trainer(model, arguments(tmp_path / "run", 150, batch_size=64), windows["train"]).train()
    left_share = model.eval()(**windows["validation"].__getitems__(range(500))).left_share.item()
    assert left_share < 0.01 if loss == "constraint" else left_share > 0.99
