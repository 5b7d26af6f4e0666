"""Units of work: what the engines cost, and what sorting rows in any order costs, each in processes of their own.

EHD_HF_UNITS_WINDOWS (default 20,000) says how many windows the engines explain, and EHD_HF_SORT_EVENTS (default
1,000,000 and 4,000,000) which numbers of shuffled events are sorted, from a CSV file that is made for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from groups import Row, summarize
from groups.memory import MODEL, run, write_windows

MEMORY = "1GB"
EXPLAIN = """
if __name__ == "__main__":
    import sys
    from ehd_hf.explain.explainer import EHDDistiller
    from ehd_hf.explain.many import Work, explain_many
    source, out, engine, rows, model = sys.argv[1:]
    work = Work(int(rows), engine=engine, workers=2)
    explain_many(EHDDistiller.from_pretrained(model), source, out, refine="prefix", work=work)
"""
SORT = """
from ehd_hf.data.sorting import alike, by_sequence, bytes_of, write_groups
from ehd_hf.data.tables import read_tables
source, out, memory = sys.argv[1:]
began, columns = time.perf_counter(), {"sequence": "user", "time": "time", "mark": "kind"}
tables = alike(read_tables(source, ["user", "kind"]), columns)
tables = by_sequence(tables, "user", bytes_of(memory), Path(out + ".spill"), [], False)
write_groups(tables, Path(out), 100_000, lambda lengths: lengths, "user", [])
print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak()}))
"""


def rate(source: Path, out: Path, engine: str, windows: int, units: int) -> float:
    """Windows explained per second by two workers between their first files and the last: without their start-up."""
    script = out.with_suffix(".py")
    script.write_text(EXPLAIN)  # a file: processes that are started anew read it again
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(script),
        str(source),
        str(out),
        engine,
        str(windows // units),
        MODEL,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended = sorted(file.stat().st_mtime for file in out.glob("part-*.parquet"))
    return (windows // units) * (len(ended) - 2) / (ended[-1] - ended[1])


def engines(repeats: int, windows: int) -> Iterator[Row]:
    units = 40
    rates: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "windows.parquet")
        write_windows(source, windows, windows // units)
        for repeat in range(repeats):
            for engine in rates:
                rates[engine].append(rate(source, Path(folder, f"{engine}-{repeat}"), engine, windows, units))
    ratios = np.divide(rates["ray"], rates["local"])
    yield summarize("throughput of two Ray actors / two local processes, a thread each", ratios, ">= 0.85")
    yield summarize("windows explained per second by two Ray actors", rates["ray"])


def write_shuffled(path: Path, events: int, at_once: int = 500_000) -> None:
    """A log whose rows are in no order: 50 events of each user on average."""
    generator = np.random.default_rng(0)
    kinds = pa.array(["check", "deploy", "config change", "alert", "page on-call", "restart", "rollback", "ticket"])
    with pa.csv.CSVWriter(path, pa.schema({"user": "string", "time": "string", "kind": "string"})) as writer:
        for first in range(0, events, at_once):
            count = min(at_once, events - first)
            users = pa.array(generator.integers(0, max(events // 50, 1), count)).cast(pa.string())
            seconds = generator.integers(1_700_000_000_000, 1_790_000_000_000, count).astype("datetime64[ms]")
            times = pa.array(seconds.astype(str))
            writer.write_table(
                pa.table({"user": users, "time": times, "kind": kinds.take(generator.integers(0, 8, count))})
            )


def sorting(numbers: list[int]) -> Iterator[Row]:
    plot = {"axis": "events", "series": f"sorted, memory {MEMORY}", "unit": "peak memory, GB"}
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            source, out = Path(folder, "events.csv"), Path(folder, "sorted")
            write_shuffled(source, number)
            size = source.stat().st_size / 1e9
            measured = run(SORT, source, out, MEMORY)
            shuffled = f"sorting {number:,} shuffled events, {size:.2f} GB of CSV, memory {MEMORY}"
            yield summarize(f"{shuffled}: peak of the process, GB", [measured["peak"] / 1e9], "< 2", x=number, **plot)
            yield summarize(f"{shuffled}: events per second", [number / measured["seconds"]])


def measure(repeats: int) -> Iterator[Row]:
    yield from engines(min(repeats, 3), int(os.environ.get("EHD_HF_UNITS_WINDOWS", 20_000)))
    numbers = os.environ.get("EHD_HF_SORT_EVENTS", "1000000 4000000")
    yield from sorting(list(map(int, numbers.split())))
