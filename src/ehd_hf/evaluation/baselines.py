"""Trivial models of event sequences: what a point process must beat before it has learned anything.

Gaps between events are independent draws of one distribution (exponential, that is a Poisson process; gamma;
log-normal; a mixture of log-normals) or follow the gap before (AR(1) in the logarithm). Marks come by frequency
(unigram), given the mark before (bigram), or by both mixed with decaying counts of the sequence's own marks. All are
fitted in closed form or by Newton or EM steps. Gaps and marks are independent, so the best pair is the best of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..data.sequences import EventSequences

# Below this gammaincc is on its way to underflow; a continued fraction takes over.
_SMALLEST_SURVIVAL = 1e-280
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
# A mixture: its components, gaps that EM looks at (evenly spaced in rank), and the least deviation of a component as a
# part of that of all. A sharper one would only find rounded times; the backbone lognormmix is as sharp.
_NUM_COMPONENTS, _MOST_GAPS, _SHARPEST = 4, 2000, 0.02
_EQUAL = 1e-6  # deviation of the logarithms of gaps that are all the same
# What a count of a sequence's own marks keeps per event; what a bigram may borrow from the unigram, in events; and the
# number of events by which one and the other are weighed.
_DECAYS, _BORROWED, _MOST_EVENTS = (0.5, 0.8, 0.95, 0.999), 4.0 ** np.arange(-2, 12), 200_000


class EventScores(NamedTuple):
    """Likelihood of observed events, each (N,); NaN for events that are not scored (a sequence's first)."""

    log_prob: np.ndarray  # = time_log_prob + mark_log_prob
    time_log_prob: np.ndarray
    mark_log_prob: np.ndarray
    compensator: np.ndarray  # integrated intensity of all marks since the event before: Exp(1) if the model is right


def is_scored(sequences: EventSequences) -> np.ndarray:
    """(N,) bool: False for the first event of each sequence, before which nothing is known."""
    return _places(sequences) > 0


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


def _places(sequences: EventSequences) -> np.ndarray:
    """(N,) of each event in its sequence, from 0."""
    return np.arange(sequences.num_events) - np.repeat(sequences.offsets[:-1], sequences.lengths)


class Gaps(NamedTuple):
    """Gaps before N events, none of 0, and the logarithm of the one before each, NaN where there is none."""

    values: np.ndarray
    log_before: np.ndarray


def gaps_of(sequences: EventSequences, smallest: float) -> Gaps:
    """Of all events; those of 0 (tied or rounded times) are raised to `smallest`: densities may be unbounded at 0."""
    values = sequences.intervals()
    values = np.where(values > 0, values, smallest)
    return Gaps(values, np.where(_places(sequences) > 1, np.roll(np.log(values), 1), np.nan))


class GammaGaps(NamedTuple):
    """Gamma with this shape and scale; exponential if the shape is 1."""

    shape: float
    scale: float

    def scores(self, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        """Log density of each gap and log P(a longer one), (N,) each, as all gap models give them."""
        x = gaps.values / self.scale
        density = (self.shape - 1) * np.log(x) - x - math.lgamma(self.shape) - math.log(self.scale)
        return density, gamma_log_survival(gaps.values, self.shape, self.scale)


class LogNormalGaps(NamedTuple):
    """A mixture of K log-normals; means and deviations are of the logarithm."""

    weights: np.ndarray  # (K,), or (N, K) where they differ from gap to gap; so are the others
    means: np.ndarray
    deviations: np.ndarray

    def scores(self, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        logs = np.log(gaps.values)[:, None]
        z = torch.from_numpy((logs - self.means) / self.deviations)
        density = torch.from_numpy(np.log(self.weights / self.deviations) - logs - _LOG_SQRT_2PI) - z * z / 2
        survival = torch.from_numpy(np.log(self.weights)) + torch.special.log_ndtr(-z)
        return torch.logsumexp(density, 1).numpy(), torch.logsumexp(survival, 1).numpy()


class AutoregressiveGaps(NamedTuple):
    """Log-normal, its mean on a line in the logarithm of the gap before; without one, as all gaps are together."""

    slope: float
    following: LogNormalGaps
    first: LogNormalGaps

    def scores(self, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        before = gaps.log_before[:, None]
        pairs = zip(self.first, self.following, strict=True)
        each = LogNormalGaps(*(np.where(np.isnan(before), *pair) for pair in pairs))
        return each._replace(means=each.means + self.slope * np.nan_to_num(before)).scores(gaps)


GapModel = GammaGaps | LogNormalGaps | AutoregressiveGaps


def fit_log_normals(logs: np.ndarray, number: int = 1, max_steps: int = 500) -> LogNormalGaps:
    """Maximum likelihood of `number` components by EM, from the logarithms of gaps (n,)."""
    logs = np.sort(logs)
    if (spread := logs.std()) < _EQUAL:
        raise ValueError(f"log-normal gaps must differ; got {len(logs)} whose logarithm is {logs[0]:g}.")
    least, step = _SHARPEST * spread, 1 if number == 1 else -(-len(logs) // _MOST_GAPS)
    logs = logs[(len(logs) - 1) % step // 2 :: step]
    parts = np.array_split(logs, min(number, len(logs)))
    weights, means = np.array([len(part) for part in parts]) / len(logs), np.array([part.mean() for part in parts])
    deviations, likelihood = np.maximum([part.std() for part in parts], least), -math.inf
    for _ in range(max_steps if number > 1 else 0):
        joint = np.log(weights / deviations) - 0.5 * ((logs[:, None] - means) / deviations) ** 2  # (n, K)
        highest = joint.max(1, keepdims=True)
        shares = np.exp(joint - highest)
        total = shares.sum(1, keepdims=True)
        before, likelihood = likelihood, float((highest + np.log(total)).mean())
        if likelihood - before < 1e-6:
            break
        shares /= total
        mass = shares.sum(0) + 1e-9
        weights, means = mass / mass.sum(), logs @ shares / mass
        deviations = np.maximum(np.sqrt((shares * (logs[:, None] - means) ** 2).sum(0) / mass), least)
    return LogNormalGaps(weights, means, deviations)


def fit_autoregression(gaps: Gaps) -> AutoregressiveGaps:
    """By least squares."""
    logs, follows = np.log(gaps.values), ~np.isnan(gaps.log_before)
    before, after = gaps.log_before[follows], logs[follows]
    if len(before) < 3 or before.std() < _EQUAL:
        raise ValueError(f"AR(1) needs gaps that follow gaps that differ; got {len(before)}. Give more events.")
    slope = float(np.mean((before - before.mean()) * after) / before.var())
    return AutoregressiveGaps(slope, fit_log_normals(after - slope * before), fit_log_normals(logs))


def fit_gaps(sequences: EventSequences) -> tuple[float, dict[str, GapModel]]:
    """The smallest positive gap, and the gap models by name, from the simplest on. Those that cannot be fitted are
    left out: equal gaps have no gamma distribution, and none at all if not one is positive."""
    scored, values = is_scored(sequences), sequences.intervals()
    positive = values[scored & (values > 0)]
    if not len(positive):
        return 0.0, {}
    smallest = float(positive.min())
    gaps = Gaps(*(column[scored] for column in gaps_of(sequences, smallest)))
    logs = np.log(gaps.values)
    models: dict[str, GapModel] = {"Poisson": GammaGaps(1.0, float(gaps.values.mean()))}
    with suppress(ValueError):
        models["Gamma"] = GammaGaps(*fit_gamma(gaps.values))
    with suppress(ValueError):
        models["log-normal"] = fit_log_normals(logs)
        models["log-normal mixture"] = fit_log_normals(logs, _NUM_COMPONENTS)
    with suppress(ValueError):
        models["AR(1)"] = fit_autoregression(gaps)
    return smallest, models


class UnigramMarks(NamedTuple):
    """By frequency, one added to every count."""

    counts: np.ndarray  # (C,)

    def probabilities(self, sequences: EventSequences, left_out: int = 0) -> np.ndarray:
        """Of the marks that came (N,), as all mark models give them; first events' mean nothing. `left_out` = 1, of
        the events it was fitted to: as if each of them alone had not been there."""
        return (self.counts[sequences.marks] + 1 - left_out) / (self.counts.sum() + len(self.counts) - left_out)


class BigramMarks(NamedTuple):
    """Given the mark before, whose counts are filled up with `borrowed` events of the unigram. The number is the
    likeliest with each event left out, from almost none to almost nothing else: rare marks cost nothing."""

    unigram: UnigramMarks
    pairs: np.ndarray  # (P,) mark before * C + mark, of all pairs that occur, sorted
    counts: np.ndarray  # (P,)
    totals: np.ndarray  # (C,) events after each mark
    borrowed: float = 1.0

    def probabilities(self, sequences: EventSequences, left_out: int = 0) -> np.ndarray:
        before = np.roll(sequences.marks, 1)
        pairs = before * sequences.num_marks + sequences.marks
        at = np.searchsorted(self.pairs[:-1], pairs)
        count = np.where(self.pairs[at] == pairs, self.counts[at] - left_out, 0)
        frequency = self.unigram.probabilities(sequences, left_out)
        return (count + self.borrowed * frequency) / (np.maximum(self.totals[before] - left_out, 0) + self.borrowed)


class RecentMarks(NamedTuple):
    """The unigram, the bigram and counts of the sequence's own marks that decay at several rates, mixed."""

    bigram: BigramMarks
    weights: np.ndarray  # of these, they sum to 1

    def probabilities(self, sequences: EventSequences, left_out: int = 0) -> np.ndarray:
        return self.parts(sequences, left_out) @ self.weights

    def parts(self, sequences: EventSequences, left_out: int = 0) -> np.ndarray:
        """(N, 2 + decays) probabilities that are mixed."""
        models = (self.bigram.unigram, self.bigram)
        columns = [model.probabilities(sequences, left_out) for model in models]
        return np.stack([*columns, *(own_frequency(sequences, decay) for decay in _DECAYS)], axis=1)


MarkModel = UnigramMarks | BigramMarks | RecentMarks


def own_frequency(sequences: EventSequences, decay: float) -> np.ndarray:
    """(N,) share of each event's mark among those before it in its sequence, an event counting `decay` ** age; 0 for
    the first. Counts of one mark are a recursion along its events, taken in steps of 1, 2, 4, ... of them."""
    place = _places(sequences)
    key = np.repeat(np.arange(len(sequences)), sequences.lengths) * sequences.num_marks + sequences.marks
    order = np.argsort(key, kind="stable")
    age = np.diff(place[order], prepend=0)
    factor = np.where(np.diff(key[order], prepend=-1) > 0, 0.0, decay ** np.maximum(age, 0))
    count, step = np.ones(len(order)), 1  # the event itself, then those at most `step` before it
    while factor.any():
        count[step:] += factor[step:] * count[:-step]
        factor[step:] = factor[step:] * factor[:-step]
        step *= 2
    frequency = np.empty(len(order))
    frequency[order] = count - 1
    return frequency * (1 - decay) / (decay * -np.expm1(np.maximum(place, 1) * math.log(decay)))


def fit_marks(sequences: EventSequences) -> dict[str, MarkModel]:
    """Mark models by name, from the simplest on, fitted to all but the first event of each sequence."""
    scored, num_marks = is_scored(sequences), sequences.num_marks
    previous, marks = np.roll(sequences.marks, 1)[scored], sequences.marks[scored]
    unigram = UnigramMarks(np.bincount(marks, minlength=num_marks))
    pairs, counts = np.unique(previous * num_marks + marks, return_counts=True)
    bigram = BigramMarks(unigram, pairs, counts, np.bincount(previous, minlength=num_marks))
    part = sequences.select(np.arange(0, len(sequences), -(-sequences.num_events // _MOST_EVENTS)))
    candidates = [bigram._replace(borrowed=borrowed) for borrowed in _BORROWED]
    bigram = max(candidates, key=lambda one: np.log(one.probabilities(part, left_out=1)[is_scored(part)]).sum())
    parts = RecentMarks(bigram, np.empty(0)).parts(part, left_out=1)[is_scored(part)]
    before, weights = np.zeros(parts.shape[1]), np.full(parts.shape[1], 1 / parts.shape[1])
    while np.abs(weights - before).max() > 1e-4:  # EM, one event added to each part
        before, weights = weights, weights * ((1 / (parts @ weights)) @ parts)
        weights = (weights + 1) / (weights + 1).sum()
    return {"unigram": unigram, "bigram": bigram, "own recent marks": RecentMarks(bigram, weights)}


@dataclass(frozen=True)
class TrivialBaseline:
    """A gap model and a mark model, fitted; where more than a few gaps are 0 jitter the times first:
    `sources.with_jitter`."""

    name: str  # "Gamma + bigram"
    gaps: GapModel
    marks: MarkModel
    num_marks: int
    smallest: float  # gaps of 0 are raised to it
    left_out: int = 0  # 1: it scores events it was fitted to, each as if its mark had not been there
    chosen_from: Mapping[str, float] | None = None  # of the best of all pairs: NLL of every model on validation

    def log_prob(self, sequences: EventSequences) -> EventScores:
        """Scores of every event but the first of each sequence, each (N,)."""
        if sequences.num_marks != self.num_marks:
            got = f"got sequences of {sequences.num_marks}"
            raise ValueError(f"the baseline was fitted on {self.num_marks} marks; {got}.")
        scored = is_scored(sequences)
        density, survival = self.gaps.scores(gaps_of(sequences, self.smallest))
        marks = np.log(self.marks.probabilities(sequences, self.left_out), where=scored, out=np.zeros(len(scored)))
        values = (density + marks, density, marks, -survival)
        return EventScores(*(np.where(scored, value, np.nan) for value in values))
