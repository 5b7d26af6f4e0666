"""What every solver shares: the objective it may ask (and how often it did), the stop rules, the contract.

Solvers search over distill masks (True: the event belongs to H_d). They work on a batch of B windows and on many
candidates at once: a candidate is a row of a mask (R, L) and the index of its window (R,), so windows that are
finished cost nothing. Equal values go to the event that stands first.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..models.perplexity import keep_gradient, log_perplexity_of_masks
from ..models.point_process import MTPPModel
from ..models.question import Conditioning, Question
from ..models.window import Window, asked_of

# Slack of the targets, so that a target taken from a mask is met by that mask, in whatever batch.
_TOLERANCE = 1e-6


class Objective:
    """dppl of any part of the history of B windows, counting the evaluations of the MTPP.

    One evaluation is one likelihood of one window given one mask. `full` (B,), log ppl(x_o | H_f), is evaluated here,
    once; a mask that keeps the whole history is then known to have dppl 0, and is not evaluated.
    """

    @torch.no_grad()
    def __init__(self, mtpp: MTPPModel, window: Window, *, conditioning: Conditioning = "paper") -> None:
        window.check()
        window = asked_of(mtpp, window)
        self.mtpp, self.window, self.conditioning = mtpp, window, conditioning
        self.history = window.history  # (B, L), True where there is an event
        if (window.num_scored == 0).any():
            empty = int((window.num_scored == 0).nonzero()[0])
            raise ValueError(f"Every window needs a future event; window {empty} has none. Leave such windows out.")
        self.windows = torch.arange(len(window.times), device=window.times.device)
        self.num_evaluations = torch.zeros_like(self.windows)
        self.full = self._log_perplexity(self.history, self.windows)

    def part(self, windows: Tensor) -> Objective:
        """The same for some `windows` (A,) only, which are then counted from 0; it counts its own evaluations."""
        part = copy.copy(self)
        part.window = self.window.rows(windows)
        part.history, part.full = self.history[windows], self.full[windows]
        part.windows = torch.arange(len(windows), device=windows.device)
        part.num_evaluations = torch.zeros_like(part.windows)
        return part

    def dppl_left(self, distill_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """dppl(H_l): of what is left when the events of `distill_mask` are taken out; see `dppl_keep`."""
        return self.dppl_keep(~distill_mask, windows)

    def dppl_distilled(self, distill_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """dppl(H_d): of the events of `distill_mask` alone; see `dppl_keep`."""
        return self.dppl_keep(distill_mask, windows)

    @torch.no_grad()
    def dppl_keep(self, keep_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """Perplexity drop (eq. 4) given the events of `keep_mask` (..., R, L), bool, alone: (..., R). `windows` (R,)
        says which window each row of masks belongs to; all of them, R = B, if not given."""
        index = (self.windows if windows is None else windows).expand(keep_mask.shape[:-1]).flatten()
        kept = keep_mask.flatten(0, -2) & self.history[index]
        ask = (kept != self.history[index]).any(1).nonzero()[:, 0]
        drop = self.full.new_zeros(len(index))
        drop[ask] = self.full[index[ask]] - self._log_perplexity(kept[ask], index[ask])
        return drop.view(keep_mask.shape[:-1])

    def slopes(self, gates: Tensor, windows: Tensor) -> Tensor:
        """Slope of dppl in each of the gates (R, L) of the events of `windows` (R,): (R, L)."""
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        return keep_gradient(self.mtpp, self.window.rows(windows), gates, conditioning=self.conditioning)

    def _log_perplexity(self, kept: Tensor, windows: Tensor) -> Tensor:
        """log ppl(x_o | kept) (eq. 5) of each row: (R,)."""
        values = log_perplexity_of_masks(self.mtpp, self.window, kept, windows, conditioning=self.conditioning)
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        return values


# --- when to stop


@dataclass(frozen=True, eq=False)
class AtSize:
    """EHED: `size` events are distilled, an int or (B,)."""

    size: int | Tensor

    def bind(self, objective: Objective) -> AtSize:
        num_events = objective.history.sum(1)
        sizes = torch.as_tensor(self.size, device=num_events.device).expand(len(num_events))
        wrong = ((sizes < 0) | (sizes > num_events)).nonzero()
        if len(wrong):
            window = int(wrong[0])
            limit = f"0..{int(num_events[window])}, the history's length, for window {window}"
            raise ValueError(f"size must lie in {limit}; got {int(sizes[window])}.")
        return AtSize(sizes)

    def met(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """True where a mask (R, L) has the size."""
        return masks.sum(1) == torch.as_tensor(self.size)[windows]

    def slack(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """How good a mask (R, L) is: lower dppl_left is better."""
        return -(objective.dppl_left(masks, windows) if left is None else left)


@dataclass(frozen=True, eq=False)
class Reaches:
    """EMHD: dppl_left at most, and dppl_distilled at least, the targets given, a number or (B,); None: anything."""

    dppl_left: float | Tensor
    dppl_distilled: float | Tensor | None
    tolerance: float = _TOLERANCE

    def bind(self, objective: Objective) -> Reaches:
        full, distilled = objective.full, self.dppl_distilled
        like: Any = {"dtype": full.dtype, "device": full.device}  # a number must not pass through single precision
        left = torch.as_tensor(self.dppl_left, **like).expand(full.shape)
        distilled = None if distilled is None else torch.as_tensor(distilled, **like).expand(full.shape)
        return Reaches(left, distilled, self.tolerance)

    def part(self, windows: Tensor) -> Reaches:
        """The bound rule for some `windows` (A,) only, as `Objective.part`."""
        distilled = None if self.dppl_distilled is None else torch.as_tensor(self.dppl_distilled)[windows]
        return Reaches(torch.as_tensor(self.dppl_left)[windows], distilled, self.tolerance)

    def margin(self, windows: Tensor, left: Tensor, distilled: Tensor | None) -> Tensor:
        """By how much these values meet the targets, the tighter of both: (R,), negative where they do not."""
        margin = torch.as_tensor(self.dppl_left)[windows] + self.tolerance - left
        if self.dppl_distilled is None or distilled is None:
            return margin
        return torch.minimum(margin, distilled - torch.as_tensor(self.dppl_distilled)[windows] + self.tolerance)

    def met(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """True where a mask (R, L) meets the targets."""
        return self.slack(objective, masks, windows, left) >= 0

    def slack(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """`margin` of each mask (R, L). dppl_distilled is only evaluated where dppl_left meets its target."""
        left = objective.dppl_left(masks, windows) if left is None else left
        slack = self.margin(windows, left, None)
        if self.dppl_distilled is not None:
            near = (slack >= 0).nonzero()[:, 0]
            distilled = objective.dppl_distilled(masks[near], windows[near])
            slack[near] = self.margin(windows[near], left[near], distilled)
        return slack


Rule = AtSize | Reaches


def rule_for(question: Question, objective: Objective, margin: float = 0.0) -> Rule:
    """A question as a rule for the windows of an objective. Where dppl(empty) >= 0 the history explains nothing, and
    distilling no event meets a share. The targets are met by `margin`, so that rounding cannot undo it; not even the
    whole history meets a share of 1, or a delta of 0, by a margin."""
    if not margin >= 0:
        raise ValueError(f"margin must be at least 0; got {margin}. 0 asks for the targets themselves.")
    if question.size is not None:
        return AtSize(objective.history.sum(1).clamp(max=question.size)).bind(objective)
    distilled = None if question.delta is None else margin - question.delta
    if question.share is not None:
        empty = objective.dppl_left(objective.history)
        limit = question.limit(empty)
        limit = torch.where(empty < 0, limit - margin, limit)
        return Reaches(limit, distilled, _TOLERANCE if margin == 0 else 0.0).bind(objective)
    limit = question.limit(torch.zeros_like(objective.full)) - margin
    limit = torch.nextafter(limit, limit - 1) if question.is_strict else limit  # x < l is x <= the number before it
    return Reaches(limit, distilled, tolerance=0.0).bind(objective)


# --- solvers


@dataclass(frozen=True, eq=False)
class SolverResult:
    """What a search found in each of B windows: `distill_mask` (B, L), the whole history where the rule could not be
    met; dppl of that mask, the evaluations of the MTPP spent, that of the full history included, and whether the rule
    was `reached`, each (B,)."""

    distill_mask: Tensor
    dppl_left: Tensor
    dppl_distilled: Tensor
    num_evaluations: Tensor
    reached: Tensor

    @property
    def sizes(self) -> Tensor:
        """|H_d|, (B,)."""
        return self.distill_mask.sum(1)


class Found:
    """What a search has found so far: nothing reached, the whole history distilled; NaN is not evaluated yet."""

    def __init__(self, objective: Objective) -> None:
        self.distill_mask = objective.history.clone()
        self.dppl_left = torch.full_like(objective.full, torch.nan)
        self.dppl_distilled = self.dppl_left.clone()
        self.reached = torch.zeros_like(objective.windows, dtype=torch.bool)
        # Where a search tells: the slack it would have without the event it could best do without, negative if none.
        self.closest = torch.full_like(objective.full, -torch.inf)

    def record(
        self, windows: Tensor, distill_mask: Tensor, left: Tensor | None = None, distilled: Tensor | None = None
    ) -> None:
        """These `windows` (R,) meet the rule with `distill_mask` (R, L); the values (R,) if they are known."""
        self.distill_mask[windows], self.reached[windows] = distill_mask, True
        self.dppl_left[windows] = torch.nan if left is None else left
        self.dppl_distilled[windows] = torch.nan if distilled is None else distilled


_SOLVERS: dict[str, type[Solver]] = {}


class Solver(ABC):
    """A search for the events to distil. A subclass that has a `name` is registered under it; its constructor takes
    typed keywords (a dataclass), and `search` does the work."""

    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            if cls.name in _SOLVERS:
                raise ValueError(f"The solver name {cls.name!r} is taken by {_SOLVERS[cls.name].__module__}.")
            _SOLVERS[cls.name] = cls

    @property
    def orders(self) -> bool:
        """Whether it has `rank`."""
        return type(self).rank is not Solver.rank

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        """Scores (B, L) of the events, for solvers that order them all; the highest is distilled first. What stands
        on padding does not count."""
        raise TypeError(f"{type(self).__name__} finds sets of events and does not order them")

    @torch.no_grad()
    def solve(self, objective: Objective, rule: Rule, *, generator: torch.Generator | None = None) -> SolverResult:
        """Distil events of every window of `objective` as `rule` asks; all randomness comes from `generator`."""
        if not isinstance(rule, AtSize | Reaches):
            raise ValueError(f"rule must be AtSize or Reaches (see rule_for); got {rule!r}.")
        before = objective.num_evaluations.clone()
        found = self.search(objective, rule.bind(objective), generator)
        pairs = ((found.dppl_left, objective.dppl_left), (found.dppl_distilled, objective.dppl_distilled))
        for values, evaluate in pairs:
            open_windows = values.isnan().nonzero()[:, 0]
            values[open_windows] = evaluate(found.distill_mask[open_windows], open_windows)
        spent = objective.num_evaluations - before + 1
        return SolverResult(found.distill_mask, found.dppl_left, found.dppl_distilled, spent, found.reached)

    @abstractmethod
    def search(self, objective: Objective, rule: Rule, generator: torch.Generator | None) -> Found:
        """The search itself; windows it does not record have not reached the rule."""


def available_solvers() -> list[str]:
    """Names of the registered solvers."""
    return sorted(_SOLVERS)


def get_solver(name: str, **options: Any) -> Solver:
    """The solver registered as `name`, with its options."""
    if name not in _SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(available_solvers())}; got {name!r}.")
    known = [field.name for field in dataclasses.fields(_SOLVERS[name])] if options else []  # type: ignore[arg-type]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{name} knows the options {', '.join(known) or '(none)'}; got unknown {', '.join(unknown)}.")
    return _SOLVERS[name](**options)


# --- candidates


def flip_each(masks: Tensor, events: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every way to flip one of `events` (A, L) in `masks` (A, L): rows (R,), events (R,), flipped masks (R, L)."""
    rows, positions = events.nonzero(as_tuple=True)
    flipped = masks[rows]
    flipped[torch.arange(len(rows), device=rows.device), positions] ^= True
    return rows, positions, flipped


def best_of_each(
    scores: Tensor, rows: Tensor, columns: Tensor, num_rows: int, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Highest of the `scores` (R,) of each row, and its column: (A,) each; -inf where a row has none. `rows` and
    `columns` (R,) say where in a table of A rows each score stands."""
    table = scores.new_full((num_rows, max(num_columns, 1)), -torch.inf)
    table[rows, columns] = scores
    best = table.max(dim=1)
    return best.values, best.indices
