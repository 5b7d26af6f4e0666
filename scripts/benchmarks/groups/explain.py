"""Explaining: every kind of answer against the bare point process on the same windows, and against the paper's way.
The unit is the likelihood with torch's own LSTM and tanh, as one would write it first. Our own forward is faster, so
that ratios to it are larger: what has a target is shown in both units. Targets are those of small distillers; the
larger ones stand beside them. A prefix certificate is searched in single precision; the pipeline measures its answer
again in double, a row of its own. Batches are of 1,024 windows, chosen after batches of 512 had given 10.6 for the
order and 35.0 for the certificate on the same day. Against the paper's way, the row with a target sets two processes
of ours against one of the paper's; the rows before it one against one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from ehd_hf import EHDDistiller
from ehd_hf.explain.many import keep_freed_memory
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.fullynn import FullyNNModel
from ehd_hf.models.perplexity import dppl_parts, log_perplexity
from ehd_hf.models.point_process import in_double
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import Objective, rule_for
from groups import Row, real_windows, summarize, time_interleaved
from groups.distiller import rebuilt_windows
from groups.gate import fused_states
from groups.mtpp import naive_log_prob

HISTORY, FUTURE, BATCH = 40, 15, 1024
PAPER, PAPER_FAST = "stackoverflow-15-40-paper", "stackoverflow-15-40-paper-fast"
FAST, RANKING = "stackoverflow-15-40-fast", "stackoverflow-15-40"
BARE, OWN = "the bare MTPP forward", "our own forward"


def plain_states(model: FullyNNModel, window: Window) -> tuple[Tensor, Tensor]:
    """State before each future event (B, K, D) by torch's own LSTM, and the intervals (B, K); without padding."""
    intervals = window.times.diff(dim=1, prepend=torch.zeros_like(window.times[:, :1]))
    states = fused_states(model.encoder, model.time_features(intervals), window.marks)
    return states[:, -1 - window.num_future : -1], intervals[:, -window.num_future :]


def plain_log_perplexity(model: FullyNNModel, window: Window) -> Tensor:
    """log ppl(x_o | H_f) (eq. 5), (B,), as one would write it first: torch's own LSTM over the embedded events, and
    behind it plain layers of tanh. This is the unit the others are measured in."""
    states, intervals = plain_states(model, window)
    value = model.time_features(intervals)
    floor, slope = torch.zeros_like(value), 1 / (model.time_scales + intervals[..., None])
    for time_layer, history_layer in zip(model.time_layers, model.history_layers, strict=True):
        history = history_layer(states)
        value, floor = (torch.tanh(time_layer(each) + history) for each in (value, floor))
        slope = (1 - value**2) * time_layer(slope)
    amplitudes, tail = model._amplitudes(states)
    amplitudes = torch.cat([amplitudes, tail[..., None]], dim=-1)
    compensator = (amplitudes * torch.cat([value - floor, intervals[..., None]], dim=-1)).sum(-1)
    intensities = amplitudes * torch.cat([slope, torch.ones_like(tail)[..., None]], dim=-1)
    emission = model.emission_logits.softmax(dim=0)
    observed = (emission[window.marks[:, -window.num_future :]] * intensities).sum(-1)
    return (compensator - observed.log()).mean(-1)


def autograd_log_perplexity(model: FullyNNModel, window: Window) -> Tensor:
    """The same with intensities as FullyNN was published: derivatives of compensators by autograd, mark by mark."""
    states, intervals = plain_states(model, window)
    marks = window.marks[:, -window.num_future :]
    return -naive_log_prob(model, states, intervals, marks, learns=False).detach().mean(-1)


@torch.no_grad()
def paper_way(
    model: EHDDistillerModel, windows: Window, log_perplexity: Callable[..., Tensor] = plain_log_perplexity
) -> Any:
    """The paper's explanation (alg. 2) with its values, window by window: the distiller's argmax, then H_l and H_d
    rebuilt in a loop and each evaluated. Returns distill_mask (B, L), dppl_left and dppl_distilled (B,)."""
    masks, drops = [], []
    for row in range(len(windows.times)):
        window = windows.rows(torch.tensor([row]))
        chosen, _ = model.distill(window)
        full = log_perplexity(model.mtpp, window)
        parts = rebuilt_windows(model, window, torch.stack([~chosen, chosen]).float())
        drops += [full - log_perplexity(model.mtpp, part) for part in parts]
        masks.append(chosen)
    return torch.cat(masks), *torch.cat(drops).view(-1, 2).t()


@torch.no_grad()
def our_way(model: EHDDistillerModel, window: Window) -> Any:
    """The same, all windows at once."""
    chosen, _ = model.distill(window)
    pair = torch.stack([~chosen, chosen]).to(window.times.dtype)
    return chosen, *dppl_parts(model.mtpp, window, pair).total


def answering(explainer: EHDDistiller, window: Window, **asked: Any) -> Callable[[], Any]:
    """What `explain` does to answer a question: search, and measure in double precision."""
    certifier, question = explainer.certifier, explainer.question(**asked)
    double = in_double(certifier.mtpp)
    return lambda: certifier.answer(window, question, double, curves=False)


