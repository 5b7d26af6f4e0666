"""Futures simulated from the end of a log, in several worlds at once, and what they say of each kind of event.

Sample s of one world is drawn from the same random numbers as sample s of any other, so that differences between
worlds are due to their events. Nothing is thinned: a waiting time is where the compensator reaches an exponential
number.

Shapes: W worlds, S samples, C kinds of events, R futures that have not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..models.point_process import MTPPModel, Past

# A future with more events than this is a model's explosion.
_MOST_EVENTS = 10_000
# Numbers that hold the states and intensities of all futures drawn together: 100 MB with what is computed from them.
_NUMBERS_AT_ONCE = 2**22
_SECONDS_WITHOUT_BAR = 3
_Z = NormalDist().inv_cdf(0.975)


@torch.no_grad()
def simulate(
    mtpp: MTPPModel,
    worlds: Sequence[tuple[np.ndarray, np.ndarray]],
    now: float,
    horizon: float,
    num_samples: int,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Number of events of each kind up to `now + horizon`, and time from `now` to the first, inf if there is none:
    (W, S, C) each. A world is its times and marks (T,), times counted from the window's origin; those after `now` are
    planned context events, which happen in all of its futures. `mtpp` is in double precision: far from the origin,
    short intervals keep their length."""
    planned = [(times[times > now] - now, marks[times > now]) for times, marks in worlds]
    worlds = [(times[times <= now], marks[times <= now]) for times, marks in worlds]
    most = max(len(times) for times, _ in planned)
    waiting = [np.pad(times, (0, most + 1 - len(times)), constant_values=np.inf) for times, _ in planned]
    kinds = [np.pad(marks, (0, most + 1 - len(marks))) for _, marks in planned]
    plan = tuple(torch.from_numpy(np.stack(values)).to(mtpp.device) for values in (waiting, kinds))  # (W, P + 1) each
    longest = max(len(times) for times, _ in worlds)
    padded = [[np.pad(values, (longest - len(values), 0)) for values in world] for world in worlds]
    times, marks = (torch.from_numpy(np.stack(values)).to(mtpp.device) for values in zip(*padded, strict=True))
    lengths = torch.tensor([[len(world[0])] for world in worlds], device=mtpp.device)
    past = mtpp.past(times, marks, torch.arange(longest, 0, -1, device=mtpp.device) <= lengths)
    config: Any = mtpp.config
    counts = torch.zeros(len(worlds), num_samples, config.num_marks, dtype=torch.int32, device=mtpp.device)
    first = torch.full(counts.shape, torch.inf, dtype=torch.float64, device=mtpp.device)
    numbers = 256 + 4 * config.num_marks + sum(values[0].numel() for values in (past.states, *past.memory))
    size = max(1, _NUMBERS_AT_ONCE // (len(worlds) * numbers))
    generator = torch.Generator().manual_seed(seed)
    total, delay = len(worlds) * num_samples, 0 if progress else _SECONDS_WITHOUT_BAR
    with tqdm(total=total, desc="simulating", unit="future", delay=delay, disable=progress is False) as bar:
        for chunk in zip(counts.split(size, dim=1), first.split(size, dim=1), strict=True):
            _draw(mtpp, past, now, horizon, generator, *chunk, bar, plan)
    return counts.cpu().numpy(), first.cpu().numpy()


def _draw(
    mtpp: MTPPModel,
    past: Past,
    now: float,
    horizon: float,
    generator: Any,
    counts: Tensor,
    first: Tensor,
    bar: Any,
    plan: tuple[Tensor, ...],
) -> None:
    """Fill in `counts` and `first` (W, S, C), event after event of all futures together."""
    device, (num_worlds, number, _) = counts.device, counts.shape
    world = torch.arange(num_worlds, device=device).repeat_interleave(number)  # (R,)
    sample = torch.arange(number, device=device).repeat(num_worlds)  # (R,)
    past, due = past.rows(world), torch.zeros_like(world)  # number of the next planned event
    # Nothing has happened since the last event that is left: its compensator up to now is behind us.
    survived = mtpp.total_compensator(past.states, now - past.last_times)
    if not bool(survived.isfinite().all()):
        raise ValueError("the model's intensities must be finite; got others. Check its weights and the times.")
    for _ in range(_MOST_EVENTS):
        drawn = torch.rand(number, 2, generator=generator, dtype=torch.float64).to(device)[sample]
        times, marks = mtpp.next_events(past, survived - torch.log1p(-drawn[:, 0]), drawn[:, 1])
        since = (times - now).clamp(min=0)  # a long silence is rounded
        then, what = (values[world, due] for values in plan)
        replayed = then < since
        since, marks, due = torch.where(replayed, then, since), torch.where(replayed, what, marks), due + replayed
        inside = (since <= horizon).nonzero()[:, 0]
        bar.update(len(sample) - len(inside))
        if len(inside) == 0:
            return
        world, sample, since, marks, due = (values[inside] for values in (world, sample, since, marks, due))
        cells = world, sample, marks  # one for each future
        counts[cells] += 1
        first[cells] = torch.minimum(first[cells], since)
        past = mtpp.extend(past.rows(inside), now + since, marks)
        survived = torch.zeros_like(since)
    raise ValueError(
        f"a future must have at most {_MOST_EVENTS:,} events; {len(sample):,} of {num_worlds * number:,} have more "
        f"within {horizon:g}. Shorten the horizon; if events explode in a short one too, the model fits the log badly."
    )


# --- what samples say


class Estimate(NamedTuple):
    """Of every kind of event a value, and its 95 % interval: (C,) each."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def clear(self, num_tests: int) -> np.ndarray:
        """(C,) how clearly each value differs from 0: its distance in half widths of an interval that is wide enough
        for `num_tests` looks at once; 0 where the difference may be chance."""
        widening = NormalDist().inv_cdf(1 - 0.025 / num_tests) / _Z
        distance = np.abs(self.low + self.high) / (self.high - self.low) / widening
        return np.where(distance > 1, distance, 0.0)


def mean(values: np.ndarray, lowest: float = -np.inf) -> Estimate:
    """Of (S, C) over S. The variance is that of the samples and one event in one more of them, so that none is 0."""
    number, average = len(values), values.mean(0)
    half = _Z * np.sqrt((values.var(0) + 1 / number) / number)
    return Estimate(average, np.maximum(average - half, lowest), average + half)


def share(happens: np.ndarray) -> Estimate:
    """Of (S, C), bool, over S, with Wilson's interval."""
    number, value = len(happens), happens.mean(0)
    centre, whole = value + _Z**2 / (2 * number), 1 + _Z**2 / number
    half = _Z * np.sqrt(value * (1 - value) / number + _Z**2 / (4 * number**2))
    low, high = (centre - half) / whole, (centre + half) / whole
    return Estimate(value, np.minimum(low, value).clip(0), np.maximum(high, value))  # at 0 and 1 rounded


def share_difference(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Of pairs (S, C) over S, after - before, with the interval of Bonett and Price: two more pairs, one that rises
    and one that falls."""
    number = len(before)
    rises, falls = ((pairs.sum(0) + 1) / (number + 2) for pairs in (after & ~before, before & ~after))
    half = _Z * np.sqrt((rises + falls - (rises - falls) ** 2) / (number + 2))
    return Estimate(after.mean(0) - before.mean(0), rises - falls - half, rises - falls + half)


def middle(times: np.ndarray) -> Estimate:
    """Median of what is finite in each column of (S, C), and 5 % and 95 % quantiles; NaN where nothing is."""
    columns = (column[np.isfinite(column)] for column in times.T)
    values = [np.quantile(column, (0.5, 0.05, 0.95)) if len(column) else np.full(3, np.nan) for column in columns]
    return Estimate(*np.array(values).T)
