"""The simulating process beside trained models: its likelihood is known exactly, the best that any model can reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.synthetic import HawkesProcess
from ehd_hf.evaluation.baselines import EventScores, is_scored

TRUE_PROCESS = "true process"  # its name in rows


class EventLikelihood(NamedTuple):
    """Per event (N,): `log_prob` of its time and mark given all before, and the `compensator` since the event before.

    -log_prob.mean() is the NLL per event; under the true process the compensators are independent Exp(1), which is
    the time-rescaling test.
    """

    log_prob: np.ndarray
    compensator: np.ndarray


@dataclass(frozen=True)
class TrueProcess:
    """The exact likelihood of a simulated process, and what it says of every event's parent."""

    process: HawkesProcess

    def log_prob(self, sequences: EventSequences) -> EventScores:
        """`log_likelihood` as rows are scored: NaN on first events, and for times and marks apart."""
        scored, unknown = is_scored(sequences), np.full(sequences.num_events, np.nan)
        log_prob, compensator = (np.where(scored, values, np.nan) for values in self.log_likelihood(sequences))
        return EventScores(log_prob, unknown, unknown, compensator)

    def excitation(self, times: np.ndarray, marks: np.ndarray) -> np.ndarray:
        """(n, n): what event j (column) adds to the intensity of event i's mark at i's time, 0 unless j is earlier."""
        total = np.zeros((len(times), len(times)))
        for shape, scale, children in self.kernels():
            acts = children.sum(axis=1)[marks] > 0  # the others, distractors above all, need no column
            density, _ = self._delay(times[:, None] - times[None, acts], shape, scale)
            total[:, acts] += children[marks[None, acts], marks[:, None]] * density
        return np.tril(total, k=-1)

    def compensator(self, times: np.ndarray, marks: np.ndarray, start: float, until: np.ndarray) -> np.ndarray:
        """(M,) compensator of all marks from `start` to each of `until` (M,), given the events (n,) before it."""
        expected = self.process.base_rates.sum() * (until - start)
        for shape, scale, children in self.kernels():
            acts = children.sum(axis=1)[marks] > 0
            _, distribution = self._delay(until[:, None] - times[None, acts], shape, scale)
            expected = expected + distribution @ children.sum(axis=1)[marks[acts]]
        return expected

    def log_likelihood(self, sequences: EventSequences) -> EventLikelihood:
        """Exact: log intensity of the observed mark minus the compensator of all marks since the event before.

        The first event counts from its sequence's start, with nothing before it (from its own time if the start is
        unknown). Memory grows with the square of the longest sequence.
        """
        if sequences.num_marks != self.process.num_marks:
            raise ValueError(
                f"sequences must have this process's {self.process.num_marks} marks; got {sequences.num_marks}."
            )
        log_prob, increments = np.empty(sequences.num_events), np.empty(sequences.num_events)
        starts = sequences.previous_times()[sequences.offsets[:-1]]
        for index, (times, marks) in enumerate(sequences):
            span = slice(int(sequences.offsets[index]), int(sequences.offsets[index + 1]))
            intensity = self.process.base_rates[marks] + self.excitation(times, marks).sum(axis=1)
            increments[span] = np.diff(self.compensator(times, marks, starts[index], times), prepend=0.0)
            with np.errstate(divide="ignore"):  # an event this process cannot produce has probability 0
                log_prob[span] = np.log(intensity) - increments[span]
        return EventLikelihood(log_prob, increments)

    def parent_posterior(self, times: np.ndarray, marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(event j is the parent of i | history) (n, n), and P(i is an immigrant) (n,); for each i they sum to 1."""
        excitation, base = self.excitation(times, marks), self.process.base_rates[marks]
        intensity = base + excitation.sum(axis=1)
        return excitation / intensity[:, None], base / intensity

    def kernels(self) -> Iterator[tuple[int, float, np.ndarray]]:
        """Each distinct delay with the mean children (C, C) that have it: a handful, however many pairs of marks."""
        shape, scale, branching = self.process.shape, self.process.scale, self.process.branching
        for k, s in sorted(set(zip(shape[branching > 0].tolist(), scale[branching > 0].tolist(), strict=True))):
            yield k, s, np.where((shape == k) & (scale == s), branching, 0.0)

    def _delay(self, lag: np.ndarray, shape: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        density, distribution = delay(torch.from_numpy(lag), shape, scale, self.process.tail)
        return density.numpy(), distribution.numpy()


def delay(lag: Tensor, shape: int, scale: float, tail: float | None = None) -> tuple[Tensor, Tensor]:
    """Density and distribution function of the gamma delay with whole `shape`, or of the Lomax delay with this `tail`;
    0 before the event (lag < 0).

    P(gamma delay > x * scale) is the Poisson(x) probability of fewer than `shape` points, its density the last term.
    """
    x = torch.where(lag > 0, lag, 0.0) / scale
    if tail is None:
        term = torch.exp(-x)
        survival = term
        for k in range(1, shape):
            term = term * x / k
            survival = survival + term
    else:
        survival = (1 + x) ** -tail
        term = tail * survival / (1 + x)
    return torch.where(lag < 0, 0.0, term / scale), 1 - survival
