"""Recency: the last events are distilled first. An explainer that does not beat it explains nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Objective
from .prefix import RankingSolver


@dataclass(frozen=True, kw_only=True)
class Recency(RankingSolver):
    """The last k events."""

    name: ClassVar[str] = "recency"

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        position = torch.arange(
            objective.history.shape[1], dtype=objective.window.times.dtype, device=objective.window.times.device
        )
        return position.expand(objective.history.shape)
