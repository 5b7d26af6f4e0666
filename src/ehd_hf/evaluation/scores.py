"""How good a model is, as flat rows that carry what repeats them.

A marked temporal point process is scored on whole sequences (first event excluded) and on the futures of all windows.
Trivial baselines and, for simulated events, the true process are scored on the same events by the same functions. A
distiller is scored on windows: beside the trivial answer, the most recent events, and beside solvers that are asked
for as much as it gave (EHED, EMHD).
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences
from ..data.synthetic import HawkesProcess
from ..data.windows import WindowStore, make_windows
from ..models.distiller import DistillerModel
from ..models.perplexity import Conditioning
from ..models.point_process import MTPPModel
from ..solvers.base import AtSize, Explains, Objective, Reaches, Solver, SolverResult, StopRule, get_solver
from .baselines import EventScores, TrivialBaseline, is_scored
from .statistics import case_study, mean_interval

Row = dict[str, Any]
Scorer = MTPPModel | TrivialBaseline | HawkesProcess

MAX_TOKENS = 2**16  # events per batch, padding included: some tens of MB at the usual widths
QQ_PROBABILITIES = np.arange(1, 100) / 100
TRUE_PROCESS = "true process"
DISTILLER = "distiller"  # stands among the solvers' names
SOLVER_TASKS = {"ehed": "ds", "emhd": "lmhs"}  # and the metric of each
WINDOW_TASKS = ("distiller", *SOLVER_TASKS, "case_study")
BATCH_SIZE = 250  # windows searched at once


def trivial_baselines(train: EventSequences) -> dict[str, TrivialBaseline]:
    """Fitted baselines by name. Two are enough: a row tells intervals and marks apart."""
    kinds = (("poisson", "unigram"), ("gamma", "bigram"))
    return {baseline.name: baseline.fit(train) for baseline in (TrivialBaseline(*kind) for kind in kinds)}


def evaluate_mtpp(
    models: Mapping[str, Scorer],
    sequences: EventSequences,
    *,
    pair: tuple[int, int] | None = None,
    max_tokens: int = MAX_TOKENS,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """One row for each of `models`, all scored on the same events.

    Keys: `nll`, `time_nll`, `mark_nll` (nats per event over whole sequences, first events excluded), `num_events`;
    `ks` (distance of the rescaled times from Exp(1)) and `qq` (99 quantiles of them); with `pair` also `future_nll`,
    `future_time_nll`, `future_mark_nll` and `num_windows`. The true process does not tell times from marks (None), and
    sees the whole past of a window, which a model does not. `num_tied` counts scored intervals of 0: there densities
    are unbounded and NLLs arbitrary, so jitter the times if they are more than a few.

    Args:
        models: point processes, fitted baselines or the simulating process, by name.
        sequences: the events.
        pair: (K, L): also score the K future events of all windows (log p(x_o | H_f) of eq. 5).
        max_tokens: most events of a batch, padding included; a longer sequence is a batch of its own.
        progress: show a bar per model.
        stamp: what else each row says (data, split, ...).
    """
    for name, model in models.items():
        check_marks(name, model, sequences)
    windows = None if pair is None else make_windows(sequences, future=pair[0], history=pair[1])
    num_tied = int((sequences.intervals()[is_scored(sequences)] == 0).sum())
    for name, model in models.items():
        began = time.perf_counter()
        window = None if pair is None else f"{pair[0]}-{pair[1]}"
        row: Row = {"task": "mtpp", **stamp, "pair": window, "model": name}
        if isinstance(model, MTPPModel):
            scoring = in_double(model)  # one copy for both passes
            scores = _score_sequences(scoring, sequences, max_tokens, progress, name)
        else:
            scores = score_events(model, sequences)
        row |= summarize_scores(scores) | {"num_tied": num_tied}
        if windows is not None:
            if isinstance(model, MTPPModel):
                future = _score_futures(scoring, windows, max_tokens, progress, name)
            else:
                future = _average_futures(scores, windows)
            row |= {f"future_{key}": value for key, value in future.items()} | {"num_windows": len(windows)}
        yield row | {"seconds": round(time.perf_counter() - began, 2), "version": __version__}


class Answers(NamedTuple):
    """What one method answered on W windows: `distill_mask` (W, L), the other arrays (W,); `seconds` for all of them,
    and how many of these a distiller took for its masks alone."""

    distill_mask: np.ndarray
    dppl_left: np.ndarray
    dppl_distilled: np.ndarray
    num_evaluations: np.ndarray
    reached: np.ndarray
    seconds: float
    distill_seconds: float | None = None

    @property
    def sizes(self) -> np.ndarray:
        """|H_d|, (W,)."""
        return self.distill_mask.sum(1)

    @property
    def ds(self) -> np.ndarray:
        """Distinguishment significance, (W,)."""
        return self.dppl_distilled - self.dppl_left


def distiller_answers(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
) -> Answers:
    """The distiller's own masks (alg. 2) and what they are worth under `conditioning` (its own if not given)."""
    check_vocabulary(distiller, windows)
    distiller, distill_seconds = distiller.eval(), 0.0

    def answer(objective: Objective, rows: slice) -> SolverResult:
        nonlocal distill_seconds
        began = time.perf_counter()
        chosen, _ = distiller.distill(objective.times, objective.marks, objective.mask, objective.num_future)
        distill_seconds += time.perf_counter() - began
        values = objective.dppl_left(chosen), objective.dppl_distilled(chosen)
        return SolverResult(chosen, *values, objective.num_evaluations, torch.ones_like(chosen[:, 0]))

    how = conditioning or distiller.config.conditioning
    answers = _answer_windows(answer, distiller.mtpp, windows, how, batch_size, progress, DISTILLER)
    return answers._replace(distill_seconds=distill_seconds)


