"""Explaining: every kind of answer against the bare point process on the same windows, and against the paper's way.
The unit is the likelihood with torch's own LSTM and tanh, as one would write it first. Our own forward is faster, so
that ratios to it are larger: what has a target is shown in both units. Targets are those of small distillers; the
larger ones stand beside them. A prefix certificate is searched in single precision; the pipeline measures its answer
again in double, a row of its own. Batches are of 1,024 windows, chosen after batches of 512 had given 10.6 for the
order and 35.0 for the certificate on the same day. Against the paper's way, the row with a target sets two processes
of ours against one of the paper's; the rows before it one against one.
"""

from __future__ import annotations

import copy
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
from ehd_hf.models.fullynn import _LARGEST_LOG_AMPLITUDE, _SMALLEST_TAIL, FullyNNModel
from ehd_hf.models.perplexity import dppl_parts, log_perplexity
from ehd_hf.solvers.base import Explains, Objective
from groups import Row, Window, real_windows, summarize, time_interleaved
from groups.distiller import looped_rebuild
from groups.gate import fused_states
from groups.mtpp import naive_log_prob

HISTORY, FUTURE, BATCH = 40, 15, 1024
PAPER, PAPER_FAST = "stackoverflow-15-40-paper", "stackoverflow-15-40-paper-fast"
FAST, RANKING = "stackoverflow-15-40-fast", "stackoverflow-15-40"
BARE, OWN = "the bare MTPP forward", "our own forward"


def plain_states(model: FullyNNModel, times: Tensor, marks: Tensor, num_future: int) -> tuple[Tensor, Tensor]:
    """State before each future event (B, K, D) by torch's own LSTM, and the intervals (B, K); without padding."""
    intervals = times.diff(dim=1, prepend=torch.zeros_like(times[:, :1]))
    states = fused_states(model.encoder, torch.log1p(intervals[..., None] / model.time_scales), marks)
    return states[:, -1 - num_future : -1], intervals[:, -num_future:]


def plain_log_perplexity(model: FullyNNModel, times: Tensor, marks: Tensor, num_future: int) -> Tensor:
    """log ppl(x_o | H_f) (eq. 5), (B,), as one would write it first: torch's own LSTM over the embedded events, and
    behind it plain layers of tanh. This is the unit the others are measured in."""
    states, intervals = plain_states(model, times, marks, num_future)
    value = torch.log1p(intervals[..., None] / model.time_scales)
    floor, slope = torch.zeros_like(value), 1 / (model.time_scales + intervals[..., None])
    for time_layer, history_layer in zip(model.time_layers, model.history_layers, strict=True):
        history = history_layer(states)
        value, floor = (torch.tanh(time_layer(each) + history) for each in (value, floor))
        slope = (1 - value**2) * time_layer(slope)
    line = intervals[..., None] / model.mean_interval
    amplitudes = model.amplitude(states).clamp(max=_LARGEST_LOG_AMPLITUDE).exp()
    amplitudes[..., -1] += _SMALLEST_TAIL
    compensator = (amplitudes * torch.cat([value - floor, line], dim=-1)).sum(-1)
    intensities = amplitudes * torch.cat([slope, torch.ones_like(line) / model.mean_interval], dim=-1)
    emission = model.emission_logits.softmax(dim=0)
    observed = (emission[marks[:, -num_future:]] * intensities).sum(-1)
    return (compensator - observed.log()).mean(-1)


def autograd_log_perplexity(model: FullyNNModel, times: Tensor, marks: Tensor, num_future: int) -> Tensor:
    """The same with intensities as FullyNN was published: derivatives of compensators by autograd, mark by mark."""
    states, intervals = plain_states(model, times, marks, num_future)
    return -naive_log_prob(model, states, intervals, marks[:, -num_future:], learns=False).detach().mean(-1)


