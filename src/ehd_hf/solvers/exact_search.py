"""Exact search: every subset, smallest first. The yardstick for short histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import AtSize, Found, Objective, Rule, Solver

# Candidate masks held at a time.
_MAX_CANDIDATES = 2**16


@dataclass(frozen=True, kw_only=True)
class ExactSearch(Solver):
    """The smallest subset that meets the rule; among equally small ones, the one with the lowest dppl_left. Histories
    of at most `max_events` are accepted: 2 ** max_events subsets are tried."""

    name: ClassVar[str] = "exact_search"
    max_events: int = 16

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        found, history = Found(objective), objective.history
        num_events = history.sum(1)
        longest = int(num_events.max()) if history.numel() else 0
        if longest > self.max_events:
            limit = f"tries 2 ** L subsets and takes histories of at most {self.max_events} events; got {longest}"
            raise ValueError(f"exact_search {limit}. Use another solver, shorter histories, or a larger max_events.")
        places = torch.argsort(~history, dim=1, stable=True)[:, :longest]  # (B, longest), real events first
        bits = torch.arange(longest, device=history.device)
        subsets = (torch.arange(2**longest, device=history.device)[:, None] >> bits & 1).bool()
        for size in range(longest + 1):
            if isinstance(rule, AtSize):
                windows = (torch.as_tensor(rule.size) == size).nonzero()[:, 0]
            else:
                windows = (~found.reached & (num_events >= size)).nonzero()[:, 0]
            if len(windows) == 0:
                continue
            lowest = objective.full.new_full(windows.shape, torch.inf)
            best = torch.zeros_like(history[windows])
            for some in subsets[subsets.sum(1) == size].split(max(1, _MAX_CANDIDATES // len(windows))):
                left = lowest.new_full((len(windows), len(some)), torch.inf)
                masks = torch.zeros(*left.shape, history.shape[1], dtype=torch.bool, device=history.device)
                where = places[windows][:, None].expand(-1, len(some), -1)
                masks = masks.scatter(2, where, some.expand(len(windows), -1, -1))
                rows, columns = (~(masks & ~history[windows][:, None]).any(2)).nonzero(as_tuple=True)
                candidates = masks[rows, columns]
                values = objective.dppl_left(candidates, windows[rows])
                met = rule.met(objective, candidates, windows[rows], values)
                left[rows[met], columns[met]] = values[met]
                least = left.min(dim=1)
                better = (least.values < lowest).nonzero()[:, 0]
                lowest[better], best[better] = least.values[better], masks[better, least.indices[better]]
            hit = lowest < torch.inf
            found.record(windows[hit], best[hit], lowest[hit])
        return found
