"""Backward elimination: distil everything, then put back, again and again, the event whose return hurts least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import AtSize, Found, Objective, Reaches, Rule, Solver, best_of_each, flip_each


@dataclass(frozen=True, kw_only=True)
class BackwardElimination(Solver):
    """Shrink H_d from the whole history, keeping as much slack as can be kept (for a size: dppl_left lowest). Targets:
    until no single event can go without breaking the rule. Where the whole history does not meet it, go on until a
    smaller set does, if any."""

    name: ClassVar[str] = "backward_elimination"

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        found, windows = Found(objective), objective.windows
        masks = objective.history
        slack = rule.slack(objective, masks, windows)
        while len(windows):
            met = slack >= 0 if isinstance(rule, Reaches) else rule.met(objective, masks, windows)
            found.record(windows[met], masks[met])
            going = masks.any(1) & (~found.reached[windows] | met & isinstance(rule, Reaches))
            windows, masks = windows[going], masks[going]
            event, slack = self._best_return(objective, rule, masks, windows)
            masks = masks.scatter(1, event[:, None], False)
        return found

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        masks, scores = objective.history.clone(), torch.zeros_like(objective.history, dtype=torch.long)
        rule = AtSize(0).bind(objective)
        for place in range(masks.shape[1]):
            windows = masks.any(1).nonzero()[:, 0]
            event, _ = self._best_return(objective, rule, masks[windows], windows)
            masks[windows, event], scores[windows, event] = False, place
        return scores.to(objective.full.dtype)

    def _best_return(self, objective: Objective, rule: Rule, masks: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """The event of `masks` (A, L) to put back next, and the slack that leaves: (A,) each."""
        rows, events, candidates = flip_each(masks, masks)
        slack, event = best_of_each(rule.slack(objective, candidates, windows[rows]), rows, events, *masks.shape)
        return event, slack
