"""Memory and time of explaining more windows than fit in memory, from Parquet to Parquet; and of the store alone.

Each figure is of a process of its own, measured once: a million windows take minutes. How many there are is said by
EHD_HF_MEMORY_WINDOWS for prefix certificates and EHD_HF_ARGMAX_WINDOWS for the paper's answers (default 20,000 each)
and, for the store, EHD_HF_STORE_WINDOWS (default 10,000,000):

EHD_HF_ARGMAX_WINDOWS=1000000 python scripts/benchmarks/benchmark.py memory --json memory.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from groups import Row, summarize

MODEL, HISTORY, FUTURE, NUM_MARKS = "stackoverflow-15-40-fast", 40, 15, 22
PAPER_MODEL = "stackoverflow-15-40-paper-fast"
# The most memory the process has held; what getrusage says would count that of the process that started it too.
PEAK = """
import json, re, resource, sys, time
from pathlib import Path
def peak():
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
"""
EXPLAIN = """
import torch
torch.set_num_threads(int(sys.argv[3]))
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import Work, explain_many
explainer, work = EHDDistiller.from_pretrained(sys.argv[4]), Work(**json.loads(sys.argv[6]))
began = time.perf_counter()
done = explain_many(explainer, sys.argv[1], sys.argv[2], refine=sys.argv[5], work=work)
print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak(), "windows": done.windows}))
"""
STORE = """
import numpy as np
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.windows import make_windows
windows, history, future = map(int, sys.argv[1:])
count, per_sequence = max(windows // 1000, 1), min(windows, 1000) + history + future
events = EventSequences(
    np.cumsum(np.random.default_rng(0).exponential(size=count * per_sequence)),
    np.zeros(count * per_sequence, np.int64),
    np.arange(count + 1) * per_sequence, tuple(range(count)), {0: "a"}, np.full(count, np.nan),
)
before, began = peak(), time.perf_counter()
store = make_windows(events, history=history, future=future)
built = time.perf_counter()
order = np.random.default_rng(0).permutation(len(store))[: 256 * 1000]
for first in range(0, len(order), 256):
    store.__getitems__(order[first : first + 256])
rate = len(order) / (time.perf_counter() - built)
print(json.dumps({
    "seconds": built - began, "peak": peak(), "added": peak() - before, "windows": len(store), "rate": rate
}))
"""


def write_windows(path: Path, num_windows: int, rows_at_once: int = 10_000) -> None:
    """Random windows as `export_windows` lays them out, in the memory of a few."""
    generator = np.random.default_rng(0)
    writer = None
    for first in range(0, num_windows, rows_at_once):
        rows = min(rows_at_once, num_windows - first)
        times = np.cumsum(generator.exponential(size=(rows, HISTORY + FUTURE)), axis=1)
        marks = generator.integers(0, NUM_MARKS, times.shape)
        parts = {"history": slice(HISTORY), "future": slice(HISTORY, None)}
        lists = {f"{name}_times": times[:, part] for name, part in parts.items()}
        lists |= {f"{name}_marks": marks[:, part] for name, part in parts.items()}
        columns = {key: pa.FixedSizeListArray.from_arrays(v.ravel(), v.shape[1]) for key, v in lists.items()}
        table = pa.table({"seq_id": np.arange(first, first + rows), **columns})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def run(code: str, *arguments: Any) -> dict[str, Any]:
    """What a new process says of itself."""
    command = [sys.executable, "-W", "ignore", "-c", PEAK + code, *map(str, arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def explaining(num_windows: int, model: str = MODEL, refine: str = "prefix") -> Iterator[Row]:
    """A thousandth of the windows, a hundredth, a tenth, all of them: the memory should be the same."""
    threads, kind = torch.get_num_threads(), {"none": "argmax", "prefix": "prefix certificates"}[refine]
    with tempfile.TemporaryDirectory() as folder:
        for count in filter(None, (num_windows // part for part in (1000, 100, 10, 1))):
            source, out = Path(folder, f"{count}.parquet"), Path(folder, str(count))
            write_windows(source, count)
            measured = run(EXPLAIN, source, out, threads, model, refine, "{}")
            yield summarize(
                f"peak memory of explaining {count:,} windows from Parquet ({kind}), GB",
                [measured["peak"] / 1e9],
                "< 1.5" if count == num_windows else None,
                **{"axis": "windows", "x": count, "series": kind, "unit": "peak memory, GB"},
            )
        yield summarize(f"windows explained per second, Parquet to Parquet ({kind})", [count / measured["seconds"]])
        if refine == "none":
            return
        # A process that has no file to write only reads.
        alone = json.dumps({"rank": 10**9 - 1, "world_size": 10**9})
        reading = run(EXPLAIN, source, Path(folder, "reading"), threads, model, refine, alone)
        yield summarize("windows read per second by a process of many", [count / reading["seconds"]])
        written = sum(file.stat().st_size for file in out.glob("*.parquet"))
        yield summarize("bytes read per window", [source.stat().st_size / count])
        yield summarize("bytes written per window", [written / count])


def store(num_windows: int) -> Iterator[Row]:
    measured = run(STORE, num_windows, HISTORY, FUTURE)
    assert measured["windows"] >= num_windows
    yield summarize(f"store of {num_windows:,} windows: seconds to make", [measured["seconds"]])
    yield summarize("store: bytes added per window", [measured["added"] / measured["windows"]])
    yield summarize(f"store of {num_windows:,} windows: peak memory of the process, GB", [measured["peak"] / 1e9])
    yield summarize("store: windows read per second, at random, batch 256", [measured["rate"]])


def measure(repeats: int) -> Iterator[Row]:
    del repeats  # see above
    yield from explaining(int(os.environ.get("EHD_HF_MEMORY_WINDOWS", 20_000)))
    yield from explaining(int(os.environ.get("EHD_HF_ARGMAX_WINDOWS", 20_000)), PAPER_MODEL, "none")
    yield from store(int(os.environ.get("EHD_HF_STORE_WINDOWS", 10_000_000)))
