"""How good a point process is: NLL and calibration, as flat rows that carry what repeats them.

Processes are scored on whole sequences (first event excluded) and on the futures of all windows. Trivial baselines
and, for simulated events, the true process are scored on the same events by the same functions.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences
from ..data.synthetic import HawkesProcess
from ..data.windows import WindowStore, make_windows
from ..models.point_process import MTPPModel
from .baselines import EventScores, TrivialBaseline, is_scored

Row = dict[str, Any]
Scorer = MTPPModel | TrivialBaseline | HawkesProcess

MAX_TOKENS = 2**16  # events per batch, padding included: some tens of MB at the usual widths
QQ_PROBABILITIES = np.arange(1, 100) / 100
TRUE_PROCESS = "true process"


def trivial_baselines(train: EventSequences) -> dict[str, TrivialBaseline]:
    """Fitted baselines by name, without those that cannot be fitted: equal intervals have no gamma distribution.

    Two are enough: a row tells intervals and marks apart.
    """
    fitted = {}
    for kind in (("poisson", "unigram"), ("gamma", "bigram")):
        baseline = TrivialBaseline(*kind)
        try:
            fitted[baseline.name] = baseline.fit(train)
        except ValueError:
            continue
    return fitted


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
        raise ValueError(f"a model is a folder with config.json and model.safetensors; got {folder}. Train one first.")
    seed = json.loads(training.read_text()).get("args", {}).get("seed") if training.is_file() else None
    return {"checkpoint": hashlib.sha256(weights.read_bytes()).hexdigest()[:12], "seed": seed}


def check_marks(name: str, model: Scorer, sequences: EventSequences) -> None:
    """Refuse what is no point process, and one trained on other marks than those of `sequences`."""
    if not isinstance(model, Scorer):
        raise ValueError(f"{name} must be a point process; got a {type(model).__name__}. Pass the MTPP inside it.")
    if isinstance(model, MTPPModel) and (number := model.config.num_marks) != sequences.num_marks:
        raise ValueError(
            f"model {name} knows {number} marks; the events have {sequences.num_marks}. Evaluate it on its own data."
        )


def in_double(model: MTPPModel) -> MTPPModel:
    # float32 times lose intervals of milliseconds after days; the copy leaves the caller's model as it is.
    return copy.deepcopy(model).double().eval()


def _mean_nll(log_prob: np.ndarray, time_log_prob: np.ndarray, mark_log_prob: np.ndarray) -> Row:
    means = (-float(values.mean()) for values in (log_prob, time_log_prob, mark_log_prob))
    names = ("nll", "time_nll", "mark_nll")
    return {name: None if np.isnan(mean) else mean for name, mean in zip(names, means, strict=True)}


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
