"""Context events in every answer: they may explain, happen in futures when planned, and are never explained."""

import numpy as np
import pytest
import torch

from ehd_hf.data.related import without_marks
from ehd_hf.data.sequences import load_events
from ehd_hf.evaluation.scores import evaluate_mtpp, score_events
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.training.recipe import build, make_plan, score_model
from helpers import random_sequences, wild

NAMES = {0: "deploy", 1: "alert", 2: "page"}


def hawkes(**config):
    torch.manual_seed(0)
    sizes = {"num_scales": 1, "num_shapes": 1, "id2label": NAMES, "num_marks": 3, "time_unit": "h"}
    return wild(HawkesModel(HawkesConfig(**sizes | config, context_marks=["deploy"])), 0.3)


@pytest.fixture
def explainer():
    return EHDDistiller.from_mtpp(hawkes())


LOG = [(0.0, "alert"), (1.0, "deploy"), (1.4, "alert"), (1.6, "deploy"), (2.0, "page"), (2.5, "deploy")]


def test_nobody_asks_why_context_happened(explainer):
    for ask in (explainer.why, explainer.explain):
        with pytest.raises(ValueError, match="must be of a mark that is predicted; got 'deploy', which is context"):
            ask([LOG], event=-1)
    with pytest.raises(ValueError, match="got 'deploy', which is context"):
        explainer.question(kind="deploy")
    with pytest.raises(ValueError, match="has no event that is predicted in its future"):
        explainer.explain([LOG], future=1)
    assert explainer.why([LOG], event=4)[0].history[1].mark == "deploy"


def test_context_is_a_cause_and_a_root_of_traces(explainer):
    (trace,) = explainer.trace([LOG])
    of_context = np.array([mark == "deploy" for mark in trace.marks])
    assert (trace.p_none[of_context] == 1).all() and (trace.p_none[~of_context][1:] < 1).all()
    assert not of_context[trace.edges.effect].any() and of_context[trace.edges.cause].any()


def test_only_context_may_explain_if_asked(explainer):
    answer = explainer.explain([LOG[:5]], future=2, only="deploy", size=1)[0]
    assert [event.mark for event in answer.distilled] == ["deploy"]


def test_planned_context_happens_in_futures_and_is_not_drawn():
    """The expected number of alerts that a deploy in half an hour adds within 2 hours, in closed form."""
    model = hawkes()
    with torch.no_grad():
        model.scales.fill_(0.5)
        model.raw_weights[..., 1:, :] = -30.0  # only deploys cause anything
        model.raw_weights[..., 0, 1] = 3.0
    added = model.branching[0, 1].item() * (1 - np.exp(-1.5 / 0.5))
    answer = EHDDistiller.from_mtpp(model).what_if(
        [LOG[:1]], adding=[(0.5, "deploy"), (9.0, "deploy")], horizon=2.0, num_samples=4000
    )
    assert answer.kinds == ("alert", "page") and [event.mark for event in answer.adding] == ["deploy"] * 2
    low, high = answer.difference.low[0], answer.difference.high[0]
    assert low - 0.03 <= added <= high + 0.03 and added > 0.3
    with pytest.raises(ValueError, match="must lie in the window"):
        EHDDistiller.from_mtpp(model).what_if([LOG[:1]], adding=[(0.5, "alert")], horizon=2.0)


def test_scores_are_of_predicted_events_and_all_silences():
    model = hawkes()
    log = load_events([LOG, LOG[1:3]], id2label=NAMES)
    scores = score_events(model, log)
    # The first predicted event of a sequence is not scored, nor are deploys.
    assert np.isfinite(scores.compensator).tolist() == [False, False, True, False, True, False, False, False]
    times, marks = (torch.as_tensor(values)[None] for values in log[0])
    output = model.event_log_prob(times - times[:, :1], marks, torch.ones_like(marks, dtype=torch.bool))
    assert scores.log_prob[[2, 4]].tolist() == pytest.approx(
        [output.log_prob[0, 1:3].sum().item(), output.log_prob[0, 3:5].sum().item()]
    )


def test_a_plan_names_context_and_baselines_do_not_see_it():
    events = random_sequences([40] * 12, num_marks=3)
    plan, splits = make_plan(events, distiller="none", backbone="hawkes", context=["0"], history=8, future=2)
    config = plan.stages["point_process"]
    assert config["model"]["context_marks"] == ["0"]
    model, _, _ = build(config, splits)
    assert model.config.context_marks == ["0"] and model.context.tolist() == [True, False, False]
    rows = score_model(model.eval(), splits)
    number = sum(int((marks != 0).sum()) - 1 for _, marks in splits["test"])
    assert {row["num_events"] for row in rows if row["task"] == "mtpp"} == {number}
    plain = without_marks(splits["test"], ["0"])
    assert list(evaluate_mtpp({"same": model}, plain))[0]["num_events"] == number
    for names, message in ((["9"], "got '9'. Correct the name"), (["0", "1", "2"], "got all of them. Name fewer")):
        with pytest.raises(ValueError, match=message):
            make_plan(events, context=names)
