"""The report of a data set: how good the point process is, what the explanations say together, and each to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.sequences import EventSequences
from ..evaluation.scores import Standing, compare_with_trivial, evaluate_mtpp, trivial_baselines
from ..evaluation.statistics import mark_shares
from ..explain.explainer import EHDDistiller
from ..explain.explanation import Explanation
from ..files import write_text
from .pages import STATUSES, TITLE, list_entry, page_data, plain_number, render_page
from .tables import Column, shorten

# Enough for two digits of a likelihood; whole sequences are drawn until there are so many.
MAX_SCORED_EVENTS = 50_000
OURS = "this model"
_PROCESS_COLUMNS = [
    Column("model", "model"),
    Column("nll", "NLL"),
    Column("time_nll", "time"),
    Column("mark_nll", "mark"),
    Column("ks", "KS"),
    Column("num_events", "events", ",d"),
]
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
# Values beyond which the report warns.
_MOSTLY_RECENT, _FAR_FROM_CALIBRATED, _OFTEN_MISSED, _FEW_EVENTS = 0.8, 0.1, 0.2, 300

Row = dict[str, Any]


class Windows(NamedTuple):
    """W windows cut from sequences."""

    stretches: EventSequences  # one sequence each, with one event before the window where there is one
    sequence: np.ndarray  # (W,) which it was cut from
    first: np.ndarray  # (W,) position of its first event there
    end: np.ndarray  # (W,) and behind its last
    num_possible: int  # windows that could have been drawn


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
        question: future, history, epsilon, share, size, delta, refine and progress as in `explain`.
    """
    if max_explanations < 1:
        raise ValueError(f"max_explanations must be at least 1; got {max_explanations}.")
    sequences = explainer.load(events)
    future, history = explainer.window_size(question.pop("future", None), question.pop("history", None))
    history = int(sequences.lengths.max()) if history is None else history
    windows = draw_windows(sequences, future, history, max_explanations, seed)
    answers: Any = explainer.explain(windows.stretches, future=future, history=history, intensities=True, **question)
    explanations: list[Explanation] = answers if isinstance(answers, list) else [answers]
    if sequences.seq_ids == (0,):  # numbered by us: a name that says nothing
        explanations = [replace(one, seq_id=None) for one in explanations]
    judged, *fitted = (None if part is None else explainer.load(part) for part in (test, train, validation))
    rows, process_note = judge_process(explainer, sequences if judged is None else judged, seed, *fitted)
    if judged is not None:
        process_note = f"{process_note} The model was not trained on these."
    name, out = type(explainer.model).__name__, Path(out)
    write_text(out, report_html(sequences, windows, explanations, rows, process_note, title=title, model=name))
    return out


