# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""Hawkes process with basis kernels: every event adds to the intensity of every mark, and nothing else does.

    intensity_m(t) = mu_m + sum_j sum_b A_b[m_j, m] g_b(t - t_j)

The g_b are Erlang densities of shapes 1 (exponential) to `num_shapes` on log-spaced scales, mu and A are positive.
A_b[m', m] is the expected number of events m that an event m' causes through g_b, so their sum is the branching
matrix; nothing causes events of context marks, and they have no background. Likelihood, compensator and the effect of
a deletion are closed forms; a deletion is a subtraction.

With x = lag / scale, the terms x^k exp(-x) / k! make an Erlang density (the k-th, of shape k + 1, per scale), its
survival function (the sum of the terms up to k), and a state: terms summed over events follow from what they were at
any earlier time. So cost grows linearly with events, however long ago they act. Sums are taken by mark of the cause:
they then depend on the data alone, and training needs no gradients through the recurrence.

Shapes: S scales, N shapes, C marks; a state is (S, N, C), flattened to D.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from .gated_lstm import gate_padding, last_kept_times
from .point_process import MTPPConfig, MTPPModel, MTPPOutput, Past, first_after
from .question import Conditioning
from .window import Window, asked_of, silences_of

# Events that are related pair by pair; what came before them is read from a state.
_BLOCK = 8
# So many pairs of events are related at a time, and events of masks summed: they stay in the caches.
_PAIRS_AT_ONCE, _KEPT_AT_ONCE = 32_768, 262_144
# So few last events are related to all before them pair by pair, without a state.
_FEW_LAST = 64
# Lags in scales beyond which nothing is left: higher powers would overflow.
_LONGEST_LAG = 80.0
# Where parameters of 0 stand: expected children of an event, and background events per mean interval.
_FIRST_CHILDREN, _FIRST_RATE = 0.5, 0.5
# A new model has this share of these children: weights that no cause asks for shrink slowly, so they begin small.
_FIRST_SHARE = 0.01


@strict
class HawkesConfig(MTPPConfig):
    """Config of `HawkesModel`: number of time scales, and of Erlang shapes (1, 2, ...) on each. There are
    num_scales * num_shapes * num_marks^2 parameters: made for up to some hundred marks. `sparsity` is what every
    expected child, of all pairs of marks, costs in training: fewer pairs then have influence by chance."""

    model_type = "hawkes"

    num_scales: int = 6
    num_shapes: int = 6
    sparsity: float = 0.0


class HawkesModel(MTPPModel):
    """Hawkes process on the MTPP contract. A gate in [0, 1] multiplies what its event adds to the intensity."""

    config_class = HawkesConfig
    scales: Tensor

    def __init__(self, config: HawkesConfig) -> None:
        super().__init__(config)
        marks, bases = config.num_marks, (config.num_scales, config.num_shapes)
        self.register_buffer("mean_interval", torch.tensor(1.0))
        self.register_buffer("scales", torch.logspace(-1, 1, config.num_scales))
        # At 0 both are of a sensible size: weight decay leads there.
        self.raw_rates = nn.Parameter(torch.zeros(marks))
        self.raw_weights = nn.Parameter(torch.zeros(*bases, marks, marks))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self:
            nn.init.zeros_(self.raw_rates)
            nn.init.constant_(self.raw_weights, math.log(_FIRST_SHARE))

    def fit_time_scale(self, intervals: Tensor) -> None:
        super().fit_time_scale(intervals)
        ordered = intervals[intervals > 0].double().sort().values
        shortest, mean = ordered[len(ordered) // 20], self.mean_interval.double()
        ends = torch.stack([torch.minimum(shortest, mean / 4), 30 * mean]).log()
        steps = torch.linspace(0, 1, len(self.scales), dtype=torch.float64, device=ends.device)
        self.scales.copy_(torch.lerp(ends[0], ends[1], steps).exp())

    # --- what people look at

    @property
    def rates(self) -> Tensor:
        """mu (C,): background events per unit of time."""
        rates = F.softplus(self.raw_rates + _raw(_FIRST_RATE / len(self.raw_rates))) / self.mean_interval
        return self._predicted(rates)

    @property
    def weights(self) -> Tensor:
        """A (S, N, C, C): expected children by scale, shape, mark of the cause and mark of the effect."""
        first = _FIRST_CHILDREN / (self.raw_weights.numel() / self.config.num_marks)
        return self._predicted(F.softplus(self.raw_weights + _raw(first)))

    def _predicted(self, values: Tensor) -> Tensor:
        """Of marks that cause or happen (..., C), 0 where the mark is context."""
        context = self.context
        return values if context is None else values.masked_fill(context, 0.0)

    @property
    def branching(self) -> Tensor:
        """(C, C): expected number of events of the column's mark that one of the row's mark causes directly."""
        return self.weights.sum((0, 1))

    def kernel(self, times: Tensor) -> Tensor:
        """What an event of the first mark adds to the intensity of the second after `times` (Q,): (C, C, Q)."""
        scales = self.scales.to(times)
        terms = erlang_terms(times[:, None] / scales, self.config.num_shapes)  # (Q, S, N)
        return torch.einsum("qsn,sncm->cmq", terms / scales[:, None], self.weights)

    def parent_shares(self, times: Tensor, marks: Tensor, mask: Tensor) -> Tensor:
        """Share of each earlier event j in the intensity of event i's mark at event i, [b, i, j]: (B, T, T), 0 where
        j is no event before i. One minus their sum over j is the share of the background."""
        earlier = (mask[:, :, None] & mask[:, None, :]).tril(-1)
        lags = (times[:, :, None] - times[:, None, :]).masked_fill(~earlier, 0.0)
        causes, effects = marks[:, None, :], marks[:, :, None]
        added = torch.zeros_like(lags)
        for scale, weights in zip(self.scales.to(times), self.weights, strict=True):  # (N, C, C); all would be large
            terms = erlang_terms(lags / scale, self.config.num_shapes)  # (B, T, T, N)
            added = added + (weights.permute(1, 2, 0)[causes, effects] * terms).sum(-1) / scale
        added = added * earlier
        whole = (self.rates[marks] + added.sum(2)).masked_fill(self.is_context(marks), 1.0)
        return added / whole[..., None]

    def forward(self, *args: Any, **kwargs: Any) -> MTPPOutput:
        output = super().forward(*args, **kwargs)
        if self.training and self.config.sparsity:
            output.loss = output.loss + self.config.sparsity * self.branching.sum()
        return output

    # --- the contract

    def encode_history(
        self, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As the contract says. Between gates of 0 and 1, the last kept event is the last whose gate is not 0."""
        gates, times = gate_padding(keep, mask, times.dtype), _without_padding(times, mask)
        amounts = _amounts(gates, mask, mark_weights, times.dtype)
        arrivals = F.one_hot(marks, self.config.num_marks) * amounts[..., None]  # (B, T, C)
        states = [times.new_zeros(len(times), 1, *self.raw_weights.shape[:3])]
        states += [features for _, features in self._blocks(times, arrivals)]
        after = torch.cat(states, dim=1)
        after[:, 1:, :, 0] += arrivals[:, :, None]  # an event at its own time
        position = torch.arange(1, times.shape[1] + 1, device=times.device)
        last = F.pad(torch.where(amounts.detach() > 0, position, 0).cummax(dim=1).values, (1, 0))  # (B, T + 1)
        states_kept = after.flatten(2).gather(1, last[:, :, None].expand(-1, -1, after[0, 0].numel()))
        return states_kept, F.pad(times, (1, 0)).gather(1, last)

    def past(self, times: Tensor, marks: Tensor, mask: Tensor) -> Past:
        return super().past(times, marks, mask)._replace(memory=())  # the state holds all there is

    def extend(self, past: Past, times: Tensor, marks: Tensor) -> Past:
        states = self._evolve(past.states, (times - past.last_times).clamp(min=0))
        states = states.unflatten(-1, self.raw_weights.shape[:3])
        states[:, :, 0] += F.one_hot(marks, self.config.num_marks).to(states.dtype)[:, None]
        return Past(states.flatten(1), times, ())

    def score_intervals(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tables, rates = self._tables(), self.rates
        observed, total, left = _read(tables, rates, self._evolve(states, intervals), marks)
        return total.log(), observed.log(), rates.sum() * intervals + states @ tables[2] - left

    def total_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        survivors = self._tables()[2]
        left = self._evolve(states, intervals) @ survivors
        return self.rates.sum() * intervals + states @ survivors - left

    def mark_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        return self.rates + F.linear(self._evolve(states, intervals), self._tables()[0])

    def _invert_compensator(self, states: Tensor, targets: Tensor, iterations: int = 60) -> Tensor:
        # The children still to come after a lag are terms of that lag alone: their weights are summed once, and a
        # step of the search costs a tenth of `total_compensator`.
        bases, survivors, rate = self.raw_weights.shape[:3], self._tables()[2], self.rates.sum()
        pairs = torch.einsum("snc,...slc->...snl", survivors.view(bases), states.unflatten(-1, bases))
        weights = torch.stack([pairs.diagonal(-k, -2, -1).sum(-1) for k in range(bases[1])], dim=-1)  # (..., S, N)
        goal, scales = targets - states @ survivors, self.scales.to(targets)
        low, high = (torch.full_like(targets, end) + self.mean_interval.to(targets).log() for end in (-30.0, 30.0))
        for _ in range(iterations):
            middle = 0.5 * (low + high)
            lags = middle.exp()
            left = (erlang_terms(lags[..., None] / scales, bases[1]) * weights).sum((-2, -1))
            below = rate * lags - left < goal
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (0.5 * (low + high)).exp()

    def event_log_prob(
        self,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        *,
        keep: Tensor | None = None,
        survived_until: Tensor | None = None,
        num_last: int | None = None,
        positions: Tensor | None = None,
        mark_weights: Tensor | None = None,
    ) -> MTPPOutput:
        # Intensities are read at every event, kept or not, and gates carry the compensator since the last kept one as
        # they carry its time. A state per event, as the base class wants it, would lose the slopes of deleted events.
        if keep is not None and not keep.requires_grad and bool((keep == 1).all()):
            keep = None  # nothing is deleted: the same numbers, to the bit, as without gates
        if keep is None and positions is None and mark_weights is None and num_last and num_last <= _FEW_LAST:
            return self._last_log_prob(_without_padding(times, mask), marks, mask, survived_until, num_last)
        gates, times = gate_padding(keep, mask, times.dtype), _without_padding(times, mask)
        amounts = _amounts(gates, mask, mark_weights, times.dtype)
        observed, total, left = self._read_events(times, marks, amounts)
        observed, total = (value.masked_fill(self.is_context(marks), 1.0) for value in (observed, total))
        children, rate = self.branching.sum(1), self.rates.sum()
        born = F.pad(left + amounts * children[marks], (1, 0))[:, :-1]
        passed = rate * times.diff(dim=1, prepend=torch.zeros_like(times[:, :1]))
        steps = passed + born - left  # the compensator since the event before, kept or not
        compensator, last_times = _since_kept(steps, gates), last_kept_times(times, gates)[:, :-1]
        survived = torch.zeros_like(steps)
        if survived_until is not None:
            lags = (survived_until[:, None] - times).clamp(min=0)
            until_split = rate * survived_until + (amounts * self._started(lags, marks)).sum(1)
            survived = compensator - (steps.cumsum(1) - until_split[:, None])  # from the last kept event to the split
        values: tuple[Tensor, ...] = (observed.log(), total.log(), compensator, survived, times, mask, last_times)
        if positions is not None:
            values = tuple(value.gather(1, positions) for value in values)
        elif num_last is not None:
            values = tuple(value[:, value.shape[1] - num_last :] for value in values)
        log_intensity, total_log_intensity, compensator, survived, times, mask, last_times = values
        time_log_prob = total_log_intensity - compensator
        if survived_until is not None:
            index, touches = first_after(survived_until, last_times, times, mask)
            correction = survived.gather(1, index).masked_fill(~touches, 0.0)
            time_log_prob = time_log_prob.scatter_add(1, index, correction)
        time_log_prob = time_log_prob.masked_fill(~mask, 0.0)
        mark_log_prob = (log_intensity - total_log_intensity).masked_fill(~mask, 0.0)
        return MTPPOutput(
            log_prob=time_log_prob + mark_log_prob,
            time_log_prob=time_log_prob,
            mark_log_prob=mark_log_prob,
            compensator=compensator,
        )

    def future_of_masks(self, window: Window, conditioning: Conditioning, apart: bool = False) -> "FutureOfMasks":
        """What answers for the future of these windows under any mask of their history: one pass over the pairs of
        events serves all masks. If `apart`, times and marks can be told apart."""
        times, marks, first = _without_padding(window.times, window.mask), window.marks, window.num_history
        sums = self._over_pairs(times, marks, window.mask, window.num_future, total=apart)[: 1 + apart]
        added = torch.cat(sums, dim=2)  # (B, T, K), of all marks behind it if apart
        window = asked_of(self, window)
        scored, silences = (flags.to(times.dtype) for flags in (window.future, silences_of(self, window)))
        split, context = window.split_time, self.is_context(marks[:, first:])
        # Of an event, the children born in the scored intervals: those still to come where one begins, not where it
        # ends; intervals that touch cancel.
        clock = torch.cat([split[:, None], times[:, first:]], dim=1)  # (B, K + 1)
        begins = F.pad(silences, (0, 1)) - F.pad(silences, (1, 0))
        asked = (begins != 0).any(0)
        born = (self._left(clock[:, asked], times, marks) * begins[:, None, asked]).sum(2) * window.mask
        passed = self.rates.sum() * (silences * clock.diff(dim=1)).sum(1, keepdim=True)
        columns = torch.cat([added, born[..., None]], dim=2)
        rates = [self.rates[marks[:, first:]].masked_fill(context, 1.0)]
        rates += [self.rates.sum().expand_as(scored)] if apart else []
        alone = torch.cat([*rates, passed], dim=1) + columns[:, first:].sum(1)
        silence = None if conditioning == "survival" else (split, silences[:, 0], times[:, :first], marks[:, :first])
        return FutureOfMasks(self, columns[:, :first].contiguous(), alone, scored, silence)

    def _leave_one_out(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        sums = self._over_pairs(_without_padding(times, mask), marks, mask, 1, total=True)
        backgrounds = (self.rates[marks[:, -1:]], self.rates.sum().expand(len(marks), 1))
        values = []
        for background, added in zip(backgrounds, sums, strict=False):
            others = F.pad(added[:, :-1, 0], (1, 0))  # column 0: nothing is taken away
            values.append((background + others.sum(1, keepdim=True) - others).maximum(background).log())
        return values[0], values[1]

    # --- its parts

    def _last_log_prob(
        self, times: Tensor, marks: Tensor, mask: Tensor, survived_until: Tensor | None, num_last: int
    ) -> MTPPOutput:
        """`event_log_prob` of the last events when all are kept, pair by pair: what searches and measurements ask."""
        first, rate = times.shape[1] - num_last, self.rates.sum()
        sums = self._over_pairs(times, marks, mask, num_last, total=True)
        observed, total, left = (added.sum(1) for added in sums)
        observed, total = self.rates[marks[:, first:]] + observed, rate + total
        observed, total = (value.masked_fill(self.is_context(marks[:, first:]), 1.0) for value in (observed, total))
        past = times[:, :first], marks[:, :first]
        clock = F.pad(times, (1, 0))[:, first:]  # (B, K + 1)
        begun = (self._left(clock[:, :1], *past) * mask[:, :first, None]).sum(1)
        born = left + self.branching.sum(1)[marks[:, first:]] * mask[:, first:]
        compensator = rate * clock.diff(dim=1) + torch.cat([begun, born[:, :-1]], dim=1) - left
        time_log_prob = total.log() - compensator
        if survived_until is not None:
            index, touches = first_after(survived_until, clock[:, :-1], clock[:, 1:], mask[:, first:])
            # Behind another of the last events, no silence is left before the split.
            until = torch.maximum(survived_until[:, None], clock[:, :1])
            then = (self._left(until, *past) * mask[:, :first, None]).sum(1)
            survived = (rate * (until - clock[:, :1]) + begun - then).masked_fill(~touches | (index > 0), 0.0)
            time_log_prob = time_log_prob.scatter_add(1, index, survived)
        time_log_prob = time_log_prob.masked_fill(~mask[:, first:], 0.0)
        mark_log_prob = (observed / total).log().masked_fill(~mask[:, first:], 0.0)
        return MTPPOutput(
            log_prob=time_log_prob + mark_log_prob,
            time_log_prob=time_log_prob,
            mark_log_prob=mark_log_prob,
            compensator=compensator,
        )

    def _over_pairs(
        self, times: Tensor, marks: Tensor, mask: Tensor, num_last: int, total: bool = False
    ) -> list[Tensor]:
        """What every event adds to the intensity of each of the last ones' marks at these, (B, T, K), 0 where it is
        not before them; and, if `total`, to that of all marks, and to the children that are then still to come."""
        first, num_marks = times.shape[1] - num_last, self.config.num_marks
        weights = _powers(self.weights / self.scales[:, None, None, None])  # (S, N, C, C)
        tables = [weights.flatten(2), *([weights.sum(3), self._survivors()] if total else [])]
        earlier = torch.ones(num_last, times.shape[1], dtype=torch.bool, device=times.device).tril(first - 1)
        pieces, size = [], max(1, _PAIRS_AT_ONCE // max(1, times.shape[1] * num_last))
        for now, causes, there in zip(times.split(size), marks[:, None].split(size), mask.split(size), strict=True):
            lags = (now[:, first:, None] - now[:, None]).masked_fill(~earlier, torch.inf)  # (B, K, T): T runs fastest
            places = [causes * num_marks + causes[:, 0, first:, None], causes, causes]
            sums = self._sum_of_terms(lags, tables, places)
            pieces.append([(value * (earlier & there[:, None])).transpose(1, 2) for value in sums])
        return [torch.cat(parts) for parts in zip(*pieces, strict=True)]

    def _left(self, clock: Tensor, times: Tensor, marks: Tensor) -> Tensor:
        """Children of each event that are expected after the times `clock` (B, Q), all before it: (B, T, Q)."""
        lags = (clock[:, :, None] - times[:, None]).clamp(min=0)
        return self._sum_of_terms(lags, [self._survivors()], [marks[:, None]])[0].transpose(1, 2)

    def _survivors(self) -> Tensor:
        """What x^k exp(-x) are multiplied with for the children still to come, (S, N, C)."""
        return _powers(self.weights.sum(3).flip(1).cumsum(1).flip(1))

    def _sum_of_terms(self, lags: Tensor, tables: list[Tensor], places: list[Tensor]) -> list[Tensor]:
        """For each of `tables` (S, N, M), at `places` in it that broadcast to `lags`, the sum over scales and shapes
        of its entries times x^k exp(-x): shaped as `lags`."""
        sums = [torch.zeros_like(lags) for _ in tables]
        for number, scale in enumerate(self.scales.to(lags)):
            x = (lags / scale).clamp(max=_LONGEST_LAG)
            decay = torch.exp(-x)
            for total, table, place in zip(sums, tables, places, strict=False):
                flat = place.flatten()  # one index is ten times as fast as one of many axes
                *lower, value = (row.index_select(0, flat).view(place.shape) for row in table[number])
                for coefficient in reversed(lower):
                    value = torch.addcmul(coefficient, value, x)
                total.addcmul_(value, decay)
        return sums

    def _tables(self, causes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What a state (D,) is multiplied with: for the intensity of each mark (C, D), for that of all marks (D,), and
        for the expected children still to come (D,). `causes` are the marks in the state, all by default."""
        weights = self.weights if causes is None else self.weights[:, :, causes]
        by_mark = (weights / self.scales[:, None, None, None]).flatten(0, 2).t().contiguous()
        # The survival function of a shape is the sum of the terms up to it.
        survivors = weights.sum(3).flip(1).cumsum(1).flip(1).flatten()
        return by_mark, by_mark.sum(0), survivors

    def _read_events(self, times: Tensor, marks: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Before each event: intensity of its mark, of all marks, and expected children still to come, (B, T) each."""
        causes, places = None, marks
        if self.config.num_marks > marks.numel() > 0:  # of many marks, those that occur
            causes, places = marks.unique(return_inverse=True)
        number = self.config.num_marks if causes is None else len(causes)
        tables, rates = self._tables(causes), self.rates
        arrivals = F.one_hot(places, number) * amounts[..., None]
        parts = [
            _read(tables, rates, features.flatten(2), marks[:, block])
            for block, features in self._blocks(times, arrivals)
        ]
        if not parts:
            return times, times, times
        observed, total, left = (torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True))
        return observed, total, left

    def _blocks(self, times: Tensor, arrivals: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Block by block of the events, the state before each of them, (B, events, S, N, C). `arrivals` (B, T, C) is
        how much of which mark an event brings. Events of a block meet pair by pair, earlier ones through a state."""
        num_shapes, scales = self.config.num_shapes, self.scales.to(times)[:, None]
        state = times.new_zeros(len(times), len(scales), num_shapes, arrivals.shape[2])
        state_time = times.new_zeros(len(times), 1)
        for first in range(0, times.shape[1], _BLOCK):
            block = slice(first, first + _BLOCK)
            now, arriving = times[:, block], arrivals[:, block].to(times.dtype)
            # One more query, after the last event, gives the state for the next block.
            queries = torch.cat([now, now[:, -1:]], dim=1)
            earlier = torch.ones(queries.shape[1], now.shape[1], dtype=torch.bool, device=now.device).tril(-1)
            lags = (queries[:, :, None] - now[:, None, :]).masked_fill(~earlier, torch.inf)
            pairs = erlang_terms(lags[:, None] / scales[..., None], num_shapes).transpose(
                3, 4
            )  # (B, S, queries, N, j)
            moved = _moves((queries - state_time)[:, None] / scales, num_shapes)  # (B, S, queries, N, N)
            sources = torch.cat([arriving[:, None].expand(-1, len(scales), -1, -1), state], dim=2)
            features = torch.cat([pairs, moved], dim=4).flatten(2, 3) @ sources  # (B, S, Q * N, C)
            features = features.unflatten(2, (-1, num_shapes)).transpose(1, 2)
            yield block, features[:, :-1]
            state, state_time = features[:, -1], now[:, -1:]

    def _evolve(self, states: Tensor, intervals: Tensor) -> Tensor:
        """States (..., D) after a silence of length `intervals` (...) each."""
        bases = self.raw_weights.shape[:3]
        moved = _moves(intervals[..., None] / self.scales.to(intervals), bases[1])  # (..., S, N, N)
        return (moved @ states.unflatten(-1, bases)).flatten(-3)

    def _started(self, lags: Tensor, marks: Tensor) -> Tensor:
        """Expected children of events of `marks` (B, T) within `lags` (B, T) after them: (B, T)."""
        scales, total = self.scales.to(lags), self.weights.sum(3)  # (S, N, C)
        left = erlang_terms(lags[..., None] / scales, self.config.num_shapes).cumsum(-1)  # (B, T, S, N)
        return ((1 - left) * total.permute(2, 0, 1)[marks]).sum((2, 3))


class FutureOfMasks(NamedTuple):
    """log p of the future of B windows under any masks of their history: every event adds what it adds."""

    mtpp: HawkesModel
    # What an event adds to the intensity of each future mark at its time, perhaps to that of all marks too, and, in
    # the last column, to the compensator from the split on, of what is scored.
    added: Tensor  # (B, L, K + 1), or (B, L, 2 K + 1)
    alone: Tensor  # the same without any history
    scored: Tensor  # (B, K), 0 or 1
    # The paper counts from the last kept event: split (B,), whether the first interval counts (B,), times and marks
    # (B, L).
    silence: tuple[Tensor, ...] | None

    def rows(self, index: Tensor) -> "FutureOfMasks":
        """The same of the windows at `index` (R,)."""
        silence = None if self.silence is None else tuple(value[index] for value in self.silence)
        return FutureOfMasks(self.mtpp, self.added[index], self.alone[index], self.scored[index], silence)

    def together(self) -> "FutureOfMasks":
        """The same without what tells times and marks apart: faster to ask."""
        columns = [*range(self.scored.shape[1]), self.added.shape[2] - 1]
        return self._replace(added=self.added[..., columns].contiguous(), alone=self.alone[:, columns])

    def log_prob(self, keep_mask: Tensor, rows: Tensor) -> Tensor:
        """Sum of log p of the scored events under masks (R, L) of the windows `rows` (R,): (R,). Masks are bool, or,
        under survival conditioning, gates that have slopes."""
        size = max(1, _KEPT_AT_ONCE // max(1, keep_mask.shape[1]))
        pieces = zip(keep_mask.split(size), rows.split(size), strict=True)
        return torch.cat([self._log_prob(*piece) for piece in pieces])

    def _log_prob(self, keep_mask: Tensor, rows: Tensor) -> Tensor:
        sums = self.alone[rows] + self._added_by(keep_mask, rows)
        value = (sums[:, : self.scored.shape[1]].log() * self.scored[rows]).sum(1) - sums[:, -1]
        return value if self.silence is None else value - self._silent(keep_mask, rows)

    def mark_log_prob(self, keep_mask: Tensor, rows: Tensor) -> Tensor:
        """The part of `log_prob` that is of the marks, given their times, where these are told apart."""
        number = self.scored.shape[1]
        sums = self.alone[rows] + self._added_by(keep_mask, rows)
        return ((sums[:, :number] / sums[:, number:-1]).log() * self.scored[rows]).sum(1)

    def _added_by(self, keep_mask: Tensor, rows: Tensor) -> Tensor:
        """Sums of `added` over the kept events: (R, K + 1). Masks of one window that follow one another go through one
        product, unless too many places would stay empty."""
        windows, group, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
        most = int(counts.amax()) if len(counts) else 0
        place = torch.arange(len(rows), device=rows.device) + (group * most - (counts.cumsum(0) - counts)[group])
        if len(windows) * most > 4 * len(rows):
            windows, most, place = rows, 1, torch.arange(len(rows), device=rows.device)
        kept = self.added.new_zeros(len(windows) * most, keep_mask.shape[1])
        kept = kept.index_copy(0, place, keep_mask.to(kept.dtype))
        return (kept.view(len(windows), most, keep_mask.shape[1]) @ self.added[windows]).flatten(0, 1)[place]

    def _silent(self, keep_mask: Tensor, rows: Tensor) -> Tensor:
        """Compensator from the last kept event to the split, where the first future event is scored: (R,)."""
        split, counts, times, marks = (value[rows] for value in self.silence or ())
        last = F.pad(times * keep_mask, (1, 0)).amax(1)
        left = self.mtpp._left(torch.stack([last, split], dim=1), times, marks) * keep_mask[..., None]
        passed = self.mtpp.rates.sum() * (split - last) - left.sum(1).diff(dim=1)[:, 0]
        return passed * counts


def erlang_terms(x: Tensor, num_shapes: int) -> Tensor:
    """x^k exp(-x) / k! for k = 0 .. num_shapes - 1: (..., N)."""
    capped = x.clamp(0.0, _LONGEST_LAG)
    terms = [torch.exp(-capped)]
    for k in range(1, num_shapes):
        terms.append(terms[-1] * capped / k)
    return torch.stack(terms, dim=-1)


def _moves(x: Tensor, num_shapes: int) -> Tensor:
    """What carries sums of `erlang_terms` over a lag of `x` (...) scales: (..., N, N), its rows the new terms. The
    k-th at x + y is the sum over l of the (k - l)-th at x and the l-th at y."""
    order = torch.arange(num_shapes, device=x.device)
    terms = F.pad(erlang_terms(x, num_shapes), (1, 0))  # a zero above the diagonal
    return terms[..., (order[:, None] - order + 1).clamp(min=0)]


def _powers(weights: Tensor) -> Tensor:
    """Weights (S, N, ...) of `erlang_terms` as those of x^k exp(-x)."""
    factorials = torch.arange(weights.shape[1], device=weights.device).clamp(min=1).cumprod(0)
    return weights / factorials.view(-1, *[1] * (weights.dim() - 2))


def _read(
    tables: tuple[Tensor, Tensor, Tensor], rates: Tensor, states: Tensor, marks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `states` (..., D), intensity of `marks` (...), of all marks, and children still to come: (...) each."""
    by_mark, by_all, survivors = tables
    observed = rates[marks] + (F.embedding(marks, by_mark) * states).sum(-1)
    return observed, rates.sum() + states @ by_all, states @ survivors


def _amounts(gates: Tensor | None, mask: Tensor, mark_weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """How much of each event acts, (B, T): its gate times the weight of its mark, 0 on padding."""
    amounts = mask.to(dtype)
    if gates is not None:
        amounts = torch.cat([gates, amounts[:, gates.shape[1] :]], dim=1)
    return amounts if mark_weights is None else amounts * mark_weights


def _since_kept(steps: Tensor, gates: Tensor | None) -> Tensor:
    """Sums of `steps` (B, T) since the last kept event; `gates` (B, G) as in `last_kept_times`."""
    if gates is None:
        return steps
    sums = list(steps.split(1, dim=1))
    for place, gate in enumerate(gates[:, : len(sums) - 1].split(1, dim=1)):
        sums[place + 1] = sums[place + 1] + (1 - gate) * sums[place]
    return torch.cat(sums, dim=1)


def _without_padding(times: Tensor, mask: Tensor) -> Tensor:
    """Times (B, T) with those of the events before on padding, so that none is out of order."""
    return torch.where(mask, times, times.masked_fill(~mask, 0.0).cummax(dim=1).values)


def _raw(value: float) -> float:
    """Where softplus is `value`."""
    return math.log(math.expm1(value))


AutoConfig.register("hawkes", HawkesConfig)
AutoModel.register(HawkesConfig, HawkesModel)
