"""The paper's tasks: a distiller and solvers that are asked for as much as it gave, by hand on a Poisson process."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import helpers
from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation.statistics import mean_interval
from helpers import from_lists
from tasks import Run, renumber_marks, windows as evaluation
from tasks.windows import PaperTasks


@pytest.fixture(scope="module")
def events():
    return delayed_hawkes().simulate(25.0, 17, np.random.default_rng(0)).sequences


class FixedDistiller:
    """Answers with a mask chosen by the first mark of the window."""

    device = torch.device("cpu")

    def __init__(self, mtpp, masks, id2label, conditioning="paper"):
        self.mtpp, self.masks = mtpp.float().eval(), torch.tensor(masks)
        marks = SimpleNamespace(id2label=dict(id2label))
        self.config = SimpleNamespace(epsilon=0.5, conditioning=conditioning, mtpp_config=marks)

    def eval(self):
        return self

    def distill(self, window):
        return self.masks[window.marks[:, 0]], torch.zeros(0)


@pytest.fixture(scope="module")
def by_hand():
    """Three windows of one history, 1, 2, 4 | 5, 7, in three sequences, and a distiller with three different answers.

    The Poisson process has rate 2 in all and K = 2, so keeping a history whose last event is at t costs dppl = t - 4:
    0 with the event at 4, -2 and -3 with 2 or 1 the last, -4 with nothing.
    """
    times, marks = [10.0, 11.0, 12.0, 14.0, 15.0, 17.0], [0, 1, 2]
    sequences = from_lists([times] * 3, [[0, first, 0, 1, 2, 0] for first in marks], num_marks=3)
    masks = [[True, False, False], [True, True, True], [True, False, True]]
    distiller = FixedDistiller(helpers.PoissonMTPP([0.5, 1.0, 0.5]), masks, sequences.id2label)
    return distiller, make_windows(sequences, future=2, history=3)


def paper_tasks(distiller, windows, conditioning="paper", **options):
    return PaperTasks(distiller, windows, Run(conditioning=conditioning, **options))


def test_the_answers_of_a_distiller_by_hand(by_hand):
    answers = paper_tasks(*by_hand).own
    np.testing.assert_allclose(answers.dppl_left, [0, -4, -2], atol=1e-6)
    np.testing.assert_allclose(answers.dppl_distilled, [-3, 0, 0], atol=1e-6)
    assert answers.sizes.tolist() == [1, 3, 2]
    # The full history, then H_l and H_d; where either is the whole history its dppl is known to be 0.
    assert answers.num_evaluations.tolist() == [3, 2, 3]


@pytest.mark.parametrize("batch_size", [1, 2, 250])
def test_ds_and_lmhs_by_hand(by_hand, batch_size):
    stamp = {"data": "toy", "seed": 7}
    rows = list(paper_tasks(*by_hand, batch_size=batch_size, stamp=stamp).rows(["ehed", "emhd"], ["greedy_search"]))
    names = ("distiller", "recency", "greedy_search")
    rows_by_question = dict(zip([(task, name) for task in ("ehed", "emhd") for name in names], rows, strict=True))
    assert all((row["task"], row["solver"]) == question for question, row in rows_by_question.items())
    ds = rows_by_question["ehed", "distiller"]
    assert ds["ds"] == pytest.approx(1.0) and ds["ds_std"] == pytest.approx(np.std([-3, 4, 2]))
    assert ds["difference"] is None and ds["reached"] == 1.0 and ds["size"] == 2.0
    # The last one, three and two events: dppl_left -2, -4, -3, and dppl_distilled 0.
    recency = rows_by_question["ehed", "recency"]
    assert recency["ds"] == pytest.approx(3.0) and recency["dppl_left"] == pytest.approx(-3.0)
    assert recency["difference"] == pytest.approx(2.0) and recency["size"] == 2.0
    assert (recency["difference_low"], recency["difference_high"]) == pytest.approx(
        mean_interval(np.array([5.0, 0.0, 1.0]), np.arange(3)), abs=1e-6
    )
    # Targets (0, -3), (-4, 0), (-2, 0): nothing distilled leaves H_d at -4, so one event; all three; one.
    lmhs = rows_by_question["emhd", "recency"]
    assert lmhs["lmhs"] == pytest.approx(5 / 3) and lmhs["lmhs_std"] == pytest.approx(np.std([1, 3, 1]))
    assert lmhs["difference"] == pytest.approx(-1 / 3) and lmhs["reached"] == 1.0
    assert rows_by_question["emhd", "distiller"]["lmhs"] == 2.0
    assert rows_by_question["emhd", "greedy_search"]["lmhs"] == pytest.approx(5 / 3)
    for row in rows:
        assert (row["pair"], row["data"], row["seed"], row["num_windows"]) == ("2-3", "toy", 7, 3)
        assert {"epsilon", "conditioning", "generator_seed", "evaluations", "version"} <= row.keys()
        assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_a_solver_that_reaches_nothing_counts_as_the_whole_history(by_hand, monkeypatch):
    from ehd_hf.solvers.base import Found, Solver

    class Hopeless(Solver):
        def search(self, objective, rule, generator):
            return Found(objective)

    monkeypatch.setattr(evaluation, "get_solver", lambda name: Hopeless())
    row = paper_tasks(*by_hand).solver_row("emhd", "hopeless")
    assert row["lmhs"] == 3.0 and row["reached"] == 0.0 and row["difference"] == 1.0


def test_random_solvers_repeat_with_their_seed(events):
    mtpp = helpers.AdditiveMTPP([0.5] * 6, 0.1 * np.ones((6, 6)))
    distiller = FixedDistiller(mtpp, np.eye(6, 7) + np.eye(6, 7, 1) > 0, events.id2label, "survival")
    windows = make_windows(events, future=4, history=7).sample(40)

    def row(**options):
        return list(paper_tasks(distiller, windows, **options).rows(["ehed"], ["random_distillation"]))[2]

    first, again, other = (row(conditioning="survival", generator_seed=seed) for seed in (0, 0, 1))
    assert first["ds"] == again["ds"] != other["ds"]
    assert first["solver_options"] == "num_draws=4" and first["conditioning"] == "survival"
    assert first["num_sequences"] == len(np.unique(windows.sequence_index))
    assert row()["conditioning"] == "paper" and row()["ds"] != first["ds"]


def test_a_distiller_beside_recency_by_hand(by_hand):
    (row,) = paper_tasks(*by_hand, stamp={"model": "fixed"}).rows(["distiller"])
    expected = {
        "ds": 1.0,
        "size": 2.0,
        "constraint_met": 2 / 3,  # dppl_left 0, -4, -2 against log 0.5
        "is_last_k": 1 / 3,
        "last_k_share": (0 + 1 + 1 / 2) / 3,
        "recency_ds": 3.0,
        "recency_size": 1.0,  # without the last event dppl_left is -2
        "recency_reached": 1.0,
    }
    assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert row["recency_size_std"] == 0.0 and row["num_windows"] == 3 and row["model"] == "fixed"


def test_a_distiller_that_distils_nothing_still_has_a_row(by_hand):
    distiller, windows = by_hand
    nothing = FixedDistiller(distiller.mtpp, [[False] * 3] * 3, windows.sequences.id2label)
    row = paper_tasks(nothing, windows).distiller_row()
    assert row["last_k_share"] is None and row["size"] == 0.0 and row["is_last_k"] == 1.0
    json.dumps(row, allow_nan=False)


def test_marks_of_the_same_names_are_renumbered_and_others_left():
    sequences = from_lists([[1.0, 2.0, 3.0]], [[0, 1, 2]], id2label={0: "a", 1: "b", 2: "c"})
    ours = renumber_marks(sequences, {0: "c", 1: "a", 2: "b"})
    assert ours.marks.tolist() == [1, 2, 0] and dict(ours.id2label) == {0: "c", 1: "a", 2: "b"}
    assert renumber_marks(sequences, {0: "a", 1: "b", 2: "c", 3: "d"}) is sequences


def test_a_case_study_reads_the_masks_of_neighbouring_windows(events):
    mtpp = helpers.PoissonMTPP([1.0] * 6)
    distiller = FixedDistiller(mtpp, np.tile(np.arange(7) >= 4, (6, 1)), events.id2label)
    (row,) = paper_tasks(distiller, make_windows(events, future=4, history=7)).rows(["case_study"])
    # Always the last three: each slide takes the new event and lets go of the oldest of them.
    assert row["length_pdf"][3] == 1.0 and row["adds_one"] == 1.0 and row["run_length"] == 1.0
    assert row["added"] == row["ejected"] == [0, row["num_slides"]]
    assert row["task"] == "case_study"
    assert {mark["label"] for mark in row["mark_shares"]} <= set(events.id2label.values())
