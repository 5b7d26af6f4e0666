"""The intensity with and without the distilled events: what a picture of an explanation shows below its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..data.sequences import unit_in_nanoseconds
from ..models.point_process import MTPPModel
from .explanation import Intensity

# Points along the history, and along the future. Each is drawn a few hundred pixels wide: more would only make files
# large.
NUM_POINTS = 200
# Marks that get curves of their own, of those that the future has.
MAX_MARKS = 5
# Just after an event, as a share of the silence that follows.
_AFTER = 1e-6
_NUMBERS_PER_BATCH = 2**24


class IntensityQuestion(NamedTuple):
    """One window: `times` (T,) float64 counted from its origin, `marks` (T,); `keep` (T,), which events stay when the
    distilled ones are removed; how many of the last are the future; and the times as the user gave them, (T,)."""

    times: np.ndarray
    marks: np.ndarray
    keep: np.ndarray
    num_future: int
    shown_times: np.ndarray


@torch.no_grad()
def intensity_curves(mtpp: MTPPModel, questions: Sequence[IntensityQuestion]) -> list[Intensity]:
    """The intensity along each window, given all events before and given those that are kept.

    Args:
        mtpp: in double precision, so that silences far from the origin keep their length.
        questions: windows of any lengths.
    """
    config: Any = mtpp.config
    answers: dict[int, Intensity] = {}
    for indices in _batches(questions, config.num_marks):
        some = [questions[index] for index in indices]
        grids = [intensity_grid(question.times, question.num_future) for question in some]
        times, marks, keep, query = (
            torch.from_numpy(_padded(rows)).to(mtpp.device)
            for rows in (
                [question.times for question in some],
                [question.marks for question in some],
                [question.keep.astype(np.float64) for question in some],
                [query for query, _, _ in grids],
            )
        )
        lengths = torch.tensor([len(question.times) for question in some], device=mtpp.device)
        mask = torch.arange(times.shape[1], device=mtpp.device) < lengths[:, None]
        whole = mtpp.intensity(times, marks, mask, query).cpu().numpy()  # (B, Q, C)
        left = mtpp.intensity(times, marks, mask, query, keep=keep).cpu().numpy()
        for row, (index, question, (_, shown, split)) in enumerate(zip(indices, some, grids, strict=True)):
            apart = list(dict.fromkeys(question.marks[len(question.marks) - question.num_future :].tolist()))
            curves = [values[row, : len(shown)] for values in (whole, left)]
            answers[index] = Intensity(
                times=_on_clock(shown, question, config.time_unit),
                whole=curves[0].sum(1),
                left=curves[1].sum(1),
                split=split,
                marks=tuple(config.id2label[mark] for mark in apart[:MAX_MARKS]),
                whole_by_mark=curves[0][:, apart[:MAX_MARKS]].T,
                left_by_mark=curves[1][:, apart[:MAX_MARKS]].T,
            )
    return [answers[index] for index in range(len(questions))]


def intensity_grid(
    times: np.ndarray, num_future: int, num_points: int = NUM_POINTS
) -> tuple[np.ndarray, np.ndarray, int]:
    """Where to look at the intensity from the first to the last of `times` (T,), where to draw it, (Q,) each, and how
    many of these points belong to the history.

    About `num_points` lie along the history and as many along the future, which is often a small part of the time.
    """
    split = len(times) - num_future
    history, future = _stretch(times[:split], num_points), _stretch(times[split - 1 :], num_points)
    query, shown = (np.concatenate(pair) for pair in zip(history, future, strict=True))
    return query, shown, len(history[0])


def _stretch(times: np.ndarray, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for one stretch. An event stands twice, since the intensity jumps there; a silence is denser at its
    beginning, where most happens. Where there are more events than points, these are evenly spaced."""
    edges = np.unique(times)
    gaps = np.diff(edges)
    if len(gaps) == 0:
        return np.nextafter(edges, np.inf), edges
    if len(gaps) > num_points // 2:
        even = np.linspace(edges[0], edges[-1], num_points)
        return np.append(np.nextafter(even[0], np.inf), even[1:]), even
    spare = max(0, num_points - 3 * len(gaps))
    query: list[np.ndarray] = []
    shown: list[np.ndarray] = []
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        share = np.linspace(0, 1, 3 + int(spare * (end - begin) / (edges[-1] - edges[0]))) ** 1.5
        for points, first in ((shown, 0.0), (query, _AFTER)):
            share[0] = first
            points.append(np.minimum(begin + (end - begin) * share, end))
    return np.concatenate(query), np.concatenate(shown)


def _on_clock(relative: np.ndarray, question: IntensityQuestion, unit: str | None) -> np.ndarray:
    since = relative - question.times[0]
    if not np.issubdtype(question.shown_times.dtype, np.datetime64):
        return question.shown_times[0] + since
    nanoseconds = np.rint(since * unit_in_nanoseconds(unit or "s")).astype("timedelta64[ns]")
    return question.shown_times[0] + nanoseconds


def _batches(questions: Sequence[IntensityQuestion], num_marks: int) -> Iterator[list[int]]:
    """Indices of windows of like length that fit into memory together."""
    batch: list[int] = []
    for index in sorted(range(len(questions)), key=lambda index: len(questions[index].times)):
        # The longest comes last: 3 NUM_POINTS at most, each with its marks, events and some hundred hidden numbers.
        numbers = 3 * NUM_POINTS * (num_marks + len(questions[index].times) + 200)
        if batch and (len(batch) + 1) * numbers > _NUMBERS_PER_BATCH:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The rows side by side, each filled up with its last value: (B, T)."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])
