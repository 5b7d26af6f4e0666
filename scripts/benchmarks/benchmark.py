"""How fast the parts are, as ratios measured side by side in one run: medians over interleaved repeats.

python scripts/benchmarks/benchmark.py mtpp               # about a minute on two cores
python scripts/benchmarks/benchmark.py explain gate --json results/benchmarks.json
python scripts/benchmarks/benchmark_page.py               # results/speed.md from that file

Rows of the same groups in the file are replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from datetime import date
from importlib import import_module
from pathlib import Path

import torch

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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=GROUPS, metavar="group", help=f"any of {', '.join(GROUPS)}")
    parser.add_argument("--repeats", type=int, default=7, help="of each measurement (default 7)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument("--json", type=Path, help="file to put the rows into; those of other groups stay")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1 or (arguments.threads or 1) < 1:
        parser.error("--repeats and --threads must be at least 1")
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        parser.error(f"--json must lie in a folder that exists; make {arguments.json.parent} first")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = describe_machine()
    for group in arguments.groups:
        rows = []
        for row in import_module(f"groups.{group}").measure(arguments.repeats):
            print(f"{row['figure']}: {row['median']:,.4g}", file=sys.stderr)
            rows.append({"group": group, **row, **machine})
        print(markdown_table(rows, COLUMNS))
        if arguments.json:
            merge(arguments.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
