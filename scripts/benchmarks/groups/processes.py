"""Two processes of one thread each against one: the same windows, from Parquet to the same folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from groups import Row, summarize
from groups.memory import EXPLAIN, MODEL, PEAK, write_windows


def seconds_of(source: Path, out: Path, world_size: int, options: dict[str, int], model: str) -> float:
    """Until the slowest of the processes, started together, has written its part; without their start-up."""
    command = [sys.executable, "-W", "ignore", "-c", PEAK + EXPLAIN, str(source), str(out), "1", model, "prefix"]
    parts = [json.dumps({**options, "rank": rank, "world_size": world_size}) for rank in range(world_size)]
    started = [subprocess.Popen([*command, part], stdout=subprocess.PIPE, text=True) for part in parts]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process failed: {printed}")
    return max(json.loads(text.splitlines()[-1])["seconds"] for text in printed)


def measure(repeats: int, model: str = MODEL) -> Iterator[Row]:
    windows = int(os.environ.get("EHD_HF_MEMORY_WINDOWS", 20_000))
    ratios, rates = [], []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "windows.parquet")
        write_windows(source, windows)
        options = {"rows_per_file": max(windows // 20, 1)}  # ten files each: little is left waiting at the end
        for repeat in range(repeats):
            one, two = (
                seconds_of(source, Path(folder, f"{repeat}-{count}"), count, options, model) for count in (1, 2)
            )
            ratios.append(one / two)
            rates.append(windows / two)
    yield summarize("throughput of two processes / one, a thread each", ratios, ">= 1.6")
    yield summarize("windows explained per second by two processes, a thread each", rates)
