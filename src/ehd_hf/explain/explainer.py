"""`EHDDistiller`: events in, explanations out. What users meet; models and tensors stay behind it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from numbers import Real
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from .. import models
from ..data.sequences import EventSequences, load_events, unit_in_nanoseconds
from ..files import put_files
from ..hub import push as hub
from ..models.distiller import DistillerModel
from ..models.ehd import EHDDistillerModel
from ..models.perplexity import Conditioning, dppl_parts
from ..models.point_process import MTPPModel
from ..solvers.base import (
    AtSize,
    Explains,
    Objective,
    RankedBy,
    Solver,
    StopRule,
    ask_others,
    available_solvers,
    best_prefix,
    bisected_prefix,
    first_prefix,
    get_solver,
    prefix_curve,
    ranks_of,
)
from ..solvers.refine import PRUNE, Refine
from .explanation import MARGIN, Event, Explanation, Status
from .intensities import IntensityQuestion, intensity_curves

if TYPE_CHECKING:
    import datasets

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
# Explaining a few hundred windows takes a blink; beyond that people want to see it move.
_WINDOWS_WITHOUT_BAR = 300
_EVENTS_PER_BATCH = 100_000
# What an MTPP alone is asked with, if a question does not say.
_SOLVER, _SHARE, _MAX_LENGTH = "integrated_gradient", 0.7, 4096
# The same for one without gates (see `mtpp.adapter`): by deletions alone.
_SOLVER_WITHOUT_GATES = "greedy_search"
# How far off a search in single precision may be; where that could matter it is done again in double.
_ROUNDING = 1e-4
# Below that, not even double precision can tell whether a history helps or misleads.
_NOTHING = 1e-9
_DATASET_COLUMNS = (
    *("dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark"),
    *("status", "certified", "one_minimal", "constraint_met", "is_most_recent"),
)

Refinement = Literal["none", "bisect", "prefix", "prune"]


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
    if not isinstance(name_or_path, str | PathLike):
        raise ValueError(
            f"a model is named by its folder or a text such as {list_pretrained()[0]!r}; got {name_or_path!r}."
        )
    if not os.path.isfile(Path(name_or_path) / "config.json") and str(name_or_path) in list_pretrained():
        return str(CHECKPOINTS / str(name_or_path))
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


class Question(NamedTuple):
    """What is asked of H_d: one of epsilon, share and size, and perhaps a delta; and how far to go for it."""

    epsilon: float | None
    share: float | None
    size: int | None
    delta: float | None
    refine: Refinement

    @property
    def prunes(self) -> bool:
        """Whether events that can be spared are dropped."""
        return self.refine == "prune" and self.size is None

    def limit(self, empty: Tensor) -> Tensor:
        """What dppl_left must not exceed, given that of the empty history (B,)."""
        if self.epsilon is not None:
            return torch.full_like(empty, math.log(self.epsilon))
        return empty.new_full(empty.shape, torch.inf) if self.share is None else self.share * empty

    def rule(self, num_events: Tensor) -> StopRule:
        """The stop rule of windows with `num_events` (B,) in their history."""
        if self.size is not None:
            return AtSize(num_events.clamp(max=self.size))
        return Explains(epsilon=self.epsilon, share=self.share, delta=self.delta, margin=MARGIN)


class Answer(NamedTuple):
    """What a search found in B windows: `distill_mask` and `scores` (B, L), `reached` (B,), and `curve` (B, L + 1) of
    the order's prefixes if they were evaluated, inf where they were not. What is reached is met with a margin, and
    pruned if that was asked; `closest` (B,) is then by how much its most dispensable event is needed, negative.
    `empty` (B,) is dppl of the empty history, if the target needs it."""

    distill_mask: Tensor
    scores: Tensor
    reached: Tensor
    curve: Tensor | None = None
    closest: Tensor | None = None
    empty: Tensor | None = None


class Answers(NamedTuple):
    """What was found and measured in B windows, by columns: `history`, `distill_mask` and `scores` (B, L), the first
    of them True where there is an event; `curve` (B, L + 1) as in `Answer`; `values` (B,) each, in double precision,
    named as in `Explanation`; and (B,) whether the target is `met`, and with a margin, the history explains `nothing`,
    the set is `one_minimal`."""

    history: Tensor
    distill_mask: Tensor
    scores: Tensor
    curve: Tensor | None
    values: dict[str, Tensor]
    met: Tensor
    met_with_margin: Tensor
    nothing: Tensor
    one_minimal: Tensor


class EHDDistiller:
    """Explains which past events are responsible for what just happened.

    Args:
        model: a trained distiller, its MTPP inside; or an MTPP alone, see `from_mtpp`.
        solver: what orders or chooses the events, a solver or its name; by default the distiller's scores, and
            integrated gradients for an MTPP alone. What one that draws at random (shapley, random_distillation) deals
            a window depends on the windows asked about with it.
        future, epsilon, share, conditioning: what is asked if a question does not say; by default the distiller's own.

    Example:

    ```python
    >>> import ehd_hf
    >>> explainer = ehd_hf.EHDDistiller.from_pretrained("incidents")
    >>> print(explainer.explain(ehd_hf.load_example("incidents"), future=5))
    ```
    """

    def __init__(
        self,
        model: DistillerModel | MTPPModel,
        *,
        solver: Solver | str | None = None,
        future: int | None = None,
        epsilon: float | None = None,
        share: float | None = None,
        conditioning: Conditioning | None = None,
    ) -> None:
        if not isinstance(model, DistillerModel | MTPPModel):
            raise ValueError(
                f"EHDDistiller takes a distiller or an MTPP; got {type(model).__name__}. Open a checkpoint by "
                "EHDDistiller.from_pretrained or EHDDistiller.from_mtpp."
            )
        if solver is not None and not isinstance(solver, Solver | str):
            raise ValueError(f"solver must be a solver or the name of one; got {solver!r}.")
        if conditioning is not None and conditioning not in get_args(Conditioning):
            raise ValueError(f"conditioning must be one of {', '.join(get_args(Conditioning))}; got {conditioning!r}.")
        if future is not None and not _is_count(future):
            raise ValueError(f"future must be a number of events of at least 1; got {future!r}.")
        _check_numbers(epsilon=epsilon, share=share)
        self.model = model.eval()
        config: Any = model.config
        own_target = epsilon is None and share is None
        self.future: int | None = getattr(config, "future", None) if future is None else future
        self.max_length: int = getattr(config, "max_length", _MAX_LENGTH)
        trained: Conditioning = getattr(config, "conditioning", "survival")
        self.conditioning: Conditioning = trained if conditioning is None else conditioning
        if own_target:
            epsilon, share = getattr(config, "epsilon", None), getattr(config, "share", _SHARE)
        Explains(epsilon=epsilon, share=share)  # refuses what cannot be asked
        self.epsilon, self.share = epsilon, share
        if isinstance(model, DistillerModel):
            self.mtpp: MTPPModel = model.mtpp
            own = RankedBy(score=self._distiller_scores, num_evaluations=model.num_evaluations)
        else:
            self.mtpp, own = model, None
        # The paper's distiller has an answer of its own; what only orders events needs a certificate to have one.
        has_answer = isinstance(model, EHDDistillerModel) and solver is None and own_target
        self._own_refine: Refinement = "none" if has_answer else "prune"
        self._ordering = get_solver(_SOLVER if self.mtpp.has_gates else _SOLVER_WITHOUT_GATES)
        self.solver = get_solver(solver) if isinstance(solver, str) else solver or own or self._ordering

    @classmethod
    def from_mtpp(cls, mtpp: MTPPModel | str | PathLike[str], **options: Any) -> EHDDistiller:
        """Explain with any trained point process (a model or the folder of one), no distiller needed: by gradients of
        its likelihood through the gates of the history, in rounds (see `solvers.integrated_gradient`).

        `options` as in `EHDDistiller`; by default survival conditioning and share 0.7.
        """
        if isinstance(mtpp, str | PathLike):
            assert models  # importing it registers every backbone with AutoModel
            mtpp = hub.open_model(hub.fetch_model(str(mtpp)))
        if not isinstance(mtpp, MTPPModel):
            raise ValueError(
                f"from_mtpp needs a marked temporal point process; got {type(mtpp).__name__}. A distiller opens with "
                "from_pretrained."
            )
        return cls(mtpp, **options)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | PathLike[str],
        *,
        revision: str | None = None,
        subfolder: str = "",
        token: str | None = None,
        **kwargs: Any,
    ) -> EHDDistiller:
        """Open any distiller: a local folder, a bundled checkpoint (see `list_pretrained`), or a Hub id.

        Args:
            name_or_path: which one.
            revision: branch, tag or commit on the Hub.
            subfolder: where in the folder or repository.
            token: for the Hub; the one of `hf auth login` or HF_TOKEN if not given.
            kwargs: as in transformers, such as dtype or cache_dir.
        """
        assert models  # importing it registers every distiller with AutoModel
        where = resolve_checkpoint(name_or_path)
        try:
            options = {key: kwargs.pop(key) for key in hub.CACHE_OPTIONS if key in kwargs}
            folder = hub.fetch_model(where, revision=revision, subfolder=subfolder, token=token, **options)
        except OSError as error:
            raise OSError(
                f"No distiller called {str(name_or_path)!r}: not a folder with config.json, not one of the bundled "
                f"{', '.join(list_pretrained())}, and on the Hub: {error}"
            ) from error
        model = hub.open_model(folder, subfolder=subfolder, **kwargs)
        if not isinstance(model, DistillerModel):
            raise ValueError(
                f"{str(name_or_path)!r} holds a {type(model).__name__}, not a distiller. Explain with it by "
                "EHDDistiller.from_mtpp, train a distiller on it with scripts/train.py, or name one's checkpoint."
            )
        return cls(model)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the model to a folder: the distiller with its MTPP, or the MTPP alone. Each file appears whole."""
        with TemporaryDirectory() as written:
            self.model.save_pretrained(written)
            put_files(written, folder)

    def push_to_hub(self, repo_id: str, *, rows: Any, data: Any, **options: Any) -> str:
        """Push the model with its card, code and results to the Hub; returns the address of the commit. Arguments as
        in `hub.push_to_hub`."""
        return hub.push_to_hub(self.model, repo_id, rows=rows, data=data, **options)

    def __repr__(self) -> str:
        target = f"epsilon {self.epsilon}" if self.epsilon is not None else f"share {self.share}"
        trained = f", trained on {self.model.config.history} events -> {self.future}" if self._is_distiller else ""
        return (
            f"EHDDistiller({type(self.model).__name__}, {self.mtpp.config.num_marks} marks{trained}, {target}, "
            f"{self.conditioning} conditioning)"
        )

    @property
    def _is_distiller(self) -> bool:
        return isinstance(self.model, DistillerModel)

    def _distiller_scores(self, objective: Objective) -> Tensor:
        assert isinstance(self.model, DistillerModel)
        times = objective.times.to(self.model.dtype)  # the objective may work in double precision
        return self.model.history_scores(times, objective.marks, objective.mask, objective.num_future)

    # --- explaining

    def explain(
        self,
        sequence: Any = None,
        *,
        future: Any = None,
        history: Any = None,
        epsilon: float | None = None,
        share: float | None = None,
        size: int | None = None,
        delta: float | None = None,
        refine: Refinement | None = None,
        intensities: bool = False,
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
            epsilon: ask for the smallest set without which each future event is less likely by this factor, on
                average: dppl_left < log(epsilon); or
            share: for one without which this share of what the whole history explains is lost; or
            size: for so many events. By default what the model was trained for.
            delta: ask also that the set alone predicts almost as well as the whole history: dppl_distilled >= -delta.
            refine: "none" takes the distiller's own answer; "prefix" the smallest beginning of its order of events
                that meets the target, found by evaluating them all; "bisect" one that meets it, in a few evaluations
                and not always the smallest; "prune" also drops events that can be spared. By default "prune"; "none"
                for the paper's distiller if no target is given.
            intensities: also compute the curves that `Explanation.plot` draws; takes some milliseconds a window.
            progress: show a bar; by default only for more than a few hundred windows.
        """
        question = self._question(epsilon, share, size, delta, refine)
        if sequence is None:
            if history is None or future is None or isinstance(history, int) or isinstance(future, int):
                raise ValueError(
                    "explain needs a sequence, or the events of both history and future; got neither. "
                    "Write explain(sequence, future=5) or explain(history=events, future=events)."
                )
            before, after = self._load(history, "history"), self._load(future, "future")
            after = _in_the_order_of(before, after)
            windows = [self._joined(before, after, index) for index in range(len(before))]
        else:
            events = self._load(sequence, "sequence")
            before = events
            windows = [self._cut(events, index, future, history) for index in range(len(events))]
        source = history if sequence is None else sequence
        answers = self._explain(windows, question, progress)
        if intensities:
            answers = self._with_intensities(windows, answers)
        if len(answers) > 1 or _is_nested(source):
            return answers
        return answers[0] if _is_named(source, before) else replace(answers[0], seq_id=None)

    def __call__(self, inputs: Any, *, batch_size: int = 256, **options: Any) -> Any:
        """`explain`, as a pipeline of transformers is called; `options` as there.

        An iterator of sequences (a generator, a streamed dataset) gives an iterator of explanations, made
        `batch_size` at a time: as long a stream as you like, in the memory of one batch.
        """
        if isinstance(inputs, Iterator):
            return self._stream(inputs, batch_size, options)
        return self.explain(inputs, **options)

    def _stream(self, sequences: Iterator[Any], batch_size: int, options: dict[str, Any]) -> Iterator[Explanation]:
        if not _is_count(batch_size):
            raise ValueError(f"batch_size must be a number of sequences of at least 1; got {batch_size!r}.")
        while batch := list(islice(sequences, batch_size)):
            answers = self.explain(batch, **{"progress": False, **options})
            assert isinstance(answers, list)  # a list of sequences was given
            yield from answers

    @torch.no_grad()
    def attribute(
        self,
        sequence: Any,
        *,
        future: int | None = None,
        history: int | None = None,
        method: Solver | str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """A score per event, as attribution libraries give it: higher is more responsible for the future.

        One array per sequence, an entry for each of its events; NaN for those that were not scored: the future, and
        what stands before the `history` looked at.

        Args:
            sequence: one sequence or several, as in `explain`.
            future, history: as in `explain`.
            method: what scores the events, a solver that orders them or its name: "leave_one_out" and "shapley" give
                losses of log-likelihood per future event; by default the scores that explanations show.
        """
        solver = get_solver(method) if isinstance(method, str) else method or self.solver
        if not isinstance(solver, Solver) or not solver.orders:
            ordering = ", ".join(name for name in available_solvers() if get_solver(name).orders)
            raise ValueError(f"attribute needs a method that orders all events, such as {ordering}; got {method!r}.")
        events = self._load(sequence, "sequence")
        windows = [self._cut(events, index, future, history) for index in range(len(events))]
        self._check_length(windows)
        scores = [np.full(length, np.nan) for length in events.lengths]
        for indices in _batches_of_like_length(windows):
            times, marks, mask, num_future = _tensors([windows[index] for index in indices], self.mtpp.device)
            window = (times.to(self.mtpp.dtype), marks, mask, num_future)
            objective = Objective(self.mtpp, *window, conditioning=self.conditioning)
            generator = torch.Generator(device=times.device).manual_seed(0)
            found = solver.rank(objective, generator).double()
            names = [windows[index].seq_id for index in indices]
            _refuse_non_numbers(names, objective.full, found.masked_fill(~objective.history, 0.0))  # ranks hide a NaN
            for row, index in enumerate(indices):
                num_scored = len(windows[index].times) - windows[index].num_future
                last = len(scores[index]) - windows[index].num_future
                scores[index][last - num_scored : last] = found[row, objective.history[row]].cpu().numpy()
        return scores if len(scores) > 1 or _is_nested(sequence) else scores[0]

    def explain_dataset(
        self,
        dataset: datasets.Dataset,
        *,
        future: int | None = None,
        epsilon: float | None = None,
        share: float | None = None,
        size: int | None = None,
        delta: float | None = None,
        refine: Refinement | None = None,
    ) -> datasets.Dataset:
        """The dataset with an explanation per row in new columns: `distilled` and `score` (one entry per history
        event), `dppl_left`, `dppl_distilled`, `dppl_empty`, `dppl_left_time`, `dppl_left_mark`, `status`, `certified`,
        `one_minimal`, `constraint_met`, `is_most_recent`. Options as in `explain`.

        Rows are windows as `export_windows` writes them (columns history_times, history_marks, future_times,
        future_marks), or sequences (times, marks) whose last `future` events are explained.
        """
        if not hasattr(dataset, "column_names") or not hasattr(dataset, "with_format"):
            raise ValueError(
                f"explain_dataset takes a datasets.Dataset; got {type(dataset).__name__}. Or use explain."
            )
        names = set(dataset.column_names)
        if {"history_times", "history_marks", "future_times", "future_marks"} <= names:
            columns = ["history_times", "history_marks", "future_times", "future_marks"]
        elif {"times", "marks"} <= names:
            columns = ["times", "marks", *(["start"] if "start" in names else [])]
        else:
            raise ValueError(
                "A dataset to explain has the columns history_times, history_marks, future_times, future_marks, or "
                f"times and marks; got {', '.join(dataset.column_names)}. Rename its columns."
            )

        question = self._question(epsilon, share, size, delta, refine)
        if "history_times" in columns and future is not None:
            raise ValueError(f"The rows say which events are the future; got future={future!r} too. Leave it out.")
        for name in ("marks", "history_marks", "future_marks"):
            self._check_names(dataset, name)

        def explain_rows(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
            lists = [rows[name] for name in columns]
            if "history_times" in columns:
                before = [{"times": t, "marks": m} for t, m in zip(lists[0], lists[1], strict=True)]
                after = [{"times": t, "marks": m} for t, m in zip(lists[2], lists[3], strict=True)]
                histories, futures = self._load(before, "history_times"), self._load(after, "future_times")
                joined = (self._joined(histories, futures, index) for index in range(len(before)))
                # Exported windows count from their clock's origin.
                answers = self._explain([window._replace(origin=0.0) for window in joined], question, False)
            else:
                several = [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
                events = self._load(several, "dataset")
                cut = [self._cut(events, index, future, None) for index in range(len(events))]
                answers = self._explain(cut, question, False)
            return {
                "distilled": [list(answer.distill_mask) for answer in answers],
                "score": [[event.score for event in answer.history] for answer in answers],
                **{name: [getattr(answer, name) for answer in answers] for name in _DATASET_COLUMNS},
            }

        # Plain lists in, whatever format the dataset shows its rows in; the types said, for a batch may have all None.
        explained = dataset.with_format(None).map(
            explain_rows, batched=True, batch_size=1000, desc="explaining", features=_features(dataset.features)
        )
        return explained.with_format(dataset.format["type"])

    # --- from events to windows

    def load(self, source: Any) -> EventSequences:
        """Events in the model's marks and unit of time, from anything `explain` takes."""
        return self._load(source, "events")

    def _check_names(self, dataset: Any, column: str) -> None:
        """A dataset that names its marks must name them as the model does: their numbers say nothing otherwise."""
        feature = getattr(dataset, "features", {}).get(column)
        names = getattr(getattr(feature, "feature", feature), "names", None)
        known: Any = self.mtpp.config.id2label
        if names is not None and dict(enumerate(names)) != dict(known):
            raise ValueError(_other_vocabulary(dict(enumerate(names)), known))

    def _load(self, source: Any, role: str) -> EventSequences:
        """Events in the model's marks and unit of time."""
        config: Any = self.mtpp.config
        try:
            if isinstance(source, EventSequences):
                if dict(source.id2label) != dict(config.id2label):
                    raise ValueError(_other_vocabulary(source.id2label, config.id2label))
                if len(source) == 0:
                    raise ValueError("it has no events; expected at least one. Check what was selected.")
                return _in_unit(source, config.time_unit)
            for name in ("marks", "mark"):
                self._check_names(source, name)
            if isinstance(source, list | tuple) and source and isinstance(source[0], pd.DataFrame):
                source = pd.concat([frame.assign(seq_id=index) for index, frame in enumerate(source)])
            if isinstance(source, np.ndarray) and source.ndim == 2 and source.shape[1] == 2:
                source = [tuple(pair) for pair in source.tolist()]
            if isinstance(source, Sequence) and len(source) == 0:
                raise ValueError("it has no events; expected at least one. Check what was selected.")
            if isinstance(source, dict) and "times" in source and np.ndim(source["times"][:1]) == 1:
                if np.ndim(source.get("seq_id", 0)) == 0:  # else one row per event
                    source = {name: [value] for name, value in source.items()}
            start = "start" if "times" in _columns(source) and "start" in _columns(source) else None
            events = load_events(source, id2label=config.id2label, time_unit=config.time_unit, start=start)
            if events.epochs is not None and config.time_unit is None:
                raise ValueError(
                    "timestamps need a model that knows its unit of time; this one does not say. Pass numbers "
                    "in the unit it was trained on."
                )
            return events
        except TypeError as error:
            raise ValueError(
                f"{role}: events are (time, mark) pairs, lists of them, or columns of times and marks; "
                f"got a {type(source).__name__} of something else ({error})."
            ) from error
        except ValueError as error:
            known = ", ".join([*list(config.id2label.values())[:12], *(["..."] if len(config.id2label) > 12 else [])])
            raise ValueError(f"{role}: {error} (The model knows the marks {known}.)") from error

    def _cut(self, events: EventSequences, index: int, future: int | None, history: int | None) -> _Window:
        """The last events of a sequence, split into history and future."""
        name, (times, marks) = events.seq_ids[index], events[index]
        num_future = self.future if future is None else future
        if num_future is None:
            raise ValueError("Say how many of the last events to explain: an MTPP alone does not know. Pass future=5.")
        if not _is_count(num_future):
            raise ValueError(f"future must be a number of events of at least 1; got {num_future!r}.")
        if history is not None and not _is_count(history):
            raise ValueError(f"history must be a number of events of at least 1; got {history!r}.")
        if len(times) <= num_future:
            raise ValueError(
                f"sequence {name!r} has {len(times)} events, all of them in the future of {num_future}: the history "
                "is empty. Ask for a shorter future or give a longer sequence."
            )
        first = 0 if history is None else max(0, len(times) - num_future - history)
        start = times[0] if np.isnan(events.starts[index]) else events.starts[index]
        origin = float(times[first - 1] if first else start)
        return _Window(times[first:], marks[first:], origin, num_future, events.shown_times(index)[first:], name)

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

    def _question(
        self,
        epsilon: float | None,
        share: float | None,
        size: int | None,
        delta: float | None,
        refine: Refinement | None,
    ) -> Question:
        given = [value for value in (epsilon, share, size) if value is not None]
        if len(given) > 1:
            raise ValueError(f"Ask for one of epsilon, share and size; got {epsilon}, {share} and {size}.")
        _check_numbers(epsilon=epsilon, share=share, delta=delta)
        if refine is not None and refine not in get_args(Refinement):
            raise ValueError(f"refine must be one of {', '.join(get_args(Refinement))}; got {refine!r}.")
        if size is not None and not _is_count(size):
            raise ValueError(f"size must be a number of events of at least 1; got {size!r}.")
        if refine == "none" and (given or delta is not None):
            raise ValueError(
                'refine="none" takes the answer the distiller was trained for and cannot follow a target; got one. '
                'Leave out epsilon, share, size and delta, or ask for refine="prefix" or "prune".'
            )
        if refine == "none" and not isinstance(self.model, DistillerModel):
            raise ValueError('refine="none" needs a distiller; an MTPP alone answers with "prefix" or "prune".')
        refine = refine or (self._own_refine if not given and delta is None else "prune")
        if not given:
            epsilon, share = self.epsilon, self.share
        Explains(epsilon=epsilon, share=share if size is None else 1.0, delta=delta)  # refuses what cannot be asked
        return Question(epsilon, share, size, delta, refine)

    def _check_length(self, windows: list[_Window]) -> None:
        longest = max(len(window.times) for window in windows)
        if longest > self.max_length:
            raise ValueError(
                f"A window may have at most max_length = {self.max_length} events; got {longest}. "
                "Pass history=<number of events> to look at the most recent ones only."
            )

    def _explain(self, windows: list[_Window], question: Question, progress: bool | None) -> list[Explanation]:
        self._check_length(windows)
        answers: dict[int, Explanation] = {}
        # Certificates are in double precision, whatever the search works in; the copy leaves the user's model alone.
        double = copy.deepcopy(self.mtpp).double()
        show = len(windows) > _WINDOWS_WITHOUT_BAR if progress is None else progress
        with tqdm(total=len(windows), desc="explaining", unit="window", disable=not show) as bar:
            for indices in _batches_of_like_length(windows):
                batch = [windows[index] for index in indices]
                answers.update(zip(indices, self._explain_batch(batch, question, double), strict=True))
                bar.update(len(indices))
        return [answers[index] for index in range(len(windows))]

    def _with_intensities(self, windows: list[_Window], answers: list[Explanation]) -> list[Explanation]:
        """The answers with the intensity along their windows, given the whole history and given what is left of it."""
        questions = [
            IntensityQuestion(
                window.times - window.origin,
                window.marks,
                ~np.append(answer.distill_mask, np.zeros(window.num_future, bool)),
                window.num_future,
                window.shown_times,
            )
            for window, answer in zip(windows, answers, strict=True)
        ]
        curves = intensity_curves(copy.deepcopy(self.mtpp).double(), questions)
        return [replace(answer, intensity=curve) for answer, curve in zip(answers, curves, strict=True)]

    @torch.no_grad()
    def _answer(
        self,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        num_future: int,
        question: Question,
        double: MTPPModel,
        curves: bool = True,
    ) -> Answers:
        """Search in the model's precision, measure in double, and search again in double where rounding may decide;
        times (B, T) float64 from each window's origin, the last `num_future` columns the future's. Without `curves`,
        no prefix is evaluated that the answer does not need."""
        answer = self._search(self.mtpp, times.to(self.mtpp.dtype), marks, mask, num_future, question, curves)
        values = self._measure(double, times, marks, mask, num_future, answer.distill_mask)
        doubtful = self._doubtful(question, answer, values)
        if doubtful.any():
            part = (times[doubtful], marks[doubtful], mask[doubtful], num_future)
            again = self._search(double, *part, question, curves, answer.scores[doubtful])
            for old, new in zip(answer, again, strict=True):
                if old is not None and new is not None:
                    old[doubtful] = new
            for name, value in self._measure(double, *part, again.distill_mask).items():
                values[name][doubtful] = value
        met, clearly = _within(values, question), _within(values, question, MARGIN)
        nothing = values["dppl_empty"] > -_NOTHING
        if question.share is None:
            nothing &= ~met
        one_minimal = answer.reached & clearly & ~nothing & question.prunes
        history = mask[:, : times.shape[1] - num_future]
        shown = (answer.distill_mask, answer.scores, answer.curve if curves else None)
        return Answers(history, *shown, values, met, clearly, nothing, one_minimal)

    def _explain_batch(self, windows: list[_Window], question: Question, double: MTPPModel) -> list[Explanation]:
        found = self._answer(*_tensors(windows, self.mtpp.device), question, double)
        check_finite([window.seq_id for window in windows], found)
        rows = {name: value.tolist() for name, value in found.values.items()}
        met, nothing, one_minimal = found.met.tolist(), found.nothing.tolist(), found.one_minimal.tolist()
        config: Any = self.mtpp.config
        answers = []
        for row, window in enumerate(windows):
            where = found.history[row]
            labels = [config.id2label[mark] for mark in window.marks.tolist()]
            scores = found.scores[row, where].tolist()
            events = [Event(*known) for known in zip(range(len(labels)), window.shown_times, labels, strict=True)]
            split = len(events) - window.num_future
            past = tuple(event._replace(score=score) for event, score in zip(events[:split], scores, strict=True))
            failed: Status = "explains_nothing" if nothing[row] else "infeasible"
            answers.append(
                Explanation(
                    history=past,
                    future=tuple(events[split:]),
                    distill_mask=tuple(found.distill_mask[row, where].tolist()),
                    **{name: value[row] for name, value in rows.items()},
                    epsilon=question.epsilon,
                    share=question.share,
                    size=None if question.size is None else min(question.size, split),
                    delta=question.delta,
                    status="explained" if met[row] and not nothing[row] else failed,
                    one_minimal=one_minimal[row] or None,
                    curve=None if found.curve is None else tuple(found.curve[row, : split + 1].tolist()),
                    conditioning=self.conditioning,
                    seq_id=window.seq_id,
                    time_unit=config.time_unit,
                )
            )
        return answers

    def _search(
        self,
        mtpp: MTPPModel,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        num_future: int,
        question: Question,
        curves: bool,
        scores: Tensor | None = None,
    ) -> Answer:
        """Rank, evaluate the prefixes, take the smallest that meets the target, prune; as far as `refine` says. The
        order is that of `scores` (B, L), if they are known."""
        if question.refine == "none":
            assert isinstance(self.model, DistillerModel)
            chosen, shown = self.model.distill(times.to(self.model.dtype), marks, mask, num_future)
            return Answer(chosen, shown.double(), torch.ones_like(chosen[:, 0]))
        objective = Objective(mtpp, times, marks, mask, num_future, conditioning=self.conditioning)
        history = objective.history
        rule = question.rule(history.sum(1)).bind(objective)
        generator = torch.Generator(device=times.device).manual_seed(0)
        # What chooses sets does not order events; the default's order then gives the curve, and a set where it fails.
        orders = self.solver if self.solver.orders else self._ordering
        scores = orders.rank(objective, generator) if scores is None else scores
        ranks = ranks_of(scores, history)
        curve = prefix_curve(objective, ranks) if curves and question.refine != "bisect" else None
        if not self.solver.orders:
            result = self.solver.solve(objective, rule, generator=generator)
            # Of a solver that judges sets by their mean, the one set it returns may miss the target.
            chosen = result.distill_mask
            reached = result.reached & rule.met(objective, chosen, objective.windows)
        else:
            if question.refine == "bisect":
                found = bisected_prefix(objective, rule, ranks)
            elif curve is not None:
                found = best_prefix(objective, rule, ranks, curve)
            else:
                found, curve = first_prefix(objective, rule, ranks)
            if question.prunes:
                found = ask_others(objective, rule, found, generator)
            chosen, reached = found.distill_mask, found.reached
        closest = None
        if question.prunes:
            pruned = Refine(start=chosen, scores=scores, **PRUNE).search(objective, rule, generator)
            chosen, reached, closest = pruned.distill_mask, pruned.reached, pruned.closest.double()
        empty = objective.dppl_left(history) if question.size is None else None
        if question.share is not None:
            assert empty is not None
            reached = reached & (empty < 0)
        if not reached.all():
            # Where the target is out of reach, the best there is: the prefix that lowers dppl most.
            rest = (~reached).nonzero()[:, 0]
            curve_of_rest = prefix_curve(objective.part(rest), ranks[rest])
            lowest = (ranks[rest] < curve_of_rest.argmin(1)[:, None]) & history[rest]
            chosen = chosen.index_copy(0, rest, lowest)
        curve, empty = (None if value is None else value.double() for value in (curve, empty))
        return Answer(chosen, scores.double(), reached, curve, closest, empty)

    def _doubtful(self, question: Question, answer: Answer, values: dict[str, Tensor]) -> Tensor:
        """Where rounding may have decided the answer, (B,): times far from their origin, or a value at a limit."""
        if question.refine == "none" or self.mtpp.dtype == torch.float64:
            return torch.zeros_like(answer.reached)
        doubtful = answer.reached & ~_within(values, question, MARGIN)
        if answer.empty is not None:
            doubtful |= ~((answer.empty - values["dppl_empty"]).abs() <= _ROUNDING)
        if answer.curve is not None and question.size is None:
            limit = question.limit(values["dppl_empty"])[:, None] - MARGIN
            doubtful |= ((answer.curve - limit).abs() <= _ROUNDING).any(1)
        if answer.closest is not None:
            # An event that only just cannot be spared may be one that can.
            doubtful |= answer.reached & (answer.closest > -_ROUNDING)
        if question.delta is not None:
            doubtful |= ~answer.reached
        return doubtful

    def _measure(
        self, mtpp: MTPPModel, times: Tensor, marks: Tensor, mask: Tensor, num_future: int, distill_mask: Tensor
    ) -> dict[str, Tensor]:
        """The values of an explanation, (B,) each: of what is left, of what is distilled, and of nothing."""
        history = mask[:, : times.shape[1] - num_future]
        sets = torch.stack([history & ~distill_mask, distill_mask, torch.zeros_like(history)]).to(times.dtype)
        window = (times.to(mtpp.dtype), marks, mask, num_future)
        drops = dppl_parts(mtpp, *window, sets, conditioning=self.conditioning, rebuilder="compact")
        left, distilled, empty = drops.total
        return {
            "dppl_left": left,
            "dppl_distilled": distilled,
            "dppl_empty": empty,
            "dppl_left_time": drops.time[0],
            "dppl_left_mark": drops.mark[0],
        }


def _within(values: dict[str, Tensor], question: Question, margin: float = 0.0) -> Tensor:
    """Whether the target is met by these values, with a margin, (B,)."""
    left, limit = values["dppl_left"], question.limit(values["dppl_empty"]) - margin
    # An epsilon is to be undercut, a share to be reached.
    met = left < limit if question.epsilon is not None else left <= limit
    return met if question.delta is None else met & (values["dppl_distilled"] >= margin - question.delta)


def check_finite(names: Sequence[Any], found: Answers) -> None:
    """Refuse answers that are not numbers, by the name of the first sequence that has one."""
    _refuse_non_numbers(names, *found.values.values(), found.scores.masked_fill(~found.history, 0.0))


def _refuse_non_numbers(names: Sequence[Any], *values: Tensor) -> None:
    """`values` are (B,) or (B, L)."""
    bad = torch.stack([~value.isfinite().reshape(len(names), -1).all(1) for value in values]).any(0)
    if bad.any():
        name = names[int(bad.int().argmax())]
        raise ValueError(
            f"an explanation must be made of numbers; the model gives none for sequence {name!r}. Check its weights "
            "for NaN, and its times for gaps far beyond those the model was trained on."
        )


def _check_numbers(**targets: Any) -> None:
    for name, value in targets.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise ValueError(f"{name} must be a number; got {value!r}.")


def _features(known: Any) -> Any:
    """Types of the columns of an explained dataset whose own are `known`."""
    from datasets import Features, List, Value

    added = {name: Value("float64" if name.startswith("dppl") else "bool") for name in _DATASET_COLUMNS}
    lists = {"distilled": List(Value("bool")), "score": List(Value("float64"))}
    return Features({**known, **lists, **added, "status": Value("string")})


def _other_vocabulary(got: Any, expected: Any) -> str:
    unknown = sorted(set(got.values()) - set(expected.values()))
    said = f"marks unknown to the model: {', '.join(unknown[:5])}" if unknown else "the same marks in another order"
    return f"its mark vocabulary is not the model's ({said}). Load the events with id2label=<the model's id2label>."


def _is_nested(source: Any) -> bool:
    """Whether a list holds sequences rather than the events of one."""
    if not isinstance(source, list | tuple):
        return False
    first = source[0]
    if isinstance(first, pd.DataFrame):
        return True
    return any(np.ndim(value) for value in first.values()) if isinstance(first, dict) else np.ndim(first[0]) > 0


def _is_named(source: Any, events: EventSequences) -> bool:
    """Whether a source names its sequences itself."""
    return isinstance(source, EventSequences) or "seq_id" in _columns(source) or events.seq_ids != (0,)


def _columns(source: Any) -> Any:
    """Names of the columns of a table, a dict or a list of rows."""
    if isinstance(source, list | tuple) and source and isinstance(source[0], dict):
        source = source[0]
    return getattr(source, "columns", getattr(source, "column_names", source if isinstance(source, dict) else ()))


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _in_unit(events: EventSequences, unit: str | None) -> EventSequences:
    """The same events with times in the model's unit; as they are if either does not say its unit."""
    if unit is None or events.time_unit is None or events.time_unit == unit:
        return events
    ratio = unit_in_nanoseconds(events.time_unit) / unit_in_nanoseconds(unit)
    resolution = None if events.resolution is None else events.resolution * ratio
    times, starts = events.times * ratio, events.starts * ratio
    return replace(events, times=times, starts=starts, time_unit=unit, resolution=resolution)


def _in_the_order_of(before: EventSequences, after: EventSequences) -> EventSequences:
    """`after` with its sequences in the order of `before`, where both name them; unnamed ones pair by position."""
    numbered = [events.seq_ids == tuple(range(len(events))) for events in (before, after)]
    if any(numbered) or len(before) != len(after) or before.seq_ids == after.seq_ids:
        return after
    position = {name: index for index, name in enumerate(after.seq_ids)}
    if missing := [name for name in before.seq_ids if name not in position]:
        raise ValueError(f"There must be one future per history; sequence {missing[0]!r} has no future of its name.")
    return after.select([position[name] for name in before.seq_ids])


def _batches_of_like_length(windows: list[_Window]) -> Iterator[list[int]]:
    lengths = [len(window.times) for window in windows]
    return batches_of_like_length(lengths, [window.num_future for window in windows])


def batches_of_like_length(lengths: Sequence[int], num_future: Sequence[int]) -> Iterator[list[int]]:
    """Indices of windows that fill a batch with little padding and bounded memory."""
    order = sorted(range(len(lengths)), key=lambda index: (num_future[index], lengths[index]))
    batch: list[int] = []
    history = future = 0  # the longest of the batch: what it is padded to
    for index in order:
        num_history = lengths[index] - num_future[index]
        padded = max(history, num_history) + max(future, num_future[index])
        if batch and (len(batch) + 1) * padded > _EVENTS_PER_BATCH:
            yield batch
            batch, history, future = [], 0, 0
        history, future = max(history, num_history), max(future, num_future[index])
        batch.append(index)
    if batch:
        yield batch


def _tensors(windows: list[_Window], device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    lengths = np.array([len(window.times) for window in windows])
    return padded_windows(
        np.concatenate([window.times for window in windows]),
        np.concatenate([window.marks for window in windows]),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([window.num_future for window in windows]),
        np.array([window.origin for window in windows]),
        device,
    )


def padded_windows(
    times: np.ndarray,
    marks: np.ndarray,
    first: np.ndarray,
    lengths: np.ndarray,
    num_future: np.ndarray,
    origins: np.ndarray,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """times, marks, mask (B, L + K) of windows on flat events (N,): the split stands at the same place in every row,
    padding before and behind. The other arrays are (B,): where a window begins, its length, its clock's origin."""
    num_history = lengths - num_future
    step = np.arange(num_history.max() + num_future.max()) - (num_history.max() - num_history)[:, None]  # (B, L + K)
    mask = (step >= 0) & (step < lengths[:, None])
    where = first[:, None] + step.clip(0, lengths[:, None] - 1)
    # In float64 up to here: float32 would lose small intervals far from zero.
    relative = np.where(step < 0, 0.0, times[where] - origins[:, None])
    arrays = (relative, np.where(mask, marks[where], 0), mask)
    return (*(torch.from_numpy(array).to(device) for array in arrays), int(num_future.max()))  # type: ignore[return-value]
