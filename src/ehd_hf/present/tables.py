"""Rows in, Markdown tables out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MISSING = "–"


class Column(NamedTuple):
    """A column of a table: `key` of the rows, its `title`, and how its numbers are written (a format spec)."""

    key: str
    title: str
    spec: str = ".3f"


# Of rows that say how well a point process predicts.
PROCESS_COLUMNS = [Column("model", "model"), Column("nll", "NLL"), Column("time_nll", "of the time")]
PROCESS_COLUMNS += [Column("mark_nll", "of the mark"), Column("ks", "KS")]
# The solvers' names for people, in the order of tables.
SHORT = {"distiller": "distiller", "recency": "recency", "greedy_search": "greedy", "random_distillation": "random"}
SHORT |= {"leave_one_out": "leave-one-out", "shapley": "Shapley", "integrated_gradient": "integrated gradient"}
SHORT |= {"backward_elimination": "backward", "refine": "recency, refined", "exact_search": "exact"}


def markdown_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """A Markdown table, aligned for people who read the source too; numbers to the right.

    ```python
    >>> print(markdown_table([{"model": "Gamma", "nll": 2.45}], [Column("model", "model"), Column("nll", "NLL")]))
    | model | NLL   |
    |-------|------:|
    | Gamma | 2.450 |
    ```
    """
    rows = list(rows)
    texts = [[figure(row.get(column.key), column.spec) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    cells = [[text.replace("|", r"\|").replace("\n", " ") for text in line] for line in (titles, *texts)]
    right = [any(isinstance(row.get(column.key), int | float) for row in rows) for column in columns]
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


def verdict(row: Mapping[str, Any]) -> int:
    """1 if the distiller beats the row's solver, -1 if it loses, 0 if the interval of the difference holds 0."""
    if row["difference_low"] <= 0 <= row["difference_high"]:
        return 0
    solver_is_higher = row["difference_low"] > 0
    return 1 if solver_is_higher == (row["task"] == "emhd") else -1


def figure(value: Any, spec: str) -> str:
    """A value of a table as text: numbers by their format spec; a dash if missing or not finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    return str(value) if isinstance(value, bool) or not isinstance(value, int | float) else format(value, spec)


def number_of(number: int, word: str) -> str:
    """ "1 event", "2,000 events"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
