"""Do explanations find the causes? On simulated events, where every event knows its parent.

The causes of a window's future are its direct parents within the history. Every method ranks the events of the history
and is scored by how early the causes come. Two yardsticks know the process itself: one ranks by the true posterior of
parenthood, the other searches as anyone else does, but with the true likelihood in place of a trained model's.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ehd_hf.data.synthetic import PROCESSES, HawkesProcess, simulated_events
from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import objectives
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.gated_lstm import last_kept_times
from ehd_hf.models.point_process import MTPPOutput
from ehd_hf.solvers.base import Solver

from . import Row, Run
from .true_process import TrueProcess, delay

ORACLE, RANDOM = "oracle", "random"


def known_process(arguments: Namespace) -> tuple[np.ndarray, HawkesProcess]:
    """The parents of simulated test events, as in `SimulatedEvents`, and the process that made them."""
    kind, _, name = arguments.data.partition(":")
    if kind != "simulated":
        raise ValueError(
            f"causes are known of simulated events only; got --data {arguments.data}. Try simulated:delayed."
        )
    if arguments.split != "test":
        raise ValueError(f"causes are evaluated on the split test; got {arguments.split}. Leave --split out.")
    return simulated_events(name)["test"].parents, PROCESSES[name]()


def causes_of(windows: WindowStore, parents: np.ndarray) -> np.ndarray:
    """(W, L), True for history events that are the parent of a future event.

    Args:
        parents: (N,) the parent's index within the same sequence, -1 for immigrants (see `SimulatedEvents`).
    """
    owner = np.repeat(np.arange(len(windows.sequences)), windows.sequences.lengths)
    absolute = np.where(parents < 0, -1, parents + windows.sequences.offsets[owner])
    future = windows.first[:, None] + windows.history + np.arange(windows.future)  # (W, K)
    position = absolute[future] - windows.first[:, None]
    causes = np.zeros((len(windows), windows.history), dtype=bool)
    rows, columns = np.nonzero((position >= 0) & (position < windows.history) & (absolute[future] >= 0))
    causes[rows, position[rows, columns]] = True
    return causes


def oracle_scores(process: HawkesProcess, windows: WindowStore) -> np.ndarray:
    """(W, L): the probability, given all events, that a history event is the parent of a future one."""
    scores = np.zeros((len(windows), windows.history))
    index = windows.sequence_index
    for sequence in np.unique(index):
        posterior, _ = TrueProcess(process).parent_posterior(*windows.sequences[int(sequence)])
        for row in np.flatnonzero(index == sequence):
            split = int(windows.window_offset[row]) + windows.history
            block = posterior[split : split + windows.future, split - windows.history : split]  # (K, L)
            scores[row] = 1 - np.prod(1 - block, axis=0)
    return scores


def cause_metrics(scores: np.ndarray, causes: np.ndarray) -> dict[str, np.ndarray]:
    """How early the causes come when events are taken by falling `scores`; both (W, L), a cause in every window.

    `ap` (W,): precision at the place of each cause, averaged; `r_precision` (W,): precision among the first R, R the
    number of causes; `recall` (W, L): share of the causes among the first 1, 2, ... L.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = np.take_along_axis(causes, order, axis=1)
    number = causes.sum(axis=1)
    hits_so_far = hits.cumsum(axis=1)
    precision = hits_so_far / np.arange(1, causes.shape[1] + 1)
    return {
        "ap": (precision * hits).sum(axis=1) / number,
        "r_precision": hits_so_far[np.arange(len(hits_so_far)), number - 1] / number,
        "recall": hits_so_far / number[:, None],
    }


