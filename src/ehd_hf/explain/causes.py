"""Why did one event happen? The probability of each event before it to be the cause, by deleting each alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..models.point_process import MTPPModel
from ..models.window import Window
from .explanation import Event, Windows, time_text, unseen

# Causes below that are not worth a sentence, and at most so many are.
_WORTH_TELLING, _MOST_TOLD = 0.05, 3
_NO_PART = 0.01
# More than that of its shares are rounding's where single precision has lost digits of an interval.
_LOST_DIGITS = 1e-3


class Causes(NamedTuple):
    """Of B events, how much of the intensity each of the L events before it carries; 0 on padding."""

    probability: Tensor  # (B, L) p_j, negative where an event held the target back
    p_none: Tensor  # (B,) nothing in the history
    now: Tensor  # (B, L) the same share of the intensity of all marks: why just then
    kind: Tensor  # (B, L) and of the mark's share in that: why this kind


def cause_probabilities(mtpp: MTPPModel, window: Window) -> Causes:
    """The causes of the one future event of each window.

    p_j is 1 - lambda_m(t | H without j) / lambda_m(t | H), lambda_m the intensity of the event's own mark just before
    it: the attributable fraction, and for a Hawkes process exactly the posterior probability that j is the parent.
    Where the positive ones sum to more than 1 they are scaled to 1; what they leave is `p_none`.
    """
    if window.num_future != 1:
        raise ValueError(f"causes are of one event; got windows of {window.num_future} future events. Pass one.")
    observed, total = mtpp.leave_one_out(window.times, window.marks, window.mask)
    logs = (observed, total, observed - total)
    shares = (-torch.expm1(values[:, 1:] - values[:, :1]) for values in logs)
    share, now, kind = (values.masked_fill(~window.history, 0.0) for values in shares)
    return Causes(*_scaled(share), now, kind)


def _scaled(share: Tensor) -> tuple[Tensor, Tensor]:
    """Shares (B, L) as probabilities, those above 0 of a sum of at most 1, and what they leave (B,)."""
    carried = share.clamp(min=0).sum(1)
    probability = torch.where(share > 0, share / carried.clamp(min=1)[:, None], share)
    return probability, (1 - carried).clamp(min=0)


def needs_double(window: Window) -> Tensor:
    """(B,) whether single precision would lose digits of an interval that matter, as times far apart do."""
    exact = window.times.diff(dim=1)
    lost = (window.times.float().diff(dim=1).double() - exact).abs()
    return ((lost > _LOST_DIGITS * exact) & window.mask[:, 1:] & window.mask[:, :-1] & (exact > 0)).any(1)


@dataclass(frozen=True)
class Why:
    """Why one event happened, as far as a trained point process can say."""

    event: Event  # `position` in its sequence
    # What came before it and was looked at; `score` is the probability to be the cause, negative for what held it
    # back.
    history: tuple[Event, ...]
    p_none: float  # the probability that nothing in the history is
    now: tuple[float, ...]  # share of each in something happening just then
    kind: tuple[float, ...]  # and in its being of this kind
    seq_id: Any = None
    time_unit: str | None = None
    # Of an ensemble: what each of its models says, (M, L) and (M,).
    by_model: tuple[tuple[float, ...], ...] | None = None
    p_none_by_model: tuple[float, ...] | None = None

    @property
    def probability(self) -> tuple[float, ...]:
        """Of each event of the history to be the cause; negative for those that held the target back."""
        return tuple(map(_value, self.history))

    @property
    def causes(self) -> tuple[Event, ...]:
        """The events that raised it, the likeliest first."""
        return tuple(sorted((one for one in self.history if _value(one) > 0), key=_value, reverse=True))

    @property
    def against(self) -> tuple[Event, ...]:
        """The events that held it back, the strongest first."""
        return tuple(sorted((one for one in self.history if _value(one) < 0), key=_value))

    def __str__(self) -> str:
        what = f"{self.event.name} at {time_text(self.event.time, self.time_unit)}"
        if not self.history:
            return f"{what} is the first event of its sequence: there is no history that could have caused it."
        told = [one for one in self.causes if _value(one) >= _WORTH_TELLING][:_MOST_TOLD]
        before = "the only event" if len(self.history) == 1 else f"the {len(self.history)} events"
        nothing = f"nothing in {before} before it"
        if not told or self.p_none > _value(told[0]):
            likeliest = f" Of these, {self._named(told)} comes first." if told else ""
            first = f"{what} most likely came by itself ({_percent(self.p_none)}: {nothing}).{likeliest}"
        else:
            rest = sum(map(_value, self.causes)) - sum(map(_value, told))
            others = f"{_percent(rest)}: other events. " if rest >= _WORTH_TELLING else ""
            none = f"{_percent(self.p_none).capitalize()}: {nothing}."
            first = f"{what} was most likely set off by {self._named(told)}. {others}{none}"
            if abs(_value(self.history[-1])) < _NO_PART and self.history[-1] not in told:
                first += f" The event right before it, {self.history[-1].name}, had no part in it."
        return " ".join([first, *self._details()])

    def _named(self, events: Sequence[Event]) -> str:
        """ "the alert at 18:51 (61%) or the deploy at 17:35 (22%)": times of a day as short as they tell apart."""
        clocks = [_clock(event.time, self.event.time, "s") for event in (*events, self.event)]
        minutes = [_clock(event.time, self.event.time, "m") for event in (*events, self.event)]
        clocks = minutes if len(set(minutes)) == len(minutes) else clocks
        texts = []
        for event, clock in zip(events, clocks, strict=False):
            at_once = "at the same time" if self._lag(event) == 0 else f"{self._lag_text(event)} before"
            when = f"at {clock}" if clock and self._lag(event) > 0 else at_once
            texts.append(f"the {event.name} {when} ({_percent(_value(event))})")
        return ", ".join(texts[:-1]) + (" or " if texts[1:] else "") + texts[-1]

    def _details(self) -> list[str]:
        """What held it back, how many models agree, and what was not looked at."""
        texts = []
        if (held := self.against[:1]) and _value(held[0]) < -_WORTH_TELLING:
            factor = f"{1 - _value(held[0]):.2f} times less likely"
            texts.append(f"The {held[0].name} {self._lag_text(held[0])} before made it {factor}.")
        if self.by_model is not None and self.p_none_by_model is not None:
            firsts = [_first(each, none) for each, none in zip(self.by_model, self.p_none_by_model, strict=True)]
            same = firsts.count(_first(self.probability, self.p_none))
            texts.append(f"{same} of {len(firsts)} models put this first.")
        oldest = sum(max(share, 0.0) for share in self.probability[: len(self.history) // 5])
        if (earlier := self.history[0].position) and oldest > _WORTH_TELLING:
            texts.append(unseen(earlier))
        return texts

    def _lag(self, event: Event) -> float:
        lag: Any = self.event.time - event.time  # type: ignore[operator]
        return lag / np.timedelta64(1, "s") if isinstance(lag, np.timedelta64) else float(lag)

    def _lag_text(self, event: Event) -> str:
        if isinstance(self.event.time, np.datetime64):
            return _duration(self._lag(event))
        return time_text(self._lag(event), self.time_unit)

    def to_frame(self) -> pd.DataFrame:
        """One row per event of the history: `event` (its position in the sequence), time, mark, lag, probability
        (negative for what held the target back), now, kind; of an ensemble also the lowest and highest probability."""
        lags: Any = [self.event.time - one.time for one in self.history]  # type: ignore[operator]
        columns: dict[str, Any] = {
            "event": [one.position for one in self.history],
            "time": [one.time for one in self.history],
            "mark": [one.mark for one in self.history],
            "lag": lags,
            "probability": self.probability,
            "now": self.now,
            "kind": self.kind,
        }
        if self.by_model is not None:
            each = np.array(self.by_model).reshape(len(self.by_model), -1)
            columns |= {"lowest": each.min(0), "highest": each.max(0)}
        return pd.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; timestamps as ISO strings."""
        frame = self.to_frame()
        frame[["time", "lag"]] = frame[["time", "lag"]].map(_plain)
        event = {"event": self.event.position, "time": _plain(self.event.time), "mark": self.event.mark}
        seq_id = self.seq_id.item() if isinstance(self.seq_id, np.generic) else self.seq_id
        return {"seq_id": seq_id, "event": event, "causes": frame.to_dict("records"), "p_none": self.p_none}

    def plot(self, *, title: str | None = None, theme: Any = "light") -> Any:
        """The history as a figure of matplotlib, an arrow from each cause to the event, as thick as it is probable."""
        from ..present.picture import why_plot  # matplotlib takes a while to import

        return why_plot(self, title, theme=theme)

    def to_html(self, *, title: str | None = None) -> str:
        """A page that needs no network: the sentence, and the event with arrows from its causes on a time line."""
        from ..present.log_page import why_page

        return why_page(self, title)

    def _repr_html_(self) -> str:
        """The sentence and the picture, for notebooks."""
        from ..present.pages import fragment

        return fragment(self)


