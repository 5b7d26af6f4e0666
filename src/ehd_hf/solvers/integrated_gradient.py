"""Integrated gradient: events are ranked by the slope of dppl in their gates, along a fading history; in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..models.window import places_of
from .base import Objective
from .prefix import RankingSolver

# Unless told otherwise: so many rounds, but none for fewer events than these.
_ROUNDS, _FEWEST_PER_ROUND = 5, 8


@dataclass(frozen=True, kw_only=True)
class IntegratedGradient(RankingSolver):
    """Fade the gates of what is left from 1 to 0, all together, and credit every event with its slope of dppl on the
    way (midpoint rule): the credits add up to what the history explains. Distil the best, fade the rest again, and so
    on until all are ranked.

    A gradient counts as one evaluation, though it is a forward and a backward pass: `num_points` in each round.
    """

    name: ClassVar[str] = "integrated_gradient"
    num_points: int = 3  # gate values at which a fading history is looked at
    # Events that are distilled before gradients are taken again; L or more: one round. If not given, a fifth of the
    # history, and 8 at least: the time then grows with L, not with its square.
    per_round: int | None = None

    def __post_init__(self) -> None:
        for option in ("num_points", "per_round"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1; got {value}.")

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        left = objective.history.clone()
        places = torch.zeros_like(left, dtype=torch.long)
        fifths = -(-left.sum(1, keepdim=True) // _ROUNDS)
        per_round = fifths.clamp(min=_FEWEST_PER_ROUND) if self.per_round is None else self.per_round
        while left.any():
            windows = (left.sum(1) > 1).nonzero()[:, 0]  # the last event needs no gradient
            credits = objective.full.new_zeros(left.shape)
            credits[windows] = self._integrate(objective, left[windows], windows)
            ranks = places_of(credits, left)
            best = left & (ranks < per_round)
            places = torch.where(best, ranks + (objective.history & ~left).sum(1, keepdim=True), places)
            left &= ~best
        return -places.to(objective.full.dtype)

    def _integrate(self, objective: Objective, left: Tensor, windows: Tensor) -> Tensor:
        """Mean slope of dppl in each gate as those of `left` (A, L), of `windows` (A,), fade from 1 to 0: (A, L)."""
        steps = torch.arange(self.num_points, dtype=objective.window.times.dtype, device=left.device)
        points = (steps + 0.5) / self.num_points
        gates = (left[:, None] * points[:, None]).flatten(0, 1)  # (A * num_points, L)
        slopes = objective.slopes(gates, windows.repeat_interleave(self.num_points))
        return slopes.view(len(windows), self.num_points, left.shape[1]).mean(1)
