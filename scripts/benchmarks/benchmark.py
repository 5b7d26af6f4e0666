"""How fast the parts are, as ratios measured side by side in one run: medians over interleaved repeats.

python scripts/benchmarks/benchmark.py mtpp               # about a minute on two cores
python scripts/benchmarks/benchmark.py explain gate --json results/benchmarks.json
python scripts/benchmarks/benchmark_page.py               # results/speed.md from that file

Rows of the same groups in the file are replaced.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer

from ehd_hf import __version__
from ehd_hf.files import write_text
from ehd_hf.present.tables import Column, markdown_table
from groups import Row

GROUPS = sorted(file.stem for file in (Path(__file__).parent / "groups").glob("[a-z]*.py"))
COLUMNS = [
    Column("figure", "figure"),
    Column("median", "median", ",.4g"),
    Column("low", "lowest", ",.4g"),
    Column("high", "highest", ",.4g"),
    Column("target", "target"),
]


def describe_machine() -> Row:
    """What the figures depend on besides the code."""
    names = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", names.read_text()) if names.exists() else None
    return {
        "processor": named[1].strip() if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "version": __version__,
        "date": date.today().isoformat(),
    }


def merge(path: Path, rows: list[Row]) -> None:
    """Put rows into a file in the place of what it holds of their groups; whole or not at all."""
    measured = {row["group"] for row in rows}
    others = [row for row in json.loads(path.read_text()) if row["group"] not in measured] if path.exists() else []
    write_text(path, json.dumps(sorted(others + rows, key=lambda row: row["group"]), indent=1) + "\n")


def main(
    groups: Annotated[list[str], typer.Argument(help=f"any of {', '.join(GROUPS)}")],
    repeats: Annotated[int, typer.Option(min=1, help="of each measurement")] = 7,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's own)")] = None,
    json: Annotated[Path | None, typer.Option(help="file to put the rows into; those of other groups stay")] = None,
) -> None:
    """Measure groups and print their tables."""
    if unknown := sorted(set(groups) - set(GROUPS)):
        raise typer.BadParameter(f"groups must be any of {', '.join(GROUPS)}; got {unknown[0]}.")
    if json and not json.resolve().parent.is_dir():
        raise typer.BadParameter(f"--json must lie in a folder that exists; make {json.parent} first.")
    if threads:
        torch.set_num_threads(threads)
    machine = describe_machine()
    for group in groups:
        rows = []
        for row in import_module(f"groups.{group}").measure(repeats):
            print(f"{row['figure']}: {row['median']:,.4g}", file=sys.stderr)
            rows.append({"group": group, **row, **machine})
        print(markdown_table(rows, COLUMNS))
        if json:
            merge(json, rows)


if __name__ == "__main__":
    typer.run(main)
