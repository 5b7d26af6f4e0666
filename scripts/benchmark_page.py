"""Rows of scripts/benchmark.py in, docs/speed.md and its figures out. Measures nothing.

python scripts/benchmark_page.py
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import os
import sys
from pathlib import Path
from typing import Any

from ehd_hf.files import write_text
from ehd_hf.present.picture import scaling_plot
from ehd_hf.present.tables import Column, markdown_table

ROOT = Path(__file__).resolve().parent.parent
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

Made by `python scripts/benchmark_page.py` from `results/benchmarks.json`; do not edit. A figure "a / b" is a ratio:
both were measured on the same tensors in the same run, taking turns. Tables show the median over the repeats, the
lowest and the highest; a target is met if the median meets it. The command above a table measures its group again and
leaves the rows of the other groups alone; then make this page again.
"""


def meets(row: dict[str, Any]) -> str | None:
    """Whether a row's median meets its target, in a word; none without a target."""
    if not row["target"]:
        return None
    relation, bound = row["target"].split()
    return "yes" if RELATIONS[relation](row["median"], float(bound)) else "**no**"


def machine(row: dict[str, Any]) -> str:
    """The machine that a row was measured on, in a sentence; rows of before may say less of it."""
    said = {
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
    return ", ".join(words.format(row[key]) for key, words in said.items() if row.get(key))


def about(group: str) -> str:
    """What a group's file says of itself."""
    source = ROOT / "scripts" / "benchmarks" / f"{group}.py"
    return (ast.get_docstring(ast.parse(source.read_text())) or "") if source.exists() else ""


def page(rows: list[dict[str, Any]], figures: str) -> str:
    """The page, as Markdown; `figures` is their folder as seen from it."""
    parts = [INTRODUCTION.strip()]
    rows = [{**row, "met": meets(row)} for row in rows]
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        columns = [column for column in COLUMNS if any(row.get(column.key) is not None for row in mine)]
        command = f"python scripts/benchmark.py {group} --json results/benchmarks.json"
        parts += [f"## {group}", about(group).split("\n\n")[0]]
        parts += [f"<!-- not run: minutes -->\n```bash\n{command}\n```", machine(mine[0]) + "."]
        drawn = [f"![{group}: along {axis}]({figures}/{file_name(axis)})" for axis in axes_of(mine)]
        parts += [*drawn, markdown_table(mine, columns)]
    return "\n\n".join(part for part in parts if part) + "\n"


def axes_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["axis"] for row in rows if row.get("axis")))


def file_name(axis: str) -> str:
    return f"scaling_{axis.replace(' ', '_')}.png"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", type=Path, default=ROOT / "results" / "benchmarks.json", help="the rows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "speed.md", help="the page")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures", help="the folder of its figures")
    arguments = parser.parse_args(argv)
    try:
        rows = json.loads(arguments.benchmarks.read_text())
        arguments.figures.mkdir(parents=True, exist_ok=True)
        for axis in axes_of(rows):
            scaling_plot([row for row in rows if row.get("axis") == axis]).savefig(arguments.figures / file_name(axis))
        write_text(arguments.out, page(rows, os.path.relpath(arguments.figures, arguments.out.resolve().parent)))
    except (ValueError, OSError) as error:
        print(f"benchmark_page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
