"""evaluate.py with every task, and report.py on the rows it wrote: end to end, on tiny models."""

import json
import re

import numpy as np
import pytest
import torch

import evaluate as script
import helpers
import report
import tasks.causes
from ehd_hf.data import synthetic
from ehd_hf.data.export import export_windows
from ehd_hf.data.windows import make_windows
from ehd_hf.evaluation import answers
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.ranking import RankingDistillerModel
from page import TASK_COLUMNS, method_name, results_page, with_recalls
from tasks import mtpp, windows
from tasks.true_process import TRUE_PROCESS

TIMED = {"seconds", "seconds_per_window", "distill_seconds_per_window", "time_ratio", "command"}
SOLVED = ["--tasks", "ehed", "emhd", "--solvers", "greedy_search", "random_distillation", "--limit", "30"]


@pytest.fixture(scope="module")
def simulated():
    return synthetic.delayed_hawkes().simulate(22.0, 9, np.random.default_rng(0))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, simulated):
    """Point processes of two seeds, the paper's distiller, ranking distillers of both, a data set as events and as
    windows, and events of other marks."""
    root, sequences = tmp_path_factory.mktemp("run"), simulated.sequences
    names = dict(sequences.id2label)
    mtpps = [helpers.tiny_fullynn(seed=seed, scale=0.4, id2label=names).float() for seed in (0, 1)]

    def save(model, name, seed):
        model.save_pretrained(root / name)
        (root / name / "training.json").write_text(json.dumps({"args": {"seed": seed}}))

    for seed, model in enumerate(mtpps):
        save(model, f"mtpp_seed{seed}", seed)
    torch.manual_seed(0)
    paper = EHDDistillerModel.from_mtpp(mtpps[0], history=7, future=4, **helpers.TINY)
    with torch.no_grad():
        paper.distill_head.weight.normal_()  # so that its answers differ from window to window
        paper.distill_head.bias.zero_()
    save(paper, "paper", 5)
    for name, seed, model in (("tiny", 0, mtpps[0]), ("tiny_seed1", 1, mtpps[0]), ("tiny_seed2", 2, mtpps[1])):
        torch.manual_seed(seed)
        save(RankingDistillerModel.from_mtpp(model, history=7, future=4, **helpers.TINY), name, seed)
    export_windows({"train": sequences, "test": sequences}, root / "windows", [(4, 7)], name="toy")
    for name, prefix in (("toy", ""), ("other", "mark ")):
        (root / name).mkdir()
        rows = [
            {"seq_id": i, "times": t.tolist(), "marks": [prefix + names[mark] for mark in m.tolist()]}
            for i, (t, m) in enumerate(sequences)
        ]
        for split in ("train", "test"):
            (root / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture
def few_simulated(monkeypatch, simulated):
    """simulated:delayed stands for the same few events."""
    both = {"train": simulated, "test": simulated}
    monkeypatch.setattr(synthetic, "simulated_events", lambda *_: both)
    monkeypatch.setattr(tasks.causes, "simulated_events", lambda *_: both)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(rows):
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


@pytest.fixture
def run(folders, monkeypatch):
    """evaluate.py in the folder of the models."""
    monkeypatch.chdir(folders)

    def run(*words, data="toy", models=("tiny",), out=None):
        words = ["--model", *models, "--data", data, *words, *(["--out", out] if out else [])]
        return script.main([str(word) for word in words])

    return run


# --- rows


def test_point_processes_are_scored_beside_baselines(run, tmp_path, capsys, monkeypatch):
    out, scored, score = tmp_path / "rows.jsonl", [], mtpp.evaluate_mtpp
    monkeypatch.setattr(mtpp, "evaluate_mtpp", lambda m, *a, **k: (scored.extend(m), score(m, *a, **k))[1])
    seeds = ["mtpp_seed0", "mtpp_seed1"]
    assert run("--pair", "4-7", models=seeds[:1], out=out) == 0
    assert run("--pair", "4-7", models=seeds, out=out) == 0  # computes what is missing
    assert scored[:2] == ["Poisson + unigram", "Gamma + bigram"] and scored[3:] == seeds
    rows = rows_of(out)
    assert [row["model"] for row in rows] == scored and [row["seed"] for row in rows] == [None, None, None, 0, 1]
    assert {(row["data"], row["split"], row["pair"]) for row in rows} == {("toy", "test", "4-7")}
    assert rows[3]["nll"] != rows[4]["nll"] and "Gamma + bigram" in capsys.readouterr().out
    assert run(models=seeds[:1], out=out) == 0  # other windows: other rows
    assert len(rows_of(out)) == 9


def test_simulated_data_brings_the_true_process_and_the_gap(run, capsys, monkeypatch):
    few, splits = {"train": 20, "test": 10}, tasks.simulated_splits
    monkeypatch.setattr(tasks, "simulated_splits", lambda process: splits(process, few, horizon=30.0))
    assert run(models=["mtpp_seed0"], data="simulated:delayed") == 0
    printed = capsys.readouterr().out
    assert "above truth" in printed and TRUE_PROCESS in printed


def test_solvers_have_a_row_per_task_with_recency_among_them(run, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run(*SOLVED, "--split", "test_sampled", data="windows", models=["paper"], out=out) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("DS", "LMHS", "minus distiller", "greedy_search"))
    rows = rows_of(out)
    solvers = ["distiller", "recency", "greedy_search", "random_distillation"]
    assert [(row["task"], row["solver"]) for row in rows] == [(t, s) for t in ("ehed", "emhd") for s in solvers]
    for row in rows:
        assert (row["data"], row["split"], row["pair"], row["model"]) == ("windows", "test_sampled", "4-7", "paper")
        assert (row["seed"], row["limit"], row["num_windows"]) == (5, 30, 30)
        assert row["checkpoint"] and row["data_digest"]
        assert row["command"].startswith("python scripts/paper/evaluate.py --model paper --data windows --tasks ehed")
    assert rows[0]["size"] == rows[2]["size"] and rows[4]["lmhs"] == rows[0]["size"]
    assert 0.5 < rows[0]["size"] < 6 and rows[1]["evaluations"] <= 3 < rows[2]["evaluations"]


@pytest.mark.parametrize(
    ("module", "words", "model", "missing"),
    [
        (windows, SOLVED, "paper", ["greedy_search", "random_distillation"]),
        (answers, ["--task", "explain", "--limit", "9", "--solvers", "leave_one_out"], "tiny", ["leave_one_out"]),
    ],
)
def test_a_stopped_run_continues(run, tmp_path, capsys, monkeypatch, module, words, model, missing):
    out, asked, solve = tmp_path / "rows.jsonl", [], module.solver_answers
    monkeypatch.setattr(module, "solver_answers", lambda *a, **k: (asked.append(k["progress"]), solve(*a, **k))[1])
    assert run(*words, models=[model], out=out) == 0
    table, whole, number = capsys.readouterr().out, rows_of(out), len(asked)
    assert run(*words, models=[model], out=out) == 0
    assert capsys.readouterr().out == table and len(asked) == number
    lines = out.read_text().splitlines(keepends=True)
    left = len(lines) - len(missing)
    out.write_text("".join(lines[:left]) + lines[left][:40])  # killed while it wrote a row
    assert run(*words, models=[model], out=out) == 0
    assert [name.split()[-1] for name in asked[number:]] == missing
    assert untimed(rows_of(out)) == untimed(whole)
    out.write_text("".join(json.dumps({**row, "code": "earlier"}) + "\n" for row in whole))
    number = len(asked)
    assert run(*words, models=[model], out=out) == 0
    assert len(asked) > number and untimed(rows_of(out)) == untimed(whole)  # computed again, in their place


@pytest.mark.parametrize(
    ("task", "model", "others"),
    [
        ("ehed", "paper", ["--conditioning survival", "--seed 1", "--batch-size 7"]),
        ("explain", "tiny", ["--share 0.5", "--seed 1", "--delta 0.5", "--batch-size 7", "--conditioning paper"]),
    ],
)
def test_another_question_has_rows_of_its_own(run, tmp_path, task, model, others):
    out, words = tmp_path / "rows.jsonl", ["--task", task]
    assert run(*words, "--limit", "8", models=[model], out=out) == 0
    number = len(rows_of(out))
    for asked, other in enumerate(others, 2):
        assert run(*words, "--limit", "8", *other.split(), models=[model], out=out) == 0
        assert len(rows_of(out)) == asked * number
    # As many windows, but others: sizes of one would be paired with those of the other.
    assert run(*words, "--first", "8", models=[model], out=out) == 0
    rows = rows_of(out)
    assert len(rows) == (len(others) + 2) * number and rows[-1]["dppl_left"] != rows[number - 1]["dppl_left"]


def test_events_and_their_windows_give_the_same_rows(run, tmp_path):
    both = []
    for data in ("windows", "toy"):
        out = tmp_path / f"{data}.jsonl"
        assert run("--task", "distiller", "ehed", "--limit", "9", data=data, models=["paper"], out=out) == 0
        both.append([(row["task"], row["ds"], row["num_windows"]) for row in rows_of(out)])
    assert both[0] == both[1] and len(both[0]) == 3


def test_explain_has_a_row_per_method_with_greedy_search_first(run, tmp_path, capsys, simulated):
    out, methods = tmp_path / "rows.jsonl", ["greedy_search+drop", "shapley:num_permutations=2"]
    assert run("--task", "explain", "--first", "16", "--share", "0.6", "--solvers", *methods, out=out) == 0
    printed, rows = capsys.readouterr().out, rows_of(out)
    assert [row["solver"] for row in rows] == ["greedy_search", "recency", "distiller", *methods]
    assert all(word in printed for word in ("minus greedy", "verified", "greedy_search+drop", "100.0%"))
    first = make_windows(simulated.sequences, future=4, history=7).select(range(16))
    for row in rows:
        assert (row["task"], row["data"], row["pair"], row["target"]) == ("explain", "toy", "4-7", "share 0.6")
        assert (row["first"], row["limit"], row["conditioning"], row["seed"]) == (16, None, "survival", 0)
        assert row["num_windows"] == len(row["sizes"]) == round(16 * (1 - row["explains_nothing"]))
        assert row["num_sequences"] <= len(np.unique(first.sequence_index))
        assert row["verified"] == row["reached"] == 1.0
    assert rows[3]["difference"] <= 0 == rows[0]["difference"]


def test_a_bundled_model_is_evaluated_by_its_name(run, tmp_path, monkeypatch):
    splits = tasks.simulated_splits
    monkeypatch.setattr(tasks, "simulated_splits", lambda process: splits(process, {"test": 5}))
    out = tmp_path / "rows.jsonl"
    options = {"data": "simulated:incident", "models": ["incidents-paper"], "out": out}
    assert run("--task", "distiller", "--first", "3", **options) == 0
    (row,) = rows_of(out)
    assert row["model"] == "incidents-paper" and row["num_windows"] == 3


def test_causes_are_scored_beside_the_oracle_and_the_true_process(run, tmp_path, capsys, few_simulated):
    out, words = tmp_path / "rows.jsonl", ["--task", "causes", "--limit", "40", "--solvers", "greedy_search"]
    assert run(*words, data="simulated:delayed", out=out) == 0
    printed, rows = capsys.readouterr().out, rows_of(out)
    by_solver = {row["solver"]: row for row in rows}
    names = ["oracle", "random", "recency", "distiller", "greedy_search", "greedy_search, true process"]
    assert list(by_solver) == names
    assert "average precision" in printed and "recall of the first 3" in printed and "first 10" not in printed
    assert by_solver["oracle"]["ap"] == max(row["ap"] for row in rows)
    assert by_solver["greedy_search, true process"]["ap"] != by_solver["greedy_search"]["ap"]
    assert {row["num_windows"] for row in rows} == {round(40 * (1 - rows[0]["without_causes"]))}
    assert run(*words, data="simulated:delayed", out=out) == 0
    assert rows_of(out) == rows


# --- what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model nowhere", "config.json and model.safetensors; got nowhere"),
        ("--model mtpp_seed0 --data nowhere", "does not exist"),
        ("--model mtpp_seed0 --data simulated:incident", "knows 6 marks; the events have 9"),
        ("--model mtpp_seed0 --split validation", "must have the split 'validation'; got train, test"),
        ("--model mtpp_seed0 --pair 15x40", '"K-L"'),
        ("--model mtpp_seed0 --jitter-seed 0", "jitter is for whole-number times"),
        ("--model mtpp_seed0 --out no/such/folder/rows.jsonl", "folder that exists"),
        ("--task ehed --data other", "must have the distiller's marks, 6"),
        ("--task explain --model mtpp_seed1", "mtpp_seed1 must hold a distiller"),
        ("--task explain --share 0.5 --epsilon 0.5", "one of epsilon, share and size"),
        ("--task causes", "causes are known of simulated events only; got --data toy"),
        ("--task causes --data simulated:delayed --split train", "on the split test; got train"),
        ("--task causes --data simulated:delayed --solvers refine", "an order of all events is needed"),
        ("--task curves --solvers distiller+drop", "an order of all events is needed"),
        ("--task trust --mtpp tiny", "tiny must be a point process; got a RankingDistillerModel"),
    ],
)
def test_user_errors_end_in_one_line_and_code_2(folders, capsys, monkeypatch, few_simulated, words, message):
    if "mtpp_seed0 --data simulated" in words:
        monkeypatch.undo()  # the whole data set
    monkeypatch.chdir(folders)
    assert script.main(["--model", "tiny", "--data", "toy", "--first", "9", *words.split()]) == 2
    captured = capsys.readouterr()
    assert message in [line for line in captured.err.splitlines() if line.startswith("evaluate: ")][-1]
    assert captured.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tasks weather", "'mtpp', 'distiller', 'ehed', 'emhd', 'case_study'"),
        ("--tasks mtpp ehed", "these tasks need models of different kinds"),
        ("--tasks explain ehed", "these tasks need models of different kinds"),
        ("--tasks ehed --limit 0", "at least 1"),
        ("--tasks explain --first 5 --limit 5", "give one of them"),
        ("--tasks ehed --conditioning x", "'paper', 'survival'"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        script.main(["--model", "tiny", "--data", "toy", *words.split()])
    assert stop.value.code == 2 and message in capsys.readouterr().err


# --- the page


def test_rows_of_the_paper_become_a_page_and_figures(run, tmp_path, capsys):
    out, page = tmp_path / "rows.jsonl", tmp_path / "results.md"
    assert run(*SOLVED, models=["paper"], out=out) == 0
    assert run(*SOLVED[:-2], "--limit", "5", "--batch-size", "1", models=["paper"], out=out) == 0
    assert run("--tasks", "distiller", "case_study", models=["paper"], out=out) == 0
    capsys.readouterr()
    assert report.main([str(out), "--out", str(page), "--figures", str(tmp_path / "figures")]) == 0
    text = page.read_text()
    for part in ("Does the distiller beat greedy search?", "At what cost?", "Complexity", "One in, segments out"):
        assert part in text
    assert "--limit 5 --batch-size 1" in text and "](figures/marks_toy_4-7.png)" in text
    drawn = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert drawn == {"along_toy_4-7", "lengths_toy", "marks_toy_4-7", "slides_toy_4-7"}
    assert report.main([str(out)]) == 0
    assert capsys.readouterr().out.startswith("# Results")


def test_rows_of_explanations_become_sections_whose_numbers_are_theirs(run, tmp_path, few_simulated):
    out, page, figures = tmp_path / "rows.jsonl", tmp_path / "results.md", tmp_path / "figures"
    both = {"models": ["tiny", "tiny_seed1"], "out": out, "data": "simulated:delayed"}
    assert run("--task", "explain", "--first", "9", **both) == 0
    assert run("--task", "causes", "--limit", "20", "--solvers", "leave_one_out", **both) == 0
    assert run("--tasks", "trust", "curves", "--first", "9", **both) == 0
    assert report.main([str(out), "--out", str(page), "--figures", str(figures)]) == 0
    text, rows = page.read_text(), rows_of(out)
    first, conditioning = "(4, 7), test, the first 9 windows", "survival conditioning"
    headings = {
        "explain": f"### The smallest sets that meet a target {first}, {conditioning}, share 0.7",
        "causes": f"### Do explanations find the causes? (4, 7), test, 20 windows drawn, {conditioning}",
        "trust": f"### Can they be trusted? {first}, {conditioning}, share 0.7",
        "curves": f"### Deletion and insertion {first}, {conditioning}",
    }
    name = "simulated_delayed_4-7_survival"
    drawn = {f"causes_{name}", f"sizes_{name}_share_0.7", f"trust_{name}_share_0.7"}
    assert {file.stem for file in figures.iterdir()} == drawn
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
    numbers = {f"{row[key]:,d}" for row in rows for key in ("num_windows", "num_sequences") if key in row}
    numbers |= {f"{row[key]:.1%}" for row in rows for key in ("explains_nothing", "without_causes") if key in row}
    numbers |= {f"{row['num_causes']:.1f}" for row in rows if "num_causes" in row}
    if metric := {"explain": "size", "causes": "ap"}.get(task):
        values = [row[metric] for row in rows if row["solver"] == "distiller"]
        numbers |= {f"{np.mean(values):.3f}", f"{np.std(values, ddof=1):.3f}", str(len(values))}
    for number in re.findall(r"(?<![\w.])\d[\d.,]*\d%?|(?<![\w.])\d%?", below):
        assert number in numbers, (number, below)


def test_settings_stand_apart_and_several_models_are_named():
    row = {"task": "curves", "data": "toy", "pair": "4-7", "split": "test", "conditioning": "paper", "model": "a"}
    row |= {"checkpoint": "1", "solver": "recency", "deletion_mean": -0.3, "insertion_mean": -0.2, "num_windows": 7}
    page = results_page([row, row | {"model": "b"}, row | {"batch_size": 1}, row | {"limit": 5}], command="make it")
    assert page.count("### Deletion and insertion") == 3 and page.count("| model |") == 1
    assert "paper conditioning, one window at a time\n" in page and "test, 5 windows drawn, paper" in page
    assert "```" not in page  # no command is better than an empty one


def test_seeds_are_those_of_one_run_on_the_same_windows():
    row = {"task": "explain", "data": "toy", "pair": "4-7", "split": "test", "conditioning": "paper"}
    row |= {"solver": "distiller", "target": "share 0.7", "num_windows": 9, "explains_nothing": 0.1}
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


def test_the_report_refuses_files_that_are_not_there(tmp_path, capsys):
    assert report.main([str(tmp_path / "nothing.jsonl")]) == 2
    assert "there is none" in capsys.readouterr().err


def test_the_losses_of_a_run_are_a_row_a_table_and_a_figure(folders, tmp_path, capsys):
    asked = ["--task", "losses", "--model", str(folders / "paper"), "--data", str(folders / "toy")]
    (folders / "paper" / "log.jsonl").unlink(missing_ok=True)
    assert script.main(asked) == 2 and "eval_left_share" in capsys.readouterr().err
    log = [{"step": 1, "eval_left_share": 0.5}, {"step": 2, "eval_left_share": 0.25}]
    (folders / "paper" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    assert script.main([*asked, "--out", str(tmp_path / "losses.jsonl")]) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert row["losses"] == "both losses" and row["left_share"] == [[1, 0.5], [2, 0.25]] and row["left_at_end"] == 0.25
    page = tmp_path / "page.md"
    assert report.main([str(tmp_path / "losses.jsonl"), "--out", str(page), "--figures", str(tmp_path)]) == 0
    assert "25.0%" in page.read_text() and (tmp_path / "left_share_toy_4-7.png").is_file()