def draw_windows(sequences: EventSequences, future: int, history: int, size: int, seed: int = 0) -> Windows:
    """A fixed-seed draw of `size` windows without replacement, in order; all if there are fewer. A sequence has a
    window for every event that can be the last of one with a whole history; a shorter one has one."""
    lengths = sequences.lengths
    counts = np.where(lengths > future, np.maximum(lengths - future - history, 0) + 1, 0)
    if not counts.any():
        got = f"the longest of {len(sequences)} has {lengths.max()}. Ask for a shorter future"
        raise ValueError(f"a report needs sequences longer than the future of {future} events; {got}.")
    total, ends = int(counts.sum()), np.cumsum(counts)
    chosen = np.arange(total)
    if total > size:
        chosen = np.sort(np.random.default_rng(seed).choice(total, size, replace=False, shuffle=False))
    sequence = np.searchsorted(ends, chosen, side="right")
    end = np.minimum(lengths[sequence], future + history) + chosen - (ends - counts)[sequence]
    first = np.maximum(end - future - history, 0)
    before = np.maximum(first - 1, 0)  # the event whose time is the window's origin
    return Windows(sequences.select(sequence, before, end), sequence, first, end, total)


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
    note = f"Scored on {scored.num_events:,} events of {_count(len(scored), 'sequence')}."
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
    `is_most_recent`, `met`, `certified`, `nothing` (shares of windows); `median` and `quartiles` of the size;
    `num_history` (the longest).
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
    summary, conditioning = summarize(explanations, windows.sequence, marks), explanations[0].conditioning
    shares = sorted(
        summary["mark_shares"], key=lambda row: (row["num_events"] < _SELDOM, row["expected"] - row["share"])
    )
    often = [row for row in shares if row["num_events"] >= _SELDOM] or shares
    half = _MOST_MARKS // 2
    shown = often if len(often) <= _MOST_MARKS else [*often[:half], *often[-half:]]  # the most and the least preferred
    data = page_data(explanations, marks, _places(windows, sequences, explanations))
    windows_shown: list[Row] = data["explanations"]
    data["calibration"] = [
        {"model": row["model"], "qq": row["qq"], "series": 2 if row["model"] == OURS else min(number, 1)}
        for number, row in enumerate([*mtpp_rows[:1], *mtpp_rows[1:][-2:]])  # the simplest, the best trivial one, ours
    ]
    data |= {"sizes": summary["sizes"], "reach": summary["reach"]}
    data["shares"] = [{key: plain_number(row[key]) for key in _SHARE_KEYS} for row in shown]
    kinds = {kind for one in windows_shown for kind in one["kinds"]}
    used = {one["marks"][event] for one in windows_shown for event in one["distilled"]}
    others = f" {len(shown)} of {len(shares)} marks: the others, in the middle or seldom, are only in the table."
    return render_page(
        "report.html.j2",
        title or TITLE,
        data,
        about=(
            f"{_count(sequences.num_events, 'event')} of {_count(sequences.num_marks, 'kind')} in "
            f"{_count(len(sequences), 'sequence')}. Model: {model}. Asked of every explanation: "
            f"{_asked(explanations[0])}. Conditioning of the first future event: {conditioning}."
        ),
        facts=_facts(summary, windows, mtpp_rows),
        notes=_notes(summary, mtpp_rows, conditioning),
        mtpp_rows=mtpp_rows,
        mtpp_columns=_PROCESS_COLUMNS,
        ours=OURS,
        process_note=process_note,
        calibration_alt="Quantiles of rescaled times. KS distance from Exp(1): "
        + "; ".join(f"{row['model']} {row['ks']:.3f}" for row in mtpp_rows),
        sizes_alt=_sizes_alt(summary["sizes"]),
        reach_alt=_reach_alt(summary["reach"]["share"]),
        marks_alt=f"Shares of {len(shown)} marks' events that are distilled; the table beside it holds the numbers.",
        summary_note=_drawn(windows, explanations),
        mark_rows=shares,
        mark_columns=_MARK_COLUMNS,
        marks_note="Preferred most on top; with 95 % intervals over sequences, and corrected for the number of marks."
        + (others if len(shown) < len(shares) else ""),
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


# --- words


def _places(windows: Windows, sequences: EventSequences, explanations: Sequence[Explanation]) -> list[tuple[str, str]]:
    """Name of each explanation, and where its window lies in its sequence."""
    columns = zip((windows.first + 1).tolist(), windows.end.tolist(), sequences.lengths[windows.sequence], strict=True)
    where = [f"events {first:,} to {end:,} of {length:,}" for first, end, length in columns]
    return [
        (f"E{place[1:]}", "") if one.seq_id is None else (f"Sequence {one.seq_id}", place)
        for one, place in zip(explanations, where, strict=True)
    ]


def _asked(explanation: Explanation) -> str:
    target = explanation.question.effect
    if explanation.delta is None:
        return target
    return f"{target}; alone, it predicts almost as well as the whole history (delta {explanation.delta:g})"


def _facts(summary: Row, windows: Windows, rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Name, value and comment of the figures at the top."""
    (low, high), nothing, longest = summary["quartiles"], summary["nothing"], summary["num_history"]
    half = f"; half between {low:g} and {high:g}" if low < high else ""
    empty = f"; {nothing:.0%} with a history that explains nothing" if nothing else ""
    possible = f"of {windows.num_possible:,} possible, in {_count(len(np.unique(windows.sequence)), 'sequence')}"
    facts = [
        ("Windows explained", f"{len(windows.end):,}", possible),
        ("Events in an explanation", f"{summary['median']:g}", f"median, of {longest} past events{half}"),
        ("Target met", f"{summary['met']:.0%}", f"of windows; certified {summary['certified']:.0%}{empty}"),
    ]
    if summary["last_share"] is not None:
        recent = f"of the distilled events; {summary['is_most_recent']:.0%} of answers are just the last ones"
        facts.append(("Among the most recent", f"{summary['last_share']:.0%}", recent))
    if rows:
        ours, standing = _standing(rows)
        more = "nats per event" + (f"; best trivial model {standing.best['nll']:.3f}" if standing else "")
        facts.append(("Point process, NLL", f"{ours['nll']:.3f}", more))
    return facts


def _notes(summary: Row, rows: Sequence[Row], conditioning: str) -> list[tuple[bool, str]]:
    """What a reader should know before believing anything: whether it is a caution, and its text."""
    notes = _process_notes(rows) if rows else []
    recent, missed = summary["last_share"], 1 - summary["met"]
    if recent is not None and recent > _MOSTLY_RECENT:
        text = f"{recent:.0%} of the distilled events are among the most recent. Such explanations say little more "
        silence = " Survival conditioning takes the silence before the future out of account."
        notes.append((True, f"{text}than what happened last.{silence if conditioning == 'paper' else ''}"))
    if missed > _OFTEN_MISSED:
        text = f"in {missed:.0%} of the windows the target was not met; these answers only come closest."
        notes.append((True, text))
    preferred = [row for row in summary["mark_shares"] if row["significant"] and row["share"] > row["expected"]]
    if preferred:
        preferred.sort(key=lambda row: row["expected"] - row["share"])
        named = (f"{row['label']} ({row['share']:.0%} against {row['expected']:.0%})" for row in preferred[:3])
        notes.append((False, f"distilled more often than by chance: {', '.join(named)}."))
    return notes


def _process_notes(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    ours, standing = _standing(rows)
    if ours["num_events"] < _FEW_EVENTS:
        few = f"with {_count(ours['num_events'], 'event')} to predict there are too few to judge the point process by."
        return [(True, f"{few} Its model card or its training says how good it was on more of them.")]
    notes = []
    if standing is not None and not standing.good:
        trivial = f"a trivial model, {standing.best['model']}. {standing.words}".rstrip()
        little = "Its explanations then say little about these events."
        notes.append((True, f"the point process predicts no better than {trivial} {little}"))
    elif standing is not None:
        better = f"the point process beats the best trivial model by {standing.gain:.3f} nats per event"
        notes.append((False, f"{better}. {standing.words}".rstrip()))
    if ours["ks"] > _FAR_FROM_CALIBRATED:
        text = f"its times are poorly calibrated here (KS {ours['ks']:.2f}). "
        notes.append((True, f"{text}Are these events of the kind and in the unit of time that it was trained on?"))
    return notes


def _standing(rows: Sequence[Row]) -> tuple[Row, Standing | None]:
    ours = next(row for row in rows if row["model"] == OURS)
    return ours, compare_with_trivial(ours, [row for row in rows if row is not ours])


def _drawn(windows: Windows, explanations: Sequence[Explanation]) -> str:
    lengths = sorted({len(one.history) for one in explanations})
    history = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    future = _count(len(explanations[0].future), "event")
    drawn = "all" if len(explanations) == windows.num_possible else "drawn at random"
    shown = f"{_count(len(explanations), 'window')}, {drawn}: {history} past events and the {future} that followed."
    return f"{shown} Chance means as many events of each window, drawn at random."


def _sizes_alt(sizes: Sequence[float]) -> str:
    median = int(np.searchsorted(np.cumsum(sizes), 0.5))
    largest = int(np.max(np.flatnonzero(sizes), initial=0))
    return f"Distribution of the number of distilled events: median {median}, at most {largest}."


def _reach_alt(share: Sequence[float]) -> str:
    places = sorted({0, min(4, len(share) - 1), min(9, len(share) - 1)})
    parts = ", ".join(f"{share[place]:.0%} of the {place + 1}. last event" for place in places)
    return f"Share of windows that distil an event by how far back it lies: {parts}."


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
