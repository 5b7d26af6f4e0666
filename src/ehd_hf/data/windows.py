"""Windows on event sequences: the only file that cuts, pads and batches.

A window is a history of L events and the K events after it; its clock starts at the event before it, or at the
sequence's start. `Spans` are windows of any lengths on flat events; the stores serve training and evaluation by index,
in one gather.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .sequences import EventSequences, load_events
from .sources import load_source
from .splits import num_windows

SAMPLED_WINDOWS, SAMPLED_SEED = 5_000, 0  # test_sampled
EVENTS_PER_BATCH = 100_000  # padding included


# --- windows of any lengths


class Spans(NamedTuple):
    """W windows on flat events."""

    times: np.ndarray  # (N,)
    marks: np.ndarray  # (N,)
    first: np.ndarray  # (W,) where a window begins there, and so on
    lengths: np.ndarray
    num_future: np.ndarray  # how many of its last events are the future
    origins: np.ndarray  # of its clock
    sequence: np.ndarray  # number of its sequence
    offset: np.ndarray  # where it begins in that

    def rows(self, index: Any) -> Spans:
        """The windows at `index`, an array or a slice."""
        return Spans(self.times, self.marks, *(column[index] for column in self[2:]))

    def compact(self) -> Spans:
        """Without the events that no window has; for windows that do not overlap."""
        where = runs(self.first, self.lengths)
        first = np.cumsum(self.lengths) - self.lengths
        return self._replace(times=self.times[where], marks=self.marks[where], first=first)

    def batches(self) -> Iterator[np.ndarray]:
        """Numbers of windows that fill a batch with little padding and bounded memory."""
        batch: list[int] = []
        longest = [0, 0]  # history and future of the batch: what it is padded to
        for index in np.lexsort((self.lengths, self.num_future)).tolist():
            future = int(self.num_future[index])
            padded = [max(longest[0], int(self.lengths[index]) - future), max(longest[1], future)]
            if batch and (len(batch) + 1) * sum(padded) > EVENTS_PER_BATCH:
                yield np.array(batch)
                batch, padded = [], [int(self.lengths[index]) - future, future]
            longest = padded
            batch.append(index)
        if batch:
            yield np.array(batch)

    def tensors(self, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor, int]:
        """times (float64), marks, mask (B, L + K) and K: the split stands at the same place in every row, padding
        before and behind."""
        num_history = self.lengths - self.num_future
        step = np.arange(num_history.max() + self.num_future.max()) - (num_history.max() - num_history)[:, None]
        inside = step.clip(0, self.lengths[:, None] - 1)
        mask, where = step == inside, self.first[:, None] + inside  # (B, L + K)
        # In float64 up to here: float32 would lose small intervals far from zero.
        times = np.where(step < 0, 0.0, self.times[where] - self.origins[:, None])
        marks = self.marks[where] * mask
        padded = (torch.from_numpy(array).to(device) for array in (times, marks, mask))
        return (*padded, int(self.num_future.max()))  # type: ignore[return-value]


def ends(events: EventSequences, future: int | np.ndarray, history: int | None) -> Spans:
    """The last events of each sequence, split into `history` events (all there are if None) and the `future`, a
    number for all sequences or (S,)."""
    num_future = np.broadcast_to(future, len(events)).astype(np.int64)
    lengths = events.lengths if history is None else np.minimum(events.lengths, num_future + history)
    first = events.offsets[1:] - lengths
    where = (np.arange(len(events)), events.lengths - lengths)
    return Spans(events.times, events.marks, first, lengths, num_future, events.previous_times()[first], *where)


def slides(events: EventSequences, future: int, history: int) -> Spans:
    """Every window of `history` and `future` events; none where all sequences are shorter."""
    if len(events) and events.lengths.max() >= future + history:
        spans = make_windows(events, future=future, history=history).spans()
        return spans._replace(num_future=np.full(len(spans.first), future))
    return Spans(events.times, events.marks, *(np.zeros(0, np.int64),) * 6)


def before_each(events: EventSequences, position: np.ndarray, history: int | None) -> Spans:
    """The event at each `position` (W,) among all events as the future of the `history` events before it in its
    sequence, all there are if None."""
    sequence = np.searchsorted(events.offsets, position, side="right") - 1
    begin = events.offsets[sequence]
    first = begin if history is None else np.maximum(begin, position - history)
    columns = (first, position + 1 - first, np.ones_like(position), events.previous_times()[first], sequence)
    return Spans(events.times, events.marks, *columns, first - begin)


def runs(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """begin[i], begin[i] + 1, ... (count[i] of them) for every i, joined."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


# --- stores


Rows = Sequence[int] | np.ndarray | Tensor