def solver_answers(
    solver: Solver,
    mtpp: MTPPModel,
    windows: WindowStore,
    stop: Callable[[slice], StopRule],
    *,
    conditioning: Conditioning = "paper",
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    name: str = "windows",
) -> Answers:
    """What a solver answers, batch after batch; `stop` gives the rule of the windows of a slice."""
    generator = torch.Generator(device=mtpp.device).manual_seed(seed)

    def answer(objective: Objective, rows: slice) -> SolverResult:
        return solver.solve(objective, stop(rows), generator=generator)

    return _answer_windows(answer, mtpp, windows, conditioning, batch_size, progress, name)


def evaluate_windows(
    distiller: DistillerModel,
    windows: WindowStore,
    tasks: Iterable[str],
    solvers: Iterable[str] = (),
    *,
    known: Callable[[Row], Row | None] = lambda key: None,
    conditioning: Conditioning | None = None,
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """The rows of several tasks, one after the other: of `evaluate_solvers` for ehed and emhd, with the distiller and
    recency always among the solvers; of `evaluate_distiller`; of `evaluate_case_study`.

    Args:
        known: asked before a row is computed, with what identifies it: the row itself if there is one.
    """
    check_vocabulary(distiller, windows)
    solvers = list(dict.fromkeys([DISTILLER, "recency", *solvers]))
    questions: list[tuple[str, str | None]] = []
    for task in dict.fromkeys(tasks):
        if task not in WINDOW_TASKS:
            raise ValueError(f"task must be one of {', '.join(WINDOW_TASKS)}; got {task!r}.")
        questions += [(task, solver) for solver in solvers] if task in SOLVER_TASKS else [(task, None)]
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning}
    base = {"pair": f"{windows.future}-{windows.history}", **stamp, **how, "num_windows": len(windows)}

    def look_up(task: str, solver: str | None) -> Row | None:
        search = {"solver": solver, "generator_seed": generator_seed, "batch_size": batch_size} if solver else {}
        return known({"task": task, **base, **search, "version": __version__})

    found = {question: look_up(*question) for question in questions}
    missing = [(task, solver) for (task, solver), row in found.items() if solver and row is None]
    options: dict[str, Any] = {**how, "batch_size": batch_size, "progress": progress, **stamp}
    fresh = evaluate_solvers(distiller, windows, missing, generator_seed=generator_seed, **options)
    single = {"distiller": evaluate_distiller, "case_study": evaluate_case_study}
    for (task, solver), row in found.items():
        if row is None:
            row = next(fresh) if solver else single[task](distiller, windows, **options)
        yield row


