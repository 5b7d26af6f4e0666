"""Orders of events: a solver that ranks, and the smallest beginning of an order that meets a rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import perplexity
from ..models.window import places_of
from .base import AtSize, Found, Objective, Reaches, Rule, Solver, get_solver


class RankingSolver(Solver):
    """An order of the events, then a stop: the prefix of the wanted size, or the smallest that meets the targets."""

    @abstractmethod
    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor: ...

    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        return self.choose(objective, rule, self.rank(objective, generator), generator)

    def choose(self, objective: Objective, rule: Rule, scores: Tensor, generator: torch.Generator | None) -> Found:
        """The prefix of the order that `scores` (B, L) give."""
        return first_prefix(objective, rule, places_of(scores, objective.history))[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedBy(RankingSolver):
    """The order that scores from elsewhere give, such as those of a trained distiller."""

    score: Callable[[Objective], Tensor]  # (B, L)
    num_evaluations: int = 0  # what the scores cost, in evaluations of the MTPP
    otherwise: tuple[str, ...] = ()  # solvers to ask, one after the other, where no prefix of the order is enough

    def choose(self, objective: Objective, rule: Rule, scores: Tensor, generator: torch.Generator | None) -> Found:
        found = super().choose(objective, rule, scores, generator)
        return ask_others(objective, rule, found, generator, self.otherwise)

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        objective.num_evaluations += self.num_evaluations
        return self.score(objective)


# Solvers to ask where no prefix of an order meets the targets: from the cheapest to the most thorough.
FALLBACKS = ("recency", "backward_elimination", "greedy_search")


def ask_others(
    objective: Objective, rule: Rule, found: Found, generator: torch.Generator | None, ask: tuple[str, ...] = FALLBACKS
) -> Found:
    """`found`, with the answers of other solvers, by name, in the windows where the rule was not met so far."""
    for name in ask:
        windows = (~found.reached).nonzero()[:, 0]
        if not len(windows) or not isinstance(rule, Reaches):
            break
        part = objective.part(windows)
        other = get_solver(name).search(part, rule.part(windows), generator)
        objective.num_evaluations[windows] += part.num_evaluations
        found.record(windows[other.reached], other.distill_mask[other.reached])
    return found


def prefix_curve(objective: Objective, ranks: Tensor) -> Tensor:
    """dppl_left when the first 0, 1, ... L events of an order, `ranks` (B, L), are distilled: (B, L + 1). Beyond a
    window's own events it stays where it ends."""
    num_events = objective.history.sum(1, keepdim=True)
    sizes = torch.arange(objective.history.shape[1] + 1, device=ranks.device).expand(len(ranks), -1)
    windows, size = (sizes <= num_events).nonzero(as_tuple=True)
    curve = objective.full.new_zeros(sizes.shape)
    curve[windows, size] = objective.dppl_left(ranks[windows] < size[:, None], windows)
    return curve.gather(1, sizes.minimum(num_events))


def first_prefix(
    objective: Objective, rule: Rule, ranks: Tensor, curve: Tensor | None = None
) -> tuple[Found, Tensor | None]:
    """The smallest prefix of an order, `ranks` (B, L), that meets the rule, given its `prefix_curve`.

    Without a curve prefixes are evaluated from the smallest on, as many sizes at a time as fill a batch, and a window
    is done as soon as one meets the rule. Larger ones need not be looked at, smaller ones must: curves are not always
    monotone. Also gives the curve (B, L + 1) as far as it was evaluated, inf elsewhere; none for a size."""
    found, windows, start = Found(objective), objective.windows, 0
    if isinstance(rule, AtSize):
        found.record(windows, ranks < torch.as_tensor(rule.size)[:, None])
        return found, curve
    num_events, num_history, is_given = objective.history.sum(1), objective.history.shape[1], curve is not None
    curve = objective.full.new_full((len(ranks), num_history + 1), torch.inf) if curve is None else curve
    while len(windows):
        until = num_history + 1 if is_given else start - (-perplexity.ROWS_AT_ONCE // len(windows))
        sizes = torch.arange(start, min(until, num_history + 1), device=ranks.device)
        row, step = (sizes <= num_events[windows, None]).nonzero(as_tuple=True)
        masks = (ranks[windows[row]] < sizes[step, None]) & objective.history[windows[row]]
        if not is_given:
            curve[windows[row], sizes[step]] = objective.dppl_left(masks, windows[row])
        met = torch.zeros(len(windows), len(sizes), dtype=torch.bool, device=ranks.device)
        met[row, step] = rule.met(objective, masks, windows[row], curve[windows[row], sizes[step]])
        done = met.any(1)
        smallest = start + met[done].to(torch.uint8).argmax(1)
        prefix = (ranks[windows[done]] < smallest[:, None]) & objective.history[windows[done]]
        found.record(windows[done], prefix, curve[windows[done], smallest])
        start = until
        windows = windows[~done]
        windows = windows[num_events[windows] >= start]
    return found, curve
