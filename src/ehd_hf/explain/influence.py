"""Which kinds of events drive which: cause probabilities, summed by kind of cause and kind of effect.

Everything is made of sums over sequences (`Sums`), which are added piece by piece: memory does not grow with the log,
and parts that were summed elsewhere can be added too. The bootstrap is part of the sums.

Shapes: D draws, C kinds, U units of the bootstrap; matrices have the cause first.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from ..data.sequences import EventSequences
from ..data.sorting import MEMORY, alike, by_sequence, bytes_of
from ..data.tables import is_large, read_tables
from ..data.windows import before_each, runs
from ..models.point_process import MTPPModel, in_double
from .explanation import time_text
from .trace import find_causes

if TYPE_CHECKING:
    from .explainer import EHDDistiller

DRAWS = 200
# Fewer sequences than this are cut into stretches of time, so that there are as many units to draw from.
_FEWEST_UNITS = 20
_EVENTS_AT_ONCE, _CELLS_AT_ONCE = 8192, 2**22
# Lags are counted in bins, ten to a factor of 10, around the mean interval. For the lift, so many events before each
# are looked at.
_BINS, _LONGEST_LIFT = 10 ** np.linspace(-5, 5, 101), 100
_LAGS, _INTERVAL = {"lag_low": 0.05, "lag": 0.5, "lag_high": 0.95}, (0.025, 0.975)
# Added to the curvature of a likelihood, so that it can be inverted.
_RIDGE = 1e-6
_MOST_TOLD = 5


@dataclass
class Sums:
    """What is added up over the events of some sequences. First axis, where there is one more: all, then the draws."""

    carried: np.ndarray  # (1 + D, C, C) probabilities to be the cause
    none: np.ndarray  # (1 + D, C) probabilities that nothing in the log is
    events: np.ndarray  # (1 + D, C)
    held: np.ndarray  # (C, C) by how much causes held effects back
    lags: np.ndarray  # (C, C, bins) probabilities by lag
    together: np.ndarray  # (C, C, C) of each effect, products of the probabilities of two kinds of cause
    near: np.ndarray  # (C, C) effects with the cause among the events before them
    sequences: int = 0
    units: int = 0

    @classmethod
    def zeros(cls, kinds: int, draws: int) -> Sums:
        """Nothing yet."""
        shapes: list[Any] = [(1 + draws, kinds, kinds), (1 + draws, kinds), (1 + draws, kinds), (kinds, kinds)]
        shapes += [(kinds, kinds, len(_BINS) + 1), (kinds, kinds, kinds), (kinds, kinds)]
        arrays: list[Any] = [np.zeros(shape) for shape in shapes]
        return cls(*arrays)

    def add(self, other: Sums) -> None:
        """Add the sums of other sequences."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def sum_causes(
    mtpp: MTPPModel, events: EventSequences, history: int | None, how: Bootstrap, *, nearby: float = np.inf
) -> Sums:
    """The sums of these sequences. Causes are looked for among the `history` events before each; for the lift, among
    those that are no longer than `nearby` ago."""
    config: Any = mtpp.config
    kinds, double = config.num_marks, in_double(mtpp)
    sums = Sums.zeros(kinds, how.draws)
    sums.sequences, sums.units = len(events), len(events) * how.blocks
    unit = how.units(events)
    for part, weights in how.weights(events, unit, kinds):
        key = (unit[part] - unit[part][0]) * kinds + events.marks[part]
        sums.events += weights @ np.bincount(key, minlength=weights.shape[1] * kinds).reshape(-1, kinds)
    targets = np.flatnonzero(~mtpp.is_context(torch.from_numpy(events.marks)).numpy())
    for block in np.split(targets, range(_EVENTS_AT_ONCE, len(targets), _EVENTS_AT_ONCE)):
        spans = before_each(events, block, history)
        found, effects = find_causes(mtpp, double, spans), events.marks[block]
        effect, causes = block[found.window], block[found.window] - found.back
        cell = events.marks[causes] * kinds + events.marks[effect]  # (E,)
        positive, negative = found.probability.clip(0), (-found.probability).clip(0)
        sums.held += np.bincount(cell, negative, kinds * kinds).reshape(kinds, kinds)
        lag = (events.times[effect] - events.times[causes]) / float(mtpp.mean_interval)
        bins = cell * (len(_BINS) + 1) + np.searchsorted(_BINS, lag)
        sums.lags += np.bincount(bins, positive, sums.lags.size).reshape(sums.lags.shape)
        by_kind = found.window * kinds + events.marks[causes]
        each = np.bincount(by_kind, positive, len(block) * kinds).reshape(-1, kinds)
        sums.together += np.stack([each[effects == m].T @ each[effects == m] for m in range(kinds)])
        sums.near += _near(events, block, spans.first, nearby)
        for chosen, weights in how.weights(events, unit[block], kinds):
            inside = slice(*np.searchsorted(effect, [block[chosen][0], block[chosen][-1] + 1]).tolist())
            first, size = unit[block[chosen]][0], weights.shape[1]
            key = (unit[effect[inside]] - first) * kinds**2 + cell[inside]
            of_units = np.bincount(key, positive[inside], size * kinds**2).reshape(size, -1)
            sums.carried += (weights @ of_units).reshape(sums.carried.shape)
            key = (unit[block[chosen]] - first) * kinds + effects[chosen]
            sums.none += weights @ np.bincount(key, found.p_none[chosen], size * kinds).reshape(size, kinds)
    return sums


