"""scripts/paper/evaluate.py with point processes: end to end, on tiny ones."""

import json

import numpy as np
import pytest
import torch

import evaluate as script
import tasks
from ehd_hf.data.synthetic import delayed_hawkes, simulated_splits
from ehd_hf.evaluation.scores import TRUE_PROCESS
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from tasks import mtpp as task


def small_fullynn(num_marks=6):
    torch.manual_seed(0)
    return FullyNNModel(FullyNNConfig(num_marks=num_marks, embedding_size=4, hidden_size=8, num_components=5))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints and a data set on disk."""
    root = tmp_path_factory.mktemp("run")
    events = delayed_hawkes().simulate(25.0, 17, np.random.default_rng(0)).sequences
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


def test_the_script_prints_models_beside_baselines_and_keeps_rows(folders, tmp_path, capsys):
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


def test_the_script_computes_only_what_is_missing(folders, tmp_path, capsys, monkeypatch):
    out, scored = tmp_path / "rows.jsonl", []
    evaluate = task.evaluate_mtpp
    monkeypatch.setattr(
        task, "evaluate_mtpp", lambda models, *a, **k: (scored.extend(models), evaluate(models, *a, **k))[1]
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


def test_simulated_data_brings_the_true_process_and_the_gap(folders, capsys, monkeypatch):
    few = {"train": 20, "test": 10}
    monkeypatch.setattr(tasks, "simulated_splits", lambda process: simulated_splits(process, few, horizon=30.0))
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
def test_user_errors_end_in_one_line_and_code_2(folders, capsys, tmp_path, changes, message):
    out = tmp_path / "rows.jsonl"
    given = {"--model": folders / "seed0", "--data": folders / "toy", "--out": out} | changes
    assert script.main([str(word) for pair in given.items() for word in pair]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == "" and not out.exists()
    assert [line for line in captured.err.splitlines() if line.startswith("evaluate: ")]


def test_an_unknown_task_is_answered_with_the_known_ones(folders, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--model", str(folders / "seed0"), "--data", "simulated:delayed", "--task", "weather"])
    assert stop.value.code == 2 and "mtpp" in capsys.readouterr().err
