"""The report of a data set: how good the point process is, what the explanations say together, and each to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sequences import EventSequences
from ..data.tables import shorten
from ..data.windows import Spans, sampled
from ..evaluation.scores import OURS, compare_with_trivial, evaluate_mtpp, trivial_baselines
from ..evaluation.statistics import mark_shares
from ..explain.explainer import EHDDistiller
from ..explain.explanation import Explanation, Windows
from ..files import write_text
from ..models.window import most_recent
from .pages import STATUSES, TITLE, list_entry, page_data, plain_number, render_page
from .tables import PROCESS_COLUMNS, Column, number_of

# Enough for two digits of a likelihood; whole sequences are drawn until there are so many.
MAX_SCORED_EVENTS = 50_000
_MARK_COLUMNS = [
    Column("label", "mark"),
    Column("num_events", "events", ",d"),
    Column("share", "distilled", ".1%"),
    Column("expected", "at random", ".1%"),
    Column("recency", "as last events", ".1%"),
    Column("p_holm", "p", ".2g"),
]
_SHARE_KEYS = ("label", "share", "expected", "recency", "low", "high", "significant")
_SELDOM, _MOST_MARKS = 10, 24  # events of a mark below which its share says nothing; marks in the chart

Row = dict[str, Any]


def write_report(
    explainer: EHDDistiller,
    events: Any,
    out: str | Path,
    *,
    title: str | None = None,
    max_explanations: int = 200,
    test: Any = None,
    train: Any = None,
    validation: Any = None,
    seed: int = 0,
    **question: Any,
) -> Path:
    """Write one HTML file that anyone can open, without a network; returns its path.

    Args:
        explainer: explains, and its point process is judged.
        events: in any form `explain` takes. A sequence shorter than a window is one window of all it has.
        out: the file; folders above it are made.
        max_explanations: windows that are drawn from the events, explained, summarised and shown.
        test: events to judge the point process by, those it was not trained on; by default all that are reported on.
        train: events to fit the trivial baselines on; by default those it is judged by.
        validation: events to choose the best of them on; by default `train`.
        question: future, history, progress and what is asked as in `explain`.
    """
    if max_explanations < 1:
        raise ValueError(f"max_explanations must be at least 1; got {max_explanations}.")
    sequences = explainer.load(events)
    future, history = explainer.window_size(question.pop("future", None), question.pop("history", None))
    history = int(sequences.lengths.max()) if history is None else history
    spans, num_possible = draw_windows(sequences, future, history, max_explanations, seed)
    shown: dict[str, Any] = {"intensities": True, "progress": question.pop("progress", None)}
    asked = explainer.question(**question)
    explanations = explainer.explain_windows(Windows.of(sequences, spans), asked, **shown)
    if sequences.seq_ids == (0,):  # numbered by us: a name that says nothing
        explanations = [replace(one, seq_id=None) for one in explanations]
    judged, *fitted = (None if part is None else explainer.load(part) for part in (test, train, validation))
    rows, process_note = judge_process(explainer, sequences if judged is None else judged, seed, *fitted)
    if judged is not None:
        process_note = f"{process_note} The model was not trained on these."
    name, out = type(explainer.model).__name__, Path(out)
    parts = (sequences, spans, num_possible, explanations, rows, process_note)
    write_text(out, report_html(*parts, title=title, model=name))
    return out


def draw_windows(sequences: EventSequences, future: int, history: int, size: int, seed: int = 0) -> tuple[Spans, int]:
    """A fixed-seed draw of `size` windows without replacement, in order, and how many there are; all if there are
    fewer. A sequence has a window for every event that can be the last of one with a whole history; a shorter one has
    one."""
    lengths = sequences.lengths
    counts = np.where(lengths > future, np.maximum(lengths - future - history, 0) + 1, 0)
    if not counts.any():
        got = f"the longest of {len(sequences)} has {lengths.max()}. Ask for a shorter future"
        raise ValueError(f"a report needs sequences longer than the future of {future} events; {got}.")
    total, ends = int(counts.sum()), np.cumsum(counts)
    chosen = sampled(total, size, seed)
    sequence = np.searchsorted(ends, chosen, side="right")
    end = np.minimum(lengths[sequence], future + history) + chosen - (ends - counts)[sequence]
    offset = np.maximum(end - future - history, 0)
    first = sequences.offsets[sequence] + offset
    columns = (first, end - offset, np.full(len(end), future), sequences.previous_times()[first], sequence, offset)
    return Spans(sequences.times, sequences.marks, *columns), total


def judge_process(
    explainer: EHDDistiller,
    sequences: EventSequences,
    seed: int = 0,
    train: EventSequences | None = None,
    validation: EventSequences | None = None,
) -> tuple[list[Row], str]:
    """Rows of trivial baselines and of the explainer's point process on the same events, and what they were computed
    on; no rows if there are not two events in a sequence."""
    scored = _enough_events(sequences, seed)
    if not (scored.lengths > 1).any():
        return [], ""
    models: dict[str, Any] = dict(trivial_baselines(sequences, train, validation))
    rows = list(evaluate_mtpp({**models, OURS: explainer.mtpp}, scored))
    note = f"Scored on {scored.num_events:,} events of {number_of(len(scored), 'sequence')}."
    if len(scored) < len(sequences):
        note = f"Scored on {scored.num_events:,} events, {len(scored):,} of {len(sequences):,} sequences."
    if models and train is None:
        note += " The trivial models were fitted to these very events, which flatters them."
    if rows[0]["num_tied"]:
        note += f" {rows[0]['num_tied']:,} events share their time with the one before; their likelihood says little."
    return rows, note


def summarize(explanations: Sequence[Explanation], groups: Iterable[Any], marks: Sequence[str]) -> Row:
    """What explanations of windows in the sequences `groups` say together; `marks` are all, in the model's order.

    Keys: `sizes` (share of windows that distil 0, 1, ... events); `reach` (`share` of windows that distil the last,
    the last but one, ... event, and `recent`, that share had as many of the last been distilled); `mark_shares` (rows
    of `statistics.mark_shares`); `last_share` (of the distilled events, how many are among the last k);
    `is_most_recent`, `met`, `certified`, `nothing` (shares of windows); `median`, `quartiles` and the `largest` of the
    sizes; `num_history` (the longest).
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
    recent = most_recent(history, sizes)
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
        "largest": int(sizes.max()),
        "num_history": longest,
    }


