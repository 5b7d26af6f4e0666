"""The benchmark on tiny sizes, and that what it compares is the same computation. Nothing is timed here."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ehd_hf.mtpp.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.rebuild import compact

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))  # as when the script is run

import benchmark  # noqa: E402
import benchmarks  # noqa: E402
import paper_plan  # noqa: E402
from benchmarks import distiller, memory, mtpp, processes  # noqa: E402


@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_naive_likelihood_and_ours_agree_in_value_and_gradient(num_layers):
    torch.manual_seed(0)
    config = FullyNNConfig(num_marks=6, embedding_size=4, hidden_size=8, num_components=5, num_layers=num_layers)
    model = FullyNNModel(config).double()
    times, marks = torch.rand(3, 11, dtype=torch.float64).cumsum(1), torch.randint(6, (3, 11))
    times[1, 4:6] = times[1, 3]  # tied times
    mask = torch.arange(11) < torch.tensor([11, 7, 1])[:, None]
    naive, fast = mtpp.naive_loss(model, times, marks, mask), model(times, marks, mask).loss
    torch.testing.assert_close(naive, fast, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (naive, fast)]
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-8, atol=1e-10)


def test_both_steps_of_the_benchmark_compute_the_same_loss():
    losses = [mtpp.make_step(7, 3, 5, naive=naive)() for naive in (True, False)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_every_call_is_timed_in_every_repeat_after_a_warm_up():
    seen = []
    seconds = benchmarks.time_interleaved([lambda: seen.append("a"), lambda: seen.append("b")], 3, least_seconds=0.0)
    assert seconds.shape == (3, 2) and (seconds > 0).all()
    assert seen == ["a", "b"] * 4


def test_a_summary_tells_median_and_spread():
    row = benchmarks.summarize("x", np.array([3.0, 1.0, 7.0]), "> 2")
    assert row == {"figure": "x", "median": 3.0, "low": 1.0, "high": 7.0, "repeats": 3, "target": "> 2"}


def test_all_figures_of_the_group_run_on_tiny_sizes(monkeypatch, tmp_path, capsys):
    tiny = {"batch_size": 2, "length": 3}

    def group(repeats):
        yield mtpp.against_naive(repeats, 4, ">= 3", **tiny)
        yield from mtpp.against_marks(repeats, num_marks=(3, 5), **tiny)
        yield mtpp.data_share(repeats, num_sequences=3, **tiny)
        yield mtpp.window_rate(repeats, num_sequences=3, batch_size=16, pair=(2, 3))

    monkeypatch.setattr(mtpp, "measure", group)
    monkeypatch.setattr(benchmarks.time_interleaved, "__defaults__", (0.0,))
    assert benchmark.main(["mtpp", "--repeats", "2", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 4 and all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert {"group", "threads", "torch", "version"} <= rows[0].keys()
    assert "windows of 5 events per second" in capsys.readouterr().out


def test_the_looped_rebuild_of_the_benchmark_equals_compaction():
    torch.manual_seed(0)
    times, marks = torch.rand(3, 7).cumsum(1), torch.randint(6, (3, 7))
    keep = (torch.rand(5, 3, 7) > 0.5).float()
    intervals, kept_marks, _ = distiller.looped_rebuild(times, marks, torch.randn(3, 7, 2), keep)
    for sample in range(5):
        rebuilt = compact(times, marks, torch.ones_like(marks, dtype=torch.bool), keep[sample] > 0.5)
        for row in range(3):
            count = int(rebuilt.mask[row].sum())
            torch.testing.assert_close(intervals[sample, row, :count].cumsum(0), rebuilt.times[row, :count])
            assert torch.equal(kept_marks[sample, row, :count], rebuilt.marks[row, :count])


def test_the_plain_training_step_of_the_benchmark_computes_our_loss():
    model, batch = distiller.make_distiller(6).train(), distiller.make_batch(1)
    torch.manual_seed(0)
    plain = distiller.one_at_a_time_step(model, batch)
    torch.manual_seed(0)
    assert plain == pytest.approx(float(model(**batch).loss.detach()), abs=1e-5)


def test_all_figures_of_the_distiller_run(monkeypatch):
    monkeypatch.setattr(benchmarks.time_interleaved, "__defaults__", (0.0,))
    assert len(list(distiller.measure(1, size=8))) == 8


def test_the_plan_is_computed_from_what_was_measured(tmp_path, capsys):
    figures = {paper_plan.RATE: 1000.0, paper_plan.READING: 50_000.0, paper_plan.READ: 500.0, paper_plan.WRITTEN: 60.0}
    figures["peak memory of explaining 9 windows from Parquet, GB"] = 1.25
    rows = [{"group": "memory", "figure": name, "median": value, "threads": 2} for name, value in figures.items()]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    said = ["--benchmarks", str(tmp_path / "rows.json"), "--windows", "3.6e9", "--processes", "8"]
    assert paper_plan.main(said) == 0
    shown = capsys.readouterr().out
    assert "| core-hours | 2,000 |" in shown and "| hours with 8 processes | 145.0 |" in shown  # 125 and 20 of reading
    assert "| bytes read | 1,800 GB" in shown and "| bytes written | 216 GB |" in shown and "10.0 GB (1.25" in shown
    assert "explaining: beyond 50 processes" in shown
    assert paper_plan.main([*said[:-1], "51"]) == 0 and "| reading: beyond 50" in capsys.readouterr().out
    (tmp_path / "rows.json").write_text(json.dumps(rows[1:]))
    assert paper_plan.main(said) == 2 and "Run scripts/benchmark.py memory" in capsys.readouterr().err


@pytest.mark.slow
def test_all_figures_of_memory_and_processes_run(monkeypatch):
    monkeypatch.setenv("EHD_HF_MEMORY_WINDOWS", "40")
    monkeypatch.setenv("EHD_HF_STORE_WINDOWS", "5000")
    rows = {row["figure"]: row["median"] for row in memory.measure(1)}
    assert len(rows) == 10 and 0.1 < rows["peak memory of explaining 40 windows from Parquet, GB"] < 1.5
    assert all(value > 0 for name, value in rows.items() if "added" not in name)
    assert len(list(processes.measure(1))) == 2


def test_bad_arguments_end_with_code_2(capsys):
    for arguments in (["weather"], ["mtpp", "--repeats", "0"], []):
        with pytest.raises(SystemExit) as stop:
            benchmark.main(arguments)
        assert stop.value.code == 2
    assert "at least 1" in capsys.readouterr().err
