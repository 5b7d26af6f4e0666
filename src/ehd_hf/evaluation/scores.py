"""How good a point process is: NLL and calibration, as flat rows that carry what repeats them.

Processes are scored on whole sequences (first event excluded), trivial baselines on the same events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences
from ..models.point_process import MTPPModel, in_double
from .baselines import EventScores, TrivialBaseline, is_scored

Row = dict[str, Any]

MAX_TOKENS = 2**16  # events per batch, padding included: some tens of MB at the usual widths
QQ_PROBABILITIES = np.arange(1, 100) / 100


@runtime_checkable
class Scorer(Protocol):
    """What scores events itself, such as a fitted `TrivialBaseline`."""

    def log_prob(self, sequences: EventSequences) -> EventScores: ...


def trivial_baselines(train: EventSequences) -> dict[str, TrivialBaseline]:
    """Fitted baselines by name, without those that cannot be fitted: equal intervals have no gamma distribution. Two
    are enough: a row tells intervals and marks apart."""
    fitted = {}
    for baseline in (TrivialBaseline("poisson", "unigram"), TrivialBaseline("gamma", "bigram")):
        with suppress(ValueError):
            fitted[baseline.name] = baseline.fit(train)
    return fitted


def evaluate_mtpp(
    models: Mapping[str, MTPPModel | Scorer], sequences: EventSequences, *, progress: bool = False, **stamp: Any
) -> Iterator[Row]:
    """One row for each of `models`, by name, all scored on the same events; with what else each row says, `stamp`.

    Keys: `nll`, `time_nll`, `mark_nll` (nats per event, first events excluded; None if a model does not tell times
    from marks), `num_events`; `ks` (distance of the rescaled times from Exp(1)) and `qq` (99 quantiles of them).
    `num_tied` counts scored intervals of 0: there densities are unbounded and NLLs arbitrary, so jitter the times if
    they are more than a few.
    """
    for name, model in models.items():
        check_marks(name, model, sequences)
    num_tied = int((sequences.intervals()[is_scored(sequences)] == 0).sum())
    for name, model in models.items():
        began = time.perf_counter()
        scores = score_events(model, sequences, progress=name if progress else None)
        row: Row = {"task": "mtpp", **stamp, "pair": stamp.get("pair"), "model": name, **summarize_scores(scores)}
        yield row | {"num_tied": num_tied, "seconds": round(time.perf_counter() - began, 2), "version": __version__}


@torch.no_grad()
def score_events(
    model: MTPPModel | Scorer, sequences: EventSequences, *, max_tokens: int = MAX_TOKENS, progress: str | None = None
) -> EventScores:
    """Log-likelihood and compensator of every event given all before it, each (N,); NaN on first events. A sequence
    of more than `max_tokens` is a batch of its own; `progress` names a bar, if one is shown."""
    if not isinstance(model, MTPPModel):
        return model.log_prob(sequences)
    model = in_double(model)
    flat = EventScores(*(np.full(sequences.num_events, np.nan) for _ in EventScores._fields))
    origins = sequences.previous_times()[sequences.offsets[:-1]]
    with tqdm(
        total=sequences.num_events, unit="events", unit_scale=True, desc=progress, disable=progress is None
    ) as bar:
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


def summarize_scores(scores: EventScores) -> Row:
    """NLL and calibration of scored events, as the keys of a row."""
    scored = ~np.isnan(scores.compensator)
    rescaled = scores.compensator[scored]
    if not len(rescaled):
        raise ValueError("evaluation needs sequences of two events or more; got only single events.")
    return {
        **mean_nll(*(values[scored] for values in scores[:3])),
        "num_events": len(rescaled),
        "ks": ks_distance(rescaled),
        "qq": [round(value, 6) for value in np.quantile(rescaled, QQ_PROBABILITIES).tolist()],
    }


def ks_distance(rescaled: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of rescaled times (n,) from Exp(1), which those of the true process follow."""
    distribution = -np.expm1(-np.sort(rescaled))
    steps = np.arange(len(rescaled) + 1) / len(rescaled)
    return float(max((steps[1:] - distribution).max(), (distribution - steps[:-1]).max()))


def check_marks(name: str, model: Any, sequences: EventSequences) -> None:
    """Refuse what is no point process, and one trained on other marks than those of `sequences`."""
    if not isinstance(model, MTPPModel | Scorer):
        raise ValueError(f"{name} must be a point process; got a {type(model).__name__}. Pass the MTPP inside it.")
    if isinstance(model, MTPPModel) and (number := model.config.num_marks) != sequences.num_marks:
        got = f"the events have {sequences.num_marks}. Evaluate it on its own data"
        raise ValueError(f"model {name} knows {number} marks; {got}.")


def mean_nll(log_prob: np.ndarray, time_log_prob: np.ndarray, mark_log_prob: np.ndarray) -> Row:
    """Means over events, as the keys of a row; None where there are none."""
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
