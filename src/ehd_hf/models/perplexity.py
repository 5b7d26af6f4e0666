"""How well a history predicts the future: log perplexity (eq. 5) and the perplexity drop dppl (eq. 4).

`keep` (..., B, L) says which events of a window's history are kept; leading axes, such as S mask samples, are carried
through. Where a window says which future events are `scored`, only these count.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .point_process import MTPPModel, MTPPOutput
from .question import Conditioning
from .rebuild import pull_up, select
from .window import Window, asked_of, silences_of

# How many rebuilt windows are held at a time; how much `keep_gradient` holds.
ROWS_AT_ONCE = 1024
_EVENTS_AT_ONCE, _FEWEST_ROWS = 32_768, 256

Rebuilder = Literal["gate", "select", "compact"]


def future_log_prob(
    mtpp: MTPPModel,
    window: Window,
    keep: Tensor | None = None,
    *,
    conditioning: Conditioning = "paper",
    rebuilder: Rebuilder = "gate",
) -> MTPPOutput:
    """log p(x_i | x_<i, kept history) of each future event: fields are (..., B, K), 0 where an event is not scored.

    Args:
        keep: (..., B, L) in [0, 1], or (L,) for all windows alike; the whole history if not given.
        conditioning: of the first future event, see `Question`.
        rebuilder: "gate" (differentiable in between, removed events get gradients) or "select" (the paper's: `keep`
            must be 0 or 1, kept events alone get gradients) or "compact" (0 or 1, no gradients, fastest). The values
            are the same.

    A context event is not scored, but the silence before it is, if an event that is scored comes next.
    """
    if conditioning not in get_args(Conditioning):
        raise ValueError(f"conditioning must be one of {', '.join(get_args(Conditioning))}; got {conditioning!r}.")
    if rebuilder not in get_args(Rebuilder):
        raise ValueError(f"rebuilder must be one of {', '.join(get_args(Rebuilder))}; got {rebuilder!r}.")
    window.check(keep)
    times, marks, mask, num_future, scored = window
    num_history = window.num_history
    split = window.split_time if conditioning == "survival" else None
    if keep is not None and keep.dim() == 1:
        keep = keep.expand(len(times), -1)
    leading = times.shape[:1] if keep is None else keep.shape[:-1]
    if keep is not None:
        copies = leading[:-1].numel()
        times, marks, mask = (x.repeat(copies, 1) for x in (times, marks, mask))
        split = split.repeat(copies) if split is not None else None
        keep = keep.reshape(copies * leading[-1], num_history)
    if keep is not None and rebuilder == "compact":
        rows = pull_up(times, marks, mask, keep > 0.5)
        output = mtpp.event_log_prob(*rows, survived_until=split, num_last=num_future)
    elif keep is None or rebuilder == "gate":
        output = mtpp.event_log_prob(times, marks, mask, keep=keep, survived_until=split, num_last=num_future)
    else:
        everything = torch.cat([keep, torch.ones_like(times[:, num_history:])], dim=1)
        rebuilt, weights = select(times, marks, mask, everything)
        # The future now stands right behind the kept events; its padding was compacted away and reads as masked.
        num_kept = ((keep.detach() > 0.5) & mask[:, :num_history]).sum(1, keepdim=True)
        positions = num_kept + torch.arange(num_future, device=times.device)
        output = mtpp.event_log_prob(
            rebuilt.times, rebuilt.marks, rebuilt.mask, survived_until=split, positions=positions, mark_weights=weights
        )
    fields = ("log_prob", "time_log_prob", "mark_log_prob")
    values = {name: output[name].reshape(*leading, num_future) for name in fields}
    counted = silences_of(mtpp, window)
    if scored is not None or getattr(mtpp, "context", None) is not None:
        values = {name: value.masked_fill(~counted, 0.0) for name, value in values.items()}
    return MTPPOutput(**values)


def log_perplexity(mtpp: MTPPModel, window: Window, keep: Tensor | None = None, **options: Any) -> Tensor:
    """log ppl(x_o | kept history) = -(1/K) sum_i log p(x_i | x_<i, kept history), (..., B) (eq. 5); `options` as in
    `future_log_prob`."""
    number = asked_of(mtpp, window).num_scored
    return -future_log_prob(mtpp, window, keep, **options).log_prob.sum(-1) / number


def dppl(
    mtpp: MTPPModel,
    window: Window,
    keep: Tensor,
    *,
    full: Tensor | None = None,
    conditioning: Conditioning = "paper",
    **options: Any,
) -> Tensor:
    """Perplexity drop log ppl(x_o | H_f) - log ppl(x_o | kept), (..., B): negative when the kept events predict worse
    than the whole history (eq. 4). `full` (B,) is log ppl(x_o | H_f), if already computed; `options` as in
    `future_log_prob`."""
    if full is None:
        with torch.no_grad():
            full = log_perplexity(mtpp, window, conditioning=conditioning)
    return full - log_perplexity(mtpp, window, keep, conditioning=conditioning, **options)


class DpplParts(NamedTuple):
    """dppl (eq. 4) split into what the future's times and what its marks lose: `time` + `mark` = dppl, (..., B)."""

    time: Tensor
    mark: Tensor

    @property
    def total(self) -> Tensor:
        """dppl itself."""
        return self.time + self.mark


