"""A keep mask -> the rebuilt sequence, by moving the kept events to the front (one stable sort, one gather).

The skip gate of `gated_lstm` gives the same likelihood without moving anything; compaction is its reference, and
what the paper's own path, `select`, is made of.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rebuilt(NamedTuple):
    """Kept events at the front of each row, padding behind; `order` (B, T) says where each came from."""

    times: Tensor
    marks: Tensor
    mask: Tensor
    order: Tensor


def compact(times: Tensor, marks: Tensor, mask: Tensor, keep_mask: Tensor) -> Rebuilt:
    """Delete the events with `keep_mask` (B, T) False."""
    kept = keep_mask & mask
    order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)
    return Rebuilt(times.gather(1, order), marks.gather(1, order), kept.gather(1, order), order)


def pull_up(times: Tensor, marks: Tensor, mask: Tensor, keep_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Delete history events and move the kept ones up to the future, which stays at the end; what is empty in every
    row is cut off. Short sequences, and no gate at all where all rows keep equally many: the fastest way to evaluate.
    `keep_mask` (B, L) is for the first L events."""
    num_history = keep_mask.shape[1]
    kept = keep_mask & mask[:, :num_history]
    longest = int(kept.sum(1).amax()) if len(kept) else 0
    order = torch.argsort(kept.to(torch.uint8), dim=1, stable=True)[:, num_history - longest :]
    future = torch.arange(num_history, times.shape[1], device=times.device).expand(len(times), -1)
    place = torch.cat([order, future], dim=1)
    present = torch.cat([kept, mask[:, num_history:]], dim=1)
    return times.gather(1, place), marks.gather(1, place), present.gather(1, place)


def select(times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor) -> tuple[Rebuilt, Tensor]:
    """The paper's rebuilder (appendix A): multiply the samples into times and embeddings, then select the kept events.

    `keep` (B, T) is 0 or 1 in value and carries gradients. Returns the rebuilt sequence, whose times carry them, and
    the factors (B, T) of the mark embeddings, which do too. Events that are not kept receive none.
    """
    rebuilt = compact(times * keep, marks, mask, keep.detach() > 0.5)
    return rebuilt, keep.gather(1, rebuilt.order)
