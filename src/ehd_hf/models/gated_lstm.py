# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""The gated recurrent history encoder, one LSTM step per kept event, and what the backbones on it share.

The skip gate decides how far a step counts: `state + keep * (step(state, event) - state)`, and the time of the last
kept event is carried by the same gate. At keep in {0, 1} this is exactly the LSTM over the kept events alone; in
between it is differentiable, and events that are left out receive gradients too.
"""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .point_process import MTPPConfig, MTPPModel, Past
from .recent_marks import RecentMarks, gates_of

# Quantiles of the training intervals at which the logarithmic time features bend.
_SCALE_QUANTILES = (0.05, 0.25, 0.75)
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


def gate_padding(keep: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Gates that also skip padding before an event; None if every event is kept. Padding at the end needs none."""
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
    `keep` (B, G) in [0, 1] gates the first G of the `times` (B, T); in between, the time moves part of the way."""
    gated = 0 if keep is None else keep.shape[1]
    last = times.new_zeros(len(times), 1)
    lasts = [last]
    if keep is not None:
        for time, gate in zip(times[:, :gated].split(1, dim=1), keep.split(1, dim=1), strict=True):
            last = torch.lerp(last, time, gate)
            lasts.append(last)
    return torch.cat([*lasts, times[:, gated:]], dim=1)


class GatedHistoryEncoder(nn.Module):
    """LSTM over (mark embedding, time features), with a gate per event."""

    def __init__(self, num_marks: int, embedding_size: int, num_time_features: int, hidden_size: int) -> None:
        super().__init__()
        self.mark_embedding = nn.Embedding(num_marks, embedding_size)
        # Holds the weights under the names everyone knows; `_GatedLSTM` does its work.
        self.lstm = nn.LSTM(embedding_size + num_time_features, hidden_size, batch_first=True)
        self.initial_hidden = nn.Parameter(torch.zeros(hidden_size))
        self.initial_cell = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self, time_features: Tensor, marks: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> Tensor:
        """History state before each event and after all: (B, T + 1, D). `time_features` (B, T, F) are those of the
        interval since the last kept event; `keep` (B, G) as in `last_kept_times`, None if every event is kept."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.all_weights[0]
        embeddings = self.mark_embedding.weight
        if len(embeddings) > marks.numel():  # of many marks, those that occur
            occurring, marks = marks.unique(return_inverse=True)
            embeddings = embeddings[occurring]
        # A mark contributes one table row, the same for every mask of a window. Clone the weights: results must not
        # depend on memory alignment.
        by_mark = embeddings.clone() @ input_weight[:, : embeddings.shape[1]].t().contiguous()  # (C, 4D)
        by_feature = torch.cat([input_weight[:, embeddings.shape[1] :].t(), (input_bias + hidden_bias)[None]])
        initial: tuple[Tensor, Tensor] = (self.initial_hidden, self.initial_cell)
        if not torch.is_grad_enabled():  # views of parameters would ask for gradients, and every step be remembered
            initial = (self.initial_hidden.detach(), self.initial_cell.detach())
        states = _GatedLSTM.apply(
            _for_sigmoids(by_mark),
            marks.t(),
            None if mark_weights is None else mark_weights.t().contiguous(),
            nn.functional.pad(time_features, (0, 1), value=1.0).transpose(0, 1),  # a constant feature for the bias
            _for_sigmoids(by_feature),
            _for_sigmoids(hidden_weight.t()),
            None if keep is None else keep.t().contiguous(),
            *(value.expand(len(marks), -1) for value in initial),
        )
        return states.transpose(0, 1)

    def step(self, hidden: Tensor, cell: Tensor, features: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        """State and cell (R, D) after one more event of `marks` (R,), features (R, F) of the interval before it."""
        inputs = torch.cat([self.mark_embedding(marks), features], dim=-1)
        return torch.lstm_cell(inputs, (hidden, cell), *self.lstm.all_weights[0])

    def without_each(self, features: Tensor, skipping: Tensor, marks: Tensor, mask: Tensor) -> Tensor:
        """State after all events, then after all but each one: (1 + T, B, D). A deletion only touches what follows it:
        every step serves the whole and the deletions before it. `features` (B, T, F) are of the intervals since the
        event before, `skipping` of those since the one before that. No gradients; padding stands in front."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.all_weights[0]
        size = self.mark_embedding.embedding_dim
        by_mark = _for_sigmoids(self.mark_embedding.weight @ input_weight[:, :size].t())[marks]  # (B, T, 4D)
        by_feature = _for_sigmoids(torch.cat([input_weight[:, size:].t(), (input_bias + hidden_bias)[None]]))
        by_state = _for_sigmoids(hidden_weight.t())
        drive, detour = (by_mark + nn.functional.pad(x, (0, 1), value=1.0) @ by_feature for x in (features, skipping))
        shape = marks.shape[1] + 1, len(marks), len(by_state)
        hidden, cell = (start.expand(shape).clone() for start in (self.initial_hidden, self.initial_cell))
        gates = drive.new_empty(shape[0], len(marks), 4 * len(by_state))
        is_padded = not bool(mask.all())
        for step in range(marks.shape[1]):
            # The whole, then the deletions of events 0 .. step - 1; what stands before this step is its own deletion.
            hidden[step + 1], cell[step + 1] = hidden[0], cell[0]
            state, memory, gate = hidden[: step + 1], cell[: step + 1], gates[: step + 1]
            torch.matmul(state, by_state, out=gate)
            gate += drive[:, step]
            if step:
                gate[step] += detour[:, step] - drive[:, step]
            take, forget, candidate, output = gate.sigmoid_().chunk(4, dim=2)
            memory.mul_(forget).addcmul_(take, candidate, value=-2).add_(take)
            torch.sigmoid(-2 * memory, out=state)
            state.mul_(-2).add_(1).mul_(output)
            if is_padded:  # in front: nothing has happened yet
                state[:, ~mask[:, step]], memory[:, ~mask[:, step]] = self.initial_hidden, self.initial_cell
        return hidden


def _for_sigmoids(weight: Tensor) -> Tensor:
    """LSTM weights (..., 4D) with the candidate's part times -2: tanh(x) is 1 - 2 sigmoid(-2x), so that one sigmoid
    serves all four gates. On a CPU it takes a fifth of the time of a tanh."""
    factor = weight.new_ones(4, weight.shape[-1] // 4)
    factor[2] = -2.0
    return (weight * factor.view(-1)).contiguous()


class _GatedLSTM(torch.autograd.Function):
    """The recurrence, time first, with its gradients written out: a fraction of the time of autograd through a loop,
    and less than that of the fused LSTM of torch.

    Args of `forward`:
        by_mark: (C, 4D), what a mark adds to the gates; `marks` (T, B), `mark_weights` (T, B) or None.
        features: (T, B, F); `by_feature` (F, 4D), what they add.
        by_state: (D, 4D), what the state adds.
        keep: (G, B) or None.
        hidden, cell: (B, D), the initial state.

    Returns the states (T + 1, B, D). In a step, with `candidate` and `squashed` = sigmoid(-2 new_cell) below one half
    where tanh is positive:

        new_cell   = forget * cell + take * (1 - 2 candidate)
        new_hidden = output * (1 - 2 squashed)
    """

    @staticmethod
    def forward(
        ctx: Any,
        by_mark: Tensor,
        marks: Tensor,
        mark_weights: Tensor | None,
        features: Tensor,
        by_feature: Tensor,
        by_state: Tensor,
        keep: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
    ) -> Tensor:
        num_steps, num_gated = len(marks), 0 if keep is None else len(keep)
        learns = any(ctx.needs_input_grad)
        memory = num_steps if learns else 1  # without a backward pass every step writes over the one before
        states = hidden.new_empty(num_steps + 1, *hidden.shape)
        cells = cell.new_empty(memory + 1 if learns else 1, *cell.shape)
        gates = by_mark.new_empty(memory, len(hidden), by_mark.shape[1])
        squashed = cell.new_empty(memory, *cell.shape)
        moves = cell.new_empty(2, num_gated if learns else 0, *cell.shape)  # new - old, of state and cell
        states[0], cells[0] = hidden, cell
        kept_hidden, kept_cell = torch.empty_like(cell), torch.empty_like(cell)
        # All views are made at once: one by one they would cost as much as the arithmetic of a small batch.
        rows, parts, squashes = _steps(gates, num_steps), _parts(gates, num_steps), _steps(squashed, num_steps)
        hiddens, olds = states.unbind(0), _steps(cells, num_steps)
        news = olds[1:] if learns else olds
        inputs, kinds = features.contiguous().unbind(0), marks.contiguous().unbind(0)
        skips = () if keep is None else keep[..., None].unbind(0)
        for step in range(num_steps):
            row, squash, (take, forget, candidate, output) = rows[step], squashes[step], parts[step]
            torch.index_select(by_mark, 0, kinds[step], out=row)
            if mark_weights is not None:
                row.mul_(mark_weights[step, :, None])
            row.addmm_(inputs[step], by_feature).addmm_(hiddens[step], by_state).sigmoid_()
            is_gated = step < num_gated
            new_hidden, new_cell = (kept_hidden, kept_cell) if is_gated else (hiddens[step + 1], news[step])
            torch.mul(olds[step], forget, out=new_cell).addcmul_(take, candidate, value=-2).add_(take)
            torch.mul(new_cell, -2, out=squash).sigmoid_()
            torch.addcmul(output, output, squash, value=-2, out=new_hidden)
            if is_gated:
                if learns:
                    torch.sub(new_hidden, hiddens[step], out=moves[0, step])
                    torch.sub(new_cell, olds[step], out=moves[1, step])
                torch.lerp(hiddens[step], new_hidden, skips[step], out=hiddens[step + 1])
                torch.lerp(olds[step], new_cell, skips[step], out=news[step])
        if learns:
            weights = (by_mark, mark_weights, by_feature, by_state)
            ctx.save_for_backward(marks, features, keep, states, cells, gates, squashed, moves, *weights)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> Any:
        marks, features, keep, states, cells, gates, squashed, moves, *weights = ctx.saved_tensors
        by_mark, mark_weights, by_feature, by_state = weights
        inputs = (by_mark, None, mark_weights, features, by_feature, by_state, keep)
        of_mark, _, of_weights, of_features, of_feature, of_state, of_keep = (
            torch.zeros_like(value) if wanted and value is not None else None
            for value, wanted in zip(inputs, ctx.needs_input_grad, strict=False)
        )
        num_steps, num_gated, width = len(marks), moves.shape[1], states.shape[2]
        # One product for state and features: a narrow one of its own would cost as much again.
        back = torch.cat([by_state, by_feature]).t().contiguous()
        of_inputs = states.new_empty(states.shape[1], back.shape[1])
        through_state, through_features = of_inputs.split([width, back.shape[1] - width], dim=1)
        of_hidden, of_cell = grad_states[-1].clone(), torch.zeros_like(cells[0])
        of_gates, slope = gates.new_empty(gates.shape[1:]), torch.empty_like(of_cell)  # gates[0] may not be there
        of_take, of_forget, of_candidate, of_output = of_gates.chunk(4, dim=1)
        rows, parts, squashes = _steps(gates, num_steps), _parts(gates, num_steps), _steps(squashed, num_steps)
        olds, arriving = cells.unbind(0), grad_states.unbind(0)
        skips = () if keep is None else keep[..., None].unbind(0)
        for step in range(num_steps - 1, -1, -1):
            take, forget, candidate, output = parts[step]
            passed_hidden = passed_cell = None
            if step < num_gated:
                if of_keep is not None:
                    torch.mul(moves[0, step], of_hidden, out=slope).addcmul_(moves[1, step], of_cell)
                    torch.sum(slope, dim=1, out=of_keep[step])
                passed_hidden, passed_cell = of_hidden, of_cell
                of_hidden, of_cell = of_hidden * skips[step], of_cell * skips[step]
                passed_hidden.sub_(of_hidden)
                passed_cell.sub_(of_cell)
            torch.mul(of_hidden, output, out=slope)
            sigmoid_backward(slope, squashes[step], grad_input=slope)
            of_cell.add_(slope, alpha=4)  # the derivative of tanh is 4 squashed (1 - squashed)
            torch.addcmul(of_hidden, of_hidden, squashes[step], value=-2, out=of_output)
            torch.mul(of_cell, olds[step], out=of_forget)
            torch.addcmul(of_cell, of_cell, candidate, value=-2, out=of_take)
            torch.mul(of_cell, take, out=of_candidate).mul_(-2)
            sigmoid_backward(of_gates, rows[step], grad_input=of_gates)
            of_cell.mul_(forget)
            torch.mm(of_gates, back, out=of_inputs)
            torch.add(through_state, arriving[step], out=of_hidden)
            if passed_hidden is not None and passed_cell is not None:
                of_hidden.add_(passed_hidden)
                of_cell.add_(passed_cell)
            if of_features is not None:
                of_features[step] = through_features
            if of_feature is not None:
                of_feature.addmm_(features[step].t(), of_gates)
            if of_state is not None:
                of_state.addmm_(states[step].t(), of_gates)
            if of_weights is not None:
                torch.sum(of_gates * by_mark[marks[step]], dim=1, out=of_weights[step])
            if of_mark is not None:
                weighted = of_gates if mark_weights is None else of_gates * mark_weights[step, :, None]
                of_mark.index_add_(0, marks[step], weighted)
        return of_mark, None, of_weights, of_features, of_feature, of_state, of_keep, of_hidden, of_cell


def _steps(values: Tensor, num_steps: int) -> tuple[Tensor, ...]:
    """Views of `values` (T or 1, ...) by step; the one there is for every step, if there is one only."""
    return values.unbind(0) if len(values) > 1 else values.unbind(0) * num_steps


def _parts(gates: Tensor, num_steps: int) -> list[tuple[Tensor, ...]]:
    """The four gates (B, D) of every step, of `gates` (T or 1, B, 4D)."""
    return list(zip(*(_steps(part, num_steps) for part in gates.chunk(4, dim=2)), strict=True))


@strict
class GatedLSTMConfig(MTPPConfig):
    """What the configs of all backbones on the gated LSTM say: widths of the mark embedding and of the history state
    (the paper's "history embedding"), and the number of components of the density. `recent_marks` gives the sequence's
    own recent marks a path of their own to the next one; the paper's model has none."""

    embedding_size: int = 32
    hidden_size: int = 32
    num_components: int = 32
    recent_marks: bool = False


class GatedLSTMModel(MTPPModel):
    """A backbone whose history state is that of the gated LSTM, with counts of recent marks behind it if asked for.
    Subclasses define `score_state`, `state_compensator` and `state_intensities`, which read the LSTM's part."""

    config_class: Any = GatedLSTMConfig
    time_scales: Tensor

    def __init__(self, config: GatedLSTMConfig) -> None:
        super().__init__(config)
        self.register_buffer("time_scales", torch.tensor([0.1, 0.3, 1.0]))
        self.register_buffer("mean_interval", torch.tensor(1.0))
        self.encoder: nn.Module = GatedHistoryEncoder(
            config.num_marks, config.embedding_size, len(_SCALE_QUANTILES), config.hidden_size
        )
        self.recent = RecentMarks(config.num_marks, config.hidden_size) if config.recent_marks else None

    def fit_time_scale(self, intervals: Tensor) -> None:
        super().fit_time_scale(intervals)
        positive = intervals[intervals > 0].double()
        # By sorting, since torch.quantile refuses more than 16 million values.
        position = positive.new_tensor(_SCALE_QUANTILES) * (len(positive) - 1)
        self.time_scales.copy_(positive.sort().values[position.round().long()])

    def time_features(self, intervals: Tensor) -> Tensor:
        """log(1 + tau / scale) for each scale: (..., F)."""
        return torch.log1p(intervals[..., None] / self.time_scales.to(intervals.dtype))

    def encode_history(
        self, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        counts = None if self.recent is None else self.recent(marks, gates_of(keep, mask, times.dtype), mark_weights)
        keep = gate_padding(keep, mask, times.dtype)
        last_times = last_kept_times(times, keep)
        features = self.time_features((times - last_times[:, :-1]).clamp(min=0))
        states = self.encoder(features, marks, keep, mark_weights)
        return states if counts is None else torch.cat([states, counts], dim=-1), last_times

    def past(self, times: Tensor, marks: Tensor, mask: Tensor) -> Past:
        if not isinstance(self.encoder, GatedHistoryEncoder):
            return super().past(times, marks, mask)
        initial = self.encoder.initial_hidden.expand(len(times), -1), self.encoder.initial_cell.expand(len(times), -1)
        counts = 0 if self.recent is None else len(self.recent.decay_logits) * self.recent.num_marks
        past = Past(nn.functional.pad(initial[0], (0, counts)), times.new_zeros(len(times)), (initial[1],))
        for time, mark, there in zip(times.t(), marks.t(), mask.t(), strict=True):
            states, last_times, (cell,) = self.extend(past, time, mark)
            cell, states = (torch.where(there[:, None], *pair) for pair in ((cell, past.memory[0]), (states, past[0])))
            past = Past(states, torch.where(there, last_times, past.last_times), (cell,))
        return past

    def extend(self, past: Past, times: Tensor, marks: Tensor) -> Past:
        if not isinstance(self.encoder, GatedHistoryEncoder):
            return super().extend(past, times, marks)
        hidden, counts = self._split(past.states)
        features = self.time_features((times - past.last_times).clamp(min=0))
        hidden, cell = self.encoder.step(hidden, past.memory[0], features, marks)
        states = hidden if self.recent is None else torch.cat([hidden, self.recent.step(counts, marks)], dim=-1)
        return Past(states, times, (cell,))

    # --- a subclass defines the next three, of the LSTM's state (..., D)

    def score_state(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`score_intervals` without recent marks."""
        raise TypeError(f"{type(self).__name__} must define score_state")

    def state_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        """`total_compensator`, on which recent marks have no influence."""
        raise TypeError(f"{type(self).__name__} must define state_compensator")

    def state_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        """`mark_intensities` without recent marks."""
        raise TypeError(f"{type(self).__name__} must define state_intensities")

    def score_intervals(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.recent is None:
            return self.score_state(states, intervals, marks)
        states, counts = self._split(states)
        total, observed, compensator = self.score_state(states, intervals, marks)
        return total, total + self.recent.log_probs(states, observed - total, counts, marks, self.context), compensator

    def total_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        return self.state_compensator(self._split(states)[0], intervals)

    def mark_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        states, counts = self._split(states)
        intensities = self.state_intensities(states, intervals)
        if self.recent is None:
            return intensities
        total = intensities.sum(-1, keepdim=True)
        return total * self.recent.log_probs(states, torch.log(intensities / total), counts, None, self.context).exp()

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The LSTM's part of a state, and the counts behind it."""
        width = self.config.hidden_size
        return states[..., :width], states[..., width:]

    def _leave_one_out(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self.encoder, GatedHistoryEncoder):
            return super()._leave_one_out(times, marks, mask)
        past, kinds, there = times[:, :-1], marks[:, :-1], mask[:, :-1]
        lasts = last_kept_times(past, None if there.all() else there.to(times.dtype))  # (B, L + 1)
        before = lasts[:, :-1], lasts[:, :-1].roll(1, dims=1)
        features, skipping = (self.time_features((past - last).clamp(min=0)) for last in before)
        states = self.encoder.without_each(features, skipping, kinds, there)  # (1 + L, B, D)
        if self.recent is not None:
            states = torch.cat([states, self.recent.without_each(kinds, there, times.dtype)], dim=-1)
        intervals = (times[:, -1] - lasts[:, -1]).repeat(len(states), 1)
        intervals[-1] = times[:, -1] - lasts[:, :-1][:, -1] if len(states) > 1 else intervals[-1]
        total, observed, _ = self.score_intervals(states, intervals.clamp(min=0), marks[:, -1].expand(len(states), -1))
        return observed.t(), total.t()
