"""The point process: its likelihood against autograd per mark, and what more marks cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from groups import Row, summarize, time_interleaved


def naive_log_prob(
    model: FullyNNModel, states: Tensor, intervals: Tensor, marks: Tensor, *, learns: bool = True
) -> Tensor:
    """log p of events (B, T) after `intervals` (B, T), as one would write it first: every mark's compensator is an
    output of the monotone network, and its intensity one more call of autograd, differentiable if it `learns`."""
    with torch.enable_grad():
        intervals = intervals.detach().requires_grad_()
        value = model.time_features(intervals)
        floor = torch.zeros_like(value)
        for time_layer, history_layer in zip(model.time_layers, model.history_layers, strict=True):
            history = history_layer(states)
            value, floor = (torch.tanh(time_layer(inputs) + history) for inputs in (value, floor))
        rise = torch.cat([value - floor, intervals[..., None]], dim=-1)
        amplitudes, tail = model._amplitudes(states)
        amplitudes = torch.cat([amplitudes, tail[..., None]], dim=-1)
        compensators = F.linear(amplitudes * rise, model.emission_logits.softmax(dim=0))  # (B, T, C)
        intensities = [
            torch.autograd.grad(compensator.sum(), intervals, create_graph=learns, retain_graph=True)[0]
            for compensator in compensators.unbind(-1)
        ]
        observed = torch.stack(intensities, dim=-1).gather(-1, marks[..., None])[..., 0]
        return observed.log() - compensators.sum(-1)


def naive_loss(model: FullyNNModel, times: Tensor, marks: Tensor, mask: Tensor) -> Tensor:
    """The negative log-likelihood of `model.forward` by `naive_log_prob`."""
    states, last_times = model.encode_history(times, marks, mask, None)
    intervals = (times - last_times[:, :-1]).clamp(min=0)
    log_prob = naive_log_prob(model, states[:, :-1], intervals, marks).masked_fill(~mask, 0.0)
    return -log_prob.sum() / mask.sum()


def make_step(num_marks: int, batch_size: int, length: int, *, naive: bool = False) -> Callable[[], float]:
    """Forward and backward of a default FullyNN on one batch of random events; gives the loss."""
    torch.manual_seed(0)
    model = FullyNNModel(FullyNNConfig(num_marks=num_marks))
    times = torch.rand(batch_size, length).cumsum(1)
    marks = torch.randint(num_marks, (batch_size, length))
    mask = torch.ones(batch_size, length, dtype=torch.bool)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = naive_loss(model, times, marks, mask) if naive else model(times, marks, mask).loss
        loss.backward()
        return float(loss.detach())

    return step


def against_naive(repeats: int, num_marks: int, target: str, batch_size: int = 32, length: int = 64) -> Row:
    """How many times faster a training step is than with one autograd call per mark."""
    steps = [make_step(num_marks, batch_size, length, naive=naive) for naive in (False, True)]
    ours, naive = time_interleaved(steps, repeats).T
    return summarize(f"step, {num_marks} marks: autograd per mark / ours", naive / ours, target)


def against_marks(
    repeats: int, num_marks: Sequence[int] = (3, 22, 200, 1000, 5000), batch_size: int = 32, length: int = 64
) -> Iterator[Row]:
    """Cost of a training step relative to the fewest marks."""
    seconds = time_interleaved([make_step(count, batch_size, length) for count in num_marks], repeats)
    for count, column in zip(num_marks[1:], seconds.T[1:], strict=True):
        target = "<= 2" if count == 200 else None
        yield summarize(f"step: {count:,} marks / {num_marks[0]} marks", column / seconds[:, 0], target)


def measure(repeats: int) -> Iterator[Row]:
    yield against_naive(repeats, 22, ">= 3")
    yield against_naive(repeats, 200, ">= 20")
    yield from against_marks(repeats)
