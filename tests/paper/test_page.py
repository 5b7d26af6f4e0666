"""Tables and figures, from plain rows."""

import json
from pathlib import Path

import pytest

from ehd_hf.files import read_rows
from ehd_hf.present.tables import Column, markdown_table, verdict
from evaluate import parse_arguments
from headlines import put_headlines
from page import (
    EARLIER_CODE,
    PAGE_TASKS,
    PAPER,
    PAPER_DS,
    cost_tables,
    data_tables,
    plain_table,
    results_page,
    score_table,
    short_answers,
)
from tasks import data_set

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = [Column("model", "model"), Column("nll", "NLL", ".2f"), Column("num_events", "events", ",d")]
ROWS = [{"model": "a|b", "nll": 2.456, "num_events": 12345}, {"model": "c_1", "nll": None}]


def test_a_markdown_table_formats_aligns_and_escapes():
    assert markdown_table(ROWS, COLUMNS).splitlines() == [
        "| model | NLL  | events |",
        "|-------|-----:|-------:|",
        "| a\\|b  | 2.46 | 12,345 |",
        "| c_1   |    – |      – |",
    ]
    assert markdown_table([], COLUMNS).splitlines() == ["| model | NLL | events |", "|-------|-----|--------|"]


def test_a_plain_table_drops_the_columns_without_a_value():
    rows = [{"model": "Gamma", "nll": 9.0}, {"model": "seed0", "nll": 1.0}]
    assert plain_table("mtpp", rows).splitlines()[0].split() == ["|", "model", "|", "NLL", "|"]


# --- the results page


def solver_row(task, solver, value, difference=None, *, data="stackoverflow", pair="15-40", **other):
    """A row of `evaluate_solvers`; `difference` is (low, mean, high)."""
    metric = {"ehed": "ds", "emhd": "lmhs"}[task]
    low, mean, high = difference or (None, None, None)
    row = {"task": task, "solver": solver, "data": data, "pair": pair, "split": "test_sampled"}
    row |= {"model": f"{data}_{pair}_ehd", "checkpoint": f"c{pair}", "num_windows": 5000, "batch_size": 250}
    row |= {metric: value, f"{metric}_std": 0.5, f"{metric}_low": value - 0.1, f"{metric}_high": value + 0.1}
    row |= {"difference": mean, "difference_low": low, "difference_high": high, "reached": 0.9, "size": 16.5}
    row |= {"dppl_left": -0.9, "dppl_distilled": -0.1, "conditioning": "paper", "generator_seed": 0, "threads": 1}
    cost = {"distiller": (3.0, 0.001), "recency": (40.0, 0.002)}.get(solver, (520.0, 0.03))
    return row | dict(zip(("evaluations", "seconds_per_window"), cost, strict=True)) | other


def some_rows(**other):
    return [
        solver_row("ehed", "distiller", 0.78, **other),
        solver_row("ehed", "greedy_search", 0.60, (-0.2, -0.18, -0.1), **other),
        solver_row("ehed", "recency", 0.79, (-0.01, 0.01, 0.02), **other),
        solver_row("emhd", "distiller", 16.5, **other),
        solver_row("emhd", "greedy_search", 26.2, (8.0, 9.7, 11.0), **other),
        solver_row("emhd", "recency", 15.9, (-1.2, -0.6, -0.2), **other),
    ]


def test_the_papers_figures_are_those_of_its_tables():
    assert PAPER["stackoverflow", "test_sampled", "15-40", "greedy_search"] == {
        "ds": 0.0295, "ds_std": 1.5293, "lmhs": 22.599, "lmhs_std": 12.092, "ehed_time": 122, "emhd_time": 201
    }  # fmt: skip
    assert PAPER["stackoverflow", "test", "25-50", "random_distillation"] == {"ds": -0.4480, "ds_std": 0.4707}
    assert PAPER_DS["stackoverflow", "20-50"] == 0.5627 and len(PAPER_DS) == 5
    assert {data for data, *_ in PAPER} == {"stackoverflow"}  # nothing of ours is the paper's Retweet


def test_scores_stand_beside_the_papers_where_the_setting_is_the_same():
    rows = [row for row in some_rows() + some_rows(pair="15-45") if row["task"] == "ehed"]
    table = score_table("ehed", rows[::-1])
    text = markdown_table(table.rows, table.columns)
    head = [cell.strip() for cell in text.splitlines()[0].split("|")[1:-1]]
    assert head == ["(K, L)", "distiller", "distiller, paper", "recency", "greedy", "greedy, paper", "windows"]
    first = [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]]
    assert first[:3] == ["(15, 40)", "0.7800 ± 0.5000", "0.6115 ± 0.6477"] and first[-1] == "5,000"
    for other in ({"data": "retweet_seismic738_segments", "pair": "10-25"}, {"conditioning": "survival"}):
        columns = score_table("ehed", [row for row in some_rows(**other) if row["task"] == "ehed"]).columns
        assert not any("paper" in column.title for column in columns)


def test_costs_are_evaluations_and_ratios_of_time():
    single = some_rows(batch_size=1, num_windows=20, seconds_per_window=0.5)
    complexity, times = cost_tables(some_rows() + single)
    by_solver = {row["solver"]: row for row in complexity.rows}
    assert by_solver["greedy"]["(15, 40)"] == "520 / 520" and by_solver["greedy"]["masks"] == "P L / L²"
    batched, one_by_one = sorted(times.rows, key=lambda row: -row["at_once"])
    assert batched["greedy_search"] == "30.0 / 30.0" and batched["milliseconds"] == pytest.approx(1.0)
    assert one_by_one["greedy_search"] == "1.0 / 1.0" and one_by_one["paper greedy_search"] == "122 / 201"
    assert "paper greedy_search" not in batched


