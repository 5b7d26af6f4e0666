"""Which kinds drive which, as `evaluate.py` measures it: the scores by hand, and the process with inhibition."""

import json

import numpy as np
import pytest

import evaluate
from tasks import influence
from tasks.influence import Case, against_graph, cases, inhibited


def test_scores_against_a_graph_by_hand():
    truth = np.array([[False, True, False], [False, False, True], [False, False, False]])
    case = Case("hand", None, ("a", "b", "c"), truth)
    score = np.array([[9.0, 5.0, 4.0], [0.0, 9.0, 3.0], [2.0, 1.0, 9.0]])
    # Edges rank 1st and 3rd of six pairs: 7 of 8 pairs of an edge and none in order; one of the first two is one.
    assert against_graph(score, case) == (pytest.approx(7 / 8), 0.5)


def test_a_kind_that_is_held_back_follows_less_often(monkeypatch):
    monkeypatch.setitem(influence.SIMULATED, "sequences", 20)
    events, effects = inhibited(np.random.default_rng(0))
    names = list(events.id2label.values())
    load, error, throttle = (names.index(name) for name in ("load", "error", "throttle"))
    assert (effects[load, error], effects[throttle, error], effects[error, throttle]) == (0.8, -0.5, 0.2)
    own = np.repeat(np.arange(len(events)), events.lengths)
    after = {}
    for cause in (load, throttle):
        places = np.flatnonzero(events.marks == cause)[:600]
        lags = [events.times[(own == own[i]) & (events.marks == error)] - events.times[i] for i in places]
        after[cause] = np.mean([((lag > 0) & (lag < 1)).sum() for lag in lags])
    assert after[load] > after[throttle] + 0.5


def test_alarms_come_with_and_without_neighbours(tmp_path):
    (tmp_path / "alarms.csv").write_text("time,device,alarm\n1,d1,x\n2,d1,y\n4,d1,x\n1,d2,y\n3,d2,x\n9,d2,y\n")
    (tmp_path / "graph.csv").write_text("cause,effect\nx,y\n")
    (tmp_path / "related.csv").write_text("device,neighbour\nd1,d2\n")
    joined, plain = cases(str(tmp_path), 0)
    assert joined.context == ("near: x", "near: y") and plain.context == ()
    assert joined.events.num_events == plain.events.num_events + 2
    assert plain.truth.tolist() == [[False, True], [False, False]]


def test_rows_of_a_simulated_process(tmp_path, monkeypatch):
    monkeypatch.setattr(influence, "STEPS", 30)
    monkeypatch.setitem(influence.SIMULATED, "sequences", 20)
    monkeypatch.setitem(influence.SIMULATED, "horizon", 60.0)
    asked = ["--task", "influence", "--data", "simulated:exponential", "--solvers", "hawkes, sparsity 0"]
    assert evaluate.main([*asked, "--threads", "1", "--out", str(tmp_path / "rows.jsonl")]) == 0
    rows = {row["solver"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert list(rows) == ["hawkes, sparsity 0", "hawkes, by validation", "every edge", "pair lift"]
    found = rows["hawkes, by validation"]
    assert found["auc"] > 0.9 and found["correlation"] > 0.8 and 0 <= found["coverage"] <= 1
    assert rows["every edge"]["auc"] == 0.5 < rows["pair lift"]["auc"]
