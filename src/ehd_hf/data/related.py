"""Context from elsewhere: events of a second table, and those of related sequences, put into each sequence's history.

Deploys and holidays happen to everyone; alarms of a device spread to the devices it is connected to. Such events join
a sequence under marks of their own, which a point process can take as context: causes that are never predicted.

```python
>>> read = read_events("alarms.csv", mark="alarm", sequence="device")
>>> joined, context = join_related(read, "related.csv")  # columns: device, neighbour
>>> context[0]
'near: a0'
```
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .reading import Read, Reading, read_events
from .sequences import EventSequences, unit_in_nanoseconds
from .tables import nearest, read_table
from .windows import runs

NEAR = "near: "


def without_marks(events: EventSequences, names: Collection[str]) -> EventSequences:
    """The events of all other marks; sequences that have none are left out, the vocabulary stays."""
    if not names:
        return events
    kept = ~np.isin(events.marks, [mark for mark, name in events.id2label.items() if name in names])
    owner = np.repeat(np.arange(len(events)), events.lengths)[kept]
    return _of_rows(events, owner, events.times[kept], events.marks[kept])


def join_context(read: Read, source: Any) -> tuple[Read, list[str]]:
    """The events of a second table, such as deploys, put into all sequences; with a column of sequences, each into its
    own alone. Also returns which marks the second table has: what to take as context.

    Columns are called as in the first table, or found as there. Marks join the vocabulary, times the clocks.
    """
    events, named = (
        read.events,
        Reading(**{role: getattr(read.reading, role) for role in ("time", "mark", "sequence")}),
    )
    found = read_events(source, time_unit=events.time_unit, reading=named)
    others, every = found.events, np.arange(found.events.num_events)
    if found.reading.sequence is None:
        target, place = np.repeat(np.arange(len(events)), len(every)), np.tile(every, len(events))
    else:
        target, place = np.repeat(_positions(events, others.seq_ids), others.lengths), every
    names = list(dict.fromkeys([*events.id2label.values(), *others.id2label.values()]))
    marks = np.array([names.index(name) for name in others.id2label.values()])[others.marks]
    times = _on_clocks(others, place, events, target)
    return _with_events(read, names, target, times, marks[place], found.notes), list(others.id2label.values())


def join_related(read: Read, source: Any) -> tuple[Read, list[str]]:
    """Every sequence with the events of its neighbours, each under its mark's name with "near: " before it; and these
    names: what to take as context.

    Args:
        source: a table of two columns, sequence and neighbour: the neighbour's events join the sequence. Both
            directions may be listed: what is joined are the events that the neighbour itself has, so that nothing
            comes back to where it happened.
    """
    events, table = read.events, read_table(source)
    if table.num_columns != 2:
        got = f"got {', '.join(table.column_names)}. Keep these two"
        raise ValueError(f"related sequences need two columns, sequence and neighbour; {got}.")
    one, other = (map(str, column.to_pylist()) for column in table.columns)
    pairs = list(dict.fromkeys(zip(one, other, strict=True)))
    if itself := [one for one, other in pairs if one == other]:
        raise ValueError(f"a sequence must not be its own neighbour; got {itself[0]!r} twice. Leave the row out.")
    here, there = (_positions(events, [pair[side] for pair in pairs]) for side in (0, 1))
    target, place = np.repeat(here, events.lengths[there]), runs(events.offsets[there], events.lengths[there])
    near = {mark: NEAR + events.id2label[mark] for mark in np.unique(events.marks).tolist()}
    names = list(dict.fromkeys([*events.id2label.values(), *near.values()]))
    marks = np.array([names.index(near.get(mark, names[0])) for mark in range(events.num_marks)])[events.marks[place]]
    times = _on_clocks(events, place, events, target)
    return _with_events(read, names, target, times, marks), list(near.values())


def _with_events(
    read: Read, names: Sequence[str], target: np.ndarray, times: np.ndarray, marks: np.ndarray, notes: Any = ()
) -> Read:
    """What was read, with more events, (M,) each, of the sequences `target` and the vocabulary `names`."""
    joined = _merged(replace(read.events, id2label=dict(enumerate(names))), target, times, marks)
    parts = read.splits or {}
    splits = {split: joined.select(_positions(joined, part.seq_ids)) for split, part in parts.items()}
    notes = [*read.notes, *(f"of the context: {note}" for note in notes)]
    return Read(joined, replace(read.reading, marks=tuple(names)), notes, splits or None)


def _positions(events: EventSequences, names: Any) -> np.ndarray:
    """Of sequences, by name."""
    known = {str(name): place for place, name in enumerate(events.seq_ids)}
    if unknown := [name for name in names if str(name) not in known]:
        hint = nearest(str(unknown[0]), list(known))
        raise ValueError(f"sequences must be those of the events; got {unknown[0]!r}.{hint} Leave its rows out.")
    return np.array([known[str(name)] for name in names], np.int64)


def _on_clocks(source: EventSequences, place: np.ndarray, events: EventSequences, target: np.ndarray) -> np.ndarray:
    """Times of the events at `place` in `source` on the clocks of the sequences `target` of `events`."""
    if source.epochs is None and events.epochs is None:
        return source.times[place]
    if source.epochs is None or events.epochs is None:
        expected, got = ("numbers" if part.epochs is None else "timestamps" for part in (events, source))
        raise ValueError(f"context must have {expected} as times, as the events have; got {got}. Convert them.")
    owner = np.searchsorted(source.offsets, place, side="right") - 1
    gap = (source.epochs[owner] - events.epochs[target]).astype("timedelta64[ns]").astype(np.int64)
    return source.times[place] + gap / unit_in_nanoseconds(events.time_unit or "s")


def _merged(events: EventSequences, owner: np.ndarray, times: np.ndarray, marks: np.ndarray) -> EventSequences:
    """With more events, (M,) each, of the sequences `owner`; at equal times they come before those that were there. A
    sequence is known from its start, or its first event, to its last: what happened before or after is left out."""
    first, last = events.times[events.offsets[:-1]], events.times[events.offsets[1:] - 1]
    begin = np.where(np.isnan(events.starts), first, events.starts)
    inside = (times >= begin[owner]) & (times <= last[owner])
    owner, times, marks = owner[inside], times[inside], marks[inside]
    own = np.repeat(np.arange(len(events)), events.lengths)
    owners, whole = np.append(owner, own), np.append(times, events.times)
    order = np.lexsort((np.repeat([0, 1], [len(owner), len(own)]), whole, owners))
    return _of_rows(events, owners[order], whole[order], np.append(marks, events.marks)[order])


def _of_rows(events: EventSequences, owner: np.ndarray, times: np.ndarray, marks: np.ndarray) -> EventSequences:
    """Sequences like those of `events` with other events, in order of their `owner`."""
    counts = np.bincount(owner, minlength=len(events))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    whole = replace(events, times=times, marks=marks, offsets=offsets)
    return whole if counts.all() else whole.select(np.flatnonzero(counts))
