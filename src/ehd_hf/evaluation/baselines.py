"""Trivial models of event sequences: what a point process must beat before it has learned anything.

Intervals are independent draws of one distribution (exponential, that is a Poisson process, or gamma); marks come
by frequency, alone (unigram) or given the mark before (bigram). All are fitted in closed form or by some Newton steps.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch

from ..data.sequences import EventSequences

# Below this gammaincc is on its way to underflow; a continued fraction takes over.
_SMALLEST_SURVIVAL = 1e-280


class EventScores(NamedTuple):
    """Likelihood of observed events, each (N,); NaN for events that are not scored (a sequence's first)."""

    log_prob: np.ndarray  # = time_log_prob + mark_log_prob
    time_log_prob: np.ndarray
    mark_log_prob: np.ndarray
    compensator: np.ndarray  # integrated intensity of all marks since the event before: Exp(1) if the model is right


def is_scored(sequences: EventSequences) -> np.ndarray:
    """(N,) bool: False for the first event of each sequence, before which nothing is known."""
    scored = np.ones(sequences.num_events, dtype=bool)
    scored[sequences.offsets[:-1]] = False
    return scored


def fit_gamma(intervals: np.ndarray) -> tuple[float, float]:
    """Maximum-likelihood shape and scale of positive `intervals` (n,), by Newton steps on the log of the shape."""
    mean = float(intervals.mean())
    spread = math.log(mean) - float(np.log(intervals).mean())  # log of arithmetic over geometric mean, >= 0
    if spread < 1e-12:
        raise ValueError(f"a gamma distribution needs intervals that differ; got {len(intervals)} equal to {mean:g}.")
    # A start that is right within 1.5 % everywhere (Minka), so that a handful of steps reaches machine precision.
    shape = torch.tensor((3 - spread + math.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)).double()
    for _ in range(20):
        slope = shape * torch.polygamma(1, shape) - 1  # of digamma(k) - log(k) in log k: positive, so steps are safe
        shape = shape * torch.exp(-(torch.digamma(shape) - shape.log() + spread) / slope)
    return float(shape), mean / float(shape)


def gamma_log_survival(intervals: np.ndarray, shape: float, scale: float) -> np.ndarray:
    """log P(interval > tau) for each tau of `intervals` (n,), finite however long the silence."""
    x = torch.from_numpy(np.asarray(intervals, dtype=np.float64) / scale)
    survival = torch.special.gammaincc(torch.tensor(shape, dtype=torch.float64), x)
    far = x.clamp(min=shape + 1)
    denominator = far + 1
    for n in range(30, 0, -1):
        denominator = far + 2 * n - 1 - shape - n * (n - shape) / denominator
    tail = shape * far.log() - far - math.lgamma(shape) - denominator.log()
    return torch.where(survival > _SMALLEST_SURVIVAL, survival.clamp(min=_SMALLEST_SURVIVAL).log(), tail).numpy()


class TrivialBaseline:
    """Independent intervals ("poisson" or "gamma") and marks ("unigram" or "bigram", counts smoothed by adding one).

    A gamma density is unbounded at 0, so intervals of 0 (tied or rounded times) are raised to the smallest positive
    interval of the training data. Where more than a few are 0 jitter the times first: `sources.with_jitter`."""

    def __init__(
        self, interval: Literal["poisson", "gamma"] = "gamma", marks: Literal["unigram", "bigram"] = "bigram"
    ) -> None:
        self.interval, self.marks, self.name = interval, marks, f"{interval.capitalize()} + {marks}"

    def fit(self, sequences: EventSequences) -> TrivialBaseline:
        """Fit to all but the first event of each sequence; returns itself."""
        scored = is_scored(sequences)
        intervals = sequences.intervals()[scored]
        if not (intervals > 0).any():
            raise ValueError(f"a baseline needs positive intervals; got none among {len(sequences)} sequences.")
        self.smallest_interval = float(intervals[intervals > 0].min())
        intervals = np.where(intervals > 0, intervals, self.smallest_interval)
        self.shape, self.scale = fit_gamma(intervals) if self.interval == "gamma" else (1.0, float(intervals.mean()))
        num_marks, marks = sequences.num_marks, sequences.marks[scored]
        before = np.roll(sequences.marks, 1)[scored] if self.marks == "bigram" else np.zeros_like(marks)
        num_rows = num_marks if self.marks == "bigram" else 1
        smoothed = np.bincount(before * num_marks + marks, minlength=num_rows * num_marks) + 1.0
        smoothed = smoothed.reshape(num_rows, num_marks)
        self.mark_log_probs = np.log(smoothed / smoothed.sum(axis=1, keepdims=True))  # (C, C), or (1, C) if unigram
        return self

    def log_prob(self, sequences: EventSequences) -> EventScores:
        """Scores of every event but the first of each sequence, each (N,)."""
        if sequences.num_marks != self.mark_log_probs.shape[1]:
            number = self.mark_log_probs.shape[1]
            raise ValueError(f"the baseline was fitted on {number} marks; got sequences of {sequences.num_marks}.")
        scored = is_scored(sequences)
        intervals = sequences.intervals()
        intervals = np.where(intervals > 0, intervals, self.smallest_interval)
        density = (self.shape - 1) * np.log(intervals / self.scale) - intervals / self.scale
        time_log_prob = density - math.lgamma(self.shape) - math.log(self.scale)
        before = np.roll(sequences.marks, 1) if self.marks == "bigram" else 0
        mark_log_prob = self.mark_log_probs[before, sequences.marks]
        if self.interval == "gamma":
            compensator = -gamma_log_survival(intervals, self.shape, self.scale)
        else:
            compensator = intervals / self.scale
        values = (time_log_prob + mark_log_prob, time_log_prob, mark_log_prob, compensator)
        return EventScores(*(np.where(scored, value, np.nan) for value in values))