def whys(windows: Windows, answers: list[Causes], config: Any) -> Iterator[Why]:
    """The answers for windows of one future event: those of one model, or the mean over the members of an ensemble."""
    spans = windows.spans
    share, _, now, kind = (torch.stack(parts).mean(0) for parts in zip(*answers, strict=True))
    mean = Causes(*_scaled(share), now, kind)
    for row, name in enumerate(windows.names):
        where = slice(spans.first[row], spans.first[row] + spans.lengths[row])
        labels = [config.id2label[mark] for mark in spans.marks[where].tolist()]
        places = range(int(spans.offset[row]), int(spans.offset[row]) + len(labels))
        events = [Event(*event) for event in zip(places, windows.shown[where], labels, strict=True)]
        size = len(events) - 1
        probability, *parts = (_last(values, row, size) for values in (mean.probability, mean.now, mean.kind))
        pairs = zip(events, probability, strict=False)
        several = len(answers) > 1
        yield Why(
            event=events[-1],
            history=tuple(event._replace(score=value) for event, value in pairs),
            p_none=float(mean.p_none[row]),
            now=parts[0],
            kind=parts[1],
            seq_id=name,
            time_unit=config.time_unit,
            by_model=tuple(_last(each.probability, row, size) for each in answers) if several else None,
            p_none_by_model=tuple(float(each.p_none[row]) for each in answers) if several else None,
        )


