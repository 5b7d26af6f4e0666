"""The gated recurrent history encoder: one LSTM step per kept event.

The skip gate decides how far a step counts: `state + keep * (step(state, event) - state)`, and the time of the last
kept event is carried by the same gate. At keep in {0, 1} this is exactly the LSTM over the kept events alone; in
between it is differentiable, and events that are left out receive gradients too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gate_padding(keep: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Gates that also skip padding standing before an event; None if every event is simply kept.

    Padding after the last event needs no gate, since nothing follows it.
    """
    holes = (mask[:, 1:] & ~mask[:, :-1]).any(dim=0).nonzero()
    gated = 0 if keep is None else keep.shape[1]
    length = max(gated, int(holes[-1]) + 1 if len(holes) else 0)
    if length == 0:
        return None
    gates = mask[:, :length].to(dtype)
    if keep is None:
        return gates
    return torch.cat([keep.to(dtype) * gates[:, :gated], gates[:, gated:]], dim=1)


def last_kept_times(times: Tensor, keep: Tensor | None) -> Tensor:
    """Time of the last kept event before each event and after all (B, T + 1); the clock's origin, 0, before any.

    Args:
        times: (B, T).
        keep: (B, G) in [0, 1] for the first G events, the rest is kept; in between, the time moves part of the way.
    """
    gated = 0 if keep is None else keep.shape[1]
    last = times.new_zeros(len(times), 1)
    lasts = [last]
    if keep is not None:
        for time, gate in zip(times[:, :gated].split(1, dim=1), keep.split(1, dim=1), strict=True):
            last = torch.lerp(last, time, gate)
            lasts.append(last)
    return torch.cat([*lasts, times[:, gated:]], dim=1)


def _gated_span(keep: Tensor) -> tuple[int, int]:
    """First and last (exclusive) position whose gate matters: it is not 1 for some row, or its gradient is wanted."""
    if keep.requires_grad:
        return 0, keep.shape[1]
    positions = (keep != 1).any(dim=0).nonzero()
    return (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)


class GatedHistoryEncoder(nn.Module):
    """LSTM over (mark embedding, time features), with a gate per event.

    Args:
        num_marks: C.
        embedding_size: width of the mark embedding.
        num_time_features: how many numbers describe an interval.
        hidden_size: width D of the history state.
    """

    def __init__(self, num_marks: int, embedding_size: int, num_time_features: int, hidden_size: int) -> None:
        super().__init__()
        self.mark_embedding = nn.Embedding(num_marks, embedding_size)
        self.lstm = nn.LSTM(embedding_size + num_time_features, hidden_size, batch_first=True)
        self.initial_hidden = nn.Parameter(torch.zeros(hidden_size))
        self.initial_cell = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self, time_features: Tensor, marks: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> Tensor:
        """History state before each event and after all: (B, T + 1, D).

        Args:
            time_features: (B, T, F), of the interval since the last kept event.
            marks: (B, T).
            keep: (B, G) in [0, 1] for the first G events, the rest is kept; None if every event is.
            mark_weights: (B, T), factors of the mark embeddings.
        """
        embedded = self.mark_embedding(marks)
        if mark_weights is not None:
            embedded = embedded * mark_weights[..., None]
        inputs = torch.cat([embedded, time_features], dim=-1)
        hidden = self.initial_hidden.expand(len(marks), -1)
        cell = self.initial_cell.expand(len(marks), -1)
        # Before and after the span of events that are not simply kept, the fused LSTM does the same work faster.
        first, last = _gated_span(keep) if keep is not None else (0, 0)
        pieces = [hidden[:, None]]
        for span, gates in ((slice(0, first), None), (slice(first, last), keep), (slice(last, None), None)):
            if inputs[:, span].shape[1] == 0:
                continue
            if gates is None:
                states, hidden, cell = self._fused(inputs[:, span], hidden, cell)
            else:
                states, hidden, cell = self._gated(inputs[:, span], gates[:, span], hidden, cell)
            pieces.append(states)
        return torch.cat(pieces, dim=1)

    def _fused(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, (hidden, cell) = self.lstm(inputs, (hidden[None].contiguous(), cell[None].contiguous()))
        return states, hidden[0], cell[0]

    def _gated(self, inputs: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same LSTM, step by step, each step weighted by its gate."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.all_weights[0]
        projected = nn.functional.linear(inputs, input_weight, input_bias + hidden_bias)
        hidden_weight_t = hidden_weight.t()
        states = []
        for step, gate in zip(projected.unbind(1), keep.unsqueeze(-1).unbind(1), strict=True):
            take, forget, candidate, output = torch.addmm(step, hidden, hidden_weight_t).chunk(4, dim=1)
            new_cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(candidate)
            new_hidden = torch.sigmoid(output) * torch.tanh(new_cell)
            hidden, cell = torch.lerp(hidden, new_hidden, gate), torch.lerp(cell, new_cell, gate)
            states.append(hidden)
        return torch.stack(states, dim=1), hidden, cell
