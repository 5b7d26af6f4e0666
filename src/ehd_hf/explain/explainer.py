"""`EHDDistiller`: events in, explanations out. What users meet; models and tensors stay behind it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from tqdm.auto import tqdm

from ..data.reading import Read, Reading, read_events
from ..data.sequences import EventSequences, load_events, numbers_are_names, unit_in_nanoseconds
from ..data.tables import read_table
from ..data.windows import before_each, ends
from ..files import put_files, read_json
from ..hub.fetch import CACHE_OPTIONS, CHECKPOINTS, fetch_model, list_pretrained, open_model, resolve
from ..models.distiller import DistillerModel
from ..models.ehd import EHDDistillerModel
from ..models.point_process import MTPPModel, in_double
from ..models.question import TARGETS, Conditioning, Question, Refinement, is_count
from ..models.window import Window, asked_of
from ..solvers.base import Solver, available_solvers, get_solver
from .causes import Why, cause_probabilities, whys
from .certify import Answer, Certifier, OfKinds
from .explanation import Event, Explanation, Windows
from .influence import DRAWS, Influence, influence
from .intensities import intensity_curves
from .targets import find_events, kind_called, kinds_called
from .trace import Trace, find_edges, traces
from .what_if import WhatIf, length_of, on_clock_of, positions_of, what_if

# A few hundred windows take less than a second, as one of some hundred events does; beyond, a bar is shown.
_WINDOWS_WITHOUT_BAR, _LENGTH_WITHOUT_BAR, _EVENTS_WITHOUT_BAR = 300, 500, 10_000
# Mean intervals of silence beyond which doubles lose a likelihood that is conditioned on surviving them.
_LONGEST_SILENCE = 1e14
# What a point process alone is asked with, if a question does not say.
_SHARE, _HISTORY, _MAX_LENGTH = 0.7, 40, 4096
_READING_FILE = "reading.json"
WINDOW_COLUMNS = ("history_times", "history_marks", "future_times", "future_marks")


def load_example(name: str = "incidents") -> pd.DataFrame:
    """Example events that come with a bundled checkpoint: one row per event, columns `time` and `mark`."""
    examples = sorted(file.parent.name for file in CHECKPOINTS.glob("*/example.csv"))
    if name not in examples:
        raise ValueError(f"Examples are {', '.join(examples)}; got {name!r}.")
    return pd.read_csv(CHECKPOINTS / name / "example.csv", parse_dates=["time"])


class EHDDistiller:
    """Explains which past events are responsible for what just happened.

    Args:
        model: a trained distiller, its MTPP inside; or an MTPP alone, see `from_mtpp`.
        solver: what orders or chooses the events, a solver or its name; by default the distiller's scores, and
            integrated gradients for an MTPP alone. One that draws at random (shapley, random_distillation) gives
            answers that depend on the windows asked about together.
        future, epsilon, share, conditioning: what is asked if a question does not say; by default the distiller's own.

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
            got = type(model).__name__
            raise ValueError(f"EHDDistiller takes a distiller or an MTPP; got {got}. Open one with from_pretrained.")
        if model.dtype not in (torch.float32, torch.float64):
            got = (
                f"got {str(model.dtype).removeprefix('torch.')}, which tells too few numbers apart. Call model.float()"
            )
            raise ValueError(f"explanations are differences of log-likelihoods in float32 or float64; {got}.")
        if solver is not None and not isinstance(solver, Solver | str):
            raise ValueError(f"solver must be a solver or the name of one; got {solver!r}.")
        config: Any = model.config
        own_target = epsilon is None and share is None
        if own_target:
            epsilon, share = getattr(config, "epsilon", None), getattr(config, "share", _SHARE)
        trained: Conditioning = getattr(config, "conditioning", "survival")
        self._asked = Question(epsilon=epsilon, share=share, conditioning=conditioning or trained)
        self.epsilon, self.share, self.conditioning = epsilon, share, self._asked.conditioning
        self.future: int | None = config.future if future is None else future
        self.history: int = config.history or _HISTORY
        if future is not None:
            self.window_size(future, None)
        self.max_length: int = getattr(config, "max_length", _MAX_LENGTH)
        self.model = model.eval()
        self.folder: str | None = None  # where the model was opened from
        self.certifier = Certifier(self.model, get_solver(solver) if isinstance(solver, str) else solver)
        self.solver, self.mtpp = self.certifier.solver, self.certifier.mtpp
        # The paper's distiller has an answer of its own; what only orders events needs a certificate to have one.
        has_answer = isinstance(model, EHDDistillerModel) and solver is None and own_target
        self._own_refine: Refinement = "none" if has_answer else "prune"

    @classmethod
    def from_mtpp(cls, mtpp: MTPPModel | str | PathLike[str], **options: Any) -> EHDDistiller:
        """Explain with any trained point process, a model or the folder of one, by gradients of its likelihood through
        the gates of the history. `options` as in `EHDDistiller`; by default survival conditioning and share 0.7."""
        if isinstance(mtpp, str | PathLike):
            mtpp = open_model(fetch_model(resolve(mtpp)))
        if not isinstance(mtpp, MTPPModel):
            got = f"got {type(mtpp).__name__}. A distiller opens with from_pretrained."
            raise ValueError(f"from_mtpp needs a point process; {got}")
        return cls(mtpp, **options)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | PathLike[str], *, subfolder: str = "", **options: Any
    ) -> EHDDistiller:
        """Open a distiller or a point process: a folder, a bundled checkpoint (see `list_pretrained`) or a Hub id, or
        a `subfolder` of it. `options`: for the Hub revision (branch, tag or commit), token (by default that of `hf
        auth login` or HF_TOKEN), cache_dir, force_download, local_files_only; others as in transformers, such as
        dtype."""
        fetching = {key: options.pop(key) for key in ("revision", "token", *CACHE_OPTIONS) if key in options}
        try:
            folder = fetch_model(resolve(name_or_path), subfolder=subfolder, **fetching)
        except OSError as error:
            reason = f"no folder of a model, not one of the bundled {', '.join(list_pretrained())}; {error}"
            raise OSError(f"No model called {str(name_or_path)!r}: {reason}") from error
        explainer = cls(open_model(folder, subfolder=subfolder, **options))
        explainer.folder = folder
        return explainer

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the model to a folder: the distiller with its MTPP, or the MTPP alone. Each file appears whole."""
        with TemporaryDirectory() as written:
            self.model.save_pretrained(written)
            if self.folder is not None and (reading := Path(self.folder) / _READING_FILE).is_file():
                shutil.copyfile(reading, Path(written) / _READING_FILE)
            put_files(written, folder)

    def __repr__(self) -> str:
        target = f"epsilon {self.epsilon}" if self.epsilon is not None else f"share {self.share}"
        trained = f", trained on {self.history} events -> {self.future}" if self.model is not self.mtpp else ""
        kind = f"{type(self.model).__name__}, {self.mtpp.config.num_marks} marks{trained}"
        return f"EHDDistiller({kind}, {target}, {self.conditioning} conditioning)"

    @cached_property
    def reading(self) -> Reading:
        """How the model's events are read: as those it was trained on, if its folder says."""
        if self.folder is not None and (file := Path(self.folder) / _READING_FILE).is_file():
            return Reading.from_dict(read_json(file))
        config: Any = self.mtpp.config
        return Reading(marks=tuple(config.id2label.values()), time_unit=config.time_unit)

    def read(self, source: Any, **columns: Any) -> Read:
        """A table of events, read as the events the model was trained on. `columns` (time, mark, sequence,
        time_format) as in `read_events`, where they are called otherwise."""
        return read_events(source, **columns, reading=self.reading)

    def load(self, source: Any, role: str = "events", **columns: Any) -> EventSequences:
        """Events in the model's marks and unit of time, from anything `explain` takes; `columns` as in `load_events`.
        Errors call the source by its `role`."""
        config: Any = self.mtpp.config
        try:
            if isinstance(source, EventSequences):
                events = source
                self._check_vocabulary(events.id2label)
            else:
                table = read_table(_as_source(source))
                are_named = self._check_class_names(table.schema, "marks", "mark", columns.get("mark"))
                by_name = not are_named and numbers_are_names(config.id2label.values())
                columns = {"by_name": by_name, **columns}
                if {"times", "start"} <= set(table.column_names):
                    columns = {"start": "start", **columns}
                stored = json.loads((table.schema.metadata or {}).get(b"ehd_hf", b"{}")).get("time_unit")
                unit = stored or config.time_unit
                events = load_events(table, id2label=config.id2label, time_unit=unit, **columns)
                if events.epochs is not None and config.time_unit is None:
                    raise ValueError("timestamps need a model that knows its unit of time. Pass numbers in its unit.")
            if len(events) == 0:
                raise ValueError("it has no events; expected at least one. Check what was selected.")
            return _in_unit(events, config.time_unit)
        except (TypeError, ValueError) as error:
            marks = ", ".join([*list(config.id2label.values())[:12], *(["..."] if len(config.id2label) > 12 else [])])
            raise ValueError(f"{role}: {error} (The model knows the marks {marks}.)") from error

    def _check_vocabulary(self, id2label: Any) -> None:
        expected: Any = self.mtpp.config.id2label
        if dict(id2label) != dict(expected):
            unknown = sorted(set(id2label.values()) - set(expected.values()))
            reason = f"unknown to it: {', '.join(unknown[:5])}" if unknown else "the same marks in another order"
            raise ValueError(f"its mark vocabulary is not the model's ({reason}). Load it with the model's id2label.")

    def _check_class_names(self, schema: pa.Schema, *marks: str | None) -> bool:
        """Whether a dataset names its marks: it must name them as the model does, their numbers say nothing else."""
        are_named = False
        if b"huggingface" in (schema.metadata or {}):
            from datasets import Features

            for column, feature in Features.from_arrow_schema(schema).items():
                names = getattr(getattr(feature, "feature", feature), "names", None)
                if column in marks and names is not None:
                    self._check_vocabulary(dict(enumerate(names)))
                    are_named = True
        return are_named

    def question(
        self,
        *,
        delta: float | None = None,
        refine: Refinement | None = None,
        kind: Any = None,
        only: Any = None,
        **target: Any,
    ) -> Question:
        """What is asked, as in `Question`, completed by what the model was trained for: one of epsilon, share and size
        as the `target`; `refine` is by default "prune", "none" for the paper's distiller when nothing else is said.
        `kind` asks about the future events of one mark only, by its name; to `only` one mark, or several in a list,
        the answer is restricted."""
        target = {name: value for name, value in target.items() if value is not None}
        asks = bool(target) or delta is not None or kind is not None or only is not None
        if refine == "none" and asks:
            raise ValueError('refine="none" takes the distiller\'s own answer and no target. Ask for "prune" instead.')
        if refine == "none" and not isinstance(self.model, DistillerModel):
            raise ValueError('refine="none" needs a distiller; an MTPP alone answers with "prefix" or "prune".')
        if target:
            target = dict.fromkeys(TARGETS) | target
        question = replace(
            self._asked, **target, delta=delta, refine=refine or ("prune" if asks else self._own_refine)
        )
        names: Any = self.mtpp.config.id2label
        if kind is not None:
            question = replace(question, kind=kind_called(kind, names))
            self._refuse_context([question.kind])
        if only is None:
            return question
        return OfKinds(**{**vars(question), "only": tuple(kinds_called(only, names))})

    def window_size(self, future: Any, history: Any) -> tuple[int, int | None]:
        """K and L that a question asks for; L is None for all events there are."""
        num_future = self.future if future is None else future
        if num_future is None:
            raise ValueError("Say how many of the last events to explain: an MTPP alone does not know. Pass future=5.")
        if not is_count(num_future):
            raise ValueError(f"future must be a number of events of at least 1; got {num_future!r}.")
        if isinstance(history, str) and history == "all":
            return num_future, None
        if history is not None and not is_count(history):
            raise ValueError(f'history must be a number of events of at least 1, or "all"; got {history!r}.')
        return num_future, self.history if history is None else int(history)

    def explain(
        self,
        sequence: Any = None,
        *,
        future: Any = None,
        history: Any = None,
        event: Any = None,
        each: bool = False,
        intensities: bool = False,
        progress: bool | None = None,
        **asked: Any,
    ) -> Explanation | list[Explanation]:
        """Which events of the history explain the future, or one event?

        One sequence gives one `Explanation`; several (a list of them, or a table with more than one id) a list.

        Args:
            sequence: events in any form `load_events` takes, an (n, 2) array too, or an `EventSequences`. Marks by
                name or number; times as numbers in the model's unit, or as timestamps.
            future: number of last events of `sequence` to explain (the model's own K if not given); or, without a
                sequence, the future's events.
            history: number of events before the future to look at, "all" of them, or by default as many as the model
                was trained on (40 for an MTPP alone); or, without a sequence, the history's events.
            event, each: explain this event alone, as in `why`; the history is what came before it.
            intensities: also compute the curves that `Explanation.plot` draws; takes some milliseconds a window.
            progress: show a bar; by default only for more than a few hundred windows or events of one.
            asked: epsilon, share, size, delta, refine, kind, only as in `question`.
        """
        question = self.question(**asked)
        if event is not None and (future is not None or question.kind is not None or sequence is None):
            raise ValueError("event names what is explained; got a future or a kind besides. Leave it out.")
        if each and event is None:
            raise ValueError('each asks about every event of a mark. Name it: event="page on-call".')
        source = history if sequence is None else sequence
        if sequence is None:
            if history is None or future is None or isinstance(history, int) or isinstance(future, int):
                raise ValueError("explain needs a sequence, or the events of both history and future; got neither.")
            events, num_future = _joined(self.load(history, "history"), self.load(future, "future"))
            windows = Windows.of(events, ends(events, num_future, None))
        else:
            events = self.load(sequence, "sequence")
            windows = self._ends(events, future, history) if event is None else self._at(events, event, each, history)
            if len(first := np.flatnonzero(windows.spans.lengths == 1)) and event is not None:
                name = windows.names[first[0]]
                raise ValueError(f"the first event of sequence {name!r} has no history. Name one that comes later.")
        explanations = self.explain_windows(windows, question, intensities=intensities, progress=progress)
        if len(explanations) > 1 or each or _is_nested(source):
            return explanations
        return explanations[0] if _is_named(source, events) else replace(explanations[0], seq_id=None)

    def explain_windows(
        self, windows: Windows, question: Question, *, intensities: bool = False, progress: bool | None = None
    ) -> list[Explanation]:
        """The explanations of windows that were cut already, in their order."""
        number = len(windows.names)
        is_long = number > _WINDOWS_WITHOUT_BAR or windows.spans.lengths.max() > _LENGTH_WITHOUT_BAR
        shows = is_long if progress is None else progress
        bar = tqdm(self.answers(windows, question), "explaining", number, unit="window", disable=not shows)
        explanations = [explanation for _, explanation in sorted(bar, key=lambda answer: answer[0])]
        if not intensities:
            return explanations
        curves = intensity_curves(in_double(self.mtpp), windows, [one.distill_mask for one in explanations])
        return [replace(one, intensity=curve) for one, curve in zip(explanations, curves, strict=True)]

    def __call__(self, inputs: Any, *, batch_size: int = 256, **options: Any) -> Any:
        """`explain`, as a pipeline of transformers is called. An iterator of sequences (a generator, a streamed
        dataset) gives an iterator of explanations, made `batch_size` at a time."""
        if isinstance(inputs, Iterator):
            return self._stream(inputs, batch_size, options)
        return self.explain(inputs, **options)

    def _stream(self, sequences: Iterator[Any], batch_size: int, options: dict[str, Any]) -> Iterator[Explanation]:
        if not is_count(batch_size):
            raise ValueError(f"batch_size must be a number of sequences of at least 1; got {batch_size!r}.")
        while batch := list(islice(sequences, batch_size)):
            answers = self.explain(batch, **{"progress": False, **options})
            assert isinstance(answers, list)  # a list of sequences was given
            yield from answers

    def attribute(
        self, sequence: Any, *, future: int | None = None, history: Any = None, method: Solver | str | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """A score per event, as attribution libraries give it: higher is more responsible for the future.

        One array per sequence, an entry for each of its events; NaN for those that were not scored: the future, and
        what stands before the `history` looked at. `sequence`, `future` and `history` as in `explain`. `method`, a
        solver that orders events or its name, scores them: "leave_one_out" and "shapley" give losses of log-likelihood
        per future event; by default the scores are those that explanations show."""
        solver = get_solver(method) if isinstance(method, str) else method or self.solver
        if not isinstance(solver, Solver) or not solver.orders:
            ordering = ", ".join(name for name in available_solvers() if get_solver(name).orders)
            raise ValueError(f"attribute needs a method that orders all events, such as {ordering}; got {method!r}.")
        events = self.load(sequence, "sequence")
        scores = [np.full(length, np.nan) for length in events.lengths]
        ranking = EHDDistiller(self.model, solver=solver, conditioning=self.conditioning)
        ranking.certifier.others.clear()  # of an ensemble, the first member's scores
        question = ranking.question(size=1, refine="prefix")
        for index, answer in ranking.answers(self._ends(events, future, history), question, curves=False):
            past = [event.score for event in answer.history]
            scores[index][answer.window : answer.window + len(past)] = past
        return scores if len(scores) > 1 or _is_nested(sequence) else scores[0]

    @torch.no_grad()
    def why(
        self, sequence: Any, *, event: Any = -1, each: bool = False, history: Any = None, progress: bool | None = None
    ) -> Why | list[Why]:
        """Which event before it caused this one? One sequence gives one answer, several, or `each`, a list.

        Args:
            sequence: events as in `explain`; those after the target do not count.
            event: an index in the sequence, negative from its end; a time; or a mark, whose last event is meant.
            each: of a mark, ask about all of its events.
            history: number of events before the target to look at, "all", or by default as the model was trained.
            progress: show a bar; by default only for more than a few hundred events.
        """
        events = self.load(sequence, "sequence")
        windows = self._at(events, event, each, history)
        answers: dict[int, Why] = {}
        number = len(windows.names)
        shows = number > _WINDOWS_WITHOUT_BAR if progress is None else progress
        models = getattr(in_double(self.mtpp), "members", None) or [in_double(self.mtpp)]
        with tqdm(desc="asking why", total=number, unit="event", disable=not shows) as bar:
            for batch in windows.spans.batches():
                part = windows.rows(batch)
                window = Window(*part.spans.tensors(self.mtpp.device))
                causes = [cause_probabilities(model, window) for model in models]
                answers |= zip(batch.tolist(), whys(part, causes, self.mtpp.config), strict=True)
                bar.update(len(batch))
        listed = [answers[index] for index in range(len(answers))]
        if each or len(listed) != 1 or _is_nested(sequence):
            return listed
        return listed[0] if _is_named(sequence, events) else replace(listed[0], seq_id=None)

    def trace(
        self, sequence: Any, *, history: Any = None, at_least: float = 0.0, progress: bool | None = None
    ) -> Trace | list[Trace]:
        """Which event caused which? Every event of a whole sequence is asked about, given the `history` events before
        it; `sequence`, `history` and `progress` as in `why`. One sequence gives one `Trace`, several a list. Causes
        less probable than `at_least` are left out, which keeps the answer for a long log small."""
        if isinstance(at_least, bool) or not isinstance(at_least, int | float) or not 0 <= at_least < 1:
            raise ValueError(f"at_least must be a probability, from 0 to below 1; got {at_least!r}. Try 0.01.")
        events = self.load(sequence, "sequence")
        _, num_history = self.window_size(1, history)
        mtpp = getattr(self.mtpp, "members", [self.mtpp])[0]
        shows = events.num_events > _EVENTS_WITHOUT_BAR if progress is None else progress
        with tqdm(desc="tracing", total=events.num_events, unit="event", unit_scale=True, disable=not shows) as bar:
            edges = find_edges(mtpp, events, num_history, at_least, bar.update)
        found = list(traces(events, edges, self.mtpp.config.time_unit))
        if len(found) > 1 or _is_nested(sequence):
            return found
        return found[0] if _is_named(sequence, events) else replace(found[0], seq_id=None)

    def influence(
        self, events: Any, *, history: Any = None, draws: int = DRAWS, seed: int = 0, columns: Any = None
    ) -> Influence:
        """Which kinds of events drive which? The probabilities of `trace`, summed by kind of cause and kind of effect,
        with intervals by a bootstrap over sequences (or stretches of time, where these are few).

        Args:
            events: in any form that `explain` takes; or a file, which is read as the model's training events were, a
                part at a time where it may not fit into memory.
            history: number of events before each to look for causes among, "all", or by default as many as the model
                was trained on.
            draws, seed: of the bootstrap.
            columns: names of the columns time, mark and sequence, where they are not the usual ones.
        """
        if not is_count(draws) or draws < 2:
            raise ValueError(f"draws must be a number of at least 2; got {draws!r}. The default is {DRAWS}.")
        size = self.window_size(1, history)[1]
        return influence(self, events, history=size, draws=draws, seed=seed, columns=columns)

    def what_if(
        self,
        events: Any,
        *,
        without: Any = None,
        adding: Any = None,
        horizon: Any,
        num_samples: int = 1000,
        history: Any = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> WhatIf:
        """What would follow if these events had not happened, or others had? Futures are simulated from the last event
        on in two worlds, as it was and changed, with the same random numbers in both. It is what the model believes,
        and no experiment.

        Args:
            events: one sequence in any form that `explain` takes.
            without: what to take out: an index in the sequence (negative from its end), the time of an event (a float
                or a timestamp), the name of a mark for all its events, or a list of these.
            adding: events to put in, (time, mark) pairs or any other form of events, none later than the last event
                but those of context marks: planned ones, which happen in all futures of the changed world.
            horizon: how far to look, in the model's unit of time, or such as "1h" or a timedelta.
            num_samples: futures of each world.
            history: number of last events that the model is given, "all", or by default as many as it was trained on.
            progress: show a bar; by default after some seconds.
        """
        log = self.load(events)
        if len(log) > 1:
            raise ValueError(f"what_if takes one sequence; got {len(log)}. Pass one of them.")
        without, adding = (None if hasattr(some, "__len__") and len(some) == 0 else some for some in (without, adding))
        if without is None and adding is None:
            raise ValueError("what_if needs events to take out or to put in; got none. Pass without=... or adding=...")
        if not is_count(num_samples):
            raise ValueError(f"num_samples must be a number of futures of at least 1; got {num_samples!r}.")
        windows, added = Windows.of(log, ends(log, 0, self.window_size(1, history)[1])), None
        self.check_length(windows)
        if adding is not None:
            more = self.load(adding, "adding", sort=True)
            if len(more) > 1:
                raise ValueError(
                    f"adding must be the events of one sequence; got {len(more)}. Pass (time, mark) pairs."
                )
            added = Windows.of(more, ends(more, 0, None)._replace(times=on_clock_of(log, more)))
        return what_if(
            self.mtpp,
            windows,
            [] if without is None else positions_of(without, log, windows),
            added,
            horizon=length_of(horizon, self.mtpp.config.time_unit),
            num_samples=int(num_samples),
            seed=seed,
            progress=progress,
        )

    def _ends(self, events: EventSequences, future: Any, history: Any) -> Windows:
        """The last events of each sequence, split into history and future."""
        num_future, num_history = self.window_size(future, history)
        if len(short := np.flatnonzero(events.lengths <= num_future)):
            name, length = events.seq_ids[short[0]], events.lengths[short[0]]
            reason = f"has {length} events, all of them in the future of {num_future}: the history is empty"
            raise ValueError(f"sequence {name!r} {reason}. Ask for a shorter future or give a longer sequence.")
        return Windows.of(events, ends(events, num_future, num_history))

    def _at(self, events: EventSequences, event: Any, each: bool, history: Any) -> Windows:
        """The events that `event` means, each as the future of the history before it."""
        position = find_events(events, event, each=each)
        self._refuse_context(events.marks[position])
        _, num_history = self.window_size(1, history)
        windows = Windows.of(events, before_each(events, position, num_history))
        self.check_length(windows)
        return windows

    def _refuse_context(self, marks: Any) -> None:
        """Nobody asks why an event happened that is never predicted."""
        config: Any = self.mtpp.config
        names = [config.id2label[int(mark)] for mark in marks]
        if context := [name for name in names if name in (config.context_marks or ())]:
            got = f"got {context[0]!r}, which is context: it may be a cause, and is never predicted"
            raise ValueError(f"an explained event must be of a mark that is predicted; {got}. Ask about another.")

    def given(self, table: pa.Table, first_row: int = 0) -> Windows:
        """Rows that are windows, as `export_windows` writes them, numbered from `first_row` if they have no names.
        Their times count from the clock's origin."""
        are_named = self._check_class_names(table.schema, "history_marks", "future_marks")
        options = {"by_name": False} if are_named else {}
        rows = np.arange(first_row, first_row + table.num_rows)
        parts = []
        for part in ("history", "future"):
            columns = {"seq_id": rows, "times": table[f"{part}_times"], "marks": table[f"{part}_marks"]}
            parts.append(self.load(pa.table(columns, metadata=table.schema.metadata), part, **options))
        events, num_future = _joined(*parts)
        spans = ends(events, num_future, None)._replace(origins=np.zeros(len(rows)))
        if "window" in table.column_names:
            spans = spans._replace(offset=table["window"].to_numpy())
        windows = Windows.of(events, spans)
        return windows if "seq_id" not in table.column_names else windows._replace(names=table["seq_id"].to_pylist())

    def check_length(self, windows: Windows) -> None:
        """Refuse windows that are longer than the model accepts."""
        lengths = windows.spans.lengths
        if lengths.max(initial=0) > self.max_length:
            got = f"{lengths.max()} in sequence {windows.names[lengths.argmax()]!r}. Pass history=<number of events>."
            raise ValueError(f"A window may have at most max_length = {self.max_length} events; got {got}")

    def answers(
        self, windows: Windows, question: Question, *, curves: bool = True
    ) -> Iterator[tuple[int, Explanation]]:
        """The number of each window and its explanation, as the batches come. Without `curves` fewer prefixes are
        evaluated."""
        self.check_length(windows)
        double = in_double(self.mtpp)
        for batch in windows.spans.batches():
            part = windows.rows(batch)
            window = Window(*part.spans.tensors(self.mtpp.device))
            if len(empty := (asked_of(self.mtpp, question.about(window)).num_scored == 0).nonzero()):
                name, kind = part.names[int(empty[0])], self._labels(question)["kind"]
                what = "event that is predicted" if kind is None else repr(kind)
                raise ValueError(f"sequence {name!r} has no {what} in its future. Ask for a longer future.")
            is_far = window.split_time > _LONGEST_SILENCE * double.mean_interval
            if question.conditioning == "survival" and self.mtpp.has_gates and len(far := is_far.nonzero()):
                got = f"that of sequence {part.names[int(far[0])]!r} has one that drowns what the model knows"
                fix = 'Leave out the events before it, or ask with conditioning="paper"'
                raise ValueError(
                    f"a history's silences must be below {_LONGEST_SILENCE:g} mean intervals; {got}. {fix}."
                )
            answers = self.certifier.answers(window, question, double, curves=curves)
            for answer in answers:
                answer.check_finite(part.names)
            yield from zip(batch.tolist(), self._explanations(part, answers, question), strict=True)

    def _labels(self, question: Question) -> dict[str, Any]:
        """The marks that a question names."""
        names: Any = self.mtpp.config.id2label
        kind = None if question.kind is None else names[question.kind]
        only = tuple(names[mark] for mark in question.only) if isinstance(question, OfKinds) else None
        return {"kind": kind, "only": only}

    def _explanations(self, windows: Windows, answers: list[Answer], question: Question) -> Iterator[Explanation]:
        config: Any = self.mtpp.config
        answer, number = answers[0], len(answers) if len(answers) > 1 else None
        agreement = torch.stack([each.explaining() for each in answers]).sum(0)  # (B, L)
        spans, names = windows.spans, self._labels(question)
        for row, name in enumerate(windows.names):
            where = slice(spans.first[row], spans.first[row] + spans.lengths[row])
            labels = [config.id2label[mark] for mark in spans.marks[where].tolist()]
            events = [Event(*event) for event in zip(range(len(labels)), windows.shown[where], labels, strict=True)]
            split, history = len(events) - int(spans.num_future[row]), answer.history[row]
            scores = answer.scores[row, history].tolist()
            candidates = int(answer.candidates[row].sum())
            past = (event._replace(score=score) for event, score in zip(events[:split], scores, strict=True))
            yield Explanation(
                history=tuple(past),
                future=tuple(events[split:]),
                distill_mask=tuple(answer.distill_mask[row, history].tolist()),
                **{name: values[row] for name, values in answer.columns.items()},
                **question.asked | {"size": None if question.size is None else min(question.size, candidates)},
                **names,
                num_models=number,
                agreement=None if number is None else tuple(agreement[row, history].tolist()),
                curve=None if answer.curve is None else tuple(answer.curve[row, : candidates + 1].tolist()),
                seq_id=name,
                window=int(spans.offset[row]),
                time_unit=config.time_unit,
            )


def _as_source(source: Any) -> Any:
    """What people have, as `read_table` takes it."""
    if isinstance(source, list | tuple) and source and isinstance(source[0], pd.DataFrame):
        return pd.concat([frame.assign(seq_id=index) for index, frame in enumerate(source)])
    if isinstance(source, np.ndarray) and source.ndim == 2 and source.shape[1] == 2:
        source = [tuple(pair) for pair in source.tolist()]
    if isinstance(source, dict) and "times" in source and np.ndim(source["times"][:1]) == 1:
        if np.ndim(source.get("seq_id", 0)) == 0:  # one sequence, not one row per event
            return {name: [value] for name, value in source.items()}
    return source


def _is_nested(source: Any) -> bool:
    """Whether a list holds sequences rather than the events of one."""
    first = source[0] if isinstance(source, list | tuple) else None
    if isinstance(first, dict):
        return any(np.ndim(value) for value in first.values())
    return isinstance(first, pd.DataFrame) or (first is not None and np.ndim(first[0]) > 0)


def _is_named(source: Any, events: EventSequences) -> bool:
    """Whether a source names its sequences itself."""
    row = source[0] if isinstance(source, list | tuple) else source
    columns = getattr(row, "columns", getattr(row, "column_names", row if isinstance(row, dict) else ()))
    return isinstance(source, EventSequences) or events.seq_ids != (0,) or "seq_id" in columns


def _in_unit(events: EventSequences, unit: str | None) -> EventSequences:
    """The same events with times in the model's unit; as they are if either does not say its unit."""
    if unit is None or events.time_unit is None or events.time_unit == unit:
        return events
    ratio = unit_in_nanoseconds(events.time_unit) / unit_in_nanoseconds(unit)
    resolution = None if events.resolution is None else events.resolution * ratio
    times, starts = events.times * ratio, events.starts * ratio
    return replace(events, times=times, starts=starts, time_unit=unit, resolution=resolution)


def _joined(before: EventSequences, after: EventSequences) -> tuple[EventSequences, np.ndarray]:
    """Histories and futures given apart, as sequences, and how many events each future has (S,)."""
    if before.seq_ids != after.seq_ids or (before.epochs is None) != (after.epochs is None):
        got = f"{len(before)} histories, {len(after)} futures"
        raise ValueError(f"There must be one future per history, with its name, place and kind of times; got {got}.")
    later = after.times
    if before.epochs is not None and after.epochs is not None:
        gap = (after.epochs - before.epochs).astype("timedelta64[ns]").astype(np.int64)
        later = later + np.repeat(gap / unit_in_nanoseconds(before.time_unit or "s"), after.lengths)
    begins, ended = later[after.offsets[:-1]], before.times[before.offsets[1:] - 1]
    if len(early := np.flatnonzero(begins < ended)):
        where = f"at {begins[early[0]]:g} in sequence {before.seq_ids[early[0]]!r}"
        raise ValueError(f"The future must not begin before the history ends; it begins {where}. Swap or cut them.")
    # Sort by sequence, stable: each history before its future.
    owners = [np.repeat(np.arange(len(part)), part.lengths) for part in (before, after)]
    order = np.argsort(np.concatenate(owners), kind="stable")
    times, marks = np.append(before.times, later)[order], np.append(before.marks, after.marks)[order]
    return replace(before, times=times, marks=marks, offsets=before.offsets + after.offsets), after.lengths
