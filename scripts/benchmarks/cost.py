"""What explaining very many windows costs, from what was measured: core-hours, bytes, and what gives way first.

python scripts/benchmarks/cost.py                                          # a billion windows, results/benchmarks.json
python scripts/benchmarks/cost.py --windows 1e12 --benchmarks memory.json --processes 64
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "results" / "benchmarks.json"
RATE = "windows explained per second, Parquet to Parquet (prefix certificates)"
READING = "windows read per second by a process of many"
READ, WRITTEN, PEAK = "bytes read per window", "bytes written per window", "peak memory of explaining"


def plan(rows: list[dict[str, Any]], windows: float, processes: int) -> list[tuple[str, str]]:
    """The plan's lines, computed from the rows of the benchmark group `memory`."""
    measured = {row["figure"]: row for row in rows if row["group"] == "memory"}
    if missing := [figure for figure in (RATE, READING, READ, WRITTEN) if figure not in measured]:
        raise ValueError(
            f"the benchmarks must hold the group memory; they lack {missing[0]!r}. "
            "Run scripts/benchmarks/benchmark.py memory."
        )
    rate, reading, read, written = (measured[figure]["median"] for figure in (RATE, READING, READ, WRITTEN))
    threads = measured[RATE]["threads"]
    memory = max(row["median"] for figure, row in measured.items() if figure.startswith(PEAK))
    explaining, passing = windows / rate / 3600, windows / reading / 3600  # hours of one process
    balance = int(reading / rate)
    first = "explaining" if processes < balance else "reading"
    return [
        ("windows", f"{windows:,.0f}"),
        ("measured: explained per second by one process", f"{rate:,.0f} ({threads} threads)"),
        ("core-hours", f"{explaining * threads:,.0f}"),
        (f"hours with {processes:,} processes", f"{explaining / processes + passing:,.1f}"),
        ("of these, every process reads the whole source", f"{passing:,.1f}"),
        ("bytes read", f"{windows * read / 1e9:,.0f} GB, by every process"),
        ("bytes written", f"{windows * written / 1e9:,.0f} GB"),
        ("memory", f"{processes * memory:,.1f} GB ({memory:.2f} GB a process)"),
        (
            "first bottleneck",
            f"{first}: beyond {balance:,} processes, reading takes longer than explaining; give each part of the "
            "source a command of its own then",
        ),
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=float, default=1e9, help="how many (default 1e9)")
    parser.add_argument("--processes", type=int, default=16, help="of as many threads as were measured (default 16)")
    parser.add_argument("--benchmarks", type=Path, default=RESULTS, help="rows of benchmark.py --json")
    arguments = parser.parse_args(argv)
    if arguments.windows < 1 or arguments.processes < 1:
        parser.error("--windows and --processes must be at least 1")
    try:
        lines = plan(json.loads(arguments.benchmarks.read_text()), arguments.windows, arguments.processes)
    except (ValueError, OSError) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 2
    print("| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
