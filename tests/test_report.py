"""Tables, row files and figures, from plain rows."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from ehd_hf.plotting import qq_plot
from ehd_hf.report import Column, append_row, latex_table, markdown_table, mean_and_std, read_rows, task_table

COLUMNS = [Column("model", "model"), Column("nll", "NLL", ".2f"), Column("num_events", "events", ",d")]
ROWS = [{"model": "a|b", "nll": 2.456, "num_events": 12345}, {"model": "c_1", "nll": None}]


def test_a_markdown_table_formats_aligns_and_escapes():
    assert markdown_table(ROWS, COLUMNS) == "\n".join(
        [
            "| model | NLL  | events |",
            "|-------|-----:|-------:|",
            "| a\\|b  | 2.46 | 12,345 |",
            "| c_1   |    – |      – |",
        ]
    )


def test_a_table_of_no_rows_is_its_head():
    assert markdown_table([], COLUMNS).splitlines() == ["| model | NLL | events |", "|-------|-----|--------|"]


def test_a_latex_table_escapes_what_latex_would_read():
    lines = latex_table([*ROWS, {"model": "2 ± 1 %"}], COLUMNS).splitlines()
    assert lines[:4] == [r"\begin{tabular}{lrr}", r"\toprule", r"model & NLL & events \\", r"\midrule"]
    assert lines[4:7] == [r"a|b & 2.46 & 12,345 \\", r"c\_1 & -- & -- \\", r"2 $\pm$ 1 \% & -- & -- \\"]


def test_mean_and_std_by_hand():
    rows = [{"model": name, "nll": nll, "num_events": 7} for name, nll in (("x", 1.0), ("y", 2.0), ("z", 6.0))]
    assert mean_and_std(rows, COLUMNS, model="all") == {"nll": "3.00 ± 2.65", "num_events": 7, "model": "all"}
    with pytest.raises(ValueError, match="at least 2 rows; got 1"):
        mean_and_std(rows[:1], COLUMNS)


def test_a_task_table_adds_the_mean_over_checkpoints_only_and_drops_empty_columns():
    rows = [{"model": "Gamma", "nll": 9.0, "checkpoint": None}]
    rows += [{"model": f"seed{i}", "nll": nll, "checkpoint": f"{i}"} for i, nll in enumerate((1.0, 2.0))]
    lines = task_table("mtpp", rows).splitlines()
    assert lines[0].split() == ["|", "model", "|", "NLL", "|"]
    assert lines[-1] == "| mean ± std of 2 models | 1.500 ± 0.707 |"
    assert len(task_table("mtpp", rows[:2]).splitlines()) == 4


def test_rows_come_back_as_written_and_a_line_cut_short_is_replaced(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    append_row(path, ROWS[0])
    with open(path, "a") as file:
        file.write('{"model": "cut sh')  # a kill in the middle of a write
    assert read_rows(path) == ROWS[:1]
    append_row(path, ROWS[1])
    assert read_rows(path) == ROWS
    assert path.read_text().count("\n") == 2


def test_a_row_that_json_cannot_hold_leaves_the_file_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, ROWS[0])
    with pytest.raises(ValueError):
        append_row(path, {"nll": float("nan")})
    assert read_rows(path) == ROWS[:1]


def test_a_file_that_is_no_row_file_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(json.dumps({"a": 1}) + "\nhello\n")
    with pytest.raises(ValueError, match="line 2 is none"):
        read_rows(path)


def test_a_qq_plot_has_a_line_per_row_and_the_diagonal(tmp_path):
    expected = -np.log1p(-np.arange(1, 100) / 100)
    rows = [{"model": "right", "qq": expected.tolist(), "ks": 0.0}, {"model": "tied", "qq": [0.0] * 50 + [2.0] * 49}]
    figure = qq_plot(rows, title="toy")
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    right, tied, diagonal = axes.get_lines()
    np.testing.assert_allclose(right.get_xdata(), right.get_ydata())
    assert np.isnan(tied.get_ydata()[:50]).all() and tied.get_color() != right.get_color()
    np.testing.assert_allclose(diagonal.get_xdata(), diagonal.get_ydata())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["right (KS 0.000)", "tied", "Exp(1)"]
    figure.savefig(tmp_path / "qq.png")
    assert (tmp_path / "qq.png").stat().st_size > 0
    with pytest.raises(ValueError, match="at least one row"):
        qq_plot([])
