"""Why one event happened: all its causes against one forward of the point process over the same window, for every
backbone; a trace of a whole log, an event at a time and in memory; futures in two worlds. With a recurrence a deletion
touches only what follows it; a Hawkes process takes one pass for all; attention encodes every deletion anew. Seconds
are of the processor, on one thread. How many events are traced for the peak of memory is said by EHD_HF_TRACE_EVENTS
(default 100,000); the process is measured once. Measured while other work ran on both cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoModel

from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.explain.causes import cause_probabilities
from ehd_hf.explain.futures import simulate
from ehd_hf.explain.trace import find_edges
from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.point_process import in_double
from groups import Row, random_windows, summarize
from groups.hawkes import CHECKPOINTS
from groups.memory import run

_CALLS = 3  # of each in a turn
TARGETS = {("fullynn", 25): "<= 15", ("lognormmix", 25): "<= 15", ("hawkes", 25): "<= 2", ("hawkes", 40): "<= 2"}
TRACE = """
import torch
torch.set_num_threads(1)
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import trace_many
explainer = EHDDistiller.from_pretrained(sys.argv[3])
done = trace_many(explainer, sys.argv[1], sys.argv[2], history=25, at_least=0.01)
print(json.dumps({"peak": peak(), "events": done.events}))
"""


def measure(repeats: int, size: int = 128, num_samples: int = 1000) -> Iterator[Row]:
    models = {
        name: AutoModel.from_pretrained(CHECKPOINTS / f"stackoverflow_{name}", use_safetensors=True).eval()
        for name in ("fullynn", "hawkes")
    }
    models["lognormmix"] = LogNormMixModel(LogNormMixConfig(num_marks=22)).eval()
    models["attention"] = AttentionModel(AttentionConfig(num_marks=22)).eval()
    for length in (25, 40):
        window = random_windows(length, 1, size).to(torch.float32)
        few = window.rows(torch.arange(8))
        for name, model in models.items():
            events = few if name == "attention" else window
            calls = [
                partial(model.event_log_prob, events.times, events.marks, events.mask),
                partial(cause_probabilities, model, events),
            ]
            with torch.no_grad():
                forward, causes = processor_seconds(calls, repeats).T
            figure = f"all causes of an event, L = {length}, {name}: forwards of the same window"
            yield summarize(figure, causes / forward, TARGETS.get((name, length)))
    log = simulated_splits("incident", {"test": 20})["test"]
    for name, model in models.items():
        if name != "attention":
            values = processor_seconds([partial(find_edges, model, log, 25)], repeats)[:, 0] * 1e3 / log.num_events
            yield summarize(f"milliseconds per event of a trace, L = 25, {name}", values, "<= 0.3")
    double, past = in_double(models["fullynn"]), random_windows(24, 1, 1)
    mean = float(double.mean_interval)
    world = mean * past.times[0].numpy(), past.marks[0].numpy()
    draw = partial(simulate, double, [world, world], world[0][-1], 20 * mean, num_samples, progress=False)
    seconds = processor_seconds([draw], repeats)[:, 0] * 20 * 2 * num_samples / draw()[0].sum()
    figure = f"seconds for {num_samples:,} futures of 20 events in each of two worlds, fullynn"
    yield summarize(figure, seconds, "<= 5")
    yield from memory(int(os.environ.get("EHD_HF_TRACE_EVENTS", 100_000)))


def processor_seconds(calls: Sequence[Callable[[], Any]], repeats: int) -> np.ndarray:
    """(repeats, len(calls)) of one thread, the calls in turns; other work on the machine takes none of it."""
    torch.set_num_threads(1)
    seconds = np.empty((repeats + 1, len(calls)))  # the first round warms up
    for turn, index in np.ndindex(seconds.shape):
        began = time.process_time()
        for _ in range(_CALLS):
            calls[index]()
        seconds[turn, index] = (time.process_time() - began) / _CALLS
    return seconds[1:]


def write_sequences(path: Path, number: int, length: int = 200, rows_at_once: int = 1000) -> None:
    """Random sequences, a row each, in the memory of a few."""
    generator = np.random.default_rng(0)
    for first in range(0, number, rows_at_once):
        rows = min(rows_at_once, number - first)
        times = generator.exponential(size=(rows, length)).cumsum(1)
        columns = {"times": list(times), "marks": list(generator.integers(0, 22, times.shape))}
        table = pa.table({"seq_id": np.arange(first, first + rows), **columns})
        if first == 0:
            writer = pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def memory(number: int) -> Iterator[Row]:
    """The peak of memory while all causes of a log are written to a file, and of a tenth of it."""
    peaks = []
    with tempfile.TemporaryDirectory() as scratch:
        for events in (number // 10, number):
            source, causes = Path(scratch, f"{events}.parquet"), Path(scratch, f"causes_of_{events}.parquet")
            write_sequences(source, events // 200)
            peaks.append(run(TRACE, source, causes, CHECKPOINTS / "stackoverflow_hawkes")["peak"])
    yield summarize(f"peak memory of a trace to a file: {number:,} events / a tenth", [peaks[1] / peaks[0]], "<= 1.2")