def dppl_parts(mtpp: MTPPModel, window: Window, keep: Tensor, *, conditioning: Conditioning = "paper") -> DpplParts:
    """Perplexity drop (eq. 4) of the future's times and of its marks given them: log p = log p(time) + log p(mark).
    `keep` is 0 or 1; no gradients."""
    history = window.history
    masks = torch.cat([history[None], ((keep > 0.5) & history).reshape(-1, *history.shape)])  # (1 + S, B, L)
    rows = torch.arange(len(history), device=history.device).repeat(len(masks))
    sums = _future_sums(mtpp, window, masks.flatten(0, 1), rows, conditioning).view(*masks.shape[:2], 2)
    means = (sums[1:] - sums[0]) / asked_of(mtpp, window).num_scored[:, None]
    drops = means.view(*(keep.shape[:-1] or history.shape[:1]), 2)
    return DpplParts(drops[..., 0], drops[..., 1])


def log_perplexity_of_masks(
    mtpp: MTPPModel, window: Window, keep_mask: Tensor, rows: Tensor, *, conditioning: Conditioning = "paper"
) -> Tensor:
    """log ppl(x_o | kept history) (eq. 5) of many masks `keep_mask` (R, L), those of the windows `rows` (R,): (R,).
    No gradients."""
    sums = _future_sums(mtpp, window, keep_mask, rows, conditioning)
    return -sums.sum(-1) / asked_of(mtpp, window).num_scored[rows]


@torch.no_grad()
def _future_sums(
    mtpp: MTPPModel, window: Window, keep_mask: Tensor, rows: Tensor, conditioning: Conditioning
) -> Tensor:
    """log p of the future's times, and of its marks, given what each mask keeps: (R, 2). In pieces of rows that keep
    about equally many events, so that rebuilt sequences are short and memory is bounded."""
    values = window.times.new_empty(len(rows), 2)
    order = torch.argsort(keep_mask.sum(1), stable=True)
    for piece in order.split(ROWS_AT_ONCE):
        windows = window.rows(rows[piece])
        output = future_log_prob(mtpp, windows, keep_mask[piece], conditioning=conditioning, rebuilder="compact")
        values[piece] = torch.stack([output.time_log_prob.sum(-1), output.mark_log_prob.sum(-1)], dim=-1)
    return values


def keep_gradient(mtpp: MTPPModel, window: Window, keep: Tensor, *, conditioning: Conditioning = "paper") -> Tensor:
    """Slope of dppl (eq. 4) in each gate, at the gates `keep` (..., B, L) or (L,): (..., B, L), 0 on padding.

    Positive where keeping more of an event predicts the future better. Removed events have a slope too. One forward
    and one backward pass, under `torch.no_grad` as well; the model's parameters get no gradients.
    """
    times = window.times
    gates = keep.expand(len(times), -1) if keep.dim() == 1 else keep
    slopes = times.new_zeros(gates.shape)
    rows = gates.detach().to(times.dtype).flatten(0, -2)
    windows = torch.arange(len(times), device=times.device).repeat(len(rows) // max(len(times), 1))
    # In pieces that stay in the caches, but not so small that the steps of the recurrence cost more than their work.
    at_once = max(_FEWEST_ROWS, _EVENTS_AT_ONCE // max(times.shape[1], 1))
    for start in range(0, len(rows) if rows.numel() else 0, at_once):
        piece, chosen = rows[start : start + at_once].requires_grad_(), windows[start : start + at_once]
        with torch.enable_grad():
            # dppl without its first term, which does not depend on `keep`.
            drop = -log_perplexity(mtpp, window.rows(chosen), piece, conditioning=conditioning)
            (slope,) = torch.autograd.grad(drop.sum(), piece)
        slopes.view_as(rows)[start : start + at_once] = slope
    return slopes
