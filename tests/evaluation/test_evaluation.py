"""Evaluation of point processes: against a slow loop, a closed form and the true process; of distillers and solvers:
by hand on a Poisson process; then the script with point processes."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import helpers
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.synthetic import HawkesProcess, delayed_hawkes
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation import scores as evaluation
from ehd_hf.evaluation.baselines import TrivialBaseline
from ehd_hf.evaluation.scores import (
    TRUE_PROCESS,
    add_gaps,
    distiller_answers,
    evaluate_case_study,
    evaluate_distiller,
    evaluate_mtpp,
    evaluate_solvers,
    evaluate_windows,
    events_digest,
    ks_distance,
    renumber_marks,
    score_events,
    summarize_scores,
    trivial_baselines,
)
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.point_process import MTPPConfig, MTPPModel

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "evaluate.py"


class PoissonMTPP(MTPPModel):
    """Homogeneous Poisson: everything is known by hand, whatever the history."""

    def __init__(self, rates):
        super().__init__(MTPPConfig(num_marks=len(rates)))
        self.rates = torch.nn.Parameter(torch.tensor(rates))

    def encode_history(self, times, marks, mask, keep, mark_weights=None):
        assert keep is None and times.dtype == torch.float64  # float32 would lose short intervals far from the origin
        return times.new_zeros(len(times), times.shape[1] + 1, 1), torch.nn.functional.pad(times, (1, 0))

    def score_intervals(self, states, intervals, marks):
        total = self.rates.sum()
        return total.log().expand_as(intervals), self.rates[marks].log(), total * intervals


def small_fullynn(num_marks=6):
    torch.manual_seed(0)
    return FullyNNModel(FullyNNConfig(num_marks=num_marks, embedding_size=4, hidden_size=8, num_components=5))


@pytest.fixture(scope="module")
def events():
    """19 sequences of different lengths, one event in the shortest."""
    sequences = delayed_hawkes().simulate(25.0, 17, np.random.default_rng(0)).sequences
    times, marks = [list(pieces) for pieces in zip(*sequences, strict=True)]
    return EventSequences.from_lists([*times, [3.0], [2.0, 2.0, 4.0]], [*marks, [1], [0, 5, 2]], num_marks=6)


def slow_scores(model, sequences):
    """One sequence at a time, in double, no padding."""
    model, pieces = model.double(), []
    for times, marks in sequences:
        inputs = torch.tensor(times - times[0])[None], torch.tensor(marks)[None]
        output = model.event_log_prob(*inputs, torch.ones(1, len(times), dtype=torch.bool))
        piece = torch.stack([output.time_log_prob, output.mark_log_prob, output.compensator])[:, 0].detach()
        piece[:, 0] = torch.nan
        pieces.append(piece)
    return torch.cat(pieces, dim=1).numpy()


@pytest.mark.parametrize("max_tokens", [1, 64, 10_000])
def test_scores_equal_a_slow_loop_whatever_the_batches(events, max_tokens):
    model = small_fullynn()
    scores = score_events(model, events, max_tokens=max_tokens)
    assert next(model.parameters()).dtype == torch.float32  # the caller's model is left as it is
    expected = slow_scores(model, events)
    for ours, slow in zip(scores[1:], expected, strict=True):
        np.testing.assert_allclose(ours, slow, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scores.log_prob, expected[0] + expected[1], rtol=1e-9)


def test_batches_hold_every_sequence_once_and_no_more_tokens_than_allowed():
    lengths = np.array([3, 50, 1, 7, 7, 20, 2, 130])
    batches = list(evaluation._length_buckets(lengths, 40))
    assert sorted(np.concatenate(batches).tolist()) == list(range(8))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= 40 for batch in batches)
    assert len(batches) < 8


def test_a_poisson_row_has_the_nll_known_by_hand():
    sequences = EventSequences.from_lists([[5.0, 6.0, 8.0, 9.0], [1.0, 5.0]], [[0, 1, 1, 0], [1, 0]])
    (row,) = evaluate_mtpp({"p": PoissonMTPP([0.5, 1.5])}, sequences, pair=(1, 2), data="toy", seed=3)
    # Scored: intervals 1, 2, 1, 4 and marks 1, 1, 0, 0, at a total rate of 2.
    assert row["time_nll"] == pytest.approx(-np.log(2) + 2 * 8 / 4)
    assert row["mark_nll"] == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)
    assert row["nll"] == pytest.approx(row["time_nll"] + row["mark_nll"])
    # One window, events 1 to 3 of the first sequence; its future has interval 1 and mark 0.
    assert row["num_windows"] == 1
    assert row["future_nll"] == pytest.approx(-np.log(0.5) + 2)
    assert (row["data"], row["seed"], row["model"], row["pair"], row["num_events"]) == ("toy", 3, "p", "1-2", 4)
    assert {"task", "version", "seconds", "num_tied", "ks", "qq"} <= row.keys()
    assert json.loads(json.dumps(row)) == row


def test_the_nll_of_window_futures_equals_a_loop_over_windows(events):
    model = small_fullynn()
    (row,) = evaluate_mtpp({"m": model}, events, pair=(4, 7), max_tokens=100)
    windows = make_windows(events, future=4, history=7)
    parts = []
    for index in range(len(windows)):
        times, marks = windows.gather([index])
        output = model.double().event_log_prob(times, marks, torch.ones(1, 11, dtype=torch.bool))
        parts.append((output.time_log_prob[0, 7:], output.mark_log_prob[0, 7:]))
    time_nll, mark_nll = (-torch.cat(values).mean().item() for values in zip(*parts, strict=True))
    assert row["num_windows"] == len(windows) > 100
    assert row["future_time_nll"] == pytest.approx(time_nll, rel=1e-9)
    assert row["future_mark_nll"] == pytest.approx(mark_nll, rel=1e-9)
    assert row["future_nll"] == pytest.approx(time_nll + mark_nll, rel=1e-9)


def test_baselines_and_the_true_process_are_scored_on_the_same_futures(events):
    models = {**trivial_baselines(events), TRUE_PROCESS: delayed_hawkes()}
    rows = list(evaluate_mtpp(models, events, pair=(4, 7)))
    windows = make_windows(events, future=4, history=7)
    where = (windows.first[:, None] + 7 + np.arange(4)).ravel()
    assert [row["model"] for row in rows] == ["Poisson + unigram", "Gamma + bigram", TRUE_PROCESS]
    for row, model in zip(rows, models.values(), strict=True):
        scores = score_events(model, events)
        assert row["future_nll"] == pytest.approx(-scores.log_prob[where].mean())
        assert row["nll"] == pytest.approx(-np.nanmean(scores.log_prob))
        assert row["num_events"] == events.num_events - len(events)
        assert row["num_tied"] == 1
    assert rows[-1]["time_nll"] is rows[-1]["future_mark_nll"] is None  # not NaN, which JSON does not know
    assert rows[1]["future_time_nll"] == pytest.approx(
        -score_events(models["Gamma + bigram"], events)[1][where].mean()
    )


def test_gaps_are_measured_from_the_true_process_on_the_same_events():
    rows = [
        {"model": name, "nll": nll, "data": "a", "split": "test"} for name, nll in (("m", 2.5), (TRUE_PROCESS, 2.0))
    ]
    other = {"model": "m", "nll": 9.0, "data": "b", "split": "test"}
    gaps = [row.get("gap") for row in add_gaps([*rows, other])]
    assert gaps == [0.5, 0.0, None]


def test_ks_distance_agrees_with_scipy_and_sees_a_wrong_rate():
    sequences = HawkesProcess([0.5, 1.0], np.zeros((2, 2))).simulate(60.0, 30, np.random.default_rng(0)).sequences
    right, wrong = (score_events(PoissonMTPP(rates), sequences) for rates in ([0.5, 1.0], [1.0, 2.0]))
    rescaled = right.compensator[~np.isnan(right.compensator)]
    assert ks_distance(rescaled) == pytest.approx(stats.kstest(rescaled, "expon").statistic)
    good, bad = summarize_scores(right), summarize_scores(wrong)
    assert good["ks"] < 0.04 and bad["ks"] > 0.15
    assert len(good["qq"]) == 99 and good["qq"][49] == pytest.approx(np.log(2), abs=0.05)
    assert bad["qq"][49] == pytest.approx(2 * good["qq"][49], rel=1e-5)


def test_short_intervals_far_from_the_origin_are_not_lost():
    times = np.array([0.0, 500_000.0, 500_000.001, 500_000.003])
    sequences = EventSequences.from_lists([times], [[0, 0, 0, 0]])
    np.testing.assert_allclose(score_events(PoissonMTPP([1.0]), sequences).compensator[1:], np.diff(times), rtol=1e-12)


def test_bad_input_is_refused_before_anything_is_scored(events):
    with pytest.raises(ValueError, match="model m knows 3 marks; the events have 6"):
        next(evaluate_mtpp({"m": small_fullynn(3)}, events))
    with pytest.raises(ValueError, match="two events or more"):
        list(evaluate_mtpp({"m": small_fullynn(1)}, EventSequences.from_lists([[1.0]], [[0]])))
    with pytest.raises(ValueError, match="the longest has"):
        next(evaluate_mtpp({"m": small_fullynn()}, events, pair=(400, 7)))
    with pytest.raises(ValueError, match="m must be a point process; got a Linear"):
        next(evaluate_mtpp({"m": torch.nn.Linear(1, 1)}, events))
    with pytest.raises(ValueError, match="not fitted"):
        next(evaluate_mtpp({"m": TrivialBaseline()}, events))


def test_the_digest_of_events_sees_every_time_mark_and_boundary(events):
    split = EventSequences.from_lists([[1.0, 2.0], [3.0]], [[0, 1], [1]])
    other = [
        EventSequences.from_lists([[1.0, 2.5], [3.0]], [[0, 1], [1]]),
        EventSequences.from_lists([[1.0, 2.0], [3.0]], [[0, 0], [1]]),
        EventSequences.from_lists([[1.0], [2.0, 3.0]], [[0], [1, 1]]),
    ]
    assert len({events_digest(sequences) for sequences in (split, *other)}) == 4
    assert events_digest(split) == events_digest(split.select([0, 1]))


# distillers and solvers


class FixedDistiller:
    """Answers with a mask chosen by the first mark of the window."""

    device = torch.device("cpu")

    def __init__(self, mtpp, masks, id2label, conditioning="paper"):
        self.mtpp, self.masks = mtpp.float().eval(), torch.tensor(masks)
        marks = SimpleNamespace(id2label=dict(id2label))
        self.config = SimpleNamespace(epsilon=0.5, conditioning=conditioning, mtpp_config=marks)

    def eval(self):
        return self

    def distill(self, times, marks, mask, num_future):
        return self.masks[marks[:, 0]], torch.zeros(0)


@pytest.fixture(scope="module")
def by_hand():
    """Three windows of one history, 1, 2, 4 | 5, 7, in three sequences, and a distiller with three different answers.

    The Poisson process has rate 2 in all and K = 2, so keeping a history whose last event is at t costs dppl = t - 4:
    0 with the event at 4, -2 and -3 with 2 or 1 the last, -4 with nothing.
    """
    times, marks = [10.0, 11.0, 12.0, 14.0, 15.0, 17.0], [0, 1, 2]
    sequences = EventSequences.from_lists([times] * 3, [[0, first, 0, 1, 2, 0] for first in marks], num_marks=3)
    masks = [[True, False, False], [True, True, True], [True, False, True]]
    distiller = FixedDistiller(helpers.PoissonMTPP([0.5, 1.0, 0.5]), masks, sequences.id2label)
    return distiller, make_windows(sequences, future=2, history=3)


def test_the_answers_of_a_distiller_by_hand(by_hand):
    answers = distiller_answers(*by_hand)
    np.testing.assert_allclose(answers.dppl_left, [0, -4, -2], atol=1e-6)
    np.testing.assert_allclose(answers.dppl_distilled, [-3, 0, 0], atol=1e-6)
    assert answers.sizes.tolist() == [1, 3, 2]
    # The full history, then H_l and H_d; where either is the whole history its dppl is known to be 0.
    assert answers.num_evaluations.tolist() == [3, 2, 3]


@pytest.mark.parametrize("batch_size", [1, 2, 250])
def test_ds_and_lmhs_by_hand(by_hand, batch_size):
    names = ("distiller", "recency", "greedy_search")
    questions = [(task, name) for task in ("ehed", "emhd") for name in names]
    rows = list(evaluate_solvers(*by_hand, questions, batch_size=batch_size, data="toy", seed=7))
    assert [(row["task"], row["solver"]) for row in rows] == questions
    found = {question: row for question, row in zip(questions, rows, strict=True)}
    ds = found["ehed", "distiller"]
    assert ds["ds"] == pytest.approx(1.0) and ds["ds_std"] == pytest.approx(np.std([-3, 4, 2]))
    assert ds["difference"] is None and ds["reached"] == 1.0 and ds["size"] == 2.0
    # The last one, three and two events: dppl_left -2, -4, -3, and dppl_distilled 0.
    recency = found["ehed", "recency"]
    assert recency["ds"] == pytest.approx(3.0) and recency["dppl_left"] == pytest.approx(-3.0)
    assert recency["difference"] == pytest.approx(2.0) and recency["size"] == 2.0
    assert (recency["difference_low"], recency["difference_high"]) == pytest.approx(
        mean_interval(np.array([5.0, 0.0, 1.0]), np.arange(3)), abs=1e-6
    )
    # Targets (0, -3), (-4, 0), (-2, 0): nothing distilled leaves H_d at -4, so one event; all three; one.
    lmhs = found["emhd", "recency"]
    assert lmhs["lmhs"] == pytest.approx(5 / 3) and lmhs["lmhs_std"] == pytest.approx(np.std([1, 3, 1]))
    assert lmhs["difference"] == pytest.approx(-1 / 3) and lmhs["reached"] == 1.0
    assert found["emhd", "distiller"]["lmhs"] == 2.0
    assert found["emhd", "greedy_search"]["lmhs"] == pytest.approx(5 / 3)  # the last event hurts most here too
    for row in rows:
        assert (row["pair"], row["data"], row["seed"], row["num_windows"]) == ("2-3", "toy", 7, 3)
        assert {
            "epsilon",
            "conditioning",
            "generator_seed",
            "evaluations",
            "seconds_per_window",
            "version",
        } <= row.keys()
        assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_a_solver_that_reaches_nothing_counts_as_the_whole_history(by_hand, monkeypatch):
    from ehd_hf.solvers.base import Found, Solver

    class Hopeless(Solver):
        def search(self, objective, rule, generator):
            return Found(objective)

    monkeypatch.setattr(evaluation, "get_solver", lambda name: Hopeless())
    (row,) = evaluate_solvers(*by_hand, [("emhd", "hopeless")])
    assert row["lmhs"] == 3.0 and row["reached"] == 0.0 and row["difference"] == 1.0


def test_random_solvers_repeat_with_their_seed_and_rows_tell_their_options(events):
    mtpp = helpers.AdditiveMTPP([0.5] * 6, 0.1 * np.ones((6, 6)))
    distiller = FixedDistiller(mtpp, np.eye(6, 7) + np.eye(6, 7, 1) > 0, events.id2label, "survival")
    windows = make_windows(events, future=4, history=7).sample(40)
    question = [("ehed", "random_distillation")]
    first, again, other = (next(evaluate_solvers(distiller, windows, question, generator_seed=s)) for s in (0, 0, 1))
    assert first["ds"] == again["ds"] != other["ds"]
    assert first["solver_options"] == "num_draws=4" and first["conditioning"] == "survival"
    assert first["num_sequences"] == len(np.unique(windows.sequence_index))
    (paper,) = evaluate_solvers(distiller, windows, question, conditioning="paper")
    assert paper["conditioning"] == "paper" and paper["ds"] != first["ds"]


def test_a_distiller_beside_recency_by_hand(by_hand):
    row = evaluate_distiller(*by_hand, model="fixed")
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
    row = evaluate_distiller(nothing, windows)
    assert row["last_k_share"] is None and row["size"] == 0.0 and row["is_last_k"] == 1.0
    json.dumps(row, allow_nan=False)


def test_only_rows_that_are_not_known_are_computed(by_hand, monkeypatch):
    asked, kept = [], {}
    solve = evaluation.solver_answers
    monkeypatch.setattr(evaluation, "solver_answers", lambda *a, **k: (asked.append(k["name"]), solve(*a, **k))[1])

    def known(key):
        assert key["num_windows"] == 3 and key["data"] == "toy"
        return kept.get((key["task"], key.get("solver"), key.get("generator_seed")))

    def run(*solvers, **options):
        rows = list(evaluate_windows(*by_hand, ["emhd", "distiller"], solvers, known=known, data="toy", **options))
        for row in rows:
            kept[row["task"], row.get("solver"), row.get("generator_seed")] = row
        return [(row["task"], row.get("solver")) for row in rows]

    first = run("greedy_search")
    assert first == [("emhd", "distiller"), ("emhd", "recency"), ("emhd", "greedy_search"), ("distiller", None)]
    assert asked == ["emhd recency", "emhd greedy_search", "recency", "recency"]
    asked.clear()
    assert run("greedy_search", "leave_one_out")[3] == ("emhd", "leave_one_out") and asked == ["emhd leave_one_out"]
    asked.clear()
    run("greedy_search", generator_seed=1)
    assert asked == ["emhd recency", "emhd greedy_search"]


def test_unknown_tasks_and_solvers_are_answered_with_the_known_ones(by_hand):
    with pytest.raises(ValueError, match="task must be one of ehed, emhd; got 'x'"):
        next(evaluate_solvers(*by_hand, [("x", "recency")]))
    with pytest.raises(ValueError, match="solver must be one of .*greedy_search.*; got 'x'"):
        next(evaluate_solvers(*by_hand, [("ehed", "x")]))
    with pytest.raises(ValueError, match="task must be one of distiller, ehed, emhd, case_study; got 'mtpp'"):
        next(evaluate_windows(*by_hand, ["mtpp"]))


def test_windows_of_other_marks_are_refused(by_hand, events):
    windows = make_windows(events, future=2, history=3)
    with pytest.raises(ValueError, match="3 marks the distiller knows .*; theirs are 6"):
        distiller_answers(by_hand[0], windows)


def test_marks_of_the_same_names_are_renumbered_and_others_left():
    sequences = EventSequences.from_lists([[1.0, 2.0, 3.0]], [[0, 1, 2]], id2label={0: "a", 1: "b", 2: "c"})
    ours = renumber_marks(sequences, {0: "c", 1: "a", 2: "b"})
    assert ours.marks.tolist() == [1, 2, 0] and dict(ours.id2label) == {0: "c", 1: "a", 2: "b"}
    assert renumber_marks(sequences, {0: "a", 1: "b", 2: "c", 3: "d"}) is sequences


def test_a_case_study_reads_the_masks_of_neighbouring_windows(events):
    mtpp = helpers.PoissonMTPP([1.0] * 6)
    distiller = FixedDistiller(mtpp, np.tile(np.arange(7) >= 4, (6, 1)), events.id2label)
    row = evaluate_case_study(distiller, make_windows(events, future=4, history=7), data="toy")
    # Always the last three: each slide takes the new event and lets go of the oldest of them.
    assert row["length_pdf"][3] == 1.0 and row["adds_one"] == 1.0 and row["run_length"] == 1.0
    assert row["added"] == row["ejected"] == [0, row["num_slides"]]
    assert row["task"] == "case_study" and row["data"] == "toy"
    assert {mark["label"] for mark in row["mark_shares"]} <= set(events.id2label.values())


# the script


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("evaluate_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folders(tmp_path_factory, events):
    """Two checkpoints and a data set on disk."""
    root = tmp_path_factory.mktemp("run")
    for seed in (0, 1):
        model = small_fullynn()
        with torch.no_grad():
            model.amplitude.bias += 0.1 * seed
        model.save_pretrained(root / f"seed{seed}")
        (root / f"seed{seed}" / "training.json").write_text(json.dumps({"args": {"seed": seed}}))
    (root / "toy").mkdir()
    for split in ("train", "test"):
        rows = ({"seq_id": i, "times": t.tolist(), "marks": m.tolist()} for i, (t, m) in enumerate(events))
        (root / "toy" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_the_script_prints_models_beside_baselines_and_keeps_rows(script, folders, tmp_path, capsys):
    out, figure = tmp_path / "rows.jsonl", tmp_path / "qq.png"
    models = [str(folders / "seed0"), str(folders / "seed1")]
    arguments = ["--model", *models, "--data", str(folders / "toy"), "--pair", "4-7", "--out", str(out)]
    assert script.main([*arguments, "--figure", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("Poisson + unigram", "Gamma + bigram", "seed1", "mean ± std of 2 models"))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["model"] for row in rows] == ["Poisson + unigram", "Gamma + bigram", *models]
    assert [row["seed"] for row in rows] == [None, None, 0, 1]
    assert {(row["data"], row["split"], row["pair"]) for row in rows} == {("toy", "test", "4-7")}
    assert rows[2]["nll"] != rows[3]["nll"]
    assert figure.stat().st_size > 0


def test_the_script_computes_only_what_is_missing(script, folders, tmp_path, capsys, monkeypatch):
    out, scored = tmp_path / "rows.jsonl", []
    evaluate = evaluation.evaluate_mtpp
    monkeypatch.setattr(
        evaluation, "evaluate_mtpp", lambda models, *a, **k: (scored.extend(models), evaluate(models, *a, **k))[1]
    )
    arguments = ["--data", str(folders / "toy"), "--out", str(out)]
    first, second = str(folders / "seed0"), str(folders / "seed1")
    assert script.main([*arguments, "--model", first]) == 0
    table = capsys.readouterr().out
    assert script.main([*arguments, "--model", first]) == 0
    assert capsys.readouterr().out == table and len(scored) == 3
    assert script.main([*arguments, "--model", first, second]) == 0
    assert scored[3:] == [second]
    assert script.main([*arguments, "--model", first, "--pair", "4-7"]) == 0  # other windows: other rows
    assert len(scored) == 7
    FullyNNModel(small_fullynn().config).save_pretrained(folders / "retrained")
    assert script.main([*arguments, "--model", str(folders / "retrained")]) == 0
    small_fullynn().save_pretrained(folders / "retrained")  # other weights in the same place
    assert script.main([*arguments, "--model", str(folders / "retrained")]) == 0
    assert len(scored) == 9 and len(out.read_text().splitlines()) == 9


def test_simulated_data_brings_the_true_process_and_the_gap(script, folders, capsys, monkeypatch):
    from ehd_hf.data import synthetic

    whole = synthetic.simulated_splits
    monkeypatch.setattr(
        synthetic, "simulated_splits", lambda process: whole(process, {"train": 20, "test": 10}, horizon=30.0)
    )
    assert script.main(["--model", str(folders / "seed0"), "--data", "simulated:delayed"]) == 0
    printed = capsys.readouterr().out
    assert "above truth" in printed and TRUE_PROCESS in printed and "mean ±" not in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "nowhere"}, "must be a folder with config.json"),
        ({"--data": "nowhere"}, "does not exist"),
        ({"--data": "simulated:weather"}, "process must be one of"),
        ({"--data": "simulated:incident"}, "knows 6 marks; the events have 9"),
        ({"--split": "validation"}, "must have the split 'validation'; got train, test"),
        ({"--pair": "15x40"}, '"K-L"'),
        ({"--pair": "400-40"}, "the longest has"),
        ({"--jitter-seed": "0"}, "jitter is for whole-number times"),
        ({"--out": "no/such/folder/rows.jsonl"}, "folder that exists"),
    ],
)
def test_user_errors_end_in_one_line_and_code_2(script, folders, capsys, tmp_path, changes, message):
    out = tmp_path / "rows.jsonl"
    given = {"--model": folders / "seed0", "--data": folders / "toy", "--out": out} | changes
    assert script.main([str(word) for pair in given.items() for word in pair]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == "" and not out.exists()
    assert [line for line in captured.err.splitlines() if line.startswith("evaluate: ")]


def test_an_unknown_task_is_answered_with_the_known_ones(script, folders, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--model", str(folders / "seed0"), "--data", "simulated:delayed", "--task", "weather"])
    assert stop.value.code == 2 and "mtpp" in capsys.readouterr().err
