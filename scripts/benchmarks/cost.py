"""What explaining very many windows costs, from what was measured: core-hours, bytes, and what gives way first.

python scripts/benchmarks/cost.py                                          # a billion windows, results/benchmarks.json
python scripts/benchmarks/cost.py --windows 1e12 --benchmarks memory.json --processes 64
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

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
    first = "explaining" if processes < balance else "the plan"
    return [
        ("windows", f"{windows:,.0f}"),
        ("measured: explained per second by one process", f"{rate:,.0f} ({threads} threads)"),
        ("core-hours", f"{explaining * threads:,.0f}"),
        (f"hours with {processes:,} processes", f"{explaining / processes + passing:,.1f}"),
        ("of these, one process makes the plan", f"{passing:,.1f}"),
        ("bytes read", f"{3 * windows * read / 1e9:,.0f} GB"),
        ("bytes written", f"{windows * written / 1e9:,.0f} GB"),
        ("memory", f"{processes * memory:,.1f} GB ({memory:.2f} GB a process)"),
        (
            "first bottleneck",
            f"{first}: beyond {balance:,} processes, the plan takes longer; give each part of the source a command of "
            "its own then",
        ),
    ]


def main(
    windows: Annotated[float, typer.Option(min=1)] = 1e9,
    processes: Annotated[int, typer.Option(min=1, help="of as many threads as were measured")] = 16,
    benchmarks: Annotated[Path, typer.Option(help="rows of benchmark.py --json")] = RESULTS,
) -> None:
    """Print the plan."""
    lines = plan(json.loads(benchmarks.read_text()), windows, processes)
    print("| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in lines))


if __name__ == "__main__":
    typer.run(main)
