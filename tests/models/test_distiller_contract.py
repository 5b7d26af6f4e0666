"""What every distiller must do, however it learns: a new distiller meets this suite unchanged."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModel

from ehd_hf import models as distillers
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.fullynn import FullyNNModel
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.window import Window
from helpers import TINY, random_window, tiny_fullynn, watched

B, L, K, C = 3, 7, 4, 6
DISTILLERS = {
    cls.config_class.model_type: cls
    for cls in DistillerModel.__subclasses__()
    if cls.__module__.startswith(distillers.__name__)
}
every_distiller = pytest.mark.parametrize("kind", sorted(DISTILLERS))
LABELS = {mark: f"mark {mark}" for mark in range(C)}
# Settings of each kind, none of them the default.
UNUSUAL = {
    "ehd_distiller": {"epsilon": 0.3, "alpha": 2, "tau": 0.5, "conditioning": "survival", "rebuilder": "gate"},
    "ranking_distiller": {"epsilon": 0.9, "share": None, "conditioning": "paper", "gate_levels": [0.8, 0.3]}
    | {"prefix_shares": [0.4], "score_spread": 2.5, "largest_share": 0.6},
}


def tiny_mtpp():
    return tiny_fullynn(C, scale=0.5, id2label=LABELS).float()


def tiny(kind, mtpp=None, **config):
    mtpp = tiny_mtpp() if mtpp is None else mtpp
    torch.manual_seed(1)
    return DISTILLERS[kind].from_mtpp(mtpp, **{"history": L, "future": K, **TINY, **config})


def windows_of(seed=0, dtype=torch.float32):
    return random_window(B, L, K, C, seed, dtype=dtype)


def learning(model):
    return {name: parameter for name, parameter in model.named_parameters() if not name.startswith("mtpp.")}


def gradients_of_a_step(model, window, seed=0):
    model.train().zero_grad()
    torch.manual_seed(seed)
    model(*window[:3]).loss.backward()
    return {name: parameter.grad for name, parameter in learning(model).items()}


def test_the_suite_covers_every_file_of_the_folder():
    assert {cls.__module__.rpartition(".")[2] for cls in DISTILLERS.values()} == {"ehd", "ranking"}
    assert set(DISTILLERS) == set(UNUSUAL) == {"ehd_distiller", "ranking_distiller"}


# --- answers


@every_distiller
def test_scores_answers_and_outputs_have_the_contracts_shapes(kind):
    model, window = tiny(kind).eval(), windows_of()
    scores = model.history_scores(window)
    distill_mask, shown = model.distill(window)
    assert scores.shape == distill_mask.shape == shown.shape == (B, L)
    assert distill_mask.dtype == torch.bool and scores.isfinite().all() and not shown.requires_grad
    output = model(*window[:3])  # the future's length is the config's
    assert output.logits.shape == (B, L, 2) and output.loss.shape == () and 0 <= output.num_items <= B
    assert all(value.shape == () and value.isfinite() for value in watched(output).values())
    torch.testing.assert_close(output.logits[..., 1] - output.logits[..., 0], scores)
    trained = model.train()(*window[:3])
    assert (
        watched(trained).keys() <= {"size_loss", "constraint_loss"}
        and trained.loss.shape == ()
        and trained.num_items == B
    )
    assert isinstance(model.num_evaluations, int) and model.num_evaluations >= 0


@every_distiller
def test_evaluation_is_deterministic_training_repeats_and_no_argument_changes(kind):
    model, window = tiny(kind).eval(), windows_of(1)
    arguments = [x.clone() for x in window[:3]]
    answers = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        output = model(*window[:3])
        answers.append([output.loss, output.logits, *model.distill(window)])
    assert all(torch.equal(x, y) for x, y in zip(*answers, strict=True))
    one, again, other = (gradients_of_a_step(model, window, seed) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(x, y) for x, y in zip(arguments, window[:3], strict=True))


@every_distiller
@pytest.mark.parametrize("where", ["front", "behind", "within", "everywhere"])
def test_padding_and_other_windows_change_no_score_of_a_real_event(kind, where):
    model, window = tiny(kind).double().eval(), windows_of(2, torch.float64)
    times, marks, mask, *_ = window
    scores, (chosen, shown) = model.history_scores(window), model.distill(window)
    # Each position is an event of the window, or -1 for padding; the last so many are the future.
    order, num_future = {
        "front": ([-1, -1, *range(L + K)], K),
        "behind": ([*range(L + K), -1, -1], K + 2),
        "within": ([0, 1, -1, *range(2, L), -1, *range(L, L + 2), -1, *range(L + 2, L + K)], K + 1),
        "everywhere": ([-1, 0, 1, -1, -1, *range(2, L), *range(L, L + K), -1], K + 1),
    }[where]
    index = torch.tensor(order)
    real = index >= 0
    values = torch.where(real, times[:, index], 77.0), torch.where(real, marks[:, index], 2), mask[:, index] & real
    padded = Window(*values, num_future)
    history = index[: len(order) - num_future]
    padded_scores = model.history_scores(padded)
    torch.testing.assert_close(padded_scores[:, history >= 0], scores, atol=1e-9, rtol=0)
    padded_chosen, padded_shown = model.distill(padded)
    assert torch.equal(padded_chosen[:, history >= 0], chosen) and not padded_chosen[:, history < 0].any()
    torch.testing.assert_close(padded_shown[:, history >= 0], shown, atol=1e-9, rtol=0)
    plain, spaced = model(times, marks, mask, K), model(*padded[:4])
    torch.testing.assert_close(spaced.loss, plain.loss, atol=1e-9, rtol=0)
    for name, value in watched(plain).items():
        torch.testing.assert_close(spaced[name], value, atol=1e-9, rtol=0)
    alone = torch.cat([model.history_scores(padded.rows(torch.tensor([row]))) for row in range(B)])
    torch.testing.assert_close(alone, padded_scores, atol=1e-9, rtol=0)


@every_distiller
@pytest.mark.parametrize("left", [0, 1])
def test_a_window_with_one_event_or_none_spoils_nothing_for_the_others(kind, left):
    model, window = tiny(kind).double(), windows_of(4, torch.float64)
    scores, (chosen, _) = model.eval().history_scores(window), model.distill(window)
    window.mask[0, : L - left] = False
    assert all(value.isfinite().all() for value in gradients_of_a_step(model, window).values())
    model.eval()
    output = model(*window[:3])
    assert output.loss.isfinite() and all(value.isfinite() for value in watched(output).values())
    spoilt, (others, _) = model.history_scores(window), model.distill(window)
    assert spoilt[window.history].isfinite().all() and others[0].sum() <= left
    torch.testing.assert_close(spoilt[1:], scores[1:], atol=1e-9, rtol=0)
    assert torch.equal(others[1:], chosen[1:])


@every_distiller
def test_a_batch_of_windows_without_any_history_is_answered_with_nothing(kind):
    model, window = tiny(kind).eval(), windows_of(5)
    window.mask[:, :L] = False
    output = model(*window[:3])
    assert output.loss.isfinite() and all(value.isfinite() for value in watched(output).values())
    assert not model.distill(window)[0].any()
    nothing = Window(*(x[:, L:] for x in window[:3]), K)
    assert model.history_scores(nothing).shape == (B, 0) and model.distill(nothing)[0].shape == (B, 0)


@every_distiller
def test_the_metrics_are_those_of_the_answer(kind):
    model, window = tiny(kind).double().eval(), windows_of(8, torch.float64)
    metrics, (chosen, _) = model(*window[:3]), model.distill(window)
    empty = dppl(model.mtpp, window, torch.zeros(B, L).double(), conditioning=model.config.conditioning)
    counted = torch.ones(B, dtype=torch.bool) if kind == "ehd_distiller" else empty < 0
    assert counted.any() and metrics["size"].item() == pytest.approx(chosen.sum(1)[counted].double().mean().item())


# --- what learns and what does not


@every_distiller
def test_gradients_reach_all_that_learns_and_nothing_of_the_mtpp(kind):
    mtpp = tiny_mtpp()
    config = {"epsilon": 1e-3} if kind == "ehd_distiller" else {}  # a hinge that is open
    model, window = tiny(kind, mtpp, **config), windows_of(9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    gradients = gradients_of_a_step(model, window)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer.step()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    # The keys' bias shifts all attention weights alike, and a common shift of all scores is taken out again.
    idle = {name for name, gradient in gradients.items() if not (gradient != 0).any()}
    assert all(name.endswith(("key_value.bias", "score_head.bias", "second_head.bias")) for name in idle), idle
    after = model.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in gradients if name not in idle)
    for name, parameter in model.mtpp.named_parameters():
        assert parameter.grad is None and not parameter.requires_grad, name
    for name, value in mtpp.state_dict().items():
        assert torch.equal(value, after[f"mtpp.{name}"]), name


@every_distiller
def test_the_mtpp_stays_frozen_and_apart_whatever_the_mode(kind):
    model = tiny(kind)
    for mode in (True, False):
        model.train(mode)
        assert model.training == model.window_encoder.training == mode
        assert not any(part.training for part in model.mtpp.modules())
        assert not any(parameter.requires_grad for parameter in model.mtpp.parameters())
    names, inner = ({name.split(".")[0] for name in part.state_dict()} for part in (model, model.mtpp))
    assert not inner & names


@every_distiller
def test_a_saved_distiller_comes_back_exactly_with_its_mtpp(kind, tmp_path):
    mtpp = tiny_mtpp()
    mtpp.fit_time_scale(torch.tensor([0.5, 1.5, 4.0]))
    settings = {"history": L, "future": K, "max_length": 99, **TINY, **UNUSUAL[kind]}
    model, window = tiny(kind, mtpp, **settings).eval(), windows_of(10)
    model.save_pretrained(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    for loader in (AutoModel, DISTILLERS[kind]):
        again = loader.from_pretrained(tmp_path)
        assert type(again) is DISTILLERS[kind] and not again.training
        assert not any(parameter.requires_grad for parameter in again.mtpp.parameters())
        assert all(parameter.requires_grad for parameter in learning(again).values())
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
        one, two = model(*window[:3]), again(*window[:3])
        assert torch.equal(one.logits, two.logits) and torch.equal(one.loss, two.loss)
        assert all(torch.equal(x, y) for x, y in zip(model.distill(window), again.distill(window), strict=True))
    alone, info = FullyNNModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"] and alone.mean_interval == 2.0
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in mtpp.state_dict().items())
    with pytest.raises(ValueError, match="dtype must be float32 or float64; got bfloat16, whose three digits"):
        AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    config, default = AutoConfig.from_pretrained(tmp_path), DISTILLERS[kind].config_class()
    assert type(config) is DISTILLERS[kind].config_class and {x: getattr(config, x) for x in settings} == settings
    assert all(getattr(default, name) != value for name, value in UNUSUAL[kind].items())
    assert config.id2label == config.mtpp_config.id2label == LABELS
    assert json.loads(default.to_json_string())["model_type"] == kind


BAD_FOR_EVERY = [
    ({"epsilonn": 0.5}, "knows the keys .*epsilon.*got unknown epsilonn. Check the spelling"),
    ({"epsilon": 0.5, "share": 0.5}, "one target, epsilon or share; got 0.5 and 0.5."),
    ({"epsilon": None, "share": None}, "one target, epsilon or share; got None and None"),
    ({"epsilon": 1.0, "share": None}, r"epsilon must lie in \(0, 1\); got 1.0. The paper uses 0.5"),
    ({"epsilon": float("nan"), "share": None}, r"epsilon must lie in \(0, 1\); got nan"),
    ({"history": 0}, "history must be at least 1; got 0"),
    ({"hidden_size": 7}, "hidden_size must be even.*got 7"),
    ({"num_heads": 3}, "attention_size must be a multiple of num_heads; got 32 and 3"),
    ({"conditioning": "none"}, "paper.*survival"),
    ({"future": "4"}, "future"),
]
BAD_FOR_ONE = {
    "ehd_distiller": [
        ({"alpha": -0.1}, "alpha and constraint_weight must be at least 0.* got -0.1"),
        ({"constraint_weight": -1}, "alpha and constraint_weight must be at least 0"),
        ({"tau": 0}, "tau above 0"),
        ({"num_mask_samples": 0}, "num_mask_samples must be at least 1; got 0"),
        ({"epsilon": None, "share": 0.7}, "trained for an epsilon; got share 0.7.*ranking distiller"),
    ],
    "ranking_distiller": [
        ({"share": 0.0}, r"share must lie in \(0, 1\]; got 0.0. 0.7 is a good start"),
        ({"share": float("nan")}, r"share must lie in \(0, 1\]; got nan"),
        ({"gate_levels": []}, r"gate_levels must name one value at least; got none. \[0.5\] is the cheapest"),
        ({"gate_levels": [0.5, 1.0]}, r"gate_levels must lie between 0 and 1, .*; got \[0.5, 1.0\]"),
        ({"prefix_shares": [0.0]}, r"prefix_shares must lie between 0 and 1, .*; got \[0.0\]"),
        ({"score_spread": 0}, "score_spread must be above 0.*got 0 and 0.75"),
        ({"score_spread": float("nan")}, "score_spread must be above 0.*got nan"),
        ({"largest_share": 1.1}, r"largest_share in \(0, 1\].*got 3.0 and 1.1"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [(kind, *case) for kind in sorted(DISTILLERS) for case in BAD_FOR_EVERY + BAD_FOR_ONE[kind]],
)
def test_a_bad_setting_is_refused_with_its_name(kind, config, message):
    with pytest.raises(Exception, match=message):
        DISTILLERS[kind].config_class(**config)


@pytest.mark.parametrize("kind", DISTILLERS)
def test_attention_checkpointing_and_names_are_those_of_transformers(kind):
    torch.manual_seed(0)
    sizes = {**TINY, "num_attention_heads": TINY["num_heads"]}
    del sizes["num_heads"]
    config = DISTILLERS[kind].config_class(mtpp_config=tiny_fullynn(C).config, **sizes)
    assert config.num_heads == 2 and config.intermediate_size == TINY["feed_forward_size"]
    model, window = DISTILLERS[kind](config).eval(), random_window(3, 150, K, C, 5, dtype=torch.float32)
    assert model.config._attn_implementation == "sdpa" and set(model._no_split_modules) == {"Layer"}
    scores = model.history_scores(window)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model.history_scores(window), scores, rtol=1e-4, atol=1e-5)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(1)
        model.train()(*window[:3]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in learning(model).values()])
        # It has the second name since transformers 5.23.
        (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    assert model.window_encoder.decoder_layers[0].gradient_checkpointing and all(map(torch.equal, *gradients))
