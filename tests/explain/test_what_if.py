"""Futures in two worlds: against closed forms of Hawkes and Poisson processes, an independent sampler, at the door."""

import dataclasses
import datetime
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.linalg import expm

import ehd_hf.explain.futures
from ehd_hf.data.synthetic import HawkesProcess
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.futures import Estimate, mean, middle, share, share_difference, simulate
from ehd_hf.explain.what_if import length_of
from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from helpers import AdditiveMTPP, PoissonMTPP, tiny_fullynn, wild

LOG = [(0.5, 0), (1.0, 1), (1.75, 0), (3.0, 2), (3.5, 0), (4.0, 1)]


def raw(values, first):
    """Raw parameters whose softplus, counted from the value of a new model, is `values`; 1e-300 stands for 0."""
    values = torch.as_tensor(values, dtype=torch.float64).clamp(min=1e-300)
    return torch.log(torch.expm1(values)) - math.log(math.expm1(first))


def hawkes_of(process):
    """The model that is this process, which has one scale and one shape."""
    number, shape = process.num_marks, int(process.shape.max())
    model = HawkesModel(HawkesConfig(num_marks=number, num_scales=1, num_shapes=shape)).double().eval()
    weights = torch.zeros(1, shape, number, number, dtype=torch.float64)
    weights[0, -1] = torch.from_numpy(process.branching)
    with torch.no_grad():
        model.scales.fill_(process.scale.max())
        model.raw_rates.copy_(raw(process.base_rates, 0.5 / number))
        model.raw_weights.copy_(raw(weights, 0.5 / (shape * number)))
    return model


def expected_counts(process, log, now, horizon):
    """Expected events of each mark in (now, now + horizon] given `log`, (time, mark) pairs. Gamma delays of whole
    shape are a chain of stages, left at rate 1 / scale: a linear system, solved by a matrix exponential."""
    number, shape, scale = process.num_marks, int(process.shape.max()), process.scale.max()
    stages, size = np.zeros((shape, number)), shape * number
    for time, mark in log:
        x = (now - time) / scale
        stages[:, mark] += [x**k * math.exp(-x) / math.factorial(k) for k in range(shape)]
    system = np.zeros((size + number + 1,) * 2)  # stages, counts, and a constant 1
    to_rates = np.zeros((number, size + number + 1))
    to_rates[:, size - number : size] = process.branching.T / scale
    to_rates[:, -1] = process.base_rates
    system[:number] = system[size : size + number] = to_rates
    for k in range(shape):
        here = slice(k * number, (k + 1) * number)
        system[here, here] -= np.eye(number) / scale
        if k:
            system[here, (k - 1) * number : k * number] += np.eye(number) / scale
    begin = np.concatenate([stages.ravel(), np.zeros(number), [1.0]])
    return (expm(system * horizon) @ begin)[size : size + number]


def explainer_of(model, **config):
    for name, value in config.items():
        setattr(model.config, name, value)
    return EHDDistiller.from_mtpp(model)


