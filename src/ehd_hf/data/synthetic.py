"""Simulated events whose causes are known: Hawkes processes drawn by branching.

A Hawkes process is a family tree laid out in time: immigrants arrive at base rates, and every event has a Poisson
number of children at random delays. Drawn this way each event knows its parent: the ground truth of an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .sequences import EventSequences


class SimulatedEvents(NamedTuple):
    """Events with their causes: `parents` (N,) is the parent's index within the same sequence, -1 for immigrants."""

    sequences: EventSequences
    parents: np.ndarray


@dataclass(frozen=True, eq=False)
class HawkesProcess:
    """Multivariate Hawkes process: intensity_c(t) = base_rates[c] + sum_j branching[m_j, c] * delay_density(t - t_j).

    The delay from parent to child is gamma distributed, its mean shape * scale; shape 1 is exponential: effects are
    strongest at once. It is whole, so that the compensator has a closed form. With a `tail` all delays follow a power
    law instead (Lomax): longer than x * scale with probability (1 + x) ** -tail.
    """

    base_rates: Any  # (C,) immigrants per unit of time
    branching: Any  # (C, C) mean number of children; the row is the parent's mark, the column the child's
    scale: Any = 1.0  # of the delay: one number or (C, C) like `branching`
    shape: Any = 1  # likewise
    labels: Sequence[str] | None = None  # C names of the marks
    time_unit: str | None = None
    tail: float | None = None

    def __post_init__(self) -> None:
        base_rates, branching = np.array(self.base_rates, dtype=float), np.array(self.branching, dtype=float)
        scale, shape = (np.broadcast_to(values, branching.shape) for values in (self.scale, self.shape))
        arrays = {"base_rates": base_rates, "branching": branching, "scale": scale, "shape": shape.astype(np.int64)}
        for name, values in arrays.items():
            object.__setattr__(self, name, values)
        radius = np.abs(np.linalg.eigvals(branching)).max()
        if radius >= 1:
            raise ValueError(f"branching must have spectral radius below 1; got {radius:.3f}. Lower its entries.")

    @property
    def num_marks(self) -> int:
        return len(self.base_rates)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.labels or map(str, range(self.num_marks))))

    def simulate(self, horizon: float, num_sequences: int, generator: np.random.Generator) -> SimulatedEvents:
        """Draw immigrants on [0, horizon], then generation after generation of children, all sequences at once, from
        an empty past. A sequence in which nothing happened is left out; `seq_ids` keep the numbering."""
        if not (np.isfinite(horizon) and horizon > 0 and num_sequences >= 1):
            raise ValueError(f"horizon and num_sequences must be positive; got {horizon} and {num_sequences}.")
        counts = generator.poisson(self.base_rates * horizon, size=(num_sequences, self.num_marks))
        owner, marks = _repeat_cells(counts)
        generation = (owner, generator.uniform(0, horizon, size=len(owner)), marks, np.full(len(owner), -1))
        generations, born = [generation], 0
        while len(generation[0]):
            owner, times, marks, _ = generation
            parent, child_marks = _repeat_cells(generator.poisson(self.branching[marks]))
            pair = marks[parent], child_marks
            child_times = times[parent] + self._delays(pair, generator)
            seen = child_times <= horizon
            parent = parent[seen]
            generation = (owner[parent], child_times[seen], child_marks[seen], born + parent)
            born += len(owner)
            generations.append(generation)
        owner, times, marks, parents = (np.concatenate(columns) for columns in zip(*generations, strict=True))

        order = np.lexsort((times, owner))  # stable, so at equal times a parent still precedes its child
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        seq_ids, lengths = np.unique(owner, return_counts=True)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        parents = np.where(parents[order] < 0, -1, position[parents[order]] - np.repeat(offsets[:-1], lengths))
        names, starts = tuple(seq_ids.tolist()), np.zeros(len(seq_ids))
        events = (times[order], marks[order], offsets, names, self.id2label, starts, self.time_unit)
        return SimulatedEvents(EventSequences(*events), parents)

    def _delays(self, pair: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> np.ndarray:
        """From a parent to its child, whose marks are `pair`."""
        if self.tail is None:
            return generator.gamma(self.shape[pair], self.scale[pair])
        return generator.pareto(self.tail, len(pair[0])) * self.scale[pair]


def _repeat_cells(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column index of every unit counted in `counts` (R, C)."""
    rows, columns = np.indices(counts.shape)
    return np.repeat(rows.ravel(), counts.ravel()), np.repeat(columns.ravel(), counts.ravel())


def delayed_hawkes() -> HawkesProcess:
    """Two chains of cause and effect (0 -> 2 and 1 -> 3, seldom back) that act after a delay, and two distractors."""
    return _two_chains(shape=6)


def exponential_hawkes() -> HawkesProcess:
    """The same chains with effects strongest at once (the same scale, no delay): the kind that favours recency."""
    return _two_chains(shape=1)


def power_law_hawkes() -> HawkesProcess:
    """The same chains with effects soon for the most part, but some after very long: no delay is too long to occur."""
    return _two_chains(tail=1.5)


def _two_chains(shape: int = 1, tail: float | None = None) -> HawkesProcess:
    branching = np.zeros((6, 6))
    branching[[0, 1], [2, 3]] = 1.2
    branching[[2, 3], [0, 1]] = 0.25
    labels = ("cause A", "cause B", "effect A", "effect B", "distractor 1", "distractor 2")
    return HawkesProcess((0.12, 0.12, 0.02, 0.02, 0.3, 0.3), branching, 0.5, shape, labels, tail=tail)


def twenty_kinds_hawkes() -> HawkesProcess:
    """Twenty kinds of events, each of which sets off two others, drawn at random with their delays."""
    generator = np.random.default_rng(20)
    branching = np.zeros((20, 20))
    for children in branching:
        children[generator.choice(20, 2, replace=False)] = generator.uniform(0.1, 0.6, 2)
    scale, shape = generator.choice([0.1, 0.3, 1.0], (20, 20)), generator.choice([1, 3, 6], (20, 20))
    return HawkesProcess(generator.uniform(0.01, 0.06, 20), branching, scale, shape)


def incident_hawkes() -> HawkesProcess:
    """An operations log in hours: changes cause alerts, alerts bring people. Checks and logins cause nothing."""
    base_rates = {"deploy": 0.10, "config change": 0.05, "alert": 0.02, "page on-call": 0.005, "rollback": 0.005}
    base_rates |= {"restart": 0.02, "ticket": 0.03, "health check": 0.40, "user login": 0.30}
    effects = (  # parent, child, mean children, shape and scale of the delay (mean delay = shape * scale)
        ("deploy", "alert", 0.9, 6, 0.5),
        ("config change", "alert", 0.6, 6, 0.5),
        ("config change", "restart", 0.6, 4, 0.25),
        ("alert", "page on-call", 0.8, 4, 0.1),
        ("alert", "ticket", 0.4, 4, 0.5),
        ("page on-call", "rollback", 0.5, 4, 0.25),
        ("page on-call", "restart", 0.4, 4, 0.25),
        ("rollback", "deploy", 0.6, 6, 1.0),
        ("restart", "alert", 0.1, 4, 0.1),
        ("ticket", "config change", 0.25, 6, 1.0),
    )
    labels = tuple(base_rates)
    branching, shape, scale = np.zeros((9, 9)), np.ones((9, 9)), np.ones((9, 9))
    for parent, child, *effect in effects:
        edge = labels.index(parent), labels.index(child)
        branching[edge], shape[edge], scale[edge] = effect
    return HawkesProcess(list(base_rates.values()), branching, scale, shape, labels, time_unit="h")


PROCESSES: dict[str, Callable[[], HawkesProcess]] = {
    "delayed": delayed_hawkes,
    "exponential": exponential_hawkes,
    "incident": incident_hawkes,
    "power_law": power_law_hawkes,
    "twenty_kinds": twenty_kinds_hawkes,
}


def simulated_splits(process: str, *arguments: Any, **keywords: Any) -> dict[str, EventSequences]:
    """The events of `simulated_events` without their causes: what a model may see."""
    return {split: events.sequences for split, events in simulated_events(process, *arguments, **keywords).items()}


def simulated_events(
    process: str, num_sequences: Mapping[str, int] | None = None, horizon: float = 120.0, seed: int = 0
) -> dict[str, SimulatedEvents]:
    """Splits of a ready-made process, one of `PROCESSES`, each from its own stream of random numbers: by default
    1,500 / 150 / 300 sequences of train / validation / test, of about 170 events, enough for a few windows of each."""
    if process not in PROCESSES:
        raise ValueError(f"process must be one of {', '.join(PROCESSES)}; got {process!r}.")
    sizes = num_sequences or {"train": 1500, "validation": 150, "test": 300}
    streams = np.random.default_rng(seed).spawn(len(sizes))
    hawkes = PROCESSES[process]()
    drawn = map(hawkes.simulate, [horizon] * len(sizes), sizes.values(), streams)
    return dict(zip(sizes, drawn, strict=True))


def example_log(num_services: int = 120, seed: int = 0) -> pd.DataFrame:
    """A table as people have them, from the process `incident`: one row per event, in order of time, with the columns
    `ts` (timestamps to the second), `type` and `service`."""
    events = simulated_splits("incident", {"train": num_services}, seed=seed)["train"]
    timestamps = pd.Timestamp("2026-03-02") + pd.to_timedelta((events.times * 3600).round(), unit="s")
    services = np.repeat([f"service-{name:03d}" for name in events.seq_ids], events.lengths)
    marks = np.array(list(events.id2label.values()))[events.marks]
    return pd.DataFrame({"ts": timestamps, "type": marks, "service": services}).sort_values("ts", kind="stable")