def _last(values: Tensor, row: int, size: int) -> tuple[float, ...]:
    """The last `size` numbers of a row: padding stands before the history."""
    return tuple(values[row, values.shape[1] - size :].tolist())


def _value(event: Event) -> float:
    return event.score or 0.0


def _first(probability: Sequence[float], p_none: float) -> int | None:
    """The place of the likeliest cause; None where nothing is likelier."""
    best = max(range(len(probability)), key=probability.__getitem__)
    return best if probability[best] >= p_none else None


def _percent(share: float) -> str:
    return f"{share:.0%}" if 0.005 <= share < 0.995 or share in (0, 1) else "below 1%" if share < 0.5 else "above 99%"


def _plain(value: Any) -> Any:
    """A time or a lag as JSON takes it: timestamps in ISO form, timedeltas in seconds."""
    if isinstance(value, pd.Timedelta | np.timedelta64):
        return float(value / np.timedelta64(1, "s"))
    is_timestamp = isinstance(value, pd.Timestamp | np.datetime64)
    return str(np.datetime64(value)) if is_timestamp else float(value)


def _duration(seconds: float) -> str:
    """ "25 min", "3.2 h": in the unit that suits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s"


def _clock(time: Any, target: Any, unit: Any) -> str:
    """A timestamp by its minute or second, without the day where that is the target's; "" where times are numbers."""
    if not isinstance(time, np.datetime64):
        return ""
    day, clock = str(np.datetime_as_string(time, unit=unit)).split("T")
    return clock if day == np.datetime_as_string(target, unit="D") else f"{day} {clock}"
