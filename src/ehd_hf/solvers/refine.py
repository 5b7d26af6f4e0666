"""Refine: start from any mask, put back what is not needed, then try single swaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from ..models.window import places_of
from .base import AtSize, Found, Objective, Reaches, Rule, Solver, best_of_each, flip_each, get_solver
from .prefix import RankingSolver

SwapIn = Literal["evaluated", "ordered"]
# What pruning an explanation means: drop what can be spared, and one swap, if it lets more go.
PRUNING: dict[str, Any] = {"max_swaps": 1, "shortlist": 4, "swap_in": "ordered"}
# Searches that ask every candidate in every round are left out beyond so many evaluations a window.
_MOST_EVALUATIONS = 20_000
# A swap has to gain more than rounding does.
_SMALLEST_GAIN = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Refine(Solver):
    """Drop from H_d, again and again, the event whose return leaves most slack, until every event is needed; then swap
    a distilled event for another where that gains most slack, and drop again. For a size: swaps that lower dppl_left.

    Where the mask to start from does not meet the targets, the whole history takes its place, if that does.
    """

    name: ClassVar[str] = "refine"
    start: Solver | str | Tensor = "recency"  # a solver or its name, asked for the same rule; or a mask (B, L)
    # Which events a swap may take in: "evaluated", those whose removal alone gains most; or "ordered", those that come
    # next in the order of the start, if it has one, which costs nothing.
    swap_in: SwapIn = "evaluated"
    scores: Tensor | None = None  # (B, L), the order behind a mask to start from; a start that ranks brings its own
    max_swaps: int = 4
    # A swap takes one of so many distilled events whose return alone costs least, and one of so many others.
    shortlist: int = 8

    def __post_init__(self) -> None:
        if self.swap_in not in get_args(SwapIn):
            raise ValueError(f"swap_in must be one of {', '.join(get_args(SwapIn))}; got {self.swap_in!r}.")
        for option, smallest in (("max_swaps", 0), ("shortlist", 1)):
            if getattr(self, option) < smallest:
                raise ValueError(f"{option} must be at least {smallest}; got {getattr(self, option)}.")

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        found, windows = Found(objective), objective.windows
        masks, scores = self._start(objective, rule, generator)
        without = None
        if isinstance(rule, Reaches):
            met = rule.met(objective, masks, windows)
            masks = torch.where(met[:, None], masks, objective.history)
            met[~met] = rule.met(objective, masks[~met], windows[~met])
            windows = windows[met]
            masks, without = self._drop(objective, rule, masks[windows], windows)
            found.closest[windows] = _largest(without)
        found.record(windows, masks)
        for _ in range(self.max_swaps):
            masks, windows = self._swap(objective, rule, masks, windows, without, scores)
            if isinstance(rule, Reaches):
                masks, without = self._drop(objective, rule, masks, windows)
                found.closest[windows] = _largest(without)
            found.record(windows, masks)
        return found

    def _start(
        self, objective: Objective, rule: Rule, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """The masks to start from, and the scores behind them."""
        if not isinstance(self.start, Tensor):
            start = get_solver(self.start) if isinstance(self.start, str) else self.start
            if not isinstance(start, RankingSolver):
                return start.solve(objective, rule, generator=generator).distill_mask, None
            scores = start.rank(objective, generator)
            return start.choose(objective, rule, scores, generator).distill_mask, scores
        if self.start.shape != objective.history.shape:
            expected, got = tuple(objective.history.shape), tuple(self.start.shape)
            raise ValueError(f"start must be a mask of shape (B, L) = {expected}; got {got}.")
        masks = self.start.bool() & objective.history
        if isinstance(rule, AtSize) and not rule.met(objective, masks, objective.windows).all():
            raise ValueError("start must distil as many events as AtSize asks for. Pass AtSize(start.sum(1)).")
        return masks, self.scores

    def _drop(self, objective: Objective, rule: Reaches, masks: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """`masks` (A, L), which meet the rule, without the events they can do without, one at a time; and the slack
        (A, L) that would be left without each of the others."""
        masks = masks.clone()
        without = torch.full(masks.shape, -torch.inf, dtype=objective.full.dtype, device=masks.device)
        active = torch.arange(len(windows), device=windows.device)
        while len(active) and masks.shape[1]:
            rows, events, candidates = flip_each(masks[active], masks[active])
            without[active] = -torch.inf
            without[active[rows], events] = rule.slack(objective, candidates, windows[active][rows])
            best, event = without[active].max(dim=1)
            active, event = active[best >= 0], event[best >= 0]
            masks[active, event] = False
        return masks, without

    def _swap(
        self, objective: Objective, rule: Rule, masks: Tensor, windows: Tensor, without: Any, scores: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The best swap in each of `masks` (A, L): new masks and windows of those that gain by one. `without` (A, L):
        the slack left without each distilled event; `scores` (B, L): the order of all events, if they are known."""
        others = objective.history[windows] & ~masks
        known = None if scores is None or self.swap_in == "evaluated" else scores[windows]
        out = self._most_promising(objective, rule, masks, windows, masks, without)
        into = self._most_promising(objective, rule, masks, windows, others, known)
        rows, out, into = (out[:, :, None] & into[:, None, :]).nonzero(as_tuple=True)
        candidates = masks[rows]
        each = torch.arange(len(rows), device=rows.device)
        candidates[each, out], candidates[each, into] = False, True
        width = masks.shape[1]
        slacks = rule.slack(objective, candidates, windows[rows])
        best, swap = best_of_each(slacks, rows, out * width + into, len(masks), width * width)
        gains = best > rule.slack(objective, masks, windows) + _SMALLEST_GAIN
        masks, windows, swap = masks[gains], windows[gains], swap[gains, None]
        return masks.scatter(1, swap // width, False).scatter(1, swap % width, True), windows

    def _most_promising(
        self, objective: Objective, rule: Rule, masks: Tensor, windows: Tensor, events: Tensor, slacks: Tensor | None
    ) -> Tensor:
        """The `shortlist` among `events` (A, L) that leave most slack when they alone change sides: (A, L) bool.
        `slacks` (A, L) is that slack, or what orders events as it would, if it is known."""
        if slacks is None:
            slacks = torch.zeros(events.shape, dtype=objective.full.dtype, device=events.device)
            too_many = (events.sum(1) > self.shortlist).nonzero()[:, 0]
            rows, positions, candidates = flip_each(masks[too_many], events[too_many])
            slacks[too_many[rows], positions] = rule.slack(objective, candidates, windows[too_many[rows]])
        return events & (places_of(slacks, events) < self.shortlist)


def best_of_size(objective: Objective, rule: AtSize, start: Tensor) -> Tensor:
    """The events of the asked size that lower dppl_left most, as far as swaps find them: from `start` (B, L), greedy
    search and backward elimination, the best of these."""
    starts, length = [start], start.shape[1]
    costs = {"greedy_search": int(start.sum(1).amax()) * length, "backward_elimination": length * length // 2}
    for name in (name for name, cost in costs.items() if cost <= _MOST_EVALUATIONS):
        starts.append(get_solver(name).search(objective, rule, None).distill_mask)
    masks = torch.stack([Refine(start=mask).search(objective, rule, None).distill_mask for mask in starts])
    best = torch.stack([objective.dppl_left(mask) for mask in masks]).argmin(0)
    return masks[best, objective.windows]


def _largest(slacks: Tensor) -> Tensor:
    """Of each row of (A, L): (A,), -inf where it is empty."""
    return slacks.amax(1) if slacks.shape[1] else slacks.new_full((len(slacks),), -torch.inf)
