"""What methods answer on many windows, and `compare`: which finds the smaller explanation, at what cost?

A method is the name of a solver; "distiller" is the order a trained distiller gives. Options follow a colon, and the
refinement of the answer a plus sign: `integrated_gradient:per_round=2`, `greedy_search+drop` (drop events that can be
spared), `distiller+prune` (as explanations are pruned: also one swap), `recency+swap` (up to four swaps).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.windows import WindowStore
from ..models.distiller import DistillerModel
from ..models.point_process import MTPPModel, in_double
from ..models.question import MARGIN, Conditioning, Question
from ..models.window import Window, asked_of, most_recent, silences_of
from ..solvers.base import Objective, Rule, Solver, SolverResult, get_solver, rule_for
from ..solvers.prefix import FALLBACKS, RankedBy
from ..solvers.refine import PRUNING
from .statistics import mean_interval

Row = dict[str, Any]
Batches = Generator[tuple[slice, Objective], None, None]

BATCH_SIZE = 250  # windows searched at once
DISTILLER = "distiller"  # stands among the solvers' names
# What may follow a plus sign: options of `solvers.refine`.
REFINEMENTS: dict[str, dict[str, Any]] = {"drop": {"max_swaps": 0}, "prune": PRUNING, "swap": {"max_swaps": 4}}


def get_method(spec: str, distiller: DistillerModel | None = None) -> Solver:
    """The solver that a name such as "greedy_search+drop" stands for; the module's docstring has the syntax."""
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
            score=lambda objective: distiller.history_scores(objective.window),
            num_evaluations=distiller.num_evaluations,
            otherwise=FALLBACKS,
        )
    else:
        types = get_type_hints(type(get_solver(name)))
        for key, value in options.items():
            if not isinstance(value, types.get(key, type(value))):
                what = "a name" if isinstance(value, int) else "a whole number"
                raise ValueError(f"{key} of {name} must be {what}; got {value!r}.")
        solver = get_solver(name, **options)
    if not plus:
        return solver
    if refinement not in REFINEMENTS:
        raise ValueError(f"After + stands one of {', '.join(REFINEMENTS)}; got {refinement!r}.")
    return get_solver("refine", start=solver, **REFINEMENTS[refinement])


# --- the loop over windows


class Answers(NamedTuple):
    """What one method answered on W windows: `distill_mask` (W, L), the other arrays (W,); `seconds` of CPU time in
    all, which other work on the machine changes little."""

    distill_mask: np.ndarray
    dppl_left: np.ndarray
    dppl_distilled: np.ndarray
    num_evaluations: np.ndarray
    reached: np.ndarray
    seconds: float

    @property
    def sizes(self) -> np.ndarray:
        """|H_d|, (W,)."""
        return self.distill_mask.sum(1)

    @property
    def ds(self) -> np.ndarray:
        """Distinguishment significance, (W,)."""
        return self.dppl_distilled - self.dppl_left


def objectives(
    mtpp: MTPPModel,
    windows: WindowStore,
    conditioning: Conditioning,
    batch_size: int = BATCH_SIZE,
    progress: str | None = None,
) -> Batches:
    """All windows, a batch at a time: which they are, and their objective. `progress` names a bar, if one is shown."""
    with tqdm(total=len(windows), unit="windows", desc=progress, disable=progress is None) as bar:
        for first in range(0, len(windows), batch_size):
            rows = slice(first, min(first + batch_size, len(windows)))
            batch = windows.__getitems__(np.arange(rows.start, rows.stop))
            times, marks, mask = (batch[key].to(mtpp.device) for key in ("times", "marks", "mask"))
            yield rows, Objective(mtpp, Window(times, marks, mask, windows.future), conditioning=conditioning)
            bar.update(rows.stop - rows.start)


def answer_windows(answer: Callable[[Objective, slice], SolverResult], batches: Batches) -> Answers:
    """What `answer` gives on the batches of `objectives`; all evaluations of an objective count as its own."""
    pieces, began = [], time.process_time()
    with closing(batches):  # an error ends the bar before it is told
        for rows, objective in batches:
            result = answer(objective, rows)
            values = (result.dppl_left.double(), result.dppl_distilled.double())
            pieces.append((result.distill_mask, *values, objective.num_evaluations, result.reached))
    seconds = time.process_time() - began
    columns = (torch.cat(column).cpu().numpy() for column in zip(*pieces, strict=True))
    return Answers._make([*columns, seconds])


def solver_answers(
    solver: Solver,
    mtpp: MTPPModel,
    windows: WindowStore,
    rule: Callable[[Objective, slice], Rule],
    *,
    conditioning: Conditioning = "paper",
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: str | None = None,
) -> Answers:
    """What a solver answers; `rule` gives the rule of an objective, whose windows are those of a slice."""
    generator = torch.Generator(device=mtpp.device).manual_seed(seed)

    def answer(objective: Objective, rows: slice) -> SolverResult:
        return solver.solve(objective, rule(objective, rows), generator=generator)

    return answer_windows(answer, objectives(mtpp, windows, conditioning, batch_size, progress))


def dppl_of_empty(mtpp: MTPPModel, windows: WindowStore, conditioning: Conditioning, batch_size: int) -> np.ndarray:
    """(W,) dppl of the empty history: what the whole history explains."""
    batches = objectives(mtpp, windows, conditioning, batch_size)
    values = [objective.dppl_left(objective.history).cpu().numpy() for _, objective in batches]
    return np.concatenate(values) if values else np.empty(0)


def where_explained(
    mtpps: Iterable[MTPPModel], windows: WindowStore, conditioning: Conditioning, batch_size: int
) -> np.ndarray:
    """Indices of the windows whose history explains something to each of `mtpps`: dppl of the empty history is < 0."""
    empty = [dppl_of_empty(mtpp, windows, conditioning, batch_size) for mtpp in mtpps]
    return np.flatnonzero((np.array(empty) < 0).all(0))