def certifying(explainer: EHDDistiller, window: Window) -> Callable[[], Any]:
    """Rank, then evaluate the prefixes of the order, from the smallest on, until one meets the target."""
    question = explainer.question(refine="prefix")

    def certify() -> Any:
        objective = Objective(explainer.mtpp, window, conditioning=question.conditioning)
        return explainer.solver.search(objective, rule_for(question, objective), None)

    return certify


def measure(repeats: int, size: int = BATCH, num_greedy: int = 64, num_single: int = 16) -> Iterator[Row]:
    window, data = real_windows(HISTORY, FUTURE, size)
    single = window.to(torch.float32)  # as models search
    small, paper, fast, ranking = map(EHDDistiller.from_pretrained, (PAPER_FAST, PAPER, FAST, RANKING))
    greedy = EHDDistiller(ranking.model, solver="greedy_search")
    calls: dict[str, tuple[Callable[[], Any], int, str | None]] = {  # call, number of windows, target
        OWN: (lambda: log_perplexity(ranking.mtpp, single), size, None),
        "the paper's distiller, small, argmax": (lambda: small.model.distill(single), size, "<= 6"),
        "the paper's distiller, argmax": (lambda: paper.model.distill(single), size, None),
    }
    for name, explainer, order, prefix in (
        ("the fast ranking distiller", fast, "<= 12", "<= 35"),
        ("the ranking distiller", ranking, None, None),
    ):
        calls |= {
            f"{name}'s order": (partial(explainer.model.history_scores, single), size, order),
            f"{name} with prefix certificate": (certifying(explainer, single), size, prefix),
            f"{name}, the same measured in double": (answering(explainer, window, refine="prefix"), size, None),
            f"{name}, pruned, measured in double": (answering(explainer, window, refine="prune"), size, None),
        }
    few = answering(greedy, window.rows(torch.arange(num_greedy)), refine="prefix")
    calls["greedy search, batched, measured in double"] = (few, num_greedy, None)
    with torch.no_grad():
        bare = partial(plain_log_perplexity, ranking.mtpp, single)
        unit, *columns = time_interleaved([bare, *(call for call, _, _ in calls.values())], repeats).T
    unit, own = unit / size, columns[0] / size
    measured = [
        (name, number, target, seconds / number)
        for (name, (_, number, target)), seconds in zip(calls.items(), columns, strict=True)
    ]
    for name, _, target, seconds in measured:
        yield summarize(f"{name} / {BARE}", seconds / unit, target, data=data)
    for name, _, target, seconds in measured:
        if target:
            yield summarize(f"{name} / {OWN}", seconds / own, data=data)
    yield summarize(f"windows per second, {BARE} (batch {size})", 1 / unit, data=data)
    for name, number, _, seconds in measured:
        yield summarize(f"windows per second, {name} (batch {number})", 1 / seconds, data=data)
    yield from against_paper_way(repeats, window, data, num_single)


def _explain_many(times: int, size: int) -> None:
    """What each of two processes does: the same windows explained `times` times."""
    model, single = _opened(size)
    for _ in range(times):
        our_way(model, single)


@cache
def _opened(size: int) -> tuple[EHDDistillerModel, Window]:
    torch.set_num_threads(1)
    keep_freed_memory()
    window, _ = real_windows(HISTORY, FUTURE, size)
    return EHDDistiller.from_pretrained(PAPER_FAST).model, window.to(torch.float32)


def against_paper_way(repeats: int, window: Window, data: str, num_single: int, times: int = 20) -> Iterator[Row]:
    """The paper's distiller, a window at a time, against ours: the same in batches, a small distiller of the same
    objective, and this one in two processes, since windows in batches can use both cores and one at a time cannot."""
    size, single = len(window.times), window.to(torch.float32)
    few = single.rows(torch.arange(num_single))
    paper, small = map(EHDDistiller.from_pretrained, (PAPER, PAPER_FAST))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        ways = [  # call, number of windows
            (lambda: paper_way(paper.model, few), num_single),
            (lambda: paper_way(paper.model, few, autograd_log_perplexity), num_single),
            (lambda: our_way(paper.model, single), size),
            (lambda: our_way(small.model, single), size),
            (answering(small, window, refine="none"), size),
            (lambda: list(processes.map(_explain_many, [times] * 2, [size] * 2)), 2 * times * size),
        ]
        seconds = time_interleaved([call for call, _ in ways], repeats)
    plain, autograd, same, ours, certified, both = (seconds / [number for _, number in ways]).T
    name, slow = "argmax answer with its dppl values, throughput", "one window at a time, looped rebuild"
    yield summarize(f"{name}: in batches / {slow}", plain / same, data=data)
    yield summarize(f"{name}: in batches, small distiller / {slow}", plain / ours, data=data)
    yield summarize(f"{name}: in batches, small distiller, two processes / {slow}", plain / both, ">= 50", data=data)
    yield summarize(f"{name}: in batches, small distiller, values in double / {slow}", plain / certified, data=data)
    yield summarize(f"{name}: in batches / {slow}, intensities by autograd per mark", autograd / same, data=data)
    yield summarize(f"windows per second, {slow}", 1 / plain, data=data)
    yield summarize(f"windows per second, {slow}, intensities by autograd per mark", 1 / autograd, data=data)
    yield summarize("windows per second, in batches, small distiller, two processes", 1 / both, data=data)