@torch.no_grad()
def paper_way(
    model: EHDDistillerModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    log_perplexity: Callable[..., Tensor] = plain_log_perplexity,
) -> Any:
    """The paper's explanation (alg. 2) with its values, window by window: the distiller's argmax, then H_l and H_d
    rebuilt in a loop and each evaluated. Returns distill_mask (B, L), dppl_left and dppl_distilled (B,)."""
    num_history = times.shape[1] - num_future
    masks, drops = [], []
    for row in range(len(times)):
        window = tuple(each[row : row + 1] for each in (times, marks, mask))
        chosen, _ = model.distill(*window, num_future)
        keep = torch.stack([~chosen, chosen]).float()  # (2, 1, L)
        history = times[row : row + 1, :num_history], marks[row : row + 1, :num_history]
        embeddings = model.mtpp.encoder.mark_embedding(history[1])
        intervals, kept_marks, _ = looped_rebuild(*history, embeddings, keep)
        full = log_perplexity(model.mtpp, *window[:2], num_future)
        for part in range(2):
            count = int(keep[part].sum())
            rebuilt_times = torch.cat([intervals[part, :, :count].cumsum(-1), window[0][:, num_history:]], 1)
            rebuilt_marks = torch.cat([kept_marks[part, :, :count], window[1][:, num_history:]], 1)
            drops.append(full - log_perplexity(model.mtpp, rebuilt_times, rebuilt_marks, num_future))
        masks.append(chosen)
    return torch.cat(masks), *torch.cat(drops).view(-1, 2).t()


@torch.no_grad()
def our_way(model: EHDDistillerModel, times: Tensor, marks: Tensor, mask: Tensor, num_future: int) -> Any:
    """The same, all windows at once."""
    window = (times, marks, mask, num_future)
    chosen, _ = model.distill(*window)
    pair = torch.stack([~chosen, chosen]).to(times.dtype)
    return chosen, *dppl_parts(model.mtpp, *window, pair).total


def answering(explainer: EHDDistiller, window: Window, **question: Any) -> Callable[[], Any]:
    """What the pipeline does to answer a question: search, and measure in double precision."""
    double = copy.deepcopy(explainer.mtpp).double()
    asked = explainer._question(*(question.get(name) for name in ("epsilon", "share", "size", "delta", "refine")))
    return lambda: explainer._answer(*window, asked, double, curves=False)


def certifying(explainer: EHDDistiller, single: Window) -> Callable[[], Any]:
    """Rank, then evaluate the prefixes of the order, from the smallest on, until one meets the target."""

    def certify() -> Any:
        objective = Objective(explainer.mtpp, *single, conditioning=explainer.conditioning)
        rule = Explains(epsilon=explainer.epsilon, share=explainer.share).bind(objective)
        return explainer.solver.search(objective, rule, None)

    return certify


def few_of(window: Window, number: int) -> Window:
    times, marks, mask, num_future = window
    return times[:number], marks[:number], mask[:number], num_future