# --- methods side by side


def compare(
    mtpp: MTPPModel,
    windows: WindowStore,
    methods: Iterable[str],
    question: Question,
    *,
    distiller: DistillerModel | None = None,
    reference: str = "greedy_search",
    cache: Callable[[Row], Row | None] = lambda key: None,
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """One row for each of `methods`: the size of its sets that meet the target, on the same windows as the others.

    Where dppl of the empty history is 0 or above the history explains nothing (`explains_nothing`, share of windows);
    such windows are left out of every other figure. There are no rows if no window is left.

    Keys: `size` (L where a method does not reach the target) with `_std` over windows and a 95 % interval of the mean,
    `_low` and `_high`, by bootstrap over sequences; `sizes`, of every window; `difference` of the sizes from those of
    `reference`, paired, with its interval; `reached` (share of windows); `verified`, the share of the reached whose
    target holds when the deleted sequence is built and scored from scratch in float64; `recency_overlap`, the share of
    a set that is among the last events; means of `dppl_left`, `dppl_distilled`, `evaluations`; `seconds_per_window`,
    and `time_ratio` to the reference's.

    Args:
        methods: names as in `get_method`; `reference` is run in any case.
        question: an epsilon or a share, met with the margin of a certificate; with its delta and conditioning.
        cache: asked before a row is computed, with what identifies it: the row itself if there is one.
        stamp: what else each row says (data, split, ...).
    """
    solvers = {method: get_method(method, distiller) for method in dict.fromkeys([reference, *methods])}
    if distiller is not None:
        check_vocabulary(distiller, windows)
    chosen = windows.select(where_explained([mtpp], windows, question.conditioning, batch_size))
    if not len(chosen):
        return
    groups = chosen.sequence_index
    base: Row = {"task": "explain", "pair": f"{chosen.future}-{chosen.history}", **stamp, "target": question.label}
    base |= {name: getattr(question, name) for name in ("epsilon", "share", "delta")} | {"reference": reference}
    base |= {"conditioning": question.conditioning, "batch_size": batch_size}
    base |= {"num_windows": len(chosen), "num_sequences": len(np.unique(groups)), "generator_seed": generator_seed}
    base |= {"explains_nothing": 1 - len(chosen) / len(windows), "version": __version__}
    search: Any = {"conditioning": question.conditioning, "seed": generator_seed, "batch_size": batch_size}
    anchor: Row | None = None

    def rule(objective: Objective, rows: slice) -> Rule:
        return rule_for(question, objective, MARGIN)

    for method, solver in solvers.items():
        row = cache({**base, "solver": method})
        if row is None:
            answers = solver_answers(solver, mtpp, chosen, rule, **search, progress=method if progress else None)
            row = {**base, "solver": method, **_measured(answers, chosen)}
            verified = verify(mtpp, chosen, answers.distill_mask, question, answers.reached)
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
    masks, some = answers.distill_mask, answers.sizes > 0  # an empty set overlaps with nothing
    recent = most_recent(np.ones_like(masks), answers.sizes)
    means = {
        "reached": answers.reached,
        "dppl_left": answers.dppl_left,
        "dppl_distilled": answers.dppl_distilled,
        "evaluations": answers.num_evaluations,
        "recency_overlap": (masks & recent).sum(1)[some] / answers.sizes[some],
    }
    row |= {name: float(np.mean(values)) for name, values in means.items()}
    row |= {"seconds_per_window": answers.seconds / len(windows), "threads": torch.get_num_threads()}
    return row | {"sizes": sizes.tolist()}


@torch.no_grad()
def verify(
    mtpp: MTPPModel, windows: WindowStore, distill_mask: np.ndarray, question: Question, rows: np.ndarray
) -> np.ndarray:
    """Whether the target holds for `distill_mask` (W, L) where `rows` (W,) is True, checked by other means than those
    of the search: one window at a time, the deleted sequence built anew, scored in float64."""
    double = in_double(mtpp)

    def log_perplexity(times: torch.Tensor, marks: torch.Tensor, kept: torch.Tensor) -> float:
        split = times[windows.history - 1 : windows.history] if question.conditioning == "survival" else None
        left, names = times[kept][None], marks[kept][None]
        there = torch.ones_like(names, dtype=torch.bool)
        output = double.event_log_prob(left, names, there, survived_until=split)
        window = Window(left, names, there, windows.future)
        scores = output.log_prob[:, -windows.future :][silences_of(double, window)]
        return -float(scores.sum() / asked_of(double, window).num_scored)

    holds = []
    future = torch.ones(windows.future, dtype=torch.bool, device=mtpp.device)
    for row in np.flatnonzero(rows):
        times, marks = (values[0].to(mtpp.device) for values in windows.gather(np.array([row])))
        chosen = torch.from_numpy(distill_mask[row]).to(mtpp.device)
        full, *others = (
            log_perplexity(times.double(), marks, torch.cat([kept, future]))
            for kept in (torch.ones_like(chosen), ~chosen, chosen, torch.zeros_like(chosen))
        )
        holds.append(question.met(*(full - other for other in others)))
    return np.array(holds, dtype=bool)


def check_vocabulary(distiller: DistillerModel, windows: WindowStore) -> None:
    """Refuse windows of other marks than the distiller knows."""
    theirs, known = dict(windows.sequences.id2label), dict(distiller.config.mtpp_config.id2label)
    if theirs != known:
        expected, got = (f"{len(names)} ({', '.join(list(names.values())[:5])}, ...)" for names in (known, theirs))
        raise ValueError(f"the windows must have the distiller's marks, {expected}; got {got}. Pass its id2label.")
