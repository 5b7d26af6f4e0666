"""Sliding windows over event sequences: one history of L events and the K events after it.

The stores keep the sequences once and make batches by index, in one gather. `export_windows` writes the same windows
as Parquet with a card, for `datasets.load_dataset(folder, "15-40")`; `load_windows` reads events or such a folder.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import Dataset

from .sequences import EventBatch, EventSequences, load_events
from .sources import load_source

SAMPLED_WINDOWS, SAMPLED_SEED = 5_000, 0  # test_sampled


class EventStore(Dataset[dict[str, torch.Tensor]]):
    """Stretches of consecutive events, by index; batches come from `__getitems__` whole.

    Use it as `DataLoader(store, batch_size=256, shuffle=True, collate_fn=store.collate)`.

    Args:
        sequences: where the events are; kept as they are.
        first: (W,) int64, position of each stretch's first event among all events of `sequences`.
    """

    _per_stretch: tuple[str, ...] = ("first", "origins")

    def __init__(self, sequences: EventSequences, first: np.ndarray) -> None:
        self.sequences = sequences
        self.first = first
        self.origins = sequences.previous_times()[first]  # (W,) float64: the clock origin of each stretch

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {key: batch[0] for key, batch in self.__getitems__([range(len(self))[index]]).items()}

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        raise TypeError(f"{type(self).__name__} must define __getitems__")

    @staticmethod
    def collate(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """`__getitems__` has already made the batch."""
        return batch

    @property
    def sequence_index(self) -> np.ndarray:
        """(W,) which sequence each stretch belongs to."""
        return np.searchsorted(self.sequences.offsets, self.first, side="right") - 1

    @property
    def window_offset(self) -> np.ndarray:
        """(W,) position of each stretch's first event in its own sequence."""
        return self.first - self.sequences.offsets[self.sequence_index]

    def select(self, indices: Sequence[int] | np.ndarray) -> Self:
        """The stretches at `indices`, in that order."""
        rows, chosen = np.asarray(indices, dtype=np.int64), copy.copy(self)
        for name in self._per_stretch:
            setattr(chosen, name, getattr(self, name)[rows])
        return chosen

    def sample(self, size: int = SAMPLED_WINDOWS, seed: int = SAMPLED_SEED) -> Self:
        """A fixed-seed subset without replacement, in order; everything if there are fewer."""
        if size >= len(self):
            return self
        return self.select(np.sort(np.random.default_rng(seed).choice(len(self), size, replace=False)))

    def sample_sequences(self, size: int, seed: int = SAMPLED_SEED) -> Self:
        """All stretches of as many fixed-seed sequences as it takes to have `size` of them, in order."""
        index = self.sequence_index
        shuffled = np.random.default_rng(seed).permutation(np.unique(index))
        reached = np.cumsum(np.bincount(index)[shuffled])
        chosen = shuffled[: int(np.searchsorted(reached, size)) + 1]
        return self.select(np.flatnonzero(np.isin(index, chosen)))


