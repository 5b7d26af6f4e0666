"""Backward elimination: distil everything, then put back, again and again, the event whose return hurts least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import AtSize, Found, Objective, Reaches, Solver, best_of_each, flip_each


@dataclass(frozen=True, kw_only=True)
class BackwardElimination(Solver):
    """Shrink H_d from the whole history, keeping as much slack as can be kept (for a size: dppl_left lowest).

    Targets: until no single event can go without breaking the rule. Where the whole history does not meet it, go on
    until a smaller set does, if any.
    """

    name: ClassVar[str] = "backward_elimination"

    def search(self, objective: Objective, rule: AtSize | Reaches, generator: torch.Generator | None) -> Found:
        found, windows = Found(objective), objective.windows
        masks = objective.history
        slack = rule.slack(objective, masks, windows)
        while len(windows):
            met = slack >= 0 if isinstance(rule, Reaches) else rule.met(objective, masks, windows)
            found.record(windows[met], masks[met])
            going = masks.any(1) & (~found.reached[windows] | met & isinstance(rule, Reaches))
            windows, masks = windows[going], masks[going]
            rows, events, candidates = flip_each(masks, masks)
            slacks = rule.slack(objective, candidates, windows[rows])
            slack, event = best_of_each(slacks, rows, events, *masks.shape)
            masks = masks.scatter(1, event[:, None], False)
        return found
