"""The benchmark on tiny sizes, and that what it compares is the same computation. Nothing is timed here."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ehd_hf.mtpp.fullynn import FullyNNConfig, FullyNNModel

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "benchmark.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_naive_likelihood_and_ours_agree_in_value_and_gradient(benchmark, num_layers):
    torch.manual_seed(0)
    config = FullyNNConfig(num_marks=6, embedding_size=4, hidden_size=8, num_components=5, num_layers=num_layers)
    model = FullyNNModel(config).double()
    times, marks = torch.rand(3, 11, dtype=torch.float64).cumsum(1), torch.randint(6, (3, 11))
    times[1, 4:6] = times[1, 3]  # tied times
    mask = torch.arange(11) < torch.tensor([11, 7, 1])[:, None]
    naive, fast = benchmark.naive_loss(model, times, marks, mask), model(times, marks, mask).loss
    torch.testing.assert_close(naive, fast, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (naive, fast)]
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-8, atol=1e-10)


def test_both_steps_of_the_benchmark_compute_the_same_loss(benchmark):
    losses = [benchmark.make_step(7, 3, 5, naive=naive)() for naive in (True, False)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_every_call_is_timed_in_every_repeat_after_a_warm_up(benchmark):
    seen = []
    seconds = benchmark.time_interleaved([lambda: seen.append("a"), lambda: seen.append("b")], 3, least_seconds=0.0)
    assert seconds.shape == (3, 2) and (seconds > 0).all()
    assert seen == ["a", "b"] * 4


def test_a_summary_tells_median_and_spread(benchmark):
    row = benchmark.summarize("x", np.array([3.0, 1.0, 7.0]), "> 2")
    assert row == {"figure": "x", "median": 3.0, "low": 1.0, "high": 7.0, "repeats": 3, "target": "> 2"}


def test_all_figures_of_the_group_run_on_tiny_sizes(benchmark, monkeypatch, tmp_path, capsys):
    tiny = {"batch_size": 2, "length": 3}

    def group(repeats):
        yield benchmark.against_naive(repeats, 4, ">= 3", **tiny)
        yield from benchmark.against_marks(repeats, num_marks=(3, 5), **tiny)
        yield benchmark.data_share(repeats, num_sequences=3, **tiny)
        yield benchmark.window_rate(repeats, num_sequences=3, batch_size=16, pair=(2, 3))

    monkeypatch.setattr(benchmark, "GROUPS", {"mtpp": group})
    monkeypatch.setattr(benchmark.time_interleaved, "__defaults__", (0.0,))
    assert benchmark.main(["mtpp", "--repeats", "2", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 4 and all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert {"group", "threads", "torch", "version"} <= rows[0].keys()
    assert "windows of 5 events per second" in capsys.readouterr().out


def test_bad_arguments_end_with_code_2(benchmark, capsys):
    for arguments in (["weather"], ["mtpp", "--repeats", "0"], []):
        with pytest.raises(SystemExit) as stop:
            benchmark.main(arguments)
        assert stop.value.code == 2
    assert "at least 1" in capsys.readouterr().err
