"""The certificate: search in the model's precision, measure in double, search again where rounding decides, judge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..models.distiller import DistillerModel
from ..models.perplexity import DpplParts, dppl_parts, keep_gradient
from ..models.point_process import MTPPModel
from ..models.question import MARGIN, Conditioning, Question
from ..models.window import Window, asked_of, places_of
from ..solvers.base import AtSize, Objective, Reaches, Rule, Solver, get_solver, rule_for
from ..solvers.prefix import FALLBACKS, RankedBy, ask_others, first_prefix, prefix_curve
from ..solvers.refine import PRUNING, Refine, best_of_size
from .explanation import LEAST_FACTOR, Status

# What orders events where no distiller does; without gates (see `models.from_function`), by deletions alone.
SOLVER, SOLVER_WITHOUT_GATES = "integrated_gradient", "greedy_search"
# How far off a search in single precision may be; where that could matter it is repeated in double.
_ROUNDING = 1e-4
# What is measured of an answer, named as in `Explanation`, always in this order.
_MEASURED = ("dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark", "dppl_strongest")
# Below that, not even double precision can tell whether a history helps or misleads.
_NOTHING = 1e-9
# An empty history lies outside what a model was trained on. Where the future is less likely without any history by no
# more than LEAST_FACTOR, shares are of what the events explain whose loss hurts most, if that is more.
# So many events of a longer history may be part of an answer, unless one pass answers for all masks.
_LONG, _MOST_CANDIDATES = 150, 100


class Answer(NamedTuple):
    """What was found and measured in B windows, by columns."""

    history: Tensor  # (B, L), True where there is an event
    candidates: Tensor  # (B, L), those that may explain
    distill_mask: Tensor  # (B, L)
    scores: Tensor  # (B, L)
    curve: Tensor | None  # (B, L + 1) dppl_left of the prefixes that were evaluated, inf elsewhere
    columns: dict[str, list[Any]]  # what an `Explanation` takes over under the same name, B each

    def explaining(self) -> Tensor:
        """The distilled events (B, L) of windows that are explained; a set that misses its target is no answer."""
        explained = [status == "explained" for status in self.columns["status"]]
        return self.distill_mask & torch.tensor(explained, device=self.history.device)[:, None]

    def check_finite(self, names: Any) -> None:
        """Refuse answers that are not numbers, by the name of the first sequence that has one."""
        scores = self.scores.masked_fill(~self.history, 0.0).cpu()
        bad = ~np.isfinite(np.column_stack([scores, *(self.columns[name] for name in _MEASURED)])).all(1)
        if bad.any():
            name = names[int(bad.argmax())]
            fix = "Check the model's weights for NaN, and the times for gaps far beyond those the model was trained on"
            raise ValueError(f"an explanation must be made of numbers; sequence {name!r} has none. {fix}.")


@dataclass(frozen=True)
class OfKinds(Question):
    """A question to which only events of some marks may be the answer; all others are always kept."""

    only: tuple[int, ...] = ()


class CertifiedObjective(Objective):
    """dppl of any part of the events that may explain; the others of the history are always kept. Where every event
    simply adds something (see `HawkesModel.future_of_masks`), one pass serves all masks of a window."""

    def __init__(
        self, mtpp: Any, window: Window, conditioning: Conditioning, candidates: Tensor, future: Any = None
    ) -> None:
        self.future = future and future.together()
        self.fixed: Tensor | None = None
        super().__init__(mtpp, window, conditioning=conditioning)
        if not torch.equal(candidates, self.history):
            self.fixed, self.history = self.history & ~candidates, candidates

    def part(self, windows: Tensor) -> Objective:
        part: Any = super().part(windows)
        part.future = self.future and self.future.rows(windows)
        part.fixed = None if self.fixed is None else self.fixed[windows]
        return part

    def slopes(self, gates: Tensor, windows: Tensor) -> Tensor:
        gates = gates if self.fixed is None else gates + self.fixed[windows]
        if self.future is None or self.future.silence is not None:
            return super().slopes(gates, windows)
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        with torch.enable_grad():
            gates = gates.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(self.future.log_prob(gates, windows).sum(), gates)
        return slopes / self.window.num_scored[windows, None]

    def _log_perplexity(self, kept: Tensor, windows: Tensor) -> Tensor:
        kept = kept if self.fixed is None else kept | self.fixed[windows]
        if self.future is None:
            return super()._log_perplexity(kept, windows)
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        return -self.future.log_prob(kept, windows) / self.window.num_scored[windows]


def may_explain(window: Window, question: Question) -> Tensor:
    """The events of the history that may be part of an answer, (B, L)."""
    if not isinstance(question, OfKinds):
        return window.history
    marks = torch.tensor(question.only, device=window.marks.device)
    return window.history & torch.isin(window.marks[:, : window.num_history], marks)


class _Search(NamedTuple):
    """What a search chose: `reached` (B,) is met by a margin, and pruned if that was asked; `closest` (B,) is then by
    how much its most dispensable event is needed, negative. `empty` (B,): dppl of the empty history, if evaluated."""

    distill_mask: Tensor
    scores: Tensor
    reached: Tensor
    candidates: Tensor  # (B, L) the events that may be part of an answer; the others are always kept
    strongest: Tensor  # (B, L) the events by whose loss a share is measured: all, where that hurts
    curve: Tensor | None = None
    closest: Tensor | None = None
    empty: Tensor | None = None


class Certifier:
    """Answers questions with one model and one solver: the one given, or the distiller's scores, or the default."""

    def __init__(self, model: DistillerModel | MTPPModel, solver: Solver | None) -> None:
        self.distiller = model if isinstance(model, DistillerModel) else None
        self.mtpp: MTPPModel = model.mtpp if isinstance(model, DistillerModel) else model
        self.ordering = get_solver(SOLVER if self.mtpp.has_gates else SOLVER_WITHOUT_GATES)
        own = self.distiller and RankedBy(score=self._scores, num_evaluations=self.distiller.num_evaluations)
        self.solver: Solver = solver or own or self.ordering
        # An ensemble answers by its first member. The others are asked without a distiller: it knows the first.
        members: Any = getattr(self.mtpp, "members", ())
        self.others = [Certifier(member, solver) for member in members[1:]]

    def _scores(self, objective: Objective) -> Tensor:
        assert self.distiller is not None
        return self.distiller.history_scores(objective.window.to(self.distiller.dtype))  # which may be in double

    def answers(self, window: Window, question: Question, double: MTPPModel, *, curves: bool = True) -> list[Answer]:
        """`answer`, and those of `others`. A distiller's own answer stands alone: they have no distiller."""
        own, members = self.answer(window, question, double, curves=curves), getattr(double, "members", ())
        others = zip(self.others, members[1:], strict=False) if question.refine != "none" else ()
        return [own, *(other.answer(window, question, member, curves=False) for other, member in others)]

    @torch.no_grad()
    def answer(self, window: Window, question: Question, double: MTPPModel, *, curves: bool = True) -> Answer:
        """What explains each window, whose times are float64. Without `curves`, no prefix is evaluated that the answer
        does not need."""
        window = asked_of(double, question.about(window))
        if hasattr(double, "future_of_masks") and question.refine != "none":
            # One pass serves all masks, in double at once.
            additive: Any = double
            future = additive.future_of_masks(window, question.conditioning, apart=True)
            search = self._search(double, window, question, curves, future=future)
            values = self._measure(double, window, question, search, future)
            columns = dict(zip(_MEASURED, values.tolist(), strict=True))
            columns |= self._judged(window, question, search, values)
            return _answer(window, search, columns, curves)
        search = self._search(self.mtpp, window.to(self.mtpp.dtype), question, curves)
        values = self._measure(double, window, question, search)
        doubtful = self._doubtful(question, search, values)
        if doubtful.any():
            part = window.rows(doubtful.nonzero()[:, 0])
            known = (search.candidates[doubtful], search.scores[doubtful])
            again = self._search(double, part, question, curves, known)
            for before, after in zip(search, again, strict=True):
                if before is not None and after is not None:
                    before[doubtful] = after
            values[:, doubtful] = self._measure(double, part, question, again)
        columns = dict(zip(_MEASURED, values.tolist(), strict=True)) | self._judged(window, question, search, values)
        return _answer(window, search, columns, curves)

    def _judged(self, window: Window, question: Question, search: _Search, values: Tensor) -> dict[str, list[Any]]:
        left, distilled, strongest = values[0], values[1], values[5]
        met, nothing = question.met(left, distilled, strongest), strongest > -_NOTHING
        if question.share is None:
            nothing &= ~met & ~(left < -math.log(LEAST_FACTOR))
        one_minimal = search.reached & question.met(left, distilled, strongest, MARGIN) & ~nothing & question.prunes
        met = met & ~nothing
        if question.size is not None:
            met = met & (search.distill_mask.sum(1) == search.candidates.sum(1).clamp(max=question.size))
            met = met & (left < 0)  # events without which the future is likelier explain nothing
        status = torch.where(met, 0, torch.where(nothing, 1, 2))
        return {
            "status": [get_args(Status)[number] for number in status.tolist()],
            "one_minimal": [checked or None for checked in one_minimal.tolist()],  # not checked is not False
        }

    def _search(
        self,
        mtpp: MTPPModel,
        window: Window,
        question: Question,
        curves: bool,
        known: tuple[Tensor, Tensor] | None = None,
        future: Any = None,
    ) -> _Search:
        """Rank, evaluate the prefixes, take the smallest that meets the target, prune; as far as `refine` says.
        `known` are the candidates and the scores (B, L) of an earlier search."""
        if question.refine == "none":
            assert self.distiller is not None
            chosen, shown = self.distiller.distill(window.to(self.distiller.dtype))
            return _Search(
                chosen, shown.double(), torch.ones_like(chosen[:, 0]), *(window.history.clone() for _ in "12")
            )
        history = self._candidates(mtpp, window, question, future) if known is None else known[0]
        objective = CertifiedObjective(mtpp, window, question.conditioning, history, future)
        generator = torch.Generator(device=history.device).manual_seed(0)
        # A solver that chooses sets does not order events; the default's order then gives the curve, and a set where
        # the solver fails.
        orders = self.solver if self.solver.orders else self.ordering
        scores = orders.rank(objective, generator) if known is None else known[1]
        places = places_of(scores, history)
        curve = prefix_curve(objective, places) if curves else None
        empty = objective.dppl_left(history) if question.size is None else None
        strongest = history.clone() if empty is None else self._strongest(objective, places, empty)
        rule = rule_for(question, objective, MARGIN)
        if question.share is not None:
            rule = _rule_of_share(question, objective, objective.dppl_left(strongest))
        if not self.solver.orders:
            result = self.solver.solve(objective, rule, generator=generator)
            # A solver that judges sets by their mean may return one that misses the target.
            chosen = result.distill_mask
            reached = result.reached & rule.met(objective, chosen, objective.windows)
            enough = ~reached & rule.met(objective, strongest, objective.windows)
            chosen, reached = torch.where(enough[:, None], strongest, chosen), reached | enough
        else:
            prefix, curve = first_prefix(objective, rule, places, curve)
            if question.prunes:
                others = FALLBACKS if history.shape[1] <= _LONG else FALLBACKS[:1]  # the others ask every event anew
                prefix = ask_others(objective, rule, prefix, generator, others)
            chosen, reached = prefix.distill_mask, prefix.reached
            if isinstance(rule, AtSize) and question.refine == "prune" and len(chosen):
                chosen = best_of_size(objective, rule, chosen)
        closest = None
        if question.prunes:
            pruned = Refine(start=chosen, scores=scores, **PRUNING).search(objective, rule, generator)
            chosen, reached, closest = pruned.distill_mask, pruned.reached, pruned.closest.double()
        if question.share is not None:
            reached = reached & (objective.dppl_left(strongest) < 0)
        if not reached.all():
            # Where the target is out of reach, take the prefix that lowers dppl most.
            rest = (~reached).nonzero()[:, 0]
            curve_of_rest = prefix_curve(objective.part(rest), places[rest])
            lowest = (places[rest] < curve_of_rest.argmin(1)[:, None]) & history[rest]
            chosen = chosen.index_copy(0, rest, lowest)
        curve, empty = (None if value is None else value.double() for value in (curve, empty))
        scores = torch.where(history, scores, scores.masked_fill(~history, torch.inf).amin(1, keepdim=True) - 1)
        return _Search(chosen, scores.double(), reached, history.clone(), strongest, curve, closest, empty)

    def _candidates(self, mtpp: MTPPModel, window: Window, question: Question, future: Any) -> Tensor:
        """The events that may be part of an answer (B, L). Of a very long history the last ones and those whose gates
        have the steepest slopes: to ask every one of thousands would take minutes. Without gates, the last ones."""
        candidates = may_explain(window, question)
        is_long = candidates.sum(1, keepdim=True) > _LONG
        if future is not None or not is_long.any():
            return candidates
        scores = torch.arange(candidates.shape[1], device=candidates.device).to(window.times).expand(candidates.shape)
        if mtpp.has_gates:
            slopes = keep_gradient(mtpp, window, window.history, conditioning=question.conditioning)
            last = places_of(scores, candidates) < _MOST_CANDIDATES // 2
            scores = slopes.masked_fill(last, torch.inf)
        return candidates & ~(is_long & (places_of(scores, candidates) >= _MOST_CANDIDATES))

    def _strongest(self, objective: Objective, places: Tensor, empty: Tensor) -> Tensor:
        """The events (B, L) without which the future is least likely: all, or, where that is hardly a loss, the best
        prefix of their order, if that clearly is one."""
        history = objective.history
        odd = (empty > -math.log(LEAST_FACTOR)).nonzero()[:, 0]
        if not len(odd):
            return history.clone()
        curve = prefix_curve(objective.part(odd), places[odd])
        lowest, size = curve.min(1)
        prefix = (places[odd] < size[:, None]) & history[odd]
        clearly = lowest < -math.log(LEAST_FACTOR)
        return history.index_copy(0, odd, torch.where(clearly[:, None], prefix, history[odd]))

    def _doubtful(self, question: Question, search: _Search, values: Tensor) -> Tensor:
        """Where rounding may have decided the answer, (B,): times far from their origin, or a value at a limit."""
        if question.refine == "none" or self.mtpp.dtype == torch.float64:
            return torch.zeros_like(search.reached)
        left, distilled, empty, strongest = (values[row] for row in (0, 1, 2, 5))
        doubtful = search.reached & ~question.met(left, distilled, strongest, MARGIN)
        if search.empty is not None:
            doubtful |= ~((search.empty - empty).abs() <= _ROUNDING)
        if search.curve is not None and question.size is None:
            limit = question.limit(strongest)[:, None] - MARGIN
            doubtful |= ((search.curve - limit).abs() <= _ROUNDING).any(1)
        if search.closest is not None:
            # An event that only just cannot be spared may be one that can.
            doubtful |= search.reached & (search.closest > -_ROUNDING)
        if question.delta is not None:
            doubtful |= ~search.reached
        return doubtful

    def _measure(
        self, mtpp: MTPPModel, window: Window, question: Question, search: _Search, future: Any = None
    ) -> Tensor:
        """`_MEASURED` of what is left, of what is distilled, of nothing and without the strongest: (6, B)."""
        history, chosen = window.history, search.distill_mask
        fixed = history & ~search.candidates
        sets = torch.stack([history & ~chosen, chosen | fixed, fixed])
        window = window.to(mtpp.dtype)
        drops = _drops(mtpp, window, sets, question, future)
        strongest = drops.total[2].clone()
        if len(odd := (search.strongest != history & ~fixed).any(1).nonzero()[:, 0]):
            left = (history & ~search.strongest)[None, odd]
            part = future and future.rows(odd)
            strongest[odd] = _drops(mtpp, window.rows(odd), left, question, part).total[0]
        return torch.cat([drops.total, drops.time[:1], drops.mark[:1], strongest[None]])