def evaluate_solvers(
    distiller: DistillerModel,
    windows: WindowStore,
    questions: Iterable[tuple[str, str]],
    *,
    conditioning: Conditioning | None = None,
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """One row for each of `questions`, as soon as it is answered.

    EHED gives every solver the distiller's own size in each window; `ds` is the metric. EMHD gives it the distiller's
    dppl_left and dppl_distilled as targets; `lmhs` is the metric, the size needed, and L where a solver does not reach
    them (`reached` is the share that does). The distiller's own rows are the solver "distiller".

    Keys: the metric's mean with `_std` over windows and a 95 % interval of the mean, `_low` and `_high`, by bootstrap
    over sequences (windows overlap); `difference` from the distiller on the same windows, with its interval; means of
    `size`, `dppl_left`, `dppl_distilled`, `evaluations` (likelihoods of one window given one mask; the full history's
    and those of the values reported included) and `seconds_per_window` (of which a distiller took
    `distill_seconds_per_window` for its masks).

    Args:
        questions: (task, solver) by name: ehed or emhd; "distiller" or one of `available_solvers()`.
        conditioning: of the perplexities; the distiller's own if not given.
        generator_seed: of the solvers' randomness.
        batch_size: windows searched at once; what a random solver draws depends on it.
        stamp: what else each row says (data, split, ...).
    """
    questions = list(questions)
    for task, name in questions:
        if task not in SOLVER_TASKS:
            raise ValueError(f"task must be one of {', '.join(SOLVER_TASKS)}; got {task!r}.")
        if name != DISTILLER:
            get_solver(name)  # an unknown one is refused before anything is computed
    if not questions:
        return
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning, "batch_size": batch_size}
    own = distiller_answers(distiller, windows, progress=progress, **how)
    groups = windows.sequence_index

    def rule(task: str, rows: slice) -> StopRule:
        device = distiller.device
        if task == "ehed":
            return AtSize(torch.from_numpy(own.sizes[rows]).to(device))
        left, distilled = own.dppl_left[rows], own.dppl_distilled[rows]
        return Reaches(torch.from_numpy(left).to(device), torch.from_numpy(distilled).to(device))

    for task, name in questions:
        answers, options = own, ""
        if name != DISTILLER:
            solver = get_solver(name)
            options = ", ".join(f"{option}={value}" for option, value in vars(solver).items())
            answers = solver_answers(
                solver,
                distiller.mtpp,
                windows,
                partial(rule, task),
                seed=generator_seed,
                progress=progress,
                name=f"{task} {name}",
                **how,
            )
        metric, reference = (answers.ds, own.ds) if task == "ehed" else (answers.sizes, own.sizes)
        key = SOLVER_TASKS[task]
        row: Row = {"task": task, "pair": f"{windows.future}-{windows.history}", **stamp, "solver": name}
        row |= {key: float(metric.mean()), f"{key}_std": float(metric.std())}
        row[f"{key}_low"], row[f"{key}_high"] = mean_interval(metric, groups)
        row |= {"difference": None, "difference_low": None, "difference_high": None}
        if name != DISTILLER:
            difference = metric - reference
            row["difference"] = float(difference.mean())
            row["difference_low"], row["difference_high"] = mean_interval(difference, groups)
        means = {
            "reached": answers.reached,
            "size": answers.sizes,
            "dppl_left": answers.dppl_left,
            "dppl_distilled": answers.dppl_distilled,
            "evaluations": answers.num_evaluations,
        }
        row |= {name: float(values.mean()) for name, values in means.items()}
        row["seconds_per_window"] = answers.seconds / len(windows)
        if answers.distill_seconds is not None:
            row["distill_seconds_per_window"] = answers.distill_seconds / len(windows)
        row |= {"num_windows": len(windows), "num_sequences": len(np.unique(groups)), "solver_options": options}
        row |= {"epsilon": distiller.config.epsilon, **how, "generator_seed": generator_seed}
        row |= {"threads": torch.get_num_threads(), "seconds": round(answers.seconds, 2), "version": __version__}
        yield row


