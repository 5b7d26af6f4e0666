"""evaluate.py with the tasks explain, causes, trust and curves, and the page made of their rows: end to end,
on tiny models."""

import json
import re

import numpy as np
import pytest
import torch

import evaluate as script
import helpers
import report
from ehd_hf.data import synthetic
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation import answers as comparison
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.ranking import RankingDistillerModel
from page import TASK_COLUMNS, evaluate_commands, method_name, results_page, with_recalls
from tasks import explanations

TIMES = {"seconds_per_window", "time_ratio", "command"}


@pytest.fixture(scope="module")
def test_events():
    return synthetic.delayed_hawkes().simulate(22.0, 9, np.random.default_rng(0))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, test_events):
    """Two ranking distillers of one point process, that point process with another seed, and events on disk."""
    root, sequences = tmp_path_factory.mktemp("run"), test_events.sequences
    names = dict(sequences.id2label)
    mtpps = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = FullyNNConfig(num_marks=6, id2label=names, embedding_size=4, hidden_size=8, num_components=5)
        mtpps.append(helpers.wild(FullyNNModel(config), 0.4, seed).float())
    mtpps[1].save_pretrained(root / "mtpp_seed1")
    small = {"input_size": 8, "hidden_size": 8, "attention_size": 8, "feed_forward_size": 8, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    for seed, mtpp in ((0, mtpps[0]), (1, mtpps[0]), (2, mtpps[1])):
        torch.manual_seed(seed)
        model = RankingDistillerModel.from_mtpp(mtpp, history=7, future=4, **small, **layers)
        name = root / ("tiny" if seed == 0 else f"tiny_seed{seed}")
        model.save_pretrained(name)
        (name / "training.json").write_text(json.dumps({"args": {"seed": seed}}))
    (root / "toy").mkdir()
    text = "".join(
        json.dumps({"seq_id": i, "times": t.tolist(), "marks": [names[mark] for mark in m.tolist()]}) + "\n"
        for i, (t, m) in enumerate(sequences)
    )
    for split in ("train", "test"):
        (root / "toy" / f"{split}.jsonl").write_text(text)
    return root


@pytest.fixture
def small(monkeypatch, test_events):
    """simulated:delayed stands for the same few events."""
    both = {"train": test_events, "test": test_events}
    monkeypatch.setattr(synthetic, "simulated_events", lambda *a: both)
    monkeypatch.setattr(explanations, "simulated_events", lambda *a: both)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(folders, *words, data=None, models=("tiny",), out=None):
    data = "simulated:delayed" if data is None else folders / data
    arguments = ["--model", *(folders / model for model in models), "--data", data, *words]
    return script.main([str(word) for word in [*arguments, *(["--out", out] if out else [])]])


def untimed(rows):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def test_explain_has_a_row_per_method_with_greedy_search_first(folders, tmp_path, capsys, test_events):
    out = tmp_path / "rows.jsonl"
    words = ["--task", "explain", "--first", "16", "--share", "0.6", "--solvers", "greedy_search+drop"]
    words += ["shapley:num_permutations=2"]
    assert run(folders, *words, data="toy", out=out) == 0
    printed, rows = capsys.readouterr().out, rows_of(out)
    assert [row["solver"] for row in rows] == [
        "greedy_search",
        "recency",
        "distiller",
        "greedy_search+drop",
        words[-1],
    ]
    assert all(word in printed for word in ("minus greedy", "verified", "greedy_search+drop", "100.0%"))
    windows = make_windows(test_events.sequences, future=4, history=7).select(range(16))
    for row in rows:
        assert (row["task"], row["data"], row["pair"], row["target"]) == ("explain", "toy", "4-7", "share 0.6")
        assert (row["first"], row["limit"], row["conditioning"], row["seed"]) == (16, None, "survival", 0)
        assert row["num_windows"] == len(row["sizes"]) == round(16 * (1 - row["explains_nothing"]))
        assert row["num_sequences"] <= len(np.unique(windows.sequence_index))
        assert row["verified"] == row["reached"] == 1.0
        assert (
            row["command"].startswith("python scripts/paper/evaluate.py --model ") and "--first 16" in row["command"]
        )
    assert rows[3]["difference"] <= 0 == rows[0]["difference"]


def test_a_run_that_was_stopped_goes_on_where_it_was(folders, tmp_path, capsys, monkeypatch):
    out, asked, solve = tmp_path / "rows.jsonl", [], comparison.solver_answers
    monkeypatch.setattr(comparison, "solver_answers", lambda *a, **k: (asked.append(k["name"]), solve(*a, **k))[1])
    words = ["--task", "explain", "--limit", "9", "--solvers", "leave_one_out"]
    assert run(folders, *words, data="toy", out=out) == 0
    whole, table = rows_of(out), capsys.readouterr().out
    assert run(folders, *words, data="toy", out=out) == 0
    assert capsys.readouterr().out == table and len(asked) == 4
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:2]) + lines[2][:50])  # killed while it wrote the third row
    assert run(folders, *words, data="toy", out=out) == 0
    assert asked[4:] == ["distiller", "leave_one_out"]
    assert untimed(rows_of(out)) == untimed(whole)


