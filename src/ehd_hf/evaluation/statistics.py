"""Arrays in, numbers out: intervals of means, and what the masks of many windows say together. No torch.

Masks are `distill_mask` (W, L): True where an event of the history was distilled. Windows of one sequence overlap, so
they are no independent draws; sequences are. All uncertainty here is over sequences: `groups` (W,) says which one each
window belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

NUM_RESAMPLES = 2_000
SEVERAL = 3  # so many events at once are "segments out"
Row = dict[str, Any]


def mean_interval(
    values: np.ndarray, groups: np.ndarray, *, level: float = 0.95, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean of `values` (W,): whole groups are drawn again, with all their values."""
    values = np.asarray(values, dtype=np.float64)
    return ratio_interval(values, np.ones_like(values), groups, level=level, num_resamples=num_resamples, seed=seed)


def ratio_interval(
    above: np.ndarray,
    below: np.ndarray,
    groups: np.ndarray,
    *,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap interval of sum(above) / sum(below), each (W,), over groups; NaN if `below` is 0 everywhere."""
    if len(groups) == 0 or not np.any(below):
        return math.nan, math.nan
    _, group = np.unique(groups, return_inverse=True)
    above, below = (np.bincount(group, weights=np.asarray(values, dtype=np.float64)) for values in (above, below))
    # How often each group is drawn is all that matters: (R, G) counts instead of windows.
    chance = np.full(len(above), 1 / len(above))
    drawn = np.random.default_rng(seed).multinomial(len(above), chance, num_resamples)
    total = drawn @ below
    ratios = (drawn @ above)[total > 0] / total[total > 0]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# --- which marks are distilled


def mark_shares(
    distill_mask: np.ndarray,
    marks: np.ndarray,
    groups: np.ndarray,
    id2label: Mapping[int, str],
    *,
    history: np.ndarray | None = None,
    alpha: float = 0.05,
) -> list[Row]:
    """For each mark, the share of its events that is distilled, against random distillation of the same sizes.

    A window of size k distils each of its L events with probability k / L at random, so of the n_m events with mark m
    it is expected to distil n_m k / L, with the hypergeometric variance. Tested is the sum over windows of what was
    distilled beyond that: two-sided and normal, its variance taken from the sums per sequence, since windows of one
    sequence overlap, and at least the hypergeometric one. P-values are corrected by Holm over the marks.

    Keys: `mark`, `label`, `num_events`, `num_sequences` that have it, `share`, `expected`, `recency` (the share if the
    last k were distilled: a preference that it has too is none for the mark), `low` and `high` (95 % interval of the
    share, by bootstrap), `z`, `p`, `p_holm`, `significant` (at `alpha`). Marks that never occur are left out.

    Args:
        distill_mask, marks: (W, L).
        groups: (W,) sequence of each window.
        id2label: names by mark.
        history: (W, L), False on the padding in front of shorter histories, whose marks are then none of id2label's.
    """
    num_history = (np.ones_like(distill_mask) if history is None else history).sum(1)  # (W,)
    size = distill_mask.sum(1).astype(float)  # (W,)
    length = distill_mask.shape[1]
    recent = np.arange(length) >= length - size[:, None]
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
        row |= {"p_holm": float(corrected), "significant": bool(corrected < alpha)}
    return rows


def holm(p_values: np.ndarray) -> np.ndarray:
    """P-values (n,) corrected for n tests (Holm): below alpha with probability at most alpha, all hypotheses true."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1)).clip(max=1.0)
    corrected = np.empty_like(stepped)
    corrected[order] = stepped
    return corrected


# --- how many are distilled


def length_distribution(distill_mask: np.ndarray) -> np.ndarray:
    """Share of windows that distil 0, 1, ..., L events: (L + 1,)."""
    return np.bincount(distill_mask.sum(1), minlength=distill_mask.shape[1] + 1) / len(distill_mask)


def sizes_along(
    distill_mask: np.ndarray, groups: np.ndarray, offsets: np.ndarray, num_sequences: int = 4
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """|H_d| along the sequences with most windows: offset of the window and size, in order, by sequence."""
    names, counts = np.unique(groups, return_counts=True)
    longest = names[np.argsort(-counts, kind="stable")[:num_sequences]]
    along = {}
    for name in longest:
        rows = np.flatnonzero(groups == name)
        rows = rows[np.argsort(offsets[rows], kind="stable")]
        along[int(name)] = offsets[rows], distill_mask[rows].sum(1)
    return along


# --- what happens as the window slides by one event


class Slides(NamedTuple):
    """What changed between two windows of a sequence that stand one event apart, V times.

    added: (V,) events that are in H_d and were not, new ones of the window included.
    ejected: (V,) events that were in H_d, are still in the window and not in H_d any more.
    run_lengths, run_slides: (U,) lengths of the runs of neighbours ejected together, and the slide of each.
    groups: (V,) the sequence of each slide.
    """

    added: np.ndarray
    ejected: np.ndarray
    run_lengths: np.ndarray
    run_slides: np.ndarray
    groups: np.ndarray


def slides(distill_mask: np.ndarray, groups: np.ndarray, offsets: np.ndarray) -> Slides:
    """Events added to and ejected from H_d along the slide (the paper's fig. 5).

    Windows that have no successor one event on (of a sample, most) give no slide.
    """
    order = np.lexsort((offsets, groups))
    mask, group, offset = distill_mask[order], groups[order], offsets[order]
    follows = (group[1:] == group[:-1]) & (offset[1:] == offset[:-1] + 1)
    before, after = mask[:-1][follows], mask[1:][follows]  # (V, L): the same event is one place earlier in `after`
    added = (after[:, :-1] & ~before[:, 1:]).sum(1) + after[:, -1]
    gone = before[:, 1:] & ~after[:, :-1]  # (V, L - 1)
    # A run begins where the place before is not gone, and ends where the one after is not.
    edges = np.diff(np.pad(gone, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    run_slides, begins = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    return Slides(added, gone.sum(1), ends - begins, run_slides, group[1:][follows])


def slide_summary(moved: Slides) -> Row:
    """ "One in, segments out" in numbers, each with a 95 % interval (`_low`, `_high`) by bootstrap over sequences.

    Keys: `adds_one` (share of slides that add exactly one event), `adds_several` and `ejects_several` (share that add,
    or eject, three or more) and their difference `ejects_rather`; `run_length` (mean length of an ejected segment) and
    `in_runs` (share of the ejected events that leave with a neighbour); `num_slides`, `num_sequences`.
    """
    if len(moved.added) == 0:
        raise ValueError(
            "a slide needs two windows one event apart in the same sequence; got none. Use a whole split."
        )

    def per_slide(weights: np.ndarray) -> np.ndarray:
        return np.bincount(moved.run_slides, weights=weights, minlength=len(moved.added))

    one = np.ones(len(moved.added))
    several_in, several_out = (moved.added >= SEVERAL).astype(float), (moved.ejected >= SEVERAL).astype(float)
    runs = np.ones(len(moved.run_lengths))
    in_runs = np.where(moved.run_lengths > 1, moved.run_lengths, 0)
    ratios = {
        "adds_one": ((moved.added == 1).astype(float), one),
        "adds_several": (several_in, one),
        "ejects_several": (several_out, one),
        "ejects_rather": (several_out - several_in, one),
        "run_length": (moved.ejected.astype(float), per_slide(runs)),
        "in_runs": (per_slide(in_runs.astype(float)), moved.ejected.astype(float)),
    }
    row: Row = {}
    for name, (above, below) in ratios.items():
        total = below.sum()
        row[name] = float(above.sum() / total) if total else None
        low, high = ratio_interval(above, below, moved.groups)
        row |= {f"{name}_low": None if math.isnan(low) else low, f"{name}_high": None if math.isnan(high) else high}
    return row | {"num_slides": len(moved.added), "num_sequences": len(np.unique(moved.groups))}


def case_study(
    distill_mask: np.ndarray, marks: np.ndarray, groups: np.ndarray, offsets: np.ndarray, id2label: Mapping[int, str]
) -> Row:
    """All of the above as one row (the paper's figs. 3 to 6), small enough to keep and complete enough to draw.

    Keys: those of `slide_summary`; `mark_shares` (rows of marks); `length_pdf`; `added`, `ejected` (how many slides
    moved 0, 1, 2, ... events); `along` (sequence, offsets and sizes of four sequences).

    Args:
        distill_mask, marks: (W, L).
        groups, offsets: (W,) sequence of each window, and place of its first event there.
    """
    moved = slides(distill_mask, groups, offsets)
    along = sizes_along(distill_mask, groups, offsets)
    return slide_summary(moved) | {
        "mark_shares": mark_shares(distill_mask, marks, groups, id2label),
        "length_pdf": length_distribution(distill_mask).round(6).tolist(),
        "added": np.bincount(moved.added).tolist(),
        "ejected": np.bincount(moved.ejected).tolist(),
        "along": [[name, where.tolist(), size.tolist()] for name, (where, size) in along.items()],
    }
