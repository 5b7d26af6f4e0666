"""Leave-one-out: events are ranked by how much the future's prediction suffers when each is missing alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Objective, flip_each
from .prefix import RankingSolver


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(RankingSolver):
    """Events by falling -dppl_left of distilling that event alone: L evaluations."""

    name: ClassVar[str] = "leave_one_out"

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        windows, events, masks = flip_each(torch.zeros_like(objective.history), objective.history)
        scores = torch.zeros_like(objective.history, dtype=objective.full.dtype)
        scores[windows, events] = -objective.dppl_left(masks, windows)
        return scores
