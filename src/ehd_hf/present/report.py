"""The report of a data set: how good the point process is, what the explanations say together, and each to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.sequences import EventSequences
from ..evaluation.scores import evaluate_mtpp, trivial_baselines
from ..evaluation.statistics import mark_shares
from ..explain.explainer import EHDDistiller
from ..explain.explanation import Explanation
from ..files import write_text
from .pages import ReportContent, report_page
from .tables import MTPP_COLUMNS, Column

# How many past events are looked at if neither the caller nor the model says.
HISTORY = 40
# Enough for two digits of a likelihood; whole sequences are drawn until there are so many.
MAX_SCORED_EVENTS = 50_000
OURS = "this model"
MARK_COLUMNS = [
    Column("label", "mark"),
    Column("num_events", "events", ",d"),
    Column("share", "distilled", ".1%"),
    Column("expected", "at random", ".1%"),
    Column("recency", "as last events", ".1%"),
    Column("p_holm", "p", ".2g"),
]
# Figures that call for a word of caution.
_MOSTLY_RECENT, _FAR_FROM_CALIBRATED, _OFTEN_MISSED, _FEW_EVENTS = 0.8, 0.1, 0.2, 300

Row = dict[str, Any]


class Windows(NamedTuple):
    """Windows cut from sequences: `stretches`, one sequence each, with one event before the window where there is one;
    (W,) arrays: the sequence of each, position of its first and behind its last event there; and the number of windows
    that could have been drawn."""

    stretches: EventSequences
    sequence: np.ndarray
    first: np.ndarray
    end: np.ndarray
    num_possible: int


def write_report(
    explainer: EHDDistiller,
    events: Any,
    out: str | Path,
    *,
    title: str | None = None,
    max_explanations: int = 200,
    future: int | None = None,
    history: int | None = None,
    test: Any = None,
    train: Any = None,
    seed: int = 0,
    progress: bool | None = None,
    **question: Any,
) -> Path:
    """Write one HTML file that anyone can open, without a network; returns its path.

    Args:
        explainer: explains, and its point process is judged.
        events: in any form `explain` takes.
        out: the file; folders above it are made.
        title: of the page.
        max_explanations: windows that are drawn from the events, explained, summarised and shown.
        future, history: events of a window; by default what the distiller was trained on, 40 of the history for an
            MTPP alone. A shorter sequence is one window of all it has.
        test: events to judge the point process by, those it was not trained on; by default all that are reported on.
        train: events to fit the trivial baselines on; by default those it is judged by.
        seed: of the draw of windows.
        progress: show a bar while explaining.
        question: epsilon, share, size, delta and refine as in `explain`.
    """
    sequences = explainer.load(events)
    future = explainer.future if future is None else future
    history = getattr(explainer.model.config, "history", HISTORY) if history is None else history
    if future is None:
        raise ValueError("Say how many events a window's future has: an MTPP alone does not know. Pass future=5.")
    if max_explanations < 1:
        raise ValueError(f"max_explanations must be at least 1; got {max_explanations}.")
    windows = draw_windows(sequences, future, history, max_explanations, seed)
    answers: Any = explainer.explain(
        windows.stretches, future=future, history=history, intensities=True, progress=progress, **question
    )
    explanations: list[Explanation] = answers if isinstance(answers, list) else [answers]
    if sequences.seq_ids == (0,):  # numbered by us: a name that says nothing
        explanations = [replace(one, seq_id=None) for one in explanations]
    judged, fitted = (None if part is None else explainer.load(part) for part in (test, train))
    rows, process_note = judge_process(explainer, sequences if judged is None else judged, fitted, seed)
    if judged is not None:
        process_note = f"{process_note} The model was not trained on these."
    name = type(explainer.model).__name__
    text = report_html(sequences, windows, explanations, rows, process_note, title=title, model=name)
    out = Path(out)
    write_text(out, text)
    return out


def draw_windows(sequences: EventSequences, future: int, history: int, size: int, seed: int = 0) -> Windows:
    """A fixed-seed draw of `size` windows without replacement, in order; all if there are fewer.

    A sequence has a window for every event that can be the last of one with a whole history; a shorter one has one.
    """
    for name, value in (("future", future), ("history", history)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a number of events of at least 1; got {value!r}.")
    lengths = sequences.lengths
    counts = np.where(lengths > future, np.maximum(lengths - future - history, 0) + 1, 0)
    if not counts.any():
        raise ValueError(
            f"a report needs sequences longer than the future of {future} events; the longest of {len(sequences)} has "
            f"{lengths.max()}. Ask for a shorter future."
        )
    total, ends = int(counts.sum()), np.cumsum(counts)
    chosen = np.arange(total)
    if total > size:
        chosen = np.sort(np.random.default_rng(seed).choice(total, size, replace=False, shuffle=False))
    sequence = np.searchsorted(ends, chosen, side="right")
    end = np.minimum(lengths[sequence], future + history) + chosen - (ends - counts)[sequence]
    first = np.maximum(end - future - history, 0)
    before = np.maximum(first - 1, 0)  # the event whose time is the window's origin
    offsets = sequences.offsets[sequence]
    pieces = [np.arange(a, b) for a, b in zip(offsets + before, offsets + end, strict=True)]
    where = np.concatenate(pieces)
    stretches = replace(
        sequences,
        times=sequences.times[where],
        marks=sequences.marks[where],
        offsets=np.concatenate([[0], np.cumsum(end - before)]),
        seq_ids=tuple(sequences.seq_ids[index] for index in sequence),
        starts=np.where(before == 0, sequences.starts[sequence], np.nan),
        epochs=None if sequences.epochs is None else sequences.epochs[sequence],
    )
    return Windows(stretches, sequence, first, end, total)


def judge_process(
    explainer: EHDDistiller, sequences: EventSequences, train: EventSequences | None = None, seed: int = 0
) -> tuple[list[Row], str]:
    """Rows of trivial baselines and of the explainer's point process on the same events, and what they were computed
    on; no rows if there are not two events in a sequence."""
    scored = _enough_events(sequences, seed)
    if not (scored.lengths > 1).any():
        return [], ""
    models: dict[str, Any] = dict(trivial_baselines(sequences if train is None else train))
    rows = list(evaluate_mtpp({**models, OURS: explainer.mtpp}, scored))
    note = f"Scored on {scored.num_events:,} events of {_count(len(scored), 'sequence')}."
    if len(scored) < len(sequences):
        note = f"Scored on {scored.num_events:,} events, {len(scored):,} of {len(sequences):,} sequences."
    if models and train is None:
        note += " The trivial models were fitted to these very events, which flatters them."
    if rows[0]["num_tied"]:
        note += f" {rows[0]['num_tied']:,} events share their time with the one before; their likelihood says little."
    return rows, note


def summarize(explanations: Sequence[Explanation], groups: Iterable[Any], marks: Sequence[str]) -> Row:
    """What explanations say together.

    Keys: `sizes` (share of windows that distil 0, 1, ... events); `reach` (`share` of windows that distil the last,
    the last but one, ... event, and `recent`, that share had as many of the last been distilled); `mark_shares` (rows
    of `analysis.mark_shares`); `last_share` (of the distilled events, how many are among the last k);
    `is_most_recent`, `met`, `certified`, `nothing` (shares of windows); `median` and `quartiles` of the size;
    `num_history` (the longest).

    Args:
        groups: the sequence of each window: windows of one sequence are no independent draws.
        marks: names of all marks, in the model's order.
    """
    longest = max(len(one.history) for one in explanations)
    shape = (len(explanations), longest)
    chosen, history, mark_of = np.zeros(shape, bool), np.zeros(shape, bool), np.full(shape, -1)
    number = {mark: index for index, mark in enumerate(marks)}
    for row, one in enumerate(explanations):
        columns = slice(longest - len(one.history), longest)  # the last event of every history in the last column
        chosen[row, columns], history[row, columns] = one.distill_mask, True
        mark_of[row, columns] = [number[event.mark] for event in one.history]
    sizes = chosen.sum(1)
    recent = np.arange(longest) >= longest - sizes[:, None]
    in_window = np.maximum(history.sum(0), 1)[::-1]
    return {
        "sizes": (np.bincount(sizes, minlength=longest + 1) / len(sizes)).round(5).tolist(),
        "reach": {
            "share": (chosen.sum(0)[::-1] / in_window).round(5).tolist(),
            "recent": (recent.sum(0)[::-1] / in_window).round(5).tolist(),
        },
        "mark_shares": mark_shares(chosen, mark_of, np.asarray(list(groups)), dict(enumerate(marks)), history=history),
        "last_share": float((chosen & recent).sum() / sizes.sum()) if sizes.any() else None,
        "is_most_recent": float(np.mean([one.is_most_recent for one in explanations])),
        "met": float(np.mean([one.constraint_met for one in explanations])),
        "certified": float(np.mean([one.certified for one in explanations])),
        "nothing": float(np.mean([one.status == "explains_nothing" for one in explanations])),
        "median": float(np.median(sizes)),
        "quartiles": [float(value) for value in np.quantile(sizes, [0.25, 0.75])],
        "num_history": longest,
    }


def report_html(
    sequences: EventSequences,
    windows: Windows,
    explanations: Sequence[Explanation],
    mtpp_rows: Sequence[Row] = (),
    process_note: str = "",
    *,
    title: str | None = None,
    model: str = "not named",
) -> str:
    """The text of the page, of what `draw_windows`, `explain` and `judge_process` gave; `model` is its name."""
    marks = [sequences.id2label[mark] for mark in range(sequences.num_marks)]
    summary = summarize(explanations, windows.sequence, marks)
    one, asked = explanations[0], _asked(explanations[0])
    kinds = ("model", "nll", "time_nll", "mark_nll", "ks", "num_events")
    content = ReportContent(
        explanations=explanations,
        places=[_place(windows, sequences, explanation, row) for row, explanation in enumerate(explanations)],
        title=title or "Which past events explain what followed?",
        about=(
            f"{_count(sequences.num_events, 'event')} of {_count(sequences.num_marks, 'kind')} in "
            f"{_count(len(sequences), 'sequence')}. Model: {model}. Asked of every "
            f"explanation: {asked}. Conditioning of the first future event: {one.conditioning}."
        ),
        marks=marks,
        facts=_facts(summary, windows, explanations, mtpp_rows),
        notes=_notes(summary, mtpp_rows, one.conditioning),
        mtpp_rows=mtpp_rows,
        mtpp_columns=[column for column in MTPP_COLUMNS if column.key in kinds],
        process_note=process_note,
        summary=summary,
        summary_note=_drawn(windows, explanations),
        mark_columns=MARK_COLUMNS,
        ours=OURS,
    )
    return report_page(content)


def _enough_events(sequences: EventSequences, seed: int) -> EventSequences:
    """Whole sequences, drawn until they have enough events to be scored."""
    if sequences.num_events <= MAX_SCORED_EVENTS:
        return sequences
    order = np.random.default_rng(seed).permutation(len(sequences))
    enough = int(np.searchsorted(np.cumsum(sequences.lengths[order]), MAX_SCORED_EVENTS)) + 1
    return sequences.select(np.sort(order[:enough]))


def _place(windows: Windows, sequences: EventSequences, explanation: Explanation, row: int) -> dict[str, str]:
    first, end = int(windows.first[row]) + 1, int(windows.end[row])
    length = int(sequences.lengths[windows.sequence[row]])
    where = f"events {first:,} to {end:,} of {length:,}"
    if explanation.seq_id is None:
        return {"name": where[0].upper() + where[1:], "where": ""}
    return {"name": f"Sequence {explanation.seq_id}", "where": where}


def _asked(explanation: Explanation) -> str:
    if explanation.size is not None:
        target = _count(explanation.size, "event")
    elif explanation.epsilon is not None:
        target = f"without it, each future event is less than {explanation.epsilon:g} times as likely on average"
    else:
        target = f"without it, {explanation.share:.0%} of what the whole history explains is lost"
    if explanation.delta is None:
        return target
    return f"{target}; alone, it predicts almost as well as the whole history (delta {explanation.delta:g})"


def _facts(summary: Row, windows: Windows, explanations: Sequence[Explanation], rows: Sequence[Row]) -> list[Row]:
    low, high = summary["quartiles"]
    facts = [
        {
            "name": "Windows explained",
            "value": f"{len(explanations):,}",
            "more": f"of {windows.num_possible:,} possible, in {_count(len(np.unique(windows.sequence)), 'sequence')}",
        },
        {
            "name": "Events in an explanation",
            "value": f"{summary['median']:g}",
            "more": f"median, of {summary['num_history']} past events"
            + (f"; half between {low:g} and {high:g}" if low < high else ""),
        },
        {
            "name": "Target met",
            "value": f"{summary['met']:.0%}",
            "more": f"of windows; certified {summary['certified']:.0%}"
            + (f"; {summary['nothing']:.0%} with a history that explains nothing" if summary["nothing"] else ""),
        },
    ]
    if summary["last_share"] is not None:
        facts.append(
            {
                "name": "Among the most recent",
                "value": f"{summary['last_share']:.0%}",
                "more": f"of the distilled events; {summary['is_most_recent']:.0%} of answers are just the last ones",
            }
        )
    if rows:
        ours, best = _ours_and_best(rows)
        more = "nats per event" if best is None else f"nats per event; best trivial model {best['nll']:.3f}"
        facts.append({"name": "Point process, NLL", "value": f"{ours['nll']:.3f}", "more": more})
    return facts


def _notes(summary: Row, rows: Sequence[Row], conditioning: str) -> list[Row]:
    """What a reader should know before believing anything, in words."""
    notes = []
    if rows:
        ours, best = _ours_and_best(rows)
        if ours["num_events"] < _FEW_EVENTS:
            text = (
                f"with {_count(ours['num_events'], 'event')} to predict there are too few to judge the point process "
                "by. Its model card or its training says how good it was on more of them."
            )
            notes.append({"caution": True, "text": text})
        elif best is not None and ours["nll"] >= best["nll"]:
            text = (
                f"the point process predicts no better than {best['model']}, which knows next to nothing of the "
                "history. Its explanations then say little about these events."
            )
            notes.append({"caution": True, "text": text})
        elif best is not None:
            gain = best["nll"] - ours["nll"]
            text = f"the point process beats the best trivial model by {gain:.3f} nats per event."
            notes.append({"caution": False, "text": text})
        if ours["ks"] > _FAR_FROM_CALIBRATED and ours["num_events"] >= _FEW_EVENTS:
            text = (
                f"its times are poorly calibrated here (KS {ours['ks']:.2f}). Are these events of the kind and in the "
                "unit of time that it was trained on?"
            )
            notes.append({"caution": True, "text": text})
    recent = summary["last_share"]
    if recent is not None and recent > _MOSTLY_RECENT:
        text = (
            f"{recent:.0%} of the distilled events are among the most recent. Such explanations say little more than "
            "what happened last."
        )
        if conditioning == "paper":
            text += " Survival conditioning takes the silence before the future out of account."
        notes.append({"caution": True, "text": text})
    if 1 - summary["met"] > _OFTEN_MISSED:
        text = f"in {1 - summary['met']:.0%} of the windows the target was not met; these answers only come closest."
        notes.append({"caution": True, "text": text})
    preferred = [row for row in summary["mark_shares"] if row["significant"] and row["share"] > row["expected"]]
    preferred.sort(key=lambda row: row["expected"] - row["share"])
    if preferred:
        named = ", ".join(
            f"{row['label']} ({row['share']:.0%} against {row['expected']:.0%})" for row in preferred[:3]
        )
        notes.append({"caution": False, "text": f"distilled more often than by chance: {named}."})
    return notes


def _ours_and_best(rows: Sequence[Row]) -> tuple[Row, Row | None]:
    trivial = [row for row in rows if row["model"] != OURS]
    ours = next(row for row in rows if row["model"] == OURS)
    return ours, min(trivial, key=lambda row: row["nll"]) if trivial else None


def _drawn(windows: Windows, explanations: Sequence[Explanation]) -> str:
    lengths = sorted({len(one.history) for one in explanations})
    history = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    future = _count(len(explanations[0].future), "event")
    drawn = "all" if len(explanations) == windows.num_possible else "drawn at random"
    return (
        f"{_count(len(explanations), 'window')}, {drawn}: {history} past events and the {future} that followed. "
        "Chance means as many events of each window, drawn at random."
    )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
