"""The benchmark on tiny sizes, and that what it compares is the same computation. Nothing is timed here."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import benchmark
import benchmark_page
import cost
import groups
from ehd_hf import EHDDistiller
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.perplexity import log_perplexity
from groups import data, distiller, explain, gate, hawkes, mtpp, scaling, solvers, startup

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def untimed(monkeypatch):
    """Every call is made once per repeat: its time does not matter here."""
    monkeypatch.setattr(groups.time_interleaved, "__defaults__", (0.0,))


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


def test_every_call_is_timed_in_every_repeat_and_summed_up():
    seen = []
    seconds = groups.time_interleaved([lambda: seen.append("a"), lambda: seen.append("b")], 3, least_seconds=0.0)
    assert seconds.shape == (3, 2) and (seconds > 0).all()
    assert seen == ["a", "b"] * 4  # a warm-up first
    row = groups.summarize("x", np.array([3.0, 1.0, 7.0]), "> 2")
    assert row == {"figure": "x", "median": 3.0, "low": 1.0, "high": 7.0, "repeats": 3, "target": "> 2"}


def test_rows_of_a_group_measured_again_take_the_place_of_the_old(monkeypatch, tmp_path, capsys, untimed):
    file = tmp_path / "rows.json"
    old = [{"group": group, "figure": "old", "median": 1.0} for group in ("solvers", "mtpp", "data")]
    file.write_text(json.dumps(old))
    tiny = {"batch_size": 2, "length": 3}

    def group(repeats):
        yield mtpp.against_naive(repeats, 4, ">= 3", **tiny)
        yield from mtpp.against_marks(repeats, num_marks=(3, 200), **tiny)

    monkeypatch.setattr(mtpp, "measure", group)
    benchmark.main(["mtpp"], repeats=2, json=file)
    rows = json.loads(file.read_text())
    assert [row["group"] for row in rows] == ["data", "mtpp", "mtpp", "solvers"]
    assert rows[0] == old[2] and rows[3] == old[0] and list(tmp_path.iterdir()) == [file]
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows[1:3])
    assert rows[2]["target"] == "<= 2" and rows[1]["cores"] >= 1 and rows[1]["memory_gb"] > 0
    assert {"processor", "python", "torch", "threads", "version", "date"} <= rows[1].keys()
    assert "step: 200 marks / 3 marks" in capsys.readouterr().out


def test_all_figures_of_data_distiller_rebuilding_and_solvers_run(untimed):
    rows = list(data.window_rates(1, num_sequences=3, batch_size=16, pair=(2, 3), num_rows=32))
    assert [row["figure"] for row in rows][0] == "windows of 5 events per second, batch 16"
    assert rows[2]["median"] == pytest.approx(rows[0]["median"] / rows[1]["median"])
    assert 0 < data.data_share(1, num_sequences=3, batch_size=2, length=3)["median"] < 1
    rows = list(distiller.measure(1, size=8))
    assert len(rows) == 13 and sum(row["target"] == "<= 1.25" for row in rows) == 3
    assert len(list(gate.measure(1, size=3, samples=2))) == 6
    rows = list(solvers.measure(1, size=1, num_windows=2, num_single=1))
    assert len(rows) == 3 + 2 * 7 and rows[2]["target"] == "< 1e-5" and rows[2]["median"] < 1e-5


def test_a_hawkes_process_and_fullynn_are_asked_the_same(untimed):
    rows = list(hawkes.measure(1, size=2, num_events=40))
    assert [row["target"] for row in rows] == [">= 20", None, None, None, "<= 5"]


def test_the_plain_training_step_of_the_benchmark_computes_our_loss():
    model, batch = distiller.make_distiller().train(), distiller.make_batch(1)
    torch.manual_seed(0)
    plain = distiller.one_at_a_time_step(model, batch)
    torch.manual_seed(0)
    assert plain == pytest.approx(float(model(**batch).loss.detach()), abs=1e-5)


@pytest.fixture(scope="module")
def bundled():
    return [EHDDistiller.from_pretrained(name) for name in (explain.PAPER, explain.RANKING)]


def windows_of(number):
    return groups.random_windows(explain.HISTORY, explain.FUTURE, number).to(torch.float32)


def test_the_bare_forward_is_the_log_perplexity_of_both_models(bundled):
    window = windows_of(5)
    states = [explainer.mtpp.state_dict() for explainer in bundled]
    assert all(value.shape == states[1][name].shape for name, value in states[0].items())  # one unit for both
    with torch.no_grad():
        plain = explain.plain_log_perplexity(bundled[0].mtpp, window)
        by_autograd = explain.autograd_log_perplexity(bundled[0].mtpp, window)
        torch.testing.assert_close(plain, by_autograd, rtol=1e-5, atol=1e-5)
        for conditioning in ("paper", "survival"):
            ours = log_perplexity(bundled[0].mtpp, window, conditioning=conditioning)
            torch.testing.assert_close(plain, ours, rtol=1e-5, atol=1e-5)


def test_both_ways_to_the_papers_answer_give_the_same(bundled):
    window = windows_of(5)
    chosen, *drops = explain.paper_way(bundled[0].model, window)
    ours, *our_drops = explain.our_way(bundled[0].model, window)
    assert torch.equal(chosen, ours) and 0 < chosen.float().mean() < 1
    torch.testing.assert_close(drops, our_drops, rtol=1e-4, atol=1e-4)
    answered = explain.answering(bundled[0], window.to(torch.float64), refine="none")()
    assert torch.equal(answered.distill_mask, ours)
    torch.testing.assert_close(torch.tensor(answered.columns["dppl_left"]), our_drops[0], rtol=1e-4, atol=1e-4)


def test_the_recurrences_of_the_benchmark_give_our_states_and_gradients():
    torch.manual_seed(0)
    encoder = FullyNNModel(FullyNNConfig(num_marks=6, embedding_size=4, hidden_size=8)).encoder
    torch.nn.init.normal_(encoder.initial_hidden), torch.nn.init.normal_(encoder.initial_cell)
    features, marks, keep = torch.rand(3, 7, 3), torch.randint(6, (3, 7)), torch.rand(3, 5)

    def looped(*inputs):
        return gate.looped_states(encoder, *inputs)

    torch.testing.assert_close(gate.fused_states(encoder, features, marks), encoder(features, marks, None))
    torch.testing.assert_close(looped(features, marks, keep), encoder(features, marks, keep))
    ours, other = (gate.with_gradients(states, features, marks, keep)()[0] for states in (encoder, looped))
    assert ours.shape == keep.shape
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_both_rebuilds_of_the_benchmark_give_the_same_events():
    torch.manual_seed(0)
    encoder = FullyNNModel(FullyNNConfig(num_marks=6, embedding_size=2)).encoder
    times, marks, keep = torch.rand(3, 7).cumsum(1), torch.randint(6, (3, 7)), (torch.rand(5, 3, 7) > 0.5).float()
    mask = torch.ones_like(marks, dtype=torch.bool)
    loop = distiller.looped_rebuild(times, marks, encoder.mark_embedding(marks), keep)
    ours = [each.unflatten(0, (5, 3)) for each in gate.select_with_embeddings(encoder, times, marks, mask, keep)]
    for sample, row in np.ndindex(5, 3):
        count = int(keep[sample, row].sum())
        torch.testing.assert_close(loop[0][sample, row, :count].cumsum(0), ours[0][sample, row, :count])
        for theirs, mine in zip(loop[1:], ours[1:], strict=True):
            assert torch.equal(theirs[sample, row, :count], mine[sample, row, :count])


def test_all_figures_of_scaling_run(untimed, monkeypatch, tmp_path):
    y = np.array([[3.0, 1.0], [12.0, 2.0], [48.0, 4.0]])  # 3 x^2 and x
    np.testing.assert_allclose(scaling.exponent([1, 2, 4], y), [2.0, 1.0])
    monkeypatch.setattr(groups, "STACKOVERFLOW", tmp_path / "nothing")
    rows = list(scaling.along_history(1, lengths=(10, 20, 30), windows=2, certified=1, longest_eights=20))
    assert [row["x"] for row in rows if row.get("series") == scaling.ONE] == [10, 20, 30]
    assert [row["x"] for row in rows if row.get("series") == scaling.EIGHTS] == [10, 20]
    assert sum(row["target"] == "<= 1.15" for row in rows) == 2
    assert len(list(scaling.along_model(1, "width", (4, 6), scaling.of_width, windows=2))) == 4
    assert [row["repeats"] for row in scaling.beyond_training((12,), windows=3)] == [1, 1]


def test_a_new_process_says_how_long_its_parts_took():
    parts = startup.parts_of(startup.IMPORT)
    assert list(parts) == ["start of Python", "import ehd_hf"] and all(0 < value < 60 for value in parts.values())
    assert startup.seconds_of_help() > 0


def test_the_page_tells_what_meets_its_target_and_draws_what_grows(tmp_path):
    machine = {"group": "scaling", "processor": "Abacus", "cores": 2, "repeats": 3}
    shown = {"axis": "a b", "series": "s", "unit": "ms"}
    points = ((10, [4.0, 2.0]), (100, [40.0, 20.0]))
    rows = [machine | groups.summarize(f"slow, {x} events", y, "<= 8", x=x, **shown) for x, y in points]
    (tmp_path / "rows.json").write_text(json.dumps([*rows, {**machine, **groups.summarize("exponent", [1.0])}]))
    benchmark_page.main(tmp_path / "rows.json", tmp_path / "speed.md", tmp_path / "figures")
    text = (tmp_path / "speed.md").read_text()
    assert "Abacus, 2 cores." in text and "(figures/scaling_a_b.png)" in text and "Scaling: the time" in text
    assert (tmp_path / "figures" / "scaling_a_b.png").stat().st_size > 0
    met = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in text.splitlines()}
    assert met["slow, 10 events"] == "yes" and met["slow, 100 events"] == "**no**" and met["exponent"] == "–"


def test_the_page_of_the_documentation_is_made_from_the_committed_rows():
    rows = json.loads((ROOT / "results" / "benchmarks.json").read_text())
    assert (ROOT / "results" / "speed.md").read_text() == benchmark_page.page(rows, "../docs/figures")
    for axis in benchmark_page.axes_of(rows):
        assert (ROOT / "docs" / "figures" / benchmark_page.file_name(axis)).exists()


def test_the_plan_is_computed_from_what_was_measured(tmp_path, capsys):
    figures = {cost.RATE: 1000.0, cost.READING: 50_000.0, cost.READ: 500.0, cost.WRITTEN: 60.0}
    figures["peak memory of explaining 9 windows from Parquet, GB"] = 1.25
    rows = [{"group": "memory", "figure": name, "median": value, "threads": 2} for name, value in figures.items()]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    cost.main(3.6e9, 8, tmp_path / "rows.json")
    shown = capsys.readouterr().out
    assert (
        "| core-hours | 2,000 |" in shown and "| hours with 8 processes | 145.0 |" in shown
    )  # 125, and 20 of planning
    assert "| bytes read | 5,400 GB" in shown and "| bytes written | 216 GB |" in shown and "10.0 GB (1.25" in shown
    assert "explaining: beyond 50 processes" in shown
    cost.main(3.6e9, 51, tmp_path / "rows.json")
    assert "| the plan: beyond 50" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Run scripts/benchmarks/benchmark.py memory"):
        cost.plan(rows[1:], 1e9, 1)


def test_unknown_groups_and_folders_are_refused():
    with pytest.raises(typer.BadParameter, match="groups must be any of data, distiller.*; got weather"):
        benchmark.main(["weather"])
    with pytest.raises(typer.BadParameter, match="folder that exists"):
        benchmark.main(["mtpp"], json=Path("no/such/folder.json"))
