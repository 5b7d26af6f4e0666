"""Rebuilding: the gated recurrence against torch's LSTM and a plain loop, compaction against the looped rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.gated_lstm import GatedHistoryEncoder
from ehd_hf.models.perplexity import log_perplexity
from ehd_hf.models.rebuild import select
from groups import Row, random_windows, summarize, time_interleaved
from groups.distiller import looped_rebuild

HISTORY, FUTURE = 40, 15


def fused_states(encoder: GatedHistoryEncoder, features: Tensor, marks: Tensor) -> Tensor:
    """The states (B, T + 1, D) of a history of which all is kept, by torch's own LSTM."""
    hidden, cell = (state.expand(1, len(marks), -1) for state in (encoder.initial_hidden, encoder.initial_cell))
    inputs = torch.cat([encoder.mark_embedding(marks), features], dim=-1)
    after, _ = encoder.lstm(inputs, (hidden.contiguous(), cell.contiguous()))
    return torch.cat([hidden.transpose(0, 1), after], dim=1)


def looped_states(encoder: GatedHistoryEncoder, features: Tensor, marks: Tensor, keep: Tensor) -> Tensor:
    """The same with gates (B, G) on the first events, event by event, for autograd to go back through."""
    inputs = torch.cat([encoder.mark_embedding(marks), features], dim=-1)
    cell_weights = encoder.lstm.all_weights[0]
    hidden, cell = (state.expand(len(marks), -1) for state in (encoder.initial_hidden, encoder.initial_cell))
    states = [hidden]
    for step in range(inputs.shape[1]):
        new_hidden, new_cell = torch.lstm_cell(inputs[:, step], (hidden, cell), *cell_weights)
        if step < keep.shape[1]:
            gate = keep[:, step, None]
            new_hidden, new_cell = hidden + gate * (new_hidden - hidden), cell + gate * (new_cell - cell)
        hidden, cell = new_hidden, new_cell
        states.append(hidden)
    return torch.stack(states, dim=1)


def with_gradients(states: Callable[..., Tensor], *inputs: Any) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward: to the gates if there are any, to the features otherwise."""
    to = inputs[-1] if inputs[-1] is not None and inputs[-1].is_floating_point() else inputs[0]

    def step() -> tuple[Tensor, ...]:
        leaf = to.detach().requires_grad_()
        return torch.autograd.grad(states(*(leaf if each is to else each for each in inputs)).square().sum(), leaf)

    return step


def select_with_embeddings(
    encoder: GatedHistoryEncoder, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What `looped_rebuild` gives, for all samples and windows at once: times, marks (S B, L), embeddings."""
    samples = len(keep)
    rows = (each.repeat(samples, 1) for each in (times, marks, mask))
    rebuilt, weights = select(*rows, keep.flatten(0, 1))
    return rebuilt.times, rebuilt.marks, encoder.mark_embedding(rebuilt.marks) * weights[..., None]


def measure(repeats: int, size: int = 512, samples: int = 4) -> Iterator[Row]:
    torch.manual_seed(0)
    model = FullyNNModel(FullyNNConfig(num_marks=22)).eval()
    encoder, window = model.encoder, random_windows(HISTORY, FUTURE, size).to(torch.float32)
    features = torch.rand(size, HISTORY + FUTURE, 3)
    hard = (torch.rand(size, HISTORY) > 0.5).float()
    soft = torch.rand(size, HISTORY)

    def fused(features: Tensor, marks: Tensor, keep: None) -> Tensor:
        return fused_states(encoder, features, marks)

    def looped(features: Tensor, marks: Tensor, keep: Tensor) -> Tensor:
        return looped_states(encoder, features, marks, keep)

    with torch.no_grad():
        calls = [lambda: fused(features, window.marks, None), lambda: encoder(features, window.marks, None)]
        theirs, ours = time_interleaved(calls, repeats).T
    yield summarize("recurrence, forward: torch's fused LSTM / ours", theirs / ours)
    calls = [with_gradients(each, features, window.marks, None) for each in (fused, encoder)]
    theirs, ours = time_interleaved(calls, repeats).T
    yield summarize("recurrence, forward and backward: torch's fused LSTM / ours", theirs / ours)
    calls = [with_gradients(each, features, window.marks, soft) for each in (looped, encoder)]
    theirs, gated = time_interleaved(calls, repeats).T
    yield summarize("gradient in the gates: autograd through a loop / ours", theirs / gated)
    keep = (torch.rand(samples, size, HISTORY) > 0.5).float()
    history = window.times[:, :HISTORY], window.marks[:, :HISTORY]
    with torch.no_grad():
        calls = [
            lambda: looped_rebuild(*history, encoder.mark_embedding(history[1]), keep),
            lambda: select_with_embeddings(encoder, *history, window.history, keep),
        ]
        theirs, ours = time_interleaved(calls, repeats).T
        yield summarize(f"rebuild of {samples} masks a window: loop / one sort and gather", theirs / ours)
        rebuilders = ("gate", "select", "compact")
        calls = [lambda name=name: log_perplexity(model, window, hard, rebuilder=name) for name in rebuilders]
        gate, chosen, compact = time_interleaved(calls, repeats).T
    yield summarize("log perplexity of half a history: gate / compaction", gate / compact)
    yield summarize("log perplexity of half a history: the paper's selection / compaction", chosen / compact)