@pytest.fixture(scope="module")
def additive():
    """Events of mark 0 make mark 2 likelier, for good; nothing touches mark 1."""
    model = AdditiveMTPP([0.4, 0.5, 0.1], [[0.0, 0.0, 0.6], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double().eval()
    return explainer_of(model)


# --- against closed forms


@pytest.mark.parametrize("shape", [1, 3])
def test_expected_counts_of_a_hawkes_process_are_those_of_its_closed_form(shape):
    branching = [[0.2, 0.7, 0.0], [0.0, 0.3, 0.4], [0.1, 0.0, 0.2]]
    process = HawkesProcess([0.3, 0.1, 0.05], branching, scale=0.8, shape=shape)
    explainer = explainer_of(hawkes_of(process))
    answer = explainer.what_if(LOG, without=[-1, 2], adding=[(2.5, "2")], horizon=2.5, num_samples=6000, history="all")
    changed = [LOG[0], LOG[1], (2.5, 2), LOG[3], LOG[4]]
    expected = [expected_counts(process, log, 4.0, 2.5) for log in (LOG, changed)]
    for estimate, counts in zip((answer.count_with, answer.count_without), expected, strict=True):
        error = (estimate.high - estimate.low) / 2 / 1.96
        assert (np.abs(estimate.value - counts) < 4 * error).all()
        assert (error < 0.05 * counts.max()).all()
    error = (answer.difference.high - answer.difference.low) / 2 / 1.96
    assert (np.abs(answer.difference.value - (expected[1] - expected[0])) < 4 * error).all()
    # Pairs of futures: narrower than the worlds apart.
    apart = np.hypot(*(estimate.high - estimate.low for estimate in (answer.count_with, answer.count_without)))
    assert (answer.difference.high - answer.difference.low < 0.95 * apart).any()


def test_a_poisson_process_has_no_use_for_events():
    rates = np.array([0.5, 1.5])
    answer = explainer_of(PoissonMTPP(rates.tolist()).eval()).what_if(
        LOG[:3] + LOG[4:], without=[0, -1], horizon=2.0, num_samples=4000
    )
    for name in ("difference", "probability_difference"):
        assert (getattr(answer, name).value == 0).all()
    assert (answer.count_with.low < 2 * rates).all() and (2 * rates < answer.count_with.high).all()
    reached = 1 - np.exp(-2 * rates)
    assert (answer.probability_with.low < reached).all() and (reached < answer.probability_with.high).all()
    # The first time, if it is within the horizon, is a truncated exponential.
    for column, share_below in zip(answer.first_with, (0.5, 0.05, 0.95), strict=True):
        np.testing.assert_allclose(column, -np.log1p(-share_below * reached) / rates, rtol=0.15)
    assert "nothing changes within 2 beyond chance" in str(answer)


def tiny_models():
    torch.manual_seed(0)
    sizes = {"num_marks": 3, "hidden_size": 8, "num_components": 4}
    return [
        tiny_fullynn(3, scale=0.5, recent_marks=True),
        wild(LogNormMixModel(LogNormMixConfig(embedding_size=5, mark_mode="interval", **sizes)), 0.5),
        wild(AttentionModel(AttentionConfig(num_heads=2, **sizes)), 0.3),
    ]


@pytest.mark.parametrize("model", tiny_models(), ids=lambda model: model.config.model_type)
def test_silence_since_the_last_kept_event_is_survived(model):
    times, marks = (np.array(column) for column in zip(*LOG, strict=True))
    worlds = [(times, marks), (times[:-2], marks[:-2])]  # the last two are gone: 1 unit of silence
    counts, _ = simulate(model, worlds, 4.0, 0.7, 3000, seed=1)
    for (when, which), none in zip(worlds, (counts.sum(2) == 0).mean(1), strict=True):
        events = torch.from_numpy(when)[None], torch.from_numpy(which)[None]
        silences = torch.tensor([[4.0, 4.7]]).double() - when[-1]
        with torch.no_grad():
            state = model.encode_history(*events, events[1] >= 0, None)[0][:, -1:].expand(-1, 2, -1)
            begun, passed = model.total_compensator(state, silences)[0].tolist()
        expected = math.exp(begun - passed)
        assert abs(none - expected) < 4 * math.sqrt(expected * (1 - expected) / 3000)


def test_futures_are_those_of_an_independent_sampler():
    """`sample_next` on the whole sequence again and again; samples that fall into the silence are thrown away."""
    model, number, horizon = tiny_fullynn(3, scale=0.5, recent_marks=True), 1500, 1.2
    times, marks = (torch.tensor(column)[None].repeat(number, 1) for column in zip(*LOG[:-2], strict=True))
    times, generator = times.double(), torch.Generator().manual_seed(3)
    drawn, kinds = model.sample_next(times[:1], marks[:1], marks[:1] >= 0, 10 * number, generator)
    survives = drawn[0] > 4.0
    assert survives.sum() >= number
    drawn, kinds = drawn[0][survives][:number, None], kinds[0][survives][:number, None]
    counts, alive = torch.zeros(number, 3), torch.arange(number)
    while (inside := drawn[:, 0] <= 4.0 + horizon).any():
        alive = alive[inside]
        counts[alive] += torch.nn.functional.one_hot(kinds[inside, 0], 3)
        times, marks = torch.cat([times, drawn], 1)[inside], torch.cat([marks, kinds], 1)[inside]
        drawn, kinds = model.sample_next(times, marks, marks >= 0, 1, generator)
    world = tuple(np.array(column) for column in zip(*LOG[:-2], strict=True))
    ours, _ = simulate(model, [world], 4.0, horizon, number, seed=1)
    for mark in range(3):
        error = math.hypot(ours[0, :, mark].std(), counts[:, mark].std().item()) / math.sqrt(number)
        assert abs(ours[0, :, mark].mean() - counts[:, mark].mean().item()) < 4 * error
    assert ours.sum(2).mean() > 0.5  # several events, not one


# --- the same numbers, whichever way


def test_the_same_seed_gives_the_same_answer_and_nothing_is_mutated(additive):
    frame = pd.DataFrame(LOG, columns=["time", "mark"])
    before, without, adding = frame.copy(), [0, 1.0], [(3.2, "2"), (0.75, "0")]
    states = {name: value.clone() for name, value in additive.mtpp.state_dict().items()}
    asked = {"without": without, "adding": adding, "horizon": 1.0, "num_samples": 200}
    first, again = (additive.what_if(frame, **asked) for _ in range(2))
    assert json.dumps(first.to_dict(), allow_nan=False) == json.dumps(again.to_dict(), allow_nan=False)
    assert not first.to_frame().equals(additive.what_if(frame, **asked, seed=1).to_frame())
    pd.testing.assert_frame_equal(frame, before)
    assert (without, adding) == ([0, 1.0], [(3.2, "2"), (0.75, "0")])
    assert all(torch.equal(states[name], value) for name, value in additive.mtpp.state_dict().items())
    assert [(event.time, event.mark) for event in first.without] == [(0.5, "0"), (1.0, "1")]
    assert [tuple(event)[:3] for event in first.adding] == [(0, 0.75, "0"), (3, 3.2, "2")]


def test_an_event_taken_out_and_put_back_changes_nothing():
    explainer = explainer_of(tiny_fullynn(3, scale=0.5))
    answer = explainer.what_if(LOG, without=-2, adding=[LOG[-2]], horizon=2.0, num_samples=100)
    assert (answer.difference.value == 0).all() and answer.count_with.value.sum() > 0


@pytest.mark.parametrize("number", [1, 7, 500])
def test_few_futures_at_a_time_are_futures_too(additive, monkeypatch, number):
    monkeypatch.setattr(ehd_hf.explain.futures, "_NUMBERS_AT_ONCE", 60_000)
    answer = additive.what_if(LOG, without="0", horizon=1.5, num_samples=number)
    assert np.isfinite(answer.to_frame().filter(regex="count|diff|prob").to_numpy()).all()
    if number == 500:
        assert abs(answer.count_with.value[1] - 0.75) < 0.2
        assert answer.difference.high[2] < 0


def test_timestamps_and_units_mean_the_same_as_numbers():
    explainer = explainer_of(tiny_fullynn(3, scale=0.5), time_unit="h")
    start = pd.Timestamp("2026-03-02")
    stamped = [(start + pd.Timedelta(time, "h"), mark) for time, mark in LOG]
    # A log of numbers counts from its first event, whose start is unknown, as one of timestamps does.
    plain = explainer.what_if(LOG, without=1.75, adding=[(2.0, "1")], horizon=1.5, num_samples=50)
    added = [(start.tz_localize("UTC").tz_convert("Asia/Tokyo") + pd.Timedelta(2, "h"), "1")]
    for horizon in ("90min", datetime.timedelta(minutes=90), np.timedelta64(90, "m"), pd.Timedelta("1.5h"), 1.5):
        assert length_of(horizon, "h") == 1.5
    answer = explainer.what_if(stamped, without=stamped[2][0], adding=added, horizon="90min", num_samples=50)
    np.testing.assert_allclose(answer.difference.value, plain.difference.value)
    named = explainer.what_if(stamped, without="2026-03-02 01:45", adding=added, horizon=1.5, num_samples=50)
    assert named.to_frame().equals(answer.to_frame())
    assert str(named).startswith("Without 0 at 2026-03-02 01:45:00 and with 1 at 2026-03-02 02:00:00 added, ")
    assert str(plain).startswith("Without 0 at 1.75 h and with 1 at 2 h added, ")
    assert named.to_dict()["adding"][0]["time"] == "2026-03-02T02:00:00.000000000"


def test_an_index_counts_in_the_sequence_and_the_model_sees_its_window(additive):
    whole = additive.what_if(LOG, without=4, horizon=1.0, num_samples=50)
    for index in (4, -2, np.int64(-2), 3.5, [4, -2]):
        answer = additive.what_if(LOG, without=index, horizon=1.0, num_samples=50, history=3)
        assert [event.time for event in answer.without] == [3.5]
    assert answer.count_with.value[2] < whole.count_with.value[2]  # fewer events of mark 0 in three than in all
    assert [event.position for event in (*whole.without, *answer.without)] == [4, 1]


# --- words


def test_the_text_tells_the_clearest_differences(additive):
    answer = additive.what_if(LOG, without="0", horizon=1.0, num_samples=2000)
    assert str(answer).startswith(
        "Without 0 at 0.5, 0 at 1.75 and 0 at 3.5, the probability of 2 within 1 falls from 8"
    )
    assert str(answer).count("within 1 ") == 1  # one kind changes
    assert "% interval of the difference: " in str(answer) and " points). From 2,000 simulated futures" in str(answer)
    assert str(answer).endswith("This is what the model believes; it is no experiment.")
    longer = additive.what_if(LOG, without=0, horizon=8.0, num_samples=1000)  # there is one in every future
    assert "the expected number of 2 within 8 falls from" in str(longer)
    few = additive.what_if(LOG, without="0", horizon=1.0, num_samples=29)
    assert "nothing changes within 1 beyond chance" in str(few)
    frame = answer.to_frame()
    assert list(frame.columns[:7]) == [
        *("kind", "count_with", "count_with_low", "count_with_high"),
        *("count_without", "count_without_low", "count_without_high"),
    ]
    assert {"difference", "probability_with", "probability_difference_low", "first_without"} <= set(frame)
    never = dataclasses.replace(answer, first_with=Estimate(*np.full((3, 3), np.nan)))
    assert never.to_dict()["kinds"][0]["first_with"] is None


def test_estimates_by_hand():
    before, after = np.zeros((100, 1), bool), np.zeros((100, 1), bool)
    before[:50], after[40:60] = True, True  # 40 fall, 10 rise
    change = share_difference(before, after)
    half = stats.norm.ppf(0.975) * math.sqrt((52 / 102 - (30 / 102) ** 2) / 102)
    np.testing.assert_allclose(np.ravel(change), [-0.3, -30 / 102 - half, -30 / 102 + half])
    wilson = stats.binomtest(20, 100).proportion_ci(method="wilson")
    np.testing.assert_allclose(np.ravel(share(after)), [0.2, *wilson])
    np.testing.assert_allclose(np.ravel(share(np.zeros((100, 1), bool)))[:2], 0)
    estimate = mean(np.array([[1], [3]]))
    np.testing.assert_allclose(estimate.high - 2, stats.norm.ppf(0.975) * math.sqrt((1 + 0.5) / 2))
    np.testing.assert_allclose(np.ravel(middle(np.array([[1.0], [3.0], [np.inf]]))), [2.0, 1.1, 2.9])
    assert np.isnan(np.ravel(middle(np.array([[np.inf]])))).all()
    assert change.clear(1)[0] > 1 and Estimate(*np.array([[0.1], [-0.1], [0.3]])).clear(1)[0] == 0


# --- the door


@pytest.mark.parametrize(
    "asked, message",
    [
        ({}, "got none. Pass without"),
        ({"without": []}, "got none. Pass without"),
        ({"without": 6}, "from -6 to 5; got 6 in sequence 0"),
        ({"without": 1, "history": 3}, "the window has those from 3 to 5"),
        ({"without": 3.1}, "the nearest are 2 at 3.0 .event=3., 0 at 3.5"),
        ({"without": "deploy"}, "no kind of event 'deploy'; the model knows 0, 1, 2"),
        ({"without": True}, "an index, a time or the name of a mark; got bool"),
        ({"without": "2", "history": 2}, "'2' is no event .* taken out: the window has those from 4 to 5"),
        ({"adding": [(4.5, "0")]}, "must lie in the window, 0.5 to 4, not after its last event; got 4.5"),
        ({"adding": [(0.1, "0")]}, "must lie in the window"),
        ({"adding": [LOG[:1], LOG[1:2]]}, "adding must be the events of one sequence; got 2"),
        ({"adding": [("2026-01-01", "0")]}, "adding: timestamps need a model that knows its unit"),
        ({"adding": [(1.0, "deploy")]}, "adding: marks must be among"),
        ({"without": 0, "horizon": 0}, "horizon must be a positive number"),
        ({"without": 0, "horizon": math.inf}, "got inf"),
        ({"without": 0, "horizon": None}, "got None"),
        ({"without": 0, "horizon": "1h"}, "needs a model that knows its unit of time"),
        ({"without": 0, "num_samples": 0}, "num_samples must be a number of futures of at least 1; got 0"),
        ({"without": 0, "history": 0}, "history must be"),
    ],
)
def test_what_cannot_be_asked_is_refused(additive, asked, message):
    with pytest.raises(ValueError, match=message):
        additive.what_if(LOG, **{"horizon": 1.0, **asked})


def test_other_refusals(additive, monkeypatch):
    with pytest.raises(ValueError, match="one sequence; got 2"):
        additive.what_if([LOG, LOG], without=0, horizon=1.0)
    function = from_callable(lambda times, marks, mask: torch.zeros_like(times), num_marks=3)
    with pytest.raises(ValueError, match="a model that events can be drawn from; this one is a function"):
        EHDDistiller.from_mtpp(function).what_if(LOG, without=0, horizon=1.0)
    timed = explainer_of(tiny_fullynn(3), time_unit="h")
    for horizon in ("5", "nonsense", "-1h"):
        with pytest.raises(ValueError, match=f"horizon must be a positive number of h, .*; got '{horizon}'"):
            timed.what_if(LOG, without=0, horizon=horizon)
    with pytest.raises(ValueError, match="must have numbers as times, as the events have; got timestamps"):
        timed.what_if(LOG, adding=[("2026-01-01", "0")], horizon=1)
    monkeypatch.setattr(ehd_hf.explain.futures, "_MOST_EVENTS", 3)
    with pytest.raises(ValueError, match="at most 3 events; .* of 100 have more within 50"):
        additive.what_if(LOG, without=0, horizon=50, num_samples=50)
    broken = explainer_of(PoissonMTPP([math.nan, 1.0, 1.0]).eval())
    with pytest.raises(ValueError, match="intensities must be finite"):
        broken.what_if(LOG, without=0, horizon=1)


def test_a_log_of_one_event_that_is_taken_out(additive):
    answer = additive.what_if([(2.0, "0")], without=0, horizon=1.0, num_samples=400)
    assert answer.difference.value[2] < 0 and answer.now == 2.0
