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
        history, times = objective.history, objective.window.times
        return torch.arange(history.shape[1], dtype=times.dtype, device=times.device).expand(history.shape)