def test_another_question_is_not_answered_with_the_rows_of_this_one(folders, tmp_path):
    out, few = tmp_path / "rows.jsonl", ["--task", "explain", "--limit", "8"]
    assert run(folders, *few, data="toy", out=out) == 0
    others = [["--limit", "7"], ["--share", "0.5"], ["--seed", "1"], ["--delta", "0.5"], ["--batch-size", "7"]]
    for number, words in enumerate([*others, ["--conditioning", "paper"]], 2):
        assert run(folders, *few, *words, data="toy", out=out) == 0
        assert len(rows_of(out)) == 3 * number
    # As many windows, but others: sizes of one would be paired with those of the other.
    assert run(folders, "--task", "explain", "--first", "8", data="toy", out=out) == 0
    rows = rows_of(out)
    assert len(rows) == 24 and rows[-1]["dppl_left"] != rows[2]["dppl_left"]
    assert rows[-1]["num_windows"] == rows[2]["num_windows"]


def test_causes_are_scored_beside_the_oracle_and_the_true_process(folders, tmp_path, capsys, small):
    out = tmp_path / "rows.jsonl"
    words = ["--task", "causes", "--limit", "40", "--solvers", "greedy_search"]
    assert run(folders, *words, out=out) == 0
    printed, rows = capsys.readouterr().out, rows_of(out)
    assert [row["solver"] for row in rows] == [
        "oracle",
        "random",
        "recency",
        "distiller",
        "greedy_search",
        "greedy_search, true process",
    ]
    assert "average precision" in printed and "recall of the first 3" in printed and "first 10" not in printed
    by_solver = {row["solver"]: row for row in rows}
    assert by_solver["oracle"]["ap"] == max(row["ap"] for row in rows)
    assert by_solver["greedy_search, true process"]["ap"] != by_solver["greedy_search"]["ap"]
    assert {row["num_windows"] for row in rows} == {round(40 * (1 - rows[0]["without_causes"]))}
    assert run(folders, *words, out=out) == 0
    assert rows_of(out) == rows