class EventStore(Dataset[dict[str, Tensor]]):
    """Windows by index; batches come from `__getitems__` whole.

    Use it as `DataLoader(store, batch_size=256, shuffle=True, collate_fn=store.collate)`. Keys: `times` (B, T) float32
    counted from each window's origin, `marks` (B, T) int64, `mask` (B, T) bool, False on padding, which is behind.
    `first` and `count`, (W,) int64, say where each window begins among the events of `sequences`, and how many it has.
    """

    def __init__(self, sequences: EventSequences, first: np.ndarray, count: np.ndarray) -> None:
        self.sequences, self.first, self.count = sequences, first, count
        self.origins = sequences.previous_times()[first]  # (W,) float64: the clock origin of each window

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {key: batch[0] for key, batch in self.__getitems__([range(len(self))[index]]).items()}

    def __getitems__(self, indices: Rows) -> dict[str, Tensor]:
        times, marks, mask, _ = self.spans(np.asarray(indices)).tensors()
        return {"times": times.float(), "marks": marks, "mask": mask}

    @staticmethod
    def collate(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return batch  # `__getitems__` has made it

    @property
    def sequence_index(self) -> np.ndarray:
        """(W,) which sequence each window belongs to."""
        return self.spans().sequence

    @property
    def window_offset(self) -> np.ndarray:
        """(W,) position of each window's first event in its own sequence."""
        return self.spans().offset

    def spans(self, index: Any = slice(None)) -> Spans:
        """The windows at `index`; all of their events are the future, so that padding is behind."""
        first, count = self.first[index], self.count[index]
        sequence = np.searchsorted(self.sequences.offsets, first, side="right") - 1
        where = (self.origins[index], sequence, first - self.sequences.offsets[sequence])
        return Spans(self.sequences.times, self.sequences.marks, first, count, count, *where)

    def select(self, indices: Sequence[int] | np.ndarray) -> Self:
        """The windows at `indices`, in that order."""
        rows, chosen = np.asarray(indices, dtype=np.int64), copy.copy(self)
        chosen.first, chosen.count, chosen.origins = self.first[rows], self.count[rows], self.origins[rows]
        return chosen

    def sample(self, size: int = SAMPLED_WINDOWS, seed: int = SAMPLED_SEED) -> Self:
        """A fixed-seed subset without replacement, in order; everything if there are fewer."""
        return self.select(sampled(len(self), size, seed))


def sampled(number: int, size: int, seed: int = SAMPLED_SEED) -> np.ndarray:
    """`size` of `number` indices by a fixed seed, without replacement, in order; all if there are fewer."""
    if size >= number:
        return np.arange(number)
    return np.sort(np.random.default_rng(seed).choice(number, size, replace=False))


class WindowStore(EventStore):
    """Windows of T = L + K events, `history` + `future`; nothing is padded. `num_too_short` sequences have none."""

    def __init__(
        self, sequences: EventSequences, first: np.ndarray, *, history: int, future: int, num_too_short: int = 0
    ) -> None:
        super().__init__(sequences, first, np.broadcast_to(history + future, len(first)))
        self.history, self.future, self.num_too_short = history, future, num_too_short

    def gather(self, indices: Rows) -> tuple[Tensor, Tensor]:
        """Times (B, T) float64 from each window's origin, and marks (B, T) int64."""
        return self.spans(np.asarray(indices)).tensors()[:2]


class CropStore(EventStore):
    """Windows of different lengths; what a point process trains on. One more key, `loss_mask` (B, T) bool: False on
    padding and where the interval is not data, that is on a sequence's first event if its start is unknown."""

    def __getitems__(self, indices: Rows) -> dict[str, Tensor]:
        spans = self.spans(np.asarray(indices))
        times, marks, mask, _ = spans.tensors()
        loss_mask = mask.clone()
        loss_mask[:, 0] = torch.from_numpy((spans.offset > 0) | ~np.isnan(self.sequences.starts[spans.sequence]))
        return {"times": times.float(), "marks": marks, "mask": mask, "loss_mask": loss_mask}


class DatasetWindows(Dataset[dict[str, Tensor]]):
    """Windows that `datasets` hosts, a split of `load_dataset(folder, "15-40")`: the batches of a `WindowStore`."""

    collate = staticmethod(EventStore.collate)

    def __init__(self, rows: Any) -> None:
        self.rows = _window_columns(rows).with_format("numpy")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Rows) -> dict[str, Tensor]:
        return _window_batch(self.rows[np.asarray(indices).tolist()])


class StreamedWindows:
    """The same of a split that is streamed: shuffled within a buffer, read again from its beginning when resuming."""

    buffer_size = 10_000  # windows

    def __init__(self, rows: Any) -> None:
        self.rows = _window_columns(rows).with_format("numpy")

    def batches(self, batch_size: int) -> Iterator[dict[str, Tensor]]:
        """All windows once, in their order."""
        return map(_window_batch, self.rows.iter(batch_size))

    def step_batches(self, batch_size: int, seed: int, steps: range) -> Iterator[dict[str, Tensor]]:
        """The batch of each step, a pure function of (seed, step); what is left over at the end of an epoch is not
        used, unless it is all there is."""
        step = 0
        for epoch in count():
            shuffled = self.rows.shuffle(seed=seed * 1_000_003 + epoch, buffer_size=self.buffer_size)
            first = step
            for rows in shuffled.iter(batch_size):
                if len(rows["future_marks"]) < batch_size and step > first:
                    break
                if step in steps:
                    yield _window_batch(rows)
                step += 1
                if step >= steps.stop:
                    return
            if step == first:
                raise ValueError("there must be windows to train on; the stream is empty. Check its split.")


