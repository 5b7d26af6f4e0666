"""Arrays in, numbers out: intervals of means, and which marks the masks of many windows distil.

Masks are `distill_mask` (W, L): True where an event of the history was distilled. Windows of one sequence overlap, so
they are no independent draws; sequences are. All uncertainty here is over sequences: `groups` (W,) says which one each
window belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..models.window import most_recent

NUM_RESAMPLES = 2_000
Row = dict[str, Any]


def mean_interval(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of `values` (W,): whole groups are drawn again, with all their values."""
    return ratio_interval(values, np.ones(len(values)), groups)


def ratio_interval(above: np.ndarray, below: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of sum(above) / sum(below), each (W,), over groups; NaN if `below` is 0 everywhere."""
    if len(groups) == 0 or not np.any(below):
        return math.nan, math.nan
    _, group = np.unique(groups, return_inverse=True)
    above, below = (np.bincount(group, weights=np.asarray(values, dtype=np.float64)) for values in (above, below))
    # How often each group is drawn is all that matters: (R, G) counts instead of windows.
    chance = np.full(len(above), 1 / len(above))
    drawn = np.random.default_rng(0).multinomial(len(above), chance, NUM_RESAMPLES)
    total = drawn @ below
    ratios = (drawn @ above)[total > 0] / total[total > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


# --- which marks are distilled


def mark_shares(
    distill_mask: np.ndarray,
    marks: np.ndarray,
    groups: np.ndarray,
    id2label: Mapping[int, str],
    history: np.ndarray | None = None,
) -> list[Row]:
    """For each mark, the share of its events that is distilled, against random distillation of the same sizes.

    A window of size k distils each of its L events with probability k / L at random, so of the n_m events with mark m
    it is expected to distil n_m k / L, with the hypergeometric variance. Tested is the sum over windows of what was
    distilled beyond that: two-sided and normal, its variance taken from the sums per sequence, since windows of one
    sequence overlap, and at least the hypergeometric one. P-values are corrected by Holm over the marks.

    Keys: `mark`, `label`, `num_events`, `num_sequences` that have it, `share`, `expected`, `recency` (the share if the
    last k were distilled: a preference that it has too is none for the mark), `low` and `high` (95 % interval of the
    share, by bootstrap), `z`, `p`, `p_holm`, `significant` (at 5 %). Marks that never occur are left out.

    Args:
        distill_mask, marks: (W, L).
        groups: (W,) sequence of each window.
        history: (W, L), False on the padding in front of shorter histories, whose marks are then none of id2label's.
    """
    history = np.ones_like(distill_mask) if history is None else history
    num_history = history.sum(1)  # (W,)
    size = distill_mask.sum(1).astype(float)  # (W,)
    recent = most_recent(history, size)
    _, group = np.unique(groups, return_inverse=True)
    rows: list[Row] = []
    for mark, label in id2label.items():
        has = marks == mark
        count = has.sum(1).astype(float)  # (W,)
        if not count.any():
            continue
        chosen = (distill_mask & has).sum(1).astype(float)
        expected = count * size / num_history
        spread = expected * (1 - size / num_history) * (num_history - count) / np.maximum(num_history - 1, 1)
        beyond = np.bincount(group, weights=chosen - expected)
        variance = max(float((beyond**2).sum()), float(spread.sum()))
        z = float(beyond.sum()) / math.sqrt(variance) if variance else 0.0
        low, high = ratio_interval(chosen, count, groups)
        rows.append(
            {
                "mark": int(mark),
                "label": label,
                "num_events": int(count.sum()),
                "num_sequences": len(np.unique(groups[count > 0])),
                "share": float(chosen.sum() / count.sum()),
                "expected": float(expected.sum() / count.sum()),
                "recency": float((recent & has).sum() / count.sum()),
                "low": low,
                "high": high,
                "z": z,
                "p": math.erfc(abs(z) / math.sqrt(2)),
            }
        )
    for row, corrected in zip(rows, holm(np.array([row["p"] for row in rows])), strict=True):
        row |= {"p_holm": float(corrected), "significant": bool(corrected < 0.05)}
    return rows


def holm(p_values: np.ndarray) -> np.ndarray:
    """P-values (n,) corrected for n tests (Holm): below alpha with probability at most alpha, all hypotheses true."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1)).clip(max=1.0)
    corrected = np.empty_like(stepped)
    corrected[order] = stepped
    return corrected
