"""Evaluation of point processes: against a slow loop, a closed form and the true process; then the script."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from ehd_hf import evaluation
from ehd_hf.baselines import TrivialBaseline
from ehd_hf.evaluation import (
    TRUE_PROCESS,
    add_gaps,
    evaluate_mtpp,
    events_digest,
    ks_distance,
    score_events,
    summarize_scores,
    trivial_baselines,
)
from ehd_hf.events import EventSequences
from ehd_hf.mtpp.base import MTPPConfig, MTPPModel
from ehd_hf.mtpp.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.synthetic import delayed_hawkes, simulate_poisson
from ehd_hf.windows import make_windows

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "evaluate.py"


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
    sequences = simulate_poisson([0.5, 1.0], 60.0, 30, np.random.default_rng(0))
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
    from ehd_hf import synthetic

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
