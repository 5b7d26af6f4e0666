"""Why did one event happen? What is answered, against the parents of simulated events, and how far to believe it.

A target is an event with 25 before it, its history. If its parent is among them that is its cause; else it came from
nothing in the history. No answer can be better than the posterior under the process that made the events.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModel

from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.windows import WindowStore, make_windows
from ehd_hf.evaluation.answers import objectives
from ehd_hf.evaluation.scores import check_marks, score_events
from ehd_hf.evaluation.statistics import NUM_RESAMPLES, mean_interval
from ehd_hf.explain.causes import cause_probabilities
from ehd_hf.explain.trace import find_edges
from ehd_hf.files import checkpoint_stamp
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.point_process import MTPPModel
from page import run_name

from . import Cache, Row, Run, get_ranking, load_data
from .causes import cause_metrics, causes_of, known_process, oracle_scores
from .true_process import TrueProcess

HISTORY, NUM_TARGETS, NUM_TRACED = 25, 10_000, 100  # the last in sequences
TRUE_POSTERIOR, RECENCY, PAIR_LIFT, WHY = "true posterior", "recency", "pair lift", "why"
SOLVERS = ("leave_one_out", "integrated_gradient")  # of dppl
NUM_BINS = 10  # of probabilities, equally wide


class Answers(NamedTuple):
    """Of W targets, the scores by which their histories are ranked. Of what gives probabilities also p(nothing), and
    the probabilities of each traced sequence: shares (n, n), by effect and cause, and p(nothing) (n,)."""

    scores: np.ndarray  # (W, L)
    p_none: np.ndarray | None = None  # (W,)
    traced: Sequence[tuple[np.ndarray, np.ndarray]] = ()


@dataclass(frozen=True)
class Truth:
    """Targets and whole sequences, and the parents of their events."""

    windows: WindowStore
    causes: np.ndarray  # (W, L)
    traced: EventSequences
    parents: np.ndarray  # of the traced events, as in `SimulatedEvents`

    def scored(self, answers: Answers) -> Row:
        """`cause_first`: of the targets with a cause, the share where it has the highest score; `ap`: the mean of one
        over its place. Of probabilities, the calibration errors `error` and `error_none`, with what was counted in
        `bins` and `bins_none`; `auroc` of p(nothing); `root_first` of traced events with a parent. All have intervals
        by bootstrap over sequences."""
        has, groups = self.causes.any(1), self.windows.sequence_index
        metrics = cause_metrics(answers.scores[has], self.causes[has])
        row = _with_interval("cause_first", metrics["recall"][:, 0], groups[has])
        row |= _with_interval("ap", metrics["ap"], groups[has])
        if answers.p_none is None:
            return row
        for name, probability, true in (("", answers.scores, self.causes), ("_none", answers.p_none, ~has)):
            row |= calibration(name, probability, true, groups)
        row |= auroc(answers.p_none, ~has, groups)
        hits, owner = [], np.repeat(np.arange(len(self.traced)), self.traced.lengths)
        for begin, (shares, p_none) in zip(self.traced.offsets, answers.traced, strict=False):
            hits.append(roots_come_first(shares, p_none, self.parents[begin : begin + len(p_none)]))
        return row | _with_interval("root_first", np.concatenate(hits), owner[self.parents >= 0])


def _with_interval(key: str, values: np.ndarray, groups: np.ndarray) -> Row:
    low, high = mean_interval(values, groups)
    return {key: float(values.mean()), f"{key}_low": low, f"{key}_high": high}


def _resampled(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group of each value, from 0, and how often each group is drawn again, (R, G)."""
    _, group = np.unique(groups, return_inverse=True)
    number = int(group.max()) + 1
    return group, np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), NUM_RESAMPLES)


def calibration(name: str, probability: np.ndarray, true: np.ndarray, groups: np.ndarray) -> Row:
    """Expected calibration error: by how much probabilities (W,) or (W, L) of a bin and the share of what is `true`
    differ, on average over all. Bins are (mean probability, share, number) where there are any."""
    values = probability.reshape(len(groups), -1).clip(0, 1)
    group, drawn = _resampled(groups)
    place = group[:, None] * NUM_BINS + (values * NUM_BINS).astype(int).clip(max=NUM_BINS - 1)
    parts = (values, true.reshape(values.shape), np.ones_like(values))
    sums = [np.bincount(place.ravel(), part.ravel(), drawn.shape[1] * NUM_BINS) for part in parts]
    said, happened, count = (part.reshape(-1, NUM_BINS) for part in sums)  # (G, bins)

    def error(times: np.ndarray) -> np.ndarray:
        return np.abs(times @ (said - happened)).sum(-1) / (times @ count).sum(-1)

    low, high = np.quantile(error(drawn), [0.025, 0.975])
    table = np.stack([part.sum(0) for part in (said, happened, count)], axis=1)
    bins = [(p / n, hits / n, int(n)) for p, hits, n in table.tolist() if n]
    whole = float(error(np.ones(len(said))))
    return {f"error{name}": whole, f"error{name}_low": low, f"error{name}_high": high, f"bins{name}": bins}


def auroc(score: np.ndarray, true: np.ndarray, groups: np.ndarray) -> Row:
    """Probability that a target that is `true` scores above one that is not, half of it where they tie."""
    group, drawn = _resampled(groups)
    levels, level = np.unique(score, return_inverse=True)

    def area(times: np.ndarray) -> float:
        above, below = (np.bincount(level, times[group] * which, len(levels)) for which in (true, ~true))
        return float(above @ (below.cumsum() - below / 2) / (above.sum() * below.sum()))

    low, high = np.quantile([area(times) for times in drawn], [0.025, 0.975])
    return {"auroc": area(np.ones(drawn.shape[1])), "auroc_low": low, "auroc_high": high}


