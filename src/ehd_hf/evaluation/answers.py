"""Which method finds the smaller explanation, at what cost? All on the same windows, point process and target.

A method is a solver, by name; "distiller" is the order a trained distiller gives. Options follow a colon, and what to
do with its answer a plus sign: `integrated_gradient:per_round=2`, `greedy_search+drop` (drop what can be spared),
`distiller+prune` (as explanations are pruned: one swap too), `recency+swap` (up to four).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_type_hints

import numpy as np
import torch

from .. import __version__
from ..data.windows import WindowStore
from ..explain.explanation import MARGIN
from ..models.distiller import DistillerModel
from ..models.perplexity import Conditioning
from ..models.point_process import MTPPModel
from ..solvers.base import OTHERS, Explains, Objective, RankedBy, Solver, available_solvers, get_solver
from ..solvers.refine import PRUNING
from .scores import BATCH_SIZE, DISTILLER, Answers, check_vocabulary, in_double, solver_answers
from .statistics import mean_interval

Row = dict[str, Any]

# What may follow a plus sign: options of `solvers.refine`.
REFINEMENTS: dict[str, dict[str, Any]] = {"drop": {"max_swaps": 0}, "prune": PRUNING, "swap": {"max_swaps": 4}}


def get_method(spec: str, distiller: DistillerModel | None = None) -> Solver:
    """The solver a method's name stands for; see the module's text."""
    name, plus, refinement = spec.partition("+")
    name, colon, listed = name.partition(":")
    options: dict[str, int | str] = {}
    for option in listed.split(",") if colon else ():
        key, _, text = option.partition("=")
        if not (key and text):
            raise ValueError(f"A solver's options read name:option=value,option=value; got {spec!r}.")
        options[key] = int(text) if text.removeprefix("-").isdecimal() else text
    if name == DISTILLER:
        if distiller is None or options:
            raise ValueError(f"{DISTILLER!r} stands for a trained distiller and has no options; got {spec!r}.")
        solver: Solver = RankedBy(
            score=_scores_of(distiller), num_evaluations=distiller.num_evaluations, otherwise=OTHERS
        )
    else:
        plain = get_solver(name)
        for key, value in options.items():
            wanted = get_type_hints(type(plain)).get(key, type(value))
            if not isinstance(value, wanted):
                what = "a name" if isinstance("", wanted) else "a whole number"
                raise ValueError(f"{key} of {name} must be {what}; got {value!r}.")
        solver = get_solver(name, **options)
    if not plus:
        return solver
    if refinement not in REFINEMENTS:
        raise ValueError(f"After + stands one of {', '.join(REFINEMENTS)}; got {refinement!r}.")
    return get_solver("refine", start=solver, **REFINEMENTS[refinement])


def get_ranking(spec: str, distiller: DistillerModel | None = None) -> Solver:
    """The same where an order of all events is asked for, not a set of them."""
    solver = get_method(spec, distiller)
    if not solver.orders:
        orders = [name for name in available_solvers() if get_solver(name).orders]
        raise ValueError(
            f"an order of all events is needed, as {DISTILLER}, {', '.join(orders)} give one; got {spec!r}, which "
            "finds sets of events. Leave it out."
        )
    return solver


def _scores_of(distiller: DistillerModel) -> Any:
    return lambda objective: distiller.history_scores(
        objective.times, objective.marks, objective.mask, objective.num_future
    )


def compare(
    mtpp: MTPPModel,
    windows: WindowStore,
    methods: Iterable[str],
    *,
    distiller: DistillerModel | None = None,
    epsilon: float | None = None,
    share: float | None = None,
    delta: float | None = None,
    reference: str = "greedy_search",
    known: Callable[[Row], Row | None] = lambda key: None,
    conditioning: Conditioning = "survival",
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """One row for each of `methods`: the size of its sets that meet the target, beside the same windows of the others.

    Where dppl of the empty history is 0 or above the history explains nothing (`explains_nothing`, share of windows);
    such windows are left out of every other figure.

    Keys: `size` (L where a method does not reach the target) with `_std` over windows and a 95 % interval of the mean,
    `_low` and `_high`, by bootstrap over sequences; `sizes`, of every window; `difference` of the sizes from those of
    `reference`, paired, with its interval; `reached` (share of windows); `verified`, the share of the reached whose
    target holds when the deleted sequence is built and scored from scratch in float64; `recency_overlap`, the share of
    a set that is among the last events; means of `dppl_left`, `dppl_distilled`, `evaluations`; `seconds_per_window`,
    and `time_ratio` to the reference's.

    Args:
        mtpp: the point process explained.
        methods: names as in `get_method`; `reference` is run in any case.
        distiller: what "distiller" stands for.
        epsilon, share, delta: the target, see `solvers.base.Explains`; met with the margin of a certificate.
        known: asked before a row is computed, with what identifies it: the row itself if there is one.
        stamp: what else each row says (data, split, ...).
    """
    target = Explains(epsilon=epsilon, share=share, delta=delta, margin=MARGIN)
    solvers = {method: get_method(method, distiller) for method in dict.fromkeys([reference, *methods])}
    if distiller is not None:
        check_vocabulary(distiller, windows)
    chosen = windows.select(where_explained([mtpp], windows, conditioning, batch_size))
    groups = chosen.sequence_index
    how: dict[str, Any] = {"conditioning": conditioning, "batch_size": batch_size}
    said = f"epsilon {epsilon}" if share is None else f"share {share}"
    said += "" if delta is None else f", delta {delta}"
    base: Row = {"task": "explain", "pair": f"{chosen.future}-{chosen.history}", **stamp, "target": said}
    base |= {"epsilon": epsilon, "share": share, "delta": delta, "reference": reference, **how}
    base |= {"num_windows": len(chosen), "num_sequences": len(np.unique(groups)), "generator_seed": generator_seed}
    base |= {"explains_nothing": 1 - len(chosen) / len(windows), "version": __version__}
    anchor: Row | None = None
    for method, solver in solvers.items():
        row = known({**base, "solver": method})
        if row is None:
            answers = solver_answers(
                solver, mtpp, chosen, lambda rows: target, seed=generator_seed, progress=progress, name=method, **how
            )
            row = {**base, "solver": method, **_measured(answers, chosen)}
            verified = verify(mtpp, chosen, answers.distill_mask, target, conditioning, answers.reached)
            row["verified"] = float(verified.mean()) if len(verified) else None
            difference = np.array(row["sizes"]) - np.array((anchor or row)["sizes"])
            row["difference"] = float(difference.mean())
            row["difference_low"], row["difference_high"] = mean_interval(difference, groups)
            row["time_ratio"] = row["seconds_per_window"] / (anchor or row)["seconds_per_window"]
        anchor = anchor or row
        yield row


def _measured(answers: Answers, windows: WindowStore) -> Row:
    """What a method's answers are worth by themselves."""
    sizes = np.where(answers.reached, answers.sizes, windows.history)
    row: Row = {"size": float(sizes.mean()), "size_std": float(sizes.std())}
    row["size_low"], row["size_high"] = mean_interval(sizes, windows.sequence_index)
    means = {
        "reached": answers.reached,
        "dppl_left": answers.dppl_left,
        "dppl_distilled": answers.dppl_distilled,
        "evaluations": answers.num_evaluations,
        "recency_overlap": _among_the_last(answers.distill_mask),
    }
    row |= {name: float(np.mean(values)) for name, values in means.items()}
    row |= {"seconds_per_window": answers.seconds / len(windows), "threads": torch.get_num_threads()}
    return row | {"sizes": sizes.tolist()}


