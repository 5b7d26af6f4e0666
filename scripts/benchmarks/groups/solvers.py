"""Solvers: batched greedy search against one window and one candidate at a time; solvers against the distiller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
from ehd_hf.solvers.base import AtSize, Objective, Reaches, Rule, SolverResult, get_solver
from groups import Row, summarize, time_interleaved
from groups.distiller import FUTURE, HISTORY, make_batch, make_distiller, window_of

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
    mtpp, window = make_distiller().mtpp, window_of(make_batch(num_windows))
    first = window.times[0], window.marks[0], FUTURE, size

    def ours() -> SolverResult:
        return get_solver("greedy_search").solve(Objective(mtpp, window), AtSize(size))

    calls = [ours, *(partial(plain_greedy, mtpp, *first, as_listed=as_listed) for as_listed in (True, False))]
    batched, listed, same = time_interleaved(calls, repeats).T
    name = f"greedy search, {size} of {HISTORY} events, a window's time"
    slow = "one window and candidate at a time"
    yield summarize(f"{name}: {slow}, as listed / batch {num_windows}", listed * num_windows / batched, ">= 20")
    yield summarize(f"{name}: {slow}, H_l alone / batch {num_windows}", same * num_windows / batched, ">= 20")
    _, plain = plain_greedy(mtpp, *first, as_listed=False)
    apart = abs(plain - float(ours().dppl_left[0]))
    yield summarize("greedy search, difference of dppl_left between these two", [apart], "< 1e-5")


def distiller_answers(distiller: DistillerModel, windows: WindowStore, batch_size: int = 250) -> Answers:
    """The distiller's own masks, and what they are worth."""

    def answer(objective: Objective, rows: slice) -> SolverResult:
        chosen, _ = distiller.distill(objective.window)
        values = objective.dppl_left(chosen), objective.dppl_distilled(chosen)
        return SolverResult(chosen, *values, objective.num_evaluations, torch.ones_like(chosen[:, 0]))

    return answer_windows(answer, objectives(distiller.mtpp, windows, distiller.config.conditioning, batch_size))


def against_distiller(
    repeats: int, distiller: DistillerModel, windows: WindowStore, batch_size: int, words: str
) -> Iterator[Row]:
    """Time of the solvers as a multiple of the distiller's."""
    own = distiller_answers(distiller, windows)
    sizes, left, distilled = (torch.from_numpy(x) for x in (own.sizes, own.dppl_left, own.dppl_distilled))
    rules: dict[str, Callable[[Objective, slice], Rule]] = {
        "EHED": lambda objective, rows: AtSize(sizes[rows]),
        "EMHD": lambda objective, rows: Reaches(left[rows], distilled[rows]),
    }
    questions = [(name, task) for name in ("random_distillation", "greedy_search", "recency") for task in rules]
    calls: list[Callable[[], Any]] = [lambda: distiller_answers(distiller, windows, batch_size)]
    for name, task in questions:
        solve = partial(solver_answers, get_solver(name), distiller.mtpp, windows, rules[task])
        calls.append(partial(solve, batch_size=batch_size))
    seconds = time_interleaved(calls, repeats).T
    setting = f"({windows.future}, {windows.history}), incidents"
    yield summarize(f"distiller, ms per window {setting}, {words}", 1e3 * seconds[0] / len(windows))
    for (name, task), column in zip(questions, seconds[1:], strict=True):
        yield summarize(f"{name}, {task} / distiller {setting}, {words}", column / seconds[0])


def measure(repeats: int, size: int = SIZE, num_windows: int = 128, num_single: int = 4) -> Iterator[Row]:
    yield from against_plain(repeats, size)
    distiller = EHDDistiller.from_pretrained("incidents").model
    events = simulated_splits("incident", {"test": 60})["test"]
    windows = make_windows(events, future=distiller.config.future, history=distiller.config.history)
    windows = windows.select(np.linspace(0, len(windows) - 1, num_windows).astype(int))
    yield from against_distiller(repeats, distiller, windows, num_windows, f"batch {num_windows}")
    few = windows.select(range(num_single))
    yield from against_distiller(repeats, distiller, few, 1, "one window at a time")