def evaluate_distiller(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Row:
    """One row: what a distiller's argmax answers are worth, beside the most recent events.

    Keys, each a mean over windows with its `_std`: `ds` (dppl_distilled - dppl_left), `size`, `dppl_left`,
    `dppl_distilled`; shares of windows: `constraint_met`, `is_last_k` (the answer is exactly the last events);
    `last_k_share` (share of distilled events that are among the last k). Recency: `recency_ds` at the same sizes, and
    `recency_size`, the fewest last events that meet the constraint (mean over the `recency_reached` share of windows).
    """
    began = time.perf_counter()
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning, "batch_size": batch_size}
    epsilon = distiller.config.epsilon
    own = distiller_answers(distiller, windows, progress=progress, **how)
    sizes = torch.from_numpy(own.sizes).to(distiller.device)
    recent, enough = (
        solver_answers(get_solver("recency"), distiller.mtpp, windows, stop, progress=progress, name="recency", **how)
        for stop in (lambda rows: AtSize(sizes[rows]), lambda rows: Explains(epsilon=epsilon))
    )
    shared = (own.distill_mask & recent.distill_mask).sum(1)
    arrays = {
        "ds": own.ds,
        "size": own.sizes,
        "dppl_left": own.dppl_left,
        "dppl_distilled": own.dppl_distilled,
        "constraint_met": own.dppl_left < np.log(epsilon),
        "is_last_k": (own.distill_mask == recent.distill_mask).all(1),
        "last_k_share": shared[own.sizes > 0] / own.sizes[own.sizes > 0],  # undefined where nothing was distilled
        "recency_ds": recent.ds,
        "recency_size": enough.sizes[enough.reached],
    }
    row: Row = {"task": "distiller", "pair": f"{windows.future}-{windows.history}", **stamp}
    for name, array in arrays.items():
        row[name] = float(array.mean()) if len(array) else None
        if name not in ("constraint_met", "is_last_k", "last_k_share"):
            row[f"{name}_std"] = float(array.std()) if len(array) else None
    row["recency_reached"] = float(enough.reached.mean())
    row |= {"epsilon": epsilon, "conditioning": how["conditioning"], "num_windows": len(windows)}
    assert own.distill_seconds is not None
    row["windows_per_second"] = len(windows) / own.distill_seconds
    return row | {"seconds": round(time.perf_counter() - began, 2), "version": __version__}


def evaluate_case_study(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Row:
    """One row of what the distiller's masks say together; keys as in `analysis.case_study`. Slides need neighbouring
    windows, so give it a whole split."""
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning}
    own = distiller_answers(distiller, windows, batch_size=batch_size, progress=progress, **how)
    marks = windows.gather(np.arange(len(windows)))[1].numpy()[:, : windows.history]
    where = windows.sequence_index, windows.window_offset
    row: Row = {"task": "case_study", "pair": f"{windows.future}-{windows.history}", **stamp}
    row |= case_study(own.distill_mask, marks, *where, windows.sequences.id2label)
    row |= {**how, "num_windows": len(windows)}
    return row | {"seconds": round(own.seconds, 2), "version": __version__}


def check_vocabulary(distiller: DistillerModel, windows: WindowStore) -> None:
    """Refuse windows of other marks than the distiller knows."""
    theirs, known = dict(windows.sequences.id2label), dict(distiller.config.mtpp_config.id2label)
    if theirs != known:
        raise ValueError(
            f"the windows must have the {len(known)} marks the distiller knows "
            f"({', '.join(list(known.values())[:5])}, ...); theirs are {len(theirs)} "
            f"({', '.join(list(theirs.values())[:5])}, ...). Load them with its id2label."
        )


def renumber_marks(sequences: EventSequences, id2label: Mapping[int, str]) -> EventSequences:
    """The same events, their marks numbered as in `id2label`, if it has the same names; else as they are."""
    number = {label: mark for mark, label in id2label.items()}
    if len(number) != len(id2label) or sorted(sequences.id2label.values()) != sorted(number):
        return sequences
    order = np.array([number[sequences.id2label[mark]] for mark in range(sequences.num_marks)])
    return replace(sequences, marks=order[sequences.marks], id2label=dict(id2label))


