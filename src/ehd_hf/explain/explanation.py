"""An explanation: which past events the future rests on, in words, tables and numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ..data.sequences import EventSequences
from ..data.tables import shorten
from ..data.windows import Spans, runs
from ..models.question import MARGIN, TARGETS, Question

Status = Literal["explained", "explains_nothing", "infeasible"]

# Events explain something if the future is less likely without them by this factor at least.
LEAST_FACTOR = 1.1
# Longer lists of events are cut in the text; tables hold them all.
_EVENTS_IN_TEXT = 8
# The one list of fields: what a row of many explanations holds, and its Arrow type. "time" is a number or a timestamp;
# brackets mark a list.
FIELDS: dict[str, Any] = {"seq_id": "string", "window": "int64"}
FIELDS |= dict.fromkeys(("num_history", "num_future", "num_distilled"), "int32")
FIELDS |= {"positions": ["int32"], "times": ["time"], "marks": ["string"], "scores": ["float64"]}
FIELDS |= {"future_times": ["time"], "future_marks": ["string"]}
FIELDS |= dict.fromkeys(("dppl_left", "dppl_left_time", "dppl_left_mark", "dppl_distilled", "dppl_empty"), "float64")
FIELDS |= {"dppl_strongest": "float64"}
FIELDS |= dict.fromkeys(("ds", "explained_share", "epsilon", "share"), "float64")
FIELDS |= {"asked_size": "int32", "delta": "float64", "conditioning": "string", "status": "string"}
FIELDS |= dict.fromkeys(("certified", "one_minimal", "constraint_met", "is_most_recent"), "bool")
FIELDS |= {"kind": "string", "only": ["string"], "time_unit": "string"}
# What the answers of an ensemble hold besides: in how many of its models' answers each distilled event is.
AGREEMENT: dict[str, Any] = {"agreement": ["int32"], "num_models": "int32"}


class Windows(NamedTuple):
    """W windows, the times of their flat events as the source shows them (N,), names of their sequences (W,)."""

    spans: Spans
    shown: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, events: EventSequences, spans: Spans) -> Windows:
        return cls(spans, events.shown_times(), np.fromiter(events.seq_ids, object)[spans.sequence])

    def rows(self, index: Any) -> Windows:
        """The windows at `index`, an array or a slice."""
        return Windows(self.spans.rows(index), self.shown, self.names[index])

    def compact(self) -> Windows:
        """Without the events that no window has; for windows that do not overlap."""
        where = runs(self.spans.first, self.spans.lengths)
        return self._replace(spans=self.spans.compact(), shown=self.shown[where])


NAME_LENGTH = 80  # of a mark in a sentence


class Event(NamedTuple):
    """One event as the user knows it; the history events of the highest score are distilled first. With the paper's
    distiller and refine="none" the score is P(distil)."""

    position: int  # in the window
    time: float | np.datetime64  # as the source has it
    mark: str
    score: float | None = None

    @property
    def name(self) -> str:
        """Its mark as sentences have it: in one line, and not a long one."""
        return shorten(self.mark, NAME_LENGTH)


@dataclass(frozen=True, eq=False)
class Intensity:
    """The intensity along a window, in events per `time_unit`, with and without the distilled events."""

    times: np.ndarray  # (Q,) as the source writes times; the time of an event stands twice, before and after it
    whole: np.ndarray  # (Q,) of all marks together, given every event before
    left: np.ndarray  # (Q,) the same without the distilled events
    split: int  # how many of the points lie in the history
    marks: tuple[str, ...]  # M marks of the future that have curves of their own
    whole_by_mark: np.ndarray  # (M, Q)
    left_by_mark: np.ndarray  # (M, Q)


@dataclass(frozen=True)
class Explanation:
    """Why the future happened, as far as a trained point process can say."""

    history: tuple[Event, ...]  # H_f
    future: tuple[Event, ...]  # x_o
    distill_mask: tuple[bool, ...]  # for each history event, whether it is part of the explanation H_d
    dppl_left: float  # perplexity drop without the distilled events (eq. 4): very negative if they matter
    dppl_distilled: float  # perplexity drop when only they remain: near 0 or above if they suffice
    dppl_empty: float  # perplexity drop without any history: what it explains
    dppl_left_time: float  # the part of dppl_left that the future's times lose
    dppl_left_mark: float  # and the part that its marks lose
    # What shares are of: dppl_empty, or, where the future is about as likely without any history, the perplexity drop
    # without the events whose loss hurts most.
    dppl_strongest: float | None = None
    kind: str | None = None  # the mark whose future events alone were asked about
    only: tuple[str, ...] | None = None  # the marks whose events alone may explain
    epsilon: float | None = None  # what was asked, as in `Question`
    share: float | None = None
    size: int | None = None
    delta: float | None = None
    # "explains_nothing": the future is as likely without the history, or more; "infeasible": no set that was tried
    # meets the target. H_d is then the set tried that lowers dppl most.
    status: Status = "explained"
    one_minimal: bool | None = None  # no single event can be dropped without missing the target; None: not checked
    curve: tuple[float, ...] | None = None  # dppl_left of the first 0, 1, ... events by score; None if refine="none"
    conditioning: str = "paper"
    seq_id: Any = None  # name of the sequence, if it has one
    window: int = 0  # position of the window's first event in it
    time_unit: str | None = None  # unit of numeric times, if known
    # Of an ensemble: how many models were asked, and in how many of their answers each history event is.
    num_models: int | None = None
    agreement: tuple[int, ...] | None = None
    intensity: Intensity | None = field(default=None, compare=False, repr=False)  # if asked for: intensities=True

    @property
    def distilled(self) -> tuple[Event, ...]:
        """H_d, the events that explain the future."""
        return tuple(event for event, chosen in zip(self.history, self.distill_mask, strict=True) if chosen)

    @property
    def left(self) -> tuple[Event, ...]:
        """H_l, the rest of the history."""
        return tuple(event for event, chosen in zip(self.history, self.distill_mask, strict=True) if not chosen)

    @property
    def _roles(self) -> list[str]:
        return ["distilled" if chosen else "left" for chosen in self.distill_mask] + ["future"] * len(self.future)

    @property
    def ds(self) -> float:
        """Distinguishment significance: dppl_distilled - dppl_left."""
        return self.dppl_distilled - self.dppl_left

    @property
    def question(self) -> Question:
        """What was asked."""
        return Question(**{name: getattr(self, name) for name in (*TARGETS, "delta", "conditioning")})

    @property
    def limit(self) -> float | None:
        """The highest dppl_left that was allowed; None if a size was asked for."""
        return None if self.size is not None else self.question.limit(self.whole)

    @property
    def explained_share(self) -> float | None:
        """dppl_left as a share of `whole`, at most 1; None where the history explains nothing."""
        return min(self.dppl_left / self.whole, 1.0) + 0.0 if self._explains_something else None  # + 0.0: no -0.0

    @property
    def _explains_something(self) -> bool:
        return self.whole < 0 and self.status != "explains_nothing"

    @property
    def _num_candidates(self) -> int:
        return sum(self.only is None or event.mark in self.only for event in self.history)

    @property
    def whole(self) -> float:
        """dppl_left at which all is explained: without the history, or without the strongest events found."""
        return self.dppl_empty if self.dppl_strongest is None else self.dppl_strongest

    @property
    def constraint_met(self) -> bool:
        """Whether the distilled events do what was asked for."""
        return self._meets(0.0)

    @property
    def certified(self) -> bool:
        """Whether the target is met beyond doubt: the values were evaluated for this very set, in double precision,
        and meet it with a margin of 1e-5."""
        return self.status == "explained" and self._meets(MARGIN)

    def _meets(self, margin: float) -> bool:
        if self.size is not None and (sum(self.distill_mask) != self.size or not self.dppl_left < 0):
            return False
        if self.share is not None and not self._explains_something:
            return False  # a share of nothing
        return bool(self.question.met(self.dppl_left, self.dppl_distilled, self.whole, margin))

    @property
    def is_most_recent(self) -> bool:
        """Whether the answer is the trivial one: simply the last events of the history."""
        return sorted(self.distill_mask) == list(self.distill_mask)

    def __str__(self) -> str:
        chosen, is_one = self.distilled, len(self.distilled) == 1
        where = f" in sequence {self.seq_id}" if self.seq_id is not None else ""
        the_future = "the one" if len(self.future) == 1 else f"the {len(self.future)}"
        the_future = the_future if self.kind is None else f"each {self.kind} among {the_future}"
        past = "past" if self.only is None else f"past {' or '.join(self.only)}"
        followed = listed(self.future, self.time_unit)
        if not chosen:
            opening = f"None of the {self._num_candidates} {past} events{where} was found to explain {the_future}"
            return f"{opening} that followed ({followed}).{self._caveat()}{self._agreement()}"
        explains = "explains" if is_one else "explain"
        if self.status != "explained":
            explains = "comes closest to explaining" if is_one else "come closest to explaining"
        they_are, them = ("It is", "it") if is_one else ("They are", "them")
        effect = f"{_times(abs(self.dppl_left))} {'less' if self.dppl_left <= 0 else 'more'} likely"
        recent = "simply the most recent of the history" if self.is_most_recent else "not simply the most recent"
        these, average, each = ("each of these", " on average", "each")
        if len(self.future) == 1:
            these, average, each = ("what followed", "", "what followed")
        alone = them if self.only is None else f"{them} and the events of other kinds"
        return (
            f"{len(chosen)} of {self._num_candidates} {past} events {explains} {the_future} that followed{where}: "
            f"{listed(chosen, self.time_unit)}.\n"
            f"What followed was {followed}.\n"
            f"Without {them}, {these} becomes {effect}{average} "
            f"(dppl_left {self.dppl_left:.3f}: times {self.dppl_left_time:.3f}, marks {self.dppl_left_mark:.3f}; "
            f"{self._asked()}). "
            f"From {alone} alone, {each} is {_times(self.dppl_distilled)} as likely as from the whole history "
            f"(dppl_distilled {self.dppl_distilled:.3f}). {they_are} {recent}.{self._caveat()}{self._agreement()}"
        )

    def _asked(self) -> str:
        """ "asked: at most -0.512, 70 % of what the whole history explains, met"."""
        limit = self.limit if self._explains_something or self.share is None else None
        whole = ["the whole history explains", "the strongest events found explain"][self._is_of_strongest]
        delta = "" if self.delta is None else f", and dppl_distilled at least {-self.delta:.3f}"
        return f"asked: {self.question.words(limit, whole)}{delta}, {'met' if self.constraint_met else 'not met'}"

    @property
    def _is_of_strongest(self) -> bool:
        return self.share is not None and self.whole < min(self.dppl_empty, 0)

    def _caveat(self) -> str:
        """What was checked, or why the target could not be met, and what was not looked at."""
        texts = []
        if self.status == "explains_nothing":
            these = "what followed" if len(self.future) == 1 else "each of these"
            is_likelier = self.dppl_empty > MARGIN
            without = f"becomes {_times(self.dppl_empty)} more likely" if is_likelier else "stays as likely"
            found = f"and no events were found without which it is {LEAST_FACTOR:g} times less so"
            texts.append(f"The history explains nothing here: without all of it, {these} {without}, {found}.")
        elif self._is_of_strongest:
            likelier = "likelier" if self.dppl_empty > MARGIN else "about as likely"
            texts.append(f"Without any history this would be {likelier}: shares are of the strongest events found.")
        if self.status == "infeasible" and self.curve is None:
            texts.append(
                'This set, the only one tried, misses the target; refine="prune" looks for one that meets it.'
            )
        elif self.status == "infeasible" and self.size is not None and self.dppl_left >= 0:
            texts.append("No set of this size that was tried makes it less likely; this one comes closest.")
        elif self.status == "infeasible":
            texts.append("No set of events that was tried meets the target; this one comes closest.")
        elif self.certified and self.size is None:
            spared = ", and not one of them can be spared" if self.one_minimal else ""
            texts.append(f"Certified: the future was scored again without these events{spared}.")
        tried = self._num_candidates if self.curve is None else len(self.curve) - 1
        if tried < self._num_candidates:
            texts.append(f"Only the {tried} events of most weight were tried.")
        if self.window and (self.status == "explains_nothing" or any(self.distill_mask[: len(self.history) // 5])):
            texts.append(unseen(self.window))
        return "".join(f"\n{text}" for text in texts)

    def _agreement(self) -> str:
        """ "All 3 models name deploy at 3.2 h; 1 of 3 names ticket at 5 h.": how much depends on the model."""
        if self.num_models is None or self.agreement is None:
            return ""
        named = "; ".join(self._named_by(self.distilled, 1))
        besides = "; ".join(self._named_by(self.left, self.num_models // 2 + 1))
        texts = [f"{named[0].upper()}{named[1:]}."] if named else []
        texts += [f"Not in this answer: {besides}."] if besides else []
        return f"\n{' '.join(texts)}" if texts else ""

    def _named_by(self, events: tuple[Event, ...], fewest: int) -> Iterator[str]:
        """ "2 of 3 name ticket at 5 h": for each number of models, from `fewest` on, the events that so many name."""
        assert self.num_models is not None and self.agreement is not None
        for count in range(self.num_models, fewest - 1, -1):
            if group := tuple(event for event in events if self.agreement[event.position] == count):
                is_all = len(group) > 1 and group == self.distilled
                which = "each of these" if is_all else listed(group, self.time_unit)
                who = f"{count} of {self.num_models} name{'s' * (count == 1)}"
                yield f"{f'all {count} models name' if count == self.num_models else who} {which}"

    def tradeoff(self) -> pd.DataFrame:
        """How much is explained by how few: one row per size, `dppl_left` and `explained_share` of the first events in
        the order of their scores."""
        if self.curve is None:
            raise ValueError('This explanation has no order of events. Ask for one with refine="prefix" or "prune".')
        curve = np.array(self.curve)
        share = np.minimum(curve / self.whole, 1.0) + 0.0 if self._explains_something else np.full(len(curve), np.nan)
        return pd.DataFrame({"size": np.arange(len(curve)), "dppl_left": curve, "explained_share": share})

    def plot(self, *, title: str | None = None, mark: str | None = None, theme: Any = "light") -> Any:
        """The window as a figure of matplotlib, with a `theme` light or dark: events by mark, the intensity of `mark`
        or of all marks (the scores, if no intensities were asked for), and the trade-off if there is one."""
        from ..present.picture import explanation_plot  # matplotlib takes a while to import

        return explanation_plot(self, title, mark=mark, theme=theme)

    def to_frame(self) -> pd.DataFrame:
        """One row per event of the window: position, time, mark, role (distilled, left or future), score; agreement,
        if there is an ensemble."""
        frame = pd.DataFrame(list(self.history + self.future), columns=list(Event._fields))
        frame.insert(3, "role", self._roles)
        if self.agreement is None:
            return frame
        return frame.assign(agreement=pd.array([*self.agreement, *[None] * len(self.future)], dtype="Int32"))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; timestamps as ISO strings. The events take the place of the
        lists of `to_row`."""
        row = {name: value for name, value in self.to_row().items() if not isinstance(value, list)}
        events: dict[str, list[dict[str, Any]]] = {"distilled": [], "left": [], "future": []}
        for event, role in zip(self.history + self.future, self._roles, strict=True):
            is_timestamp = isinstance(event.time, np.datetime64)
            values = {**event._asdict(), "time": str(event.time) if is_timestamp else float(event.time)}
            if self.agreement is not None and role != "future":
                values["agreement"] = self.agreement[event.position]
            events[role].append(values)
        curve = None if self.curve is None else list(self.curve)
        return {"seq_id": row.pop("seq_id"), **events, **row, "curve": curve}

    def to_html(self, *, title: str | None = None) -> str:
        """An interactive page that needs no network: `Path("why.html").write_text(explanation.to_html(), "utf-8")`."""
        from ..present.pages import explanation_page

        return explanation_page(self, title)

    def _repr_html_(self) -> str:
        """A picture and the text, for notebooks."""
        from ..present.pages import fragment

        return fragment(self)

    def to_json(self, **options: Any) -> str:
        return json.dumps(self.to_dict(), default=str, **options)

    def to_row(self) -> dict[str, Any]:
        """One flat row with the columns `FIELDS`, for an ensemble `AGREEMENT` too: the distilled events in parallel
        lists, the numbers."""
        chosen, fields = self.distilled, FIELDS if self.agreement is None else FIELDS | AGREEMENT
        row: dict[str, Any] = {"seq_id": self.seq_id.item() if isinstance(self.seq_id, np.generic) else self.seq_id}
        row |= {f"num_{part}": len(getattr(self, part)) for part in ("history", "future", "distilled")}
        row |= {f"{name}s": [getattr(event, name) for event in chosen] for name in Event._fields}
        row |= {f"future_{name}s": [getattr(event, name) for event in self.future] for name in ("time", "mark")}
        row |= {"asked_size": self.size}
        if self.agreement is not None:
            row["agreement"] = [self.agreement[event.position] for event in chosen]
        return {name: row[name] if name in row else getattr(self, name) for name in fields}


