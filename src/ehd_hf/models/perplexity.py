"""How well a history predicts the future: log perplexity (eq. 5) and the perplexity drop dppl (eq. 4).

A window is `times`, `marks`, `mask` (B, T) whose last `num_future` positions are the future x_o and the others the
history H_f. Padding may stand anywhere in the history and behind the future. `keep` (..., B, L) says which events of
the history are kept; leading axes, such as S mask samples, are carried through.
"""

from __future__ import annotations

from numbers import Integral
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .point_process import MTPPModel as MTPPModel
from .point_process import MTPPOutput
from .rebuild import pull_up, select

# How much `keep_gradient` holds at a time.
_EVENTS_AT_ONCE, _FEWEST_ROWS = 32_768, 256

Conditioning = Literal["paper", "survival"]
Rebuilder = Literal["gate", "select", "compact"]


def future_log_prob(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep: Tensor | None = None,
    *,
    conditioning: Conditioning = "paper",
    rebuilder: Rebuilder = "gate",
) -> MTPPOutput:
    """log p(x_i | x_<i, kept history) of each future event: fields are (..., B, K).

    Args:
        times, marks, mask: (B, T).
        num_future: K.
        keep: (..., B, L) in [0, 1], or (L,) for all windows alike; the whole history if not given.
        conditioning: "paper" counts the first future interval from the last kept event, silence included; "survival"
            conditions the first future event on that silence, up to the time of the history's last event.
        rebuilder: "gate" (differentiable in between, removed events get gradients) or "select" (the paper's: `keep`
            must be 0 or 1, kept events alone get gradients) or "compact" (0 or 1, no gradients, fastest). The values
            are the same.
    """
    if conditioning not in get_args(Conditioning):
        raise ValueError(f"conditioning must be one of {', '.join(get_args(Conditioning))}; got {conditioning!r}.")
    if rebuilder not in get_args(Rebuilder):
        raise ValueError(f"rebuilder must be one of {', '.join(get_args(Rebuilder))}; got {rebuilder!r}.")
    _check_window(times, marks, mask, num_future, keep)
    num_history = times.shape[1] - num_future
    split = split_time(times, mask, num_future) if conditioning == "survival" else None
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
    log_prob, time_log_prob, mark_log_prob = (
        output[name].reshape(*leading, num_future) for name in ("log_prob", "time_log_prob", "mark_log_prob")
    )
    return MTPPOutput(log_prob=log_prob, time_log_prob=time_log_prob, mark_log_prob=mark_log_prob)


def _check_window(times: Tensor, marks: Tensor, mask: Tensor, num_future: int, keep: Tensor | None) -> None:
    """Shapes and types; what stands in the tensors is the caller's promise (`events` keeps it)."""
    tensors = {"times": times, "marks": marks, "mask": mask} | ({} if keep is None else {"keep": keep})
    if wrong := [name for name, value in tensors.items() if not isinstance(value, Tensor)]:
        raise ValueError(f"a window is made of tensors; got {type(tensors[wrong[0]]).__name__} for {wrong[0]}.")
    got = f"times {tuple(times.shape)}, marks {tuple(marks.shape)}, mask {tuple(mask.shape)}"
    if times.dim() != 2 or not times.shape == marks.shape == mask.shape:
        raise ValueError(f"times, marks and mask must all be (B, T); got {got}.")
    if not times.is_floating_point() or marks.dtype != torch.long or mask.dtype != torch.bool:
        kinds = f"{times.dtype}, {marks.dtype} and {mask.dtype}"
        raise ValueError(f"times must be floating point, marks torch.long and mask torch.bool; got {kinds}. Convert.")
    if not isinstance(num_future, Integral) or not 1 <= num_future <= times.shape[1]:
        raise ValueError(f"num_future must be a number from 1 to {times.shape[1]}, all events; got {num_future!r}.")
    if keep is not None:
        wanted = (len(times), times.shape[1] - num_future)
        if tuple(keep.shape[-2:] if keep.dim() > 1 else (len(times), *keep.shape)) != wanted:
            raise ValueError(f"keep must be (..., B, L), here {wanted} at its end; got {tuple(keep.shape)}.")


def split_time(times: Tensor, mask: Tensor, num_future: int) -> Tensor:
    """Time (B,) of the history's last event, removed or not; the clock's origin if there is none."""
    num_history = times.shape[1] - num_future
    if num_history == 0:
        return times.new_zeros(len(times))
    return times[:, :num_history].masked_fill(~mask[:, :num_history], 0.0).amax(dim=1)


def log_perplexity(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep: Tensor | None = None,
    *,
    conditioning: Conditioning = "paper",
    rebuilder: Rebuilder = "gate",
) -> Tensor:
    """log ppl(x_o | kept history) = -(1/K) sum_i log p(x_i | x_<i, kept history), (..., B) (eq. 5)."""
    output = future_log_prob(
        mtpp, times, marks, mask, num_future, keep, conditioning=conditioning, rebuilder=rebuilder
    )
    return -output.log_prob.sum(-1) / mask[:, times.shape[1] - num_future :].sum(-1)


