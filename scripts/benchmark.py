"""How fast the parts are, as ratios measured side by side in one run: medians over interleaved repeats.

python scripts/benchmark.py mtpp                      # about two minutes on two cores
python scripts/benchmark.py mtpp distiller --json results/benchmarks.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import import_module
from pathlib import Path

import torch

from ehd_hf import __version__
from ehd_hf.files import write_text
from ehd_hf.report import Column, markdown_table

GROUPS = sorted(file.stem for file in (Path(__file__).parent / "benchmarks").glob("[a-z]*.py"))
COLUMNS = [
    Column("figure", "figure"),
    Column("median", "median", ",.4g"),
    Column("low", "lowest", ",.4g"),
    Column("high", "highest", ",.4g"),
    Column("target", "target"),
]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=GROUPS, metavar="group", help=f"any of {', '.join(GROUPS)}")
    parser.add_argument("--repeats", type=int, default=7, help="of each measurement (default 7)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1 or (arguments.threads or 1) < 1:
        parser.error("--repeats and --threads must be at least 1")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processor": platform.processor()}
    rows = []
    for group in arguments.groups:
        for row in import_module(f"benchmarks.{group}").measure(arguments.repeats):
            print(f"{row['figure']}: {row['median']:,.4g}", file=sys.stderr)
            rows.append({"group": group, **row, **machine, "version": __version__})
    print(markdown_table(rows, COLUMNS))
    if arguments.json:
        write_text(arguments.json, json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
