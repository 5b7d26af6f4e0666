"""An explanation: which past events the future rests on, in words, tables and numbers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

Status = Literal["explained", "explains_nothing", "infeasible"]

# How clearly a target must be met to count as certified: more than rounding can undo.
MARGIN = 1e-5
# Longer lists of events are cut in the text; tables hold them all.
_EVENTS_IN_TEXT = 8


class Event(NamedTuple):
    """One event as the user knows it: its position in the window, its time (a number, or a moment if the source gave
    timestamps), its mark's name, and the score of a history event (None for a future one): the highest in a window are
    distilled first. With the paper's distiller and refine="none" it is P(distil)."""

    position: int
    time: float | np.datetime64
    mark: str
    score: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Why the future happened, as far as a trained point process can say.

    The target is one of `epsilon`, `share` and `size`.

    Args:
        history, future: events of H_f and x_o.
        distill_mask: for each history event, whether it is part of the explanation H_d.
        dppl_left: perplexity drop when the distilled events are removed (eq. 4): very negative if they matter.
        dppl_distilled: perplexity drop when only they remain: near 0 or above if they suffice.
        dppl_empty: perplexity drop when the whole history is removed: what it explains.
        dppl_left_time, dppl_left_mark: the parts of dppl_left that the future's times and its marks lose.
        epsilon: asked for: dppl_left < log(epsilon).
        share: asked for: dppl_left <= share * dppl_empty.
        size: asked for: so many events.
        delta: asked for besides: dppl_distilled >= -delta.
        status: "explained"; "explains_nothing" (the future is as likely without the history, or more) or "infeasible"
            (no set that was tried meets the target): H_d is then the set tried that lowers dppl most.
        one_minimal: no single event can be dropped from it without missing the target; None if that was not checked.
        curve: dppl_left when the first 0, 1, ... events in the order of their scores are distilled, if there is one.
        conditioning: how the first future event was conditioned, "paper" or "survival".
        seq_id: name of the sequence, if it had one.
        time_unit: unit of numeric times, if known.
    """

    history: tuple[Event, ...]
    future: tuple[Event, ...]
    distill_mask: tuple[bool, ...]
    dppl_left: float
    dppl_distilled: float
    dppl_empty: float
    dppl_left_time: float
    dppl_left_mark: float
    epsilon: float | None = None
    share: float | None = None
    size: int | None = None
    delta: float | None = None
    status: Status = "explained"
    one_minimal: bool | None = None
    curve: tuple[float, ...] | None = None
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
    def limit(self) -> float | None:
        """What dppl_left was asked not to exceed; None if a size was asked for."""
        if self.epsilon is not None:
            return math.log(self.epsilon)
        return None if self.share is None else self.share * self.dppl_empty

    @property
    def explained_share(self) -> float | None:
        """dppl_left as a share of what the whole history explains; None where that explains nothing."""
        return self.dppl_left / self.dppl_empty if self.dppl_empty < 0 else None

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
        if self.size is not None and sum(self.distill_mask) != self.size:
            return False
        if self.delta is not None and not self.dppl_distilled >= margin - self.delta:
            return False
        if self.limit is None:
            return True
        # An epsilon is to be undercut, a share to be reached.
        within = self.limit - margin
        return self.dppl_left < within if self.epsilon is not None else self.dppl_left <= within

    @property
    def is_most_recent(self) -> bool:
        """Whether the answer is the trivial one: simply the last events of the history."""
        size = sum(self.distill_mask)
        return all(self.distill_mask[len(self.distill_mask) - size :])

    def __str__(self) -> str:
        chosen, total = self.distilled, len(self.history)
        where = f" of sequence {self.seq_id}" if self.seq_id is not None else ""
        followed = _listed(self.future, self.time_unit)
        if not chosen:
            opening = (
                f"None of the {total} past events{where} was found to explain the {len(self.future)} that followed"
            )
            return f"{opening} ({followed}).{self._caveat()}"
        explains = "explains" if len(chosen) == 1 else "explain"
        they, them, are = ("it", "it", "is") if len(chosen) == 1 else ("they", "them", "are")
        effect = f"{_times(abs(self.dppl_left))} {'less' if self.dppl_left <= 0 else 'more'} likely"
        recent = "simply" if self.is_most_recent else "not simply"
        of_history = " of the history" if self.is_most_recent else ""
        return (
            f"{len(chosen)} of {total} past events {explains} the {len(self.future)} that followed{where}: "
            f"{_listed(chosen, self.time_unit)}.\n"
            f"What followed was {followed}.\n"
            f"Without {them}, each of these becomes {effect} on average "
            f"(dppl_left {self.dppl_left:.3f}: times {self.dppl_left_time:.3f}, marks {self.dppl_left_mark:.3f}; "
            f"{self._asked()}). "
            f"From {them} alone, each is {_times(self.dppl_distilled)} as likely as from the whole history "
            f"(dppl_distilled {self.dppl_distilled:.3f}). "
            f"{they.capitalize()} {are} {recent} the most recent{of_history}.{self._caveat()}"
        )

    def _asked(self) -> str:
        """ "asked: at most -0.512, 70 % of what the whole history explains, met"."""
        if self.size is not None:
            said = f"asked: {self.size} events"
        elif self.epsilon is not None:
            said = f"asked: below {math.log(self.epsilon):.3f}"
        else:
            said = f"asked: at most {self.limit:.3f}, {self.share:.0%} of what the whole history explains"
        if self.delta is not None:
            said += f", and dppl_distilled at least {-self.delta:.3f}"
        return f"{said}, {'met' if self.constraint_met else 'not met'}"

    def _caveat(self) -> str:
        """What was checked, or why the target could not be met."""
        if self.status == "explains_nothing":
            return (
                f"\nThe history explains nothing here: without all of it, each of these becomes "
                f"{_times(abs(self.dppl_empty))} more likely."
            )
        if self.status == "infeasible":
            return "\nNo set of events that was tried meets the target; this one comes closest."
        if not self.certified or self.size is not None:
            return ""
        return "\nCertified: the future was scored again without these events" + (
            ", and not one of them can be spared." if self.one_minimal else "."
        )

    def tradeoff(self) -> pd.DataFrame:
        """How much is explained by how few: one row per size, `dppl_left` and `explained_share` of the first events in
        the order of their scores."""
        if self.curve is None:
            raise ValueError('This explanation has no order of events. Ask for one with refine="prefix" or "prune".')
        curve = np.array(self.curve)
        share = curve / self.dppl_empty if self.dppl_empty < 0 else np.full(len(curve), np.nan)
        return pd.DataFrame({"size": np.arange(len(curve)), "dppl_left": curve, "explained_share": share})

    def to_frame(self) -> pd.DataFrame:
        """One row per event of the window: position, time, mark, role (distilled, left or future), score."""
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
            "dppl_left_time": self.dppl_left_time,
            "dppl_left_mark": self.dppl_left_mark,
            "dppl_distilled": self.dppl_distilled,
            "dppl_empty": self.dppl_empty,
            "ds": self.ds,
            "epsilon": self.epsilon,
            "share": self.share,
            "size": self.size,
            "delta": self.delta,
            "conditioning": self.conditioning,
            "status": self.status,
            "certified": self.certified,
            "one_minimal": self.one_minimal,
            "constraint_met": self.constraint_met,
            "is_most_recent": self.is_most_recent,
            "curve": None if self.curve is None else list(self.curve),
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