def explanations_to_frame(
    explanations: Iterable[Explanation], per: Literal["explanation", "event"] = "explanation"
) -> pd.DataFrame:
    """Many explanations as one table: a row for each, as `Explanation.to_row` gives it; or, per "event", a row for
    each event of each window, with `seq_id` and the number of the explanation."""
    if per not in ("explanation", "event"):
        raise ValueError(f"per must be explanation or event; got {per!r}.")
    if per == "explanation":
        return pd.DataFrame([explanation.to_row() for explanation in explanations])
    frames = [one.to_frame().assign(explanation=number, seq_id=one.seq_id) for number, one in enumerate(explanations)]
    columns = ["explanation", "seq_id", "position", "time", "mark", "role", "score"]
    columns += [name for name in frames[0] if name in AGREEMENT] if frames else []
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def unseen(number: int) -> str:
    """Said where the oldest events of a window matter, or none does, and others came before it."""
    return f"The window may be too short: {number:,} earlier events were not looked at. A longer history shows more."


def listed(events: tuple[Event, ...], unit: str | None) -> str:
    """ "deploy at 3.2 h, alert at 5 h and 4 more"."""
    # Where a source has only dates, midnights would pretend to know the time of day.
    shown = [time_text(event.time, unit) for event in events]
    if all(text.endswith(" 00:00:00") for text in shown):
        shown = [text.removesuffix(" 00:00:00") for text in shown]
    named = [f"{event.name} at {text}" for event, text in zip(events, shown, strict=True)]
    if len(named) > _EVENTS_IN_TEXT:
        named = [*named[: _EVENTS_IN_TEXT - 1], f"{len(named) - _EVENTS_IN_TEXT + 1} more"]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _times(log_factor: float) -> str:
    """ "4.48 times", "1.1e+13 times": a factor given by its logarithm, however extreme."""
    if abs(log_factor) < math.log(1e4):
        return f"{math.exp(log_factor):.2f} times"
    if math.isnan(log_factor):
        return "an unknown number of times"
    if math.isinf(log_factor):
        return "infinitely many times" if log_factor > 0 else "0 times"
    tens, rest = divmod(log_factor / math.log(10), 1)
    return f"{10**rest:.1f}e{int(tens):+d} times"


def time_text(time: float | np.datetime64, unit: str | None) -> str:
    if isinstance(time, np.datetime64):
        return str(time.astype("datetime64[s]")).replace("T", " ")
    # Units such as "1e6 s" read as a factor, not as a number followed by another.
    suffix = "" if unit is None else f" {unit}" if unit.isalpha() else f" x {unit}"
    return f"{time:.6g}{suffix}"
