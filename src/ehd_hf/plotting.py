"""Rows in, figures out. Figures are made without pyplot: no global state, and they draw on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

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


def new_panels(
    columns: int = 1, rows: int = 1, width: float = 7.2, height: float = 2.9, **share: Any
) -> tuple[Figure, Any]:
    """A figure of several axes, an array of them, as wide as a README shows a picture; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=STYLE["savefig.dpi"])
        return figure, figure.subplots(rows, columns, squeeze=False, **share)


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
                label=label,
                **_line(index),
            )
        low, high = float(expected[0]), float(expected[-1])
        axes.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1, label="Exp(1)")
        # Both ends matter, short silences and long ones: logarithms show them side by side.
        axes.set(xscale="log", yscale="log", xlabel="quantile of Exp(1)", ylabel="quantile of rescaled times")
        if title:
            axes.set_title(title)
        axes.legend(loc="best")
    return figure


def left_share_plot(curves: Mapping[str, Sequence[tuple[float, float]]], title: str | None = None) -> Figure:
    """Share of left events along training (the paper's fig. 2), one line per run.

    Args:
        curves: (step, share in 0..1) pairs by name, as `eval_left_share` in a run's log.
    """
    _need(curves, "a curve of left events", "run")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 3.2)
        for index, (name, points) in enumerate(curves.items()):
            steps, shares = np.asarray(points, dtype=float).T
            axes.plot(steps, shares, label=name, clip_on=False, zorder=3, **_line(index))
        axes.set(xlabel="training step", ylabel="events left in the history", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        if title:
            axes.set_title(title)
    return figure


def mark_share_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Share of each mark's events that is distilled, with its interval, against random distillation (fig. 3) and
    against distilling as many of the last events.

    Filled dots differ from random significantly, hollow ones do not; marks preferred most stand on top.

    Args:
        rows: of `analysis.mark_shares`.
    """
    _need(rows, "a plot of marks", "row")
    ordered = sorted(rows, key=lambda row: row["share"] - row["expected"])
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 1.3 + 0.21 * len(ordered))
        place = np.arange(len(ordered))
        share, expected, low, high = (
            np.array([row[key] for row in ordered], dtype=float) for key in ("share", "expected", "low", "high")
        )
        axes.hlines(place, low, high, color=COLOURS[0], linewidth=1.2)
        for filled, label in ((True, "distilled: unlike random"), (False, "distilled: no difference")):
            some = np.array([bool(row["significant"]) == filled for row in ordered])
            face = COLOURS[0] if filled else "white"
            if some.any():
                axes.scatter(share[some], place[some], s=26, color=face, edgecolor=COLOURS[0], zorder=3, label=label)
        axes.scatter(expected, place, s=34, marker="|", color=COLOURS[1], linewidth=2, zorder=2, label="at random")
        recent = [row["recency"] for row in ordered]
        axes.scatter(
            recent, place, s=110, marker="|", color=COLOURS[6], linewidth=1, zorder=2, label="the last events"
        )
        names = [f"{row['label']} ({_short(row['num_events'])})" for row in ordered]
        axes.set_yticks(place, names)
        axes.set(xlabel="share of the mark's events that is distilled", ylim=(-0.7, len(ordered) - 0.3))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=4)
        if title:
            axes.set_title(title)
    return figure


def length_plot(distributions: Mapping[str, Sequence[float]], title: str | None = None) -> Figure:
    """How many events are distilled: pdf on the left, cdf on the right (fig. 4), one line per entry.

    Args:
        distributions: share of windows that distil 0, 1, 2, ... events, by name.
    """
    _need(distributions, "a plot of lengths", "distribution")
    with matplotlib.rc_context(STYLE):
        figure, ((density, cumulative),) = new_panels(2)
        for index, (name, pdf) in enumerate(distributions.items()):
            sizes = np.arange(len(pdf))
            density.step(sizes, pdf, where="mid", label=name, **_line(index))
            cumulative.step(sizes, np.cumsum(pdf), where="post", **_line(index))
        density.set(ylabel="share of windows", ylim=(0, None))
        cumulative.set(ylabel="cumulative share of windows", ylim=(0, 1.02))
        for axes in (density, cumulative):
            axes.set(xlabel="distilled events, $|H_d|$")
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if len(distributions) > 1:
            figure.legend(loc="outside lower center", ncols=4)
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def slide_plot(added: Sequence[int], ejected: Sequence[int], title: str | None = None) -> Figure:
    """How many events enter and leave H_d as the window slides by one event (fig. 5); shares on a logarithmic axis,
    since what tells them apart is rare.

    Args:
        added, ejected: how many slides moved 0, 1, 2, ... events.
    """
    _need(added, "a plot of slides", "slide")
    most = max(len(added), len(ejected)) - 1
    with matplotlib.rc_context(STYLE):
        figure, (panels,) = new_panels(2, sharey=True)
        for axes, counts, name, colour in zip(
            panels, (ejected, added), ("ejected from $H_d$", "added to $H_d$"), COLOURS[1::-1], strict=True
        ):
            share = np.asarray(counts) / np.sum(counts)
            axes.bar(np.arange(len(share)), share, color=colour, width=0.8)
            axes.set(xlabel=f"events {name} in one slide", yscale="log", xlim=(-0.7, most + 0.7))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_title(f"{name}: {share[3:].sum():.1%} of slides move 3 or more", fontsize=9)
        panels[0].set_ylabel("share of slides")
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def sizes_plot(along: Mapping[Any, tuple[Sequence[int], Sequence[int]]], title: str | None = None) -> Figure:
    """|H_d| as the window slides along whole sequences (fig. 6), one panel each.

    Args:
        along: offsets and sizes by sequence, of `analysis.sizes_along`.
    """
    _need(along, "a plot of sizes", "sequence")
    columns = min(2, len(along))
    rows = -(-len(along) // columns)
    with matplotlib.rc_context(STYLE):
        figure, grid = new_panels(columns, rows, height=0.6 + 1.7 * rows, sharey=True)
        for axes in grid.flat[len(along) :]:
            axes.set_visible(False)
        for axes, (name, (offsets, sizes)) in zip(grid.flat, along.items(), strict=False):
            # A gap where windows are missing, not a line across.
            where = np.flatnonzero(np.diff(offsets) > 1) + 1
            axes.step(
                np.insert(np.asarray(offsets, dtype=float), where, np.nan),
                np.insert(np.asarray(sizes, dtype=float), where, np.nan),
                where="mid",
                color=COLOURS[0],
                linewidth=1.1,
            )
            axes.set_title(f"sequence {name}", fontsize=9)
            axes.set_ylim(bottom=0)
        for axes in grid[-1]:
            axes.set_xlabel("first event of the window")
        for axes in grid[:, 0]:
            axes.set_ylabel("$|H_d|$")
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def explanation_plot(frame: pd.DataFrame, title: str | None = None, time_unit: str | None = None) -> Figure:
    """One window on a time line: P(distil) of every past event above, the events by mark below.

    Args:
        frame: of `Explanation.to_frame()`: time, mark, role (distilled, left or future), probability.
        time_unit: for the axis; not needed for moments.
    """
    _need(frame, "a plot of an explanation", "event")
    times, role = frame["time"].to_numpy(), frame["role"].to_numpy()
    marks = list(dict.fromkeys(frame["mark"]))[::-1]  # the first to appear on top
    place = np.array([marks.index(mark) for mark in frame["mark"]])
    looks = {
        "distilled": {"color": COLOURS[1], "marker": "o", "s": 30, "zorder": 4},
        "left": {"facecolor": "white", "edgecolor": COLOURS[0], "marker": "o", "s": 30, "zorder": 3},
        "future": {"color": COLOURS[6], "marker": "D", "s": 22, "zorder": 3},
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.6 + 0.2 * len(marks)), layout="constrained", dpi=STYLE["savefig.dpi"])
        chance, line = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 0.4 + 0.2 * len(marks)])
        for name, look in looks.items():
            some = role == name
            if some.any():
                line.scatter(times[some], place[some], label=f"{name} ({some.sum()})", clip_on=False, **look)
            if some.any() and name != "future":
                colour = COLOURS[1] if name == "distilled" else COLOURS[0]
                probability = frame["probability"].to_numpy(dtype=float)[some]
                chance.vlines(times[some], 0, probability, color=colour, linewidth=1)
                chance.scatter(times[some], probability, clip_on=False, **{**look, "s": 16})
        chance.axhline(0.5, color="#999999", linewidth=0.8, linestyle="--")
        chance.set(ylabel="P(distil)", ylim=(0, 1))
        past = times[role != "future"]
        if len(past):
            for axes in (chance, line):
                axes.axvspan(past.max(), times.max(), color="#000000", alpha=0.04, linewidth=0)
        line.set_yticks(range(len(marks)), marks)
        line.set_ylim(-0.6, len(marks) - 0.4)
        is_moment = np.issubdtype(times.dtype, np.datetime64)
        line.set_xlabel("time" if is_moment or time_unit is None else f"time ({time_unit})")
        if is_moment:
            line.xaxis.set_major_formatter(ConciseDateFormatter(AutoDateLocator()))
        figure.legend(*line.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        if title:
            chance.set_title(title)
    return figure


def _need(items: Any, what: str, piece: str) -> None:
    if len(items) == 0:
        raise ValueError(f"{what} needs at least one {piece}; got none.")


def _line(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def _short(number: int) -> str:
    """1,234,567 as 1.2M, for labels."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