def _answer_windows(
    answer: Callable[[Objective, slice], SolverResult],
    mtpp: MTPPModel,
    windows: WindowStore,
    conditioning: Conditioning,
    batch_size: int,
    progress: bool,
    name: str,
) -> Answers:
    fields = ("distill_mask", "dppl_left", "dppl_distilled", "num_evaluations", "reached")
    pieces: dict[str, list[np.ndarray]] = {field: [] for field in fields}
    began = time.perf_counter()
    with tqdm(total=len(windows), unit="windows", desc=name, disable=not progress) as bar:
        for first in range(0, len(windows), batch_size):
            rows = slice(first, min(first + batch_size, len(windows)))
            batch = windows.__getitems__(np.arange(rows.start, rows.stop))
            times, marks, mask = (batch[key].to(mtpp.device) for key in ("times", "marks", "mask"))
            objective = Objective(mtpp, times, marks, mask, windows.future, conditioning=conditioning)
            result = answer(objective, rows)
            for field, values in pieces.items():
                array = getattr(result, field).cpu().numpy()
                values.append(array.astype(np.float64) if field.startswith("dppl") else array)
            bar.update(rows.stop - rows.start)
    seconds = time.perf_counter() - began
    whole: Any = {field: np.concatenate(values) for field, values in pieces.items()}
    return Answers(**whole, seconds=seconds)


def score_events(
    model: Scorer, sequences: EventSequences, *, max_tokens: int = MAX_TOKENS, progress: bool = False
) -> EventScores:
    """Log-likelihood and compensator of every event given all before it, each (N,); NaN on first events."""
    if isinstance(model, TrivialBaseline):
        return model.log_prob(sequences)
    if isinstance(model, HawkesProcess):
        scored, exact = is_scored(sequences), model.log_likelihood(sequences)
        unknown = np.full(sequences.num_events, np.nan)
        log_prob, compensator = (np.where(scored, values, np.nan) for values in exact)
        return EventScores(log_prob, unknown, unknown, compensator)
    return _score_sequences(in_double(model), sequences, max_tokens, progress, "events")


def summarize_scores(scores: EventScores) -> Row:
    """NLL and calibration of scored events, as the keys of a row."""
    scored = ~np.isnan(scores.compensator)
    rescaled = scores.compensator[scored]
    if not len(rescaled):
        raise ValueError("evaluation needs sequences of two events or more; got only single events.")
    return {
        **_mean_nll(*(values[scored] for values in scores[:3])),
        "num_events": len(rescaled),
        "ks": ks_distance(rescaled),
        "qq": [round(value, 6) for value in np.quantile(rescaled, QQ_PROBABILITIES).tolist()],
    }


def ks_distance(rescaled: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of rescaled times (n,) from Exp(1), which those of the true process follow."""
    distribution = -np.expm1(-np.sort(rescaled))
    steps = np.arange(len(rescaled) + 1) / len(rescaled)
    return float(max((steps[1:] - distribution).max(), (distribution - steps[:-1]).max()))


def add_gaps(rows: Iterable[Row]) -> list[Row]:
    """The rows, with `gap` = nll above the true process's nll where the same events were scored by it too."""
    rows = list(rows)

    def events(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(key) for key in ("data", "split", "jitter_seed", "num_events"))

    truth = {events(row): row["nll"] for row in rows if row["model"] == TRUE_PROCESS}
    return [row | ({"gap": row["nll"] - truth[events(row)]} if events(row) in truth else {}) for row in rows]


def events_digest(*splits: EventSequences) -> str:
    """Twelve letters that change with any time or mark: whether two rows were computed on the same events."""
    arrays = (array for sequences in splits for array in (sequences.times, sequences.marks, sequences.offsets))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]


def checkpoint_stamp(folder: str | Path) -> Row:
    """What a row says of a checkpoint: a digest of its weights, and the seed of its training if that is on record."""
    weights, training = Path(folder) / "model.safetensors", Path(folder) / "training.json"
    if not weights.is_file() or not (Path(folder) / "config.json").is_file():
        raise ValueError(
            f"a model must be a folder with config.json and model.safetensors; got {folder}. Train one first."
        )
    seed = json.loads(training.read_text()).get("args", {}).get("seed") if training.is_file() else None
    return {"checkpoint": hashlib.sha256(weights.read_bytes()).hexdigest()[:12], "seed": seed}


