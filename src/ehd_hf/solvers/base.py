"""What every solver shares: the objective it may ask (and how often it did), the stop rules, the contract.

Solvers search over distill masks (True: the event belongs to H_d). They work on a batch of B windows and on many
candidates at once: a candidate is a row of a mask (R, L) and the index of its window (R,), so windows that are
finished cost nothing. Equal values go to the event that stands first.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from ..models.perplexity import Conditioning, MTPPModel, log_perplexity_of_masks

# Slack of the targets (SPEC 6), so that a target taken from a mask is met by that mask, in whatever batch.
_TOLERANCE = 1e-6


class Objective:
    """dppl of any part of the history of B windows, counting the evaluations of the MTPP.

    One evaluation is one likelihood of one window given one mask. `full` (B,), log ppl(x_o | H_f), is evaluated here,
    once; a mask that keeps the whole history is then known to have dppl 0, and is not evaluated.

    Args:
        mtpp: the point process; left as it is.
        times, marks, mask: (B, T), windows as in `perplexity`.
        num_future: K.
        conditioning: see `perplexity.future_log_prob`.
        max_rows: how many rebuilt windows to hold at a time.
    """

    @torch.no_grad()
    def __init__(
        self,
        mtpp: MTPPModel,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        num_future: int,
        *,
        conditioning: Conditioning = "paper",
        max_rows: int = 1024,
    ) -> None:
        if conditioning not in get_args(Conditioning):
            raise ValueError(f"conditioning must be one of {', '.join(get_args(Conditioning))}; got {conditioning!r}.")
        if not 1 <= num_future <= times.shape[1]:
            raise ValueError(f"num_future must lie in 1..{times.shape[1]}, the window's length; got {num_future}.")
        self.mtpp, self.times, self.marks, self.mask, self.num_future = mtpp, times, marks, mask, num_future
        self.conditioning: Conditioning = conditioning
        self.max_rows = max_rows
        self.history = mask[:, : times.shape[1] - num_future]  # (B, L), True where there is an event
        self.num_scored = mask[:, times.shape[1] - num_future :].sum(1)
        if (self.num_scored == 0).any():
            empty = int((self.num_scored == 0).nonzero()[0])
            raise ValueError(f"Every window needs a future event; window {empty} has none. Leave such windows out.")
        self.windows = torch.arange(len(times), device=times.device)
        self.num_evaluations = torch.zeros_like(self.windows)
        self.full = self._log_perplexity(self.history, self.windows)

    def part(self, windows: Tensor) -> Objective:
        """The same for some `windows` (A,) only, which are then counted from 0; it counts its own evaluations."""
        some = copy.copy(self)
        for name in ("times", "marks", "mask", "history", "num_scored", "full"):
            setattr(some, name, getattr(self, name)[windows])
        some.windows = torch.arange(len(windows), device=windows.device)
        some.num_evaluations = torch.zeros_like(some.windows)
        return some

    def dppl_left(self, distill_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """dppl(H_l): of what is left when the events of `distill_mask` are taken out; see `dppl_keep`."""
        return self.dppl_keep(~distill_mask, windows)

    def dppl_distilled(self, distill_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """dppl(H_d): of the events of `distill_mask` alone; see `dppl_keep`."""
        return self.dppl_keep(distill_mask, windows)

    @torch.no_grad()
    def dppl_keep(self, keep_mask: Tensor, windows: Tensor | None = None) -> Tensor:
        """Perplexity drop (eq. 4) given the events of `keep_mask` (..., R, L), bool, alone: (..., R).

        `windows` (R,) says which window each row of masks belongs to; all of them, R = B, if not given.
        """
        index = (self.windows if windows is None else windows).expand(keep_mask.shape[:-1]).flatten()
        kept = keep_mask.flatten(0, -2) & self.history[index]
        ask = (kept != self.history[index]).any(1).nonzero()[:, 0]
        drop = self.full.new_zeros(len(index))
        drop[ask] = self.full[index[ask]] - self._log_perplexity(kept[ask], index[ask])
        return drop.view(keep_mask.shape[:-1])

    def _log_perplexity(self, kept: Tensor, windows: Tensor) -> Tensor:
        """log ppl(x_o | kept) (eq. 5) of each row: (R,)."""
        values = log_perplexity_of_masks(
            self.mtpp,
            self.times,
            self.marks,
            self.mask,
            self.num_future,
            kept,
            windows,
            conditioning=self.conditioning,
            max_rows=self.max_rows,
        )
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        return values


# --- when to stop


class StopRule(ABC):
    """What is asked of H_d. `bind` fits the rule to the windows of an objective and checks it; searches only ever see
    the bound ones, `AtSize` and `Reaches`."""

    @abstractmethod
    def bind(self, objective: Objective) -> AtSize | Reaches:
        """The same rule with one entry per window."""


@dataclass(frozen=True, eq=False)
class AtSize(StopRule):
    """EHED: `size` events are distilled, an int or (B,)."""

    size: int | Tensor

    def bind(self, objective: Objective) -> AtSize:
        num_events = objective.history.sum(1)
        sizes = torch.as_tensor(self.size, device=num_events.device).expand(len(num_events))
        wrong = ((sizes < 0) | (sizes > num_events)).nonzero()
        if len(wrong):
            window = int(wrong[0])
            raise ValueError(
                f"size must lie in 0..{int(num_events[window])}, the history's length, for window {window}; "
                f"got {int(sizes[window])}."
            )
        return AtSize(sizes)

    def met(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """True where a mask (R, L) has the size."""
        return masks.sum(1) == torch.as_tensor(self.size)[windows]

    def slack(self, objective: Objective, masks: Tensor, windows: Tensor, left: Tensor | None = None) -> Tensor:
        """How good a mask (R, L) is: lower dppl_left is better."""
        return -(objective.dppl_left(masks, windows) if left is None else left)


@dataclass(frozen=True, eq=False)
class Reaches(StopRule):
    """EMHD: dppl_left at most, and dppl_distilled at least, the targets given, a number or (B,); None: anything."""

    dppl_left: float | Tensor
    dppl_distilled: float | Tensor | None
    tolerance: float = _TOLERANCE

    def bind(self, objective: Objective) -> Reaches:
        full = objective.full
        left, distilled = (
            # A plain number must not pass through single precision.
            None
            if target is None
            else torch.as_tensor(target, dtype=full.dtype, device=full.device).expand(full.shape)
            for target in (self.dppl_left, self.dppl_distilled)
        )
        assert left is not None
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


@dataclass(frozen=True)
class Explains(StopRule):
    """The question itself: dppl_left < log(`epsilon`) (the paper's), or dppl_left <= `share` * dppl(empty history).

    Where dppl(empty) >= 0 the history explains nothing, and distilling no event meets the share.

    Args:
        delta: also ask that H_d alone predicts almost as well as the whole history: dppl_distilled >= -`delta`.
        margin: by how much to meet the targets, so that rounding cannot undo it. Not even the whole history meets a
            share of 1, or a delta of 0, by a margin.
    """

    epsilon: float | None = None
    share: float | None = None
    delta: float | None = None
    margin: float = 0.0

    def __post_init__(self) -> None:
        given = [value for value in (self.epsilon, self.share) if value is not None]
        if len(given) != 1 or not 0 < given[0] <= 1:
            raise ValueError(f"Explains takes epsilon or share, one of them, in (0, 1]; got {self}.")
        if self.delta is not None and not self.delta >= 0:
            raise ValueError(f"delta must be at least 0; got {self.delta}. It is a loss of log-likelihood per event.")
        if not self.margin >= 0:
            raise ValueError(f"margin must be at least 0; got {self.margin}. 0 asks for the targets themselves.")

    def bind(self, objective: Objective) -> Reaches:
        distilled = None if self.delta is None else self.margin - self.delta
        if self.epsilon is None:
            assert self.share is not None
            empty = objective.dppl_left(objective.history)
            limit = torch.where(empty < 0, self.share * empty - self.margin, self.share * empty)
            return Reaches(limit, distilled, _TOLERANCE if self.margin == 0 else 0.0).bind(objective)
        limit = torch.full_like(objective.full, math.log(self.epsilon) - self.margin)
        # x < log(epsilon) is x <= the number before it
        return Reaches(torch.nextafter(limit, limit - 1), distilled, tolerance=0.0).bind(objective)


# --- solvers


@dataclass(frozen=True, eq=False)
class SolverResult:
    """What a search found in each of B windows.

    distill_mask: (B, L) bool; the whole history where the rule could not be met.
    dppl_left, dppl_distilled: (B,) of that mask.
    num_evaluations: (B,) evaluations of the MTPP spent, the one of the full history included.
    reached: (B,) bool.
    """

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
    orders: ClassVar[bool] = False  # whether it has `rank`, an order of all events

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            if cls.name in _SOLVERS:
                raise ValueError(f"The solver name {cls.name!r} is taken by {_SOLVERS[cls.name].__module__}.")
            _SOLVERS[cls.name] = cls

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        """Scores (B, L) of the events, for solvers that order them all; the highest is distilled first. What stands
        on padding does not count."""
        raise TypeError(f"{type(self).__name__} finds sets of events and does not order them")

    @torch.no_grad()
    def solve(self, objective: Objective, stop: StopRule, *, generator: torch.Generator | None = None) -> SolverResult:
        """Distil events of every window of `objective` as `stop` asks; all randomness comes from `generator`."""
        if not isinstance(stop, StopRule):
            raise ValueError(f"stop must be AtSize, Reaches or Explains; got {stop!r}.")
        before = objective.num_evaluations.clone()
        found = self.search(objective, stop.bind(objective), generator)
        for values, evaluate in (
            (found.dppl_left, objective.dppl_left),
            (found.dppl_distilled, objective.dppl_distilled),
        ):
            open_windows = values.isnan().nonzero()[:, 0]
            values[open_windows] = evaluate(found.distill_mask[open_windows], open_windows)
        spent = objective.num_evaluations - before + 1
        return SolverResult(found.distill_mask, found.dppl_left, found.dppl_distilled, spent, found.reached)

    @abstractmethod
    def search(self, objective: Objective, rule: AtSize | Reaches, generator: torch.Generator | None) -> Found:
        """The search itself; windows it does not record have not reached the rule."""


class RankingSolver(Solver):
    """An order of the events, then a stop: the prefix of the wanted size, or the smallest that meets the targets."""

    orders = True

    @abstractmethod
    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor: ...

    def search(self, objective: Objective, rule: AtSize | Reaches, generator: torch.Generator | None) -> Found:
        return self.choose(objective, rule, self.rank(objective, generator), generator)

    def choose(
        self, objective: Objective, rule: AtSize | Reaches, scores: Tensor, generator: torch.Generator | None
    ) -> Found:
        """The prefix of the order that `scores` (B, L) give."""
        return first_prefix(objective, rule, ranks_of(scores, objective.history))[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedBy(RankingSolver):
    """The order that scores from elsewhere give, such as those of a trained distiller.

    Args:
        score: objective -> scores (B, L).
        num_evaluations: what the scores cost, in evaluations of the MTPP.
        otherwise: names of solvers to ask, one after the other, where no prefix of the order meets the targets.
    """

    score: Callable[[Objective], Tensor]
    num_evaluations: int = 0
    otherwise: tuple[str, ...] = ()

    def choose(
        self, objective: Objective, rule: AtSize | Reaches, scores: Tensor, generator: torch.Generator | None
    ) -> Found:
        found = super().choose(objective, rule, scores, generator)
        return ask_others(objective, rule, found, generator, self.otherwise)

    def rank(self, objective: Objective, generator: torch.Generator | None) -> Tensor:
        objective.num_evaluations += self.num_evaluations
        return self.score(objective)


# Whom to ask where no prefix of an order meets the targets: from the cheapest to the most thorough.
OTHERS = ("recency", "backward_elimination", "greedy_search")


def ask_others(
    objective: Objective,
    rule: AtSize | Reaches,
    found: Found,
    generator: torch.Generator | None,
    solvers: tuple[str, ...] = OTHERS,
) -> Found:
    """`found`, with the answers of other solvers, by name, in the windows where the rule was not met so far."""
    for name in solvers if isinstance(rule, Reaches) else ():
        windows = (~found.reached).nonzero()[:, 0]
        if not len(windows):
            break
        assert isinstance(rule, Reaches)
        part = objective.part(windows)
        other = get_solver(name).search(part, rule.part(windows), generator)
        objective.num_evaluations[windows] += part.num_evaluations
        found.record(windows[other.reached], other.distill_mask[other.reached])
    return found


def prefix_curve(objective: Objective, ranks: Tensor) -> Tensor:
    """dppl_left when the first 0, 1, ... L events of an order, `ranks` (B, L), are distilled: (B, L + 1).

    Beyond a window's own events it stays where it ends.
    """
    num_events = objective.history.sum(1, keepdim=True)
    sizes = torch.arange(objective.history.shape[1] + 1, device=ranks.device).expand(len(ranks), -1)
    windows, size = (sizes <= num_events).nonzero(as_tuple=True)
    curve = objective.full.new_zeros(sizes.shape)
    curve[windows, size] = objective.dppl_left(ranks[windows] < size[:, None], windows)
    return curve.gather(1, sizes.minimum(num_events))


def first_prefix(
    objective: Objective, rule: AtSize | Reaches, ranks: Tensor, per_step: int | None = None
) -> tuple[Found, Tensor | None]:
    """The same as `best_prefix` without a curve: prefixes are evaluated from the smallest on, `per_step` sizes at a
    time (if not given, as many as fill a batch), and a window is done as soon as one meets the rule. Larger ones need
    not be looked at, smaller ones must: curves are not always monotone. Also gives the curve (B, L + 1) as far as it
    was evaluated, inf elsewhere; none for a size."""
    if isinstance(rule, AtSize):
        return best_prefix(objective, rule, ranks, None), None
    found, windows, start = Found(objective), objective.windows, 0
    num_events, num_history = objective.history.sum(1), objective.history.shape[1]
    curve = objective.full.new_full((len(ranks), num_history + 1), torch.inf)
    while len(windows):
        until = start + (per_step or -(-objective.max_rows // len(windows)))
        sizes = torch.arange(start, min(until, num_history + 1), device=ranks.device)
        row, step = (sizes <= num_events[windows, None]).nonzero(as_tuple=True)
        masks = (ranks[windows[row]] < sizes[step, None]) & objective.history[windows[row]]
        left = objective.dppl_left(masks, windows[row])
        met = torch.zeros(len(windows), len(sizes), dtype=torch.bool, device=ranks.device)
        met[row, step] = rule.met(objective, masks, windows[row], left)
        curve[windows[row], sizes[step]] = left
        done = met.any(1)
        smallest = start + met[done].to(torch.uint8).argmax(1)
        prefix = (ranks[windows[done]] < smallest[:, None]) & objective.history[windows[done]]
        found.record(windows[done], prefix, curve[windows[done], smallest])
        start = until
        windows = windows[~done]
        windows = windows[num_events[windows] >= start]
    return found, curve


def bisected_prefix(objective: Objective, rule: AtSize | Reaches, ranks: Tensor) -> Found:
    """A prefix of an order, `ranks` (B, L), that meets the rule while the one an event shorter does not: in about
    log2(L) evaluations. It is the smallest that does only where the curve falls all along; about a third do not.

    Where the whole history does not meet the rule, every prefix is tried.
    """
    if isinstance(rule, AtSize):
        return best_prefix(objective, rule, ranks, None)
    low, high = torch.zeros_like(objective.windows), objective.history.sum(1)

    def prefix(size: Tensor, windows: Tensor) -> Tensor:
        return (ranks[windows] < size[:, None]) & objective.history[windows]

    met_by_none, met_by_all = (
        rule.met(objective, prefix(size, objective.windows), objective.windows) for size in (low, high)
    )
    found = Found(objective)
    high[met_by_none] = 0
    while len(windows := ((high - low > 1) & met_by_all).nonzero()[:, 0]):
        middle = (low[windows] + high[windows]) // 2
        met = rule.met(objective, prefix(middle, windows), windows)
        high[windows[met]], low[windows[~met]] = middle[met], middle[~met]
    reached = (met_by_none | met_by_all).nonzero()[:, 0]
    found.record(reached, prefix(high[reached], reached))
    rest = (~found.reached).nonzero()[:, 0]
    if len(rest):
        part = objective.part(rest)
        other, _ = first_prefix(part, rule.part(rest), ranks[rest])
        objective.num_evaluations[rest] += part.num_evaluations
        found.record(rest[other.reached], other.distill_mask[other.reached])
    return found


def best_prefix(objective: Objective, rule: AtSize | Reaches, ranks: Tensor, curve: Tensor | None) -> Found:
    """The smallest prefix of an order, `ranks` (B, L), that meets the rule; `curve` is its `prefix_curve`."""
    found = Found(objective)
    if isinstance(rule, AtSize):
        found.record(objective.windows, ranks < torch.as_tensor(rule.size)[:, None])
        return found
    assert curve is not None
    windows, size = (rule.margin(objective.windows[:, None], curve, None) >= 0).nonzero(as_tuple=True)
    met = torch.zeros_like(curve, dtype=torch.bool)
    masks = ranks[windows] < size[:, None]
    met[windows, size] = rule.met(objective, masks & objective.history[windows], windows, curve[windows, size])
    reached = met.any(1).nonzero()[:, 0]
    smallest = met[reached].to(torch.uint8).argmax(1)
    prefix = (ranks[reached] < smallest[:, None]) & objective.history[reached]
    found.record(reached, prefix, curve[reached, smallest])
    return found


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


def ranks_of(scores: Tensor, history: Tensor) -> Tensor:
    """Place of each event when sorted by falling `scores` (..., B, L), from 0; padding comes last."""
    order = scores.masked_fill(~history, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1)


def flip_each(masks: Tensor, events: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every way to flip one of `events` (A, L) in `masks` (A, L): rows (R,), events (R,), flipped masks (R, L)."""
    rows, positions = events.nonzero(as_tuple=True)
    flipped = masks[rows]
    flipped[torch.arange(len(rows), device=rows.device), positions] ^= True
    return rows, positions, flipped


def best_of_each(
    scores: Tensor, rows: Tensor, columns: Tensor, num_rows: int, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Highest of the `scores` (R,) of each row, and its column: (A,) each; -inf where a row has none.

    `rows`, `columns` (R,) say where in a table of A rows each score stands.
    """
    table = scores.new_full((num_rows, max(num_columns, 1)), -torch.inf)
    table[rows, columns] = scores
    best = table.max(dim=1)
    return best.values, best.indices
