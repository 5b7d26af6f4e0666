"""Solvers: batched greedy search against one window and one candidate at a time; solvers against the distiller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ehd_hf import EHDDistiller
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import WindowStore, make_windows
from ehd_hf.evaluation.answers import Answers, answer_windows, objectives, solver_answers
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.point_process import MTPPModel
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import AtSize, Objective, Reaches, SolverResult, get_solver
from groups import Row, summarize, time_interleaved
from groups.distiller import FUTURE, HISTORY, make_batch, make_distiller

SIZE = 16  # what the distiller gives on StackOverflow (15, 40), about


@torch.no_grad()
def plain_greedy(
    mtpp: MTPPModel, times: Tensor, marks: Tensor, num_future: int, size: int, *, as_listed: bool
) -> tuple[list[int], float]:
    """Greedy search as its listing reads (appendix B): one window (T,), one candidate after the other, the kept events
    given to the MTPP as a sequence of their own. Returns the distilled events and dppl_left.

    The listing evaluates H_d of every candidate too, which its choice does not need: only if `as_listed`.
    """
    num_history = len(times) - num_future
    everything = set(range(num_history))

    def log_perplexity(kept: set[int]) -> float:
        place = torch.tensor(sorted(kept) + list(range(num_history, len(times))))
        mask = torch.ones(1, len(place), dtype=torch.bool)
        output = mtpp.event_log_prob(times[place][None], marks[place][None], mask)
        return -float(output.log_prob[0, -num_future:].mean())

    full, chosen, lowest = log_perplexity(everything), set[int](), 0.0
    while len(chosen) < size:
        drops = {}
        for candidate in sorted(everything - chosen):
            distilled = chosen | {candidate}
            drops[candidate] = full - log_perplexity(everything - distilled)
            if as_listed:
                log_perplexity(distilled)
        winner = min(drops, key=lambda candidate: drops[candidate])
        chosen, lowest = chosen | {winner}, drops[winner]
    return sorted(chosen), lowest


def against_plain(repeats: int, size: int = SIZE, num_windows: int = 64) -> Iterator[Row]:
    """How many times faster a window's greedy search is in a batch, and how far the answers are apart."""
    mtpp, batch = make_distiller(6).mtpp, make_batch(num_windows)
    found: dict[str, Any] = {}

    def ours() -> None:
        objective = Objective(mtpp, Window(batch["times"], batch["marks"], batch["mask"], FUTURE))
        found["ours"] = get_solver("greedy_search").solve(objective, AtSize(size))

    def plain(as_listed: bool) -> None:
        window = batch["times"][0], batch["marks"][0]
        found["plain"] = plain_greedy(mtpp, *window, FUTURE, size, as_listed=as_listed)

    calls = [ours, lambda: plain(as_listed=True), lambda: plain(as_listed=False)]
    batched, listed, same = time_interleaved(calls, repeats).T
    name = f"greedy search, {size} of {HISTORY} events, a window's time"
    slow = "one window and candidate at a time"
    yield summarize(f"{name}: {slow}, as listed / batch {num_windows}", listed * num_windows / batched, ">= 20")
    yield summarize(f"{name}: {slow}, H_l alone / batch {num_windows}", same * num_windows / batched, ">= 20")
    apart = abs(found["plain"][1] - float(found["ours"].dppl_left[0]))
    yield summarize("greedy search, difference of dppl_left between these two", [apart], "< 1e-5")


def distiller_answers(distiller: DistillerModel, windows: WindowStore, batch_size: int = 250) -> Answers:
    """The distiller's own masks, and what they are worth."""

    def answer(objective: Objective, rows: slice) -> SolverResult:
        chosen, _ = distiller.distill(objective.window)
        values = objective.dppl_left(chosen), objective.dppl_distilled(chosen)
        return SolverResult(chosen, *values, objective.num_evaluations, torch.ones_like(chosen[:, 0]))

    return answer_windows(answer, objectives(distiller.mtpp, windows, distiller.config.conditioning, batch_size))


def against_distiller(repeats: int, num_windows: int = 128, num_single: int = 4) -> Iterator[Row]:
    """Time of the solvers as a multiple of the distiller's, batched and one window at a time."""
    distiller = EHDDistiller.from_pretrained("incidents").model
    config = distiller.config
    events = simulated_splits("incident", {"test": 60})["test"]
    windows = make_windows(events, future=config.future, history=config.history)
    windows = windows.select(np.linspace(0, len(windows) - 1, num_windows).astype(int))
    setting = f"({config.future}, {config.history}), incidents"
    for some, batch_size, how in (
        (windows, num_windows, f"batch {num_windows}"),
        (windows.select(range(num_single)), 1, "one window at a time"),
    ):
        own = distiller_answers(distiller, some)

        def ask_distiller(some: WindowStore = some, batch_size: int = batch_size) -> None:
            distiller_answers(distiller, some, batch_size=batch_size)

        sizes, left, distilled = (torch.from_numpy(x) for x in (own.sizes, own.dppl_left, own.dppl_distilled))
        rules: dict[str, Callable[[Objective, slice], Any]] = {
            "EHED": lambda objective, rows, sizes=sizes: AtSize(sizes[rows]),
            "EMHD": lambda objective, rows, left=left, distilled=distilled: Reaches(left[rows], distilled[rows]),
        }
        questions = [(task, name) for name in ("random_distillation", "greedy_search", "recency") for task in rules]

        def ask_solver(
            name: str, task: str, some: WindowStore = some, size: int = batch_size, rules: Any = rules
        ) -> None:
            solver_answers(get_solver(name), distiller.mtpp, some, rules[task], batch_size=size)

        calls = [lambda n=name, t=task, ask=ask_solver: ask(n, t) for task, name in questions]
        seconds = time_interleaved([ask_distiller, *calls], repeats).T
        yield summarize(f"distiller, ms per window {setting}, {how}", 1e3 * seconds[0] / len(some))
        for (task, name), column in zip(questions, seconds[1:], strict=True):
            yield summarize(f"{name}, {task} / distiller {setting}, {how}", column / seconds[0])


def measure(repeats: int) -> Iterator[Row]:
    yield from against_plain(repeats)
    yield from against_distiller(repeats)
