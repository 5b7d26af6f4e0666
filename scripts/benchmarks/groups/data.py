"""Data: how fast windows come out of the store, beside `datasets.load_dataset`, and their share of a training step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import torch
from torch import Tensor

from ehd_hf.data.export import export_windows
from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.data.windows import make_crops, make_windows
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from groups import Row, summarize, time_interleaved


def data_share(repeats: int, num_sequences: int = 300, batch_size: int = 32, length: int = 64) -> Row:
    """Share of a whole training step (fetch, forward, backward, update) that is spent on fetching the batch."""
    sequences = delayed_hawkes().simulate(120.0, num_sequences, np.random.default_rng(0)).sequences
    crops = make_crops(sequences, length=length)
    torch.manual_seed(0)
    model = FullyNNModel(FullyNNConfig(num_marks=sequences.num_marks))
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(0)

    def fetch() -> dict[str, Tensor]:
        return crops.__getitems__(torch.randint(len(crops), (batch_size,), generator=generator))

    def step() -> None:
        batch = fetch()
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    fetching, whole = time_interleaved([fetch, step], repeats).T
    return summarize("share of a point process's training step spent on data", fetching / whole, "< 0.05")


def window_rates(
    repeats: int,
    num_sequences: int = 1500,
    batch_size: int = 256,
    pair: tuple[int, int] = (10, 25),
    num_rows: int = 5120,
) -> Iterator[Row]:
    """Windows per second by random access, from the store and from the same windows in Parquet."""
    sequences = delayed_hawkes().simulate(120.0, num_sequences, np.random.default_rng(0)).sequences
    windows = make_windows(sequences, future=pair[0], history=pair[1])
    order = np.random.default_rng(1).permutation(len(windows))
    with tempfile.TemporaryDirectory() as folder:
        export_windows({"train": sequences}, Path(folder, "windows"), [pair], name="benchmark")
        name, cache = f"{pair[0]}-{pair[1]}", str(Path(folder, "cache"))
        table = datasets.load_dataset(str(Path(folder, "windows")), name, split="train", cache_dir=cache)
        table = table.with_format("torch")
        assert len(table) == len(windows)

        def from_store(number: int) -> None:
            for first in range(0, number, batch_size):
                windows.__getitems__(order[first : first + batch_size])

        def from_table(number: int) -> None:
            for first in range(0, number, batch_size):
                table[order[first : first + batch_size]]

        few = min(num_rows, len(order))
        calls = [lambda: from_store(len(order)), lambda: from_table(few)]
        ours, theirs = time_interleaved(calls, repeats).T
        rate, other = len(order) / ours, few / theirs
    yield summarize(f"windows of {sum(pair)} events per second, batch {batch_size}", rate, ">= 1e6")
    yield summarize("the same by load_dataset, as tensors", other)
    yield summarize("rate of the store / rate of load_dataset", rate / other)


def measure(repeats: int) -> Iterator[Row]:
    yield from window_rates(repeats)
    yield data_share(repeats)