def report_html(
    sequences: EventSequences,
    windows: Spans,
    num_possible: int,
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
    own = next((row for row in mtpp_rows if row["model"] == OURS), None)
    shares = sorted(
        summary["mark_shares"], key=lambda row: (row["num_events"] < _SELDOM, row["expected"] - row["share"])
    )
    often = [row for row in shares if row["num_events"] >= _SELDOM] or shares
    half = _MOST_MARKS // 2
    shown = often if len(often) <= _MOST_MARKS else [*often[:half], *often[-half:]]  # the most and the least preferred
    preferred = [row for row in shares if row["significant"] and row["share"] > row["expected"]]
    data = page_data(explanations, marks, _places(windows, sequences, explanations))
    windows_shown: list[Row] = data["explanations"]
    data["calibration"] = [
        {"model": row["model"], "qq": row["qq"], "series": 2 if row is own else min(number, 1)}
        for number, row in enumerate([*mtpp_rows[:1], *mtpp_rows[1:][-2:]])  # the simplest, the best trivial one, ours
    ]
    data |= {"sizes": summary["sizes"], "reach": summary["reach"]}
    data["shares"] = [{key: plain_number(row[key]) for key in _SHARE_KEYS} for row in shown]
    kinds = {kind for one in windows_shown for kind in one["kinds"]}
    used = {one["marks"][event] for one in windows_shown for event in one["distilled"]}
    lengths, longest = [len(one.history) for one in explanations], summary["num_history"]
    return render_page(
        "report.html.j2",
        title or TITLE,
        data,
        sequences=sequences,
        model=model,
        first=explanations[0],
        summary=summary,
        num_possible=num_possible,
        num_sequences=len(np.unique(windows.sequence)),
        history=" to ".join(map(str, sorted({min(lengths), longest}))),
        reach_places=sorted({min(place, longest - 1) for place in (0, 4, 9)}),
        preferred=sorted(preferred, key=lambda row: row["expected"] - row["share"])[:3],
        mtpp_rows=mtpp_rows,
        mtpp_columns=[*PROCESS_COLUMNS, Column("num_events", "events", ",d")],
        own=own,
        standing=own and compare_with_trivial(own, [row for row in mtpp_rows if row is not own]),
        process_note=process_note,
        mark_rows=shares,
        mark_columns=_MARK_COLUMNS,
        num_shown=len(shown),
        statuses=[(kind, words) for kind, words in STATUSES.items() if kind in kinds],
        mark_options=[(number, shorten(mark, 60)) for number, mark in enumerate(marks) if number in used],
        explanations=[list_entry(one) for one in windows_shown],
    )


def _enough_events(sequences: EventSequences, seed: int) -> EventSequences:
    """Whole sequences, drawn until they have enough events to be scored."""
    if sequences.num_events <= MAX_SCORED_EVENTS:
        return sequences
    order = np.random.default_rng(seed).permutation(len(sequences))
    enough = int(np.searchsorted(np.cumsum(sequences.lengths[order]), MAX_SCORED_EVENTS)) + 1
    return sequences.select(np.sort(order[:enough]))


def _places(windows: Spans, sequences: EventSequences, explanations: Sequence[Explanation]) -> list[tuple[str, str]]:
    """Name of each explanation, and where its window lies in its sequence."""
    columns = zip(windows.offset, windows.offset + windows.lengths, sequences.lengths[windows.sequence], strict=True)
    where = [f"events {before + 1:,} to {end:,} of {length:,}" for before, end, length in columns]
    return [
        (f"E{place[1:]}", "") if one.seq_id is None else (f"Sequence {one.seq_id}", place)
        for one, place in zip(explanations, where, strict=True)
    ]
