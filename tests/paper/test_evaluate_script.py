"""evaluate.py with a distiller, and report.py on what it wrote: end to end, on tiny ones."""

import json

import numpy as np
import pytest
import torch

import evaluate as script
import report
from ehd_hf.data.export import export_windows
from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from tasks import windows as evaluation

FEW = ["--tasks", "ehed", "emhd", "--solvers", "greedy_search", "random_distillation", "--limit", "30"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A distiller, a data set as events and as windows, and events of other marks."""
    root = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    sequences = delayed_hawkes().simulate(25.0, 12, np.random.default_rng(0)).sequences
    config = FullyNNConfig(num_marks=6, id2label=dict(sequences.id2label), embedding_size=4, hidden_size=8)
    small = {"input_size": 8, "hidden_size": 8, "attention_size": 8, "feed_forward_size": 8, "num_heads": 2}
    model = EHDDistillerModel.from_mtpp(FullyNNModel(config), history=7, future=4, **small)
    with torch.no_grad():
        model.distill_head.weight.normal_()  # so that its answers differ from window to window
        model.distill_head.bias.zero_()
    model.save_pretrained(root / "tiny")
    (root / "tiny" / "training.json").write_text(json.dumps({"args": {"seed": 5}}))
    splits = {"train": sequences, "test": sequences}
    export_windows(splits, root / "windows", [(4, 7)], name="toy")
    for name, label in (("toy", str), ("other", lambda mark: f"mark {mark}")):
        (root / name).mkdir()
        rows = [
            {"seq_id": i, "times": t.tolist(), "marks": [label(sequences.id2label[m]) for m in m.tolist()]}
            for i, (t, m) in enumerate(sequences)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        for split in ("train", "test"):
            (root / name / f"{split}.jsonl").write_text(text)
    return root


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(folders, *words, data="windows", out=None):
    arguments = ["--model", folders / "tiny", "--data", folders / data, *words, *(["--out", out] if out else [])]
    return script.main([str(word) for word in arguments])


def test_one_row_per_task_and_solver_with_recency_always_among_them(folders, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run(folders, *FEW, "--split", "test_sampled", out=out) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("DS", "LMHS", "minus distiller", "greedy_search"))
    rows = rows_of(out)
    solvers = ["distiller", "recency", "greedy_search", "random_distillation"]
    assert [(row["task"], row["solver"]) for row in rows] == [(t, s) for t in ("ehed", "emhd") for s in solvers]
    for row in rows:
        assert (row["data"], row["split"], row["pair"], row["model"]) == ("windows", "test_sampled", "4-7", "tiny")
        assert (row["seed"], row["limit"], row["num_windows"]) == (5, 30, 30)
        assert row["checkpoint"] and row["data_digest"]
    assert rows[0]["size"] == rows[2]["size"] and rows[4]["lmhs"] == rows[0]["size"]
    assert 1 < rows[0]["size"] < 6 and rows[1]["evaluations"] <= 3 < rows[2]["evaluations"]


def test_what_is_there_is_not_computed_again_and_a_line_cut_short_is_repaired(folders, tmp_path, capsys, monkeypatch):
    out, asked = tmp_path / "rows.jsonl", []
    solve = evaluation.solver_answers
    monkeypatch.setattr(evaluation, "solver_answers", lambda *a, **k: (asked.append(a[0].name), solve(*a, **k))[1])
    assert run(folders, *FEW, out=out) == 0
    table, whole = capsys.readouterr().out, rows_of(out)
    assert len(asked) == 6
    assert run(folders, *FEW, out=out) == 0
    assert capsys.readouterr().out == table and len(asked) == 6
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:6]) + lines[6][:40])  # killed while it wrote the seventh row
    assert run(folders, *FEW, out=out) == 0
    assert asked[6:] == ["greedy_search", "random_distillation"]
    timed = {"seconds", "seconds_per_window", "distill_seconds_per_window"}
    assert [{k: v for k, v in row.items() if k not in timed} for row in rows_of(out)] == [
        {k: v for k, v in row.items() if k not in timed} for row in whole
    ]
    asked.clear()
    for other in (["--limit", "20"], ["--conditioning", "survival"], ["--seed", "1"], ["--batch-size", "7"]):
        assert run(folders, *FEW, *other, out=out) == 0
    assert len(asked) == 4 * 6 and len(rows_of(out)) == 5 * 8


def test_events_and_their_windows_give_the_same_rows(folders, tmp_path):
    both = []
    for data in ("windows", "toy"):
        out = tmp_path / f"{data}.jsonl"
        assert run(folders, "--task", "distiller", "ehed", "--limit", "9", data=data, out=out) == 0
        both.append([(row["task"], row["ds"], row["num_windows"]) for row in rows_of(out)])
    assert both[0] == both[1] and len(both[0]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "ehed", "--solvers", "weather"], "solver must be one of backward_elimination"),
        (["--tasks", "ehed", "--split", "holdout"], "must have the split 'holdout'; got"),
        (["--tasks", "ehed", "--pair", "400-7"], "the longest has"),
        (["--tasks", "ehed", "--solvers", "exact_search", "--pair", "4-17"], "at most 16 events"),
        (["--tasks", "ehed", "--data", "other"], "must have the 6 marks the distiller knows"),
        (["--tasks", "ehed", "--data", "nowhere"], "does not exist"),
        (["--tasks", "ehed", "--model", "nowhere"], "nowhere"),
    ],
)
def test_user_errors_end_in_one_line_and_code_2(folders, capsys, monkeypatch, words, message):
    monkeypatch.chdir(folders)
    assert script.main(["--model", "tiny", "--data", "windows", *words]) == 2
    assert message in [line for line in capsys.readouterr().err.splitlines() if line.startswith("evaluate: ")][-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "weather"], "'mtpp', 'distiller', 'ehed', 'emhd', 'case_study'"),
        (["--tasks", "mtpp", "ehed"], "these tasks need models of different kinds"),
        (["--tasks", "ehed", "--limit", "0"], "at least 1"),
        (["--tasks", "ehed", "--conditioning", "x"], "'paper', 'survival'"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        script.main(["--model", "tiny", "--data", "windows", *words])
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_rows_become_a_page_tables_and_figures(folders, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run(folders, *FEW, out=out) == 0
    assert run(folders, *FEW[:-2], "--limit", "5", "--batch-size", "1", out=out) == 0
    assert run(folders, "--tasks", "distiller", "case_study", out=out) == 0
    (tmp_path / "log.jsonl").write_text('{"step": 1, "eval_left_share": 0.5}\n{"step": 2, "eval_left_share": 0.25}\n')
    page, tables, picture = tmp_path / "results.md", tmp_path / "tables.tex", tmp_path / "left.png"
    words = [out, "--out", page, "--latex", tables, "--figures", tmp_path / "figures"]
    words += ["--logs", tmp_path, "--names", "both", "--figure", picture]
    capsys.readouterr()
    assert report.main([str(word) for word in words]) == 0
    text = page.read_text()
    for part in ("Does the distiller beat greedy search?", "At what cost?", "Complexity", "One in, segments out"):
        assert part in text
    assert "--limit 5 --batch-size 1" in text and "paper/evaluate.py --tasks ehed emhd --solvers" in text
    assert "](figures/marks_windows_4-7.png)" in text and "](left.png)" in text
    assert "\\toprule" in tables.read_text()
    drawn = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert drawn == [
        f"{name}.png" for name in ("along_windows_4-7", "lengths_windows", "marks_windows_4-7", "slides_windows_4-7")
    ]
    assert picture.stat().st_size > 0
    assert report.main([str(out)]) == 0
    assert capsys.readouterr().out.startswith("# Results")


@pytest.mark.slow
def test_the_plain_greedy_search_of_the_benchmark_finds_what_ours_finds(monkeypatch):
    import groups
    from ehd_hf.models.window import Window
    from ehd_hf.solvers.base import AtSize, Objective, get_solver
    from groups import solvers

    mtpp, batch = solvers.make_distiller(6).mtpp, solvers.make_batch(2)
    ours = get_solver("greedy_search").solve(Objective(mtpp, Window(*batch.values(), solvers.FUTURE)), AtSize(3))
    for row in range(2):
        window = batch["times"][row], batch["marks"][row]
        chosen, left = solvers.plain_greedy(mtpp, *window, solvers.FUTURE, 3, as_listed=row == 0)
        assert chosen == ours.distill_mask[row].nonzero()[:, 0].tolist()
        assert left == pytest.approx(float(ours.dppl_left[row]), abs=1e-5)
    monkeypatch.setattr(groups.time_interleaved, "__defaults__", (0.0,))
    figures = [*solvers.against_plain(1, 2, 3), *solvers.against_distiller(1, 6, 1)]
    assert len(figures) == 3 + 2 * 7 and figures[2]["median"] < 1e-5


def test_the_report_refuses_what_it_cannot_read(tmp_path, capsys):
    assert report.main([str(tmp_path / "nothing.jsonl")]) == 2
    assert report.main(["--logs", str(tmp_path), "--figure", str(tmp_path / "x.png")]) == 2
    errors = capsys.readouterr().err
    assert "there is none" in errors and "eval_left_share" in errors
    for words in ([], ["--logs", "a"], ["--logs", "a", "--figure", "b", "--names", "c", "d"]):
        with pytest.raises(SystemExit) as stop:
            report.main(words)
        assert stop.value.code == 2
