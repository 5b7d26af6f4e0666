"""Random distillation, RD (appendix B): random masks of a size, judged by their mean dppl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..models.window import places_of
from .base import AtSize, Found, Objective, Rule, Solver


@dataclass(frozen=True, kw_only=True)
class RandomDistillation(Solver):
    """`num_draws` = M masks of the given size; or of size 0, 1, 2, ..., drawn afresh for each, until their means meet
    the targets. The values reported are means over the draws; the mask returned is the first of them, and need not
    meet the targets by itself."""

    name: ClassVar[str] = "random_distillation"
    num_draws: int = 4

    def __post_init__(self) -> None:
        if self.num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {self.num_draws}.")

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        found, windows, num_events = Found(objective), objective.windows, objective.history.sum(1)
        if isinstance(rule, AtSize):
            masks = self._draw(objective, torch.as_tensor(rule.size), generator)
            found.record(windows, masks[0], *self._means(objective, masks, windows))
            return found
        for size in range(objective.history.shape[1] + 1):
            windows = windows[~found.reached[windows] & (num_events[windows] >= size)]
            if len(windows) == 0:
                break
            # Drawn for every window: what one is dealt does not depend on when the others stop.
            masks = self._draw(objective, torch.full_like(num_events, size), generator)[:, windows]
            masks = masks[:1] if size == 0 else masks  # the listing's check before its loop
            left, distilled = self._means(objective, masks, windows)
            met = rule.margin(windows, left, distilled) >= 0
            found.record(windows[met], masks[0, met], left[met], distilled[met])
        return found

    def _draw(self, objective: Objective, sizes: Tensor, generator: torch.Generator | None) -> Tensor:
        """M uniformly random masks of `sizes` (B,) for each window: (M, B, L)."""
        shape = (self.num_draws, *objective.history.shape)
        draws = torch.rand(shape, generator=generator, device=objective.window.times.device)
        return places_of(draws, objective.history) < sizes[:, None]

    def _means(self, objective: Objective, masks: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean dppl_left and dppl_distilled over the draws (M, A, L) of `windows` (A,): (A,) each."""
        return objective.dppl_left(masks, windows).mean(0), objective.dppl_distilled(masks, windows).mean(0)