def check_marks(name: str, model: Scorer, sequences: EventSequences) -> None:
    """Refuse what is no point process, and one trained on other marks than those of `sequences`."""
    if not isinstance(model, Scorer):
        raise ValueError(
            f"{name} must be a point process; got a {type(model).__name__}. Pass the MTPP it was made for."
        )
    if isinstance(model, MTPPModel) and model.config.num_marks != sequences.num_marks:
        raise ValueError(
            f"model {name} knows {model.config.num_marks} marks; the events have {sequences.num_marks}. "
            "Evaluate it on the data set it was trained on."
        )


def in_double(model: MTPPModel) -> MTPPModel:
    # float32 times lose intervals of milliseconds after days; the copy leaves the caller's model as it is.
    return copy.deepcopy(model).double().eval()


def _mean_nll(log_prob: np.ndarray, time_log_prob: np.ndarray, mark_log_prob: np.ndarray) -> Row:
    means = (-float(values.mean()) for values in (log_prob, time_log_prob, mark_log_prob))
    return {
        key: None if np.isnan(mean) else mean for key, mean in zip(("nll", "time_nll", "mark_nll"), means, strict=True)
    }


def _length_buckets(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Indices of sequences of similar length, longest first, at most `max_tokens` events with padding (or one row)."""
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        last = first + max(1, max_tokens // int(lengths[order[first]]))
        yield order[first:last]
        first = last


@torch.no_grad()
def _score_sequences(
    model: MTPPModel, sequences: EventSequences, max_tokens: int, progress: bool, name: str
) -> EventScores:
    flat = EventScores(*(np.full(sequences.num_events, np.nan) for _ in EventScores._fields))
    origins = sequences.previous_times()[sequences.offsets[:-1]]
    with tqdm(total=sequences.num_events, unit="events", unit_scale=True, desc=name, disable=not progress) as bar:
        for rows in _length_buckets(sequences.lengths, max_tokens):
            count = sequences.lengths[rows]
            step = np.arange(count.max())
            mask = step < count[:, None]  # (B, T)
            where = sequences.offsets[rows, None] + np.minimum(step, count[:, None] - 1)
            batch = (sequences.times[where] - origins[rows, None], sequences.marks[where], mask)
            output = model.event_log_prob(*(torch.from_numpy(values).to(model.device) for values in batch))
            for values, field in zip(flat, EventScores._fields, strict=True):
                values[where[mask]] = output[field].cpu().numpy()[mask]
            bar.update(int(count.sum()))
    for values in flat:
        values[sequences.offsets[:-1]] = np.nan
    return flat


@torch.no_grad()
def _score_futures(model: MTPPModel, windows: WindowStore, max_tokens: int, progress: bool, name: str) -> Row:
    """Mean NLL of the future of every window, its history as the window has it."""
    sums, size = np.zeros(3), max(1, max_tokens // (windows.history + windows.future))
    with tqdm(total=len(windows), unit="windows", unit_scale=True, desc=name, disable=not progress) as bar:
        for first in range(0, len(windows), size):
            times, marks = windows.gather(np.arange(first, min(first + size, len(windows))))
            batch = (times, marks, torch.ones(times.shape, dtype=torch.bool))
            output = model.event_log_prob(*(values.to(model.device) for values in batch), num_last=windows.future)
            sums += [float(output[field].sum()) for field in EventScores._fields[:3]]
            bar.update(len(times))
    return _mean_nll(*np.split(sums / (len(windows) * windows.future), 3))


def _average_futures(scores: EventScores, windows: WindowStore) -> Row:
    """The same mean where an event's score does not depend on the window: by running sums, however many windows."""
    begin = windows.first + windows.history  # (W,), never a first event
    means = []
    for values in scores[:3]:
        running = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
        total = (running[begin + windows.future] - running[begin]).sum() / (len(windows) * windows.future)
        means.append(np.array([np.nan if np.isnan(values[begin[0]]) else total]))
    return _mean_nll(*means)
