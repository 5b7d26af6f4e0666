"""Rows of scripts/benchmarks/benchmark.py in, results/speed.md and its figures out. Measures nothing.

python scripts/benchmarks/benchmark_page.py
"""

from __future__ import annotations

import ast
import json
import operator
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from ehd_hf.files import write_text
from ehd_hf.present.picture import COLOURS, STYLE, save_figure
from ehd_hf.present.tables import Column, markdown_table

ROOT = Path(__file__).resolve().parents[2]
RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
COLUMNS = [
    Column("figure", "figure"),
    *(Column(key, title, ",.4g") for key, title in (("median", "median"), ("low", "lowest"), ("high", "highest"))),
    Column("repeats", "of", "d"),
    Column("target", "target"),
    Column("met", "met"),
    Column("data", "data"),
]
INTRODUCTION = """# How fast it is

Made by `python scripts/benchmarks/benchmark_page.py` from `results/benchmarks.json`; do not edit. A figure "a / b" is
a ratio: both were measured on the same tensors in the same run, taking turns. Tables show the median over the repeats,
the lowest and the highest; a target is met if the median meets it. The command above a table measures its group again
and leaves the rows of the other groups alone; then make this page again.
"""


def meets(row: dict[str, Any]) -> str | None:
    """Whether a row's median meets its target, in a word; none without a target."""
    if not row["target"]:
        return None
    relation, bound = row["target"].split()
    return "yes" if RELATIONS[relation](row["median"], float(bound)) else "**no**"


def machine(row: dict[str, Any]) -> str:
    """The machine that a row was measured on, in a sentence; older rows may lack some of it."""
    formats = {
        "processor": "{}",
        "cores": "{} cores",
        "memory_gb": "{:g} GB",
        "system": "{}",
        "python": "Python {}",
        "torch": "torch {}",
        "threads": "{} threads",
        "version": "ehd_hf {}",
        "date": "{}",
    }
    return ", ".join(words.format(row[key]) for key, words in formats.items() if row.get(key))


def about(group: str) -> str:
    """What a group's file says of itself."""
    source = ROOT / "scripts" / "benchmarks" / "groups" / f"{group}.py"
    return (ast.get_docstring(ast.parse(source.read_text())) or "") if source.exists() else ""


def page(rows: list[dict[str, Any]], figures: str) -> str:
    """The page, as Markdown; `figures` is their folder as seen from it."""
    parts = [INTRODUCTION.strip()]
    rows = [{**row, "met": meets(row)} for row in rows]
    for group in dict.fromkeys(row["group"] for row in rows):
        group_rows = [row for row in rows if row["group"] == group]
        columns = [column for column in COLUMNS if any(row.get(column.key) is not None for row in group_rows)]
        command = f"python scripts/benchmarks/benchmark.py {group} --json results/benchmarks.json"
        parts += [f"## {group}", about(group).split("\n\n")[0]]
        parts += [f"<!-- not run: minutes -->\n```bash\n{command}\n```", machine(group_rows[0]) + "."]
        drawn = [f"![{group}: along {axis}]({figures}/{file_name(axis)})" for axis in axes_of(group_rows)]
        parts += [*drawn, markdown_table(group_rows, columns)]
    return "\n\n".join(part for part in parts if part) + "\n"


def axes_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["axis"] for row in rows if row.get("axis")))


def file_name(axis: str) -> str:
    return f"scaling_{axis.replace(' ', '_')}.png"


def scaling_plot(rows: list[dict[str, Any]]) -> Figure:
    """How a figure grows along an axis, both logarithmic: a line per series, shaded from the lowest to the highest.

    Args:
        rows: of `benchmark.py`, of one axis: `axis`, `x`, `series`, `unit`, `median` with `low` and `high`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained", dpi=STYLE["savefig.dpi"])
        axes = figure.subplots()
        for index, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
            group_rows = sorted((row for row in rows if row["series"] == series), key=lambda row: row["x"])
            x, median, low, high = ([row[key] for row in group_rows] for key in ("x", "median", "low", "high"))
            colour, dashes = COLOURS[index % len(COLOURS)], ("-", "--", "-.", ":")[index % 4]
            axes.plot(x, median, marker="o", markersize=4, label=series, color=colour, linestyle=dashes)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        values = [row["median"] for row in rows]
        axes.set(xscale="log", xlabel=rows[0]["axis"], ylabel=rows[0]["unit"])
        if max(values) > 3 * min(values):
            axes.set_yscale("log")
            decades = np.log10(max(values) / min(values))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        else:
            axes.set_ylim(0, 1.2 * max(row["high"] for row in rows))  # what stays the same looks the same
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(x) < 100 * min(x) else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.minorticks_off()
        if len(axes.get_lines()) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure


def main(
    benchmarks: Path = ROOT / "results" / "benchmarks.json",
    out: Path = ROOT / "results" / "speed.md",
    figures: Path = ROOT / "docs" / "figures",
) -> None:
    """Make the page and its figures."""
    rows = json.loads(benchmarks.read_text())
    figures.mkdir(parents=True, exist_ok=True)
    for axis in axes_of(rows):
        save_figure(scaling_plot([row for row in rows if row.get("axis") == axis]), figures / file_name(axis))
    write_text(out, page(rows, os.path.relpath(figures, out.resolve().parent)))


if __name__ == "__main__":
    typer.run(main)