class WindowStore(EventStore):
    """Windows of `history` + `future` events.

    Keys: `times` (B, T) float32 counted from the window's origin, `marks` (B, T) int64, `mask` (B, T) bool, all True.

    Args:
        history: L, number of events of the history.
        future: K, number of events after it; T = L + K.
        num_too_short: number of sequences too short for a window.
    """

    def __init__(
        self, sequences: EventSequences, first: np.ndarray, *, history: int, future: int, num_too_short: int = 0
    ) -> None:
        super().__init__(sequences, first)
        self.history, self.future, self.num_too_short = history, future, num_too_short
        length = history + future
        # Overlapping views: row p holds the T events from p on, and costs nothing.
        self._times = torch.from_numpy(sequences.times).unfold(0, length, 1)  # (N - T + 1, T)
        narrow = np.int16 if sequences.num_marks < 2**15 else np.int64  # fewer bytes to gather
        self._marks = torch.from_numpy(sequences.marks.astype(narrow)).unfold(0, length, 1)

    def gather(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Times (B, T) float64 from each window's origin, and marks (B, T) int64."""
        rows = np.asarray(indices)
        first, origins = torch.from_numpy(self.first[rows]), torch.from_numpy(self.origins[rows])
        # index_select, because plain indexing of such a view starts threads and takes several times as long.
        times, marks = self._times.index_select(0, first), self._marks.index_select(0, first)
        return times.sub_(origins[:, None]), marks.long()

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        times, marks = self.gather(indices)
        return {"times": times.float(), "marks": marks, "mask": torch.ones(times.shape, dtype=torch.bool)}


class CropStore(EventStore):
    """Stretches of different lengths, right-padded; what a point process trains on.

    Keys as in `WindowStore`, with mask False on padding, and `loss_mask` (B, T) bool: False on padding and where the
    interval is not data, that is on a sequence's first event if its start is unknown.

    Args:
        count: (W,) int64, number of events of each stretch.
    """

    _per_stretch = ("first", "origins", "count", "no_interval")

    def __init__(self, sequences: EventSequences, first: np.ndarray, count: np.ndarray) -> None:
        super().__init__(sequences, first)
        self.count = count
        index = self.sequence_index
        self.no_interval = (first == sequences.offsets[index]) & np.isnan(sequences.starts[index])  # (W,)

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        rows = np.asarray(indices)
        spans = self.first[rows], self.count[rows], self.origins[rows]
        batch = EventBatch.from_spans(self.sequences.times, self.sequences.marks, *spans)
        loss_mask = batch.mask.clone()
        loss_mask[:, 0] = torch.from_numpy(~self.no_interval[rows])
        return {"times": batch.times, "marks": batch.marks, "mask": batch.mask, "loss_mask": loss_mask}


def make_windows(sequences: EventSequences, *, future: int, history: int) -> WindowStore:
    """All windows of L = `history` and K = `future` events.

    A window's clock origin is the event before it, so a sequence of l events gives l - (L + K) windows, and one if l =
    L + K, whose origin is the sequence's start or, if unknown, its own first event. Shorter sequences are skipped and
    counted in `num_too_short`.

    Example:

    ```python
    >>> events = load_events([[(0.0, "a"), (1.0, "b"), (3.0, "a"), (6.0, "a")]])
    >>> make_windows(events, future=1, history=2)[0]["times"]
    tensor([1., 3., 6.])
    ```
    """
    _check_sequences(sequences)
    for name, size in (("future", future), ("history", history)):
        if not _is_count(size):
            raise ValueError(f"{name} must be at least 1 event; got {size!r}. Choose K and L such as 15-40.")
    window, lengths = future + history, sequences.lengths
    if lengths.max() < window:
        raise ValueError(
            f"a window of {history} + {future} events needs a sequence of at least {window}; the longest has "
            f"{lengths.max()}. Choose a smaller history or future."
        )
    count = np.where(lengths == window, 1, np.maximum(lengths - window, 0))
    first = _runs(sequences.offsets[:-1] + (lengths > window), count)
    return WindowStore(sequences, first, history=history, future=future, num_too_short=int((lengths < window).sum()))


def make_crops(sequences: EventSequences, *, length: int, min_events: int | None = None) -> CropStore:
    """Crops of at most `length` events from every position that leaves at least `min_events` (or the whole sequence).

    Args:
        length: most events of a crop.
        min_events: fewest events of a crop of a longer sequence; default half of `length`.
    """
    _check_sequences(sequences)
    fewest: Any = max(length // 2, 1) if min_events is None and _is_count(length) else min_events
    if not _is_count(length) or not _is_count(fewest) or fewest > length:
        raise ValueError(
            f"crops need 1 <= min_events <= length; got min_events {fewest!r} and length {length!r}. Choose others."
        )
    lengths = sequences.lengths
    positions = lengths - np.minimum(fewest, lengths) + 1
    first = _runs(sequences.offsets[:-1], positions)
    return CropStore(sequences, first, np.minimum(np.repeat(sequences.offsets[1:], positions) - first, length))


def make_whole(sequences: EventSequences, max_length: int | None = None) -> CropStore:
    """One item per sequence, in full or its first `max_length` events."""
    _check_sequences(sequences)
    if max_length is not None and not _is_count(max_length):
        raise ValueError(f"max_length must be at least 1; got {max_length!r}. Leave it out for whole sequences.")
    lengths = sequences.lengths
    return CropStore(
        sequences, sequences.offsets[:-1], lengths if max_length is None else lengths.clip(max=max_length)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _check_sequences(sequences: Any) -> None:
    if not isinstance(sequences, EventSequences):
        kind = type(sequences).__name__
        raise ValueError(f"windows are cut from EventSequences; got {kind}. Make them with load_events.")
    if len(sequences) == 0:
        raise ValueError("windows need at least one sequence; got none. Check what was selected.")


def _runs(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """begin[i], begin[i] + 1, ... (count[i] of them) for every i, joined."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


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