@dataclass(frozen=True)
class Bootstrap:
    """How often each sequence counts in each draw: a Poisson number that its name and the seed determine. Or how often
    each of its `blocks` does, stretches of equally many events."""

    draws: int = DRAWS
    seed: int = 0
    blocks: int = 1

    def units(self, events: EventSequences) -> np.ndarray:
        """(N,) number of the unit that each event belongs to."""
        owner = np.repeat(np.arange(len(events)), events.lengths)
        place = np.arange(events.num_events) - events.offsets[owner]
        return owner * self.blocks + place * self.blocks // events.lengths[owner]

    def weights(self, events: EventSequences, unit: np.ndarray, kinds: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Parts of events of units `unit` (M,), rising, and how often each unit in them counts, once and in the draws,
        (1 + D, U): so few units at a time that their matrices fit into memory."""
        size = max(1, _CELLS_AT_ONCE // kinds**2)
        for begin in range(int(unit[0]), int(unit[-1]) + 1, size) if len(unit) else ():
            part = slice(*np.searchsorted(unit, [begin, begin + size]).tolist())
            if part.start == part.stop:
                continue
            numbers = range(int(unit[part][0]), int(unit[part][-1]) + 1)
            names = (f"{events.seq_ids[one // self.blocks]}/{one % self.blocks}" for one in numbers)
            drawn = [np.random.default_rng([self.seed, zlib.crc32(name.encode())]) for name in names]
            poisson = np.array([one.poisson(1.0, self.draws) for one in drawn], dtype=float)
            yield part, np.vstack([np.ones(len(numbers)), poisson.T])


def _near(events: EventSequences, places: np.ndarray, first: np.ndarray, nearby: float) -> np.ndarray:
    """(C, C): how many events of the effect's kind at `places` have one of the cause's kind between `first` and them,
    no longer than `nearby` ago."""
    first = np.maximum(first, places - _LONGEST_LIFT)
    before, window = runs(first, places - first), np.repeat(np.arange(len(places)), places - first)
    recent = events.times[places[window]] - events.times[before] <= nearby
    present = np.zeros((len(places), events.num_marks), dtype=bool)
    present[window[recent], events.marks[before[recent]]] = True
    effects = events.marks[places]
    return np.stack([present[effects == kind].sum(0) for kind in range(events.num_marks)], axis=1)


def influence(
    explainer: EHDDistiller,
    source: Any,
    *,
    history: int | None,
    draws: int = DRAWS,
    seed: int = 0,
    columns: Any = None,
) -> Influence:
    """As `EHDDistiller.influence`."""
    mtpp = getattr(explainer.mtpp, "members", [explainer.mtpp])[0]
    config: Any = mtpp.config
    sums, how, nearby = Sums.zeros(config.num_marks, draws), None, np.inf
    for events in pieces(explainer, source, columns or {}):
        if how is None:
            how = Bootstrap(draws, seed, -(-_FEWEST_UNITS // len(events)))
            intervals = events.intervals()
            nearby = float(np.median(intervals[intervals > 0])) if (intervals > 0).any() else np.inf
        sums.add(sum_causes(mtpp, events, history, how, nearby=nearby))
    kinds, context = tuple(config.id2label[mark] for mark in range(config.num_marks)), config.context_marks or ()
    predicted = np.flatnonzero([name not in context for name in kinds])
    blocks = 1 if how is None else how.blocks
    return Influence(kinds, predicted, sums, blocks, float(mtpp.mean_interval), config.time_unit)


def pieces(explainer: EHDDistiller, source: Any, columns: Any) -> Iterator[EventSequences]:
    """The events of a source; of a file that may not fit into memory a part at a time: whole sequences."""
    if not isinstance(source, str | Path):
        yield explainer.load(source, "events", **columns)
        return
    if is_large(source):
        reading = explainer.read(next(read_tables(source)), **columns).reading
        if reading.sequence is not None:
            columns = {role: getattr(reading, role) for role in ("time", "mark", "sequence", "time_format")}
            text = [str(reading.mark), reading.sequence]
            roles = {role: str(columns[role]) for role in ("time", "mark", "sequence")}
            with TemporaryDirectory() as scratch:
                tables, folder = alike(read_tables(source, text), roles), Path(scratch) / "sorting"
                for table in by_sequence(tables, reading.sequence, bytes_of(MEMORY), folder, [], False):
                    yield explainer.load(explainer.read(table, **columns).events)
            return
    yield explainer.load(explainer.read(source, **columns).events)


@dataclass(frozen=True, eq=False)
class Influence:
    """How kinds of events drive kinds, as far as a trained point process can say."""

    kinds: tuple[str, ...]  # C
    predicted: np.ndarray  # (M,) numbers of those that can be effects: all but context
    sums: Sums
    blocks: int  # units of the bootstrap per sequence
    mean_interval: float
    time_unit: str | None = None

    @property
    def count(self) -> np.ndarray:
        """(C,) number of events of each kind."""
        return self.sums.events[0]

    @property
    def share(self) -> np.ndarray:
        """(C, M): share of the effect's events that the cause's explain."""
        return _divided(self.sums.carried[0], self.count)[:, self.predicted]

    @property
    def per_cause(self) -> np.ndarray:
        """(C, M): how many events of the effect one of the cause sets off."""
        return self._of_causes(self.sums.carried[0])[:, self.predicted]

    @property
    def background(self) -> np.ndarray:
        """(M,): share of the effect's events that nothing in the log explains."""
        return _divided(self.sums.none[0], self.count)[self.predicted]

    @property
    def lift(self) -> np.ndarray:
        """(C, M): how much likelier the cause's kind is within the median interval before the effect than before any
        predicted event. A count that knows no model; it stands beside every influence."""
        near = self.sums.near
        everywhere = _divided(near.sum(1), self.count[self.predicted].sum())
        return _divided(_divided(near, self.count), everywhere[:, None])[:, self.predicted]

    @cached_property
    def draws(self) -> np.ndarray:
        """(D, C, M): `per_cause` in draws of the bootstrap.

        A log that is drawn again would also teach other probabilities: where causes are hard to tell apart, a little
        evidence moves much. So a draw is one Newton step of the likelihood, of how strong each kind of cause is, from
        the values found: its gradient is what the draw has beyond expectation, its curvature `Sums.together`.
        """
        sums, chosen = self.sums, self.predicted
        beyond = sums.carried[1:] - self._of_causes(sums.carried[0]) * sums.events[1:, :, None]
        curvature = sums.together[chosen]  # (M, C, C)
        ridge = _RIDGE * np.maximum(np.trace(curvature, axis1=1, axis2=2), 1.0)
        steps = np.linalg.solve(
            curvature + ridge[:, None, None] * np.eye(len(self.kinds)), beyond[..., chosen].transpose(2, 1, 0)
        )
        return (self.per_cause * (1 + steps.transpose(2, 1, 0))).clip(0)

    def _of_causes(self, values: np.ndarray) -> np.ndarray:
        """Per event of the cause's kind."""
        return _divided(values, self.count[:, None])

    def to_frame(self) -> pd.DataFrame:
        """One row per pair of kinds that may be cause and effect, by `per_cause`: cause, effect, share (of the effects
        that are explained), per_cause (effects set off by one cause), low and high (its 95 % interval), share_low,
        share_high, against (effects that one cause held back), lift, count (effects set off in all), and the lags that
        5 %, half and 95 % of these have."""
        kinds, (cause, effect) = np.array(self.kinds, object), np.indices(self.share.shape)
        low, high = np.quantile(self.draws, _INTERVAL, axis=0)
        per_share = _divided(self.share, self.per_cause)  # shares have the same draws, in other units
        columns: dict[str, Any] = {"cause": kinds[cause], "effect": kinds[self.predicted][effect]}
        columns |= {"share": self.share, "per_cause": self.per_cause, "low": low, "high": high}
        columns |= {"share_low": low * per_share, "share_high": (high * per_share).clip(max=1)}
        columns |= {"against": self._of_causes(self.sums.held)[:, self.predicted], "lift": self.lift}
        columns["count"] = self.sums.carried[0][:, self.predicted]
        columns |= {name: self._lags(share) for name, share in _LAGS.items()}
        frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
        return frame.sort_values("per_cause", ascending=False, kind="stable", ignore_index=True)

    def _lags(self, share: float) -> np.ndarray:
        """(C, M): the lag that this share of the effects does not exceed; NaN where there are none."""
        sums = self.sums.lags[:, self.predicted].cumsum(-1)
        bins = (sums >= share * sums[..., -1:]).argmax(-1)
        middle = np.concatenate([[0.0], np.sqrt(_BINS[1:] * _BINS[:-1]), _BINS[-1:]])
        return np.where(sums[..., -1] > 0, middle[np.minimum(bins, len(middle) - 1)] * self.mean_interval, np.nan)

    def graph(self, threshold: float = 0.1) -> pd.DataFrame:
        """The pairs of different kinds of which one cause sets off at least `threshold` effects, the strongest first:
        cause, effect, per_cause, low, high, and stability, the share of the bootstrap's draws in which it is so."""
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not threshold > 0:
            raise ValueError(f"threshold must be a number of effects per cause above 0; got {threshold!r}. Try 0.1.")
        frame = self.to_frame()[["cause", "effect", "per_cause", "low", "high"]]
        frame = frame[(frame["per_cause"] >= threshold) & (frame["cause"] != frame["effect"])].reset_index(drop=True)
        number = {kind: place for place, kind in enumerate(self.kinds)}
        cause, effect = (frame[role].map(number).to_numpy(np.int64) for role in ("cause", "effect"))
        stable = (self.draws >= threshold).mean(0)
        return frame.assign(stability=stable[cause, np.searchsorted(self.predicted, effect)])

    def to_networkx(self, threshold: float = 0.1) -> Any:
        """The `graph` as a `networkx.DiGraph`: nodes with count, edges with the columns of the graph."""
        try:
            import networkx
        except ImportError:
            raise ImportError("to_networkx needs networkx. Install it with: pip install networkx") from None
        graph = networkx.DiGraph()
        graph.add_nodes_from((kind, {"count": number}) for kind, number in zip(self.kinds, self.count, strict=True))
        for cause, effect, *values in self.graph(threshold).itertuples(index=False):
            graph.add_edge(cause, effect, **dict(zip(("per_cause", "low", "high", "stability"), values, strict=True)))
        return graph

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists: `pairs` holds the rows of `to_frame`."""
        frame = self.to_frame().astype(object)
        effects = [self.kinds[place] for place in self.predicted]
        return {
            "kinds": list(self.kinds),
            "events": dict(zip(self.kinds, self.count.tolist(), strict=True)),
            "background": dict(zip(effects, self.background.tolist(), strict=True)),
            "sequences": self.sums.sequences,
            "time_unit": self.time_unit,
            "pairs": frame.where(frame.notna(), None).to_dict("records"),
        }

    def __str__(self) -> str:
        effects = self.count[self.predicted].sum()
        context = self.count.sum() - effects
        caused = 1 - float(_divided(self.sums.none[0][self.predicted].sum(), effects))
        units = "sequences" if self.blocks == 1 else f"{self.sums.units} stretches of time"
        lines = [f"Of {effects:,.0f} events, {caused:.0%} were set off by others before them, in expectation."]
        if context:
            lines[0] += f" {context:,.0f} more are context, which may set off others and is never explained."
        row: Any
        for row in self.to_frame().head(_MOST_TOLD).itertuples():
            text = f"{row.per_cause:.2f} {row.effect} ({row.low:.2f} to {row.high:.2f})"
            within = f"half of them within {time_text(float(format(row.lag, '.3g')), self.time_unit)}"
            lines.append(f"{row.cause} sets off {text}, {within}: {row.share:.0%} of all {row.effect}.")
        lines.append(f"Intervals of 95 % over {units}. This is what the model believes; it is no experiment.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table: Any = self.to_frame().head(4 * _MOST_TOLD).round(3)
        return f"<p>{html.escape(str(self)).replace(chr(10), '<br>')}</p>{table.to_html(index=False)}"

    def plot(self, *, title: str | None = None, theme: Any = "light") -> Any:
        """A figure of matplotlib: the shares as a matrix, a row per cause and one for nothing, a column per effect."""
        from ..present.picture import influence_plot  # matplotlib takes a while to import

        return influence_plot(self, title, theme=theme)


def _divided(values: Any, by: Any) -> Any:
    """0 where nothing is to be divided by."""
    values, by = np.broadcast_arrays(values, by)
    return np.divide(values, by, out=np.zeros(values.shape), where=by != 0)
