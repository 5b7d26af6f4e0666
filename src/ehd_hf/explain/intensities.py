"""The intensity with and without the distilled events: what a picture of an explanation shows below its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..data.sequences import unit_in_nanoseconds
from ..models.point_process import MTPPModel
from .explanation import Intensity, Windows

# Points along the history, and along the future. Each is drawn a few hundred pixels wide: more would only make files
# large.
NUM_POINTS = 200
# Marks that get curves of their own, of those that the future has.
MAX_MARKS = 5
# Just after an event, as a share of the silence that follows.
_AFTER = 1e-6
_NUMBERS_PER_BATCH = 2**24


@torch.no_grad()
def intensity_curves(mtpp: MTPPModel, windows: Windows, distill_masks: Sequence[Sequence[bool]]) -> list[Intensity]:
    """The intensity along each window, given all events before, and given those of the history that are not distilled.
    `mtpp` is in double precision, so that silences far from the origin keep their length."""
    config: Any = mtpp.config
    answers: dict[int, Intensity] = {}
    order = np.argsort(windows.spans.lengths, kind="stable")
    # A window has at most 3 NUM_POINTS, each with its marks, events and some hundred hidden numbers.
    numbers = 3 * NUM_POINTS * (config.num_marks + int(windows.spans.lengths.max()) + 200)
    for indices in np.split(order, range(size := max(1, _NUMBERS_PER_BATCH // numbers), len(order), size)):
        spans: Any = windows.spans.rows(indices)
        # All events as the future, so that all padding is behind.
        times, marks, mask, _ = (np.asarray(values) for values in spans._replace(num_future=spans.lengths).tensors())
        keep = np.ones(times.shape)
        for row, index in enumerate(indices):
            keep[row, : len(distill_masks[index])] -= distill_masks[index]
        counts = list(zip(spans.lengths.tolist(), spans.num_future.tolist(), strict=True))
        grids = [intensity_grid(times[row, :length], future) for row, (length, future) in enumerate(counts)]
        longest = max(len(query) for query, _, _ in grids)
        query = np.stack([np.pad(query, (0, longest - len(query)), mode="edge") for query, _, _ in grids])
        given = [torch.from_numpy(values).to(mtpp.device) for values in (times, marks, mask, query)]
        whole = mtpp.intensity(*given).cpu().numpy()  # (B, Q, C)
        left = mtpp.intensity(*given, keep=torch.from_numpy(keep).to(mtpp.device)).cpu().numpy()
        for row, (index, (length, future), (_, drawn, split)) in enumerate(zip(indices, counts, grids, strict=True)):
            apart = list(dict.fromkeys(marks[row, length - future : length].tolist()))[:MAX_MARKS]
            curves = [values[row, : len(drawn)] for values in (whole, left)]
            answers[index] = Intensity(
                times=_on_clock(drawn - times[row, 0], windows.shown[spans.first[row]], config.time_unit),
                whole=curves[0].sum(1),
                left=curves[1].sum(1),
                split=split,
                marks=tuple(config.id2label[mark] for mark in apart),
                whole_by_mark=curves[0][:, apart].T,
                left_by_mark=curves[1][:, apart].T,
            )
    return [answers[index] for index in range(len(order))]


def intensity_grid(times: np.ndarray, num_future: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Where to look at the intensity from the first to the last of `times` (T,), where to draw it, (Q,) each, and how
    many of these points belong to the history. The future has as many points, though it is often a small part."""
    split = len(times) - num_future
    history, future = _stretch(times[:split]), _stretch(times[split - 1 :])
    query, shown = (np.concatenate(pair) for pair in zip(history, future, strict=True))
    return query, shown, len(history[0])


def _stretch(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for one stretch. An event stands twice, since the intensity jumps there; a silence is denser at its
    beginning, where most happens. Where there are more events than points, these are evenly spaced."""
    edges = np.unique(times)
    gaps = np.diff(edges)
    if len(gaps) == 0:
        return np.nextafter(edges, np.inf), edges
    if len(gaps) > NUM_POINTS // 2:
        even = np.linspace(edges[0], edges[-1], NUM_POINTS)
        return np.append(np.nextafter(even[0], np.inf), even[1:]), even
    spare = max(0, NUM_POINTS - 3 * len(gaps))
    query: list[np.ndarray] = []
    shown: list[np.ndarray] = []
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        share = np.linspace(0, 1, 3 + int(spare * (end - begin) / (edges[-1] - edges[0]))) ** 1.5
        for points, first in ((shown, 0.0), (query, _AFTER)):
            share[0] = first
            points.append(np.minimum(begin + (end - begin) * share, end))
    return np.concatenate(query), np.concatenate(shown)


def _on_clock(since: np.ndarray, first: Any, unit: str | None) -> np.ndarray:
    """Times as the source shows them: `since` the `first` event of a window, a number or a timestamp."""
    if not isinstance(first, np.datetime64):
        return first + since
    return first + np.rint(since * unit_in_nanoseconds(unit or "s")).astype("timedelta64[ns]")
