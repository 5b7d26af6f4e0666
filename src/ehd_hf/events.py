"""Marked event sequences: what a user has, checked once at the door and then trusted.

`EventSequences` holds many sequences flat (one copy in memory, sequence i between two offsets). `load_events` makes it
from files, frames, datasets and lists. Everything later (windows, models, solvers) starts from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EventSequences:
    """Many marked event sequences, stored flat.

    Args:
        times: (N,) float64, in `time_unit`, finite, non-decreasing within a sequence (ties allowed).
        marks: (N,) int64 in [0, num_marks).
        offsets: (S + 1,) int64; sequence i owns events offsets[i]:offsets[i + 1].
        seq_ids: S ids as the source names its sequences.
        id2label: name of every mark; its length is the number of marks.
        starts: (S,) float64, when each observation began; NaN where unknown.
        time_unit: name of the unit of `times` ("s", "h", "1e6 s", ...), or None if the source does not say.
        epochs: (S,) datetime64[ns], the moment each sequence calls 0, if its times came as timestamps.
    """

    times: np.ndarray
    marks: np.ndarray
    offsets: np.ndarray
    seq_ids: tuple[Any, ...]
    id2label: Mapping[int, str]
    starts: np.ndarray
    time_unit: str | None = None
    epochs: np.ndarray | None = field(default=None)

    @classmethod
    def from_lists(
        cls,
        times: Sequence[Any],
        marks: Sequence[Any],
        *,
        id2label: Mapping[int, str] | None = None,
        num_marks: int | None = None,
        seq_ids: Sequence[Any] | None = None,
        starts: Sequence[float] | np.ndarray | None = None,
        time_unit: str | None = None,
    ) -> EventSequences:
        """One list of numeric times and one of integer marks per sequence; validates and flattens."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Times and marks of one sequence."""
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.times[span], self.marks[span]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[index] for index in range(len(self)))

    @property
    def num_events(self) -> int:
        return len(self.times)

    @property
    def num_marks(self) -> int:
        return len(self.id2label)

    @property
    def label2id(self) -> dict[str, int]:
        return {label: mark for mark, label in self.id2label.items()}

    @property
    def lengths(self) -> np.ndarray:
        """(S,) number of events of each sequence."""
        return np.diff(self.offsets)

    def previous_times(self) -> np.ndarray:
        """(N,) time of the event before each one; before a sequence's first, its start, or its own time if unknown."""
        previous = np.empty_like(self.times)
        previous[1:] = self.times[:-1]
        first = self.offsets[:-1]
        previous[first] = np.where(np.isnan(self.starts), self.times[first], self.starts)
        return previous

    def intervals(self) -> np.ndarray:
        """(N,) time since the event before; 0 for the first of a sequence whose start is unknown."""
        return self.times - self.previous_times()

    def select(self, indices: Sequence[int] | np.ndarray) -> EventSequences:
        """The sequences at `indices`, in that order."""
        indices = np.asarray(indices, dtype=np.int64)
        pieces = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in indices]
        where = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
        return replace(
            self,
            times=self.times[where],
            marks=self.marks[where],
            offsets=np.concatenate([[0], np.cumsum(self.lengths[indices])]).astype(np.int64),
            seq_ids=tuple(self.seq_ids[i] for i in indices),
            starts=self.starts[indices],
            epochs=None if self.epochs is None else self.epochs[indices],
        )