def test_trust_and_curves_have_their_rows(folders, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    words = ["--tasks", "trust", "curves", "--first", "9", "--solvers", "leave_one_out"]
    words += ["--mtpp", folders / "mtpp_seed1"]
    assert run(folders, *words, data="toy", models=["tiny", "tiny_seed1"], out=out) == 0
    printed, rows = capsys.readouterr().out, rows_of(out)
    assert "of random sets" in printed and "deletion, mean" in printed
    found = [(row["task"], row.get("check"), row["solver"]) for row in rows]
    assert found == [
        ("trust", "distiller seeds", "distiller"),
        ("trust", "point process seeds", "recency"),
        ("trust", "shuffled weights", "recency"),
        ("trust", "shuffled weights", "distiller"),
        ("trust", "point process seeds", "leave_one_out"),
        ("trust", "shuffled weights", "leave_one_out"),
        *(("curves", None, solver) for solver in ("recency", "distiller", "leave_one_out")),
    ]
    assert rows[0]["target"] == "share 0.7" and rows[0]["model"] == "tiny"
    assert run(folders, *words, data="toy", models=["tiny", "tiny_seed1"], out=out) == 0
    assert rows_of(out) == rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "explain", "--solvers", "weather"], "solver must be one of backward_elimination"),
        (["--task", "explain", "--solvers", "recency+weather"], "After + stands one of drop, prune, swap"),
        (["--task", "explain", "--solvers", "shapley:num_permutations=x"], "must be a whole number; got 'x'"),
        (["--task", "explain", "--solvers", "distiller+weather"], "After + stands one of drop, prune, swap"),
        (["--task", "explain", "--share", "0.5", "--epsilon", "0.5"], "takes epsilon or share, one of them"),
        (["--task", "explain", "--share", "1.5"], "in (0, 1]"),
        (["--task", "causes"], "causes are known of simulated events only; got --data toy"),
        (["--task", "causes", "--data", "simulated:weather"], "process must be one of delayed"),
        (["--task", "causes", "--data", "simulated:delayed", "--split", "train"], "on the split test; got train"),
        (
            ["--task", "causes", "--data", "simulated:delayed", "--solvers", "refine"],
            "an order of all events is needed",
        ),
        (["--task", "causes", "--data", "simulated:incident"], "must have the 6 marks the distiller knows"),
        (["--task", "curves", "--solvers", "recency+drop"], "an order of all events is needed"),
        (["--task", "curves", "--solvers", "distiller+drop"], "an order of all events is needed"),
        (["--task", "trust", "--share", "0"], "in (0, 1]"),
        (
            ["--task", "trust", "--mtpp", "nowhere"],
            "must be a folder with config.json and model.safetensors; got nowh",
        ),
        (["--task", "trust", "--mtpp", "tiny"], "tiny must be a point process; got a RankingDistillerModel"),
        (["--task", "trust", "--model", "tiny", "tiny_seed2"], "must explain the same point process"),
        (["--task", "explain", "--model", "mtpp_seed1"], "mtpp_seed1"),
    ],
)
def test_user_errors_end_in_one_line_and_code_2(folders, capsys, monkeypatch, small, words, message):
    monkeypatch.chdir(folders)
    incident = synthetic.incident_hawkes().simulate(9.0, 5, np.random.default_rng(0))
    few = synthetic.simulated_events
    monkeypatch.setattr(
        synthetic,
        "simulated_splits",
        lambda name: {"test": (incident if name == "incident" else few()["test"]).sequences},
    )
    if "simulated:weather" in words:
        monkeypatch.undo()
        monkeypatch.chdir(folders)
    assert script.main(["--model", "tiny", "--data", "toy", "--first", "9", *words]) == 2
    assert message in [line for line in capsys.readouterr().err.splitlines() if line.startswith("evaluate: ")][-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "explain", "ehed"], "these tasks need models of different kinds"),
        (["--tasks", "mtpp", "causes"], "these tasks need models of different kinds"),
        (["--tasks", "explain", "--first", "0"], "must be at least 1"),
        (["--tasks", "explain", "--first", "5", "--limit", "5"], "give one of them"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        script.main(["--model", "tiny", "--data", "toy", *words])
    assert stop.value.code == 2 and message in capsys.readouterr().err


# the page


def test_rows_become_sections_and_figures_and_every_number_is_in_a_row(folders, tmp_path, small):
    out = tmp_path / "rows.jsonl"
    both = {"models": ["tiny", "tiny_seed1"], "out": out}
    assert run(folders, "--task", "explain", "--first", "9", **both) == 0
    assert run(folders, "--task", "causes", "--limit", "20", "--solvers", "leave_one_out", **both) == 0
    assert run(folders, "--tasks", "trust", "curves", "--first", "9", **both) == 0
    page, figures = tmp_path / "results.md", tmp_path / "figures"
    assert report.main([str(out), "--out", str(page), "--figures", str(figures)]) == 0
    text, rows = page.read_text(), rows_of(out)
    first, how = "(4, 7), test, the first 9 windows", "survival conditioning"
    headings = {
        "explain": f"### The smallest sets that meet a target {first}, {how}, share 0.7",
        "causes": f"### Do explanations find the causes? (4, 7), test, 20 windows drawn, {how}",
        "trust": f"### Can they be trusted? {first}, {how}, share 0.7",
        "curves": f"### Deletion and insertion {first}, {how}",
    }
    drawn = ["causes_simulated_delayed_4-7_survival", "curves_simulated_delayed_4-7_survival"]
    drawn += [f"{name}_simulated_delayed_4-7_survival_share_0.7" for name in ("sizes", "trust")]
    assert sorted(file.stem for file in figures.iterdir()) == sorted(drawn)
    assert all(f"](figures/{name}.png)" in text for name in drawn)
    for task, heading in headings.items():
        assert text.count(heading + "\n") == 1
        section = re.split(r"\n##|\n!\[", text[text.index(heading) :])[0]
        assert section.count("```bash\npython scripts/paper/evaluate.py --model") == 1
        check_numbers(task, section.split("```")[2], [row for row in rows if row["task"] == task])
    assert "over 2 seeds" in text


def check_numbers(task, section, rows):
    """Every number of the table is its row's, written as the column says; those of the text below are a row's too, or
    the mean and deviation over two seeds."""
    table, below = section.strip().split("\n\n", 1)
    titles, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    rows = [with_recalls(row) for row in rows]
    columns = [column for column in TASK_COLUMNS[task] if any(row.get(column.key) is not None for row in rows)]
    if len({row["model"] for row in rows}) == 1:
        columns = [column for column in columns if column.key != "model"]
    assert titles == [column.title for column in columns] and len(lines) == len(rows)
    for cells, row in zip(lines, rows, strict=True):
        for cell, column in zip(cells, columns, strict=True):
            value = row.get(column.key)
            assert cell == ("–" if value is None else format(value, "" if isinstance(value, str) else column.spec))
    known = {f"{row[key]:,d}" for row in rows for key in ("num_windows", "num_sequences") if key in row}
    known |= {f"{row[key]:.1%}" for row in rows for key in ("explains_nothing", "without_causes") if key in row}
    known |= {f"{row['num_causes']:.1f}" for row in rows if "num_causes" in row}
    metric = {"explain": "size", "causes": "ap"}.get(task)
    if metric:
        values = [row[metric] for row in rows if row["solver"] == "distiller"]
        known |= {f"{np.mean(values):.3f}", f"{np.std(values, ddof=1):.3f}", str(len(values))}
    for number in re.findall(r"(?<![\w.])\d[\d.,]*\d%?|(?<![\w.])\d%?", below):
        assert number in known, (number, below)


def test_settings_stand_apart_and_models_are_named_where_there_are_several():
    row = {"task": "curves", "data": "toy", "pair": "4-7", "split": "test", "conditioning": "paper", "model": "a"}
    row |= {"checkpoint": "1", "solver": "recency", "deletion_mean": -0.3, "insertion_mean": -0.2, "num_windows": 7}
    page = results_page([row, row | {"model": "b"}, row | {"batch_size": 1}, row | {"limit": 5}], command="make it")
    assert page.count("### Deletion and insertion") == 3 and page.count("| model |") == 1
    assert "paper conditioning, one window at a time\n" in page and "test, 5 windows drawn, paper" in page
    assert "```" not in page  # no command is better than an empty one


def test_seeds_are_those_of_one_run_on_the_same_windows():
    row = {
        "task": "explain",
        "data": "toy",
        "pair": "4-7",
        "split": "test",
        "conditioning": "paper",
        "solver": "distiller",
    }
    row |= {"target": "share 0.7", "num_windows": 9, "explains_nothing": 0.1}
    models = (("run", "1", 3.0, 250), ("run_seed1", "2", 5.0, 250), ("other", "3", 9.0, 250), ("run", "1", 7.0, 1))
    rows = [row | dict(zip(("model", "checkpoint", "size", "batch_size"), each, strict=True)) for each in models]
    page = results_page(rows, command="make it")
    assert "distiller (run): size 4.000 ± 1.414 over 2 seeds." in page and page.count("seeds.") == 1


def test_methods_are_named_for_people():
    assert method_name("greedy_search") == "greedy" and method_name("distiller+prune") == "distiller + prune"
    spec = "integrated_gradient:per_round=2,num_points=5+drop"
    assert method_name(spec) == "integrated gradient (per_round=2, num_points=5) + drop"
    assert method_name("leave_one_out, true process") == "leave-one-out, true process"
    assert method_name("oracle") == "oracle" and method_name("new_solver") == "new solver"


def test_a_command_takes_the_first_windows_again():
    row = {"task": "ehed", "data": "toy", "split": "test_sampled", "pair": "4-7", "model": "m", "checkpoint": "c"}
    row |= {"num_windows": 30, "conditioning": "paper", "solver": "distiller", "batch_size": 250}
    first, drawn = (evaluate_commands([row | {"limit": None} | more])[0] for more in ({"first": 30}, {}))
    assert first.endswith("--split test_sampled --first 30") and drawn.endswith("--split test_sampled --limit 30")
