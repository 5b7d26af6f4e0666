"""Greedy search, GS (appendix B): distil, again and again, the event whose loss hurts the prediction most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Found, Objective, Rule, Solver, best_of_each, flip_each


@dataclass(frozen=True, kw_only=True)
class GreedySearch(Solver):
    """Add to H_d the event that lowers dppl_left most, until the rule, checked from size 0 on, is met. The listings
    evaluate dppl_distilled of every candidate; here it is evaluated for the winner alone, and only when the rule needs
    it. The values are the same, the evaluations counted are those made."""

    name: ClassVar[str] = "greedy_search"

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        found, windows = Found(objective), objective.windows
        masks, left = torch.zeros_like(objective.history), torch.zeros_like(objective.full)
        while len(windows):
            met = rule.met(objective, masks, windows, left)
            found.record(windows[met], masks[met], left[met])
            going = ~met & (masks != objective.history[windows]).any(1)
            windows, masks = windows[going], masks[going]
            event, left = self._best_addition(objective, masks, windows)
            masks = masks.scatter(1, event[:, None], True)
        return found

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        masks, scores = torch.zeros_like(objective.history), torch.zeros_like(objective.history, dtype=torch.long)
        for place in range(masks.shape[1]):
            windows = (masks != objective.history).any(1).nonzero()[:, 0]
            event, _ = self._best_addition(objective, masks[windows], windows)
            masks[windows, event], scores[windows, event] = True, -place
        return scores.to(objective.full.dtype)

    def _best_addition(self, objective: Objective, masks: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """The event to distil next beside `masks` (A, L), and the lowest dppl_left that gives: (A,) each."""
        rows, events, candidates = flip_each(masks, objective.history[windows] & ~masks)
        gain = -objective.dppl_left(candidates, windows[rows])
        best, event = best_of_each(gain, rows, events, *masks.shape)
        return event, -best
