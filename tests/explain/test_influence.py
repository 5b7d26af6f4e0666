"""Which kinds drive which: against a closed form and slow sums, and what people see of it."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from ehd_hf.data import sorting
from ehd_hf.data.synthetic import HawkesProcess
from ehd_hf.explain import influence as module
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.influence import Bootstrap, sum_causes
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from helpers import tiny_fullynn, wild

MARKS = {0: "deploy", 1: "alert", 2: "page"}
BRANCHING = np.array([[0.0, 0.8, 0.0], [0.1, 0.0, 0.6], [0.0, 0.0, 0.0]])


def true_model(context=None):
    """The very process that events are drawn from: exponential delays of mean 0.5."""
    model = HawkesModel(
        HawkesConfig(num_marks=3, id2label=MARKS, num_scales=1, num_shapes=1, context_marks=context, time_unit="h")
    )
    with torch.no_grad():
        model.scales.fill_(0.5)
        zero = model.raw_weights - model.raw_weights
        wanted = torch.tensor(BRANCHING + 1e-9)[None, None]
        first = torch.log(torch.expm1(model.weights.double())) - zero
        model.raw_weights += (torch.log(torch.expm1(wanted)) - first).to(zero.dtype)
        rates = torch.log(torch.expm1(torch.tensor([0.3, 0.1, 0.1])))
        model.raw_rates += rates - torch.log(torch.expm1(model.rates))
    return model.double().eval()


@pytest.fixture(scope="module")
def events():
    process = HawkesProcess([0.3, 0.1, 0.1], BRANCHING, 0.5, labels=list(MARKS.values()), time_unit="h")
    return process.simulate(100.0, 40, np.random.default_rng(0)).sequences


@pytest.fixture(scope="module")
def found(events):
    return EHDDistiller.from_mtpp(true_model()).influence(events)


def frame_matrix(found, column):
    frame = found.to_frame().pivot(index="cause", columns="effect", values=column)
    return frame.loc[list(MARKS.values()), [found.kinds[place] for place in found.predicted]].to_numpy()


def test_a_known_process_shows_its_branching_matrix(found, events):
    assert found.per_cause == pytest.approx(BRANCHING, abs=0.05)
    low, high = frame_matrix(found, "low"), frame_matrix(found, "high")
    assert ((low - 1e-6 <= BRANCHING) & (BRANCHING <= high + 1e-6)).mean() >= 8 / 9
    assert (high - low)[0, 1] < 0.25
    assert found.share.sum(0) + found.background == pytest.approx(np.ones(3))
    assert found.count.tolist() == np.bincount(events.marks).tolist()
    lags = found.to_frame().set_index(["cause", "effect"]).loc["deploy", "alert"]
    assert lags["lag"] == pytest.approx(0.5 * np.log(2), rel=0.2)
    assert lags["lag_high"] == pytest.approx(0.5 * np.log(20), rel=0.25)


def test_sums_are_those_of_the_traced_causes(events):
    part = events.select([0, 1, 2])
    explainer = EHDDistiller.from_mtpp(wild(tiny_fullynn(num_marks=3, id2label=MARKS), 0.5))
    found = explainer.influence(part, history=6)
    carried, held, none = np.zeros((3, 3)), np.zeros((3, 3)), np.zeros(3)
    for trace, (_, marks) in zip(explainer.trace(part, history=6), part, strict=True):
        edges = trace.edges
        for effect, cause, probability in zip(edges.effect, edges.cause, edges.probability, strict=True):
            (carried if probability > 0 else held)[marks[cause], marks[effect]] += abs(probability)
        np.add.at(none, marks, trace.p_none)
    assert held.max() > 0
    assert found.sums.carried[0] == pytest.approx(carried) and found.sums.held == pytest.approx(held)
    assert found.background == pytest.approx(none / np.bincount(part.marks, minlength=3))


def test_lift_counts_windows_with_the_cause_before_the_effect():
    times, marks = [0.0, 1.0, 2.0, 3.0, 9.0], ["deploy", "alert", "page", "alert", "alert"]
    found = EHDDistiller.from_mtpp(true_model()).influence([list(zip(times, marks, strict=True))], history=2)
    # Within 1 before the five events: nothing; a deploy; an alert; a page; nothing.
    assert found.lift == pytest.approx(np.array([[0, 5 / 3, 0], [0, 0, 5], [0, 5 / 3, 0]]))


def test_sums_of_parts_are_those_of_the_whole(events, monkeypatch):
    whole = sum_causes(true_model(), events, 20, Bootstrap(30))
    monkeypatch.setattr(module, "_EVENTS_AT_ONCE", 100)
    monkeypatch.setattr(module, "_CELLS_AT_ONCE", 20)
    parts = sum_causes(true_model(), events.select(np.arange(25)), 20, Bootstrap(30))
    parts.add(sum_causes(true_model(), events.select(np.arange(25, 40)), 20, Bootstrap(30)))
    for name, values in vars(whole).items():
        assert getattr(parts, name) == pytest.approx(values), name


def test_a_large_file_is_read_a_part_at_a_time(events, found, tmp_path, monkeypatch):
    owner = np.repeat(events.seq_ids, events.lengths)
    marks = [MARKS[mark] for mark in events.marks]
    rows = pd.DataFrame({"time": events.times, "mark": marks, "seq_id": owner}).sort_values("time")  # not by sequence
    rows.to_csv(tmp_path / "log.csv", index=False)
    explainer, parts = EHDDistiller.from_mtpp(true_model()), []
    monkeypatch.setattr(module, "is_large", lambda source: True)
    monkeypatch.setattr(module, "sum_causes", lambda *args, **more: parts.append(args[1]) or sum_causes(*args, **more))
    monkeypatch.setattr(sorting, "_ROWS_AT_ONCE", 500)
    streamed = explainer.influence(tmp_path / "log.csv")
    assert len(parts) > 3 and sum(len(part) for part in parts) == 40
    assert streamed.per_cause == pytest.approx(found.per_cause, rel=1e-3)


def test_a_single_sequence_is_drawn_by_stretches_of_time(events):
    found = EHDDistiller.from_mtpp(true_model()).influence(events.select([0]))
    assert found.sums.units == 20 and "over 20 stretches of time" in str(found)
    assert (frame_matrix(found, "high") >= frame_matrix(found, "low")).all()


def test_context_sets_off_and_is_never_explained(events):
    found = EHDDistiller.from_mtpp(true_model(["deploy"])).influence(events)
    assert found.per_cause.shape == (3, 2) and found.per_cause[0] == pytest.approx(BRANCHING[0, 1:], abs=0.06)
    assert set(found.to_frame()["effect"]) == {"alert", "page"} and "more are context" in str(found)
    found.plot().savefig("/dev/null", format="png")


def test_the_graph_says_how_stable_its_edges_are(found):
    graph = found.graph(0.3)
    assert list(zip(graph["cause"], graph["effect"], strict=True)) == [("deploy", "alert"), ("alert", "page")]
    assert (graph["stability"] == 1).all()
    assert found.graph(float(found.per_cause[0, 1])).loc[0, "stability"] == pytest.approx(0.5, abs=0.2)
    network = found.to_networkx(0.3)
    assert sorted(network.edges) == [("alert", "page"), ("deploy", "alert")] and len(network) == 3
    with pytest.raises(ValueError, match="threshold must be a number of effects per cause above 0; got 0"):
        found.graph(0)


def test_what_people_see(found):
    text = str(found).splitlines()
    assert text[0].startswith("Of 4,") and text[1].startswith("deploy sets off 0.") and "all alert." in text[1]
    row = json.loads(json.dumps(found.to_dict()))["pairs"][0]
    assert (row["cause"], row["effect"]) == ("deploy", "alert") and row["low"] < row["per_cause"] < row["high"]
    assert "<table" in found._repr_html_()
    labels = [label.get_text() for label in found.plot().axes[0].get_yticklabels()]
    assert labels[0] == "nothing before it" and sorted(labels[1:]) == sorted(MARKS.values())


def test_too_few_draws_are_refused(events):
    with pytest.raises(ValueError, match="draws must be a number of at least 2; got 1"):
        EHDDistiller.from_mtpp(true_model()).influence(events, draws=1)
