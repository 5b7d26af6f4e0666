"""Shapley values of the events, estimated over random permutations: what a user of SHAP would try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..models.window import places_of
from .base import Objective
from .prefix import RankingSolver


@dataclass(frozen=True, kw_only=True)
class Shapley(RankingSolver):
    """Events by their mean contribution to -dppl_left, as all are distilled in a random order. Each of the
    permutations costs L - 1 evaluations, and the empty history one for all."""

    name: ClassVar[str] = "shapley"
    num_permutations: int = 16

    def __post_init__(self) -> None:
        if self.num_permutations < 1:
            raise ValueError(f"num_permutations must be at least 1; got {self.num_permutations}.")

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        history, full = objective.history, objective.full
        num_windows, num_history = history.shape
        num_events = history.sum(1)
        sizes = torch.arange(num_history + 1, device=history.device)
        worth = full.new_zeros(num_windows, num_history + 1)  # -dppl_left of each prefix; nothing is lost at size 0
        worth[objective.windows, num_events] = -objective.dppl_left(history)
        windows, size = ((sizes > 0) & (sizes < num_events[:, None])).nonzero(as_tuple=True)
        total = full.new_zeros(history.shape)
        for _ in range(self.num_permutations):
            draws = torch.rand(history.shape, generator=generator, device=history.device)
            ranks = places_of(draws, history)
            worth[windows, size] = -objective.dppl_left(ranks[windows] < size[:, None], windows)
            total += worth.diff(dim=1).gather(1, ranks)  # padding ranks last: what it gathers does not count
        return total / self.num_permutations