def measure(repeats: int, size: int = BATCH, num_greedy: int = 64, num_single: int = 16) -> Iterator[Row]:
    window, data = real_windows(HISTORY, FUTURE, size)
    single = (window[0].float(), *window[1:])  # in single precision, as models search
    names = (PAPER_FAST, PAPER, FAST, RANKING)
    small, paper, fast, ranking = (EHDDistiller.from_pretrained(name) for name in names)
    greedy = EHDDistiller(ranking.model, solver="greedy_search")
    calls: dict[str, tuple[Callable[[], Any], int, str | None]] = {  # what, number of windows, target
        OWN: (lambda: log_perplexity(ranking.mtpp, *single), size, None),
        "the paper's distiller, small, argmax": (lambda: small.model.distill(*single), size, "<= 6"),
        "the paper's distiller, argmax": (lambda: paper.model.distill(*single), size, None),
    }
    for name, explainer, order, prefix in (
        ("the fast ranking distiller", fast, "<= 12", "<= 35"),
        ("the ranking distiller", ranking, None, None),
    ):
        scores = partial(explainer.model.history_scores, *single)
        calls |= {
            f"{name}'s order": (scores, size, order),
            f"{name} with prefix certificate": (certifying(explainer, single), size, prefix),
            f"{name}, the same measured in double": (answering(explainer, window, refine="prefix"), size, None),
            f"{name}, bisected, measured in double": (answering(explainer, window, refine="bisect"), size, None),
            f"{name}, pruned, measured in double": (answering(explainer, window, refine="prune"), size, None),
        }
    few = answering(greedy, few_of(window, num_greedy), refine="prefix")
    calls["greedy search, batched, measured in double"] = (few, num_greedy, None)
    mtpp = ranking.mtpp
    assert isinstance(mtpp, FullyNNModel)
    with torch.no_grad():
        bare, *columns = time_interleaved(
            [
                lambda: plain_log_perplexity(mtpp, single[0], single[1], FUTURE),
                *(call for call, _, _ in calls.values()),
            ],
            repeats,
        ).T
    for (name, (_, number, target)), seconds in zip(calls.items(), columns, strict=True):
        yield summarize(f"{name} / {BARE}", (seconds / number) / (bare / size), target, data=data)
    for (name, (_, number, target)), seconds in zip(calls.items(), columns, strict=True):
        if target:
            yield summarize(f"{name} / {OWN}", (seconds / number) / (columns[0] / size), data=data)
    yield summarize(f"windows per second, {BARE} (batch {size})", size / bare, data=data)
    for (name, (_, number, _)), seconds in zip(calls.items(), columns, strict=True):
        yield summarize(f"windows per second, {name} (batch {number})", number / seconds, data=data)
    yield from against_paper_way(repeats, window, data, num_single)


def _explain_many(times: int, size: int) -> None:
    """What each of two processes does: the same windows explained `times` times."""
    model, single = _opened(size)
    for _ in range(times):
        our_way(model, *single)


@cache
def _opened(size: int) -> tuple[EHDDistillerModel, Window]:
    torch.set_num_threads(1)
    keep_freed_memory()
    window, _ = real_windows(HISTORY, FUTURE, size)
    return EHDDistiller.from_pretrained(PAPER_FAST).model, (window[0].float(), *window[1:])


def against_paper_way(repeats: int, window: Window, data: str, num_single: int, times: int = 20) -> Iterator[Row]:
    """The paper's distiller, a window at a time, against ours: the same in batches, a small distiller of the same
    objective, and this one in two processes, since windows in batches can use both cores and one at a time cannot."""
    size = len(window[0])
    single = (window[0].float(), *window[1:])
    some = few_of(single, num_single)
    paper, small = (EHDDistiller.from_pretrained(name) for name in (PAPER, PAPER_FAST))
    ways = [
        lambda: paper_way(paper.model, *some),
        lambda: paper_way(paper.model, *some, autograd_log_perplexity),
        lambda: our_way(paper.model, *single),
        lambda: our_way(small.model, *single),
        answering(small, window, refine="none"),
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:

        def in_two() -> None:
            list(processes.map(_explain_many, [times, times], [size, size]))

        ways.append(in_two)
        seconds = time_interleaved(ways, repeats)
    plain, autograd, same, ours, certified, both = (
        seconds / [num_single, num_single, size, size, size, 2 * times * size]
    ).T
    name, slow = "argmax answer with its dppl values, throughput", "one window at a time, looped rebuild"
    yield summarize(f"{name}: in batches / {slow}", plain / same, data=data)
    yield summarize(f"{name}: in batches, small distiller / {slow}", plain / ours, data=data)
    yield summarize(f"{name}: in batches, small distiller, two processes / {slow}", plain / both, ">= 50", data=data)
    yield summarize(f"{name}: in batches, small distiller, values in double / {slow}", plain / certified, data=data)
    yield summarize(f"{name}: in batches / {slow}, intensities by autograd per mark", autograd / same, data=data)
    yield summarize(f"windows per second, {slow}", 1 / plain, data=data)
    yield summarize(f"windows per second, {slow}, intensities by autograd per mark", 1 / autograd, data=data)
    yield summarize("windows per second, in batches, small distiller, two processes", 1 / both, data=data)