def _answer(window: Window, search: _Search, columns: dict[str, list[Any]], curves: bool) -> Answer:
    curve = search.curve if curves else None
    return Answer(window.history, search.candidates, search.distill_mask, search.scores, curve, columns)


def _drops(mtpp: MTPPModel, window: Window, keep: Tensor, question: Question, future: Any) -> DpplParts:
    """`dppl_parts` of sets (S, B, L); of what answers for all masks, if there is that."""
    if future is None:
        return dppl_parts(mtpp, window, keep.to(window.times.dtype), conditioning=question.conditioning)
    history = window.history
    masks = torch.cat([history[None], keep & history])  # (1 + S, B, L)
    rows = torch.arange(len(history), device=history.device).repeat(len(masks))
    both, mark = (read(masks.flatten(0, 1), rows) for read in (future.log_prob, future.mark_log_prob))
    parts = (values.view(len(masks), -1) for values in (both, mark))
    total, mark = ((values[1:] - values[0]) / window.num_scored for values in parts)
    return DpplParts(total - mark, mark)


def _rule_of_share(question: Question, objective: Objective, strongest: Tensor) -> Rule:
    """As `rule_for`, the share taken of what the loss of the strongest events does (B,)."""
    distilled = None if question.delta is None else MARGIN - question.delta
    limit = question.limit(strongest)
    return Reaches(torch.where(strongest < 0, limit - MARGIN, limit), distilled, 0.0).bind(objective)
