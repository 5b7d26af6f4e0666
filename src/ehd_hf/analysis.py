"""Arrays in, numbers out: intervals of means, and what the masks of many windows say together. No torch.

Windows of one sequence overlap, so they are no independent draws; sequences are. All uncertainty here is over
sequences: `groups` (W,) says which one each window belongs to.
"""

from __future__ import annotations

import numpy as np

NUM_RESAMPLES = 2_000


def mean_interval(
    values: np.ndarray, groups: np.ndarray, *, level: float = 0.95, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean of `values` (W,): whole groups are drawn again, with all their values.

    Fewer than two groups give no interval: NaN would not do in a row, so it is the mean itself, twice.
    """
    _, group = np.unique(groups, return_inverse=True)
    count = np.bincount(group)
    total = np.bincount(group, weights=np.asarray(values, dtype=np.float64))
    # How often each group is drawn is all that matters: (R, G) counts instead of windows.
    drawn = np.random.default_rng(seed).multinomial(len(count), np.full(len(count), 1 / len(count)), num_resamples)
    means = (drawn @ total) / (drawn @ count)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
