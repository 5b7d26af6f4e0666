"""A keep mask -> the rebuilt sequence, by moving the kept events to the front (one stable sort, one gather).

The skip gate of `mtpp.encoder` gives the same likelihood without moving anything; compaction is its reference, and
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
    """Delete the events with `keep_mask` False.

    Args:
        times, marks, mask: (B, T).
        keep_mask: (B, T) bool.
    """
    kept = keep_mask & mask
    order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)
    return Rebuilt(times.gather(1, order), marks.gather(1, order), kept.gather(1, order), order)


def select(times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor) -> tuple[Rebuilt, Tensor]:
    """The paper's rebuilder (appendix A): multiply the samples into times and embeddings, then select the kept events.

    `keep` (B, T) is 0 or 1 in value and carries gradients. Returns the rebuilt sequence, whose times carry them, and
    the factors (B, T) of the mark embeddings, which do too. Events that are not kept receive none.
    """
    rebuilt = compact(times * keep, marks, mask, keep.detach() > 0.5)
    return rebuilt, keep.gather(1, rebuilt.order)