def where_explained(
    mtpps: Iterable[MTPPModel], windows: WindowStore, conditioning: Conditioning, batch_size: int
) -> np.ndarray:
    """Indices of the windows whose history explains something to each of `mtpps`: dppl of the empty history is < 0."""
    empty = [dppl_of_empty(mtpp, windows, conditioning, batch_size) for mtpp in mtpps]
    found = np.flatnonzero((np.array(empty) < 0).all(0))
    if not len(found):
        raise ValueError(
            f"there must be a window whose history explains something; got none among {len(windows)}. Take more "
            "windows, or a point process that has learnt more."
        )
    return found


def dppl_of_empty(mtpp: MTPPModel, windows: WindowStore, conditioning: Conditioning, batch_size: int) -> np.ndarray:
    """(W,) dppl of the empty history: what the whole history explains."""
    values = []
    for start in range(0, len(windows), batch_size):
        batch = windows.__getitems__(np.arange(start, min(start + batch_size, len(windows))))
        times, marks, mask = (batch[key].to(mtpp.device) for key in ("times", "marks", "mask"))
        objective = Objective(mtpp, times, marks, mask, windows.future, conditioning=conditioning)
        values.append(objective.dppl_left(objective.history).cpu().numpy())
    return np.concatenate(values) if values else np.empty(0)


@torch.no_grad()
def verify(
    mtpp: MTPPModel,
    windows: WindowStore,
    distill_mask: np.ndarray,
    target: Explains,
    conditioning: Conditioning,
    rows: np.ndarray,
) -> np.ndarray:
    """Whether the target holds for `distill_mask` (W, L) where `rows` (W,) is True, checked by other means than those
    of the search: one window at a time, the deleted sequence built anew, scored in float64."""
    double = in_double(mtpp)

    def log_perplexity(times: torch.Tensor, marks: torch.Tensor, kept: torch.Tensor) -> float:
        split = times[windows.history - 1 : windows.history] if conditioning == "survival" else None
        left, names = times[kept][None], marks[kept][None]
        there = torch.ones_like(names, dtype=torch.bool)
        output = double.event_log_prob(left, names, there, survived_until=split)
        return -float(output.log_prob[0, -windows.future :].mean())

    holds = []
    everything = torch.ones(windows.history + windows.future, dtype=torch.bool, device=mtpp.device)
    for row in np.flatnonzero(rows):
        times, marks = (values[0].to(mtpp.device) for values in windows.gather(np.array([row])))
        times = times.double()
        left, distilled, empty = everything.clone(), everything.clone(), everything.clone()
        chosen = torch.from_numpy(distill_mask[row]).to(mtpp.device)
        left[: windows.history], distilled[: windows.history], empty[: windows.history] = ~chosen, chosen, False
        full, rest = log_perplexity(times, marks, everything), log_perplexity(times, marks, left)
        if target.share is not None:
            met = full - rest <= target.share * (full - log_perplexity(times, marks, empty))
        else:
            assert target.epsilon is not None
            met = full - rest < np.log(target.epsilon)
        if target.delta is not None:
            met &= full - log_perplexity(times, marks, distilled) >= -target.delta
        holds.append(bool(met))
    return np.array(holds, dtype=bool)


def _among_the_last(distill_mask: np.ndarray) -> np.ndarray:
    """Share of each set (W, L) that is among the last events, as many as the set has; empty sets left out."""
    size = distill_mask.sum(1, keepdims=True)
    last = np.arange(distill_mask.shape[1]) >= distill_mask.shape[1] - size
    some = size[:, 0] > 0
    return (distill_mask & last).sum(1)[some] / size[some, 0]