def dppl(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep: Tensor,
    *,
    conditioning: Conditioning = "paper",
    rebuilder: Rebuilder = "gate",
    full: Tensor | None = None,
) -> Tensor:
    """Perplexity drop log ppl(x_o | H_f) - log ppl(x_o | kept), (..., B): negative when the kept events predict worse
    than the whole history (eq. 4). `full` (B,) is log ppl(x_o | H_f), if already known."""
    if full is None:
        with torch.no_grad():
            full = log_perplexity(mtpp, times, marks, mask, num_future, conditioning=conditioning)
    return full - log_perplexity(
        mtpp, times, marks, mask, num_future, keep, conditioning=conditioning, rebuilder=rebuilder
    )


class DpplParts(NamedTuple):
    """dppl (eq. 4) split into what the future's times and what its marks lose: `time` + `mark` = dppl, (..., B)."""

    time: Tensor
    mark: Tensor

    @property
    def total(self) -> Tensor:
        """dppl itself."""
        return self.time + self.mark


def dppl_parts(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep: Tensor,
    *,
    conditioning: Conditioning = "paper",
    rebuilder: Rebuilder = "gate",
) -> DpplParts:
    """Perplexity drop (eq. 4) of the future's times and of its marks given them: log p = log p(time) + log p(mark)."""
    num_scored = mask[:, times.shape[1] - num_future :].sum(-1)
    window = (mtpp, times, marks, mask, num_future)
    if rebuilder == "compact":
        history = mask[:, : times.shape[1] - num_future]
        masks = torch.cat([history[None], ((keep > 0.5) & history).reshape(-1, *history.shape)])  # (1 + S, B, L)
        windows = torch.arange(len(times), device=times.device).repeat(len(masks))
        sums = _future_sums(*window, masks.flatten(0, 1), windows, conditioning=conditioning)
        sums = sums.view(*masks.shape[:2], 2)
        drops = ((sums[1:] - sums[0]) / num_scored[:, None]).view(*(keep.shape[:-1] or times.shape[:1]), 2)
        return DpplParts(drops[..., 0], drops[..., 1])
    full = future_log_prob(*window, conditioning=conditioning)
    kept = future_log_prob(*window, keep, conditioning=conditioning, rebuilder=rebuilder)
    return DpplParts(*((kept[name] - full[name]).sum(-1) / num_scored for name in ("time_log_prob", "mark_log_prob")))


def log_perplexity_of_masks(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep_mask: Tensor,
    windows: Tensor,
    *,
    conditioning: Conditioning = "paper",
    max_rows: int = 1024,
) -> Tensor:
    """log ppl(x_o | kept history) (eq. 5) of many masks per window: (R,). No gradients.

    Args:
        keep_mask: (R, L) bool.
        windows: (R,), which of the B windows each mask belongs to.
        max_rows: how many rebuilt windows to hold at a time.
    """
    how = {"conditioning": conditioning, "max_rows": max_rows}
    sums = _future_sums(mtpp, times, marks, mask, num_future, keep_mask, windows, **how)  # type: ignore[arg-type]
    return -sums.sum(-1) / mask[:, times.shape[1] - num_future :].sum(-1)[windows]


@torch.no_grad()
def _future_sums(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep_mask: Tensor,
    windows: Tensor,
    *,
    conditioning: Conditioning,
    max_rows: int = 1024,
) -> Tensor:
    """log p of the future's times, and of its marks, given what each mask keeps: (R, 2).

    In pieces of rows that keep about equally many events, so that rebuilt sequences are short and memory is bounded.
    """
    values = times.new_empty(len(windows), 2)
    order = torch.argsort(keep_mask.sum(1), stable=True)
    for start in range(0, len(order), max_rows):
        rows = order[start : start + max_rows]
        chosen = windows[rows]
        window = (times[chosen], marks[chosen], mask[chosen], num_future)
        output = future_log_prob(mtpp, *window, keep_mask[rows], conditioning=conditioning, rebuilder="compact")
        values[rows] = torch.stack([output.time_log_prob.sum(-1), output.mark_log_prob.sum(-1)], dim=-1)
    return values


def keep_gradient(
    mtpp: MTPPModel,
    times: Tensor,
    marks: Tensor,
    mask: Tensor,
    num_future: int,
    keep: Tensor,
    *,
    conditioning: Conditioning = "paper",
) -> Tensor:
    """Slope of dppl (eq. 4) in each gate, at the gates `keep` (..., B, L) or (L,): (..., B, L), 0 on padding.

    Positive where keeping more of an event predicts the future better. Removed events have a slope too. One forward
    and one backward pass, under `torch.no_grad` as well; the model's parameters get no gradients.
    """
    gates = keep.expand(len(times), -1) if keep.dim() == 1 else keep
    slopes = times.new_zeros(gates.shape)
    rows = gates.detach().to(times.dtype).flatten(0, -2)
    windows = torch.arange(len(times), device=times.device).repeat(len(rows) // max(len(times), 1))
    # In pieces that stay in the caches, but not so small that the steps of the recurrence cost more than their work.
    at_once = max(_FEWEST_ROWS, _EVENTS_AT_ONCE // max(times.shape[1], 1))
    for start in range(0, len(rows) if rows.numel() else 0, at_once):
        piece, chosen = rows[start : start + at_once].requires_grad_(), windows[start : start + at_once]
        with torch.enable_grad():
            window = (times[chosen], marks[chosen], mask[chosen], num_future)
            # dppl without its first term, which does not depend on `keep`.
            drop = -log_perplexity(mtpp, *window, piece, conditioning=conditioning)
            (slope,) = torch.autograd.grad(drop.sum(), piece)
        slopes.view_as(rows)[start : start + at_once] = slope
    return slopes
