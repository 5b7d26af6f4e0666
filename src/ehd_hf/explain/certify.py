"""The certificate: search in the model's precision, measure in double, search again where rounding decides, judge."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..models.distiller import DistillerModel
from ..models.perplexity import dppl_parts
from ..models.point_process import MTPPModel
from ..models.question import MARGIN, Conditioning, Question
from ..models.window import Window, places_of
from ..solvers.base import AtSize, Objective, Solver, get_solver, rule_for
from ..solvers.prefix import RankedBy, ask_others, first_prefix, prefix_curve
from ..solvers.refine import PRUNING, Refine, best_of_size
from .explanation import Status

# What orders events where no distiller does; without gates (see `models.from_function`), by deletions alone.
SOLVER, SOLVER_WITHOUT_GATES = "integrated_gradient", "greedy_search"
# How far off a search in single precision may be; where that could matter it is repeated in double.
_ROUNDING = 1e-4
# What is measured of an answer, named as in `Explanation`, always in this order.
_MEASURED = ("dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark")
# Below that, not even double precision can tell whether a history helps or misleads.
_NOTHING = 1e-9


class Answer(NamedTuple):
    """What was found and measured in B windows, by columns."""

    history: Tensor  # (B, L), True where there is an event
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


class AdditiveObjective(Objective):
    """The same of a model in which every event simply adds something: one pass serves all masks of a window."""

    def __init__(self, mtpp: Any, window: Window, *, conditioning: Conditioning) -> None:
        self.future = mtpp.future_of_masks(window, conditioning)
        super().__init__(mtpp, window, conditioning=conditioning)

    def part(self, windows: Tensor) -> Objective:
        part: Any = super().part(windows)
        part.future = self.future.rows(windows)
        return part

    def _log_perplexity(self, kept: Tensor, windows: Tensor) -> Tensor:
        self.num_evaluations += torch.bincount(windows, minlength=len(self.windows))
        return -self.future.log_prob(kept, windows) / self.window.num_scored[windows]


class _Search(NamedTuple):
    """What a search chose: `reached` (B,) is met by a margin, and pruned if that was asked; `closest` (B,) is then by
    how much its most dispensable event is needed, negative. `empty` (B,): dppl of the empty history, if evaluated."""

    distill_mask: Tensor
    scores: Tensor
    reached: Tensor
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
        window = question.about(window)
        search = self._search(self.mtpp, window.to(self.mtpp.dtype), question, curves)
        values = self._measure(double, window, question, search.distill_mask)
        doubtful = self._doubtful(question, search, values)
        if doubtful.any():
            part = window.rows(doubtful.nonzero()[:, 0])
            again = self._search(double, part, question, curves, search.scores[doubtful])
            for before, after in zip(search, again, strict=True):
                if before is not None and after is not None:
                    before[doubtful] = after
            values[:, doubtful] = self._measure(double, part, question, again.distill_mask)
        columns = dict(zip(_MEASURED, values.tolist(), strict=True)) | self._judged(window, question, search, values)
        return Answer(window.history, search.distill_mask, search.scores, search.curve if curves else None, columns)

    def _judged(self, window: Window, question: Question, search: _Search, values: Tensor) -> dict[str, list[Any]]:
        left, distilled, empty = values[:3]
        met, nothing = question.met(left, distilled, empty), empty > -_NOTHING
        if question.share is None:
            nothing &= ~met
        one_minimal = search.reached & question.met(left, distilled, empty, MARGIN) & ~nothing & question.prunes
        met = met & ~nothing
        if question.size is not None:
            met = met & (search.distill_mask.sum(1) == window.history.sum(1).clamp(max=question.size))
            met = met & (left < 0)  # events without which the future is likelier explain nothing
        status = torch.where(met, 0, torch.where(nothing, 1, 2))
        return {
            "status": [get_args(Status)[number] for number in status.tolist()],
            "one_minimal": [checked or None for checked in one_minimal.tolist()],  # not checked is not False
        }

    def _search(
        self, mtpp: MTPPModel, window: Window, question: Question, curves: bool, scores: Tensor | None = None
    ) -> _Search:
        """Rank, evaluate the prefixes, take the smallest that meets the target, prune; as far as `refine` says. The
        order is that of `scores` (B, L), if given."""
        if question.refine == "none":
            assert self.distiller is not None
            chosen, shown = self.distiller.distill(window.to(self.distiller.dtype))
            return _Search(chosen, shown.double(), torch.ones_like(chosen[:, 0]))
        kind = AdditiveObjective if hasattr(mtpp, "future_of_masks") else Objective
        objective = kind(mtpp, window, conditioning=question.conditioning)
        history = objective.history
        rule = rule_for(question, objective, MARGIN)
        generator = torch.Generator(device=history.device).manual_seed(0)
        # A solver that chooses sets does not order events; the default's order then gives the curve, and a set where
        # the solver fails.
        orders = self.solver if self.solver.orders else self.ordering
        scores = orders.rank(objective, generator) if scores is None else scores
        places = places_of(scores, history)
        curve = prefix_curve(objective, places) if curves else None
        if not self.solver.orders:
            result = self.solver.solve(objective, rule, generator=generator)
            # A solver that judges sets by their mean may return one that misses the target.
            chosen = result.distill_mask
            reached = result.reached & rule.met(objective, chosen, objective.windows)
        else:
            prefix, curve = first_prefix(objective, rule, places, curve)
            if question.prunes:
                prefix = ask_others(objective, rule, prefix, generator)
            chosen, reached = prefix.distill_mask, prefix.reached
            if isinstance(rule, AtSize) and question.refine == "prune" and len(chosen):
                chosen = best_of_size(objective, rule, chosen)
        closest = None
        if question.prunes:
            pruned = Refine(start=chosen, scores=scores, **PRUNING).search(objective, rule, generator)
            chosen, reached, closest = pruned.distill_mask, pruned.reached, pruned.closest.double()
        empty = objective.dppl_left(history) if question.size is None else None
        if question.share is not None:
            assert empty is not None
            reached = reached & (empty < 0)
        if not reached.all():
            # Where the target is out of reach, take the prefix that lowers dppl most.
            rest = (~reached).nonzero()[:, 0]
            curve_of_rest = prefix_curve(objective.part(rest), places[rest])
            lowest = (places[rest] < curve_of_rest.argmin(1)[:, None]) & history[rest]
            chosen = chosen.index_copy(0, rest, lowest)
        curve, empty = (None if value is None else value.double() for value in (curve, empty))
        return _Search(chosen, scores.double(), reached, curve, closest, empty)

    def _doubtful(self, question: Question, search: _Search, values: Tensor) -> Tensor:
        """Where rounding may have decided the answer, (B,): times far from their origin, or a value at a limit."""
        if question.refine == "none" or self.mtpp.dtype == torch.float64:
            return torch.zeros_like(search.reached)
        left, distilled, empty = values[:3]
        doubtful = search.reached & ~question.met(left, distilled, empty, MARGIN)
        if search.empty is not None:
            doubtful |= ~((search.empty - empty).abs() <= _ROUNDING)
        if search.curve is not None and question.size is None:
            limit = question.limit(empty)[:, None] - MARGIN
            doubtful |= ((search.curve - limit).abs() <= _ROUNDING).any(1)
        if search.closest is not None:
            # An event that only just cannot be spared may be one that can.
            doubtful |= search.reached & (search.closest > -_ROUNDING)
        if question.delta is not None:
            doubtful |= ~search.reached
        return doubtful

    def _measure(self, mtpp: MTPPModel, window: Window, question: Question, distill_mask: Tensor) -> Tensor:
        """`_MEASURED` of what is left, of what is distilled and of nothing: (5, B)."""
        history = window.history
        sets = torch.stack([history & ~distill_mask, distill_mask, torch.zeros_like(history)]).to(window.times.dtype)
        drops = dppl_parts(mtpp, window.to(mtpp.dtype), sets, conditioning=question.conditioning)
        return torch.cat([drops.total, drops.time[:1], drops.mark[:1]])
