"""The paper's case study: how many events are distilled, and what happens as the window slides by one event.

Masks are `distill_mask` (W, L): True where an event of the history was distilled. `groups` (W,) says which sequence
each window belongs to; all uncertainty is over sequences, whose windows overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ehd_hf.evaluation.statistics import mark_shares, ratio_interval

SEVERAL = 3  # so many events at once are "segments out"
Row = dict[str, Any]


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