def roots_come_first(shares: np.ndarray, p_none: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """For each event of a sequence that has a parent, whether the likeliest root is where its line of parents ends."""
    # root_i = p_none_i [i] + sum_j shares_ij root_j, solved for all at once.
    roots = np.linalg.solve(np.eye(len(shares)) - shares, np.diag(p_none))
    above = np.where(parents < 0, np.arange(len(parents)), parents)
    while (above[above] != above).any():
        above = above[above]
    return (roots.argmax(1) == above)[parents >= 0]


# --- who answers


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """A row for the true posterior, for recency and for pair lift; for each model one for its cause probabilities
    (WHY) and, of several seeds for the first, one for each of `SOLVERS`."""
    parents, process = known_process(arguments)
    splits, stamp = load_data(arguments, "train", "test")
    test, limit = splits["test"], arguments.limit or NUM_TARGETS
    windows = make_windows(test, future=1, history=HISTORY).sample(limit)
    traced = test.select(range(min(NUM_TRACED, len(test))))
    truth = Truth(windows, causes_of(windows, parents), traced, parents[: traced.num_events])
    run = Run(cache, "survival", arguments.seed, arguments.batch_size, True, stamp | {"limit": limit})
    base = run.key("why", windows, model=None, num_with_cause=int(truth.causes.any(1).sum()))

    def answers(solver: str, mtpp: MTPPModel | None) -> Answers:
        if mtpp is not None:
            return _why(mtpp, truth, run) if solver == WHY else Answers(_ranked(mtpp, windows, solver, run))
        if solver == TRUE_POSTERIOR:
            scores = oracle_scores(process, windows)
            return Answers(scores, 1 - scores.sum(1), [TrueProcess(process).parent_posterior(*x) for x in traced])
        position = np.broadcast_to(np.arange(HISTORY, dtype=float), truth.causes.shape)
        return Answers(lift_scores(windows, splits["train"]) if solver == PAIR_LIFT else position)

    def row(solver: str, mtpp: MTPPModel | None = None, **about: Any) -> Row:
        def compute() -> Row:
            scorer = {TRUE_POSTERIOR: TrueProcess(process), WHY: mtpp}.get(solver)
            nll = {"nll": -float(np.nanmean(score_events(scorer, test).log_prob))} if scorer else {}
            return nll | truth.scored(answers(solver, mtpp))

        return run.row(base | about | {"solver": solver}, compute)

    for solver in (TRUE_POSTERIOR, RECENCY, PAIR_LIFT):
        yield row(solver)
    runs = [run_name({"model": folder.name}) for folder in arguments.model]
    for place, folder in enumerate(arguments.model):
        mtpp = load_mtpp(folder, test)
        for solver in (WHY, *(SOLVERS if runs[place] not in runs[:place] else ())):
            yield row(solver, mtpp, **checkpoint_stamp(folder), model=folder.name)


def load_mtpp(folder: Path, events: EventSequences) -> MTPPModel:
    """The point process in a folder, or that of the distiller in it."""
    checkpoint_stamp(folder)  # refuses a folder without a model, by name
    model = AutoModel.from_pretrained(folder).eval()
    mtpp: MTPPModel = model.mtpp if isinstance(model, DistillerModel) else model
    check_marks(str(folder), mtpp, events)
    return mtpp


def _why(mtpp: MTPPModel, truth: Truth, run: Run) -> Answers:
    parts = []
    with torch.no_grad():
        for _, objective in objectives(mtpp, truth.windows, run.conditioning, run.batch_size, run.bar(WHY)):
            parts.append(cause_probabilities(mtpp, objective.window)[:2])
    scores, p_none = (torch.cat(values).cpu().numpy() for values in zip(*parts, strict=True))
    edges, traced = find_edges(mtpp, truth.traced, HISTORY), []
    for begin, end in zip(truth.traced.offsets[:-1], truth.traced.offsets[1:], strict=True):
        shares = np.zeros((end - begin, end - begin))
        part = slice(*np.searchsorted(edges.effect, [begin, end]))
        shares[edges.effect[part] - begin, edges.cause[part] - begin] = edges.probability[part].clip(0)
        traced.append((shares, edges.p_none[begin:end]))
    return Answers(scores, p_none, traced)


def _ranked(mtpp: Any, windows: WindowStore, solver: str, run: Run) -> np.ndarray:
    generator, ranking, pieces = torch.Generator().manual_seed(run.generator_seed), get_ranking(solver), []
    for _, objective in objectives(mtpp, windows, run.conditioning, run.batch_size, run.bar(solver)):
        with torch.no_grad():
            pieces.append(ranking.rank(objective, generator).cpu().numpy())
    return np.concatenate(pieces)


def lift_scores(windows: WindowStore, train: EventSequences) -> np.ndarray:
    """(W, L): how many times more events of its kind stand before an event of the target's kind than before any, in
    `train`; of events of one kind, the later first."""
    fitted = make_windows(train, future=1, history=windows.history)
    near = np.zeros((train.num_marks, train.num_marks))
    for back in range(1, windows.history + 1):
        effect = fitted.first + fitted.history
        np.add.at(near, (train.marks[effect - back], train.marks[effect]), 1)
    expected = near.sum(1, keepdims=True) * near.sum(0) / near.sum()
    lift = near / np.maximum(expected, 1e-9)
    where = windows.first[:, None] + np.arange(windows.history + 1)
    marks = windows.sequences.marks[where]
    return lift[marks[:, :-1], marks[:, -1:]] + 1e-9 * np.arange(windows.history)