class TrueLikelihood(torch.nn.Module):
    """The simulating process in a trained model's place: the exact likelihood of a window given the kept events."""

    def __init__(self, process: HawkesProcess) -> None:
        super().__init__()
        self.register_buffer("base", torch.tensor(np.asarray(process.base_rates)))
        kernels = list(TrueProcess(process).kernels())
        self.delays = [(shape, scale, process.tail) for shape, scale, _ in kernels]
        children = np.stack([branching for *_, branching in kernels])
        self.register_buffer("mean_children", torch.tensor(children))  # (number of delays, C, C)

    @property
    def device(self) -> torch.device:
        return self.get_buffer("base").device

    def event_log_prob(
        self,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        *,
        keep: Tensor | None = None,
        survived_until: Tensor | None = None,
        num_last: int | None = None,
    ) -> MTPPOutput:
        """As `MTPPModel.event_log_prob`, for windows whose padding stands in front."""
        length, double = times.shape[1], times.double()
        weights = mask.double()
        if keep is not None:
            weights = torch.cat([weights[:, : keep.shape[1]] * keep.double(), weights[:, keep.shape[1] :]], dim=1)
        first = 0 if num_last is None else length - num_last
        last = last_kept_times(double, weights)[:, first:-1]
        query, query_marks, query_mask = double[:, first:], marks[:, first:], mask[:, first:]
        begin = last  # where the compensator of each event begins to count
        if survived_until is not None:
            split = survived_until.double()[:, None]
            begin = torch.where((last <= split) & (query >= split), split, last)
        position = torch.arange(length, device=times.device)
        earlier = weights[:, None, :] * (position < position[first:, None])  # (B, Q, T)
        base, children = self.get_buffer("base"), self.get_buffer("mean_children")
        total, observed = base.sum().expand_as(query), base[query_marks]
        compensator = base.sum() * (query - begin)
        for kind, branching in zip(self.delays, children, strict=True):
            density, distribution = delay(query[:, :, None] - double[:, None, :], *kind)
            _, before = delay(begin[:, :, None] - double[:, None, :], *kind)
            in_all = branching.sum(1)[marks][:, None, :] * earlier
            to_mark = branching[marks[:, None, :], query_marks[:, :, None]] * earlier
            total = total + (in_all * density).sum(-1)
            observed = observed + (to_mark * density).sum(-1)
            compensator = compensator + (in_all * (distribution - before)).sum(-1)
        time_log_prob = (total.log() - compensator).masked_fill(~query_mask, 0.0).to(times.dtype)
        mark_log_prob = (observed / total).log().masked_fill(~query_mask, 0.0).to(times.dtype)
        parts = {"time_log_prob": time_log_prob, "mark_log_prob": mark_log_prob}
        return MTPPOutput(log_prob=time_log_prob + mark_log_prob, compensator=compensator, **parts)


def evaluate_causes(
    methods: Iterable[tuple[str, Any, Solver]],
    windows: WindowStore,
    parents: np.ndarray,
    process: HawkesProcess,
    run: Run,
) -> Iterator[Row]:
    """A row for each of `methods` (name, point process, ranking solver), and for the oracle and random scores.

    Windows without a cause are left out. Keys: means of `ap` and `r_precision` with `_std` over windows and a 95 %
    interval by bootstrap over sequences; `recall`, its mean after 1, 2, ... L events; `evaluations` and
    `seconds_per_window`.
    """
    if dict(windows.sequences.id2label) != process.id2label:
        raise ValueError(
            f"the windows must have the marks of the process, in its order ({', '.join(process.id2label.values())}); "
            f"theirs are {', '.join(windows.sequences.id2label.values())}. Load them as they were simulated."
        )
    causes = causes_of(windows, parents)
    has_cause = np.flatnonzero(causes.any(axis=1))
    if not len(has_cause):
        raise ValueError(f"there must be a window with a cause; got none among {len(windows)}. Take more windows.")
    share_without = 1 - len(has_cause) / len(windows)
    windows, causes = windows.select(has_cause), causes[has_cause]
    groups = windows.sequence_index
    base = run.key("causes", windows, **run.search, num_sequences=len(np.unique(groups)))
    base |= {"without_causes": share_without, "num_causes": float(causes.sum(1).mean())}

    def measured(scores: np.ndarray, evaluations: float = 0.0, seconds: float = 0.0) -> Row:
        metrics = cause_metrics(scores, causes)
        row: Row = {"evaluations": evaluations, "seconds_per_window": seconds / len(windows)}
        for key in ("ap", "r_precision"):
            row |= {key: float(metrics[key].mean()), f"{key}_std": float(metrics[key].std())}
            row[f"{key}_low"], row[f"{key}_high"] = mean_interval(metrics[key], groups)
        return row | {"recall": metrics["recall"].mean(axis=0).round(5).tolist()}

    def searched(name: str, mtpp: Any, solver: Solver) -> Row:
        generator = torch.Generator(device=mtpp.device).manual_seed(run.generator_seed)
        began, pieces, spent = time.perf_counter(), [], 0
        for _, objective in objectives(mtpp, windows, run.conditioning, run.batch_size, run.bar(f"causes {name}")):
            with torch.no_grad():
                pieces.append(solver.rank(objective, generator).cpu().numpy())
            spent += int(objective.num_evaluations.sum())
        return measured(np.concatenate(pieces), spent / len(windows), time.perf_counter() - began)

    drawn = np.random.default_rng(run.generator_seed).random(causes.shape)
    yield run.row(base | {"solver": ORACLE}, lambda: measured(oracle_scores(process, windows)))
    yield run.row(base | {"solver": RANDOM}, lambda: measured(drawn))
    for method in methods:
        yield run.row(base | {"solver": method[0]}, lambda method=method: searched(*method))