_WINDOW_COLUMNS = ("history_times", "history_marks", "future_times", "future_marks")


def _window_columns(rows: Any) -> Any:
    names = rows.column_names or []
    if not set(_WINDOW_COLUMNS) <= set(names):
        raise ValueError(
            f"windows have the columns {', '.join(_WINDOW_COLUMNS)}; got {', '.join(names) or 'none'}. Load them by "
            'pair, such as load_dataset(folder, "15-40").'
        )
    return rows.select_columns(list(_WINDOW_COLUMNS))


def _window_batch(rows: Mapping[str, Any]) -> dict[str, Tensor]:
    times, marks = (
        np.concatenate([rows[f"{part}_{key}"] for part in ("history", "future")], 1) for key in ("times", "marks")
    )
    return {
        "times": torch.from_numpy(times).float(),
        "marks": torch.from_numpy(marks),
        "mask": torch.ones(marks.shape, dtype=torch.bool),
    }


def make_windows(sequences: EventSequences, *, future: int, history: int) -> WindowStore:
    """All windows of L = `history` and K = `future` events.

    A window's clock origin is the event before it, so a sequence of l events gives l - (L + K) windows, and one if l =
    L + K, whose origin is the sequence's start or, if unknown, its own first event. Shorter sequences are skipped and
    counted in `num_too_short`.

    ```python
    >>> events = load_events([[(0.0, "a"), (1.0, "b"), (3.0, "a"), (6.0, "a")]])
    >>> make_windows(events, future=1, history=2)[0]["times"]
    tensor([1., 3., 6.])
    ```
    """
    for name, size in (("future", future), ("history", history)):
        _check_cut(sequences, name, size)
    window, lengths = future + history, sequences.lengths
    if lengths.max() < window:
        got = f"the longest has {lengths.max()}. Choose a smaller history or future."
        raise ValueError(f"a window of {history} + {future} events needs a sequence of at least {window}; {got}")
    count = num_windows(lengths, window)
    first = runs(sequences.offsets[:-1] + (lengths > window), count)
    return WindowStore(sequences, first, history=history, future=future, num_too_short=int((lengths < window).sum()))


def make_crops(sequences: EventSequences, *, length: int) -> CropStore:
    """Crops of at most `length` events from every position that leaves at least half of it (or the whole sequence)."""
    _check_cut(sequences, "length", length)
    lengths = sequences.lengths
    positions = lengths - np.minimum(max(length // 2, 1), lengths) + 1
    first = runs(sequences.offsets[:-1], positions)
    return CropStore(sequences, first, np.minimum(np.repeat(sequences.offsets[1:], positions) - first, length))


def _check_cut(sequences: Any, name: str, size: Any) -> None:
    if not isinstance(sequences, EventSequences) or len(sequences) == 0:
        got = "none" if isinstance(sequences, EventSequences) else type(sequences).__name__
        raise ValueError(f"windows are cut from EventSequences, at least one; got {got}. Make them with load_events.")
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name} must be at least 1 event; got {size!r}. Choose K and L such as 15-40.")


def parse_pair(name: str) -> tuple[int, int]:
    """(K, L) of a window name such as "15-40"."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", str(name))
    if match is None:
        raise ValueError(f'a window is named "K-L", future then history, such as "15-40"; got {name!r}.')
    return int(match[1]), int(match[2])


def load_windows(source: Any, name: str = "15-40", *, split: str = "train", **columns: Any) -> WindowStore:
    """Windows in memory, for training and evaluation.

    Args:
        source: what `load_source` reads: a folder written by `export_windows`, a file or folder of events, or the Hub
            id of such a data set; `EventSequences`, a mapping from split to them; or anything `load_events` takes. A
            source that is one piece is the split train.
        name: "K-L", number of future and history events. An exported folder serves any pair: it holds the sequences.
        split: train, validation, test, or test_sampled (5,000 windows of test by a fixed seed).
        columns: keywords of `load_events`; `revision` of a data set on the Hub.
    """
    future, history = parse_pair(name)
    splits: Mapping[str, EventSequences]
    if isinstance(source, str | Path):
        splits = load_source(source, **columns)
    elif isinstance(source, Mapping) and all(isinstance(value, EventSequences) for value in source.values()):
        splits = source
    elif isinstance(source, EventSequences):
        splits = {"train": source}
    else:
        splits = {"train": load_events(source, **columns)}
    whole = "test" if split == "test_sampled" else split
    if whole not in splits:
        raise ValueError(f"no split {split!r}; the source has {', '.join(splits)}. Pass split=<one of them>.")
    store = make_windows(splits[whole], future=future, history=history)
    return store.sample() if split == "test_sampled" else store
