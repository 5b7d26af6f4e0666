"""A log as one page: every event on a time line, arrows from what caused it, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.tables import shorten
from ..explain.causes import Why
from ..explain.trace import Edges, Trace
from .pages import packed, png, render_page

MAX_LANES = 24  # more kinds than that share the last lane
_MOST_CAUSES, _MOST_HELD, _SMALLEST = 5, 2, 0.005  # of an event, and the smallest: the page adds up the others
_LONGEST_NAME = 120
_UNKNOWN = 2**16 - 1


def log_page(
    trace: Trace,
    title: str | None = None,
    *,
    event: int | None = None,
    text: str | None = None,
    trust: str | None = None,
    figure: Any = None,
) -> str:
    """A `Trace` as an interactive page that opens with `event`, and with `text` above it.

    Args:
        trust: how far the model can be trusted: a sentence, and more lines if they are worth unfolding.
        figure: of matplotlib, a picture that shows it.
    """
    names, kinds = ordered_kinds(trace)
    names = [shorten(name, _LONGEST_NAME) for name in names]
    others = len(names) - MAX_LANES + 1
    lanes = names if others < 2 else [*names[: MAX_LANES - 1], f"{others} other kinds"]
    event = trace.telling() if event is None else event
    data = {"kinds": names, "lanes": lanes, "event": event, **_data(trace, kinds)}
    words: dict[str, Any] = {"text": text or str(trace).split("\n")[0], "trust": (trust or "").split("\n")}
    words |= {"matrix": _matrix(trace, lanes, kinds), "picture": None if figure is None else png(figure)}
    name = "This log" if trace.seq_id is None else shorten(f"Sequence {trace.seq_id}", _LONGEST_NAME)
    return render_page("log.html.j2", title or f"{name}: what caused what?", data, "log", **words)


def why_page(why: Why, title: str | None = None) -> str:
    """One `Why` on the page of a log that holds this event, its history and its causes."""
    return log_page(trace_of(why), title or f"Why {why.event.mark}?", event=len(why.history), text=str(why))


def trace_of(why: Why) -> Trace:
    """One event and its history: of the others it is not known what caused them."""
    events, share = [*why.history, why.event], np.array(why.probability)
    times, cause = np.array([one.time for one in events]), np.flatnonzero(share)
    effect, p_none = np.full(len(cause), len(share)), np.append(np.full(len(share), np.nan), why.p_none)
    lags = np.array([why.event.time - why.history[place].time for place in cause])  # type: ignore[operator]
    edges, marks = Edges(effect, cause, share[cause], p_none), tuple(one.mark for one in events)
    return Trace(times, marks, edges, lags, seq_id=why.seq_id, time_unit=why.time_unit)


def _data(trace: Trace, kinds: np.ndarray) -> dict[str, Any]:
    """Times and the strongest causes of each event, packed."""
    effect, cause, share, p_none = trace.edges
    kept = _strongest(effect, share, _MOST_CAUSES) | _strongest(effect, -share, _MOST_HELD)
    since, start = trace.times - trace.times[:1], trace.times[:1]
    if moments := since.dtype.kind == "m":
        since, start = since / np.timedelta64(1, "ms"), (start - np.datetime64(0, "s")) / np.timedelta64(1, "ms")
    return {
        "moments": moments,
        # Where most of few events would lie on one another, their order says more than their times.
        "evenly": bool(2 < len(since) <= 300 and (np.diff(since) < since[-1] / 120).mean() > 0.7),
        "unit": trace.time_unit,
        "start": float(start.sum()),
        "times": packed(since),
        "kind": packed(kinds),
        # 65535: it was not asked. A share below 0 may be anything: it is squeezed between -1 and 0.
        "none": packed(np.where(np.isnan(p_none), _UNKNOWN, np.rint(np.nan_to_num(p_none) * (_UNKNOWN - 1)))),
        "count": packed(np.bincount(effect[kept], minlength=len(kinds))),
        "back": packed((effect - cause)[kept]),
        "share": packed(np.rint(32767 * (share / (1 - share.clip(max=0)))[kept]).astype(np.int16), exact=True),
    }


def _matrix(trace: Trace, lanes: Sequence[str], kinds: np.ndarray) -> dict[str, Any] | None:
    """Of each pair of lanes how many events the one caused, in expectation, and how often it came just before; of
    each lane how many nothing caused. None where not all events were asked about."""
    effect, cause, share, p_none = trace.edges
    if len(kinds) == 0 or np.isnan(p_none).any():
        return None
    size, lane = len(lanes), kinds.clip(max=len(lanes) - 1)
    caused = np.bincount(lane[cause] * size + lane[effect], share.clip(0), size**2).reshape(size, size)
    before = np.bincount(lane[:-1] * size + lane[1:], minlength=size**2).reshape(size, size)
    count, alone = np.bincount(lane, minlength=size), np.bincount(lane, p_none, size)
    both = np.vstack([caused, alone])
    texts = [[f"{value:,.{int(value < 9.95)}f}" if value >= 0.05 else "" for value in row] for row in both]
    heat = np.ceil(10 * both / count - 0.2).clip(0, 9).astype(int).tolist()
    small: list[list[Any]] = [*before.tolist(), [f"{value:.0%}" for value in alone / count]]
    *rows, last = [list(zip(*row, strict=True)) for row in zip(texts, heat, small, strict=True)]
    return {"kinds": list(zip(lanes, count.tolist(), strict=True)), "rows": rows, "alone": last}


def ordered_kinds(trace: Trace) -> tuple[list[str], np.ndarray]:
    """The kinds of events, and of each event the place of its own among them: from those that cause to those that are
    caused, then those that take no part; where they are too many, the ones that count least come last."""
    names, kinds = np.unique(np.array(trace.marks, dtype=object), return_inverse=True)
    share, size = trace.edges.probability.clip(0), len(names)
    gave = np.bincount(kinds[trace.edges.cause], share, size)
    got = np.bincount(kinds[trace.edges.effect], share, size)
    number = np.bincount(kinds, minlength=size)
    asked = 1 - np.isnan(trace.p_none).mean()
    rank = np.argsort(np.argsort(-(gave + got + 0.01 * number), kind="stable"))
    is_small = (rank >= MAX_LANES - 1) & (size > MAX_LANES)
    order = np.lexsort(((got - gave) / (got + gave + 1e-9), gave + got < 0.3 * asked * number, is_small))
    return names[order].tolist(), np.argsort(order)[kinds]


def _strongest(effect: np.ndarray, weight: np.ndarray, most: int) -> np.ndarray:
    """(E,) whether an edge is among the `most` of largest weight that lead to its event."""
    order = np.lexsort((-weight, effect))
    is_among = np.empty(len(order), bool)
    is_among[order] = np.arange(len(order)) - np.searchsorted(effect, effect) < most
    return is_among & (weight >= _SMALLEST)
