"""An explanation: which past events the future rests on, in words, tables and numbers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

# Longer lists of events are cut in the text; tables hold them all.
_EVENTS_IN_TEXT = 8


class Event(NamedTuple):
    """One event as the user knows it: its position in the window, its time (a number, or a moment if the source gave
    timestamps), its mark's name, and P(distil) for a history event (None for a future one)."""

    position: int
    time: float | np.datetime64
    mark: str
    probability: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Why the future happened, as far as a trained point process can say.

    Args:
        history, future: events of H_f and x_o.
        distill_mask: for each history event, whether it is part of the explanation H_d.
        dppl_left: perplexity drop when the distilled events are removed (eq. 4): very negative if they matter.
        dppl_distilled: perplexity drop when only they remain: near 0 or above if they suffice.
        epsilon: the constraint asked for: dppl_left < log(epsilon).
        conditioning: how the first future event was conditioned, "paper" or "survival".
        seq_id: name of the sequence, if it had one.
        time_unit: unit of numeric times, if known.
    """

    history: tuple[Event, ...]
    future: tuple[Event, ...]
    distill_mask: tuple[bool, ...]
    dppl_left: float
    dppl_distilled: float
    epsilon: float
    conditioning: str = "paper"
    seq_id: Any = None
    time_unit: str | None = None

    @property
    def distilled(self) -> tuple[Event, ...]:
        """H_d, the events that explain the future."""
        return tuple(event for event, chosen in zip(self.history, self.distill_mask, strict=True) if chosen)

    @property
    def left(self) -> tuple[Event, ...]:
        """H_l, the rest of the history."""
        return tuple(event for event, chosen in zip(self.history, self.distill_mask, strict=True) if not chosen)

    @property
    def ds(self) -> float:
        """Distinguishment significance: dppl_distilled - dppl_left."""
        return self.dppl_distilled - self.dppl_left

    @property
    def constraint_met(self) -> bool:
        """Whether removing the distilled events makes the future as unlikely as asked: dppl_left < log(epsilon)."""
        return self.dppl_left < math.log(self.epsilon)

    @property
    def is_most_recent(self) -> bool:
        """Whether the answer is the trivial one: simply the last events of the history."""
        size = sum(self.distill_mask)
        return all(self.distill_mask[len(self.distill_mask) - size :])

    def __str__(self) -> str:
        chosen, total = self.distilled, len(self.history)
        where = f" of sequence {self.seq_id}" if self.seq_id is not None else ""
        if not chosen:
            return (
                f"None of the {total} past events{where} was found to explain the {len(self.future)} that followed "
                f"({_listed(self.future, self.time_unit)})."
            )
        explains = "explains" if len(chosen) == 1 else "explain"
        they, them = ("it", "it") if len(chosen) == 1 else ("they", "them")
        effect = f"{_times(abs(self.dppl_left))} {'less' if self.dppl_left <= 0 else 'more'} likely"
        met = "met" if self.constraint_met else "not met"
        recent = (
            f"{they.capitalize()} {'is' if len(chosen) == 1 else 'are'} simply the most recent of the history."
            if self.is_most_recent
            else f"{they.capitalize()} {'is' if len(chosen) == 1 else 'are'} not simply the most recent."
        )
        return (
            f"{len(chosen)} of {total} past events {explains} the {len(self.future)} that followed{where}: "
            f"{_listed(chosen, self.time_unit)}.\n"
            f"What followed was {_listed(self.future, self.time_unit)}.\n"
            f"Without {them}, each of these becomes {effect} on average "
            f"(dppl_left {self.dppl_left:.3f}; asked: below {math.log(self.epsilon):.3f}, {met}). "
            f"From {them} alone, each is {_times(self.dppl_distilled)} as likely as from the whole history "
            f"(dppl_distilled {self.dppl_distilled:.3f}). {recent}"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per event of the window: position, time, mark, role (distilled, left or future), probability."""
        roles = ["distilled" if chosen else "left" for chosen in self.distill_mask] + ["future"] * len(self.future)
        frame = pd.DataFrame(list(self.history + self.future), columns=list(Event._fields))
        frame.insert(3, "role", roles)
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; moments as ISO strings."""

        def plain(event: Event) -> dict[str, Any]:
            moment = isinstance(event.time, np.datetime64)
            return {**event._asdict(), "time": str(event.time) if moment else float(event.time)}

        return {
            "seq_id": self.seq_id.item() if isinstance(self.seq_id, np.generic) else self.seq_id,
            "distilled": [plain(event) for event in self.distilled],
            "left": [plain(event) for event in self.left],
            "future": [plain(event) for event in self.future],
            "dppl_left": self.dppl_left,
            "dppl_distilled": self.dppl_distilled,
            "ds": self.ds,
            "epsilon": self.epsilon,
            "conditioning": self.conditioning,
            "constraint_met": self.constraint_met,
            "is_most_recent": self.is_most_recent,
            "time_unit": self.time_unit,
        }

    def to_json(self, **options: Any) -> str:
        return json.dumps(self.to_dict(), default=str, **options)


def _listed(events: tuple[Event, ...], unit: str | None) -> str:
    """ "deploy at 3.2 h, alert at 5 h and 4 more"."""
    named = [f"{event.mark} at {_time(event.time, unit)}" for event in events]
    if len(named) > _EVENTS_IN_TEXT:
        named = [*named[: _EVENTS_IN_TEXT - 1], f"{len(named) - _EVENTS_IN_TEXT + 1} more"]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _times(log_factor: float) -> str:
    """ "4.48 times", "1.1e+13 times": a factor given by its logarithm, however extreme."""
    if abs(log_factor) < math.log(1e4):
        return f"{math.exp(log_factor):.2f} times"
    if math.isinf(log_factor):
        return "infinitely many times" if log_factor > 0 else "0 times"
    tens, rest = divmod(log_factor / math.log(10), 1)
    return f"{10**rest:.1f}e{int(tens):+d} times"


def _time(time: float | np.datetime64, unit: str | None) -> str:
    if isinstance(time, np.datetime64):
        return str(time.astype("datetime64[s]")).replace("T", " ")
    # Units such as "1e6 s" read as a factor, not as a number followed by another.
    suffix = "" if unit is None else f" {unit}" if unit.isalpha() else f" x {unit}"
    return f"{time:.6g}{suffix}"
