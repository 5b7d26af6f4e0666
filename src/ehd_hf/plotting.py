"""Rows in, figures out. Figures are made without pyplot: no global state, and they draw on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito: eight colours told apart with every common colour vision, here without the yellow, pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":")  # a second cue besides colour, for print
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "savefig.dpi": 160,
}


def new_axes(width: float = 4.6, height: float = 4.2) -> tuple[Figure, Axes]:
    """A figure of one axes in the house style; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=STYLE["savefig.dpi"])
        return figure, figure.subplots()


def qq_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Quantiles of rescaled times against those of Exp(1), one line per row; a calibrated model lies on the diagonal.

    Args:
        rows: with `model` and `qq`, the quantiles at probabilities i / (n + 1); `ks` goes into the legend if there.
        title: of the axes, say data set and split.
    """
    if not rows:
        raise ValueError("a QQ plot needs at least one row; got none.")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes()
        for index, row in enumerate(rows):
            quantiles = np.asarray(row["qq"], dtype=float)
            expected = -np.log1p(-np.arange(1, len(quantiles) + 1) / (len(quantiles) + 1))
            name = str(row["model"]).rstrip("/").rpartition("/")[2]  # of a folder, its last part
            label = name + (f" (KS {row['ks']:.3f})" if row.get("ks") is not None else "")
            axes.plot(
                expected,
                np.where(quantiles > 0, quantiles, np.nan),  # the axes are logarithmic; tied times have no place
                color=COLOURS[index % len(COLOURS)],
                linestyle=DASHES[index % len(DASHES)],
                label=label,
            )
        low, high = float(expected[0]), float(expected[-1])
        axes.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1, label="Exp(1)")
        # Both ends matter, short silences and long ones: logarithms show them side by side.
        axes.set(xscale="log", yscale="log", xlabel="quantile of Exp(1)", ylabel="quantile of rescaled times")
        if title:
            axes.set_title(title)
        axes.legend(loc="best")
    return figure
