"""Probabilities of causes against true parents: each measure by hand or a slow loop, then rows of the true process."""

import json
from argparse import Namespace

import numpy as np
import pytest

import figures
import tasks.causes
from ehd_hf.data import synthetic
from ehd_hf.data.windows import make_windows
from helpers import from_lists, tiny_fullynn
from page import over_seeds, results_page
from tasks import why
from tasks.why import auroc, calibration, lift_scores, roots_come_first


def test_calibration_error_by_hand():
    probability = np.array([[0.1, 0.05], [0.95, 1.0], [0.5, 0.52]])
    true = np.array([[False, True], [True, True], [True, True]])
    row = calibration("", probability, true, np.array([0, 1, 2]))
    # Bins: 0.05 | 0.1 | 0.5 and 0.52 | 0.95 and 1.0.
    gaps = [abs(0.05 - 1), abs(0.1 - 0), abs(1.02 - 2), abs(1.95 - 2)]
    assert row["error"] == pytest.approx(sum(gaps) / 6)
    assert [number for *_, number in row["bins"]] == [1, 1, 2, 2]
    assert row["bins"][2][:2] == pytest.approx((0.51, 1.0))
    assert row["error_low"] <= row["error"] <= row["error_high"]


def test_auroc_equals_a_loop_over_pairs():
    generator = np.random.default_rng(0)
    score, true = generator.integers(0, 5, 60) / 5, generator.random(60) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in score[true] for b in score[~true]]
    row = auroc(score, true, np.arange(60) // 3)
    assert row["auroc"] == pytest.approx(np.mean(pairs))
    assert row["auroc_low"] < row["auroc"] < row["auroc_high"]


def test_roots_by_hand():
    # 0 causes 1 causes 2, and 3 is its own.
    shares, parents = np.zeros((4, 4)), np.array([-1, 0, 1, -1])
    shares[1, 0], shares[2, 1], shares[3, 0] = 0.9, 0.6, 0.1
    assert roots_come_first(shares, 1 - shares.sum(1), parents).tolist() == [True, True]  # 0 by 0.54 of event 2
    shares[2, 1] = 0.5  # 0 by 0.45, itself by 0.5
    assert roots_come_first(shares, 1 - shares.sum(1), parents).tolist() == [True, False]


def test_lift_by_hand_and_the_later_event_where_kinds_tie():
    train = from_lists([[0, 1, 2, 3, 4, 5]], [[0, 1, 0, 1, 2, 0]], num_marks=3)
    windows = make_windows(train, future=1, history=2)
    # Before 1: 1 0; before 2: 0 1; before 0: 1 2. Four pairs of kinds are seen once, 0 -> 1 and 0 -> 2 and 1 -> 0 ...
    scores = lift_scores(windows, train)
    near = np.array([[0, 1, 1], [1, 1, 1], [1, 0, 0]])
    lift = near / (near.sum(1, keepdims=True) * near.sum(0) / near.sum())
    expected = [[lift[1, 1], lift[0, 1]], [lift[0, 2], lift[1, 2]], [lift[1, 0], lift[2, 0]]]
    np.testing.assert_allclose(scores, expected, atol=1e-8)
    assert (lift_scores(windows, from_lists([[0, 1, 2, 3]], [[0] * 4], num_marks=3)).argmax(1) == 1).all()


@pytest.fixture
def few_simulated(monkeypatch):
    drawn = synthetic.delayed_hawkes().simulate(60.0, 12, np.random.default_rng(0))
    both = {"train": drawn, "test": drawn}
    for module in (synthetic, tasks.causes):
        monkeypatch.setattr(module, "simulated_events", lambda *_: both)


def asked(**more):
    given = {"data": "simulated:delayed", "split": "test", "jitter_seed": None, "limit": 200, "model": []}
    return Namespace(**(given | {"seed": 0, "batch_size": 50} | more))


def test_rows_of_one_model_beside_what_it_is_compared_with(few_simulated, tmp_path):
    names = dict(synthetic.delayed_hawkes().id2label)
    tiny_fullynn(id2label=names).float().save_pretrained(tmp_path / "model")
    rows = list(why.find_rows(asked(model=[tmp_path / "model"]), lambda key: None))
    assert [row["solver"] for row in rows] == ["true posterior", "recency", "pair lift", "why", *why.SOLVERS]
    truth, recency, lift, model, *_ = rows
    assert (
        truth["cause_first"] > lift["cause_first"] > recency["cause_first"] and truth["auroc"] > 0.9 > model["auroc"]
    )
    assert truth["error_none"] < 0.1 and truth["root_first"] > model["root_first"]
    assert model["nll"] > 0 and "error" not in recency
    for row in rows:
        assert row["cause_first_low"] <= row["cause_first"] <= row["cause_first_high"]
        assert json.loads(json.dumps(row, allow_nan=False))["num_with_cause"] == truth["num_with_cause"] > 50
    page = results_page(rows, command="make it")
    assert "### Why did one event happen? (1, 25), test, 200 windows drawn, survival conditioning\n" in page
    assert f"model (NLL {model['nll']:.3f}) names the cause first in {model['cause_first']:.1%} of cases" in page
    drawn = figures.draw(rows, tmp_path, tmp_path / "page.md")
    assert drawn["simulated:delayed"][0][1] == "reliability_simulated_delayed_1-25.png"
    lines = figures.reliability_plot([truth, model]).axes[0].lines
    assert lines[0].get_label() == "true posterior" and lines[-1].get_xdata().tolist() == [0, 1]


def test_seeds_of_a_model_become_one_line():
    rows = [
        {"model": name, "solver": "why", "cause_first": x, "cause_first_low": x - 0.1}
        for name, x in (("a", 0.5), ("a_seed1", 0.7))
    ]
    (line,) = over_seeds([*rows])
    assert (line["model"], line["num_models"]) == ("a", 2)
    assert line["cause_first"] == pytest.approx(0.6) and line["cause_first_low"] == pytest.approx(0.4)