@pytest.mark.parametrize(
    ("task", "low", "high", "expected"),
    [("ehed", -2, -1, 1), ("ehed", 1, 2, -1), ("ehed", -1, 1, 0), ("emhd", 1, 2, 1), ("emhd", -2, -1, -1)],
)
def test_the_distiller_wins_where_the_interval_says_so(task, low, high, expected):
    assert verdict({"task": task, "difference_low": low, "difference_high": high}) == expected


def test_the_questions_are_answered_from_the_rows():
    greedy, recency, cost = short_answers(some_rows())
    assert "DS: better in 1, level in 0, worse in 0 of 1 runs (distiller minus greedy: +0.1800)" in greedy
    assert "LMHS: better in 0, level in 0, worse in 1 of 1 runs (distiller minus recency: +0.60)" in recency
    assert "DS: better in 0, level in 1" in recency
    assert "520 evaluations" in cost and "30.0 times the distiller's time" in cost
    assert short_answers([row for row in some_rows() if row["solver"] == "distiller"]) == []


def study_row(pair):
    keys = ("adds_one", "adds_several", "ejects_several", "ejects_rather", "run_length", "in_runs")
    values = {f"{key}{end}": 0.5 for key in keys for end in ("", "_low", "_high")} | {"run_length": None}
    mark = {"label": "Guru", "share": 0.5, "expected": 0.4, "recency": 0.45, "significant": True}
    base = {"task": "case_study", "data": "stackoverflow", "split": "test", "model": "m", "checkpoint": "c"}
    return base | values | {"pair": pair, "num_slides": 7, "num_windows": 9, "mark_shares": [mark]}


def test_a_page_holds_every_data_set_with_its_commands_and_figures():
    retweet = some_rows(data="retweet_seismic738_segments", pair="10-25")
    distiller = {"task": "distiller", "data": "stackoverflow", "split": "test_sampled", "pair": "15-40", "model": "m"}
    distiller |= {"checkpoint": "c", "ds": 0.5, "num_windows": 5000}
    rows = [*some_rows(command="solve them"), *retweet, distiller, study_row("15-40")]
    page = results_page(rows, command="make it", figures={"stackoverflow": [("marks", "figures/marks.png")]})
    assert page.startswith("# Results\n\nMade by `make it`")
    assert page.count("\n## ") == 2 and "but not its sequences" in page
    assert "![marks](figures/marks.png)" in page and page.count("```bash\nsolve them\n```") == 1
    assert page.index("## stackoverflow") < page.index("Case studies") < page.index("## retweet_seismic738_segments")
    assert ", paper |" not in page[page.index("## retweet") :].replace("  ", "")


def test_the_page_of_the_documentation_is_made_from_the_committed_rows():
    rows = [row for file in sorted((ROOT / "results").glob("*.jsonl")) for row in read_rows(file)]
    page = results_page([row for row in rows if row["task"] in PAGE_TASKS], command="")
    committed = (ROOT / "docs" / "results.md").read_text()
    told = ("| ", EARLIER_CODE)
    tables = [[line for line in text.splitlines() if line.startswith(told)] for text in (page, committed)]
    assert tables[0] == tables[1], "make it again with scripts/paper/report.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert put_headlines(readme, rows) == readme, "make it again with scripts/paper/report.py --readme README.md"
    with pytest.raises(ValueError, match="the page must have the lines"):
        put_headlines("a page without", rows)


def test_a_data_set_is_told_beside_the_papers(tmp_path):
    for split, lengths in (("train", (55, 60)), ("validation", (56,)), ("test", (9, 57))):
        rows = [{"seq_id": i, "times": [2.0 * t for t in range(n)], "marks": ["a"] * n} for i, n in enumerate(lengths)]
        (tmp_path / "stackoverflow").mkdir(exist_ok=True)
        (tmp_path / "stackoverflow" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = parse_arguments(["--task", "data", "--data", str(tmp_path / "stackoverflow")])
    whole, first, *_ = data_set.find_rows(arguments, lambda key: None)
    assert (whole["num_sequences"], whole["num_events"], whole["interval_mean"]) == (5, 237, 2.0)
    # One window where a sequence is as long as it, of 15 and 40 events; then one for each event more.
    assert (first["pair"], first["train"], first["validation"], first["test"]) == ("15-40", 1 + 5, 1, 2)
    tables = list(data_tables([whole, first]))
    assert "6,633" in tables[0] and "99,791" in tables[1] and "| 15-40  | here" in tables[1]


def test_seeds_of_one_run_share_a_line_with_their_spread():
    rows = [
        dict(
            task="ehed", data="d", split="test", conditioning="paper", pair="2-3", model=f"run{seed}", checkpoint=seed
        )
        | dict(solver="distiller", ds=value, ds_std=0.5, num_windows=10, batch_size=250)
        for seed, value in (("", 0.2), ("_seed1", 0.4))
    ]
    first, both, second = score_table("ehed", rows).rows
    assert first["distiller"] == "0.2000 ± 0.5000" and second["model"] == "run_seed1"
    assert both["model"] == "run, 2 seeds" and both["distiller"] == "0.3000 ± 0.1414"
