"""`Window`: the tensors of B windows, a history and the future after it. Every likelihood starts from one."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """B windows of T = L + K events whose last K positions are the future x_o and the others the history H_f.

    Args:
        times: (B, T), non-decreasing, counted from each window's clock origin.
        marks: (B, T) long.
        mask: (B, T) bool, True where there is an event. Padding may stand anywhere in the history and behind the
            future.
        num_future: K.
        scored: (B, K) bool, which future events are asked about; all of them if not given. The others are still part
            of what later future events are conditioned on.
    """

    times: Tensor
    marks: Tensor
    mask: Tensor
    num_future: int
    scored: Tensor | None = None

    @property
    def num_history(self) -> int:
        """L."""
        return self.times.shape[1] - self.num_future

    @property
    def history(self) -> Tensor:
        """(B, L) bool, True where the history has an event."""
        return self.mask[:, : self.num_history]

    @property
    def future(self) -> Tensor:
        """(B, K) bool, the future events that are asked about."""
        future = self.mask[:, self.num_history :]
        return future if self.scored is None else future & self.scored

    @property
    def num_scored(self) -> Tensor:
        """(B,) number of future events that are asked about."""
        return self.future.sum(-1)

    @property
    def split_time(self) -> Tensor:
        """(B,) time of the history's last event, removed or not; the clock's origin if there is none."""
        if self.num_history == 0:
            return self.times.new_zeros(len(self.times))
        return self.times[:, : self.num_history].masked_fill(~self.history, 0.0).amax(dim=1)

    def rows(self, index: Tensor) -> Window:
        """The windows at `index` (R,), a window as often as it is named."""
        scored = None if self.scored is None else self.scored[index]
        return Window(self.times[index], self.marks[index], self.mask[index], self.num_future, scored)

    def to(self, dtype: torch.dtype) -> Window:
        """The same windows with times of another precision."""
        return self._replace(times=self.times.to(dtype))

    def check(self, keep: Tensor | None = None) -> None:
        """Refuse wrong shapes and types; the values of the tensors are the caller's promise."""
        times, marks, mask = self.times, self.marks, self.mask
        tensors = (times, marks, mask) if keep is None else (times, marks, mask, keep)
        if not all(isinstance(value, Tensor) for value in tensors):
            kinds = ", ".join(type(value).__name__ for value in tensors)
            raise ValueError(f"times, marks, mask and keep must be tensors; got {kinds}.")
        if times.dim() != 2 or not times.shape == marks.shape == mask.shape:
            shapes = f"times {tuple(times.shape)}, marks {tuple(marks.shape)}, mask {tuple(mask.shape)}"
            raise ValueError(f"times, marks and mask must all be (B, T); got {shapes}.")
        if not times.is_floating_point() or marks.dtype != torch.long or mask.dtype != torch.bool:
            kinds = f"{times.dtype}, {marks.dtype} and {mask.dtype}"
            raise ValueError(
                f"times must be floating point, marks torch.long and mask torch.bool; got {kinds}. Convert."
            )
        if not isinstance(self.num_future, Integral) or not 1 <= self.num_future <= times.shape[1]:
            raise ValueError(
                f"num_future must be a number from 1 to {times.shape[1]}, all events; got {self.num_future!r}."
            )
        expected = (len(times), self.num_history)
        if keep is not None and tuple(keep.shape[-2:] if keep.dim() > 1 else (len(times), *keep.shape)) != expected:
            raise ValueError(f"keep must be (..., B, L), here {expected} at its end; got {tuple(keep.shape)}.")


def asked_of(mtpp: Any, window: Window) -> Window:
    """The window without future events of context marks among those it asks about."""
    if getattr(mtpp, "context", None) is None:
        return window
    return window._replace(scored=window.future & ~mtpp.is_context(window.marks[:, window.num_history :]))


def silences_of(mtpp: Any, window: Window) -> Tensor:
    """(B, K) bool, the intervals whose likelihood counts: those before events that are asked about, and before context
    events on the way to one."""
    if getattr(mtpp, "context", None) is None:
        return window.future
    future = window.mask[:, window.num_history :] & ~mtpp.is_context(window.marks[:, window.num_history :])
    size = future.shape[1]
    place = torch.where(future, torch.arange(size, device=future.device), size)
    following = place.flip(1).cummin(1).values.flip(1)  # the next predicted event, itself perhaps
    reached = torch.nn.functional.pad(asked_of(mtpp, window).future, (0, 1)).gather(1, following)
    return reached & window.mask[:, window.num_history :]


def places_of(scores: Tensor, history: Tensor) -> Tensor:
    """Place of each event when sorted by falling `scores` (..., B, L), from 0; padding comes last."""
    order = scores.masked_fill(~history, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1)


def most_recent(history: Any, size: Any) -> Any:
    """Mask (B, L) of the last `size` (B,) events of `history` (B, L), both tensors or both numpy arrays."""
    events_after = history.sum(-1)[..., None] - history.cumsum(-1)
    return history & (events_after < size[..., None])
