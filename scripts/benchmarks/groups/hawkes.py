"""A Hawkes process against FullyNN: certified sets (share 0.7, survival conditioning, pruned, measured in double) of
the same windows, by greedy search and by the default solver, which follows gradients; and how its likelihood grows
with the number of events. A deletion is a subtraction, so searches ask for all masks of a window at once; gradients
go through the general likelihood. Measured while other work ran on both cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from ehd_hf import EHDDistiller
from groups import Row, random_windows, real_windows, summarize, time_interleaved
from groups.explain import FUTURE, HISTORY, answering

CHECKPOINTS = Path(__file__).resolve().parents[3] / "results" / "checkpoints"
ASKED: dict[str, Any] = {"share": 0.7, "conditioning": "survival", "refine": "prune"}
WAYS = (("greedy search", "greedy_search", ">= 20"), ("the default solver", None, None))


def measure(repeats: int, size: int = 500, num_events: int = 100_000) -> Iterator[Row]:
    window, data = real_windows(HISTORY, FUTURE, size)
    fullynn, hawkes = (
        AutoModel.from_pretrained(CHECKPOINTS / f"stackoverflow_{name}", use_safetensors=True).eval()
        for name in ("fullynn", "hawkes")
    )
    for name, solver, target in WAYS:
        explainers = [EHDDistiller.from_mtpp(mtpp, solver=solver) for mtpp in (fullynn, hawkes)]
        slow, fast = time_interleaved([answering(each, window, **ASKED) for each in explainers], repeats).T
        yield summarize(f"certified sets by {name}: FullyNN / Hawkes", slow / fast, target, data=data)
        yield summarize(f"windows per second, certified by {name}, Hawkes (batch {size})", size / fast, data=data)
    hawkes, log = hawkes.double(), random_windows(num_events - 1, 1, 1)
    parts = [(x[:, : num_events // 4], x) for x in (log.times, log.marks, log.mask)]
    calls = [lambda events=events: hawkes.event_log_prob(*events) for events in zip(*parts, strict=True)]
    with torch.no_grad():
        few, many = time_interleaved(calls, repeats).T
    yield summarize(f"likelihood of one sequence: {num_events:,} events / a quarter of them", many / few, "<= 5")
