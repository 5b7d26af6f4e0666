"""How good a point process is: NLL and calibration, as flat rows that carry what repeats them.

Processes are scored on whole sequences (first event excluded), trivial baselines on the same events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences
from ..data.windows import ends, runs
from ..models.point_process import MTPPModel, in_double
from .baselines import EventScores, TrivialBaseline, fit_gaps, fit_marks, gaps_of, is_scored

Row = dict[str, Any]

OURS = "this model"  # what rows and tables call the model that is judged
# Nats per event by which a point process must beat a trivial model to count as one that knows more.
SMALLEST_GAIN = 0.02
MAX_TOKENS = 2**16  # events per batch, padding included: some tens of MB at the usual widths
QQ_PROBABILITIES = np.arange(1, 100) / 100


@runtime_checkable
class Scorer(Protocol):
    """What scores events itself, such as a fitted `TrivialBaseline`."""

    def log_prob(self, sequences: EventSequences) -> EventScores: ...


def trivial_baselines(
    test: EventSequences, train: EventSequences | None = None, validation: EventSequences | None = None
) -> dict[str, TrivialBaseline]:
    """Baselines to score `test`, by name: Poisson + unigram; Gamma + bigram; and, perhaps one of these, the best pair
    of a gap model and a mark model, which has `chosen_from`. Best are the likeliest on `validation`, without it on
    `train` itself; where three digits agree, the simpler ones. None at all if no interval is positive.

    Without `train` they are fitted to `test`, which flatters them: of gaps they know a handful of parameters, while
    each mark is predicted as if it had not been there."""
    left_out, train = int(train is None), test if train is None else train
    smallest, gaps = fit_gaps(train)
    if not gaps:
        return {}
    marks, held_out, skipped = fit_marks(train), train, 1
    if validation is not None and is_scored(validation).any():
        held_out, skipped = validation, 0
    scored, intervals = is_scored(held_out), gaps_of(held_out, smallest)
    gap_nlls = {name: -float(model.scores(intervals)[0][scored].mean()) for name, model in gaps.items()}
    likelihoods = ((name, model.probabilities(held_out, skipped)[scored]) for name, model in marks.items())
    mark_nlls = {name: -float(np.log(values).mean()) for name, values in likelihoods}
    best = tuple(min(nlls, key=lambda name: round(nlls[name], 3)) for nlls in (gap_nlls, mark_nlls))
    fitted = {}
    for gap, mark in [("Poisson", "unigram"), ("Gamma", "bigram"), best]:
        if gap in gaps:
            compared = gap_nlls | mark_nlls if (gap, mark) == best else None
            parts = (gaps[gap], marks[mark], train.num_marks, smallest, left_out, compared)
            fitted[f"{gap} + {mark}"] = TrivialBaseline(f"{gap} + {mark}", *parts)
    return fitted


class Standing(NamedTuple):
    """A point process beside the best trivial model."""

    best: Mapping[str, Any]
    gain: float  # nats per event that the process needs less
    words: str  # the same of times and marks apart, in a sentence; empty if the process does not tell them apart

    @property
    def good(self) -> bool:
        return self.gain > SMALLEST_GAIN


def compare_with_trivial(own: Mapping[str, Any], trivial: Sequence[Mapping[str, Any]]) -> Standing | None:
    """How the row of a process stands beside rows of `trivial_baselines` on the same events, if there are any. Among
    rows of which none was chosen on validation the best is the one of the least NLL."""
    if not trivial:
        return None
    best = min(trivial, key=lambda row: (not row.get("chosen_from"), row["nll"]))
    plainest = next((row for row in trivial if row["model"] == "Poisson + unigram"), best)
    parts = []
    names = best["model"].split(" + ")
    for what, plain, name in zip(("time", "mark"), ("a constant rate", "their frequency"), names, strict=True):
        key = f"{what}_nll"
        if own.get(key) is None:
            return Standing(best, best["nll"] - own["nll"], "")
        gain, rival = best[key] - own[key], f"the best trivial model ({name})"
        if what == "mark" and plainest[key] < SMALLEST_GAIN:
            continue  # of one kind: there is nothing to predict
        if not plainest[key] - own[key] > SMALLEST_GAIN:
            parts.append(f"{what}s no better than by {plain}")
        elif gain > SMALLEST_GAIN:
            parts.append(f"{what}s {math.exp(gain):.2f} times as well as by {rival}")
        else:
            no_better = "no better" if gain > -SMALLEST_GAIN else "worse"
            parts.append(f"{what}s better than by {plain}, but {no_better} than by {rival}")
    words = "; ".join(parts).replace(" ", " are predicted ", 1)
    return Standing(best, best["nll"] - own["nll"], f"{words[0].upper()}{words[1:]}.")


def evaluate_mtpp(
    models: Mapping[str, MTPPModel | Scorer], sequences: EventSequences, *, progress: bool = False, **stamp: Any
) -> Iterator[Row]:
    """One row for each of `models`, by name, all scored on the same events; with what else each row says, `stamp`.

    Keys: `nll`, `time_nll`, `mark_nll` (nats per event, first events excluded; None if a model does not tell times
    from marks), `num_events`; `ks` (distance of the rescaled times from Exp(1)) and `qq` (99 quantiles of them).
    `num_tied` counts scored intervals of 0: there densities are unbounded and NLLs arbitrary, so jitter the times if
    they are more than a few. `chosen_from`, of the best trivial model: what it was chosen from, and its NLL there.
    """
    for name, model in models.items():
        check_marks(name, model, sequences)
    num_tied = int((sequences.intervals()[is_scored(sequences)] == 0).sum())
    for name, model in models.items():
        began = time.perf_counter()
        scores = score_events(model, sequences, progress=name if progress else None)
        row: Row = {"task": "mtpp", **stamp, "pair": stamp.get("pair"), "model": name, **summarize_scores(scores)}
        if isinstance(model, TrivialBaseline) and model.chosen_from:
            row["chosen_from"] = dict(model.chosen_from)
        yield row | {"num_tied": num_tied, "seconds": round(time.perf_counter() - began, 2), "version": __version__}


@torch.no_grad()
def score_events(
    model: MTPPModel | Scorer, sequences: EventSequences, *, max_tokens: int = MAX_TOKENS, progress: str | None = None
) -> EventScores:
    """Log-likelihood and compensator of every event given all before it, each (N,); NaN on first events and on those
    of context marks: the silence before these belongs to the next event. A sequence of more than `max_tokens` is a
    batch of its own; `progress` names a bar, if one is shown."""
    if not isinstance(model, MTPPModel):
        return model.log_prob(sequences)
    model, total = in_double(model), sequences.num_events
    flat = EventScores(*(np.full(total, np.nan) for _ in EventScores._fields))
    spans = ends(sequences, sequences.lengths, 0)  # all events as the future, so that all padding is behind
    with tqdm(desc=progress, total=total, unit="events", unit_scale=True, disable=progress is None) as bar:
        for rows in _length_buckets(sequences.lengths, max_tokens):
            part = spans.rows(rows)
            times, marks, mask, _ = part.tensors(model.device)
            output = model.event_log_prob(times, marks, mask)
            where = runs(part.first, part.lengths)
            for values, field in zip(flat, EventScores._fields, strict=True):
                values[where] = output[field][mask].cpu().numpy()
            bar.update(len(where))
    predicted = np.flatnonzero(~model.is_context(torch.from_numpy(sequences.marks)).numpy())
    owner = np.searchsorted(sequences.offsets, predicted, side="right")
    later = np.append(False, np.diff(owner) == 0)  # than the first of its sequence
    scores = EventScores(*(np.full(total, np.nan) for _ in flat))
    for values, folded in zip(flat, scores, strict=True):
        if len(predicted):
            begins = np.append(0, predicted[:-1] + 1)
            folded[predicted[later]] = np.add.reduceat(values[: predicted[-1] + 1], begins)[later]
    return scores


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
