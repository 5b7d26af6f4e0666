"""A whole log as a graph: which event probably caused which, what it all began with, and what it set off."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from ..data.sequences import EventSequences, unit_in_nanoseconds
from ..data.tables import shorten
from ..data.windows import Spans, before_each
from ..files import write_text
from ..models.point_process import MTPPModel, in_double
from ..models.window import Window
from .causes import cause_probabilities, needs_double
from .explanation import NAME_LENGTH, Event, time_text

# Targets whose windows are held at a time.
_EVENTS_AT_ONCE = 8192
# Roots, paths and effects below this are not followed further.
_NEGLIGIBLE = 1e-9
# Pictures show causes from this probability on.
_DRAWN = 0.1
_SURE = 0.5


class Edges(NamedTuple):
    """E causes, sorted by effect, then cause; both are positions among all events that were asked about."""

    effect: np.ndarray  # (E,)
    cause: np.ndarray  # (E,)
    probability: np.ndarray  # (E,) negative where the cause held the effect back
    p_none: np.ndarray  # (N,) of every event


class Way(NamedTuple):
    """One way from a root to an event."""

    probability: float  # that every step of it caused the next, and nothing the first
    events: tuple[Event, ...]


class Found(NamedTuple):
    """The causes of events that are the last of W windows."""

    window: np.ndarray  # (E,) of which window, sorted
    back: np.ndarray  # (E,) how many events before its last one
    probability: np.ndarray  # (E,)
    p_none: np.ndarray  # (W,)


@torch.no_grad()
def find_causes(mtpp: MTPPModel, double: MTPPModel, spans: Spans, at_least: float = 0.0) -> Found:
    """In the precision of `mtpp`; by `double`, the same model, where that would lose digits of an interval. Causes
    whose probability is smaller than `at_least`, either way, are left out; a context event has none."""
    p_none = np.ones(len(spans.first))
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for batch in spans.batches():
        window = Window(*spans.rows(batch).tensors(mtpp.device))
        causes = cause_probabilities(mtpp, window.to(mtpp.dtype))
        share, none = causes.probability.double(), causes.p_none.double()
        if mtpp.dtype != torch.float64 and (rows := needs_double(window).nonzero()[:, 0]).numel():
            again = cause_probabilities(double, window.rows(rows))
            share[rows], none[rows] = again.probability, again.p_none
        of_context = mtpp.is_context(window.marks[:, -1])  # nothing causes these
        share, none = share.masked_fill(of_context[:, None], 0.0), none.masked_fill(of_context, 1.0)
        p_none[batch] = none.cpu().numpy()
        row, column = ((share != 0) & (share.abs() >= at_least)).nonzero(as_tuple=True)
        back = share.shape[1] - column
        parts.append((batch[row.cpu().numpy()], back.cpu().numpy(), share[row, column].cpu().numpy()))
    of, before, probability = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((-before, of))
    return Found(of[order], before[order], probability[order], p_none)


def find_edges(
    mtpp: MTPPModel,
    events: EventSequences,
    history: int | None,
    at_least: float = 0.0,
    update: Callable[[int], Any] = lambda number: None,
) -> Edges:
    """The causes of every event among the `history` events before it in its sequence, block by block: memory grows
    with the answer alone. `at_least` as in `find_causes`; `update` hears how many events are done."""
    parts, double = list[tuple[np.ndarray, ...]](), in_double(mtpp)
    for begin in range(0, events.num_events, _EVENTS_AT_ONCE):
        block = np.arange(begin, min(begin + _EVENTS_AT_ONCE, events.num_events))
        found = find_causes(mtpp, double, before_each(events, block, history), at_least)
        effect = begin + found.window
        parts.append((effect, effect - found.back, found.probability, found.p_none))
        update(len(block))
    effect, cause, probability, p_none = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Edges(effect, cause, probability, p_none)


@dataclass(frozen=True, eq=False)
class Trace:
    """Which event of a sequence caused which, with probabilities. Events are named by their position in it."""

    times: np.ndarray  # (N,) as the source writes them
    marks: tuple[str, ...]  # N
    edges: Edges
    lags: np.ndarray  # (E,) from cause to effect, in the model's unit of time
    seq_id: Any = None
    time_unit: str | None = None

    def __len__(self) -> int:
        return len(self.times)

    def __str__(self) -> str:
        caused, number = self._most_likely(), len(self)
        share = 0.0 if number == 0 else float(1 - self.p_none.mean())
        lines = [f"{number} events, {share:.0%} of them caused by others before them, in expectation."]
        for effect, cause, probability in caused[:5]:
            lines.append(f"{self._named(effect)} was caused by {self._named(cause)} ({probability:.0%})")
        more = len(caused) - 5
        return "\n".join([*lines, *([f"and {more} more that are likelier caused than not"] if more > 0 else [])])

    def _most_likely(self) -> list[tuple[int, int, float]]:
        """Effect, cause and probability where one cause is likelier than all else, the likeliest first."""
        sure = np.flatnonzero(self.edges.probability > 0.5)
        order = sure[np.argsort(-self.edges.probability[sure], kind="stable")]
        columns = (self.edges.effect, self.edges.cause, self.edges.probability)
        return list(zip(*(column[order].tolist() for column in columns), strict=True))

    def _named(self, place: int) -> str:
        return f"{shorten(self.marks[place], NAME_LENGTH)} at {time_text(self.times[place], self.time_unit)}"

    @property
    def p_none(self) -> np.ndarray:
        """(N,) of each event the probability that nothing before it caused it."""
        return self.edges.p_none

    def to_frame(self) -> pd.DataFrame:
        """One row per cause: event, cause (positions), probability (negative: the cause held it back), lag."""
        effect, cause, probability, _ = self.edges
        return pd.DataFrame({"event": effect, "cause": cause, "probability": probability, "lag": self.lags})

    def telling(self) -> int:
        """An event worth a look: the last that surely was caused by one that was caused itself; else the last that
        surely was caused; else the last."""
        sure = self.edges.probability > _SURE
        far = sure & (self.p_none[self.edges.cause] < _SURE)
        return int(self.edges.effect[far if far.any() else sure].max(initial=0)) if sure.any() else len(self) - 1

    def roots(self, event: int) -> pd.DataFrame:
        """With what did it begin? One row per event that may be the root of `event`, the likeliest first: event, time,
        mark, probability. These add up to 1, less what edges that were left out would carry."""
        weights, found = {self._checked(event): 1.0}, {}
        queue = [-self._checked(event)]
        while queue:  # the latest first: all that it can have caused is done
            place = -heapq.heappop(queue)
            weight = weights.pop(place)
            found[place] = weight * float(self.p_none[place])
            for cause, probability in self._causes_of(place):
                if weight * probability > _NEGLIGIBLE:
                    if cause not in weights:
                        weights[cause] = 0.0
                        heapq.heappush(queue, -cause)
                    weights[cause] += weight * probability
        return self._listed(found)

    def effects(self, event: int) -> pd.DataFrame:
        """What did it set off? One row per later event that may descend from `event`, the likeliest first: event,
        time, mark, probability."""
        start = self._checked(event)
        weights = np.zeros(len(self))
        weights[start] = 1.0
        effect, cause, probability, _ = self.edges
        begin = int(np.searchsorted(effect, start, side="right"))
        bounds = np.append(np.flatnonzero(np.diff(effect[begin:], prepend=-1)), len(effect) - begin) + begin
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            weights[effect[first]] = weights[cause[first:last]] @ probability[first:last].clip(0)
        weights[start] = 0.0
        return self._listed({int(place): float(weights[place]) for place in np.flatnonzero(weights > _NEGLIGIBLE)})

    def paths(self, event: int, most: int = 5) -> list[Way]:
        """How did it come about? The likeliest ways from a root to `event`, at most so many: what each began with
        stands first."""
        # The best unfinished way is extended, or ended where it is; a heap keeps them in order.
        ways: list[tuple[float, bool, tuple[int, ...]]] = [(-1.0, False, (self._checked(event),))]
        found: list[Way] = []
        while ways and len(found) < most:
            weight, ended, places = heapq.heappop(ways)
            if ended:
                found.append(Way(-weight, tuple(self._event(place) for place in places)))
                continue
            heapq.heappush(ways, (weight * float(self.p_none[places[0]]), True, places))
            for cause, probability in self._causes_of(places[0]):
                if -weight * probability > _NEGLIGIBLE:
                    heapq.heappush(ways, (weight * probability, False, (cause, *places)))
        return [path for path in found if path.probability > 0]

    def _causes_of(self, place: int) -> Iterator[tuple[int, float]]:
        """What raised an event, and with which probability."""
        first, last = np.searchsorted(self.edges.effect, [place, place + 1])
        pairs = zip(self.edges.cause[first:last].tolist(), self.edges.probability[first:last].tolist(), strict=True)
        yield from (pair for pair in pairs if pair[1] > 0)

    def _checked(self, event: int) -> int:
        if isinstance(event, bool) or not isinstance(event, int | np.integer) or not -len(self) <= event < len(self):
            got = f"got {event!r}. Look it up in to_frame()"
            raise ValueError(f"event must be the position of an event, from {-len(self)} to {len(self) - 1}; {got}.")
        return int(event) % len(self)

    def _event(self, place: int) -> Event:
        return Event(place, self.times[place], self.marks[place])

    def _listed(self, probabilities: dict[int, float]) -> pd.DataFrame:
        places = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
        columns = {"event": places, "time": self.times[places], "mark": [self.marks[place] for place in places]}
        return pd.DataFrame(columns | {"probability": [probabilities[place] for place in places]})

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph`: nodes with time, mark and p_none; edges from cause to effect with probability, lag."""
        try:
            import networkx
        except ImportError:
            raise ImportError("to_networkx needs networkx. Install it with: pip install networkx") from None
        graph = networkx.DiGraph()
        values = zip(self.times.tolist(), self.marks, self.p_none.tolist(), strict=True)
        graph.add_nodes_from(
            (place, {"time": time, "mark": mark, "p_none": none}) for place, (time, mark, none) in enumerate(values)
        )
        for event, cause, probability, lag in zip(*self.to_frame().to_numpy().T.tolist(), strict=True):
            graph.add_edge(int(cause), int(event), probability=probability, lag=lag)
        return graph

    def to_graphviz(self, at_least: float = _DRAWN) -> str:
        """Text for Graphviz' dot: arrows from cause to effect, from a probability of `at_least` on."""
        lines = ["digraph trace {", "  rankdir=LR; node [shape=box, style=rounded];"]
        drawn = self._drawn(at_least)
        for place in sorted({place for effect, cause, _ in drawn for place in (effect, cause)}):
            label = f"{self.marks[place]}\n{time_text(self.times[place], self.time_unit)}"
            lines.append(f"  n{place} [label={json.dumps(label)}];")
        for effect, cause, probability in drawn:
            lines.append(f'  n{cause} -> n{effect} [label="{probability:.2f}", penwidth={1 + 4 * probability:.1f}];')
        return "\n".join([*lines, "}", ""])

    def to_perfetto(self, path: str | Path | None = None, at_least: float = _DRAWN) -> dict[str, Any]:
        """The Trace Event Format that Perfetto and chrome://tracing open: a lane per mark, an arrow from cause to
        effect. Written to `path`, if given."""
        lanes = {mark: lane for lane, mark in enumerate(dict.fromkeys(self.marks), 1)}
        since = self._microseconds()
        rows: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"{self.seq_id}"}}
        ]
        for mark, lane in lanes.items():
            rows.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": {"name": mark}})
        width = float(max(1.0, (since[-1] - since[0]) / 1000)) if len(since) else 1.0
        for place, mark in enumerate(self.marks):
            about = {"event": place, "p_none": round(float(self.p_none[place]), 4)}
            where = {"pid": 1, "tid": lanes[mark], "ts": float(since[place])}
            rows.append({"name": mark, "cat": "event", "ph": "X", "dur": width, "args": about} | where)
        for number, (effect, cause, probability) in enumerate(self._drawn(at_least)):
            flow = {"name": "caused", "cat": "cause", "id": number, "pid": 1}
            begin, end = ({"tid": lanes[self.marks[one]], "ts": float(since[one])} for one in (cause, effect))
            rows.append(flow | begin | {"ph": "s", "args": {"probability": round(probability, 4)}})
            rows.append(flow | end | {"ph": "f", "bp": "e"})
        value = {"traceEvents": rows, "displayTimeUnit": "ms"}
        if path is not None:
            write_text(path, json.dumps(value))
        return value

    def plot(self, *, title: str | None = None, theme: Any = "light") -> Any:
        """A figure of matplotlib: events by mark, an arrow from each probable cause, as thick as it is probable. Of a
        long log, the part in which most was caused."""
        from ..present.picture import trace_plot  # matplotlib takes a while to import

        return trace_plot(self, title, theme=theme)

    def to_html(self, *, title: str | None = None, event: int | None = None, trust: str | None = None) -> str:
        """A page that needs no network: the log on a time line, with arrows from the causes of any event, at first of
        `event`. `trust` says how far the model can be trusted."""
        from ..present.log_page import log_page

        return log_page(self, title, event=None if event is None else self._checked(event), trust=trust)

    def _repr_html_(self) -> str:
        """A picture and the text, for notebooks."""
        from ..present.pages import fragment

        return fragment(self)

    def _drawn(self, at_least: float) -> list[tuple[int, int, float]]:
        """Effect, cause and probability, in order of time."""
        effect, cause, probability, _ = self.edges
        chosen = probability >= max(at_least, _NEGLIGIBLE)
        columns = (effect[chosen].tolist(), cause[chosen].tolist(), probability[chosen].tolist())
        return list(zip(*columns, strict=True))

    def _microseconds(self) -> np.ndarray:
        """(N,) since the first event; numbers without a unit count as seconds."""
        since = self.times - self.times[:1]
        if since.dtype.kind == "m":
            return since / np.timedelta64(1, "us")
        return since * (unit_in_nanoseconds(self.time_unit or "s") / 1000)


def traces(events: EventSequences, edges: Edges, time_unit: str | None) -> Iterator[Trace]:
    """The edges of each sequence, its events counted from 0."""
    shown, labels = events.shown_times(), np.array([events.id2label[mark] for mark in range(events.num_marks)], object)
    bounds = np.searchsorted(edges.effect, events.offsets)
    for number, name in enumerate(events.seq_ids):
        begin, end = events.offsets[number : number + 2]
        part = slice(bounds[number], bounds[number + 1])
        effect, cause = edges.effect[part], edges.cause[part]
        own = Edges(effect - begin, cause - begin, edges.probability[part], edges.p_none[begin:end])
        lags = events.times[effect] - events.times[cause]
        marks = tuple(labels[events.marks[begin:end]].tolist())
        yield Trace(shown[begin:end], marks, own, lags, seq_id=name, time_unit=time_unit)
