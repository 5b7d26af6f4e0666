"""Rows in, tables out: Markdown and LaTeX, and the JSON Lines files in which rows are kept."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MISSING = "–"
_LATEX_SPECIAL = {char: rf"\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
}


class Column(NamedTuple):
    """A column of a table: `key` of the rows, its `title`, and how its numbers are written (a format spec)."""

    key: str
    title: str
    spec: str = ".3f"


_COST_COLUMNS = [
    Column("evaluations", "evaluations", ",.1f"),
    Column("seconds_per_window", "s per window", ".4f"),
    Column("num_windows", "windows", ",d"),
]
# The tables of `task_table`.
TASK_COLUMNS = {
    "mtpp": [
        Column("model", "model"),
        Column("nll", "NLL"),
        Column("time_nll", "time"),
        Column("mark_nll", "mark"),
        Column("gap", "above truth"),
        Column("ks", "KS"),
        Column("future_nll", "x_o NLL"),
        Column("future_time_nll", "x_o time"),
        Column("future_mark_nll", "x_o mark"),
        Column("num_events", "events", ",d"),
        Column("seconds", "s", ".1f"),
    ],
    "distiller": [
        Column("model", "distiller"),
        Column("pair", "(K, L)"),
        Column("ds", "DS"),
        Column("ds_std", "± std"),
        Column("paper_ds", "paper's DS", ".4f"),
        Column("recency_ds", "DS of the last k, same k"),
        Column("size", "size", ".2f"),
        Column("recency_size", "smallest last k that works", ".2f"),
        Column("constraint_met", "constraint met", ".1%"),
        Column("last_k_share", "of the distilled, among the last k", ".1%"),
        Column("is_last_k", "exactly the last k", ".1%"),
        Column("num_windows", "windows", ",d"),
    ],
    "ehed": [
        Column("pair", "(K, L)"),
        Column("solver", "solver"),
        Column("ds", "DS"),
        Column("ds_std", "± std"),
        Column("ds_low", "95 % from"),
        Column("ds_high", "to"),
        Column("difference", "minus distiller"),
        Column("difference_low", "95 % from"),
        Column("difference_high", "to"),
        *_COST_COLUMNS,
    ],
    "emhd": [
        Column("pair", "(K, L)"),
        Column("solver", "solver"),
        Column("lmhs", "LMHS", ".2f"),
        Column("lmhs_std", "± std", ".2f"),
        Column("lmhs_low", "95 % from", ".2f"),
        Column("lmhs_high", "to", ".2f"),
        Column("reached", "reached", ".1%"),
        Column("difference", "minus distiller", ".2f"),
        Column("difference_low", "95 % from", ".2f"),
        Column("difference_high", "to", ".2f"),
        *_COST_COLUMNS,
    ],
}

# What the paper reports on its sampled test windows with another MTPP: figures to compare in kind, by (data, K-L).
PAPER_DS = {
    ("stackoverflow", "15-40"): 0.6115,
    ("stackoverflow", "15-45"): 0.5716,
    ("stackoverflow", "15-50"): 0.5304,
    ("stackoverflow", "20-50"): 0.5627,
    ("stackoverflow", "25-50"): 0.5850,
}


def markdown_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """A Markdown table, aligned for people who read the source too; numbers to the right.

    Example:

    ```python
    >>> print(markdown_table([{"model": "Gamma", "nll": 2.45}], [Column("model", "model"), Column("nll", "NLL")]))
    | model | NLL   |
    |-------|------:|
    | Gamma | 2.450 |
    ```
    """
    rows = list(rows)
    cells = _cells(rows, columns, lambda text: text.replace("|", r"\|").replace("\n", " "))
    right = _is_numeric(rows, columns)
    widths = [max(3, *(len(line[index]) for line in cells)) for index in range(len(columns))]
    lines = [
        " | ".join(
            cell.rjust(width) if number and below else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        )
        for below, line in enumerate(cells)
    ]
    rule = "|".join("-" * (width + 1) + (":" if number else "-") for width, number in zip(widths, right, strict=True))
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def latex_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """The same table as a LaTeX tabular with booktabs rules."""
    rows = list(rows)
    cells = _cells(rows, columns, lambda text: "".join(_LATEX_SPECIAL.get(char, char) for char in text))
    lines = [" & ".join(line) + r" \\" for line in cells]
    alignment = "".join("r" if number else "l" for number in _is_numeric(rows, columns))
    begin = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*begin, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def mean_and_std(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], **labels: Any) -> dict[str, Any]:
    """One row with "mean ± std" (n - 1 in the denominator) of every float column over `rows`; others only if equal."""
    if len(rows) < 2:
        raise ValueError(f"a standard deviation needs at least 2 rows; got {len(rows)}.")
    summary: dict[str, Any] = {}
    for column in columns:
        values: list[Any] = [row.get(column.key) for row in rows]
        if all(isinstance(value, float) for value in values):
            mean, std = statistics.fmean(values), statistics.stdev(values)
            summary[column.key] = f"{mean:{column.spec}} ± {std:{column.spec}}"
        elif all(value == values[0] for value in values):
            summary[column.key] = values[0]
    return summary | labels


def task_table(task: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of one evaluation as Markdown: mean and deviation below if several checkpoints were evaluated, and
    without the columns of which no row has a value."""
    columns, models = TASK_COLUMNS[task], [row for row in rows if row.get("checkpoint")]
    if len(models) > 1 and not any("solver" in row for row in models):
        rows = [*rows, mean_and_std(models, columns, model=f"mean ± std of {len(models)} models")]
    return markdown_table(rows, [column for column in columns if any(row.get(column.key) is not None for row in rows)])


def _cells(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], escape: Callable[[str], str]
) -> list[list[str]]:
    """Titles, then the values of each row, as text."""

    def text(value: Any, spec: str) -> str:
        if value is None:
            return MISSING
        if isinstance(value, bool) or not isinstance(value, int | float):
            return str(value)
        return format(value, spec)

    body = [[escape(text(row.get(column.key), column.spec)) for column in columns] for row in rows]
    return [[escape(column.title) for column in columns], *body]


def _is_numeric(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[bool]:
    return [any(isinstance(row.get(column.key), int | float) for row in rows) for column in columns]


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; none if there is no file. A last line cut short by a kill is left out."""
    path = Path(path)
    if not path.exists():
        return []
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path} must hold one JSON object per line; line {number} is none. Choose another file.")
        rows.append(row)
    return rows


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Add one whole line, written through to the disk; a line cut short before it is removed."""
    line = json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"  # may fail: before anything is touched
    with open(path, "ab+") as file:
        file.seek(0)
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
