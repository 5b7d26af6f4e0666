"""`EHDDistiller`: events in, explanations out. What users meet; models and tensors stay behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoModel

from . import distillers
from .distillers.base import DistillerModel
from .events import EventSequences, load_events, unit_in_nanoseconds
from .explanation import Event, Explanation
from .perplexity import dppl

if TYPE_CHECKING:
    import datasets

CHECKPOINTS = Path(__file__).parent / "checkpoints"
# Explaining a few hundred windows takes a blink; beyond that people want to see it move.
_WINDOWS_WITHOUT_BAR = 300
_EVENTS_PER_BATCH = 50_000


def list_pretrained() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(folder.parent.name for folder in CHECKPOINTS.glob("*/config.json"))


def load_example(name: str = "incidents") -> pd.DataFrame:
    """Example events that come with a bundled checkpoint: one row per event, columns `time` and `mark`."""
    examples = sorted(file.parent.name for file in CHECKPOINTS.glob("*/example.csv"))
    if name not in examples:
        raise ValueError(f"Examples are {', '.join(examples)}; got {name!r}.")
    return pd.read_csv(CHECKPOINTS / name / "example.csv", parse_dates=["time"])


def resolve_checkpoint(name_or_path: str | PathLike[str]) -> str:
    """A local folder, then a bundled checkpoint, then a Hub id."""
    bundled = CHECKPOINTS / str(name_or_path)
    if not Path(name_or_path).is_dir() and str(name_or_path) in list_pretrained():
        return str(bundled)
    return str(name_or_path)


class _Window(NamedTuple):
    """One question: float64 times on the user's clock, marks, the clock's origin, how many of the last are the future,
    and the times as the user gave them."""

    times: np.ndarray
    marks: np.ndarray
    origin: float
    num_future: int
    shown_times: np.ndarray
    seq_id: Any


class EHDDistiller:
    """Explains which past events are responsible for what just happened.

    Args:
        model: a trained distiller; its MTPP is inside.

    Example:

    ```python
    >>> import ehd_hf
    >>> explainer = ehd_hf.EHDDistiller.from_pretrained("incidents")
    >>> print(explainer.explain(ehd_hf.load_example("incidents"), future=5))
    ```
    """

    def __init__(self, model: DistillerModel) -> None:
        self.model = model.eval()

    @classmethod
    def from_pretrained(cls, name_or_path: str | PathLike[str], **kwargs: Any) -> EHDDistiller:
        """Open any distiller: a local folder, a bundled checkpoint (see `list_pretrained`), or a Hub id."""
        assert distillers  # importing it registers every distiller with AutoModel
        where = resolve_checkpoint(name_or_path)
        try:
            model = AutoModel.from_pretrained(where, **kwargs)
        except OSError as error:
            raise OSError(
                f"No distiller called {str(name_or_path)!r}: not a folder with config.json, not one of the bundled "
                f"{', '.join(list_pretrained())}, and not found on the Hub ({error})."
            ) from error
        if not isinstance(model, DistillerModel):
            raise ValueError(
                f"{str(name_or_path)!r} holds a {type(model).__name__}, not a distiller. Train one on it with "
                "scripts/train.py (task: distiller), or name a distiller's checkpoint."
            )
        return cls(model)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the distiller and its MTPP to one folder."""
        self.model.save_pretrained(folder)

    def __repr__(self) -> str:
        config = self.model.config
        marks = config.mtpp_config.num_marks
        return (
            f"EHDDistiller({type(self.model).__name__}, {marks} marks, trained on {config.history} events -> "
            f"{config.future}, epsilon {config.epsilon}, {config.conditioning} conditioning)"
        )

    # --- explaining

    def explain(
        self,
        sequence: Any = None,
        *,
        future: Any = None,
        history: Any = None,
        progress: bool | None = None,
    ) -> Explanation | list[Explanation]:
        """Which events of the history explain the future?

        Give a whole sequence and how many of its last events are the future, or the history and the future apart.
        One sequence gives one `Explanation`; several (a list of them, or a table with more than one id) a list.

        Args:
            sequence: events in any form `load_events` takes, an (n, 2) array too, or an `EventSequences`. Marks by
                name or number; times as numbers in the model's unit, or as timestamps.
            future: number of last events of `sequence` to explain (the model's own K if not given); or the future's
                events, beside `history`.
            history: number of events before the future to look at (all if not given); or the history's events.
            progress: show a bar; by default only for more than a few hundred windows.
        """
        if sequence is None:
            if history is None or future is None or isinstance(history, int) or isinstance(future, int):
                raise ValueError(
                    "explain needs a sequence, or the events of both history and future; got neither. "
                    "Write explain(sequence, future=5) or explain(history=events, future=events)."
                )
            before, after = self._load(history, "history"), self._load(future, "future")
            windows = [self._joined(before, after, index) for index in range(len(before))]
        else:
            events = self._load(sequence, "sequence")
            windows = [self._cut(events, index, future, history) for index in range(len(events))]
        source = history if sequence is None else sequence
        answers = self._explain(windows, progress)
        if len(answers) > 1 or _is_nested(source):
            return answers
        return answers[0] if _is_named(source) else replace(answers[0], seq_id=None)

    def explain_dataset(self, dataset: datasets.Dataset, *, future: int | None = None) -> datasets.Dataset:
        """The dataset with an explanation per row in new columns: `distilled` and `probability` (one entry per history
        event), `dppl_left`, `dppl_distilled`, `constraint_met`, `is_most_recent`.

        Rows are windows as `export_windows` writes them (columns history_times, history_marks, future_times,
        future_marks), or sequences (times, marks) whose last `future` events are explained.
        """
        names = set(dataset.column_names)
        if {"history_times", "history_marks", "future_times", "future_marks"} <= names:
            columns = ["history_times", "history_marks", "future_times", "future_marks"]
        elif {"times", "marks"} <= names:
            columns = ["times", "marks"]
        else:
            raise ValueError(
                "A dataset to explain has the columns history_times, history_marks, future_times, future_marks, or "
                f"times and marks; got {', '.join(dataset.column_names)}. Rename its columns."
            )

        def explain_rows(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
            lists = [rows[name] for name in columns]
            if len(columns) == 4:
                before = [{"times": t, "marks": m} for t, m in zip(lists[0], lists[1], strict=True)]
                after = [{"times": t, "marks": m} for t, m in zip(lists[2], lists[3], strict=True)]
                histories, futures = self._load(before, "history_times"), self._load(after, "future_times")
                joined = (self._joined(histories, futures, index) for index in range(len(before)))
                # Exported windows count from their clock's origin.
                answers = self._explain([window._replace(origin=0.0) for window in joined], False)
            else:
                several = [{"times": t, "marks": m} for t, m in zip(*lists, strict=True)]
                events = self._load(several, "dataset")
                answers = self._explain([self._cut(events, i, future, None) for i in range(len(events))], False)
            return {
                "distilled": [list(answer.distill_mask) for answer in answers],
                "probability": [[event.probability for event in answer.history] for answer in answers],
                "dppl_left": [answer.dppl_left for answer in answers],
                "dppl_distilled": [answer.dppl_distilled for answer in answers],
                "constraint_met": [answer.constraint_met for answer in answers],
                "is_most_recent": [answer.is_most_recent for answer in answers],
            }

        return dataset.map(explain_rows, batched=True, batch_size=1000, desc="explaining")

    # --- from events to windows

    def _load(self, source: Any, role: str) -> EventSequences:
        """Events in the model's marks and unit of time."""
        config = self.model.config.mtpp_config
        try:
            if isinstance(source, EventSequences):
                if dict(source.id2label) != dict(config.id2label):
                    raise ValueError(_other_vocabulary(source.id2label, config.id2label))
                return source
            if isinstance(source, np.ndarray) and source.ndim == 2 and source.shape[1] == 2:
                source = [tuple(pair) for pair in source.tolist()]
            if isinstance(source, Sequence) and len(source) == 0:
                raise ValueError("it has no events; expected at least one. Check what was selected.")
            if isinstance(source, dict) and "times" in source and np.ndim(source["times"][:1]) == 1:
                source = {name: [source[name]] for name in ("times", "marks")}
            return load_events(source, id2label=config.id2label, time_unit=config.time_unit)
        except ValueError as error:
            known = ", ".join([*list(config.id2label.values())[:12], *(["..."] if len(config.id2label) > 12 else [])])
            raise ValueError(f"{role}: {error} (The model knows the marks {known}.)") from error

    def _cut(self, events: EventSequences, index: int, future: int | None, history: int | None) -> _Window:
        """The last events of a sequence, split into history and future."""
        name, (times, marks) = events.seq_ids[index], events[index]
        num_future = self.model.config.future if future is None else future
        if isinstance(num_future, bool) or not isinstance(num_future, int) or num_future < 1:
            raise ValueError(f"future must be a number of events of at least 1; got {num_future!r}.")
        if history is not None and (isinstance(history, bool) or not isinstance(history, int) or history < 1):
            raise ValueError(f"history must be a number of events of at least 1; got {history!r}.")
        if len(times) <= num_future:
            raise ValueError(
                f"sequence {name!r} has {len(times)} events, all of them in the future of {num_future}: the history "
                "is empty. Ask for a shorter future or give a longer sequence."
            )
        first = 0 if history is None else max(0, len(times) - num_future - history)
        origin = events.previous_times()[events.offsets[index] + first]
        moments = events.timestamps(index)
        shown = times if moments is None else moments
        return _Window(times[first:], marks[first:], origin, num_future, shown[first:], name)

    def _joined(self, before: EventSequences, after: EventSequences, index: int) -> _Window:
        """History and future given apart."""
        if len(before) != len(after):
            raise ValueError(
                f"There must be one future per history; got {len(before)} histories, {len(after)} futures."
            )
        if (before.epochs is None) != (after.epochs is None):
            raise ValueError("History and future must both have timestamps or both have numbers; got one of each.")
        name, (times, marks), (later, later_marks) = before.seq_ids[index], before[index], after[index]
        if before.epochs is not None and after.epochs is not None:
            gap = (after.epochs[index] - before.epochs[index]).astype("timedelta64[ns]").astype(np.int64)
            later = later + gap / unit_in_nanoseconds(before.time_unit or "s")
        if later[0] < times[-1]:
            raise ValueError(
                f"The future must not begin before the history ends; in sequence {name!r} it begins at {later[0]:g} "
                f"and the history ends at {times[-1]:g}. Swap or cut them."
            )
        start = before.starts[index]
        origin = float(times[0] if np.isnan(start) else start)
        moments = before.timestamps(index)
        shown = np.concatenate([times, later] if moments is None else [moments, after.timestamps(index)])
        return _Window(
            np.concatenate([times, later]), np.concatenate([marks, later_marks]), origin, len(later), shown, name
        )

    # --- from windows to answers

    def _explain(self, windows: list[_Window], progress: bool | None) -> list[Explanation]:
        longest = max(len(window.times) for window in windows)
        if longest > self.model.config.max_length:
            raise ValueError(
                f"A window may have at most max_length = {self.model.config.max_length} events; got {longest}. "
                "Pass history=<number of events> to look at the most recent ones only."
            )
        answers: dict[int, Explanation] = {}
        show = len(windows) > _WINDOWS_WITHOUT_BAR if progress is None else progress
        with tqdm(total=len(windows), desc="explaining", unit="window", disable=not show) as bar:
            for indices in _batches_of_like_length(windows):
                batch = [windows[index] for index in indices]
                answers.update(zip(indices, self._explain_batch(batch), strict=True))
                bar.update(len(indices))
        return [answers[index] for index in range(len(windows))]

    @torch.no_grad()
    def _explain_batch(self, windows: list[_Window]) -> list[Explanation]:
        times, marks, mask, num_future = _tensors(windows, self.model.device)
        distill_mask, probability = self.model.distill(times, marks, mask, num_future)
        history = mask[:, : times.shape[1] - num_future]
        pair = torch.stack([history & ~distill_mask, distill_mask]).to(times.dtype)
        config = self.model.config
        dppl_left, dppl_distilled = dppl(
            self.model.mtpp, times, marks, mask, num_future, pair, conditioning=config.conditioning
        ).tolist()
        answers = []
        for row, window in enumerate(windows):
            where = history[row]
            labels = [config.id2label[mark] for mark in window.marks.tolist()]
            chance = probability[row, where].tolist()
            chosen = tuple(distill_mask[row, where].tolist())
            events = [Event(*known) for known in zip(range(len(labels)), window.shown_times, labels, strict=True)]
            split = len(events) - window.num_future
            past = tuple(event._replace(probability=p) for event, p in zip(events[:split], chance, strict=True))
            answers.append(
                Explanation(
                    history=past,
                    future=tuple(events[split:]),
                    distill_mask=chosen,
                    dppl_left=dppl_left[row],
                    dppl_distilled=dppl_distilled[row],
                    epsilon=config.epsilon,
                    conditioning=config.conditioning,
                    seq_id=window.seq_id,
                    time_unit=config.mtpp_config.time_unit,
                )
            )
        return answers


def _other_vocabulary(got: Any, expected: Any) -> str:
    unknown = sorted(set(got.values()) - set(expected.values()))
    said = f"marks unknown to the model: {', '.join(unknown[:5])}" if unknown else "the same marks in another order"
    return f"its mark vocabulary is not the model's ({said}). Load the events with id2label=<the model's id2label>."


def _is_nested(source: Any) -> bool:
    """Whether a list holds sequences rather than the events of one."""
    if not isinstance(source, list | tuple):
        return False
    first = source[0]
    return any(np.ndim(value) for value in first.values()) if isinstance(first, dict) else np.ndim(first[0]) > 0


def _is_named(source: Any) -> bool:
    """Whether a source names its sequences itself."""
    columns = getattr(source, "columns", getattr(source, "column_names", source if isinstance(source, dict) else ()))
    return isinstance(source, EventSequences) or "seq_id" in columns


def _batches_of_like_length(windows: list[_Window]) -> Iterator[list[int]]:
    """Indices of windows that fill a batch with little padding and bounded memory."""
    order = sorted(range(len(windows)), key=lambda index: (windows[index].num_future, len(windows[index].times)))
    batch: list[int] = []
    for index in order:
        longest = len(windows[index].times)
        if batch and (len(batch) + 1) * longest > _EVENTS_PER_BATCH:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _tensors(windows: list[_Window], device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    """times, marks, mask (B, L + K), the split at the same place in every row: padding stands before and behind."""
    num_history = max(len(window.times) - window.num_future for window in windows)
    num_future = max(window.num_future for window in windows)
    shape = (len(windows), num_history + num_future)
    times, marks = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    mask = np.zeros(shape, bool)
    for row, window in enumerate(windows):
        first = num_history - (len(window.times) - window.num_future)
        span = slice(first, first + len(window.times))
        # The difference is taken in float64: float32 would lose small intervals far from zero.
        times[row, span], marks[row, span] = window.times - window.origin, window.marks
        mask[row, span] = True
        times[row, span.stop :] = times[row, span.stop - 1]
    return (*(torch.from_numpy(array).to(device) for array in (times, marks, mask)), num_future)  # type: ignore[return-value]
