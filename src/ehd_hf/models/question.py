"""`Question`: what is asked of the distilled events, and whether an answer meets it. The only place that judges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from .window import Window

Conditioning = Literal["paper", "survival"]
Refinement = Literal["none", "prefix", "prune"]
TARGETS = ("epsilon", "share", "size")  # one of them is asked
# How clearly a target must be met to count as certified: more than rounding can undo.
MARGIN = 1e-5


@dataclass(frozen=True)
class Question:
    """Which events of the history explain the future, or a part of it? One of `epsilon`, `share` and `size` is asked.

    Args:
        epsilon: without them each future event is less likely by this factor, on average: dppl_left < log(epsilon).
        share: without them this share of what the whole history explains is lost: dppl_left <= share * dppl_empty.
        size: so many events, whatever they explain.
        delta: also, they alone predict almost as well as the whole history: dppl_distilled >= -delta.
        conditioning: "paper" counts the first future interval from the last kept event, silence included; "survival"
            conditions the first future event on that silence, up to the time of the history's last event.
        refine: "none" takes the distiller's own answer; "prefix" the smallest beginning of its order of events that
            meets the target; "prune" also drops events that can be spared.
        event: ask about one future event only, by its position in the future; negative from its end.
        kind: ask about the future events of one mark only, by its number.
    """

    epsilon: float | None = None
    share: float | None = None
    size: int | None = None
    delta: float | None = None
    conditioning: Conditioning = "paper"
    refine: Refinement = "prune"
    event: int | None = None
    kind: int | None = None

    def __post_init__(self) -> None:
        for name in {*TARGETS, "delta"} - {"size"}:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise ValueError(f"{name} must be a number; got {value!r}.")
        asked = [value for name in TARGETS if (value := getattr(self, name)) is not None]
        if len(asked) != 1:
            raise ValueError(f"Ask for one of epsilon, share and size; got {' and '.join(map(str, asked)) or 'none'}.")
        if self.size is None and not 0 < asked[0] <= 1:
            raise ValueError(f"{'epsilon' if self.share is None else 'share'} must lie in (0, 1]; got {asked[0]}.")
        if self.size is not None and not is_count(self.size):
            raise ValueError(f"size must be a number of events of at least 1; got {self.size!r}.")
        if self.delta is not None and not self.delta >= 0:
            raise ValueError(f"delta must be at least 0; got {self.delta}. It is a loss of log-likelihood per event.")
        for name, choices in (("conditioning", get_args(Conditioning)), ("refine", get_args(Refinement))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        if self.event is not None and self.kind is not None:
            raise ValueError(f"Ask about one event or about one kind; got event {self.event} and kind {self.kind}.")

    @property
    def prunes(self) -> bool:
        """Whether events that can be spared are dropped."""
        return self.refine == "prune" and self.size is None

    def about(self, window: Window) -> Window:
        """The window with the future events marked that this question is about."""
        if self.event is None and self.kind is None:
            return window
        marks, future = (values[:, window.num_history :] for values in (window.marks, window.mask))
        if self.kind is not None:
            return window._replace(scored=future & (marks == self.kind))
        assert self.event is not None
        place = future.cumsum(1) - 1  # padding stands behind the future
        wanted = self.event if self.event >= 0 else future.sum(1, keepdim=True) + self.event
        return window._replace(scored=future & (place == wanted))

    @property
    def asked(self) -> dict[str, Any]:
        """The targets, delta and conditioning, by name."""
        return {name: getattr(self, name) for name in (*TARGETS, "delta", "conditioning")}

    @property
    def is_strict(self) -> bool:
        """Whether dppl_left must stay below its limit, not just at it."""
        return self.epsilon is not None

    @property
    def label(self) -> str:
        """Such as "share 0.7, delta 0.1"."""
        given = {name: getattr(self, name) for name in (*TARGETS, "delta")}
        return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)

    def words(self, limit: float | None, whole: str = "the whole history explains") -> str:
        """What is asked of dppl_left, given its limit, if there is one, and what shares are of."""
        if self.size is not None:
            return f"{self.size} event{'' if self.size == 1 else 's'}"
        if self.epsilon is not None:
            return f"below {limit:.3f}"
        at_most = "" if limit is None else f"at most {limit:.3f}, "
        return f"{at_most}{self.share:.0%} of what {whole}"

    @property
    def effect(self) -> str:
        """What is asked, in the words of someone who does not know dppl."""
        if self.epsilon is not None:
            return f"without it, each future event is less than {self.epsilon:g} times as likely on average"
        return self.words(None) if self.size is not None else f"without it, {self.words(None)} is lost"

    def limit(self, empty: Any) -> Any:
        """What dppl_left must not exceed, given dppl of the empty history: numbers, arrays or tensors."""
        if self.epsilon is not None:
            return 0 * empty + math.log(self.epsilon)
        return 0 * empty + math.inf if self.share is None else self.share * empty

    def met(self, left: Any, distilled: Any, empty: Any, margin: float = 0.0) -> Any:
        """Whether these values of dppl meet the target by `margin`; the size of a set is not looked at."""
        limit = self.limit(empty) - margin
        met = left < limit if self.is_strict else left <= limit
        return met if self.delta is None else met & (distilled >= margin - self.delta)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
